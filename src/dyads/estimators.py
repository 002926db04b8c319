"""The estimators: each names a choice of structure, loss, penalty and solver, and holds no numerics."""

import logging
import numbers
import os
import warnings
from typing import Any, Self

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dyads import artifact
from dyads.data.dyads import Dyads
from dyads.data.labels import encode_labels, numeric_values, to_numpy
from dyads.data.tables import read_column, read_columns
from dyads.data.vocabulary import Vocabulary
from dyads.engine.host import scores
from dyads.errors import (
    DivergenceError,
    InputError,
    NotConvergedWarning,
    UnknownIdError,
    UnknownIdWarning,
    unknown_name,
)
from dyads.metrics import mean_absolute_error
from dyads.model.fitted import Fitted
from dyads.model.loss import LOSSES, Loss, link
from dyads.model.objective import Objective
from dyads.model.parameters import Layout
from dyads.model.penalty import L2
from dyads.model.structure import STRUCTURES
from dyads.solve import Options
from dyads.training import Callback, Progress, pick_solver, train

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

UNKNOWN_POLICIES = ("prior", "raise", "nan")


class _LFL(ClassifierMixin, BaseEstimator):
    """What the estimators share: tables in, `Fitted` kept, probabilities out."""

    _ordered: bool

    def __init__(
        self,
        rank: int = 5,
        *,
        loss: str | Loss = "log",
        structure: str = "bilinear",
        base: Any = "auto",
        bias: bool = True,
        row: Any = None,
        col: Any = None,
        l2: float = 6.0,
        l2_row: float | None = None,
        l2_col: float | None = None,
        l2_bias: float | None = 2.0,
        l2_scaling: str = "none",
        solver: str = "auto",
        max_iter: int | None = None,
        tol: float | None = None,
        learning_rate: float | None = None,
        n_init: int = 1,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        unknown: str = "prior",
        n_jobs: int | None = -1,
        random_state: Any = None,
        verbose: int = 0,
        warm_start: bool = False,
    ) -> None:
        self.rank = rank
        self.loss = loss
        self.structure = structure
        self.base = base
        self.bias = bias
        self.row = row
        self.col = col
        self.l2 = l2
        self.l2_row = l2_row
        self.l2_col = l2_col
        self.l2_bias = l2_bias
        self.l2_scaling = l2_scaling
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.n_init = n_init
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.unknown = unknown
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    # ---------------------------------------------------------------------------------------------------- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None, callback: Callback | None = None) -> Self:
        """Fit the model to labelled dyads.

        Parameters
        ----------
        X : table of n dyads
            pandas, polars or Arrow table, NumPy array, dict of columns or list of pairs: row id, column id.
        y : (n,) labels
        sample_weight : (n,) nonnegative weights, default all one
            A dyad of weight two counts as two dyads; one of weight zero as none.
        callback : called with a `dyads.training.Progress` after each iteration; returning True stops the fit.
        """
        self._check_parameters()
        dyads, classes, rows, cols = self._read(X, y, sample_weight)
        objective = self._objective(dyads, classes)
        pick_solver(self.solver, objective, len(dyads))
        start = None
        if self.warm_start and hasattr(self, "fitted_"):
            start = self._warm_start(objective.layout, classes, rows, cols)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        best, trace = train(
            objective,
            dyads,
            solver=self.solver,
            options=Options(self.max_iter, self.tol, self.learning_rate, seed),
            n_init=self.n_init,
            validation_fraction=self.validation_fraction if self.early_stopping else None,
            start=start,
            n_jobs=self.n_jobs,
            callback=_announce(callback) if self.verbose else callback,
        )
        theta = objective.layout.centre(best.theta, dyads.row_counts, dyads.col_counts)
        self.fitted_ = Fitted(
            objective.structure, objective.loss, classes, rows, cols, theta, dyads.row_counts, dyads.col_counts
        )
        self.n_features_in_ = 2
        self.n_iter_ = best.n_iter
        self.converged_ = best.converged
        self.objective_ = best.objective
        self.solver_ = best.solver
        self.trace_ = {name: [getattr(step, name) for step in trace] for name in Progress._fields}
        if best.diverged is not None:
            raise DivergenceError(
                f"The objective stopped being a finite number {best.diverged}. The model keeps its last finite state."
            )
        if not best.converged:
            warnings.warn(
                f"The {best.solver} solver stopped after {best.n_iter} iterations without reaching its tolerance: "
                "raise max_iter (or tol) if the objective still falls.",
                NotConvergedWarning,
                stacklevel=2,
            )
        return self

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Dyads, Array, Vocabulary, Vocabulary]:
        """Turn tables into dyads, classes and vocabularies; the columns are let go before training begins."""
        columns = read_columns(X)
        names = self._pair_names(columns)
        classes, label = encode_labels(y)
        weight = _read_weight(sample_weight)
        ids = [columns[name] for name in names]
        n = len(ids[0])
        for what, length in (("labels", len(label)), ("weights", n if weight is None else len(weight))):
            if length != n:
                raise InputError(f"Got {n} dyads but {length} {what}: expected one for each dyad.")
        if weight is not None and not weight.all():
            # A dyad of weight zero is no dyad: its ids and its label may be unknown to the model.
            seen = weight > 0
            ids, weight = [column.filter(pa.array(seen)) for column in ids], weight[seen]
            classes, label = encode_labels(classes[label[seen]])
        (rows, row), (cols, col) = (Vocabulary.of(column, name) for column, name in zip(ids, names, strict=True))
        return Dyads(row, col, label, weight, len(rows), len(cols), len(classes)), classes, rows, cols

    def _objective(self, dyads: Dyads, classes: Array) -> Objective:
        loss: Any = LOSSES[self.loss]() if isinstance(self.loss, str) else self.loss
        if loss.ordered and not self._ordered:
            raise InputError(f"loss={self.loss!r} needs ordered labels: use LFLOrdinal, or loss='log' or 'brier'.")
        if self._ordered:
            loss = loss.bind(numeric_values(classes))
        structure = STRUCTURES[self.structure](len(classes), self._base_code(classes), bool(self.bias), self.rank)
        layout = Layout(structure, dyads.n_rows, dyads.n_cols)
        bias, row, col = (self.l2 if own is None else own for own in (self.l2_bias, self.l2_row, self.l2_col))
        strengths = {"row_bias": bias, "col_bias": bias, "row_factors": row, "col_factors": col}
        penalty = L2.of(layout, strengths, self.l2_scaling, dyads.row_counts, dyads.col_counts)
        return Objective(layout, loss, penalty)

    def _base_code(self, classes: Array) -> int:
        """The code of the pinned label, or the number of labels when none is."""
        if isinstance(self.base, str) and self.base == "auto":
            return 0 if len(classes) == 2 else len(classes)
        if self.base is None:
            return len(classes)
        found = np.flatnonzero(classes == self.base)
        if not len(found):
            raise InputError(f"base={self.base!r} is no label: expected None, 'auto' or one of {classes.tolist()}.")
        return int(found[0])

    def _warm_start(self, layout: Layout, classes: Array, rows: Vocabulary, cols: Vocabulary) -> Any:
        old = self.fitted_
        if old.structure != layout.structure or not np.array_equal(old.classes, classes):
            raise InputError(
                "warm_start=True needs the labels, rank, base and bias of the last fit: they changed. Fit a new "
                "estimator, or set warm_start=False."
            )
        return lambda theta: old.start_for(layout, theta, rows, cols)

    def _check_parameters(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        if not isinstance(self.structure, str) or self.structure not in STRUCTURES:
            raise unknown_name("structure", self.structure, STRUCTURES)
        if self.unknown not in UNKNOWN_POLICIES:
            raise unknown_name("unknown", self.unknown, UNKNOWN_POLICIES)
        for name, least, kind in (
            ("rank", 0, numbers.Integral),
            ("n_init", 1, numbers.Integral),
            ("max_iter", 1, numbers.Integral),
            ("l2", 0, numbers.Real),
            ("l2_row", 0, numbers.Real),
            ("l2_col", 0, numbers.Real),
            ("l2_bias", 0, numbers.Real),
            ("tol", 0, numbers.Real),
        ):
            value = getattr(self, name)
            optional = value is None and name not in ("rank", "n_init", "l2")
            if not optional and (not isinstance(value, kind) or isinstance(value, bool) or not least <= value < np.inf):
                what = "a whole number" if kind is numbers.Integral else "a finite number"
                raise InputError(f"{name}={value!r} is not possible: expected {what}, at least {least}.")
        rate = self.learning_rate
        if rate is not None and not (isinstance(rate, numbers.Real) and 0 < rate < np.inf):
            raise InputError(f"learning_rate={rate!r} is not possible: expected a positive number, or None.")
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction={self.validation_fraction!r} is not possible: expected between 0 and 1."
            )

    # ----------------------------------------------------------------------------------------------------- tables

    def _pair_names(self, columns: dict[str, pa.Array]) -> tuple[str, str]:
        """Name the columns that hold the row ids and the column ids."""
        names = list(columns)
        if len(names) < 2:
            raise InputError(f"X has {len(names)} column(s), {names}: expected two, the row id and the column id.")
        chosen = [None if name is None else str(name) for name in (self.row, self.col)]
        missing = [name for name in chosen if name is not None and name not in names]
        if missing:
            raise InputError(f"X has no column {missing[0]!r}: expected one of {names}. Set row= and col= to those.")
        rest = [name for name in names if name not in chosen]
        row, col = (name if name is not None else rest.pop(0) for name in chosen)
        if row == col:
            raise InputError(f"row= and col= both name {row!r}: expected two different columns.")
        extra = [name for name in names if name not in (row, col)]
        if extra:
            raise InputError(
                f"X has the further column(s) {extra}: side-information of dyads is not supported yet. "
                f"Pass only the row id and the column id, X[[{row!r}, {col!r}]]."
            )
        return row, col

    def _encode(self, X: Any) -> tuple[Array, Array]:
        """Look up the dyads of X; unknown ids are negative, counted in a warning, or refused."""
        check_is_fitted(self)
        columns = read_columns(X)
        rows, cols = self.fitted_.rows, self.fitted_.cols
        names = self._pair_names(columns)
        known = {rows.name, cols.name}
        if known <= set(columns):
            names = (rows.name, cols.name)
        row, col = rows.encode(columns[names[0]]), cols.encode(columns[names[1]])
        n_row, n_col = int((row < 0).sum()), int((col < 0).sum())
        if n_row or n_col:
            message = f"{n_row} of {len(row)} dyads have a row id and {n_col} a column id that was not seen in training"
            if self.unknown == "raise":
                raise UnknownIdError(f"{message}: expected known ids. Drop them, or set unknown='prior' or 'nan'.")
            treated = "average rows and columns" if self.unknown == "prior" else "NaN"
            warnings.warn(f"{message}: treated as {treated}.", UnknownIdWarning, stacklevel=4)
        return row, col

    # -------------------------------------------------------------------------------------------------- predicting

    def _scores(self, X: Any) -> Array:
        row, col = self._encode(X)
        out = scores(self.fitted_.layout, self.fitted_.theta, row, col, self.n_jobs)
        if self.unknown == "nan":
            out[(row < 0) | (col < 0)] = np.nan
        return out

    def predict_proba(self, X: Any) -> Array:
        """Probability of each label (n, n_labels); columns in the order of `classes_`."""
        return link(self._scores(X))

    def log_odds(self, X: Any) -> Array:
        """Log-odds of each label (n, n_labels): against the base, or against the labels' geometric mean if none."""
        out = self._scores(X).astype(np.float64)
        if self.fitted_.structure.base == self.fitted_.structure.n_labels:
            out -= out.mean(axis=1, keepdims=True)
        return out

    def predict(self, X: Any, cost: Any = None) -> Array:
        """Predict one label per dyad; with a matrix cost[true, predicted], the label of least expected cost."""
        proba = link(self._scores(X))
        if np.isnan(proba).any():
            raise UnknownIdError(
                f"{int(np.isnan(proba).any(axis=1).sum())} dyads have ids not seen in training, whose probabilities "
                "are NaN under unknown='nan': no label can be predicted. Drop them, or set unknown='prior'."
            )
        if cost is None:
            return self.classes_[self._decide(proba)]
        cost = np.asarray(cost, dtype=np.float64)
        n_labels = len(self.classes_)
        if cost.shape != (n_labels, n_labels) or not np.isfinite(cost).all():
            raise InputError(f"cost has shape {cost.shape}: expected finite numbers, ({n_labels}, {n_labels}).")
        return self.classes_[np.argmin(proba @ cost, axis=1)]

    def _decide(self, proba: Array) -> Array:
        """The code of the label to predict."""
        raise AttributeError

    # -------------------------------------------------------------------------------------------------- attributes

    @property
    def classes_(self) -> Array:
        """The labels, sorted (n_labels,)."""
        return self._known().classes

    @property
    def row_ids_(self) -> Array:
        """The row ids, in the order of `row_factors_`."""
        return to_numpy(self._known().rows.ids)

    @property
    def col_ids_(self) -> Array:
        """The column ids, in the order of `col_factors_`."""
        return to_numpy(self._known().cols.ids)

    @property
    def row_factors_(self) -> Array:
        """Latent weights of the rows (n_rows, n_labels, rank); zeros for a pinned base."""
        return self._known().factors("row_factors")

    @property
    def col_factors_(self) -> Array:
        """Latent weights of the columns (n_cols, n_labels, rank); zeros for a pinned base."""
        return self._known().factors("col_factors")

    @property
    def n_parameters_(self) -> int:
        """How many numbers were learnt."""
        return int(self._known().theta.size)

    def _known(self) -> Fitted:
        try:
            return self.__dict__["fitted_"]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"This {type(self).__name__} is not fitted yet: call fit first.") from None

    # --------------------------------------------------------------------------------------------------- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; `dyads.load` reads it."""
        check_is_fitted(self)
        parameters = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        fit = {name: _plain(getattr(self, name)) for name in _SAVED}
        artifact.write(path, self.fitted_, {"estimator": type(self).__name__, "parameters": parameters, "fit": fit})


