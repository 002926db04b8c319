"""Sampling: chains of sweeps over the posterior of all parameters, of which thinned draws are kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

SWEEPS = 200
"""Sweeps of a chain, unless the user says otherwise; those before it has settled are dropped."""

MOST_DRAWS = 512
"""Most draws kept of all chains; predictions take as many times longer."""


class Problem(Protocol):
    """What is sampled. A state is anything with `rounded()`, what is kept of it, and `nbytes`."""

    def sweep(self, state: Any, rng: np.random.Generator) -> tuple[Any, float]: ...
    def loss(self, state: Any) -> float: ...


@dataclass
class Chain:
    """One chain as it grows: where it is, and what is kept of its way.

    Attributes
    ----------
    state : where it is
    losses, accepted : of each sweep, minus the log-likelihood after it and the share of blocks that moved
    watched : of each sweep, the quantities that are watched (n_watched,)
    draws : (number of the sweep, rounded state) of every `every`-th sweep
    """

    state: Any
    losses: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    watched: list[Array] = field(default_factory=list)
    draws: list[tuple[int, Any]] = field(default_factory=list)
    every: int = 1

    @property
    def n_sweeps(self) -> int:
        return len(self.losses)

    def keep(self, most: int) -> None:
        """Keep the state if its turn has come; above `most` draws, every other one is dropped from then on."""
        if self.n_sweeps % self.every == 0:
            self.draws.append((self.n_sweeps, self.state.rounded()))
        while len(self.draws) > most:
            self.every *= 2
            self.draws = [draw for draw in self.draws if draw[0] % self.every == 0]


def extend(
    chain: Chain,
    problem: Problem,
    n_sweeps: int,
    stream: Callable[[int], np.random.Generator],
    watch: Callable[[Any], Array],
    most_draws: int,
    monitor: Callable[[Chain], bool],
) -> bool:
    """Let a chain go on until it has made `n_sweeps`; returns whether the monitor ended it before.

    Sweep number i takes its random numbers from `stream(i)`, so that a chain that is stopped and goes on is, bit for
    bit, the one that was never stopped. `most_draws` are kept.
    """
    while chain.n_sweeps < n_sweeps:
        chain.state, accepted = problem.sweep(chain.state, stream(chain.n_sweeps))
        chain.losses.append(problem.loss(chain.state))
        chain.accepted.append(accepted)
        chain.watched.append(watch(chain.state))
        chain.keep(most_draws)
        if monitor(chain):
            return True
    return False


def most_draws(state: Any, memory: float, n_chains: int) -> int:
    """How many draws of each of several chains fit into `memory` bytes."""
    return max(2, int(min(MOST_DRAWS, memory / max(1, state.rounded().nbytes)) / n_chains))


def settled_after(values: Array) -> int:
    """How many of the first values to drop: those whose loss makes the mean of the rest most certain.

    The marginal standard error rule (White 1997): the b up to half of them that minimises var(values[b:]) / (n - b).
    """
    values = np.asarray(values, np.float64)
    n = len(values)
    left = n - np.arange(n)
    # Sums from each place to the end, about the mean of the last half so that squares do not cancel.
    about = values - values[n // 2 :].mean()
    total, squares = np.cumsum(about[::-1])[::-1], np.cumsum(about[::-1] ** 2)[::-1]
    error = (squares / left - (total / left) ** 2) / left
    return int(np.argmin(error[: n // 2 + 1])) if math.isfinite(error[0]) else 0
