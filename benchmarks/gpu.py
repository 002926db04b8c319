"""The CUDA engine beside the CPU's: seconds of epochs, sweeps, gradients and whole fits. See core.py for how it works.

`python benchmarks/gpu.py` on a machine with an NVIDIA GPU measures everything, keeps it in results/gpu.json after each
part, and writes the GPU tables of docs/benchmarks.md; `python benchmarks/gpu.py sgd 1e7` prints one part. Times are
those of iterations after the first, which compiles. What takes most memory comes last: by calculation,
10^9 dyads take some 60 GB of the host and 40 GB of the device.
"""

import contextlib
import math
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from core import main, rounded
from page import write_gpu_tables

from dyads import CPU, CUDA, L2, SGD, Features, Gibbs, LFLClassifier, LFLOrdinal, SideInformation
from dyads.data.dyads import Counts, Dyads
from dyads.datasets import published
from dyads.engine.posterior import Posterior
from dyads.errors import NotConvergedWarning
from dyads.model.loss import Log
from dyads.model.objective import Objective, Penalty
from dyads.model.parameters import Layout
from dyads.model.streams import SweepNoise
from dyads.model.structure import build


def say(*words):
    """Say how far a benchmark is, beside its result."""
    print(*words, file=sys.stderr, flush=True)


STRUCTURES = {"ordinal": "stereotype", "nominal": "bilinear"}
"""Structures of `LFLOrdinal` and `LFLClassifier`."""


def made_up(n, n_rows, n_cols, n_labels=5, skewed=True):
    """Coded dyads, popularity-skewed as ratings are, or uniform."""
    row, col, label = coded(n, n_rows, n_cols, skewed, n_labels)
    return Dyads(row, col, label, None, n_rows, n_cols, n_labels)


def objective_of(dyads, rank, structure, strength=1.0, counts=None):
    """An objective with the log loss."""
    n_terms = 1 if structure == "stereotype" else None
    layout = Layout(build(structure, dyads.n_labels, dyads.n_labels, True, rank, n_terms), dyads.n_rows, dyads.n_cols)
    names = ("row_bias", "col_bias", "row_factors", "col_factors", "phi")
    counts = Counts.of(dyads, layout.structure.one_set) if counts is None else counts
    return Objective(layout, Log(), Penalty.of(layout, dict.fromkeys(names, strength), "none", counts))


def sweep_seconds(engine, dyads, rank, structure="stereotype", times=4):
    """Least seconds of a sweep of the sampler with its loss, of a few after the first."""
    objective, seconds = objective_of(dyads, rank, structure), []
    theta = np.random.default_rng(1).normal(scale=0.1, size=objective.layout.size)
    with engine.bind(objective, dyads) as problem:
        posterior = Posterior(problem)
        state = posterior.start(theta, np.random.default_rng(0))
        for number in range(1 + times):
            began = time.perf_counter()
            state, _ = posterior.sweep(state, SweepNoise(0, 0, number))
            posterior.loss(state)
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def epoch_seconds(engine, dyads, rank, structure="stereotype", times=3):
    """Least seconds of an epoch of SGD, of a few after the first."""
    objective, seconds = objective_of(dyads, rank, structure), []
    theta = objective.layout.initial(np.random.default_rng(0), np.ones(dyads.n_labels)).astype(np.float32)
    with engine.bind(objective, dyads) as problem:
        descent = problem.descent(theta)
        for number in range(1 + times):
            began = time.perf_counter()
            descent.epoch(1 - number / (1 + times), 0, number)
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def bandwidth(n=2**28, times=5):
    """Bytes a second that the device reads and writes, of a copy of a gigabyte there."""
    from numba import cuda

    one, other, seconds = cuda.device_array(n, np.float32), cuda.device_array(n, np.float32), []
    for _ in range(1 + times):
        cuda.synchronize()
        began = time.perf_counter()
        other.copy_to_device(one)
        cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * one.nbytes / min(seconds[1:])


