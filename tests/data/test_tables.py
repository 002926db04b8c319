"""Any table gives the same columns; what cannot be an id is refused with its name."""

import datetime
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from dyads.data.codes import Vocabulary, encode_labels, numeric_values
from dyads.data.dyads import Dyads, narrow
from dyads.data.tables import column_name, named_values, read_column
from dyads.errors import DtypeError, InputError


def read_columns(table):
    return {name: read_column(values, f"column {name!r}") for name, values in named_values(table).items()}


DATA = {"user": ["ann", "bob", "ann"], "item": [3, 1, 2]}


@pytest.mark.parametrize(
    "table",
    [
        DATA,
        pd.DataFrame(DATA),
        pd.DataFrame(DATA).astype({"user": object, "item": "int32"}),
        pd.DataFrame(DATA).astype({"user": "category", "item": "Int64"}),
        pd.DataFrame(DATA).convert_dtypes(dtype_backend="pyarrow"),
        pd.concat([pd.DataFrame(DATA)[:1], pd.DataFrame(DATA)[1:]]).convert_dtypes(dtype_backend="pyarrow"),
        pd.concat([pd.DataFrame(DATA)[:1], pd.DataFrame(DATA)[1:]]),
        pl.DataFrame(DATA),
        pl.DataFrame(DATA).with_columns(pl.col("user").cast(pl.Categorical), pl.col("item").cast(pl.UInt8)),
        pa.table(DATA),
        pa.concat_tables([pa.table(DATA).slice(0, 1), pa.table(DATA).slice(1)]),
        pa.RecordBatch.from_pydict(DATA),
        {"user": np.array(DATA["user"]), "item": pd.Series(DATA["item"])},
    ],
    ids=lambda table: type(table).__module__,
)
def test_every_kind_of_table_gives_the_same_columns(table):
    columns = read_columns(table)
    assert list(columns) == ["user", "item"]
    assert columns["user"].to_pylist() == DATA["user"]
    assert columns["user"].type == pa.large_string()
    assert columns["item"].to_pylist() == DATA["item"]
    assert columns["item"].type == pa.int64()


def test_arrays_and_lists_have_numbered_columns():
    pairs = np.array([[1, 7], [2, 8]])
    for table in (pairs, pairs.tolist(), [tuple(pair) for pair in pairs.tolist()], pairs.astype(np.uint16)):
        columns = read_columns(table)
        assert {name: column.to_pylist() for name, column in columns.items()} == {"0": [1, 2], "1": [7, 8]}


def test_a_list_of_rows_keeps_each_columns_type():
    columns = read_columns([["62", 7], ["63", 8]])
    assert columns["0"].to_pylist() == ["62", "63"]
    assert columns["1"].to_pylist() == [7, 8]


@pytest.mark.parametrize(
    "values",
    [
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
        pd.to_datetime(["2020-01-01", "2021-05-05"]),
        [b"\x00\x01", b"\x02"],
        [True, False],
        [1.5, 2.5],
        np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
        [2**63, 2**63 + 1],
        [Decimal("1.5"), Decimal("22.25")],
    ],
    ids=str,
)
def test_ids_are_anything_an_arrow_column_can_hold(values):
    column = read_column(values, "id")
    vocabulary, codes = Vocabulary.of(column, "id")
    assert codes.tolist() == [0, 1]
    assert vocabulary.encode(read_column(values[::-1], "id")).tolist() == [1, 0]


def test_uuids_are_bytes():
    ids = [uuid.UUID(int=5), uuid.UUID(int=7)]
    assert read_column(ids, "id").to_pylist() == [one.bytes for one in ids]


def test_nanosecond_timestamps_are_not_rounded_together():
    stamps = np.array([1, 2], dtype="datetime64[ns]")
    vocabulary, codes = Vocabulary.of(read_column(stamps, "id"), "id")
    assert codes.tolist() == [0, 1]
    coarse = read_column(np.array([0], dtype="datetime64[us]"), "id")
    assert vocabulary.encode(coarse).tolist() == [-1]


