"""A stack of a link model and the random walk on the graph of its links, weighed by logistic regression."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from dyads.data.codes import Codes, encode_labels, label_codes
from dyads.data.dyads import Dyads
from dyads.data.observations import read_dyads
from dyads.engine import Engine
from dyads.errors import InputError
from dyads.estimators.search import Data, part_of
from dyads.model.record import Draw, Known, Model, Parts, Record
from dyads.model.structure import without_reference
from dyads.model.walk import Walk
from dyads.trained.coldstart import with_mean_predictions, with_spread

Array = np.ndarray[Any, Any]

FOLDS = 5
"""Folds of the training pairs: the model and the walk score those of a fold without having seen them."""

LEAST_LINKS = FOLDS
"""Least number of links, and of non-links: each fold then has one, and the others have some."""

REACH = 0.8
"""Probability of the walk to go on. From 0.5 to 0.95 it ranks the links of the co-authors about equally well."""

LEAST_WEIGHT = 1e-3
"""Least weight of the model's log-odds, which keeps its scores in their order."""


class Weighing(NamedTuple):
    """The log-odds of a link in the stack: constant + odds * (log-odds of the model) + walk . (walk's features)."""

    constant: float
    odds: float
    walk: Array


def cross_fitted(plain: Any, data: Data, population: Array | None, callback: Any) -> tuple[Array, Array, Array, Array]:
    """Score each training pair by a model, and by the walk, that were fitted without it.

    Returns the log-odds of the model (n,), the features of the walk (n, 2) about their means over non-links, whether
    the pair is a link (n,), and its weight (n,). Means differ between graphs, as that of a fold has fewer links. Pairs
    with a node that occurs in no other fold are left out.

    `plain` : the link model, not fitted. `callback` : as for `fit`.
    """
    counted = np.arange(len(data[1])) if data[2] is None else np.flatnonzero(data[2])
    data, population = part_of(data, counted), None if population is None else population[counted]
    _, label = encode_labels(data[1])
    scored = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(label, label):
        X, y, weight = part_of(data, train)
        rates = None if population is None else population[train]
        model = clone(plain).fit(X, y, weight, callback=callback, population_weight=rates)
        known = model.record_.known
        X_test, y_test, weight_test = part_of(data, test)
        (row, col), _ = read_dyads(X_test, known.vocabularies, model.columns_)
        label = label_codes(y_test, model.classes_)
        size = (1.0 if weight_test is None else weight_test) * (1.0 if population is None else population[test])
        walk = Walk(REACH).features(known.graph, row, col)
        walk = walk - non_link_means(walk, label)
        parts = (model.decision_function(X_test), walk, label > 0, np.broadcast_to(size, len(label)))
        scored.append([part[(row >= 0) & (col >= 0)] for part in parts])
    odds, walk, linked, weight = (np.concatenate(parts) for parts in zip(*scored, strict=True))
    if linked.all() or not linked.any():
        raise InputError(
            "The pairs whose nodes both have other pairs are all links, or all non-links: expected some of each, to "
            "weigh the walk by. Use LFLLink."
        )
    return odds, walk, linked, weight


def non_link_means(walk: Array, label: Codes) -> Array:
    """Means (2,) of the features of the walk over non-links, whose scores do not depend on their own label."""
    return np.asarray(walk[label == 0].mean(axis=0))


def weighed(odds: Array, walk: Array, linked: Array, weight: Array) -> tuple[Array, Weighing]:
    """Weigh the log-odds and the walk: first so that they rank links well, then so that they are calibrated.

    Returns the scales (2,) of the features of the walk, and the weights.

    Links are rare. A regression that gives both labels the same total weight finds how much the walk adds for pairs of
    any probability, and so ranks them better. A second one then fits the scale and the constant to all pairs as they
    are.
    """
    scale = np.where(walk.std(axis=0) > 0, walk.std(axis=0), 1.0)
    standard = walk / scale
    shares = weight / np.where(linked, weight[linked].sum(), weight[~linked].sum())
    ranked = LogisticRegression(C=np.inf).fit(np.column_stack([odds, standard]), linked, shares * len(odds))
    by_odds, by_walk = max(float(ranked.coef_[0, 0]), LEAST_WEIGHT), ranked.coef_[0, 1:]
    calibrated = LogisticRegression(C=np.inf).fit((by_odds * odds + standard @ by_walk)[:, None], linked, weight)
    slope = max(float(calibrated.coef_[0, 0]), LEAST_WEIGHT)
    return scale, Weighing(float(calibrated.intercept_[0]), slope * by_odds, slope * by_walk)


def stacked(record: Record, scale: Array, weighing: Weighing, dyads: Dyads, engine: Engine) -> Record:
    """Return the stack as one model, which has the walk as a feature of dyads.

    The log-odds of a point estimate are a sum of biases and of products of latent weights. They are multiplied by a
    number if the biases are, and the latent weights by its square root, or those shared by all dyads by the number.
    """
    (model,) = record.models
    raw = Walk(REACH).features(record.known.graph, dyads.row, dyads.col)
    first, second = non_link_means(raw, dyads.label).tolist()
    walk = Walk(REACH, (first, second), (float(scale[0]), float(scale[1])))
    parts, known = record.parts, replace(record.known, walk=walk)
    theta = _scaled(parts, record.known, known, model.theta, weighing)
    features = sparse.csr_array((raw - walk.centre) / walk.scale)
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
    parts.layout(after).side_weights(scaled)[2][:] = weighing.walk[:, None] * without_reference(structure, linked)
    return scaled
