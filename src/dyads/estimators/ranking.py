"""Evaluation of rankings: how far up a model ranks the columns that are relevant to a row."""

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.utils.validation import check_is_fitted

from dyads import metrics
from dyads.data.codes import Codes, Vocabulary
from dyads.data.observations import read_pairs
from dyads.errors import InputError, UnknownIdError, unknown_name
from dyads.estimators.predictor import returned_table
from dyads.model.record import Record
from dyads.model.structure import is_undirected

Array = np.ndarray[Any, Any]
Queries = dict[tuple[int, int], Array]

PAIRS_AT_ONCE = 2**20
"""Pairs that are scored at a time: more take more memory, and fewer more time."""

RESAMPLES, LEVEL = 500, 0.9
"""Bootstrap resamples of rows, and the level of the intervals."""


def evaluate_ranking(
    model: Any,
    X: Any,
    *,
    k: int = 10,
    by: Any = "mean",
    exclude: Any = None,
    with_seen: bool = False,
    side: str = "col",
    filtered: bool = False,
) -> Any:
    """Evaluate how a fitted model ranks columns for rows: a tidy table of metric, value, low and high.

    The candidates of a row are all columns that the model knows, without those seen with it in training (as for
    `recommend`), those that `exclude` pairs with it and, with one id set, itself. The relevant ones are those that X
    pairs with it. Ties count half; see `dyads.metrics.ranks_of`. A relevant column that the model does not know is
    never found. Metrics are means over rows (with relations, over pairs of a row and a relation), with 90% bootstrap
    intervals over these. Memory does not grow with the number of pairs.

    Parameters
    ----------
    model : a fitted estimator of dyads
    X : table of relevant pairs, with the column of relations if there are several
    k : int, default 10
        Length of the list for precision, recall, hits, nDCG and average precision.
    by : "mean" or a label, default "mean"
        What to rank by, as for `recommend`.
    exclude : table of pairs, default None
        Further pairs to leave out, such as those that the model was chosen by.
    with_seen : bool, default False
        Whether pairs of the training data are candidates too.
    side : "col" (default) or "row"
        "row" ranks rows for columns instead.
    filtered : bool, default False
        Whether each relevant column is ranked without the other ones, and judged by itself: then metrics are means over
        pairs. This is the filtered protocol of knowledge graphs.
    """
    if not isinstance(k, numbers.Integral) or isinstance(k, bool) or k < 1:
        raise InputError(f"Got k={k!r}: expected the length of the list, a whole number of at least 1.")
    rankings = Rankings(model, X, by=by, exclude=exclude, with_seen=with_seen, side=side, filtered=filtered)
    return returned_table(model, ranking_figures(rankings.ranks(), k), X)


