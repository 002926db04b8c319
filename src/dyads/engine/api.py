"""What an engine is: where sums over dyads are computed, and everything that others may ask of it.

Solvers, training, sampling and predictions use an engine through these protocols alone, so that a new engine (a GPU, a
disk, a cluster) brings all of them along. State that lives on a device or on workers stays there: a solver holds an
opaque `Descent` or `BlockUpdates` and asks it for numbers.

Sums do not depend on who computes them. Dyads are cut into shards of whole tasks, and these by the data alone; a pass
over a shard is a pure function of the shard, the blocks of the other side, a prior or penalty and a seed. Two things
are not pure, and are updated in order, on one machine: nodes of one id set, where those that share a dyad depend on
each other, and the weights of features of dyads, of which a dyad may have several.
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
    """A run of stochastic gradient descent: parameters, and what the step sizes are made of."""

    def epoch(self, rate: float, seed: int, number: int) -> float:
        """Visit every dyad once, in an order keyed by the seed and the number of the epoch.

        Returns the loss of each dyad before its step, summed, plus the penalty at the end.
        """
        ...

    def theta(self) -> Array:
        """The parameters (size,) as they are now; a later epoch may change this array."""
        ...

    def is_finite(self) -> bool: ...

    def snapshot(self) -> Any:
        """The state as it is now, to be given to `restore`."""
        ...

    def restore(self, snapshot: Any) -> None: ...


class BlockUpdates(Protocol):
    """Blocks of entities that are solved for, or drawn, in turn: each given all others."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Whose blocks there are, in the order of a sweep: rows, columns (or nodes), shared blocks."""
        ...

    def solve(self, role: Role, n_steps: int = 1, codes: Codes | None = None) -> float:
        """Move each block of a role towards its optimum by Newton steps; returns the largest move of an entry.

        `codes` : of the entities to solve for, default all.
        """
        ...

    def draw(self, role: Role, key: Key, prior: BlockPrior | None = None, codes: Codes | None = None) -> Array:
        """Draw each block of a role that has dyads; returns the share of its parts that were accepted (n,).

        `key` : of the noise, which is further keyed by entity. `prior` : of the blocks, default the penalty.
        """
        ...

    def draw_unlabelled(self, role: Role, key: Key, prior: BlockPrior) -> None:
        """Draw the blocks of entities without dyads from their prior."""
        ...

    def draw_side_weights(self, role: Role, prior: BlockPrior, precision: float, rng: np.random.Generator) -> None:
        """Draw the side weights of a role given its effective blocks."""
        ...

    def draw_feature_weights(self, precision: float, key: Key) -> None:
        """Draw the weights of the features of dyads, one feature after the other."""
        ...

    def labelled(self, role: Role) -> Array:
        """Which entities of a role have dyads (n,)."""
        ...

    def moments(self, role: Role) -> Moments:
        """The moments of the own blocks of entities that have dyads."""
        ...

    def theta(self) -> Array:
        """The parameters (size,) as they are now; a later update may change this array."""
        ...


class Problem(Protocol):
    """An objective bound to dyads. Use it in a ``with`` block: threads, device memory or workers live inside it."""

    objective: Objective
    dyads: Dyads

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def value(self, theta: Array) -> float:
        """The objective."""
        ...

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """The objective and its gradient (size,), in the precision of theta; zero where theta is not free."""
        ...

    def loss(self, theta: Array, held: Dyads | None = None) -> float:
        """The weighted loss of the bound dyads, summed, or of others."""
        ...

    def scores(self, theta: Array, dyads: Dyads) -> Array:
        """The scores (n, n_labels) of other dyads of the same rows, columns and features."""
        ...

    def score_gradients(self, theta: Array) -> tuple[Dyads, Array]:
        """The bound dyads in an order of the engine's, and d loss / d score of each (n, n_labels)."""
        ...

    def descent(self, theta: Array, visited: bool = False) -> Descent:
        """Begin SGD at theta; `visited` : as if all dyads had been visited once, so that steps are small."""
        ...

    def blocks_in_turn(self, theta: Array, prior: "OwnPrior | None" = None) -> BlockUpdates:
        """Begin block updates at theta; `prior` : of own blocks, in place of the penalty's."""
        ...

    def restricted(self, free: Array | None) -> "Problem":
        """The same problem, minimised over other entries of theta; it shares what this one holds."""
        ...

    def without_blocks(self) -> "Problem | None":
        """The same problem over the parameters that lie in no block, the side weights; None if none of them moves."""
        ...


class OwnPrior(NamedTuple):
    """What own blocks are drawn towards, in a model that is trained already.

    Attributes
    ----------
    centre : of rows (row size,) and columns (col size,)
    precision : of rows and columns, (size, size) each, where it was learnt; None for the penalty's
    """

    centre: tuple[Array, Array]
    precision: tuple[Array, Array] | None = None


class Query(NamedTuple):
    """Which columns are best for some rows.

    Attributes
    ----------
    rows : (n_rows,) codes, -1 for an unknown one; cols : (n_cols,) codes of the candidates
    n : how many to find for each row
    values : (n_labels,) what each label is worth
    relation : code
    excluded : (start, place), the places in `cols` to leave out for row i: place[start[i]:start[i + 1]]
    """

    rows: Array
    cols: Array
    n: int
    values: Array
    relation: int
    excluded: tuple[Array, Array]


class Engine(Protocol):
    """Where sums over dyads are computed."""

    def bind(self, objective: Objective, dyads: Dyads, counts: Counts | None = None) -> Problem:
        """Bind an objective to dyads.

        `counts` : of all dyads, where the bound ones are a batch of them, which SGD then penalises by its share.
        """
        ...

    def scores(self, models: Sequence[Model], codes: Sequence[Codes], features: Any = None) -> Array:
        """Score dyads (n, n_labels) in double precision; the softmax of the scores is the probabilities.

        The scores of an entity without labels, and of an unknown one, of code -1, are the log of the mean of its
        probabilities over what its own block may be; several models, the draws of one record, are averaged in the same
        way. `codes` : of rows, columns and, if there are several, relations. `features` : sparse (n, n_features), those
        of the dyads.
        """
        ...

    def top(self, models: Sequence[Model], query: Query) -> tuple[Array, Array]:
        """The `n` candidates of greatest expected value sum_y p_y values_y for each row, best first.

        Returns their places among the candidates (n_rows, n), -1 where there are fewer, and the values (n_rows, n).
        """
        ...

    def block_scores(self, structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array) -> Array:
        """The scores (n, n_labels) of dyads of given blocks, on top of `offset`."""
        ...
