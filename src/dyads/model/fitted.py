"""Fitted: the frozen record of a trained model."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import sparse

from dyads.data.dyads import Dyads, Side
from dyads.data.side import Encoder
from dyads.data.vocabulary import Vocabulary
from dyads.model.calibrator import Calibrator
from dyads.model.loss import Loss, link
from dyads.model.parameters import Blocks, Layout
from dyads.model.penalty import Counts
from dyads.model.prior import Learnt
from dyads.model.structure import Structure, free_labels, with_base

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entities:
    """The rows, the columns or the nodes of a model.

    Attributes
    ----------
    ids : those that had labels, and those known by their features alone
    counts : (n,) summed weights of each one's training dyads; of both roles with one id set
    average : (size,) the mean of own blocks, weighted by counts
    spread : (n_draws, size) how own blocks differ from the average, in a sample of training dyads: what the own block
        of an entity without labels may be; line m of the rows' and line n_draws - 1 - m of the columns' are one dyad's
    met : (n, n_labels) how the scores of those an entity was seen with differ from those of average ones: added to its
        scores with an entity without labels, since those who meet are no random pairs
    centre : (size,) what own blocks are penalised towards; not zero once biases are centred, or if it was learnt
    features : sparse (n, n_features) or None
    average_features : (n_features,) those of an entity of which nothing is known: the mean, weighted by counts
    encoder : what made the features of a table, or None; features beyond its own are the sets of `implicit`
    predictions : (n, n_labels) mean predicted probabilities of each one's training dyads, or None
    precision : (size, size) of the learnt prior of own blocks about the centre, or None where the penalty is that
    """

    ids: Vocabulary
    counts: Array
    average: Array
    spread: Array
    met: Array
    centre: Array
    features: Any = None
    average_features: Array = field(default_factory=lambda: np.zeros(0))
    encoder: Encoder | None = None
    predictions: Array | None = None
    precision: Array | None = None

    @classmethod
    def untrained(cls, ids: Vocabulary, counts: Array, features: Any, encoder: Encoder | None) -> Self:
        """Entities before training."""
        none = np.zeros(0)
        average = none if features is None else np.asarray(features.T @ (counts / counts.sum()))
        return cls(ids, counts, none, none, none, none, features, average, encoder)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_features(self) -> int:
        return len(self.average_features)

    def grown(self, ids: Vocabulary) -> Self:
        """The same with further ids after its own, without labels, all their features missing."""
        n_new = len(ids) - len(self.ids)
        features, predictions = self.features, self.predictions
        if features is not None and n_new:
            line = sparse.csr_array((1, 0)) if self.encoder is None else self.encoder.absent_line()
            line.resize((1, features.shape[1]))
            features = sparse.vstack([features, line[np.zeros(n_new, np.int64)]], format="csr")
        if predictions is not None:
            predictions = np.vstack([predictions, np.full((n_new, predictions.shape[1]), np.nan)])
        # A drawn model has nothing in `met`: there the prior is all that is known of a new one.
        n_met = n_new if len(self.met) else 0
        counts = np.concatenate([self.counts, np.zeros(n_new)])
        met = np.concatenate([self.met, np.zeros((n_met, *self.met.shape[1:]))])
        return replace(self, ids=ids, counts=counts, met=met, features=features, predictions=predictions)


@dataclass(frozen=True)
class Fitted:
    """Everything a prediction needs, and what is needed to solve for one more block.

    Attributes
    ----------
    structure, loss : the parts the model is made of
    classes : (n_labels,) the labels, sorted
    rows, cols : the entities; with one id set the same, but for the name of their column and what they met in that role
    theta : (size,) the parameters, laid out as `layout` says
    relation_counts : (n_relations,) summed weights of the training dyads of each relation
    shared_centre : (n_relations, shared size) what shared blocks are penalised towards
    relations : the relations seen in training, or None when there is one
    interactions : latent columns in which features have weights
    rank, bias : the own latent columns of entities, and whether these have own biases
    strengths, scaling : the penalty, as `L2.of` takes it
    dyad_encoder : what makes the features of dyads, or None
    implicit : whether entities have the sets of those they were seen with as features
    prediction : (n_labels,) mean predicted probabilities of all training dyads, or None
    calibrator : what probabilities are put through, or None
    strangeness : (n,) sorted, how strange held-out labels were, for sets of labels; or None
    members : further models of the same data, from other starts or drawn from the posterior, whose probabilities are
        averaged with this one's
    """

    structure: Structure
    loss: Loss
    classes: Array
    rows: Entities
    cols: Entities
    theta: Array
    relation_counts: Array
    shared_centre: Array
    relations: Vocabulary | None = None
    interactions: int = 0
    rank: int = 0
    bias: bool = True
    strengths: dict[str, float] = field(default_factory=dict)
    scaling: str = "none"
    dyad_encoder: Encoder | None = None
    implicit: bool = False
    prediction: Array | None = None
    calibrator: Calibrator | None = None
    strangeness: Array | None = None
    members: "tuple[Fitted, ...]" = ()

    @cached_property
    def every(self) -> "list[Fitted]":
        """The models whose probabilities are averaged, each by itself."""
        return [replace(self, members=()), *self.members]

    @property
    def is_posterior(self) -> bool:
        """Whether the models are draws from a posterior."""
        return self.rows.precision is not None

    def mapped(self, change: "Callable[[Fitted], Fitted]") -> "Fitted":
        """The same change made to every model."""
        first, *others = map(change, self.every)
        return replace(first, members=tuple(others))

    def trained(self, theta: Array) -> "Fitted":
        """This model, untrained so far, with parameters a solver found.

        Biases are centred by counts into the label bias, so that an average row has none. Entities without labels get
        the average own block.
        """
        layout, counts = self.layout, (self.rows.counts, self.cols.counts)
        centred = layout.centre(theta, *counts)
        before, after = layout.blocks(theta), layout.blocks(centred)
        sides = []
        for entities, n, old, new in zip((self.rows, self.cols), counts, before, after, strict=False):
            average = np.average(new, axis=0, weights=n)
            # Every own block moved by the same, and so did what they are penalised towards.
            centre = (new[0] - old[0]).astype(np.float64)
            spread, met = np.zeros((0, len(average))), np.zeros((len(n), self.structure.n_labels))
            sides.append(replace(entities, average=average, centre=centre, spread=spread, met=met))
        for entities, block in zip(sides, after, strict=False):
            block[entities.counts == 0] = entities.average
        return replace(self, rows=sides[0], cols=sides[1], theta=centred)

    def drawn(self, theta: Array, priors: tuple[Learnt, ...], spreads: tuple[Array, ...]) -> "Fitted":
        """This model, untrained so far, with parameters drawn from the posterior, and the priors drawn with them.

        `spreads` : for rows and columns, standard normal (n_draws, size): what entities without labels may be are draws
        from the learnt prior.
        """
        model, sides = self.trained(theta), []
        owners = (model.rows,) if self.structure.one_set else (model.rows, model.cols)
        # After theirs, there may be a prior of relations.
        for entities, prior, noise in zip(owners, priors, spreads, strict=False):
            mean = (prior.mean + entities.centre).astype(theta.dtype)
            root = np.linalg.cholesky(prior.precision.astype(np.float64))
            spread = np.linalg.solve(root.T, noise.T).T.astype(theta.dtype)
            met = entities.met[:0]
            sides.append(
                replace(entities, average=mean, centre=mean, precision=prior.precision, spread=spread, met=met)
            )
        if self.structure.one_set:
            sides.append(replace(sides[0], ids=self.cols.ids))
        blocks = self.layout.blocks(model.theta)
        for entities, block in zip(sides, blocks, strict=False):
            block[entities.counts == 0] = entities.average
        return replace(model, rows=sides[0], cols=sides[1])

    @property
    def counts(self) -> Counts:
        """Summed weights of the training dyads."""
        return Counts(self.rows.counts, self.cols.counts, self.relation_counts)

    def counted(self, dyads: Dyads) -> "Fitted":
        """The same model with more dyads counted as training dyads."""
        row, col, relation = Counts.of(dyads, self.structure.one_set)
        rows = replace(self.rows, counts=self.rows.counts + row)
        cols = replace(self.cols, counts=self.cols.counts + col)
        return replace(self, rows=rows, cols=cols, relation_counts=self.relation_counts + relation)

    def n_parameters(self) -> int:
        """How many numbers were learnt: without those that were not free, and the blocks of ids without labels."""
        free = self.layout.free(self.rank, self.bias)
        blocks = self.layout.blocks(free)
        blocks.row[self.rows.counts == 0] = False
        blocks.col[self.cols.counts == 0] = False
        return int(free.sum())

    def without_counts(self) -> "Fitted":
        """The same model as if no dyad had been counted yet."""
        rows, cols = (replace(entities, counts=np.zeros(len(entities))) for entities in (self.rows, self.cols))
        return replace(self, rows=rows, cols=cols, relation_counts=np.zeros_like(self.relation_counts))

    @property
    def vocabularies(self) -> list[Vocabulary]:
        """The ids of rows and columns, and the relations if there are several."""
        return [self.rows.ids, self.cols.ids, *([] if self.relations is None else [self.relations])]

    @property
    def layout(self) -> Layout:
        n_relations = 1 if self.relations is None else len(self.relations)
        n_dyad = 0 if self.dyad_encoder is None else len(self.dyad_encoder.names)
        n_col = 0 if self.structure.one_set else self.cols.n_features
        widths = (self.rows.n_features, n_col, n_dyad)
        return Layout(self.structure, len(self.rows), len(self.cols), n_relations, widths, self.interactions)

    @property
    def side(self) -> Side:
        """The features of rows and columns."""
        return Side(self.rows.features, None if self.structure.one_set else self.cols.features)

    @cached_property
    def effective(self) -> Blocks:
        """The blocks of all entities; with features, in double precision."""
        theta = np.ascontiguousarray(self.theta)
        return self.layout.effective(theta.astype(np.float64) if any(self.layout.n_features) else theta, self.side)

    @cached_property
    def unknown(self) -> Blocks:
        """The blocks of a row, a column and a relation of which nothing is known: average ones, with average features.

        A line each, (1, size).
        """
        weights, columns, effective = self.layout.side_weights(self.theta), self.layout.side_columns, self.effective
        found = []
        for i, entities in enumerate((self.rows, self.cols)):
            side = 0 if self.structure.one_set else i
            block = np.array(entities.average, effective[i].dtype)
            if entities.n_features:
                block[columns[side]] += entities.average_features @ weights[side]
            found.append(block[None])
        return Blocks(found[0], found[1], effective.shared.mean(axis=0, keepdims=True))

    @cached_property
    def new(self) -> tuple[Array, Array]:
        """Which rows (n_rows + 1,) and columns (n_cols + 1,) are averaged over their spread, since they have no labels.

        The last flag is that of unknown ones: the code -1 finds it.
        """
        rows, cols = (
            np.append(entities.counts == 0, True) & bool(len(entities.spread)) for entities in (self.rows, self.cols)
        )
        return rows, cols

    def without_spread(self) -> "Fitted":
        """The same model, in which an entity without labels is an average one."""
        rows, cols = (replace(entities, spread=entities.spread[:0]) for entities in (self.rows, self.cols))
        return replace(self, rows=rows, cols=cols)

    def one_draw(self) -> "Fitted":
        """The same drawn model, in which all rows without labels are one draw from their prior, and columns another."""
        # With one id set both spreads are one table: two new nodes are the two ends of it.
        rows = replace(self.rows, spread=self.rows.spread[:1])
        return replace(self, rows=rows, cols=replace(self.cols, spread=self.cols.spread[-1:]))

    def feature_names(self, side: str) -> list[str]:
        """Name the features of rows, columns or dyads."""
        if side == "dyad":
            return [] if self.dyad_encoder is None else self.dyad_encoder.names
        entities, others = (self.rows, self.cols) if side == "row" else (self.cols, self.rows)
        names = [] if entities.encoder is None else list(entities.encoder.names)
        if self.implicit:
            seen = entities.n_features - len(names)
            names += [f"seen with {one}" for one in others.ids.ids[:seen].to_pylist()]
        return names

    @property
    def _latent_start(self) -> int:
        """Where a block's latent part begins, after its biases."""
        return self.structure.n_bias * free_labels(self.structure)

    def factors(self, name: str) -> Array:
        """A part of the latent weights; (n, n_labels, rank) where labels have their own, zeros for the base."""
        part = self.layout.named(self.theta)[name]
        shared_by_labels = bool(self.structure.latent_shapes()[2])
        return part if shared_by_labels else with_base(self.structure, part)

    def embed(self, codes: Array, side: str) -> Array:
        """All latent weights of rows or columns (or nodes), their features' included, one vector each (n, size)."""
        block = self.effective.row if side == "row" else self.effective.col
        return block[codes, self._latent_start :]

    def latent_size(self) -> float:
        """Root mean square of all latent weights of rows and columns that have labels."""
        sides = zip(self.effective, (self.rows, self.cols), strict=False)
        labelled = (block[entities.counts > 0, self._latent_start :] for block, entities in sides)
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

    def proba(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into probabilities, calibrated if the model is."""
        proba = link(scores)
        return proba if self.calibrator is None else self.calibrator.apply(proba)

    def log_odds(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into log-odds against the base, or against the labels' geometric mean if none."""
        if self.structure.base < self.structure.n_labels:
            return np.asarray(scores - scores[:, [self.structure.base]])
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))

    def start_for(self, other: "Fitted") -> Array:
        """The theta of `other`, an untrained model, with what this one learnt of the same ids and features."""
        theta = other.theta.copy()
        new, old = other.layout.blocks(theta), self.layout.blocks(self.uncentred())
        for mine, theirs, known, wanted in (
            (old.row, new.row, self.rows, other.rows),
            (old.col, new.col, self.cols, other.cols),
        ):
            found = known.ids.encode(wanted.ids.ids)
            theirs[found >= 0] = mine[found[found >= 0]]
        if self.relations is None or other.relations is None:
            new.shared[:] = old.shared
        else:
            found = self.relations.encode(other.relations.ids)
            new.shared[found >= 0] = old.shared[found[found >= 0]]
        sides = zip(("row", "col", "dyad"), self.layout.side_weights(self.theta), strict=True)
        for (side, learnt), weights in zip(sides, other.layout.side_weights(theta), strict=True):
            if len(weights):
                place = {name: i for i, name in enumerate(self.feature_names(side))}
                at = np.array([place.get(name, -1) for name in other.feature_names(side)])
                weights[at >= 0] = learnt[at[at >= 0]]
        return theta

    def uncentred(self) -> Array:
        """Parameters of the same scores whose own blocks are penalised towards zero, as they were in training.

        Those of a model that was drawn are what they are: its priors have means of their own.
        """
        theta = self.theta.astype(np.float64)
        if self.is_posterior:
            return theta
        blocks, biases = self.layout.blocks(theta), self.layout.bias_columns
        n = free_labels(self.structure)
        for block, entities, columns in zip(blocks, (self.rows, self.cols), biases, strict=False):
            if len(columns):
                blocks.shared[:, :n] += entities.centre[columns]
            if block is not blocks.row or entities is self.rows:
                block -= entities.centre
        return theta

    def grown(self, rows: Vocabulary, cols: Vocabulary) -> "Fitted":
        """The same model with further ids after its own, each with the own block of an entity without labels."""
        new_rows, new_cols, one_set = self.rows.grown(rows), self.cols.grown(cols), self.structure.one_set
        layout = replace(self.layout, n_rows=len(rows), n_cols=len(cols))
        theta = np.empty(layout.size, self.theta.dtype)
        theta[layout.own_size :] = self.theta[self.layout.own_size :]
        old, new = self.layout.blocks(self.theta), layout.blocks(theta)
        new.row[: len(old.row)], new.row[len(old.row) :] = old.row, self.rows.average
        if not one_set:
            new.col[: len(old.col)], new.col[len(old.col) :] = old.col, self.cols.average
        new.shared[:] = old.shared
        return replace(self, rows=new_rows, cols=new_cols, theta=theta)
