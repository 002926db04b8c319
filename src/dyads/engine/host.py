"""The CPU engine: sums over dyads on a pool of threads, the same at any number of them.

Full batch: by row (score, loss, keep g, pull into that row), then by column (read g, pull into that column), so
that every sum has one owner and one order. SGD: rows and columns are dealt into a fixed number of groups; the cells
(row group, column group) of one round share no row and no column, so threads take them in any order.
"""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import joblib
import numpy as np

from dyads.data.dyads import Dyads, Grouped
from dyads.engine.compiled import inlined, kernel
from dyads.model.fitted import Fitted
from dyads.model.loss import evaluate
from dyads.model.objective import Objective
from dyads.model.parameters import random_stream
from dyads.model.penalty import Counts, slope
from dyads.model.structure import pull_col, pull_row, pull_shared, score

Array = np.ndarray[Any, Any]

CHUNK = 8192
"""Dyads per task of a full-batch pass; the tasks depend on the data alone, never on the number of threads."""

STORED_GRADIENT_BYTES = 2**30
"""Above this size the score gradients of the row pass are computed again in the column pass, not stored."""

CELL = 8192
"""Dyads per SGD cell aimed at, and the most groups a side is dealt into."""
MAX_GROUPS = 32

SHARED_BATCH = 64
"""Dyads after which SGD moves the shared block."""

ACCUMULATOR_START = 0.1
"""Where AdaGrad's sums of squared gradients start, for weights of one: bounds a rarely seen entity's first steps."""


# ------------------------------------------------------------------------------------------------------- kernels


# s, g, ga, gb, gh are scratch vectors for scores, score gradients and pulled gradients; a kernel allocates nothing.


@kernel
def row_pass(structure, loss, A, B, H, start, col, label, relation, weight, first, last, kept, s, g, GA, GH):  # type: ignore[no-untyped-def]
    """Sum the loss of rows first..last-1, pull it into GA and GH, and keep g in `kept` unless that is empty."""
    total = 0.0
    for r in range(first, last):
        a, ga = A[r], GA[r]
        for i in range(start[r], start[r + 1]):
            b = B[col[i]]
            t = 0 if relation is None else relation[i]
            h = H[t]
            s[:] = 0
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
def col_pass(structure, loss, A, B, H, start, order, row, label, relation, weight, first, last, kept, s, g, GB):  # type: ignore[no-untyped-def]
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
                s[:] = 0
                score(structure, a, b, h, s)
                evaluate(loss, label[i], s, g)
                if weight is not None:
                    scale(g, weight[i])
                pull_col(structure, a, b, h, g, gb)


@kernel
def loss_pass(structure, loss, A, B, H, row, col, label, relation, weight, first, last, s, g):  # type: ignore[no-untyped-def]
    """Sum the loss of dyads first..last-1."""
    total = 0.0
    for i in range(first, last):
        s[:] = 0
        score(structure, A[row[i]], B[col[i]], H[0 if relation is None else relation[i]], s)
        value = evaluate(loss, label[i], s, g)
        total += value if weight is None else value * weight[i]
    return total


@kernel
def score_pass(structure, A, B, H, row, col, relation, first, last, none_a, none_b, S):  # type: ignore[no-untyped-def]
    """Add the scores of dyads first..last-1 to S; an entity of negative code has the block `none_a` or `none_b`."""
    for i in range(first, last):
        a = A[row[i]] if row[i] >= 0 else none_a
        b = B[col[i]] if col[i] >= 0 else none_b
        score(structure, a, b, H[0 if relation is None else relation[i]], S[i])


