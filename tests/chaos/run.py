"""`make chaos`: kills at random moments and flipped bytes, and what comes of them. Some ten minutes.

Encoding, fits, one of each solver, and a search by cross-validation are killed with SIGKILL at random moments and
started again until they end: the model must be that of a fit that was left alone. Then one long fit of each
solver, and one search by cross-validation, is killed several times, each time after it has gone on from its
checkpoint. Bytes of stores and checkpoints are flipped: a fit must end in the right model, or in an error of dyads
that names the file; never in another exception, a wrong model or a hang.

python tests/chaos/run.py [--kills 100] [--resumes 10] [--flips 1000] [--seed 0]
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

import dyads
from dyads.errors import DyadsError
from dyads.learn import checkpoint

SOLVERS = {
    "sgd": dyads.SGD(max_iter=30),
    "newton": dyads.Newton(max_iter=10, tol=0.0),
    "lbfgs": dyads.LBFGS(max_iter=150, tol=0.0),
    "gibbs": dyads.Gibbs(sweeps=30),
}
LONG = {
    "sgd": dyads.SGD(max_iter=500),
    "newton": dyads.Newton(max_iter=60, tol=0.0),
    "lbfgs": dyads.LBFGS(max_iter=1500, tol=0.0),
    "gibbs": dyads.Gibbs(sweeps=200),
}
"""Fits that are killed several times, and get on between two kills."""

SECONDS = 300
"""A process that takes longer hangs."""


def model_of(task):
    """The model of a task: a solver or "search"; with "long" before it, one of a longer fit."""
    if task.endswith("search"):
        return dyads.LFLOrdinalCV(
            2,
            solver=dyads.SGD(30 if task.startswith("long") else 5),
            cv=2,
            random_state=0,
            engine=dyads.CPU(1),
            n_jobs=1,
        )
    *long, solver = task.split()
    l2 = None if solver == "gibbs" else 5.0
    chosen = (LONG if long else SOLVERS)[solver]
    return dyads.LFLOrdinal(2, l2=l2, solver=chosen, random_state=0, engine=dyads.CPU(1))


def encode(folder, name):
    """Make a store of the tables, with features of pairs."""
    names = {"row": "user", "col": "item", "label": "stars", "features": ["price", "device"]}
    dyads.scan(f"{folder}/tables/*.parquet", **names, to=folder / name)


def child(task, folder):
    """What a killed process does: encode tables, or fit a model to a store, with a checkpoint."""
    checkpoint.CHECKPOINT_SECONDS = 0.0
    warnings.simplefilter("ignore")
    print("ready", flush=True)
    if task == "encode":
        if not (folder / "encoded").exists():
            encode(folder, "encoded")
        return
    model = model_of(task).fit(dyads.Store(folder / "store"), checkpoint=folder / f"{task}.checkpoint")
    model.save(folder / f"{task}.dyads")


def started(task, folder):
    return subprocess.Popen(
        [sys.executable, __file__, "--child", task, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(process):
    """Wait for a process; whether it ends in time."""
    try:
        process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    return True


class Hangs(BaseException):
    """What a fit of this process ends in if it takes too long; no handler of errors takes it for one."""


@contextlib.contextmanager
def limited():
    """Raise `Hangs` after `SECONDS`; a fit that does not return to Python then ends the run, by a second signal."""

    def raised(*_):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        raise Hangs

    signal.signal(signal.SIGALRM, raised)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def same(first, second):
    return all(
        np.array_equal(one.theta, other.theta)
        for one, other in zip(first.record_.draws, second.record_.draws, strict=True)
    )


def kills(folder, task, n, rng):
    """Kill a task n times, starting it again after each; it starts anew when it ends."""
    outcome = Counter()
    whole = None if task == "encode" else model_of(task).fit(dyads.Store(folder / "store"), checkpoint=folder / "whole")
    for path in folder.glob("whole*"):
        path.unlink()
    began = time.perf_counter()
    if not ends(started(task, folder)):
        return Counter(hang=1)
    longest = time.perf_counter() - began
    clear(folder, task)
    while outcome["killed"] < n:
        process = started(task, folder)
        process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.05, max(0.3, longest / 3)))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            outcome["killed"] += 1
            continue
        outcome += judged(process, folder, task, whole)
        clear(folder, task)
    process = started(task, folder)
    if not ends(process):
        return outcome + Counter(hang=1)
    outcome += judged(process, folder, task, whole)
    clear(folder, task)
    return outcome


def resumes(folder, task, n, rng):
    """Kill one fit n times, each time after it has written a checkpoint anew; return the kills and what came of it."""
    kept, killed = folder / f"{task}.checkpoint", 0
    whole = model_of(task).fit(dyads.Store(folder / "store"), checkpoint=folder / "whole")
    for path in folder.glob("whole*"):
        path.unlink()
    while True:
        before = written_at(kept)
        process, began = started(task, folder), time.perf_counter()
        while process.poll() is None and (killed == n or written_at(kept) == before):
            time.sleep(0.002)
            if time.perf_counter() - began > SECONDS:
                process.kill()
                return killed, "hang"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 0.1))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
    (outcome,) = judged(process, folder, task, whole)
    clear(folder, task)
    return killed, outcome


def written_at(path):
    """When a file was written; None if there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def judged(process, folder, task, whole):
    """What became of a task that ended."""
    if process.returncode:
        return Counter(traceback=1)
    if task == "encode":
        first, second = dyads.Store(folder / "encoded"), dyads.Store(folder / "store")
        pairs = [(getattr(first.dyads, name), getattr(second.dyads, name)) for name in ("row", "col", "label")]
        pairs += [(first.features[name].values, second.features[name].values) for name in second.features]
        right = all(np.array_equal(one, other, equal_nan=one.dtype == float) for one, other in pairs)
    else:
        right = same(dyads.load(folder / f"{task}.dyads"), whole)
    return Counter({"right" if right else "WRONG": 1})


