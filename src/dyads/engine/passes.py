"""Kernels that pass over dyads: by row, by column, for the loss only, and for SGD.

Kernels do not know about side-information: blocks are effective blocks, and `Data.offset` holds the score offsets due
to dyad features. Scratch arrays are arguments, or lie on the stack.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads
from dyads.engine.bundles import (
    PARTIAL_SUM,
    TILE,
    BlockWork,
    Data,
    Specs,
    add,
    label_work,
    load_scores,
    relation_at,
    weigh,
    weigh_all,
)
from dyads.engine.compiled import inlined, kernel, read_if_present, stack_array
from dyads.engine.orders import Bounds, Run, Shard
from dyads.model.loss import evaluate
from dyads.model.objective import slope
from dyads.model.parameters import Blocks
from dyads.model.structure import partner_col, partner_row, pull_col, pull_row, pull_shared, score, slopes

Array = np.ndarray[Any, Any]

LANES = 16
"""Dyads of an SGD tile: as many single-precision numbers as the widest registers hold."""

SHARED_BATCH = 64
"""Least number of dyads per SGD step of the shared blocks: every dyad contributes to one, and a step costs as much as a
dyad. A tile is not divided.
"""


@inlined
def score_dyad(structure, a, b, h, offset, i, s):  # type: ignore[no-untyped-def]
    """WRITE the scores of dyad i with blocks a, b and h to s."""
    load_scores(offset, i, s)
    score(structure, a, b, h, s)


@inlined
def dyad_loss(specs, a, b, h, data, i, work):  # type: ignore[no-untyped-def]
    """Return the weighted loss of dyad i with blocks a, b and h; WRITE its score gradient to work.g."""
    score_dyad(specs.structure, a, b, h, data.offset, i, work.s)
    evaluate(specs.loss, 1, data.label[i : i + 1], work.tile_s, work.tile_g, work.value, work.total)
    value = weigh(data.weight, i, work.value[0])
    weigh_all(data.weight, i, work.g)
    return value


@kernel
def row_pass(specs, blocks, data, owned, bounds, kept, scratch, row_sums, shared_sums):  # type: ignore[no-untyped-def]
    """Return the loss of owners bounds[0]..bounds[1]-1 of a shard of rows.

    ADDS its gradients to row_sums and shared_sums. WRITES d loss / d score to `kept` (n, n_labels) unless that is
    empty.
    """
    partial, work = scratch.partial, label_work(specs.structure.n_labels, blocks.row)
    total = 0.0
    for e in range(bounds[0], bounds[1]):
        a = blocks.row[owned.first + e]
        for begin in range(owned.start[e], owned.start[e + 1], PARTIAL_SUM):
            whole = begin == owned.start[e]
            out = row_sums[e] if whole else partial
            if not whole:
                partial[:] = 0
            partial_loss = total if whole else 0.0
            for i in range(begin, min(begin + PARTIAL_SUM, owned.start[e + 1])):
                b = blocks.col[data.col[i]]
                t = relation_at(data.relation, i)
                h = blocks.shared[t]
                partial_loss += dyad_loss(specs, a, b, h, data, i, work)
                pull_row(specs.structure, b, h, work.g, scratch.slope, scratch.v, out)
                pull_shared(specs.structure, a, b, h, work.g, shared_sums[t])
                if kept.shape[0]:
                    for y in range(work.g.size):
                        kept[i, y] = work.g[y]
            total = partial_loss if whole else total + partial_loss
            if not whole:
                add(row_sums[e], partial)
    return total


@kernel
def col_pass(specs, blocks, data, owned, bounds, kept, place, scratch, col_sums):  # type: ignore[no-untyped-def]
    """ADD the gradient of the loss of owners bounds[0]..bounds[1]-1 of a shard of columns to col_sums.

    d loss / d score of dyad i is kept[place[i]] or, if `kept` is empty, computed again.
    """
    partial, work = scratch.partial, label_work(specs.structure.n_labels, blocks.col)
    for e in range(bounds[0], bounds[1]):
        b = blocks.col[owned.first + e]
        for begin in range(owned.start[e], owned.start[e + 1], PARTIAL_SUM):
            whole = begin == owned.start[e]
            out = col_sums[e] if whole else partial
            if not whole:
                partial[:] = 0
            for i in range(begin, min(begin + PARTIAL_SUM, owned.start[e + 1])):
                a = blocks.row[data.row[i]]
                h = blocks.shared[relation_at(data.relation, i)]
                if kept.shape[0]:
                    pull_col(specs.structure, a, h, kept[place[i]], scratch.slope, scratch.v, out)
                else:
                    dyad_loss(specs, a, b, h, data, i, work)
                    pull_col(specs.structure, a, h, work.g, scratch.slope, scratch.v, out)
            if not whole:
                add(col_sums[e], partial)


def row_sums(
    specs: Specs, blocks: Blocks, shard: Shard, data: Data, kept: Array, run: Run
) -> tuple[float, Array, Array]:
    """Return the loss of a shard of rows and its gradients by the rows' blocks and by all shared blocks.

    WRITES d loss / d score of each dyad to `kept` (n, n_labels) unless that is empty. The gradients by shared blocks
    are summed per task, and the sums added in the order of tasks.
    """
    tasks, dtype = shard.sum_tasks, blocks.row.dtype
    rows = np.zeros((len(shard), blocks.row.shape[1]), dtype)
    shared = np.zeros((len(tasks), *blocks.shared.shape), dtype)
    owned = shard.owned

    def task(number: int) -> float:
        scratch = BlockWork.of(rows.shape[1], dtype)
        value: float = row_pass(specs, blocks, data, owned, tasks[number], kept, scratch, rows, shared[number])
        return value

    return sum(run(task, range(len(tasks)))), rows, shared.sum(axis=0)


def col_sums(specs: Specs, blocks: Blocks, shard: Shard, data: Data, kept: Array, run: Run) -> Array:
    """Return the gradient of the loss of a shard of columns by the columns' blocks.

    `kept` : score gradients of all dyads in row order; if it is empty, they are computed again.
    """
    dtype, owned = blocks.col.dtype, shard.owned
    cols = np.zeros((len(shard), blocks.col.shape[1]), dtype)

    def task(bounds: Bounds) -> None:
        scratch = BlockWork.of(cols.shape[1], dtype)
        col_pass(specs, blocks, data, owned, bounds, kept, shard.place, scratch, cols)

    run(task, shard.sum_tasks)
    return cols


@kernel
def loss_pass(specs, blocks, data, bounds, work):  # type: ignore[no-untyped-def]
    """Return the loss of dyads bounds[0]..bounds[1]-1; `work` : a `TileWork`."""
    total = 0.0
    for begin in range(bounds[0], bounds[1], TILE):
        n = min(TILE, bounds[1] - begin)
        for j in range(n):
            i = begin + j
            a, b, h = blocks.row[data.row[i]], blocks.col[data.col[i]], blocks.shared[relation_at(data.relation, i)]
            score_dyad(specs.structure, a, b, h, data.offset, i, work.s[:, j])
            work.label[j] = data.label[i]
        evaluate(specs.loss, n, work.label, work.s, work.g, work.value, work.total)
        for j in range(n):
            total += float(weigh(data.weight, begin + j, work.value[j]))
    return total


class Decay(NamedTuple):
    """The penalty, divided among dyads for SGD.

    Dyad i, of weight w_i, carries the share w_i / n of the penalty of its row, whose dyads have the summed weight n.
    The same holds for its column and its relation.

    Attributes
    ----------
    row, col, shared : (n,) share per unit of dyad weight: the scale of the owner's penalty over the owner's count
    row_l2, col_l2, shared_l2 : (size,) strength of the penalty on each entry of a block
    centre : (n_relations, shared size) value that shared blocks are shrunk towards
    """

    row: Any
    col: Any
    shared: Any
    row_l2: Any
    col_l2: Any
    shared_l2: Any
    centre: Any


class Pulled(NamedTuple):
    """Arrays that an SGD pass records for the steps of the side weights; Absent without the features in question.

    Attributes
    ----------
    row_shift, col_shift : (n, size) shift of own blocks due to features, which is not penalised
    row, col : (n, size) sums of the gradients by effective blocks
    kept : (n, n_labels) score gradients
    """

    row_shift: Any
    col_shift: Any
    row: Any
    col: Any
    kept: Any


class LastTile(NamedTuple):
    """The last tile of dyads with each row and each column, (n,) each; a tile is named after its first dyad.

    With one id set both are the same array. Cells that are visited in parallel share no entry.
    """

    row: Any
    col: Any

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool) -> "LastTile":
        row = np.full(dyads.n_rows, -1)
        return cls(row, row if one_set else np.full(dyads.n_cols, -1))


class DescentWork(NamedTuple):
    """Scratch arrays of an SGD pass.

    Attributes
    ----------
    slope : (size,) slopes of the entries of a block, of a row or a column
    row, col : (size, 1) factors v of the row's and of the column's block; see `slopes`
    shared : (n_relations, shared size) gradients by shared blocks, summed since their last step
    share : (n_relations,) shares of the penalties of shared blocks, summed since their last step
    s, g : (n_labels, LANES) scores and score gradient of a tile
    """

    slope: Any
    row: Any
    col: Any
    shared: Any
    share: Any
    s: Any
    g: Any

    @classmethod
    def of(cls, blocks: Blocks, n_labels: int) -> "DescentWork":
        """Return scratch arrays for blocks; a row's and a column's block have the same size."""
        dtype = blocks.row.dtype
        slope, row, col = np.empty((3, blocks.row.shape[1], 1), dtype)
        s, g = np.zeros((2, n_labels, LANES), dtype)
        return cls(slope[:, 0], row, col, np.empty_like(blocks.shared), np.empty(len(blocks.shared), dtype), s, g)


class Product(NamedTuple):
    """The gradient by an entity's block, as the product slope_k v_k of its factors, (size,) and (size, 1)."""

    slope: Any
    v: Any


