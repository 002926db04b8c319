"""Model selection: evaluation by cold-start regime, and penalties chosen by cross-validation."""

import itertools
import logging
import math
import numbers
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import joblib
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted

from dyads import metrics
from dyads.data.codes import numeric_values, read_labels, text_order, values_of
from dyads.data.features import SideInformation
from dyads.data.observations import read_weight
from dyads.data.split import RandomCells
from dyads.data.tables import named_values, read_column, read_feature
from dyads.engine import Engine
from dyads.errors import (
    InputError,
    NotConvergedWarning,
    UnknownIdWarning,
    VanishedWarning,
    WeightWarning,
    caller_level,
)
from dyads.estimators.kinds import LFLClassifier, LFLOrdinal
from dyads.estimators.lfl import LFL
from dyads.estimators.predictor import returned_table
from dyads.estimators.settings import BY_DATA, features_of, l2_of, solver_of, to_json
from dyads.learn.training import point_solver
from dyads.model.loss import Loss
from dyads.model.objective import L2
from dyads.solve import LBFGS, SGD, Gibbs, Newton
from dyads.trained.predictions import Predictions, predictions_of

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Default grid of `l2__latent`, as fractions of the strength at which all latent weights vanish: 1 is rank 0."""

SIDE_GRID = (3.0, 10.0, 30.0, 100.0, 300.0)
"""Default grid of `l2__side`, for models with features: about a factor of 3 apart, centred on the default 30."""

BIAS_GRID = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Default grid of `l2__bias`, for models without latent weights: factors of 2, centred on the default 2."""

CLEARLY_WORSE = 2.0
"""A candidate is dropped after the first fold if its log-loss is above the best by this many standard errors."""

FINALISTS = 2
"""At most this many candidates, or a third of them, are judged on all folds: near the optimum, neighbours are alike."""

UNSEEN_LABEL = 20.0
"""Log-loss, -log p, of a label that is missing from the training part of a fold: p = exp(-20) = 2e-9, not zero."""

SEARCHED = ("cv_results_", "best_params_", "best_score_", "best_index_")
"""What a search learns beside its model."""

REGIMES = {
    "known": (True, True),
    "new row": (False, True),
    "new column": (True, False),
    "both new": (False, False),
}
"""Cold-start regimes: whether the row and the column of a dyad had labels in training."""


def evaluate(
    model: Any, X: Any, y: Any, sample_weight: Any = None, *, row_features: Any = None, col_features: Any = None
) -> Any:
    """Evaluate a fitted model, and the marginals of its training data, by regime: a tidy table.

    There is a line for each regime that occurs, and for all dyads, and in it for each predictor: the model, and what
    it has to beat, label frequencies of its training data (`model.marginals(X)`), on the same dyads.

    Columns: regime ("known", "new row", "new column", "both new" or "all"), predictor ("model", "all labels", and
    "labels by " with the name of each id column), n (dyads), log_loss, brier_score, classwise_ece, auc (NaN if all
    labels are the same), accuracy; and for ordered labels mean_absolute_error, of the predicted label, and
    root_mean_squared_error, of the mean. Without dyads, the metrics are NaN. The table is of the library of the
    model's fit (if that is not known, of X; otherwise an Arrow table).

    `model` : any fitted model with `predict_proba`, `predict` and `classes_`; without methods `support` and
    `marginals`, as of models of other libraries, the table has only the regime "all" and the predictor "model".
    `row_features`, `col_features` : as for `predict_proba`.
    """
    predictors = predictors_of(model, X, row_features, col_features)
    return returned_table(model, by_regime(predictors, y, sample_weight, ordered=hasattr(model, "predict_mean")), X)


def predictors_of(model: Any, X: Any, row_features: Any = None, col_features: Any = None) -> dict[str, Predictions]:
    """Predictions for the dyads of X by the model ("model") and by the marginals of its training data, by name."""
    with warnings.catch_warnings():
        # The figures of `evaluate` themselves show how many dyads have new ids.
        warnings.simplefilter("ignore", UnknownIdWarning)
        predictions = predictions_of(model, X, row_features, col_features)
    return {"model": predictions} | (model.marginals(X) if hasattr(model, "marginals") else {})


