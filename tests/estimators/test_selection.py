"""A model is judged by what it knew of the ids."""

import dataclasses
import warnings

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import KFold

import dyads
from dyads import LBFGS, SGD, LFLClassifier, LFLClassifierCV, LFLLink, LFLOrdinal, LFLOrdinalCV
from dyads.datasets.synthetic import make_nominal
from dyads.errors import InputError, VanishedWarning
from dyads.estimators import lfl
from dyads.estimators import search as searching
from dyads.estimators.baselines import Marginals
from dyads.estimators.lfl import LFL
from dyads.estimators.search import vanishing_l2
from dyads.estimators.selection import evaluated, turned
from dyads.model.loss import Squared
from dyads.report import SearchDisplay
from shop import WITH, X, Y


def by_model(table):
    """The lines of the model itself, by regime."""
    return table[table["predictor"] == "model"].set_index("regime")


def test_regimes_are_judged_side_by_side():
    old = (~X["user"].isin(["u1", "u2"]) & ~X["item"].isin(["i1", "i2"])).to_numpy()
    model = LFLClassifier(rank=1, random_state=0, solver="point").fit(X[old], Y[old])
    table = by_model(dyads.evaluate(model, X, Y))
    assert table.index.tolist() == ["known", "new row", "new column", "both new", "all"]
    assert table.loc["known", "n"] == old.sum()
    assert table["n"].iloc[:-1].sum() == table.loc["all", "n"] == len(X)
    known = dyads.metrics.log_loss(Y[old], model.predict_proba(X[old]), model.classes_)
    assert table.loc["known", "log_loss"] == pytest.approx(known)
    assert table.loc["known", "accuracy"] == pytest.approx(model.score(X[old], Y[old]))
    informed = by_model(dyads.evaluate(LFLClassifier(rank=1, **WITH).fit(X[old], Y[old]), X, Y))
    assert informed.loc["both new", "log_loss"] < table.loc["both new", "log_loss"]


def test_ordered_labels_have_an_absolute_error_and_weights_count():
    stars = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
    model = LFLOrdinal(rank=1, random_state=0, solver="point").fit(X, stars)
    table = dyads.evaluate(model, X.to_numpy(), stars)
    assert table["mean_absolute_error"][0] == pytest.approx(-model.score(X, stars))
    none = dyads.evaluate(model, X[:0], stars[:0])
    assert (none.dtypes == table.dtypes).all()
    assert set(none["regime"]) == {"all"}
    assert set(none["n"]) == {0}
    assert none.iloc[:, 3:].isna().all(axis=None), "of no dyads there are no metrics"
    weight = np.where(np.arange(len(X)) < 100, 1.0, 0.0)
    some = dyads.evaluate(model, X, stars, weight).set_index(["regime", "predictor"])
    part = dyads.evaluate(model, X[:100], stars[:100]).set_index(["regime", "predictor"])
    np.testing.assert_allclose(some.loc["all"].iloc[:, 1:3], part.loc["all"].iloc[:, 1:3])
    with pytest.raises(InputError, match="dyads but 3 labels"):
        dyads.evaluate(model, X, stars[:3])
    texts = LFLOrdinal(rank=1, order=["maybe", "no", "yes"], random_state=0, solver="point").fit(X, Y)
    pd.testing.assert_frame_equal(dyads.evaluate(texts, X, Y), dyads.evaluate(model, X, stars))


def test_a_model_is_judged_beside_the_marginals_of_its_training_data_on_the_same_dyads():
    stars = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
    old = (X["user"] != "u1").to_numpy()
    train, test = old & (np.arange(len(X)) % 4 > 0), np.arange(len(X)) % 4 == 0
    table = dyads.evaluate(LFLOrdinal(rank=0, solver="point").fit(X[train], stars[train]), X[test], stars[test])
    predictors = ["model", "all labels", "labels by user", "labels by item"]
    for regime in ("known", "new row", "all"):
        assert table.loc[table["regime"] == regime, "predictor"].tolist() == predictors
        assert table.loc[table["regime"] == regime, "n"].nunique() == 1
    figures = table[table["regime"] == "all"].set_index("predictor")
    for of, name in zip(("all", "row", "col"), predictors[1:], strict=True):
        marginal = Marginals(of, ordered=True).fit(X[train], stars[train])
        proba, labels = marginal.predict_proba(X[test]), marginal.predict(X[test])
        expected = dyads.metrics.log_loss(stars[test], proba, [1, 2, 3])
        assert figures.loc[name, "log_loss"] == pytest.approx(expected)
        assert figures.loc[name, "mean_absolute_error"] == pytest.approx(np.abs(labels - stars[test]).mean())


