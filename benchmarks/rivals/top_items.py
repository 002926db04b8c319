"""Libraries that rank items by positives alone: a score of every item for every user.

Runs in the rivals' environment: python top_items.py FOLDER. It reads arrays.npz (row, col and shape) and asked.json, a
list of methods and their settings, and writes the scores and the seconds of the i-th to i.npz; see ranking.py.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

warnings.simplefilter("ignore")


def als(pairs, **settings):
    """implicit's alternating least squares."""
    from implicit.als import AlternatingLeastSquares

    return factors(AlternatingLeastSquares(random_state=0, **settings), pairs)


def bpr(pairs, **settings):
    """implicit's Bayesian personalised ranking; one thread, so that it can be repeated."""
    from implicit.bpr import BayesianPersonalizedRanking

    return factors(BayesianPersonalizedRanking(random_state=0, num_threads=1, **settings), pairs)


def factors(model, pairs):
    model.fit(pairs, show_progress=False)
    return model.user_factors @ model.item_factors.T


def warp(pairs, epochs, **settings):
    """LightFM with its loss for the top of a ranking."""
    from lightfm import LightFM

    model = LightFM(loss="warp", random_state=0, **settings).fit(pairs, epochs=epochs)
    (bias, users), (item_bias, items) = model.get_user_representations(), model.get_item_representations()
    return users @ items.T + bias[:, None] + item_bias


def item_knn(pairs, **settings):
    """LensKit's nearest neighbours of items."""
    from lenskit.knn import ItemKNNScorer

    return scored(ItemKNNScorer(feedback="implicit", **settings), pairs)


def ease(pairs, **settings):
    """LensKit's EASE, a linear model of items."""
    from lenskit.knn import EASEScorer

    return scored(EASEScorer(**settings), pairs)


def scored(scorer, pairs):
    """Scores by a part of LensKit; an item without one is last."""
    import pandas as pd
    from lenskit.data import ItemList, RecQuery, from_interactions_df

    row, col = pairs.nonzero()
    scorer.train(from_interactions_df(pd.DataFrame({"user_id": row, "item_id": col})))
    found, items = np.full(pairs.shape, np.nan), ItemList(item_ids=np.arange(pairs.shape[1]))
    for user in np.unique(row):
        seen = ItemList(item_ids=col[row == user])
        found[user] = scorer(RecQuery(history_items=seen), items).scores()
    return np.where(np.isfinite(found), found, np.nanmin(found) - 1)


def measured(pairs, k):
    """LensKit's nDCG, with the discount log2(1 + rank), and recall of each user's held-out items in given scores."""
    from lenskit.data import ItemList
    from lenskit.metrics import NDCG, Recall
    from lenskit.metrics.ranking import LogRankWeight

    measures = {"ndcg": NDCG(k, weight=LogRankWeight(offset=1)), "recall": Recall(k)}
    found = {name: [] for name in measures}
    for user in np.unique(arrays["test"][:, 0]):
        first = ItemList(item_ids=np.argsort(-arrays["scores"][user], kind="stable")[:k], ordered=True)
        held = ItemList(item_ids=arrays["test"][arrays["test"][:, 0] == user, 1])
        for name, measure in measures.items():
            found[name].append(measure.measure_list(first, held))
    return found


METHODS = {
    "implicit ALS": als,
    "implicit BPR": bpr,
    "LightFM WARP": warp,
    "LensKit item kNN": item_knn,
    "LensKit EASE": ease,
    "LensKit metrics": measured,
}

folder = Path(sys.argv[1])
arrays = dict(np.load(folder / "arrays.npz"))
ones = np.ones(len(arrays["row"]), np.float32)
positives = sparse.csr_matrix((ones, (arrays["row"], arrays["col"])), tuple(arrays["shape"]))
for i, (method, settings) in enumerate(json.loads((folder / "asked.json").read_text())):
    began = time.perf_counter()
    found = METHODS[method](positives, **settings)
    answer = found if isinstance(found, dict) else {"scores": found.astype(np.float32)}
    np.savez(folder / f"{i}.npz", seconds=time.perf_counter() - began, **answer)
