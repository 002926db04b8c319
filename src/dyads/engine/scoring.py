"""Predictions: the scores of dyads and the best columns of a row, with bounded memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Side
from dyads.engine.api import Query
from dyads.engine.bundles import ABSENT, add, relation_at
from dyads.engine.compiled import jitable, kernel
from dyads.engine.orders import Bounds, Run, even_tasks
from dyads.metrics import log_proba
from dyads.model.loss import add_probabilities, expected, link, log_mean
from dyads.model.parameters import Blocks
from dyads.model.record import Model
from dyads.model.structure import Structure, score

Array = np.ndarray[Any, Any]

TOP_CELLS = 2**18
"""Dyads per task of a search for the best columns: about ten milliseconds, and two megabytes of scores per label."""


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
    def of(cls, row: Codes, col: Codes, relation: Codes | None = None) -> "Pairs":
        rows, cols = (np.ascontiguousarray(x, np.int64) for x in (row, col))
        return cls(rows, cols, ABSENT if relation is None else np.ascontiguousarray(relation, np.int64))


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
    s : (n_labels,) scores
    p : (n_labels,) probabilities
    total : (n_labels,) probabilities summed over draws
    """

    a: Any
    b: Any
    s: Any
    p: Any
    total: Any

    @classmethod
    def of(cls, new: New, n_labels: int) -> "ScoreWork":
        blocks = np.empty_like(new.unknown_row), np.empty_like(new.unknown_col)
        return cls(*blocks, *(np.empty(n_labels) for _ in range(3)))


@kernel
def score_pass(structure, blocks, pairs, new, bounds, work, S):  # type: ignore[no-untyped-def]
    """ADD the scores of dyads bounds[0]..bounds[1]-1 to S (n, n_labels).

    If the row or the column is new, S gets the log of the mean probabilities over draws instead.
    """
    n_draws = new.row_spread.shape[0]
    for i in range(bounds[0], bounds[1]):
        r, c = pairs.row[i], pairs.col[i]
        h = blocks.shared[relation_at(pairs.relation, i)]
        x = blocks.row[r] if r >= 0 else new.unknown_row
        z = blocks.col[c] if c >= 0 else new.unknown_col
        if not (new.row[r] or new.col[c]):
            score(structure, x, z, h, S[i])
            continue
        work.total[:] = 0
        for m in range(n_draws):
            for y in range(work.s.size):
                work.s[y] = S[i, y]
            score_draw(structure, x, z, h, r, c, new, m, work)
            add_probabilities(work.s, work.p, work.total)
        log_mean(work.total, n_draws, S[i])


@jitable
def score_draw(structure, x, z, h, r, c, new, m, work):  # type: ignore[no-untyped-def]
    """ADD to work.s the scores of a row's block x and a column's block z in draw m; at least one of them is new.

    If one is new, the partner shift of the other is added. If both are new, their draws are paired as in `Population`.
    """
    vary(x, new.row[r], new.row_spread[m], work.a)
    vary(z, new.col[c], new.col_spread[new.row_spread.shape[0] - 1 - m if new.row[r] else m], work.b)
    if new.row[r] and not new.col[c] and new.col_shift.shape[0]:
        add(work.s, new.col_shift[c])
    elif new.col[c] and not new.row[r] and new.row_shift.shape[0]:
        add(work.s, new.row_shift[r])
    score(structure, work.a, work.b, h, work.s)


@jitable
def vary(x, new, spread, out):  # type: ignore[no-untyped-def]
    """WRITE x to `out`, plus `spread` for a new entity."""
    for k in range(x.size):
        out[k] = x[k] + spread[k] if new else x[k]


class Candidates(NamedTuple):
    """A `Query` in the form that kernels read; `start` and `excluded` are its (start, place)."""

    rows: Any
    cols: Any
    values: Any
    relation: int
    start: Any
    excluded: Any

    @classmethod
    def of(cls, query: Query) -> "Candidates":
        rows, cols = (np.ascontiguousarray(codes, np.int64) for codes in (query.rows, query.cols))
        return cls(rows, cols, query.values, query.relation, *query.excluded)


