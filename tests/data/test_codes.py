"""Laws of ids and labels as integers, whatever their type."""

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyads.data.codes import UNKNOWN, Vocabulary, codes_of, encode_labels, numeric_values, values_of
from dyads.data.tables import read_column
from dyads.errors import DtypeError, InputError

# Years that Arrow keeps in nanoseconds too.
DATES = {"min_value": datetime.datetime(1700, 1, 1), "max_value": datetime.datetime(2200, 1, 1)}
SIGNED, UNSIGNED = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
KINDS = {
    "text": st.text(max_size=6),
    "integers": SIGNED,
    "large integers": UNSIGNED,
    "few integers": st.integers(-3, 3),
    "floats": st.floats(allow_nan=False, allow_infinity=False),
    "booleans": st.booleans(),
    "bytes": st.binary(max_size=4),
    "dates": st.dates(),
    "times": st.datetimes(**DATES),
    "durations": st.timedeltas(datetime.timedelta(days=-9999), datetime.timedelta(days=9999)),
    "decimals": st.decimals(-999, 999, places=3),
}
LABELS = {
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4),
    "integers": st.integers(-(2**53), 2**53),
    "large integers": st.integers(2**63, 2**64 - 1),
    "booleans": st.booleans(),
    "floats": st.sampled_from([-1.5, -0.0, 0.0, 0.5, 3.0, 1e300]),
}


def some(kind):
    return st.lists(kind, min_size=1, max_size=9)


def for_each(kinds, n=1):
    """Run a law on lists of values of each kind: of `n` lists, all are of the same."""

    def decorated(law):
        @pytest.mark.parametrize("kind", kinds)
        @given(data=st.data())
        def test(kind, data):
            law(*(data.draw(some(kinds[kind])) for _ in range(n)))

        return test

    return decorated


def vocabulary_of(values):
    return Vocabulary.of(read_column(values, "ids"), "ids")


def expected_codes(known, asked):
    code = {value: place for place, value in enumerate(dict.fromkeys(known))}
    return [code.get(value, UNKNOWN) for value in asked]


@for_each(KINDS)
def test_codes_and_ids_are_two_names_of_the_same(values):
    column = read_column(values, "ids")
    vocabulary, codes = Vocabulary.of(column, "ids")
    assert vocabulary.ids.take(codes).equals(column)
    assert vocabulary.ids.to_pylist() == list(dict.fromkeys(column.to_pylist())), "in order of first appearance"
    np.testing.assert_array_equal(vocabulary.encode(column), codes)


@for_each(KINDS, 2)
def test_an_id_that_was_not_there_has_the_code_of_the_unknown(known, asked):
    assert vocabulary_of(known)[0].encode(read_column(asked, "ids")).tolist() == expected_codes(known, asked)


@given(*[some(SIGNED | st.integers(-2, 2)) | some(UNSIGNED | st.integers(2**63 - 2, 2**63 + 2))] * 2, st.booleans())
def test_integers_of_any_sign_and_size_are_compared_as_numbers(known, asked, repeated):
    asked = [*asked, *known] if repeated and not (min(asked) < 0 or min(known) < 0) else asked
    assert vocabulary_of(known)[0].encode(read_column(asked, "ids")).tolist() == expected_codes(known, asked)


@for_each(KINDS, 2)
def test_a_vocabulary_that_grows_keeps_its_codes_and_appends_the_new(first, more):
    if any(isinstance(value, int) and value > 2**63 - 1 for value in more):
        # A vocabulary of small integers has no room for these.
        first = [2**64 - 1, *first]
    before, _ = vocabulary_of(first)
    after = before.with_ids(read_column(more, "ids"), "more")
    assert after.ids.to_pylist() == list(dict.fromkeys([*first, *more]))
    assert after.ids[: len(before)].equals(before.ids)
    assert after.with_ids(read_column(more, "ids"), "more") is after


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@given(data=st.data())
def test_an_integer_is_the_same_id_in_any_width(dtype, data):
    limits = np.iinfo(dtype)
    values = data.draw(some(st.integers(int(limits.min), int(limits.max))))
    vocabulary, codes = vocabulary_of(values)
    np.testing.assert_array_equal(vocabulary.encode(read_column(np.array(values, dtype), "ids")), codes)


@given(*[st.sampled_from([["1"], [1], [1.0], [True], [b"1"], [datetime.date(1970, 1, 2)]])] * 2)
def test_values_of_two_types_are_never_one_id(one, other):
    vocabulary, _ = vocabulary_of(one)
    if type(one[0]) is type(other[0]):
        assert vocabulary.encode(read_column(other, "ids")).tolist() == [0]
    else:
        with pytest.raises(DtypeError, match="expected ids of the same type"):
            vocabulary.encode(read_column(other, "ids"))


@for_each(LABELS)
def test_labels_are_sorted_and_their_codes_lead_back(y):
    classes, codes = encode_labels(y, at_least=1)
    assert classes.tolist() == sorted(set(y))
    assert classes[codes].tolist() == y
    np.testing.assert_array_equal(codes_of(classes[codes], classes), codes)
    np.testing.assert_array_equal(codes_of(classes[codes], classes[::-1]), len(classes) - 1 - codes)
    again, turned = encode_labels(y[::-1], at_least=1)
    np.testing.assert_array_equal(again, classes, strict=True)
    np.testing.assert_array_equal(turned, codes[::-1])


@for_each(LABELS, 2)
def test_a_label_that_is_not_among_the_classes_is_named(y, asked):
    classes, _ = encode_labels(y, at_least=1)
    found, _ = encode_labels(asked, at_least=1)
    strange = found[~np.isin(found, classes)].tolist()
    if not strange:
        assert classes[codes_of(found, classes)].tolist() == found.tolist()
        return
    with pytest.raises(InputError) as refused:
        codes_of(found, classes)
    assert f"The label {strange[0]!r} is not among those of the model" in str(refused.value)


@for_each(LABELS)
def test_numeric_values_are_the_numbers_themselves_or_places(y):
    classes, codes = encode_labels(y, at_least=1)
    values = numeric_values(classes)
    expected = range(len(classes)) if isinstance(y[0], str) else sorted(set(y))
    assert values.tolist() == [float(value) for value in expected]
    np.testing.assert_array_equal(values_of(classes[codes], classes), values[codes])
