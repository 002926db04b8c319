"""Tables in files (CSV, TSV, Parquet, Arrow) or on standard input and output ("-"), read whole or in batches."""

import codecs
import csv as python_csv
import io
import itertools
import os
import re
import stat
import sys
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, ipc

from dyads.errors import DialectWarning, InputError, caller_level
from dyads.settings import Setting

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


HEAD = 2**20
"""Bytes at the start of a file in which its dialect is looked for: as many as Arrow parses at a time."""

LOOKED_AT = 5_000
"""Lines at the start of a file in which its dialect is looked for."""

SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", "::": "double colons", " ": "spaces"}
"""Separators that are looked for, in this order, and what they are called."""

UNIT = "\x1f"
"""ASCII's unit separator, which stands for a separator of several characters: Arrow's parser takes one character."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LINE_BREAK = r"(?:\r\n|\r|\n)"
COMMENTS = re.compile(rf"(#( [^\r\n]*)?{LINE_BREAK})+")
BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, repr=False)
class Dialect(Setting):
    """How tables are written in files.

    What is None is looked for in each file; a `DialectWarning` says what was recognised.

    Parameters
    ----------
    format : "csv", "tsv", "parquet" or "arrow", default None
        Format of the tables, whatever the extension.
    separator : str, default None
        Separator of text files, such as ; or \\t or ::.
    encoding : str, default None
        Encoding of text files, such as latin-1 (UTF-8 unless given).
    header : bool, default None
        Whether the first line of text files holds the names of the columns; without one, they are called 1, 2, 3.
    """

    format: str | None = None
    separator: str | None = None
    encoding: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if self.format is not None:
            self.check_name("format", tuple(dict.fromkeys(FORMATS.values())))
        if self.separator is not None:
            self._keep("separator", self.separator.replace("\\t", "\t"))
            if not self.separator or set(self.separator) & {"\n", "\r", '"', UNIT}:
                raise self._refusal("separator", "one or more characters that are not quotes or line breaks")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError:
                raise self._refusal("encoding", "a name such as utf-8, latin-1 or utf-16") from None


def format_of(path: str) -> str:
    """The format of a file, by its suffix; standard input and output are CSV."""
    name = _format_by_suffix(path)
    if name is None:
        raise InputError(
            f"The format of {Path(path).name} is unknown: expected a suffix {', '.join(FORMATS)}, or - for CSV."
        )
    return name


def _format_by_suffix(path: str) -> str | None:
    if path == STANDARD:
        return "csv"
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    packed = suffixes[-1:] == [".gz"]
    name = FORMATS.get(suffixes[-2] if packed and len(suffixes) > 1 else (suffixes or [""])[-1])
    return None if packed and name not in DELIMITERS else name


def read_table(
    path: str,
    types: Callable[[list[str]], Types] = lambda names: {},
    dialect: Dialect | None = None,
    *,
    may_be_empty: bool = False,
) -> pa.Table:
    """Read a whole file; one without lines of data is refused unless it `may_be_empty`.

    `types` maps the names of all columns to the types of some of them, such as ids. A type of None means integers if
    all values of the column are canonical integers (see `INTEGER`), otherwise text. Types apply to CSV and TSV only:
    Parquet and Arrow files have their own.
    """
    with _reading(path), closing(_Source(path, dialect)) as source:
        if source.text is not None:
            asked = types(_checked(path, source.text.names))
            table = csv.read_csv(
                source.stream(),
                read_options=source.text.reading(),
                parse_options=source.text.parsing(),
                convert_options=_converting(asked),
            )
            if any(pa.types.is_binary(field.type) for field in table.schema):
                raise _wrong_encoding(path, source.text.encoding)
            table = _with(table, asked)
        else:
            batches = source.stored()
            _checked(path, batches.schema.names)
            table = pa.Table.from_batches(list(batches), batches.schema)
    if not table.num_rows and not may_be_empty:
        raise InputError(f"{_named(path)} has no lines: expected a header and at least one line of data.")
    return table


def read_batches(path: str, types: Types, columns: Sequence[str], dialect: Dialect | None = None) -> "Batches":
    """Read `columns` of a file in batches, one at a time in memory; `types` : the types of some columns, or None."""
    with _reading(path):
        source = _Source(path, dialect)
        if source.text is None:
            check_columns(path, source.stored().schema.names, columns)
            return Batches(path, source, source.stored(columns), {})
        check_columns(path, _checked(path, source.text.names), columns)
        reader = csv.open_csv(
            source.stream(),
            read_options=source.text.reading(),
            parse_options=source.text.parsing(),
            convert_options=_converting(types, columns),
        )
        return Batches(path, source, reader, types)


def find_dialect(path: str, dialect: Dialect | None = None) -> Dialect:
    """The dialect of a file: what is None in `dialect` is looked for in the file."""
    with _reading(path), closing(_Source(path, dialect)) as source:
        text = source.text
    if text is None:
        return Dialect(format=source.format)
    return Dialect(format=source.format, separator=text.separator, encoding=text.encoding, header=text.header)


def check_columns(
    path: str, there: Sequence[str], wanted: Iterable[str], advice: str = "Name one of these, or rename it."
) -> None:
    """Raise if a file, with the columns `there`, lacks one of the columns `wanted`."""
    missing = [name for name in wanted if name not in there]
    if missing:
        if len(there) == 1 and set(there[0]) & set("".join(SEPARATORS)):
            advice = "If these are several columns, pass their --separator."
        elif list(there) == _places(len(there)) and not missing[0].isdecimal():
            advice = "Columns without names are called by their place: add a header to the file."
        elif any(map(NUMBER.fullmatch, there)) and list(there) != _places(len(there)):
            advice = "If this is a line of data, pass --no-header."
        raise InputError(
            f"{_named(path)} has no column {missing[0]!r}: expected one of its columns {list(there)}. {advice}"
        )


def _places(n: int) -> list[str]:
    """Names of the columns of a file without a header."""
    return [str(place + 1) for place in range(n)]


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

    def __init__(self, path: str, source: "_Source", reader: Any, types: Types) -> None:
        self._path, self._source, self._reader, self._types = path, source, reader, types

    def __iter__(self) -> Iterator[pa.Table]:
        with _reading(self._path), closing(self._source):
            is_empty = True
            for batch in self._reader:
                if batch.num_rows:
                    is_empty = False
                    yield _with(pa.Table.from_batches([batch]), self._types)
            if is_empty:
                yield _with(self._reader.schema.empty_table(), self._types)


UTF8 = ("utf-8", "utf8", "UTF-8", "UTF8")
"""Names of the encoding that Arrow reads and writes."""


class _Text(NamedTuple):
    """How a text table is written: its dialect, the number of comment lines before it and the names of its columns."""

    separator: str
    encoding: str
    header: bool
    n_comments: int
    names: list[str]

    def reading(self) -> Any:
        return csv.ReadOptions(skip_rows=self.n_comments, column_names=None if self.header else self.names)

    def parsing(self) -> Any:
        separator = self.separator if len(self.separator) == 1 else UNIT
        return csv.ParseOptions(delimiter=separator, newlines_in_values=True)


class _Source:
    """A table to read: its format and, if it is text, how that is written. Standard input and pipes are read once."""

    def __init__(self, path: str, dialect: Dialect | None) -> None:
        self.path, dialect = path, dialect or Dialect()
        self._can_reopen = path != STANDARD and (os.path.isfile(path) or not os.path.exists(path))
        self._opened: list[Any] = []
        self._file: Any = sys.stdin.buffer
        if self._can_reopen:
            packed = "gzip" if path.lower().endswith(".gz") else None
            self._file = self._closed_at_end(pa.input_stream(path, compression=packed))
        elif path != STANDARD:
            self._file = self._closed_at_end(open(path, "rb"))  # noqa: SIM115
        self._head: bytes = self._file.read(HEAD)
        if not self._can_reopen and self._head.startswith(GZIP):
            joined = io.BufferedReader(_Joined(self._head, self._file), HEAD)
            self._file = self._closed_at_end(pa.input_stream(joined, compression="gzip"))
            self._head = self._file.read(HEAD)
        by_suffix = dialect.format or _format_by_suffix(path)
        kind = by_suffix or next((name for name, mark in MAGIC.items() if self._head.startswith(mark)), None)
        self.text = self._look_for_dialect(dialect, kind) if kind is None or kind in DELIMITERS else None
        self.format = kind or ("tsv" if self.text is not None and self.text.separator == "\t" else "csv")
        if self.text is None and by_suffix is None:
            _tell(f"{path} is read as {self.format}, by its content.")

    def _closed_at_end(self, file: Any) -> Any:
        self._opened.append(file)
        return file

    def close(self) -> None:
        """Close what was opened, which is not standard input."""
        while self._opened:
            self._opened.pop().close()

    def stream(self) -> Any:
        """What Arrow reads text from: UTF-8 with a separator of one character."""
        assert self.text is not None
        if len(self.text.separator) == 1 and self.text.encoding in UTF8 and self._can_reopen:
            return self.path
        return io.BufferedReader(_Decoded(self._head, self._file, self.text.encoding, self.text.separator), HEAD)

    def stored(self, columns: Sequence[str] | None = None) -> Any:
        """A reader of the batches of a Parquet or Arrow file. From Parquet it reads `columns` alone, if given."""
        source = self.path
        if not self._can_reopen:
            self._head += self._file.read()
            source = pa.BufferReader(self._head)
        if self.format == "parquet":
            file = pq.ParquetFile(source)
            schema = file.schema_arrow
            schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])
            return pa.RecordBatchReader.from_batches(schema, _validated(file.iter_batches(columns=columns)))
        file = ipc.open_file(source)
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
        return pa.RecordBatchReader.from_batches(file.schema, _validated(batches))

    def _look_for_dialect(self, dialect: Dialect, kind: str | None) -> _Text:
        """Look for what `dialect` does not give; say what differs from what the suffix tells."""
        sixteen = self._head.startswith(BYTE_ORDER_MARKS)
        encoding = dialect.encoding or ("utf-16" if sixteen else UTF8[0])
        if kind is None and b"\0" in self._head and not sixteen:
            raise self._unknown_format()
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(self._head, final=len(self._head) < HEAD)
        except UnicodeError as error:
            raise _wrong_encoding(self.path, encoding) from error
        text = text.removeprefix("\ufeff")
        comments = COMMENTS.match(text)
        text = text[comments.end() :] if comments else text
        rows = {name: _rows(text, name, len(self._head) < HEAD) for name in SEPARATORS}
        separator = dialect.separator or _separator(rows, None if kind is None else DELIMITERS[kind])
        if separator is None:
            raise self._unknown_format()
        lines = rows[separator] if separator in rows else _rows(text, separator, len(self._head) < HEAD)
        if not lines:
            raise InputError(f"{_named(self.path)} is empty: expected a header and lines of data.")
        if dialect.header is None and _is_data(lines):
            shown = ", ".join(lines[0][:5]) + (", ..." if len(lines[0]) > 5 else "")
            raise InputError(
                f"The first line of {_named(self.path)} looks like data ({shown}): expected the names of the columns. "
                "Pass --no-header if there are none, or --header if these are names."
            )
        n_comments = len(re.findall(LINE_BREAK, comments.group())) if comments else 0
        remarks = [f"text separated by {SEPARATORS.get(separator, repr(separator))}"]
        remarks += [f"encoded in {encoding}"] if sixteen and not dialect.encoding else []
        remarks += [f"after {n_comments} comment line{'s'[: n_comments > 1]}"] if n_comments else []
        if len(remarks) > 1 or (dialect.separator is None and separator != DELIMITERS.get(kind or "")):
            _tell(f"{_named(self.path)} is read as {', '.join(remarks)}.")
        header = dialect.header is not False
        names = lines[0] if header else _places(len(lines[0]))
        return _Text(separator, encoding, header, n_comments, names)

    def _unknown_format(self) -> InputError:
        if Path(self.path).suffix.lower() in SPREADSHEETS:
            return InputError(f"{self.path} is a spreadsheet: expected a table. Save it as CSV first.")
        return InputError(
            f"The format of {_named(self.path)} is unknown: expected a suffix {', '.join(FORMATS)}. Pass --format csv, "
            "tsv, parquet or arrow."
        )


SPREADSHEETS = (".xlsx", ".xls", ".ods")

GZIP = b"\x1f\x8b"
"""First bytes of what gzip has compressed."""

MAGIC = {"parquet": b"PAR1", "arrow": b"ARROW1"}
"""First bytes of the files that are not text."""


def _validated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, checked: Arrow trusts the offsets and the text of a file, and would read beyond them."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _tell(sentence: str) -> None:
    warnings.warn(sentence, DialectWarning, stacklevel=caller_level())


def _rows(text: str, separator: str, whole: bool) -> list[list[str]]:
    """The cells of the first lines of a text; blank lines are skipped. `whole` : whether the text is a whole file."""
    if len(separator) > 1:
        text, separator = _Exchange(separator, UNIT)(text) if separator in text else text, UNIT
    rows: list[list[str]] = []
    try:
        for row in python_csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            rows += [row] if row else []
            if len(rows) == LOOKED_AT:
                return rows
    except python_csv.Error:
        # A cell may be longer than Python's parser allows.
        return rows
    return rows if whole or len(rows) < 2 else rows[:-1]


def _separator(rows: Mapping[str, list[list[str]]], expected: str | None) -> str | None:
    """The separator of a text: the expected one, or if that finds one column, one that cuts all lines alike."""
    if expected is not None and (not rows[expected] or len(rows[expected][0]) > 1):
        return expected
    for name, lines in rows.items():
        # In a column of text, spaces are no separators.
        if (
            {len(line) for line in lines} - {1}
            and len({len(line) for line in lines}) == 1
            and (expected is None or name != " ")
        ):
            return name
    return expected


def _is_data(rows: list[list[str]]) -> bool:
    """Whether the first line holds no names: all its cells are numbers, or occur again beneath, in the same column."""
    beneath = [set(column) for column in itertools.zip_longest(*rows[1:])]
    beneath += [set()] * (len(rows[0]) - len(beneath))
    cells = [(cell.strip(), below) for cell, below in zip(rows[0], beneath, strict=False) if cell.strip()]
    return bool(cells) and all(NUMBER.fullmatch(cell) or cell in below for cell, below in cells)


class _Exchange:
    """Replaces one separator by another outside quoted cells, in a text that comes in parts.

    A quote opens a cell at its beginning, and goes on after a quote that closed it: "" is a quote within a cell.
    """

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._kept, self._in_quotes, self._may_open = "", False, True

    def __call__(self, text: str, final: bool = True) -> str:
        if self._old == self._new:
            return text
        *pieces, rest = (self._kept + text).split('"')
        done = []
        for piece in pieces:
            done += [self._exchanged(piece), '"']
            self._in_quotes, self._may_open = self._may_open and not self._in_quotes, self._in_quotes
        self._kept = "" if final or self._in_quotes else self._begun(rest)
        return "".join([*done, self._exchanged(rest.removesuffix(self._kept))])

    def _exchanged(self, piece: str) -> str:
        if self._in_quotes or not piece:
            return piece
        self._may_open = not self._last_cell(piece)
        return piece.replace(self._old, self._new)

    def _begun(self, text: str) -> str:
        """The end of a text, as far as it may be the beginning of a separator."""
        cell = self._last_cell(text)
        return next((self._old[:n] for n in range(len(self._old) - 1, 0, -1) if cell.endswith(self._old[:n])), "")

    def _last_cell(self, text: str) -> str:
        # Cut from the left, as `replace` does: after ":::" there is a cell ":".
        return text.rpartition("\n")[2].rpartition("\r")[2].split(self._old)[-1]


class _Joined(io.RawIOBase):
    """The bytes `head`, and then those of `rest`."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class _Decoded(io.RawIOBase):
    """A text in UTF-8 with a separator of one character, read from `head` and then `rest`."""

    def __init__(self, head: bytes, rest: Any, encoding: str, separator: str) -> None:
        self._parts = itertools.chain([head], iter(lambda: rest.read(HEAD), b""))
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._exchange = _Exchange(separator, UNIT if len(separator) > 1 else separator)
        self._at_start, self._ready = True, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            part = next(self._parts, b"")
            text = self._decoder.decode(part, final=not part)
            if self._at_start and text:
                text, self._at_start = text.removeprefix("\ufeff"), False
            self._ready = self._exchange(text, final=not part).encode()
            if not part:
                break
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


