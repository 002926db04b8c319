"""The best columns for a row: exact, blockwise, in flat memory."""

from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Grouped
from dyads.data.vocabulary import Codes
from dyads.engine.scoring import top
from dyads.model.fitted import Fitted

Array = np.ndarray[Any, Any]


class Best(NamedTuple):
    """Recommendations, one line each, best first within a row.

    Attributes
    ----------
    row : (m,) the place of the row among those asked for
    col : (m,) codes of columns
    rank : (m,) from 1
    value : (m,) expected values
    """

    row: Array
    col: Array
    rank: Array
    value: Array


def recommend(
    fitted: Fitted,
    rows: Codes,
    candidates: Codes,
    n: int,
    values: Array,
    exclude: tuple[Codes, Codes],
    relation: int,
    n_jobs: int | None,
) -> Best:
    """The `n` candidates of greatest expected value sum_y p_y values_y for each of `rows`, without those excluded.

    `exclude` : codes of rows and of columns, pairs to leave out; negative codes, and others than these, are ignored.
    """
    place = np.full(len(fitted.cols), -1)
    place[candidates] = np.arange(len(candidates))
    left_out = place[exclude[1]]
    known = (exclude[0] >= 0) & (exclude[1] >= 0) & (left_out >= 0)
    by_row = Grouped.by(exclude[0][known], len(fitted.rows))
    start, order = by_row.start, left_out[known][by_row.order]
    # A row may be asked for more than once, and one of code -1 excludes nothing.
    sizes = np.where(rows >= 0, np.diff(start, append=start[-1])[rows], 0)
    begin = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(begin[-1]) - np.repeat(begin[:-1], sizes)
    excluded = order[np.repeat(start[rows], sizes) + within]
    at, value = top(fitted, rows, candidates, n, values, relation, (begin, excluded), n_jobs)
    found = at >= 0
    row, rank = np.nonzero(found)
    return Best(row, candidates[at[found]], rank + 1, value[found])
