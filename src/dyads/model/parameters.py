"""The layout of parameters: named blocks <-> one flat vector."""

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Side
from dyads.model.structure import Shapes, Structure, free_labels, with_reference, without_reference

Array = np.ndarray[Any, Any]

INITIAL_SCALE = 0.3
"""Standard deviation of the initial latent weights.

Zero is a saddle point, where the gradient of a product vanishes; large weights start from saturated probabilities.
"""

UNSEEN_LABEL_COUNT = 0.5
"""Count of a label that has not occurred yet, in the marginal log-odds: with zero these would be infinite."""


class Role(IntEnum):
    """Which block is updated."""

    ROW = 0
    COL = 1
    NODE = 2
    """The block of a node of one id set: in the role of a row and of a column at once."""
    SHARED = 3
    """The block that all dyads of a relation share."""
    FEATURE = 4
    """The *change* of the weights of a dyad feature, one entry per free label."""

    @property
    def place(self) -> int:
        """The index in `Blocks` of the table of this role; FEATURE has none."""
        return (0, 1, 0, 2)[self]


class Blocks(NamedTuple):
    """The tables of blocks, as views of one flat vector. With one id set, row and col are the same view.

    Attributes
    ----------
    row : (n_rows, row size)
    col : (n_cols, col size)
    shared : (n_relations, shared size)
    """

    row: Array
    col: Array
    shared: Array


