"""What a user relies on: the model's laws, its manners, and what bad input gets."""

import logging
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import OneHotEncoder

import dyads
from dyads import L2, LBFGS, SGD, Gibbs, LFLClassifier, LFLOrdinal, LFLOrdinalCV, metrics
from dyads.datasets.synthetic import make_nominal, make_store
from dyads.engine import CPU
from dyads.errors import (
    DivergenceError,
    DtypeError,
    InputError,
    NotConvergedWarning,
    UnknownIdError,
    UnknownIdWarning,
    VanishedWarning,
)
from dyads.solve import SOLVERS
from shop import X, Y

BOTH_SOLVERS = pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
POINT_AND_POSTERIOR = pytest.mark.parametrize("solver", ["point", Gibbs(sweeps=20)], ids=["point", "posterior"])


def ratings(n=400, n_rows=20, n_cols=15, n_labels=5, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.integers(0, n_rows, n), rng.integers(100, 100 + n_cols, n)])
    taste = rng.normal(size=(n_rows, 2)) @ rng.normal(size=(2, n_cols))
    y = np.clip(np.round(3 + taste[X[:, 0], X[:, 1] - 100] + rng.normal(scale=0.5, size=n)), 1, n_labels).astype(int)
    return X, y


# ------------------------------------------------------------------------------------------------------- the laws


@pytest.mark.parametrize("n_labels", [2, 3, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_rank_zero_is_multinomial_logistic_regression(n_labels, weighted):
    X, y = ratings()
    y = y % n_labels
    weight = np.random.default_rng(1).uniform(0.2, 3, len(y)) if weighted else None
    l2 = 0.8
    model = LFLClassifier(rank=0, l2=L2(bias=l2), solver=LBFGS(max_iter=5000, tol=1e-13))
    model.fit(X, y, sample_weight=weight)
    encoder = OneHotEncoder().fit(X)
    rival = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=20000).fit(encoder.transform(X), y, weight)
    p = rival.predict_proba(encoder.transform(X))
    loss = metrics.log_loss(y, p, model.classes_, weight) * (len(y) if weight is None else weight.sum())
    # scikit-learn gives two labels one set of weights, as a pinned base does.
    assert model.objective_ == pytest.approx(loss + l2 / 2 * (rival.coef_**2).sum(), rel=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), p, atol=1e-3)


@pytest.mark.parametrize(
    "loss", ["log", *(pytest.param(x, marks=pytest.mark.slow) for x in ("brier", "absolute", "squared"))]
)
def test_lbfgs_ends_at_a_stationary_point(loss):
    X, y = ratings()
    model = LFLOrdinal(rank=2, loss=loss, l2=1.0, solver=LBFGS(max_iter=5000, tol=1e-14), random_state=0).fit(X, y)
    decreases = -np.diff(model.trace_["objective"])
    assert (decreases >= -1e-9).all(), "L-BFGS never climbs"
    problem, theta = model.problem(X, y)
    with problem:
        value, gradient = problem.value_and_gradient(theta)
    assert value == pytest.approx(model.objective_, rel=1e-9), "centring is undone exactly"
    assert np.abs(gradient).max() < 1e-2


def test_both_solvers_minimise_the_same_objective():
    data = make_nominal(n=60, rank=2, width=2.0, random_state=1)
    for scaling, l2 in (("none", 1.0), ("inverse_sqrt", 5.0), ("count", 0.01)):
        common = {"rank": 2, "l2": L2(latent=l2, bias=l2, scaling=scaling), "random_state": 0, "n_init": 3}
        batch = LFLClassifier(solver="lbfgs", **common).fit(data.X, data.y)
        steps = LFLClassifier(solver=SGD(max_iter=100), **common).fit(data.X, data.y)
        assert steps.objective_ == pytest.approx(batch.objective_, rel=0.02)
        difference = np.abs(steps.predict_proba(data.X) - batch.predict_proba(data.X)).mean()
        assert difference < 0.05


@BOTH_SOLVERS
def test_a_planted_truth_is_recovered(solver):
    train, test = make_nominal(n=150, rank=2, width=2.0, random_state=0).split(0.8)
    model = LFLClassifier(rank=2, l2=0.5, solver=solver, random_state=0).fit(train.X, train.y)
    assert 1 - model.score(test.X, test.y) < test.bayes_error + 0.025
    loss = metrics.log_loss(test.y, model.predict_proba(test.X), test.classes)
    assert loss < metrics.log_loss(test.y, test.proba, test.classes) + 0.07


@BOTH_SOLVERS
def test_a_checkerboard_is_learnt(solver):
    """An answer visible by eye: no row and no column has a propensity, only the pair decides."""
    row, col = np.divmod(np.arange(900), 30)
    y = np.where((row + col) % 2 == 0, "black", "white")
    held = np.random.default_rng(0).random(900) < 0.2
    X = pd.DataFrame({"rank": row, "file": col})
    model = LFLClassifier(rank=1, l2=0.1, n_init=3, solver=solver, random_state=0).fit(X[~held], y[~held])
    assert model.score(X[held], y[held]) == 1
    assert LFLClassifier(rank=0, solver="point").fit(X[~held], y[~held]).score(X[held], y[held]) < 0.7


