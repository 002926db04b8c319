"""Container of model files and checkpoints: an uncompressed zip of a JSON manifest and binary parts.

Loading executes no code. The manifest holds the SHA-256 of every other part, and zip a checksum of the manifest, so a
damaged file is refused. Parts start at multiples of 64 bytes and are memory-mapped in place. Writing is atomic: the
file is written under a temporary name and then renamed.
"""

import hashlib
import json
import math
import mmap
import os
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors.numpy import save as to_safetensors

from dyads import __version__
from dyads.data.files import replacing
from dyads.errors import DyadsError, ModelFileError

ALIGNMENT = 64
"""Alignment of parts in bytes: a cache line, and more than any dtype needs."""

MANIFEST = "manifest.json"


class Format(NamedTuple):
    """A file format.

    Attributes
    ----------
    name : its name in the manifest
    major, minor : its version; files of another major version are refused
    if_damaged, if_old : advice for a file that is damaged, or that has an older major version
    """

    name: str
    major: int
    minor: int
    if_damaged: str
    if_old: str


def write_archive(path: str | os.PathLike[str], kind: Format, manifest: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write a manifest and parts atomically."""
    sha256 = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    head = {"format": kind.name, "version": [kind.major, kind.minor], "library": __version__}
    text = json.dumps(_to_json({**head, **manifest, "sha256": sha256}), indent=1, allow_nan=False).encode()
    target = Path(path).resolve()
    if target.is_dir() or not target.parent.is_dir():
        raise ModelFileError(f"{path} cannot be written: expected a file name in an existing folder.")
    with replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in {MANIFEST: text, **parts}.items():
            _write_aligned(archive, name, part)


def read_archive(path: str | os.PathLike[str], kind: Format) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Read the manifest and the parts of a file. The parts are memory-mapped."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                manifest = json.loads(archive.read(MANIFEST))
                offsets = {info.filename: (info.header_offset, info.file_size) for info in archive.infolist()}
            if manifest["format"] != kind.name:
                raise ModelFileError(
                    f"{path} has the format {manifest['format']!r}: expected {kind.name!r}. Check the name."
                )
            major, minor = manifest["version"]
            if major != kind.major:
                raise ModelFileError(
                    f"{path} has format {major}.{minor}, written by dyads {manifest['library']}, but this version "
                    f"reads format {kind.major}: {'upgrade dyads' if major > kind.major else kind.if_old}."
                )
            parts = _map_parts(file, offsets, manifest["sha256"], kind.if_damaged)
        except DyadsError:
            raise
        except Exception as error:
            # A damaged zip can raise any exception.
            raise ModelFileError(f"{path} is not a {kind.name}, or is damaged ({error}): {kind.if_damaged}.") from error
    return _from_json(manifest), parts


def arrays_to_part(arrays: dict[str, Any]) -> bytes:
    """Encode arrays by name as a part, in the safetensors format."""
    part: bytes = to_safetensors(arrays)
    return part


def arrays_of_part(part: memoryview) -> dict[str, Any]:
    """The arrays of a part, as views: the loader of the safetensors library would copy them."""
    (length,) = struct.unpack_from("<Q", part)
    header = json.loads(bytes(part[8 : 8 + length]))
    data = part[8 + length :]
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}[entry["dtype"]]
        arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return arrays


def _write_aligned(archive: zipfile.ZipFile, name: str, part: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.file_size = len(part)
    assert archive.fp is not None
    # Data start after a header of 30 bytes, the name and the extra field. For large parts zipfile adds 20 bytes to it.
    large = 20 if len(part) * 1.05 > zipfile.ZIP64_LIMIT else 0
    begin = archive.fp.tell() + 30 + len(name) + 4 + large
    padding = -begin % ALIGNMENT
    info.extra = struct.pack("<HH", 0xD1AD, padding) + bytes(padding)
    archive.writestr(info, part)


def _map_parts(
    file: BinaryIO, offsets: dict[str, tuple[int, int]], sha256: dict[str, str], if_damaged: str
) -> dict[str, memoryview]:
    """Map each part and check its hash."""
    # Copy-on-write, although nothing is written: kernels are compiled for writable arrays.
    whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    parts = {}
    for name, digest in sha256.items():
        header, size = offsets[name]
        name_length, extra_length = struct.unpack_from("<HH", whole, header + 26)
        begin = header + 30 + name_length + extra_length
        parts[name] = whole[begin : begin + size]
        if hashlib.sha256(parts[name]).hexdigest() != digest:
            raise ModelFileError(
                f"{file.name} is damaged, the SHA-256 of its part {name} does not match the manifest: {if_damaged}."
            )
    return parts


def _to_json(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by objects such as ``{"float": "nan"}``."""
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if value.keys() == {"float"} else {k: _from_json(v) for k, v in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value
