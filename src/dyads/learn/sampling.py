"""Sampling: objective and dyads -> posterior draws, by Markov chains."""

import math
import os
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads
from dyads.engine.posterior import Posterior, State
from dyads.errors import CheckpointWarning, InputError, caller_level
from dyads.learn.checkpoint import WATCHED, Checkpoint, check_seed, fingerprint_of, resumed_chains
from dyads.learn.training import Callback, FitRun, Learned, Progress, Restart, initial_theta, work_of
from dyads.metrics import effective_sample_size, log_proba, r_hat
from dyads.model.objective import Objective
from dyads.model.streams import Stream, SweepNoise, random_stream
from dyads.solve.gibbs import Chain, Gibbs, burn_in_length
from dyads.solve.minimise import Ended

Array = np.ndarray[Any, Any]

MIXED = 1.2
"""Largest R-hat allowed for 90% of the monitored predictions: averages need less mixing than single draws."""

LEAST_DIAGNOSED = 4
"""Sweeps after burn-in below which mixing is not diagnosed."""

STUCK = 0.02
"""Acceptance rate below which a fit warns that its chains hardly move."""

START_SWEEPS = 3
"""Sweeps of Newton's method that a chain starts from. Chains from a minimum are no better and take longer to start."""

LEAST_SWEEPS, MOST_SWEEPS = 100, 1000
"""Bounds of the sweeps of a chain that ends by itself."""

MOST_CHAINS, FEW_DYADS = 4, 20_000
"""Most chains of a fit by default, and dyads up to which it has several: small data have several modes.

Held-out log-loss on training data: Alyawarra, two chains of 300 sweeps 0.677, one of 600 0.723. 90% intervals of
probabilities, on 40 tables of 900 dyads drawn from the prior: four chains covered 0.881, one 0.865 (standard error
0.01).
"""

LEAST_DYADS = 4, 200
"""Dyads that a table needs for each of the least sweeps, and for each chain: tiny tables have little to say."""

SWEEPS_PER_DYAD = 10
"""Most sweeps of a chain for each dyad, for the same reason: tests and searches fit many tables of a few dozen."""

SAMPLING_WORK = 4 * 10**10
"""Work after which such a chain ends in any case, but not before `LEAST_SWEEPS`: about a minute on two cores.

A unit of `sweep_work` took 1.3 to 2.9 ns on two cores: ML-100K and ML-1M, ranks 5 to 16, and Alyawarra, 26 labels.
"""

SHORT_WORK = 6 * 10**9
"""Work up to which a chain goes on, whatever diagnostics say: some ten seconds on two cores.

R-hat and effective samples miss slow trends. On Coat (training data, two splits, three seeds) chains ended after 200 to
500 sweeps, with a log-loss 0.003 above that of 1000 sweeps, which take ten seconds; four chains of 250 were worse.
"""

SWEEP_WORK = 10**6
"""Work of a sweep besides that on its dyads: two milliseconds of Python."""

ENTITY_WORK = 8
"""Work of an entity in a sweep, in dyads: its prior and its factor. Measured on BookCrossing, few dyads each."""

WIDE = 64
"""Weights of a row up to which curvatures cost in proportion to their square: above, products are more efficient."""

CHECKED_EVERY = 50
"""Sweeps between checks of whether predictions are known well enough."""

KNOWN, KNOWN_OF_FEW = (1.1, 20), (1.05, 40)
"""Predictions are known well enough if 90% of those monitored have at most this R-hat and as many effective samples.

ML-100K (a tenth of the training data of u1 and u3) has then made 200 sweeps: the log-loss is 1.1909 and 1.1930; after
500 sweeps it is 1.1904 and 1.1920. Data of few dyads (`FEW_DYADS`) have wide posteriors, and chains take less time: on
40 tables of 900 dyads, intervals of four chains that ended by the first bounds covered 0.865, by the second 0.881.
"""

PATIENT_SWEEPS = 30
"""Early stopping ends a chain after this many sweeps without a new minimum of the running held-out loss."""


class Diagnostics(NamedTuple):
    """Mixing diagnostics of the chains.

    Attributes
    ----------
    r_hat, effective_samples : (n_watched,) R-hat and effective sample size of monitored probabilities, of random pairs
        and labels; R-hat is infinite if there are too few sweeps to estimate it
    burn_in : number of sweeps discarded from each chain, at most
    acceptance : acceptance rate, the share of blocks that moved per sweep
    effective_per_second : median effective sample size per second of sampling, burn-in included; 0 if no sweep was made
    draws : number of draws kept from each chain
    """

    r_hat: Array
    effective_samples: Array
    burn_in: int
    acceptance: float
    effective_per_second: float
    draws: tuple[int, ...]

    @property
    def worst(self) -> float:
        """90% quantile of R-hat over the monitored predictions."""
        return float(np.quantile(self.r_hat, 0.9, method="lower"))


