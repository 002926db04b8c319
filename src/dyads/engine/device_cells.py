"""Dyads dealt into cells on a device: for SGD, see `orders.Cells` and `warps`.

Rows and columns are dealt to groups by descending number of dyads, back and forth, so that groups have about as many
dyads each. The cells are counted, then each dyad writes its position to its cell, and the positions of a cell are
sorted: so the order of dyads does not depend on which thread came first. Nothing of this is done on the host, which
for 10^9 dyads has neither the time nor the memory.

**Entities with many dyads have copies.** The steps of an entity follow each other, about a microsecond each: a column
with a hundredth of 10^8 dyads would take a second in an epoch of a quarter. So an entity with more than half a group's
even share of the dyads is cut into copies that have at most that many. Each dyad belongs to one of the copies, by a
hash of its position; copies are lines of tables, and in groups, like any other entity. After a phase of an epoch each
takes their mean, weighted by dyads, as the copies of shared blocks do.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from dyads.data.dyads import Dyads
from dyads.engine.bundles import ABSENT, Absent, Data, or_absent
from dyads.engine.compiled import jitable, read_if_present
from dyads.engine.device import SIMULATED, THREADS, bind_kernels, new_array, to_device, to_host
from dyads.engine.warps import LANES, WARPS, Copies, sort_cells
from dyads.model.streams import FIXED_SEED, Key, Stream, words_of

Array = np.ndarray[Any, Any]

CELL_DYADS = 24
"""Target number of dyads of a cell: to take a cell and to wait for others costs as much as a few dyads."""

MOST_GROUPS = 4096
"""Most groups of rows, and of columns: twice the warps that an H200 runs at a time, so that few of them wait."""

COPIES_OF_A_GROUP = 2
"""An entity has copies if it has more than this fraction of a group's even share of the dyads, 1 / n_groups."""

BLOCKS = 1 if SIMULATED else 2048
"""Blocks of threads of a pass over all dyads, a few for each that a device runs at a time."""

SMALL_LABELS = 127
"""Largest number of labels whose codes are held as bytes on the device."""


class Deal(NamedTuple):
    """How the rows, or the columns, are dealt to groups.

    Attributes
    ----------
    first : (n,) line of the first copy of each entity, or of the entity itself
    n_copies : (n,) number of copies; one means the entity itself
    group : (n + copies,) group of each line
    """

    first: Any
    n_copies: Any
    group: Any

    @classmethod
    def of(cls, count: Array, n_groups: int) -> "Deal":
        """Deal entities with these numbers of dyads (n,)."""
        n, share = len(count), count.sum() / (COPIES_OF_A_GROUP * n_groups)
        many = count > share if n_groups > 1 else np.zeros(n, np.bool_)
        n_copies = np.where(many, np.ceil(count / max(share, 1)), 1).astype(np.int32)
        of_copies = n_copies[many]
        first = np.arange(n)
        first[many] = n + np.cumsum(of_copies) - of_copies
        size = np.concatenate([np.where(many, 0, count), np.repeat(count[many] / of_copies, of_copies)])
        turn, at = np.divmod(np.arange(len(size)), n_groups)
        group = np.empty(len(size), np.int32)
        group[np.argsort(-size, kind="stable")] = np.where(turn % 2, n_groups - 1 - at, at)
        return cls(first.astype(np.int32), n_copies, group)

    @property
    def n_lines(self) -> int:
        """The number of lines of a table: entities, and copies."""
        return len(self.group)

    def with_copies(self, values: Array) -> Array:
        """Return the values (n + copies, ...) of lines, given those of entities (n, ...)."""
        many = self.n_copies > 1
        return np.concatenate([values, np.repeat(values[many], self.n_copies[many], axis=0)])

    @property
    def copies(self) -> Copies:
        owner = np.flatnonzero(self.n_copies > 1)
        start = np.concatenate([[0], np.cumsum(self.n_copies[owner])])
        counter = np.arange(start[-1])
        return Copies(*(x.astype(np.int32) for x in (owner, start, len(self.first) + counter, counter)))


