"""Tables in files (CSV, TSV, Parquet, Arrow) or on standard input and output ("-"), read whole or in batches."""

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, ipc

from dyads.errors import InputError

Types = Mapping[str, pa.DataType | None]

STANDARD = "-"
"""The path that stands for standard input or output."""

DELIMITERS = {"csv": ",", "tsv": "\t"}

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
"""The format of a file by its suffix. CSV and TSV files may be compressed, with ".gz" after the suffix."""

INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
"""Canonical integers: "007" and "+7" are text. At most 18 digits, which fit in 64 bits."""

ANY_INTEGER = INTEGER.replace("{0,17}", "*")
"""Canonical integers of any length."""


def format_of(path: str) -> str:
    """The format of a file, by its suffix; standard input and output are CSV."""
    if path == STANDARD:
        return "csv"
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    packed = suffixes[-1:] == [".gz"]
    name = FORMATS.get(suffixes[-2] if packed and len(suffixes) > 1 else (suffixes or [""])[-1])
    if name is None or (packed and name not in DELIMITERS):
        raise InputError(
            f"The format of {Path(path).name} is unknown: expected a suffix {', '.join(FORMATS)}, or - for CSV."
        )
    return name


def read_table(
    path: str, types: Callable[[list[str]], Types] = lambda names: {}, *, may_be_empty: bool = False
) -> pa.Table:
    """Read a whole file; one without lines of data is refused unless it `may_be_empty`.

    `types` maps the names of all columns to the types of some of them, such as ids. A type of None means integers if
    all values of the column are canonical integers (see `INTEGER`), otherwise text. Types apply to CSV and TSV only:
    Parquet and Arrow files have their own.
    """
    with _reading(path):
        if format_of(path) in DELIMITERS:
            source = sys.stdin.buffer.read() if path == STANDARD else None
            first = csv.open_csv(path if source is None else BytesIO(source), parse_options=_parsing(path))
            asked = types(_checked(path, first.schema.names))
            table = csv.read_csv(
                path if source is None else BytesIO(source),
                parse_options=_parsing(path),
                convert_options=_converting(asked),
            )
            table = _with(table, asked)
        else:
            batches = _stored(path)
            _checked(path, batches.schema.names)
            table = pa.Table.from_batches(list(batches), batches.schema)
    if not table.num_rows and not may_be_empty:
        raise InputError(f"{_named(path)} has no lines: expected a header and at least one line of data.")
    return table


def read_batches(path: str, types: Types, columns: Sequence[str]) -> "Batches":
    """Read `columns` of a file in batches, one at a time in memory; `types` : the types of some columns, or None."""
    with _reading(path):
        if format_of(path) not in DELIMITERS:
            check_columns(path, _stored(path).schema.names, columns)
            return Batches(path, _stored(path, columns), {})
        if path != STANDARD:
            first = csv.open_csv(path, parse_options=_parsing(path))
            check_columns(path, _checked(path, first.schema.names), columns)
        reader = csv.open_csv(
            sys.stdin.buffer if path == STANDARD else path,
            parse_options=_parsing(path),
            convert_options=_converting(types, columns),
        )
        return Batches(path, reader, types)


def check_columns(path: str, there: Sequence[str], wanted: Iterable[str]) -> None:
    """Raise if a file, with the columns `there`, lacks one of the columns `wanted`."""
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError(f"{_named(path)} has no column {missing[0]!r}: expected one of its columns {list(there)}.")


def _checked(path: str, names: Sequence[str]) -> list[str]:
    # Columns without a name, such as those after a trailing comma, are ignored.
    repeated = sorted({name for name in names if name and list(names).count(name) > 1})
    if repeated:
        raise InputError(f"{_named(path)} has the column {repeated[0]!r} more than once: expected distinct names.")
    return list(names)


