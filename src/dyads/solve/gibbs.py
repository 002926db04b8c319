"""Sampling: chains of sweeps over the posterior of all parameters, of which thinned draws are kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from dyads.settings import Setting

Array = np.ndarray[Any, Any]

MOST_DRAWS = 512
"""Most draws kept of all chains; predictions take as many times longer."""


@dataclass(frozen=True, repr=False)
class Gibbs(Setting):
    """Metropolis-within-Gibbs sampling: chains of draws from the posterior, each started from its own point estimate.

    Probabilities are averaged over the draws. The priors are learnt, so that the penalty matters for the start alone.

    Parameters
    ----------
    sweeps : int, default 200
        Sweeps of each chain; those of its burn-in are dropped.
    chains : int, default 1
        Independent chains; comparing them (R-hat) can detect several modes.
    memory : float, default 256
        Mebibytes that the kept draws may take. They are thinned to fit, and to 512 in all; two of each chain always
        stay.
    """

    needs_smooth: ClassVar[bool] = False
    samples: ClassVar[bool] = True

    sweeps: int = 200
    chains: int = 1
    memory: float = 256.0

    def __post_init__(self) -> None:
        self.check_count("sweeps", 1)
        self.check_count("chains", 1)
        self.check_number("memory")

    def most_draws(self, state: Any) -> int:
        """How many draws of each chain are kept, at most."""
        return max(2, int(min(MOST_DRAWS, self.memory * 2**20 / max(1, state.rounded().nbytes)) / self.chains))


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


def burn_in_length(values: Array) -> int:
    """Burn-in length that minimises the standard error of the mean of the remaining values.

    The MSER rule (White 1997): the b, up to half of the values, that minimises var(values[b:]) / (n - b).
    """
    values = np.asarray(values, np.float64)
    n = len(values)
    left = n - np.arange(n)
    # Sums from each place to the end, about the mean of the last half so that squares do not cancel.
    about = values - values[n // 2 :].mean()
    total, squares = np.cumsum(about[::-1])[::-1], np.cumsum(about[::-1] ** 2)[::-1]
    error = (squares / left - (total / left) ** 2) / left
    return int(np.argmin(error[: n // 2 + 1])) if math.isfinite(error[0]) else 0
