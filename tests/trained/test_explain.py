"""Explanations sum to the log-odds, and each part is what it says."""

import matplotlib.figure
import numpy as np
import pandas as pd
import polars as pl
import pytest

from dyads import LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, SideInformation
from dyads.errors import InputError, UnknownIdWarning
from dyads.report import ExplanationDisplay
from shop import ITEMS, USERS, WITH, X, Y, with_features

NUMBERS = np.searchsorted(["maybe", "no", "yes"], Y)


def sums(table, n, n_labels):
    wide = table.pivot_table(index="dyad", columns="label", values="value", aggfunc="sum")
    assert wide.shape == (n, n_labels)
    return wide.to_numpy()


@pytest.mark.parametrize("estimator", [LFLClassifier, LFLOrdinal])
@pytest.mark.parametrize("choices", [{}, {"reference": "first"}, {"bias": False}, WITH, with_features(interactions=1)])
@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_parts_sum_to_the_log_odds(estimator, choices, solver):
    y = Y if estimator is LFLClassifier else NUMBERS
    if "reference" in choices:
        choices = {"reference": np.unique(y)[0]}
    model = estimator(**{"rank": 2, "l2": 0.5, "solver": solver, "random_state": 0, **choices}).fit(X, y)
    strange = pd.DataFrame({"user": ["u1", "?", "?"], "item": ["?", "i1", "?"]})
    for pairs in (X.head(40), strange):
        if pairs is strange:
            with pytest.warns(UnknownIdWarning):
                odds = model.log_odds(pairs)
        else:
            odds = model.log_odds(pairs)
        np.testing.assert_allclose(sums(model.explain(pairs), len(pairs), 3), odds, atol=1e-10)


def test_each_part_is_what_it_says():
    wide = X.assign(hour=np.linspace(0, 24, len(X)))
    model = LFLClassifier(rank=0, solver="point", **WITH).fit(wide, Y)
    parts = model.explain(wide.head(1))
    assert np.abs(parts.loc[parts["part"] == "latent", "value"]).max() < 1e-12
    user, item = wide.iloc[0][["user", "item"]]
    age, city = USERS.set_index("user").loc[user]
    assert {"row: age", f"row: city={city}", "col: price", "dyad: hour"} <= set(parts["part"])
    assert [f"col: tags={tag}" in set(parts["part"]) for tag in ("new", "red", "big")] == [
        tag in ITEMS.set_index("item").loc[item, "tags"] for tag in ("new", "red", "big")
    ]
    seen = USERS["age"][USERS["user"].isin(X["user"])]
    weight = model.parts_["row_bias_side"][0]
    expected = (age - seen.mean()) / seen.std(ddof=0) * (weight - weight.mean())
    np.testing.assert_allclose(parts.loc[parts["part"] == "row: age", "value"], expected)
    latent = LFLClassifier(rank=2, l2=0.3, random_state=0).fit(X, Y)
    row, col = (list(ids).index(one) for ids, one in ((latent.row_ids_, user), (latent.col_ids_, item)))
    product = (latent.row_factors_[row] * latent.col_factors_[col]).sum(axis=1)
    told = latent.explain(X.head(1))
    np.testing.assert_allclose(told.loc[told["part"] == "latent", "value"], product - product.mean())


def test_links_and_relations_are_explained_too():
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 20, (300, 2))
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    y = (pairs.sum(axis=1) % 2).astype(int)
    pairs = pairs[np.unique(pairs, axis=0, return_index=True)[1]]
    y = (pairs.sum(axis=1) % 2).astype(int)
    node = {"id": np.arange(20), "odd": np.arange(20) % 2 == 1}
    for structure in ("symmetric", "spectral", "directed"):
        model = LFLLink(rank=2, l2=0.3, structure=structure, features=SideInformation(row=node), random_state=0).fit(
            pairs, y
        )
        told = model.explain(pairs[:9]).to_pandas()
        np.testing.assert_allclose(sums(told, 9, 2), model.log_odds(pairs[:9]), atol=1e-10)
        assert any(part.startswith("col: odd") for part in told["part"])
    kinds = pd.DataFrame(pairs, columns=["a", "b"]).assign(kind=np.where(pairs[:, 0] % 3, "x", "y"))
    model = LFLRelational(rank=2, l2=0.3, random_state=0).fit(kinds, y)
    np.testing.assert_allclose(sums(model.explain(kinds.head(9)), 9, 2), model.log_odds(kinds.head(9)), atol=1e-10)


def test_no_pairs_have_no_parts_in_columns_of_the_same_types():
    model = LFLClassifier(rank=1, random_state=0, solver="point").fit(X, Y)
    told = model.explain(X.head(2))
    for none in (X[:0], {"user": [], "item": []}, [], np.empty((0, 2), dtype=str), pl.from_pandas(X[:0])):
        table = model.explain(none)
        assert len(table) == 0
        pd.testing.assert_series_equal(table.dtypes, told.dtypes)
        assert model.predict_proba(none).shape == model.log_odds(none).shape == (0, 3)
        assert model.predict(none).dtype == model.classes_.dtype


def test_the_ids_are_repeated_under_their_own_names():
    kinds = X.assign(kind=np.where(np.arange(len(X)) % 2, "x", "y"))
    model = LFLRelational(rank=1, l2=0.3, random_state=0).fit(kinds, NUMBERS > 1)
    asked = kinds[5:8].assign(further=1.0)
    told = model.explain(asked)
    assert told.columns.tolist() == ["dyad", "user", "item", "kind", "label", "part", "value"]
    for name in kinds:
        assert told[name].tolist() == asked[name].to_numpy()[told["dyad"]].tolist()
    unnamed = LFLClassifier(rank=1, random_state=0, solver="point").fit(X.to_numpy(dtype=str), Y)
    assert unnamed.explain(X[:1]).columns.tolist() == ["dyad", "0", "1", "label", "part", "value"]
    with pytest.warns(UnknownIdWarning):
        model.log_odds(asked.assign(user="?"))
    assert set(model.explain(asked.assign(user="?"))["user"]) == {"?"}


def test_a_picture_of_one_dyad():
    figure = matplotlib.figure.Figure()
    model = LFLClassifier(rank=2, **WITH).fit(X, Y)
    shown = ExplanationDisplay.from_estimator(model, X.head(3), dyad=1, ax=figure.subplots())
    assert {"latent", "row: age", "sum: log-odds"} <= {tick.get_text() for tick in shown.ax_.get_yticklabels()}
    with pytest.raises(InputError, match="dyad=7 is not in the table: expected 0 to 2"):
        ExplanationDisplay.from_predictions(model.explain(X.head(3)), dyad=7)
