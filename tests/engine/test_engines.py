"""Laws of every engine: value, gradient, symmetries, solvers, SGD; and that nothing depends on who computes what."""

import dataclasses
import gc
import math
import tracemalloc

import joblib
import numpy as np
import pytest

from dyads.data.dyads import Dyads
from dyads.engine import CPU, ENGINES, Query, descent, host, orders, passes, scoring
from dyads.model.loss import Log, link
from dyads.model.objective import BlockPrior
from dyads.model.parameters import Blocks, Layout
from dyads.model.streams import Key, Stream
from dyads.model.structure import Bilinear, is_undirected
from dyads.solve import SOLVERS
from engine.toy import Toy
from problems import (
    CROSSED,
    LOSSES,
    STRUCTURES,
    central_difference,
    make_dyads,
    make_objective,
    make_record,
    relative_error,
)

SLOW = pytest.mark.slow

WEIGHTED = pytest.mark.parametrize("weighted", [False, pytest.param(True, marks=SLOW)])
"""Weighted dyads have kernels of their own, which take long to compile."""


HOSTS = [name for name in ENGINES if name not in ("cuda", "ray")]
"""Engines that need no device and no store; the others have their laws in `device_laws.py` and `test_cluster.py`."""


@pytest.fixture(params=HOSTS)
def engine(request):
    """Each engine of the library."""
    return ENGINES[request.param]()


@pytest.fixture(params=[*HOSTS, "toy"])
def any_engine(request):
    """Each engine of the library, and one that has no more than L-BFGS and Newton's method need."""
    return {**ENGINES, "toy": Toy}[request.param]()


def dyads_for(structure, **choices):
    return make_dyads(one_set=structure.one_set, **choices)


def random_theta(objective, seed=0):
    return np.random.default_rng(seed).normal(scale=0.5, size=objective.layout.size)


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt", "count"])
def test_gradient_matches_central_differences(engine, structure, loss, scaling):
    dyads = dyads_for(structure, weighted=structure is STRUCTURES[0])
    objective = make_objective(structure, loss, dyads, scaling)
    theta = random_theta(objective)
    with engine.bind(objective, dyads) as problem:
        value, gradient = problem.value_and_gradient(theta)
        assert value == pytest.approx(problem.value(theta), rel=1e-12)
        expected = central_difference(lambda point: problem.value_and_gradient(point)[0], theta)
    assert relative_error(gradient, expected) < 1e-6


def standard_prior(objective, role):
    size = objective.layout.sizes[role.place]
    return BlockPrior(np.zeros(size), np.eye(size), np.ones(size))


EACH = [STRUCTURES[0], *(pytest.param(case, marks=SLOW) for case in STRUCTURES[1:])]
"""All structures: one in the default suite, the others in the slow one."""

FEW = [STRUCTURES[1], *(pytest.param(STRUCTURES[i], marks=SLOW) for i in (4, 6))]
"""Of two id sets, and slow ones of one; another type of structure takes long to compile."""


def test_the_gradient_is_the_derivative_of_the_value_and_all_engines_agree_on_both(any_engine):
    for structure in STRUCTURES[::2]:
        dyads = dyads_for(structure, n=25, n_rows=4, n_cols=3, weighted=structure is STRUCTURES[0])
        objective = make_objective(structure, Log(), dyads, "inverse_sqrt")
        theta, direction = random_theta(objective), random_theta(objective, 5)
        with any_engine.bind(objective, dyads) as problem, CPU(1).bind(objective, dyads) as reference:
            value, gradient = problem.value_and_gradient(theta)
            assert value == pytest.approx(problem.value(theta), rel=1e-12)
            ahead, behind = (problem.value(theta + step * direction) for step in (1e-5, -1e-5))
            assert (ahead - behind) / 2e-5 == pytest.approx(gradient @ direction, rel=1e-6)
            expected = reference.value_and_gradient(theta)
            held = dyads.take(np.arange(5))
            assert problem.loss(theta, held) == pytest.approx(reference.loss(theta, held), rel=1e-12)
        assert value == pytest.approx(expected[0], rel=1e-12)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("solver", ["lbfgs", "newton"])
