"""Accuracy beside other libraries on the same splits: `make rivals accuracy`. See core.py for how it works.

Every split is written to a file, which rivals read in environments of their own; what they predict is read back and
judged here by the same functions. Ours have constructor defaults but for what their names say. implicit and LightFM
rank items by one kind of event and predict no labels, so they have no line here.
"""

import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from core import main, rounded

from dyads import Features, LFLClassifier, LFLOrdinal, SideInformation, metrics
from dyads.datasets import published
from dyads.paper.tasks import TASKS

HERE = Path(__file__).parent


def rivals(splits, script, environment=".rivals", options=()):
    """What a rival's script predicts for the splits: {name of the split: {method: its arrays}}."""
    python = HERE / environment / "bin" / "python"
    if not python.exists():
        return {}
    found = {name: {} for name in splits}
    with tempfile.TemporaryDirectory() as folder:
        for name, (train, test) in splits.items():
            parts = {"train": train, "test": test}
            arrays = {f"{part}_{key}": column for part, data in parts.items() for key, column in data.items()}
            np.savez(Path(folder) / f"{name}.split.npz", **arrays)
        command = [python, HERE / "rivals" / script, folder, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        for path in sorted(Path(folder).glob("*.npz")):
            name, method = path.name.removesuffix(".npz").split(".", 1)
            if method != "split":
                found[name][method] = dict(np.load(path))
    return found


def stars(y, mean=None, proba=None, classes=None, seconds=0.0):
    """RMSE and MAE of the mean, MAE of the label (the median, or the rounded mean), log-loss."""
    mean = proba @ classes if mean is None else mean
    label = np.rint(mean) if proba is None else classes[np.argmax(proba.cumsum(axis=1) >= 0.5, axis=1)]
    return {
        "RMSE": float(np.sqrt(((mean - y) ** 2).mean())),
        "MAE of the mean": float(np.abs(mean - y).mean()),
        "MAE of the label": float(np.abs(label - y).mean()),
        **({} if proba is None else {"log-loss": metrics.log_loss(y, proba, classes)}),
        "seconds": float(seconds),
    }


def sampling(model):
    """How a model that was sampled has mixed, and how long a sweep took."""
    if getattr(model, "diagnostics_", None) is None:
        return {}
    found = model.diagnostics_
    return {
        "R-hat of nine tenths below": float(np.quantile(found["r_hat"], 0.9)),
        "effective samples, median": float(np.median(found["effective_samples"])),
        "burn-in": found["burn_in"],
        "seconds a sweep": float(np.median(np.diff(model.trace_["seconds"]))),
    }


def with_means(figures):
    """Figures {split: {method: {figure: value}}}, and before them their means over splits."""
    methods = dict.fromkeys(method for each in figures.values() for method in each)
    means = {}
    for method in methods:
        rows = [each[method] for each in figures.values()]
        means[method] = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return rounded({"mean": means, **figures} if len(figures) > 1 else means)


def rated(splits, ours, scripts):
    """Figures of our models and of rivals on splits of ratings."""
    figures = {name: {} for name in splits}
    for name, (train, test) in splits.items():
        for method, make in ours.items():
            began = time.perf_counter()
            model = make().fit({key: train[key] for key in ("row", "col")}, train["y"])
            seconds = time.perf_counter() - began
            proba = model.predict_proba({key: test[key] for key in ("row", "col")})
            judged = stars(test["y"], proba=proba, classes=model.classes_, seconds=seconds)
            figures[name][method] = judged | sampling(model)
    for script, options in scripts.items():
        for name, methods in rivals(splits, script, options=options).items():
            figures[name] |= {method: stars(splits[name][1]["y"], **arrays) for method, arrays in methods.items()}
    return with_means(figures)


def columns(data):
    return {"row": data.X["user"], "col": data.X["item"], "y": data.y}


def ml_100k():
    """ML-100K, u1 to u5 and their means."""
    whole = published.movielens_100k()
    side = {
        name: Features({key: table[first] for key, first in zip((kind, *list(table)[1:]), table, strict=True)})
        for name, kind, table in (
            ("row", "row", whole.row_features),
            ("col", "col", whole.col_features),
        )
    }
    both = SideInformation(**side, interactions=10, implicit=True)
    splits = {f"u{i}": tuple(columns(part) for part in published.movielens_100k(f"u{i}")) for i in range(1, 6)}
    ours = {
        "dyads LFLOrdinal": lambda: LFLOrdinal(random_state=0),
        "dyads LFLOrdinal, point": lambda: LFLOrdinal(random_state=0, solver="point"),
        "dyads LFLOrdinal, features and implicit": lambda: LFLOrdinal(features=both, random_state=0),
    }
    return rated(splits, ours, {"svd.py": ["all"], "ordered_probit.py": [], "bayesian_factors.py": []})


def ml_1m():
    """ML-1M, one random 90/10 split. Published RMSE: GC-MC 0.832, GLocal-K 0.8227."""
    data = columns(published.movielens_1m())
    held = np.random.default_rng(0).random(len(data["y"])) < 0.1
    split = tuple({name: column[which] for name, column in data.items()} for which in (~held, held))
    ours = {
        "dyads LFLOrdinal": lambda: LFLOrdinal(random_state=0),
        "dyads LFLOrdinal, point": lambda: LFLOrdinal(random_state=0, solver="point"),
    }
    return rated({"90": split}, ours, {"svd.py": [], "ordered_probit.py": [], "bayesian_factors.py": []})


def kinship():
    """Alyawarra, the splits of Table 5 and their means: macro AUC of the 26 terms; Table 5 has the posterior too."""
    splits, figures = {}, {}
    for seed in range(5):
        task = TASKS["kinship"](seed, 1.0)
        splits[str(seed)] = tuple(
            dict(zip(("row", "col", "y"), (*X.values(), y), strict=True))
            for X, y in ((task.X, task.y), (task.X_test, task.y_test))
        )
        began = time.perf_counter()
        model = LFLClassifier(random_state=seed).fit(task.X, task.y)
        seconds, scores = time.perf_counter() - began, model.predict_proba(task.X_test)
        judged = ranked(task.y_test, scores, model.classes_, seconds)
        figures[str(seed)] = {"dyads LFLClassifier": judged}
    for name, methods in rivals(splits, "kinship.py", ".rivals-graphs").items():
        figures[name] |= {method: ranked(splits[name][1]["y"], **arrays) for method, arrays in methods.items()}
    return with_means(figures)


def ranked(y, scores, classes, seconds):
    accuracy = metrics.accuracy(y, classes[scores.argmax(axis=1)])
    return {"AUC": metrics.auc(y, scores, classes), "accuracy": accuracy, "seconds": float(seconds)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main({f.__name__: f for f in (ml_100k, ml_1m, kinship)}, __file__)
