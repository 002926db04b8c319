"""The posterior, `solver="gibbs"`, by itself: `make bench-posterior`. See core.py for how it works.

Everything is a default but the rank, which is said: there is no penalty to choose. accuracy.py has it beside rivals,
and `dyads reproduce --posterior` beside the tables of the paper.
"""

import warnings

import numpy as np
from accuracy import columns, rated
from core import main, rounded
from scipy.linalg import solve_triangular

from dyads import LFLClassifier, LFLOrdinal
from dyads.datasets import ratings
from dyads.engine import posterior
from dyads.errors import NotConvergedWarning, UnknownIdWarning
from dyads.model import prior


def ranks():
    """ML-100K u3, ids only, rank 5 to 40: too large a rank does little harm."""
    split = tuple(columns(part) for part in ratings.movielens_100k("u3"))
    ours = {rank: lambda rank=rank: LFLOrdinal(rank, solver="gibbs", random_state=0) for rank in (5, 10, 20, 40)}
    found = rated({"u3": split}, ours, {})
    losses = [figures["log-loss"] for figures in found.values()]
    return found | {"rise from best to largest": round(losses[-1] - min(losses), 4), "at most": 0.01}


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


if __name__ == "__main__":
    warnings.simplefilter("ignore", UnknownIdWarning)
    warnings.simplefilter("ignore", NotConvergedWarning)
    main({f.__name__: f for f in (ranks, coverage)}, __file__)
