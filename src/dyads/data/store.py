"""The store: labelled pairs in a folder, coded, larger than memory, in the orders that fits read them in.

A store has a manifest, the vocabularies and the labels as Arrow files, the codes as arrays in the order of the tables,
and a folder for each further order, made when a fit first needs it; see `arrays` for how they are written.
"""

import contextlib
import json
import os
import shutil
import socket
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dyads.data import remote
from dyads.data.arrays import (
    MANIFEST,
    Columns,
    NewFolder,
    cache,
    check_file,
    check_new,
    checksum_of_manifest,
    make_folder,
    manifest_of,
    mapped,
    mapped_matrix,
    read_manifest,
    remedy,
    write_column,
)
from dyads.data.codes import Codes, Vocabulary, to_numpy
from dyads.data.dyads import Dyads, chunks
from dyads.data.features import Encoder, FixedColumn
from dyads.errors import InputError, StoreError

Array = np.ndarray[Any, Any]

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
        with NewFolder(check_new(to)) as made, Columns(made, dtypes, n) as out:
            for name, ids in kept.items():
                write_column(made, f"{name}s.arrow", ids.ids)
            write_column(made, "labels.arrow", pa.array(classes.tolist()))
            for part in parts():
                out.write(part)
            categories = {name: column.categories for name, column in features.items() if column.categories is not None}
            for name, values in categories.items():
                write_column(made, f"{name}s.arrow", values)
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
        self._manifest = read_manifest(self.path)
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
        check_file(self.path, name, self._manifest)
        try:
            with pa.memory_map(str(self.path / name)) as file:
                column = pa.ipc.open_file(file).read_all()["id"].combine_chunks()
                column.validate(full=True)
        except (pa.ArrowException, KeyError, OSError) as error:
            reason = " ".join(str(error).split())[:100]
            raise StoreError(f"{self.path / name} holds no column of ids ({reason}): {remedy(self.path)}.") from error
        if column.null_count:
            raise StoreError(f"{self.path / name} lacks ids: expected no missing ones, so {remedy(self.path)}.")
        return column

    @cached_property
    def features(self) -> dict[str, FixedColumn]:  # type: ignore[override]
        """The columns of features of pairs by name, in the order of the tables, mapped from disk; not encoded."""
        columns = {}
        for i, (name, kind) in enumerate(self._manifest.get("features", [])):
            file, type_ = f"feature_{i}.npy", _type_of(kind, self.path)
            is_coded = f"feature_{i}s.arrow" in self._manifest["files"]
            values = mapped(self.path, file, self._manifest, (len(self),), FixedColumn.dtype_of(type_))
            categories = self._column(f"feature_{i}s.arrow") if is_coded else None
            is_wrong = is_coded != (values.dtype == np.int32)
            if is_wrong or (categories is not None and values.max(initial=-1) >= len(categories)):
                raise StoreError(f"{self.path / file} holds codes without a category: {remedy(self.path)}.")
            columns[name] = FixedColumn(values, type_, categories)
        return columns

    def encoded(self, encoder: Encoder) -> Any:
        """The features of pairs as a sparse matrix (n, n_features), mapped from disk; written when first asked for."""
        digest = zlib.crc32(json.dumps(encoder.to_json(), sort_keys=True).encode())
        self._encoded = f"{ENCODED}-{digest:08x}"
        folder, shape = self.path / self._encoded, (len(self), len(encoder.names))
        if not (folder / MANIFEST).exists():
            most = len(self) * len(self.features)
            with NewFolder(folder) as made, Columns(made, {}, len(self)) as out:
                out.add_matrix(most)
                for part in encoder.encoded_parts(self.features):
                    out.append(part)
                out.close({"n": len(self), "entries": most})
        return mapped_matrix(folder, read_manifest(folder), shape)

    @cached_property
    def dyads(self) -> Dyads:
        """All pairs, in the order of the tables, mapped from disk."""
        arrays = {
            name: mapped(self.path, f"{name}.npy", self._manifest, (len(self),), DTYPES[name]) for name in self.columns
        }
        weight = arrays.get("weight")
        if weight is not None and not (weight.min() > 0 and weight.max() < np.inf):
            raise StoreError(f"{self.path} holds weights that are not positive numbers: {remedy(self.path)}.")
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
            make_folder(folder.parent)
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
        manifest = read_manifest(folder)
        if manifest.get("n") != len(dyads):
            raise StoreError(f"{folder} holds {manifest.get('n')} pairs, not {len(dyads)}: delete it, and fit again.")
        side = dyads.side
        if matrix is not None:
            side = side._replace(dyad=mapped_matrix(folder, manifest, matrix.shape))
        n, names = len(dyads), [column for column in COLUMNS if getattr(dyads, column) is not None]
        arrays: dict[str, Any] = {}
        for column in names:
            arrays[column] = mapped(folder, f"{column}.npy", manifest, (n,), DTYPES[column])
        place = mapped(folder, "place.npy", manifest, (n,), np.int64)
        # Kernels trust that dyads are grouped by owner, and where each was before.
        owner = {"by-row": arrays["row"], "by-column": arrays["col"]}.get(name)
        is_sorted = owner is None or all((np.diff(owner[_and_next(some)]) >= 0).all() for some in chunks(n))
        if not is_sorted or place.min(initial=0) < 0 or place.max(initial=0) >= n:
            raise StoreError(f"{folder} is not in the order of its name: {remedy(folder)}.")
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
    manifest = manifest_of(remote.read(address, MANIFEST), remote.public(address), "make the store again")
    key = zlib.crc32(f"{address} {checksum_of_manifest(manifest)}".encode())
    folder = cache() / f"{key:08x}"
    if not (folder / MANIFEST).exists():
        make_folder(folder.parent)
        with NewFolder(folder) as made:
            remote.fetch(address, "", [*manifest["files"], MANIFEST], made)
    return folder


def _write_order(folder: Path, dyads: Dyads, parts: Iterator[Array]) -> None:
    """Write pairs in an order; `parts` : their positions, part by part."""
    matrix = dyads.side.dyad
    columns = {column: getattr(dyads, column) for column in COLUMNS if getattr(dyads, column) is not None}
    dtypes = {column: DTYPES[column] for column in columns} | {"place": np.int64}
    with NewFolder(folder) as made, Columns(made, dtypes, len(dyads)) as out:
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
        with NewFolder(folder) as made:
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
        manifest = manifest_of(remote.read(store, MANIFEST), remote.public(store), "make the store again")
    else:
        manifest = read_manifest(Path(store))
    return int(manifest["n"]), f"{checksum_of_manifest(manifest):08x}"


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
        raise StoreError(f"{folder} holds codes without an id ({str(error).rstrip('.')}): {remedy(folder)}.") from error


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
        raise StoreError(f"{folder} holds features of type {kind!r:.40}: {remedy(folder)}.") from error
