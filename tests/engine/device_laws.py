"""The laws of the CUDA engine, beside the CPU's results.

`python -m pytest tests/engine/device_laws.py` runs them on a GPU; `test_cuda.py` runs them in numba-cuda's simulator.
"""

import sys
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from geweke import z_scores
from numba import config
from scipy import sparse

from dyads.data.dyads import Counts, Dyads, Side
from dyads.engine import CPU, CUDA, cuda, posterior
from dyads.engine.api import Query
from dyads.engine.bundles import ABSENT, Specs
from dyads.engine.descent import decay
from dyads.engine.entity import PART
from dyads.engine.orders import in_order
from dyads.engine.passes import DescentWork, LastTile, Pulled, sgd_pass
from dyads.engine.sums import Groups
from dyads.errors import EngineWarning, InputError
from dyads.model.loss import Log
from dyads.model.objective import BlockPrior, Objective, Penalty, largest_residual
from dyads.model.parameters import Blocks, Layout, Role
from dyads.model.streams import Key, Stream, random_stream
from dyads.model.structure import STRUCTURES as REGISTERED_STRUCTURES
from dyads.model.structure import Bilinear, Stereotype, build
from problems import (
    LOSSES,
    STRUCTURE_CASES,
    STRUCTURES,
    make_dyads,
    make_objective,
    make_record,
    relative_error,
)

if config.ENABLE_CUDASIM:
    # The simulator's main thread waits for the others in a loop, and holds Python's lock for one interval each time.
    sys.setswitchinterval(1e-6)

N_DYADS, N_DRAWS = (30, 2) if config.ENABLE_CUDASIM else (60, 3)

SINGLE = 2e-4
"""Largest relative error of a result in single precision."""

BILINEAR, STEREOTYPE, DIAGONAL, DIRECTED = (cases[0] for cases in STRUCTURE_CASES.values())
ONE_SET = STRUCTURE_CASES["Bilinear"][4]

BINARY = [Bilinear(2, 0, 1, False, 3), Stereotype(2, 1, 1, False, 2, 1)]
"""Binary labels, of which one is free: the CPU folds their label weights into the factors."""

CASES = [pytest.param(structure, Log(), id=str(structure)) for structure in STRUCTURES + BINARY] + [
    pytest.param(BILINEAR, loss, id=str(loss)) for loss in LOSSES
]
"""The cases of the laws of passes; `test_cuda.py` compares them with the registries."""

TWO_SETS = [structure for structure in STRUCTURES + BINARY if not structure.one_set]


def both(structure, loss, n_relations=1, weighted=True, n=N_DYADS):
    """An objective, a point, and the problems of the CPU and of the device."""
    one_set, n_labels = structure.one_set, structure.n_labels
    dyads = make_dyads(n, weighted=weighted, one_set=one_set, n_relations=n_relations, n_labels=n_labels)
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


RELATED = [(structure, 3, True, True) for structure in (STRUCTURE_CASES["Stereotype"][1], *BINARY)]
DRAWN = [(structure, 1, False, False) for structure in TWO_SETS] + [
    (structure, 1, False, True) for structure in (TWO_SETS[2:5] if config.ENABLE_CUDASIM else TWO_SETS)
]


@pytest.mark.parametrize(("structure", "n_relations", "weighted", "large"), DRAWN + RELATED, ids=str)
def test_draws_are_the_cpus_up_to_rounding_and_the_same_in_every_run(
    structure, n_relations, weighted, large, monkeypatch
):
    if large:
        monkeypatch.setattr(cuda, "LARGE", 9)
        monkeypatch.setattr(cuda, "LARGE_SHARE", 0.0)
        monkeypatch.setattr(cuda, "PIECE", 4)
    theta, host, device = both(structure, Log(), n_relations, weighted)
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


