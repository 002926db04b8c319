"""The model file: one stored zip of a JSON manifest, arrays (safetensors) and vocabularies (Arrow IPC).

Nothing in it is executed on loading. The manifest holds a SHA-256 of every other part, and zip a checksum of the
manifest, so a damaged file is refused. Parts begin at multiples of 64 bytes and are memory-mapped in place. A file is
written beside its target and then put in its place in one step.
"""

import hashlib
import json
import math
import mmap
import os
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from safetensors.numpy import save as to_safetensors
from scipy import sparse

from dyads import __version__
from dyads.data.files import replacing
from dyads.data.side import Encoder
from dyads.data.vocabulary import Vocabulary
from dyads.errors import DyadsError, ModelFileError
from dyads.model.calibrator import CALIBRATORS
from dyads.model.fitted import Entities, Fitted
from dyads.model.loss import LOSSES
from dyads.model.structure import KINDS

FORMAT = "dyads model"
CHAINS = "dyads chain"
MAJOR, MINOR = 3, 0
ALIGNMENT = 64
MODEL_ARRAYS = ("theta", "prediction", "relation_counts", "shared_centre", "strangeness")
ENTITY_ARRAYS = ("counts", "average", "spread", "met", "centre", "precision", "average_features", "predictions")
CSR_ARRAYS = ("data", "indices", "indptr")
PLAIN_FIELDS = ("interactions", "rank", "bias", "strengths", "scaling", "implicit")
MANIFEST = "manifest.json"


def write(path: str | os.PathLike[str], fitted: Fitted, about: dict[str, Any]) -> None:
    """Write a model and what its estimator says `about` itself (any JSON value), atomically."""
    sides = {"row": fitted.rows} if fitted.structure.one_set else {"row": fitted.rows, "col": fitted.cols}
    arrays = {name: getattr(fitted, name) for name in MODEL_ARRAYS}
    if fitted.structure.one_set:
        arrays["col_met"] = fitted.cols.met
    each = [_own_arrays(member) for member in fitted.members]
    for name in each[0] if each else ():
        if each[0][name] is not None:
            arrays[f"members_{name}"] = np.stack([one[name] for one in each])
    for side, entities in sides.items():
        arrays |= {f"{side}_{name}": getattr(entities, name) for name in ENTITY_ARRAYS}
        if entities.features is not None:
            arrays |= {f"{side}_features_{name}": getattr(entities.features, name) for name in CSR_ARRAYS}
    given = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    parts = {"arrays.safetensors": to_safetensors(given)}
    parts |= {f"{side}s.arrow": _to_ipc(entities.ids.ids) for side, entities in sides.items()}
    if fitted.relations is not None:
        parts["relations.arrow"] = _to_ipc(fitted.relations.ids)
    encoders = {side: entities.encoder for side, entities in sides.items()} | {"dyad": fitted.dyad_encoder}
    manifest = {
        "format": FORMAT,
        "version": [MAJOR, MINOR],
        "library": __version__,
        "structure": spec_to_json(fitted.structure, KINDS),
        "loss": spec_to_json(fitted.loss, LOSSES),
        "labels": {"dtype": fitted.classes.dtype.str, "order": fitted.classes.tolist()},
        "columns": [fitted.rows.ids.name, fitted.cols.ids.name],
        "relation": None if fitted.relations is None else fitted.relations.name,
        "members": len(fitted.members),
        "encoders": {side: None if encoder is None else encoder.to_json() for side, encoder in encoders.items()},
        "calibrator": None if fitted.calibrator is None else spec_to_json(fitted.calibrator, CALIBRATORS),
        **{name: getattr(fitted, name) for name in PLAIN_FIELDS},
        "about": about,
    }
    _write_parts(path, manifest, parts)