def ranking_figures(ranks: list[Array], k: int) -> dict[str, Any]:
    """Return the columns of `evaluate_ranking`: means over the ranks of the relevant columns of each row."""
    if not ranks:
        raise InputError(
            "All relevant pairs were seen in training, and are left out: expected others, or with_seen=True."
        )
    figures = {
        f"precision@{k}": metrics.precision_at(ranks, k),
        f"recall@{k}": metrics.recall_at(ranks, k),
        f"hits@{k}": metrics.hits_at(ranks, k),
        f"nDCG@{k}": metrics.ndcg_at(ranks, k),
        f"average precision@{k}": metrics.average_precision_at(ranks, k),
        "MRR": metrics.reciprocal_rank(ranks),
    }
    rng, by_row = np.random.default_rng(0), np.column_stack(list(figures.values()))
    means = [by_row[rng.integers(0, len(ranks), len(ranks))].mean(axis=0) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    columns = {"metric": list(figures), "value": by_row.mean(axis=0), "low": low, "high": high}
    return columns | {"n": np.full(len(figures), len(ranks))}


class Rankings:
    """The queries that a table of relevant pairs asks a model: a row and a relation each, or a column and a relation.

    See `evaluate_ranking` for the parameters. The ranks of some queries do not depend on the others, so that processes
    may divide them.
    """

    def __init__(
        self,
        model: Any,
        X: Any,
        *,
        by: Any = "mean",
        exclude: Any = None,
        with_seen: bool = False,
        side: str = "col",
        filtered: bool = False,
    ) -> None:
        if side not in ("col", "row"):
            raise unknown_name("side", side, ("col", "row"))
        check_is_fitted(model)
        if model.record_.known.dyad_encoder is not None:
            raise InputError(
                "The model has features of dyads, which candidates have not: expected a model without them."
            )
        if isinstance(by, str) and by == "thompson" and by not in model.classes_:
            raise InputError("Got by='thompson': expected 'mean' or a label, since a random ranking cannot be judged.")
        self._model, self._worth, self._turned, self._filtered = model, model._worth(by), side == "row", filtered
        relevant, *pairs = _codes(model, [X] if exclude is None else [X, exclude])
        self._answers = _by_query(relevant, self._turned)
        if not self._answers:
            raise InputError("Got no relevant pairs: expected some. Pass a table of pairs that should rank high.")
        pairs += [] if with_seen else [_seen_codes(model.record_)]
        self._left_out = [_by_query(codes, self._turned, self._answers) for codes in pairs]

    def __len__(self) -> int:
        return len(self._answers)

    def ranks(self, first: int = 0, n: int | None = None) -> list[Array]:
        """Return the ranks of the answers to n queries, by default all: an array for each query.

        If filtered, an array for each answer. Queries whose answers are all left out have none.
        """
        queries = list(self._answers)[first : None if n is None else first + n]
        ranks = [each for each in self._of_each(queries) if len(each)]
        return [np.array([rank]) for each in ranks for rank in each] if self._filtered else ranks

    def _of_each(self, queries: list[tuple[int, int]]) -> Iterator[Array]:
        """Yield the ranks of the answers of each query."""
        record, engine = self._model.record_, self._model._engine
        n = len(record.known.rows if self._turned else record.known.cols)
        step = max(1, PAIRS_AT_ONCE // n)
        for start in range(0, len(queries), step):
            some = np.array(queries[start : start + step])
            asked, relation = np.maximum(np.repeat(some[:, 0], n), -1), np.repeat(some[:, 1], n)
            offered = np.tile(np.arange(n), len(some))
            codes = [offered, asked] if self._turned else [asked, offered]
            codes += [] if record.known.relations is None else [relation]
            scores = engine.scores(record.models, codes, record.known.pair_features(codes))
            values = (record.proba(scores) @ self._worth).reshape(len(some), n)
            for query, line in zip(queries[start : start + step], values, strict=True):
                offer = np.ones(n, np.bool_)
                for pairs in self._left_out:
                    without = pairs.get(query, np.zeros(0, np.intp))
                    offer[without[without >= 0]] = False
                if record.known.one_set and query[0] >= 0:
                    offer[query[0]] = False
                answers = self._answers[query]
                known = answers[answers >= 0]
                places = (np.cumsum(offer) - 1)[known[offer[known]]]
                ranks = metrics.ranks_of(line[offer], places, filtered=self._filtered)
                yield np.append(ranks, np.full(int((answers < 0).sum()), np.inf))


def _codes(model: Any, tables: list[Any]) -> list[list[Codes]]:
    """Codes of the ids of tables of pairs, by id column; each unknown id has one negative code in all tables."""
    vocabularies, coded = model.record_.known.vocabularies, []
    unknown: list[dict[Any, int]] = [{} for _ in vocabularies]
    for table in tables:
        columns = read_pairs(table, [vocabulary.name for vocabulary in vocabularies], model.columns_)
        if len(columns) != len(vocabularies):
            raise InputError(
                f"The table has {len(columns)} id columns: expected {len(vocabularies)}, with the relation."
            )
        row, col, *rest = map(_encoded, vocabularies, columns, unknown)
        if rest and (rest[0] < 0).any():
            raise InputError("The table has relations that the model does not know: expected those of its fit.")
        if model.unknown == "raise" and min(row.min(initial=0), col.min(initial=0)) < 0:
            raise UnknownIdError("The table has ids that the model does not know, and unknown='raise'. Leave them out.")
        coded.append(_both_orders(model.record_, [row, col, *rest]))
    return coded


def _both_orders(record: Record, codes: list[Codes]) -> list[Codes]:
    """Codes of pairs, in both orders if they are undirected."""
    row, col, *rest = codes
    if not is_undirected(type(record.parts.structure), record.known.one_set):
        return codes
    return [np.append(row, col), np.append(col, row), *(np.tile(part, 2) for part in rest)]


def _seen_codes(record: Record) -> list[Codes]:
    """Codes of the training pairs that the model keeps."""
    seen = record.known.seen
    if seen is None:
        raise InputError(
            "The model does not keep the pairs it was trained on, which are too many: expected with_seen=True, and "
            "pairs to leave out as exclude."
        )
    return _both_orders(record, [seen.row, seen.col, *([] if seen.relation is None else [seen.relation])])


def _encoded(vocabulary: Vocabulary, ids: pa.Array, unknown: dict[Any, int]) -> Codes:
    """Codes of ids; `unknown` holds the codes of those that the vocabulary has not, and gets new ones."""
    codes = vocabulary.encode(ids).copy()
    lines = np.flatnonzero(codes < 0)
    codes[lines] = [unknown.setdefault(name, -1 - len(unknown)) for name in ids.take(pa.array(lines)).to_pylist()]
    return codes


def _by_query(codes: list[Codes], turn: bool, asked: Queries | None = None) -> Queries:
    """The distinct answers to each query, a row (if turned, a column) and a relation; of those `asked`, if given."""
    row, col, *rest = codes
    if asked is not None:
        wanted = np.isin(col if turn else row, [query[0] for query in asked])
        row, col, *rest = (part[wanted] for part in codes)
    relation = rest[0] if rest else np.zeros(len(row), np.int64)
    lines = np.unique(np.column_stack([col, relation, row] if turn else [row, relation, col]), axis=0)
    changes = np.flatnonzero((np.diff(lines[:, :2], axis=0) != 0).any(axis=1)) + 1
    parts = np.split(lines, changes) if len(lines) else []
    return {(int(part[0, 0]), int(part[0, 1])): part[:, 2] for part in parts}
