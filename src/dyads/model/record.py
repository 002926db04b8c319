"""The trained record in three parts: what was chosen (`Parts`), what the data said (`Known`), what was learnt (`Draw`).

A `Record` has one `Parts`, one `Known` and some draws: one of a point estimate, several of an ensemble or a posterior.
A `Model` is one of its draws seen with the other two, and holds the mathematics of a single trained model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from scipy import sparse

from dyads.data.codes import Vocabulary
from dyads.data.dyads import Counts, Dyads, Side
from dyads.data.features import Encoder
from dyads.model.loss import Loss, link
from dyads.model.objective import BlockPrior, Objective, Penalty
from dyads.model.parameters import Blocks, Layout
from dyads.model.structure import Structure, free_labels, with_reference

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Entities:
    """What the data said of one id set: rows, columns, or the nodes that are both.

    Attributes
    ----------
    ids : those that had labels, and those known by their features alone
    counts : (n,) summed weights of the training dyads of each; of both roles with one id set
    features : sparse (n, n_features) or None
    average_features : (n_features,) those of an entity of which nothing is known: the mean, weighted by counts
    encoder : what made the features of a table, or None; features beyond its own are the sets of `implicit`
    """

    ids: Vocabulary
    counts: Array
    features: Any
    average_features: Array
    encoder: Encoder | None

    @classmethod
    def of(cls, ids: Vocabulary, counts: Array, features: Any, encoder: Encoder | None) -> Self:
        """Average the features by counts."""
        average = np.zeros(0) if features is None else np.asarray(features.T @ (counts / counts.sum()))
        return cls(ids=ids, counts=counts, features=features, average_features=average, encoder=encoder)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_features(self) -> int:
        return len(self.average_features)

    def named(self, name: str) -> Self:
        """The same entities, whose column of ids is called `name`."""
        return self if name == self.ids.name else replace(self, ids=replace(self.ids, name=name))

    def grown(self, ids: Vocabulary) -> Self:
        """The same with further ids after its own, without labels, all their features missing."""
        n_new, features = len(ids) - len(self), self.features
        if features is not None and n_new:
            line = sparse.csr_array((1, 0)) if self.encoder is None else self.encoder.absent_line()
            line.resize((1, features.shape[1]))
            features = sparse.vstack([features, line[np.zeros(n_new, np.int64)]], format="csr")
        return replace(self, ids=ids, counts=np.concatenate([self.counts, np.zeros(n_new)]), features=features)


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the data said: one copy, however many draws.

    Attributes
    ----------
    classes : (n_labels,) the labels, sorted
    sets : the entities of each id set: rows and columns, or nodes alone; `rows` and `cols` are views of these
    col_name : the name of the column of column ids, which with one id set is all that `rows` and `cols` differ in
    relations : the relations seen in training, or None when there is one
    relation_counts : (n_relations,) summed weights of the training dyads of each relation
    shared_centre : (n_relations, shared size) what shared blocks are penalised towards
    dyad_encoder : what makes the features of dyads, or None
    """

    classes: Array
    sets: tuple[Entities, ...]
    col_name: str
    relations: Vocabulary | None
    relation_counts: Array
    shared_centre: Array
    dyad_encoder: Encoder | None

    @property
    def rows(self) -> Entities:
        return self.sets[0]

    @cached_property
    def cols(self) -> Entities:
        return self.sets[-1].named(self.col_name)

    @property
    def one_set(self) -> bool:
        """Whether rows and columns are nodes of one kind."""
        return len(self.sets) == 1

    @property
    def vocabularies(self) -> list[Vocabulary]:
        """The ids of rows and columns, and the relations if there are several."""
        return [self.rows.ids, self.cols.ids, *([] if self.relations is None else [self.relations])]

    @property
    def counts(self) -> Counts:
        """Summed weights of the training dyads."""
        return Counts(self.rows.counts, self.cols.counts, self.relation_counts)

    def counts_of(self, dyads: Dyads) -> Counts:
        """Summed weights of other dyads of the same entities."""
        return Counts.of(dyads, self.one_set)

    @property
    def side(self) -> Side:
        """The features of rows and columns; with one id set those of nodes are the rows'."""
        return Side(*(entities.features for entities in self.sets))

    @property
    def n_features(self) -> tuple[int, int, int]:
        """How many features rows (or nodes), columns and dyads have."""
        row, col, _ = self.side.widths
        return row, col, 0 if self.dyad_encoder is None else len(self.dyad_encoder.names)

    def set_of(self, role: int) -> int:
        """The place among `sets` of the entities of a role, 0 for rows and 1 for columns."""
        return min(role, len(self.sets) - 1)

    def grown(self, rows: Vocabulary, cols: Vocabulary) -> Self:
        """The same with further ids after its own."""
        return self.with_sets(entities.grown(ids) for entities, ids in zip(self.sets, (rows, cols), strict=False))

    def with_sets(self, sets: Iterable[Entities]) -> Self:
        """The same with other entities of each id set."""
        return replace(self, sets=tuple(sets))

    def counted(self, dyads: Dyads) -> Self:
        """The same with more dyads counted as training dyads."""
        counts = self.counts_of(dyads)
        grown = self.with_sets(
            replace(entities, counts=entities.counts + more)
            for entities, more in zip(self.sets, counts[:2], strict=False)
        )
        return replace(grown, relation_counts=self.relation_counts + counts.relation)

    def without_counts(self) -> Self:
        """The same as if no dyad had been counted yet."""
        uncounted = self.with_sets(replace(entities, counts=np.zeros(len(entities))) for entities in self.sets)
        return replace(uncounted, relation_counts=np.zeros_like(self.relation_counts))

    def feature_names(self, side: str) -> list[str]:
        """Name the features of rows, columns or dyads."""
        if side == "dyad":
            return [] if self.dyad_encoder is None else self.dyad_encoder.names
        entities, others = (self.rows, self.cols) if side == "row" else (self.cols, self.rows)
        names = [] if entities.encoder is None else list(entities.encoder.names)
        partners = others.ids.ids[: entities.n_features - len(names)].to_pylist()
        return names + [f"seen with {partner}" for partner in partners]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What was chosen.

    Attributes
    ----------
    structure, loss : what the model is made of
    rank, bias : the own latent columns of entities, and whether these have own biases
    interactions : latent columns in which features have weights
    implicit : whether entities have the sets of those they were seen with as features
    strengths, scaling : the penalty, as `Penalty.of` takes it
    """

    structure: Structure
    loss: Loss
    rank: int
    bias: bool
    interactions: int
    implicit: bool
    strengths: dict[str, float]
    scaling: str

    def layout(self, known: Known) -> Layout:
        """Where the parameters of known entities lie in theta."""
        return Layout(
            self.structure,
            len(known.rows),
            len(known.cols),
            n_relations=1 if known.relations is None else len(known.relations),
            n_features=known.n_features,
            interactions=self.interactions,
        )

    def objective(self, known: Known, counts: Counts | None = None) -> Objective:
        """What is minimised to train a model on the dyads counted in `known`, or on others of which `counts` are."""
        layout = self.layout(known)
        counts = known.counts if counts is None else counts
        penalty = Penalty.of(layout, self.strengths, self.scaling, counts, known.shared_centre)
        free = layout.free(self.rank, self.bias)
        return Objective(layout, self.loss, penalty, None if free.all() else free)

    def n_parameters(self, known: Known) -> int:
        """How many numbers one draw has: without those that were not free, and the blocks of ids without labels."""
        layout = self.layout(known)
        free = layout.free(self.rank, self.bias)
        for entities, block in zip(known.sets, layout.blocks(free), strict=False):
            block[entities.counts == 0] = False
        return int(free.sum())

    def log_odds(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into log-odds against the reference, or the labels' geometric mean if none."""
        if self.structure.reference < self.structure.n_labels:
            return np.asarray(scores - scores[:, [self.structure.reference]])
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class Population:
    """What the own blocks of one role, rows or columns, are like in one draw.

    Spreads of the two roles are paired: draw m of the rows goes with draw n_draws - 1 - m of the columns. Both come
    from one training dyad, so that a row and a column without labels vary together as those of a dyad do. With one id
    set the same spread serves both roles, each dyad being in it in both orders. (Draws from a prior are independent.)

    Attributes
    ----------
    average : (size,) the mean of own blocks, weighted by counts; of a posterior, the mean of their prior
    spread : (n_draws, size) deviations of own blocks from the average in a sample of training dyads, or draws from the
        prior: what is added to the block of an entity without labels; no lines where that is an average one
    partner_shift : (n, n_labels) what an entity adds to its scores with an entity without labels, since the partners it
        is observed with are not average ones (a selection effect); of a posterior (0, n_labels), for its prior is all
        that is known of an entity without labels
    centre : (size,) what own blocks are penalised towards; not zero once biases are centred, or if it was learnt
    precision : (size, size) of the learnt prior of own blocks about the centre; None where the penalty is the prior
    predictions : (n, n_labels) mean predicted probabilities of the training dyads of each; None unless
        ``unknown="mean"``
    """

    average: Array
    spread: Array
    partner_shift: Array
    centre: Array
    precision: Array | None = None
    predictions: Array | None = None

    def grown(self, n_new: int) -> Self:
        """The same with further entities without labels."""
        shift, predictions = self.partner_shift, self.predictions
        if len(shift):
            shift = np.concatenate([shift, np.zeros((n_new, *shift.shape[1:]))])
        if predictions is not None:
            predictions = np.vstack([predictions, np.full((n_new, predictions.shape[1]), np.nan)])
        return replace(self, partner_shift=shift, predictions=predictions)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What was learnt: a point estimate, a member of an ensemble, or a draw from the posterior.

    Attributes
    ----------
    theta : (size,) the parameters, laid out as `Parts.layout` says
    rows, cols : what own blocks are like; with one id set they differ in their `partner_shift` alone
    prediction : (n_labels,) mean predicted probabilities of all training dyads; None unless ``unknown="mean"``
    """

    theta: Array
    rows: Population
    cols: Population
    prediction: Array | None = None

    @classmethod
    def trained(cls, parts: Parts, known: Known, theta: Array) -> Self:
        """The point estimate of parameters that a solver found.

        Biases are centred by counts into the label bias, so that an average row has none. Entities without labels get
        the average own block.
        """
        layout = parts.layout(known)
        centred = layout.centre(theta, known.rows.counts, known.cols.counts)
        populations = []
        for entities, old, new in zip(known.sets, layout.blocks(theta), layout.blocks(centred), strict=False):
            average = np.average(new, axis=0, weights=entities.counts)
            population = Population(
                average=average,
                spread=np.zeros((0, len(average))),
                partner_shift=np.zeros((len(entities), parts.structure.n_labels)),
                # Every own block moved by the same, and so did what they are penalised towards.
                centre=(new[0] - old[0]).astype(np.float64),
            )
            populations.append(population)
            new[entities.counts == 0] = average
        return cls(theta=centred, rows=populations[0], cols=populations[-1])

    @classmethod
    def drawn(
        cls, parts: Parts, known: Known, theta: Array, priors: tuple[BlockPrior, ...], noise: tuple[Array, ...]
    ) -> Self:
        """A draw from the posterior, with the priors that were drawn with it.

        `priors` are of each id set, and then there may be one of relations. `noise` : for each prior, standard normal
        (n_draws, size), which becomes draws from it.
        """
        point = cls.trained(parts, known, theta)
        blocks, populations = parts.layout(known).blocks(point.theta), []
        learnt = zip(known.sets, (point.rows, point.cols), blocks, priors, noise, strict=False)
        for entities, population, block, prior, normal in learnt:
            mean = (prior.mean + population.centre).astype(theta.dtype)
            root = np.linalg.cholesky(prior.precision.astype(np.float64))
            spread = np.linalg.solve(root.T, normal.T).T.astype(theta.dtype)
            drawn = Population(
                average=mean,
                spread=spread,
                partner_shift=population.partner_shift[:0],
                centre=mean,
                precision=prior.precision,
            )
            populations.append(drawn)
            block[entities.counts == 0] = mean
        return replace(point, rows=populations[0], cols=populations[-1])


@dataclass(frozen=True, kw_only=True)
class Model:
    """One draw, seen with its parts and what is known: the mathematics of a single trained model."""

    parts: Parts
    known: Known
    draw: Draw

    @property
    def structure(self) -> Structure:
        return self.parts.structure

    @property
    def theta(self) -> Array:
        return self.draw.theta

    @property
    def populations(self) -> tuple[Population, Population]:
        """Those of rows and columns."""
        return self.draw.rows, self.draw.cols

    @cached_property
    def layout(self) -> Layout:
        return self.parts.layout(self.known)

    @cached_property
    def effective(self) -> Blocks:
        """The blocks of all entities; with features, in double precision."""
        theta = np.ascontiguousarray(self.theta)
        double = theta.astype(np.float64) if any(self.layout.n_features) else theta
        return self.layout.effective(double, self.known.side)

    @cached_property
    def unknown(self) -> Blocks:
        """The blocks of a row, a column and a relation of which nothing is known: average ones, with average features.

        A line each, (1, size).
        """
        weights, columns, effective = self.layout.side_weights(self.theta), self.layout.side_columns, self.effective
        blocks = []
        for i, (entities, population) in enumerate(zip(self.known.sets, self.populations, strict=False)):
            block = np.array(population.average, effective[i].dtype)
            if entities.n_features:
                block[columns[i]] += entities.average_features @ weights[i]
            blocks.append(block[None])
        return Blocks(blocks[0], blocks[-1], effective.shared.mean(axis=0, keepdims=True))

    @cached_property
    def new(self) -> tuple[Array, Array]:
        """Which rows (n_rows + 1,) and columns (n_cols + 1,) are averaged over their spread, since they have no labels.

        The last flag is that of unknown ones: the code -1 finds it.
        """
        rows, cols = (
            np.append(counts == 0, True) & bool(len(population.spread))
            for counts, population in zip(self.known.counts[:2], self.populations, strict=True)
        )
        return rows, cols

    def without_spread(self) -> Self:
        """The same model, in which an entity without labels is an average one."""
        return self._with_spreads(self.draw.rows.spread[:0], self.draw.cols.spread[:0])

    def one_draw(self) -> Self:
        """The same drawn model, in which all rows without labels are one draw from their prior, and columns another."""
        # With one id set both spreads are one table: two new nodes are the two ends of it.
        return self._with_spreads(self.draw.rows.spread[:1], self.draw.cols.spread[-1:])

    def _with_spreads(self, row: Array, col: Array) -> Self:
        rows, cols = replace(self.draw.rows, spread=row), replace(self.draw.cols, spread=col)
        return replace(self, draw=replace(self.draw, rows=rows, cols=cols))

    @property
    def _latent_start(self) -> int:
        """Where a block's latent part begins, after its biases."""
        return self.structure.n_bias * free_labels(self.structure)

    def factors(self, name: str) -> Array:
        """A part of the latent weights; (n, n_labels, rank) where labels have their own, zeros for the reference."""
        part = self.layout.named(self.theta)[name]
        shared_by_labels = bool(self.structure.latent_shapes()[2])
        return part if shared_by_labels else with_reference(self.structure, part)

    def embed(self, codes: Array, side: str) -> Array:
        """All latent weights of rows or columns (or nodes), their features' included, one vector each (n, size)."""
        block = self.effective.row if side == "row" else self.effective.col
        return block[codes, self._latent_start :]

    def latent_size(self) -> float:
        """Root mean square of all latent weights of rows and columns that have labels."""
        sides = zip(self.effective[:2], self.known.counts[:2], strict=True)
        labelled = (block[counts > 0, self._latent_start :] for block, counts in sides)
        return float(np.sqrt(np.mean([np.mean(block.astype(np.float64) ** 2) for block in labelled])))

    def relation_similarity(self) -> Array:
        """Correlation about zero of the weights of each two relations (n_relations, n_relations): x . y / |x| |y|.

        About zero, not about the mean: the penalty levels the sizes of the weights, and their signs can all be turned
        positive for one relation by turning those of the factors, so that a mean has no meaning.
        """
        shared = self.layout.blocks(self.theta).shared[:, free_labels(self.structure) :].astype(np.float64)
        length = np.linalg.norm(shared, axis=1, keepdims=True)
        unit = shared / np.where(length > 0, length, 1)
        return np.asarray(unit @ unit.T)

    def start_for(self, known: Known, theta: Array) -> Array:
        """A copy of `theta`, laid out for another `known`, with what this model learnt of the same ids and features."""
        theta, layout = theta.copy(), self.parts.layout(known)
        new, old = layout.blocks(theta), self.layout.blocks(self.uncentred())
        for i, (before, now) in enumerate(zip(self.known.sets, known.sets, strict=True)):
            codes = before.ids.encode(now.ids.ids)
            new[i][codes >= 0] = old[i][codes[codes >= 0]]
        if self.known.relations is None or known.relations is None:
            new.shared[:] = old.shared
        else:
            codes = self.known.relations.encode(known.relations.ids)
            new.shared[codes >= 0] = old.shared[codes[codes >= 0]]
        sides = zip(("row", "col", "dyad"), self.layout.side_weights(self.theta), strict=True)
        for (side, learnt), weights in zip(sides, layout.side_weights(theta), strict=True):
            if len(weights):
                place = {name: i for i, name in enumerate(self.known.feature_names(side))}
                at = np.array([place.get(name, -1) for name in known.feature_names(side)])
                weights[at >= 0] = learnt[at[at >= 0]]
        return theta

    def uncentred(self) -> Array:
        """Parameters of the same scores whose own blocks are penalised towards zero, as they were in training.

        Those of a model that was drawn are what they are: its priors have means of their own.
        """
        theta = self.theta.astype(np.float64)
        if self.draw.rows.precision is not None:
            return theta
        blocks, n = self.layout.blocks(theta), free_labels(self.structure)
        for population, columns in zip(self.populations, self.layout.bias_columns, strict=True):
            if len(columns):
                blocks.shared[:, :n] += population.centre[columns]
        for _, population, block in zip(self.known.sets, self.populations, blocks, strict=False):
            block -= population.centre
        return theta

    def grown(self, known: Known) -> Draw:
        """The same draw for `known`, which has further ids: each has the own block of an entity without labels."""
        layout = self.parts.layout(known)
        theta = np.empty(layout.size, self.theta.dtype)
        theta[layout.own_size :] = self.theta[self.layout.own_size :]
        old, new = self.layout.blocks(self.theta), layout.blocks(theta)
        for i, (_, population) in enumerate(zip(known.sets, self.populations, strict=False)):
            n_old = len(old[i])
            new[i][:n_old], new[i][n_old:] = old[i], population.average
        new.shared[:] = old.shared
        rows = self.draw.rows.grown(len(known.rows) - len(self.known.rows))
        cols = self.draw.cols.grown(len(known.cols) - len(self.known.cols))
        return replace(self.draw, theta=theta, rows=rows, cols=cols)


