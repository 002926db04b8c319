"""Surprise's SVD and SVD++: with defaults, and SVD with the best of a small grid, chosen on training data.

Runs in the rivals' environment: python svd.py FOLDER [all | curve]. Without an option it is SVD with defaults alone,
because the others are slow on large data; "curve" is SVD with defaults and tuned, after several numbers of epochs. It
uses one core: seconds are CPU time, which does not depend on other processes.
"""

import sys
import time

import pandas as pd
from splits import splits
from surprise import SVD, Dataset, Reader, SVDpp
from surprise.model_selection import GridSearchCV, KFold, ShuffleSplit

EPOCHS = (2, 5, 10, 20, 40, 80)


def trained(model, data):
    began = time.process_time()
    model.fit(data.build_full_trainset())
    return model, time.process_time() - began


def means(model, test):
    return [model.predict(row, col).est for row, col in zip(test["row"], test["col"], strict=True)]


def tuned(data, measure, folds, **grid):
    """The settings that are best by cross-validation on training data."""
    search = GridSearchCV(SVD, {"random_state": [0], **grid}, measures=[measure], cv=folds)
    search.fit(data)
    return search.best_params[measure]


for split in splits():
    frame = pd.DataFrame(split.train)
    data = Dataset.load_from_df(frame, Reader(rating_scale=(int(frame["y"].min()), int(frame["y"].max()))))
    models = {"Surprise SVD": SVD(random_state=0)}
    if "all" in sys.argv[2:]:
        grid = {"n_factors": [20, 100], "reg_all": [0.02, 0.06, 0.1], "n_epochs": [20, 40]}
        models["Surprise SVD, tuned"] = SVD(**tuned(data, "mae", KFold(3, random_state=0), **grid))
        models["Surprise SVD++"] = SVDpp(random_state=0)
    elif "curve" in sys.argv[2:]:
        one_fold = ShuffleSplit(1, test_size=0.1, random_state=0)
        grid = {"n_factors": [20, 50, 100], "reg_all": [0.02, 0.04, 0.06, 0.1], "n_epochs": [40]}
        best = tuned(data, "rmse", one_fold, **grid)
        models = {f"Surprise SVD@{n}": SVD(n_epochs=n, random_state=0) for n in EPOCHS}
        models |= {f"Surprise SVD, tuned@{n}": SVD(**best | {"n_epochs": n}) for n in EPOCHS}
    for method, model in models.items():
        model, seconds = trained(model, data)
        split.write(method, seconds, mean=means(model, split.test))
