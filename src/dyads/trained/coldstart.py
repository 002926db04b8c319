"""Entities a model was not fitted on: from their features, from a few labels (fold-in), or as the paper's baseline."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads
from dyads.data.features import Features, seen_sets
from dyads.engine import Engine, OwnPrior, Problem
from dyads.errors import InputError, NotConvergedWarning, UnknownIdError
from dyads.metrics import log_proba
from dyads.model.loss import link
from dyads.model.objective import BlockPrior
from dyads.model.parameters import Blocks, Role
from dyads.model.record import Draw, Entities, Known, Model, Parts, Record
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
"""Labels an entity must have for half of the difference between its partners and average ones to be believed."""


def with_features(record: Record, row: Features | None, col: Features | None) -> Record:
    """The same model with other features of known ids, and with new ids known by their features alone."""
    known = record.known
    if col is not None and known.one_set:
        raise InputError("col_features were given, but the model has nodes of one kind: pass row_features alone.")
    rows = known.rows.ids if row is None else known.rows.ids.with_ids(row.ids, "row_features")
    cols = known.cols.ids if col is None else known.cols.ids.with_ids(col.ids, "col_features")
    grown = record.grown(rows, cols)
    overridden = grown.known.with_sets(
        entities if features is None else _overridden(entities, features, side)
        for entities, features, side in zip(grown.known.sets, (row, col), ("row", "col"), strict=False)
    )
    return replace(grown, known=overridden)


def refuse_featureless(known: Known, grown: Known) -> None:
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


def with_spread(model: Model, dyads: Dyads, engine: Engine) -> Draw:
    """The draw with what entities without labels may be, as the training dyads show it; see `Population`."""
    spreads, shifts = _spreads(model, dyads), _partner_shifts(model, dyads, engine)
    rows, cols = (
        replace(population, spread=np.ascontiguousarray(spread), partner_shift=shift)
        for population, spread, shift in zip(model.populations, spreads, shifts, strict=True)
    )
    return replace(model.draw, rows=rows, cols=cols)


def posterior_draws(parts: Parts, known: Known, draws: list[tuple[Array, tuple[BlockPrior, ...]]]) -> list[Draw]:
    """The draws from a posterior: parameters, and the learnt priors of rows and columns, or of nodes.

    What an entity without labels may be is drawn from its prior: few draws each, since there are many priors.
    """
    n_lines = 2 * max(1, round(N_DRAWS / max(1, len(draws)) / 2))
    drawn = []
    for number, (theta, priors) in enumerate(draws):
        rng = random_stream(FIXED_SEED, Stream.PRIOR_DRAWS, number)
        noise = tuple(rng.standard_normal((n_lines, len(prior.mean))) for prior in priors)
        drawn.append(Draw.drawn(parts, known, theta, priors, noise))
    return drawn


def with_more(model: Model, before: Model, dyads: Dyads, engine: Engine) -> Draw:
    """The draw after a batch of more dyads, with what `before` knew of entities without labels.

    Reservoir update: each old line of a spread is replaced by one of the batch with the chance that a dyad is of the
    batch; a partner shift is a mean by counts.
    """
    draw, relation_counts = with_spread(model, dyads, engine), model.known.relation_counts
    fresh = random_stream(FIXED_SEED, Stream.SPREAD_UPDATE, int(relation_counts.sum())).random(N_DRAWS) < (
        dyads.total_weight / relation_counts.sum()
    )
    # The two lines of a dyad are in mirrored places; with one id set so are those of its two orders.
    fresh[N_DRAWS // 2 :] = fresh[: N_DRAWS // 2][::-1]
    populations = []
    for new, old, n_new, n_old in zip(
        (draw.rows, draw.cols), before.populations, model.known.counts, before.known.counts, strict=False
    ):
        spread = new.spread if len(new.spread) else np.zeros((N_DRAWS, new.spread.shape[1]))
        if len(old.spread):
            spread = np.where(fresh[:, None], spread, old.spread)
        share = np.divide(n_old, n_new, out=np.zeros(len(n_new)), where=n_new > 0)[:, None]
        shift = share * old.partner_shift + (1 - share) * new.partner_shift
        populations.append(replace(new, spread=spread, partner_shift=shift))
    return replace(draw, rows=populations[0], cols=populations[1])


def _spreads(model: Model, dyads: Dyads) -> tuple[Array, Array]:
    """How the own blocks of the rows and columns of a sample of dyads differ from the average.

    A systematic sample along the direction in which both blocks together differ most, recentred.
    """
    blocks, n_pool = model.layout.blocks(model.theta), min(len(dyads), 16 * N_DRAWS)
    pool = random_stream(FIXED_SEED, Stream.SPREAD).choice(len(dyads), n_pool, replace=False)
    weight = dyads.weights[pool]
    row = blocks.row[dyads.row[pool]].astype(np.float64) - model.draw.rows.average
    col = blocks.col[dyads.col[pool]].astype(np.float64) - model.draw.cols.average
    joint = np.hstack([row, col])
    if not joint.any():
        return row[:0], col[:0]
    direction = joint[np.argmax((joint**2).sum(axis=1))]
    for _ in range(POWER_STEPS):
        direction = joint.T @ (joint @ direction)
        direction /= np.linalg.norm(direction)
    along = np.argsort(joint @ direction, kind="stable")
    one_set = model.known.one_set
    n = N_DRAWS // 2 if one_set else N_DRAWS
    reached = np.cumsum(weight[along] / weight.max())
    chosen = along[np.searchsorted(reached, (np.arange(n) + 0.5) / n * reached[-1])]
    row, col = row[chosen], col[chosen][::-1]
    if one_set:
        # Each pair in both orders: a node is as likely to be met in either role.
        row = col = np.vstack([row, col])
    return row - row.mean(axis=0), col - col.mean(axis=0)


def _partner_shifts(model: Model, dyads: Dyads, engine: Engine) -> tuple[Array, Array]:
    """How the scores of those a row, or a column, was seen with differ from those of average ones (n, n_labels).

    The score is linear in the other's block, so this is its score with the mean of their own blocks, less that with the
    average: shrunk, where there are few.
    """
    own, effective, known = model.layout.blocks(model.theta), model.effective, model.known
    row_average, col_average = (population.average for population in model.populations)
    pairs = sparse.csr_array((dyads.weights, (dyads.row, dyads.col)), shape=(len(known.rows), len(known.cols)))
    if known.one_set:
        pairs = pairs + pairs.T
    h = effective.shared.mean(axis=0)

    def mean_of(seen: Any, others: Array, average: Array) -> Array:
        total = np.asarray(seen.sum(axis=1))
        mean = (seen @ others.astype(np.float64)) / np.maximum(total, 1e-300)[:, None]
        shrunk: Array = average + (mean - average) * (total / (total + SHRINKAGE))[:, None]
        return shrunk

    def beyond(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        return _pair_scores(model, a[0], b[0], h, engine) - _pair_scores(model, a[1], b[1], h, engine)

    partner_cols = mean_of(pairs, own.col, col_average)
    partner_rows = mean_of(pairs.T.tocsr(), own.row, row_average)
    average_col = np.broadcast_to(col_average, partner_cols.shape)
    average_row = np.broadcast_to(row_average, partner_rows.shape)
    rows = beyond((effective.row, effective.row), (partner_cols, average_col))
    cols = beyond((partner_rows, average_row), (effective.col, effective.col))
    return rows, cols


def with_mean_predictions(model: Model, dyads: Dyads, engine: Engine) -> Draw:
    """The draw with the mean predicted probabilities of each row's and column's dyads, and of all.

    For ``unknown="mean"``, the baseline of section 5.3: the prediction for a new row and a known column c is the mean
    of the model's predictions over the rows seen with c in training, and for two new ones the mean of all.
    """
    proba = link(engine.scores([model], dyads.codes, dyads.side.dyad))
    weight = dyads.weights

    def place(owner: Codes, n: int) -> Any:
        return sparse.csr_array((weight, (owner, np.arange(len(owner)))), shape=(n, len(owner)))

    def means(owned: Any) -> Array:
        total = owned @ proba
        with np.errstate(invalid="ignore"):
            return np.asarray(total / total.sum(axis=1, keepdims=True))

    row, col = place(dyads.row, len(model.known.rows)), place(dyads.col, len(model.known.cols))
    if model.known.one_set:
        row = col = row + col
    rows = replace(model.draw.rows, predictions=means(row))
    cols = replace(model.draw.cols, predictions=means(col))
    return replace(model.draw, rows=rows, cols=cols, prediction=np.average(proba, axis=0, weights=weight))


def mean_scores(record: Record, row: Codes, col: Codes) -> Array:
    """The scores (n, n_labels) of dyads of which an id is unknown: the log of the mean predictions that were kept."""
    return log_proba(np.mean([_mean_predictions(draw, row, col) for draw in record.draws], axis=0))


def _mean_predictions(draw: Draw, row: Codes, col: Codes) -> Array:
    assert draw.prediction is not None
    proba = np.broadcast_to(draw.prediction, (len(row), len(draw.prediction))).copy()
    for population, codes, other in ((draw.rows, row, col), (draw.cols, col, row)):
        known = (codes >= 0) & (other < 0)
        means = np.asarray(population.predictions)[codes[known]]
        # An entity that is known by its features alone has no predictions of its own.
        proba[known] = np.where(np.isnan(means), proba[known], means)
    return proba


def support(known: Known, row: Codes, col: Codes) -> Array:
    """The summed weight of the training dyads of each dyad's row and column (n, 2); zero for unknown ones."""
    pairs = ((known.rows, row), (known.cols, col))
    return np.stack([np.where(codes >= 0, entities.counts[codes], 0) for entities, codes in pairs], axis=1)


