"""Rankings beside other libraries: `make rivals ranking`. See core.py for how it works.

Every method gives a score to every candidate, and all scores are judged here by the same functions of `dyads.metrics`.
Settings are the best of a grid by what is held out for validation; test data are looked at once, with these settings.
Rivals run in environments of their own, and exchange arrays with this program in a temporary folder.
"""

import json
import os
import subprocess
import tempfile
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
from core import main, rounded
from sklearn.metrics import ndcg_score

from dyads import Gibbs, LFLClassifier, LFLRelational, evaluate_ranking, metrics, pairs_from_positives
from dyads.datasets import published
from dyads.errors import MissingDataError

HERE = Path(__file__).parent
K = 10


def run_rival(script, environment, asked, **arrays):
    """The arrays that a rival's script answers, one dict for each of the methods and settings that are asked for."""
    python = HERE / environment / "bin" / "python"
    if not python.exists():
        raise MissingDataError(f"there is no environment {environment}: `make rivals` makes it.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "arrays.npz", **arrays)
        (folder / "asked.json").write_text(json.dumps(asked))
        # Threads of BLAS are in the way of a library's own.
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [python, HERE / "rivals" / script, folder]
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return [dict(np.load(folder / f"{i}.npz")) for i in range(len(asked))]


def grid(**values):
    """All settings of a grid."""
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


def shown(settings):
    """Settings as they are written to a file."""
    return {name: value if isinstance(value, str | int | float) else str(value) for name, value in settings.items()}


# ---------------------------------------------------------------------------------------------------- items for a user

RIVALS = {
    "implicit ALS": grid(
        factors=[8, 16, 32, 64], regularization=[0.01, 1.0, 10.0, 30.0, 100.0], alpha=[1.0, 5.0, 20.0]
    ),
    "implicit BPR": grid(factors=[16, 64, 128], learning_rate=[0.003, 0.01, 0.05], regularization=[0.001, 0.01, 0.05]),
    "LightFM WARP": grid(no_components=[16, 32, 64], item_alpha=[0.0, 1e-5, 1e-4, 1e-3], epochs=[5, 10, 20, 50]),
    "LensKit item kNN": grid(max_nbrs=[10, 20, 50, 100, 200, 500]),
    "LensKit EASE": grid(regularization=[100.0, 200.0, 300.0, 500.0, 1000.0]),
}
OURS = [
    *grid(negatives=["all"], rank=[6, 10, 16, 32], solver=["point"], n_models=[20]),
    *grid(negatives=["all"], rank=[10], solver=[Gibbs(sweeps=100)]),
    *grid(negatives=["sample"], rate=[20.0], rank=[10, 16]),
]


def liked():
    """Positives of ML-100K, ratings of 4 or 5: codes of their users and items."""
    data = published.movielens_100k()
    is_liked = np.asarray(data.y) >= 4
    codes = [np.unique(np.asarray(data.X[name])[is_liked], return_inverse=True)[1] for name in ("user", "item")]
    return np.column_stack(codes)


def hold_out(pairs, rng):
    """Divide pairs into those to train on and a random fifth of those of each user who has five or more."""
    held = np.zeros(len(pairs), bool)
    for user in np.unique(pairs[:, 0]):
        own = np.flatnonzero(pairs[:, 0] == user)
        if len(own) >= 5:
            held[rng.choice(own, round(len(own) / 5), replace=False)] = True
    return pairs[~held], pairs[held]


def ranks_of_held_out(scores, train, held):
    """Ranks of the held-out items of each user; candidates are all items of the training pairs but the user's own."""
    is_candidate = np.zeros(scores.shape, bool)
    is_candidate[:, np.unique(train[:, 1])] = True
    is_candidate[tuple(train.T)] = False
    ranks = []
    for user in np.unique(held[:, 0]):
        relevant, offer = held[held[:, 0] == user, 1], is_candidate[user]
        places = (np.cumsum(offer) - 1)[relevant[offer[relevant]]]
        found = metrics.ranks_of(scores[user, offer], places)
        # A held-out item that the training pairs do not have is never found.
        ranks.append(np.append(found, np.full(len(relevant) - len(found), np.inf)))
    return ranks


def judged_top(scores, train, held):
    ranks = ranks_of_held_out(scores, train, held)
    means = {"nDCG": metrics.ndcg_at(ranks, K).mean(), "recall": metrics.recall_at(ranks, K).mean()}
    return {f"{name}@{K}": float(mean) for name, mean in means.items()}


def from_positives(train, shape, negatives="sample", rate=5.0, **settings):
    """Probabilities of an LFLClassifier that is trained on positives, for all cells of items it knows; seconds."""
    began = time.perf_counter()
    table = {"user": train[:, 0], "item": train[:, 1]}
    pairs = pairs_from_positives(table, negatives=negatives, rate=rate, random_state=0)
    weight = pairs.weight if negatives == "sample" else None
    model = LFLClassifier(random_state=0, **settings).fit(pairs.X, pairs.y, population_weight=weight)
    row, col = np.nonzero(np.isin(np.arange(shape[1]), train[:, 1])[None].repeat(shape[0], axis=0))
    scores = np.zeros(shape)
    scores[row, col] = model.predict_proba({"user": row, "item": col})[:, 1]
    return {"scores": scores, "seconds": time.perf_counter() - began}


def popularity(train, shape):
    counts = np.bincount(train[:, 1], minlength=shape[1])
    return {"scores": np.tile(counts, (shape[0], 1)), "seconds": 0.0}


def answered(asked, train, shape):
    """Scores and seconds of methods and their settings; those of other libraries run apart, all at once."""
    others = [each for each in asked if each[0] in RIVALS]
    arrays = {"row": train[:, 0], "col": train[:, 1], "shape": np.array(shape)}
    theirs = iter(run_rival("top_items.py", ".rivals-ranking", others, **arrays) if others else [])
    own = {"popularity": popularity}
    return [
        next(theirs) if name in RIVALS else own.get(name, from_positives)(train, shape, **settings)
        for name, settings in asked
    ]


def ml_100k_top():
    """ML-100K, ratings of 4 or 5 are positives: the ten best of all items that the user has no training positive of.

    Held out is a fifth of the positives of each user who has five or more: for the test, and of the rest for the choice
    of settings, by nDCG. Chosen settings are trained on all but the test pairs. Means over users.
    """
    positives, rng = liked(), np.random.default_rng(0)
    rest, test = hold_out(positives, rng)
    train, valid = hold_out(rest, rng)
    shape = tuple(int(n) + 1 for n in positives.max(axis=0))
    grids = {"dyads LFLClassifier, tuned": OURS, **RIVALS}
    asked = [(name, settings) for name, each in grids.items() for settings in each]
    judged = [judged_top(each["scores"], train, valid)[f"nDCG@{K}"] for each in answered(asked, train, shape)]
    best = {}
    for (name, settings), value in zip(asked, judged, strict=True):
        if value > best.get(name, (-1.0,))[0]:
            best[name] = value, settings
    final = [
        ("popularity", {}),
        ("dyads LFLClassifier, defaults, sampled non-links", {}),
        ("dyads LFLClassifier, defaults, all non-links", {"negatives": "all"}),
        *((name, settings) for name, (_, settings) in best.items()),
    ]
    figures, by_user = {}, {}
    for (name, settings), each in zip(final, answered(final, rest, shape), strict=True):
        validation = {f"validation nDCG@{K}": best[name][0], "of": len(grids[name])} if name in best else {}
        judged = judged_top(each["scores"], rest, test) | {"seconds": float(each["seconds"])}
        figures[name] = judged | validation | {"settings": shown(settings)}
        by_user[name] = metrics.ndcg_at(ranks_of_held_out(each["scores"], rest, test), K)
    for name, values in by_user.items():
        difference = metrics.paired_difference(values, by_user["dyads LFLClassifier, tuned"])
        figures[name][f"nDCG@{K} above our tuned one, and standard error"] = list(difference)
    return rounded(figures)


# ------------------------------------------------------------------------------------------------------------- triples
#
# Triples are arrays with the columns head, tail and relation; `shape` is the number of each.


def filtered_ranks(scores, triples, known):
    """Ranks of triples by filtered scores, over both directions: other triples, and known ones, are no candidates.

    `scores` : (head, tail, relation), or two of them, to rank tails and to rank heads.
    """
    ranks = []
    for turn, values in enumerate(np.broadcast_to(scores, (2, *scores.shape[-3:]))):
        values = values.transpose(1, 0, 2) if turn else values
        asked, others = ((part[:, [1, 0, 2]] if turn else part) for part in (triples, known))
        is_candidate = np.ones(values.shape, bool)
        is_candidate[tuple(others.T)] = False
        for entity, relation in np.unique(asked[:, [0, 2]], axis=0):
            answers = asked[(asked[:, 0] == entity) & (asked[:, 2] == relation), 1]
            offer = is_candidate[entity, :, relation]
            places = (np.cumsum(offer) - 1)[answers]
            ranks.append(metrics.ranks_of(values[entity, offer, relation], places, filtered=True))
    return np.concatenate(ranks)


def judged_triples(scores, triples, known):
    ranks = filtered_ranks(scores, triples, known)[:, None]
    hits = {f"hits@{k}": float(metrics.hits_at(ranks, k).mean()) for k in (1, 3, K)}
    return {"MRR": float(metrics.reciprocal_rank(ranks).mean()), **hits}


class Graph:
    """Triples of a data set of PyKEEN, and models of all cells but those of an entity and itself."""

    def __init__(self, dataset):
        (parts,) = run_rival("triples.py", ".rivals-graphs", [("splits", {"dataset": dataset})])
        self.dataset, self.train, self.valid, self.test = dataset, parts["train"], parts["valid"], parts["test"]
        every = np.concatenate(list(parts.values()))
        self.n, self.m = int(every[:, :2].max()) + 1, int(every[:, 2].max()) + 1
        self.is_link = np.zeros((self.n, self.n, self.m), bool)
        self.is_link[tuple(self.train.T)] = True
        self.has_one_each = self.is_link.sum(axis=2).max() == 1
        self.cells = np.argwhere(np.broadcast_to(~np.eye(self.n, dtype=bool)[:, :, None], self.is_link.shape))

    def table(self, cells, back):
        """Columns of a table of cells; with `back`, which relations the tail has to the head, as a feature."""
        named = dict(zip(("head", "tail", "relation"), cells.T, strict=False))
        if back:
            other = [[np.flatnonzero(self.is_link[j, i]) for j in range(self.n)] for i in range(self.n)]
            own = [f"{each[0]} after " if len(each) else "" for each in cells[:, 2:].tolist()]
            named["back"] = [
                [f"{of}{each}" for each in other[i][j]] for of, (i, j) in zip(own, cells[:, :2].tolist(), strict=True)
            ]
        return named

    def relational(self, non_links="all", back=False, **settings):
        """Probabilities of an LFLRelational; non-links are all other cells, or all of pairs that have a link."""
        is_used = self.is_link.any(axis=2)[tuple(self.cells[:, :2].T)] | (non_links == "all")
        used = self.cells[is_used]
        model = LFLRelational(random_state=0, **settings)
        model.fit(self.table(used, back), self.is_link[tuple(used.T)].astype(int))
        return self.scores(model.predict_proba(self.table(self.cells, back))[:, 1])

    def nominal(self, back=False, **settings):
        """Probabilities of an LFLClassifier whose label is the relation of a pair."""
        model = LFLClassifier(random_state=0, **settings)
        model.fit(self.table(self.train[:, :2], back), self.train[:, 2])
        pairs = self.cells[self.cells[:, 2] == 0, :2]
        proba = np.zeros((len(pairs), self.m))
        proba[:, model.classes_] = model.predict_proba(self.table(pairs, back))
        return self.scores(proba.ravel())

    def scores(self, values):
        found = np.zeros(self.is_link.shape)
        found[tuple(self.cells.T)] = values
        return found

    def offered(self, has_one_each):
        """Cells that may be links: not of an entity and itself nor, if asked, others of a pair with a link."""
        is_other = self.is_link.any(axis=2)[:, :, None] & ~self.is_link
        return ~np.eye(self.n, dtype=bool)[:, :, None] & ~(is_other & has_one_each)


def compared(graph, ours, theirs):
    """Figures on test triples of the settings of each method that have the best MRR on validation triples.

    No training triple links an entity to itself, so these cells come last for every method. If each pair of the
    training triples has one relation, all methods are judged with this knowledge too.
    """
    tried = []
    for name, settings in ((name, settings) for name, each in ours.items() for settings in each):
        began = time.perf_counter()
        scores = (graph.nominal if "LFLClassifier" in name else graph.relational)(**settings)
        tried.append((name, settings, scores, time.perf_counter() - began))
    asked = [("model", {"dataset": graph.dataset, **settings}) for settings in theirs]
    for settings, each in zip(theirs, run_rival("triples.py", ".rivals-graphs", asked), strict=True):
        tried.append((f"PyKEEN {settings['name']}", settings, each["scores"], float(each["seconds"])))
    known, figures = np.concatenate([graph.train, graph.valid]), {}
    for has_one_each in (False, True) if graph.has_one_each else (False,):
        is_offered = graph.offered(has_one_each)
        for name in dict.fromkeys(each[0] for each in tried):
            own = [
                (np.where(is_offered, scores, -np.inf), settings, seconds)
                for other, settings, scores, seconds in tried
                if other == name
            ]
            values = [judged_triples(scores, graph.valid, graph.train)["MRR"] for scores, *_ in own]
            scores, settings, seconds = own[int(np.argmax(values))]
            figures[name + "; one relation a pair" * has_one_each] = {
                **judged_triples(scores, graph.test, known),
                "seconds": seconds,
                "validation MRR": max(values),
                "of": len(own),
                "settings": shown(settings),
            }
    return rounded(figures)


def kinships():
    """PyKEEN's Kinships and its split, filtered, over both directions.

    Published of PyKEEN, tuned: MRR 0.886, hits@10 0.986, where a person may be a candidate for themselves. Models of
    PyKEEN here have one setting each.
    """
    graph, nominal = Graph("kinships"), {"solver": [Gibbs(sweeps=200)]}
    linked = {"non_links": ["of linked pairs"], "solver": [Gibbs(sweeps=100)]}
    settings = {
        "dyads LFLRelational": [
            *grid(rank=[20], solver=linked["solver"]),
            *grid(rank=[20, 40], **linked),
            *grid(rank=[10], structure=["mixture"], n_terms=[5], **linked),
        ],
        "dyads LFLRelational, other direction": grid(rank=[40, 60], back=[True], **linked),
        "dyads LFLClassifier": grid(rank=[5], **nominal),
        "dyads LFLClassifier, other direction": grid(rank=[5, 10], back=[True], **nominal),
    }
    return compared(graph, settings, grid(name=["RotatE", "TuckER"], dim=[64], lr=[0.003], epochs=[60]))


def nations_triples():
    """PyKEEN's Nations and its split, filtered, over both directions.

    Models of PyKEEN have few settings, and the best of them has the largest learning rate.
    """
    graph, sampler = Graph("nations"), [Gibbs(sweeps=300)]
    settings = {
        "dyads LFLRelational": [
            *grid(rank=[10, 20, 40], solver=sampler),
            *grid(rank=[5], structure=["mixture"], n_terms=[5, 10], solver=sampler),
            *grid(rank=[10, 20], solver=["point"], n_models=[20]),
        ],
        "dyads LFLRelational, other direction": grid(rank=[10, 20], back=[True], solver=sampler),
    }
    theirs = [
        *grid(name=["DistMult", "TuckER"], dim=[32], lr=[0.003, 0.01, 0.03], epochs=[100]),
        *grid(name=["DistMult", "TuckER"], dim=[32], lr=[0.01, 0.03], epochs=[200]),
        *grid(name=["ComplEx", "RotatE"], dim=[32], lr=[0.003, 0.01, 0.03], epochs=[100]),
    ]
    return compared(graph, settings, theirs)


def agreement():
    """Largest differences of our figures from those of PyKEEN, LensKit and scikit-learn for the same scores."""
    return {**agreement_on_triples(), **agreement_on_items()}


def agreement_on_triples():
    """Scores with ties against PyKEEN's evaluator, and `evaluate_ranking` of a model against both."""
    graph, rng = Graph("nations"), np.random.default_rng(0)
    known, parts = np.concatenate([graph.train, graph.valid]), {"train": graph.train, "valid": graph.valid}
    tied = np.round(rng.normal(size=graph.is_link.shape) + graph.is_link, 1)
    positives = dict(zip(("head", "tail", "relation"), graph.train.T, strict=True))
    pairs = pairs_from_positives(positives, negatives="all", rows=np.arange(graph.n), cols=np.arange(graph.n))
    model = LFLRelational(3, l2=1.0, random_state=0).fit(pairs.X, pairs.y)
    every = np.indices(graph.is_link.shape).reshape(3, -1).T
    fitted = model.predict_proba(graph.table(every, False))[:, 1].reshape(graph.is_link.shape)
    found = {}
    for name, scores in (("tied scores", tied), ("fitted scores", fitted)):
        (theirs,) = run_rival(
            "triples.py", ".rivals-graphs", [("evaluator", {})], scores=scores, test=graph.test, **parts
        )
        ours = judged_triples(scores, graph.test, known)
        found[f"PyKEEN, {name}"] = max(abs(ours[key] - float(theirs[key])) for key in ours)
        ranks = np.sort(filtered_ranks(scores, graph.test, known))
        found[f"PyKEEN's ranks, {name}"] = float(np.abs(ranks - np.sort(theirs["ranks"])).max())
    by_side = [
        evaluated(model, graph.table(graph.test, False), graph.table(known, False), side) for side in ("col", "row")
    ]
    found["evaluate_ranking and PyKEEN"] = max(
        abs(np.mean([each[key] for each in by_side]) - float(theirs[key])) for key in by_side[0]
    )
    return found


def evaluated(model, asked, known, side):
    """Filtered figures of `evaluate_ranking`."""
    found = {}
    for k in (1, 3, K):
        table = evaluate_ranking(model, asked, k=k, exclude=known, side=side, filtered=True)
        figures = by_metric(table)
        found |= {name: figures[name] for name in ("MRR", f"hits@{k}")}
    return found


def by_metric(table):
    return {line["metric"]: line["value"] for line in table.to_pylist()}


def agreement_on_items():
    """nDCG and recall of the first ten, user by user; LensKit's recall is of ten items at most."""
    train, test = hold_out(liked(), np.random.default_rng(0))
    shape = tuple(np.concatenate([train, test]).max(axis=0) + 1)
    test = test[np.isin(test[:, 1], train[:, 1])]
    table = dict(zip(("user", "item"), train.T, strict=True))
    pairs = pairs_from_positives(table, random_state=0)
    model = LFLClassifier(2, l2=1.0, n_models=1, random_state=0).fit(pairs.X, pairs.y, population_weight=pairs.weight)
    row, col = np.indices(shape).reshape(2, -1)
    scores = model.predict_proba({"user": row, "item": col})[:, 1].reshape(shape)
    scores[:, np.setdiff1d(np.arange(shape[1]), train[:, 1])] = -1.0
    scores[tuple(train.T)] = -1.0
    ranks = ranks_of_held_out(scores, train, test)
    ndcg, recall = metrics.ndcg_at(ranks, K), metrics.recall_at(ranks, K)
    users, is_relevant = np.unique(test[:, 0]), np.zeros(shape)
    is_relevant[tuple(test.T)] = 1
    by_sklearn = [ndcg_score(is_relevant[[user]], scores[[user]], k=K) for user in users]
    arrays = {"row": train[:, 0], "col": train[:, 1], "shape": np.array(shape), "scores": scores, "test": test}
    (lenskit,) = run_rival("top_items.py", ".rivals-ranking", [("LensKit metrics", {"k": K})], **arrays)
    n = is_relevant[users].sum(axis=1)
    found = evaluate_ranking(model, dict(zip(("user", "item"), test.T, strict=True)), exclude=table)
    figures = by_metric(found)
    return {
        "scikit-learn, nDCG": float(np.abs(ndcg - by_sklearn).max()),
        "LensKit, nDCG": float(np.abs(ndcg - lenskit["ndcg"]).max()),
        "LensKit, recall": float(np.abs(recall - lenskit["recall"] * np.minimum(n, K) / n).max()),
        "evaluate_ranking, nDCG": float(abs(figures[f"nDCG@{K}"] - ndcg.mean())),
        "evaluate_ranking, recall": float(abs(figures[f"recall@{K}"] - recall.mean())),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main({f.__name__: f for f in (ml_100k_top, kinships, nations_triples, agreement)}, __file__)
