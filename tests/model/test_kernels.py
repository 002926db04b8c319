"""Laws of the kernels, run as plain Python."""

import inspect

import numpy as np
import pytest

from dyads.model import loss as loss_module
from dyads.model import structure as structure_module
from dyads.model.loss import evaluate, exp, link, log
from dyads.model.parameters import Layout
from dyads.model.structure import partner_col, partner_row, partner_shared, score
from problems import (
    LOSS_CASES,
    LOSSES,
    N_LABELS,
    PULLS,
    STRUCTURE_CASES,
    STRUCTURES,
    THRESHOLDS,
    central_difference,
    loss_of_one,
)

KINDS = {kind.__name__: kind for kind, _ in structure_module.STRUCTURES.values()}


def test_every_registered_part_has_a_case_here():
    assert STRUCTURE_CASES.keys() == KINDS.keys()
    registered = set(structure_module.STRUCTURES.values())
    assert {(type(case), case.one_set) for cases in STRUCTURE_CASES.values() for case in cases} == registered
    assert LOSS_CASES.keys() == loss_module.LOSSES.keys()
    for registry, cases in ((KINDS, STRUCTURE_CASES), (loss_module.LOSSES, LOSS_CASES)):
        for name, kind in registry.items():
            assert all(type(case) is kind for case in cases[name])


def test_part_names_are_unique():
    """Numba takes two named tuples of one name for each other."""
    names = [kind.__name__ for kind in parts_of(structure_module) | parts_of(loss_module)]
    assert len(set(names)) == len(names)


def parts_of(module):
    """Every structure, or loss, that is written in a module, whether or not it is in the registry."""
    return {
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, tuple)
        and kind.__module__ == module.__name__
        and (hasattr(kind, "evaluate") or hasattr(kind, "latent_score"))
    }


def test_every_part_that_is_written_is_in_a_registry_or_has_laws_of_its_own():
    assert parts_of(structure_module) == set(KINDS.values())
    assert parts_of(loss_module) == {*loss_module.LOSSES.values(), type(THRESHOLDS)}


