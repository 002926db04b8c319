"""Model selection: how good a model is, by what it knew of the ids."""

import warnings
from typing import Any

import numpy as np

from dyads import metrics
from dyads.data.labels import read_labels, values_of
from dyads.data.tables import table_like
from dyads.errors import InputError, UnknownIdWarning

Array = np.ndarray[Any, Any]

REGIMES = {
    "known": (True, True),
    "new row": (False, True),
    "new column": (True, False),
    "both new": (False, False),
}
"""Whether the row and the column of a dyad had labels in training."""


def evaluate(
    model: Any, X: Any, y: Any, sample_weight: Any = None, *, row_features: Any = None, col_features: Any = None
) -> Any:
    """Judge a fitted model by regime: a table with a line for each of `REGIMES` that occurs, and one for all.

    Columns: regime, n (dyads), log_loss, brier_score, classwise_ece, accuracy, and for ordered labels
    mean_absolute_error. `row_features`, `col_features` : as `predict_proba` takes them. The table is of the kind X has,
    an Arrow table if that is no dataframe.
    """
    features = {"row_features": row_features, "col_features": col_features}
    with warnings.catch_warnings():
        # The lines of the table say how many ids are new.
        warnings.simplefilter("ignore", UnknownIdWarning)
        proba, predicted = model.predict_proba(X, **features), model.predict(X, **features)
    truth, classes = read_labels(y), model.classes_
    if len(truth) != len(proba):
        raise InputError(f"Got {len(proba)} dyads but {len(truth)} labels: expected one for each dyad.")
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    known = model.support(X) > 0
    lines = {name: (known == np.array(pattern)).all(axis=1) for name, pattern in REGIMES.items()}
    lines["all"] = np.ones(len(truth), np.bool_)
    found: dict[str, list[Any]] = {}
    for regime, mine in lines.items():
        if not mine.any():
            continue
        share = None if weight is None else weight[mine]
        line = {"regime": regime, "n": int(mine.sum())}
        for name in ("log_loss", "brier_score", "classwise_ece"):
            line[name] = getattr(metrics, name)(truth[mine], proba[mine], classes, share)
        line["accuracy"] = metrics.accuracy(truth[mine], predicted[mine], share)
        if hasattr(model, "predict_mean"):
            values = values_of(truth[mine], classes), values_of(predicted[mine], classes)
            line["mean_absolute_error"] = metrics.mean_absolute_error(*values, share)
        for name, value in line.items():
            found.setdefault(name, []).append(value)
    return table_like(found, X)
