"""The learnt prior of own blocks, where the posterior is sampled: no strength is left to choose.

    own_e ~ N(mean, precision^-1),    mean ~ N(0, (MEAN_COUNT precision)^-1),
    precision ~ Wishart(size + FREEDOM - 1, diag(scale)^-1),    scale_k ~ Gamma(1/2, 1 / (2 FREEDOM SPREAD^2))

so that, whatever their number, the correlations of entries are uniform and their standard deviations half-t with two
degrees of freedom (Huang & Wand 2013): an entry that explains nothing is drawn towards zero. Every part has a conjugate
conditional distribution. Side weights of a kind are N(0, 1 / t) with a precision t ~ Gamma(SIDE_SHAPE, SIDE_RATE).
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

Array = np.ndarray[Any, Any]

MEAN_COUNT = 1.0
"""How many entities the prior of the mean counts for."""

FREEDOM = 2.0
"""Degrees of freedom of the half-t distributions of standard deviations; with two, correlations are uniform."""

SPREAD = 1.0
"""The scale of these distributions, in log-odds."""

SIDE_SHAPE, SIDE_RATE = 1.0, 1.0
"""Of the Gamma distribution of the precision of side weights."""

LEAST_VARIANCE = 1e-3
"""Added to the variance of each entry of blocks where a chain starts: entries at zero must not stay there."""

TOLERANCE = 1e-8
"""Relative size of the residual at which conjugate gradients have solved for side weights."""


class Moments(NamedTuple):
    """What a prior is learnt from: the moments of some blocks.

    Attributes
    ----------
    n : how many there are
    mean : (size,), zero if there are none
    scatter : (size, size) summed products of their distances from the mean
    """

    n: int
    mean: Array
    scatter: Array

    @classmethod
    def of(cls, blocks: Array) -> "Moments":
        n, size = blocks.shape
        mean = blocks.mean(axis=0) if n else np.zeros(size)
        away = blocks - mean
        return cls(n, mean, away.T @ away)


class Learnt(NamedTuple):
    """The prior of the blocks of one table, as far as it has been learnt.

    Attributes
    ----------
    mean : (size,), precision : (size, size)
    scale : (size,) of the Wishart distribution of the precision
    """

    mean: Array
    precision: Array
    scale: Array

    @classmethod
    def around(cls, moments: Moments) -> "Learnt":
        """Where a chain starts: a scale that goes with the spread of blocks."""
        size = len(moments.mean)
        variance = np.diag(moments.scatter) / max(1, moments.n) + LEAST_VARIANCE
        return cls(moments.mean, np.diag(1 / variance), (size + FREEDOM - 1) * variance)

    @classmethod
    def from_hyperprior(cls, size: int, rng: np.random.Generator) -> "Learnt":
        """Draw a prior of blocks from its own prior."""
        scale = 2 * FREEDOM * rng.gamma(0.5, SPREAD**2, size)
        root = wishart_root(size + FREEDOM - 1, np.diag(scale), rng)
        mean = solve_triangular(root, rng.standard_normal(size), trans="T") / np.sqrt(MEAN_COUNT)
        return cls(mean, root @ root.T, scale)

    def blocks(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n blocks (n, size)."""
        root = np.linalg.cholesky(self.precision).T
        return np.asarray(self.mean + solve_triangular(root, rng.standard_normal((n, len(self.mean))).T).T)

    def redrawn(self, moments: Moments, rng: np.random.Generator) -> "Learnt":
        """Draw the precision and mean given blocks and the scale, then the scale given the precision."""
        n, centre, scatter = moments
        size = len(centre)
        spread = np.diag(self.scale) + scatter + (MEAN_COUNT * n / (MEAN_COUNT + n)) * np.outer(centre, centre)
        root = wishart_root(size + FREEDOM - 1 + n, spread, rng)
        precision = root @ root.T
        noise = solve_triangular(root, rng.standard_normal(size), trans="T", lower=False)
        mean = n * centre / (MEAN_COUNT + n) + noise / np.sqrt(MEAN_COUNT + n)
        return Learnt(mean, precision, draw_scale(precision, rng))


