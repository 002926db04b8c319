"""What is minimised, or sampled: the loss and the penalty of a point estimate, and the learnt prior of a posterior."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
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
"""The power of an entity's count by which its penalty is multiplied."""


LATENT, BIAS, SIDE = 6.0, 2.0, 30.0
"""Default strengths: those that suit ratings and votes, chosen on held-out training data of ML-100K and UN votes."""

SHARED = 0.1
"""Default strength, per dyad, of phi and Lambda where all labels share one: chosen on training data of ML-100K."""

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
"""The fields of `L2` that set the strength of a part of theta: the first that was given, else the default."""


@dataclass(frozen=True, repr=False)
class L2(Setting):
    """Strengths of the quadratic penalty: each the precision of a Gaussian prior on a weight, in units of log-odds.

    Strong structure with little noise wants less than the defaults (0.3 to 1): choose by cross-validation.

    Parameters
    ----------
    latent : float, default None
        Strength for latent weights; None is 6.
    row : float, default None
        Strength for the latent weights of rows, or of nodes as source; None is `latent`.
    col : float, default None
        Strength for the latent weights of columns, or of nodes as target; None is `latent`.
    bias : float, default None
        Strength for row and column biases, and for those of several relations; None is 2.
    side : float, default None
        Strength for the weights of features; None is 30.
    shared : float, default None
        Strength for phi (stereotype) and Lambda (spectral, relational) around their initial value; None is 0.1 per
        dyad, and `latent` for several relations.
    scaling : "none", "inverse_sqrt" or "count", default "none"
        How strengths scale with an entity's number of labels n: "inverse_sqrt" (n^-1/2) penalises rarely seen entities
        more, "count" (n) is the same decay at every observation. Choose the strengths anew.
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
        """The strength of each part of a layout, by name; a strength that no part would have is refused.

        `rank`, `bias` : the own latent weights and biases that entities have, beside those of features.
        """
        defaults = {"latent": LATENT, "bias": BIAS, "side": SIDE, "shared": SHARED}
        fields = dict(FIELDS)
        if layout.n_relations > 1:
            # What relations weigh by is theirs as a row's weights are the row's; one with a single label has no finite
            # bias of its own.
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
            given = getattr(self, field)
            strengths[name] = float(defaults[field] if given is None else given)
            used |= {field} if name in moving else set()
        used |= {"side"} if any(layout.n_features) else set()
        for field in ("latent", "row", "col", "bias", "side", "shared"):
            if getattr(self, field) is not None and field not in used:
                raise InputError(
                    f"l2 has {field}={getattr(self, field)!r}, and this model has no weights that it would apply to: "
                    f"expected None. Leave it out; what applies is {', '.join(sorted(used)) or 'nothing'}."
                )
        return {**strengths, "side": float(SIDE if self.side is None else self.side)}


@dataclass(frozen=True)
class Penalty:
    """Quadratic penalty on the blocks of rows, columns (or nodes) and relations:

        1/2 sum_r n_r^q sum_k row_strength_k a_rk^2  +  1/2 sum_c n_c^q sum_k col_strength_k b_ck^2
        + 1/2 sum_t n_t^q sum_k shared_strength_k (h_tk - shared_centre_tk)^2

    where n is the sum of the weights of an entity's dyads and q = 0 ("none"), -1/2 ("inverse_sqrt": larger for
    rarely seen entities, section 4.2) or 1 ("count": the same decay at every observation). Relations are entities too;
    what a single one shares is penalised by q = 1, or it would outgrow its penalty with more data. The label bias of a
    single relation has strength zero. With one id set the columns' part is left out, and n counts both roles. Side
    weights w add 1/2 side_strength |w|^2, so that own blocks have the prior mean x W.

    Attributes
    ----------
    row_strength : (row size,), col_strength : (col size,), shared_strength : (shared size,)
    row_scale : (n_rows,) n_r^q, col_scale : (n_cols,) n_c^q, shared_scale : (n_relations,) n_t^q
    shared_centre : (n_relations, shared size)
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
        """Build the penalty from the strength of each named part; those without a name are free.

        `shared_centre` : what shared blocks are penalised towards, zero if None.
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
            own = slope(block, strength, scale[:, None])
            out += own
            value += 0.5 * float(np.sum(own * block))
        return value

    def side_value_and_gradient(self, weights: Array, gradient: Array) -> float:
        """Return the penalty of side weights (size,) and ADD its gradient."""
        own = slope(weights, self.side_strength, 1)
        gradient += own
        return 0.5 * float(np.sum(own * weights))


def _scale(counts: Array, power: float) -> Array:
    """counts^power, with count 1 for entities without labels."""
    return np.where(counts > 0, counts, 1.0) ** power


def slope(x: Any, strength: Any, scale: Any) -> Any:
    """d/dx of 1/2 scale strength x^2, of numbers or arrays; a kernel."""
    return scale * strength * x


COMPOSED = (slope,)


# ------------------------------------------------------------------------------------------------------- the objective


@dataclass(frozen=True)
class Objective:
    """What every solver minimises, on every engine:

        F(theta) = sum_i w_i loss(label_i, s(row_i, col_i; theta)) + penalty(theta)

    A sum over dyads, not a mean: a dyad of weight two is two dyads, and the penalty is a prior that more data outweigh.
    It is minimised over the entries of theta that are `free` (size,), all of them if None; the others stay.
    """

    layout: Layout
    loss: Loss
    penalty: Penalty
    free: Array | None = None

    @property
    def structure(self) -> Structure:
        return self.layout.structure

    def add_penalty(self, theta: Array, gradient: Array) -> float:
        """Return the penalty of theta and ADD its gradient."""
        side, out = theta[self.layout.own_size :], gradient[self.layout.own_size :]
        value = self.penalty.value_and_gradient(self.layout.blocks(theta), self.layout.blocks(gradient))
        return value + self.penalty.side_value_and_gradient(side, out)


# ---------------------------------------------------------------------------------------------------- the learnt prior

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


class BlockPrior(NamedTuple):
    """The learnt prior of the own blocks of one table, where the posterior is sampled: no strength is left to choose.

        own_e ~ N(mean, precision^-1),    mean ~ N(0, (MEAN_COUNT precision)^-1),
        precision ~ Wishart(size + FREEDOM - 1, diag(scale)^-1),    scale_k ~ Gamma(1/2, 1 / (2 FREEDOM SPREAD^2))

    so that, whatever their number, the correlations of entries are uniform and their standard deviations half-t with
    two degrees of freedom (Huang & Wand 2013): an entry that explains nothing is drawn towards zero. Every part has a
    conjugate conditional distribution. Side weights of a role are N(0, 1 / t) with a precision
    t ~ Gamma(SIDE_SHAPE, SIDE_RATE).

    Attributes
    ----------
    mean : (size,), precision : (size, size)
    scale : (size,) of the Wishart distribution of the precision
    """

    mean: Array
    precision: Array
    scale: Array

    @classmethod
    def around(cls, moments: Moments) -> "BlockPrior":
        """Where a chain starts: a scale that goes with the spread of blocks."""
        size = len(moments.mean)
        variance = np.diag(moments.scatter) / max(1, moments.n) + LEAST_VARIANCE
        return cls(moments.mean, np.diag(1 / variance), (size + FREEDOM - 1) * variance)

    @classmethod
    def from_hyperprior(cls, size: int, rng: np.random.Generator) -> "BlockPrior":
        """Draw a prior of blocks from its own prior."""
        scale = 2 * FREEDOM * rng.gamma(0.5, SPREAD**2, size)
        root = wishart_root(size + FREEDOM - 1, np.diag(scale), rng)
        mean = solve_triangular(root, rng.standard_normal(size), trans="T") / np.sqrt(MEAN_COUNT)
        return cls(mean, root @ root.T, scale)

    def blocks(self, n: int, rng: np.random.Generator) -> Array:
        """Draw n blocks (n, size)."""
        root = np.linalg.cholesky(self.precision).T
        return np.asarray(self.mean + solve_triangular(root, rng.standard_normal((n, len(self.mean))).T).T)

    def redrawn(self, moments: Moments, rng: np.random.Generator) -> "BlockPrior":
        """Draw the precision and mean given blocks and the scale, then the scale given the precision."""
        n, centre, scatter = moments
        size = len(centre)
        spread = np.diag(self.scale) + scatter + (MEAN_COUNT * n / (MEAN_COUNT + n)) * np.outer(centre, centre)
        root = wishart_root(size + FREEDOM - 1 + n, spread, rng)
        precision = root @ root.T
        noise = solve_triangular(root, rng.standard_normal(size), trans="T", lower=False)
        mean = n * centre / (MEAN_COUNT + n) + noise / np.sqrt(MEAN_COUNT + n)
        return BlockPrior(mean, precision, draw_scale(precision, rng))


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
    features: Any, blocks: Array, prior: BlockPrior, columns: Array, side_precision: float, rng: np.random.Generator
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
