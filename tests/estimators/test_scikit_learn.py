"""scikit-learn's own checks, and its tools at work on the estimators."""

import numpy as np
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

from dyads import LBFGS, LFLClassifier, LFLOrdinal, Newton, split
from shop import WITH, X, Y

CHECKED = [LFLClassifier(solver="point"), LFLOrdinal(solver="point")]


def expected_failures(estimator):
    orderless = {"check_classifiers_classes": "fits plain text labels, and LFLOrdinal must know the order of text"}
    return (orderless if isinstance(estimator, LFLOrdinal) else {}) | {
        "check_sample_weight_equivalence_on_dense_data": (
            "asks for probabilities equal to 1e-7, and the default L-BFGS stops at a relative decrease of 1e-6; "
            "below, the same check passes to the end of Newton's method"
        )
    }


@parametrize_with_checks(CHECKED, expected_failed_checks=expected_failures)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def expected_failures_of_a_posterior(estimator):
    # LFLOrdinal() also fails check_classifiers_train with some seeds: it asks for an accuracy of 0.83 where every id
    # has one label. It takes as long again, and is left out here.
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "asks for equal probabilities, and chains of weighted and of repeated dyads are equal in distribution"
        ),
    }


@pytest.mark.slow
@parametrize_with_checks([LFLClassifier()], expected_failed_checks=expected_failures_of_a_posterior)
def test_scikit_learns_checks_of_the_defaults(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", CHECKED, ids=lambda estimator: type(estimator).__name__)
def test_weights_are_repetitions_to_the_last_digit_for_an_exact_solver(estimator):
    exact = type(estimator)(solver=Newton(max_iter=5000, tol=1e-14))
    check_sample_weight_equivalence_on_dense_data(type(estimator).__name__, exact)


def test_searches_and_pipelines_take_tables():
    model = LFLClassifier(rank=1, solver=LBFGS(max_iter=20), **WITH)
    folds = split.RandomCells(2)
    random = RandomizedSearchCV(
        model, {"l2__latent": [1.0, 3.0, 10.0], "l2__side": [3.0, 30.0]}, n_iter=3, cv=folds, random_state=0
    )
    assert random.fit(X, Y).best_score_ > 0.3
    assert len(cross_val_score(model, pl.from_pandas(X), Y, cv=folds)) == 2
    wide = X.assign(hour=np.arange(len(X)) % 24)
    ids = make_column_transformer(("passthrough", ["user", "item"]), (StandardScaler(), ["hour"]))
    piped = make_pipeline(ids.set_output(transform="pandas"), LFLClassifier(rank=1, solver=LBFGS(max_iter=20)))
    assert piped.fit(wide, Y).predict_proba(wide).shape == (len(X), 3)


def test_weights_are_routed():
    heavy = np.where(Y == "yes", 500.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = LFLClassifier(rank=1, solver=LBFGS(max_iter=20), random_state=0)
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"l2": [1.0, 10.0]}, cv=split.RandomCells(2)).fit(X, Y, sample_weight=heavy)
    routed, best = search.predict_proba(X), search.best_estimator_
    weighted, plain = (clone(best).fit(X, Y, sample_weight=weight).predict_proba(X) for weight in (heavy, None))
    np.testing.assert_array_equal(routed, weighted)
    assert np.abs(routed - plain).max() > 0.1, "a fit without the weights is another"
    assert search.best_score_ > 0.9 > best.score(X, Y), "nor do the scores count each label once"


def test_pages_show_estimators_shortly():
    html = LFLOrdinal(**WITH)._repr_html_()
    assert "Features(40 ids, 2 columns)" in html
