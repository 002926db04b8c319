"""The best columns for a row: exact, without those excluded, in flat memory."""

import itertools
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dyads
from dyads import SGD, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational
from dyads.errors import InputError, UnknownIdError, UnknownIdWarning
from shop import WITH, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
MODEL = LFLOrdinal(rank=2, l2=0.3, random_state=0).fit(X, STARS)


def test_the_table_is_the_sorted_predictions():
    rows = ["u3", "u7"]
    found = MODEL.recommend(rows, n=5)
    assert found.columns.tolist() == ["user", "item", "rank", "value"]
    for row in rows:
        every = pd.DataFrame({"user": row, "item": MODEL.col_ids_})
        mean = pd.Series(MODEL.predict_mean(every), index=MODEL.col_ids_).sort_values(ascending=False)
        mine = found[found["user"] == row]
        assert mine["item"].tolist() == mean.index[:5].tolist()
        np.testing.assert_allclose(mine["value"], mean.iloc[:5])
        assert mine["rank"].tolist() == [1, 2, 3, 4, 5]


def test_by_a_label_with_exclusions_and_candidates():
    seen = X[X["user"] == "u3"]
    found = MODEL.recommend(pd.Series(["u3"]), n=50, by=3, exclude=X, candidates=["i1", "i2", "i3", "i4", "i5"])
    assert isinstance(found, pd.DataFrame)
    left = {"i1", "i2", "i3", "i4", "i5"} - set(seen["item"])
    assert set(found["item"]) == left
    np.testing.assert_allclose(found["value"], MODEL.predict_proba(found)[:, 2])
    assert (np.diff(found["value"]) <= 0).all()
    again = MODEL.recommend(pl.Series(["u3", "u4", "u3"]), n=2)
    assert again["user"].to_list() == ["u3", "u3", "u4", "u4", "u3", "u3"]


LISTED = {name: column.tolist() for name, column in X[:99].items()}


@pytest.mark.parametrize(
    ("trained_on", "kind"),
    [(X[:99], pd.DataFrame), (pl.from_pandas(X[:99]), pl.DataFrame), (pa.table(LISTED), pa.Table)],
)
def test_tables_come_back_in_the_kind_of_the_fit(trained_on, kind, tmp_path):
    model = LFLOrdinal(rank=0, solver="point").fit(trained_on, STARS[:99])
    model.save(tmp_path / "model.dyads")
    for known in (model, dyads.load(tmp_path / "model.dyads")):
        others = (LISTED, X[:99], pl.from_pandas(X[:99]))
        assert isinstance(known.recommend(["u3"]), kind)
        assert isinstance(known.recommend(pd.Series(["u3"])), kind)
        assert isinstance(known.ask("u3"), kind)
        assert all(isinstance(known.explain(table), kind) for table in others)
        assert all(isinstance(dyads.evaluate(known, table, STARS[:99]), kind) for table in others)


def test_tables_of_a_fit_on_lists_come_back_in_the_kind_of_the_question():
    model = LFLOrdinal(rank=0, solver="point").fit(LISTED, STARS[:99])
    assert isinstance(model.recommend(["u3"]), pa.Table)
    assert isinstance(model.recommend(pl.Series(["u3"])), pl.DataFrame)
    assert isinstance(model.explain(X[:3]), pd.DataFrame)
    model.library_ = "modin"
    assert isinstance(model.recommend(["u3"]), pa.Table), "where the library of the fit is not installed"


def test_one_row_needs_no_list():
    pd.testing.assert_frame_equal(MODEL.recommend("u3"), MODEL.recommend(["u3"]))
    numbered = LFLOrdinal(rank=0, solver="point").fit(
        np.column_stack([np.arange(99) % 9, np.arange(99) % 7]), STARS[:99]
    )
    for row in (4, np.int64(4)):
        assert numbered.recommend(row).equals(numbered.recommend([4]))