class Batches:
    """Iterates over the batches of a file, as tables whose columns have the requested types.

    A file without lines of data has one empty batch, so that its columns are known.
    """

    def __init__(self, path: str, source: Any, types: Types) -> None:
        self._path, self._source, self._types = path, source, types

    def __iter__(self) -> Iterator[pa.Table]:
        with _reading(self._path):
            is_empty = True
            for batch in self._source:
                if batch.num_rows:
                    is_empty = False
                    yield _with(pa.Table.from_batches([batch]), self._types)
            if is_empty:
                yield _with(self._source.schema.empty_table(), self._types)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a binary file for writing that replaces `path` atomically on exit.

    If writing is interrupted, the partial file is removed and an existing file at `path` is left unchanged.
    """
    target = Path(path).resolve()
    partial = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def open_writer(path: str, names: Sequence[str]) -> Iterator[Any]:
    """Yield a function that appends a table to a file; the file replaces `path` once all tables are written."""
    kind = format_of(path)
    if path == STANDARD:
        with _writer(kind, sys.stdout.buffer, names) as write:
            yield write
        sys.stdout.buffer.flush()
        return
    with replacing(path) as file, _writer(kind, file, names) as write:
        yield write


@contextmanager
def _writer(kind: str, file: Any, names: Sequence[str]) -> Iterator[Any]:
    opened: list[Any] = []

    def write(table: pa.Table) -> None:
        if not opened:
            opened.append(_open(kind, file, table.schema))
        opened[0].write_table(table) if kind != "arrow" else opened[0].write(table)

    yield write
    if not opened:
        opened.append(_open(kind, file, pa.schema([(name, pa.string()) for name in names])))
    opened[0].close()


def _open(kind: str, file: Any, schema: pa.Schema) -> Any:
    if kind == "parquet":
        return pq.ParquetWriter(file, schema)
    if kind == "arrow":
        return ipc.new_file(file, schema)
    options = csv.WriteOptions(delimiter=DELIMITERS[kind], quoting_style="needed")
    return csv.CSVWriter(file, schema, write_options=options)


def _stored(path: str, columns: Sequence[str] | None = None) -> Any:
    """A reader of the batches of a Parquet or Arrow file. From Parquet it reads `columns` alone, if given."""
    if format_of(path) == "parquet":
        file = pq.ParquetFile(path)
        schema = (
            file.schema_arrow if columns is None else pa.schema([file.schema_arrow.field(name) for name in columns])
        )
        return pa.RecordBatchReader.from_batches(schema, file.iter_batches(columns=columns))
    file = ipc.open_file(path)
    return pa.RecordBatchReader.from_batches(file.schema, (file.get_batch(i) for i in range(file.num_record_batches)))


def _parsing(path: str) -> Any:
    return csv.ParseOptions(delimiter=DELIMITERS[format_of(path)], newlines_in_values=True)


def _converting(types: Types, columns: Sequence[str] | None = None) -> Any:
    # Only empty cells are missing: "NA" (Namibia) and "null" (a surname) are valid values.
    return csv.ConvertOptions(
        column_types=dict.fromkeys(types, pa.string()),
        include_columns=columns,
        null_values=[""],
        strings_can_be_null=True,
    )


def _with(table: pa.Table, types: Types) -> pa.Table:
    """Cast columns that were read as text to their types."""
    for place, name in enumerate(table.column_names):
        if name in types:
            table = table.set_column(place, name, _as_type(table[name], types[name], name))
    return table


def as_ids(texts: Sequence[str], kind: pa.DataType, name: str) -> pa.Array:
    """Cast ids that were typed as text to the type of the model's ids."""
    try:
        return _as_type(pa.array(texts, pa.string()), kind, name)
    except UnicodeEncodeError as error:
        raise InputError(f"{list(texts)} are not valid text ({error}): expected ids of column {name!r}.") from error


def _as_type(column: Any, kind: pa.DataType | None, name: str) -> Any:
    if kind is None:
        plain = pc.all(pc.match_substring_regex(column, INTEGER), min_count=0).as_py()
        return column.cast(pa.int64()) if plain and len(column) > column.null_count else column
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return column
    if pa.types.is_integer(kind):
        wrong = pc.fill_null(pc.invert(pc.match_substring_regex(column, ANY_INTEGER)), False)
        if pc.any(wrong).as_py():
            example = column.filter(wrong)[0].as_py()
            raise InputError(
                f"Column {name!r} holds {example!r}, but the model was fitted on integers: expected integers without "
                "leading zeros. Write ids as in the training data, or fit a model on text ids."
            )
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"Column {name!r} cannot be read as {kind} ({error}): expected the type that it had in the fit. Convert it."
        ) from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn errors of file systems and parsers into one-sentence `InputError`s."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"There is no file {path}: expected a table. Check the path.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: expected a file. Name a file in it.") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        if "Empty CSV" in reason or "Cannot read empty" in reason:
            raise InputError(f"{_named(path)} is empty: expected a header and lines of data.") from error
        raise InputError(
            f"{_named(path)} cannot be read as {format_of(path)} ({reason}). Repair or convert the file."
        ) from error


def _named(path: str) -> str:
    return "Standard input" if path == STANDARD else path
