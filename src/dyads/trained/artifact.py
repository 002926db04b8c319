"""The model file: an archive of a trained record and the metadata of its estimator.

The manifest holds settings, names and encoders; the arrays hold parameters, counts, features, ids and labels.
"""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from dyads.data.archive import LARGEST_FLOAT, Contents, Format, column_to_arrays, read_archive, write_archive
from dyads.data.codes import Vocabulary, numeric_values, to_numpy
from dyads.data.dyads import LabelCounts, Seen
from dyads.data.features import Encoder
from dyads.errors import InputError, ModelFileError
from dyads.model.loss import LOSSES, Loss
from dyads.model.objective import L2, SCALINGS
from dyads.model.parameters import Layout
from dyads.model.record import Calibrator, Draw, Entities, Known, Parts, Population, Record
from dyads.model.structure import STRUCTURES, Structure, build
from dyads.model.walk import WALK_FEATURES, Walk
from dyads.settings import is_number
from dyads.trained.calibration import CALIBRATORS, LEAST_SCALE

Array = np.ndarray[Any, Any]

MODEL = Format("dyads model", 7, 0, "save the model again", "fit the model again")
SEEN_ARRAYS = ("start", "col", "relation")
CSR_ARRAYS = ("data", "indices", "indptr")
PLAIN_FIELDS = ("interactions", "rank", "bias", "strengths", "scaling", "implicit")
SIDES = ("row", "col")
LABEL_COUNTS = (*SIDES, "relation")
FLOATS = ("F32", "F64")
FLOAT_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}

MOST_RANK = 2**20
"""Largest rank: far beyond use, and small enough to compute sizes with."""

MOST_REACH = 0.999
"""Largest probability of a random walk to go on: nearer to 1 it would not end."""

MOST_LABEL_BYTES = 2**28
"""Largest size of the labels in memory. NumPy gives every text the length of the longest, which a file need not."""

LARGEST_SCORE, LARGEST_DOUBLE_SCORE = 1e30, 1e200
"""Largest bounds of a score for which single and double precision cannot overflow."""


def write(path: str | os.PathLike[str], record: Record, about: dict[str, Any]) -> None:
    """Write a model and the metadata `about` its estimator (any JSON value), atomically.

    `Known` is written once; the arrays of draw i have names that begin with "i.".
    """
    known, chosen = record.known, record.parts
    if known.classes.nbytes > MOST_LABEL_BYTES:
        raise InputError(
            f"The labels take {known.classes.nbytes:,} bytes: expected at most {MOST_LABEL_BYTES:,} in a model file. "
            "Shorten them."
        )
    # With one id set, the nodes are stored as rows.
    sets = dict(zip(SIDES, known.sets, strict=False))
    columns = {f"{side}s": entities.ids.ids for side, entities in sets.items()}
    columns["labels"] = _label_column(known.classes)
    if known.relations is not None:
        columns["relations"] = known.relations.ids
    types: dict[str, str] = {}
    arrays = {
        "relation_counts": known.relation_counts,
        **({} if known.seen is None else {f"seen_{name}": getattr(known.seen, name) for name in SEEN_ARRAYS}),
        "shared_centre": known.shared_centre,
        "nonconformity": record.nonconformity,
        **{f"{of}_label_counts": getattr(known.label_counts, of) for of in LABEL_COUNTS},
    }
    for name, column in columns.items():
        types[name], stored = column_to_arrays(name, column)
        arrays |= stored
    for side, entities in sets.items():
        arrays |= {f"{side}_counts": entities.counts, f"{side}_average_features": entities.average_features}
        if entities.features is not None:
            arrays |= {f"{side}_features_{name}": getattr(entities.features, name) for name in CSR_ARRAYS}
    first = _arrays_of(record.draws[0], list(sets))
    for number, draw in enumerate(record.draws):
        of_draw = _arrays_of(draw, list(sets))
        if number:
            # Draws of a posterior share their partner shifts.
            of_draw = {
                name: x for name, x in of_draw.items() if name not in SHIFTS or not np.array_equal(x, first[name])
            }
        arrays |= {f"{number}.{name}": array for name, array in of_draw.items()}
    encoders = {side: entities.encoder for side, entities in sets.items()} | {"dyad": known.dyad_encoder}
    manifest = {
        **types,
        "structure": _structure_to_json(chosen.structure),
        "loss": next(name for name, kind in LOSSES.items() if type(chosen.loss) is kind),
        "delta": getattr(chosen.loss, "delta", None),
        "columns": [known.rows.ids.name, known.col_name],
        "relation": None if known.relations is None else known.relations.name,
        "only_links": known.only_links,
        "walk": None if known.walk is None else known.walk._asdict(),
        "draws": len(record.draws),
        "best": record.best,
        "encoders": {side: None if encoder is None else encoder.to_json() for side, encoder in encoders.items()},
        "calibrator": None if record.calibrator is None else spec_to_json(record.calibrator, CALIBRATORS),
        **{name: getattr(chosen, name) for name in PLAIN_FIELDS},
        "about": about,
    }
    write_archive(path, MODEL, manifest, {name: array for name, array in arrays.items() if array is not None})


