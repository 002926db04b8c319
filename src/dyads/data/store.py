"""The store: labelled pairs in a folder, coded, larger than memory, in the orders that fits read them in.

A store has a manifest, the vocabularies and the labels as Arrow files, the codes as arrays in the order of the tables,
and a folder for each further order, made when a fit first needs it. Every file is written under another name and then
renamed, and has a checksum in a manifest: what is there is complete, and what is damaged is found.
"""

import contextlib
import glob
import importlib.util
import json
import os
import shutil
import socket
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from dyads.data import remote
from dyads.data.codes import Codes, Vocabulary, encode_labels, to_numpy
from dyads.data.dyads import Dyads, chunks
from dyads.data.features import LARGEST, Encoder, FixedColumn
from dyads.data.files import replacing
from dyads.errors import InputError, StoreError, counted

Array = np.ndarray[Any, Any]

MANIFEST = "manifest.json"
VERSION = 1
"""Version of the format; a store of another version is refused."""

COLUMNS = ("row", "col", "label", "weight", "relation")
DTYPES = {"row": np.int32, "col": np.int32, "label": np.int32, "weight": np.float64, "relation": np.int32}
BATCH = 2**20
"""Rows that are coded or predicted at a time."""

PART = 2**22
"""Pairs up to which a part of a store is kept in memory, by cross-validation: 50 MB."""

ENCODED = "features"
"""Folder of the encoded features of pairs, and the end of the names of orders that have them; a digest of the encoder
follows."""

FOLDS = "folds"
"""Folder of a store for larger parts, while they are needed."""

MEMORY = "3GB"
"""Memory that DuckDB may use to encode; beyond it, it works on disk."""

READERS = {
    ".parquet": "read_parquet({})",
    ".csv": "read_csv({}, header=true, auto_type_candidates=['BIGINT', 'DOUBLE', 'VARCHAR'])",
    ".tsv": "read_csv({}, header=true, delim='\t', auto_type_candidates=['BIGINT', 'DOUBLE', 'VARCHAR'])",
}
"""How DuckDB reads files, by their extensions; those of Arrow are read by pyarrow.

In text, ids and labels are numbers or text: DuckDB would take "yes" and "no" for booleans.
"""


