"""Losses: scores and a label -> a value and its gradient with respect to the scores. A loss never sees parameters.

Probabilities are the softmax of the scores, p_y = exp(s_y) / sum_z exp(s_z). Ordered losses compare the label's
numeric value v_y with the expected value m = sum_y p_y v_y, whose derivative is d m / d s_y = p_y (v_y - m).

Kernels work on a *tile* of n dyads; a single dyad is a tile of one. Dyads are on the last axis of every array, so that
loops over them vectorise; arrays may have room for more than n. `evaluate` WRITES the values and g = d value / d s.
`curvature` also WRITES a positive semi-definite approximation of the Hessian in the scores, in factored form:

    C = diag(diagonal) + sum_r weight_r direction_r direction_r^T.

For the log loss, which is convex, C is the Hessian. Otherwise it is the Gauss-Newton term J^T H J, with H replaced by
an upper bound on the outer loss's second derivative. `structure` says what a kernel is.
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
    n_directions : number of rank-one terms of its curvature
    """

    @property
    def smooth(self) -> bool: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def likelihood(self) -> bool: ...
    @property
    def n_directions(self) -> int: ...

    def bind(self, values: Array) -> "Loss":
        """Return this loss for labels with these numeric values (n_labels,)."""
        ...

    def decide(self, proba: Array, values: Array) -> Array:
        """Return the codes (n,) of the ordered labels to predict: the decision rule that matches this loss.

        `proba` : (n, n_labels), `values` : (n_labels,).
        """
        ...

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        """WRITE the values and g; see `evaluate`."""
        ...

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: "Curvature") -> None:
        """WRITE the values, g and the curvature; see `curvature`."""
        ...


