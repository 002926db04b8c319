"""Tasks of the experiments: a data set, split into training and test dyads."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.model_selection import KFold

from dyads.data.features import Features
from dyads.data.tables import lines
from dyads.datasets import published
from dyads.datasets.sources import Dataset
from dyads.datasets.synthetic import make_nominal
from dyads.errors import InputError, unknown_name

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

FEWEST_ENTITIES = 24
"""Fewest rows and columns that a scaled-down data set keeps: smaller ones leave too little to split and fit."""


@dataclass(frozen=True)
class Task:
    """Training and test dyads.

    Attributes
    ----------
    X, y, X_test, y_test : dicts of (n,) columns, and labels
    features : features of rows and columns, by parameter of an estimator, for methods that use side-information
    bayes_error : lowest possible 0-1 error on the test dyads, or None if unknown
    shape : height and width of the image that a row is, or empty
    """

    X: Columns
    y: Array
    X_test: Columns
    y_test: Array
    features: dict[str, Features] = field(default_factory=dict)
    bayes_error: float | None = None
    shape: tuple[int, ...] = ()

    def folds(self, n_folds: int, at_most: int | None, seed: int) -> "list[Task]":
        """Cross-validation folds of the training dyads; beyond `at_most` dyads, of a sample of rows or columns."""
        kept = np.arange(len(self.y))
        if at_most is not None and len(kept) > at_most:
            # Sample the side with more ids, which has fewer dyads per id. A sampled id keeps all its dyads.
            sides = [np.unique(column, return_inverse=True)[1] for column in list(self.X.values())[:2]]
            code = max(sides, key=lambda side: side.max())
            order = np.random.default_rng(seed).permutation(code.max() + 1)
            n_kept = np.searchsorted(np.cumsum(np.bincount(code)[order]), at_most, side="right")
            kept = np.flatnonzero(np.isin(code, order[: max(n_kept, 1)]))
        split = KFold(n_folds, shuffle=True, random_state=seed).split(kept)
        return [self._part(kept[train], kept[test]) for train, test in split]

    def _part(self, train: Array, test: Array) -> "Task":
        return replace(
            self, X=lines(self.X, train), y=self.y[train], X_test=lines(self.X, test), y_test=self.y[test]
        )  # fmt: skip


def divided(data: Dataset, test: Array, features: bool = False) -> Task:
    """Test on the dyads marked in the mask `test` (n,), and train on the others."""
    tables = {"features__row": data.row_features, "features__col": data.col_features} if features else {}
    side_information = {name: Features(table) for name, table in tables.items() if table}
    return Task(lines(data.X, ~test), data.y[~test], lines(data.X, test), data.y[test], side_information)


def scaled(data: Dataset, scale: float) -> Dataset:
    """Keep the share sqrt(scale) of rows and of columns with the most dyads, and the dyads between them."""
    kept = np.ones(len(data.y), bool)
    for column in list(data.X.values())[:2] if scale < 1 else []:
        ids, code, count = np.unique(column, return_inverse=True, return_counts=True)
        most = max(FEWEST_ENTITIES, int(len(ids) * np.sqrt(scale)))
        kept &= np.isin(code, np.argsort(-count, kind="stable")[:most])
    time = None if data.time is None else data.time[kept]
    return replace(data, X=lines(data.X, kept), y=data.y[kept], time=time)


def nominal(seed: int, scale: float, n: int, retention: float, width: float) -> Task:
    """The paper's synthetic nominal data: the share `retention` of the cells of an n x n matrix is for training."""
    size = n if scale == 1 else max(FEWEST_ENTITIES, int(n * np.sqrt(scale)))
    train, test = make_nominal(size, 5, 3, width, seed).split(retention, seed)
    return Task(train.X, train.y, test.X, test.y, bayes_error=test.bayes_error)


def one_rating_each(seed: int, scale: float, n_users: int) -> Task:
    """ML-1M: hold out one rating of each of `n_users` users, and train on their other ratings."""
    data = scaled(published.movielens_1m(), scale)
    rng = np.random.default_rng(seed)
    users = np.unique(data.X["user"])
    chosen = rng.choice(users, min(n_users, len(users)), replace=False)
    here = rng.permutation(np.flatnonzero(np.isin(data.X["user"], chosen)))
    _, first = np.unique(data.X["user"][here], return_index=True)
    test = np.zeros(len(data.y), bool)
    test[here[first]] = True
    used = np.isin(data.X["user"], chosen)
    return divided(Dataset(lines(data.X, used), data.y[used]), test[used])


