"""Sums at x: the loss of an entity's dyads as a function of its block x, with gradient and curvature; see `entity`.

The Jacobian of a dyad's scores is J[y, k] = E[y, group of k] v_k (see `label_weights`), so the dyad's curvature is

    (J^T C J)[k, j] = (E^T C E)[group of k, group of j] v_k v_j.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.engine.bundles import TILE, Data, Owned, Specs, are_several, relation_at, weigh
from dyads.engine.compiled import by_type, inlined, jitable, kernel, read_if_present
from dyads.engine.orders import Run, even_tasks
from dyads.engine.passes import score_dyad
from dyads.model.loss import curvature, evaluate
from dyads.model.parameters import Blocks, Role
from dyads.model.structure import (
    Structure,
    free_labels,
    label_weights,
    partner_col,
    partner_row,
    partner_shared,
    shared_label_weights,
)

Array = np.ndarray[Any, Any]

NOT_ONE = 2.0
"""Value of the shared block in `parts_of`, which looks for label weights that are one whatever that block is."""


class Prior(NamedTuple):
    """The penalty of the blocks of a run of entities: 1/2 scale_e (x_e - centre_e)^T precision (x_e - centre_e).

    Attributes
    ----------
    precision : (size, size)
    scale : (n,)
    centre : (n, size)
    active : (size,) mask of the entries that are free; the others are fixed
    """

    precision: Any
    scale: Any
    centre: Any
    active: Any

    def of(self, owners: slice) -> "Prior":
        """Return the prior of some of the entities."""
        return self._replace(scale=self.scale[owners], centre=self.centre[owners])


class Part(NamedTuple):
    """Entries of a block that move together, in whole groups; see `label_weights`.

    Attributes
    ----------
    entry : (size,) indices of the entries in the block
    group : (n_groups,) indices of their groups
    end : (n_groups,) one past the last entry of each group, counted within the part
    own : (n_groups,) the only label with a weight in the group, if that weight is one; otherwise -1
    """

    entry: Any
    group: Any
    end: Any
    own: Any

    @classmethod
    def of(cls, start: Array, own: Array, groups: Array) -> "Part":
        entries = [np.arange(start[group], start[group + 1]) for group in groups]
        end = np.cumsum([len(places) for places in entries])
        return cls(np.concatenate([np.zeros(0, np.int64), *entries]), groups.astype(np.int64), end, own[groups])


def group_starts(structure: Structure, role: Role, size: int) -> Array:
    """Return the first entry of each group of a block, followed by the size of the block."""
    shared = role in (Role.SHARED, Role.FEATURE)
    n_single = free_labels(structure) * (1 if shared else structure.n_bias)
    width = structure.group_widths()[shared]
    return np.concatenate([np.arange(n_single), np.arange(n_single, size, width or 1), [size]])


def parts_of(structure: Structure, role: Role, size: int, shared_size: int, most: int) -> list[Part]:
    """Cut a block into parts of at most `most` entries.

    Parts consist of whole groups, sorted by label; a group larger than `most` is a part of its own.
    """
    start = group_starts(structure, role, size)
    weights = np.zeros((structure.n_labels, len(start) - 1))
    if role in (Role.SHARED, Role.FEATURE):
        shared_label_weights(structure, weights)
    else:
        # Weights that depend on the shared block must not look like constant ones.
        label_weights(structure, np.full(shared_size, NOT_ONE), weights)
    owned = ((weights != 0).sum(axis=0) == 1) & (weights.sum(axis=0) == 1)
    own = np.where(owned, np.argmax(weights, axis=0), -1)
    order = np.argsort(np.where(owned, own, structure.n_labels), kind="stable")
    parts: list[list[int]] = []
    room = 0
    for group in order:
        width = int(start[group + 1] - start[group])
        if not parts or width > room:
            parts.append([])
            room = most
        parts[-1].append(int(group))
        room -= width
    return [Part.of(start, own, np.sort(groups)) for groups in parts]


class Work(NamedTuple):
    """Scratch arrays of the sums over dyads; `Part` has n_groups groups and size entries.

    Attributes
    ----------
    s : (n_labels,) scores
    g : (n_labels,) score gradient
    C : (n_labels, n_labels) curvature of the loss in the scores
    E : (n_labels, groups of the block) label weights
    pull : (n_groups,) E^T g, the gradient of each group of the part
    partner : (block size,) the factor v_k of each entry of the block
    moving : (size,) the factors v_k of the entries of the part
    CE : (n_labels, n_groups) C E
    bend : (n_groups, n_groups) E^T C E, the curvature of each pair of groups
    tile_gx : (size,) gradient summed over finished tiles
    tile_M : (size, size) curvature summed over finished tiles
    """

    s: Any
    g: Any
    C: Any
    E: Any
    pull: Any
    partner: Any
    moving: Any
    CE: Any
    bend: Any
    tile_gx: Any
    tile_M: Any

    @classmethod
    def of(cls, structure: Structure, role: Role, block_size: int, part: Part) -> "Work":
        n_labels, n_all = structure.n_labels, len(group_starts(structure, role, block_size)) - 1
        n_groups, size = len(part.group), len(part.entry)
        shapes = (
            (n_labels,), (n_labels,), (n_labels, n_labels), (n_labels, n_all), (n_groups,), (block_size,), (size,),
            (n_labels, n_groups), (n_groups, n_groups), (size,), (size, size),
        )  # fmt: skip
        return cls(*(np.empty(shape) for shape in shapes))


class EntitySums(NamedTuple):
    """The loss of the dyads of each entity of a run as a function of its block, given everything else.

    Attributes
    ----------
    specs : structure and loss
    owned : the run of entities, with their dyads
    blocks : effective blocks of all rows and columns, and shared blocks; a run of rows reads the blocks of columns,
        and vice versa
    data : the dyads
    prior : prior of the blocks of the run
    """

    specs: Specs
    owned: Owned
    blocks: Blocks
    data: Data
    prior: Prior

    def loss_at(self, e: int, x: Array, part: Part, work: Work) -> float:
        return entity_loss_pass(self, e, x, work)  # type: ignore[no-any-return]

    def curvature_at(self, e: int, x: Array, part: Part, gx: Array, M: Array, work: Work) -> float:
        return entity_curvature_pass(self, e, x, part, gx, M, work)  # type: ignore[no-any-return]

    def has_self_link(self, e: int) -> bool:
        """Whether an entity has a dyad with itself; then f may have several minima."""
        linked = False
        if self.owned.role == Role.NODE:
            for n in range(self.owned.start[e], self.owned.start[e + 1]):
                i = self.owned.order[n]
                linked = linked or self.data.row[i] == self.data.col[i]
        return linked


class SharedSums:
    """The loss of the dyads of each relation as a function of its shared block.

    The sum of a relation is divided into tasks over shards of rows; the sums of tasks are added in the order of tasks.
    """

    def __init__(self, sums: Sequence[EntitySums], prior: Prior, run: Run) -> None:
        """`sums` : one per shard, owned by relations."""
        self.sums, self.prior, self.run = sums, prior, run
        self.owned = sums[0].owned
        self.structure = sums[0].specs.structure
        self._tasks: dict[int, list[EntitySums]] = {}

    def tasks(self, t: int) -> list[EntitySums]:
        """Return the tasks of a relation: sums over ranges of its dyads, each with the relation as its only entity."""
        if t not in self._tasks:
            self._tasks[t] = [
                sums._replace(owned=sums.owned._replace(first=t, start=np.array(bounds)))
                for sums in self.sums
                for bounds in even_tasks(int(sums.owned.start[t]), int(sums.owned.start[t + 1]))
            ]
        return self._tasks[t]

    def loss_at(self, t: int, x: Array, part: Part, work: Work) -> float:
        return float(sum(self.run(lambda sums: entity_loss_pass(sums, 0, x, self._work(x, part)), self.tasks(t))))

    def curvature_at(self, t: int, x: Array, part: Part, gx: Array, M: Array, work: Work) -> float:
        def task(sums: EntitySums) -> tuple[float, Array, Array]:
            some_gx, some_M = np.zeros_like(gx), np.zeros_like(M)
            return entity_curvature_pass(sums, 0, x, part, some_gx, some_M, self._work(x, part)), some_gx, some_M

        total = 0.0
        clear(gx, M)
        for value, some_gx, some_M in self.run(task, self.tasks(t)):
            total += value
            add_sums(some_gx, some_M, gx, M)
        return total

    def has_self_link(self, t: int) -> bool:
        return False

    def _work(self, x: Array, part: Part) -> Work:
        return Work.of(self.structure, Role.SHARED, len(x), part)


@by_type
def loss_at(sums: Any, e: int, x: Array, part: Part, work: Work) -> float:
    """Return the loss of an entity's dyads with block x."""
    return float(sums.loss_at(e, x, part, work))


