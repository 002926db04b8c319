"""Tables in files: CSV, TSV, Parquet, Arrow, or standard input and output ("-"), whole or in batches."""

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
"""The name of standard input and output."""

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
"""The format of a file by how its name ends; ".gz" after it is unpacked, of CSV and TSV."""

INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
"""Text that is an integer and nothing else: "007" is not, nor "+7"; of 18 digits at most, which 64 bits hold."""

ANY_INTEGER = INTEGER.replace("{0,17}", "*")
"""The same, of any length."""


def format_of(path: str) -> str:
    """The format of a file; standard input and output are CSV."""
    if path == STANDARD:
        return "csv"
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    packed = suffixes[-1:] == [".gz"]
    found = FORMATS.get(suffixes[-2] if packed and len(suffixes) > 1 else (suffixes or [""])[-1])
    if found is None or (packed and found not in DELIMITERS):
        raise InputError(
            f"The name {Path(path).name} tells no format: expected one that ends in {', '.join(FORMATS)}, or - for CSV."
        )
    return found


def read_table(path: str, types: Callable[[list[str]], Types] = lambda names: {}) -> pa.Table:
    """Read a whole file.

    `types` is asked, with the names of all columns, for those whose type is known, such as ids: None is that of
    integers where all values of the column are plainly integers, and of text else. Types of Parquet and Arrow are their
    own.
    """
    with _reading(path):
        if format_of(path) in DELIMITERS:
            source = sys.stdin.buffer.read() if path == STANDARD else None
            first = csv.open_csv(path if source is None else BytesIO(source), parse_options=_parsing(path))
            wanted = types(_checked(path, first.schema.names))
            table = csv.read_csv(
                path if source is None else BytesIO(source),
                parse_options=_parsing(path),
                convert_options=_converting(wanted),
            )
            table = _with(table, wanted)
        else:
            batches = _stored(path)
            _checked(path, batches.schema.names)
            table = pa.Table.from_batches(list(batches), batches.schema)
    if not table.num_rows:
        raise InputError(f"{_named(path)} has no lines: expected a header and at least one line of data.")
    return table


def read_batches(path: str, types: Types, columns: Sequence[str]) -> "Batches":
    """Read `columns` of a file in batches, of which one at a time is in memory; `types` as of `read_table`."""
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
    """Raise if a table lacks a column."""
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InputError(f"{_named(path)} has no column {missing[0]!r}: expected one of its columns {list(there)}.")


def _checked(path: str, names: Sequence[str]) -> list[str]:
    # Columns without a name, such as those after a last comma, are nobody's.
    repeated = sorted({name for name in names if name and list(names).count(name) > 1})
    if repeated:
        raise InputError(f"{_named(path)} has the column {repeated[0]!r} more than once: expected distinct names.")
    return list(names)


class Batches:
    """The batches of a file, in which columns have the types asked for."""

    def __init__(self, path: str, source: Any, types: Types) -> None:
        self._path, self._source, self._types = path, source, types

    def __iter__(self) -> Iterator[pa.Table]:
        with _reading(self._path):
            for batch in self._source:
                table = pa.Table.from_batches([batch])
                if table.num_rows:
                    yield _with(table, self._types)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A binary file to write, which takes the place of `path` when all is written.

    Whatever interrupts it, nothing half-written stays, and an older file of that name is kept.
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
    """A function that writes tables to a file, one after the other, which appears when all are written."""
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
    """The batches of a Parquet or Arrow file, with a schema; of Parquet only `columns`, if given, are read."""
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
    # Only what is empty is missing: NA is a country, and null somebody's name.
    return csv.ConvertOptions(
        column_types=dict.fromkeys(types, pa.string()),
        include_columns=columns,
        null_values=[""],
        strings_can_be_null=True,
    )


def _with(table: pa.Table, types: Types) -> pa.Table:
    """The table, some of whose columns were read as text, with these in their types."""
    for place, name in enumerate(table.column_names):
        if name in types:
            table = table.set_column(place, name, _as_type(table[name], types[name], name))
    return table


def as_ids(texts: Sequence[str], kind: pa.DataType, name: str) -> pa.Array:
    """Ids as a person types them, in the type that a model's ids have."""
    try:
        return _as_type(pa.array(texts, pa.string()), kind, name)
    except UnicodeEncodeError as error:
        raise InputError(f"{list(texts)} are no text ({error}): expected ids of column {name!r}.") from error


def _as_type(column: Any, kind: pa.DataType | None, name: str) -> Any:
    if kind is None:
        plain = pc.all(pc.match_substring_regex(column, INTEGER), min_count=0).as_py()
        return column.cast(pa.int64()) if plain and len(column) > column.null_count else column
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return column
    if pa.types.is_integer(kind):
        wrong = pc.fill_null(pc.invert(pc.match_substring_regex(column, ANY_INTEGER)), False)
        if pc.any(wrong).as_py():
            strange = column.filter(wrong)[0].as_py()
            raise InputError(
                f"Column {name!r} holds {strange!r}, but the model was fitted on integers there: expected such ids, or "
                "a model fitted on text. Write ids as they were written for the fit."
            )
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"Column {name!r} cannot be read as {kind}, which it was for the model ({error}): write it as for the fit."
        ) from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Errors of files in one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"There is no file {path}: expected a table. Check the name.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: expected a table. Name the file in it.") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        if "Empty CSV" in reason or "Cannot read empty" in reason:
            raise InputError(f"{_named(path)} is empty: expected a header and lines of data.") from error
        raise InputError(
            f"{_named(path)} cannot be read as {format_of(path)} ({reason}). Mend or convert it."
        ) from error


def _named(path: str) -> str:
    return "Standard input" if path == STANDARD else path
