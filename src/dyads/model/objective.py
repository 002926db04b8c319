"""The objective of a point estimate, loss plus penalty, and the learnt prior of a posterior."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular

from dyads.data.dyads import Counts
from dyads.errors import InputError
from dyads.model.loss import Loss
from dyads.model.parameters import Blocks, Layout
from dyads.model.structure import Structure
from dyads.settings import Setting

Array = np.ndarray[Any, Any]

# --------------------------------------------------------------------------------------------------------- the penalty

SCALINGS = {"none": 0.0, "inverse_sqrt": -0.5, "count": 1.0}
"""Exponent q of each scaling: the penalty of an entity with count n is multiplied by n^q."""


LATENT, BIAS, SIDE = 6.0, 2.0, 30.0
"""Default strengths, chosen on held-out training data of ML-100K and UN votes; they suit ratings and votes."""

SHARED = 0.1
"""Default strength per dyad for phi and Lambda of a single relation, chosen on held-out training data of ML-100K.

There 0.001 let phi grow threefold, at a cost of 0.03 in log-loss.
"""

FIELDS = {
    "row_bias": ("bias",),
    "col_bias": ("bias",),
    "node_bias": ("bias",),
    "row_factors": ("row", "latent"),
    "out_factors": ("row", "latent"),
    "col_factors": ("col", "latent"),
    "in_factors": ("col", "latent"),
    "node_factors": ("latent",),
}
"""Fields of `L2` that set the strength of each part of theta: the first one given, else the default of the last."""


@dataclass(frozen=True, repr=False)
class L2(Setting):
    """Strengths of the quadratic penalty: each the precision of a Gaussian prior on a weight, in units of log-odds.

    The defaults of its fields suit ratings and votes; data with strong structure and little noise need weaker ones (0.3
    to 1). Without an `L2`, an estimator chooses strengths from the data.

    Parameters
    ----------
    latent : float, default None
        Strength for latent weights; None means 6.
    row : float, default None
        Strength for the latent weights of rows, or of nodes as source; None means `latent`.
    col : float, default None
        Strength for the latent weights of columns, or of nodes as target; None means `latent`.
    bias : float, default None
        Strength for row and column biases, and for label biases of several relations; None means 2.
    side : float, default None
        Strength for the weights of features; None means 30.
    shared : float, default None
        Strength for phi (stereotype) and Lambda (spectral, relational) around their initial value; None means 0.1 per
        dyad or, with several relations, `latent`.
    scaling : "none", "inverse_sqrt" or "count", default "none"
        How strengths scale with an entity's number of labels n: "inverse_sqrt" (n^-1/2) penalises rarely seen entities
        more, "count" (n) applies the same decay at every observation. Each scaling needs strengths of its own.
    """

    latent: float | None = None
    row: float | None = None
    col: float | None = None
    bias: float | None = None
    side: float | None = None
    shared: float | None = None
    scaling: str = "none"

    def __post_init__(self) -> None:
        for name in ("latent", "row", "col", "bias", "side", "shared"):
            self.check_number(name, optional=True)
        self.check_name("scaling", SCALINGS)

    def strengths(self, layout: Layout, rank: int, bias: bool) -> dict[str, float]:
        """Return the strength of each part of a layout, by name; raise if a given strength applies to no part.

        `rank` : number of own latent columns of an entity; `bias` : whether entities have own biases. Neither counts
        the weights of features.
        """
        defaults = {"latent": LATENT, "bias": BIAS, "side": SIDE, "shared": SHARED}
        fields = dict(FIELDS)
        if layout.n_relations > 1:
            # A relation owns its shared weights as a row owns its block, so they get the strength of latent weights.
            # Its label bias is penalised because a relation observed with one label only has no finite estimate.
            fields |= {"phi": ("shared", "latent"), "diagonal": ("shared", "latent"), "label_bias": ("bias",)}
        else:
            fields |= {"phi": ("shared",), "diagonal": ("shared",)}
        parts = {name for shapes in layout.shapes for name, shape in shapes.items() if math.prod(shape)}
        moving = {name for name in parts & fields.keys() if rank or "latent" not in fields[name]}
        if not rank:
            moving -= {"phi", "diagonal"}
        if not bias:
            moving -= {"row_bias", "col_bias", "node_bias"}
        used, strengths = set(), {}
        for name, alternatives in fields.items():
            field = next((field for field in alternatives if getattr(self, field) is not None), alternatives[-1])
            strength = getattr(self, field)
            strengths[name] = float(defaults[field] if strength is None else strength)
            used |= {field} if name in moving else set()
        used |= {"side"} if any(layout.n_features) else set()
        for field in ("latent", "row", "col", "bias", "side", "shared"):
            if getattr(self, field) is not None and field not in used:
                raise InputError(
                    f"l2 has {field}={getattr(self, field)!r}, but this model has no weights that it applies to: "
                    f"expected None. Leave it out. Strengths that apply: {', '.join(sorted(used)) or 'none'}."
                )
        return {**strengths, "side": float(SIDE if self.side is None else self.side)}


@dataclass(frozen=True)
class Penalty:
    """Quadratic penalty on the blocks of rows, columns (or nodes) and relations:

        1/2 sum_r n_r^q sum_k row_strength_k a_rk^2  +  1/2 sum_c n_c^q sum_k col_strength_k b_ck^2
        + 1/2 sum_t n_t^q sum_k shared_strength_k (h_tk - shared_centre_tk)^2

    where n is the summed weight of an entity's dyads and q = 0 ("none"), -1/2 ("inverse_sqrt": larger for rarely seen
    entities, section 4.2) or 1 ("count": the same decay at every observation).

    Relations are entities too. The shared block of a single relation always has q = 1: with more data it would
    otherwise outgrow its penalty. The label bias of a single relation is not penalised. With one id set the term of
    the columns is left out, and n counts both roles. Side weights w add 1/2 side_strength |w|^2, so an effective block
    has the prior mean x W.

    Attributes
    ----------
    row_strength : (row size,) strength of each entry of a row's block
    col_strength : (col size,) the same for columns
    shared_strength : (shared size,) the same for shared blocks
    row_scale : (n_rows,) n_r^q
    col_scale : (n_cols,) n_c^q
    shared_scale : (n_relations,) n_t^q
    shared_centre : (n_relations, shared size) value that shared blocks are shrunk towards
    one_set : whether rows and columns are nodes of one id set
    side_strength : strength for side weights
    """

    row_strength: Array
    col_strength: Array
    shared_strength: Array
    row_scale: Array
    col_scale: Array
    shared_scale: Array
    shared_centre: Array
    one_set: bool
    side_strength: float = 0.0

    @classmethod
    def of(
        cls,
        layout: Layout,
        strengths: dict[str, float],
        scaling: str,
        counts: Counts,
        shared_centre: Array | None = None,
    ) -> "Penalty":
        """Build the penalty from the strength of each named part; parts that are not named are not penalised.

        `shared_centre` : (n_relations, shared size) value that shared blocks are shrunk towards; None means zero.
        """
        power = SCALINGS[scaling]
        row, col, shared = (
            np.array([strengths.get(name, 0.0) for name, shape in shapes.items() for _ in range(math.prod(shape))])
            for shapes in layout.shapes
        )
        if layout.structure.one_set:
            col = row
        scales = (
            _scale(counts.row, power),
            _scale(counts.col, power),
            _scale(counts.relation, power if layout.n_relations > 1 else 1),
        )
        centre = np.zeros((layout.n_relations, layout.sizes[2])) if shared_centre is None else shared_centre
        return cls(row, col, shared, *scales, centre, layout.structure.one_set, strengths.get("side", 0.0))

    def value_and_gradient(self, blocks: Blocks, gradient: Blocks) -> float:
        """Return the penalty and ADD its gradient to `gradient`."""
        value = 0.0
        sides = [
            (blocks.row, gradient.row, self.row_strength, self.row_scale),
            (blocks.shared - self.shared_centre, gradient.shared, self.shared_strength, self.shared_scale),
        ]
        if not self.one_set:
            sides.append((blocks.col, gradient.col, self.col_strength, self.col_scale))
        for block, out, strength, scale in sides:
            block_gradient = slope(block, strength, scale[:, None])
            out += block_gradient
            value += 0.5 * float(np.sum(block_gradient * block))
        return value

    def side_value_and_gradient(self, weights: Array, gradient: Array) -> float:
        """Return the penalty of side weights (size,) and ADD its gradient to `gradient`."""
        side_gradient = slope(weights, self.side_strength, 1)
        gradient += side_gradient
        return 0.5 * float(np.sum(side_gradient * weights))


def _scale(counts: Array, power: float) -> Array:
    """counts^power, with count 1 for entities without labels."""
    return np.where(counts > 0, counts, 1.0) ** power


def slope(x: Any, strength: Any, scale: Any) -> Any:
    """Return d/dx of 1/2 scale strength x^2, for numbers or arrays. A kernel."""
    return scale * strength * x


COMPOSED = (slope,)
"""Kernels of this module; an engine compiles them as they are."""


# ------------------------------------------------------------------------------------------------------- the objective


@dataclass(frozen=True)
class Objective:
    """The function that every solver minimises, on every engine:

        F(theta) = sum_i w_i loss(label_i, s(row_i, col_i; theta)) + penalty(theta)

    The loss is a sum over dyads, not a mean: a dyad of weight two counts as two dyads, and more data outweigh the
    penalty as they outweigh a prior.

    Attributes
    ----------
    free : (size,) mask of the entries of theta to minimise over, the others being fixed; None means all
    """

    layout: Layout
    loss: Loss
    penalty: Penalty
    free: Array | None = None

    @property
    def structure(self) -> Structure:
        return self.layout.structure

    def add_penalty(self, theta: Array, gradient: Array) -> float:
        """Return the penalty of theta and ADD its gradient to `gradient`."""
        side, out = theta[self.layout.own_size :], gradient[self.layout.own_size :]
        value = self.penalty.value_and_gradient(self.layout.blocks(theta), self.layout.blocks(gradient))
        return value + self.penalty.side_value_and_gradient(side, out)


# ---------------------------------------------------------------------------------------------------- the learnt prior

MEAN_COUNT = 1.0
"""Weight of the prior on the mean, in entities: it counts as one block at zero, which a few entities outweigh."""

FREEDOM = 2.0
"""Degrees of freedom of the half-t priors on standard deviations; with two, correlations are uniform a priori."""

SPREAD = 1.0
"""Scale of the half-t priors, in log-odds. A smaller one shrinks more; heavy tails leave large effects possible."""

SIDE_SHAPE, SIDE_RATE = 1.0, 1.0
"""Shape and rate of the Gamma prior on the precision of side weights: it counts as two side weights of size one."""

LEAST_VARIANCE = 1e-3
"""Added to the variance of every entry at the start of a chain: with a variance of zero an entry would stay at zero."""

TOLERANCE = 1e-2
"""Error at which conjugate gradients stop, in standard deviations of a draw of the side weights.

