"""Kernels that pass over dyads: by row, by column, for the loss only, and for SGD.

Kernels do not know about side-information: blocks are effective blocks, and `Data.offset` holds the score offsets due
to dyad features. A kernel allocates nothing: its scratch arrays are arguments.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from dyads.engine.bundles import TILE, Data, LabelWork, Specs, add, load_scores, relation_at, weigh, weigh_all
from dyads.engine.compiled import jitable, kernel, read_if_present
from dyads.engine.orders import Bounds, Run, Shard
from dyads.model.loss import evaluate
from dyads.model.objective import slope
from dyads.model.parameters import Blocks
from dyads.model.structure import pull_col, pull_row, pull_shared, score

Array = np.ndarray[Any, Any]

SHARED_BATCH = 64
"""Dyads per SGD step of the shared blocks: every dyad contributes to one, and a step costs as much as a dyad."""


@jitable
def score_dyad(structure, a, b, h, offset, i, s):  # type: ignore[no-untyped-def]
    """WRITE the scores of dyad i with blocks a, b and h to s."""
    load_scores(offset, i, s)
    score(structure, a, b, h, s)


@jitable
def dyad_loss(specs, a, b, h, data, i, work):  # type: ignore[no-untyped-def]
    """Return the weighted loss of dyad i with blocks a, b and h; WRITE its score gradient to work.g."""
    score_dyad(specs.structure, a, b, h, data.offset, i, work.s)
    value = weigh(data.weight, i, evaluate(specs.loss, data.label[i], work.s, work.g))
    weigh_all(data.weight, i, work.g)
    return value


@kernel
def row_pass(specs, blocks, data, owned, bounds, kept, work, tile, row_sums, shared_sums):  # type: ignore[no-untyped-def]
    """Return the loss of owners bounds[0]..bounds[1]-1 of a shard of rows.

    ADDS its gradients to row_sums and shared_sums. WRITES d loss / d score to `kept` (n, n_labels) unless that is
    empty. `tile` : (row size,) scratch.
    """
    total = 0.0
    for e in range(bounds[0], bounds[1]):
        a = blocks.row[owned.first + e]
        for begin in range(owned.start[e], owned.start[e + 1], TILE):
            whole = begin == owned.start[e]
            out = row_sums[e] if whole else tile
            if not whole:
                tile[:] = 0
            partial = total if whole else 0.0
            for i in range(begin, min(begin + TILE, owned.start[e + 1])):
                b = blocks.col[data.col[i]]
                t = relation_at(data.relation, i)
                h = blocks.shared[t]
                partial += dyad_loss(specs, a, b, h, data, i, work)
                pull_row(specs.structure, a, b, h, work.g, out)
                pull_shared(specs.structure, a, b, h, work.g, shared_sums[t])
                if kept.shape[0]:
                    for y in range(work.g.size):
                        kept[i, y] = work.g[y]
            total = partial if whole else total + partial
            if not whole:
                add(row_sums[e], tile)
    return total


@kernel
def col_pass(specs, blocks, data, owned, bounds, kept, place, work, tile, col_sums):  # type: ignore[no-untyped-def]
    """ADD the gradient of the loss of owners bounds[0]..bounds[1]-1 of a shard of columns to col_sums.

    d loss / d score of dyad i is kept[place[i]] or, if `kept` is empty, computed again. `tile` : (col size,) scratch.
    """
    for e in range(bounds[0], bounds[1]):
        b = blocks.col[owned.first + e]
        for begin in range(owned.start[e], owned.start[e + 1], TILE):
            whole = begin == owned.start[e]
            out = col_sums[e] if whole else tile
            if not whole:
                tile[:] = 0
            for i in range(begin, min(begin + TILE, owned.start[e + 1])):
                a = blocks.row[data.row[i]]
                h = blocks.shared[relation_at(data.relation, i)]
                if kept.shape[0]:
                    pull_col(specs.structure, a, b, h, kept[place[i]], out)
                else:
                    dyad_loss(specs, a, b, h, data, i, work)
                    pull_col(specs.structure, a, b, h, work.g, out)
            if not whole:
                add(col_sums[e], tile)


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
        work, tile = LabelWork.of(specs.structure.n_labels, dtype), np.empty(rows.shape[1], dtype)
        value: float = row_pass(specs, blocks, data, owned, tasks[number], kept, work, tile, rows, shared[number])
        return value

    return sum(run(task, range(len(tasks)))), rows, shared.sum(axis=0)


def col_sums(specs: Specs, blocks: Blocks, shard: Shard, data: Data, kept: Array, run: Run) -> Array:
    """Return the gradient of the loss of a shard of columns by the columns' blocks.

    `kept` : score gradients of all dyads in row order; if it is empty, they are computed again.
    """
    dtype, owned = blocks.col.dtype, shard.owned
    cols = np.zeros((len(shard), blocks.col.shape[1]), dtype)

    def task(bounds: Bounds) -> None:
        work, tile = LabelWork.of(specs.structure.n_labels, dtype), np.empty(cols.shape[1], dtype)
        col_pass(specs, blocks, data, owned, bounds, kept, shard.place, work, tile, cols)

    run(task, shard.sum_tasks)
    return cols


@kernel
def loss_pass(specs, blocks, data, bounds, work):  # type: ignore[no-untyped-def]
    """Return the loss of dyads bounds[0]..bounds[1]-1."""
    total = 0.0
    for i in range(bounds[0], bounds[1]):
        a, b = blocks.row[data.row[i]], blocks.col[data.col[i]]
        total += dyad_loss(specs, a, b, blocks.shared[relation_at(data.relation, i)], data, i, work)
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


class DescentWork(NamedTuple):
    """Scratch arrays of an SGD pass.

    Attributes
    ----------
    row : (row size,) gradient by the row's block
    col : (col size,) gradient by the column's block
    shared : (n_relations, shared size) gradients by shared blocks, summed since their last step
    share : (n_relations,) shares of the penalties of shared blocks, summed since their last step
    """

    row: Any
    col: Any
    shared: Any
    share: Any


@kernel
def sgd_pass(specs, blocks, squares, data, order, decay, rate, pulled, work, scratch):  # type: ignore[no-untyped-def]
    """Take one AdaGrad step per dyad, in the given order; return the sum of the losses, each before its step.

    The gradient of a dyad includes its share of the penalty, so that the gradients of an epoch sum to the gradient of
    the objective. Both pulls are computed before either block moves: in a self-link both blocks are the same. The
    shared blocks move after every `SHARED_BATCH` dyads. With side-information the blocks are effective blocks, and the
    penalty applies to the blocks minus the shifts in `pulled`.
    """
    total = 0.0
    scratch.shared[:] = 0
    scratch.share[:] = 0
    for n in range(order.size):
        i = order[n]
        r, c, t = data.row[i], data.col[i], relation_at(data.relation, i)
        a, b, h = blocks.row[r], blocks.col[c], blocks.shared[t]
        total += dyad_loss(specs, a, b, h, data, i, work)
        scratch.row[:] = 0
        scratch.col[:] = 0
        pull_row(specs.structure, a, b, h, work.g, scratch.row)
        pull_col(specs.structure, a, b, h, work.g, scratch.col)
        pull_shared(specs.structure, a, b, h, work.g, scratch.shared[t])
        scratch.share[t] += weigh(data.weight, i, decay.shared[t])
        keep_scores(pulled.kept, i, work.g)
        keep_pull(pulled.row, r, scratch.row)
        keep_pull(pulled.col, c, scratch.col)
        row_share, col_share = weigh(data.weight, i, decay.row[r]), weigh(data.weight, i, decay.col[c])
        step(a, pulled.row_shift, r, scratch.row, squares.row[r], rate, row_share, decay.row_l2)
        step(b, pulled.col_shift, c, scratch.col, squares.col[c], rate, col_share, decay.col_l2)
        if n % SHARED_BATCH == SHARED_BATCH - 1 or n == order.size - 1:
            for u in range(blocks.shared.shape[0]):
                step(
                    blocks.shared[u], decay.centre, u, scratch.shared[u], squares.shared[u], rate, scratch.share[u],
                    decay.shared_l2,
                )  # fmt: skip
            scratch.shared[:] = 0
            scratch.share[:] = 0
    return total


@jitable
def step(x, centres, n, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """Take an AdaGrad step (Duchi et al. 2011): x -= rate d / sqrt(sum of d^2 so far), d = g + share of the penalty.

    The penalty is on x - centres[n], or on x if `centres` is Absent.
    """
    for k in range(x.size):
        d = g[k] + slope(distance(centres, n, x, k), l2[k], share)
        squares[k] += d * d
        x[k] -= rate * d / math.sqrt(squares[k])


@kernel
def step_pass(x, centres, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """Take one AdaGrad step of each row of x with the gradient g."""
    for n in range(x.shape[0]):
        step(x[n], centres, n, g[n], squares[n], rate, share, l2)


@read_if_present(lambda centres, n, x, k: x[k])
def distance(centres, n, x, k):  # type: ignore[no-untyped-def]
    """Return x[k] - centres[n, k], or x[k] if `centres` is absent."""
    return x[k] - centres[n, k]


@read_if_present(lambda table, n, x: None)
def keep_pull(table, n, x):  # type: ignore[no-untyped-def]
    """table[n] += x, unless `table` is absent."""
    add(table[n], x)


@read_if_present(lambda table, n, x: None)
def keep_scores(table, n, x):  # type: ignore[no-untyped-def]
    """table[n] = x, unless `table` is absent."""
    for k in range(x.size):
        table[n, k] = x[k]