class _Encoded(io.RawIOBase):
    """Writes a text that Arrow writes in UTF-8, in another encoding or with a separator of several characters."""

    def __init__(self, file: Any, encoding: str, separator: str) -> None:
        self._file = file
        self._exchange = _Exchange(UNIT if len(separator) > 1 else separator, separator)
        self._decoder = codecs.getincrementaldecoder(UTF8[0])()
        self._encoder = codecs.getincrementalencoder(encoding)()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = self._exchange(self._decoder.decode(bytes(data)), final=False)
        self._file.write(self._encoder.encode(text))
        return len(data)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a binary file for writing that replaces `path` atomically on exit.

    If writing is interrupted, the partial file is removed and an existing file at `path` is left unchanged. A new file
    has the mode of the file it replaces; until then only its owner can read it. A link is followed. A path that cannot
    be written is refused: see `check_writable`.
    """
    check_writable(path)
    target = Path(path).resolve()
    partial = target.with_name(f".{uuid.uuid4().hex}.part")
    before = _mode_of(target)
    first = 0o666 if before is None else 0o600
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, first)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        now = _mode_of(target)
        mode = before if now is None else now
        if mode is not None:
            os.chmod(partial, mode)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise unless `path` is a file, or nothing, in a folder that can be written to.

    Devices, pipes and folders are refused: a rename would put a file in their place.
    """
    path = Path(path)
    folder = (path.resolve() if path.is_symlink() else path).parent
    if not folder.is_dir():
        raise InputError(f"The folder {folder} does not exist: create it, or choose another for {path.name}.")
    if not os.access(folder, os.W_OK):
        raise InputError(f"The folder {folder} is not writable: choose another for {path.name}.")
    _mode_of(path)


