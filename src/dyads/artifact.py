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
from dyads.model.loss import LOSSES
from dyads.model.record import Draw, Entities, Known, Parts, Population, Record
from dyads.model.structure import KINDS

FORMAT = "dyads model"
CHAINS = "dyads chain"
MAJOR, MINOR = 4, 0
ALIGNMENT = 64
POPULATION_ARRAYS = ("average", "spread", "partner_shift", "centre", "precision", "predictions")
CSR_ARRAYS = ("data", "indices", "indptr")
PLAIN_FIELDS = ("interactions", "rank", "bias", "strengths", "scaling", "implicit")
SIDES = ("row", "col")
MANIFEST = "manifest.json"
BEGIN_ANEW = "delete it to begin anew, or give another path"


def write(path: str | os.PathLike[str], record: Record, about: dict[str, Any]) -> None:
    """Write a model and what its estimator says `about` itself (any JSON value), atomically.

    What is known is written once, and the arrays of draw i under names that begin with "i.".
    """
    known, chosen = record.known, record.parts
    # Of one id set, the nodes are called rows.
    sets = dict(zip(SIDES, known.sets, strict=False))
    arrays = {
        "relation_counts": known.relation_counts,
        "shared_centre": known.shared_centre,
        "nonconformity": record.nonconformity,
    }
    for side, entities in sets.items():
        arrays |= {f"{side}_counts": entities.counts, f"{side}_average_features": entities.average_features}
        if entities.features is not None:
            arrays |= {f"{side}_features_{name}": getattr(entities.features, name) for name in CSR_ARRAYS}
    for number, draw in enumerate(record.draws):
        arrays |= {f"{number}.{name}": array for name, array in _arrays_of(draw, list(sets)).items()}
    given = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    parts = {"arrays.safetensors": to_safetensors(given)}
    parts |= {f"{side}s.arrow": _to_ipc(entities.ids.ids) for side, entities in sets.items()}
    if known.relations is not None:
        parts["relations.arrow"] = _to_ipc(known.relations.ids)
    encoders = {side: entities.encoder for side, entities in sets.items()} | {"dyad": known.dyad_encoder}
    manifest = {
        "format": FORMAT,
        "version": [MAJOR, MINOR],
        "library": __version__,
        "structure": spec_to_json(chosen.structure, KINDS),
        "loss": spec_to_json(chosen.loss, LOSSES),
        "labels": {"dtype": known.classes.dtype.str, "order": known.classes.tolist()},
        "columns": [known.rows.ids.name, known.col_name],
        "relation": None if known.relations is None else known.relations.name,
        "draws": len(record.draws),
        "encoders": {side: None if encoder is None else encoder.to_json() for side, encoder in encoders.items()},
        "calibrator": None if record.calibrator is None else spec_to_json(record.calibrator, CALIBRATORS),
        **{name: getattr(chosen, name) for name in PLAIN_FIELDS},
        "about": about,
    }
    _write_parts(path, manifest, parts)


def _arrays_of(draw: Draw, sides: list[str]) -> dict[str, Any]:
    """The arrays of one draw; of nodes, which are on one side, columns have but their partner shift for themselves."""
    arrays = {"theta": draw.theta, "prediction": draw.prediction, "col_partner_shift": draw.cols.partner_shift}
    for side, population in zip(sides, (draw.rows, draw.cols), strict=False):
        arrays |= {f"{side}_{name}": getattr(population, name) for name in POPULATION_ARRAYS}
    return arrays


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


