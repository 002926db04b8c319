"""Entities a model was not fitted on: from their features, from a few labels (fold-in), or as the paper's baseline."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dyads.data.dyads import Dyads
from dyads.data.side import Features, seen_sets
from dyads.data.vocabulary import Codes
from dyads.engine.host import entities_solved
from dyads.engine.scoring import block_scores, scores
from dyads.errors import InputError
from dyads.model.fitted import Entities, Fitted
from dyads.model.loss import link
from dyads.model.parameters import random_stream
from dyads.model.penalty import L2, Counts

Array = np.ndarray[Any, Any]

N_DRAWS = 256
"""How many training dyads stand for what entities without labels may be; an even number."""

SHRINKAGE = 5.0
"""Labels an entity must have for half of the difference between those it met and average ones to be believed."""


def with_features(fitted: Fitted, row: Features | None, col: Features | None) -> Fitted:
    """The same model with other features of known ids, and with new ids known by their features alone."""
    if row is None and col is None:
        return fitted
    if col is not None and fitted.structure.one_set:
        raise InputError("col_features were given, but the model has nodes of one kind: pass row_features alone.")
    rows = fitted.rows.ids if row is None else fitted.rows.ids.with_ids(row.ids, "row_features")
    cols = fitted.cols.ids if col is None else fitted.cols.ids.with_ids(col.ids, "col_features")
    if fitted.structure.one_set:
        cols = replace(fitted.cols.ids, ids=rows.ids)
    grown = fitted.grown(rows, cols)
    new_rows = grown.rows if row is None else _overridden(grown.rows, row, "row")
    new_cols = grown.cols if col is None else _overridden(grown.cols, col, "col")
    if fitted.structure.one_set:
        new_cols = replace(new_rows, ids=cols)
    return replace(grown, rows=new_rows, cols=new_cols)


def _overridden(entities: Entities, features: Features, what: str) -> Entities:
    if entities.encoder is None:
        raise InputError(
            f"{what}_features were given, but the model was fitted without any: expected none. Fit it with them."
        )
    codes, lines = entities.ids.encode(features.ids), entities.encoder.encode(features)
    seen = entities.features[codes][:, lines.shape[1] :]
    return replace(entities, features=_with_lines(entities.features, codes, sparse.hstack([lines, seen], format="csr")))


def _with_lines(matrix: Any, codes: Codes, lines: Any) -> Any:
    """A copy of a sparse matrix with some lines replaced."""
    source = np.arange(matrix.shape[0])
    source[codes] = matrix.shape[0] + np.arange(len(codes))
    return sparse.vstack([matrix, lines], format="csr")[source]


def with_spread(fitted: Fitted, dyads: Dyads, n_jobs: int | None) -> Fitted:
    """Keep what entities without labels may be, as the training dyads show it; see `Entities`."""
    spreads, met = _spreads(fitted, dyads), _met(fitted, dyads, n_jobs)
    rows, cols = (
        replace(entities, spread=np.ascontiguousarray(spread), met=offsets)
        for entities, spread, offsets in zip((fitted.rows, fitted.cols), spreads, met, strict=True)
    )
    return replace(fitted, rows=rows, cols=cols)


def _spreads(fitted: Fitted, dyads: Dyads) -> tuple[Array, Array]:
    """How the own blocks of the rows and columns of a sample of dyads differ from the average.

    A systematic sample along the direction in which both blocks together differ most, recentred.
    """
    rng, blocks = random_stream(0), fitted.layout.blocks(fitted.theta)
    share = None if dyads.weight is None else dyads.weight / dyads.weight.max()
    share = None if share is None else share / share.sum()
    pool = rng.choice(len(dyads), min(len(dyads), 100 * N_DRAWS), replace=False, p=share)
    row = blocks.row[dyads.row[pool]].astype(np.float64) - fitted.rows.average
    col = blocks.col[dyads.col[pool]].astype(np.float64) - fitted.cols.average
    joint = np.hstack([row, col])
    if not joint.any():
        return row[:0], col[:0]
    along = np.argsort(joint @ np.linalg.eigh(joint.T @ joint)[1][:, -1], kind="stable")
    n = N_DRAWS // 2 if fitted.structure.one_set else N_DRAWS
    chosen = along[((np.arange(n) + 0.5) / n * len(along)).astype(np.int64)]
    row, col = row[chosen], col[chosen][::-1]
    if fitted.structure.one_set:
        # Each pair in both orders: a node is as likely to be met in either role.
        row = col = np.vstack([row, col])
    return row - row.mean(axis=0), col - col.mean(axis=0)


def _met(fitted: Fitted, dyads: Dyads, n_jobs: int | None) -> tuple[Array, Array]:
    """How the scores of those a row, or a column, was seen with differ from those of average ones (n, n_labels).

    The score is linear in the other's block, so this is its score with the mean of their own blocks, less that with the
    average: shrunk, where there are few.
    """
    own, effective = fitted.layout.blocks(fitted.theta), fitted.effective
    weight = np.ones(len(dyads)) if dyads.weight is None else dyads.weight
    pairs = sparse.csr_array((weight, (dyads.row, dyads.col)), shape=(len(fitted.rows), len(fitted.cols)))
    if fitted.structure.one_set:
        pairs = pairs + pairs.T
    h = effective.shared.mean(axis=0)

    def mean_of(seen: Any, others: Array, average: Array) -> Array:
        total = np.asarray(seen.sum(axis=1))
        mean = (seen @ others.astype(np.float64)) / np.maximum(total, 1e-300)[:, None]
        return average + (mean - average) * (total / (total + SHRINKAGE))[:, None]

    def beyond(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        return block_scores(fitted, a[0], b[0], h, n_jobs) - block_scores(fitted, a[1], b[1], h, n_jobs)

    met_cols = mean_of(pairs, own.col, fitted.cols.average)
    met_rows = mean_of(pairs.T.tocsr(), own.row, fitted.rows.average)
    average_col = np.broadcast_to(fitted.cols.average, met_cols.shape)
    average_row = np.broadcast_to(fitted.rows.average, met_rows.shape)
    rows = beyond((effective.row, effective.row), (met_cols, average_col))
    cols = beyond((met_rows, average_row), (effective.col, effective.col))
    return rows, cols


def with_mean_predictions(fitted: Fitted, dyads: Dyads, n_jobs: int | None) -> Fitted:
    """Keep, for ``unknown="mean"``, the mean predicted probabilities of each row's and column's dyads, and of all.

    The baseline of section 5.3: the prediction for a new row and a known column c is the mean of the model's
    predictions over the rows seen with c in training, and for two new ones the mean of all.
    """
    codes = (dyads.row, dyads.col) if dyads.relation is None else (dyads.row, dyads.col, dyads.relation)
    proba = link(scores(fitted, *codes, features=dyads.side.dyad, n_jobs=n_jobs))
    weight = np.ones(len(dyads)) if dyads.weight is None else dyads.weight

    def means(owner: Codes, n: int) -> Array:
        place = sparse.csr_array((weight, (owner, np.arange(len(owner)))), shape=(n, len(owner)))
        total = place @ proba
        with np.errstate(invalid="ignore"):
            return np.asarray(total / total.sum(axis=1, keepdims=True))

    if fitted.structure.one_set:
        both = replace(dyads, row=np.concatenate([dyads.row, dyads.col]))
        proba, weight = np.vstack([proba, proba]), np.concatenate([weight, weight])
        rows = replace(fitted.rows, predictions=means(both.row, len(fitted.rows)))
        cols = replace(fitted.cols, predictions=rows.predictions)
    else:
        rows = replace(fitted.rows, predictions=means(dyads.row, len(fitted.rows)))
        cols = replace(fitted.cols, predictions=means(dyads.col, len(fitted.cols)))
    return replace(fitted, rows=rows, cols=cols, prediction=np.average(proba, axis=0, weights=weight))


def mean_predictions(fitted: Fitted, row: Codes, col: Codes) -> Array:
    """The probabilities (n, n_labels) of dyads of which an id is unknown, by the means that were kept."""
    assert fitted.prediction is not None
    found = np.broadcast_to(fitted.prediction, (len(row), len(fitted.prediction))).copy()
    for entities, codes, other in ((fitted.rows, row, col), (fitted.cols, col, row)):
        known = (codes >= 0) & (other < 0)
        means = np.asarray(entities.predictions)[codes[known]]
        # An entity that is known by its features alone has no predictions of its own.
        found[known] = np.where(np.isnan(means), found[known], means)
    return found


def support(fitted: Fitted, row: Codes, col: Codes) -> Array:
    """The summed weight of the training dyads of each dyad's row and column (n, 2); zero for unknown ones."""
    pairs = ((fitted.rows, row), (fitted.cols, col))
    return np.stack([np.where(codes >= 0, entities.counts[codes], 0) for entities, codes in pairs], axis=1)


