"""Solvers on problems whose answer is known; they know no model."""

import numpy as np
import pytest

from dyads.solve import LBFGS, SGD, SOLVERS

CENTRE = np.array([1.0, -2.0, 0.5])


class Bowl:
    """f(x) = |x - centre|^2 / 2: exact for L-BFGS, a coordinate at a time for SGD, all but the last one for Newton."""

    def value_and_gradient(self, theta):
        return 0.5 * float(((theta - CENTRE) ** 2).sum()), theta - CENTRE

    def value(self, theta):
        return self.value_and_gradient(theta)[0]

    def blocks_in_turn(self, theta):
        return AllButTheLast(theta.copy())

    def without_blocks(self):
        return self

    def descent(self, theta):
        return AdaGrad(self, theta)


class AllButTheLast:
    """Block updates that end at once."""

    roles = ("first", "second")

    def __init__(self, theta):
        self._theta = theta

    def solve(self, role):
        self._theta[self.roles.index(role)] = CENTRE[self.roles.index(role)]

    def theta(self):
        return self._theta


class AdaGrad:
    """The state of a descent into a bowl."""

    def __init__(self, problem, theta):
        self.problem, self.state = problem, np.stack([theta, np.full_like(theta, 0.1)])

    def epoch(self, rate, seed, number):
        value, gradient = self.problem.value_and_gradient(self.state[0])
        self.state[1] += gradient**2
        self.state[0] -= rate * gradient / np.sqrt(self.state[1])
        return value

    def theta(self):
        return self.state[0]

    def is_finite(self):
        return bool(np.isfinite(self.state).all())

    def snapshot(self):
        return self.state.copy()

    def restore(self, snapshot):
        self.state = snapshot.copy()


MINIMISERS = [kind for kind in SOLVERS.values() if not kind.samples]


@pytest.mark.parametrize("kind", MINIMISERS)
def test_every_solver_finds_the_bottom_and_reports_each_iteration(kind):
    seen = []
    solution = kind(max_iter=500).minimise(
        Bowl(), np.zeros(3), 0, lambda i, value, theta: seen.append((i, value)) and False
    )
    np.testing.assert_allclose(solution.theta, CENTRE, atol=1e-3)
    assert solution.ended == ("schedule" if kind is SGD else "tolerance")
    assert [i for i, _ in seen] == list(range(1, solution.n_iter + 1))


@pytest.mark.parametrize("kind", MINIMISERS)
def test_a_monitor_can_stop(kind):
    solution = kind().minimise(Bowl(), np.zeros(3), 0, lambda i, value, theta: i == 1)
    assert solution.n_iter == 1
    assert solution.ended == "monitor"


class Cliff(Bowl):
    """Not a number beyond a wall."""

    def value_and_gradient(self, theta):
        value, gradient = super().value_and_gradient(theta)
        return (np.nan if (np.abs(theta) > 1.5).any() else value), gradient


@pytest.mark.parametrize("solver", [LBFGS(), SGD(learning_rate=5.0, max_iter=50)])
def test_divergence_is_reported_with_the_last_finite_state(solver):
    solution = solver.minimise(Cliff(), np.zeros(3), 0, lambda *_: False)
    assert solution.diverged is not None
    assert solution.ended == "divergence"
    assert np.isfinite(solution.theta).all()


def test_sgds_own_rate_backs_off():
    class Touchy(AdaGrad):
        def epoch(self, rate, seed, number):
            return np.nan if rate > 0.2 else super().epoch(rate, seed, number)

    class Slope(Bowl):
        def descent(self, theta):
            return Touchy(self, theta)

    solution = SGD(max_iter=2000).minimise(Slope(), np.zeros(3), 0, lambda *_: False)
    assert solution.diverged is None
    assert Bowl().value_and_gradient(solution.theta)[0] < 1e-2 * Bowl().value_and_gradient(np.zeros(3))[0]
