"""Recommendations: the best partners (top-n or Thompson sampling), similar entities, and what to ask a row next."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import entr

from dyads.data.codes import Codes
from dyads.data.dyads import Grouped, Side
from dyads.engine import Engine, Query
from dyads.model.loss import link
from dyads.model.parameters import Blocks
from dyads.model.record import Model, Record
from dyads.model.streams import FIXED_SEED, Stream, random_stream

Array = np.ndarray[Any, Any]

ASKED = 5.0
"""Number of labels at which the variance of a row's block is taken to be half of the population's."""


class Best(NamedTuple):
    """Recommendations, best first within each row.

    Attributes
    ----------
    row : (m,) position of the row among the requested rows
    col : (m,) codes of columns (of rows, if the query was turned)
    rank : (m,) ranks, from 1
    value : (m,) expected values, or similarities
    """

    row: Array
    col: Array
    rank: Array
    value: Array


def left_out(pairs: tuple[Codes, Codes], candidates: Codes, n_rows: int, n_cols: int) -> tuple[Array, Array]:
    """Group pairs to leave out by row, as in `Query.excluded`.

    `pairs` : codes of rows and of columns. Those with negative codes, or with columns that are not candidates, are
    ignored.
    """
    row, col = pairs
    place = np.full(n_cols, -1)
    place[candidates] = np.arange(len(candidates))
    relevant = (row >= 0) & (col >= 0)
    relevant[relevant] = place[col[relevant]] >= 0
    by_row = Grouped.by(row[relevant], n_rows)
    return by_row.start, place[col[relevant]][by_row.order]


def recommend(models: Sequence[Model], query: Query, engine: Engine) -> Best:
    """The `n` candidates of greatest expected value, sum_y p_y values_y, for each row, without excluded pairs."""
    if models[0].known.walk is None:
        at, value = engine.top(models, query)
    else:
        step = max(1, COMPARED // max(1, len(query.cols)))
        parts = [query._replace(rows=query.rows[i : i + step]) for i in range(0, max(1, len(query.rows)), step)]
        found = [engine.top(models, part._replace(offset=_offset(models[0], part))) for part in parts]
        at, value = (np.concatenate(each) for each in zip(*found, strict=True))
    filled = at >= 0
    row, rank = np.nonzero(filled)
    return Best(row, query.cols[at[filled]], rank + 1, value[filled])


def _offset(model: Model, query: Query) -> Array:
    """Scores (n_rows, n_cols, n_labels) that a walk adds to those of the candidates."""
    row, col = np.repeat(query.rows, len(query.cols)), np.tile(query.cols, len(query.rows))
    features = model.known.pair_features([col, row] if query.turned else [row, col])
    first = model.layout.first_scores(model.theta.astype(np.float64), Side(dyad=features))
    return np.asarray(first).reshape(len(query.rows), len(query.cols), model.structure.n_labels)


def thompson(models: Sequence[Model], query: Query, engine: Engine, rng: np.random.RandomState) -> Best:
    """Thompson sampling: the best candidates under one random posterior draw per row, which explores uncertain ones."""
    if not len(query.rows):
        return recommend(models, query, engine)
    drawn = rng.randint(len(models), size=len(query.rows))
    by_draw = []
    for number in np.unique(drawn):
        places = np.flatnonzero(drawn == number)
        best = recommend([models[number].one_draw()], query._replace(rows=query.rows[places]), engine)
        by_draw.append(best._replace(row=places[best.row]))
    together = Best(*(np.concatenate(parts) for parts in zip(*by_draw, strict=True)))
    order = np.lexsort((together.rank, together.row))
    return Best(*(part[order] for part in together))


PARTNERS = 128
"""Most partners that two entities are compared on; more change the order of similar ones little."""

ASKED_AT_ONCE = 512
"""Entities whose similar ones are searched for at a time: more take more memory, and fewer score the others again."""

COMPARED = 2**20
"""Pairs that are scored at a time to compare entities."""


def similar(record: Record, asked: Codes, n: int, turned: bool, engine: Engine) -> Best:
    """The `n` rows (columns, if `turned`) whose predicted distributions are nearest to those of each asked one.

    The similarity of two rows r and q is the Bhattacharyya coefficient of their predictions,

        sum_y sqrt(p(y | r, c) p(y | q, c)),

    one for equal distributions and zero for disjoint ones, averaged over partners c: columns sampled by their number of
    labels (with their relations, if there are several).
    """
    known = record.known
    own, partners = (known.cols, known.rows) if turned else (known.rows, known.cols)
    rng = random_stream(FIXED_SEED, Stream.COMPARED)
    n_chosen = min(PARTNERS, int((partners.counts > 0).sum()))
    chosen = rng.choice(len(partners), n_chosen, replace=False, p=partners.counts / partners.counts.sum())
    shares = known.relation_counts / known.relation_counts.sum()
    relation = rng.choice(len(shares), n_chosen, p=shares)

    def roots(codes: Codes) -> Array:
        """Square roots of the probabilities (n, n_chosen * n_labels)."""
        own_code, partner = np.repeat(codes, n_chosen), np.tile(chosen, len(codes))
        columns = [partner, own_code] if turned else [own_code, partner]
        columns += [] if known.relations is None else [np.tile(relation, len(codes))]
        proba = record.proba(engine.scores(record.models, columns, known.pair_features(columns)))
        return np.asarray(np.sqrt(proba / n_chosen).reshape(len(codes), n_chosen * proba.shape[1]))

    step, n = max(1, COMPARED // n_chosen), min(n, len(own) - 1)

    def nearest(some: Codes) -> tuple[Array, Array]:
        """The similarities and codes (n_some, n) of the entities nearest to some."""
        of_some = roots(some)
        values, codes = np.zeros((len(some), 0)), np.zeros((len(some), 0), np.int64)
        for first in range(0, len(own), step):
            others = np.arange(first, min(first + step, len(own)))
            likeness = np.where(others == some[:, None], -np.inf, of_some @ roots(others).T)
            values = np.hstack([values, likeness])
            codes = np.hstack([codes, np.broadcast_to(others, likeness.shape)])
            order = np.argsort(-values, axis=1, kind="stable")[:, :n]
            values, codes = np.take_along_axis(values, order, axis=1), np.take_along_axis(codes, order, axis=1)
        return values, codes

    parts = [nearest(asked[first : first + ASKED_AT_ONCE]) for first in range(0, max(1, len(asked)), ASKED_AT_ONCE)]
    values, codes = (np.concatenate(each) for each in zip(*parts, strict=True))
    row, rank = np.indices(codes.shape).reshape(2, -1)
    return Best(row, codes.ravel(), rank + 1, values.ravel())


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
    if record.known.walk is not None:
        nothing = np.zeros(0, np.int64)
        asked = Query(np.array([row]), candidates, n, nothing, relation, (nothing, nothing))
        (offset,) = _offset(record.models[0], asked)
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
