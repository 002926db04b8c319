"""Side-information and entities without labels: what a user relies on."""

import copy
import dataclasses
import functools
import itertools

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.preprocessing import StandardScaler

import dyads
from dyads import L2, LBFGS, Features, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, Newton, SideInformation
from dyads.data.dyads import Counts, Side
from dyads.engine import CPU
from dyads.errors import DtypeError, InputError, UnknownIdError, UnknownIdWarning
from dyads.model.loss import link
from dyads.model.objective import Objective, Penalty
from dyads.model.parameters import Layout
from dyads.solve import SOLVERS
from problems import LOSSES, STRUCTURES, Log, central_difference, make_dyads, relative_error
from shop import ITEMS, USERS, WITH, X, Y, with_features

# Fold-in and Newton's method take long to compile: one worker does it.
pytestmark = pytest.mark.xdist_group("blocks")


def quiet(function, *arguments, **choices):
    with pytest.warns(UnknownIdWarning):
        return function(*arguments, **choices)


# -------------------------------------------------------------------------------------------------------- the laws


@pytest.mark.parametrize(
    "structure", [STRUCTURES[0], *(pytest.param(x, marks=pytest.mark.slow) for x in STRUCTURES[1:])], ids=repr
)
@pytest.mark.parametrize("interactions", [0, 2])
def test_gradients_of_side_weights_match_central_differences(structure, interactions):
    if structure.rank < interactions:
        pytest.skip("no latent columns for them")
    rng = np.random.default_rng(0)
    structure = structure._replace(n_bias=2 if type(structure).__name__ == "Directed" else 1)
    data = make_dyads(weighted=True, one_set=structure.one_set)
    col = None if structure.one_set else sp.csr_array(rng.normal(size=(data.n_cols, 2)))
    dyad = sp.csr_array(rng.normal(size=(len(data), 2))) if structure == STRUCTURES[1] else None
    side = Side(sp.csr_array(rng.normal(size=(data.n_rows, 3))), col, dyad)
    data = dataclasses.replace(data, side=side)
    layout = Layout(structure, data.n_rows, data.n_cols, 1, side.widths, interactions)
    strengths = {name: 0.5 for name in layout.named(np.zeros(layout.size)) if name != "label_bias"} | {"side": 0.3}
    penalty = Penalty.of(layout, strengths, "count", Counts.of(data, structure.one_set))
    theta = rng.normal(scale=0.5, size=layout.size)
    with CPU(1).bind(Objective(layout, Log(), penalty), data) as problem:
        value, gradient = problem.value_and_gradient(theta)
        assert value == pytest.approx(problem.value(theta), rel=1e-12)
        assert relative_error(gradient, central_difference(problem.value, theta)) < 1e-6


@pytest.mark.parametrize(
    ("where", "solver"),
    [
        *((where, solver) for where in ("rows", "columns") for solver in ("lbfgs", "newton")),
        ("dyads", "lbfgs"),
        pytest.param("dyads", "newton", marks=pytest.mark.slow),
    ],
)
def test_without_ids_the_model_is_multinomial_logistic_regression_on_the_features(where, solver):
    rng = np.random.default_rng(1)
    n, p, strength = 600, 4, 3.0
    F = rng.normal(size=(n, p))
    y = np.argmax(F @ rng.normal(size=(p, 3)) + rng.gumbel(size=(n, 3)), axis=1)
    pairs = pd.DataFrame({"row": np.arange(n), "col": np.arange(n)})
    exact = SOLVERS[solver](max_iter=5000, tol=1e-13)
    common = {"rank": 0, "bias": False, "l2": L2(side=strength), "solver": exact}
    if where == "dyads":
        Z = StandardScaler().fit_transform(F)
        pairs[[f"x{i}" for i in range(p)]] = F
        model = LFLClassifier(**common).fit(pairs, y)
    else:
        Z = F
        side = SideInformation(**{{"rows": "row", "columns": "col"}[where]: (np.arange(n), sp.csr_array(F))})
        model = LFLClassifier(features=side, **common).fit(pairs, y)
    other = LogisticRegression(C=1 / strength, tol=1e-10, max_iter=10_000).fit(Z, y)
    np.testing.assert_allclose(model.predict_proba(pairs), other.predict_proba(Z), atol=1e-4)


