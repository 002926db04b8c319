"""A model is judged by what it knew of the ids."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dyads
from dyads import LFLClassifier, LFLOrdinal
from dyads.errors import InputError
from test_coldstart import WITH, X, Y


def test_regimes_are_judged_side_by_side():
    old = (~X["user"].isin(["u1", "u2"]) & ~X["item"].isin(["i1", "i2"])).to_numpy()
    model = LFLClassifier(rank=1, random_state=0).fit(X[old], Y[old])
    table = dyads.evaluate(model, X, Y).set_index("regime")
    assert table.index.tolist() == ["known", "new row", "new column", "both new", "all"]
    assert table.loc["known", "n"] == old.sum()
    assert table["n"].iloc[:-1].sum() == table.loc["all", "n"] == len(X)
    known = dyads.metrics.log_loss(Y[old], model.predict_proba(X[old]), model.classes_)
    assert table.loc["known", "log_loss"] == pytest.approx(known)
    assert table.loc["known", "accuracy"] == pytest.approx(model.score(X[old], Y[old]))
    informed = dyads.evaluate(LFLClassifier(rank=1, **WITH).fit(X[old], Y[old]), X, Y).set_index("regime")
    assert informed.loc["both new", "log_loss"] < table.loc["both new", "log_loss"]


def test_ordered_labels_have_an_absolute_error_and_weights_count():
    stars = 1 + np.searchsorted(["maybe", "no", "yes"], Y)
    model = LFLOrdinal(rank=1, random_state=0).fit(X, stars)
    table = dyads.evaluate(model, X.to_numpy(), stars)
    assert isinstance(table, pa.Table)
    assert table["mean_absolute_error"][0].as_py() == pytest.approx(-model.score(X, stars))
    weight = np.where(np.arange(len(X)) < 100, 1.0, 0.0)
    some = dyads.evaluate(model, X, stars, weight).set_index("regime")
    part = dyads.evaluate(model, X[:100], stars[:100]).set_index("regime")
    np.testing.assert_allclose(some.loc["all"].iloc[1:4], part.loc["all"].iloc[1:4])
    with pytest.raises(InputError, match="dyads but 3 labels"):
        dyads.evaluate(model, X, stars[:3])
    texts = LFLOrdinal(rank=1, random_state=0).fit(X, Y)
    assert isinstance(dyads.evaluate(texts, pd.DataFrame(X), Y), pd.DataFrame)
