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
`SharedSums`, one large block whose sums are divided into tasks. For the latter they run as plain Python. A team of
lanes shares the work on an entity (see `lanes`); all lanes take the same decisions.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dyads.engine.compiled import inlined, jitable, kernel, reduction
from dyads.engine.lanes import dot_from, lane, lane_sum, lanes, team_dot, wait
from dyads.engine.orders import Bounds, Run
from dyads.engine.sums import (
    EntitySums,
    Groups,
    Part,
    Prior,
    follow,
    has_self_link,
    sums_at,
)
from dyads.model.parameters import Role
from dyads.model.streams import Key, fill_normal, fill_normal_pair, log_chance

Array = np.ndarray[Any, Any]


class Steps(NamedTuple):
    """The stopping rule of Newton's method.

    Attributes
    ----------
    most : maximum number of steps
    small, near : if the predicted decrease gx . d of a step is at most `small` |f| + `near`, the step is the last, and
        is taken without a line search
    pivot : least pivot of a Cholesky factor, relative to the largest diagonal entry; smaller ones are raised to it
    """

    most: int
    small: float
    near: float
    pivot: float


SMALL_STEP = 1e-13
"""Relative predicted decrease below which a step is the last: smaller changes are lost in the rounding of f."""

NEAR_MODE = 1e-2
"""Predicted decrease at which the search for the mode ends.

It equals |d|^2_M for the step d, so the last step is at most a tenth of a standard deviation long. With a third of one
(0.1) Geweke's test fails: the mode then depends too much on the current block.
"""

LEAST_PIVOT = 1e-10
"""Least relative pivot of a Cholesky factor.

Directions without curvature, along which scores do not change, get a step of zero because their gradient is zero.
"""

TO_THE_MODE = Steps(30, 0.0, NEAR_MODE, LEAST_PIVOT)
"""The stopping rule of the search for the mode; the limit of 30 steps bounds the cost of a draw.

On ML-100K (rank 16) a draw takes about three and a half evaluations of f.
"""

SUFFICIENT = 1e-4
"""The constant of the Armijo condition: f must decrease by this fraction of length * gx . d. The customary value."""

SHORTENED = 0.5
"""Backtracking factor: the line search multiplies the step length by this until the Armijo condition holds."""

