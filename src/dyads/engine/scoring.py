"""Predictions: scores of dyads, and the best columns of a row, in flat memory."""

from contextlib import closing
from typing import Any

import numpy as np

from dyads.data.dyads import Side
from dyads.engine.compiled import inlined, kernel
from dyads.engine.threads import Threads, even_tasks
from dyads.engine.vectors import add
from dyads.model.calibrator import log_proba
from dyads.model.fitted import Fitted
from dyads.model.loss import add_probabilities, expected, link, log_mean
from dyads.model.parameters import Blocks
from dyads.model.structure import Structure, score

Array = np.ndarray[Any, Any]

TOP_CELLS = 2**18
"""Dyads per task of a search for the best columns."""


@kernel
def score_pass(  # type: ignore[no-untyped-def]
    structure, A, B, H, none_a, none_b, row, col, relation, first, last,
    new_row, new_col, spread_a, spread_b, met_a, met_b, a, b, s, p, total, S,
):  # fmt: skip
    """Add the scores of dyads first..last-1 to S.

    An entity of code -1 has the block none_a or none_b, and the last entry of new_row and new_col is its. Where an
    entity is new, S gets the log of the probabilities' mean over the lines of spread_a or spread_b, added to its block;
    where both are, the first line of one goes with the last of the other, and where one is, met_a or met_b of the other
    is added to the scores.
    """
    n = spread_a.shape[0]
    for i in range(first, last):
        r, c = row[i], col[i]
        h = H[0 if relation is None else relation[i]]
        x = A[r] if r >= 0 else none_a
        z = B[c] if c >= 0 else none_b
        if not (new_row[r] or new_col[c]):
            score(structure, x, z, h, S[i])
            continue
        total[:] = 0
        for m in range(n):
            vary(x, new_row[r], spread_a[m], a)
            vary(z, new_col[c], spread_b[n - 1 - m if new_row[r] else m], b)
            for y in range(s.size):
                s[y] = S[i, y]
            add_met(new_row[r], new_col[c], met_a, met_b, r, c, s)
            score(structure, a, b, h, s)
            add_probabilities(s, p, total)
        log_mean(total, n, S[i])


@inlined
def add_met(new_row, new_col, met_a, met_b, r, c, s):  # type: ignore[no-untyped-def]
    """s += what the known one of two entities adds to its scores with a new one."""
    if new_row and not new_col and met_b.shape[0]:
        add(s, met_b[c])
    elif new_col and not new_row and met_a.shape[0]:
        add(s, met_a[r])


@inlined
def vary(x, new, spread, out):  # type: ignore[no-untyped-def]
    """out = x, plus `spread` for a new entity."""
    for k in range(x.size):
        out[k] = x[k] + spread[k] if new else x[k]


@kernel
def top_pass(  # type: ignore[no-untyped-def]
    structure, A, B, H, none_a, rows, relation, cols, excluded_start, excluded, values, first, last,
    new_row, new_col, spread_a, spread_b, met_a, met_b, a, b, s, p, skip, top, at,
):  # fmt: skip
    """Find the columns of greatest expected value for rows first..last-1: their places in `cols` and the values.

    `at` (n_rows, n) and `top` (n_rows, n) come filled with -1 and minus infinity; of equals the first column wins.
    `excluded` lists, from excluded_start[i] on, the places in `cols` that are left out for row i. New entities are as
    in `score_pass`.
    """
    n = top.shape[1]
    for i in range(first, last):
        r = rows[i]
        x = A[r] if r >= 0 else none_a
        for j in range(excluded_start[i], excluded_start[i + 1]):
            skip[excluded[j]] = True
        for place in range(cols.size):
            if skip[place]:
                continue
            c = cols[place]
            new = new_row[r] or new_col[c]
            n_draws = spread_a.shape[0] if new else 1
            value = 0.0
            for m in range(n_draws):
                s[:] = 0
                if not new:
                    score(structure, x, B[c], H[relation], s)
                else:
                    vary(x, new_row[r], spread_a[m], a)
                    vary(B[c], new_col[c], spread_b[n_draws - 1 - m if new_row[r] else m], b)
                    add_met(new_row[r], new_col[c], met_a, met_b, r, c, s)
                    score(structure, a, b, H[relation], s)
                value += expected(values, s, p) / n_draws
            if value <= top[i, n - 1]:
                continue
            k = n - 1
            while k > 0 and top[i, k - 1] < value:
                top[i, k] = top[i, k - 1]
                at[i, k] = at[i, k - 1]
                k -= 1
            top[i, k] = value
            at[i, k] = place
        for j in range(excluded_start[i], excluded_start[i + 1]):
            skip[excluded[j]] = False


def scores(
    fitted: Fitted,
    row: Array,
    col: Array,
    relation: Array | None = None,
    *,
    features: Any = None,
    n_jobs: int | None = 1,
) -> Array:
    """Score dyads (n, n_labels) in double precision; their softmax is the probabilities.

    Those of an entity without labels, and of an unknown one, of negative code, are averaged over what such an entity's
    own block may be; the scores are then the log of that mean. `features` : sparse (n, n_features), those of the dyads,
    if the model knows such. Several models are averaged in the same way.
    """
    if fitted.members:
        total = np.zeros((len(row), fitted.structure.n_labels))
        for one in fitted.every:
            total += link(scores(one, row, col, relation, features=features, n_jobs=n_jobs))
        return log_proba(total / len(fitted.every))
    out = fitted.layout.first_scores(fitted.theta, Side(dyad=features))
    out = np.zeros((len(row), fitted.structure.n_labels)) if out is None else out.astype(np.float64, copy=False)
    row, col = (np.ascontiguousarray(codes, dtype=np.int64) for codes in (row, col))
    A, B, H = fitted.effective
    none_a, none_b, none_h = (block[0] for block in fitted.unknown)
    if relation is not None:
        # The code -1 finds the last block, which is the average relation's.
        relation, H = np.ascontiguousarray(relation, dtype=np.int64), np.vstack([H, none_h])

    def part(bounds: tuple[int, int]) -> None:
        total = np.empty(fitted.structure.n_labels)
        score_pass(
            fitted.structure, A, B, H, none_a, none_b, row, col, relation, *bounds,
            *fitted.new_entities, *_draw_scratch(fitted), total, out,
        )  # fmt: skip

    with closing(Threads(n_jobs)) as threads:
        threads.map(part, even_tasks(len(row)))
    return out


