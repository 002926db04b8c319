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
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dyads.data.dyads import Dyads, Grouped
from dyads.engine.compiled import inlined, kernel, routine
from dyads.engine.vectors import begin
from dyads.model.loss import curvature, evaluate
from dyads.model.parameters import Blocks
from dyads.model.streams import Key, fill_normal, log_chance
from dyads.model.structure import (
    free_labels,
    label_weights,
    partner_col,
    partner_row,
    partner_shared,
    score,
    shared_label_weights,
)

Array = np.ndarray[Any, Any]

ROW, COL, NODE, SHARED, FEATURE = range(5)
"""Whose block is solved for; a node's is that of a row and of a column at once.

That of a feature of dyads is what its weights move by, one a label: see `amount` of `Subproblems`.
"""

STEPS = 100
"""Most Newton steps of a solution to the end; of the log loss, whose curvature is exact, five or six are enough."""

SMALL_STEP = 1e-13
"""A step that promises to lower a subproblem by less than this share of its value is the last, and needs no search."""


MODE_STEPS = 30
"""Most Newton steps towards the mode a draw is proposed around."""

NEAR_MODE = 1e-2
"""How much a Newton step may promise to lower minus the log density if it is to be the last one to the mode."""

PART = 64
"""Most entries of a block that are drawn at once: fewer are accepted more often, and cost less."""


class Prior(NamedTuple):
    """The penalty of blocks that lie in one table: 1/2 scale_e (x_e - centre_e)^T precision (x_e - centre_e).

    Attributes
    ----------
    precision : (size, size), scale : (n,), centre : (n, size)
    active : (size,) which entries move
    """

    precision: Array
    scale: Array
    centre: Array
    active: Array


class Subproblems(NamedTuple):
    """The subproblems of all entities of a kind, given everything else.

    Attributes
    ----------
    specs : structure and loss
    which : ROW, COL, NODE, SHARED or FEATURE
    blocks : effective blocks of all rows and columns, and the shared ones
    dyads, first_scores : what is summed over, and what the scores begin at, or None
    grouped : which dyads each entity has
    prior : of their blocks
    moves : (n_features, free labels) the blocks of features, or None
    amount : (n,) how much of its feature each dyad has, in the order of `grouped`, or None
    """

    specs: tuple[Any, Any]
    which: int
    blocks: Blocks
    dyads: Dyads
    first_scores: Array | None
    grouped: Grouped
    prior: Prior
    moves: Array | None = None
    amount: Array | None = None

    @property
    def table(self) -> Array:
        """The blocks that are solved for, or drawn."""
        tables = (self.blocks.row, self.blocks.col, self.blocks.row, self.blocks.shared, self.moves)
        return np.asarray(tables[self.which])

    @property
    def data(self) -> tuple[Any, ...]:
        """The first arguments of every kernel below."""
        dyads = self.dyads
        return (
            *self.specs, self.which, *self.blocks, self.grouped.order,
            dyads.row, dyads.col, dyads.label, dyads.relation, dyads.weight, self.first_scores, self.amount,
        )  # fmt: skip

    @property
    def groups(self) -> Array:
        """Where each group of entries of a block begins, and last where the block ends; see `label_weights`."""
        structure, size = self.specs[0], self.table.shape[1]
        shared = self.which in (SHARED, FEATURE)
        n_single = free_labels(structure) * (1 if shared else structure.n_bias)
        width = structure.group_widths()[shared]
        return np.concatenate([np.arange(n_single), np.arange(n_single, size, width or 1), [size]])

    def parts(self, most: int) -> "list[Part]":
        """Cut a block into parts of at most `most` entries, but for a group that is larger, and of whole labels."""
        structure, start = self.specs[0], self.groups
        weights = np.zeros((structure.n_labels, len(start) - 1))
        if self.which in (SHARED, FEATURE):
            shared_label_weights(structure, weights)
        else:
            # Weights that come of the shared block are not one.
            label_weights(structure, np.full(self.blocks.shared.shape[1], 2.0), weights)
        owned = ((weights != 0).sum(axis=0) == 1) & (weights.sum(axis=0) == 1)
        own = np.where(owned, np.argmax(weights, axis=0), -1)
        order = np.argsort(np.where(owned, own, structure.n_labels), kind="stable")
        found: list[list[int]] = []
        room = 0
        for group in order:
            width = int(start[group + 1] - start[group])
            if not found or width > room:
                found.append([])
                room = most
            found[-1].append(int(group))
            room -= width
        return [Part.of(start, own, np.sort(groups)) for groups in found]

    def scratch(self, part: "Part") -> tuple[Any, ...]:
        """The last arguments: a part of the block, and vectors and matrices to work in."""
        n_labels, n_all, n_groups, size = self.specs[0].n_labels, len(self.groups) - 1, len(part.group), len(part.entry)
        vectors = (np.empty(n) for n in (n_labels, n_labels, n_groups, self.table.shape[1], size))
        shapes = (n_labels, n_labels), (n_labels, n_all), (n_labels, n_groups), (n_groups, n_groups)
        return *part, *vectors, *(np.empty(shape) for shape in shapes)


