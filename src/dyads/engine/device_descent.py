"""Stochastic gradient descent on a device: its state and its epochs; see `warps` for what a cell does.

An epoch is cut into phases of whole rounds, a launch each. Within a phase the cells of a row group move their own copy
of the shared blocks, and entities with many dyads have copies too; after it, copies take their mean.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Counts
from dyads.engine.bundles import Specs
from dyads.engine.descent import decay, first_state
from dyads.engine.device import SIMULATED, THREADS, copy_of, n_multiprocessors, new_array, to_device, to_host
from dyads.engine.device_cells import BLOCKS, Dealt
from dyads.engine.warps import (
    COLUMNS,
    LANES,
    MOST_REGISTERS,
    SLICES,
    SQUARES,
    VALUE,
    WARPS,
    Copies,
    Division,
    Pace,
    Places,
    Progress,
    Shares,
    Tables,
    average,
    descent_kernel,
    divide,
    pack,
    spread,
    survey,
    unpack,
)
from dyads.model.objective import Objective
from dyads.model.streams import Key, Stream, random_stream

Array = np.ndarray[Any, Any]

PHASES = 32
"""Most phases of an epoch: as often as on the CPU, whose epochs have up to 32 rounds, copies take their mean."""

WARPS_AT_A_TIME = 2**16 // (32 * MOST_REGISTERS)
"""Warps that a multiprocessor, with its 2^16 registers, runs at a time."""


class TablePart(NamedTuple):
    """A table of blocks in the flat vector of parameters, and in the tables of the device.

    Attributes
    ----------
    table : the table, (n, 2, pitch)
    line : its first line
    first, last : the entries of the vector
    place : (size,) places of the entries of a block in a line
    scale, strength, centre : the penalty; see `warps.survey`
    copies : `Copies` of the blocks, or None
    visits : field of `Progress` that counts their visits
    """

    table: str
    line: int
    first: int
    last: int
    place: Any
    scale: Any
    strength: Any
    centre: Any
    copies: Copies | None
    visits: str


class DeviceDescent:
    """The state of SGD on a device: tables of blocks and of sums of squared gradients. See `api.Descent`."""

    def __init__(self, objective: Objective, dealt: Dealt, counts: Counts, theta: Array, visited: bool) -> None:
        layout = objective.layout
        self._objective, self._dealt = objective, dealt
        self._frozen: Array | None = None
        self._one_set, self._n_relations = layout.structure.one_set, layout.n_relations
        self._division, places = divide(layout)
        self._places: Places = to_device(places)
        self._loss = to_device(Specs.of(objective.structure, objective.loss, np.float32).loss)
        if objective.free is not None:
            self._frozen = theta[~objective.free].astype(np.float32)
        self._shares = to_device(_shares(objective, counts, dealt, self._division, places))
        self._parts = self._cut(places)
        self._tables = self._new_tables()
        self._finite: bool | None = None
        self._flat = new_array((layout.size,), np.float32)
        self.restore(first_state(objective, counts, theta, dealt.typical_weight, visited))

    def epoch(self, rate: float, seed: int, number: int) -> float:
        """Visit all cells, phase by phase; see `api.Descent.epoch`."""
        dealt, n_groups = self._dealt, self._dealt.n_groups
        shift = int(random_stream(seed, Stream.ROUNDS, number).integers(n_groups))
        key = Key.of(seed, Stream.VISITS, number)
        n_rows, n_cols = len(dealt.row.first), len(dealt.col.first)
        bounds = np.linspace(0, n_groups, min(PHASES, n_groups) + 1).astype(int).tolist()
        progress = self._progress(len(bounds) - 1)
        kernel, tables = descent_kernel(self._division), self._tables.flat()
        blocks = 1 if SIMULATED else -(-min(n_groups, WARPS_AT_A_TIME * n_multiprocessors()) // WARPS)
        for phase, (first, last) in enumerate(pairwise(bounds)):
            pace = Pace(phase, first, last, shift, n_groups, n_rows, n_cols, np.float32(rate), key)
            kernel[blocks, LANES * WARPS](
                self._loss, dealt.data, dealt.start, tables, self._shares, self._places, progress, pace
            )
            for part in self._parts:
                if part.copies is not None:
                    table, visits = getattr(self._tables, part.table), getattr(progress, part.visits)
                    average[len(part.copies.owner), SLICES * COLUMNS](table, part.copies, visits, phase)
        self._unpack(VALUE)
        penalty, self._finite = self._survey()
        return float(to_host(progress.value).sum()) + penalty

    def theta(self) -> Array:
        self._unpack(VALUE)
        theta = to_host(self._flat)
        if self._objective.free is not None:
            theta[~self._objective.free] = self._frozen
        return theta

    def is_finite(self) -> bool:
        if self._finite is None:
            self._unpack(VALUE)
            self._finite = self._survey()[1]
        return self._finite

    def snapshot(self) -> Tables:
        # With one id set, rows and columns are one table.
        row = copy_of(self._tables.row)
        return Tables(row, row if self._one_set else copy_of(self._tables.col), copy_of(self._tables.shared))

    def arrays(self) -> Array:
        state = np.empty((2, self._objective.layout.size), np.float32)
        self._unpack(SQUARES)
        state[1] = to_host(self._flat)
        state[0] = self.theta()
        return state

    def restore(self, snapshot: Any) -> None:
        self._finite = None
        if isinstance(snapshot, Tables):
            row = copy_of(snapshot.row)
            self._tables = Tables(row, row if self._one_set else copy_of(snapshot.col), copy_of(snapshot.shared))
            return
        for which in (VALUE, SQUARES):
            flat = to_device(snapshot[which].astype(np.float32))
            for part in self._parts:
                table = getattr(self._tables, part.table)
                pack[BLOCKS, THREADS](flat[part.first : part.last], part.place, table, part.line, which)
        for part in self._parts:
            if part.copies is not None:
                spread[len(part.copies.owner), THREADS](getattr(self._tables, part.table), part.copies)

    def _unpack(self, which: int) -> None:
        """WRITE all blocks, or their sums of squares, to the flat vector."""
        for part in self._parts:
            table, flat = getattr(self._tables, part.table), self._flat[part.first : part.last]
            unpack[BLOCKS, THREADS](table, part.line, which, part.place, flat)

    def _survey(self) -> tuple[float, bool]:
        """Return the penalty of the flat vector, and whether all its numbers are finite."""
        penalty, n_strange = 0.0, 0.0
        for part in self._parts:
            value, strange = to_device(np.zeros((2, BLOCKS)))
            flat = self._flat[part.first : part.last]
            survey[BLOCKS, LANES](flat, part.scale, part.strength, part.centre, value, strange)
            penalty, n_strange = penalty + float(to_host(value).sum()), n_strange + float(to_host(strange).sum())
        return penalty, n_strange == 0

    def _cut(self, places: Places) -> list[TablePart]:
        """Return the tables of the blocks that the flat vector holds."""
        layout, penalty, dealt = self._objective.layout, self._objective.penalty, self._dealt
        n_groups, n_relations = dealt.n_groups, layout.n_relations
        (row, _, shared), end = layout.sizes, layout.own_size
        i, j = layout.n_rows * row, end - n_relations * shared
        copy = np.arange(n_groups)[None, :] * n_relations + np.arange(n_relations)[:, None]
        copies = Copies(
            n_groups * n_relations + np.arange(n_relations), n_groups * np.arange(n_relations + 1), copy.ravel(),
            np.tile(np.arange(n_groups), n_relations),
        )  # fmt: skip
        zero = np.zeros((1, max(row, 1)))
        entities = [("row", 0, i, penalty.row_strength, penalty.row_scale, dealt.row)]
        if not self._one_set:
            entities.append(("col", i, j, penalty.col_strength, penalty.col_scale, dealt.col))
        parts = [
            TablePart(name, 0, first, last, places.entity_place, scale, strength, zero,
                 deal.copies if len(deal.copies.owner) else None, f"{name}_visits")
            for name, first, last, strength, scale, deal in entities
            if last > first
        ]  # fmt: skip
        parts.append(
            TablePart("shared", n_groups * n_relations, j, end, places.shared_place, penalty.shared_scale,
                 penalty.shared_strength, penalty.shared_centre, Copies(*(x.astype(np.int32) for x in copies)),
                 "shared_visits")
        )  # fmt: skip
        arrays = ("place", "scale", "strength", "centre", "copies")
        return [
            part._replace(
                **{name: to_device(_as_held(getattr(part, name))) for name in arrays if getattr(part, name) is not None}
            )
            for part in parts
        ]

    def _new_tables(self) -> Tables:
        """Return tables of zeros."""
        dealt, division, n = self._dealt, self._division, self._n_relations
        row = to_device(np.zeros((dealt.row.n_lines, 2, division.entity_pitch), np.float32))
        col = row
        if not self._one_set:
            col = to_device(np.zeros((dealt.col.n_lines, 2, division.entity_pitch), np.float32))
        return Tables(row, col, to_device(np.zeros(((dealt.n_groups + 1) * n, 2, division.shared_pitch), np.float32)))

    def _progress(self, n_phases: int) -> Progress:
        """Return the progress of an epoch at its start."""
        n, dealt = self._dealt.n_groups, self._dealt
        row_visits, col_visits = (
            np.zeros((n_phases, max(1, deal.n_lines - len(deal.first))), np.int32) for deal in (dealt.row, dealt.col)
        )
        lines = 1 if self._division.single else n * self._n_relations
        row = to_device(np.zeros(n, np.int32))
        visits = to_device(row_visits)
        return Progress(
            to_device(np.zeros(n_phases, np.int32)),
            row,
            row if self._one_set else to_device(np.zeros(n, np.int32)),
            to_device(np.zeros(n)),
            visits,
            visits if self._one_set else to_device(col_visits),
            to_device(np.zeros((n_phases, n), np.int32)),
            to_device(np.zeros((lines, self._division.shared_pitch), np.float32)),
            to_device(np.zeros(lines, np.float32)),
        )


def _as_held(value: Any) -> Any:
    """Return an array of floating-point numbers in double precision; others as they are."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.ascontiguousarray(value, np.float64)
    return value


def _shares(objective: Objective, counts: Counts, dealt: Dealt, division: Division, places: Places) -> Shares:
    """Return the penalty, divided among dyads, in the places of tables."""
    whole = decay(objective.penalty, counts)

    def line(values: Array, place: Array, pitch: int) -> Array:
        out = np.zeros((*values.shape[:-1], pitch), np.float32)
        out[..., place] = values
        return out

    entity, shared = (places.entity_place, division.entity_pitch), (places.shared_place, division.shared_pitch)
    return Shares(
        dealt.row.with_copies(whole.row),
        dealt.col.with_copies(whole.col),
        whole.shared,
        line(whole.row_l2, *entity),
        line(whole.col_l2, *entity),
        line(whole.shared_l2, *shared),
        line(whole.centre, *shared),
    )
