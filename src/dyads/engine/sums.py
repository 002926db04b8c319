"""Sums at x: the loss of an entity's dyads as a function of its block x, with gradient and curvature; see `entity`.

The scores of a dyad are affine in the block: s = base + J x, with the Jacobian J[y, k] = E[y, group of k] v_k (see
`label_weights`). The dyads of an entity are gathered in tiles, and base and v are stored once per entity, as x moves.
With the curvature C of the loss in the scores (see `loss`) and e_p = column p of E, a pair of groups has the weight

    w_pq = e_p^T C e_q = sum_y diagonal_y E_yp E_yq + sum_r weight_r (e_p . direction_r) (e_q . direction_r),

and the curvature is (J^T C J)[k, j] = w_pq v_k v_j for k in group p and j in group q. Summed over a tile, this is one
matrix product per group q: of the rows w_pq v_k of all groups p up to q with the rows v_j of q. Groups of one entry,
such as biases, share a product for each r of the second term. The first term is zero for biases of different labels;
entries that several labels share have a product for each label.

With a single free label, as binary labels with a reference have, E has one line, and is folded into the factors:
J[k] = E[group of k] v_k. A block is then one group of weight one, and dyads of all relations share tiles.

The score of a self-link is quadratic in the block: its base and v depend on x, and are computed again at each x.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.engine.bundles import ROOM, TILE, Data, Owned, Specs, relation_at, weigh
from dyads.engine.compiled import add_product, by_type, inlined, jitable, kernel, read_if_present, reduction
from dyads.engine.lanes import SERIAL
from dyads.engine.orders import CHUNK, Bounds, Run, even_tasks
from dyads.model.loss import Curvature, curvature, evaluate
from dyads.model.parameters import Blocks, Role
from dyads.model.structure import (
    Structure,
    base_col,
    base_row,
    base_shared,
    free_labels,
    label_weights,
    partner_col,
    partner_row,
    partner_shared,
    score,
    shared_label_weights,
    slopes,
)

Array = np.ndarray[Any, Any]

NOT_ONE = 2.0
"""Value of the shared block in `Groups.of`, which looks for label weights that are one whatever that block is."""

WIDTH = 8
"""Loops over the dyads of a tile run up to a multiple of this: the rest of a vectorised loop is slow, one by one.

What they compute beyond the last dyad enters no sum. Where a tile had six dyads, sweeps were a sixth faster (54 and 45
ms).
"""

WIDEST = 64
"""Most entries of a group of a single free label, so that large blocks can still be drawn in parts."""

GATHERED_BYTES = 2**19
"""Memory for gathered tiles per task: they should stay in a core's second cache. Tiles beyond it are gathered again."""

SHARED_BYTES = 2**27
"""Memory for the gathered tiles of a relation's dyads, while its shared block is updated."""

MOST_TASKS = 128
"""Tasks per relation and shard: each has scratch arrays of its own while a shared block is updated."""


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


class Groups(NamedTuple):
    """The groups of a block: runs of consecutive entries with the same label weights; see `label_weights`.

    Attributes
    ----------
    start : (n_groups + 1,) first entry of each group, followed by the size of the block
    own : (n_groups,) the only label with a weight in the group, if that weight is one; otherwise -1
    """

    start: Any
    own: Any

    @classmethod
    def of(cls, structure: Structure, role: Role, size: int, shared_size: int) -> "Groups":
        """Return the groups of a block of `size` entries; `shared_size` is the size of a shared block."""
        shared = role in (Role.SHARED, Role.FEATURE)
        n_single = free_labels(structure) * (1 if shared else structure.n_bias)
        width = structure.group_widths()[shared]
        start = np.concatenate([np.arange(n_single), np.arange(n_single, size, width or 1), [size]])
        weights = np.zeros((structure.n_labels, len(start) - 1))
        if shared:
            shared_label_weights(structure, weights)
        else:
            # Weights that depend on the shared block must not look like constant ones.
            label_weights(structure, np.full(shared_size, NOT_ONE), weights)
        owned = ((weights != 0).sum(axis=0) == 1) & (weights.sum(axis=0) == 1)
        return cls(start, np.where(owned, np.argmax(weights, axis=0), -1))

    @classmethod
    def folded(cls, structure: Structure, role: Role, size: int, shared_size: int) -> "Groups":
        """Return the groups of a block where the label weights of a single free label are folded into the factors."""
        if free_labels(structure) > 1:
            return cls.of(structure, role, size, shared_size)
        start = np.append(np.arange(0, size, WIDEST), size)
        return cls(start, np.full(len(start) - 1, int(structure.reference == 0)))

    def parts(self, most: int) -> "list[Part]":
        """Cut the block into parts of at most `most` entries.

        Parts consist of whole groups, sorted by label; a group larger than `most` is a part of its own.
        """
        order = np.argsort(np.where(self.own < 0, self.own.max(initial=0) + 1, self.own), kind="stable")
        parts: list[list[int]] = []
        room = 0
        for group in order:
            width = int(self.start[group + 1] - self.start[group])
            if not parts or width > room:
                parts.append([])
                room = most
            parts[-1].append(int(group))
            room -= width
        return [Part.of(self.start, np.sort(groups)) for groups in parts]


