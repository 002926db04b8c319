"""Fitted: the frozen record of a trained model."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dyads.data.vocabulary import Vocabulary
from dyads.model.loss import Loss
from dyads.model.parameters import Layout
from dyads.model.structure import Structure

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
    row_counts, col_counts : summed weights of each row's and column's training dyads
    """

    structure: Structure
    loss: Loss
    classes: Array
    rows: Vocabulary
    cols: Vocabulary
    theta: Array
    row_counts: Array
    col_counts: Array

    @property
    def layout(self) -> Layout:
        return Layout(self.structure, len(self.rows), len(self.cols))

    @cached_property
    def average_blocks(self) -> tuple[Array, Array]:
        """The blocks of an average row and an average column, which stand for those never seen."""
        blocks = self.layout.blocks(self.theta)
        row = np.average(blocks.row, axis=0, weights=self.row_counts)
        col = np.average(blocks.col, axis=0, weights=self.col_counts)
        return row.astype(self.theta.dtype), col.astype(self.theta.dtype)

    def factors(self, name: str) -> Array:
        """The latent weights ``row_factors`` or ``col_factors`` (n, n_labels, rank); zeros for a pinned base."""
        free = self.layout.named(self.theta)[name]
        if self.structure.base == self.structure.n_labels:
            return free
        return np.insert(free, self.structure.base, 0, axis=1)

    def log_odds(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into log-odds against the base, or against the labels' geometric mean if none."""
        if self.structure.base < self.structure.n_labels:
            return scores
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))

    def start_for(self, layout: Layout, theta: Array, rows: Vocabulary, cols: Vocabulary) -> Array:
        """Overwrite the blocks of `theta` of the ids this model knows with what it learnt, for a warm start."""
        theta = theta.copy()
        new, old = layout.blocks(theta), self.layout.blocks(self.theta)
        for mine, theirs, known, wanted in (
            (old.row, new.row, self.rows, rows),
            (old.col, new.col, self.cols, cols),
        ):
            found = known.encode(wanted.ids)
            theirs[found >= 0] = mine[found[found >= 0]]
        new.shared[:] = old.shared
        return theta