def both_of_network(structure, n_relations, row, col):
    """Like `both`, of the dyads of a network of eight nodes, in one direction or the other."""
    turned, number, rng = np.arange(len(row)) % 3 == 0, np.arange(len(row)), np.random.default_rng(0)
    row, col = np.where(turned, col, row), np.where(turned, row, col)
    relation = number % n_relations if n_relations > 1 else None
    label, weight = rng.integers(0, structure.n_labels, len(row)), rng.uniform(0.5, 2.0, len(row))
    dyads = Dyads(row, col, label, weight, 8, 8, structure.n_labels, relation, n_relations)
    objective = make_objective(structure, Log(), dyads)
    theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
    return theta, CPU(1).bind(objective, dyads), CUDA().bind(objective, dyads)


@pytest.mark.parametrize("n_relations", [1, 3])
@pytest.mark.parametrize("structure", [structure for structure in STRUCTURES if structure.one_set], ids=str)
def test_nodes_are_updated_in_turns_as_on_the_cpu(structure, n_relations, monkeypatch):
    monkeypatch.setattr(cuda, "TEAM_COST", 0)
    row, col = np.divmod(np.arange(16), 4)
    theta, host, device = both_of_network(structure, n_relations, row, col + 4)
    with host, device:
        ours, theirs, before = device.blocks_in_turn(theta), host.blocks_in_turn(theta), host.value(theta)
        # Nodes with as many dyads each have their turns in the CPU's order.
        assert [turn.tolist() for turn in device._bound.held(Role.NODE).turns_on_host] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        for codes in (np.array([1, 6]), None):
            ours.solve(Role.NODE, 2, codes)
            theirs.solve(Role.NODE, 2, codes)
            value = host.value(ours.theta())
            assert before > value == pytest.approx(host.value(theirs.theta()), rel=SINGLE)
            before = value
        size = host.objective.layout.sizes[0]
        prior = BlockPrior(np.full(size, 0.1), 2.0 * np.eye(size) + 0.1, np.ones(size))
        ours, theirs = device.blocks_in_turn(theta), host.blocks_in_turn(theta)
        for number in range(N_DRAWS):
            key = Key.of(0, Stream.BLOCKS, number, Role.NODE)
            assert np.array_equal(ours.draw(Role.NODE, key, prior), theirs.draw(Role.NODE, key, prior))
        assert relative_error(ours.theta(), theirs.theta()) < 50 * SINGLE


def test_nodes_that_are_nearly_all_paired_are_updated_by_the_cpu_and_it_is_said():
    theta, host, device = both_of_network(ONE_SET, 1, *np.triu_indices(8, 1))
    with host, device:
        with pytest.warns(EngineWarning, match="so many ids are paired .* 8 turns"):
            ours = device.blocks_in_turn(theta)
        theirs = host.blocks_in_turn(theta)
        ours.solve(Role.NODE)
        theirs.solve(Role.NODE)
        assert np.array_equal(ours.theta(), theirs.theta())


@pytest.mark.parametrize("one_set", [False, True])
def test_entities_without_weights_are_no_problem(one_set):
    theta, host, device = both(Bilinear(4, 4, 0, one_set, 0), Log())
    with host, device:
        assert device.loss(theta) == pytest.approx(host.loss(theta))
        assert relative_error(device.value_and_gradient(theta)[1], host.value_and_gradient(theta)[1]) < SINGLE
        for updates in (device.blocks_in_turn(theta), host.blocks_in_turn(theta)):
            for role in updates.roles:
                updates.solve(role)


@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="takes minutes in the simulator")
@pytest.mark.parametrize(
    "structure", [Stereotype(3, 3, 1, False, 2, 1), Bilinear(3, 3, 1, False, 1), Bilinear(3, 3, 1, True, 1)], ids=str
)
def test_gewekes_joint_distribution_test(structure, monkeypatch):
    monkeypatch.setattr(posterior, "BIAS_SPREAD", 1.0)
    monkeypatch.setattr(cuda, "PART", 4)
    monkeypatch.setattr(cuda, "TEAM_COST", 0)
    z = z_scores(CUDA(), structure, self_links=False)
    assert np.abs(z).max() < 4, z.round(1)