@by_type
def curvature_at(sums: Any, e: int, x: Array, part: Part, gx: Array, M: Array, work: Work) -> float:
    """Return the loss of an entity's dyads with block x; WRITE its gradient and curvature in the entries of `part`.

    `gx` : (size,), `M` : (size, size), the upper triangle.
    """
    return float(sums.curvature_at(e, x, part, gx, M, work))


@by_type
def has_self_link(sums: Any, e: int) -> bool:
    """Whether an entity has a dyad with itself."""
    return bool(sums.has_self_link(e))


# Kernels unpack bundles before they loop: a field of a large bundle would be read from memory in every iteration.


@kernel
def entity_loss_pass(sums, e, x, work):  # type: ignore[no-untyped-def]
    """See `loss_at`."""
    specs, owned, blocks, data, s, g = sums.specs, sums.owned, sums.blocks, sums.data, work.s, work.g
    first, last = owned.start[e], owned.start[e + 1]
    total = 0.0
    for begin in range(first, last, TILE):
        value = 0.0
        for n in range(begin, min(begin + TILE, last)):
            i = owned.order[n]
            score_with(specs.structure, owned, blocks, data, e, n, x, s)
            value += weigh(data.weight, i, evaluate(specs.loss, data.label[i], s, g))
        total += value
    return total


