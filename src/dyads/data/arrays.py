"""Folders of arrays: written under another name and then renamed, with checksums in a manifest; mapped and checked.

What is there is complete, and what is damaged is found.
"""

import glob
import json
import os
import shutil
import socket
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from dyads.data.files import replacing
from dyads.errors import InputError, StoreError

Array = np.ndarray[Any, Any]

MANIFEST = "manifest.json"


def check_new(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.exists():
        raise InputError(f"{target} exists: expected the name of a new folder. Delete it, or name another.")
    return target


def cache() -> Path:
    """Where stores of object storage are copied to."""
    return Path.home() / ".cache" / "dyads" / "stores"


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made ({error.strerror}): expected a folder to write to.") from error


class Columns:
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

    def __enter__(self) -> "Columns":
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
        manifest["files"] = {name: checksum_of_file(self.folder / name) for name in names}
        manifest["checksum"] = checksum_of_manifest(manifest)
        with replacing(self.folder / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())


class NewFolder:
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


def checksum_of_file(path: Path) -> int:
    """CRC-32 of a file."""
    total = 0
    with open(path, "rb") as file:
        while block := file.read(2**22):
            total = zlib.crc32(block, total)
    return total


def checksum_of_manifest(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise StoreError(f"{folder} is not a store: expected a folder with a {MANIFEST}. Check the path.") from error
    except OSError as error:
        raise StoreError(f"{folder / MANIFEST} cannot be read ({error.strerror}): {remedy(folder)}.") from error
    return manifest_of(text, str(folder), remedy(folder))


def manifest_of(text: bytes, where: str, remedy: str) -> dict[str, Any]:
    """Read and check the text of a manifest."""
    try:
        manifest = json.loads(text)
        checksum = manifest.pop("checksum")
        if checksum != checksum_of_manifest(manifest):
            raise ValueError("its checksum does not match")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{where}/{MANIFEST} is damaged ({str(error)[:100]}): {remedy}.") from error
    return manifest  # type: ignore[no-any-return]


def check_file(folder: Path, name: str, manifest: dict[str, Any]) -> None:
    """Raise unless a file is as it was written."""
    path = folder / name
    try:
        intact = checksum_of_file(path) == manifest["files"][name]
    except (OSError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}): {remedy(folder)}.") from error
    if not intact:
        raise StoreError(f"{path} is damaged, its checksum does not match: {remedy(folder)}.")


def remedy(folder: Path) -> str:
    """What to do about a folder with a damaged file: an order and a copy of a store can be made again."""
    if not (folder / "labels.arrow").exists():
        return f"delete the folder {folder}, and fit again"
    return f"delete the folder {folder}, a copy" if cache() in folder.parents else "make the store again"


def mapped(folder: Path, name: str, manifest: dict[str, Any], shape: tuple[int, ...], *dtypes: Any) -> Array:
    """An array of a file, mapped and checked; `dtypes` : those that it may have."""
    check_file(folder, name, manifest)
    try:
        array: Array = np.lib.format.open_memmap(folder / name, mode="r")
    except Exception as error:
        # The header is Python, and NumPy raises what Python's tokenizer and parser do.
        raise StoreError(f"{folder / name} holds no array ({str(error)[:100]}): {remedy(folder)}.") from error
    if array.shape != shape or array.dtype not in dtypes:
        raise StoreError(
            f"{folder / name} holds {array.dtype} of shape {array.shape}, expected {np.dtype(dtypes[0])} of {shape}: "
            f"{remedy(folder)}."
        )
    return np.asarray(array)


def mapped_matrix(folder: Path, manifest: dict[str, Any], shape: tuple[int, int]) -> Any:
    """A sparse matrix (CSR) of three files, mapped and checked."""
    n, most = shape[0], manifest.get("entries")
    if manifest.get("n") != n or most is None:
        raise StoreError(f"{folder} lacks the features of {n} pairs: {remedy(folder)}.")
    start = mapped(folder, "indptr.npy", manifest, (n + 1,), np.int32, np.int64)
    indices = mapped(folder, "indices.npy", manifest, (most,), start.dtype)
    data = mapped(folder, "data.npy", manifest, (most,), np.float64)
    used = slice(0, max(0, int(start[-1])))
    # Differences could overflow.
    is_grouped = start[0] == 0 and start[-1] <= most and (start[1:] >= start[:-1]).all()
    if not is_grouped or indices[used].min(initial=0) < 0 or indices[used].max(initial=0) >= shape[1]:
        raise StoreError(f"{folder} holds features beyond the {shape[1]} of the encoder: {remedy(folder)}.")
    return sparse.csr_array((data[: start[-1]], indices[: start[-1]], start), shape=shape, copy=False)


def write_column(folder: Path, name: str, column: pa.Array) -> None:
    column = column.cast(pa.large_string()) if pa.types.is_string(column.type) else column
    table = pa.table({"id": column})
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
