"""From graphs to labelled pairs, with all non-links or a weighted sample of them."""

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dyads.data.codes import Vocabulary, to_numpy
from dyads.data.tables import named_values, read_column
from dyads.errors import DtypeError, InputError, unknown_name
from dyads.settings import generator_of

Array = np.ndarray[Any, Any]

MOST_PAIRS = 50_000_000
"""Largest number of pairs to enumerate: a higher limit admits larger graphs, but takes more memory."""


class Pairs(NamedTuple):
    """Labelled pairs, ready for ``LFLLink().fit(pairs.X, pairs.y, population_weight=pairs.weight)``.

    Attributes
    ----------
    X : dict of (n,) columns of ids: "source" and "target", or those of the table of positives
    y : (n,) labels: 1 for a link and 0 for a non-link, or the entries of a dense matrix
    weight : (n,) 1, or for a sampled non-link the number of non-links it stands for
    """

    X: dict[str, Array]
    y: Array
    weight: Array


def pairs_from_graph(
    G: Any, *, directed: bool, negatives: str = "all", rate: float = 5.0, random_state: int | None = None
) -> Pairs:
    """Turn a graph into labelled pairs of its nodes.

    Parameters
    ----------
    G : networkx graph, SciPy sparse matrix, square NumPy array, or table of two id columns (an edge list)
        The entries of a square NumPy array are labels, NaN if unknown; all its known cells are pairs. In the other
        graphs, every pair of nodes that is not a link is a non-link. An array of two columns is an edge list, unless it
        is 2 x 2.
    directed : whether (i, j) and (j, i) are different pairs
        If True, each edge of an undirected networkx graph gives both. If False, an edge in either direction is a link.
    negatives : "all" non-links, or a random "sample" of them for graphs too large to enumerate
        Each sampled non-link has the weight n_non_links / n_sampled: pass them to `fit` as `population_weight`.
    rate : sampled non-links per link
    random_state : seed of the sample
    """
    _check_sampling(negatives, rate)
    if isinstance(G, np.ndarray) and G.ndim == 2 and (G.shape[1] != 2 or G.shape == (2, 2)):
        if negatives != "all":
            raise InputError(
                "Got a dense matrix with negatives='sample': expected negatives='all', since its cells hold all labels."
            )
        return _of_cells(G, directed)
    nodes, source, target = _edges(G)
    if directed and hasattr(G, "is_directed") and not G.is_directed():
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    universe = _Universe(len(nodes), len(nodes), not directed, bool((source == target).any()))
    cells, y, weight = universe.labelled(source, target, negatives, rate, generator_of(random_state))
    row, col = np.divmod(cells, len(nodes))
    return Pairs({"source": nodes[row], "target": nodes[col]}, y, weight)


def pairs_from_positives(
    X: Any,
    *,
    negatives: str = "sample",
    rate: float = 5.0,
    rows: Any = None,
    cols: Any = None,
    one_set: bool = False,
    directed: bool = True,
    exclude: Any = None,
    random_state: int | None = None,
) -> Pairs:
    """Turn a table of positives, such as clicks, purchases or triples, into labelled pairs: 1 for them, 0 for others.

    Parameters
    ----------
    X : table of a column of row ids, one of column ids and, if there are several, one of relations
        Any pair of a row and a column that is not in it is a non-link; with relations, in each of them.
    negatives : "all" non-links, or a random "sample" of them; see `pairs_from_graph`
    rate : sampled non-links per link
    rows, cols : further row ids and column ids, such as a catalogue, default none beside those of the table
    one_set : whether rows and columns are one set of nodes; then a node is linked to itself only if some are
    directed : whether (i, j) and (j, i) are different pairs, for one set of nodes
    exclude : table of further pairs, default None
        Pairs that are neither links nor non-links, such as those that are held out.
    random_state : seed of the sample
    """
    _check_sampling(negatives, rate)
    values = named_values(X)
    if len(values) not in (2, 3):
        raise InputError(
            f"The table has the columns {list(values)}: expected row ids, column ids and, if any, relations."
        )
    columns = [read_column(column, f"column {name!r}") for name, column in values.items()]
    if not len(columns[0]):
        raise InputError("The table of positives is empty: expected at least one pair.")
    ids = [
        column if further is None else _joined(column, read_column(further, "further ids"))
        for column, further in zip(columns, (rows, cols), strict=False)
    ]
    if one_set:
        vocabularies = [Vocabulary.of(_joined(*ids), "node")[0]] * 2
    else:
        vocabularies = [Vocabulary.of(column, "id")[0] for column in ids]
    row, col = (each.encode(column).astype(np.int64) for each, column in zip(vocabularies, columns, strict=False))
    relations, relation = Vocabulary.of(columns[2], "relation") if len(columns) > 2 else (None, np.zeros(len(row), int))
    left_out = _encoded(exclude, [*vocabularies, *([] if relations is None else [relations])])
    n_rows, n_cols = map(len, vocabularies)
    universe = _Universe(n_rows, n_cols, one_set and not directed, not one_set or bool((row == col).any()))
    rng, parts = generator_of(random_state), []
    for t in range(int(relation.max(initial=-1)) + 1):
        of_t = relation == t
        without = left_out[0][left_out[1] == t]
        cells, y, weight = universe.labelled(row[of_t], col[of_t], negatives, rate, rng, without)
        parts.append((cells, np.full(len(cells), t), y, weight))
    cells, of_relation, y, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    codes = [*np.divmod(cells, n_cols), of_relation]
    known = [*vocabularies, *([] if relations is None else [relations])]
    named = {name: to_numpy(each.ids)[code] for name, each, code in zip(values, known, codes, strict=False)}
    return Pairs(named, y, weight)


