"""A store of 10^8 made-up ratings: seconds to encode, describe, split and judge, and for each epoch and sweep; memory.

python benchmarks/large.py [pairs] [folder]; each part runs in a process of its own, which reports the largest anonymous
memory that it had. The same fits from memory, on a tenth of the pairs, are beside those of a store of that tenth.

python benchmarks/large.py same: whether models of MovieLens 1M are the same from a store and from a table, bit for bit.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RANK, N_LABELS = 16, 5


def make(folder, n, n_rows, n_cols, seed=0):
    """Write Parquet files of popularity-skewed ratings with text row ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, step = np.random.default_rng(seed), 10**7
    folder.mkdir(parents=True)
    taste, appeal = rng.normal(size=(n_rows, 4)), rng.normal(size=(n_cols, 4))
    for part, first in enumerate(range(0, n, step)):
        m = min(step, n - first)
        row = (n_rows * rng.random(m) ** 2).astype(np.int64)
        col = (n_cols * rng.random(m) ** 3).astype(np.int64)
        score = (taste[row] * appeal[col]).sum(axis=1) / 2 + rng.logistic(size=m)
        stars = 1 + np.searchsorted([-2.0, -0.7, 0.7, 2.0], score)
        users = pa.DictionaryArray.from_arrays(row.astype(np.int32), pa.array([f"user-{i}" for i in range(n_rows)]))
        table = pa.table(
            {"user": users.cast(pa.string()), "item": col.astype(np.int32), "stars": stars.astype(np.int8)}
        )
        pq.write_table(table, folder / f"{part:03}.parquet")