class Part(NamedTuple):
    """Some entries of a block, in whole groups.

    Attributes
    ----------
    entry : (size,) their places in the block
    group : (n_groups,) the groups they make
    end : (n_groups,) where each of them ends among the entries
    own : (n_groups,) the label that alone weighs a group, by one, or -1
    """

    entry: Array
    group: Array
    end: Array
    own: Array

    @classmethod
    def of(cls, start: Array, own: Array, groups: Array) -> "Part":
        entries = [np.arange(start[group], start[group + 1]) for group in groups]
        end = np.cumsum([len(each) for each in entries])
        return cls(np.concatenate([np.zeros(0, np.int64), *entries]), groups.astype(np.int64), end, own[groups])


def solve_entities(problems: Subproblems, tasks: Sequence[tuple[int, int]], n_steps: int, run: Any) -> None:
    """Move the blocks of entities towards their optimum, given everything else, in place.

    `tasks` are ranges of entities; `run` maps a function over them. Nodes that share a dyad are not independent, so
    theirs must be run one after the other.
    """
    size = problems.table.shape[1]
    if not problems.prior.active.any():
        return
    (whole,) = problems.parts(size)

    def solve(bounds: tuple[int, int]) -> None:
        newton_pass(
            *problems.data, problems.grouped.start, problems.table, *problems.prior, *bounds, n_steps, SMALL_STEP,
            *(np.empty(size) for _ in range(3)), np.empty((size, size)), *problems.scratch(whole),
        )  # fmt: skip

    run(solve, tasks)


def draw_entities(problems: Subproblems, tasks: Sequence[tuple[int, int]], key: Key, run: Any) -> Array:
    """Move the blocks of entities by one draw each, part by part, in place; returns the share of parts accepted (n,).

    An entity without dyads is left alone.
    """
    table = problems.table
    accepted = np.zeros(len(table))

    def draw(bounds: tuple[int, int]) -> None:
        for number, part in enumerate(parts):
            size = len(part.entry)
            draw_pass(
                *problems.data, problems.grouped.start, table, *problems.prior, *bounds,
                key, number, accepted,
                *(np.empty(table.shape[1]) for _ in range(2)), *(np.empty(size) for _ in range(3)),
                np.empty((size, size)), *problems.scratch(part),
            )  # fmt: skip

    # The first scores follow a feature as a whole.
    parts = problems.parts(problems.table.shape[1] if problems.which == FEATURE else PART)
    if parts:
        run(draw, tasks)
    return accepted / max(1, len(parts))


