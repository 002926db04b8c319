"""Synthetic dyads with known probabilities."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dyads.model.loss import link
from dyads.settings import generator_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Synthetic:
    """All cells of a rows x columns matrix, with the probabilities their labels were drawn from.

    Attributes
    ----------
    X : dict of two (n,) id columns
    y : (n,) drawn labels
    proba : (n, n_labels) true probabilities
    classes : (n_labels,) labels, one per column of `proba`
    """

    X: dict[str, Array]
    y: Array
    proba: Array
    classes: Array

    @property
    def bayes_error(self) -> float:
        """The Bayes error, 1 - mean max_y p(y): the expected 0-1 error of the best prediction."""
        return float(1 - self.proba.max(axis=1).mean())

    def take(self, which: Array) -> "Synthetic":
        """Select some cells; `which` : positions, or a mask (n,)."""
        X = {name: column[which] for name, column in self.X.items()}
        return Synthetic(X, self.y[which], self.proba[which], self.classes)

    def split(self, retention: float, random_state: int = 0) -> "tuple[Synthetic, Synthetic]":
        """Split cells at random into (train, test); each is in train with probability `retention`."""
        train = generator_of(random_state).random(len(self.y)) < retention
        return self.take(train), self.take(~train)


def make_nominal(
    n: int = 500, rank: int = 5, n_labels: int = 3, width: float = 3.0, random_state: int = 0
) -> Synthetic:
    """The paper's nominal data (section 5.1): an n x n matrix of labels 1..n_labels.

    p(y | r, c) ∝ exp(alpha_ry . beta_cy),    entries of alpha, beta uniform on [-width, width]
    """
    rng = generator_of(random_state)
    alpha, beta = rng.uniform(-width, width, (2, n, n_labels, rank))
    scores = np.einsum("ryk,cyk->rcy", alpha, beta).reshape(n * n, n_labels)
    row, col = np.divmod(np.arange(n * n), n)
    return _draw({"row": row, "col": col}, scores, np.arange(1, n_labels + 1), rng)


def make_store(n_shoppers: int = 600, n_products: int = 400, random_state: int = 0) -> Synthetic:
    """A store: shopper x product -> viewed, bought or returned, from latent tastes, habits and popularity."""
    rng = generator_of(random_state)
    outcomes = np.array(["bought", "returned", "viewed"])
    taste, appeal = rng.normal(size=(n_shoppers, 3, 4)), rng.normal(size=(n_products, 3, 4))
    habit, popularity = rng.normal(scale=0.7, size=(n_shoppers, 3)), rng.normal(scale=0.7, size=(n_products, 3))
    usual = np.array([0.0, -1.2, 0.8])
    scores = usual + habit[:, None] + popularity + np.einsum("ryk,cyk->rcy", taste, appeal)
    shopper = np.array([f"shopper-{i:03d}" for i in range(n_shoppers)])
    product = np.array([f"product-{i:03d}" for i in range(n_products)])
    X = {"shopper": np.repeat(shopper, n_products), "product": np.tile(product, n_shoppers)}
    return _draw(X, scores.reshape(-1, 3), outcomes, rng)


def _draw(X: dict[str, Array], scores: Array, classes: Array, rng: np.random.Generator) -> Synthetic:
    proba = link(scores)
    code = (rng.random((len(proba), 1)) > proba.cumsum(axis=1)).sum(axis=1).clip(max=len(classes) - 1)
    return Synthetic(X, classes[code], proba, classes)


def make_relations(n: int = 60, random_state: int = 0) -> tuple[dict[str, Array], Array]:
    """People x people x relation -> 0 or 1: friends and colleagues are alike, rivals opposite, kin unrelated."""
    rng = generator_of(random_state)
    sources, targets = rng.normal(size=(2, n, 3))
    weights = {
        "is-friend-of": [2.0, 1.0, 0.0],
        "is-colleague-of": [1.6, 1.2, 0.3],
        "is-rival-of": [-1.8, -0.8, 0.0],
        "is-kin-of": [0.1, -0.2, 2.0],
    }
    row, col = np.divmod(np.arange(n * n), n)
    X: dict[str, list[Array]] = {"source": [], "target": [], "relation": []}
    y = []
    for name, diagonal in weights.items():
        odds = (sources * diagonal @ targets.T).ravel() - 1
        for column, values in zip(X.values(), (row, col, np.full(n * n, name)), strict=True):
            column.append(values)
        y.append(_draw({}, np.column_stack([np.zeros(n * n), odds]), np.array([0, 1]), rng).y)
    return {name: np.concatenate(columns) for name, columns in X.items()}, np.concatenate(y)
