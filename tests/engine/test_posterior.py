"""The sampler gets it right: Geweke's joint-distribution test, a grid, and its invariances."""

from dataclasses import replace

import numpy as np
import pytest
from geweke import bound, z_scores
from scipy.special import expit
from scipy.stats import norm, t
from threadpoolctl import threadpool_limits

from dyads.data.dyads import Dyads
from dyads.engine import CPU, entity, posterior, sums
from dyads.engine.posterior import Posterior, State
from dyads.model.loss import Log
from dyads.model.objective import MEAN_COUNT, BlockPrior
from dyads.model.streams import SweepNoise
from dyads.model.structure import Bilinear, Diagonal, Directed, Stereotype
from problems import make_dyads, make_objective

pytestmark = pytest.mark.xdist_group("blocks")


@pytest.fixture(autouse=True)
def _one_thread_for_blas():
    with threadpool_limits(1, "blas"):
        yield


CASES = {
    "bilinear": (Bilinear(3, 3, 1, False, 1), {}),
    "bilinear, features": (Bilinear(3, 0, 1, False, 1), {"side": True}),
    "symmetric, self-links, features": (Bilinear(2, 0, 1, True, 1), {"side": True}),
    "stereotype": (Stereotype(3, 3, 1, False, 2, 1), {}),
    "spectral, self-links": (Diagonal(2, 0, 1, True, 2), {}),
    "relations": (Diagonal(2, 0, 1, False, 1), {"n_relations": 2}),
    "spectral relations, self-links": (Diagonal(2, 0, 1, True, 1), {"n_relations": 2}),
    "mixture of relations": (Stereotype(2, 0, 1, False, 2, 1), {"n_relations": 2}),
    "symmetric mixture, self-links": (Stereotype(2, 0, 1, True, 2, 1), {"n_relations": 2}),
    "directed, self-links": (Directed(2, 0, 2, True, 1), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gewekes_joint_distribution_test(name, monkeypatch):
    """Parameters and labels drawn in turn have the distribution of parameters drawn from the prior (Geweke 2004)."""
    monkeypatch.setattr(posterior, "BIAS_SPREAD", 1.0)
    monkeypatch.setattr(entity, "PART", 4)
    monkeypatch.setattr(sums, "WIDEST", 4)
    structure, choices = CASES[name]
    z = z_scores(CPU(1), structure, **choices)
    assert np.abs(z).max() < 4, z.round(1)


@pytest.mark.slow
def test_predictive_probabilities_match_those_of_a_grid():
    """Two rows, one column, two labels, rank 0: the rows' biases and the rest of the score are integrated on a grid."""
    row, label = np.array([0, 0, 0, 0, 1, 1, 1]), np.array([1, 1, 1, 0, 0, 0, 0])
    dyads = Dyads(row, np.zeros(7, int), label, None, 2, 1, 2)
    grid = np.sinh(np.linspace(-5, 5, 161))
    width = np.gradient(grid)
    # The standard deviation of biases is half-t; given it, they and their mean are Gaussian.
    spread = np.exp(np.linspace(-6, 6, 400))
    chance = 2 * t.pdf(spread, 2) * np.gradient(spread)

    def biases(*points):
        n = len(points)
        inverse = np.linalg.inv(np.eye(n) + 1 / MEAN_COUNT)
        form = sum(inverse[i, j] * points[i] * points[j] for i in range(n) for j in range(n))
        total = 0.0
        for deviation, share in zip(spread, chance, strict=True):
            total = total + share * deviation**-n * np.exp(-0.5 * form / deviation**2)
        return total

    rows = biases(grid[:, None], grid[None, :])
    rest = np.array(
        [np.sum(biases(grid) * norm.pdf(point - grid, scale=posterior.BIAS_SPREAD) * width) for point in grid]
    )
    a, b, c = np.meshgrid(grid, grid, grid, indexing="ij")
    one, other = expit(a + c), expit(b + c)
    weight = rows[:, :, None] * rest * one**3 * (1 - one) * (1 - other) ** 3
    weight *= width[:, None, None] * width[:, None] * width
    expected = [np.sum(weight * p) / weight.sum() for p in (one, other)]

    objective = make_objective(Bilinear(2, 0, 1, False, 0), Log(), dyads, centre=np.zeros(4))
    with CPU(1).bind(objective, dyads) as bound_problem:
        problem = Posterior(bound_problem)
        state, total = problem.start(np.zeros(4), np.random.default_rng(0)), np.zeros(2)
        for sweep in range(6500):
            state, _ = problem.sweep(state, SweepNoise(0, 0, sweep))
            if sweep >= 500:
                total += problem.proba(state, dyads)[[0, 4], 1]
    np.testing.assert_allclose(total / 6000, expected, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bilinear, features", "symmetric, self-links, features"])
def test_any_number_of_threads_draws_the_same(name):
    structure, choices = CASES[name]
    objective, dyads = bound(structure, **choices)
    found = []
    for n_jobs in (1, 2, 3):
        with CPU(n_jobs).bind(objective, dyads) as bound_problem:
            problem = Posterior(bound_problem)
            state = problem.start(np.random.default_rng(1).normal(size=objective.layout.size), np.random.default_rng(2))
            for sweep in range(5):
                state, _ = problem.sweep(state, SweepNoise(0, 0, sweep))
        found.append(state.theta)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.slow
def test_weights_act_as_repetition():
    objective, dyads = bound(Bilinear(3, 3, 1, False, 1))
    weight = np.ones(len(dyads))
    weight[4] = 2
    twice = dyads.take(np.append(np.arange(len(dyads)), 4))
    found = []
    for given in (replace(dyads, weight=weight), twice):
        with CPU(1).bind(objective, given) as bound_problem:
            problem = Posterior(bound_problem)
            found.append(
                problem.sweep(
                    problem.start(np.ones(objective.layout.size), np.random.default_rng(0)), SweepNoise(0, 0, 0)
                )[0].theta
            )
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_an_entity_without_dyads_is_drawn_from_the_prior_and_says_nothing_about_it():
    structure = Bilinear(2, 0, 1, False, 1)
    dyads = replace(make_dyads(20, 4, 3, n_labels=2), n_rows=3000)
    objective = make_objective(structure, Log(), dyads)
    theta = np.zeros(objective.layout.size)
    objective.layout.blocks(theta).row[4:] = 1e6
    with CPU(1).bind(objective, dyads) as bound_problem:
        problem = Posterior(bound_problem)
        state, _ = problem.sweep(problem.start(theta, np.random.default_rng(0)), SweepNoise(0, 0, 0))
    drawn, learnt = objective.layout.blocks(state.theta).row[4:], state.priors[0]
    deviation = np.sqrt(np.diag(np.linalg.inv(learnt.precision)))
    np.testing.assert_allclose(drawn.mean(axis=0), learnt.mean, atol=0.1 * deviation.max())
    np.testing.assert_allclose(drawn.std(axis=0), deviation, rtol=0.1)


def test_a_state_is_its_arrays():
    state = State(np.ones(3), (BlockPrior(np.ones(2), np.eye(2), np.ones(2)),), np.ones(3))
    again = State.of(state.arrays())
    assert again.priors[0].precision is state.priors[0].precision
    assert again.theta is state.theta
    assert state.rounded().nbytes == state.nbytes / 2
