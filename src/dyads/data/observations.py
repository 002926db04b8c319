"""From tables to labelled dyads: reads ids, labels, weights and features."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse

from dyads.data.codes import Codes, Vocabulary, codes_of, encode_labels, ordered_classes, text_order, to_numpy
from dyads.data.dyads import MEMORY, Dyads, Side
from dyads.data.features import Encoder, Features, aligned, seen_sets
from dyads.data.store import Pairs
from dyads.data.tables import named_values, read_column, read_feature
from dyads.errors import InputError


class SideTables(NamedTuple):
    """The sources of side-information about entities.

    Attributes
    ----------
    row, col : features of rows (or nodes) and of columns, or None
    implicit : whether the entities that an entity was seen with are features of it (implicit feedback)
    seen : table of further pairs (row id, column id) without labels for the implicit feedback, or None
    """

    row: Features | None = None
    col: Features | None = None
    implicit: bool = False
    seen: Any = None


class Encoders(NamedTuple):
    """The encoders of the features of rows, columns and dyads; each is None if there are no such features."""

    row: Encoder | None = None
    col: Encoder | None = None
    dyad: Encoder | None = None


NO_ENCODERS = Encoders()


@dataclass(frozen=True)
class Observations:
    """Labelled dyads with the vocabularies and encoders of their codes and features.

    Attributes
    ----------
    dyads : the codes and the encoded features
    classes : (n_labels,) labels, sorted; ordered labels that are text come from lowest to highest
    rows, cols : vocabularies of ids: first those with labels, then those that occur only in features or unlabelled
        pairs; with one id set, both hold the same ids
    relations : vocabulary of relations, or None if there is one relation
    columns : names of the columns of the table, in order
    encoders : encoders of the features
    """

    dyads: Dyads
    classes: np.ndarray[Any, Any]
    rows: Vocabulary
    cols: Vocabulary
    relations: Vocabulary | None
    columns: list[str]
    encoders: Encoders = NO_ENCODERS


def read_observations(
    X: Any,
    y: Any,
    sample_weight: Any,
    wanted: Sequence[Any] = (None, None),
    *,
    one_set: bool = False,
    side: SideTables | None = None,
    classes: Any = None,
    ordered: bool = False,
    order: Sequence[str] | None = None,
) -> Observations:
    """Read labelled dyads.

    `wanted` : the names of the columns of row ids, column ids and, if there are several, relations; None means the next
    column in order. Further columns are features of dyads. With `one_set`, rows and columns are one set of nodes.
    `classes` : all possible labels, by default those in y. With `ordered`, labels have an order: see `ordered_classes`.
    """
    side = side or SideTables()
    values = named_values(X)
    names = _id_columns(list(values), wanted, len(next(iter(values.values()), X)))
    ids, further, distinct, label, weight = _read_lines(values, names, y, sample_weight, 2 if classes is None else 1)
    # Either the labels or the list of all classes may be an ordered categorical.
    categorical = y if classes is None or text_order(classes) is None else classes
    classes = distinct if classes is None else encode_labels(classes)[0]
    if ordered:
        classes = ordered_classes(classes, categorical, order)
    if classes is not distinct:
        label = codes_of(distinct, classes)[label]
    if one_set:
        rows, row_codes, cols, col_codes = _one_vocabulary(ids[0], ids[1], names)
    else:
        rows, row_codes = Vocabulary.of(ids[0], names[0])
        cols, col_codes = Vocabulary.of(ids[1], names[1])
    relations, relation_codes = Vocabulary.of(ids[2], names[2]) if len(ids) > 2 else (None, None)
    rows, cols, features, encoders = _read_side(side, rows, cols, row_codes, col_codes, one_set, list(values))
    if further:
        dyad_encoder = Encoder.learn_columns(further, weight)
        encoders = encoders._replace(dyad=dyad_encoder)
        features = features._replace(dyad=dyad_encoder.encode_columns(further))
    dyads = Dyads(
        row_codes, col_codes, label, weight, len(rows), len(cols), len(classes),
        relation_codes, 1 if relations is None else len(relations), features,
    )  # fmt: skip
    return Observations(dyads, classes, rows, cols, relations, list(values), encoders)


def stored_observations(
    store: Pairs,
    *,
    one_set: bool = False,
    side: SideTables | None = None,
    classes: Any = None,
    ordered: bool = False,
    order: Sequence[str] | None = None,
) -> Observations:
    """The labelled dyads of a store; see `read_observations`. Dyads of one id set are read into memory."""
    dyads, rows, cols = store.dyads, store.rows, store.cols
    listed, classes = classes, store.classes if classes is None else encode_labels(classes)[0]
    if ordered:
        classes = ordered_classes(classes, store.classes if listed is None else listed, order)
    if classes is not store.classes and not np.array_equal(classes, store.classes):
        dyads = replace(dyads, label=codes_of(store.classes, classes)[dyads.label], n_labels=len(classes), home=MEMORY)
    if one_set:
        nodes = rows.with_ids(cols.ids, f"column {cols.name!r}")
        cols = Vocabulary(nodes.ids, cols.name)
        col = nodes.encode(store.cols.ids)[dyads.col]
        dyads = replace(dyads, col=col, n_rows=len(nodes), n_cols=len(nodes), home=MEMORY)
        rows = nodes
    columns = [ids.name for ids, _ in store.coded] + list(store.features)
    rows, cols, features, encoders = _read_side(
        side or SideTables(), rows, cols, dyads.row, dyads.col, one_set, columns
    )
    if store.features:
        dyad_encoder = Encoder.learn_columns(store.features, dyads.weight)
        encoders = encoders._replace(dyad=dyad_encoder)
        features = features._replace(dyad=store.encoded(dyad_encoder))
    dyads = replace(dyads, n_rows=len(rows), n_cols=len(cols), side=features)
    return Observations(dyads, classes, rows, cols, store.relations, columns, encoders)


def _read_lines(
    values: dict[str, Any], names: Sequence[str], y: Any, sample_weight: Any, n_classes: int
) -> tuple[list[pa.Array], dict[str, pa.Array], np.ndarray[Any, Any], Codes, npt.NDArray[np.float64] | None]:
    """The ids, features, distinct labels, label codes and weights of the dyads; dyads of weight zero are dropped.

    `names` : the columns of ids; the other columns are features. `n_classes` : the least number of distinct labels.
    """
    ids, further = [_read_ids(values, name) for name in names], _further_columns(values, names)
    distinct, label = encode_labels(y, at_least=n_classes)
    _refuse_labels(further, y)
    weight = read_weight(sample_weight)
    n = len(ids[0])
    lengths = {f"values in column {name!r}": len(column) for name, column in zip(names, ids, strict=True)}
    lengths |= {f"values in column {name!r}": len(column) for name, column in further.items()}
    lengths |= {"labels": len(label), "weights": n if weight is None else len(weight)}
    for what, length in lengths.items():
        if length != n:
            raise InputError(f"Got {n} dyads but {length} {what}: expected one per dyad.")
    if weight is not None and not weight.all():
        # A dyad of weight zero does not count: its ids and its label stay unknown to the model.
        positive = weight > 0
        ids, weight = [column.filter(pa.array(positive)) for column in ids], weight[positive]
        further = {name: column.filter(pa.array(positive)) for name, column in further.items()}
        distinct, label = encode_labels(distinct[label[positive]], at_least=n_classes)
    return ids, further, distinct, label, weight


def read_dyads(
    X: Any, vocabularies: Sequence[Vocabulary], columns: Sequence[str], encoder: Encoder | None = None
) -> tuple[list[Codes], Any]:
    """Encode dyads by the vocabularies of a model (rows, columns and, if any, relations); unknown ids are negative.

    Columns are matched with `columns`, those of the table of the fit: by name if both tables have names, otherwise by
    position. Further columns of a table with names are ignored, so that a table of recommendations can be read as
    dyads. Returns the codes and, if there is an `encoder`, the sparse matrix of features of the dyads, otherwise None.
    """
    if isinstance(X, Pairs):
        stored = _stored_columns(X, [vocabulary.name for vocabulary in vocabularies])
        known = zip(vocabularies, stored, strict=True)
        features = None if encoder is None else _stored_features(X, encoder, columns)
        return [vocabulary.encode(ids.ids)[codes] for vocabulary, (ids, codes) in known], features
    values = _columns_of_fit(X, columns)
    names = [vocabulary.name for vocabulary in vocabularies]
    codes = [vocabulary.encode(_read_ids(values, name)) for vocabulary, name in zip(vocabularies, names, strict=True)]
    further = _further_columns(values, names)
    lengths = [len(column) for column in (*codes, *further.values())]
    if len(set(lengths)) > 1:
        raise InputError(f"The columns have the lengths {lengths}: expected equal lengths.")
    return codes, None if encoder is None else encoder.encode_columns(further)


def _stored_features(store: Pairs, encoder: Encoder, columns: Sequence[str]) -> Any:
    """The features of the pairs of a store (n, n_features), encoded by a model in memory; others are ignored."""
    if not store.features:
        raise InputError(
            "The model has features of pairs, and the store has none: expected the columns of the fit, "
            f"{list(columns)}. Encode the tables again with features=."
        )
    return encoder.encode_columns({name: column for name, column in store.features.items() if name in columns})


def _stored_columns(store: Pairs, names: Sequence[str]) -> list[tuple[Vocabulary, npt.NDArray[np.integer]]]:
    """The columns of ids of a store that a model was fitted on, by their names."""
    there = {ids.name: (ids, codes) for ids, codes in store.coded}
    missing = [name for name in names if name not in there]
    if missing:
        raise InputError(
            f"The store has the columns {list(there)}, but the model was fitted on {list(names)}: expected these "
            "names. Encode the tables again with them."
        )
    return [there[name] for name in names]


def read_ids(X: Any, names: Sequence[str], columns: Sequence[str]) -> list[pa.Array]:
    """The ids of dyads, from columns matched as in `read_dyads`; `names` : their names in the fit."""
    values = _columns_of_fit(X, columns)
    return [_read_ids(values, name) for name in names]


def _columns_of_fit(X: Any, columns: Sequence[str]) -> dict[str, Any]:
    values = named_values(X)
    if isinstance(X, Sequence) and not X:
        return {name: [] for name in columns}
    if set(columns) < set(values) and not _unnamed(list(values)):
        return {name: values[name] for name in columns}
    return _named_as(values, columns)


def _named_as(values: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """The columns under the names `columns` that they had in the fit."""
    if set(columns) == set(values):
        return values
    if len(values) != len(columns):
        raise InputError(
            f"X has {len(values)} features, but dyads is expecting {len(columns)} features as input: the columns "
            f"{list(columns)} of the table of the fit; got {list(values)}."
        )
    if not (_unnamed(list(values)) or _unnamed(columns)):
        raise InputError(
            f"X has the columns {list(values)}, but the model was fitted on {list(columns)}: expected these names. "
            "Rename the columns."
        )
    return dict(zip(columns, values.values(), strict=True))


def _read_side(
    tables: SideTables,
    rows: Vocabulary,
    cols: Vocabulary,
    row: Codes,
    col: Codes,
    one_set: bool,
    columns: Sequence[str],
) -> tuple[Vocabulary, Vocabulary, Side, Encoders]:
    """Add the ids of `tables` to the vocabularies, and encode the features in their order."""
    if one_set and tables.col is not None:
        raise InputError(
            "Got features of columns (SideInformation(col=...)), but rows and columns are one set of nodes: expected "
            "features of nodes as SideInformation(row=...) alone."
        )
    n_rows, n_cols = len(rows), len(cols)
    if tables.row is not None:
        rows = rows.with_ids(tables.row.ids, "the features of rows, SideInformation(row=...),")
    if tables.col is not None:
        cols = cols.with_ids(tables.col.ids, "the features of columns, SideInformation(col=...),")
    if tables.implicit and tables.seen is not None:
        pairs = read_pairs(tables.seen, (rows.name, cols.name), columns)
        rows, cols = rows.with_ids(pairs[0], "seen"), cols.with_ids(pairs[1], "seen")
        if one_set:
            rows = rows.with_ids(pairs[1], "seen")
        row = np.concatenate([row, rows.encode(pairs[0])])
        col = np.concatenate([col, (rows if one_set else cols).encode(pairs[1])])
    elif tables.seen is not None:
        raise InputError(
            "seen= was given without implicit=True: expected both. Set SideInformation(implicit=True), or drop seen=."
        )
    if one_set:
        cols = Vocabulary(rows.ids, cols.name)
    encoders: list[Encoder | None] = []
    matrices: list[list[Any]] = []
    for what, table, vocabulary, n in (("row", tables.row, rows, n_rows), ("col", tables.col, cols, n_cols)):
        encoders.append(None if table is None else Encoder.learn(table, vocabulary.ids[:n]))
        matrices.append([])
        if table is not None and encoders[-1] is not None:
            matrices[-1].append(aligned(encoders[-1], table, vocabulary.ids, n, what))
    if tables.implicit:
        matrices[0].append(seen_sets(row, col, len(rows), len(cols), both_ways=one_set))
        if not one_set:
            matrices[1].append(seen_sets(col, row, len(cols), len(rows)))
    joined = (sparse.hstack(parts, format="csr") if parts else None for parts in matrices)
    return rows, cols, Side(*joined), Encoders(*encoders)


def wanted_columns(id_columns: Any, n: int = 2) -> list[Any]:
    """Check `id_columns` and fill it up to `n` names; None stands for the next column in order."""
    listed = not isinstance(id_columns, str | bytes) and isinstance(id_columns, Iterable)
    names = [] if id_columns is None or not listed else list(id_columns)
    if id_columns is not None and len(names) not in (2, n):
        raise InputError(
            f"Got id_columns={id_columns!r}: expected {n} names of columns, such as ('user', 'item'), or None for the "
            f"first {n} columns of X."
        )
    return [*names, *[None] * (n - len(names))]


def read_id_columns(X: Any, wanted: Sequence[Any]) -> list[tuple[pa.Array, str]]:
    """The columns of ids of a table, and their names; `wanted` as in `read_observations`."""
    values = named_values(X)
    names = _id_columns(list(values), wanted, len(next(iter(values.values()), X)))
    return [(_read_ids(values, name), name) for name in names]


def read_more(
    X: Any,
    y: Any,
    sample_weight: Any,
    vocabularies: Sequence[Vocabulary],
    columns: Sequence[str],
    classes: np.ndarray[Any, Any],
    encoder: Encoder | None,
    *,
    one_set: bool,
) -> Observations:
    """Read labelled dyads for a fitted model: its labels are fixed, and new ids are appended to its vocabularies.

    The dyads of a store are read into memory, unless their codes are those of the model already.
    """
    names = [vocabulary.name for vocabulary in vocabularies]
    # A store has each id once, and the place of a dyad's ids among them.
    places: list[Codes | None] = [None] * len(names)
    home, features = MEMORY, None
    if isinstance(X, Pairs):
        refuse_labels_beside(y, sample_weight)
        stored = _stored_columns(X, names)
        ids, places, home = [column.ids for column, _ in stored], [codes for _, codes in stored], X.dyads.home
        if encoder is None and X.features:
            raise InputError(
                f"The store has the features {list(X.features)} of pairs, but the model was fitted without: expected a "
                "store without them. Encode the tables again without features=."
            )
        if encoder is not None:
            # The store keeps its pairs with its own encoding of their features, not with the model's.
            features, home = _stored_features(X, encoder, columns), MEMORY
        distinct, label, weight = X.classes, X.dyads.label, X.dyads.weight
    else:
        values = _named_as(named_values(X), columns)
        ids, further, distinct, label, weight = _read_lines(values, names, y, sample_weight, 1)
        features = None if encoder is None else encoder.encode_columns(further)
    rows, cols = vocabularies[0].with_ids(ids[0], "X"), vocabularies[1].with_ids(ids[1], "X")
    if one_set:
        rows = rows.with_ids(ids[1], "X")
        cols = Vocabulary(rows.ids, cols.name)
    coded = [rows.encode(ids[0]), cols.encode(ids[1])]
    if len(vocabularies) > 2:
        coded.append(vocabularies[2].encode(ids[2]))
        if (coded[2] < 0).any():
            unknown_relation = ids[2][int(np.argmin(coded[2]))].as_py()
            raise InputError(
                f"The relation {unknown_relation!r} was not seen in training: expected one of "
                f"{vocabularies[2].ids[:10].to_pylist()}. Drop its dyads, or fit the model again."
            )
    codes = [own if place is None else _recoded(own, place) for own, place in zip(coded, places, strict=True)]
    label_code = _recoded(codes_of(distinct, classes), label)
    if any(new is not old for new, old in zip((*codes, label_code), (*places, label), strict=True)):
        home = MEMORY
    dyads = Dyads(
        codes[0], codes[1], label_code, weight, len(rows), len(cols), len(classes),
        codes[2] if len(codes) > 2 else None, len(vocabularies[2]) if len(vocabularies) > 2 else 1,
        Side(dyad=features), home,
    )  # fmt: skip
    relations = vocabularies[2] if len(vocabularies) > 2 else None
    return Observations(dyads, classes, rows, cols, relations, list(columns))


def _recoded(new: Codes, codes: Codes) -> Codes:
    """The new code of each code; the codes themselves if they stay as they are."""
    return codes if np.array_equal(new, np.arange(len(new))) else new[codes]


def refuse_labels_beside(y: Any, sample_weight: Any) -> None:
    """Raise if labels or weights are given beside a store."""
    if y is not None or sample_weight is not None:
        raise InputError("Got labels or weights beside a store: expected none, since the store holds them.")


def read_pairs(table: Any, names: Sequence[str], columns: Sequence[str]) -> list[pa.Array]:
    """The ids of a table of pairs. Columns are matched by name or, in a table without names, by position.

    `names` : the columns of row ids, column ids and, optionally, relations; `columns` : those of the table of the fit.
    A table without names has either as many columns as that of the fit, or two: row ids and column ids.
    """
    values = named_values(table)
    if _unnamed(list(values)) and len(values) == len(columns):
        values = dict(zip(columns, values.values(), strict=True))
    elif _unnamed(list(values)) and len(values) == 2:
        values = dict(zip(names, values.values(), strict=False))
    if not set(names[:2]) <= set(values):
        raise InputError(f"The table of pairs has the columns {list(values)}: expected {list(names[:2])}. Rename them.")
    ids = [_read_ids(values, name) for name in names if name in values]
    lengths = [len(column) for column in ids]
    if len(set(lengths)) > 1:
        raise InputError(f"The columns of pairs have the lengths {lengths}: expected equal lengths.")
    return ids


def check_undirected(seen: Observations) -> None:
    """Raise if a pair is given in both orders with different labels."""
    row, col = seen.dyads.row.astype(np.int64), seen.dyads.col.astype(np.int64)
    low, high = np.minimum(row, col), np.maximum(row, col)
    pair, label = low * len(seen.rows) + high, seen.dyads.label
    if seen.dyads.relation is not None:
        pair = pair + seen.dyads.relation * np.int64(len(seen.rows)) ** 2
    forward = row <= col
    for code in range(seen.dyads.n_labels):
        clash = np.intersect1d(pair[forward & (label == code)], pair[~forward & (label != code)])
        if len(clash):
            low_code, high_code = divmod(int(clash[0]) % len(seen.rows) ** 2, len(seen.rows))
            first, second = seen.rows.ids[low_code].as_py(), seen.rows.ids[high_code].as_py()
            raise InputError(
                f"The pair ({first!r}, {second!r}) is given in both orders with different labels: expected one label "
                "per undirected pair. Give each pair once, or use a structure for directed pairs."
            )


def _one_vocabulary(row: pa.Array, col: pa.Array, names: Sequence[str]) -> tuple[Vocabulary, Codes, Vocabulary, Codes]:
    if row.type != col.type:
        raise InputError(
            f"Column {names[0]!r} holds {row.type} and column {names[1]!r} {col.type}: expected ids of one type, since "
            "rows and columns are one set of nodes. Convert one of them."
        )
    nodes, codes = Vocabulary.of(pa.concat_arrays([row, col]), names[0])
    return nodes, codes[: len(row)], Vocabulary(nodes.ids, names[1]), codes[len(row) :]


def _id_columns(names: list[str], wanted: Sequence[Any], n: int) -> list[str]:
    """The names of the columns of row ids, column ids and, for three `wanted`, relations; `n` : number of lines."""
    roles = ["the row id", "the column id", "the relation"][: len(wanted)]
    if len(names) < len(wanted):
        raise InputError(
            f"X has {len(names)} feature(s) (shape=({n}, {len(names)})) while a minimum of {len(wanted)} is required: "
            f"expected the columns {', '.join(roles)}."
        )
    chosen = [None if name is None else str(name) for name in wanted]
    for name in chosen:
        if name is not None and name not in names:
            raise InputError(
                f"X has no column {name!r}: expected one of {names}. Set id_columns to the columns that hold ids."
            )
    rest = [name for name in names if name not in chosen]
    id_names = [name if name is not None else rest.pop(0) for name in chosen]
    if len(set(id_names)) < len(id_names):
        raise InputError(f"id_columns names {id_names[0]!r} twice: expected different columns.")
    return id_names


def _further_columns(values: dict[str, Any], ids: Sequence[str]) -> dict[str, pa.Array]:
    """The columns that do not hold ids: features of dyads."""
    return {name: read_feature(column, f"column {name!r}") for name, column in values.items() if name not in ids}


def _refuse_labels(further: dict[str, pa.Array], y: Any) -> None:
    """Raise if a feature of dyads equals the labels (target leakage), as when a whole table is passed as X."""
    labels = read_feature(y, "the column of labels") if further else None
    for name, column in further.items():
        if column.equals(labels):
            raise InputError(
                f"Column {name!r} of X holds the labels themselves: expected ids, and features known before the label. "
                f"Drop {name!r} from X."
            )


def _unnamed(names: Sequence[str]) -> bool:
    return list(names) == [str(i) for i in range(len(names))]


def _read_ids(values: dict[str, Any], name: str) -> pa.Array:
    return read_column(values[name], f"column {name!r}")


def read_weight(weight: Any, name: str = "sample_weight") -> npt.NDArray[np.float64] | None:
    """Read and check weights (n,); None stays None."""
    if weight is None:
        return None
    column = read_column(weight, name, numbers_mix=True)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"{name} has type {column.type}: expected numbers. Convert it.")
    values = to_numpy(column).astype(np.float64)
    if len(values) and values.min() < 0:
        raise InputError(f"{name} has the negative value {values.min()}: expected weights of zero or more.")
    if not values.any():
        raise InputError(f"{name} is zero for every dyad: expected at least one positive weight.")
    return values
