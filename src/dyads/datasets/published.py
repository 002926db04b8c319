"""Published data sets, read from the files that `sources` finds or downloads."""

from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dyads.datasets.sources import Array, Dataset, Progress, find
from dyads.errors import MissingDataError

# ------------------------------------------------------------------------------------------------------------- ratings


def movielens_100k(split: str | None = None, progress: Progress | None = None) -> Any:
    """MovieLens 100K: user x film -> 1..5 stars; with features of users, genres and names of films, and times.

    `split` : "u1" to "u5", "ua" or "ub" returns the two data sets (train, test) of that published split; None returns
    all ratings.
    """
    folder = find("ml-100k", progress)
    users = _read_delimited(folder / "u.user", "|", ["user", "age", "gender", "occupation", "zip"])
    genres = [line.split("|")[0] for line in (folder / "u.genre").read_text().splitlines() if "|" in line]
    films = _read_delimited(
        folder / "u.item", "|", ["item", "title", "date", "video", "url", *genres], encoding="latin1"
    )
    flags = np.column_stack([films[genre] for genre in genres]).astype(bool)
    side = (
        {name: users[name].to_numpy(zero_copy_only=False) for name in ("user", "age", "gender", "occupation")},
        {"item": films["item"].to_numpy(), "genre": [np.array(genres)[row].tolist() for row in flags]},
    )

    names = {"item": dict(zip(films["item"].to_pylist(), films["title"].to_pylist(), strict=True))}

    def ratings(file: str) -> Dataset:
        table = _read_delimited(folder / file, "\t", ["user", "item", "rating", "time"])
        columns = {name: table[name].to_numpy() for name in table.column_names}
        X = {name: columns[name] for name in ("user", "item")}
        return Dataset(X, columns["rating"], *side, time=columns["time"], names=names)

    return ratings("u.data") if split is None else (ratings(f"{split}.base"), ratings(f"{split}.test"))


def movielens_1m(progress: Progress | None = None) -> Dataset:
    """MovieLens 1M: user x film -> 1..5 stars; with age, gender and occupation of users, and genres of films."""
    folder = find("ml-1m", progress)
    path = folder / "ratings.csv"

    def read(name: str, columns: list[str]) -> pa.Table:
        raw = BytesIO((folder / name).read_bytes().replace(b"::", b"\t"))
        return _read_delimited(raw, "\t", columns, encoding="latin1")

    table = csv.read_csv(path) if path.exists() else read("ratings.dat", ["user", "item", "rating", "time"])
    columns = {name: table[name].to_numpy() for name in ("user", "item", "rating")}
    users, films = (
        read("users.dat", ["user", "gender", "age", "occupation", "zip"]),
        read("movies.dat", ["item", "title", "genre"]),
    )
    # Ages and occupations are codes of classes.
    side = (
        {name: users[name].to_numpy(zero_copy_only=False) for name in ("user", "gender")}
        | {name: users[name].cast(pa.string()).to_numpy(zero_copy_only=False) for name in ("age", "occupation")},
        {"item": films["item"].to_numpy(), "genre": [text.split("|") for text in films["genre"].to_pylist()]},
    )
    return Dataset({name: columns[name] for name in ("user", "item")}, columns["rating"], *side)


def bookcrossing(progress: Progress | None = None) -> Dataset:
    """BookCrossing: user x book -> 1..10. Ratings of 0, which are implicit feedback, are left out."""
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
    """Coat shopping, (train, test): self-selected ratings 1..5, and ratings of random coats that are not in train."""
    folder = find("coat", progress)
    train, test = (np.loadtxt(folder / f"{part}.ascii", dtype=np.int64) for part in ("train", "test"))
    return _cells(train, train > 0), _cells(test, (test > 0) & (train == 0))


def _cells(matrix: Array, which: Array) -> Dataset:
    row, col = np.nonzero(which)
    return Dataset({"user": row, "item": col}, matrix[which])


def _read_delimited(source: Path | BytesIO, delimiter: str, names: list[str], encoding: str = "utf8") -> Any:
    options = csv.ReadOptions(column_names=names, encoding=encoding)
    return csv.read_csv(source, options, csv.ParseOptions(delimiter=delimiter, quote_char=False))


# --------------------------------------------------------------------------------------------------------------- links


def nips_coauthors(progress: Progress | None = None) -> Dataset:
    """NIPS co-authorship: each unordered pair of 234 authors -> 1 if they wrote a paper together, else 0."""
    n_authors = 234  # authors without links are not in the file
    edges = np.loadtxt(find("nips234", progress) / "NIPS234.txt", dtype=np.int64, ndmin=2)[:, :2] - 1
    linked = np.zeros((n_authors, n_authors), np.int64)
    linked[tuple(edges.T)] = linked[tuple(edges.T[::-1])] = 1
    row, col = np.triu_indices(n_authors, 1)
    return Dataset({"author": row, "other": col}, linked[row, col])