An error of this size lowers their variance by about 1e-4 of it, far less than a chain can tell.
"""

ITERATIONS_PER_UNKNOWN = 2
"""Iteration limit of conjugate gradients. One per unknown suffices in exact arithmetic; two allow for rounding."""


class Moments(NamedTuple):
    """Sufficient statistics of some blocks, from which a `BlockPrior` is learnt.

    Attributes
    ----------
    n : number of blocks
    mean : (size,) their mean, zero if n = 0
    scatter : (size, size) scatter matrix, sum_e (x_e - mean) (x_e - mean)^T
    """

    n: int
    mean: Array
    scatter: Array

    @classmethod
    def of(cls, blocks: Array) -> "Moments":
        """Compute the moments of blocks (n, size)."""
        n, size = blocks.shape
        mean = blocks.mean(axis=0) if n else np.zeros(size)
        deviation = blocks - mean
        return cls(n, mean, deviation.T @ deviation)

    @classmethod
    def joined(cls, parts: Sequence["Moments"]) -> "Moments":
        """Return the moments of all blocks, given those of some parts of them, in their order (Chan et al. 1983)."""
        n, size = np.array([part.n for part in parts]), len(parts[0].mean)
        centre = np.average([part.mean for part in parts], axis=0, weights=n) if n.any() else np.zeros(size)
        apart = np.array([part.mean for part in parts]) - centre
        return cls(int(n.sum()), centre, sum(part.scatter for part in parts) + (n[:, None] * apart).T @ apart)


class BlockPrior(NamedTuple):
    """The learnt prior of own blocks in posterior sampling; it takes the place of the penalty strengths.

        own_e ~ N(mean, precision^-1),    mean ~ N(0, (MEAN_COUNT precision)^-1),
        precision ~ Wishart(size + FREEDOM - 1, diag(scale)^-1),    scale_k ~ Gamma(1/2, 1 / (2 FREEDOM SPREAD^2))

    For any block size the correlations of entries are then uniform, and their standard deviations half-t with two
    degrees of freedom (Huang & Wand 2013): an entry that explains nothing shrinks towards zero. Each parameter has a
    conjugate conditional distribution. Side weights of a role are N(0, 1 / t) with precision
    t ~ Gamma(SIDE_SHAPE, SIDE_RATE).

    Attributes
    ----------
    mean : (size,) prior mean of a block
    precision : (size, size) prior precision of a block
    scale : (size,) diagonal of the inverse scale matrix of the Wishart distribution
    """

    mean: Array
    precision: Array
    scale: Array

    @classmethod
    def around(cls, moments: Moments) -> "BlockPrior":
        """Return the start of a chain: the mean of the blocks and a diagonal precision that matches their variances."""
        size = len(moments.mean)
        variance = np.diag(moments.scatter) / max(1, moments.n) + LEAST_VARIANCE
        return cls(moments.mean, np.diag(1 / variance), (size + FREEDOM - 1) * variance)

    @classmethod
    def from_hyperprior(cls, size: int, rng: np.random.Generator) -> "BlockPrior":
        """Draw a prior from its hyperprior."""
        scale = 2 * FREEDOM * rng.gamma(0.5, SPREAD**2, size)
        root = wishart_root(size + FREEDOM - 1, np.diag(scale), rng)
        mean = solve_triangular(root, rng.standard_normal(size), trans="T") / np.sqrt(MEAN_COUNT)
        return cls(mean, root @ root.T, scale)

    def blocks(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n blocks (n, size) from this prior."""
        root = np.linalg.cholesky(self.precision).T
        return np.asarray(self.mean + solve_triangular(root, rng.standard_normal((n, len(self.mean))).T).T)

    def redrawn(self, moments: Moments, rng: np.random.Generator) -> "BlockPrior":
        """Draw precision and mean given the scale and the moments of blocks, then the scale given the precision."""
        n, centre, _ = moments
        size = len(centre)
        root = wishart_root(size + FREEDOM - 1 + n, self._inverse_scale(moments), rng)
        precision = root @ root.T
        noise = solve_triangular(root, rng.standard_normal(size), trans="T", lower=False)
        mean = n * centre / (MEAN_COUNT + n) + noise / np.sqrt(MEAN_COUNT + n)
        return BlockPrior(mean, precision, draw_scale(precision, rng))

    def _inverse_scale(self, moments: Moments) -> Array:
        """Inverse scale matrix of the Wishart distribution of the precision, given blocks."""
        n, centre, scatter = moments
        return np.diag(self.scale) + scatter + (MEAN_COUNT * n / (MEAN_COUNT + n)) * np.outer(centre, centre)

    def log_density(self, moments: Moments) -> float:
        """Log density of blocks and of the scale, up to a constant; mean and precision are integrated out."""
        freedom = len(self.mean) + FREEDOM - 1
        _, log_det = np.linalg.slogdet(self._inverse_scale(moments))
        of_scale = np.sum(np.log(self.scale) + self.scale / (FREEDOM * SPREAD**2))
        return float(freedom * np.log(self.scale).sum() - (freedom + moments.n) * log_det - of_scale) / 2