@kernel
def sgd_pass(  # type: ignore[no-untyped-def]
    structure, loss, A, B, H, A2, B2, H2, row, col, label, relation, weight, order,
    row_decay, col_decay, shared_decay, row_l2, col_l2, shared_l2, shared_centre, rate, s, g, ga, gb, GH,
):  # fmt: skip
    """One AdaGrad step per dyad, in the given order; returns the sum of the losses met on the way.

    A dyad's gradient holds its share of the penalty, w_i / n_r of that of its row, so that an epoch's steps sum to the
    gradient of the objective. Both pulls are computed before either lands: of a self-link they land on one block. The
    shared blocks, which every dyad touches, move after every `SHARED_BATCH` dyads.
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
        s[:] = 0
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
        step(a, ga, A2[r], rate, row_share, row_l2)
        step(b, gb, B2[c], rate, col_share, col_l2)
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
def scale(x, factor):  # type: ignore[no-untyped-def]
    """x *= factor."""
    for k in range(x.size):
        x[k] *= factor


# -------------------------------------------------------------------------------------------------------- engine


class Host:
    """An objective bound to dyads: what solvers call.

    Use it in a ``with`` block: its threads live no longer than that, so that a later fork is safe.
    """

    def __init__(self, objective: Objective, dyads: Dyads, n_jobs: int | None = 1) -> None:
        self.objective = objective
        self.dyads = dyads
        self.threads = Threads(n_jobs)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.close()

    def loss(self, theta: Array, dyads: Dyads | None = None) -> float:
        """Sum the weighted loss of the bound dyads, or of others."""
        dyads = self.dyads if dyads is None else dyads
        specs, blocks = self._specs(theta.dtype), self.objective.layout.blocks(theta)
        weight = _weight(dyads, theta.dtype)

        def part(bounds: tuple[int, int]) -> float:
            return loss_pass(
                *specs,
                *blocks,
                dyads.row,
                dyads.col,
                dyads.label,
                dyads.relation,
                weight,
                *bounds,
                *_scratch(specs[0], theta),
            )  # type: ignore[no-any-return]

        return sum(self.threads.map(part, _even_tasks(len(dyads))))

    def value(self, theta: Array) -> float:
        """The objective."""
        return self.loss(theta) + self.objective.add_penalty(theta, np.zeros_like(theta))

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """The objective and its gradient (size,), in the precision of theta."""
        layout, grouped = self.objective.layout, self._by_owner
        specs, blocks = self._specs(theta.dtype), layout.blocks(theta)
        gradient = np.zeros_like(theta)
        out = layout.blocks(gradient)
        tasks = grouped.row_tasks
        shared = np.zeros((len(tasks), *blocks.shared.shape), theta.dtype)
        n_kept = len(self.dyads) if self._store_bytes(theta.dtype) <= STORED_GRADIENT_BYTES else 0
        kept = np.empty((n_kept, self.objective.structure.n_labels), theta.dtype)
        weight = _weight(grouped.dyads, theta.dtype)
        dyads = grouped.dyads

        def rows(task: int) -> float:
            return row_pass(  # type: ignore[no-any-return]
                *specs,
                *blocks,
                grouped.row_start,
                dyads.col,
                dyads.label,
                dyads.relation,
                weight,
                *tasks[task],
                kept,
                *_scratch(specs[0], theta),
                out.row,
                shared[task],
            )

        def cols(bounds: tuple[int, int]) -> None:
            col_pass(
                *specs,
                *blocks,
                grouped.col_start,
                grouped.col_order,
                dyads.row,
                dyads.label,
                dyads.relation,
                weight,
                *bounds,
                kept,
                *_scratch(specs[0], theta),
                out.col,
            )

        value = sum(self.threads.map(rows, range(len(tasks))))
        self.threads.map(cols, grouped.col_tasks)
        out.shared[:] = shared.sum(axis=0)
        return value + self.objective.add_penalty(theta, gradient), gradient

    def sgd_state(self, theta: Array) -> Array:
        """The state of SGD (2, size), single precision: the parameters, and AdaGrad's sums of squared gradients."""
        typical = self.dyads.total_weight / len(self.dyads)
        return np.stack([theta, np.full_like(theta, ACCUMULATOR_START * typical**2)]).astype(np.float32)

    def epoch(self, state: Array, rate: float, seed: int, number: int) -> float:
        """Visit every dyad once in a new order, moving `state`; returns the objective met on the way.

        That is the loss of each dyad before its step, summed, plus the penalty at the end.
        """
        layout, cells = self.objective.layout, self._cells
        theta, squares = layout.blocks(state[0]), layout.blocks(state[1])
        specs, constants = self._specs(state.dtype), self._sgd_constants
        weight = _weight(cells.dyads, state.dtype)
        step_size = state.dtype.type(rate)
        dyads = cells.dyads

        def visit(cell: int) -> tuple[float, Array, Array]:
            first, last = cells.start[cell], cells.start[cell + 1]
            order = first + random_stream(seed, number, cell).permutation(last - first)
            h, h2 = theta.shared.copy(), squares.shared.copy()
            value = sgd_pass(
                *specs, theta.row, theta.col, h, squares.row, squares.col, h2,
                dyads.row, dyads.col, dyads.label, dyads.relation, weight, order, *constants, step_size,
                *_scratch(specs[0], h), np.empty_like(theta.row[0]), np.empty_like(theta.col[0]), np.empty_like(h),
            )  # fmt: skip
            return value, h, h2

        value = 0.0
        for shift in random_stream(seed, number).permutation(cells.n_groups):
            round_ = cells.round(int(shift))
            values, h, h2 = zip(*self.threads.map(visit, round_), strict=True)
            value += sum(values)
            sizes = np.diff(cells.start)[round_]
            if sizes.sum():
                # Every cell moved its own copy of the shared block: their mean, since their sum would overshoot.
                theta.shared[:] = np.average(h, axis=0, weights=sizes)
                squares.shared[:] = np.average(h2, axis=0, weights=sizes)
        return value + self.objective.add_penalty(state[0], np.zeros_like(state[0]))

    def _specs(self, dtype: Any) -> tuple[Any, Any]:
        return self.objective.structure, _at_precision(self.objective.loss, dtype)

    def _store_bytes(self, dtype: Any) -> int:
        return len(self.dyads) * self.objective.structure.n_labels * np.dtype(dtype).itemsize

    @cached_property
    def _by_owner(self) -> "_ByOwner":
        return _ByOwner.of(self.dyads)

    @cached_property
    def _cells(self) -> "_Cells":
        return _Cells.of(self.dyads, self.objective.structure.one_set)

    @cached_property
    def _sgd_constants(self) -> tuple[Array | None, ...]:
        penalty = self.objective.penalty
        # An entity whose dyads are all held out is never visited.
        counts = (np.where(n > 0, n, np.inf) for n in Counts.of(self.dyads, self.objective.structure.one_set))
        scales = (penalty.row_scale, penalty.col_scale, penalty.shared_scale)
        decays = (scale / n for scale, n in zip(scales, counts, strict=True))
        shared = (penalty.shared_strength, penalty.shared_centre) if penalty.shared_strength.any() else (None, None)
        arrays = (*decays, penalty.row_strength, penalty.col_strength, *shared)
        return tuple(None if array is None else np.ascontiguousarray(array, np.float32) for array in arrays)