def top(
    fitted: Fitted,
    rows: Array,
    cols: Array,
    n: int,
    values: Array,
    relation: int = 0,
    excluded: tuple[Array, Array] | None = None,
    n_jobs: int | None = 1,
) -> tuple[Array, Array]:
    """Find the `n` columns of greatest expected value sum_y p_y values_y for each row, best first.

    Returns their places in `cols` (n_rows, n), -1 where there are fewer, and the values (n_rows, n). Nothing larger is
    kept in memory. `excluded` : (start, place), the places in `cols` to leave out for row i: place[start[i]:start[i+1]]
    """
    if fitted.members:
        return _top_of_many(fitted, rows, cols, n, values, relation, excluded, n_jobs)
    A, B, H = fitted.effective
    start, place = (np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int64)) if excluded is None else excluded
    found, at = np.full((len(rows), n), -np.inf), np.full((len(rows), n), -1)
    rows, cols = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(cols, np.int64)

    def part(bounds: tuple[int, int]) -> None:
        top_pass(
            fitted.structure, A, B, H, fitted.unknown.row[0], rows, relation, cols, start, place, values, *bounds,
            *fitted.new_entities, *_draw_scratch(fitted), np.zeros(len(cols), np.bool_), found, at,
        )  # fmt: skip

    size = max(1, TOP_CELLS // max(1, len(cols)))
    with closing(Threads(n_jobs)) as threads:
        threads.map(part, [(i, min(i + size, len(rows))) for i in range(0, len(rows), size)])
    return at, found


def _top_of_many(
    fitted: Fitted,
    rows: Array,
    cols: Array,
    n: int,
    values: Array,
    relation: int,
    excluded: tuple[Array, Array] | None,
    n_jobs: int | None,
) -> tuple[Array, Array]:
    """`top` of averaged models: some rows at a time, all columns of each."""
    found, at = np.full((len(rows), n), -np.inf), np.full((len(rows), n), -1)
    size = max(1, TOP_CELLS // max(1, len(cols)))
    for first in range(0, len(rows), size):
        mine = rows[first : first + size]
        codes = [np.repeat(mine, len(cols)), np.tile(cols, len(mine))]
        if fitted.relations is not None:
            codes.append(np.full(len(codes[0]), relation))
        worth = (link(scores(fitted, *codes, n_jobs=n_jobs)) @ values).reshape(len(mine), len(cols))
        for i, line in enumerate(worth):
            if excluded is not None:
                start, place = excluded
                line[place[start[first + i] : start[first + i + 1]]] = -np.inf
            best = np.argsort(-line, kind="stable")[:n]
            best = best[np.isfinite(line[best])]
            at[first + i, : len(best)], found[first + i, : len(best)] = best, line[best]
    return at, found


def block_scores(
    structure: Structure, blocks: Blocks, row: Array, col: Array, relation: Array | None, start: Array, threads: Threads
) -> Array:
    """The scores (n, n_labels) of dyads of rows, columns and relations with the given blocks, on top of `start`."""
    A, B, H = (np.ascontiguousarray(block, np.float64) for block in blocks)
    row, col = (np.ascontiguousarray(codes, np.int64) for codes in (row, col))
    relation = None if relation is None else np.ascontiguousarray(relation, np.int64)
    out, none = np.array(start, np.float64), np.zeros(max(len(A), len(B)) + 1, np.bool_)
    nothing = none, none, np.empty((0, A.shape[1])), np.empty((0, B.shape[1])), out, out

    def part(bounds: tuple[int, int]) -> None:
        scratch = np.empty(A.shape[1]), np.empty(B.shape[1]), *(np.empty(out.shape[1]) for _ in range(3))
        score_pass(structure, A, B, H, *scratch[:2], row, col, relation, *bounds, *nothing, *scratch, out)

    threads.map(part, even_tasks(len(row)))
    return out


def pair_scores(fitted: Fitted, A: Array, B: Array, h: Array, n_jobs: int | None) -> Array:
    """The scores (n, n_labels) of pairs of blocks A (n, row size) and B (n, col size) with one shared block."""
    each, start = np.arange(len(A)), np.zeros((len(A), fitted.structure.n_labels))
    with closing(Threads(n_jobs)) as threads:
        return block_scores(fitted.structure, Blocks(A, B, h[None]), each, each, None, start, threads)


def _draw_scratch(fitted: Fitted) -> tuple[Array, ...]:
    """Scratch vectors for a row's block, a column's block, scores and probabilities."""
    row, col, _ = fitted.unknown
    n_labels = fitted.structure.n_labels
    return np.empty_like(row[0]), np.empty_like(col[0]), np.empty(n_labels), np.empty(n_labels)
