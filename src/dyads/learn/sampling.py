"""Sampling: an objective and dyads -> draws from the posterior, by chains that start at point estimates."""

import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from dyads.data.dyads import Dyads
from dyads.engine.posterior import Posterior, State
from dyads.errors import InputError
from dyads.learn.checkpoint import Checkpoint, fingerprint_of, resumed_chains
from dyads.learn.training import Callback, FitRun, Learned, Progress, Restart, auto_solver, train
from dyads.metrics import effective_sample_size, log_proba, r_hat
from dyads.model.objective import Objective
from dyads.model.streams import Stream, SweepNoise, random_stream
from dyads.solve.gibbs import Chain, Gibbs, burn_in_length
from dyads.solve.minimise import Ended

Array = np.ndarray[Any, Any]

WATCHED = 256
"""How many predictions are watched, to tell whether the chains have mixed."""

MIXED = 1.2
"""Nine tenths of the watched predictions must have an R-hat below this: averages need less than single draws."""

STUCK = 0.02
"""Below this share of accepted draws chains are said not to move."""

PATIENT_SWEEPS = 30
"""Sweeps without a better running held-out loss after which early stopping ends a chain."""


class Diagnostics(NamedTuple):
    """How well chains have mixed.

    Attributes
    ----------
    r_hat, effective_samples : (n_watched,) of the probabilities of pairs and labels taken at random from the data;
        R-hat is infinite where there are too few sweeps to tell
    burn_in : sweeps of each chain that were dropped
    acceptance : share of blocks that moved in a sweep
    """

    r_hat: Array
    effective_samples: Array
    burn_in: int
    acceptance: float

    @property
    def worst(self) -> float:
        """The R-hat that nine tenths of the watched predictions stay below."""
        return float(np.quantile(self.r_hat, 0.9, method="lower"))