_SAVED = ("n_features_in_", "n_iter_", "converged_", "objective_", "solver_", "trace_")


class LFLClassifier(_LFL):
    """Latent feature log-linear model for nominal or binary labels.

        p(y | r, c) ∝ exp(gamma_y + alpha_ry + beta_cy + sum_k A_ryk B_cyk)

    with label, row and column biases and `rank` latent weights per row, column and label, fitted by minimising

        sum_i w_i loss(y_i, p(. | r_i, c_i)) + 1/2 sum_r s_r (l2_row |A_r|^2 + l2_bias |alpha_r|^2) + same of columns

    where s_r = 1, n_r^(-1/2) or n_r as `l2_scaling` says, n_r being the summed weight of the row's dyads. The label
    bias is not penalised. After a fit the biases are centred by counts, so that an unknown row is an average row.

    Parameters
    ----------
    rank : int, default 5
        Latent weights per row, column and label; 0 is the log-linear model of row and column biases alone.
    loss : "log" or "brier", default "log"
        Both are proper: probabilities are calibrated. `LFLOrdinal` has losses for ordered labels.
    structure : "bilinear"
        How latent weights make scores.
    base : label, None or "auto", default "auto"
        The label whose weights are pinned to zero; None gives every label weights. "auto" pins the first of two labels
        and none of three or more.
    bias : bool, default True
        Whether rows and columns have biases; the label bias is always there.
    row, col : column names, default the first two columns
    l2 : float, default 6.0
        Strength of the penalty: the precision of a Gaussian prior on a weight, in units of log-odds. The defaults suit
        ratings and votes; strong structure with little noise wants less (0.3 to 1): choose by cross-validation.
    l2_row, l2_col : float, default None
        Strengths for the latent weights of rows and of columns; None means `l2`.
    l2_bias : float or None, default 2.0
        Strength for row and column biases; None means `l2`.
    l2_scaling : "none", "inverse_sqrt" or "count", default "none"
        "inverse_sqrt" penalises rarely seen rows and columns more, "count" is the same decay at every observation.
    solver : "auto", "lbfgs" or "sgd"
        "auto" is L-BFGS up to 50,000 dyads and SGD (AdaGrad) above. Both minimise the same objective.
    max_iter : int, default None
        Most iterations (L-BFGS, 500 if None) or epochs (SGD, 100 if None).
    tol : float, default None
        Stop when an iteration lowers the objective by less than this share of it (L-BFGS 1e-6 if None),
        or three epochs in a row do (SGD 1e-3 if None).
    learning_rate : float, default None
        AdaGrad's rate; None is a rule that needs no tuning. L-BFGS has none.
    n_init : int, default 1
        Random restarts; the one of least objective is kept.
    early_stopping : bool, default False
        Hold out `validation_fraction` of the dyads, stop when their loss no longer falls, keep the best iterate.
    validation_fraction : float, default 0.1
    unknown : "prior", "raise" or "nan", default "prior"
        What an id not seen in training is at predict: an average row or column, an error, or NaN probabilities.
    n_jobs : int, default -1
        Threads; -1 is all cores. The result does not depend on it.
    random_state : int, RandomState or None
    verbose : int, default 0
        Above 0, each iteration is logged to the logger "dyads" (to standard error if logging is not set up).
    warm_start : bool, default False
        Start from the last fit; ids it did not know start at random.

    Attributes
    ----------
    classes_, row_ids_, col_ids_ : labels and ids
    row_factors_, col_factors_ : (n, n_labels, rank) latent weights
    n_iter_, converged_, objective_, solver_ : how the fit went
    trace_ : dict of lists, one entry per iteration: init, iteration, objective, validation, seconds
    n_parameters_ : int
    fitted_ : the `Fitted` record all of these are read from

    References
    ----------
    A. K. Menon and C. Elkan, "Dyadic prediction using a latent feature log-linear model", 2010.
    """

    _ordered = False

    def decision_function(self, X: Any) -> Array:
        """Log-odds (n, n_labels); for two labels those of the second, (n,)."""
        odds = self.log_odds(X)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds

    def _decide(self, proba: Array) -> Array:
        return np.argmax(proba, axis=1)