@kernel
def sgd_pass(specs, blocks, squares, data, order, decay, rate, pulled, last_tile, scratch):  # type: ignore[no-untyped-def]
    """Take one AdaGrad step per dyad, in the given order; return the sum of the losses, each before its step.

    The losses of the next dyads that share no row and no column are computed together, as a tile: the steps of one
    leave the scores of the others as they are. Only shared blocks move less often, after every `SHARED_BATCH` dyads.
    The gradient of a dyad includes its share of the penalty, so that the gradients of an epoch sum to the gradient of
    the objective. The factors of both gradients are computed before either block moves: in a self-link both blocks are
    the same. With side-information the blocks are effective blocks, and the penalty applies to the blocks minus the
    shifts in `pulled`.
    """
    total, structure, like, s, g = 0.0, specs.structure, blocks.row, scratch.s, scratch.g
    value, unused = stack_array(1, LANES, like)[0], stack_array(1, LANES, like)[0]
    rows, cols = stack_array(1, LANES, data.row)[0], stack_array(1, LANES, data.row)[0]
    label = stack_array(1, LANES, data.label)[0]
    row_gradient, col_gradient = Product(scratch.slope, scratch.row), Product(scratch.slope, scratch.col)
    scratch.shared[:] = 0
    scratch.share[:] = 0
    label[:] = 0
    n = n_batch = 0
    while n < order.size:
        m, tile = 0, order[n]
        while m < LANES and n + m < order.size:
            i = order[n + m]
            r, c = data.row[i], data.col[i]
            if m and (last_tile.row[r] == tile or last_tile.col[c] == tile):
                break
            last_tile.row[r] = last_tile.col[c] = tile
            h = blocks.shared[relation_at(data.relation, i)]
            score_dyad(structure, blocks.row[r], blocks.col[c], h, data.offset, i, s[:, m])
            rows[m], cols[m], label[m] = r, c, data.label[i]
            m += 1
        evaluate(specs.loss, LANES, label, s, g, value, unused)
        for j in range(m):
            i = order[n + j]
            r, c, t = rows[j], cols[j], relation_at(data.relation, i)
            a, b, h, gj = blocks.row[r], blocks.col[c], blocks.shared[t], g[:, j]
            total += weigh(data.weight, i, value[j])
            weigh_all(data.weight, i, gj)
            partner_row(structure, b, scratch.row, 0)
            partner_col(structure, a, scratch.col, 0)
            slopes(structure, h, gj, scratch.slope)
            pull_shared(structure, a, b, h, gj, scratch.shared[t])
            scratch.share[t] += weigh(data.weight, i, decay.shared[t])
            keep_scores(pulled.kept, i, gj)
            keep_pull(pulled.row, r, row_gradient)
            keep_pull(pulled.col, c, col_gradient)
            row_share, col_share = weigh(data.weight, i, decay.row[r]), weigh(data.weight, i, decay.col[c])
            step(a, pulled.row_shift, r, row_gradient, squares.row[r], rate, row_share, decay.row_l2)
            step(b, pulled.col_shift, c, col_gradient, squares.col[c], rate, col_share, decay.col_l2)
        n += m
        n_batch += m
        if n_batch >= SHARED_BATCH or n == order.size:
            for u in range(blocks.shared.shape[0]):
                step(
                    blocks.shared[u], decay.centre, u, scratch.shared[u], squares.shared[u], rate, scratch.share[u],
                    decay.shared_l2,
                )  # fmt: skip
            scratch.shared[:] = 0
            scratch.share[:] = 0
            n_batch = 0
    return total