def scores(fitted: Fitted, row: Array, col: Array, relation: Array | None = None, n_jobs: int | None = 1) -> Array:
    """Score dyads (n, n_labels) in the precision of the model; an entity of negative code is an average one."""
    A, B, H = fitted.layout.blocks(np.ascontiguousarray(fitted.theta))
    out = np.zeros((len(row), fitted.structure.n_labels), fitted.theta.dtype)
    row, col = (np.ascontiguousarray(codes, dtype=np.int64) for codes in (row, col))
    if relation is not None:
        # The code -1 finds the last block, which is the average relation's.
        relation = np.ascontiguousarray(relation, dtype=np.int64)
        H = np.vstack([H, H.mean(axis=0)])

    def part(bounds: tuple[int, int]) -> None:
        score_pass(fitted.structure, A, B, H, row, col, relation, *bounds, *fitted.average_blocks, out)

    with closing(Threads(n_jobs)) as threads:
        threads.map(part, _even_tasks(len(row)))
    return out


class Threads:
    """A pool of threads that keeps the order of its tasks; none is started for a single task or a single job."""

    def __init__(self, n_jobs: int | None) -> None:
        self.n_jobs = joblib.effective_n_jobs(n_jobs)
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        tasks = list(tasks)
        if self.n_jobs == 1 or len(tasks) == 1:
            return [function(task) for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n_jobs)
        return list(self._pool.map(function, tasks))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