@pytest.mark.xdist_group("blocks")
@pytest.mark.parametrize("structure", FEW, ids=repr)
@WEIGHTED
def test_solvers_never_climb_and_end_where_the_gradient_vanishes(any_engine, solver, structure, weighted):
    dyads = dyads_for(structure, n=20, n_rows=3, n_cols=3, weighted=weighted)
    objective = make_objective(structure, Log(), dyads)
    values = []
    with any_engine.bind(objective, dyads) as problem:
        start, exact = random_theta(objective), SOLVERS[solver](max_iter=60, tol=1e-12)
        solution = exact.minimise(problem, start, 0, lambda i, value, theta: values.append(value))
        before, (after, gradient) = problem.value(start), problem.value_and_gradient(solution.theta)
    assert (np.diff([before, *values]) <= 1e-9 * before).all()
    assert after == pytest.approx(values[-1], rel=1e-9)
    assert np.abs(gradient).max() < 0.05


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
def test_compiled_equals_interpreted(structure, loss, interpreted):
    dyads = dyads_for(structure, weighted=structure is STRUCTURES[0])
    objective = make_objective(structure, loss, dyads)
    theta = random_theta(objective)
    models = make_record(objective.structure, theta, dyads).models

    def everything():
        with CPU(1).bind(objective, dyads) as problem:
            value, gradient = problem.value_and_gradient(theta)
            sgd = problem.descent(theta)
            met = sgd.epoch(0.1, 3, 0)
        return gradient, value, met, sgd.snapshot(), CPU(1).scores(models, dyads.codes)

    compiled = everything()
    with interpreted():
        plain = everything()
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-10, atol=1e-12)
    for fast, slow in zip(compiled[1:], plain[1:], strict=True):
        np.testing.assert_allclose(fast, slow, rtol=2e-4 if np.asarray(fast).dtype == np.float32 else 1e-5, atol=1e-5)


N_DRAWS = scoring.TILE + 2
"""Draws of new entities: more than one tile."""


def models_with_new_entities(structure, n_models, dtype=np.float64):
    """Models of one record, with entity 1 of each id set new, and so are unknown ids."""
    dyads, rng, models = dyads_for(structure), np.random.default_rng(4), []
    for seed in range(n_models):
        theta = random_theta(make_objective(structure, Log(), dyads), seed).astype(dtype)
        (model,) = make_record(structure, theta, dyads).models
        known = model.known.with_sets(
            dataclasses.replace(entities, counts=np.where(np.arange(len(entities)) == 1, 0, entities.counts))
            for entities in model.known.sets
        )
        populations = []
        for entities, population in zip((known.rows, known.cols), model.populations, strict=True):
            spread, shift = rng.normal(size=(N_DRAWS, len(population.average))), rng.normal(size=(len(entities), 4))
            populations.append(dataclasses.replace(population, spread=spread, partner_shift=shift))
        draw = dataclasses.replace(model.draw, rows=populations[0], cols=populations[1])
        models.append(dataclasses.replace(model, known=known, draw=draw))
    return models


def all_pairs(rows, cols):
    return np.repeat(rows, len(cols)), np.tile(cols, len(rows))


def query_for(models):
    """A query for known, new and unknown rows, and its excluded pairs as a mask."""
    rows, cols = np.array([0, 1, -1, 2]), np.arange(len(models[0].known.cols))
    start = np.full(len(models[0].known.rows) + 1, 3)
    start[:3] = 0, 2, 2
    query = Query(rows, cols, 4, np.array([1.0, 2.0, 3.0, 4.5]), 0, (start, np.array([0, 3, 1])))
    excluded = np.zeros((len(rows), len(cols)), np.bool_)
    excluded[[0, 0, 3], [0, 3, 1]] = True
    return query, excluded


