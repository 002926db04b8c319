"""The posterior, `solver="gibbs"`, by itself: `make bench-posterior`. See core.py for how it works.

Everything is a default but the rank, which is said: there is no penalty to choose. accuracy.py has it beside rivals,
and `dyads reproduce --posterior` beside the tables of the paper.
"""

import warnings
from itertools import islice

import joblib
import numpy as np
import pandas as pd
from accuracy import columns, rated
from core import main, rounded

from dyads import CPU, Gibbs, LFLClassifier, LFLOrdinal
from dyads.datasets import published
from dyads.engine import posterior
from dyads.errors import NotConvergedWarning, UnknownIdWarning
from dyads.model.objective import BlockPrior


def u3():
    return {"u3": tuple(columns(part) for part in published.movielens_100k("u3"))}


def ranks():
    """ML-100K u3, ids only, rank 5 to 40: too large a rank does little harm."""
    ours = {rank: lambda rank=rank: LFLOrdinal(rank, solver="gibbs", random_state=0) for rank in (5, 10, 20, 40)}
    found = rated(u3(), ours, {})
    losses = [figures["log-loss"] for figures in found.values()]
    return found | {"rise from best to largest": round(losses[-1] - min(losses), 4), "at most": 0.01}


def point_estimates():
    """ML-100K u3, ids only, rank 10: what minimising the objective with default penalties gives, and takes."""
    ours = {name: lambda name=name: LFLOrdinal(10, solver=name, random_state=0) for name in ("lbfgs", "sgd", "newton")}
    return rated(u3(), ours, {})


def coverage():
    """Data drawn from the model's own prior: how often 90% intervals of probabilities of unseen pairs cover them.

    60 rows, 50 columns, 3 labels, rank 2, 30% of the pairs seen; data sets in which each label has a twentieth or more
    of the labels seen, which is a choice by what is seen and so leaves the posterior what it is. The prior of blocks is
    drawn from its own, heavy-tailed prior too, so that most probabilities are next to 0 or 1, and modes many: chains
    of 1000 sweeps miss some. And blocks that are all standard normal, which that prior thinks unlikely.
    """
    return {
        "drawn prior, four chains of 4000": covered(from_prior, posterior.BIAS_SPREAD, 20, chains=4, sweeps=4000),
        "drawn prior, four chains of 1000": covered(from_prior, posterior.BIAS_SPREAD, 40, chains=4, sweeps=1000),
        "drawn prior, one chain of 1000": covered(from_prior, posterior.BIAS_SPREAD, 40, chains=1, sweeps=1000),
        "standard normal blocks, one chain of 1000": covered(standard_normal, 1.0, 40, chains=1, sweeps=1000),
        "between": [0.88, 0.92],
    }


def default_coverage():
    """The same with as many chains as by default, which end by themselves."""
    return {
        "drawn prior, default": covered(from_prior, posterior.BIAS_SPREAD, 40, chains=None, sweeps=None),
        "standard normal blocks, default": covered(standard_normal, 1.0, 40, chains=None, sweeps=None),
    }


def covered(blocks_of, bias_spread, n_sets, chains, sweeps):
    """Coverage of all probabilities, and of those of a kind, over data sets."""
    jobs = (joblib.delayed(covered_in)(*each, number, chains, sweeps) for number, each in
            enumerate(islice(data_sets(blocks_of, bias_spread), n_sets)))  # fmt: skip
    table = pd.DataFrame(joblib.Parallel(n_jobs=-1)(jobs))
    error = float(table["all"].std(ddof=0) / np.sqrt(n_sets))
    return rounded({"coverage": table.mean().to_dict(), "standard error of all": error, "data sets": n_sets})


def data_sets(blocks_of, bias_spread):
    """Endless data: pairs, labels, true probabilities, and which pairs are seen."""
    rng = np.random.default_rng(0)
    row, col = (each.ravel() for each in np.indices((60, 50)))
    X = np.column_stack([row, col])
    while True:
        a, b = blocks_of(60, 9, rng)[row], blocks_of(50, 9, rng)[col]
        bias = rng.normal(scale=bias_spread, size=3)
        scores = bias + a[:, :3] + b[:, :3] + (a[:, 3:] * b[:, 3:]).reshape(-1, 3, 2).sum(axis=2)
        proba = np.exp(scores - scores.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        y = (proba.cumsum(axis=1) < rng.random(len(X))[:, None]).sum(axis=1).clip(max=2)
        seen = rng.random(len(X)) < 0.3
        if np.bincount(y[seen], minlength=3).min() >= 0.05 * seen.sum():
            yield X, y, proba, seen


def covered_in(X, y, proba, seen, seed, chains, sweeps):
    """Coverage in one data set."""
    warnings.simplefilter("ignore", NotConvergedWarning)
    solver = Gibbs(sweeps=sweeps, chains=chains)
    model = LFLClassifier(rank=2, solver=solver, random_state=seed, engine=CPU(1)).fit(X[seen], y[seen])
    low, high = np.moveaxis(model.predict_interval(X[~seen], 0.9), -1, 0)
    truth = proba[~seen]
    inside = (low <= truth) & (truth <= high)
    kinds = {
        "all": truth >= 0,
        "0.02 to 0.98": (truth >= 0.02) & (truth <= 0.98),
        "below 0.02": truth < 0.02,
        "above 0.98": truth > 0.98,
    }
    return {name: float(inside[part].mean()) for name, part in kinds.items() if part.any()}


def standard_normal(n, size, rng):
    return rng.standard_normal((n, size))


def from_prior(n, size, rng):
    """Own blocks of n entities, drawn from their prior and that from its own."""
    return BlockPrior.from_hyperprior(size, rng).blocks(n, rng)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UnknownIdWarning)
    warnings.simplefilter("ignore", NotConvergedWarning)
    main({f.__name__: f for f in (ranks, point_estimates, coverage, default_coverage)}, __file__)