class Pairs:
    """Labelled pairs, coded, in memory; a `Store` holds them in a folder.

    Attributes
    ----------
    columns : names of the columns of row ids, column ids, labels and, where there are any, weights and relations
    rows, cols, relations : vocabularies; relations are None if there is one
    classes : labels, sorted
    dyads : the codes
    features : the columns of features of pairs by name, not encoded
    """

    features: dict[str, FixedColumn]

    def __init__(
        self,
        columns: dict[str, str],
        rows: Vocabulary,
        cols: Vocabulary,
        relations: Vocabulary | None,
        classes: Array,
        dyads: Dyads,
        features: dict[str, FixedColumn] | None = None,
    ) -> None:
        self.columns, self.rows, self.cols, self.relations, self.classes = columns, rows, cols, relations, classes
        self._dyads, self.features = dyads, features or {}

    @property
    def dyads(self) -> Dyads:
        return self._dyads

    def __len__(self) -> int:
        return len(self.dyads)

    def __repr__(self) -> str:
        return f"Pairs: {len(self):,} of {len(self.rows):,} rows and {len(self.cols):,} columns, in memory"

    @property
    def coded(self) -> list[tuple[Vocabulary, Codes]]:
        """The vocabularies and the codes of the columns of ids."""
        dyads = self.dyads
        columns = [(self.rows, dyads.row), (self.cols, dyads.col)]
        return columns + (
            [] if self.relations is None or dyads.relation is None else [(self.relations, dyads.relation)]
        )

    @property
    def labels(self) -> Array:
        """The label of each pair (n,)."""
        return np.asarray(self.classes[self.dyads.label])

    def batches(self) -> "Iterator[Pairs]":
        """Yield the pairs in slices of `BATCH`, with the codes of all."""
        for first in range(0, len(self), BATCH):
            place = slice(first, first + BATCH)
            features = {name: column.take(place) for name, column in self.features.items()}
            some = self.dyads.take(place)
            yield Pairs(self.columns, self.rows, self.cols, self.relations, self.classes, some, features)

    def encoded(self, encoder: Encoder) -> Any:
        """The features of pairs as a sparse matrix (n, n_features); `encoder` : that learnt from these pairs."""
        return encoder.encode_columns(self.features)

    def take(self, which: Array, to: str | os.PathLike[str] | None = None) -> "Pairs":
        """Return some pairs with codes of their own, as if there were no others; `fit` and `evaluate` take them.

        `which` : mask (n,) or positions, as a splitter of `dyads.split` yields them. `to` : folder to make, which must
        not exist, for a `Store`; by default the part is kept in memory, 12 bytes a pair.
        """
        which = np.asarray(which)
        dyads, n = self.dyads, int(which.sum()) if which.dtype == np.bool_ else len(which)
        if which.dtype == np.bool_ and which.shape != (len(self),):
            raise InputError(f"Got a mask of shape {which.shape}: expected ({len(self)},), an entry for each pair.")
        if not n:
            raise InputError("Got no pairs to take: expected at least one.")
        present = np.zeros(len(self.classes), np.bool_)
        for positions in _positions(which):
            present[dyads.label[positions]] = True
        place = {"label": np.cumsum(present) - 1}
        kept: dict[str, Vocabulary] = {}
        for name, (ids, codes) in zip(("row", "col", "relation"), self.coded, strict=False):
            order, place[name] = _first_appearance(codes, len(ids), which)
            kept[name] = Vocabulary(ids.ids.take(pa.array(order)), ids.name)
        classes = self.classes[present]

        features = {f"feature_{i}": column for i, column in enumerate(self.features.values())}

        def parts() -> Iterator[dict[str, Array]]:
            for positions in _positions(which):
                columns = {name: getattr(dyads, name)[positions] for name in self.columns}
                columns = {name: place[name][column] if name in place else column for name, column in columns.items()}
                yield columns | {name: column.values[positions] for name, column in features.items()}

        if to is None:
            listed = list(parts())
            arrays = {name: np.concatenate([part[name] for part in listed]) for name in (*self.columns, *features)}
            relations = kept.get("relation")
            coded = Dyads(
                arrays["row"], arrays["col"], arrays["label"], arrays.get("weight"), len(kept["row"]), len(kept["col"]),
                len(classes), arrays.get("relation"), 1 if relations is None else len(relations),
            )  # fmt: skip
            some = {
                name: FixedColumn(values, column.type, column.categories)
                for (name, column), values in zip(
                    self.features.items(), (arrays[name] for name in features), strict=True
                )
            }
            return Pairs(self.columns, kept["row"], kept["col"], relations, classes, coded, some)
        dtypes: dict[str, Any] = {name: DTYPES[name] for name in self.columns}
        dtypes |= {name: column.values.dtype for name, column in features.items()}
        with _made(_new_folder(to)) as made, _Columns(made, dtypes, n) as out:
            for name, ids in kept.items():
                _write_column(made, f"{name}s.arrow", ids.ids)
            _write_column(made, "labels.arrow", pa.array(classes.tolist()))
            for part in parts():
                out.write(part)
            categories = {name: column.categories for name, column in features.items() if column.categories is not None}
            for name, values in categories.items():
                _write_column(made, f"{name}s.arrow", values)
            types = [[name, str(column.type)] for name, column in self.features.items()]
            about = {"format": "dyads store", "version": VERSION, "n": n, "columns": self.columns, "features": types}
            out.close(about, [*(f"{name}s.arrow" for name in (*kept, *categories)), "labels.arrow"])
        return Store(to)

    def part(self, positions: Array) -> "Pairs":
        """Return some pairs with codes of their own, wherever they are kept; `discard` removes what was kept."""
        return self.take(positions)

    def lines(self, positions: Array) -> tuple[pa.Table, pa.Array, Array | None]:
        """Return some pairs as a table of ids and features, their labels and their weights."""
        columns = {ids.name: ids.ids.take(pa.array(code[positions])) for ids, code in self.coded}
        for name, column in self.features.items():
            columns[name] = column.take(positions).slice(0, len(positions))
        table = pa.table(columns)
        labels = pa.array(self.classes.tolist()).take(pa.array(self.dyads.label[positions]))
        return table, labels, None if self.dyads.weight is None else self.dyads.weight[positions]


