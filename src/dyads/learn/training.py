"""Training: objective and dyads -> parameters, by restarts of a solver, with a trace of its iterations."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Counts, Dyads
from dyads.engine import Engine, Problem
from dyads.errors import DivergenceError, InputError
from dyads.learn.checkpoint import FitState
from dyads.model.objective import Objective
from dyads.model.streams import Stream, random_stream
from dyads.solve import LBFGS, SGD, SOLVERS
from dyads.solve.minimise import Ended, Minimiser, Solution, finite_epoch

Array = np.ndarray[Any, Any]

FULL_BATCH_WORK = 2_500_000
"""A point estimate is found by L-BFGS up to this much work, which takes it a second or two, and SGD above.

The work of a pass over dyads is their number times the size of a row's block plus `DYAD_WORK`. SGD is four to five
times faster. L-BFGS ends closer to a minimum, which small data with little noise gain from.
"""

DYAD_WORK = 60
"""Cost of a dyad's loss and bookkeeping in a gradient, in entries of a block: some 250 ns, an entry 2 to 5 ns."""

PATIENT_ITERATIONS = 3
"""Early stopping ends a fit after this many iterations without a new minimum of the held-out loss."""


class Progress(NamedTuple):
    """One iteration of a fit, as passed to callbacks and recorded in the trace.

    Attributes
    ----------
    init : restart, or chain of a sampler, from 0
    iteration : iteration of the restart, or sweep of the chain, from 1
    objective : value after the iteration; for SGD, accumulated during the epoch, before each step
    validation : mean held-out loss under early stopping, else NaN
    seconds : time since the start of the fit
    left : estimated seconds until its end; NaN where that depends on a tolerance
    """

    init: int
    iteration: int
    objective: float
    validation: float
    seconds: float
    left: float = math.nan


TRACED = ("init", "iteration", "objective", "validation", "seconds")
"""The fields of `Progress` that a fitted model keeps."""

Callback = Callable[[Progress], Any]


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Result of one restart of a solver, or of the chains of a sampler.

    Attributes
    ----------
    theta : (size,) parameters
    objective : exact value at theta over the training dyads; for a sampler, mean negative log-likelihood after burn-in
    solver : name of the solver
    n_iter : number of iterations
    ended : why the solver stopped; "monitor" is the user's callback or Ctrl-C
    validation : mean held-out loss at theta under early stopping, else NaN
    diverged : where the objective stopped being finite and what to do, or None; theta is then the last finite state
    warning : why the result may be unreliable, as a sentence, or None
    """

    theta: Array
    objective: float
    solver: str
    n_iter: int
    ended: Ended
    validation: float = math.nan
    diverged: str | None = None
    warning: str | None = None

    def without_theta(self) -> dict[str, Any]:
        """The other fields, as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "theta"}

    @property
    def sort_key(self) -> tuple[bool, float]:
        """Key to compare restarts by; the smallest is the best."""
        return self.diverged is not None, self.objective if math.isnan(self.validation) else self.validation


class Learned(NamedTuple):
    """Result of a fit.

    Attributes
    ----------
    best : the best restart
    trace : all iterations of all restarts
    draws : posterior draws of a sampler; empty for a minimiser
    best_draw : number of the draw of highest posterior density
    diagnostics : mixing diagnostics of a sampler; None for a minimiser
    interrupted : whether Ctrl-C ended the fit; the rest is what it had learnt so far
    stopped : whether the callback or Ctrl-C ended it
    models : the best restarts of several models, of which this is the first; empty for a sampler
    """

    best: Restart
    trace: list[Progress]
    draws: Sequence[Any] = ()
    best_draw: int = 0
    diagnostics: Any = None
    interrupted: bool = False
    stopped: bool = False
    models: Sequence[Restart] = ()