SHIFTS = ("row_partner_shift", "col_partner_shift")
"""Names of the arrays of a draw that are stored once if they are those of the first draw."""


def _label_column(classes: Array) -> pa.Array:
    # From an array of NumPy, Arrow would cut a text at a NUL character.
    return pa.array(classes.tolist(), pa.large_string()) if classes.dtype.kind == "U" else pa.array(classes)


def _arrays_of(draw: Draw, sides: list[str]) -> dict[str, Any]:
    """The arrays of one draw, by name. With one id set, columns share all arrays of the rows but the partner shift."""
    arrays = {"theta": draw.theta, "prediction": draw.prediction, "col_partner_shift": draw.cols.partner_shift}
    for side, population in zip(sides, (draw.rows, draw.cols), strict=False):
        arrays |= {f"{side}_{name}": getattr(population, name) for name in Population.__dataclass_fields__}
    return arrays


def read(path: str | os.PathLike[str], *, mapped: bool = False) -> tuple[Record, Contents]:
    """Read a model, and the contents of its file, whose field "about" holds the metadata of the estimator.

    The file may come from a stranger: whatever could crash, hang or give invalid probabilities raises a
    `ModelFileError`. `mapped` : as for `read_archive`.
    """
    contents = read_archive(path, MODEL, mapped=mapped)
    classes = _classes(contents)
    structure = _structure(contents, len(classes))
    known = _known(contents, classes, structure)
    chosen = _parts(contents, structure, known)
    layout = chosen.layout(known)
    # The sizes that the structure asks for are checked first: all further arrays are as large as they allow.
    theta = contents.raw("0.theta", FLOATS, (layout.size,))
    known = replace(known, shared_centre=contents.floats("shared_centre", layout.n_relations, layout.sizes[2]))
    n_draws = contents.count("draws", contents.field("draws"), 1, len(contents.arrays))
    record = Record(
        parts=chosen,
        known=known,
        draws=tuple(_draw(contents, number, layout, theta.dtype) for number in range(n_draws)),
        best=contents.count("best", contents.field("best"), 0, n_draws - 1),
        calibrator=_calibrator(contents, len(classes)),
        nonconformity=_nonconformity(contents),
    )
    _check_scores(contents, record)
    return record, contents


def _classes(contents: Contents) -> Array:
    column = contents.column("labels")
    text = pa.types.is_large_string(column.type)
    if not (text or pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or column.type == pa.bool_()):
        raise contents.wrong("labels", "texts, numbers or booleans")
    if len(column) < 2:
        raise contents.wrong("labels", "two or more")
    if text and 4 * len(column) * pc.max(pc.utf8_length(column)).as_py() > MOST_LABEL_BYTES:
        raise contents.wrong("labels", f"texts that take at most {MOST_LABEL_BYTES} bytes at the length of the longest")
    return to_numpy(column)