def draw_scale(precision: Array, rng: np.random.Generator) -> Array:
    """Draw the scale of a `BlockPrior` given its precision."""
    shape = (FREEDOM + len(precision)) / 2
    return np.asarray(2 * FREEDOM * rng.gamma(shape, 1 / (FREEDOM * np.diag(precision) + 1 / SPREAD**2)))


def wishart_root(freedom: float, inverse_scale: Array, rng: np.random.Generator) -> Array:
    """Draw an upper triangular R with R R^T ~ Wishart(freedom, inverse_scale^-1), by Bartlett's decomposition."""
    size = len(inverse_scale)
    # Let inverse_scale = C C^T with C lower triangular. If T is a root of the standard Wishart, R = C^-T T is a root
    # of this one, and R is upper triangular if T is.
    lower = np.linalg.cholesky(inverse_scale)
    bartlett = np.triu(rng.standard_normal((size, size)), 1)
    # In the upper triangular form the last diagonal entry has the most degrees of freedom.
    bartlett[np.diag_indices(size)] = np.sqrt(rng.chisquare(freedom - np.arange(size)[::-1]))
    return np.asarray(solve_triangular(lower, bartlett, trans="T", lower=True))


def draw_side_precision(weights: Array, rng: np.random.Generator) -> float:
    """Draw the precision of side weights given the weights."""
    return float(rng.gamma(SIDE_SHAPE + weights.size / 2, 1 / (SIDE_RATE + np.sum(weights**2) / 2)))


