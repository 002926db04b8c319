"""LFL: how the estimators are trained. Parameters and tables in, a `Record` kept; no numerics."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dyads.choices import check_choices
from dyads.coldstart import (
    fold_in,
    posterior_draws,
    refuse_featureless,
    targets,
    with_mean_predictions,
    with_more,
    with_spread,
)
from dyads.data.dyads import Dyads
from dyads.data.labels import numeric_values
from dyads.data.observations import (
    Observations,
    SideTables,
    check_undirected,
    read_more,
    read_observations,
)
from dyads.data.side import Features
from dyads.errors import (
    DivergenceError,
    InputError,
    NotConvergedWarning,
    VanishedWarning,
)
from dyads.model.loss import LOSSES, Loss
from dyads.model.parameters import Layout, label_log_odds
from dyads.model.penalty import Counts
from dyads.model.record import Draw, Entities, Known, Model, Parts, Record
from dyads.model.structure import STRUCTURES, Stereotype, build, is_undirected
from dyads.predictor import Predictor
from dyads.sampling import Chains, learn
from dyads.solve import SAMPLER, Options
from dyads.training import Callback, FitRun, Progress, Training, resume

Array = np.ndarray[Any, Any]
logger = logging.getLogger("dyads")

SHARED = 0.1
"""Strength, per dyad, on the labels' weights of shared latent weights: chosen on held-out training data of ML-100K."""

VANISHED = 1e-2
"""Latent weights whose root mean square is below this add nothing to a log-odds."""