def sample(
    objective: Objective,
    dyads: Dyads,
    solver: Gibbs,
    run: FitRun,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Learned:
    """Draw from the posterior, by chains that start at point estimates; see `train`, which makes these.

    `checkpoint` : a file in which the chains are kept, and from which they go on if it is there; or None.
    """
    _check(objective, checkpoint, run.validation_fraction)
    kept, held = run.split(dyads)
    fingerprint = fingerprint_of(objective, kept, solver.chains, run.values)
    chains, seed = resumed_chains(checkpoint, fingerprint, run.seed)
    trace: list[Progress] = []
    began = time.perf_counter()
    # BLAS sums in an order that depends on its number of threads.
    with threadpool_limits(1, "blas"), run.engine.bind(objective, kept) as problem:
        posterior = Posterior(problem)
        pairs = _watched(kept, seed)
        save = Checkpoint(checkpoint, chains, fingerprint, seed)

        def watched(state: State) -> Array:
            return _chances(posterior.proba(state, pairs), pairs.label)

        for number in range(solver.chains):
            if number == len(chains):
                start = run.start if number == 0 else None
                alone = run._replace(seed=seed + number, validation_fraction=None, callback=None, start=start)
                point = train(objective, kept, auto_solver(objective, len(kept)), alone).best
                chains.append(Chain(posterior.start(point.theta, random_stream(seed, Stream.CHAIN_START, number))))
            most = solver.most_draws(chains[number].state)
            chains[number] = chains[number].thinned(most)
            watch = _Watch(posterior, held, number, began, trace, run.callback, chains[number])
            try:
                while chains[number].n_sweeps < solver.sweeps:
                    noise = SweepNoise(seed, number, chains[number].n_sweeps)
                    chains[number] = chains[number].advanced(posterior, noise, watched, most)
                    if watch(chains[number]):
                        break
                    save()
            finally:
                # What a chain has done is not lost when a sweep is interrupted.
                save(now=True)
            if watch.told_to_stop:
                break
    best, draws, diagnostics = _summary(chains, watch.told_to_stop)
    return Learned(best, trace, draws, diagnostics)


def _check(objective: Objective, checkpoint: str | os.PathLike[str] | None, held_out: float | None) -> None:
    """Refuse what cannot be sampled, or kept, before anything is."""
    if checkpoint is not None and held_out is not None:
        raise InputError(
            "checkpoint does not go with early_stopping, whose running averages it does not hold: expected one of "
            "them. Leave one out."
        )
    if checkpoint is not None and (Path(checkpoint).is_dir() or not Path(checkpoint).resolve().parent.is_dir()):
        raise InputError(
            f"checkpoint={os.fspath(checkpoint)!r} is no place for a file: expected one in a folder that exists."
        )
    if not objective.loss.likelihood:
        raise InputError(f"Gibbs samples a posterior, and {objective.loss!r} is not a likelihood: expected loss='log'.")
    if objective.free is not None:
        raise InputError(
            "Gibbs needs own weights of ids wherever features have theirs: expected bias=True and interactions of at "
            "most rank."
        )


def _summary(chains: list[Chain], told: bool) -> tuple[Restart, list[State], Diagnostics]:
    """What is read off chains: the draws after they have settled, and how well these are mixed."""
    n = min(chain.n_sweeps for chain in chains)
    # A chain that was stopped before the others had settled has no draws.
    burn_in = max(burn_in_length(np.array(chain.losses)) for chain in chains)
    draws = [draw for chain in chains for sweep, draw in chain.draws if sweep > burn_in]
    after = np.array([chain.watched[burn_in:n] for chain in chains])
    enough = n - burn_in >= 4
    found = Diagnostics(
        r_hat(after) if enough else np.full(WATCHED, math.inf),
        effective_sample_size(after) if enough else np.full(WATCHED, 1.0),
        burn_in,
        float(np.mean(np.concatenate([chain.accepted for chain in chains]))),
    )
    loss = float(np.mean([loss for chain in chains for loss in chain.losses[burn_in:]]))
    warning = None
    if not enough:
        warning = f"{n} sweeps are too few to tell whether chains have mixed: expected some hundred. Raise sweeps."
    elif found.acceptance < STUCK:
        warning = f"The chains hardly moved: the acceptance rate is {found.acceptance:.1%}. Raise sweeps."
    elif found.worst > MIXED:
        warning = (
            f"The chains have not mixed after {n} sweeps: a tenth of the watched predictions have an R-hat above "
            f"{found.worst:.2f}, expected at most {MIXED}. Raise sweeps."
        )
    if told:
        warning = None
    ended: Ended = "monitor" if told else "tolerance" if warning is None else "limit"
    best = Restart(
        theta=chains[-1].state.theta, objective=loss, solver=Gibbs.__name__.lower(), n_iter=n, ended=ended,
        warning=warning,
    )  # fmt: skip
    return best, draws, found


def _watched(dyads: Dyads, seed: int) -> Dyads:
    """Pairs and labels to watch: the row of one dyad, the column of another and the label of a third."""
    rng = random_stream(seed, Stream.WATCHED)
    first, second, third = rng.integers(len(dyads), size=(3, WATCHED))
    pairs = dyads.take(first)
    return Dyads(
        pairs.row, dyads.col[second], dyads.label[third], None, dyads.n_rows, dyads.n_cols, dyads.n_labels,
        pairs.relation, dyads.n_relations, pairs.side,
    )  # fmt: skip


def _chances(proba: Array, label: Array) -> Array:
    return np.asarray(proba[np.arange(len(label)), label])


class _Watch:
    """The monitor of one chain: keeps the trace, tells the callback, and stops early.

    The held-out loss is that of probabilities averaged over the sweeps so far but the first half of them, or less.
    """

    def __init__(
        self,
        posterior: Posterior,
        held: Dyads | None,
        number: int,
        began: float,
        trace: list[Progress],
        callback: Callback | None,
        chain: Chain,
    ) -> None:
        self.posterior, self.held, self.number, self.began = posterior, held, number, began
        self.trace, self.callback = trace, callback
        self.sums = [np.zeros(()), np.zeros(())]
        self.counts = [0, 0]
        self.best, self.since_best = math.inf, 0
        self.told_to_stop = False
        for sweep, loss in enumerate(chain.losses):
            trace.append(Progress(number, sweep + 1, loss, math.nan, 0.0))

    def __call__(self, chain: Chain) -> bool:
        validation = math.nan if self.held is None else self._held_out(chain)
        if validation < self.best:
            self.best, self.since_best = validation, 0
        else:
            self.since_best += 1
        seconds = time.perf_counter() - self.began
        progress = Progress(self.number, chain.n_sweeps, chain.losses[-1], validation, seconds)
        self.trace.append(progress)
        self.told_to_stop = self.callback is not None and bool(self.callback(progress))
        return self.told_to_stop or (self.held is not None and self.since_best >= PATIENT_SWEEPS)

    def _held_out(self, chain: Chain) -> float:
        held, n = self.held, chain.n_sweeps
        assert held is not None
        if n & (n - 1) == 0:
            # At every power of two the older of two averages is dropped.
            self.sums, self.counts = [self.sums[1], np.zeros(())], [self.counts[1], 0]
        chance = _chances(self.posterior.proba(chain.state, held), held.label)
        for i in range(2):
            self.sums[i] = self.sums[i] + chance
            self.counts[i] += 1
        return float(np.average(-log_proba(self.sums[0] / self.counts[0]), weights=held.weight))
