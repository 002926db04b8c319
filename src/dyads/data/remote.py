"""Folders of object storage, such as s3://bucket/ratings.store: fetched, sent, and read in part, by pyarrow.

An address may say how its storage is reached, as pyarrow takes it: s3://bucket/store?region=eu-west-1, or
s3://key:secret@bucket/store?scheme=http&endpoint_override=127.0.0.1:9000.
"""

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from dyads.errors import StoreError

Array = np.ndarray[Any, Any]

HEADER = 256
"""Bytes in which the header of an array of a store lies."""

BLOCK = 2**24
"""Bytes that are copied at a time."""


def is_remote(path: Any) -> bool:
    """Whether a path is an address of object storage."""
    return "://" in os.fspath(path)


def _opened(address: str, folder: str) -> tuple[Any, str]:
    """The file system of an address, and the path of a folder in it."""
    try:
        system, path = fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        # The text of pyarrow's error repeats the address, with the key.
        raise StoreError(
            f"{public(address)} is no address of object storage: expected one such as s3://bucket/ratings.store. In a "
            "key:secret@ before the bucket, write / as %2F and + as %2B."
        ) from None
    return system, "/".join(part for part in (path, folder) if part)


def public(address: str) -> str:
    """An address without what a key may stand in."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


@contextmanager
def _reaching(address: str) -> Iterator[None]:
    """Tell what pyarrow raises as a failure to reach an address."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{public(address)} cannot be reached ({' '.join(str(error).split())[:200]}): expected a store there, and "
            "a key that may read it. Check the address, the region and the credentials."
        ) from error


def files(address: str, folder: str = "") -> list[str]:
    """The names of the files of a folder; none if there is no such folder."""
    system, path = _opened(address, folder)
    with _reaching(address):
        listed = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return [info.base_name for info in listed if info.type == fs.FileType.File]


def read(address: str, name: str) -> bytes:
    """The bytes of a file."""
    system, path = _opened(address, "")
    with _reaching(address), system.open_input_stream(f"{path}/{name}") as source:
        return bytes(source.read())


def fetch(address: str, folder: str, names: Iterable[str], to: Path) -> None:
    """Copy files of a folder to a local one."""
    system, path = _opened(address, folder)
    for name in names:
        partial = to / f".{name}.part"
        with _reaching(address):
            source = system.open_input_stream(f"{path}/{name}")
        with source, open(partial, "wb") as target:
            while True:
                with _reaching(address):
                    block = source.read(BLOCK)
                if not block:
                    break
                target.write(block)
        os.replace(partial, to / name)


def send(address: str, folder: str, names: Iterable[str], where: Path) -> None:
    """Copy local files to a folder, in this order."""
    system, path = _opened(address, folder)
    with _reaching(address):
        system.create_dir(path)
    for name in names:
        with (
            open(where / name, "rb") as source,
            _reaching(address),
            system.open_output_stream(f"{path}/{name}") as target,
        ):
            while block := source.read(BLOCK):
                target.write(block)


def read_array(address: str, folder: str, name: str, begin: int, end: int) -> Array:
    """Read entries begin..end-1 of an array in a file."""
    system, path = _opened(address, folder)
    with system.open_input_file(f"{path}/{name}") as file:
        header = io.BytesIO(file.read_at(HEADER, 0))
        np.lib.format.read_magic(header)
        _, _, dtype = np.lib.format.read_array_header_1_0(header)
        data = file.read_at((end - begin) * dtype.itemsize, header.tell() + begin * dtype.itemsize)
    return np.frombuffer(data, dtype)
