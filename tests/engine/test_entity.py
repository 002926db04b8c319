"""The entity subproblem: curvature, descent, and sweeps over all entities."""

import numpy as np
import pytest

from dyads import L2, LFLClassifier, LFLOrdinal
from dyads.datasets.synthetic import make_nominal
from dyads.engine import CPU, orders
from dyads.engine.sums import Groups
from dyads.errors import InputError
from dyads.model.loss import Absolute, Log
from dyads.model.parameters import Role
from dyads.model.streams import Key, Stream
from dyads.model.structure import Bilinear, Diagonal, Stereotype
from dyads.solve import SOLVERS
from problems import LOSSES, N_LABELS, STRUCTURES, THRESHOLDS, loss_of_one, make_dyads, make_objective

# What solves for blocks takes long to compile: one process does it for all.
pytestmark = pytest.mark.xdist_group("blocks")

# Every structure with the log loss, every loss with one structure: what a subproblem does with a loss it does with all.
OTHERS = [(structure, Log()) for structure in STRUCTURES[1:]] + [(STRUCTURES[0], loss) for loss in LOSSES[1:]]


def sweep(problem, theta):
    """Solve for every block once; returns theta."""
    updates = problem.blocks_in_turn(theta)
    for role in updates.roles:
        updates.solve(role)
    return updates.theta()


BINARY = [Diagonal(2, 0, 1, False, 2), Diagonal(2, 1, 1, True, 2), Stereotype(2, 0, 1, True, 2, 2)]
"""A single free label, whose weights are folded into the factors of partners; with relations they differ by dyad."""

PAIRS = [
    (STRUCTURES[0], Log()),
    *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS + [(structure, Log()) for structure in BINARY]),
]


@pytest.mark.parametrize("loss", [*LOSSES, THRESHOLDS], ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_curvature_is_positive_and_for_the_log_loss_exact(loss, seed):
    s = np.random.default_rng(seed).normal(size=N_LABELS)
    for label in range(N_LABELS):
        C = loss_of_one(loss, label, s)[2]
        assert np.linalg.eigvalsh(C).min() > -1e-12
        if loss is not THRESHOLDS:
            np.testing.assert_allclose(C.sum(axis=1), 0, atol=1e-12, err_msg="adding to all scores changes nothing")
        if isinstance(loss, Log):
            step = 1e-6

            def slope(point, label=label):
                return loss_of_one(loss, label, point)[1]

            exact = [(slope(s + step * e) - slope(s - step * e)) / (2 * step) for e in np.eye(N_LABELS)]
            np.testing.assert_allclose(C, exact, atol=1e-8)


@pytest.mark.parametrize(("structure", "loss"), PAIRS, ids=repr)
def test_sweeps_never_raise_the_objective_and_end_where_its_gradient_vanishes(structure, loss):
    # The log loss shares its kernels with other tests of unweighted dyads.
    dyads = make_dyads(
        weighted=not isinstance(loss, Log),
        one_set=structure.one_set,
        n_labels=structure.n_labels,
        n_relations=3 if structure in BINARY else 1,
    )
    objective = make_objective(structure, loss, dyads, "inverse_sqrt")
    theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
    values = []
    with CPU(1).bind(objective, dyads) as problem:
        for _ in range(800):
            theta = sweep(problem, theta)
            values.append(problem.value(theta))
        gradient = problem.value_and_gradient(theta)[1]
    assert (np.diff(values) <= 1e-9 * np.abs(values[0])).all()
    assert np.abs(gradient).max() < (1e-2 if isinstance(loss, Log) else 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("structure", [STRUCTURES[0], STRUCTURES[4]], ids=repr)
def test_any_number_of_threads_gives_the_same_sweep(structure, monkeypatch):
    monkeypatch.setattr(orders, "ENTITY_CHUNK", 16)
    dyads = make_dyads(n=300, n_rows=40, n_cols=30, weighted=True, one_set=structure.one_set)
    objective = make_objective(structure, Log(), dyads)
    found = []
    for n_jobs in (1, 2, 3):
        theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
        with CPU(n_jobs).bind(objective, dyads) as problem:
            found.append(sweep(problem, theta))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("structure", "weighted"),
    [(STRUCTURES[4], False), *(pytest.param(case, True, marks=pytest.mark.slow) for case in STRUCTURES)],
    ids=repr,
)
def test_compiled_blocks_equal_interpreted_ones(structure, weighted, interpreted):
    """Solved for and drawn, in every role, with the driver of shared blocks, which is plain Python either way."""
    dyads = make_dyads(weighted=weighted, one_set=structure.one_set)
    objective = make_objective(structure, Log(), dyads)
    theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)

    def moved():
        with CPU(1).bind(objective, dyads) as problem:
            solved, drawn = problem.blocks_in_turn(theta), problem.blocks_in_turn(theta)
            accepted = []
            for role in solved.roles:
                if role == Role.SHARED and structure.reference == N_LABELS:
                    # Where no label is pinned, no score depends on what all label biases have in common.
                    continue
                solved.solve(role, 3)
                accepted += [drawn.draw(role, Key.of(0, Stream.BLOCKS, role, number)) for number in range(4)]
            return solved.theta(), drawn.theta(), np.concatenate(accepted)

    compiled = moved()
    with interpreted():
        plain = moved()
    assert compiled[2].any(), "some draws are accepted"
    for fast, slow in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-8, atol=1e-10)


