"""How sure probabilities are: what draws from the posterior say of them."""

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from dyads.data.vocabulary import Codes
from dyads.engine import Engine
from dyads.errors import InputError
from dyads.model.record import Record

Array = np.ndarray[Any, Any]

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
