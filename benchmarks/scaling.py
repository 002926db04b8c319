"""A Gibbs sweep on a Ray cluster: measured here on one machine and 1 and 2 workers, and simulated on more.

python benchmarks/scaling.py [--pairs 1e7] [--store FOLDER] [--sweeps 4] > table.md
python benchmarks/scaling.py --same

It fits a store of made-up ratings (that of `large.py`) on the CPU engine and on local Ray clusters of nodes of one
processor, checks that all models are the same, bit for bit, and writes the seconds of a sweep, the overhead, the bytes
that went through the object store, and the tasks of each worker. Then it replays the task times of one worker on two,
beside what was measured, and on the machines of `CLUSTERS`, under the assumptions that it prints. With `--same` it only
compares models of MovieLens 1M by three solvers on 1, 2 and 4 workers with those of the CPU engine.
"""

import argparse
import heapq
import json
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dyads
from dyads.datasets.published import movielens_1m
from dyads.engine import cluster

RANK = 16
STORE_BYTES = 400 * 2**20

PROCESSORS, NETWORK, DOLLARS = 16, 1.25e9, 0.8
"""Assumed: processors of a machine, as fast as one here; bytes a second between machines (10 Gbit/s); price an hour."""

GPU_SWEEP, GPU_DOLLARS = 23e-9, 4.0
"""Seconds for a pair and sweep on a GPU, measured with 20 million pairs at rank 32 on an H200; an assumed price of one
an hour."""

SWEEPS = 300
"""Sweeps of a fit."""

CLUSTERS = ((10**9, 10**7, 10**6), (10**10, 10**8, 10**7))
"""Pairs, rows and columns."""

MACHINES, GPUS = (1, 8, 64), (1, 8)

BYTES = ("shared", "sent", "received")
"""What a `Pass` moves."""


class Measured(NamedTuple):
    """A fit: seconds of a sweep, passes of a sweep, tasks by worker, and theta of the last draw."""

    sweep: float
    passes: list
    workers: dict
    theta: np.ndarray


def fit(store, engine, solver, rank=RANK):
    """Fit by a solver, and keep what passes of the last sweeps took."""
    logged, marks = [], []

    class Handler(logging.Handler):
        def emit(self, record):
            logged.extend(arg for arg in (record.args or ()) if isinstance(arg, cluster.Pass))

    handler = Handler()
    cluster.logger.setLevel(logging.INFO)
    cluster.logger.addHandler(handler)
    l2 = None if isinstance(solver, dyads.Gibbs) else 5.0
    model = dyads.LFLOrdinal(rank, l2=l2, solver=solver, random_state=0, engine=engine)
    model.fit(dyads.Store(store), callback=lambda step: marks.append((time.perf_counter(), len(logged))))
    cluster.logger.removeHandler(handler)
    # The first sweep reads the shards.
    (first, begin), (last, end) = marks[0], marks[-1]
    passes = logged[begin:end]
    workers = sum((Counter(one.workers) for one in passes), Counter())
    return Measured((last - first) / (len(marks) - 1), passes, dict(workers), model.record_.draws[-1].theta)


