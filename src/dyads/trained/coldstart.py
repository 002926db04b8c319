"""Cold start: entities without training labels, by their features, by fold-in of a few labels, or by the prior."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads, chunks
from dyads.data.features import Features, seen_sets
from dyads.engine import Engine, OwnPrior, Problem
from dyads.errors import InputError, NotConvergedWarning, UnknownIdError, caller_level
from dyads.metrics import log_proba
from dyads.model.loss import link
from dyads.model.objective import BlockPrior, side_weights_by_counts
from dyads.model.parameters import Blocks, Role
from dyads.model.record import Draw, Entities, Known, Model, Parts, Record
from dyads.model.streams import FIXED_SEED, Key, Stream, random_stream
from dyads.model.structure import is_undirected
from dyads.trained.predictions import log_likelihood

Array = np.ndarray[Any, Any]

N_DRAWS = 256
"""Draws that represent an entity without labels: more are more accurate and slower. Even, since draws are paired."""

POOL_SIZE = 16 * N_DRAWS
"""Random dyads that the draws are sampled from: enough to cover the spread of blocks, at a cost that is bounded."""

SHIFT_DRAWS = 8
"""Posterior draws that a partner shift is averaged over: a few are enough, and each takes a pass over the dyads."""

POWER_STEPS = 20
"""Iterations of the power method for the first principal direction of the blocks, which need not be exact."""

ROUNDS = 200
"""Maximum number of alternations between new rows and new columns that share dyads; beyond it a fold-in warns."""

FOLD_IN_STEPS = 100
"""Maximum number of Newton steps per block. The log loss, whose Hessian is exact, needs five or six."""

REDRAWS = 5
"""Sweeps over the blocks folded into a posterior draw. Few are enough, since they start from the mode."""

STILL = 1e-9
"""Tolerance of fold-in: blocks that move by less than this in a round have converged."""

SHRINKAGE = 5.0
"""Number of labels at which a partner shift is shrunk by half: n / (n + SHRINKAGE)."""


def with_features(record: Record, row: Features | None, col: Features | None) -> Record:
    """Return the model with updated features of known ids, and with new ids that have features but no labels."""
    known = record.known
    if col is not None and known.one_set:
        raise InputError(
            "Got col_features, but rows and columns share one id set in this model: pass row_features only."
        )
    rows = known.rows.ids if row is None else known.rows.ids.with_ids(row.ids, "row_features")
    cols = known.cols.ids if col is None else known.cols.ids.with_ids(col.ids, "col_features")
    grown = record.grown(rows, cols)
    overridden = grown.known.with_sets(
        entities if features is None else _overridden(entities, features, side)
        for entities, features, side in zip(grown.known.sets, (row, col), ("row", "col"), strict=False)
    )
    return replace(grown, known=overridden)


def refuse_featureless(known: Known, grown: Known) -> None:
    """Raise an error for new ids without features, if the model was fitted on features that may not be absent."""
    for side, name, old, new in (("row", "row", known.rows, grown.rows), ("col", "column", known.cols, grown.cols)):
        if old.encoder is not None and old.encoder.absent == "raise" and len(new) > len(old):
            raise InputError(
                f"The {name} id {new.ids.ids[len(old)].as_py()!r} is new and has no features ({len(new) - len(old)} "
                f"such ids): pass them as {side}_features, or fit with Features(table, absent='missing')."
            )


def _overridden(entities: Entities, features: Features, side: str) -> Entities:
    """Return the entities with the given features replaced; sets of an `implicit` model stay."""
    if entities.encoder is None:
        raise InputError(
            f"{side}_features were given, but the model was fitted without any: omit them, or fit the model with them."
        )
    codes, lines = entities.ids.encode(features.ids), entities.encoder.encode(features)
    seen = entities.features[codes][:, lines.shape[1] :]
    return replace(entities, features=_with_lines(entities.features, codes, sparse.hstack([lines, seen], format="csr")))


def _with_lines(matrix: Any, codes: Codes, lines: Any) -> Any:
    """Return a copy of a sparse matrix with the rows `codes` replaced by `lines`."""
    source = np.arange(matrix.shape[0])
    source[codes] = matrix.shape[0] + np.arange(len(codes))
    return sparse.vstack([matrix, lines], format="csr")[source]


def with_spread(model: Model, dyads: Dyads, engine: Engine) -> Draw:
    """Return the draw with the spreads and partner shifts of the training dyads; see `Population`."""
    spreads, shifts = _spreads(model, dyads), _partner_shifts(model, dyads, engine)
    rows, cols = (
        replace(population, spread=np.ascontiguousarray(spread), partner_shift=shift)
        for population, spread, shift in zip(model.populations, spreads, shifts, strict=True)
    )
    return replace(model.draw, rows=rows, cols=cols)


def posterior_draws(
    parts: Parts, known: Known, draws: list[tuple[Array, tuple[BlockPrior, ...]]], dyads: Dyads, engine: Engine
) -> list[Draw]:
    """Convert sampler states, (theta, learnt priors of rows and columns, or of nodes), to posterior draws.

    An entity without labels is drawn as that of a random training dyad, not from the learnt prior: entities with many
    labels differ from those with few, and most labels that are asked for are of the former. For the same reason, side
    weights are those of entities weighted by counts. About `N_DRAWS` dyads are sampled in all, a few for each posterior
    draw. The partner shift is the mean over `SHIFT_DRAWS` of them.
    """
    drawn = [Draw.drawn(parts, known, *_by_counts(parts, known, theta, priors)) for theta, priors in draws]
    models = [Model(parts=parts, known=known, draw=draw) for draw in drawn]
    n_lines = max(1, round(N_DRAWS / len(drawn) / 2)) * (1 if known.one_set else 2)
    # In random order: `Model.one_draw` takes the first of each draw, which must not be all of one kind.
    order = random_stream(FIXED_SEED, Stream.SPREAD, len(drawn)).permutation(n_lines * len(drawn))
    sample = _representative(models[-1], dyads, len(order))[order]
    spreads = [_deviations(model, dyads, sample[number :: len(drawn)]) for number, model in enumerate(models)]
    centre = [np.mean([spread[side].mean(axis=0) for spread in spreads], axis=0) for side in range(2)]
    spaced = [models[i] for i in np.unique(np.linspace(0, len(models) - 1, SHIFT_DRAWS).astype(int))]
    shifts = [
        np.mean(shift, axis=0) for shift in zip(*(_partner_shifts(m, dyads, engine) for m in spaced), strict=True)
    ]

    def populated(draw: Draw, spread: tuple[Array, Array]) -> Draw:
        rows, cols = (
            replace(population, spread=np.ascontiguousarray(deviation - mean, draw.theta.dtype), partner_shift=shift)
            for population, deviation, mean, shift in zip((draw.rows, draw.cols), spread, centre, shifts, strict=True)
        )
        return replace(draw, rows=rows, cols=cols)

    return [populated(draw, spread) for draw, spread in zip(drawn, spreads, strict=True)]


def _by_counts(
    parts: Parts, known: Known, theta: Array, priors: tuple[BlockPrior, ...]
) -> tuple[Array, tuple[BlockPrior, ...]]:
    """Move what features tell of own blocks, weighted by counts, to the side weights; see `side_weights_by_counts`.

    A sweep draws side weights from all entities alike. Effective blocks, and so the predictions of known entities, stay
    as they are: W += B, a_e -= x_e B. So does the mean of the learnt prior over the entities with labels. The sets of
    `implicit` tell of the counts themselves, and are left out.
    """
    layout, moved, shifted = parts.layout(known), theta.astype(np.float64), list(priors)
    own_blocks, side_weights = layout.blocks(moved), layout.side_weights(moved)
    for i, entities in enumerate(known.sets):
        n_features = 0 if entities.encoder is None else len(entities.encoder.names)
        if not n_features:
            continue
        features, columns, is_labelled = entities.features[:, :n_features], layout.side_columns[i], entities.counts > 0
        own, weights = own_blocks[i], side_weights[i][:n_features]
        change = side_weights_by_counts(features, entities.counts, own[:, columns], weights)
        weights += change
        told = features @ change
        own[:, columns] -= told
        mean = shifted[i].mean.astype(np.float64)
        mean[columns] -= told[is_labelled].mean(axis=0)
        shifted[i] = shifted[i]._replace(mean=mean.astype(shifted[i].mean.dtype))
    return moved.astype(theta.dtype), tuple(shifted)


def with_more(model: Model, before: Model, dyads: Dyads, engine: Engine) -> Draw:
    """Return the draw after a further batch of dyads, with the spreads and partner shifts of `before` updated.

    Reservoir update: each old draw of a spread is replaced by one from the batch with probability batch weight / total
    weight. A partner shift is the count-weighted mean of the old and the new one.
    """
    draw, relation_counts = with_spread(model, dyads, engine), model.known.relation_counts
    fresh = random_stream(FIXED_SEED, Stream.SPREAD_UPDATE, int(relation_counts.sum())).random(N_DRAWS) < (
        dyads.total_weight / relation_counts.sum()
    )
    # The two draws of a dyad are at mirrored positions; with one id set, so are its two orders.
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
    """Deviations of own blocks from the average in a sample of dyads, recentred; see `Population`."""
    n = N_DRAWS // 2 if model.known.one_set else N_DRAWS
    row, col = _deviations(model, dyads, _representative(model, dyads, n))
    if not (row.any() or col.any()):
        return row[:0], col[:0]
    return row - row.mean(axis=0), col - col.mean(axis=0)


def _representative(model: Model, dyads: Dyads, n: int) -> Array:
    """Positions of n dyads, sampled by weight, and systematically along the first principal direction of the blocks."""
    pool = random_stream(FIXED_SEED, Stream.SPREAD).choice(len(dyads), min(len(dyads), POOL_SIZE), replace=False)
    row, col = _own_deviations(model, dyads, pool)
    joint = np.hstack([row, col])
    direction = joint[np.argmax((joint**2).sum(axis=1))]
    for _ in range(POWER_STEPS if direction.any() else 0):
        direction = joint.T @ (joint @ direction)
        direction /= np.linalg.norm(direction)
    along = np.argsort(joint @ direction, kind="stable")
    weight = dyads.weights[pool]
    reached = np.cumsum(weight[along] / weight.max())
    chosen: Array = pool[along[np.searchsorted(reached, (np.arange(n) + 0.5) / n * reached[-1])]]
    return chosen


def _own_deviations(model: Model, dyads: Dyads, chosen: Array) -> tuple[Array, Array]:
    """Deviations (n, size) from the average of the own blocks of the rows, and of the columns, of some dyads."""
    blocks = model.layout.blocks(model.theta)
    row = blocks.row[dyads.row[chosen]].astype(np.float64) - model.draw.rows.average
    col = blocks.col[dyads.col[chosen]].astype(np.float64) - model.draw.cols.average
    return row, col


def _deviations(model: Model, dyads: Dyads, chosen: Array) -> tuple[Array, Array]:
    """The deviations of some dyads, paired as in `Population`."""
    row, col = _own_deviations(model, dyads, chosen)
    col = col[::-1]
    if model.known.one_set:
        # Each pair in both orders: a node is equally likely in either role.
        row = col = np.vstack([row, col])
    return row, col


def _partner_shifts(model: Model, dyads: Dyads, engine: Engine) -> tuple[Array, Array]:
    """Score shifts (n, n_labels) of rows and of columns: observed partners compared with average ones.

    The score is linear in the partner's block. So the shift is the score with the mean block of the partners, minus
    the score with the average block; the mean is shrunk towards the average by n / (n + SHRINKAGE).
    """
    own, effective, known = model.layout.blocks(model.theta), model.effective, model.known
    row_average, col_average = (population.average for population in model.populations)
    h = effective.shared.mean(axis=0)
    shape = len(known.rows), len(known.cols)

    def mean_of(turned: bool, partners: Array, average: Array) -> Array:
        """The mean block of the partners of each row; if turned, of each column."""
        partners = partners.astype(np.float64)
        total, summed = np.zeros(shape[turned]), np.zeros((shape[turned], partners.shape[1]))
        for some in chunks(len(dyads)):
            weight = np.ones(some.stop - some.start) if dyads.weight is None else dyads.weight[some]
            pairs = sparse.csr_array((weight, (dyads.row[some], dyads.col[some])), shape=shape)
            if known.one_set:
                pairs = pairs + pairs.T
            elif turned:
                pairs = pairs.T.tocsr()
            total += np.asarray(pairs.sum(axis=1))
            summed += pairs @ partners
        mean = summed / np.maximum(total, 1e-300)[:, None]
        shrunk: Array = average + (mean - average) * (total / (total + SHRINKAGE))[:, None]
        return shrunk

    def beyond(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
        return _pair_scores(model, a[0], b[0], h, engine) - _pair_scores(model, a[1], b[1], h, engine)

    partner_cols = mean_of(False, own.col, col_average)
    partner_rows = mean_of(True, own.row, row_average)
    average_col = np.broadcast_to(col_average, partner_cols.shape)
    average_row = np.broadcast_to(row_average, partner_rows.shape)
    rows = beyond((effective.row, effective.row), (partner_cols, average_col))
    cols = beyond((partner_rows, average_row), (effective.col, effective.col))
    return rows, cols


def with_mean_predictions(model: Model, dyads: Dyads, engine: Engine) -> Draw:
    """Return the draw with the mean predicted probabilities per row, per column and over all training dyads.

    They are for ``unknown="mean"``, the baseline of the paper's section 5.3. The prediction for a new row and a known
    column c is the mean of the model's predictions over the rows observed with c in training. For a new row and a new
    column it is the mean over all training dyads.
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
    """Scores (n, n_labels) of dyads with an unknown id: the log of the stored mean predictions."""
    return log_proba(np.mean([_mean_predictions(draw, row, col) for draw in record.draws], axis=0))


