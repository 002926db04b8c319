"""Laws of dyads as integers: groups, parts and counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dyads.data.dyads import Counts, Dyads, Grouped, LabelCounts, Side
from dyads.errors import InputError


@st.composite
def some_dyads(draw, min_size=1):
    n, sizes = draw(st.integers(min_size, 12)), [draw(st.integers(1, 5)) for _ in range(4)]

    def values(each):
        return np.array(draw(st.lists(each, min_size=n, max_size=n)))

    row, col, label, relation = (values(st.integers(0, size - 1)).astype(np.int64) for size in sizes)
    weight = values(st.sampled_from([0.25, 0.5, 1.0, 4.0])) if draw(st.booleans()) else None
    several, featured = draw(st.booleans()), draw(st.booleans())
    side = Side(dyad=sparse.csr_array(np.arange(2.0 * n).reshape(n, 2)) if featured else None)
    return Dyads(
        row, col, label, weight, *sizes[:3], relation if several else None, sizes[3] if several else 1, side,
    )  # fmt: skip


def lines(dyads):
    """Each dyad as a tuple of all that is known of it."""
    weight = np.ones(len(dyads)) if dyads.weight is None else dyads.weight
    relation = np.zeros(len(dyads)) if dyads.relation is None else dyads.relation
    features = [()] * len(dyads) if dyads.side.dyad is None else map(tuple, dyads.side.dyad.toarray().tolist())
    return list(zip(dyads.row, dyads.col, dyads.label, weight, relation, features, strict=True))


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=20))))
def test_a_grouping_has_every_position_once_with_its_owner_in_the_old_order(drawn):
    n_owners, owner = drawn[0], np.array(drawn[1], np.int64)
    grouped = Grouped.by(owner, n_owners)
    assert sorted(grouped.order.tolist()) == list(range(len(owner)))
    assert grouped.start.shape == (n_owners + 1,)
    for e in range(n_owners):
        mine = grouped.order[grouped.start[e] : grouped.start[e + 1]]
        assert mine.tolist() == np.flatnonzero(owner == e).tolist()


@given(some_dyads(), st.data())
def test_some_dyads_are_those_lines_and_keep_their_codes(dyads, data):
    which = np.array(data.draw(st.lists(st.integers(0, len(dyads) - 1), max_size=15)), np.int64)
    taken = dyads.take(which)
    assert lines(taken) == [lines(dyads)[i] for i in which]
    for name in ("n_rows", "n_cols", "n_labels", "n_relations"):
        assert getattr(taken, name) == getattr(dyads, name)
    mask = np.isin(np.arange(len(dyads)), which)
    assert lines(dyads.take(mask)) == lines(dyads.take(np.flatnonzero(mask)))


@given(some_dyads(min_size=2), st.floats(0, 1), st.integers(0, 9))
def test_holding_out_splits_dyads_in_two_parts_of_the_asked_sizes(dyads, fraction, seed):
    n_held = max(1, round(fraction * len(dyads)))
    if n_held == len(dyads):
        with pytest.raises(InputError, match="leaves none to train on"):
            dyads.hold_out(fraction, np.random.default_rng(seed))
        return
    kept, held = dyads.hold_out(fraction, np.random.default_rng(seed))
    assert (len(kept), len(held)) == (len(dyads) - n_held, n_held)
    assert sorted(lines(kept) + lines(held)) == sorted(lines(dyads))
    again = dyads.hold_out(fraction, np.random.default_rng(seed))
    assert [lines(part) for part in again] == [lines(kept), lines(held)]


@given(some_dyads())
def test_counts_are_sums_of_weights_and_parts_add_up(dyads):
    halves = [dyads.take(np.arange(len(dyads)) % 2 == i) for i in range(2)]
    for name, n, place in (
        ("row_counts", dyads.n_rows, 0),
        ("col_counts", dyads.n_cols, 1),
        ("label_counts", dyads.n_labels, 2),
        ("relation_counts", dyads.n_relations, 4),
    ):
        counts = getattr(dyads, name)
        assert counts.tolist() == [sum(line[3] for line in lines(dyads) if line[place] == code) for code in range(n)]
        assert counts.sum() == dyads.total_weight
        np.testing.assert_array_equal(sum(getattr(half, name) for half in halves), counts)


@given(some_dyads(), st.data())
def test_label_counts_of_two_parts_add_up_and_sum_to_the_counts_of_ids(dyads, data):
    first = np.array(data.draw(st.lists(st.booleans(), min_size=len(dyads), max_size=len(dyads))), np.bool_)
    counts, added = LabelCounts.of(dyads), LabelCounts.of(dyads.take(first)) + LabelCounts.of(dyads.take(~first))
    for part, again, of_ids in zip(counts.parts, added.parts, Counts.of(dyads, one_set=False), strict=True):
        assert part.shape == (len(of_ids), dyads.n_labels)
        np.testing.assert_array_equal(again, part)
        np.testing.assert_array_equal(part.sum(axis=1), of_ids)
        np.testing.assert_allclose(part.sum(axis=0), dyads.label_counts)


@given(some_dyads(), st.floats(0.1, 10))
def test_smoothed_frequencies_are_drawn_from_those_of_an_id_to_those_of_all(dyads, smoothing):
    counts = LabelCounts.of(dyads).grown(dyads.n_rows + 1, dyads.n_cols)
    proba = counts.smoothed("row", smoothing)
    assert proba.shape == (dyads.n_rows + 2, dyads.n_labels)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (proba > 0).all(), "so that every log-loss is finite"
    np.testing.assert_allclose(proba[-2:], [counts.shares, counts.shares], err_msg="an id without labels")
    np.testing.assert_allclose(counts.smoothed("row", 1e9), np.tile(counts.shares, (len(proba), 1)), atol=1e-6)


def test_undirected_pairs_count_for_both_of_their_nodes():
    dyads = Dyads(np.array([0, 0]), np.array([1, 2]), np.array([0, 1]), None, 3, 3, 2)
    both = LabelCounts.of(dyads).undirected()
    np.testing.assert_array_equal(both.row, [[1, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(both.col, both.row)
