"""Solvers that minimise an objective over a flat parameter vector. Each solver is a settings object."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from dyads.settings import Setting

Array = np.ndarray[Any, Any]

Monitor = Callable[[int, float, Callable[[], Array]], bool]
"""Called as monitor(iteration, value, theta) after each iteration; returning True stops the solver.

theta() returns the parameters after the iteration, until the next one has ended: they may have to come from a device.
"""

Ended = Literal["tolerance", "schedule", "limit", "monitor", "divergence"]
"""Why a solver stopped: the value hardly fell, all planned epochs are done, its limit of iterations, and so on."""


@dataclass(frozen=True)
class Solution:
    """Where and why a solver stopped.

    Attributes
    ----------
    theta : (size,) parameters
    n_iter : number of iterations
    ended : why the solver stopped
    diverged : where the objective stopped being finite and what to do, or None; theta is then the last finite state
    """

    theta: Array
    n_iter: int
    ended: Ended
    diverged: str | None = None


class Saved(Protocol):
    """Where a solver keeps its state, from which a later run goes on as if nothing had happened.

    A state is a dict of arrays and numbers.
    """

    @property
    def is_kept(self) -> bool:
        """Whether states are kept at all."""
        ...

    def load(self, *names: str) -> dict[str, Any]:
        """Return the state of an interrupted run of the same problem, which has these fields, or an empty dict."""
        ...

    def save(self, state: dict[str, Any]) -> None:
        """Keep the state after an iteration; its arrays are not changed later."""
        ...


class NotSaved:
    """A `Saved` that keeps nothing."""

    is_kept = False

    def load(self, *names: str) -> dict[str, Any]:
        return {}

    def save(self, state: dict[str, Any]) -> None:
        pass


NOT_SAVED = NotSaved()


class Minimiser(Protocol):
    """A solver that minimises.

    `needs_smooth` says whether the objective must have a continuous gradient, `descends` whether the solver runs epochs
    of SGD. `planned` is the number of iterations, or None if it depends on a tolerance.
    """

    needs_smooth: ClassVar[bool]

    @property
    def descends(self) -> bool: ...

    @property
    def planned(self) -> int | None: ...

    def minimise(self, problem: Any, theta: Array, seed: int, monitor: Monitor, saved: Saved = NOT_SAVED) -> Solution:
        """Minimise, starting from theta; `seed` is for solvers that visit the data in random order."""
        ...


# ------------------------------------------------------------------------------------------------------------- L-BFGS

MEMORY = 20
"""Number of past steps the curvature is estimated from: more than 20 no longer reduce the number of iterations."""

SCALED_VALUE = 1e6
"""The objective is scaled to start at this value: SciPy's `ftol` is relative only for values well above one."""

SMALL_GRADIENT = 1e-9
"""SciPy's tolerance on the largest entry of the scaled gradient: so small that `tol` decides when to stop."""

SEGMENT = 50
"""Iterations after which a run whose state is kept begins afresh: SciPy's own state cannot be saved."""

EVALUATIONS_PER_ITERATION = 20
"""Budget of evaluations per iteration. A line search needs one or two; SciPy's default budget would end long fits."""


class _NotFinite(Exception):
    """The objective or its gradient is not a finite number."""


class Differentiable(Protocol):
    """What L-BFGS needs of a problem."""

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]: ...