class Dealt(NamedTuple):
    """Dyads on the device, sorted by cell. Codes of rows and columns are lines of tables.

    Attributes
    ----------
    data : `Data` of the device
    start : (n_groups^2 + 1,) first dyad of each cell, on the device
    n_groups : number of groups
    row, col : `Deal` of rows and of columns, on the host; the same with one id set
    typical_weight : mean weight of a dyad
    """

    data: Data
    start: Any
    n_groups: int
    row: Deal
    col: Deal
    typical_weight: float

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool) -> "Dealt":
        """Copy dyads to the device and deal them."""
        n, n_groups = len(dyads), group_count(len(dyads))
        label = dyads.label.astype(np.int8 if dyads.n_labels <= SMALL_LABELS else np.int32)
        weight = None if dyads.weight is None else dyads.weight.astype(np.float32)
        relation = None if dyads.relation is None else dyads.relation.astype(np.int32)
        row_codes, col_codes = (codes.astype(np.int32, copy=False) for codes in (dyads.row, dyads.col))
        raw = to_device(Data(row_codes, col_codes, label, or_absent(relation), or_absent(weight), ABSENT))
        del label, weight, relation
        row_count, col_count = (_counted(codes, n) for codes, n in ((raw.row, dyads.n_rows), (raw.col, dyads.n_cols)))
        if one_set:
            row = col = Deal.of(row_count + col_count, n_groups)
        else:
            row, col = Deal.of(row_count, n_groups), Deal.of(col_count, n_groups)
        dealing = Dealing(to_device(row), to_device(col), n_groups, one_set, Key.of(FIXED_SEED, Stream.COPIES))
        threads = (BLOCKS, THREADS)
        count = to_device(np.zeros(n_groups**2, np.int64))
        count_cells[threads](raw, dealing, count)
        bounds = np.concatenate([[0], np.cumsum(to_host(count))])
        start, cursor = to_device(bounds), to_device(bounds[:-1])
        order = new_array((n,), np.int32 if n <= np.iinfo(np.int32).max else np.int64)
        place_dyads[threads](raw, dealing, cursor, order)
        sort_cells[threads[0], LANES * WARPS](start, order)
        data = Data(*(x if isinstance(x, Absent) else new_array((n,), x.dtype) for x in raw))
        gather_dyads[threads](raw, dealing, order, data)
        return cls(data, start, n_groups, row, col, dyads.total_weight / n)


def group_count(n_dyads: int) -> int:
    """Return the number of groups of rows, and of columns."""
    return max(1, min(math.isqrt(n_dyads // CELL_DYADS), MOST_GROUPS))


def _counted(codes: Any, n: int) -> Array:
    """Return the number of dyads (n,) of each code."""
    total = to_device(np.zeros(n, np.int64))
    count_codes[BLOCKS, THREADS](codes, total)
    return to_host(total)


class Dealing(NamedTuple):
    """What says to which cell a dyad belongs.

    Attributes
    ----------
    row, col : `Deal` of rows and of columns, on the device
    n_groups, one_set : see `Dealt`
    key : key of the hash that chooses copies
    """

    row: Deal
    col: Deal
    n_groups: int
    one_set: bool
    key: Key


@jitable
def lines_and_cell(dealing, row, col, i):  # type: ignore[no-untyped-def]
    """Return the lines of row and column of dyad i, and its cell."""
    r, c = row[i], col[i]
    n_row, n_col = dealing.row.n_copies[r], dealing.col.n_copies[c]
    line_r, line_c = dealing.row.first[r], dealing.col.first[c]
    if n_row > 1 or n_col > 1:
        a, b, _, _ = words_of(dealing.key, i, 0, 0)
        # A self-link has one copy of its node in both roles.
        b = a if dealing.one_set and r == c else b
        line_r += np.int64(a) % n_row
        line_c += np.int64(b) % n_col
    p, q = dealing.row.group[line_r], dealing.col.group[line_c]
    if dealing.one_set and q < p:
        p, q = q, p
    return line_r, line_c, p * dealing.n_groups + q


@cuda.jit
def count_codes(codes, total):  # type: ignore[no-untyped-def]
    """ADD the number of dyads of each code to `total`."""
    for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
        cuda.atomic.add(total, codes[i], 1)


@cuda.jit
def count_cells(raw, dealing, count):  # type: ignore[no-untyped-def]
    """ADD the number of dyads of each cell to `count`."""
    for i in range(cuda.grid(1), raw.row.size, cuda.gridsize(1)):
        _, _, cell = lines_and_cell(dealing, raw.row, raw.col, i)
        cuda.atomic.add(count, cell, 1)


@cuda.jit
def place_dyads(raw, dealing, cursor, order):  # type: ignore[no-untyped-def]
    """WRITE the positions of dyads to their cells, in any order; `cursor` : (n_cells,) next free place of each."""
    for i in range(cuda.grid(1), raw.row.size, cuda.gridsize(1)):
        _, _, cell = lines_and_cell(dealing, raw.row, raw.col, i)
        order[cuda.atomic.add(cursor, cell, 1)] = i


@cuda.jit
def gather_dyads(raw, dealing, order, data):  # type: ignore[no-untyped-def]
    """WRITE the dyads in an order to `data`."""
    for n in range(cuda.grid(1), order.size, cuda.gridsize(1)):
        i = order[n]
        data.row[n], data.col[n], _ = lines_and_cell(dealing, raw.row, raw.col, i)
        data.label[n] = raw.label[i]
        carry(raw.relation, i, data.relation, n)
        carry(raw.weight, i, data.weight, n)


@read_if_present(lambda array, i, out, n: None)
def carry(array, i, out, n):  # type: ignore[no-untyped-def]
    """out[n] = array[i], unless they are absent."""
    out[n] = array[i]


bind_kernels()
