"""myFM's ordered probit with ids only, as its authors do: rank 10, 300 iterations, the first 5 dropped.

Runs in the rivals' environment: python ordered_probit.py FOLDER; see accuracy.py for what is read and written.
"""

import sys
import time
from pathlib import Path

import myfm
import numpy as np
from scipy import sparse

for path in sorted(Path(sys.argv[1]).glob("*.split.npz")):
    split = np.load(path)
    rows, cols = (np.unique(np.concatenate([split[f"train_{side}"], split[f"test_{side}"]])) for side in ("row", "col"))

    def encoded(part, split=split, rows=rows, cols=cols):
        n = len(split[f"{part}_row"])
        places = [np.searchsorted(rows, split[f"{part}_row"])]
        places.append(len(rows) + np.searchsorted(cols, split[f"{part}_col"]))
        lines = np.tile(np.arange(n), 2)
        return sparse.csr_matrix((np.ones(2 * n), (lines, np.concatenate(places))), (n, len(rows) + len(cols)))

    classes, label = np.unique(split["train_y"], return_inverse=True)
    began = time.perf_counter()
    model = myfm.MyFMOrderedProbit(rank=10, random_seed=42)
    model.fit(encoded("train"), label, n_iter=300, n_kept_samples=295, group_shapes=[len(rows), len(cols)])
    seconds = time.perf_counter() - began
    proba = model.predict_proba(encoded("test"))
    name = path.name.removesuffix(".split.npz")
    np.savez(path.with_name(f"{name}.myFM ordered probit.npz"), proba=proba, classes=classes, seconds=seconds)