NormalSolver = Callable[[Array, Array, float, Array], Array]
"""Like `solve_normal` of some features: (weight, strength, ridge, right) -> solution."""


def draw_side_weights(
    features: Any,
    labelled: Array,
    blocks: Array,
    prior: BlockPrior,
    columns: Array,
    side_precision: float,
    rng: np.random.Generator,
    solve: NormalSolver | None = None,
) -> Array:
    """Draw the side weights W (n_features, n_columns) given the effective blocks of labelled entities.

    This is the regression  block_e ~ N(mean + x_e W, precision^-1),  where W contributes to `columns` only. Given the
    residuals of the other columns, these columns have the precision P = precision[columns, columns]. In the basis of
    the eigenvectors of P they are independent, and a draw of W solves the perturbed normal equations

        (d X^T X + t I) w = d X^T y + sqrt(d) X^T e + sqrt(t) e',    e, e' standard normal,

    for each eigenvalue d, with the side precision t.

    `features` : sparse (n, n_features), of SciPy or of an engine, `labelled` : (n,) mask of the lines of X to take,
    `blocks` : (n, size), `columns` : (n_columns,), `solve` : an engine's own way to solve these equations.
    """
    others = np.setdiff1d(np.arange(blocks.shape[1]), columns)
    residual = blocks - prior.mean
    among = prior.precision[np.ix_(columns, columns)]
    across = np.linalg.solve(among, prior.precision[np.ix_(columns, others)])
    target = residual[:, columns] + residual[:, others] @ across.T
    strength, basis = np.linalg.eigh(among)
    noise = rng.standard_normal(target.shape), rng.standard_normal((features.shape[1], len(columns)))
    right = features.T @ (labelled[:, None] * (strength * (target @ basis) + np.sqrt(strength) * noise[0]))
    right += np.sqrt(side_precision) * noise[1]
    if solve is None:
        solve = partial(solve_normal, features)
    return np.asarray(solve(labelled, strength, side_precision, right) @ basis.T)


