"""The CPU engine: sums over dyads on a pool of threads. Results do not depend on the number of threads.

A full-batch gradient takes two passes: by row (score, loss, store g, pull into the row), then by column (read g, pull
into the column). So every sum has one owner and a fixed order.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, Self

import joblib
import numpy as np
from joblib.parallel import get_active_backend
from threadpoolctl import ThreadpoolController

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads, Side
from dyads.engine import scoring
from dyads.engine.api import OwnPrior, Query
from dyads.engine.bundles import Data, Specs, TileWork
from dyads.engine.descent import CellData, HostDescent
from dyads.engine.orders import Bounds, Orders, Run, even_tasks
from dyads.engine.passes import col_sums, loss_pass, row_sums
from dyads.engine.sparse import ThreadedMatrix, threaded
from dyads.engine.updates import HostUpdates
from dyads.model.objective import Objective
from dyads.model.parameters import Blocks
from dyads.model.record import Model
from dyads.model.structure import Structure
from dyads.settings import Setting

Array = np.ndarray[Any, Any]

STORED_GRADIENT_BYTES = 2**30
"""Memory limit for storing the score gradients of a row pass; above it, the column pass computes them again."""

CELL = 8192
"""Target number of dyads per SGD cell: small enough for the rows and columns of a cell to stay in a core's cache."""

MAX_GROUPS = 32
"""Maximum number of SGD groups of rows, and of columns. As many cells are visited in parallel, enough for most CPUs."""


