"""Splitters of dyads with scikit-learn's interface: what is held out decides what a score says.

Each yields pairs of positions (train, test) and can be passed as ``cv=`` to scikit-learn. Rows and columns are the
first two columns of X, or those named.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dyads.data.codes import Codes, Vocabulary
from dyads.data.observations import read_id_columns, wanted_columns
from dyads.errors import InputError

Positions = npt.NDArray[np.int64]
Split = tuple[Positions, Positions]


@dataclass(frozen=True)
class _Splitter(ABC):
    """What splitters share: they read the ids, and `_splits` says which dyads are tested.

    `id_columns` : names of the columns of row ids and column ids, default the first two; `random_state` : seed.
    """

    n_splits: int = 5
    random_state: int = 0
    id_columns: Any = None

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[Split]:
        """Yield positions of the dyads to train on and to test on."""
        row, col = (Vocabulary.of(*column)[1] for column in read_id_columns(X, wanted_columns(self.id_columns)))
        for number, (train, test) in enumerate(self._splits(X, row, col, np.random.default_rng(self.random_state))):
            found = np.flatnonzero(train), np.flatnonzero(test)
            if not (len(found[0]) and len(found[1])):
                raise InputError(
                    f"Split {number + 1} has {len(found[0])} dyads to train on and {len(found[1])} to test on: "
                    "expected some of both. Use fewer splits, or more data."
                )
            yield found

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return self.n_splits

    @abstractmethod
    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        """Yield masks (n,) of the dyads to train on and to test on."""


def _folds(codes: Codes, n_splits: int, rng: np.random.Generator) -> Codes:
    """A fold for each code, at random and of about equal numbers of codes, spread over the dyads."""
    n = int(codes.max(initial=-1)) + 1
    fold: Codes = rng.permutation(np.arange(n) % n_splits)[codes]
    return fold


class RandomCells(_Splitter):
    """Folds of dyads at random: how well does it fill in cells of rows and columns it knows?"""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        fold = _folds(np.arange(len(row)), self.n_splits, rng)
        for k in range(self.n_splits):
            yield fold != k, fold == k


@dataclass(frozen=True)
class LeaveKPerRow(_Splitter):
    """Hold out `k` dyads of every row that has more, at random: how well does it go on with each row?"""

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
    """Folds of rows: how well does it predict rows it has never seen?"""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        fold = _folds(row, self.n_splits, rng)
        for k in range(self.n_splits):
            # Columns of these rows alone would be new as well.
            yield fold != k, (fold == k) & np.isin(col, col[fold != k])


class NewColumns(_Splitter):
    """Folds of columns: how well does it predict columns it has never seen?"""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        yield from NewRows._splits(self, X, col, row, rng)  # type: ignore[arg-type]


class NewBoth(_Splitter):
    """Folds of rows and of columns: dyads of a new row and a new column; those of one new id are in neither part."""

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        rows, cols = _folds(row, self.n_splits, rng), _folds(col, self.n_splits, rng)
        for k in range(self.n_splits):
            yield (rows != k) & (cols != k), (rows == k) & (cols == k)


@dataclass(frozen=True)
class ByTime(_Splitter):
    """Train on what came before, test on what came next: the times are cut into n_splits + 1 parts of equal counts.

    `time` : (n,) when each dyad was seen, numbers or dates; dyads of one time stay together.
    """

    time: Any = None

    def _splits(self, X: Any, row: Codes, col: Codes, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
        time = np.asarray(self.time)
        if time.shape != row.shape:
            raise InputError(f"time has shape {time.shape}: expected one time for each of the {len(row)} dyads.")
        cuts = np.sort(time)[np.linspace(0, len(time), self.n_splits + 2)[1:-1].astype(np.int64)]
        for first, last in zip(cuts, [*cuts[1:], None], strict=True):
            yield time < first, (time >= first) & ((time < last) if last is not None else True)
