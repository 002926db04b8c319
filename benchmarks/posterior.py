"""The posterior, `solver="gibbs"`, on real and synthetic data: `make bench-posterior`. See core.py for how it works.

Everything is a default but the rank, which is said: there is no penalty to choose. accuracy.py has rivals.
"""

import time
import warnings

import numpy as np
import pandas as pd
from core import data_folder, main, read_ml_1m, rounded
from scipy.linalg import solve_triangular
from side import IDS, movielens
from structures import choose, hold_out

from dyads import LFLClassifier, LFLLink, LFLOrdinal, metrics
from dyads.engine import posterior
from dyads.errors import NotConvergedWarning, UnknownIdWarning
from dyads.model import prior

STARS = np.arange(1, 6)


def judged(proba, y):
    """Log-loss, mean absolute error of the median label, root mean square error of the mean."""
    median = STARS[np.argmax(proba.cumsum(axis=1) >= 0.5, axis=1)]
    return {
        "log-loss": metrics.log_loss(y, proba, STARS),
        "MAE": float(np.abs(median - y).mean()),
        "RMSE": float(np.sqrt(((proba @ STARS - y) ** 2).mean())),
    }


def mixing(model):
    found = model.diagnostics_
    return {
        "burn-in": found["burn_in"],
        "R-hat of nine tenths below": float(np.quantile(found["r_hat"], 0.9)),
        "effective samples, median": float(np.median(found["effective_samples"])),
        "acceptance": found["acceptance"],
        "draws": len(model.fitted_.every),
    }


def read_split(name):
    folder = data_folder("ml-100k")
    return (
        pd.read_csv(folder / f"{name}.{part}", sep="\t", names=[*IDS, "rating", "time"]) for part in ("base", "test")
    )


def fitted_to(split, **choices):
    """A model of one split of ML-100K, its figures on the test part, and how long the fit took."""
    train, test = read_split(split)
    began = time.perf_counter()
    model = LFLOrdinal(random_state=0, **choices).fit(train[IDS], train["rating"])
    seconds = time.perf_counter() - began
    return model, judged(model.predict_proba(test[IDS]), test["rating"].to_numpy()) | {"seconds": seconds}


def movies():
    """ML-100K, ids only: u3 by itself, and means over u1 to u5, rank 16; see accuracy.py for rivals."""
    found = {"posterior": {}, "point estimate": {}}
    for split in ("u1", "u2", "u3", "u4", "u5"):
        model, figures = fitted_to(split, rank=16, solver="gibbs")
        found["posterior"][split] = figures | (mixing(model) if split == "u3" else {})
        found["point estimate"][split] = fitted_to(split)[1]
    for each in found.values():
        keys = ("log-loss", "MAE", "RMSE", "seconds")
        each["mean"] = {key: float(np.mean([each[f"u{i}"][key] for i in range(1, 6)])) for key in keys}
    return rounded(found) | {"u3 at most": {"log-loss": 1.19, "MAE": 0.65, "RMSE": 0.89, "seconds": 60}}


def features():
    """ML-100K u1, rank 10, with features of users and movies and the sets of those seen together, in all columns."""
    _, users, films = movielens()
    side = {"row_features": users, "col_features": films, "interactions": 10, "implicit": True}
    model, figures = fitted_to("u1", rank=10, solver="gibbs", **side)
    return rounded(figures | mixing(model)) | {"aim": {"RMSE": 0.8808, "MAE": 0.6921}}


def ranks():
    """ML-100K u3, ids only, rank 5 to 40: too large a rank does little harm."""
    found = {rank: fitted_to("u3", rank=rank, solver="gibbs")[1] for rank in (5, 10, 20, 40)}
    losses = [figures["log-loss"] for figures in found.values()]
    return rounded(found) | {"rise from best to largest": round(losses[-1] - min(losses), 4), "at most": 0.01}