def update_bytes(dyads, rank, structure):
    """Bytes of an update of SGD: both blocks and their sums of squares, read and written, and the dyad."""
    row, col, _ = objective_of(dyads, rank, structure).layout.sizes
    return 4 * 4 * (row + col) + dyads.row.itemsize + dyads.col.itemsize + dyads.label.itemsize


def sweeps():
    """Milliseconds of a sweep of ML-1M at rank 10 through `fit`, with all that a fit does between sweeps."""
    data = published.movielens_1m()
    return rounded({"sweep": sweep_of_a_fit(data.X, data.y, 10, 30)}) | {"at most": 40}


def sweeps_of_many():
    """Milliseconds of a sweep of 20 million made-up ratings at rank 32, like `sweeps`."""
    made = made_up(20_000_000, 138_493, 26_744)
    return rounded({"sweep": sweep_of_a_fit({"row": made.row, "col": made.col}, made.label, 32, 8)}) | {"at most": 600}


def sweeps_of_nodes(n=3_000_000, n_nodes=100_000):
    """Milliseconds of a sweep of links of one id set, 2 labels, rank 16: two threads of the CPU, and the GPU."""
    row, col, label = coded(n, n_nodes, n_nodes, True, 2)
    # Hubs in the role of a row are not those in the role of a column.
    col = np.random.default_rng(0).permutation(n_nodes).astype(np.int32)[col]
    links = row != col
    dyads = Dyads(row[links], col[links], label[links], None, n_nodes, n_nodes, 2)
    engines = {"CPU, two threads": CPU(2), "CUDA": CUDA()}
    return rounded({name: 1e3 * sweep_seconds(engine, dyads, 16, "symmetric", 2) for name, engine in engines.items()})


