"""The model file: an archive of a trained record and the metadata of its estimator.

The manifest holds settings, names and encoders; the parts hold arrays (safetensors) and ids (Arrow IPC).
"""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from dyads.data.archive import Format, arrays_of_part, arrays_to_part, read_archive, write_archive
from dyads.data.codes import Vocabulary
from dyads.data.dyads import LabelCounts
from dyads.data.features import Encoder
from dyads.errors import ModelFileError
from dyads.model.loss import LOSSES
from dyads.model.record import Draw, Entities, Known, Parts, Population, Record
from dyads.model.structure import KINDS
from dyads.trained.calibration import CALIBRATORS

MODEL = Format("dyads model", 5, 0, "save the model again", "fit the model again")
POPULATION_ARRAYS = ("average", "spread", "partner_shift", "centre", "precision", "predictions")
CSR_ARRAYS = ("data", "indices", "indptr")
PLAIN_FIELDS = ("interactions", "rank", "bias", "strengths", "scaling", "implicit")
SIDES = ("row", "col")
LABEL_COUNTS = (*SIDES, "relation")


def write(path: str | os.PathLike[str], record: Record, about: dict[str, Any]) -> None:
    """Write a model and the metadata `about` its estimator (any JSON value), atomically.

    `Known` is written once; the arrays of draw i have names that begin with "i.".
    """
    known, chosen = record.known, record.parts
    # With one id set, the nodes are stored as rows.
    sets = dict(zip(SIDES, known.sets, strict=False))
    arrays = {
        "relation_counts": known.relation_counts,
        "shared_centre": known.shared_centre,
        "nonconformity": record.nonconformity,
        **{f"{of}_label_counts": getattr(known.label_counts, of) for of in LABEL_COUNTS},
    }
    for side, entities in sets.items():
        arrays |= {f"{side}_counts": entities.counts, f"{side}_average_features": entities.average_features}
        if entities.features is not None:
            arrays |= {f"{side}_features_{name}": getattr(entities.features, name) for name in CSR_ARRAYS}
    for number, draw in enumerate(record.draws):
        arrays |= {f"{number}.{name}": array for name, array in _arrays_of(draw, list(sets)).items()}
    present = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    parts: dict[str, Any] = {"arrays.safetensors": arrays_to_part(present)}
    parts |= {f"{side}s.arrow": _to_ipc(entities.ids.ids) for side, entities in sets.items()}
    if known.relations is not None:
        parts["relations.arrow"] = _to_ipc(known.relations.ids)
    encoders = {side: entities.encoder for side, entities in sets.items()} | {"dyad": known.dyad_encoder}
    manifest = {
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
    write_archive(path, MODEL, manifest, parts)


def _arrays_of(draw: Draw, sides: list[str]) -> dict[str, Any]:
    """The arrays of one draw, by name. With one id set, columns share all arrays of the rows but the partner shift."""
    arrays = {"theta": draw.theta, "prediction": draw.prediction, "col_partner_shift": draw.cols.partner_shift}
    for side, population in zip(sides, (draw.rows, draw.cols), strict=False):
        arrays |= {f"{side}_{name}": getattr(population, name) for name in POPULATION_ARRAYS}
    return arrays


def read(path: str | os.PathLike[str]) -> tuple[Record, dict[str, Any]]:
    """Read a model and the metadata of its estimator; arrays stay memory-mapped."""
    manifest, parts = read_archive(path, MODEL)
    try:
        relation = manifest["relation"]
        arrays = arrays_of_part(parts["arrays.safetensors"])
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
            label_counts=LabelCounts(*(arrays[f"{of}_label_counts"] for of in LABEL_COUNTS)),
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
        raise ModelFileError(f"{path} is damaged: its draws have {sorted(sizes)} weights, expected {size}.")
    return record, manifest["about"]


def _draw(arrays: dict[str, Any], number: int, sides: list[str]) -> Draw:
    """Draw `number`: the inverse of `_arrays_of`."""
    populations = [
        Population(**{name: arrays[key] for name in POPULATION_ARRAYS if (key := f"{number}.{side}_{name}") in arrays})
        for side in sides
    ]
    return Draw(
        theta=arrays[f"{number}.theta"],
        rows=populations[0],
        cols=replace(populations[-1], partner_shift=arrays[f"{number}.col_partner_shift"]),
        prediction=arrays.get(f"{number}.prediction"),
    )


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
    """Build the error for an intact file that uses something this version does not support."""
    return ModelFileError(f"{path} uses something that this version of dyads does not know ({error}). Upgrade dyads.")


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
    """Convert a structure, loss or calibrator to its registered name and its fields."""
    (name,) = (name for name, kind in registry.items() if type(spec) is kind)
    plain = np.ndarray | np.generic
    fields = {key: value.tolist() if isinstance(value, plain) else value for key, value in spec._asdict().items()}
    return {"name": name, **fields}


def spec_from_json(fields: dict[str, Any], registry: dict[str, Any]) -> Any:
    """Build a structure, loss or calibrator from its registered name and its fields."""
    kind = registry[fields["name"]]
    values = {key: value for key, value in fields.items() if key != "name"}
    return kind(**{key: np.asarray(value) if isinstance(value, list) else value for key, value in values.items()})
