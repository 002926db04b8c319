"""Pictures: on axes that are given, of what was asked for, and a sentence for what cannot be drawn."""

import copy
import re

import numpy as np
import pytest

from dyads import LFLClassifier, report
from dyads.datasets.synthetic import make_store
from dyads.errors import InputError

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure


@pytest.fixture(scope="module")
def store():
    train, test = make_store(40, 30, random_state=0).split(0.6)
    return LFLClassifier(rank=2, l2=1.0, random_state=0).fit(train.X, train.y), test


def axes():
    return Figure().subplots()


def test_a_display_draws_on_axes_that_are_given_and_again_on_others(store):
    model, test = store
    for make in (
        lambda ax: report.ReliabilityDisplay.from_estimator(model, test.X, test.y, ax=ax),
        lambda ax: report.ConfusionDisplay.from_estimator(model, test.X, test.y, ax=ax),
        lambda ax: report.TrainingDisplay.from_estimator(model, ax=ax),
        lambda ax: report.MapDisplay.from_estimator(model, ax=ax),
        lambda ax: report.ExplanationDisplay.from_estimator(
            model, {name: column[:2] for name, column in test.X.items()}, dyad=1, ax=ax
        ),
    ):
        first, second = axes(), axes()
        display = make(first)
        assert display.ax_ is first
        assert display.figure_ is first.figure
        assert display.plot(second) is display
        assert display.ax_ is second
        assert [len(ax.texts) for ax in (first, second)] == [len(first.texts)] * 2
        for line, other in zip(first.lines, second.lines, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), other.get_xydata())


def test_without_axes_a_display_makes_a_figure(store, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    shown = report.TrainingDisplay.from_estimator(store[0])
    assert pyplot.gcf() is shown.figure_
    pyplot.close(shown.figure_)


def test_matrices_are_drawn_as_they_are(store):
    model, test = store
    confusion = report.ConfusionDisplay.from_estimator(model, test.X, test.y, ax=axes())
    assert sum(int(text.get_text().replace(",", "")) for text in confusion.ax_.texts) == len(test.y)
    assert confusion.counts.sum() == len(test.y)
    matrix = np.kron(np.eye(3), np.ones((4, 4)))
    blocks = report.plot_ordered_matrix(axes(), matrix[:, ::-1][::-1], np.repeat([2, 1, 0], 4))
    np.testing.assert_array_equal(np.asarray(blocks.images[0].get_array()), matrix)
    ax = axes()
    assert report.plot_images(ax, {"first": np.zeros((2, 4, 4)), "second": np.ones((2, 4, 4))}) is ax


def test_a_display_is_the_same_whatever_the_model_returns(store):
    model, test = store
    frames = copy.copy(model).set_output("pandas")
    plain, other = (
        report.ReliabilityDisplay.from_estimator(each, test.X, test.y, ax=axes()) for each in (model, frames)
    )
    for label in model.classes_:
        np.testing.assert_array_equal(plain.curves[label], other.curves[label])


def test_intervals_are_drawn_of_numbers_of_one_dyad():
    proba, bounds = [0.2, 0.8], [[0.1, 0.3], [0.7, 0.9]]
    display = report.IntervalDisplay.from_predictions(proba, bounds, ["no", "yes"])
    np.testing.assert_array_equal(display.bounds, bounds)
    with pytest.raises(InputError, match="of one dyad"):
        report.IntervalDisplay.from_predictions([proba], [bounds], ["no", "yes"])


def test_a_call_with_the_arguments_of_the_other_method_names_that_method(store):
    model, test = store
    reliability, confusion = report.ReliabilityDisplay, report.ConfusionDisplay
    proba, predicted = model.predict_proba(test.X), model.predict(test.X)
    wrong = {
        "ReliabilityDisplay.from_estimator(model, X, y)": [
            lambda: reliability.from_predictions(model, test.X, test.y),
            lambda: reliability.from_predictions(test.y, predicted, model.classes_),
            lambda: reliability.from_predictions(np.column_stack(list(test.X.values())), test.y, model.classes_),
        ],
        "ConfusionDisplay.from_estimator(model, X, y)": [
            lambda: confusion.from_predictions(model, test.X, test.y),
            lambda: confusion.from_predictions(test.y, proba, model.classes_),
        ],
        "ReliabilityDisplay.from_predictions(y, proba, classes)": [
            lambda: reliability.from_estimator(test.y, proba, model.classes_)
        ],
        "ConfusionDisplay.from_predictions(y, predicted, classes)": [
            lambda: confusion.from_estimator(test.y, predicted, model.classes_)
        ],
        "expected matplotlib axes": [lambda: reliability.from_predictions(test.y, proba, model.classes_, ax=model)],
        "without cv_results_": [lambda: report.SearchDisplay.from_estimator(model)],
        "without trace_": [lambda: report.TrainingDisplay.from_estimator(LFLClassifier())],
    }
    for sentence, calls in wrong.items():
        for call in calls:
            with pytest.raises(InputError, match=re.escape(sentence)):
                call()


def test_a_weight_counts_as_often_as_it_says(store):
    model, test = store
    weight = 1 + np.arange(len(test.y)) % 3
    again = np.repeat(np.arange(len(test.y)), weight)
    many = {name: column[again] for name, column in test.X.items()}
    for display in (report.ReliabilityDisplay, report.ConfusionDisplay):
        weighted = display.from_estimator(model, test.X, test.y, sample_weight=weight, ax=axes()).ax_
        repeated = display.from_estimator(model, many, test.y[again], ax=axes()).ax_
        assert [text.get_text() for text in weighted.texts] == [text.get_text() for text in repeated.texts]
        for line, other in zip(weighted.lines, repeated.lines, strict=True):
            np.testing.assert_allclose(line.get_xydata(), other.get_xydata())
    assert "summed weights" in weighted.get_title()
    assert "numbers of pairs" in repeated.get_title()


def test_every_label_is_in_the_legend():
    labels, proba = ["_hidden", "$x$", "a label that is much too long for any legend", "\n"], np.full((80, 4), 0.25)
    shown = report.ReliabilityDisplay.from_predictions(np.repeat(labels, 20), proba, labels, ax=axes())
    texts = [text.get_text().strip() for text in shown.ax_.get_legend().get_texts()[1:]]
    assert texts == ["_hidden", "$x$", "a label that is much to…", "\N{REPLACEMENT CHARACTER}"]


def test_names_on_a_map_stay_within_it(store):
    model, _ = store
    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = report.MapDisplay.from_estimator(model, ax=figure.subplots()).ax_
    figure.draw_without_rendering()
    frame, boxes = ax.get_window_extent(), [text.get_window_extent() for text in ax.texts]
    assert len(boxes) > 5
    assert all(box.x0 >= frame.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(box.overlaps(other) for k, box in enumerate(boxes) for other in boxes[:k])


def test_an_explanation_is_titled_by_its_pair(store):
    model, test = store
    table = model.explain({name: column[:2] for name, column in test.X.items()})
    title = report.ExplanationDisplay.from_predictions(table, dyad=1, ax=axes()).ax_.get_title()
    assert title.endswith(f"for shopper {test.X['shopper'][1]} × product {test.X['product'][1]}")


def test_a_display_is_shown_by_its_name_alone(store):
    assert len(repr(report.TrainingDisplay.from_estimator(store[0], ax=axes()))) < 100
