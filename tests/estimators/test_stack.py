"""A link model stacked with the random walk: one model like any other, better than its parts, and calibrated."""

import itertools

import numpy as np
import pandas as pd
import pytest

import dyads
from dyads import LFLLink, LFLLinkWalk, metrics
from dyads.errors import InputError
from dyads.model.walk import Walk
from dyads.paper.rivals import random_walk


def ring(n=60, seed=0):
    """Neighbours on a ring are linked: paths tell of pairs what a few latent weights cannot."""
    pairs = pd.DataFrame(itertools.combinations(range(n), 2), columns=["source", "target"])
    gap = (pairs["target"] - pairs["source"]).to_numpy()
    near = np.minimum(gap, n - gap) <= 3
    rng = np.random.default_rng(seed)
    linked = (rng.random(len(pairs)) < np.where(near, 0.8, 0.01)).astype(int)
    return pairs, linked, rng.random(len(pairs)) < 0.2


@pytest.fixture(scope="module")
def fitted():
    X, y, held = ring()
    return LFLLinkWalk(rank=1, l2=0.5, n_models=3, random_state=0).fit(X[~held], y[~held])


def test_visits_are_those_of_the_matrix_inverse():
    rng = np.random.default_rng(0)
    links = np.triu(rng.random((12, 12)) < 0.2, 1)
    links[3] = links[:, 3] = 0
    links = (links | links.T).astype(float)
    row, col = np.divmod(np.arange(144), 12)
    seen = dyads.pairs_from_graph(links, directed=False)
    model = LFLLink(rank=1, l2=1.0, n_models=1, random_state=0).fit(seen.X, seen.y)
    order = np.argsort(model.row_ids_)
    np.testing.assert_array_equal(model.record_.known.graph.toarray()[np.ix_(order, order)], links)
    features = Walk(0.8).features(model.record_.known.graph, *(np.argsort(model.row_ids_)[code] for code in (row, col)))
    expected = np.log(random_walk(links, 0.8)[row, col] + 1 / 144)
    other = row != col
    np.testing.assert_allclose(features[other, 0], expected[other], atol=1e-4)
    size = np.log1p(links.sum(axis=1))
    np.testing.assert_allclose(features[:, 1], size[row] + size[col])
    assert not Walk(0.8).features(model.record_.known.graph, np.array([-1, 2]), np.array([0, 99])).any()


def test_the_stack_ranks_better_than_its_parts_and_is_calibrated(fitted):
    X, y, held = ring()
    alone = LFLLink(rank=1, l2=0.5, n_models=3, random_state=0).fit(X[~held], y[~held])
    proba = fitted.predict_proba(X[held])
    by_both, by_one = (metrics.auc(y[held], model.predict_proba(X[held]), [0, 1]) for model in (fitted, alone))
    assert by_both > by_one + 0.1
    noise = y[held].std() / np.sqrt(held.sum())
    assert proba[:, 1].mean() == pytest.approx(y[held].mean(), abs=3 * noise)
    assert metrics.log_loss(y[held], proba, [0, 1]) < metrics.log_loss(y[held], alone.predict_proba(X[held]), [0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["symmetric", "spectral", "directed"])
def test_it_is_one_model(structure, tmp_path):
    X, y, held = ring(24)
    model = LFLLinkWalk(rank=1, structure=structure, l2=0.5, n_models=2, random_state=0).fit(X[~held], y[~held])
    explained = model.explain(X[:5]).query("label == 1").groupby("dyad")["value"].sum()
    np.testing.assert_allclose(explained, model.log_odds(X[:5])[:, 1], atol=1e-5)
    assert "dyad: random walk" in set(model.explain(X[:5])["part"])
    best = model.recommend([3], n=99, with_seen=True)
    np.testing.assert_allclose(best["value"], model.predict_proba(best)[:, 1], atol=1e-6)
    ranks = dyads.evaluate_ranking(model, X[held & (y == 1)]).set_index("metric")["value"]
    assert 0 < ranks["MRR"] <= 1
    model.fold_in(pd.DataFrame({"source": [99] * 3, "target": [1, 2, 9]}), [1, 1, 0])
    assert not model.recommend([99], n=5)["target"].isin([1, 2]).any()
    model.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(InputError, match="features of dyads"):
        model.embed([3])


def test_non_links_that_were_sampled_are_weighed():
    X, y, _ = ring(40)
    pairs = dyads.pairs_from_positives(X[y == 1], rate=2, one_set=True, directed=False, random_state=0)
    model = LFLLinkWalk(rank=1, l2=0.5, n_models=2, random_state=0)
    model.fit(pairs.X, pairs.y, population_weight=pairs.weight)
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), rel=0.3)


def test_what_a_stack_cannot_be_is_refused():
    X, y, _ = ring(12)
    with pytest.raises(InputError, match="point estimate"):
        LFLLinkWalk(solver="gibbs").fit(X, y)
    with pytest.raises(InputError, match="expected two labels, two columns of ids"):
        LFLLinkWalk(1, l2=1.0, n_models=1).fit(X.assign(day=range(len(X))), y)
    few = np.where(np.arange(len(y)) < 3, 0, 1)
    with pytest.raises(InputError, match="at least 5 non-links"):
        LFLLinkWalk(1, l2=1.0, n_models=1).fit(X, few)
    with pytest.raises(InputError, match="Use fit, or LFLLink"):
        LFLLinkWalk(1).partial_fit(X, y)
