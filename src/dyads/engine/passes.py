"""The kernels that pass over dyads: by row, by column, of the loss alone, and of SGD.

s, g, ga, gb, gh are scratch vectors for scores, score gradients and pulled gradients; a kernel allocates nothing.
A, B are effective blocks, and S holds what the scores of dyads begin at, or is None: side-information is no kernel's
business.
"""

import math

from dyads.engine.compiled import inlined, kernel
from dyads.engine.vectors import add, begin, scale
from dyads.model.loss import evaluate
from dyads.model.penalty import slope
from dyads.model.structure import pull_col, pull_row, pull_shared, score

SHARED_BATCH = 64
"""Dyads after which SGD moves the shared block."""


@kernel
def row_pass(structure, loss, A, B, H, start, col, label, relation, weight, S, first, last, kept, s, g, GA, GH):  # type: ignore[no-untyped-def]
    """Sum the loss of rows first..last-1, pull it into GA and GH, and keep g in `kept` unless that is empty."""
    total = 0.0
    for r in range(first, last):
        a, ga = A[r], GA[r]
        for i in range(start[r], start[r + 1]):
            b = B[col[i]]
            t = 0 if relation is None else relation[i]
            h = H[t]
            begin(s, S, i)
            score(structure, a, b, h, s)
            value = evaluate(loss, label[i], s, g)
            if weight is not None:
                value *= weight[i]
                scale(g, weight[i])
            total += value
            pull_row(structure, a, b, h, g, ga)
            pull_shared(structure, a, b, h, g, GH[t])
            if kept.shape[0]:
                for y in range(g.size):
                    kept[i, y] = g[y]
    return total


@kernel
def col_pass(structure, loss, A, B, H, start, order, row, label, relation, weight, S, first, last, kept, s, g, GB):  # type: ignore[no-untyped-def]
    """Pull the loss of columns first..last-1 into GB, with g read from `kept` or, if that is empty, computed again."""
    for c in range(first, last):
        b, gb = B[c], GB[c]
        for j in range(start[c], start[c + 1]):
            i = order[j]
            a = A[row[i]]
            h = H[0 if relation is None else relation[i]]
            if kept.shape[0]:
                pull_col(structure, a, b, h, kept[i], gb)
            else:
                begin(s, S, i)
                score(structure, a, b, h, s)
                evaluate(loss, label[i], s, g)
                if weight is not None:
                    scale(g, weight[i])
                pull_col(structure, a, b, h, g, gb)


@kernel
def loss_pass(structure, loss, A, B, H, row, col, label, relation, weight, S, first, last, s, g):  # type: ignore[no-untyped-def]
    """Sum the loss of dyads first..last-1."""
    total = 0.0
    for i in range(first, last):
        begin(s, S, i)
        score(structure, A[row[i]], B[col[i]], H[0 if relation is None else relation[i]], s)
        value = evaluate(loss, label[i], s, g)
        total += value if weight is None else value * weight[i]
    return total


@kernel
def sgd_pass(  # type: ignore[no-untyped-def]
    structure, loss, A, B, H, A2, B2, H2, row, col, label, relation, weight, order,
    row_decay, col_decay, shared_decay, row_l2, col_l2, shared_l2, shared_centre, rate, s, g, ga, gb, GH,
    S, kept, row_shift, col_shift, GA, GB,
):  # fmt: skip
    """One AdaGrad step per dyad, in the given order; returns the sum of the losses met on the way.

    A dyad's gradient holds its share of the penalty, w_i / n_r of that of its row, so that an epoch's steps sum to the
    gradient of the objective. Both pulls are computed before either lands: of a self-link they land on one block. The
    shared blocks, which every dyad touches, move after every `SHARED_BATCH` dyads.

    With side-information, A and B hold effective blocks, and the penalty is on what is left without `row_shift` and
    `col_shift`; score gradients are kept in `kept`, and the pulled ones added to GA and GB, for the side weights. Each
    of these is None where there are no such features.
    """
    total = 0.0
    GH[:] = 0
    t = 0
    h, gh = H[0], GH[0]
    for n in range(order.size):
        i = order[n]
        r, c = row[i], col[i]
        a, b = A[r], B[c]
        if relation is not None:
            t = relation[i]
            h, gh = H[t], GH[t]
        begin(s, S, i)
        score(structure, a, b, h, s)
        value = evaluate(loss, label[i], s, g)
        row_share, col_share = row_decay[r], col_decay[c]
        if weight is not None:
            value *= weight[i]
            scale(g, weight[i])
            row_share *= weight[i]
            col_share *= weight[i]
        total += value
        ga[:] = 0
        gb[:] = 0
        pull_row(structure, a, b, h, g, ga)
        pull_col(structure, a, b, h, g, gb)
        pull_shared(structure, a, b, h, g, gh)
        if shared_l2 is not None:
            shared_share = shared_decay[t]
            if weight is not None:
                shared_share *= weight[i]
            for k in range(gh.size):
                gh[k] += slope(h[k] - shared_centre[t, k], shared_l2[k], shared_share)
        if kept is not None:
            for y in range(g.size):
                kept[i, y] = g[y]
        if row_shift is None:
            step(a, ga, A2[r], rate, row_share, row_l2)
        else:
            add(GA[r], ga)
            step_from(row_shift[r], a, ga, A2[r], rate, row_share, row_l2)
        if col_shift is None:
            step(b, gb, B2[c], rate, col_share, col_l2)
        else:
            add(GB[c], gb)
            step_from(col_shift[c], b, gb, B2[c], rate, col_share, col_l2)
        if n % SHARED_BATCH == SHARED_BATCH - 1 or n == order.size - 1:
            for u in range(H.shape[0]):
                for k in range(H.shape[1]):
                    H2[u, k] += GH[u, k] * GH[u, k]
                    H[u, k] -= rate * GH[u, k] / math.sqrt(H2[u, k])
            GH[:] = 0
    return total


@inlined
def step(x, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """AdaGrad (Duchi et al. 2011) on g plus a share of the penalty: x -= rate d / sqrt(sum of d^2 so far)."""
    for k in range(x.size):
        d = g[k] + slope(x[k], l2[k], share)
        squares[k] += d * d
        x[k] -= rate * d / math.sqrt(squares[k])


@inlined
def step_from(centre, x, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """The same step, with a penalty on the distance from `centre`."""
    for k in range(x.size):
        g[k] -= slope(centre[k], l2[k], share)
    step(x, g, squares, rate, share, l2)


@kernel
def step_pass(x, g, squares, rate, share, l2):  # type: ignore[no-untyped-def]
    """One AdaGrad step of each line of x with the gradient g."""
    for n in range(x.shape[0]):
        step(x[n], g[n], squares[n], rate, share, l2)