class Curvature(NamedTuple):
    """The curvature of a tile's losses in the scores; see the top of this module.

    Attributes
    ----------
    diagonal : (n_labels, n)
    weight : (n_directions, n)
    direction : (n_directions, n_labels, n)
    """

    diagonal: Any
    weight: Any
    direction: Any


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

    @property
    def n_directions(self) -> int:
        return 1

    def bind(self, values: Array) -> "Log":
        return self

    def decide(self, proba: Array, values: Array) -> Array:
        return median(proba)

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        probabilities(n, s, g, value, total)
        _minus_label(n, label, s, g, value)

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
        probabilities(n, s, g, value, total)
        # C = diag(p) - p p^T.
        for y in range(s.shape[0]):
            for i in range(n):
                C.diagonal[y, i] = g[y, i]
                C.direction[0, y, i] = g[y, i]
        for i in range(n):
            C.weight[0, i] = -1
        _minus_label(n, label, s, g, value)


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

    @property
    def n_directions(self) -> int:
        return 2

    def bind(self, values: Array) -> "Brier":
        return self

    def decide(self, proba: Array, values: Array) -> Array:
        return median(proba)

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        # With e = p - indicator: value = |e|^2 and d value / d s_y = 2 p_y (e_y - p.e).
        probabilities(n, s, g, value, total)
        _squares(n, g, value)
        for i in range(n):
            chance = g[label[i], i]
            total[i] = value[i] - chance
            value[i] += 1 - 2 * chance
        for y in range(s.shape[0]):
            for i in range(n):
                g[y, i] *= 2 * (g[y, i] - (y == label[i]) - total[i])

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
        # C = 2 P^T P with P = d p / d s = diag(p) - p p^T. With q_y = p_y^2 and u = p - q / |p|^2 that is
        # C / 2 = diag(q) + |p|^2 u u^T - q q^T / |p|^2.
        probabilities(n, s, g, value, total)
        _squares(n, g, total)
        for i in range(n):
            C.weight[0, i] = 2 * total[i]
            C.weight[1, i] = -2 / total[i]
        for y in range(s.shape[0]):
            for i in range(n):
                square = g[y, i] * g[y, i]
                C.diagonal[y, i] = 2 * square
                C.direction[0, y, i] = g[y, i] - square / total[i]
                C.direction[1, y, i] = square
        evaluate(self, n, label, s, g, value, total)


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

    @property
    def n_directions(self) -> int:
        return 1

    def bind(self, values: Array) -> "Squared":
        return Squared(values)

    def decide(self, proba: Array, values: Array) -> Array:
        return nearest_mean(proba, values)

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        probabilities(n, s, g, value, total)
        _mean_derivative(n, self.values, g, total)
        for i in range(n):
            total[i] -= self.values[label[i]]
            value[i] = total[i] * total[i]
            total[i] *= 2
        _scale(n, total, g)

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
        probabilities(n, s, g, value, total)
        _mean_derivative(n, self.values, g, total)
        _rank_one(n, g, C)
        for i in range(n):
            C.weight[0, i] = 2
        evaluate(self, n, label, s, g, value, total)


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

    @property
    def n_directions(self) -> int:
        return 1

    def bind(self, values: Array) -> "Absolute":
        gap = (values.max() - values.min()) / (len(values) - 1)
        return Absolute(self.delta * float(gap), values)

    def decide(self, proba: Array, values: Array) -> Array:
        return nearest_mean(proba, values)

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        probabilities(n, s, g, value, total)
        _mean_derivative(n, self.values, g, total)
        for i in range(n):
            error = total[i] - self.values[label[i]]
            size = math.sqrt(error * error + self.delta * self.delta)
            total[i] = error / size if size > 0 else size
            value[i] = size - self.delta
        _scale(n, total, g)

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
        probabilities(n, s, g, value, total)
        _mean_derivative(n, self.values, g, total)
        _rank_one(n, g, C)
        for i in range(n):
            error = total[i] - self.values[label[i]]
            # The second derivative of the quadratic that touches the loss here and bounds it from above.
            C.weight[0, i] = 1 / math.sqrt(error * error + self.delta * self.delta)
        evaluate(self, n, label, s, g, value, total)


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

    @property
    def n_directions(self) -> int:
        return 1

    def bind(self, values: Array) -> "Hinge":
        thresholds = (values[1:] + values[:-1]) / 2
        return Hinge(values, thresholds, (values[1:] - values[:-1]) / 2)

    def decide(self, proba: Array, values: Array) -> Array:
        return nearest_mean(proba, values)

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        probabilities(n, s, g, value, total)
        _mean_derivative(n, self.values, g, total)
        for i in range(n):
            mean = total[i]
            value[i] = 0
            total[i] = 0
            for j in range(self.thresholds.size):
                sign = 1 if self.values[label[i]] > self.thresholds[j] else -1
                z = sign * (mean - self.thresholds[j]) / self.margins[j]
                value[i] += _hinge(z)
                total[i] += sign * _hinge_slope(z) / self.margins[j]
        _scale(n, total, g)

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
        probabilities(n, s, g, value, total)
        _mean_derivative(n, self.values, g, total)
        _rank_one(n, g, C)
        for i in range(n):
            C.weight[0, i] = 0
            for j in range(self.margins.size):
                C.weight[0, i] += 1 / (self.margins[j] * self.margins[j])
        evaluate(self, n, label, s, g, value, total)


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

    @property
    def n_directions(self) -> int:
        return 1

    def bind(self, values: Array) -> "AllThreshold":
        return self

    def decide(self, proba: Array, values: Array) -> Array:
        """Return the number of positive scores as the code (n,); here `proba` holds scores (n, n_labels - 1)."""
        return np.asarray((proba > 0).sum(axis=1))

    def evaluate(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
        for i in range(n):
            value[i] = 0
            g[0, i] = 0
        for y in range(1, s.shape[0]):
            for i in range(n):
                sign = 1 if label[i] >= y else -1
                value[i] += _hinge(sign * s[y, i])
                g[y, i] = sign * _hinge_slope(sign * s[y, i])

    def curvature(self, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
        # One wherever the hinge is positive: an upper bound on its second derivative.
        for i in range(n):
            C.weight[0, i] = 0
        for y in range(s.shape[0]):
            for i in range(n):
                C.diagonal[y, i] = 1 if y > 0 and s[y, i] * (1 if label[i] >= y else -1) < 1 else 0
                C.direction[0, y, i] = 0
        evaluate(self, n, label, s, g, value, total)


def evaluate(spec: Loss, n: int, label: Array, s: Array, g: Array, value: Array, total: Array) -> None:
    """WRITE the losses of a tile and g = d value / d s.

    `label` : (n,), `s`, `g` : (n_labels, n), `value` : (n,), `total` : (n,) scratch.
    """
    spec.evaluate(n, label, s, g, value, total)


def curvature(spec: Loss, n: int, label: Array, s: Array, g: Array, value: Array, total: Array, C: Curvature) -> None:
    """Like `evaluate`; also WRITE the curvature."""
    spec.curvature(n, label, s, g, value, total, C)


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


LOG2_E = 1.4426950408889634

SHIFT, SINGLE_SHIFT = 6755399441055744.0, np.float32(12582912.0)
"""1.5 * 2^52, and 1.5 * 2^23: adding it rounds a number to an integer, which then fills the low bits of the sum."""

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
SINGLE_LN2_HIGH, SINGLE_LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts; the first has so few digits that its product with an exponent is exact."""

LEAST_EXPONENT, SINGLE_LEAST_EXPONENT = -708.0, np.float32(-87)
"""Smaller arguments of `exp` are raised to it: its result is the smallest that is not subnormal."""

TAYLOR = tuple(1 / math.factorial(k) for k in range(12, -1, -1))
SINGLE_TAYLOR = tuple(np.float32(x) for x in TAYLOR[-8:])
"""Coefficients of the Taylor polynomial of the exponential function, the highest power first."""


def exp(x: Any) -> Any:
    """Return exp(x) for x <= 0; smaller than `LEAST_EXPONENT` counts as that.

    x = k ln 2 + r with an integer k and |r| <= ln(2) / 2, so exp(x) = 2^k exp(r): a polynomial of r, times a number
    whose exponent bits are written. Unlike the exponential function of the C library, it vectorises. Its relative error
    is below 1e-15, in single precision below 3e-7.
    """
    return single_exp(x) if isinstance(x, np.float32) else double_exp(x)


def double_exp(x: Any) -> Any:
    """See `exp`."""
    x = np.float64(max(x, LEAST_EXPONENT))
    shifted = np.float64(x * LOG2_E + SHIFT)
    k = shifted - SHIFT
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    polynomial = r * 0
    for coefficient in TAYLOR:
        polynomial = polynomial * r + coefficient
    exponent = np.int64((shifted.view(np.int64) + 1023) << 52)
    return polynomial * exponent.view(np.float64)


def single_exp(x: Any) -> Any:
    """See `exp`."""
    x = max(x, SINGLE_LEAST_EXPONENT)
    shifted = np.float32(x * np.float32(LOG2_E) + SINGLE_SHIFT)
    k = shifted - SINGLE_SHIFT
    r = (x - k * SINGLE_LN2_HIGH) - k * SINGLE_LN2_LOW
    polynomial = r * 0
    for coefficient in SINGLE_TAYLOR:
        polynomial = polynomial * r + coefficient
    exponent = np.int32((shifted.view(np.int32) + 127) << 23)
    return polynomial * exponent.view(np.float32)


def native_exp(x: Any) -> Any:
    """Return exp(x), by the function of the C library or of a device."""
    return math.exp(x)


HALF_ROOT, SINGLE_HALF_ROOT = 0x3FE6A09E667F3BCD, np.int32(0x3F3504F3)
"""The bits of the square root of 1/2."""

ATANH = tuple(2 / (2 * k + 1) for k in range(10, -1, -1))
SINGLE_ATANH = tuple(np.float32(x) for x in ATANH[-5:])
"""Coefficients of the power series of 2 artanh(f) / f in f^2, the highest power first."""


def log(x: Any) -> Any:
    """Return the logarithm of a positive number that is not subnormal; NaN for NaN.

    x = 2^k m with an integer k, read from the exponent bits, and m between the roots of 1/2 and of 2. So log(x) =
    k ln 2 + 2 artanh(f), f = (m - 1) / (m + 1): a polynomial of f. Like `exp`, it vectorises. Its error is below
    1e-15 of 1 + |log(x)|, in single precision below 2e-7 of it.
    """
    return single_log(x) if isinstance(x, np.float32) else double_log(x)


def double_log(x: Any) -> Any:
    """See `log`."""
    bits = np.float64(x).view(np.int64)
    k = np.int64((bits - HALF_ROOT) >> 52)
    m = np.int64(bits - (k << 52)).view(np.float64)
    f = (m - 1.0) / (m + 1.0)
    square = f * f
    polynomial = f * 0
    for coefficient in ATANH:
        polynomial = polynomial * square + coefficient
    # x - x is zero, or NaN.
    return k * LN2_HIGH + (f * polynomial + k * LN2_LOW) + (x - x)


def single_log(x: Any) -> Any:
    """See `log`."""
    bits = np.float32(x).view(np.int32)
    k = np.int32((bits - SINGLE_HALF_ROOT) >> 23)
    m = np.int32(bits - (k << 23)).view(np.float32)
    f = np.float32((m - np.float32(1)) / (m + np.float32(1)))
    square = f * f
    polynomial = f * 0
    for coefficient in SINGLE_ATANH:
        polynomial = polynomial * square + coefficient
    return np.float32(k) * SINGLE_LN2_HIGH + (f * polynomial + np.float32(k) * SINGLE_LN2_LOW) + (x - x)


def native_log(x: Any) -> Any:
    """Return the logarithm, by the function of the C library or of a device."""
    return math.log(x)


def probabilities(n: int, s: Array, p: Array, log_total: Array, total: Array) -> None:
    """WRITE p = softmax(s) and log_total = log sum_y exp(s_y); `total` : (n,) scratch. A kernel."""
    proba(n, s, p, log_total, total)
    for i in range(n):
        log_total[i] -= log(total[i])


def proba(n: int, s: Array, p: Array, largest: Array, share: Array) -> None:
    """WRITE p = softmax(s), the largest score, and its probability. A kernel.

    Without the logarithm of `probabilities`.
    """
    for i in range(n):
        largest[i] = s[0, i]
        share[i] = 0
    for y in range(1, s.shape[0]):
        for i in range(n):
            largest[i] = max(largest[i], s[y, i])
    for y in range(s.shape[0]):
        for i in range(n):
            p[y, i] = exp(s[y, i] - largest[i])
            share[i] += p[y, i]
    for i in range(n):
        # Kernels divide an integer by a number in double precision.
        share[i] = np.float32(1) / share[i]
    _scale(n, share, p)


def log_mean(n: int, total: Array, n_draws: int, s: Array) -> None:
    """WRITE s = log(total / n_draws), the scores of the mean of probabilities that sum to `total`. A kernel."""
    for y in range(s.shape[0]):
        for i in range(n):
            s[y, i] = log(max(total[y, i] / n_draws, LEAST_PROBABILITY))


def _minus_label(n: int, label: Array, s: Array, g: Array, value: Array) -> None:
    """value -= score of the label, and g -= its indicator."""
    for i in range(n):
        value[i] -= s[label[i], i]
        g[label[i], i] -= 1


def _scale(n: int, factor: Array, x: Array) -> None:
    """x *= factor; `factor` : (n,), `x` : (n_labels, n)."""
    for y in range(x.shape[0]):
        for i in range(n):
            x[y, i] *= factor[i]


def _squares(n: int, p: Array, out: Array) -> None:
    """WRITE out = sum_y p_y^2."""
    for i in range(n):
        out[i] = 0
    for y in range(p.shape[0]):
        for i in range(n):
            out[i] += p[y, i] * p[y, i]


def expected(n: int, values: Array, p: Array, mean: Array) -> None:
    """WRITE the expected values sum_y p_y values_y. A kernel."""
    for i in range(n):
        mean[i] = 0
    for y in range(p.shape[0]):
        for i in range(n):
            mean[i] += p[y, i] * values[y]


def _mean_derivative(n: int, values: Any, p: Array, mean: Array) -> None:
    """WRITE the expected values m; replace the probabilities p by d m / d s_y = p_y (v_y - m), in place."""
    expected(n, values, p, mean)
    for y in range(p.shape[0]):
        for i in range(n):
            p[y, i] *= values[y] - mean[i]


def _rank_one(n: int, x: Array, C: Curvature) -> None:
    """WRITE a curvature of rank one with the direction x; its weight, weight[0], is left to the caller."""
    for y in range(x.shape[0]):
        for i in range(n):
            C.diagonal[y, i] = 0
            C.direction[0, y, i] = x[y, i]


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
    _hinge, _hinge_slope, single_exp, double_exp, single_log, double_log, probabilities, proba, log_mean, _minus_label,
    _scale, _squares, expected, _mean_derivative, _rank_one,
)  # fmt: skip
"""Kernels shared by all losses; an engine compiles them as they are."""

DISPATCHED = (evaluate, curvature)
"""Kernels that each loss implements; an engine resolves them by the type of ``spec``."""

BY_PRECISION = ((exp, single_exp, double_exp, native_exp), (log, single_log, double_log, native_log))
"""Kernels with a version for single and one for double precision; an engine resolves them by the type of the number.

Last comes the plain one, for a device on which it is fast.
"""
