"""A table that is written and read again is the same, in every format."""

import csv
import gzip
import os
import re
import stat
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dyads.data.files import (
    DELIMITERS,
    HEAD,
    Dialect,
    as_ids,
    check_writable,
    find_dialect,
    open_writer,
    read_batches,
    read_table,
    replacing,
)
from dyads.errors import DialectWarning, InputError

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


NAMED = Dialect(header=True)
"""The first line holds names, even if these look like data, as made-up ones may."""


def written(folder, suffix, tables, dialect=None, quoted=True):
    path = str(Path(folder) / f"table.{suffix}")
    with open_writer(path, tables[0].column_names, dialect, quoted) as write:
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
        assert read_table(path, lambda names: types, NAMED).combine_chunks().equals(whole)
        wanted = whole.column_names[::-1][:2]
        parts = [part.select(wanted) for part in read_batches(path, types, wanted, NAMED)]
        assert pa.concat_tables(parts).combine_chunks().equals(whole.select(wanted).combine_chunks())


@example(["007", "7"])
@example(["7", "-7", "0"])
@example(["-0"])
@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1).map(str), min_size=1) | st.lists(TEXTS, min_size=1))
def test_ids_of_unknown_type_are_integers_where_all_are_and_text_else(texts):
    plain = all(re.fullmatch("-?[0-9]+", text) and str(int(text)) == text for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, "csv", [pa.table({"id": texts})])
        found = read_table(path, lambda names: dict.fromkeys(names), NAMED)["id"]
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


