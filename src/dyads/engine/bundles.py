"""What passes take: a handful of bundles of arrays, and the readers of those that may be missing.

Numba prunes a branch on None for whole arguments only, and CUDA takes no None at all. So an array that may be missing
is an `Absent()` inside a bundle, and is read through a small function that is resolved by its type.
"""

from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads
from dyads.engine.compiled import jitable, read_if_present

Array = np.ndarray[Any, Any]

TILE = 2048
"""Most dyads whose loss, gradient and curvature are added up one by one for an owner; more are summed in tiles.

So a large owner can be cut over several workers at the bounds of tiles, and its sums stay the same.
"""


class Absent(NamedTuple):
    """Stands for an array that is not there."""


ABSENT = Absent()


class Specs(NamedTuple):
    """What is computed: a structure and a loss, with the arrays of the loss in the precision of the blocks."""

    structure: Any
    loss: Any

    @classmethod
    def of(cls, structure: Any, loss: Any, dtype: Any) -> "Specs":
        arrays = {name: value for name, value in loss._asdict().items() if isinstance(value, np.ndarray)}
        # Other memory layouts would be compiled again.
        return cls(structure, loss._replace(**{name: np.ascontiguousarray(x, dtype) for name, x in arrays.items()}))


class Data(NamedTuple):
    """Dyads, as far as a pass sees them.

    Attributes
    ----------
    row, col, label : (n,) codes
    relation : (n,) codes, or Absent when there is one relation
    weight : (n,) in the precision of the blocks, or Absent when all are one
    offset : (n, n_labels) what the scores begin at, or Absent for zero
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
        return cls(dyads.row, dyads.col, dyads.label, or_absent(dyads.relation), or_absent(weight), or_absent(offset))


class Owned(NamedTuple):
    """A run of entities of one role, and which dyads each of them has.

    Attributes
    ----------
    role : `Role` of the entities, as an integer
    first : code of the first entity; entity e of the run has the code first + e
    start : (n_entities + 1,) its dyads are order[start[e]] to order[start[e + 1] - 1]
    order : (m,) positions in `Data`
    amount : (m,) how much of its feature each of these dyads has; Absent unless the role is FEATURE
    """

    role: int
    first: int
    start: Any
    order: Any
    amount: Any = ABSENT


class LabelWork(NamedTuple):
    """Scratch of passes: scores `s` and score gradients `g`, (n_labels,) each."""

    s: Any
    g: Any

    @classmethod
    def of(cls, n_labels: int, dtype: Any) -> "LabelWork":
        return cls(np.empty(n_labels, dtype), np.empty(n_labels, dtype))


def or_absent(array: Array | None) -> Any:
    """The array, or `Absent()` in place of None."""
    return ABSENT if array is None else array


@read_if_present(lambda relation, i: 0)
def relation_at(relation, i):  # type: ignore[no-untyped-def]
    """The relation of dyad i; there is one, 0, if they are absent."""
    return relation[i]


@read_if_present(lambda weight, i, value: value)
def weigh(weight, i, value):  # type: ignore[no-untyped-def]
    """The value times the weight of dyad i, which is one if weights are absent."""
    return value * weight[i]


@read_if_present(lambda relation: False)
def are_several(relation):  # type: ignore[no-untyped-def]
    """Whether there is more than one relation."""
    return True


@read_if_present(lambda weight, i, x: None)
def weigh_all(weight, i, x):  # type: ignore[no-untyped-def]
    """x *= weight of dyad i."""
    for k in range(x.size):
        x[k] *= weight[i]


def _zero(offset, i, s):  # type: ignore[no-untyped-def]
    s[:] = 0


@read_if_present(_zero)
def load_scores(offset, i, s):  # type: ignore[no-untyped-def]
    """s = what the scores of dyad i begin at."""
    for y in range(s.size):
        s[y] = offset[i, y]


@jitable
def add(x, y):  # type: ignore[no-untyped-def]
    """x += y."""
    for k in range(x.size):
        x[k] += y[k]
