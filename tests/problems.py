"""Small problems the laws are checked on. Every registered part must have a case here."""

import numpy as np
import pyarrow as pa

from dyads.data.dyads import Dyads
from dyads.data.vocabulary import Vocabulary
from dyads.model.fitted import Fitted
from dyads.model.loss import Absolute, Brier, Log, Squared
from dyads.model.objective import Objective
from dyads.model.parameters import Layout
from dyads.model.penalty import L2
from dyads.model.structure import Bilinear

N_LABELS = 4
VALUES = np.array([1.0, 2.0, 3.0, 4.5])

STRUCTURE_CASES = {
    "bilinear": [
        Bilinear(N_LABELS, N_LABELS, True, 3),
        Bilinear(N_LABELS, 1, True, 3),
        Bilinear(N_LABELS, 0, False, 2),
        Bilinear(N_LABELS, N_LABELS, True, 0),
    ],
}
LOSS_CASES = {
    "log": [Log()],
    "brier": [Brier()],
    "absolute": [Absolute(0.1).bind(VALUES)],
    "squared": [Squared().bind(VALUES)],
}
STRUCTURES = [case for cases in STRUCTURE_CASES.values() for case in cases]
LOSSES = [case for cases in LOSS_CASES.values() for case in cases]


def make_dyads(n=60, n_rows=7, n_cols=5, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    row = np.concatenate([np.arange(n_rows), rng.integers(0, n_rows, n - n_rows)])
    col = np.concatenate([np.arange(n_cols), rng.integers(0, n_cols, n - n_cols)])
    weight = rng.uniform(0.5, 2.0, n) if weighted else None
    return Dyads(row, col, rng.integers(0, N_LABELS, n), weight, n_rows, n_cols, N_LABELS)


def make_objective(structure, loss, dyads, scaling="none", strengths=(0.7, 0.4, 0.9)):
    layout = Layout(structure, dyads.n_rows, dyads.n_cols)
    bias, row, col = strengths
    named = {"row_bias": bias, "col_bias": bias, "row_factors": row, "col_factors": col}
    return Objective(layout, loss, L2.of(layout, named, scaling, dyads.row_counts, dyads.col_counts))


def make_fitted(structure, theta, dyads):
    ids = [Vocabulary(pa.array(range(n)), name) for n, name in ((dyads.n_rows, "row"), (dyads.n_cols, "col"))]
    return Fitted(structure, Log(), np.arange(dyads.n_labels), *ids, theta, dyads.row_counts, dyads.col_counts)


def central_difference(function, point, step=1e-5):
    gradient = np.empty_like(point)
    for i in range(point.size):
        up, down = point.copy(), point.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (function(up) - function(down)) / (2 * step)
    return gradient


def relative_error(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()
