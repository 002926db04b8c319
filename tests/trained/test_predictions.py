"""A table is looked up and scored once, whatever is made of it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier

import dyads
from dyads import LFLClassifier, LFLOrdinal
from dyads.engine import CPU
from dyads.errors import InputError, UnknownIdError, UnknownIdWarning
from dyads.paper.experiment import METRICS, Judged
from dyads.paper.tasks import Task
from dyads.report import report
from dyads.trained.predictions import interval_tails
from shop import ITEMS, USERS, WITH, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
ASKED, TRUTH = X[:77], STARS[:77]


@pytest.fixture(scope="module")
def model():
    return LFLOrdinal(rank=2, l2=0.3, n_models=2, **WITH).fit(X, STARS)


@pytest.fixture
def scored(monkeypatch):
    """How many dyads the engine scored, call by call."""
    sizes, scores = [], CPU.scores

    def counted(engine, models, codes, features=None):
        sizes.append(len(codes[0]))
        return scores(engine, models, codes, features)

    monkeypatch.setattr(CPU, "scores", counted)
    return sizes


def test_predictions_are_what_the_methods_tell_one_by_one(model):
    told = model.predictions(ASKED)
    assert len(told) == len(ASKED)
    np.testing.assert_array_equal(told.proba, model.predict_proba(ASKED))
    np.testing.assert_array_equal(told.labels, model.predict(ASKED))
    np.testing.assert_array_equal(told.classes, model.classes_)
    np.testing.assert_array_equal(told.mean, model.predict_mean(ASKED))
    np.testing.assert_array_equal(told.support, model.support(ASKED))
    np.testing.assert_array_equal(told.least_support, model.support(ASKED).min(axis=1))
    new = {"row_features": USERS[:1].assign(user="new"), "col_features": ITEMS[:1]}
    stranger = ASKED.assign(user="new")
    np.testing.assert_array_equal(model.predictions(stranger, **new).proba, model.predict_proba(stranger, **new))


def test_no_label_is_told_where_probabilities_are_missing():
    model = LFLClassifier(rank=1, l2=0.3, unknown="nan", random_state=0).fit(X, Y)
    with pytest.warns(UnknownIdWarning):
        told = model.predictions(pd.DataFrame({"user": ["u1", "?"], "item": ["i1", "i2"]}))
    assert told.codes.tolist() == [np.argmax(told.proba[0]), -1]
    np.testing.assert_array_equal(told.support[1], [0, model.support(X[X["item"] == "i2"])[0, 1]])
    with pytest.raises(UnknownIdError, match="1 dyads have ids not seen in training"):
        _ = told.labels


def test_evaluations_score_a_table_once(model, scored):
    for judge in (dyads.evaluate, dyads.calibration_by_label, dyads.calibration_by_support):
        scored.clear()
        judge(model, ASKED, TRUTH)
        assert scored == [len(ASKED)], judge.__name__


def test_a_report_scores_its_table_once(model, scored):
    pytest.importorskip("matplotlib")
    report(model, ASKED, TRUTH)
    assert scored.count(len(ASKED)) == 1


def test_an_experiment_scores_its_test_dyads_once(model, scored):
    judged = Judged(model, Task(X, STARS, ASKED, TRUTH))
    assert all(np.isfinite(metric(judged)) for metric in METRICS.values())
    assert scored == [len(ASKED)]


def test_models_of_other_libraries_have_one_line():
    other = DummyClassifier().fit(ASKED, TRUTH)
    table = dyads.evaluate(other, ASKED, TRUTH)
    assert table[["regime", "predictor"]].to_numpy().tolist() == [["all", "model"]]
    assert table["accuracy"][0] == pytest.approx(other.score(ASKED, TRUTH))
    assert len(dyads.calibration_by_label(other, ASKED, TRUTH)) == 3
    with pytest.raises(InputError, match=r"expected a model with a method support\(X\)"):
        dyads.calibration_by_support(other, ASKED, TRUTH)


@pytest.mark.parametrize(("n", "level"), [(10, 0.5), (40, 0.9), (200, 0.9)])
def test_the_next_draw_lies_in_the_interval_as_often_as_is_said(n, level):
    draws = np.random.default_rng(0).normal(size=(n + 1, 40_000))
    low, high = np.quantile(draws[:-1], interval_tails(level, n), axis=0)
    assert np.mean((low <= draws[-1]) & (draws[-1] <= high)) == pytest.approx(level, abs=0.01)


def test_few_draws_give_the_widest_interval_there_is():
    assert interval_tails(0.9, 5.0) == interval_tails(0.9, 1.0) == (0, 1)
