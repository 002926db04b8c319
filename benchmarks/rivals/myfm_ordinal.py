"""myFM's ordered probit on ML-100K u1 to u5, ids only, as its authors do: rank 10, 300 iterations, the first 5 dropped.

Runs in the rivals' environment; prints one JSON object. Usage: python myfm_ordinal.py FOLDER
"""

import json
import sys
import time
from pathlib import Path

import myfm
import numpy as np
from scipy import sparse

STARS = np.arange(1, 6)


def read(path):
    return np.loadtxt(path, dtype=np.int64)[:, :3]


def encoded(pairs):
    n = np.arange(len(pairs))
    rows, cols = np.concatenate([n, n]), np.concatenate([pairs[:, 0] - 1, 943 + pairs[:, 1] - 1])
    return sparse.csr_matrix((np.ones(2 * len(n)), (rows, cols)), shape=(len(n), 943 + 1682))


found = {}
for split in ("u1", "u2", "u3", "u4", "u5"):
    train, test = (read(Path(sys.argv[1]) / f"{split}.{part}") for part in ("base", "test"))
    began = time.perf_counter()
    shapes = [943, 1682]
    model = myfm.MyFMOrderedProbit(rank=10, random_seed=42)
    model.fit(encoded(train), train[:, 2] - 1, n_iter=300, n_kept_samples=295, group_shapes=shapes)
    seconds = time.perf_counter() - began
    proba, y = model.predict_proba(encoded(test)), test[:, 2]
    median = STARS[np.argmax(proba.cumsum(axis=1) >= 0.5, axis=1)]
    found[split] = {
        "log-loss": float(-np.log(proba[np.arange(len(y)), y - 1]).mean()),
        "MAE": float(np.abs(median - y).mean()),
        "RMSE": float(np.sqrt(((proba @ STARS - y) ** 2).mean())),
        "seconds": seconds,
    }
print(json.dumps(found))