def draw_alone(problems: Subproblems, tasks: Sequence[tuple[int, int]], key: Key, run: Any) -> bool:
    """Draw the one shared block there is, in place; returns whether it was accepted.

    What `draw_pass` does for an entity, but with the sums over dyads cut into `tasks`: here there is one entity alone.
    """
    (block,), (centre,), size = problems.table, problems.prior.centre, problems.table.shape[1]
    (whole,) = problems.parts(size)

    def curvature_at(x: Array) -> tuple[float, Array, Array]:
        """f, its gradient, and the root U of its curvature U^T U, at x."""

        def part(bounds: tuple[int, int]) -> tuple[float, Array, Array]:
            gx, M = np.zeros(size), np.zeros((size, size))
            value = sum_pass(*problems.data, 0, x, *bounds, gx, M, *problems.scratch(whole))
            return value, gx, M

        values, gradients, curvatures = zip(*run(part, tasks), strict=True)
        pulled = problems.prior.precision @ (x - centre)
        M = np.triu(sum(curvatures)) + np.triu(problems.prior.precision)
        root = np.linalg.cholesky(M + np.triu(M, 1).T).T
        return sum(values) + 0.5 * float(pulled @ (x - centre)), sum(gradients) + pulled, root

    def value_at(x: Array) -> float:
        def part(bounds: tuple[int, int]) -> float:
            n_labels = problems.specs[0].n_labels
            value: float = loss_pass(*problems.data, 0, x, *bounds, np.empty(n_labels), np.empty(n_labels))
            return value

        return sum(run(part, tasks)) + 0.5 * float((x - centre) @ problems.prior.precision @ (x - centre))

    at_start = value, gradient, root = curvature_at(block)
    mode = block
    for _ in range(MODE_STEPS):
        step = np.linalg.solve(root, np.linalg.solve(root.T, gradient))
        promised = float(gradient @ step)
        if promised <= NEAR_MODE:
            mode = mode - step
            break
        length = 1.0
        while (trial := curvature_at(mode - length * step))[0] > value - 1e-4 * length * promised and length > 1e-12:
            length *= 0.5
        mode = mode - length * step
        value, gradient, root = trial
    noise = np.empty(size)
    noise_pass(key, np.zeros(1, np.int64), noise[None])
    new = mode + np.linalg.solve(root, noise)
    away = root @ (block - mode)
    gain = at_start[0] - value_at(new) + 0.5 * float(noise @ noise - away @ away)
    accepted = log_chance(key, 0, 0) < gain
    if accepted:
        block[:] = new
    return accepted


# e is the entity, x its block; `entry`, `group`, `end` say which entries move, see `Part`, and gx, d, M are of these.
# g, u, v, w, C, E, T, G are scratch for score gradients, pulled gradients of groups, what partners put beside x, that
# of the moving entries, curvature in scores, label weights, C E and E^T C E.


@kernel
def newton_pass(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start, X,
    precision, scale, centre, active, first, last, n_steps, small, x, d, gx, M,
    entry, group, end, own, s, g, u, v, w, C, E, T, G,
):  # fmt: skip
    """Solve the subproblems of entities first..last-1, whose blocks are lines of X, by at most `n_steps` each."""
    for e in range(first, last):
        descend(
            structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start,
            precision, scale, centre, active, e, X[e], n_steps, small, 0.0, x, d, gx, M,
            entry, group, end, own, s, g, u, v, w, C, E, T, G,
        )  # fmt: skip


