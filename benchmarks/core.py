"""Speed, memory, start-up and accuracy of the core on real data: `make bench`.

Each measurement runs in a process of its own and is printed and kept in ``benchmarks/results/``. Real data
are read from the folder `DYADS_DATA`; what is not there is skipped, and said so.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np


def read_ml_1m():
    import pyarrow.csv

    table = pyarrow.csv.read_csv(data_folder("ml-1m") / "ratings.csv")
    return table.select(["user", "item"]), table["rating"]


def read_un_votes():
    import pyarrow.csv

    table = pyarrow.csv.read_csv(data_folder("un-votes") / "un_votes.csv.gz")
    return table.select(["country", "rcid"]), table["vote"]


def data_folder(name):
    folder = Path(os.environ.get("DYADS_DATA") or ".") / name
    if not folder.is_dir():
        raise FileNotFoundError(f"set DYADS_DATA to a folder that holds {name}/")
    return folder


def sgd_speed():
    """ML-1M, rank 5, five labels, SGD on one core: seconds per million dyads and epoch, median of 8 epochs."""
    from dyads import LFLClassifier

    X, y = read_ml_1m()
    seconds = {}
    for n_jobs in (1, 2):
        model = LFLClassifier(rank=5, solver="sgd", max_iter=10, tol=0.0, n_jobs=n_jobs, random_state=0).fit(X, y)
        epochs = np.diff(model.trace_["seconds"])[1:] / (len(y) / 1e6)
        seconds[n_jobs] = float(statistics.median(epochs))
    return {"one core": round(seconds[1], 3), "two threads": round(seconds[2], 3), "at most": 0.25}


def memory():
    """Bytes per dyad that a fit by SGD adds at its peak: the slope between ML-1M repeated 8 and 24 times."""
    peaks = {}
    for times in (8, 24):
        peaks[times] = run_apart(__file__, "peak_of_a_fit", str(times))["bytes"]
    per_dyad = (peaks[24] - peaks[8]) / (16 * 1_000_209)
    return {"bytes per dyad": round(per_dyad, 1), "at most": 40}


def peak_of_a_fit(times):
    import pyarrow as pa

    from dyads import LFLClassifier

    X, y = read_ml_1m()
    X, y = pa.concat_tables([X] * int(times)).combine_chunks(), pa.chunked_array(y.chunks * int(times)).combine_chunks()
    parameters = {"rank": 5, "solver": "sgd", "max_iter": 1, "random_state": 0}
    LFLClassifier(**parameters).fit(X.slice(0, 200_000), y.slice(0, 200_000))
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    LFLClassifier(**parameters).fit(X, y)
    return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before}


def start_up():
    """A second process: seconds of `import dyads`, and from there to the first iteration without other imports."""
    code = """
