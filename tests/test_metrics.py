"""Metrics on data whose answer is visible by eye, and against scikit-learn's."""

import numpy as np
import pytest
from sklearn import metrics as sk

from dyads import metrics
from dyads.errors import InputError

CLASSES = np.array(["a", "b", "c"])


@pytest.fixture
def predictions():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet([1, 1, 1], size=2000)
    code = (rng.random((2000, 1)) > proba.cumsum(axis=1)).sum(axis=1)
    return CLASSES[code], proba, rng.uniform(0.1, 2, 2000)


def test_perfect_predictions():
    y, proba = np.array(["a", "c", "b"]), np.eye(3)[[0, 2, 1]]
    assert metrics.log_loss(y, proba, CLASSES) == 0
    assert metrics.brier_score(y, proba, CLASSES) == 0
    assert metrics.classwise_ece(y, proba, CLASSES) == 0
    assert metrics.auc(y, proba, CLASSES) == metrics.auc(y, proba, CLASSES, average="micro") == 1
    assert metrics.accuracy(y, y) == 1 - metrics.zero_one_error(y, y) == 1


def test_sure_and_wrong_is_finite_but_dear():
    assert 700 < metrics.log_loss(["b"], [[1.0, 0.0, 0.0]], CLASSES) < np.inf
    assert metrics.brier_score(["b"], [[1.0, 0.0, 0.0]], CLASSES) == 2


def test_agreement_with_scikit_learn(predictions):
    y, proba, weight = predictions
    assert metrics.log_loss(y, proba, CLASSES, weight) == pytest.approx(sk.log_loss(y, proba, sample_weight=weight))
    assert metrics.auc(y, proba, CLASSES) == pytest.approx(sk.roc_auc_score(y, proba, multi_class="ovr"))
    assert metrics.auc(y, proba, CLASSES, average="micro") == pytest.approx(
        sk.roc_auc_score(y, proba, multi_class="ovr", average="micro")
    )
    two = (y == "b").astype(int)
    p = np.column_stack([1 - proba[:, 1], proba[:, 1]])
    assert metrics.auc(two, p, [0, 1], sample_weight=weight) == pytest.approx(
        sk.roc_auc_score(two, p[:, 1], sample_weight=weight)
    )


def test_every_metric_of_probabilities_takes_the_same_arguments(predictions):
    y, proba, weight = predictions
    turned = [2, 0, 1]
    for metric in (metrics.log_loss, metrics.brier_score, metrics.classwise_ece, metrics.auc):
        value = metric(y, proba, CLASSES, weight)
        assert value == metric(y, proba, CLASSES, sample_weight=weight) != metric(y, proba, CLASSES)
        assert metric(y, proba[:, turned], CLASSES[turned], weight) == pytest.approx(value), "classes in any order"


def test_errors_of_values():
    assert metrics.mean_absolute_error([1, 2, 3], [1, 3, 5]) == 1
    assert metrics.root_mean_squared_error([1, 2, 3], [1, 3, 5]) == pytest.approx(np.sqrt(5 / 3))
    assert metrics.mean_absolute_error([1, 2, 3], [1, 3, 5], [1, 1, 0]) == 0.5


def test_calibration_error_tells_calibrated_from_overconfident(predictions):
    y, proba, weight = predictions
    sharpened = proba**3 / (proba**3).sum(axis=1, keepdims=True)
    assert metrics.classwise_ece(y, proba, CLASSES) < 0.04
    assert metrics.classwise_ece(y, sharpened, CLASSES) > 0.08
    assert metrics.classwise_ece(y, proba, CLASSES, weight) < 0.05


def test_weights_act_as_repetition(predictions):
    y, proba, _ = predictions
    times = np.random.default_rng(1).integers(1, 4, len(y))
    repeated_y, repeated_p = np.repeat(y, times), np.repeat(proba, times, axis=0)
    for metric in (metrics.log_loss, metrics.brier_score):
        assert metric(y, proba, CLASSES, sample_weight=times) == pytest.approx(metric(repeated_y, repeated_p, CLASSES))