@pytest.mark.parametrize(
    "few",
    # Little room beside the arrays that have an entry for each thread.
    [
        {"SHARED_FLOATS": 500 + (0 if config.ENABLE_CUDASIM else 3 * 128)},
        {"MOST_PAIRS": 0},
        {"MOST_PAIRS": 0, "MOST_WIDE_PAIRS": 0},
    ],
    ids=str,
)
def test_what_does_not_fit_into_shared_memory_gives_the_same_steps(few, monkeypatch):
    theta, host, device = both(BILINEAR, Log())
    with host, device:
        for name, value in few.items():
            monkeypatch.setattr(device._bound.kernels, name, value)
        ours, theirs = device.blocks_in_turn(theta), host.blocks_in_turn(theta)
        for role in (Role.ROW, Role.COL):
            ours.solve(role, 2)
            theirs.solve(role, 2)
        assert relative_error(ours.theta(), theirs.theta()) < 10 * SINGLE


@pytest.mark.parametrize("name", REGISTERED_STRUCTURES)
def test_a_team_fits_into_shared_memory_or_a_sentence_says_what_to_do(name, monkeypatch):
    """The simulator knows no limit."""
    kernels, refused = cuda.kernels(), []
    monkeypatch.setattr(kernels, "THREADS", 128)
    n_terms = 2 if "mixture" in name or name == "stereotype" else None
    for n_labels, rank in product((2, 5, 20, 26, 44, 50), (1, 5, 32, 64, 128)):
        structure = build(name, n_labels, n_labels, True, rank, n_terms)
        specs, sizes = Specs.of(structure, Log(), np.float32), Layout(structure, 2, 2).sizes
        for role in (Role.NODE, Role.SHARED) if structure.one_set else (Role.ROW, Role.COL, Role.SHARED):
            size, groups = sizes[role.place], Groups.of(structure, role, sizes[role.place], sizes[2])
            for most, curved in ((size, False), (PART, True), (size, True)):
                for part in groups.parts(most):
                    planned = cuda.Planned.of(part, size, groups, kernels.pairs_of(part) if curved else None)
                    try:
                        driven = curved and role != Role.SHARED
                        assert kernels.Room.of(specs, planned, driven).floats <= kernels.SHARED_FLOATS
                    except InputError as error:
                        refused.append((n_labels * rank, str(error)))
    # A directed node has two factors in each latent column.
    assert all(n >= 600 and "expected at most 12,288. Use a lower rank" in message for n, message in refused)


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="a device does not tell what a kernel allocates")
def test_a_kernel_allocates_what_its_room_says(monkeypatch):
    from numba.cuda.simulator import kernelapi

    shared, made = [], kernelapi.FakeCUDAShared

    def make(*arguments):
        shared.append(made(*arguments))
        return shared[-1]

    theta, _, device = both(STEREOTYPE, Log(), n=10)
    with device:
        monkeypatch.setattr(kernelapi, "FakeCUDAShared", make)
        device.blocks_in_turn(theta).solve(Role.COL, 1, np.array([0]))
        (planned,) = device._bound.planned(Role.COL, device.objective.layout.sizes[Role.COL.place])
        room = device._bound.kernels.Room.of(device._bound.specs, planned, True)
    (block,) = shared
    assert sum(array.nbytes for array in block._allocations.values()) == 4 * room.floats


def test_a_fit_on_another_thread_does_not_write_to_this_ones_arrays(monkeypatch):
    """The other fit computes between a kernel and the copy of its result."""
    theta, _, device = both(BILINEAR, Log())
    _, _, other = both(BILINEAR, Log())
    with device, other:
        expected, to_host = device.loss(theta), device._bound.kernels.to_host
        other.loss(theta)

        def later(array):
            monkeypatch.setattr(device._bound.kernels, "to_host", to_host)
            other.loss(2 * theta)
            return to_host(array)

        monkeypatch.setattr(device._bound.kernels, "to_host", later)
        assert device.loss(theta) == expected


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="a device has its own number of threads")
def test_the_number_of_threads_of_a_team_does_not_matter(monkeypatch):
    """Threads of the simulator show a missing barrier, as threads of a device would."""
    thetas = []
    for n_threads in (1, 3):
        theta, _, device = both(STEREOTYPE, Log(), weighted=False, n=20)
        with device:
            monkeypatch.setattr(device._bound.kernels, "THREADS", n_threads)
            updates = device.blocks_in_turn(theta)
            updates.draw(Role.ROW, Key.of(0, Stream.BLOCKS, 0, Role.ROW))
            updates.solve(Role.COL)
            thetas.append(updates.theta())
    assert relative_error(*thetas) < SINGLE