def test_no_rows_have_no_recommendations():
    for rows in ([], X["user"][:0], np.array([], dtype=str)):
        table = MODEL.recommend(rows)
        assert len(table) == 0
        assert (table.dtypes == MODEL.recommend(["u3"]).dtypes).all()
    assert len(MODEL.recommend(["u3"], candidates=[])) == 0


def test_rows_and_columns_without_labels_are_recommended_by_what_is_known_of_them():
    old = (~X["user"].isin(["u1"]) & ~X["item"].isin(["i1", "i2"])).to_numpy()
    model = LFLOrdinal(rank=2, l2=0.3, **WITH).fit(X[old], STARS[old])
    found = model.recommend(["u1", "u2"], n=30)
    assert {"i1", "i2"} <= set(found["item"])
    np.testing.assert_allclose(found["value"], model.predict_mean(found), atol=1e-12)
    with pytest.warns(UnknownIdWarning, match="Of 1 rows, 1 were not seen"):
        stranger = MODEL.recommend(["?"], n=3)
    with pytest.warns(UnknownIdWarning):
        value = MODEL.predict_mean(stranger)
    np.testing.assert_allclose(stranger["value"], value)
    new = model.recommend(["new"], n=3, row_features={"user": ["new"], "age": [20], "city": ["Rome"]})
    assert len(new) == 3


def test_relations_have_their_own_best():
    every = pd.DataFrame(itertools.product(range(12), range(12), ["likes", "fears"]), columns=["a", "b", "kind"])
    y = ((every["a"] + every["b"]) % 2 == (every["kind"] == "likes")).astype(int).to_numpy()
    model = LFLRelational(rank=2, l2=0.1, random_state=0).fit(every, y)
    likes = model.recommend([0], n=6, by=1, relation="likes")
    fears = model.recommend([0], n=6, by=1, relation="fears")
    assert set(likes["b"]) == {1, 3, 5, 7, 9, 11}
    assert set(fears["b"]) == {0, 2, 4, 6, 8, 10}
    np.testing.assert_allclose(fears["value"], model.predict_proba(fears)[:, 1])
    with pytest.raises(InputError, match="relation=None is not known to the model"):
        model.recommend([0])


def test_exclusions_are_read_like_the_data():
    swapped = X[["item", "user"]]
    model = LFLOrdinal(rank=1, id_columns=("user", "item"), random_state=0, solver="point").fit(swapped, STARS)
    one, other = (model.recommend(["u3"], n=30, exclude=table) for table in (swapped, swapped.to_numpy(dtype=str)))
    assert one.equals(other)
    kinds = pd.DataFrame({"a": ["x", "x", "y", "y"], "b": ["p", "q", "p", "q"], "kind": ["s", "t", "s", "t"]})
    related = LFLRelational(rank=1, random_state=0, solver="point").fit(kinds, [0, 1, 1, 0])
    left = related.recommend(["x"], by=1, relation="s", exclude=kinds)
    assert left["b"].tolist() == ["q"]
    strict = LFLOrdinal(rank=1, unknown="raise", random_state=0, solver="point").fit(X, STARS)
    for ask in (lambda: strict.recommend(["?"]), lambda: strict.explain([["?", "i1"]])):
        with pytest.raises(UnknownIdError, match="not seen in training"):
            ask()


@pytest.mark.parametrize("structure", ["symmetric", "directed"])
def test_a_node_is_not_recommended_to_itself_nor_what_it_has_in_either_order(structure):
    links = pd.DataFrame({"source": list("aabc"), "target": list("bcdd")})
    model = LFLLink(rank=1, structure=structure, random_state=0).fit(links, [1, 0, 1, 0])
    found = model.recommend(["d", "d", "a"], n=4, by=1, exclude=links)
    left = {"symmetric": {"d": ["a"], "a": ["d"]}, "directed": {"d": ["a", "b", "c"], "a": ["d"]}}[structure]
    assert {row: sorted(set(found.loc[found["source"] == row, "target"])) for row in "da"} == left
    assert model.ask("d", n=4)["target"].isin(["a", "b", "c"]).all()