class Store(Pairs):
    """A folder of coded pairs; see `scan`. `fit(store)` fits a model to it as to a table.

    Attributes
    ----------
    path : the folder
    address : of the store in object storage, such as "s3://bucket/ratings.store", or None
        Its files are then copied to `path`, in the user's cache, when they are first needed, and orders that are made
        are copied back.
    unsent : why an order could not be copied back, by its name
    others : as for `Pairs`
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.unsent: dict[str, str] = {}
        self._encoded = ENCODED
        self.address = os.fspath(path) if remote.is_remote(path) else None
        self.path = Path(path) if self.address is None else _copied(self.address)
        self._manifest = _read_manifest(self.path)
        if not _is_of_a_store(self._manifest):
            raise StoreError(
                f"{self.path} is not a store of this version of dyads: expected one that dyads.scan or dyads encode "
                "has made. Make it again."
            )
        self.columns: dict[str, str] = self._manifest["columns"]
        names = {name: self.columns[name] for name in ("row", "col", "relation") if name in self.columns}
        vocabularies = {name: Vocabulary(self._column(f"{name}s.arrow"), column) for name, column in names.items()}
        self.rows, self.cols = vocabularies["row"], vocabularies["col"]
        self.relations = vocabularies.get("relation")
        self.classes = to_numpy(self._column("labels.arrow"))

    def __len__(self) -> int:
        return int(self._manifest["n"])

    def __repr__(self) -> str:
        return f"Store({self._shown!r}): {len(self):,} pairs of {len(self.rows):,} rows and {len(self.cols):,} columns"

    @property
    def _shown(self) -> str:
        return str(self.path) if self.address is None else remote.public(self.address)

    @property
    def location(self) -> str:
        """Where other machines find the store: its address, or its absolute path."""
        return str(self.path.resolve()) if self.address is None else self.address

    def _column(self, name: str) -> pa.Array:
        _check_file(self.path, name, self._manifest)
        try:
            with pa.memory_map(str(self.path / name)) as file:
                column = pa.ipc.open_file(file).read_all()["id"].combine_chunks()
                column.validate(full=True)
        except (pa.ArrowException, KeyError, OSError) as error:
            reason = " ".join(str(error).split())[:100]
            raise StoreError(f"{self.path / name} holds no column of ids ({reason}): {_remedy(self.path)}.") from error
        if column.null_count:
            raise StoreError(f"{self.path / name} lacks ids: expected no missing ones, so {_remedy(self.path)}.")
        return column

    @cached_property
    def features(self) -> dict[str, FixedColumn]:  # type: ignore[override]
        """The columns of features of pairs by name, in the order of the tables, mapped from disk; not encoded."""
        columns = {}
        for i, (name, kind) in enumerate(self._manifest.get("features", [])):
            file, type_ = f"feature_{i}.npy", _type_of(kind, self.path)
            is_coded = f"feature_{i}s.arrow" in self._manifest["files"]
            values = _mapped(self.path, file, self._manifest, (len(self),), FixedColumn.dtype_of(type_))
            categories = self._column(f"feature_{i}s.arrow") if is_coded else None
            is_wrong = is_coded != (values.dtype == np.int32)
            if is_wrong or (categories is not None and values.max(initial=-1) >= len(categories)):
                raise StoreError(f"{self.path / file} holds codes without a category: {_remedy(self.path)}.")
            columns[name] = FixedColumn(values, type_, categories)
        return columns

    def encoded(self, encoder: Encoder) -> Any:
        """The features of pairs as a sparse matrix (n, n_features), mapped from disk; written when first asked for."""
        digest = zlib.crc32(json.dumps(encoder.to_json(), sort_keys=True).encode())
        self._encoded = f"{ENCODED}-{digest:08x}"
        folder, shape = self.path / self._encoded, (len(self), len(encoder.names))
        if not (folder / MANIFEST).exists():
            most = len(self) * len(self.features)
            with _made(folder) as made, _Columns(made, {}, len(self)) as out:
                out.add_matrix(most)
                for part in encoder.encoded_parts(self.features):
                    out.append(part)
                out.close({"n": len(self), "entries": most})
        return _mapped_matrix(folder, _read_manifest(folder), shape)

    @cached_property
    def dyads(self) -> Dyads:
        """All pairs, in the order of the tables, mapped from disk."""
        arrays = {
            name: _mapped(self.path, f"{name}.npy", self._manifest, (len(self),), DTYPES[name]) for name in self.columns
        }
        weight = arrays.get("weight")
        if weight is not None and not (weight.min() > 0 and weight.max() < np.inf):
            raise StoreError(f"{self.path} holds weights that are not positive numbers: {_remedy(self.path)}.")
        with _checked_codes(self.path):
            return Dyads(
                arrays["row"], arrays["col"], arrays["label"], weight, len(self.rows), len(self.cols),
                len(self.classes), arrays.get("relation"), 1 if self.relations is None else len(self.relations),
                home=self,
            )  # fmt: skip

    def part(self, positions: Array) -> Pairs:
        """Return some pairs with codes of their own: in memory or, if there are more than `PART`, in this folder.

        What a process that was killed has left there is used again.
        """
        if len(positions) <= PART:
            return self.take(positions)
        checksum = zlib.crc32(np.ascontiguousarray(positions).data)
        folder = self.path / FOLDS / f"{checksum:08x}-{len(positions)}"
        if not folder.exists():
            _make_folder(folder.parent)
            self.take(positions, to=folder)
        return Store(folder)

    def in_order(self, name: str, dyads: Dyads, parts: Iterator[Array]) -> tuple[Dyads, Array]:
        """Return pairs in an order and their positions before, mapped from disk; see `Memory.in_order`.

        They are written when they are first asked for. Two processes may do so at once: both write the same.
        """
        matrix = dyads.side.dyad
        folder = self.path / (name if matrix is None else f"{name}-{self._encoded}")
        if self.address is not None and not (folder / MANIFEST).exists():
            _fetch_order(self.address, folder)
        if not (folder / MANIFEST).exists():
            _write_order(folder, dyads, parts)
        manifest = _read_manifest(folder)
        if manifest.get("n") != len(dyads):
            raise StoreError(f"{folder} holds {manifest.get('n')} pairs, not {len(dyads)}: delete it, and fit again.")
        side = dyads.side
        if matrix is not None:
            side = side._replace(dyad=_mapped_matrix(folder, manifest, matrix.shape))
        n, names = len(dyads), [column for column in COLUMNS if getattr(dyads, column) is not None]
        arrays: dict[str, Any] = {}
        for column in names:
            arrays[column] = _mapped(folder, f"{column}.npy", manifest, (n,), DTYPES[column])
        place = _mapped(folder, "place.npy", manifest, (n,), np.int64)
        # Kernels trust that dyads are grouped by owner, and where each was before.
        owner = {"by-row": arrays["row"], "by-column": arrays["col"]}.get(name)
        is_sorted = owner is None or all((np.diff(owner[_and_next(some)]) >= 0).all() for some in chunks(n))
        if not is_sorted or place.min(initial=0) < 0 or place.max(initial=0) >= n:
            raise StoreError(f"{folder} is not in the order of its name: {_remedy(folder)}.")
        if self.address is not None:
            self._send_order(self.address, folder)
        with _checked_codes(folder):
            return replace(dyads, side=side, **arrays), place

    def _send_order(self, address: str, folder: Path) -> None:
        """Copy an order to object storage, unless it is there; a driver may have been killed while it did.

        A fit on this machine needs no copy there, so a refusal is kept in `unsent`.
        """
        try:
            if MANIFEST not in remote.files(address, folder.name):
                others = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
                # The manifest is the last: it says that all is there.
                remote.send(address, folder.name, [*others, MANIFEST], folder)
            self.unsent.pop(folder.name, None)
        except StoreError as error:
            self.unsent[folder.name] = str(error)


def _copied(address: str) -> Path:
    """Copy the files of a store of object storage to the user's cache, unless they are there; return the folder."""
    if MANIFEST not in remote.files(address):
        raise StoreError(f"{remote.public(address)} is not a store: expected a {MANIFEST} there. Check the address.")
    manifest = _manifest_of(remote.read(address, MANIFEST), remote.public(address), "make the store again")
    key = zlib.crc32(f"{address} {_of_manifest(manifest)}".encode())
    folder = _cache() / f"{key:08x}"
    if not (folder / MANIFEST).exists():
        _make_folder(folder.parent)
        with _made(folder) as made:
            remote.fetch(address, "", [*manifest["files"], MANIFEST], made)
    return folder


