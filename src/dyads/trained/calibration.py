"""Calibrators, learnt on held-out dyads, and conformal prediction sets with guaranteed coverage."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from dyads.data.codes import Codes
from dyads.errors import FewDyadsWarning, InputError, caller_level, unknown_name
from dyads.metrics import log_proba
from dyads.model.loss import link, log_link
from dyads.model.record import Calibrator

Array = np.ndarray[Any, Any]

# --------------------------------------------------------------------------------------------------------- calibrators

TEMPERATURES = (0.05, 50.0)
"""Bounds of the search for the temperature: from 20 times sharper to 50 times flatter."""

LEAST_SCALE, LARGEST_WEIGHT = 1e-30, 1e12
"""Least scale and largest weight of a calibrator that is read from a file: far beyond what is learnt, and finite."""


def _check_numbers(
    value: Any, shape: tuple[int, ...], least: float = -LARGEST_WEIGHT, most: float = LARGEST_WEIGHT
) -> None:
    """Raise unless `value` is a number, or an array of numbers of this shape, from `least` to `most`."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf" or numbers.shape != shape:
        raise InputError(f"Got {numbers.dtype} of shape {numbers.shape}: expected numbers of shape {shape}.")
    if not (np.isfinite(numbers).all() and (numbers >= least).all() and (numbers <= most).all()):
        raise InputError(f"Got numbers that are not finite, or out of range: expected {least:g} to {most:g}.")


class Temperature(NamedTuple):
    """Temperature scaling, q_y ∝ exp(log(p_y) / temperature): sharpens or flattens, keeps the order of the labels."""

    temperature: float

    def check(self, n_labels: int) -> None:
        _check_numbers(self.temperature, (), least=TEMPERATURES[0] / 2, most=2 * TEMPERATURES[1])

    def apply(self, proba: Array) -> Array:
        return np.asarray(link(log_proba(proba) / self.temperature))


class Vector(NamedTuple):
    """Vector scaling, q_y ∝ exp(weight_y log(p_y) + bias_y). `weights`, `bias` : (n_labels,)"""

    weights: Any
    bias: Any

    def check(self, n_labels: int) -> None:
        _check_numbers(self.weights, (n_labels,))
        _check_numbers(self.bias, (n_labels,))

    def apply(self, proba: Array) -> Array:
        return np.asarray(link(log_proba(proba) * self.weights + self.bias))


class Logistic(NamedTuple):
    """Multinomial logistic regression on a summary x of the probabilities: q_y ∝ exp(x . coefficients_y + intercept_y).

    For ordered labels x = (z, z^2, z^3) with z = (m - centre) / scale and m the expected label; otherwise x is the log
    probabilities. `values` : (n_labels,) values of ordered labels, or None; `coefficients` : (n_labels, size of x);
    `intercept` : (n_labels,).
    """

    values: Any
    centre: float
    scale: float
    coefficients: Any
    intercept: Any

    def check(self, n_labels: int) -> None:
        _check_numbers(self.centre, (), least=-np.inf, most=np.inf)
        _check_numbers(self.scale, (), least=LEAST_SCALE, most=np.inf)
        if self.values is not None:
            _check_numbers(self.values, (n_labels,), least=-np.inf, most=np.inf)
            with np.errstate(over="ignore"):
                _check_numbers((np.asarray(self.values) - self.centre) / self.scale, (n_labels,))
        _check_numbers(self.coefficients, (n_labels, n_labels if self.values is None else 3))
        _check_numbers(self.intercept, (n_labels,))

    def summary(self, proba: Array) -> Array:
        if self.values is None:
            return log_proba(proba)
        z = (proba @ self.values - self.centre) / self.scale
        return np.stack([z, z**2, z**3], axis=1)

    def apply(self, proba: Array) -> Array:
        return np.asarray(link(self.summary(proba) @ np.asarray(self.coefficients).T + self.intercept))