def _joined(first: pa.Array, second: pa.Array) -> pa.Array:
    """The ids of two columns, which must be of one type."""
    if first.type != second.type and len(first) and len(second):
        raise DtypeError(
            f"The ids are of the types {first.type} and {second.type}: expected ids of the same type. Convert one of "
            "the columns."
        )
    return pa.concat_arrays([column for column in (first, second) if len(column)] or [first])


def _encoded(exclude: Any, vocabularies: Sequence[Vocabulary]) -> tuple[Array, Array]:
    """Cells and relations of excluded pairs whose ids are known."""
    if exclude is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    values = list(named_values(exclude).values())
    if len(values) != len(vocabularies):
        raise InputError(f"exclude has {len(values)} columns: expected {len(vocabularies)}, as the table of positives.")
    columns = [read_column(column, "exclude") for column in values]
    codes = [ids.encode(column).astype(np.int64) for ids, column in zip(vocabularies, columns, strict=True)]
    known = np.all([code >= 0 for code in codes], axis=0)
    row, col, relation = (*(code[known] for code in codes), np.zeros(int(known.sum()), np.int64))[:3]
    return row * len(vocabularies[1]) + col, relation


def _check_sampling(negatives: str, rate: float) -> None:
    if negatives not in ("all", "sample"):
        raise unknown_name("negatives", negatives, ("all", "sample"))
    if not isinstance(rate, numbers.Real) or not 0 < rate < np.inf:
        raise InputError(f"Got rate={rate!r}: expected a positive, finite number of non-links per link.")


