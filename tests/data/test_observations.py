"""From tables to labelled dyads: which columns are ids, which dyads count, and what is no dyad."""

import numpy as np
import pandas as pd
import pytest

from dyads.data.features import Features
from dyads.data.observations import (
    SideTables,
    check_undirected,
    read_dyads,
    read_more,
    read_observations,
    read_pairs,
)
from dyads.errors import InputError

X = {"who": ["ann", "bob", "ann"], "what": [7, 7, 8], "where": ["tv", "web", "tv"], "price": [1.0, 2.0, 3.0]}
Y = ["no", "yes", "yes"]


def ids(seen):
    return seen.rows.ids.to_pylist(), seen.cols.ids.to_pylist()


@pytest.mark.parametrize(
    ("wanted", "names", "features"),
    [
        ((None, None), ["who", "what"], ["where=tv", "where=web", "price"]),
        (("what", "who"), ["what", "who"], ["where=tv", "where=web", "price"]),
        (("where", None), ["where", "who"], ["what", "price"]),
        ((None, "who"), ["what", "who"], ["where=tv", "where=web", "price"]),
        ((None, None, None), ["who", "what", "where"], ["price"]),
        ((None, None, "who"), ["what", "where", "who"], ["price"]),
    ],
)
def test_ids_are_the_named_columns_or_the_next_and_all_others_are_features(wanted, names, features):
    seen = read_observations(X, Y, None, wanted)
    found = [seen.rows, seen.cols, *([seen.relations] if len(wanted) > 2 else [])]
    assert [vocabulary.name for vocabulary in found] == names
    codes = seen.dyads.row, seen.dyads.col, seen.dyads.relation
    for vocabulary, code in zip(found, codes, strict=False):
        assert [vocabulary.ids[int(i)].as_py() for i in code] == X[vocabulary.name]
    assert seen.encoders.dyad.names == features
    assert seen.dyads.side.dyad.shape == (3, len(features))
    assert seen.columns == list(X)


def test_two_columns_have_no_features():
    seen = read_observations({"who": X["who"], "what": X["what"]}, Y, None)
    assert seen.encoders == (None, None, None)
    assert seen.dyads.side.widths == (0, 0, 0)


def test_a_dyad_of_weight_zero_brings_neither_ids_nor_labels_nor_features():
    seen = read_observations(X, ["no", "maybe", "yes"], [0.5, 0, 2])
    assert ids(seen) == (["ann"], [7, 8])
    assert seen.classes.tolist() == ["no", "yes"]
    assert seen.dyads.weight.tolist() == [0.5, 2]
    assert seen.dyads.label.tolist() == [0, 1]
    assert seen.encoders.dyad.names == ["where=tv", "price"]
    assert seen.dyads.side.dyad.shape == (2, 2)


def test_labels_that_may_come_are_classes_and_others_are_refused():
    seen = read_observations(X, ["yes"] * 3, None, classes=["yes", "no", "maybe"])
    assert seen.classes.tolist() == ["maybe", "no", "yes"]
    assert (seen.dyads.label.tolist(), seen.dyads.n_labels) == ([2, 2, 2], 3)
    with pytest.raises(InputError, match="label 'yes' is not among those of the model, \\['maybe', 'no'\\]"):
        read_observations(X, ["yes"] * 3, None, classes=["no", "maybe"])


def test_an_id_the_model_does_not_know_has_the_code_minus_one():
    seen = read_observations(X, Y, None)
    ask = {"price": [2.0, 2.0], "what": [8, 9], "where": ["tv", "radio"], "who": ["eve", "bob"]}
    codes, features = read_dyads(ask, [seen.rows, seen.cols], seen.columns, seen.encoders.dyad)
    assert [code.tolist() for code in codes] == [[-1, 1], [1, -1]]
    assert features.toarray().tolist() == [[1, 0, 0], [0, 0, 0]]


def test_columns_without_names_are_taken_by_their_place_and_other_names_are_refused():
    seen = read_observations(X, Y, None, ("what", "who"))
    lines = [list(line) for line in zip(*X.values(), strict=True)]
    by_place, _ = read_dyads(lines, [seen.rows, seen.cols], seen.columns, seen.encoders.dyad)
    assert [code.tolist() for code in by_place] == [seen.dyads.row.tolist(), seen.dyads.col.tolist()]
    with pytest.raises(InputError, match="Rename the columns"):
        read_dyads({**dict(list(X.items())[1:]), "whom": X["who"]}, [seen.rows, seen.cols], seen.columns)
    with pytest.raises(InputError, match="X has 2 features, but dyads is expecting 4"):
        read_dyads({"who": X["who"], "what": X["what"]}, [seen.rows, seen.cols], seen.columns)


