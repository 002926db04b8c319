"""MMMF, the rival the paper runs, and simpler ones."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from dyads import CPU, LBFGS, LFLClassifier, LFLLink, LFLRelational, load
from dyads.datasets.synthetic import make_nominal
from dyads.errors import InputError
from dyads.estimators.baselines import MMMF, Marginals
from dyads.model.loss import AllThreshold
from dyads.paper.rivals import BothOrders, ByRelation, MeanOdds, Neighbours
from problems import central_difference, loss_of_one


@pytest.mark.parametrize("label", range(4))
def test_the_loss_has_its_derivative_and_a_curvature_above_it(label):
    loss, rng = AllThreshold(), np.random.default_rng(label)
    for _ in range(20):
        s = rng.normal(size=4)
        value, g, C = loss_of_one(loss, label, s)
        expected = central_difference(lambda point: loss_of_one(loss, label, point)[0], s)
        np.testing.assert_allclose(g, expected, atol=1e-6)
        assert value == pytest.approx(sum(hinge((1 if label >= y else -1) * s[y]) for y in range(1, 4)))
        slope = lambda point: loss_of_one(loss, label, point)[1]  # noqa: E731
        second = np.array([(slope(s + 1e-6 * e) - slope(s - 1e-6 * e)) @ e / 2e-6 for e in np.eye(4)])
        assert (np.diag(C) >= second - 1e-6).all()
        assert np.count_nonzero(C - np.diag(np.diag(C))) == 0


def hinge(z):
    return 0.5 - z if z <= 0 else (1 - z) ** 2 / 2 if z < 1 else 0.0


def test_it_minimises_what_it_says():
    """Beside the objective written out in NumPy, and minimised by SciPy."""
    rng = np.random.default_rng(0)
    X = np.array([(r, c) for r in range(8) for c in range(6) if rng.random() < 0.8])
    y = rng.integers(1, 5, len(X))
    model = MMMF(rank=2, l2=0.5, l2_bias=0.3, solver=LBFGS(max_iter=5000, tol=1e-12), random_state=0).fit(X, y)

    def objective(flat):
        U, V = flat[:16].reshape(8, 2), flat[16:28].reshape(6, 2)
        own, common = flat[28:52].reshape(8, 3), flat[52:]
        total = 0.25 * ((U**2).sum() + (V**2).sum()) + 0.15 * (own**2).sum()
        for (r, c), label in zip(X, y, strict=True):
            for threshold in range(3):
                score = U[r] @ V[c] + own[r, threshold] + common[threshold]
                total += hinge((1 if label - 1 > threshold else -1) * score)
        return total

    named = model._layout.named(model._theta)
    order = [model._seen.rows.encode(pa.array(range(8))), model._seen.cols.encode(pa.array(range(6)))]
    found = np.concatenate(
        [
            named["row_factors"][order[0]].ravel(),
            named["col_factors"][order[1]].ravel(),
            named["row_bias"][order[0]].ravel(),
            named["label_bias"].ravel(),
        ]
    )
    assert model.objective_ == pytest.approx(objective(found), rel=1e-9)
    assert minimize(objective, found).fun == pytest.approx(model.objective_, rel=1e-5), "no step lowers it"


def test_it_finds_ordered_structure_and_predicts_labels():
    rng = np.random.default_rng(1)
    u, v, bias = rng.normal(size=(60, 2)), rng.normal(size=(50, 2)), rng.normal(size=60)
    X = np.array([(r, c) for r in range(60) for c in range(50)])
    score = (u[X[:, 0]] * v[X[:, 1]]).sum(axis=1) + bias[X[:, 0]]
    y = 1 + np.searchsorted([-1.5, -0.5, 0.5, 1.5], score)
    train = rng.random(len(X)) < 0.6
    model = MMMF(rank=2, l2=0.3, random_state=0).fit(X[train], y[train])
    assert -model.score(X[~train], y[~train]) < 0.25
    assert set(model.predict(X)) <= {1, 2, 3, 4, 5}
    assert model.predict([(999, 0), (0, 999), (999, 999)]).shape == (3,)
    again = MMMF(rank=2, l2=0.3, random_state=0, engine=CPU(1)).fit(X[train], y[train])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_further_columns_are_refused():
    with pytest.raises(InputError, match="no features"):
        MMMF().fit([("a", "b", 1.0), ("a", "c", 2.0)], [1, 2])


PAIRS = {"row": np.array([0, 0, 1, 1, 1]), "col": np.array([0, 1, 0, 1, 2])}
LABELS = np.array(["a", "b", "a", "a", "a"])


@pytest.mark.parametrize(
    ("of", "expected"), [("all", [0.8, 0.8, 0.8]), ("row", [0.65, 0.8, 0.8]), ("col", [0.9, 0.9, 0.8])]
)
def test_marginals_are_shares_drawn_towards_those_of_all(of, expected):
    model = Marginals(of, smoothing=2.0).fit(PAIRS, LABELS)
    proba = model.predict_proba({"row": [0, 9, 9], "col": [0, 0, 9]})
    np.testing.assert_allclose(proba[:, 0], expected)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    with pytest.raises(InputError, match="did you mean 'row'"):
        Marginals("rows").fit(PAIRS, LABELS)


def shown(model, pairs):
    return {name: predictions.proba for name, predictions in model.marginals(pairs).items()}


@pytest.mark.parametrize("way", ["fit", "file", "batches"])
def test_a_model_remembers_the_marginals_of_its_training_data(way, tmp_path):
    rng = np.random.default_rng(0)
    X, y = {"user": rng.integers(0, 9, 80), "item": rng.integers(0, 7, 80)}, rng.choice(["a", "b", "c"], 80)
    model = LFLClassifier(rank=1, solver="sgd", random_state=0)
    if way == "batches":
        for batch in (slice(50), slice(50, 80)):
            model.partial_fit({name: column[batch] for name, column in X.items()}, y[batch], ["a", "b", "c"])
    else:
        model.fit(X, y)
    if way == "file":
        model.save(tmp_path / "model.dyads")
        model = load(tmp_path / "model.dyads")
    asked = {"user": [0, 1, 99], "item": [0, 99, 99]}
    frequencies = shown(model, asked)
    assert list(frequencies) == ["all labels", "labels by user", "labels by item"]
    for proba, of in zip(frequencies.values(), ("all", "row", "col"), strict=True):
        np.testing.assert_allclose(proba, Marginals(of).fit(X, y).predict_proba(asked), rtol=1e-12)


def test_neighbours_say_what_rows_most_alike_say():
    X = np.array([(r, c) for r in range(6) for c in range(8)])
    y = np.where(X[:, 0] < 3, X[:, 1] % 2, 1 - X[:, 1] % 2)
    known = (X[:, 0] != 0) | (X[:, 1] < 4)
    model = Neighbours(2).fit(X[known], y[known])
    np.testing.assert_array_equal(model.predict(X[~known]), y[~known])
    np.testing.assert_allclose(model.predict_proba([(99, 0)])[0].sum(), 1)


@pytest.mark.parametrize("estimator", [LFLClassifier(rank=2, l2=0.3), LFLRelational(rank=4, l2=0.3)])
def test_labels_can_be_taken_for_relations(estimator):
    data = make_nominal(n=30, rank=2, random_state=0)
    train, test = data.split(0.7)
    model = ByRelation(estimator.set_params(random_state=0)).fit(train.X, train.y)
    proba = model.predict_proba(test.X)
    assert proba.shape == (len(test.y), 3)
    assert np.mean([roc_auc_score(test.y == label, proba[:, i]) for i, label in enumerate(model.classes_)]) > 0.6


def test_both_orders_of_a_pair_have_one_score():
    rng = np.random.default_rng(0)
    row, col = np.triu_indices(20, 1)
    X, y = {"a": row, "b": col}, rng.integers(0, 2, len(row))
    model = BothOrders(MMMF(rank=2, random_state=0)).fit(X, y)
    turned = {"a": col, "b": row}
    np.testing.assert_allclose(model.decision_function(X), model.decision_function(turned))
    assert set(model.predict(X)) <= {0, 1}


def test_mean_odds_are_the_geometric_mean_of_probabilities():
    rng = np.random.default_rng(0)
    row, col = np.triu_indices(15, 1)
    X, y = np.column_stack([row, col]), rng.integers(0, 2, len(row))
    model = MeanOdds(LFLLink(rank=2, l2=0.3, random_state=0), 3).fit(X, y)
    each = np.array([one.predict_proba(X) for one in model._models])
    mean = each.prod(axis=0) ** (1 / 3)
    np.testing.assert_allclose(model.predict_proba(X), mean / mean.sum(axis=1, keepdims=True))
    assert np.ptp(each, axis=0).max() > 0.01, "starts differ"


def test_mmmf_refuses_what_it_cannot_be():
    X, y = [("a", "x"), ("b", "y")] * 3, [1, 2] * 3
    for choices, says in (
        ({"rank": 0}, "rank=0"),
        ({"l2": -1}, "l2=-1"),
        ({"solver": "gibbs"}, "no posterior"),
    ):
        with pytest.raises(InputError, match=says):
            MMMF(**choices).fit(X, y)