def alyawarra(progress: Progress | None = None) -> Dataset:
    """Alyawarra kinship: person x person -> one of 26 terms, which the first person uses for the second."""
    from scipy.io import loadmat

    row, col, term = np.nonzero(loadmat(find("alyawarra", progress) / "alyawarradata.mat")["Rs"])
    return Dataset({"person": row, "other": col}, term)


def nations(progress: Progress | None = None) -> Dataset:
    """Nations: country x country x relation -> 1 or 0, with names of all; unknown cells are left out."""
    from scipy.io import loadmat

    file = loadmat(find("nations", progress) / "dnations.mat")
    cells = file["R"]
    known = ~np.isnan(cells)
    row, col, relation = np.nonzero(known)
    countries, relations = (
        {i: str(name.item()) for i, name in enumerate(file[what].ravel())} for what in ("countrynames", "relnnames")
    )
    return Dataset(
        {"country": row, "other": col, "relation": relation},
        cells[known].astype(np.int64),
        names={"country": countries, "other": countries, "relation": relations},
    )


def wiki_vote(progress: Progress | None = None) -> Dataset:
    """wiki-Vote: all pairs (voter, candidate) with a vote, each with the label 1."""
    edges = np.loadtxt(find("wiki-vote", progress) / "wiki-Vote.txt", dtype=np.int64, comments="#")
    return Dataset({"voter": edges[:, 0], "candidate": edges[:, 1]}, np.ones(len(edges), np.int64))


# --------------------------------------------------------------------------------------------------------------- votes


def un_votes(progress: Progress | None = None) -> Dataset:
    """UN General Assembly: country x roll call -> "yes", "abstain" or "no".

    Features of roll calls: a list of issues, and whether the vote is on an amendment (amend) or a paragraph (para).
    `time` : days since 1970.
    """
    folder = find("un-votes", progress)
    votes, calls, issues = (_read_votes(folder, name) for name in ("un_votes", "un_roll_calls", "un_roll_call_issues"))
    country, vote = (votes[name].to_numpy(zero_copy_only=False).astype(str) for name in ("country", "vote"))
    call = votes["rcid"].to_numpy().astype(np.int64)
    ids = calls["rcid"].to_numpy().astype(np.int64)
    about: dict[int, list[str]] = {rcid: [] for rcid in ids.tolist()}
    for rcid, issue in zip(issues["rcid"].to_pylist(), issues["issue"].to_pylist(), strict=True):
        about.setdefault(int(rcid), []).append(issue)
    day = dict(zip(ids.tolist(), calls["date"].to_pylist(), strict=True))
    features: dict[str, Any] = {"roll call": ids, "issue": [about[rcid] for rcid in ids.tolist()]}
    for name in ("amend", "para"):
        features[name] = calls[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
    when = np.array([_days(day[rcid]) for rcid in call.tolist()])
    return Dataset({"country": country, "roll call": call}, vote, col_features=features, time=when)


def _days(when: Any) -> float:
    """Days since 1970 of a date; a number is returned unchanged."""
    return float(when.toordinal() - date(1970, 1, 1).toordinal()) if isinstance(when, date) else float(when)


def _read_votes(folder: Path, name: str) -> Any:
    path = folder / f"{name}.csv.gz"
    options = csv.ParseOptions(newlines_in_values=True)
    return csv.read_csv(path if path.exists() else folder / f"{name}.csv", parse_options=options)


# -------------------------------------------------------------------------------------------------------------- digits


class Digits(NamedTuple):
    """Images (n, height, width) with values in [0, 1], and their digits (n,)."""

    images: Array
    digit: Array


def usps(progress: Progress | None = None) -> Digits:
    """USPS: the published training set, 7,291 digits of 16 x 16 pixels."""
    folder = find("usps", progress)
    if (folder / "usps.h5").exists():
        try:
            import h5py
        except ImportError as error:
            raise MissingDataError(
                f"{folder / 'usps.h5'} is an HDF5 file, but h5py is not installed: pip install 'dyads[data]'."
            ) from error

        with h5py.File(folder / "usps.h5") as file:
            pixels, digit = file["train/data"][:], file["train/target"][:]
    else:
        from sklearn.datasets import load_svmlight_file

        # In this file, values are in [-1, 1] and digits are 1..10.
        sparse, target = load_svmlight_file(str(folder / "usps"), n_features=256)
        pixels, digit = (sparse.toarray() + 1) / 2, target - 1
    return Digits(np.asarray(pixels, float).reshape(-1, 16, 16), np.asarray(digit).astype(np.int64))


def bundled() -> Digits:
    """The 1,797 digits of 8 x 8 pixels that are bundled with scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Digits(data.images / 16, data.target)
