"""Products of sparse matrices with tables on a device: side-information of the CUDA engine."""

import math
from functools import cached_property
from typing import Any

import numpy as np
from numba import cuda, float64

from dyads.engine.device import new_array, to_device, to_host
from dyads.engine.sparse import ThreadedMatrix
from dyads.engine.warps import COLUMNS, SLICES

Array = np.ndarray[Any, Any]

MOST_BLOCKS = 2**16
"""Blocks of threads at most; each takes many lines of a larger matrix."""


class DeviceMatrix(ThreadedMatrix):
    """A sparse matrix whose products are computed on a device, where it is copied when first needed.

    Tables travel there and back: they are small beside the matrix. Every sum has a fixed order.
    """

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