@pytest.mark.parametrize("solver", ["lbfgs", "sgd", pytest.param("newton", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rank", "choices"), [(2, {}), (2, {"interactions": 2}), (2, {"implicit": True}), (0, {"interactions": 1})]
)
def test_every_solver_learns_side_weights_to_the_same_objective(solver, rank, choices):
    l2 = L2(latent=1.0 if rank else None, side=2.0)
    common = {"l2": l2, **with_features(**choices), "rank": rank}
    few = X[:500], Y[:500]
    best = LFLClassifier(solver=LBFGS(tol=1e-9), n_init=2, **common).fit(*few).objective_
    model = LFLClassifier(solver=SOLVERS[solver](max_iter=300), n_init=2, **common).fit(*few)
    assert model.objective_ == pytest.approx(best, rel=0.02)


def test_features_predict_ids_without_labels_better_than_nothing_does():
    new = np.isin(X["user"], [f"u{i}" for i in range(8)])
    plain = LFLClassifier(random_state=0, solver="point").fit(X[~new], Y[~new])
    informed = LFLClassifier(**WITH).fit(X[~new], Y[~new])
    loss = [dyads.metrics.log_loss(Y[new], p, plain.classes_) for p in (
        quiet(plain.predict_proba, X[new]), informed.predict_proba(X[new]))]  # fmt: skip
    assert loss[1] < loss[0] - 0.05
    assert informed.support(X[new])[:, 0].max() == 0
    assert informed.support(X[~new]).min() > 0


def test_features_of_a_new_id_say_what_they_do_for_ids_with_many_labels():
    """Of many items with a label or two, those with the feature have low ones; of few items with many, high ones."""
    rng = np.random.default_rng(0)
    n = {"popular": (20, 200), "rare": (300, 2)}
    tables = []
    for kind, (n_items, n_labels) in n.items():
        feature = np.arange(n_items) % 2
        high = np.where(feature == (kind == "popular"), 0.8, 0.2)
        item = np.repeat(np.arange(n_items), n_labels)
        y = 1 + (rng.random(len(item)) < high[item])
        user = rng.integers(0, 100, len(item))
        names = [f"{kind} {i}" for i in item]
        tables.append(pd.DataFrame({"user": user, "item": names, "y": y, "feature": feature[item].astype(float)}))
    table = pd.concat(tables, ignore_index=True)
    items = table[["item", "feature"]].drop_duplicates()
    model = LFLOrdinal(0, solver=dyads.Gibbs(sweeps=60), features=SideInformation(col=items), random_state=0)
    model.fit(table[["user", "item"]], table["y"])
    new = pd.DataFrame({"item": ["with", "without"], "feature": [1.0, 0.0]})
    asked = pd.DataFrame({"user": [3, 3], "item": ["with", "without"]})
    high, low = model.predict_proba(asked, col_features=new)[:, 1]
    assert high > low + 0.1
    # For ids with labels, features say what they do for all alike: these predictions are the sampler's own.
    known = model.predict_proba(pd.DataFrame({"user": [3, 3], "item": ["popular 1", "popular 0"]}))[:, 1]
    np.testing.assert_allclose(known, [0.8, 0.2], atol=0.1)


def test_interactions_say_what_no_linear_term_can():
    row, col = np.divmod(np.arange(3600), 60)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, 60), rng.integers(0, 2, 60)
    y = (a[row] ^ b[col]).astype(int)
    pairs = np.column_stack([row, col])
    known = (row < 40) & (col < 40)
    new = (row >= 40) & (col >= 40)
    side = SideInformation(
        row={"id": np.arange(60), "a": a.astype(bool)}, col={"id": np.arange(60), "b": b.astype(bool)}
    )
    linear = LFLClassifier(rank=0, features=side, random_state=0, solver="point").fit(pairs[known], y[known])
    product = clone(linear).set_params(features__interactions=1).fit(pairs[known], y[known])
    assert linear.score(pairs[new], y[new]) < 0.7
    assert product.score(pairs[new], y[new]) > 0.99


@pytest.mark.parametrize("order", ["joint", "after", "frozen"])
@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_orders_of_training(order, solver):
    common = {"rank": 2, "l2": 1.0, "solver": solver, "random_state": 0}
    plain = LFLClassifier(**common).fit(X, Y)
    model = LFLClassifier(**common, features=with_features(training=order)["features"]).fit(X, Y)
    assert np.abs(model.parts_["row_bias_side"]).max() > 0.03
    if solver == "lbfgs" and order == "frozen":
        np.testing.assert_allclose(model.row_factors_, plain.row_factors_, atol=0.05)
    assert model.n_iter_ == len(model.trace_["iteration"])


def test_any_table_gives_the_same_model():
    frames = [
        (USERS, ITEMS, X),
        (pl.from_pandas(USERS), pl.from_pandas(ITEMS), pl.from_pandas(X)),
        (pa.Table.from_pandas(USERS), pa.Table.from_pandas(ITEMS), pa.Table.from_pandas(X)),
        (USERS.to_dict("list"), ITEMS.to_dict("list"), X.to_numpy(dtype=str)),
    ]
    found = [
        LFLClassifier(features=SideInformation(row=u, col=i), random_state=0, solver="point").fit(x, Y).predict_proba(x)
        for u, i, x in frames
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_features_of_dyads_are_the_further_columns():
    rng = np.random.default_rng(0)
    wide = X.assign(hour=rng.uniform(0, 24, len(X)), device=rng.choice(["phone", "desk"], len(X)))
    y = np.where(wide["device"] == "phone", "yes", Y)
    model = LFLClassifier(random_state=0, solver="point").fit(wide, y)
    assert model.n_features_in_ == 4
    assert model.score(wide, y) > LFLClassifier(random_state=0, solver="point").fit(X, y).score(X, y) + 0.05
    np.testing.assert_array_equal(
        model.predict_proba(wide), model.predict_proba(wide[["device", "user", "hour", "item"]])
    )
    with pytest.raises(InputError, match="X has 2 features"):
        model.predict(X)
    with pytest.raises(InputError, match="Column 'label' of X holds the labels themselves"):
        LFLClassifier(solver="point").fit(X.assign(label=Y), Y)


def test_scikit_learn_searches_with_feature_tables_as_parameters():
    side = WITH["features"]
    grid = {"l2__side": [1.0, 10.0], "features__row": [None, side.row]}
    search = GridSearchCV(
        LFLClassifier(rank=1, features=side, random_state=0, solver="point"),
        grid,
        cv=KFold(2, shuffle=True, random_state=0),
    )
    search.fit(X, Y)
    assert len(search.cv_results_["params"]) == 4
    assert clone(search.best_estimator_).features.row is search.best_params_["features__row"]
    assert len(repr(LFLClassifier(**WITH))) < 200


# ------------------------------------------------------------------------------------------------ tables at predict


def test_a_table_at_predict_brings_new_ids_and_overrides_known_ones():
    known = USERS.iloc[:30]
    seen = X["user"].isin(known["user"]).to_numpy()
    model = LFLClassifier(features=SideInformation(row=known, col=ITEMS), random_state=0, l2=6.0).fit(X[seen], Y[seen])
    all_along = LFLClassifier(features=SideInformation(row=USERS, col=ITEMS), random_state=0, l2=6.0).fit(
        X[seen], Y[seen]
    )
    new = X[~seen].head(20)
    np.testing.assert_allclose(
        model.predict_proba(new, row_features=USERS.iloc[30:]), all_along.predict_proba(new), atol=1e-12
    )
    quiet(model.predict_proba, new)
    older = known.assign(age=known["age"] + 40)
    changed = model.predict_proba(X[seen].head(5), row_features=older)
    assert model.score(new, all_along.predict(new), row_features=USERS.iloc[30:]) == 1, "scores take features too"
    assert np.abs(changed - model.predict_proba(X[seen].head(5))).max() > 1e-3
    one = model.predict_proba(
        pd.DataFrame({"user": ["stranger"], "item": ["i1"]}),
        row_features={"user": ["stranger"], "age": [None], "city": ["Bern"]},
    )
    assert one.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"row_features": USERS.drop(columns="age")}, "do not have the column 'age'"),
        ({"row_features": USERS.assign(age=USERS["age"].astype(str))}, "Column 'age' holds text but held numbers"),
        ({"row_features": USERS.assign(x=1)}, "also have the column 'x'"),
        ({"row_features": pd.concat([USERS, USERS.head(1)])}, "The id 'u0' occurs more than once"),
        (
            {"row_features": USERS.assign(age=[np.inf, *USERS["age"][1:]])},
            "Column 'age' has the value inf for the id 'u0'",
        ),
    ],
)
def test_other_tables_at_predict_are_refused(choices, says):
    model = LFLClassifier(rank=1, **WITH).fit(X, Y)
    with pytest.raises(InputError, match=says):
        model.predict_proba(X, **choices)


