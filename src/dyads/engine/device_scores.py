"""Scores, losses and expected values of dyads on a device: a thread for each dyad, in single precision."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numba import cuda, float32, int32

from dyads.data.codes import Codes
from dyads.data.dyads import Side
from dyads.engine.api import Query
from dyads.engine.bundles import ABSENT, Specs, load_scores, relation_at, weigh
from dyads.engine.device import THREADS, bind_kernels, to_device, to_host
from dyads.engine.device_cells import BLOCKS, Dealt
from dyads.engine.scoring import Pairs, keep_best, scored_blocks, searched
from dyads.metrics import log_proba
from dyads.model.loss import evaluate, expected, proba
from dyads.model.parameters import Blocks
from dyads.model.record import Model
from dyads.model.structure import score

Array = np.ndarray[Any, Any]

SCORED_DYADS = 2**25
"""Dyads that are scored at a time; with five labels they take a gigabyte of the device."""


@lru_cache
def score_kernel(n_labels: int) -> Any:
    """Return the kernel that scores dyads with `n_labels` labels."""

    @cuda.jit
    def kernel(structure, blocks, pairs, offset, averaged, out):  # type: ignore[no-untyped-def]
        """WRITE the scores of dyads to `out` (n, n_labels) or, if `averaged`, ADD their probabilities."""
        s, p = cuda.local.array((n_labels, 1), float32), cuda.local.array((n_labels, 1), float32)
        largest, share = cuda.local.array(1, float32), cuda.local.array(1, float32)
        for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
            load_scores(offset, i, s[:, 0])
            h = blocks.shared[relation_at(pairs.relation, i)]
            score(structure, blocks.row[pairs.row[i]], blocks.col[pairs.col[i]], h, s[:, 0])
            if averaged:
                proba(1, s, p, largest, share)
            for y in range(n_labels):
                if averaged:
                    out[i, y] += p[y, 0]
                else:
                    out[i, y] = s[y, 0]

    return kernel


def scores(models: Sequence[Model], codes: Sequence[Codes], features: Any) -> Array:
    """Return the scores (n, n_labels) of dyads of known entities; see `api.Engine.scores`."""
    structure, n, averaged = models[0].structure, len(codes[0]), len(models) > 1
    out = np.empty((n, structure.n_labels))
    kernel = score_kernel(structure.n_labels)
    for begin in range(0, n, SCORED_DYADS):
        some = slice(begin, begin + SCORED_DYADS)
        pairs = to_device(Pairs.of(codes, some))
        lines = to_device(np.zeros((len(pairs.row), structure.n_labels), np.float32))
        side = Side(dyad=None if features is None else features[some])
        for model in models:
            blocks = to_device(Blocks(*(block.astype(np.float32) for block in scored_blocks(model))))
            first = model.layout.first_scores(model.theta, side)
            offset = ABSENT if first is None else to_device(first.astype(np.float32))
            kernel[BLOCKS, THREADS](structure, blocks, pairs, offset, averaged, lines)
        total = to_host(lines).astype(np.float64)
        out[some] = log_proba(total / len(models)) if averaged else total
    return out


TOP_CELLS = 2**27
"""Dyads of a search for the best columns at a time: half a gigabyte of values."""


@lru_cache
def value_kernel(n_labels: int) -> Any:
    """Return the kernel of the expected values of all columns for some rows."""

    @cuda.jit
    def kernel(structure, blocks, rows, cols, relation, values, out):  # type: ignore[no-untyped-def]
        """ADD the expected values to `out` (n_rows, n_cols)."""
        s, p = cuda.local.array((n_labels, 1), float32), cuda.local.array((n_labels, 1), float32)
        largest, share = cuda.local.array(1, float32), cuda.local.array(1, float32)
        h = blocks.shared[relation]
        for n in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            i, j = n // cols.size, n % cols.size
            for y in range(n_labels):
                s[y, 0] = 0
            score(structure, blocks.row[rows[i]], blocks.col[cols[j]], h, s[:, 0])
            proba(1, s, p, largest, share)
            expected(1, values, p, share)
            out[i, j] += share[0]

    return kernel


def top(models: Sequence[Model], query: Query) -> tuple[Array, Array]:
    """Find the best columns of known rows, without offsets; see `api.Engine.top`."""
    structure, n = models[0].structure, len(query.rows)
    best, at = np.full((n, query.n), -np.inf), np.full((n, query.n), -1)
    cols, values = to_device((query.cols.astype(np.int64), query.values.astype(np.float32)))
    kernel, size = value_kernel(structure.n_labels), max(1, TOP_CELLS // len(query.cols))
    for first in range(0, n, size):
        lines = slice(first, min(n, first + size))
        rows = to_device(query.rows[lines].astype(np.int64))
        out = to_device(np.zeros((lines.stop - first, len(query.cols)), np.float32))
        for model in models:
            blocks, _ = searched(model, query.turned)
            held = to_device(Blocks(*(np.ascontiguousarray(block, np.float32) for block in blocks)))
            kernel[BLOCKS, THREADS](structure, held, rows, cols, query.relation, values, out)
        keep_best(query, lines, to_host(out) / np.float64(len(models)), best[lines], at[lines])
    return at, best


@lru_cache
def loss_kernel(n_labels: int) -> Any:
    """Return the kernel that sums the losses of dyads in cells, with `n_labels` labels."""

    @cuda.jit
    def kernel(specs, blocks, data, row_owner, col_owner, out):  # type: ignore[no-untyped-def]
        """WRITE each thread's sum to `out`; `row_owner`, `col_owner` : the entity of each line of a table."""
        s, g = cuda.local.array((n_labels, 1), float32), cuda.local.array((n_labels, 1), float32)
        value, unused = cuda.local.array(1, float32), cuda.local.array(1, float32)
        label = cuda.local.array(1, int32)
        total = 0.0
        for i in range(cuda.grid(1), data.row.size, cuda.gridsize(1)):
            for y in range(n_labels):
                s[y, 0] = 0
            h = blocks.shared[relation_at(data.relation, i)]
            score(specs.structure, blocks.row[row_owner[data.row[i]]], blocks.col[col_owner[data.col[i]]], h, s[:, 0])
            label[0] = data.label[i]
            evaluate(specs.loss, 1, label, s, g, value, unused)
            total += weigh(data.weight, i, value[0])
        out[cuda.grid(1)] = total

    return kernel


def loss_in_cells(specs: Specs, blocks: Blocks, dealt: Dealt) -> float:
    """Return the loss of dyads in cells; `blocks` : on the device."""
    owners = to_device(
        tuple(deal.with_copies(np.arange(len(deal.first), dtype=np.int32)) for deal in (dealt.row, dealt.col))
    )
    out = to_device(np.zeros(BLOCKS * THREADS))
    loss_kernel(specs.structure.n_labels)[BLOCKS, THREADS](to_device(specs), blocks, dealt.data, *owners, out)
    return float(to_host(out).sum())


bind_kernels()