def test_calibration_error_knows_ties_order_and_zero_weights(predictions):
    half = np.full((100, 2), 0.5)
    assert metrics.classwise_ece([0] * 50 + [1] * 50, half, [0, 1]) == 0
    y, proba, weight = predictions
    order = np.random.default_rng(0).permutation(len(y))
    found = metrics.classwise_ece(y, proba.round(2), CLASSES, weight)
    assert metrics.classwise_ece(y[order], proba[order].round(2), CLASSES, weight[order]) == pytest.approx(found)
    times = np.random.default_rng(1).integers(0, 4, len(y))
    repeated = metrics.classwise_ece(np.repeat(y, times), np.repeat(proba, times, axis=0), CLASSES)
    assert metrics.classwise_ece(y, proba, CLASSES, times) == pytest.approx(repeated)


@pytest.mark.parametrize(
    ("y", "proba", "weight"),
    [
        (["a"], [[1, 0]], None),
        (["a", "b"], [[1, 0, 0]], None),
        ([["a"]], [[1, 0, 0]], None),
        ([], np.empty((0, 3)), None),
        (["a"], [[np.nan, 0, 0]], None),
        (["a"], [[5, 0, 0]], None),
        (["a"], [[1, 0, 0]], [-1]),
        (["a"], [[1, 0, 0]], [1, 1]),
        (["a"], [[1, 0, 0]], [0]),
    ],
    ids=str,
)
def test_wrong_shapes_and_values_are_refused(y, proba, weight):
    for metric in (metrics.log_loss, metrics.brier_score, metrics.classwise_ece):
        with pytest.raises(InputError, match="expected"):
            metric(y, proba, CLASSES, weight)


def test_labels_of_another_type_are_no_wrong_predictions():
    with pytest.raises(InputError, match="as text or both as numbers"):
        metrics.accuracy([1, 2], ["1", "2"])
    assert metrics.accuracy(np.array(["a", "b"], object), ["a", "c"]) == 0.5


def test_auc_skips_labels_with_one_outcome_and_refuses_none():
    y, proba = ["a", "b", "a"], [[0.9, 0.1, 0], [0.2, 0.8, 0], [0.7, 0.3, 0]]
    assert metrics.auc(y, proba, CLASSES) == 1
    with pytest.raises(InputError, match="two different labels"):
        metrics.auc(["a", "a"], proba[:2], CLASSES)


def test_auc_takes_whatever_ranks():
    rng = np.random.default_rng(0)
    y, scores = rng.choice(CLASSES, 50), rng.normal(size=(50, 3))
    assert metrics.auc(y, scores, CLASSES) == metrics.auc(y, np.arctan(scores) + 7, CLASSES)
    scores[0, 0] = np.nan
    with pytest.raises(InputError, match="scores hold NaN"):
        metrics.auc(y, scores, CLASSES)


def test_a_label_that_is_no_class_is_named():
    with pytest.raises(InputError, match="'z' is not among"):
        metrics.log_loss(["z"], [[1, 0, 0]], CLASSES)


def test_mixed_chains_have_an_r_hat_of_one_and_drifting_ones_do_not():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(2, 400, 5))
    assert (metrics.r_hat(mixed) < 1.02).all()
    assert (metrics.r_hat(mixed + np.array([0.0, 3.0])[:, None, None]) > 1.5).all(), "chains in two places"
    assert (metrics.r_hat(mixed[:1] + np.linspace(0, 5, 400)[:, None]) > 1.5).all(), "one chain that drifts"
    assert (metrics.r_hat(np.ones((2, 10, 3))) == 1).all()


def test_effective_samples_of_an_autoregression_are_as_in_theory():
    rng = np.random.default_rng(1)
    for correlation in (0.0, 0.5, 0.9):
        x = np.zeros((4, 5000, 3))
        for i in range(1, 5000):
            x[:, i] = correlation * x[:, i - 1] + rng.normal(size=(4, 3))
        expected = 4 * 5000 * (1 - correlation) / (1 + correlation)
        np.testing.assert_allclose(metrics.effective_sample_size(x), expected, rtol=0.25)