@pytest.fixture
def small_cells(monkeypatch):
    """Few dyads make several groups, and some entities have copies."""
    from dyads.engine import device_cells

    monkeypatch.setattr(device_cells, "CELL_DYADS", 3)


def on_host(bundle):
    """A bundle of the device's arrays, on the host."""
    if isinstance(bundle, tuple):
        return type(bundle)(*map(on_host, bundle)) if bundle else bundle
    return bundle if np.isscalar(bundle) else np.asarray(cuda.kernels().to_host(bundle))


def mean_of(tables, copies, visits):
    """Replace copies in the tables by their means, weighted by visits."""
    for table in tables:
        for e, first in enumerate(copies.start[:-1]):
            some = slice(first, copies.start[e + 1])
            weights = visits[copies.counter[some]]
            if weights.sum():
                mean = np.average(table[copies.copy[some]], axis=0, weights=weights)
                table[copies.owner[e]] = table[copies.copy[some]] = mean


def epoch_by_the_cpus_kernel(objective, dyads, dealt, state, rate, seed, number):
    """Value and state after an epoch over the device's cells: by the pass of the CPU, one cell after the other."""
    from dyads.engine.device_descent import PHASES
    from dyads.engine.warps import partner_group, visits_of

    layout, n, data, start = objective.layout, dealt.n_groups, on_host(dealt.data), on_host(dealt.start)
    one_set, n_relations = layout.structure.one_set, layout.n_relations
    specs = Specs.of(objective.structure, objective.loss, np.float32)
    shares = decay(objective.penalty, Counts.of(dyads, one_set))
    shares = shares._replace(row=dealt.row.with_copies(shares.row), col=dealt.col.with_copies(shares.col))
    copied = [layout.blocks(line.copy()) for line in state]
    rows = [dealt.row.with_copies(blocks.row) for blocks in copied]
    cols = rows if one_set else [dealt.col.with_copies(blocks.col) for blocks in copied]
    shared = [np.repeat(blocks.shared[None], n, axis=0) for blocks in copied]
    pulled, key = Pulled(*[ABSENT] * 5), Key.of(seed, Stream.VISITS, number)
    shift = int(random_stream(seed, Stream.ROUNDS, number).integers(n))
    bounds, value = np.linspace(0, n, min(PHASES, n) + 1).astype(int), 0.0
    for first, last in pairwise(bounds):
        visits = [np.zeros(len(table)) for table in (rows[0], cols[0], shared[0])]
        for round_ in range(first, last):
            for p in range(n):
                q = partner_group(one_set, p, round_ + shift, n)
                begin, m = start[p * n + q], start[p * n + q + 1] - start[p * n + q]
                if (one_set and q < p) or not m:
                    continue
                at, along = visits_of(key, p * n + q, m)
                order = begin + (at + along * np.arange(m)) % m
                assert len(np.unique(order)) == m
                np.add.at(visits[0], data.row[order], 1)
                np.add.at(visits[0] if one_set else visits[1], data.col[order], 1)
                visits[2][p] += m
                blocks, squares = (Blocks(rows[i], cols[i], shared[i][p]) for i in range(2))
                row_tiles = np.full(len(rows[0]), -1)
                tiles = LastTile(row_tiles, row_tiles if one_set else np.full(len(cols[0]), -1))
                work = DescentWork.of(blocks, dyads.n_labels)
                value += sgd_pass(specs, blocks, squares, data, order, shares, np.float32(rate), pulled, tiles, work)
        deals = [(rows, dealt.row, visits[0])] + ([] if one_set else [(cols, dealt.col, visits[1])])
        for tables, deal, met in deals:
            mean_of(tables, deal.copies, met[len(deal.first) :])
        for copies in shared:
            copies[:] = np.average(copies, axis=0, weights=visits[2])
    new = state.copy()
    for i, line in enumerate(new):
        out = layout.blocks(line)
        out.row[:], out.shared[:] = rows[i][: layout.n_rows], shared[i][0]
        if not one_set:
            out.col[:] = cols[i][: layout.n_cols]
    assert n_relations == out.shared.shape[0]
    return value + objective.add_penalty(new[0].astype(float), np.zeros(layout.size)), new


