"""A table that is written and read again is the same, in every format."""

import csv
import os
import re
import stat
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dyads.data.files import DELIMITERS, as_ids, open_writer, read_batches, read_table, replacing
from dyads.errors import InputError

# What is empty is missing: no text of a table that is written as text is.
TEXTS = st.text(min_size=1, max_size=8) | st.sampled_from(
    ['"', ",", "\t", "\n", "a\r\nb", "007", "NA", "null", " x ", "é"]
)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(2**63 - 9, 2**63 - 1)
VALUES = {
    pa.string(): TEXTS,
    pa.int64(): INTEGERS,
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
}


@st.composite
def some_tables(draw):
    """Two tables of the same columns, one to be written after the other."""
    names = draw(st.lists(TEXTS, min_size=2, max_size=3, unique=True))
    kinds = [draw(st.sampled_from(list(VALUES))) for _ in names]

    def table(n):
        columns = [draw(st.lists(st.none() | VALUES[kind], min_size=n, max_size=n)) for kind in kinds]
        return pa.table([pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)], names)

    return [table(draw(st.integers(1, 4))) for _ in range(2)]


def written(folder, suffix, tables):
    path = str(Path(folder) / f"table.{suffix}")
    with open_writer(path, tables[0].column_names) as write:
        for table in tables:
            write(table)
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "arrow"])
@given(tables=some_tables())
def test_columns_come_back_as_they_were(suffix, tables):
    whole = pa.concat_tables(tables).combine_chunks()
    types = dict(zip(whole.column_names, whole.schema.types, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, suffix, tables)
        if suffix in DELIMITERS:
            with open(path, newline="", encoding="utf8") as file:
                header, *lines = csv.reader(file, delimiter={"csv": ",", "tsv": "\t"}[suffix])
            assert (header, len(lines)) == (whole.column_names, len(whole))
        assert read_table(path, lambda names: types).combine_chunks().equals(whole)
        wanted = whole.column_names[::-1][:2]
        parts = [part.select(wanted) for part in read_batches(path, types, wanted)]
        assert pa.concat_tables(parts).combine_chunks().equals(whole.select(wanted).combine_chunks())


@example(["007", "7"])
@example(["7", "-7", "0"])
@example(["-0"])
@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1).map(str), min_size=1) | st.lists(TEXTS, min_size=1))
def test_ids_of_unknown_type_are_integers_where_all_are_and_text_else(texts):
    plain = all(re.fullmatch("-?[0-9]+", text) and str(int(text)) == text for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, "csv", [pa.table({"id": texts})])
        found = read_table(path, lambda names: dict.fromkeys(names))["id"]
    assert found.to_pylist() == ([int(text) for text in texts] if plain else texts)


def test_lines_may_break_anywhere_in_a_large_file(tmp_path):
    table = pa.table({"id": [f"{i}\n,{i % 7}\n" for i in range(200_000)], "x": range(200_000)})
    path = written(tmp_path, "csv", [table])
    assert read_table(path).combine_chunks().equals(table)
    assert pa.concat_tables(read_batches(path, {}, ["id"]))["id"].combine_chunks().equals(table["id"].combine_chunks())


@given(INTEGERS)
def test_an_integer_that_is_typed_is_that_id(value):
    assert as_ids([str(value)], pa.int64(), "id").to_pylist() == [value]


@given(st.integers(2**63, 2**70) | st.integers(-(2**70), -(2**63) - 1))
def test_an_integer_that_no_id_can_be_is_refused(value):
    with pytest.raises(InputError, match="cannot be read as int64"):
        as_ids([str(value)], pa.int64(), "id")


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3)), os.mkdir]
)
def test_writing_replaces_nothing_but_a_file(tmp_path, make):
    path = tmp_path / "target"
    try:
        make(path)
    except PermissionError:
        pytest.skip("only root can make a device")
    kind = stat.S_IFMT(path.lstat().st_mode)
    with pytest.raises(InputError, match="expected the name of a file"), replacing(path) as file:
        file.write(b"x")
    assert stat.S_IFMT(path.lstat().st_mode) == kind
    assert os.listdir(tmp_path) == ["target"]


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
