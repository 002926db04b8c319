"""Methods of fitted models: probabilities, labels, prediction sets, intervals, explanations, recommendations."""

import numbers
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from sklearn.base import ClassifierMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import check_is_fitted

from dyads.data.codes import Codes, Vocabulary, label_codes, numeric_values, read_labels, to_numpy
from dyads.data.features import Features
from dyads.data.observations import read_dyads, read_ids, read_pairs, read_weight
from dyads.data.tables import LIBRARIES, check_library, library_of, read_column, table_of
from dyads.engine import Engine, Query
from dyads.errors import (
    InputError,
    SeenWarning,
    UnknownIdError,
    UnknownIdWarning,
    caller_level,
    shortened,
    unknown_name,
)
from dyads.estimators.settings import (
    UNKNOWN_POLICIES,
    NestedParameters,
    engine_of,
    is_count,
    is_diagnostics,
    is_list,
    is_object,
    is_origin,
    is_table,
    random_state_of,
    to_json,
)
from dyads.learn.training import TRACED
from dyads.metrics import accuracy
from dyads.model.loss import least_cost, link, mode
from dyads.model.record import Record
from dyads.model.structure import is_undirected
from dyads.solve import SOLVERS
from dyads.trained import artifact
from dyads.trained.calibration import conformal_sets, learn_calibrator, nonconformity
from dyads.trained.chains import inference_data
from dyads.trained.coldstart import mean_scores, support, with_features
from dyads.trained.explain import explain
from dyads.trained.predictions import Predictions, check_posterior, interval, log_likelihood, refuse_nan, sample_proba
from dyads.trained.recommend import Best, ask, left_out, recommend, similar, thompson

Array = np.ndarray[Any, Any]

SAVED: dict[str, Callable[[Any], bool]] = {
    "columns_": lambda value: is_list(value, str) and len(set(value)) == len(value),
    "library_": lambda value: value is None or (type(value) is str and value in LIBRARIES),
    "n_features_in_": is_count,
    "n_iter_": is_count,
    "converged_": lambda value: type(value) is bool,
    "objective_": lambda value: type(value) in (int, float),
    "solver_": lambda value: type(value) is str and value in SOLVERS,
    "trace_": lambda value: is_table(value, TRACED),
    "held_out_": lambda value: is_object(value, int, float),
    "trained_on_": is_origin,
}
"""Attributes in a model file besides the `Record` and the parameters, and what a value read from a file must be."""

SAVED_DIAGNOSTICS: dict[str, Callable[[Any], bool]] = {"diagnostics_": is_diagnostics}
"""The same for a posterior."""

RANKED, EXPLAINED = ("rank", "value"), ("dyad", "label", "part", "value")
"""Columns besides the ids in the tables returned by `recommend` and `ask`, and by `explain`."""


