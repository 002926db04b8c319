"""The CUDA engine beside the CPU's: seconds of sweeps, gradients and whole fits. See core.py for how it works.

`python benchmarks/gpu.py` on a machine with an NVIDIA GPU writes the figures of the GPU table of docs/benchmarks.md.
Seconds are those of iterations after the first, which compiles.
"""

import math
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from core import main, rounded

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


def made_up(n, n_rows, n_cols, n_labels=5, skewed=True, seed=0):
    """Coded dyads, popularity-skewed as ratings are, or uniform."""
    rng = np.random.default_rng(seed)
    shares = (rng.beta(0.6, 2.5, n), rng.beta(0.45, 4, n)) if skewed else rng.random((2, n))
    row, col = ((m * share).astype(np.int32).clip(0, m - 1) for m, share in zip((n_rows, n_cols), shares, strict=True))
    return Dyads(row, col, rng.integers(0, n_labels, n).astype(np.int8), None, n_rows, n_cols, n_labels, None, 1)


def sweep_seconds(engine, dyads, rank, structure="stereotype", times=4):
    """Least seconds of a sweep of the sampler with its loss, of a few after the first."""
    layout = Layout(
        build(structure, dyads.n_labels, dyads.n_labels, True, rank, 1 if structure == "stereotype" else None),
        dyads.n_rows,
        dyads.n_cols,
    )
    names = ("row_bias", "col_bias", "row_factors", "col_factors", "phi")
    penalty = Penalty.of(layout, dict.fromkeys(names, 1.0), "none", Counts.of(dyads, False))
    theta = np.random.default_rng(1).normal(scale=0.1, size=layout.size)
    seconds = []
    with engine.bind(Objective(layout, Log(), penalty), dyads) as problem:
        posterior = Posterior(problem)
        state = posterior.start(theta, np.random.default_rng(0))
        for number in range(1 + times):
            began = time.perf_counter()
            state, _ = posterior.sweep(state, SweepNoise(0, 0, number))
            posterior.loss(state)
            seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def sweeps():
    """Milliseconds of a sweep through `fit`, with all that a fit does between sweeps: ML-1M, and 20 million ratings."""
    milliseconds = {}
    data = published.movielens_1m()
    large = made_up(20_000_000, 138_493, 26_744)
    cases = {
        "ML-1M, rank 10": (10, data.X, data.y, 30),
        "20 million made-up ratings, rank 32": (32, {"row": large.row, "col": large.col}, large.label, 8),
    }
    for name, (rank, X, y, n) in cases.items():
        times = []
        model = LFLOrdinal(rank, solver=Gibbs(sweeps=n), engine="cuda", random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            model.fit(X, y, callback=lambda progress, times=times: times.append(time.perf_counter()))
        milliseconds[name] = 1e3 * float(np.median(np.diff(times)[2:]))
    return rounded(milliseconds) | {"at most": {"ML-1M": 40, "20 million": 600}}


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


def growth():
    """Milliseconds of a sweep, GPU and CPU with two threads: by number of dyads, labels and rank."""
    table = {}
    for n in (10**5, 10**6, 10**7, 10**8):
        dyads = made_up(n, math.isqrt(n) * 20, math.isqrt(n) * 4)
        table[f"{n:.0e} dyads, rank 10"] = both(dyads, 10, n <= 10**6)
    for n_labels in (2, 10, 50):
        structure = "bilinear" if n_labels == 2 else "stereotype"
        table[f"{n_labels} labels, 10^6 dyads, rank 10"] = both(
            made_up(10**6, 6040, 3706, n_labels), 10, n_labels <= 10, structure
        )
    for rank in (5, 32, 64, 128):
        table[f"rank {rank}, 10^6 dyads"] = both(made_up(10**6, 6040, 3706), rank, rank <= 32)
    return rounded(table)


def both(dyads, rank, with_cpu, structure="stereotype"):
    row = {"GPU, ms": 1e3 * sweep_seconds(CUDA(), dyads, rank, structure)}
    if with_cpu:
        row["CPU, ms"] = 1e3 * sweep_seconds(CPU(2), dyads, rank, structure, times=1)
    return row


def sgd(n=10**8):
    """Millions of SGD updates a second through `fit`, rank 32, 5 labels, 10^6 rows x 10^5 columns; the same bits twice.

    `n` : number of dyads. Times are those between callbacks, of epochs after the first. The bits are those of two fits
    of a tenth of the dyads.
    """
    n, rate = int(n), {}
    for name, skewed in (("uniform", False), ("popularity-skewed", True)):
        row, col, label = coded(n, 10**6, 10**5, skewed)
        thetas = []
        for size, n_epochs in ((n, 5), (n // 10, 2), (n // 10, 2)):
            times = [time.perf_counter()]
            model = LFLClassifier(32, l2=L2(), solver=SGD(max_iter=n_epochs), engine="cuda", random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(
                    {"row": row[:size], "col": col[:size]},
                    label[:size],
                    callback=lambda progress, times=times: times.append(time.perf_counter()),
                )
            seconds = np.diff(times)
            say(name, f"{size} dyads, {n_epochs} epochs, {time.perf_counter() - times[0]:.1f} s; to the end of each:")
            say(seconds.round(3))
            if size == n:
                rate[name] = n / 1e6 / float(np.median(seconds[1:]))
            else:
                thetas.append(model.record_.draws[0].theta)
        rate[f"{name}, same bits twice"] = bool(np.array_equal(*thetas))
    return rounded(rate) | {"at least": {"uniform": 500, "popularity-skewed": 250}}


def epochs(n=10**8):
    """Like `sgd`, of the engine alone: cells, then epochs, from coded arrays; the same bits twice."""
    return {name: of_engine(int(n), skewed, 4, True) for name, skewed in (("uniform", False), ("skewed", True))}


def billion(n=10**9):
    """Seconds for three epochs over 10^9 dyads by the engine, from coded arrays in host memory, grouping included."""
    return of_engine(int(n), True, 3, False) | {"at most": 60}


def of_engine(n, skewed, n_epochs, twice):
    """Seconds of SGD at rank 32, by `CUDA().bind(...).descent(theta)`: from coded arrays to parameters on the host."""
    row, col, label = coded(n, 10**6, 10**5, skewed)
    say("made up")
    marks, began = {}, time.perf_counter()

    def mark(name):
        marks[name] = time.perf_counter() - began
        say(name, round(marks[name], 3))

    dyads = Dyads(row, col, label, None, 10**6, 10**5, 5)
    layout = Layout(build("bilinear", 5, 5, True, 32, None), 10**6, 10**5)
    counts = Counts.of(dyads, False)
    mark("counted")
    names = ("row_bias", "col_bias", "row_factors", "col_factors")
    penalty = Penalty.of(layout, dict.fromkeys(names, 6.0), "none", counts)
    theta = layout.initial(np.random.default_rng(0), np.ones(5)).astype(np.float32)
    with CUDA().bind(Objective(layout, Log(), penalty), dyads, counts) as problem:
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


def coded(n, n_rows, n_cols, skewed, part=2**24, seed=0):
    """Codes of rows and columns, int32, and labels, int8: like `made_up`, by parts, so that memory holds no more."""
    row, col, label = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int8)
    streams = np.random.SeedSequence(seed).spawn(-(-n // part))

    def fill(number):
        rng, some = np.random.default_rng(streams[number]), slice(number * part, min(n, (number + 1) * part))
        m = some.stop - some.start
        shares = (rng.beta(0.6, 2.5, m), rng.beta(0.45, 4, m)) if skewed else rng.random((2, m))
        for codes, k, share in zip((row, col), (n_rows, n_cols), shares, strict=True):
            codes[some] = (k * share).astype(np.int32).clip(0, k - 1)
        label[some] = rng.integers(0, 5, m)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(len(streams))))
    return row, col, label


def accuracy(case="features and sets with the test pairs", seeds="0,1,2", n_sweeps=80, rank=32):
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


if __name__ == "__main__":
    main({f.__name__: f for f in (sweeps, gradients, sgd, epochs, billion, growth, accuracy)}, __file__)
