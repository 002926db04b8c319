"""Losses: scores and a label -> a value and its derivative in score space. A loss never sees parameters.

Probabilities are the softmax of the scores, p_y = exp(s_y) / sum_z exp(s_z). Ordered losses compare the label's
numeric value v_y with the expected value m = sum_y p_y v_y, whose derivative is d m / d s_y = p_y (v_y - m).

Kernels: `evaluate` returns the value and WRITES g = d value / d s; `curvature` does that and WRITES C, a positive
semi-definite stand-in for the second derivative: that itself for the log loss, which is convex, and of the others the
part that comes of the probabilities' slopes alone (Gauss-Newton), with the steepest curvature of what they are compared
by. See `structure` for what a kernel is.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import log_softmax, softmax

from dyads.metrics import LEAST_PROBABILITY

Array = np.ndarray[Any, Any]


class Loss(Protocol):
    """What a loss provides; see `Log`.

    Attributes
    ----------
    ordered : whether it needs labels with numeric values
    smooth : whether its derivative is continuous, which quasi-Newton solvers need
    likelihood : whether it is minus the log of the label's probability, which a posterior needs
    """

    @property
    def smooth(self) -> bool: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def likelihood(self) -> bool: ...

    def bind(self, values: Array) -> "Loss":
        """Return this loss for labels with the given numeric values."""
        ...

    def decide(self, proba: Array, values: Array) -> Array:
        """The code of the ordered label to predict: the one this loss trains the model for."""
        ...

    def evaluate(self, label: int, s: Array, g: Array) -> float: ...
    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float: ...


class Log(NamedTuple):
    """The negative conditional log-likelihood, -log p_label; proper. Section 3.4."""

    @property
    def ordered(self) -> bool:
        return False

    @property
    def smooth(self) -> bool:
        return True

    @property
    def likelihood(self) -> bool:
        return True

    def bind(self, values: Array) -> "Log":
        return self

    def decide(self, proba: Array, values: Array) -> Array:
        return median(proba)

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        value: float = _softmax(s, g) - s[label]
        g[label] -= 1
        return value

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        value: float = _softmax(s, g) - s[label]
        _softmax_slope(g, C)
        g[label] -= 1
        return value


class Brier(NamedTuple):
    """The squared loss over the label's indicator, sum_y (p_y - [y = label])^2; proper. Section 3.4."""

    @property
    def ordered(self) -> bool:
        return False

    @property
    def smooth(self) -> bool:
        return True

    @property
    def likelihood(self) -> bool:
        return False

    def bind(self, values: Array) -> "Brier":
        return self

    def decide(self, proba: Array, values: Array) -> Array:
        return median(proba)

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        _softmax(s, g)
        # With e = p - indicator: value = |e|^2 and d value / d s_y = 2 p_y (e_y - p.e).
        value = g[label] * 0
        projection = g[label] * 0
        for y in range(s.size):
            e = g[y] - (y == label)
            value += e * e
            projection += e * g[y]
        for y in range(s.size):
            g[y] *= 2 * (g[y] - (y == label) - projection)
        return float(value)

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        # 2 P^T P with P = d p / d s = diag(p) - p p^T, whose square is p_y (p_y + |p|^2) less the rest.
        _softmax(s, g)
        square = g[0] * g[0]
        for y in range(1, g.size):
            square += g[y] * g[y]
        for y in range(g.size):
            for z in range(g.size):
                C[y, z] = 2 * g[y] * g[z] * (square - g[y] - g[z])
            C[y, y] += 2 * g[y] * g[y]
        return evaluate(self, label, s, g)


class Squared(NamedTuple):
    """The squared error of the expected label, (v_label - m)^2. Not proper: probabilities need calibration."""

    values: Any = None

    @property
    def ordered(self) -> bool:
        return True

    @property
    def smooth(self) -> bool:
        return True

    @property
    def likelihood(self) -> bool:
        return False

    def bind(self, values: Array) -> "Squared":
        return Squared(values)

    def decide(self, proba: Array, values: Array) -> Array:
        return nearest_mean(proba, values)

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        _softmax(s, g)
        mean = _mean_derivative(self.values, g)
        error = mean - self.values[label]
        for y in range(s.size):
            g[y] *= 2 * error
        return float(error * error)

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        _softmax(s, g)
        _mean_derivative(self.values, g)
        _outer(g, 2, C)
        return evaluate(self, label, s, g)