@dataclass(frozen=True, repr=False)
class LBFGS(Setting):
    """Full-batch quasi-Newton method (SciPy's L-BFGS-B).

    It has no step size to tune, and its result does not depend on the number of threads.

    Parameters
    ----------
    max_iter : int, default 500
        Maximum number of iterations.
    tol : float, default 1e-6
        Stop when an iteration lowers the objective by less than this fraction of its value.
    """

    needs_smooth: ClassVar[bool] = True
    samples: ClassVar[bool] = False
    planned: ClassVar[None] = None
    descends: ClassVar[bool] = False

    max_iter: int = 500
    tol: float = 1e-6

    def __post_init__(self) -> None:
        self.check_count("max_iter", 1)
        self.check_number("tol")

    def minimise(
        self, problem: Differentiable, theta: Array, seed: int, monitor: Monitor, saved: Saved = NOT_SAVED
    ) -> Solution:
        """Minimise value_and_gradient(theta); the seed is not used."""
        state = saved.load("theta", "n_iter") or {"theta": theta, "n_iter": 0}
        solution = Solution(state["theta"], state["n_iter"], "limit")
        while solution.ended == "limit" and solution.n_iter < self.max_iter:
            most = min(self.max_iter, solution.n_iter + SEGMENT) if saved.is_kept else self.max_iter
            solution = self._segment(problem, solution, most, monitor)
            saved.save({"theta": solution.theta.copy(), "n_iter": solution.n_iter})
        return solution

    def _segment(self, problem: Differentiable, start: Solution, most: int, monitor: Monitor) -> Solution:
        """Go on from `start`, until `most` iterations are done in all."""
        theta, best, n_iter, stopped = start.theta, start.theta, start.n_iter, False
        initial = abs(problem.value_and_gradient(theta)[0])
        scale = SCALED_VALUE / initial if 0 < initial < math.inf else 1.0

        def evaluate(point: Array) -> tuple[float, Array]:
            value, gradient = problem.value_and_gradient(point)
            if not (math.isfinite(value) and np.isfinite(gradient).all()):
                raise _NotFinite
            return value * scale, gradient * scale

        def after(intermediate_result: OptimizeResult) -> None:
            nonlocal best, n_iter, stopped
            best, n_iter = intermediate_result.x.copy(), n_iter + 1
            if monitor(n_iter, float(intermediate_result.fun) / scale, partial(np.asarray, best)):
                stopped = True
                raise StopIteration

        options = {
            "maxiter": most - n_iter,
            "maxfun": EVALUATIONS_PER_ITERATION * (most - n_iter + 1),
            "maxcor": MEMORY,
            "ftol": self.tol,
            "gtol": SMALL_GRADIENT,
        }
        try:
            # BLAS sums in an order that depends on its number of threads.
            with threadpool_limits(1, "blas"):
                result = minimize(evaluate, theta, jac=True, method="L-BFGS-B", callback=after, options=options)
        except _NotFinite:
            reason = f"in L-BFGS iteration {n_iter + 1}; rescale the sample weights, or raise l2 to keep scores small"
            return Solution(best, n_iter, "divergence", reason)
        # Status 1: the limit was reached. Status 2: no step lowers the value any more, at floating-point precision.
        ended: Ended = "monitor" if stopped else "limit" if result.status == 1 else "tolerance"
        return Solution(np.asarray(result.x), n_iter, ended)


# ---------------------------------------------------------------------------------------------------------------- SGD

RATE = 1.0
"""Default AdaGrad rate of the first epoch. Steps are normalised by past gradients, so it has the units of theta."""

RESUMED = ("n_iter", "first_rate", "retries")
"""Numbers in the kept state of a descent: epochs done, the rate of the first, and how often it may still be lowered."""

RETRIES = 5
"""How often the default rate is divided by four, restarting from the last finite state, before the fit fails."""


class Descent(Protocol):
    """State of an SGD run, held by an engine."""

    def epoch(self, rate: float, seed: int, number: int) -> float: ...
    def theta(self) -> Array: ...
    def is_finite(self) -> bool: ...
    def snapshot(self) -> Any: ...
    def arrays(self) -> Array: ...
    def restore(self, snapshot: Any) -> None: ...


class Stochastic(Protocol):
    """What SGD needs of a problem."""

    def descent(self, theta: Array) -> Descent: ...


@dataclass(frozen=True, repr=False)
class SGD(Setting):
    """Stochastic gradient descent with AdaGrad step sizes. Each epoch visits every dyad once, in random order.

    The learning rate falls linearly, to zero after the last epoch, so that the noise of the steps dies out.

    Parameters
    ----------
    max_iter : int, default 20
        Number of epochs. With more of them the result is closer to a minimum.
    learning_rate : float, default None
        AdaGrad learning rate of the first epoch, by default 1 and lower if that diverges. If you set a rate and it
        diverges, the fit fails.
    """

    needs_smooth: ClassVar[bool] = False
    samples: ClassVar[bool] = False
    descends: ClassVar[bool] = True

    max_iter: int = 20
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        self.check_count("max_iter", 1)
        self.check_number("learning_rate", above=0, optional=True)

    @property
    def planned(self) -> int:
        """Number of epochs."""
        return self.max_iter

    @property
    def first_rate(self) -> float:
        """Learning rate of the first epoch."""
        return RATE if self.learning_rate is None else float(self.learning_rate)

    @property
    def steady_rate(self) -> float:
        """Learning rate of a single epoch over more dyads: the one given or, by default, the mean of a fit."""
        return RATE / 2 if self.learning_rate is None else self.first_rate

    def minimise(
        self, problem: Stochastic, theta: Array, seed: int, monitor: Monitor, saved: Saved = NOT_SAVED
    ) -> Solution:
        """Run all epochs, unless the monitor stops them."""
        first_rate, retries = self.first_rate, RETRIES if self.learning_rate is None else 0
        descent, n_iter, state = problem.descent(theta), 0, saved.load("descent", *RESUMED)
        if state:
            descent.restore(state["descent"])
            n_iter, first_rate, retries = (state[name] for name in RESUMED)
        while n_iter < self.max_iter:
            rate = first_rate * (1 - n_iter / self.max_iter)
            value = finite_epoch(descent, rate, seed, n_iter)
            if value is None:
                if retries:
                    first_rate, retries = first_rate / 4, retries - 1
                    continue
                reason = f"in SGD epoch {n_iter + 1} with learning_rate={first_rate:g}; lower it, or raise l2"
                return Solution(descent.theta(), n_iter, "divergence", reason)
            n_iter += 1
            if monitor(n_iter, value, descent.theta):
                return Solution(descent.theta(), n_iter, "monitor")
            if saved.is_kept:
                numbers = dict(zip(RESUMED, (n_iter, first_rate, retries), strict=True))
                saved.save({"descent": descent.arrays()} | numbers)
        return Solution(descent.theta(), n_iter, "schedule")


