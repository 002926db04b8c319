"""Folders of object storage, such as s3://bucket/ratings.store: fetched, sent, and read in part, by pyarrow.

An address may say how its storage is reached, as pyarrow takes it: s3://bucket/store?region=eu-west-1, or
s3://key:secret@bucket/store?scheme=http&endpoint_override=127.0.0.1:9000.
"""

import io
import os
from collections.abc import Iterable
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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise StoreError(
            f"{public(address)} is no address of object storage ({str(error)[:100]}): expected one such as "
            "s3://bucket/ratings.store."
        ) from error
    return system, "/".join(part for part in (path, folder) if part)


def public(address: str) -> str:
    """An address without what a key may stand in."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _failed(address: str, error: Exception) -> StoreError:
    return StoreError(
        f"{public(address)} cannot be reached ({' '.join(str(error).split())[:200]}): expected a store there, and a "
        "key that may read it. Check the address, the region and the credentials."
    )


def files(address: str, folder: str = "") -> list[str]:
    """The names of the files of a folder; none if there is no such folder."""
    system, path = _opened(address, folder)
    try:
        listed = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except OSError as error:
        raise _failed(address, error) from error
    return [info.base_name for info in listed if info.type == fs.FileType.File]


def fetch(address: str, folder: str, names: Iterable[str], to: Path) -> None:
    """Copy files of a folder to a local one."""
    system, path = _opened(address, folder)
    try:
        for name in names:
            partial = to / f".{name}.part"
            with system.open_input_stream(f"{path}/{name}") as source, open(partial, "wb") as target:
                while block := source.read(BLOCK):
                    target.write(block)
            os.replace(partial, to / name)
    except OSError as error:
        raise _failed(address, error) from error


def send(address: str, folder: str, names: Iterable[str], where: Path) -> None:
    """Copy local files to a folder, in this order."""
    system, path = _opened(address, folder)
    try:
        system.create_dir(path)
        for name in names:
            with open(where / name, "rb") as source, system.open_output_stream(f"{path}/{name}") as target:
                while block := source.read(BLOCK):
                    target.write(block)
    except OSError as error:
        raise _failed(address, error) from error


def read_array(address: str, folder: str, name: str, begin: int, end: int) -> Array:
    """Read entries begin..end-1 of an array in a file."""
    system, path = _opened(address, folder)
    with system.open_input_file(f"{path}/{name}") as file:
        header = io.BytesIO(file.read_at(HEADER, 0))
        np.lib.format.read_magic(header)
        _, _, dtype = np.lib.format.read_array_header_1_0(header)
        data = file.read_at((end - begin) * dtype.itemsize, header.tell() + begin * dtype.itemsize)
    return np.frombuffer(data, dtype)