def noise(n=600):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"user": rng.integers(0, 30, n), "item": rng.integers(0, 20, n)}), rng.integers(0, 3, n)


def test_a_model_that_does_not_beat_marginals_says_so_and_by_how_much():
    pairs, y = noise()
    train, test = np.arange(len(y)) < 400, np.arange(len(y)) >= 400
    overfitted = LFLClassifier(rank=0, l2=dyads.L2(bias=0.01)).fit(pairs[train], y[train])
    sentence = evaluated(overfitted, pairs[test], y[test]).shortfall(overfitted)
    table = dyads.evaluate(overfitted, pairs[test], y[test]).set_index(["regime", "predictor"])["log_loss"]
    figures = f"is {table['all', 'model']:.4f}, theirs {table['all', 'all labels']:.4f}"
    assert sentence.startswith("The model does not beat 'all labels'")
    assert figures in sentence
    assert "is more than twice its standard error" in sentence
    assert "--cv" in sentence
    flat = LFLClassifier(rank=0, l2=dyads.L2(bias=1e6)).fit(pairs[train], y[train])
    assert "is not more than twice its standard error" in evaluated(flat, pairs[test], y[test]).shortfall(flat)
    record = flat.record_
    squared = dataclasses.replace(record.parts, loss=Squared().bind(np.arange(3.0)))
    flat.record_ = dataclasses.replace(record, parts=squared)
    assert "calibrate its probabilities" in evaluated(flat, pairs[test], y[test]).shortfall(flat)
    good = LFLClassifier(rank=0, random_state=0, solver="point").fit(X[:1000], Y[:1000])
    assert evaluated(good, X[1000:], Y[1000:]).shortfall(good) == ""


def test_a_table_for_people_leaves_out_what_it_would_say_twice():
    model = LFLClassifier(rank=0, solver="point").fit(X, Y)
    ((regime, (n, table)),) = turned(dyads.evaluate(model, X, Y).to_dict("list")).items()
    assert (regime, n) == ("all", len(X))
    assert list(table) == ["metric", "model", "all labels", "labels by user", "labels by item"]
    assert table["metric"][:3] == ["log-loss", "Brier score", "class-wise calibration error"]
    without = (X["user"] != "u1").to_numpy()
    new = turned(
        dyads.evaluate(LFLClassifier(rank=0, solver="point").fit(X[without], Y[without]), X, Y).to_dict("list")
    )
    assert {regime: n for regime, (n, _) in new.items()} == {
        "all": len(X), "known": without.sum(), "new row": (~without).sum()
    }  # fmt: skip


def test_held_out_figures_of_a_fit_have_those_of_marginals_on_the_same_dyads():
    pairs, y = noise()
    searched = LFLClassifierCV(rank=0, random_state=0, cv=KFold(3)).fit(pairs, y)
    assert searched.held_out_["model"] == -searched.best_score_
    losses = []
    for train, test in KFold(3).split(y):
        proba = Marginals("row").fit(pairs.iloc[train], y[train]).predict_proba(pairs.iloc[test])
        losses.append(dyads.metrics.log_loss(y[test], proba, [0, 1, 2]))
    assert searched.held_out_["labels by user"] == pytest.approx(np.mean(losses))
    assert searched.held_out_["all labels"] < searched.held_out_["model"]
    stopped = LFLClassifier(rank=0, early_stopping=0.3, random_state=0).fit(pairs, y)
    assert stopped.held_out_["model"] == pytest.approx(min(stopped.trace_["validation"]))
    in_sample = dyads.metrics.log_loss(y, stopped.marginals(pairs)["labels by user"].proba, [0, 1, 2])
    assert stopped.held_out_["labels by user"] > in_sample + 0.05, "the held-out labels are not counted"
    assert LFLClassifier(rank=0, solver="point").fit(pairs, y).held_out_ == {}