@inlined
def step(x, centres, n, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """Take an AdaGrad step (Duchi et al. 2011): x -= rate d / sqrt(sum of d^2 so far), d = g + share of the penalty.

    The penalty is on x - centres[n], or on x if `centres` is Absent. `g` : an array or a `Product`.
    """
    for k in range(x.size):
        d = derivative(g, k) + slope(distance(centres, n, x, k), l2[k], share)
        squares[k] += d * d
        x[k] -= over_root(rate * d, squares[k])


@inlined
def over_root(x, y):  # type: ignore[no-untyped-def]
    """Return x / sqrt(y)."""
    return x / math.sqrt(y)


@kernel
def step_pass(x, centres, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """Take one AdaGrad step of each row of x with the gradient g."""
    for n in range(x.shape[0]):
        step(x[n], centres, n, g[n], squares[n], rate, share, l2)


@read_if_present(lambda centres, n, x, k: x[k])
def distance(centres, n, x, k):  # type: ignore[no-untyped-def]
    """Return x[k] - centres[n, k], or x[k] if `centres` is absent."""
    return x[k] - centres[n, k]


@read_if_present(lambda g, k: g.slope[k] * g.v[k, 0])
def derivative(g, k):  # type: ignore[no-untyped-def]
    """Return entry k of a gradient: of an array, or of a `Product`."""
    return g[k]


@read_if_present(lambda table, n, g: None)
def keep_pull(table, n, g):  # type: ignore[no-untyped-def]
    """table[n] += g, unless `table` is absent; `g` : a `Product`."""
    for k in range(g.slope.size):
        table[n, k] += derivative(g, k)


@read_if_present(lambda table, n, x: None)
def keep_scores(table, n, x):  # type: ignore[no-untyped-def]
    """table[n] = x, unless `table` is absent."""
    for k in range(x.size):
        table[n, k] = x[k]
