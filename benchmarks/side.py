"""Side-information, cold start, fold-in and Newton's method on real data: `make bench`. See core.py for how it works.

Everything runs with constructor defaults unless a line says what was chosen, and on which training data.
"""

import copy
import resource
import time
import warnings

import numpy as np
import pandas as pd
from core import main, rounded
from scipy import sparse
from threadpoolctl import threadpool_limits

from dyads import LBFGS, SGD, Features, LFLClassifier, LFLOrdinal, Newton, SideInformation, metrics
from dyads.datasets import published
from dyads.datasets.sources import find
from dyads.engine import CPU
from dyads.engine.posterior import Posterior
from dyads.errors import NotConvergedWarning, UnknownIdWarning
from dyads.model.streams import SweepNoise

IDS = ["user", "item"]


def movielens():
    """Ratings, users (age, gender, occupation) and movies (a list of genres) of ML-100K."""
    data = published.movielens_100k()
    return table(data), Features(data.row_features), Features(data.col_features)


def table(data):
    return pd.DataFrame(data.X | {"rating": data.y})


def losses(proba, y):
    """Absolute error of the median label and log-loss of each dyad; labels are 1, 2, ..."""
    median = 1 + (np.cumsum(proba, axis=1) >= 0.5).argmax(axis=1)
    return np.abs(median - y), -np.log(proba[np.arange(len(y)), y - 1])


def leave_out(seen, seed, new_movies):
    """50 users to test on, with a fifth of the movies if these are to be new too; the test movies else are known."""
    rng = np.random.default_rng(seed)
    out = seen["user"].isin(rng.choice(seen["user"].unique(), 50, replace=False)).to_numpy()
    if new_movies:
        cold = (rng.random(seen["item"].max() + 1) < 0.2)[seen["item"]]
        return seen[~out & ~cold], seen[out & cold]
    known = seen["item"].isin(seen.loc[~out, "item"]).to_numpy()
    return seen[~out], seen[out & known]


def predicted(train, test, **choices):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownIdWarning)
        return LFLOrdinal(**choices).fit(train[IDS], train["rating"]).predict_proba(test[IDS])


def cold_start():
    """The paper's section 5.3 on an honest test, ML-100K, rank 5, defaults, 5 seeds.

    (i) A tenth of the ratings, at random; (ii) all ratings of 50 left-out users for movies of the training set; (iii)
    their ratings of a random 20% of movies, which are left out of training too. Differences are paired over users, with
    their standard error: over the users' means, and over all dyads (users as clusters).
    """
    seen, users, movies = movielens()
    side = SideInformation(row=users, col=movies)
    gathered = {}
    for seed in range(5):
        tenth = np.random.default_rng(seed).random(len(seen)) < 0.1
        for setting, (train, test) in (
            ("(i) known users and movies", (seen[~tenth], seen[tenth])),
            ("(ii) new users", leave_out(seen, seed, False)),
            ("(iii) new users and movies", leave_out(seen, seed, True)),
        ):
            truth, user = test["rating"].to_numpy(), test["user"].to_numpy() + 10_000 * seed
            marginal = np.bincount(train["rating"], minlength=6)[1:] / len(train)
            for name, proba in (
                ("joint", predicted(train, test, random_state=seed, features=side)),
                ("after", predicted(train, test, random_state=seed, features=side.replaced({"training": "after"}))),
                ("frozen", predicted(train, test, random_state=seed, features=side.replaced({"training": "frozen"}))),
                ("baseline", predicted(train, test, random_state=seed, unknown="mean")),
                ("marginal", np.tile(marginal, (len(truth), 1))),
            ):
                absolute, log = losses(proba, truth)
                each = pd.DataFrame({"user": user, "MAE": absolute, "log-loss": log})
                gathered.setdefault(setting, {}).setdefault(name, []).append(each)
    return {setting: compared(models) for setting, models in gathered.items()}


def compared(models):
    """The mean figures of each model, over users and over dyads, and how far those with features are below rivals."""
    models = {name: pd.concat(tables, ignore_index=True) for name, tables in models.items()}
    report = {}
    for name, table in models.items():
        report[name] = {}
        for figure in ("MAE", "log-loss"):
            mean = table.groupby("user")[figure].mean()
            report[name][figure] = {"users": round(mean.mean(), 4), "dyads": round(table[figure].mean(), 4)}
            for rival in () if name in ("baseline", "marginal") else ("baseline", "marginal"):
                less = pd.DataFrame({"user": table["user"], "less": models[rival][figure] - table[figure], "n": 1})
                own = less.groupby("user")["less"].mean()
                total = less.groupby("user")[["less", "n"]].sum()
                overall = less["less"].mean()
                error = np.sqrt(((total["less"] - overall * total["n"]) ** 2).sum()) / len(less)
                report[name][figure][f"below {rival}, users"] = (
                    f"{own.mean():.4f} ± {own.std() / np.sqrt(len(own)):.4f}"
                )
                report[name][figure][f"below {rival}, dyads"] = f"{overall:.4f} ± {error:.4f}"
    return report