import json, sys, time
began = time.perf_counter(); import dyads; imported = time.perf_counter() - began
import joblib, narwhals.stable.v2, numba, numba.core.caching, numba.extending, pyarrow.compute, safetensors.numpy
import scipy.optimize, scipy.special, sklearn.base, sklearn.metrics, sklearn.utils.validation, threadpoolctl
import numpy as np
rng = np.random.default_rng(0)
X, y = rng.integers(0, 100, (5000, 2)), rng.integers(0, 5, 5000)
first, began = [], time.perf_counter()
note = lambda progress: first.append(time.perf_counter() - began)
dyads.LFLClassifier(solver=sys.argv[1], max_iter=2).fit(X, y, callback=note)
print(json.dumps({"import dyads": round(imported, 3), sys.argv[1] + ", first iteration": round(first[0], 3)}))
"""
    found = {}
    for solver in ("lbfgs", "sgd"):
        command = [sys.executable, "-W", "ignore", "-c", code, solver]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        found |= json.loads(done.stdout)
    return found | {"import at most": 0.4, "first iteration at most": 0.5}


def synthetic():
    """The paper's section 5.1: n = 500, k = 5, 80% kept: 0-1 error on held-out cells, excess over the Bayes error."""
    from sklearn.model_selection import GridSearchCV, KFold

    from dyads import LFLClassifier
    from dyads.datasets.synthetic import make_nominal

    found = []
    for seed in range(5):
        train, test = make_nominal(n=500, rank=5, width=3.0, random_state=seed).split(0.8, seed)
        X, X_test = (np.column_stack(list(part.X.values())) for part in (train, test))
        began = time.perf_counter()
        default = LFLClassifier(rank=5, random_state=seed).fit(X, train.y)
        fitted = time.perf_counter()
        model, folds = LFLClassifier(rank=5, random_state=seed), KFold(3, shuffle=True, random_state=seed)
        search = GridSearchCV(model, {"l2": [0.1, 0.3, 1.0, 3.0]}, cv=folds, scoring="neg_log_loss").fit(X, train.y)
        searched = time.perf_counter()
        bayes = float(np.mean(test.y != test.classes[test.proba.argmax(axis=1)]))
        found.append(
            {
                "seed": seed,
                "bayes error": round(test.bayes_error, 4),
                "error of the true model": round(bayes, 4),
                "excess, defaults": round(1 - default.score(X_test, test.y) - test.bayes_error, 4),
                "seconds, defaults": round(fitted - began, 2),
                "l2 by 3-fold cross-validation": search.best_params_["l2"],
                "excess, l2 chosen": round(1 - search.best_estimator_.score(X_test, test.y) - test.bayes_error, 4),
                "seconds, search and fit": round(searched - fitted, 2),
                "seconds, last fit": round(search.refit_time_, 2),
            }
        )
    return {"runs": found, "excess at most": 0.025, "seconds at most": 20}


def un_votes():
    """UN votes, country x roll call -> yes, abstain or no; random 80/20, rank 5, constructor defaults."""
    from dyads import LFLClassifier, metrics

    X, y = read_un_votes()
    y = np.array(y.to_pylist())
    found = []
    for seed in range(3):
        held = np.random.default_rng(seed).random(len(y)) < 0.2
        train, test = X.filter(~held), X.filter(held)
        row = {"seed": seed}
        classes, counts = np.unique(y[~held], return_counts=True)
        marginal = np.tile(counts / counts.sum(), (held.sum(), 1))
        row["log-loss of the marginals"] = metrics.log_loss(y[held], marginal, classes)
        for rank in (0, 5):
            began = time.perf_counter()
            model = LFLClassifier(rank=rank, random_state=seed).fit(train, y[~held])
            seconds = time.perf_counter() - began
            p = model.predict_proba(test)
            row[f"rank {rank}"] = {
                "log-loss": metrics.log_loss(y[held], p, classes),
                "accuracy": metrics.accuracy(y[held], classes[p.argmax(axis=1)]),
                "class-wise ECE": metrics.classwise_ece(y[held], p, classes),
                "seconds": seconds,
                "epochs": model.n_iter_,
            }
        found.append(rounded(row))
    return {"runs": found}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def run_apart(script, name, *arguments):
    """Run one function of a benchmark script in a process of its own."""
    command = [sys.executable, "-W", "ignore", script, name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        kind, _, reason = done.stderr.strip().splitlines()[-1].partition(": ")
        raise FileNotFoundError(reason) if kind == "FileNotFoundError" else RuntimeError(done.stderr)
    return json.loads(done.stdout)


def main(measurements, script):
    """Run all measurements of a script and keep their results, or the one named on the command line."""
    if len(sys.argv) > 1:
        warnings.simplefilter("ignore")
        print(json.dumps(measurements[sys.argv[1]](*sys.argv[2:])))
        return
    import numba
    import scipy

    versions = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
    results = {"versions": versions | {"scipy": scipy.__version__}, "cores": os.cpu_count()}
    for name, function in measurements.items():
        try:
            found = run_apart(script, name)
        except FileNotFoundError as error:
            print(f"{name}: skipped, {error}")
            continue
        results[name] = {"what": function.__doc__, **found}
        print(json.dumps({name: results[name]}, indent=1), flush=True)
    path = Path(script).parent / "results" / f"{Path(script).stem}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    own = (sgd_speed, memory, start_up, synthetic, un_votes)
    main({f.__name__: f for f in own} | ({"peak_of_a_fit": peak_of_a_fit} if len(sys.argv) > 1 else {}), __file__)