@pytest.mark.parametrize("loss", ["log", "brier"])
def test_latent_weights_vanish_at_the_strength_that_is_found(loss):
    data = make_nominal(n=40, rank=2, width=2.0, random_state=0)
    top = vanishing_l2(LFLClassifier(loss=loss, solver="point"), data.X, data.y)
    sizes = [
        LFLClassifier(rank=2, loss=loss, l2=share * top, solver=LBFGS(max_iter=3000, tol=1e-12), random_state=0)
        .fit(data.X, data.y)
        .record_.models[0]
        .latent_size()
        for share in (1.1, 0.8)
    ]
    assert sizes[0] < 1e-3
    assert sizes[1] > 1e-2


@pytest.mark.parametrize("structure", ["symmetric", "directed"])
def test_latent_weights_of_nodes_vanish_at_that_strength_too(structure):
    rng = np.random.default_rng(0)
    X = pd.DataFrame([(i, j) for i in range(30) for j in range(30) if i < j or structure == "directed"])
    y, settings = rng.integers(0, 2, len(X)), {"structure": structure, "n_models": 1, "random_state": 0}
    top = vanishing_l2(LFLLink(**settings), X, y)
    sizes = [
        LFLLink(rank=2, l2=share * top, solver=LBFGS(max_iter=3000, tol=1e-12), **settings)
        .fit(X, y)
        .record_.models[0]
        .latent_size()
        for share in (1.1, 0.6)
    ]
    assert sizes[0] < 1e-3
    assert sizes[1] > 1e-2


def test_penalties_are_chosen_without_a_number_from_the_user():
    data = make_nominal(n=60, rank=2, width=2.0, random_state=1)
    train, test = data.split(0.6)
    search = LFLClassifierCV(rank=2, random_state=0).fit(train.X, train.y)
    results = search.cv_results_
    assert len(results["params"]) == len(results["mean_test_score"]) <= 5
    assert search.best_params_ == results["params"][search.best_index_]
    assert results["rank_test_score"][search.best_index_] == 1
    assert {"split0_test_score", "split2_test_score", "std_test_score", "param_l2__latent"} <= results.keys()
    finer = [
        LFLClassifier(rank=2, l2=l2, random_state=0).fit(train.X, train.y) for l2 in (0.1, 0.2, 0.5, 1, 2, 4, 8, 16)
    ]
    best = min(dyads.metrics.log_loss(test.y, model.predict_proba(test.X), test.classes) for model in finer)
    assert dyads.metrics.log_loss(test.y, search.predict_proba(test.X), test.classes) < 1.05 * best
    chosen = (
        LFLClassifier(rank=2, random_state=0, solver="point").set_params(**search.best_params_).fit(train.X, train.y)
    )
    np.testing.assert_array_equal(search.predict_proba(test.X), chosen.predict_proba(test.X))
    shown = SearchDisplay.from_estimator(search, ax=matplotlib.figure.Figure().subplots())
    assert shown.ax_.get_xscale() == "log"


@pytest.mark.parametrize("width", [4.0, *(pytest.param(width, marks=pytest.mark.slow) for width in (2.0, 8.0))])
def test_a_search_finds_what_all_values_on_all_folds_would(monkeypatch, width):
    data = make_nominal(n=60, rank=2, width=width, random_state=1)
    common, steps = {"rank": 2, "random_state": 0, "solver": LBFGS(max_iter=60)}, []
    search = LFLClassifierCV(**common).fit(data.X, data.y, callback=lambda *step: steps.append(step))
    top = vanishing_l2(LFLClassifier(**common), data.X, data.y)
    monkeypatch.setattr(searching, "FINALISTS", 7)
    monkeypatch.setattr(searching, "CLEARLY_WORSE", 1e9)
    grid = {"l2__latent": [float(f"{share * top:.3g}") for share in searching.SHARES]}
    every = LFLClassifierCV(grid=grid, **common).fit(data.X, data.y)
    assert np.isfinite([every.cv_results_[f"split{k}_test_score"] for k in range(3)]).all()
    assert len(every.cv_results_["params"]) == 7
    assert search.best_params_ == every.best_params_
    assert search.best_score_ == pytest.approx(every.best_score_, abs=1e-3), "warm starts differ"
    assert len(steps) <= 9
    assert steps[-1][0] == steps[-1][1] == len(steps)


