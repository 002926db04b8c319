"""LFL: what the estimators share. Tables in, a `Fitted` kept, probabilities out; no numerics."""

import copy
import logging
import numbers
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dyads import artifact
from dyads.calibration import conformal_sets, learn_calibrator, nonconformity
from dyads.choices import UNKNOWN_POLICIES, check_choices
from dyads.coldstart import (
    fold_in,
    mean_scores,
    refuse_featureless,
    support,
    targets,
    with_draws,
    with_features,
    with_mean_predictions,
    with_more,
    with_seen,
    with_spread,
)
from dyads.data.dyads import Dyads
from dyads.data.labels import label_codes, numeric_values, read_labels, to_numpy
from dyads.data.observations import (
    Observations,
    SideTables,
    read_dyads,
    read_more,
    read_observations,
    read_pairs,
    read_weight,
)
from dyads.data.side import Features
from dyads.data.tables import read_column, table_like
from dyads.data.vocabulary import Codes
from dyads.engine.scoring import scores
from dyads.errors import (
    DivergenceError,
    InputError,
    NotConvergedWarning,
    UnknownIdError,
    UnknownIdWarning,
    VanishedWarning,
    unknown_name,
)
from dyads.explain import explain
from dyads.metrics import accuracy
from dyads.model.fitted import Entities, Fitted
from dyads.model.loss import LOSSES, Loss, least_cost, link, mode
from dyads.model.objective import Objective
from dyads.model.parameters import Layout, label_log_odds
from dyads.model.penalty import L2, Counts
from dyads.model.structure import STRUCTURES, Stereotype, build
from dyads.recommend import ask, recommend, thompson
from dyads.sampling import learn
from dyads.solve import SAMPLER, Options
from dyads.training import Callback, Progress, resume
from dyads.uncertainty import interval, sample_proba

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

SHARED = 0.1
"""Strength, per dyad, on the labels' weights of shared latent weights: chosen on held-out training data of ML-100K."""

VANISHED = 1e-2
"""Latent weights whose root mean square is below this add nothing to a log-odds."""

SAVED = ("columns_", "n_features_in_", "n_iter_", "converged_", "objective_", "solver_", "trace_", "diagnostics_")
"""What is kept in a model file besides `Fitted` and the parameters; the last of a posterior alone."""