@kernel
def top_pass(structure, blocks, asked, new, bounds, work, skip, top, at):  # type: ignore[no-untyped-def]
    """Find the columns with the greatest expected value for rows bounds[0]..bounds[1]-1.

    WRITES their indices among the candidates to `at` (n_rows, n), filled with -1 before, and their values to `top`
    (n_rows, n), filled with minus infinity before. Ties go to the first column. Probabilities of new entities are
    averaged over draws. `skip` : (n_cols,) scratch, all False before and after.
    """
    n = top.shape[1]
    h = blocks.shared[asked.relation]
    for i in range(bounds[0], bounds[1]):
        r = asked.rows[i]
        x = blocks.row[r] if r >= 0 else new.unknown_row
        for j in range(asked.start[i], asked.start[i + 1]):
            skip[asked.excluded[j]] = True
        for place in range(asked.cols.size):
            if skip[place]:
                continue
            c = asked.cols[place]
            averaged = new.row[r] or new.col[c]
            n_draws = new.row_spread.shape[0] if averaged else 1
            value = 0.0
            for m in range(n_draws):
                work.s[:] = 0
                if averaged:
                    score_draw(structure, x, blocks.col[c], h, r, c, new, m, work)
                else:
                    score(structure, x, blocks.col[c], h, work.s)
                value += expected(asked.values, work.s, work.p) / n_draws
            if value <= top[i, n - 1]:
                continue
            k = n - 1
            while k > 0 and top[i, k - 1] < value:
                top[i, k] = top[i, k - 1]
                at[i, k] = at[i, k - 1]
                k -= 1
            top[i, k] = value
            at[i, k] = place
        for j in range(asked.start[i], asked.start[i + 1]):
            skip[asked.excluded[j]] = False


def scores(models: Sequence[Model], codes: Sequence[Codes], features: Any, run: Run) -> Array:
    """See `api.Engine.scores`."""
    if len(models) == 1:
        return _scores(models[0], codes, features, run)
    total = np.zeros((len(codes[0]), models[0].structure.n_labels))
    for model in models:
        total += link(_scores(model, codes, features, run))
    return log_proba(total / len(models))


def _scores(model: Model, codes: Sequence[Codes], features: Any, run: Run) -> Array:
    """Return the scores (n, n_labels) of one model."""
    n_labels = model.structure.n_labels
    first = model.layout.first_scores(model.theta, Side(dyad=features))
    out = np.zeros((len(codes[0]), n_labels)) if first is None else first.astype(np.float64, copy=False)
    blocks = model.effective
    if len(codes) > 2:
        # The code -1 indexes the last block, that of the average relation.
        blocks = blocks._replace(shared=np.vstack([blocks.shared, model.unknown.shared]))
    _score(model.structure, blocks, Pairs.of(*codes), New.of(model), out, run)
    return out


def block_scores(structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array, run: Run) -> Array:
    """See `api.Engine.block_scores`."""
    blocks = Blocks(*(np.ascontiguousarray(block, np.float64) for block in blocks))
    out = np.array(offset, np.float64)
    _score(structure, blocks, Pairs.of(*codes), New.none(blocks, structure.n_labels), out, run)
    return out


def _score(structure: Structure, blocks: Blocks, pairs: Pairs, new: New, out: Array, run: Run) -> None:
    """ADD the scores of `pairs` to `out` (n, n_labels), in tasks."""

    def part(bounds: Bounds) -> None:
        score_pass(structure, blocks, pairs, new, bounds, ScoreWork.of(new, structure.n_labels), out)

    run(part, even_tasks(0, len(pairs.row)))


def top(models: Sequence[Model], query: Query, run: Run) -> tuple[Array, Array]:
    """See `api.Engine.top`. Memory holds no more than the result and the scores of one task."""
    values, at = np.full((len(query.rows), query.n), -np.inf), np.full((len(query.rows), query.n), -1)
    size = max(1, TOP_CELLS // max(1, len(query.cols)))
    tasks = [(i, min(i + size, len(query.rows))) for i in range(0, len(query.rows), size)]
    if len(models) > 1:
        for bounds in tasks:
            _top_of_many(models, query, bounds, values, at, run)
        return at, values
    (model,) = models
    asked, new = Candidates.of(query), New.of(model)

    def part(bounds: Bounds) -> None:
        work, skip = ScoreWork.of(new, model.structure.n_labels), np.zeros(len(query.cols), np.bool_)
        top_pass(model.structure, model.effective, asked, new, bounds, work, skip, values, at)

    run(part, tasks)
    return at, values


def _top_of_many(models: Sequence[Model], query: Query, bounds: Bounds, values: Array, at: Array, run: Run) -> None:
    """WRITE the result of `top` for averaged models and rows bounds[0]..bounds[1]-1, from the scores of all columns."""
    rows, (start, excluded) = query.rows[bounds[0] : bounds[1]], query.excluded
    codes = [np.repeat(rows, len(query.cols)), np.tile(query.cols, len(rows))]
    if models[0].known.relations is not None:
        codes.append(np.full(len(codes[0]), query.relation))
    expected_values = (link(scores(models, codes, None, run)) @ query.values).reshape(len(rows), len(query.cols))
    for i, line in enumerate(expected_values, bounds[0]):
        line[excluded[start[i] : start[i + 1]]] = -np.inf
        best = np.argsort(-line, kind="stable")[: query.n]
        best = best[np.isfinite(line[best])]
        at[i, : len(best)], values[i, : len(best)] = best, line[best]