@contextmanager
def local_cluster(n):
    """The engine on a cluster of n workers, each a node of one processor."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    machines = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(n - 1):
            machines.add_node(**node)
        yield dyads.Ray(machines.address)
    finally:
        ray.shutdown()
        machines.shutdown()


def on_ray(store, n, solver):
    """Fit on n workers; also bytes a second into the object store."""
    import ray

    with local_cluster(n) as engine:
        measured, array = fit(store, engine, solver), np.ones(2**23)
        began = time.perf_counter()
        for _ in range(4):
            ray.get(ray.put(array))
        return measured, 4 * array.nbytes / (time.perf_counter() - began)


def same():
    """MovieLens 1M on 1, 2 and 4 workers: are the models those of the CPU engine, bit for bit? Tasks of each worker."""
    ratings, differs = movielens_1m(), False
    solvers = {"gibbs": dyads.Gibbs(sweeps=4), "newton": dyads.Newton(4, tol=0.0), "lbfgs": dyads.LBFGS(10)}
    head("solver", "workers", "tasks of a pass", "tasks of each worker", "bitwise equal")
    with tempfile.TemporaryDirectory() as folder:
        path, store = f"{folder}/ratings.parquet", f"{folder}/store"
        pq.write_table(pa.table({**ratings.X, "rating": ratings.y}), path)
        dyads.scan(path, row="user", col="item", label="rating", to=store)
        cpu = {name: fit(store, dyads.CPU(2), solver, rank=8) for name, solver in solvers.items()}
        for n in (1, 2, 4):
            with local_cluster(n) as engine:
                for name, solver in solvers.items():
                    fitted = fit(store, engine, solver, rank=8)
                    equal = np.array_equal(fitted.theta, cpu[name].theta)
                    tasks = sorted({len(one.task_seconds) for one in fitted.passes})
                    differs |= not equal
                    shown = (", ".join(map(str, each)) for each in (tasks, fitted.workers.values()))
                    line(name, n, *shown, "yes" if equal else "NO")
    if differs:
        sys.exit("Some models differ.")


class Costs(NamedTuple):
    """What a simulation takes from the run on one worker.

    Attributes
    ----------
    task : seconds of a task beyond its computing: to send it, start it and receive its result
    driver : seconds of a sweep outside of passes
    bandwidth : bytes a second through the object store, or the network
    """

    task: float
    driver: float
    bandwidth: float


def costs_of(measured, n_sweeps, bandwidth):
    """Fit the costs to a run on one worker."""
    in_passes, computing = (sum(one.seconds for one in measured.passes), sum(map(task_sum, measured.passes)))
    moved = sum(one.shared + one.sent for one in measured.passes) / bandwidth
    n_tasks = sum(len(one.task_seconds) for one in measured.passes)
    return Costs(max(0.0, in_passes - computing - moved) / n_tasks, measured.sweep - in_passes / n_sweeps, bandwidth)


def task_sum(one):
    return sum(one.task_seconds)


def replayed(task_seconds, n_workers, cost):
    """Seconds until the last of some tasks ends, if each goes to the worker that is free first."""
    free = [0.0] * min(n_workers, max(1, len(task_seconds)))
    for seconds in task_seconds:
        heapq.heappush(free, heapq.heappop(free) + seconds + cost)
    return max(free)


def simulated(measured, n_sweeps, n_workers, costs):
    """Seconds of a sweep on some workers of one machine: passes follow each other, their tasks share the workers."""
    passes = sum(
        (one.shared + one.sent) / costs.bandwidth + replayed(one.task_seconds, n_workers, costs.task)
        for one in measured.passes
    )
    return costs.driver + passes / n_sweeps


def scaled(measured, n_sweeps, size, n, machines, costs):
    """Seconds of a sweep, and the parts of driver, network and computing, for n = (pairs, rows, columns) elsewhere.

    `size` : pairs, rows and columns of the store that was measured.
    """
    pairs, rows = n[0] / size[0], (n[1] + n[2]) / (size[1] + size[2])
    workers = machines * PROCESSORS
    computing = sum(map(task_sum, measured.passes)) / n_sweeps * pairs
    moved = (sum(getattr(one, name) for one in measured.passes) for name in BYTES)
    shared, sent, received = (total / n_sweeps * rows for total in moved)
    # Blocks reach all machines over a tree; arguments and results pass through the driver's machine once.
    network = 0.0 if machines == 1 else (shared * math.log2(machines + 1) + sent + received) / NETWORK
    tasks_of_pass = max(16, 4 * workers, n[0] / 2**20)
    n_tasks = len(measured.passes) / n_sweeps * tasks_of_pass
    # A pass ends with its last task: on average half a task later than if work were divided evenly.
    late = computing / n_tasks / 2 * len(measured.passes) / n_sweeps
    driver, parallel = costs.driver * rows, (computing + n_tasks * costs.task) / workers + late
    return driver + network + parallel, driver, network, parallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=float, default=1e7)
    parser.add_argument("--store", type=Path, help="a store to fit, instead of a made-up one")
    parser.add_argument("--sweeps", type=int, default=4)
    parser.add_argument("--raw", type=Path, help="file for the passes that were measured, as JSON")
    parser.add_argument("--same", action="store_true", help="only compare models of MovieLens 1M")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.same:
        same()
        return
    with tempfile.TemporaryDirectory() as name:
        store = given.store
        if store is None:
            from large import make

            n, store = int(given.pairs), Path(name) / "store"
            make(Path(name) / "tables", n, n // 100, n // 1000)
            dyads.scan(f"{name}/tables/*.parquet", row="user", col="item", label="stars", to=store)
        report(store, given.sweeps, given.raw)


def report(store, sweeps, raw):
    opened = dyads.Store(store)
    size, n_sweeps = (len(opened), len(opened.rows), len(opened.cols)), sweeps - 1
    solver = dyads.Gibbs(sweeps=sweeps)
    cpu = {n: fit(store, dyads.CPU(n), solver) for n in (1, 2)}
    # The costs are those of one worker, and so is the bandwidth.
    (one, bandwidth), (two, _) = (on_ray(store, n, solver) for n in (1, 2))
    ray = {1: one, 2: two}
    same = all(np.array_equal(one.theta, cpu[1].theta) for one in (cpu[2], *ray.values()))
    costs = costs_of(ray[1], n_sweeps, bandwidth)
    print(
        f"{size[0]:,} pairs of {size[1]:,} rows and {size[2]:,} columns, rank {RANK}. All models bitwise equal: {same}."
    )
    head("workers", "s a sweep, CPU engine", "Ray", "overhead", "simulated", "error", "tasks of each worker")
    for n in (1, 2):
        guess = simulated(ray[1], n_sweeps, n, costs)
        over, error = ray[n].sweep / cpu[n].sweep - 1, guess / ray[n].sweep - 1
        tasks = ", ".join(map(str, ray[n].workers.values()))
        line(n, f"{cpu[n].sweep:.2f}", f"{ray[n].sweep:.2f}", f"{over:.0%}", f"{guess:.2f}", f"{error:+.0%}", tasks)
    head("phase", "passes a sweep", "tasks a pass", "s of a task", "MB of blocks a sweep", "of arguments", "of results")
    for phase in dict.fromkeys(one.phase for one in ray[1].passes):
        some = [one for one in ray[1].passes if one.phase == phase]
        each = np.concatenate([one.task_seconds for one in some])
        moved = [sum(getattr(one, name) for one in some) / n_sweeps / 1e6 for name in BYTES]
        shown = [f"{megabytes:.1f}" for megabytes in moved]
        line(phase, f"{len(some) / n_sweeps:.1f}", f"{len(each) / len(some):.0f}", f"{each.mean():.4f}", *shown)
    print(
        f"\nOn one worker: {1e3 * costs.task:.2f} ms for a task beyond its computing, {costs.driver:.3f} s of a sweep "
        f"on the driver outside of passes, {bandwidth / 1e9:.2f} GB/s through the object store.\n\nAssumed below: "
        f"machines of {PROCESSORS} processors, each as fast as one here, {8 * NETWORK / 1e9:.0f} Gbit/s between them, "
        f"${DOLLARS:.2f} an hour each; {SWEEPS} sweeps. GPUs: {1e9 * GPU_SWEEP:.0f} ns for a pair and sweep, "
        f"${GPU_DOLLARS:.2f} an hour each; several are assumed to be as fast as their number."
    )
    head("pairs", "on", "s a sweep", "driver", "network", "computing", "hours", "$", "GB of blocks on each")
    width = cpu[1].theta.size / (size[1] + size[2])
    for n in CLUSTERS:
        blocks = 8 * width * (n[1] + n[2]) / 1e9
        for machines in MACHINES:
            times = scaled(ray[1], n_sweeps, size, n, machines, costs)
            hours = times[0] * SWEEPS / 3600
            shown = [f"{seconds:.1f}" for seconds in times]
            cost = f"{hours * machines * DOLLARS:.0f}"
            line(f"{n[0]:.0e}", f"{machines} × {PROCESSORS}", *shown, f"{hours:.1f}", cost, f"{blocks:.1f}")
        for gpus in GPUS:
            hours = n[0] * GPU_SWEEP / gpus * SWEEPS / 3600
            cost, seconds = f"{hours * gpus * GPU_DOLLARS:.0f}", f"{n[0] * GPU_SWEEP / gpus:.1f}"
            line(f"{n[0]:.0e}", f"{gpus} GPU, assumed", seconds, "", "", "", f"{hours:.1f}", cost, "")
    if raw is not None:
        raw.write_text(json.dumps({n: [one._asdict() for one in ray[n].passes] for n in ray}))
    if not same:
        sys.exit("The models differ.")


def head(*names):
    """Begin a table."""
    print()
    line(*names)
    line(*("---" for _ in names))


def line(*cells):
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
