"""Features of ids: any table gives the same matrix, what was learnt is kept, and a refusal names its column or id."""

import copy
import datetime
import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import TruncatedSVD
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from dyads.data.features import Encoder, Features, aligned
from dyads.errors import DtypeError, InputError

DATA = {
    "user": ["ann", "bob", "cid", "dan"],
    "age": [1.0, None, 3.0, 4.0],
    "gender": ["F", "M", None, "F"],
    "smokes": [True, False, False, True],
    "since": [datetime.date(2020, 1, day) for day in (1, 3, 5, 9)],
    "genres": [["war", "art", "war"], [], None, ["sci"]],
}
NAMES = ["age", "age (missing)", "gender=F", "gender=M", "gender (missing)", "smokes=False", "smokes=True", "since"]
NAMES += ["genres=art", "genres=war", "genres (missing)"]
# BlockPrior from the first three lines: age has mean 2 and deviation 1, since mean 3 January; dan's genre is unknown.
DAY = 1 / np.sqrt(8 / 3)
EXPECTED = np.array(
    [
        [-1, 0, 1, 0, 0, 0, 1, -2 * DAY, 1, 1, 0],
        [0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 1, 1, 0, 2 * DAY, 0, 0, 1],
        [2, 0, 1, 0, 0, 0, 1, 6 * DAY, 0, 0, 0],
    ]
)


def ids(*values):
    return pa.array(values, type=pa.large_string() if isinstance(values[0], str) else None)


def learnt(table, **options):
    features = Features(table, **options)
    return Encoder.learn(features, features.ids)


@pytest.mark.parametrize(
    "table",
    [
        DATA,
        pd.DataFrame(DATA),
        pd.DataFrame(DATA, index=[7, 7, 8, 9]),
        pd.DataFrame(DATA).convert_dtypes(),
        pd.DataFrame(DATA).convert_dtypes(dtype_backend="pyarrow"),
        pd.DataFrame(DATA).astype({"gender": "category", "since": "datetime64[ns]", "age": "Float32"}),
        pl.DataFrame(DATA),
        pl.DataFrame(DATA).with_columns(pl.col("gender").cast(pl.Enum(["X", "M", "F"])), pl.col("age").cast(pl.Int8)),
        pl.DataFrame(DATA).with_columns(pl.col("age").cast(pl.Decimal(20, 12))),
        pl.DataFrame(DATA).with_columns(pl.col("genres").cast(pl.List(pl.Categorical))),
        pa.table(DATA),
        pa.concat_tables([pa.table(DATA).slice(0, 1), pa.table(DATA).slice(1)]),
        pa.table(DATA).set_column(2, "gender", pa.array(DATA["gender"]).dictionary_encode()),
        DATA | {"age": np.array([1, np.nan, 3, 4]), "gender": pd.Categorical(DATA["gender"])},
    ],
    ids=lambda table: type(table).__module__,
)
def test_every_kind_of_table_gives_the_same_matrix(table):
    features = Features(table)
    encoder = Encoder.learn(features, ids("cid", "ann", "bob"))
    matrix = encoder.encode(features)
    assert encoder.names == NAMES
    assert (matrix.format, matrix.dtype) == ("csr", np.float64)
    np.testing.assert_allclose(matrix.toarray(), EXPECTED)
    assert repr(features) == "Features(4 ids, 5 columns)"
    assert len(features) == 4


def test_an_absent_entity_misses_every_feature():
    encoder = Encoder.learn(Features(DATA), ids("ann", "bob", "cid"))
    assert encoder.absent_line().toarray().tolist() == [[0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]]
    assert encoder.encode_columns({name: [None] for name in DATA if name != "user"}).toarray().tolist() == (
        encoder.absent_line().toarray().tolist()
    )


