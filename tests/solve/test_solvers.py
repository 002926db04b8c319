"""Solvers on problems whose answer is known; they know no model."""

import numpy as np
import pytest

from dyads.solve import SOLVERS, Options

CENTRE = np.array([1.0, -2.0, 0.5])


class Bowl:
    """f(x) = |x - centre|^2 / 2: exact for L-BFGS, a coordinate at a time for SGD, all but the last one for Newton."""

    def value_and_gradient(self, theta):
        return 0.5 * float(((theta - CENTRE) ** 2).sum()), theta - CENTRE

    def value(self, theta):
        return self.value_and_gradient(theta)[0]

    def sweep(self, theta):
        theta[:-1] = CENTRE[:-1]
        return self.value(theta)

    def side_alone(self):
        return self

    def sgd_state(self, theta):
        return np.stack([theta, np.full_like(theta, 0.1)]).astype(np.float32)

    def epoch(self, state, rate, seed, number):
        value = self.value_and_gradient(state[0])[0]
        gradient = state[0] - CENTRE
        state[1] += gradient**2
        state[0] -= rate * gradient / np.sqrt(state[1])
        return value


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_finds_the_bottom_and_reports_each_iteration(name):
    seen = []
    solution = SOLVERS[name].minimise(
        Bowl(), np.zeros(3), Options(max_iter=500, tol=1e-9), lambda i, value, theta: seen.append((i, value)) and False
    )
    np.testing.assert_allclose(solution.theta, CENTRE, atol=1e-3)
    assert solution.ended == "tolerance"
    assert [i for i, _ in seen] == list(range(1, solution.n_iter + 1))


@pytest.mark.parametrize("name", SOLVERS)
def test_a_monitor_can_stop(name):
    solution = SOLVERS[name].minimise(Bowl(), np.zeros(3), Options(tol=0), lambda i, value, theta: i == 1)
    assert solution.n_iter == 1
    assert solution.ended == "monitor"


class Cliff(Bowl):
    """Not a number beyond a wall."""

    def value_and_gradient(self, theta):
        value, gradient = super().value_and_gradient(theta)
        return (np.nan if (np.abs(theta) > 1.5).any() else value), gradient


@pytest.mark.parametrize(("name", "options"), [("lbfgs", Options()), ("sgd", Options(learning_rate=5.0, max_iter=50))])
def test_divergence_is_reported_with_the_last_finite_state(name, options):
    solution = SOLVERS[name].minimise(Cliff(), np.zeros(3), options, lambda *_: False)
    assert solution.diverged is not None
    assert solution.ended == "divergence"
    assert np.isfinite(solution.theta).all()


def test_sgds_own_rate_backs_off():
    class Touchy(Bowl):
        def epoch(self, state, rate, seed, number):
            return np.nan if rate > 0.2 else super().epoch(state, rate, seed, number)

    solution = SOLVERS["sgd"].minimise(Touchy(), np.zeros(3), Options(max_iter=2000, tol=1e-8), lambda *_: False)
    assert solution.diverged is None
    assert Bowl().value_and_gradient(solution.theta)[0] < 1e-2 * Bowl().value_and_gradient(np.zeros(3))[0]