def _cache() -> Path:
    """Where stores of object storage are copied to."""
    return Path.home() / ".cache" / "dyads" / "stores"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made ({error.strerror}): expected a folder to write to.") from error


def _write_order(folder: Path, dyads: Dyads, parts: Iterator[Array]) -> None:
    """Write pairs in an order; `parts` : their positions, part by part."""
    matrix = dyads.side.dyad
    columns = {column: getattr(dyads, column) for column in COLUMNS if getattr(dyads, column) is not None}
    dtypes = {column: DTYPES[column] for column in columns} | {"place": np.int64}
    with _made(folder) as made, _Columns(made, dtypes, len(dyads)) as out:
        if matrix is not None:
            out.add_matrix(matrix.nnz)
        for positions in parts:
            out.write({column: array[positions] for column, array in columns.items()} | {"place": positions})
            for first in range(0, len(positions) if matrix is not None else 0, BATCH):
                out.append(matrix[positions[first : first + BATCH]])
        out.close({"n": len(dyads), "entries": None if matrix is None else matrix.nnz})


def _fetch_order(address: str, folder: Path) -> None:
    """Copy the files of an order to a folder, if it has been made."""
    names = remote.files(address, folder.name)
    if MANIFEST in names:
        with _made(folder) as made:
            remote.fetch(address, folder.name, names, made)


def checksum_of(columns: Iterable[Array]) -> int:
    """CRC-32 of some columns, one after the other."""
    total = 0
    for column in columns:
        total = zlib.crc32(np.ascontiguousarray(column).data, total)
    return total


def reached(store: str) -> tuple[int, str]:
    """Return the number of pairs of a store and the checksum of its manifest, which alone is read; raise without it."""
    if remote.is_remote(store):
        manifest = _manifest_of(remote.read(store, MANIFEST), remote.public(store), "make the store again")
    else:
        manifest = _read_manifest(Path(store))
    return int(manifest["n"]), f"{_of_manifest(manifest):08x}"


def read_lines(store: str, order: str, columns: Sequence[str], begin: int, end: int, checksum: int) -> dict[str, Array]:
    """Read some lines of an order of a store, on a machine that has not opened it, and check them.

    They are mapped from disk, or read from object storage.

    `order` : folder of the order in the store, "" for the order of the tables. `checksum` : see `checksum_of`.
    """
    away = remote.is_remote(store)
    where = remote.public(store) if away else str(Path(store, order))
    try:
        if away:
            read = {name: remote.read_array(store, order, f"{name}.npy", begin, end) for name in columns}
        else:
            read = {name: _whole(Path(where) / f"{name}.npy")[begin:end] for name in columns}
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{where} cannot be read on {socket.gethostname()} ({error}): expected a store that all machines reach by "
            "the same path. Put it on a shared file system."
        ) from error
    if checksum_of(read.values()) != checksum:
        raise StoreError(
            f"{where} holds other pairs on {socket.gethostname()}: expected one store that all machines reach by the "
            "same path. Put it on a shared file system, or make it again."
        )
    return {name: np.asarray(column) for name, column in read.items()}


def _whole(path: Path) -> Array:
    """An array of a file, mapped once in a process: as many maps as shards would exhaust what a process may have."""
    about = path.stat()
    return _maps(path, (about.st_ino, about.st_mtime_ns, about.st_size))