def by_regime(
    predictors: Mapping[str, Predictions], y: Any, sample_weight: Any = None, *, ordered: bool = False
) -> dict[str, list[Any]]:
    """Columns of the table of `evaluate`; without support, it has only the regime "all"."""
    truth, weight, support = read_labels(y), read_weight(sample_weight), predictors["model"].support
    if len(truth) != len(predictors["model"]):
        n_dyads = len(predictors["model"])
        raise InputError(f"Got {n_dyads} dyads but {len(truth)} labels: expected one label per dyad.")
    regimes = {}
    if support is not None:
        regimes = {name: ((support > 0) == np.array(known)).all(axis=1) for name, known in REGIMES.items()}
    regimes["all"] = np.ones(len(truth), np.bool_)
    columns: dict[str, list[Any]] = {}
    of_all: dict[str, dict[str, float]] = {}
    for regime, chosen in regimes.items():
        # The regime "all" is there even if there are no dyads.
        for predictor, predictions in predictors.items() if chosen.any() or regime == "all" else ():
            # If all dyads are of one regime, they are judged once.
            figures = of_all.get(predictor) or _figures(predictions, truth, weight, chosen, ordered)
            if chosen.all():
                of_all[predictor] = figures
            line = {"regime": regime, "predictor": predictor, "n": int(chosen.sum()), **figures}
            for name, value in line.items():
                columns.setdefault(name, []).append(value)
    return columns


def turned(columns: Mapping[str, Sequence[Any]]) -> dict[str, tuple[int, dict[str, list[Any]]]]:
    """The table of `evaluate` for people: for each regime, the number of dyads and a table with a line per metric.

    The columns of each table are "metric", with names from `metrics.TITLES`, and the predictors. "all" comes first;
    other regimes that all dyads belong to are left out, as their figures are the same.
    """
    titles = {name: title for name, title in metrics.TITLES.items() if name in columns}
    tables: dict[str, tuple[int, dict[str, list[Any]]]] = {}
    for line, (regime, predictor, n) in enumerate(
        zip(columns["regime"], columns["predictor"], columns["n"], strict=True)
    ):
        _, table = tables.setdefault(regime, (n, {"metric": list(titles.values())}))
        table[predictor] = [columns[name][line] for name in titles]
    everything = tables.pop("all")
    return {"all": everything} | {regime: part for regime, part in tables.items() if part[0] < everything[0]}


EVALUATED = ("log_loss", "brier_score", "classwise_ece", "auc", "accuracy")
"""Metrics of `evaluate` for all labels, by the names of their functions; the first three take probabilities."""


def _figures(
    predictions: Predictions, truth: Array, weight: Array | None, chosen: Array, ordered: bool
) -> dict[str, float]:
    """The metrics of `evaluate` on the `chosen` dyads, by name (keys of `metrics.TITLES`)."""
    classes, y, proba = predictions.classes, truth[chosen], predictions.proba[chosen]
    labels, share = predictions.labels[chosen], None if weight is None else weight[chosen]
    if not len(y) or (share is not None and not share.any()):
        names = [*EVALUATED, *(("mean_absolute_error", "root_mean_squared_error") if ordered else ())]
        return dict.fromkeys(names, np.nan)
    figures = {name: getattr(metrics, name)(y, proba, classes, share) for name in EVALUATED[:3]}
    several = len(np.unique(y)) > 1
    figures["auc"] = metrics.auc(y, proba, classes, sample_weight=share) if several else np.nan
    figures["accuracy"] = metrics.accuracy(y, labels, share)
    if ordered:
        values = values_of(y, classes), values_of(labels, classes)
        figures["mean_absolute_error"] = metrics.mean_absolute_error(*values, share)
        mean = predictions.mean[chosen]
        figures["root_mean_squared_error"] = metrics.root_mean_squared_error(values[0], mean, share)
    return figures


FEWEST_TO_JUDGE = 30
"""Fewest dyads on which a model is said not to beat marginals: a standard error of fewer is not to be trusted."""


