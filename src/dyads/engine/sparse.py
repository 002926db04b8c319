"""Products of sparse matrices with tables, on threads: side-information in every solver."""

import math
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import sparse

from dyads.data.dyads import Side
from dyads.engine.compiled import kernel
from dyads.engine.orders import Run, owner_tasks
from dyads.model.objective import solve_normal

Array = np.ndarray[Any, Any]

PRODUCT_CHUNK = 2**17
"""Entries of a matrix per task of a product: some hundred microseconds of work, well above the cost of a task."""

LANES = 8
"""Tables are padded to a multiple of this width, which vector instructions take as a whole: a fifth faster."""


class ThreadedMatrix:
    """A sparse matrix X (n, p) whose products run on threads; otherwise like SciPy's, as far as models need it.

    `X @ table` and `X.T @ table` are computed in the precision of X. Each line of a product is the sum of one task, so
    products do not depend on the number of threads. The transpose is stored, once it is needed.
    """

    def __init__(self, matrix: Any, run: Run) -> None:
        self._matrix, self._run = sparse.csr_array(matrix), run
        self.shape: tuple[int, int] = self._matrix.shape
        self._tasks = owner_tasks(self._matrix.indptr, PRODUCT_CHUNK)

    solve_normal = solve_normal

    @cached_property
    def T(self) -> Self:
        return type(self)(self._matrix.T, self._run)

    @cached_property
    def _single(self) -> Self:
        return type(self)(self._matrix.astype(np.float32), self._run)

    def astype(self, dtype: Any, copy: bool = False) -> Self:
        """Return the matrix in another precision: itself, or a copy that is kept."""
        return self if dtype == self._matrix.dtype else self._single

    def power(self, n: int) -> Self:
        """Return the matrix of the n-th powers of the entries."""
        return type(self)(self._matrix.power(n), self._run)

    def __abs__(self) -> Self:
        return type(self)(abs(self._matrix), self._run)

    def __matmul__(self, table: Array) -> Array:
        """Return the product with `table` (p, width) or (p,)."""
        width = math.prod(table.shape[1:])
        right = np.zeros((len(table), -(-width // LANES) * LANES), self._matrix.dtype)
        right[:, :width] = table.reshape(len(table), width)
        out = np.empty((self.shape[0], right.shape[1]), right.dtype)
        start, index, entries = self._matrix.indptr, self._matrix.indices, self._matrix.data
        # An unsigned index is not tested for being negative, which saves a sixth of the time.
        index = index.view(f"u{index.itemsize}")

        def lines(bounds: tuple[int, int]) -> None:
            product_pass(start, index, entries, right, out, bounds)

        self._run(lines, self._tasks)
        return out[:, :width].reshape(self.shape[0], *table.shape[1:])


def threaded(side: Side, run: Run, kind: type[ThreadedMatrix] = ThreadedMatrix) -> Side:
    """Return side-information whose products with the features of rows and columns run on threads, or as of `kind`."""
    row, col = (None if features is None else kind(features, run) for features in side[:2])
    return side._replace(row=row, col=col)


@kernel
def product_pass(start: Array, index: Array, entries: Array, table: Array, out: Array, bounds: tuple[int, int]) -> None:
    """WRITE lines first..last-1 of X table to `out` (n, width).

    Line i of X has the `entries` start[i]..start[i + 1]-1, in the columns `index`. Four of them are added at a time: a
    sum of `width` numbers is short, and each has to be read and written.
    """
    width = out.shape[1]
    for i in range(bounds[0], bounds[1]):
        line, j, end = out[i], start[i], start[i + 1]
        for k in range(width):
            line[k] = 0
        while j + 4 <= end:
            x0, x1, x2, x3 = entries[j], entries[j + 1], entries[j + 2], entries[j + 3]
            y0, y1, y2, y3 = table[index[j]], table[index[j + 1]], table[index[j + 2]], table[index[j + 3]]
            for k in range(width):
                line[k] += (x0 * y0[k] + x1 * y1[k]) + (x2 * y2[k] + x3 * y3[k])
            j += 4
        while j < end:
            x, y = entries[j], table[index[j]]
            for k in range(width):
                line[k] += x * y[k]
            j += 1
