"""Entities a model was not fitted on: from their features, from a few labels (fold-in), or as the paper's baseline."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dyads.data.dyads import Dyads
from dyads.data.side import Features, seen_sets
from dyads.data.vocabulary import Codes
from dyads.engine import Engine, OwnPrior, Problem
from dyads.errors import InputError, NotConvergedWarning, UnknownIdError
from dyads.metrics import log_proba
from dyads.model.fitted import Entities, Fitted
from dyads.model.loss import link
from dyads.model.objective import Objective
from dyads.model.parameters import Blocks, Role
from dyads.model.penalty import Counts, Penalty
from dyads.model.prior import Learnt
from dyads.model.streams import FIXED_SEED, Key, Stream, random_stream

Array = np.ndarray[Any, Any]

N_DRAWS = 256
"""How many training dyads stand for what entities without labels may be; an even number."""

POWER_STEPS = 20
"""Steps of the power method towards the direction in which blocks differ most; it need not be exact."""

ROUNDS = 200
"""Most rounds over new rows and new columns that share dyads when both are folded in."""

FOLD_IN_STEPS = 100
"""Most Newton steps of a block that is folded in: for the log loss, whose curvature is exact, five or six do."""

REDRAWS = 5
"""Draws of blocks that are folded into a drawn model: the first is around their mode already."""

STILL = 1e-9
"""Blocks that move by less than this in a round have reached their optimum."""

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
        # A node has its features in both roles.
        cols, col = replace(cols, ids=rows.ids), row
    grown = fitted.grown(rows, cols)
    new_rows = grown.rows if row is None else _overridden(grown.rows, row, "row")
    new_cols = grown.cols if col is None else _overridden(grown.cols, col, "col")
    return replace(grown, rows=new_rows, cols=new_cols)


def refuse_featureless(known: Fitted, grown: Fitted) -> None:
    """Refuse new ids with labels that have no features, where the model was fitted on such and they must be given."""
    for side, name, old, new in (("row", "row", known.rows, grown.rows), ("col", "column", known.cols, grown.cols)):
        if old.encoder is not None and old.encoder.absent == "raise" and len(new) > len(old):
            raise InputError(
                f"The {name} id {new.ids.ids[len(old)].as_py()!r} is new and has no features ({len(new) - len(old)} "
                f"such ids): expected them in {side}_features. Add them, or fit with Features(table, absent='missing')."
            )


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


def with_spread(fitted: Fitted, dyads: Dyads, engine: Engine) -> Fitted:
    """Keep what entities without labels may be, as the training dyads show it; see `Entities`."""
    spreads, met = _spreads(fitted, dyads), _met(fitted, dyads, engine)
    rows, cols = (
        replace(entities, spread=np.ascontiguousarray(spread), met=offsets)
        for entities, spread, offsets in zip((fitted.rows, fitted.cols), spreads, met, strict=True)
    )
    return replace(fitted, rows=rows, cols=cols)


def with_draws(untrained: Fitted, draws: list[tuple[Array, tuple[Learnt, ...]]]) -> list[Fitted]:
    """The models of draws from a posterior: parameters, and the learnt priors of rows and columns, or of nodes.

    What an entity without labels may be is drawn from its prior: few draws each, since there are many priors.
    """
    n_lines = 2 * max(1, round(N_DRAWS / max(1, len(draws)) / 2))
    models = []
    for number, (theta, priors) in enumerate(draws):
        rng = random_stream(FIXED_SEED, Stream.PRIOR_DRAWS, number)
        noise = tuple(rng.standard_normal((n_lines, len(prior.mean))) for prior in priors)
        models.append(untrained.drawn(theta, priors, noise))
    return models


def with_more(fitted: Fitted, old: Fitted, dyads: Dyads, engine: Engine) -> Fitted:
    """The same after a batch of more dyads, on top of what was known before it.

    A draw is replaced by one of the batch with the chance that a dyad is of the batch; what an entity met is a mean by
    counts.
    """
    new = with_spread(fitted, dyads, engine)
    fresh = random_stream(FIXED_SEED, Stream.SPREAD_UPDATE, int(fitted.relation_counts.sum())).random(N_DRAWS) < (
        dyads.total_weight / fitted.relation_counts.sum()
    )
    # The two lines of a dyad are in mirrored places; with one id set so are those of its two orders.
    fresh[N_DRAWS // 2 :] = fresh[: N_DRAWS // 2][::-1]
    sides = []
    for mine, before in ((new.rows, old.rows), (new.cols, old.cols)):
        spread = mine.spread if len(mine.spread) else np.zeros((N_DRAWS, mine.spread.shape[1]))
        if len(before.spread):
            spread = np.where(fresh[:, None], spread, before.spread)
        share = np.divide(before.counts, mine.counts, out=np.zeros(len(mine)), where=mine.counts > 0)[:, None]
        sides.append(replace(mine, spread=spread, met=share * before.met + (1 - share) * mine.met))
    return replace(fitted, rows=sides[0], cols=sides[1])


def _spreads(fitted: Fitted, dyads: Dyads) -> tuple[Array, Array]:
    """How the own blocks of the rows and columns of a sample of dyads differ from the average.

    A systematic sample along the direction in which both blocks together differ most, recentred.
    """
    blocks, n_pool = fitted.layout.blocks(fitted.theta), min(len(dyads), 16 * N_DRAWS)
    pool = random_stream(FIXED_SEED, Stream.SPREAD).choice(len(dyads), n_pool, replace=False)
    weight = dyads.weights[pool]
    row = blocks.row[dyads.row[pool]].astype(np.float64) - fitted.rows.average
    col = blocks.col[dyads.col[pool]].astype(np.float64) - fitted.cols.average
    joint = np.hstack([row, col])
    if not joint.any():
        return row[:0], col[:0]
    direction = joint[np.argmax((joint**2).sum(axis=1))]
    for _ in range(POWER_STEPS):
        direction = joint.T @ (joint @ direction)
        direction /= np.linalg.norm(direction)
    along = np.argsort(joint @ direction, kind="stable")
    n = N_DRAWS // 2 if fitted.structure.one_set else N_DRAWS
    reached = np.cumsum(weight[along] / weight.max())
    chosen = along[np.searchsorted(reached, (np.arange(n) + 0.5) / n * reached[-1])]
    row, col = row[chosen], col[chosen][::-1]
    if fitted.structure.one_set:
        # Each pair in both orders: a node is as likely to be met in either role.
        row = col = np.vstack([row, col])
    return row - row.mean(axis=0), col - col.mean(axis=0)


def _met(fitted: Fitted, dyads: Dyads, engine: Engine) -> tuple[Array, Array]:
    """How the scores of those a row, or a column, was seen with differ from those of average ones (n, n_labels).

    The score is linear in the other's block, so this is its score with the mean of their own blocks, less that with the
    average: shrunk, where there are few.
    """
    own, effective = fitted.layout.blocks(fitted.theta), fitted.effective
    weight = dyads.weights
    pairs = sparse.csr_array((weight, (dyads.row, dyads.col)), shape=(len(fitted.rows), len(fitted.cols)))
    if fitted.structure.one_set:
        pairs = pairs + pairs.T
    h = effective.shared.mean(axis=0)

    def mean_of(seen: Any, others: Array, average: Array) -> Array:
        total = np.asarray(seen.sum(axis=1))
        mean = (seen @ others.astype(np.float64)) / np.maximum(total, 1e-300)[:, None]
        return average + (mean - average) * (total / (total + SHRINKAGE))[:, None]

    def beyond(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        return _pair_scores(fitted, a[0], b[0], h, engine) - _pair_scores(fitted, a[1], b[1], h, engine)

    met_cols = mean_of(pairs, own.col, fitted.cols.average)
    met_rows = mean_of(pairs.T.tocsr(), own.row, fitted.rows.average)
    average_col = np.broadcast_to(fitted.cols.average, met_cols.shape)
    average_row = np.broadcast_to(fitted.rows.average, met_rows.shape)
    rows = beyond((effective.row, effective.row), (met_cols, average_col))
    cols = beyond((met_rows, average_row), (effective.col, effective.col))
    return rows, cols


def with_mean_predictions(fitted: Fitted, dyads: Dyads, engine: Engine) -> Fitted:
    """Keep, for ``unknown="mean"``, the mean predicted probabilities of each row's and column's dyads, and of all.

    The baseline of section 5.3: the prediction for a new row and a known column c is the mean of the model's
    predictions over the rows seen with c in training, and for two new ones the mean of all.
    """
    proba = link(engine.scores(fitted, dyads.codes, dyads.side.dyad))
    weight = dyads.weights

    def place(owner: Codes, n: int) -> Any:
        return sparse.csr_array((weight, (owner, np.arange(len(owner)))), shape=(n, len(owner)))

    def means(owned: Any) -> Array:
        total = owned @ proba
        with np.errstate(invalid="ignore"):
            return np.asarray(total / total.sum(axis=1, keepdims=True))

    n_rows, n_cols = len(fitted.rows), len(fitted.cols)
    row, col = place(dyads.row, n_rows), place(dyads.col, n_cols)
    if fitted.structure.one_set:
        row = col = row + col
    rows, cols = replace(fitted.rows, predictions=means(row)), replace(fitted.cols, predictions=means(col))
    return replace(fitted, rows=rows, cols=cols, prediction=np.average(proba, axis=0, weights=weight))


def mean_scores(fitted: Fitted, row: Codes, col: Codes) -> Array:
    """The scores (n, n_labels) of dyads of which an id is unknown: the log of the mean predictions that were kept."""
    return log_proba(np.mean([_mean_predictions(one, row, col) for one in fitted.every], axis=0))


def _mean_predictions(fitted: Fitted, row: Codes, col: Codes) -> Array:
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


def fold_in(fitted: Fitted, dyads: Dyads, rows: Codes, cols: Codes, engine: Engine, number: int = 0) -> Fitted:
    """Solve for the blocks of some rows and columns from their `dyads`, everything else as it is.

    With one id set both are the nodes to solve for. New rows and new columns that share dyads are solved in turn until
    neither moves. Those of a model that was drawn, the `number`-th, are drawn too.
    """
    layout, counts = fitted.layout, Counts.of(dyads, fitted.structure.one_set)
    penalty = Penalty.of(layout, fitted.strengths, fitted.scaling, counts)
    objective = Objective(layout, fitted.loss, penalty, layout.free(fitted.rank, fitted.bias))
    bound = replace(dyads, side=fitted.side._replace(dyad=dyads.side.dyad))
    theta = fitted.theta.copy()
    prior = OwnPrior((fitted.rows.centre, fitted.cols.centre))
    if fitted.rows.precision is not None and fitted.cols.precision is not None:
        prior = prior._replace(precision=(fitted.rows.precision, fitted.cols.precision))
    with engine.bind(objective, bound) as problem:
        solution, ended = _solve_in_turn(problem, fitted.theta, rows, cols, prior, number)
    if not ended:
        warnings.warn("Rows and columns that were folded in together still move.", NotConvergedWarning, stacklevel=3)
    sides = []
    found, solved = layout.blocks(theta), layout.blocks(solution)
    for i, (entities, given, codes) in enumerate(zip((fitted.rows, fitted.cols), counts, (rows, cols), strict=False)):
        found[i][codes] = solved[i][codes]
        own = entities.counts.copy()
        own[codes] = given[codes]
        sides.append(replace(entities, counts=own))
    model = replace(fitted, theta=theta, rows=sides[0], cols=sides[1])
    if fitted.prediction is None:
        return model
    fresh = with_mean_predictions(model, dyads, engine)
    sides = []
    for old, new, codes in zip((model.rows, model.cols), (fresh.rows, fresh.cols), (rows, cols), strict=True):
        predictions = np.array(old.predictions)
        predictions[codes] = np.asarray(new.predictions)[codes]
        sides.append(replace(old, predictions=predictions))
    return replace(model, rows=sides[0], cols=sides[1])


def _solve_in_turn(
    problem: Problem, theta: Array, rows: Codes, cols: Codes, prior: OwnPrior, number: int
) -> tuple[Array, bool]:
    """Move the blocks of some rows and columns (or nodes, `rows`) to their optimum; returns theta, and if they stopped.

    Rows and columns are solved in turn until a round moves neither. With a learnt prior they are then drawn, some
    times; `number` is that of the posterior draw they are folded into.
    """
    updates, one_set = problem.blocks_in_turn(theta, prior), problem.objective.structure.one_set
    targets = [(Role.NODE, rows)] if one_set else [(Role.ROW, rows), (Role.COL, cols)]
    targets = [(role, codes) for role, codes in targets if len(codes)]
    ended = False
    for _ in range(ROUNDS):
        moved = [updates.solve(role, FOLD_IN_STEPS, codes) for role, codes in targets]
        ended = max(moved, default=0.0) < STILL or (len(targets) == 1 and not one_set)
        if ended:
            break
    for redraw in range(0 if prior.precision is None else REDRAWS):
        for role, codes in targets:
            updates.draw(role, Key.of(FIXED_SEED, Stream.FOLD_IN, number, redraw, role), codes=codes)
    return updates.theta(), ended


def _pair_scores(fitted: Fitted, A: Array, B: Array, h: Array, engine: Engine) -> Array:
    """The scores (n, n_labels) of pairs of blocks A (n, row size) and B (n, col size) with one shared block."""
    each, offset = np.arange(len(A)), np.zeros((len(A), fitted.structure.n_labels))
    return engine.block_scores(fitted.structure, Blocks(A, B, h[None]), (each, each), offset)


def targets(fitted: Fitted, dyads: Dyads, n_known: tuple[int, int], side: str | None) -> tuple[Codes, Codes]:
    """The rows and columns of `dyads` to solve for: those without labels, or all of one side.

    `n_known` : how many rows and columns the model knew before it grew by those of `dyads`.
    """
    given = np.unique(dyads.row), np.unique(dyads.col)
    if side is not None:
        solved, others = (given[0], given[1]) if side == "row" else (given[1], given[0])
        strange = int((others >= n_known[1 if side == "row" else 0]).sum())
        if strange:
            raise UnknownIdError(
                f"side={side!r} solves for one side, and {strange} ids of the other are not known: expected known "
                "ones. Fold these in first, or leave side=None."
            )
        if fitted.structure.one_set:
            return solved, solved
        return (solved, others[:0]) if side == "row" else (others[:0], solved)
    rows, cols = given[0][fitted.rows.counts[given[0]] == 0], given[1][fitted.cols.counts[given[1]] == 0]
    if not (len(rows) or len(cols)):
        raise InputError(
            "All ids of X have labels in the model already: expected new ones. To solve for known ids anew, pass "
            "side='row' or 'col' with all their labels, old and new."
        )
    if fitted.structure.one_set:
        rows = cols = np.union1d(rows, cols)
    return rows, cols


def with_seen(fitted: Fitted, dyads: Dyads, rows: Codes, cols: Codes) -> Fitted:
    """Add to entities' sets those they are seen with in `dyads`, where the model has `implicit` features."""
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
        mine = entities.features[codes]
        # Entities that came after the fit have no weight as members of a set.
        joined = (mine[:, first:] + found[codes][:, : entities.n_features - first] != 0).astype(np.float64)
        size = np.maximum(np.asarray(joined.sum(axis=1)), 1)
        lines = sparse.hstack([mine[:, :first], sparse.diags_array(1 / np.sqrt(size)) @ joined], format="csr")
        changed.append(replace(entities, features=_with_lines(entities.features, codes, lines)))
    if one_set:
        changed.append(replace(fitted.cols, features=changed[0].features))
    return replace(fitted, rows=changed[0], cols=changed[1])
