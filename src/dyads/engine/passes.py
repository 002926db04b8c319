"""The kernels that pass over dyads: by row, by column, of the loss alone, and of SGD.

Blocks are effective ones, and `Data.offset` holds what the scores of dyads begin at: side-information is no kernel's
business. A kernel allocates nothing: its scratch vectors are arguments.
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
"""Dyads after which SGD moves the shared blocks: every dyad touches one, and a step costs as much as a dyad."""


@jitable
def score_dyad(structure, a, b, h, offset, i, s):  # type: ignore[no-untyped-def]
    """Write the scores of dyad i with blocks a, b and h to s."""
    load_scores(offset, i, s)
    score(structure, a, b, h, s)


@jitable
def dyad_loss(specs, a, b, h, data, i, work):  # type: ignore[no-untyped-def]
    """Return the weighted loss of dyad i with blocks a, b and h, and write its derivative by the scores to work.g."""
    score_dyad(specs.structure, a, b, h, data.offset, i, work.s)
    value = weigh(data.weight, i, evaluate(specs.loss, data.label[i], work.s, work.g))
    weigh_all(data.weight, i, work.g)
    return value


@kernel
def row_pass(specs, blocks, data, owned, bounds, kept, work, tile, row_sums, shared_sums):  # type: ignore[no-untyped-def]
    """Return the loss of owners bounds[0]..bounds[1]-1 of a shard of rows; ADD its pulls to row_sums and shared_sums.

    Keeps d loss / d score in `kept` (n, n_labels) unless that is empty. `tile` : (row size,) scratch.
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
    """ADD the pulls of owners bounds[0]..bounds[1]-1 of a shard of columns to col_sums.

    d loss / d score of dyad i is kept[place[i]] or, if `kept` is empty, computed again.
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
    """The loss of a shard of rows, its gradient by each of its rows' blocks, and by all shared blocks.

    `kept` : (n, n_labels) is WRITTEN with d loss / d score of each dyad, unless it is empty. The sums of shared blocks
    are made per task, and added in the order of tasks.
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
    """The gradient of the loss of a shard of columns by each of its columns' blocks.

    `kept` : of all dyads, in the order of rows; if it is empty, score gradients are computed again.
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
    """The penalty as SGD meets it: a dyad holds the share w_i / n_r of that of its row, its column and its relation.

    Attributes
    ----------
    row, col, shared : (n,) what is multiplied by the weight of a dyad: the penalty's scale over the owner's count
    row_l2, col_l2, shared_l2 : (size,) strength of the penalty on each entry of a block
    centre : (n_relations, shared size) what the shared blocks are penalised towards
    """

    row: Any
    col: Any
    shared: Any
    row_l2: Any
    col_l2: Any
    shared_l2: Any
    centre: Any


class Pulled(NamedTuple):
    """What an SGD pass keeps for the steps of the side weights; each is Absent where there are no such features.

    Attributes
    ----------
    row_shift, col_shift : (n, size) what features add to own blocks, which the penalty leaves out
    row, col : (n, size) pulled gradients, added up
    kept : (n, n_labels) score gradients
    """

    row_shift: Any
    col_shift: Any
    row: Any
    col: Any
    kept: Any


class DescentWork(NamedTuple):
    """Scratch of an SGD pass: pulled gradients of a row, a column and all shared blocks, and shares of relations."""

    row: Any
    col: Any
    shared: Any
    share: Any


@kernel
def sgd_pass(specs, blocks, squares, data, order, decay, rate, pulled, work, scratch):  # type: ignore[no-untyped-def]
    """One AdaGrad step per dyad, in the given order; returns the sum of the losses met on the way.

    A dyad's gradient holds its share of the penalty, so that an epoch's steps sum to the gradient of the objective.
    Both pulls are computed before either lands: of a self-link they land on one block. The shared blocks, which every
    dyad touches, move after every `SHARED_BATCH` dyads. With side-information the blocks are effective ones, and the
    penalty is on what is left without the shifts of `pulled`.
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
    """AdaGrad (Duchi et al. 2011) on g plus a share of the penalty: x -= rate d / sqrt(sum of d^2 so far).

    The penalty is on the distance from line n of `centres`, or from zero if these are Absent.
    """
    for k in range(x.size):
        d = g[k] + slope(distance(centres, n, x, k), l2[k], share)
        squares[k] += d * d
        x[k] -= rate * d / math.sqrt(squares[k])


@kernel
def step_pass(x, centres, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """One AdaGrad step of each line of x with the gradient g."""
    for n in range(x.shape[0]):
        step(x[n], centres, n, g[n], squares[n], rate, share, l2)


@read_if_present(lambda centres, n, x, k: x[k])
def distance(centres, n, x, k):  # type: ignore[no-untyped-def]
    """x[k] - centres[n, k], or x[k] if there are no centres."""
    return x[k] - centres[n, k]


@read_if_present(lambda table, n, x: None)
def keep_pull(table, n, x):  # type: ignore[no-untyped-def]
    """table[n] += x."""
    add(table[n], x)


@read_if_present(lambda table, n, x: None)
def keep_scores(table, n, x):  # type: ignore[no-untyped-def]
    """table[n] = x."""
    for k in range(x.size):
        table[n, k] = x[k]
