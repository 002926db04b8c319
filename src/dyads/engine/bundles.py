"""The arguments of passes: bundles of arrays, and functions that read arrays that may be missing.

Numba prunes a branch on None only if a whole argument is None, and CUDA does not accept None at all. So a missing array
in a bundle is an `Absent()`, and is read through a small function that is resolved by its type.
"""

from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads
from dyads.engine.compiled import inlined, jitable, read_if_present, stack_array

Array = np.ndarray[Any, Any]

PARTIAL_SUM = 2048
"""Dyads per partial sum. The sums of an owner with more dyads are the sum over parts of each part's sum.

Workers can then divide a large owner at the bounds of parts without changing its sums. Smaller parts divide more
evenly; larger ones leave fewer partial sums to add.
"""

TILE = 256
"""Dyads per tile: enough for a matrix product to be efficient, and few enough for a tile to stay in a fast cache."""

ROOM = TILE + 8
"""Length of the rows of a tile's arrays. A power of two would map all rows of a column to a few sets of the cache."""


class Absent(NamedTuple):
    """The place of a missing array."""


ABSENT = Absent()


class Specs(NamedTuple):
    """The structure and the loss; the arrays of the loss have the precision of the blocks."""

    structure: Any
    loss: Any

    @classmethod
    def of(cls, structure: Any, loss: Any, dtype: Any) -> "Specs":
        arrays = {name: value for name, value in loss._asdict().items() if isinstance(value, np.ndarray)}
        # Numba would compile kernels again for any other memory layout.
        return cls(structure, loss._replace(**{name: np.ascontiguousarray(x, dtype) for name, x in arrays.items()}))


class Data(NamedTuple):
    """Dyads in the form that passes read.

    Attributes
    ----------
    row, col, label : (n,) codes
    relation : (n,) codes, or Absent if there is one relation
    weight : (n,) in the precision of the blocks, or Absent if all weights are one
    offset : (n, n_labels) score offsets, or Absent if they are zero

    All but offsets are read-only views: so dyads in memory and dyads mapped from disk run the same compiled kernels.
    """

    row: Any
    col: Any
    label: Any
    relation: Any
    weight: Any
    offset: Any

    @classmethod
    def of(cls, dyads: Dyads, dtype: Any, offset: Array | None) -> "Data":
        weight = None if dyads.weight is None else dyads.weight.astype(dtype, copy=False)
        row, col, label = (read_only(codes) for codes in (dyads.row, dyads.col, dyads.label))
        relation, weight = (None if array is None else read_only(array) for array in (dyads.relation, weight))
        return cls(row, col, label, or_absent(relation), or_absent(weight), or_absent(offset))


class Owned(NamedTuple):
    """A run of entities of one role, with the dyads of each.

    Attributes
    ----------
    role : `Role` of the entities, as an integer
    first : code of the first entity; entity e of the run has the code first + e
    start : (n_entities + 1,) the dyads of entity e are order[start[e]:start[e + 1]]
    order : (m,) positions in `Data`
    amount : (m,) value of the feature in each of these dyads; Absent unless the role is FEATURE
    """

    role: int
    first: int
    start: Any
    order: Any
    amount: Any = ABSENT


class TileWork(NamedTuple):
    """Scratch arrays for the losses of a tile of dyads.

    Attributes
    ----------
    label : (ROOM,)
    s, g : (n_labels, ROOM) scores and score gradient
    value, total : (ROOM,)
    """

    label: Any
    s: Any
    g: Any
    value: Any
    total: Any

    @classmethod
    def of(cls, n_labels: int, dtype: Any) -> "TileWork":
        s, g = np.empty((2, n_labels, ROOM), dtype)
        return cls(np.empty(ROOM, np.int64), s, g, np.empty(ROOM, dtype), np.empty(ROOM, dtype))


class LabelWork(NamedTuple):
    """Scratch arrays for the loss of one dyad at a time, as a tile of one.

    Attributes
    ----------
    tile_s, tile_g : (n_labels, 1) scores and score gradient
    s, g : (n_labels,) views of them
    value, total : (1,)
    """

    tile_s: Any
    tile_g: Any
    s: Any
    g: Any
    value: Any
    total: Any


@inlined
def label_work(n_labels, like):  # type: ignore[no-untyped-def]
    """Return the scratch arrays for dyads with `n_labels` labels, in the precision of `like`."""
    s, g = stack_array(n_labels, 1, like), stack_array(n_labels, 1, like)
    return LabelWork(s, g, s[:, 0], g[:, 0], stack_array(1, 1, like)[0], stack_array(1, 1, like)[0])


class BlockWork(NamedTuple):
    """Scratch arrays for the gradient by an entity's block.

    Attributes
    ----------
    slope : (size,), v : (size, 1) factors of the gradient; see `slopes`
    partial : (size,) gradient of a part of the entity's dyads; see `PARTIAL_SUM`
    """

    slope: Any
    v: Any
    partial: Any

    @classmethod
    def of(cls, size: int, dtype: Any) -> "BlockWork":
        return cls(np.empty(size, dtype), np.empty((size, 1), dtype), np.empty(size, dtype))


def or_absent(array: Array | None) -> Any:
    """Return the array, or `Absent()` for None."""
    return ABSENT if array is None else array


def read_only(array: Array) -> Array:
    """A view that cannot be written to, as an array mapped from disk: numba compiles kernels anew for other arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


@read_if_present(lambda relation, i: 0)
def relation_at(relation, i):  # type: ignore[no-untyped-def]
    """Return the relation of dyad i; 0 if `relation` is absent."""
    return relation[i]


@read_if_present(lambda weight, i, value: value)
def weigh(weight, i, value):  # type: ignore[no-untyped-def]
    """Return the value times the weight of dyad i; the weight is one if `weight` is absent."""
    return value * weight[i]


@read_if_present(lambda weight, i, x: None)
def weigh_all(weight, i, x):  # type: ignore[no-untyped-def]
    """x *= weight of dyad i; x is unchanged if `weight` is absent."""
    for k in range(x.size):
        x[k] *= weight[i]


def _zero(offset, i, s):  # type: ignore[no-untyped-def]
    s[:] = 0


@read_if_present(_zero)
def load_scores(offset, i, s):  # type: ignore[no-untyped-def]
    """s = score offset of dyad i; zero if `offset` is absent."""
    for y in range(s.size):
        s[y] = offset[i, y]


@jitable
def add(x, y):  # type: ignore[no-untyped-def]
    """x += y."""
    for k in range(x.size):
        x[k] += y[k]