class Isotonic(NamedTuple):
    """Isotonic regression per label, q_y ∝ f_y(p_y), with f_y nondecreasing and interpolated linearly between knots.

    `x`, `y` : (n_labels, n_knots), the knots of f_y.
    """

    x: Any
    y: Any

    def check(self, n_labels: int) -> None:
        knots = np.shape(self.x)[1:]
        if len(knots) != 1 or not knots[0]:
            raise InputError(f"Got knots of shape {np.shape(self.x)}: expected ({n_labels}, n_knots).")
        _check_numbers(self.x, (n_labels, *knots), least=0, most=1)
        _check_numbers(self.y, (n_labels, *knots), least=np.finfo(np.float64).tiny, most=1)
        if (np.diff(self.x, axis=1) < 0).any():
            raise InputError("Got knots out of order: expected ascending ones.")

    def apply(self, proba: Array) -> Array:
        mapped = np.stack([np.interp(p, x, y) for p, x, y in zip(proba.T, self.x, self.y, strict=True)], axis=1)
        return np.asarray(mapped / mapped.sum(axis=1, keepdims=True))


CALIBRATORS: dict[str, Any] = {
    "logistic": Logistic,
    "vector": Vector,
    "isotonic": Isotonic,
    "temperature": Temperature,
}


# ------------------------------------------------------------------------------------------------------- learning them

KNOTS = 200
"""Number of knots an isotonic curve is stored with: more follow its steps better, and take space in the model file."""

LOG_TEMPERATURE = 2.0
"""Standard deviation of the prior on the log temperature: temperatures from 1/7 to 7 are plausible without data."""

WEAK = 1e-3
"""Least strength of the penalty that keeps a calibrator finite when there are few held-out dyads."""

UNSEEN_COUNT = 0.5
"""Count of a label without held-out dyads, which is rare and not impossible: its odds are about 0.5 / (n + 1)."""

DYADS_PER_PARAMETER = 10
"""Held-out dyads per parameter of a calibrator below which a warning says that they are few."""

PARAMETERS_PER_CURVE = 10
"""Number of parameters that an isotonic curve counts as."""

ROUNDING = 1e-12
"""Slack of the conformal threshold: equal probabilities may be rounded differently."""


def learn_calibrator(method: str, proba: Array, label: Codes, weight: Array | None, values: Array | None) -> Calibrator:
    """Learn a calibrator from held-out probabilities (n, n_labels) and the codes (n,) of the true labels.

    `values` : (n_labels,) values of ordered labels, or None.
    """
    if method not in CALIBRATORS:
        raise unknown_name("method", method, CALIBRATORS)
    n_labels = proba.shape[1]
    per_label = {
        "temperature": 1 / n_labels,
        "vector": 2,
        "logistic": n_labels + 1 if values is None else 4,
        "isotonic": PARAMETERS_PER_CURVE,
    }
    wanted = round(DYADS_PER_PARAMETER * per_label[method] * n_labels)
    if len(label) < wanted:
        warnings.warn(
            f"{n_labels} labels are calibrated on {len(label)} held-out dyads by method={method!r}, where {wanted} or "
            f"more are advised: hold out more{'' if method == 'temperature' else ', or use the method temperature'}.",
            FewDyadsWarning,
            stacklevel=caller_level(),
        )
    weight = np.ones(len(label)) if weight is None else weight
    return LEARNERS[method](proba, label, weight, values)


def _mean_log(scores: Array, label: Codes, weight: Array) -> float:
    """Weighted mean log probability of the true labels."""
    return float(np.average(log_link(scores)[np.arange(len(label)), label], weights=weight))


def _temperature(proba: Array, label: Codes, weight: Array, values: Array | None) -> Temperature:
    logs, total = log_proba(proba), float(weight.sum())

    def cost(t: float) -> float:
        """Log loss, with a normal prior on log t that matters only if there are few dyads."""
        return -_mean_log(logs / t, label, weight) + (math.log(t) / LOG_TEMPERATURE) ** 2 / (2 * total)

    best = minimize_scalar(cost, bounds=TEMPERATURES, method="bounded")
    return Temperature(float(best.x))


