"""Ratings: MovieLens, BookCrossing, Coat."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dyads.datasets.sources import Array, Dataset, Progress, find


def movielens_100k(split: str | None = None, progress: Progress | None = None) -> Any:
    """MovieLens 100K: user x film -> 1..5 stars; age, gender and occupation of users, genres of films, times.

    `split`, one of "u1" to "u5", "ua", "ub", gives the two data sets (train, test) of a published split instead.
    """
    folder = find("ml-100k", progress)
    users = _read(folder / "u.user", "|", ["user", "age", "gender", "occupation", "zip"])
    genres = [line.split("|")[0] for line in (folder / "u.genre").read_text().splitlines() if "|" in line]
    films = _read(folder / "u.item", "|", ["item", "title", "date", "video", "url", *genres], encoding="latin1")
    flags = np.column_stack([films[genre] for genre in genres]).astype(bool)
    side = (
        {name: users[name].to_numpy(zero_copy_only=False) for name in ("user", "age", "gender", "occupation")},
        {"item": films["item"].to_numpy(), "genre": [np.array(genres)[row].tolist() for row in flags]},
    )

    def ratings(file: str) -> Dataset:
        table = _read(folder / file, "\t", ["user", "item", "rating", "time"])
        columns = {name: table[name].to_numpy() for name in table.column_names}
        X = {name: columns[name] for name in ("user", "item")}
        return Dataset(X, columns["rating"], *side, time=columns["time"])

    return ratings("u.data") if split is None else (ratings(f"{split}.base"), ratings(f"{split}.test"))


def movielens_1m(progress: Progress | None = None) -> Dataset:
    """MovieLens 1M: user x film -> 1..5 stars."""
    folder = find("ml-1m", progress)
    path = folder / "ratings.csv"
    if path.exists():
        table = csv.read_csv(path)
    else:
        raw = BytesIO((folder / "ratings.dat").read_bytes().replace(b"::", b"\t"))
        table = _read(raw, "\t", ["user", "item", "rating", "time"])
    columns = {name: table[name].to_numpy() for name in ("user", "item", "rating")}
    return Dataset({name: columns[name] for name in ("user", "item")}, columns["rating"])


def bookcrossing(progress: Progress | None = None) -> Dataset:
    """BookCrossing: user x book -> 1..10; ratings of 0, which say no more than that a book was seen, are left out."""
    folder = find("bookcrossing", progress)
    path = folder / "BX-Ratings.csv"
    if path.exists():
        table = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types={"ISBN": pa.string()}))
    else:
        table = csv.read_csv(
            folder / "BX-Book-Ratings.csv",
            read_options=csv.ReadOptions(encoding="latin1"),
            parse_options=csv.ParseOptions(delimiter=";", escape_char="\\"),
            convert_options=csv.ConvertOptions(column_types={"ISBN": pa.string()}),
        )
    table = table.filter(pc.field("Book-Rating") > 0)
    user, item, rating = (table[name].to_numpy(zero_copy_only=False) for name in ("User-ID", "ISBN", "Book-Rating"))
    return Dataset({"user": user, "item": item.astype(str)}, rating)


def coat(progress: Progress | None = None) -> tuple[Dataset, Dataset]:
    """Coat shopping: self-selected ratings 1..5 to train on, ratings of random coats, others than those, to test on."""
    folder = find("coat", progress)
    train, test = (np.loadtxt(folder / f"{part}.ascii", dtype=np.int64) for part in ("train", "test"))
    return _cells(train, train > 0), _cells(test, (test > 0) & (train == 0))


def _cells(matrix: Array, which: Array) -> Dataset:
    row, col = np.nonzero(which)
    return Dataset({"user": row, "item": col}, matrix[which])


def _read(source: Path | BytesIO, delimiter: str, names: list[str], encoding: str = "utf8") -> Any:
    options = csv.ReadOptions(column_names=names, encoding=encoding)
    return csv.read_csv(source, options, csv.ParseOptions(delimiter=delimiter, quote_char=False))
