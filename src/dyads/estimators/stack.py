"""A stack of a link model and the random walk on the graph of its links, weighed by logistic regression."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from dyads.data.codes import encode_labels, label_codes
from dyads.data.dyads import Dyads
from dyads.data.observations import read_dyads
from dyads.engine import Engine
from dyads.estimators.search import Data, part_of
from dyads.model.record import Draw, Known, Model, Parts, Record
from dyads.model.structure import without_reference
from dyads.model.walk import Walk
from dyads.trained.coldstart import with_mean_predictions, with_spread

Array = np.ndarray[Any, Any]

FOLDS = 5
"""Folds of the training pairs: the model and the walk score those of a fold without having seen them."""

LEAST_LINKS = 2 * FOLDS
"""Least number of links: each fold then has two, and the others have some."""

REACH = 0.8
"""Probability of the walk to go on. From 0.5 to 0.95 it ranks the links of the co-authors about equally well."""

LEAST_WEIGHT = 1e-3
"""Least weight of the model's log-odds, which keeps its scores in their order."""


class Weighing(NamedTuple):
    """The log-odds of a link in the stack: constant + odds * (log-odds of the model) + walk * (feature of the walk)."""

    constant: float
    odds: float
    walk: float


def cross_fitted(plain: Any, data: Data, population: Array | None) -> tuple[Array, Array, Array, Array]:
    """Score each training pair by a model, and by the walk, that were fitted without it.

    Returns the log-odds of the model (n,), the feature of the walk (n,), whether the pair is a link (n,), and its
    weight (n,). Pairs with a node that occurs in no other fold are left out. `plain` : the link model, not fitted.
    """
    counted = np.arange(len(data[1])) if data[2] is None else np.flatnonzero(data[2])
    data, population = part_of(data, counted), None if population is None else population[counted]
    _, label = encode_labels(data[1])
    scored = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(label, label):
        X, y, weight = part_of(data, train)
        model = clone(plain).fit(X, y, weight, population_weight=None if population is None else population[train])
        known = model.record_.known
        X_test, y_test, weight_test = part_of(data, test)
        (row, col), _ = read_dyads(X_test, known.vocabularies, model.columns_)
        label = label_codes(y_test, model.classes_)
        size = (1.0 if weight_test is None else weight_test) * (1.0 if population is None else population[test])
        lines = [
            model.decision_function(X_test), Walk(REACH).features(known.graph, row, col), label > 0,
            np.broadcast_to(size, len(label)),
        ]  # fmt: skip
        scored.append(np.stack(lines)[:, (row >= 0) & (col >= 0)])
    odds, walk, linked, weight = np.concatenate(scored, axis=1)
    return odds, walk, linked > 0, weight


def weighed(odds: Array, walk: Array, linked: Array, weight: Array) -> tuple[Walk, Weighing]:
    """Weigh the log-odds and the walk: first so that they rank links well, then so that they are calibrated.

    Links are rare. A regression that gives both labels the same total weight finds how much the walk adds for pairs of
    any probability, and so ranks them better. A second one then fits the scale and the constant to all pairs as they
    are.
    """
    centre, scale = float(np.average(walk, weights=weight)), float(walk.std()) or 1.0
    standard = (walk - centre) / scale
    shares = weight / np.where(linked, weight[linked].sum(), weight[~linked].sum())
    ranked = LogisticRegression(C=np.inf).fit(np.stack([odds, standard], axis=1), linked, shares * len(odds))
    by_odds, by_walk = ranked.coef_[0]
    by_odds = max(by_odds, LEAST_WEIGHT)
    calibrated = LogisticRegression(C=np.inf).fit((by_odds * odds + by_walk * standard)[:, None], linked, weight)
    slope = max(float(calibrated.coef_[0, 0]), LEAST_WEIGHT)
    return Walk(REACH, centre, scale), Weighing(float(calibrated.intercept_[0]), slope * by_odds, slope * by_walk)


def stacked(record: Record, walk: Walk, weighing: Weighing, dyads: Dyads, engine: Engine) -> Record:
    """Return the stack as one model, which has the walk as a feature of dyads.

    The log-odds of a point estimate are a sum of biases and of products of latent weights. They are multiplied by a
    number if the biases are, and the latent weights by its square root, or those shared by all dyads by the number.
    """
    (model,) = record.models
    parts, known = record.parts, replace(record.known, walk=walk)
    theta = _scaled(parts, record.known, known, model.theta, weighing)
    features = known.pair_features(dyads.codes)
    bound = replace(dyads, side=known.side._replace(dyad=features))
    point = Model(parts=parts, known=known, draw=Draw.trained(parts, known, theta))
    draw = with_spread(point, bound, engine)
    if record.draws[0].prediction is not None:
        draw = with_mean_predictions(replace(point, draw=draw), bound, engine)
    return replace(record, known=known, draws=(draw,))


def _scaled(parts: Parts, before: Known, after: Known, theta: Array, weighing: Weighing) -> Array:
    """The parameters of the stack, by those of its model."""
    structure, scaled = parts.structure, np.zeros(parts.layout(after).size, theta.dtype)
    named, old = parts.layout(after).named(scaled), parts.layout(before).named(theta)
    has_shared = bool(structure.latent_shapes()[2])
    for name, part in old.items():
        if "factors" in name:
            named[name][:] = part * (1.0 if has_shared else np.sqrt(weighing.odds))
        else:
            named[name][:] = part * weighing.odds
    linked = np.eye(2)[[1]]
    named["label_bias"][:] += weighing.constant * without_reference(structure, linked)
    parts.layout(after).side_weights(scaled)[2][:] = weighing.walk * without_reference(structure, linked)
    return scaled