def test_bad_features_at_fit_are_refused():
    with pytest.raises(InputError, match="The row id 'u.*' has labels but is not in the features of rows"):
        LFLClassifier(features=SideInformation(row=USERS.iloc[:20]), solver="point").fit(X, Y)
    LFLClassifier(
        rank=1, features=SideInformation(row=Features(USERS.iloc[:20], absent="missing")), solver="point"
    ).fit(X, Y)
    with pytest.raises(InputError, match="'age' has only missing values"):
        LFLClassifier(features=SideInformation(row=USERS.assign(age=np.nan)), solver="point").fit(X, Y)
    with pytest.raises(DtypeError, match="features of rows, SideInformation.* expected ids of the same type"):
        LFLClassifier(features=SideInformation(row=USERS.assign(user=range(len(USERS)))), solver="point").fit(X, Y)
    with pytest.raises(InputError, match="interactions=2, which is for features of rows and columns"):
        LFLClassifier(features=SideInformation(interactions=2), solver="point").fit(X, Y)
    with pytest.raises(
        InputError, match="one set of nodes: expected features of nodes as SideInformation\\(row=...\\) alone"
    ):
        LFLLink(features=SideInformation(col=USERS)).fit(X, Y)
    with pytest.raises(InputError, match="seen= was given without implicit=True"):
        LFLClassifier(solver="point").fit(X, Y, seen=X)
    with pytest.raises(InputError, match="row_features were given, but the model was fitted without any"):
        LFLClassifier(rank=1, solver="point").fit(X, Y).predict(X, row_features=USERS)