def _mean_predictions(draw: Draw, row: Codes, col: Codes) -> Array:
    assert draw.prediction is not None
    proba = np.broadcast_to(draw.prediction, (len(row), len(draw.prediction))).copy()
    for population, codes, other in ((draw.rows, row, col), (draw.cols, col, row)):
        known = (codes >= 0) & (other < 0)
        means = np.asarray(population.predictions)[codes[known]]
        # An entity that has features but no training dyads has no mean prediction.
        proba[known] = np.where(np.isnan(means), proba[known], means)
    return proba


def support(known: Known, row: Codes, col: Codes) -> Array:
    """Summed weight (n, 2) of the training dyads of the row and of the column of each dyad; zero for unknown ids."""
    pairs = ((known.rows, row), (known.cols, col))
    return np.stack([np.where(codes >= 0, entities.counts[codes], 0) for entities, codes in pairs], axis=1)


def fold_in(record: Record, dyads: Dyads, rows: Codes, cols: Codes, engine: Engine) -> Record:
    """Solve for the blocks of `rows` and `cols` from their `dyads`, with all other parameters fixed.

    With one id set, both are the nodes to solve for. New rows and new columns that share dyads are solved alternately
    until neither moves. In a posterior draw, the blocks are then drawn, not only optimised.
    """
    known = _with_seen(record.known, dyads, rows, cols) if record.parts.implicit else record.known
    counts, sets = known.counts_of(dyads), []
    for entities, batch_counts, codes in zip(known.sets, counts, (rows, cols), strict=False):
        new_counts = entities.counts.copy()
        new_counts[codes] = batch_counts[codes]
        sets.append(replace(entities, counts=new_counts))
    labels = known.label_counts.recounted(dyads, rows, cols)
    known = known.having_seen(dyads)
    folded = replace(record, known=replace(known.with_sets(sets), label_counts=labels))
    bound = replace(dyads, side=known.side._replace(dyad=dyads.side.dyad))
    solved = [_fold_in_draw(model, bound, counts, rows, cols, engine, i) for i, model in enumerate(folded.models)]
    draws, ended = zip(*solved, strict=True)
    if not all(ended):
        warnings.warn(
            f"Fold-in did not converge: new ids that share dyads still moved after {ROUNDS} rounds. Fold them in in "
            "smaller batches, or fit the model again.",
            NotConvergedWarning,
            stacklevel=caller_level(),
        )
    return replace(folded, draws=draws)