def _mode_of(path: Path) -> int | None:
    """The mode of the regular file `path`, None if there is nothing; anything else raises."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "device, pipe or socket"
        raise InputError(f"{path} is a {kind}: expected the name of a file to write. Choose another name.")
    return stat.S_IMODE(status.st_mode)


@contextmanager
def open_writer(path: str, names: Sequence[str], dialect: Dialect | None = None, quoted: bool = True) -> Iterator[Any]:
    """Yield a function that appends a table to a file; the file replaces `path` once all tables are written.

    `quoted` : whether texts are put in quotes; without these, none may hold a quote, a separator or a line break.
    """
    dialect = dialect or Dialect()
    dialect = dialect.replaced({"format": dialect.format or format_of(path)})
    if path == STANDARD:
        with _writer(dialect, sys.stdout.buffer, names, quoted) as write:
            yield write
        sys.stdout.buffer.flush()
        return
    with replacing(path) as file, _writer(dialect, file, names, quoted) as write:
        yield write


@contextmanager
def _writer(dialect: Dialect, file: Any, names: Sequence[str], quoted: bool) -> Iterator[Any]:
    opened: list[Any] = []

    def write(table: pa.Table) -> None:
        if not opened:
            opened.append(_open(dialect, file, table.schema, quoted))
        opened[0].write_table(table) if dialect.format != "arrow" else opened[0].write(table)

    yield write
    if not opened:
        opened.append(_open(dialect, file, pa.schema([(name, pa.string()) for name in names]), quoted))
    opened[0].close()


def _open(dialect: Dialect, file: Any, schema: pa.Schema, quoted: bool) -> Any:
    if dialect.format == "parquet":
        return pq.ParquetWriter(file, schema)
    if dialect.format == "arrow":
        return ipc.new_file(file, schema)
    separator = dialect.separator or DELIMITERS[str(dialect.format)]
    options = csv.WriteOptions(
        include_header=dialect.header is not False,
        delimiter=separator if len(separator) == 1 else UNIT,
        quoting_style="needed" if quoted else "none",
    )
    if dialect.encoding not in (None, *UTF8) or len(separator) > 1:
        file = _Encoded(file, dialect.encoding or UTF8[0], separator)
    return csv.CSVWriter(file, schema, write_options=options)


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
            table = table.set_column(place, name, _as_type(table.column(place), types[name], name))
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
    except (pa.ArrowException, UnicodeError) as error:
        reason = " ".join(str(error).split())
        if "Empty CSV" in reason or "Cannot read empty" in reason:
            raise InputError(f"{_named(path)} is empty: expected a header and lines of data.") from error
        if "invalid UTF8" in reason or isinstance(error, UnicodeError):
            raise _wrong_encoding(path, getattr(error, "encoding", UTF8[0])) from error
        kind = _format_by_suffix(path) or "a table"
        raise InputError(f"{_named(path)} cannot be read as {kind} ({reason}). Repair or convert the file.") from error
    except OSError as error:
        # Errors of the file system have a number; Arrow's decompressor raises one without.
        if error.errno is not None:
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"{_named(path)} cannot be read ({reason}): expected a whole file. Copy or download it again."
        ) from error


def _wrong_encoding(path: str, encoding: str) -> InputError:
    return InputError(
        f"{_named(path)} is not encoded in {encoding.upper()}: pass its encoding, such as --encoding latin-1."
    )


def _named(path: str) -> str:
    return "Standard input" if path == STANDARD else path
