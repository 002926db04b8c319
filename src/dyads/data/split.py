"""Cross-validation splitters of dyads with scikit-learn's interface. What they hold out decides what a score measures.

Each yields pairs of positions (train, test) and can be passed as ``cv=`` to scikit-learn. Row ids and column ids are
the first two columns of X, or those in `id_columns`. X may be a store: `store.take(train)` is a part of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dyads.data.codes import Codes, Vocabulary
from dyads.data.observations import read_id_columns, wanted_columns
from dyads.data.store import Store
from dyads.data.tables import read_column
from dyads.errors import InputError
from dyads.settings import generator_of

Positions = npt.NDArray[np.int64]
Split = tuple[Positions, Positions]


@dataclass(frozen=True)
class _Splitter(ABC):
    """Base of the splitters: it reads the ids; `_splits` chooses the dyads to train on and to test on.

    `n_splits` : number of splits; `random_state` : seed; `id_columns` : names of the columns of row ids and column ids,
    by default the first two.
    """

    n_splits: int = 5
    random_state: int = 0
    id_columns: Any = None

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[Split]:
        """Yield the positions of the dyads to train on and of those to test on."""
        if isinstance(X, Store):
            row, col = X.dyads.row, X.dyads.col
        else:
            row, col = (Vocabulary.of(*column)[1] for column in read_id_columns(X, wanted_columns(self.id_columns)))
        for number, (train, test) in enumerate(self._splits(X, row, col, generator_of(self.random_state))):
            positions = np.flatnonzero(train), np.flatnonzero(test)
            if not (len(positions[0]) and len(positions[1])):
                raise InputError(
                    f"Split {number + 1} has {len(positions[0])} dyads to train on and {len(positions[1])} to test on: "
                    "expected at least one of each. Use fewer splits, or more data."
                )
            yield positions

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits

    @abstractmethod
    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        """Yield masks (n,) of the dyads to train on and to test on."""


def _folds(codes: Codes, n_splits: int, rng: np.random.Generator) -> Codes:
    """The fold of each dyad: codes are assigned to folds at random, in about equal numbers."""
    fold: Codes = _dealt(int(codes.max(initial=-1)) + 1, n_splits, rng)[codes]
    return fold


def _dealt(n: int, n_splits: int, rng: np.random.Generator) -> Codes:
    """Random folds (n,) of about equal size; few bytes each, since n may be large."""
    dtype = np.min_scalar_type(n_splits)
    return rng.permutation((np.arange(n) % n_splits).astype(dtype))


class RandomCells(_Splitter):
    """Random folds of dyads: tests the prediction of cells of known rows and columns."""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        fold = _dealt(len(row), self.n_splits, rng)
        for k in range(self.n_splits):
            yield fold != k, fold == k


@dataclass(frozen=True)
class LeaveKPerRow(_Splitter):
    """Hold out `k` random dyads of every row with more than `k`: tests the prediction of more dyads of known rows."""

    k: int = 1

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        for _ in range(self.n_splits):
            order = np.lexsort([rng.random(len(row)), row])
            start = np.searchsorted(row[order], np.arange(row.max(initial=-1) + 1))
            place = np.empty(len(row), np.int64)
            place[order] = np.arange(len(row)) - start[row[order]]
            test = (place < self.k) & (np.bincount(row)[row] > self.k)
            yield ~test, test


class NewRows(_Splitter):
    """Folds of rows: tests the prediction of new rows (cold start), for known columns."""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        fold = _folds(row, self.n_splits, rng)
        for k in range(self.n_splits):
            # Leave out columns that occur in the held-out rows alone: they would be new as well.
            yield fold != k, (fold == k) & np.isin(col, col[fold != k])


class NewColumns(_Splitter):
    """Folds of columns: tests the prediction of new columns (cold start), for known rows."""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        yield from NewRows._splits(self, X, col, row, rng)  # type: ignore[arg-type]


class NewBoth(_Splitter):
    """Folds of rows and of columns: tests the prediction of dyads whose row and column are both new.

    Dyads with one new id are in neither part.
    """

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        rows, cols = _folds(row, self.n_splits, rng), _folds(col, self.n_splits, rng)
        for k in range(self.n_splits):
            yield (rows != k) & (cols != k), (rows == k) & (cols == k)


@dataclass(frozen=True)
class ByTime(_Splitter):
    """Train on the past, test on the next period. Times are cut into n_splits + 1 periods of about equal counts.

    `time` : (n,) times of the dyads, numbers or dates; dyads of equal time stay together.
    """

    time: Any = None

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        time = np.asarray(self.time)
        if time.shape != row.shape:
            raise InputError(f"time has shape {time.shape}: expected one time for each of the {len(row)} dyads.")
        cuts = np.sort(time)[np.linspace(0, len(time), self.n_splits + 2)[1:-1].astype(np.int64)]
        for first, last in zip(cuts, [*cuts[1:], None], strict=True):
            yield time < first, (time >= first) & ((time < last) if last is not None else True)


Mask = npt.NDArray[np.bool_]


def random_share(ids: Any, share: float, random_state: int) -> Mask:
    """Mask (n,) of the dyads of a random share of the distinct `ids` (n,), of rows or of the dyads themselves."""
    vocabulary, codes = Vocabulary.of(read_column(ids, "the column of ids"), "id")
    return chosen_share(len(vocabulary), share, random_state)[codes]


def chosen_share(n: int, share: float, random_state: int) -> Mask:
    """Mask (n,) of a random share of n things."""
    mask: Mask = np.random.default_rng(random_state).permutation(n) < round(share * n)
    return mask


def latest_share(time: Any, share: float) -> Mask:
    """Mask (n,) of about that share of the dyads: the latest. Dyads of equal time stay together, in the later part."""
    times = np.asarray(time)
    first = np.sort(times)[min(round((1 - share) * len(times)), len(times) - 1)]
    mask: Mask = times >= first
    return mask
