"""The learnt prior: its conditional distributions are those of its joint one."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import kstest, t, wishart
from scipy.stats import multivariate_normal as normal

from dyads.model import objective
from dyads.model.objective import (
    FREEDOM,
    MEAN_COUNT,
    SPREAD,
    BlockPrior,
    Moments,
    draw_side_precision,
    draw_side_weights,
    side_weights_by_counts,
    wishart_root,
)


@pytest.mark.slow
def test_the_root_of_a_wishart_matrix_has_its_moments():
    rng = np.random.default_rng(0)
    inverse_scale = np.array([[2.0, 0.5], [0.5, 1.0]])
    drawn = np.array([(root := wishart_root(5.0, inverse_scale, rng)) @ root.T for _ in range(20000)])
    scale = np.linalg.inv(inverse_scale)
    np.testing.assert_allclose(drawn.mean(axis=0), 5 * scale, rtol=0.03)
    np.testing.assert_allclose(drawn[:, 0, 0].var(), 5 * 2 * scale[0, 0] ** 2, rtol=0.06)
    np.testing.assert_allclose(drawn[:, 0, 1].var(), 5 * (scale[0, 1] ** 2 + scale[0, 0] * scale[1, 1]), rtol=0.06)


def test_standard_deviations_are_half_t_and_correlations_uniform():
    rng = np.random.default_rng(1)
    covariance = np.array([np.linalg.inv(BlockPrior.from_hyperprior(2, rng).precision) for _ in range(4000)])
    deviation = np.sqrt(covariance[:, 0, 0])
    correlation = covariance[:, 0, 1] / np.sqrt(covariance[:, 0, 0] * covariance[:, 1, 1])
    assert kstest(deviation / SPREAD, lambda x: 2 * t.cdf(x, FREEDOM) - 1).pvalue > 1e-3
    assert kstest(correlation, "uniform", (-1, 2)).pvalue > 1e-3


@pytest.mark.slow
def test_redrawing_leaves_the_joint_distribution_as_it_is():
    """A prior redrawn given blocks that were drawn from it is again one from the hyperprior."""
    rng = np.random.default_rng(2)
    before, after = [], []
    for _ in range(4000):
        learnt = BlockPrior.from_hyperprior(2, rng)
        moments = Moments.of(learnt.blocks(4, rng))
        for redrawn, kept in ((learnt, before), (learnt.redrawn(moments, rng), after)):
            kept.append([redrawn.precision[0, 0], redrawn.precision[0, 1], redrawn.mean[0], redrawn.scale[1]])
    for one, other in zip(np.transpose(before), np.transpose(after), strict=True):
        assert kstest(one, other).pvalue > 1e-3


def test_side_weights_are_drawn_from_their_posterior():
    rng = np.random.default_rng(3)
    x, blocks, labelled = rng.normal(size=(40, 2)), rng.normal(size=(40, 3)), np.arange(40) < 30
    blocks[~labelled] += 100
    root = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
    prior = BlockPrior(np.array([0.5, -0.5, 0.0]), root @ root.T, np.ones(3))
    columns, ridge, features = np.array([0, 2]), 60.0, sparse.csr_array(x)
    drawn = [draw_side_weights(features, labelled, blocks, prior, columns, ridge, rng) for _ in range(4000)]
    # The joint regression of all columns, written out: W has no effect on the middle one.
    x, blocks, select = x[labelled], blocks[labelled], np.eye(3)[:, columns]
    precision = np.kron(x.T @ x, select.T @ prior.precision @ select) + ridge * np.eye(4)
    pulled = (x.T @ (blocks - prior.mean) @ prior.precision @ select).ravel()
    covariance = np.linalg.inv(precision)
    mean = covariance @ pulled
    flat = np.reshape(drawn, (len(drawn), -1))
    np.testing.assert_allclose(flat.mean(axis=0), mean, atol=5 * np.sqrt(covariance.max() / len(drawn)))
    np.testing.assert_allclose(np.cov(flat.T), covariance, atol=0.1 * covariance.max())


@pytest.mark.parametrize("ridge", [0.03, 3.0, 300.0])
def test_side_weights_are_solved_for_to_a_fraction_of_their_own_noise(monkeypatch, ridge):
    """Draws with the same noise, stopped early and not, differ by some hundredths of a standard deviation."""
    rng = np.random.default_rng(5)
    popular = rng.random(200) ** 4
    features = sparse.csr_array((rng.random((300, 200)) < popular) / np.sqrt(200.0))
    blocks, labelled = rng.normal(scale=3.0, size=(300, 4)), rng.random(300) < 0.9
    prior = BlockPrior(np.zeros(4), np.diag([0.3, 3.0, 30.0, 300.0]), np.ones(4))
    drawn = []
    for tolerance in (objective.TOLERANCE, 1e-10):
        monkeypatch.setattr(objective, "TOLERANCE", tolerance)
        same = np.random.default_rng(6)
        drawn.append(draw_side_weights(features, labelled, blocks, prior, np.arange(4), ridge, same))
    gram = (features[labelled].T @ features[labelled]).toarray()
    for error, strength in zip((drawn[0] - drawn[1]).T, np.diag(prior.precision), strict=True):
        precision = strength * gram + ridge * np.eye(200)
        assert np.sqrt(error @ precision @ error / 200) < 0.03


def test_side_weights_vary_also_where_features_say_nothing():
    """One-hot features of three groups: a constant can move from one group to another, and only the prior knows."""
    rng, groups = np.random.default_rng(7), (2, 7, 21)
    x = np.hstack([np.eye(size)[rng.integers(size, size=3000)] for size in groups])
    prior, ridge, labelled = BlockPrior(np.zeros(1), np.full((1, 1), 20.0), np.ones(1)), 10.0, np.ones(3000, bool)
    blocks, features = rng.normal(scale=20**-0.5, size=(3000, 1)), sparse.csr_array(x)
    across = np.repeat([1 / 2, -1 / 7, 0.0], groups)
    drawn = [draw_side_weights(features, labelled, blocks, prior, np.arange(1), ridge, rng)[:, 0] for _ in range(400)]
    exact = across @ np.linalg.solve(20.0 * x.T @ x + ridge * np.eye(30), across)
    assert np.var(np.array(drawn) @ across) == pytest.approx(exact, rel=0.2)


def test_the_precision_of_side_weights_follows_their_size():
    rng = np.random.default_rng(4)
    small, large = (np.mean([draw_side_precision(np.full((50, 4), x), rng) for _ in range(200)]) for x in (0.1, 1.0))
    assert 0.9 < large < 1.1
    assert 40 < small < 100


def test_the_density_of_blocks_has_their_mean_and_precision_integrated_out():
    """By Bayes' rule p(x) = p(x | m, P) p(m, P) / p(m, P | x), for any m and P."""
    rng = np.random.default_rng(4)
    scale, blocks = np.array([0.5, 2.0, 1.0]), [rng.normal(size=(6, 3)), 2 + 3 * rng.normal(size=(6, 3))]
    m, precision = rng.normal(size=3), np.linalg.inv(np.cov(rng.normal(size=(9, 3)).T))
    freedom, by_bayes, ours = 3 + FREEDOM - 1, [], []
    for x in blocks:
        prior, moments = BlockPrior(m, precision, scale), Moments.of(x)
        inverse = np.diag(scale) + moments.scatter + MEAN_COUNT * 6 / (MEAN_COUNT + 6) * np.outer(*[x.mean(axis=0)] * 2)
        by_bayes.append(
            normal.logpdf(x, m, np.linalg.inv(precision)).sum()
            - normal.logpdf(m, 6 * x.mean(axis=0) / (6 + MEAN_COUNT), np.linalg.inv((6 + MEAN_COUNT) * precision))
            - wishart.logpdf(precision, freedom + 6, np.linalg.inv(inverse))
        )
        ours.append(prior.log_density(moments))
    assert ours[0] - ours[1] == pytest.approx(by_bayes[0] - by_bayes[1])


