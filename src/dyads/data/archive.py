"""Container of model files and checkpoints: an uncompressed zip of a JSON manifest and named arrays (safetensors).

Loading executes no code. A file is read whole, so that a loaded model does not depend on its file any longer, unless
the caller owns the file and asks to map it. Writing is atomic: the file is written under a temporary name and then
renamed.

The manifest holds the SHA-256 of the arrays, and zip a checksum of the manifest. They detect damage, not forgery: who
can write the file can write its checksums too. What a reader takes from a file is therefore checked before use, by
the methods of `Contents`, in time and memory linear in the size of the file.
"""

import hashlib
import json
import math
import mmap
import os
import stat
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors.numpy import save as to_safetensors

from dyads import __version__
from dyads.data.files import replacing
from dyads.errors import DyadsError, InputError, ModelFileError

Array = np.ndarray[Any, Any]

MANIFEST, ARRAYS = "manifest.json", "arrays.safetensors"

ALIGNMENT = 64
"""Alignment of the parts in bytes: a cache line, and more than any dtype needs. Other programs may map the arrays."""

DTYPES = {
    "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U64": np.uint64, "U8": np.uint8,
}  # fmt: skip
"""The dtypes of arrays in a file, by their names in safetensors."""

MOST_DIMENSIONS = 3
LARGEST_FLOAT = 1e100
"""Largest magnitude of a float in a file, so that products of a few of them are finite."""


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


