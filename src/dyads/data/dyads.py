"""Dyads as integer codes: tables after ids and labels have been encoded."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dyads.data.codes import Codes
from dyads.errors import InputError

Floats = npt.NDArray[np.float64]


CHUNK = 2**24
"""Dyads that are counted or sorted at a time: temporary arrays then take a few hundred megabytes at most."""


def chunks(n: int) -> list[slice]:
    """Cut n dyads into slices of `CHUNK`."""
    return [slice(first, min(first + CHUNK, n)) for first in range(0, max(n, 1), CHUNK)]


def narrow(codes: Codes, n: int) -> Codes:
    """Convert codes below `n` to int32 if they fit, otherwise to int64."""
    dtype = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < n:
        raise InputError(f"Integer codes run from {codes.min()} to {codes.max()}: expected 0 to {n - 1}.")
    return np.ascontiguousarray(codes, dtype=dtype)


class Side(NamedTuple):
    """Side-information: sparse feature matrices of rows (n_rows, p), columns (n_cols, q) and dyads (n, m), or None.

    With one id set, `row` holds the features of nodes.
    """

    row: Any = None
    col: Any = None
    dyad: Any = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """The number of features of rows, of columns and of dyads."""
        row, col, dyad = (0 if matrix is None else matrix.shape[1] for matrix in self)
        return row, col, dyad

    def astype(self, dtype: Any) -> "Side":
        """The same matrices in another precision."""
        return Side(*(None if matrix is None else matrix.astype(dtype, copy=False) for matrix in self))


NO_SIDE = Side()


class Memory:
    """Where dyads in memory keep their orders: in memory. See also `dyads.data.store.Store`."""

    def in_order(self, name: str, dyads: "Dyads", parts: Iterator[Codes]) -> "tuple[Dyads, Codes]":
        """Return dyads in an order, and their positions before.

        `name` : name of the order. `parts` : the positions, part by part; not used if the order is there already.
        """
        positions = np.concatenate(list(parts))
        return dyads.take(positions), positions


MEMORY = Memory()


@dataclass(frozen=True)
class Dyads:
    """Labelled pairs. A pair may occur more than once.

    Attributes
    ----------
    row, col, label : (n,) codes of each observation
    weight : (n,) positive weights, or None if all are one
    n_rows, n_cols, n_labels : number of codes of each
    relation : (n,) codes, or None if there is one relation
    n_relations : number of relations
    side : features of rows, columns and dyads
    home : where orders of the dyads are kept
    """

    row: Codes
    col: Codes
    label: Codes
    weight: Floats | None
    n_rows: int
    n_cols: int
    n_labels: int
    relation: Codes | None = None
    n_relations: int = 1
    side: Side = NO_SIDE
    home: Any = MEMORY

    def __post_init__(self) -> None:
        for field, n in (("row", self.n_rows), ("col", self.n_cols), ("label", self.n_labels)):
            object.__setattr__(self, field, narrow(getattr(self, field), n))
        if self.relation is not None:
            object.__setattr__(self, "relation", narrow(self.relation, self.n_relations))

    def __len__(self) -> int:
        return len(self.row)

    @property
    def codes(self) -> tuple[Codes, ...]:
        """Codes of rows, columns and, if there are several, relations; (n,) each."""
        return (self.row, self.col) if self.relation is None else (self.row, self.col, self.relation)

    @property
    def weights(self) -> Floats:
        """The weight of each observation (n,)."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @property
    def total_weight(self) -> float:
        return float(len(self) if self.weight is None else self.weight.sum())

    def counts(self, codes: Codes, n: int) -> Floats:
        """The sum of weights of each code, (n,)."""
        total = np.zeros(n)
        for some in chunks(len(codes)):
            weight = None if self.weight is None else self.weight[some]
            total += np.bincount(codes[some], weights=weight, minlength=n)
        return total

    @property
    def row_counts(self) -> Floats:
        return self.counts(self.row, self.n_rows)

    @property
    def col_counts(self) -> Floats:
        return self.counts(self.col, self.n_cols)

    @property
    def relation_counts(self) -> Floats:
        if self.relation is None:
            return np.array([self.total_weight])
        return self.counts(self.relation, self.n_relations)

    @property
    def label_counts(self) -> Floats:
        return self.counts(self.label, self.n_labels)

    def take(self, which: npt.NDArray[np.bool_] | Codes | slice) -> "Dyads":
        """Keep some observations, without changing their codes."""
        weight = None if self.weight is None else self.weight[which]
        relation = None if self.relation is None else self.relation[which]
        row, col, label = self.row[which], self.col[which], self.label[which]
        side = self.side if self.side.dyad is None else self.side._replace(dyad=_lines(self.side.dyad, which))
        return replace(self, row=row, col=col, label=label, weight=weight, relation=relation, side=side, home=MEMORY)

    def hold_out(self, fraction: float, rng: np.random.Generator) -> "tuple[Dyads, Dyads]":
        """Split at random into training dyads and a held-out fraction."""
        n_held = max(1, round(fraction * len(self)))
        if n_held >= len(self):
            raise InputError(
                f"Holding out {fraction} of {len(self)} dyads leaves none to train on: expected a smaller fraction. "
                "Lower early_stopping."
            )
        held = np.zeros(len(self), dtype=np.bool_)
        held[rng.choice(len(self), n_held, replace=False)] = True
        return self.take(~held), self.take(held)


