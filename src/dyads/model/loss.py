"""Losses: scores and a label -> a value and its gradient with respect to the scores. A loss never sees parameters.

Probabilities are the softmax of the scores, p_y = exp(s_y) / sum_z exp(s_z). Ordered losses compare the label's
numeric value v_y with the expected value m = sum_y p_y v_y, whose derivative is d m / d s_y = p_y (v_y - m).

Kernels: `evaluate` returns the value and WRITES g = d value / d s. `curvature` does the same and also WRITES C, a
positive semi-definite approximation of the Hessian in the scores. For the log loss, which is convex, C is the Hessian.
Otherwise it is the Gauss-Newton term J^T H J, with H replaced by an upper bound on the outer loss's second derivative.
`structure` says what a kernel is.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import log_softmax, softmax

from dyads.metrics import LEAST_PROBABILITY

Array = np.ndarray[Any, Any]


class Loss(Protocol):
    """The interface of a loss; see `Log`.

    Attributes
    ----------
    ordered : whether the loss needs labels with numeric values
    smooth : whether its derivative is continuous, as quasi-Newton solvers require
    likelihood : whether it is the negative log-probability of the label, as posterior sampling requires
    """

    @property
    def smooth(self) -> bool: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def likelihood(self) -> bool: ...

    def bind(self, values: Array) -> "Loss":
        """Return this loss for labels with these numeric values (n_labels,)."""
        ...

    def decide(self, proba: Array, values: Array) -> Array:
        """Return the codes (n,) of the ordered labels to predict: the decision rule that matches this loss.

        `proba` : (n, n_labels), `values` : (n_labels,).
        """
        ...

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        """Return the loss and WRITE g = d value / d s."""
        ...

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        """Return the loss and WRITE g and the curvature C."""
        ...


class Log(NamedTuple):
    """The negative conditional log-likelihood, -log p_label. Proper. Menon & Elkan 2010, section 3.4."""

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
    """The Brier score, sum_y (p_y - [y = label])^2. Proper. Menon & Elkan 2010, section 3.4."""

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
        # C = 2 P^T P with P = d p / d s = diag(p) - p p^T, so that
        # (P^T P)_yz = p_y p_z (|p|^2 - p_y - p_z) + [y = z] p_y^2.
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
    """The squared error of the expected value, (v_label - m)^2. Not proper: probabilities need calibration."""

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
    """The absolute error of the expected value, |v_label - m|, smoothed near zero. Menon & Elkan 2010, section 3.5.

        value = sqrt(e^2 + d^2) - d,    e = m - v_label,

    where d is `delta` times the mean gap between neighbouring label values. The value is quadratic for |e| << d and
    within d of |e| everywhere. ``delta=0`` is |e| itself, which is not smooth. Not proper: probabilities need
    calibration.
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
        # The second derivative of the quadratic that touches the loss here and bounds it from above.
        _outer(g, 1 / math.sqrt(error * error + self.delta * self.delta), C)
        return evaluate(self, label, s, g)


class Hinge(NamedTuple):
    """The all-threshold hinge of MMMF on the expected value. Menon & Elkan 2010, section 3.5; Rennie & Srebro 2005.

        value = sum_l hinge(t_l (m - theta_l) / margin_l)
        hinge(z) = 1/2 - z for z <= 0,    (1 - z)^2 / 2 for 0 < z < 1,    0 for z >= 1

    Threshold theta_l is the midpoint of two neighbouring label values; t_l is 1 if the label lies above it and -1
    otherwise. The margin of a threshold is its distance to the nearest label value: m never leaves the range of the
    values, so a larger margin could not be reached for the first and the last label. Not proper: probabilities need
    calibration.

    Attributes
    ----------
    values : (n_labels,) label values
    thresholds, margins : (n_labels - 1,) each
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
            sign = 1 if self.values[label] > self.thresholds[i] else -1
            z = sign * (mean - self.thresholds[i]) / self.margins[i]
            value += _hinge(z)
            slope += sign * _hinge_slope(z) / self.margins[i]
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
    """The all-threshold hinge of maximum-margin matrix factorisation (MMMF). Rennie & Srebro 2005.

        value = sum_{l >= 1} hinge(t_l s_l),    t_l = 1 if label >= l, else -1

    s_l is the score of a label of at least l. s_0, the score of the reference, is not used. This loss yields no
    probabilities: only `dyads.estimators.baselines.MMMF` uses it, and estimators do not accept it as `loss`.
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
        """Return the number of positive scores as the code (n,); here `proba` holds scores (n, n_labels - 1)."""
        return np.asarray((proba > 0).sum(axis=1))

    def evaluate(self, label: int, s: Array, g: Array) -> float:
        value = s[0] * 0
        g[0] = 0
        for y in range(1, s.size):
            sign = 1 if label >= y else -1
            value += _hinge(sign * s[y])
            g[y] = sign * _hinge_slope(sign * s[y])
        return float(value)

    def curvature(self, label: int, s: Array, g: Array, C: Array) -> float:
        # One wherever the hinge is positive: an upper bound on its second derivative.
        for y in range(s.size):
            for z in range(s.size):
                C[y, z] = 0
            if y > 0 and s[y] * (1 if label >= y else -1) < 1:
                C[y, y] = 1
        return evaluate(self, label, s, g)