class LFL(ClassifierMixin, BaseEstimator):
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
        row_features: Any = None,
        col_features: Any = None,
        interactions: int = 0,
        implicit: bool = False,
        side_training: str = "joint",
        l2: float = 6.0,
        l2_row: float | None = None,
        l2_col: float | None = None,
        l2_bias: float | None = 2.0,
        l2_side: float = 30.0,
        l2_shared: float | None = None,
        l2_scaling: str = "none",
        solver: str = "auto",
        max_iter: int | None = None,
        tol: float | None = None,
        learning_rate: float | None = None,
        n_init: int = 1,
        n_models: int = 1,
        n_chains: int = 1,
        draw_memory: float = 256.0,
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
        self.row_features = row_features
        self.col_features = col_features
        self.interactions = interactions
        self.implicit = implicit
        self.side_training = side_training
        self.l2 = l2
        self.l2_row = l2_row
        self.l2_col = l2_col
        self.l2_bias = l2_bias
        self.l2_side = l2_side
        self.l2_shared = l2_shared
        self.l2_scaling = l2_scaling
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.n_init = n_init
        self.n_models = n_models
        self.n_chains = n_chains
        self.draw_memory = draw_memory
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.unknown = unknown
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    # ---------------------------------------------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        seen: Any = None,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Fit the model to labelled dyads.

        Parameters
        ----------
        X : table of n dyads
            pandas, polars or Arrow table, NumPy array, dict of columns or list of pairs: row id, column id. Further
            columns are features of the dyads.
        y : (n,) labels
        sample_weight : (n,) nonnegative weights, default all one
            A dyad of weight two counts as two dyads; one of weight zero as none.
        seen : table of pairs without labels, default None
            With ``implicit=True``, further pairs (row id, column id) for the sets of those seen together.
        callback : called with a `dyads.training.Progress` after each iteration; returning True stops the fit.
        checkpoint : path, default None
            For ``solver="gibbs"``, a file in which the chains are kept every minute and at the end. A fit of the same
            model to the same data goes on from it, up to `max_iter`, with the result of one that was never stopped: its
            random numbers are those it began with, whatever `random_state`, and sweeps beyond `max_iter` stay.
        """
        self._check_choices()
        observed = self._read(X, y, sample_weight, seen)
        untrained = self._untrained(observed)
        before = self.fitted_.every if self.warm_start and hasattr(self, "fitted_") else []
        rng = check_random_state(self.random_state)
        trained = []
        with _logged(self.verbose, callback) as monitored:
            for number in range(self.n_models):
                start = self._warm_start(before[number], untrained) if number < len(before) else None
                found, draws, mixing, steps = learn(
                    self._objective(untrained),
                    observed.dyads,
                    solver=self.solver,
                    n_chains=self.n_chains,
                    memory=self.draw_memory * 2**20,
                    checkpoint=checkpoint,
                    values=numeric_values(observed.classes) if self._ordered else None,
                    options=Options(self.max_iter, self.tol, self.learning_rate, int(rng.randint(2**31 - 1))),
                    n_init=self.n_init,
                    validation_fraction=self.validation_fraction if self.early_stopping else None,
                    start=start,
                    side_training=self.side_training,
                    n_jobs=self.n_jobs,
                    callback=monitored,
                )
                if number == 0:
                    best, trace, diagnostics = found, steps, mixing
                models = with_draws(untrained, [(draw.theta, draw.priors) for draw in draws]) or [
                    with_spread(untrained.trained(found.theta), observed.dyads, self.n_jobs)
                ]
                if self.unknown == "mean":
                    models = [with_mean_predictions(model, observed.dyads, self.n_jobs) for model in models]
                trained += models
        self.fitted_ = replace(trained[0], members=tuple(trained[1:]))
        self.columns_ = observed.columns
        self.n_features_in_ = len(observed.columns)
        self.n_iter_ = best.n_iter
        self.converged_ = best.ended == "tolerance"
        self.objective_ = best.objective
        self.solver_ = best.solver
        self.trace_ = {name: [getattr(step, name) for step in trace] for name in Progress._fields}
        self.__dict__.pop("diagnostics_", None)
        if diagnostics is not None:
            self.diagnostics_ = {name: np.asarray(part).tolist() for name, part in diagnostics._asdict().items()}
        if best.diverged is not None:
            raise DivergenceError(
                f"The objective stopped being a finite number {best.diverged}. The model keeps its last finite state."
            )
        if self.rank and not self.fitted_.is_posterior and self.fitted_.latent_size() < VANISHED:
            warnings.warn(
                f"All latent weights vanished: the penalty l2={self.l2} is too strong for these data, and the model is "
                "that of rank 0. Lower l2, or choose it by cross-validation.",
                VanishedWarning,
                stacklevel=2,
            )
        if best.complaint is not None:
            warnings.warn(best.complaint, NotConvergedWarning, stacklevel=2)
        return self

    def _check_choices(self) -> None:
        kinds = [LFL]
        for kind in kinds:
            kinds += kind.__subclasses__()
        offers = {kind.__name__: kind._structures for kind in kinds if "_structures" in vars(kind)}
        check_choices(self, self._structures, offers)

    def _untrained(self, observed: Observations) -> Fitted:
        """The model before training."""
        dyads, layout = observed.dyads, self._layout(observed)
        counts = Counts.of(dyads, layout.structure.one_set)
        rows = Entities.untrained(observed.rows, counts.row, dyads.side.row, observed.encoders.row)
        cols = Entities.untrained(observed.cols, counts.col, dyads.side.col, observed.encoders.col)
        return Fitted(
            layout.structure,
            self._loss(observed.classes),
            observed.classes,
            rows,
            replace(rows, ids=observed.cols) if layout.structure.one_set else cols,
            np.zeros(layout.size),
            counts.relation,
            layout.blocks(self._shared_centre(layout, dyads, observed.classes)).shared,
            observed.relations,
            layout.interactions,
            int(self.rank),
            bool(self.bias),
            self._strengths(layout),
            self.l2_scaling,
            observed.encoders.dyad,
            bool(self.implicit),
        )

    def _objective(self, model: Fitted) -> Objective:
        """What is minimised to train `model` on the dyads it counts."""
        layout = model.layout
        centre = np.zeros(layout.size)
        layout.blocks(centre).shared[:] = model.shared_centre
        penalty = L2.of(layout, model.strengths, model.scaling, model.counts, centre)
        free = layout.free(model.rank, model.bias)
        return Objective(layout, model.loss, penalty, None if free.all() else free)

    def _read(self, X: Any, y: Any, sample_weight: Any, seen: Any = None, classes: Any = None) -> Observations:
        y = self._checked(y)
        _, one_set = STRUCTURES[self._structure]
        side = SideTables(_features(self.row_features), _features(self.col_features), bool(self.implicit), seen)
        observed = read_observations(X, y, sample_weight, self._id_columns, one_set=one_set, side=side, classes=classes)
        self._check_observed(observed)
        return observed

    def _checked(self, y: Any) -> Any:
        """The labels, which there must be; one column of them is as good as a flat sequence, with a warning."""
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: expected a label a dyad."
            )
        if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected: taken for its one column.",
                DataConversionWarning,
                stacklevel=_outside(),
            )
        return y

    def _check_observed(self, observed: Observations) -> None:
        """Refuse what an estimator cannot learn from."""

    @property
    def _id_columns(self) -> tuple[Any, ...]:
        return self.row, self.col

    @property
    def _structure(self) -> str:
        """The name of the structure, the estimator's own where none is given."""
        return self._structures[0] if self.structure is None else self.structure

    def _layout(self, seen: Observations) -> Layout:
        n_labels, name = len(seen.classes), self._structure
        interactions, widths = int(self.interactions), seen.dyads.side.widths
        if interactions and not any(widths[:2]):
            raise InputError(
                f"interactions={interactions} is for features of rows and columns, and there are none: expected "
                "row_features, col_features or implicit=True. Give one of them (again, to a model that was loaded: its "
                "file does not hold the tables), or leave it 0."
            )
        rank = max(int(self.rank), interactions)
        if self.structure is None and name == "stereotype" and (n_labels < 3 or rank == 0):
            name = "bilinear"
        kind, n_bases = STRUCTURES[name][0], self.n_bases
        if kind is Stereotype:
            n_bases = (1 if seen.relations is None else 3) if n_bases is None else int(n_bases)
            pinned = self._base_code(seen.classes) < n_labels
            most = n_labels - pinned if seen.relations is None else np.inf
            if rank < 1 or n_bases > most or (n_labels < 3 and seen.relations is None):
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
        # Features act on the biases, which are there for them even where entities have none of their own.
        structure = build(name, n_labels, base, bool(self.bias) or any(widths[:2]), rank, n_bases)
        return Layout(structure, len(seen.rows), len(seen.cols), seen.dyads.n_relations, widths, interactions)

    def _loss(self, classes: Array) -> Loss:
        loss = LOSSES[self.loss]() if isinstance(self.loss, str) else self.loss
        if loss.ordered and not self._ordered:
            raise InputError(f"loss={self.loss!r} needs ordered labels: use LFLOrdinal, or loss='log' or 'brier'.")
        return loss.bind(numeric_values(classes)) if self._ordered else loss

    def _strengths(self, layout: Layout) -> dict[str, float]:
        """The strength of the penalty on each named part."""
        given = (self.l2_bias, self.l2_row, self.l2_col)
        bias, row, col = (float(self.l2 if own is None else own) for own in given)
        strengths = dict.fromkeys(("row_bias", "col_bias", "node_bias"), bias)
        strengths |= {"row_factors": row, "out_factors": row, "col_factors": col, "in_factors": col}
        # What labels weigh by is held near where it starts: left free, it would grow until the factors cost nothing.
        # What relations weigh by is theirs as a row's weights are the row's.
        alone = layout.n_relations == 1
        shared = (SHARED if alone else self.l2) if self.l2_shared is None else self.l2_shared
        strengths |= {"node_factors": float(self.l2), "phi": float(shared), "diagonal": float(shared)}
        if not alone:
            # A relation with one label only has no finite bias of its own.
            strengths["label_bias"] = bias
        return {**strengths, "side": float(self.l2_side)}

    def _shared_centre(self, layout: Layout, dyads: Dyads, classes: Array) -> Array:
        """A theta whose shared parts are what these are penalised towards."""
        centre = np.zeros(layout.size)
        named = layout.named(centre)
        if layout.n_relations > 1:
            named["label_bias"][:] = label_log_odds(layout.structure, dyads.label_counts)
            return centre
        values = numeric_values(classes) if self._ordered else None
        for name, start in layout.structure.shared_start(1, values).items():
            named[name][:] = start
        return centre

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

    def _warm_start(self, old: Fitted, untrained: Fitted) -> Any:
        alike = ("structure", "rank", "bias", "interactions")
        if any(getattr(old, name) != getattr(untrained, name) for name in alike) or not np.array_equal(
            old.classes, untrained.classes
        ):
            raise InputError(
                "warm_start=True needs the labels, rank, base, bias and interactions of the last fit: they changed. "
                "Fit a new estimator, or set warm_start=False."
            )

        def start(theta: Array) -> Array:
            return old.start_for(replace(untrained, theta=theta))

        return start

    # -------------------------------------------------------------------------------------------------- predicting

    def _look_up(self, X: Any, row_features: Any, col_features: Any) -> tuple[Fitted, list[Codes], Any]:
        """The model, with these features if any, and the codes and the features of the dyads of X."""
        check_is_fitted(self)
        fitted = self._with_features(row_features, col_features)
        codes, features = read_dyads(X, fitted.vocabularies, self.columns_, fitted.dyad_encoder)
        return fitted, codes, features

    def _with_features(self, row_features: Any, col_features: Any) -> Fitted:
        fitted = self.fitted_
        row = None if row_features is None else Features.of(row_features, like=fitted.rows.encoder)
        col = None if col_features is None else Features.of(col_features, like=fitted.cols.encoder)
        return fitted if row is None and col is None else fitted.mapped(lambda one: with_features(one, row, col))

    def _scores(self, X: Any, row_features: Any = None, col_features: Any = None) -> Array:
        """Score the dyads of X; those with unknown ids follow the policy, and are counted in one warning."""
        fitted, codes, features = self._look_up(X, row_features, col_features)
        out = scores(fitted, *codes, features=features, n_jobs=self.n_jobs)
        unknown = [column < 0 for column in codes]
        if any(column.any() for column in unknown):
            self._treat_unknown(fitted, codes, unknown, out)
        return out

    def _treat_unknown(self, fitted: Fitted, codes: list[Codes], unknown: list[Array], out: Array) -> None:
        """Apply the policy to the scores of dyads with unknown ids, and say so in one warning."""
        if self.unknown not in UNKNOWN_POLICIES:
            raise unknown_name("unknown", self.unknown, UNKNOWN_POLICIES)
        message = self._unknown_message(unknown)
        if self.unknown == "nan":
            out[np.logical_or.reduce(unknown)] = np.nan
        if self.unknown == "mean":
            if fitted.prediction is None:
                raise InputError(
                    "unknown='mean' was set after the fit: expected it before, since the means are taken over the "
                    "training data. Fit the model again, or set unknown='prior'."
                )
            rows, cols = codes[:2]
            either = unknown[0] | unknown[1]
            out[either] = mean_scores(fitted, rows[either], cols[either])
        treated = {
            "prior": "they may be any of those seen, so probabilities are averaged over these",
            "nan": "their probabilities are NaN",
            "mean": "they have the mean of the predictions for the other id",
        }
        warnings.warn(f"{message}: {treated[self.unknown]}.", UnknownIdWarning, stacklevel=_outside())

    def _unknown_message(self, unknown: list[Array]) -> str:
        """Count dyads with unknown ids, in words; an error where the policy is that."""
        counted = zip(unknown, ("a row id", "a column id", "a relation"), strict=False)
        found = " and ".join(f"{column.sum()} have {what}" for column, what in counted if column.any())
        message = f"Of {len(unknown[0])} dyads, {found} not seen in training"
        if found and self.unknown == "raise":
            raise UnknownIdError(f"{message}: expected known ids. Drop them, or set unknown='prior' or 'nan'.")
        return message

    def predict_proba(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Probability of each label (n, n_labels); columns in the order of `classes_`.

        `row_features`, `col_features` : tables that extend or override those given to the constructor, which is how new
        ids get features; all methods that predict take them.
        """
        return self._proba(X, row_features, col_features)

    def _proba(self, X: Any, row_features: Any = None, col_features: Any = None) -> Array:
        scored = self._scores(X, row_features, col_features)
        return self.fitted_.proba(scored)

    def log_odds(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Log-odds of each label (n, n_labels): against the base, log p_y / p_base; or, if none is pinned, against the
        labels' geometric mean, which is log p_y less its mean over labels.

        Those of the model itself, before it was calibrated.
        """
        scored = self._scores(X, row_features, col_features)
        return self.fitted_.log_odds(scored)

    def predict(self, X: Any, cost: Any = None, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Predict one label per dyad; with a cost matrix, the label of least expected cost.

        `cost` : (n_labels, n_labels), cost[true, predicted] in the order of `classes_`. Under ``unknown="nan"`` dyads
        with unknown ids are an error here: no label can be predicted for them.
        """
        proba = self._proba(X, row_features, col_features)
        if np.isnan(proba).any():
            raise UnknownIdError(
                f"{int(np.isnan(proba).any(axis=1).sum())} dyads have ids not seen in training, whose probabilities "
                "are NaN under unknown='nan': no label can be predicted. Drop them, or set unknown='prior'."
            )
        if cost is None:
            return self.classes_[self.decide(proba)]
        n_labels = len(self.classes_)
        try:
            cost = np.asarray(cost, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"cost is no matrix of numbers ({error}): expected ({n_labels}, {n_labels}).") from error
        if cost.shape != (n_labels, n_labels) or not np.isfinite(cost).all():
            raise InputError(f"cost has shape {cost.shape}: expected ({n_labels}, {n_labels}), all finite numbers.")
        return self.classes_[least_cost(proba, cost)]

    def calibrate(self, X: Any, y: Any, method: str | None = None, sample_weight: Any = None) -> Self:
        """Make probabilities come true, as learnt on held-out dyads. Changes this model, and returns it.

        Parameters
        ----------
        X, y, sample_weight : labelled dyads that were not trained on, some hundred or more, like those to predict
        method : "logistic", "vector", "isotonic" or "temperature"
            A multinomial logit on the expected label (on log probabilities, of labels without order), which suits the
            losses that train that alone; a weight and a bias for each label; a rising curve for each; or one
            temperature, which needs least data and cannot mend a wrong order. None is "logistic" for the losses
            "absolute", "squared" and "hinge", and "temperature" for those that are proper already.

        `log_odds`, `explain` and `recommend` stay those of the model before. What `conformalize` learnt is dropped:
        call it afterwards, on other dyads again.
        """
        proba, label, weight = self._held_out(X, y, sample_weight)
        if method is None:
            method = "logistic" if self.fitted_.loss.ordered else "temperature"
        values = numeric_values(self.classes_) if self._ordered else None
        calibrator = learn_calibrator(method, proba, label, weight, values)
        self.fitted_ = replace(self.fitted_, calibrator=calibrator, strangeness=None)
        return self

    def conformalize(self, X: Any, y: Any) -> Self:
        """Learn from held-out dyads how strange true labels are, for `predict_set`. Changes this model, and returns it.

        They must not have been trained on, nor calibrated on.
        """
        proba, label, _ = self._held_out(X, y, None)
        if self.fitted_.calibrator is not None:
            proba = self.fitted_.calibrator.apply(proba)
        self.fitted_ = replace(self.fitted_, strangeness=nonconformity(proba, label))
        return self

    def _held_out(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Codes, Array | None]:
        """The uncalibrated probabilities of held-out dyads, the codes of their labels, and their weights."""
        check_is_fitted(self)
        proba, label = link(self._scores(X)), label_codes(self._checked(y), self.classes_)
        weight = read_weight(sample_weight)
        lengths = [len(proba), len(label)] + ([] if weight is None else [len(weight)])
        if len(set(lengths)) > 1 or not len(proba):
            raise InputError(f"The dyads, labels and weights have the lengths {lengths}: expected the same, above 0.")
        if np.isnan(proba).any():
            raise UnknownIdError("Some dyads have unknown ids and NaN probabilities: expected known ones. Drop them.")
        return proba, label, weight

    def predict_set(
        self, X: Any, coverage: float = 0.9, *, row_features: Any = None, col_features: Any = None
    ) -> Array:
        """Which labels (n, n_labels), in the order of `classes_`, are in the set that covers the true one.

        Over dyads drawn as those given to `conformalize` were, the true label is in its set with probability `coverage`
        or more, whatever the model; that does not hold for each row, column or label by itself.
        """
        proba = self._proba(X, row_features, col_features)
        if self.fitted_.strangeness is None:
            raise InputError("The model was not conformalized: expected conformalize(X, y) on held-out dyads first.")
        return conformal_sets(proba, self.fitted_.strangeness, coverage)

    def sample_proba(
        self, X: Any, n: int | None = None, *, row_features: Any = None, col_features: Any = None
    ) -> Array:
        """Probabilities under `n` draws from the posterior (n, n_dyads, n_labels), all that were kept if None.

        Of ``solver="gibbs"`` alone. Their mean over draws is `predict_proba` of ids that have labels, but for a
        calibrator, which is put to each. Ids without labels are another draw from their prior each time, rows one and
        columns one; also under ``unknown="mean"``.
        """
        fitted, codes, features = self._look_up(X, row_features, col_features)
        return self._nan_unknown(codes, sample_proba(fitted, n, codes, features, self.n_jobs), axis=1)

    def predict_interval(
        self, X: Any, level: float = 0.9, *, row_features: Any = None, col_features: Any = None
    ) -> Array:
        """Lower and upper bound of each label's probability (n, n_labels, 2), of ``solver="gibbs"`` alone.

        Between them it lies with the posterior probability `level`: how sure the model is of its probabilities, which
        is another thing than how sure these are of a label.
        """
        fitted, codes, features = self._look_up(X, row_features, col_features)
        return self._nan_unknown(codes, interval(fitted, level, codes, features, self.n_jobs), axis=0)

    def _nan_unknown(self, codes: list[Codes], found: Array, axis: int) -> Array:
        """What was found, NaN for dyads with unknown ids where the policy is that, or an error."""
        unknown = [column < 0 for column in codes]
        self._unknown_message(unknown)
        if self.unknown == "nan":
            np.moveaxis(found, axis, 0)[np.logical_or.reduce(unknown)] = np.nan
        return found

    def support(self, X: Any) -> Array:
        """How many training labels (their summed weight) the row and the column of each dyad had (n, 2)."""
        fitted, codes, _ = self._look_up(X, None, None)
        return support(fitted, *codes[:2])

    def explain(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Any:
        """The exact additive parts of each label's log-odds, which sum to `log_odds`: before calibration, if any.

        A tidy table, of the kind X has (an Arrow table if that is no dataframe), with the columns dyad (its place in
        X), label, part and value. The parts are "label bias", "row bias", "column bias", "latent" (all products of
        latent weights) and one of every feature that is not zero, such as "row: age" or "col: genre=Drama". Ids without
        labels have a part "unknown", what averaging over those seen adds; so have unknown ids under "mean" and "nan".
        """
        fitted, codes, features = self._look_up(X, row_features, col_features)
        self._unknown_message([column < 0 for column in codes])
        row, col, relation = (*codes, None)[:3]
        parts = explain(fitted, row, col, relation, features, self.n_jobs)
        n_labels = len(fitted.classes)
        columns = {
            "dyad": np.repeat(parts.dyad, n_labels),
            "label": np.tile(fitted.classes, len(parts.dyad)),
            "part": np.repeat(parts.name, n_labels),
            "value": parts.value.ravel(),
        }
        return table_like(columns, X)

    def recommend(
        self,
        rows: Any,
        n: int = 10,
        by: Any = "mean",
        *,
        exclude: Any = None,
        candidates: Any = None,
        relation: Any = None,
        row_features: Any = None,
        col_features: Any = None,
        random_state: Any = None,
    ) -> Any:
        """The `n` best columns for each of `rows`: a tidy table (row, col, rank, value), best first.

        Parameters
        ----------
        rows : ids; unknown ones may be any row, as under ``unknown="prior"``, with a warning, or an error under "raise"
        by : "mean", the expected value of a label that is a number; a label, whose probability it is; or "thompson",
            the mean under one draw from the posterior, another one for each row, which `random_state` chooses: so what
            is uncertain is tried as often as it may be best
        exclude : table of pairs (row id, column id) to leave out, such as those seen in training; of a model of several
            relations, those of `relation` if the table has that column too
        candidates : ids of the columns to choose from, default all the model knows
        relation : the relation, for a model of several

        Exact, and in flat memory whatever the number of rows and columns; before calibration, if any. Rows and columns
        without labels take some hundred times longer, since they are averaged over. The table is of the kind `rows`
        has, an Arrow table if that is no dataframe or series.
        """
        fitted, codes, row_ids, chosen = self._offered(rows, n, candidates, row_features, col_features)
        kind = self._relation_code(relation)
        pairs = self._excluded(fitted, exclude, kind)
        wanted = fitted, codes, chosen, min(int(n), len(chosen)), self._worth(by), pairs, kind, self.n_jobs
        drawn = isinstance(by, str) and by == "thompson" and by not in self.classes_
        best = thompson(*wanted, check_random_state(random_state)) if drawn else recommend(*wanted)
        columns = {
            "row": row_ids.take(pa.array(best.row)),
            "col": fitted.cols.ids.ids.take(pa.array(best.col)),
            "rank": best.rank,
            "value": best.value,
        }
        return table_like(columns, rows)

    def ask(
        self,
        row: Any,
        n: int = 5,
        *,
        exclude: Any = None,
        candidates: Any = None,
        relation: Any = None,
        row_features: Any = None,
        col_features: Any = None,
    ) -> Any:
        """The `n` columns to ask a row about next: a tidy table (row, col, rank, value), an Arrow table.

        By expected information gain: `value` is what the label is expected to tell, in nats, about what kind of row it
        is. For a row without labels that is exact with respect to the rows seen; what others may be is taken to
        narrow with the number of their labels. The parameters are those of `recommend`.
        """
        fitted, codes, row_ids, chosen = self._offered([row], n, candidates, row_features, col_features)
        kind = self._relation_code(relation)
        rows, cols = self._excluded(fitted, exclude, kind)
        chosen = np.setdiff1d(chosen, cols[(rows == codes[0]) & (rows >= 0)])
        best, gain = ask(fitted, int(codes[0]), chosen, int(n), kind, self.n_jobs)
        columns = {
            "row": row_ids.take(pa.array(np.zeros(len(best), np.int64))),
            "col": fitted.cols.ids.ids.take(pa.array(best)),
            "rank": np.arange(1, len(best) + 1),
            "value": gain,
        }
        return table_like(columns, row)

    def _offered(
        self, rows: Any, n: Any, candidates: Any, row_features: Any, col_features: Any
    ) -> tuple[Fitted, Codes, pa.Array, Codes]:
        """The model, the codes and ids of rows that are asked for, and the codes of the columns to choose from."""
        check_is_fitted(self)
        fitted = self._with_features(row_features, col_features)
        if fitted.dyad_encoder is not None:
            raise InputError(
                f"The model has features of dyads ({', '.join(fitted.dyad_encoder.names[:3])}), which pairs not yet "
                "made do not have: expected a model without. Use predict_proba on a table of pairs with them."
            )
        if not isinstance(n, numbers.Integral) or n < 1:
            raise InputError(f"n={n!r} is not possible: expected a whole number, at least 1.")
        row_ids = read_column(rows, "the column of row ids")
        codes, chosen = fitted.rows.ids.encode(row_ids), np.arange(len(fitted.cols))
        if candidates is not None:
            chosen = np.unique(fitted.cols.ids.encode(read_column(candidates, "the column of candidates")))
            if (chosen < 0).any():
                raise UnknownIdError("Some candidates are not known to the model: expected known column ids.")
        if (codes < 0).any():
            message = f"Of {len(codes)} rows, {int((codes < 0).sum())} were not seen in training"
            if self.unknown == "raise":
                raise UnknownIdError(f"{message}: expected known ids. Drop them, or set unknown='prior'.")
            warnings.warn(f"{message}: they may be any of those seen.", UnknownIdWarning, stacklevel=_outside())
        return fitted, codes, row_ids, chosen

    def _excluded(self, fitted: Fitted, exclude: Any, kind: int) -> tuple[Codes, Codes]:
        """The codes of pairs to leave out, of a relation if the table says which."""
        if exclude is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        vocabularies = fitted.vocabularies
        given = read_pairs(exclude, [vocabulary.name for vocabulary in vocabularies], self.columns_)
        row, col, *rest = (vocabulary.encode(ids) for vocabulary, ids in zip(vocabularies, given, strict=False))
        mine = rest[0] == kind if rest else np.ones(len(row), np.bool_)
        return row[mine], col[mine]

    def _worth(self, by: Any) -> Array:
        """What each label counts in an expected value (n_labels,)."""
        classes = self.classes_
        found = classes == by if np.isscalar(by) else np.zeros(len(classes), np.bool_)
        if np.any(found):
            return np.asarray(found, np.float64)
        if not (isinstance(by, str) and by in ("mean", "thompson")):
            raise InputError(f"by={by!r} is no label: expected 'mean', 'thompson' or one of {classes.tolist()}.")
        if classes.dtype.kind not in "biuf":
            raise InputError(f"by={by!r} needs labels that are numbers: expected by= one of {classes.tolist()}.")
        if by == "thompson" and not self.fitted_.is_posterior:
            raise InputError("by='thompson' needs draws from the posterior: expected a model of solver='gibbs'.")
        return numeric_values(classes)

    def _relation_code(self, relation: Any) -> int:
        relations = self.fitted_.relations
        if relations is None:
            if relation is not None:
                raise InputError(f"relation={relation!r} was given, but the model has one relation: leave it out.")
            return 0
        code = -1 if relation is None else int(relations.encode(read_column([relation], "the relation"))[0])
        if code < 0:
            raise InputError(
                f"relation={relation!r} is not possible: expected one of {relations.ids[:10].to_pylist()}."
            )
        return code

    # ------------------------------------------------------------------------------------------------ more labels

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go on from what was learnt with one epoch of SGD over more labelled dyads; ids not yet known are added.

        Old dyads are not needed again: an entity's penalty is spread over all its labels so far. `classes` : all labels
        there will ever be, at the first call; default those in y.
        """
        for name, wrong in (
            ("implicit", self.implicit),
            ("unknown", self.unknown == "mean"),
            ("n_models", self.n_models > 1),
            ("solver", self.solver == SAMPLER),
        ):
            if wrong:
                raise InputError(
                    f"partial_fit does not go with {name}={getattr(self, name)!r}, which needs all dyads at once: "
                    "expected another. Use fit."
                )
        self._check_choices()
        known = self.__dict__.get("fitted_")
        if known is None:
            more = self._read(X, y, sample_weight, classes=classes)
            model, start, n_iter, trace = self._untrained(more).without_counts(), None, 0, {}
        else:
            more = self._read_more(known, X, y, sample_weight)
            if len(more.rows) > len(known.rows) or len(more.cols) > len(known.cols):
                # The tables may have grown since the fit.
                known = self._with_features(self.row_features, self.col_features)
                more = self._read_more(known, X, y, sample_weight)
            model = known.grown(more.rows, more.cols)
            refuse_featureless(known, model)
            start, n_iter, trace = model.uncentred(), self.n_iter_, self.trace_
        dyads = replace(more.dyads, side=model.side._replace(dyad=more.dyads.side.dyad))
        before, model = model, model.counted(dyads)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = Options(learning_rate=self.learning_rate, seed=seed)
        values = numeric_values(model.classes) if self._ordered else None
        theta, progress = resume(
            self._objective(model), dyads, model.counts, start, options, values, n_iter, self.n_jobs
        )
        model = model.trained(theta)
        first = known is None
        self.fitted_ = with_spread(model, dyads, self.n_jobs) if first else with_more(model, before, dyads, self.n_jobs)
        self.columns_, self.n_features_in_ = more.columns, len(more.columns)
        self.n_iter_, self.solver_, self.converged_ = n_iter + 1, "sgd", False
        self.objective_ = progress.objective
        self.trace_ = {name: [*trace.get(name, []), value] for name, value in progress._asdict().items()}
        return self

    def fold_in(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        side: str | None = None,
        row_features: Any = None,
        col_features: Any = None,
    ) -> Self:
        """A new fitted model that knows new rows and columns by their labels; everything else stays as it is.

        The block of each new id is the optimum given all others, by Newton's method: for the log loss the problem is
        convex. No prediction for other ids changes, and this model itself does not.

        Parameters
        ----------
        X, y, sample_weight : labelled dyads, as for `fit`
        side : None, "row" or "col"
            None solves for ids that have no labels in the model. "row" solves for every row of X, known or not, from
            the labels given here: give *all* labels of a known row, old and new. "col" likewise.
        row_features, col_features : features of the new ids, for a model with such
        """
        if side not in (None, "row", "col"):
            raise InputError(f"side={side!r} is not possible: expected None, 'row' or 'col'.")
        check_is_fitted(self)
        known = self._with_features(row_features, col_features)
        new = self._read_more(known, X, y, sample_weight)
        grown = known.grown(new.rows, new.cols)
        refuse_featureless(known, grown)
        rows, cols = targets(grown, new.dyads, (len(known.rows), len(known.cols)), side)
        # Dyads between ids that both stay as they are say nothing about the others.
        dyads = new.dyads.take(np.isin(new.dyads.row, rows) | np.isin(new.dyads.col, cols))
        model = copy.copy(self)

        first, *others = (
            fold_in(with_seen(one.grown(new.rows, new.cols), dyads, rows, cols), dyads, rows, cols, self.n_jobs, number)
            for number, one in enumerate(known.every)
        )
        model.fitted_ = replace(first, members=tuple(others))
        return model

    def _read_more(self, known: Fitted, X: Any, y: Any, sample_weight: Any) -> Observations:
        more = read_more(
            X, self._checked(y), sample_weight, known.vocabularies, self.columns_, known.classes, known.dyad_encoder,
            one_set=known.structure.one_set,
        )  # fmt: skip
        self._check_observed(more)
        return more

    def decide(self, proba: Array) -> Array:
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
        return to_numpy(self._known().rows.ids.ids)

    @property
    def col_ids_(self) -> Array:
        """The column ids, in the order of `col_factors_`."""
        return to_numpy(self._known().cols.ids.ids)

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
        entities = self.fitted_.rows if side == "row" else self.fitted_.cols
        codes = entities.ids.encode(read_column(ids, "the column of ids"))
        if (codes < 0).any():
            raise UnknownIdError(
                f"{int((codes < 0).sum())} of {len(codes)} ids were not seen in training: expected known ids."
            )
        return self.fitted_.embed(codes, side)

    @property
    def n_parameters_(self) -> int:
        """How many numbers were learnt; of a posterior, how many one draw has."""
        models = self._known().every
        return sum(one.n_parameters() for one in models[: 1 if models[0].is_posterior else None])

    def _known(self) -> Fitted:
        try:
            return self.__dict__["fitted_"]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"This {type(self).__name__} is not fitted yet: call fit first.") from None

    # --------------------------------------------------------------------------------------------------- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; `dyads.load` reads it."""
        check_is_fitted(self)
        if type(self).__module__ != "dyads.estimators":
            raise InputError(
                f"{type(self).__name__} is no estimator of dyads, so its file could not be read: save its base."
            )
        # Features are kept with the model, encoded; the tables themselves are not.
        given = self.get_params(deep=False) | {"row_features": None, "col_features": None}
        parameters = {name: _plain(value) for name, value in given.items()}
        fit = {name: getattr(self, name) for name in SAVED if hasattr(self, name)}
        artifact.write(path, self.fitted_, {"estimator": type(self).__name__, "parameters": parameters, "fit": fit})


def _features(value: Any) -> Features | None:
    return None if value is None else Features.of(value)


def _outside() -> int:
    """The stack level, for a warning of the caller, of the first frame that is not of this library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
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