class Calibrator(Protocol):
    """What probabilities are put through to come true; those there are, are in `dyads.trained.calibration`."""

    def apply(self, proba: Array) -> Array:
        """Turn probabilities (n, n_labels) into calibrated ones (n, n_labels)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything a prediction needs, and what is needed to solve for one more block.

    Attributes
    ----------
    parts : what was chosen
    known : what the data said
    draws : what was learnt: one of a point estimate; several, whose probabilities are averaged, of an ensemble or of a
        posterior
    calibrator : what probabilities are put through, or None
    nonconformity : (n,) sorted, one less the probability of each held-out label, for sets of labels; or None
    """

    parts: Parts
    known: Known
    draws: tuple[Draw, ...]
    calibrator: Calibrator | None = None
    nonconformity: Array | None = None

    @cached_property
    def models(self) -> list[Model]:
        """The models whose probabilities are averaged."""
        return [Model(parts=self.parts, known=self.known, draw=draw) for draw in self.draws]

    @property
    def is_posterior(self) -> bool:
        """Whether the draws are from a posterior."""
        return self.draws[0].rows.precision is not None

    def n_parameters(self) -> int:
        """How many numbers were learnt; of a posterior, how many one draw has."""
        return self.parts.n_parameters(self.known) * (1 if self.is_posterior else len(self.draws))

    def proba(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into probabilities, calibrated if the model is."""
        proba = link(scores)
        return proba if self.calibrator is None else self.calibrator.apply(proba)

    def grown(self, rows: Vocabulary, cols: Vocabulary) -> Self:
        """The same with further ids after its own."""
        known = self.known.grown(rows, cols)
        return replace(self, known=known, draws=tuple(model.grown(known) for model in self.models))
