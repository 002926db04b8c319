"""Predictions: what a model says of the dyads of a table, scored once, and how sure its posterior draws are of it."""

import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dyads.data.codes import UNKNOWN, Codes, label_codes, numeric_values
from dyads.engine import Engine
from dyads.errors import InputError, UnknownIdError
from dyads.model.record import Record

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says of n dyads.

    Attributes
    ----------
    classes : (n_labels,) the labels, sorted
    scores : (n, n_labels) before the link and a calibrator; None where a model does not tell
    proba : (n, n_labels) their probabilities; NaN for unknown ids under ``unknown="nan"``
    support : (n, 2) summed weight of the training labels of the row and of the column; None where a model does not tell
    decide : turns probabilities (n, n_labels) into the codes of the labels to predict (n,)
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
        """The predicted labels (n,); an error where probabilities are NaN, of which no label can be said."""
        refuse_nan(self.proba)
        return np.asarray(self.classes[self.codes])

    @property
    def mean(self) -> Array:
        """The expected value of labels that are numbers (n,)."""
        return np.asarray(self.proba @ numeric_values(self.classes))

    @property
    def least_support(self) -> Array:
        """The support of the less known of the two ids (n,)."""
        if self.support is None:
            raise InputError("The model does not tell what it knew of ids: expected one with a method support(X).")
        return np.asarray(self.support.min(axis=1))


def refuse_nan(proba: Array) -> None:
    """Raise an error where probabilities are NaN."""
    if np.isnan(proba).any():
        raise UnknownIdError(
            f"{int(np.isnan(proba).any(axis=1).sum())} dyads have ids not seen in training, whose probabilities "
            "are NaN under unknown='nan': no label can be predicted. Drop them, or set unknown='prior'."
        )


def predictions_of(model: Any, X: Any, row_features: Any = None, col_features: Any = None) -> Predictions:
    """What a model says of the dyads of X.

    One of this library makes predictions itself. Of any other, with `predict_proba`, `predict` and `classes_`, they are
    put together; it is given features only if there are any.
    """
    if hasattr(model, "predictions"):
        return model.predictions(  # type: ignore[no-any-return]
            X, row_features=row_features, col_features=col_features
        )
    tables = {"row_features": row_features, "col_features": col_features}
    given = {name: table for name, table in tables.items() if table is not None}
    return Predictions(
        classes=model.classes_,
        scores=None,
        proba=np.asarray(model.predict_proba(X, **given)),
        decide=lambda _: label_codes(model.predict(X, **given), model.classes_),
        support=model.support(X) if hasattr(model, "support") else None,
    )


# ------------------------------------------------------------------------------------------------------------ how sure

CELLS = 2**24
"""Probabilities held at once while intervals are found."""


def sample_proba(record: Record, n: int | None, codes: list[Codes], features: Any, engine: Engine) -> Array:
    """The probabilities (n, n_dyads, n_labels) of dyads under `n` draws, evenly taken from those kept; None is all.

    Entities without labels are one draw from their prior, another one in each.
    """
    if not record.is_posterior:
        raise InputError("The model is a point estimate, which has no uncertainty: expected one of solver='gibbs'.")
    models = record.models
    n = len(models) if n is None else n
    if not isinstance(n, numbers.Integral) or not 1 <= n <= len(models):
        raise InputError(f"n={n!r} draws are not possible: expected 1 to {len(models)}, as many as were kept.")
    chosen = np.linspace(0, len(models) - 1, int(n)).round().astype(np.int64)
    drawn = [record.proba(engine.scores([models[i].one_draw()], codes, features)) for i in chosen.tolist()]
    return np.stack(drawn)


def interval(record: Record, level: float, codes: list[Codes], features: Any, engine: Engine) -> Array:
    """The bounds (n_dyads, n_labels, 2) between which each probability lies with the posterior probability `level`."""
    if not (isinstance(level, numbers.Real) and 0 < level < 1):
        raise InputError(f"level={level!r} is not possible: expected a number between 0 and 1.")
    tails = (1 - float(level)) / 2, (1 + float(level)) / 2
    bounds = [
        np.moveaxis(np.quantile(sample_proba(record, None, part, lines, engine), tails, axis=0), 0, -1)
        for part, lines in _cut(codes, features, max(1, CELLS // (len(record.draws) * len(record.known.classes))))
    ]
    return np.concatenate(bounds) if bounds else np.zeros((0, len(record.known.classes), 2))


def _cut(codes: list[Codes], features: Any, size: int) -> Iterator[tuple[list[Codes], Any]]:
    """Some dyads at a time."""
    for first in range(0, len(codes[0]), size):
        at = slice(first, first + size)
        yield [column[at] for column in codes], None if features is None else features[at]
