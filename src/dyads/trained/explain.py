"""Explanations: the exact additive decomposition of the log-odds of each label."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import Codes
from dyads.engine import Engine
from dyads.model.record import Model, Record
from dyads.model.structure import with_reference, without_reference

Array = np.ndarray[Any, Any]


LogOddsPart = tuple[Array, Any, Array]
"""(dyads, names, values) of a part: positions (n,), one name or (n,) names, and (n, n_free_labels) values."""


class Explanation(NamedTuple):
    """Additive parts of log-odds, sorted by dyad.

    Attributes
    ----------
    dyad : (n_parts,) position of the dyad, from 0
    name : (n_parts,) "label bias", "row bias", "column bias", "latent", or a feature such as "row: age"
    value : (n_parts, n_labels) contribution to the log-odds of each label
    """

    dyad: Array
    name: Array
    value: Array


def explain(record: Record, codes: Sequence[Codes], features: Any, engine: Engine) -> Explanation:
    """Decompose the log-odds of dyads into parts that sum to them exactly.

        log-odds_y = label bias + row bias + column bias + latent + sum_f x_f w_fy

    The biases are the entities' own. The latent part has all products, also those of features with `interactions`.
    Features that are zero are left out.

    An entity without labels has the average biases; an unknown entity also has the average features, as one part.
    Its probabilities are averages over its prior: the part "unknown" is the difference between their log-odds and those
    of an average entity. With several models or draws, each part is the mean over them, and the part "averaging" is the
    difference between the log-odds of the averaged probabilities and the sum of these means.
    """
    explained = [_explain_model(model, codes, features, engine) for model in record.models]
    first = explained[0]
    if len(explained) == 1:
        return first
    value = np.mean([parts.value for parts in explained], axis=0)
    odds = record.parts.log_odds(engine.scores(record.models, codes, features))
    np.subtract.at(odds, first.dyad, value)
    dyad = np.concatenate([first.dyad, np.arange(len(odds))])
    name = np.concatenate([first.name, np.full(len(odds), "averaging")])
    order = np.argsort(dyad, kind="stable")
    return Explanation(dyad[order], name[order], np.concatenate([value, odds])[order])


def _explain_model(model: Model, codes: Sequence[Codes], features: Any, engine: Engine) -> Explanation:
    row, col = codes[:2]
    relation = codes[2] if len(codes) > 2 else None
    n = np.arange(len(row))
    linear: list[LogOddsPart] = [(n, "label bias", _label_bias(model, relation, len(row)))]
    for i, column in enumerate((row, col)):
        linear += _side_parts(model, i, column)
    if features is not None:
        linear.append(_of_features(features, n, model.layout.side_weights(model.theta)[2], "dyad", model))
    total = np.zeros_like(linear[0][2])
    for at, _, value in linear:
        np.add.at(total, at, value)
    predicted = engine.scores([model], codes, features)
    average = engine.scores([model.without_spread()], codes, features)
    new = np.flatnonzero(model.new[0][row] | model.new[1][col])
    latent = (n, "latent", _free(model, average) - total)
    unknown = (new, "unknown", _free(model, predicted[new]) - _free(model, average[new]))
    return _in_order(model, [*linear, latent, unknown])


def _label_bias(model: Model, relation: Codes | None, n: int) -> Array:
    bias = model.layout.named(model.theta)["label_bias"].astype(np.float64)
    # The code -1 of an unknown relation selects the last row, the average.
    return np.vstack([bias, bias.mean(axis=0)])[np.zeros(n, np.int64) if relation is None else relation]


def _side_parts(model: Model, role: int, codes: Codes) -> list[LogOddsPart]:
    """The parts of rows (role 0) or columns (role 1): the own bias, and one part per feature."""
    layout, population, place = model.layout, model.populations[role], model.known.set_of(role)
    bias, entities = layout.bias_columns[role], model.known.sets[place]
    if not len(bias):
        return []
    own = layout.blocks(model.theta)[role][:, bias].astype(np.float64)
    n, name = np.arange(len(codes)), ("row bias", "column bias")[role]
    parts: list[LogOddsPart] = [(n, name, np.where(codes[:, None] >= 0, own[codes], population.average[bias]))]
    if entities.n_features:
        side = ("row", "col")[role]
        weights = layout.side_weights(model.theta)[place][:, np.searchsorted(layout.side_columns[place], bias)]
        known, unknown = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
        parts.append(_of_features(entities.features[codes[known]], known, weights, side, model))
        average = np.broadcast_to(entities.average_features @ weights.astype(np.float64), (len(unknown), len(bias)))
        parts.append((unknown, f"{side}: features of an average one", average))
    return parts


def _of_features(features: Any, dyad: Array, weights: Array, side: str, model: Model) -> LogOddsPart:
    """The contribution x_f w_f of each nonzero feature. `dyad` : the dyad of each row of `features`."""
    x = features.tocoo()
    names = np.array([f"{side}: {name}" for name in model.known.feature_names(side)])
    return dyad[x.row], names[x.col], x.data[:, None] * weights.astype(np.float64)[x.col]


def _free(model: Model, score: Array) -> Array:
    """Scores (n, n_free_labels) of the free labels, relative to the reference label if there is one."""
    reference = model.structure.reference
    return without_reference(model.structure, score - score[:, [reference]]) if reference < score.shape[1] else score


def _in_order(model: Model, parts: list[LogOddsPart]) -> Explanation:
    dyad = np.concatenate([at for at, _, _ in parts])
    name = np.concatenate([np.broadcast_to(names, at.shape) for at, names, _ in parts])
    value = np.concatenate([values for _, _, values in parts])
    order = np.argsort(dyad, kind="stable")
    return Explanation(dyad[order], name[order], model.parts.log_odds(with_reference(model.structure, value[order])))
