"""Fitted: the frozen record of a trained model."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dyads.data.vocabulary import Vocabulary
from dyads.model.loss import Loss
from dyads.model.parameters import Layout
from dyads.model.structure import Structure, free_labels

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fitted:
    """Everything a prediction needs.

    Attributes
    ----------
    structure, loss : the parts the model is made of
    classes : (n_labels,) the labels, sorted
    rows, cols : the ids seen in training
    theta : (size,) the parameters, laid out as `layout` says
    row_counts, col_counts : summed weights of each row's and column's training dyads; of both roles with one id set
    relations : the relations seen in training, or None when there is one
    """

    structure: Structure
    loss: Loss
    classes: Array
    rows: Vocabulary
    cols: Vocabulary
    theta: Array
    row_counts: Array
    col_counts: Array
    relations: Vocabulary | None = None

    @property
    def layout(self) -> Layout:
        n_relations = 1 if self.relations is None else len(self.relations)
        return Layout(self.structure, len(self.rows), len(self.cols), n_relations)

    @property
    def _latent_start(self) -> int:
        """Where a block's latent part begins, after its biases."""
        return self.structure.n_bias * free_labels(self.structure)

    @cached_property
    def average_blocks(self) -> tuple[Array, Array]:
        """The blocks of an average row and an average column, which stand for those never seen."""
        blocks = self.layout.blocks(self.theta)
        row = np.average(blocks.row, axis=0, weights=self.row_counts)
        col = np.average(blocks.col, axis=0, weights=self.col_counts)
        return row.astype(self.theta.dtype), col.astype(self.theta.dtype)

    def factors(self, name: str) -> Array:
        """A part of the latent weights; (n, n_labels, rank) where labels have their own, zeros for the base."""
        part = self.layout.named(self.theta)[name]
        own = not self.structure.latent_shapes()[2]
        if own and self.structure.base < self.structure.n_labels:
            return np.insert(part, self.structure.base, 0, axis=1)
        return part

    def embed(self, codes: Array, side: str) -> Array:
        """All latent weights of rows or columns (or nodes), one vector each (n, size)."""
        blocks = self.layout.blocks(self.theta)
        block = blocks.row if side == "row" else blocks.col
        return block[codes, self._latent_start :]

    def latent_size(self) -> float:
        """Root mean square of all latent weights of rows and columns."""
        start, blocks = self._latent_start, self.layout.blocks(self.theta)
        latent = [np.mean(block[:, start:].astype(np.float64) ** 2) for block in (blocks.row, blocks.col)]
        return float(np.sqrt(np.mean(latent)))

    def relation_similarity(self) -> Array:
        """Correlation about zero of the weights of each two relations (n_relations, n_relations): x . y / |x| |y|.

        About zero, not about the mean: the penalty levels the sizes of the weights, and their signs can all be turned
        positive for one relation by turning those of the factors, so that a mean has no meaning.
        """
        shared = self.layout.blocks(self.theta).shared[:, free_labels(self.structure) :].astype(np.float64)
        length = np.linalg.norm(shared, axis=1, keepdims=True)
        unit = shared / np.where(length > 0, length, 1)
        return np.asarray(unit @ unit.T)

    def log_odds(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into log-odds against the base, or against the labels' geometric mean if none."""
        if self.structure.base < self.structure.n_labels:
            return scores
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))

    def start_for(
        self, layout: Layout, theta: Array, rows: Vocabulary, cols: Vocabulary, relations: Vocabulary | None
    ) -> Array:
        """Overwrite the blocks of `theta` of the ids this model knows with what it learnt, for a warm start."""
        theta = theta.copy()
        new, old = layout.blocks(theta), self.layout.blocks(self.theta)
        for mine, theirs, known, wanted in (
            (old.row, new.row, self.rows, rows),
            (old.col, new.col, self.cols, cols),
        ):
            found = known.encode(wanted.ids)
            theirs[found >= 0] = mine[found[found >= 0]]
        if self.relations is None or relations is None:
            new.shared[:] = old.shared
            return theta
        found = self.relations.encode(relations.ids)
        new.shared[found >= 0] = old.shared[found[found >= 0]]
        return theta
