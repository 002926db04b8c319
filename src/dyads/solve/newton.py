"""Block-coordinate Newton: each row, each column and what they share in turn, given all the others."""

import math
from typing import Any, Protocol

import numpy as np

from dyads.solve.lbfgs import LBFGS
from dyads.solve.solution import Monitor, Options, Solution

Array = np.ndarray[Any, Any]

UNOWNED_ITERATIONS = 10
"""L-BFGS iterations a sweep spends on parameters that lie in no block."""


class Updates(Protocol):
    """Blocks that are solved for in turn, which an engine holds."""

    @property
    def roles(self) -> tuple[Any, ...]: ...
    def solve(self, role: Any) -> float: ...
    def theta(self) -> Array: ...


class InBlocks(Protocol):
    """What Newton's method needs of a problem."""

    def value(self, theta: Array) -> float: ...
    def value_and_gradient(self, theta: Array) -> tuple[float, Array]: ...
    def blocks_in_turn(self, theta: Array) -> Updates: ...
    def without_blocks(self) -> "InBlocks | None": ...


class Newton:
    """Sweep over all blocks until the objective stops falling: no step size, the same at any number of threads."""

    needs_smooth = True
    max_iter = 200
    tol = 1e-6

    def minimise(self, problem: InBlocks, theta: Array, options: Options, monitor: Monitor) -> Solution:
        max_iter = self.max_iter if options.max_iter is None else options.max_iter
        tol = self.tol if options.tol is None else options.tol
        last, unowned = math.inf, problem.without_blocks()
        for n_iter in range(1, max_iter + 1):
            before, updates = theta, problem.blocks_in_turn(theta)
            for role in updates.roles:
                updates.solve(role)
            theta = updates.theta()
            if unowned is not None:
                theta = LBFGS().minimise(unowned, theta, Options(max_iter=UNOWNED_ITERATIONS), lambda *_: False).theta
            value = problem.value(theta)
            if not (math.isfinite(value) and np.isfinite(theta).all()):
                return Solution(before, n_iter - 1, "divergence", f"in sweep {n_iter} of Newton's method; raise l2")
            if monitor(n_iter, value, theta):
                return Solution(theta, n_iter, "monitor")
            if last - value <= tol * abs(value):
                return Solution(theta, n_iter, "tolerance")
            last = value
        return Solution(theta, max_iter, "limit")