class _Universe(NamedTuple):
    """All pairs that could be links. A pair is a cell, row * n_cols + col.

    `undirected` : whether (i, j) and (j, i) are one pair. `loops` : whether (i, i) is a pair.
    """

    n_rows: int
    n_cols: int
    undirected: bool
    loops: bool

    def labelled(
        self, row: Array, col: Array, negatives: str, rate: float, rng: np.random.Generator, without: Any = ()
    ) -> tuple[Array, Array, Array]:
        """Cells of links and of non-links, their labels and weights; `without` : cells that are neither."""
        if self.undirected:
            row, col = np.minimum(row, col), np.maximum(row, col)
        links = np.unique(row * self.n_cols + col)
        left, right = np.divmod(np.asarray(without, np.int64), self.n_cols)
        if self.undirected:
            left, right = np.minimum(left, right), np.maximum(left, right)
        others = np.setdiff1d(left * self.n_cols + right, links)
        taken = np.union1d(links, others[self._fits(others)])
        n_pairs = self.n_rows * self.n_cols
        if self.undirected:
            n_pairs = self.n_rows * (self.n_rows + 1) // 2
        n_free = n_pairs - (0 if self.loops else self.n_rows) - len(taken)
        if negatives == "all" and n_pairs > MOST_PAIRS:
            raise InputError(f"There are {n_pairs:,} pairs: expected at most {MOST_PAIRS:,}. Use negatives='sample'.")
        n_sampled = n_free if negatives == "all" else min(max(1, round(rate * len(links))), n_free)
        if not len(links) or n_sampled < 1:
            raise InputError(f"There are {len(links)} links and {n_free} other pairs: expected at least one of each.")
        if n_pairs <= MOST_PAIRS and 2 * n_sampled > n_free:
            every = np.arange(self.n_rows * self.n_cols)
            free = np.setdiff1d(every[self._fits(every)], taken, assume_unique=True)
            sample = free if n_sampled == n_free else rng.choice(free, n_sampled, replace=False)
        else:
            sample = self._sampled(taken, n_sampled, rng)
        y = np.repeat([1, 0], [len(links), len(sample)])
        return np.concatenate([links, sample]), y, np.where(y == 1, 1.0, n_free / len(sample))

    def _fits(self, cells: Array) -> Array:
        """Whether cells are pairs, given once (n,)."""
        row, col = np.divmod(cells, self.n_cols)
        fits = (row <= col) if self.undirected else np.ones(len(cells), np.bool_)
        return np.asarray(fits if self.loops else fits & (row != col))

    def _sampled(self, taken: Array, n_sampled: int, rng: np.random.Generator) -> Array:
        """Sample distinct cells that are not taken, by rejection."""
        sample = np.empty(0, np.int64)
        while len(sample) < n_sampled:
            drawn = rng.integers(0, self.n_rows * self.n_cols, 2 * (n_sampled - len(sample)) + 16)
            drawn = drawn[self._fits(drawn)]
            sample = np.unique(np.concatenate([sample, drawn[~np.isin(drawn, taken)]]))
        return rng.permutation(sample)[:n_sampled]


def _of_cells(matrix: Array, directed: bool) -> Pairs:
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"The matrix has shape {matrix.shape}: expected a square matrix, with one row and one column per node."
        )
    try:
        known = ~np.isnan(matrix.astype(np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The matrix holds values that are not numbers ({error}): expected numbers as labels, and NaN if unknown."
        ) from error
    if not directed:
        clash = known & known.T & (matrix != matrix.T)
        if clash.any():
            i, j = np.argwhere(clash)[0]
            raise InputError(
                f"The entries ({i}, {j}) and ({j}, {i}) differ: expected a symmetric matrix, or directed=True."
            )
        known = np.triu(known) | np.tril(known & ~known.T, -1)
    row, col = np.nonzero(known)
    y = matrix[row, col]
    y = y.astype(int) if (y % 1 == 0).all() else y
    return Pairs({"source": row, "target": col}, y, np.ones(len(row)))


def _edges(G: Any) -> tuple[Array, Array, Array]:
    """The nodes (n,), and the codes of the source and the target of each edge (n_edges,)."""
    if hasattr(G, "tocoo"):
        matrix = G.tocoo()
        if matrix.shape[0] != matrix.shape[1]:
            raise InputError(f"The matrix has shape {matrix.shape}: expected a square matrix.")
        if np.isnan(matrix.data.astype(np.float64)).any():
            raise InputError("The sparse matrix holds NaN: expected links only. Use a dense matrix for unknown cells.")
        links = matrix.data != 0
        source, target = (np.asarray(index, dtype=np.int64)[links] for index in matrix.coords)
        return np.arange(matrix.shape[0]), source, target
    if hasattr(G, "nodes") and hasattr(G, "edges"):
        column = read_column(list(G.nodes), "the nodes")
        edges = [list(end) for end in zip(*((edge[0], edge[1]) for edge in G.edges), strict=True)] or [[], []]
    else:
        values = named_values(G)
        if len(values) != 2:
            raise InputError(
                f"The edge list has the columns {list(values)}: expected two, the source and "
                "the target. Pass an adjacency matrix as a NumPy array."
            )
        edges = list(values.values())
        column = None
    ends = [read_column(end, "the column of nodes") for end in edges]
    if column is None:
        column = _joined(*ends)
    nodes, _ = Vocabulary.of(column, "node")
    source, target = (nodes.encode(end).astype(np.int64) for end in ends)
    return to_numpy(nodes.ids), source, target