def evaluate(spec: Loss, label: int, s: Array, g: Array) -> float:
    """Return the loss of one dyad and WRITE g = d value / d s; s, g : (n_labels,)."""
    return spec.evaluate(label, s, g)


def curvature(spec: Loss, label: int, s: Array, g: Array, C: Array) -> float:
    """Like `evaluate`; also WRITE C (n_labels, n_labels), the curvature of the loss in the scores."""
    return spec.curvature(label, s, g, C)


def _hinge(z: Any) -> Any:
    """The smooth hinge: 1/2 - z below zero, (1 - z)^2 / 2 up to one, and zero above."""
    if z <= 0:
        return 0.5 - z
    return (1 - z) * (1 - z) / 2 if z < 1 else z * 0


def _hinge_slope(z: Any) -> Any:
    """The derivative of the smooth hinge."""
    if z <= 0:
        return z * 0 - 1
    return z - 1 if z < 1 else z * 0


def _softmax(s: Array, p: Array) -> Any:
    """WRITE p = softmax(s) and return log sum_y exp(s_y)."""
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
    """Replace the probabilities p by d m / d s_y = p_y (v_y - m), in place; return m."""
    mean = p[0] * values[0]
    for y in range(1, p.size):
        mean += p[y] * values[y]
    for y in range(p.size):
        p[y] *= values[y] - mean
    return mean


def expected(values: Array, s: Array, p: Array) -> Any:
    """Return the expected value sum_y p_y values_y with p = softmax(s); p is scratch. A kernel."""
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
    """WRITE s = log(total / n), the scores of the mean of n probability vectors that sum to `total`. A kernel."""
    for y in range(s.size):
        s[y] = math.log(max(total[y] / n, LEAST_PROBABILITY))


def _softmax_slope(p: Array, C: Array) -> None:
    """WRITE C = d p / d s = diag(p) - p p^T."""
    _outer(p, -1, C)
    for y in range(p.size):
        C[y, y] += p[y]


def _outer(x: Array, factor: Any, C: Array) -> None:
    """WRITE C = factor x x^T."""
    for y in range(x.size):
        for z in range(x.size):
            C[y, z] = factor * x[y] * x[z]


def link(scores: Array) -> Array:
    """Turn scores (n, n_labels) into probabilities (n, n_labels), in double precision."""
    result: Array = softmax(scores.astype(np.float64, copy=False), axis=1)
    return result


def log_link(scores: Array) -> Array:
    """Turn scores (n, n_labels) into log-probabilities (n, n_labels), without underflow."""
    result: Array = log_softmax(scores.astype(np.float64, copy=False), axis=1)
    return result


def mode(proba: Array) -> Array:
    """Return the code of the most probable label (n,)."""
    return np.asarray(np.argmax(proba, axis=1))


def median(proba: Array) -> Array:
    """Return the code of the median label (n,): the first whose cumulative probability reaches one half."""
    return np.asarray(np.argmax(np.cumsum(proba, axis=1) >= 0.5, axis=1))


def nearest_mean(proba: Array, values: Array) -> Array:
    """Return the code of the label whose value is nearest to the expected value (n,)."""
    return np.asarray(np.argmin(np.abs((proba @ values)[:, None] - values), axis=1))


def least_cost(proba: Array, cost: Array) -> Array:
    """Return the code of the label with the least expected cost (n,), for cost[true, predicted]."""
    return np.asarray(np.argmin(proba @ cost, axis=1))


LOSSES: dict[str, Any] = {
    "log": Log,
    "brier": Brier,
    "absolute": Absolute,
    "squared": Squared,
    "hinge": Hinge,
}
"""Losses by the names that users give."""

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
"""Kernels shared by all losses; an engine compiles them as they are."""

DISPATCHED = (evaluate, curvature)
"""Kernels that each loss implements; an engine resolves them by the type of ``spec``."""
