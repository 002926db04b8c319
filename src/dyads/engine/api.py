"""The interface of an engine, which computes sums over dyads.

Solvers, training, sampling and prediction use an engine through these protocols only, so all of them work with a new
engine (GPU, disk, cluster) as they are. State that lives on a device or on workers stays there: a solver holds an
opaque `Descent` or `BlockUpdates` and asks it for numbers.

Results do not depend on which worker computes what. Dyads are cut into shards of whole tasks, and the cuts depend on
the data only. A pass over a shard is a pure function of the shard, the blocks of the other side, a prior or penalty,
and a seed. Two passes are not pure and run in order on one machine: over the nodes of one id set, because nodes that
share a dyad depend on each other, and over the weights of dyad features, because a dyad may have several features. The
order is the engine's own: a GPU updates nodes at the same time if they share no dyad.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads
from dyads.model.objective import BlockPrior, Moments, Objective
from dyads.model.parameters import Blocks, Role
from dyads.model.record import Model
from dyads.model.streams import Key
from dyads.model.structure import Structure

Array = np.ndarray[Any, Any]


class Descent(Protocol):
    """The state of stochastic gradient descent: parameters and step-size accumulators."""

    def epoch(self, rate: float, seed: int, number: int) -> float:
        """Visit every dyad once, in an order keyed by the seed and the epoch number.

        Returns the sum of the losses, each taken before the step of its dyad, plus the penalty after the epoch.
        """
        ...

    def theta(self) -> Array:
        """Return the current parameters (size,); a later epoch may change this array."""
        ...

    def is_finite(self) -> bool:
        """Whether all parameters are finite."""
        ...

    def snapshot(self) -> Any:
        """Return a copy of the current state, for `restore`; it stays where the state is."""
        ...

    def arrays(self) -> Array:
        """Return the current state as an array (2, size) that files hold; `restore` takes it too."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Return to the state of a snapshot."""
        ...


class BlockUpdates(Protocol):
    """Block coordinate updates: each block is optimised, or drawn from its conditional distribution, given the rest."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the blocks, in the order of a sweep: rows and columns, or nodes; then shared blocks."""
        ...

    def solve(self, role: Role, n_steps: int = 1, codes: Codes | None = None) -> float:
        """Move each block of a role towards its optimum by Newton steps; return the largest change of an entry.

        `codes` : entities to solve for, default all.
        """
        ...

    def draw(self, role: Role, key: Key, prior: BlockPrior | None = None, codes: Codes | None = None) -> Array:
        """Draw each block of a role that has dyads; return the acceptance rate of each block's parts (n,).

        `key` : key of the noise, which is keyed by entity too. `prior` : prior of the blocks, default the penalty.
        `codes` : entities to draw, default all.
        """
        ...

    def draw_unlabelled(self, role: Role, key: Key, prior: BlockPrior) -> None:
        """Draw the blocks of entities without dyads from their prior."""
        ...

    def draw_side_weights(self, role: Role, prior: BlockPrior, precision: float, rng: np.random.Generator) -> None:
        """Draw the side weights of a role given its effective blocks."""
        ...

    def draw_feature_weights(self, precision: float, key: Key) -> None:
        """Draw the weights of dyad features, one feature after the other."""
        ...

    def labelled(self, role: Role) -> Array:
        """Return the mask (n,) of the entities of a role that have dyads."""
        ...

    def moments(self, role: Role) -> Moments:
        """Return the moments of the own blocks of the entities of a role that have dyads."""
        ...

    def theta(self) -> Array:
        """Return the current parameters (size,); a later update may change this array."""
        ...


