"""LIBMF's matrix factorisation by SGD, squared error, after several numbers of epochs.

Runs in the rivals' environment: python matrix_factors.py FOLDER. Rank and penalty are chosen on training data.
"""

import os
import time
from itertools import product
from multiprocessing import Pool, TimeoutError

import numpy as np
from libmf import mf
from splits import root_mean_squared_error, splits

EPOCHS = (5, 10, 20, 40, 80)
RANKS, PENALTIES = (16, 32, 64), (0.03, 0.06, 0.1, 0.15)
LONGEST = 60
"""Seconds of a fit; it takes two at most."""


def trained(train, test, rank, penalty, epochs):
    """Seconds of a fit, and the mean of each test pair."""
    cells = np.column_stack([train["row"], train["col"], train["y"]]).astype(np.float32)
    model = mf.MF(
        k=rank, lambda_p1=0, lambda_q1=0, lambda_p2=penalty, lambda_q2=penalty, nr_iters=epochs,
        nr_threads=os.cpu_count(), quiet=True,
    )  # fmt: skip
    began = time.perf_counter()
    model.fit(cells)
    seconds = time.perf_counter() - began
    rows, cols = model.p_factors(), model.q_factors()
    # Pairs with an id beyond the training data, or without ratings in it, have the mean rating.
    known = (test["row"] < len(rows)) & (test["col"] < len(cols))
    mean = np.full(len(known), model.model.b)
    mean[known] = np.sum(rows[test["row"][known]] * cols[test["col"][known]], axis=1)
    mean[np.isnan(mean)] = model.model.b
    return seconds, np.clip(mean, train["y"].min(), train["y"].max())


def patient(*arguments):
    """Like `trained`, in a process of its own: now and then LIBMF's threads wait for each other forever."""
    while True:
        with Pool(1) as pool:
            try:
                return pool.apply_async(trained, arguments).get(LONGEST)
            except TimeoutError:
                continue


def chosen(split):
    """The rank and penalty of least error on held-out training data."""
    train, held = split.hold_out()
    return min(
        product(RANKS, PENALTIES),
        key=lambda setting: root_mean_squared_error(patient(train, held, *setting, 40)[1], held["y"]),
    )


for split in splits():
    rank, penalty = chosen(split)
    for epochs in EPOCHS:
        seconds, mean = patient(split.train, split.test, rank, penalty, epochs)
        split.write(f"LIBMF, rank {rank}@{epochs}", seconds, mean=mean)
