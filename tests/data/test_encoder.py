"""Laws of the encoder of features: one line of a table makes one line of the matrix, whatever it holds."""

import datetime
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyads.data.features import LARGEST, Encoder, Features

WORDS = st.text(max_size=2)
NUMBERS = st.floats(-LARGEST / 2, LARGEST / 2) | st.sampled_from([0.0, 1e-170, 1e-300, 5.0])
KINDS = {
    "numbers": NUMBERS,
    "integers": st.integers(-(2**63), 2**63 - 1),
    "text": WORDS,
    "booleans": st.booleans(),
    "dates": st.dates(),
    "durations": st.timedeltas(datetime.timedelta(days=-9999), datetime.timedelta(days=9999)),
    "lists": st.lists(WORDS, max_size=3),
    "lists of integers": st.lists(st.integers(-3, 3), max_size=3),
}


def column(draw, kind, n, some):
    """Values of a kind, of which any may be missing, but not all where there must be `some`."""
    values = draw(st.lists(st.none() | KINDS[kind], min_size=n, max_size=n))
    return [draw(KINDS[kind]), *values[1:]] if some and not any(value is not None for value in values) else values


@st.composite
def tables(draw, n=2):
    """Tables of the same columns, by name; to learn from the first each column has a value."""
    kinds = {
        f"c{i}": kind for i, kind in enumerate(draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4)))
    }
    sizes = [draw(st.integers(1, 6)) for _ in range(n)]
    return [
        {name: column(draw, kind, size, some=i == 0) for name, kind in kinds.items()} for i, size in enumerate(sizes)
    ]


def lines(table, which):
    return {name: [values[i] for i in which] for name, values in table.items()}


def dense(encoder, table):
    return encoder.encode_columns(table).toarray()


@given(tables())
def test_a_matrix_has_a_line_a_line_a_column_a_name_and_finite_values(drawn):
    encoder = Encoder.learn_columns(drawn[0])
    for table in drawn:
        matrix = dense(encoder, table)
        assert matrix.shape == (len(table["c0"]), len(encoder.names))
        assert np.isfinite(matrix).all()
    for name, values in drawn[0].items():
        assert (f"{name} (missing)" in encoder.names) == (None in values)
    assert encoder.absent_line().shape == (1, len(encoder.names))


@given(tables(), st.data())
def test_lines_are_encoded_each_by_itself(drawn, data):
    encoder = Encoder.learn_columns(drawn[0])
    for table in drawn:
        which = data.draw(st.lists(st.integers(0, len(table["c0"]) - 1), max_size=7))
        np.testing.assert_array_equal(dense(encoder, lines(table, which)), dense(encoder, table)[which])


@given(tables(1), st.randoms())
def test_the_order_of_columns_and_lines_is_of_no_matter_when_learning(drawn, random):
    (table,) = drawn
    encoder = Encoder.learn_columns(table)
    order = random.sample(range(len(table["c0"])), len(table["c0"]))
    turned = Encoder.learn_columns(dict(reversed(lines(table, order).items())))
    assert sorted(turned.names) == sorted(encoder.names)
    by_name = [turned.names.index(name) for name in encoder.names]
    np.testing.assert_allclose(dense(turned, table)[:, by_name], dense(encoder, table), rtol=1e-6, atol=1e-6)


@given(st.lists(st.tuples(st.integers(-999, 999), st.sampled_from([0.5, 1.0, 3.0])), min_size=1, max_size=9))
def test_numbers_have_mean_zero_and_deviation_one_by_their_weights(drawn):
    values, weight = np.array(drawn).T
    encoder = Encoder.learn_columns({"x": [*values, None]}, np.append(weight, 9.0))
    x = dense(encoder, {"x": values})[:, 0]
    assert np.average(x, weights=weight) == pytest.approx(0, abs=1e-9)
    assert np.average(x**2, weights=weight) == pytest.approx(1 if np.ptp(values) else 0)


@given(st.lists(WORDS, min_size=1, max_size=5), st.lists(WORDS | st.none(), max_size=6))
def test_a_category_is_one_in_its_own_feature_and_an_unseen_one_is_nowhere(learnt, asked):
    encoder = Encoder.learn_columns({"c": learnt})
    assert encoder.names == [f"c={word}" for word in sorted(set(learnt), key=str.encode)]
    for word, line in zip(asked, dense(encoder, {"c": asked}), strict=True):
        assert [name for name, x in zip(encoder.names, line, strict=True) if x] == [f"c={word}"] * (word in learnt)
        assert set(line) <= {0, 1}


@given(tables())
def test_an_encoder_in_a_file_encodes_the_same(drawn):
    encoder = Encoder.learn_columns(drawn[0])
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json(), allow_nan=False)))
    assert again == encoder
    for table in drawn:
        np.testing.assert_array_equal(dense(again, table), dense(encoder, table))


@given(tables(1), st.data())
def test_only_the_ids_of_the_data_teach_an_encoder(drawn, data):
    (table,) = drawn
    n = len(table["c0"])
    features = Features({"id": list(range(n)), **table})
    known = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    encoder = Encoder.learn(features, features.ids.take(known))
    mine = lines(table, sorted(known))
    if all(any(value is not None for value in values) for values in mine.values()):
        assert encoder.names == Encoder.learn_columns(mine).names
        np.testing.assert_array_equal(encoder.encode(features).toarray(), dense(Encoder.learn_columns(mine), table))
    assert encoder.encode(features).shape == (n, len(encoder.names))
