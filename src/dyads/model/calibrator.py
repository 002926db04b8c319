"""Calibrators: predicted probabilities -> probabilities that come true, as learnt on held-out dyads.

A calibrator is a `NamedTuple` with `apply(proba)`; how it is learnt is in `dyads.calibration`.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import softmax

from dyads.metrics import log_proba

Array = np.ndarray[Any, Any]


class Calibrator(Protocol):
    def apply(self, proba: Array) -> Array:
        """Turn probabilities (n, n_labels) into calibrated ones (n, n_labels)."""
        ...


class Temperature(NamedTuple):
    """p ∝ exp(log p / temperature): all probabilities less sure, or more; no label gains on another."""

    temperature: float

    def apply(self, proba: Array) -> Array:
        return np.asarray(softmax(log_proba(proba) / self.temperature, axis=1))


class Vector(NamedTuple):
    """p ∝ exp(weight_y log p_y + bias_y): each label by itself. `weights`, `bias` : (n_labels,)"""

    weights: Any
    bias: Any

    def apply(self, proba: Array) -> Array:
        return np.asarray(softmax(log_proba(proba) * self.weights + self.bias, axis=1))


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
        return np.asarray(softmax(self.summary(proba) @ np.asarray(self.coefficients).T + self.intercept, axis=1))


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