def test_a_paired_difference_has_a_weighted_mean_and_its_standard_error():
    losses, others = np.array([1.0, 2.0, 4.0, 4.0]), np.array([1.0, 1.0, 1.0, 1.0])
    mean, error = metrics.paired_difference(losses, others)
    assert mean == pytest.approx(1.75)
    assert error == pytest.approx(np.std(losses - others) / 2)
    weighted = metrics.paired_difference(losses[:3], others[:3], [1, 1, 2])
    assert weighted[0] == pytest.approx(1.75), "a dyad of weight two counts twice"
    assert metrics.paired_difference(losses, losses) == (0, 0)


def test_a_tally_of_batches_has_the_metrics_of_all(monkeypatch):
    rng = np.random.default_rng(0)
    y, weight = rng.integers(0, 3, 900), rng.integers(0, 3, 900).astype(float)
    proba = rng.dirichlet([1, 1, 1], 900).round(2)
    proba /= proba.sum(axis=1, keepdims=True)
    classes = np.arange(3)

    def tallied(most=metrics.MOST_LEVELS):
        monkeypatch.setattr(metrics, "MOST_LEVELS", most)
        tallies = [metrics.Tally(3, ordered=True) for _ in range(2)]
        for number, some in enumerate(np.array_split(np.arange(900), 7)):
            p, truth = proba[some], y[some]
            values = {
                "log_loss": metrics.log_losses(truth, p, classes),
                "brier_score": metrics.brier_scores(truth, p, classes),
                "accuracy": truth == p.argmax(axis=1),
                "mean_absolute_error": np.abs(truth - p.argmax(axis=1)),
                "mean_squared_error": (truth - p @ classes) ** 2,
            }
            tallies[number % 2].add(truth[:, None] == classes, p, values, weight[some])
        tallies[0].join(tallies[1])
        assert tallies[0].n == 900
        return tallies[0].figures()

    label = proba.argmax(axis=1)
    expected = {
        "log_loss": metrics.log_loss(y, proba, classes, weight),
        "brier_score": metrics.brier_score(y, proba, classes, weight),
        "classwise_ece": metrics.classwise_ece(y, proba, classes, weight),
        "auc": metrics.auc(y, proba, classes, weight),
        "accuracy": metrics.accuracy(y, label, weight),
        "mean_absolute_error": metrics.mean_absolute_error(y, label, weight),
        "root_mean_squared_error": metrics.root_mean_squared_error(y, proba @ classes, weight),
    }
    assert tallied() == pytest.approx(expected, rel=1e-12)
    assert list(tallied()) == list(expected)
    empty = metrics.Tally(3, ordered=True).figures()
    assert np.isnan(list(empty.values())).all()


def test_merged_levels_keep_the_metrics_about_the_same():
    rng = np.random.default_rng(0)
    probability = rng.random(20_000)
    happened = (rng.random(20_000) < probability**2).astype(float)
    exact, merged = metrics.Levels(10**6), metrics.Levels(1000)
    for some in np.array_split(np.arange(20_000), 5):
        for levels in (exact, merged):
            levels.add(probability[some], np.ones(len(some)), happened[some])
    assert len(exact.level) == 20_000
    assert 400 < len(merged.level) <= 1000
    assert merged.auc == pytest.approx(exact.auc, abs=1 / 500)
    assert merged.auc != exact.auc
    assert merged.calibration_error(15) == pytest.approx(exact.calibration_error(15), abs=1 / 500)


def test_differences_of_batches_are_those_of_all():
    rng = np.random.default_rng(0)
    losses, others, weight = rng.random((3, 500))
    differences = metrics.Differences()
    for some in np.array_split(np.arange(500), 3):
        differences.add(losses[some], others[some], weight[some])
    assert differences.mean_and_error == pytest.approx(metrics.paired_difference(losses, others, weight), rel=1e-10)
