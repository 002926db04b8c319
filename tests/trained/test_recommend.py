"""The best columns for a row: exact, without those excluded, in flat memory."""

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dyads
from dyads import SGD, Gibbs, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational
from dyads.errors import InputError, SeenWarning, UnknownIdError, UnknownIdWarning
from shop import WITH, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
MODEL = LFLOrdinal(rank=2, l2=0.3, random_state=0).fit(X, STARS)


def test_the_table_is_the_sorted_predictions():
    rows = ["u3", "u7"]
    found = MODEL.recommend(rows, n=5, with_seen=True)
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
    found = MODEL.recommend(pd.Series(["u3"]), n=50, by=3, candidates=["i1", "i2", "i3", "i4", "i5"])
    assert isinstance(found, pd.DataFrame)
    left = {"i1", "i2", "i3", "i4", "i5"} - set(seen["item"])
    assert set(found["item"]) == left
    np.testing.assert_allclose(found["value"], MODEL.predict_proba(found)[:, 2])
    assert (np.diff(found["value"]) <= 0).all()
    again = MODEL.recommend(pl.Series(["u3", "u4", "u3"]), n=2, with_seen=True)
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
    pd.testing.assert_frame_equal(MODEL.recommend(cols="i3"), MODEL.recommend(cols=["i3"]))
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
    found = model.recommend(["u1", "u2"], n=30, with_seen=True)
    assert {"i1", "i2"} <= set(found["item"])
    np.testing.assert_allclose(found["value"], model.predict_mean(found), atol=1e-12)
    with pytest.warns(UnknownIdWarning, match=r"Of 1 rows, 1 were not seen in training \('\?'\)"):
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
    likes = model.recommend([0], n=6, by=1, relation="likes", with_seen=True)
    fears = model.recommend([0], n=6, by=1, relation="fears", with_seen=True)
    assert set(model.recommend([0], n=20, relation="likes")["b"]) == {0, 2, 4, 6, 8, 10}, "those not linked"
    assert set(likes["b"]) == {1, 3, 5, 7, 9, 11}
    assert set(fears["b"]) == {0, 2, 4, 6, 8, 10}
    np.testing.assert_allclose(fears["value"], model.predict_proba(fears)[:, 1])
    with pytest.raises(InputError, match="relation=None is not known to the model"):
        model.recommend([0])


def test_exclusions_are_read_like_the_data():
    swapped = X[["item", "user"]]
    model = LFLOrdinal(rank=1, id_columns=("user", "item"), random_state=0, solver="point").fit(swapped, STARS)
    one, other = (
        model.recommend(["u3"], n=30, exclude=table, with_seen=True) for table in (swapped, swapped.to_numpy(dtype=str))
    )
    assert one.equals(other)
    assert one.equals(model.recommend(["u3"], n=30)), "the pairs of the training data"
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


