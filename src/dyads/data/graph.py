"""From graphs to labelled pairs, with all non-links or a weighted sample of them."""

import numbers
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
    """Labelled pairs of nodes, ready for ``LFLLink().fit(pairs.X, pairs.y, pairs.weight)``.

    Attributes
    ----------
    X : dict of two (n,) columns of node ids, "source" and "target"
    y : (n,) labels: 1 for a link and 0 for a non-link, or the entries of a dense matrix
    weight : (n,) 1, or for a sampled non-link the number of non-links it represents
    """

    X: dict[str, Array]
    y: Array
    weight: Array


def pairs_from_graph(
    G: Any, *, directed: bool, negatives: str = "all", rate: float = 1.0, random_state: int | None = None
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
        Each sampled non-link has the weight n_non_links / n_sampled, so that the sample represents all non-links. The
        weighted mean probability of a link is then right on the sample. For other pairs it is several times too high
        where these weights are large, since they outweigh the penalty: use it to rank, or calibrate on held-out pairs.
    rate : sampled non-links per link
    random_state : seed of the sample
    """
    if negatives not in ("all", "sample"):
        raise unknown_name("negatives", negatives, ("all", "sample"))
    if not isinstance(rate, numbers.Real) or not 0 < rate < np.inf:
        raise InputError(f"Got rate={rate!r}: expected a positive, finite number of non-links per link.")
    if isinstance(G, np.ndarray) and G.ndim == 2 and (G.shape[1] != 2 or G.shape == (2, 2)):
        if negatives != "all":
            raise InputError(
                "Got a dense matrix with negatives='sample': expected negatives='all', since its cells hold all labels."
            )
        return _of_cells(G, directed)
    nodes, source, target = _edges(G)
    if directed and hasattr(G, "is_directed") and not G.is_directed():
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    n = len(nodes)
    loops = bool((source == target).any())
    if not directed:
        source, target = np.minimum(source, target), np.maximum(source, target)
    links = np.unique(source * n + target)
    n_pairs = (n * n if directed else n * (n + 1) // 2) - (0 if loops else n)
    if negatives == "sample":
        n_sampled = min(max(1, round(rate * len(links))), n_pairs - len(links))
        if n_pairs <= MOST_PAIRS and 2 * n_sampled > n_pairs - len(links):
            rng = generator_of(random_state)
            others = rng.choice(_non_links(links, n, directed, loops), n_sampled, replace=False)
        else:
            others = _sample(links, n, directed, loops, n_sampled, random_state)
    elif n_pairs > MOST_PAIRS:
        raise InputError(f"The graph has {n_pairs:,} pairs: expected at most {MOST_PAIRS:,}. Use negatives='sample'.")
    else:
        others = _non_links(links, n, directed, loops)
    if not len(links) or not len(others):
        raise InputError(
            f"The graph has {len(links)} links and {len(others)} other pairs: expected at least one of each."
        )
    row, col = np.divmod(np.concatenate([links, others]), n)
    weight = np.ones(len(row))
    weight[len(links) :] = (n_pairs - len(links)) / len(others)
    y = (np.arange(len(row)) < len(links)).astype(int)
    return Pairs({"source": nodes[row], "target": nodes[col]}, y, weight)


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
        if ends[0].type != ends[1].type and all(map(len, ends)):
            raise DtypeError(
                f"The columns of the edge list hold {ends[0].type} and {ends[1].type}: expected nodes of the same "
                "type. Convert one of them."
            )
        column = pa.concat_arrays(ends)
    nodes, _ = Vocabulary.of(column, "node")
    source, target = (nodes.encode(end).astype(np.int64) for end in ends)
    return to_numpy(nodes.ids), source, target


def _non_links(links: Array, n: int, directed: bool, loops: bool) -> Array:
    every = np.arange(n * n)
    row, col = np.divmod(every, n)
    fits = (row != col) | loops if directed else (row < col) | (loops & (row == col))
    return np.setdiff1d(every[fits], links, assume_unique=True)


def _sample(links: Array, n: int, directed: bool, loops: bool, n_sampled: int, random_state: int | None) -> Array:
    """Sample distinct non-links by rejection."""
    rng = generator_of(random_state)
    sample = np.empty(0, dtype=np.int64)
    while len(sample) < n_sampled:
        row, col = rng.integers(0, n, (2, 2 * (n_sampled - len(sample)) + 16))
        if not directed:
            row, col = np.minimum(row, col), np.maximum(row, col)
            # Pairs of two nodes are drawn in both orders, self-links in one: reject half of the pairs of two nodes.
            keep = (row == col) | (rng.random(len(row)) < 0.5)
            row, col = row[keep], col[keep]
        drawn = row * n + col
        drawn = drawn[(row != col) | loops]
        drawn = drawn[~np.isin(drawn, links)]
        sample = np.unique(np.concatenate([sample, drawn]))
    return rng.permutation(sample)[:n_sampled]