@pytest.mark.parametrize(
    ("choices", "error", "says"),
    [
        ({"by": 9}, InputError, "by=9 is not a label: expected 'mean', 'thompson' or one of"),
        ({"n": 0}, InputError, "n=0: expected a whole number, at least 1"),
        ({"candidates": ["i1", "zzz"]}, UnknownIdError, r"Of 2 candidates, 1 were not seen in training \('zzz'\)"),
        ({"relation": "x"}, InputError, "the model has only one relation"),
        ({"exclude": {"user": ["u1"]}}, InputError, "The table of pairs has the columns.*expected"),
    ],
)
def test_bad_questions_get_a_sentence(choices, error, says):
    with pytest.raises(error, match=says):
        MODEL.recommend(["u1"], **choices)


def test_what_has_no_mean_or_no_context_is_refused():
    with pytest.raises(InputError, match="by='mean' needs ordered labels"):
        LFLClassifier(rank=1, solver="point").fit(X, Y).recommend(["u1"])
    with pytest.raises(InputError, match="features of dyads"):
        LFLOrdinal(rank=1, solver="point").fit(X.assign(hour=range(len(X))), STARS).recommend(["u1"])


def test_ids_that_are_called_as_another_column_get_a_prefix():
    pairs = X.rename(columns={"user": "rank", "item": "id_rank"})
    model = LFLOrdinal(rank=1, l2=0.3, random_state=0).fit(pairs, STARS)
    found = model.recommend(["u3"], n=2)
    assert found.columns.tolist() == ["id_id_rank", "id_rank", "rank", "value"]
    assert found["id_id_rank"].tolist() == ["u3", "u3"]
    assert model.ask("u3", n=1).columns.tolist() == found.columns.tolist()
    parts = LFLOrdinal(rank=1, l2=0.3, random_state=0).fit(X.rename(columns={"user": "part"}), STARS)
    told = parts.explain(X.rename(columns={"user": "part"})[:2])
    assert told.columns.tolist() == ["dyad", "id_part", "item", "label", "part", "value"]


def test_a_table_without_names_has_numbers_for_names():
    model = LFLOrdinal(rank=1, l2=0.3, random_state=0).fit(X.to_numpy(dtype=str), STARS)
    found = model.recommend(["u3"], n=4)
    assert found.column_names == ["0", "1", "rank", "value"]
    np.testing.assert_allclose(found["value"], model.predict_mean(found))
    with pytest.raises(InputError, match="X has 3 features, but dyads is expecting 2"):
        model.predict(np.array([["u3", "i1", "x"]]))


def test_memory_stays_flat():
    rng = np.random.default_rng(0)
    n = 20_000
    X = np.column_stack([np.arange(n), np.arange(n)])
    model = LFLClassifier(rank=1, solver=SGD(max_iter=1)).fit(X, rng.integers(0, 2, n))
    model.recommend(np.arange(2), n=3)
    tracemalloc.start()
    model.recommend(np.arange(50), n=3, by=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6, "a million dyads were compared"


def test_the_question_that_tells_most_is_asked_first():
    """Half of the columns part rows in two kinds; the label of the others is a coin."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 60)
    pairs = pd.DataFrame(itertools.product(range(60), range(12)), columns=["row", "col"])
    told = (pairs["col"] < 6).to_numpy()
    y = np.where(told, kind[pairs["row"]] ^ (pairs["col"] % 2), rng.integers(0, 2, len(pairs)))
    model = LFLClassifier(rank=1, l2=0.1, random_state=0).fit(pairs, y)
    with pytest.warns(UnknownIdWarning):
        asked = model.ask(99, n=12)
    assert set(asked["col"][:6]) == set(range(6))
    assert (np.diff(asked["value"]) <= 1e-12).all()
    assert asked["value"].iloc[0] > 0.3, "nearly a whole bit"
    assert asked["value"].min() > -1e-9
    known = model.ask(3, n=3, exclude=pairs[pairs["col"] == 0])
    assert 0 not in known["col"].tolist()
    assert known["value"].iloc[0] < asked["value"].iloc[0], "less is to be learnt of a row with labels"
    assert known["row"].tolist() == [3, 3, 3]
