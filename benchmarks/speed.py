"""Speed beside the hardware and beside other libraries: `make speed`.

    python benchmarks/speed.py [ratios] [sweeps] [growth] [objective] [error] [--base CHECKOUT] [--rivals] [--large]

Each named part is measured again, all by default; the others keep their figures in ``results/speed.json``. Then the
tables and the picture of ``docs/benchmarks.md`` are written from that file. `--base` : another checkout, to compare
sweeps with; without it, the figures of the last one are kept. `--rivals` : run other libraries again too, in the
environment that `make rivals` makes; without it, their figures are kept. `--large` : growth up to 10^8 dyads. A part
needs a few minutes, other libraries a quarter of an hour.

Times are minima, because other processes only ever add to them. The clock counts only on a quiet machine: the file says
how many cores other processes used meanwhile. CPU time, over all threads, hardly depends on them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from accuracy import columns, rivals, stars
from core import rounded
from page import ASKED_LOG_LOSS, ML_1M, ML_100K, POINT, POSTERIOR, first, write_page
from threadpoolctl import threadpool_limits

from dyads import CPU, SGD, Gibbs, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, Newton
from dyads.data.dyads import Counts, Dyads
from dyads.datasets import published
from dyads.errors import MissingDataError
from dyads.model.loss import Log
from dyads.model.objective import L2, Objective, Penalty
from dyads.model.parameters import Layout, Role
from dyads.model.structure import STRUCTURES, build

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "speed.json"


# ------------------------------------------------------------------------------------------------------------- data


def synthetic(n, n_rows, n_cols, n_labels, one_set=False, n_relations=1):
    """Random pairs of a rows x columns matrix, with labels of equal frequency from four latent features and noise."""
    rng = np.random.default_rng(0)
    row, col = (rng.integers(0, size, n, np.int32) for size in (n_rows, n_rows if one_set else n_cols))
    if one_set:
        # Every unordered pair once, and no self-link.
        pairs = np.unique(np.sort(np.column_stack([row, col])[row != col], axis=1), axis=0)
        row, col = rng.permutation(pairs).T
    X = {"row": row, "col": col}
    if n_relations > 1:
        X["relation"] = rng.integers(0, n_relations, len(row), np.int32)
    signal = rng.standard_normal(len(row), np.float32)
    for _ in range(4):
        a, b, weight = (rng.standard_normal(size, np.float32) for size in (n_rows, n_cols, n_relations))
        term = a[row] * (a if one_set else b)[col]
        signal += 0.7 * term * (weight[X["relation"]] if n_relations > 1 else 1)
    bounds = np.quantile(signal[:100_000], np.arange(1, n_labels) / n_labels)
    return X, np.searchsorted(bounds, signal).astype(np.int16)


def split_of(name):
    """(train, test) of a data set, each a dict of the columns row, col and y."""
    if name == ML_100K:
        return tuple(columns(part) for part in published.movielens_100k("u3"))
    data = columns(published.movielens_1m())
    held = np.random.default_rng(0).random(len(data["y"])) < 0.1
    return tuple({key: column[which] for key, column in data.items()} for which in (~held, held))


def pairs_of(part):
    return {key: part[key] for key in ("row", "col")}


def iteration_times(model, X, y, skipped=1):
    """Least nanoseconds per dyad of an iteration of a fit: of the clock, and of CPU time over all threads."""
    ticks = []
    model.fit(X, y, callback=lambda _: ticks.append((time.perf_counter(), time.process_time())))
    clock, cpu = np.diff(ticks, axis=0)[skipped:].min(axis=0) * 1e9 / len(y)
    return {"clock": clock, "CPU": cpu}


# ----------------------------------------------------------------------------------------------------------- ratios


SGD_RANKS, ENTITY_RANKS = (5, 16, 32), (10, 16, 32)


def ratios(_):
    """Nanoseconds per dyad: dyads and a C++ program for one model only (limit.cpp), in turn, on one core.

    SGD: an epoch over the shape of ML-1M (10^6 dyads, 6040 x 3706), bilinear, 5 labels; also on two threads. Entities:
    one evaluation of gradient, curvature and Cholesky factor of all rows of the shape of ML-100K u3 (80,000 dyads, 943
    x 1682), stereotype with one basis, 5 labels, in double precision.
    """
    if shutil.which("g++") is None:
        raise MissingDataError("there is no g++ to compile limit.cpp")
    X, y = synthetic(1_000_000, 6040, 3706, 5)
    entity_problems = {rank: entity_problem(rank) for rank in ENTITY_RANKS}
    limits, times = [], []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limit"
        command = ["g++", "-O3", "-march=native", "-ffast-math", HERE / "limit.cpp", "-o", program]
        subprocess.run(command, check=True)
        for _ in range(3):
            printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
            limits.append(
                {kind: {int(rank): ns for rank, ns in each.items()} for kind, each in json.loads(printed).items()}
            )
            epochs = {(rank, n): epoch_times(X, y, rank, threads=n) for rank in SGD_RANKS for n in (1, 2)}
            sgd = {rank: epochs[rank, 1]["CPU"] for rank in SGD_RANKS}
            wall = {key: measured["clock"] for key, measured in epochs.items()}
            entity = {rank: evaluation_nanoseconds(*entity_problems[rank]) for rank in ENTITY_RANKS}
            times.append({"sgd": sgd, "wall": wall, "entity": entity})
    limit = {kind: least([each[kind] for each in limits]) for kind in limits[0]}
    ours = {kind: least([each[kind] for each in times]) for kind in times[0]}
    return {
        "SGD": {
            rank: {
                "C++": limit["sgd"][rank],
                "dyads": ours["sgd"][rank],
                "ratio": ours["sgd"][rank] / limit["sgd"][rank],
                "two threads, times faster": ours["wall"][rank, 1] / ours["wall"][rank, 2],
            }
            for rank in SGD_RANKS
        },
        "entities": {
            rank: {
                "C++": limit["double"][rank],
                "C++, single precision": limit["single"][rank],
                "dyads": ours["entity"][rank],
                "ratio": ours["entity"][rank] / limit["double"][rank],
            }
            for rank in ENTITY_RANKS
        },
    }


def least(repeated):
    """The minimum of each key over dicts."""
    return {key: min(each[key] for each in repeated) for key in repeated[0]}


def epoch_times(X, y, rank, threads):
    """Times of an epoch of SGD; see `iteration_times`."""
    solver, engine = SGD(max_iter=6), CPU(threads)
    return iteration_times(LFLClassifier(rank, solver=solver, engine=engine, random_state=0), X, y)


def entity_problem(rank):
    """An objective, its dyads and a random theta, of the shape of ML-100K u3."""
    X, y = synthetic(80_000, 943, 1682, 5)
    dyads = Dyads(X["row"], X["col"], y, None, 943, 1682, 5)
    structure = build("stereotype", 5, 5, True, rank, 1)
    layout = Layout(structure, dyads.n_rows, dyads.n_cols, 1)
    penalty = Penalty.of(layout, L2().strengths(layout, rank, True), "none", Counts.of(dyads, False))
    theta = layout.initial(np.random.default_rng(0), dyads.label_counts, np.arange(5.0))
    return Objective(layout, Log(), penalty), dyads, theta


def evaluation_nanoseconds(objective, dyads, theta):
    """Nanoseconds per dyad of one evaluation of gradient and curvature, with the Cholesky factor, of all rows.

    n Newton steps need n of them and one last value: three steps less one step are two. From a random start all steps
    are full ones, and three are too few to converge.
    """
    seconds = {1: [], 3: []}
    with threadpool_limits(1, "blas"), CPU(1).bind(objective, dyads) as problem:
        for _ in range(5):
            for n_steps, measured in seconds.items():
                updates = problem.blocks_in_turn(theta)
                began = time.thread_time()
                updates.solve(Role.ROW, n_steps)
                measured.append(time.thread_time() - began)
    return (min(seconds[3]) - min(seconds[1])) / 2 * 1e9 / len(dyads)


# ----------------------------------------------------------------------------------------------------------- sweeps


N_SWEEPS = 12
"""Sweeps of a measurement: enough to leave the point estimate, where Newton's method needs fewer steps."""


