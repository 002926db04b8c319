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

from dyads.engine.compiled import jitable, kernel
from dyads.engine.orders import Bounds, Run
from dyads.engine.sums import (
    EntitySums,
    SharedSums,
    Work,
    curvature_at,
    follow,
    has_self_link,
    loss_at,
    parts_of,
)
from dyads.model.parameters import Role
from dyads.model.streams import Key, fill_normal, log_chance

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


@jitable
def value_at(sums, e, x, part, system, work):  # type: ignore[no-untyped-def]
    """f at x, but for what does not depend on the moving entries; what system.gx holds afterwards means nothing."""
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


def solve_shard(sums: EntitySums, X: Array, tasks: Sequence[Bounds], steps: Steps, run: Run) -> Array:
    """The blocks X (n, size) of a shard's entities, moved towards their optimum given everything else.

    `tasks` are ranges of entities. Nodes that share a dyad depend on each other: theirs are moved in place, and `run`
    takes them one after the other.
    """
    structure, role, size = sums.specs.structure, Role(sums.owned.role), X.shape[1]
    X = X if role == Role.NODE else X.copy()
    if not sums.prior.active.any():
        return X
    (whole,) = parts_of(structure, role, size, sums.blocks.shared.shape[1], size)

    def task(bounds: Bounds) -> None:
        newton_pass(sums, X, bounds, steps, whole, System.of(size, size), Work.of(structure, role, size, whole))

    run(task, tasks)
    return X


def draw_shard(sums: EntitySums, X: Array, tasks: Sequence[Bounds], key: Key, run: Run) -> tuple[Array, Array]:
    """The blocks X of a shard's entities after one draw each, part by part, and the share of parts accepted (n,).

    As `solve_shard`. An entity without dyads is left alone.
    """
    structure, role, size = sums.specs.structure, Role(sums.owned.role), X.shape[1]
    X = X if role == Role.NODE else X.copy()
    # The offsets of scores follow a feature as a whole.
    parts = parts_of(structure, role, size, sums.blocks.shared.shape[1], size if role == Role.FEATURE else PART)
    accepted = np.zeros(len(X))

    def task(bounds: Bounds) -> None:
        for number, part in enumerate(parts):
            system, work = System.of(size, len(part.entry)), Work.of(structure, role, size, part)
            draw_pass(sums, X, bounds, key, number, accepted, part, system, work)

    if parts:
        run(task, tasks)
    return X, accepted / max(1, len(parts))


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
