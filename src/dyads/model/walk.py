"""The random walk with restart on the graph of training links, and the nodes' links, as features of pairs."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dyads.data.codes import Codes

Array = np.ndarray[Any, Any]

NODES_AT_ONCE = 256
"""Nodes that walks start from at a time: more take more memory, and fewer more time."""

PRECISION = 1e-6
"""Share of a walk's visits after which it is cut off."""


WALK_FEATURES = ("random walk", "links of both")
"""Names of the features of pairs."""


class Walk(NamedTuple):
    """A random walk, and how its features of pairs are standardised.

    Attributes
    ----------
    reach : probability to go on to a random neighbour, instead of back to the start
    centre, scale : means of the features over training non-links, and their standard deviations
    """

    reach: float
    centre: tuple[float, float] = (0.0, 0.0)
    scale: tuple[float, float] = (1.0, 1.0)

    def features(self, graph: Any, row: Codes, col: Codes) -> Array:
        """Return the features (n, 2) of pairs of nodes, standardised; zero for unknown nodes.

            log(v_ij + v_ji + 1 / n^2)    and    log(1 + d_i) + log(1 + d_j)

        v_ij is the share of visits to j of walks that start at i, d_i the number of links of i. `graph` : sparse
        (n, n), symmetric, 1 for a link. The constant keeps nodes without a path from ruling the scale: it is far below
        the uniform share 1 / n.
        """
        n = graph.shape[0]
        known = (row >= 0) & (col >= 0) & (row < n) & (col < n)
        i, j = row[known], col[known]
        size = np.log1p(np.asarray(graph.sum(axis=1)).ravel())
        values = np.stack([np.log(self._scores(graph, i, j) + 1 / n**2), size[i] + size[j]], axis=1)
        features = np.zeros((len(row), len(WALK_FEATURES)))
        features[known] = (values - self.centre) / self.scale
        return features

    def _scores(self, graph: Any, row: Codes, col: Codes) -> Array:
        """Return v_ij + v_ji (n,) of pairs of nodes.

        Walks that start at i visit j as v_i = (1 - reach) sum_k reach^k e_i P^k, with P = D^-1 G and the degrees D.
        They are reversible, D_i v_ij = D_j v_ji, so that those of the rows are enough.
        """
        degree = np.maximum(np.asarray(graph.sum(axis=1)).ravel(), 1)
        # Both orders of a pair start at the same node, so that they get the same score.
        row, col = np.minimum(row, col), np.maximum(row, col)
        step = sparse.csr_array(graph.T * (self.reach / degree))
        n_steps = math.ceil(math.log(PRECISION) / math.log(self.reach))
        scores = np.empty(len(row))
        starts, place = np.unique(row, return_inverse=True)
        for first in range(0, len(starts), NODES_AT_ONCE):
            some = starts[first : first + NODES_AT_ONCE]
            now = np.zeros((graph.shape[0], len(some)))
            now[some, np.arange(len(some))] = 1 - self.reach
            visits = now
            for _ in range(n_steps):
                now = step @ now
                visits = visits + now
            of_some = np.flatnonzero((place >= first) & (place < first + len(some)))
            i, j = row[of_some], col[of_some]
            scores[of_some] = visits[j, place[of_some] - first] * (1 + degree[i] / degree[j])
        return scores
