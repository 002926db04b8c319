"""The public estimators. Each is a choice of structure, loss, penalty and solver, without numerics of its own."""

import os
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from dyads.data.archive import Contents
from dyads.data.codes import numeric_values, read_labels, to_numpy, values_of
from dyads.data.observations import Observations, read_weight, wanted_columns
from dyads.data.store import Pairs
from dyads.errors import InputError
from dyads.estimators.callbacks import report_end, reported, with_callbacks
from dyads.estimators.lfl import LFL
from dyads.estimators.predictor import SAVED, SAVED_DIAGNOSTICS
from dyads.estimators.search import read_data
from dyads.estimators.settings import from_json, solver_of
from dyads.estimators.stack import LEAST_LINKS, cross_fitted, stacked, weighed
from dyads.metrics import mean_absolute_error
from dyads.model.record import MOST_SEEN, Record
from dyads.model.structure import STRUCTURES
from dyads.trained import artifact

Array = np.ndarray[Any, Any]


class _Nominal(LFL):
    """Estimators whose labels have no order."""

    def decision_function(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Log-odds (n, n_labels); for two labels, log-odds (n,) of the second."""
        odds = self._log_odds(X, row_features, col_features)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds


class LFLClassifier(_Nominal):
    """Latent feature log-linear model for nominal or binary labels.

        p(y | r, c) ∝ exp(gamma_y + alpha_ry + beta_cy + sum_k A_ryk B_cyk + w_y . x_rc)

    with biases gamma of labels, alpha of rows and beta of columns, latent weights A (n_rows, n_labels, rank) and
    B (n_cols, n_labels, rank), and weights w of the features x of the row, the column and the dyad. It is fitted by
    minimising

        sum_i v_i loss(y_i, p(. | r_i, c_i)) + 1/2 sum_r s_r (l2.row |A_r|^2 + l2.bias |alpha_r|^2) + same for columns
        + 1/2 l2.side |w|^2

    where v_i are the sample weights, and s_r = 1, n_r^(-1/2) or n_r according to `L2.scaling`, with n_r the summed
    weight of the row's dyads. The label bias is not penalised. After a fit, the biases are centred with the counts as
    weights, so that an average row has none.

    The parameters `features`, `l2`, `solver` and `engine` take a settings object; `l2` also takes a number, and
    `solver` and `engine` a name. Fields of settings objects are nested parameters: ``solver__max_iter``, ``l2__bias``.
    A setting that would have no effect on the model raises an error.

    Parameters
    ----------
    rank : int, default None
        Number of latent weights per row, column and label: by default 5 if each of three or more labels has its own,
        and otherwise 10. With 0 the model has only biases and features.
    loss : "log" or "brier", default "log"
        Loss to minimise. Both are proper, so probabilities are calibrated. `LFLOrdinal` also has "absolute", "squared"
        and "hinge".
    structure : "bilinear" (default) or "stereotype"
        How latent weights make scores: "bilinear" has separate latent weights per label, "stereotype" has `n_terms`
        sets of latent weights shared by all labels, each with a weight phi per label.
    n_terms : int, default None
        Number of sets of shared latent weights: by default 1 for the structure "stereotype" and 3 for mixtures of
        relations. For "stereotype", at most the number of labels without the reference.
    reference : label, None or "auto", default "auto"
        Reference label, whose weights are fixed at zero: by default the first of two labels, and no label if there are
        three or more. With None every label has weights.
    order : list of labels, default None
        Labels that are text, from lowest to highest, for `LFLOrdinal`; on the command line, separated by commas.
    bias : bool, default True
        Whether rows and columns have biases. The label bias is always included.
    id_columns : names of columns, default the first two of X
        Names of the columns of row ids and of column ids. All other columns of X are features of the dyads.
    features : `dyads.SideInformation`, default None
        Features of rows and columns, and how they are used.
    l2 : float or `dyads.L2`, default None
        Strength of the penalty on latent weights of a point estimate. An object ``dyads.L2(...)`` sets all strengths.
        None chooses those of latent weights and of biases by held-out log-loss, in a few fast fits to at most 100,000
        pairs; latent weights that do not beat rank 0 there vanish. ``record_.parts.strengths`` has those used.
    solver : str, or an object such as ``dyads.SGD(max_iter=20)``, default "auto"
        "auto" samples the posterior, like "gibbs", if that takes about a minute at most: up to 4 * 10^8 pairs (an id
        counts as 8) times (60 + w + w min(w, 64)), with w weights of a row. Above that, and where other settings ask
        for what only a point estimate has (`l2`, a loss that is no likelihood, `early_stopping`, `warm_start`,
        `n_init`, `n_models`, `population_weight`, side weights trained apart), it is "point": L-BFGS where that takes a
        second or two, and SGD above.
        "lbfgs", "sgd" and "newton" minimise the same objective. `LFLLink` and the searches by cross-validation are
        point estimates by default.
    n_init : int, default 1
        Number of random restarts of a point estimate, of which the one with the least objective is kept.
    n_models : int, default None
        Number of point estimates, from different random starts, whose log-odds are averaged. Their mean is one model,
        of `n_models` times the rank or, if labels share latent weights, times the terms. By default 1 or, of
        `LFLLink` and of fits with `population_weight`, 20, unless `solver` is other than "auto". Without a solver, each
        has few iterations. `trace_` is that of the first.
    early_stopping : float, default None
        Share of the dyads to hold out for early stopping, by default none. The fit stops when the held-out loss has not
        improved for three iterations, and keeps the best iterate. Held-out dyads are not trained on: with a good `l2`
        this costs accuracy. "gibbs" uses the held-out loss of averaged probabilities, and waits for thirty sweeps.
    unknown : "prior", "mean", "raise" or "nan", default "prior"
        How to predict for unknown ids, which have neither labels nor features. "prior": average the probabilities over
        the rows (columns) of the training data. "mean": take the mean of the training predictions of the other id, the
        paper's baseline. "raise": raise an error. "nan": return NaN.
    engine : "cpu", "cuda", "ray", `dyads.CPU`, `dyads.CUDA` or `dyads.Ray`, default "cpu"
        Engine that computes the sums over dyads: the processor, a GPU, or a Ray cluster for a `dyads.Store`. The result
        does not depend on the number of threads of a CPU.
    random_state : int, RandomState or None, default None
        Seed of all random numbers.
    verbose : int, default 0
        If above 0, log each iteration to the logger "dyads" (to standard error if logging is not configured).
    warm_start : bool, default False
        Whether `fit` starts from the last fit. Ids that are new to it start at random.

    Attributes
    ----------
    classes_ : labels, sorted; those of `LFLOrdinal` that are text come from lowest to highest
    library_ : dataframe library of X in the fit, in which tables are returned, such as "pandas"; None for others
    row_ids_, col_ids_ : ids, in order of first appearance; ids with features but no labels come last
    row_factors_, col_factors_ : (n, n_labels, rank) latent weights; (n, n_terms, rank) if labels share them
    parts_ : dict of all learnt parameters: biases, latent weights, label or relation weights
    n_iter_, converged_, solver_ : number of iterations, whether the fit converged, name of the solver
    objective_ : value of the objective where the solver stopped, before the biases are centred; for "gibbs", the mean
        negative log-likelihood after burn-in
    trace_ : dict of lists, one entry per iteration: init, iteration, objective, validation, seconds; for "gibbs", init
        is the chain, iteration the sweep, and objective the negative log-likelihood after it
    held_out_ : dict of the log-loss on the dyads that early stopping or cross-validation held out, by predictor:
        "model" (of several the first), and the marginals of the dyads trained on, as named by `marginals`; empty
        if none were held out
    diagnostics_ : dict, only for "gibbs": r_hat and effective_samples of monitored predictions, burn_in, acceptance,
        effective_per_second, and draws, the number kept from each chain
    n_parameters_ : number of learnt parameters
    structure_ : name of the structure
    trained_on_ : dict: label and weight, the names of these columns if they were series with a name; pairs, their
        number; version, of dyads; for a search also chosen, its parameters; after ``dyads fit`` also the dialect of
        its tables, and for an edge list negatives and rate
    record_ : the `Record` that all of these are read from

    References
    ----------
    A. K. Menon and C. Elkan, "Dyadic prediction using a latent feature log-linear model", 2010.
    """

    _structures = ("bilinear", "stereotype")
    _posterior_by_default = True


class LFLOrdinal(LFL):
    """Latent feature log-linear model for ordered labels with numeric values, such as ratings.

    The parameters are those of `LFLClassifier`, but the default structure is "stereotype",

        p(y | r, c) ∝ exp(gamma_y + alpha_ry + beta_cy + phi_y sum_k A_rk B_ck + w_y . x_rc)

    with latent weights A (n_rows, rank) and B (n_cols, rank) shared by all labels, and a weight phi_y per label, which
    starts from the standardised label values. (With two labels, or rank 0, the default is "bilinear".)

    There are three more losses, which depend on the expected label E y alone: "absolute", |y - E y| (smoothed near
    zero, see `dyads.Absolute`); "squared", (y - E y)^2; and "hinge", the all-threshold hinge of maximum-margin matrix
    factorisation. They train only the mean, so their probabilities are not calibrated.

    Labels are numbers, ordered by their values, or text, whose order must be given: as ``order=["low", "medium",
    "high"]``, or by y itself if it is an ordered categorical (of pandas with ``ordered=True``, an Enum of polars, or an
    Arrow dictionary array with ``ordered=True``). Text labels get the values 0, 1, ... in that order, which is also the
    order of `classes_`; labels of the order that do not occur in y are dropped. (scikit-learn's own metrics of
    probabilities, such as the scorer "neg_log_loss", expect sorted classes: with text labels use `dyads.metrics`.)

    `predict` returns the median label for the losses "log" and "brier", and the label nearest the mean for the others.
    `predict_mean` returns the expected value. `score` is the negative mean absolute error of `predict`.
    """

    _structures = ("stereotype", "bilinear")
    _posterior_by_default = True
    _ordered = True

    def predict_mean(self, X: Any, *, row_features: Any = None, col_features: Any = None) -> Array:
        """Expected value of the label (n,)."""
        return self.predictions(X, row_features=row_features, col_features=col_features).mean

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, row_features: Any = None, col_features: Any = None
    ) -> float:
        """Negative mean absolute error of `predict`; greater is better."""
        labels = self.predict(X, row_features=row_features, col_features=col_features)
        truth, predicted = (values_of(part, self.classes_) for part in (read_labels(y), labels))
        return -mean_absolute_error(truth, predicted, sample_weight)

    def decide(self, proba: Array) -> Array:
        """Code of the label to predict (n,): the median, or the label nearest the mean, depending on the loss."""
        return self.record_.parts.loss.decide(proba, numeric_values(self.classes_))


class LFLLink(_Nominal):
    """Link prediction between nodes: both columns of X contain ids of one set.

    `structure` is one of

    - "symmetric" (default): p = sigma(biases + A A^T), one set of latent weights A (n_nodes, rank);
    - "spectral": p = sigma(biases + A Lambda A^T), with a signed diagonal Lambda, which can also model heterophily;
    - "directed": separate latent weights as source, as target, and in both roles.

    Labels are usually 0 and 1, of which the first is the reference, but any nominal labels (typed links) work.

    "symmetric" and "spectral" are undirected: (i, j) and (j, i) have exactly the same probabilities. Give a pair once,
    in either order; both orders with different labels raise an error. Self-links are allowed. The other parameters are
    those of `LFLClassifier`; `L2.row` and `L2.col` are the strengths for the weights as source and as target.
    """

    _structures = ("symmetric", "spectral", "directed")
    _finds_links = True
    _averages_models = True


class LFLLinkWalk(LFLLink):
    """`LFLLink` stacked with the random walk with restart on the graph of training links.

        p(link) = sigma(constant + u s_ij + w . x_ij)

    with the log-odds s of an `LFLLink`, and x the standardised logs of how often walks from one node visit the other,
    and of the numbers of links of both. The weights u and w are learnt by logistic regression on training pairs that
    neither part has seen (five folds), so a fit takes six times that of `LFLLink`. It ranks links better than either
    part wherever paths tell something that latent weights do not.

    The stack is one model, with the walk as a feature of dyads that it computes by itself: it is saved, explained and
    folded into like any other. For two labels, undirected or directed (the walk takes no notice of direction), without
    other features of dyads. The parameters are those of `LFLLink`; it is a point estimate.
    """

    _structures = LFLLink._structures

    @with_callbacks
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        seen: Any = None,
        callback: Any = None,
        checkpoint: Any = None,
        population_weight: Any = None,
    ) -> Self:
        """Fit the parts and their weights; the parameters are those of `LFLLink.fit`.

        The link model is fitted six times: to all pairs, and to all but each of five folds. The checkpoint keeps the
        first of these fits alone. Ctrl-C leaves no model, since the parts are weighed at the end.
        """
        solver = solver_of(self.solver)
        if isinstance(X, Pairs):
            raise InputError("LFLLinkWalk got a store: expected a table. Use LFLLink, or read the table whole.")
        if self.warm_start or (solver is not None and solver.samples):
            raise InputError("LFLLinkWalk got warm_start=True or a sampler: expected a point estimate. Use LFLLink.")
        plain = LFLLink().set_params(**self.get_params(deep=False))
        observed = plain._read(X, y, sample_weight)
        n_links = int((observed.dyads.label > 0).sum())
        n_others = len(observed.dyads) - n_links
        is_enough = min(n_links, n_others) >= LEAST_LINKS and n_links <= MOST_SEEN
        if observed.encoders.dyad is not None or len(observed.classes) != 2 or not is_enough:
            raise InputError(
                f"LFLLinkWalk got {len(observed.classes)} labels, {n_links:,} links, {n_others:,} non-links and the "
                f"columns {observed.columns}: expected two labels, two columns of ids, {LEAST_LINKS} links to 2^25 and "
                f"at least {LEAST_LINKS} non-links. Use LFLLink."
            )
        population = read_weight(population_weight, "population_weight")
        with reported(self, X, y, None, callback) as report:
            model = clone(plain).fit(X, y, sample_weight, seen, report, checkpoint, population_weight)
            folds = plain.set_params(unknown="prior")
            scored = cross_fitted(folds, read_data(X, y, sample_weight), population, report)
        dyads = model._read_more(model.record_, X, y, sample_weight).dyads
        for name, value in vars(model).items():
            if name.endswith("_"):
                setattr(self, name, value)
        self.record_ = stacked(model.record_, *weighed(*scored), dyads, self._engine)
        report_end(self, X, y)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Refuse: the weights of the parts need all pairs at once."""
        raise InputError("LFLLinkWalk has no partial_fit: its weights need all pairs at once. Use fit, or LFLLink.")


class LFLRelational(_Nominal):
    """Multi-relational model: X has a row id, a column id and a relation; there are two labels, usually 0 and 1.

        p(y = 1 | r, c, t) = sigma(gamma_t + alpha_r + beta_c + A_r Lambda^t B_c)

    All relations share the latent weights A (n_rows, rank) and B (n_cols, rank). Each relation t has a bias gamma_t and
    a diagonal Lambda^t. `structure` is one of

    - "relational" (default): the formula above;
    - "mixture": `n_terms` bilinear terms, with a weight per relation and term;
    - "spectral", "symmetric_mixture": the same for undirected relations of one id set, with B = A.

    The first two have separate weights of rows and columns, and suit one id set as well as two. `id_columns` may also
    name the column of relations, by default the next one. The rank is by default 20, or 10 of mixtures. The other
    parameters are those of `LFLClassifier`; `L2.shared` is the strength for the weights of relations, by default
    `L2.latent`.
    """

    _structures = ("relational", "mixture", "spectral", "symmetric_mixture")
    _posterior_by_default = True
    _finds_links = True

    def _check_observed(self, observed: Observations) -> None:
        super()._check_observed(observed)
        if len(observed.classes) != 2:
            raise InputError(f"LFLRelational got {len(observed.classes)} labels: expected two, such as 0 and 1.")

    _n_id_columns = 3

    @property
    def relation_ids_(self) -> Array:
        """Relation ids, in the order of `relation_similarity`."""
        return to_numpy(self._record().known.relations.ids)  # type: ignore[union-attr]

    def relation_similarity(self) -> Array:
        """Cosine similarity of the weights Lambda of each two relations (n_relations, n_relations).

        Of a posterior, its mean over the draws.
        """
        check_is_fitted(self)
        return np.asarray(np.mean([model.relation_similarity() for model in self.record_.models], axis=0))


ESTIMATORS = {kind.__name__: kind for kind in (LFLClassifier, LFLOrdinal, LFLLink, LFLLinkWalk, LFLRelational)}


def load(path: str | os.PathLike[str], *, mapped: bool = False) -> Any:
    """Read a model written by `save`. Nothing in the file is executed, and the file is not needed afterwards.

    With ``mapped=True`` the arrays stay in the file and are shared by all processes that map it, as those of `dyads
    serve` do. The file must then stay as it is while the model is used: if it is cut, the process ends.

    A file that `save` could not have written raises a `ModelFileError` that names what is wrong. The checksums in a
    file detect damage; they do not tell who wrote it.
    """
    record, contents = artifact.read(path, mapped=mapped)
    about = contents.typed("about", contents.field("about"), dict, "an object")
    try:
        kind = ESTIMATORS[about["estimator"]]
        model = kind(**{name: from_json(value) for name, value in about["parameters"].items()})
        model.check_params()
        wanted_columns(model.id_columns, kind._n_id_columns)
    except (InputError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise artifact.unsupported(contents, f"parameters ({type(error).__name__}: {reason})") from error
    _check_kind(contents, kind, record, model)
    fit = contents.typed("about (fit)", about.get("fit"), dict, "an object")
    for name, is_valid in (SAVED | (SAVED_DIAGNOSTICS if record.is_posterior else {})).items():
        if name not in fit or not is_valid(fit[name]):
            raise contents.wrong(f"about (fit, {name})", "a value that a fit leaves")
        setattr(model, name, fit[name])
    ids = [vocabulary.name for vocabulary in record.known.vocabularies]
    encoder = record.known.dyad_encoder
    further = [] if encoder is None else [column.name for column in encoder.columns]
    if sorted(fit["columns_"]) != sorted({*ids, *further}) or fit["n_features_in_"] != len(fit["columns_"]):
        raise contents.wrong("about (fit, columns_)", f"the columns {[*ids, *further]!r:.200}")
    if "chosen" in model.trained_on_ and "model" not in model.held_out_:
        raise contents.wrong("about (fit, held_out_)", "the log-loss of the search")
    model.record_ = record
    return model


def _check_kind(contents: Contents, kind: type[LFL], record: Record, model: LFL) -> None:
    """Raise unless an estimator of this kind, with the parameters of `model`, could have learnt the record."""
    structure = record.parts.structure
    if (type(structure), structure.one_set) not in [STRUCTURES[name] for name in kind._structures]:
        raise contents.wrong("structure", f"one of {kind.__name__}, {', '.join(kind._structures)}")
    if (record.known.relations is not None) != (kind._n_id_columns == 3):
        raise contents.wrong("relation", f"as for {kind.__name__}")
    if record.parts.loss.ordered and not kind._ordered:
        raise contents.wrong("loss", f"as for {kind.__name__}")
    # The mean of n models has n times the rank.
    if model.rank is not None and not (record.parts.rank % model.rank == 0 if model.rank else record.parts.rank == 0):
        raise contents.wrong("about (parameters, rank)", f"{record.parts.rank}, that of one or of all models")
    if (record.known.walk is not None) != (kind is LFLLinkWalk):
        raise contents.wrong("walk", f"as for {kind.__name__}")
    if model.unknown == "mean" and record.draws[0].prediction is None:
        raise contents.wrong("0.prediction", "the mean predictions, which unknown='mean' needs")
