"""Fuzzing of model files, checkpoints, stores and tables: `python tests/fuzz/run.py`, or `make fuzz`.

Each case is a number: mutation `case` of a target is the same on every machine. Cases run in batches, each in a process
of its own, so that a crash of the interpreter is seen. A failure is one of: a crash; more than `SECONDS` or `MEGABYTES`
beyond those of a plain load; an exception other than the one allowed; probabilities that are not.
"""

import argparse
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dyads
from dyads.errors import DyadsError, InputError, ModelFileError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fuzz import mutations

SIMPLE = ("--rank", "0", "--solver", "point", "--engine-threads", "1")

SECONDS, MEGABYTES, BATCH = 10, 1024, 200


# ------------------------------------------------------------------------------------------------------------- targets


def _pairs(seed=0, n=120):
    rng = np.random.default_rng(seed)
    return {"user": rng.integers(0, 9, n).astype(str), "item": rng.integers(0, 7, n)}, rng


def nominal():
    X, rng = _pairs()
    y = rng.choice(["bought", "returned", "viewed"], 120)
    model = dyads.LFLClassifier(rank=2, l2=0.3, random_state=0).fit(X, y)
    return model.calibrate(X, y, "vector").conformalize(X, y)


def features():
    X, rng = _pairs(1)
    X["price"], X["day"] = rng.normal(size=120), rng.choice(["mo", "tu"], 120)
    users = {"user": np.arange(9).astype(str), "age": [20.0, None, *range(7)], "sex": list("mfmfmfmfm")}
    users["likes"] = [["a", "b"]] * 9
    items = (np.arange(7), np.eye(7)[:, :3])
    side = dyads.SideInformation(row=users, col=items, interactions=1)
    model = dyads.LFLOrdinal(rank=1, l2=0.3, loss="absolute", features=side, unknown="mean", random_state=0)
    return model.fit(X, rng.integers(1, 4, 120)).calibrate(X, rng.integers(1, 4, 120), "logistic")


def posterior():
    X, rng = _pairs(2)
    side = dyads.SideInformation(implicit=True, interactions=1)
    model = dyads.LFLOrdinal(rank=2, solver=dyads.Gibbs(sweeps=6), features=side, random_state=0)
    return model.fit(X, rng.integers(1, 4, 120))


def links():
    rng = np.random.default_rng(3)
    X = {"source": rng.integers(0, 9, 90), "target": rng.integers(0, 9, 90)}
    model = dyads.LFLLink(rank=2, l2=0.3, structure="directed", random_state=0).fit(X, rng.random(90) < 0.4)
    return model.calibrate(X, rng.random(90) < 0.4, "isotonic")


def relations():
    rng = np.random.default_rng(4)
    days = np.datetime64("2020-01-01") + np.arange(8).astype("timedelta64[D]")
    X = {"a": days[rng.integers(0, 8, 90)], "b": rng.integers(0, 6, 90), "how": rng.choice(["up", "down"], 90)}
    return dyads.LFLRelational(rank=2, l2=0.3, random_state=0, n_models=2).fit(X, rng.integers(0, 2, 90))


def plain():
    X, rng = _pairs(7)
    return dyads.LFLClassifier(rank=0, bias=False, solver="point").fit(X, rng.integers(0, 3, 120))


MODELS = {
    "plain": plain,
    "nominal": nominal,
    "features": features,
    "posterior": posterior,
    "links": links,
    "relations": relations,
}


