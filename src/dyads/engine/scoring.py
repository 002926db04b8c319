"""Predictions: the scores of dyads and the best columns of a row, averaged over models, with bounded memory.

Dyads are scored in tiles, and tasks go through all models before they go on to further dyads. So the sums over models
stay in a core's cache, and no memory grows with the number of models.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Side
from dyads.engine.api import Query
from dyads.engine.bundles import ABSENT, ROOM, TILE, add, relation_at
from dyads.engine.compiled import jitable, kernel
from dyads.engine.orders import CHUNK, Bounds, Run, even_tasks
from dyads.engine.sums import Groups, add_scores
from dyads.metrics import log_proba
from dyads.model.loss import expected, log_mean, proba
from dyads.model.parameters import Blocks, Role
from dyads.model.record import Model
from dyads.model.structure import Structure, base_row, label_weights, partner_row, score, turned_entries

Array = np.ndarray[Any, Any]

MODELS_CHUNK = 2**16
"""Largest number of dyads per task if several models are averaged: each entity of a model is then used several times
while it is in the cache, and the sums of a task still fit into it."""

LEAST_TASKS = 8
"""Number of tasks below which they are smaller than `MODELS_CHUNK`: enough to keep a few cores busy."""

TOP_CELLS = 2**17
"""Dyads per task of a search for the best columns: about a millisecond per model, and one megabyte of values."""


class Pairs(NamedTuple):
    """The codes of dyads to score.

    Attributes
    ----------
    row, col : (n,) codes, -1 for an unknown id
    relation : (n,) codes, or Absent if there is one relation
    """

    row: Any
    col: Any
    relation: Any

    @classmethod
    def of(cls, codes: Sequence[Codes], dyads: Any) -> "Pairs":
        """Return the dyads at the given places; `codes` : of rows, columns and, if there are several, relations."""
        row, col, *relation = (np.ascontiguousarray(column[dyads], np.int64) for column in codes)
        return cls(row, col, relation[0] if relation else ABSENT)


class New(NamedTuple):
    """New entities, which have no labels: their probabilities are averaged over draws of their own block.

    Attributes
    ----------
    row, col : (n + 1,) masks of the new rows and columns; the last entry is for unknown ids, of code -1
    unknown_row, unknown_col : (size,) blocks of unknown ids
    row_spread, col_spread : (n_draws, size) draws of the deviation of a new entity's block
    row_shift, col_shift : (n, n_labels) score shift of a known entity paired with a new one; or empty
    """

    row: Any
    col: Any
    unknown_row: Any
    unknown_col: Any
    row_spread: Any
    col_spread: Any
    row_shift: Any
    col_shift: Any

    @classmethod
    def of(cls, model: Model) -> "New":
        row_spread, col_spread = (
            np.ascontiguousarray(population.spread, block.dtype)
            for population, block in zip(model.populations, model.effective[:2], strict=True)
        )
        row_shift, col_shift = (np.ascontiguousarray(population.partner_shift) for population in model.populations)
        unknown = model.unknown.row[0], model.unknown.col[0]
        return cls(*model.new, *unknown, row_spread, col_spread, row_shift, col_shift)

    def turned(self, entries: Array) -> "New":
        """Return the bundle with rows and columns exchanged; `entries` as in `turned_entries`."""
        row, col = (np.ascontiguousarray(spread[:, entries]) for spread in (self.col_spread, self.row_spread))
        unknown = self.unknown_col[entries], self.unknown_row[entries]
        return New(self.col, self.row, *unknown, row, col, self.col_shift, self.row_shift)

    @classmethod
    def none(cls, blocks: Blocks, n_labels: int) -> "New":
        """Return the bundle for blocks without new entities."""
        flags, shift = np.zeros(max(map(len, blocks[:2])) + 1, np.bool_), np.empty((0, n_labels))
        row, col = blocks.row.shape[1], blocks.col.shape[1]
        unknown, spreads = (np.empty(row), np.empty(col)), (np.empty((0, row)), np.empty((0, col)))
        return cls(flags, flags, *unknown, *spreads, shift, shift)


class ScoreWork(NamedTuple):
    """Scratch arrays of scoring.

    Attributes
    ----------
    a : (row size,) block of a row
    b : (col size,) block of a column
    s, p : (n_labels, ROOM) scores and probabilities
    drawn : (n_labels, ROOM) scores of one dyad in several draws
    total : (n_labels, 1) probabilities of one dyad summed over draws
    offset : (n_labels,) zeros
    largest, share : (ROOM,) for `proba`
    """

    a: Any
    b: Any
    s: Any
    p: Any
    drawn: Any
    total: Any
    offset: Any
    largest: Any
    share: Any

    @classmethod
    def of(cls, blocks: Blocks, n_labels: int) -> "ScoreWork":
        a, b = np.empty(blocks.row.shape[1]), np.empty(blocks.col.shape[1])
        s, p, drawn = (np.empty((n_labels, ROOM)) for _ in range(3))
        return cls(a, b, s, p, drawn, np.empty((n_labels, 1)), np.zeros(n_labels), np.empty(ROOM), np.empty(ROOM))


@kernel
def score_pass(structure, blocks, pairs, offset, new, averaged, work, out):  # type: ignore[no-untyped-def]
    """WRITE the scores of dyads to `out` (n, n_labels) or, if `averaged`, ADD their probabilities.

    If the row or the column is new, its scores are the log of the mean probabilities over draws.
    `offset` : (n, n_labels) score offsets.
    """
    s, p, n_labels = work.s, work.p, out.shape[1]
    for first in range(0, out.shape[0], TILE):
        n = min(TILE, out.shape[0] - first)
        for j in range(n):
            i = first + j
            r, c = pairs.row[i], pairs.col[i]
            h = blocks.shared[relation_at(pairs.relation, i)]
            x = blocks.row[r] if r >= 0 else new.unknown_row
            z = blocks.col[c] if c >= 0 else new.unknown_col
            if new.row[r] or new.col[c]:
                add_draws(structure, x, z, h, r, c, new, offset[i], work)
                log_mean(1, work.total, new.row_spread.shape[0], s[:, j : j + 1])
            else:
                for y in range(n_labels):
                    s[y, j] = offset[i, y]
                score(structure, x, z, h, s[:, j])
        if averaged:
            proba_tile(n, s, p, work.largest, work.share)
            for j in range(n):
                for y in range(n_labels):
                    out[first + j, y] += p[y, j]
        else:
            for j in range(n):
                for y in range(n_labels):
                    out[first + j, y] = s[y, j]


@kernel
def proba_tile(n, s, p, largest, share):  # type: ignore[no-untyped-def]
    """`proba`, compiled on its own, so that it vectorises."""
    proba(n, s, p, largest, share)


@kernel
def add_draws(structure, x, z, h, r, c, new, offset, work):  # type: ignore[no-untyped-def]
    """WRITE the probabilities of a dyad summed over draws to work.total; its row, of block x, or its column is new.

    If one is new, the partner shift of the other is added. If both are new, their draws are paired as in `Population`.
    """
    n_draws, n_labels = new.row_spread.shape[0], offset.size
    for y in range(n_labels):
        work.total[y, 0] = 0
    for first in range(0, n_draws, TILE):
        n = min(TILE, n_draws - first)
        for j in range(n):
            m, s = first + j, work.drawn[:, j]
            for y in range(n_labels):
                s[y] = offset[y]
            if new.row[r] and not new.col[c] and new.col_shift.shape[0]:
                add(s, new.col_shift[c])
            elif new.col[c] and not new.row[r] and new.row_shift.shape[0]:
                add(s, new.row_shift[r])
            vary(x, new.row[r], new.row_spread[m], work.a)
            vary(z, new.col[c], new.col_spread[n_draws - 1 - m if new.row[r] else m], work.b)
            score(structure, work.a, work.b, h, s)
        proba_tile(n, work.drawn, work.p, work.largest, work.share)
        for y in range(n_labels):
            for j in range(n):
                work.total[y, 0] += work.p[y, j]


@jitable
def vary(x, new, spread, out):  # type: ignore[no-untyped-def]
    """WRITE x to `out`, plus `spread` for a new entity."""
    for k in range(x.size):
        out[k] = x[k] + spread[k] if new else x[k]


class Candidates(NamedTuple):
    """The columns of a `Query`, gathered tile by tile; see `sums`, where a tile belongs to a row in the same way.

    Attributes
    ----------
    cols : (n_cols,) codes of the candidates
    values : (n_labels,) value of each label
    relation : code of the relation
    groups : groups of the block of a row
    offset : (n_rows, n_cols, n_labels) numbers to add to the scores; or empty
    E : (n_labels, n_groups) label weights of the groups
    v : (row size, ROOM) factor v_k of each entry of the block of a row
    base : (n_labels, ROOM) scores with a block of zeros
    mean : (ROOM,) expected values
    """

    cols: Any
    values: Any
    relation: int
    groups: Groups
    offset: Any
    E: Any
    v: Any
    base: Any
    mean: Any

    @classmethod
    def of(cls, query: Query, lines: slice, structure: Structure, blocks: Blocks) -> "Candidates":
        """Return the candidates for some lines of the query."""
        size, n_labels = blocks.row.shape[1], structure.n_labels
        groups = Groups.of(structure, Role.ROW, size, blocks.shared.shape[1])
        cols, values = np.ascontiguousarray(query.cols, np.int64), np.ascontiguousarray(query.values, np.float64)
        tiles = np.empty((size, ROOM)), np.empty((n_labels, ROOM)), np.empty(ROOM)
        offset = np.empty((0, 0, n_labels)) if query.offset is None else query.offset[lines]
        return cls(cols, values, query.relation, groups, offset, np.empty((n_labels, len(groups.own))), *tiles)


@kernel
def value_pass(structure, blocks, rows, candidates, new, work, out):  # type: ignore[no-untyped-def]
    """ADD the expected values of all candidates for `rows` to `out` (n_rows, n_cols).

    Probabilities of new entities are averaged over draws.
    """
    cols, values, v, base, mean = candidates.cols, candidates.values, candidates.v, candidates.base, candidates.mean
    offset, has_offset = candidates.offset, candidates.offset.shape[0] > 0
    h = blocks.shared[candidates.relation]
    label_weights(structure, h, candidates.E)
    for first in range(0, cols.size, TILE):
        n = min(TILE, cols.size - first)
        v[:] = 0
        base[:] = 0
        for j in range(n):
            z = blocks.col[cols[first + j]]
            partner_row(structure, z, v, j)
            base_row(structure, z, h, base, j)
        for i in range(rows.size):
            r = rows[i]
            x = blocks.row[r] if r >= 0 else new.unknown_row
            vary(x, False, x, work.a)
            add_scores(n, candidates.groups, candidates.E, work.a, v, base, work.share, work.s)
            if has_offset:
                for j in range(n):
                    for y in range(values.size):
                        work.s[y, j] += offset[i, first + j, y]
            proba_tile(n, work.s, work.p, work.largest, work.share)
            expected_tile(n, values, work.p, mean)
            for j in range(n):
                c = cols[first + j]
                if new.row[r] or new.col[c]:
                    more = offset[i, first + j] if has_offset else work.offset
                    add_draws(structure, x, blocks.col[c], h, r, c, new, more, work)
                    expected(1, values, work.total, mean[j : j + 1])
                    mean[j] /= new.row_spread.shape[0]
                out[i, first + j] += mean[j]


@kernel
def expected_tile(n, values, p, mean):  # type: ignore[no-untyped-def]
    """`expected`, compiled on its own, so that it vectorises."""
    expected(n, values, p, mean)


@kernel
def best_pass(values, best, at):  # type: ignore[no-untyped-def]
    """Find the n greatest of each line of `values` (n_rows, n_cols) but for those of minus infinity.

    WRITES their indices to `at` (n_rows, n), filled with -1 before, and their values to `best` (n_rows, n), filled with
    minus infinity before. Ties go to the first column.
    """
    n = best.shape[1]
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            if value <= best[i, n - 1]:
                continue
            k = n - 1
            while k > 0 and best[i, k - 1] < value:
                best[i, k] = best[i, k - 1]
                at[i, k] = at[i, k - 1]
                k -= 1
            best[i, k] = value
            at[i, k] = j


def scores(models: Sequence[Model], codes: Sequence[Codes], features: Any, run: Run) -> Array:
    """See `api.Engine.scores`. Memory holds no more than the result and one task per thread."""
    codes = [np.asarray(column) for column in codes]
    structure, n, averaged = models[0].structure, len(codes[0]), len(models) > 1
    out, scored = np.empty((n, structure.n_labels)), [(model, scored_blocks(model), New.of(model)) for model in models]

    def part(bounds: Bounds) -> None:
        dyads: Any = slice(*bounds)
        if averaged:
            # A row that comes several times is then read once per model.
            dyads = bounds[0] + np.argsort(codes[0][dyads], kind="stable")
        pairs, side = Pairs.of(codes, dyads), Side(dyad=None if features is None else features[dyads])
        lines, work = np.zeros((len(pairs.row), structure.n_labels)), ScoreWork.of(scored[0][1], structure.n_labels)
        zeros = np.zeros_like(lines)
        for model, blocks, new in scored:
            first = model.layout.first_scores(model.theta, side)
            offset = zeros if first is None else first.astype(np.float64, copy=False)
            score_pass(structure, blocks, pairs, offset, new, averaged, work, lines)
        if averaged:
            lines /= len(models)
        out[dyads] = log_proba(lines) if averaged else lines

    run(part, even_tasks(0, n, int(np.clip(n // LEAST_TASKS, CHUNK, MODELS_CHUNK)) if averaged else None))
    return out


def scored_blocks(model: Model) -> Blocks:
    """Return the effective blocks; those of relations are followed by that of the average relation, of code -1."""
    blocks = model.effective
    if model.known.relations is None:
        return blocks
    return blocks._replace(shared=np.vstack([blocks.shared, model.unknown.shared]))


def block_scores(structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array, run: Run) -> Array:
    """See `api.Engine.block_scores`."""
    blocks = Blocks(*(np.ascontiguousarray(block, np.float64) for block in blocks))
    offset, new = np.ascontiguousarray(offset, np.float64), New.none(blocks, structure.n_labels)
    out = np.empty_like(offset)

    def part(bounds: Bounds) -> None:
        dyads, work = slice(*bounds), ScoreWork.of(blocks, structure.n_labels)
        score_pass(structure, blocks, Pairs.of(codes, dyads), offset[dyads], new, False, work, out[dyads])

    run(part, even_tasks(0, len(out)))
    return out


def searched(model: Model, turned: bool) -> tuple[Blocks, New]:
    """Return the effective blocks and the new entities, with rows and columns exchanged if `turned`."""
    blocks, new = model.effective, New.of(model)
    if not turned:
        return blocks, new
    entries = turned_entries(model.structure, blocks.row.shape[1])
    row, col = (np.ascontiguousarray(block[:, entries]) for block in (blocks.col, blocks.row))
    return blocks._replace(row=row, col=col), new.turned(entries)


def keep_best(query: Query, lines: slice, values: Array, best: Array, at: Array) -> None:
    """WRITE the greatest of the values (n_rows, n_cols) of some rows of a query; see `best_pass`."""
    start, excluded = query.excluded
    for line, row in enumerate(query.rows[lines]):
        # An unknown row excludes nothing.
        if row >= 0:
            values[line, excluded[start[row] : start[row + 1]]] = -np.inf
    best_pass(values, best, at)


def top(models: Sequence[Model], query: Query, run: Run) -> tuple[Array, Array]:
    """See `api.Engine.top`. Memory holds no more than the result and one task per thread."""
    structure = models[0].structure
    best, at = np.full((len(query.rows), query.n), -np.inf), np.full((len(query.rows), query.n), -1)
    rows, scored = np.ascontiguousarray(query.rows, np.int64), [searched(model, query.turned) for model in models]

    def part(bounds: Bounds) -> None:
        lines, (first, last) = slice(*bounds), bounds
        values, blocks = np.zeros((last - first, len(query.cols))), scored[0][0]
        candidates, work = Candidates.of(query, lines, structure, blocks), ScoreWork.of(blocks, structure.n_labels)
        for blocks, new in scored:
            value_pass(structure, blocks, rows[lines], candidates, new, work, values)
        keep_best(query, lines, values / len(models), best[lines], at[lines])

    run(part, even_tasks(0, len(rows), max(1, TOP_CELLS // max(1, len(query.cols)))))
    return at, best