def test_numbers_may_mix_only_where_they_are_values():
    assert read_column([1, 0.5], "sample_weight", numbers_mix=True).to_pylist() == [1.0, 0.5]
    assert encode_labels([1, 1.5, 2])[0].tolist() == [1.0, 1.5, 2.0]
    assert read_column(np.array([0.0, -0.0]), "id").dictionary_encode().dictionary.to_pylist() == [0.0]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["62", 7], "mixes types"),
        ([1, 2.5], "mixes types"),
        ([True, 1], "mixes types"),
        (np.array(["62", 7], dtype=object), "mixes types"),
        (pd.Series(["62", 7], dtype=object), "mixes types"),
        ([None, "a"], "1 missing"),
        ([1.0, np.nan], "missing|NaN"),
        (np.array([1.0, np.inf]), "infinite"),
        (pd.Series([1, None], dtype="Int64"), "1 missing"),
        (np.ma.array([1, 2], mask=[False, True]), "1 missing"),
        (["a", pd.NA], "1 missing"),
        ([pd.Timestamp("2020-01-01"), pd.NaT], "1 missing"),
        ([[1, 2], [3]], "expected plain ids"),
        (np.array([1j, 2]), "Complex data not supported"),
    ],
    ids=str,
)
def test_what_cannot_be_an_id_is_refused_and_named(values, says):
    with pytest.raises(InputError, match=says) as caught:
        read_columns({"user": values, "item": [1, 2]})
    assert "Column 'user'" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (scipy.sparse.dok_array((3, 3)), "sparse"),
        (scipy.sparse.csr_matrix((3, 3)), "sparse"),
        (np.arange(4), "expected 2D array"),
        ([1, 2, 3], "expected 2D array"),
        ([[1, 2], [3]], "different lengths"),
        (pl.LazyFrame(DATA), "collect"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "distinct"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_table_is_refused(table, says):
    with pytest.raises(InputError, match=says):
        read_columns(table)


def test_an_id_must_keep_its_type():
    vocabulary, _ = Vocabulary.of(read_column([62, 63], "user"), "user")
    assert vocabulary.encode(read_column(np.array([63, 5], dtype=np.uint8), "user")).tolist() == [1, -1]
    assert vocabulary.encode(read_column([2**63, 62], "user")).tolist() == [-1, 0]
    for other in (["62"], [62.0], [True], [b"62"]):
        with pytest.raises(DtypeError, match="'user'.*int64"):
            vocabulary.encode(read_column(other, "user"))


def test_unsigned_ids_beyond_int64_compare_with_small_ones():
    vocabulary, _ = Vocabulary.of(read_column([2**63, 5], "user"), "user")
    assert vocabulary.encode(read_column([5, -1], "user")).tolist() == [1, -1]


def test_codes_are_32_bit_when_they_fit_and_never_overflow():
    assert narrow(np.array([0, 5]), 6).dtype == np.int32
    assert narrow(np.array([0, 2**31 - 1]), 2**31 - 1 + 1).dtype == np.int64
    with pytest.raises(InputError, match="expected 0 to 4"):
        narrow(np.array([0, 5]), 5)
    with pytest.raises(InputError, match="from -1"):
        narrow(np.array([-1, 2]), 5)


def test_counts_are_sums_of_weights():
    dyads = Dyads(np.array([0, 0, 2]), np.array([1, 1, 0]), np.array([0, 1, 0]), np.array([1.0, 0.5, 2.0]), 3, 2, 2)
    assert dyads.row_counts.tolist() == [1.5, 0, 2]
    assert dyads.col_counts.tolist() == [2, 1.5]
    assert dyads.total_weight == 3.5


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (["b", "a", "b"], ["a", "b"]),
        ([3, 1, 3], [1, 3]),
        ([True, False, True], [False, True]),
        ([0.5, 4.5, 0.5], [0.5, 4.5]),
        (pd.Series(["x", "y", "x"], dtype="category"), ["x", "y"]),
        (pl.Series([2, 1, 2]), [1, 2]),
    ],
    ids=str,
)
def test_labels_are_sorted_classes(y, classes):
    found, codes = encode_labels(y)
    assert found.tolist() == classes
    assert found[codes].tolist() == list(y)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([1, 1, 1], "at least two"),
        ([1.0, np.nan], "NaN|missing"),
        (["a", None], "missing"),
        (["a", 1], "mixes types"),
        (["a", "a\0"], "differ only in trailing NUL characters"),
        (np.random.default_rng(0).normal(size=100), "continuous"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "type date32"),
    ],
    ids=str,
)
def test_what_is_no_label_is_refused(y, says):
    with pytest.raises(InputError, match=says):
        encode_labels(y)


def test_labels_that_are_nearly_all_different_are_refused():
    with pytest.raises(InputError, match="Got 12,000 distinct labels for 12,000 dyads"):
        encode_labels(np.arange(12_000))
    assert len(encode_labels(np.arange(30_000) % 12_000)[0]) == 12_000


@pytest.mark.parametrize(
    "values", [["\ud800", "b"], np.array(["\ud800", "b"]), pd.Series(["\ud800", "b"], dtype=object)], ids=type
)
def test_text_that_is_no_text_is_refused(values):
    with pytest.raises(InputError, match="Ids holds text that is not valid Unicode.*Decode it"):
        read_column(values, "ids")
    with pytest.raises(InputError, match="The column name .* is not valid Unicode.*Rename"):
        named_values({"\ud800": [1]})


def test_ordered_labels_have_numeric_values():
    assert numeric_values(np.array([False, True])).tolist() == [0, 1]
    assert numeric_values(np.array(["bad", "good"])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pd.Series([1], name="stars"), "stars"),
        (pl.Series("stars", [1]), "stars"),
        (pd.Series([1], name=3), "3"),
        (pd.Series([1]), None),
        (pl.Series([1]), None),
        (pa.chunked_array([[1]]), None),
        (np.array([1]), None),
        ([1], None),
        (None, None),
    ],
)
def test_a_series_may_have_a_name(values, name):
    assert column_name(values) == name


def test_a_text_is_not_cut_at_a_nul_character():
    texts = ["a\0b", "a\0c", "\0d", "e"]
    assert read_column(np.array(texts), "x").to_pylist() == texts
