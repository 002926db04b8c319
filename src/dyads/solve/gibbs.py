"""Gibbs sampling: Markov chains over the posterior of all parameters, kept as thinned draws."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from dyads.settings import Setting

Array = np.ndarray[Any, Any]

MOST_DRAWS = 512
"""Maximum number of draws kept over all chains: the time of a prediction grows in proportion to it."""


@dataclass(frozen=True, repr=False)
class Gibbs(Setting):
    """Metropolis-within-Gibbs sampling from the posterior; each chain starts from a few sweeps of `Newton`.

    Predicted probabilities are averages over the draws. The priors are learnt, so the penalty only affects where the
    chains start.

    Parameters
    ----------
    sweeps : int, default None
        Number of sweeps per chain, burn-in included. The draws of the burn-in are discarded. By default a chain ends
        by itself, when its predictions are known well enough: after 100 to 1000 sweeps.
    chains : int, default None
        Number of independent chains. Several of them reach several modes of the posterior, and comparing them (R-hat)
        reveals these. By default one, or up to four where small data let them end by themselves in seconds.
    memory : float, default 512
        Memory for the kept draws, in mebibytes. Draws are thinned to fit, and to at most 512 over all chains, but at
        least two draws per chain are kept.
    """

    needs_smooth: ClassVar[bool] = False
    samples: ClassVar[bool] = True
    descends: ClassVar[bool] = False

    sweeps: int | None = None
    chains: int | None = None
    memory: float = 512.0

    def __post_init__(self) -> None:
        self.check_count("sweeps", 1, optional=True)
        self.check_count("chains", 1, optional=True)
        self.check_number("memory")

    @property
    def planned(self) -> int | None:
        """Number of sweeps of all chains, or None if they end by themselves."""
        return None if self.sweeps is None else self.sweeps * (self.chains or 1)

    def most_draws(self, state: Any) -> int:
        """Maximum number of draws kept per chain."""
        return max(2, int(min(MOST_DRAWS, self.memory * 2**20 / max(1, state.rounded().nbytes)) / (self.chains or 1)))


class Sampled(Protocol):
    """What Gibbs sampling needs of a problem. A draw is `state.rounded()`, and `nbytes` is its size in memory."""

    def sweep(self, state: Any, noise: Any) -> tuple[Any, float]: ...
    def loss(self, state: Any) -> float: ...


@dataclass(frozen=True)
class Chain:
    """A Markov chain up to its current sweep.

    Attributes
    ----------
    state : current state
    losses : negative log-likelihood after each sweep
    accepted : acceptance rate of each sweep, the share of blocks that moved
    watched : (n_watched,) monitored quantities after each sweep
    draws : (sweep number, rounded state) of the kept sweeps
    every : thinning interval; sweeps whose number it divides are kept
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
        """Return the chain after one more sweep, which draws its random numbers from `noise`.

        This chain is not changed, so an interrupted sweep loses nothing. If the noise depends only on the sweep number,
        a chain that is stopped and resumed is bit for bit the same as one that was never stopped.
        """
        state, accepted = problem.sweep(self.state, noise)
        n = self.n_sweeps + 1
        draws = (*self.draws, (n, state.rounded())) if n % self.every == 0 else self.draws
        losses, moved = (*self.losses, problem.loss(state)), (*self.accepted, accepted)
        return Chain(state, losses, moved, (*self.watched, watch(state)), draws, self.every).thinned(most_draws)

    def thinned(self, most_draws: int) -> "Chain":
        """Return the chain with at most `most_draws` draws; the thinning interval doubles until they fit."""
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
    # Sums over values[b:] for every b. Subtracting the mean of the last half avoids cancellation in the squares.
    about = values - values[n // 2 :].mean()
    total, squares = np.cumsum(about[::-1])[::-1], np.cumsum(about[::-1] ** 2)[::-1]
    error = (squares / left - (total / left) ** 2) / left
    return int(np.argmin(error[: n // 2 + 1])) if math.isfinite(error[0]) else 0
