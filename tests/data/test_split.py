"""Splitters hold out what they say, for scikit-learn too."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

from dyads import LFLClassifier, split
from dyads.errors import InputError, UnknownIdWarning

RNG = np.random.default_rng(0)
X = pd.DataFrame({"user": RNG.integers(0, 30, 900), "item": RNG.integers(0, 20, 900)})
Y = RNG.integers(0, 2, 900)
ROW, COL = X["user"].to_numpy(), X["item"].to_numpy()


def parts(splitter):
    found = list(splitter.split(X))
    assert len(found) == splitter.get_n_splits()
    for train, test in found:
        assert not set(train) & set(test)
    return found


def test_random_cells_test_each_dyad_once():
    tested = np.concatenate([test for _, test in parts(split.RandomCells(4))])
    assert sorted(tested) == list(range(900))


def test_k_of_each_row_are_left_out():
    for train, test in parts(split.LeaveKPerRow(3, k=2)):
        assert (np.bincount(ROW[test], minlength=30) == 2).all()
        assert len(train) + len(test) == 900
    few = pd.DataFrame({"user": [1, 1, 1, 2], "item": [1, 2, 3, 4]})
    assert {few["user"][i] for _, test in split.LeaveKPerRow(5).split(few) for i in test} == {1}


@pytest.mark.parametrize(
    ("splitter", "rows_known", "cols_known"),
    [(split.NewRows(5), False, True), (split.NewColumns(5), True, False), (split.NewBoth(3), False, False)],
)
def test_new_ids_are_new(splitter, rows_known, cols_known):
    for train, test in parts(splitter):
        assert np.isin(ROW[test], ROW[train]).all() == rows_known
        assert np.isin(ROW[test], ROW[train]).any() == rows_known
        assert np.isin(COL[test], COL[train]).all() == cols_known
        assert np.isin(COL[test], COL[train]).any() == cols_known
    if not isinstance(splitter, split.NewBoth):
        assert sorted(np.concatenate([test for _, test in parts(splitter)])) == list(range(900))


def test_time_runs_forward():
    time = RNG.permutation(900) // 3
    ends = []
    for train, test in parts(split.ByTime(4, time=time)):
        assert time[train].max() < time[test].min()
        ends.append(time[test].max())
    assert ends == sorted(ends)
    with pytest.raises(InputError, match="expected one time for each of the 900 dyads"):
        next(split.ByTime(time=time[:5]).split(X))


def test_a_seed_gives_the_same_split_and_another_one_another():
    same = [list(split.NewRows(3, random_state=seed).split(X)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(same[0][0][1], same[1][0][1])
    assert len(same[0][0][1]) != len(same[2][0][1]) or (same[0][0][1] != same[2][0][1]).any()


def test_named_columns_and_arrays_split_alike():
    by_name = list(split.NewRows(3, id_columns=("user", "item")).split(X[["item", "user"]]))
    by_place = list(split.NewRows(3).split(X.to_numpy()))
    np.testing.assert_array_equal(by_name[0][1], by_place[0][1])


def test_scikit_learn_takes_them():
    model = LFLClassifier(rank=1, random_state=0, solver="point")
    with pytest.warns(UnknownIdWarning):
        scores = cross_val_score(model, X, Y, cv=split.NewRows(3))
    assert len(scores) == 3
    search = GridSearchCV(model, {"l2": [1.0, 10.0]}, cv=split.RandomCells(2)).fit(X, Y)
    assert search.best_params_["l2"] in (1.0, 10.0)


def test_a_split_without_dyads_is_refused():
    with pytest.raises(InputError, match="expected at least one of each"):
        list(split.NewRows(5).split(X.head(1)))


def test_a_share_of_dyads_of_rows_or_of_the_latest_is_held_out():
    assert split.random_share(np.arange(900), 0.15, 0).sum() == 135
    held_out = split.random_share(X["user"], 0.2, 0)
    assert len(set(ROW[held_out])) == 6
    assert not set(ROW[held_out]) & set(ROW[~held_out])
    assert (held_out != split.random_share(X["user"], 0.2, 1)).any()
    times = RNG.permutation(900) // 7
    latest = split.latest_share(times, 0.3)
    assert times[latest].min() > times[~latest].max(), "equal times stay together"
    assert abs(latest.sum() - 270) < 7
