"""Constructor defaults on real data beside other choices: `make bench`. See core.py for how it works.

Each data set has one split, its own or a random tenth held out. "old defaults" are a point estimate of rank 5 with
fixed penalties. "best" is the method, among the point estimates shown and posteriors of ranks 0 to 20, of least log-
loss on a tenth of the *training* dyads; it is then fitted to all of them. "above best" is how far the log-loss of the
defaults is above its log-loss, and the standard error of that (paired) difference.
"""

import time

import numpy as np
from core import main, rounded

from dyads import L2, LFLClassifier, LFLClassifierCV, LFLOrdinal, LFLOrdinalCV, LFLRelational, metrics
from dyads.datasets import published
from dyads.datasets.synthetic import make_nominal

RANKS = (0, 2, 5, 10, 20)


def columns(data):
    return {name: np.asarray(column) for name, column in data.X.items()}, np.asarray(data.y)


def taken(X, y, chosen):
    return {name: column[chosen] for name, column in X.items()}, y[chosen]


def tenths(X, y, seed):
    """Nine tenths and a tenth of some dyads, at random."""
    held = np.random.default_rng(seed).random(len(y)) < 0.1
    return taken(X, y, ~held), taken(X, y, held)


def judged(model, train, test):
    """Log-loss, accuracy (of ordered labels, RMSE of the mean) and seconds of a fit; the log-loss of each dyad."""
    began = time.perf_counter()
    proba = model.fit(*train).predict_proba(test[0])
    losses = metrics.log_losses(test[1], proba, model.classes_)
    figures = {"log-loss": float(losses.mean())}
    if isinstance(model, LFLOrdinal):
        figures["RMSE"] = metrics.root_mean_squared_error(test[1], proba @ model.classes_)
    else:
        figures["accuracy"] = float(np.mean(model.classes_[proba.argmax(axis=1)] == test[1]))
    figures |= {"seconds": time.perf_counter() - began, "solver": model.solver_, "iterations": model.n_iter_}
    return figures, losses


def compared(kind, search, train, test):
    """Figures of every method on one split; `search` : the estimator that searches by cross-validation, or None."""
    methods = {
        "rank 0, point": lambda: kind(0, solver="point", random_state=0),
        "old defaults": lambda: kind(5, l2=L2(), solver="point", random_state=0),
        "point": lambda: kind(solver="point", random_state=0),
        **({} if search is None else {"cross-validation": lambda: search(random_state=0)}),
    }
    ranks = {f"posterior, rank {rank}": lambda rank=rank: kind(rank, solver="gibbs", random_state=0) for rank in RANKS}
    part, held = tenths(*train, seed=1)
    trial = {name: judged(make(), part, held)[0]["log-loss"] for name, make in (methods | ranks).items()}
    best = min(trial, key=trial.get)
    figures = {name: judged(make(), train, test)[0] for name, make in methods.items()}
    figures["defaults"], ours = judged(kind(random_state=0), train, test)
    figures["best"], theirs = judged((methods | ranks)[best](), train, test)
    figures["best"]["method"] = best
    figures["above best"] = dict(zip(("difference", "error"), metrics.paired_difference(ours, theirs), strict=True))
    figures["held-out log-loss on training data"] = trial
    return rounded(figures)


def ml_100k(name="u1"):
    """ML-100K, one of its own splits, u1 by default."""
    return compared(LFLOrdinal, LFLOrdinalCV, *(columns(part) for part in published.movielens_100k(name)))


def ml_1m():
    """ML-1M, a random tenth held out."""
    return compared(LFLOrdinal, LFLOrdinalCV, *tenths(*columns(published.movielens_1m()), seed=0))


def bookcrossing():
    """BookCrossing, a random tenth held out."""
    return compared(LFLOrdinal, LFLOrdinalCV, *tenths(*columns(published.bookcrossing()), seed=0))


def coat():
    """Coat, its own test ratings, of random items."""
    return compared(LFLOrdinal, LFLOrdinalCV, *(columns(part) for part in published.coat()))


def un_votes():
    """UN votes, a random tenth held out."""
    return compared(LFLClassifier, LFLClassifierCV, *tenths(*columns(published.un_votes()), seed=0))


def alyawarra():
    """Alyawarra kinship terms, a random tenth held out."""
    return compared(LFLClassifier, LFLClassifierCV, *tenths(*columns(published.alyawarra()), seed=0))


def nations():
    """Nations, 56 relations, a random tenth held out."""
    return compared(LFLRelational, None, *tenths(*columns(published.nations()), seed=0))


def synthetic():
    """The paper's synthetic data, n = 500, rank 5, 80% to train."""
    data = make_nominal(n=500, rank=5, random_state=0)
    train, test = data.split(0.8)
    return compared(LFLClassifier, LFLClassifierCV, columns(train), columns(test))


if __name__ == "__main__":
    measured = (ml_100k, coat, nations, alyawarra, bookcrossing, synthetic, ml_1m, un_votes)
    main({f.__name__: f for f in measured}, __file__)