@kernel
def draw_pass(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start, X,
    precision, scale, centre, active, first, last, key, number, accepted, x, mode, d, z, gx, M,
    entry, group, end, own, s, g, u, v, w, C, E, T, G,
):  # fmt: skip
    """Draw a part of the blocks of entities first..last-1, lines of X, that have dyads.

    When that of a feature of dyads is accepted, the first scores S follow: the next feature is drawn given it.
    """
    for e in range(first, last):
        if start[e] == start[e + 1]:
            continue
        for k in range(x.size):
            mode[k] = X[e, k]
        self_link = which == NODE and has_self_link(row, col, order, start[e], start[e + 1])
        if self_link:
            # There may be several modes, and which is found must not depend on the block, or the way back would differ.
            for k in range(d.size):
                mode[entry[k]] = centre[e, entry[k]]
        gain = descend(
            structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start,
            precision, scale, centre, active, e, mode, MODE_STEPS, 0.0, NEAR_MODE, x, d, gx, M,
            entry, group, end, own, s, g, u, v, w, C, E, T, G,
        )  # fmt: skip
        if self_link:
            gain = prior_part(X[e], precision, scale[e], centre[e], entry, gx) + loss_part(
                structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
                e, X[e], start[e], start[e + 1], s, g,
            )  # fmt: skip
        fill_normal(key, e, number, z)
        for k in range(d.size):
            away = d[0] * 0
            for j in range(k, d.size):
                away += M[k, j] * (X[e, entry[j]] - mode[entry[j]])
            d[k] = z[k] if active[entry[k]] else away
            gain += 0.5 * (d[k] * d[k] - away * away)
        solve_upper(M, d)
        for k in range(x.size):
            x[k] = mode[k]
        for k in range(d.size):
            x[entry[k]] += d[k]
        gain -= prior_part(x, precision, scale[e], centre[e], entry, gx) + loss_part(
            structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
            e, x, start[e], start[e + 1], s, g,
        )  # fmt: skip
        if log_chance(key, e, number) < gain:
            accepted[e] += 1
            for k in range(x.size):
                X[e, k] = x[k]
            if amount is not None:
                for n in range(start[e], start[e + 1]):
                    add_feature(structure, amount, n, x, S[order[n]])


@kernel
def noise_pass(key, entities, Z):  # type: ignore[no-untyped-def]
    """Write the standard normal noise of some entities to the lines of Z."""
    for n in range(entities.size):
        fill_normal(key, entities[n], 0, Z[n])


@routine
def descend(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start,
    precision, scale, centre, active, e, block, n_steps, small, near, x, d, gx, M,
    entry, group, end, own, s, g, u, v, w, C, E, T, G,
):  # fmt: skip
    """Move `block` towards the optimum of entity e, by at most `n_steps`; returns f where it began.

    A step that promises to lower f by less than `small` of its value, or by less than `near`, is the last, and needs no
    search. M is left with the root of the last curvature.
    """
    for k in range(x.size):
        x[k] = block[k]
    value = curvature_at(
        structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start,
        precision, scale, centre, active, e, x, gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
    )  # fmt: skip
    at_start = value
    for step in range(n_steps):
        factor(M)
        newton_step(M, gx, d)
        promised = 0.0
        for k in range(d.size):
            promised += gx[k] * d[k]
        if promised <= small * abs(value) + near:
            for k in range(d.size):
                block[entry[k]] -= d[k]
            return at_start
        length = 1.0
        while True:
            for k in range(d.size):
                x[entry[k]] = block[entry[k]] - length * d[k]
            if step == n_steps - 1:
                trial = prior_part(x, precision, scale[e], centre[e], entry, gx) + loss_part(
                    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
                    e, x, start[e], start[e + 1], s, g,
                )  # fmt: skip
            else:
                # A full step is nearly always good, and the next one needs all of this.
                trial = curvature_at(
                    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start,
                    precision, scale, centre, active, e, x, gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
                )  # fmt: skip
            if trial <= value - 1e-4 * length * promised:
                break
            length *= 0.5
            if length < 1e-12:
                if step < n_steps - 1:
                    factor(M)
                return at_start
        value = trial
        for k in range(d.size):
            block[entry[k]] = x[entry[k]]
    return at_start


@routine
def curvature_at(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, start,
    precision, scale, centre, active, e, x, gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
):  # fmt: skip
    """Return f at x, but for what does not depend on the moving entries; WRITE its gradient and curvature."""
    value = prior_part(x, precision, scale[e], centre[e], entry, gx)
    for k in range(entry.size):
        for j in range(k, entry.size):
            M[k, j] = scale[e] * precision[entry[k], entry[j]]
    value += dyads_part(
        structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
        e, x, start[e], start[e + 1], gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
    )  # fmt: skip
    hold(active, entry, gx, M)
    return value


