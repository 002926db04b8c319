"""PyKEEN's models on kinship: the score of (person, term, other) of every term for the held-out pairs.

Runs in the rivals' environment: python kinship.py FOLDER; 100 epochs with all of PyKEEN's own defaults otherwise.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from pykeen.pipeline import pipeline
from pykeen.triples import TriplesFactory

# Matrices of a hundred people are too small to share between threads.
torch.set_num_threads(1)
for path in sorted(Path(sys.argv[1]).glob("*.split.npz")):
    split = np.load(path)
    train = np.column_stack([split["train_row"], split["train_y"], split["train_col"]]).astype(str)
    factory = TriplesFactory.from_labeled_triples(train)
    test = np.column_stack([split["test_row"], split["test_y"], split["test_col"]]).astype(str)
    testing = TriplesFactory.from_labeled_triples(
        test, entity_to_id=factory.entity_to_id, relation_to_id=factory.relation_to_id
    )
    classes = np.unique(split["train_y"])
    for method in ("DistMult", "ComplEx", "RotatE"):
        found = pipeline(
            training=factory, testing=testing, model=method, random_seed=0, device="cpu", use_testing_data=True,
            training_kwargs={"num_epochs": 100, "use_tqdm": False}, evaluation_kwargs={"use_tqdm": False},
        )  # fmt: skip
        seconds = found.train_seconds
        heads, tails = (
            torch.tensor([factory.entity_to_id[str(each)] for each in split[f"test_{side}"]]) for side in ("row", "col")
        )
        scores = []
        for label in classes:
            relation = torch.full_like(heads, factory.relation_to_id[str(label)])
            with torch.no_grad():
                scores.append(found.model.score_hrt(torch.stack([heads, relation, tails], dim=1)).numpy()[:, 0])
        name = path.name.removesuffix(".split.npz")
        target = path.with_name(f"{name}.PyKEEN {method}.npz")
        np.savez(target, scores=np.column_stack(scores), classes=classes, seconds=seconds)
