"""The estimators: each names a choice of structure, loss, penalty and solver, and holds no numerics."""

import logging
import numbers
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dyads import artifact
from dyads.data.dyads import Dyads
from dyads.data.labels import numeric_values, read_labels, to_numpy
from dyads.data.observations import Observations, check_undirected, read_dyads, read_observations
from dyads.data.tables import read_column
from dyads.engine.host import scores
from dyads.errors import (
    DivergenceError,
    InputError,
    NotConvergedWarning,
    UnknownIdError,
    UnknownIdWarning,
    VanishedWarning,
    unknown_name,
)
from dyads.metrics import accuracy, mean_absolute_error
from dyads.model.fitted import Fitted
from dyads.model.loss import LOSSES, Loss, least_cost, link, mode
from dyads.model.objective import Objective
from dyads.model.parameters import Layout, label_log_odds
from dyads.model.penalty import L2, SCALINGS, Counts
from dyads.model.structure import STRUCTURES, Stereotype, build
from dyads.solve import SOLVERS, Options
from dyads.training import Callback, Progress, train

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

UNKNOWN_POLICIES = ("prior", "raise", "nan")

SHARED = 0.1
"""Strength, per dyad, on the labels' weights of shared latent weights: chosen on held-out training data of ML-100K."""

VANISHED = 1e-2
"""Latent weights whose root mean square is below this add nothing to a log-odds."""


