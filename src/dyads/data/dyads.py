"""Dyads as integers: what is left of tables once ids and labels are encoded."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dyads.data.codes import Codes
from dyads.errors import InputError

Floats = npt.NDArray[np.float64]


def narrow(codes: Codes, n: int) -> Codes:
    """Hold codes below `n` in 32 bits when they fit, in 64 otherwise."""
    dtype = np.int32 if n <= np.iinfo(np.int32).max else np.int64
    if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < n:
        raise InputError(f"Integer codes run from {codes.min()} to {codes.max()}: expected 0 to {n - 1}.")
    return np.ascontiguousarray(codes, dtype=dtype)


class Side(NamedTuple):
    """Side-information: sparse matrices with a line per row (n_rows, p), column (n_cols, q) and dyad (n, m), or None.

    With one id set the rows' are the nodes'.
    """

    row: Any = None
    col: Any = None
    dyad: Any = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """How many features there are of each kind."""
        row, col, dyad = (0 if matrix is None else matrix.shape[1] for matrix in self)
        return row, col, dyad

    def astype(self, dtype: Any) -> "Side":
        """The same in another precision."""
        return Side(*(None if matrix is None else matrix.astype(dtype, copy=False) for matrix in self))


NO_SIDE = Side()


@dataclass(frozen=True)
class Dyads:
    """Labelled pairs; the same pair may occur any number of times.

    Attributes
    ----------
    row, col, label : (n,) codes of each observation
    weight : (n,) positive weights, or None when all are one
    n_rows, n_cols, n_labels : how many codes there are
    relation : (n,) codes, or None when there is one relation
    n_relations : how many of them there are
    side : features of rows, columns and dyads
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

    def __post_init__(self) -> None:
        for field, n in (("row", self.n_rows), ("col", self.n_cols), ("label", self.n_labels)):
            object.__setattr__(self, field, narrow(getattr(self, field), n))
        if self.relation is not None:
            object.__setattr__(self, "relation", narrow(self.relation, self.n_relations))

    def __len__(self) -> int:
        return len(self.row)

    @property
    def codes(self) -> tuple[Codes, ...]:
        """Of rows, columns and, if there are several, relations."""
        return (self.row, self.col) if self.relation is None else (self.row, self.col, self.relation)

    @property
    def weights(self) -> Floats:
        """The weight of each observation (n,)."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @property
    def total_weight(self) -> float:
        return float(len(self) if self.weight is None else self.weight.sum())

    def counts(self, codes: Codes, n: int) -> Floats:
        """Sum the weights of each code."""
        return np.bincount(codes, weights=self.weight, minlength=n).astype(np.float64)

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
        """Keep some observations; the codes stay as they are."""
        weight = None if self.weight is None else self.weight[which]
        relation = None if self.relation is None else self.relation[which]
        row, col, label = self.row[which], self.col[which], self.label[which]
        side = self.side if self.side.dyad is None else self.side._replace(dyad=self.side.dyad[which])
        return replace(self, row=row, col=col, label=label, weight=weight, relation=relation, side=side)

    def hold_out(self, fraction: float, rng: np.random.Generator) -> "tuple[Dyads, Dyads]":
        """Split at random into what is kept and a held-out fraction."""
        n_held = max(1, round(fraction * len(self)))
        if n_held >= len(self):
            raise InputError(
                f"validation_fraction={fraction} of {len(self)} dyads leaves none to train on: expected a smaller one."
            )
        held = np.zeros(len(self), dtype=np.bool_)
        held[rng.choice(len(self), n_held, replace=False)] = True
        return self.take(~held), self.take(held)


@dataclass(frozen=True)
class Grouped:
    """Observations grouped by owner: those of owner e are `order[start[e]:start[e + 1]]`.

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


class Counts(NamedTuple):
    """Summed weights of the dyads of each row, column and relation; with one id set a node's in both roles, twice."""

    row: Floats
    col: Floats
    relation: Floats

    @classmethod
    def of(cls, dyads: Dyads, one_set: bool) -> "Counts":
        row, col = dyads.row_counts, dyads.col_counts
        return cls(row + col, row + col, dyads.relation_counts) if one_set else cls(row, col, dyads.relation_counts)
