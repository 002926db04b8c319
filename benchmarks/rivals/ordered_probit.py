"""myFM's ordered probit with ids only, as its authors do: rank 10, 300 iterations, the first 5 dropped.

Runs in the rivals' environment: python ordered_probit.py FOLDER [curve]; "curve" is after several numbers of
iterations, in the seconds of fit and predictions. It uses one core: seconds are CPU time, which does not depend on
other processes. See accuracy.py for what is read and written.
"""

import sys
import time

import myfm
import numpy as np
from scipy import sparse
from splits import splits

ITERATIONS = (10, 20, 40, 80, 150, 300) if "curve" in sys.argv[2:] else (300,)
DROPPED = 5


def encoded(part, shape):
    """One-hot rows and columns (n, n_rows + n_cols)."""
    n = len(part["row"])
    places = np.concatenate([part["row"], shape[0] + part["col"]])
    return sparse.csr_matrix((np.ones(2 * n), (np.tile(np.arange(n), 2), places)), (n, sum(shape)))


for split in splits():
    classes, label = np.unique(split.train["y"], return_inverse=True)
    train, test = (encoded(part, split.shape) for part in (split.train, split.test))
    total = np.zeros((test.shape[0], len(classes)))
    began = time.process_time()

    def keep(i, model, *_, total=total, test=test, began=began, split=split, classes=classes):
        """Average the probabilities of the draws so far."""
        if i >= DROPPED:
            total += model.oprobit_predict_proba(test, [], 0)
        if i + 1 in ITERATIONS:
            method = "myFM ordered probit" + (f"@{i + 1}" if len(ITERATIONS) > 1 else "")
            proba = total / (i + 1 - DROPPED)
            split.write(method, time.process_time() - began, proba=proba, classes=classes)
        return False, ""

    model = myfm.MyFMOrderedProbit(rank=10, random_seed=42)
    model.fit(train, label, n_iter=ITERATIONS[-1], n_kept_samples=1, group_shapes=list(split.shape), callback=keep)
