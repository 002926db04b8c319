"""Golden figures of this checkout: `python tests/golden/figures.py OUT.npz`; `compare.py` compares two commits.

    fit/<estimator>/<structure>/<loss>/<solver>[/<named case>]/<what>   whole fits, by the public estimators
    pass/<structure case>/<loss>/<what>                                 single passes of the engine at given parameters

The cases are written out, not read off the registries: a part that is added there needs a case here, and
`test_golden.py` says so. All are weighted but the one that says otherwise: each type of weights is compiled by itself.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np
from threadpoolctl import threadpool_limits

import dyads
from dyads import baselines
from dyads.model.structure import STRUCTURES
from dyads.solve import SOLVERS
from problems import LOSS_CASES, STRUCTURE_CASES, make_dyads, make_objective

# isort: split
# ------------------------------------------------------------------------------- the only lines that know the engine
from dyads.engine import CPU, host, orders
from dyads.engine.posterior import Posterior
from dyads.model.streams import SweepNoise


def cut_small():
    """Cut tiny data into several tasks and cells, as large ones are."""
    orders.CHUNK = orders.ENTITY_CHUNK = 16
    host.CELL = 6


def identified(layout, theta):
    """Theta without what no score depends on: where no label is pinned, one number added to all label biases."""
    theta = theta.copy()
    if layout.structure.reference == layout.structure.n_labels:
        bias = layout.named(theta)["label_bias"]
        bias -= bias.mean(axis=1, keepdims=True)
    return theta


def single_passes(objective, data, theta, seed=2):
    """The figures of one pass of each kind at theta."""
    with CPU(1).bind(objective, data) as problem:
        value, gradient = problem.value_and_gradient(theta)
        sgd, updates = problem.descent(theta), problem.blocks_in_turn(theta)
        sgd.epoch(0.1, 3, 0)
        for role in updates.roles:
            updates.solve(role)
        found = {"value": value, "gradient": gradient, "sgd_theta": sgd.theta()}
        found["sweep_theta"] = identified(objective.layout, updates.theta())
        if objective.loss.likelihood:
            posterior = Posterior(problem)
            before = posterior.start(theta, np.random.default_rng(1))
            found["draw_theta"] = posterior.sweep(before, SweepNoise(seed, 0, 0))[0].theta
    return found


# --------------------------------------------------------------------------------------------------------- made-up data
ROWS, COLS = [f"r{i}" for i in range(12)], [f"c{i}" for i in range(10)]
NODES, RELATIONS = [f"n{i}" for i in range(14)], ["likes", "knows", "helps"]
LABELS = {"LFLClassifier": ["maybe", "no", "yes"], "LFLLink": [0, 1], "LFLRelational": [0, 1]}


class Data(NamedTuple):
    """Labelled dyads, their weights, and a table of pairs of known and unknown ids to ask about."""

    X: dict[str, Any]
    y: Any
    weight: Any
    asked: dict[str, Any]


def made_up(estimator, structure, one_id_set=False, hours=False):
    """Data whose labels follow the ids; pairs of nodes occur once, in either order; `hours` are a feature of dyads."""
    rng = np.random.default_rng(7)
    nodes = one_id_set or STRUCTURES[structure][1]
    first, second = (np.array(ids) for ids in ((NODES, NODES) if nodes else (ROWS, COLS)))
    n_relations = len(RELATIONS) if estimator == "LFLRelational" else 1
    row, col, relation = np.indices((len(first), len(second), n_relations)).reshape(3, -1)
    kept = rng.permutation(np.flatnonzero(row <= col) if nodes else len(row))[:150]
    row, col, relation = row[kept], col[kept], relation[kept]
    u, v = rng.normal(size=(2, 14, 2))
    if nodes:
        turned = rng.random(len(row)) < 0.5
        row, col, v = np.where(turned, col, row), np.where(turned, row, col), u
    strength = (u[row] * v[col]).sum(axis=1) * (1 - relation) + rng.normal(scale=0.5, size=len(row))
    labels = np.array(LABELS.get(estimator, [1.0, 2.0, 3.0, 5.0]))
    code = np.searchsorted(np.quantile(strength, np.linspace(0, 1, len(labels) + 1)[1:-1]), strength)
    X = {"row": first[row], "col": second[col]}
    asked = {"row": [*first[:6], "new", "new", first[2]], "col": [*second[3:9], second[1], "other", "other"]}
    if n_relations > 1:
        X["relation"], asked["relation"] = np.array(RELATIONS)[relation], RELATIONS * 3
    if hours:
        X["hour"], asked["hour"] = rng.normal(size=len(row)), np.linspace(-1, 1, 9)
    return Data(X, labels[code], rng.uniform(0.5, 2.0, len(row)), asked)


def of_ids(name, ids):
    """Features of ids: a number, and a text."""
    rng = np.random.default_rng(len(ids))
    return {name: ids, "size": rng.normal(size=len(ids)), "kind": rng.choice(["red", "blue", "green"], len(ids))}


# ------------------------------------------------------------------------------------------------------------ the cases
NOMINAL, ORDERED = ("log", "brier"), ("log", "brier", "absolute", "squared", "hinge")
MINIMISERS = ("lbfgs", "sgd", "newton")
FITS = {
    "LFLClassifier": (("bilinear", "stereotype"), NOMINAL),
    "LFLOrdinal": (("stereotype", "bilinear"), ORDERED),
    "LFLLink": (("symmetric", "spectral", "directed"), NOMINAL),
    "LFLRelational": (("relational", "mixture", "spectral", "symmetric_mixture"), NOMINAL),
    "MMMF": (("stereotype",), ("all_threshold",)),
}
ITERATIONS = {"lbfgs": 15, "sgd": 5, "newton": 5, "gibbs": 6}


class Named(NamedTuple):
    """A case that goes through other code: `choices` are parameters, `answers` what is asked of the fitted model."""

    solvers: tuple[str, ...]
    choices: dict[str, Any]
    answers: Callable[[Any, Data], dict[str, Any]] | None = None
    where: str = "LFLClassifier/bilinear/log"


def folded_in(model, data):
    X = {"row": ["new", "new", "newer", "r1"], "col": ["c1", "c2", "other", "other"]}
    return {"folded_proba": model.fold_in(X, ["yes", "no", "yes", "maybe"]).predict_proba(data.asked)}


def fitted_further(model, data):
    half = {name: column[::2] for name, column in data.X.items()}
    model.partial_fit(half, data.y[::2], sample_weight=data.weight[::2])
    return {"further_proba": model.predict_proba(data.asked), "further_objective": model.objective_}


def recommended(model, _):
    best = model.recommend(["r0", "r5", "new"], 4, by="yes")
    return {"best": np.array(best["col"].to_pylist()), "worth": best["value"].to_numpy()}


def calibrated(model, data):
    model.calibrate(data.X, data.y, sample_weight=data.weight)
    return {"calibrated_proba": model.predict_proba(data.asked)}


TABLES = {"features__row": of_ids("row", [*ROWS, "new"]), "features__col": of_ids("col", COLS)}
MIXED = {"features__interactions": 1, "l2__side": 3.0}
FEATURES = TABLES | MIXED
NAMED = {
    "features": Named((*MINIMISERS, "gibbs"), FEATURES),
    "frozen": Named(("sgd", "lbfgs"), {**FEATURES, "features__training": "frozen"}),
    "implicit": Named(MINIMISERS, {"features__implicit": True, **MIXED}),
    "unweighted": Named((*MINIMISERS, "gibbs"), {}),
    "early_stopping": Named(("lbfgs", "sgd", "gibbs"), {"early_stopping": 0.1}),
    "l2_count": Named(MINIMISERS, {"l2__scaling": "count", "l2__latent": 0.05}),
    "l2_inverse_sqrt": Named(MINIMISERS, {"l2__scaling": "inverse_sqrt"}),
    "n_models": Named(("lbfgs", "sgd"), {"n_models": 2}),
    "fold_in": Named(("lbfgs", "gibbs"), {}, folded_in),
    "partial_fit": Named(("sgd",), {}, fitted_further),
    "recommend": Named(("lbfgs", "gibbs"), {}, recommended),
    "explain": Named(("lbfgs", "gibbs"), FEATURES, lambda model, data: {"parts": model.explain(data.asked)["value"]}),
    "predict_interval": Named(("gibbs",), {}, lambda model, data: {"interval": model.predict_interval(data.asked)}),
    "calibrate": Named(("sgd",), {}, calibrated, "LFLOrdinal/stereotype/absolute"),
    "unknown_mean": Named(("lbfgs", "gibbs"), {"unknown": "mean"}),
    "one_id_set": Named((*MINIMISERS, "gibbs"), {}, None, "LFLRelational/relational/log"),
}
PASSES = {
    f"{kind}-{'-'.join(str(int(field)) for field in case)}{'-relations' * (n_relations > 1)}": (case, n_relations)
    for kind, kind_cases in STRUCTURE_CASES.items()
    for number, case in enumerate(kind_cases)
    for n_relations in ((1, 3) if number == 0 and kind in ("Stereotype", "Diagonal") else (1,))
}
"""Structures by a name of their fields; two of them with several relations too."""


def cases():
    """The names of all cases, which are those of their figures without the last part."""
    found = []
    for estimator, (structures, losses) in FITS.items():
        for where in (f"{structure}/{loss}" for structure in structures for loss in losses):
            solvers = (*MINIMISERS, "gibbs") if where.endswith("/log") else MINIMISERS
            found += [f"fit/{estimator}/{where}/{solver}" for solver in solvers]
    found += [f"fit/{case.where}/{solver}/{name}" for name, case in NAMED.items() for solver in case.solvers]
    for name, (_, n_relations) in PASSES.items():
        found += [f"pass/{name}/{loss}" for loss in (NOMINAL if n_relations > 1 else LOSS_CASES)]
    return found


# ---------------------------------------------------------------------------------------------------------- the figures


def fit(estimator, structure, loss, solver, name=None):
    """The figures of a whole fit."""
    case = Named((), {}) if name is None else NAMED[name]
    data = made_up(estimator, structure, name == "one_id_set", "features__row" in case.choices)
    chosen = SOLVERS[solver](ITERATIONS[solver])
    choices = {"l2": 0.5, "solver": chosen, "engine": CPU(1), "random_state": 0}
    if estimator == "MMMF":
        model = baselines.MMMF(2, **choices)
    else:
        model = getattr(dyads, estimator)(2, **choices, structure=structure, loss=loss).set_params(**case.choices)
    model.fit(data.X, data.y, sample_weight=None if name == "unweighted" else data.weight)
    answer = model.decision_function if estimator == "MMMF" else model.predict_proba
    found = {"objective": model.objective_, "n_iter": model.n_iter_, "proba": answer(data.asked)}
    return found if case.answers is None else {**found, **case.answers(model, data)}


def one_pass(name, loss):
    """The figures of single passes."""
    structure, n_relations = PASSES[name]
    data = make_dyads(weighted=True, one_set=structure.one_set, n_relations=n_relations)
    objective = make_objective(structure, LOSS_CASES[loss][0], data, "inverse_sqrt")
    theta = np.random.default_rng(0).normal(scale=0.5, size=objective.layout.size)
    return single_passes(objective, data, theta)


def compiled_for(case):
    """What kernels are compiled by: cases that share them follow each other in one process."""
    family, one, two, *rest = case.split("/")
    kind, loss = (STRUCTURES[two][0].__name__, rest[0]) if family == "fit" else (one.split("-")[0], two)
    return loss, kind, "LFLRelational" in case or case.split("/")[1].endswith("relations")


def figures_of(group):
    """The figures of some cases, by name."""
    warnings.simplefilter("ignore")
    cut_small()
    found = {}
    with threadpool_limits(1, "blas"):
        for case in group:
            family, *parts = case.split("/")
            for what, figure in (fit if family == "fit" else one_pass)(*parts).items():
                found[f"{case}/{what}"] = np.asarray(figure)
    return found


def main(path):
    assert Path(dyads.__file__).parents[2] == Path(__file__).resolve().parents[2], f"measures {dyads.__file__}"
    groups = defaultdict(list)
    for case in cases():
        groups[compiled_for(case)].append(case)
    # Those with most to compile come first, so that no process waits long for the other.
    longest = sorted(groups.values(), key=lambda group: -len(group))
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        np.savez(path, **{name: figure for found in pool.map(figures_of, longest) for name, figure in found.items()})


if __name__ == "__main__":
    main(sys.argv[1])
