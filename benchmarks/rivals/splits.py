"""The splits that a rival reads and the predictions that it writes; see `rivals` in accuracy.py.

Settings are chosen on a tenth of the training data, held out for that; the time of the choice is not counted.
"""

import sys
from pathlib import Path

import numpy as np


class Split:
    """A split: `train` and `test` are dicts of the columns row, col and y."""

    def __init__(self, path):
        self.path, arrays = path, np.load(path)
        self.train, self.test = (
            {key: arrays[f"{part}_{key}"] for key in ("row", "col", "y")} for part in ("train", "test")
        )
        self.shape = tuple(int(max(self.train[side].max(), self.test[side].max())) + 1 for side in ("row", "col"))

    def hold_out(self):
        """Training data for a choice of settings: nine tenths to train on, one to judge by."""
        held = np.random.default_rng(0).random(len(self.train["y"])) < 0.1
        return tuple({key: column[which] for key, column in self.train.items()} for which in (~held, held))

    def write(self, method, seconds, **predictions):
        """Keep the predictions of the test pairs: `mean` (n,), or `proba` (n, n_labels) and `classes`."""
        name = self.path.name.removesuffix(".split.npz")
        np.savez(self.path.with_name(f"{name}.{method}.npz"), seconds=seconds, **predictions)


def splits():
    """The splits in the folder that is the script's first argument."""
    return map(Split, sorted(Path(sys.argv[1]).glob("*.split.npz")))


def root_mean_squared_error(mean, y):
    return float(np.sqrt(np.mean((mean - y) ** 2)))
