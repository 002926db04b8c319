"""The speed of this checkout beside that of another: `python benchmarks/commits.py PATH_OF_THE_OTHER [RUNS]`.

Each run is a process of its own, first the other's, then this one's, so that a noisy machine is noisy for both. Printed
are the medians over runs, in seconds, and their ratio.
"""

import statistics
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def solver_settings(name, **settings):
    """Parameters for a solver; before settings were objects, they were parameters of the estimator."""
    import dyads

    if name in dir(dyads):
        return {"solver": getattr(dyads, name)(**settings)}
    if "sweeps" in settings:
        settings["max_iter"] = settings.pop("sweeps")
    return {"solver": name.lower(), **settings}


def loader(name):
    """A loader of published data; before there were rooms, ratings had a module of their own."""
    try:
        return getattr(import_module("dyads.datasets.published"), name)
    except ImportError:
        return getattr(import_module("dyads.datasets.ratings"), name)


def sgd():
    """ML-1M, rank 5: an epoch of SGD."""
    from dyads import LFLOrdinal

    data = loader("movielens_1m")()
    return LFLOrdinal(rank=5, random_state=0, **solver_settings("SGD", max_iter=6, tol=0.0)).fit(data.X, data.y)


def sweep():
    """ML-100K, rank 16: a sweep of the sampler."""
    from dyads import LFLOrdinal

    data = loader("movielens_100k")()
    return LFLOrdinal(rank=16, random_state=0, **solver_settings("Gibbs", sweeps=12)).fit(data.X, data.y)


def one_run(name):
    """The median seconds of an iteration."""
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = {"sgd": sgd, "sweep": sweep}[name]()
    return float(np.median(np.diff(model.trace_["seconds"])))


def main(other, runs):
    for name in ("sgd", "sweep"):
        times = {Path(other).resolve(): [], HERE: []}
        for _ in range(runs):
            for checkout, seconds in times.items():
                command = [sys.executable, __file__, "--run", name, str(checkout)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds.append(float(done.stdout))
        before, after = (statistics.median(seconds) for seconds in times.values())
        print(f"{name}: {before:.4f} s before, {after:.4f} s after, ratio {after / before:.3f} (median of {runs})")


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        sys.path.insert(0, str(Path(sys.argv[3]) / "src"))
        print(one_run(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7)
