"""Tables in files -> a store, by DuckDB, in bounded memory."""

import glob
import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dyads.data.arrays import Columns, NewFolder, check_new, write_column
from dyads.data.codes import encode_labels
from dyads.data.features import LARGEST, FixedColumn
from dyads.data.store import BATCH, DTYPES, VERSION, Store
from dyads.errors import InputError, counted

Array = np.ndarray[Any, Any]

MEMORY = "3GB"
"""Memory that DuckDB may use to encode; beyond it, it works on disk."""

READERS = {
    ".parquet": "read_parquet({})",
    ".csv": "read_csv({}, header=true, auto_type_candidates=['BIGINT', 'DOUBLE', 'VARCHAR'])",
    ".tsv": "read_csv({}, header=true, delim='\t', auto_type_candidates=['BIGINT', 'DOUBLE', 'VARCHAR'])",
}
"""How DuckDB reads files, by their extensions; those of Arrow are read by pyarrow.

In text, ids and labels are numbers or text: DuckDB would take "yes" and "no" for booleans.
"""


def scan(
    paths: str | os.PathLike[str] | Sequence[str],
    *,
    row: str,
    col: str,
    label: str,
    weight: str | None = None,
    relation: str | None = None,
    features: Sequence[str] = (),
    to: str | os.PathLike[str],
) -> Store:
    """Encode tables in files into a store, in bounded memory: the folder `to`, which must not exist.

    Needs DuckDB (``pip install 'dyads[large]'``).

    Parameters
    ----------
    paths : files, or patterns such as "ratings/*.parquet"
        Parquet, CSV and TSV with a header, or Arrow files, all of one kind; files of a pattern are taken in the order
        of their names. Codes are given by first appearance, so a store depends on the tables alone.
    row, col, label, weight, relation : names of columns
        Pairs of weight zero are left out.
    features : names of columns with features of pairs: numbers, dates, text or booleans; they may have missing values
        They are encoded as further columns of a table are.
    to : folder to make
    """
    if importlib.util.find_spec("duckdb") is None:
        raise InputError("A store needs DuckDB, which is not installed: run pip install 'dyads[large]'.")
    files = _files(paths)
    target = check_new(to)
    names = {"row": row, "col": col, "label": label, "weight": weight, "relation": relation}
    columns = {name: column for name, column in names.items() if column is not None}
    if isinstance(features, str):
        raise InputError(f"Got features={features!r}: expected a list of names of columns. Write [{features!r}].")
    named = [*columns.values(), *features]
    if len(set(named)) < len(named):
        raise InputError(f"Got the columns {named}: expected a different one for each.")
    with NewFolder(target) as made:
        _encode(files, columns, list(features), made)
    return Store(target)


def _files(paths: Any) -> list[str]:
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: list[str] = []
    for pattern in (os.fspath(path) for path in listed):
        is_pattern = glob.has_magic(pattern) and not os.path.isfile(pattern)
        matches = sorted(glob.glob(pattern)) if is_pattern else [pattern]
        if not matches:
            raise InputError(f"No file matches {pattern}: expected tables. Check the pattern.")
        files += matches
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise InputError(f"{missing[0]} is not a file: expected a table. Check the path.")
    kinds = {os.path.splitext(file)[1].lower() for file in files}
    if len(kinds) != 1 or not kinds <= {*READERS, ".arrow", ".feather"}:
        raise InputError(f"Got files of the kinds {sorted(kinds)}: expected one of Parquet, CSV, TSV or Arrow.")
    return files


def _encode(files: list[str], columns: dict[str, str], features: list[str], folder: Path) -> None:
    """Write the codes, vocabularies, labels and features of tables to a folder."""
    import duckdb

    work = folder / "work"
    work.mkdir()
    connection: Any = duckdb.connect(str(work / "tables.duckdb"))
    try:
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        connection.execute(f"SET temp_directory = '{_quoted(str(work))}'")
        source = _source(connection, files)
        try:
            further = {f"feature_{i}": column for i, column in enumerate(features)}
            _read_tables(connection, source, columns, further)
        except duckdb.Error as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"The tables cannot be read ({reason}): check the files and the names of columns."
            ) from error
        n = _number(connection, "SELECT count(*) FROM lines")
        if not n:
            raise InputError("The tables have no pairs: expected at least one.")
        ids = [name for name in ("row", "col", "relation") if name in columns]
        types = _feature_types(connection, further)
        coded = [name for name, kind in types.items() if FixedColumn.dtype_of(kind) is np.int32]
        for name in (*ids, *coded):
            connection.execute(
                f"CREATE TABLE {name}s AS SELECT id, row_number() OVER (ORDER BY first) - 1 AS code FROM "
                f"(SELECT {name} AS id, min(rowid) AS first FROM lines WHERE {name} IS NOT NULL GROUP BY {name})"
            )
            write_column(folder, f"{name}s.arrow", _fetched(connection, f"SELECT id FROM {name}s ORDER BY code"))
        distinct = _fetched(connection, "SELECT DISTINCT label AS id FROM lines")
        classes, codes = encode_labels(distinct, n_dyads=n)
        write_column(folder, "labels.arrow", pa.array(classes.tolist()))
        connection.register("labels_found", pa.table({"id": distinct, "code": codes}))
        connection.execute("CREATE TABLE labels AS SELECT id, code FROM labels_found")
        joined = " ".join(f"JOIN {name}s ON lines.{name} = {name}s.id" for name in (*ids, "label"))
        joined += "".join(f" LEFT JOIN {name}s ON lines.{name} = {name}s.id" for name in coded)
        selected = ", ".join(f"{name}s.code AS {name}" for name in (*ids, "label"))
        selected += "".join(f", coalesce({name}s.code, -1) AS {name}" for name in coded)
        plain = [name for name in types if name not in coded]
        selected += "".join(f", lines.{name}" for name in [*(["weight"] if "weight" in columns else []), *plain])
        dtypes = {name: DTYPES[name] for name in columns}
        dtypes |= {name: FixedColumn.dtype_of(kind) for name, kind in types.items()}
        reader: Any = connection.sql(f"SELECT lines.rowid AS place, {selected} FROM lines {joined}")
        with Columns(folder, dtypes, n) as out:
            for batch in reader.to_arrow_reader(BATCH):
                part = {name: np.asarray(batch[name]) for name in (*columns, *coded)}
                for name in plain:
                    part[name] = FixedColumn.numbers_of(batch[name], types[name], further[name])
                out.scatter(np.asarray(batch["place"]), part)
            vocabularies = [*(f"{name}s.arrow" for name in (*ids, *coded)), "labels.arrow"]
            about = {"format": "dyads store", "version": VERSION, "n": n, "columns": columns}
            about["features"] = [[further[name], str(kind)] for name, kind in types.items()]
            out.close(about, vocabularies)
    finally:
        connection.close()
        shutil.rmtree(work, ignore_errors=True)