def fold_in(record: Record, dyads: Dyads, rows: Codes, cols: Codes, engine: Engine) -> Record:
    """Solve for the blocks of some rows and columns from their `dyads`, everything else as it is.

    With one id set both are the nodes to solve for. New rows and new columns that share dyads are solved in turn until
    neither moves. Those of a draw from a posterior are drawn too.
    """
    known = _with_seen(record.known, dyads, rows, cols) if record.parts.implicit else record.known
    counts, sets = known.counts_of(dyads), []
    for entities, given, codes in zip(known.sets, counts, (rows, cols), strict=False):
        own = entities.counts.copy()
        own[codes] = given[codes]
        sets.append(replace(entities, counts=own))
    folded = replace(record, known=known.with_sets(sets))
    bound = replace(dyads, side=known.side._replace(dyad=dyads.side.dyad))
    solved = [_fold_in_draw(model, bound, counts, rows, cols, engine, i) for i, model in enumerate(folded.models)]
    draws, ended = zip(*solved, strict=True)
    if not all(ended):
        warnings.warn("Rows and columns that were folded in together still move.", NotConvergedWarning, stacklevel=3)
    return replace(folded, draws=draws)


def _fold_in_draw(
    model: Model, dyads: Dyads, counts: Counts, rows: Codes, cols: Codes, engine: Engine, number: int
) -> tuple[Draw, bool]:
    """Solve for blocks in one draw, the `number`-th, and say if they stopped; `counts` are those of `dyads`."""
    draw, sides = model.draw, (rows, cols)[: len(model.known.sets)]
    prior = OwnPrior((draw.rows.centre, draw.cols.centre))
    if draw.rows.precision is not None and draw.cols.precision is not None:
        prior = prior._replace(precision=(draw.rows.precision, draw.cols.precision))
    with engine.bind(model.parts.objective(model.known, counts), dyads) as problem:
        solution, ended = _solve_in_turn(problem, draw.theta, rows, cols, prior, number)
    theta = draw.theta.copy()
    for codes, block, solved in zip(sides, model.layout.blocks(theta), model.layout.blocks(solution), strict=False):
        block[codes] = solved[codes]
    draw = replace(draw, theta=theta)
    if draw.prediction is None:
        return draw, ended
    fresh = with_mean_predictions(replace(model, draw=draw), dyads, engine)
    populations = []
    for old, new, codes in zip((draw.rows, draw.cols), (fresh.rows, fresh.cols), (rows, cols), strict=True):
        predictions = np.array(old.predictions)
        predictions[codes] = np.asarray(new.predictions)[codes]
        populations.append(replace(old, predictions=predictions))
    return replace(draw, rows=populations[0], cols=populations[1]), ended


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


