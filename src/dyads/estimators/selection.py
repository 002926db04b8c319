"""Model selection: evaluation by cold-start regime, and penalties chosen by cross-validation."""

import itertools
import numbers
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted

from dyads import metrics
from dyads.data.codes import numeric_values, read_labels, text_order, values_of
from dyads.data.dyads import narrow
from dyads.data.features import SideInformation
from dyads.data.observations import read_weight
from dyads.data.split import RandomCells
from dyads.data.store import Pairs
from dyads.engine import Engine
from dyads.errors import (
    InputError,
    UnknownIdWarning,
    VanishedWarning,
    caller_level,
)
from dyads.estimators.callbacks import report_end, reported, with_callbacks
from dyads.estimators.kinds import LFLClassifier, LFLOrdinal
from dyads.estimators.lfl import LFL
from dyads.estimators.predictor import returned_table
from dyads.estimators.search import (
    BIAS_GRID,
    SIDE_GRID,
    Path,
    Search,
    batches_of,
    read_data,
    shares_of,
    solver_for,
    vanishing_l2,
)
from dyads.estimators.settings import BY_DATA, features_of, l2_of, random_state_of, solver_of, to_json
from dyads.learn.checkpoint import SearchState, check_seed, digest_of
from dyads.model.loss import Loss
from dyads.model.objective import L2
from dyads.solve import LBFGS, SGD, Gibbs, Newton
from dyads.trained.predictions import Predictions, predictions_of

