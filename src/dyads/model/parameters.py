"""Parameters: named blocks <-> one flat vector."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dyads.model.structure import Shapes, Structure, free_labels

Array = np.ndarray[Any, Any]

INITIAL_SCALE = 0.3
"""Standard deviation of the initial latent weights: at zero the gradient of a product vanishes."""


class Blocks(NamedTuple):
    """Views of one flat vector: row (n_rows, row size), col (n_cols, col size), shared (n_relations, shared size).

    With one id set row and col are the same view.
    """

    row: Array
    col: Array
    shared: Array


@dataclass(frozen=True)
class Layout:
    """Where each named block of a structure's parameters lies in the flat vector theta.

    theta = [row blocks, one after the other | column blocks | shared block of each relation]; with one id set the first
    are the nodes' and there are no second. What is in a block is said by the structure. Names: ``row_bias``,
    ``col_bias`` (n, free labels) or ``node_bias``, ``label_bias`` (n_relations, free labels) and the latent parts.
    """

    structure: Structure
    n_rows: int
    n_cols: int
    n_relations: int = 1

    @property
    def shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """Name and shape the parts of a row's (or node's) block, a column's block and a shared block, in order."""
        n = free_labels(self.structure)
        row, col, shared = self.structure.latent_shapes()
        names = {0: (), 1: ("node_bias",), 2: ("row_bias", "col_bias")}[self.structure.n_bias]
        if self.structure.one_set:
            return {**dict.fromkeys(names, (n,)), **row}, {}, {"label_bias": (n,), **shared}
        bias = (n,) if self.structure.n_bias else (0,)
        return {"row_bias": bias, **row}, {"col_bias": bias, **col}, {"label_bias": (n,), **shared}

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of a row's block, a column's block and a shared block."""
        row, col, shared = (sum(math.prod(shape) for shape in part.values()) for part in self.shapes)
        return row, row if self.structure.one_set else col, shared

    @property
    def size(self) -> int:
        row, col, shared = self.sizes
        cols = 0 if self.structure.one_set else self.n_cols * col
        return self.n_rows * row + cols + self.n_relations * shared

    def blocks(self, theta: Array) -> Blocks:
        """View theta as its three blocks; writing to them writes to theta."""
        row, col, shared = self.sizes
        i, j = self.n_rows * row, self.size - self.n_relations * shared
        rows = theta[:i].reshape(self.n_rows, row)
        cols = rows if self.structure.one_set else theta[i:j].reshape(self.n_cols, col)
        return Blocks(rows, cols, theta[j:].reshape(self.n_relations, shared))

    def named(self, theta: Array) -> dict[str, Array]:
        """View theta as its named parts: (n_rows, ...), (n_cols, ...) and (n_relations, ...)."""
        parts: dict[str, Array] = {}
        for block, shapes in zip(self.blocks(theta), self.shapes, strict=True):
            i = 0
            for name, shape in shapes.items():
                size = math.prod(shape)
                parts[name] = block[..., i : i + size].reshape(*block.shape[:-1], *shape)
                i += size
        return parts

    def initial(self, rng: np.random.Generator, label_counts: Array, values: Array | None = None) -> Array:
        """Draw latent weights at random; biases start at zero, the label bias at the marginal log-odds."""
        theta = np.zeros(self.size)
        shared = self.structure.shared_start(self.n_relations, values)
        for name, part in self.named(theta).items():
            if name == "label_bias":
                part[:] = label_log_odds(self.structure, label_counts)
            elif name in shared:
                part[:] = shared[name]
            elif not name.endswith("bias"):
                part[:] = rng.normal(scale=INITIAL_SCALE, size=part.shape)
        return theta

    def centre(self, theta: Array, row_counts: Array, col_counts: Array) -> Array:
        """Move the weighted mean of the biases into the label bias, scores unchanged.

        With counts as weights, a row that was never seen, whose bias is zero, is then an average row.
        """
        centred = theta.copy()
        named = self.named(centred)
        for name, counts, roles in (
            ("row_bias", row_counts, 1),
            ("col_bias", col_counts, 1),
            ("node_bias", row_counts, 2),
        ):
            if name in named and named[name].size:
                mean = np.average(named[name], axis=0, weights=counts)
                named[name][:] -= mean
                named["label_bias"][:] += roles * mean
        if self.structure.base == self.structure.n_labels:
            named["label_bias"][:] -= named["label_bias"].mean(axis=1, keepdims=True)
        return centred


def label_log_odds(structure: Structure, label_counts: Array) -> Array:
    """The marginal log-odds of the free labels, against the base or centred when there is none."""
    log_counts = np.log(label_counts)
    if structure.base == structure.n_labels:
        odds: Array = log_counts - log_counts.mean()
        return odds
    odds = np.delete(log_counts, structure.base) - log_counts[structure.base]
    return odds


def random_stream(seed: int, *key: int) -> np.random.Generator:
    """An independent stream of random numbers for each key."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