def alyawarra():
    """Alyawarra kinship, 26 labels, rank 10, 80/20 random cells, 5 splits, beside the point estimate.

    The point estimate's l2 is chosen on training cells; the posterior starts with the same.
    """
    from scipy.io import loadmat

    row, col, y = np.nonzero(loadmat(data_folder("alyawarra") / "alyawarradata.mat")["Rs"])
    X = np.column_stack([row, col])
    found = {"posterior": [], "point estimate": []}
    for seed in range(5):
        held = hold_out(len(y), 0.2, seed)
        make = lambda l2, s=seed: LFLClassifier(rank=10, solver="lbfgs", l2=l2, random_state=s)  # noqa: E731
        l2 = choose(make, (0.3, 1.0, 3.0), X[~held], y[~held], seed=seed)
        for name, model in (
            ("posterior", LFLClassifier(rank=10, solver="gibbs", l2=l2, random_state=seed)),
            ("point estimate", make(l2)),
        ):
            began = time.perf_counter()
            model.fit(X[~held], y[~held])
            seconds, proba = time.perf_counter() - began, model.predict_proba(X[held])
            classes = model.classes_
            found[name].append(
                {
                    "AUC": metrics.auc(y[held], proba, classes),
                    "log-loss": metrics.log_loss(y[held], proba, classes),
                    "accuracy": metrics.accuracy(y[held], classes[proba.argmax(axis=1)]),
                    "seconds": seconds,
                    **(mixing(model) if name == "posterior" else {}),
                }
            )
    keys = ("AUC", "log-loss", "accuracy")
    means = {
        f"{name}, mean": {key: float(np.mean([one[key] for one in each])) for key in keys}
        for name, each in found.items()
    }
    return rounded(found | means) | {"AUC at least": 0.955}


def ml_1m():
    """ML-1M, random 90/10, rank 10, 150 sweeps, beside the point estimate with l2 chosen on training dyads."""
    X, y = read_ml_1m()
    X, y = np.column_stack([X["user"], X["item"]]), y.to_numpy()
    held = hold_out(len(y), 0.1, 0)
    point = lambda l2: LFLOrdinal(rank=10, l2=l2, random_state=0)  # noqa: E731
    fitness = lambda model, X, y: -metrics.log_loss(y, model.predict_proba(X), STARS)  # noqa: E731
    l2 = choose(point, (3.0, 6.0, 12.0, 24.0), X[~held], y[~held], figure=fitness)
    model = LFLOrdinal(rank=10, solver="gibbs", max_iter=150, random_state=0).fit(X[~held], y[~held])
    seconds = np.diff(model.trace_["seconds"])
    return rounded(
        {
            "seconds a sweep": float(np.median(seconds)),
            "posterior": judged(model.predict_proba(X[held]), y[held]) | mixing(model),
            "point estimate": judged(point(l2).fit(X[~held], y[~held]).predict_proba(X[held]), y[held]) | {"l2": l2},
        }
    ) | {"seconds a sweep at most": 2.5, "published RMSE": {"GC-MC": 0.832, "GLocal-K": 0.8227}}


def coverage():
    """Data drawn from the model's own prior: how often 90% intervals of probabilities of unseen pairs cover them.

    60 rows, 50 columns, 3 labels, rank 2, 30% of the pairs seen; 40 data sets in which each label has a twentieth or
    more of the labels seen, which is a choice by what is seen and so leaves the posterior what it is. The prior of
    blocks is drawn from its own, heavy-tailed prior too, so that most probabilities are next to 0 or 1, and modes many:
    1000 sweeps of one chain and of four. And blocks that are all standard normal, which that prior thinks unlikely.
    """
    return {
        "drawn prior, four chains": covered(from_prior, posterior.BIAS_SPREAD, 4),
        "drawn prior, one chain": covered(from_prior, posterior.BIAS_SPREAD, 1),
        "standard normal blocks, one chain": covered(lambda n, size, rng: rng.standard_normal((n, size)), 1.0, 1),
        "between": [0.88, 0.92],
    }


