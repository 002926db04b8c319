"""What goes into a solver and what comes out of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

Monitor = Callable[[int, float, Array], bool]
"""Called as monitor(iteration, value, theta) after each iteration; True stops the solver."""


Ended = Literal["tolerance", "limit", "monitor", "divergence"]


class Options(NamedTuple):
    """Choices a user may leave to the solver.

    Attributes
    ----------
    max_iter : most iterations, or None for the solver's own limit
    tol : relative decrease of the objective in one iteration below which it stops, or None for the solver's own
    learning_rate : step size, or None for the solver's own rule
    seed : for solvers that visit the data in random order
    """

    max_iter: int | None = None
    tol: float | None = None
    learning_rate: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped, and why.

    Attributes
    ----------
    theta : (size,) the parameters
    n_iter : iterations done
    ended : what ended it
    diverged : when and why the objective stopped being finite, or None; theta is then the last finite state
    """

    theta: Array
    n_iter: int
    ended: Ended
    diverged: str | None = None


class Solver(Protocol):
    """A way to minimise. `needs_smooth` says that the objective must have a continuous gradient."""

    needs_smooth: bool

    def minimise(self, problem: Any, theta: Array, options: Options, monitor: Monitor) -> Solution: ...