# ------------------------------------------------------------------------------------------------------ unknown ids


def test_the_mean_policy_is_the_papers_baseline():
    model = LFLClassifier(rank=2, l2=1.0, unknown="mean", random_state=0).fit(X, Y)
    proba = model.predict_proba(X)
    pairs = pd.DataFrame({"user": ["new", "new", "u3"], "item": ["i2", "neu", "neu"]})
    found = quiet(model.predict_proba, pairs)
    np.testing.assert_allclose(found[0], proba[X["item"] == "i2"].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found[1], proba.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found[2], proba[X["user"] == "u3"].mean(axis=0), atol=1e-12)
    late = LFLClassifier(rank=1, solver="point").fit(X, Y).set_params(unknown="mean")
    with pytest.raises(InputError, match="unknown='mean' was set after the fit"):
        late.predict_proba(pairs)


def test_an_unknown_row_may_be_any_row_seen_with_its_column():
    """The mean over training rows is the paper's baseline; a row of average weights would be far too sure."""
    model = LFLClassifier(rank=3, l2=0.1, unknown="mean", random_state=0).fit(X, Y)
    pairs = pd.DataFrame({"user": ["new"] * len(ITEMS), "item": ITEMS["item"]})
    baseline = quiet(model.predict_proba, pairs)
    mixed = quiet(model.set_params(unknown="prior").predict_proba, pairs)
    average = [trained.without_spread() for trained in model.record_.models]
    sure = link(CPU(1).scores(average, (np.full(len(ITEMS), -1), np.arange(len(ITEMS)))))[np.argsort(model.col_ids_)]
    by_id = np.argsort(pairs["item"].to_numpy())
    assert np.abs(mixed - baseline).mean() < 0.5 * np.abs(sure - baseline[by_id]).mean()


# ---------------------------------------------------------------------------------------------------------- fold-in


def certificate(model, X, y, side):
    """The largest gradient of the objective in the blocks of the rows or columns of X, given these labels alone."""
    (trained,) = model.record_.models
    more = model._read_more(model.record_, X, y, None)
    data = dataclasses.replace(more.dyads, side=trained.known.side._replace(dyad=more.dyads.side.dyad))
    objective = trained.parts.objective(trained.known.without_counts().counted(data))
    with CPU(1).bind(objective, data) as problem:
        gradient = problem.value_and_gradient(trained.uncentred())[1]
    blocks = trained.layout.blocks(gradient)
    own, codes = (blocks.row, data.row) if side == "row" else (blocks.col, data.col)
    return np.abs(own[np.unique(codes)]).max()


FOLDED = {
    "plain": {},
    "scaled": {"l2": L2(latent=0.01, scaling="count")},
    "features": with_features(interactions=1),
    "no reference": {"reference": None},
}


@functools.cache
def at_its_optimum(estimator, choices):
    """A model fitted to the shop to high precision, and the labels."""
    y = Y if estimator is LFLClassifier else np.searchsorted(["maybe", "no", "yes"], Y)
    common = {"rank": 2, "l2": 0.5, "solver": Newton(tol=1e-12), "random_state": 0}
    return estimator(**common | FOLDED[choices]).fit(X, y), y


@pytest.mark.parametrize("estimator", [LFLClassifier, LFLOrdinal])
@pytest.mark.parametrize("side", ["row", "col"])
@pytest.mark.parametrize("choices", FOLDED)
def test_folding_in_a_known_row_with_its_own_labels_gives_its_own_optimum(estimator, side, choices):
    model, y = at_its_optimum(estimator, choices)
    mine = (X["user"] == "u7" if side == "row" else X["item"] == "i7").to_numpy()
    folded = copy.copy(model).fold_in(X[mine], y[mine], side=side)
    assert certificate(folded, X[mine], y[mine], side) < 1e-6
    np.testing.assert_allclose(folded.predict_proba(X), model.predict_proba(X), atol=5e-3)
    np.testing.assert_array_equal(folded.predict_proba(X[~mine]), model.predict_proba(X[~mine]))
    np.testing.assert_array_equal(folded.support(X), model.support(X))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if not isinstance(loss, Log)], ids=repr)
def test_folding_in_lowers_any_loss(loss):
    name = {"Absolute": "absolute", "Brier": "brier", "Squared": "squared", "Hinge": "hinge"}[type(loss).__name__]
    y = np.searchsorted(["maybe", "no", "yes"], Y)
    old = (X["user"] != "u7").to_numpy()
    model = LFLOrdinal(rank=2, l2=0.5, loss=name, random_state=0).fit(X[old], y[old])
    folded = copy.copy(model).fold_in(X[~old], y[~old])
    assert certificate(folded, X[~old], y[~old], "row") < 1e-4