def side_weights_by_counts(features: Any, counts: Array, own: Array, weights: Array) -> Array:
    """Return the change B of side weights that explains own blocks by features, each entity weighted by its counts.

        B = argmin sum_e w_e |a_e - m - x_e B|^2 / s^2 + t |B|^2

    The w_e are in proportion to the counts n and sum to the effective number of entities, (sum n)^2 / sum n^2. m is the
    mean of the own blocks a and s^2 their variance, both weighted; 1 / t is the mean square of the side weights.

    `features` : sparse (n, n_features), `counts` : (n,), `own` : (n, n_columns), `weights` : (n_features, n_columns).
    """
    share = counts / counts.max()
    w = share * share.sum() / np.sum(share**2)
    deviation = own - np.average(own, axis=0, weights=w)
    strength = 1 / (np.average(np.mean(deviation**2, axis=1), weights=w) + LEAST_VARIANCE)
    ridge = 1 / max(np.mean(weights**2), np.finfo(np.float64).tiny)
    # The features of an average entity need not be zero: a constant makes up for them.
    extended = sparse.hstack([features, np.ones((len(own), 1))], format="csr")
    right = strength * (extended.T @ (w[:, None] * deviation))
    return solve_normal(extended, w, np.full(own.shape[1], strength), ridge, right)[:-1]


