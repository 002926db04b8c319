"""Training of the LFL estimators: parameters and tables -> a `Record`, without numerics of its own."""

import logging
import numbers
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from dyads import __version__
from dyads.data.codes import numeric_values, text_order
from dyads.data.dyads import Counts, Dyads, LabelCounts, Seen
from dyads.data.features import Features, SideInformation
from dyads.data.observations import (
    Observations,
    SideTables,
    check_undirected,
    read_more,
    read_observations,
    read_weight,
    refuse_labels_beside,
    stored_observations,
    wanted_columns,
)
from dyads.data.store import Pairs
from dyads.data.tables import column_name, library_of
from dyads.engine import Engine, Problem
from dyads.errors import (
    DivergenceError,
    InputError,
    NotConvergedWarning,
    UnknownIdError,
    VanishedWarning,
    WeightWarning,
    caller_level,
    unknown_name,
)
from dyads.estimators.callbacks import CallbackSupportMixin, report_end, reported, with_callbacks
from dyads.estimators.predictor import Predictor
from dyads.estimators.search import chosen_l2, read_data
from dyads.estimators.settings import (
    asks_for_point,
    check_choices,
    check_memory,
    features_of,
    l2_of,
    random_state_of,
    solver_of,
)
from dyads.learn.checkpoint import FitState, check_seed, fingerprint_of
from dyads.learn.sampling import can_sample, sample
from dyads.learn.training import (
    TRACED,
    Callback,
    FitRun,
    Learned,
    Progress,
    Restart,
    point_solver,
    resume,
    train_models,
)
from dyads.metrics import log_loss
from dyads.model.loss import LOSSES, Loss
from dyads.model.objective import L2, Objective
from dyads.model.parameters import Layout, label_log_odds
from dyads.model.record import Draw, Entities, Known, Model, Parts, Record, averaged
from dyads.model.structure import (
    STRUCTURES,
    Bilinear,
    Diagonal,
    Directed,
    Stereotype,
    build,
    is_undirected,
    without_reference,
)
from dyads.solve import LBFGS, SGD, Gibbs, Newton
from dyads.trained.coldstart import (
    fold_in,
    posterior_draws,
    refuse_featureless,
    supposed,
    targets,
    with_mean_predictions,
    with_more,
    with_spread,
)

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

RANK, RANK_BY_LABEL, RANK_OF_RELATIONS = 10, 5, 20
"""Default ranks: in general, of structures in which each of three or more labels has latent weights of its own, and of
several relations that share all latent weights.

Chosen by log-loss on held-out training dyads: Coat, ML-100K (10); Alyawarra, synthetic data (5); Nations and the terms
of Alyawarra as relations (20: 0.177 and 0.044; 10: 0.189 and 0.051).
"""

VANISHED = 1e-2
"""Root mean square below which latent weights count as zero: their products, about 1e-4, barely change log-odds."""


MODELS_OF_LINKS = 20
"""Default of `n_models` for links. More rank little better: the mean of 20 on the co-authors has an AUC of 0.92."""

SHORT = {LBFGS: 30, SGD: 10}
"""Iterations of each of several models whose log-odds are averaged: their mean is as good as that of longer fits."""


FURTHER_SWEEPS = 50
"""Sweeps by which `partial_fit` goes on with a posterior: it starts from a draw, and needs little burn-in."""