def test_new_rows_and_new_columns_fold_in_together_and_nothing_else_changes():
    old = (~X["user"].isin(["u1", "u2"]) & ~X["item"].isin(["i1"])).to_numpy()
    model = LFLClassifier(rank=2, l2=0.5, unknown="mean", random_state=0).fit(X[old], Y[old])
    before = model.predict_proba(X[old])
    folded = copy.copy(model).fold_in(X[~old], Y[~old])
    np.testing.assert_array_equal(folded.predict_proba(X[old]), before)
    np.testing.assert_array_equal(model.predict_proba(X[old]), before)
    strangers = pd.DataFrame({"user": ["?"], "item": ["i3"]})
    np.testing.assert_array_equal(quiet(folded.predict_proba, strangers), quiet(model.predict_proba, strangers))
    both = (X["user"].isin(["u1", "u2"]) & (X["item"] == "i1")).to_numpy()
    assert both.any()
    assert folded.support(X[both]).min() > 0
    known = folded.record_.known
    labels = [np.count_nonzero(Y[(X["user"] == "u1").to_numpy()] == label) for label in folded.classes_]
    np.testing.assert_array_equal(
        known.label_counts.row[known.rows.ids.encode(pa.array(["u1"], pa.large_string()))], [labels]
    )
    loss = [dyads.metrics.log_loss(Y[~old], p, model.classes_) for p in (
        folded.predict_proba(X[~old]), quiet(model.predict_proba, X[~old]))]  # fmt: skip
    assert loss[0] < loss[1]
    with pytest.raises(UnknownIdError, match="side='row' solves for one side"):
        model.fold_in(X[~old], Y[~old], side="row")
    with pytest.raises(InputError, match="label 'perhaps' is not among those of the model"):
        model.fold_in(X[:1], ["perhaps"])


@pytest.mark.slow
def test_nodes_and_relations_fold_in():
    rng = np.random.default_rng(0)
    block = np.arange(30) % 2
    i, j = np.triu_indices(30, 1)
    y = (rng.random(len(i)) < np.where(block[i] == block[j], 0.9, 0.1)).astype(int)
    pairs = np.column_stack([i, j])
    old = j < 28
    model = LFLLink(rank=2, l2=0.5, structure="spectral", random_state=0).fit(pairs[old], y[old])
    folded = copy.copy(model).fold_in(pairs[~old], y[~old])
    assert dyads.metrics.auc(y[~old], folded.predict_proba(pairs[~old]), folded.classes_) > 0.9
    np.testing.assert_array_equal(folded.predict_proba(pairs[old]), model.predict_proba(pairs[old]))
    three = pd.DataFrame({"a": np.repeat(i, 2), "b": np.repeat(j, 2), "kind": np.tile(["likes", "knows"], len(i))})
    many = LFLRelational(rank=2, l2=0.5, random_state=0).fit(three[three["a"] > 0], np.repeat(y, 2)[three["a"] > 0])
    more = copy.copy(many).fold_in(three[three["a"] == 0], np.repeat(y, 2)[three["a"] == 0])
    assert more.support(three[three["a"] == 0])[:, 0].min() == 58
    with pytest.raises(InputError, match="relation 'hates' was not seen in training"):
        many.fold_in(three.head(1).assign(kind="hates"), [1])


def directed(seed=0):
    rng = np.random.default_rng(seed)
    pairs = pd.DataFrame(itertools.permutations([f"n{i}" for i in range(9)], 2), columns=["a", "b"])
    return pairs, (rng.random(len(pairs)) < np.where(pairs["a"] < pairs["b"], 0.8, 0.2)).astype(int)


@pytest.mark.slow
def test_a_nodes_roles_survive_the_file_and_a_fold_in(tmp_path):
    pairs, y = directed()
    model = LFLLink(rank=2, l2=0.3, structure="directed", random_state=0).fit(pairs, y)
    ask = pd.DataFrame({"a": ["?", "n3"], "b": ["n0", "?"]})
    before = quiet(model.predict_proba, ask)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(quiet(dyads.load(tmp_path / "model").predict_proba, ask), before)
    folded = copy.copy(model).fold_in(pd.DataFrame({"a": ["new"], "b": ["n1"]}), [1])
    np.testing.assert_array_equal(quiet(folded.predict_proba, ask), before)


