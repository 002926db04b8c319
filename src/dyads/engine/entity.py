"""The entity subproblem: the block x of a row, a column, a node or a relation, given everything else.

    f(x) = sum_i w_i loss(label_i, s_i(x)) + 1/2 scale (x - centre)^T precision (x - centre)

The sum is over the dyads i of the entity. `descend` minimises f by Newton's method with the curvature

    M = sum_i w_i J_i^T C_i J_i + scale precision,

where C comes from the loss and J = d s / d x from the structure. A line search ensures that f never increases. For the
log loss f is convex, except with a self-link: its score is quadratic in the block of its node.

`draw_block` draws x from the density proportional to exp(-f), its conditional distribution. The proposal is the
Gaussian at the mode m, x' ~ N(m, M^-1), and the acceptance probability is that of Metropolis-Hastings,

    min(1, exp(f(x) - f(x') + 1/2 |x' - m|^2_M - 1/2 |x - m|^2_M)).

This is exact for any proposal that does not depend on x. The search for m starts at x and ends within a fraction of a
standard deviation of the mode (`NEAR_MODE`), so m and M depend on x to second order in that fraction only.

Both functions work on any object that provides "sums at x": `EntitySums`, in a compiled pass over many entities, or
`SharedSums`, one large block whose sums are divided into tasks. For the latter they run as plain Python.
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
    """The stopping rule of Newton's method.

    Attributes
    ----------
    most : maximum number of steps
    small, near : if the predicted decrease gx . d of a step is at most `small` |f| + `near`, the step is the last, and
        is taken without a line search
    """

    most: int
    small: float
    near: float


SMALL_STEP = 1e-13
"""Relative predicted decrease below which a step is the last: smaller changes are lost in the rounding of f."""

NEAR_MODE = 1e-2
"""Predicted decrease at which the search for the mode ends.

It equals |d|^2_M for the step d, so such a step is at most a tenth of a standard deviation long.
"""

TO_THE_MODE = Steps(30, 0.0, NEAR_MODE)
"""The stopping rule of the search for the mode; the limit of 30 steps bounds the cost of a draw.

On ML-100K (rank 16) a draw takes about three and a half evaluations of f.
"""

SUFFICIENT = 1e-4
"""The constant of the Armijo condition: f must decrease by this fraction of length * gx . d. The customary value."""

SHORTENED = 0.5
"""Backtracking factor: the line search multiplies the step length by this until the Armijo condition holds."""

SHORTEST = 1e-12
"""Step length below which the line search gives up: f is minimal up to rounding."""

LEAST_PIVOT = 1e-10
"""Least pivot of a Cholesky factor, relative to the largest diagonal entry; smaller ones are raised to it.

Directions without curvature, along which scores do not change, get a step of zero because their gradient is zero.
"""

TINY = 1e-300
"""Added to the least pivot, so that it is positive even if the whole matrix is zero."""

PART = 64
"""Maximum number of entries of a block that are drawn at once: smaller parts are accepted more often and cost less.

When all 286 entries of a row of Alyawarra were drawn at once, one draw in ten was accepted, at ten times the cost.
"""


class System(NamedTuple):
    """Scratch arrays of a search: of the whole block (block size) or of the entries that move (size).

    Attributes
    ----------
    x : (block size,) point at which f is evaluated
    mode : (block size,) centre of the proposal
    d : (size,) Newton step
    z : (size,) standard normal noise
    gx : (size,) gradient of f
    M : (size, size) curvature of f or its Cholesky factor, in the upper triangle
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
    """Return f at x, up to a constant in the entries that move; system.gx is overwritten with no useful content."""
    return loss_at(sums, e, x, part, work) + add_prior(x, sums.prior, e, part.entry, system.gx)


