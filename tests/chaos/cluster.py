"""`make chaos-cluster`: workers and nodes of a Ray cluster are killed at random moments, and what comes of the fits.

A cluster of a head and two further nodes, processes of this machine, fits a made-up store by Gibbs and by Newton's
method in turn, while SIGKILLs hit workers that do a task, or the raylet of a node, which is then replaced. Every model
must be, bit for bit, that of the CPU engine that was left alone. The table says, for each kill, what was killed, in
which phase of the fit, and how many tasks ran again until the next; and for each fit whether its model is right.

python tests/chaos/cluster.py [--kills 50] [--seconds 60] [--pairs 200000] [--seed 0]
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

# Without dashboards and statistics of use, on the loopback alone.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

import numpy as np
import pandas as pd
import ray
from ray.cluster_utils import Cluster

import dyads
from dyads.engine import cluster

NODE = {"num_cpus": 1, "object_store_memory": 150 * 2**20}
HANGING = 10
"""Times its planned length after which a fit hangs."""

SHARE_OF_NODES = 0.3
"""Share of the kills that hit nodes."""

phase = {"now": "before", "again": 0}
run, lost = cluster.Cluster.run, cluster.Cluster._lost


def watched_run(self, function, name, common, tasks, told=None):
    phase["now"] = name
    try:
        return run(self, function, name, common, tasks, told)
    finally:
        phase["now"] = "between"


def watched_lost(self, *arguments):
    phase["again"] += 1
    return lost(self, *arguments)


cluster.Cluster.run, cluster.Cluster._lost = watched_run, watched_lost


def model_of(solver, n, engine):
    chosen = dyads.Gibbs(sweeps=n) if solver == "gibbs" else dyads.Newton(max_iter=n, tol=0.0)
    l2 = None if solver == "gibbs" else 5.0
    return dyads.LFLOrdinal(4, l2=l2, solver=chosen, random_state=0, engine=engine)


def kill(machines, rng):
    """Kill a worker that does a task, or a node; return which, or None if there is none."""
    if rng.random() < SHARE_OF_NODES:
        node = machines.worker_nodes and sorted(machines.worker_nodes, key=lambda node: node.node_id)[0]
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        machines.worker_nodes.discard(node)
        machines.add_node(**NODE)
        return "node"
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    busy = [int(line.split()[0]) for line in listed.splitlines() if "ray::task" in line]
    if not busy:
        return None
    try:
        os.kill(busy[rng.integers(len(busy))], signal.SIGKILL)
    except ProcessLookupError:
        return None
    return "worker"


def killed_fit(machines, store, solver, n, kills, seconds, rng):
    """Fit while so many kills hit the cluster; return the model, or the error, and a line for each kill."""
    lines, results = [], []
    engine = dyads.Ray(machines.address, timeout=HANGING * seconds)

    def fit():
        try:
            results.append(model_of(solver, n, engine).fit(dyads.Store(store)))
        except Exception as error:
            results.append(error)

    phase["again"] = 0
    # Nodes are added by the main thread alone.
    fitting = threading.Thread(target=fit, daemon=True)
    fitting.start()
    for moment in np.diff(np.sort(rng.uniform(0.02, 0.9, kills)), prepend=0) * seconds:
        fitting.join(moment)
        what = None
        while what is None and fitting.is_alive():
            during, before = phase["now"], phase["again"]
            what = kill(machines, rng)
            time.sleep(0.002)
        if what is not None:
            lines.append({"killed": what, "phase": during, "before": before})
    fitting.join(HANGING * seconds)
    result = results[0] if results else TimeoutError("it hangs")
    ends = [line["before"] for line in lines[1:]] + [phase["again"]]
    for line, end in zip(lines, ends, strict=True):
        line["again"] = end - line.pop("before")
    return result, lines


def same(first, second):
    pairs = zip(first.record_.draws, second.record_.draws, strict=True)
    return all(np.array_equal(one.theta, other.theta) for one, other in pairs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a fit")
    parser.add_argument("--each", type=int, default=5, help="kills of a fit")
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng, done, bad, number = np.random.default_rng(given.seed), 0, 0, 0
    machines = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(2):
            machines.add_node(**NODE)
        with tempfile.TemporaryDirectory() as name:
            store, n = Path(name) / "store", given.pairs
            item = (800 * rng.random(n) ** 2).astype(int)
            ratings = {"user": rng.integers(0, 2000, n), "item": item, "stars": rng.integers(1, 6, n)}
            pd.DataFrame(ratings).to_parquet(Path(name) / "ratings.parquet")
            dyads.scan(Path(name) / "ratings.parquet", row="user", col="item", label="stars", to=store)
            lengths, wholes = {}, {}
            for solver in ("gibbs", "newton"):
                engine = dyads.Ray(machines.address)
                model_of(solver, 2, engine).fit(dyads.Store(store))
                took = []
                for sweeps in (2, 12):
                    began = time.perf_counter()
                    model_of(solver, sweeps, engine).fit(dyads.Store(store))
                    took.append(time.perf_counter() - began)
                lengths[solver] = max(3, round(10 * given.seconds / max(took[1] - took[0], 0.01)))
                wholes[solver] = model_of(solver, lengths[solver], "cpu").fit(dyads.Store(store))
            print("| fit | kill | killed | phase | tasks run again | bitwise equal |")
            print("|---|---|---|---|---|---|", flush=True)
            while done < given.kills:
                solver = ("gibbs", "newton")[number % 2]
                number += 1
                kills = min(given.each, given.kills - done)
                began = time.perf_counter()
                result, lines = killed_fit(machines, store, solver, lengths[solver], kills, given.seconds, rng)
                took = time.perf_counter() - began
                right = not isinstance(result, Exception) and same(result, wholes[solver])
                bad += not right
                verdict = "yes" if right else f"NO ({result if isinstance(result, Exception) else 'another model'})"
                for line in lines:
                    done += 1
                    what = f"{number} {solver}, {took:.0f} s"
                    print(f"| {what} | {done} | {line['killed']} | {line['phase']} | {line['again']} | {verdict} |")
                sys.stdout.flush()
    finally:
        ray.shutdown()
        machines.shutdown()
    print(f"{done} kills, {number} fits, {bad} wrong", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
