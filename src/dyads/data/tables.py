"""From pandas, polars, Arrow, NumPy, dicts and lists to named Arrow columns: the only module that sees dataframes."""

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dyads.errors import DtypeError, InputError, unknown_name


def named_values(table: Any) -> dict[str, Any]:
    """The columns of any table by name, in order; `read_column` converts one.

    A NumPy array or a list of rows has no names: its columns are named ``"0"``, ``"1"``, ...
    """
    pairs = [(str(name), values) for name, values in _pairs(table)]
    names = [name for name, _ in pairs]
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"The column name {name!r} is not valid Unicode ({error}): expected text without lone surrogates. "
                "Rename the column."
            ) from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"The column names {repeated} occur more than once: expected distinct names. Rename them.")
    return dict(pairs)


def read_column(values: Any, name: str, *, numbers_mix: bool = False) -> pa.Array:
    """Convert a sequence of values to an Arrow array of a plain type, without nulls.

    Types are unified, so that equal ids from different sources compare equal: integers become int64 (uint64 only if
    needed), floats float64, text large_string, bytes large_binary, timestamps microseconds if these are exact. Mixed
    types are refused; `numbers_mix` allows integers and floats together, as for weights and labels.
    """
    array = _read(values, name, numbers_mix, _plain)
    if array.null_count:
        raise InputError(
            f"{_capital(name)} has {array.null_count} missing value(s), the first at position "
            f"{pc.index(array.is_null(), True).as_py()}: expected none. Drop or fill them first."
        )
    if pa.types.is_floating(array.type) and not pc.all(pc.is_finite(array), min_count=0).as_py():
        first = pc.index(pc.is_finite(array), False).as_py()
        raise InputError(
            f"{_capital(name)} has NaN or infinite values, the first at position {first}: expected finite "
            "values. Drop or fill them first."
        )
    return array


def read_feature(values: Any, name: str) -> pa.Array:
    """Convert a sequence of values to an Arrow array of features, with null for missing values (including NaN).

    Types are those of `read_column`, except that decimals become float64. A categorical column becomes a dictionary
    array of such values, and a column of lists a large_list array.
    """
    return _read(values, name, True, _feature)


def column_name(values: Any) -> str | None:
    """The name of a pandas or polars series; None for other values, and for a series without a name."""
    series = nw.from_native(values, series_only=True, pass_through=True)
    name = series.name if isinstance(series, nw.Series) else None
    return None if name in (None, "") else str(name)


def ordered_categories(values: Any, name: str) -> pa.Array | None:
    """The categories of an ordered categorical column, lowest first, as `read_column` reads them; None for any other.

    Ordered categoricals are those of pandas with ``ordered=True``, the Enums of polars and Arrow dictionary arrays with
    ``ordered=True``.
    """
    if isinstance(values, np.ndarray | list | tuple):
        return None
    array = values if isinstance(values, pa.ChunkedArray) else _read(values, name, True, lambda array, _: array)
    if not pa.types.is_dictionary(array.type) or not array.type.ordered:
        return None
    categories = [chunk.dictionary for chunk in (array.chunks if isinstance(array, pa.ChunkedArray) else [array])]
    if any(not chunk.equals(categories[0]) for chunk in categories):
        raise InputError(
            f"{_capital(name)} has chunks with different ordered categories: expected one order. Use one dictionary."
        )
    return read_column(categories[0], name) if categories else None


LIBRARIES = ("pandas", "polars", "pyarrow", "modin", "cudf")
"""Dataframe libraries in which tables are returned."""


def library_of(table: Any) -> str | None:
    """The library of a frame or series, one of `LIBRARIES`; None for dicts, lists, arrays and other libraries."""
    if isinstance(table, pa.RecordBatch | pa.Array):
        return "pyarrow"
    native = nw.from_native(table, pass_through=True, allow_series=True)
    name = str(native.implementation) if isinstance(native, nw.DataFrame | nw.Series) else None
    return name if name in LIBRARIES else None


def check_library(library: str) -> None:
    """Raise unless tables can be made in a library, one of `LIBRARIES`."""
    if library not in LIBRARIES:
        raise unknown_name("table", library, ("default", *LIBRARIES))
    if find_spec(library) is None:
        raise InputError(f"table={library!r} was given, but {library} is not installed: pip install {library}.")


def table_of(columns: Mapping[str, Any], library: str | None, like: Any = None) -> Any:
    """Make a table of a library; an Arrow table if that is None or not installed.

    A pandas table has the index of `like`, where that is a pandas table too.
    """
    arrays = (_of_numpy(column) if isinstance(column, np.ndarray) else pa.array(column) for column in columns.values())
    table = pa.table(dict(zip(columns, arrays, strict=True)))
    if library not in LIBRARIES or library == "pyarrow":
        return table
    try:
        native = nw.from_arrow(table, backend=library).to_native()
    except ImportError:
        return table
    index = nw.maybe_get_index(nw.from_native(like)) if library_of(like) == library else None
    if index is not None:
        native.index = index
    return native