@dataclass(frozen=True)
class Contents:
    """What a file contains. Each method returns a part that meets what the caller expects, or names it in an error.

    Attributes
    ----------
    path : path of the file, for messages
    kind : format of the file
    manifest : JSON values by name
    arrays : arrays by name
    """

    path: str
    kind: Format
    manifest: dict[str, Any]
    arrays: dict[str, Array]

    def wrong(self, part: str, expected: str) -> ModelFileError:
        """Build the error for a part that is not as expected."""
        return ModelFileError(
            f"{self.path} is damaged or was not written by dyads, its part {part} is wrong: expected {expected}; "
            f"{self.kind.if_damaged}."
        )

    def field(self, name: str) -> Any:
        """A JSON value of the manifest, of any type."""
        if name not in self.manifest:
            raise self.wrong(name, "a value")
        return self.manifest[name]

    def typed(self, part: str, value: Any, kind: type | tuple[type, ...], expected: str) -> Any:
        """`value` itself, whose type must be `kind`; part and expected are for messages. True is not an int."""
        if type(value) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise self.wrong(part, expected)
        return value

    def count(self, part: str, value: Any, least: int, most: int) -> int:
        """`value` itself, which must be a whole number from `least` to `most`."""
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(part, f"a whole number from {least} to {most}")
        return value

    def texts(self, part: str, value: Any, n: int | None = None) -> list[str]:
        """`value` itself, which must be a list of (n) texts."""
        if type(value) is not list or any(type(text) is not str for text in value) or n not in (None, len(value)):
            raise self.wrong(part, "a list of names" if n is None else f"a list of {n} names")
        return value

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return name in self.arrays

    def raw(self, name: str, dtype: tuple[str, ...], shape: tuple[int | None, ...]) -> Array:
        """An array of one of the dtypes (see `DTYPES`) and of the shape; a length of None may be any."""
        array = self.arrays.get(name)
        accepted = [np.dtype(DTYPES[letter]) for letter in dtype]
        if (
            array is None
            or array.dtype not in accepted
            or len(array.shape) != len(shape)
            or any(length not in (None, actual) for length, actual in zip(shape, array.shape, strict=True))
        ):
            lengths = ", ".join("any" if length is None else str(length) for length in shape)
            raise self.wrong(name, f"an array {' or '.join(dtype)} of shape ({lengths})")
        return array

    def floats(
        self,
        name: str,
        *shape: int | None,
        least: float = -LARGEST_FLOAT,
        most: float = LARGEST_FLOAT,
        dtype: tuple[str, ...] = ("F64",),
    ) -> Array:
        """An array of finite floats between `least` and `most`."""
        array = self.raw(name, dtype, shape)
        # If there is a NaN, both extremes are NaN. NumPy would round the bounds to single precision.
        if array.size and not (least <= float(array.min()) and float(array.max()) <= most):
            raise self.wrong(name, f"numbers from {least:g} to {most:g}")
        return array

    def column(self, name: str) -> pa.Array:
        """The column of distinct ids or labels that `column_to_arrays` wrote."""
        try:
            kind = _type_of(self.field(name))
            if _is_long(kind):
                ends, data = self.raw(f"{name}.ends", ("I64",), (None,)), self.raw(f"{name}.data", ("U8",), (None,))
                n, offsets = len(ends), np.concatenate([np.zeros(1, np.int64), ends])
                if offsets[-1] != len(data) or (ends < offsets[:-1]).any():
                    raise self.wrong(name, f"texts that end within {len(data)} bytes, one after the other")
                buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            elif pa.types.is_boolean(kind):
                values = self.raw(f"{name}.data", ("U8",), (None,))
                n, buffers = len(values), pa.array(values.astype(np.bool_)).buffers()
            else:
                width = kind.bit_width // 8
                data = self.raw(f"{name}.data", ("U8",), (None,))
                n, left = divmod(len(data), width)
                if left:
                    raise self.wrong(name, f"values of {width} bytes each")
                # Within a file the bytes may start anywhere, and Arrow expects aligned values.
                buffers = [None, pa.py_buffer(data.copy())]
            column = pa.Array.from_buffers(kind, n, buffers)
            column.validate(full=True)
            if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), min_count=0).as_py():
                raise self.wrong(name, "finite numbers")
            # The extremes of dates and times must be such that Python can represent them.
            if not (_is_long(kind) or pa.types.is_boolean(kind)):
                pc.min_max(column).as_py()
            if len(pc.unique(column)) != n:
                raise self.wrong(name, "distinct values")
        except (pa.ArrowException, ValueError, TypeError, OverflowError, LookupError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise self.wrong(name, f"a column of ids or labels ({str(error)[:100]})") from error
        return column


def write_archive(path: str | os.PathLike[str], kind: Format, manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Write a manifest (JSON values) and arrays atomically."""
    target = Path(path).resolve()
    if target.is_dir() or not target.parent.is_dir():
        raise ModelFileError(f"{path} cannot be written: expected a file name in an existing folder.")
    part: bytes = to_safetensors({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    head = {"format": kind.name, "version": [kind.major, kind.minor], "library": __version__}
    checked = {**head, **manifest, "sha256": hashlib.sha256(part).hexdigest()}
    text = json.dumps(_to_json(checked), indent=1, allow_nan=False).encode()
    with replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _write_aligned(archive, MANIFEST, text)
        _write_aligned(archive, ARRAYS, part)


def read_archive(path: str | os.PathLike[str], kind: Format, *, mapped: bool = False) -> Contents:
    """Read a file whole; the memory it takes is that of the arrays and the manifest.

    `mapped` : whether to map the arrays instead, so that processes share their memory. Only for a file that nobody
    else can write: one that is cut while it is mapped would end the process.
    """
    # Opening a pipe would wait for a writer.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ModelFileError(f"{path} is not a file: expected a {kind.name}. Check the path.")
    with open(path, "rb") as file:
        if file.read(2) != b"PK":
            raise ModelFileError(
                f"{path} is not a {kind.name}: expected a file that dyads has written. Check the path, or "
                f"{kind.if_damaged}."
            )
        try:
            with zipfile.ZipFile(file) as archive:
                text, part = _read_parts(archive, file, mapped)
            manifest = json.loads(text, parse_constant=_refuse_constant)
            if not isinstance(manifest, dict) or manifest["format"] != kind.name:
                raise ModelFileError(f"{path} has another format: expected a {kind.name}. Check the path.")
            major, minor = manifest["version"]
            if type(major) is not int or type(minor) is not int:
                raise ValueError("its version is not two whole numbers")
            if major != kind.major:
                raise ModelFileError(
                    f"{path} has format {major}.{minor}, written by dyads {str(manifest['library'])[:20]}, but this "
                    f"version reads format {kind.major}: {'upgrade dyads' if major > kind.major else kind.if_old}."
                )
            if hashlib.sha256(part.data).hexdigest() != manifest["sha256"]:
                raise ModelFileError(
                    f"{path} is damaged, the SHA-256 of its arrays does not match the manifest: {kind.if_damaged}."
                )
            return Contents(os.fspath(path), kind, _from_json(manifest), _arrays_of(part))
        except DyadsError:
            raise
        except Exception as error:
            # A damaged zip, and JSON that is nested too deeply, can raise any exception.
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ModelFileError(
                f"{path} is not a {kind.name}, or is damaged ({reason}): {kind.if_damaged}."
            ) from error


def column_to_arrays(name: str, column: pa.Array) -> tuple[str, dict[str, Array]]:
    """The type and the arrays, by name, of a column of ids or labels; `Contents.column` reads it back.

    Texts and bytes are stored as one array of all bytes, and the place (n,) where each ends in it.
    """
    kind = str(column.type)
    try:
        _type_of(kind)
    except (InputError, pa.ArrowException) as error:
        raise InputError(
            f"Ids or labels of type {kind} cannot be saved: expected text or numbers. Convert them."
        ) from error
    if pa.types.is_boolean(column.type):
        return kind, {f"{name}.data": column.to_numpy(zero_copy_only=False).astype(np.uint8)}
    _, *buffers = column.buffers()
    values = np.frombuffer(buffers[-1] or b"", np.uint8)
    if _is_long(column.type):
        offsets = np.frombuffer(buffers[0], np.int64)[column.offset : column.offset + len(column) + 1]
        return kind, {f"{name}.ends": offsets[1:] - offsets[0], f"{name}.data": values[offsets[0] : offsets[-1]]}
    width = column.type.bit_width // 8
    return kind, {f"{name}.data": values[column.offset * width : (column.offset + len(column)) * width]}


STORED_TYPES = {
    str(kind): kind
    for kind in (
        pa.int64(), pa.uint64(), pa.float64(), pa.large_string(), pa.large_binary(), pa.bool_(), pa.date32(),
        pa.time64("ns"), pa.duration("ns"), pa.timestamp("us"), pa.timestamp("ns"), pa.decimal128(38, 9),
    )
}  # fmt: skip
"""The types of ids and labels, as `read_column` makes them, by name; timestamps may also have a time zone."""


def _type_of(text: Any) -> pa.DataType:
    if isinstance(text, str) and text in STORED_TYPES:
        return STORED_TYPES[text]
    for unit in ("us", "ns"):
        start = f"timestamp[{unit}, tz="
        if isinstance(text, str) and text.startswith(start) and text.endswith("]"):
            return pa.timestamp(unit, tz=text[len(start) : -1])
    raise InputError(f"Got the type {text!r:.40}: expected one of {', '.join(STORED_TYPES)}.")


def _is_long(kind: pa.DataType) -> bool:
    """Whether values differ in length."""
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _read_parts(archive: zipfile.ZipFile, file: BinaryIO, mapped: bool) -> tuple[bytes, Array]:
    """The manifest, and the bytes of the arrays in writable memory.

    (Kernels are compiled for writable arrays, although they do not write to these.)
    """
    size = os.fstat(file.fileno()).st_size
    manifest, arrays = infos = [archive.getinfo(name) for name in (MANIFEST, ARRAYS)]
    if any(info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size for info in infos):
        raise ValueError("its parts are compressed")
    if sum(info.file_size for info in infos) > size:
        raise ValueError("its parts are larger than the file")
    text = archive.read(manifest)
    # A part starts after a header of 30 bytes, a name and an extra field. Read in place: zipfile would copy.
    file.seek(arrays.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", file.read(4))
    start = arrays.header_offset + 30 + name_length + extra_length
    if mapped:
        # Writable, but written to by nobody: pages stay shared.
        part = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        return text, part[start : start + arrays.file_size]
    part = np.empty(arrays.file_size, np.uint8)
    file.seek(start)
    if file.readinto(part.data) != len(part):  # type: ignore[attr-defined]
        raise ValueError("the file was cut")
    return text, part


def _arrays_of(part: Array) -> dict[str, Array]:
    """The arrays of a part in the safetensors format, as views of it. (The library's own loader would copy them.)"""
    (length,) = struct.unpack_from("<Q", part.data)
    if length > len(part) - 8 or length % 8:
        raise ValueError("the header of the arrays is longer than the part")
    header, data = json.loads(part[8 : 8 + length].tobytes()), part[8 + length :]
    arrays, total = {}, 0
    for name, entry in header.items():
        dtype, (begin, end), shape = np.dtype(DTYPES[entry["dtype"]]), entry["data_offsets"], entry["shape"]
        if (
            any(type(number) is not int or number < 0 for number in (begin, end, *shape))
            or len(shape) > MOST_DIMENSIONS
            # A shape such as (10**12, 0) takes no bytes, and a loop over it would not end.
            or max(shape, default=0) > len(part)
        ):
            raise ValueError(f"the array {name[:80]!r} has no valid shape")
        if end > len(data) or end - begin != math.prod(shape) * dtype.itemsize or begin % dtype.itemsize:
            raise ValueError(f"the array {name[:80]!r} does not fit into the file")
        total += end - begin
        arrays[name] = data[begin:end].view(dtype).reshape(shape)
    if total > len(data):
        raise ValueError("its arrays overlap")
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


def _to_json(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by objects such as ``{"float": "nan"}``."""
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    """The inverse of `_to_json`; raises for half of a surrogate pair, which JSON can write and text cannot hold."""
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {_from_json(key): _from_json(item) for key, item in value.items()}
    if isinstance(value, str):
        value.encode()
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _refuse_constant(text: str) -> Any:
    raise ValueError("the manifest is not valid JSON")