class Problem(Protocol):
    """An objective bound to dyads. Use it in a ``with`` block: it owns threads, device memory or workers."""

    objective: Objective
    dyads: Dyads

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def value(self, theta: Array) -> float:
        """Return the objective."""
        ...

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the objective and its gradient (size,), in the precision of theta; zero where theta is not free."""
        ...

    def loss(self, theta: Array, held: Dyads | None = None) -> float:
        """Return the weighted sum of losses of the bound dyads, or of `held` if given."""
        ...

    def scores(self, theta: Array, dyads: Dyads) -> Array:
        """Return the scores (n, n_labels) of other dyads with the same rows, columns and features."""
        ...

    def score_gradients(self, theta: Array) -> tuple[Dyads, Array]:
        """Return the bound dyads, in an order chosen by the engine, and d loss / d score of each (n, n_labels)."""
        ...

    def descent(self, theta: Array, visited: bool = False) -> Descent:
        """Start SGD at theta.

        `visited` : set the step-size accumulators as if all dyads had been visited once, so that steps are small.
        """
        ...

    def blocks_in_turn(self, theta: Array, prior: "OwnPrior | None" = None) -> BlockUpdates:
        """Start block updates at theta; `prior` : prior of own blocks, default the penalty."""
        ...

    def restricted(self, free: Array | None) -> "Problem":
        """Return the same problem over other free entries of theta; it shares data and threads with this one."""
        ...

    def without_blocks(self) -> "Problem | None":
        """Return the same problem over the side weights, which belong to no block; None if none of them is free."""
        ...


class OwnPrior(NamedTuple):
    """The prior of own blocks in a trained model.

    Attributes
    ----------
    centre : value that blocks are shrunk towards: of rows (row size,), of columns (col size,)
    precision : learnt precisions of rows and columns, (size, size) each; None means those of the penalty
    """

    centre: tuple[Array, Array]
    precision: tuple[Array, Array] | None = None


class Query(NamedTuple):
    """A search for the best columns of some rows.

    Attributes
    ----------
    rows : (n_rows,) codes, -1 for an unknown row
    cols : (n_cols,) codes of the candidates
    n : number of columns to return for each row
    values : (n_labels,) value of each label
    relation : code of the relation
    excluded : (start, place); row r excludes the candidates at the indices place[start[r]:start[r + 1]] of `cols`
    turned : whether rows and columns change places: the best rows of some columns are searched for
    offset : (n_rows, n_cols, n_labels) numbers to add to the scores, or None
    """

    rows: Array
    cols: Array
    n: int
    values: Array
    relation: int
    excluded: tuple[Array, Array]
    turned: bool = False
    offset: Array | None = None


class Engine(Protocol):
    """Computes sums over dyads."""

    def bind(self, objective: Objective, dyads: Dyads, counts: Counts | None = None) -> Problem:
        """Bind an objective to dyads.

        `counts` : counts over all dyads, if the bound ones are a mini-batch of them. SGD then applies the share of the
        penalty that belongs to the mini-batch.
        """
        ...

    def check(self, objective: Objective, dyads: Dyads, descends: bool = False) -> None:
        """Raise if dyads cannot be bound, and warn of what this engine leaves to another.

        A fit asks before it searches for anything. `descends` : whether its solver asks for a `Descent`.
        """
        ...

    def for_memory(self) -> "Engine":
        """Return the engine for a few dyads in memory: this one, or the CPU's."""
        ...

    def scores(self, models: Sequence[Model], codes: Sequence[Codes], features: Any = None) -> Array:
        """Return the scores of dyads (n, n_labels) in double precision; their softmax gives the probabilities.

        For an entity without labels or with an unknown id (code -1), probabilities are averaged over draws of its
        block, and the scores are the log of the mean. Several models, the draws of one record, are averaged alike.

        `codes` : of rows, columns and, if there are several, relations. `features` : sparse (n, n_features) features
        of the dyads.
        """
        ...

    def top(self, models: Sequence[Model], query: Query) -> tuple[Array, Array]:
        """Find the `n` candidates with the greatest expected value sum_y p_y values_y for each row, best first.

        Returns their indices among the candidates (n_rows, n), -1 if there are fewer, and the values (n_rows, n).
        """
        ...

    def block_scores(self, structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array) -> Array:
        """Return the scores (n, n_labels) of dyads with the given blocks, added to `offset` (n, n_labels)."""
        ...