class LFLOrdinal(_LFL):
    """Latent feature log-linear model for ordered labels with numeric values, such as ratings.

    The model and the parameters are those of `LFLClassifier`, with two more losses, which compare the label with the
    expected label: "absolute", |y - E y| (smoothed near zero, see `dyads.Absolute`), and "squared", (y - E y)^2. These
    train the mean alone: their probabilities are not calibrated.

    `predict` gives the median label for the losses "log" and "brier", and the label nearest the mean for the others;
    `predict_mean` gives the expected value. `score` is minus the mean absolute error of `predict`.
    """

    _ordered = True

    def predict_mean(self, X: Any) -> Array:
        """Expected value of the label (n,)."""
        return link(self._scores(X)) @ numeric_values(self.classes_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean absolute error of `predict`: greater is better."""
        truth = numeric_values(to_numpy(read_column(y, "the labels")))
        return -mean_absolute_error(truth, numeric_values(self.predict(X)), sample_weight)

    def _decide(self, proba: Array) -> Array:
        if self.fitted_.loss.decision == "median":
            # argmax finds the first label at which the cumulated probability reaches one half.
            return np.argmax(np.cumsum(proba, axis=1) >= 0.5, axis=1)
        values = numeric_values(self.classes_)
        return np.argmin(np.abs((proba @ values)[:, None] - values), axis=1)


ESTIMATORS = {kind.__name__: kind for kind in (LFLClassifier, LFLOrdinal)}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` wrote; nothing in the file is executed."""
    fitted, about = artifact.read(path)
    parameters = dict(about["parameters"])
    if isinstance(parameters["loss"], dict):
        fields = dict(parameters["loss"])
        parameters["loss"] = LOSSES[fields.pop("name")](**fields)
    model = ESTIMATORS[about["estimator"]](**parameters)
    model.fitted_ = fitted
    for name, value in about["fit"].items():
        setattr(model, name, value)
    return model


def _plain(value: Any) -> Any:
    """A parameter or attribute as a JSON value."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in LOSSES.values():
        (name,) = (name for name, kind in LOSSES.items() if type(value) is kind)
        return {"name": name, **value._asdict()}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [None if isinstance(item, float) and np.isnan(item) else item for item in value]
    # A random generator is state of the session that fitted, not of the model.
    return None if isinstance(value, np.random.RandomState) else value


def _read_weight(sample_weight: Any) -> Array | None:
    if sample_weight is None:
        return None
    column = read_column(sample_weight, "sample_weight")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"sample_weight has type {column.type}: expected numbers.")
    weight = to_numpy(column).astype(np.float64)
    if len(weight) and weight.min() < 0:
        raise InputError(f"sample_weight has the negative value {weight.min()}: expected weights of zero or more.")
    if not weight.any():
        raise InputError("sample_weight is zero for every dyad: expected at least one positive weight.")
    return weight


def _announce(callback: Callback | None) -> Callback:
    """Log each iteration, then pass it on."""
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)

    def announce(progress: Progress) -> Any:
        held = "" if np.isnan(progress.validation) else f", held-out loss {progress.validation:.5f}"
        logger.info(
            "start %d, iteration %d: objective %.6g%s, %.1f s",
            progress.init, progress.iteration, progress.objective, held, progress.seconds,
        )  # fmt: skip
        return callback(progress) if callback is not None else None

    return announce
