"""Memory and start-up of the core on real data: `make bench`. Accuracy is in ``experiments/``, speed in speed.py.

Each measurement runs in a process of its own and is printed and kept in ``benchmarks/results/``. What needs data that
are neither in the folder `DYADS_DATA` nor to be had from their publisher is skipped, and said so.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

from dyads import SGD
from dyads.errors import MissingDataError


def memory():
    """Bytes per dyad that a fit by SGD adds at its peak: the slope between ML-1M repeated 8 and 24 times."""
    peaks = {}
    for times in (8, 24):
        peaks[times] = run_apart(__file__, "peak_of_a_fit", str(times))["bytes"]
    per_dyad = (peaks[24] - peaks[8]) / (16 * 1_000_209)
    return {"bytes per dyad": round(per_dyad, 1), "at most": 40}


def peak_of_a_fit(times):
    from dyads import LFLClassifier
    from dyads.datasets.published import movielens_1m

    data = movielens_1m()
    X, y = {name: np.tile(column, int(times)) for name, column in data.X.items()}, np.tile(data.y, int(times))
    parameters = {"rank": 5, "solver": SGD(max_iter=1), "random_state": 0}
    LFLClassifier(**parameters).fit({name: column[:200_000] for name, column in X.items()}, y[:200_000])
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    LFLClassifier(**parameters).fit(X, y)
    return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before}


def start_up():
    """A second process: seconds of `import dyads`, and from there to the first iteration without other imports.

    The penalty is given: to choose one takes fits of its own, whose iterations are not reported.
    """
    code = """
import json, sys, time
began = time.perf_counter(); import dyads; imported = time.perf_counter() - began
import joblib, narwhals.stable.v2, numba, numba.core.caching, numba.extending, pyarrow.compute, safetensors.numpy
# Numba imports these when it first loads a kernel.
import numba.np.npyimpl, numba.np.polynomial.polynomial_functions, numba.np.random.legacy, numba.typed.typedset
import numba.typed.typedlist, numba.typed.dictimpl, numba.cpython.randomimpl, numba.experimental.jitclass.base
import scipy.optimize, scipy.special, sklearn.base, sklearn.metrics, sklearn.utils.validation, threadpoolctl
import sklearn.linear_model
import numpy as np
rng = np.random.default_rng(0)
X, y = rng.integers(0, 100, (5000, 2)), rng.integers(0, 5, 5000)
first, began = [], time.perf_counter()
note = lambda progress: first.append(time.perf_counter() - began)
solver = {"lbfgs": dyads.LBFGS, "sgd": dyads.SGD}[sys.argv[1]](max_iter=2)
dyads.LFLClassifier(solver=solver, l2=6.0).fit(X, y, callback=note)
print(json.dumps({"import dyads": round(imported, 3), sys.argv[1] + ", first iteration": round(first[0], 3)}))
"""
    found = {}
    # The first process writes bytecode, which an installation has already.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for solver in ("lbfgs", "sgd"):
        command = [sys.executable, "-W", "ignore", "-c", code, solver]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found |= json.loads(done.stdout)
    return found | {"import at most": 0.4, "first iteration at most": 0.3}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def run_apart(script, name, *arguments):
    """Run one function of a benchmark script in a process of its own."""
    command = [sys.executable, "-W", "ignore", script, name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        kind, _, reason = done.stderr.strip().splitlines()[-1].partition(": ")
        raise MissingDataError(reason) if kind.endswith("MissingDataError") else RuntimeError(done.stderr)
    return json.loads(done.stdout)


def main(measurements, script):
    """Run all measurements of a script, keep and return their results; or print the one named on the command line."""
    if len(sys.argv) > 1:
        warnings.simplefilter("ignore")
        print(json.dumps(measurements[sys.argv[1]](*sys.argv[2:])))
        return None
    import numba
    import scipy

    versions = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
    results = {"versions": versions | {"scipy": scipy.__version__}, "cores": os.cpu_count()}
    path = Path(script).parent / "results" / f"{Path(script).stem}.json"
    path.parent.mkdir(exist_ok=True)
    for name, function in measurements.items():
        try:
            found = run_apart(script, name)
        except MissingDataError as error:
            print(f"{name}: skipped, {error}")
            continue
        results[name] = {"what": function.__doc__, **found}
        print(json.dumps({name: results[name]}, indent=1), flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    own = (memory, start_up)
    main({f.__name__: f for f in own} | ({"peak_of_a_fit": peak_of_a_fit} if len(sys.argv) > 1 else {}), __file__)
