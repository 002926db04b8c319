"""Methods that the paper compares with: link scores of a graph, nearest neighbours, and wrappers of a model."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import KFold
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dyads.data.codes import read_labels
from dyads.data.observations import Observations, read_dyads, read_observations
from dyads.data.tables import lines, named_arrays
from dyads.errors import unknown_name
from dyads.estimators.kinds import LFLRelational
from dyads.metrics import log_proba
from dyads.model.loss import link

Array = np.ndarray[Any, Any]


def adamic_adar(linked: Array, reach: float) -> Array:
    """Common neighbours of two nodes, each weighted by 1 / log of its degree (`reach` is unused)."""
    degree = linked.sum(axis=1)
    weight = np.divide(1, np.log(np.maximum(degree, 2)), out=np.zeros(len(linked)), where=degree > 1)
    return (linked * weight) @ linked  # type: ignore[no-any-return]


def katz(linked: Array, reach: float) -> Array:
    """Walks between two nodes, weighted beta^length: (I - beta G)^-1 - I, beta = reach / largest eigenvalue of G."""
    largest = np.linalg.eigvalsh(linked)[-1]
    identity = np.eye(len(linked))
    return np.linalg.inv(identity - reach / max(largest, 1) * linked) - identity


def random_walk(linked: Array, reach: float) -> Array:
    """Random walk with restart (probability 1 - `reach`): share of visits to the other node, summed over both ways."""
    degree = np.maximum(linked.sum(axis=1, keepdims=True), 1)
    visits = (1 - reach) * np.linalg.inv(np.eye(len(linked)) - reach * linked / degree)
    return visits + visits.T


LINK_SCORES = {"adamic-adar": adamic_adar, "katz": katz, "random walk": random_walk}


class LinkScore(ClassifierMixin, BaseEstimator):
    """Score of undirected links from the graph of training links: `kind` is a key of `LINK_SCORES`, `reach` in (0, 1).

    A pair is a link if its label is the last of the classes. The score matrix of all pairs of nodes is held in memory.
    """

    def __init__(self, kind: str = "adamic-adar", reach: float = 0.5) -> None:
        self.kind = kind
        self.reach = reach

    def fit(self, X: Any, y: Any) -> Self:
        """Score all pairs of nodes in the graph of labelled pairs."""
        if self.kind not in LINK_SCORES:
            raise unknown_name("kind", self.kind, LINK_SCORES)
        seen = read_observations(X, y, None, one_set=True)
        self.classes_ = seen.classes
        self._seen, self._scores = seen, LINK_SCORES[self.kind](_graph(seen), self.reach)
        return self

    def decision_function(self, X: Any) -> Array:
        """Score of each pair (n,); 0 for nodes that are not in the graph."""
        check_is_fitted(self)
        (row, col), _ = read_dyads(X, [self._seen.rows, self._seen.cols], self._seen.columns)
        return np.asarray(np.where((row >= 0) & (col >= 0), self._scores[row, col], 0.0))

    def predict(self, X: Any) -> Array:
        """The last label if the score is positive, else the first (n,)."""
        return np.asarray(np.where(self.decision_function(X) > 0, self.classes_[-1], self.classes_[0]))


class WithLinkScores(ClassifierMixin, BaseEstimator):
    """A link model with the logarithms of all link scores as features of pairs.

    Katz and the random walk see a link that is in the graph. Scores of training pairs are therefore cross-fitted:
    those of a fold come from the graph of the other `n_folds` - 1 folds.
    """

    def __init__(self, estimator: Any, reach: float = 0.5, n_folds: int = 10) -> None:
        self.estimator = estimator
        self.reach = reach
        self.n_folds = n_folds

    def fit(self, X: Any, y: Any) -> Self:
        """Score the pairs, and fit the model with the scores as features."""
        columns, labels = named_arrays(X), np.asarray(y)
        scores = np.empty((len(labels), len(LINK_SCORES)))
        for train, test in KFold(self.n_folds, shuffle=True, random_state=0).split(labels):
            scores[test] = _all_scores(self._scorers(lines(columns, train), labels[train]), lines(columns, test))
        self._least = np.array([column[column > 0].min(initial=1.0) for column in scores.T])
        self._full_graph = self._scorers(columns, labels)
        self._model = clone(self.estimator).fit(self._with(columns, scores), labels)
        self.classes_ = self._model.classes_
        return self

    def _scorers(self, columns: dict[str, Array], labels: Array) -> list[LinkScore]:
        return [LinkScore(kind, self.reach).fit(columns, labels) for kind in LINK_SCORES]

    def _with(self, columns: dict[str, Array], scores: Array) -> dict[str, Array]:
        return columns | dict(zip(LINK_SCORES, np.log(np.maximum(scores, self._least)).T, strict=True))

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the model (n, n_labels)."""
        check_is_fitted(self)
        columns = named_arrays(X)
        return np.asarray(self._model.predict_proba(self._with(columns, _all_scores(self._full_graph, columns))))

    def predict(self, X: Any) -> Array:
        """Most probable label (n,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def _all_scores(scorers: list[LinkScore], columns: dict[str, Array]) -> Array:
    return np.column_stack([scorer.decision_function(columns) for scorer in scorers])


def _graph(seen: Observations) -> Array:
    """Symmetric adjacency matrix (n_nodes, n_nodes) of 0 and 1."""
    linked = np.zeros((len(seen.rows), len(seen.rows)))
    is_link = seen.dyads.label == len(seen.classes) - 1
    row, col = seen.dyads.row[is_link], seen.dyads.col[is_link]
    linked[row, col] = linked[col, row] = 1
    np.fill_diagonal(linked, 0)
    return linked


class Neighbours(ClassifierMixin, BaseEstimator):
    """Nearest neighbours: the labels of the most similar rows in the same column.

    The similarity of two rows is the share of their common columns with equal labels. The table of rows x columns is
    held in memory.
    """

    def __init__(self, n_neighbours: int = 5) -> None:
        self.n_neighbours = n_neighbours

    def fit(self, X: Any, y: Any) -> Self:
        """Compute the similarity of all pairs of rows."""
        self._seen = read_observations(X, y, None)
        self.classes_ = self._seen.classes
        dyads = self._seen.dyads
        self._labels = np.full((dyads.n_rows, dyads.n_cols), -1)
        self._labels[dyads.row, dyads.col] = dyads.label
        known = (self._labels >= 0).astype(float)
        agree = sum((self._labels == code) @ (self._labels == code).astype(float).T for code in range(dyads.n_labels))
        self._similarity = agree / np.maximum(known @ known.T, 1)
        np.fill_diagonal(self._similarity, -1)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Label frequencies of the nearest rows with a label in the column, else of all dyads (n, n_labels)."""
        check_is_fitted(self)
        (row, col), _ = read_dyads(X, [self._seen.rows, self._seen.cols], self._seen.columns)
        overall = self._seen.dyads.label_counts / self._seen.dyads.label_counts.sum()
        proba = np.tile(overall, (len(row), 1))
        for i in np.flatnonzero((row >= 0) & (col >= 0)):
            labelled = np.flatnonzero(self._labels[:, col[i]] >= 0)
            order = np.argsort(-self._similarity[row[i], labelled], kind="stable")
            nearest = labelled[order[: self.n_neighbours]]
            if len(nearest):
                labels = self._labels[nearest, col[i]]
                proba[i] = np.bincount(labels, minlength=len(self.classes_)) / len(nearest)
        return proba

    def predict(self, X: Any) -> Array:
        """Most frequent label among the neighbours (n,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


class ByRelation(ClassifierMixin, BaseEstimator):
    """Labels as relations, each of which holds for a dyad or not: the multi-relational view of the paper.

    With an `LFLRelational` all relations share the weights of rows and columns ("global"); with any other estimator
    each relation has its own model ("single"). Each probability is that of one relation: they do not sum to one.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to labelled dyads: each becomes one binary dyad per relation."""
        labels = read_labels(y)
        self.classes_ = np.unique(labels)
        columns = named_arrays(X)
        if isinstance(self.estimator, LFLRelational):
            self._models = [clone(self.estimator).fit(*self._crossed(columns, labels))]
        else:
            self._models = [
                clone(self.estimator).fit(columns, (labels == label).astype(int)) for label in self.classes_
            ]
        return self

    def _crossed(self, columns: dict[str, Array], labels: Array) -> tuple[dict[str, Array], Array]:
        n, n_labels = len(labels), len(self.classes_)
        crossed = {name: np.repeat(column, n_labels) for name, column in columns.items()}
        crossed["relation"] = np.tile(np.arange(n_labels), n)
        return crossed, (labels[:, None] == self.classes_).astype(int).ravel()

    def predict_proba(self, X: Any) -> Array:
        """Probability that each relation holds (n, n_labels)."""
        check_is_fitted(self)
        columns = named_arrays(X)
        n = len(next(iter(columns.values())))
        if len(self._models) == 1:
            crossed, _ = self._crossed(columns, np.repeat(self.classes_[:1], n))
            return np.asarray(self._models[0].predict_proba(crossed)[:, 1].reshape(n, -1))
        return np.column_stack([model.predict_proba(columns)[:, 1] for model in self._models])

    def predict(self, X: Any) -> Array:
        """Most probable relation (n,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


class BothOrders(ClassifierMixin, BaseEstimator):
    """A method for two id sets, on undirected pairs: train on both orders of a pair, and average their scores."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to each pair in both orders."""
        columns = named_arrays(X)
        both = {name: np.concatenate([columns[name], other[name]]) for other in [_turned(columns)] for name in columns}
        self._model = clone(self.estimator).fit(both, np.tile(np.asarray(y), 2))
        self.classes_ = self._model.classes_
        return self

    def decision_function(self, X: Any) -> Array:
        """Mean score of both orders (n,), for two labels."""
        check_is_fitted(self)
        columns = named_arrays(X)
        scores = [self._model.decision_function(pairs) for pairs in (columns, _turned(columns))]
        return np.asarray(np.mean(scores, axis=0)).reshape(len(scores[0]))

    def predict(self, X: Any) -> Array:
        """The second label if the score is positive, else the first (n,)."""
        return np.asarray(self.classes_[(self.decision_function(X) > 0).astype(int)])


class MeanOdds(ClassifierMixin, BaseEstimator):
    """Average the log-odds of several models from different random starts, or of posterior draws.

    A posterior averages probabilities instead, which is right for the probabilities themselves. But if
    they differ by orders of magnitude, as for a link between two nodes with few links, the largest dominates their
    mean, which then ranks dyads worse than the mean of log-odds.
    """

    def __init__(self, estimator: Any, n_models: int = 8) -> None:
        self.estimator = estimator
        self.n_models = n_models

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the models."""
        seeds = check_random_state(self.estimator.random_state).randint(2**31 - 1, size=self.n_models)
        self._models = [clone(self.estimator).set_params(random_state=int(seed)).fit(X, y) for seed in seeds]
        self.classes_ = self._models[0].classes_
        return self

    def predict_proba(self, X: Any) -> Array:
        """Softmax of the mean log-odds (n, n_labels)."""
        check_is_fitted(self)
        draws = [
            model.sample_proba(X) if model.record_.is_posterior else model.predict_proba(X)[None]
            for model in self._models
        ]
        proba = np.concatenate(draws).astype(np.float64)
        return np.asarray(link(log_proba(proba).mean(axis=0)))

    def predict(self, X: Any) -> Array:
        """Most probable label (n,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])


def _turned(columns: dict[str, Array]) -> dict[str, Array]:
    """The same pairs with row and column swapped."""
    first, second, *others = columns
    return {first: columns[second], second: columns[first]} | {name: columns[name] for name in others}