@inlined
def has_self_link(row, col, order, first, last):  # type: ignore[no-untyped-def]
    """Whether one of an entity's dyads is of it with itself."""
    found = False
    for n in range(first, last):
        found = found or row[order[n]] == col[order[n]]
    return found


@kernel
def sum_pass(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
    e, x, first, last, gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
):  # fmt: skip
    """The dyads' part of one subproblem, over places first..last-1 of the order: see `dyads_part`."""
    return dyads_part(
        structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
        e, x, first, last, gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
    )  # fmt: skip


@kernel
def loss_pass(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, e, x, first, last, s, g,
):  # fmt: skip
    """The same without derivatives: see `loss_part`."""
    return loss_part(
        structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, e, x, first, last, s, g
    )


@routine
def dyads_part(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount,
    e, x, first, last, gx, M, entry, group, end, own, s, g, u, v, w, C, E, T, G,
):  # fmt: skip
    """Return the loss of an entity's dyads with block x; ADD its gradient to gx, its curvature to the upper half of M.

    With J[y, k] = E[y, group of k] v_k, the curvature J^T C J is (E^T C E)[group of k, group of j] v_k v_j.
    """
    total = 0.0
    n_groups, size = group.size, entry.size
    # Biases, and whatever else is a group of its own, come first.
    n_single = 0
    while n_single < n_groups and end[n_single] == n_single + 1:
        n_single += 1
    dense = False
    for p in range(n_groups):
        dense = dense or own[p] < 0
    for n in range(first, last):
        i = order[n]
        own_row, own_col, h = roles(which, e, i, x, A, B, H, row, col, relation)
        a = x if own_row else A[row[i]]
        b = x if own_col else B[col[i]]
        begin(s, S, i)
        score(structure, a, b, h, s)
        add_feature(structure, amount, n, x, s)
        value = curvature(loss, label[i], s, g, C)
        times = 1.0 if weight is None else weight[i]
        total += times * value
        for k in range(x.size):
            v[k] = 0
        if which == SHARED:
            partner_shared(structure, a, b, v)
        if amount is not None:
            for k in range(x.size):
                v[k] = amount[n]
        if own_row:
            partner_row(structure, b, v)
        if own_col:
            partner_col(structure, a, v)
        for k in range(size):
            w[k] = v[entry[k]]
        if dense and (n == first or relation is not None):
            label_weights(structure, h, E)
        for p in range(n_groups):
            if own[p] >= 0:
                u[p] = times * g[own[p]]
            else:
                u[p] = 0
                for y in range(s.size):
                    u[p] += times * E[y, group[p]] * g[y]
                for y in range(s.size):
                    T[y, p] = 0
                    for q in range(s.size):
                        T[y, p] += C[y, q] * E[q, group[p]]
        for p in range(n_groups):
            for q in range(p, n_groups):
                if own[p] >= 0:
                    bend = C[own[p], own[q]] if own[q] >= 0 else T[own[p], q]
                elif own[q] >= 0:
                    bend = T[own[q], p]
                else:
                    bend = g[0] * 0
                    for y in range(s.size):
                        bend += E[y, group[p]] * T[y, q]
                G[p, q] = times * bend
        for p in range(n_single):
            c = w[p]
            gx[p] += u[p] * c
            for q in range(p, n_single):
                M[p, q] += c * G[p, q] * w[q]
            for q in range(n_single, n_groups):
                cq = c * G[p, q]
                for j in range(end[q - 1] if q else 0, end[q]):
                    M[p, j] += cq * w[j]
        for p in range(n_single, n_groups):
            for k in range(end[p - 1] if p else 0, end[p]):
                c = w[k]
                gx[k] += u[p] * c
                if c != 0:
                    cp = c * G[p, p]
                    for j in range(k, end[p]):
                        M[k, j] += cp * w[j]
                    for q in range(p + 1, n_groups):
                        cq = c * G[p, q]
                        for j in range(end[q - 1], end[q]):
                            M[k, j] += cq * w[j]
    return total


