"""The penalty: L2 per block, scaled by how often a row or a column was seen."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dyads.errors import unknown_name
from dyads.model.parameters import Blocks, Layout

Array = np.ndarray[Any, Any]

SCALINGS = {"none": 0.0, "inverse_sqrt": -0.5, "count": 1.0}
"""The power of an entity's count by which its penalty is multiplied."""


@dataclass(frozen=True)
class L2:
    """Quadratic penalty on row and column blocks; the shared block is free.

        1/2 sum_r n_r^q sum_k row_strength_k a_rk^2  +  1/2 sum_c n_c^q sum_k col_strength_k b_ck^2

    where n is the sum of the weights of an entity's dyads and q = 0 ("none"), -1/2 ("inverse_sqrt": larger for
    rarely seen entities, section 4.2) or 1 ("count": the same decay at every observation).

    Attributes
    ----------
    row_strength : (row size,), col_strength : (col size,)
    row_scale : (n_rows,) n_r^q, col_scale : (n_cols,) n_c^q
    """

    row_strength: Array
    col_strength: Array
    row_scale: Array
    col_scale: Array

    @classmethod
    def of(
        cls, layout: Layout, strengths: dict[str, float], scaling: str, row_counts: Array, col_counts: Array
    ) -> "L2":
        """Build the penalty from the strength of each named part of the row and column blocks."""
        if scaling not in SCALINGS:
            raise unknown_name("l2_scaling", scaling, SCALINGS)
        power = SCALINGS[scaling]
        row, col = (
            np.concatenate([np.full(int(np.prod(shape)), strengths[name]) for name, shape in shapes.items()])
            for shapes in layout.shapes[:2]
        )
        return cls(row, col, row_counts**power, col_counts**power)

    def value_and_gradient(self, blocks: Blocks, gradient: Blocks) -> float:
        """Return the penalty and ADD its gradient to `gradient`."""
        value = 0.0
        for block, out, strength, scale in (
            (blocks.row, gradient.row, self.row_strength, self.row_scale),
            (blocks.col, gradient.col, self.col_strength, self.col_scale),
        ):
            own = slope(block, strength, scale[:, None])
            out += own
            value += 0.5 * float(np.sum(own * block))
        return value


def slope(x: Any, strength: Any, scale: Any) -> Any:
    """d/dx of 1/2 scale strength x^2, of numbers or arrays; a kernel."""
    return scale * strength * x


COMPOSED = (slope,)
