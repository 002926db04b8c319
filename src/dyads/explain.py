"""What a prediction is made of: the exact additive parts of each label's log-odds."""

from typing import Any, NamedTuple

import numpy as np

from dyads.data.vocabulary import Codes
from dyads.engine.host import scores
from dyads.model.fitted import Fitted

Array = np.ndarray[Any, Any]


class Parts(NamedTuple):
    """Parts of log-odds, one line each, in the order of the dyads.

    Attributes
    ----------
    dyad : (n_parts,) which dyad, from 0
    name : (n_parts,) "label bias", "row bias", "column bias", "latent", or a feature such as "row age", "dyad price"
    value : (n_parts, n_labels) what it adds to the log-odds of each label
    """

    dyad: Array
    name: Array
    value: Array


def explain(fitted: Fitted, row: Codes, col: Codes, relation: Codes | None, features: Any, n_jobs: int | None) -> Parts:
    """Split the log-odds of dyads into parts that sum to them.

        log-odds_y = label bias + row bias + column bias + latent + sum over features of x_f w_fy

    The biases are the entities' own; the latent part holds all products, those of features with `interactions` too.
    Features that are zero add nothing and are left out. An entity without labels has average biases, and one of which
    nothing is known has average features, summed in one part. Their probabilities are means over what the own block may
    be: what that adds to the log-odds of an average one is the part "unknown".
    """
    structure, layout = fitted.structure, fitted.layout
    named = {name: np.asarray(part, np.float64) for name, part in layout.named(fitted.theta).items()}
    label = named["label_bias"]
    if relation is None:
        label = np.broadcast_to(label[0], (len(row), label.shape[1]))
    else:
        # The code -1 finds the last, the average relation's.
        label = np.vstack([label, label.mean(axis=0)])[relation]
    n = np.arange(len(row))
    found: list[tuple[Array, Any, Array]] = [(n, "label bias", label)]
    total = label.copy()
    sides = (("row", "row bias", fitted.rows, row), ("col", "column bias", fitted.cols, col))
    for i, (side, name, entities, codes) in enumerate(sides):
        bias = layout.bias_columns[i]
        if not len(bias):
            continue
        own = layout.blocks(fitted.theta)[i][:, bias].astype(np.float64)
        value = np.where(codes[:, None] >= 0, own[codes], entities.average[bias])
        found.append((n, name, value))
        total += value
        if entities.n_features:
            place = 0 if structure.one_set else i
            weights = layout.side_weights(fitted.theta)[place].astype(np.float64)
            weights = weights[:, np.searchsorted(layout.side_columns[place], bias)]
            lines = fitted.side[place]
            names = np.array([f"{side} {one}" for one in fitted.feature_names("row" if structure.one_set else side)])
            known = np.flatnonzero(codes >= 0)
            x = lines[codes[known]].tocoo()
            value = x.data[:, None] * weights[x.col]
            found.append((known[x.row], names[x.col], value))
            np.add.at(total, known[x.row], value)
            unknown = np.flatnonzero(codes < 0)
            average = np.broadcast_to(entities.average_features @ weights, (len(unknown), len(bias)))
            if len(unknown):
                found.append((unknown, f"{side} features of an average one", average))
                total[unknown] += average
    if features is not None:
        x = features.tocoo()
        names = np.array([f"dyad {one}" for one in fitted.feature_names("dyad")])
        value = x.data[:, None] * named["dyad_side"][x.col]
        found.append((x.row, names[x.col], value))
        np.add.at(total, x.row, value)
    codes = (row, col) if relation is None else (row, col, relation)
    predicted = scores(fitted, *codes, features=features, n_jobs=n_jobs)
    average = scores(fitted.without_spread(), *codes, features=features, n_jobs=n_jobs)
    found.insert(3 if structure.n_bias else 1, (n, "latent", _free(fitted, average) - total))
    new = np.flatnonzero(fitted.new_entities[0][row] | fitted.new_entities[1][col])
    if len(new):
        found.append((new, "unknown", _free(fitted, predicted[new]) - _free(fitted, average[new])))
    return _in_order(fitted, found)


def _free(fitted: Fitted, score: Array) -> Array:
    """Scores of the free labels, relative to the base if there is one."""
    base = fitted.structure.base
    return np.delete(score - score[:, [base]], base, axis=1) if base < score.shape[1] else score


def _in_order(fitted: Fitted, found: list[tuple[Array, Any, Array]]) -> Parts:
    structure = fitted.structure
    dyad = np.concatenate([at for at, _, _ in found])
    name = np.concatenate([np.broadcast_to(names, at.shape) for at, names, _ in found])
    value = np.concatenate([values for _, _, values in found])
    if structure.base < structure.n_labels:
        value = np.insert(value, structure.base, 0, axis=1)
    order = np.argsort(dyad, kind="stable")
    return Parts(dyad[order], name[order], fitted.log_odds(value[order]))
