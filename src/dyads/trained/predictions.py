"""Predictions for the dyads of a table, scored once, and their posterior uncertainty."""

import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dyads.data.codes import UNKNOWN, Codes, label_codes, numeric_values
from dyads.engine import Engine
from dyads.errors import InputError, UnknownIdError
from dyads.metrics import log_proba
from dyads.model.record import Record

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions of a model for n dyads.

    Attributes
    ----------
    classes : (n_labels,) labels, in the order of the columns of `proba`
    scores : (n, n_labels) before the link and any calibrator; None for a model of another library
    proba : (n, n_labels) probabilities; NaN for unknown ids under ``unknown="nan"``
    support : (n, 2) summed weight of the training labels of the row and of the column; None if the model has no
        method `support`
    decide : maps probabilities (n, n_labels) to codes of the labels to predict (n,)
    """

    classes: Array
    scores: Any
    proba: Array
    support: Array | None
    decide: Callable[[Array], Codes]

    @cached_property
    def codes(self) -> Codes:
        """The place in `classes` of the predicted label (n,); -1 where probabilities are NaN."""
        return self.codes_by(self.decide)

    def codes_by(self, decide: Callable[[Array], Codes]) -> Codes:
        """The same by another decision rule, such as the median."""
        return np.where(np.isnan(self.proba).any(axis=1), UNKNOWN, decide(np.nan_to_num(self.proba)))

    def __len__(self) -> int:
        return len(self.proba)

    @property
    def labels(self) -> Array:
        """Predicted labels (n,); raises an error if any probabilities are NaN."""
        refuse_nan(self.proba)
        return np.asarray(self.classes[self.codes])

    @property
    def mean(self) -> Array:
        """Expected label (n,), for labels with numeric values."""
        return np.asarray(self.proba @ numeric_values(self.classes))

    @property
    def least_support(self) -> Array:
        """Support (n,) of the id with fewer training labels."""
        if self.support is None:
            raise InputError("The model has no support of ids: expected a model with a method support(X).")
        return np.asarray(self.support.min(axis=1))


def refuse_nan(proba: Array) -> None:
    """Raise an error if any probabilities are NaN."""
    if np.isnan(proba).any():
        raise UnknownIdError(
            f"{int(np.isnan(proba).any(axis=1).sum())} dyads have ids not seen in training and, under unknown='nan', "
            "NaN probabilities: no label can be predicted. Drop these dyads, or set unknown='prior'."
        )


def predictions_of(model: Any, X: Any, row_features: Any = None, col_features: Any = None) -> Predictions:
    """Predictions of any fitted model for the dyads of X.

    A model of this library has a method `predictions`. Any other model needs `predict_proba`, `predict` and `classes_`;
    features are passed to it only if given.
    """
    if hasattr(model, "predictions"):
        return model.predictions(  # type: ignore[no-any-return]
            X, row_features=row_features, col_features=col_features
        )
    if not hasattr(model, "predict_proba"):
        raise InputError(f"Got a {type(model).__name__} as the model: expected a fitted model with predict_proba.")
    tables = {"row_features": row_features, "col_features": col_features}
    features = {name: table for name, table in tables.items() if table is not None}
    return Predictions(
        classes=model.classes_,
        scores=None,
        proba=np.asarray(model.predict_proba(X, **features)),
        decide=lambda _: label_codes(model.predict(X, **features), model.classes_),
        support=model.support(X) if hasattr(model, "support") else None,
    )


# --------------------------------------------------------------------------------------------------------- uncertainty

CELLS = 2**24
"""Probabilities held in memory at once while intervals are computed: 128 MiB in double precision."""


def check_posterior(record: Record) -> None:
    """Raise an error for a point estimate."""
    if not record.is_posterior:
        raise InputError(
            "The model is a point estimate, without posterior draws: expected one fitted with solver='gibbs'."
        )


def sample_proba(record: Record, n: int | None, codes: list[Codes], features: Any, engine: Engine) -> Array:
    """Probabilities (n, n_dyads, n_labels) under `n` posterior draws, evenly spaced among those kept; all if None.

    The block of an entity without labels is that of an entity of a random training dyad, one per posterior draw.
    """
    check_posterior(record)
    models = record.models
    n = len(models) if n is None else n
    if not isinstance(n, numbers.Integral) or not 1 <= n <= len(models):
        raise InputError(f"Got n={n!r} draws: expected a whole number from 1 to {len(models)}, the draws kept.")
    chosen = np.linspace(0, len(models) - 1, int(n)).round().astype(np.int64)
    drawn = [record.proba(engine.scores([models[i].one_draw()], codes, features)) for i in chosen.tolist()]
    return np.stack(drawn)


def interval(
    record: Record, level: float, effective: float, codes: list[Codes], features: Any, engine: Engine
) -> Array:
    """Equal-tailed credible intervals (n_dyads, n_labels, 2) of the probabilities, at the given `level`.

    `effective` : effective sample size of the draws.
    """
    if not (isinstance(level, numbers.Real) and 0 < level < 1):
        raise InputError(f"Got level={level!r}: expected a number between 0 and 1, such as 0.9.")
    tails = interval_tails(float(level), min(effective, len(record.draws)))
    bounds = [
        np.moveaxis(np.quantile(sample_proba(record, None, part, lines, engine), tails, axis=0), 0, -1)
        for part, lines in _cut(codes, features, max(1, CELLS // (len(record.draws) * len(record.known.classes))))
    ]
    return np.concatenate(bounds) if bounds else np.zeros((0, len(record.known.classes), 2))


def interval_tails(level: float, n: float) -> tuple[float, float]:
    """Levels of the two quantiles of n independent draws between which the next draw lies with probability `level`.

    Between their quantiles at (1 - q) / 2 and (1 + q) / 2 it lies with probability q (n - 1) / (n + 1). With few draws
    no quantiles are far enough apart: then they are the least and the greatest draw.
    """
    share = min(1.0, level * (n + 1) / (n - 1)) if n > 1 else 1.0
    return (1 - share) / 2, (1 + share) / 2


def log_likelihood(record: Record, labels: Codes, codes: list[Codes], features: Any, engine: Engine) -> Array:
    """Log-probability (draws, n_dyads) of the label of each dyad under each posterior draw."""
    parts, done = [], 0
    for part, lines in _cut(codes, features, max(1, CELLS // (len(record.draws) * len(record.known.classes)))):
        proba = sample_proba(record, None, part, lines, engine)
        label = labels[done : done + len(part[0])]
        parts.append(log_proba(proba[:, np.arange(len(label)), label]))
        done += len(label)
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(record.draws), 0))


def _cut(codes: list[Codes], features: Any, size: int) -> Iterator[tuple[list[Codes], Any]]:
    """Yield the dyads in slices of `size`."""
    for first in range(0, len(codes[0]), size):
        at = slice(first, first + size)
        yield [column[at] for column in codes], None if features is None else features[at]