def test_what_no_learnt_line_misses_has_no_indicator_and_what_all_miss_nothing_else():
    features = Features({"user": ["a", "b", "c"], "age": [None, None, 3], "job": [None, None, "x"], "n": [5, 5, 6]})
    encoder = Encoder.learn(features, ids("a", "b"))
    assert encoder.names == ["age (missing)", "job (missing)", "n"]
    # n is constant where it is learnt: it is divided by one.
    assert encoder.encode(features).toarray().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert learnt({"user": ["a", "b"], "x": [0.1, 0.1]}).encode_columns({"x": [0.1, 1.1]}).toarray() == pytest.approx(
        np.array([[0], [1]])
    )


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pd.Series([10, 9, 10], dtype="category"), ["c=9", "c=10"]),
        (pl.Series([[2, 1], [], [2]]), ["c=1", "c=2"]),
        (pd.Categorical([0.5, -1, 0.5]), ["c=-1.0", "c=0.5"]),
        (pa.array([2**63, 1, 1], pa.uint64()).dictionary_encode(), ["c=1", f"c={2**63}"]),
        (["é", "Z", "a"], ["c=Z", "c=a", "c=é"]),
        ([[True], [False, True], None], ["c=False", "c=True", "c (missing)"]),
        ([[], [], []], []),
        ([datetime.timedelta(days=1), None, datetime.timedelta(days=3)], ["c", "c (missing)"]),
        ([1, 2.5, 3], ["c"]),
    ],
    ids=str,
)
def test_categories_of_any_type_are_sorted_and_survive_json(values, names):
    encoder = learnt({"id": [1, 2, 3], "c": values})
    assert encoder.names == names
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json(), allow_nan=False)))
    assert again == encoder
    before, after = encoder.encode_columns({"c": values}), again.encode_columns({"c": values})
    assert (before != after).nnz == 0


def test_an_encoder_of_a_table_survives_json():
    encoder = Encoder.learn(Features(DATA), ids("ann", "bob", "cid"))
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    assert (again.encode(Features(DATA)) != encoder.encode(Features(DATA))).nnz == 0


def test_columns_are_found_by_name_and_any_numbers_are_numbers():
    encoder = Encoder.learn(Features(DATA), ids("ann", "bob", "cid"))
    others = Features({"age": [3, 2], "who": ["x", "y"], **{n: DATA[n][:2] for n in list(DATA)[:1:-1]}}, "who")
    assert encoder.encode(others)[:, [0]].toarray().tolist() == [[1], [0]]
    text = learnt({"id": [1, 2], "c": ["a", "b"]})
    assert text.encode_columns({"c": pd.Categorical(["b", "z"])}).toarray().tolist() == [[0, 1], [0, 0]]
    empty = learnt({"id": [1, 2], "c": [["a"], ["b"]]})
    assert empty.encode_columns({"c": [[], []]}).nnz == 0


def test_columns_of_dyads_are_learnt_from_all_lines():
    encoder = Encoder.learn_columns({"day": np.array([1.0, 3.0]), "device": pl.Series(["tv", "web"])})
    assert encoder.names == ["day", "device=tv", "device=web"]
    assert encoder.encode_columns({"device": ["web"], "day": [5]}).toarray().tolist() == [[3, 0, 1]]
    with pytest.raises(InputError, match="Column 'day' has the value inf at position 1"):
        encoder.encode_columns({"device": ["web", "web"], "day": [5, np.inf]})
    with pytest.raises(InputError, match="Column 'day' has only missing values"):
        Encoder.learn_columns({"day": [None, None]})


def test_sparse_stays_sparse():
    n = 200_000
    codes = np.random.default_rng(0).permutation(n) % 100_000
    features = Features({"id": np.arange(n), "city": pa.array(codes).cast(pa.string())})
    encoder = Encoder.learn(features, features.ids)
    matrix = encoder.encode(features)
    assert matrix.shape == (n, 100_000)
    assert matrix.nnz == n
    assert matrix.indices.dtype == np.int32
    assert encoder.names[matrix[[17]].indices[0]] == f"city={codes[17]}"


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.coo_matrix, np.asarray])
def test_a_matrix_is_taken_as_it_is(kind):
    cells = np.array([[0, 2.5], [1, 0], [0, 0]])
    features = Features((["a", "b", "c"], kind(cells)))
    encoder = Encoder.learn(features, ids("a"))
    assert repr(features) == "Features(3 ids, 2 columns)"
    assert features.columns == {}
    assert encoder.names == ["0", "1"]
    assert encoder.encode(features).toarray().tolist() == cells.tolist()
    assert encoder.absent_line().toarray().tolist() == [[0, 0]]
    assert Encoder.from_json(encoder.to_json()) == encoder
    with pytest.raises(InputError, match="have 1 columns, but the model was fitted on 2"):
        encoder.encode(Features((["a"], kind(cells[:1, :1]))))
    with pytest.raises(InputError, match="are a table, but were a matrix"):
        encoder.encode(Features(DATA))
    with pytest.raises(InputError, match="are a matrix, but were a table"):
        learnt(DATA).encode(features)


