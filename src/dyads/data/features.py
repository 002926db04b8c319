"""Side-information: encodes tables of features of rows, columns or dyads as sparse matrices."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from dyads.data.codes import Codes, Vocabulary
from dyads.data.dyads import chunks, narrow
from dyads.data.tables import named_values, read_column, read_feature, take_lines, without_column
from dyads.errors import DtypeError, InputError, unknown_name
from dyads.settings import Setting

Floats = npt.NDArray[np.float64]
Entries = tuple[Codes, Codes, Floats]
"""The line, the feature and the value of each entry of a sparse matrix (coordinate format)."""

ABSENT = ("raise", "missing")
LARGEST = 1e150
"""Numbers of this magnitude or more are refused: their squares, and so their variance, could overflow."""
MOST_FEATURES = 2**20
"""Most features of an encoder that is read from a file, unless the file tells their number elsewhere."""
MISSING = int(np.iinfo(np.int64).min)
"""Stands for a missing date."""
PER_DAY = {"us": 86_400e6, "ns": 86_400e9}


class Features:
    """Features keyed by id, for ``SideInformation(row=..., col=...)``.

    A column of numbers, dates or durations becomes one standardised feature. A column of text, booleans or categories
    becomes one one-hot feature per category, a column of lists one per item. Immutable, so estimators can share it.

    Parameters
    ----------
    table : a table with one line per id, or a pair (ids, matrix)
        A matrix (n_ids, n_features), SciPy sparse or NumPy, is used without encoding.
    id : name of the column of ids, by default the first column
    absent : "raise" or "missing"
        How to treat an id with labels that is not in the table: raise an error, or treat all its features as missing.
    transformer : an unfitted scikit-learn transformer that replaces this encoding
        A copy of it is fitted on the features of the ids seen in training, without the column of ids. The table must be
        a pandas or polars table, or a pair (ids, matrix).

    Attributes
    ----------
    ids : pyarrow.Array of shape (n_ids,)
    columns : the other columns by name, with null for missing values; empty for a matrix or with a transformer
    matrix : csr_array of shape (n_ids, n_features), or None for a table
    """

    ids: pa.Array
    columns: dict[str, pa.Array]
    matrix: sparse.csr_array | None
    id: str | None
    absent: str
    transformer: Any
    _native: Any
    _width: int

    def __init__(self, table: Any, id: Any = None, *, absent: str = "raise", transformer: Any = None) -> None:
        if absent not in ABSENT:
            raise unknown_name("absent", absent, ABSENT)
        if transformer is not None and (isinstance(transformer, type) or not _transforms(transformer)):
            raise InputError(
                f"transformer={transformer!r} is not an object with fit and transform: expected an unfitted "
                "transformer, such as StandardScaler()."
            )
        if sparse.issparse(table):
            raise InputError("Got a sparse matrix without ids: expected a pair (ids, matrix). Add the id of each line.")
        columns: dict[str, pa.Array] = {}
        matrix = native = None
        if _is_pair(table):
            if id is not None:
                raise InputError(f"id={id!r} names a column, but got a pair (ids, matrix): expected id=None. Drop id=.")
            ids, matrix = _copied(read_column(table[0], "the ids")), table[1]
            if len(ids) != matrix.shape[0]:
                raise InputError(
                    f"Got {len(ids)} ids but a matrix of {matrix.shape[0]} lines: expected one line per id."
                )
            native, matrix = matrix, _finite_matrix(matrix, ids)
            # A transformer may need a dense matrix. A sparse one is kept as CSR: some formats cannot select lines.
            native = matrix if sparse.issparse(native) else native.copy()
            width = matrix.shape[1]
        else:
            values = named_values(table)
            id = str(id) if id is not None else next(iter(values), None)
            if id not in values:
                raise InputError(f"The features have no column {id!r}: expected one of {list(values)}. Set id= to it.")
            described = (
                f"column {id!r}, used as the ids (set id= to another, or reset_index() if the index holds them),"
            )
            ids, width = _copied(read_column(values.pop(id), described)), len(values)
            if transformer is not None:
                native = without_column(table, id)
            else:
                columns = {name: _copied(column) for name, column in _read(values, ids).items()}
        if not len(ids):
            raise InputError("The features have no lines: expected one line per id.")
        if not width:
            raise InputError("The features have ids but no feature: expected at least one column besides the ids.")
        distinct, codes = Vocabulary.of(ids, "id")
        if len(distinct) < len(ids):
            repeated = np.setdiff1d(np.arange(len(ids)), np.unique(codes, return_index=True)[1])
            raise InputError(
                f"The id {ids[int(repeated[0])].as_py()!r} occurs more than once in the features"
                f"{'' if id is None else f' (column {id!r}, used as the ids; set id= to another)'}: expected one "
                "line per id."
            )
        self.__dict__.update(
            ids=ids, columns=columns, matrix=matrix, id=id, absent=absent, transformer=transformer,
            _native=native if transformer is not None else None, _width=width,
        )  # fmt: skip

    @classmethod
    def of(cls, value: Any, like: "Encoder | None" = None) -> "Features":
        """Return Features unchanged; wrap any other table, with the id column and transformer of the encoder `like`."""
        if isinstance(value, cls):
            return value
        if like is None:
            return cls(value)
        lost = isinstance(like.transformer, str)  # see `Encoder.from_json`
        return cls(value, None if _is_pair(value) else like.id, transformer=None if lost else like.transformer)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Features({len(self)} ids, {self._width} columns)"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Features are immutable: cannot set {name!r}. Create new Features.")

    def __copy__(self) -> "Features":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Features":
        return self

    def __sklearn_clone__(self) -> "Features":
        return self


@dataclass(frozen=True)
class FixedColumn:
    """A column of features of pairs with one number per line, in memory or mapped from disk.

    Attributes
    ----------
    values : (n,) float64 numbers, NaN if missing; int64 dates, `MISSING` if missing; or int32 codes of categories,
        negative if missing
    type : type of the values, as `read_feature` gives it
    categories : the values that the codes stand for; None for numbers and dates
    """

    values: npt.NDArray[Any]
    type: pa.DataType
    categories: pa.Array | None = None

    @classmethod
    def plain_type(cls, kind: pa.DataType, name: str) -> pa.DataType:
        """The type in which a column is kept: that of `read_feature`, with all numbers as floats."""
        plain = read_feature(pa.array([], kind), f"column {name!r}").type
        described = _kind(plain, name)
        if described.startswith("lists"):
            raise InputError(
                f"Column {name!r} holds lists: expected numbers, dates, text or booleans as features of pairs in a "
                "store. Drop it, or fit to a table in memory."
            )
        if pa.types.is_timestamp(plain):
            return pa.timestamp(plain.unit)
        return pa.float64() if described == "numbers" else plain

    @classmethod
    def dtype_of(cls, kind: pa.DataType) -> Any:
        """The type of the numbers of a column of a plain type."""
        return np.float64 if pa.types.is_floating(kind) else np.int64 if _kind(kind, "") in NUMERIC else np.int32

    @classmethod
    def numbers_of(cls, column: pa.Array, kind: pa.DataType, name: str) -> npt.NDArray[Any]:
        """The numbers (n,) by which a column of numbers or dates is kept."""
        read = read_feature(column, f"column {name!r}")
        if pa.types.is_floating(kind):
            return np.asarray(read.cast(kind, safe=False).to_numpy(zero_copy_only=False))
        whole = read.cast(pa.int32()) if pa.types.is_date(kind) else read.cast(kind).cast(pa.int64())
        return whole.cast(pa.int64()).fill_null(MISSING).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def null_count(self) -> int:
        """The number of missing values."""
        return sum(part.null_count for _, part in _parts(self))

    def slice(self, first: int, n: int) -> pa.Array:
        """Return some lines as Arrow."""
        values = np.ascontiguousarray(self.values[first : first + n])
        if self.categories is not None:
            return pa.DictionaryArray.from_arrays(pa.array(values, mask=values < 0), self.categories)
        if pa.types.is_floating(self.type):
            return pa.array(values, mask=np.isnan(values))
        missing = values == MISSING
        if pa.types.is_date(self.type):
            values = np.where(missing, 0, values).astype(np.int32)
        return pa.array(values, mask=missing).cast(self.type)

    def take(self, which: Any) -> "FixedColumn":
        """Keep some lines."""
        return FixedColumn(self.values[which], self.type, self.categories)


TRAINING = ("joint", "after", "frozen")
"""When feature weights are learnt: jointly with all others; after them, then jointly; or after, all others frozen."""


@dataclass(frozen=True, repr=False, eq=False)
class SideInformation(Setting):
    """Side-information about rows and columns. (Columns of X other than ids are features of dyads.)

    Parameters
    ----------
    row : `dyads.Features`, or a table or pair (ids, matrix) from which to make one, default None
        Features of row ids. They are used to predict for ids without labels (cold start).
    col : as `row`, default None
        Features of column ids. With one set of nodes, give `row` alone.
    interactions : int, default 0
        Number of latent dimensions in which features have weights too, so that row features interact with column
        features and with the latent weights of columns, and vice versa. 0 gives the linear term alone; `rank` gives
        features as many dimensions as ids; dimensions beyond `rank` are for features alone.
    implicit : bool, default False
        Add implicit feedback: the columns a row was seen with are features of the row, each of value 1 / sqrt(n) for n
        columns, and likewise for columns. `fit` takes further pairs without labels as ``seen``. Best with
        `interactions`.
    training : "joint", "after" or "frozen", default "joint"
        When feature weights are learnt: jointly with all other parameters; after them, followed by joint training; or
        after them, with all others frozen, which the paper found best.
    """

    row: Any = None
    col: Any = None
    interactions: int = 0
    implicit: bool = False
    training: str = "joint"

    def __post_init__(self) -> None:
        self.check_count("interactions", 0)
        self.check_switch("implicit")
        self.check_name("training", TRAINING)

    @property
    def of_ids(self) -> bool:
        """Whether rows or columns have features."""
        return self.row is not None or self.col is not None or self.implicit


@dataclass(frozen=True)
class _Column:
    """The learnt encoding of one column.

    A number x becomes (x - mean) / scale. A category, and each item of a list, becomes a one-hot feature. A missing
    value is zero in all of these; if any value was missing in training, the last feature is its indicator.

    Attributes
    ----------
    name, kind : name of the column, and a description of its values
    missing : whether there is an indicator of missing values
    standard : (mean, scale) of numbers; None for categories, and if every number was missing
    categories : sorted, without nulls; None for numbers
    """

    name: str
    kind: str
    missing: bool
    standard: tuple[float, float] | None = None
    categories: pa.Array | None = None

    @classmethod
    def learn(cls, name: str, column: pa.Array, absent: bool = False, weight: Floats | None = None) -> "_Column":
        """Learn the encoding of a column; `absent` : whether some ids have no line, so that values are missing."""
        kind, missing = _kind(column.type, name), absent or bool(column.null_count)
        if kind not in NUMERIC:
            distinct = pa.concat_arrays([_distinct(part) for _, part in _parts(column)]).unique()
            return cls(name, kind, missing, categories=distinct.take(pc.sort_indices(distinct)))
        extremes = [(x.min(), x.max()) for x in (_numbers(_entries(part)[1]) for _, part in _parts(column)) if len(x)]
        if not extremes:
            return cls(name, kind, missing)
        mean = _average(column, weight, lambda x: x)
        # By rounding, the mean of equal numbers may differ from them, and their standard deviation from zero.
        equal = min(least for least, _ in extremes) == max(most for _, most in extremes)
        scale = 1.0 if equal else float(np.sqrt(_average(column, weight, lambda x: (x - mean) ** 2)))
        return cls(name, kind, missing, (mean, scale or 1.0))

    @property
    def names(self) -> list[str]:
        if self.categories is not None:
            names = [f"{self.name}={value}" for value in self.categories.to_pylist()]
        else:
            names = [] if self.standard is None else [self.name]
        return [*names, f"{self.name} (missing)"] if self.missing else names

    @property
    def width(self) -> int:
        values = len(self.categories) if self.categories is not None else int(self.standard is not None)
        return values + self.missing

    def encode(self, column: pa.Array) -> Entries:
        kind = _kind(column.type, self.name)
        # A column without values, and lists without items, match any kind.
        listed = kind.startswith("lists") and self.kind.startswith("lists") and "lists" in (kind, self.kind)
        if kind != self.kind and column.null_count < len(column) and not listed:
            raise InputError(
                f"Column {self.name!r} holds {kind} but held {self.kind} when the model was fitted: expected the same. "
                "Convert it."
            )
        line: Codes
        feature: Codes
        if self.standard is not None:
            line, values = _entries(column)
            mean, scale = self.standard
            x = (_numbers(values) - mean) / scale
            feature = np.zeros(len(x), np.int64)
        elif self.categories is not None and len(self.categories):
            line, feature = _category_codes(column, Vocabulary(self.categories, self.name))
            known, n = feature >= 0, len(self.categories)
            # A list may contain an item more than once.
            line, feature = np.divmod(np.unique(line[known] * n + feature[known]), n)
            x = np.ones(len(line))
        else:
            line, feature, x = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        if self.missing:
            without = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            line = np.concatenate([line, without])
            feature = np.concatenate([feature, np.full(len(without), self.width - 1)])
            x = np.concatenate([x, np.ones(len(without))])
        return line, feature, x

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"name": self.name, "kind": self.kind, "missing": self.missing}
        if self.categories is None:
            return plain | {"standard": self.standard and list(self.standard)}
        return plain | {"type": str(self.categories.type), "categories": self.categories.to_pylist()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "_Column":
        name, kind, missing = value["name"], value["kind"], value["missing"]
        if not (isinstance(name, str) and isinstance(missing, bool) and isinstance(kind, str)):
            raise InputError(f"Got {value!r:.80}: expected the name, the kind and the missing values of a column.")
        if "categories" not in value:
            standard = value["standard"]
            if kind not in NUMERIC or not (standard is None or _is_standard(standard)):
                raise InputError(f"Got {kind!r:.40} with {standard!r:.80}: expected the mean and the scale of numbers.")
            return cls(name, kind, missing, None if standard is None else tuple(standard))
        category = value["type"]
        if kind not in CATEGORICAL or category not in CATEGORICAL[kind] or not isinstance(value["categories"], list):
            raise InputError(f"Got {kind!r:.40} of type {category!r:.40}: expected categories.")
        categories = pa.array(value["categories"], type=pa.type_for_alias(category))
        if categories.null_count or len(categories.unique()) < len(categories):
            raise InputError(f"Got missing or repeated categories of {name!r:.40}: expected distinct ones.")
        return cls(name, kind, missing, categories=categories)


@dataclass(frozen=True)
class Encoder:
    """Encodes features as a sparse matrix (n, n_features); learnt from the ids seen in training.

    The formula is that of `_Column`, applied to each column of a table.

    Attributes
    ----------
    names : (n_features,) names of features, such as "age", "gender=F", "genres=Action" and "age (missing)"
    columns : the encoding of each column of a table; empty for a matrix, which is not encoded
    transformer : the fitted transformer, or None; only the name of its class if the encoder was read from JSON
    id, absent : as in the `Features` it was learnt from
    """

    names: list[str]
    columns: tuple[_Column, ...] = ()
    transformer: Any = None
    id: str | None = None
    absent: str = "raise"

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of columns of numbers and of text. (A batch of a file may not be enough to infer them.)"""
        kinds = {"numbers": pa.float64(), "text": pa.string()}
        return {column.name: kinds[column.kind] for column in self.columns if column.kind in kinds}

    @classmethod
    def learn(cls, features: Features, known: pa.Array) -> "Encoder":
        """Learn from the lines whose id is in `known`, the ids seen in training."""
        position = _positions(features, known)
        lines = np.unique(position[position >= 0])
        if not len(lines):
            raise InputError(
                f"None of the {len(known)} ids of the data is in the features ({len(features)} ids): expected features "
                "of these ids. Check which column holds the ids."
            )
        if features.transformer is not None:
            native = features._native
            native = take_lines(native, lines) if features.matrix is None else native[lines]
            transformer = copy.deepcopy(features.transformer)
            try:
                transformer.fit(native)
            except Exception as error:
                # A transformer can raise any exception.
                raise _failed(transformer, error) from error
            names = _transformed_names(transformer, _transform(transformer, native).shape[1])
            return cls(names, (), transformer, features.id, features.absent)
        if features.matrix is not None:
            return cls([str(i) for i in range(features.matrix.shape[1])], absent=features.absent)
        _refuse_missing(features.columns)
        absent = bool((position < 0).any())
        learnt = (_Column.learn(n, column.take(pa.array(lines)), absent) for n, column in features.columns.items())
        return cls._of(tuple(learnt), features.id, features.absent)

    @classmethod
    def learn_columns(cls, columns: Mapping[str, Any], weight: Floats | None = None) -> "Encoder":
        """Learn from columns, such as those of X other than ids; `weight` : (n,) weights of the lines, or None."""
        arrays = _read(columns, None)
        _refuse_missing(arrays)
        return cls._of(tuple(_Column.learn(name, column, weight=weight) for name, column in arrays.items()))

    @classmethod
    def _of(cls, columns: tuple[_Column, ...], id: str | None = None, absent: str = "raise") -> "Encoder":
        return cls([name for column in columns for name in column.names], columns, None, id, absent)

    def encode(self, features: Features) -> sparse.csr_array:
        """Encode all ids of `features` as a matrix (len(features), n_features)."""
        if self.transformer is not None:
            if isinstance(self.transformer, str):
                raise InputError(
                    f"The features were encoded by a {self.transformer}, which a model file does not hold: expected a "
                    "model that was not loaded from a file. Pickle it, or fit it on encoded features (ids, matrix)."
                )
            if features.transformer is None:
                raise InputError(
                    "The model was fitted on features with a transformer, but these have none: expected the same. Pass "
                    "Features(table, transformer=...)."
                )
            matrix = _transform(self.transformer, features._native)
        elif features.transformer is not None or (features.matrix is None) != bool(self.columns):
            now, then = _origin(features.transformer, features.matrix is None), _origin(None, bool(self.columns))
            raise InputError(
                f"The features are {now}, but were {then} when the model was fitted: expected the same. Convert them."
            )
        elif features.matrix is None:
            return self._assemble(features.columns, len(features))
        else:
            matrix = features.matrix
        if matrix.shape[1] != len(self.names):
            raise InputError(
                f"The features have {matrix.shape[1]} columns, but the model was fitted on {len(self.names)}: expected "
                "the same number."
            )
        return matrix

    def encode_columns(self, columns: Mapping[str, Any]) -> sparse.csr_array:
        """Encode columns of n values as a matrix (n, n_features)."""
        parts = list(self.encoded_parts(columns))
        return parts[0] if len(parts) == 1 else sparse.vstack(parts, format="csr")

    def encoded_parts(self, columns: Mapping[str, Any]) -> Iterator[sparse.csr_array]:
        """Yield the lines of `encode_columns` part by part, so that memory does not grow with a column on disk."""
        arrays = _read(columns, None)
        for some in chunks(len(next(iter(arrays.values()), ()))):
            n = some.stop - some.start
            yield self._assemble({name: column.slice(some.start, n) for name, column in arrays.items()}, n)

    def absent_line(self) -> sparse.csr_array:
        """The line (1, n_features) of an id whose features are all missing; zero for a matrix or a transformer."""
        return self._assemble({column.name: pa.nulls(1) for column in self.columns}, 1)

    def _assemble(self, columns: Mapping[str, pa.Array], n: int) -> sparse.csr_array:
        known = {column.name for column in self.columns}
        for problem, names, remedy in (
            ("do not have", known - columns.keys(), "Add"),
            ("also have", columns.keys() - known, "Drop"),
        ):
            if names:
                raise InputError(
                    f"The features {problem} the column {min(names)!r}: expected the columns "
                    f"{[column.name for column in self.columns]}, on which the model was fitted. {remedy} it."
                )
        start = np.cumsum([0] + [column.width for column in self.columns])
        entries = [column.encode(columns[column.name]) for column in self.columns]
        if not entries:
            return sparse.csr_array((n, len(self.names)))
        line = np.concatenate([lines for lines, _, _ in entries])
        feature = np.concatenate([own + first for (_, own, _), first in zip(entries, start[:-1], strict=True)])
        value = np.concatenate([values for _, _, values in entries])
        shape = n, len(self.names)
        matrix = sparse.csr_array((value, (narrow(line, shape[0]), narrow(feature, shape[1]))), shape=shape)
        matrix.eliminate_zeros()
        return matrix

    def to_json(self) -> Any:
        """Plain JSON values. A transformer is reduced to the names of its class and its features."""
        if self.transformer is not None:
            lost = isinstance(self.transformer, str)
            name = self.transformer if lost else type(self.transformer).__name__
            return {"transformer": name, "names": list(self.names), "id": self.id, "absent": self.absent}
        if self.columns:
            return {"columns": [column.to_json() for column in self.columns], "id": self.id, "absent": self.absent}
        return {"matrix": len(self.names), "absent": self.absent}

    @classmethod
    def from_json(cls, value: Any, most: int = MOST_FEATURES) -> "Encoder":
        """The encoder that `to_json` wrote, checked, with at most `most` features.

        A transformer is not restored, so an encoder with one cannot encode.
        """
        absent, id = value["absent"], value.get("id")
        if absent not in ABSENT or not isinstance(id, str | None):
            raise InputError(f"Got absent={absent!r:.40} and id={id!r:.40}: expected a name each.")
        if "transformer" in value:
            names, transformer = value["names"], value["transformer"]
            if not isinstance(transformer, str) or not all(isinstance(name, str) for name in names):
                raise InputError("Got a transformer without a name, or features without names: expected texts.")
            encoder = cls(list(names), (), transformer, id, absent)
        elif "matrix" in value:
            width = value["matrix"]
            if type(width) is not int or not 0 < width <= most:
                raise InputError(f"Got a matrix of {width!r:.40} columns: expected 1 to {most}.")
            encoder = cls([str(i) for i in range(width)], absent=absent)
        else:
            columns = tuple(map(_Column.from_json, value["columns"]))
            if len({column.name for column in columns}) < len(columns) or not columns:
                raise InputError("Got no columns, or two of the same name: expected distinct names.")
            # Each category has a name that begins with the column's.
            if sum(len(column.name) * column.width for column in columns) > LONGEST_NAMES:
                raise InputError(f"Got names of features beyond {LONGEST_NAMES} characters: expected shorter ones.")
            encoder = cls._of(columns, id, absent)
        if len(encoder.names) > most:
            raise InputError(f"Got {len(encoder.names)} features: expected at most {most}.")
        return encoder