def fold_in(fitted: Fitted, dyads: Dyads, rows: Codes, cols: Codes, n_jobs: int | None) -> Fitted:
    """Solve for the blocks of some rows and columns from their `dyads`, everything else as it is.

    With one id set `rows` are the nodes to solve for. New rows and new columns that share dyads are solved in turn
    until neither moves.
    """
    layout, counts = fitted.layout, Counts.of(dyads, fitted.structure.one_set)
    penalty = L2.of(layout, fitted.strengths, fitted.scaling, counts, np.zeros(layout.size))
    theta = entities_solved(fitted, dyads, penalty, rows, cols, n_jobs).astype(fitted.theta.dtype)
    new_counts = fitted.rows.counts.copy(), fitted.cols.counts.copy()
    for mine, given, codes in zip(new_counts, counts, (rows, cols), strict=False):
        mine[codes] = given[codes]
    new_rows = replace(fitted.rows, counts=new_counts[0])
    new_cols = replace(new_rows if fitted.structure.one_set else fitted.cols, ids=fitted.cols.ids)
    if not fitted.structure.one_set:
        new_cols = replace(new_cols, counts=new_counts[1])
    solved = replace(fitted, theta=theta, rows=new_rows, cols=new_cols)
    if fitted.prediction is None:
        return solved
    refreshed = with_mean_predictions(solved, dyads, n_jobs)
    for name, codes in (("rows", rows), ("cols", rows if fitted.structure.one_set else cols)):
        old, new = getattr(solved, name), getattr(refreshed, name)
        predictions = np.array(old.predictions)
        predictions[codes] = new.predictions[codes]
        solved = replace(solved, **{name: replace(old, predictions=predictions)})
    return solved


def with_seen(fitted: Fitted, dyads: Dyads, rows: Codes, cols: Codes) -> Fitted:
    """Give entities the sets of those they are seen with in `dyads`, where the model has `implicit` features."""
    if not fitted.implicit:
        return fitted
    n_rows, n_cols = len(fitted.rows), len(fitted.cols)
    one_set = fitted.structure.one_set
    sets = [seen_sets(dyads.row, dyads.col, n_rows, n_cols, both_ways=one_set)]
    if not one_set:
        sets.append(seen_sets(dyads.col, dyads.row, n_cols, n_rows))
    changed = []
    for entities, found, codes in zip((fitted.rows, fitted.cols), sets, (rows, cols), strict=False):
        first = 0 if entities.encoder is None else len(entities.encoder.names)
        # Entities that came after the fit have no weight as members of a set.
        lines = sparse.hstack([entities.features[codes][:, :first], found[codes][:, : entities.n_features - first]])
        changed.append(replace(entities, features=_with_lines(entities.features, codes, lines.tocsr())))
    new_cols = replace(changed[0], ids=fitted.cols.ids) if one_set else changed[1]
    return replace(fitted, rows=changed[0], cols=new_cols)