def n_groups(n_dyads: int) -> int:
    """Return the number of SGD groups: one, or an even number, so that two threads visit as many cells each."""
    n = min(math.isqrt(n_dyads // CELL), MAX_GROUPS)
    return n + n % 2 if n > 1 else 1


class Threads:
    """A pool of `n` threads; it starts none if n is one or there is a single task."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        """Apply the function to each task; return the results in the order of the tasks."""
        tasks = list(tasks)
        if self.n == 1 or len(tasks) == 1:
            return [function(task) for task in tasks]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.n)
        return list(self._pool.map(function, tasks))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _OneThread:
    """A context in which BLAS uses one thread: it sums in an order that depends on its number of threads.

    The limit holds for the whole process, so it lasts from the first of several contexts, of fits on several threads,
    to the end of the last.
    """

    def __init__(self) -> None:
        self._lock, self._n_inside = Lock(), 0
        self._controller: Any = None
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._n_inside:
                # Finding the libraries takes milliseconds, longer than the fold-in of a row.
                self._controller = self._controller or ThreadpoolController()
                self._limits = self._controller.limit(limits=1, user_api="blas")
            self._n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside:
                self._limits.restore_original_limits()


BLAS_ON_ONE_THREAD = _OneThread()


@dataclass(frozen=True, repr=False)
class CPU(Setting):
    """The engine on threads of this process.

    Parameters
    ----------
    threads : int, default None
        Number of threads; None means all cores or, inside a joblib worker, its share of them. The result does not
        depend on it.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        self.check_count("threads", 1, optional=True)

    def bind(self, objective: Objective, dyads: Dyads, counts: Counts | None = None) -> "Host":
        return Host(objective, Bound(objective, dyads, counts, Threads(self.n_threads())))

    def check(self, objective: Objective, dyads: Dyads, descends: bool = False) -> None:
        pass

    def for_memory(self) -> Self:
        return self

    def scores(self, models: Sequence[Model], codes: Sequence[Codes], features: Any = None) -> Array:
        with self._run() as run:
            return scoring.scores(models, codes, features, run)

    def top(self, models: Sequence[Model], query: Query) -> tuple[Array, Array]:
        with self._run() as run:
            return scoring.top(models, query, run)

    def block_scores(self, structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array) -> Array:
        with self._run() as run:
            return scoring.block_scores(structure, blocks, codes, offset, run)

    def n_threads(self) -> int:
        """Return the number of threads to start: `threads` or all cores, but inside joblib no more than its share."""
        n = joblib.cpu_count() if self.threads is None else self.threads
        backend, _ = get_active_backend()
        if getattr(backend, "nesting_level", 0):
            # Joblib sets NUMBA_NUM_THREADS to a worker process's share of the cores; its threads have one core each.
            n = min(n, int(os.environ.get("NUMBA_NUM_THREADS", "1")))
        return max(1, n)

    @contextmanager
    def _run(self) -> Iterator[Run]:
        # Threads end with the call, so that a later fork is safe.
        threads = Threads(self.n_threads())
        try:
            yield threads.map
        finally:
            threads.close()


class Bound:
    """Dyads, their counts and orders, and threads: shared by a problem and its restrictions."""

    def __init__(
        self,
        objective: Objective,
        dyads: Dyads,
        counts: Counts | None,
        threads: Threads,
        shard: int | None = None,
        matrix: type[ThreadedMatrix] = ThreadedMatrix,
    ) -> None:
        one_set = objective.structure.one_set
        dyads = replace(dyads, side=threaded(dyads.side, threads.map, matrix))
        self.dyads, self.threads, self.penalty = dyads, threads, objective.penalty
        self.resources = ExitStack()
        self.counts = Counts.of(dyads, one_set) if counts is None else counts
        self.orders = Orders(dyads, one_set, n_groups(len(dyads)), shard)

    @cached_property
    def cell_data(self) -> CellData:
        return CellData(self.penalty, self.orders, self.counts)


class Host:
    """An objective bound to dyads, on threads; see `api.Problem`."""

    def __init__(self, objective: Objective, bound: Bound) -> None:
        self.objective, self.dyads = objective, bound.dyads
        self._bound, self._run = bound, bound.threads.map

    def __enter__(self) -> Self:
        self._bound.resources.enter_context(BLAS_ON_ONE_THREAD)
        return self

    def __exit__(self, *_: object) -> None:
        self._bound.resources.close()
        self._bound.threads.close()

    def loss(self, theta: Array, held: Dyads | None = None) -> float:
        dyads = self.dyads if held is None else held
        layout, specs = self.objective.layout, self._specs(theta)
        side = dyads.side.astype(theta.dtype)
        blocks = layout.effective(theta, side)
        data = Data.of(dyads, theta.dtype, layout.first_scores(theta, side))

        def part(bounds: Bounds) -> float:
            work = TileWork.of(specs.structure.n_labels, theta.dtype)
            return loss_pass(specs, blocks, data, bounds, work)  # type: ignore[no-any-return]

        return float(sum(self._run(part, even_tasks(0, len(dyads)))))

    def value(self, theta: Array) -> float:
        return self.loss(theta) + self.objective.add_penalty(theta, np.zeros_like(theta))

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        layout, n_labels = self.objective.layout, self.objective.structure.n_labels
        gradient = np.zeros_like(theta)
        stored = len(self.dyads) * n_labels * theta.dtype.itemsize <= STORED_GRADIENT_BYTES
        keeping = self.dyads.side.dyad is not None or stored
        kept = np.empty((len(self.dyads) if keeping else 0, n_labels), theta.dtype)
        side = self.dyads.side.astype(theta.dtype)
        blocks, out = layout.effective(theta, side), layout.blocks(gradient)
        value = self._by_row(theta, blocks, kept, out)
        self._by_col(theta, blocks, kept, out)
        if side.dyad is not None:
            side = side._replace(dyad=self._bound.orders.in_row_order.side.dyad.astype(theta.dtype, copy=False))
        layout.pull_side(out, kept, side, gradient)
        value += self.objective.add_penalty(theta, gradient)
        if self.objective.free is not None:
            gradient[~self.objective.free] = 0
        return value, gradient

    def scores(self, theta: Array, dyads: Dyads) -> Array:
        layout = self.objective.layout
        first = layout.first_scores(theta, dyads.side)
        offset = np.zeros((len(dyads), dyads.n_labels)) if first is None else first
        blocks = layout.effective(theta, self.dyads.side)
        return scoring.block_scores(layout.structure, blocks, dyads.codes, offset, self._run)

    def score_gradients(self, theta: Array) -> tuple[Dyads, Array]:
        layout, dyads = self.objective.layout, self._bound.orders.in_row_order
        kept = np.empty((len(dyads), self.objective.structure.n_labels), theta.dtype)
        blocks = layout.effective(theta, dyads.side.astype(theta.dtype))
        self._by_row(theta, blocks, kept, layout.blocks(np.zeros_like(theta)))
        return dyads, kept

    def _by_row(self, theta: Array, blocks: Blocks, kept: Array, out: Blocks) -> float:
        """Return the loss; WRITE its gradient to `out.row` and ADD it to `out.shared`.

        `kept` : (n, n_labels) receives d loss / d score in row order, unless it is empty.
        """
        specs, total, first = self._specs(theta), 0.0, 0
        for shard in self._bound.orders.by_row:
            lines = kept[first : first + len(shard.dyads)]
            value, rows, shared = row_sums(specs, blocks, shard, self._data(theta, shard.dyads), lines, self._run)
            out.row[shard.owners] = rows
            out.shared[:] += shared
            total += value
            first += len(shard.dyads)
        return total

    def _by_col(self, theta: Array, blocks: Blocks, kept: Array, out: Blocks) -> None:
        """ADD the gradient of the loss by columns to `out.col`, which with one id set is also `out.row`."""
        specs = self._specs(theta)
        for shard in self._bound.orders.by_col:
            # No offsets are needed: if dyads have features, score gradients are stored. See `value_and_gradient`.
            data = Data.of(shard.dyads, theta.dtype, None)
            out.col[shard.owners] += col_sums(specs, blocks, shard, data, kept, self._run)

    def descent(self, theta: Array, visited: bool = False) -> HostDescent:
        return HostDescent(self.objective, self._bound.cell_data, theta, visited, self._run)

    def blocks_in_turn(self, theta: Array, prior: OwnPrior | None = None) -> HostUpdates:
        return HostUpdates(self.objective, self._bound.orders, theta, prior, self._run)

    def restricted(self, free: Array | None) -> "Host":
        return Host(replace(self.objective, free=free), self._bound)

    def without_blocks(self) -> "Host | None":
        layout, free = self.objective.layout, self.objective.free
        moving = np.ones(layout.size, np.bool_) if free is None else free.copy()
        moving[: layout.own_size] = False
        return self.restricted(moving) if moving.any() else None

    def _specs(self, theta: Array) -> Specs:
        return Specs.of(self.objective.structure, self.objective.loss, theta.dtype)

    def _data(self, theta: Array, dyads: Dyads) -> Data:
        side = Side(dyad=dyads.side.dyad).astype(theta.dtype)
        return Data.of(dyads, theta.dtype, self.objective.layout.first_scores(theta, side))