@BOTH_SOLVERS
def test_the_same_seed_gives_the_same_model_with_one_and_two_threads(solver):
    data, _ = make_store(n_shoppers=200, n_products=150).split(0.9)
    models = [
        LFLClassifier(rank=3, solver=SOLVERS[solver](max_iter=8), engine=CPU(n_jobs), random_state=3).fit(
            data.X, data.y
        )
        for n_jobs in (1, 2)
    ]
    thetas = [model.record_.draws[0].theta.tobytes() for model in models]
    assert thetas[0] == thetas[1]
    other = LFLClassifier(rank=3, solver=SOLVERS[solver](max_iter=8), random_state=4).fit(data.X, data.y)
    assert other.record_.draws[0].theta.tobytes() != thetas[0]


@BOTH_SOLVERS
def test_scaling_weights_and_penalties_together_changes_nothing(solver):
    X, y = ratings()
    models = [
        LFLClassifier(rank=2, l2=L2(latent=k, bias=k), solver=solver, random_state=0).fit(X, y, np.full(len(y), k))
        for k in (1.0, 1e-4, 1e4)
    ]
    for model, k in zip(models, (1.0, 1e-4, 1e4), strict=True):
        assert model.objective_ / k == pytest.approx(models[0].objective_, rel=1e-3)


@POINT_AND_POSTERIOR
def test_zero_weights_are_no_dyads(solver):
    X, y = ratings()
    weight = np.ones(len(y))
    X = np.vstack([X, [[999, 100], [3, 999]]])
    y, weight = np.append(y, [7, 7]), np.append(weight, [0, 0])
    weighted = LFLClassifier(rank=2, random_state=0, solver=solver).fit(X, y, weight)
    plain = LFLClassifier(rank=2, random_state=0, solver=solver).fit(X[:-2], y[:-2])
    assert weighted.classes_.tolist() == plain.classes_.tolist()
    assert 999 not in weighted.row_ids_
    assert 999 not in weighted.col_ids_
    np.testing.assert_allclose(weighted.predict_proba(X[:-2]), plain.predict_proba(X[:-2]), atol=1e-8)


@POINT_AND_POSTERIOR
def test_the_same_table_in_any_library_gives_the_same_model(solver):
    X, y = ratings()
    columns = {"user": X[:, 0], "item": X[:, 1]}
    tables = [columns, pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns), X, X.tolist()]
    fits = [LFLOrdinal(rank=2, random_state=0, solver=solver).fit(table, y) for table in tables]
    for table, model in zip(tables, fits, strict=True):
        np.testing.assert_array_equal(model.predict_proba(table), fits[0].predict_proba(columns))


@pytest.mark.parametrize("base", ["bought", "viewed", None])
def test_the_base_has_no_weights_and_zero_log_odds(base):
    data, _ = make_store(n_shoppers=40, n_products=30).split(0.8)
    model = LFLClassifier(rank=2, reference=base, random_state=0, solver="point").fit(data.X, data.y)
    odds = model.log_odds(data.X)
    np.testing.assert_allclose(np.exp(odds) / np.exp(odds).sum(1, keepdims=True), model.predict_proba(data.X))
    if base is None:
        np.testing.assert_allclose(odds.sum(axis=1), 0, atol=1e-9)
        assert model.row_factors_.all()
    else:
        index = list(model.classes_).index(base)
        assert not odds[:, index].any()
        assert not model.row_factors_[:, index].any()
    assert model.row_factors_.shape == (40, 3, 2)
    assert model.col_factors_.shape == (30, 3, 2)
    np.testing.assert_array_equal(model.decision_function(data.X), odds)


def test_two_labels_pin_the_first_by_default():
    X, y = ratings()
    y = np.where(y > 3, "like", "hate")
    model = LFLClassifier(rank=2, random_state=0, solver="point").fit(X, y)
    assert model.record_.parts.structure.reference == 0
    assert model.n_parameters_ == (20 + 15) * 3 + 1
    assert model.decision_function(X).shape == (len(y),)
    assert ((model.decision_function(X) > 0) == (model.predict(X) == "like")).all()


def test_without_biases_the_label_bias_remains():
    X, y = ratings()
    marginal = np.bincount(y)[1:] / len(y)
    model = LFLClassifier(rank=0, bias=False, solver=LBFGS(tol=1e-12)).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X[:2]), [marginal, marginal], atol=1e-6)


