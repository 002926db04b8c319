"""Small problems the laws are checked on. Every registered part must have a case here."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dyads.data.codes import Vocabulary
from dyads.data.dyads import Counts, Dyads, LabelCounts
from dyads.model.loss import Absolute, AllThreshold, Brier, Curvature, Hinge, Log, Squared, curvature
from dyads.model.objective import Objective, Penalty
from dyads.model.parameters import Layout
from dyads.model.record import Draw, Entities, Known, Parts, Record
from dyads.model.structure import Bilinear, Diagonal, Directed, Stereotype, pull_col, pull_row, pull_shared

N_LABELS = 4
VALUES = np.array([1.0, 2.0, 3.0, 4.5])

PULLS = (
    lambda structure, a, b, h, g, out: pull_row(structure, b, h, g, np.empty_like(out), np.empty((len(out), 1)), out),
    lambda structure, a, b, h, g, out: pull_col(structure, a, h, g, np.empty_like(out), np.empty((len(out), 1)), out),
    pull_shared,
)
"""The pulls to a row's, a column's and a shared block, with the same arguments."""

STRUCTURE_CASES = {
    "Bilinear": [
        Bilinear(N_LABELS, N_LABELS, 1, False, 3),
        Bilinear(N_LABELS, 1, 1, False, 3),
        Bilinear(N_LABELS, 0, 0, False, 2),
        Bilinear(N_LABELS, N_LABELS, 1, False, 0),
        Bilinear(N_LABELS, 2, 1, True, 3),
    ],
    "Stereotype": [
        Stereotype(N_LABELS, N_LABELS, 1, False, 3, 2),
        Stereotype(N_LABELS, 0, 1, False, 2, 1),
        Stereotype(N_LABELS, 1, 1, True, 2, 2),
    ],
    "Diagonal": [Diagonal(N_LABELS, N_LABELS, 1, False, 3), Diagonal(N_LABELS, 1, 1, True, 3)],
    "Directed": [Directed(N_LABELS, 0, 2, True, 2), Directed(N_LABELS, N_LABELS, 0, True, 2)],
}
LOSS_CASES = {
    "log": [Log()],
    "brier": [Brier()],
    "absolute": [Absolute(0.1).bind(VALUES)],
    "squared": [Squared().bind(VALUES)],
    "hinge": [Hinge().bind(VALUES)],
}
THRESHOLDS = AllThreshold()
"""The loss of a baseline, and no estimator's: it has no probabilities, but all other laws of a loss."""
STRUCTURES = [case for cases in STRUCTURE_CASES.values() for case in cases]
LOSSES = [case for cases in LOSS_CASES.values() for case in cases]
QUICK = ("Bilinear", "Log"), ("Stereotype", "Log"), ("Bilinear", "Brier")
"""Types of structures and losses in the default suite: each such pair is compiled by itself, which takes long."""
CROSSED = [
    pytest.param(
        structure, loss, marks=[] if (type(structure).__name__, type(loss).__name__) in QUICK else pytest.mark.slow
    )
    for structure in STRUCTURES
    for loss in LOSSES
]
"""Every structure with every loss, most of them in the slow suite."""


def make_dyads(n=60, n_rows=7, n_cols=5, weighted=False, seed=0, one_set=False, n_relations=1, n_labels=N_LABELS):
    """Random dyads in which every row and column occurs; with one id set some are self-links."""
    rng = np.random.default_rng(seed)
    if one_set:
        n_cols = n_rows
    row = np.concatenate([np.arange(n_rows), rng.integers(0, n_rows, n - n_rows)])
    col = np.concatenate([np.arange(n_cols), rng.integers(0, n_cols, n - n_cols)])
    weight = rng.uniform(0.5, 2.0, n) if weighted else None
    relation = rng.integers(0, n_relations, n) if n_relations > 1 else None
    return Dyads(row, col, rng.integers(0, n_labels, n), weight, n_rows, n_cols, n_labels, relation, n_relations)


def without_self_links(dyads):
    """The same dyads of one id set, with other columns where nodes are paired with themselves."""
    steps = 1 + (dyads.col - dyads.row - 1) % (dyads.n_rows - 1)
    return replace(dyads, col=(dyads.row + steps) % dyads.n_rows)


def make_objective(structure, loss, dyads, scaling="none", strengths=(0.7, 0.4, 0.9), centre=None):
    layout = Layout(structure, dyads.n_rows, dyads.n_cols, dyads.n_relations)
    bias, row, col = strengths
    named = dict.fromkeys(("row_bias", "col_bias", "node_bias"), bias)
    named |= dict.fromkeys(("row_factors", "out_factors", "node_factors"), row)
    named |= dict.fromkeys(("col_factors", "in_factors"), col) | {"phi": 0.3, "diagonal": 0.2}
    if centre is None:
        centre = np.random.default_rng(9).normal(size=layout.size)
    shared, counts = layout.blocks(centre).shared, Counts.of(dyads, structure.one_set)
    return Objective(layout, loss, Penalty.of(layout, named, scaling, counts, shared))


def make_record(structure, theta, dyads):
    """A point estimate of rows, columns or nodes 0, 1, ..., without features."""
    counts, names = Counts.of(dyads, structure.one_set), ("row",) if structure.one_set else ("row", "col")
    sets = [
        Entities.of(Vocabulary(pa.array(range(len(own))), name), own, None, None)
        for own, name in zip(counts, names, strict=False)
    ]
    parts = Parts(
        structure=structure,
        loss=Log(),
        rank=structure.rank,
        bias=True,
        interactions=0,
        implicit=False,
        strengths={},
        scaling="none",
    )
    known = Known(
        classes=np.arange(dyads.n_labels),
        sets=tuple(sets),
        col_name="col",
        relations=None,
        relation_counts=counts.relation,
        label_counts=LabelCounts.of(dyads),
        shared_centre=np.zeros((1, 0)),
        dyad_encoder=None,
    )
    return Record(parts=parts, known=known, draws=(Draw.trained(parts, known, theta),))


def loss_of_one(loss, label, s):
    """The loss of one dyad, its derivatives by the scores s, and its curvature as a matrix: a tile of one."""
    n = len(s)
    g, value, total = np.empty((n, 1)), np.empty(1), np.empty(1)
    C = Curvature(np.empty((n, 1)), np.empty((loss.n_directions, 1)), np.empty((loss.n_directions, n, 1)))
    curvature(loss, 1, np.array([label]), s.reshape(n, 1), g, value, total, C)
    matrix = np.diag(C.diagonal[:, 0])
    for weight, direction in zip(C.weight[:, 0], C.direction[:, :, 0], strict=True):
        matrix = matrix + weight * np.outer(direction, direction)
    return value[0], g[:, 0], matrix


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
