"""What a trained model answers: probabilities, labels, sets, intervals, explanations, recommendations; no numerics."""

import numbers
import os
import sys
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dyads.data.codes import Codes, label_codes, numeric_values, read_labels, to_numpy
from dyads.data.features import Features
from dyads.data.observations import read_dyads, read_ids, read_pairs, read_weight
from dyads.data.tables import read_column, table_like
from dyads.engine import Engine
from dyads.errors import InputError, UnknownIdError, UnknownIdWarning, unknown_name
from dyads.estimators.settings import PARTS, UNKNOWN_POLICIES, engine_of, to_json, with_changes
from dyads.metrics import accuracy
from dyads.model.loss import least_cost, link, mode
from dyads.model.record import Record
from dyads.model.structure import is_undirected
from dyads.trained import artifact
from dyads.trained.calibration import conformal_sets, learn_calibrator, nonconformity
from dyads.trained.coldstart import mean_scores, support, with_features
from dyads.trained.explain import explain
from dyads.trained.predictions import Predictions, interval, refuse_nan, sample_proba
from dyads.trained.recommend import Wanted, ask, recommend, thompson

Array = np.ndarray[Any, Any]

LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The folder of this library: a warning points to the first frame outside of it."""

SAVED = ("columns_", "n_features_in_", "n_iter_", "converged_", "objective_", "solver_", "trace_")
"""What is kept in a model file besides `Record` and the parameters; and of a posterior its `diagnostics_`."""


RANKED, EXPLAINED = ("rank", "value"), ("dyad", "label", "part", "value")
"""The columns, beside those of ids, of tables that `recommend` and `ask`, and that `explain`, return."""


class Predictor(ClassifierMixin, BaseEstimator):
    """All that needs no more than what training left in `record_` and `columns_`.

    `_ordered` says that labels have numeric values; `unknown` and `engine` are parameters of the estimator.
    """

    _ordered = False
    record_: Record
    columns_: list[str]
    unknown: str
    engine: str | Engine

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and fields of settings objects: ``set_params(rank=3, solver__max_iter=20)``.

        A part that was given by name has its settings changed too. Settings objects are frozen: this estimator gets a
        new one, and others that share the old one keep it.
        """
        nested: dict[str, dict[str, Any]] = {}
        for name in [name for name in params if name.partition("__")[0] in PARTS and "__" in name]:
            part, _, field = name.partition("__")
            nested.setdefault(part, {})[field] = params.pop(name)
        super().set_params(**params)
        for part, changes in nested.items():
            setattr(self, part, with_changes(part, getattr(self, part), changes))
        return self

    @property
    def _engine(self) -> Engine:
        """Where sums over dyads are computed."""
        return engine_of(self.engine)

    def _look_up(self, X: Any, row_features: Any, col_features: Any) -> tuple[Record, list[Codes], Any]:
        """The model, with these features if any, and the codes and the features of the dyads of X."""
        check_is_fitted(self)
        record = self._with_features(row_features, col_features)
        codes, features = read_dyads(X, record.known.vocabularies, self.columns_, record.known.dyad_encoder)
        return record, codes, features

    def _with_features(self, row_features: Any, col_features: Any) -> Record:
        known = self.record_.known
        row = None if row_features is None else Features.of(row_features, like=known.rows.encoder)
        col = None if col_features is None else Features.of(col_features, like=known.cols.encoder)
        return self.record_ if row is None and col is None else with_features(self.record_, row, col)

    def _treat_unknown(self, record: Record, codes: list[Codes], unknown: list[Array], out: Array) -> None:
        """Apply the policy to the scores of dyads with unknown ids, and say so in one warning."""
        if self.unknown not in UNKNOWN_POLICIES:
            raise unknown_name("unknown", self.unknown, UNKNOWN_POLICIES)
        message = self._unknown_message(unknown)
        if self.unknown == "nan":
            out[np.logical_or.reduce(unknown)] = np.nan
        if self.unknown == "mean":
            if record.draws[0].prediction is None:
                raise InputError(
                    "unknown='mean' was set after the fit: expected it before, since the means are taken over the "
                    "training data. Fit the model again, or set unknown='prior'."
                )
            rows, cols = codes[:2]
            either = unknown[0] | unknown[1]
            out[either] = mean_scores(record, rows[either], cols[either])
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

    def predictions(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Predictions:
        """All that is predicted of the dyads of X, scored once: probabilities, labels, and the support of the ids.

        `row_features`, `col_features` : tables that extend or override those given to the constructor, which is how new
        ids get features; all methods that predict take them. Columns of X that the table of the fit did not have are
        ignored, where X has names. Unknown ids follow the policy `unknown`, and are counted in one warning.
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        scores = self._engine.scores(record.models, codes, features)
        unknown = [column < 0 for column in codes]
        if any(column.any() for column in unknown):
            self._treat_unknown(record, codes, unknown, scores)
        return Predictions(
            classes=self.classes_,
            scores=scores,
            proba=record.proba(scores),
            support=support(record.known, *codes[:2]),
            decide=self.decide,
        )

    def predict_proba(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Probability of each label (n, n_labels); columns in the order of `classes_`. See `predictions`."""
        return self.predictions(X, row_features=row_features, col_features=col_features).proba

    def log_odds(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Log-odds of each label (n, n_labels): against the reference, log p_y / p_reference; or, if there is none,
        against the labels' geometric mean, which is log p_y less its mean over labels.

        Those of the model itself, before it was calibrated.
        """
        predicted = self.predictions(X, row_features=row_features, col_features=col_features)
        return self.record_.parts.log_odds(predicted.scores)

    def predict(self, X: Any, cost: Any = None, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Predict one label per dyad; with a cost matrix, the label of least expected cost.

        `cost` : (n_labels, n_labels), cost[true, predicted] in the order of `classes_`. Under ``unknown="nan"`` dyads
        with unknown ids are an error here: no label can be predicted for them.
        """
        predicted = self.predictions(X, row_features=row_features, col_features=col_features)
        if cost is None:
            return predicted.labels
        n_labels = len(self.classes_)
        try:
            cost = np.asarray(cost, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"cost is no matrix of numbers ({error}): expected ({n_labels}, {n_labels}).") from error
        if cost.shape != (n_labels, n_labels) or not np.isfinite(cost).all():
            raise InputError(f"cost has shape {cost.shape}: expected ({n_labels}, {n_labels}), all finite numbers.")
        refuse_nan(predicted.proba)
        return self.classes_[least_cost(predicted.proba, cost)]

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
            method = "logistic" if self.record_.parts.loss.ordered else "temperature"
        values = numeric_values(self.classes_) if self._ordered else None
        calibrator = learn_calibrator(method, proba, label, weight, values)
        self.record_ = replace(self.record_, calibrator=calibrator, nonconformity=None)
        return self

    def conformalize(self, X: Any, y: Any) -> Self:
        """Learn from held-out dyads how strange true labels are, for `predict_set`. Changes this model, and returns it.

        They must not have been trained on, nor calibrated on.
        """
        proba, label, _ = self._held_out(X, y, None)
        if self.record_.calibrator is not None:
            proba = self.record_.calibrator.apply(proba)
        self.record_ = replace(self.record_, nonconformity=nonconformity(proba, label))
        return self

    def _held_out(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Codes, Array | None]:
        """The uncalibrated probabilities of held-out dyads, the codes of their labels, and their weights."""
        check_is_fitted(self)
        proba, label = link(self.predictions(X).scores), label_codes(self._checked(y), self.classes_)
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
        proba = self.predictions(X, row_features=row_features, col_features=col_features).proba
        refuse_nan(proba)
        if self.record_.nonconformity is None:
            raise InputError("The model was not conformalized: expected conformalize(X, y) on held-out dyads first.")
        return conformal_sets(proba, self.record_.nonconformity, coverage)

    def sample_proba(
        self, X: Any, n: int | None = None, *, row_features: Any = None, col_features: Any = None
    ) -> Array:
        """Probabilities under `n` draws from the posterior (n, n_dyads, n_labels), all that were kept if None.

        Of ``solver="gibbs"`` alone. Their mean over draws is `predict_proba` of ids that have labels, but for a
        calibrator, which is put to each. Ids without labels are another draw from their prior each time, rows one and
        columns one; also under ``unknown="mean"``.
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        return self._nan_unknown(codes, sample_proba(record, n, codes, features, self._engine), axis=1)

    def predict_interval(
        self, X: Any, level: float = 0.9, *, row_features: Any = None, col_features: Any = None
    ) -> Array:
        """Lower and upper bound of each label's probability (n, n_labels, 2), of ``solver="gibbs"`` alone.

        Between them it lies with the posterior probability `level`: how sure the model is of its probabilities, which
        is another thing than how sure these are of a label.
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        return self._nan_unknown(codes, interval(record, level, codes, features, self._engine), axis=0)

    def _nan_unknown(self, codes: list[Codes], found: Array, axis: int) -> Array:
        """What was found, NaN for dyads with unknown ids where the policy is that, or an error."""
        unknown = [column < 0 for column in codes]
        self._unknown_message(unknown)
        if self.unknown == "nan":
            np.moveaxis(found, axis, 0)[np.logical_or.reduce(unknown)] = np.nan
        return found

    def support(self, X: Any) -> Array:
        """How many training labels (their summed weight) the row and the column of each dyad had (n, 2)."""
        record, codes, _ = self._look_up(X, None, None)
        return support(record.known, *codes[:2])

    def explain(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Any:
        """The exact additive parts of each label's log-odds, which sum to `log_odds`: before calibration, if any.

        A tidy table, of the kind X has (an Arrow table if that is no dataframe), with the columns dyad (its place in
        X), the ids under their own names, label, part and value. The parts are "label bias", "row bias", "column bias",
        "latent" (all products of latent weights) and one of every feature that is not zero, such as "row: age" or
        "col: genre=Drama". Ids without labels have a part "unknown", what averaging over those seen adds, and where
        nothing is known of them one of the features of an average id. So have unknown ids under "mean" and "nan", for
        which `log_odds` does other things. Averaged models and draws have a part "averaging". An id column that is
        called as another column of the table has "id_" before its name there.
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        self._unknown_message([column < 0 for column in codes])
        parts = explain(record, codes, features, self._engine)
        n_labels, names = len(record.known.classes), [vocabulary.name for vocabulary in record.known.vocabularies]
        dyad = np.repeat(parts.dyad, n_labels)
        ids = (column.take(pa.array(dyad)) for column in read_ids(X, names, self.columns_))
        columns = {
            "dyad": dyad,
            **dict(zip(_beside(names, EXPLAINED), ids, strict=True)),
            "label": np.tile(record.known.classes, len(parts.dyad)),
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
        """The `n` best columns for each of `rows`, best first: a tidy table of the ids, rank and value.

        Parameters
        ----------
        rows : ids; unknown ones may be any row, as under ``unknown="prior"``, with a warning, or an error under "raise"
        by : "mean", the expected value of a label that is a number; a label, whose probability it is; or "thompson",
            the mean under one draw from the posterior, another one for each row, which `random_state` chooses: so what
            is uncertain is tried as often as it may be best
        exclude : table of pairs (row id, column id) to leave out, such as those seen in training; of a model of several
            relations, those of `relation` if the table has that column too
        candidates : ids of the columns to choose from, default all the model knows, of one id set but the row itself
        relation : the relation, for a model of several

        Exact, and in flat memory whatever the number of rows and columns; before calibration, if any. Rows and columns
        without labels take some hundred times longer, since they are averaged over. The table is of the kind `rows`
        has, an Arrow table if that is no dataframe or series. Its ids, and the relation if there are several, are under
        the names they had in the table of the fit, so that it can be given to `predict_proba` as it is. An id column
        that is called "rank" or "value" has "id_" before its name there.
        """
        record, codes, row_ids, chosen = self._offered(rows, n, candidates, row_features, col_features)
        kind = self._relation_code(relation)
        pairs = self._excluded(record, codes, exclude, kind)
        wanted = Wanted(codes, chosen, min(int(n), len(chosen)), self._worth(by), pairs, kind)
        if isinstance(by, str) and by == "thompson" and by not in self.classes_:
            best = thompson(record.models, wanted, self._engine, check_random_state(random_state))
        else:
            best = recommend(record.models, wanted, self._engine)
        return table_like(
            _ranked(record, row_ids.take(pa.array(best.row)), best.col, kind, best.value, best.rank), rows
        )

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
        """The `n` columns to ask a row about next: an Arrow table with the columns of `recommend`'s.

        By expected information gain: `value` is what the label is expected to tell, in nats, about what kind of row it
        is. For a row without labels that is exact with respect to the rows seen; what others may be is taken to
        narrow with the number of their labels, or is what the draws of a posterior have. The parameters are those
        of `recommend`.
        """
        record, codes, row_ids, chosen = self._offered([row], n, candidates, row_features, col_features)
        kind = self._relation_code(relation)
        rows, cols = self._excluded(record, codes, exclude, kind)
        chosen = np.setdiff1d(chosen, cols[(rows == codes[0]) & (rows >= 0)])
        best, gain = ask(record, int(codes[0]), chosen, int(n), kind, self._engine)
        repeated = row_ids.take(pa.array(np.zeros(len(best), np.int64)))
        return table_like(_ranked(record, repeated, best, kind, gain, np.arange(1, len(best) + 1)), row)

    def _offered(
        self, rows: Any, n: Any, candidates: Any, row_features: Any, col_features: Any
    ) -> tuple[Record, Codes, pa.Array, Codes]:
        """The model, the codes and ids of rows that are asked for, and the codes of the columns to choose from."""
        check_is_fitted(self)
        record = self._with_features(row_features, col_features)
        known = record.known
        if known.dyad_encoder is not None:
            raise InputError(
                f"The model has features of dyads ({', '.join(known.dyad_encoder.names[:3])}), which pairs not yet "
                "made do not have: expected a model without. Use predict_proba on a table of pairs with them."
            )
        if not isinstance(n, numbers.Integral) or n < 1:
            raise InputError(f"n={n!r} is not possible: expected a whole number, at least 1.")
        row_ids = read_column(rows, "the column of row ids")
        codes, chosen = known.rows.ids.encode(row_ids), np.arange(len(known.cols))
        if candidates is not None:
            chosen = np.unique(known.cols.ids.encode(read_column(candidates, "the column of candidates")))
            if (chosen < 0).any():
                raise UnknownIdError("Some candidates are not known to the model: expected known column ids.")
        if (codes < 0).any():
            message = f"Of {len(codes)} rows, {int((codes < 0).sum())} were not seen in training"
            if self.unknown == "raise":
                raise UnknownIdError(f"{message}: expected known ids. Drop them, or set unknown='prior'.")
            warnings.warn(f"{message}: they may be any of those seen.", UnknownIdWarning, stacklevel=_outside())
        return record, codes, row_ids, chosen

    def _excluded(self, record: Record, codes: Codes, exclude: Any, kind: int) -> tuple[Codes, Codes]:
        """The codes of pairs to leave out, of a relation if the table says which.

        With one id set also the nodes `codes` with themselves and, of undirected pairs, both orders.
        """
        row: Codes = np.zeros(0, np.int64)
        col = row
        if exclude is not None:
            every = record.known.vocabularies
            given = read_pairs(exclude, [vocabulary.name for vocabulary in every], self.columns_)
            row, col, *rest = (vocabulary.encode(ids) for vocabulary, ids in zip(every, given, strict=False))
            mine = rest[0] == kind if rest else np.ones(len(row), np.bool_)
            row, col = row[mine], col[mine]
        if record.known.one_set:
            if is_undirected(type(record.parts.structure), True):
                row, col = np.concatenate([row, col]), np.concatenate([col, row])
            row, col = np.concatenate([row, codes]), np.concatenate([col, codes])
        return row, col

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
        if by == "thompson" and not self.record_.is_posterior:
            raise InputError("by='thompson' needs draws from the posterior: expected a model of solver='gibbs'.")
        return numeric_values(classes)

    def _relation_code(self, relation: Any) -> int:
        relations = self.record_.known.relations
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
        return _read_only(self._record().known.classes)

    @property
    def row_ids_(self) -> Array:
        """The row ids, in the order of `row_factors_`."""
        return to_numpy(self._record().known.rows.ids.ids)

    @property
    def col_ids_(self) -> Array:
        """The column ids, in the order of `col_factors_`."""
        return to_numpy(self._record().known.cols.ids.ids)

    @property
    def row_factors_(self) -> Array:
        """Latent weights of the rows (n_rows, n_labels, rank), zeros for the reference; `parts_` has all of them."""
        return self._factors("row_factors")

    @property
    def col_factors_(self) -> Array:
        """Latent weights of the columns (n_cols, n_labels, rank), as those of the rows."""
        return self._factors("col_factors")

    @property
    def parts_(self) -> dict[str, Array]:
        """All that was learnt, by name: biases, latent weights, and what labels or relations weigh them by.

        Labels have entries in the order of `classes_` without the reference; ids as in `row_ids_` and `col_ids_`.
        """
        model = self._record().models[0]
        return {name: _read_only(part) for name, part in model.layout.named(model.theta).items()}

    def _factors(self, name: str) -> Array:
        model = self._record().models[0]
        if name not in model.layout.named(model.theta):
            raise AttributeError(f"This {type(self).__name__} has no {name}: its parts are {list(self.parts_)}.")
        return _read_only(model.factors(name))

    def embed(self, ids: Any, side: str = "row") -> Array:
        """One vector of all latent weights an id (n, size), ready for clustering; `side` is "row" or "col".

        With one id set both sides are the same: a node has one vector, with its weights in all roles.
        """
        check_is_fitted(self)
        if side not in ("row", "col"):
            raise unknown_name("side", side, ("row", "col"))
        known = self.record_.known
        entities = known.rows if side == "row" else known.cols
        codes = entities.ids.encode(read_column(ids, "the column of ids"))
        if (codes < 0).any():
            raise UnknownIdError(
                f"{int((codes < 0).sum())} of {len(codes)} ids were not seen in training: expected known ids."
            )
        return self.record_.models[0].embed(codes, side)

    @property
    def n_parameters_(self) -> int:
        """How many numbers were learnt; of a posterior, how many one draw has."""
        return self._record().n_parameters()

    def _record(self) -> Record:
        try:
            return self.__dict__["record_"]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"This {type(self).__name__} is not fitted yet: call fit first.") from None

    # --------------------------------------------------------------------------------------------------- the file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file; `dyads.load` reads it."""
        check_is_fitted(self)
        if "_structures" not in vars(type(self)):
            raise InputError(
                f"{type(self).__name__} is not an estimator of dyads, so that its file could not be read: expected "
                "one. Save the estimator it is made of."
            )
        # Where a model is used is another matter than where it was fitted.
        parameters = {name: to_json(value) for name, value in self.get_params(deep=False).items() if name != "engine"}
        fit = {name: getattr(self, name) for name in SAVED}
        if self.record_.is_posterior:
            fit["diagnostics_"] = self.diagnostics_
        artifact.write(path, self.record_, {"estimator": type(self).__name__, "parameters": parameters, "fit": fit})


def _ranked(record: Record, row_ids: pa.Array, cols: Codes, relation: int, value: Array, rank: Array) -> dict[str, Any]:
    """The columns of a table of recommendations, one line each: ids under their own names, rank and value."""
    known = record.known
    ids = [row_ids, known.cols.ids.ids.take(pa.array(cols))]
    if known.relations is not None:
        ids.append(known.relations.ids.take(pa.array(np.full(len(cols), relation))))
    names = _beside([vocabulary.name for vocabulary in known.vocabularies], RANKED)
    return {**dict(zip(names, ids, strict=True)), "rank": rank, "value": value}


def _beside(names: list[str], others: tuple[str, ...]) -> list[str]:
    """The names of id columns, with "id_" before those that a table has for other columns."""
    free: list[str] = []
    for name in names:
        own = name
        while own in others or (own != name and own in (*names, *free)):
            own = f"id_{own}"
        free.append(own)
    return free


def _outside() -> int:
    """The stack level, for a warning of the caller, of the first frame that is not of this library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARY):
        frame, level = frame.f_back, level + 1
    return level


def _read_only(array: Array) -> Array:
    """A view that cannot be written to, so that nobody alters the model by accident."""
    view = array.view()
    view.flags.writeable = False
    return view