@kernel
def entity_curvature_pass(sums, e, x, part, gx, M, work):  # type: ignore[no-untyped-def]
    """See `curvature_at`.

    Each tile is summed separately, so that a large entity can be divided between tiles. The innermost loops add
    gradient and curvature of groups times the factors v of their entries; in a function of their own they are a tenth
    slower.
    """
    structure, loss, owned, blocks, data = sums.specs.structure, sums.specs.loss, sums.owned, sums.blocks, sums.data
    entry, group, end, own = part.entry, part.group, part.end, part.own
    s, g, C, E, CE, pull, bend = work.s, work.g, work.C, work.E, work.CE, work.pull, work.bend
    partner, moving = work.partner, work.moving
    first, last = owned.start[e], owned.start[e + 1]
    n_single, dense = kinds_of_groups(end, own)
    total = 0.0
    clear(gx, M)
    if last - first > TILE:
        clear(work.tile_gx, work.tile_M)
    for begin in range(first, last, TILE):
        value = 0.0
        for n in range(begin, min(begin + TILE, last)):
            i = owned.order[n]
            a, b, h = score_with(structure, owned, blocks, data, e, n, x, s)
            value += weigh(data.weight, i, curvature(loss, data.label[i], s, g, C))
            stand_beside(structure, owned, data, e, n, a, b, partner)
            for k in range(entry.size):
                moving[k] = partner[entry[k]]
            if dense and (n == first or are_several(data.relation)):
                label_weights(structure, h, E)
            bend_groups(weigh(data.weight, i, 1.0), own, group, g, C, E, CE, pull, bend)
            for p in range(n_single):
                c = moving[p]
                gx[p] += pull[p] * c
                for q in range(p, n_single):
                    M[p, q] += c * bend[p, q] * moving[q]
                for q in range(n_single, end.size):
                    cq = c * bend[p, q]
                    for j in range(end[q - 1] if q else 0, end[q]):
                        M[p, j] += cq * moving[j]
            for p in range(n_single, end.size):
                for k in range(end[p - 1] if p else 0, end[p]):
                    c = moving[k]
                    gx[k] += pull[p] * c
                    if c != 0:
                        cp = c * bend[p, p]
                        for j in range(k, end[p]):
                            M[k, j] += cp * moving[j]
                        for q in range(p + 1, end.size):
                            cq = c * bend[p, q]
                            for j in range(end[q - 1], end[q]):
                                M[k, j] += cq * moving[j]
        total += value
        if last - first > TILE:
            add_sums(gx, M, work.tile_gx, work.tile_M)
            clear(gx, M)
    if last - first > TILE:
        add_sums(work.tile_gx, work.tile_M, gx, M)
    return total


@jitable
def kinds_of_groups(end, own):  # type: ignore[no-untyped-def]
    """Return the number of leading groups of one entry (biases), and whether any group needs its label weights E."""
    n_single, dense = 0, False
    while n_single < end.size and end[n_single] == n_single + 1:
        n_single += 1
    for p in range(own.size):
        dense = dense or own[p] < 0
    return n_single, dense