@dataclass(frozen=True)
class Layout:
    """The position of each named part of the parameters in the flat vector theta.

        theta = [row blocks | column blocks | shared block of each relation | side weights]

    With one id set, node blocks take the place of row blocks and there are no column blocks. The structure defines the
    content of a block. The parts are named ``row_bias`` and ``col_bias`` (n, free labels), or ``node_bias``;
    ``label_bias`` (n_relations, free labels); and the names of the latent parts.

    Side-information shifts blocks and scores. The *effective* block of a row is its own block plus its features times
    the side weights, and the scores of a dyad have an offset linear in the features of the dyad:

        a_r = own_r + x_r W_row,    b_c = own_c + x_c W_col,    s = x_rc W_dyad + score(a_r, b_c, h)

    Features have weights in the biases, which gives the linear term w_y . s(x) of section 3.2, and in the first
    `interactions` latent columns. There the features of a row are multiplied with the features and the own weights of
    a column, and vice versa. Side weights are named after their part: ``row_bias_side`` (n_row_features, free labels),
    and so on; those of dyad features are ``dyad_side``.

    Attributes
    ----------
    n_features : number of features of rows (or nodes), columns and dyads
    interactions : number of latent columns in which features have weights, at most the rank
    """

    structure: Structure
    n_rows: int
    n_cols: int
    n_relations: int = 1
    n_features: tuple[int, int, int] = (0, 0, 0)
    interactions: int = 0

    @cached_property
    def shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """The names and shapes of the parts of a row (or node) block, a column block and a shared block, in order."""
        n = free_labels(self.structure)
        row, col, shared = self.structure.latent_shapes()
        names = {0: (), 1: ("node_bias",), 2: ("row_bias", "col_bias")}[self.structure.n_bias]
        if self.structure.one_set:
            return {**dict.fromkeys(names, (n,)), **row}, {}, {"label_bias": (n,), **shared}
        bias = (n,) if self.structure.n_bias else (0,)
        return {"row_bias": bias, **row}, {"col_bias": bias, **col}, {"label_bias": (n,), **shared}

    @cached_property
    def side_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """The names and shapes of the weights of one feature of a row, a column and a dyad."""

        def cut(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
            return shape if name.endswith("bias") else (*shape[:-1], self.interactions)

        row, col = ({f"{name}_side": cut(name, shape) for name, shape in part.items()} for part in self.shapes[:2])
        return row, col, {"dyad_side": (free_labels(self.structure),)}

    @cached_property
    def side_columns(self) -> tuple[Array, Array]:
        """The entries of a row block and of a column block in which features have weights, ascending."""

        def columns(part: Shapes) -> Array:
            masks = [np.zeros(0, np.bool_)]
            for name, shape in part.items():
                mask = np.ones(shape, np.bool_)
                if not name.endswith("bias"):
                    mask[..., self.interactions :] = False
                masks.append(mask.ravel())
            return np.flatnonzero(np.concatenate(masks))

        return columns(self.shapes[0]), columns(self.shapes[1])

    @cached_property
    def bias_columns(self) -> tuple[Array, Array]:
        """The entries of a row block and of a column block that hold the bias in that role."""
        n, n_bias = free_labels(self.structure), self.structure.n_bias
        return np.arange(n if n_bias else 0), np.arange(n if n_bias else 0) + (n if n_bias == 2 else 0)

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of a row block, a column block and a shared block."""
        row, col, shared = map(_total, self.shapes)
        return row, row if self.structure.one_set else col, shared

    @property
    def own_size(self) -> int:
        """The size of theta without the side weights."""
        row, col, shared = self.sizes
        cols = 0 if self.structure.one_set else self.n_cols * col
        return self.n_rows * row + cols + self.n_relations * shared

    @property
    def size(self) -> int:
        """The size of theta."""
        widths = map(_total, self.side_shapes)
        return self.own_size + sum(n * width for n, width in zip(self.n_features, widths, strict=True))

    def blocks(self, theta: Array) -> Blocks:
        """View theta, without the side weights, as three tables of blocks; writing to them writes to theta."""
        row, col, shared = self.sizes
        i, k = self.n_rows * row, self.own_size
        j = k - self.n_relations * shared
        rows = theta[:i].reshape(self.n_rows, row)
        cols = rows if self.structure.one_set else theta[i:j].reshape(self.n_cols, col)
        return Blocks(rows, cols, theta[j:k].reshape(self.n_relations, shared))

    def side_weights(self, theta: Array) -> tuple[Array, Array, Array]:
        """View the side weights of rows, columns and dyads (n_features, width); writing to them writes to theta."""
        views, i = [], self.own_size
        for n, width in zip(self.n_features, map(_total, self.side_shapes), strict=True):
            views.append(theta[i : i + n * width].reshape(n, width))
            i += n * width
        row, col, dyad = views
        return row, col, dyad

    def named(self, theta: Array) -> dict[str, Array]:
        """View theta as named parts: (n_rows, ...), (n_cols, ...), (n_relations, ...), and (n_features, ...)."""
        parts: dict[str, Array] = {}
        side = [block for block in zip(self.side_weights(theta), self.side_shapes, strict=True) if len(block[0])]
        for block, shapes in [*zip(self.blocks(theta), self.shapes, strict=True), *side]:
            i = 0
            for name, shape in shapes.items():
                size = math.prod(shape)
                parts[name] = block[..., i : i + size].reshape(*block.shape[:-1], *shape)
                i += size
        return parts

    def effective(self, theta: Array, side: Side) -> Blocks:
        """Return the effective blocks, which kernels see: own blocks plus features times side weights."""
        own, weights = self.blocks(theta), self.side_weights(theta)
        row, col = (
            block if features is None else shifted(block, features @ weight, columns)
            for block, features, weight, columns in zip(own, side[:2], weights, self.side_columns, strict=False)
        )
        return Blocks(row, row if self.structure.one_set else col, own.shared)

    def pull_side(self, pulled: Blocks, g: Array, side: Side, gradient: Array) -> None:
        """ADD the gradient of the side weights to `gradient`, given the gradients of effective blocks and of scores.

            d / d W_row = X_row^T (d / d a),    d / d W_dyad = X_dyad^T g

        `pulled` : gradients of the effective blocks. `g` : (n, n_labels) score gradients, read only if dyads have
        features.
        """
        out = self.side_weights(gradient)
        for features, block, columns, weights in zip(side[:2], pulled, self.side_columns, out, strict=False):
            if features is not None:
                weights += features.T @ block[:, columns]
        if side.dyad is not None:
            out[2][:] += side.dyad.T @ without_reference(self.structure, g)

    def first_scores(self, theta: Array, side: Side) -> Array | None:
        """Return the score offsets (n, n_labels) due to dyad features, or None if dyads have no features."""
        if side.dyad is None:
            return None
        return np.ascontiguousarray(with_reference(self.structure, side.dyad @ self.side_weights(theta)[2]))

    def free(self, rank: int, bias: bool) -> Array:
        """Return the mask (size,) of free parameters.

        Fixed are the own latent columns of entities from `rank` on and, unless `bias`, their own biases.
        """
        free = np.ones(self.size, np.bool_)
        for name, part in self.named(free).items():
            if name in (*self.shapes[0], *self.shapes[1]):
                if name.endswith("bias"):
                    part[:] = bias
                else:
                    part[..., rank:] = False
        return free

    def initial(self, rng: np.random.Generator, label_counts: Array, values: Array | None = None) -> Array:
        """Return initial parameters (size,): random latent weights, zero biases, label bias at the marginal log-odds.

        `label_counts` : (n_labels,). `values` : (n_labels,) numeric values of ordered labels, or None.
        """
        theta = np.zeros(self.size)
        # Each part has its own stream: more rows change the start neither of the columns nor of the first rows.
        streams = rng.spawn(len(self.named(theta)))
        shared = self.structure.shared_start(self.n_relations, values)
        for (name, part), stream in zip(self.named(theta).items(), streams, strict=True):
            if name == "label_bias":
                part[:] = label_log_odds(self.structure, label_counts)
            elif name in shared:
                part[:] = shared[name]
            elif not name.endswith(("bias", "bias_side", "dyad_side")):
                part[:] = stream.normal(scale=INITIAL_SCALE, size=part.shape)
        return theta

    def centre(self, theta: Array, row_counts: Array, col_counts: Array) -> Array:
        """Return theta with the weighted mean of the biases moved into the label bias; scores do not change.

        The weights are the counts, so a row without labels, whose bias is zero, is then an average row.
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
        if self.structure.reference == self.structure.n_labels and self.n_relations == 1:
            # With several relations the label biases are penalised, and centring them would change the penalty.
            named["label_bias"][:] -= named["label_bias"].mean(axis=1, keepdims=True)
        return centred


def shifted(block: Array, shift: Array, columns: Array) -> Array:
    """Return a copy of `block` with `shift` added to some of its columns."""
    out = block.copy()
    out[:, columns] += shift
    return out


def _total(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def label_log_odds(structure: Structure, label_counts: Array) -> Array:
    """Return the marginal log-odds (free labels,): relative to the reference, or centred if there is none."""
    log_counts = np.log(np.maximum(label_counts, UNSEEN_LABEL_COUNT * (label_counts == 0)))
    if structure.reference == structure.n_labels:
        odds: Array = log_counts - log_counts.mean()
        return odds
    odds = np.delete(log_counts, structure.reference) - log_counts[structure.reference]
    return odds
