"""The orders in which passes visit dyads: by owner, in shards of whole tasks, and in the cells of SGD.

The orders depend on the data only, never on which worker computes what; so sums do not depend on it either.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dyads.data.dyads import Counts, Dyads, Grouped, chunks
from dyads.engine.bundles import ABSENT, Absent, Owned, read_only
from dyads.engine.compiled import kernel
from dyads.model.parameters import Role

Array = np.ndarray[Any, Any]
Bounds = tuple[int, int]
"""A half-open range of dyads or owners: the first, and one past the last."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Applies a function to tasks, in any order, and returns the results in the order of the tasks."""

SHARD = 2**20
"""Target number of dyads per shard, the unit to map from disk, copy to a device or send to a worker.

Larger shards amortise the transfer; smaller ones need less memory at a time.
"""

SORTED_DYADS = 2**24
"""Dyads that are sorted at a time: more take more memory, and fewer more passes over the data."""

CHUNK = 8192
"""Dyads per task of a sum: a few hundred microseconds of work, well above the cost of starting a task."""

ENTITY_CHUNK = 4096
"""Dyads per task that solves for entities or draws them: about a millisecond of work."""

ENTITY_COST = 40
"""Cost of an entity in such a task, in dyads: most of it is the factorisation of its curvature."""


@dataclass(frozen=True)
class Shard:
    """A run of owners with all their dyads: self-contained, so that a pass over it is a pure function.

    Attributes
    ----------
    role : role of the owners
    first : code of the first owner
    start : (n_owners + 1,) the dyads of owner e are order[start[e]:start[e + 1]]
    order : (m,) positions in `dyads`
    dyads : (n,) dyads, sorted by owner; in row order for nodes, whose dyads have two owners
    place : (n,) for a shard of columns, the position of each dyad in row order; otherwise Absent
    """

    role: Role
    first: int
    start: Array
    order: Array
    dyads: Dyads
    place: Any = ABSENT

    def __len__(self) -> int:
        """The number of owners."""
        return len(self.start) - 1

    @property
    def owners(self) -> slice:
        """The codes of the owners."""
        return slice(self.first, self.first + len(self))

    @property
    def owned(self) -> Owned:
        return Owned(int(self.role), self.first, self.start, self.order)

    @property
    def sum_tasks(self) -> list[Bounds]:
        """Ranges of owners for sums, relative to the shard's first owner; together they cover all owners."""
        return owner_tasks(self.start, CHUNK)

    @cached_property
    def entity_tasks(self) -> list[Bounds]:
        """Ranges of owners to solve for or to draw; one range for nodes, since they depend on each other."""
        if self.role == Role.NODE:
            return [(0, len(self))]
        return owner_tasks(self.start + ENTITY_COST * np.arange(len(self.start)), ENTITY_CHUNK)

    def tasks_of(self, codes: Array) -> list[Bounds]:
        """Return ranges of consecutive owners that cover those `codes` that are in this shard."""
        in_shard = codes[(codes >= self.first) & (codes < self.first + len(self))]
        return runs(in_shard - self.first, self.start)

    @cached_property
    def by_relation(self) -> Grouped:
        """The dyads grouped by relation; within a relation they keep their order."""
        if self.dyads.relation is None:
            return Grouped(np.array([0, len(self.dyads)]), self.order[: len(self.dyads)])
        return Grouped.by(self.dyads.relation, self.dyads.n_relations)