def links(structure):
    return LFLLink, synthetic(60_000, 1000, 1000, 2, one_set=True), {"rank": 8, "structure": structure}


def relations(structure, one_set=False):
    data = synthetic(60_000, 600, 600, 2, one_set, n_relations=10)
    return LFLRelational, data, {"rank": 8, "structure": structure}


STRUCTURE_CASES = {
    "bilinear": lambda: (LFLClassifier, synthetic(60_000, 943, 1682, 5), {"rank": 8}),
    "stereotype": lambda: (LFLOrdinal, synthetic(60_000, 943, 1682, 5), {"rank": 8}),
    "symmetric": lambda: links("symmetric"),
    "spectral": lambda: links("spectral"),
    "directed": lambda: links("directed"),
    "relational": lambda: relations("relational"),
    "mixture": lambda: relations("mixture"),
    "symmetric_mixture": lambda: relations("symmetric_mixture", one_set=True),
}
"""An estimator, data and parameters for each structure: 60,000 dyads, rank 8; 5 labels, or 2 and 10 relations."""


def real_case(name, rank):
    train, _ = split_of(name)
    return LFLOrdinal, (pairs_of(train), train["y"]), {"rank": rank}


SWEEP_CASES = {
    f"{ML_100K}, rank 16": lambda: real_case(ML_100K, 16),
    f"{ML_1M}, rank 10": lambda: real_case(ML_1M, 10),
} | {name: STRUCTURE_CASES[name] for name in STRUCTURES}


