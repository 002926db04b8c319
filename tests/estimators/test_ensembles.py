"""Several models from other starts, whose log-odds are averaged: one model."""

import numpy as np
import pandas as pd
import pytest

import dyads
from dyads import LBFGS, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, SideInformation
from dyads.datasets.synthetic import make_nominal
from dyads.errors import InputError
from shop import ITEMS, USERS, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
PAIRS = pd.DataFrame([(i, j) for i in range(9) for j in range(i + 1, 9)], columns=["a", "b"])
LINKED = ((PAIRS["a"] + PAIRS["b"]) % 2).to_numpy()
KINDS = PAIRS.assign(kind=np.where(PAIRS["a"] % 2, "x", "y"))
NODES = pd.DataFrame({"a": range(9), "size": np.arange(9) % 4})
DATED = X.assign(hour=np.random.default_rng(0).normal(size=len(X)))


def side(interactions, **tables):
    return {"features": SideInformation(interactions=interactions, **tables)}


CASES = {
    "bilinear": (LFLClassifier, {}, X, Y),
    "bilinear, wide features": (LFLClassifier, side(3, row=USERS, col=ITEMS), DATED, Y),
    "bilinear, narrow features": (LFLClassifier, side(1, row=USERS), X, Y),
    "bilinear, rank 0": (LFLClassifier, {"rank": 0}, X, Y),
    "stereotype": (LFLOrdinal, {"n_terms": 2}, X, STARS),
    "stereotype, features": (LFLOrdinal, side(1, col=ITEMS), X, STARS),
    "symmetric": (LFLLink, side(1, row=NODES), PAIRS, LINKED),
    "spectral": (LFLLink, {"structure": "spectral"}, PAIRS, LINKED),
    "directed": (LFLLink, {"structure": "directed"}, PAIRS, LINKED),
    "relational": (LFLRelational, {}, KINDS, LINKED),
    "mixture": (LFLRelational, {"structure": "mixture"}, KINDS, LINKED),
}


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
@pytest.mark.parametrize("case", CASES)
def test_log_odds_are_the_means_of_those_of_the_members(case, tmp_path):
    kind, choices, X, y = CASES[case]
    settings = {"rank": 2, "l2": dyads.L2(), "solver": LBFGS(max_iter=15), **choices}
    model = kind(n_models=3, random_state=0, **settings).fit(X, y)
    assert len(model.record_.draws) == 1
    seeds = np.random.RandomState(0)
    members = []
    for _ in range(3):
        members.append(kind(random_state=np.random.RandomState(), **settings))
        members[-1].random_state.set_state(seeds.get_state())
        members[-1].fit(X, y)
        seeds.randint(2**31 - 1)
    odds = [member.log_odds(X) for member in members]
    np.testing.assert_allclose(model.log_odds(X), np.mean(odds, axis=0), atol=1e-9)
    if case != "bilinear, rank 0":
        assert np.abs(odds[0] - odds[1]).max() > 1e-4
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(dyads.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


def test_an_average_is_better_than_its_members():
    data = make_nominal(n=60, rank=3, width=2.0, random_state=0)
    train, test = data.split(0.4)
    losses = []
    for n_models in (1, 6):
        model = LFLClassifier(rank=3, l2=0.5, n_models=n_models, random_state=0).fit(train.X, train.y)
        losses.append(dyads.metrics.log_loss(test.y, model.predict_proba(test.X), test.classes))
    assert losses[1] < losses[0]


def test_an_average_folds_in_and_goes_on_like_any_point_estimate():
    model = LFLOrdinal(rank=2, l2=0.3, n_models=2, random_state=0).fit(X, STARS)
    before = model.predict_proba(X)
    folded = model.fold_in(X[:5].assign(user="new"), STARS[:5])
    np.testing.assert_array_equal(folded.predict_proba(X), before)
    with pytest.raises(InputError, match="partial_fit does not support n_models=2"):
        folded.partial_fit(X, STARS)
    with pytest.raises(InputError, match="warm_start=True and n_models=2"):
        LFLOrdinal(warm_start=True, n_models=2).fit(X, STARS)
    further = folded.set_params(n_models=1).partial_fit(X, STARS)
    assert np.abs(further.predict_proba(X) - before).max() > 1e-4


@pytest.mark.filterwarnings("error")
def test_links_are_an_average_of_twenty_by_default_and_one_if_a_solver_is_named():
    model = LFLLink(rank=2, random_state=0).fit(PAIRS, LINKED)
    assert (model.record_.parts.rank, model.converged_) == (40, True)
    both = pd.concat([PAIRS, PAIRS.rename(columns={"a": "b", "b": "a"})] * 8)
    directed = LFLLink(rank=2, structure="directed", random_state=0).fit(
        both, np.tile(np.repeat([0, 1], len(PAIRS)), 8)
    )
    assert directed.predict_proba(PAIRS)[:, 1].mean() < 0.5, "the two orders of a pair have their own labels"
    assert LFLLink(rank=2, solver="sgd", random_state=0).fit(PAIRS, LINKED).record_.parts.rank == 2
    assert LFLClassifier(rank=2, solver="point", random_state=0).fit(X, Y).record_.parts.rank == 2
    turned = model.predict_proba(PAIRS[["b", "a"]].to_numpy())
    np.testing.assert_array_equal(model.predict_proba(PAIRS), turned)


def test_a_callback_that_stops_ends_the_whole_fit():
    model = LFLOrdinal(rank=2, n_models=3, random_state=0).fit(X, STARS, callback=lambda progress: True)
    assert model.record_.parts.structure.n_terms == 1
    assert not model.converged_
