"""Pictures: on axes that are given, of what was asked for, and a sentence for what cannot be drawn."""

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


def test_pictures_take_axes_and_return_them(store):
    model, test = store
    matrix = np.kron(np.eye(3), np.ones((4, 4)))
    for draw in (
        lambda ax: report.reliability_from_estimator(ax, model, test.X, test.y),
        lambda ax: report.confusion_from_estimator(ax, model, test.X, test.y),
        lambda ax: report.plot_latent_map(ax, model),
        lambda ax: report.plot_ordered_matrix(ax, matrix, np.repeat(["a", "b", "c"], 4)),
        lambda ax: report.plot_images(ax, {"first": np.zeros((2, 4, 4)), "second": np.ones((2, 4, 4))}),
    ):
        ax = Figure().subplots()
        assert draw(ax) is ax
    confusion = report.confusion_from_estimator(Figure().subplots(), model, test.X, test.y)
    assert sum(int(text.get_text().replace(",", "")) for text in confusion.texts) == len(test.y)
    blocks = report.plot_ordered_matrix(Figure().subplots(), matrix[:, ::-1][::-1], np.repeat([2, 1, 0], 4))
    np.testing.assert_array_equal(np.asarray(blocks.images[0].get_array()), matrix)


def test_a_call_with_the_arguments_of_the_other_function_names_that_function(store):
    model, test = store
    ax, proba, predicted = Figure().subplots(), model.predict_proba(test.X), model.predict(test.X)
    wrong = {
        "reliability_from_estimator(ax, model, X, y)": [
            lambda: report.plot_reliability(ax, model, test.X, test.y),
            lambda: report.plot_reliability(ax, test.y, predicted, model.classes_),
            lambda: report.plot_reliability(ax, np.column_stack(list(test.X.values())), test.y, model.classes_),
        ],
        "confusion_from_estimator(ax, model, X, y)": [
            lambda: report.plot_confusion(ax, model, test.X, test.y),
            lambda: report.plot_confusion(ax, test.y, proba, model.classes_),
        ],
        "plot_reliability(ax, y, proba, classes)": [
            lambda: report.reliability_from_estimator(ax, test.y, proba, model.classes_)
        ],
        "plot_confusion(ax, y, predicted, classes)": [
            lambda: report.confusion_from_estimator(ax, test.y, predicted, model.classes_)
        ],
        "expected matplotlib axes": [lambda: report.plot_reliability(test.y, proba, model.classes_, None)],
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
    for draw in (report.reliability_from_estimator, report.confusion_from_estimator):
        weighted = draw(Figure().subplots(), model, test.X, test.y, weight)
        repeated = draw(Figure().subplots(), model, many, test.y[again])
        assert [text.get_text() for text in weighted.texts] == [text.get_text() for text in repeated.texts]
        for line, other in zip(weighted.lines, repeated.lines, strict=True):
            np.testing.assert_allclose(line.get_xydata(), other.get_xydata())
    assert "summed weights" in weighted.get_title()
    assert "numbers of pairs" in repeated.get_title()


def test_every_label_is_in_the_legend():
    labels = ["_hidden", "$x$", "a label that is much too long for any legend", "\n"]
    ax = report.plot_reliability(Figure().subplots(), np.repeat(labels, 20), np.full((80, 4), 0.25), labels)
    shown = [text.get_text().strip() for text in ax.get_legend().get_texts()[1:]]
    assert shown == ["_hidden", "$x$", "a label that is much to…", "\N{REPLACEMENT CHARACTER}"]


def test_names_on_a_map_stay_within_it(store):
    model, _ = store
    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = report.plot_latent_map(figure.subplots(), model)
    figure.draw_without_rendering()
    frame, boxes = ax.get_window_extent(), [text.get_window_extent() for text in ax.texts]
    assert len(boxes) > 5
    assert all(box.x0 >= frame.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(box.overlaps(other) for k, box in enumerate(boxes) for other in boxes[:k])


def test_an_explanation_is_titled_by_its_pair(store):
    model, test = store
    table = model.explain({name: column[:2] for name, column in test.X.items()})
    title = report.plot_explanation(Figure().subplots(), table, 1).get_title()
    assert title.endswith(f"for shopper {test.X['shopper'][1]} × product {test.X['product'][1]}")
