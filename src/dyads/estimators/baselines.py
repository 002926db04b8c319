"""Baselines: maximum-margin matrix factorisation and marginal label frequencies."""

import numbers
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dyads.data.codes import numeric_values, read_labels, values_of
from dyads.data.dyads import SMOOTHING, Counts, LabelCounts
from dyads.data.observations import read_dyads, read_observations
from dyads.errors import InputError, unknown_name
from dyads.estimators.settings import NestedParameters, check_memory, engine_of, random_state_of, solver_of
from dyads.learn.training import FitRun, point_solver, train
from dyads.metrics import mean_absolute_error
from dyads.model.loss import AllThreshold, median
from dyads.model.objective import Objective, Penalty
from dyads.model.parameters import Layout
from dyads.model.structure import Stereotype
from dyads.settings import is_number

Array = np.ndarray[Any, Any]


class MMMF(ClassifierMixin, NestedParameters):
    """Fast maximum-margin matrix factorisation for ordered labels (Rennie & Srebro 2005).

        s_rcl = u_r . v_c - theta_rl,    minimise  sum_i w_i sum_l hinge(t_il s_il) + l2 / 2 (|U|_F^2 + |V|_F^2)

    Each row r has a threshold theta_rl between each two neighbouring labels; t_il = 1 if label i is above it and -1 if
    below. The hinge is the smooth one. The Frobenius norms of the factors bound the trace norm of U V^T. The predicted
    label is the one with as many thresholds below it as there are positive scores. There are no probabilities, and only
    the order of the labels counts, not their values.

    The thresholds of a row are common ones, which are not penalised, plus a deviation, which `l2_bias` penalises. An id
    without labels has zero latent weights; a row without labels has the common thresholds.

    In terms of LFL: shared latent weights (`Stereotype`) with phi = 1 for every label above the lowest, row biases
    only, and the loss `AllThreshold`. The data layer, kernels and solvers are those of LFL.

    Parameters
    ----------
    rank, solver, engine, random_state : as for `LFLOrdinal`, with a rank of at least 1 and a solver that minimises
    l2 : float, default 1.0
        Strength of the penalty on the latent weights of rows and columns.
    l2_bias : float, default 0.1
        Strength of the penalty on the deviations of a row's thresholds from the common ones.

    Attributes
    ----------
    classes_ : labels, from lowest to highest; the order of text is that of an ordered categorical y
    objective_ : value of the objective at the solution
    n_iter_ : number of iterations
    solver_ : name of the solver
    """

    def __init__(
        self,
        rank: int = 5,
        *,
        l2: float = 1.0,
        l2_bias: float = 0.1,
        solver: Any = "auto",
        engine: Any = "cpu",
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.l2 = l2
        self.l2_bias = l2_bias
        self.solver = solver
        self.engine = engine
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to labelled dyads: a table of row ids and column ids, and their labels."""
        for name, least, kind in (("rank", 1, numbers.Integral), ("l2", 0, numbers.Real), ("l2_bias", 0, numbers.Real)):
            value = getattr(self, name)
            expected = "a whole number" if kind is numbers.Integral else "a finite number"
            if not isinstance(value, kind) or not is_number(value) or value < least:
                raise InputError(f"Got {name}={value!r}: expected {expected}, at least {least}.")
        seen = read_observations(X, y, sample_weight, ordered=True)
        if any(seen.dyads.side.widths):
            raise InputError(
                "X has more than two columns, and MMMF takes no features: expected only row ids and column ids."
            )
        structure = Stereotype(len(seen.classes), 0, 1, False, int(self.rank), 1)
        layout, counts = Layout(structure, len(seen.rows), len(seen.cols)), Counts.of(seen.dyads, False)
        check_memory(layout, int(self.rank))
        strengths = dict.fromkeys(("row_factors", "col_factors"), float(self.l2)) | {"row_bias": float(self.l2_bias)}
        penalty = Penalty.of(layout, strengths, "none", counts)
        free = np.ones(layout.size, np.bool_)
        for name in ("col_bias", "phi"):
            layout.named(free)[name][:] = False
        seed = int(random_state_of(self.random_state).randint(2**31 - 1))
        run = FitRun(
            engine_of(self.engine),
            seed,
            numeric_values(seen.classes),
            start=lambda theta: _start(layout, theta, seen.dyads.label_counts),
        )
        objective = Objective(layout, AllThreshold(), penalty, free)
        solver = solver_of(self.solver) or point_solver(objective, len(seen.dyads))
        if solver.samples:
            raise InputError(
                f"Got solver {type(solver).__name__}, but MMMF has no posterior: expected a solver that minimises."
            )
        best = train(objective, seen.dyads, solver, run).best
        self.classes_ = seen.classes
        self.objective_, self.n_iter_, self.solver_ = best.objective, best.n_iter, best.solver
        self._seen, self._layout, self._theta = seen, layout, best.theta
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores u . v - theta for each threshold (n, n_labels - 1); positive if the label is above it."""
        check_is_fitted(self)
        codes, _ = read_dyads(X, [self._seen.rows, self._seen.cols], self._seen.columns)
        blocks = self._layout.blocks(self._theta.astype(np.float64))
        # The code -1 of an id without labels selects the last row, which is zero.
        known = blocks._replace(
            **{side: np.vstack([getattr(blocks, side), 0 * blocks.row[:1]]) for side in ("row", "col")}
        )
        row, col = (np.where(column < 0, len(block) - 1, column) for column, block in zip(codes, known, strict=False))
        offset = np.zeros((len(row), len(self.classes_)))
        return engine_of(self.engine).block_scores(self._layout.structure, known, (row, col), offset)[:, 1:]

    def predict(self, X: Any) -> Array:
        """Predicted label (n,): the one with as many thresholds below it as there are positive scores."""
        scores = self.decision_function(X)
        return np.asarray(self.classes_[AllThreshold().decide(scores, numeric_values(self.classes_))])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Negative mean absolute error of `predict`; greater is better."""
        truth, predicted = (values_of(labels, self.classes_) for labels in (read_labels(y), self.predict(X)))
        return -mean_absolute_error(truth, predicted, sample_weight)


class Marginals(ClassifierMixin, BaseEstimator):
    """Label frequencies of all dyads, or of the dyads of the same row or column.

        p(y | r, c) = (n_ry + smoothing p(y)) / (n_r + smoothing)

    with the counts n of the row (``of="row"``) or of the column (``of="col"``), and p(y) itself for ``of="all"``. An id
    without labels has the overall frequencies p(y). The predicted label is the most frequent one or, for `ordered`
    labels, the median. A fitted model has the same marginals of its training dyads: `Predictor.marginals`.
    """

    def __init__(self, of: str = "all", smoothing: float = SMOOTHING, ordered: bool = False) -> None:
        self.of = of
        self.smoothing = smoothing
        self.ordered = ordered

    def fit(self, X: Any, y: Any) -> Self:
        """Count the labels of the dyads."""
        if self.of not in ("all", "row", "col"):
            raise unknown_name("of", self.of, ("all", "row", "col"))
        self._seen = read_observations(X, y, None, ordered=self.ordered)
        self.classes_ = self._seen.classes
        self._counts = LabelCounts.of(self._seen.dyads)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the labels (n, n_labels)."""
        check_is_fitted(self)
        codes, _ = read_dyads(X, [self._seen.rows, self._seen.cols], self._seen.columns)
        if self.of == "all":
            return np.tile(self._counts.shares, (len(codes[0]), 1))
        return self._counts.smoothed(self.of, self.smoothing)[codes[self.of == "col"]]

    def predict(self, X: Any) -> Array:
        """Most frequent label or, for `ordered` labels, the median (n,)."""
        proba = self.predict_proba(X)
        return np.asarray(self.classes_[median(proba) if self.ordered else proba.argmax(axis=1)])


def _start(layout: Layout, theta: Array, label_counts: Array) -> Array:
    """Initial theta: phi is one for every label, and the common thresholds are between -1 and 1."""
    named = layout.named(theta)
    named["phi"][:] = 1
    above = 1 - np.cumsum(label_counts)[:-1] / label_counts.sum()
    named["label_bias"][:] = 2 * above - 1
    return theta
