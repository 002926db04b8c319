"""Block-coordinate Newton: each row, each column and what they share in turn, given all the others."""

import math
from typing import Any, Protocol

import numpy as np

from dyads.solve.lbfgs import LBFGS
from dyads.solve.solution import Monitor, Options, Solution

Array = np.ndarray[Any, Any]

SIDE_ITERATIONS = 10
"""L-BFGS iterations a sweep spends on the side weights, which have no owner."""


class Problem(Protocol):
    def sweep(self, theta: Array) -> float: ...
    def side_alone(self) -> Any: ...


class Newton:
    """Sweep over all blocks until the objective stops falling: no step size, the same at any number of threads."""

    needs_smooth = True
    max_iter = 200
    tol = 1e-6

    def minimise(self, problem: Problem, theta: Array, options: Options, monitor: Monitor) -> Solution:
        max_iter = self.max_iter if options.max_iter is None else options.max_iter
        tol = self.tol if options.tol is None else options.tol
        theta, last, side = theta.copy(), math.inf, problem.side_alone()
        for n_iter in range(1, max_iter + 1):
            before = theta.copy()
            value = problem.sweep(theta)
            if side is not None:
                polished = LBFGS().minimise(side, theta, Options(max_iter=SIDE_ITERATIONS), lambda *_: False)
                theta = polished.theta.copy()
                value = side.value(theta)
            if not (math.isfinite(value) and np.isfinite(theta).all()):
                return Solution(before, n_iter - 1, "divergence", f"in sweep {n_iter} of Newton's method; raise l2")
            if monitor(n_iter, value, theta):
                return Solution(theta, n_iter, "monitor")
            if last - value <= tol * abs(value):
                return Solution(theta, n_iter, "tolerance")
            last = value
        return Solution(theta, max_iter, "limit")