def test_an_entity_is_gathered_once_unless_its_scores_are_quadratic():
    """Each tile notes where it begins. A tile with a self-link depends on the block, so it is not reused."""
    structure = STRUCTURES[4]
    assert structure.one_set
    dyads = make_dyads(one_set=True)
    objective = make_objective(structure, Log(), dyads)
    theta = np.random.default_rng(1).normal(size=objective.layout.size)
    linked = set(dyads.row[dyads.row == dyads.col].tolist())
    with CPU(1).bind(objective, dyads) as problem:
        updates = problem.blocks_in_turn(theta)
        ((_, entity_sums, _),) = updates._shards(Role.NODE, None, None)
    groups, table = entity_sums.groups, objective.layout.blocks(theta).row
    (whole,) = groups.parts(table.shape[1])
    reused = []
    for e, block in enumerate(table):
        work = entity_sums.work(groups, whole)
        entity_sums.sums_at(e, block, whole, False, np.empty((1, 1)), work)
        reused.append(work.gathered.first[0] == entity_sums.owned.start[e])
    assert linked
    assert [e for e, once in enumerate(reused) if not once] == sorted(linked)


def test_blocks_are_drawn_in_parts_of_whole_labels():
    structure = Bilinear(3, 3, 1, False, 2)
    groups = Groups.of(structure, Role.ROW, 9, 3)
    parts = groups.parts(6)
    assert [part.entry.tolist() for part in parts] == [[0, 1, 3, 4, 5, 6], [2, 7, 8]]
    assert sorted(np.concatenate([part.entry for part in groups.parts(1)]).tolist()) == list(range(9))
    assert groups.own.tolist() == [0, 1, 2, 0, 1, 2]


def test_newton_and_lbfgs_agree_where_the_problem_is_convex_and_nearly_elsewhere():
    data = make_nominal(n=25, rank=2, width=2.0, random_state=1)
    l2 = {0: L2(bias=1.0), 2: L2(latent=1.0, bias=1.0)}
    convex = [
        LFLClassifier(rank=0, l2=l2[0], solver=SOLVERS[s](3000, 1e-12)).fit(data.X, data.y) for s in ("newton", "lbfgs")
    ]
    assert convex[0].objective_ == pytest.approx(convex[1].objective_, rel=1e-6)
    latent = [
        min(
            LFLClassifier(rank=2, l2=l2[2], solver=SOLVERS[s](3000), random_state=i).fit(data.X, data.y).objective_
            for i in range(4)
        )
        for s in ("newton", "lbfgs")
    ]
    assert latent[0] == pytest.approx(latent[1], rel=0.01)


@pytest.mark.parametrize("solver", [name for name, solver in SOLVERS.items() if solver.needs_smooth])
def test_a_solver_that_needs_slopes_refuses_a_loss_without_and_names_one_that_fits(solver):
    data = make_nominal(n=10, random_state=1)
    with pytest.raises(InputError, match=f"{SOLVERS[solver].__name__} needs a smooth loss.*use solver='sgd'"):
        LFLOrdinal(loss=Absolute(0), solver=solver).fit(data.X, np.unique(data.y, return_inverse=True)[1])