@dataclass(frozen=True)
class _ByOwner:
    """Dyads sorted by row, with the order that visits them by column, and the tasks of both passes."""

    dyads: Dyads
    row_start: Array
    col_start: Array
    col_order: Array
    row_tasks: list[tuple[int, int]]
    col_tasks: list[tuple[int, int]]

    @classmethod
    def of(cls, dyads: Dyads) -> "_ByOwner":
        by_row = Grouped.by(dyads.row, dyads.n_rows)
        dyads = dyads.take(by_row.order)
        by_col = Grouped.by(dyads.col, dyads.n_cols)
        return cls(
            dyads, by_row.start, by_col.start, by_col.order, _owner_tasks(by_row.start), _owner_tasks(by_col.start)
        )


@dataclass(frozen=True)
class _Cells:
    """Dyads sorted by cell; cell (p, q) of the n_groups x n_groups holds start[p n_groups + q] onwards.

    With one id set a dyad of groups p and q lies in cell (min(p, q), max(p, q)), whichever is its row's.
    """

    dyads: Dyads
    start: Array
    n_groups: int
    one_set: bool

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool) -> "_Cells":
        n_groups = int(np.clip(math.isqrt(len(dyads) // CELL), 1, MAX_GROUPS))
        counts = Counts.of(dyads, one_set)
        first, second = _deal(counts.row, n_groups)[dyads.row], _deal(counts.col, n_groups)[dyads.col]
        if one_set:
            first, second = np.minimum(first, second), np.maximum(first, second)
        grouped = Grouped.by(first * np.int16(n_groups) + second, n_groups**2)
        return cls(dyads.take(grouped.order), grouped.start, n_groups, one_set)

    def round(self, shift: int) -> list[int]:
        """Cells of which no two share a group: (p, p + shift), or with one id set those with p + q = shift, mod n."""
        n = self.n_groups
        if self.one_set:
            pairs = {tuple(sorted((p, (shift - p) % n))) for p in range(n)}
            return sorted(p * n + q for p, q in pairs)
        return [p * n + (p + shift) % n for p in range(n)]


def _deal(counts: Array, n_groups: int) -> Array:
    """Deal entities into groups of about equal counts, the most frequent first."""
    group = np.empty(len(counts), np.int16)
    group[np.argsort(-counts, kind="stable")] = np.arange(len(counts)) % n_groups
    return group


def _even_tasks(n: int) -> list[tuple[int, int]]:
    return [(first, min(first + CHUNK, n)) for first in range(0, n, CHUNK)]


def _owner_tasks(start: Array) -> list[tuple[int, int]]:
    """Cut owners into runs of about CHUNK dyads."""
    n_tasks = max(1, int(start[-1]) // CHUNK)
    cuts = np.searchsorted(start, np.linspace(0, start[-1], n_tasks + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], cuts, [len(start) - 1]]))
    return [(int(first), int(last)) for first, last in pairwise(bounds)]


def _scratch(structure: Any, like: Array) -> tuple[Array, Array]:
    """Scratch vectors for scores and score gradients."""
    return np.empty(structure.n_labels, like.dtype), np.empty(structure.n_labels, like.dtype)


def _weight(dyads: Dyads, dtype: Any) -> Array | None:
    return None if dyads.weight is None else dyads.weight.astype(dtype, copy=False)


def _at_precision(spec: Any, dtype: Any) -> Any:
    """The same spec with its arrays in another precision, contiguous: other layouts would compile again."""
    arrays = {name: value for name, value in spec._asdict().items() if isinstance(value, np.ndarray)}
    return spec._replace(**{name: np.ascontiguousarray(value, dtype) for name, value in arrays.items()})