def new_books():
    """BookCrossing subset: ratings of 8,924 new books from author, publisher and year, defaults, beside means."""
    folder = find("bookcrossing")
    names = {"User-ID": "user", "ISBN": "item", "Book-Rating": "rating"}
    train, test = (
        pd.read_csv(folder / f"BX-{part}Ratings.csv", dtype={"ISBN": str}).rename(columns=names)
        for part in ("", "NewBooks")
    )
    books = pd.concat(
        pd.read_csv(folder / f"BX-{part}Books.csv", dtype={"ISBN": str})[
            ["ISBN", "Book-Author", "Book-Publisher", "Year-Of-Publication"]
        ]
        for part in ("", "New")
    )
    books = books.set_axis(["item", "author", "publisher", "year"], axis=1)
    books["year"] = pd.to_numeric(books["year"], errors="coerce").where(lambda year: year.between(1900, 2010))
    y, truth = train["rating"].to_numpy(), test["rating"].to_numpy()
    began = time.perf_counter()
    model = LFLOrdinal(features=SideInformation(col=Features(books)), random_state=0, solver="point").fit(train[IDS], y)
    seconds = time.perf_counter() - began
    marginal = np.bincount(y, minlength=11)[1:] / len(y)
    counts = pd.crosstab(train["user"], train["rating"]).reindex(test["user"], fill_value=0).to_numpy()
    n = counts.sum(axis=1, keepdims=True)
    mean = np.where(n[:, 0] > 0, counts @ np.arange(1, 11) / np.maximum(n[:, 0], 1), y.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownIdWarning)
        found = {
            "side-information": losses(model.predict_proba(test[IDS]), truth),
            "ids alone": losses(
                LFLOrdinal(random_state=0, solver="point").fit(train[IDS], y).predict_proba(test[IDS]), truth
            ),
            "all ratings": losses(np.tile(marginal, (len(test), 1)), truth),
        }
    for smoothing in (3, 10, 30):
        found[f"the user's ratings, {smoothing} of the mean added"] = losses(
            (counts + smoothing * marginal) / (n + smoothing), truth
        )
    report = {name: {"MAE": absolute.mean(), "log-loss": log.mean()} for name, (absolute, log) in found.items()}
    report["overall mean"] = {"MAE": np.abs(y.mean() - truth).mean()}
    report["mean of the user"] = {"MAE": np.abs(mean - truth).mean()}
    return rounded(report) | {"features": model.record_.known.cols.n_features, "seconds of the fit": round(seconds, 1)}


def implicit():
    """ML-100K u1, rank 5: ids only, with features, and with features and the sets of those seen with each other.

    interactions=5, the rank, was chosen on a tenth of u1.base; the others are defaults.
    """
    _, users, movies = movielens()
    train, test = (table(part) for part in published.movielens_100k("u1"))
    found = {}
    for name, side in (
        ("ids only", None),
        ("features", SideInformation(row=users, col=movies)),
        ("implicit", SideInformation(implicit=True)),
        ("implicit, interactions 5, features", SideInformation(users, movies, interactions=5, implicit=True)),
    ):
        rows = []
        for seed in range(3):
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnknownIdWarning)
                model = LFLOrdinal(features=side, random_state=seed, solver="point").fit(train[IDS], train["rating"])
                seconds = time.perf_counter() - began
                proba = model.predict_proba(test[IDS])
            mean = proba @ np.arange(1, 6)
            absolute, log = losses(proba, test["rating"].to_numpy())
            rows.append((np.sqrt(((mean - test["rating"]) ** 2).mean()), log.mean(), absolute.mean(), seconds))
        rmse, log, absolute, seconds = np.mean(rows, axis=0)
        found[name] = {"RMSE": rmse, "log-loss": log, "MAE of the median": absolute, "seconds": seconds}
    return rounded(found) | {"rivals' RMSE": {"myFM, posterior, with dates and such sets": 0.8808, "GC-MC": 0.905}}


