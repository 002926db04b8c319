"""The posterior of an objective's parameters: one sweep of a Gibbs sampler over everything, given the dyads.

    p(theta, priors | labels) ∝ exp(-sum_i w_i loss_i) p(blocks | priors) p(side weights) p(shared blocks) p(priors)

With the log loss the first factor is the likelihood. Own blocks of rows and columns (or nodes), and the shared blocks
of several relations, have learnt priors, see `prior`; what a single relation shares is Gaussian about where it starts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dyads.data.dyads import Dyads, Grouped
from dyads.engine.entity import (
    COL,
    FEATURE,
    NODE,
    ROW,
    SHARED,
    Prior,
    Subproblems,
    draw_alone,
    draw_entities,
    noise_pass,
)
from dyads.engine.host import PLACE, Host, Turns, in_order
from dyads.engine.scoring import block_scores
from dyads.engine.threads import even_tasks
from dyads.model.loss import link
from dyads.model.parameters import INITIAL_SCALE, shifted
from dyads.model.prior import Learnt, draw_side_precision, draw_side_weights
from dyads.model.streams import Key, SweepNoise
from dyads.model.structure import free_labels

Array = np.ndarray[Any, Any]

SHARED_SPREAD = 1.0
"""Prior standard deviation of a label's weights of shared latent weights, about where they start."""

VANISHED = 0.1
"""Latent columns whose root mean square is below this have been brought to zero by a penalty."""

BIAS_SPREAD = 10.0
"""Prior standard deviation of the label bias of a single relation."""


@dataclass(frozen=True)
class State:
    """Where a chain is.

    Attributes
    ----------
    theta : (size,) the parameters
    priors : the learnt priors of rows and columns, or of nodes, and last of relations, if there are several
    side_precision : (3,) of the side weights of rows, columns and dyads
    """

    theta: Array
    priors: tuple[Learnt, ...]
    side_precision: Array

    def rounded(self) -> "State":
        """The same in single precision, to be kept."""
        priors = (Learnt(*(part.astype(np.float32) for part in learnt)) for learnt in self.priors)
        return State(self.theta.astype(np.float32), tuple(priors), self.side_precision.astype(np.float32))

    def arrays(self) -> dict[str, Array]:
        """All of it, by name."""
        named = {f"{name}{i}": part for i, one in enumerate(self.priors) for name, part in one._asdict().items()}
        return {"theta": self.theta, "side_precision": self.side_precision, **named}

    @classmethod
    def of(cls, arrays: dict[str, Array]) -> "State":
        """The state whose `arrays` these are."""
        n = sum(name.startswith("mean") for name in arrays)
        priors = (Learnt(*(arrays[f"{name}{i}"] for name in Learnt._fields)) for i in range(n))
        return cls(arrays["theta"], tuple(priors), arrays["side_precision"])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.arrays().values())