@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt"])
def test_separate_penalties_act_on_their_blocks(scaling):
    X, y = ratings()

    def norms(**penalty):
        model = LFLClassifier(rank=2, l2=L2(latent=0.5, scaling=scaling, **penalty), random_state=0).fit(X, y)
        return {name: np.linalg.norm(part) for name, part in model.parts_.items()}

    plain = norms(bias=0.5)
    assert norms(bias=100.0)["row_bias"] < 0.2 * plain["row_bias"]
    assert norms(bias=0.5, row=100.0)["row_factors"] < 0.2 * plain["row_factors"]
    assert norms(bias=0.5, col=100.0)["col_factors"] < 0.2 * plain["col_factors"]


# ---------------------------------------------------------------------------------------------------- predictions


def test_ordinal_predicts_the_median_for_log_and_the_nearest_to_the_mean_for_squared():
    X, y = ratings()
    for loss, decide in (
        ("log", lambda p, v: v[(p.cumsum(1) < 0.5).sum(1)]),
        ("squared", lambda p, v: v[np.abs((p @ v)[:, None] - v).argmin(1)]),
    ):
        model = LFLOrdinal(rank=2, loss=loss, random_state=0, solver="point").fit(X, y)
        p, values = model.predict_proba(X), model.classes_
        np.testing.assert_array_equal(model.predict(X), decide(p, values))
        np.testing.assert_allclose(model.predict_mean(X), p @ values)
        assert model.score(X, y) == pytest.approx(-np.abs(model.predict(X) - y).mean())


def test_half_stars_and_booleans_are_ordered_labels():
    X, y = ratings()
    stars = LFLOrdinal(rank=1, random_state=0, solver="point").fit(X, y / 2)
    assert stars.classes_.tolist() == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert 0 < LFLClassifier(rank=1, random_state=0, solver="point").fit(X, y / 2).score(X, y / 2) <= 1
    assert set(stars.predict(X)) <= set(stars.classes_)
    flags = LFLOrdinal(rank=1, random_state=0, solver="point").fit(X, y > 3)
    assert flags.predict(X).dtype == bool
    assert flags.score(X, y > 3) == pytest.approx(-(flags.predict(X) != (y > 3)).mean())


@POINT_AND_POSTERIOR
def test_a_cost_matrix_gives_the_label_of_least_expected_cost(solver):
    X, y = ratings()
    model = LFLClassifier(rank=2, random_state=0, solver=solver).fit(X, y)
    np.testing.assert_array_equal(model.predict(X, cost=1 - np.eye(5)), model.predict(X))
    never_one = np.tile([0.0, 1, 1, 1, 1], (5, 1))
    assert set(model.predict(X, cost=never_one)) == {1}
    asymmetric = np.random.default_rng(0).uniform(size=(5, 5))
    expected = model.classes_[(model.predict_proba(X) @ asymmetric).argmin(axis=1)]
    np.testing.assert_array_equal(model.predict(X, cost=asymmetric), expected)
    with pytest.raises(InputError, match=r"shape \(2, 2\).*\(5, 5\)"):
        model.predict(X, cost=np.eye(2))


@POINT_AND_POSTERIOR
def test_unknown_ids_follow_their_policy(solver):
    X, y = ratings()
    model = LFLClassifier(rank=2, random_state=0, solver=solver).fit(X, y)
    strange = [[0, 100], [-5, 100], [-5, -5]]
    with pytest.warns(UnknownIdWarning, match="Of 3 dyads, 2 have a row id and 1 have a column id not seen") as caught:
        p = model.predict_proba(strange)
    assert len(caught) == 1
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(p[2], np.bincount(y, minlength=6)[1:] / len(y), atol=0.02)

    model.set_params(unknown="nan")
    with pytest.warns(UnknownIdWarning):
        p = model.predict_proba(strange)
    assert np.isnan(p).all(axis=1).tolist() == [False, True, True]
    with pytest.warns(UnknownIdWarning), pytest.raises(UnknownIdError, match="2 dyads"):
        model.predict(strange)

    model.set_params(unknown="raise")
    with pytest.raises(UnknownIdError, match="Of 3 dyads, 2 have"):
        model.predict(strange)
    model.predict(X)


def test_an_unknown_row_is_an_average_row():
    """Rows of one kind much more frequent than the others: the average leans to them."""
    X = [["often", c] for c in range(30)] * 3 + [["seldom", c] for c in range(10)]
    y = ["yes"] * 85 + ["no"] * 5 + ["no"] * 10
    model = LFLClassifier(rank=0, l2=L2(bias=0.1)).fit(X, y)
    with pytest.warns(UnknownIdWarning):
        new = model.predict_proba([["new", 3]])[0, 1]
    often, seldom = model.predict_proba([["often", 3], ["seldom", 3]])[:, 1]
    assert seldom < new < often
    assert often - new < new - seldom


