"""Calibration and sets of labels on real data: `make bench`. See core.py for how it works."""

import time

import numpy as np
from core import main, rounded

from dyads import (
    Features,
    LFLClassifier,
    LFLClassifierCV,
    LFLOrdinal,
    LFLOrdinalCV,
    SideInformation,
    metrics,
    propensity,
)
from dyads.datasets import published
from dyads.datasets.sources import find
from dyads.datasets.synthetic import make_nominal
from dyads.estimators.search import SHARES, vanishing_l2
from dyads.paper.tasks import TASKS


def arrays(data):
    """Ids (n, 2) and labels (n,) of a data set."""
    return np.column_stack(list(data.X.values())), data.y


def judged(model, X, y):
    proba = model.predict_proba(X)
    return {
        "log-loss": metrics.log_loss(y, proba, model.classes_),
        "class-wise ECE": metrics.classwise_ece(y, proba, model.classes_),
    }


def calibration():
    """ML-1M, random 90/10, defaults: the log loss, and the absolute loss calibrated on a tenth of the training data."""
    X, y = arrays(published.movielens_1m())
    part = np.random.default_rng(0).random(len(y))
    train, held, test = part < 0.81, (part >= 0.81) & (part < 0.9), part >= 0.9
    known = train | held
    marginal = np.bincount(y[known], minlength=6)[1:] / known.sum()
    found = {"log-loss of the marginals": -np.log(marginal)[y[test] - 1].mean()}
    began = time.perf_counter()
    found["log"] = judged(LFLOrdinal(random_state=0, solver="point").fit(X[known], y[known]), X[test], y[test])
    found["log"]["seconds of the fit"] = time.perf_counter() - began
    model = LFLOrdinal(loss="absolute", random_state=0, solver="point").fit(X[train], y[train])
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
    X, y = arrays(published.movielens_100k())
    runs = []
    for seed in range(5):
        part = np.random.default_rng(seed).random(len(y))
        train, held, test = part < 0.7, (part >= 0.7) & (part < 0.8), part >= 0.8
        model = LFLOrdinal(random_state=seed, solver="point").fit(X[train], y[train]).conformalize(X[held], y[held])
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


def selection():
    """The paper's synthetic data, n = 500, rank 5: selected by row and column, and by label; a uniform test; 3 seeds.

    l2 is chosen by `LFLClassifierCV` on each training sample, weighted where the model is. Weights cost variance: the
    weighted model is also beside one of a uniform sample of as many *effective* dyads, (sum of w)^2 / sum of w^2.
    """
    runs = []
    for seed in range(3):
        data = make_nominal(n=500, rank=5, random_state=seed)
        X, y = np.column_stack([data.X["row"], data.X["col"]]), data.y
        rng = np.random.default_rng(seed)
        test = rng.random(len(y)) < 0.2
        group = rng.integers(0, 2, (2, 500))
        alike = group[0][X[:, 0]] == group[1][X[:, 1]]
        by_ids = ~test & (rng.random(len(y)) < np.where(alike, 0.9, 0.4))
        by_label = ~test & (rng.random(len(y)) < np.array([0, 0.9, 0.6, 0.3])[y])
        sample = rng.choice(np.flatnonzero(~test), 1000, replace=False)
        weight = propensity.weights(propensity.from_labels(y[by_label], y[sample]))

        def loss(seen, weight=None, X=X, y=y, test=test, seed=seed):
            search = LFLClassifierCV(5, grid={"l2__latent": [0.35, 0.7, 1.4]}, random_state=seed)
            search.fit(X[seen], y[seen], weight)
            return metrics.log_loss(y[test], search.predict_proba(X[test]), search.classes_)

        def uniform(n, test=test, rng=rng):
            return rng.choice(np.flatnonzero(~test), int(n), replace=False)

        runs.append(
            {
                "uniform sample, as many as by ids": loss(uniform(by_ids.sum())),
                "by ids": loss(by_ids),
                "uniform sample, as many as by label": loss(uniform(by_label.sum())),
                "uniform sample, as many effective": loss(uniform(weight.sum() ** 2 / (weight**2).sum())),
                "by label": loss(by_label),
                "by label, weighted": loss(by_label, weight),
            }
        )
    return {"runs": [rounded(run) for run in runs], "asked": "by ids within 1% of uniform; by label only if weighted"}