def finite_epoch(descent: Descent, rate: float, seed: int, number: int) -> float | None:
    """Run one epoch and return the objective accumulated during it; if not finite, restore the state, return None."""
    before = descent.snapshot()
    try:
        value = descent.epoch(rate, seed, number)
    except BaseException:
        # A fit that is interrupted keeps the parameters after the last whole epoch.
        descent.restore(before)
        raise
    if math.isfinite(value) and descent.is_finite():
        return value
    descent.restore(before)
    return None


# ------------------------------------------------------------------------------------------------------------- Newton

UNOWNED_ITERATIONS = 10
"""L-BFGS iterations per sweep on parameters outside all blocks: they take about as long as the sweep over blocks."""


class Updates(Protocol):
    """Blocks that are solved in turn, held by an engine."""

    @property
    def roles(self) -> tuple[Any, ...]: ...
    def solve(self, role: Any) -> float: ...
    def theta(self) -> Array: ...


class InBlocks(Stochastic, Protocol):
    """What Newton's method needs of a problem."""

    def value(self, theta: Array) -> float: ...
    def value_and_gradient(self, theta: Array) -> tuple[float, Array]: ...
    def blocks_in_turn(self, theta: Array) -> Updates: ...
    def without_blocks(self) -> "InBlocks | None": ...


@dataclass(frozen=True, repr=False)
class Newton(Setting):
    """Block-coordinate Newton method: solves for each row, each column and the shared weights in turn.

    Each block is solved with all others held fixed. There is no step size to tune, and the result does not depend on
    the number of threads. Of all solvers, it ends closest to a minimum.

    Parameters
    ----------
    max_iter : int, default 200
        Maximum number of sweeps over all blocks.
    tol : float, default 1e-6
        Stop when a sweep lowers the objective by less than this fraction of its value.
    epochs : int, default 0
        Epochs of SGD before the first sweep, which are not counted as iterations. From a random start, eight of them
        save about as many sweeps, which take three times as long.
    """

    needs_smooth: ClassVar[bool] = True
    samples: ClassVar[bool] = False
    planned: ClassVar[None] = None

    max_iter: int = 200
    tol: float = 1e-6
    epochs: int = 0

    @property
    def descends(self) -> bool:
        """Whether epochs of SGD come first."""
        return self.epochs > 0

    def __post_init__(self) -> None:
        self.check_count("max_iter", 1)
        self.check_number("tol")
        self.check_count("epochs", 0)

    def minimise(
        self, problem: InBlocks, theta: Array, seed: int, monitor: Monitor, saved: Saved = NOT_SAVED
    ) -> Solution:
        """Sweep over all blocks until the objective stops decreasing; the seed is for the epochs of SGD."""
        last, first, unowned, state = math.inf, 1, problem.without_blocks(), saved.load("theta", "last", "n_iter")
        if state:
            theta, last, first = state["theta"], state["last"], state["n_iter"] + 1
        elif self.epochs:
            start = SGD(self.epochs).minimise(problem, theta, seed, lambda *_: False)
            if start.diverged is not None:
                return start
            theta = start.theta
        for n_iter in range(first, self.max_iter + 1):
            before, updates = theta, problem.blocks_in_turn(theta)
            for role in updates.roles:
                updates.solve(role)
            theta = updates.theta()
            # An engine keeps blocks for its updates, and the value needs room for others.
            del updates
            if unowned is not None:
                theta = LBFGS(UNOWNED_ITERATIONS).minimise(unowned, theta, seed, lambda *_: False).theta
            value = problem.value(theta)
            if not (math.isfinite(value) and np.isfinite(theta).all()):
                return Solution(before, n_iter - 1, "divergence", f"in sweep {n_iter} of Newton's method; raise l2")
            if monitor(n_iter, value, partial(np.asarray, theta)):
                return Solution(theta, n_iter, "monitor")
            if last - value <= self.tol * abs(value):
                return Solution(theta, n_iter, "tolerance")
            last = value
            if saved.is_kept:
                saved.save({"theta": theta.copy(), "last": last, "n_iter": n_iter})
        return Solution(theta, self.max_iter, "limit")