def _structure_to_json(structure: Any) -> dict[str, Any]:
    """The arguments of `build`. Several names may build the same structure: the first one stands for all."""
    kind = type(structure), structure.one_set
    return {
        "name": next(name for name, built in STRUCTURES.items() if built == kind),
        "reference": structure.reference,
        "bias": structure.n_bias > 0,
        "rank": structure.rank,
        "n_terms": getattr(structure, "n_terms", None),
    }


def _structure(contents: Contents, n_labels: int) -> Structure:
    fields = contents.typed("structure", contents.field("structure"), dict, "an object")
    name = fields.get("name")
    if not isinstance(name, str) or name not in STRUCTURES:
        raise unsupported(contents, f"the structure {str(name)[:40]!r}")
    reference = contents.count("structure (reference)", fields.get("reference"), 0, n_labels)
    bias = contents.typed("structure (bias)", fields.get("bias"), bool, "true or false")
    rank = contents.count("structure (rank)", fields.get("rank"), 0, MOST_RANK)
    n_terms = fields.get("n_terms")
    if hasattr(STRUCTURES[name][0], "n_terms"):
        contents.count("structure (n_terms)", n_terms, 1, MOST_RANK)
    elif n_terms is not None:
        raise contents.wrong("structure (n_terms)", "null")
    return build(name, n_labels, reference, bias, rank, n_terms)


def _known(contents: Contents, classes: Array, structure: Structure) -> Known:
    """What the training data contain, apart from the centre of shared blocks, whose size follows from the rest."""
    sides = SIDES[:1] if structure.one_set else SIDES
    row_name, col_name = contents.texts("columns", contents.field("columns"), 2)
    relation = contents.typed("relation", contents.field("relation"), (str, type(None)), "a name or null")
    relations = None if relation is None else Vocabulary(contents.column("relations"), relation)
    n_relations = 1 if relations is None else len(relations)
    encoders = contents.typed("encoders", contents.field("encoders"), dict, "an object")
    names = (row_name, col_name)
    sets = tuple(_entities(contents, side, name, encoders) for side, name in zip(sides, names, strict=False))
    lengths = zip(LABEL_COUNTS, (len(sets[0]), len(sets[-1]), n_relations), strict=True)
    return Known(
        classes=classes,
        sets=sets,
        col_name=col_name,
        relations=relations,
        relation_counts=contents.floats("relation_counts", n_relations, least=0),
        label_counts=LabelCounts(
            *(contents.floats(f"{of}_label_counts", n, len(classes), least=0) for of, n in lengths)
        ),
        shared_centre=np.zeros((n_relations, 0)),
        dyad_encoder=_encoder(contents, "dyad", encoders, len(contents.raw("0.theta", FLOATS, (None,)))),
        seen=_seen(contents, len(sets[0]), len(sets[-1]), None if relations is None else n_relations),
        only_links=contents.typed("only_links", contents.field("only_links"), bool, "true or false"),
        walk=_walk(contents, structure.one_set and encoders.get("dyad") is None and contents.has("seen_col")),
    )


def _walk(contents: Contents, possible: bool) -> Walk | None:
    """The random walk of a stack, which needs a graph, and no other features of dyads."""
    plain = contents.field("walk")
    if plain is None:
        return None
    if not (possible and type(plain) is dict and plain.keys() == set(Walk._fields)):
        raise contents.wrong("walk", "null, or the reach, centre and scale of a walk on a graph")
    reach, centre, scale = plain["reach"], plain["centre"], plain["scale"]
    if not (
        is_number(reach)
        and 0 < reach < MOST_REACH
        and all(type(pair) is list and len(pair) == len(WALK_FEATURES) for pair in (centre, scale))
        and all(is_number(value) and abs(value) <= LARGEST_FLOAT for value in (*centre, *scale))
        and min(scale) >= LEAST_SCALE
    ):
        raise contents.wrong("walk", "a reach below 1, and two centres and scales")
    return Walk(reach, tuple(centre), tuple(scale))


