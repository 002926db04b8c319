"""Calibrators, how they are learnt on held-out dyads, and sets of labels that cover the true one as often as asked."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from dyads.data.codes import Codes
from dyads.errors import InputError, unknown_name
from dyads.metrics import log_proba
from dyads.model.loss import link, log_link
from dyads.model.record import Calibrator

Array = np.ndarray[Any, Any]

# --------------------------------------------------------------------------------------------------------- calibrators


class Temperature(NamedTuple):
    """p ∝ exp(log p / temperature): all probabilities less sure, or more; no label gains on another."""

    temperature: float

    def apply(self, proba: Array) -> Array:
        return np.asarray(link(log_proba(proba) / self.temperature))


class Vector(NamedTuple):
    """p ∝ exp(weight_y log p_y + bias_y): each label by itself. `weights`, `bias` : (n_labels,)"""

    weights: Any
    bias: Any

    def apply(self, proba: Array) -> Array:
        return np.asarray(link(log_proba(proba) * self.weights + self.bias))


class Logistic(NamedTuple):
    """Multinomial logit on a summary x of the probabilities: p ∝ exp(x . coefficients_y + intercept_y).

    x is, of ordered labels, the expected label m as (z, z^2, z^3) with z = (m - centre) / scale; of others the log
    probabilities. `values` : (n_labels,) of ordered labels, or None; `coefficients` : (n_labels, size of x).
    """

    values: Any
    centre: float
    scale: float
    coefficients: Any
    intercept: Any

    def summary(self, proba: Array) -> Array:
        if self.values is None:
            return log_proba(proba)
        z = (proba @ self.values - self.centre) / self.scale
        return np.stack([z, z**2, z**3], axis=1)

    def apply(self, proba: Array) -> Array:
        return np.asarray(link(self.summary(proba) @ np.asarray(self.coefficients).T + self.intercept))


class Isotonic(NamedTuple):
    """A rising step function for each label, made to sum to one. `x`, `y` : (n_labels, n_knots), joined by lines."""

    x: Any
    y: Any

    def apply(self, proba: Array) -> Array:
        found = np.stack([np.interp(p, x, y) for p, x, y in zip(proba.T, self.x, self.y, strict=True)], axis=1)
        return np.asarray(found / found.sum(axis=1, keepdims=True))


CALIBRATORS: dict[str, Any] = {
    "logistic": Logistic,
    "vector": Vector,
    "isotonic": Isotonic,
    "temperature": Temperature,
}


# ------------------------------------------------------------------------------------------------------- learning them

KNOTS = 200
"""Most knots of an isotonic curve that are kept."""

TEMPERATURES = (0.05, 50.0)
"""The least and the greatest temperature."""

WEAK = 1e-3
"""Strength of the penalty that keeps a calibrator finite where held-out dyads are few."""


def learn_calibrator(method: str, proba: Array, label: Codes, weight: Array | None, values: Array | None) -> Calibrator:
    """Learn a calibrator from held-out probabilities (n, n_labels) and the codes of the labels that came.

    `values` : (n_labels,) of ordered labels, or None.
    """
    if method not in CALIBRATORS:
        raise unknown_name("method", method, CALIBRATORS)
    weight = np.ones(len(label)) if weight is None else weight
    return LEARNERS[method](proba, label, weight, values)


def _mean_log(scores: Array, label: Codes, weight: Array) -> float:
    return float(np.average(log_link(scores)[np.arange(len(label)), label], weights=weight))


def _temperature(proba: Array, label: Codes, weight: Array, values: Array | None) -> Temperature:
    logs = log_proba(proba)
    best = minimize_scalar(lambda t: -_mean_log(logs / t, label, weight), bounds=TEMPERATURES, method="bounded")
    return Temperature(float(best.x))


def _vector(proba: Array, label: Codes, weight: Array, values: Array | None) -> Vector:
    logs, n = log_proba(proba), proba.shape[1]
    truth, share = np.arange(n) == label[:, None], (weight / weight.sum())[:, None]
    start = np.concatenate([np.ones(n), np.zeros(n)])

    def cost_and_gradient(x: Array) -> tuple[float, Array]:
        """The log loss of softmax(weights log p + bias), whose derivative by these scores is that less the truth."""
        scores, away = logs * x[:n] + x[n:], x - start
        slope = share * (link(scores) - truth)
        gradient = np.concatenate([(slope * logs).sum(axis=0), slope.sum(axis=0)])
        cost = -_mean_log(scores, label, weight) + WEAK * float(away @ away) / n
        return cost, gradient + 2 * WEAK / n * away

    best = minimize(cost_and_gradient, start, jac=True, method="L-BFGS-B").x
    return Vector(best[:n], best[n:])


def _logistic(proba: Array, label: Codes, weight: Array, values: Array | None) -> Logistic:
    n = proba.shape[1]
    mean = proba @ values if values is not None else np.zeros(1)
    shape = Logistic(values, float(mean.mean()), float(mean.std()) or 1.0, np.zeros((n, 1)), np.zeros(n))
    summary = shape.summary(proba)
    seen = np.unique(label)
    coefficients, intercept = np.zeros((n, summary.shape[1])), np.full(n, -20.0)
    if len(seen) == 1:
        intercept[seen] = 0
        return shape._replace(coefficients=coefficients, intercept=intercept)
    logit = LogisticRegression(C=1 / WEAK, max_iter=2000).fit(summary, label, weight)
    if len(seen) == 2:
        # Of two labels scikit-learn keeps the second one's log-odds.
        coefficients[seen], intercept[seen] = [[0.0], [1.0]] * logit.coef_, [0.0, logit.intercept_[0]]
    else:
        coefficients[seen], intercept[seen] = logit.coef_, logit.intercept_
    return shape._replace(coefficients=coefficients, intercept=intercept)


def _isotonic(proba: Array, label: Codes, weight: Array, values: Array | None) -> Isotonic:
    grid = np.linspace(0, 1, KNOTS)
    # No label is impossible for not having come yet.
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
    """How strange each label was, one less its probability, sorted (n,)."""
    return np.sort(1 - proba[np.arange(len(label)), label])


def conformal_sets(proba: Array, nonconformities: Array, coverage: float) -> Array:
    """Which labels (n, n_labels) are in the set that holds the true one with probability `coverage` or more.

    Those no stranger than the share ceil((m + 1) coverage) / m of the m held-out labels; the most probable one always.
    The guarantee is over dyads drawn as the held-out ones were, not for each row or label by itself.
    """
    if not 0 < coverage < 1:
        raise InputError(f"coverage={coverage!r} is not possible: expected a number between 0 and 1.")
    rank = int(np.ceil((len(nonconformities) + 1) * coverage))
    # The probabilities of a set's last label and of the held-out one may be equal, and rounded differently.
    threshold = nonconformities[rank - 1] + 1e-12 if rank <= len(nonconformities) else np.inf
    sets: Array = 1 - proba <= threshold
    sets[np.arange(len(proba)), proba.argmax(axis=1)] = True
    return sets