def test_each_id_gets_its_line_and_the_absent_one_otherwise():
    features = Features({"user": ["a", "b", "c"], "age": [1, 3, None]}, absent="missing")
    encoder = Encoder.learn(features, features.ids)
    found = aligned(encoder, features, ids("c", "eve", "a"), 3, "row")
    assert found.format == "csr"
    assert found.toarray().tolist() == [[0, 1], [0, 1], [-1, 0]]
    strict = Features({"user": ["a", "b", "c"], "age": [1, 3, None]})
    assert aligned(encoder, strict, ids("c", "eve", "a"), 1, "row").toarray().tolist() == found.toarray().tolist()
    assert aligned(encoder, strict, ids("a").slice(1), 0, "row").shape == (0, 2)


def test_an_id_with_labels_must_have_features():
    features = Features({"user": ["a"], "age": [1]})
    encoder = Encoder.learn(features, ids("a"))
    says = (
        r"The row id 'bob' has labels but is not in the features of rows, SideInformation\(row=...\) \(2 such ids\): "
        r"expected features of every id with labels\. Add them, or pass Features\(table, absent='missing'\)\."
    )
    with pytest.raises(InputError, match=says):
        aligned(encoder, features, ids("a", "bob", "cid", "dan"), 3, "row")
    with pytest.raises(InputError, match="The column id 'bob' has labels but is not in the features of columns"):
        aligned(encoder, features, ids("a", "bob"), 2, "col")
    with pytest.raises(InputError, match="None of the 2 ids of the data is in the features"):
        Encoder.learn(features, ids("bob", "cid"))


def test_ids_must_keep_their_type():
    features = Features({"user": ["62"], "age": [1]})
    encoder = Encoder.learn(features, ids("62"))
    with pytest.raises(DtypeError, match="ids such as '62', but the data has ids such as 62"):
        aligned(encoder, features, pa.array([62]), 1, "row")
    with pytest.raises(DtypeError, match="expected ids of the same type"):
        Encoder.learn(features, pa.array([62]))


