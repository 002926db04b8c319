"""Surprise's SVD and SVD++: with defaults, and SVD with the best of a small grid by cross-validation on training data.

Runs in the rivals' environment: python svd.py FOLDER [all]; without "all" it is SVD with defaults alone, because the
others are slow on large data.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from surprise import SVD, Dataset, Reader, SVDpp
from surprise.model_selection import GridSearchCV, KFold

GRID = {"n_factors": [20, 100], "reg_all": [0.02, 0.06, 0.1], "n_epochs": [20, 40], "random_state": [0]}

for path in sorted(Path(sys.argv[1]).glob("*.split.npz")):
    split = np.load(path)
    frame = pd.DataFrame({name: split[f"train_{name}"] for name in ("row", "col", "y")})
    data = Dataset.load_from_df(frame, Reader(rating_scale=(int(frame["y"].min()), int(frame["y"].max()))))
    train = data.build_full_trainset()
    methods = {"Surprise SVD": lambda data: SVD(random_state=0)}
    if "all" in sys.argv[2:]:

        def tuned(data):
            search = GridSearchCV(SVD, GRID, measures=["mae"], cv=KFold(3, random_state=0))
            search.fit(data)
            return SVD(**search.best_params["mae"])

        methods |= {"Surprise SVD, tuned": tuned, "Surprise SVD++": lambda data: SVDpp(random_state=0)}
    for method, make in methods.items():
        model = make(data)
        began = time.perf_counter()
        model.fit(train)
        seconds = time.perf_counter() - began
        mean = [model.predict(r, c).est for r, c in zip(split["test_row"], split["test_col"], strict=True)]
        name = path.name.removesuffix(".split.npz")
        np.savez(path.with_name(f"{name}.{method}.npz"), mean=mean, seconds=seconds)