EPOCH_CASES = [
    pytest.param(*case.values, n, id=f"{case.id}, {n}")
    for case in CASES
    for n in ((1,) if config.ENABLE_CUDASIM and case.values[0] == BILINEAR else (1, 3))
    if not (config.ENABLE_CUDASIM and n == 1 and case.values[0] in STRUCTURES[1:4])
]
"""The simulator takes seconds for each."""


@pytest.mark.parametrize(("structure", "loss", "n_relations"), EPOCH_CASES)
def test_an_epoch_is_that_of_the_cpus_kernel_and_the_same_in_every_run(structure, loss, n_relations, small_cells):
    theta, host, device = both(structure, loss, n_relations)
    with host, device:
        ours, objective = device.descent(theta), host.objective
        start, before = ours.arrays(), ours.snapshot()
        value, expected = epoch_by_the_cpus_kernel(
            objective, device.dyads, device._bound.dealt, start, 0.5, seed=3, number=1
        )
        assert ours.epoch(0.5, 3, 1) == pytest.approx(value, rel=SINGLE)
        after = ours.arrays()
        assert relative_error(after, expected) < 10 * SINGLE
        assert np.abs(after - start).max() > 0.1
        assert ours.is_finite()
        assert device._bound.is_dealt
        assert device.loss(theta) == pytest.approx(host.loss(theta), rel=SINGLE)
        ours.restore(before)
        assert np.array_equal(ours.arrays(), start)
        ours.restore(start)
        ours.epoch(0.5, 3, 1)
        assert np.array_equal(ours.arrays(), after)


def test_fixed_parameters_stay_and_divergence_is_seen(small_cells):
    theta, host, device = both(BILINEAR, Log())
    free = np.ones(len(theta), np.bool_)
    free[:5] = False
    theta[:5] = 0, 0, 0, 0.5, -2
    with host, device:
        ours = device.restricted(free).descent(theta)
        ours.epoch(1.0, 0, 0)
        assert np.array_equal(ours.theta()[:5], theta[:5].astype(np.float32))
        assert not np.array_equal(ours.theta()[5:10], theta[5:10].astype(np.float32))
        broken = ours.arrays()
        broken[0, 7] = np.inf
        ours.restore(broken)
        assert not ours.is_finite()


def test_every_dyad_is_in_its_cell_once_and_large_entities_are_cut():
    from dyads.engine.device_cells import COPIES_OF_A_GROUP, Dealt

    rng = np.random.default_rng(0)
    n = 300 if config.ENABLE_CUDASIM else 30_000
    row, col = (25 * rng.random(n)).astype(int), (20 * rng.beta(0.4, 3, n)).astype(int)
    dealt = Dealt.of(Dyads(row, col, np.arange(n) % 3, np.arange(n) + 1.0, 25, 20, 3), False)
    data, start, n_groups = on_host(dealt.data), on_host(dealt.start), dealt.n_groups
    assert n_groups > 1
    position = data.weight.astype(int) - 1
    assert np.array_equal(np.sort(position), np.arange(n))
    cell = np.repeat(np.arange(n_groups**2), np.diff(start))
    assert np.array_equal(cell, dealt.row.group[data.row] * n_groups + dealt.col.group[data.col])
    # Within a cell, dyads keep their order.
    assert (np.diff(position)[np.diff(cell) == 0] > 0).all()
    owner = dealt.col.with_copies(np.arange(20))[data.col]
    assert np.array_equal(owner, col[position])
    assert (dealt.col.n_copies > 1).any()
    assert np.bincount(data.col).max() < 2 * n / (COPIES_OF_A_GROUP * n_groups)


