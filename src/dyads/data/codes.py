"""Integer encoding of ids (by a `Vocabulary`) and of labels (by classes, sorted or in an order of their own)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dyads.data.tables import ordered_categories, read_column
from dyads.errors import DtypeError, InputError, shortened

Array = np.ndarray[Any, Any]
Codes = npt.NDArray[np.integer]

UNKNOWN = -1
"""The code of an id that is not in the vocabulary. The caller handles it by an explicit policy."""


@dataclass(frozen=True)
class Vocabulary:
    """The distinct ids of rows, columns or relations, in order of first appearance. The code of an id is its position.

    Attributes
    ----------
    ids : pyarrow.Array of shape (n,), without nulls or duplicates
    name : name of the column, for messages
    """

    ids: pa.Array
    name: str

    @classmethod
    def of(cls, column: pa.Array, name: str) -> "tuple[Vocabulary, Codes]":
        """Collect the distinct ids of a column and encode the column, in one pass."""
        encoded = column.dictionary_encode()
        return cls(encoded.dictionary, name), encoded.indices.to_numpy(zero_copy_only=False)

    def __len__(self) -> int:
        return len(self.ids)

    def with_ids(self, column: pa.Array, source: str) -> "Vocabulary":
        """A vocabulary with the new ids of `column` appended; messages call that column `source`."""
        try:
            new = column.filter(pa.array(self.encode(column) < 0)).cast(self.ids.type)
        except (DtypeError, pa.ArrowInvalid) as error:
            raise DtypeError(
                f"The ids in {source} have type {_type_name(column.type)}, but column {self.name!r} of the data holds "
                f"{_type_name(self.ids.type)}: expected ids of the same type. Convert one of them."
            ) from error
        if not len(new):
            return self
        return Vocabulary(pa.concat_arrays([self.ids, new.unique()]), self.name)

    def typed(self, column: pa.Array) -> pa.Array:
        """The ids of `column`; without ids, an empty column of the type of the vocabulary."""
        return column if len(column) else self.ids[:0]

    def encode(self, column: pa.Array) -> Codes:
        """The code of each id, `UNKNOWN` if it is not in the vocabulary. Ids of another type raise."""
        if not len(column):
            return np.empty(0, dtype=np.int32)
        column = _align(column, self.ids.type)
        if column.type != self.ids.type:
            raise DtypeError(
                f"Column {self.name!r} holds ids of type {_type_name(column.type)}, but the model was fitted on "
                f"{_type_name(self.ids.type)}: expected ids of the same type. Convert the column."
            )
        position = pc.index_in(column, value_set=self.ids)
        codes: Codes = position.fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
        return codes


def _align(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast integers (signed or unsigned) and timestamps (of any unit) to `kind`; values that do not fit become null."""
    if column.type == kind:
        return column
    if pa.types.is_integer(column.type) and pa.types.is_integer(kind):
        last = pa.scalar(np.iinfo(np.int64).max, pa.uint64())
        beyond = pc.less(column, 0) if kind == pa.uint64() else pc.greater(column, last)
        return pc.if_else(beyond, None, column).cast(kind)
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind) and column.type.tz == kind.tz:
        aligned = column.cast(kind, safe=False)
        return pc.if_else(pc.equal(aligned.cast(column.type, safe=False), column), aligned, None)
    return column


def _type_name(kind: pa.DataType) -> str:
    return {"large_string": "string", "large_binary": "bytes", "double": "float"}.get(str(kind), str(kind))


# -------------------------------------------------------------------------------------------------------------- labels

MANY_FLOATS = 20
"""Float labels with more distinct values than this, and than half the dyads, are refused as a continuous target.

A higher value admits finer scales; a lower one detects continuous targets in smaller samples.
"""


MANY_LABELS = 10_000
"""More distinct labels than this, and than half the dyads, are refused: they are ids or measurements."""


def encode_labels(y: Any, at_least: int = 2, n_dyads: int | None = None) -> tuple[Array, Codes]:
    """The sorted distinct labels, and the code of each label. Labels are strings, integers, booleans or floats.

    `n_dyads` : number of dyads with these labels, by default as many as labels.
    """
    column = read_column(y, "the column of labels", numbers_mix=True)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_text(kind)):
        raise InputError(f"The labels have type {kind}: expected strings, integers, booleans or floats. Convert them.")
    n_dyads = len(column) if n_dyads is None else n_dyads
    encoded = column.dictionary_encode()
    distinct = to_numpy(encoded.dictionary)
    if _is_text(kind) and len(set(distinct.tolist())) < len(distinct):
        # NumPy strings drop trailing NUL characters.
        raise InputError(
            "Some labels differ only in trailing NUL characters: expected labels without them. Strip them."
        )
    if len(distinct) < at_least:
        needed = "two" if at_least == 2 else "one"
        raise InputError(f"The labels have {len(distinct)} class, {distinct.tolist()}: expected at least {needed}.")
    if pa.types.is_floating(kind) and len(distinct) > max(MANY_FLOATS, n_dyads / 2) and (distinct % 1).any():
        raise InputError(
            f"Unknown label type: continuous ({len(distinct)} distinct floats in {n_dyads} labels): expected few "
            "distinct labels. Bin them first."
        )
    if len(distinct) > max(MANY_LABELS, n_dyads / 2):
        raise InputError(
            f"Got {len(distinct):,} distinct labels for {n_dyads:,} dyads: expected few labels, with many dyads "
            "each. Bin measurements first, and do not pass ids as labels."
        )
    order = np.argsort(distinct, kind="stable")
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order))
    return distinct[order], position[encoded.indices.to_numpy(zero_copy_only=False)]