@jitable
def descend(sums, e, block, steps, part, system, work):  # type: ignore[no-untyped-def]
    """Move `block` towards the minimum of f of entity e; return f at the start.

    Afterwards system.M holds the Cholesky factor of the last curvature that was computed.
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
                # A full step is nearly always accepted, and then the next step needs the gradient and the curvature.
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
    """Draw part `number` of the block of entity e given all else (Metropolis-Hastings); return whether it was accepted.

    `gain` accumulates the log acceptance ratio.
    """
    x, mode, d, entry, M = system.x, system.mode, system.d, part.entry, system.M
    for k in range(x.size):
        mode[k] = block[k]
    several_modes = has_self_link(sums, e)
    if several_modes:
        # The mode found must not depend on the block; otherwise the reverse move would have another proposal.
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
    """Solve the subproblems of entities bounds[0]..bounds[1]-1, whose blocks are rows of X."""
    for e in range(bounds[0], bounds[1]):
        descend(sums, e, X[e], steps, part, system, work)


@kernel
def draw_pass(sums, X, bounds, key, number, accepted, part, system, work):  # type: ignore[no-untyped-def]
    """Draw a part of the blocks, rows of X, of those entities bounds[0]..bounds[1]-1 that have dyads.

    After an accepted draw of a dyad feature's weights the score offsets are updated, since the next feature is drawn
    given this one. ADDS the number of accepted draws to `accepted`.
    """
    owned = sums.owned
    for e in range(bounds[0], bounds[1]):
        if owned.start[e] < owned.start[e + 1] and draw_block(sums, e, X[e], key, number, part, system, work):
            accepted[e] += 1
            follow(owned.amount, sums, e, X[e])


@kernel
def noise_pass(key, entities, Z):  # type: ignore[no-untyped-def]
    """WRITE the standard normal noise of some entities to the rows of Z."""
    for n in range(entities.size):
        fill_normal(key, entities[n], 0, Z[n])


def solve_shard(sums: EntitySums, X: Array, tasks: Sequence[Bounds], steps: Steps, run: Run) -> Array:
    """Return the blocks X (n, size) of a shard's entities, moved towards their optimum given everything else.

    `tasks` : ranges of entities. Nodes that share a dyad depend on each other, so their blocks are updated in place and
    `run` must process them in order.
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
    """Draw each block of a shard's entities once, part by part; return the blocks and the acceptance rates (n,).

    `X`, `tasks` and `run` are as in `solve_shard`. An entity without dyads is not drawn.
    """
    structure, role, size = sums.specs.structure, Role(sums.owned.role), X.shape[1]
    X = X if role == Role.NODE else X.copy()
    # The weights of a feature are one part: the score offsets are updated for the whole feature.
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
    """Draw each of the shared blocks X once, in place; return acceptance rates (n_relations,)."""
    size = X.shape[1]
    # The block of a single relation is shared by all dyads, so it is known so precisely that proposals of the whole
    # block are accepted; and each further part would cost a sum over all dyads.
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
    """Return the penalty of block x, up to a constant in the entries that move; ADD its gradient to gx."""
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
        # For deviations y of the moving and z of the other entries:
        # 1/2 y^T P y + y^T Q z = y^T (P y + Q z) - 1/2 y^T P y.
        total += scale * (pulled - 0.5 * among) * (x[entry[k]] - centre[entry[k]])
    return total


@kernel
def finish(x, prior, e, part, system):  # type: ignore[no-untyped-def]
    """Return the penalty; ADD its gradient and curvature to the sums over dyads, and freeze entries not active."""
    gx, M, entry = system.gx, system.M, part.entry
    value = add_prior(x, prior, e, entry, gx)
    for k in range(entry.size):
        for j in range(k, entry.size):
            M[k, j] += prior.scale[e] * prior.precision[entry[k], entry[j]]
    for k in range(entry.size):
        if not prior.active[entry[k]]:
            # With a zero gradient and a unit row and column in M, the step of this entry is zero.
            gx[k] = 0
            for j in range(k):
                M[j, k] = 0
            for j in range(k + 1, entry.size):
                M[k, j] = 0
            M[k, k] = 1
    return value


@kernel
def factor(M):  # type: ignore[no-untyped-def]
    """Replace the upper triangle of M by its Cholesky factor U, M = U^T U; pivots are raised to `LEAST_PIVOT`."""
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
    """WRITE d = (U^T U)^-1 gx, with U in the upper triangle of M."""
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
    """Replace d by U^-1 d, with U in the upper triangle of M."""
    for n in range(d.size):
        k = d.size - 1 - n
        total = d[k]
        for j in range(k + 1, d.size):
            total -= M[k, j] * d[j]
        d[k] = total / M[k, k]
