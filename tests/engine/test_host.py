"""Laws of the sums over dyads: value, gradient, symmetries, threads; compiled and interpreted."""

import dataclasses
import math

import numpy as np
import pytest

from dyads.data.dyads import Dyads
from dyads.engine import host, orders, passes, scoring
from dyads.engine.host import Host
from dyads.engine.scoring import scores
from dyads.model.loss import Log, link
from dyads.model.parameters import Layout
from dyads.model.structure import Bilinear
from problems import (
    CROSSED,
    LOSSES,
    STRUCTURES,
    central_difference,
    make_dyads,
    make_fitted,
    make_objective,
    relative_error,
)


def dyads_for(structure, **choices):
    return make_dyads(one_set=structure.one_set, **choices)


def random_theta(objective, seed=0):
    return np.random.default_rng(seed).normal(scale=0.5, size=objective.layout.size)


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt", "count"])
def test_gradient_matches_central_differences(structure, loss, scaling):
    dyads = dyads_for(structure, weighted=True)
    objective = make_objective(structure, loss, dyads, scaling)
    theta = random_theta(objective)
    with Host(objective, dyads) as problem:
        value, gradient = problem.value_and_gradient(theta)
        assert value == pytest.approx(problem.value(theta), rel=1e-12)
        expected = central_difference(lambda point: problem.value_and_gradient(point)[0], theta)
    assert relative_error(gradient, expected) < 1e-6


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
def test_compiled_equals_interpreted(structure, loss, monkeypatch):
    dyads = dyads_for(structure, weighted=True)
    objective = make_objective(structure, loss, dyads)
    theta = random_theta(objective)

    def everything():
        with Host(objective, dyads) as problem:
            value, gradient = problem.value_and_gradient(theta)
            state = problem.sgd_state(theta)
            met = problem.epoch(state, 0.1, 3, 0)
        return value, gradient, met, state, scores(make_fitted(objective.structure, theta, dyads), dyads.row, dyads.col)

    compiled = everything()
    for name in ("row_pass", "col_pass", "loss_pass", "sgd_pass"):
        monkeypatch.setattr(host, name, getattr(host, name).py_func)
    monkeypatch.setattr(scoring, "score_pass", scoring.score_pass.py_func)
    for fast, plain in zip(compiled, everything(), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=2e-4 if np.asarray(fast).dtype == np.float32 else 1e-5, atol=1e-5)
    np.testing.assert_allclose(compiled[1], everything()[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_recomputed_score_gradients_equal_stored_ones(loss, monkeypatch):
    dyads = make_dyads(weighted=True)
    objective = make_objective(STRUCTURES[0], loss, dyads)
    theta = random_theta(objective)
    with Host(objective, dyads) as problem:
        stored = problem.value_and_gradient(theta)
        monkeypatch.setattr(host, "STORED_GRADIENT_BYTES", 0)
        again = problem.value_and_gradient(theta)
    assert again[0] == stored[0]
    np.testing.assert_allclose(again[1], stored[1], rtol=1e-12)


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt", "count"])
def test_weights_act_as_repetition(structure, loss, scaling):
    dyads = dyads_for(structure)
    times = np.random.default_rng(0).integers(1, 4, len(dyads))
    weighted = Dyads(dyads.row, dyads.col, dyads.label, times.astype(float), dyads.n_rows, dyads.n_cols, dyads.n_labels)
    repeated = dyads.take(np.repeat(np.arange(len(dyads)), times))
    theta = random_theta(make_objective(structure, loss, dyads))
    found = []
    for data in (weighted, repeated):
        with Host(make_objective(structure, loss, data, scaling), data) as problem:
            found.append(problem.value_and_gradient(theta))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
def test_permuting_labels_permutes_value_and_gradient(structure, loss):
    dyads = dyads_for(structure)
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    free = [y for y in range(4) if y != structure.base]
    free_order = [free.index(y) for y in order if y in free]
    shared_by_labels = {"row_factors", "col_factors", "node_factors"} if "phi" in shared_names(structure) else set()

    def permute(vector):
        out = np.empty_like(vector)
        for name, part in layout.named(vector).items():
            by_label = part.shape[1] if name not in shared_by_labels else 0
            layout.named(out)[name][:] = part[:, free_order] if by_label else part
        return out

    layout = make_objective(structure, loss, dyads).layout
    centre = np.random.default_rng(3).normal(size=layout.size)
    objective = make_objective(structure, loss, dyads, centre=centre)
    theta = random_theta(objective)
    base = structure.base if structure.base == structure.n_labels else int(place[structure.base])
    relabelled = dataclasses.replace(dyads, label=place[dyads.label])
    renamed = loss._replace(values=loss.values[order]) if hasattr(loss, "values") else loss
    permuted = make_objective(structure._replace(base=base), renamed, relabelled, centre=permute(centre))
    with Host(objective, dyads) as one, Host(permuted, relabelled) as other:
        value, gradient = one.value_and_gradient(theta)
        value_permuted, gradient_permuted = other.value_and_gradient(permute(theta))
    assert value_permuted == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient_permuted, permute(gradient), rtol=1e-10, atol=1e-12)


def shared_names(structure):
    """Latent weights that all labels share are spoken of as `phi` weighs them."""
    return {"phi"} if structure.latent_shapes()[2] else set()


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
def test_swapping_rows_with_columns_swaps_value_and_gradient(structure, loss):
    dyads = dyads_for(structure, weighted=True)
    swapped = dataclasses.replace(
        dyads, row=dyads.col, col=dyads.row, n_rows=dyads.n_cols, n_cols=dyads.n_rows
    )  # fmt: skip
    other_name = {"row_bias": "col_bias", "row_factors": "col_factors", "out_factors": "in_factors"}
    other_name |= {new: old for old, new in other_name.items()}
    layout = Layout(structure, dyads.n_rows, dyads.n_cols)
    mirror = Layout(structure, dyads.n_cols, dyads.n_rows)

    def swap(vector):
        out = np.empty_like(vector)
        for name, part in layout.named(vector).items():
            mirror.named(out)[other_name.get(name, name)][:] = part
        return out

    centre = np.random.default_rng(3).normal(size=layout.size)
    objective = make_objective(structure, loss, dyads, "inverse_sqrt", (0.7, 0.4, 0.9), centre)
    strengths = (0.7, 0.4, 0.4) if structure.one_set else (0.7, 0.9, 0.4)
    if structure.one_set:
        objective = make_objective(structure, loss, dyads, "inverse_sqrt", strengths, centre)
    mirrored = make_objective(structure, loss, swapped, "inverse_sqrt", strengths, swap(centre))
    theta = random_theta(objective)

    with Host(objective, dyads) as one, Host(mirrored, swapped) as other:
        value, gradient = one.value_and_gradient(theta)
        value_swapped, gradient_swapped = other.value_and_gradient(swap(theta))
    assert value_swapped == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient_swapped, swap(gradient), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "structure", [STRUCTURES[0], *(case for case in STRUCTURES if case.latent_shapes()[2])], ids=repr
)
def test_relations_have_shared_blocks_of_their_own(structure):
    """Dyads of one relation move its shared block alone; gradients as ever."""
    dyads = dyads_for(structure, weighted=True, n_relations=3)
    objective = make_objective(structure, Log(), dyads)
    theta = random_theta(objective)
    with Host(objective, dyads) as problem:
        _, gradient = problem.value_and_gradient(theta)
        expected = central_difference(lambda point: problem.value_and_gradient(point)[0], theta)
        assert relative_error(gradient, expected) < 1e-6
    only = dyads.take(dyads.relation == 1)
    with Host(make_objective(structure, Log(), dyads, strengths=(0, 0, 0), centre=theta), only) as problem:
        shared = objective.layout.blocks(problem.value_and_gradient(theta)[1]).shared
        assert not shared[[0, 2]].any()
        assert shared[1].all()


