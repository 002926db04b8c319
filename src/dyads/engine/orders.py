"""The orders in which passes visit dyads: shards of whole tasks by owner, and the cells of SGD.

Everything here depends on the data alone, never on who computes it: so neither does any sum.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dyads.data.dyads import Counts, Dyads, Grouped
from dyads.engine.bundles import ABSENT, Absent, Owned
from dyads.model.parameters import Role

Array = np.ndarray[Any, Any]
Bounds = tuple[int, int]
"""The first of a run of dyads or owners, and one after the last."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Maps a function over tasks, in any order, and returns what it gave in theirs."""

SHARD = 2**20
"""Dyads per shard aimed at: what is mapped from disk, copied to a device or sent to a worker at once."""

CHUNK = 8192
"""Dyads per task of a sum: some hundred microseconds, well above what starting a task costs."""

ENTITY_CHUNK = 2048
"""Dyads per task that solves for entities, or draws them: a dyad costs some ten times as much there."""


@dataclass(frozen=True)
class Shard:
    """A run of owners and all their dyads, in order: self-contained, so that a pass over it is a pure function.

    Attributes
    ----------
    role : whose dyads these are
    first : code of the first owner
    start : (n_owners + 1,) where the dyads of each owner begin
    order : (m,) their positions in `dyads`
    dyads : in the order of owners, but for nodes, whose dyads have two owners
    place : (n,) of a shard of columns, where its dyads lie in the order of rows; else Absent
    """

    role: Role
    first: int
    start: Array
    order: Array
    dyads: Dyads
    place: Any = ABSENT

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self.start) - 1

    @property
    def owners(self) -> slice:
        """Their codes."""
        return slice(self.first, self.first + len(self))

    @property
    def owned(self) -> Owned:
        return Owned(int(self.role), self.first, self.start, self.order)

    @property
    def sum_tasks(self) -> list[Bounds]:
        """All owners, in runs for sums; they are counted from the shard's first."""
        return owner_tasks(self.start, CHUNK)

    @property
    def entity_tasks(self) -> list[Bounds]:
        """All owners, in runs that are solved for, or drawn: nodes in one, since they depend on each other."""
        return [(0, len(self))] if self.role == Role.NODE else owner_tasks(self.start, ENTITY_CHUNK)

    def tasks_of(self, codes: Array) -> list[Bounds]:
        """Runs of neighbouring owners, those of `codes` that lie in this shard."""
        mine = codes[(codes >= self.first) & (codes < self.first + len(self))]
        return runs(mine - self.first, self.start)

    @cached_property
    def by_relation(self) -> Grouped:
        """The dyads of each relation, in their order."""
        dyads = self.dyads
        relation = np.zeros(len(dyads), np.int32) if dyads.relation is None else dyads.relation
        return Grouped.by(relation, dyads.n_relations)


class Orders:
    """The bound dyads in the orders that passes visit them in, each made when it is first needed.

    `n_groups` : how many groups SGD deals rows, and columns, into; an engine's own choice.
    """

    def __init__(self, dyads: Dyads, one_set: bool, n_groups: int) -> None:
        self.dyads, self.one_set, self.n_groups = dyads, one_set, n_groups

    @cached_property
    def _row_order(self) -> Array:
        return np.argsort(self.dyads.row, kind="stable")

    @cached_property
    def in_row_order(self) -> Dyads:
        return self.dyads.take(self._row_order)

    @cached_property
    def by_row(self) -> list[Shard]:
        """Shards of rows."""
        return cut(Role.ROW, self.in_row_order, self.dyads.n_rows, ABSENT)

    @cached_property
    def by_col(self) -> list[Shard]:
        """Shards of columns, whose dyads are in the order of rows within a column."""
        place = np.argsort(self.dyads.col[self._row_order], kind="stable")
        return cut(Role.COL, self.dyads.take(self._row_order[place]), self.dyads.n_cols, place)

    @cached_property
    def by_node(self) -> list[Shard]:
        """All nodes of one id set with their dyads in either role, a self-link once: one shard, updated in order."""
        dyads = self.in_row_order
        other = np.flatnonzero(dyads.row != dyads.col)
        grouped = Grouped.by(np.concatenate([dyads.row, dyads.col[other]]), dyads.n_rows)
        order = np.concatenate([np.arange(len(dyads)), other])[grouped.order]
        return [Shard(Role.NODE, 0, grouped.start, order, dyads)]

    def of(self, role: Role) -> list[Shard]:
        """The shards whose owners have a role: rows, columns or nodes."""
        return self.by_row if role == Role.ROW else self.by_col if role == Role.COL else self.by_node

    @cached_property
    def cells(self) -> "Cells":
        return Cells.of(self.dyads, self.one_set, self.n_groups)