class LFL(CallbackSupportMixin, Predictor):
    """Training methods of all estimators, which produce a `Record`; `Predictor` has the methods that use it.

    `_structures` names the structures of an estimator, the default first.
    """

    _structures: tuple[str, ...]

    def __init__(
        self,
        rank: int | None = None,
        *,
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
        self.rank = rank
        self.loss = loss
        self.structure = structure
        self.n_terms = n_terms
        self.reference = reference
        self.order = order
        self.bias = bias
        self.id_columns = id_columns
        self.features = features
        self.l2 = l2
        self.solver = solver
        self.n_init = n_init
        self.n_models = n_models
        self.early_stopping = early_stopping
        self.unknown = unknown
        self.engine = engine
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    # ---------------------------------------------------------------------------------------------------- fitting

    @with_callbacks
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        seen: Any = None,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        population_weight: Any = None,
    ) -> Self:
        """Fit the model to labelled dyads.

        Parameters
        ----------
        X : table of n dyads, or a `dyads.Store`
            Row ids and column ids, as a pandas, polars or Arrow table, a NumPy array, a dict of columns or a list of
            pairs. Further columns are features of the dyads.
        y : (n,) labels; none for a store, which holds them
        sample_weight : (n,) nonnegative weights, default all one
            A dyad of weight two counts as two dyads, and one of weight zero as none. A posterior warns of weights that
            are not counts.
        seen : table of pairs without labels, default None
            Further pairs (row id, column id) that were observed together, for models with ``implicit=True``.
        callback : callable, default None
            Called with a `dyads.learn.training.Progress` after each iteration. Returning True stops the fit. So does
            Ctrl-C: the model is then what it was after the last iteration, and the interrupt is raised. Beside it,
            `set_callbacks` takes scikit-learn's callbacks, from its version 1.9 on; for a progress bar, see
            `dyads.progress_bar`.
        checkpoint : path, default None
            A file that the state of the fit is written to every minute, when it is interrupted, and at the end. If it
            exists, a fit of the same model to the same data resumes from it, and the result is that of an uninterrupted
            fit, bit for bit. It keeps the seed it started with: another `random_state` is refused. Chains with more
            than `sweeps` sweeps are kept as they are, with a warning. L-BFGS then begins afresh every 50 iterations,
            interrupted or not, since its own state cannot be saved.
        population_weight : (n,) positive numbers, default all one
            Number of dyads that each dyad stands for, if labels were sampled at different rates, such as non-links by
            `dyads.pairs_from_positives`. The model is trained on the dyads as they are, and then its label bias is
            corrected: probabilities are those of the population. All dyads of a label (and relation) have the same.
        """
        self.check_params()
        observed = self._read(X, y, sample_weight, seen)
        population, correction = _population(observed, population_weight, sample_weight)
        parts, known = self._untrained(observed)
        if population_weight is not None and len(known.classes) == 2:
            known = replace(known, only_links=True)
        known = known.having_seen(observed.dyads)
        objective = parts.objective(known)
        n_models = self._n_models(is_sampled=correction is not None)
        solver = self._solver_for(objective, len(observed.dyads), n_models, is_sampled=correction is not None)
        self._engine.check(objective, observed.dyads, solver.descends)
        if checkpoint is not None and self.warm_start:
            raise InputError("Got checkpoint and warm_start=True: expected one of them. Omit one.")
        settings = (
            solver, self.n_init, self.early_stopping, n_models, parts.strengths, parts.scaling, parts.rank,
            features_of(self.features).training,
        )  # fmt: skip
        values = numeric_values(observed.classes) if self._ordered else None
        state = FitState.none()
        if checkpoint is not None and not solver.samples:
            fingerprint = fingerprint_of(objective, observed.dyads, settings, values)
            state = FitState(checkpoint, fingerprint, objective.layout.size)
        kept = state.load("settings")
        if self.l2 is None and not solver.samples:
            strengths = kept.get("strengths") or self._chosen_strengths(parts, X, y, sample_weight, observed)
            parts = replace(parts, strengths=strengths)
            objective = parts.objective(known)
        before = None
        if self.warm_start and hasattr(self, "record_"):
            before = self.record_.models[-1] if self.record_.is_posterior else self.record_.best_model
        rng, seed_is_given = random_state_of(self.random_state), isinstance(self.random_state, numbers.Integral)
        seeds = [int(rng.randint(2**31 - 1)) for _ in range(n_models)]
        if kept and seed_is_given:
            check_seed(checkpoint, kept["seeds"], seeds)
        seeds = kept.get("seeds", seeds)
        state.save("settings", {"seeds": seeds, "strengths": parts.strengths})
        n_stages = 1 if features_of(self.features).training == "joint" else 2
        planned = None if solver.planned is None else solver.planned * self.n_init * n_models * n_stages
        with reported(self, X, y, planned, callback) as report, _logged(self.verbose, report) as monitored:
            run = FitRun(
                engine=self._engine,
                seed=seeds[0],
                values=values,
                n_init=self.n_init,
                validation_fraction=self.early_stopping,
                side_training=features_of(self.features).training,
                start=None if before is None else self._warm_start(before, parts, known),
                callback=monitored,
                seed_is_given=seed_is_given,
            )
            if solver.samples:
                _warn_of_weights(observed.dyads)
                first = sample(objective, observed.dyads, solver, run, checkpoint)
            else:
                first = train_models(objective, observed.dyads, solver, run, seeds, state)
        ends, interrupted, split = list(first.models) or [first.best], first.interrupted, run.split(observed.dyads)
        held_out = {}
        if self.early_stopping is not None:
            held_out = _held_out(self._recorded(parts, known, first, ends[:1], observed.dyads), *split, self._engine)
        if correction is not None:
            known = replace(known, label_counts=LabelCounts.of(population))
            first, ends = _corrected(parts.layout(known), first, ends, correction)
        self.record_ = self._recorded(parts, known, first, ends, population)
        self.columns_ = observed.columns
        self.library_ = None if isinstance(X, Pairs) else library_of(X)
        self.n_features_in_ = len(observed.columns)
        self.held_out_ = held_out
        self.trained_on_ = _origin(y, sample_weight, len(observed.dyads))
        if isinstance(X, Pairs):
            self.trained_on_ |= {"label": X.columns["label"], "weight": X.columns.get("weight")}
        if correction is not None:
            self.trained_on_["sampled"] = True
        is_short = solver_of(self.solver) is None and n_models > 1
        self._keep_course(first, ends, is_short)
        report_end(self, X, y)
        self._tell_end(ends, interrupted, is_short)
        return self

    def _keep_course(self, first: Learned, ends: list[Restart], is_short: bool) -> None:
        """Keep how the fit went, in attributes; `is_short` : whether its fits are meant to stop early."""
        best = ends[0]
        self.n_iter_, self.objective_, self.solver_ = best.n_iter, best.objective, best.solver
        self.converged_ = all(
            end.ended in ("tolerance", "schedule") or (is_short and end.ended == "limit") for end in ends
        )
        self.trace_ = {name: [getattr(step, name) for step in first.trace] for name in TRACED}
        self.__dict__.pop("diagnostics_", None)
        if first.diagnostics is not None:
            self.diagnostics_ = {name: np.asarray(part).tolist() for name, part in first.diagnostics._asdict().items()}

    def _tell_end(self, ends: list[Restart], interrupted: bool, is_short: bool) -> None:
        """Raise or warn if the fit diverged, lost its latent weights, was interrupted or did not converge."""
        diverged = next((end.diverged for end in ends if end.diverged is not None), None)
        if diverged is not None:
            raise DivergenceError(
                f"The fit diverged: the objective is not finite {diverged}. The model keeps its last finite state."
            )
        if self._vanished and self.l2 is not None:
            warnings.warn(
                f"All latent weights are near zero: the penalty l2={self.l2} is too "
                "strong for these data, and the model equals rank 0. Lower l2, or choose it by cross-validation.",
                VanishedWarning,
                stacklevel=caller_level(),
            )
        if interrupted:
            raise KeyboardInterrupt(f"Stopped after {self.n_iter_} iterations: the model is what it was then.")
        warning = next((end.warning for end in ends if end.warning is not None), None)
        if warning is not None and not is_short:
            warnings.warn(warning, NotConvergedWarning, stacklevel=caller_level())

    @property
    def _vanished(self) -> bool:
        """Whether the latent weights of a point estimate are near zero."""
        is_point = self.record_.parts.rank > 0 and not self.record_.is_posterior
        return is_point and self.record_.models[0].latent_size() < VANISHED

    def _recorded(self, parts: Parts, known: Known, learned: Learned, ends: list[Restart], dyads: Dyads) -> Record:
        """The record of a posterior, or of the mean of point estimates."""
        if learned.draws:
            states = [(state.theta, state.priors) for state in learned.draws]
            draws = posterior_draws(parts, known, states, dyads, self._engine)
        else:
            parts, known, theta = averaged(parts, known, [end.theta for end in ends])
            point = Model(parts=parts, known=known, draw=Draw.trained(parts, known, theta))
            draws = [with_spread(point, dyads, self._engine)]
        record = Record(parts=parts, known=known, draws=tuple(draws), best=learned.best_draw)
        if self.unknown == "mean":
            draws = [with_mean_predictions(model, dyads, self._engine) for model in record.models]
        return replace(record, draws=tuple(draws))

    def _solver_for(self, objective: Objective, n_dyads: int, n_models: int, is_sampled: bool) -> Any:
        """The solver named, or the one that the data ask for; `is_sampled` : whether labels were sampled."""
        solver = solver_of(self.solver)
        if solver is not None:
            return solver
        if n_models == 1 and not is_sampled and self._samples_by_default(objective, n_dyads):
            return Gibbs()
        solver = point_solver(objective, n_dyads)
        return solver if n_models == 1 else solver.replaced({"max_iter": SHORT[type(solver)]})

    _finds_links = False
    """Whether the second of two labels is a link, which a pair without one may get."""

    _averages_models = False
    """Whether log-odds of several models are averaged by default, which ranks rare links better."""

    def _n_models(self, is_sampled: bool) -> int:
        """The number of point estimates whose log-odds are averaged; `is_sampled` : whether labels were sampled."""
        if self.n_models is not None:
            return self.n_models
        alone = solver_of(self.solver) is not None or asks_for_point(self.solver) or self.warm_start or self.rank == 0
        return MODELS_OF_LINKS if (self._averages_models or is_sampled) and not alone else 1

    def _chosen_strengths(
        self, parts: Parts, X: Any, y: Any, sample_weight: Any, observed: Observations
    ) -> dict[str, float]:
        """Strengths of the penalty chosen from the data; those of the last fit for a warm start."""
        if self.warm_start and hasattr(self, "record_"):
            return self.record_.parts.strengths
        template = clone(self)
        template.__dict__.pop("_skl_callbacks", None)
        if self._ordered and self.order is None and y is not None:
            template.order = text_order(y)
        try:
            data = (X, None, None) if isinstance(X, Pairs) else read_data(X, y, sample_weight)
            l2 = chosen_l2(template, data, observed.dyads)
        except KeyboardInterrupt:
            # The interrupt of a candidate would speak of its own iterations.
            raise KeyboardInterrupt from None
        return l2.strengths(self._layout(observed, parts.rank), parts.rank, parts.bias)

    def _samples_by_default(self, objective: Objective, n_dyads: int) -> bool:
        """Whether to sample, as no solver is named: not if a setting asks for what only point estimates have."""
        point = (
            not self._posterior_by_default
            or asks_for_point(self.solver)
            or self.l2 is not None
            or self.early_stopping is not None
            or self.n_init > 1
            or self.warm_start
            or features_of(self.features).training != "joint"
        )
        return not point and can_sample(objective, n_dyads)

    def check_params(self) -> None:
        """Raise an error for invalid parameters; `fit` does so before it reads any data."""
        kinds = [LFL]
        for kind in kinds:
            kinds += kind.__subclasses__()
        offers = {kind.__name__: kind._structures for kind in kinds if "_structures" in vars(kind)}
        check_choices(self, self._structures, offers)

    def _untrained(self, observed: Observations) -> tuple[Parts, Known]:
        """The parts and the known entities of the record, before training."""
        dyads, rank = observed.dyads, self._rank(observed.classes)
        layout = self._layout(observed, rank)
        check_memory(layout, rank)
        one_set, encoders = layout.structure.one_set, observed.encoders
        counts = Counts.of(dyads, one_set)
        rows = Entities.of(observed.rows, counts.row, dyads.side.row, encoders.row)
        parts = Parts(
            structure=layout.structure,
            loss=self._loss(observed.classes),
            rank=rank,
            bias=bool(self.bias),
            interactions=layout.interactions,
            implicit=features_of(self.features).implicit,
            strengths=l2_of(self.l2).strengths(layout, rank, bool(self.bias)),
            scaling=l2_of(self.l2).scaling,
        )
        known = Known(
            classes=observed.classes,
            sets=(rows,) if one_set else (rows, Entities.of(observed.cols, counts.col, dyads.side.col, encoders.col)),
            col_name=observed.cols.name,
            relations=observed.relations,
            relation_counts=counts.relation,
            label_counts=LabelCounts.of(dyads),
            shared_centre=self._shared_centre(layout, dyads, observed.classes),
            dyad_encoder=encoders.dyad,
            seen=Seen.of(dyads.row[:0], dyads.col[:0], None if dyads.relation is None else dyads.relation[:0]),
            only_links=self._finds_links and len(observed.classes) == 2,
        )
        return parts, known

    def _read(self, X: Any, y: Any, sample_weight: Any, seen: Any = None, classes: Any = None) -> Observations:
        _, one_set = STRUCTURES[self._structure]
        settings = features_of(self.features)
        side = SideTables(_features(settings.row), _features(settings.col), settings.implicit, seen)
        wanted = wanted_columns(self.id_columns, self._n_id_columns)
        if isinstance(X, Pairs):
            refuse_labels_beside(y, sample_weight)
            if (X.relations is not None) != (self._n_id_columns == 3):
                raise InputError(
                    f"The store has {'no' if X.relations is None else 'a'} column of relations, and "
                    f"{type(self).__name__} needs {'one' if X.relations is None else 'none'}: make another store."
                )
            names = [ids.name for ids, _ in X.coded]
            if any(name not in (None, own) for name, own in zip(wanted, names, strict=True)):
                raise InputError(f"Got id_columns={self.id_columns!r}: expected those of the store, {names}, or None.")
            observed = stored_observations(
                X, one_set=one_set, side=side, classes=classes, ordered=self._ordered, order=self.order
            )
        else:
            observed = read_observations(
                X, self._checked(y), sample_weight, wanted, one_set=one_set, side=side, classes=classes,
                ordered=self._ordered, order=self.order,
            )  # fmt: skip
        if not any(observed.dyads.side.widths) and settings.training != "joint":
            raise InputError(
                f"SideInformation got training={settings.training!r}, but there are no features: expected row, col, "
                "implicit=True or further columns of X. Pass one of them, or omit training."
            )
        self._check_observed(observed)
        return observed

    def _check_observed(self, observed: Observations) -> None:
        """Raise an error for data that the estimator cannot be fitted to."""
        if is_undirected(*STRUCTURES[self._structure]):
            check_undirected(observed)

    _posterior_by_default = False
    """Whether ``solver="auto"`` samples the posterior, where it can and has the time."""

    _n_id_columns = 2
    """Number of id columns: row ids and column ids, and relations for a multi-relational estimator."""

    @property
    def _structure(self) -> str:
        """Name of the structure, by default the first of the estimator's."""
        return self._structures[0] if self.structure is None else self.structure

    @property
    def structure_(self) -> str:
        """Name of the structure of the fitted model."""
        structure = self._record().parts.structure
        return next(name for name in self._structures if STRUCTURES[name] == (type(structure), structure.one_set))

    def _rank(self, classes: Array) -> int:
        """The rank of the model; see `RANK`."""
        if self.rank is not None:
            return int(self.rank)
        kind = STRUCTURES[self._structure][0]
        if kind is Diagonal and self._n_id_columns == 3:
            return RANK_OF_RELATIONS
        return RANK_BY_LABEL if kind in (Bilinear, Directed) and len(classes) > 2 else RANK

    def _layout(self, seen: Observations, rank: int) -> Layout:
        n_labels, name = len(seen.classes), self._structure
        interactions, widths = features_of(self.features).interactions, seen.dyads.side.widths
        if interactions and not any(widths[:2]):
            raise InputError(
                f"SideInformation got interactions={interactions}, which is for features of rows and columns, but "
                "there are none: expected row, col or implicit=True. Pass one of them (also after dyads.load: the file "
                "does not contain the tables), or use interactions=0."
            )
        rank = max(rank, interactions)
        if self.structure is None and name == "stereotype" and (n_labels < 3 or rank == 0):
            name = "bilinear"
        kind, n_terms = STRUCTURES[name][0], self.n_terms
        if kind is Stereotype:
            n_terms = (1 if seen.relations is None else 3) if n_terms is None else int(n_terms)
            has_reference = self._reference_code(seen.classes) < n_labels
            most = n_labels - has_reference if seen.relations is None else np.inf
            if rank < 1 or n_terms > most or (n_labels < 3 and seen.relations is None):
                raise InputError(
                    f"Got structure={name!r}, rank={rank}, n_terms={n_terms} and {n_labels} labels: expected "
                    "a rank of at least 1, three or more labels, and at most as many terms as labels without the "
                    "reference. Use structure='bilinear'."
                )
        elif n_terms is not None:
            raise InputError(
                f"n_terms={n_terms!r} is for structure='stereotype' and for mixtures of relations, not for {name!r}: "
                "omit it."
            )
        reference = self._reference_code(seen.classes)
        # The weights of features add to the biases, so bias columns exist even if entities have no own biases.
        structure = build(name, n_labels, reference, bool(self.bias) or any(widths[:2]), rank, n_terms)
        return Layout(structure, len(seen.rows), len(seen.cols), seen.dyads.n_relations, widths, interactions)

    def _loss(self, classes: Array) -> Loss:
        loss = LOSSES[self.loss]() if isinstance(self.loss, str) else self.loss
        if loss.ordered and not self._ordered:
            raise InputError(f"loss={self.loss!r} needs ordered labels: use LFLOrdinal, or loss='log' or 'brier'.")
        return loss.bind(numeric_values(classes)) if self._ordered else loss

    def _shared_centre(self, layout: Layout, dyads: Dyads, classes: Array) -> Array:
        """Centre of the penalty on shared blocks (n_relations, shared size)."""
        theta = np.zeros(layout.size)
        named = layout.named(theta)
        if layout.n_relations > 1:
            named["label_bias"][:] = label_log_odds(layout.structure, dyads.label_counts)
        else:
            values = numeric_values(classes) if self._ordered else None
            for name, start in layout.structure.shared_start(1, values).items():
                named[name][:] = start
        return layout.blocks(theta).shared

    def _reference_code(self, classes: Array) -> int:
        """Code of the reference label, or the number of labels if there is none."""
        if isinstance(self.reference, str) and self.reference == "auto":
            return 0 if len(classes) == 2 else len(classes)
        if self.reference is None:
            return len(classes)
        codes = np.flatnonzero(classes == self.reference) if np.isscalar(self.reference) else np.zeros(0)
        if not len(codes):
            raise InputError(
                f"reference={self.reference!r} is not a label: expected None, 'auto' or one of {classes.tolist()}."
            )
        return int(codes[0])

    def _warm_start(self, old: Model, parts: Parts, known: Known) -> Any:
        same = ("structure", "rank", "bias", "interactions")
        if any(getattr(old.parts, name) != getattr(parts, name) for name in same) or not np.array_equal(
            old.known.classes, known.classes
        ):
            raise InputError(
                "warm_start=True needs the labels, structure, rank, reference, bias and interactions of the last fit, "
                "but they have changed. Fit a new estimator, or set warm_start=False."
            )

        def start(theta: Array) -> Array:
            return old.start_for(known, theta)

        return start

    def problem(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Problem, Array]:
        """Return the objective bound to the dyads of the fit, and the parameters theta at which the fit ended.

        Pass the table and the labels of the fit again. They certify a single point estimate, fitted without
        `population_weight`: at a minimum the gradient is zero::

            problem, theta = model.problem(X, y)
            with problem:
                value, gradient = problem.value_and_gradient(theta)
        """
        check_is_fitted(self)
        known, model = self.record_.known, self.record_.best_model
        more = self._read_more(self.record_, X, y, sample_weight)
        dyads = replace(more.dyads, side=known.side._replace(dyad=more.dyads.side.dyad))
        return self._engine.bind(self.record_.parts.objective(known), dyads), model.uncentred()

    # ------------------------------------------------------------------------------------------------ more labels

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Update the model with more labelled dyads; new ids are added.

        A point estimate makes one epoch of SGD over the further dyads. Earlier dyads are not needed again: the penalty
        on an entity is spread over all its labels so far. Of the solver's settings only the learning rate is used;
        `n_init` and `early_stopping` are for `fit`.

        A posterior goes on by a short chain from its last draw. It needs all dyads, the earlier and the further: X is
        the table or the store of the fit that has grown, and one that lacks labels of the fit is refused. The chain
        makes the solver's `sweeps`, by default 50, and its draws replace those before.

        The calibrator is kept; calibrate again after many more labels. The scores of `conformalize` are discarded,
        since they are valid for one model only.

        Parameters
        ----------
        X, y, sample_weight : labelled dyads, as for `fit`
        classes : all labels that will ever occur, for the first call; default those in y
        """
        self.check_params()
        named, record = solver_of(self.solver), self.__dict__.get("record_")
        if record is not None and self.trained_on_.get("sampled"):
            raise InputError(
                "partial_fit would undo the correction for sampled labels, as the model was fitted with "
                "population_weight. Use fit, with all pairs."
            )
        if record is not None and record.is_posterior:
            if asks_for_point(self.solver) or (named is not None and not named.samples):
                raise InputError(
                    f"partial_fit needs a point estimate, and there are {len(record.draws)} posterior draws: expected "
                    "a fit with solver='point', or solver='gibbs' to go on with the draws. Use fit."
                )
            return self._chain_on(record, named or Gibbs(), X, y, sample_weight)
        solver = named or SGD()
        for name, unsupported in (
            ("features", features_of(self.features).implicit),
            ("unknown", self.unknown == "mean"),
            ("n_models", (self.n_models or 1) > 1),
            ("solver", not isinstance(solver, SGD)),
        ):
            if unsupported:
                raise InputError(
                    f"partial_fit does not support {name}={getattr(self, name)!r}: expected SGD, one model, and no "
                    "setting that needs all dyads at once. Use fit."
                )
        if record is None:
            more = self._read(X, y, sample_weight, classes=classes)
            before, start, n_iter, trace = None, None, 0, {}
            parts, known = self._untrained(more)
            known = known.without_counts()
        else:
            more = self._read_more(record, X, y, sample_weight)
            if len(more.rows) > len(record.known.rows) or len(more.cols) > len(record.known.cols):
                # The feature tables may have grown since the fit.
                settings = features_of(self.features)
                record = self._with_features(settings.row, settings.col)
                more = self._read_more(record, X, y, sample_weight)
            (before,) = record.grown(more.rows, more.cols).models
            parts, known = before.parts, before.known
            refuse_featureless(record.known, known)
            start, n_iter, trace = before.uncentred(), self.n_iter_, self.trace_
        dyads = replace(more.dyads, side=known.side._replace(dyad=more.dyads.side.dyad))
        known = known.counted(dyads)
        seed = int(random_state_of(self.random_state).randint(2**31 - 1))
        run = FitRun(self._engine, seed, numeric_values(known.classes) if self._ordered else None)
        theta, progress = resume(parts.objective(known), dyads, known.counts, start, solver, n_iter, run)
        model = Model(parts=parts, known=known, draw=Draw.trained(parts, known, theta))
        draw = (
            with_spread(model, dyads, self._engine) if before is None else with_more(model, before, dyads, self._engine)
        )
        calibrator = None if record is None else record.calibrator
        self.record_ = Record(parts=parts, known=known, draws=(draw,), calibrator=calibrator)
        self.columns_, self.n_features_in_ = more.columns, len(more.columns)
        self.n_iter_, self.solver_, self.converged_ = n_iter + 1, "sgd", False
        self.objective_ = progress.objective
        if record is None:
            self.library_, self.trained_on_ = library_of(X), _origin(y, sample_weight, 0)
            if isinstance(X, Pairs):
                self.trained_on_ |= {"label": X.columns["label"], "weight": X.columns.get("weight")}
        self._count_pairs(len(dyads))
        self.trace_ = {name: [*trace.get(name, []), getattr(progress, name)] for name in TRACED}
        self.held_out_ = {}
        return self

    def _chain_on(self, record: Record, solver: Gibbs, X: Any, y: Any, sample_weight: Any) -> Self:
        """Go on with a posterior, by a short chain over all dyads; see `partial_fit`."""
        # Other noise than that of the chain so far.
        seed = (int(random_state_of(self.random_state).randint(2**31 - 1)) + self.n_iter_) % (2**31 - 1)
        short = solver.replaced({"sweeps": solver.sweeps or FURTHER_SWEEPS, "chains": 1})
        further = self._plain_copy().set_params(warm_start=True, solver=short, random_state=seed, early_stopping=None)
        _refuse_lost(record, further._read(X, y, sample_weight))
        further.record_ = record
        further.fit(X, y, sample_weight)
        n_iter = self.n_iter_
        self.__dict__.update({name: value for name, value in vars(further).items() if name.endswith("_")})
        self.record_ = replace(self.record_, calibrator=record.calibrator)
        self.n_iter_ += n_iter
        return self

    def _plain_copy(self) -> Any:
        """An estimator with the parameters of the fit, not fitted."""
        return clone(self)

    def fold_in(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        side: str | None = None,
        row_features: Any = None,
        col_features: Any = None,
    ) -> Self:
        """Fold in new rows and columns by their labels, all other parameters fixed. Changes and returns the model.

        Newton's method solves for the block of each new id given all others, which is a convex problem for the log
        loss. (In a posterior draw, the block is drawn from its conditional distribution.) Predictions for other ids do
        not change. To keep this model unchanged, fold into a copy: ``copy.copy(model).fold_in(X, y)``.

        Parameters
        ----------
        X, y, sample_weight : labelled dyads, as for `fit`
        side : None, "row" or "col"
            Which ids to solve for, by default all that have no labels in the model. "row" solves for every row of X,
            known or not, from the labels in y alone: pass *all* labels of a known row, old and new. "col" likewise.
        row_features, col_features : features of the new ids, if the model has features
        """
        if side not in (None, "row", "col"):
            raise InputError(f"Got side={side!r}: expected None, 'row' or 'col'.")
        check_is_fitted(self)
        record = self._with_features(row_features, col_features)
        new = self._read_more(record, X, y, sample_weight)
        grown, known = record.grown(new.rows, new.cols), record.known
        refuse_featureless(known, grown.known)
        rows, cols = targets(grown.known, new.dyads, (len(known.rows), len(known.cols)), side)
        # Dyads between two fixed ids carry no information about the others.
        dyads = new.dyads.take(np.isin(new.dyads.row, rows) | np.isin(new.dyads.col, cols))
        self.record_ = fold_in(grown, dyads, rows, cols, self._engine)
        self._count_pairs(len(dyads))
        return self

    def suppose(self, X: Any, y: Any, *, side: str = "row") -> Self:
        """What if: a copy of the model as it would be if one known row also had the labels y; all else is fixed.

        A posterior is conditioned on the labels: its draws are resampled by their likelihood, so that a few labels are
        exact, but for the number of draws. Of a point estimate the row is solved for again, with the labels that the
        model expects in place of those of the fit, which it does not keep; without X it would stay as it is.

        `X, y` : labelled dyads of one known row (column, if ``side="col"``) with known ids.
        """
        if side not in ("row", "col"):
            raise unknown_name("side", side, ("row", "col"))
        check_is_fitted(self)
        record = self.record_
        more = self._read_more(record, X, y, None)
        own = more.dyads.row if side == "row" else more.dyads.col
        if len(more.rows) > len(record.known.rows) or len(more.cols) > len(record.known.cols):
            raise UnknownIdError("suppose got ids not seen in training: expected known ids. Use fold_in for a new id.")
        if not len(own) or (own != own[0]).any():
            raise InputError(
                f"suppose got {len(np.unique(own))} {'rows' if side == 'row' else 'columns'}: expected labels of one."
            )
        changed = copy(self)
        changed.record_ = supposed(record, more.dyads, side, self._engine)
        return changed

    def _count_pairs(self, n_more: int) -> None:
        self.trained_on_ = {**self.trained_on_, "pairs": self.trained_on_["pairs"] + n_more}

    def _read_more(self, record: Record, X: Any, y: Any, sample_weight: Any) -> Observations:
        known = record.known
        labels = y if isinstance(X, Pairs) else self._checked(y)
        more = read_more(
            X, labels, sample_weight, known.vocabularies, self.columns_, known.classes, known.dyad_encoder,
            one_set=known.one_set,
        )  # fmt: skip
        self._check_observed(more)
        features = known.pair_features(more.dyads.codes, more.dyads.side.dyad)
        return replace(more, dyads=replace(more.dyads, side=more.dyads.side._replace(dyad=features)))


def _refuse_lost(record: Record, observed: Observations) -> None:
    """Raise unless the ids of a model have at least the labels that they had in its fit."""
    known = record.known
    if not np.array_equal(known.classes, observed.classes):
        raise InputError(
            f"The labels are {observed.classes.tolist()}, and those of the posterior {known.classes.tolist()}: "
            "expected the same. Use fit."
        )
    there = [observed.rows, observed.cols] + ([] if observed.relations is None else [observed.relations])
    codes = [ids.encode(old.ids) for ids, old in zip(there, known.vocabularies, strict=True)]
    relation = codes[2] if len(codes) > 2 else np.zeros(1, np.int64)
    counts, old = LabelCounts.of(observed.dyads).of_ids(codes[0], codes[1], relation), known.label_counts
    if is_undirected(type(record.parts.structure), known.one_set):
        counts, old = counts.undirected(), old.undirected()
    for ids, before, now in zip(known.vocabularies, old.parts, counts.parts, strict=False):
        lost = (now < before * (1 - 1e-9)).any(axis=1)
        if lost.any():
            raise InputError(
                f"The id {ids.ids[int(np.argmax(lost))].as_py()!r} of {ids.name!r} has fewer labels than in the fit: "
                "expected the dyads of the fit and further ones, since a posterior needs both. Pass all of them, or "
                "use fold_in for new ids."
            )


def _warn_of_weights(dyads: Dyads) -> None:
    """Warn of weights that a posterior takes for counts."""
    if dyads.weight is not None and (dyads.weight % 1 != 0).any():
        warnings.warn(
            "Weights that are not counts multiply the log-likelihood: the posterior is as certain as if a pair "
            f"of weight w had been seen w times, {dyads.total_weight:,.0f} labels in all. Scale the weights to "
            "the number of labels that they stand for, or use solver='point'.",
            WeightWarning,
            stacklevel=caller_level(),
        )


def _held_out(record: Record, kept: Dyads, held: Dyads | None, engine: Engine) -> dict[str, float]:
    """Log-loss on the dyads held out for early stopping: of the model, and of the marginals of the dyads it kept."""
    assert held is not None
    scores = engine.scores(record.models, list(held.codes), held.side.dyad)
    of_kept = replace(record, known=replace(record.known, label_counts=LabelCounts.of(kept)))
    predicted = {"model": record.proba(scores)} | of_kept.marginals(held.codes)
    labels = np.arange(held.n_labels)
    return {name: log_loss(held.label, proba, labels, held.weight) for name, proba in predicted.items()}


def _population(observed: Observations, population_weight: Any, sample_weight: Any) -> tuple[Dyads, Array | None]:
    """The dyads with the weights of the population, and the correction of label biases (n_relations, n_labels).

    With label y sampled at the rate pi_y, p(y | sampled) ∝ pi_y p(y): the log-odds are too high by log pi_y, and a
    dyad stands for 1 / pi_y others. The correction is None if every dyad stands for itself.
    """
    dyads, given = observed.dyads, read_weight(population_weight, "population_weight")
    if given is None:
        return dyads, None
    weight = read_weight(sample_weight)
    if len(given) != (len(dyads) if weight is None else len(weight)):
        raise InputError(f"Got {len(given)} values of population_weight: expected one per dyad.")
    if (given == 1).all():
        return dyads, None
    given = given if weight is None else given[weight > 0]
    if not given.all():
        raise InputError("Got population_weight=0: expected positive numbers. Leave these dyads out.")
    correction = np.zeros((dyads.n_relations, dyads.n_labels))
    cell = (np.zeros(len(dyads), np.intp) if dyads.relation is None else dyads.relation, dyads.label)
    correction[cell] = np.log(given)
    if not np.allclose(correction[cell], np.log(given)):
        raise InputError(
            "Got different values of population_weight for the same label: expected one for all dyads of a label (and "
            "relation), which are a random sample of these. Use sample_weight for other weights."
        )
    return replace(dyads, weight=given if dyads.weight is None else given * dyads.weight), correction


def _corrected(layout: Layout, learned: Learned, ends: list[Restart], shift: Array) -> tuple[Learned, list[Restart]]:
    """The result of a fit with `shift` (n_relations, n_labels) added to the scores of labels."""
    structure = layout.structure
    if structure.reference < structure.n_labels:
        shift = shift - shift[:, [structure.reference]]

    def moved(theta: Array) -> Array:
        theta = theta.copy()
        layout.named(theta)["label_bias"][:] += without_reference(structure, shift)
        return theta

    draws = [replace(state, theta=moved(state.theta)) for state in learned.draws]
    return learned._replace(draws=draws), [replace(end, theta=moved(end.theta)) for end in ends]


def _origin(y: Any, sample_weight: Any, n: int) -> dict[str, Any]:
    """What a model remembers of its data: names of the columns of labels and of weights, number of dyads, version."""
    return {"label": column_name(y), "weight": column_name(sample_weight), "pairs": n, "version": __version__}


def _features(value: Any) -> Features | None:
    return None if value is None else Features.of(value)


@contextmanager
def _logged(verbose: int, callback: Callback | None) -> Iterator[Callback | None]:
    """Wrap a callback to log each iteration first; adds a handler to standard error for the fit if there is none."""
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
        left = "" if np.isnan(progress.left) else f", {progress.left:.0f} s left"
        start, iteration, objective, _, seconds, _ = progress
        logger.info(
            "start %d, iteration %d: objective %.6g%s, %.1f s%s", start, iteration, objective, held, seconds, left
        )
        return callback(progress) if callback is not None else None

    try:
        yield announce
    finally:
        if handler is not None:
            logger.removeHandler(handler)
            logger.setLevel(level)
