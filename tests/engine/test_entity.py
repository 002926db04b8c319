"""The entity subproblem: curvature, descent, and sweeps over all entities."""

import numpy as np
import pytest

from dyads import LFLClassifier
from dyads.datasets.synthetic import make_nominal
from dyads.engine import entity, host
from dyads.engine.host import Host
from dyads.model.loss import Log, evaluate
from dyads.solve import SOLVERS, Options
from problems import LOSSES, N_LABELS, STRUCTURES, make_dyads, make_objective

# Every structure with the log loss, every loss with one structure: what a subproblem does with a loss it does with all.
OTHERS = [(structure, Log()) for structure in STRUCTURES[1:]] + [(STRUCTURES[0], loss) for loss in LOSSES[1:]]
PAIRS = [(STRUCTURES[0], Log()), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_curvature_is_symmetric_positive_and_for_the_log_loss_exact(loss, seed):
    s = np.random.default_rng(seed).normal(size=N_LABELS)
    g, C = np.empty(N_LABELS), np.empty((N_LABELS, N_LABELS))
    for label in range(N_LABELS):
        loss.curvature(label, s, g, C)
        np.testing.assert_allclose(C, C.T, atol=1e-14)
        assert np.linalg.eigvalsh(C).min() > -1e-12
        np.testing.assert_allclose(C.sum(axis=1), 0, atol=1e-12, err_msg="adding to all scores changes nothing")
        if isinstance(loss, Log):
            step = 1e-6

            def slope(point, label=label):
                out = np.empty(N_LABELS)
                evaluate(loss, label, point, out)
                return out

            exact = [(slope(s + step * e) - slope(s - step * e)) / (2 * step) for e in np.eye(N_LABELS)]
            np.testing.assert_allclose(C, exact, atol=1e-8)


@pytest.mark.parametrize(("structure", "loss"), PAIRS, ids=repr)
def test_sweeps_never_raise_the_objective_and_end_where_its_gradient_vanishes(structure, loss):
    dyads = make_dyads(weighted=True, one_set=structure.one_set)
    objective = make_objective(structure, loss, dyads, "inverse_sqrt")
    theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
    with Host(objective, dyads) as problem:
        values = [problem.sweep(theta) for _ in range(400)]
        gradient = problem.value_and_gradient(theta)[1]
    assert (np.diff(values) <= 1e-9 * np.abs(values[0])).all()
    assert np.abs(gradient).max() < (1e-2 if isinstance(loss, Log) else 0.2)


@pytest.mark.parametrize("structure", [STRUCTURES[0], STRUCTURES[4]], ids=repr)
def test_any_number_of_threads_gives_the_same_sweep(structure, monkeypatch):
    monkeypatch.setattr(host, "ENTITY_CHUNK", 16)
    dyads = make_dyads(n=300, n_rows=40, n_cols=30, one_set=structure.one_set)
    objective = make_objective(structure, Log(), dyads)
    found = []
    for n_jobs in (1, 2, 3):
        theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
        with Host(objective, dyads, n_jobs) as problem:
            problem.sweep(theta)
        found.append(theta)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_a_compiled_subproblem_equals_the_interpreted_one(monkeypatch):
    dyads = make_dyads(weighted=True, one_set=True)
    objective = make_objective(STRUCTURES[4], Log(), dyads)
    found = []
    for compiled in (True, False):
        theta = np.random.default_rng(1).normal(scale=0.5, size=objective.layout.size)
        if not compiled:
            monkeypatch.setattr(entity, "newton_pass", entity.newton_pass.py_func)
        with Host(objective, dyads) as problem:
            problem.sweep(theta)
        found.append(theta)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8, atol=1e-10)


def test_newton_and_lbfgs_agree_where_the_problem_is_convex_and_nearly_elsewhere():
    data = make_nominal(n=40, rank=2, width=2.0, random_state=1)
    common = {"l2": 1.0, "l2_bias": 1.0, "max_iter": 3000}
    convex = [LFLClassifier(rank=0, solver=s, tol=1e-12, **common).fit(data.X, data.y) for s in ("newton", "lbfgs")]
    assert convex[0].objective_ == pytest.approx(convex[1].objective_, rel=1e-6)
    latent = [
        min(LFLClassifier(rank=2, solver=s, random_state=i, **common).fit(data.X, data.y).objective_ for i in range(5))
        for s in ("newton", "lbfgs")
    ]
    assert latent[0] == pytest.approx(latent[1], rel=0.01)


def test_newton_refuses_a_loss_without_slopes():
    dyads = make_dyads()
    objective = make_objective(STRUCTURES[0], Log(), dyads)
    with Host(objective, dyads) as problem:
        theta = np.zeros(objective.layout.size)
        assert SOLVERS["newton"].minimise(problem, theta, Options(max_iter=3), lambda *_: False).n_iter == 3
    assert SOLVERS["newton"].needs_smooth
