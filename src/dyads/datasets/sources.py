"""Locates published data sets in the folder `DYADS_DATA`, or downloads them from the publisher and checks them."""

import bz2
import gzip
import hashlib
import os
import shutil
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from dyads.errors import MissingDataError

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int | None], Any]

DOWNLOAD_SECONDS = 30.0
"""Timeout of a connection or a read: longer tolerates slow servers, shorter fails sooner without a network."""

PIECE = 1 << 16
"""Bytes per read of a download: smaller reports progress more often, larger makes fewer calls."""


@dataclass(frozen=True)
class Source:
    """A published data set.

    Attributes
    ----------
    name : name of the data set, and of its folder in the data folder
    about : description in one line
    page : web page of the publisher, with the description and the terms of use
    needed : alternative files; at least one of them must be in the folder
    url : archive or file to download; None if it cannot be downloaded automatically
    checksums : "md5:..." or "sha256:..." by name of the downloaded file or of a file inside it
    how : instructions for the user if there is no url
    """

    name: str
    about: str
    page: str
    needed: tuple[str, ...]
    url: str | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    how: str = ""


@dataclass(frozen=True)
class Dataset:
    """Labelled dyads, as published.

    Attributes
    ----------
    X : dict of (n,) columns: row ids, column ids and, in some data sets, relations
    y : (n,) labels
    row_features, col_features : dict of columns, of which the first holds the ids; empty if there are no features
    time : (n,) times of the labels, or None
    names : for columns of ids that are numbers, what these are called, by id; empty where the publisher says nothing
    """

    X: dict[str, Array]
    y: Array
    row_features: dict[str, Any] = field(default_factory=dict)
    col_features: dict[str, Any] = field(default_factory=dict)
    time: Array | None = None
    names: dict[str, dict[int, str]] = field(default_factory=dict)


def data_folder() -> Path:
    """The folder of all data sets: the environment variable `DYADS_DATA`, by default ``~/.cache/dyads``."""
    chosen = os.environ.get("DYADS_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "dyads"


def find(name: str, progress: Progress | None = None) -> Path:
    """The folder of a data set; downloads the data set if it is not on disk.

    Parameters
    ----------
    name : key of `SOURCES`
    progress : called during a download with the number of bytes so far and in total (None if unknown)
    """
    source = SOURCES[name]
    folder = data_folder() / name
    if any((folder / file).exists() for file in source.needed):
        return folder
    if source.url is None:
        raise MissingDataError(
            f"The data set {name} is not in {folder}: expected {' or '.join(source.needed)} there. {source.how} "
            f"(see {source.page}), put it there, or set DYADS_DATA to a folder that has {name}/."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as work:
            fetched = Path(work) / source.url.rpartition("/")[2]
            _download(source.url, fetched, progress)
            _check(source, fetched)
            ready = _unpack(fetched, Path(work) / "ready")
            for path in ready.rglob("*"):
                _check(source, path)
            if not any((ready / file).exists() for file in source.needed):
                raise MissingDataError(
                    f"{source.url} holds {sorted(path.name for path in ready.iterdir())}: expected "
                    f"{' or '.join(source.needed)}. The publisher has changed it; see {source.page}."
                )
            if folder.exists():
                shutil.copytree(ready, folder, dirs_exist_ok=True)
            else:
                ready.rename(folder)
    except MissingDataError:
        raise
    except (OSError, EOFError, HTTPException, zipfile.BadZipFile, zlib.error) as error:
        raise MissingDataError(
            f"The data set {name} is not in {folder}, and {source.url} could not be fetched ({error}): download it "
            f"from {source.page} and unpack it there, or set DYADS_DATA to a folder that has {name}/."
        ) from error
    return folder


def _download(url: str, path: Path, progress: Progress | None) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "dyads"})
    with urllib.request.urlopen(request, timeout=DOWNLOAD_SECONDS) as answer, path.open("wb") as file:
        length = answer.headers.get("Content-Length")
        done, total = 0, int(length) if length else None
        while piece := answer.read(PIECE):
            file.write(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)


def _check(source: Source, path: Path) -> None:
    """Raise if the checksum of a file differs from the one known for its name."""
    if path.name not in source.checksums:
        return
    kind, _, expected = source.checksums[path.name].partition(":")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, kind).hexdigest()
    if digest != expected:
        raise MissingDataError(
            f"{path.name} of {source.url} has the {kind} {digest}: expected {expected}. The download is damaged, or "
            f"the publisher has changed the file; try again, or see {source.page}."
        )


