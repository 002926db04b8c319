"""What the methods that predict return: arrays, or tables of the library asked for."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.metrics import log_loss

from dyads import Gibbs, LFLClassifier, load
from dyads.data.tables import as_arrow
from dyads.errors import InputError
from shop import X, Y

pytestmark = pytest.mark.filterwarnings("ignore:The chains have not mixed")

TABLES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table}
LABELS = sorted(set(Y))


@pytest.fixture(scope="module")
def fitted():
    model = LFLClassifier(rank=1, solver=Gibbs(sweeps=5), random_state=0).fit(X, Y)
    return model.conformalize(X, Y)


def values(table):
    arrow = as_arrow(table)
    return np.column_stack([arrow[name].to_numpy() for name in arrow.column_names])


@pytest.mark.parametrize("library", TABLES)
def test_arrays_by_label_become_tables_with_the_labels_as_names(fitted, library):
    model = copy.copy(fitted).set_output(library)
    for method in ("predict_proba", "log_odds", "predict_set"):
        table = getattr(model, method)(X)
        assert type(table) is TABLES[library]
        assert as_arrow(table).column_names[: len(LABELS)] == LABELS
        np.testing.assert_array_equal(values(table)[:, : len(LABELS)], getattr(fitted, method)(X))
    bounds = model.predict_interval(X)
    assert as_arrow(bounds).column_names[:2] == [f"{LABELS[0]}_lower", f"{LABELS[0]}_upper"]
    np.testing.assert_array_equal(values(bounds).reshape(len(X), -1, 2), fitted.predict_interval(X))


@pytest.mark.parametrize("library", TABLES)
def test_tables_are_of_the_library_asked_for(fitted, library):
    model = copy.copy(fitted).set_output(library)
    ids = X["user"].unique()[:2].tolist()
    tables = model.recommend(ids, by="yes"), model.similar(ids), model.explain(X[:2]), model.ask(ids[0])
    assert {type(table) for table in tables} == {TABLES[library]}
    back = model.set_output("default")
    assert type(back.predict_proba(X)) is np.ndarray
    assert type(back.explain(X[:2])) is pd.DataFrame, "the library of the fit"


def test_a_pandas_table_has_the_index_of_x(fitted):
    model, shuffled = copy.copy(fitted).set_output("pandas"), X.sample(frac=1, random_state=0)
    joined = shuffled.join(model.predict_proba(shuffled)).loc[X.index]
    np.testing.assert_array_equal(joined[LABELS], fitted.predict_proba(X))
    assert list(model.predict_proba(pl.from_pandas(X)).index) == list(range(len(X)))


def test_the_choice_changes_nothing_else(fitted, tmp_path):
    model = copy.copy(fitted).set_output("pandas")
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(model.decision_function(X), fitted.decision_function(X))
    assert model.score(X, Y) == fitted.score(X, Y)
    assert log_loss(Y, model.predict_proba(X)) == log_loss(Y, fitted.predict_proba(X))
    model.save(tmp_path / "shop.dyads")
    again = clone(model).fit(X, Y)
    for other in (again, load(tmp_path / "shop.dyads")):
        assert type(other.predict_proba(X)) is np.ndarray


def test_an_unknown_or_missing_library_is_told(fitted):
    for library in ("panda", "arrow", None):
        with pytest.raises(InputError, match="expected one of 'cudf', 'default'"):
            copy.copy(fitted).set_output(library)
    with pytest.raises(InputError, match="pip install modin"):
        copy.copy(fitted).set_output("modin")