class Absolute(NamedTuple):
    """The absolute error of the expected label, |v_label - m|, smoothed near zero. Section 3.5.

    value = sqrt(e^2 + d^2) - d with e = m - v_label and d = `delta` times the mean gap between neighbouring label
    values: quadratic for |e| << d, within d of |e| everywhere. ``delta=0`` is |e| itself, which is not smooth.
    Not proper: probabilities need calibration.
    """

    delta: float = 0.1
    values: Any = None

    @property
    def ordered(self) -> bool:
        return True

    @property
    def smooth(self) -> bool:
        return self.delta > 0

    @property
    def likelihood(self) -> bool:
        return False

    def bind(self, values: Array) -> "Absolute":
        gap = (values.max() - values.min()) / (len(values) - 1)
        return Absolute(self.delta * float(gap), values)

    def decide(self, proba: Array, values: Array) -> Array:
        return nearest_mean(proba, values)

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        _softmax(s, g)
        mean = _mean_derivative(self.values, g)
        error = mean - self.values[label]
        size = math.sqrt(error * error + self.delta * self.delta)
        slope = error / size if size > 0 else size
        for y in range(s.size):
            g[y] *= slope
        return size - self.delta

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        _softmax(s, g)
        error = _mean_derivative(self.values, g) - self.values[label]
        # The parabola through the value with its slope that lies above: steeper than the second derivative.
        _outer(g, 1 / math.sqrt(error * error + self.delta * self.delta), C)
        return evaluate(self, label, s, g)


class Hinge(NamedTuple):
    """The all-threshold hinge of MMMF on the expected label. Section 3.5; Rennie & Srebro 2005.

        value = sum_l hinge(t_l (m - theta_l) / margin_l),    hinge(z) smooth: 1/2 - z, (1 - z)^2 / 2, 0

    with a threshold theta_l at the midpoint of each two neighbouring label values and t_l = 1 if the label lies above
    it, else -1. m cannot leave the range of the values, so the margin of a threshold is its distance to the nearest of
    them: that one can always be had, at the end labels too. Not proper: probabilities need calibration.
    """

    values: Any = None
    thresholds: Any = None
    margins: Any = None

    @property
    def ordered(self) -> bool:
        return True

    @property
    def smooth(self) -> bool:
        return True

    @property
    def likelihood(self) -> bool:
        return False

    def bind(self, values: Array) -> "Hinge":
        thresholds = (values[1:] + values[:-1]) / 2
        return Hinge(values, thresholds, (values[1:] - values[:-1]) / 2)

    def decide(self, proba: Array, values: Array) -> Array:
        return nearest_mean(proba, values)

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        _softmax(s, g)
        mean = _mean_derivative(self.values, g)
        value = g[0] * 0
        slope = g[0] * 0
        for i in range(self.thresholds.size):
            side = 1 if self.values[label] > self.thresholds[i] else -1
            z = side * (mean - self.thresholds[i]) / self.margins[i]
            value += _hinge(z)
            slope += side * _hinge_slope(z) / self.margins[i]
        for y in range(s.size):
            g[y] *= slope
        return float(value)

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        _softmax(s, g)
        _mean_derivative(self.values, g)
        steepest = self.margins[0] * 0
        for i in range(self.margins.size):
            steepest += 1 / (self.margins[i] * self.margins[i])
        _outer(g, steepest, C)
        return evaluate(self, label, s, g)


class AllThreshold(NamedTuple):
    """The all-threshold hinge of maximum-margin matrix factorisation itself. Rennie & Srebro 2005.

        value = sum_{l >= 1} hinge(t_l s_l),    t_l = 1 if label >= l, else -1,

    where s_l is the score of lying at or above label l, and s_0, the reference's, is no score. There are no
    probabilities: this loss is that of `dyads.estimators.baselines.MMMF`, and no estimator's `loss`.
    """

    @property
    def ordered(self) -> bool:
        return True

    @property
    def smooth(self) -> bool:
        return True

    @property
    def likelihood(self) -> bool:
        return False

    def bind(self, values: Array) -> "AllThreshold":
        return self

    def decide(self, proba: Array, values: Array) -> Array:
        """The code of the label above as many thresholds as scores (n, n_labels - 1), the `proba`, are positive."""
        return np.asarray((proba > 0).sum(axis=1))

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        value = s[0] * 0
        g[0] = 0
        for y in range(1, s.size):
            side = 1 if label >= y else -1
            value += _hinge(side * s[y])
            g[y] = side * _hinge_slope(side * s[y])
        return float(value)

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        # One wherever the hinge bends, or is still to be climbed: never less than the second derivative.
        for y in range(s.size):
            for z in range(s.size):
                C[y, z] = 0
            if y > 0 and s[y] * (1 if label >= y else -1) < 1:
                C[y, y] = 1
        return evaluate(self, label, s, g)


