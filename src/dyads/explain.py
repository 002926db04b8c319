"""What a prediction is made of: the exact additive parts of each label's log-odds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.data.vocabulary import Codes
from dyads.engine import Engine
from dyads.model.fitted import Fitted
from dyads.model.structure import with_base, without_base

Array = np.ndarray[Any, Any]


Part = tuple[Array, Any, Array]
"""The dyads a part belongs to, its name or their names, and its values (n, free labels)."""


class Parts(NamedTuple):
    """Parts of log-odds, one line each, in the order of the dyads.

    Attributes
    ----------
    dyad : (n_parts,) which dyad, from 0
    name : (n_parts,) "label bias", "row bias", "column bias", "latent", or a feature such as "row: age"
    value : (n_parts, n_labels) what it adds to the log-odds of each label
    """

    dyad: Array
    name: Array
    value: Array


def explain(fitted: Fitted, codes: Sequence[Codes], features: Any, engine: Engine) -> Parts:
    """Split the log-odds of dyads into parts that sum to them.

        log-odds_y = label bias + row bias + column bias + latent + sum over features of x_f w_fy

    The biases are the entities' own; the latent part holds all products, those of features with `interactions` too.
    Features that are zero add nothing and are left out. An entity without labels has average biases, and one of which
    nothing is known has average features, summed in one part. Their probabilities are means over what the own block may
    be: what that adds to the log-odds of an average one is the part "unknown". Of averaged models the parts are the
    means of theirs, and what averaging their probabilities adds to that is the part "averaging".
    """
    if fitted.members:
        return _of_many(fitted, codes, features, engine)
    row, col, relation = (*codes, None)[:3]
    n = np.arange(len(row))
    linear = [(n, "label bias", _label_bias(fitted, relation, len(row)))]
    for i, column in enumerate((row, col)):
        linear += _side_parts(fitted, i, column)
    if features is not None:
        linear.append(_of_features(features, n, fitted.layout.side_weights(fitted.theta)[2], "dyad", fitted))
    total = np.zeros_like(linear[0][2])
    for at, _, value in linear:
        np.add.at(total, at, value)
    predicted = engine.scores(fitted, codes, features)
    average = engine.scores(fitted.without_spread(), codes, features)
    new = np.flatnonzero(fitted.new[0][row] | fitted.new[1][col])
    latent = (n, "latent", _free(fitted, average) - total)
    unknown = (new, "unknown", _free(fitted, predicted[new]) - _free(fitted, average[new]))
    return _in_order(fitted, [*linear, latent, unknown])


def _of_many(fitted: Fitted, codes: Sequence[Codes], features: Any, engine: Engine) -> Parts:
    each = [explain(member, codes, features, engine) for member in fitted.every]
    value = np.mean([parts.value for parts in each], axis=0)
    odds = fitted.log_odds(engine.scores(fitted, codes, features))
    np.subtract.at(odds, each[0].dyad, value)
    dyad = np.concatenate([each[0].dyad, np.arange(len(odds))])
    name = np.concatenate([each[0].name, np.full(len(odds), "averaging")])
    order = np.argsort(dyad, kind="stable")
    return Parts(dyad[order], name[order], np.concatenate([value, odds])[order])


def _label_bias(fitted: Fitted, relation: Codes | None, n: int) -> Array:
    bias = fitted.layout.named(fitted.theta)["label_bias"].astype(np.float64)
    # The code -1 finds the last, the average relation's.
    return np.vstack([bias, bias.mean(axis=0)])[np.zeros(n, np.int64) if relation is None else relation]


def _side_parts(fitted: Fitted, i: int, codes: Codes) -> list[Part]:
    """The parts of rows (i = 0) or columns (1): the own bias, and one of each feature."""
    layout, entities = fitted.layout, (fitted.rows, fitted.cols)[i]
    bias = layout.bias_columns[i]
    if not len(bias):
        return []
    own = layout.blocks(fitted.theta)[i][:, bias].astype(np.float64)
    n, name = np.arange(len(codes)), ("row bias", "column bias")[i]
    parts: list[Part] = [(n, name, np.where(codes[:, None] >= 0, own[codes], entities.average[bias]))]
    if entities.n_features:
        table, side = 0 if fitted.structure.one_set else i, ("row", "col")[i]
        weights = layout.side_weights(fitted.theta)[table][:, np.searchsorted(layout.side_columns[table], bias)]
        known, unknown = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
        parts.append(_of_features(entities.features[codes[known]], known, weights, side, fitted))
        average = np.broadcast_to(entities.average_features @ weights.astype(np.float64), (len(unknown), len(bias)))
        parts.append((unknown, f"{side}: features of an average one", average))
    return parts


def _of_features(features: Any, dyad: Array, weights: Array, side: str, fitted: Fitted) -> Part:
    """What each feature that is not zero adds: x_f w_f. `dyad` : the dyad of each line of `features`."""
    x = features.tocoo()
    names = np.array([f"{side}: {name}" for name in fitted.feature_names(side)])
    return dyad[x.row], names[x.col], x.data[:, None] * weights.astype(np.float64)[x.col]


def _free(fitted: Fitted, score: Array) -> Array:
    """Scores of the free labels, relative to the base if there is one."""
    base = fitted.structure.base
    return without_base(fitted.structure, score - score[:, [base]]) if base < score.shape[1] else score


def _in_order(fitted: Fitted, found: list[Part]) -> Parts:
    dyad = np.concatenate([at for at, _, _ in found])
    name = np.concatenate([np.broadcast_to(names, at.shape) for at, names, _ in found])
    value = np.concatenate([values for _, _, values in found])
    order = np.argsort(dyad, kind="stable")
    return Parts(dyad[order], name[order], fitted.log_odds(with_base(fitted.structure, value[order])))