def _vector(proba: Array, label: Codes, weight: Array, values: Array | None) -> Vector:
    logs, n = log_proba(proba), proba.shape[1]
    truth, share = np.arange(n) == label[:, None], (weight / weight.sum())[:, None]
    start = np.concatenate([np.ones(n), np.zeros(n)])
    strength = max(WEAK, 1 / (2 * float(weight.sum())))

    def cost_and_gradient(x: Array) -> tuple[float, Array]:
        """Penalised log loss of softmax(weights log p + bias); d loss / d score = softmax(score) - one-hot label."""
        scores, away = logs * x[:n] + x[n:], x - start
        slope = share * (link(scores) - truth)
        gradient = np.concatenate([(slope * logs).sum(axis=0), slope.sum(axis=0)])
        cost = -_mean_log(scores, label, weight) + strength * float(away @ away) / n
        return cost, gradient + 2 * strength / n * away

    best = minimize(cost_and_gradient, start, jac=True, method="L-BFGS-B").x
    return Vector(best[:n], best[n:])


def _logistic(proba: Array, label: Codes, weight: Array, values: Array | None) -> Logistic:
    n = proba.shape[1]
    mean = proba @ values if values is not None else np.zeros(1)
    shape = Logistic(values, float(mean.mean()), float(mean.std()) or 1.0, np.zeros((n, 1)), np.zeros(n))
    summary = shape.summary(proba)
    seen = np.unique(label)
    coefficients, intercept = np.zeros((n, summary.shape[1])), np.full(n, math.log(UNSEEN_COUNT / (weight.sum() + 1)))
    if len(seen) == 1:
        intercept[seen] = 0
        return shape._replace(coefficients=coefficients, intercept=intercept)
    logit = LogisticRegression(C=1 / WEAK, max_iter=2000).fit(summary, label, weight)
    if len(seen) == 2:
        # For two labels, scikit-learn has only the log-odds of the second.
        coefficients[seen], intercept[seen] = [[0.0], [1.0]] * logit.coef_, [0.0, logit.intercept_[0]]
    else:
        coefficients[seen], intercept[seen] = logit.coef_, logit.intercept_
    return shape._replace(coefficients=coefficients, intercept=intercept)


def _isotonic(proba: Array, label: Codes, weight: Array, values: Array | None) -> Isotonic:
    grid = np.linspace(0, 1, KNOTS)
    # A label that was not observed is not impossible: bound its probability away from 0.
    least = 1 / (weight.sum() + 1)
    x, y = [], []
    for code, p in enumerate(proba.T):
        curve = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(p, label == code, weight)
        knots = np.quantile(np.unique(p), grid)
        x.append(knots)
        y.append(curve.predict(knots))
    return Isotonic(np.array(x), np.array(y))


LEARNERS: dict[str, Callable[[Array, Codes, Array, Array | None], Calibrator]] = {
    "temperature": _temperature,
    "vector": _vector,
    "logistic": _logistic,
    "isotonic": _isotonic,
}


def nonconformity(proba: Array, label: Codes) -> Array:
    """Nonconformity scores 1 - p of the true labels, sorted (n,)."""
    return np.sort(1 - proba[np.arange(len(label)), label])


def conformal_sets(proba: Array, nonconformities: Array, coverage: float) -> Array:
    """Split conformal prediction: mask (n, n_labels) of sets that contain the true label with probability `coverage`.

    A label is in the set if its nonconformity 1 - p is at most the ceil((m + 1) coverage)-th smallest of the m held-out
    ones; the most probable label always is. The coverage is marginal: it holds on average over dyads exchangeable with
    the held-out ones, not for each row or label separately.
    """
    if not 0 < coverage < 1:
        raise InputError(f"Got coverage={coverage!r}: expected a number between 0 and 1, such as 0.9.")
    rank = int(np.ceil((len(nonconformities) + 1) * coverage))
    threshold = nonconformities[rank - 1] + ROUNDING if rank <= len(nonconformities) else np.inf
    sets: Array = 1 - proba <= threshold
    sets[np.arange(len(proba)), proba.argmax(axis=1)] = True
    return sets