def aligned(encoder: Encoder, features: Features, ids: pa.Array, trained: int, what: str) -> sparse.csr_array:
    """The feature matrix (len(ids), n_features) of `ids`; ids that are not in `features` get the absent line.

    The first `trained` ids have labels; with ``absent="raise"`` each of them must have features. `what` is "row" or
    "col", for messages.
    """
    at = _positions(features, ids)
    lacking = np.flatnonzero(at[:trained] < 0)
    if len(lacking) and features.absent == "raise":
        role = {"row": "row", "col": "column"}[what]
        raise InputError(
            f"The {role} id {ids[int(lacking[0])].as_py()!r} has labels but is not in the features of {role}s, "
            f"SideInformation({what}=...) ({len(lacking)} such ids): expected features of every id with labels. Add "
            "them, or pass Features(table, absent='missing')."
        )
    lines = sparse.vstack([encoder.encode(features), encoder.absent_line()], format="csr")
    return lines[np.where(at < 0, len(features), at)]


def _positions(features: Features, ids: pa.Array) -> Codes:
    """The line of each id in the features; negative if it is not there."""
    try:
        return Vocabulary(features.ids, "id").encode(ids)
    except DtypeError as error:
        raise DtypeError(
            f"The features have ids such as {features.ids[0].as_py()!r}, but the data has ids such as "
            f"{ids[0].as_py()!r}: expected ids of the same type. Convert one of them."
        ) from error