def sweep_of_a_fit(X, y, rank, n_sweeps):
    times = []
    model = LFLOrdinal(rank, solver=Gibbs(sweeps=n_sweeps), engine="cuda", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        model.fit(X, y, callback=lambda progress: times.append(time.perf_counter()))
    return 1e3 * float(np.median(np.diff(times)[2:]))


def gradients():
    """Milliseconds of a value and gradient of ML-1M, rank 10: two threads of the CPU, and the GPU."""
    data = published.movielens_1m()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        model = LFLOrdinal(10, solver=Gibbs(sweeps=2), random_state=0).fit(data.X, data.y)
    least = {}
    for name, engine in (("CPU, two threads", CPU(2)), ("CUDA", CUDA())):
        problem, theta = model.set_params(engine=engine).problem(data.X, data.y)
        with problem:
            seconds = []
            for _ in range(6):
                began = time.perf_counter()
                problem.value_and_gradient(theta)
                seconds.append(time.perf_counter() - began)
        least[name] = 1e3 * min(seconds[1:])
    return rounded(least | {"times faster": least["CPU, two threads"] / least["CUDA"]}) | {"at least": 50}


def by_dyads():
    """Epochs of SGD and sweeps by the number of dyads: rank 10, 5 ordered labels."""
    sizes = (10**5, 10**6, 10**7, 10**8)
    return {
        f"{n:,}": of_both(made_up(n, math.isqrt(n) * 20, math.isqrt(n) * 4), 10, "ordinal", n <= 10**6) for n in sizes
    }


def by_labels():
    """Epochs of SGD and sweeps by the number of labels: 10^6 dyads, rank 10."""
    return {
        f"{n} {kind}": of_both(made_up(10**6, 6040, 3706, n), 10, kind, n <= 10)
        for kind in STRUCTURES
        for n in (2, 5, 10, 20, 50)
        if not (kind == "ordinal" and n == 2)
    }


def by_rank():
    """Epochs of SGD and sweeps by the rank: 10^6 dyads, 5 ordered labels."""
    return {
        str(rank): of_both(made_up(10**6, 6040, 3706), rank, "ordinal", rank <= 32) for rank in (5, 10, 32, 64, 128)
    }


def of_both(dyads, rank, kind, with_cpu):
    """Nanoseconds a dyad of an epoch and a sweep, on the GPU and two CPU threads, and the share of the memory limit."""
    structure, n = STRUCTURES[kind], len(dyads)
    epoch = epoch_seconds(CUDA(), dyads, rank, structure)
    figures = {
        "SGD": 1e9 * epoch / n,
        "share": n * update_bytes(dyads, rank, structure) / (epoch * bandwidth()),
        "sweep": 1e9 * sweep_seconds(CUDA(), dyads, rank, structure, 2) / n,
    }
    if with_cpu:
        figures["SGD, CPU"] = 1e9 * epoch_seconds(CPU(2), dyads, rank, structure, 1) / n
        figures["sweep, CPU"] = 1e9 * sweep_seconds(CPU(2), dyads, rank, structure, 1) / n
    say(n, rank, kind, dyads.n_labels, rounded(figures))
    return rounded(figures)


class Timed(Exception):
    """Ends a fit whose epochs have been timed."""


def sgd(n=10**8, n_epochs=5):
    """Millions of SGD updates a second through `fit`, rank 32, 5 labels, 10^6 rows x 10^5 columns.

    `n` : number of dyads. Times are those between callbacks, of epochs after the first.
    """
    n, rate = int(float(n)), {}
    for name, skewed in (("uniform", False), ("popularity-skewed", True)):
        row, col, label = coded(n, 10**6, 10**5, skewed)
        times = [time.perf_counter()]

        def note(progress, times=times):
            times.append(time.perf_counter())
            if len(times) > n_epochs:
                raise Timed

        model = LFLClassifier(32, l2=L2(), solver=SGD(max_iter=n_epochs), engine="cuda", random_state=0)
        with contextlib.suppress(Timed):
            model.fit({"row": row, "col": col}, label, callback=note)
        seconds = np.diff(times)
        say(name, f"{n} dyads, seconds to the end of each epoch:", seconds.round(3))
        rate[name] = n / 1e6 / float(np.median(seconds[1:]))
    return rounded(rate) | {"at least": {"uniform": 500, "popularity-skewed": 250}}


def epochs(n=10**8):
    """Like `sgd`, of the engine alone: cells, then epochs, from coded arrays; the same bits twice."""
    return {name: of_engine(int(float(n)), skewed, 4, True) for name, skewed in (("uniform", False), ("skewed", True))}


def billion(n=10**9):
    """Seconds for three epochs over 10^9 dyads by the engine, from coded arrays in host memory, grouping included."""
    return of_engine(int(float(n)), True, 3, False) | {"at most": 60}


def billion_sweep(n=10**9):
    """Nanoseconds for a dyad of a sweep of 10^9 popularity-skewed dyads, rank 10, 5 ordered labels."""
    n = int(float(n))
    dyads = made_up(n, 10**6, 10**5)
    return rounded({"sweep": 1e9 * sweep_seconds(CUDA(), dyads, 10, times=1) / n})


def of_engine(n, skewed, n_epochs, twice):
    """Seconds of SGD at rank 32, by `CUDA().bind(...).descent(theta)`: from coded arrays to parameters on the host."""
    row, col, label = coded(n, 10**6, 10**5, skewed)
    say("made up")
    marks, began = {}, time.perf_counter()

    def mark(name):
        marks[name] = time.perf_counter() - began
        say(name, round(marks[name], 3))

    dyads = Dyads(row, col, label, None, 10**6, 10**5, 5)
    counts = Counts.of(dyads, False)
    mark("counted")
    objective = objective_of(dyads, 32, "bilinear", 6.0, counts)
    theta = objective.layout.initial(np.random.default_rng(0), np.ones(5)).astype(np.float32)
    with CUDA().bind(objective, dyads, counts) as problem:
        mark("bound")
        descent, ends = problem.descent(theta), []
        mark("in cells")
        start = descent.snapshot()
        for _ in range(1 + twice):
            for number in range(n_epochs):
                value = descent.epoch(1 - number / n_epochs, 0, number)
                mark(f"epoch {number}, value {value / n:.5f}")
            ends.append(descent.theta())
            mark("theta")
            descent.restore(start)
    return rounded(marks) | ({"same bits twice": bool(np.array_equal(*ends))} if twice else {})


def coded(n, n_rows, n_cols, skewed, n_labels=5, part=2**24, seed=0):
    """Codes of rows and columns, int32, and labels, int8; made by parts, so that memory holds no more."""
    row, col, label = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int8)
    streams = np.random.SeedSequence(seed).spawn(-(-n // part))

    def fill(number):
        rng, some = np.random.default_rng(streams[number]), slice(number * part, min(n, (number + 1) * part))
        m = some.stop - some.start
        shares = (rng.beta(0.6, 2.5, m), rng.beta(0.45, 4, m)) if skewed else rng.random((2, m))
        for codes, k, share in zip((row, col), (n_rows, n_cols), shares, strict=True):
            codes[some] = (k * share).astype(np.int32).clip(0, k - 1)
        label[some] = rng.integers(0, n_labels, m)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(len(streams))))
    return row, col, label


