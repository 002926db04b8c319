"""The orders in which passes visit dyads, and the tasks these are cut into, which do not depend on threads."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dyads.data.dyads import Dyads, Grouped
from dyads.engine.threads import CHUNK
from dyads.model.penalty import Counts

Array = np.ndarray[Any, Any]

CELL = 8192
"""Dyads per SGD cell aimed at, and the most groups a side is dealt into."""
MAX_GROUPS = 32


class Orders:
    """The bound dyads in the orders that passes visit them in, each made when it is first needed."""

    def __init__(self, dyads: Dyads, one_set: bool) -> None:
        self.dyads, self.one_set = dyads, one_set

    @cached_property
    def by_owner(self) -> "ByOwner":
        return ByOwner.of(self.dyads)

    @cached_property
    def cells(self) -> "Cells":
        return Cells.of(self.dyads, self.one_set)


@dataclass(frozen=True)
class ByOwner:
    """Dyads sorted by row, with the order that visits them by column, and the tasks of both passes."""

    dyads: Dyads
    by_row: Grouped
    by_col: Grouped
    row_tasks: list[tuple[int, int]]
    col_tasks: list[tuple[int, int]]

    @classmethod
    def of(cls, dyads: Dyads) -> "ByOwner":
        by_row = Grouped.by(dyads.row, dyads.n_rows)
        dyads = dyads.take(by_row.order)
        by_row = Grouped(by_row.start, np.arange(len(dyads)))
        by_col = Grouped.by(dyads.col, dyads.n_cols)
        return cls(dyads, by_row, by_col, owner_tasks(by_row.start, CHUNK), owner_tasks(by_col.start, CHUNK))

    @cached_property
    def by_node(self) -> Grouped:
        """The dyads of each node of one id set, in either role; a self-link once."""
        dyads = self.dyads
        other = np.flatnonzero(dyads.row != dyads.col)
        grouped = Grouped.by(np.concatenate([dyads.row, dyads.col[other]]), dyads.n_rows)
        return Grouped(grouped.start, np.concatenate([np.arange(len(dyads)), other])[grouped.order])

    @cached_property
    def by_relation(self) -> Grouped:
        relation = np.zeros(len(self.dyads), np.int32) if self.dyads.relation is None else self.dyads.relation
        return Grouped.by(relation, self.dyads.n_relations)


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
    def of(cls, dyads: Dyads, one_set: bool) -> "Cells":
        n_groups = int(np.clip(math.isqrt(len(dyads) // CELL), 1, MAX_GROUPS))
        counts = Counts.of(dyads, one_set)
        first, second = _deal(counts.row, n_groups)[dyads.row], _deal(counts.col, n_groups)[dyads.col]
        if one_set:
            first, second = np.minimum(first, second), np.maximum(first, second)
        grouped = Grouped.by(first * np.int16(n_groups) + second, n_groups**2)
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
    group = np.empty(len(counts), np.int16)
    group[np.argsort(-counts, kind="stable")] = np.arange(len(counts)) % n_groups
    return group


def owner_tasks(start: Array, size: int) -> list[tuple[int, int]]:
    """Cut owners into runs of about `size` dyads."""
    n_tasks = max(1, int(start[-1]) // size)
    cuts = np.searchsorted(start, np.linspace(0, start[-1], n_tasks + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], cuts, [len(start) - 1]]))
    return [(int(first), int(last)) for first, last in pairwise(bounds)]


def runs(codes: Array, start: Array) -> list[tuple[int, int]]:
    """Ranges of neighbouring codes, of about CHUNK dyads each."""
    codes = np.unique(codes)
    if not len(codes):
        return []
    new_run = np.diff(codes, prepend=codes[0] - 2) > 1
    full = np.diff(start[codes] // CHUNK, prepend=-1) > 0
    first = np.flatnonzero(new_run | full)
    last = np.append(first[1:], len(codes)) - 1
    return [(int(codes[i]), int(codes[j]) + 1) for i, j in zip(first, last, strict=True)]