def use(model):
    """Ask a model for everything, on its own ids; raises if an answer is not valid."""
    known = model.record_.known
    ids = {vocabulary.name: vocabulary.ids for vocabulary in known.vocabularies}
    n = 4
    X = {name: column.take(np.arange(n) % len(column)) for name, column in ids.items()}
    for column in () if known.dyad_encoder is None else known.dyad_encoder.columns:
        if column.categories is None:
            X[column.name] = np.linspace(-1, 1, n)
        else:
            X[column.name] = column.categories.take(np.arange(n) % len(column.categories))
    model.engine = dyads.CPU(threads=1)
    proba = model.predict_proba(X)
    valid = np.isfinite(proba).all() and (proba >= 0).all() and np.allclose(proba.sum(axis=1), 1, atol=1e-6)
    if not valid and model.unknown != "nan":
        raise ArithmeticError(f"probabilities {proba[0]}")
    if model.unknown != "nan":
        model.predict(X)
    if known.dyad_encoder is None:
        relation = {} if known.relations is None else {"relation": known.relations.ids[0].as_py()}
        by = model.classes_[0]
        value = np.asarray(model.recommend(known.rows.ids.ids.slice(0, 2), 2, by, **relation)["value"])
        if not (np.isfinite(value).all() and (value >= 0).all() and (value <= 1 + 1e-6).all()):
            raise ArithmeticError(f"recommended {value}")
        if known.walk is None:
            model.embed(known.rows.ids.ids.slice(0, 2), **relation)
    model.explain(X)
    _ = model.row_ids_, model.col_ids_, model.n_parameters_, model.parts_
    repr(model)


class ModelFile:
    """A saved model of some kind, mutated by one of the functions of `mutations`."""

    allowed = (ModelFileError,)

    def __init__(self, kind, mutate, folder):
        self.mutate, self.path = mutate, folder / f"{kind}.dyads"
        MODELS[kind]().save(self.path)
        self.content = self.path.read_bytes()

    def __call__(self, path):
        use(dyads.load(path))


class CheckpointFile:
    """A checkpoint of the Gibbs sampler, mutated likewise; resuming goes on for one sweep."""

    allowed = (ModelFileError, InputError)

    def __init__(self, mutate, folder):
        self.mutate, self.path = mutate, folder / "chains"
        self.X, rng = _pairs(5)
        self.y = rng.integers(1, 4, 120)
        self.fit(4, self.path)
        self.content = self.path.read_bytes()

    def fit(self, sweeps, path):
        settings = {"solver": dyads.Gibbs(sweeps=sweeps), "engine": dyads.CPU(threads=1), "random_state": 0}
        return dyads.LFLOrdinal(rank=2, **settings).fit(self.X, self.y, checkpoint=path)

    def __call__(self, path):
        proba = self.fit(5, path).predict_proba(self.X)
        if not (np.isfinite(proba).all() and np.allclose(proba.sum(axis=1), 1, atol=1e-6)):
            raise ArithmeticError(f"probabilities {proba[0]}")


class StoreFolder:
    """A store with weights, features of pairs and orders; a fit reads all of it."""

    allowed = (DyadsError,)
    mutate = staticmethod(mutations.store)

    def __init__(self, folder):
        X, rng = _pairs(8)
        table = {**X, "label": rng.integers(1, 4, 120), "often": rng.integers(1, 3, 120) / 2}
        table |= {"price": rng.normal(size=120), "device": rng.choice(["tv", "phone"], 120)}
        pq.write_table(pa.table(table), folder / "pairs.parquet")
        names = {"row": "user", "col": "item", "label": "label", "weight": "often", "features": ["price", "device"]}
        self.fit(dyads.scan(folder / "pairs.parquet", **names, to=folder / "pairs.store"))
        self.content = mutations.folder_packed(folder / "pairs.store")

    def fit(self, store):
        for solver in (dyads.SGD(1), dyads.LBFGS(1)):
            model = dyads.LFLClassifier(1, l2=1.0, solver=solver, random_state=0, engine=dyads.CPU(1)).fit(store)
            if not np.isfinite(model.record_.draws[0].theta).all():
                raise ArithmeticError("parameters that are not finite")

    def __call__(self, path):
        folder = path.with_name(f"{path.name}.store")
        mutations.folder_unpacked(path.read_bytes(), folder)
        try:
            self.fit(dyads.Store(folder))
        finally:
            shutil.rmtree(folder)


