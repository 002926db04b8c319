"""Products on threads are those of SciPy, line by line, however they are divided among threads."""

import numpy as np
import pytest
from scipy import sparse as scipy_sparse

from dyads.data.dyads import Side
from dyads.engine import sparse
from dyads.engine.host import Threads
from dyads.engine.orders import in_order
from dyads.engine.sparse import ThreadedMatrix, product_pass, threaded
from dyads.model import objective
from dyads.model.objective import BlockPrior, draw_side_weights


def features(n=57, p=23):
    """A matrix with lines of every length from 0 on, so that every remainder of four occurs."""
    rng = np.random.default_rng(0)
    return scipy_sparse.csr_array(rng.normal(size=(n, p)) * (rng.random((n, p)) < np.linspace(0, 1, n)[:, None]))


@pytest.mark.parametrize("width", [1, 5, 8, 19])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_those_of_scipy_on_any_number_of_threads(monkeypatch, width, dtype):
    monkeypatch.setattr(sparse, "PRODUCT_CHUNK", 50)
    plain, rng = features().astype(dtype), np.random.default_rng(1)
    right, left = rng.normal(size=(23, width)).astype(dtype), rng.normal(size=(57, width)).astype(dtype)
    found = []
    for n in (1, 2, 3):
        threads = Threads(n)
        matrix = ThreadedMatrix(plain, threads.map)
        found.append((matrix @ right, matrix.T @ left))
        threads.close()
    for product, transposed in found:
        assert product.dtype == transposed.dtype == dtype
        np.testing.assert_array_equal(product, found[0][0])
        np.testing.assert_array_equal(transposed, found[0][1])
        np.testing.assert_allclose(product, plain @ right, atol=20 * np.finfo(dtype).eps * 23)
        np.testing.assert_allclose(transposed, plain.T @ left, atol=20 * np.finfo(dtype).eps * 57)


def test_a_matrix_behaves_as_that_of_scipy_where_models_use_it():
    plain = features()
    matrix, vector = ThreadedMatrix(plain, in_order), np.arange(23.0)
    assert matrix.shape == plain.shape
    assert matrix.T.shape == plain.T.shape
    for ours, theirs in ((matrix, plain), (matrix.power(2), plain.power(2)), (abs(matrix), abs(plain))):
        np.testing.assert_allclose(ours @ vector, theirs @ vector)
    assert (matrix.astype(np.float32) @ vector).dtype == np.float32
    assert matrix.astype(np.float64) is matrix
    assert matrix.astype(np.float32) is matrix.astype(np.float32), "the other precision is made once"
    fortran = np.asfortranarray(np.random.default_rng(2).normal(size=(23, 4)))
    np.testing.assert_allclose(matrix @ fortran[:, 1:3], plain @ fortran[:, 1:3])
    for nothing in (plain[:0], plain[:, :0]):
        for width in (0, 3):
            product = ThreadedMatrix(nothing, in_order) @ np.ones((nothing.shape[1], width))
            np.testing.assert_array_equal(product, np.zeros((len(product), width)))
            assert len(product) == nothing.shape[0]
    side = threaded(Side(row=plain), in_order)
    assert side.widths == (23, 0, 0)
    assert side.col is None


def test_the_pass_over_lines_gives_the_same_uncompiled():
    plain, right = features(), np.random.default_rng(1).normal(size=(23, 5))
    out = np.full((57, 5), np.nan)
    product_pass.py_func(plain.indptr, plain.indices, plain.data, right, out, (3, 50))
    np.testing.assert_allclose(out[3:50], (plain @ right)[3:50], atol=1e-12)
    assert np.isnan(out[:3]).all()
    assert np.isnan(out[50:]).all()


def test_side_weights_are_drawn_as_well_from_products_in_single_precision(monkeypatch):
    """Also where features explain so much that the noise is a thousandth of what is solved for."""
    monkeypatch.setattr(objective, "TOLERANCE", 1e-5)
    rng, n, p = np.random.default_rng(3), 500, 23
    plain = features(n, p)
    prior = BlockPrior(np.zeros(3), np.diag([1.0, 30.0, 1000.0]), np.ones(3))
    blocks = plain @ rng.normal(size=(p, 3)) * 10
    gram = (plain.T @ plain).toarray()
    drawn = []
    for matrix in (ThreadedMatrix(plain, in_order), plain):
        same = np.random.default_rng(4)
        drawn.append(draw_side_weights(matrix, np.ones(n, np.bool_), blocks, prior, np.arange(3), 0.1, same))
    signal = np.sqrt(np.diag(drawn[1].T @ gram @ drawn[1] * prior.precision) / p)
    assert signal.max() > 1000, "in standard deviations of a draw"
    for error, strength in zip((drawn[0] - drawn[1]).T, np.diag(prior.precision), strict=True):
        assert 0 < np.sqrt(error @ (strength * gram + 0.1 * np.eye(p)) @ error / p) < 0.01