def evaluate(spec: Loss, label: int, s: Array, g: Array) -> float:
    """Return the loss of one dyad and write g = d value / d s; s, g : (n_labels,)."""
    return spec.evaluate(label, s, g)


def curvature(spec: Loss, label: int, s: Array, g: Array, C: Array) -> float:
    """Evaluate, and write the curvature C (n_labels, n_labels) of the loss of one dyad in its scores too."""
    return spec.curvature(label, s, g, C)


def _hinge(z: Any) -> Any:
    """The smooth hinge: 1/2 - z below zero, (1 - z)^2 / 2 up to one, and zero above."""
    if z <= 0:
        return 0.5 - z
    return (1 - z) * (1 - z) / 2 if z < 1 else z * 0


def _hinge_slope(z: Any) -> Any:
    """d / d z of the smooth hinge."""
    if z <= 0:
        return z * 0 - 1
    return z - 1 if z < 1 else z * 0


def _softmax(s: Array, p: Array) -> Any:
    """Write p = softmax(s) and return log sum_y exp(s_y)."""
    top = s[0]
    for y in range(1, s.size):
        top = max(top, s[y])
    p[0] = math.exp(s[0] - top)
    total = p[0]
    for y in range(1, s.size):
        p[y] = math.exp(s[y] - top)
        total += p[y]
    for y in range(s.size):
        p[y] /= total
    return top + math.log(total)


def _mean_derivative(values: Any, p: Array) -> Any:
    """Turn probabilities p in place into d m / d s_y = p_y (v_y - m) and return m."""
    mean = p[0] * values[0]
    for y in range(1, p.size):
        mean += p[y] * values[y]
    for y in range(p.size):
        p[y] *= values[y] - mean
    return mean


def expected(values: Array, s: Array, p: Array) -> Any:
    """The expected value sum_y p_y values_y of the label with scores s; p is scratch. A kernel."""
    _softmax(s, p)
    total = p[0] * values[0]
    for y in range(1, s.size):
        total += p[y] * values[y]
    return total


def add_probabilities(s: Array, p: Array, total: Array) -> None:
    """total += softmax(s); p is scratch. A kernel."""
    _softmax(s, p)
    for y in range(s.size):
        total[y] += p[y]


def log_mean(total: Array, n: int, s: Array) -> None:
    """Write s = log(total / n), the scores of mean probabilities. A kernel."""
    for y in range(s.size):
        s[y] = math.log(max(total[y] / n, LEAST_PROBABILITY))


def _softmax_slope(p: Array, C: Array) -> None:
    """Write C = d p / d s = diag(p) - p p^T."""
    _outer(p, -1, C)
    for y in range(p.size):
        C[y, y] += p[y]


def _outer(x: Array, factor: Any, C: Array) -> None:
    """Write C = factor x x^T."""
    for y in range(x.size):
        for z in range(x.size):
            C[y, z] = factor * x[y] * x[z]


def link(scores: Array) -> Array:
    """Turn scores (n, n_labels) into probabilities (n, n_labels), in double precision."""
    result: Array = softmax(scores.astype(np.float64, copy=False), axis=1)
    return result


def log_link(scores: Array) -> Array:
    """The log of the probabilities of scores (n, n_labels), however small these are."""
    result: Array = log_softmax(scores.astype(np.float64, copy=False), axis=1)
    return result


def mode(proba: Array) -> Array:
    """The code of the most probable label (n,)."""
    return np.asarray(np.argmax(proba, axis=1))


def median(proba: Array) -> Array:
    """The code of the first label at which the cumulated probability reaches one half (n,)."""
    return np.asarray(np.argmax(np.cumsum(proba, axis=1) >= 0.5, axis=1))


def nearest_mean(proba: Array, values: Array) -> Array:
    """The code of the label whose value is nearest the expected value (n,)."""
    return np.asarray(np.argmin(np.abs((proba @ values)[:, None] - values), axis=1))


def least_cost(proba: Array, cost: Array) -> Array:
    """The code of the label of least expected cost (n,), for cost[true, predicted]."""
    return np.asarray(np.argmin(proba @ cost, axis=1))


LOSSES: dict[str, Any] = {
    "log": Log,
    "brier": Brier,
    "absolute": Absolute,
    "squared": Squared,
    "hinge": Hinge,
}

COMPOSED = (
    _hinge,
    _hinge_slope,
    _softmax,
    _mean_derivative,
    expected,
    add_probabilities,
    log_mean,
    _softmax_slope,
    _outer,
)
DISPATCHED = (evaluate, curvature)