def cut(role: Role, dyads: Dyads, n_owners: int, place: Any) -> list[Shard]:
    """Cut dyads in the order of their owners into shards."""
    owner = dyads.row if role == Role.ROW else dyads.col
    start = np.searchsorted(owner, np.arange(n_owners + 1))
    shards = []
    for first, last in owner_tasks(start, SHARD):
        begin, end = int(start[first]), int(start[last])
        whole = end - begin == len(dyads)
        part = dyads if whole else dyads.take(slice(begin, end))
        lines = place if isinstance(place, Absent) else place[begin:end]
        shards.append(Shard(role, first, start[first : last + 1] - begin, np.arange(end - begin), part, lines))
    return shards


@dataclass(frozen=True)
class Cells:
    """Dyads sorted by cell; cell (p, q) of the n_groups x n_groups holds start[p n_groups + q] onwards.

    With one id set a dyad of groups p and q lies in cell (min(p, q), max(p, q)), whichever is its row's.
    """

    dyads: Dyads
    start: Array
    n_groups: int
    one_set: bool

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool, n_groups: int) -> "Cells":
        counts = Counts.of(dyads, one_set)
        first, second = _deal(counts.row, n_groups)[dyads.row], _deal(counts.col, n_groups)[dyads.col]
        if one_set:
            first, second = np.minimum(first, second), np.maximum(first, second)
        grouped = Grouped.by(first * first.dtype.type(n_groups) + second, n_groups**2)
        return cls(dyads.take(grouped.order), grouped.start, n_groups, one_set)

    def round(self, shift: int) -> list[int]:
        """Cells of which no two share a group: (p, p + shift), or with one id set those with p + q = shift, mod n."""
        n = self.n_groups
        if self.one_set:
            pairs = {tuple(sorted((p, (shift - p) % n))) for p in range(n)}
            return sorted(p * n + q for p, q in pairs)
        return [p * n + (p + shift) % n for p in range(n)]


def _deal(counts: Array, n_groups: int) -> Array:
    """Deal entities into groups of about equal counts, the most frequent first."""
    # Sixteen bits are sorted by radix, as long as cells can be counted in them.
    group = np.empty(len(counts), np.int16 if n_groups**2 < 2**15 else np.int32)
    group[np.argsort(-counts, kind="stable")] = np.arange(len(counts)) % n_groups
    return group


def in_order(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
    """Run tasks that depend on each other: one after the other."""
    return [function(task) for task in tasks]


def even_tasks(first: int, last: int) -> list[Bounds]:
    """Cut dyads first..last-1 into tasks of sums."""
    return [(begin, min(begin + CHUNK, last)) for begin in range(first, last, CHUNK)]


def owner_tasks(start: Array, size: int) -> list[Bounds]:
    """Cut owners into runs of about `size` dyads."""
    n_tasks = max(1, int(start[-1]) // size)
    cuts = np.searchsorted(start, np.linspace(0, start[-1], n_tasks + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], cuts, [len(start) - 1]]))
    return [(int(first), int(last)) for first, last in pairwise(bounds)]


def runs(codes: Array, start: Array) -> list[Bounds]:
    """Ranges of neighbouring codes, of about ENTITY_CHUNK dyads each."""
    codes = np.unique(codes)
    if not len(codes):
        return []
    new_run = np.diff(codes, prepend=codes[0] - 2) > 1
    full = np.diff(start[codes] // ENTITY_CHUNK, prepend=-1) > 0
    first = np.flatnonzero(new_run | full)
    last = np.append(first[1:], len(codes)) - 1
    return [(int(codes[i]), int(codes[j]) + 1) for i, j in zip(first, last, strict=True)]