@POINT_AND_POSTERIOR
def test_other_column_names_are_refused_not_guessed(solver):
    X, y = ratings()
    model = LFLClassifier(rank=1, random_state=0, solver=solver).fit(pd.DataFrame(X, columns=["user", "item"]), y)
    with pytest.raises(InputError, match=r"\['item', 'uid'\].*\['user', 'item'\]"):
        model.predict(pd.DataFrame(X, columns=["item", "uid"]))
    np.testing.assert_array_equal(model.predict(X), model.predict(pd.DataFrame(X, columns=["user", "item"])))


@POINT_AND_POSTERIOR
def test_no_dyads_give_no_predictions(solver):
    X, y = ratings()
    model = LFLOrdinal(rank=1, random_state=0, solver=solver).fit(X, y)
    for nothing in (X[:0], np.empty((0, 2)), {"0": [], "1": []}, pd.DataFrame(X[:0])):
        assert model.predict_proba(nothing).shape == (0, 5)
        assert model.predict(nothing).shape == (0,)


@POINT_AND_POSTERIOR
def test_columns_are_found_by_name_in_any_order(solver):
    X, y = ratings()
    frame = pd.DataFrame({"item": X[:, 1], "user": X[:, 0]})
    model = LFLClassifier(rank=1, id_columns=("user", "item"), random_state=0, solver=solver).fit(frame, y)
    assert set(model.row_ids_) == set(X[:, 0])
    np.testing.assert_array_equal(model.predict_proba(frame), model.predict_proba(frame[["user", "item"]]))
    swapped = LFLClassifier(rank=1, id_columns=("1", "0"), solver=solver).fit(X, y)
    assert set(swapped.row_ids_) == set(X[:, 1])


# ------------------------------------------------------------------------------------------------------- the fit


def test_restarts_keep_the_best_objective_and_the_trace_tells_them_apart():
    data, _ = make_nominal(n=40, rank=2).split(0.8)
    several = LFLClassifier(rank=2, l2=0.5, n_init=4, random_state=0).fit(data.X, data.y)
    trace = pd.DataFrame(several.trace_)
    assert list(trace.columns) == ["init", "iteration", "objective", "validation", "seconds"]
    finals = trace.groupby("init")["objective"].min()
    assert len(finals) == 4
    assert several.objective_ == pytest.approx(finals.min(), rel=1e-9)
    single = LFLClassifier(rank=2, l2=0.5, random_state=0).fit(data.X, data.y)
    assert several.objective_ <= single.objective_


@BOTH_SOLVERS
def test_early_stopping_keeps_the_iterate_of_least_held_out_loss(solver):
    X, y = ratings(n=1500, n_rows=60, n_cols=60)
    model = LFLClassifier(
        rank=8, l2=L2(latent=0.01, bias=0.01), solver=SOLVERS[solver](max_iter=200), early_stopping=0.1, random_state=0
    ).fit(X, y)
    overfitted = LFLClassifier(
        rank=8, l2=L2(latent=0.01, bias=0.01), solver=SOLVERS[solver](max_iter=200), random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        overfitted.fit(X, y)
    assert model.n_iter_ < overfitted.n_iter_
    assert np.isfinite(model.trace_["validation"]).all()
    assert np.argmin(model.trace_["validation"]) == model.n_iter_ - 1 - 3


@BOTH_SOLVERS
def test_an_entity_held_out_altogether_is_not_left_at_random(solver):
    X, y = ratings(n=300)
    lonely = np.column_stack([np.arange(1000, 1040), np.full(40, 100)])
    model = LFLClassifier(rank=2, solver=solver, early_stopping=0.5, random_state=0)
    model.fit(np.vstack([X, lonely]), np.append(y, y[:40]))
    sizes = np.linalg.norm(model.row_factors_[model.row_ids_ >= 1000], axis=(1, 2))
    assert (sizes == 0).sum() > 10
    assert (sizes > 0).sum() > 10


def test_a_warm_start_continues_and_knows_ids_by_name():
    X, y = ratings()
    model = LFLClassifier(rank=2, l2=1.0, solver=LBFGS(tol=1e-9), warm_start=True, random_state=0).fit(X, y)
    first, iterations = model.objective_, model.n_iter_
    model.fit(X[::-1], y[::-1])
    assert model.n_iter_ < iterations / 2
    assert model.objective_ <= first * (1 + 1e-6)
    model.fit(np.vstack([X, [[77, 100]]]), np.append(y, 1))
    assert 77 in model.row_ids_
    with pytest.raises(InputError, match="warm_start"):
        model.set_params(rank=3).fit(X, y)


def test_a_callback_sees_every_iteration_and_may_stop():
    X, y = ratings()
    seen = []
    model = LFLClassifier(rank=2, random_state=0, solver="point").fit(
        X, y, callback=lambda step: seen.append(step) or len(seen) == 4
    )
    assert [step.iteration for step in seen] == [1, 2, 3, 4]
    assert model.n_iter_ == 4
    assert not model.converged_
    LFLClassifier(rank=2, n_init=3, solver="point").fit(X, y, callback=lambda step: seen.append(step) or np.True_)
    assert len(seen) == 5, "a stopped fit is not started again"


def test_verbose_logs_and_the_library_never_prints(caplog, capsys):
    X, y = ratings()
    LFLClassifier(rank=1, solver="point").fit(X, y)
    assert not caplog.records
    with caplog.at_level(logging.INFO, logger="dyads"):
        model = LFLClassifier(rank=1, verbose=1, solver="point").fit(X, y)
    assert len(caplog.records) == model.n_iter_
    assert "objective" in caplog.text
    assert capsys.readouterr().out == ""


def test_vanished_latent_weights_are_said():
    X, y = ratings()
    with pytest.warns(VanishedWarning, match="Lower l2"):
        LFLClassifier(rank=3, l2=1000.0, random_state=0).fit(X, y)


def test_warnings_point_at_the_users_line():
    X, y = ratings()
    model = LFLClassifier(rank=1, l2=1.0, random_state=0).fit(X, y)
    for method in (model.predict, model.predict_proba, model.decision_function, lambda X: model.score(X, [1])):
        with pytest.warns(UnknownIdWarning) as caught:
            method([[-1, 100]])
        assert caught[0].filename == __file__


def test_auto_chooses_the_solver_by_dyads_labels_and_rank():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 40, (60_000, 2)), rng.integers(0, 6, 60_000)
    for n, n_labels, rank, expected in (
        (15_000, 2, 2, "lbfgs"),
        (60_000, 2, 2, "sgd"),
        (15_000, 2, 120, "sgd"),
        (15_000, 6, 20, "sgd"),
    ):
        model = LFLClassifier(rank=rank, random_state=0, solver="point").fit(X[:n], y[:n] % n_labels)
        assert model.solver_ == expected


