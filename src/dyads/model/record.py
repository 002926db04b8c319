"""The trained record: what was chosen (`Parts`), what the data contain (`Known`), what was learnt (`Draw`).

A `Record` has one `Parts`, one `Known` and one or more draws: one for a point estimate, several for a posterior. A
`Model` combines one draw with the other two, and holds the mathematics of a single trained model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from scipy import sparse

from dyads.data.codes import Codes, Vocabulary
from dyads.data.dyads import Counts, Dyads, LabelCounts, Seen, Side
from dyads.data.features import Encoder
from dyads.model.loss import Loss, link
from dyads.model.objective import BlockPrior, Objective, Penalty
from dyads.model.parameters import Blocks, Layout
from dyads.model.structure import (
    Stereotype,
    Structure,
    col_bias,
    free_labels,
    is_undirected,
    partner_row,
    slopes,
    turned_entries,
    with_reference,
)
from dyads.model.walk import WALK_FEATURES, Walk

Array = np.ndarray[Any, Any]

MOST_SEEN = 2**25
"""Most training pairs that a model keeps, at four bytes each: more make its file large."""


@dataclass(frozen=True, kw_only=True)
class Entities:
    """The entities of one id set (rows, columns, or the nodes that are both) as the training data describe them.

    Attributes
    ----------
    ids : ids with labels, and ids that occur in a feature table only
    counts : (n,) summed weight of the training dyads of each entity; of both roles with one id set
    features : sparse (n, n_features), or None
    average_features : (n_features,) features assumed for an unknown entity: the mean, weighted by counts
    encoder : encoder of the feature table, or None; features beyond its own are the sets of `implicit`
    """

    ids: Vocabulary
    counts: Array
    features: Any
    average_features: Array
    encoder: Encoder | None

    @classmethod
    def of(cls, ids: Vocabulary, counts: Array, features: Any, encoder: Encoder | None) -> Self:
        """Build the entities, with the average of their features weighted by counts."""
        average = np.zeros(0) if features is None else np.asarray(features.T @ (counts / counts.sum()))
        return cls(ids=ids, counts=counts, features=features, average_features=average, encoder=encoder)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_features(self) -> int:
        return len(self.average_features)

    def named(self, name: str) -> Self:
        """Return the same entities with the id column called `name`."""
        return self if name == self.ids.name else replace(self, ids=replace(self.ids, name=name))

    def grown(self, ids: Vocabulary) -> Self:
        """Return a copy for `ids`, which appends new ids without labels; all features of the new ids are missing."""
        n_new, features = len(ids) - len(self), self.features
        if features is not None and n_new:
            line = sparse.csr_array((1, 0)) if self.encoder is None else self.encoder.absent_line()
            line.resize((1, features.shape[1]))
            features = sparse.vstack([features, line[np.zeros(n_new, np.int64)]], format="csr")
        return replace(self, ids=ids, counts=np.concatenate([self.counts, np.zeros(n_new)]), features=features)


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the training data contain. All draws share one copy.

    Attributes
    ----------
    classes : (n_labels,) the labels, sorted or, if they are ordered text, from lowest to highest
    sets : the entities of each id set: (rows, columns), or (nodes,); `rows` and `cols` are views of these
    col_name : name of the table column of column ids; with one id set, `rows` and `cols` differ in this name only
    relations : the relations seen in training, or None if there is one
    relation_counts : (n_relations,) summed weight of the training dyads of each relation
    label_counts : the same of each row, column and relation, by label
    shared_centre : (n_relations, shared size) value that the penalty shrinks shared blocks towards
    dyad_encoder : encoder of the features of dyads, or None
    seen : the training pairs that are not recommended again, or None if they were too many to keep
    only_links : whether these are the links alone, not all training pairs: a non-link is what may become a link
    walk : the random walk on the graph of these links whose score is a feature of dyads, or None
    """

    classes: Array
    sets: tuple[Entities, ...]
    col_name: str
    relations: Vocabulary | None
    relation_counts: Array
    label_counts: LabelCounts
    shared_centre: Array
    dyad_encoder: Encoder | None
    seen: Seen | None = None
    only_links: bool = False
    walk: Walk | None = None

    @property
    def rows(self) -> Entities:
        return self.sets[0]

    @cached_property
    def cols(self) -> Entities:
        return self.sets[-1].named(self.col_name)

    @property
    def one_set(self) -> bool:
        """Whether rows and columns are nodes of one id set."""
        return len(self.sets) == 1

    @property
    def vocabularies(self) -> list[Vocabulary]:
        """The ids of rows and columns, and the relations if there are several."""
        return [self.rows.ids, self.cols.ids, *([] if self.relations is None else [self.relations])]

    @property
    def counts(self) -> Counts:
        """The summed weight of the training dyads of each row, column and relation."""
        return Counts(self.rows.counts, self.cols.counts, self.relation_counts)

    def counts_of(self, dyads: Dyads) -> Counts:
        """Return the summed weight of other dyads of the same entities."""
        return Counts.of(dyads, self.one_set)

    @property
    def side(self) -> Side:
        """The features of rows and columns; with one id set, the features of nodes are in the place of the rows'."""
        return Side(*(entities.features for entities in self.sets))

    @property
    def n_features(self) -> tuple[int, int, int]:
        """The number of features of rows (or nodes), columns and dyads."""
        row, col, _ = self.side.widths
        return row, col, len(self.feature_names("dyad"))

    @cached_property
    def graph(self) -> Any:
        """The undirected graph of the links in `seen`: sparse (n_nodes, n_nodes), of 0 and 1; for one id set."""
        assert self.seen is not None
        row, col = self.seen.row, self.seen.col
        row, col = np.append(row, col), np.append(col, row)
        links = sparse.csr_array((np.ones(len(row)), (row, col)), shape=(len(self.rows), len(self.rows)))
        links.setdiag(0)
        links.eliminate_zeros()
        links.data[:] = 1
        return links

    def pair_features(self, codes: Sequence[Codes], given: Any = None) -> Any:
        """Return the features of dyads, sparse (n, n_features), or None: those `given` with them, or of the walk."""
        if self.walk is None:
            return given
        return sparse.csr_array(self.walk.features(self.graph, codes[0], codes[1]))

    def set_of(self, role: int) -> int:
        """Return the index in `sets` of the entities of a role: 0 for rows, 1 for columns."""
        return min(role, len(self.sets) - 1)

    def grown(self, rows: Vocabulary, cols: Vocabulary) -> Self:
        """Return a copy for `rows` and `cols`, which append new ids."""
        grown = self.with_sets(entities.grown(ids) for entities, ids in zip(self.sets, (rows, cols), strict=False))
        return replace(grown, label_counts=self.label_counts.grown(len(grown.rows), len(grown.cols)))

    def with_sets(self, sets: Iterable[Entities]) -> Self:
        """Return a copy with other entities for each id set."""
        return replace(self, sets=tuple(sets))

    def having_seen(self, dyads: Dyads) -> Self:
        """Return a copy that does not recommend the pairs of `dyads` again either; see `seen`."""
        if self.seen is None:
            return self
        # A link has any label but the first.
        n_new = np.count_nonzero(dyads.label) if self.only_links else len(dyads)
        if n_new > MOST_SEEN:
            return replace(self, seen=None)
        chosen = np.flatnonzero(dyads.label) if self.only_links else slice(None)
        relation = None if dyads.relation is None else dyads.relation[chosen]
        joined = self.seen.joined(Seen.of(dyads.row[chosen], dyads.col[chosen], relation))
        return replace(self, seen=None if len(joined) > MOST_SEEN else joined)

    def counted(self, dyads: Dyads) -> Self:
        """Return a copy that counts `dyads` as training dyads too."""
        counts = self.counts_of(dyads)
        counted = self.having_seen(dyads).with_sets(
            replace(entities, counts=entities.counts + more)
            for entities, more in zip(self.sets, counts[:2], strict=False)
        )
        return replace(
            counted,
            relation_counts=self.relation_counts + counts.relation,
            label_counts=self.label_counts + LabelCounts.of(dyads),
        )

    def without_counts(self) -> Self:
        """Return a copy with all counts zero."""
        uncounted = self.with_sets(replace(entities, counts=np.zeros(len(entities))) for entities in self.sets)
        labels = LabelCounts(*(0 * counts for counts in self.label_counts.parts))
        return replace(uncounted, relation_counts=np.zeros_like(self.relation_counts), label_counts=labels)

    def feature_names(self, side: str) -> list[str]:
        """Return the names of the features of one side: "row", "col" or "dyad"."""
        if side == "dyad":
            given = [] if self.dyad_encoder is None else self.dyad_encoder.names
            return [*given, *([] if self.walk is None else WALK_FEATURES)]
        entities, others = (self.rows, self.cols) if side == "row" else (self.cols, self.rows)
        names = [] if entities.encoder is None else list(entities.encoder.names)
        partners = others.ids.ids[: entities.n_features - len(names)].to_pylist()
        return names + [f"seen with {partner}" for partner in partners]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What was chosen: everything that defines the objective, apart from the data.

    Attributes
    ----------
    structure : maps blocks to scores
    loss : maps scores and a label to a value
    rank : number of own latent columns of an entity
    bias : whether entities have own biases
    interactions : number of latent columns in which features have weights
    implicit : whether the set of partners of an entity in the training dyads serves as features
    strengths, scaling : arguments of `Penalty.of`
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
        """Return the layout of theta for the known entities."""
        return Layout(
            self.structure,
            len(known.rows),
            len(known.cols),
            n_relations=1 if known.relations is None else len(known.relations),
            n_features=known.n_features,
            interactions=self.interactions,
        )

    def objective(self, known: Known, counts: Counts | None = None) -> Objective:
        """Return the objective for the dyads counted in `known`, or for other dyads with the given `counts`."""
        layout = self.layout(known)
        counts = known.counts if counts is None else counts
        penalty = Penalty.of(layout, self.strengths, self.scaling, counts, known.shared_centre)
        free = layout.free(self.rank, self.bias)
        return Objective(layout, self.loss, penalty, None if free.all() else free)

    def n_parameters(self, known: Known) -> int:
        """Return the number of learnt parameters of a draw: fixed ones and blocks without labels do not count."""
        layout = self.layout(known)
        free = layout.free(self.rank, self.bias)
        for entities, block in zip(known.sets, layout.blocks(free), strict=False):
            block[entities.counts == 0] = False
        return int(free.sum())

    def log_odds(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into log-odds relative to the reference, or to the geometric mean of all labels."""
        if self.structure.reference < self.structure.n_labels:
            return np.asarray(scores - scores[:, [self.structure.reference]])
        return np.asarray(scores - scores.mean(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class Population:
    """The distribution of the own blocks of one role, rows or columns, in one draw.

    The spreads of the two roles are paired: draw m of the rows belongs to draw n_draws - 1 - m of the columns. Both
    come from one training dyad, so a row and a column without labels vary jointly, as in a dyad. With one id set the
    same spread serves both roles; it holds each dyad in both orders.

    Attributes
    ----------
    average : (size,) mean of own blocks, weighted by counts
    spread : (n_draws, size) deviations from `average`: those of entities in sampled training dyads. They are added to
        the block of an entity without labels. Empty if such an entity is an average one.
    partner_shift : (n, n_labels) score shift for pairs with an unlabelled partner: the partners an entity is observed
        with are not average ones (selection effect). All draws of a posterior share one.
    centre : (size,) value that own blocks are shrunk towards; nonzero if biases were centred or the prior was learnt
    precision : (size, size) precision of the learnt prior of own blocks; None if the penalty is the prior
    predictions : (n, n_labels) mean predicted probabilities of the training dyads of each entity; None unless
        ``unknown="mean"``
    """

    average: Array
    spread: Array
    partner_shift: Array
    centre: Array
    precision: Array | None = None
    predictions: Array | None = None

    def grown(self, n_new: int) -> Self:
        """Return a copy with `n_new` further entities without labels."""
        if not n_new:
            return self
        shift, predictions = self.partner_shift, self.predictions
        if len(shift):
            shift = np.concatenate([shift, np.zeros((n_new, *shift.shape[1:]))])
        if predictions is not None:
            predictions = np.vstack([predictions, np.full((n_new, predictions.shape[1]), np.nan)])
        return replace(self, partner_shift=shift, predictions=predictions)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What was learnt: a point estimate or a posterior draw.

    Attributes
    ----------
    theta : (size,) parameters, in the layout of `Parts.layout`
    rows, cols : distributions of own blocks; with one id set they differ in their `partner_shift` only
    prediction : (n_labels,) mean predicted probabilities of all training dyads; None unless ``unknown="mean"``
    """

    theta: Array
    rows: Population
    cols: Population
    prediction: Array | None = None

    @classmethod
    def trained(cls, parts: Parts, known: Known, theta: Array) -> Self:
        """Return the point estimate for the parameters `theta` of a solver.

        The mean of the biases, weighted by counts, moves into the label bias, so an average row has bias zero.
        Entities without labels get the average own block.
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
                # Centring shifts all own blocks by the same vector, and the value they are shrunk towards with them.
                centre=(new[0] - old[0]).astype(np.float64),
            )
            populations.append(population)
            new[entities.counts == 0] = average
        return cls(theta=centred, rows=populations[0], cols=populations[-1])

    @classmethod
    def drawn(cls, parts: Parts, known: Known, theta: Array, priors: tuple[BlockPrior, ...]) -> Self:
        """Return a posterior draw, with the priors that were drawn with it: one for each id set, and for relations."""
        point, populations = cls.trained(parts, known, theta), []
        for population, prior in zip((point.rows, point.cols)[: len(known.sets)], priors, strict=False):
            centre = (prior.mean + population.centre).astype(theta.dtype)
            average = population.average.astype(theta.dtype)
            populations.append(replace(population, average=average, centre=centre, precision=prior.precision))
        return replace(point, rows=populations[0], cols=populations[-1])


def averaged(parts: Parts, known: Known, thetas: Sequence[Array]) -> tuple[Parts, Known, Array]:
    """Return one model whose scores are the means of those of several models, by their parameters.

    A sum of inner products is the inner product of longer vectors: with n models

        1/n sum_m a_m . b_m = a . b,    a = (a_1, ..., a_n) / sqrt(n),    b = (b_1, ..., b_n) / sqrt(n)

    so the mean has n times the rank or, for `Stereotype`, n times the terms, and the means of the biases. A penalty on
    its blocks is the mean of their penalties.
    """
    if len(thetas) == 1:
        return parts, known, thetas[0]
    n, structure = len(thetas), parts.structure.repeated(len(thetas))
    times = 1 if isinstance(structure, Stereotype) else n
    wide = replace(parts, structure=structure, rank=times * parts.rank, interactions=times * parts.interactions)
    before, after = parts.layout(known), wide.layout(known)
    # A layout has the latent columns with side weights first, and the models' own columns before their others.
    place = 0 if times == 1 else min(parts.rank, parts.interactions)

    def flat(several: Sequence[Array]) -> Array:
        theta = np.zeros(after.size, several[0].dtype)
        named = [before.named(each) for each in several]
        for name, part in after.named(theta).items():
            values = np.array([each[name] for each in named])
            if "factors" in name:
                values /= np.sqrt(n)
            if part.shape == values.shape[1:]:
                part[:] = values.mean(axis=0)
            else:
                axis = next(i for i, size in enumerate(part.shape) if size != values.shape[1 + i])
                ordered = [*values[..., :place], *values[..., place:]] if place else [*values]
                part[:] = np.concatenate(ordered, axis=axis)
        return theta

    centre = np.zeros(before.size)
    before.blocks(centre).shared[:] = known.shared_centre
    return wide, replace(known, shared_centre=after.blocks(flat([centre] * n)).shared), flat(thetas)


@dataclass(frozen=True, kw_only=True)
class Model:
    """One draw with its `Parts` and `Known`: the mathematics of a single trained model."""

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
        """The distributions of own blocks of rows and of columns."""
        return self.draw.rows, self.draw.cols

    @cached_property
    def layout(self) -> Layout:
        return self.parts.layout(self.known)

    @cached_property
    def effective(self) -> Blocks:
        """The effective blocks of all entities; in double precision if there are features."""
        theta = np.ascontiguousarray(self.theta)
        double = theta.astype(np.float64) if any(self.layout.n_features) else theta
        return self.layout.effective(double, self.known.side)

    @cached_property
    def unknown(self) -> Blocks:
        """The effective blocks of an unknown row, column and relation, (1, size) each: averages, features included."""
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
        """Masks of the rows (n_rows + 1,) and columns (n_cols + 1,) without labels, to be averaged over their spread.

        The last entry is for unknown ids, so that the code -1 indexes it.
        """
        rows, cols = (
            np.append(counts == 0, True) & bool(len(population.spread))
            for counts, population in zip(self.known.counts[:2], self.populations, strict=True)
        )
        return rows, cols

    def without_spread(self) -> Self:
        """Return a copy in which an entity without labels is an average one."""
        return self._with_spreads(self.draw.rows.spread[:0], self.draw.cols.spread[:0])

    def one_draw(self) -> Self:
        """Return a copy in which each role has a single draw for its entities without labels."""
        # With one id set both spreads are the same table; its two ends serve as two different new nodes.
        return self._with_spreads(self.draw.rows.spread[:1], self.draw.cols.spread[-1:])

    def _with_spreads(self, row: Array, col: Array) -> Self:
        rows, cols = replace(self.draw.rows, spread=row), replace(self.draw.cols, spread=col)
        return replace(self, draw=replace(self.draw, rows=rows, cols=cols))

    @property
    def _latent_start(self) -> int:
        """The index at which the latent part of a block starts, after the biases."""
        return self.structure.n_bias * free_labels(self.structure)

    def factors(self, name: str) -> Array:
        """Return a named part of the latent weights.

        If each label has its own weights, the shape is (n, n_labels, rank), with zeros for the reference.
        """
        part = self.layout.named(self.theta)[name]
        shared_by_labels = bool(self.structure.latent_shapes()[2])
        return part if shared_by_labels else with_reference(self.structure, part)

    def latent(self, codes: Array, side: str) -> Array:
        """Return the latent part of the effective blocks of some rows or columns (or nodes), (n, size)."""
        block = self.effective.row if side == "row" else self.effective.col
        return block[codes, self._latent_start :]

    def vectors(self, codes: Array, side: str, label: int, relation: int) -> Array:
        """Return vectors (n, size + 1) of rows or of columns, whose inner products are the log-odds of a label.

        The scores are linear in the block a of a row, s_z = base_z + sum_k E_zk v_k a_k (see `label_weights`), and so
        are the log-odds sum_z g_z s_z of `Parts.log_odds`. Their vectors are

            row: (a, 1)    column: (sum_z g_z E_zk v_k for each k, sum_z g_z base_z)
        """
        structure, blocks = self.structure, self.effective
        if side == "row":
            return np.append(blocks.row[codes], np.ones((len(codes), 1), blocks.row.dtype), axis=1)
        contrast = self.parts.log_odds(np.eye(structure.n_labels))[:, label]
        b, h = blocks.col[codes].astype(np.float64), blocks.shared[relation].astype(np.float64)
        weights, takes_part = np.empty(b.shape[1]), np.empty((b.shape[1], 1))
        slopes(structure, h, contrast, weights)
        partner_row(structure, np.ones(b.shape[1]), takes_part, 0)
        factors = b[:, turned_entries(structure, b.shape[1])]
        factors[:, : self._latent_start] = 1
        first, n = col_bias(structure), free_labels(structure)
        base = h[:n] + (b[:, first : first + n] if structure.n_bias else np.zeros((len(b), n)))
        constant = with_reference(structure, base) @ contrast
        return np.column_stack([weights * takes_part[:, 0] * factors, constant]).astype(blocks.col.dtype)

    def latent_size(self) -> float:
        """Return the root mean square of the latent weights of rows and columns with labels."""
        sides = zip(self.effective[:2], self.known.counts[:2], strict=True)
        labelled = (block[counts > 0, self._latent_start :] for block, counts in sides)
        return float(np.sqrt(np.mean([np.mean(block.astype(np.float64) ** 2) for block in labelled])))

    def relation_similarity(self) -> Array:
        """Return the cosine similarity of the weights of relations (n_relations, n_relations): x . y / (|x| |y|).

        It is not a correlation about the mean, because the mean has no meaning here: the penalty equalises the sizes
        of the weights, and flipping signs of factors can make all weights of one relation positive.
        """
        shared = self.layout.blocks(self.theta).shared[:, free_labels(self.structure) :].astype(np.float64)
        length = np.linalg.norm(shared, axis=1, keepdims=True)
        unit = shared / np.where(length > 0, length, 1)
        return np.asarray(unit @ unit.T)

    def start_for(self, known: Known, theta: Array) -> Array:
        """Return a warm start for training on `known`.

        It is a copy of `theta`, which has the layout of `known`, with the weights that this model learnt for the same
        ids, relations and features.
        """
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
        """Return the parameters before centring: the same scores, with own blocks shrunk towards zero as in training.

        A posterior draw is returned as it is: its priors have learnt means.
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
        """Return the draw for `known`, which appends new ids: each gets the average own block."""
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
    """A map from probabilities to calibrated ones; `dyads.trained.calibration` has the implementations."""

    def apply(self, proba: Array) -> Array:
        """Turn probabilities (n, n_labels) into calibrated ones (n, n_labels)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Record:
    """A trained model: everything needed to predict and to fold in new entities.

    Attributes
    ----------
    parts : what was chosen
    known : what the training data contain
    draws : what was learnt: one draw for a point estimate; several, whose probabilities are averaged, for a posterior
    best : number of the draw that stands for all where one set of weights is asked for: the one of highest posterior
        density
    calibrator : applied to predicted probabilities, or None
    nonconformity : (n,) sorted nonconformity scores, one minus the probability of each held-out label, for conformal
        sets of labels; or None
    """

    parts: Parts
    known: Known
    draws: tuple[Draw, ...]
    best: int = 0
    calibrator: Calibrator | None = None
    nonconformity: Array | None = None

    @cached_property
    def models(self) -> list[Model]:
        """One model per draw; their probabilities are averaged."""
        return [Model(parts=self.parts, known=self.known, draw=draw) for draw in self.draws]

    @property
    def best_model(self) -> Model:
        """The model of the draw `best`."""
        return self.models[self.best]

    @property
    def is_posterior(self) -> bool:
        """Whether the draws are posterior draws."""
        return self.draws[0].rows.precision is not None

    def n_parameters(self) -> int:
        """Return the number of learnt parameters; for a posterior, that of one draw."""
        return self.parts.n_parameters(self.known)

    def proba(self, scores: Array) -> Array:
        """Turn scores (n, n_labels) into probabilities, calibrated if there is a calibrator."""
        proba = link(scores)
        return proba if self.calibrator is None else self.calibrator.apply(proba)

    def marginals(self, codes: Sequence[Codes]) -> dict[str, Array]:
        """Return the label frequencies of the training dyads as predictions (n, n_labels) for other dyads, by name.

        "all labels": those of all dyads; "labels by " and the name of an id column: those of the dyads of the same id,
        smoothed. Undirected pairs count for both of their nodes. `codes` : of rows, columns and relations if several.
        """
        counts = self.known.label_counts
        if is_undirected(type(self.parts.structure), self.known.one_set):
            counts = counts.undirected()
        frequencies: dict[str, Array] = {
            "all labels": np.broadcast_to(counts.shares, (len(codes[0]), len(counts.shares)))
        }
        owners = zip(self.known.vocabularies, codes, ("row", "col", "relation"), strict=False)
        return frequencies | {f"labels by {ids.name}": counts.smoothed(of)[owner] for ids, owner, of in owners}

    def grown(self, rows: Vocabulary, cols: Vocabulary) -> Self:
        """Return a copy for `rows` and `cols`, which append new ids."""
        known = self.known.grown(rows, cols)
        return replace(self, known=known, draws=tuple(model.grown(known) for model in self.models))