@pytest.mark.parametrize("n_models", [1, 3])
@pytest.mark.parametrize("structure", [STRUCTURES[0], STRUCTURES[4]], ids=repr)
def test_compiled_answers_equal_interpreted_ones_also_of_new_entities(structure, n_models, interpreted):
    models = models_with_new_entities(structure, n_models)
    query, _ = query_for(models)

    def answers():
        return CPU(1).scores(models, all_pairs(query.rows, query.cols)), *CPU(1).top(models, query)

    compiled = answers()
    with interpreted():
        plain = answers()
    np.testing.assert_allclose(compiled[0], plain[0], rtol=1e-10)
    np.testing.assert_array_equal(compiled[1], plain[1])
    np.testing.assert_allclose(compiled[2], plain[2], rtol=1e-10)


@pytest.mark.parametrize("structure", EACH, ids=repr)
def test_the_best_columns_are_those_of_the_mean_probabilities_of_all_models(engine, structure):
    models = models_with_new_entities(structure, 3)
    query, excluded = query_for(models)
    pairs = all_pairs(query.rows, query.cols)
    proba = np.mean([link(engine.scores([model], pairs)) for model in models], axis=0)
    np.testing.assert_allclose(link(engine.scores(models, pairs)), proba, rtol=1e-12)
    values = np.where(excluded, -np.inf, (proba @ query.values).reshape(excluded.shape))
    order = np.argsort(-values, axis=1, kind="stable")[:, : query.n]
    greatest = np.take_along_axis(values, order, axis=1)
    at, best = engine.top(models, query)
    np.testing.assert_array_equal(at, np.where(greatest > -np.inf, order, -1))
    np.testing.assert_allclose(best, greatest, rtol=1e-12)


@pytest.mark.parametrize("structure", EACH, ids=repr)
def test_equally_good_columns_are_in_the_order_of_the_candidates(engine, structure):
    models = models_with_new_entities(structure, 2)
    query, excluded = query_for(models)
    at, best = engine.top(models, query._replace(values=np.zeros(4)))
    for line, out in zip(at, excluded, strict=True):
        first = np.flatnonzero(~out)[: query.n]
        assert line[: len(first)].tolist() == first.tolist()
    assert not best[at >= 0].any()