SHORTEST = 1e-12
"""Step length below which the line search gives up: f is minimal up to rounding."""

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
    sums : (1 + size, size) gradient and curvature, as `sums_at` writes them
    gx : (size,) gradient of f: the first row of `sums`
    M : (size, size) curvature of f or its Cholesky factor, in the upper triangle: the other rows of `sums`
    """

    x: Any
    mode: Any
    d: Any
    z: Any
    sums: Any
    gx: Any
    M: Any

    @classmethod
    def of(cls, block_size: int, size: int) -> "System":
        sums = np.empty((1 + size, size))
        x, mode, d, z = (np.empty(n) for n in (block_size, block_size, size, size))
        return cls(x, mode, d, z, sums, sums[0], sums[1:])


@inlined
def value_at(sums, e, x, part, curved, system, work):  # type: ignore[no-untyped-def]
    """Return f at x, up to a constant in the entries that move.

    If `curved`, WRITE its gradient and curvature to system.gx and system.M; otherwise system.gx is scratch.
    """
    wait(sums.team)
    loss = sums_at(sums, e, x, part, curved, system.sums, work)
    return loss + finish(sums.team, x, sums.prior, e, part, curved, system)


@jitable
def descend(sums, e, block, steps, part, system, work):  # type: ignore[no-untyped-def]
    """Move `block` towards the minimum of f of entity e; return f at the start.

    Afterwards system.M holds the Cholesky factor of the last curvature that was computed.
    """
    team, x, d, entry = sums.team, system.x, system.d, part.entry
    first, n_lanes = lane(team), lanes(team)
    for k in range(first, x.size, n_lanes):
        x[k] = block[k]
    at_start = value = promised = length = 0.0
    step = -1
    while True:
        # A full step is nearly always accepted, and then the next step needs the gradient and the curvature.
        last = step == steps.most - 1
        trial = value_at(sums, e, x, part, not last, system, work)
        if step < 0:
            at_start = trial
        elif not trial <= value - SUFFICIENT * length * promised:
            length *= SHORTENED
            if length < SHORTEST:
                if not last:
                    factor(team, system.M, steps.pivot)
                return at_start
            for k in range(first, d.size, n_lanes):
                x[entry[k]] = block[entry[k]] - length * d[k]
            continue
        value = trial
        for k in range(first, d.size, n_lanes):
            block[entry[k]] = x[entry[k]]
        if last:
            return at_start
        factor(team, system.M, steps.pivot)
        newton_step(team, system.M, system.gx, d)
        promised = 0.0
        for k in range(first, d.size, n_lanes):
            promised += system.gx[k] * d[k]
        promised = lane_sum(team, promised)
        if promised <= steps.small * abs(value) + steps.near:
            for k in range(first, d.size, n_lanes):
                block[entry[k]] -= d[k]
            return at_start
        length = 1.0
        for k in range(first, d.size, n_lanes):
            x[entry[k]] = block[entry[k]] - d[k]
        step += 1


@inlined
def draw_block(sums, e, block, key, number, part, system, work):  # type: ignore[no-untyped-def]
    """Draw part `number` of the block of entity e given all else (Metropolis-Hastings); return whether it was accepted.

    `gain` accumulates the log acceptance ratio.
    """
    team, x, mode, d, entry, M = sums.team, system.x, system.mode, system.d, part.entry, system.M
    first, n_lanes, entity = lane(team), lanes(team), sums.owned.first + e
    for k in range(first, x.size, n_lanes):
        mode[k] = block[k]
    several_modes = has_self_link(sums, e)
    if several_modes:
        # The mode found must not depend on the block; otherwise the reverse move would have another proposal.
        for k in range(first, d.size, n_lanes):
            mode[entry[k]] = sums.prior.centre[e, entry[k]]
    wait(team)
    gain = descend(sums, e, mode, TO_THE_MODE, part, system, work)
    if several_modes:
        gain = value_at(sums, e, block, part, False, system, work)
    for n in range(first, (d.size + 1) // 2, n_lanes):
        fill_normal_pair(key, entity, number, n, system.z)
    wait(team)
    for k in range(first, d.size, n_lanes):
        x[k] = block[entry[k]] - mode[entry[k]]
    wait(team)
    gain = gain if first == 0 else 0.0
    for k in range(first, d.size, n_lanes):
        away = dot_from(k, M[k], x)
        d[k] = system.z[k] if sums.prior.active[entry[k]] else away
        gain += 0.5 * (d[k] * d[k] - away * away)
    gain = lane_sum(team, gain)
    solve_upper(team, M, d)
    for k in range(first, x.size, n_lanes):
        x[k] = mode[k]
    wait(team)
    for k in range(first, d.size, n_lanes):
        x[entry[k]] += d[k]
    gain -= value_at(sums, e, x, part, False, system, work)
    accepted = log_chance(key, entity, number) < gain
    if accepted:
        for k in range(first, x.size, n_lanes):
            block[k] = x[k]
    return accepted


class Move(NamedTuple):
    """What a pass does with blocks: it draws them, or solves for them. One type for both, so that one pass is compiled.

    Attributes
    ----------
    drawn : whether blocks are drawn
    steps : stopping rule of Newton's method
    key, number : key of the noise, and number of the part
    accepted : (n,) receives the number of accepted draws
    """

    drawn: bool
    steps: Steps
    key: Key
    number: int
    accepted: Any


@kernel
def block_pass(sums, X, bounds, move, part, system, work):  # type: ignore[no-untyped-def]
    """Solve for the blocks, rows of X, of entities bounds[0]..bounds[1]-1, or draw those that have dyads.

    After an accepted draw of a dyad feature's weights the score offsets are updated, since the next feature is drawn
    given this one.
    """
    owned = sums.owned
    for e in range(bounds[0], bounds[1]):
        labelled = owned.start[e] < owned.start[e + 1]
        if not move.drawn:
            descend(sums, e, X[e], move.steps, part, system, work)
        elif labelled and draw_block(sums, e, X[e], move.key, move.number, part, system, work):
            move.accepted[e] += 1
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
    role, size = sums.owned.role, X.shape[1]
    X = X if role == Role.NODE else X.copy()
    if not sums.prior.active.any():
        return X
    groups = sums.groups
    (whole,) = groups.parts(size)

    move = Move(False, steps, Key(np.uint64(0), np.uint64(0)), 0, np.zeros(0))

    def task(bounds: Bounds) -> None:
        block_pass(sums, X, bounds, move, whole, System.of(size, size), sums.work(groups, whole))

    run(task, tasks)
    return X


def draw_shard(sums: EntitySums, X: Array, tasks: Sequence[Bounds], key: Key, run: Run) -> tuple[Array, Array]:
    """Draw each block of a shard's entities once, part by part; return the blocks and the acceptance rates (n,).

    `X`, `tasks` and `run` are as in `solve_shard`. An entity without dyads is not drawn.
    """
    role, size = sums.owned.role, X.shape[1]
    X = X if role == Role.NODE else X.copy()
    # The weights of a feature are one part: the score offsets are updated for the whole feature.
    groups = sums.groups
    parts = groups.parts(size if role == Role.FEATURE else PART)
    accepted = np.zeros(len(X))

    def task(bounds: Bounds) -> None:
        for number, part in enumerate(parts):
            system = System.of(size, len(part.entry))
            move = Move(True, TO_THE_MODE, key, number, accepted)
            block_pass(sums, X, bounds, move, part, system, sums.work(groups, part))

    if parts:
        run(task, tasks)
    return X, accepted / max(1, len(parts))


class RelationSums(Protocol):
    """ "Sums at x" of the shared blocks of relations, such as `SharedSums`."""

    groups: Groups
    prior: Prior

    def tasks(self, t: int) -> Any:
        """Return what is true if relation t has dyads."""
        ...

    def work(self, t: int, part: Part) -> Any:
        """Return scratch arrays for a part of the block of relation t."""
        ...


def solve_shared(sums: RelationSums, X: Array, steps: Steps, run: Run) -> None:
    """Move the shared blocks X (n_relations, size) towards their optimum; `run` maps over relations."""
    size = X.shape[1]
    if not sums.prior.active.any():
        return
    (whole,) = sums.groups.parts(size)

    def relation(t: int) -> None:
        descend(sums, t, X[t], steps, whole, System.of(size, size), sums.work(t, whole))

    run(relation, range(len(X)))


def draw_shared(sums: RelationSums, X: Array, key: Key, run: Run) -> Array:
    """Draw each of the shared blocks X once, in place; return acceptance rates (n_relations,)."""
    size = X.shape[1]
    # The block of a single relation is shared by all dyads, so it is known so precisely that proposals of the whole
    # block are accepted; and each further part would cost a sum over all dyads.
    parts = sums.groups.parts(size if len(X) == 1 else PART)

    def relation(t: int) -> float:
        accepted = 0
        for number, part in enumerate(parts if sums.tasks(t) else ()):
            system, work = System.of(size, len(part.entry)), sums.work(t, part)
            accepted += draw_block(sums, t, X[t], key, number, part, system, work)
        return accepted / max(1, len(parts))

    return np.array(run(relation, range(len(X))))


@reduction
def dot_of_difference(x, y, z):  # type: ignore[no-untyped-def]
    """Return sum_k x_k (y_k - z_k)."""
    total = 0.0
    for k in range(x.size):
        total += x[k] * (y[k] - z[k])
    return total


@kernel
def add_prior(team, x, prior, e, entry, gx):  # type: ignore[no-untyped-def]
    """Return the penalty of block x, up to a constant in the entries that move; ADD its gradient to gx."""
    scale, centre = prior.scale[e], prior.centre[e]
    total = 0.0
    for k in range(lane(team), entry.size, lanes(team)):
        line = prior.precision[entry[k]]
        pulled = dot_of_difference(line, x, centre)
        gx[k] += scale * pulled
        among = pulled
        if entry.size < x.size:
            among = x[0] * 0
            for j in range(entry.size):
                among += line[entry[j]] * (x[entry[j]] - centre[entry[j]])
        # For deviations y of the moving and z of the other entries:
        # 1/2 y^T P y + y^T Q z = y^T (P y + Q z) - 1/2 y^T P y.
        total += scale * (pulled - 0.5 * among) * (x[entry[k]] - centre[entry[k]])
    return lane_sum(team, total)


@kernel
def finish(team, x, prior, e, part, curved, system):  # type: ignore[no-untyped-def]
    """Return the penalty; ADD its gradient and, if `curved`, its curvature; then freeze entries that are not active."""
    gx, M, entry = system.gx, system.M, part.entry
    value = add_prior(team, x, prior, e, entry, gx)
    if not curved:
        return value
    scale, whole = prior.scale[e], entry.size == x.size
    for k in range(lane(team), entry.size, lanes(team)):
        line = prior.precision[entry[k]]
        if whole:
            for j in range(k, entry.size):
                M[k, j] += scale * line[j]
        else:
            for j in range(k, entry.size):
                M[k, j] += scale * line[entry[j]]
    wait(team)
    for k in range(lane(team), entry.size, lanes(team)):
        if not prior.active[entry[k]]:
            # With a zero gradient and a unit row and column in M, the step of this entry is zero.
            gx[k] = 0
            for j in range(k):
                M[j, k] = 0
            for j in range(k + 1, entry.size):
                M[k, j] = 0
            M[k, k] = 1
    wait(team)
    return value


@kernel
def factor(team, M, least_pivot):  # type: ignore[no-untyped-def]
    """Replace the upper triangle of M by its Cholesky factor U, M = U^T U; see `Steps`."""
    size, first, n_lanes = M.shape[0], lane(team), lanes(team)
    largest = 0.0
    for k in range(size):
        largest = max(largest, M[k, k])
    least = least_pivot * largest + TINY
    wait(team)
    for k in range(size):
        i = 0
        while i + 4 <= k:
            # Four finished rows at a time: row k is read and written a fourth as often.
            c0, c1, c2, c3 = M[i, k], M[i + 1, k], M[i + 2, k], M[i + 3, k]
            for j in range(k + first, size, n_lanes):
                M[k, j] -= c0 * M[i, j] + c1 * M[i + 1, j] + c2 * M[i + 2, j] + c3 * M[i + 3, j]
            i += 4
        while i < k:
            c = M[i, k]
            for j in range(k + first, size, n_lanes):
                M[k, j] -= c * M[i, j]
            i += 1
        wait(team)
        pivot = math.sqrt(max(M[k, k], least))
        inverse = 1 / pivot
        wait(team)
        if first == 0:
            M[k, k] = pivot
        for j in range(k + 1 + first, size, n_lanes):
            M[k, j] *= inverse
        wait(team)


@kernel
def newton_step(team, M, gx, d):  # type: ignore[no-untyped-def]
    """WRITE d = (U^T U)^-1 gx, with U in the upper triangle of M."""
    first, n_lanes = lane(team), lanes(team)
    for k in range(first, d.size, n_lanes):
        d[k] = gx[k]
    for k in range(d.size):
        wait(team)
        c = d[k] / M[k, k]
        wait(team)
        if first == 0:
            d[k] = c
        for j in range(k + 1 + first, d.size, n_lanes):
            d[j] -= c * M[k, j]
    solve_upper(team, M, d)


@kernel
def solve_upper(team, M, d):  # type: ignore[no-untyped-def]
    """Replace d by U^-1 d, with U in the upper triangle of M."""
    for n in range(d.size):
        k = d.size - 1 - n
        wait(team)
        entry = (d[k] - team_dot(team, k + 1, M[k], d)) / M[k, k]
        wait(team)
        if lane(team) == 0:
            d[k] = entry
    wait(team)