class _LFL(ClassifierMixin, BaseEstimator):
    """What the estimators share: tables in, `Fitted` kept, probabilities out.

    `_structures` names those an estimator offers, its default first; `_ordered` says that labels have numeric values.
    """

    _structures: tuple[str, ...]
    _ordered = False

    def __init__(
        self,
        rank: int = 5,
        *,
        loss: str | Loss = "log",
        structure: str | None = None,
        n_bases: int | None = None,
        base: Any = "auto",
        bias: bool = True,
        row: Any = None,
        col: Any = None,
        l2: float = 6.0,
        l2_row: float | None = None,
        l2_col: float | None = None,
        l2_bias: float | None = 2.0,
        l2_shared: float | None = None,
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
        self.n_bases = n_bases
        self.base = base
        self.bias = bias
        self.row = row
        self.col = col
        self.l2 = l2
        self.l2_row = l2_row
        self.l2_col = l2_col
        self.l2_bias = l2_bias
        self.l2_shared = l2_shared
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
        seen = self._read(X, y, sample_weight)
        dyads, layout = seen.dyads, self._layout(seen)
        loss = self._loss(seen.classes)
        values = numeric_values(seen.classes) if self._ordered else None
        penalty = self._penalty(layout, dyads, values)
        start = None
        if self.warm_start and hasattr(self, "fitted_"):
            start = self._warm_start(layout, penalty, seen)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with _logged(self.verbose, callback) as monitored:
            best, trace = train(
                Objective(layout, loss, penalty),
                dyads,
                values=values,
                solver=self.solver,
                options=Options(self.max_iter, self.tol, self.learning_rate, seed),
                n_init=self.n_init,
                validation_fraction=self.validation_fraction if self.early_stopping else None,
                start=start,
                n_jobs=self.n_jobs,
                callback=monitored,
            )
        counts = Counts.of(dyads, layout.structure.one_set)
        theta = layout.centre(best.theta, counts.row, counts.col)
        self.fitted_ = Fitted(
            layout.structure, loss, seen.classes, seen.rows, seen.cols, theta, counts.row, counts.col, seen.relations
        )
        self.columns_ = seen.columns
        self.n_features_in_ = len(seen.columns)
        self.n_iter_ = best.n_iter
        self.converged_ = best.ended == "tolerance"
        self.objective_ = best.objective
        self.solver_ = best.solver
        self.trace_ = {name: [getattr(step, name) for step in trace] for name in Progress._fields}
        if best.diverged is not None:
            raise DivergenceError(
                f"The objective stopped being a finite number {best.diverged}. The model keeps its last finite state."
            )
        if self.rank and self.fitted_.latent_size() < VANISHED:
            warnings.warn(
                f"All latent weights vanished: the penalty l2={self.l2} is too strong for these data, and the model is "
                "that of rank 0. Lower l2, or choose it by cross-validation.",
                VanishedWarning,
                stacklevel=2,
            )
        if best.ended == "limit":
            warnings.warn(
                f"The {best.solver} solver stopped after {best.n_iter} iterations without reaching its tolerance: "
                "raise max_iter (or tol) if the objective still falls.",
                NotConvergedWarning,
                stacklevel=2,
            )
        return self

    def _read(self, X: Any, y: Any, sample_weight: Any) -> Observations:
        _, one_set = STRUCTURES[self._structure]
        return read_observations(X, y, sample_weight, (self.row, self.col), one_set=one_set)

    @property
    def _structure(self) -> str:
        """The name of the structure, the estimator's own where none is given."""
        return self._structures[0] if self.structure is None else self.structure

    def _layout(self, seen: Observations) -> Layout:
        n_labels, name = len(seen.classes), self._structure
        if self.structure is None and name == "stereotype" and (n_labels < 3 or self.rank == 0):
            name = "bilinear"
        kind, n_bases = STRUCTURES[name][0], self.n_bases
        if kind is Stereotype:
            n_bases = (1 if seen.relations is None else 3) if n_bases is None else int(n_bases)
            pinned = self._base_code(seen.classes) < n_labels
            most = n_labels - pinned if seen.relations is None else np.inf
            if self.rank < 1 or n_bases > most or (n_labels < 3 and seen.relations is None):
                raise InputError(
                    f"structure={name!r}, rank={self.rank}, n_bases={n_bases} and {n_labels} labels "
                    "do not fit: expected rank and n_bases of at least 1, three or more labels, and no more bases "
                    "than labels that are not pinned. Use structure='bilinear'."
                )
        elif n_bases is not None:
            raise InputError(
                f"n_bases={n_bases!r} is for structure='stereotype' and for mixtures of relations, not for {name!r}: "
                "leave it None."
            )
        base = self._base_code(seen.classes)
        structure = build(name, n_labels, base, bool(self.bias), int(self.rank), n_bases)
        return Layout(structure, len(seen.rows), len(seen.cols), seen.dyads.n_relations)

    def _loss(self, classes: Array) -> Loss:
        loss = LOSSES[self.loss]() if isinstance(self.loss, str) else self.loss
        if loss.ordered and not self._ordered:
            raise InputError(f"loss={self.loss!r} needs ordered labels: use LFLOrdinal, or loss='log' or 'brier'.")
        return loss.bind(numeric_values(classes)) if self._ordered else loss

    def _penalty(self, layout: Layout, dyads: Dyads, values: Array | None) -> L2:
        given = (self.l2_bias, self.l2_row, self.l2_col)
        bias, row, col = (float(self.l2 if own is None else own) for own in given)
        strengths = dict.fromkeys(("row_bias", "col_bias", "node_bias"), bias)
        strengths |= {"row_factors": row, "out_factors": row, "col_factors": col, "in_factors": col}
        # What labels weigh by is held near where it starts: left free, it would grow until the factors cost nothing.
        # What relations weigh by is theirs as a row's weights are the row's.
        alone = layout.n_relations == 1
        shared = (SHARED if alone else self.l2) if self.l2_shared is None else self.l2_shared
        strengths |= {"node_factors": float(self.l2), "phi": float(shared), "diagonal": float(shared)}
        centre = np.zeros(layout.size)
        if not alone:
            # A relation with one label only has no finite bias of its own.
            strengths["label_bias"] = bias
            layout.named(centre)["label_bias"][:] = label_log_odds(layout.structure, dyads.label_counts)
        if alone:
            for name, start in layout.structure.shared_start(1, values).items():
                layout.named(centre)[name][:] = start
        return L2.of(layout, strengths, self.l2_scaling, Counts.of(dyads, layout.structure.one_set), centre)

    def _base_code(self, classes: Array) -> int:
        """The code of the pinned label, or the number of labels when none is."""
        if isinstance(self.base, str) and self.base == "auto":
            return 0 if len(classes) == 2 else len(classes)
        if self.base is None:
            return len(classes)
        found = np.flatnonzero(classes == self.base) if np.isscalar(self.base) else ()
        if not len(found):
            raise InputError(f"base={self.base!r} is no label: expected None, 'auto' or one of {classes.tolist()}.")
        return int(found[0])

    def _warm_start(self, layout: Layout, penalty: L2, seen: Observations) -> Any:
        old = self.fitted_
        if old.structure != layout.structure or not np.array_equal(old.classes, seen.classes):
            raise InputError(
                "warm_start=True needs the labels, rank, base and bias of the last fit: they changed. Fit a new "
                "estimator, or set warm_start=False."
            )

        def start(theta: Array) -> Array:
            # Centring by the penalty's own scales undoes that by counts: of equal models it has the least penalty.
            known = old.start_for(layout, theta, seen.rows, seen.cols, seen.relations)
            return layout.centre(known, penalty.row_scale, penalty.col_scale)

        return start

    def _check_parameters(self) -> None:
        for name, valid in (
            ("loss", LOSSES),
            ("structure", self._structures),
            ("l2_scaling", SCALINGS),
            ("solver", (*SOLVERS, "auto")),
            ("unknown", UNKNOWN_POLICIES),
        ):
            value = getattr(self, name)
            if type(value) in LOSSES.values() or (name == "structure" and value is None):
                continue
            if name == "structure" and isinstance(value, str) and value in STRUCTURES and value not in valid:
                fitting = [kind.__name__ for kind in ESTIMATORS.values() if value in kind._structures]
                raise InputError(
                    f"structure={value!r} does not fit {type(self).__name__}: expected one of "
                    f"{', '.join(map(repr, valid))}. Use {' or '.join(fitting)} for it."
                )
            if not isinstance(value, str) or value not in valid:
                raise unknown_name(name, value, valid)
        delta = getattr(self.loss, "delta", 0)
        if not isinstance(delta, numbers.Real) or not 0 <= delta < np.inf:
            raise InputError(f"loss={self.loss!r} has delta={delta!r}: expected a finite number, at least 0.")
        for name in ("bias", "early_stopping", "warm_start"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise InputError(f"{name}={getattr(self, name)!r} is not possible: expected True or False.")
        for name, least, kind in (
            ("rank", 0, numbers.Integral),
            ("n_init", 1, numbers.Integral),
            ("max_iter", 1, numbers.Integral),
            ("l2", 0, numbers.Real),
            ("l2_row", 0, numbers.Real),
            ("l2_col", 0, numbers.Real),
            ("l2_bias", 0, numbers.Real),
            ("l2_shared", 0, numbers.Real),
            ("n_bases", 1, numbers.Integral),
            ("tol", 0, numbers.Real),
        ):
            value = getattr(self, name)
            optional = value is None and name not in ("rank", "n_init", "l2")
            if not optional and (not isinstance(value, kind) or isinstance(value, bool) or not least <= value < np.inf):
                what = "a whole number" if kind is numbers.Integral else "a finite number"
                raise InputError(f"{name}={value!r} is not possible: expected {what}, at least {least}.")
        for name, most in (("learning_rate", np.inf), ("validation_fraction", 1)):
            value = getattr(self, name)
            optional = value is None and name == "learning_rate"
            if not optional and not (isinstance(value, numbers.Real) and 0 < value < most):
                raise InputError(f"{name}={value!r} is not possible: expected a number between 0 and {most}.")
        if self.n_jobs is not None and (not isinstance(self.n_jobs, numbers.Integral) or self.n_jobs == 0):
            raise InputError(
                f"n_jobs={self.n_jobs!r} is not possible: expected a number of threads, or -1 for all cores."
            )

    # -------------------------------------------------------------------------------------------------- predicting

    def _scores(self, X: Any) -> Array:
        """Score the dyads of X; those with unknown ids follow the policy, and are counted in one warning."""
        check_is_fitted(self)
        if self.unknown not in UNKNOWN_POLICIES:
            raise unknown_name("unknown", self.unknown, UNKNOWN_POLICIES)
        fitted = self.fitted_
        vocabularies = [fitted.rows, fitted.cols] + ([] if fitted.relations is None else [fitted.relations])
        codes = read_dyads(X, vocabularies, self.columns_)
        out = scores(fitted, *codes, n_jobs=self.n_jobs)
        unknown = [column < 0 for column in codes]
        if any(column.any() for column in unknown):
            counted = zip(unknown, ("a row id", "a column id", "a relation"), strict=False)
            found = " and ".join(f"{column.sum()} have {what}" for column, what in counted if column.any())
            message = f"Of {len(out)} dyads, {found} not seen in training"
            if self.unknown == "raise":
                raise UnknownIdError(f"{message}: expected known ids. Drop them, or set unknown='prior' or 'nan'.")
            if self.unknown == "nan":
                out[np.logical_or.reduce(unknown)] = np.nan
            treated = "average ones" if self.unknown == "prior" else "NaN"
            warnings.warn(f"{message}: treated as {treated}.", UnknownIdWarning, stacklevel=_outside())
        return out

    def predict_proba(self, X: Any) -> Array:
        """Probability of each label (n, n_labels); columns in the order of `classes_`."""
        return link(self._scores(X))

    def log_odds(self, X: Any) -> Array:
        """Log-odds of each label (n, n_labels): against the base, or against the labels' geometric mean if none."""
        return self.fitted_.log_odds(self._scores(X).astype(np.float64))

    def predict(self, X: Any, cost: Any = None) -> Array:
        """Predict one label per dyad; with a cost matrix, the label of least expected cost.

        `cost` : (n_labels, n_labels), cost[true, predicted] in the order of `classes_`. Under ``unknown="nan"`` dyads
        with unknown ids are an error here: no label can be predicted for them.
        """
        proba = link(self._scores(X))
        if np.isnan(proba).any():
            raise UnknownIdError(
                f"{int(np.isnan(proba).any(axis=1).sum())} dyads have ids not seen in training, whose probabilities "
                "are NaN under unknown='nan': no label can be predicted. Drop them, or set unknown='prior'."
            )
        if cost is None:
            return self.classes_[self._decide(proba)]
        n_labels = len(self.classes_)
        try:
            cost = np.asarray(cost, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"cost is no matrix of numbers ({error}): expected ({n_labels}, {n_labels}).") from error
        if cost.shape != (n_labels, n_labels) or not np.isfinite(cost).all():
            raise InputError(f"cost has shape {cost.shape}: expected ({n_labels}, {n_labels}), all finite numbers.")
        return self.classes_[least_cost(proba, cost)]

    def _decide(self, proba: Array) -> Array:
        """The code of the label to predict (n,)."""
        return mode(proba)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict`: the share of labels predicted exactly."""
        return accuracy(read_labels(y), self.predict(X), sample_weight)

    # -------------------------------------------------------------------------------------------------- attributes

    @property
    def classes_(self) -> Array:
        """The labels, sorted (n_labels,)."""
        return _read_only(self._known().classes)

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
        """Latent weights of the rows (n_rows, n_labels, rank), zeros for a pinned base; `parts_` has all of them."""
        return self._factors("row_factors")

    @property
    def col_factors_(self) -> Array:
        """Latent weights of the columns (n_cols, n_labels, rank), as those of the rows."""
        return self._factors("col_factors")

    @property
    def parts_(self) -> dict[str, Array]:
        """All that was learnt, by name: biases, latent weights, and what labels or relations weigh them by.

        Labels have entries in the order of `classes_` without a pinned base; ids as in `row_ids_` and `col_ids_`.
        """
        fitted = self._known()
        return {name: _read_only(part) for name, part in fitted.layout.named(fitted.theta).items()}

    def _factors(self, name: str) -> Array:
        fitted = self._known()
        if name not in fitted.layout.named(fitted.theta):
            raise AttributeError(f"This {type(self).__name__} has no {name}: its parts are {list(self.parts_)}.")
        return _read_only(fitted.factors(name))

    def embed(self, ids: Any, side: str = "row") -> Array:
        """One vector of all latent weights an id (n, size), ready for clustering; `side` is "row" or "col".

        With one id set both sides are the same: a node has one vector, with its weights in all roles.
        """
        check_is_fitted(self)
        if side not in ("row", "col"):
            raise unknown_name("side", side, ("row", "col"))
        vocabulary = self.fitted_.rows if side == "row" else self.fitted_.cols
        codes = vocabulary.encode(read_column(ids, "the column of ids"))
        if (codes < 0).any():
            raise UnknownIdError(
                f"{int((codes < 0).sum())} of {len(codes)} ids were not seen in training: expected known ids."
            )
        return self.fitted_.embed(codes, side)

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
        if type(self) not in ESTIMATORS.values():
            raise InputError(
                f"{type(self).__name__} is no estimator of dyads, so its file could not be read: save its base."
            )
        parameters = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        fit = {name: getattr(self, name) for name in _SAVED}
        artifact.write(path, self.fitted_, {"estimator": type(self).__name__, "parameters": parameters, "fit": fit})


_SAVED = ("columns_", "n_features_in_", "n_iter_", "converged_", "objective_", "solver_", "trace_")


class _Nominal(_LFL):
    """Estimators whose labels have no order."""

    def decision_function(self, X: Any) -> Array:
        """Log-odds (n, n_labels); for two labels those of the second, (n,)."""
        odds = self.log_odds(X)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds


class LFLClassifier(_Nominal):
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
    structure : "bilinear" (default) or "stereotype"
        How latent weights make scores: a set of its own for every label, or `n_bases` sets shared by all labels, each
        with a weight phi of every label.
    n_bases : int, default None
        Sets of shared latent weights of the structure "stereotype" (1 if None; no more than there are labels), and of
        mixtures of relations (3 if None).
    base : label, None or "auto", default "auto"
        The label whose weights are pinned to zero; None gives every label weights. "auto" pins the first of two labels
        and none of three or more.
    bias : bool, default True
        Whether rows and columns have biases; the label bias is always there.
    row, col : names of the columns that hold the row and the column ids, default the first two; X has no others
    l2 : float, default 6.0
        Strength of the penalty: the precision of a Gaussian prior on a weight, in units of log-odds. The defaults suit
        ratings and votes; strong structure with little noise wants less (0.3 to 1): choose by cross-validation.
    l2_row, l2_col : float, default None
        Strengths for the latent weights of rows and of columns; None means `l2`.
    l2_bias : float or None, default 2.0
        Strength for row and column biases; None means `l2`.
    l2_shared : float, default None
        Strength, per dyad, that holds the labels' weights of shared latent weights near where they start; None is 0.1.
    l2_scaling : "none", "inverse_sqrt" or "count", default "none"
        "inverse_sqrt" penalises rarely seen rows and columns more, "count" is the same decay at every observation. The
        strengths mean other things then: choose them anew.
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
        Hold out `validation_fraction` of the dyads, stop when their loss has not fallen for three iterations, and keep
        the best iterate. The held-out dyads are not trained on: with a good `l2` this costs accuracy.
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
    classes_ : labels, sorted
    row_ids_, col_ids_ : ids, in order of first appearance
    row_factors_, col_factors_ : (n, n_labels, rank) latent weights; (n, n_bases, rank) where labels share them
    parts_ : dict of all that was learnt: biases, latent weights, label or relation weights
    n_iter_, converged_, solver_ : how the fit went
    objective_ : its value where the solver stopped, before the biases are centred
    trace_ : dict of lists, one entry per iteration: init, iteration, objective, validation, seconds
    n_parameters_ : int
    fitted_ : the `Fitted` record all of these are read from

    References
    ----------
    A. K. Menon and C. Elkan, "Dyadic prediction using a latent feature log-linear model", 2010.
    """

    _structures = ("bilinear", "stereotype")


class LFLOrdinal(_LFL):
    """Latent feature log-linear model for ordered labels with numeric values, such as ratings.

    The parameters are those of `LFLClassifier`, but the default structure is "stereotype": the latent weights are
    shared by all labels, and each label weighs them by phi, which starts from the standardised label values (with two
    labels, or rank 0, it is "bilinear"). There are three more losses, which compare the label with the expected label
    E y: "absolute", |y - E y| (smoothed near zero, see `dyads.Absolute`), "squared", (y - E y)^2, and "hinge", the
    all-threshold hinge of maximum-margin matrix factorisation. These train the mean alone: their probabilities are not
    calibrated.

    `predict` gives the median label for the losses "log" and "brier", and the label nearest the mean for the others;
    `predict_mean` gives the expected value. `score` is minus the mean absolute error of `predict`.
    """

    _structures = ("stereotype", "bilinear")
    _ordered = True

    def predict_mean(self, X: Any) -> Array:
        """Expected value of the label (n,)."""
        return link(self._scores(X)) @ numeric_values(self.classes_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean absolute error of `predict`: greater is better."""
        truth = numeric_values(read_labels(y))
        return -mean_absolute_error(truth, numeric_values(self.predict(X)), sample_weight)

    def _decide(self, proba: Array) -> Array:
        return self.fitted_.loss.decide(proba, numeric_values(self.classes_))


class LFLLink(_Nominal):
    """Links between the nodes of one set: both columns of X hold ids of the same kind.

    `structure` is "symmetric" (default; one set of weights, sigma(A A^T)), "spectral" (sigma(A Lambda A^T) with a
    signed diagonal, which can also tell that like avoids like) or "directed" (weights as source, as target, and in
    both roles). Labels are usually 0 and 1, the first of two being the base, but any nominal labels make typed links.

    With the first two a pair is undirected: it may be given once, in either order, (i, j) and (j, i) have exactly the
    same probabilities, and giving both orders with different labels is an error. Self-links are allowed. The other
    parameters are those of `LFLClassifier`; `l2_row` and `l2_col` are for the weights as source and as target.
    """

    _structures = ("symmetric", "spectral", "directed")

    def _read(self, X: Any, y: Any, sample_weight: Any) -> Observations:
        seen = super()._read(X, y, sample_weight)
        if self._structure != "directed":
            check_undirected(seen)
        return seen


class LFLRelational(_Nominal):
    """Many relations: X has a row id, a column id and a relation; labels are two, usually 0 and 1.

        p(y = 1 | r, c, t) = sigma(gamma_t + alpha_r + beta_c + A_r Lambda^t B_c)

    Rows and columns have one set of weights for all relations; each relation t has a bias and a diagonal Lambda^t.
    `structure` is "relational" (default) or "mixture" (`n_bases` bilinear terms, each relation having a weight for each
    of them), which suit one id set as well as two, rows and columns having weights of their own; or, for undirected
    relations of one id set, "spectral" or "symmetric_mixture", with the same weights in both roles. The relation is
    the column that is neither `row` nor `col`, by default the third. The other parameters are those of `LFLClassifier`;
    `l2_shared` is the strength for the relations' own weights, by default `l2`.
    """

    _structures = ("relational", "mixture", "spectral", "symmetric_mixture")

    def _read(self, X: Any, y: Any, sample_weight: Any) -> Observations:
        _, one_set = STRUCTURES[self._structure]
        seen = read_observations(X, y, sample_weight, (self.row, self.col, None), one_set=one_set)
        if one_set:
            check_undirected(seen)
        if len(seen.classes) != 2:
            raise InputError(
                f"LFLRelational got {len(seen.classes)} labels: expected two, such as 0 and 1, per relation."
            )
        return seen

    @property
    def relation_ids_(self) -> Array:
        """The relations, in the order of `relation_similarity`."""
        return to_numpy(self._known().relations.ids)  # type: ignore[union-attr]

    def relation_similarity(self) -> Array:
        """Correlation, about zero, of each two relations' weights Lambda (n_relations, n_relations)."""
        check_is_fitted(self)
        return self.fitted_.relation_similarity()


ESTIMATORS = {kind.__name__: kind for kind in (LFLClassifier, LFLOrdinal, LFLLink, LFLRelational)}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` wrote; nothing in the file is executed.

    Its arrays stay mapped to the file: replace that by `save`, never in place.
    """
    fitted, about = artifact.read(path)
    try:
        parameters = dict(about["parameters"])
        if isinstance(parameters["loss"], dict):
            parameters["loss"] = artifact.spec_from_json(parameters["loss"], LOSSES)
        model = ESTIMATORS[about["estimator"]](**parameters)
        for name in _SAVED:
            setattr(model, name, about["fit"][name])
    except (KeyError, TypeError) as error:
        raise artifact.not_understood(path, error) from error
    model.fitted_ = fitted
    return model


def _outside() -> int:
    """The stack level, for a warning of the caller, of the first frame that is not in this file."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


def _read_only(array: Array) -> Array:
    """A view that cannot be written to, so that nobody alters the model by accident."""
    view = array.view()
    view.flags.writeable = False
    return view


def _plain(value: Any) -> Any:
    """A parameter as a JSON value."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in LOSSES.values():
        return artifact.spec_to_json(value, LOSSES)
    if isinstance(value, numbers.Rational) and not isinstance(value, int):
        return float(value)
    # What is left is a random generator: state of the session that fitted, not of the model.
    return value if isinstance(value, str | int | float | list | dict) else None


@contextmanager
def _logged(verbose: int, callback: Callback | None) -> Iterator[Callback | None]:
    """Wrap a callback so that each iteration is logged first; to standard error, for the time, if nobody listens."""
    if not verbose:
        yield callback
        return
    handler, level = None, logger.level
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)

    def announce(progress: Progress) -> Any:
        held = "" if np.isnan(progress.validation) else f", held-out loss {progress.validation:.5f}"
        start, iteration, objective, _, seconds = progress
        logger.info("start %d, iteration %d: objective %.6g%s, %.1f s", start, iteration, objective, held, seconds)
        return callback(progress) if callback is not None else None

    try:
        yield announce
    finally:
        if handler is not None:
            logger.removeHandler(handler)
            logger.setLevel(level)