def _copied(column: pa.Array) -> pa.Array:
    """A copy of a column that shares no memory with the table it was read from."""
    return column.take(pa.array(np.arange(len(column))))


def _is_pair(table: Any) -> bool:
    if not isinstance(table, tuple):
        return False
    if len(table) != 2 or not (sparse.issparse(table[1]) or (isinstance(table[1], np.ndarray) and table[1].ndim == 2)):
        raise InputError(
            "Got a tuple that is not a pair (ids, matrix): expected a SciPy sparse matrix or a two-dimensional NumPy "
            "array as its second element."
        )
    return True


def _finite_matrix(matrix: Any, ids: pa.Array) -> sparse.csr_array:
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"The matrix of features has dtype {matrix.dtype}: expected numbers. Convert it.")
    csr = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    csr.sum_duplicates()
    bad = np.flatnonzero(~np.isfinite(csr.data))
    if len(bad):
        line = int(np.searchsorted(csr.indptr, bad[0], side="right")) - 1
        raise InputError(
            f"The matrix of features has the value {csr.data[bad[0]]} in column {csr.indices[bad[0]]} for the id "
            f"{ids[line].as_py()!r}: expected finite numbers. Drop or fill it first."
        )
    return csr


def _refuse_missing(columns: Mapping[str, pa.Array]) -> None:
    """Raise if a column has only missing values: it has nothing to learn from."""
    for name, column in columns.items():
        if column.null_count == len(column):
            raise InputError(f"Column {name!r} has only missing values: expected at least one value. Drop the column.")