def sweeps():
    """ML-1M, ranks 10 and 20: least seconds of a sweep of the sampler, of five, with and without implicit feedback."""
    seen = table(published.movielens_1m())
    found = {}
    for rank in (10, 20):
        least = {}
        for name, side in (
            ("ids only", None),
            ("implicit", SideInformation(implicit=True)),
            (f"implicit, interactions {rank}", SideInformation(implicit=True, interactions=rank)),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                model = LFLOrdinal(rank, features=side, solver=SGD(max_iter=3), random_state=0)
                problem, theta = model.fit(seen[IDS], seen["rating"]).problem(seen[IDS], seen["rating"])
            seconds = []
            with threadpool_limits(1, "blas"), problem:
                posterior = Posterior(problem)
                state = posterior.start(theta, np.random.default_rng(0))
                # The first sweep compiles, and makes the orders of dyads.
                for number in range(6):
                    began = time.perf_counter()
                    state, _ = posterior.sweep(state, SweepNoise(0, 0, number))
                    posterior.loss(state)
                    seconds.append(time.perf_counter() - began)
            least[name] = min(seconds[1:])
        ratios = {f"{name}, times ids only": least[name] / least["ids only"] for name in list(least)[1:]}
        found[f"rank {rank}"] = least | ratios
    return rounded(found) | {"asked": "at most 1.6 times ids only"}


def fold_in():
    """ML-1M, rank 5: 1,000 new users with 20 labels each folded into a model of the others."""
    seen = table(published.movielens_1m())
    new = np.random.default_rng(0).choice(seen["user"].unique(), 1000, replace=False)
    late = seen["user"].isin(new).to_numpy()
    model = LFLOrdinal(random_state=0, solver="point").fit(seen.loc[~late, IDS], seen.loc[~late, "rating"])
    shuffled = seen[late].sample(frac=1, random_state=0)
    first = shuffled[shuffled.groupby("user").cumcount() < 20]
    rest = shuffled.drop(first.index)
    copy.copy(model).fold_in(first.head(20)[IDS], first.head(20)["rating"])
    began = time.perf_counter()
    folded = copy.copy(model).fold_in(first[IDS], first["rating"])
    seconds = time.perf_counter() - began
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownIdWarning)
        found = {
            name: metrics.log_loss(rest["rating"].to_numpy(), one.predict_proba(rest[IDS]), one.classes_)
            for name, one in (("folded in", folded), ("as new users", model))
        }
    return rounded({"seconds": seconds, "seconds at most": 1, "log-loss of their other ratings": found})


def solvers():
    """ML-100K: Newton's method beside L-BFGS, one core: at rank 0, which is convex, and at rank 5 from 5 starts."""
    seen, _, _ = movielens()
    found = {}
    for rank, starts, choices in ((0, 1, {"tol": 1e-9, "max_iter": 2000}), (5, 5, {})):
        for solver, kind in (("newton", Newton), ("lbfgs", LBFGS)):
            rows = []
            for seed in range(starts):
                began = time.perf_counter()
                model = LFLOrdinal(rank, solver=kind(**choices), random_state=seed, engine=CPU(1))
                model.fit(seen[IDS], seen["rating"])
                seconds = time.perf_counter() - began
                problem, theta = model.problem(seen[IDS], seen["rating"])
                with problem:
                    gradient = problem.value_and_gradient(theta)[1]
                rows.append((model.objective_, np.abs(gradient).max(), model.n_iter_, seconds))
            objective, largest, iterations, seconds = zip(*rows, strict=True)
            found[f"rank {rank}, {solver}"] = {
                "objective": [round(value, 3) for value in objective],
                "largest gradient": [float(f"{value:.2g}") for value in largest],
                "iterations": list(iterations),
                "seconds": [round(value, 1) for value in seconds],
            }
    convex = [found[f"rank 0, {solver}"]["objective"][0] for solver in ("newton", "lbfgs")]
    return found | {"rank 0, relative difference": abs(convex[0] / convex[1] - 1)}


def many_features():
    """10^6 dyads, 10^5 rows and 10^5 sparse features of rows, 5 a row, SGD: peak memory of the process, and seconds."""
    rng = np.random.default_rng(0)
    n, p = 1_000_000, 100_000
    lines = np.repeat(np.arange(p), 5)
    features = sparse.csr_array((np.ones(len(lines)), (lines, rng.integers(0, p, len(lines)))), shape=(p, p))
    X = np.column_stack([rng.integers(0, p, n), rng.integers(0, 2000, n)])
    y = ((features @ rng.normal(size=p))[X[:, 0]] + rng.logistic(size=n) > 0).astype(int)
    began = time.perf_counter()
    model = LFLClassifier(features=SideInformation(row=(np.arange(p), features)), random_state=0, solver="point").fit(
        X, y
    )
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return rounded({"GiB at most": 2, "GiB": peak, "seconds": seconds, "epochs": model.n_iter_})


if __name__ == "__main__":
    main({f.__name__: f for f in (cold_start, new_books, implicit, sweeps, fold_in, solvers, many_features)}, __file__)