def covered(blocks_of, bias_spread, n_chains):
    rng = np.random.default_rng(0)
    found = {name: [] for name in ("all", "0.02 to 0.98", "below 0.02", "above 0.98")}
    row, col = (each.ravel() for each in np.indices((60, 50)))
    X = np.column_stack([row, col])
    while len(found["all"]) < 40:
        a, b = blocks_of(60, 9, rng)[row], blocks_of(50, 9, rng)[col]
        bias = rng.normal(scale=bias_spread, size=3)
        scores = bias + a[:, :3] + b[:, :3] + (a[:, 3:] * b[:, 3:]).reshape(-1, 3, 2).sum(axis=2)
        proba = np.exp(scores - scores.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        y = (proba.cumsum(axis=1) < rng.random(len(X))[:, None]).sum(axis=1).clip(max=2)
        seen = rng.random(len(X)) < 0.3
        if np.bincount(y[seen], minlength=3).min() < 0.05 * seen.sum():
            continue
        seed = len(found["all"])
        model = LFLClassifier(rank=2, solver="gibbs", max_iter=1000, n_chains=n_chains, random_state=seed, n_jobs=1)
        low, high = np.moveaxis(model.fit(X[seen], y[seen]).predict_interval(X[~seen], 0.9), -1, 0)
        truth = proba[~seen]
        inside = (low <= truth) & (truth <= high)
        middle = (truth >= 0.02) & (truth <= 0.98)
        for name, part in (
            ("all", truth >= 0),
            ("0.02 to 0.98", middle),
            ("below 0.02", truth < 0.02),
            ("above 0.98", truth > 0.98),
        ):
            if part.any():
                found[name].append(float(inside[part].mean()))
    error = float(np.std(found["all"]) / np.sqrt(len(found["all"])))
    means = {name: float(np.mean(each)) for name, each in found.items() if each}
    return rounded({"coverage": means, "standard error of all": error, "of data sets": found["all"]})


def from_prior(n, size, rng):
    """Own blocks of n entities, drawn from their prior and that from its own."""
    scale = 2 * prior.FREEDOM * rng.gamma(0.5, prior.SPREAD**2, size)
    root = prior.wishart_root(size + prior.FREEDOM - 1, np.diag(scale), rng)
    mean = solve_triangular(root, rng.standard_normal(size), trans="T") / np.sqrt(prior.MEAN_COUNT)
    return mean + solve_triangular(root, rng.standard_normal((n, size)).T, trans="T").T


def co_authors():
    """NIPS co-authors, symmetric, rank 10, held-out unordered pairs, 5 splits: the posterior beside the point estimate.

    And ranked by the mean of log-odds over draws, not of probabilities: of authors with few links they are spread
    widely, and the mean of such probabilities is that of their upper tail.
    """
    edges = np.loadtxt(data_folder("nips234") / "NIPS234.txt", dtype=int)[:, :2] - 1
    linked = np.zeros((234, 234), int)
    linked[tuple(edges.T)] = linked[tuple(edges.T[::-1])] = 1
    X = np.column_stack(np.triu_indices(234, 1))
    y = linked[tuple(X.T)]
    found = {}
    for seed in range(5):
        held = hold_out(len(y), 0.2, seed)
        for name, choices in (
            ("point estimate, l2 1", {}),
            ("posterior, 200 sweeps", {"solver": "gibbs"}),
            ("posterior, 1000 sweeps", {"solver": "gibbs", "max_iter": 1000}),
        ):
            model = LFLLink(rank=10, l2=1.0, random_state=seed, **choices).fit(X[~held], y[~held])
            proba = model.predict_proba(X[held])
            figures = {"AUC": metrics.auc(y[held], proba, [0, 1]), "log-loss": metrics.log_loss(y[held], proba, [0, 1])}
            if choices:
                odds = log_odds(model.sample_proba(X[held])[:, :, 1]).mean(axis=0)
                # Any rising function of them ranks alike.
                ranked = (1 + np.tanh(odds / 20)) / 2
                figures["AUC of the mean log-odds"] = metrics.auc(
                    y[held], np.column_stack([1 - ranked, ranked]), [0, 1]
                )
            found.setdefault(name, []).append(figures)
    return rounded({name: pd.DataFrame(each).mean().to_dict() | {"splits": each} for name, each in found.items()})


def log_odds(proba):
    return np.log(proba) - np.log1p(-np.minimum(proba, 1 - 1e-15))


if __name__ == "__main__":
    warnings.simplefilter("ignore", UnknownIdWarning)
    warnings.simplefilter("ignore", NotConvergedWarning)
    main({f.__name__: f for f in (movies, features, ranks, alyawarra, ml_1m, coverage, co_authors)}, __file__)