class Orders:
    """The bound dyads in the orders of the passes; each order is computed when it is first needed.

    The dyads of an owner are sorted by relation, so that tiles of dyads of one relation are large.

    `n_groups` : number of groups into which SGD divides rows, and columns. `shard` : target number of dyads per shard,
    by default `SHARD`. Each engine chooses its own.
    """

    def __init__(self, dyads: Dyads, one_set: bool, n_groups: int, shard: int | None = None) -> None:
        self.dyads, self.one_set, self.n_groups, self.shard = dyads, one_set, n_groups, shard
        self._labelled: dict[Role, Array] = {}

    @cached_property
    def in_row_order(self) -> Dyads:
        parts = sorted_parts(self.dyads.row, self.dyads.relation, self.dyads.n_rows)
        dyads: Dyads = self.dyads.home.in_order("by-row", self.dyads, parts)[0]
        return dyads

    @cached_property
    def by_row(self) -> list[Shard]:
        """Shards of rows."""
        return cut(Role.ROW, self.in_row_order, self.dyads.n_rows, ABSENT, self.shard)

    @cached_property
    def by_col(self) -> list[Shard]:
        """Shards of columns; the dyads of a column are in row order."""
        before = self.in_row_order
        parts = sorted_parts(before.col, before.relation, before.n_cols)
        dyads, place = before.home.in_order("by-column", before, parts)
        return cut(Role.COL, dyads, dyads.n_cols, place, self.shard)

    @cached_property
    def by_node(self) -> list[Shard]:
        """One shard with all nodes of one id set and their dyads in either role, self-links once; updated in order."""
        dyads = self.in_row_order
        other = np.flatnonzero(dyads.row != dyads.col)
        order = np.concatenate([np.arange(len(dyads)), other])
        node = np.concatenate([dyads.row, dyads.col[other]])
        if dyads.relation is not None:
            by_relation = np.argsort(dyads.relation[order], kind="stable")
            order, node = order[by_relation], node[by_relation]
        grouped = Grouped.by(node, dyads.n_rows)
        return [Shard(Role.NODE, 0, grouped.start, order[grouped.order], dyads)]

    def of(self, role: Role) -> list[Shard]:
        """Return the shards of a role: rows, columns or nodes."""
        return self.by_row if role == Role.ROW else self.by_col if role == Role.COL else self.by_node

    def labelled(self, role: Role) -> Array:
        """Return a mask of the rows, columns, nodes or relations that have dyads."""
        if role not in self._labelled:
            if role == Role.SHARED:
                count: Any = np.sum([np.diff(shard.by_relation.start) for shard in self.by_row], axis=0)
            else:
                count = np.concatenate([np.diff(shard.start) for shard in self.of(role)])
            self._labelled[role] = count > 0
        return self._labelled[role]

    @cached_property
    def cells(self) -> "Cells":
        return Cells.of(self.dyads, self.one_set, self.n_groups)


def sorted_parts(owner: Array, relation: Array | None, n_owners: int) -> Iterator[Array]:
    """Yield, part by part, the positions that sort dyads by owner, then by relation; otherwise their order is kept.

    A part has the dyads of some owners, about `SORTED_DYADS`, so that memory does not grow with the data.
    """
    parts = [(0, n_owners)]
    if len(owner) > SORTED_DYADS:
        count = sum(np.bincount(owner[some], minlength=n_owners) for some in chunks(len(owner)))
        parts = owner_tasks(np.concatenate([[0], np.cumsum(count)]), SORTED_DYADS)
    for first, last in parts:
        positions = np.concatenate(
            [some.start + np.flatnonzero((owner[some] >= first) & (owner[some] < last)) for some in chunks(len(owner))]
        )
        own = owner[positions]
        order = np.argsort(own, kind="stable") if relation is None else np.lexsort((relation[positions], own))
        yield positions[order]


def cut(role: Role, dyads: Dyads, n_owners: int, place: Any, shard: int | None = None) -> list[Shard]:
    """Cut dyads, sorted by owner, into shards of whole owners."""
    owner = dyads.row if role == Role.ROW else dyads.col
    start = np.searchsorted(owner, np.arange(n_owners + 1))
    shards = []
    tasks = owner_tasks(start, SHARD if shard is None else shard)
    # All shards share one array: the dyads of a shard are in the order of its owners.
    identity = np.arange(max(int(start[last] - start[first]) for first, last in tasks))
    for first, last in tasks:
        begin, end = int(start[first]), int(start[last])
        whole = end - begin == len(dyads)
        part = dyads if whole else dyads.take(slice(begin, end))
        lines = place if isinstance(place, Absent) else read_only(place[begin:end])
        shards.append(Shard(role, first, start[first : last + 1] - begin, identity[: end - begin], part, lines))
    return shards