@pytest.mark.parametrize(("clearly", "n_judged"), [(2.0, None), (1e9, 3), (0.0, 1)])
def test_only_the_best_of_the_first_fold_are_judged_on_the_others(monkeypatch, clearly, n_judged):
    monkeypatch.setattr(searching, "CLEARLY_WORSE", clearly)
    data = make_nominal(n=60, rank=2, width=2.0, random_state=1)
    grid = {"l2__latent": [0.01, 1.0, 1.2, 1.4, 100.0, 1000.0, 1e4, 1e5, 1e6]}
    search = LFLClassifierCV(2, grid=grid, solver=LBFGS(max_iter=60), random_state=0).fit(data.X, data.y)
    results = search.cv_results_
    scores = np.array([results[f"split{k}_test_score"] for k in range(3)])
    judged = np.isfinite(scores).all(axis=0)
    assert np.isfinite(scores[0]).all(), "every value is tried"
    assert scores[0, judged].min() > scores[0, ~judged].max()
    assert judged.sum() <= 3 if n_judged is None else judged.sum() == n_judged
    np.testing.assert_allclose(results["mean_test_score"][judged], scores[:, judged].mean(axis=0))
    # The others are as far below these, on average over folds, as they are on the first fold.
    below = results["mean_test_score"][judged].mean() - results["mean_test_score"][~judged]
    np.testing.assert_allclose(below, scores[0, judged].mean() - scores[0, ~judged])
    assert results["rank_test_score"][judged].max() < results["rank_test_score"][~judged].min()
    assert results["mean_test_score"][search.best_index_] == search.best_score_ == results["mean_test_score"].max()


def test_folds_are_fitted_by_the_solver_of_the_final_fit(monkeypatch):
    used = []

    def by_size(objective, n):
        return LBFGS(max_iter=3) if n < len(X) else SGD(max_iter=3)

    def fit(model, *data, checkpoint=None):
        LFL.fit(model, *data)
        used.append((len(data[1]), model.solver_))
        return model

    monkeypatch.setattr(searching, "point_solver", by_size)
    monkeypatch.setattr(lfl, "point_solver", by_size)
    monkeypatch.setattr(LFLClassifier, "fit", fit)
    LFLClassifierCV(1, cv=2, random_state=0).fit(X, Y)
    sizes, solvers = zip(*used, strict=True)
    assert min(sizes) < len(X) == max(sizes)
    assert set(solvers) == {"sgd"}


def test_ranks_structures_and_penalties_of_features_are_chosen_too():
    stars = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
    common = {"solver": LBFGS(max_iter=20), **WITH}
    grid = {"l2__latent": [1.0, 10.0], "rank": [0, 1], "structure": [None, "bilinear"]}
    steps = []
    search = LFLOrdinalCV(grid=grid, n_jobs=2, **common)
    search.fit(X, stars, callback=lambda done, planned: steps.append((done, planned)))
    assert [done for done, _ in steps] == list(range(1, len(steps) + 1))
    assert (
        steps[0][1]
        >= steps[-1][1]
        == len(steps)
        == np.isfinite([search.cv_results_[f"split{k}_test_score"] for k in range(3)]).sum()
    )
    assert {"rank", "structure", "l2__side"} <= set(search.best_params_)
    tried = [
        tuple(params.get(name) for name in (*grid, "l2__bias", "l2__side")) for params in search.cv_results_["params"]
    ]
    assert {(l2, 1, kind, None, None) for l2 in (1.0, 10.0) for kind in (None, "bilinear")} <= set(tried)
    assert len(set(tried)) == len(tried) <= 2 * 4 + 2 * 2 + 4
    assert search.predict_mean(X[:3]).shape == (3,)
    again = LFLOrdinalCV(grid=grid, **common).fit(X, stars)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], again.cv_results_["mean_test_score"])
    rows = LFLOrdinalCV(1, l2=1.0, cv=dyads.split.NewRows(2), **common).fit(X, stars)
    assert "split1_test_score" in rows.cv_results_
    assert {params["l2__latent"] for params in rows.cv_results_["params"]} == {1.0}


