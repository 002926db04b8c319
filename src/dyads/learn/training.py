"""Training: an objective and dyads -> parameters, by restarts of a solver, with a readable trace."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Counts, Dyads
from dyads.engine import Engine, Problem
from dyads.errors import DivergenceError, InputError
from dyads.model.objective import Objective
from dyads.model.streams import Stream, random_stream
from dyads.solve import LBFGS, SGD, SOLVERS
from dyads.solve.minimise import Ended, Minimiser, finite_epoch

Array = np.ndarray[Any, Any]

FULL_BATCH_DYADS = 50_000
"""Up to this many dyads ``solver="auto"`` takes L-BFGS, above it SGD, which is then both faster and as good."""

PATIENT_ITERATIONS = 3
"""Iterations without a better held-out loss after which early stopping ends a fit."""


class Progress(NamedTuple):
    """One iteration of a fit, as given to callbacks and kept in the trace.

    Attributes
    ----------
    init, iteration : which restart (from 0) and which of its iterations (from 1)
    objective : its value; SGD: the value met on the way, before each step
    validation : mean held-out loss under early stopping, else NaN
    seconds : since the fit began
    """

    init: int
    iteration: int
    objective: float
    validation: float
    seconds: float


Callback = Callable[[Progress], Any]


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Result of one restart of a solver, or of the chains of a sampler.

    Attributes
    ----------
    theta : (size,) parameters
    objective : its exact value at theta, over the dyads trained on
    solver : the name of the solver that ran
    n_iter : iterations
    ended : what ended it; "monitor" is the user's callback
    validation : mean held-out loss at theta under early stopping, else NaN
    diverged : when and why the objective stopped being finite, or None; theta is then the last finite state
    warning : why the result may not be trusted, in a sentence, or None
    """

    theta: Array
    objective: float
    solver: str
    n_iter: int
    ended: Ended
    validation: float = math.nan
    diverged: str | None = None
    warning: str | None = None

    @property
    def sort_key(self) -> tuple[bool, float]:
        """Restarts are compared by this: the least is the best."""
        return self.diverged is not None, self.objective if math.isnan(self.validation) else self.validation


class Learned(NamedTuple):
    """What a fit leaves.

    Attributes
    ----------
    best : the best restart
    trace : every iteration of all restarts
    draws : states drawn from the posterior; none of a minimiser
    diagnostics : how well the chains have mixed, or None of a minimiser
    """

    best: Restart
    trace: list[Progress]
    draws: Sequence[Any] = ()
    diagnostics: Any = None


class FitRun(NamedTuple):
    """How a fit is run, whatever the solver.

    Attributes
    ----------
    engine : where sums over dyads are computed
    seed : of everything random
    values : (n_labels,) of ordered labels, or None
    n_init : random starts
    validation_fraction : share of the dyads that early stopping holds out, or None; each restart then keeps its iterate
        of least held-out loss
    side_training : when the side weights are learnt; see `dyads.SideInformation`
    start : alters the initial theta of the first restart, or None
    callback : told of every iteration, or None
    """

    engine: Engine
    seed: int
    values: Array | None = None
    n_init: int = 1
    validation_fraction: float | None = None
    side_training: str = "joint"
    start: Callable[[Array], Array] | None = None
    callback: Callback | None = None

    def split(self, dyads: Dyads) -> tuple[Dyads, Dyads | None]:
        """The dyads to train on, and those held out, if any."""
        if self.validation_fraction is None:
            return dyads, None
        return dyads.hold_out(self.validation_fraction, random_stream(self.seed, Stream.HOLD_OUT))


def auto_solver(objective: Objective, n_dyads: int) -> LBFGS | SGD:
    """The solver that ``solver="auto"`` stands for."""
    return LBFGS() if n_dyads <= FULL_BATCH_DYADS and objective.loss.smooth else SGD()