class TableFile:
    """A table of pairs, which the command predicts and fits; whatever is in it, the command ends with a sentence."""

    allowed = ()

    def __init__(self, folder, suffix=".csv"):
        from typer.testing import CliRunner

        from dyads.cli.app import app

        self.app, self.runner, self.mutate, self.path = app, CliRunner(), mutations.table, folder / f"table{suffix}"
        X, rng = _pairs(6)
        label = rng.integers(1, 4, 120)
        rows = zip(X["user"], X["item"], label, strict=True)
        self.content = "\n".join(["user,item,label", *(f"u{u},{i},{y}" for u, i, y in rows), ""]).encode()
        self.model = folder / "table.dyads"
        if suffix == ".parquet":
            pq.write_table(pa.table({**X, "label": label}), self.path)
            self.content, self.mutate = self.path.read_bytes(), mutations.raw
        elif suffix == ".arrow":
            with pa.ipc.new_file(self.path, pa.table({**X, "label": label}).schema) as writer:
                writer.write_table(pa.table({**X, "label": label}))
            self.content, self.mutate = self.path.read_bytes(), mutations.raw
        self.path.write_bytes(self.content)
        self._run("fit", self.path, "-o", self.model, "--force", *SIMPLE, needed=True)

    def _run(self, *arguments, needed=False):
        result = self.runner.invoke(self.app, [str(argument) for argument in arguments])
        said = result.output
        if result.exit_code not in (0, 1, 2) or "bug in dyads" in said or (needed and result.exit_code):
            raise ArithmeticError(f"{arguments[0]}: exit code {result.exit_code}, {said[-300:]!r} {result.exception!r}")

    def __call__(self, path):
        named = path.with_suffix(self.path.suffix)
        os.replace(path, named)
        self._run("predict", self.model, named, "-o", named.with_name("out.csv"), "--force")
        self._run("fit", named, "-o", named.with_name("m.dyads"), "--force", *SIMPLE)


# -------------------------------------------------------------------------------------------------------------- running


def run_case(target, case, path):
    """Run one case; returns what is wrong with it, or None."""
    rng = np.random.default_rng(case)
    path.write_bytes(target.mutate(target.content, rng))
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong = None
    try:
        target(path)
        outcome = "accepted"
    except target.allowed as error:
        outcome = "refused"
        # The message is one line, and names the file.
        if "\n" in str(error) or len(str(error)) > 800:
            wrong = f"message {str(error)[:200]!r}"
    except Exception as error:
        outcome = "failed"
        last = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})"
    seconds = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if wrong is None and (seconds > SECONDS or grown > MEGABYTES):
        wrong = f"{seconds:.1f} s and {grown:.0f} MB"
    return outcome, wrong


def run_batch(target, cases, folder, progress):
    """Run cases in this process, which is a fork; `progress` holds the current case. Returns the exit code."""
    warnings.simplefilter("ignore")
    path, lines, outcomes = folder / f"case-{os.getpid()}", [], Counter()
    for case in cases:
        struct.pack_into("<q", progress, 0, case)
        signal.alarm(3 * SECONDS)
        outcome, wrong = run_case(target, case, path)
        outcomes[outcome] += 1
        if wrong:
            lines.append(f"{case}\t{wrong}")
    signal.alarm(0)
    (folder / f"done-{os.getpid()}").write_text("\n".join([json.dumps(outcomes), *lines]))


