"""A pool of threads, and the tasks it is given: these depend on the data alone, never on the number of threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import joblib

CHUNK = 8192
"""Dyads per task of a pass over all."""


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


def even_tasks(n: int) -> list[tuple[int, int]]:
    return [(first, min(first + CHUNK, n)) for first in range(0, n, CHUNK)]
