"""How far up relevant columns are: metrics equal to other libraries' own, and a stated protocol."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.metrics import average_precision_score, ndcg_score

import dyads
from dyads import LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, metrics
from dyads.errors import InputError
from shop import X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)


def lists(n=40, n_candidates=30, seed=0):
    rng = np.random.default_rng(seed)
    scores, relevant = rng.normal(size=(n, n_candidates)), rng.random((n, n_candidates)) < 0.15
    relevant[:, 0] |= ~relevant.any(axis=1)
    ranks = [metrics.ranks_of(line, np.flatnonzero(mask)) for line, mask in zip(scores, relevant, strict=True)]
    return scores, relevant, ranks


@pytest.mark.parametrize("k", [1, 5, 30])
def test_metrics_are_those_of_scikit_learn_and_of_their_definitions(k):
    scores, relevant, ranks = lists()
    assert metrics.ndcg_at(ranks, k).mean() == pytest.approx(ndcg_score(relevant, scores, k=k), abs=1e-12)
    top = np.take_along_axis(relevant, np.argsort(-scores, axis=1), axis=1)
    n = relevant.sum(axis=1)
    np.testing.assert_allclose(metrics.precision_at(ranks, k), top[:, :k].mean(axis=1))
    np.testing.assert_allclose(metrics.recall_at(ranks, k), top[:, :k].sum(axis=1) / n)
    np.testing.assert_allclose(metrics.hits_at(ranks, k), top[:, :k].any(axis=1))
    np.testing.assert_allclose(metrics.reciprocal_rank(ranks), 1 / (1 + top.argmax(axis=1)))
    if k == 30:
        whole = [average_precision_score(mask, line) for mask, line in zip(relevant, scores, strict=True)]
        np.testing.assert_allclose(metrics.average_precision_at(ranks, k), whole)
    precision = np.cumsum(top, axis=1) / np.arange(1, 31)
    expected = (precision * top)[:, :k].sum(axis=1) / np.minimum(n, k)
    np.testing.assert_allclose(metrics.average_precision_at(ranks, k), expected)


def test_ties_count_half_and_filtered_ranks_leave_out_the_others():
    values = [3.0, 1.0, 3.0, 2.0, 3.0]
    assert metrics.ranks_of(values, [0, 3]).tolist() == [2.0, 4.0]
    assert metrics.ranks_of(values, [0, 3, 4], filtered=True).tolist() == [1.5, 2.0, 1.5]
    assert metrics.ranks_of(np.ones(9), [4]).tolist() == [5.0]
    assert metrics.ranks_of([1.0, 1.0, 1.0, 0.0], [2, 0, 1]).tolist() == [1.0, 2.0, 3.0]
    assert metrics.precision_at([metrics.ranks_of(np.ones(3), [0, 1, 2])], 2).tolist() == [1.0]
    assert np.isnan(metrics.recall_at([np.array([])], 3)).all()
    with pytest.raises(InputError, match="k=0"):
        metrics.precision_at([np.array([1.0])], 0)


def test_the_area_under_precision_and_recall_is_scikit_learns():
    rng = np.random.default_rng(0)
    y, p, weight = rng.integers(0, 2, 200), rng.random(200), rng.random(200)
    proba = np.column_stack([1 - p, p])
    assert metrics.auc_pr(y, proba, [0, 1], weight) == pytest.approx(
        average_precision_score(y, p, sample_weight=weight)
    )


def by_hand(model, value_of, relevant, seen):
    """Ranks of relevant columns by predicting every pair."""
    ranks = []
    for user, items in relevant.groupby("user")["item"]:
        taken = set(seen.loc[seen["user"] == user, "item"])
        offered = [item for item in model.col_ids_ if item not in taken]
        values = value_of(pd.DataFrame({"user": user, "item": offered}))
        ranks.append(metrics.ranks_of(values, [offered.index(item) for item in set(items) - taken]))
    return ranks


def test_a_ranking_leaves_out_what_was_seen_and_judges_each_row():
    train, test = X[:-300], X[-300:]
    liked = test[STARS[-300:] == 3]
    model = LFLOrdinal(rank=1, solver="point", random_state=0).fit(train, STARS[:-300])
    table = dyads.evaluate_ranking(model, liked, k=3).set_index("metric")
    fresh = liked.merge(train, how="left", indicator=True).query("_merge == 'left_only'")
    expected = by_hand(model, model.predict_mean, liked, train)
    for name, function in (("precision@3", metrics.precision_at), ("nDCG@3", metrics.ndcg_at)):
        assert table.loc[name, "value"] == pytest.approx(np.nanmean(function(expected, 3)))
        assert table.loc[name, "low"] <= table.loc[name, "value"] <= table.loc[name, "high"]
    assert len(fresh) > 0
    unknown = pd.concat([liked, pd.DataFrame({"user": ["u1"], "item": ["nowhere"]})])
    worse = dyads.evaluate_ranking(model, unknown, k=3).set_index("metric")
    same = dyads.evaluate_ranking(model, liked, k=3, exclude=train, with_seen=True).set_index("metric")
    assert same.equals(table), "the training pairs, given"
    assert worse.loc["recall@3", "value"] <= table.loc["recall@3", "value"]
    new = pd.DataFrame({"user": ["new1", "new1", "new2"], "item": ["nowhere", "elsewhere", model.col_ids_[0]]})
    assert dyads.evaluate_ranking(model, new)["n"].tolist() == [2] * 6, "two rows that are not known"
    assert dyads.evaluate_ranking(model, new, k=10**6).set_index("metric").loc["recall@1000000", "value"] == 0.5
    other = pd.DataFrame({"user": ["new2"], "item": ["elsewhere"]})
    of_others = dyads.evaluate_ranking(model, new[1:2], exclude=other)
    assert of_others["n"].tolist() == [1] * 6, "a pair of another unknown id is another pair"
    with pytest.raises(InputError, match="k=2.5: expected"):
        dyads.evaluate_ranking(model, liked, k=2.5)
    with pytest.raises(NotFittedError):
        dyads.evaluate_ranking(LFLOrdinal(), liked)
    with pytest.raises(InputError, match="by='thompson'"):
        dyads.evaluate_ranking(LFLOrdinal(0, solver=dyads.Gibbs(sweeps=12)).fit(X, STARS), liked, by="thompson")
    with pytest.raises(dyads.errors.UnknownIdError):
        dyads.evaluate_ranking(model.set_params(unknown="raise"), new)
    with pytest.raises(InputError, match="no relevant pairs"):
        dyads.evaluate_ranking(model, X[:0])


@pytest.mark.parametrize("side", ["col", "row"])
def test_relations_are_ranked_by_the_filtered_protocol(side):
    rng = np.random.default_rng(0)
    triples = pd.DataFrame(rng.integers(0, 9, (150, 2)), columns=["head", "tail"]).assign(
        kind=rng.choice(["r", "s"], 150)
    )
    triples = triples.drop_duplicates()
    train, test = triples[:-20], triples[-20:]
    pairs = dyads.pairs_from_positives(train, one_set=True, random_state=0)
    model = LFLRelational(1, solver="point", random_state=0)
    model.fit(pairs.X, pairs.y, population_weight=pairs.weight)
    table = dyads.evaluate_ranking(model, test, k=3, by=1, side=side, filtered=True).set_index("metric")
    asked, answer = ("head", "tail") if side == "col" else ("tail", "head")
    ids = {"tail": model.col_ids_, "head": model.row_ids_}[answer]
    ranks = []
    for line in test.to_dict("records"):
        true = triples[(triples[asked] == line[asked]) & (triples["kind"] == line["kind"])][answer]
        offered = [i for i in ids if i == line[answer] or i not in set(true)]
        ask = pd.DataFrame({asked: line[asked], answer: offered, "kind": line["kind"]})
        ranks.append(metrics.ranks_of(model.predict_proba(ask)[:, 1], [offered.index(line[answer])]))
    assert table.loc["MRR", "value"] == pytest.approx(metrics.reciprocal_rank(ranks).mean())
    assert table.loc["hits@3", "value"] == pytest.approx(metrics.hits_at(ranks, 3).mean())
    assert table["n"].tolist() == [20] * 6


def test_undirected_links_are_ranked_from_both_ends():
    pairs = pd.DataFrame([(i, j) for i in range(12) for j in range(i + 1, 12)], columns=["a", "b"])
    linked = ((pairs["a"] < 6) == (pairs["b"] < 6)).to_numpy()
    held = np.arange(len(pairs)) % 5 == 0
    model = LFLLink(rank=2, l2=0.3, random_state=0).fit(pairs[~held], linked[~held].astype(int))
    table = dyads.evaluate_ranking(model, pairs[held & linked], k=2, by=1, exclude=pairs[~held]).set_index("metric")
    assert table.loc["MRR", "n"] == len(np.unique(pairs[held & linked]))
    assert table.loc["MRR", "value"] > 0.9
    model = LFLClassifier(rank=0, solver="point").fit(X, Y)
    with pytest.raises(InputError, match="side='both'"):
        dyads.evaluate_ranking(model, X, side="both")
