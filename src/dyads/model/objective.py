"""The one statement of what is minimised."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dyads.model.loss import Loss
from dyads.model.parameters import Layout
from dyads.model.penalty import Penalty
from dyads.model.structure import Structure

Array = np.ndarray[Any, Any]


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