def _seen(contents: Contents, n_rows: int, n_cols: int, n_relations: int | None) -> Seen | None:
    if not contents.has("seen_col"):
        return None
    col = _codes(contents, "seen_col", None, n_cols)
    start = contents.raw("seen_start", ("I64",), (None,))
    is_grouped = (start[1:] >= start[:-1]).all()
    if not (0 < len(start) <= n_rows + 1 and start[0] == 0 and start[-1] == len(col) and is_grouped):
        raise contents.wrong("seen_start", f"starts of at most {n_rows} rows, from 0 to {len(col)}, in order")
    return Seen(start, col, None if n_relations is None else _codes(contents, "seen_relation", len(col), n_relations))


def _codes(contents: Contents, name: str, length: int | None, n: int) -> Array:
    codes = contents.raw(name, ("I32", "I64"), (length,))
    if len(codes) and not (codes.min() >= 0 and codes.max() < n):
        raise contents.wrong(name, f"codes from 0 to {n - 1}")
    return codes


def _entities(contents: Contents, side: str, name: str, encoders: dict[str, Any]) -> Entities:
    ids = contents.column(f"{side}s")
    counts = contents.floats(f"{side}_counts", len(ids), least=0)
    if not counts.any():
        raise contents.wrong(f"{side}_counts", "a positive number")
    average = contents.floats(f"{side}_average_features", None)
    encoder = _encoder(contents, side, encoders, len(average))
    features = None
    if contents.has(f"{side}_features_data"):
        features = _features(contents, f"{side}_features", (len(ids), len(average)))
    elif len(average):
        raise contents.wrong(f"{side}_features_data", "the features of all ids")
    return Entities(
        ids=Vocabulary(ids, name), counts=counts, features=features, average_features=average, encoder=encoder
    )


def _features(contents: Contents, name: str, shape: tuple[int, int]) -> sparse.csr_array:
    """A sparse matrix, whose indices lie within its shape: what SciPy multiplies with, it does not check."""
    data = contents.floats(f"{name}_data", None)
    start = contents.raw(f"{name}_indptr", ("I32", "I64"), (shape[0] + 1,))
    place = contents.raw(f"{name}_indices", ("I32", "I64"), (len(data),))
    if start[0] != 0 or start[-1] != len(data) or (start[1:] < start[:-1]).any() or start.dtype != place.dtype:
        raise contents.wrong(f"{name}_indptr", f"starts of lines from 0 to {len(data)}, in order")
    if len(place) and not (place.min() >= 0 and place.max() < shape[1]):
        raise contents.wrong(f"{name}_indices", f"places from 0 to {shape[1] - 1}")
    return sparse.csr_array((data, place, start), shape=shape)


