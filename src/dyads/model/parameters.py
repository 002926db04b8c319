"""Parameters: named blocks <-> one flat vector."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Side
from dyads.model.structure import Shapes, Structure, free_labels, with_reference, without_reference

Array = np.ndarray[Any, Any]

INITIAL_SCALE = 0.3
"""Standard deviation of the initial latent weights: at zero the gradient of a product vanishes."""


class Role(IntEnum):
    """Whose block it is."""

    ROW = 0
    COL = 1
    NODE = 2
    """With one id set: the block of a row and of a column at once."""
    SHARED = 3
    """The block all dyads of a relation share."""
    FEATURE = 4
    """The *change* of the weights of a feature of dyads, one entry per free label."""

    @property
    def place(self) -> int:
        """Which of `Blocks` holds those of this role."""
        return (0, 1, 0, 2)[self]


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

        theta = [row blocks, one after the other | column blocks | shared block of each relation | side weights]

    With one id set the first are the nodes' and there are no second. What is in a block is said by the structure.
    Names: ``row_bias``, ``col_bias`` (n, free labels) or ``node_bias``, ``label_bias`` (n_relations, free labels) and
    the latent parts.

    Side-information shifts blocks: the *effective* block of a row is its own plus its features times side weights, and
    the scores of a dyad begin at its features times weights of theirs,

        a_r = own_r + x_r W_row,    b_c = own_c + x_c W_col,    s = x_rc W_dyad + score(a_r, b_c, h).

    Features have weights in the biases, which is the linear term w_y . s(x) of section 3.2, and in the first
    `interactions` latent columns, where features of a row meet those of a column, and its own weights, in products.
    The weights of a part are called after it: ``row_bias_side`` (n_row_features, free labels), ...; and ``dyad_side``.

    Attributes
    ----------
    n_features : how many features rows, columns and dyads have
    interactions : latent columns in which features have weights, at most the rank
    """

    structure: Structure
    n_rows: int
    n_cols: int
    n_relations: int = 1
    n_features: tuple[int, int, int] = (0, 0, 0)
    interactions: int = 0

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
    def side_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """Name and shape the weights of one feature of a row, a column and a dyad."""

        def cut(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
            return shape if name.endswith("bias") else (*shape[:-1], self.interactions)

        row, col = ({f"{name}_side": cut(name, shape) for name, shape in part.items()} for part in self.shapes[:2])
        return row, col, {"dyad_side": (free_labels(self.structure),)}

    @property
    def side_columns(self) -> tuple[Array, Array]:
        """The columns of a row's and a column's block in which features have weights, in order."""

        def columns(part: Shapes) -> Array:
            masks = [np.zeros(0, np.bool_)]
            for name, shape in part.items():
                mask = np.ones(shape, np.bool_)
                if not name.endswith("bias"):
                    mask[..., self.interactions :] = False
                masks.append(mask.ravel())
            return np.flatnonzero(np.concatenate(masks))

        return columns(self.shapes[0]), columns(self.shapes[1])

    @property
    def bias_columns(self) -> tuple[Array, Array]:
        """The columns of a row's and a column's block that hold its bias in that role."""
        n, n_bias = free_labels(self.structure), self.structure.n_bias
        return np.arange(n if n_bias else 0), np.arange(n if n_bias else 0) + (n if n_bias == 2 else 0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The sizes of a row's block, a column's block and a shared block."""
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
        widths = map(_total, self.side_shapes)
        return self.own_size + sum(n * width for n, width in zip(self.n_features, widths, strict=True))

    def blocks(self, theta: Array) -> Blocks:
        """View theta as its three own blocks; writing to them writes to theta."""
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
        """View theta as its named parts: (n_rows, ...), (n_cols, ...), (n_relations, ...) and side weights."""
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
        """The blocks the kernels see: each entity's own plus its features times the side weights."""
        own, weights = self.blocks(theta), self.side_weights(theta)
        row, col = (
            block if features is None else shifted(block, features @ weight, columns)
            for block, features, weight, columns in zip(own, side[:2], weights, self.side_columns, strict=False)
        )
        return Blocks(row, row if self.structure.one_set else col, own.shared)

    def pull_side(self, pulled: Blocks, g: Array, side: Side, gradient: Array) -> None:
        """Add the gradient of the side weights, given that of the effective blocks and of the scores.

            d / d W_row = X_row^T (d / d a),    d / d W_dyad = X_dyad^T g

        `g` : (n, n_labels) score gradients of the dyads; used if these have features.
        """
        out = self.side_weights(gradient)
        for features, block, columns, weights in zip(side[:2], pulled, self.side_columns, out, strict=False):
            if features is not None:
                weights += features.T @ block[:, columns]
        if side.dyad is not None:
            out[2][:] += side.dyad.T @ without_reference(self.structure, g)

    def first_scores(self, theta: Array, side: Side) -> Array | None:
        """What the scores of dyads begin at (n, n_labels), or None for zero."""
        if side.dyad is None:
            return None
        return np.ascontiguousarray(with_reference(self.structure, side.dyad @ self.side_weights(theta)[2]))

    def free(self, rank: int, bias: bool) -> Array:
        """What may move (size,): all but latent columns from `rank` on, and biases unless `bias`, of entities' own."""
        free = np.ones(self.size, np.bool_)
        for name, part in self.named(free).items():
            if name in (*self.shapes[0], *self.shapes[1]):
                if name.endswith("bias"):
                    part[:] = bias
                else:
                    part[..., rank:] = False
        return free

    def initial(self, rng: np.random.Generator, label_counts: Array, values: Array | None = None) -> Array:
        """Draw latent weights at random; biases start at zero, the label bias at the marginal log-odds."""
        theta = np.zeros(self.size)
        # A stream for each part, so that more rows leave the columns' start, and that of the first rows, as they are.
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
        if self.structure.reference == self.structure.n_labels and self.n_relations == 1:
            # Those of several relations are penalised, and this would change that.
            named["label_bias"][:] -= named["label_bias"].mean(axis=1, keepdims=True)
        return centred


def shifted(block: Array, shift: Array, columns: Array) -> Array:
    """A copy of `block` with `shift` added to some of its columns."""
    out = block.copy()
    out[:, columns] += shift
    return out


def _total(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def label_log_odds(structure: Structure, label_counts: Array) -> Array:
    """The marginal log-odds of the free labels, against the reference or centred when there is none.

    A label that has not occurred yet counts half.
    """
    log_counts = np.log(np.maximum(label_counts, 0.5 * (label_counts == 0)))
    if structure.reference == structure.n_labels:
        odds: Array = log_counts - log_counts.mean()
        return odds
    odds = np.delete(log_counts, structure.reference) - log_counts[structure.reference]
    return odds
