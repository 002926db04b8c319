"""Side-information of the CUDA engine: products of sparse matrices with tables on a device, and normal equations.

The kernels are few and short, so they are written here: CuPy has such products, but numba-cuda is then no longer the
only thing to install, and its sums have no fixed order.
"""

import math
from functools import cached_property
from typing import Any

import numpy as np
from numba import cuda, float64
from scipy import sparse

from dyads.engine.compiled import jitable
from dyads.engine.device import SIMULATED, bind_kernels, new_array, to_device, to_host
from dyads.engine.orders import Run
from dyads.engine.sparse import ThreadedMatrix
from dyads.engine.warps import COLUMNS, SLICES
from dyads.model.objective import ITERATIONS_PER_UNKNOWN, largest_residual

Array = np.ndarray[Any, Any]

MOST_BLOCKS = 2**16
"""Blocks of threads at most; each takes many lines of a larger matrix."""

STEP_SLICES = 1 if SIMULATED else 32
"""Threads of a step of conjugate gradients for each column: a block of threads does all that a column needs."""

BETWEEN_CHECKS = 8
"""Iterations between two looks at what is solved: to look, the host waits for the device."""


class DeviceMatrix(ThreadedMatrix):
    """A sparse matrix whose products are computed on a device, where it is copied when first needed.

    Tables travel there and back: they are small beside the matrix. Every sum has a fixed order.
    """

    def __init__(self, matrix: Any, run: Run) -> None:
        super().__init__(matrix, run)
        # The weight of the last equations, and X weighted by it: those of a chain have all the same.
        self._last: tuple[Array, tuple[Any, Any, Array]] | None = None

    def solve_normal(self, weight: Array, strength: Array, ridge: float, right: Array) -> Array:
        """Solve the normal equations by conjugate gradients on the device; see `objective.solve_normal`.

        All columns go on until the last has converged. Vectors are in double precision, X in single.
        """
        if not (self._matrix.nnz and weight.any()):
            return super().solve_normal(weight, strength, ridge, right)
        (n, p), width = self.shape, right.shape[1]
        X, across, squares = self._weighted(weight)
        strengths, residual = to_device(strength), to_device(np.ascontiguousarray(right))
        scaled = right / (squares[:, None] * strength + ridge)
        size, diagonal = to_device(np.sum(right * scaled, axis=0)), to_device(squares)
        direction, solution = to_device(scaled), to_device(np.zeros((p, width)))
        scores, product = new_array((n, width), np.float64), new_array((p, width), np.float64)
        squared = to_device(np.sum(right**2, axis=0))
        for number in range(ITERATIONS_PER_UNKNOWN * p):
            if number % BETWEEN_CHECKS == 0 and (to_host(squared) <= largest_residual(ridge, p)).all():
                break
            sparse_product[min(n, MOST_BLOCKS), SLICES * COLUMNS](*X, direction, scores)
            sparse_product[min(p, MOST_BLOCKS), SLICES * COLUMNS](*across, scores, product)
            conjugate_step[-(-width // COLUMNS), STEP_SLICES * COLUMNS](
                product, strengths, ridge, diagonal, solution, residual, direction, size, squared
            )
        return to_host(solution)

    def _weighted(self, weight: Array) -> tuple[Any, Any, Array]:
        """Return diag(weight)^(1/2) X and its transpose, on the device, and the sums of squares of its columns (p,)."""
        if self._last is None or not np.array_equal(self._last[0], weight):
            matrix = sparse.csr_array(sparse.diags_array(np.sqrt(weight.astype(np.float32))) @ self._single._matrix)
            across = sparse.csr_array(matrix.T)
            squares = np.asarray(across.power(2).sum(axis=1), np.float64)
            on_device = (to_device((x.indptr, x.indices, x.data)) for x in (matrix, across))
            self._last = (weight.copy(), (*on_device, squares))
        return self._last[1]

    @cached_property
    def _held(self) -> tuple[Any, Any, Any]:
        matrix = self._matrix
        return to_device((matrix.indptr, matrix.indices, matrix.data))  # type: ignore[no-any-return]

    def __matmul__(self, table: Array) -> Array:
        """Return the product with `table` (p, width) or (p,)."""
        n, width = self.shape[0], math.prod(table.shape[1:])
        if not (n and width and self._matrix.nnz):
            return np.zeros((n, *table.shape[1:]), self._matrix.dtype)
        right = to_device(np.ascontiguousarray(table.reshape(len(table), width), self._matrix.dtype))
        out = new_array((n, width), self._matrix.dtype)
        sparse_product[min(n, MOST_BLOCKS), SLICES * COLUMNS](*self._held, right, out)
        return to_host(out).reshape(n, *table.shape[1:])


@cuda.jit
def sparse_product(start, index, entries, table, out):  # type: ignore[no-untyped-def]
    """WRITE X table to `out` (n, width): `SLICES` strides through the entries of a line, for `COLUMNS` columns each."""
    partial = cuda.shared.array((SLICES, COLUMNS), float64)
    column, slice_ = cuda.threadIdx.x % COLUMNS, cuda.threadIdx.x // COLUMNS
    for i in range(cuda.blockIdx.x, out.shape[0], cuda.gridDim.x):
        for k in range(column, out.shape[1] + column, COLUMNS):
            total = 0.0
            if k < out.shape[1]:
                for j in range(start[i] + slice_, start[i + 1], SLICES):
                    total += entries[j] * table[index[j], k]
            partial[slice_, column] = total
            cuda.syncthreads()
            if slice_ == 0 and k < out.shape[1]:
                for m in range(1, SLICES):
                    total += partial[m, column]
                out[i, k] = total
            cuda.syncthreads()


@cuda.jit
def conjugate_step(product, strength, ridge, diagonal, solution, residual, direction, size, squared):  # type: ignore[no-untyped-def]
    """Take a step of conjugate gradients in each column k: A_k = d_k X^T X + ridge I, preconditioned by its diagonal.

    A block of threads takes `COLUMNS` columns, each with `STEP_SLICES` strides through its entries.

    `product` : (p, width) X^T X direction, `strength` : (width,) the d_k, `diagonal` : (p,) that of X^T X, `solution`,
    `residual`, `direction` : (p, width), `size` : (width,) residual times preconditioned residual, `squared` : (width,)
    receives the squared residual.
    """
    partial = cuda.shared.array((STEP_SLICES, COLUMNS), float64)
    column, slice_ = cuda.threadIdx.x % COLUMNS, cuda.threadIdx.x // COLUMNS
    k = cuda.blockIdx.x * COLUMNS + column
    # All threads come to every sum, those without a column with no entries.
    p, k = (solution.shape[0], k) if k < solution.shape[1] else (0, 0)
    d, before, total = strength[k], size[k], 0.0
    for f in range(slice_, p, STEP_SLICES):
        total += direction[f, k] * (d * product[f, k] + ridge * direction[f, k])
    curvature = over_slices(partial, slice_, column, total)
    # The direction of a column that is solved exactly is zero.
    step = before / curvature if curvature > 0 else 0.0
    total, squares = 0.0, 0.0
    for f in range(slice_, p, STEP_SLICES):
        x = direction[f, k]
        solution[f, k] += step * x
        r = residual[f, k] - step * (d * product[f, k] + ridge * x)
        residual[f, k] = r
        total += r * r / (diagonal[f] * d + ridge)
        squares += r * r
    total, squares = over_slices(partial, slice_, column, total), over_slices(partial, slice_, column, squares)
    turn = total / before if before > 0 else 0.0
    for f in range(slice_, p, STEP_SLICES):
        direction[f, k] = residual[f, k] / (diagonal[f] * d + ridge) + turn * direction[f, k]
    if slice_ == 0 and p > 0:
        size[k], squared[k] = total, squares


@jitable
def over_slices(partial, slice_, column, x):  # type: ignore[no-untyped-def]
    """Return the sum of x over the threads of a column, in a fixed order, to all of them."""
    cuda.syncthreads()
    partial[slice_, column] = x
    cuda.syncthreads()
    total = 0.0
    for n in range(partial.shape[0]):
        total += partial[n, column]
    return total


bind_kernels()