def _read(values: Mapping[str, Any], ids: pa.Array | None) -> dict[str, pa.Array]:
    """Read the columns of a table, and check that numbers are finite and below `LARGEST`."""
    columns = {
        name: column if isinstance(column, FixedColumn) else read_feature(column, f"column {name!r}")
        for name, column in values.items()
    }
    for name, column in columns.items():
        if isinstance(column, FixedColumn):
            continue  # It was checked when the store was made.
        if ids is not None and len(column) != len(ids):
            raise InputError(
                f"Column {name!r} has {len(column)} values, but there are {len(ids)} ids: expected one per id."
            )
        _kind(column.type, name)
        line, entries = _entries(column)
        if pa.types.is_floating(entries.type):
            bad = np.flatnonzero(~(np.abs(entries.to_numpy(zero_copy_only=False)) < LARGEST))
            if len(bad):
                first = int(line[bad[0]])
                where = f"at position {first}" if ids is None else f"for the id {ids[first].as_py()!r}"
                raise InputError(
                    f"Column {name!r} has the value {entries[int(bad[0])].as_py()} {where}: expected finite numbers "
                    f"below {LARGEST:g}. Drop or fill it first."
                )
    return columns


NUMERIC = ("numbers", "dates", "durations")

CATEGORICAL = {
    "nothing": ("null",),
    "text": ("large_string", "null"),
    "booleans": ("bool",),
    "categories that are integers": ("int64", "uint64"),
    "categories that are floats": ("double",),
    "lists": ("null",),
    "lists of text": ("large_string",),
    "lists of booleans": ("bool",),
    "lists of integers": ("int64", "uint64"),
    "lists of floats": ("double",),
}
"""Kinds of columns with categories, and the types of these."""