def clear(folder, task):
    for path in (*folder.glob(f"{task}.checkpoint*"), folder / f"{task}.dyads"):
        path.unlink(missing_ok=True)
    if task == "encode":
        shutil.rmtree(folder / "encoded", ignore_errors=True)


def flips(folder, n, rng):
    """Flip a bit of a file of a store, or of a checkpoint, and fit."""
    outcome = Counter()
    checkpoint.CHECKPOINT_SECONDS = 0.0
    model = dyads.LFLOrdinal(1, l2=3.0, solver=dyads.SGD(2), random_state=0, engine=dyads.CPU(1))
    store, kept = folder / "store", folder / "flipped.checkpoint"
    whole = dyads.LFLOrdinal(**model.get_params(deep=False)).fit(dyads.Store(store), checkpoint=kept)
    files = [*sorted(path for path in store.rglob("*") if path.is_file()), kept]
    for _ in range(n):
        path = files[rng.integers(len(files))]
        intact = path.read_bytes()
        data = bytearray(intact)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            # A fit whose checkpoint is complete would not read the store.
            resumed = kept if path == kept else None
            with limited():
                again = dyads.LFLOrdinal(**model.get_params(deep=False)).fit(dyads.Store(store), checkpoint=resumed)
            outcome["right" if same(again, whole) else "WRONG"] += 1
        except DyadsError:
            outcome["error with a sentence"] += 1
        except Hangs:
            outcome["hang"] += 1
            print(path.name, "hangs")
        except Exception as error:
            outcome["traceback"] += 1
            print(path.name, repr(error)[:200])
        path.write_bytes(intact)
    return outcome


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--resumes", type=int, default=10)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, bad = np.random.default_rng(given.seed), 0
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tables").mkdir()
        user, item = rng.integers(0, 400, 60_000), rng.integers(0, 300, 60_000)
        table = pd.DataFrame({"user": [f"u{i}" for i in user], "item": item, "stars": 1 + rng.integers(0, 5, 60_000)})
        table["price"] = np.where(rng.random(60_000) < 0.1, np.nan, rng.normal(size=60_000))
        table["device"] = rng.choice(["tv", "phone"], 60_000)
        for part in range(3):
            table[part::3].to_parquet(folder / "tables" / f"{part}.parquet", index=False)
        encode(folder, "store")
        tasks = ("encode", *SOLVERS, "search") if given.kills else ()
        for task in tasks:
            outcome = kills(folder, task, -(-given.kills // len(tasks)), rng)
            print(f"kills, {task}: {dict(outcome)}", flush=True)
            bad += outcome["WRONG"] + outcome["traceback"] + outcome["hang"]
        for task in (*LONG, "search") if given.resumes else ():
            killed, outcome = resumes(folder, f"long {task}", given.resumes, rng)
            equal = "yes" if outcome == "right" else "no"
            print(f"one fit, {task}: killed {killed} times, bitwise equal: {equal} ({outcome})", flush=True)
            bad += outcome != "right" or killed < given.resumes
        outcome = flips(folder, given.flips, rng) if given.flips else Counter()
        print(f"flips: {dict(outcome)}", flush=True)
        bad += outcome["WRONG"] + outcome["traceback"] + outcome["hang"]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]))
        os._exit(0)
    main()