def fuzz(target, first, n, folder, workers, deadline=None):
    """Run cases first..first+n-1 of a target in batches; returns (cases run, outcomes, failures)."""
    outcomes, failures, running, done = Counter(), [], {}, 0
    batches = [range(i, min(i + BATCH, first + n)) for i in range(first, first + n, BATCH)]
    while batches or running:
        while batches and len(running) < workers and (deadline is None or time.time() < deadline):
            cases, progress = batches.pop(0), mmap.mmap(-1, 8)
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    run_batch(target, cases, folder, progress)
                    code = 0
                finally:
                    os._exit(code)
            running[pid] = cases, progress
        if not running:
            break
        pid, status = os.wait()
        cases, progress = running.pop(pid)
        report = folder / f"done-{pid}"
        if status or not report.exists():
            (case,) = struct.unpack_from("<q", progress, 0)
            failures.append((case, f"the process ended with status {status}"))
            done += case - cases[0] + 1
            if case + 1 < cases[-1]:
                batches.insert(0, range(case + 1, cases[-1] + 1))
            continue
        summary, *lines = report.read_text().split("\n")
        outcomes.update(json.loads(summary))
        done += len(cases)
        failures += [(int(line.split("\t")[0]), line.split("\t", 1)[1]) for line in lines]
        report.unlink()
    return done, outcomes, failures


def targets(folder, kinds=tuple(MODELS), tables=True):
    """All targets by name, warm: each has been used once, unchanged."""
    made = {}
    for kind in kinds:
        made[f"{kind}, structural"] = ModelFile(kind, mutations.structural, folder)
        made[f"{kind}, raw"] = ModelFile(kind, mutations.raw, folder)
    made["checkpoint, structural"] = CheckpointFile(mutations.structural, folder)
    made["checkpoint, raw"] = CheckpointFile(mutations.raw, folder)
    made["store"] = StoreFolder(folder)
    if tables:
        made |= {f"table{suffix}": TableFile(folder, suffix) for suffix in (".csv", ".parquet", ".arrow")}
    for target in made.values():
        contents = [target.content]
        if isinstance(target, StoreFolder):
            dropped = (((), False), (("weight",), True), (("weight",), False))
            contents += [mutations.without(target.content, *parts) for parts in dropped]
        if isinstance(target, ModelFile):
            # A mutation may select kernels for another precision, or for one draw: these are compiled here.
            manifest, arrays = mutations.unpacked(target.content)
            for dtype in ("<f4", "<f8"):
                theta = {name: array.astype(dtype) for name, array in arrays.items() if name.endswith("theta")}
                contents += [mutations.packed(manifest | {"draws": n}, arrays | theta) for n in {1, manifest["draws"]}]
        for content in contents:
            path = folder / "unchanged"
            path.write_bytes(content)
            target(path)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--structural", type=int, default=100_000, help="structural mutations of model files")
    parser.add_argument("--raw", type=int, default=100_000, help="raw mutations of model files")
    parser.add_argument(
        "--others", type=int, default=2_000, help="mutations of checkpoints, stores and tables, each kind"
    )
    parser.add_argument("--seed", type=int, default=0, help="first case; cases of different seeds do not overlap")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    began, bad = time.time(), 0
    with tempfile.TemporaryDirectory() as name:
        made = targets(Path(name))
        print(f"{len(made)} targets, warm after {time.time() - began:.0f} s; seed {chosen.seed}", flush=True)
        sizes = {"structural": -(-chosen.structural // len(MODELS)), "raw": -(-chosen.raw // len(MODELS))}
        for title, target in made.items():
            if chosen.only not in title:
                continue
            n = sizes[title.split(", ")[1]] if isinstance(target, ModelFile) else chosen.others
            first, start = chosen.seed * 10**7, time.time()
            done, outcomes, failures = fuzz(target, first, n, Path(name), chosen.workers, began + 60 * chosen.minutes)
            bad += len(failures) + (done < n)
            print(
                f"{title}: {done:,} cases, {dict(outcomes)}, {len(failures)} failures, {time.time() - start:.0f} s",
                flush=True,
            )
            for reason, count in Counter(reason for _, reason in failures).most_common(20):
                example = next(case for case, other in failures if other == reason)
                print(f"    {count} times, case {example}: {reason}", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
