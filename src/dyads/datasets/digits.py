"""Handwritten digits as dyads: image x pixel -> black or white."""

from typing import NamedTuple

import numpy as np

from dyads.datasets.sources import Array, Progress, find
from dyads.errors import MissingDataError


class Digits(NamedTuple):
    """Images (n, height, width) with values in 0..1, and the digit each shows (n,)."""

    images: Array
    digit: Array


def usps(progress: Progress | None = None) -> Digits:
    """USPS: 7,291 digits of 16 x 16 pixels, the published training part."""
    folder = find("usps", progress)
    if (folder / "usps.h5").exists():
        try:
            import h5py
        except ImportError as error:
            raise MissingDataError(
                f"{folder / 'usps.h5'} is an HDF5 file, and h5py is not installed: pip install 'dyads[data]'."
            ) from error

        with h5py.File(folder / "usps.h5") as file:
            pixels, digit = file["train/data"][:], file["train/target"][:]
    else:
        from sklearn.datasets import load_svmlight_file

        # There values are -1..1 and the digits 1..10.
        sparse, target = load_svmlight_file(str(folder / "usps"), n_features=256)
        pixels, digit = (sparse.toarray() + 1) / 2, target - 1
    return Digits(np.asarray(pixels, float).reshape(-1, 16, 16), np.asarray(digit).astype(np.int64))


def bundled() -> Digits:
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Digits(data.images / 16, data.target)
