"""SMURFF's Bayesian matrix factorisation: Gaussian noise, priors learnt, ratings centred, 300 sweeps.

Runs in the rivals' environment: python bayesian_factors.py FOLDER [curve]; "curve" is after several numbers of sweeps.
The precision of the noise is chosen on training data. Seconds are those of sweeps, with which it predicts, and not of
reading predictions.
"""

import os
import sys
import time

import numpy as np
import smurff
from scipy import sparse
from splits import root_mean_squared_error, splits

BURN_IN, CHOICE = 20, (80,)
SWEEPS = (30, 40, 80, 150, 300) if "curve" in sys.argv[2:] else (300,)
RANK, PRECISIONS = 16, (1.0, 1.2, 1.5, 2.0)


def sampled(train, test, shape, precision, sweeps):
    """Yield the seconds and the mean of each test pair after the given numbers of sweeps."""
    centre = train["y"].mean()

    def matrix(part):
        return sparse.coo_matrix((part["y"] - centre, (part["row"], part["col"])), shape)

    # Labels of test pairs are not used: SMURFF only reports its error on them.
    unlabelled = test | {"y": np.full(len(test["row"]), centre + 1)}
    began = time.perf_counter()
    session = smurff.TrainSession(
        num_latent=RANK, burnin=BURN_IN, nsamples=sweeps[-1] - BURN_IN, num_threads=os.cpu_count(), seed=0, verbose=0
    )
    session.setTrain(matrix(train), smurff.FixedNoise(precision))
    session.setTest(matrix(unlabelled))
    session.init()
    for sweep in range(1, sweeps[-1] + 1):
        session.step()
        if sweep in sweeps:
            paused = time.perf_counter()
            mean = {pair.coords: pair.pred_avg for pair in session.getTestPredictions()}
            pairs = zip(test["row"].tolist(), test["col"].tolist(), strict=True)
            means = np.clip([centre + mean[pair] for pair in pairs], train["y"].min(), train["y"].max())
            yield paused - began, means
            began += time.perf_counter() - paused


def chosen(split):
    """The precision of least error on held-out training data."""
    train, held = split.hold_out()

    def error(precision):
        ((_, mean),) = sampled(train, held, split.shape, precision, CHOICE)
        return root_mean_squared_error(mean, held["y"])

    return min(PRECISIONS, key=error)


for split in splits():
    points = sampled(split.train, split.test, split.shape, chosen(split), SWEEPS)
    for sweeps, (seconds, mean) in zip(SWEEPS, points, strict=True):
        method = f"SMURFF, rank {RANK}" + (f"@{sweeps}" if len(SWEEPS) > 1 else "")
        split.write(method, seconds, mean=mean)