def _remedy(model: Any) -> str:
    """Advice for a model that is no better than marginals, in terms of the command."""
    record = model.record_
    if record.parts.loss.ordered and record.calibrator is None:
        return "Its loss trains only the expected label: calibrate its probabilities on held-out pairs."
    if record.is_posterior:
        return (
            "More sweeps (--solver gibbs --solver-sweeps) or features of the ids may help; or the ids tell nothing "
            "about the labels."
        )
    if "chosen" in model.trained_on_ or isinstance(model, _CV):
        return "Sample the posterior (--solver gibbs)."
    if type(model).__name__ not in SEARCHES:
        return "Try other penalties (--l2, --l2-bias), or sample the posterior (--solver gibbs)."
    return "Choose the penalty by --cv, or sample the posterior (--solver gibbs)."


def shortfall(model: Any, predictors: Mapping[str, Predictions], y: Any, sample_weight: Any = None) -> str:
    """A sentence that says so if the model does not beat the best of the marginals in log-loss; empty if it does.

    The model beats them if the mean of its log-loss minus theirs is below zero by more than two standard errors. Of
    fewer than `FEWEST_TO_JUDGE` dyads nothing is said.
    """
    truth, weight = read_labels(y), read_weight(sample_weight)
    losses = {name: metrics.log_losses(truth, each.proba, each.classes) for name, each in predictors.items()}
    means = {name: float(np.average(loss, weights=weight)) for name, loss in losses.items()}
    best = best_marginal(means)
    if len(truth) < FEWEST_TO_JUDGE:
        return ""
    difference, error = metrics.paired_difference(losses["model"], losses[best], weight)
    if difference < -2 * error or best == "model":
        return ""
    size = "more" if difference > 2 * error else "not more"
    noise = f"the difference of {difference:+.4f} is {size} than twice its standard error, {error:.4f}"
    return shortfall_of(model, means, "these pairs", f" ({noise})")


def best_marginal(log_loss: Mapping[str, float]) -> str:
    """The predictor of least log-loss beside the model; the model if there is no other."""
    others = [name for name in log_loss if name != "model"]
    return min(others, key=lambda name: log_loss[name], default="model")


def shortfall_of(model: Any, log_loss: Mapping[str, float], pairs: str, noise: str = "") -> str:
    """The sentence of `shortfall` for the mean log-loss of each predictor on the `pairs` so called."""
    best = best_marginal(log_loss)
    beats = "clearly beat" if log_loss["model"] < log_loss[best] else "beat"
    return (
        f"The model does not {beats} {best!r}, frequencies of labels in the training data: its log-loss on {pairs} is "
        f"{log_loss['model']:.4f}, theirs {log_loss[best]:.4f}{noise}. {_remedy(model)}"
    )