class Part(NamedTuple):
    """Entries of a block that move together, in whole groups.

    Attributes
    ----------
    entry : (size,) indices of the entries in the block
    group : (n_groups,) indices of their groups
    end : (n_groups,) one past the last entry of each group, counted within the part
    n_single : number of leading groups of one entry
    """

    entry: Any
    group: Any
    end: Any
    n_single: int

    @classmethod
    def of(cls, start: Array, groups: Array) -> "Part":
        entries = [np.arange(start[group], start[group + 1]) for group in groups]
        widths = np.array([len(places) for places in entries], np.int64)
        n_single = len(widths) if (widths == 1).all() else int(np.argmax(widths != 1))
        entry = np.concatenate([np.zeros(0, np.int64), *entries])
        return cls(entry, groups.astype(np.int64), np.cumsum(widths), n_single)


class Gathered(NamedTuple):
    """The dyads of an entity, gathered tile by tile into slots; tiles beyond the last slot share it.

    Attributes
    ----------
    first : (n_slots,) position in the order of the first dyad of the tile in each slot; -1 if it cannot be reused
    v : (n_slots, block size, ROOM) factor v_k of each entry of the block
    base : (n_slots, n_labels, ROOM) scores with a block of zeros
    label : (n_slots, ROOM) label codes
    weight : (n_slots, ROOM) weights of the dyads
    E : (n_slots, n_labels, n_groups) label weights of the groups of the block
    free : (n_labels,) mask of the free labels, if a single one is free; then E is folded into v
    folded : (block size,) the label weights that v is multiplied by
    """

    first: Any
    v: Any
    base: Any
    label: Any
    weight: Any
    E: Any
    free: Any
    folded: Any

    @classmethod
    def of(cls, structure: Structure, block_size: int, n_groups: int, most_tiles: int, memory: int) -> "Gathered":
        n_labels = structure.n_labels
        slots = int(np.clip(memory // (8 * ROOM * (block_size + n_labels + 2)), 1, max(1, most_tiles)))
        v, base = np.zeros((slots, block_size, ROOM)), np.zeros((slots, n_labels, ROOM))
        label, weight = np.zeros((slots, ROOM), np.int64), np.zeros((slots, ROOM))
        E, free = np.empty((slots, n_labels, n_groups)), (np.arange(n_labels) != structure.reference).astype(np.float64)
        return cls(np.full(slots, -1), v, base, label, weight, E, free, np.empty(block_size))


class Work(NamedTuple):
    """Scratch arrays of the sums over dyads; `Part` has n_groups groups and size entries.

    Attributes
    ----------
    groups : the groups of the block
    gathered : tiles of dyads
    s, g : (n_labels, ROOM) scores and score gradient
    value, total, pair : (ROOM,)
    C : curvature of the losses in the scores
    pull : (n_groups, ROOM) E^T g, the gradient of each group of the part
    along : (n_directions, n_groups, ROOM) E^T direction, for each group of the part
    left : (1 + size, ROOM) left factor of a matrix product: the row of the gradient, then those of the entries
    right : (n_single, ROOM) right factor of the product of groups of one entry
    """

    groups: Groups
    gathered: Gathered
    s: Any
    g: Any
    value: Any
    total: Any
    pair: Any
    C: Curvature
    pull: Any
    along: Any
    left: Any
    right: Any

    @classmethod
    def of(cls, specs: Specs, groups: Groups, part: Part, most_tiles: int, memory: int) -> "Work":
        """`most_tiles` : the largest number of tiles of an entity; `memory` : for gathered tiles, in bytes."""
        n_labels, n_directions = specs.structure.n_labels, specs.loss.n_directions
        n_groups, size, block_size = len(part.group), len(part.entry), int(groups.start[-1])
        gathered = Gathered.of(specs.structure, block_size, len(groups.own), most_tiles, memory)
        tile, labels = (ROOM,), (n_labels, ROOM)
        C = Curvature(np.empty(labels), np.empty((n_directions, ROOM)), np.empty((n_directions, *labels)))
        s, g, value, total, pair = (np.empty(shape) for shape in (labels, labels, tile, tile, tile))
        pull, along = np.empty((n_groups, ROOM)), np.empty((n_directions, n_groups, ROOM))
        left, right = np.empty((1 + size, ROOM)), np.empty((part.n_single, ROOM))
        return cls(groups, gathered, s, g, value, total, pair, C, pull, along, left, right)


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
    team : who shares the work on an entity
    """

    specs: Specs
    owned: Owned
    blocks: Blocks
    data: Data
    prior: Prior
    team: Any = SERIAL

    def sums_at(self, e: int, x: Array, part: Part, curved: bool, out: Array, work: Work) -> float:
        return entity_pass(self, e, x, part, curved, out, work)  # type: ignore[no-any-return]

    def has_self_link(self, e: int) -> bool:
        """Whether an entity has a dyad with itself; then f may have several minima."""
        linked = False
        if self.owned.role == Role.NODE:
            for n in range(self.owned.start[e], self.owned.start[e + 1]):
                i = self.owned.order[n]
                linked = linked or self.data.row[i] == self.data.col[i]
        return linked

    @property
    def groups(self) -> Groups:
        """The groups of a block."""
        size = self.prior.centre.shape[1]
        return Groups.folded(self.specs.structure, Role(self.owned.role), size, self.blocks.shared.shape[1])

    def work(self, groups: Groups, part: Part, memory: int = GATHERED_BYTES) -> Work:
        """Return scratch arrays for a task; `memory` : for gathered tiles, in bytes."""
        most = int(np.diff(self.owned.start).max(initial=0))
        # With several free labels, a tile holds dyads of one relation.
        most_tiles = -(-most // TILE) + len(self.blocks.shared) - 1
        return Work.of(self.specs, groups, part, most_tiles, memory)


class SharedSums:
    """The loss of the dyads of each relation as a function of its shared block.

    The sum of a relation is divided into tasks over shards of rows; the sums of tasks are added in the order of tasks.
    """

    team = SERIAL

    def __init__(self, sums: Sequence[EntitySums], prior: Prior, run: Run) -> None:
        """`sums` : one per shard, owned by relations."""
        self.sums, self.prior, self.run = sums, prior, run
        self.owned = sums[0].owned
        self.groups = sums[0].groups
        self._tasks: dict[int, list[EntitySums]] = {}

    def tasks(self, t: int) -> list[EntitySums]:
        """Return the tasks of a relation: sums over ranges of its dyads, each with the relation as its only entity."""
        if t not in self._tasks:
            self._tasks[t] = [
                sums._replace(owned=sums.owned._replace(first=t, start=np.array(bounds)))
                for sums in self.sums
                for bounds in relation_tasks(int(sums.owned.start[t]), int(sums.owned.start[t + 1]))
            ]
        return self._tasks[t]

    def work(self, t: int, part: Part) -> list[Work]:
        """Return scratch arrays for each task of a relation; they keep the tiles gathered for `part`."""
        tasks = self.tasks(t)
        return [sums.work(self.groups, part, SHARED_BYTES // len(tasks)) for sums in tasks]

    def sums_at(self, t: int, x: Array, part: Part, curved: bool, out: Array, work: list[Work]) -> float:
        def task(sums_and_work: tuple[EntitySums, Work]) -> tuple[float, Array]:
            some = np.empty_like(out) if curved else out
            return entity_pass(sums_and_work[0], 0, x, part, curved, some, sums_and_work[1]), some

        sums = self.run(task, zip(self.tasks(t), work, strict=True))
        if curved:
            out[:] = 0
            for _, some in sums:
                out += some
        return float(sum(value for value, _ in sums))

    def has_self_link(self, t: int) -> bool:
        return False


def relation_tasks(first: int, last: int) -> list[Bounds]:
    """Cut the dyads first..last-1 of a relation into tasks, at most about `MOST_TASKS`."""
    return even_tasks(first, last, max(CHUNK, (last - first) // MOST_TASKS))


@by_type
def sums_at(sums: Any, e: int, x: Array, part: Part, curved: bool, out: Array, work: Any) -> float:
    """Return the loss of an entity's dyads with block x.

    If `curved`, WRITE its gradient and curvature in the entries of `part` to `out` (1 + size, size): the gradient, then
    the curvature, of which the upper triangle is valid.
    """
    return float(sums.sums_at(e, x, part, curved, out, work))


@by_type
def has_self_link(sums: Any, e: int) -> bool:
    """Whether an entity has a dyad with itself."""
    return bool(sums.has_self_link(e))


# Kernels unpack bundles before they loop: a field of a large bundle would be read from memory in every iteration.


@kernel
def entity_pass(sums, e, x, part, curved, out, work):  # type: ignore[no-untyped-def]
    """See `sums_at`."""
    loss, owned, data = sums.specs.loss, sums.owned, sums.data
    begin, last, tile, single = owned.start[e], owned.start[e + 1], 0, free_labels(sums.specs.structure) == 1
    total = 0.0
    if curved:
        for k in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[k, j] = 0
    while begin < last:
        n = min(last - begin, TILE) if single else tile_size(data.relation, owned.order, begin, last, TILE)
        m = (n + WIDTH - 1) // WIDTH * WIDTH
        slot = score_tile(sums, e, begin, n, m, tile, x, work)
        label, weight = work.gathered.label[slot], work.gathered.weight[slot]
        if curved:
            curvature(loss, m, label, work.s, work.g, work.value, work.total, work.C)
            weigh_tile(data.weight, m, weight, work.g, work.C)
            E = work.gathered.E[slot]
            project(m, work.groups.own, part.group, E, work.g, work.C.direction, work.pull, work.along)
            add_tile(n, m, work.gathered.v[slot], E, part, out, work)
        else:
            evaluate(loss, m, label, work.s, work.g, work.value, work.total)
        total += sum_values(data.weight, n, work.value, weight)
        begin += n
        tile += 1
    return total


@read_if_present(lambda relation, order, begin, last, most: min(last - begin, most))
def tile_size(relation, order, begin, last, most):  # type: ignore[no-untyped-def]
    """Return the number of dyads, at most `most`, of the tile at a position of the order: all are of one relation."""
    n = 1
    while n < most and begin + n < last and relation[order[begin + n]] == relation[order[begin]]:
        n += 1
    return n


@inlined
def score_tile(sums, e, begin, n, m, tile, x, work):  # type: ignore[no-untyped-def]
    """WRITE the scores of a tile of entity e with block x to work.s; return the slot in which the tile is gathered."""
    gathered = work.gathered
    slot = min(tile, gathered.first.size - 1)
    if gathered.first[slot] != begin:
        fixed = gather(sums, e, begin, n, slot, x, work)
        gathered.first[slot] = begin if fixed else -1
    add_scores(m, work.groups, gathered.E[slot], x, gathered.v[slot], gathered.base[slot], work.total, work.s)
    return slot


@inlined
def gather(sums, e, begin, n, slot, x, work):  # type: ignore[no-untyped-def]
    """Gather the tile of n dyads of entity e that begins at a position of the order, into a slot.

    Returns whether the tile does not depend on x: it does if it contains a self-link.
    """
    structure, owned, blocks, data, gathered = sums.specs.structure, sums.owned, sums.blocks, sums.data, work.gathered
    v, base, E, order = gathered.v[slot], gathered.base[slot], gathered.E[slot], owned.order[begin : begin + n]
    single, of_entities = free_labels(structure) == 1, owned.role != Role.SHARED and owned.role != Role.FEATURE
    if single or not of_entities:
        shared_label_weights(structure, E)
    else:
        label_weights(structure, blocks.shared[relation_at(data.relation, order[0])], E)
    gather_data(data, order, base, gathered.label[slot], gathered.weight[slot])
    if owned.role == Role.ROW:
        gather_cols(structure, data, order, blocks, v, base)
    elif owned.role == Role.COL:
        gather_rows(structure, data, order, blocks, v, base)
    elif owned.role == Role.NODE:
        gather_nodes(structure, data, order, blocks, owned.first + e, x, v, base)
    elif owned.role == Role.SHARED:
        gather_pairs(structure, data, order, blocks, v, base)
    else:
        gather_amounts(owned.amount, begin, structure, data, order, blocks, v, base)
    if single and of_entities:
        fold(structure, data.relation, order, blocks.shared, gathered.free, gathered.folded, v)
    if owned.role == Role.NODE:
        return minus_self_links(data, order, work.groups, E, x, v, base)
    return True


@kernel
def fold(structure, relation, order, shared, free, folded, v):  # type: ignore[no-untyped-def]
    """Multiply the factors of a tile by their label weights E, those of the only free label."""
    begin = 0
    while begin < order.size:
        end = begin + tile_size(relation, order, begin, order.size, order.size)
        slopes(structure, shared[relation_at(relation, order[begin])], free, folded)
        for k in range(v.shape[0]):
            for j in range(begin, end):
                v[k, j] *= folded[k]
        begin = end


@kernel
def gather_data(data, order, base, label, weight):  # type: ignore[no-untyped-def]
    """WRITE the labels, weights and score offsets of the dyads in `order`."""
    for j in range(order.size):
        label[j] = data.label[order[j]]
        weight[j] = weigh(data.weight, order[j], 1.0)
    gather_offset(data.offset, order, base)


def _zeros(offset, order, base):  # type: ignore[no-untyped-def]
    for y in range(base.shape[0]):
        for j in range(order.size):
            base[y, j] = 0


@read_if_present(_zeros)
def gather_offset(offset, order, base):  # type: ignore[no-untyped-def]
    """WRITE the score offsets of the dyads in `order`; zero if `offset` is absent."""
    for j in range(order.size):
        for y in range(base.shape[0]):
            base[y, j] = offset[order[j], y]


@kernel
def gather_cols(structure, data, order, blocks, v, base):  # type: ignore[no-untyped-def]
    """WRITE the factors of the columns of the dyads in `order`; ADD their part of the base of the row."""
    for j in range(order.size):
        i = order[j]
        b, h = blocks.col[data.col[i]], blocks.shared[relation_at(data.relation, i)]
        partner_row(structure, b, v, j)
        base_row(structure, b, h, base, j)


@kernel
def gather_rows(structure, data, order, blocks, v, base):  # type: ignore[no-untyped-def]
    """WRITE the factors of the rows of the dyads in `order`; ADD their part of the base of the column."""
    for j in range(order.size):
        i = order[j]
        a, h = blocks.row[data.row[i]], blocks.shared[relation_at(data.relation, i)]
        partner_col(structure, a, v, j)
        base_col(structure, a, h, base, j)


@kernel
def gather_nodes(structure, data, order, blocks, node, x, v, base):  # type: ignore[no-untyped-def]
    """WRITE the factors of the partners of a node with block x; ADD their part of the base.

    The factors of a self-link are the sum over both roles, and its base are its scores at x: see `minus_self_links`.
    Column TILE of v is scratch.
    """
    for j in range(order.size):
        i = order[j]
        a, b, h = blocks.row[data.row[i]], blocks.col[data.col[i]], blocks.shared[relation_at(data.relation, i)]
        if data.row[i] == data.col[i]:
            partner_row(structure, x, v, j)
            partner_col(structure, x, v, TILE)
            for k in range(v.shape[0]):
                v[k, j] += v[k, TILE]
            score(structure, x, x, h, base[:, j])
        elif data.row[i] == node:
            partner_row(structure, b, v, j)
            base_row(structure, b, h, base, j)
        else:
            partner_col(structure, a, v, j)
            base_col(structure, a, h, base, j)


@kernel
def minus_self_links(data, order, groups, E, x, v, base):  # type: ignore[no-untyped-def]
    """SUBTRACT J x from the base of self-links, so that base + J x are their scores; return whether there are none."""
    fixed = True
    for j in range(order.size):
        if data.row[order[j]] == data.col[order[j]]:
            fixed = False
            minus_linear(groups, E, x, v, base, j)
    return fixed


@kernel
def gather_pairs(structure, data, order, blocks, v, base):  # type: ignore[no-untyped-def]
    """WRITE the factors of the rows and columns of the dyads in `order`; ADD their part of the base of the relation."""
    for j in range(order.size):
        a, b = blocks.row[data.row[order[j]]], blocks.col[data.col[order[j]]]
        partner_shared(structure, a, b, v, j)
        base_shared(structure, a, b, base, j)


@read_if_present(lambda amount, begin, structure, data, order, blocks, v, base: None)
def gather_amounts(amount, begin, structure, data, order, blocks, v, base):  # type: ignore[no-untyped-def]
    """WRITE the values of a feature, the factors of its weights; ADD the scores of the dyads to the base."""
    for j in range(order.size):
        i = order[j]
        for k in range(v.shape[0]):
            v[k, j] = amount[begin + j]
        a, b, h = blocks.row[data.row[i]], blocks.col[data.col[i]], blocks.shared[relation_at(data.relation, i)]
        score(structure, a, b, h, base[:, j])


@jitable
def minus_linear(groups, E, x, v, s, j):  # type: ignore[no-untyped-def]
    """s[:, j] -= J x, for the dyad in column j of a tile."""
    for p in range(groups.own.size):
        z = x[0] * 0
        for k in range(groups.start[p], groups.start[p + 1]):
            z += x[k] * v[k, j]
        for y in range(s.shape[0]):
            s[y, j] -= E[y, p] * z


@kernel
def add_scores(n, groups, E, x, v, base, z, s):  # type: ignore[no-untyped-def]
    """WRITE s = base + J x for a tile; `z` : (TILE,) scratch."""
    for y in range(s.shape[0]):
        for i in range(n):
            s[y, i] = base[y, i]
    for p in range(groups.own.size):
        first, last, y = groups.start[p], groups.start[p + 1], groups.own[p]
        for i in range(n):
            z[i] = 0
        for k in range(first, last):
            c = x[k]
            for i in range(n):
                z[i] += c * v[k, i]
        if y >= 0:
            for i in range(n):
                s[y, i] += z[i]
        else:
            for y in range(s.shape[0]):
                c = E[y, p]
                for i in range(n):
                    s[y, i] += c * z[i]


@inlined
def project(n, own, group, E, g, direction, pull, along):  # type: ignore[no-untyped-def]
    """WRITE E^T g to `pull` and E^T direction to `along`, for the groups of a part."""
    for p in range(group.size):
        project_group(n, own[group[p]], group[p], E, g, pull[p])
        for r in range(direction.shape[0]):
            project_group(n, own[group[p]], group[p], E, direction[r], along[r, p])


@inlined
def project_group(n, own, group, E, labels, out):  # type: ignore[no-untyped-def]
    """WRITE sum_y E[y, group] labels_y to `out` (n,); `labels` : (n_labels, n)."""
    if own >= 0:
        for i in range(n):
            out[i] = labels[own, i]
    else:
        for i in range(n):
            out[i] = 0
        for y in range(labels.shape[0]):
            c = E[y, group]
            for i in range(n):
                out[i] += c * labels[y, i]


@inlined
def add_tile(n, m, v, E, part, out, work):  # type: ignore[no-untyped-def]
    """ADD the gradient and the curvature of a tile to `out`; see the top of this module."""
    entry, group, end, own = part.entry, part.group, part.end, work.groups.own
    pull, along, pair, left, right, C = work.pull, work.along, work.pair, work.left, work.right, work.C
    one_label_each = True
    for q in range(part.n_single):
        out[0, q] += sum_of_products(n, pull[q], v[entry[q]])
        one_label_each = one_label_each and own[group[q]] >= 0
    for r in range(C.weight.shape[0] if part.n_single else 0):
        for q in range(part.n_single):
            multiply_rows(m, along[r, q], v[entry[q]], right[q])
            multiply_rows(m, C.weight[r], right[q], left[q])
        add_product(left, part.n_single, right, 0, part.n_single, n, out, 1, 0)
    if one_label_each:
        for q in range(part.n_single):
            for p in range(q + 1):
                y = own[group[p]]
                if y == own[group[q]]:
                    out[1 + p, q] += sum_of_triple_products(n, C.diagonal[y], v[entry[p]], v[entry[q]])
    else:
        for y in range(E.shape[0]):
            weighted = False
            for q in range(part.n_single):
                weighted = weighted or E[y, group[q]] != 0
            if weighted:
                for q in range(part.n_single):
                    multiply_row(m, E[y, group[q]], v[entry[q]], right[q])
                    multiply_rows(m, C.diagonal[y], right[q], left[q])
                add_product(left, part.n_single, right, 0, part.n_single, n, out, 1, 0)
    for q in range(part.n_single, end.size):
        for i in range(m):
            left[0, i] = pull[q, i]
        for p in range(q + 1):
            pair_weights(m, p, q, own, group, E, C, along, pair)
            for k in range(end[p - 1] if p else 0, end[p]):
                multiply_rows(m, pair, v[entry[k]], left[1 + k])
        begin = end[q - 1] if q else 0
        add_product(left, 1 + end[q], v, entry[begin], end[q] - begin, n, out, 0, begin)


@kernel
def pair_weights(n, p, q, own, group, E, C, along, out):  # type: ignore[no-untyped-def]
    """WRITE the weights w_pq of groups p and q of a part to `out` (n,)."""
    first, second = own[group[p]], own[group[q]]
    if first >= 0 and first == second:
        for i in range(n):
            out[i] = C.diagonal[first, i]
    else:
        for i in range(n):
            out[i] = 0
        if first < 0 or second < 0:
            for y in range(E.shape[0]):
                c = E[y, group[p]] * E[y, group[q]]
                if c != 0:
                    for i in range(n):
                        out[i] += c * C.diagonal[y, i]
    for r in range(C.weight.shape[0]):
        for i in range(n):
            out[i] += C.weight[r, i] * along[r, p, i] * along[r, q, i]


@jitable
def multiply_row(n, c, x, out):  # type: ignore[no-untyped-def]
    """WRITE out = c x, for a number c."""
    for i in range(n):
        out[i] = c * x[i]


@kernel
def multiply_rows(n, x, y, out):  # type: ignore[no-untyped-def]
    """WRITE out = x y, entry by entry."""
    for i in range(n):
        out[i] = x[i] * y[i]


@reduction
def sum_of_products(n, x, y):  # type: ignore[no-untyped-def]
    """Return sum_i x_i y_i."""
    total = 0.0
    for i in range(n):
        total += x[i] * y[i]
    return total


@reduction
def sum_of_triple_products(n, x, y, z):  # type: ignore[no-untyped-def]
    """Return sum_i x_i y_i z_i."""
    total = 0.0
    for i in range(n):
        total += x[i] * y[i] * z[i]
    return total


@reduction
def plain_sum(n, x):  # type: ignore[no-untyped-def]
    """Return sum_i x_i."""
    total = 0.0
    for i in range(n):
        total += x[i]
    return total


@read_if_present(lambda present, n, value, weight: plain_sum(n, value))
def sum_values(present, n, value, weight):  # type: ignore[no-untyped-def]
    """Return the weighted sum of the losses of a tile; the weights are one if `present` is absent."""
    return sum_of_products(n, value, weight)


@read_if_present(lambda present, n, weight, g, C: None)
def weigh_tile(present, n, weight, g, C):  # type: ignore[no-untyped-def]
    """Multiply score gradient and curvature by the weights of the dyads, unless `present` is absent."""
    for y in range(g.shape[0]):
        for i in range(n):
            g[y, i] *= weight[i]
            C.diagonal[y, i] *= weight[i]
    for r in range(C.weight.shape[0]):
        for i in range(n):
            C.weight[r, i] *= weight[i]


@read_if_present(lambda amount, sums, e, x: None)
def follow(amount, sums, e, x):  # type: ignore[no-untyped-def]
    """ADD the contribution of feature e with weights x to the score offsets of its dyads."""
    owned, offset, reference = sums.owned, sums.data.offset, sums.specs.structure.reference
    for n in range(owned.start[e], owned.start[e + 1]):
        for f in range(x.size):
            offset[owned.order[n], f + (f >= reference)] += amount[n] * x[f]
