"""Orders: every dyad is visited once, by its owner, and cells of a round can be visited at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyads.data.dyads import Dyads
from dyads.engine import host, orders
from dyads.engine.orders import Cells, Orders, even_tasks, independent, owner_tasks, runs
from dyads.model.parameters import Role

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=30)
"""How many dyads each owner has."""


@st.composite
def dyads(draw, one_set=False):
    """Dyads of few or many rows and columns, some of them without any."""
    n_rows = draw(st.integers(1, 12))
    n_cols = n_rows if one_set else draw(st.integers(1, 12))
    n = draw(st.integers(1, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    relation = rng.integers(0, 3, n) if draw(st.booleans()) else None
    weight = rng.uniform(0.5, 2, n) if draw(st.booleans()) else None
    row, col = rng.integers(0, n_rows, n), rng.integers(0, n_cols, n)
    return Dyads(row, col, np.arange(n), weight, n_rows, n_cols, n, relation, 1 if relation is None else 3)


@given(st.data(), st.booleans(), st.integers(1, 9))
def test_cells_of_a_round_share_no_row_and_no_column_and_hold_every_dyad_once(data, one_set, n_groups):
    given_dyads = data.draw(dyads(one_set))
    cells = Cells.of(given_dyads, one_set, n_groups)
    visited = []
    for shift in range(n_groups):
        seen = set()
        for cell in cells.round(shift):
            part = cells.dyads.take(slice(cells.start[cell], cells.start[cell + 1]))
            owners = {("row", r) for r in part.row.tolist()} | {
                ("row" if one_set else "col", c) for c in part.col.tolist()
            }
            assert not owners & seen, "two cells of a round would move one block"
            seen |= owners
            visited += part.label.tolist()
    assert sorted(visited) == list(range(len(given_dyads)))


@given(SIZES, st.integers(1, 50))
def test_tasks_of_owners_are_runs_that_hold_each_owner_once(sizes, size):
    start = np.concatenate([[0], np.cumsum(sizes)])
    tasks = owner_tasks(start, size)
    assert [owner for first, last in tasks for owner in range(first, last)] == list(range(len(sizes)))
    assert all(first < last for first, last in tasks)
    assert len(tasks) <= max(1, start[-1] // size)


@given(st.integers(0, 50_000), st.integers(0, 30_000))
def test_even_tasks_hold_each_dyad_once(first, n):
    tasks = even_tasks(first, first + n)
    assert sum(last - begin for begin, last in tasks) == n
    assert all(0 < last - begin <= orders.CHUNK for begin, last in tasks)
    assert [begin for begin, _ in tasks] == [first, *(last for _, last in tasks[:-1])][: len(tasks)]


@given(SIZES, st.data())
def test_runs_hold_the_asked_owners_and_no_others(sizes, data):
    asked = data.draw(st.lists(st.integers(0, len(sizes) - 1)))
    found = runs(np.array(asked, np.int64), np.concatenate([[0], np.cumsum(sizes)]))
    assert [owner for first, last in found for owner in range(first, last)] == sorted(set(asked))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(orders, "SHARD", 7)


@pytest.mark.parametrize("role", [Role.ROW, Role.COL])
@pytest.mark.usefixtures("small_shards")
def test_shards_are_runs_of_owners_with_all_their_dyads_in_one_order(role):
    @given(dyads())
    def law(given_dyads):
        shards = Orders(given_dyads, False, 1).of(role)
        n_owners = given_dyads.n_rows if role == Role.ROW else given_dyads.n_cols
        assert [code for shard in shards for code in range(n_owners)[shard.owners]] == list(range(n_owners))
        labels = []
        for shard in shards:
            owner = shard.dyads.row if role == Role.ROW else shard.dyads.col
            for e in range(len(shard)):
                assert (owner[shard.order[shard.start[e] : shard.start[e + 1]]] == shard.first + e).all()
            labels += shard.dyads.label.tolist()
            if given_dyads.weight is not None:
                np.testing.assert_array_equal(shard.dyads.weight, given_dyads.weight[shard.dyads.label])
        # Owners in turn, their dyads by relation, then as they came; those of a column by row.
        none = np.zeros(len(given_dyads))
        relation = none if given_dyads.relation is None else given_dyads.relation
        keys = (relation, given_dyads.row) if role == Role.ROW else (given_dyads.row, relation, given_dyads.col)
        assert labels == np.lexsort(keys).tolist()

    law()


@pytest.mark.usefixtures("small_shards")
def test_a_shard_of_columns_says_where_its_dyads_lie_in_the_order_of_rows():
    @given(dyads())
    def law(given_dyads):
        both = Orders(given_dyads, False, 1)
        by_row = np.concatenate([shard.dyads.label for shard in both.by_row])
        for shard in both.by_col:
            np.testing.assert_array_equal(by_row[shard.place], shard.dyads.label)

    law()


@given(dyads(one_set=True))
def test_a_node_has_its_dyads_in_either_role_and_a_self_link_once(given_dyads):
    (shard,) = Orders(given_dyads, True, 1).by_node
    for e in range(len(shard)):
        own = shard.dyads.take(shard.order[shard.start[e] : shard.start[e + 1]])
        mine = (given_dyads.row == e) | (given_dyads.col == e)
        assert sorted(own.label.tolist()) == np.flatnonzero(mine).tolist()


@given(dyads(one_set=True))
def test_nodes_of_a_turn_share_no_dyad_and_every_node_has_a_turn(given_dyads):
    (shard,) = Orders(given_dyads, True, 1).by_node
    turns = independent(shard)
    assert sorted(np.concatenate(turns).tolist()) == list(range(len(shard)))
    turn_of = np.concatenate([np.full(len(turn), n) for n, turn in enumerate(turns)])[np.argsort(np.concatenate(turns))]
    other = given_dyads.row != given_dyads.col
    assert (turn_of[given_dyads.row[other]] != turn_of[given_dyads.col[other]]).all()


@given(dyads())
def test_relations_of_a_shard_share_out_its_dyads(given_dyads):
    for shard in Orders(given_dyads, False, 1).by_row:
        grouped, relation = shard.by_relation, shard.dyads.relation
        assert sorted(grouped.order.tolist()) == list(range(len(shard.dyads)))
        for t in range(given_dyads.n_relations):
            own = grouped.order[grouped.start[t] : grouped.start[t + 1]]
            assert relation is None or (relation[own] == t).all()


@given(st.integers(0, 10**10))
def test_sgd_has_one_group_or_an_even_number_for_two_threads(n_dyads):
    n_groups = host.n_groups(n_dyads)
    assert n_groups == 1 or n_groups % 2 == 0
    assert n_groups <= host.MAX_GROUPS
    assert n_groups >= min(np.sqrt(n_dyads / host.CELL), host.MAX_GROUPS) - 1
