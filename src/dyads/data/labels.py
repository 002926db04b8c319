"""Labels <-> 0..L-1, in sorted order."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dyads.data.tables import read_column
from dyads.data.vocabulary import Codes
from dyads.errors import InputError

Array = np.ndarray[Any, Any]

MANY_FLOATS = 20
"""Float labels with more distinct values than this, and than half the dyads, are taken for a continuous target."""


def encode_labels(y: Any, at_least: int = 2) -> tuple[Array, Codes]:
    """Find the distinct labels, sorted, and encode each; strings, integers, booleans and floats are labels."""
    column = read_column(y, "the column of labels", numbers_mix=True)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_text(kind)):
        raise InputError(f"The labels have type {kind}: expected strings, integers, booleans or floats. Convert them.")
    encoded = column.dictionary_encode()
    found = to_numpy(encoded.dictionary)
    if _is_text(kind) and len(set(found.tolist())) < len(found):
        # NumPy's text drops NUL characters at its end.
        raise InputError(
            "Some labels differ in NUL characters at their ends alone: expected texts without. Strip them."
        )
    if len(found) < at_least:
        needed = "two to tell apart" if at_least == 2 else "one"
        raise InputError(f"The labels have {len(found)} class, {found.tolist()}: expected at least {needed}.")
    if pa.types.is_floating(kind) and len(found) > max(MANY_FLOATS, len(column) / 2) and (found % 1).any():
        raise InputError(
            f"Unknown label type: continuous ({len(found)} distinct floats in {len(column)} labels): expected few "
            "distinct labels. Bin them first."
        )
    order = np.argsort(found, kind="stable")
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order))
    return found[order], position[encoded.indices.to_numpy(zero_copy_only=False)]


def read_labels(y: Any) -> Array:
    """Labels as given, to compare with."""
    return to_numpy(read_column(y, "the column of labels", numbers_mix=True))


def to_numpy(column: pa.Array) -> Array:
    """An Arrow column of labels or ids as a NumPy array; text as NumPy text."""
    if _is_text(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    array: Array = column.to_numpy(zero_copy_only=False)
    return array


def numeric_values(classes: Array) -> npt.NDArray[np.float64]:
    """The numeric value of each ordered label: itself, or its place 0, 1, ... in the sorted order of texts."""
    return classes.astype(np.float64) if classes.dtype.kind in "biuf" else np.arange(len(classes), dtype=np.float64)


def values_of(labels: Array, classes: Array) -> npt.NDArray[np.float64]:
    """The numeric value of each of `labels`, which are numbers or among `classes`."""
    if labels.dtype.kind in "biuf" and classes.dtype.kind in "biuf":
        return labels.astype(np.float64)
    values: npt.NDArray[np.float64] = numeric_values(classes)[codes_of(labels, classes)]
    return values


def codes_of(labels: Array, classes: Array) -> Codes:
    """The code of each label among `classes`, which are sorted; others are refused."""
    place = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    strange = np.flatnonzero(classes[place] != labels)
    if len(strange):
        raise InputError(
            f"The label {labels[strange[0]].item()!r} is not among those of the model, {classes.tolist()}: expected "
            "these. Drop its dyads, or fit the model anew."
        )
    return place


def label_codes(y: Any, classes: Array) -> Codes:
    """The code of each given label among `classes`."""
    return codes_of(read_labels(y), classes)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind))