class LFL(Predictor):
    """What the estimators share: tables in, a `Record` kept; `Predictor` has what is made of it.

    `_structures` names those an estimator offers, its default first.
    """

    _structures: tuple[str, ...]

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
        parts, known = self._untrained(observed)
        objective = parts.objective(known)
        before = self.fitted_.models if self.warm_start and hasattr(self, "fitted_") else []
        rng = check_random_state(self.random_state)
        learnt: list[Draw] = []
        ends: list[Training] = []
        with _logged(self.verbose, callback) as monitored:
            for number in range(self.n_models):
                start = self._warm_start(before[number], parts, known) if number < len(before) else None
                options = Options(self.max_iter, self.tol, self.learning_rate, int(rng.randint(2**31 - 1)))
                run = FitRun(
                    self._engine,
                    numeric_values(observed.classes) if self._ordered else None,
                    self.n_init,
                    self.validation_fraction if self.early_stopping else None,
                    self.side_training,
                    start,
                    monitored,
                )
                chains = Chains(self.n_chains, self.draw_memory * 2**20, checkpoint)
                found, draws, mixing, steps = learn(objective, observed.dyads, self.solver, options, run, chains)
                ends.append(found)
                if number == 0:
                    trace, diagnostics = steps, mixing
                if draws:
                    more = posterior_draws(parts, known, [(draw.theta, draw.priors) for draw in draws])
                else:
                    point = Model(parts=parts, known=known, draw=Draw.trained(parts, known, found.theta))
                    more = [with_spread(point, observed.dyads, self._engine)]
                if self.unknown == "mean":
                    models = Record(parts=parts, known=known, draws=tuple(more)).models
                    more = [with_mean_predictions(model, observed.dyads, self._engine) for model in models]
                learnt += more
                if found.ended == "monitor":
                    break
        best = ends[0]
        self.fitted_ = Record(parts=parts, known=known, draws=tuple(learnt))
        self.columns_ = observed.columns
        self.n_features_in_ = len(observed.columns)
        self.n_iter_ = best.n_iter
        self.converged_ = all(end.ended == "tolerance" for end in ends)
        self.objective_ = best.objective
        self.solver_ = best.solver
        self.trace_ = {name: [getattr(step, name) for step in trace] for name in Progress._fields}
        self.__dict__.pop("diagnostics_", None)
        if diagnostics is not None:
            self.diagnostics_ = {name: np.asarray(part).tolist() for name, part in diagnostics._asdict().items()}
        diverged = next((end.diverged for end in ends if end.diverged is not None), None)
        if diverged is not None:
            raise DivergenceError(
                f"The objective stopped being a finite number {diverged}. The model keeps its last finite state."
            )
        if self.rank and not self.fitted_.is_posterior and self.fitted_.models[0].latent_size() < VANISHED:
            warnings.warn(
                f"All latent weights vanished: the penalty l2={self.l2} is too strong for these data, and the model is "
                "that of rank 0. Lower l2, or choose it by cross-validation.",
                VanishedWarning,
                stacklevel=2,
            )
        complaint = next((end.complaint for end in ends if end.complaint is not None), None)
        if complaint is not None:
            warnings.warn(complaint, NotConvergedWarning, stacklevel=2)
        return self

    def _check_choices(self) -> None:
        kinds = [LFL]
        for kind in kinds:
            kinds += kind.__subclasses__()
        offers = {kind.__name__: kind._structures for kind in kinds if "_structures" in vars(kind)}
        check_choices(self, self._structures, offers)

    def _untrained(self, observed: Observations) -> tuple[Parts, Known]:
        """What is chosen and known before training."""
        dyads, layout = observed.dyads, self._layout(observed)
        one_set, encoders = layout.structure.one_set, observed.encoders
        counts = Counts.of(dyads, one_set)
        rows = Entities.of(observed.rows, counts.row, dyads.side.row, encoders.row)
        parts = Parts(
            structure=layout.structure,
            loss=self._loss(observed.classes),
            rank=int(self.rank),
            bias=bool(self.bias),
            interactions=layout.interactions,
            implicit=bool(self.implicit),
            strengths=self._strengths(layout),
            scaling=self.l2_scaling,
        )
        known = Known(
            classes=observed.classes,
            sets=(rows,) if one_set else (rows, Entities.of(observed.cols, counts.col, dyads.side.col, encoders.col)),
            col_name=observed.cols.name,
            relations=observed.relations,
            relation_counts=counts.relation,
            shared_centre=layout.blocks(self._shared_centre(layout, dyads, observed.classes)).shared,
            dyad_encoder=encoders.dyad,
        )
        return parts, known

    def _read(self, X: Any, y: Any, sample_weight: Any, seen: Any = None, classes: Any = None) -> Observations:
        y = self._checked(y)
        _, one_set = STRUCTURES[self._structure]
        side = SideTables(_features(self.row_features), _features(self.col_features), bool(self.implicit), seen)
        observed = read_observations(X, y, sample_weight, self._id_columns, one_set=one_set, side=side, classes=classes)
        self._check_observed(observed)
        return observed

    def _check_observed(self, observed: Observations) -> None:
        """Refuse what an estimator cannot learn from."""
        if is_undirected(*STRUCTURES[self._structure]):
            check_undirected(observed)

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
        parts = {name for shapes in layout.shapes for name in shapes}
        for name, own in (("l2_row", "row_factors"), ("l2_col", "col_factors")):
            if getattr(self, name) is not None and not parts & {own, "out_factors"}:
                raise InputError(
                    f"{name}={getattr(self, name)!r} is for weights of rows or columns, and with the structure "
                    f"{self._structure!r} both roles of a node have the same: expected None. Use l2."
                )
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

    def _warm_start(self, old: Model, parts: Parts, known: Known) -> Any:
        alike = ("structure", "rank", "bias", "interactions")
        if any(getattr(old.parts, name) != getattr(parts, name) for name in alike) or not np.array_equal(
            old.known.classes, known.classes
        ):
            raise InputError(
                "warm_start=True needs the labels, rank, base, bias and interactions of the last fit: they changed. "
                "Fit a new estimator, or set warm_start=False."
            )

        def start(theta: Array) -> Array:
            return old.start_for(known, theta)

        return start

    # ------------------------------------------------------------------------------------------------ more labels

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go on from what was learnt with one epoch of SGD over more labelled dyads; ids not yet known are added.

        Old dyads are not needed again: an entity's penalty is spread over all its labels so far. `classes` : all labels
        there will ever be, at the first call; default those in y. What `calibrate` learnt stays, and is worth learning
        again after many more labels; what `conformalize` learnt is dropped, since it holds for one model only.
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
        record: Record | None = self.__dict__.get("fitted_")
        if record is not None and (len(record.draws) > 1 or record.is_posterior):
            raise InputError(
                f"partial_fit goes on with a single point estimate, and there are {len(record.draws)} models or draws: "
                "expected a fit with n_models=1 by a solver that minimises. Use fit."
            )
        if record is None:
            more = self._read(X, y, sample_weight, classes=classes)
            before, start, n_iter, trace = None, None, 0, {}
            parts, known = self._untrained(more)
            known = known.without_counts()
        else:
            more = self._read_more(record, X, y, sample_weight)
            if len(more.rows) > len(record.known.rows) or len(more.cols) > len(record.known.cols):
                # The tables may have grown since the fit.
                record = self._with_features(self.row_features, self.col_features)
                more = self._read_more(record, X, y, sample_weight)
            (before,) = record.grown(more.rows, more.cols).models
            parts, known = before.parts, before.known
            refuse_featureless(record.known, known)
            start, n_iter, trace = before.uncentred(), self.n_iter_, self.trace_
        dyads = replace(more.dyads, side=known.side._replace(dyad=more.dyads.side.dyad))
        known = known.counted(dyads)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = Options(learning_rate=self.learning_rate, seed=seed)
        run = FitRun(self._engine, numeric_values(known.classes) if self._ordered else None)
        theta, progress = resume(parts.objective(known), dyads, known.counts, start, options, n_iter, run)
        model = Model(parts=parts, known=known, draw=Draw.trained(parts, known, theta))
        draw = (
            with_spread(model, dyads, self._engine) if before is None else with_more(model, before, dyads, self._engine)
        )
        calibrator = None if record is None else record.calibrator
        self.fitted_ = Record(parts=parts, known=known, draws=(draw,), calibrator=calibrator)
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
        """Add new rows and columns by their labels; everything else stays as it is. Changes this model, and returns it.

        The block of each new id is the optimum given all others, by Newton's method: for the log loss the problem is
        convex. (In each draw of a posterior it is drawn given the others.) No prediction for other ids changes. To keep
        this model as it is, fold into a copy: ``copy.copy(model).fold_in(X, y)``.

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
        record = self._with_features(row_features, col_features)
        new = self._read_more(record, X, y, sample_weight)
        grown, known = record.grown(new.rows, new.cols), record.known
        refuse_featureless(known, grown.known)
        rows, cols = targets(grown.known, new.dyads, (len(known.rows), len(known.cols)), side)
        # Dyads between ids that both stay as they are say nothing about the others.
        dyads = new.dyads.take(np.isin(new.dyads.row, rows) | np.isin(new.dyads.col, cols))
        self.fitted_ = fold_in(grown, dyads, rows, cols, self._engine)
        return self

    def _read_more(self, record: Record, X: Any, y: Any, sample_weight: Any) -> Observations:
        known = record.known
        more = read_more(
            X, self._checked(y), sample_weight, known.vocabularies, self.columns_, known.classes, known.dyad_encoder,
            one_set=known.one_set,
        )  # fmt: skip
        self._check_observed(more)
        return more


def _features(value: Any) -> Features | None:
    return None if value is None else Features.of(value)


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