def test_a_file_that_only_its_owner_reads_is_replaced_by_one(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with replacing(path):
        modes = [stat.S_IMODE(part.stat().st_mode) for part in tmp_path.iterdir()]
    assert modes == [0o600, 0o600]


def test_a_new_file_has_the_mode_of_new_files(tmp_path):
    (tmp_path / "plain").write_bytes(b"x")
    with replacing(tmp_path / "new") as file:
        file.write(b"x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    for check in (check_writable, lambda path: replacing(path).__enter__()):
        with pytest.raises(InputError, match=r"The folder .*/none does not exist: create it, or choose another for x"):
            check(tmp_path / "none" / "x")


# ------------------------------------------------------------------------------------------------------ dialects

PAIRS = pa.table({"user": ["ann", "bób", "carl"], "item": ["7", "8", "9"], "label": ["x", "y", "x"]})


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", "::", "<>"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
@pytest.mark.parametrize("header", [True, False])
def test_a_table_comes_back_in_the_dialect_it_was_written_in(tmp_path, separator, encoding, header):
    dialect = Dialect("csv", separator, encoding, header)
    path = written(tmp_path, "dat", [PAIRS, PAIRS], dialect, quoted=False)
    text = Path(path).read_bytes().decode(encoding)
    assert separator.join(["bób", "8", "y"]) in text
    whole = pa.concat_tables([PAIRS, PAIRS]).combine_chunks()
    whole = whole if header else whole.rename_columns(["1", "2", "3"])
    types = dict.fromkeys(whole.column_names, pa.string())
    assert read_table(path, lambda names: types, dialect).combine_chunks().equals(whole)
    wanted = whole.column_names[:2]
    parts = pa.concat_tables(read_batches(path, types, wanted, dialect))
    assert parts.combine_chunks().equals(whole.select(wanted))


def test_a_separator_of_two_characters_may_be_cut_anywhere(tmp_path):
    lines = [f"{i}::{'a' * (i % 7)}::{i % 5}" for i in range(200_000)]
    (tmp_path / "ratings.dat").write_text("\n".join(lines))
    assert (tmp_path / "ratings.dat").stat().st_size > 2 * HEAD
    table = read_table(str(tmp_path / "ratings.dat"), dialect=Dialect("csv", "::", header=False))
    assert table["1"].to_pylist() == list(range(200_000))
    assert table["3"].to_pylist() == [i % 5 for i in range(200_000)]


@pytest.mark.parametrize("separator", ["::", "|||", "<=>", ":::"])
def test_a_separator_of_several_characters_may_be_cut_anywhere_outside_quotes(tmp_path, monkeypatch, separator):
    rows = [["a", "b:", "1"], [f"a{separator}x", 'say "b"', "2"], [f"{separator}\n", '"', "3"], ["c", 'd"e', "4"]]
    quoted = [[f'"{cell.replace(chr(34), chr(34) * 2)}"' if cell != 'd"e' else cell for cell in row] for row in rows]
    path = tmp_path / "t.dat"
    path.write_text("\n".join(separator.join(row) for row in [["user", "item", "label"], *quoted]))
    types = dict.fromkeys(["user", "item", "label"], pa.string())
    with monkeypatch.context() as patch:
        for head in (HEAD, *range(60, 80)):
            patch.setattr("dyads.data.files.HEAD", head)
            table = read_table(str(path), lambda names: types, Dialect("csv", separator))
            assert [list(row.values()) for row in table.to_pylist()] == rows
    again = written(tmp_path, "dat", [table], Dialect("csv", separator))
    assert read_table(again, lambda names: types, Dialect("csv", separator)).equals(table)


SNIFFED = {
    "semicolons": ("t.csv", "user;item;label\nann;7;x\nbob;8;y\n", "separated by semicolons"),
    "bars": ("t.csv", "user|item|label\nann|7|x\n", "separated by bars"),
    "tabs in a csv": ("t.csv", "user\titem\tlabel\nann\t7\tx, y\n", "separated by tabs"),
    "commas in a tsv": ("t.tsv", "user,item,label\nann,7,x\n", "separated by commas"),
    "suffix that tells nothing": ("t.data", "user\titem\tlabel\nann\t7\tx\n", "separated by tabs"),
    "no suffix": ("table", "user,item,label\nann,7,x\n", "separated by commas"),
    "spaces": ("t.txt", "user item label\nann 7 x\n", "separated by spaces"),
    "double colons": ("t.dat", "user::item::label\nann::7::x\n", "separated by double colons"),
    "comments": ("t.tsv", "# made up\n# by me\nuser\titem\tlabel\nann\t7\tx\n", "after 2 comment lines"),
    "one comment": ("t.csv", "# made up\nuser,item,label\nann,7,x\n", "after 1 comment line\\."),
    "utf-16": ("t.csv", "\ufeffuser,item,label\nann,7,x\n".encode("utf-16-le"), "encoded in utf-16"),
}


@pytest.mark.parametrize("name", SNIFFED)
def test_what_the_name_of_a_file_does_not_tell_is_found_and_told(tmp_path, name):
    path, content, sentence = SNIFFED[name]
    (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.warns(DialectWarning, match=sentence) as told:
        table = read_table(str(tmp_path / path))
    assert len(told) == 1
    assert table.column_names == ["user", "item", "label"]
    assert table["user"][0].as_py() == "ann"


PLAIN = {
    "column of text with spaces": ("t.csv", "full name\nann lee\nbob ray\n"),
    "separators in quotes": ("t.csv", '"a;b","c|d"\n1,2\n'),
    "semicolons in a few lines": ("t.csv", "name\na;b\nc\n"),
    "names that are years": ("t.csv", "user,2019,2020\nann,1,2\n"),
    "label that occurs beneath": ("t.csv", "user,item,x\nann,7,x\nbob,7,x\n"),
    "name that begins with a hash": ("t.csv", "#user,item\nann,7\n"),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.filterwarnings("error::dyads.errors.DialectWarning")
def test_a_table_that_is_what_its_name_tells_is_read_so(tmp_path, name):
    path, content = PLAIN[name]
    (tmp_path / path).write_text(content)
    assert len(read_table(str(tmp_path / path))) == content.count("\n") - 1


HEADERLESS = {
    "numbers": "196\t242\t3\t881250949\n186\t302\t3\t891717742\n",
    "one line of numbers": "1\t2\n",
    "text that occurs again": "ann\tlamp\tyes\nbob\tlamp\tno\nann\tdesk\tyes\n",
    "text and numbers": "ann\t1.5\t-2e3\nann\t2.5\t1\n",
}


@pytest.mark.parametrize("name", HEADERLESS)
def test_a_first_line_of_data_is_not_taken_for_names(tmp_path, name):
    path, content = tmp_path / "t.tsv", HEADERLESS[name]
    path.write_text(content)
    with pytest.raises(InputError, match=r"first line of .*t\.tsv looks like data \(.*--no-header"):
        read_table(str(path))
    table = read_table(str(path), dialect=Dialect(header=False))
    assert len(table) == content.count("\n")
    assert table.column_names == [str(i + 1) for i in range(content.split("\n")[0].count("\t") + 1)]


def test_what_is_found_in_a_file_is_a_dialect(tmp_path):
    (tmp_path / "t.csv").write_text("user;item\nann;7\n")
    with pytest.warns(DialectWarning):
        assert find_dialect(str(tmp_path / "t.csv")) == Dialect("csv", ";", "utf-8", True)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", "user,item\nbób,7\n".encode("latin-1"), "not encoded in UTF-8: .*--encoding latin-1"),
        ("t.csv", b"user,item\n" + b"ann,7\n" * 200_000 + b"b\xf3b,7\n", "not encoded in UTF-8: .*--encoding latin-1"),
        ("t.xyz", b"\x00\x01\x02", "format of .*t.xyz is unknown.*--format"),
        ("t.xlsx", b"PK\x03\x04\x14\x00", "t.xlsx is a spreadsheet.*Save it as CSV"),
        ("t.xyz", b"column\n", "format of .*t.xyz is unknown.*--format"),
        ("t.csv", b"# a comment\n", "t.csv is empty"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_table(str(tmp_path / name))


def test_columns_without_a_name_are_read_as_they_are(tmp_path):
    (tmp_path / "t.csv").write_text("# CR\r# LF\nuser,item,,\nann,7,,x\n")
    with pytest.warns(DialectWarning, match="after 2 comment lines"):
        table = read_table(str(tmp_path / "t.csv"), lambda names: dict.fromkeys(names, pa.string()))
    assert table.column_names == ["user", "item", "", ""]
    assert [column[0].as_py() for column in table.columns] == ["ann", "7", None, "x"]


def test_a_file_in_another_encoding_than_was_told_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("user,item\nann,7\n")
    with pytest.raises(InputError, match="t.csv is not encoded in UTF-16"):
        read_table(str(tmp_path / "t.csv"), dialect=Dialect(encoding="utf-16"))


def test_a_file_that_is_cut_off_is_named(tmp_path):
    packed = gzip.compress(b"user,item\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(50_000)))
    (tmp_path / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"cut\.csv\.gz cannot be read \(Truncated"):
        read_table(str(tmp_path / "cut.csv.gz"))


@pytest.mark.parametrize(
    "wrong", [{"format": "xls"}, {"separator": ""}, {"separator": "\n"}, {"encoding": "latin-99"}, {"encoding": "hex"}]
)
def test_a_dialect_that_cannot_be_is_refused(wrong):
    with pytest.raises(InputError, match=f"Dialect got {next(iter(wrong))}="):
        Dialect(**wrong)


def test_files_that_are_not_text_are_known_by_their_content(tmp_path):
    for suffix in ("parquet", "arrow"):
        path = Path(written(tmp_path, suffix, [PAIRS])).rename(tmp_path / f"{suffix}.bin")
        with pytest.warns(DialectWarning, match=f"read as {suffix}"):
            assert read_table(str(path)).equals(PAIRS)


def test_a_pipe_is_read_once(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    lines = "user,item\n" + "".join(f"u{i},{i}\n" for i in range(300_000))
    thread = threading.Thread(target=lambda: fifo.write_text(lines))
    thread.start()
    parts = pa.concat_tables(read_batches(str(fifo), {}, ["item"], Dialect(format="csv")))
    thread.join()
    assert parts["item"].to_pylist() == list(range(300_000))


def test_a_pipe_of_compressed_text_is_unpacked(tmp_path):
    fifo = tmp_path / "pipe.csv.gz"
    os.mkfifo(fifo)
    lines = "user,item\n" + "".join(f"u{i},{i}\n" for i in range(300_000))
    thread = threading.Thread(target=lambda: fifo.write_bytes(gzip.compress(lines.encode(), 1)))
    thread.start()
    table = read_table(str(fifo))
    thread.join()
    assert table["item"].to_pylist() == list(range(300_000))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("read", [read_table, lambda path: list(read_batches(path, {}, ["user"])), find_dialect])
def test_a_file_that_was_read_is_closed(tmp_path, read):
    path = written(tmp_path, "csv", [PAIRS], Dialect(encoding="utf-16"))
    with pytest.warns(DialectWarning, match="utf-16"):
        read(path)
    assert not [name for name in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{name}") == path]


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_offsets_and_bytes_that_are_no_text_are_refused(tmp_path, suffix):
    offsets, text = np.array([0, 2, 1, 4], np.int32), b"abc\xff"
    column = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    table = pa.table({"user": column, "item": [1, 2, 3]})
    if suffix == "arrow":
        with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
            writer.write_table(table)
    else:
        bad = pa.Array.from_buffers(
            pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 3, 4], np.int32)), pa.py_buffer(text)]
        )
        pa.parquet.write_table(table.set_column(0, "user", bad), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"cannot be read as {suffix}"):
        read_table(str(tmp_path / f"t.{suffix}"))