def train(objective: Objective, dyads: Dyads, solver: Minimiser, run: FitRun) -> Learned:
    """Minimise the objective from random starts, and keep the best."""
    name = type(solver).__name__
    if solver.needs_smooth and not objective.loss.smooth:
        fitting = [other for other, kind in SOLVERS.items() if not kind.needs_smooth and not kind.samples]
        raise InputError(f"{name} needs a smooth loss, and {objective.loss!r} is not: use solver={fitting[0]!r}.")
    kept, held = run.split(dyads)
    trace: list[Progress] = []
    restarts = []
    stages = _stages(objective, run.side_training)
    with run.engine.bind(objective, kept) as problem:
        began = time.perf_counter()
        for init in range(run.n_init):
            rng = random_stream(run.seed, Stream.START, init)
            theta = _initial(objective, rng, dyads, kept, run.values)
            if run.start is not None and init == 0:
                theta = run.start(theta)
            seed = int(rng.integers(2**31))
            n_iter = 0
            for number, free in enumerate(stages):
                last = number == len(stages) - 1
                first = theta if last else np.where(_side(objective), 0, theta)
                watch = _Watch(problem, held, init, n_iter, began, trace, run.callback)
                solution = solver.minimise(problem.restricted(free), first, seed, watch)
                best = solution.theta if watch.best is None else watch.best
                theta = best if last else np.where(_side(objective), theta, best)
                n_iter += solution.n_iter
                if watch.told_to_stop or solution.diverged is not None:
                    break
            ended: Ended = "tolerance" if watch.stopped_early else solution.ended
            restarts.append(
                Restart(
                    theta=best,
                    objective=problem.value(best),
                    solver=name.lower(),
                    n_iter=n_iter,
                    ended=ended,
                    validation=watch.validation,
                    diverged=solution.diverged,
                    warning=_not_converged(name, n_iter) if ended == "limit" else None,
                )
            )
            if watch.told_to_stop:
                break
    return Learned(min(restarts, key=lambda restart: restart.sort_key), trace)


def _not_converged(solver: str, n_iter: int) -> str:
    return (
        f"{solver} stopped after {n_iter} iterations without reaching its tolerance: if the objective still falls, "
        f"raise the limit, as in solver={solver}(max_iter={2 * n_iter})."
    )


def resume(
    objective: Objective, dyads: Dyads, counts: Counts, theta: Array | None, solver: SGD, number: int, run: FitRun
) -> tuple[Array, Progress]:
    """One epoch of SGD over a batch of dyads, from `theta` or, if None, from a random start.

    `counts` are those of all dyads so far, this batch included; `number` is that of the epoch.
    """
    if theta is None:
        theta = _initial(objective, random_stream(run.seed, Stream.START, 0), dyads, dyads, run.values)
    with run.engine.bind(objective, dyads, counts) as problem:
        began = time.perf_counter()
        descent = problem.descent(theta, visited=True)
        value = finite_epoch(descent, solver.rate, run.seed, number)
    if value is None:
        raise DivergenceError(
            f"The objective stopped being a finite number in SGD epoch {number + 1}: lower the rate, as in "
            f"solver=SGD(learning_rate={solver.rate / 4:g}), or raise l2. The model keeps its last state."
        )
    return descent.theta(), Progress(0, number + 1, value, math.nan, time.perf_counter() - began)


def _initial(objective: Objective, rng: np.random.Generator, dyads: Dyads, kept: Dyads, values: Array | None) -> Array:
    """Where a restart begins: zero for what never moves, and for entities that have no dyads to learn from."""
    layout = objective.layout
    theta = layout.initial(rng, dyads.label_counts, values)
    blocks, counts = layout.blocks(theta), Counts.of(kept, objective.structure.one_set)
    blocks.row[counts.row == 0] = 0
    blocks.col[counts.col == 0] = 0
    return theta if objective.free is None else np.where(objective.free, theta, 0)


def _side(objective: Objective) -> Array:
    """Which entries of theta are side weights (size,)."""
    return np.arange(objective.layout.size) >= objective.layout.own_size


def _stages(objective: Objective, side_training: str) -> list[Array | None]:
    """What is free in each stage of a fit."""
    free, side = objective.free, _side(objective)
    if side_training == "joint" or not side.any():
        return [free]
    every = np.ones(objective.layout.size, np.bool_) if free is None else free
    return [every & ~side, free if side_training == "after" else every & side]


class _Watch:
    """The monitor of one restart: keeps the trace, tells the callback, and stops early."""

    def __init__(
        self,
        problem: Problem,
        held: Dyads | None,
        init: int,
        before: int,
        began: float,
        trace: list[Progress],
        callback: Callback | None,
    ) -> None:
        self.problem, self.held, self.init, self.before, self.began = problem, held, init, before, began
        self.trace, self.callback = trace, callback
        self.best: Array | None = None
        self.validation = math.nan
        self.since_best = 0
        self.told_to_stop = False

    def __call__(self, iteration: int, value: float, theta: Array) -> bool:
        validation = math.nan
        if self.held is not None:
            validation = self.problem.loss(theta, self.held) / self.held.total_weight
            if self.best is None or validation < self.validation:
                self.best, self.validation, self.since_best = theta.copy(), validation, 0
            else:
                self.since_best += 1
        progress = Progress(self.init, self.before + iteration, value, validation, time.perf_counter() - self.began)
        self.trace.append(progress)
        self.told_to_stop = self.callback is not None and bool(self.callback(progress))
        return self.told_to_stop or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Whether the held-out loss stopped falling."""
        return self.since_best >= PATIENT_ITERATIONS