def _unpack(path: Path, ready: Path) -> Path:
    """Unpack a downloaded file and return the folder of its contents; a single top-level folder is entered."""
    ready.mkdir()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(ready)
        inside = [entry for entry in ready.iterdir() if entry.name != "__MACOSX"]
        return inside[0] if len(inside) == 1 and inside[0].is_dir() else ready
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    opened = openers.get(path.suffix)
    if opened is None:
        path.rename(ready / path.name)
    else:
        with opened(path, "rb") as packed, (ready / path.stem).open("wb") as file:
            shutil.copyfileobj(packed, file)
    return ready


SOURCES = {
    source.name: source
    for source in (
        Source(
            "ml-100k",
            "MovieLens 100K: 100,000 ratings of 1,682 films by 943 users, with features and fixed splits",
            "https://grouplens.org/datasets/movielens/100k/",
            ("u.data",),
            "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            {"ml-100k.zip": "md5:0e33842e24a9c977be4e0107933c0723"},
        ),
        Source(
            "ml-1m",
            "MovieLens 1M: 1,000,209 ratings of 3,706 films by 6,040 users",
            "https://grouplens.org/datasets/movielens/1m/",
            ("ratings.csv", "ratings.dat"),
            "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            {"ml-1m.zip": "md5:c4d9eecfca2ab87c1945afe126590906"},
        ),
        Source(
            "bookcrossing",
            "BookCrossing: 1,149,780 ratings of 271,379 books by 278,858 users, 433,671 of them explicit",
            "http://www2.informatik.uni-freiburg.de/~cziegler/BX/",
            ("BX-Ratings.csv", "BX-Book-Ratings.csv"),
            "http://www2.informatik.uni-freiburg.de/~cziegler/BX/BX-CSV-Dump.zip",
            {"BX-CSV-Dump.zip": "md5:37d647ee9e18ba134ea6d78ee4fe5292"},
        ),
        Source(
            "coat",
            "Coat shopping: 290 users x 300 coats, self-selected ratings and ratings of random coats",
            "https://www.cs.cornell.edu/~schnabts/mnar/",
            ("train.ascii",),
            "https://www.cs.cornell.edu/~schnabts/mnar/coat.zip",
            {
                "train.ascii": "sha256:a87bd9e7eaf3b89f976df3f25d4aa5d5d871be8a00b58947df9e6e015559bd37",
                "test.ascii": "sha256:de6714ab105a5e0be8166be7fd313901b29f9a09c3bea307901457d1d71847e6",
            },
        ),
        Source(
            "alyawarra",
            "Alyawarra kinship: one of 26 terms for each pair of 104 people",
            "http://www.charleskemp.com/code/irm.html",
            ("alyawarradata.mat",),
            how="Download the data of the infinite relational model",
        ),
        Source(
            "nations",
            "Nations: 56 relations between 14 countries",
            "http://www.charleskemp.com/code/irm.html",
            ("dnations.mat",),
            how="Download the data of the infinite relational model",
        ),
        Source(
            "nips234",
            "NIPS co-authorship: 598 links between 234 authors",
            "https://cs.nyu.edu/~roweis/data.html",
            ("NIPS234.txt",),
            how="Take the 234 authors of NIPS 1-17 with the most co-authors, and write 'i<tab>j' for each linked pair",
        ),
        Source(
            "wiki-vote",
            "wiki-Vote: who voted on whom, 103,689 directed edges between 7,115 users",
            "https://snap.stanford.edu/data/wiki-Vote.html",
            ("wiki-Vote.txt",),
            "https://snap.stanford.edu/data/wiki-Vote.txt.gz",
            {"wiki-Vote.txt": "sha256:b05c0226f5544f0e4a8ac607ae573db42e42716b6dd5aa00e8c769a1219c796f"},
        ),
        Source(
            "usps",
            "USPS: 7,291 handwritten digits of 16 x 16 pixels",
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
            ("usps.h5", "usps"),
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/usps.bz2",
            {"usps.bz2": "md5:ec16c51db3855ca6c91edd34d0e9b197"},
        ),
        Source(
            "un-votes",
            "UN General Assembly: 870,109 votes, country x resolution -> yes, abstain or no",
            "https://github.com/dgrtwo/unvotes",
            ("un_votes.csv.gz", "un_votes.csv"),
            how="Export the tables un_votes, un_roll_calls and un_roll_call_issues of the R package unvotes as CSV",
        ),
    )
}
"""The data sets by name. MD5 sums are those of GroupLens (ml-*), LensKit's book data tools (bookcrossing) and
torchvision (usps). SHA-256 sums were computed from published files."""
