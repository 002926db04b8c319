"""The CPU engine: sums over dyads on a pool of threads, the same at any number of them.

Full batch: by row (score, loss, keep g, pull into that row), then by column (read g, pull into that column), so
that every sum has one owner and one order. SGD: rows and columns are dealt into a fixed number of groups; the cells
(row group, column group) of one round share no row and no column, so threads take them in any order.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dyads.data.dyads import Dyads, Grouped, Side
from dyads.engine.entity import COL, NODE, ROW, SHARED, STEPS, Prior, Subproblems, draw_entities, solve_entities
from dyads.engine.orders import Orders, owner_tasks, runs
from dyads.engine.passes import col_pass, loss_pass, row_pass, sgd_pass, step_pass
from dyads.engine.threads import Threads, even_tasks
from dyads.model.objective import Objective
from dyads.model.parameters import Blocks
from dyads.model.penalty import Counts
from dyads.model.streams import FIXED_SEED, Key, Stream, random_stream

Array = np.ndarray[Any, Any]

PLACE = {NODE: 0, ROW: 0, COL: 1, SHARED: 2}
"""Which of `Blocks` holds those of a kind."""

STORED_GRADIENT_BYTES = 2**30
"""Above this size the score gradients of the row pass are computed again in the column pass, not stored."""

ENTITY_CHUNK = 2048
"""Dyads per task of a pass that solves for entities, or draws them: these take longer than sums."""

ROUNDS = 200
"""Most rounds over new rows and new columns that share dyads when both are folded in."""

REDRAWS = 5
"""Draws of blocks that are folded into a drawn model: the first is around their mode already."""

STILL = 1e-9
"""Blocks that move by less than this in a round have been found."""

SIDE_STEPS = 24
"""Steps of the side weights aimed at in an epoch of SGD."""

HELD = 1e30
"""AdaGrad's sum of squared gradients for what must not move."""

ACCUMULATOR_START = 0.1
"""Where AdaGrad's sums of squared gradients start, for weights of one: bounds a rarely seen entity's first steps."""