def test_not_converging_is_a_warning_and_readable():
    X, y = ratings()
    with pytest.warns(NotConvergedWarning, match="stopped after 2 iterations"):
        model = LFLClassifier(rank=2, solver=LBFGS(max_iter=2)).fit(X, y)
    assert not model.converged_


@BOTH_SOLVERS
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_is_a_named_error_and_the_last_finite_state_is_kept(solver):
    X, y = ratings()
    weight = np.full(len(y), 1e306 if solver == "lbfgs" else 1.0)
    model = LFLClassifier(rank=2, solver=SGD(learning_rate=1e38) if solver == "sgd" else solver, random_state=0)
    with pytest.raises(DivergenceError, match=r"(iteration|epoch) \d+.*(l2|learning_rate)"):
        model.fit(X, y, weight)
    assert np.isfinite(model.predict_proba(X)).all()
    assert not model.converged_


# ---------------------------------------------------------------------------------------- scikit-learn's manners


@POINT_AND_POSTERIOR
def test_fit_alters_no_parameter_and_nothing_is_learnt_before_it(solver):
    X, y = ratings()
    model = LFLClassifier(rank=2, random_state=0, solver=solver)
    before = model.get_params()
    assert not [name for name in vars(model) if name.endswith("_")]
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "row_factors_")
    assert model.fit(X, y) is model
    assert model.get_params() == before


def test_scikit_learn_can_clone_search_and_pickle():
    X, y = ratings()
    search = GridSearchCV(
        LFLClassifier(rank=1, random_state=0, engine=CPU(1), solver="point"),
        {"l2": [1.0, 10.0]},
        cv=2,
        scoring="neg_log_loss",
    )
    search.fit(X, y)
    assert search.best_params_["l2"] in (1.0, 10.0)
    assert len(cross_val_score(LFLOrdinal(rank=1, solver="point"), X, y, cv=2)) == 2
    copy = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(copy.predict_proba(X), search.best_estimator_.predict_proba(X))


# ------------------------------------------------------------------------------------------------------ bad input


GOOD_X, GOOD_Y = ratings(n=50)