MODELS = {
    "two sets": lambda: LFLOrdinal(rank=2, l2=0.3, random_state=0).fit(X[: len(X) // 2], STARS[: len(X) // 2]),
    "posterior": lambda: LFLOrdinal(rank=2, solver=Gibbs(sweeps=12), random_state=0).fit(X[:200], STARS[:200]),
    "features": lambda: LFLOrdinal(rank=2, l2=0.3, **WITH).fit(X[X["user"] != "u1"], STARS[X["user"] != "u1"]),
    "directed": lambda: LFLLink(rank=2, l2=0.3, structure="directed", random_state=0).fit(*some_links()),
    "undirected": lambda: LFLLink(rank=2, l2=0.3, random_state=0).fit(*some_links()),
}


def some_links():
    every = pd.DataFrame(itertools.combinations("abcdefghij", 2), columns=["source", "target"])
    rng = np.random.default_rng(0)
    return every, rng.integers(0, 2, len(every))


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_recommended_to_columns_as_columns_to_rows(name):
    """All values of a model, asked for from either side; features bring rows without labels."""
    model = MODELS[name]()
    rows = model.recommend(model.row_ids_, n=999, with_seen=True)
    cols = model.recommend(cols=model.col_ids_, n=999, with_seen=True)
    ids = rows.columns[:2].tolist()
    assert cols.columns.tolist() == rows.columns.tolist()
    assert len(cols) == len(rows) == len(model.row_ids_) * (len(model.col_ids_) - isinstance(model, LFLLink))
    both = rows.merge(cols, on=ids, suffixes=("_by_row", "_by_col"))
    np.testing.assert_allclose(both["value_by_row"], both["value_by_col"], atol=1e-9)
    assert (cols.groupby(ids[1], sort=False)["rank"].apply(list).map(lambda ranks: ranks == sorted(ranks))).all()
    unseen = model.recommend(cols=model.col_ids_, n=999)
    assert unseen.merge(model.recommend(model.row_ids_, n=999), on=ids).shape[0] == len(unseen) < len(cols)


def test_what_was_seen_is_left_out_also_after_a_file_a_fold_in_and_a_further_batch(tmp_path):
    start, more = X["user"] < "u5", X["user"] >= "u5"
    model = LFLOrdinal(rank=1, solver="sgd", random_state=0).partial_fit(X[start], STARS[start], classes=[1, 2, 3])
    model.partial_fit(X[more], STARS[more])
    model.fold_in({"user": ["new"] * 2, "item": ["i1", "i2"]}, [1, 3])
    model.save(tmp_path / "model.dyads")
    for known in (model, dyads.load(tmp_path / "model.dyads")):
        left = known.recommend(known.row_ids_, n=999)
        assert not set(zip(left["user"], left["item"], strict=True)) & set(zip(X["user"], X["item"], strict=True))
        assert len(left) == len(known.row_ids_) * len(known.col_ids_) - len(X.drop_duplicates()) - 2
        assert not left.loc[left["user"] == "new", "item"].isin(["i1", "i2"]).any()


def test_of_positives_the_links_alone_are_left_out():
    positives = pd.DataFrame({"user": list("aabbc"), "item": [1, 2, 2, 3, 4]})
    pairs = dyads.pairs_from_positives(positives, negatives="all")
    model = LFLClassifier(rank=1, l2=1.0, random_state=0)
    model.fit(pairs.X, pairs.y, population_weight=pairs.weight)
    assert set(as_frame(model.recommend("a"))["item"]) == {3, 4}
    model.fit(pairs.X, pairs.y)
    assert len(model.recommend("a")) == 0, "labels of all pairs are known"
    model.record_ = replace(model.record_, known=replace(model.record_.known, seen=None))
    with pytest.warns(SeenWarning, match="does not keep the pairs"):
        model.recommend("a")


def as_frame(table):
    return table if isinstance(table, pd.DataFrame) else table.to_pandas()


@pytest.mark.parametrize("side", ["row", "col"])
def test_those_with_the_same_labels_are_similar(side):
    """Two kinds of rows, which label two kinds of columns differently."""
    pairs = pd.DataFrame(itertools.product(range(16), range(100, 112)), columns=["row", "col"])
    y = (pairs["row"] % 2) ^ (pairs["col"] % 2)
    model = LFLClassifier(rank=1, l2=0.1, random_state=0).fit(pairs, y)
    own = "row" if side == "row" else "col"
    found = model.similar(pairs[own].unique()[:3], n=5, side=side)
    assert found.columns.tolist() == [own, f"similar_{own}", "rank", "value"]
    assert ((found[own] - found[f"similar_{own}"]) % 2 == 0).all()
    assert (found[own] != found[f"similar_{own}"]).all()
    assert found["value"].between(0, 1 + 1e-9).all()
    assert model.similar(0 if side == "row" else 100, n=99, side=side)["value"].iloc[-1] < 0.9
    with pytest.raises(UnknownIdError, match="Of 1 ids, 1 were not seen"):
        model.similar([999], side=side)


@pytest.mark.parametrize(
    ("choices", "error", "says"),
    [
        ({"by": 9}, InputError, "by=9 is not a label: expected 'mean', 'thompson' or one of"),
        ({"n": 0}, InputError, "n=0: expected a whole number, at least 1"),
        ({"candidates": ["i1", "zzz"]}, UnknownIdError, r"Of 2 candidates, 1 were not seen in training \('zzz'\)"),
        ({"relation": "x"}, InputError, "the model has only one relation"),
        ({"exclude": {"user": ["u1"]}}, InputError, "The table of pairs has the columns.*expected"),
        ({"cols": ["i1"]}, InputError, "recommend got both rows and cols, or neither: expected one of them"),
    ],
)
def test_bad_questions_get_a_sentence(choices, error, says):
    with pytest.raises(error, match=says):
        MODEL.recommend(["u1"], **choices)


def test_what_has_no_mean_or_no_context_is_refused():
    with pytest.raises(InputError, match="by='mean' is for labels with an order"):
        LFLClassifier(rank=1, solver="point").fit(X, Y).recommend(["u1"])
    with pytest.raises(InputError, match="features of dyads"):
        LFLOrdinal(rank=1, solver="point").fit(X.assign(hour=range(len(X))), STARS).recommend(["u1"])


def test_ids_that_are_called_as_another_column_get_a_prefix():
    pairs = X.rename(columns={"user": "rank", "item": "id_rank"})
    model = LFLOrdinal(rank=1, l2=0.3, random_state=0).fit(pairs, STARS)
    found = model.recommend(["u3"], n=2, with_seen=True)
    assert found.columns.tolist() == ["id_id_rank", "id_rank", "rank", "value"]
    assert found["id_id_rank"].tolist() == ["u3", "u3"]
    assert model.ask("u3", n=1).columns.tolist() == found.columns.tolist()
    parts = LFLOrdinal(rank=1, l2=0.3, random_state=0).fit(X.rename(columns={"user": "part"}), STARS)
    told = parts.explain(X.rename(columns={"user": "part"})[:2])
    assert told.columns.tolist() == ["dyad", "id_part", "item", "label", "part", "value"]


def test_a_table_without_names_has_numbers_for_names():
    model = LFLOrdinal(rank=1, l2=0.3, random_state=0).fit(X.to_numpy(dtype=str), STARS)
    found = model.recommend(["u3"], n=4, with_seen=True)
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
    assert len(model.ask(3)) == 0, "it has told all"
    fewer = LFLClassifier(rank=1, l2=0.1, random_state=0).fit(pairs[5:], y[5:])
    known = fewer.ask(0, n=3, exclude=pairs[pairs["col"] == 0])
    assert set(known["col"]) <= {1, 2, 3, 4}
    assert known["value"].iloc[0] < asked["value"].iloc[0], "less is to be learnt of a row with labels"
    assert known["row"].tolist() == [0, 0, 0]