def coat():
    """Coat: self-selected training ratings, random test ones (shared dyads dropped), penalties by weighted CV on train.

    Propensities from user and item features, not the published ones; differences by a paired bootstrap over users.
    """
    (X, y), (X_test, y_test) = (arrays(part) for part in published.coat())
    users, items = (np.loadtxt(next(find("coat").rglob(f"{side}_features.ascii"))) for side in ("user", "item"))
    side = SideInformation(row=(np.arange(len(users)), users), col=(np.arange(len(items)), items))
    weight = propensity.weights(propensity.from_features(X, side.row, side.col))
    found, errors = {}, {}
    for name, w in (("unweighted", None), ("weighted by features", weight)):
        search = LFLOrdinalCV(features=side, random_state=0).fit(X, y, w)
        proba = search.predict_proba(X_test)
        mean, median = proba @ np.arange(1, 6), 1 + (np.cumsum(proba, axis=1) >= 0.5).argmax(axis=1)
        errors[name] = np.column_stack(
            [(mean - y_test) ** 2, np.abs(median - y_test), -np.log(proba[np.arange(len(y_test)), y_test - 1])]
        )
        found[name] = (
            dict(zip(("MSE", "MAE", "log-loss"), errors[name].mean(axis=0), strict=True)) | search.best_params_
        )
    rng, difference = np.random.default_rng(0), errors["weighted by features"] - errors["unweighted"]
    total, n = (np.zeros((len(users), 3)), np.bincount(X_test[:, 0], minlength=len(users)))
    np.add.at(total, X_test[:, 0], difference)
    drawn = rng.integers(0, len(users), (2000, len(users)))
    spread = total[drawn].sum(axis=1) / n[drawn].sum(axis=1)[:, None]
    for i, figure in enumerate(("MSE", "MAE", "log-loss")):
        low, high = np.quantile(spread[:, i], [0.025, 0.975])
        found[f"{figure}, weighted less unweighted"] = f"{difference[:, i].mean():.4f} ({low:.4f} to {high:.4f})"
    return rounded(found)


def tuning():
    """ML-100K u1, `LFLOrdinalCV()` with no argument: seconds, and its test log-loss beside the best of a finer grid."""
    (X, y), (X_test, y_test) = (arrays(part) for part in published.movielens_100k("u1"))
    began = time.perf_counter()
    search = LFLOrdinalCV().fit(X, y)
    seconds = time.perf_counter() - began
    finer = {}
    for l2 in search.best_params_["l2__latent"] * 2.0 ** np.arange(-1.5, 1.75, 0.25):
        finer[float(l2)] = judged(LFLOrdinal(l2=l2, random_state=0).fit(X, y), X_test, y_test)["log-loss"]
    found = judged(search, X_test, y_test)["log-loss"]
    best, plain = min(finer.values()), LFLOrdinal(random_state=0, solver="point").fit(X, y)
    return rounded(
        {
            "seconds": seconds,
            "l2": search.best_params_["l2__latent"],
            "log-loss": found,
            "best of the finer grid": best,
            "above it": found / best - 1,
            "with LFLOrdinal()": judged(plain, X_test, y_test)["log-loss"],
        }
    )


def searches():
    """Seconds of `LFLOrdinalCV()` over those of its final fit, and test log-loss beside that of the whole grid.

    ML-100K (80,000 ratings), with and without features, and 24,000 ratings of ten levels of BookCrossing, at random.
    """
    found = {}
    movies, books = published.movielens_100k(), published.bookcrossing()
    side = SideInformation(Features(movies.row_features), Features(movies.col_features))
    for name, data, n, features in (
        ("ML-100K", movies, 80_000, None),
        ("ML-100K, features", movies, 80_000, side),
        ("BookCrossing", books, 24_000, None),
    ):
        X, y = arrays(data)
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[:n], order[n : n + 20_000]
        began = time.perf_counter()
        search = LFLOrdinalCV(features=features, random_state=0).fit(X[train], y[train])
        searched = time.perf_counter()
        model = LFLOrdinal(features=features, random_state=0, solver="point").set_params(**search.best_params_)
        model.fit(X[train], y[train])
        fitted = time.perf_counter()
        top = vanishing_l2(LFLOrdinal(features=features, random_state=0, solver="point"), X[train], y[train])
        grid = {
            share: LFLOrdinal(features=features, random_state=0, solver="point")
            .set_params(**search.best_params_ | {"l2__latent": share * top})
            .fit(X[train], y[train])
            for share in SHARES
        }
        found[name] = {
            "seconds of the search": searched - began,
            "seconds of a fit": fitted - searched,
            "ratio": (searched - began) / (fitted - searched),
            **search.best_params_,
            "log-loss": judged(search, X[test], y[test])["log-loss"],
            "log-loss by share of the grid": {
                f"{share:.3g}": judged(model, X[test], y[test])["log-loss"] for share, model in grid.items()
            },
        }
    return rounded(found) | {"asked": "a ratio of at most 20"}


def defaults():
    """Log-loss with no argument at all beside that with penalties chosen by LFL*CV on the training data."""
    votes = TASKS["un_votes"](0, 1.0, split="random")
    found = {}
    for name, kind, tuned, (X, y), (X_test, y_test) in (
        ("ML-100K u3", LFLOrdinal, LFLOrdinalCV, *[(part.X, part.y) for part in published.movielens_100k("u3")]),
        ("Coat", LFLOrdinal, LFLOrdinalCV, *[(part.X, part.y) for part in published.coat()]),
        ("UN votes", LFLClassifier, LFLClassifierCV, (votes.X, votes.y), (votes.X_test, votes.y_test)),
    ):
        plain = judged(kind(random_state=0).fit(X, y), X_test, y_test)["log-loss"]
        search = tuned(kind(random_state=0)).fit(X, y)
        best = judged(search, X_test, y_test)["log-loss"]
        found[name] = {
            "default": plain,
            "tuned": best,
            "above": plain / best - 1,
            "l2": search.best_params_["l2__latent"],
        }
    return rounded(found) | {"asked": "above by at most 0.02"}


if __name__ == "__main__":
    main({f.__name__: f for f in (calibration, conformal, selection, coat, tuning, searches, defaults)}, __file__)