@dataclass(frozen=True)
class Cells:
    """Dyads sorted by cell, a pair of a row group and a column group, for SGD.

    Cell (p, q) has the number c = p n_groups + q and the dyads start[c]..start[c + 1]-1. With one id set, a dyad of
    groups p and q lies in cell (min(p, q), max(p, q)), whichever of them is the group of its row.

    Attributes
    ----------
    dyads : (n,) dyads, sorted by cell
    start : (n_groups^2 + 1,) first dyad of each cell
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
        cell = first * first.dtype.type(n_groups) + second
        count = sum(np.bincount(cell[some], minlength=n_groups**2) for some in chunks(len(cell)))
        parts = sorted_parts(cell, None, n_groups**2)
        in_cells, _ = dyads.home.in_order(f"cells-{n_groups}", dyads, parts)
        return cls(in_cells, np.concatenate([[0], np.cumsum(count)]), n_groups, one_set)

    def round(self, shift: int) -> list[int]:
        """Return cells of which no two share a group.

        Modulo n_groups these are the cells (p, p + shift) or, with one id set, the cells (p, q) with p + q = shift.
        """
        n = self.n_groups
        if self.one_set:
            pairs = {tuple(sorted((p, (shift - p) % n))) for p in range(n)}
            return sorted(p * n + q for p, q in pairs)
        return [p * n + (p + shift) % n for p in range(n)]


def _deal(counts: Array, n_groups: int) -> Array:
    """Assign entities to groups of about equal counts: in turn, by descending count."""
    # NumPy sorts 16-bit integers by radix sort, which is fast; cell numbers must fit into them.
    group = np.empty(len(counts), np.int16 if n_groups**2 < 2**15 else np.int32)
    group[np.argsort(-counts, kind="stable")] = np.arange(len(counts)) % n_groups
    return group


def independent(nodes: Shard) -> list[Array]:
    """Cut the nodes of a shard into turns: no two of a turn share a dyad, so they can be updated at the same time.

    Greedy colouring: nodes by descending number of dyads, each into the first turn without a partner (Welsh & Powell
    1967). There are at most as many turns as the largest number of partners, plus one.
    """
    largest_first = np.argsort(-np.diff(nodes.start), kind="stable")
    turn = np.full(len(nodes), -1)
    turn_pass(nodes.start, nodes.order, nodes.dyads.row, nodes.dyads.col, largest_first, turn, np.full(len(nodes), -1))
    sequence = largest_first[np.argsort(turn[largest_first], kind="stable")]
    return np.split(sequence, np.cumsum(np.bincount(turn))[:-1])


@kernel
def turn_pass(start, order, row, col, nodes, turn, taken):  # type: ignore[no-untyped-def]
    """WRITE the turn of each node, which is -1 before; `taken` : (n_nodes,) the last node with a partner in a turn."""
    for e in nodes:
        for n in range(start[e], start[e + 1]):
            partner = row[order[n]] + col[order[n]] - e
            if turn[partner] >= 0:
                taken[turn[partner]] = e
        turn[e] = 0
        while taken[turn[e]] == e:
            turn[e] += 1


def in_order(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
    """Apply the function to one task after the other; for tasks that depend on each other. A `Run`."""
    return [function(task) for task in tasks]


def even_tasks(first: int, last: int, size: int | None = None) -> list[Bounds]:
    """Cut dyads, or rows, first..last-1 into ranges of `size`, by default `CHUNK`."""
    size = CHUNK if size is None else size
    return [(begin, min(begin + size, last)) for begin in range(first, last, size)]


def owner_tasks(start: Array, size: int) -> list[Bounds]:
    """Cut owners into ranges of about `size` dyads each; `start` : (n_owners + 1,) first dyad of each owner."""
    n_tasks = max(1, int(start[-1]) // size)
    cuts = np.searchsorted(start, np.linspace(0, start[-1], n_tasks + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], cuts, [len(start) - 1]]))
    return [(int(first), int(last)) for first, last in pairwise(bounds)]


def runs(codes: Array, start: Array) -> list[Bounds]:
    """Return ranges of consecutive codes, of about `ENTITY_CHUNK` dyads each."""
    codes = np.unique(codes)
    if not len(codes):
        return []
    new_run = np.diff(codes, prepend=codes[0] - 2) > 1
    full = np.diff(start[codes] // ENTITY_CHUNK, prepend=-1) > 0
    first = np.flatnonzero(new_run | full)
    last = np.append(first[1:], len(codes)) - 1
    return [(int(codes[i]), int(codes[j]) + 1) for i, j in zip(first, last, strict=True)]
