"""The posterior of the parameters of an objective, and a sweep of the Gibbs sampler over all of them.

    p(theta, priors | labels) ∝ exp(-sum_i w_i loss_i) p(blocks | priors) p(side weights) p(shared blocks) p(priors)

With the log loss the first factor is the likelihood. The own blocks of rows and columns (or nodes), and the shared
blocks of several relations, have learnt priors (`BlockPrior`). The shared block of a single relation has a fixed
Gaussian prior around its initial value.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dyads.data.dyads import Dyads
from dyads.engine.api import BlockUpdates, Problem
from dyads.model.loss import link
from dyads.model.objective import BlockPrior, draw_side_precision
from dyads.model.parameters import INITIAL_SCALE, Role
from dyads.model.streams import SweepNoise
from dyads.model.structure import free_labels

Array = np.ndarray[Any, Any]

SHARED_SPREAD = 1.0
"""Prior standard deviation of phi and Lambda of a single relation around their initial value, whose size is about one.

A wider prior lets them grow at the expense of the factors that they multiply.
"""

LEAST_SPREAD = 0.1
"""Root mean square below which a latent column counts as shrunk to zero: a third of `INITIAL_SCALE`."""

BIAS_SPREAD = 10.0
"""Prior standard deviation of the label bias of a single relation: nearly flat, in log-odds, as it is not penalised."""


@dataclass(frozen=True)
class State:
    """The state of a chain.

    Attributes
    ----------
    theta : (size,) parameters
    priors : learnt priors of rows and columns, or of nodes; then of relations, if there are several
    side_precision : (3,) precisions of the side weights of rows, columns and dyads
    """

    theta: Array
    priors: tuple[BlockPrior, ...]
    side_precision: Array

    def rounded(self) -> "State":
        """Return a copy in single precision, for storage."""
        priors = (BlockPrior(*(part.astype(np.float32) for part in learnt)) for learnt in self.priors)
        return State(self.theta.astype(np.float32), tuple(priors), self.side_precision.astype(np.float32))

    def arrays(self) -> dict[str, Array]:
        """Return all arrays of the state by name; `of` is the inverse."""
        named = {f"{name}{i}": part for i, prior in enumerate(self.priors) for name, part in prior._asdict().items()}
        return {"theta": self.theta, "side_precision": self.side_precision, **named}

    @classmethod
    def of(cls, arrays: dict[str, Array]) -> "State":
        """Build a state from its `arrays`."""
        n = sum(name.startswith("mean") for name in arrays)
        priors = (BlockPrior(*(arrays[f"{name}{i}"] for name in BlockPrior._fields)) for i in range(n))
        return cls(arrays["theta"], tuple(priors), arrays["side_precision"])

    @property
    def nbytes(self) -> int:
        """The size of all arrays, in bytes."""
        return sum(part.nbytes for part in self.arrays().values())


class Posterior:
    """Samples the posterior of a bound objective, with the block updates of any engine."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layout = problem.objective.layout
        own = (Role.NODE,) if self.layout.structure.one_set else (Role.ROW, Role.COL)
        self.roles = (*own, Role.SHARED) if self.layout.n_relations > 1 else own
        """The roles whose blocks have learnt priors."""

    def approach(self, theta: Array, n_sweeps: int) -> Array:
        """Return theta after sweeps of Newton's method over all blocks; side weights do not move."""
        updates = self.problem.blocks_in_turn(theta)
        for _ in range(n_sweeps):
            for role in updates.roles:
                updates.solve(role)
        return updates.theta()

    def start(self, theta: Array, rng: np.random.Generator) -> State:
        """Return the state of a chain that starts at theta.

        Latent columns that a penalty has shrunk to zero start at random: zero is a saddle point, which chains leave
        slowly.
        """
        theta, structure = theta.astype(np.float64), self.layout.structure
        for role in self.roles:
            own = self.layout.blocks(theta)[role.place]
            vanished = np.sqrt(np.mean(own**2, axis=0)) < LEAST_SPREAD
            vanished[: free_labels(structure) * (1 if role == Role.SHARED else structure.n_bias)] = False
            own[:, vanished] = rng.normal(scale=INITIAL_SCALE, size=own[:, vanished].shape)
        updates = self.problem.blocks_in_turn(theta)
        return State(theta, tuple(BlockPrior.around(updates.moments(role)) for role in self.roles), np.ones(3))

    def sweep(self, state: State, noise: SweepNoise) -> tuple[State, float]:
        """Draw every parameter once, given the rest; return the new state and the mean acceptance rate of blocks."""
        updates = self.problem.blocks_in_turn(state.theta)
        priors, accepted = [], []
        for role, prior in zip(self.roles, state.priors, strict=True):
            prior = prior.redrawn(updates.moments(role), noise.prior(role))
            accepted.append(updates.draw(role, noise.blocks(role), prior)[updates.labelled(role)])
            priors.append(prior)
        if Role.SHARED not in self.roles:
            updates.draw(Role.SHARED, noise.blocks(Role.SHARED), self.shared_prior())
        precision = self._draw_side(updates, state, priors, noise)
        for role, prior in zip(self.roles, priors, strict=True):
            updates.draw_unlabelled(role, noise.blocks(role), prior)
        moved = np.concatenate(accepted)
        return State(updates.theta(), tuple(priors), precision), float(moved.mean()) if len(moved) else 1.0

    def loss(self, state: State) -> float:
        """Return the negative log-likelihood of the dyads."""
        return self.problem.loss(state.theta)

    def log_density(self, state: State, loss: float) -> float:
        """Return the log posterior density of a state, up to a constant.

        The means and precisions of priors are integrated out. The priors of side weights and of the shared block of a
        single relation, which hardly differ between states, do not count, nor do blocks without labels. `loss` : the
        negative log-likelihood.
        """
        updates = self.problem.blocks_in_turn(state.theta.astype(np.float64))
        priors = zip(self.roles, state.priors, strict=True)
        return sum(prior.log_density(updates.moments(role)) for role, prior in priors) - loss

    def proba(self, state: State, dyads: Dyads) -> Array:
        """Return the label probabilities (n, n_labels) of other dyads with the same rows, columns and features."""
        return link(self.problem.scores(state.theta, dyads))

    def shared_prior(self) -> BlockPrior:
        """Return the fixed prior of the shared block of a single relation."""
        (centre,) = self.problem.objective.penalty.shared_centre.astype(np.float64)
        spread = np.where(np.arange(len(centre)) < free_labels(self.layout.structure), BIAS_SPREAD, SHARED_SPREAD)
        return BlockPrior(centre, np.diag(spread**-2.0), spread)

    def _draw_side(self, updates: BlockUpdates, state: State, priors: list[BlockPrior], noise: SweepNoise) -> Array:
        """Draw the precisions of the side weights, then the side weights; return the precisions."""
        drawn, rng, widths = state.side_precision.copy(), noise.side_weights(), self.layout.n_features
        weights = self.layout.side_weights(state.theta)
        for i in np.flatnonzero(widths):
            drawn[i] = draw_side_precision(weights[i], rng)
        for role, prior in zip(self.roles, priors, strict=True):
            if role != Role.SHARED and widths[role.place]:
                updates.draw_side_weights(role, prior, drawn[role.place], rng)
        if widths[2]:
            updates.draw_feature_weights(drawn[2], noise.blocks(Role.FEATURE))
        return drawn
