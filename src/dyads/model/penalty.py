"""The penalty: L2 per block, scaled by how often a row or a column was seen; `L2` is chosen, `Penalty` is bound."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads
from dyads.errors import InputError
from dyads.model.parameters import Blocks, Layout
from dyads.settings import Setting

Array = np.ndarray[Any, Any]

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


class Counts(NamedTuple):
    """Summed weights of the dyads of each row, column and relation; with one id set a node's in both roles, twice."""

    row: Array
    col: Array
    relation: Array

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool) -> "Counts":
        row, col = dyads.row_counts, dyads.col_counts
        return cls(row + col, row + col, dyads.relation_counts) if one_set else cls(row, col, dyads.relation_counts)


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