@lru_cache(maxsize=64)
def _maps(path: Path, _: tuple[int, ...]) -> Array:
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


def discard(part: Pairs) -> None:
    """Remove what `Store.part` has written for a part."""
    if isinstance(part, Store) and part.path.parent.name == FOLDS:
        shutil.rmtree(part.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            part.path.parent.rmdir()


def _positions(which: Array) -> Iterator[Array]:
    """Yield the positions of a mask, or of a list of them, part by part."""
    for some in chunks(len(which)):
        yield some.start + np.flatnonzero(which[some]) if which.dtype == np.bool_ else which[some]


def _first_appearance(codes: Codes, n: int, which: Array) -> tuple[Array, Array]:
    """The codes below `n` that occur in some pairs, by first appearance; and the place (n,) of each code in them."""
    first, done = np.full(n, np.iinfo(np.int64).max), 0
    for positions in _positions(which):
        # Of several values assigned to one element the last is kept: here the first appearance.
        own, here = codes[positions][::-1], np.full(n, np.iinfo(np.int64).max)
        here[own] = np.arange(done + len(own) - 1, done - 1, -1)
        first, done = np.minimum(first, here), done + len(own)
    order = np.argsort(first, kind="stable")[: int((first < done).sum())]
    place = np.full(n, -1)
    place[order] = np.arange(len(order))
    return order, place


def _new_folder(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.exists():
        raise InputError(f"{target} exists: expected the name of a new folder. Delete it, or name another.")
    return target


def scan(
    paths: str | os.PathLike[str] | Sequence[str],
    *,
    row: str,
    col: str,
    label: str,
    weight: str | None = None,
    relation: str | None = None,
    features: Sequence[str] = (),
    to: str | os.PathLike[str],
) -> Store:
    """Encode tables in files into a store, in bounded memory: the folder `to`, which must not exist.

    Needs DuckDB (``pip install 'dyads[large]'``).

    Parameters
    ----------
    paths : files, or patterns such as "ratings/*.parquet"
        Parquet, CSV and TSV with a header, or Arrow files, all of one kind; files of a pattern are taken in the order
        of their names. Codes are given by first appearance, so a store depends on the tables alone.
    row, col, label, weight, relation : names of columns
        Pairs of weight zero are left out.
    features : names of columns with features of pairs: numbers, dates, text or booleans; they may have missing values
        They are encoded as further columns of a table are.
    to : folder to make
    """
    if importlib.util.find_spec("duckdb") is None:
        raise InputError("A store needs DuckDB, which is not installed: run pip install 'dyads[large]'.")
    files = _files(paths)
    target = _new_folder(to)
    names = {"row": row, "col": col, "label": label, "weight": weight, "relation": relation}
    columns = {name: column for name, column in names.items() if column is not None}
    if isinstance(features, str):
        raise InputError(f"Got features={features!r}: expected a list of names of columns. Write [{features!r}].")
    named = [*columns.values(), *features]
    if len(set(named)) < len(named):
        raise InputError(f"Got the columns {named}: expected a different one for each.")
    with _made(target) as made:
        _encode(files, columns, list(features), made)
    return Store(target)


def _files(paths: Any) -> list[str]:
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[str] = []
    for pattern in (os.fspath(path) for path in listed):
        is_pattern = glob.has_magic(pattern) and not os.path.isfile(pattern)
        matches = sorted(glob.glob(pattern)) if is_pattern else [pattern]
        if not matches:
            raise InputError(f"No file matches {pattern}: expected tables. Check the pattern.")
        files += matches
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise InputError(f"{missing[0]} is not a file: expected a table. Check the path.")
    kinds = {os.path.splitext(file)[1].lower() for file in files}
    if len(kinds) != 1 or not kinds <= {*READERS, ".arrow", ".feather"}:
        raise InputError(f"Got files of the kinds {sorted(kinds)}: expected one of Parquet, CSV, TSV or Arrow.")
    return files


def _encode(files: list[str], columns: dict[str, str], features: list[str], folder: Path) -> None:
    """Write the codes, vocabularies, labels and features of tables to a folder."""
    import duckdb

    work = folder / "work"
    work.mkdir()
    connection: Any = duckdb.connect(str(work / "tables.duckdb"))
    try:
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        connection.execute(f"SET temp_directory = '{_quoted(str(work))}'")
        source = _source(connection, files)
        try:
            further = {f"feature_{i}": column for i, column in enumerate(features)}
            _read_tables(connection, source, columns, further)
        except duckdb.Error as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"The tables cannot be read ({reason}): check the files and the names of columns."
            ) from error
        n = _number(connection, "SELECT count(*) FROM lines")
        if not n:
            raise InputError("The tables have no pairs: expected at least one.")
        ids = [name for name in ("row", "col", "relation") if name in columns]
        types = _feature_types(connection, further)
        coded = [name for name, kind in types.items() if FixedColumn.dtype_of(kind) is np.int32]
        for name in (*ids, *coded):
            connection.execute(
                f"CREATE TABLE {name}s AS SELECT id, row_number() OVER (ORDER BY first) - 1 AS code FROM "
                f"(SELECT {name} AS id, min(rowid) AS first FROM lines WHERE {name} IS NOT NULL GROUP BY {name})"
            )
            _write_column(folder, f"{name}s.arrow", _fetched(connection, f"SELECT id FROM {name}s ORDER BY code"))
        distinct = _fetched(connection, "SELECT DISTINCT label AS id FROM lines")
        classes, codes = encode_labels(distinct, n_dyads=n)
        _write_column(folder, "labels.arrow", pa.array(classes.tolist()))
        connection.register("labels_found", pa.table({"id": distinct, "code": codes}))
        connection.execute("CREATE TABLE labels AS SELECT id, code FROM labels_found")
        joined = " ".join(f"JOIN {name}s ON lines.{name} = {name}s.id" for name in (*ids, "label"))
        joined += "".join(f" LEFT JOIN {name}s ON lines.{name} = {name}s.id" for name in coded)
        selected = ", ".join(f"{name}s.code AS {name}" for name in (*ids, "label"))
        selected += "".join(f", coalesce({name}s.code, -1) AS {name}" for name in coded)
        plain = [name for name in types if name not in coded]
        selected += "".join(f", lines.{name}" for name in [*(["weight"] if "weight" in columns else []), *plain])
        dtypes = {name: DTYPES[name] for name in columns}
        dtypes |= {name: FixedColumn.dtype_of(kind) for name, kind in types.items()}
        reader: Any = connection.sql(f"SELECT lines.rowid AS place, {selected} FROM lines {joined}")
        with _Columns(folder, dtypes, n) as out:
            for batch in reader.to_arrow_reader(BATCH):
                part = {name: np.asarray(batch[name]) for name in (*columns, *coded)}
                for name in plain:
                    part[name] = FixedColumn.numbers_of(batch[name], types[name], further[name])
                out.scatter(np.asarray(batch["place"]), part)
            vocabularies = [*(f"{name}s.arrow" for name in (*ids, *coded)), "labels.arrow"]
            about = {"format": "dyads store", "version": VERSION, "n": n, "columns": columns}
            about["features"] = [[further[name], str(kind)] for name, kind in types.items()]
            out.close(about, vocabularies)
    finally:
        connection.close()
        shutil.rmtree(work, ignore_errors=True)


def _source(connection: Any, files: list[str]) -> str:
    kind = os.path.splitext(files[0])[1].lower()
    if kind in READERS:
        listed = ", ".join(f"'{_quoted(file)}'" for file in files)
        return READERS[kind].format(f"[{listed}]")
    from pyarrow import dataset

    connection.register("files", dataset.dataset(files, format="arrow"))
    return "files"


def _feature_types(connection: Any, features: dict[str, str]) -> dict[str, pa.DataType]:
    """The type in which each column of features of pairs is kept, checked; `features` : their names, by those here."""
    types = {}
    for name, column in features.items():
        kind = connection.sql(f"SELECT {name} FROM lines LIMIT 0").to_arrow_table().schema.field(0).type
        types[name] = FixedColumn.plain_type(kind, column)
        if not _number(connection, f"SELECT count({name}) FROM lines"):
            raise InputError(
                f"Column {column!r} has only missing values: expected at least one value. Drop the column."
            )
        wrong = f"SELECT count(*) FROM lines WHERE NOT isnan({name}) AND NOT abs({name}) < {LARGEST}"
        if pa.types.is_floating(kind) and _number(connection, wrong):
            raise InputError(
                f"Column {column!r} has infinite numbers, or ones beyond {LARGEST:g}: expected finite ones. Drop or "
                "fill them first."
            )
        # Timestamps are kept in microseconds if these are exact, as those of a table.
        finer = f"SELECT count(*) FROM lines WHERE epoch_ns({name}) % 1000 <> 0"
        if pa.types.is_timestamp(kind):
            exact = kind.unit != "ns" or not _number(connection, finer)
            types[name] = pa.timestamp("us" if exact else "ns")
        same = f"SELECT count(*) FROM lines WHERE {name} IS DISTINCT FROM label"
        alike = "SELECT typeof(label) = typeof({}) FROM lines LIMIT 1"
        if _number(connection, alike.format(name)) and not _number(connection, same):
            raise InputError(
                f"Column {column!r} holds the labels themselves: expected features known before the label. Drop "
                f"{column!r} from the features."
            )
    return types


def _read_tables(connection: Any, source: str, columns: dict[str, str], features: dict[str, str]) -> None:
    """Read the tables into "lines", in order, so that the number of a line is its position."""
    named = ", ".join(
        f'"{column.replace(chr(34), chr(34) * 2)}" AS {name}' for name, column in (columns | features).items()
    )
    weighed = " WHERE weight IS NULL OR weight <> 0" if "weight" in columns else ""
    connection.execute(f"CREATE TABLE lines AS SELECT * FROM (SELECT {named} FROM {source}){weighed}")
    types = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE lines)").fetchall())
    for name in features:
        if types[name].startswith("ENUM"):
            connection.execute(f"ALTER TABLE lines ALTER COLUMN {name} TYPE VARCHAR")
    for name, column in columns.items():
        missing = _number(connection, f"SELECT count(*) FROM lines WHERE {name} IS NULL")
        if missing:
            raise InputError(f"Column {column!r} lacks {counted(missing, 'value')}: expected none. Drop these lines.")
    wrong = "SELECT count(*) FROM lines WHERE NOT weight > 0 OR NOT isfinite(weight::DOUBLE)"
    if "weight" in columns and _number(connection, wrong):
        raise InputError(f"Column {columns['weight']!r} has negative weights or NaN: expected numbers above zero.")