def sample(
    objective: Objective,
    dyads: Dyads,
    solver: Gibbs,
    run: FitRun,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Learned:
    """Draw from the posterior, by chains that start from a few sweeps of Newton's method; the first from a warm start.

    Ctrl-C ends the chains at their last sweep; before the first one it is raised.

    `checkpoint` : path of a file to write the chains to, and to resume them from if it exists; or None.
    """
    _check(objective, checkpoint, run.validation_fraction)
    kept, held = run.split(dyads)
    plan = Plan.of(solver, objective, len(kept))
    solver = solver.replaced({"chains": plan.chains})
    fingerprint = fingerprint_of(objective, kept, solver.chains, run.values)
    chains, seed = resumed_chains(checkpoint, fingerprint, run.seed, objective.layout)
    if run.seed_is_given:
        check_seed(checkpoint, seed, run.seed)
    longest = max((chain.n_sweeps for chain in chains), default=0)
    if solver.sweeps is not None and longest > solver.sweeps:
        warnings.warn(
            f"The checkpoint {os.fspath(checkpoint or '')} holds {longest} sweeps, and {solver.sweeps} were asked for: "
            "all of them are kept. For a shorter chain, pass another path.",
            CheckpointWarning,
            stacklevel=caller_level(),
        )
    trace: list[Progress] = []
    n_resumed, began = sum(chain.n_sweeps for chain in chains), time.perf_counter()
    interrupted = False
    with run.engine.bind(objective, kept) as problem:
        posterior = Posterior(problem)
        pairs = _watched(kept, seed)
        save = Checkpoint(checkpoint, chains, fingerprint, seed)

        def watched(state: State) -> Array:
            return _chances(posterior.proba(state, pairs), pairs.label)

        def start(number: int) -> State:
            theta = initial_theta(objective, random_stream(seed, Stream.START, number), kept, run.values)
            if run.start is not None and number == 0:
                theta = run.start(theta)
            else:
                theta = posterior.approach(theta, START_SWEEPS)
            return posterior.start(theta, random_stream(seed, Stream.CHAIN_START, number))

        for number in range(plan.chains):
            try:
                if number == len(chains):
                    chains.append(Chain(start(number)))
                most = solver.most_draws(chains[number].state)
                chains[number] = chains[number].thinned(most)
                watch = _Watch(posterior, held, number, began, trace, run.callback, chains[number])
                length = Length(chains[number], plan)
                while chains[number].n_sweeps < length.end:
                    noise = SweepNoise(seed, number, chains[number].n_sweeps)
                    chains[number] = chains[number].advanced(posterior, noise, watched, most)
                    length.check(chains[number])
                    n_left = length.end * (plan.chains - number) - chains[number].n_sweeps
                    if watch(chains[number], n_left):
                        break
                    save()
            except KeyboardInterrupt:
                if not (chains and chains[0].draws):
                    raise
                interrupted, chains = True, [chain for chain in chains if chain.draws]
            finally:
                # Keep the sweeps done so far if this one is interrupted.
                save(now=True)
            if interrupted or watch.stopped_by_callback:
                break
        n_sweeps = sum(chain.n_sweeps for chain in chains)
        rate = (n_sweeps - n_resumed) / n_sweeps / (time.perf_counter() - began)
        stopped = interrupted or watch.stopped_by_callback
        best, draws, diagnostics = _summary(chains, stopped, rate)
        densities = [posterior.log_density(state, loss) for state, loss in draws]
    states = [state for state, _ in draws]
    return Learned(best, trace, states, int(np.argmax(densities)), diagnostics, interrupted, stopped)


def _check(objective: Objective, checkpoint: str | os.PathLike[str] | None, held_out: float | None) -> None:
    """Raise an error before sampling starts if the model cannot be sampled or the checkpoint cannot be written."""
    if checkpoint is not None and held_out is not None:
        raise InputError(
            "Got both checkpoint and early_stopping: expected one of them, since a checkpoint does not store the "
            "running averages of early stopping. Omit one."
        )
    if checkpoint is not None and (Path(checkpoint).is_dir() or not Path(checkpoint).resolve().parent.is_dir()):
        raise InputError(
            f"checkpoint={os.fspath(checkpoint)!r} cannot be written: expected a file in an existing folder."
        )
    if not objective.loss.likelihood:
        raise InputError(f"Gibbs needs a likelihood, and {objective.loss!r} is not a likelihood: expected loss='log'.")
    if objective.free is not None:
        raise InputError(
            "Gibbs needs own weights of ids wherever features have weights: expected bias=True and interactions of at "
            "most rank."
        )


def can_sample(objective: Objective, n_dyads: int) -> bool:
    """Whether the objective has a posterior to sample, and `LEAST_SWEEPS` take no more than `SAMPLING_WORK`."""
    has_posterior = objective.loss.likelihood and objective.free is None and objective.layout.sizes[0] > 0
    return has_posterior and LEAST_SWEEPS * sweep_work(objective, n_dyads) <= SAMPLING_WORK


def sweep_work(objective: Objective, n_dyads: int) -> int:
    """The work of a sweep, in entries of blocks and of their curvatures; features are not counted."""
    layout = objective.layout
    size, n = layout.sizes[0], n_dyads + ENTITY_WORK * (layout.n_rows + layout.n_cols)
    return work_of(objective, n) + n * size * min(size, WIDE)


class Plan(NamedTuple):
    """How many chains a fit has, bounds of the sweeps of each, and when predictions are known; see `KNOWN`."""

    chains: int
    least: int
    most: int
    known: tuple[float, int] = KNOWN

    @classmethod
    def of(cls, solver: Gibbs, objective: Objective, n_dyads: int) -> "Plan":
        """What the solver's settings say; by default several chains of small data, and as much as a minute allows."""
        if solver.sweeps is not None:
            return cls(solver.chains or 1, solver.sweeps, solver.sweeps)
        work = sweep_work(objective, n_dyads) + SWEEP_WORK
        for_sweep, for_chain = LEAST_DYADS
        least = min(n_dyads // for_sweep, SHORT_WORK // work) // CHECKED_EVERY * CHECKED_EVERY
        least = min(MOST_SWEEPS, max(LEAST_SWEEPS, least))
        chains, known = 1, KNOWN
        if n_dyads <= FEW_DYADS:
            known = KNOWN_OF_FEW
            affordable = max(min(2, SAMPLING_WORK // (LEAST_SWEEPS * work)), SHORT_WORK // (least * work))
            chains = max(1, min(MOST_CHAINS, affordable, n_dyads // for_chain))
        most = min(MOST_SWEEPS, SWEEPS_PER_DYAD * n_dyads, SAMPLING_WORK // ((solver.chains or chains) * work))
        return cls(solver.chains or chains, least, max(least, most), known)


class Length:
    """The number of sweeps at which a chain ends, `end`: an estimate until the chain gets there."""

    def __init__(self, chain: Chain, plan: Plan) -> None:
        self.plan, self.end = plan, plan.least
        self.check(chain)

    def check(self, chain: Chain) -> None:
        """Estimate the end anew: effective samples grow in proportion to sweeps."""
        n, most = chain.n_sweeps, self.plan.most
        if n < self.plan.least or self.plan.least == most:
            return
        if n % CHECKED_EVERY:
            self.end = min(most, max(self.end, n + 1))
            return
        _, r_hats, effective = _mixing([chain])
        worst, fewest = float(np.quantile(r_hats, 0.9)), float(np.quantile(effective, 0.1))
        largest, enough = self.plan.known
        if worst <= largest and fewest >= enough:
            self.end = n
        else:
            self.end = min(most, max(n + CHECKED_EVERY, math.ceil(n * enough / fewest)))


def _mixing(chains: list[Chain]) -> tuple[list[int], Array, Array]:
    """The burn-in of each chain; R-hat and effective sample size (n_watched,) of monitored predictions.

    They are those of the last sweeps of all chains, as many as the chain with the fewest has after its burn-in.
    """
    burn_in = [burn_in_length(np.array(chain.losses)) for chain in chains]
    n = min(chain.n_sweeps - discarded for chain, discarded in zip(chains, burn_in, strict=True))
    if n < LEAST_DIAGNOSED:
        return burn_in, np.full(WATCHED, math.inf), np.full(WATCHED, 1.0)
    after = np.array([chain.watched[-n:] for chain in chains])
    return burn_in, r_hat(after), effective_sample_size(after)


def _summary(chains: list[Chain], stopped: bool, rate: float) -> tuple[Restart, list[tuple[State, float]], Diagnostics]:
    """Result of the chains: the draws after burn-in, each with its negative log-likelihood, and their diagnostics.

    `stopped` : whether the callback or Ctrl-C did so. `rate` : share of all sweeps that a second makes.
    """
    if stopped and len(chains) > 1:
        # A chain that was stopped before the others had settled contributes no draws.
        settled = max(burn_in_length(np.array(chain.losses)) for chain in chains[:-1])
        chains = chains if chains[-1].n_sweeps > settled else chains[:-1]
    n = max(chain.n_sweeps for chain in chains)
    burn_in, r_hats, effective = _mixing(chains)
    kept = [
        [(draw, chain.losses[sweep - 1]) for sweep, draw in chain.draws if sweep > discarded]
        for chain, discarded in zip(chains, burn_in, strict=True)
    ]
    acceptance = float(np.mean(np.concatenate([chain.accepted for chain in chains])))
    diagnostics = Diagnostics(
        r_hats, effective, max(burn_in), acceptance, float(np.median(effective)) * rate, tuple(map(len, kept))
    )
    loss = float(np.mean([loss for chain, b in zip(chains, burn_in, strict=True) for loss in chain.losses[b:]]))
    warning, more = None, f"Use solver=Gibbs(sweeps={max(LEAST_SWEEPS, 2 * n)})."
    if not np.isfinite(r_hats).any():
        warning = f"{n} sweeps are too few to diagnose mixing: expected a few hundred. {more}"
    elif diagnostics.acceptance < STUCK:
        warning = f"The chains hardly moved: the acceptance rate is {diagnostics.acceptance:.1%}. {more}"
    elif diagnostics.worst > MIXED:
        warning = (
            f"The chains have not mixed after {n} sweeps: 10% of the monitored predictions have an R-hat of "
            f"{diagnostics.worst:.2f} or more, expected at most {MIXED}. {more}"
        )
    if stopped:
        warning = None
    ended: Ended = "monitor" if stopped else "tolerance" if warning is None else "limit"
    best = Restart(
        theta=chains[-1].state.theta, objective=loss, solver=Gibbs.__name__.lower(), n_iter=n, ended=ended,
        warning=warning,
    )  # fmt: skip
    return best, [draw for draws in kept for draw in draws], diagnostics


def _watched(dyads: Dyads, seed: int) -> Dyads:
    """Random predictions to monitor: the row of one dyad, the column of another and the label of a third."""
    rng = random_stream(seed, Stream.WATCHED)
    first, second, third = rng.integers(len(dyads), size=(3, WATCHED))
    pairs = dyads.take(first)
    return Dyads(
        pairs.row, dyads.col[second], dyads.label[third], None, dyads.n_rows, dyads.n_cols, dyads.n_labels,
        pairs.relation, dyads.n_relations, pairs.side,
    )  # fmt: skip


def _chances(proba: Array, label: Array) -> Array:
    """Probability of the given label of each dyad (n,)."""
    return np.asarray(proba[np.arange(len(label)), label])


class _Watch:
    """The monitor of one chain: records the trace, calls the callback, and applies early stopping.

    The held-out loss is that of averaged probabilities. With 2^k the last power of two reached, the average runs over
    the sweeps from 2^(k - 1) on; earlier sweeps are left out as burn-in.
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
        self.stopped_by_callback = False
        self.since, self.n_resumed = time.perf_counter(), chain.n_sweeps
        for sweep, loss in enumerate(chain.losses):
            trace.append(Progress(number, sweep + 1, loss, math.nan, 0.0))

    def __call__(self, chain: Chain, n_left: int) -> bool:
        """Record a sweep; return whether to stop. `n_left` : estimated number of sweeps until the end of all chains."""
        validation = math.nan if self.held is None else self._held_out(chain)
        if validation < self.best:
            self.best, self.since_best = validation, 0
        else:
            self.since_best += 1
        now = time.perf_counter()
        left = (now - self.since) / (chain.n_sweeps - self.n_resumed) * n_left
        progress = Progress(self.number, chain.n_sweeps, chain.losses[-1], validation, now - self.began, left)
        self.trace.append(progress)
        self.stopped_by_callback = self.callback is not None and bool(self.callback(progress))
        return self.stopped_by_callback or (self.held is not None and self.since_best >= PATIENT_SWEEPS)

    def _held_out(self, chain: Chain) -> float:
        """Loss of the averaged probabilities on the held-out dyads, after one more sweep."""
        held, n = self.held, chain.n_sweeps
        assert held is not None
        if n & (n - 1) == 0:
            # At every power of two, drop the older of the two running averages.
            self.sums, self.counts = [self.sums[1], np.zeros(())], [self.counts[1], 0]
        chance = _chances(self.posterior.proba(chain.state, held), held.label)
        for i in range(2):
            self.sums[i] = self.sums[i] + chance
            self.counts[i] += 1
        return float(np.average(-log_proba(self.sums[0] / self.counts[0]), weights=held.weight))