@pytest.mark.parametrize("structure", ["symmetric", pytest.param("directed", marks=pytest.mark.slow)])
def test_solving_for_a_node_anew_leaves_its_partners_alone(structure):
    pairs, y = directed()
    undirected = structure == "symmetric"
    used = (pairs["a"] < pairs["b"]).to_numpy() if undirected else np.ones(len(pairs), bool)
    model = LFLLink(rank=2, l2=0.3, structure=structure, random_state=0).fit(pairs[used], y[used])
    mine = (pairs["a"] == "n0").to_numpy() & used
    folded = copy.copy(model).fold_in(pairs[mine], y[mine], side="row")
    others = pairs[used & (pairs["a"] != "n0") & (pairs["b"] != "n0")]
    np.testing.assert_array_equal(folded.predict_proba(others), model.predict_proba(others))
    np.testing.assert_array_equal(folded.support(others), model.support(others))
    if undirected:
        with pytest.raises(InputError, match="given in both orders with different labels"):
            model.fold_in(pd.DataFrame({"a": ["q", "n0"], "b": ["n0", "q"]}), [0, 1])


def test_rows_and_columns_of_the_same_ids_stay_two_sets():
    square = pd.DataFrame(itertools.product(range(6), range(6)), columns=["r", "c"])
    model = LFLClassifier(rank=1, random_state=0, solver="point").fit(square, np.arange(36) % 2)
    folded = copy.copy(model).fold_in(pd.DataFrame({"r": [77], "c": [5]}), [1])
    assert 77 in folded.row_ids_
    assert 77 not in folded.col_ids_
    wide = pd.DataFrame({"r": ["a", "a", "a", "b", "b"], "c": ["p", "q", "r", "p", "s"]})
    more = LFLClassifier(rank=1, random_state=0, solver="point").fit(wide, [0, 1, 0, 1, 1])
    assert more.fold_in(pd.DataFrame({"r": ["new"], "c": ["s"]}), [1]).row_ids_.tolist() == ["a", "b", "new"]


def test_a_fold_in_that_would_do_nothing_or_guess_is_refused():
    model = LFLClassifier(rank=1, unknown="mean", random_state=0, solver="point").fit(X, Y)
    with pytest.raises(InputError, match="All ids of X have labels in the model already"):
        model.fold_in(X[:3], Y[:3])
    informed = LFLClassifier(rank=1, solver="point", **WITH).fit(X, Y)
    late = pd.DataFrame({"user": ["late"], "item": ["i0"]})
    for learn in (informed.fold_in, informed.partial_fit):
        with pytest.raises(InputError, match="The row id 'late' is new and has no features"):
            learn(late, ["yes"])
    table = {"user": ["late"], "age": [30], "city": ["Rome"]}
    assert copy.copy(informed).fold_in(late, ["yes"], row_features=table).support(late)[0, 0] == 1
    grown = informed.set_params(features__row=pd.concat([USERS, pd.DataFrame(table)]))
    assert grown.partial_fit(late, ["yes"]).support(late)[0, 0] == 1
    assert model.fold_in(X[:2].assign(user="w"), ["yes", "never"], sample_weight=[1, 0]) is model


def test_methods_that_learn_more_change_the_model_and_a_copy_keeps_the_old_one():
    new = (X["user"] == "u1").to_numpy()
    model = LFLClassifier(rank=1, l2=0.5, random_state=0).fit(X[~new], Y[~new])
    old, before = copy.copy(model), model.predict_proba(X[~new])
    for learn in (model.fold_in, model.partial_fit, model.calibrate, model.conformalize):
        assert learn(X[new], Y[new]) is model
    assert "u1" in model.row_ids_
    assert "u1" not in old.row_ids_
    assert old.record_.calibrator is None
    np.testing.assert_array_equal(old.predict_proba(X[~new]), before)
    with pytest.raises(InputError, match="All ids of X have labels"):
        model.fold_in(X[new], Y[new])
    with pytest.raises(InputError, match="label 'perhaps' is not among"):
        old.fold_in(X[new][:1], ["perhaps"])
    assert "u1" not in old.row_ids_, "what is refused changes nothing"


def test_weights_act_as_repetition_for_ids_without_labels_too():
    weight = np.where(Y == "yes", 3.0, 1.0)
    times = np.repeat(np.arange(len(X)), weight.astype(int))
    common = {"rank": 1, "l2": 1.0, "solver": LBFGS(tol=1e-12), "random_state": 0}
    weighted = LFLClassifier(**common).fit(X, Y, weight)
    repeated = LFLClassifier(**common).fit(X.iloc[times], Y[times])
    ask = pd.DataFrame({"user": ["?"] * 4, "item": ["i0", "i1", "i2", "i3"]})
    np.testing.assert_allclose(quiet(weighted.predict_proba, ask), quiet(repeated.predict_proba, ask), atol=0.01)


def test_probabilities_too_small_for_a_number_have_finite_log_odds():
    model = LFLClassifier(
        rank=1, features=SideInformation(row=USERS[["user", "age"]]), l2=L2(side=0.001), random_state=0
    ).fit(X, Y)
    ask, table = pd.DataFrame({"user": ["new"], "item": ["i0"]}), {"user": ["new"], "age": [1e6]}
    assert np.isfinite(model.log_odds(ask, row_features=table)).all()
    assert np.isfinite(model.explain(ask, row_features=table)["value"]).all()