def draw_scale(precision: Array, rng: np.random.Generator) -> Array:
    """Draw the scale given the precision."""
    shape = (FREEDOM + len(precision)) / 2
    return np.asarray(2 * FREEDOM * rng.gamma(shape, 1 / (FREEDOM * np.diag(precision) + 1 / SPREAD**2)))


def wishart_root(freedom: float, inverse_scale: Array, rng: np.random.Generator) -> Array:
    """An upper triangular R with R R^T ~ Wishart(freedom, inverse_scale^-1), by Bartlett's decomposition."""
    size = len(inverse_scale)
    # With inverse_scale = C C^T, C lower: C^-T T is a root for a triangular T of the standard Wishart; an upper T
    # makes it triangular too.
    lower = np.linalg.cholesky(inverse_scale)
    bartlett = np.triu(rng.standard_normal((size, size)), 1)
    # Of the upper kind, the last line has the most degrees of freedom.
    bartlett[np.diag_indices(size)] = np.sqrt(rng.chisquare(freedom - np.arange(size)[::-1]))
    return np.asarray(solve_triangular(lower, bartlett, trans="T", lower=True))


def draw_side_precision(weights: Array, rng: np.random.Generator) -> float:
    """Draw the precision of side weights given them."""
    return float(rng.gamma(SIDE_SHAPE + weights.size / 2, 1 / (SIDE_RATE + np.sum(weights**2) / 2)))


def draw_side_weights(
    features: Any, blocks: Array, prior: Learnt, columns: Array, side_precision: float, rng: np.random.Generator
) -> Array:
    """Draw the side weights W (n_features, n_columns) given effective blocks.

    The regression  block_e ~ N(mean + x_e W, precision^-1)  in which W adds to some `columns` alone. Given the other
    columns' residuals these have the precision P, their own part of the precision. In its eigenvectors columns are
    independent, and W solves perturbed normal equations,

        (d X^T X + t I) w = d X^T y + sqrt(d) X^T e + sqrt(t) e',    e, e' standard normal,

    for an eigenvalue d and the side precision t. `features` : sparse (n, n_features), `blocks` : (n, size).
    """
    others = np.setdiff1d(np.arange(blocks.shape[1]), columns)
    residual = blocks - prior.mean
    among = prior.precision[np.ix_(columns, columns)]
    across = np.linalg.solve(among, prior.precision[np.ix_(columns, others)])
    target = residual[:, columns] + residual[:, others] @ across.T
    strength, basis = np.linalg.eigh(among)
    noise = rng.standard_normal(target.shape), rng.standard_normal((features.shape[1], len(columns)))
    right = features.T @ (strength * (target @ basis) + np.sqrt(strength) * noise[0])
    right += np.sqrt(side_precision) * noise[1]
    return np.asarray(_solve_normal(features, strength, side_precision, right) @ basis.T)


def _solve_normal(features: Any, strength: Array, ridge: float, right: Array) -> Array:
    """Solve (d_k X^T X + ridge I) w_k = right_k for every column k, by conjugate gradients, scaled by the diagonal."""
    squares = np.asarray((features.multiply(features)).sum(axis=0)).ravel()
    scale = 1 / (squares[:, None] * strength + ridge)
    solution = np.zeros_like(right)
    residual, direction = right.copy(), scale * right
    size = np.sum(residual * direction, axis=0)
    enough = TOLERANCE**2 * size
    for _ in range(2 * len(right)):
        if (size <= enough).all():
            break
        curved = strength * (features.T @ (features @ direction)) + ridge * direction
        bend = np.sum(direction * curved, axis=0)
        # A column that is solved has no direction left.
        step = np.divide(size, bend, out=np.zeros_like(size), where=bend > 0)
        solution += step * direction
        residual -= step * curved
        scaled = scale * residual
        now = np.sum(residual * scaled, axis=0)
        direction = scaled + np.divide(now, size, out=np.zeros_like(size), where=size > 0) * direction
        size = now
    return solution
