"""The entity subproblem: one block, of a row, a column, a node or a relation, given everything else.

    f(x) = sum_i w_i loss(label_i, s_i(x)) + 1/2 scale (x - centre)^T precision (x - centre)

over the dyads i of the entity. It is minimised by Newton's method with the curvature

    M = sum_i w_i J_i^T C_i J_i + scale precision,

where C comes from the loss and J = d s / d x from the structure, and a line search, so that f never rises. For the log
loss f is convex; a self-link's score is quadratic in its node's block, and there the line search alone sees to it.

Or, f being minus a log density, x is drawn from it: proposed from the Gaussian at the mode m, x' ~ N(m, M^-1), and
accepted with the chance min(1, exp(f(x) - f(x') + 1/2 |x' - m|^2_M - 1/2 |x - m|^2_M)) of Metropolis and Hastings. That
is exact whatever the proposal, as long as it does not depend on x. The search for m begins at x, and ends within a
small part of a standard deviation of it (`NEAR_MODE`): what is left of x in m and M is of the second order of that.

`descend` and `draw_block` do both for whatever has "sums at x": `EntitySums`, inside a compiled pass over many
entities, or `SharedSums`, one large block whose sums are cut into tasks. For the latter they run as plain Python.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.engine.bundles import (
    TILE,
    Data,
    Owned,
    Specs,
    are_several,
    relation_at,
    weigh,
)
from dyads.engine.compiled import by_type, inlined, jitable, kernel, read_if_present
from dyads.engine.orders import Bounds, Run, even_tasks
from dyads.engine.passes import score_dyad
from dyads.model.loss import curvature, evaluate
from dyads.model.parameters import Blocks, Role
from dyads.model.streams import Key, fill_normal, log_chance
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


class Steps(NamedTuple):
    """When a search by Newton steps ends.

    Attributes
    ----------
    most : steps at most
    small, near : a step that promises to lower f by no more than `small` |f| + `near` is the last, and needs no search
    """

    most: int
    small: float
    near: float


SMALL_STEP = 1e-13
"""Below this share of f a promise is less than the rounding of f."""

NEAR_MODE = 1e-2
"""A step that promises less than this lies within a seventh of a standard deviation of the mode."""

ONE_STEP = Steps(1, SMALL_STEP, 0.0)
TO_THE_END = Steps(100, SMALL_STEP, 0.0)
"""For the log loss, whose curvature is exact, five or six steps are enough."""
TO_THE_MODE = Steps(30, 0.0, NEAR_MODE)

SUFFICIENT = 1e-4
"""A step must lower f by this share of what its slope promises (Armijo's rule)."""

SHORTENED = 0.5
"""A step that does not is cut to this share, again and again."""

SHORTEST = 1e-12
"""A step of this share or less is given up: f is at its least, but for rounding."""

LEAST_PIVOT = 1e-10
"""Pivots of a Cholesky factor are raised to this share of the largest diagonal entry.

Directions without curvature, along which scores do not change, get a step of zero: their gradient is zero.
"""

TINY = 1e-300
"""Keeps a pivot above zero where the whole matrix is zero."""

PART = 64
"""Most entries of a block that are drawn at once: fewer are accepted more often, and cost less."""


class Prior(NamedTuple):
    """The penalty of the blocks of a run of entities: 1/2 scale_e (x_e - centre_e)^T precision (x_e - centre_e).

    Attributes
    ----------
    precision : (size, size), scale : (n,), centre : (n, size)
    active : (size,) which entries move
    """

    precision: Any
    scale: Any
    centre: Any
    active: Any

    def of(self, owners: slice) -> "Prior":
        """That of some of the entities."""
        return self._replace(scale=self.scale[owners], centre=self.centre[owners])


class Part(NamedTuple):
    """Some entries of a block, in whole groups; see `label_weights`.

    Attributes
    ----------
    entry : (size,) their places in the block
    group : (n_groups,) the groups they make
    end : (n_groups,) where each of them ends among the entries
    own : (n_groups,) the label that alone weighs a group, by one, or -1
    """

    entry: Any
    group: Any
    end: Any
    own: Any

    @classmethod
    def of(cls, start: Array, own: Array, groups: Array) -> "Part":
        entries = [np.arange(start[group], start[group + 1]) for group in groups]
        end = np.cumsum([len(each) for each in entries])
        return cls(np.concatenate([np.zeros(0, np.int64), *entries]), groups.astype(np.int64), end, own[groups])


def group_starts(structure: Structure, role: Role, size: int) -> Array:
    """Where each group of entries of a block of that size begins, and last where the block ends."""
    shared = role in (Role.SHARED, Role.FEATURE)
    n_single = free_labels(structure) * (1 if shared else structure.n_bias)
    width = structure.group_widths()[shared]
    return np.concatenate([np.arange(n_single), np.arange(n_single, size, width or 1), [size]])


def parts_of(structure: Structure, role: Role, size: int, shared_size: int, most: int) -> list[Part]:
    """Cut a block into parts of at most `most` entries, but for a group that is larger, and of whole labels."""
    start = group_starts(structure, role, size)
    weights = np.zeros((structure.n_labels, len(start) - 1))
    if role in (Role.SHARED, Role.FEATURE):
        shared_label_weights(structure, weights)
    else:
        # Weights that come of the shared block are not one.
        label_weights(structure, np.full(shared_size, 2.0), weights)
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


class System(NamedTuple):
    """Scratch of a search: gx, M and d are of the moving entries, x and mode of the whole block.

    Attributes
    ----------
    x : (block size,) where f is tried; mode : (block size,) where a draw is proposed around
    d : (size,) a step; z : (size,) noise
    gx : (size,) gradient of f; M : (size, size) upper half: curvature of f, or its Cholesky factor
    """

    x: Any
    mode: Any
    d: Any
    z: Any
    gx: Any
    M: Any

    @classmethod
    def of(cls, block_size: int, size: int) -> "System":
        block, vector = (block_size,), (size,)
        return cls(*(np.empty(shape) for shape in (block, block, vector, vector, vector, (size, size))))


class Work(NamedTuple):
    """Scratch of the sums over dyads.

    Attributes
    ----------
    s, g : (n_labels,) scores and their gradient; C : (n_labels, n_labels) curvature in scores
    E : (n_labels, groups of the block) label weights
    pull : (n_groups,) gradient of each moving group: E^T g
    partner : (block size,) what stands beside each entry; moving : (size,) that of the moving entries
    CE : (n_labels, n_groups) C E; bend : (n_groups, n_groups) E^T C E
    tile_gx, tile_M : sums of one tile
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


# ------------------------------------------------------------------------------------------------ sums at x


class EntitySums(NamedTuple):
    """f and its derivatives for each entity of a run, given everything else.

    Attributes
    ----------
    specs, data : what is summed, and over which dyads
    owned : the run of entities, and their dyads
    blocks : effective blocks of all rows and columns, and the shared ones; of rows only those of the columns are read
    prior : of the run's blocks
    """

    specs: Specs
    owned: Owned
    blocks: Blocks
    data: Data
    prior: Prior

    def loss_at(self, e: int, x: Array, part: Part, work: Work) -> float:
        return loss_pass(self, e, x, work)  # type: ignore[no-any-return]

    def curvature_at(self, e: int, x: Array, part: Part, gx: Array, M: Array, work: Work) -> float:
        return curvature_pass(self, e, x, part, gx, M, work)  # type: ignore[no-any-return]

    def has_self_link(self, e: int) -> bool:
        """Whether one of an entity's dyads is of it with itself; then f may have several minima."""
        found = False
        if self.owned.role == Role.NODE:
            for n in range(self.owned.start[e], self.owned.start[e + 1]):
                i = self.owned.order[n]
                found = found or self.data.row[i] == self.data.col[i]
        return found


class SharedSums:
    """f and its derivatives for the shared block of each relation, whose sums are cut into tasks over shards of rows.

    The sums of each task are added in the order of tasks.
    """

    def __init__(self, sums: Sequence[EntitySums], prior: Prior, run: Run) -> None:
        """`sums` : one per shard, owned by relations."""
        self.sums, self.prior, self.run = sums, prior, run
        self.owned = sums[0].owned
        self.structure = sums[0].specs.structure
        self._tasks: dict[int, list[EntitySums]] = {}

    def tasks(self, t: int) -> list[EntitySums]:
        """The sums of a relation, each over some of its dyads: one entity."""
        if t not in self._tasks:
            self._tasks[t] = [
                sums._replace(owned=sums.owned._replace(first=t, start=np.array(bounds)))
                for sums in self.sums
                for bounds in even_tasks(int(sums.owned.start[t]), int(sums.owned.start[t + 1]))
            ]
        return self._tasks[t]

    def loss_at(self, t: int, x: Array, part: Part, work: Work) -> float:
        return float(sum(self.run(lambda sums: loss_pass(sums, 0, x, self._work(x, part)), self.tasks(t))))

    def curvature_at(self, t: int, x: Array, part: Part, gx: Array, M: Array, work: Work) -> float:
        def task(sums: EntitySums) -> tuple[float, Array, Array]:
            some_gx, some_M = np.zeros_like(gx), np.zeros_like(M)
            return curvature_pass(sums, 0, x, part, some_gx, some_M, self._work(x, part)), some_gx, some_M

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
    """The same; WRITE its gradient to gx and its curvature to the upper half of M, both of the moving entries."""
    return float(sums.curvature_at(e, x, part, gx, M, work))


@by_type
def has_self_link(sums: Any, e: int) -> bool:
    return bool(sums.has_self_link(e))


# ------------------------------------------------------------------------------------------------ the driver


@jitable
def value_at(sums, e, x, part, system, work):  # type: ignore[no-untyped-def]
    """f at x, but for what does not depend on the moving entries; system.gx is scratch."""
    return loss_at(sums, e, x, part, work) + add_prior(x, sums.prior, e, part.entry, system.gx)


@jitable
def descend(sums, e, block, steps, part, system, work):  # type: ignore[no-untyped-def]
    """Move `block` towards the minimum of f of entity e; returns f where it began.

    system.M is left with the Cholesky factor of the last curvature.
    """
    x, d, entry = system.x, system.d, part.entry
    for k in range(x.size):
        x[k] = block[k]
    value = curvature_at(sums, e, x, part, system.gx, system.M, work) + finish(x, sums.prior, e, part, system)
    at_start = value
    for step in range(steps.most):
        factor(system.M)
        newton_step(system.M, system.gx, d)
        promised = 0.0
        for k in range(d.size):
            promised += system.gx[k] * d[k]
        if promised <= steps.small * abs(value) + steps.near:
            for k in range(d.size):
                block[entry[k]] -= d[k]
            return at_start
        length = 1.0
        while True:
            for k in range(d.size):
                x[entry[k]] = block[entry[k]] - length * d[k]
            if step == steps.most - 1:
                trial = value_at(sums, e, x, part, system, work)
            else:
                # A full step is nearly always good, and the next one needs all of this.
                trial = curvature_at(sums, e, x, part, system.gx, system.M, work)
                trial += finish(x, sums.prior, e, part, system)
            if trial <= value - SUFFICIENT * length * promised:
                break
            length *= SHORTENED
            if length < SHORTEST:
                if step < steps.most - 1:
                    factor(system.M)
                return at_start
        value = trial
        for k in range(d.size):
            block[entry[k]] = x[entry[k]]
    return at_start


@jitable
def draw_block(sums, e, block, key, number, part, system, work):  # type: ignore[no-untyped-def]
    """Draw a part, the `number`-th, of the block of entity e, given all else; returns whether it was accepted."""
    x, mode, d, entry, M = system.x, system.mode, system.d, part.entry, system.M
    for k in range(x.size):
        mode[k] = block[k]
    several_modes = has_self_link(sums, e)
    if several_modes:
        # Which mode is found must not depend on the block, or the way back would differ.
        for k in range(d.size):
            mode[entry[k]] = sums.prior.centre[e, entry[k]]
    gain = descend(sums, e, mode, TO_THE_MODE, part, system, work)
    if several_modes:
        gain = value_at(sums, e, block, part, system, work)
    fill_normal(key, sums.owned.first + e, number, system.z)
    for k in range(d.size):
        away = d[0] * 0
        for j in range(k, d.size):
            away += M[k, j] * (block[entry[j]] - mode[entry[j]])
        d[k] = system.z[k] if sums.prior.active[entry[k]] else away
        gain += 0.5 * (d[k] * d[k] - away * away)
    solve_upper(M, d)
    for k in range(x.size):
        x[k] = mode[k]
    for k in range(d.size):
        x[entry[k]] += d[k]
    gain -= value_at(sums, e, x, part, system, work)
    accepted = log_chance(key, sums.owned.first + e, number) < gain
    if accepted:
        for k in range(x.size):
            block[k] = x[k]
    return accepted


@kernel
def newton_pass(sums, X, bounds, steps, part, system, work):  # type: ignore[no-untyped-def]
    """Solve the subproblems of entities bounds[0]..bounds[1]-1, whose blocks are lines of X."""
    for e in range(bounds[0], bounds[1]):
        descend(sums, e, X[e], steps, part, system, work)


@kernel
def draw_pass(sums, X, bounds, key, number, accepted, part, system, work):  # type: ignore[no-untyped-def]
    """Draw a part of the blocks of entities bounds[0]..bounds[1]-1, lines of X, that have dyads.

    When that of a feature of dyads is accepted, the offsets of scores follow: the next feature is drawn given it.
    """
    owned = sums.owned
    for e in range(bounds[0], bounds[1]):
        if owned.start[e] < owned.start[e + 1] and draw_block(sums, e, X[e], key, number, part, system, work):
            accepted[e] += 1
            follow(owned.amount, sums, e, X[e])


@kernel
def noise_pass(key, entities, Z):  # type: ignore[no-untyped-def]
    """Write the standard normal noise of some entities to the lines of Z."""
    for n in range(entities.size):
        fill_normal(key, entities[n], 0, Z[n])


def solve_shard(sums: EntitySums, X: Array, tasks: Sequence[Bounds], steps: Steps, run: Run) -> None:
    """Move the blocks X (n, size) of a shard's entities towards their optimum, given everything else, in place.

    `tasks` are ranges of entities. X is a copy of the shard's own lines: the blocks of a pass are not written to. Nodes
    that share a dyad are not independent: theirs is the table itself, and `run` takes them one after the other.
    """
    structure, role, size = sums.specs.structure, Role(sums.owned.role), X.shape[1]
    if not sums.prior.active.any():
        return
    (whole,) = parts_of(structure, role, size, sums.blocks.shared.shape[1], size)

    def task(bounds: Bounds) -> None:
        newton_pass(sums, X, bounds, steps, whole, System.of(size, size), Work.of(structure, role, size, whole))

    run(task, tasks)


def draw_shard(sums: EntitySums, X: Array, tasks: Sequence[Bounds], key: Key, run: Run) -> Array:
    """Move the blocks X of a shard's entities by one draw each, part by part; returns the share of parts accepted (n,).

    As `solve_shard`. An entity without dyads is left alone.
    """
    structure, role, size = sums.specs.structure, Role(sums.owned.role), X.shape[1]
    # The offsets of scores follow a feature as a whole.
    parts = parts_of(structure, role, size, sums.blocks.shared.shape[1], size if role == Role.FEATURE else PART)
    accepted = np.zeros(len(X))

    def task(bounds: Bounds) -> None:
        for number, part in enumerate(parts):
            system, work = System.of(size, len(part.entry)), Work.of(structure, role, size, part)
            draw_pass(sums, X, bounds, key, number, accepted, part, system, work)

    if parts:
        run(task, tasks)
    return accepted / max(1, len(parts))


def solve_shared(sums: SharedSums, X: Array, steps: Steps, run: Run) -> None:
    """Move the shared blocks X (n_relations, size) towards their optimum; `run` maps over relations."""
    size = X.shape[1]
    if not sums.prior.active.any():
        return
    (whole,) = parts_of(sums.structure, Role.SHARED, size, size, size)

    def relation(t: int) -> None:
        work = Work.of(sums.structure, Role.SHARED, size, whole)
        descend(sums, t, X[t], steps, whole, System.of(size, size), work)

    run(relation, range(len(X)))


def draw_shared(sums: SharedSums, X: Array, key: Key, run: Run) -> Array:
    """Move each of the shared blocks X by one draw; returns the share of parts accepted (n_relations,)."""
    size = X.shape[1]
    # What all dyads share is so well known that proposals of the whole block are accepted, and each part costs a sum.
    parts = parts_of(sums.structure, Role.SHARED, size, size, size if len(X) == 1 else PART)

    def relation(t: int) -> float:
        accepted = 0
        for number, part in enumerate(parts if sums.tasks(t) else ()):
            system, work = System.of(size, len(part.entry)), Work.of(sums.structure, Role.SHARED, size, part)
            accepted += draw_block(sums, t, X[t], key, number, part, system, work)
        return accepted / max(1, len(parts))

    return np.array(run(relation, range(len(X))))


# ------------------------------------------------------------------------------------------------ sums over dyads


# Kernels take bundles apart before they loop: a field of a large bundle would be read from memory in every turn.


@kernel
def loss_pass(sums, e, x, work):  # type: ignore[no-untyped-def]
    """See `loss_at`."""
    specs, owned, blocks, data, s, g = sums.specs, sums.owned, sums.blocks, sums.data, work.s, work.g
    total = 0.0
    for n in range(owned.start[e], owned.start[e + 1]):
        i = owned.order[n]
        score_with(specs.structure, owned, blocks, data, e, n, x, s)
        total += weigh(data.weight, i, evaluate(specs.loss, data.label[i], s, g))
    return total


@kernel
def curvature_pass(sums, e, x, part, gx, M, work):  # type: ignore[no-untyped-def]
    """See `curvature_at`. With J[y, k] = E[y, group of k] v_k, J^T C J is (E^T C E)[group of k, group of j] v_k v_j.

    The sums of each tile are made by themselves, so that a large entity can be cut between tiles. The last loops add
    what groups have, times what stands beside their entries; as a function of their own they are a tenth slower.
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
        for n in range(begin, min(begin + TILE, last)):
            i = owned.order[n]
            a, b, h = score_with(structure, owned, blocks, data, e, n, x, s)
            total += weigh(data.weight, i, curvature(loss, data.label[i], s, g, C))
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
        if last - first > TILE:
            add_sums(gx, M, work.tile_gx, work.tile_M)
            clear(gx, M)
    if last - first > TILE:
        add_sums(work.tile_gx, work.tile_M, gx, M)
    return total


@jitable
def kinds_of_groups(end, own):  # type: ignore[no-untyped-def]
    """How many groups of one entry come first, as biases do; and whether labels weigh any group by other than one."""
    n_single, dense = 0, False
    while n_single < end.size and end[n_single] == n_single + 1:
        n_single += 1
    for p in range(own.size):
        dense = dense or own[p] < 0
    return n_single, dense


@inlined
def score_with(structure, owned, blocks, data, e, n, x, s):  # type: ignore[no-untyped-def]
    """Write the scores of the dyad in place n of the order, with block x of entity e; returns the dyad's blocks."""
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
    """Whether entity e is the row of dyad i, and whether it is its column."""
    own_row = owned.role == Role.ROW or (owned.role == Role.NODE and data.row[i] == owned.first + e)
    own_col = owned.role == Role.COL or (owned.role == Role.NODE and data.col[i] == owned.first + e)
    return own_row, own_col


@inlined
def stand_beside(structure, owned, data, e, n, a, b, partner):  # type: ignore[no-untyped-def]
    """Write what stands beside each entry of the block of entity e in the scores of the dyad in place n."""
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
    """Write `times` the gradient E^T g and the curvature E^T C E of the moving groups; that of each two once."""
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
    """s += what the weights x of a feature add, for the dyad in place n."""
    for f in range(x.size):
        s[f + (f >= structure.base)] += amount[n] * x[f]


@read_if_present(lambda amount, n, partner: None)
def beside_feature(amount, n, partner):  # type: ignore[no-untyped-def]
    """What stands beside the weights of a feature is how much of it a dyad has."""
    for k in range(partner.size):
        partner[k] = amount[n]


@read_if_present(lambda amount, sums, e, x: None)
def follow(amount, sums, e, x):  # type: ignore[no-untyped-def]
    """Add what the weights x of feature e add to the offsets of its dyads' scores."""
    for n in range(sums.owned.start[e], sums.owned.start[e + 1]):
        add_feature(amount, n, sums.specs.structure, x, sums.data.offset[sums.owned.order[n]])


# ------------------------------------------------------------------------------------------------ prior, and algebra


@kernel
def add_prior(x, prior, e, entry, gx):  # type: ignore[no-untyped-def]
    """Return the penalty of block x, but for what does not depend on the moving entries; ADD its gradient to gx."""
    scale, centre = prior.scale[e], prior.centre[e]
    total = 0.0
    for k in range(entry.size):
        line = prior.precision[entry[k]]
        pulled = x[0] * 0
        for j in range(x.size):
            pulled += line[j] * (x[j] - centre[j])
        gx[k] += scale * pulled
        among = pulled
        if entry.size < x.size:
            among = x[0] * 0
            for j in range(entry.size):
                among += line[entry[j]] * (x[entry[j]] - centre[entry[j]])
        # Among each other the moving entries count once, with the others twice: 1/2 y^T P y + y^T Q.
        total += scale * (pulled - 0.5 * among) * (x[entry[k]] - centre[entry[k]])
    return total


@kernel
def finish(x, prior, e, part, system):  # type: ignore[no-untyped-def]
    """Return the penalty, ADD its gradient and curvature to the sums over dyads, and freeze what is not active."""
    gx, M, entry = system.gx, system.M, part.entry
    value = add_prior(x, prior, e, entry, gx)
    for k in range(entry.size):
        for j in range(k, entry.size):
            M[k, j] += prior.scale[e] * prior.precision[entry[k], entry[j]]
    for k in range(entry.size):
        if not prior.active[entry[k]]:
            # No gradient, and a unit line.
            gx[k] = 0
            for j in range(k):
                M[j, k] = 0
            for j in range(k + 1, entry.size):
                M[k, j] = 0
            M[k, k] = 1
    return value


@kernel
def clear(gx, M):  # type: ignore[no-untyped-def]
    """Set sums to zero."""
    gx[:] = 0
    for k in range(M.shape[0]):
        for j in range(k, M.shape[0]):
            M[k, j] = 0


@kernel
def add_sums(some_gx, some_M, gx, M):  # type: ignore[no-untyped-def]
    """Add the sums of a tile, or a task, to those of all."""
    for k in range(gx.size):
        gx[k] += some_gx[k]
        for j in range(k, gx.size):
            M[k, j] += some_M[k, j]


@kernel
def factor(M):  # type: ignore[no-untyped-def]
    """Replace the upper half of M by U with M = U^T U (Cholesky); a pivot too small to trust is raised."""
    size = M.shape[0]
    largest = 0.0
    for k in range(size):
        largest = max(largest, M[k, k])
    least = LEAST_PIVOT * largest + TINY
    for k in range(size):
        M[k, k] = math.sqrt(max(M[k, k], least))
        inverse = 1 / M[k, k]
        for j in range(k + 1, size):
            M[k, j] *= inverse
        for i in range(k + 1, size):
            c = M[k, i]
            for j in range(i, size):
                M[i, j] -= c * M[k, j]


@kernel
def newton_step(M, gx, d):  # type: ignore[no-untyped-def]
    """d = (U^T U)^-1 gx, for the U in the upper half of M."""
    for k in range(d.size):
        d[k] = gx[k]
    for k in range(d.size):
        d[k] /= M[k, k]
        c = d[k]
        for j in range(k + 1, d.size):
            d[j] -= c * M[k, j]
    solve_upper(M, d)


@kernel
def solve_upper(M, d):  # type: ignore[no-untyped-def]
    """d = U^-1 d."""
    for n in range(d.size):
        k = d.size - 1 - n
        total = d[k]
        for j in range(k + 1, d.size):
            total -= M[k, j] * d[j]
        d[k] = total / M[k, k]
