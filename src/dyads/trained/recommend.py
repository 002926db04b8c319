"""Recommendations: the best columns for a row (top-n or Thompson sampling), and the most informative ones to ask."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import entr

from dyads.data.codes import Codes
from dyads.data.dyads import Grouped
from dyads.engine import Engine, Query
from dyads.model.loss import link
from dyads.model.parameters import Blocks
from dyads.model.record import Model, Record

Array = np.ndarray[Any, Any]

ASKED = 5.0
"""Number of labels at which the variance of a row's block is taken to be half of the population's."""


class Best(NamedTuple):
    """Recommendations, best first within each row.

    Attributes
    ----------
    row : (m,) position of the row among the requested rows
    col : (m,) codes of columns
    rank : (m,) ranks, from 1
    value : (m,) expected values
    """

    row: Array
    col: Array
    rank: Array
    value: Array


class Wanted(NamedTuple):
    """A request for recommendations.

    Attributes
    ----------
    rows, candidates : codes of the rows, and of the columns to choose from
    n : number of recommendations per row
    values : (n_labels,) value of each label
    exclude : pairs to leave out, as codes of rows and of columns; pairs with negative codes or with columns that are
        not candidates are ignored
    relation : code of the relation
    """

    rows: Codes
    candidates: Codes
    n: int
    values: Array
    exclude: tuple[Codes, Codes]
    relation: int


def recommend(models: Sequence[Model], wanted: Wanted, engine: Engine) -> Best:
    """The `n` candidates of greatest expected value, sum_y p_y values_y, for each row, without excluded pairs."""
    rows, candidates, exclude, known = wanted.rows, wanted.candidates, wanted.exclude, models[0].known
    place = np.full(len(known.cols), -1)
    place[candidates] = np.arange(len(candidates))
    left_out = place[exclude[1]]
    relevant = (exclude[0] >= 0) & (exclude[1] >= 0) & (left_out >= 0)
    by_row = Grouped.by(exclude[0][relevant], len(known.rows))
    start, order = by_row.start, left_out[relevant][by_row.order]
    # A row may be requested more than once. An unknown row, of code -1, excludes nothing.
    sizes = np.where(rows >= 0, np.diff(start, append=start[-1])[rows], 0)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(begin[-1]) - np.repeat(begin[:-1], sizes)
    excluded = order[np.repeat(start[rows], sizes) + within]
    query = Query(rows, candidates, wanted.n, wanted.values, wanted.relation, (begin, excluded))
    at, value = engine.top(models, query)
    filled = at >= 0
    row, rank = np.nonzero(filled)
    return Best(row, candidates[at[filled]], rank + 1, value[filled])


def thompson(models: Sequence[Model], wanted: Wanted, engine: Engine, rng: np.random.RandomState) -> Best:
    """Thompson sampling: the best candidates under one random posterior draw per row, which explores uncertain ones."""
    if not len(wanted.rows):
        return recommend(models, wanted, engine)
    drawn = rng.randint(len(models), size=len(wanted.rows))
    by_draw = []
    for number in np.unique(drawn):
        places = np.flatnonzero(drawn == number)
        best = recommend([models[number].one_draw()], wanted._replace(rows=wanted.rows[places]), engine)
        by_draw.append(best._replace(row=places[best.row]))
    together = Best(*(np.concatenate(parts) for parts in zip(*by_draw, strict=True)))
    order = np.lexsort((together.rank, together.row))
    return Best(*(part[order] for part in together))


def ask(record: Record, row: int, candidates: Codes, n: int, relation: int, engine: Engine) -> tuple[Codes, Array]:
    """The `n` candidates of greatest expected information gain about a row, and their gains in nats, greatest first.

    The gain is the mutual information of the row's own block a and the label y of column c,

        I(y; a) = H(mean over a of p(. | a, c)) - mean over a of H(p(. | a, c)),

    where a varies as the blocks of the training data do, with a variance that shrinks with the number n of the row's
    labels by ASKED / (ASKED + n). With a posterior, a varies over its draws.
    """
    labels, structure = record.known.rows.counts[row] if row >= 0 else 0.0, record.parts.structure
    total, entropy = np.zeros((len(candidates), structure.n_labels)), np.zeros(len(candidates))
    first, second, offset = np.zeros(len(candidates), np.int64), np.arange(len(candidates)), np.zeros_like(total)
    n_draws = 0
    for model in record.models:
        block = model.effective.row[row] if row >= 0 else model.unknown.row[0]
        cols, h = model.effective.col[candidates].astype(np.float64), model.effective.shared[relation]
        known = record.is_posterior and labels > 0
        spread = np.zeros((1, len(block))) if known else model.draw.rows.spread * np.sqrt(ASKED / (ASKED + labels))
        for deviation in spread:
            blocks = Blocks((block + deviation)[None], cols, h[None])
            proba = link(engine.block_scores(structure, blocks, (first, second), offset))
            total += proba
            entropy += entr(proba).sum(axis=1)
            n_draws += 1
    n_draws = max(1, n_draws)
    gain = entr(total / n_draws).sum(axis=1) - entropy / n_draws
    best = np.argsort(-gain, kind="stable")[:n]
    return candidates[best], gain[best]