class Predictor(ClassifierMixin, NestedParameters):
    """Methods that need only the results of training, `record_` and `columns_`.

    `_ordered` says whether labels have numeric values; `unknown` and `engine` are parameters of the estimator.
    """

    _ordered = False
    record_: Record
    columns_: list[str]
    library_: str | None
    unknown: str
    engine: str | Engine

    @property
    def _engine(self) -> Engine:
        """The engine that computes the sums over dyads."""
        return engine_of(self.engine)

    def set_output(self, table: str) -> Self:
        """Choose what the methods that predict return: "pandas", "polars" or "pyarrow" tables, or "default".

        Arrays with a column for each label become tables with the labels as names, one line per dyad; a pandas table
        has the index of X. These are the arrays of `predict_proba`, `log_odds`, `predict_set` and, with the columns
        "a_lower" and "a_upper" of a label "a", `predict_interval`. Methods that return tables, such as `recommend` and
        `explain`, return them in this library. By default, they follow the table of the fit (`library_`).

        The choice is the model's own: scikit-learn's `clone`, and so its searches and scorers of clones, and model
        files go back to the default.
        """
        if table == "default":
            self.__dict__.pop("_output", None)
        else:
            check_library(table)
            self._output = table
        return self

    def _by_label(self, array: Array, X: Any, suffixes: tuple[str, ...] = ("",)) -> Any:
        """An array (n, n_labels, ...) as it is, or as the table that `set_output` asks for, a column per suffix."""
        library = getattr(self, "_output", None)
        if library is None:
            return array
        names = [f"{label}{suffix}" for label in self.classes_ for suffix in suffixes]
        return table_of(dict(zip(names, array.reshape(len(array), -1).T, strict=True)), library, X)

    def _look_up(self, X: Any, row_features: Any, col_features: Any) -> tuple[Record, list[Codes], Any]:
        """The record, with the given features if any, and the codes and features of the dyads of X."""
        record = self._with_features(row_features, col_features)
        codes, features = read_dyads(X, record.known.vocabularies, self.columns_, record.known.dyad_encoder)
        return record, codes, record.known.pair_features(codes, features)

    def _with_features(self, row_features: Any, col_features: Any) -> Record:
        check_is_fitted(self)
        known = self.record_.known
        row = None if row_features is None else Features.of(row_features, like=known.rows.encoder)
        col = None if col_features is None else Features.of(col_features, like=known.cols.encoder)
        return self.record_ if row is None and col is None else with_features(self.record_, row, col)

    def _treat_unknown(self, record: Record, codes: list[Codes], unknown: list[Array], out: Array) -> None:
        """Apply the policy `unknown` to the scores of dyads with unknown ids, with one warning."""
        if self.unknown not in UNKNOWN_POLICIES:
            raise unknown_name("unknown", self.unknown, UNKNOWN_POLICIES)
        message = self._unknown_message(unknown)
        if self.unknown == "nan":
            out[np.logical_or.reduce(unknown)] = np.nan
        if self.unknown == "mean":
            if record.draws[0].prediction is None:
                raise InputError(
                    "unknown='mean' was set after the fit: expected it before, since the fit computes the means. Fit "
                    "the model again, or set unknown='prior'."
                )
            rows, cols = codes[:2]
            either = unknown[0] | unknown[1]
            out[either] = mean_scores(record, rows[either], cols[either])
        treated = {
            "prior": "their probabilities are averaged over the ids seen in training",
            "nan": "their probabilities are NaN",
            "mean": "their probabilities are the mean of the training predictions for the other id",
        }
        warnings.warn(f"{message}: {treated[self.unknown]}.", UnknownIdWarning, stacklevel=caller_level())

    def _unknown_message(self, unknown: list[Array]) -> str:
        """Message that counts the dyads with unknown ids; raises it as an error under ``unknown="raise"``."""
        counted = zip(unknown, ("a row id", "a column id", "a relation"), strict=False)
        counts = " and ".join(f"{column.sum()} have {what}" for column, what in counted if column.any())
        message = f"Of {len(unknown[0])} dyads, {counts} not seen in training"
        if counts and self.unknown == "raise":
            raise UnknownIdError(f"{message}: expected known ids. Drop these dyads, or set unknown='prior' or 'nan'.")
        return message

    def predictions(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Predictions:
        """Probabilities, labels and support of the ids for the dyads of X, which are scored once.

        `row_features`, `col_features` : tables that extend or override the features of the fit, for example for new
        ids; all methods that predict take them. Named columns of X that were not in the fit are ignored. Dyads with
        unknown ids are treated by the policy `unknown`, and counted in one warning.
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

    def marginals(self, X: Any) -> dict[str, Predictions]:
        """Predictions for the dyads of X by label frequencies of the training data alone: what a model has to beat.

        By name: "all labels" are the frequencies of all training dyads; "labels by user", for an id column called
        "user", those of the training dyads of the same id, drawn towards the former (`LabelCounts.smoothed`). There
        is one for each id column. Labels are decided as by `predict`.
        """
        record, codes, _ = self._look_up(X, None, None)
        counted = support(record.known, *codes[:2])
        return {
            name: Predictions(classes=self.classes_, scores=None, proba=proba, support=counted, decide=self.decide)
            for name, proba in record.marginals(codes).items()
        }

    def predict_proba(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Any:
        """Probability of each label (n, n_labels); columns in the order of `classes_`. See `predictions`.

        An array, or a table: see `set_output`.
        """
        return self._by_label(self.predictions(X, row_features=row_features, col_features=col_features).proba, X)

    def log_odds(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Any:
        """Log-odds of each label (n, n_labels), before calibration; an array, or a table: see `set_output`.

        They are relative to the reference label, log p_y - log p_reference. Without a reference they are relative to
        the geometric mean of the labels, log p_y - mean over labels of log p.
        """
        return self._by_label(self._log_odds(X, row_features, col_features), X)

    def _log_odds(self, X: Any, row_features: Any, col_features: Any) -> Array:
        predicted = self.predictions(X, row_features=row_features, col_features=col_features)
        return self.record_.parts.log_odds(predicted.scores)

    def predict(self, X: Any, cost: Any = None, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Predict one label per dyad (n,); with a cost matrix, the label of least expected cost.

        `cost` : (n_labels, n_labels), cost[true, predicted] in the order of `classes_`. Under ``unknown="nan"``, dyads
        with unknown ids raise an error: no label can be predicted for them.
        """
        predicted = self.predictions(X, row_features=row_features, col_features=col_features)
        if cost is None:
            return predicted.labels
        n_labels = len(self.classes_)
        try:
            cost = np.asarray(cost, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"cost is not a matrix of numbers ({error}): expected shape ({n_labels}, {n_labels})."
            ) from error
        if cost.shape != (n_labels, n_labels) or not np.isfinite(cost).all():
            raise InputError(f"cost has shape {cost.shape}: expected ({n_labels}, {n_labels}) and finite numbers.")
        refuse_nan(predicted.proba)
        return self.classes_[least_cost(predicted.proba, cost)]

    def calibrate(self, X: Any, y: Any, method: str | None = None, sample_weight: Any = None) -> Self:
        """Calibrate the probabilities on held-out dyads. Changes and returns the model.

        `log_odds`, `explain` and `recommend` stay uncalibrated. The scores of `conformalize` are discarded: call it
        after `calibrate`, on yet other dyads.

        Parameters
        ----------
        X, y, sample_weight : labelled dyads that were not trained on, like those to predict
            A few hundred or more; fewer than ten per parameter of the calibrator raise a `FewDyadsWarning`.
        method : "logistic", "vector", "isotonic" or "temperature", default None
            "logistic": multinomial logistic regression on the expected label (on log probabilities for nominal labels),
            for losses that train only the mean. "vector": a weight and a bias per label. "isotonic": a nondecreasing
            curve per label. "temperature": one temperature, which needs the fewest dyads, and keeps the order of the
            labels. The default is "logistic" for the losses "absolute", "squared" and "hinge", and "temperature" for
            the proper losses "log" and "brier".
        """
        proba, label, weight = self._held_out(X, y, sample_weight)
        if method is None:
            method = "logistic" if self.record_.parts.loss.ordered else "temperature"
        values = numeric_values(self.classes_) if self._ordered else None
        calibrator = learn_calibrator(method, proba, label, weight, values)
        self.record_ = replace(self.record_, calibrator=calibrator, nonconformity=None)
        return self

    def conformalize(self, X: Any, y: Any) -> Self:
        """Compute nonconformity scores of held-out dyads, for `predict_set`. Changes and returns the model.

        The dyads must not have been used to train or to calibrate the model.
        """
        proba, label, _ = self._held_out(X, y, None)
        if self.record_.calibrator is not None:
            proba = self.record_.calibrator.apply(proba)
        self.record_ = replace(self.record_, nonconformity=nonconformity(proba, label))
        return self

    def _held_out(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Codes, Array | None]:
        """Uncalibrated probabilities of held-out dyads, codes of their labels, and their weights."""
        check_is_fitted(self)
        proba, label = link(self.predictions(X).scores), label_codes(self._checked(y), self.classes_)
        weight = read_weight(sample_weight)
        lengths = [len(proba), len(label)] + ([] if weight is None else [len(weight)])
        if len(set(lengths)) > 1 or not len(proba):
            raise InputError(
                f"The dyads, labels and weights have the lengths {lengths}: expected equal lengths above 0."
            )
        if np.isnan(proba).any():
            raise UnknownIdError(
                f"{int(np.isnan(proba).any(axis=1).sum()):,} of {len(proba):,} dyads have unknown ids and NaN "
                "probabilities: expected known ids. Drop these dyads, or set unknown='prior'."
            )
        return proba, label, weight

    def predict_set(self, X: Any, coverage: float = 0.9, *, row_features: Any = None, col_features: Any = None) -> Any:
        """Conformal prediction sets: mask (n, n_labels) of the labels in each set, in the order of `classes_`.

        An array, or a table: see `set_output`.

        For dyads exchangeable with those of `conformalize`, the set contains the true label with probability `coverage`
        or more, however good the model is. The guarantee is marginal: it does not hold for each row, column or label
        separately.
        """
        proba = self.predictions(X, row_features=row_features, col_features=col_features).proba
        refuse_nan(proba)
        if self.record_.nonconformity is None:
            raise InputError("The model was not conformalized: call conformalize(X, y) on held-out dyads first.")
        return self._by_label(conformal_sets(proba, self.record_.nonconformity, coverage), X)

    def sample_proba(
        self, X: Any, n: int | None = None, *, row_features: Any = None, col_features: Any = None
    ) -> Array:
        """Probabilities under `n` posterior draws (n, n_dyads, n_labels), by default all that were kept.

        Only for a posterior. For ids with labels, the mean over all draws is `predict_proba`, unless the model
        is calibrated: the calibrator is applied to each draw. In each draw, an id without labels is drawn as
        that of a random training pair; also under ``unknown="mean"``.
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        return self._nan_unknown(codes, sample_proba(record, n, codes, features, self._engine), axis=1)

    def predict_interval(
        self, X: Any, level: float = 0.9, *, row_features: Any = None, col_features: Any = None
    ) -> Any:
        """Credible intervals of the probabilities (n, n_labels, 2): lower and upper bound. Only for a posterior.

        An array, or a table: see `set_output`.

        Each probability lies in its interval with posterior probability `level`; that draws are few, or alike, widens
        it. The width measures the uncertainty about the probability, not about the label.
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        check_posterior(record)
        effective = float(np.median(self.diagnostics_["effective_samples"]))
        bounds = self._nan_unknown(codes, interval(record, level, effective, codes, features, self._engine), axis=0)
        return self._by_label(bounds, X, ("_lower", "_upper"))

    def to_arviz(self, X: Any = None, y: Any = None) -> Any:
        """The posterior draws as an `arviz.InferenceData`, chains apart. Only for a posterior.

        Given labelled pairs, it also holds the log-likelihood of each pair. For the training pairs, ``arviz.loo`` then
        estimates the log-likelihood of pairs left out, and ``arviz.compare`` compares ranks and structures without
        folds. Own weights of ids are beyond what their features say, where side weights are those of ids weighted by
        their labels. Needs the extra ``dyads[posterior]``.
        """
        check_is_fitted(self)
        if (X is None) != (y is None):
            raise InputError("to_arviz got only one of X and y: expected both, or neither.")
        check_posterior(self.record_)
        likelihood = None
        if X is not None:
            record, codes, features = self._look_up(X, None, None)
            self._unknown_message([column < 0 for column in codes])
            labels = label_codes(self._checked(y), self.classes_)
            if len(labels) != len(codes[0]):
                raise InputError(f"Got {len(codes[0])} pairs and {len(labels)} labels: expected as many of both.")
            likelihood = log_likelihood(record, labels, codes, features, self._engine)
        return inference_data(self.record_, self.diagnostics_["draws"], likelihood)

    def _nan_unknown(self, codes: list[Codes], values: Array, axis: int) -> Array:
        """Apply the policies "nan" and "raise" to values with the dyads along `axis`."""
        unknown = [column < 0 for column in codes]
        self._unknown_message(unknown)
        if self.unknown == "nan":
            np.moveaxis(values, axis, 0)[np.logical_or.reduce(unknown)] = np.nan
        return values

    def support(self, X: Any) -> Array:
        """Number of training labels (their summed weight) of the row and of the column of each dyad (n, 2)."""
        record, codes, _ = self._look_up(X, None, None)
        return support(record.known, *codes[:2])

    def explain(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Any:
        """Decompose the log-odds of each label into additive parts, which sum exactly to `log_odds`.

        Returns a tidy table of the library of the fit (`library_`; if that is None, of X). Its columns are dyad (the
        position in X), the ids under their own names, label, part and value. An id column whose name clashes with
        another column gets the prefix "id_".

        Log-odds are relative to the reference label, if there is one: all its own parts are zero.

        The parts are "label bias", "row bias", "column bias", "latent" (all products of latent weights) and one part
        per nonzero feature, such as "row: age" or "col: genre=Drama". Ids without labels have a part "unknown", the
        effect of averaging over the ids seen in training; without features, they also have a part for those of an
        average id. This holds under every policy for unknown ids, while `log_odds` follows the policies "mean" and
        "nan". Posterior draws have a part "averaging".
        """
        record, codes, features = self._look_up(X, row_features, col_features)
        self._unknown_message([column < 0 for column in codes])
        parts = explain(record, codes, features, self._engine)
        n_labels, names = len(record.known.classes), [vocabulary.name for vocabulary in record.known.vocabularies]
        dyad = np.repeat(parts.dyad, n_labels)
        read = zip(record.known.vocabularies, read_ids(X, names, self.columns_), strict=True)
        ids = (vocabulary.typed(column).take(pa.array(dyad)) for vocabulary, column in read)
        columns = {
            "dyad": dyad,
            **dict(zip(_beside(names, EXPLAINED), ids, strict=True)),
            "label": np.tile(record.known.classes, len(parts.dyad)),
            "part": np.repeat(parts.name, n_labels),
            "value": parts.value.ravel(),
        }
        return returned_table(self, columns, X)

    def recommend(
        self,
        rows: Any = None,
        n: int = 10,
        by: Any = "mean",
        *,
        cols: Any = None,
        exclude: Any = None,
        candidates: Any = None,
        with_seen: bool = False,
        relation: Any = None,
        row_features: Any = None,
        col_features: Any = None,
        random_state: Any = None,
    ) -> Any:
        """Recommend the `n` best columns for each of `rows`, or the best rows for each of `cols`, best first.

        Returns a tidy table of ids, rank and value. The ranking is exact, uses uncalibrated probabilities, and takes
        memory that does not grow with the number of pairs. Rows and columns without labels take a few hundred times
        longer, since they are averaged over.

        The table is of the library of the fit (`library_`; if that is None, of the ids). Its id columns, and the
        relation if there are several, have the names of the table of the fit, so that it can be passed to
        `predict_proba` as it is. An id column named "rank" or "value" gets the prefix "id_".

        Parameters
        ----------
        rows, cols : row ids or column ids, or one id
            Whom to recommend to: either of them. Unknown ids are treated as under ``unknown="prior"``, with a warning
            that names them, or raise an error under "raise".
        n : int, default 10
            Number of recommendations for each id.
        by : "mean", "thompson" or a label, default "mean"
            What to rank by. "mean": the expected value of numeric or ordered labels, or the probability of the second
            of two labels that are text. A label: its probability.
            "thompson": Thompson sampling, the expected value under one random posterior draw per id, which recommends
            a partner with the probability that it is the best.
        exclude : table of pairs (row id, column id), default None
            Further pairs to leave out. With several relations, and if the table has the column of relations, only the
            pairs of `relation`.
        candidates : ids, default all that the model knows
            Columns to choose from; rows, for `cols`. With one id set, a node is never recommended to itself.
        with_seen : bool, default False
            Whether to recommend pairs of the training data again. By default they are left out: of links, or of
            positives with other pairs as non-links, only the links. A model of more than 2^25 pairs does not keep them,
            and warns.
        relation : relation id
            The relation, for a model of several relations.
        row_features, col_features : as for `predict_proba`
        random_state : int, RandomState or None, default None
            Seed of Thompson sampling.
        """
        if (rows is None) == (cols is None):
            raise InputError("recommend got both rows and cols, or neither: expected one of them.")
        turned, rng = rows is None, random_state_of(random_state)
        record = self._with_features(row_features, col_features)
        codes, asked, chosen = self._offered(record, cols if turned else rows, n, candidates, turned)
        kind, worth = self._relation_code(relation), self._worth(by)
        left = self._left_out(record, codes, exclude, kind, with_seen, turned)
        sizes = len(record.known.rows), len(record.known.cols)
        left, sizes = (left[::-1], sizes[::-1]) if turned else (left, sizes)
        n = min(int(n), len(chosen))
        query = Query(codes, chosen, n, worth, kind, left_out(left, chosen, *sizes), turned)
        if isinstance(by, str) and by == "thompson" and by not in self.classes_:
            best = thompson(record.models, query, self._engine, rng)
        else:
            best = recommend(record.models, query, self._engine)
        return returned_table(self, _ranked(record, asked, best, kind, turned), cols if turned else rows)

    def similar(self, ids: Any, n: int = 10, side: str = "row") -> Any:
        """Find the `n` ids of one side whose predicted labels are most like those of each of `ids`.

        Two rows are as similar as their predicted distributions, averaged over columns: the value is their mean
        Bhattacharyya coefficient, 1 for equal predictions. (Over at most 128 columns, which are sampled by their number
        of labels.) Returns a tidy table of the id, the similar id (prefix "similar_"), rank and value.

        `ids` : known ids, or one id. `side` : "row" or "col".
        """
        check_is_fitted(self)
        if side not in ("row", "col"):
            raise unknown_name("side", side, ("row", "col"))
        _check_n(n)
        entities = self.record_.known.rows if side == "row" else self.record_.known.cols
        self._refuse_dyad_features(self.record_)
        column = read_column(_listed(ids), "the column of ids")
        codes = self._known_codes(entities.ids, column, "ids")
        best = similar(self.record_, codes, int(n), side == "col", self._engine)
        name, *_ = _beside([entities.ids.name], (*RANKED, f"similar_{entities.ids.name}"))
        asked = entities.ids.ids.take(pa.array(codes[best.row]))
        others = entities.ids.ids.take(pa.array(best.col))
        columns = {name: asked, f"similar_{entities.ids.name}": others, "rank": best.rank, "value": best.value}
        return returned_table(self, columns, ids)

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
        """Active learning: the `n` columns to ask a row about next, as a table with the columns of `recommend`.

        Columns are ranked by expected information gain: `value` is the mutual information, in nats, of the label and
        the row's own weights. For a row without labels, these vary as those of the rows seen in training. For a row
        with labels, they vary over the posterior draws or, for a point estimate, less the more labels the row has. The
        parameters are those of `recommend`; pairs of the training data are left out.
        """
        record = self._with_features(row_features, col_features)
        codes, asked, chosen = self._offered(record, [row], n, candidates, turned=False)
        kind = self._relation_code(relation)
        rows, cols = self._left_out(record, codes, exclude, kind, with_seen=False, turned=False)
        chosen = np.setdiff1d(chosen, cols[(rows == codes[0]) & (rows >= 0)])
        best, gain = ask(record, int(codes[0]), chosen, int(n), kind, self._engine)
        ranked = Best(np.zeros(len(best), np.int64), best, np.arange(1, len(best) + 1), gain)
        return returned_table(self, _ranked(record, asked, ranked, kind, turned=False), row)

    def _refuse_dyad_features(self, record: Record) -> None:
        names = [] if record.known.dyad_encoder is None else record.known.dyad_encoder.names
        if names:
            raise InputError(
                f"The model has features of dyads ({', '.join(names[:3])}), which are not known for "
                "new pairs: expected a model without them. Use predict_proba on a table of pairs with these features."
            )

    def _offered(
        self, record: Record, ids: Any, n: Any, candidates: Any, turned: bool
    ) -> tuple[Codes, pa.Array, Codes]:
        """Codes and ids of the rows to recommend to, and codes of the columns to choose from; if turned, vice versa."""
        self._refuse_dyad_features(record)
        _check_n(n)
        sides = (record.known.rows, "row"), (record.known.cols, "column")
        (own, noun), (others, _) = sides[::-1] if turned else sides
        asked = own.ids.typed(read_column(_listed(ids), f"the column of {noun} ids"))
        codes, chosen = own.ids.encode(asked), np.arange(len(others))
        if candidates is not None:
            offered = read_column(candidates, "the column of candidates")
            chosen = np.unique(self._known_codes(others.ids, offered, "candidates"))
        if (codes < 0).any():
            unknown = asked.filter(pa.array(codes < 0)).to_pylist()
            message = f"Of {len(codes)} {noun}s, {len(unknown)} were not seen in training ({shortened(unknown)})"
            if self.unknown == "raise":
                raise UnknownIdError(f"{message}: expected known ids. Drop these {noun}s, or set unknown='prior'.")
            treated = f"their values are averaged over the {noun}s seen in training"
            warnings.warn(f"{message}: {treated}.", UnknownIdWarning, stacklevel=caller_level())
        return codes, asked, chosen

    def _known_codes(self, vocabulary: Vocabulary, ids: pa.Array, what: str) -> Codes:
        """The codes of ids that must be known."""
        codes = vocabulary.encode(ids)
        if (codes < 0).any():
            unknown = ids.filter(pa.array(codes < 0)).to_pylist()
            raise UnknownIdError(
                f"Of {len(codes):,} {what}, {len(unknown):,} were not seen in training ({shortened(unknown)}): "
                "expected known ids. Drop them."
            )
        return codes

    def _left_out(
        self, record: Record, codes: Codes, exclude: Any, kind: int, with_seen: bool, turned: bool
    ) -> tuple[Codes, Codes]:
        """Codes of the pairs to leave out: those of the training data, and of the table `exclude`, in one relation.

        With one id set, these include each node of `codes` with itself and, if undirected, both orders of each pair.
        """
        row: Codes = np.zeros(0, np.int64)
        col = row
        if exclude is not None:
            vocabularies = record.known.vocabularies
            columns = read_pairs(exclude, [vocabulary.name for vocabulary in vocabularies], self.columns_)
            row, col, *rest = (vocabulary.encode(ids) for vocabulary, ids in zip(vocabularies, columns, strict=False))
            of_relation = rest[0] == kind if rest else np.ones(len(row), np.bool_)
            row, col = row[of_relation], col[of_relation]
        if not with_seen:
            if record.known.seen is None:
                warnings.warn(
                    "The model does not keep the pairs it was trained on, which are too many: they are not left out. "
                    "Pass some as exclude, or with_seen=True.",
                    SeenWarning,
                    stacklevel=caller_level(),
                )
            else:
                none, both = codes[:0], is_undirected(type(record.parts.structure), record.known.one_set)
                of_rows, of_cols = none if turned and not both else codes, codes if turned or both else none
                seen = record.known.seen.pairs_of(of_rows, of_cols, kind)
                row, col = np.append(row, seen[0]), np.append(col, seen[1])
        if record.known.one_set:
            if is_undirected(type(record.parts.structure), True):
                row, col = np.concatenate([row, col]), np.concatenate([col, row])
            row, col = np.concatenate([row, codes]), np.concatenate([col, codes])
        return row, col

    def _worth(self, by: Any) -> Array:
        """Value of each label (n_labels,) in the expected value that columns are ranked by."""
        classes = self.classes_
        matches = classes == by if np.isscalar(by) else np.zeros(len(classes), np.bool_)
        if np.any(matches):
            return np.asarray(matches, np.float64)
        if not (isinstance(by, str) and by in ("mean", "thompson")):
            raise InputError(f"by={by!r} is not a label: expected 'mean', 'thompson' or one of {classes.tolist()}.")
        if by == "thompson" and not self.record_.is_posterior:
            raise InputError("by='thompson' needs posterior draws: expected a model fitted with solver='gibbs'.")
        if classes.dtype.kind in "biuf" or self._ordered:
            return numeric_values(classes)
        if len(classes) == 2:
            return np.array([0.0, 1.0])
        raise InputError(
            f"by={by!r} is for labels with an order, and these have none: expected the label to rank by, one of "
            f"{classes.tolist()}."
        )

    def _relation_code(self, relation: Any) -> int:
        relations = self.record_.known.relations
        if relations is None:
            if relation is not None:
                raise InputError(f"relation={relation!r} was given, but the model has only one relation: omit it.")
            return 0
        code = -1 if relation is None else int(relations.encode(read_column([relation], "the relation"))[0])
        if code < 0:
            raise InputError(
                f"relation={relation!r} is not known to the model: expected one of {relations.ids[:10].to_pylist()}."
            )
        return code

    def _checked(self, y: Any) -> Any:
        """Require y; accept a column vector with a `DataConversionWarning`."""
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: expected one label per dyad."
            )
        if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected: its only column is used.",
                DataConversionWarning,
                stacklevel=caller_level(),
            )
        return y

    def decide(self, proba: Array) -> Array:
        """Code of the label to predict (n,): the most probable one."""
        return mode(proba)

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, row_features: Any = None, col_features: Any = None
    ) -> float:
        """Accuracy of `predict`, the share of labels predicted correctly."""
        predicted = self.predict(X, row_features=row_features, col_features=col_features)
        return accuracy(read_labels(y), predicted, sample_weight)

    # -------------------------------------------------------------------------------------------------- attributes

    @property
    def classes_(self) -> Array:
        """Labels (n_labels,): sorted, but ordered labels that are text come from lowest to highest."""
        return _read_only(self._record().known.classes)

    @property
    def row_ids_(self) -> Array:
        """Row ids, in the order of `row_factors_`."""
        return to_numpy(self._record().known.rows.ids.ids)

    @property
    def col_ids_(self) -> Array:
        """Column ids, in the order of `col_factors_`."""
        return to_numpy(self._record().known.cols.ids.ids)

    @property
    def row_factors_(self) -> Array:
        """Latent weights of the rows (n_rows, n_labels, rank), zero for the reference; see also `parts_`."""
        return self._factors("row_factors")

    @property
    def col_factors_(self) -> Array:
        """Latent weights of the columns (n_cols, n_labels, rank), like `row_factors_`."""
        return self._factors("col_factors")

    @property
    def parts_(self) -> dict[str, Array]:
        """All learnt parameters by name: biases, latent weights, and the weights of labels or relations.

        Labels are in the order of `classes_` without the reference, ids in that of `row_ids_` and `col_ids_`. Of a
        posterior, these, `row_factors_`, `col_factors_` and `embed` are those of the draw of highest posterior density.
        Weights of different draws cannot be averaged: latent columns may change places and signs from one to the next.
        """
        model = self._record().best_model
        return {name: _read_only(part) for name, part in model.layout.named(model.theta).items()}

    def _factors(self, name: str) -> Array:
        model = self._record().best_model
        if name not in model.layout.named(model.theta):
            raise AttributeError(
                f"This {type(self).__name__} has no {name}: expected one of its parts, {list(self.parts_)}."
            )
        return _read_only(model.factors(name))

    def embed(self, ids: Any, side: str = "row", label: Any = None, relation: Any = None) -> Array:
        """Embeddings (n, size) of ids: the inner product of a row's and a column's is the log-odds of a label.

        They are `log_odds`, biases and features included, so that an index of inner products finds what `recommend`
        would. Probabilities of a posterior are averaged over draws and have no such vectors: these are then of the
        draw of highest posterior density (see `parts_`), whose log-odds are close, and those of ids without labels are
        not averaged over the ids seen.

        `ids` : known ids, or one id. `side` : "row" or "col". `label` : by default the last of `classes_`.
        `relation` : for a model of several relations.
        """
        check_is_fitted(self)
        if side not in ("row", "col"):
            raise unknown_name("side", side, ("row", "col"))
        known = self.record_.known
        if known.feature_names("dyad"):
            raise InputError(
                f"The model has features of dyads ({', '.join(known.feature_names('dyad')[:3])}), which belong to no "
                "id: expected a model without them."
            )
        entities = known.rows if side == "row" else known.cols
        codes = self._known_codes(entities.ids, read_column(_listed(ids), "the column of ids"), "ids")
        code = len(self.classes_) - 1 if label is None else int(label_codes([label], self.classes_)[0])
        return self.record_.best_model.vectors(codes, side, code, self._relation_code(relation))

    @property
    def n_parameters_(self) -> int:
        """Number of learnt parameters; for a posterior, of one draw."""
        return self._record().n_parameters()

    def _record(self) -> Record:
        try:
            return self.__dict__["record_"]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"This {type(self).__name__} is not fitted yet: call fit first.") from None

    # ------------------------------------------------------------------------------------------------- model file

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `dyads.load` reads."""
        check_is_fitted(self)
        if "_structures" not in vars(type(self)):
            raise InputError(
                f"{type(self).__name__} is not an estimator of dyads, so dyads.load could not read its file. Save an "
                "estimator of dyads instead."
            )
        # A model may be used on another machine than the one it was fitted on, so the engine is not saved.
        parameters = {name: to_json(value) for name, value in self.get_params(deep=False).items() if name != "engine"}
        fit = {name: getattr(self, name) for name in SAVED | (SAVED_DIAGNOSTICS if self.record_.is_posterior else {})}
        artifact.write(path, self.record_, {"estimator": type(self).__name__, "parameters": parameters, "fit": fit})


def returned_table(model: Any, columns: Mapping[str, Any], argument: Any) -> Any:
    """A table of the library of `set_output`; else of the model's fit; else of an argument of the call."""
    chosen = getattr(model, "_output", None) or getattr(model, "library_", None)
    return table_of(columns, chosen or library_of(argument))