def accuracy(case="features and sets with the test pairs", seeds="0,1,2", n_sweeps=100, rank=32):
    """ML-1M, 90/10, a posterior with features and who saw what: RMSE, log-loss and seconds of each seed, and means.

    `case` : "ids only", "features and sets", or that "with the test pairs" in the sets. `seeds` : separated by commas.
    """
    data, rank = published.movielens_1m(), int(rank)
    side = SideInformation(Features(data.row_features), Features(data.col_features), interactions=rank, implicit=True)
    side, with_test = {
        "ids only": (None, False),
        "features and sets": (side, False),
        "features and sets with the test pairs": (side, True),
    }[case]
    lines = []
    for seed in map(int, seeds.split(",")):
        test = np.random.default_rng(seed).random(len(data.y)) < 0.1
        X = {name: column[~test] for name, column in data.X.items()}
        X_test, y_test = {name: column[test] for name, column in data.X.items()}, data.y[test]
        began = time.perf_counter()
        model = LFLOrdinal(rank, features=side, solver=Gibbs(sweeps=int(n_sweeps)), engine="cuda", random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, data.y[~test], seen=X_test if with_test else None)
            seconds = time.perf_counter() - began
            proba = model.predict_proba(X_test)
        error = proba @ model.classes_ - y_test
        loss = -np.log(proba[np.arange(len(y_test)), np.searchsorted(model.classes_, y_test)])
        lines.append((math.sqrt(np.mean(error**2)), float(loss.mean()), seconds))
        say(f"seed {seed}, {case}, RMSE, log-loss, seconds:", *np.round(lines[-1], 4))
    mean = zip(("RMSE", "log-loss", "seconds"), np.mean(lines, axis=0).tolist(), strict=True)
    return rounded({"case": case, "rank": rank, "sweeps": int(n_sweeps)} | dict(mean))


def device():
    """The device's name, and the bytes a second of its memory."""
    from numba import cuda

    name = cuda.get_current_device().name
    return {"name": name.decode() if isinstance(name, bytes) else name, "bandwidth": bandwidth()}


PARTS = (
    device,
    by_dyads,
    by_labels,
    by_rank,
    sgd,
    epochs,
    sweeps_of_many,
    sweeps_of_nodes,
    sweeps,
    gradients,
    accuracy,
    billion,
    billion_sweep,
)

if __name__ == "__main__":
    results = main({part.__name__: part for part in PARTS}, __file__)
    if results is not None:
        write_gpu_tables(results)
