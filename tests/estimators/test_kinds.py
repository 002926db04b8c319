"""Links between nodes of one set, graphs, and many relations."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import dyads
from dyads import L2, LBFGS, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, metrics, pairs_from_graph
from dyads.errors import InputError, UnknownIdError, UnknownIdWarning
from dyads.model.loss import link

STRUCTURES = pytest.mark.parametrize("structure", ["symmetric", "spectral", "directed"])
SOLVERS = pytest.mark.parametrize("solver", ["lbfgs", "sgd"])


def two_camps(n=24, seed=0):
    """Friends within a camp, none between: an answer visible by eye."""
    row, col = np.triu_indices(n, 1)
    y = ((row < n // 2) == (col < n // 2)).astype(int)
    names = np.array([f"n{i}" for i in range(n)])
    held = np.random.default_rng(seed).random(len(y)) < 0.2
    return np.column_stack([names[row], names[col]]), y, held


@STRUCTURES
@SOLVERS
def test_two_camps_are_found(structure, solver):
    X, y, held = two_camps()
    model = LFLLink(rank=2, l2=0.3, structure=structure, solver=solver, n_init=3, random_state=0).fit(
        X[~held], y[~held]
    )
    assert metrics.auc(y[held], model.predict_proba(X[held]), model.classes_) > 0.95
    assert model.classes_.tolist() == [0, 1]
    assert model.record_.parts.structure.reference == 0


@pytest.mark.parametrize("structure", ["symmetric", "spectral"])
@SOLVERS
def test_undirected_pairs_have_one_probability_whatever_their_order(structure, solver):
    X, y, _ = two_camps()
    flip = np.random.default_rng(1).random(len(y)) < 0.5
    mixed = np.where(flip[:, None], X[:, ::-1], X)
    model = LFLLink(rank=3, l2=1.0, structure=structure, solver=solver, random_state=0).fit(mixed, y)
    assert (model.predict_proba(X) == model.predict_proba(X[:, ::-1])).all()


@pytest.mark.filterwarnings("ignore::dyads.errors.VanishedWarning")
def test_a_disassortative_graph_needs_signs():
    row, col = np.triu_indices(40, 1)
    X, y = np.column_stack([row, col]), ((row < 20) != (col < 20)).astype(int)
    found = {}
    for structure in ("spectral", "symmetric"):
        for seed in range(5):
            held = np.random.default_rng(seed).random(len(y)) < 0.2
            model = LFLLink(rank=5, structure=structure, random_state=seed).fit(X[~held], y[~held])
            found.setdefault(structure, []).append(metrics.auc(y[held], model.predict_proba(X[held]), [0, 1]))
    assert min(found["spectral"]) > 0.99
    assert max(found["symmetric"]) < 0.9


@SOLVERS
def test_direction_is_learnt(solver):
    """A ladder: everyone votes for those above. A node must be different things as source and as target."""
    row, col = (index.ravel() for index in np.indices((20, 20)))
    X, y = np.column_stack([row, col]), (row < col).astype(int)
    model = LFLLink(rank=1, l2=0.5, structure="directed", solver=solver, random_state=0).fit(X, y)
    assert metrics.auc(y, model.predict_proba(X), [0, 1]) > 0.99
    assert model.score(X, y) > 0.9


def test_both_orders_with_different_labels_are_refused_and_named():
    X, y = [["a", "b"], ["b", "c"], ["b", "a"]], [1, 0, 0]
    with pytest.raises(InputError, match=r"\('a', 'b'\) is given in both orders.*directed"):
        LFLLink(rank=1).fit(X, y)
    LFLLink(rank=1, l2=0.1, structure="directed").fit(X, y)
    LFLLink(rank=1, l2=0.1).fit(X, [1, 0, 1])


@pytest.mark.filterwarnings("ignore::dyads.errors.VanishedWarning")
@STRUCTURES
def test_typed_links_and_self_links(structure):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 12, (300, 2))
    X = np.sort(X, axis=1)
    y = np.array(["aunt", "none", "uncle"])[(X.sum(axis=1)) % 3]
    assert (X[:, 0] == X[:, 1]).any()
    for solver in ("lbfgs", "sgd"):
        model = LFLLink(rank=4, l2=0.1, structure=structure, solver=solver, random_state=0).fit(X, y)
        assert model.predict_proba(X).shape == (300, 3)
        assert model.score(X, y) > 0.6


def test_nodes_are_one_set_and_ids_of_two_types_are_refused():
    X, y, _ = two_camps(8)
    model = LFLLink(rank=2, l2=0.3, random_state=0).fit(X, y)
    assert sorted(model.row_ids_) == sorted(set(X.ravel()))
    with pytest.raises(InputError, match="ids of one type"):
        LFLLink().fit({"a": ["x", "y"], "b": [1, 2]}, [0, 1])
    with pytest.warns(UnknownIdWarning):
        p = model.predict_proba([["n0", "stranger"], ["stranger", "n0"]])
    assert (p[0] == p[1]).all()


@STRUCTURES
def test_nodes_that_have_one_role_only_are_learnt_too(structure):
    row, col = (index.ravel() for index in np.indices((12, 12)))
    X, y = np.column_stack([row, 100 + col]), ((row + col) % 2).astype(int)
    model = LFLLink(rank=2, l2=0.1, structure=structure, n_init=3, random_state=0).fit(X, y)
    assert metrics.auc(y, model.predict_proba(X), [0, 1]) > 0.95


@STRUCTURES
def test_links_are_saved_and_loaded(structure, tmp_path):
    X, y, _ = two_camps(10)
    model = LFLLink(rank=2, l2=0.3, structure=structure, random_state=0).fit(X, y)
    model.save(tmp_path / "m")
    again = dyads.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.embed(["n3"]), model.embed(["n3"]))


def test_embeddings_cluster_the_camps():
    X, y, _ = two_camps(20)
    model = LFLLink(rank=2, l2=0.3, random_state=0).fit(X, y)
    vectors = model.embed([f"n{i}" for i in range(20)])
    assert vectors.shape == (20, 1 + 2 * 20 + 1), "a bias, the weights of twenty models, and one for that of the column"
    likeness = np.corrcoef(vectors @ vectors.T)
    assert likeness[:10, :10].min() > likeness[:10, 10:].max()
    with pytest.raises(UnknownIdError, match="Of 1 ids, 1 were not seen"):
        model.embed("nobody")


@pytest.mark.parametrize(
    "name", ["bilinear", "stereotype", "symmetric", "spectral", "directed", "relational", "mixture"]
)
@pytest.mark.parametrize("bias", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_inner_products_of_embeddings_are_log_odds(name, bias):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"row": rng.integers(0, 9, 300), "col": rng.integers(0, 9, 300)})
    kind = {"bilinear": LFLClassifier, "stereotype": LFLOrdinal}.get(name, LFLLink)
    several, relation = name in ("relational", "mixture"), None
    if several:
        kind, relation = LFLRelational, "t"
        X["relation"] = rng.choice(["s", "t"], 300)
    n_labels = 3 if name in ("bilinear", "stereotype") else 2
    y = (X["row"] * 7 + X["col"] * 3 + (X["row"] > X["col"])).to_numpy() // 4 % n_labels
    if name in ("symmetric", "spectral"):
        y = (X["row"] * X["col"]).to_numpy() // 4 % 2
    model = kind(2, structure=name, bias=bias, l2=0.1, n_models=2, random_state=0).fit(X, y)
    every = pd.DataFrame({"row": np.repeat(np.arange(9), 9), "col": np.tile(np.arange(9), 9)})
    asked = every.assign(relation=relation) if several else every
    for code, label in enumerate(model.classes_):
        row, col = (model.embed(np.arange(9), side, label, relation) for side in ("row", "col"))
        np.testing.assert_allclose((row @ col.T).ravel(), model.log_odds(asked)[:, code], atol=1e-5)
    np.testing.assert_array_equal(model.embed([3], "col", relation=relation), col[[3]])


# --------------------------------------------------------------------------------------------------------- graphs


def test_every_kind_of_graph_gives_the_same_pairs():
    edges = [(0, 1), (1, 2), (3, 0)]
    matrix = np.zeros((4, 4))
    for i, j in edges:
        matrix[i, j] = matrix[j, i] = 1
    np.fill_diagonal(matrix, np.nan)
    graph = nx.Graph(edges)
    found = []
    for source in (graph, scipy.sparse.csr_array(np.nan_to_num(matrix)), matrix, np.array(edges), pd.DataFrame(edges)):
        pairs = pairs_from_graph(source, directed=False)
        links = zip(*(np.sort(np.column_stack(list(pairs.X.values())), axis=1).T), pairs.y, strict=True)
        found.append({(int(i), int(j)): int(label) for i, j, label in links})
    assert found[0] == {(0, 1): 1, (0, 2): 0, (0, 3): 1, (1, 2): 1, (1, 3): 0, (2, 3): 0}
    assert all(other == found[0] for other in found)


def test_an_undirected_graph_read_as_directed_has_links_both_ways():
    pairs = pairs_from_graph(nx.path_graph(3), directed=True)
    labels = dict(zip(zip(pairs.X["source"].tolist(), pairs.X["target"].tolist(), strict=True), pairs.y, strict=True))
    assert labels == {(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1, (0, 2): 0, (2, 0): 0}


def test_a_dense_graph_is_sampled_in_no_time():
    graph = nx.gnp_random_graph(200, 0.4, seed=0)
    sample = pairs_from_graph(graph, directed=False, negatives="sample", rate=100.0, random_state=0)
    every = pairs_from_graph(graph, directed=False)
    assert len(sample.y) == len(every.y)
    assert (sample.weight == 1).all()
    assert pairs_from_graph(nx.path_graph(9), directed=False, negatives="sample", rate=0.01).y.tolist().count(0) == 1


def test_a_directed_graph_has_a_pair_for_each_order():
    pairs = pairs_from_graph(nx.DiGraph([("a", "b"), ("b", "c")]), directed=True)
    assert len(pairs.y) == 6
    assert pairs.y.sum() == 2


def test_sampled_negatives_keep_probabilities_calibrated():
    rng = np.random.default_rng(0)
    taste = rng.normal(size=(150, 2))
    truth = link(np.column_stack([np.zeros(150 * 150), (taste @ taste.T).ravel() - 2.5]))[:, 1].reshape(150, 150)
    graph = nx.from_numpy_array(np.triu(rng.random((150, 150)) < truth, 1).astype(int))
    every = pairs_from_graph(graph, directed=False)
    sample = pairs_from_graph(graph, directed=False, negatives="sample", rate=2.0, random_state=0)
    assert sample.weight.sum() == pytest.approx(every.weight.sum())
    assert not {tuple(pair) for pair in np.column_stack(list(sample.X.values()))[sample.y == 0].tolist()} & {
        tuple(pair) for pair in np.column_stack(list(every.X.values()))[every.y == 1].tolist()
    }
    corrected = LFLLink(rank=2, random_state=0).fit(sample.X, sample.y, population_weight=sample.weight)
    naive = LFLLink(rank=2, random_state=0).fit(sample.X, sample.y)
    share = every.y.mean()
    assert corrected.predict_proba(every.X)[:, 1].mean() == pytest.approx(share, rel=0.1)
    assert naive.predict_proba(every.X)[:, 1].mean() > 1.5 * share
    assert metrics.classwise_ece(every.y, corrected.predict_proba(every.X), [0, 1]) < 0.03
    assert corrected.marginals(every.X)["all labels"].proba[0, 1] == pytest.approx(share)


SHOPS = np.where(np.arange(60) % 3, "a", "b")
SOLD = pd.DataFrame({"user": np.arange(60) % 12, "item": np.arange(60) * 7 % 25, "shop": SHOPS})


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
@pytest.mark.parametrize("solver", ["lbfgs", dyads.Gibbs(sweeps=20)], ids=["point", "posterior"])
@pytest.mark.parametrize("reference", ["auto", None, 1])
def test_log_odds_are_corrected_by_the_rate_at_which_a_label_was_sampled(solver, reference):
    pairs = dyads.pairs_from_positives(SOLD[["user", "item"]], rate=2.0, random_state=0)
    settings = {"rank": 1, "solver": solver, "reference": reference, "random_state": 0}
    odds = []
    for weight in (None, pairs.weight):
        model = dyads.LFLClassifier(**settings).fit(pairs.X, pairs.y, population_weight=weight)
        proba = model.predict_proba(pairs.X)[None] if solver == "lbfgs" else model.sample_proba(pairs.X)
        odds.append(np.log(proba[..., 1] / proba[..., 0]))
    np.testing.assert_allclose(odds[0] - odds[1], np.log(pairs.weight.max()), rtol=1e-3)


def test_the_correction_for_sampled_labels_is_not_undone(tmp_path):
    pairs = dyads.pairs_from_positives(SOLD[["user", "item"]], rate=2.0, random_state=0)
    model = dyads.LFLClassifier(0, random_state=0).fit(pairs.X, pairs.y, population_weight=pairs.weight)
    assert model.solver_ != "gibbs", "the correction is that of a point estimate"
    model.save(tmp_path / "model")
    for each in (model, dyads.load(tmp_path / "model")):
        with pytest.raises(InputError, match="partial_fit would undo the correction"):
            each.partial_fit(pairs.X, pairs.y)


def test_positives_of_two_id_sets_and_of_relations_get_their_non_links():
    held = pd.DataFrame({"user": [0, 1, 99], "item": [3, 4, 3]})
    pairs = dyads.pairs_from_positives(SOLD[["user", "item"]], negatives="all", exclude=held)
    cells = set(zip(*(column.tolist() for column in pairs.X.values()), strict=True))
    positive = set(SOLD[["user", "item"]].itertuples(index=False, name=None))
    assert len(cells) == len(pairs.y) == 12 * 25 - len({(0, 3), (1, 4)} - positive)
    assert pairs.y.sum() == len(positive)
    assert (pairs.weight == 1).all()
    triples = dyads.pairs_from_positives(SOLD, rate=1.0, random_state=0)
    assert list(triples.X) == ["user", "item", "shop"]
    for shop in "ab":
        of_shop = triples.X["shop"] == shop
        assert triples.y[of_shop].sum() == (SOLD["shop"] == shop).sum() == (triples.y[of_shop] == 0).sum()
        assert triples.weight[of_shop].sum() == pytest.approx(12 * 25)
    model = dyads.LFLRelational(1, solver="lbfgs", random_state=0)
    model.fit(triples.X, triples.y, population_weight=triples.weight)
    every = dyads.pairs_from_positives(SOLD, negatives="all")
    for shop, share in (("a", 40 / 300), ("b", 20 / 300)):
        ask = {name: column[every.X["shop"] == shop] for name, column in every.X.items()}
        assert model.predict_proba(ask)[:, 1].mean() == pytest.approx(share, rel=0.25)
    catalogue = dyads.pairs_from_positives(SOLD[["user", "item"]], cols=[3, 1000], negatives="all")
    assert len(catalogue.y) == 12 * 26
    nodes = dyads.pairs_from_positives([(0, 1), (1, 2)], one_set=True, negatives="all")
    assert len(nodes.y) == 6, "no node is linked to itself"
    undirected = dyads.pairs_from_positives([(0, 1), (2, 1)], one_set=True, directed=False, negatives="all")
    assert (len(undirected.y), undirected.y.sum()) == (3, 2)
    for table, choices, says in (
        ([], {}, "expected"),
        (SOLD[:0], {}, "is empty"),
        ([("a", 1)], {"one_set": True}, "same type"),
        (SOLD[["user", "item"]], {"cols": ["x"]}, "same type"),
        (SOLD, {"exclude": [(0, 1)]}, "exclude has 2 columns"),
    ):
        with pytest.raises(InputError, match=says):
            dyads.pairs_from_positives(table, **choices)


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        ([1.0, 2.0], "Got 2 values of population_weight"),
        ([1.0, 2.0, 2.0, 0.0], "population_weight=0"),
        ([1.0, 2.0, 3.0, 1.0], "different values of population_weight for the same label"),
    ],
)
def test_weights_of_the_population_are_checked(weight, says):
    model, pairs = dyads.LFLClassifier(0, solver="lbfgs"), [(0, 1), (1, 2), (2, 3), (0, 2)]
    with pytest.raises(InputError, match=says):
        model.fit(pairs, [0, 1, 1, 0], population_weight=weight)


@pytest.mark.parametrize(
    ("graph", "choices", "says"),
    [
        (np.zeros((3, 4)), {}, "square"),
        (np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]]), {"directed": False}, "differ"),
        (nx.Graph([(1, 2)]), {"negatives": "some"}, "negatives='some'"),
        (nx.Graph([(1, 2)]), {"negatives": "sample", "rate": 0}, "rate=0"),
        (nx.complete_graph(3), {}, "0 other pairs"),
        ({"a": [1], "b": [2], "c": [3]}, {}, "expected two"),
        ({"a": [1], "b": ["x"]}, {}, "ids of the same type"),
        (scipy.sparse.csr_array(np.array([[0, np.nan], [1, 0]])), {}, "holds NaN"),
        (np.array([["a", "b", "c"]] * 3), {}, "holds values that are not numbers"),
        (np.zeros((3, 3)), {"negatives": "sample"}, "dense matrix"),
    ],
    ids=str,
)
def test_bad_graphs_are_refused(graph, choices, says):
    with pytest.raises(InputError, match=says):
        pairs_from_graph(graph, **({"directed": False} | choices))


# ----------------------------------------------------------------------------------------------------- relations


def clubs(seed=0):
    """Three relations over people and clubs: likes, its near copy, and its opposite."""
    rng = np.random.default_rng(seed)
    people, places = rng.normal(size=(60, 3)), rng.normal(size=(50, 3))
    odds = people * [3.0, -2.0, 1.0] @ places.T
    row, col = (index.ravel() for index in np.indices(odds.shape))
    X, y = [], []
    for name, sign in (("likes", 1), ("visits", 0.8), ("avoids", -1)):
        X.append(pd.DataFrame({"person": row, "club": col, "relation": name}))
        y.append(rng.random(odds.size) < link(np.column_stack([np.zeros(odds.size), sign * odds.ravel()]))[:, 1])
    return pd.concat(X, ignore_index=True), np.concatenate(y).astype(int)


@pytest.mark.parametrize("choices", [{}, {"structure": "mixture", "n_terms": 2}], ids=str)
@SOLVERS
def test_relations_share_weights_and_their_likeness_is_read(choices, solver, tmp_path):
    X, y = clubs()
    held = np.random.default_rng(1).random(len(y)) < 0.3
    model = LFLRelational(rank=3, l2=1.0, solver=solver, random_state=0, **choices).fit(X[~held], y[~held])
    assert metrics.auc(y[held], model.predict_proba(X[held]), [0, 1]) > 0.8
    likeness = pd.DataFrame(model.relation_similarity(), model.relation_ids_, model.relation_ids_)
    assert likeness.loc["likes", "visits"] > likeness.loc["likes", "avoids"] + 0.4
    model.save(tmp_path / "m")
    again = dyads.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_an_unknown_relation_follows_the_policy():
    X, y = clubs()
    model = LFLRelational(rank=2, l2=0.5, random_state=0).fit(X, y)
    strange = pd.DataFrame({"person": [0], "club": [0], "relation": ["sells"]})
    with pytest.warns(UnknownIdWarning, match="1 have a relation not seen"):
        assert np.isfinite(model.predict_proba(strange)).all()
    with pytest.raises(UnknownIdError):
        model.set_params(unknown="raise").predict(strange)


def test_a_warm_start_knows_relations_by_name():
    X, y = clubs()
    model = LFLRelational(rank=3, l2=0.5, solver=LBFGS(tol=1e-9), warm_start=True, random_state=0).fit(X, y)
    first, iterations = model.objective_, model.n_iter_
    model.fit(X[::-1], y[::-1])
    assert model.objective_ <= first * (1 + 1e-6)
    assert model.n_iter_ < iterations / 2
    fewer = X["relation"] != "visits"
    model.fit(X[fewer], y[fewer])
    assert len(model.relation_ids_) == 2


def test_columns_keep_their_places_in_tables_without_names():
    X, y = clubs()
    codes = X["relation"].map({"likes": 0, "visits": 1, "avoids": 2})
    turned = pd.DataFrame({"relation": codes, "club": X["club"], "person": X["person"]})
    model = LFLRelational(rank=3, id_columns=("person", "club"), random_state=0, l2=0.5).fit(turned, y)
    np.testing.assert_array_equal(model.predict_proba(turned.to_numpy()), model.predict_proba(turned))


def test_a_relation_of_one_label_does_not_rule_the_average():
    X, y = clubs()
    y = np.where(X["relation"] == "visits", 1, y)
    model = LFLRelational(rank=3, l2=0.5, random_state=0).fit(X, y)
    assert np.abs(model.parts_["label_bias"]).max() < 8


@pytest.mark.filterwarnings("ignore::dyads.errors.VanishedWarning")
def test_undirected_relations_are_checked_by_relation():
    X = [["a", "b", "t"], ["b", "a", "t"], ["a", "c", "t"]]
    with pytest.raises(InputError, match="both orders"):
        LFLRelational(structure="spectral", solver="point").fit(X, [1, 0, 1])
    X[1][2] = "u"
    LFLRelational(structure="symmetric_mixture", l2=0.1).fit(X, [1, 0, 1])


def test_relations_work_on_one_id_set():
    rng = np.random.default_rng(0)
    X = np.column_stack([*rng.integers(0, 15, (2, 600)), rng.integers(0, 3, 600)])
    y = ((X[:, 0] + X[:, 1]) % 2 == X[:, 2] % 2).astype(int)
    model = LFLRelational(rank=3, l2=0.3, structure="spectral", n_init=3, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert len(model.row_ids_) == 15


def test_the_choice_of_base_hardly_matters_for_ordered_labels():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 25, (900, 2))
    taste = rng.normal(size=(25, 2)) @ rng.normal(size=(2, 25))
    y = np.clip(np.round(3 + taste[X[:, 0], X[:, 1]] + rng.normal(scale=0.4, size=900)), 1, 5).astype(int)
    losses = []
    for base in (None, 1, 3, 5):
        model = LFLOrdinal(rank=2, l2=1.0, reference=base, n_init=2, random_state=0).fit(X[:700], y[:700])
        losses.append(metrics.log_loss(y[700:], model.predict_proba(X[700:]), model.classes_))
    assert max(losses) < 1.1 * min(losses)
    as_many = LFLOrdinal(rank=2, l2=1.0, n_terms=5, random_state=0).fit(X, y)
    assert as_many.parts_["phi"].shape == (1, 5, 5)


@pytest.mark.parametrize(
    ("model", "y", "says"),
    [
        (LFLRelational(solver="point"), [0, 1, 2], "expected two"),
        (
            LFLLink(structure="bilinear"),
            [0, 1, 1],
            "LFLLink has no structure='bilinear'.*'symmetric'.*LFLClassifier or LFLOrdinal",
        ),
        (
            LFLOrdinal(structure="symmetric", solver="point"),
            [1, 2, 3],
            "LFLOrdinal has no structure='symmetric'.*Use LFLLink",
        ),
        (LFLLink(structure="symetric"), [0, 1, 1], "did you mean 'symmetric'"),
        (LFLOrdinal(structure="stereotype", n_terms=4, solver="point"), [1, 2, 3], "at most as many terms as labels"),
        (LFLOrdinal(structure="stereotype", solver="point"), [1, 2, 2], "three or more labels"),
        (LFLOrdinal(structure="bilinear", n_terms=2, solver="point"), [1, 2, 3], "n_terms=2 is for"),
        (LFLLink(l2=L2(row=2.0)), [0, 1, 1], "l2 has row=2.0"),
    ],
    ids=str,
)
def test_a_structure_that_does_not_fit_is_refused(model, y, says):
    X = {"a": ["p", "q", "r"], "b": ["p", "r", "q"]}
    if isinstance(model, LFLRelational):
        X["relation"] = ["t", "t", "u"]
    with pytest.raises(InputError, match=says):
        model.fit(X, y)
