"""Sampling: chains of sweeps over the posterior of all parameters, of which thinned draws are kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

SWEEPS = 200
"""Sweeps of a chain, unless the user says otherwise; those before it has settled are dropped."""

MOST_DRAWS = 512
"""Most draws kept of all chains; predictions take as many times longer."""


class Sampled(Protocol):
    """What Gibbs sampling needs of a problem. Of a state, `rounded()` is kept, and its `nbytes` are counted."""

    def sweep(self, state: Any, noise: Any) -> tuple[Any, float]: ...
    def loss(self, state: Any) -> float: ...


@dataclass(frozen=True)
class Chain:
    """One chain so far: where it is, and what is kept of its way.

    Attributes
    ----------
    state : where it is
    losses, accepted : of each sweep, minus the log-likelihood after it and the share of blocks that moved
    watched : of each sweep, the quantities that are watched (n_watched,)
    draws : (number of the sweep, rounded state) of every `every`-th sweep
    """

    state: Any
    losses: tuple[float, ...] = ()
    accepted: tuple[float, ...] = ()
    watched: tuple[Array, ...] = ()
    draws: tuple[tuple[int, Any], ...] = ()
    every: int = 1

    @property
    def n_sweeps(self) -> int:
        return len(self.losses)

    def advanced(self, problem: Sampled, noise: Any, watch: Callable[[Any], Array], most_draws: int) -> "Chain":
        """The chain after one more sweep, with the random numbers of `noise`.

        It is a new chain, so a sweep that is interrupted leaves the old one as it was. With noise that depends on the
        number of the sweep alone, a chain that is stopped and goes on is, bit for bit, the one that was never stopped.
        """
        state, accepted = problem.sweep(self.state, noise)
        n = self.n_sweeps + 1
        draws = (*self.draws, (n, state.rounded())) if n % self.every == 0 else self.draws
        losses, moved = (*self.losses, problem.loss(state)), (*self.accepted, accepted)
        return Chain(state, losses, moved, (*self.watched, watch(state)), draws, self.every).thinned(most_draws)

    def thinned(self, most_draws: int) -> "Chain":
        """The chain with at most so many draws: every other one is dropped, from then on."""
        every, draws = self.every, self.draws
        while len(draws) > most_draws:
            every *= 2
            draws = tuple(draw for draw in draws if draw[0] % every == 0)
        return replace(self, draws=draws, every=every)


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
