"""The estimators: each names a choice of structure, loss, penalty and solver, and holds no numerics."""

import os
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dyads.data.codes import numeric_values, read_labels, to_numpy, values_of
from dyads.data.observations import Observations
from dyads.errors import InputError
from dyads.estimators.lfl import LFL
from dyads.estimators.predictor import SAVED
from dyads.estimators.settings import from_json
from dyads.metrics import mean_absolute_error
from dyads.trained import artifact

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

        sum_i w_i loss(y_i, p(. | r_i, c_i)) + 1/2 sum_r s_r (l2.row |A_r|^2 + l2.bias |alpha_r|^2) + same of columns
        + 1/2 l2.side |w|^2

    where s_r = 1, n_r^(-1/2) or n_r as `L2.scaling` says, n_r being the summed weight of the row's dyads. The label
    bias is not penalised. After a fit the biases are centred by counts, so that an average row has none.

    Parameters that take a part (`features`, `l2`, `solver`, `engine`) take a settings object, and most of them a name
    or a number in its place. Searches reach into it: ``solver__max_iter``, ``l2__bias``. A setting that would have no
    effect on the model is refused.

    Parameters
    ----------
    rank : int, default 5
        Latent weights per row, column and label; 0 is the log-linear model of row and column biases alone.
    loss : "log" or "brier", default "log"
        What is minimised; both are proper, so that probabilities are calibrated. `LFLOrdinal` has "absolute", "squared"
        and "hinge" too.
    structure : "bilinear" (default) or "stereotype"
        How latent weights make scores: a set of its own for every label, or `n_terms` sets shared by all labels, each
        with a weight phi of every label.
    n_terms : int, default None
        Sets of shared latent weights of the structure "stereotype" (1 if None; no more than there are labels), and of
        mixtures of relations (3 if None).
    reference : label, None or "auto", default "auto"
        The label whose weights are zero; None gives every label weights. "auto" is the first of two labels, and none of
        three or more.
    bias : bool, default True
        Whether rows and columns have biases; the label bias is always there.
    id_columns : names of columns, default the first two of X
        The columns of row ids and of column ids. Further columns of X are features of the dyads.
    features : `dyads.SideInformation`, default None
        Features of rows and columns, and how they are used.
    l2 : float or `dyads.L2`, default None
        Strength of the penalty on latent weights, or all strengths as an object; None is its defaults.
    solver : "auto", "lbfgs", "sgd", "newton", "gibbs", or an object such as ``dyads.SGD(max_iter=20)``, default "auto"
        How the model is fitted. "auto" is L-BFGS up to 50,000 dyads and SGD above; these and "newton" minimise the same
        objective. "gibbs" draws from the posterior under the log loss: better probabilities, at a price in time.
    n_init : int, default 1
        Random restarts; the one of least objective is kept.
    n_models : int, default 1
        Models from other random starts whose probabilities are averaged: better ones, at a price in time and memory.
        `row_factors_`, `parts_`, `embed` and the trace are those of the first.
    early_stopping : float, default None
        Share of the dyads to hold out: stop when their loss has not fallen for three iterations, and keep the best
        iterate. The held-out dyads are not trained on: with a good `l2` this costs accuracy. Of "gibbs" it is the loss
        of averaged probabilities, and thirty sweeps.
    unknown : "prior", "mean", "raise" or "nan", default "prior"
        What an id is at predict of which neither labels nor features are known. "prior": it may be any row (column), so
        probabilities are averaged over what rows of the training data are like. "mean": the mean of the predictions for
        the other id in training, which is the paper's baseline. "raise": an error. "nan": NaN probabilities.
    engine : "cpu" or `dyads.CPU`, default "cpu"
        Where sums over dyads are computed; the result does not depend on the number of threads.
    random_state : int, RandomState or None, default None
        Seed of everything random.
    verbose : int, default 0
        Above 0, each iteration is logged to the logger "dyads" (to standard error if logging is not set up).
    warm_start : bool, default False
        Start from the last fit; ids it did not know start at random.

    Attributes
    ----------
    classes_ : labels, sorted
    row_ids_, col_ids_ : ids, in order of first appearance; those known by features alone last
    row_factors_, col_factors_ : (n, n_labels, rank) latent weights; (n, n_terms, rank) where labels share them
    parts_ : dict of all that was learnt: biases, latent weights, label or relation weights
    n_iter_, converged_, solver_ : how the fit went
    objective_ : its value where the solver stopped, before the biases are centred; of "gibbs" the mean over sweeps of
        minus the log-likelihood
    trace_ : dict of lists, one entry per iteration: init, iteration, objective, validation, seconds; of "gibbs" the
        chain, the sweep, and minus the log-likelihood after it
    diagnostics_ : dict, of "gibbs" alone: r_hat and effective_samples of watched predictions, burn_in, acceptance
    n_parameters_ : int
    record_ : the `Record` all of these are read from

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
        return self.predictions(X, row_features=row_features, col_features=col_features).mean

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean absolute error of `predict`: greater is better."""
        truth, predicted = (values_of(labels, self.classes_) for labels in (read_labels(y), self.predict(X)))
        return -mean_absolute_error(truth, predicted, sample_weight)

    def decide(self, proba: Array) -> Array:
        """The code of the label to predict (n,): the median, or the one nearest the mean, as the loss wants."""
        return self.record_.parts.loss.decide(proba, numeric_values(self.classes_))


class LFLLink(_Nominal):
    """Links between the nodes of one set: both columns of X hold ids of the same kind.

    `structure` is "symmetric" (default; one set of weights, sigma(A A^T)), "spectral" (sigma(A Lambda A^T) with a
    signed diagonal, which can also tell that like avoids like) or "directed" (weights as source, as target, and in
    both roles). Labels are usually 0 and 1, the first being the reference, but any nominal labels make typed links.

    With the first two a pair is undirected: it may be given once, in either order, (i, j) and (j, i) have exactly the
    same probabilities, and giving both orders with different labels is an error. Self-links are allowed. The other
    parameters are those of `LFLClassifier`; `L2.row` and `L2.col` are for the weights as source and as target.
    """

    _structures = ("symmetric", "spectral", "directed")


class LFLRelational(_Nominal):
    """Many relations: X has a row id, a column id and a relation; labels are two, usually 0 and 1.

        p(y = 1 | r, c, t) = sigma(gamma_t + alpha_r + beta_c + A_r Lambda^t B_c)

    Rows and columns have one set of weights for all relations; each relation t has a bias and a diagonal Lambda^t.
    `structure` is "relational" (default) or "mixture" (`n_terms` bilinear terms, each relation having a weight for each
    of them), which suit one id set as well as two, rows and columns having weights of their own; or, for undirected
    relations of one id set, "spectral" or "symmetric_mixture", with the same weights in both roles. `id_columns` may
    name the column of relations too, by default the next. The other parameters are those of `LFLClassifier`;
    `L2.shared` is the strength for the relations' own weights, by default `L2.latent`.
    """

    _structures = ("relational", "mixture", "spectral", "symmetric_mixture")

    def _check_observed(self, observed: Observations) -> None:
        super()._check_observed(observed)
        if len(observed.classes) != 2:
            raise InputError(
                f"LFLRelational got {len(observed.classes)} labels: expected two, such as 0 and 1, per relation."
            )

    _n_id_columns = 3

    @property
    def relation_ids_(self) -> Array:
        """The relations, in the order of `relation_similarity`."""
        return to_numpy(self._record().known.relations.ids)  # type: ignore[union-attr]

    def relation_similarity(self) -> Array:
        """Correlation, about zero, of each two relations' weights Lambda (n_relations, n_relations)."""
        check_is_fitted(self)
        return self.record_.models[0].relation_similarity()


ESTIMATORS = {kind.__name__: kind for kind in (LFLClassifier, LFLOrdinal, LFLLink, LFLRelational)}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` wrote; nothing in the file is executed.

    Its arrays stay mapped to the file: replace that by `save`, never in place.
    """
    record, about = artifact.read(path)
    try:
        parameters = {name: from_json(value) for name, value in about["parameters"].items()}
        model = ESTIMATORS[about["estimator"]](**parameters)
        for name in SAVED:
            setattr(model, name, about["fit"][name])
        if record.is_posterior:
            model.diagnostics_ = about["fit"]["diagnostics_"]
    except (KeyError, TypeError) as error:
        raise artifact.not_understood(path, error) from error
    model.record_ = record
    return model