class Host:
    """An objective bound to dyads: what solvers call.

    Use it in a ``with`` block: its threads live no longer than that, so that a later fork is safe. `counts` are those
    of all dyads where the bound ones are a batch of them, which an SGD epoch then penalises by its share.
    """

    def __init__(
        self, objective: Objective, dyads: Dyads, n_jobs: int | None = 1, counts: Counts | None = None
    ) -> None:
        self.objective = objective
        self.dyads = dyads
        self.counts = Counts.of(dyads, objective.structure.one_set) if counts is None else counts
        self.threads = Threads(n_jobs)
        self._orders = Orders(dyads, objective.structure.one_set)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.threads.close()

    def loss(self, theta: Array, dyads: Dyads | None = None) -> float:
        """Sum the weighted loss of the bound dyads, or of others."""
        dyads = self.dyads if dyads is None else dyads
        layout, specs = self.objective.layout, self._specs(theta.dtype)
        side = _side_at(dyads.side, theta.dtype)
        blocks, first = layout.effective(theta, side), layout.first_scores(theta, side)
        weight = _weight(dyads, theta.dtype)

        def part(bounds: tuple[int, int]) -> float:
            return loss_pass(
                *specs,
                *blocks,
                dyads.row,
                dyads.col,
                dyads.label,
                dyads.relation,
                weight,
                first,
                *bounds,
                *_scratch(specs[0], theta),
            )  # type: ignore[no-any-return]

        return sum(self.threads.map(part, even_tasks(len(dyads))))

    def value(self, theta: Array) -> float:
        """The objective."""
        return self.loss(theta) + self.objective.add_penalty(theta, np.zeros_like(theta))

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """The objective and its gradient (size,), in the precision of theta; zero where theta is not free."""
        layout, grouped = self.objective.layout, self._orders.by_owner
        dyads, specs = grouped.dyads, self._specs(theta.dtype)
        side = _side_at(dyads.side, theta.dtype)
        blocks, first = layout.effective(theta, side), layout.first_scores(theta, side)
        gradient = np.zeros_like(theta)
        out = layout.blocks(gradient)
        keeping = side.dyad is not None or self._store_bytes(theta.dtype) <= STORED_GRADIENT_BYTES
        kept = np.empty((len(dyads) if keeping else 0, self.objective.structure.n_labels), theta.dtype)
        weight = _weight(dyads, theta.dtype)

        def cols(bounds: tuple[int, int]) -> None:
            col_pass(
                *specs,
                *blocks,
                grouped.by_col.start,
                grouped.by_col.order,
                dyads.row,
                dyads.label,
                dyads.relation,
                weight,
                first,
                *bounds,
                kept,
                *_scratch(specs[0], theta),
                out.col,
            )

        value = self._by_row(blocks, first, kept, out)
        self.threads.map(cols, grouped.col_tasks)
        layout.pull_side(out, kept, side, gradient)
        value += self.objective.add_penalty(theta, gradient)
        if self.objective.free is not None:
            gradient[~self.objective.free] = 0
        return value, gradient

    def score_gradients(self, theta: Array) -> tuple[Dyads, Array]:
        """The bound dyads in the order of rows, and the derivatives of their losses by their scores (n, n_labels)."""
        layout, dyads = self.objective.layout, self._orders.by_owner.dyads
        side = _side_at(dyads.side, theta.dtype)
        kept = np.empty((len(dyads), self.objective.structure.n_labels), theta.dtype)
        blocks, first = layout.effective(theta, side), layout.first_scores(theta, side)
        self._by_row(blocks, first, kept, layout.blocks(np.zeros_like(theta)))
        return dyads, kept

    def _by_row(self, blocks: Blocks, first: Array | None, kept: Array, out: Blocks) -> float:
        """Sum the loss, pull it into the rows' and the shared blocks of `out`, and keep d loss / d score in `kept`."""
        grouped, dtype = self._orders.by_owner, blocks.row.dtype
        dyads, specs, tasks = grouped.dyads, self._specs(dtype), grouped.row_tasks
        shared = np.zeros((len(tasks), *blocks.shared.shape), dtype)
        weight = _weight(dyads, dtype)

        def rows(task: int) -> float:
            return row_pass(  # type: ignore[no-any-return]
                *specs,
                *blocks,
                grouped.by_row.start,
                dyads.col,
                dyads.label,
                dyads.relation,
                weight,
                first,
                *tasks[task],
                kept,
                *_scratch(specs[0], blocks.row),
                out.row,
                shared[task],
            )

        value = sum(self.threads.map(rows, range(len(tasks))))
        out.shared[:] = shared.sum(axis=0)
        return value

    def resumed_state(self, theta: Array) -> Array:
        """A state of SGD for parameters that were found by other means: sums as if all dyads had been visited once."""
        state, typical = self.sgd_state(theta), self.dyads.total_weight / len(self.dyads)
        row, col, shared = self.objective.layout.blocks(state[1])
        row *= 1 + self.counts.row[:, None] / typical
        if not self.objective.structure.one_set:
            col *= 1 + self.counts.col[:, None] / typical
        shared *= 1 + self.counts.relation[:, None] / typical
        state[1, self.objective.layout.own_size :] *= 1 + self.counts.relation.sum() / typical
        return state

    def sgd_state(self, theta: Array) -> Array:
        """The state of SGD (2, size), single precision: the parameters, and AdaGrad's sums of squared gradients.

        What is not free has so large a sum that its steps vanish; an infinite one has no reciprocal square root.
        """
        typical = self.dyads.total_weight / len(self.dyads)
        state = np.stack([theta, np.full_like(theta, ACCUMULATOR_START * typical**2)]).astype(np.float32)
        if self.objective.free is not None:
            state[1, ~self.objective.free] = HELD
        return state

    def epoch(self, state: Array, rate: float, seed: int, number: int) -> float:
        """Visit every dyad once in a new order, moving `state`; returns the objective met on the way.

        That is the loss of each dyad before its step, summed, plus the penalty at the end.
        """
        layout, cells = self.objective.layout, self._orders.cells
        held = None if self.objective.free is None else state[0, ~self.objective.free]
        side = _SideSteps(self.objective, state, *self._sgd_side)
        theta, squares = side.blocks, layout.blocks(state[1])
        specs, constants = self._specs(state.dtype), self._sgd_constants
        weight = _weight(cells.dyads, state.dtype)
        step_size = state.dtype.type(rate)
        dyads = cells.dyads
        with_side, batch = any(layout.n_features), dyads.total_weight / self.counts.relation.sum()
        n_parts = -(-SIDE_STEPS // cells.n_groups) if with_side else 1

        def visit(task: tuple[int, int]) -> tuple[float, Array, Array]:
            cell, part = task
            first, last = cells.start[cell], cells.start[cell + 1]
            order = first + random_stream(seed, Stream.VISITS, number, cell).permutation(last - first)[part::n_parts]
            h, h2 = theta.shared.copy(), squares.shared.copy()
            value = sgd_pass(
                *specs, theta.row, theta.col, h, squares.row, squares.col, h2,
                dyads.row, dyads.col, dyads.label, dyads.relation, weight, order, *constants, step_size,
                *_scratch(specs[0], h), np.empty_like(theta.row[0]), np.empty_like(theta.col[0]), np.empty_like(h),
                *side.arguments,
            )  # fmt: skip
            return value, h, h2

        value = 0.0
        sizes = np.diff(cells.start)
        for shift in random_stream(seed, Stream.ROUNDS, number).permutation(cells.n_groups):
            round_ = [cell for cell in cells.round(int(shift)) if sizes[cell]]
            for part in range(n_parts if round_ else 0):
                values, h, h2 = zip(*self.threads.map(visit, [(cell, part) for cell in round_]), strict=True)
                value += sum(values)
                # Every cell moved its own copy of the shared block: their mean, since their sum would overshoot.
                theta.shared[:] = np.average(h, axis=0, weights=sizes[round_])
                squares.shared[:] = np.average(h2, axis=0, weights=sizes[round_])
                if with_side:
                    side.step(step_size, batch * sizes[round_].sum() / n_parts / len(dyads))
        side.land()
        if held is not None:
            state[0, ~self.objective.free] = held
        return value + self.objective.add_penalty(state[0], np.zeros_like(state[0]))

    def sweep(self, theta: Array) -> float:
        """Move each row's block, then each column's (or each node's), then the shared ones, by a Newton step each.

        Returns the objective, which never rises.
        """
        turns = Turns(self, theta)
        for which in (*((NODE,) if self.objective.structure.one_set else (ROW, COL)), SHARED):
            turns.solve(which, turns.tasks(which), 1)
        turns.land()
        return self.value(theta)

    def solve_for(
        self,
        theta: Array,
        rows: Array,
        cols: Array,
        centre: tuple[Array, Array],
        precision: tuple[Array, Array] | None = None,
        draw: int = 0,
    ) -> bool:
        """Move the blocks of some rows and columns (or, with one id set, of nodes, `rows`) to their optimum, in place.

        `centre` : what own blocks are penalised towards; Rows and columns are solved in turn until a round moves
        neither. Returns whether that came to an end. With a `precision`, that of a learnt prior, they are then drawn,
        some times; `draw` is the number of the posterior draw they are folded into.
        """
        turns = Turns(self, theta, centre, precision)
        one_set = self.objective.structure.one_set
        sides = (
            [(NODE, rows)] if one_set else [(which, codes) for which, codes in ((ROW, rows), (COL, cols)) if len(codes)]
        )
        tasks = {which: runs(codes, turns.grouped(which).start) for which, codes in sides}
        ended = False
        for _ in range(ROUNDS):
            moved = [turns.solve(which, tasks[which], STEPS, codes) for which, codes in sides]
            ended = max(moved, default=0.0) < STILL or (len(sides) == 1 and not one_set)
            if ended:
                break
        for redraw in range(0 if precision is None else REDRAWS):
            for which, _ in sides:
                key = Key.of(FIXED_SEED, Stream.FOLD_IN, draw, redraw, which)
                draw_entities(turns.problems(which), tasks[which], key, in_order if one_set else self.threads.map)
        turns.land()
        return ended

    def over(self, free: Array | None) -> "Host":
        """The same problem, minimised over other entries of theta; it shares the threads and groups of this one."""
        other = copy.copy(self)
        other.objective = replace(self.objective, free=free)
        return other

    def side_alone(self) -> "Host | None":
        """The same problem over the side weights alone, or None if there are none to move."""
        layout, free = self.objective.layout, self.objective.free
        moving = np.ones(layout.size, np.bool_) if free is None else free.copy()
        moving[: layout.own_size] = False
        return self.over(moving) if moving.any() else None

    def _specs(self, dtype: Any) -> tuple[Any, Any]:
        return self.objective.structure, _at_precision(self.objective.loss, dtype)

    def _store_bytes(self, dtype: Any) -> int:
        return len(self.dyads) * self.objective.structure.n_labels * np.dtype(dtype).itemsize

    @cached_property
    def _sgd_constants(self) -> tuple[Array | None, ...]:
        penalty = self.objective.penalty
        # An entity whose dyads are all held out is never visited.
        counts = (np.where(n > 0, n, np.inf) for n in self.counts)
        scales = (penalty.row_scale, penalty.col_scale, penalty.shared_scale)
        decays = (scale / n for scale, n in zip(scales, counts, strict=True))
        shared = (penalty.shared_strength, penalty.shared_centre) if penalty.shared_strength.any() else (None, None)
        arrays = (*decays, penalty.row_strength, penalty.col_strength, *shared)
        return tuple(None if array is None else np.ascontiguousarray(array, np.float32) for array in arrays)

    @cached_property
    def _sgd_side(self) -> tuple[Side, list[float]]:
        """The features in single precision, and the mean over dyads of the sum of the sizes of a line of each kind."""
        dyads = self._orders.cells.dyads
        side = _side_at(dyads.side, np.float32)
        counts = (dyads.row_counts, dyads.col_counts, np.ones(len(dyads)))
        reach = [
            1.0 if features is None else float(np.average(abs(features).sum(axis=1), weights=n))
            for features, n in zip(side, counts, strict=True)
        ]
        return side, [max(one, 1.0) for one in reach]


class Turns:
    """Blocks that are solved for in turn, each given all others; see `entity`.

    `centre` : what the own blocks of rows and columns are penalised towards, zero if None. `precision` : of the
    penalty, where that is a learnt prior.
    """

    def __init__(
        self,
        host: Host,
        theta: Array,
        centre: tuple[Array, Array] | None = None,
        precision: tuple[Array, Array] | None = None,
    ) -> None:
        objective, self.owners = host.objective, host._orders.by_owner
        layout, penalty, dyads = objective.layout, objective.penalty, self.owners.dyads
        side = _side_at(dyads.side, theta.dtype)
        self.run, self.specs, self.dyads = host.threads.map, host._specs(theta.dtype), dyads
        self.side = side
        self.own, self.blocks = layout.blocks(theta), layout.effective(theta, side)
        self.first = layout.first_scores(theta, side)
        self.shift = [mine - theirs for mine, theirs in zip(self.blocks, self.own, strict=True)]
        free = np.ones(layout.size, np.bool_) if objective.free is None else objective.free
        row, col = (0.0, 0.0) if centre is None else centre
        centres = self.shift[0] + row, self.shift[1] + col, penalty.shared_centre
        strengths = [np.diag(one) for one in (penalty.row_strength, penalty.col_strength, penalty.shared_strength)]
        scales = [penalty.row_scale, penalty.col_scale, penalty.shared_scale]
        if precision is not None:
            strengths[:2] = (np.ascontiguousarray(one, np.float64) for one in precision)
            scales[:2] = (np.ones(len(scale)) for scale in scales[:2])
        active = (block[0] for block in layout.blocks(free))
        self.priors = [Prior(*prior) for prior in zip(strengths, scales, centres, active, strict=True)]

    def grouped(self, which: int) -> Grouped:
        """The dyads of each entity of a kind."""
        if which == NODE:
            return self.owners.by_node
        return {ROW: self.owners.by_row, COL: self.owners.by_col}.get(which) or self.owners.by_relation

    def tasks(self, which: int) -> list[tuple[int, int]]:
        """Ranges of entities of a kind, that together are all of them."""
        if which in (ROW, COL):
            return owner_tasks(self.grouped(which).start, ENTITY_CHUNK)
        n = len(self.blocks[PLACE[which]])
        return [(0, n)] if which == NODE else [(t, t + 1) for t in range(n)]

    def problems(self, which: int) -> Subproblems:
        """The subproblems of all entities of a kind."""
        prior = self.priors[PLACE[which]]
        return Subproblems(self.specs, which, self.blocks, self.dyads, self.first, self.grouped(which), prior)

    def solve(self, which: int, tasks: list[tuple[int, int]], n_steps: int, codes: Array | None = None) -> float:
        """Solve for the entities of `tasks`; returns by how much the blocks of `codes` moved, if these are given."""
        before = None if codes is None else self.blocks[PLACE[which]][codes]
        # Nodes that share a dyad are not independent.
        run = in_order if which == NODE else self.run
        solve_entities(self.problems(which), tasks, n_steps, run)
        return 0.0 if before is None else float(np.abs(self.blocks[PLACE[which]][codes] - before).max(initial=0))

    def land(self) -> None:
        """Bring theta up to date; blocks without features are views of it already."""
        for own, block, shift in zip(self.own, self.blocks, self.shift, strict=True):
            own[:] = block - shift


def in_order(function: Callable[[Any], Any], tasks: Iterable[Any]) -> None:
    """Run tasks that depend on each other."""
    for task in tasks:
        function(task)


class _SideSteps:
    """What an SGD epoch does about side-information: the effective blocks it moves, and the steps of the side weights.

    After some dyads of every cell of a round the side weights make an AdaGrad step with the gradients those dyads
    pulled, and the effective blocks follow. A step moves all features at once, so its rate is divided by the typical
    sum of a line's features (`reach`), which makes it a step of that rate in the scores.
    """

    def __init__(self, objective: Objective, state: Array, side: Side, reach: Sequence[float]) -> None:
        layout = objective.layout
        self.layout, self.state, self.side, self.reach = layout, state, side, reach
        self.l2 = np.float32(objective.penalty.side_strength)
        self.own, self.blocks = layout.blocks(state[0]), layout.effective(state[0], side)
        self.first = layout.first_scores(state[0], side)
        self.kept = None if self.first is None else np.zeros_like(self.first)
        self.row_shift = None if side.row is None else self.blocks.row - self.own.row
        self.col_shift = None if side.col is None else self.blocks.col - self.own.col
        pulled_row, pulled_col = (
            None if shift is None else np.zeros_like(shift) for shift in (self.row_shift, self.col_shift)
        )
        if layout.structure.one_set:
            self.col_shift, pulled_col = self.row_shift, pulled_row
        self.pulled = Blocks(pulled_row, pulled_col, self.blocks.shared)

    @property
    def arguments(self) -> tuple[Array | None, ...]:
        """The last arguments of `sgd_pass`."""
        return self.first, self.kept, self.row_shift, self.col_shift, self.pulled.row, self.pulled.col

    def step(self, rate: Any, share: float) -> None:
        """Move the side weights, by a share of an epoch, and the effective blocks with them."""
        layout, side = self.layout, self.side
        gradient = np.zeros_like(self.state[0])
        layout.pull_side(self.pulled, self.kept, side, gradient)
        moved, slopes, squares = (layout.side_weights(vector) for vector in (self.state[0], gradient, self.state[1]))
        for x, g, x2, reach in zip(moved, slopes, squares, self.reach, strict=True):
            if len(x):
                step_pass(x, g, x2, rate / np.float32(reach), np.float32(share), np.full(x.shape[1], self.l2))
        shifts = (self.row_shift, None if layout.structure.one_set else self.col_shift)
        for features, weights, columns, shift, block in zip(
            side[:2], moved, layout.side_columns, shifts, self.blocks, strict=False
        ):
            if features is not None:
                now = features @ weights
                block[:, columns] += now - shift[:, columns]
                shift[:, columns] = now
        for array in (self.pulled.row, self.pulled.col, self.kept):
            if array is not None:
                array[:] = 0
        if self.first is not None:
            self.first[:] = layout.first_scores(self.state[0], side)

    def land(self) -> None:
        """Bring the own blocks up to date with the effective ones."""
        if self.row_shift is not None:
            self.own.row[:] = self.blocks.row - self.row_shift
        if self.col_shift is not None and not self.layout.structure.one_set:
            self.own.col[:] = self.blocks.col - self.col_shift


def _scratch(structure: Any, like: Array) -> tuple[Array, Array]:
    """Scratch vectors for scores and score gradients."""
    return np.empty(structure.n_labels, like.dtype), np.empty(structure.n_labels, like.dtype)


def _weight(dyads: Dyads, dtype: Any) -> Array | None:
    return None if dyads.weight is None else dyads.weight.astype(dtype, copy=False)


def _side_at(side: Side, dtype: Any) -> Side:
    return Side(*(None if features is None else features.astype(dtype, copy=False) for features in side))


def _at_precision(spec: Any, dtype: Any) -> Any:
    """The same spec with its arrays in another precision, contiguous: other layouts would compile again."""
    arrays = {name: value for name, value in spec._asdict().items() if isinstance(value, np.ndarray)}
    return spec._replace(**{name: np.ascontiguousarray(value, dtype) for name, value in arrays.items()})