def _pair_scores(model: Model, A: Array, B: Array, h: Array, engine: Engine) -> Array:
    """The scores (n, n_labels) of pairs of blocks A (n, row size) and B (n, col size) with one shared block."""
    each, offset = np.arange(len(A)), np.zeros((len(A), model.structure.n_labels))
    return engine.block_scores(model.structure, Blocks(A, B, h[None]), (each, each), offset)


def targets(known: Known, dyads: Dyads, n_known: tuple[int, int], side: str | None) -> tuple[Codes, Codes]:
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
        if known.one_set:
            return solved, solved
        return (solved, others[:0]) if side == "row" else (others[:0], solved)
    rows, cols = given[0][known.rows.counts[given[0]] == 0], given[1][known.cols.counts[given[1]] == 0]
    if not (len(rows) or len(cols)):
        raise InputError(
            "All ids of X have labels in the model already: expected new ones. To solve for known ids anew, pass "
            "side='row' or 'col' with all their labels, old and new."
        )
    if known.one_set:
        rows = cols = np.union1d(rows, cols)
    return rows, cols


def _with_seen(known: Known, dyads: Dyads, rows: Codes, cols: Codes) -> Known:
    """Add to the sets of entities, features of a model with `implicit`, those they are seen with in `dyads`."""
    n_rows, n_cols = len(known.rows), len(known.cols)
    by_row = seen_sets(dyads.row, dyads.col, n_rows, n_cols, both_ways=known.one_set)
    by_set = (by_row,) if known.one_set else (by_row, seen_sets(dyads.col, dyads.row, n_cols, n_rows))
    changed = []
    for entities, seen, codes in zip(known.sets, by_set, (rows, cols), strict=False):
        first = 0 if entities.encoder is None else len(entities.encoder.names)
        own = entities.features[codes]
        # Entities that came after the fit have no weight as members of a set.
        joined = (own[:, first:] + seen[codes][:, : entities.n_features - first] != 0).astype(np.float64)
        size = np.maximum(np.asarray(joined.sum(axis=1)), 1)
        lines = sparse.hstack([own[:, :first], sparse.diags_array(1 / np.sqrt(size)) @ joined], format="csr")
        changed.append(replace(entities, features=_with_lines(entities.features, codes, lines)))
    return known.with_sets(changed)
