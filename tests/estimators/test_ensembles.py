"""Several models from other starts, averaged as one."""

import copy
import dataclasses

import numpy as np
import pandas as pd
import pytest

import dyads
from dyads import LFLClassifier, LFLLink, LFLOrdinal, LFLRelational
from dyads.datasets.synthetic import make_nominal
from dyads.errors import InputError, UnknownIdWarning
from shop import WITH, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)


def quiet(function, *arguments):
    with pytest.warns(UnknownIdWarning):
        return function(*arguments)


@pytest.mark.parametrize("choices", [{}, WITH, {"unknown": "mean"}])
def test_probabilities_are_the_mean_of_the_members(choices, tmp_path):
    model = LFLClassifier(**{"rank": 2, "l2": 0.3, "n_models": 3, "random_state": 0, **choices}).fit(X, Y)
    assert len(model.record_.draws) == 3
    each = []
    for draw in model.record_.draws:
        one = LFLClassifier(**choices)
        one.record_, one.columns_ = dataclasses.replace(model.record_, draws=(draw,)), model.columns_
        each.append(one.predict_proba(X[:50]))
    np.testing.assert_allclose(model.predict_proba(X[:50]), np.mean(each, axis=0), atol=1e-12)
    assert np.abs(each[0] - each[1]).max() > 1e-4
    first = LFLClassifier(**{"rank": 2, "l2": 0.3, "random_state": 0, **choices}).fit(X, Y)
    np.testing.assert_array_equal(first.predict_proba(X[:50]), each[0])
    assert model.n_parameters_ == 3 * first.n_parameters_
    model.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    ask = X[:50].assign(user=np.where(np.arange(50) % 5 == 0, "?", X["user"][:50]))
    np.testing.assert_array_equal(quiet(loaded.predict_proba, ask), quiet(model.predict_proba, ask))


def test_features_of_dyads_go_with_their_dyads_in_an_average():
    rng = np.random.default_rng(0)
    dated = X.assign(hour=rng.normal(size=len(X)), weekday=rng.choice(["Mon", "Sun"], len(X)))
    model = LFLClassifier(rank=1, l2=0.3, n_models=2, random_state=0).fit(dated, Y)
    each = []
    for draw in model.record_.draws:
        one = LFLClassifier(solver="point")
        one.record_, one.columns_ = dataclasses.replace(model.record_, draws=(draw,)), model.columns_
        each.append(one.predict_proba(dated))
    np.testing.assert_allclose(model.predict_proba(dated), np.mean(each, axis=0), atol=1e-12)
    assert np.abs(model.predict_proba(dated) - model.predict_proba(dated.assign(hour=0.0))).max() > 1e-3


def test_an_average_is_better_than_its_members():
    data = make_nominal(n=60, rank=3, width=2.0, random_state=0)
    train, test = data.split(0.4)
    losses = []
    for n_models in (1, 6):
        model = LFLClassifier(rank=3, l2=0.5, n_models=n_models, random_state=0).fit(train.X, train.y)
        losses.append(dyads.metrics.log_loss(test.y, model.predict_proba(test.X), test.classes))
    assert losses[1] < losses[0]


def test_explanations_recommendations_and_fold_in_are_of_the_average():
    model = LFLOrdinal(rank=2, l2=0.3, n_models=2, random_state=0).fit(X, STARS)
    told = model.explain(X[:20])
    wide = told.pivot_table(index="dyad", columns="label", values="value", aggfunc="sum")
    np.testing.assert_allclose(wide.to_numpy(), model.log_odds(X[:20]), atol=1e-10)
    assert "averaging" in set(told["part"])
    found = model.recommend(["u3", "u5"], n=4, exclude=X[X["user"] == "u3"])
    np.testing.assert_allclose(found["value"], model.predict_mean(found))
    every = pd.DataFrame({"user": "u5", "item": model.col_ids_})
    assert found["value"][found["user"] == "u5"].iloc[0] == pytest.approx(model.predict_mean(every).max())
    folded = copy.copy(model).fold_in(X[:5].assign(user="new"), STARS[:5])
    assert len(folded.record_.draws) == 2
    np.testing.assert_array_equal(folded.predict_proba(X), model.predict_proba(X))
    assert len(model.ask("u3", n=3)) == 3
    calibrated = folded.calibrate(X[:300], STARS[:300])
    np.testing.assert_allclose(calibrated.predict_proba(X[:9]).sum(axis=1), 1)
    with pytest.raises(InputError, match="partial_fit does not support n_models=2"):
        model.partial_fit(X, STARS)


def test_links_and_relations_average_too():
    pairs = pd.DataFrame({"a": np.repeat(np.arange(8), 8), "b": np.tile(np.arange(8), 8)})
    pairs = pairs[pairs["a"] < pairs["b"]]
    y = ((pairs["a"] + pairs["b"]) % 2).to_numpy()
    link = LFLLink(rank=2, l2=0.1, n_models=2, random_state=0).fit(pairs, y)
    np.testing.assert_array_equal(link.predict_proba(pairs), link.predict_proba(pairs[["b", "a"]].to_numpy()))
    kinds = pairs.assign(kind=np.where(pairs["a"] % 2, "x", "y"))
    related = LFLRelational(rank=1, l2=0.1, n_models=2, random_state=0).fit(kinds, y)
    best = related.recommend([0], n=3, by=1, relation="x")
    assert best.columns.tolist() == ["a", "b", "kind", "rank", "value"]
    np.testing.assert_allclose(best["value"], related.predict_proba(best)[:, 1])


def test_a_callback_that_stops_ends_the_whole_fit():
    model = LFLOrdinal(rank=2, n_models=3, random_state=0).fit(X, STARS, callback=lambda progress: True)
    assert len(model.record_.draws) == 1
    assert not model.converged_
    several = LFLOrdinal(rank=2, n_models=2, random_state=0).fit(X, STARS).set_params(n_models=1)
    with pytest.raises(InputError, match="there are 2 models"):
        several.partial_fit(X, STARS)