@pytest.mark.parametrize("labels", [["no", "yes", "yes"], [1.5, 2.5, 2.5], [True, False, False]])
@pytest.mark.parametrize("kind", [dict, pd.DataFrame])
def test_a_column_that_holds_the_labels_is_refused_and_one_that_nearly_does_is_a_feature(labels, kind):
    with pytest.raises(InputError, match="Column 'said' of X holds the labels themselves.*Drop 'said'"):
        read_observations(kind({**X, "said": labels}), labels, None)
    nearly = [labels[0], labels[1], labels[0]]
    assert "said" in read_observations(kind({**X, "said": nearly}), labels, None).columns


def test_columns_of_other_lengths_are_refused_and_named():
    with pytest.raises(InputError, match="3 dyads but 2 values in column 'price'"):
        read_observations({**X, "price": [1.0, 2.0]}, Y, None)
    seen = read_observations(X, Y, None)
    with pytest.raises(InputError, match=r"lengths \[3, 3, 3, 1\]"):
        read_dyads({**X, "price": [1.0]}, [seen.rows, seen.cols], seen.columns)


def undirected(pairs, labels, wanted=(None, None)):
    check_undirected(read_observations(pairs, labels, None, wanted, one_set=True))


def test_undirected_pairs_contradict_each_other_only_across_their_two_orders():
    pairs = [["c", "b"], ["b", "c"], ["a", "c"], ["a", "a"], ["a", "a"]]
    undirected(pairs, [2, 2, 0, 0, 1])
    undirected([*pairs, ["c", "b"]][2:], [0, 0, 1, 2])
    undirected([["a", "b"], ["a", "b"]], [0, 1])
    with pytest.raises(InputError, match=r"pair \('c', 'b'\) is given in both orders with different labels"):
        undirected(pairs, [2, 1, 0, 0, 1])
    by_relation = [[*pair, kind] for pair, kind in zip(pairs, "xyyyy", strict=True)]
    undirected(by_relation, [2, 1, 0, 0, 1], (None, None, None))


def test_nodes_of_one_kind_have_one_code_in_either_column():
    seen = read_observations([["a", "b"], ["b", "c"]], [0, 1], None, one_set=True)
    assert ids(seen) == (["a", "b", "c"],) * 2
    assert (seen.dyads.row.tolist(), seen.dyads.col.tolist()) == ([0, 1], [1, 2])


def test_ids_of_features_and_of_further_pairs_come_after_those_with_labels():
    side = SideTables(
        row=Features({"who": ["zoe", "bob", "ann"], "age": [60, 20, 10]}),
        implicit=True,
        seen={"who": ["ann", "kim"], "what": [9, 7]},
    )
    seen = read_observations({"who": X["who"], "what": X["what"]}, Y, None, side=side)
    assert ids(seen) == (["ann", "bob", "zoe", "kim"], [7, 8, 9])
    rows = seen.dyads.side.row.toarray()
    np.testing.assert_allclose(rows[:, 0], [-1, 1, 9, 0])
    np.testing.assert_allclose(rows[:, 1:], [[1 / np.sqrt(3)] * 3, [1, 0, 0], [0, 0, 0], [1, 0, 0]])
    assert seen.dyads.n_rows == 4
    with pytest.raises(InputError, match="seen= was given without implicit=True"):
        read_observations(X, Y, None, side=SideTables(seen=X))


def test_more_dyads_keep_the_codes_of_a_model_and_append_new_ids():
    seen = read_observations(X, Y, None, (None, None, "where"))
    vocabularies = [seen.rows, seen.cols, seen.relations]
    more = {"who": ["eve", "bob"], "what": [8, 9], "where": ["web", "tv"], "price": [2.0, 2.0]}
    grown = read_more(
        more, ["yes", "yes"], None, vocabularies, seen.columns, seen.classes, seen.encoders.dyad, one_set=False
    )
    assert ids(grown) == (["ann", "bob", "eve"], [7, 8, 9])
    assert (grown.dyads.row.tolist(), grown.dyads.col.tolist()) == ([2, 1], [1, 2])
    assert (grown.dyads.relation.tolist(), grown.dyads.label.tolist()) == ([1, 0], [1, 1])
    for change, y, says in (
        ({"where": ["tv", "radio"]}, ["yes", "yes"], "relation 'radio' was not seen in training"),
        ({}, ["yes", "maybe"], "label 'maybe' is not among"),
    ):
        with pytest.raises(InputError, match=says):
            read_more(
                more | change, y, None, vocabularies, seen.columns, seen.classes, seen.encoders.dyad, one_set=False
            )


def test_pairs_are_found_by_name_and_by_place_only_without_names():
    names, columns = ("who", "what"), ["what", "when", "who"]
    for table in (
        {"what": [1, 2], "who": ["a", "b"], "more": [0, 0]},
        [["a", 1], ["b", 2]],
        [[1, "x", "a"], [2, "x", "b"]],
    ):
        assert [column.to_pylist() for column in read_pairs(table, names, columns)] == [["a", "b"], [1, 2]]
    with pytest.raises(InputError, match=r"columns \['who', 'item'\]: expected \['who', 'what'\]"):
        read_pairs({"who": ["a"], "item": [1]}, names, columns)
