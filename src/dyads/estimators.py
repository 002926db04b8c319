"""The estimators: each names a choice of structure, loss, penalty and solver, and holds no numerics."""

import os
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dyads import artifact
from dyads.data.labels import numeric_values, read_labels, to_numpy, values_of
from dyads.data.observations import Observations
from dyads.errors import InputError
from dyads.lfl import LFL
from dyads.metrics import mean_absolute_error
from dyads.model.loss import LOSSES
from dyads.predictor import SAVED

Array = np.ndarray[Any, Any]


class _Nominal(LFL):
    """Estimators whose labels have no order."""

    def decision_function(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Log-odds (n, n_labels); for two labels those of the second, (n,)."""
        odds = self.log_odds(X, row_features=row_features, col_features=col_features)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds


class LFLClassifier(_Nominal):
    """Latent feature log-linear model for nominal or binary labels.

        p(y | r, c) ∝ exp(gamma_y + alpha_ry + beta_cy + sum_k A_ryk B_cyk + w_y . x_rc)

    with label, row and column biases, `rank` latent weights per row, column and label, and weights w of the features x
    of the row, the column and the dyad, if there are any; fitted by minimising

        sum_i w_i loss(y_i, p(. | r_i, c_i)) + 1/2 sum_r s_r (l2_row |A_r|^2 + l2_bias |alpha_r|^2) + same of columns
        + 1/2 l2_side |w|^2

    where s_r = 1, n_r^(-1/2) or n_r as `l2_scaling` says, n_r being the summed weight of the row's dyads. The label
    bias is not penalised. After a fit the biases are centred by counts, so that an average row has none.

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
    row, col : names of the columns that hold the row and the column ids, default the first two
        Further columns of X are features of the dyads.
    row_features, col_features : `dyads.Features`, or a table or pair (ids, sparse matrix) that makes one, default None
        Features by id; ids without labels are then known by them. `Features` is not copied when the estimator is.
    interactions : int, default 0
        Latent columns in which features have weights too: there the features of a row meet those of a column, and its
        latent weights, in products. 0 is the linear term alone, `rank` gives features what ids have.
    implicit : bool, default False
        Add to each row's features the set of columns it was seen with, 1 / sqrt(n) for each of the n, and to each
        column's that of its rows; `fit` takes further pairs, without labels, as ``seen``. Best with `interactions`.
    side_training : "joint", "after" or "frozen", default "joint"
        When the weights of features are learnt: with all others; after them, and then all together; or after, with all
        others frozen, as the paper found best.
    l2 : float, default 6.0
        Strength of the penalty: the precision of a Gaussian prior on a weight, in units of log-odds. The defaults suit
        ratings and votes; strong structure with little noise wants less (0.3 to 1): choose by cross-validation.
    l2_row, l2_col : float, default None
        Strengths for the latent weights of rows and of columns; None means `l2`.
    l2_bias : float or None, default 2.0
        Strength for row and column biases; None means `l2`.
    l2_side : float, default 30.0
        Strength for the weights of features.
    l2_shared : float, default None
        Strength, per dyad, that holds the labels' weights of shared latent weights near where they start; None is 0.1.
    l2_scaling : "none", "inverse_sqrt" or "count", default "none"
        "inverse_sqrt" penalises rarely seen rows and columns more, "count" is the same decay at every observation. The
        strengths mean other things then: choose them anew.
    solver : "auto", "lbfgs", "sgd", "newton" or "gibbs"
        "auto" is L-BFGS up to 50,000 dyads and SGD (AdaGrad) above. "newton" solves for one row, one column at a time:
        it ends nearest to a minimum. All these minimise the same objective. "gibbs" draws from the posterior, from a
        point estimate on, and averages probabilities over the draws: better ones, at a price in time. Its priors are
        learnt, so the penalties matter for where it starts alone; it is for the log loss.
    max_iter : int, default None
        Most iterations (L-BFGS, 500 if None), epochs (SGD, 100) or sweeps (Newton, 200); all sweeps of a chain (Gibbs,
        200), of which the first, before it has settled, are dropped.
    tol : float, default None
        Stop when an iteration lowers the objective by less than this share of it (L-BFGS and Newton 1e-6 if None),
        or three epochs in a row do, and three more at a lower rate (SGD 1e-3 if None).
    learning_rate : float, default None
        AdaGrad's rate; None is a rule that needs no tuning. The others have none.
    n_init : int, default 1
        Random restarts; the one of least objective is kept.
    n_models : int, default 1
        Models from other random starts whose probabilities are averaged: better ones, at a price in time and memory.
        `row_factors_`, `parts_`, `embed` and the trace are those of the first.
    n_chains : int, default 1
        Chains of "gibbs", from other point estimates; several can tell of several modes.
    draw_memory : float, default 256
        Mebibytes the kept draws of "gibbs" may take; they are thinned to fit, and to 512 (but two of each chain stay).
    early_stopping : bool, default False
        Hold out `validation_fraction` of the dyads, stop when their loss has not fallen for three iterations, and keep
        the best iterate. The held-out dyads are not trained on: with a good `l2` this costs accuracy. Of "gibbs" it is
        the loss of averaged probabilities, and thirty sweeps.
    validation_fraction : float, default 0.1
    unknown : "prior", "mean", "raise" or "nan", default "prior"
        What an id is at predict of which neither labels nor features are known. "prior": it may be any row (column), so
        probabilities are averaged over what rows of the training data are like. "mean": the mean of the predictions for
        the other id in training, which is the paper's baseline. "raise": an error. "nan": NaN probabilities.
    n_jobs : int, default -1
        Threads; -1 and None are all cores, or their share inside a joblib worker. The result does not depend on it.
    random_state : int, RandomState or None
    verbose : int, default 0
        Above 0, each iteration is logged to the logger "dyads" (to standard error if logging is not set up).
    warm_start : bool, default False
        Start from the last fit; ids it did not know start at random.

    Attributes
    ----------
    classes_ : labels, sorted
    row_ids_, col_ids_ : ids, in order of first appearance; those known by features alone last
    row_factors_, col_factors_ : (n, n_labels, rank) latent weights; (n, n_bases, rank) where labels share them
    parts_ : dict of all that was learnt: biases, latent weights, label or relation weights
    n_iter_, converged_, solver_ : how the fit went
    objective_ : its value where the solver stopped, before the biases are centred; of "gibbs" the mean over sweeps of
        minus the log-likelihood
    trace_ : dict of lists, one entry per iteration: init, iteration, objective, validation, seconds; of "gibbs" the
        chain, the sweep, and minus the log-likelihood after it
    diagnostics_ : dict, of "gibbs" alone: r_hat and effective_samples of watched predictions, burn_in, acceptance
    n_parameters_ : int
    fitted_ : the `Record` all of these are read from

    References
    ----------
    A. K. Menon and C. Elkan, "Dyadic prediction using a latent feature log-linear model", 2010.
    """

    _structures = ("bilinear", "stereotype")


class LFLOrdinal(LFL):
    """Latent feature log-linear model for ordered labels with numeric values, such as ratings.

    The parameters are those of `LFLClassifier`, but the default structure is "stereotype": the latent weights are
    shared by all labels, and each label weighs them by phi, which starts from the standardised label values (with two
    labels, or rank 0, it is "bilinear"). There are three more losses, which compare the label with the expected label
    E y: "absolute", |y - E y| (smoothed near zero, see `dyads.Absolute`), "squared", (y - E y)^2, and "hinge", the
    all-threshold hinge of maximum-margin matrix factorisation. These train the mean alone: their probabilities are not
    calibrated.

    Labels are numbers, whose distances count, or texts, which have the values 0, 1, ... in sorted order: map such as
    "low", "medium", "high" to numbers first.

    `predict` gives the median label for the losses "log" and "brier", and the label nearest the mean for the others;
    `predict_mean` gives the expected value. `score` is minus the mean absolute error of `predict`.
    """

    _structures = ("stereotype", "bilinear")
    _ordered = True

    def predict_mean(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Expected value of the label (n,)."""
        return self._proba(X, row_features, col_features) @ numeric_values(self.classes_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean absolute error of `predict`: greater is better."""
        truth, predicted = (values_of(labels, self.classes_) for labels in (read_labels(y), self.predict(X)))
        return -mean_absolute_error(truth, predicted, sample_weight)

    def decide(self, proba: Array) -> Array:
        """The code of the label to predict (n,): the median, or the one nearest the mean, as the loss wants."""
        return self.fitted_.parts.loss.decide(proba, numeric_values(self.classes_))


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

    def _check_observed(self, observed: Observations) -> None:
        super()._check_observed(observed)
        if len(observed.classes) != 2:
            raise InputError(
                f"LFLRelational got {len(observed.classes)} labels: expected two, such as 0 and 1, per relation."
            )

    @property
    def _id_columns(self) -> tuple[Any, ...]:
        return self.row, self.col, None

    @property
    def relation_ids_(self) -> Array:
        """The relations, in the order of `relation_similarity`."""
        return to_numpy(self._record().known.relations.ids)  # type: ignore[union-attr]

    def relation_similarity(self) -> Array:
        """Correlation, about zero, of each two relations' weights Lambda (n_relations, n_relations)."""
        check_is_fitted(self)
        return self.fitted_.models[0].relation_similarity()


ESTIMATORS = {kind.__name__: kind for kind in (LFLClassifier, LFLOrdinal, LFLLink, LFLRelational)}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` wrote; nothing in the file is executed.

    Its arrays stay mapped to the file: replace that by `save`, never in place.
    """
    record, about = artifact.read(path)
    try:
        parameters = dict(about["parameters"])
        if isinstance(parameters["loss"], dict):
            parameters["loss"] = artifact.spec_from_json(parameters["loss"], LOSSES)
        model = ESTIMATORS[about["estimator"]](**parameters)
        for name in SAVED:
            setattr(model, name, about["fit"][name])
        if record.is_posterior:
            model.diagnostics_ = about["fit"]["diagnostics_"]
    except (KeyError, TypeError) as error:
        raise artifact.not_understood(path, error) from error
    model.fitted_ = record
    return model
