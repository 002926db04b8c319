"""The entity subproblem: one block, of a row, a column, a node or a relation, given everything else.

    minimise over x    sum_i w_i loss(label_i, s_i(x)) + 1/2 sum_k scale l2_k (x_k - centre_k)^2

over the dyads of the entity, by Newton's method with the curvature J^T C J + diag(scale l2), where J = d s / d x comes
from the pulls and C from the loss, and a line search, so that the objective never rises. For the log loss it is convex;
a self-link's score is quadratic in its node's block, and the line search alone takes care of that.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads, Grouped
from dyads.engine.compiled import inlined, kernel
from dyads.engine.vectors import begin
from dyads.model.loss import curvature, evaluate
from dyads.model.parameters import Blocks
from dyads.model.penalty import slope
from dyads.model.structure import pull_col, pull_row, pull_shared, score

Array = np.ndarray[Any, Any]

ROW, COL, NODE, SHARED = range(4)
"""Whose block is solved for; a node's is that of a row and of a column at once."""

STEPS = 100
"""Most Newton steps of a solution to the end; of the log loss, whose curvature is exact, five or six are enough."""

SMALL_STEP = 1e-13
"""A step that promises to lower a subproblem by less than this share of its value is the last, and needs no search."""


class Prior(NamedTuple):
    """The penalty of blocks that lie in one table: 1/2 scale_e sum_k l2_k (x_ek - centre_ek)^2.

    `active` : (size,) which entries move.
    """

    l2: Array
    scale: Array
    centre: Array
    active: Array


def solve_entities(
    specs: tuple[Any, Any],
    which: int,
    blocks: Blocks,
    dyads: Dyads,
    first_scores: Array | None,
    prior: Prior,
    grouped: Grouped,
    tasks: Sequence[tuple[int, int]],
    n_steps: int,
    run: Any,
) -> None:
    """Move the blocks of entities towards their optimum, given everything else, in place.

    `grouped` lists the dyads of each entity; `tasks` are ranges of entities; `run` maps a function over them. Nodes
    that share a dyad are not independent, so theirs must be run one after the other.
    """
    table = (blocks.row, blocks.col, blocks.row, blocks.shared)[which]
    n_labels, size = specs[0].n_labels, table.shape[1]
    if not prior.active.any():
        return

    def solve(bounds: tuple[int, int]) -> None:
        entity_pass(
            *specs, which, table, *blocks, grouped.start, grouped.order,
            dyads.row, dyads.col, dyads.label, dyads.relation, dyads.weight, first_scores,
            *prior, *bounds, n_steps, SMALL_STEP,
            np.empty(n_labels), np.empty(n_labels), np.zeros(n_labels), np.empty((n_labels, n_labels)),
            np.empty((n_labels, size)), np.empty((n_labels, size)), np.empty(size), np.empty(size), np.empty(size),
            np.empty((size, size)), np.empty((size, size)),
        )  # fmt: skip

    run(solve, tasks)


# s, g, unit, C, J, T, x, d, gx, M, R are scratch: scores, score gradient, a unit vector, curvature, d s / d x, C J, the
# trial block, its step, its gradient, the curvature of the subproblem, and that one's Cholesky factor.