@pytest.mark.parametrize(("search", "plain"), [(LFLClassifierCV, LFLClassifier), (LFLOrdinalCV, LFLOrdinal)])
def test_a_search_is_the_estimator_with_more_parameters(search, plain):
    own = {name: value for name, value in search().get_params().items() if name not in ("grid", "cv", "n_jobs")}
    assert own == plain().get_params()
    public = {name for name in dir(plain) if not name.startswith("_")}
    assert public <= set(dir(search))


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"grid": {"l2": [1.0, 3.0]}}, "Rename l2 to l2__latent"),
        ({"grid": {"rank": []}}, "expected values of parameters"),
        ({"warm_start": True}, "warm_start=True: expected False"),
    ],
)
def test_a_search_refuses_what_it_would_not_search(choices, says):
    with pytest.raises(InputError, match=says):
        LFLClassifierCV(1, **choices).fit(X, Y)


def test_strengths_that_are_given_are_not_chosen():
    search = LFLClassifierCV(0, l2=dyads.L2(bias=3.0), cv=2).fit(X, Y)
    assert search.cv_results_["params"] == [{"l2__bias": 3.0}]
    search = LFLClassifierCV(grid={"rank": [0, 1], "l2__bias": [1.0, 4.0], "l2__latent": [2.0]}, cv=2).fit(X, Y)
    tried = [(params["rank"], params["l2__bias"]) for params in search.cv_results_["params"]]
    assert tried == [(0, 1.0), (0, 4.0), (1, 1.0), (1, 4.0)]


def test_only_penalties_that_apply_are_searched():
    side = WITH["features"]
    tried = LFLClassifierCV(0, bias=False, features=side, cv=2).fit(X, Y).cv_results_["params"]
    assert [sorted(params) for params in tried] == [[], *[["l2__side"]] * 4]
    tried = LFLClassifierCV(1, l2=dyads.L2(row=1.0, col=2.0), cv=2).fit(X, Y).cv_results_["params"]
    assert tried == [{}]


def test_settings_and_losses_are_candidates_of_their_own():
    side = WITH["features"]
    grid = {"features": [side, side.replaced({"interactions": 1})], "l2__latent": [2.0], "l2__side": [10.0]}
    tried = LFLClassifierCV(1, grid=grid, cv=2, solver=LBFGS(5)).fit(X, Y).cv_results_["params"]
    assert len(tried) == 3
    stars = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
    losses = {"loss": [dyads.Absolute(0.1), dyads.Absolute(0.2)]}
    results = LFLOrdinalCV(1, grid=losses, l2=2.0, cv=2, solver=LBFGS(5)).fit(X, stars).cv_results_
    assert results["param_loss"].tolist() == losses["loss"]


def test_a_fitted_search_saves_calibrates_and_folds_in_like_its_estimator(tmp_path):
    search = LFLClassifierCV(1, cv=2, random_state=0).fit(X, Y)
    search.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    assert type(loaded) is LFLClassifier
    assert loaded.l2.latent == search.best_params_["l2__latent"]
    np.testing.assert_array_equal(loaded.predict_proba(X), search.predict_proba(X))
    loss = dyads.metrics.log_loss(Y, search.predict_proba(X), search.classes_)
    assert dyads.metrics.log_loss(Y, search.calibrate(X, Y).predict_proba(X), search.classes_) <= loss
    assert search.fold_in(X[:3].assign(user="late"), Y[:3]).support(X[:1].assign(user="late"))[0, 0] == 3


def test_calibration_is_judged_by_label_and_by_support():
    old = (~X["user"].isin(["u1", "u2"])).to_numpy()
    model = LFLClassifier(rank=1, l2=2.0, random_state=0).fit(X[old], Y[old])
    table = dyads.calibration_by_label(model, X[old], Y[old])
    assert table["label"].tolist() == ["maybe", "no", "yes"]
    proba = model.predict_proba(X[old])
    for code, label in enumerate(model.classes_):
        score = np.mean((proba[:, code] - (Y[old] == label)) ** 2)
        parts = table.iloc[code]
        assert parts["reliability"] - parts["resolution"] + parts["uncertainty"] == pytest.approx(score, abs=0.01)
    assert table["share"].sum() == pytest.approx(1)
    assert table["ece"].mean() == pytest.approx(dyads.metrics.classwise_ece(Y[old], proba, model.classes_))
    with pytest.warns(dyads.errors.UnknownIdWarning):
        by_support = dyads.calibration_by_support(model, X, Y)
    assert by_support["n"].sum() == len(X)
    assert by_support["least_support"].iloc[0] == 0
    assert (np.diff(by_support["least_support"]) > 0).all()