def _write_parts(path: str | os.PathLike[str], manifest: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write a file of a manifest and parts, whose hashes the manifest gets, atomically."""
    manifest = {**manifest, "sha256": {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}}
    text = json.dumps(_to_json(manifest), indent=1, allow_nan=False).encode()
    target = Path(path).resolve()
    if target.is_dir() or not target.parent.is_dir():
        raise ModelFileError(f"{path} is no place for a model: expected a file in a folder that exists.")
    with replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, part in {MANIFEST: text, **parts}.items():
            _write_aligned(archive, name, part)


def read(path: str | os.PathLike[str]) -> tuple[Fitted, dict[str, Any]]:
    """Read a model and what its estimator said about itself; arrays stay memory-mapped."""
    manifest, parts = _read_parts(path, FORMAT, "Save the model again.")
    try:
        relation = manifest["relation"]
        arrays = _from_safetensors(parts["arrays.safetensors"])
        rows = _entities("row", manifest["columns"][0], manifest, parts, arrays)
        one_set = "cols.arrow" not in parts
        fitted = Fitted(
            structure=spec_from_json(manifest["structure"], KINDS),
            loss=spec_from_json(manifest["loss"], LOSSES),
            classes=np.array(manifest["labels"]["order"], dtype=np.dtype(manifest["labels"]["dtype"])),
            rows=rows,
            cols=replace(rows, ids=Vocabulary(rows.ids.ids, manifest["columns"][1]), met=arrays["col_met"])
            if one_set
            else _entities("col", manifest["columns"][1], manifest, parts, arrays),
            **{name: arrays.get(name) for name in MODEL_ARRAYS},
            relations=None if relation is None else Vocabulary(_from_ipc(parts["relations.arrow"]), relation),
            dyad_encoder=_encoder("dyad", manifest),
            calibrator=None if manifest["calibrator"] is None else spec_from_json(manifest["calibrator"], CALIBRATORS),
            **{name: manifest[name] for name in PLAIN_FIELDS},
        )
        members = tuple(_member(fitted, arrays, number) for number in range(manifest["members"]))
        fitted = replace(fitted, members=members)
    except (KeyError, TypeError) as error:
        raise not_understood(path, error) from error
    if fitted.theta.size != fitted.layout.size:
        raise ModelFileError(f"{path} is damaged: it holds {fitted.theta.size} weights, not {fitted.layout.size}.")
    return fitted, _from_json(manifest["about"])


def _read_parts(
    path: str | os.PathLike[str], expected: str, remedy: str
) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Read the manifest and the parts of a file of an expected format; the remedy is for a damaged one."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                manifest = json.loads(archive.read(MANIFEST))
                offsets = {info.filename: (info.header_offset, info.file_size) for info in archive.infolist()}
            if manifest["format"] != expected:
                raise ModelFileError(f"{path} is no file of a {expected}: it calls itself {manifest['format']!r}.")
            major, minor = manifest["version"]
            if major != MAJOR:
                cure = "Upgrade dyads." if major > MAJOR else "Fit the model again."
                raise ModelFileError(
                    f"{path} has format {major}.{minor}, written by dyads {manifest['library']}: this version reads "
                    f"format {MAJOR}. {cure}"
                )
            parts = _map_parts(file, offsets, manifest["sha256"])
        except DyadsError:
            raise
        except Exception as error:
            # A damaged zip may fail in any way.
            raise ModelFileError(f"{path} is no {expected}, or is damaged ({error}). {remedy}") from error
    return manifest, parts


def write_chains(path: str | os.PathLike[str], arrays: dict[str, Any], about: dict[str, Any]) -> None:
    """Write where chains are, and what they are of, atomically."""
    manifest = {"format": CHAINS, "version": [MAJOR, MINOR], "library": __version__, "about": about}
    _write_parts(path, manifest, {"arrays.safetensors": to_safetensors(arrays)})


def read_chains(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what `write_chains` wrote."""
    manifest, parts = _read_parts(path, CHAINS, "Delete it to begin anew, or give another path.")
    return _from_safetensors(parts["arrays.safetensors"]), _from_json(manifest["about"])


LEARNT = ("average", "spread", "met", "centre", "precision", "predictions")
"""The arrays of entities that differ between averaged models."""


def _own_arrays(member: Fitted) -> dict[str, Any]:
    """What one of several averaged models has for itself; all else is as in the first."""
    found = {"theta": member.theta, "prediction": member.prediction}
    for side, entities in (("row", member.rows), ("col", member.cols)):
        found |= {f"{side}_{name}": getattr(entities, name) for name in LEARNT}
    return found


def _member(first: Fitted, arrays: dict[str, Any], number: int) -> Fitted:
    def of(name: str) -> Any:
        stacked = arrays.get(f"members_{name}")
        return None if stacked is None else stacked[number]

    rows, cols = (
        replace(entities, **{name: of(f"{side}_{name}") for name in LEARNT})
        for side, entities in (("row", first.rows), ("col", first.cols))
    )
    return replace(
        first, theta=of("theta"), prediction=of("prediction"), rows=rows, cols=cols, calibrator=None, strangeness=None
    )


def _entities(
    side: str, name: str, manifest: dict[str, Any], parts: dict[str, Any], arrays: dict[str, Any]
) -> Entities:
    mine = {field: arrays.get(f"{side}_{field}") for field in ENTITY_ARRAYS}
    n = len(mine["counts"])
    features = None
    if f"{side}_features_data" in arrays:
        data, indices, indptr = (arrays[f"{side}_features_{field}"] for field in CSR_ARRAYS)
        features = sparse.csr_array((data, indices, indptr), shape=(n, len(mine["average_features"])))
    ids = Vocabulary(_from_ipc(parts[f"{side}s.arrow"]), name)
    return Entities(ids, features=features, encoder=_encoder(side, manifest), **mine)


def _encoder(side: str, manifest: dict[str, Any]) -> Encoder | None:
    plain = manifest["encoders"][side]
    return None if plain is None else Encoder.from_json(plain)


def not_understood(path: str | os.PathLike[str], error: Exception) -> ModelFileError:
    """Build the error for a sound file that names something this version does not have."""
    return ModelFileError(f"{path} holds what this version of dyads does not know ({error}). Upgrade dyads.")


def _write_aligned(archive: zipfile.ZipFile, name: str, part: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.file_size = len(part)
    assert archive.fp is not None
    # The data follow a header of 30 bytes, the name and the extra fields; zipfile adds one of 20 bytes to large parts.
    large = 20 if len(part) * 1.05 > zipfile.ZIP64_LIMIT else 0
    begin = archive.fp.tell() + 30 + len(name) + 4 + large
    padding = -begin % ALIGNMENT
    info.extra = struct.pack("<HH", 0xD1AD, padding) + bytes(padding)
    archive.writestr(info, part)


def _map_parts(file: BinaryIO, offsets: dict[str, tuple[int, int]], sha256: dict[str, str]) -> dict[str, memoryview]:
    """Map each part, after checking it against its hash."""
    # Copy-on-write: kernels are compiled for writable arrays, and nothing is written.
    whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    parts = {}
    for name, digest in sha256.items():
        header, size = offsets[name]
        name_length, extra_length = struct.unpack_from("<HH", whole, header + 26)
        begin = header + 30 + name_length + extra_length
        parts[name] = whole[begin : begin + size]
        if hashlib.sha256(parts[name]).hexdigest() != digest:
            raise ModelFileError(
                f"{file.name} is damaged: its part {name} is not what was saved. Save the model again."
            )
    return parts


def _from_safetensors(part: memoryview) -> dict[str, Any]:
    """The arrays of a safetensors part, in place: the library's own loader copies them."""
    (length,) = struct.unpack_from("<Q", part)
    header = json.loads(bytes(part[8 : 8 + length]))
    data = part[8 + length :]
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}[entry["dtype"]]
        arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return arrays


def _to_json(value: Any) -> Any:
    """Replace what JSON does not have: NaN and infinities, by objects that name them."""
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if value.keys() == {"float"} else {k: _from_json(v) for k, v in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _to_ipc(column: pa.Array) -> memoryview:
    sink = pa.BufferOutputStream()
    table = pa.table({"ids": column})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _from_ipc(part: memoryview) -> pa.Array:
    table = pa.ipc.open_file(pa.py_buffer(part)).read_all()
    return table["ids"].combine_chunks()


def spec_to_json(spec: Any, registry: dict[str, Any]) -> dict[str, Any]:
    """A structure or loss as its registered name and its fields."""
    (name,) = (name for name, kind in registry.items() if type(spec) is kind)
    plain = np.ndarray | np.generic
    fields = {key: value.tolist() if isinstance(value, plain) else value for key, value in spec._asdict().items()}
    return {"name": name, **fields}


def spec_from_json(fields: dict[str, Any], registry: dict[str, Any]) -> Any:
    """The structure or loss of a name and fields."""
    kind = registry[fields["name"]]
    values = {key: value for key, value in fields.items() if key != "name"}
    return kind(**{key: np.asarray(value) if isinstance(value, list) else value for key, value in values.items()})
