"""``solver="gibbs"``: what users of the posterior rely on."""

import copy
import itertools
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import dyads
from dyads import LBFGS, SGD, Gibbs, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, Newton, SideInformation, report
from dyads.data.dyads import Dyads
from dyads.datasets.synthetic import make_nominal
from dyads.engine import CPU, Query
from dyads.errors import (
    CheckpointWarning,
    InputError,
    ModelFileError,
    NotConvergedWarning,
    UnknownIdWarning,
    WeightWarning,
)
from dyads.learn import sampling
from dyads.learn.sampling import LEAST_SWEEPS, MOST_SWEEPS, Length, Plan
from dyads.model.loss import Log, link
from dyads.model.structure import build
from dyads.solve.gibbs import Chain, burn_in_length
from fuzz import mutations
from problems import make_objective
from shop import ITEMS, USERS, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
FAST = {"rank": 2, "solver": Gibbs(sweeps=30), "random_state": 0}
PAIR = FAST | {"solver": Gibbs(sweeps=30, chains=2)}
"""Two chains."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning"),
    pytest.mark.xdist_group("blocks"),  # so that its kernels are compiled by one worker
]


@pytest.fixture(scope="module")
def ordinal():
    return LFLOrdinal(**PAIR).fit(X, STARS)


@pytest.mark.slow
def test_it_beats_the_point_estimate_and_needs_no_penalty():
    data = make_nominal(n=60, rank=3, width=2.0, random_state=1)
    train, test = data.split(0.4)

    def loss(**choices):
        model = LFLClassifier(random_state=0, **choices).fit(train.X, train.y)
        return dyads.metrics.log_loss(test.y, model.predict_proba(test.X), test.classes)

    point = min(loss(rank=8, l2=l2) for l2 in (0.1, 0.3, 1.0, 3.0))
    # One chain finds one of several modes, so whether it alone wins depends on the seed.
    sampled = [loss(rank=rank, solver=Gibbs(sweeps=120, chains=3)) for rank in (8, 16)]
    assert sampled[0] < point
    assert sampled[1] < sampled[0] + 0.03, "too large a rank does little harm"


def test_probabilities_are_the_mean_over_draws_and_lie_in_their_interval(ordinal):
    pairs = X[:40]
    proba, draws = ordinal.predict_proba(pairs), ordinal.sample_proba(pairs)
    np.testing.assert_allclose(draws.mean(axis=0), proba, atol=1e-12)
    low, high = np.moveaxis(ordinal.predict_interval(pairs, 0.9), -1, 0)
    assert ((low <= proba) & (proba <= high)).mean() > 0.95
    inner = ordinal.predict_interval(pairs, 0.5)
    assert (inner[..., 0] >= low).all()
    assert (inner[..., 1] <= high).all()
    assert ordinal.sample_proba(pairs, 3).shape == (3, 40, 3)


def test_the_file_keeps_the_draws(ordinal, tmp_path):
    ordinal.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_interval(X[:30]), ordinal.predict_interval(X[:30]))
    assert loaded.diagnostics_ == ordinal.diagnostics_
    ask = X[:3].assign(user="nobody")
    with pytest.warns(UnknownIdWarning):
        np.testing.assert_array_equal(loaded.predict_proba(ask), ordinal.predict_proba(ask))


def test_few_labels_make_a_wide_interval():
    rng = np.random.default_rng(0)
    often = pd.DataFrame({"user": np.repeat(np.arange(20), 30), "item": np.tile(np.arange(30), 20)})
    rare = pd.DataFrame({"user": [99, 99], "item": [0, 1]})
    pairs = pd.concat([often, rare])
    chance = 1 / (1 + np.exp(-2 * rng.normal(size=100)[pairs["user"]]))
    model = LFLClassifier(**FAST).fit(pairs, (rng.random(len(pairs)) < chance).astype(int))
    wide = np.ptp(model.predict_interval(pd.DataFrame({"user": [99], "item": [5]}))[0, 1])
    narrow = np.ptp(model.predict_interval(often[:100])[:, 1], axis=1)
    assert wide > np.median(narrow)


def test_an_unknown_row_is_integrated_over_the_learnt_prior(ordinal):
    ask = pd.DataFrame({"user": ["nobody"] * 2, "item": X["item"][:2]})
    with pytest.warns(UnknownIdWarning, match="averaged"):
        proba = ordinal.predict_proba(ask)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert np.ptp(ordinal.sample_proba(ask), axis=0).max() > 0.1
    nan = LFLOrdinal(**FAST, unknown="nan").fit(X, STARS)
    assert np.isnan(nan.predict_interval(ask)).all()
    assert np.isnan(nan.sample_proba(ask, 2)).all()


def test_features_are_sampled_too_and_tell_new_ids_apart():
    rng = np.random.default_rng(1)
    n = 60
    users = pd.DataFrame({"user": np.arange(n + 2), "likes": np.append(rng.choice([-1.0, 1.0], n), [-1.0, 1.0])})
    pairs = pd.DataFrame({"user": np.repeat(np.arange(n), 12), "item": np.tile(np.arange(12), n)})
    chance = 1 / (1 + np.exp(-2.0 * users["likes"].to_numpy()[pairs["user"]]))
    y = (rng.random(len(pairs)) < chance).astype(int)
    model = LFLClassifier(rank=1, solver=Gibbs(sweeps=60), features=SideInformation(row=users), random_state=0).fit(
        pairs, y
    )
    new = model.predict_proba(pd.DataFrame({"user": [n, n + 1], "item": [0, 0]}))[:, 1]
    assert new[0] < 0.3
    assert new[1] > 0.7
    weights = [one.layout.side_weights(one.theta)[0][0, 0] for one in model.record_.models]
    assert 1.0 < np.mean(weights) < 3.0
    assert np.std(weights) > 0.02


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        (LFLOrdinal, {"features": SideInformation(row=USERS, col=ITEMS, interactions=1, implicit=True)}),
        (LFLClassifier, {"structure": "stereotype", "n_terms": 2}),
    ],
)
def test_folding_in_gives_a_new_row_draws_of_its_own(kind, choices):
    model = kind(**FAST, **choices).fit(X, STARS)
    mine = X[X["user"] == "u3"]
    rows = choices["features"].row if "features" in choices else None
    named = mine.assign(user="copy")
    given = {} if rows is None else {"row_features": rows[rows["user"] == "u3"].assign(user="copy")}
    folded = copy.copy(model).fold_in(named, STARS[X["user"] == "u3"], **given)
    np.testing.assert_allclose(folded.predict_proba(named), model.predict_proba(mine), atol=0.25)
    others = X[X["user"] != "u3"][:20]
    np.testing.assert_array_equal(folded.predict_proba(others), model.predict_proba(others))
    assert np.ptp(folded.sample_proba(named), axis=0).max() > 0.05


@pytest.mark.slow
def test_links_and_relations_are_sampled():
    nodes = [f"n{i}" for i in range(14)]
    pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i:]]
    linked = [int((int(a[1:]) < 7) == (int(b[1:]) < 7)) for a, b in pairs]
    for structure in ("symmetric", "spectral", "directed"):
        # One new pair a draw: of a few draws, their mean would say little.
        model = LFLLink(**FAST | {"solver": Gibbs(sweeps=150)}, structure=structure).fit(pairs, linked)
        proba = model.predict_proba(pairs)[:, 1]
        with pytest.warns(UnknownIdWarning):
            new = model.predict_proba([("?", "!")])
        np.testing.assert_allclose(model.sample_proba([("?", "!")]).mean(axis=0), new, atol=0.2)
        assert dyads.metrics.auc(linked, np.column_stack([1 - proba, proba]), [0, 1]) > 0.8
    triples = [(a, b, t) for a in nodes for b in nodes for t in ("same", "other")]
    truth = [int(((int(a[1:]) < 7) == (int(b[1:]) < 7)) == (t == "same")) for a, b, t in triples]
    model = LFLRelational(**FAST).fit(triples, truth)
    assert model.score(triples, truth) > 0.9


def test_a_chain_that_is_stopped_and_goes_on_is_the_one_that_never_was(tmp_path):
    whole = LFLOrdinal(**PAIR, engine=CPU(1)).fit(X, STARS)
    seen = []

    def stop(progress):
        seen.append(progress)
        return len(seen) == 41

    broken = LFLOrdinal(**PAIR).fit(X, STARS, callback=stop, checkpoint=tmp_path / "chains")
    assert (broken.n_iter_, broken.converged_) == (30, False), "the sweeps of the longest chain"
    again = LFLOrdinal(**PAIR).fit(X, STARS, checkpoint=tmp_path / "chains")
    np.testing.assert_array_equal(again.predict_proba(X), whole.predict_proba(X))
    assert again.diagnostics_ | {"effective_per_second": 0.0} == whole.diagnostics_ | {"effective_per_second": 0.0}
    longer = LFLOrdinal(**FAST | {"solver": Gibbs(sweeps=40, chains=2)}).fit(X, STARS, checkpoint=tmp_path / "chains")
    with pytest.warns(CheckpointWarning, match="holds 40 sweeps, and .* were asked for: all of them are kept"):
        kept = LFLOrdinal(**PAIR).fit(X, STARS, checkpoint=tmp_path / "chains")
    assert kept.n_iter_ == longer.n_iter_
    assert longer.n_iter_ == 40
    with pytest.raises(InputError, match="other data or another model"):
        LFLOrdinal(**PAIR).fit(X[1:], STARS[1:], checkpoint=tmp_path / "chains")


def test_a_checkpoint_that_cannot_be_kept_is_told_before_the_first_sweep(tmp_path):
    seen = []
    for choices, path, says in (
        ({}, tmp_path / "none" / "chains", "cannot be written"),
        ({"early_stopping": 0.1}, tmp_path / "chains", "early_stopping"),
    ):
        with pytest.raises(InputError, match=says):
            LFLOrdinal(**FAST, **choices).fit(X, STARS, callback=seen.append, checkpoint=path)
    assert not seen
    (tmp_path / "chains").write_bytes(b"nonsense")
    with pytest.raises(dyads.errors.ModelFileError, match="delete it"):
        LFLOrdinal(**FAST).fit(X, STARS, checkpoint=tmp_path / "chains")


def test_an_interrupt_loses_nothing_of_a_chain(tmp_path):
    def interrupt(progress):
        if progress.iteration == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LFLOrdinal(**FAST).fit(X, STARS, callback=interrupt, checkpoint=tmp_path / "chains")
    seen = []
    LFLOrdinal(**FAST).fit(X, STARS, callback=lambda p: seen.append(p.iteration), checkpoint=tmp_path / "chains")
    assert seen[0] == 8


@pytest.mark.parametrize("solver", [Gibbs(20), SGD(20), LBFGS(20), Newton(20)])
def test_an_interrupt_keeps_the_model_so_far(solver):
    """Ctrl-C leaves the model of as many iterations as were made."""
    last = 7 if isinstance(solver, Gibbs | SGD) else 2
    stopped, shorter = (LFLOrdinal(rank=1, solver=solver, random_state=0) for _ in range(2))

    def interrupt(progress):
        if progress.iteration == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=f"after {last} iterations"):
        stopped.fit(X, STARS, callback=interrupt)
    shorter.fit(X, STARS, callback=lambda progress: progress.iteration == last)
    assert stopped.n_iter_ == last
    np.testing.assert_array_equal(stopped.predict_proba(X), shorter.predict_proba(X))


@pytest.mark.parametrize(("solver", "n_models"), [(Gibbs(20, chains=2), 1), (SGD(20), 1), (SGD(5), 3)])
def test_the_time_left_falls_to_zero(solver, n_models):
    steps = []
    LFLOrdinal(rank=1, solver=solver, n_models=n_models, random_state=0).fit(X, STARS, callback=steps.append)
    assert all(step.left > 0 for step in steps[:-1])
    assert steps[-1].left == 0
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds)


def test_the_iterations_of_stopped_chains_are_those_of_the_longest():
    model = LFLOrdinal(rank=1, solver=Gibbs(12, chains=2), random_state=0)
    model.fit(X, STARS, callback=lambda progress: progress.init == 1)
    assert model.n_iter_ == 12


def test_a_row_whose_labels_are_all_held_out_is_a_draw_from_the_prior(monkeypatch):
    pairs = pd.concat([X, pd.DataFrame({"user": ["held"], "item": X["item"][:1]})])
    parts = []

    def hold_out_the_last_row(dyads, fraction, rng):
        held = dyads.row == dyads.n_rows - 1
        parts.append((dyads.take(~held), dyads.take(held)))
        return parts[-1]

    monkeypatch.setattr(Dyads, "hold_out", hold_out_the_last_row)
    found = []
    for label in (1, 3):
        model = LFLOrdinal(**PAIR, early_stopping=0.1).fit(pairs, np.append(STARS, label))
        found.append(np.array([one.layout.blocks(one.theta).row[-1].ravel() for one in model.record_.models]))
    assert model.row_ids_[-1] == "held"
    assert {(len(kept), kept.row_counts[-1], len(held)) for kept, held in parts} == {(len(X), 0, 1)}
    np.testing.assert_array_equal(*found, err_msg="the label that is held out is not read")
    assert (np.diff(found[0], axis=0) != 0).all(), "every draw is a new one"
    priors = [(draw.rows.centre, np.linalg.cholesky(draw.rows.precision)) for draw in model.record_.draws]
    standard = np.array([(own - mean) @ root for own, (mean, root) in zip(found[0], priors, strict=True)])
    assert standard.size > 100
    assert abs(standard.mean()) < 0.3
    assert 0.6 < (standard**2).mean() < 1.5


def test_the_running_held_out_loss_is_told_and_stops_early():
    seen = []
    model = LFLOrdinal(**FAST | {"solver": Gibbs(sweeps=200)}, early_stopping=0.1).fit(X, STARS, callback=seen.append)
    assert np.isfinite([progress.validation for progress in seen]).all()
    assert model.n_iter_ < 200


def test_draws_fit_into_their_memory():
    model = LFLOrdinal(**FAST | {"solver": Gibbs(sweeps=30, memory=0.05)}).fit(X, STARS)
    draws = model.record_.draws
    assert 2 <= len(draws) <= 0.05 * 2**20 / draws[0].theta.nbytes


def test_the_pictures_show_chains_mixing_and_one_dyad(ordinal):
    figure = pytest.importorskip("matplotlib.figure")
    trace, mixed, interval = figure.Figure().subplots(1, 3)
    assert len(report.TrainingDisplay.from_estimator(ordinal, ax=trace).ax_.lines) == 2
    mixing = report.MixingDisplay.from_estimator(ordinal, ax=mixed)
    assert "below 1.2" in mixing.ax_.get_legend().get_texts()[0].get_text()
    shown = report.IntervalDisplay.from_estimator(ordinal, X[:1], ax=interval)
    assert [text.get_text() for text in shown.ax_.get_xticklabels()] == ["1", "2", "3"]
    with pytest.raises(InputError, match="expected exactly one"):
        report.IntervalDisplay.from_estimator(ordinal, X[:2], ax=interval)
    with pytest.raises(InputError, match="no chains"):
        report.MixingDisplay.from_estimator(LFLOrdinal(rank=1, solver="point").fit(X, STARS), ax=mixed)


def test_thompson_sampling_tries_what_is_uncertain(ordinal):
    first, again, other = (
        ordinal.recommend(["u1", "u2", "u3"], n=3, by="thompson", random_state=seed) for seed in (0, 0, 1)
    )
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)
    assert first["user"].tolist() == np.repeat(["u1", "u2", "u3"], 3).tolist()
    assert first["rank"].tolist() == [1, 2, 3] * 3


def test_chains_that_have_not_mixed_are_told():
    with pytest.warns(NotConvergedWarning, match=r"Use solver=Gibbs\(sweeps=100\)"):
        model = LFLOrdinal(rank=2, solver=Gibbs(sweeps=4, chains=2), random_state=0).fit(X, STARS)
    assert not model.converged_


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"loss": "brier"}, "not a likelihood"),
        ({"bias": False, "features": SideInformation(row=USERS)}, "own weights"),
        ({"features": SideInformation(row=USERS, interactions=3)}, "own weights"),
        ({"n_models": 2}, "chains"),
    ],
)
def test_what_cannot_be_sampled_is_said(choices, message):
    with pytest.raises(InputError, match=message):
        LFLClassifier(**{**FAST, **choices}).fit(X, Y)


def test_what_needs_draws_says_so(ordinal):
    point = LFLOrdinal(rank=1, solver="point").fit(X, STARS)
    for ask in (lambda: point.predict_interval(X), lambda: point.recommend(["u1"], by="thompson")):
        with pytest.raises(InputError, match="solver='gibbs'"):
            ask()
    with pytest.raises(InputError, match="level"):
        ordinal.predict_interval(X, 1.5)
    with pytest.raises(InputError, match="draws"):
        ordinal.sample_proba(X, 10_000)


def test_a_posterior_goes_on_from_where_it_was_with_all_its_labels_and_more(monkeypatch):
    some = np.arange(len(STARS)) % 5 > 0
    before = LFLOrdinal(**FAST).fit(X[some], STARS[some])
    proba, n_iter = before.predict_proba(X), before.n_iter_
    model = copy.copy(before).set_params(solver=Gibbs(sweeps=12))
    starts, start = [], sampling.Posterior.start

    def noted(posterior, theta, rng):
        starts.append(theta)
        return start(posterior, theta, rng)

    monkeypatch.setattr(sampling.Posterior, "start", noted)
    model.partial_fit(X, STARS)
    assert np.isin(before.record_.draws[-1].theta, starts[0].astype(np.float32)).all()
    assert model.n_iter_ == n_iter + 12
    assert model.trained_on_["pairs"] == len(STARS)
    assert model.record_.known.label_counts.relation.sum() == len(STARS)
    again = copy.copy(model).partial_fit(X, STARS)
    assert not np.array_equal(again.predict_proba(X), model.predict_proba(X)), "the noise is another"
    np.testing.assert_array_equal(before.predict_proba(X), proba)
    for fewer in (some, ~some):
        with pytest.raises(InputError, match="fewer labels than in the fit"):
            copy.copy(model).partial_fit(X[fewer], STARS[fewer])
    with pytest.raises(InputError, match=r"expected the same\. Use fit"):
        copy.copy(model).partial_fit(X, STARS + 1)
    with pytest.raises(InputError, match="needs a point estimate"):
        copy.copy(model).set_params(solver="point").partial_fit(X, STARS)
    calibrated = copy.copy(before).calibrate(X, STARS).partial_fit(X, STARS)
    assert calibrated.record_.calibrator is not None


def test_settling_is_found_where_a_fall_ends():
    rng = np.random.default_rng(0)
    fall = 10 * np.exp(-np.arange(200) / 8) + 0.1 * rng.normal(size=200)
    assert 20 < burn_in_length(fall) < 60
    assert burn_in_length(rng.normal(size=200)) < 60


def test_thinning_keeps_evenly_spaced_draws():
    class Nothing:
        nbytes = 1

        def rounded(self):
            return self

    class Still:
        def sweep(self, state, rng):
            return state, 1.0

        def loss(self, state):
            return 0.0

    chain = Chain(Nothing())
    for _ in range(100):
        chain = chain.advanced(Still(), None, lambda state: None, 10)
    assert [sweep for sweep, _ in chain.draws] == list(range(16, 97, 16))


def test_new_columns_have_in_a_search_for_the_best_the_scores_they_have_alone():
    cold = pd.concat([ITEMS, ITEMS[:2].assign(item=["cold1", "cold2"])])
    record = LFLOrdinal(**FAST, features=SideInformation(col=cold)).fit(X, STARS).record_
    rows, cols, values = np.arange(3), np.arange(len(record.known.cols)), np.array([1.0, 2.0, 3.0])
    assert (record.known.cols.counts == 0).sum() == 2
    for models in (record.models, record.models[:1], [record.models[-1].one_draw()]):
        nothing = np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int64)
        at, found = CPU(1).top(models, Query(rows, cols, len(cols), values, 0, nothing))
        expected = link(CPU(1).scores(models, (np.repeat(rows, len(cols)), np.tile(cols, 3)))) @ values
        np.testing.assert_allclose(found, np.take_along_axis(expected.reshape(3, -1), at, axis=1))


def test_predictions_hold_no_more_than_one_draw_at_a_time():
    model = LFLOrdinal(**FAST | {"solver": Gibbs(sweeps=30, memory=1.0)}).fit(X, STARS)
    many = pd.concat([X] * 20)
    model.predict_proba(X)
    tracemalloc.start()
    size = model.predict_proba(many).nbytes
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(model.record_.draws) >= 10
    assert peak < 8 * size


def test_a_fit_that_is_stopped_keeps_only_what_had_settled():
    alone = LFLOrdinal(**FAST).fit(X, STARS)
    stopped = LFLOrdinal(**PAIR).fit(X, STARS, callback=lambda p: (p.init, p.iteration) == (1, 1))
    assert alone.diagnostics_["burn_in"] > 0
    assert stopped.diagnostics_["burn_in"] == alone.diagnostics_["burn_in"]
    np.testing.assert_array_equal(stopped.predict_proba(X), alone.predict_proba(X))
    with pytest.raises(InputError, match="needs a point estimate"):
        alone.set_params(solver="sgd").partial_fit(X, STARS)


FORGED_CHAINS = {
    "chain0_draws_theta": lambda array: array.__setitem__((0, 0), np.inf),
    "chain0_scale0": lambda array: array.__setitem__(0, -1.0),
    "chain0_precision0": lambda array: array.__setitem__((0, 0), -1.0),
    "chain0_sweeps": lambda array: array.__setitem__(0, 99),
    "chain0_accepted": lambda array: array.__setitem__(0, np.nan),
}


@pytest.mark.parametrize("name", FORGED_CHAINS)
def test_a_forged_checkpoint_is_refused_by_the_name_of_its_part(tmp_path, name):
    path = tmp_path / "chains"
    LFLOrdinal(**FAST).fit(X, STARS, checkpoint=path)
    manifest, arrays = mutations.unpacked(path.read_bytes())
    arrays = {key: array.copy() for key, array in arrays.items()}
    FORGED_CHAINS[name](arrays[name])
    path.write_bytes(mutations.packed(manifest, arrays))
    with pytest.raises(ModelFileError, match=name):
        LFLOrdinal(**FAST).fit(X, STARS, checkpoint=path)


def test_new_ids_are_like_those_that_get_labels():
    """Popular columns have high labels, and few labels are of others: so are those of a new pair."""
    rng = np.random.default_rng(0)
    col = np.concatenate([rng.integers(0, 5, 3000), np.repeat(np.arange(5, 105), 3)])
    X, y = np.column_stack([rng.integers(0, 100, len(col)), col]), (rng.random(len(col)) < np.where(col < 5, 0.8, 0.1))
    model = LFLClassifier(rank=1, solver=Gibbs(sweeps=40), random_state=0).fit(X, y.astype(int))
    with pytest.warns(UnknownIdWarning):
        chance = model.predict_proba([[-1, -1]])[0, 1]
    assert chance == pytest.approx(y.mean(), abs=0.05)


def sweeps_until_complete(watched, least=LEAST_SWEEPS, most=MOST_SWEEPS):
    length = Length(Chain(None), Plan(1, least, most))
    for n in range(1, len(watched) + 1):
        assert length.end >= n, "an estimate is never past"
        length.check(Chain(None, (0.0,) * n, watched=tuple(watched[:n])))
        if length.end == n:
            return n
    return None


def test_a_chain_ends_when_its_predictions_are_known():
    """Independent draws are known soon; those of a random walk never are; and no chain ends before its least sweeps."""
    noise = np.random.default_rng(0).normal(size=(MOST_SWEEPS, 200))
    assert sweeps_until_complete(noise) == LEAST_SWEEPS
    assert sweeps_until_complete(np.cumsum(noise, axis=0)) == MOST_SWEEPS
    assert sweeps_until_complete(np.cumsum(noise, axis=0), most=220) == 220
    assert sweeps_until_complete(noise, least=300) == 300
    assert sweeps_until_complete(noise, 7, 7) == 7


def plan_of(n_dyads, n_entities, **settings):
    structure = build("bilinear", 3, 3, True, 10, None)
    dyads = Dyads(np.zeros(1, int), np.zeros(1, int), np.zeros(1, int), None, n_entities, n_entities, 3)
    return Plan.of(Gibbs(**settings), make_objective(structure, Log(), dyads), n_dyads)


def test_chains_and_sweeps_grow_with_small_data_and_are_bounded_in_time_with_large():
    plans = [plan_of(n, n // 20) for n in (20, 200, 900, 20_000, 200_000, 2_000_000)]
    assert [plan.chains for plan in plans] == [1, 1, 4, 2, 1, 1]
    least, most = ([getattr(plan, name) for plan in plans] for name in ("least", "most"))
    assert least[0] == least[-1] == most[-1] == LEAST_SWEEPS
    assert max(least) > LEAST_SWEEPS
    assert most[0] == 200
    assert most[1:3] == [MOST_SWEEPS] * 2
    assert all(a >= b for a, b in itertools.pairwise(most[2:]))
    assert plan_of(2_000, 100, sweeps=30)[:3] == (1, 30, 30), "sweeps that were asked for, and one chain"
    assert plan_of(2_000, 100, chains=2).chains == 2


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arviz_reads_the_chains_and_compares_models_by_leave_one_out(tmp_path):
    arviz = pytest.importorskip("arviz")
    data = make_nominal(n=20, rank=1, width=2.0, random_state=0)
    model = LFLClassifier(rank=1, solver=Gibbs(sweeps=60, chains=2), random_state=0).fit(data.X, data.y)
    chains = model.to_arviz(data.X, data.y)
    n = min(model.diagnostics_["draws"])
    assert chains.posterior["row_bias"].shape[:3] == (2, n, 20)
    assert list(chains.posterior["row"].values) == list(range(20))
    proba, codes = model.sample_proba(data.X), np.searchsorted(model.classes_, data.y)
    likelihood = np.log(proba[:, np.arange(len(codes)), codes])
    np.testing.assert_allclose(chains.log_likelihood["label"].values[1], likelihood[-n:], rtol=1e-6)
    plain = LFLClassifier(rank=0, solver=Gibbs(sweeps=60), random_state=0).fit(data.X, data.y)
    assert arviz.loo(chains).elpd_loo > arviz.loo(plain.to_arviz(data.X, data.y)).elpd_loo + 10
    model.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    assert (loaded.to_arviz().posterior["row_bias"].values == chains.posterior["row_bias"].values).all()
    best = model.record_.best
    np.testing.assert_array_equal(model.embed([3]), model.record_.models[best].vectors(np.array([3]), "row", 0, 0))
    np.testing.assert_array_equal(loaded.embed([3]), model.embed([3]))
    assert (
        model.parts_["row_bias"].tolist()
        == model.record_.models[best].layout.named(model.record_.draws[best].theta)["row_bias"].tolist()
    )
    with pytest.raises(InputError, match="point estimate"):
        LFLClassifier(rank=1, solver="lbfgs").fit(data.X, data.y).to_arviz()
    with pytest.raises(InputError, match="both, or neither"):
        model.to_arviz(data.X)
    with pytest.raises(InputError, match="400 pairs and 399 labels"):
        model.to_arviz(data.X, data.y[1:])


def test_the_default_samples_unless_a_setting_asks_for_a_point_estimate(monkeypatch):
    class Sampled(Exception):
        pass

    def sampled(*_):
        raise Sampled

    def samples(model, X, y, weight=None):
        try:
            model.set_params(random_state=0).fit(X, y, weight)
        except Sampled:
            return True
        return False

    monkeypatch.setattr("dyads.estimators.lfl.sample", sampled)
    data = make_nominal(n=12, rank=1, width=2.0, random_state=0)
    pairs, triples = (data.X, data.y), ({**data.X, "t": data.y}, data.y % 2)
    assert samples(LFLClassifier(1), *pairs)
    assert samples(LFLOrdinal(1), *pairs)
    assert samples(LFLRelational(1), *triples)
    for settings in (
        {"solver": "point"},
        {"l2": 1.0},
        {"early_stopping": 0.2},
        {"warm_start": True},
        {"n_models": 2},
        {"n_init": 2},
    ):
        assert not samples(LFLClassifier(1, **settings), *pairs)
    assert not samples(LFLOrdinal(1, loss="absolute"), *pairs)
    assert not samples(LFLLink(1), [("a", "b"), ("a", "c")], [0, 1])
    assert not samples(LFLClassifier(0, bias=False), *pairs), "there are no blocks to draw"
    with pytest.warns(WeightWarning, match=r"seen w times, 216 labels in all.*solver='point'"):
        assert samples(LFLClassifier(1), *pairs, np.full(len(data.y), 1.5))
    assert samples(LFLClassifier(1), *pairs, np.full(len(data.y), 2.0))
    monkeypatch.setattr(sampling, "SAMPLING_WORK", 100 * len(data.y) * 60)
    assert not samples(LFLClassifier(1), *pairs)


def test_chains_of_different_lengths_all_count(monkeypatch):
    """Each chain has its own burn-in, and ends when its own predictions are known."""
    ends = iter([20, 60])

    def planned(chain, plan):
        return SimpleNamespace(end=next(ends), check=lambda chain: None)

    monkeypatch.setattr(sampling, "Length", planned)
    data = make_nominal(n=12, rank=1, width=2.0, random_state=0)
    model = LFLClassifier(rank=1, solver=Gibbs(chains=2), random_state=0).fit(data.X, data.y)
    assert min(model.diagnostics_["draws"]) >= 10
    assert sum(model.diagnostics_["draws"]) == len(model.record_.draws)
    assert np.isfinite(model.diagnostics_["r_hat"]).all()