def _encoder(contents: Contents, side: str, encoders: dict[str, Any], n_features: int) -> Encoder | None:
    """The encoder of one side, of at most `n_features` features; the features beyond are implicit feedback."""
    plain = encoders.get(side)
    if plain is None:
        return None
    try:
        encoder = Encoder.from_json(plain, n_features)
    except (InputError, pa.ArrowException, ValueError, TypeError, LookupError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise contents.wrong(
            f"encoders ({side})", f"an encoder of features ({type(error).__name__}: {reason})"
        ) from error
    return encoder


def _parts(contents: Contents, structure: Any, known: Known) -> Parts:
    interactions = contents.count("interactions", contents.field("interactions"), 0, structure.rank)
    rank = contents.count("rank", contents.field("rank"), 0, structure.rank)
    if structure.rank not in (rank, interactions):
        raise contents.wrong("rank", f"{structure.rank}, as in the structure")
    switches = {
        name: contents.typed(name, contents.field(name), bool, "true or false") for name in ("bias", "implicit")
    }
    strengths = contents.typed("strengths", contents.field("strengths"), dict, "an object")
    scaling = contents.typed("scaling", contents.field("scaling"), str, "a name")
    if scaling not in SCALINGS:
        raise unsupported(contents, f"the scaling {scaling[:40]!r}")
    chosen = Parts(
        structure=structure,
        loss=_loss(contents, numeric_values(known.classes)),
        rank=rank,
        interactions=interactions,
        strengths=strengths,
        scaling=scaling,
        **switches,
    )
    for name in L2().strengths(chosen.layout(known), rank, switches["bias"]):
        if not (is_number(strengths.get(name)) and 0 <= strengths[name] <= LARGEST_FLOAT):
            raise contents.wrong(f"strengths ({name})", "a number, at least 0")
    return chosen


def _loss(contents: Contents, values: Array) -> Loss:
    name = contents.typed("loss", contents.field("loss"), str, "a name")
    if name not in LOSSES:
        raise unsupported(contents, f"the loss {name[:40]!r}")
    loss: Any = LOSSES[name]()
    if not loss.ordered:
        return loss  # type: ignore[no-any-return]
    if not np.isfinite(values).all() or (values[1:] <= values[:-1]).any():
        raise contents.wrong("labels", f"ascending numbers, which the loss {name!r} needs")
    bound = loss.bind(values)
    if hasattr(bound, "delta"):
        delta = contents.field("delta")
        if not is_number(delta) or delta < 0:
            raise contents.wrong("delta", "a number, at least 0")
        bound = bound._replace(delta=delta)
    return bound  # type: ignore[no-any-return]


def _draw(contents: Contents, number: int, layout: Layout, dtype: Any) -> Draw:
    """Draw `number`: the inverse of `_arrays_of`. All draws have parameters of one dtype, and the same arrays."""
    start, precision = f"{number}.", FLOAT_NAMES[dtype]
    n_labels, sizes = layout.structure.n_labels, layout.sizes[:2]
    posterior, predicted = contents.has("0.row_precision"), contents.has("0.prediction")
    # The spreads of rows and columns are paired, so that they must have as many draws.
    n_spread = len(contents.raw(f"{start}row_spread", FLOATS, (None, sizes[0])))
    sides = SIDES[:1] if layout.structure.one_set else SIDES
    shifts = {
        side: contents.floats(f"{start if contents.has(start + name) else '0.'}{name}", n, n_labels)
        for side, name, n in zip(SIDES, SHIFTS, (layout.n_rows, layout.n_cols), strict=True)
    }
    populations = []
    for side, size, n in zip(sides, sizes, (layout.n_rows, layout.n_cols), strict=False):
        matrix = predictions = None
        if posterior:
            matrix = contents.floats(f"{start}{side}_precision", size, size, dtype=FLOATS)
            try:
                np.linalg.cholesky(matrix.astype(np.float64))
            except np.linalg.LinAlgError as error:
                raise contents.wrong(f"{start}{side}_precision", "a positive definite matrix") from error
        if predicted:
            predictions = contents.raw(f"{start}{side}_predictions", FLOATS, (n, n_labels))
            seen = ~np.isnan(predictions).any(axis=1)
            _check_proba(contents, f"{start}{side}_predictions", predictions[seen])
        populations.append(
            Population(
                average=contents.floats(f"{start}{side}_average", size, dtype=FLOATS),
                spread=contents.floats(f"{start}{side}_spread", n_spread, size, dtype=FLOATS),
                partner_shift=shifts[side],
                centre=contents.floats(f"{start}{side}_centre", size, dtype=FLOATS),
                precision=matrix,
                predictions=predictions,
            )
        )
    prediction = None
    if predicted:
        prediction = contents.raw(f"{start}prediction", FLOATS, (n_labels,))
        _check_proba(contents, f"{start}prediction", prediction[None])
    return Draw(
        theta=contents.floats(f"{start}theta", layout.size, dtype=(precision,)),
        rows=populations[0],
        cols=replace(populations[-1], partner_shift=shifts["col"]),
        prediction=prediction,
    )


def _check_proba(contents: Contents, name: str, proba: Array) -> None:
    if not ((proba >= 0).all() and np.allclose(proba.sum(axis=1), 1, atol=1e-3)):
        raise contents.wrong(name, "probabilities, which sum to 1")


def _nonconformity(contents: Contents) -> Array | None:
    if not contents.has("nonconformity"):
        return None
    scores = contents.floats("nonconformity", None, least=0, most=1)
    if (scores[1:] < scores[:-1]).any():
        raise contents.wrong("nonconformity", "ascending scores")
    return scores


def _calibrator(contents: Contents, n_labels: int) -> Calibrator | None:
    plain = contents.field("calibrator")
    if plain is None:
        return None
    fields = contents.typed("calibrator", plain, dict, "an object or null")
    if not isinstance(fields.get("name"), str) or fields["name"] not in CALIBRATORS:
        raise unsupported(contents, f"the calibrator {str(fields.get('name'))[:40]!r}")
    try:
        calibrator: Any = spec_from_json(fields, CALIBRATORS)
        calibrator.check(n_labels)
    except (InputError, TypeError, ValueError) as error:
        raise contents.wrong("calibrator", f"a calibrator of {n_labels} labels ({error})") from error
    return calibrator  # type: ignore[no-any-return]


def _check_scores(contents: Contents, record: Record) -> None:
    """Raise if scores could overflow, so that probabilities would be NaN.

    A score is at most a sum, over a block's size, of products of three entries of effective blocks, plus shifts. An
    entry of an effective block is at most that of own blocks plus the spread, plus, for each feature, its largest
    value times its largest weight. With features, scores are in double precision.
    """
    known, layout = record.known, record.parts.layout(record.known)
    reach = [
        np.zeros(0)
        if entities.features is None
        else np.maximum(abs(entities.features).max(axis=0).toarray().ravel(), abs(entities.average_features))
        for entities in known.sets
    ]
    limit = LARGEST_SCORE if not any(layout.n_features) else LARGEST_DOUBLE_SCORE
    for number, draw in enumerate(record.draws):
        blocks, weights = layout.blocks(draw.theta), layout.side_weights(draw.theta)
        bound, shift = max(1.0, _largest(blocks.shared)) * max(layout.sizes), 0.0
        for i, (population, values) in enumerate(zip((draw.rows, draw.cols), (reach[0], reach[-1]), strict=True)):
            own = max(_largest(blocks[i]), _largest(population.average)) + _largest(population.spread)
            features = (
                float(values @ abs(weights[min(i, len(reach) - 1)]).max(axis=1, initial=0.0)) if len(values) else 0.0
            )
            bound *= max(1.0, own + features)
            shift += _largest(population.partner_shift)
        if not bound + shift <= limit:
            raise contents.wrong(f"{number}.theta", "parameters whose scores do not overflow")


def _largest(array: Array) -> float:
    """The largest magnitude, without a copy."""
    return max(-float(array.min()), float(array.max())) if array.size else 0.0


def unsupported(contents: Contents, what: str) -> ModelFileError:
    """Build the error for an intact file that uses something this version does not have."""
    return ModelFileError(f"{contents.path} uses {what}, which this version of dyads does not know. Upgrade dyads.")


def spec_to_json(spec: Any, registry: dict[str, Any]) -> dict[str, Any]:
    """Convert a loss or calibrator to its registered name and its fields."""
    (name,) = (name for name, kind in registry.items() if type(spec) is kind)
    plain = np.ndarray | np.generic
    fields = {key: value.tolist() if isinstance(value, plain) else value for key, value in spec._asdict().items()}
    return {"name": name, **fields}


def spec_from_json(fields: dict[str, Any], registry: dict[str, Any]) -> Any:
    """Build a loss or calibrator from its registered name and its fields."""
    kind = registry[fields["name"]]
    values = {key: value for key, value in fields.items() if key != "name"}
    return kind(**{key: np.asarray(value) if isinstance(value, list) else value for key, value in values.items()})