@pytest.mark.parametrize(
    "structure", [Bilinear(4, 4, 1, False, 3), *(case for case in STRUCTURES if case.one_set)], ids=repr
)
@pytest.mark.parametrize("weighted", [False, True])
def test_any_number_of_threads_gives_the_same_bits(structure, weighted, monkeypatch):
    monkeypatch.setattr(orders, "CHUNK", 64)
    monkeypatch.setattr(orders, "CELL", 64)
    dyads = dyads_for(structure, n=5000, n_rows=90, n_cols=70, weighted=weighted)
    objective = make_objective(structure, Log(), dyads)
    theta = random_theta(objective)
    found = []
    for n_jobs in (1, 2, 3):
        with Host(objective, dyads, n_jobs) as problem:
            state = problem.sgd_state(theta)
            met = [problem.epoch(state, 0.2, 7, number) for number in range(3)]
            value, gradient = problem.value_and_gradient(theta)
        found.append((value, gradient.tobytes(), met, state.tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_an_epoch_visits_every_dyad_once(structure, monkeypatch):
    """With rate zero nothing moves, so the objective met on the way is the objective."""
    monkeypatch.setattr(orders, "CELL", 50)
    dyads = dyads_for(structure, n=4000, n_rows=60, n_cols=50, weighted=True)
    objective = make_objective(structure, Log(), dyads, "count")
    with Host(objective, dyads) as problem:
        assert problem._orders.cells.n_groups > 3
        state = problem.sgd_state(random_theta(objective))
        before = state[0].copy()
        met = problem.epoch(state, 0.0, 0, 0)
        assert met == pytest.approx(problem.value(before.astype(float)), rel=1e-5)
    assert (state[0] == before).all()


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt", "count"])
def test_sgd_gradients_sum_to_that_of_the_objective(structure, scaling, monkeypatch):
    """At a tiny rate with huge accumulators AdaGrad is plain descent, and an epoch is one step down the gradient."""
    monkeypatch.setattr(host, "ACCUMULATOR_START", 1e12)
    monkeypatch.setattr(passes, "SHARED_BATCH", 1)
    dyads = dyads_for(structure, n=300, weighted=True, n_relations=2)
    objective = make_objective(structure, Log(), dyads, scaling)
    theta = random_theta(objective)
    with Host(objective, dyads) as problem:
        state = problem.sgd_state(theta)
        rate = 3e-4 * math.sqrt(1e12) * dyads.total_weight / len(dyads)
        problem.epoch(state, rate, 0, 0)
        _, gradient = problem.value_and_gradient(theta)
    moved = (theta - state[0]) / 3e-4
    assert np.linalg.norm(moved - gradient) < 0.05 * np.linalg.norm(gradient)


def test_an_unknown_entity_has_average_scores_before_its_spread_is_known():
    """The score is linear in each block, so an average block gives the average score."""
    dyads = make_dyads(weighted=True)
    structure = Bilinear(4, 4, 1, False, 2)
    theta = np.random.default_rng(0).normal(size=Layout(structure, dyads.n_rows, dyads.n_cols).size)
    fitted = make_fitted(structure, theta, dyads)
    rows = scores(fitted, np.arange(dyads.n_rows), np.full(dyads.n_rows, 3))
    cols = scores(fitted, np.full(dyads.n_cols, 2), np.arange(dyads.n_cols))
    np.testing.assert_allclose(scores(fitted, [-1], [3])[0], np.average(rows, axis=0, weights=dyads.row_counts))
    np.testing.assert_allclose(scores(fitted, [2], [-1])[0], np.average(cols, axis=0, weights=dyads.col_counts))
    np.testing.assert_allclose(link(scores(fitted, [-1], [-1])).sum(), 1)