class FitRun(NamedTuple):
    """Settings of a run that do not depend on the solver.

    Attributes
    ----------
    engine : computes the sums over dyads
    seed : seed of all random numbers
    values : (n_labels,) values of ordered labels, or None
    n_init : number of random restarts
    validation_fraction : share of the dyads held out for early stopping, or None; each restart then returns its iterate
        of least held-out loss
    side_training : when the side weights are learnt; see `dyads.SideInformation`
    start : maps the random initial theta of the first restart to the one to use (a warm start), or None
    callback : called with the `Progress` of every iteration, or None
    seed_is_given : whether the user names the seed, which a fit that is resumed must have started with
    began : when the first of several models began, or None for now
    n_later : number of models that are fitted after this one
    """

    engine: Engine
    seed: int
    values: Array | None = None
    n_init: int = 1
    validation_fraction: float | None = None
    side_training: str = "joint"
    start: Callable[[Array], Array] | None = None
    callback: Callback | None = None
    seed_is_given: bool = False
    began: float | None = None
    n_later: int = 0

    def split(self, dyads: Dyads) -> tuple[Dyads, Dyads | None]:
        """Split into training dyads and held-out dyads; None if none are held out."""
        if self.validation_fraction is None:
            return dyads, None
        return dyads.hold_out(self.validation_fraction, random_stream(self.seed, Stream.HOLD_OUT))


def point_solver(objective: Objective, n_dyads: int) -> LBFGS | SGD:
    """The solver of a point estimate, unless the user names one; see `FULL_BATCH_WORK`."""
    return LBFGS() if work_of(objective, n_dyads) <= FULL_BATCH_WORK and objective.loss.smooth else SGD()


def work_of(objective: Objective, n_dyads: int) -> int:
    """The work of a pass over all dyads, in entries of blocks: the same on every machine."""
    return n_dyads * (DYAD_WORK + objective.layout.sizes[0])


def train(objective: Objective, dyads: Dyads, solver: Minimiser, run: FitRun, state: FitState | None = None) -> Learned:
    """Minimise the objective from random starts and keep the best result.

    Ctrl-C ends the fit at its last iteration; before the first one it is raised.

    `state` : where the fit keeps its state, and goes on from; or None.
    """
    state = FitState.none() if state is None else state
    name = type(solver).__name__
    if solver.needs_smooth and not objective.loss.smooth:
        fitting = [other for other, kind in SOLVERS.items() if not kind.needs_smooth and not kind.samples]
        raise InputError(f"{name} needs a smooth loss, but got {objective.loss!r}: use solver={fitting[0]!r}.")
    kept, held = run.split(dyads)
    before, stages = state.load("train"), _stages(objective, run.side_training)
    if before.get("init", 0) >= run.n_init or before.get("stage", 0) >= len(stages):
        raise InputError(f"The checkpoint {state.path} is not that of this fit: delete it to start over.")
    trace = [Progress(*step) for step in before.get("trace", [])]
    restarts = restored(before, "restarts")
    interrupted = False
    with run.engine.bind(objective, kept) as problem:
        began = time.perf_counter() if run.began is None else run.began
        for init in range(before.get("init", 0), run.n_init):
            rng = random_stream(run.seed, Stream.START, init)
            theta = initial_theta(objective, rng, kept, run.values)
            if run.start is not None and init == 0:
                theta = run.start(theta)
            seed = int(rng.integers(2**31))
            n_iter, first_stage = 0, 0
            if init == before.get("init"):
                theta, n_iter, first_stage = before["theta"], before["n_iter"], before["stage"]
            for number, free in list(enumerate(stages))[first_stage:]:
                last = number == len(stages) - 1
                if state.is_kept:
                    about = {"init": init, "stage": number, "n_iter": n_iter, "theta": theta, "trace": trace}
                    state.save("train", about | kept_ends(restarts, "restarts"))
                first = theta if last else np.where(_side(objective), 0, theta)
                n_left = len(stages) * (run.n_init * (1 + run.n_later) - init) - number
                planned = None if solver.planned is None else solver.planned * n_left
                watch = _Watch(problem, held, init, n_iter, began, trace, run.callback, planned, state)
                try:
                    solution = solver.minimise(problem.restricted(free), first, seed, watch, state.of_solver())
                except KeyboardInterrupt:
                    if watch.latest is None and not restarts:
                        raise
                    n_done, last_theta = (0, first) if watch.latest is None else (watch.latest[0], watch.latest[1]())
                    interrupted, solution = True, Solution(last_theta, n_done, "monitor")
                best = solution.theta if watch.best is None else watch.best
                theta = best if last else np.where(_side(objective), theta, best)
                n_iter += solution.n_iter
                if not (interrupted or watch.stopped_by_callback):
                    state.clear("solver", "watch")
                if interrupted or watch.stopped_by_callback or solution.diverged is not None:
                    break
            ended: Ended = "tolerance" if watch.stopped_early else solution.ended
            restarts.append(
                Restart(
                    theta=best,
                    objective=float(problem.value(best)),
                    solver=name.lower(),
                    n_iter=n_iter,
                    ended=ended,
                    validation=watch.validation,
                    diverged=solution.diverged,
                    warning=_not_converged(name, n_iter) if ended == "limit" else None,
                )
            )
            if interrupted or watch.stopped_by_callback:
                break
    best_restart = min(restarts, key=lambda restart: restart.sort_key)
    return Learned(best_restart, trace, interrupted=interrupted, stopped=interrupted or watch.stopped_by_callback)


