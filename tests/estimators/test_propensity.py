"""Weights undo a selection that depends on the label; one that depends on ids needs none."""

import numpy as np
import pandas as pd
import pytest

from dyads import LFLClassifier, metrics, propensity
from dyads.datasets.synthetic import make_nominal
from dyads.errors import InputError


@pytest.fixture(scope="module")
def world():
    """All cells, their labels, and a uniform test sample."""
    data = make_nominal(n=120, rank=2, width=2.0, random_state=0)
    X = np.column_stack([data.X["row"], data.X["col"]])
    rng = np.random.default_rng(1)
    test = rng.random(len(X)) < 0.2
    return X, data.y, test, rng


def judged(X, y, seen, test, weight=None):
    model = LFLClassifier(rank=2, l2=3.0, random_state=0).fit(X[seen], y[seen], weight)
    return metrics.log_loss(y[test], model.predict_proba(X[test]), model.classes_)


def test_a_selection_by_row_and_column_needs_no_weights(world):
    X, y, test, rng = world
    popular = rng.uniform(0.4, 1, 120)[X[:, 0]] * rng.uniform(0.4, 1, 120)[X[:, 1]]
    chosen = ~test & (rng.random(len(X)) < 0.4 * popular / popular.mean())
    uniform = ~test & (rng.random(len(X)) < chosen.sum() / (~test).sum())
    assert judged(X, y, chosen, test) < 1.05 * judged(X, y, uniform, test)


def test_a_selection_by_label_needs_them(world):
    X, y, test, rng = world
    chosen = ~test & (rng.random(len(X)) < np.array([0, 0.6, 0.3, 0.1])[y])
    uniform = ~test & (rng.random(len(X)) < chosen.sum() / (~test).sum())
    best, plain = judged(X, y, uniform, test), judged(X, y, chosen, test)
    some = rng.choice(np.flatnonzero(~test), 500, replace=False)
    p = propensity.from_labels(y[chosen], y[some])
    weighted = judged(X, y, chosen, test, propensity.weights(p))
    assert plain > 1.1 * best
    assert weighted < best + 0.35 * (plain - best)


def test_marginals_tell_how_often_ids_are_seen():
    rng = np.random.default_rng(0)
    rows, cols = rng.uniform(0.1, 0.9, 80), rng.uniform(0.1, 0.9, 70)
    seen = np.argwhere(rng.random((80, 70)) < np.outer(rows, cols))
    truth = np.outer(rows, cols)[seen[:, 0], seen[:, 1]]
    assert np.corrcoef(propensity.from_marginals(seen), truth)[0, 1] > 0.85


def test_features_tell_who_is_observed():
    rng = np.random.default_rng(0)
    rich = rng.integers(0, 2, 300)
    truth = np.where(rich, 0.05, 0.01)[:, None] * np.ones(200)
    seen = np.argwhere(rng.random((300, 200)) < truth)
    table = pd.DataFrame({"id": np.arange(300), "rich": rich.astype(bool)})
    found = propensity.from_features(seen, table)
    assert np.abs(found / np.where(rich[seen[:, 0]], 0.05, 0.01) - 1).mean() < 0.15
    full = np.argwhere(np.ones((300, 3)))
    assert (propensity.from_features(full, table) == 1).all()
    with pytest.raises(InputError, match="Got no features"):
        propensity.from_features(seen)


def test_weights_have_mean_one_and_are_clipped():
    found = propensity.weights([0.5, 0.1, 0.001], clip=0.1)
    assert found.mean() == pytest.approx(1)
    assert found[2] / found[0] == pytest.approx(0.5 / (0.1 * np.mean([0.5, 0.1, 0.001])))
    for wrong in ([0.0, 0.5], [np.nan], [2.0], []):
        with pytest.raises(InputError, match="not all numbers above 0 and at most 1"):
            propensity.weights(wrong)
    with pytest.raises(InputError, match="clip=-1: expected a finite number"):
        propensity.weights([0.5], clip=-1)
    with pytest.raises(InputError, match="label 2 is not in the unbiased sample"):
        propensity.from_labels([1, 2, 1], [1, 1])


def test_a_seed_gives_the_same_propensities_also_by_sgd(world, monkeypatch):
    monkeypatch.setattr("dyads.learn.training.FULL_BATCH_WORK", 10)
    X, _, test, _ = world
    ages = pd.DataFrame({"row": np.arange(120), "age": np.arange(120) % 7})
    found = [propensity.from_features(X[test], row_features=ages, random_state=3) for _ in range(2)]
    np.testing.assert_array_equal(*found)