@pytest.mark.parametrize(
    ("parameters", "X", "y", "weight", "says"),
    [
        ({}, GOOD_X[:, :1], GOOD_Y, None, r"1 feature\(s\) \(shape=\(50, 1\)\) while a minimum of 2 is required"),
        ({}, np.column_stack([GOOD_X, GOOD_Y]), GOOD_Y, None, "Column '2' of X holds the labels.*Drop '2'"),
        ({"id_columns": ("user", None)}, GOOD_X, GOOD_Y, None, "no column 'user'.*'0', '1'"),
        ({"id_columns": ("0", "0")}, GOOD_X, GOOD_Y, None, "twice"),
        ({}, GOOD_X, GOOD_Y[:-1], None, "50 dyads but 49 labels"),
        ({}, GOOD_X, GOOD_Y, np.ones(3), "50 dyads but 3 weights"),
        ({}, GOOD_X, GOOD_Y, -np.ones(50), "negative"),
        ({}, GOOD_X, GOOD_Y, np.zeros(50), "zero for every dyad"),
        ({}, GOOD_X, GOOD_Y, np.full(50, np.nan), "Sample_weight has NaN"),
        ({}, GOOD_X, np.ones(50), None, "at least two"),
        ({}, GOOD_X[:0], GOOD_Y[:0], None, "0 class"),
        ({"rank": -1}, GOOD_X, GOOD_Y, None, "rank=-1.*at least 0"),
        ({"rank": 2.5}, GOOD_X, GOOD_Y, None, "rank=2.5.*whole number"),
        ({"l2": -1.0}, GOOD_X, GOOD_Y, None, "l2=-1.0"),
        ({"l2": np.nan}, GOOD_X, GOOD_Y, None, "l2=nan"),
        ({"n_init": 0}, GOOD_X, GOOD_Y, None, "n_init=0"),
        ({"early_stopping": 1.0}, GOOD_X, GOOD_Y, None, "early_stopping=1.0"),
        ({"early_stopping": True}, GOOD_X, GOOD_Y, None, "such as 0.1"),
        ({"loss": "logg"}, GOOD_X, GOOD_Y, None, "did you mean 'log'"),
        ({"structure": "bilnear"}, GOOD_X, GOOD_Y, None, "did you mean 'bilinear'"),
        ({"solver": "lbgfs"}, GOOD_X, GOOD_Y, None, "did you mean 'lbfgs'"),
        ({"unknown": "rise"}, GOOD_X, GOOD_Y, None, "did you mean 'raise'"),
        ({"reference": 77}, GOOD_X, GOOD_Y, None, "reference=77 is not a label"),
        ({"reference": [1, 2]}, GOOD_X, GOOD_Y, None, "is not a label"),
        ({"loss": None}, GOOD_X, GOOD_Y, None, "loss=None is not known"),
        ({"loss": dyads.Absolute(delta=-1.0)}, GOOD_X, GOOD_Y, None, "delta=-1.0"),
        ({"engine": "gpu"}, GOOD_X, GOOD_Y, None, "engine='gpu' is not known"),
        ({"features": {"row": 1}}, GOOD_X, GOOD_Y, None, "expected SideInformation"),
        ({"id_columns": "user"}, GOOD_X, GOOD_Y, None, "expected 2 names"),
        ({"bias": "no"}, GOOD_X, GOOD_Y, None, "True or False"),
        ({"loss": "squared"}, GOOD_X, GOOD_Y, None, "LFLOrdinal"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str | dict) else "",
)
def test_bad_input_gets_a_sentence_before_any_work(parameters, X, y, weight, says):
    model = LFLClassifier(**parameters)
    with pytest.raises(InputError, match=says):
        model.fit(X, y, weight)
    assert not hasattr(model, "record_")


def test_ordered_texts_have_the_values_of_their_places():
    texts = np.array(["", "bad", "poor", "fair", "good", "best"])
    order = ["worst", *texts[1:]]
    words, codes = (
        LFLOrdinal(rank=1, order=order, random_state=0, solver="point").fit(GOOD_X, texts[GOOD_Y]),
        GOOD_Y - GOOD_Y.min(),
    )
    assert words.classes_.tolist() == [text for text in texts.tolist() if text in texts[GOOD_Y]]
    numbers = LFLOrdinal(rank=1, random_state=0, solver="point").fit(GOOD_X, codes)
    np.testing.assert_allclose(words.predict_mean(GOOD_X), numbers.predict_mean(GOOD_X))
    assert words.score(GOOD_X, texts[GOOD_Y]) == pytest.approx(numbers.score(GOOD_X, codes))
    with pytest.raises(InputError, match="label 'z' is not among those of the model"):
        words.score(GOOD_X[:1], ["z"])


LEVELS = ["low", "medium", "high", "top"]


def levels(n=200):
    """Pairs, levels of three kinds, and the same as numbers."""
    X, y = ratings(n)
    return X, np.array(LEVELS)[y % 3], y % 3


@pytest.mark.parametrize(
    "as_ordered",
    [
        lambda names: pd.Categorical(names, categories=LEVELS, ordered=True),
        lambda names: pd.Series(pd.Categorical(names, categories=LEVELS, ordered=True)),
        lambda names: pd.CategoricalIndex(pd.Categorical(names, categories=LEVELS, ordered=True)),
        lambda names: pl.Series(names.tolist(), dtype=pl.Enum(LEVELS)),
        lambda names: pa.array(pd.Categorical(names, categories=LEVELS, ordered=True)),
        lambda names: pa.chunked_array([pa.array(pd.Categorical(names, categories=LEVELS, ordered=True))]),
    ],
    ids=["Categorical", "Series", "Index", "Enum", "dictionary", "chunks"],
)
def test_ordered_categoricals_keep_their_order(as_ordered):
    X, names, codes = levels()
    model = LFLOrdinal(rank=0, solver="point").fit(X, as_ordered(names))
    assert model.classes_.tolist() == LEVELS[:3], "in order, without the category that does not occur"
    np.testing.assert_array_equal(
        model.predict_mean(X), LFLOrdinal(rank=0, solver="point").fit(X, codes).predict_mean(X)
    )
    assert LFLClassifier(rank=0, solver="point").fit(X, as_ordered(names)).classes_.tolist() == [
        "high",
        "low",
        "medium",
    ]


def test_a_model_of_ordered_texts_is_that_of_numbers(tmp_path):
    X, names, codes = levels()
    words, numbers = (
        LFLOrdinal(rank=1, order=LEVELS, random_state=0, solver="point"),
        LFLOrdinal(rank=1, random_state=0, solver="point"),
    )
    words.fit(X[:150], names[:150]).save(tmp_path / "words.dyads")
    words, numbers = dyads.load(tmp_path / "words.dyads"), numbers.fit(X[:150], codes[:150])
    assert words.classes_.tolist() == LEVELS[:3]
    assert list(words.order) == LEVELS
    assert words.score(X, names) == numbers.score(X, codes)
    np.testing.assert_array_equal(words.predict(X), np.array(LEVELS)[numbers.predict(X)])
    assert words.recommend([1]).equals(numbers.recommend([1])), "by the mean of the places"
    new = np.column_stack([np.full(15, 99), np.arange(100, 115)])
    for model, y in ((words, names), (numbers, codes)):
        model.fold_in(new, y[:15]).calibrate(X[150:], y[150:], "vector").conformalize(X[150:], y[150:])
    for table in (X, new):
        np.testing.assert_array_equal(words.predict_proba(table), numbers.predict_proba(table))
        np.testing.assert_array_equal(words.predict_set(table), numbers.predict_set(table))
    first = LFLOrdinal(rank=0, order=LEVELS, random_state=0, solver="point").partial_fit(
        X[:9], names[:9], classes=LEVELS
    )
    assert first.partial_fit(X, names).classes_.tolist() == LEVELS


@pytest.mark.parametrize(
    ("order", "as_labels", "says"),
    [
        (None, np.asarray, r"text \('high', 'low', 'medium'\).*ordered categorical.*order=.*--order low,medium,high"),
        (None, pd.Categorical, "their order is unknown"),
        (["low", "medium"], np.asarray, "label 'high' is not in the order 'low', 'medium'"),
        (LEVELS, lambda names: np.char.str_len(names), "order=.* is for labels that are text"),
        (
            LEVELS[::-1],
            lambda names: pd.Categorical(names, categories=LEVELS, ordered=True),
            "order=.* contradicts the order of the categories",
        ),
        (
            None,
            lambda names: pd.Categorical(np.char.str_len(names), categories=[6, 4, 3], ordered=True),
            "expected them to ascend",
        ),
        (
            None,
            lambda names: pa.chunked_array(
                [pa.DictionaryArray.from_arrays([0, 1] * 50, pa.array(pair), ordered=True) for pair in ("ab", "ba")]
            ),
            "different ordered categories",
        ),
        ("low,medium,high", np.asarray, "list of distinct labels"),
        ([1, 2, 3], np.asarray, "list of distinct labels"),
        (["low", "low"], np.asarray, "list of distinct labels"),
    ],
)
def test_an_order_that_is_missing_or_wrong_is_refused(order, as_labels, says):
    X, names, _ = levels()
    with pytest.raises(InputError, match=says):
        LFLOrdinal(rank=0, order=order, solver="point").fit(X, as_labels(names))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            LFLClassifier(rank=10**9, solver="point"),
            r"rank=1000000000 and 5 labels make [\d,]+ parameters, which take [\d,]+ GiB",
        ),
        (LFLOrdinal(rank=10**9, solver="point"), "Lower rank"),
        (LFLOrdinalCV(rank=10**9), "Lower rank"),
        (dyads.baselines.MMMF(rank=10**9), "Lower rank"),
    ],
)
def test_a_model_beyond_memory_is_refused_before_it_is_made(model, says):
    with pytest.raises(InputError, match=says):
        model.fit(GOOD_X, GOOD_Y)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "0"])