def train_models(
    objective: Objective, dyads: Dyads, solver: Minimiser, run: FitRun, seeds: Sequence[int], state: FitState
) -> Learned:
    """Minimise the objective once for each seed; the result is that of the first, with all `models`.

    Ctrl-C ends with those that are done and the one that was under way.
    """
    done = state.load("models")
    models = restored(done, "ends")
    first = Learned(models[0], [Progress(*step) for step in done["trace"]]) if models else None
    interrupted = stopped = False
    began = time.perf_counter()
    for seed in seeds[len(models) :]:
        own = run._replace(seed=seed, began=began, n_later=len(seeds) - len(models) - 1)
        try:
            learned = train(objective, dyads, solver, own, state)
        except KeyboardInterrupt:
            state.write()
            if not models:
                raise
            interrupted = True
            break
        first = learned if first is None else first
        models.append(learned.best)
        interrupted, stopped = learned.interrupted, learned.stopped
        if stopped:
            break
        state.clear("train", "solver", "watch")
        state.save("models", {"trace": first.trace, **kept_ends(models, "ends")})
    state.write()
    assert first is not None
    return first._replace(models=models, interrupted=interrupted, stopped=interrupted or stopped)


def kept_ends(ends: Sequence[Restart], name: str) -> dict[str, Any]:
    """Ends of restarts as a part of a `FitState`; `restored` reads them back."""
    thetas = {f"theta{i}": end.theta for i, end in enumerate(ends)}
    return {name: [end.without_theta() for end in ends]} | thetas


def restored(part: dict[str, Any], name: str) -> list[Restart]:
    """The ends of restarts in a part of a `FitState`."""
    blank = Restart(theta=np.zeros(0), objective=math.nan, solver="", n_iter=0, ended="limit")
    return [replace(blank, theta=part[f"theta{i}"], **end) for i, end in enumerate(part.get(name, []))]


def _not_converged(solver: str, n_iter: int) -> str:
    return (
        f"{solver} stopped after {n_iter} iterations without reaching its tolerance. If the objective is still "
        f"decreasing, raise the limit: solver={solver}(max_iter={2 * n_iter})."
    )