@pytest.mark.parametrize("loss", [*LOSSES, THRESHOLDS], ids=repr)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_loss_derivative_matches_central_differences(loss, scale):
    rng = np.random.default_rng(0)
    for label in range(N_LABELS):
        s = rng.normal(scale=scale, size=N_LABELS)
        expected = central_difference(lambda point, label=label: loss_of_one(loss, label, point)[0], s)
        np.testing.assert_allclose(loss_of_one(loss, label, s)[1], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", [*LOSSES, THRESHOLDS], ids=repr)
def test_a_tile_of_many_dyads_is_many_tiles_of_one(loss):
    rng, n, room = np.random.default_rng(3), 7, 9
    label, s = rng.integers(N_LABELS, size=room), rng.normal(size=(N_LABELS, room))
    g, value, total = np.full_like(s, np.nan), np.full(room, np.nan), np.empty(room)
    evaluate(loss, n, label, s, g, value, total)
    for i in range(n):
        expected_value, expected_g, _ = loss_of_one(loss, label[i], s[:, i])
        assert value[i] == pytest.approx(expected_value, rel=1e-12)
        np.testing.assert_allclose(g[:, i], expected_g, rtol=1e-12)
    assert np.isnan(value[n:]).all()
    assert np.isnan(g[:, n:]).all(), "the room beyond the tile is left alone"


def test_the_polynomial_exponential_is_exact_to_its_bound():
    x = np.concatenate([-np.logspace(-20, np.log10(708), 20_001), [0.0]])
    computed = np.array([exp(point) for point in x])
    assert np.abs(computed / np.exp(x) - 1).max() < 1e-15
    assert exp(-1e300) == exp(-708.0) > 0
    assert np.isnan(exp(np.nan))
    x = np.concatenate([-np.logspace(-20, np.log10(87), 20_001), [0.0]]).astype(np.float32)
    computed = np.array([exp(point) for point in x])
    assert computed.dtype == np.float32
    assert np.abs(computed / np.exp(x.astype(np.float64)) - 1).max() < 3e-7
    assert exp(np.float32(-1e30)) == exp(np.float32(-87)) > 0
    assert np.isnan(exp(np.float32(np.nan)))


@pytest.mark.parametrize(("kind", "bound"), [(np.float64, 1e-15), (np.float32, 2e-7)])
def test_the_polynomial_logarithm_is_exact_to_its_bound(kind, bound):
    x = np.concatenate([np.geomspace(1e-30, 1e30, 4001), np.linspace(0.5, 2, 4001), [0.5, 1, 2]]).astype(kind)
    computed, exact = np.array([log(point) for point in x]), np.log(x.astype(np.float64))
    assert computed.dtype == kind
    assert (np.abs(computed - exact) / (1 + np.abs(exact))).max() < bound
    assert np.isnan(log(kind(np.nan)))


@pytest.mark.parametrize("loss", [*LOSSES, THRESHOLDS], ids=repr)
def test_loss_is_finite_and_nonnegative_for_huge_scores(loss):
    s = np.array([1e300, -1e300, 0.0, 700.0])
    for label in range(4):
        value, g, _ = loss_of_one(loss, label, s)
        assert value >= 0
        assert np.isfinite(g).all()


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_loss_vanishes_only_at_certainty_of_the_label(loss):
    for label in range(N_LABELS):
        certain = np.full(N_LABELS, -50.0)
        certain[label] = 50.0
        assert loss_of_one(loss, label, certain)[0] == pytest.approx(0, abs=1e-12)
        assert loss_of_one(loss, (label + 1) % N_LABELS, certain)[0] > 0.5


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_pulls_match_central_differences_of_the_score(structure):
    rng = np.random.default_rng(1)
    a, b, h = (rng.normal(size=size) for size in Layout(structure, 1, 1).sizes)
    g = rng.normal(size=N_LABELS)

    def weighted_score(a, b, h):
        s = np.zeros(N_LABELS)
        score(structure, a, b, h, s)
        return s @ g

    for pull, index in zip(PULLS, range(3), strict=True):
        blocks = [a, b, h]
        found = np.zeros_like(blocks[index])
        pull(structure, a, b, h, g, found)

        def along(point, index=index, blocks=blocks):
            return weighted_score(*(point if i == index else block for i, block in enumerate(blocks)))

        np.testing.assert_allclose(found, central_difference(along, blocks[index]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_base_scores_are_those_of_a_block_of_zeros(structure):
    a, b, h = random_blocks(structure)
    for base, blocks in (
        (lambda s: structure_module.base_row(structure, b, h, s[:, None], 0), (0 * a, b, h)),
        (lambda s: structure_module.base_col(structure, a, h, s[:, None], 0), (a, 0 * b, h)),
        (lambda s: structure_module.base_shared(structure, a, b, s[:, None], 0), (a, b, 0 * h)),
    ):
        s = np.zeros(N_LABELS)
        base(s)
        np.testing.assert_allclose(s, score_of(structure, *blocks), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_kernels_add_to_what_is_there(structure):
    rng = np.random.default_rng(2)
    a, b, h = (rng.normal(size=size) for size in Layout(structure, 1, 1).sizes)
    g = rng.normal(size=N_LABELS)
    once, twice = np.zeros(N_LABELS), np.zeros(N_LABELS)
    score(structure, a, b, h, once)
    score(structure, a, b, h, twice)
    score(structure, a, b, h, twice)
    np.testing.assert_allclose(twice, 2 * once)
    out = np.ones_like(a)
    PULLS[0](structure, a, b, h, np.zeros_like(g), out)
    assert (out == 1).all()


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_base_keeps_score_zero(structure):
    rng = np.random.default_rng(3)
    s = np.zeros(N_LABELS)
    score(structure, *(rng.normal(size=size) for size in Layout(structure, 1, 1).sizes), s)
    assert [y for y in range(N_LABELS) if s[y] == 0] == (
        [structure.reference] if structure.reference < N_LABELS else []
    )


def test_rank_zero_is_the_sum_of_biases():
    structure = structure_module.Bilinear(3, 3, 1, False, 0)
    s = np.zeros(3)
    score(structure, np.array([1.0, 2, 3]), np.array([10.0, 20, 30]), np.array([100.0, 200, 300]), s)
    assert s.tolist() == [111, 222, 333]


def random_blocks(structure, seed=5):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size) for size in Layout(structure, 1, 1).sizes]


def score_of(structure, a, b, h):
    s = np.zeros(structure.n_labels)
    score(structure, a, b, h, s)
    return s


def test_stereotype_with_identity_phi_is_bilinear():
    stereotype, bilinear = (
        structure_module.Stereotype(4, 4, 1, False, 3, 4),
        structure_module.Bilinear(4, 4, 1, False, 3),
    )
    a, b, h = random_blocks(bilinear)
    phi = np.eye(4).ravel()
    np.testing.assert_allclose(score_of(stereotype, a, b, np.append(h, phi)), score_of(bilinear, a, b, h), rtol=1e-12)
    assert (stereotype.shared_start(1, None)["phi"] == np.eye(4)).all(), "where it starts for nominal labels"


def test_directed_without_node_part_is_bilinear():
    directed, bilinear = structure_module.Directed(4, 0, 0, True, 2), structure_module.Bilinear(4, 0, 0, False, 2)
    a, b, h = random_blocks(directed)
    size = 6
    a[2 * size :] = 0
    np.testing.assert_allclose(
        score_of(directed, a, b, h), score_of(bilinear, a[:size], b[size : 2 * size], h), rtol=1e-12
    )


def test_spectral_with_positive_diagonal_is_symmetric():
    spectral, symmetric = structure_module.Diagonal(2, 0, 1, True, 3), structure_module.Bilinear(2, 0, 1, True, 3)
    a, b, h = random_blocks(spectral)
    diagonal = np.abs(h[1:])
    h[1:] = diagonal
    root = np.append(1, np.sqrt(diagonal))
    np.testing.assert_allclose(score_of(spectral, a, b, h), score_of(symmetric, root * a, root * b, h[:1]), rtol=1e-12)


@pytest.mark.parametrize("structure", [case for case in STRUCTURES if case.one_set and case.n_bias < 2], ids=repr)
def test_one_set_without_direction_is_exactly_symmetric(structure):
    if type(structure) is structure_module.Directed:
        pytest.skip("directed")
    for seed in range(20):
        a, b, h = random_blocks(structure, seed)
        assert (score_of(structure, a, b, h) == score_of(structure, b, a, h)).all()


def test_ordered_stereotype_starts_from_the_standardised_values():
    values = np.array([1.0, 2.0, 3.0, 10.0])
    phi = structure_module.Stereotype(4, 4, 1, False, 3, 2).shared_start(1, values)["phi"][0]
    np.testing.assert_allclose(phi[:, 0], (values - values.mean()) / values.std())
    np.testing.assert_allclose(phi.T @ phi / 4, np.eye(2), atol=1e-12)


def test_a_spectral_diagonal_starts_with_both_signs():
    start = structure_module.Diagonal(2, 0, 1, True, 4).shared_start(1, None)["diagonal"]
    assert set(start.ravel()) == {-1.0, 1.0}


def test_float32_stays_float32():
    structure = STRUCTURES[0]
    a, b, h = (np.ones(size, np.float32) for size in Layout(structure, 1, 1).sizes)
    s = np.zeros(N_LABELS, np.float32)
    score(structure, a, b, h, s)
    assert s.dtype == np.float32
    assert link(s[None]).dtype == np.float64


def test_absolute_loss_is_within_delta_of_the_absolute_error():
    values = np.array([1.0, 2.0, 3.0])
    loss = loss_module.Absolute(0.1).bind(values)
    for s in np.random.default_rng(0).normal(scale=2, size=(20, 3)):
        error = abs(link(s[None])[0] @ values - 2.0)
        assert error - 0.1 <= loss_of_one(loss, 1, s)[0] <= error


def test_layout_names_cover_theta_once():
    layout = Layout(STRUCTURES[1], 6, 4, n_relations=2)
    theta = np.arange(float(layout.size))
    parts = layout.named(theta)
    assert parts["row_factors"].shape == (6, 3, 3)
    assert parts["col_bias"].shape == (4, 3)
    assert sorted(np.concatenate([part.ravel() for part in parts.values()])) == theta.tolist()
    parts["col_factors"][2, 1, 0] = -1
    assert (theta == -1).sum() == 1, "named parts are views"


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_centring_changes_no_probability_and_makes_mean_biases_zero(structure):
    n_cols = 6 if structure.one_set else 4
    layout = Layout(structure, 6, n_cols, n_relations=2)
    rng = np.random.default_rng(4)
    theta, row_counts, col_counts = rng.normal(size=layout.size), rng.uniform(1, 5, 6), rng.uniform(1, 5, n_cols)
    centred = layout.centre(theta, row_counts, col_counts)
    for r in range(6):
        for c in range(n_cols):
            before, after = np.zeros(N_LABELS), np.zeros(N_LABELS)
            for point, out in ((theta, before), (centred, after)):
                blocks = layout.blocks(point)
                score(structure, blocks.row[r], blocks.col[c], blocks.shared[1], out)
            np.testing.assert_allclose(link(after[None]), link(before[None]), atol=1e-12)
    for name, part in layout.named(centred).items():
        if name in ("row_bias", "node_bias"):
            assert np.abs(row_counts @ part).max(initial=0) < 1e-12


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_factored_jacobian_is_that_of_the_pulls(structure):
    a, b, h = random_blocks(structure)
    n, (own_width, shared_width) = structure_module.free_labels(structure), structure.group_widths()
    for pull, partner, x, n_single, width, shared in (
        (PULLS[0], lambda v: partner_row(structure, b, v, 0), a, structure.n_bias * n, own_width, False),
        (PULLS[1], lambda v: partner_col(structure, a, v, 0), b, structure.n_bias * n, own_width, False),
        (PULLS[2], lambda v: partner_shared(structure, a, b, v, 0), h, n, shared_width, True),
    ):
        group = np.concatenate([np.arange(n_single), n_single + np.arange(len(x) - n_single) // max(width, 1)])
        E, v = np.full((N_LABELS, group[-1] + 1 if len(group) else 0), np.nan), np.full(len(x), np.nan)
        if shared:
            structure_module.shared_label_weights(structure, E)
        else:
            structure_module.label_weights(structure, h, E)
        partner(v[:, None])
        for y in range(N_LABELS):
            expected = np.zeros(len(x))
            pull(structure, a, b, h, np.eye(N_LABELS)[y], expected)
            np.testing.assert_allclose(E[y, group] * v, expected, rtol=1e-12, atol=1e-14)
