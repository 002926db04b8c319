"""The learnt prior: its conditional distributions are those of its joint one."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import kstest, t

from dyads.model.objective import (
    FREEDOM,
    SPREAD,
    BlockPrior,
    Moments,
    draw_side_precision,
    draw_side_weights,
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
    x, blocks = rng.normal(size=(30, 2)), rng.normal(size=(30, 3))
    root = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
    prior = BlockPrior(np.array([0.5, -0.5, 0.0]), root @ root.T, np.ones(3))
    columns, ridge = np.array([0, 2]), 1.7
    drawn = np.array([draw_side_weights(sparse.csr_array(x), blocks, prior, columns, ridge, rng) for _ in range(4000)])
    # The joint regression of all columns, written out: W has no effect on the middle one.
    select = np.eye(3)[:, columns]
    precision = np.kron(x.T @ x, select.T @ prior.precision @ select) + ridge * np.eye(4)
    pulled = (x.T @ (blocks - prior.mean) @ prior.precision @ select).ravel()
    covariance = np.linalg.inv(precision)
    mean = covariance @ pulled
    flat = drawn.reshape(len(drawn), -1)
    np.testing.assert_allclose(flat.mean(axis=0), mean, atol=5 * np.sqrt(covariance.max() / len(drawn)))
    np.testing.assert_allclose(np.cov(flat.T), covariance, atol=0.1 * covariance.max())


def test_the_precision_of_side_weights_follows_their_size():
    rng = np.random.default_rng(4)
    small, large = (np.mean([draw_side_precision(np.full((50, 4), x), rng) for _ in range(200)]) for x in (0.1, 1.0))
    assert 0.9 < large < 1.1
    assert 40 < small < 100
