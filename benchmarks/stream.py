"""`dyads predict` on ten million pairs: peak memory above that of the model, and seconds. See core.py."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from core import main
from pyarrow import csv

from dyads import LBFGS, LFLOrdinal


def peak_of(*arguments):
    """Peak memory in MiB and seconds of a command."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "dyads.cli", *arguments])
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{arguments} ended with {status}")
    return used.ru_maxrss / 1024, time.perf_counter() - began


def predict():
    """10^7 pairs of 10^4 rows x 10^4 columns, 5 labels, rank 5, from CSV to CSV and from Parquet to Parquet."""
    rng = np.random.default_rng(0)
    X = {"user": rng.integers(0, 10_000, 200_000), "item": rng.integers(0, 10_000, 200_000)}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        LFLOrdinal(solver=LBFGS(max_iter=2), random_state=0).fit(X, rng.integers(1, 6, 200_000)).save(
            place / "model.dyads"
        )
        few = pa.table({name: column[:10] for name, column in X.items()})
        csv.write_csv(few, place / "few.csv")
        least, _ = peak_of("predict", str(place / "model.dyads"), str(place / "few.csv"), "-o", str(place / "a.csv"))
        pairs = pa.table({name: rng.integers(0, 10_000, 10_000_000) for name in ("user", "item")})
        for kind, write in (("csv", csv.write_csv), ("parquet", pq.write_table)):
            write(pairs, place / f"pairs.{kind}")
            arguments = (str(place / "model.dyads"), str(place / f"pairs.{kind}"), "-o", str(place / f"out.{kind}"))
            peak, seconds = peak_of("predict", *arguments)
            found[kind] = {"MiB above ten pairs": round(peak - least), "seconds": round(seconds, 1)}
    return found | {"MiB of ten pairs": round(least), "MiB at most": 300}


if __name__ == "__main__":
    main({"predict": predict}, __file__)