# ------------------------------------------------------------------------------------------------- implicit feedback


def test_implicit_sets_know_rows_that_have_no_labels():
    rng = np.random.default_rng(0)
    taste = rng.integers(0, 2, 200)
    genre = np.arange(60) % 2
    row = np.repeat(np.arange(200), 12)
    # Everyone sees more of what they like, and likes it.
    col = np.array([rng.choice(60, p=np.where(genre == taste[r], 3, 1) / 120) for r in row])
    y = np.where(genre[col] == taste[row], 1, 0) ^ (rng.random(len(row)) < 0.1)
    pairs = np.column_stack([row, col])
    old = row < 150
    model = LFLClassifier(
        rank=2, features=SideInformation(interactions=1, implicit=True), l2=L2(latent=1.0, side=1.0), random_state=0
    )
    model.fit(pairs[old], y[old], seen=pairs[~old])
    # Who goes by the majority of what a row has seen gets 0.82.
    assert dyads.metrics.auc(y[~old], model.predict_proba(pairs[~old]), model.classes_) > 0.78
    assert model.support(pairs[~old])[:, 0].max() == 0


# ------------------------------------------------------------------------------------------------------ partial fit


@pytest.mark.parametrize("estimator", [LFLClassifier, LFLOrdinal])
def test_partial_fit_grows_and_comes_near_to_fit(estimator):
    y = Y if estimator is LFLClassifier else np.searchsorted(["maybe", "no", "yes"], Y)
    whole = estimator(rank=1, l2=1.0, solver="sgd", random_state=0).fit(X, y)
    stream = estimator(rank=1, l2=1.0, random_state=0)
    for _ in range(15):
        for part in np.array_split(np.arange(len(X)), 5):
            stream.partial_fit(X.iloc[part], y[part], classes=np.unique(y))
    assert set(stream.row_ids_) == set(USERS["user"])
    assert stream.n_iter_ == 75
    losses = [dyads.metrics.log_loss(y, model.predict_proba(X), model.classes_) for model in (whole, stream)]
    assert losses[1] < losses[0] + 0.05
    after = whole.partial_fit(X.head(10).assign(user="late"), y[:10])
    assert after.support(pd.DataFrame({"user": ["late"], "item": ["i0"]}))[0, 0] == 10


def test_partial_fit_accepts_labels_to_come():
    model = LFLClassifier(rank=1, random_state=0, solver="point").partial_fit(
        X[Y != "yes"], Y[Y != "yes"], classes=["maybe", "no", "yes"]
    )
    assert model.predict_proba(X[:5]).shape == (5, 3)
    model.partial_fit(X[Y == "yes"], Y[Y == "yes"])
    with pytest.raises(InputError, match="that needs all dyads at once"):
        LFLClassifier(features=SideInformation(implicit=True), solver="point").partial_fit(X, Y)


def test_partial_fit_moves_little_by_a_little():
    model = LFLClassifier(rank=2, l2=0.5, random_state=0).fit(X, Y)
    ask = pd.DataFrame({"user": ["?"] * 3, "item": ["i0", "i1", "?"]})
    before, n_iter = quiet(model.predict_proba, ask), model.n_iter_
    folded = copy.copy(model).fold_in(X[:1].assign(user="w"), Y[:1])
    folded.partial_fit(X[:1], Y[:1])
    assert np.abs(quiet(folded.predict_proba, ask) - before).max() < 0.02
    assert len(model.trace_["objective"]) == model.n_iter_ == n_iter


def test_partial_fit_penalises_features_by_the_share_of_a_batch():
    y = (X["user"].map(USERS.set_index("user")["age"]) < 45).astype(int).to_numpy()
    common = {"rank": 0, "features": SideInformation(row=USERS[["user", "age"]]), "random_state": 0}
    found = []
    for n_parts in (1, 25):
        model = LFLClassifier(**common)
        for _ in range(40 // n_parts + 1):
            for part in np.array_split(np.arange(len(X)), n_parts):
                model.partial_fit(X.iloc[part], y[part], classes=[0, 1])
        found.append(np.abs(model.parts_["row_bias_side"]).max())
    assert found[1] > 0.5 * found[0]


def test_warm_start_refuses_other_interactions():
    model = LFLClassifier(rank=2, warm_start=True, **WITH).fit(X, Y)
    again = model.set_params(solver=LBFGS(max_iter=1)).fit(X, Y)
    assert again.n_iter_ == 1
    with pytest.raises(InputError, match="interactions of the last fit, but they have changed"):
        model.set_params(features__interactions=2).fit(X, Y)


# --------------------------------------------------------------------------------------------------- the model file


def test_a_loaded_model_knows_which_column_of_a_table_holds_the_ids(tmp_path):
    table = USERS[["age", "city", "user"]]
    model = LFLClassifier(
        rank=1, features=SideInformation(row=Features(table, "user")), random_state=0, solver="point"
    ).fit(X, Y)
    model.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X, row_features=table), model.predict_proba(X))