LONGEST_NAMES = 2**28
"""Most characters in the names of the features of an encoder that is read from a file."""

LEAST_SCALE = 1e-30
"""Least scale of numbers in an encoder that is read from a file, so that standardised numbers are finite."""


def _is_standard(value: Any) -> bool:
    """Whether a JSON value is the mean and the scale of numbers."""
    numeric = isinstance(value, list) and len(value) == 2 and all(type(number) in (int, float) for number in value)
    return numeric and abs(value[0]) < LARGEST and LEAST_SCALE <= value[1] < LARGEST


def _kind(kind: pa.DataType, name: str) -> str:
    """Describe the values of a column of a type that `read_feature` returns; integers and floats are both numbers."""
    if pa.types.is_null(kind):
        return "nothing"
    plain = _category_kind(kind)
    if plain is not None:
        return plain if plain in ("text", "booleans") else "numbers"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "dates"
    if pa.types.is_duration(kind):
        return "durations"
    if pa.types.is_dictionary(kind):
        category = _category_kind(kind.value_type)
        if category is not None:
            return category if category in ("text", "booleans") else f"categories that are {category}"
    if pa.types.is_large_list(kind):
        item = _category_kind(kind.value_type)
        if item is not None or pa.types.is_null(kind.value_type):
            return "lists" if item is None else f"lists of {item}"
    raise InputError(
        f"Column {name!r} holds values of type {kind}: expected numbers, dates, durations, text, booleans, or "
        "categories or lists of text, numbers or booleans. Convert or drop it."
    )