def _number(connection: Any, query: str) -> int:
    """The only number that a query gives."""
    return int(connection.execute(query).fetchall()[0][0])


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _fetched(connection: Any, query: str) -> pa.Array:
    """The column "id" of a query."""
    column = connection.sql(query).to_arrow_table()["id"].combine_chunks()
    return column.cast(pa.large_string()) if pa.types.is_string(column.type) else column


class _Columns:
    """Arrays of a folder that are written part by part, and their checksums."""

    def __init__(self, folder: Path, dtypes: dict[str, Any], n: int) -> None:
        self.folder, self.n, self.at, self.lines = folder, n, 0, 0
        self.arrays: dict[str, Any] = {}
        for name, dtype in dtypes.items():
            self._add(name, dtype, n)

    def _add(self, name: str, dtype: Any, n: int) -> None:
        self.arrays[name] = np.lib.format.open_memmap(self.folder / f"{name}.npy", "w+", dtype, (n,))

    def add_matrix(self, n_entries: int) -> None:
        """Add a sparse matrix (CSR) with at most so many entries; `append` writes its lines."""
        dtype = np.int32 if n_entries <= np.iinfo(np.int32).max else np.int64
        for name, kind, n in (("indptr", dtype, self.n + 1), ("indices", dtype, n_entries), ("data", float, n_entries)):
            self._add(name, kind, n)

    def append(self, lines: Any) -> None:
        """Write the next lines of the sparse matrix."""
        start = self.arrays["indptr"]
        first, n = int(start[self.lines]), lines.shape[0]
        start[self.lines + 1 : self.lines + n + 1] = first + lines.indptr[1:]
        self.arrays["indices"][first : first + lines.nnz] = lines.indices
        self.arrays["data"][first : first + lines.nnz] = lines.data
        self.lines += n

    def __enter__(self) -> "_Columns":
        return self

    def __exit__(self, *_: object) -> None:
        self.arrays.clear()

    def write(self, part: dict[str, Array]) -> None:
        """Write the next lines."""
        n = len(next(iter(part.values())))
        self.scatter(slice(self.at, self.at + n), part)
        self.at += n

    def scatter(self, place: Any, part: dict[str, Array]) -> None:
        """Write lines to their places."""
        for name, values in part.items():
            self.arrays[name][place] = values

    def close(self, manifest: dict[str, Any], others: Sequence[str] = ()) -> None:
        """Write the arrays to disk, and then the manifest, which says that all is there."""
        for array in self.arrays.values():
            array.flush()
        names = [*(f"{name}.npy" for name in self.arrays), *others]
        manifest["files"] = {name: _checksum(self.folder / name) for name in names}
        manifest["checksum"] = _of_manifest(manifest)
        with replacing(self.folder / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())


