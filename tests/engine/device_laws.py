"""The laws of the CUDA engine, beside the CPU's results.

`python -m pytest tests/engine/device_laws.py` runs them on a GPU; `test_cuda.py` runs them in numba-cuda's simulator.
"""

import sys

import numpy as np
import pytest
from numba import config

from dyads.engine import CPU, CUDA, cuda
from dyads.model.loss import LOSSES as REGISTERED_LOSSES
from dyads.model.loss import Log
from dyads.model.objective import BlockPrior
from dyads.model.parameters import Role
from dyads.model.streams import Key, Stream
from dyads.model.structure import STRUCTURES as REGISTERED_STRUCTURES
from problems import LOSS_CASES, LOSSES, STRUCTURE_CASES, STRUCTURES, make_dyads, make_objective, relative_error

if config.ENABLE_CUDASIM:
    # The simulator's main thread waits for the others in a loop, and holds Python's lock for one interval each time.
    sys.setswitchinterval(1e-6)

N_DYADS, N_DRAWS = (30, 2) if config.ENABLE_CUDASIM else (60, 3)

SINGLE = 2e-4
"""Largest relative error of a result in single precision."""

CASES = [pytest.param(structure, Log(), id=str(structure)) for structure in STRUCTURES] + [
    pytest.param(STRUCTURES[0], loss, id=str(loss)) for loss in LOSSES
]
TWO_SETS = [structure for structure in STRUCTURES if not structure.one_set]


def test_every_structure_and_loss_has_a_case():
    assert {kind.__name__ for kind, _ in REGISTERED_STRUCTURES.values()} == set(STRUCTURE_CASES)
    assert set(REGISTERED_LOSSES) == set(LOSS_CASES)


def both(structure, loss, n_relations=1, weighted=True, n=N_DYADS):
    """An objective, a point, and the problems of the CPU and of the device."""
    dyads = make_dyads(n, weighted=weighted, one_set=structure.one_set, n_relations=n_relations)
    objective = make_objective(structure, loss, dyads)
    theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
    return theta, CPU(1).bind(objective, dyads), CUDA().bind(objective, dyads)


@pytest.mark.parametrize("n_relations", [1, 3])
@pytest.mark.parametrize(("structure", "loss"), CASES)
def test_value_and_gradient_are_the_cpus(structure, loss, n_relations):
    theta, host, device = both(structure, loss, n_relations)
    with host, device:
        expected, value = host.value_and_gradient(theta), device.value_and_gradient(theta)
        assert value[0] == pytest.approx(expected[0], rel=SINGLE)
        assert relative_error(value[1], expected[1]) < SINGLE
        assert device.loss(theta) == pytest.approx(host.loss(theta), rel=SINGLE)


@pytest.mark.parametrize("n_relations", [1, 3])
@pytest.mark.parametrize(("structure", "loss"), [case for case in CASES if not case.values[0].one_set])
def test_newton_steps_are_the_cpus(structure, loss, n_relations):
    theta, host, device = both(structure, loss, n_relations)
    with host, device:
        ours, theirs, before = device.blocks_in_turn(theta), host.blocks_in_turn(theta), host.value(theta)
        for role in ours.roles:
            ours.solve(role, 2)
            theirs.solve(role, 2)
            # By value, since directions along which the scores do not change have no curvature. Where the loss is not
            # convex, other steps may lead elsewhere.
            value = host.value(ours.theta())
            assert value <= before
            if isinstance(loss, Log):
                assert value == pytest.approx(host.value(theirs.theta()), rel=SINGLE)
            before = value


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("structure", TWO_SETS, ids=lambda case: f"{type(case).__name__}{case.rank}")
def test_draws_are_the_cpus_up_to_rounding_and_the_same_in_every_run(structure, large, monkeypatch):
    if large:
        monkeypatch.setattr(cuda, "LARGE", 9)
        monkeypatch.setattr(cuda, "LARGE_SHARE", 0.0)
        monkeypatch.setattr(cuda, "PIECE", 4)
    theta, host, device = both(structure, Log(), weighted=False)
    with host, device:
        ours, again, theirs = device.blocks_in_turn(theta), device.blocks_in_turn(theta), host.blocks_in_turn(theta)
        for role in ours.roles:
            size = ours.theta().size and host.objective.layout.sizes[role.place]
            prior = BlockPrior(np.full(size, 0.1), 2.0 * np.eye(size) + 0.1, np.ones(size))
            for number in range(N_DRAWS):
                key = Key.of(0, Stream.BLOCKS, number, role)
                accepted = ours.draw(role, key, prior)
                again.draw(role, key, prior)
                assert np.array_equal(accepted, theirs.draw(role, key, prior))
            assert np.array_equal(ours.theta(), again.theta())
            assert relative_error(ours.theta(), theirs.theta()) < 50 * SINGLE


def test_blocks_that_do_not_fit_into_shared_memory_give_the_same_steps(monkeypatch):
    theta, host, device = both(STRUCTURES[0], Log())
    with host, device:
        monkeypatch.setattr(device._bound.kernels, "SHARED_FLOATS", 700)
        ours, theirs = device.blocks_in_turn(theta), host.blocks_in_turn(theta)
        for role in (Role.ROW, Role.COL):
            ours.solve(role, 2)
            theirs.solve(role, 2)
        assert relative_error(ours.theta(), theirs.theta()) < 10 * SINGLE


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="a device has its own number of threads")
def test_the_number_of_threads_of_a_team_does_not_matter(monkeypatch):
    """Threads of the simulator show a missing barrier, as threads of a device would."""
    thetas = []
    for n_threads in (1, 3):
        theta, _, device = both(STRUCTURES[5], Log(), weighted=False, n=20)
        with device:
            monkeypatch.setattr(device._bound.kernels, "THREADS", n_threads)
            updates = device.blocks_in_turn(theta)
            updates.draw(Role.ROW, Key.of(0, Stream.BLOCKS, 0, Role.ROW))
            updates.solve(Role.COL)
            thetas.append(updates.theta())
    assert relative_error(*thetas) < SINGLE