def test_positions_are_sorted_within_cells():
    from dyads.engine.warps import LANES, WARPS, sort_cells

    kernels, rng = cuda.kernels(), np.random.default_rng(0)
    start = np.concatenate([[0], np.cumsum([0, 1, 2, 3, 7, 33, 64, 0, 100])])
    order = rng.permutation(start[-1]).astype(np.int32)
    ours = kernels.to_device(order)
    sort_cells[2, LANES * WARPS](kernels.to_device(start), ours)
    expected = [np.sort(order[first:last]) for first, last in pairwise(start)]
    assert np.array_equal(kernels.to_host(ours), np.concatenate(expected))


@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="takes long in the simulator")
@pytest.mark.parametrize("structure", [BILINEAR, STEREOTYPE, ONE_SET], ids=str)
def test_the_objective_falls_as_on_the_cpu(structure):
    rng = np.random.default_rng(0)
    n, m = 100_000, 300
    row, col = (m * rng.random(n)).astype(int), (m * rng.beta(0.45, 4, n)).astype(int)
    blocks = rng.normal(size=(2, m, 3))
    score = np.einsum("nk,nk->n", blocks[0, row], blocks[1, col])
    label = np.digitize(score + rng.logistic(size=n), [-1, 0, 1])
    objective = make_objective(structure, Log(), Dyads(row, col, label, None, m, m, 4))
    dyads = Dyads(row, col, label, None, m, m, 4)
    theta = objective.layout.initial(np.random.default_rng(1), np.bincount(label, minlength=4).astype(float))
    with CPU().bind(objective, dyads) as host, CUDA().bind(objective, dyads) as device:
        ends = []
        for problem in (host, device):
            descent = problem.descent(theta)
            for number in range(10):
                descent.epoch(1 - number / 10, 0, number)
            ends.append(host.value(descent.theta().astype(float)))
        assert ends[1] < 1.01 * ends[0]


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="a device has its own number of lanes")
@pytest.mark.parametrize("structure", [BILINEAR, STEREOTYPE, DIAGONAL, DIRECTED], ids=str)
def test_the_number_of_lanes_of_a_warp_does_not_matter(structure, monkeypatch, small_cells):
    from dyads.engine import device_cells, device_descent, warps

    states = []
    for n_lanes in (1, 2):
        for module in (warps, device_cells, device_descent):
            monkeypatch.setattr(module, "LANES", n_lanes)
        warps.descent_kernel.cache_clear()
        theta, _, device = both(structure, Log(), 2, n=14)
        with device:
            descent = device.descent(theta)
            descent.epoch(0.5, 0, 0)
            states.append(descent.arrays())
    assert relative_error(*states) < SINGLE