def as_arrow(table: Any) -> pa.Table:
    """Convert a table of any of the `LIBRARIES` to an Arrow table."""
    return nw.from_native(table).to_arrow()


def named_arrays(table: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of any table as NumPy arrays, in order."""
    return {name: np.asarray(column) for name, column in named_values(table).items()}


def lines(columns: dict[str, np.ndarray[Any, Any]], which: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Select lines of a table of NumPy arrays; `which` : positions, or a mask (n,)."""
    return {name: column[which] for name, column in columns.items()}


def without_column(table: Any, name: str) -> Any:
    """Drop a column of a pandas or polars table; returns a table of the same library."""
    frame = None if isinstance(table, pa.Table | pa.RecordBatch) else nw.from_native(table, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        raise InputError(
            f"Got a table of type {type(table).__name__} with a transformer: expected a table that scikit-learn "
            "accepts. Convert it to a pandas or polars table."
        )
    return frame.select([nw.col(column) for column in frame.columns if str(column) != name]).to_native()


def take_lines(frame: Any, lines: np.ndarray[Any, Any]) -> Any:
    """Select lines of a pandas or polars table; returns a table of the same library."""
    return nw.from_native(frame, eager_only=True)[lines].to_native()


def _read(values: Any, name: str, numbers_mix: bool, convert: Callable[[pa.Array, str], pa.Array]) -> pa.Array:
    try:
        return convert(_arrow(values, name, numbers_mix), name)
    except InputError:
        raise
    except UnicodeError as error:
        raise InputError(
            f"{_capital(name)} holds text that is not valid Unicode ({error}): expected text without lone surrogates. "
            "Decode it with the encoding of its source."
        ) from error
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(
            f"{_capital(name)} cannot be read ({error}): expected values of one type. Convert it first."
        ) from error


def _pairs(table: Any) -> Iterable[tuple[Any, Any]]:
    """The name and the values of each column of a table, in order."""
    # Before Mapping: scipy.sparse.dok_array is a dict.
    if type(table).__module__.startswith("scipy.sparse"):
        raise InputError(
            "Got a SciPy sparse matrix: expected a table with one line per dyad (row id, column id). "
            "Pass the coordinates, for example np.column_stack(matrix.nonzero())."
        )
    if isinstance(table, pa.Table | pa.RecordBatch):
        return list(zip(table.column_names, table.columns, strict=True))
    if isinstance(table, Mapping):
        return list(table.items())
    try:
        frame = nw.from_native(table, pass_through=True)
    except nw.exceptions.NarwhalsError as error:
        raise InputError(f"The table cannot be read ({error}): expected distinct column names.") from error
    if isinstance(frame, nw.LazyFrame):
        raise InputError("Got a lazy frame: expected a table in memory. Call .collect() on it first.")
    if isinstance(frame, nw.DataFrame):
        return list(zip(frame.columns, frame.iter_columns(), strict=True))
    if isinstance(table, Sequence) and not isinstance(table, str | bytes):
        return _of_rows(table)
    array = np.asanyarray(table)
    if array.dtype.kind == "c":
        raise InputError("Complex data not supported: expected ids and features that are text or real numbers.")
    if array.dtype.names is not None:
        return [(name, array[name]) for name in array.dtype.names]
    if array.ndim != 2:
        raise InputError(
            f"Got an array with {array.ndim} dimension(s): expected 2D array, one line per dyad and one column each "
            "for the row id and the column id. Reshape your data, for example with np.column_stack([rows, cols])."
        )
    return list(enumerate(array.T))


def _of_rows(rows: Sequence[Any]) -> list[tuple[int, list[Any]]]:
    """The columns of a list of rows. (NumPy would turn ``[["62", 7]]`` into two strings.)"""
    if rows and not all(isinstance(row, Sequence | np.ndarray) and not isinstance(row, str | bytes) for row in rows):
        raise InputError(
            "Got a flat list: expected 2D array or a list of (row id, column id) pairs. Reshape your data."
        )
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise InputError(
            f"The rows of the list have different lengths {sorted(widths)}: expected rows of equal length."
        )
    return [(index, list(column)) for index, column in enumerate(zip(*rows, strict=True))]


def _arrow(values: Any, name: str, numbers_mix: bool) -> pa.Array:
    """Convert a series, array or sequence to an Arrow array, before its type is unified."""
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    # A pandas Categorical is not a series, and NumPy would drop its categories.
    if isinstance(values, pa.Array | np.ma.MaskedArray) or type(values).__name__ in ("Categorical", "CategoricalIndex"):
        return pa.array(values)
    series = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(series, nw.Series):
        if series.dtype == nw.Object:
            return _of_objects(series.to_list(), name, numbers_mix)
        # A pandas column may consist of several Arrow chunks.
        return _arrow(series.to_arrow(), name, numbers_mix)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return _of_objects(values, name, numbers_mix)
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{_capital(name)} has {array.ndim} dimension(s): expected a flat sequence of values.")
    if array.dtype == object:
        return _of_objects(array.tolist(), name, numbers_mix)
    if array.dtype.kind == "c":
        raise InputError(f"{_capital(name)} is complex. Complex data not supported: expected ids or real numbers.")
    return _of_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _of_numpy(array: np.ndarray[Any, Any]) -> pa.Array:
    if array.dtype.kind == "U" and len(array):
        letters = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
        if ((letters[:, :-1] == 0) & (letters[:, 1:] != 0)).any():
            # Arrow would cut the texts of NumPy at a NUL character.
            return pa.array(array.tolist(), pa.large_string())
    return pa.array(array)


def _of_objects(values: Sequence[Any], name: str, numbers_mix: bool) -> pa.Array:
    """Convert Python objects of one kind. (Arrow alone would accept ``[1, 2.5, True]``.)"""
    example: dict[str, Any] = {}
    if len(set(map(type, values))) > 1:
        for value in values:
            if not _missing(value):
                example.setdefault(_kind(value), value)
    elif len(values):
        example[_kind(values[0])] = values[0]
    if example.keys() == {"integer", "float"} and numbers_mix:
        return pa.array(values, type=pa.float64(), from_pandas=True)
    refused = [kind for kind in example if kind not in PLAIN_KINDS and isinstance(example[kind], Mapping | set)]
    if refused:
        raise DtypeError(
            f"{_capital(name)} holds a {refused[0]} ({example[refused[0]]!r}): every argument must be a string or a "
            "number. Convert it."
        )
    if len(example) > 1:
        kinds = ", ".join(f"{kind} ({value!r})" for kind, value in example.items())
        raise InputError(
            f"{_capital(name)} mixes types, {kinds}: expected values of one type. Convert it, for example with str."
        )
    if "UUID" in example:
        return pa.array([None if _missing(value) else value.bytes for value in values])
    if any(isinstance(value, np.generic) for value in example.values()) and not any(map(_missing, values)):
        return pa.array(np.asarray(values))
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:
        return pa.array(values, type=pa.uint64())


def _missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT (like NaN, NaT is not equal to itself)."""
    if value is None or type(value).__name__ == "NAType":
        return True
    return isinstance(value, numbers.Real | datetime) and bool(value != value)


PLAIN_KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (bool, np.bool_),
    "integer": (numbers.Integral,),
    "float": (numbers.Real,),
    "string": (str,),
    "bytes": (bytes,),
}
"""Kinds of plain Python values, by type. The first match counts: a bool is an Integral, which is a Real."""


def _kind(value: Any) -> str:
    for kind, types in PLAIN_KINDS.items():
        if isinstance(value, types):
            return kind
    return type(value).__name__


def _plain(array: pa.Array, name: str) -> pa.Array:
    """Cast an Arrow array to the plain type of its kind; see `read_column`."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        if not isinstance(kind, pa.UuidType):
            raise InputError(
                f"{_capital(name)} holds values of type {kind}: expected plain ids or values. Convert it to text."
            )
        return _plain(array.storage, name)
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode(), name)
    if pa.types.is_integer(kind):
        if kind == pa.uint64() and len(array) and (pc.max(array).as_py() or 0) > np.iinfo(np.int64).max:
            return array
        return array.cast(pa.int64())
    if pa.types.is_floating(kind):
        # Adding zero turns -0.0 into 0.0, so that both are the same id.
        return pc.add(array.cast(pa.float64()), 0.0)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary()).cast(pa.large_binary())
    if pa.types.is_timestamp(kind):
        try:
            return array.cast(pa.timestamp("us", tz=kind.tz))
        except pa.ArrowInvalid:
            return array.cast(pa.timestamp("ns", tz=kind.tz))
    if pa.types.is_time(kind):
        return array.cast(pa.time64("ns"))
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("ns"))
    if pa.types.is_date(kind):
        return array.cast(pa.date32())
    if pa.types.is_decimal(kind):
        return array.cast(pa.decimal128(38, 9))
    if pa.types.is_nested(kind):
        raise InputError(
            f"{_capital(name)} holds values of type {kind}: expected plain ids or values, such as text or integers."
        )
    return array


def _feature(array: pa.Array, name: str) -> pa.Array:
    """Cast an Arrow array to a type of features; see `read_feature`."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        # The child array may hold items of missing or sliced-off lists; list_flatten drops them.
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        items = _feature(pc.list_flatten(array), name)
        if pa.types.is_nested(items.type):
            raise InputError(f"{_capital(name)} holds lists of lists: expected lists of plain values. Flatten them.")
        if pa.types.is_dictionary(items.type):
            items = items.dictionary_decode()
        return pa.LargeListArray.from_arrays(pa.array(start), items, mask=array.is_null())
    if pa.types.is_dictionary(kind):
        return _feature(array.dictionary_decode(), name).dictionary_encode()
    plain = array.cast(pa.float64()) if pa.types.is_decimal(kind) else _plain(array, name)
    if pa.types.is_floating(plain.type):
        return pc.if_else(pc.is_nan(plain), None, plain)
    return plain


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