@pytest.mark.parametrize("structure", EACH, ids=repr)
def test_probabilities_of_new_entities_are_means_over_their_draws(engine, structure):
    (model,) = models_with_new_entities(structure, 1)
    (rows, cols), unknown = model.populations, model.unknown
    for row in (1, -1, 2):
        for col in (1, -1, 3):
            a, b = model.effective.row[row][None], model.effective.col[col][None]
            a, b = unknown.row if row < 0 else a, unknown.col if col < 0 else b
            shift = np.zeros((N_DRAWS, 4))
            if row < 2:
                a = a + rows.spread
                # The draws of two new entities are paired, the first of one with the last of the other.
                b = b + cols.spread[::-1] if col < 2 else b
                shift = shift if col < 2 else shift + cols.partner_shift[col]
            elif col < 2:
                b, shift = b + cols.spread, shift + rows.partner_shift[row]
            blocks = Blocks(a, b, model.effective.shared)
            codes = [np.arange(N_DRAWS) % len(block) for block in (a, b)]
            drawn = engine.block_scores(structure, blocks, codes, shift)
            scores = drawn[0] if row > 1 and col > 1 else np.log(link(drawn).mean(axis=0))
            np.testing.assert_allclose(engine.scores([model], ([row], [col]))[0], scores, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_models", [1, 3])
@pytest.mark.parametrize("structure", EACH, ids=repr)
def test_an_answer_depends_on_nothing_but_its_dyad(structure, n_models, monkeypatch):
    """Not on its place, on the dyads beside it, on tasks or threads; nor on the order of an undirected pair."""
    models = models_with_new_entities(structure, n_models, np.float32)
    query, _ = query_for(models)
    n_rows, n_cols = len(models[0].known.rows), len(models[0].known.cols)
    row, col = (codes.astype(np.int64) for codes in all_pairs(np.arange(-1, n_rows), np.arange(-1, n_cols)))
    places = np.random.default_rng(0).integers(len(row), size=3001)
    once, best = CPU(1).scores(models, (row, col)), CPU(1).top(models, query)
    monkeypatch.setattr(orders, "CHUNK", 300)
    monkeypatch.setattr(scoring, "MODELS_CHUNK", 300)
    monkeypatch.setattr(scoring, "TOP_CELLS", 1)
    for threads in (1, 2, 3):
        many = CPU(threads).scores(models, (row[places], col[places]))
        assert many.tobytes() == once[places].tobytes()
        for result, same in zip(CPU(threads).top(models, query), best, strict=True):
            assert result.tobytes() == same.tobytes()
    if is_undirected(type(structure), structure.one_set):
        known = (row >= 0) & (col >= 0) & (row != 1) & (col != 1)
        turned = CPU(1).scores(models, (col[known], row[known]))
        assert turned.tobytes() == once[known].tobytes()


def test_answers_of_many_models_take_little_more_memory_than_the_result():
    structure, n = STRUCTURES[0], 200_000
    dyads, rng = dyads_for(structure), np.random.default_rng(0)
    objective = make_objective(structure, Log(), dyads)
    models = [make_record(structure, random_theta(objective, seed), dyads).models[0] for seed in range(20)]
    pairs, rows = (rng.integers(dyads.n_rows, size=n), rng.integers(dyads.n_cols, size=n)), np.zeros(n // 5, np.int64)
    nothing = np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int64)
    query = Query(rows, np.arange(dyads.n_cols), 1, np.arange(4.0), 0, nothing)
    for answer in (lambda: (CPU(2).scores(models, pairs),), lambda: CPU(2).top(models, query)):
        size = sum(result.nbytes for result in answer())  # Compiles, which takes memory of its own.
        gc.collect()
        tracemalloc.start()
        answer()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size + 8e6, "one array per model would take much more"


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_recomputed_score_gradients_equal_stored_ones(engine, loss, monkeypatch):
    dyads = make_dyads(weighted=True)
    objective = make_objective(STRUCTURES[0], loss, dyads)
    theta = random_theta(objective)
    with engine.bind(objective, dyads) as problem:
        stored = problem.value_and_gradient(theta)
        monkeypatch.setattr(host, "STORED_GRADIENT_BYTES", 0)
        again = problem.value_and_gradient(theta)
    assert again[0] == stored[0]
    np.testing.assert_allclose(again[1], stored[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("structure", "loss"),
    [
        *(pytest.param(STRUCTURES[0], loss) for loss in LOSSES),
        *(pytest.param(structure, loss, marks=SLOW) for structure in STRUCTURES[1:] for loss in LOSSES),
    ],
    ids=repr,
)
@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt", "count"])
def test_weights_act_as_repetition(engine, structure, loss, scaling):
    dyads = dyads_for(structure)
    times = np.random.default_rng(0).integers(1, 4, len(dyads))
    weighted = Dyads(dyads.row, dyads.col, dyads.label, times.astype(float), dyads.n_rows, dyads.n_cols, dyads.n_labels)
    repeated = dyads.take(np.repeat(np.arange(len(dyads)), times))
    # A kernel of unweighted dyads is another one; that both agree is a law of its own.
    repeated = dataclasses.replace(repeated, weight=np.ones(len(repeated)))
    theta = random_theta(make_objective(structure, loss, dyads))
    found = []
    for data in (weighted, repeated):
        with engine.bind(make_objective(structure, loss, data, scaling), data) as problem:
            found.append(problem.value_and_gradient(theta))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("structure", [STRUCTURES[0], *(pytest.param(x, marks=SLOW) for x in STRUCTURES[1:])], ids=repr)
def test_no_weights_are_weights_of_one(engine, structure):
    dyads = dyads_for(structure)
    objective = make_objective(structure, Log(), dyads)
    theta, answers = random_theta(objective), []
    for data in (dyads, dataclasses.replace(dyads, weight=np.ones(len(dyads)))):
        with engine.bind(objective, data) as problem:
            descent = problem.descent(theta.astype(np.float32))
            answers.append((*problem.value_and_gradient(theta), descent.epoch(0.2, 0, 0), descent.theta()))
    for without, ones in zip(*answers, strict=True):
        np.testing.assert_allclose(without, ones, rtol=1e-6)


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
def test_permuting_labels_permutes_value_and_gradient(engine, structure, loss):
    dyads = dyads_for(structure, weighted=structure is STRUCTURES[0])
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    free = [y for y in range(4) if y != structure.reference]
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
    reference = structure.reference if structure.reference == structure.n_labels else int(place[structure.reference])
    relabelled = dataclasses.replace(dyads, label=place[dyads.label])
    renamed = loss._replace(values=loss.values[order]) if hasattr(loss, "values") else loss
    permuted = make_objective(structure._replace(reference=reference), renamed, relabelled, centre=permute(centre))
    with engine.bind(objective, dyads) as one, engine.bind(permuted, relabelled) as other:
        value, gradient = one.value_and_gradient(theta)
        value_permuted, gradient_permuted = other.value_and_gradient(permute(theta))
    assert value_permuted == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient_permuted, permute(gradient), rtol=1e-10, atol=1e-12)


def shared_names(structure):
    """Latent weights that all labels share are spoken of as `phi` weighs them."""
    return {"phi"} if structure.latent_shapes()[2] else set()


@pytest.mark.parametrize(("structure", "loss"), CROSSED, ids=repr)
def test_swapping_rows_with_columns_swaps_value_and_gradient(engine, structure, loss):
    dyads = dyads_for(structure, weighted=structure is STRUCTURES[0])
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

    with engine.bind(objective, dyads) as one, engine.bind(mirrored, swapped) as other:
        value, gradient = one.value_and_gradient(theta)
        value_swapped, gradient_swapped = other.value_and_gradient(swap(theta))
    assert value_swapped == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient_swapped, swap(gradient), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "structure",
    [STRUCTURES[0], *(pytest.param(case, marks=SLOW) for case in STRUCTURES if case.latent_shapes()[2])],
    ids=repr,
)
def test_relations_have_shared_blocks_of_their_own(engine, structure):
    """Dyads of one relation move its shared block alone; gradients as ever."""
    dyads = dyads_for(structure, n_relations=3)
    objective = make_objective(structure, Log(), dyads)
    theta = random_theta(objective)
    with engine.bind(objective, dyads) as problem:
        _, gradient = problem.value_and_gradient(theta)
        expected = central_difference(lambda point: problem.value_and_gradient(point)[0], theta)
        assert relative_error(gradient, expected) < 1e-6
    only = dyads.take(dyads.relation == 1)
    with engine.bind(make_objective(structure, Log(), dyads, strengths=(0, 0, 0), centre=theta), only) as problem:
        shared = objective.layout.blocks(problem.value_and_gradient(theta)[1]).shared
        assert not shared[[0, 2]].any()
        assert shared[1].all()