def calibration_by_label(model: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """Calibration of each label: expected calibration error and decomposition of the Brier score.

    Returns a tidy table of label, share, ece, reliability, resolution and uncertainty; see
    `metrics.brier_decomposition`.
    """
    proba, truth, classes = model.predict_proba(X), read_labels(y), model.classes_
    parts = metrics.brier_decomposition(truth, proba, classes, sample_weight)
    share_and_ece = []
    for code, label in enumerate(classes):
        confidence, frequency, share = metrics.reliability(truth == label, proba[:, code], sample_weight)
        error = float(np.sum(share * np.abs(confidence - frequency)))
        share_and_ece.append((float(np.sum(share * frequency)), error))
    rate, ece = np.array(share_and_ece).T
    return returned_table(model, {"label": classes, "share": rate, "ece": ece, **parts}, X)


def calibration_by_support(model: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """Calibration by the number of training labels: in deciles of the support of the less known id of each dyad.

    Returns a tidy table of least_support and most_support (the bounds of each decile), n, classwise_ece, brier_score
    and log_loss.
    """
    predictions, truth = predictions_of(model, X), read_labels(y)
    proba, support = predictions.proba, predictions.least_support
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    part = np.searchsorted(np.unique(np.quantile(support, np.linspace(0, 1, 11)[1:-1])), support, side="right")
    columns: dict[str, list[Any]] = {}
    for number in np.unique(part):
        chosen = part == number
        arguments = (truth[chosen], proba[chosen], predictions.classes, None if weight is None else weight[chosen])
        line = {"least_support": support[chosen].min(), "most_support": support[chosen].max(), "n": int(chosen.sum())}
        line |= {name: getattr(metrics, name)(*arguments) for name in ("classwise_ece", "brier_score", "log_loss")}
        for name, value in line.items():
            columns.setdefault(name, []).append(value)
    return returned_table(model, columns, X)


def vanishing_l2(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """The strength of `l2` at which latent weights vanish: the spectral norm of the score gradients of rank 0.

    Let g_y(r, c) = d loss / d score_y at the fit of rank 0, summed over dyads. Near zero, latent weights a, b change
    the loss by sum_rc g_y(r, c) a_r b_c and cost l2 (|a|^2 + |b|^2) / 2. So they grow only if the matrix g_y of some
    label has a spectral norm above l2. For ordered labels, which share latent weights, the sum of g_y over labels,
    weighted by their standardised values, counts too.
    """
    l2 = l2_of(estimator.l2).replaced(dict.fromkeys(("latent", "row", "col", "shared")))
    features = None if estimator.features is None else estimator.features.replaced({"interactions": 0})
    changed = {"rank": 0, "structure": None, "n_terms": None, "early_stopping": None, "n_models": 1}
    plain = clone(estimator).set_params(l2=l2, features=features, **changed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        plain.fit(X, y, sample_weight)
    problem, theta = plain.problem(X, y, sample_weight)
    with problem:
        dyads, slopes = problem.score_gradients(theta)
    if plain._ordered:
        values = numeric_values(plain.classes_)
        slopes = np.column_stack([slopes, slopes @ ((values - values.mean()) / values.std())])
    norms = [0.0]
    for g in slopes.T:
        matrix = sparse.csr_array((g, (dyads.row, dyads.col)))
        if min(matrix.shape) > 1:
            norms.append(float(svds(matrix, k=1, return_singular_vectors=False, random_state=0)[0]))
    return max(norms) or 1.0


class _CV(LFL):
    """Built-in cross-validation; `_plain` is the estimator that is fitted."""

    _posterior_by_default = False

    _plain: ClassVar[Any]

    def __init__(
        self,
        rank: int | None = None,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        cv: Any = 3,
        n_jobs: int | None = None,
        loss: str | Loss = "log",
        structure: str | None = None,
        n_terms: int | None = None,
        reference: Any = "auto",
        order: Sequence[str] | None = None,
        bias: bool = True,
        id_columns: Sequence[Any] | None = None,
        features: SideInformation | None = None,
        l2: float | L2 | None = None,
        solver: str | LBFGS | SGD | Newton | Gibbs = "auto",
        n_init: int = 1,
        n_models: int = 1,
        early_stopping: float | None = None,
        unknown: str = "prior",
        engine: str | Engine = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        warm_start: bool = False,
    ) -> None:
        super().__init__(
            rank,
            loss=loss,
            structure=structure,
            n_terms=n_terms,
            reference=reference,
            order=order,
            bias=bias,
            id_columns=id_columns,
            features=features,
            l2=l2,
            solver=solver,
            n_init=n_init,
            n_models=n_models,
            early_stopping=early_stopping,
            unknown=unknown,
            engine=engine,
            random_state=random_state,
            verbose=verbose,
            warm_start=warm_start,
        )
        self.grid = grid
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(  # type: ignore[override]  # The callback of a search counts fits, not iterations; no checkpoint.
        self, X: Any, y: Any, sample_weight: Any = None, callback: Callable[[int, int], Any] | None = None
    ) -> Self:
        """Choose the penalties by cross-validation, then fit on all data.

        `callback` : called as callback(fits done, fits planned) after each fit, for a progress bar. Fewer are planned
        when candidates are dropped. With several jobs, it is called from their threads, one at a time.
        """
        template = self._template()
        template.check_params()
        if self.warm_start:
            raise InputError("Got warm_start=True: expected False, since a search starts from the data. Leave it out.")
        table = {name: read_feature(values, f"column {name!r}") for name, values in named_values(X).items()}
        labels = read_column(y, "the column of labels", numbers_mix=True)
        if self._ordered and template.order is None:
            template.order = text_order(y)
        weight = read_weight(sample_weight)
        if isinstance(self.cv, numbers.Integral):
            cv = RandomCells(int(self.cv), id_columns=template.id_columns)
        else:
            cv = check_cv(self.cv, read_labels(y), classifier=True)
        folds = list(cv.split(table if isinstance(cv, RandomCells) else X, read_labels(y)))
        search = _Search(template, (table, labels, weight), folds, self.n_jobs, self.verbose, callback)
        paths, side = self._paths(search)
        search.planned = (sum(path.n_fits for path in paths) + (0 if side is None else side.n_fits)) * len(folds)
        search.judge(paths)
        best = clone(template).set_params(**search.best)
        if side is not None and ("l2__side" in (self.grid or ()) or self._has_features(best, table)):
            search.judge([side._replace(fixed=search.best)])
        elif side is not None:
            search.planned -= side.n_fits * len(folds)
        self.cv_results_, self.best_index_ = search.results()
        self.best_params_ = search.best
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        with warnings.catch_warnings():
            # Its advice is to choose the penalty by cross-validation.
            warnings.simplefilter("ignore", VanishedWarning)
            chosen = clone(template).set_params(**search.best).fit(X, y, sample_weight)
        if chosen._vanished:
            warnings.warn(
                f"The search chose {search.best}, at which all latent weights are near zero: these data support none, "
                "and rank=0 predicts as well, in less time.",
                VanishedWarning,
                stacklevel=caller_level(),
            )
        for name in [name for name in vars(self) if name.endswith("_") and name not in SEARCHED]:
            delattr(self, name)
        self.__dict__.update({name: value for name, value in vars(chosen).items() if name.endswith("_")})
        self.held_out_ = {"model": -self.best_score_} | search.marginals()
        chosen_values = {name: to_json(value) for name, value in search.best.items()}
        self.trained_on_ = {**self.trained_on_, "chosen": chosen_values}
        return self

    def _paths(self, search: "_Search") -> "tuple[list[_Path], _Path | None]":
        """The regularisation paths of the search, and that of `l2__side`, if there is any, for the best of them."""
        template, (table, labels, weight) = search.template, search.data
        grid = {name: list(values) for name, values in (self.grid or {}).items()}
        if "l2" in grid or not all(grid.values()):
            raise InputError(
                f"Got grid={self.grid!r}: expected values of parameters, and l2__latent, l2__bias or l2__side in place "
                "of l2. Rename l2 to l2__latent."
            )
        solver, strengths = solver_of(template.solver), l2_of(template.l2)
        latent = grid.pop("l2__latent", None) or (None if strengths.latent is None else [strengths.latent])
        given_side: Sequence[float] | None = grid.pop("l2__side", None)
        if latent is None and solver is not None and solver.samples:
            raise InputError(
                f"{type(solver).__name__} learns how strong its penalties are: expected a solver that minimises, or a "
                f"fixed l2 to compare other parameters. To fit without a search, use {self._plain.__name__}."
            )
        combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        models = [clone(template).set_params(**fixed) for fixed in combinations]
        penalties = [self._penalty_of(model) for model in models]
        refined = latent is None
        if latent is None and "l2__latent" in penalties:
            plain = clone(template).set_params(solver=search.solver({}))
            top = vanishing_l2(plain, table, labels, weight)
            latent = [float(f"{share * top:.3g}") for share in SHARES]
        paths = []
        for fixed, penalty in zip(combinations, penalties, strict=True):
            # Without latent weights a strength for them would be refused.
            without = fixed if strengths.latent is None else fixed | {"l2__latent": None}
            bias = fixed.get("l2__bias", strengths.bias)
            if penalty == "l2__latent":
                paths.append(_Path(fixed, penalty, tuple(map(float, latent or ())), refined))
            elif penalty is None or bias is not None:
                paths.append(_Path(without, penalty, () if bias is None else (bias,), False))
            else:
                paths.append(_Path(without, penalty, BIAS_GRID, True))
        if given_side is not None:
            return paths, _Path({}, "l2__side", tuple(given_side), False)
        used = strengths.side is None and any(self._has_features(model, table) for model in models)
        return paths, _Path({}, "l2__side", SIDE_GRID, True) if used else None

    def _has_features(self, model: Any, table: Any) -> bool:
        return features_of(model.features).of_ids or len(table) > model._n_id_columns

    def _penalty_of(self, model: Any) -> str | None:
        """The penalty whose path is searched: on latent weights; on biases at rank 0; None if neither applies."""
        strengths = l2_of(model.l2)
        if model.rank != 0:
            both = strengths.row is not None and strengths.col is not None and strengths.latent is None
            return None if both else "l2__latent"
        return "l2__bias" if model.bias else None

    def _template(self) -> Any:
        """The estimator without cross-validation, with these parameters."""
        parameters = {name: getattr(self, name) for name in self._plain().get_params(deep=False)}
        return self._plain(**parameters | ({"solver": BY_DATA[1]} if solver_of(self.solver) is None else {}))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue from the fitted search with one epoch of SGD over more labelled dyads, with the penalties chosen."""
        check_is_fitted(self)
        return super().partial_fit(X, y, classes, sample_weight)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; `dyads.load` reads it as the plain estimator with the best parameters."""
        check_is_fitted(self)
        chosen = self._template().set_params(**self.best_params_)
        chosen.__dict__.update({name: value for name, value in vars(self).items() if name.endswith("_")})
        chosen.save(path)


class _Path(NamedTuple):
    """Candidates that differ in one penalty.

    Attributes
    ----------
    fixed : the other parameters
    name : name of the penalty, or None: then `fixed` is the only candidate
    values : values of the penalty
    refined : whether to judge every second value only, from the second strongest on until one is worse than the one
        before, and then the neighbours of the best
    """

    fixed: dict[str, Any]
    name: str | None
    values: Sequence[float]
    refined: bool

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The parameters of each candidate, by increasing penalty.

        The order matters for warm starts: latent weights that vanish under a strong penalty stay zero under a weaker
        one.
        """
        return [self.fixed | {self.name: value} for value in sorted(self.values)] if self.name else [self.fixed]

    @property
    def n_fits(self) -> int:
        """The number of candidates that are judged at most."""
        n = len(self.candidates)
        return n // 2 + 2 if self.refined else n


@dataclass(eq=False)
class _Candidate:
    """Parameters, and their log-loss: the mean on each fold (NaN if not judged), and by dyad of the first fold."""

    params: dict[str, Any]
    losses: list[float]
    by_dyad: Array


class _Search:
    """Cross-validation on the log-loss, along paths of one penalty.

    All candidates are judged on the first fold, and the best of them, if not clearly worse than the first, on all
    folds. Candidates of a path that are fitted one after the other start from each other (warm start), except the
    coarse steps of a refined path. Every fold is fitted by the solver of a fit to all data.
    """

    def __init__(
        self,
        template: Any,
        data: tuple[dict[str, Any], Any, Array | None],
        folds: list[tuple[Array, Array]],
        n_jobs: int | None,
        verbose: int,
        callback: Callable[[int, int], Any] | None,
    ) -> None:
        self.callback, self.done, self.planned, self.lock = callback, 0, 0, threading.Lock()
        self.template, self.data, self.folds, self.n_jobs, self.verbose = template, data, folds, n_jobs, verbose
        self.candidates: list[_Candidate] = []
        self.marginal_losses: dict[int, dict[str, float]] = {}

    def solver(self, fixed: dict[str, Any]) -> Any:
        """The solver of a fit to all data; for a fold, which is smaller, "auto" might be another."""
        model = clone(self.template).set_params(**fixed)
        solver = solver_of(model.solver)
        if solver is None:
            observed = model._read(*self.data)
            parts, known = model._untrained(observed)
            solver = point_solver(parts.objective(known), len(observed.dyads))
        return solver

    def judge(self, paths: Sequence[_Path]) -> None:
        """Judge the candidates of paths: on the first fold, and the best of them on the others."""
        jobs = joblib.Parallel(n_jobs=self.n_jobs, prefer="threads")
        # Warning filters are global to all threads, so they are set once, around the parallel jobs.
        with warnings.catch_warnings():
            for kind in (NotConvergedWarning, UnknownIdWarning, VanishedWarning, WeightWarning):
                warnings.simplefilter("ignore", kind)
            solvers = [self.solver(path.fixed) for path in paths]
            by_path = jobs(joblib.delayed(self._first_fold)(*each) for each in zip(paths, solvers, strict=True))
            judged = [candidate for group in by_path for candidate in group]
            best, weight = min(judged, key=lambda candidate: candidate.losses[0]), self._part(0, 1)[2]

            def may_be_best(candidate: _Candidate) -> bool:
                difference, error = metrics.paired_difference(candidate.by_dyad, best.by_dyad, weight)
                return difference <= CLEARLY_WORSE * error

            finalists = sorted(filter(may_be_best, judged), key=lambda candidate: candidate.losses[0])
            del finalists[max(FINALISTS, len(judged) // 3) :]
            kept = [[candidate for candidate in group if candidate in finalists] for group in by_path]
            self.planned -= len(self.folds) * sum(path.n_fits for path in paths)
            self.planned += len(judged) + len(finalists) * (len(self.folds) - 1)
            rest = itertools.product(zip(kept, solvers, strict=True), range(1, len(self.folds)))
            jobs(joblib.delayed(self._fold)(*each, number) for each, number in rest if each[0])
        self.candidates += judged
        for candidate in judged if self.verbose else ():
            logger.info("%s: held-out log-loss %.5f", candidate.params, np.nanmean(candidate.losses))

    def _first_fold(self, path: _Path, solver: Any) -> list[_Candidate]:
        """Judge candidates of a path on the first fold."""
        every = [_Candidate(params, [math.nan] * len(self.folds), np.empty(0)) for params in path.candidates]
        if path.refined:
            best = len(every) - 2
            for i in range(best, 0, -2):
                self._fold([every[i]], solver, 0)
                if every[i].losses[0] > every[best].losses[0]:
                    break
                best = i
            self._fold([every[best - 1], every[best + 1]], solver, 0)
        else:
            self._fold(every, solver, 0)
        return [candidate for candidate in every if len(candidate.by_dyad)]

    def _part(self, number: int, held_out: int) -> tuple[dict[str, Any], Any, Array | None]:
        """The table, labels and weights of the training part (0) or the held-out part (1) of a fold."""
        (table, labels, weight), positions = self.data, self.folds[number][held_out]
        lines = {name: column.take(positions) for name, column in table.items()}
        return lines, labels.take(positions), None if weight is None else weight[positions]

    def _fold(self, candidates: list[_Candidate], solver: Any, number: int) -> None:
        """Judge candidates of a path on one fold."""
        train, (X, y, weight) = self._part(number, 0), self._part(number, 1)
        model = clone(self.template).set_params(warm_start=True)
        if model.unknown in ("raise", "nan"):
            # An id may have no labels in the training part of a fold: the policy for unknown ids is not meant for it.
            model.set_params(unknown="prior")
        for candidate in candidates:
            proba = model.set_params(**candidate.params).set_params(solver=solver).fit(*train).predict_proba(X)
            losses = _held_out_losses(proba, y, model.classes_)
            candidate.losses[number] = float(np.average(losses, weights=weight))
            if number == 0:
                candidate.by_dyad = losses
            with self.lock:
                self.done += 1
                if self.callback is not None:
                    self.callback(self.done, self.planned)
        self.marginal_losses[number] = {
            name: float(np.average(_held_out_losses(each.proba, y, model.classes_), weights=weight))
            for name, each in model.marginals(X).items()
        }

    def marginals(self) -> dict[str, float]:
        """Mean held-out log-loss of the marginals of the training parts, on the same folds."""
        losses = list(self.marginal_losses.values())
        return {name: float(np.mean([each[name] for each in losses])) for name in losses[0]}

    @property
    def best(self) -> dict[str, Any]:
        """The parameters of least mean log-loss, of those that were judged on all folds."""
        losses = [np.mean(candidate.losses) for candidate in self.candidates]
        return self.candidates[int(np.nanargmin(losses))].params

    def results(self) -> tuple[dict[str, Any], int]:
        """Results in the form of scikit-learn's `cv_results_`, and the index of the best."""
        all_params = [candidate.params for candidate in self.candidates]
        scores = -np.array([candidate.losses for candidate in self.candidates])
        names = dict.fromkeys(name for params in all_params for name in params)
        results: dict[str, Any] = {
            f"param_{name}": np.ma.array(
                # Filled one by one: NumPy would take a loss, which is a tuple, for a row of a table.
                np.fromiter((params.get(name) for params in all_params), object, len(all_params)),
                mask=[name not in params for params in all_params],
            )
            for name in names
        }
        results["params"] = all_params
        results |= {f"split{k}_test_score": column for k, column in enumerate(scores.T)}
        # Folds differ in difficulty, so a candidate of one fold is compared with the others on that fold.
        complete = np.isfinite(scores).all(axis=1)
        level = scores[complete].mean(axis=0)
        mean = np.where(complete, scores.mean(axis=1), np.nanmean(scores - level, axis=1) + level.mean())
        rank = np.empty(len(mean), np.int32)
        rank[np.lexsort((-mean, ~complete))] = np.arange(1, len(mean) + 1)
        results |= {"mean_test_score": mean, "std_test_score": scores.std(axis=1), "rank_test_score": rank}
        return results, int(np.argmin(rank))


def _held_out_losses(proba: Array, y: Any, classes: Array) -> Array:
    """Log-loss of each dyad; a label that the training part lacks has no probability, and costs `UNSEEN_LABEL`."""
    truth = read_labels(y)
    known, losses = np.isin(truth, classes), np.full(len(truth), UNSEEN_LABEL)
    if known.any():
        losses[known] = metrics.log_losses(truth[known], proba[known], classes)
    return losses


class LFLClassifierCV(_CV, LFLClassifier):
    """`LFLClassifier` with penalties chosen by cross-validation on the log-loss.

    It has the parameters of `LFLClassifier`. Once fitted, it is the model with the best parameters, fitted on all data,
    with all methods of `LFLClassifier`. The search chooses `l2__latent` among fractions, 1/64 to 1, of the strength at
    which all latent weights vanish; at rank 0 it chooses `l2__bias` instead. If there are features, it then chooses
    `l2__side`, from 3 to 300. A strength that you set, as in ``l2=3.0``, is kept.

    A search costs about ten fits. From the strongest penalties on, every second one is tried until the log-loss rises,
    and then the neighbours of the best. All this happens on the first fold: only the best two candidates, or the best
    third of a larger `grid`, are judged on all folds, and none that is worse by two standard errors of the difference.

    Parameters
    ----------
    grid : dict of parameter names and lists of values, default None
        Values of `l2__latent` and `l2__side` to try instead, and further parameters to choose, such as
        ``{"rank": [5, 10], "l2__bias": [1, 4]}``. Every combination is tried, at least on the first fold.
    cv : int or splitter, default 3
        Number of random folds of dyads, or a splitter such as `dyads.split.NewRows`.
    n_jobs : int, default None
        Number of folds, or of paths of a penalty on the first fold, fitted in parallel; by default one, which uses all
        threads.
    others : as for `LFLClassifier`

    Attributes
    ----------
    best_params_, best_index_, cv_results_ : as in scikit-learn's `GridSearchCV`
        A candidate that was dropped after the first fold has scores of NaN on the others. Its mean score is estimated
        from its difference from the rest on the first fold.
    best_score_ : negative held-out log-loss of the best parameters
    others : as for `LFLClassifier`
    """

    _plain = LFLClassifier


class LFLOrdinalCV(_CV, LFLOrdinal):
    """`LFLOrdinal` with penalties chosen by cross-validation; see `LFLClassifierCV`."""

    _plain = LFLOrdinal


SEARCHES = {kind._plain.__name__: kind for kind in (LFLClassifierCV, LFLOrdinalCV)}
"""Estimators with built-in cross-validation, by the name of the plain estimator."""