def test_seeds_are_checked_wherever_there_are_any(seed):
    model = LFLOrdinal(rank=0, solver="point").fit(GOOD_X, GOOD_Y)
    features = {"a": np.unique(GOOD_X[:, 0]), "x": np.unique(GOOD_X[:, 0])}
    for use in (
        lambda: LFLClassifier(random_state=seed, solver="point").fit(GOOD_X, GOOD_Y),
        lambda: LFLClassifier(random_state=seed, solver="point").partial_fit(GOOD_X, GOOD_Y),
        lambda: dyads.baselines.MMMF(random_state=seed).fit(GOOD_X, GOOD_Y),
        lambda: model.recommend(GOOD_X[0, 0], random_state=seed),
        lambda: list(dyads.split.NewRows(2, random_state=seed).split(GOOD_X)),
        lambda: dyads.pairs_from_graph([(1, 2), (2, 3)], directed=True, negatives="sample", random_state=seed),
        lambda: dyads.propensity.from_features(GOOD_X, row_features=features, random_state=seed),
        lambda: make_store(5, 5, random_state=seed),
        lambda: make_nominal(5, random_state=seed),
        lambda: make_store(5, 5).split(0.5, random_state=seed),
    ):
        with pytest.raises(InputError, match=rf"random_state={seed!r}: expected a seed from 0 to 2\*\*32 - 1"):
            use()


