"""Mutations of model files, checkpoints, stores and tables, each a function of one random generator.

A *structural* mutation changes what a file says (a value, a key, an array, an offset) and writes it with right
checksums. A *raw* mutation changes bytes and leaves the checksums as they are.
"""

import copy
import hashlib
import io
import json
import zipfile
import zlib

import numpy as np

ODD_VALUES = (
    None, True, False, -1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**40, 2**63, 10**30, -0.5, 1e-320, 1e308, -1e308,
    "", "x", "log", "\udcff", "x" * 5000, [], {}, [[]], [1, "a", None],
    {"float": "nan"}, {"float": "inf"}, {"float": []}, {"name": "x"},
)  # fmt: skip
ODD_CELLS = (
    b"", b'"', b"NA", b"1e999", b"-", b"\xff\xfe", b"0x1F", b"9" * 40, b"a" * 70000, b"\x00", b"nan", b'"a\nb"',
    "\u202e".encode(),
)  # fmt: skip
ODD_FLOATS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-320, 1e308, -1e308, 1e20, 0.5)
ODD_INTEGERS = (-1, 0, 1, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
NAMES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U64": "<u8", "U8": "|u1", "I16": "<i2", "BOOL": "|b1"}


def unpacked(content):
    """The manifest and the arrays of a file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        manifest, part = json.loads(archive.read("manifest.json")), archive.read("arrays.safetensors")
    length = int.from_bytes(part[:8], "little")
    header, data = json.loads(part[8 : 8 + length]), part[8 + length :]
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(data[begin:end], NAMES[entry["dtype"]]).reshape(entry["shape"])
    return manifest, arrays


def packed(manifest, arrays, rng=None):
    """A file with right checksums. With a generator, the header of the arrays is mutated too."""
    header, data = {}, b""
    for name, array in arrays.items():
        data += bytes(-len(data) % 8)
        content = array.tobytes()
        letter = next(letter for letter, code in NAMES.items() if np.dtype(code) == array.dtype)
        header[name] = {
            "dtype": letter,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header if rng is None else _changed_json(header, rng)).encode()
    text += b" " * (-len(text) % 8)
    length = len(text) if rng is None or rng.random() < 0.8 else int(rng.choice([0, 1, 8, 2**31, 2**62]))
    part = length.to_bytes(8, "little") + text + data
    # A change may also be to the checksum itself.
    checked = manifest
    if isinstance(manifest, dict) and "sha256" in manifest:
        checked = {**manifest, "sha256": hashlib.sha256(part).hexdigest()}
    file = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if rng is not None and rng.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", packing) as archive:
        archive.writestr("manifest.json", json.dumps(checked))
        archive.writestr("arrays.safetensors", part)
        if rng is not None and rng.random() < 0.05:
            archive.writestr("other", b"x" * 1000)
    return file.getvalue()


def structural(content, rng):
    """A file with one to three changes to its manifest and arrays, and right checksums."""
    manifest, arrays = unpacked(content)
    header = None
    for _ in range(int(rng.integers(1, 4))):
        kind = rng.random()
        if kind < 0.5:
            manifest = _changed_json(manifest, rng)
        elif kind < 0.9:
            arrays = _changed_arrays(arrays, rng)
        else:
            header = rng
    return packed(manifest, arrays, header)


def folder_packed(folder):
    """The files of a folder as one."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, path.relative_to(folder))
    return file.getvalue()


def folder_unpacked(content, folder):
    """Write the files of a folder."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)


def store(content, rng):
    """A store with one or two changes to manifests, arrays and ids; three times in four with right checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    is_right = rng.random() < 0.75
    for _ in range(int(rng.integers(1, 3))):
        name = list(files)[int(rng.integers(len(files)))]
        part, _, file = name.rpartition("/")
        if file == "manifest.json":
            changed = _changed_json(json.loads(files[name]), rng)
            files[name] = json.dumps(changed).encode()
        elif file.endswith(".npy") and rng.random() < 0.9:
            arrays = {
                other: np.load(io.BytesIO(data))
                for other, data in files.items()
                if other.endswith(".npy") and other.rpartition("/")[0] == part
            }
            for other, array in _changed_arrays(arrays, rng).items():
                out = io.BytesIO()
                np.save(out, array)
                files[other] = out.getvalue()
        else:
            files[name] = raw(files[name], rng)
            # What is no array any more cannot be changed as one.
            break
    for name in [name for name in files if name.endswith("manifest.json")] if is_right else ():
        manifest, part = json.loads(files[name]), name.removesuffix("manifest.json")
        if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict):
            for other in manifest["files"]:
                manifest["files"][other] = zlib.crc32(files.get(f"{part}{other}", b""))
            manifest.pop("checksum", None)
            manifest["checksum"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
            files[name] = json.dumps(manifest).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def without(content, columns, features):
    """A store, as packed, without the names of some columns, and of features or not."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if "/" not in name}
    manifest = json.loads(files["manifest.json"])
    del manifest["checksum"]
    manifest["columns"] = {name: column for name, column in manifest["columns"].items() if name not in columns}
    manifest["features"] = manifest["features"] if features else []
    manifest["checksum"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    files["manifest.json"] = json.dumps(manifest).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def raw(content, rng):
    """A file with a few bytes changed, cut, repeated or inserted."""
    content = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(content))) if content else 0
        size = int(rng.choice([1, 1, 2, 4, 8, 64, 1000]))
        kind = rng.integers(6)
        if kind == 0 and content:
            content[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            content[at : at + size] = rng.bytes(size)
        elif kind == 2:
            del content[at : at + size]
        elif kind == 3:
            content[at:at] = rng.bytes(size)
        elif kind == 4:
            content[at:at] = content[at : at + size]
        elif rng.random() < 0.2:
            del content[at:]
    return bytes(content)


def table(content, rng):
    """A text table with odd cells, separators, quotes and lines, or with changed bytes."""
    if rng.random() < 0.3:
        return raw(content, rng)
    lines = content.split(b"\n")
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(lines)))
        cells = lines[at].split(b",")
        place = int(rng.integers(len(cells)))
        kind = rng.integers(8)
        if kind == 0:
            cells[place] = ODD_CELLS[int(rng.integers(len(ODD_CELLS)))]
        elif kind == 1:
            del cells[place]
        elif kind == 2:
            cells.append(cells[place])
        elif kind == 3:
            lines[at] = [b";", b"\t", b"|", b" "][int(rng.integers(4))].join(cells)
            continue
        elif kind == 4:
            lines.insert(at, lines[int(rng.integers(len(lines)))])
            continue
        elif kind == 5:
            del lines[at]
            lines = lines or [b""]
            continue
        elif kind == 6:
            lines[at] += b"\r"
            continue
        else:
            cells[place] = cells[int(rng.integers(len(cells)))]
        lines[at] = b",".join(cells)
    return b"\n".join(lines)


def _places(value, path=()):
    """Paths to all values within a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _changed_json(value, rng):
    """A copy of a JSON value with one change somewhere."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    # Long lists, such as a trace, would else take nearly all changes.
    places = [path for path in places if not path or not isinstance(path[-1], int) or path[-1] < 3]
    path = places[int(rng.integers(len(places)))]
    odd = copy.deepcopy(ODD_VALUES[int(rng.integers(len(ODD_VALUES)))])
    if not path:
        return odd if rng.random() < 0.2 else value
    parent, key, kind = _at(value, path[:-1]), path[-1], rng.random()
    old = parent[key]
    if kind < 0.45:
        parent[key] = odd
    elif kind < 0.6 and type(old) in (int, float):
        parent[key] = old + [1, -1, 0.5, old, 2**20][int(rng.integers(5))]
    elif kind < 0.75:
        del parent[key]
    elif kind < 0.85:
        other = places[int(rng.integers(len(places)))]
        parent[key] = copy.deepcopy(_at(value, other)) if other[: len(path)] != path else odd
    elif isinstance(parent, list):
        parent.insert(int(rng.integers(len(parent) + 1)), odd if rng.random() < 0.5 else copy.deepcopy(old))
    else:
        parent["x" if rng.random() < 0.5 else str(key) + "0"] = parent.pop(key)
    return value


def _changed_arrays(arrays, rng):
    """A copy of named arrays with one change somewhere."""
    arrays = dict(arrays)
    names = list(arrays)
    name, other = names[int(rng.integers(len(names)))], names[int(rng.integers(len(names)))]
    array, kind = arrays[name], int(rng.integers(13))
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[name], arrays[other] = arrays[other], array
    elif kind == 2:
        arrays[other] = array
    elif kind == 3:
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(list(NAMES.values())[int(rng.integers(len(NAMES)))])
    elif kind == 4:
        arrays[name] = array[:-1] if rng.random() < 0.5 else np.concatenate([array, array[-1:]])
    elif kind == 5:
        arrays[name] = array.reshape(-1) if array.ndim > 1 else array[:, None]
    elif kind == 6:
        arrays[name] = np.ascontiguousarray(array.T)
    elif kind == 7:
        arrays[name] = np.zeros_like(array)
    elif kind == 8 and array.dtype.kind == "f":
        arrays[name] = array * array.dtype.type([-1, 1e20, 1e-30][int(rng.integers(3))])
    elif kind == 9:
        arrays[f"{name}x"] = arrays.pop(name)
    elif kind == 10:
        arrays[name] = np.zeros((2**40, 0) if array.ndim > 1 else 0, array.dtype)
    elif array.size:
        changed, at = array.copy().reshape(-1), int(rng.integers(array.size))
        odd = ODD_FLOATS if array.dtype.kind == "f" else ODD_INTEGERS
        with np.errstate(all="ignore"):
            changed[at] = np.array(odd[int(rng.integers(len(odd)))]).astype(array.dtype)
        arrays[name] = changed.reshape(array.shape)
    return arrays