def test_moments_of_parts_are_those_of_the_whole():
    blocks = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    joined = Moments.joined([Moments.of(blocks[some]) for some in (slice(20), slice(20, 20), slice(20, 50))])
    for ours, expected in zip(joined, Moments.of(blocks), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
    assert Moments.joined([Moments.of(blocks[:0])]).n == 0


def test_side_weights_by_counts_are_a_weighted_ridge_regression():
    rng = np.random.default_rng(8)
    x, own, weights = rng.normal((5, 0, 0), size=(60, 3)), rng.normal(size=(60, 2)), rng.normal(size=(3, 2))
    counts = rng.integers(0, 50, 60).astype(float)
    own[counts == 0] = 1e6
    own += x @ rng.normal(size=(3, 2))
    change = side_weights_by_counts(sparse.csr_array(x), counts, own, weights)
    w = counts * counts.sum() / (counts**2).sum()
    deviation = own - np.average(own, axis=0, weights=w)
    variance = np.average((deviation**2).mean(axis=1), weights=w)
    # A constant column is penalised as the features are.
    extended = np.column_stack([x, np.ones(60)])
    precision = extended.T @ (w[:, None] * extended) / variance + np.eye(4) / np.mean(weights**2)
    expected = np.linalg.solve(precision, extended.T @ (w[:, None] * deviation) / variance)[:3]
    np.testing.assert_allclose(change, expected, atol=0.01)
    twice = side_weights_by_counts(sparse.csr_array(x), 2 * counts, own, weights)
    np.testing.assert_allclose(twice, change, atol=1e-6)
