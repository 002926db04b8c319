"""The penalty: L2 per block, scaled by how often a row or a column was seen."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads
from dyads.errors import unknown_name
from dyads.model.parameters import Blocks, Layout

Array = np.ndarray[Any, Any]

SCALINGS = {"none": 0.0, "inverse_sqrt": -0.5, "count": 1.0}
"""The power of an entity's count by which its penalty is multiplied."""


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
class L2:
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
    def of(cls, layout: Layout, strengths: dict[str, float], scaling: str, counts: Counts, centre: Array) -> "L2":
        """Build the penalty from the strength of each named part; those without a name are free.

        `centre` : (size,) a theta whose shared parts are what they are penalised towards.
        """
        if scaling not in SCALINGS:
            raise unknown_name("l2_scaling", scaling, SCALINGS)
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
        side = strengths.get("side", 0.0)
        return cls(row, col, shared, *scales, layout.blocks(centre).shared, layout.structure.one_set, side)

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
    """counts^power; an entity without labels has nothing to weigh its penalty against, and the scale of one label."""
    return np.where(counts > 0, counts, 1.0) ** power


def slope(x: Any, strength: Any, scale: Any) -> Any:
    """d/dx of 1/2 scale strength x^2, of numbers or arrays; a kernel."""
    return scale * strength * x


COMPOSED = (slope,)