def resume(
    objective: Objective, dyads: Dyads, counts: Counts, theta: Array | None, solver: SGD, number: int, run: FitRun
) -> tuple[Array, Progress]:
    """Run one epoch of SGD over a batch of dyads, from `theta` or, if None, from a random start.

    `counts` are the label counts of all dyads so far, this batch included; `number` is the number of the epoch.
    """
    if theta is None:
        theta = initial_theta(objective, random_stream(run.seed, Stream.START, 0), dyads, run.values)
    with run.engine.bind(objective, dyads, counts) as problem:
        began = time.perf_counter()
        descent = problem.descent(theta, visited=True)
        value = finite_epoch(descent, solver.steady_rate, run.seed, number)
    if value is None:
        raise DivergenceError(
            f"The objective is not finite in SGD epoch {number + 1}: lower the learning rate, for example with "
            f"solver=SGD(learning_rate={solver.steady_rate / 4:g}), or raise l2. The model keeps its last finite state."
        )
    return descent.theta(), Progress(0, number + 1, value, math.nan, time.perf_counter() - began)


def initial_theta(objective: Objective, rng: np.random.Generator, dyads: Dyads, values: Array | None) -> Array:
    """Random initial theta of a restart; zero for frozen parameters and for entities without training dyads."""
    layout = objective.layout
    theta = layout.initial(rng, dyads.label_counts, values)
    blocks, counts = layout.blocks(theta), Counts.of(dyads, objective.structure.one_set)
    blocks.row[counts.row == 0] = 0
    blocks.col[counts.col == 0] = 0
    return theta if objective.free is None else np.where(objective.free, theta, 0)


def _side(objective: Objective) -> Array:
    """Mask (size,) of the side weights in theta."""
    return np.arange(objective.layout.size) >= objective.layout.own_size


def _stages(objective: Objective, side_training: str) -> list[Array | None]:
    """Mask (size,) of the free parameters in each stage of a fit; None if all are free."""
    free, side = objective.free, _side(objective)
    if side_training == "joint" or not side.any():
        return [free]
    every = np.ones(objective.layout.size, np.bool_) if free is None else free
    return [every & ~side, free if side_training == "after" else every & side]


class _Watch:
    """The monitor of one restart: records the trace, calls the callback, and applies early stopping.

    `planned` : number of iterations from here to the end of the fit, or None if unknown.
    """

    def __init__(
        self,
        problem: Problem,
        held: Dyads | None,
        init: int,
        before: int,
        began: float,
        trace: list[Progress],
        callback: Callback | None,
        planned: int | None,
        state: FitState,
    ) -> None:
        self.problem, self.held, self.init, self.before, self.began = problem, held, init, before, began
        self.trace, self.callback, self.planned = trace, callback, planned
        self.best: Array | None = None
        self.latest: tuple[int, Callable[[], Array]] | None = None
        self.validation = math.nan
        self.since_best = 0
        self.stopped_by_callback = False
        self.since, self.state = time.perf_counter(), state
        self.n_resumed = state.load("solver").get("n_iter", 0)
        # What the trace recorded after the state was kept comes again.
        trace[:] = [step for step in trace if step.init < init or step.iteration <= before + self.n_resumed]
        kept = state.load("watch")
        if kept:
            self.best, self.validation, self.since_best = kept["best"], kept["validation"], kept["since_best"]

    def __call__(self, iteration: int, value: float, latest: Callable[[], Array]) -> bool:
        validation, self.latest = math.nan, (iteration, latest)
        if self.held is not None:
            theta = latest()
            validation = self.problem.loss(theta, self.held) / self.held.total_weight
            if self.best is None or validation < self.validation:
                self.best, self.validation, self.since_best = theta.copy(), validation, 0
            else:
                self.since_best += 1
            if self.state.is_kept:
                kept = {"best": self.best, "validation": self.validation, "since_best": self.since_best}
                self.state.pending["watch"] = kept
        now = time.perf_counter()
        n_done = iteration - self.n_resumed
        left = math.nan if self.planned is None else (now - self.since) * (self.planned - iteration) / n_done
        progress = Progress(self.init, self.before + iteration, value, validation, now - self.began, left)
        self.trace.append(progress)
        self.stopped_by_callback = self.callback is not None and bool(self.callback(progress))
        return self.stopped_by_callback or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Whether the held-out loss has stopped decreasing."""
        return self.since_best >= PATIENT_ITERATIONS
