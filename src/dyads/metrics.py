"""Metrics: arrays -> numbers. They know no model.

`y` : (n,) true labels; `proba` : (n, n_labels) predicted probabilities; `classes` : (n_labels,) the labels of its
columns, sorted; `predicted` : (n,) predicted labels or values; `sample_weight` : (n,) or None.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import metrics as sk

from dyads.errors import InputError

Array = np.ndarray[Any, Any]
Weights = npt.ArrayLike | None

BINS = 15


def accuracy(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Share of labels predicted exactly."""
    return float(sk.accuracy_score(y, predicted, sample_weight=sample_weight))


def zero_one_error(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Share of labels not predicted exactly."""
    return 1.0 - accuracy(y, predicted, sample_weight)


def mean_absolute_error(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Mean of |y - predicted|."""
    return float(sk.mean_absolute_error(y, predicted, sample_weight=sample_weight))


def root_mean_squared_error(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Square root of the mean of (y - predicted)^2."""
    return float(sk.root_mean_squared_error(y, predicted, sample_weight=sample_weight))


def log_loss(y: Any, proba: Any, classes: Any, sample_weight: Weights = None) -> float:
    """Mean of -log p(label), in nats; probabilities below the smallest normal number count as that."""
    proba = np.asarray(proba, dtype=np.float64)
    own = proba[np.arange(len(proba)), _codes(y, classes)]
    return float(np.average(-np.log(np.maximum(own, np.finfo(np.float64).tiny)), weights=sample_weight))


def brier_score(y: Any, proba: Any, classes: Any, sample_weight: Weights = None) -> float:
    """Mean over dyads of sum_y (p_y - [y = label])^2, between 0 and 2."""
    error = np.asarray(proba, dtype=np.float64) - _indicators(y, classes)
    return float(np.average((error**2).sum(axis=1), weights=sample_weight))


def classwise_ece(y: Any, proba: Any, classes: Any, sample_weight: Weights = None, n_bins: int = BINS) -> float:
    """Class-wise expected calibration error: the mean over labels of sum_b share_b |frequency_b - confidence_b|.

    The bins of each label hold equal numbers of dyads (Nixon et al. 2019).
    """
    truth = _indicators(y, classes)
    errors = []
    for label in range(truth.shape[1]):
        confidence, frequency, share = reliability(truth[:, label], np.asarray(proba)[:, label], sample_weight, n_bins)
        errors.append(np.sum(share * np.abs(frequency - confidence)))
    return float(np.mean(errors))


def reliability(
    happened: Any, probability: Any, sample_weight: Weights = None, n_bins: int = BINS
) -> tuple[Array, Array, Array]:
    """Mean predicted probability, observed frequency and share of the weight, in bins of equal numbers of dyads."""
    happened, probability = np.asarray(happened, dtype=np.float64), np.asarray(probability, dtype=np.float64)
    weight = np.ones(len(probability)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    order = np.argsort(probability, kind="stable")
    bins = np.array_split(order, min(n_bins, len(order)))
    confidence = np.array([np.average(probability[index], weights=weight[index]) for index in bins])
    frequency = np.array([np.average(happened[index], weights=weight[index]) for index in bins])
    share = np.array([weight[index].sum() for index in bins]) / weight.sum()
    return confidence, frequency, share


def auc(y: Any, proba: Any, classes: Any, average: str = "macro", sample_weight: Weights = None) -> float:
    """Area under the ROC curve: of the second of two labels, else of each against the rest.

    ``average="macro"`` is the plain mean over the labels for which `y` holds both outcomes, ``"micro"`` takes all
    (dyad, label) pairs together.
    """
    if average not in ("macro", "micro"):
        raise InputError(f"average={average!r} is not known: expected 'macro' or 'micro'.")
    truth, proba = _indicators(y, classes), np.asarray(proba, dtype=np.float64)
    if truth.shape[1] == 2:
        truth, proba = truth[:, 1:], proba[:, 1:]
    if average == "micro":
        weight = None if sample_weight is None else np.repeat(np.asarray(sample_weight), truth.shape[1])
        return float(sk.roc_auc_score(truth.ravel(), proba.ravel(), sample_weight=weight))
    both = [label for label in range(truth.shape[1]) if 0 < truth[:, label].sum() < len(truth)]
    if not both:
        raise InputError("The AUC needs at least two different labels in y: got one. Evaluate on more dyads.")
    return float(np.mean([sk.roc_auc_score(truth[:, i], proba[:, i], sample_weight=sample_weight) for i in both]))


def _codes(y: Any, classes: Any) -> Array:
    y, classes = np.asarray(y), np.asarray(classes)
    codes = np.searchsorted(classes, y).clip(0, len(classes) - 1)
    strange = classes[codes] != y
    if strange.any():
        first = y[strange].tolist()[0]
        raise InputError(
            f"The label {first!r} is not among the classes {classes.tolist()}: expected labels seen in training, "
            "of the same type. Drop these dyads."
        )
    return codes


def _indicators(y: Any, classes: Any) -> Array:
    return np.eye(len(np.asarray(classes)))[_codes(y, classes)]