def sweeps(options):
    """Milliseconds of a sweep of the sampler on all cores, here and in another checkout (`--base`), in turn."""
    figures = {}
    for name in SWEEP_CASES:
        base, measured = load().get("sweeps", {}).get(name, {}).get("base"), {}
        for checkout in [HERE.parent, *([options.base.resolve()] if options.base else [])] * 2:
            measured.setdefault(checkout, []).append(run_apart(checkout, "sweep", name))
        now, *other = map(least, measured.values())
        base = other[0] if other else base
        figures[name] = {"now": now}
        if base is not None:
            figures[name] |= {"base": base, "times faster": {key: base[key] / now[key] for key in now}}
        print(json.dumps(rounded({name: figures[name]})), flush=True)
    return figures


def sweep_times(name):
    """Milliseconds of a sweep, of the clock and of CPU time over all threads."""
    kind, (X, y), parameters = SWEEP_CASES[name]()
    model = kind(**parameters, solver=Gibbs(sweeps=N_SWEEPS), random_state=0)
    return {key: ns * len(y) / 1e6 for key, ns in iteration_times(model, X, y, N_SWEEPS // 2).items()}


# ----------------------------------------------------------------------------------------------------------- growth


def growth(options):
    """Nanoseconds per dyad of an epoch of SGD (bilinear) and of a sweep (stereotype), as one size grows.

    Otherwise 10^6 dyads for SGD and 10^5 for sweeps, 5 labels, rank 5 and 10, all cores. Rows have 166 dyads and
    columns 270 on average, as in ML-1M.
    """
    sizes = {
        "dyads": (10**5, 10**6, 10**7, *((10**8,) if options.large else ())),
        "labels": (2, 5, 10, 20, 50),
        "rank": (1, 2, 4, 8, 16, 32, 64, 128),
        "threads": (1, 2),
    }
    figures = {}
    for what, values in sizes.items():
        figures[what] = {}
        for value in values:
            figures[what][value] = {"SGD": grown_epoch(**{what: value})}
            if what != "dyads" or value <= 10 ** (7 if options.large else 6):
                figures[what][value]["sweep"] = grown_sweep(**{what: value})
            print(json.dumps(rounded({f"{what} {value}": figures[what][value]})), flush=True)
    return figures


def grown_epoch(dyads=10**6, labels=5, rank=5, threads=None):
    return epoch_times(*synthetic(dyads, dyads // 166, dyads // 270, labels), rank, threads)


def grown_sweep(dyads=10**5, labels=5, rank=10, threads=None):
    X, y = synthetic(dyads, dyads // 166, dyads // 270, labels)
    structure = "stereotype" if labels > 2 else "bilinear"
    solver, engine = Gibbs(sweeps=6), CPU(threads)
    return iteration_times(LFLOrdinal(rank, structure=structure, solver=solver, engine=engine, random_state=0), X, y)


# ------------------------------------------------------------------------------------------------------------ error


OURS = {
    ML_100K: {
        POINT: lambda n: LFLOrdinal(solver=SGD(n), random_state=0),
        POSTERIOR: lambda n: LFLOrdinal(16, solver=Gibbs(n), random_state=0),
    },
    ML_1M: {
        POINT: lambda n: LFLOrdinal(10, solver=SGD(n), random_state=0),
        POSTERIOR: lambda n: LFLOrdinal(16, solver=Gibbs(n), random_state=0),
    },
}

ITERATIONS = {
    POINT: (2, 3, 4, 6, 8, 12, 16, 24, 32, 48),
    POSTERIOR: (10, 15, 20, 30, 40, 60, 80, 120, 200, 300),
}
"""Numbers of epochs or sweeps of the fits of a curve."""

LONGEST = 60.0
"""Seconds: a fit that takes longer is the last of its curve."""

SCRIPTS = {
    "svd.py": ["curve"],
    "ordered_probit.py": ["curve"],
    "bayesian_factors.py": ["curve"],
    "matrix_factors.py": [],
}


def error(options):
    """Test error against seconds: each point is a fit from the start, predictions of the test pairs included."""
    previous, curves = load().get("error", {}).get("curves", {}), {}
    for name, methods in OURS.items():
        train, test = split_of(name)
        curves[name] = {method: curve(make, ITERATIONS[method], train, test) for method, make in methods.items()}
        if options.rivals or name not in previous:
            curves[name] |= rival_curves(train, test)
        else:
            curves[name] |= {method: points for method, points in previous[name].items() if method not in methods}
        print(json.dumps(rounded({name: curves[name]})), flush=True)
    return {"curves": curves, "fresh process": fresh_process(curves[ML_100K][POSTERIOR])}


def fitted(model, train, test):
    """Figures of a fit, predictions included."""
    began = time.perf_counter()
    proba = model.fit(pairs_of(train), train["y"]).predict_proba(pairs_of(test))
    seconds = time.perf_counter() - began
    return stars(test["y"], proba=proba, classes=model.classes_, seconds=seconds)


def curve(make, iterations, train, test):
    """Points of rising numbers of iterations, up to a fit that takes long."""
    fitted(make(iterations[0]), train, test)  # loads compiled code
    points = []
    for n in iterations:
        figures = fitted(make(n), train, test)
        points.append({"iterations": n} | {key: figures.get(key) for key in ("seconds", "RMSE", "log-loss")})
        if figures["seconds"] > LONGEST:
            break
    return points


def rival_curves(train, test):
    """{method: points} of other libraries, by seconds."""
    curves = {}
    for script, arguments in SCRIPTS.items():
        for name, arrays in rivals({"split": (train, test)}, script, options=arguments).get("split", {}).items():
            method, _, n = name.partition("@")
            figures = stars(test["y"], **arrays)
            point = {"iterations": int(n)} | {key: figures.get(key) for key in ("seconds", "RMSE", "log-loss")}
            curves.setdefault(method, []).append(point)
    return {method: sorted(points, key=lambda point: point["iterations"]) for method, points in curves.items()}


def fresh_process(points):
    """A process of its own that samples until the log-loss asked: its seconds, imports and data included."""
    reached = first(points, "log-loss", ASKED_LOG_LOSS)
    if reached is None:
        return {}
    began = time.perf_counter()
    figures = run_apart(HERE.parent, "posterior", str(reached["iterations"]))
    return figures | {"seconds": time.perf_counter() - began}


# -------------------------------------------------------------------------------------------------------- objective


def objective(_):
    """Seconds of the shortest fit of ML-1M, rank 5, whose objective is within 0.1% of the best of two long ones."""
    return {f"{kind.__name__}(5)": times_to_objective(kind) for kind in (LFLOrdinal, LFLClassifier)}


def times_to_objective(kind):
    """{solver: figures} of epochs of SGD alone, and of eight epochs and then sweeps of Newton's method.

    Penalties are those of `L2()`: to choose them takes further fits, whatever the solver.
    """
    data = columns(published.movielens_1m())

    def run(solver):
        began = time.perf_counter()
        model = kind(5, solver=solver, l2=L2(), random_state=0).fit(pairs_of(data), data["y"])
        return time.perf_counter() - began, model.objective_

    best, figures = min(run(solver)[1] for solver in (SGD(150), Newton(25))), {}
    for name, make in (("SGD", SGD), ("SGD, then Newton", lambda n: Newton(n, epochs=8))):
        run(make(1))  # loads compiled code
        for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48):
            seconds, reached = run(make(n))
            if reached <= 1.001 * best:
                break
        figures[name] = {"iterations": n, "above the best": reached / best - 1, "seconds": seconds}
    return {"best": best} | figures


# ------------------------------------------------------------------------------------------------------------- main


def load():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def run_apart(checkout, job, *arguments):
    """Run a job of `JOBS` in a process of its own, with the dyads of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-W", "ignore", __file__, "--job", job, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def posterior_of(sweeps):
    figures = fitted(OURS[ML_100K][POSTERIOR](int(sweeps)), *split_of(ML_100K))
    return {key: figures[key] for key in ("RMSE", "log-loss")}


def others_seconds():
    """CPU seconds of all other processes of this machine since it started: where they grow, times are too long."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


JOBS = {"sweep": sweep_times, "posterior": posterior_of}
PARTS = {part.__name__: part for part in (ratios, sweeps, growth, objective, error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--base", type=Path, metavar="CHECKOUT", help="another checkout, to compare sweeps with")
    parser.add_argument("--rivals", action="store_true", help="run other libraries again")
    parser.add_argument("--large", action="store_true", help="measure growth up to 10^8 dyads")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    warnings.simplefilter("ignore")
    if options.job:
        print(json.dumps(JOBS[options.job[0]](*options.job[1:])))
        return
    for name in options.parts or PARTS:
        began, busy = time.perf_counter(), others_seconds()
        try:
            figures = PARTS[name](options)
        except MissingDataError as error:
            print(f"{name}: skipped, {error}")
            continue
        results = load()
        disturbance = (others_seconds() - busy) / (time.perf_counter() - began)
        results["cores used by others"] = results.get("cores used by others", {}) | {name: round(disturbance, 2)}
        results[name] = rounded(figures)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_page(load())


if __name__ == "__main__":
    main()