def anonymous():
    """Anonymous memory of this process, in bytes."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["RssAnon"].split()[0])


class Peak:
    """Samples the anonymous memory of this process in a thread."""

    def __enter__(self):
        from threading import Event, Thread

        self.most, self.end = 0, Event()

        def sample():
            while not self.end.wait(0.1):
                self.most = max(self.most, anonymous())

        self.thread = Thread(target=sample)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()


def encode(tables, store):
    import dyads

    with Peak() as peak:
        began = time.perf_counter()
        dyads.scan(f"{tables}/*.parquet", row="user", col="item", label="stars", to=store)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "GB": peak.most / 1e9}


def fit(source, solver):
    """Fit from a store, or from tables in memory; seconds of each iteration after the first."""
    import pyarrow.parquet as pq

    import dyads

    solvers = {"sgd": dyads.SGD(3), "newton": dyads.Newton(2), "gibbs": dyads.Gibbs(sweeps=2)}
    choices = {} if solver == "gibbs" else {"l2": 3.0}
    model = dyads.LFLOrdinal(RANK, solver=solvers[solver], random_state=0, **choices)
    steps = []
    with Peak() as peak:
        if (Path(source) / "manifest.json").exists():
            given = (dyads.Store(source), None)
        else:
            table = pq.read_table(source)
            given = (table.select(["user", "item"]), table["stars"])
        began = time.perf_counter()
        model.fit(*given, callback=lambda step: steps.append((time.perf_counter() - began, step.objective)))
        whole = time.perf_counter() - began
    times, values = zip(*steps, strict=True)
    each = float(np.mean(np.diff(times)))
    n = model.trained_on_["pairs"]
    return {
        "seconds for an iteration": each,
        "ns for a pair": 1e9 * each / n,
        "seconds to the end of the first": times[0],
        "seconds in all": whole,
        "GB": peak.most / 1e9,
        "objective for a pair": [value / n for value in values],
    }


def judge(store, what):
    """Describe a store, split it, evaluate a model on the test part, or choose between two penalties on three folds."""
    import dyads
    from dyads.report import doctor

    whole, parts = dyads.Store(store), [Path(f"{store}-{part}") for part in ("train", "test")]
    model = dyads.LFLOrdinal(RANK, l2=3.0, solver=dyads.SGD(2), random_state=0)
    if what == "evaluate":
        model.fit(dyads.Store(parts[0]))
    with Peak() as peak:
        began = time.perf_counter()
        if what == "describe":
            doctor.examine(whole)
        elif what == "split":
            for part, positions in zip(parts, next(dyads.split.RandomCells(5).split(whole)), strict=True):
                whole.take(positions, to=part)
        elif what == "evaluate":
            dyads.evaluate(model, dyads.Store(parts[1]))
        else:
            grid = {"l2__latent": [3.0, 10.0]}
            dyads.LFLOrdinalCV(RANK, grid=grid, solver=model.solver, random_state=0).fit(whole)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "GB": peak.most / 1e9}


def same():
    """Fit MovieLens 1M from a table and from a store with every solver: do all parameters and probabilities agree?"""
    import tempfile
    import warnings

    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.base import clone

    import dyads
    from dyads.datasets.published import movielens_1m

    warnings.simplefilter("ignore", dyads.errors.NotConvergedWarning)
    ratings = movielens_1m()
    X, y = ratings.X, ratings.y
    solvers = {
        "sgd": dyads.SGD(2),
        "lbfgs": dyads.LBFGS(5),
        "newton": dyads.Newton(2),
        "gibbs": dyads.Gibbs(sweeps=4),
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({**X, "rating": y})
        for part, first in enumerate(range(0, len(y), 250_000)):
            pq.write_table(table.slice(first, 250_000), f"{folder}/{part}.parquet")
        names = {"row": "user", "col": "item", "label": "rating"}
        store = dyads.scan(f"{folder}/*.parquet", **names, to=f"{folder}/store")
        for name, solver in solvers.items():
            model = dyads.LFLOrdinal(5, l2=None if name == "gibbs" else 3.0, solver=solver, random_state=0)
            began = time.perf_counter()
            of_table = clone(model).fit(X, y)
            middle = time.perf_counter()
            of_store = clone(model).fit(store)
            end = time.perf_counter()
            draws = zip(of_table.record_.draws, of_store.record_.draws, strict=True)
            some = table.select(["user", "item"])[:100_000]
            results[name] = {
                "same parameters": all(np.array_equal(one.theta, other.theta) for one, other in draws),
                "same probabilities": np.array_equal(of_table.predict_proba(some), of_store.predict_proba(some)),
                "parameters": sum(draw.theta.size for draw in of_table.record_.draws),
                "seconds from the table": round(middle - began, 1),
                "seconds from the store": round(end - middle, 1),
            }
            print(name, results[name], flush=True)
    return results


def apart(*arguments):
    """Run a part of this program in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr[-500:]}
    return json.loads(done.stdout.splitlines()[-1])


def main(n=10**8, folder="large"):
    n, folder = int(float(n)), Path(folder)
    results = {}
    for name, pairs in (("tenth", n // 10), ("whole", n)):
        tables, store = folder / f"tables-{name}", folder / f"store-{name}"
        if not tables.exists():
            make(tables, pairs, max(100, n // 100), max(50, n // 1000))
        if not store.exists():
            results[f"encode, {name}"] = apart("encode", tables, store)
            print(name, results[f"encode, {name}"], flush=True)
        for solver in ("sgd", "newton", "gibbs"):
            for source in (store, tables)[: 2 if name == "tenth" else 1]:
                where = "store" if source == store else "memory"
                results[f"{solver}, {name}, {where}"] = apart("fit", source, solver)
                print(name, where, solver, results[f"{solver}, {name}, {where}"], flush=True)
        for what in ("describe", "split", "evaluate", "search"):
            results[f"{what}, {name}"] = apart("judge", store, what)
            print(name, what, results[f"{what}, {name}"], flush=True)
    (Path(__file__).parent / "results" / "large.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    parts = {"encode": encode, "fit": fit, "judge": judge, "same": same}
    if sys.argv[1:2] and sys.argv[1] in parts:
        print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        main(*sys.argv[1:])
