"""The trained record: one copy of what is known, however many draws."""

import copy
import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dyads import Gibbs, LFLClassifier, LFLLink, SideInformation
from dyads.data.codes import Vocabulary
from dyads.data.dyads import LabelCounts
from dyads.data.features import Encoder
from dyads.model.parameters import Layout
from dyads.model.structure import Bilinear, Directed
from problems import make_dyads, make_record
from shop import ITEMS, USERS, X, Y

PAIRS = pd.DataFrame([(f"n{i}", f"n{j}") for i in range(9) for j in range(i)], columns=["source", "target"])
LINKED = (PAIRS["source"].str[1:].astype(int) + PAIRS["target"].str[1:].astype(int)).to_numpy() % 2
NODES = pd.DataFrame({"node": [f"n{i}" for i in range(9)], "size": np.arange(9.0)})


@pytest.fixture
def encoded(monkeypatch):
    """The tables that encoders were given."""
    tables, encode = [], Encoder.encode

    def counted(encoder, features):
        tables.append(features)
        return encode(encoder, features)

    monkeypatch.setattr(Encoder, "encode", counted)
    return tables


@pytest.mark.xdist_group("blocks")
@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
def test_features_of_a_call_are_encoded_once_however_many_draws(encoded):
    side = SideInformation(row=USERS, col=ITEMS)
    model = LFLClassifier(rank=1, features=side, random_state=0, solver=Gibbs(sweeps=12)).fit(X, Y)
    assert len(model.record_.draws) > 2
    encoded.clear()
    model.predict_proba(X[:5], row_features=USERS[:3], col_features=ITEMS[:3])
    assert len(encoded) == 2
    model.predict_proba(X[:5], row_features=USERS[:3])
    assert len(encoded) == 3


def test_features_of_nodes_are_encoded_once_for_both_roles(encoded):
    model = LFLLink(rank=1, l2=0.01, n_models=2, features=SideInformation(row=NODES), random_state=0).fit(PAIRS, LINKED)
    encoded.clear()
    model.predict_proba(PAIRS[:5], row_features=NODES[:2])
    assert len(encoded) == 1


def test_rows_and_columns_of_one_id_set_are_views_of_one_object():
    known = (
        LFLLink(rank=1, l2=0.01, features=SideInformation(row=NODES), random_state=0).fit(PAIRS, LINKED).record_.known
    )
    assert known.sets == (known.rows,)
    for field in dataclasses.fields(known.rows):
        row, col = getattr(known.rows, field.name), getattr(known.cols, field.name)
        assert row is col or (field.name == "ids" and row.ids is col.ids)
    assert [vocabulary.name for vocabulary in known.vocabularies] == ["source", "target"]


def test_a_record_that_grows_leaves_the_old_one_as_it_is():
    model = LFLClassifier(rank=1, l2=0.5, n_models=2, unknown="mean", random_state=0).fit(X, Y)
    record, before = model.record_, model.predict_proba(X)
    folded = copy.copy(model).fold_in(X[:4].assign(user="new"), Y[:4])
    assert len(folded.record_.known.rows) == len(record.known.rows) + 1
    assert all(trained.known is folded.record_.known for trained in folded.record_.models)
    assert all(len(draw.rows.predictions) == len(folded.record_.known.rows) for draw in folded.record_.draws)
    assert model.record_ is record
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_a_record_is_built_by_names_alone():
    record = LFLClassifier(rank=1, l2=0.5, random_state=0).fit(X, Y).record_
    for part in (record, record.parts, record.known, record.known.rows, record.draws[0], record.draws[0].rows):
        values = [getattr(part, field.name) for field in dataclasses.fields(part)]
        with pytest.raises(TypeError, match="positional"):
            type(part)(*values)


def recorded(structure, data):
    layout = Layout(structure, data.n_rows, data.n_cols)
    return make_record(structure, np.zeros(layout.size), data)


def test_marginals_of_undirected_pairs_count_for_both_nodes_and_of_directed_ones_by_role():
    data = make_dyads(one_set=True, weighted=True)
    codes, counts = (data.row[:5], data.col[:5]), LabelCounts.of(data)
    directed = recorded(Directed(data.n_labels, 0, 2, True, 1), data).marginals(codes)
    np.testing.assert_array_equal(directed["labels by row"], counts.smoothed("row")[codes[0]])
    np.testing.assert_array_equal(directed["labels by col"], counts.smoothed("col")[codes[1]])
    undirected = recorded(Bilinear(data.n_labels, 0, 1, True, 1), data)
    turned = dataclasses.replace(data, row=data.col, col=data.row)
    np.testing.assert_allclose(
        undirected.marginals(codes)["labels by row"],
        recorded(Bilinear(data.n_labels, 0, 1, True, 1), turned).marginals(codes)["labels by row"],
    )


def test_marginals_of_several_relations_have_those_of_each():
    data = make_dyads(n_relations=3)
    record = recorded(Bilinear(data.n_labels, 0, 1, False, 1), data)
    known = dataclasses.replace(record.known, relations=Vocabulary(pa.array(["x", "y", "z"]), "kind"))
    proba = dataclasses.replace(record, known=known).marginals((data.row, data.col, data.relation))
    assert list(proba) == ["all labels", "labels by row", "labels by col", "labels by kind"]
    of_x = np.bincount(data.label[data.relation == 0], minlength=data.n_labels)
    expected = (of_x + 3 * data.label_counts / len(data)) / (of_x.sum() + 3)
    np.testing.assert_allclose(proba["labels by kind"][data.relation == 0], [expected] * (data.relation == 0).sum())


def test_label_counts_stay_in_step_with_the_entities():
    data = make_dyads()
    known = recorded(Bilinear(data.n_labels, 0, 1, False, 1), data).known
    rows = known.rows.ids.with_ids(pa.array([98, 99]), "more")
    grown = known.grown(rows, known.cols.ids)
    assert grown.label_counts.row.shape == (data.n_rows + 2, data.n_labels)
    more = dataclasses.replace(data, n_rows=len(rows), row=data.row + 2)
    twice = grown.counted(more)
    np.testing.assert_allclose(twice.label_counts.row.sum(axis=1), twice.rows.counts)
    np.testing.assert_allclose(twice.label_counts.col, 2 * known.label_counts.col)
    assert not any(part.any() for part in twice.without_counts().label_counts.parts)
