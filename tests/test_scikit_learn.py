"""scikit-learn's own checks."""

import pytest
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

from dyads import LFLClassifier, LFLOrdinal

CHECKED = [LFLClassifier(), LFLOrdinal()]


def expected_failures(estimator):
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "asks for probabilities equal to 1e-7, and the default L-BFGS stops at a relative decrease of 1e-6; "
            "below, the same check passes to the end of Newton's method"
        )
    }


@parametrize_with_checks(CHECKED, expected_failed_checks=expected_failures)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda estimator: type(estimator).__name__)
def test_weights_are_repetitions_to_the_last_digit_for_an_exact_solver(estimator):
    exact = type(estimator)(solver="newton", tol=1e-14, max_iter=5000)
    check_sample_weight_equivalence_on_dense_data(type(estimator).__name__, exact)