def _source(connection: Any, files: list[str]) -> str:
    kind = os.path.splitext(files[0])[1].lower()
    if kind in READERS:
        listed = ", ".join(f"'{_quoted(file)}'" for file in files)
        return READERS[kind].format(f"[{listed}]")
    from pyarrow import dataset

    connection.register("files", dataset.dataset(files, format="arrow"))
    return "files"


def _feature_types(connection: Any, features: dict[str, str]) -> dict[str, pa.DataType]:
    """The type in which each column of features of pairs is kept, checked; `features` : their names, by those here."""
    types = {}
    for name, column in features.items():
        kind = connection.sql(f"SELECT {name} FROM lines LIMIT 0").to_arrow_table().schema.field(0).type
        types[name] = FixedColumn.plain_type(kind, column)
        if not _number(connection, f"SELECT count({name}) FROM lines"):
            raise InputError(
                f"Column {column!r} has only missing values: expected at least one value. Drop the column."
            )
        wrong = f"SELECT count(*) FROM lines WHERE NOT isnan({name}) AND NOT abs({name}) < {LARGEST}"
        if pa.types.is_floating(kind) and _number(connection, wrong):
            raise InputError(
                f"Column {column!r} has infinite numbers, or ones beyond {LARGEST:g}: expected finite ones. Drop or "
                "fill them first."
            )
        # Timestamps are kept in microseconds if these are exact, as those of a table.
        finer = f"SELECT count(*) FROM lines WHERE epoch_ns({name}) % 1000 <> 0"
        if pa.types.is_timestamp(kind):
            exact = kind.unit != "ns" or not _number(connection, finer)
            types[name] = pa.timestamp("us" if exact else "ns")
        same = f"SELECT count(*) FROM lines WHERE {name} IS DISTINCT FROM label"
        alike = "SELECT typeof(label) = typeof({}) FROM lines LIMIT 1"
        if _number(connection, alike.format(name)) and not _number(connection, same):
            raise InputError(
                f"Column {column!r} holds the labels themselves: expected features known before the label. Drop "
                f"{column!r} from the features."
            )
    return types


def _read_tables(connection: Any, source: str, columns: dict[str, str], features: dict[str, str]) -> None:
    """Read the tables into "lines", in order, so that the number of a line is its position."""
    named = ", ".join(
        f'"{column.replace(chr(34), chr(34) * 2)}" AS {name}' for name, column in (columns | features).items()
    )
    weighed = " WHERE weight IS NULL OR weight <> 0" if "weight" in columns else ""
    connection.execute(f"CREATE TABLE lines AS SELECT * FROM (SELECT {named} FROM {source}){weighed}")
    types = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE lines)").fetchall())
    for name in features:
        if types[name].startswith("ENUM"):
            connection.execute(f"ALTER TABLE lines ALTER COLUMN {name} TYPE VARCHAR")
    for name, column in columns.items():
        missing = _number(connection, f"SELECT count(*) FROM lines WHERE {name} IS NULL")
        if missing:
            raise InputError(f"Column {column!r} lacks {counted(missing, 'value')}: expected none. Drop these lines.")
    wrong = "SELECT count(*) FROM lines WHERE NOT weight > 0 OR NOT isfinite(weight::DOUBLE)"
    if "weight" in columns and _number(connection, wrong):
        raise InputError(f"Column {columns['weight']!r} has negative weights or NaN: expected numbers above zero.")


def _number(connection: Any, query: str) -> int:
    """The only number that a query gives."""
    return int(connection.execute(query).fetchall()[0][0])


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _fetched(connection: Any, query: str) -> pa.Array:
    """The column "id" of a query."""
    column = connection.sql(query).to_arrow_table()["id"].combine_chunks()
    return column.cast(pa.large_string()) if pa.types.is_string(column.type) else column