class _made:
    """A folder that is made under another name, and renamed when it is complete; else it is removed."""

    def __init__(self, target: Path) -> None:
        self.begun, self.target = f".{target.name}.{socket.gethostname()}.", target
        self.partial = target.with_name(f"{self.begun}{os.getpid()}.{uuid.uuid4().hex}.part")

    def __enter__(self) -> Path:
        # What processes of this machine that were killed have left.
        for path in self.target.parent.glob(f"{glob.escape(self.begun)}*.part"):
            process = path.name.removeprefix(self.begun).partition(".")[0]
            if process.isdecimal() and not _runs(int(process)):
                shutil.rmtree(path, ignore_errors=True)
        try:
            self.partial.mkdir()
        except OSError as error:
            raise StoreError(
                f"{self.target} cannot be made ({error.strerror}): expected a folder to write to."
            ) from error
        return self.partial

    def __exit__(self, kind: Any, error: Any, _: object) -> None:
        if kind is None:
            try:
                os.rename(self.partial, self.target)
            except OSError as failed:
                if not (self.target / MANIFEST).exists():
                    raise StoreError(f"{self.target} cannot be made ({failed.strerror}).") from failed
        shutil.rmtree(self.partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise StoreError(
                f"{self.target} cannot be written ({error.strerror or error}): free some space, or name another folder."
            ) from error


def _runs(process: int) -> bool:
    """Whether a process of this machine runs, as far as is known."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _checksum(path: Path) -> int:
    """CRC-32 of a file."""
    total = 0
    with open(path, "rb") as file:
        while block := file.read(2**22):
            total = zlib.crc32(block, total)
    return total


def _of_manifest(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise StoreError(f"{folder} is not a store: expected a folder with a {MANIFEST}. Check the path.") from error
    except OSError as error:
        raise StoreError(f"{folder / MANIFEST} cannot be read ({error.strerror}): {_remedy(folder)}.") from error
    return _manifest_of(text, str(folder), _remedy(folder))


def _manifest_of(text: bytes, where: str, remedy: str) -> dict[str, Any]:
    """Read and check the text of a manifest."""
    try:
        manifest = json.loads(text)
        checksum = manifest.pop("checksum")
        if checksum != _of_manifest(manifest):
            raise ValueError("its checksum does not match")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{where}/{MANIFEST} is damaged ({str(error)[:100]}): {remedy}.") from error
    return manifest  # type: ignore[no-any-return]


def _check_file(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """Raise unless a file is as it was written."""
    path = folder / name
    try:
        intact = _checksum(path) == manifest["files"][name]
    except (OSError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}): {_remedy(folder)}.") from error
    if not intact:
        raise StoreError(f"{path} is damaged, its checksum does not match: {_remedy(folder)}.")


def _remedy(folder: Path) -> str:
    """What to do about a folder with a damaged file: an order and a copy of a store can be made again."""
    if not (folder / "labels.arrow").exists():
        return f"delete the folder {folder}, and fit again"
    return f"delete the folder {folder}, a copy" if _cache() in folder.parents else "make the store again"


def _is_of_a_store(manifest: dict[str, Any]) -> bool:
    """Whether a manifest is that of a store of this version, and says what it should."""
    columns: Any = manifest.get("columns")
    features: Any = manifest.get("features", [])
    named = isinstance(columns, dict) and {*COLUMNS[:3]} <= {*columns} <= {*COLUMNS}
    return (
        (manifest.get("format"), manifest.get("version")) == ("dyads store", VERSION)
        and type(manifest.get("n")) is int
        and named
        and all(isinstance(name, str) for name in columns.values())
        and isinstance(manifest.get("files"), dict)
        and isinstance(features, list)
        and all(isinstance(each, list) and [type(part) for part in each] == [str, str] for each in features)
        and len({*columns.values(), *(name for name, _ in features)}) == len(columns) + len(features)
    )


@contextlib.contextmanager
def _checked_codes(folder: Path) -> Iterator[None]:
    """Tell of codes beyond a vocabulary, which `Dyads` refuses, as of a damaged folder."""
    try:
        yield
    except InputError as error:
        raise StoreError(
            f"{folder} holds codes without an id ({str(error).rstrip('.')}): {_remedy(folder)}."
        ) from error


def _and_next(some: slice) -> slice:
    """A slice and the entry after it."""
    return slice(some.start, some.stop + 1)


def _type_of(kind: str, folder: Path) -> pa.DataType:
    """The type of a column of features, by its name."""
    try:
        type_ = pa.type_for_alias(kind)
        FixedColumn.plain_type(type_, kind)
        return type_
    except (ValueError, InputError) as error:
        raise StoreError(f"{folder} holds features of type {kind!r:.40}: {_remedy(folder)}.") from error


def _mapped(folder: Path, name: str, manifest: dict[str, Any], shape: tuple[int, ...], *dtypes: Any) -> Array:
    """An array of a file, mapped and checked; `dtypes` : those that it may have."""
    _check_file(folder, name, manifest)
    try:
        array: Array = np.lib.format.open_memmap(folder / name, mode="r")
    except Exception as error:
        # The header is Python, and NumPy raises what Python's tokenizer and parser do.
        raise StoreError(f"{folder / name} holds no array ({str(error)[:100]}): {_remedy(folder)}.") from error
    if array.shape != shape or array.dtype not in dtypes:
        raise StoreError(
            f"{folder / name} holds {array.dtype} of shape {array.shape}, expected {np.dtype(dtypes[0])} of {shape}: "
            f"{_remedy(folder)}."
        )
    return np.asarray(array)


def _mapped_matrix(folder: Path, manifest: dict[str, Any], shape: tuple[int, int]) -> Any:
    """A sparse matrix (CSR) of three files, mapped and checked."""
    n, most = shape[0], manifest.get("entries")
    if manifest.get("n") != n or most is None:
        raise StoreError(f"{folder} lacks the features of {n} pairs: {_remedy(folder)}.")
    start = _mapped(folder, "indptr.npy", manifest, (n + 1,), np.int32, np.int64)
    indices = _mapped(folder, "indices.npy", manifest, (most,), start.dtype)
    data = _mapped(folder, "data.npy", manifest, (most,), np.float64)
    used = slice(0, max(0, int(start[-1])))
    # Differences could overflow.
    is_grouped = start[0] == 0 and start[-1] <= most and (start[1:] >= start[:-1]).all()
    if not is_grouped or indices[used].min(initial=0) < 0 or indices[used].max(initial=0) >= shape[1]:
        raise StoreError(f"{folder} holds features beyond the {shape[1]} of the encoder: {_remedy(folder)}.")
    return sparse.csr_array((data[: start[-1]], indices[: start[-1]], start), shape=shape, copy=False)


def _write_column(folder: Path, name: str, column: pa.Array) -> None:
    column = column.cast(pa.large_string()) if pa.types.is_string(column.type) else column
    table = pa.table({"id": column})
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