@inlined
def score_with(structure, owned, blocks, data, e, n, x, s):  # type: ignore[no-untyped-def]
    """WRITE the scores of the dyad at position n of the order, with x for the block of entity e; return its blocks."""
    i = owned.order[n]
    own_row, own_col = roles_of(owned, data, e, i)
    h = x if owned.role == Role.SHARED else blocks.shared[relation_at(data.relation, i)]
    a = x if own_row else blocks.row[data.row[i]]
    b = x if own_col else blocks.col[data.col[i]]
    score_dyad(structure, a, b, h, data.offset, i, s)
    add_feature(owned.amount, n, structure, x, s)
    return a, b, h


@inlined
def roles_of(owned, data, e, i):  # type: ignore[no-untyped-def]
    """Return whether entity e is the row of dyad i, and whether it is the column."""
    own_row = owned.role == Role.ROW or (owned.role == Role.NODE and data.row[i] == owned.first + e)
    own_col = owned.role == Role.COL or (owned.role == Role.NODE and data.col[i] == owned.first + e)
    return own_row, own_col


@inlined
def stand_beside(structure, owned, data, e, n, a, b, partner):  # type: ignore[no-untyped-def]
    """WRITE the factor v_k of each entry of the block of entity e in the scores of the dyad at position n."""
    own_row, own_col = roles_of(owned, data, e, owned.order[n])
    for k in range(partner.size):
        partner[k] = 0
    if owned.role == Role.SHARED:
        partner_shared(structure, a, b, partner)
    beside_feature(owned.amount, n, partner)
    if own_row:
        partner_row(structure, b, partner)
    if own_col:
        partner_col(structure, a, partner)


@inlined
def bend_groups(times, own, group, g, C, E, CE, pull, bend):  # type: ignore[no-untyped-def]
    """WRITE `times` E^T g to `pull` and `times` E^T C E to the upper triangle of `bend`, for the groups of a part."""
    for p in range(group.size):
        if own[p] >= 0:
            pull[p] = times * g[own[p]]
        else:
            pull[p] = 0
            for y in range(g.size):
                pull[p] += times * E[y, group[p]] * g[y]
            for y in range(g.size):
                CE[y, p] = 0
                for q in range(g.size):
                    CE[y, p] += C[y, q] * E[q, group[p]]
    for p in range(group.size):
        for q in range(p, group.size):
            if own[p] >= 0:
                both = C[own[p], own[q]] if own[q] >= 0 else CE[own[p], q]
            elif own[q] >= 0:
                both = CE[own[q], p]
            else:
                both = g[0] * 0
                for y in range(g.size):
                    both += E[y, group[p]] * CE[y, q]
            bend[p, q] = times * both


@read_if_present(lambda amount, n, structure, x, s: None)
def add_feature(amount, n, structure, x, s):  # type: ignore[no-untyped-def]
    """s += contribution of a feature with weights x, for the dyad at position n."""
    for f in range(x.size):
        s[f + (f >= structure.reference)] += amount[n] * x[f]


@read_if_present(lambda amount, n, partner: None)
def beside_feature(amount, n, partner):  # type: ignore[no-untyped-def]
    """WRITE the value of the feature in the dyad at position n: the factor v_k of all its weights."""
    for k in range(partner.size):
        partner[k] = amount[n]


@read_if_present(lambda amount, sums, e, x: None)
def follow(amount, sums, e, x):  # type: ignore[no-untyped-def]
    """ADD the contribution of feature e with weights x to the score offsets of its dyads."""
    for n in range(sums.owned.start[e], sums.owned.start[e + 1]):
        add_feature(amount, n, sums.specs.structure, x, sums.data.offset[sums.owned.order[n]])


@kernel
def clear(gx, M):  # type: ignore[no-untyped-def]
    """Set gx and the upper triangle of M to zero."""
    gx[:] = 0
    for k in range(M.shape[0]):
        for j in range(k, M.shape[0]):
            M[k, j] = 0


@kernel
def add_sums(some_gx, some_M, gx, M):  # type: ignore[no-untyped-def]
    """ADD the sums of a tile or a task to gx and the upper triangle of M."""
    for k in range(gx.size):
        gx[k] += some_gx[k]
        for j in range(k, gx.size):
            M[k, j] += some_M[k, j]