def read(path: str | os.PathLike[str]) -> tuple[Record, dict[str, Any]]:
    """Read a model and what its estimator said about itself; arrays stay memory-mapped."""
    manifest, parts = _read_parts(path, FORMAT, "save the model again", "fit the model again")
    try:
        relation = manifest["relation"]
        arrays = _from_safetensors(parts["arrays.safetensors"])
        sides = [side for side in SIDES if f"{side}s.arrow" in parts]
        chosen = Parts(
            structure=spec_from_json(manifest["structure"], KINDS),
            loss=spec_from_json(manifest["loss"], LOSSES),
            **{name: manifest[name] for name in PLAIN_FIELDS},
        )
        known = Known(
            classes=np.array(manifest["labels"]["order"], dtype=np.dtype(manifest["labels"]["dtype"])),
            sets=tuple(
                _entities(side, name, manifest, parts, arrays)
                for side, name in zip(sides, manifest["columns"], strict=False)
            ),
            col_name=manifest["columns"][1],
            relations=None if relation is None else Vocabulary(_from_ipc(parts["relations.arrow"]), relation),
            relation_counts=arrays["relation_counts"],
            shared_centre=arrays["shared_centre"],
            dyad_encoder=_encoder("dyad", manifest),
        )
        record = Record(
            parts=chosen,
            known=known,
            draws=tuple(_draw(arrays, number, sides) for number in range(manifest["draws"])),
            calibrator=None if manifest["calibrator"] is None else spec_from_json(manifest["calibrator"], CALIBRATORS),
            nonconformity=arrays.get("nonconformity"),
        )
    except (KeyError, TypeError) as error:
        raise not_understood(path, error) from error
    size, sizes = chosen.layout(known).size, {draw.theta.size for draw in record.draws}
    if sizes != {size}:
        raise ModelFileError(f"{path} is damaged: its draws hold {sorted(sizes)} weights, not {size}.")
    return record, _from_json(manifest["about"])


def _draw(arrays: dict[str, Any], number: int, sides: list[str]) -> Draw:
    """The draw of a number, as `_arrays_of` wrote it."""
    populations = [
        Population(**{name: arrays.get(f"{number}.{side}_{name}") for name in POPULATION_ARRAYS}) for side in sides
    ]
    return Draw(
        theta=arrays[f"{number}.theta"],
        rows=populations[0],
        cols=replace(populations[-1], partner_shift=arrays[f"{number}.col_partner_shift"]),
        prediction=arrays.get(f"{number}.prediction"),
    )


def _read_parts(
    path: str | os.PathLike[str], expected: str, if_damaged: str, if_old: str
) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Read the manifest and the parts of a file of an expected format; the last two say what to do."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                manifest = json.loads(archive.read(MANIFEST))
                offsets = {info.filename: (info.header_offset, info.file_size) for info in archive.infolist()}
            if manifest["format"] != expected:
                raise ModelFileError(f"{path} is no file of a {expected}: it calls itself {manifest['format']!r}.")
            major, minor = manifest["version"]
            if major != MAJOR:
                raise ModelFileError(
                    f"{path} has format {major}.{minor}, written by dyads {manifest['library']}, but this version "
                    f"reads format {MAJOR}: {'upgrade dyads' if major > MAJOR else if_old}."
                )
            parts = _map_parts(file, offsets, manifest["sha256"])
        except DyadsError:
            raise
        except Exception as error:
            # A damaged zip may fail in any way.
            raise ModelFileError(f"{path} is no {expected}, or is damaged ({error}): {if_damaged}.") from error
    return manifest, parts


def write_chains(path: str | os.PathLike[str], arrays: dict[str, Any], about: dict[str, Any]) -> None:
    """Write where chains are, and what they are of, atomically."""
    manifest = {"format": CHAINS, "version": [MAJOR, MINOR], "library": __version__, "about": about}
    _write_parts(path, manifest, {"arrays.safetensors": to_safetensors(arrays)})


def read_chains(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what `write_chains` wrote."""
    manifest, parts = _read_parts(path, CHAINS, BEGIN_ANEW, BEGIN_ANEW)
    return _from_safetensors(parts["arrays.safetensors"]), _from_json(manifest["about"])


def _entities(
    side: str, name: str, manifest: dict[str, Any], parts: dict[str, Any], arrays: dict[str, Any]
) -> Entities:
    counts, average = arrays[f"{side}_counts"], arrays[f"{side}_average_features"]
    features = None
    if f"{side}_features_data" in arrays:
        csr = tuple(arrays[f"{side}_features_{field}"] for field in CSR_ARRAYS)
        features = sparse.csr_array(csr, shape=(len(counts), len(average)))
    return Entities(
        ids=Vocabulary(_from_ipc(parts[f"{side}s.arrow"]), name),
        counts=counts,
        features=features,
        average_features=average,
        encoder=_encoder(side, manifest),
    )


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
