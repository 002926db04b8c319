"""Stochastic gradient descent with AdaGrad's step sizes."""

import math
from typing import Any, Protocol

import numpy as np

from dyads.solve.solution import Monitor, Options, Solution

Array = np.ndarray[Any, Any]

RATE = 0.5
"""AdaGrad's rate. It divides by the gradients met so far, so this is in units of the parameters: log-odds."""

RETRIES = 5
"""How often the solver's own rate is quartered, from the last finite state, before it gives up."""


PATIENCE = 3
"""Epochs in a row that must fail to lower the objective by the tolerance: its values fluctuate."""


CUT = 0.3
"""When the objective first stalls, the rate is cut to this share, which calms the steps; the next stall is the end."""


class Descent(Protocol):
    """State of SGD, which an engine holds."""

    def epoch(self, rate: float, seed: int, number: int) -> float: ...
    def theta(self) -> Array: ...
    def is_finite(self) -> bool: ...
    def snapshot(self) -> Any: ...
    def restore(self, snapshot: Any) -> None: ...


class Stochastic(Protocol):
    """What SGD needs of a problem."""

    def descent(self, theta: Array) -> Descent: ...


def finite_epoch(descent: Descent, rate: float, seed: int, number: int) -> float | None:
    """The objective met on the way of one epoch; None, and everything as it was before, if that is not finite."""
    before = descent.snapshot()
    value = descent.epoch(rate, seed, number)
    if math.isfinite(value) and descent.is_finite():
        return value
    descent.restore(before)
    return None


class SGD:
    """Visit every dyad once an epoch, in random order, until the objective met on the way stops falling."""

    needs_smooth = False
    max_iter = 100
    tol = 1e-3

    def minimise(self, problem: Stochastic, theta: Array, options: Options, monitor: Monitor) -> Solution:
        max_iter = self.max_iter if options.max_iter is None else options.max_iter
        tol = self.tol if options.tol is None else options.tol
        rate = RATE if options.learning_rate is None else options.learning_rate
        retries = RETRIES if options.learning_rate is None else 0
        descent, best = problem.descent(theta), math.inf
        n_iter = stalled = 0
        calm = False
        while n_iter < max_iter:
            value = finite_epoch(descent, rate, options.seed, n_iter)
            if value is None:
                if retries:
                    rate, retries = rate / 4, retries - 1
                    continue
                reason = f"in SGD epoch {n_iter + 1} with learning_rate={rate:g}; lower it, or raise l2"
                return Solution(descent.theta(), n_iter, "divergence", reason)
            n_iter += 1
            if best - value > tol * abs(value):
                best, stalled = value, 0
            else:
                stalled += 1
            if monitor(n_iter, value, descent.theta()):
                return Solution(descent.theta(), n_iter, "monitor")
            if stalled == PATIENCE and calm:
                return Solution(descent.theta(), n_iter, "tolerance")
            if stalled == PATIENCE:
                rate, stalled, calm = rate * CUT, 0, True
        return Solution(descent.theta(), n_iter, "limit")