def _ranked(record: Record, asked: pa.Array, best: Best, relation: int, turned: bool) -> dict[str, Any]:
    """Columns of a table of recommendations: ids under their own names, rank and value. `asked` : ids asked for."""
    known = record.known
    own, others = (
        asked.take(pa.array(best.row)),
        (known.rows if turned else known.cols).ids.ids.take(pa.array(best.col)),
    )
    ids = [others, own] if turned else [own, others]
    if known.relations is not None:
        ids.append(known.relations.ids.take(pa.array(np.full(len(best.col), relation))))
    names = _beside([vocabulary.name for vocabulary in known.vocabularies], RANKED)
    return {**dict(zip(names, ids, strict=True)), "rank": best.rank, "value": best.value}


def _listed(ids: Any) -> Any:
    """Several ids as they are, or a list of a single one."""
    return [ids] if isinstance(ids, str | bytes) or not hasattr(ids, "__len__") else ids


def _check_n(n: Any) -> None:
    if not isinstance(n, numbers.Integral) or n < 1:
        raise InputError(f"Got n={n!r}: expected a whole number, at least 1.")


def _beside(names: list[str], others: tuple[str, ...]) -> list[str]:
    """Names of id columns, with the prefix "id_" for those that clash with `others`."""
    distinct: list[str] = []
    for name in names:
        prefixed = name
        while prefixed in others or (prefixed != name and prefixed in (*names, *distinct)):
            prefixed = f"id_{prefixed}"
        distinct.append(prefixed)
    return distinct


def _read_only(array: Array) -> Array:
    """Return a read-only view, so that the model cannot be changed by accident."""
    view = array.view()
    view.flags.writeable = False
    return view
