"""Scores of links from the graph: beside networkx and their series, and as features that do not know the answer."""

import networkx as nx
import numpy as np
import pytest

from dyads import L2, LFLLink, metrics
from dyads.errors import InputError
from dyads.paper.rivals import LINK_SCORES, LinkScore, WithLinkScores


@pytest.fixture
def graph():
    return nx.karate_club_graph()


def pairs_of(graph):
    n = len(graph)
    row, col = np.triu_indices(n, 1)
    return {"a": row, "b": col}, np.array([int(graph.has_edge(i, j)) for i, j in zip(row, col, strict=True)])


def test_adamic_adar_is_that_of_networkx(graph):
    X, y = pairs_of(graph)
    found = LinkScore("adamic-adar").fit(X, y).decision_function(X)
    pairs = list(zip(*(column.tolist() for column in X.values()), strict=True))
    np.testing.assert_allclose(found, [value for _, _, value in nx.adamic_adar_index(graph, pairs)])


def test_katz_and_the_walk_are_the_sums_of_their_series(graph):
    X, y = pairs_of(graph)
    linked = nx.to_numpy_array(graph, weight=None)
    beta = 0.5 / np.linalg.eigvalsh(linked)[-1]
    paths = sum(np.linalg.matrix_power(beta * linked, k) for k in range(1, 60))
    step = linked / linked.sum(axis=1, keepdims=True)
    visits = sum(0.5 * np.linalg.matrix_power(0.5 * step, k) for k in range(60))
    for kind, matrix in (("katz", paths), ("random walk", visits + visits.T)):
        np.testing.assert_allclose(LinkScore(kind, 0.5).fit(X, y).decision_function(X), matrix[X["a"], X["b"]])


@pytest.mark.parametrize("kind", LINK_SCORES)
def test_unknown_nodes_have_no_score(graph, kind):
    model = LinkScore(kind).fit(*pairs_of(graph))
    assert model.decision_function({"a": [999, 0], "b": [0, 999]}).tolist() == [0, 0]


def test_a_wrong_kind_is_one_sentence(graph):
    with pytest.raises(InputError, match="did you mean 'katz'"):
        LinkScore("kats").fit(*pairs_of(graph))


def test_features_of_a_pair_do_not_know_its_label():
    """In a random graph no score tells anything: those of training pairs must not either."""
    rng = np.random.default_rng(0)
    row, col = np.triu_indices(40, 1)
    X, y = {"a": row, "b": col}, (rng.random(len(row)) < 0.3).astype(int)
    held = rng.random(len(y)) < 0.3
    train, test = ({name: column[which] for name, column in X.items()} for which in (~held, held))
    model = WithLinkScores(LFLLink(rank=0, bias=False, l2=L2(side=1.0), random_state=0)).fit(train, y[~held])
    proba = model.predict_proba(test)
    share = y[~held].mean()
    chance = metrics.log_loss(y[held], np.tile([1 - share, share], (held.sum(), 1)), [0, 1])
    assert metrics.log_loss(y[held], proba, [0, 1]) < chance + 0.02