@pytest.mark.parametrize("width", [1, 5, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_products_are_scipys(dtype, width):
    cuda.kernels()
    from dyads.engine.device_sparse import DeviceMatrix

    rng, n, p = np.random.default_rng(0), 17, 9
    # Lines of every length from none on.
    plain = sparse.csr_array(rng.normal(size=(n, p)) * (rng.random((n, p)) < np.linspace(0, 1, n)[:, None]))
    matrix, right, left = DeviceMatrix(plain, in_order).astype(dtype), rng.normal(size=(p, width)), rng.normal(size=n)
    assert (matrix @ right).dtype == dtype
    assert relative_error(matrix @ right, plain @ right) < 10 * np.finfo(dtype).eps
    assert relative_error(matrix.T @ left, plain.T @ left) < 10 * np.finfo(dtype).eps
    assert np.array_equal(DeviceMatrix(plain[:0], in_order).T @ np.ones((0, width)), np.zeros((p, width)))


@pytest.mark.parametrize("width", [1, 5 if config.ENABLE_CUDASIM else 33])
def test_normal_equations_are_solved_as_exactly_as_on_the_cpu(width):
    cuda.kernels()
    from dyads.engine.device_sparse import DeviceMatrix

    rng, n, p, ridge = np.random.default_rng(0), 40, 12, 0.3
    matrix = sparse.csr_array(rng.normal(size=(n, p)) * (rng.random((n, p)) < 0.5))
    weight, strength = rng.random(n) < 0.7, np.sort(rng.gamma(1.0, size=width))
    right = rng.normal(size=(p, width))
    gram = (matrix.T @ (weight[:, None] * matrix)).toarray()
    solution = DeviceMatrix(matrix, in_order).solve_normal(weight, strength, ridge, right)
    residual = right - strength * (gram @ solution) - ridge * solution
    # The matrix is in single precision.
    assert np.sqrt((residual**2).sum(axis=0)).max() < np.sqrt(largest_residual(ridge, p)) + 1e-5
    assert np.abs(residual).max() > 0


def test_side_weights_are_drawn_as_on_the_cpu():
    rng, dyads = np.random.default_rng(0), make_dyads(N_DYADS)
    rows = sparse.csr_array(rng.normal(size=(dyads.n_rows, 3)) * (rng.random((dyads.n_rows, 3)) < 0.6))
    dyads = replace(dyads, side=Side(row=rows))
    layout = Layout(STRUCTURE_CASES["Bilinear"][2], dyads.n_rows, dyads.n_cols, 1, dyads.side.widths, 1)
    objective = Objective(layout, Log(), Penalty.of(layout, {}, "none", Counts.of(dyads, False)))
    theta, thetas = rng.normal(scale=0.5, size=layout.size), []
    for engine in (CPU(1), CUDA()):
        with engine.bind(objective, dyads) as problem:
            updates, size = problem.blocks_in_turn(theta), layout.sizes[0]
            prior = BlockPrior(np.zeros(size), np.eye(size), np.ones(size))
            updates.draw_side_weights(Role.ROW, prior, 1.0, np.random.default_rng(1))
            thetas.append(updates.theta())
    assert np.abs(thetas[0] - theta).max() > 0.1
    assert relative_error(thetas[1], thetas[0]) < 10 * SINGLE


@pytest.mark.parametrize("n_draws", [1, 2])
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_scores_are_the_cpus_also_of_unknown_entities(structure, n_draws):
    dyads = make_dyads(N_DYADS, one_set=structure.one_set)
    size = make_objective(structure, Log(), dyads).layout.size
    records = [
        make_record(structure, np.random.default_rng(seed).normal(scale=0.5, size=size), dyads)
        for seed in range(n_draws)
    ]
    models = [replace(records[0], draws=record.draws).models[0] for record in records]
    row, col = dyads.row.copy(), dyads.col.copy()
    row[0] = -1
    expected = CPU(1).scores(models, (row, col))
    assert relative_error(CUDA().scores(models, (row, col)), expected) < SINGLE
    assert np.array_equal(CUDA().scores(models, (row, col))[0], expected[0])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("structure", [BILINEAR, DIRECTED], ids=str)
def test_the_best_columns_are_the_cpus(structure, turned):
    dyads = make_dyads(N_DYADS, one_set=structure.one_set)
    size = make_objective(structure, Log(), dyads).layout.size
    draws = [np.random.default_rng(seed).normal(scale=0.5, size=size) for seed in range(2)]
    models = [make_record(structure, theta, dyads).models[0] for theta in draws]
    # Row 1 excludes the first candidate.
    start = np.array([0, 0, 1, *[1] * 6])
    query = Query(np.array([0, 1, 3]), np.array([0, 2, 4]), 2, np.arange(4.0), 0, (start, np.array([0])), turned)
    (at, best), (expected_at, expected) = CUDA().top(models, query), CPU(1).top(models, query)
    assert np.array_equal(at, expected_at)
    assert relative_error(best, expected) < SINGLE
    assert 0 not in at[1]