def text_order(y: Any) -> list[str] | None:
    """The categories of y, lowest first, if y is an ordered categorical of text; otherwise None.

    Categories that are numbers must ascend: numbers are ordered by their values.
    """
    categories = ordered_categories(y, "the column of labels")
    if categories is None:
        return None
    if _is_text(categories.type):
        return categories.to_pylist()  # type: ignore[no-any-return]
    values = to_numpy(categories)
    if values.dtype.kind in "biuf" and (values[1:] <= values[:-1]).any():
        raise InputError(
            f"The ordered categories of the labels are the numbers {values.tolist()}: expected them to ascend, since "
            "numbers are ordered by their values. Use text categories for another order."
        )
    return None


def ordered_classes(classes: Array, y: Any, order: Sequence[str] | None) -> Array:
    """The distinct labels `classes` of y, from lowest to highest.

    Numbers are sorted. Text comes in the order of `order` or, if that is None, of the ordered categorical y; labels of
    the order that are not in `classes` are dropped.
    """
    categories = text_order(y)
    if classes.dtype.kind != "U":
        if order is not None:
            raise InputError(
                f"order={list(order)!r} is for labels that are text, and these are numbers such as "
                f"{classes[0].item()!r}, which are ordered by their values: omit it."
            )
        return classes
    if order is None and categories is None:
        raise InputError(
            f"The labels are text ({shortened(classes.tolist())}) and their order is unknown: expected an "
            "ordered categorical y, or LFLOrdinal(order=['low', 'medium', 'high']), on the command line --order "
            "low,medium,high."
        )
    if order is not None and categories is not None:
        in_both = set(order) & set(categories)
        if [label for label in order if label in in_both] != [label for label in categories if label in in_both]:
            raise InputError(
                f"order={list(order)!r} contradicts the order of the categories of y, {categories}: expected one "
                "order. Give only one of them."
            )
    listed = list(order if order is not None else categories or ())
    rank = {label: place for place, label in enumerate(listed)}
    unlisted = [label for label in classes.tolist() if label not in rank]
    if unlisted:
        raise InputError(
            f"The label {unlisted[0]!r} is not in the order {shortened(listed)}: expected every label there, from "
            "lowest to highest."
        )
    return classes[np.argsort([rank[label] for label in classes.tolist()])]


def read_labels(y: Any) -> Array:
    """Labels as a NumPy array, not encoded."""
    return to_numpy(read_column(y, "the column of labels", numbers_mix=True))


def to_numpy(column: pa.Array) -> Array:
    """Convert an Arrow column of labels or ids to a NumPy array; text becomes NumPy strings."""
    if _is_text(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    array: Array = column.to_numpy(zero_copy_only=False)
    return array


def numeric_values(classes: Array) -> npt.NDArray[np.float64]:
    """The numeric value of each ordered label: the label itself, or its place 0, 1, ... in `classes` if it is text."""
    return classes.astype(np.float64) if classes.dtype.kind in "biuf" else np.arange(len(classes), dtype=np.float64)


def values_of(labels: Array, classes: Array) -> npt.NDArray[np.float64]:
    """The numeric value of each label; labels are numbers, or members of `classes`."""
    if labels.dtype.kind in "biuf" and classes.dtype.kind in "biuf":
        return labels.astype(np.float64)
    values: npt.NDArray[np.float64] = numeric_values(classes)[codes_of(labels, classes)]
    return values


def codes_of(labels: Array, classes: Array) -> Codes:
    """The code of each label in `classes`, which may come in any order. Other labels raise."""
    ascending = np.argsort(classes, kind="stable")
    place: Codes = ascending[np.searchsorted(classes, labels, sorter=ascending).clip(max=len(classes) - 1)]
    unknown = np.flatnonzero(classes[place] != labels)
    if len(unknown):
        raise InputError(
            f"The label {labels[unknown[0]].item()!r} is not among those of the model, {classes.tolist()}: expected "
            "one of these. Drop its dyads, or fit the model again."
        )
    return place


def label_codes(y: Any, classes: Array) -> Codes:
    """Read labels and encode them by `classes`."""
    return codes_of(read_labels(y), classes)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind))