@routine
def prior_part(x, precision, scale, centre, entry, gx):  # type: ignore[no-untyped-def]
    """Return the penalty of a block, but for what does not depend on the moving entries; WRITE its gradient to gx."""
    total = 0.0
    for k in range(entry.size):
        line = precision[entry[k]]
        pulled = x[0] * 0
        for j in range(x.size):
            pulled += line[j] * (x[j] - centre[j])
        gx[k] = scale * pulled
        among = pulled
        if entry.size < x.size:
            among = x[0] * 0
            for j in range(entry.size):
                among += line[entry[j]] * (x[entry[j]] - centre[entry[j]])
        # Among each other the moving entries count once, with the others twice: 1/2 y^T P y + y^T Q.
        total += scale * (pulled - 0.5 * among) * (x[entry[k]] - centre[entry[k]])
    return total


@routine
def loss_part(  # type: ignore[no-untyped-def]
    structure, loss, which, A, B, H, order, row, col, label, relation, weight, S, amount, e, x, first, last, s, g,
):  # fmt: skip
    """The loss of an entity's dyads with block x, alone."""
    total = 0.0
    for n in range(first, last):
        i = order[n]
        own_row, own_col, h = roles(which, e, i, x, A, B, H, row, col, relation)
        begin(s, S, i)
        score(structure, x if own_row else A[row[i]], x if own_col else B[col[i]], h, s)
        add_feature(structure, amount, n, x, s)
        value = evaluate(loss, label[i], s, g)
        total += value if weight is None else value * weight[i]
    return total


@inlined
def add_feature(structure, amount, n, x, s):  # type: ignore[no-untyped-def]
    """s += what the weights x of a feature add, for the dyad in place n, if x is a feature's."""
    if amount is not None:
        for f in range(x.size):
            s[f + (f >= structure.base)] += amount[n] * x[f]


@inlined
def roles(which, e, i, x, A, B, H, row, col, relation):  # type: ignore[no-untyped-def]
    """Whether x stands for the row's block of dyad i, and for the column's; and the shared block, which x may be."""
    own_row = which == ROW or (which == NODE and row[i] == e)
    own_col = which == COL or (which == NODE and col[i] == e)
    return own_row, own_col, x if which == SHARED else H[0 if relation is None else relation[i]]


@routine
def hold(active, entry, gx, M):  # type: ignore[no-untyped-def]
    """Take entries that are not active out of the system: no gradient, and a unit line."""
    for k in range(gx.size):
        if not active[entry[k]]:
            gx[k] = 0
            for j in range(k):
                M[j, k] = 0
            for j in range(k + 1, gx.size):
                M[k, j] = 0
            M[k, k] = 1


@routine
def factor(M):  # type: ignore[no-untyped-def]
    """Replace the upper half of M by U with M = U^T U (Cholesky); a pivot too small to trust is raised."""
    size = M.shape[0]
    largest = 0.0
    for k in range(size):
        largest = max(largest, M[k, k])
    # Directions without curvature, along which scores do not change, get a step of zero: their gradient is zero.
    least = 1e-10 * largest + 1e-300
    for k in range(size):
        M[k, k] = math.sqrt(max(M[k, k], least))
        inverse = 1 / M[k, k]
        for j in range(k + 1, size):
            M[k, j] *= inverse
        for i in range(k + 1, size):
            c = M[k, i]
            for j in range(i, size):
                M[i, j] -= c * M[k, j]


@routine
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


@routine
def solve_upper(M, d):  # type: ignore[no-untyped-def]
    """d = U^-1 d."""
    for n in range(d.size):
        k = d.size - 1 - n
        total = d[k]
        for j in range(k + 1, d.size):
            total -= M[k, j] * d[j]
        d[k] = total / M[k, k]