def _category_kind(kind: pa.DataType) -> str | None:
    if pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "booleans"
    if pa.types.is_integer(kind):
        return "integers"
    return "floats" if pa.types.is_floating(kind) else None


def _entries(column: pa.Array) -> tuple[Codes, pa.Array]:
    """The line and the value of each entry of a column that is not missing; items of lists are entries."""
    line = np.arange(len(column))
    values = column
    if pa.types.is_large_list(column.type):
        line, values = pc.list_parent_indices(column).to_numpy(zero_copy_only=False), pc.list_flatten(column)
    elif pa.types.is_dictionary(column.type):
        values = column.dictionary_decode()
    if not values.null_count:
        return line, values
    return line[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()


def _parts(column: Any) -> Iterator[tuple[slice, pa.Array]]:
    """Yield a column part by part, with its place."""
    for some in chunks(len(column)):
        yield some, column.slice(some.start, some.stop - some.start)


def _average(column: Any, weight: Floats | None, of: Callable[[Floats], Floats]) -> float:
    """The mean of a function of the numbers that are not missing, weighted if there are weights (n,)."""
    total = mass = 0.0
    for some, part in _parts(column):
        line, values = _entries(part)
        x = of(_numbers(values))
        share = None if weight is None else weight[some][line]
        total += float(x.sum() if share is None else (x * share).sum())
        mass += float(len(x) if share is None else share.sum())
    return total / mass


def _distinct(column: pa.Array) -> pa.Array:
    """The distinct values of the entries of a column."""
    return _entries(column.unique() if pa.types.is_dictionary(column.type) else column)[1].unique()


def _category_codes(column: pa.Array, categories: Vocabulary) -> tuple[Codes, Codes]:
    """The line of each entry of a column that is not missing, and the code of its category; unknown ones are negative.

    A column with a dictionary is encoded by its dictionary.
    """
    if not pa.types.is_dictionary(column.type) or column.dictionary.null_count:
        line, values = _entries(column)
        return line, categories.encode(values).astype(np.int64)
    line = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    indices = column.indices.drop_null().to_numpy(zero_copy_only=False)
    return line, categories.encode(column.dictionary).astype(np.int64)[indices]


def _numbers(values: pa.Array) -> Floats:
    """Numbers as floats; dates, timestamps and durations in days."""
    kind = values.type
    per_day = 1.0
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        values, per_day = values.cast(pa.int64()), PER_DAY[kind.unit]
    elif pa.types.is_date(kind):
        values = values.cast(pa.int32())
    numbers: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers / per_day


def _transforms(transformer: Any) -> bool:
    return hasattr(transformer, "fit") and hasattr(transformer, "transform")


def _transform(transformer: Any, native: Any) -> sparse.csr_array:
    who, n = f"The transformer {type(transformer).__name__}", native.shape[0]
    try:
        encoded = transformer.transform(native)
    except Exception as error:
        raise _failed(transformer, error) from error
    if not sparse.issparse(encoded):
        encoded = np.asarray(encoded)
    if encoded.ndim != 2 or encoded.shape[0] != n:
        raise InputError(f"{who} returned the shape {encoded.shape}: expected ({n}, n_features), one line per id.")
    try:
        matrix = sparse.csr_array(encoded, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{who} returned values that are not numbers ({error}): expected numbers. Add a step that encodes them."
        ) from error
    if not np.isfinite(matrix.data).all():
        raise InputError(f"{who} returned NaN or infinite values: expected finite numbers. Add an imputer to it.")
    return matrix


def _failed(transformer: Any, error: Exception) -> InputError:
    return InputError(f"The transformer {type(transformer).__name__} failed ({error}): expected a table it can encode.")


def _transformed_names(transformer: Any, width: int) -> list[str]:
    try:
        names = [str(name) for name in transformer.get_feature_names_out()]
    except (AttributeError, ValueError):
        # A pipeline always has this method, but it raises if a step lacks it.
        names = []
    return names if len(names) == width else [str(i) for i in range(width)]


def _origin(transformer: Any, table: bool) -> str:
    return "given with a transformer" if transformer is not None else "a table" if table else "a matrix"


def seen_sets(owner: Codes, other: Codes, n_owners: int, n_others: int, *, both_ways: bool = False) -> sparse.csr_array:
    """Implicit feedback (Koren 2008): the others each owner was seen with, as a matrix (n_owners, n_others).

    x_ej = 1 / sqrt(n_e) for each of the n_e others of owner e, otherwise 0. With `both_ways`, owners and others are one
    set of nodes, and each pair counts in both orders.
    """
    line, item = (np.concatenate([owner, other]), np.concatenate([other, owner])) if both_ways else (owner, other)
    # A pair that occurs more than once becomes one entry.
    entries = np.ones(len(line)), (narrow(line, n_owners), narrow(item, n_others))
    seen = sparse.csr_array(entries, shape=(n_owners, n_others))
    size = np.diff(seen.indptr)
    seen.data = np.repeat(1 / np.sqrt(np.maximum(size, 1)), size)
    return seen