def solve_normal(features: Any, weight: Array, strength: Array, ridge: float, right: Array) -> Array:
    """Solve A_k w_k = right_k, A_k = d_k X^T diag(weight) X + ridge I, for each k by conjugate gradients.

    X are the `features`; a mask as `weight` takes some of their lines. The preconditioner is the diagonal of A_k. The
    error of a solution, in standard deviations of a draw, is the root of r^T A_k^-1 r / n_features for the residual r.
    It ends below `TOLERANCE` in all directions, also in those that X hardly determines (one-hot features of two groups,
    say): A_k >= ridge I bounds it by |r|^2 / (ridge n_features). Products with X are in single precision, which is
    exact to about 1e-6 of `right`.

    `strength` : (n_columns,) the d_k, ascending; `right` : (n_features, n_columns).
    """
    single, column = features.astype(np.float32), weight[:, None]
    squares = single.T.power(2) @ weight.astype(np.float32)
    scale = 1 / (squares[:, None] * strength + ridge)
    solution = np.zeros_like(right)
    residual, direction = right.copy(), scale * right
    size = np.sum(residual * direction, axis=0)
    for _ in range(ITERATIONS_PER_UNKNOWN * len(right)):
        unsolved = np.flatnonzero(np.sum(residual**2, axis=0) > largest_residual(ridge, len(right)))
        if not len(unsolved):
            break
        # The larger d_k, the more iterations: columns before the first unsolved one are done.
        k = slice(unsolved[0], None)
        product = strength[k] * (single.T @ (column * (single @ direction[:, k]))) + ridge * direction[:, k]
        curvature = np.sum(direction[:, k] * product, axis=0)
        # The direction of a column that is solved exactly is zero.
        step = np.divide(size[k], curvature, out=np.zeros_like(curvature), where=curvature > 0)
        solution[:, k] += step * direction[:, k]
        residual[:, k] -= step * product
        scaled = scale[:, k] * residual[:, k]
        new_size = np.sum(residual[:, k] * scaled, axis=0)
        turn = np.divide(new_size, size[k], out=np.zeros_like(new_size), where=size[k] > 0)
        direction[:, k] = scaled + turn * direction[:, k]
        size[k] = new_size
    return solution


def largest_residual(ridge: float, n_features: int) -> float:
    """Return the |r|^2 at which `solve_normal` ends."""
    return TOLERANCE**2 * ridge * n_features