def _fold_in_draw(
    model: Model, dyads: Dyads, counts: Counts, rows: Codes, cols: Codes, engine: Engine, number: int
) -> tuple[Draw, bool]:
    """Fold into draw `number`; returns the draw, and whether it converged. `counts` are the label counts of `dyads`."""
    draw, sides = model.draw, (rows, cols)[: len(model.known.sets)]
    prior = OwnPrior((draw.rows.centre, draw.cols.centre))
    if draw.rows.precision is not None and draw.cols.precision is not None:
        prior = prior._replace(precision=(draw.rows.precision, draw.cols.precision))
    with engine.for_memory().bind(model.parts.objective(model.known, counts), dyads) as problem:
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
    """Optimise the blocks of `rows` and `cols` (of the nodes `rows` with one id set); returns (theta, converged).

    Rows and columns alternate until a round moves neither. With a learnt prior, the blocks are then drawn `REDRAWS`
    times. `number` is the number of the posterior draw.
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
    """Scores (n, n_labels) of the pairs of blocks A (n, row size) and B (n, col size) with one shared block h."""
    pairs, offset = np.arange(len(A)), np.zeros((len(A), model.structure.n_labels))
    return engine.block_scores(model.structure, Blocks(A, B, h[None]), (pairs, pairs), offset)


def targets(known: Known, dyads: Dyads, n_known: tuple[int, int], side: str | None) -> tuple[Codes, Codes]:
    """Codes of the rows and columns of `dyads` to solve for: those without labels, or all of one side.

    `n_known` : number of rows and columns of the model before those of `dyads` were added.
    """
    present = np.unique(dyads.row), np.unique(dyads.col)
    if side is not None:
        solved, others = (present[0], present[1]) if side == "row" else (present[1], present[0])
        n_unknown = int((others >= n_known[1 if side == "row" else 0]).sum())
        if n_unknown:
            raise UnknownIdError(
                f"side={side!r} solves for one side, and {n_unknown} ids of the other are unknown: expected known ids "
                "there. Fold them in first, or use side=None."
            )
        if known.one_set:
            return solved, solved
        return (solved, others[:0]) if side == "row" else (others[:0], solved)
    rows, cols = present[0][known.rows.counts[present[0]] == 0], present[1][known.cols.counts[present[1]] == 0]
    if not (len(rows) or len(cols)):
        raise InputError(
            "All ids of X have labels in the model already: expected new ids. To update known ids, pass side='row' or "
            "side='col' with all their labels, old and new."
        )
    if known.one_set:
        rows = cols = np.union1d(rows, cols)
    return rows, cols


def _with_seen(known: Known, dyads: Dyads, rows: Codes, cols: Codes) -> Known:
    """Add the partners in `dyads` to the sets of entities that a model with ``implicit=True`` has as features."""
    n_rows, n_cols = len(known.rows), len(known.cols)
    by_row = seen_sets(dyads.row, dyads.col, n_rows, n_cols, both_ways=known.one_set)
    by_set = (by_row,) if known.one_set else (by_row, seen_sets(dyads.col, dyads.row, n_cols, n_rows))
    changed = []
    for entities, seen, codes in zip(known.sets, by_set, (rows, cols), strict=False):
        first = 0 if entities.encoder is None else len(entities.encoder.names)
        own = entities.features[codes]
        # Entities added after the fit have no weights as members of a set.
        joined = (own[:, first:] + seen[codes][:, : entities.n_features - first] != 0).astype(np.float64)
        size = np.maximum(np.asarray(joined.sum(axis=1)), 1)
        lines = sparse.hstack([own[:, :first], sparse.diags_array(1 / np.sqrt(size)) @ joined], format="csr")
        changed.append(replace(entities, features=_with_lines(entities.features, codes, lines)))
    return known.with_sets(changed)


def supposed(record: Record, dyads: Dyads, side: str, engine: Engine) -> Record:
    """The record as it would be if one known row (column) had the labels of `dyads` as well, all else fixed.

    The draws of a posterior are resampled by the likelihood of these labels: by Bayes' theorem, draw s has the weight
    prod_i p_s(y_i). A point estimate is solved for again. The labels of its fit are not kept, so that the pairs of the
    fit stand in with the labels that the model expects,

        sum_i loss(y_i) + sum_seen sum_y p_y loss(y) + 1/2 s |a - a_0|^2,

    whose minimum without further labels is the block a_0 of the fit, and whose curvature there is that of the fit.

    `dyads` : labelled dyads of the known entities, all of one row or of one column, as `side` says.
    """
    if record.is_posterior:
        likelihood = log_likelihood(record, dyads.label, list(dyads.codes), dyads.side.dyad, engine).sum(axis=1)
        reached = np.cumsum(link(likelihood[None])[0])
        n = len(record.draws)
        chosen = np.searchsorted(reached, (np.arange(n) + 0.5) / n * reached[-1])
        best = int(np.bincount(chosen, minlength=n).argmax())
        draws = tuple(record.draws[i] for i in chosen.tolist())
        return replace(record, draws=draws, best=int(np.searchsorted(chosen, best)))
    (model,) = record.models
    known, role = record.known, 0 if side == "row" else 1
    if record.parts.loss.ordered or known.seen is None or known.only_links or known.dyad_encoder is not None:
        raise InputError(
            "Labels of a known id cannot be supposed here: expected a posterior, or a proper loss and a model "
            "that keeps all pairs of its fit and has no features of pairs. Fold in a new id, or fit with "
            "solver='gibbs'."
        )
    code = dyads.codes[role][:1]
    joined = _with_expected(model, dyads, code, role, engine)
    centre = [model.draw.rows.centre, model.draw.cols.centre]
    centre[role] = model.layout.blocks(model.theta)[known.set_of(role)][code[0]].astype(np.float64)
    rows, cols = (code, code) if known.one_set else (code, code[:0]) if role == 0 else (code[:0], code)
    with engine.for_memory().bind(record.parts.objective(known, known.counts_of(joined)), joined) as problem:
        solution, _ = _solve_in_turn(problem, model.theta, rows, cols, OwnPrior((centre[0], centre[1])), 0)
    return replace(record, draws=(replace(model.draw, theta=solution.astype(model.theta.dtype)),))


def _with_expected(model: Model, dyads: Dyads, code: Codes, role: int, engine: Engine) -> Dyads:
    """Labelled dyads, and before them those that an entity has in the fit, with each label by its probability."""
    known, n_labels, none = model.known, dyads.n_labels, dyads.row[:0]
    assert known.seen is not None
    both = is_undirected(type(model.structure), known.one_set)
    of_rows, of_cols = (code if both or role == 0 else none), (code if both or role == 1 else none)
    seen = [
        (*known.seen.pairs_of(of_rows, of_cols, relation), relation)
        for relation in range(1 if known.relations is None else len(known.relations))
    ]
    row, col = (np.concatenate([pairs[i] for pairs in seen]) for i in range(2))
    relation = None if known.relations is None else np.repeat([kind for *_, kind in seen], [len(r) for r, *_ in seen])
    codes = [row, col, *([] if relation is None else [relation])]
    proba = link(engine.scores([model], codes, known.pair_features(codes)))
    whole = [np.append(np.repeat(old, n_labels), new) for old, new in zip(codes, dyads.codes, strict=True)]
    kept = np.append(proba.ravel(), dyads.weights)
    # A weight must be positive.
    kept = np.maximum(kept, np.finfo(np.float32).tiny)
    return replace(
        dyads,
        row=whole[0],
        col=whole[1],
        relation=whole[2] if len(whole) > 2 else None,
        label=np.append(np.tile(np.arange(n_labels), len(row)), dyads.label),
        weight=kept,
        side=known.side._replace(dyad=known.pair_features(whole)),
    )
