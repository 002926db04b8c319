"""From tables to labelled dyads: which columns are the ids, what the labels are, how much each dyad weighs."""

from collections.abc import Sequence
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
    rows, cols : ids; the same ones with one id set
    relations : the relations, or None when there is one
    columns : the names of the table's columns, in its order
    """

    dyads: Dyads
    classes: np.ndarray[Any, Any]
    rows: Vocabulary
    cols: Vocabulary
    relations: Vocabulary | None
    columns: list[str]


def read_observations(
    X: Any, y: Any, sample_weight: Any, wanted: Sequence[Any] = (None, None), *, one_set: bool = False
) -> Observations:
    """Read labelled dyads.

    `wanted` names the columns of the row ids, the column ids and, where there are several, the relations; None takes
    the next column in order. With `one_set` rows and columns are nodes of one kind.
    """
    values = named_values(X)
    names = _id_columns(list(values), wanted)
    ids = [_read_ids(values, name) for name in names]
    classes, label = encode_labels(y)
    weight = _read_weight(sample_weight)
    n = len(ids[0])
    lengths = {f"values in column {name!r}": len(column) for name, column in zip(names, ids, strict=True)}
    lengths |= {"labels": len(label), "weights": n if weight is None else len(weight)}
    for what, length in lengths.items():
        if length != n:
            raise InputError(f"Got {n} dyads but {length} {what}: expected one for each dyad.")
    if weight is not None and not weight.all():
        # A dyad of weight zero is no dyad: its ids and its label may be unknown to the model.
        seen = weight > 0
        ids, weight = [column.filter(pa.array(seen)) for column in ids], weight[seen]
        classes, label = encode_labels(classes[label[seen]])
    if one_set:
        rows, row_codes, cols, col_codes = _one_vocabulary(ids[0], ids[1], names)
    else:
        rows, row_codes = Vocabulary.of(ids[0], names[0])
        cols, col_codes = Vocabulary.of(ids[1], names[1])
    relations, relation_codes = Vocabulary.of(ids[2], names[2]) if len(ids) > 2 else (None, None)
    dyads = Dyads(
        row_codes, col_codes, label, weight, len(rows), len(cols), len(classes),
        relation_codes, 1 if relations is None else len(relations),
    )  # fmt: skip
    return Observations(dyads, classes, rows, cols, relations, list(values))


def read_dyads(X: Any, vocabularies: Sequence[Vocabulary], columns: Sequence[str]) -> list[Codes]:
    """Look up dyads in the vocabularies of a model (rows, columns and, if any, relations); unknown ids are negative.

    Columns are found by the names they had when the model was fitted, and by their place among `columns`, the names of
    the table then, only where one of the two tables has no names.
    """
    values = named_values(X)
    names, known = list(values), [vocabulary.name for vocabulary in vocabularies]
    if set(known) <= set(names):
        names = _id_columns(names, known)
    else:
        names = _id_columns(names, [None] * len(known))
        if not (_unnamed(names) or _unnamed(columns)):
            raise InputError(
                f"X has the columns {list(values)}, but the model was fitted on {list(columns)}: expected these names. "
                "Rename the columns."
            )
        names = [names[list(columns).index(name)] for name in known]
    codes = [vocabulary.encode(_read_ids(values, name)) for vocabulary, name in zip(vocabularies, names, strict=True)]
    if len({len(column) for column in codes}) > 1:
        raise InputError(f"The columns have the lengths {[len(column) for column in codes]}: expected the same.")
    return codes


def check_undirected(seen: Observations) -> None:
    """Refuse pairs given in both orders with different labels, naming one."""
    row, col = seen.dyads.row.astype(np.int64), seen.dyads.col.astype(np.int64)
    low, high = np.minimum(row, col), np.maximum(row, col)
    pair, label = low * len(seen.rows) + high, seen.dyads.label
    if seen.dyads.relation is not None:
        pair = pair + seen.dyads.relation * np.int64(len(seen.rows)) ** 2
    forward = row <= col
    for code in range(seen.dyads.n_labels):
        clash = np.intersect1d(pair[forward & (label == code)], pair[~forward & (label != code)])
        if len(clash):
            one, other = divmod(int(clash[0]) % len(seen.rows) ** 2, len(seen.rows))
            first, second = seen.rows.ids[one].as_py(), seen.rows.ids[other].as_py()
            raise InputError(
                f"The pair ({first!r}, {second!r}) is given in both orders with different labels: expected undirected "
                "pairs to have one label. Give each pair once, or use a structure for directed pairs."
            )


def _one_vocabulary(row: pa.Array, col: pa.Array, names: Sequence[str]) -> tuple[Vocabulary, Codes, Vocabulary, Codes]:
    if row.type != col.type:
        raise InputError(
            f"Column {names[0]!r} holds {row.type} and column {names[1]!r} {col.type}: expected ids of one type, since "
            "rows and columns are nodes of one kind. Convert one of them."
        )
    nodes, codes = Vocabulary.of(pa.concat_arrays([row, col]), names[0])
    return nodes, codes[: len(row)], Vocabulary(nodes.ids, names[1]), codes[len(row) :]


COUNTED = {2: "two", 3: "three"}


def _id_columns(names: list[str], wanted: Sequence[Any]) -> list[str]:
    """Name the columns that hold the row ids, the column ids and, if wanted, the relations."""
    roles = ["the row id", "the column id", "the relation"][: len(wanted)]
    if len(names) < len(wanted):
        raise InputError(f"X has {len(names)} column(s), {names}: expected {COUNTED[len(wanted)]}, {', '.join(roles)}.")
    chosen = [None if name is None else str(name) for name in wanted]
    for name in chosen:
        if name is not None and name not in names:
            raise InputError(f"X has no column {name!r}: expected one of {names}. Set row= and col= to those.")
    rest = [name for name in names if name not in chosen]
    found = [name if name is not None else rest.pop(0) for name in chosen]
    if len(set(found)) < len(found):
        raise InputError(f"row= and col= both name {found[0]!r}: expected two different columns.")
    further = [name for name in names if name not in found]
    if further:
        raise InputError(
            f"X has the columns {names}, and {found} would be {' and '.join(roles)}: further columns, as "
            f"side-information, are not supported yet. Pass the {COUNTED[len(wanted)]} id columns, without the label."
        )
    return found


def _unnamed(names: Sequence[str]) -> bool:
    return list(names) == [str(i) for i in range(len(names))]


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