BASE = {"user": ["ann", "bob"], "age": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("table", "options", "says"),
    [
        (
            BASE | {"user": ["ann", "ann"]},
            {},
            r"The id 'ann' occurs more than once in the features \(column 'user', used as the ids",
        ),
        (BASE | {"user": ["ann", None]}, {}, "Column 'user', used as the ids .*, has 1 missing"),
        (BASE | {"age": [1, np.inf]}, {}, "Column 'age' has the value inf for the id 'bob'"),
        (BASE | {"age": [-1e200, 1]}, {}, "Column 'age' has the value -1e.200 for the id 'ann'"),
        (BASE | {"age": [[1.0], [2.0, np.inf]]}, {}, "Column 'age' has the value inf for the id 'bob'"),
        (BASE | {"age": [1, 2, 3]}, {}, "Column 'age' has 3 values, but there are 2 ids"),
        (BASE | {"age": [1, "x"]}, {}, "Column 'age' mixes types"),
        (BASE | {"age": [b"x", b"y"]}, {}, "Column 'age' holds values of type large_binary"),
        (BASE | {"age": [{"a": 1}, None]}, {}, "Column 'age' holds a dict"),
        (BASE | {"age": [[[1]], None]}, {}, "Column 'age' holds lists of lists"),
        (
            BASE | {"age": pd.Categorical(pd.to_datetime(["2020", "2021"]))},
            {},
            "Column 'age' holds values of type di",
        ),
        ({"user": ["ann"]}, {}, "ids but no feature"),
        ({}, {}, "no column"),
        (BASE, {"id": "usr"}, r"no column 'usr': expected one of \['user', 'age'\]"),
        (BASE, {"absent": "rais"}, "absent='rais' is not known.*did you mean 'raise'"),
        (BASE, {"transformer": StandardScaler()}, "type dict with a transformer: .* Convert it to a pandas or polars"),
        (pa.table(BASE), {"transformer": StandardScaler()}, "type Table with a transformer"),
        (BASE, {"transformer": StandardScaler}, "is not an object with fit and transform"),
        ((["a"], np.ones((2, 1))), {}, "Got 1 ids but a matrix of 2 lines"),
        ((["a", "a"], np.ones((2, 1))), {}, "The id 'a' occurs more than once in the features:"),
        ((["a"], np.ones((1, 0))), {}, "ids but no feature"),
        ((["a"], np.array([["x"]])), {}, "dtype <U1: expected numbers"),
        ((["a"], np.ones((1, 1))), {"id": "user"}, "id='user' names a column, but got a pair"),
        ((["a", "b"], scipy.sparse.coo_array([[0, 1], [0, np.nan]])), {}, "value nan in column 1 for the id 'b'"),
        ((["a", "b"], np.array([[np.inf, 1], [0, 1]])), {}, "value inf in column 0 for the id 'a'"),
        (scipy.sparse.eye_array(2), {}, r"sparse matrix without ids: expected a pair \(ids, matrix\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_features_is_refused_and_named(table, options, says):
    with pytest.raises(InputError, match=says):
        Features(table, **options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"age": ["x", "y"]}, "Column 'age' holds text but held numbers when the model was fitted"),
        ({"age": pd.Categorical([1, 2])}, "Column 'age' holds categories that are integers but held numbers"),
        ({"age": DATA["since"][:2]}, "Column 'age' holds dates but held numbers"),
        ({"job": [1, 2]}, "Column 'job' holds numbers but held text"),
        ({"tags": [[1], []]}, "Column 'tags' holds lists of integers but held lists of text"),
        ({"agee": [1, 2]}, r"The features also have the column 'agee': expected the columns \['age', 'job', 'tags'\]"),
    ],
)
def test_other_columns_than_those_learnt_are_refused(change, says):
    base = {"user": ["ann", "bob"], "age": [1, 2], "job": ["x", "y"], "tags": [["a"], []]}
    encoder = learnt(base)
    with pytest.raises(InputError, match=says):
        encoder.encode(Features(base | change))
    with pytest.raises(InputError, match="The features do not have the column 'age'"):
        encoder.encode_columns({"job": ["x"], "tags": [[]]})


def test_features_are_shared_and_never_change():
    features = Features(DATA, absent="missing")
    assert clone(features) is features
    assert copy.copy(features) is features
    assert copy.deepcopy(features) is features
    assert features == features
    assert features != Features(DATA, absent="missing")
    with pytest.raises(AttributeError, match="immutable: cannot set 'absent'"):
        features.absent = "raise"
    again = pickle.loads(pickle.dumps(features))
    assert again.ids.equals(features.ids)
    assert again.columns == features.columns
    assert again.absent == "missing"
    given = scipy.sparse.csr_array(np.eye(2))
    kept = Features((["a", "b"], given))
    given.data[:] = 7
    assert kept.matrix.toarray().tolist() == [[1, 0], [0, 1]]


def test_what_is_no_features_yet_is_wrapped_like_others():
    features = Features(pd.DataFrame(DATA)[["age", "user"]], "user", absent="missing", transformer=SimpleImputer())
    assert Features.of(features) is features
    assert Features.of(DATA).absent == "raise"
    encoder = Encoder.learn(features, features.ids)
    other = Features.of(pd.DataFrame(DATA)[["age", "user"]], like=encoder)
    assert (other.id, other.transformer) == ("user", encoder.transformer)
    assert Features.of((["a"], np.ones((1, 1))), like=Encoder.learn(Features(DATA), features.ids)).id is None


