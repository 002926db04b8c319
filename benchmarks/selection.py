"""Calibration and sets of labels on real data: `make bench`. See core.py for how it works."""

import time

import numpy as np
from core import data_folder, main, read_ml_1m, rounded

from dyads import LFLOrdinal, metrics


def judged(model, X, y):
    proba = model.predict_proba(X)
    return {
        "log-loss": metrics.log_loss(y, proba, model.classes_),
        "class-wise ECE": metrics.classwise_ece(y, proba, model.classes_),
    }


def calibration():
    """ML-1M, random 90/10, defaults: the log loss, and the absolute loss calibrated on a tenth of the training data."""
    X, y = read_ml_1m()
    X, y = np.column_stack([X["user"], X["item"]]), y.to_numpy()
    part = np.random.default_rng(0).random(len(y))
    train, held, test = part < 0.81, (part >= 0.81) & (part < 0.9), part >= 0.9
    known = train | held
    marginal = np.bincount(y[known], minlength=6)[1:] / known.sum()
    found = {"log-loss of the marginals": -np.log(marginal)[y[test] - 1].mean()}
    began = time.perf_counter()
    found["log"] = judged(LFLOrdinal(random_state=0).fit(X[known], y[known]), X[test], y[test])
    found["log"]["seconds of the fit"] = time.perf_counter() - began
    model = LFLOrdinal(loss="absolute", random_state=0).fit(X[train], y[train])
    found["absolute"] = judged(model, X[test], y[test])
    for method in ("logistic", "vector", "isotonic", "temperature"):
        found[f"absolute, {method}"] = judged(model.calibrate(X[held], y[held], method), X[test], y[test])
    found["log-loss of absolute, logistic, above log"] = (
        found["absolute, logistic"]["log-loss"] / found["log"]["log-loss"] - 1
    )
    return rounded(found) | {
        "asked": "ECE at most 0.01, log-loss 10% below the marginals'; calibrated: within 5%, ECE 0.02"
    }


def conformal():
    """ML-100K, five random splits, 70% to train, 10% to conformalize, 20% to test, defaults: coverage at 0.9."""
    ratings = np.loadtxt(data_folder("ml-100k") / "u.data", dtype=np.int64)
    X, y = ratings[:, :2], ratings[:, 2]
    runs = []
    for seed in range(5):
        part = np.random.default_rng(seed).random(len(y))
        train, held, test = part < 0.7, (part >= 0.7) & (part < 0.8), part >= 0.8
        model = LFLOrdinal(random_state=seed).fit(X[train], y[train]).conformalize(X[held], y[held])
        sets = model.predict_set(X[test], coverage=0.9)
        order = np.argsort(-np.bincount(y[train], minlength=6)[1:])
        covered = np.cumsum(np.bincount(y[held], minlength=6)[1:][order]) / held.sum()
        runs.append(
            {
                "coverage": sets[np.arange(test.sum()), y[test] - 1].mean(),
                "size": sets.sum(axis=1).mean(),
                "size of the marginals'": int(np.argmax(covered >= 0.9)) + 1,
            }
        )
    return {"runs": [rounded(run) for run in runs], "asked": "coverage between 0.885 and 0.915 on each"}


if __name__ == "__main__":
    main({f.__name__: f for f in (calibration, conformal)}, __file__)