def test_many_ordered_labels_raise_no_warning():
    y = np.arange(3000) % 1500
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", NotConvergedWarning)
        model = LFLOrdinal(rank=1, l2=1.0, solver=LBFGS(max_iter=1)).fit(np.column_stack([y % 7, y % 5]), y)
    assert len(model.classes_) == 1500


def test_an_order_is_for_ordered_labels():
    with pytest.raises(InputError, match="use LFLOrdinal"):
        LFLClassifier(order=LEVELS, solver="point").fit(GOOD_X, GOOD_Y)


def test_a_solver_that_does_not_fit_the_loss_names_one_that_does():
    with pytest.raises(InputError, match="needs a smooth loss.*'sgd'"):
        LFLOrdinal(loss=dyads.Absolute(delta=0.0), solver="lbfgs").fit(GOOD_X, GOOD_Y)
    assert (
        LFLOrdinal(loss=dyads.Absolute(delta=0.0), random_state=0, solver="point").fit(GOOD_X, GOOD_Y).solver_ == "sgd"
    )


@POINT_AND_POSTERIOR
def test_ids_of_another_type_at_predict_are_refused(solver):
    model = LFLClassifier(rank=1, solver=solver).fit(GOOD_X, GOOD_Y)
    with pytest.raises(DtypeError, match="string.*int64"):
        model.predict(GOOD_X.astype(str))


def test_predicting_before_fitting_is_an_error():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        LFLClassifier(solver="point").predict(GOOD_X)


def test_duplicate_dyads_are_legal_observations():
    X = [["a", "x"]] * 3 + [["a", "x"], ["b", "y"]]
    model = LFLClassifier(rank=0, l2=L2(bias=1e-3)).fit(X, ["yes", "yes", "yes", "no", "no"])
    assert model.predict_proba([["a", "x"]])[0, 1] == pytest.approx(0.75, abs=0.02)


def test_a_model_remembers_what_its_data_were_called(tmp_path):
    X = pd.DataFrame({"a": [1, 1, 2, 2], "b": [1, 2, 1, 2]})
    y, weight = pd.Series([0, 1, 1, 0], name="liked"), pl.Series("trust", [1.0, 2.0, 1.0, 1.0])
    model = LFLClassifier(rank=0, solver="point").fit(X, y, weight)
    model.save(tmp_path / "m.dyads")
    for trained_on in (model.trained_on_, dyads.load(tmp_path / "m.dyads").trained_on_):
        assert trained_on == {"label": "liked", "weight": "trust", "pairs": 4, "version": dyads.__version__}
    assert LFLClassifier(rank=0, solver="point").fit(X, y.to_list()).trained_on_["label"] is None
    online = LFLClassifier(rank=0, solver="point").partial_fit(X, y).partial_fit(X[:3], y[:3])
    assert (online.trained_on_["pairs"], online.structure_) == (7, "bilinear")


def test_a_partial_fit_that_fails_leaves_no_half_fitted_model():
    model = LFLClassifier(rank=0, solver="sgd")
    with pytest.raises(InputError):
        model.partial_fit(X, Y[:3])
    with pytest.raises(NotFittedError):
        model.predict_proba(X)


def test_more_labels_leave_what_is_remembered_of_the_first():
    model = LFLClassifier(rank=0, solver="sgd").partial_fit(X, pd.Series(Y, name="outcome"))
    model.partial_fit(X[:10], np.asarray(Y[:10]))
    assert (model.trained_on_["label"], model.trained_on_["pairs"]) == ("outcome", len(X) + 10)
    new = X[:5].assign(user="newcomer")
    assert model.fold_in(new, Y[:5]).trained_on_["pairs"] == len(X) + 15


def test_the_order_of_labels_may_come_from_an_index_or_from_all_classes():
    levels = pd.Index(["yes", "no", "maybe"])
    assert LFLOrdinal(rank=0, order=levels, solver="point").fit(X, Y).classes_.tolist() == levels.tolist()
    classes = pd.Categorical(levels, categories=levels, ordered=True)
    model = LFLOrdinal(rank=0, solver="sgd").partial_fit(X, Y, classes=classes)
    assert model.classes_.tolist() == levels.tolist()