def test_an_id_that_is_absent_from_the_table_teaches_that_all_may_be_missing():
    features = Features(BASE, absent="missing")
    encoder = Encoder.learn(features, ids(*BASE["user"], "eve"))
    assert encoder.names == ["age", "age (missing)"]
    assert aligned(encoder, features, ids("eve"), 1, "row").toarray().tolist() == [[0, 1]]


def test_features_do_not_follow_the_table_they_were_made_of():
    table = pd.DataFrame({"user": np.arange(3), "age": np.arange(3)})
    features = Features(table)
    table.loc[0, "age"], table.loc[1, "user"] = 99, 0
    assert features.columns["age"].to_pylist() == features.ids.to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_transformer_is_copied_and_fitted_on_the_known_ids(kind):
    transformer = make_column_transformer(
        (StandardScaler(), ["age"]), (OneHotEncoder(handle_unknown="ignore"), ["job"]), sparse_threshold=1
    )
    table = kind({"age": [1.0, 3.0, 4.0], "user": ["a", "b", "c"], "job": ["x", "y", "z"]})
    features = Features(table, "user", transformer=transformer)
    encoder = Encoder.learn(features, ids("b", "a"))
    assert not hasattr(transformer, "transformers_")
    assert encoder.names == ["standardscaler__age", "onehotencoder__job_x", "onehotencoder__job_y"]
    assert encoder.encode(features).toarray().tolist() == [[-1, 1, 0], [1, 0, 1], [2, 0, 0]]
    assert encoder.absent_line().toarray().tolist() == [[0, 0, 0]]
    assert aligned(pickle.loads(pickle.dumps(encoder)), features, ids("c", "?"), 1, "row").toarray()[0, 0] == 2
    with pytest.raises(InputError, match="fitted on features with a transformer, but these have none"):
        encoder.encode(Features(table, "user"))
    with pytest.raises(InputError, match="are given with a transformer, but were a table"):
        learnt(table, id="user").encode(features)


def test_a_transformer_is_not_in_a_model_file():
    encoder = learnt(pd.DataFrame(BASE), transformer=StandardScaler())
    value = encoder.to_json()
    assert value == {"transformer": "StandardScaler", "names": ["age"], "id": "user", "absent": "raise"}
    again = Encoder.from_json(json.loads(json.dumps(value)))
    assert again.to_json() == value
    assert again.names == ["age"]
    assert again.absent_line().toarray().tolist() == [[0]]
    with pytest.raises(InputError, match="encoded by a StandardScaler, which a model file does not hold"):
        again.encode(Features(pd.DataFrame(BASE), transformer=StandardScaler()))


def test_a_transformer_may_take_a_matrix_and_have_no_names():
    matrix = scipy.sparse.random_array((20, 9), density=0.5, rng=0, format="coo")
    encoder = learnt((np.arange(20), matrix), transformer=TruncatedSVD(2, random_state=0))
    assert encoder.names == ["truncatedsvd0", "truncatedsvd1"]
    frame = pd.DataFrame({0: [1, 2], 1: [3.0, 4.0]})
    nameless = learnt(frame, transformer=make_pipeline(FunctionTransformer(lambda x: x * 2)))
    assert nameless.names == ["0"]


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        (lambda table: table.to_numpy() * np.nan, "FunctionTransformer returned NaN or infinite values"),
        (lambda table: np.array([["x"], ["y"]]), "FunctionTransformer returned values that are not numbers"),
        (lambda table: np.ones(2), r"FunctionTransformer returned the shape \(2,\)"),
    ],
)
def test_what_a_transformer_gives_must_be_finite_numbers(gives, says):
    with pytest.raises(InputError, match=says):
        learnt(pd.DataFrame(BASE), transformer=FunctionTransformer(gives))


def test_nothing_is_learnt_from_a_column_without_values_but_one_line_may_miss_it():
    empty = BASE | {"age": [None, None]}
    with pytest.raises(InputError, match="Column 'age' has only missing values"):
        Encoder.learn(Features(empty), Features(empty).ids)
    encoder = Encoder.learn(Features(BASE), Features(BASE).ids)
    assert encoder.encode(Features({"user": ["new"], "age": [None]})).nnz == 0