class Posterior:
    """A bound objective, sampled. The same for a seed at any number of threads."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.layout = host.objective.layout
        self.kinds = (NODE,) if self.layout.structure.one_set else (ROW, COL)
        if self.layout.n_relations > 1:
            self.kinds = (*self.kinds, SHARED)

    def start(self, theta: Array, rng: np.random.Generator) -> State:
        """A state at the parameters theta.

        Latent weights that a penalty has brought to zero start at random: zero is a saddle, which chains leave slowly.
        """
        theta = theta.astype(np.float64)
        turns, n_bias = Turns(self.host, theta), self.layout.structure.n_bias * free_labels(self.layout.structure)
        for kind in self.kinds:
            own = turns.own[PLACE[kind]]
            vanished = np.sqrt(np.mean(own**2, axis=0)) < VANISHED
            vanished[: free_labels(self.layout.structure) if kind == SHARED else n_bias] = False
            own[:, vanished] = rng.normal(scale=INITIAL_SCALE, size=own[:, vanished].shape)
        priors = tuple(Learnt.around(turns.own[PLACE[kind]][self._labelled(turns, kind)]) for kind in self.kinds)
        return State(theta, priors, np.ones(3))

    def sweep(self, state: State, noise: SweepNoise) -> tuple[State, float]:
        """Draw everything once, given all else; returns the new state, and the share of blocks that moved."""
        theta, layout = state.theta.copy(), self.layout
        turns = Turns(self.host, theta)
        priors, accepted = [], []
        for kind, learnt in zip(self.kinds, state.priors, strict=True):
            own, labelled = turns.blocks[PLACE[kind]] - turns.shift[PLACE[kind]], self._labelled(turns, kind)
            learnt = learnt.redrawn(own[labelled], noise.prior(kind))
            centre = learnt.mean + turns.shift[PLACE[kind]]
            prior = Prior(learnt.precision, np.ones(len(centre)), centre, np.ones(len(learnt.mean), np.bool_))
            problems = turns.problems(kind)._replace(prior=prior)
            run = in_order if kind == NODE else self.host.threads.map
            accepted.append(draw_entities(problems, turns.tasks(kind), noise.blocks(kind), run)[labelled])
            priors.append(learnt)
        if layout.n_relations == 1:
            problems = turns.problems(SHARED)._replace(prior=self._shared_prior())
            draw_alone(problems, even_tasks(len(turns.dyads)), noise.blocks(SHARED), self.host.threads.map)
        precision = self._draw_side(turns, theta, priors, state.side_precision, noise)
        for kind, learnt in zip(self.kinds, priors, strict=True):
            self._draw_unlabelled(turns, kind, learnt, noise.blocks(kind))
        turns.land()
        moved = np.concatenate(accepted)
        return State(theta, tuple(priors), precision), float(moved.mean()) if len(moved) else 1.0

    def loss(self, state: State) -> float:
        """Minus the log-likelihood of the dyads."""
        return self.host.loss(state.theta)

    def proba(self, state: State, dyads: Dyads) -> Array:
        """The probabilities of labels (n, n_labels) of other dyads of the same rows, columns and features."""
        blocks = self.layout.effective(state.theta, self.host.dyads.side)
        first = self.layout.first_scores(state.theta, dyads.side)
        start = np.zeros((len(dyads), dyads.n_labels)) if first is None else first
        return link(
            block_scores(self.layout.structure, blocks, dyads.row, dyads.col, dyads.relation, start, self.host.threads)
        )

    def _labelled(self, turns: Turns, kind: int) -> Array:
        """Which entities have dyads."""
        return np.diff(turns.grouped(kind).start) > 0

    def _draw_unlabelled(self, turns: Turns, kind: int, learnt: Learnt, key: Key) -> None:
        """Draw the blocks of entities without dyads, of which nothing but the prior is known."""
        without = np.flatnonzero(~self._labelled(turns, kind))
        if len(without):
            root = np.linalg.cholesky(learnt.precision)
            noise = np.empty((len(without), len(learnt.mean)))
            noise_pass(key, without, noise)
            away = np.linalg.solve(root.T, noise.T).T
            turns.blocks[PLACE[kind]][without] = turns.shift[PLACE[kind]][without] + learnt.mean + away

    def _shared_prior(self) -> Prior:
        """The prior of what all dyads of one relation share."""
        centre, n = self.host.objective.penalty.shared_centre.astype(np.float64), free_labels(self.layout.structure)
        spread = np.where(np.arange(centre.shape[1]) < n, BIAS_SPREAD, SHARED_SPREAD)
        return Prior(np.diag(spread**-2.0), np.ones(1), centre, np.ones(centre.shape[1], np.bool_))

    def _draw_side(
        self, turns: Turns, theta: Array, priors: list[Learnt], precision: Array, noise: SweepNoise
    ) -> Array:
        """Draw the side weights, in theta, and returns their precisions, drawn first."""
        layout, side, rng = self.layout, turns.side, noise.side_weights()
        drawn = precision.copy()
        weights = layout.side_weights(theta)
        for i in range(3):
            if len(weights[i]):
                drawn[i] = draw_side_precision(weights[i], rng)
        for i, kind in enumerate(self.kinds[: 1 if layout.structure.one_set else 2]):
            if len(weights[i]):
                labelled, columns = self._labelled(turns, kind), layout.side_columns[i]
                weights[i][:] = draw_side_weights(
                    side[i][labelled], turns.blocks[i][labelled], priors[i], columns, drawn[i], rng
                )
                turns.shift[i] = shifted(np.zeros_like(turns.shift[i]), side[i] @ weights[i], columns)
                if kind == NODE:
                    turns.shift[1] = turns.shift[0]
        if len(weights[2]):
            self._draw_dyad_weights(turns, weights[2], drawn[2], noise.blocks(FEATURE))
        return drawn

    def _draw_dyad_weights(self, turns: Turns, weights: Array, precision: float, key: Key) -> None:
        """Draw the weights of each feature of dyads in turn: one follows the other, since a dyad may have several."""
        by_feature = turns.side.dyad.tocsc()
        n, width = weights.shape
        prior = Prior(precision * np.eye(width), np.ones(n), -weights, np.ones(width, np.bool_))
        moves = np.zeros_like(weights)
        problems = Subproblems(
            turns.specs, FEATURE, turns.blocks, turns.dyads, turns.first,
            Grouped(by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int64)), prior,
            moves, by_feature.data.astype(np.float64),
        )  # fmt: skip
        draw_entities(problems, [(0, n)], key, in_order)
        weights += moves
