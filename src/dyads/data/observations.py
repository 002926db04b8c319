"""From tables to labelled dyads: which columns are the ids, what the labels are, how much each dyad weighs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dyads.data.dyads import Dyads
from dyads.data.labels import encode_labels, to_numpy
from dyads.data.tables import named_values, read_column
from dyads.data.vocabulary import Codes, Vocabulary
from dyads.errors import InputError


@dataclass(frozen=True)
class Observations:
    """Labelled dyads with what their codes stand for.

    Attributes
    ----------
    dyads : the codes
    classes : (n_labels,) labels, sorted
    rows, cols : ids
    """

    dyads: Dyads
    classes: np.ndarray[Any, Any]
    rows: Vocabulary
    cols: Vocabulary


def read_observations(X: Any, y: Any, sample_weight: Any, row: Any = None, col: Any = None) -> Observations:
    """Read labelled dyads; `row` and `col` name the id columns, by default the first two."""
    values = named_values(X)
    names = _id_columns(list(values), row, col)
    ids = [_read_ids(values, name) for name in names]
    classes, label = encode_labels(y)
    weight = _read_weight(sample_weight)
    n = len(ids[0])
    lengths = {"column ids": len(ids[1]), "labels": len(label), "weights": n if weight is None else len(weight)}
    for what, length in lengths.items():
        if length != n:
            raise InputError(f"Got {n} dyads but {length} {what}: expected one for each dyad.")
    if weight is not None and not weight.all():
        # A dyad of weight zero is no dyad: its ids and its label may be unknown to the model.
        seen = weight > 0
        ids, weight = [column.filter(pa.array(seen)) for column in ids], weight[seen]
        classes, label = encode_labels(classes[label[seen]])
    (rows, row_codes), (cols, col_codes) = (
        Vocabulary.of(column, name) for column, name in zip(ids, names, strict=True)
    )
    dyads = Dyads(row_codes, col_codes, label, weight, len(rows), len(cols), len(classes))
    return Observations(dyads, classes, rows, cols)


def read_dyads(X: Any, rows: Vocabulary, cols: Vocabulary) -> tuple[Codes, Codes]:
    """Look up dyads in the vocabularies of a model; unknown ids are negative.

    Columns are found by the names they had when the model was fitted, and by position only where one of the two tables
    has no names.
    """
    values = named_values(X)
    names, known = list(values), (rows.name, cols.name)
    if set(known) <= set(names):
        names = list(_id_columns(names, *known))
    else:
        names = list(_id_columns(names, None, None))
        if not (_unnamed(names) or _unnamed(known)):
            raise InputError(
                f"X has the columns {list(values)}, but the model was fitted on {list(known)}: expected these names. "
                "Rename the columns."
            )
    row, col = (
        vocabulary.encode(_read_ids(values, name)) for vocabulary, name in zip((rows, cols), names, strict=True)
    )
    if len(row) != len(col):
        raise InputError(f"Got {len(row)} row ids but {len(col)} column ids: expected as many.")
    return row, col


def _id_columns(names: list[str], row: Any, col: Any) -> tuple[str, str]:
    """Name the columns that hold the row ids and the column ids."""
    if len(names) < 2:
        raise InputError(f"X has {len(names)} column(s), {names}: expected two, the row id and the column id.")
    chosen = [None if name is None else str(name) for name in (row, col)]
    for name in chosen:
        if name is not None and name not in names:
            raise InputError(f"X has no column {name!r}: expected one of {names}. Set row= and col= to those.")
    rest = [name for name in names if name not in chosen]
    first, second = (name if name is not None else rest.pop(0) for name in chosen)
    if first == second:
        raise InputError(f"row= and col= both name {first!r}: expected two different columns.")
    further = [name for name in names if name not in (first, second)]
    if further:
        raise InputError(
            f"X has the further column(s) {further}: side-information of dyads is not supported yet. "
            f"Pass only the row id and the column id, X[[{first!r}, {second!r}]]."
        )
    return first, second


def _unnamed(names: Any) -> bool:
    return tuple(names) == ("0", "1")


def _read_ids(values: dict[str, Any], name: str) -> pa.Array:
    return read_column(values[name], f"column {name!r}")


def _read_weight(sample_weight: Any) -> npt.NDArray[np.float64] | None:
    if sample_weight is None:
        return None
    column = read_column(sample_weight, "sample_weight", numbers_mix=True)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"sample_weight has type {column.type}: expected numbers.")
    weight = to_numpy(column).astype(np.float64)
    if len(weight) and weight.min() < 0:
        raise InputError(f"sample_weight has the negative value {weight.min()}: expected weights of zero or more.")
    if not weight.any():
        raise InputError("sample_weight is zero for every dyad: expected at least one positive weight.")
    return weight