@pytest.mark.parametrize(
    "structure", [Bilinear(4, 4, 1, False, 3), *(case for case in STRUCTURES if case.one_set)], ids=repr
)
@WEIGHTED
def test_any_number_of_threads_gives_the_same_bits(structure, weighted, monkeypatch):
    monkeypatch.setattr(orders, "CHUNK", 64)
    monkeypatch.setattr(host, "CELL", 64)
    dyads = dyads_for(structure, n=5000, n_rows=90, n_cols=70, weighted=weighted)
    objective = make_objective(structure, Log(), dyads)
    theta = random_theta(objective)
    found = []
    for n_jobs in (1, 2, 3):
        with CPU(n_jobs).bind(objective, dyads) as problem:
            sgd = problem.descent(theta)
            met = [sgd.epoch(0.2, 7, number) for number in range(3)]
            value, gradient = problem.value_and_gradient(theta)
        found.append((value, gradient.tobytes(), met, sgd.snapshot().tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_an_epoch_visits_every_dyad_once(engine, structure, monkeypatch):
    """With rate zero nothing moves, so the objective met on the way is the objective."""
    monkeypatch.setattr(host, "CELL", 50)
    dyads = dyads_for(structure, n=4000, n_rows=60, n_cols=50, weighted=structure is STRUCTURES[0])
    objective = make_objective(structure, Log(), dyads, "count")
    with engine.bind(objective, dyads) as problem:
        sgd = problem.descent(random_theta(objective))
        before = sgd.theta().copy()
        met = sgd.epoch(0.0, 0, 0)
        assert met == pytest.approx(problem.value(before.astype(float)), rel=1e-5)
    assert (sgd.theta() == before).all()


@pytest.mark.parametrize("structure", FEW, ids=repr)
def test_sgd_by_tiles_takes_the_steps_of_one_dyad_after_the_other(structure, interpreted, monkeypatch):
    """The dyads of a tile share no entity, so their steps do not change each other's scores."""
    monkeypatch.setattr(passes, "SHARED_BATCH", 10**6)
    dyads = dyads_for(structure, n=300, n_rows=12, n_cols=12)
    objective, states = make_objective(structure, Log(), dyads), []
    for n_lanes in (1, passes.LANES):
        monkeypatch.setattr(passes, "LANES", n_lanes)
        with interpreted(), CPU(1).bind(objective, dyads) as problem:
            sgd = problem.descent(random_theta(objective))
            sgd.epoch(0.5, 0, 0)
            states.append(sgd.snapshot())
    np.testing.assert_allclose(*states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("structure", EACH, ids=repr)
@pytest.mark.parametrize("scaling", ["none", "inverse_sqrt", "count"])
def test_sgd_gradients_sum_to_that_of_the_objective(engine, structure, scaling, monkeypatch):
    """At a tiny rate with huge accumulators AdaGrad is plain descent, and an epoch is one step down the gradient."""
    monkeypatch.setattr(descent, "ACCUMULATOR_START", 1e12)
    monkeypatch.setattr(passes, "SHARED_BATCH", 1)
    n_relations = 2 if structure.latent_shapes()[2] else 1
    dyads = dyads_for(structure, n=300, weighted=structure is STRUCTURES[0], n_relations=n_relations)
    objective = make_objective(structure, Log(), dyads, scaling)
    theta = random_theta(objective)
    with engine.bind(objective, dyads) as problem:
        sgd = problem.descent(theta)
        rate = 3e-4 * math.sqrt(1e12) * dyads.total_weight / len(dyads)
        sgd.epoch(rate, 0, 0)
        _, gradient = problem.value_and_gradient(theta)
    moved = (theta - sgd.theta()) / 3e-4
    assert np.linalg.norm(moved - gradient) < 0.05 * np.linalg.norm(gradient)


def test_an_unknown_entity_has_average_scores_before_its_spread_is_known(engine):
    """The score is linear in each block, so an average block gives the average score."""
    dyads = make_dyads(weighted=True)
    structure = Bilinear(4, 4, 1, False, 2)
    theta = np.random.default_rng(0).normal(size=Layout(structure, dyads.n_rows, dyads.n_cols).size)
    models = make_record(structure, theta, dyads).models
    rows = engine.scores(models, (np.arange(dyads.n_rows), np.full(dyads.n_rows, 3)))
    cols = engine.scores(models, (np.full(dyads.n_cols, 2), np.arange(dyads.n_cols)))
    mean_row, mean_col = (
        np.average(rows, axis=0, weights=dyads.row_counts),
        np.average(cols, axis=0, weights=dyads.col_counts),
    )
    np.testing.assert_allclose(engine.scores(models, ([-1], [3]))[0], mean_row)
    np.testing.assert_allclose(engine.scores(models, ([2], [-1]))[0], mean_col)
    np.testing.assert_allclose(link(engine.scores(models, ([-1], [-1]))).sum(), 1)


def test_an_epoch_depends_on_the_state_the_rate_and_the_seed_only(engine):
    """Few dyads share an entity here, so that tiles are long, and would differ if an epoch left a trace."""
    structure = Bilinear(4, 4, 1, False, 2)
    dyads = dyads_for(structure, n=300, n_rows=200, n_cols=200)
    objective = make_objective(structure, Log(), dyads)
    with engine.bind(objective, dyads) as problem:
        sgd = problem.descent(random_theta(objective))
        start, states = sgd.snapshot(), []
        for _ in range(2):
            sgd.restore(start)
            sgd.epoch(0.5, 0, 0)
            states.append(np.asarray(sgd.snapshot()).tobytes())
    assert states[0] == states[1]


def test_a_descent_that_is_restored_goes_on_as_if_nothing_had_happened(engine):
    dyads = make_dyads(n=300, weighted=True)
    objective = make_objective(STRUCTURES[0], Log(), dyads)
    with engine.bind(objective, dyads) as problem:
        straight, broken = problem.descent(random_theta(objective)), problem.descent(random_theta(objective))
        for number in range(3):
            straight.epoch(0.2, 1, number)
        broken.epoch(0.2, 1, 0)
        kept = broken.snapshot()
        broken.epoch(99.0, 5, 1)
        broken.restore(kept)
        for number in (1, 2):
            broken.epoch(0.2, 1, number)
    np.testing.assert_array_equal(broken.theta(), straight.theta())


@pytest.mark.xdist_group("blocks")
@pytest.mark.parametrize("structure", FEW, ids=repr)
@WEIGHTED
def test_many_shards_give_what_one_gives(structure, weighted, monkeypatch):
    """Sums, block updates and draws; owners with more dyads than a tile are summed in tiles."""
    dyads = dyads_for(structure, n=9000, n_rows=6, n_cols=4, weighted=weighted)
    objective = make_objective(structure, Log(), dyads)
    theta = random_theta(objective)
    results = []
    for size in (2**20, 500):
        monkeypatch.setattr(orders, "SHARD", size)
        with CPU(2).bind(objective, dyads) as problem:
            updates = problem.blocks_in_turn(theta)
            for role in updates.roles:
                updates.solve(role)
                updates.draw(role, Key.of(0, Stream.BLOCKS, role), standard_prior(objective, role))
            results.append((*problem.value_and_gradient(theta), updates.theta()))
            n_shards = len(problem._bound.orders.by_row)
    assert n_shards > 1
    for one, many in zip(*results, strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-10, atol=1e-11)


@pytest.mark.xdist_group("blocks")
@pytest.mark.parametrize("structure", FEW, ids=repr)
@WEIGHTED
def test_nothing_depends_on_the_order_in_which_tasks_are_computed(structure, weighted, monkeypatch):
    monkeypatch.setattr(orders, "CHUNK", 32)
    monkeypatch.setattr(orders, "ENTITY_CHUNK", 32)
    monkeypatch.setattr(orders, "SHARD", 128)
    dyads = dyads_for(structure, n=500, n_rows=40, n_cols=30, weighted=weighted)
    objective = make_objective(structure, Log(), dyads)
    theta = random_theta(objective)

    def backwards(self, function, tasks):
        return [function(task) for task in reversed(list(tasks))][::-1]

    results = []
    for order in (host.Threads.map, backwards):
        monkeypatch.setattr(host.Threads, "map", order)
        with CPU(1).bind(objective, dyads) as problem:
            updates = problem.blocks_in_turn(theta)
            for role in updates.roles:
                updates.solve(role)
                updates.draw(role, Key.of(0, Stream.BLOCKS, role), standard_prior(objective, role))
            value, gradient = problem.value_and_gradient(theta)
            results.append((value, gradient.tobytes(), updates.theta().tobytes()))
    assert results[0] == results[1]


def test_threads_are_not_oversubscribed_inside_joblib():
    assert CPU(3).n_threads() == 3
    everywhere = CPU().n_threads()
    assert everywhere == joblib.cpu_count()
    for backend in ("loky", "threading"):
        with joblib.parallel_config(backend):
            nested = joblib.Parallel(n_jobs=2)(joblib.delayed(CPU().n_threads)() for _ in range(2))
        assert sum(nested) <= max(2, everywhere), backend
