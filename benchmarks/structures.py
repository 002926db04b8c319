"""The structures of the paper's sections 4.3 to 4.5 on real data: `make bench`. See core.py for how it works.

Penalties are chosen on a fifth of the *training* dyads, held out for that, by the figure that is reported.
"""

import time

import numpy as np
from core import main, rounded

from dyads import L2, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, metrics, pairs_from_graph
from dyads.datasets import published


def hold_out(n, share, seed):
    return np.random.default_rng(seed).random(n) < share


def auc_of(model, X, y):
    return metrics.auc(y, model.predict_proba(X), model.classes_)


def choose(make, grid, X, y, weight=None, seed=0, figure=auc_of):
    """The value of the grid whose model, trained on four fifths, has the best figure on the other fifth."""
    held = hold_out(len(y), 0.2, 1000 + seed)
    kept = None if weight is None else weight[~held]
    return max(grid, key=lambda value: figure(make(value).fit(X[~held], y[~held], kept), X[held], y[held]))


def disassortative():
    """Two blocks of 20, links only between them, rank 5, 20% of the pairs held out, 5 seeds, defaults: AUC."""
    row, col = np.triu_indices(40, 1)
    X, y = np.column_stack([row, col]), ((row < 20) != (col < 20)).astype(int)
    found = {}
    for structure in ("spectral", "symmetric"):
        for seed in range(5):
            held = hold_out(len(y), 0.2, seed)
            model = LFLLink(rank=5, structure=structure, random_state=seed).fit(X[~held], y[~held])
            found.setdefault(structure, []).append(round(auc_of(model, X[held], y[held]), 4))
    return found | {"spectral above": 0.99}


def ordered():
    """ML-100K u3, rank 5, constructor defaults: the stereotype structure beside the bilinear one."""
    train, test = published.movielens_100k("u3")
    found = {}
    for structure in ("bilinear", "stereotype"):
        model = LFLOrdinal(structure=structure, random_state=0, solver="point").fit(train.X, train.y)
        found[structure] = {
            "log-loss": metrics.log_loss(test.y, model.predict_proba(test.X), model.classes_),
            "MAE of the median": -model.score(test.X, test.y),
            "RMSE of the mean": metrics.root_mean_squared_error(test.y, model.predict_mean(test.X)),
        }
    return rounded(found)


def nations():
    """Nations, 56 relations, 80/20 random cells, 3 splits: AUC of one shared model, and of one model per relation."""
    data = published.nations()
    X, y, relation = np.column_stack(list(data.X.values())), data.y, data.X["relation"]
    found = []
    for seed in range(3):
        held = hold_out(len(y), 0.2, seed)
        make = lambda l2, s=seed: LFLRelational(rank=10, l2=l2, random_state=s)  # noqa: E731
        l2 = choose(make, (0.3, 1.0, 3.0), X[~held], y[~held], seed=seed)
        shared = make(l2).fit(X[~held], y[~held])
        apart = lambda l2, s=seed: LFLClassifier(rank=3, l2=L2(latent=l2, bias=1.0), random_state=s)  # noqa: E731
        p = np.full(len(y), np.nan)
        for t in np.unique(relation):
            own, train = relation == t, (relation == t) & ~held
            if len(set(y[train])) < 2:
                p[own] = y[train].mean()
                continue
            grid = (0.3, 1.0, 3.0)
            try:
                own_l2 = choose(apart, grid, X[train, :2], y[train], seed=seed)
            except metrics.InputError:
                own_l2 = 1.0
            p[own] = apart(own_l2).fit(X[train, :2], y[train]).predict_proba(X[own, :2])[:, 1]
        found.append(
            {
                "shared": auc_of(shared, X[held], y[held]),
                "separate": metrics.auc(y[held], np.column_stack([1 - p, p])[held], [0, 1]),
                "l2 of the shared": l2,
            }
        )
    return {"runs": [rounded(row) for row in found]}


def wiki_vote():
    """wiki-Vote, 10% of the edges and as many non-edges held out, 3 seeds, about 17 weights a node: AUC and seconds."""
    edges = np.column_stack(list(published.wiki_vote().X.values()))
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        edges = rng.permutation(edges)
        n_held = len(edges) // 10
        known = {(int(i), int(j)) for i, j in edges}
        nodes = np.unique(edges)
        none = []
        while len(none) < n_held:
            pair = tuple(int(i) for i in rng.choice(nodes, 2))
            if pair[0] != pair[1] and pair not in known:
                none.append(pair)
        X_test, y_test = np.vstack([edges[:n_held], none]), np.repeat([1, 0], n_held)
        row = {"seed": seed}
        for name, directed, make in (
            ("symmetric, rank 16", False, lambda l2, s=seed: LFLLink(rank=16, l2=l2, random_state=s)),
            ("bilinear, rank 8", True, lambda l2, s=seed: LFLClassifier(rank=8, l2=l2, random_state=s)),
            ("directed, rank 5", True, lambda l2, s=seed: LFLLink(rank=5, structure="directed", l2=l2, random_state=s)),
        ):
            pairs = pairs_from_graph(edges[n_held:], directed=directed, negatives="sample", rate=3.0, random_state=seed)
            X, y = np.column_stack(list(pairs.X.values())), pairs.y
            l2 = choose(make, (3.0, 10.0, 30.0), X, y, pairs.weight, seed)
            began = time.perf_counter()
            model = make(l2).fit(X, y, pairs.weight)
            seconds = time.perf_counter() - began
            row[name] = {"AUC": auc_of(model, X_test, y_test), "seconds": seconds, "l2": l2, "n": model.n_parameters_}
        found.append(rounded(row))
    return {"runs": found, "seconds at most": 60}


if __name__ == "__main__":
    main({f.__name__: f for f in (disassortative, ordered, nations, wiki_vote)}, __file__)