Array = np.ndarray[Any, Any]

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
    model: Any, X: Any, y: Any = None, sample_weight: Any = None, *, row_features: Any = None, col_features: Any = None
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
    `X` : a table, or a store, which holds its labels and is read in batches.
    `row_features`, `col_features` : as for `predict_proba`.
    """
    judged = evaluated(model, X, y, sample_weight, row_features, col_features)
    return returned_table(model, judged.columns(), X)


def evaluated(
    model: Any, X: Any, y: Any = None, sample_weight: Any = None, row_features: Any = None, col_features: Any = None
) -> "Evaluation":
    """Judge a model on a table, or batch by batch on a store."""
    judged = Evaluation(ordered=hasattr(model, "predict_mean"))
    for lines, labels, weight in batches_of(X, y, sample_weight):
        judged.add(predictors_of(model, lines, row_features, col_features), labels, weight)
    return judged


def predictors_of(model: Any, X: Any, row_features: Any = None, col_features: Any = None) -> dict[str, Predictions]:
    """Predictions for the dyads of X by the model ("model") and by the marginals of its training data, by name."""
    with warnings.catch_warnings():
        # The figures of `evaluate` themselves show how many dyads have new ids.
        warnings.simplefilter("ignore", UnknownIdWarning)
        predictions = predictions_of(model, X, row_features, col_features)
    return {"model": predictions} | (model.marginals(X) if hasattr(model, "marginals") else {})


class Evaluation:
    """What predictors of the same dyads are worth, by regime; the dyads come in batches."""

    def __init__(self, ordered: bool = False) -> None:
        self.ordered = ordered
        self.tallies: dict[str, dict[str, metrics.Tally]] = {}
        self.differences: dict[str, metrics.Differences] = {}

    def add(self, predictors: Mapping[str, Predictions], y: Any, sample_weight: Any = None) -> None:
        """Add dyads; without support of the model, they have no regime but "all"."""
        truth, weight, support = read_labels(y), read_weight(sample_weight), predictors["model"].support
        if len(truth) != len(predictors["model"]):
            n_dyads = len(predictors["model"])
            raise InputError(f"Got {n_dyads} dyads but {len(truth)} labels: expected one label per dyad.")
        regimes = {"all": np.ones(len(truth), np.bool_)}
        if support is not None:
            regimes = {name: ((support > 0) == np.array(known)).all(axis=1) for name, known in REGIMES.items()}
        losses = {}
        for name, predictions in predictors.items():
            n_labels = len(predictions.classes)
            self.tallies.setdefault("all", {}).setdefault(name, metrics.Tally(n_labels, self.ordered))
            if not len(truth):
                continue
            values, is_label = _summands(predictions, truth, self.ordered)
            losses[name] = values["log_loss"]
            for regime, chosen in regimes.items():
                if chosen.any():
                    tally = self.tallies.setdefault(regime, {}).setdefault(name, metrics.Tally(n_labels, self.ordered))
                    some = {field: summand[chosen] for field, summand in values.items()}
                    share = None if weight is None else weight[chosen]
                    tally.add(is_label[chosen], predictions.proba[chosen], some, share)
        for name in losses.keys() - {"model"}:
            self.differences.setdefault(name, metrics.Differences()).add(losses["model"], losses[name], weight)

    def _by_regime(self) -> dict[str, dict[str, metrics.Tally]]:
        """The tallies of each regime that occurs, in the order of `REGIMES`, and of all dyads."""
        regimes = {name: self.tallies[name] for name in REGIMES if name in self.tallies}
        if not regimes:
            return {"all": self.tallies["all"]}
        first = next(iter(regimes.values()))
        if len(regimes) == 1:
            # If all dyads are of one regime, they are counted once.
            return regimes | {"all": first}
        everything = {name: metrics.Tally(len(tally.levels), self.ordered) for name, tally in first.items()}
        for tallies in regimes.values():
            for name, tally in tallies.items():
                everything[name].join(tally)
        return regimes | {"all": everything}

    def columns(self) -> dict[str, list[Any]]:
        """Columns of the table of `evaluate`."""
        columns: dict[str, list[Any]] = {}
        for regime, tallies in self._by_regime().items():
            for predictor, tally in tallies.items():
                line = {"regime": regime, "predictor": predictor, "n": tally.n, **tally.figures()}
                for name, value in line.items():
                    columns.setdefault(name, []).append(value)
        return columns

    def shortfall(self, model: Any) -> str:
        """A sentence that says so if the model does not beat the best of the marginals in log-loss; empty if it does.

        The model beats them if the mean of its log-loss minus theirs is below zero by more than two standard errors. Of
        fewer than `FEWEST_TO_JUDGE` dyads nothing is said.
        """
        tallies = self._by_regime()["all"]
        if tallies["model"].n < FEWEST_TO_JUDGE or not self.differences:
            return ""
        means = {name: tally.figures()["log_loss"] for name, tally in tallies.items()}
        best = best_marginal(means)
        difference, error = self.differences[best].mean_and_error
        if difference < -2 * error:
            return ""
        size = "more" if difference > 2 * error else "not more"
        noise = f"the difference of {difference:+.4f} is {size} than twice its standard error, {error:.4f}"
        return shortfall_of(model, means, "these pairs", f" ({noise})")


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


def _summands(predictions: Predictions, truth: Array, ordered: bool) -> tuple[dict[str, Array], Array]:
    """What a `Tally` sums of each dyad, by name; and whether a dyad has a label (n, n_labels)."""
    classes, labels = predictions.classes, predictions.labels
    summands = {
        "log_loss": metrics.log_losses(truth, predictions.proba, classes),
        "brier_score": metrics.brier_scores(truth, predictions.proba, classes),
        "accuracy": truth == labels,
    }
    if ordered:
        value = values_of(truth, classes)
        summands["mean_absolute_error"] = np.abs(value - values_of(labels, classes))
        summands["mean_squared_error"] = (value - predictions.mean) ** 2
    return summands, truth[:, None] == classes


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
    if model.l2 is None:
        return "Sample the posterior (--solver gibbs); or the ids tell nothing about the labels."
    if type(model).__name__ not in SEARCHES:
        return "Try other penalties (--l2, --l2-bias), or sample the posterior (--solver gibbs)."
    return "Choose the penalty by --cv, or sample the posterior (--solver gibbs)."


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
    proba, truth, classes = predictions_of(model, X).proba, read_labels(y), model.classes_
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
        n_models: int | None = None,
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

    @with_callbacks
    def fit(  # type: ignore[override]  # The callback of a search counts fits, not iterations.
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        callback: Callable[[int, int], Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Choose the penalties by cross-validation, then fit on all data.

        `X`, `y`, `sample_weight` : as for the plain estimator; X may be a store.

        `callback` : called as callback(fits done, fits planned) after each fit, for a progress bar. Fewer are planned
        when candidates are dropped. With several jobs, it is called from their threads, one at a time.

        `checkpoint` : a file with the fits that are done, written every minute, when the search is interrupted, and at
        its end. If it exists, the same search goes on from it and ends in the same model, bit for bit. The fit on all
        data keeps its state beside it (`final_checkpoint`).
        """
        template = self._template()
        template.check_params()
        if self.warm_start:
            raise InputError("Got warm_start=True: expected False, since a search starts from the data. Leave it out.")
        data = (X, None, None) if isinstance(X, Pairs) else read_data(X, self._checked(y), sample_weight)
        if self._ordered and template.order is None and y is not None:
            template.order = text_order(y)
        folds, state = self._folds(X, y), SearchState.none()
        if checkpoint is not None:
            state = self._state(template, data, folds, checkpoint)
            template.random_state = int(state.values["seed"])
        with closing(Search(template, data, folds, self.n_jobs, self.verbose, callback, state)) as search:
            try:
                return self._searched(search, X, y, sample_weight)
            finally:
                state.save(now=bool(state.losses))

    def _state(self, template: Any, data: Any, folds: list[tuple[Array, Array]], path: Any) -> SearchState:
        """The state of the search in a file, as it was left or new."""
        solver = solver_of(template.solver)
        if solver is not None and solver.samples and self.early_stopping is not None:
            raise InputError("Got checkpoint, early_stopping and a sampler: expected two of them at most. Omit one.")
        observed, side = template._read(*data), features_of(template.features)
        parameters = template.get_params(deep=False)
        for name in ("features", "random_state", "engine", "verbose"):
            del parameters[name]
        about = (type(self).__name__, parameters, side.interactions, side.implicit, side.training, self.grid)
        positions = [part for fold in folds for part in fold]
        state = SearchState(path, digest_of(about, observed.dyads, *positions, numeric_values(observed.classes)))
        if not isinstance(self.random_state, numbers.Integral):
            state.values.setdefault("seed", int(random_state_of(self.random_state).randint(2**31 - 1)))
        else:
            check_seed(path, state.values.setdefault("seed", int(self.random_state)), self.random_state)
        return state

    def _folds(self, X: Any, y: Any) -> list[tuple[Array, Array]]:
        """Positions of the dyads of each fold to train on and to judge on."""
        if isinstance(self.cv, numbers.Integral):
            folds = RandomCells(int(self.cv), id_columns=self.id_columns).split(X)
        else:
            labels = X.labels if isinstance(X, Pairs) else read_labels(y)
            folds = check_cv(self.cv, labels, classifier=True).split(X, labels)
        n = len(X) if isinstance(X, Pairs) else len(read_labels(y))
        return [(narrow(train, n), narrow(test, n)) for train, test in folds]

    def _searched(self, search: Search, X: Any, y: Any, sample_weight: Any) -> Self:
        """Search, fit with the best parameters, and become that model."""
        template, data, folds = search.template, search.data, search.folds
        paths, side = self._paths(search)
        search.planned = (sum(path.n_fits for path in paths) + (0 if side is None else side.n_fits)) * len(folds)
        with reported(self, X, y, search.planned, search.callback) as search.callback:
            search.judge(paths)
            best = clone(template).set_params(**search.best.params)
            if side is not None and ("l2__side" in (self.grid or ()) or self._has_features(best, data[0])):
                search.judge([side._replace(fixed=search.best.params)])
            elif side is not None:
                search.planned -= side.n_fits * len(folds)
        self.cv_results_, self.best_index_ = search.results()
        self.best_params_ = search.best.params
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        with warnings.catch_warnings():
            # Its advice is to choose the penalty by cross-validation.
            warnings.simplefilter("ignore", VanishedWarning)
            search.state.save(now=True)
            path = search.state.path
            chosen = clone(template).set_params(**search.best.params)
            chosen.fit(X, y, sample_weight, checkpoint=None if path is None else final_checkpoint(path))
        if chosen._vanished:
            warnings.warn(
                f"The search chose {search.best.params}, at which all latent weights are near zero: these data support "
                "none, and rank=0 predicts as well, in less time.",
                VanishedWarning,
                stacklevel=caller_level(),
            )
        for name in [name for name in vars(self) if name.endswith("_") and name not in SEARCHED]:
            delattr(self, name)
        self.__dict__.update({name: value for name, value in vars(chosen).items() if name.endswith("_")})
        self.held_out_ = {"model": -self.best_score_} | search.marginals()
        chosen_values = {name: to_json(value) for name, value in search.best.params.items()}
        self.trained_on_ = {**self.trained_on_, "chosen": chosen_values}
        report_end(self, X, y)
        return self

    def _paths(self, search: Search) -> tuple[list[Path], Path | None]:
        """The regularisation paths of the search, and that of `l2__side`, if there is any, for the best of them."""
        template, table = search.template, search.data[0]
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
            plain = clone(template).set_params(solver=solver_for(template, search.data))
            if "top" not in search.state.values:
                search.state.values["top"] = vanishing_l2(plain, *search.data)
            latent = list(shares_of(search.state.values["top"]))
        paths = []
        for fixed, penalty in zip(combinations, penalties, strict=True):
            # Without latent weights a strength for them would be refused.
            without = fixed if strengths.latent is None else fixed | {"l2__latent": None}
            bias = fixed.get("l2__bias", strengths.bias)
            if penalty == "l2__latent":
                paths.append(Path(fixed, penalty, tuple(map(float, latent or ())), refined))
            elif penalty is None or bias is not None:
                paths.append(Path(without, penalty, () if bias is None else (bias,), False))
            else:
                paths.append(Path(without, penalty, BIAS_GRID, True))
        if given_side is not None:
            return paths, Path({}, "l2__side", tuple(given_side), False)
        used = strengths.side is None and any(self._has_features(model, table) for model in models)
        return paths, Path({}, "l2__side", SIDE_GRID, True) if used else None

    def _has_features(self, model: Any, table: Any) -> bool:
        further = bool(table.features) if isinstance(table, Pairs) else len(table) > model._n_id_columns
        return features_of(model.features).of_ids or further

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

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue from the fitted search with more labelled dyads and the penalties chosen; see `LFL.partial_fit`."""
        check_is_fitted(self)
        return super().partial_fit(X, y, classes, sample_weight)

    def _plain_copy(self) -> Any:
        return self._template().set_params(**self.best_params_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; `dyads.load` reads it as the plain estimator with the best parameters."""
        check_is_fitted(self)
        chosen = self._template().set_params(**self.best_params_)
        chosen.__dict__.update({name: value for name, value in vars(self).items() if name.endswith("_")})
        chosen.save(path)


def final_checkpoint(path: str | os.PathLike[str]) -> str:
    """The file with the state of the last fit of a search, on all data, beside that of the search."""
    return f"{os.fspath(path)}.fit"


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