def test_bands_hold_the_frequency_and_narrow_with_more_dyads():
    rng = np.random.default_rng(0)
    widths = []
    for n in (300, 5000):
        p = rng.uniform(size=n)
        hit = rng.random(n) < p
        confidence, frequency, _ = dyads.metrics.reliability(hit, p)
        again, low, high = dyads.metrics.reliability_band(hit, p)
        np.testing.assert_array_equal(confidence, again)
        assert ((low <= frequency + 1e-12) & (frequency <= high + 1e-12)).mean() > 0.9
        widths.append((high - low).mean())
    assert widths[1] < 0.5 * widths[0]


def test_a_search_that_chooses_no_latent_weights_says_so():
    noise = np.random.default_rng(0).integers(0, 3, 200)
    search = LFLOrdinalCV(1, grid={"l2__latent": [1e3]}, cv=2, random_state=0)
    with pytest.warns(VanishedWarning, match="The search chose .*1000.*rank=0 predicts as well") as told:
        search.fit(X[:200], noise)
    assert not any("cross-validation" in str(each.message) for each in told)


def test_a_search_keeps_the_order_of_text_labels(tmp_path):
    few, grid = X[:300], {"l2__latent": [1.0]}
    stars = np.searchsorted(["maybe", "no", "yes"], Y[:300])
    words = pd.Series(pd.Categorical.from_codes(2 - stars, ["good", "fair", "bad"], ordered=True))
    search = LFLOrdinalCV(1, grid=grid, cv=2, random_state=0).fit(few, words)
    assert search.classes_.tolist() == ["good", "fair", "bad"]
    numbers = LFLOrdinalCV(1, grid=grid, cv=2, random_state=0).fit(few, 2 - stars)
    assert search.best_score_ == pytest.approx(numbers.best_score_)
    named = LFLOrdinalCV(1, grid=grid, cv=2, order=["good", "fair", "bad"], random_state=0).fit(few, words.astype(str))
    assert named.best_score_ == pytest.approx(numbers.best_score_)
    search.save(tmp_path / "search.dyads")
    loaded = dyads.load(tmp_path / "search.dyads")
    np.testing.assert_array_equal(loaded.predict(few), search.predict(few))


def test_a_search_takes_what_a_fit_takes():
    pairs = pd.concat([X, pd.DataFrame({"user": ["rare", "u1"], "item": ["i1", "i1"]})], ignore_index=True)
    labels, weight = np.append(Y, ["yes", "never"]), np.append(np.ones(len(X) + 1), 0.0)
    pairs.insert(0, "hour", np.where(np.arange(len(pairs)) % 7, 1.0, np.nan))
    before = list(warnings.filters)
    for unknown in ("raise", "nan", "mean"):
        common = {"solver": LBFGS(max_iter=5), "unknown": unknown, "id_columns": ("user", "item"), "random_state": 0}
        grid = {"l2__side": [3.0]}
        search = LFLClassifierCV(1, grid=grid, cv=np.int64(2), n_jobs=2, **common).fit(pairs, labels, weight)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        again = LFLClassifierCV(1, grid=grid, cv=2, **common).fit(pairs, labels, weight)
        np.testing.assert_array_equal(search.cv_results_["mean_test_score"], again.cv_results_["mean_test_score"])
    assert list(warnings.filters) == before
    with pytest.raises(InputError, match="learns how strong"):
        LFLClassifierCV(solver="gibbs").fit(X, Y)


def test_a_regime_without_weight_has_no_figures():
    model = LFLClassifier(rank=0, solver="point").fit(X, Y)
    table = pd.concat([X[:40], X[:5].assign(user="new")])
    weight = np.repeat([1.0, 0.0], [40, 5])
    figures = dyads.evaluate(model, table, np.concatenate([Y[:40], Y[:5]]), weight).set_index(["regime", "predictor"])
    assert np.isnan(figures.loc[("new row", "model"), "log_loss"])
    assert figures.loc[("all", "model"), "log_loss"] == figures.loc[("known", "model"), "log_loss"]