def books(seed: int, scale: float, fewest_of_user: int, fewest_of_book: int) -> Task:
    """BookCrossing: drop users and books with few ratings, and hold out a third of each user's ratings."""
    data = scaled(published.bookcrossing(), scale)
    # Seeds 0, 1, 2 are the three folds of one partition, seeds 3, 4, 5 those of the next.
    rng = np.random.default_rng(seed // 3)
    kept = np.ones(len(data.y), bool)
    for column, fewest in ((data.X["user"], fewest_of_user), (data.X["item"], fewest_of_book)):
        _, code, count = np.unique(column, return_inverse=True, return_counts=True)
        kept &= (count >= fewest)[code]
    X, y = lines(data.X, kept), data.y[kept]
    order = rng.permutation(len(y))
    _, user = np.unique(X["user"], return_inverse=True)
    by_user = order[np.argsort(user[order], kind="stable")]
    start = np.searchsorted(user[by_user], user[by_user])
    fold = np.empty(len(y), np.int64)
    fold[by_user] = (np.arange(len(y)) - start + user[by_user]) % 3
    return divided(Dataset(X, y), fold == seed % 3)


def cold_start(seed: int, scale: float, setting: str) -> Task:
    """ML-100K: hold out a tenth of the ratings, all ratings of 50 users, or their ratings of new films.

    New films are a fifth of all films, and left out of training too.
    """
    data = scaled(published.movielens_100k(), scale)
    rng = np.random.default_rng(seed)
    user, film = data.X["user"], data.X["item"]
    if setting == "known":
        return divided(data, rng.random(len(user)) < 0.1, features=True)
    users = np.unique(user)
    out = np.isin(user, rng.choice(users, min(50, len(users) // 3), replace=False))
    if setting == "new users":
        used = ~out | np.isin(film, film[~out])
        test = out
    elif setting == "new users and films":
        new = (rng.random(film.max() + 1) < 0.2)[film]
        used, test = out == new, out & new
    else:
        raise InputError(f"setting={setting!r} is not known: expected 'known', 'new users' or 'new users and films'.")
    return divided(replace(data, X=lines(data.X, used), y=data.y[used], time=None), test[used], features=True)


def coauthors(seed: int, scale: float, unit: str) -> Task:
    """NIPS co-authors: hold out a fifth of the unordered pairs, or of the cells, whose mirrors may be in training."""
    data = scaled(published.nips_coauthors(), scale)
    rng = np.random.default_rng(seed)
    if unit == "pairs":
        return divided(data, rng.random(len(data.y)) < 0.2)
    if unit != "cells":
        raise InputError(f"unit={unit!r} is not known: expected 'pairs' or 'cells'.")
    first, second = data.X.values()
    X = {"author": np.concatenate([first, second]), "other": np.concatenate([second, first])}
    both = Dataset(X, np.concatenate([data.y, data.y]))
    return divided(both, rng.random(len(both.y)) < 0.2)


def kinship(seed: int, scale: float) -> Task:
    """Alyawarra: hold out a fifth of the ordered pairs of people."""
    data = scaled(published.alyawarra(), scale)
    return divided(data, np.random.default_rng(seed).random(len(data.y)) < 0.2)


def halves(seed: int, scale: float, source: str, per_digit: int, n_missing: int) -> Task:
    """Binarised digits 1, 2, 3: hold out the lower half of some images. Labels are -1 (white) and 1 (black)."""
    sources = {"usps": published.usps, "scikit-learn": published.bundled}
    if source not in sources:
        raise unknown_name("source", source, sources)
    data = sources[source]()
    rng = np.random.default_rng(seed)
    n_images_each = per_digit if scale == 1 else max(8, int(per_digit * np.sqrt(scale)))
    chosen = np.concatenate(
        [rng.choice(np.flatnonzero(data.digit == d), n_images_each, replace=False) for d in (1, 2, 3)]
    )
    images = np.where(data.images[chosen] > 0.5, 1, -1)
    n_images, height, width = images.shape
    image, pixel = np.divmod(np.arange(images.size), height * width)
    cut = rng.choice(n_images, min(n_missing, n_images // 3), replace=False)
    test = np.isin(image, cut) & (pixel >= height * width // 2)
    task = divided(Dataset({"image": image, "pixel": pixel}, images.ravel()), test)
    return replace(task, shape=(height, width))


def un_votes(seed: int, scale: float, split: str) -> Task:
    """UN votes: hold out a random fifth, or the tenth in time that follows the first 50% to 90%.

    Labels are 1 for no, 2 for abstain, 3 for yes, so that methods for ordered labels can run on them.
    """
    data = scaled(published.un_votes(), scale)
    data = replace(data, y=np.select([data.y == "no", data.y == "abstain"], [1, 2], 3))
    if split == "random":
        return divided(data, np.random.default_rng(seed).random(len(data.y)) < 0.2)
    if split != "time":
        raise InputError(f"split={split!r} is not known: expected 'random' or 'time'.")
    assert data.time is not None
    begin, end = np.quantile(data.time, [0.5 + 0.1 * seed, 0.6 + 0.1 * seed])
    used = (data.time <= end) if seed < 4 else np.ones(len(data.y), bool)
    part = replace(data, X=lines(data.X, used), y=data.y[used], time=None)
    return divided(part, data.time[used] > begin, features=True)


TASKS = {
    task.__name__: task
    for task in (nominal, one_rating_each, books, cold_start, coauthors, kinship, halves, un_votes)
}  # fmt: skip