@pytest.mark.parametrize(
    "choices", [with_features(interactions=1), {"features": SideInformation(implicit=True)}, {"unknown": "mean"}]
)
def test_a_saved_model_keeps_its_features(tmp_path, choices):
    new = X["user"].isin(["u1", "u2"]).to_numpy()
    model = LFLClassifier(rank=2, l2=1.0, **choices).fit(X[~new], Y[~new])
    model.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    with_tables = "features" in choices and choices["features"].row is not None
    ask = (lambda m: m.predict_proba(X)) if with_tables else (lambda m: quiet(m.predict_proba, X))
    np.testing.assert_array_equal(ask(loaded), ask(model))
    if with_tables:
        more = {"user": ["new"], "age": [33], "city": ["Rome"]}
        pair = pd.DataFrame({"user": ["new"], "item": ["i1"]})
        np.testing.assert_array_equal(
            loaded.predict_proba(pair, row_features=more), model.predict_proba(pair, row_features=more)
        )
    folded = loaded.fold_in(X[new], Y[new])
    np.testing.assert_allclose(folded.predict_proba(X), model.fold_in(X[new], Y[new]).predict_proba(X), atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- what if


def rated(seed=0, n=900):
    rng = np.random.default_rng(seed)
    cells = rng.choice(40 * 30, n, replace=False)
    X = {"user": cells // 30, "film": cells % 30}
    return X, 1 + (X["user"] * X["film"] + rng.integers(0, 3, n)) % 4


@pytest.mark.parametrize("side", ["row", "col"])
@pytest.mark.parametrize("kind", [LFLClassifier, LFLOrdinal])
def test_a_supposed_label_moves_an_id_as_a_fit_to_all_its_labels_would(kind, side):
    X, y = rated()
    model = kind(rank=2, l2=3.0, solver=LBFGS(tol=1e-9, max_iter=2000), random_state=0).fit(X, y)
    own, other = ("user", "film") if side == "row" else ("film", "user")
    mine = X[own] == 7
    new = np.setdiff1d(X[other], X[other][mine])[0]
    every = {own: np.full(30, 7), other: np.arange(30)}
    pair = {"user": [7], "film": [new]} if side == "row" else {"user": [new], "film": [7]}
    before = model.log_odds({name: every[name] for name in X})
    for label in model.classes_:
        supposed = model.suppose(pair, [label], side=side)
        labels = {name: np.append(X[name][mine], pair[name]) for name in X}
        true = copy.copy(model).fold_in(labels, np.append(y[mine], label), side=side)
        moved, expected = (other.log_odds({name: every[name] for name in X}) - before for other in (supposed, true))
        assert np.linalg.norm(moved - expected) < 0.3 * np.linalg.norm(expected)
        others = {name: X[name][~mine] for name in X}
        np.testing.assert_array_equal(supposed.predict_proba(others), model.predict_proba(others))
    np.testing.assert_array_equal(model.log_odds({name: every[name] for name in X}), before)


def test_a_supposed_label_conditions_a_posterior():
    X, y = rated()
    model = LFLOrdinal(rank=2, solver=dyads.Gibbs(sweeps=60), random_state=0).fit(X, y)
    draws = model.sample_proba({"user": [7] * 30, "film": np.arange(30)})
    for code, label in enumerate(model.classes_):
        weight = draws[:, 3, code]
        exact = np.average(draws, axis=0, weights=weight)
        supposed = model.suppose({"user": [7], "film": [3]}, [label])
        found = supposed.predict_proba({"user": [7] * 30, "film": np.arange(30)})
        assert np.abs(found - exact).max() < 2 / len(draws)
        assert found[3, code] > draws[:, 3, code].mean()


def test_what_cannot_be_supposed_is_told():
    X, y = rated()
    model = LFLOrdinal(rank=1, solver="point").fit(X, y)
    for pair, labels, message in (
        ({"user": [99], "film": [1]}, [1], "not seen in training"),
        ({"user": [1, 2], "film": [1, 1]}, [1, 1], "got 2 rows: expected labels of one"),
        ({"user": [1], "film": [1]}, [9], "9"),
    ):
        with pytest.raises(InputError, match=message):
            model.suppose(pair, labels)
    with pytest.raises(InputError, match="side="):
        model.suppose({"user": [1], "film": [1]}, [1], side="left")
    absolute = LFLOrdinal(rank=1, loss="absolute", solver="point").fit(X, y)
    with pytest.raises(InputError, match="cannot be supposed"):
        absolute.suppose({"user": [1], "film": [1]}, [1])
