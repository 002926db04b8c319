"""Links and positives alone, from sampled non-links: `make bench`. See core.py for how it works.

A tenth of all pairs is held out, links and non-links; models are trained on the other links and five sampled non-links
for each, and judged on the held-out links and 200,000 held-out non-links, weighted to stand for all of them.
"""

import time

import numpy as np
from core import main, rounded

from dyads import LFLClassifier, LFLLink, metrics, pairs_from_positives
from dyads.datasets import published

HELD, JUDGED = 10, 200_000


def compared(row, col, one_set, models):
    """Figures of models on one split; a model is a pair of how it is made and the name of its argument for weights."""
    n_rows, n_cols = int(row.max()) + 1, int(col.max()) + 1
    if one_set:
        n_rows = n_cols = max(n_rows, n_cols)
    rng = np.random.default_rng(0)
    is_held = rng.integers(0, HELD, n_rows * n_cols) == 0
    if one_set:
        is_held[np.arange(n_cols) * (n_cols + 1)] = False
    cells = np.unique(row * n_cols + col)
    links, held = cells[~is_held[cells]], cells[is_held[cells]]
    others = np.setdiff1d(np.flatnonzero(is_held), held, assume_unique=True)
    judged = rng.choice(others, min(JUDGED, len(others)), replace=False)

    def table(cells):
        return {"row": cells // n_cols, "col": cells % n_cols}

    train = pairs_from_positives(
        table(links),
        rows=np.arange(n_rows),
        cols=np.arange(n_cols),
        one_set=one_set,
        exclude=table(np.flatnonzero(is_held)),
        random_state=0,
    )
    X, y = table(np.concatenate([held, judged])), np.repeat([1, 0], [len(held), len(judged)])
    weight = np.where(y == 1, 1.0, len(others) / len(judged))
    figures = {}
    for name, (model, weighted) in models.items():
        began = time.perf_counter()
        model.fit(train.X, train.y, **{weighted: train.weight})
        seconds, proba = time.perf_counter() - began, model.predict_proba(X)
        figures[name] = {
            "mean probability / share of links": np.average(proba[:, 1], weights=weight)
            / np.average(y, weights=weight),
            "class-wise calibration error": metrics.classwise_ece(y, proba, [0, 1], weight),
            "log-loss": metrics.log_loss(y, proba, [0, 1], weight),
            "AUC": metrics.auc(y, proba, [0, 1], weight),
            "AUC-PR": metrics.auc_pr(y, proba, [0, 1], weight),
            "seconds": seconds,
        }
    return rounded({name: {key: float(value) for key, value in each.items()} for name, each in figures.items()})


def wiki_vote():
    """Wiki-Vote, who voted on whom, from its edge list; directed."""
    data = published.wiki_vote()
    linked = np.asarray(data.y) == 1
    _, codes = np.unique(np.column_stack([np.asarray(end)[linked] for end in data.X.values()]), return_inverse=True)
    row, col = codes.reshape(-1, 2).T
    models = {
        "LFLLink": (LFLLink(structure="directed", random_state=0), "population_weight"),
        "before: weights in the loss": (
            LFLLink(5, structure="directed", l2=6.0, n_models=1, random_state=0),
            "sample_weight",
        ),
    }
    return compared(row, col, True, models)


def ml_100k():
    """ML-100K, ratings of 4 or 5 as positives."""
    data = published.movielens_100k()
    liked = np.asarray(data.y) >= 4
    row, col = (np.unique(np.asarray(data.X[name])[liked], return_inverse=True)[1] for name in ("user", "item"))
    models = {
        "LFLClassifier": (LFLClassifier(random_state=0), "population_weight"),
        "posterior": (LFLClassifier(solver="gibbs", random_state=0), "population_weight"),
        "before: weights in the loss": (LFLClassifier(5, l2=6.0, random_state=0), "sample_weight"),
    }
    return compared(row, col, False, models)


def defaults():
    """`LFLLink()` and its default before, on held-out pairs of three graphs: mean AUC and log-loss over five splits.

    The co-authors, undirected; for Nations the links are pairs of countries with more than the median number of
    relations, directed; wiki-Vote, directed, with as many held-out non-links as links (one split).
    """
    authors, nations = published.nips_coauthors(), published.nations()
    ends = np.column_stack([np.asarray(nations.X[name]) for name in list(nations.X)[:2]])
    pairs, of_pair = np.unique(ends, axis=0, return_inverse=True)
    count = np.bincount(of_pair.ravel(), weights=np.asarray(nations.y) == 1)
    graphs = {
        "co-authors": (np.column_stack(list(authors.X.values())), np.asarray(authors.y), "symmetric"),
        "Nations": (pairs, (count > np.median(count)).astype(int), "directed"),
    }
    figures = {}
    for name, (X, y, structure) in graphs.items():
        for kind, choices in (("new", {}), ("before", {"rank": 5, "l2": 6.0, "n_models": 1})):
            results = []
            for seed in range(5):
                held = np.random.default_rng(seed).random(len(y)) < 0.2
                model = LFLLink(**choices, structure=structure, random_state=seed).fit(X[~held], y[~held])
                proba = model.predict_proba(X[held])
                results.append((metrics.auc(y[held], proba, [0, 1]), metrics.log_loss(y[held], proba, [0, 1])))
            auc, loss = np.mean(results, axis=0)
            figures[f"{name}, {kind}"] = {"AUC": float(auc), "log-loss": float(loss)}
    return rounded(figures)


if __name__ == "__main__":
    main({f.__name__: f for f in (wiki_vote, ml_100k, defaults)}, __file__)
