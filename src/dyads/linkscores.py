"""Scores of links that anyone would try first, from the graph of known links; alone, or as features of pairs."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted

from dyads.data.observations import Observations, read_dyads, read_observations
from dyads.data.tables import lines, named_arrays
from dyads.errors import unknown_name

Array = np.ndarray[Any, Any]


def adamic_adar(linked: Array, reach: float) -> Array:
    """How many neighbours two nodes share, each by 1 / log of its degree (`reach` is not used)."""
    degree = linked.sum(axis=1)
    weight = np.divide(1, np.log(np.maximum(degree, 2)), out=np.zeros(len(linked)), where=degree > 1)
    return (linked * weight) @ linked  # type: ignore[no-any-return]


def katz(linked: Array, reach: float) -> Array:
    """Paths between two nodes, those of length k by beta^k: (I - beta G)^-1 - I, beta = reach / greatest eigenvalue."""
    largest = np.linalg.eigvalsh(linked)[-1]
    identity = np.eye(len(linked))
    return np.linalg.inv(identity - reach / max(largest, 1) * linked) - identity  # type: ignore[no-any-return]


def random_walk(linked: Array, reach: float) -> Array:
    """How often a walk that goes on with probability `reach`, else starts again, is at the other node; both ways."""
    degree = np.maximum(linked.sum(axis=1, keepdims=True), 1)
    visits = (1 - reach) * np.linalg.inv(np.eye(len(linked)) - reach * linked / degree)
    return visits + visits.T  # type: ignore[no-any-return]


KINDS = {"adamic-adar": adamic_adar, "katz": katz, "random walk": random_walk}


class LinkScore(ClassifierMixin, BaseEstimator):
    """A score of undirected links from the graph of links known: `kind` is one of `KINDS`, `reach` between 0 and 1.

    A pair is linked where its label is the last. The matrix of all nodes is held in memory.
    """

    def __init__(self, kind: str = "adamic-adar", reach: float = 0.5) -> None:
        self.kind = kind
        self.reach = reach

    def fit(self, X: Any, y: Any) -> Self:
        """Take the graph of labelled pairs."""
        if self.kind not in KINDS:
            raise unknown_name("kind", self.kind, KINDS)
        seen = read_observations(X, y, None, one_set=True)
        self.classes_ = seen.classes
        self._seen, self._scores = seen, KINDS[self.kind](_graph(seen), self.reach)
        return self

    def decision_function(self, X: Any) -> Array:
        """The score of each pair (n,); 0 of nodes that the graph lacks."""
        check_is_fitted(self)
        (row, col), _ = read_dyads(X, [self._seen.rows, self._seen.cols], self._seen.columns)
        return np.where((row >= 0) & (col >= 0), self._scores[row, col], 0.0)

    def predict(self, X: Any) -> Array:
        """The last label for scores above 0, else the first (n,)."""
        return np.where(self.decision_function(X) > 0, self.classes_[-1], self.classes_[0])


class WithLinkScores(ClassifierMixin, BaseEstimator):
    """A model of links that has the logarithms of all link scores as features of pairs.

    Katz and the walk know a link that is in the graph, so the scores of training pairs come from graphs without them:
    those of the other `n_folds` - 1 parts of the pairs.
    """

    def __init__(self, estimator: Any, reach: float = 0.5, n_folds: int = 10) -> None:
        self.estimator = estimator
        self.reach = reach
        self.n_folds = n_folds

    def fit(self, X: Any, y: Any) -> Self:
        """Score the pairs, and fit the model."""
        columns, labels = named_arrays(X), np.asarray(y)
        scores = np.empty((len(labels), len(KINDS)))
        for train, test in KFold(self.n_folds, shuffle=True, random_state=0).split(labels):
            scores[test] = _all_scores(self._scorers(lines(columns, train), labels[train]), lines(columns, test))
        self._least = np.array([column[column > 0].min(initial=1.0) for column in scores.T])
        self._all = self._scorers(columns, labels)
        self._model = clone(self.estimator).fit(self._with(columns, scores), labels)
        self.classes_ = self._model.classes_
        return self

    def _scorers(self, columns: dict[str, Array], labels: Array) -> list[LinkScore]:
        return [LinkScore(kind, self.reach).fit(columns, labels) for kind in KINDS]

    def _with(self, columns: dict[str, Array], scores: Array) -> dict[str, Array]:
        return columns | dict(zip(KINDS, np.log(np.maximum(scores, self._least)).T, strict=True))

    def predict_proba(self, X: Any) -> Array:
        """The probabilities of the model (n, n_labels)."""
        check_is_fitted(self)
        columns = named_arrays(X)
        return np.asarray(self._model.predict_proba(self._with(columns, _all_scores(self._all, columns))))

    def predict(self, X: Any) -> Array:
        """The most probable label (n,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def _all_scores(scorers: list[LinkScore], columns: dict[str, Array]) -> Array:
    return np.column_stack([scorer.decision_function(columns) for scorer in scorers])


def _graph(seen: Observations) -> Array:
    """The matrix of links (n_nodes, n_nodes), 0 or 1, symmetric."""
    linked = np.zeros((len(seen.rows), len(seen.rows)))
    is_link = seen.dyads.label == len(seen.classes) - 1
    row, col = seen.dyads.row[is_link], seen.dyads.col[is_link]
    linked[row, col] = linked[col, row] = 1
    np.fill_diagonal(linked, 0)
    return linked
