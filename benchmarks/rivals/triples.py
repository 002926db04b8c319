"""PyKEEN's data sets of triples, its models and its evaluator.

Runs in the rivals' environment: python triples.py FOLDER. It reads arrays.npz and asked.json, a list of what is asked
for and its settings, and writes the answer to the i-th to i.npz; see ranking.py. Triples have the columns head, tail
and relation. Scores have the axes head, tail and relation, and before them one of two: to rank tails, and heads.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from pykeen.datasets import get_dataset
from pykeen.evaluation import RankBasedEvaluator
from pykeen.metrics.ranking import HitsAtK, InverseHarmonicMeanRank
from pykeen.models.baseline import EvaluationOnlyModel
from pykeen.pipeline import pipeline
from pykeen.triples import CoreTriplesFactory

# Matrices of a hundred people are too small to share between threads.
torch.set_num_threads(1)
TURNED = [0, 2, 1]


def splits(arrays, dataset):
    """The triples of a data set: train, valid and test."""
    data = get_dataset(dataset=dataset)
    parts = {"train": data.training, "valid": data.validation, "test": data.testing}
    return {name: part.mapped_triples.numpy()[:, TURNED] for name, part in parts.items()}


def model(arrays, dataset, name, dim, lr, epochs):
    """Scores of all triples by a model with inverse relations, trained against all entities by cross-entropy."""
    data = get_dataset(dataset=dataset, dataset_kwargs={"create_inverse_triples": True})
    found = pipeline(
        dataset=data, model=name, model_kwargs={"embedding_dim": dim}, training_loop="lcwa", loss="crossentropy",
        optimizer="adam", optimizer_kwargs={"lr": lr}, random_seed=0, device="cpu", use_testing_data=False,
        training_kwargs={"num_epochs": epochs, "batch_size": 256, "use_tqdm": False},
        evaluation_kwargs={"use_tqdm": False},
    )  # fmt: skip
    n, m = data.num_entities, data.training.real_num_relations
    scores, entity = np.empty((2, n, n, m)), torch.arange(n)
    for relation in range(m):
        same = torch.full_like(entity, relation)
        with torch.no_grad():
            scores[0, :, :, relation] = found.model.predict_t(torch.column_stack([entity, same])).numpy()
            scores[1, :, :, relation] = found.model.predict_h(torch.column_stack([same, entity])).numpy().T
    return {"scores": scores, "seconds": found.train_seconds}


class Given(EvaluationOnlyModel):
    """A model whose scores are given, with the axes head, tail and relation."""

    def __init__(self, factory, scores):
        super().__init__(triples_factory=factory)
        self.register_buffer("scores", torch.tensor(scores))

    def score_t(self, hr_batch, **_):
        return self.scores[hr_batch[:, 0], :, hr_batch[:, 1]].clone()

    def score_h(self, rt_batch, **_):
        return self.scores[:, rt_batch[:, 1], rt_batch[:, 0]].T.clone()


def evaluator(arrays):
    """PyKEEN's own filtered figures of given scores, over both directions."""
    train, valid, test = (
        torch.tensor(np.ascontiguousarray(arrays[name][:, TURNED])) for name in ("train", "valid", "test")
    )
    n, _, m = arrays["scores"].shape
    factory = CoreTriplesFactory(train, num_entities=n, num_relations=m)
    judge = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
    judge.evaluate(
        Given(factory, arrays["scores"]), test, batch_size=64, additional_filter_triples=[train, valid], use_tqdm=False
    )
    ranks = [part for (_, kind), parts in judge.ranks.items() if kind == "realistic" for part in parts]
    # Its own figures are of these ranks in single precision.
    ranks = np.concatenate(ranks).astype(np.float64)
    hits = {f"hits@{k}": HitsAtK(k)(ranks) for k in (1, 3, 10)}
    return {"ranks": ranks, "MRR": InverseHarmonicMeanRank()(ranks), **hits}


folder = Path(sys.argv[1])
given = dict(np.load(folder / "arrays.npz"))
for i, (what, settings) in enumerate(json.loads((folder / "asked.json").read_text())):
    np.savez(folder / f"{i}.npz", **{"splits": splits, "model": model, "evaluator": evaluator}[what](given, **settings))