def test_advice_is_never_what_has_been_done_or_cannot_be():
    rng = np.random.default_rng(0)
    pairs, labels = {"a": rng.integers(0, 30, 300), "b": rng.integers(0, 30, 300)}, rng.integers(0, 2, 300)
    for model, advice in (
        (LFLClassifier(rank=0, l2=dyads.L2(bias=0.01)), "--cv"),
        (dyads.LFLLink(rank=0, structure="directed", l2=dyads.L2(bias=0.01)), "other penalties"),
        (LFLClassifierCV(0, grid={"l2__bias": [0.01, 0.02]}), "Sample the posterior"),
    ):
        model.fit(pairs, labels)
        others = {"a": rng.integers(0, 30, 300), "b": rng.integers(0, 30, 300)}
        sentence = evaluated(model, others, rng.integers(0, 2, 300)).shortfall(model)
        assert advice in sentence
        assert ("--cv" in sentence) == (advice == "--cv")
        few = {name: column[:9] for name, column in others.items()}
        assert evaluated(model, few, rng.integers(0, 2, 9)).shortfall(model) == ""


def test_a_point_estimate_without_a_penalty_does_not_lose_to_rank_zero():
    pairs, labels = noise()
    model = LFLClassifier(solver="point", random_state=0).fit(pairs, labels)
    plain = LFLClassifier(rank=0, solver="point", random_state=0).fit(pairs, labels)
    assert model.record_.models[0].latent_size() < 1e-3
    np.testing.assert_allclose(model.predict_proba(pairs), plain.predict_proba(pairs), atol=0.01)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_point_estimate_without_a_penalty_chooses_a_weak_one_for_clear_structure(weighted):
    data = make_nominal(n=60, rank=2, width=6.0, random_state=1)
    train, test = data.split(0.5)
    X, y, weight = train.X, train.y, None
    if weighted:
        # Lines of weight zero are as good as absent.
        X = pd.concat([pd.DataFrame(X), pd.DataFrame(test.X)], ignore_index=True)
        y, weight = np.concatenate([y, 4 - test.y]), np.repeat([1.0, 0.0], [len(train.y), len(test.y)])
    chosen = LFLClassifier(2, solver="point", random_state=0).fit(X, y, weight)
    assert chosen.record_.parts.strengths["row_factors"] < 3
    fixed = LFLClassifier(2, l2=6.0, random_state=0).fit(train.X, train.y)
    losses = [dyads.metrics.log_loss(test.y, model.predict_proba(test.X), test.classes) for model in (chosen, fixed)]
    assert losses[0] < 0.9 * losses[1]
    again = chosen.set_params(warm_start=True).fit(X, y, weight)
    assert again.record_.parts.strengths == chosen.record_.parts.strengths


@pytest.mark.parametrize("turn", [False, True])
def test_a_penalty_chosen_on_a_part_serves_tables_with_few_rows_or_few_columns(turn, monkeypatch):
    monkeypatch.setattr(searching, "SEARCHED_DYADS", 2_000)
    rng = np.random.default_rng(0)
    few, many = rng.standard_normal((2, 30, 2)), rng.standard_normal((2, 600, 2))
    score = 2 * np.einsum("lik,ljk->lij", few, many)
    y = (score[1] + rng.gumbel(size=score[1].shape) > score[0] + rng.gumbel(size=score[0].shape)).ravel()
    pair = np.indices(score.shape[1:]).reshape(2, -1)[:: -1 if turn else 1]
    X, train = dict(zip(("row", "col"), pair, strict=True)), rng.random(len(y)) < 0.8
    fits = [
        LFLClassifier(4, l2=l2, solver="point", random_state=0).fit(
            {name: codes[train] for name, codes in X.items()}, y[train]
        )
        for l2 in (None, dyads.L2())
    ]
    proba = [model.predict_proba({name: codes[~train] for name, codes in X.items()}) for model in fits]
    chosen, fixed = (dyads.metrics.log_loss(y[~train], each, fits[0].classes_) for each in proba)
    assert chosen < 1.02 * fixed