def _lines(matrix: Any, which: npt.NDArray[np.bool_] | Codes | slice) -> Any:
    """Some lines of a sparse matrix (CSR); those of a range share memory with it, which may be mapped from disk."""
    if not isinstance(which, slice):
        return matrix[which]
    first, last, _ = which.indices(matrix.shape[0])
    start = matrix.indptr[first : last + 1]
    entries = slice(int(start[0]), int(start[-1]))
    parts = matrix.data[entries], matrix.indices[entries], start - start[0]
    return type(matrix)(parts, shape=(last - first, matrix.shape[1]), copy=False)


@dataclass(frozen=True)
class Grouped:
    """Observations grouped by owner (an entity, such as a row): those of owner e are `order[start[e]:start[e + 1]]`.

    Attributes
    ----------
    start : (n_owners + 1,) int64
    order : (n,) positions in the original order, stable within an owner
    """

    start: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]

    @classmethod
    def by(cls, owner: Codes, n_owners: int) -> "Grouped":
        start = np.zeros(n_owners + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=n_owners), out=start[1:])
        return cls(start, np.argsort(owner, kind="stable"))


@dataclass(frozen=True)
class Seen:
    """The pairs that a model was trained on, by row: those that it does not recommend again.

    Attributes
    ----------
    start : (m + 1,) int64; the pairs of row r are at start[r]:start[r + 1], and rows from m on have none
    col : (n,) codes of columns
    relation : (n,) codes of relations, or None if there is one
    """

    start: npt.NDArray[np.int64]
    col: Codes
    relation: Codes | None = None

    @classmethod
    def of(cls, row: Codes, col: Codes, relation: Codes | None) -> "Seen":
        by_row = Grouped.by(row, int(row.max(initial=-1)) + 1)
        return cls(by_row.start, col[by_row.order], None if relation is None else relation[by_row.order])

    def __len__(self) -> int:
        return len(self.col)

    @property
    def row(self) -> Codes:
        """Codes of the rows (n,)."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=self.col.dtype), np.diff(self.start))

    def pairs_of(self, rows: Codes, cols: Codes, relation: int) -> tuple[Codes, Codes]:
        """Codes of the rows and columns of the pairs of some rows, or of some columns, in one relation."""
        n_rows = len(self.start) - 1
        rows = np.unique(rows[(rows >= 0) & (rows < n_rows)])
        sizes = self.start[rows + 1] - self.start[rows]
        before = np.cumsum(sizes) - sizes
        positions = np.arange(int(sizes.sum())) + np.repeat(self.start[rows] - before, sizes)
        if len(cols):
            is_asked = np.zeros(int(self.col.max(initial=0)) + 1, np.bool_)
            is_asked[cols[(cols >= 0) & (cols < len(is_asked))]] = True
            positions = np.union1d(positions, np.flatnonzero(is_asked[self.col]))
        if self.relation is not None:
            positions = positions[self.relation[positions] == relation]
        return np.searchsorted(self.start, positions, side="right") - 1, self.col[positions]

    def joined(self, more: "Seen") -> "Seen":
        """Return these pairs and further ones."""
        if not len(self):
            return more
        columns = [np.append(self.row, more.row), np.append(self.col, more.col)]
        if self.relation is not None and more.relation is not None:
            columns.append(np.append(self.relation, more.relation))
        # A pair that comes again, as in a further epoch, is kept once.
        row, col, *relation = np.unique(np.stack(columns), axis=1)
        return Seen.of(row, col, relation[0] if relation else None)


class Counts(NamedTuple):
    """Summed weights of the dyads of each row, column and relation.

    With one id set, `row` and `col` are equal: each sums over both roles of a node.
    """

    row: Floats
    col: Floats
    relation: Floats

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool) -> "Counts":
        row, col = dyads.row_counts, dyads.col_counts
        return cls(row + col, row + col, dyads.relation_counts) if one_set else cls(row, col, dyads.relation_counts)


SMOOTHING = 3.0
"""Default strength of smoothing, in labels: the frequencies of an id with three labels are halfway to those of all."""


@dataclass(frozen=True)
class LabelCounts:
    """Summed weights of the dyads of each row, column and relation, by label: the marginals of the data.

    With one id set, `row` counts the dyads in which a node is the row, and `col` those in which it is the column.

    Attributes
    ----------
    row, col, relation : (n_rows, n_labels), (n_cols, n_labels), (n_relations, n_labels)
    """

    row: Floats
    col: Floats
    relation: Floats

    @classmethod
    def of(cls, dyads: Dyads) -> "LabelCounts":
        relation = np.zeros_like(dyads.label) if dyads.relation is None else dyads.relation
        owners = (dyads.row, dyads.n_rows), (dyads.col, dyads.n_cols), (relation, dyads.n_relations)
        counts = [np.zeros((n, dyads.n_labels)) for _, n in owners]
        for some in chunks(len(dyads)):
            label, weight = dyads.label[some], None if dyads.weight is None else dyads.weight[some]
            for (codes, n), total in zip(owners, counts, strict=True):
                cell = codes[some].astype(np.int64) * dyads.n_labels + label
                total += np.bincount(cell, weights=weight, minlength=n * dyads.n_labels).reshape(n, -1)
        return cls(*counts)

    @property
    def parts(self) -> tuple[Floats, Floats, Floats]:
        """The counts of rows, columns and relations."""
        return self.row, self.col, self.relation

    def __add__(self, more: "LabelCounts") -> "LabelCounts":
        return LabelCounts(*(counts + further for counts, further in zip(self.parts, more.parts, strict=True)))

    def grown(self, n_rows: int, n_cols: int) -> "LabelCounts":
        """Return a copy for `n_rows` rows and `n_cols` columns; the new ones have no labels."""
        row, col = (
            np.concatenate([counts, np.zeros((n - len(counts), counts.shape[1]))])
            for counts, n in ((self.row, n_rows), (self.col, n_cols))
        )
        return replace(self, row=row, col=col)

    def recounted(self, dyads: Dyads, rows: Codes, cols: Codes) -> "LabelCounts":
        """Return a copy in which `rows` and `cols` have the labels of `dyads`, and no others."""
        row, col, batch = self.row.copy(), self.col.copy(), LabelCounts.of(dyads)
        row[rows], col[cols] = batch.row[rows], batch.col[cols]
        return replace(self, row=row, col=col)

    def of_ids(self, row: Codes, col: Codes, relation: Codes) -> "LabelCounts":
        """Return the counts of other rows, columns and relations, by their codes here; those of -1 are zero."""
        parts = (
            np.where((codes >= 0)[:, None], counts[codes], 0.0)
            for codes, counts in zip((row, col, relation), self.parts, strict=True)
        )
        return LabelCounts(*parts)

    def undirected(self) -> "LabelCounts":
        """Return the counts of undirected pairs of one id set: a dyad counts for both of its nodes."""
        return replace(self, row=self.row + self.col, col=self.row + self.col)

    @property
    def shares(self) -> Floats:
        """The share p(y) of each label among all dyads, (n_labels,). A label without dyads counts as half a dyad."""
        total = self.relation.sum(axis=0)
        # A share of zero would make the log-loss of the first such label infinite.
        total = np.where(total > 0, total, 0.5)
        return np.asarray(total / total.sum())

    def smoothed(self, of: str, smoothing: float = SMOOTHING) -> Floats:
        """Label frequencies of each id `of` "row", "col" or "relation", drawn towards those of all dyads.

            p(y | id) = (n_y + smoothing p(y)) / (n + smoothing)

        The shape is (n_ids + 1, n_labels). The last line is p(y), for an id without labels: its code is -1.
        """
        counts, shares = getattr(self, of), self.shares
        proba = (counts + smoothing * shares) / (counts.sum(axis=1, keepdims=True) + smoothing)
        return np.vstack([proba, shares])