@kernel
def entity_pass(  # type: ignore[no-untyped-def]
    structure, loss, which, X, A, B, H, start, order, row, col, label, relation, weight, S,
    l2, scale, centre, active, first, last, n_steps, small, s, g, unit, C, J, T, x, d, gx, M, R,
):  # fmt: skip
    """Solve the subproblems of entities first..last-1, whose blocks are lines of X, by at most `n_steps` each."""
    size = x.size
    for e in range(first, last):
        for k in range(size):
            x[k] = X[e, k]
        value = entity_value(
            structure, loss, which, e, x, A, B, H, start, order, row, col, label, relation, weight, S,
            l2, scale, centre, s, g,
        )  # fmt: skip
        for _ in range(n_steps):
            for k in range(size):
                gx[k] = slope(x[k] - centre[e, k], l2[k], scale[e])
                for j in range(k):
                    M[k, j] = 0
                M[k, k] = scale[e] * l2[k]
            for n in range(start[e], start[e + 1]):
                i = order[n]
                own_row, own_col, h = roles(which, e, i, x, A, B, H, row, col, relation)
                a = x if own_row else A[row[i]]
                b = x if own_col else B[col[i]]
                begin(s, S, i)
                score(structure, a, b, h, s)
                curvature(loss, label[i], s, g, C)
                evaluate(loss, label[i], s, g)
                w = 1.0 if weight is None else weight[i]
                for y in range(s.size):
                    unit[y] = 1
                    for k in range(size):
                        J[y, k] = 0
                    if which == SHARED:
                        pull_shared(structure, a, b, h, unit, J[y])
                    if own_row:
                        pull_row(structure, a, b, h, unit, J[y])
                    if own_col:
                        pull_col(structure, a, b, h, unit, J[y])
                    unit[y] = 0
                    for k in range(size):
                        gx[k] += w * g[y] * J[y, k]
                for y in range(s.size):
                    for k in range(size):
                        T[y, k] = 0
                    for z in range(s.size):
                        c = w * C[y, z]
                        for k in range(size):
                            T[y, k] += c * J[z, k]
                for k in range(size):
                    for y in range(s.size):
                        slope_y = J[y, k]
                        if slope_y != 0:
                            for j in range(k + 1):
                                M[k, j] += slope_y * T[y, j]
            for k in range(size):
                if not active[k]:
                    gx[k] = 0
                    M[k, k] = 1
                    for j in range(k):
                        M[k, j] = 0
                    for j in range(k + 1, size):
                        M[j, k] = 0
            newton_step(M, gx, R, d)
            promised = 0.0
            for k in range(size):
                promised += gx[k] * d[k]
            if promised <= small * abs(value):
                for k in range(size):
                    X[e, k] -= d[k]
                break
            length = 1.0
            improved = False
            while length > 1e-12:
                for k in range(size):
                    x[k] = X[e, k] - length * d[k]
                trial = entity_value(
                    structure, loss, which, e, x, A, B, H, start, order, row, col, label, relation, weight, S,
                    l2, scale, centre, s, g,
                )  # fmt: skip
                if trial <= value - 1e-4 * length * promised:
                    improved = True
                    break
                length *= 0.5
            if not improved:
                break
            value = trial
            for k in range(size):
                X[e, k] = x[k]


@inlined
def entity_value(  # type: ignore[no-untyped-def]
    structure, loss, which, e, x, A, B, H, start, order, row, col, label, relation, weight, S,
    l2, scale, centre, s, g,
):  # fmt: skip
    """The subproblem's value with the block x of entity e."""
    total = 0.0
    for k in range(x.size):
        away = x[k] - centre[e, k]
        total += 0.5 * away * slope(away, l2[k], scale[e])
    for n in range(start[e], start[e + 1]):
        i = order[n]
        own_row, own_col, h = roles(which, e, i, x, A, B, H, row, col, relation)
        begin(s, S, i)
        score(structure, x if own_row else A[row[i]], x if own_col else B[col[i]], h, s)
        value = evaluate(loss, label[i], s, g)
        total += value if weight is None else value * weight[i]
    return total


@inlined
def roles(which, e, i, x, A, B, H, row, col, relation):  # type: ignore[no-untyped-def]
    """Whether x stands for the row's block of dyad i, and for the column's; and the shared block, which x may be."""
    own_row = which == ROW or (which == NODE and row[i] == e)
    own_col = which == COL or (which == NODE and col[i] == e)
    return own_row, own_col, x if which == SHARED else H[0 if relation is None else relation[i]]


@inlined
def newton_step(M, g, R, d):  # type: ignore[no-untyped-def]
    """Write d = M^-1 g by Cholesky, M = R R^T, of the lower half of M; a pivot too small to trust is raised."""
    size = g.size
    largest = 0.0
    for k in range(size):
        largest = max(largest, M[k, k])
    # Directions without curvature, along which scores do not change, get a step of zero: their gradient is zero.
    least = 1e-10 * largest + 1e-300
    for k in range(size):
        for j in range(k + 1):
            total = M[k, j]
            for m in range(j):
                total -= R[k, m] * R[j, m]
            if j == k:
                R[k, k] = math.sqrt(max(total, least))
            else:
                R[k, j] = total / R[j, j]
    for k in range(size):
        total = g[k]
        for m in range(k):
            total -= R[k, m] * d[m]
        d[k] = total / R[k, k]
    for n in range(size):
        k = size - 1 - n
        total = d[k]
        for m in range(k + 1, size):
            total -= R[m, k] * d[m]
        d[k] = total / R[k, k]
