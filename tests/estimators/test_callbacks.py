"""scikit-learn's callbacks see every iteration of a fit, and may stop it."""

import runpy
import sys

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dyads import SGD, Gibbs, LFLClassifier, LFLClassifierCV, LFLLinkWalk
from dyads.estimators import callbacks
from shop import X, Y

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn below 1.9 has no callbacks")
pytestmark = pytest.mark.filterwarnings("ignore:The chains have not mixed")


class Recorder:
    """What a callback is told, in order; it asks to stop after `stop` iterations."""

    def __init__(self, stop=None):
        self.stop, self.told, self.planned, self.scores = stop, [], None, []

    def setup(self, estimator, context):
        self.told.append("setup")
        self.planned = context.max_subtasks

    def on_fit_task_begin(self, estimator, context):
        if context.parent is None:
            self.told.append("begin")

    def on_fit_task_end(self, estimator, context, *, X, y, fitted_estimator):
        self.told.append(context.task_name)
        if fitted_estimator is not None:
            self.scores.append(fitted_estimator.score(X, y))
        return self.told.count("iteration") == self.stop

    def teardown(self, estimator, context):
        self.told.append("teardown")


def told_of(model, *data):
    recorder = Recorder()
    model.set_callbacks(recorder).fit(*data)
    return recorder, recorder.told.count("iteration")


@pytest.mark.parametrize(
    ("solver", "n_init", "planned"), [(SGD(3), 2, 6), (Gibbs(sweeps=4, chains=2), 1, 8), ("point", 1, None)], ids=str
)
def test_every_iteration_is_a_task_of_the_fit(solver, n_init, planned):
    model = LFLClassifier(rank=1, l2=None if planned == 8 else 1.0, solver=solver, n_init=n_init, random_state=0)
    recorder, n = told_of(model, X, Y)
    assert recorder.planned == planned
    assert n == len(model.trace_["iteration"]) >= (planned or 1)
    assert recorder.told == ["setup", "begin", *["iteration"] * n, "fit", "teardown"]
    assert recorder.scores == [model.score(X, Y)], "a callback may score the model once it is fitted"


def test_they_stand_beside_the_callback_of_fit_and_either_stops_it():
    model, steps = LFLClassifier(rank=1, solver=SGD(5), l2=1.0, random_state=0), []
    model.set_callbacks(Recorder(stop=2)).fit(X, Y, callback=steps.append)
    assert model.n_iter_ == len(steps) == 2
    model.set_callbacks(Recorder()).fit(X, Y, callback=lambda step: step.iteration == 3)
    assert model.n_iter_ == 3


def test_they_are_torn_down_when_a_fit_fails_and_the_fits_of_a_search_do_not_call_them():
    recorder = Recorder()
    with pytest.raises(ValueError, match="missing"):
        LFLClassifier(rank=1).set_callbacks(recorder).fit(X, np.where(Y == "yes", None, Y))
    chosen, n = told_of(LFLClassifier(rank=1, solver=SGD(3), l2=None, random_state=0), X, Y)
    assert (chosen.planned, n) == (3, 3), "not those of the fits that choose the penalty"


def test_a_search_reports_its_fits():
    model = LFLClassifierCV(0, solver=SGD(2), grid={"l2__bias": [1.0, 10.0]}, cv=2, random_state=0)
    recorder, n = told_of(model, X, Y)
    assert recorder.planned >= n > 1
    assert recorder.told[-2:] == ["fit", "teardown"]


def test_a_pipeline_passes_them_on():
    recorder = Recorder()
    model = LFLClassifier(rank=1, solver=SGD(2), l2=1.0).set_callbacks(recorder)
    make_pipeline(FunctionTransformer(), model).fit(X, Y)
    assert recorder.told.count("iteration") == 2


def test_a_stack_reports_its_first_part():
    rng = np.random.default_rng(0)
    pairs = np.array([(i, j) for i in range(20) for j in range(i)])
    recorder, n = told_of(LFLLinkWalk(n_models=1, rank=1, random_state=0), pairs, rng.integers(0, 2, len(pairs)))
    assert n > 0
    assert recorder.told[-2:] == ["fit", "teardown"]


def test_the_progress_bar_of_scikit_learn_shows_the_fit(capsys):
    LFLClassifier(rank=1, solver=SGD(2), l2=1.0).set_callbacks(callback.ProgressBar()).fit(X, Y)
    assert "LFLClassifier - fit" in capsys.readouterr().out


def test_a_warning_of_a_fit_points_to_its_caller():
    with pytest.warns(UserWarning, match="have not mixed") as caught:
        LFLClassifier(rank=1, solver=Gibbs(sweeps=4)).fit(X, Y)
    assert {warning.filename for warning in caught} == {__file__}


def test_there_are_none_below_scikit_learn_1_9(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)
    below = runpy.run_path(callbacks.__file__)
    assert not hasattr(below["CallbackSupportMixin"], "set_callbacks")
    assert below["with_callbacks"](len) is len
    with below["reported"](LFLClassifier(), X, Y, None, print) as report:
        assert report is print
