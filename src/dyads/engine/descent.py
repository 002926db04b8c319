"""Stochastic gradient descent on the CPU: its state and its epochs.

Rows and columns are divided into a fixed number of groups. The cells (row group, column group) of one round share no
row and no column, so threads may process them in any order.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dyads.data.dyads import Counts, Dyads, Side
from dyads.engine.bundles import ABSENT, Data, Specs, or_absent
from dyads.engine.orders import Orders, Run
from dyads.engine.passes import Decay, DescentWork, LastTile, Pulled, sgd_pass, step_pass
from dyads.model.objective import Objective, Penalty
from dyads.model.parameters import Blocks
from dyads.model.streams import Stream, random_stream

Array = np.ndarray[Any, Any]

SIDE_STEPS = 24
"""Target number of steps of the side weights per epoch; each step costs four products with feature matrices.

With fewer steps the side weights lag behind the blocks: with ``interactions=5``, ten epochs of ML-1M end 0.3% higher
with 22 steps than with 33, and 1.2% higher with 11.
"""

FROZEN_SQUARES = 1e30
"""AdaGrad's sum of squared gradients for fixed parameters, so large that their steps are negligible.

It is finite, also in single precision, because infinity has no reciprocal square root.
"""

ACCUMULATOR_START = 0.1
"""Initial value of AdaGrad's sums of squared gradients, for dyads of weight one.

It bounds the first steps of rarely seen entities; a larger value slows down the start for all.
"""

LARGEST_MEAN = 1e18
"""Largest mean weight that this value is scaled by: its square is a number in single precision."""


class CellData:
    """Constant data of epochs over cells, computed once for bound dyads."""

    def __init__(self, penalty: Penalty, orders: Orders, counts: Counts) -> None:
        self.penalty, self.cells, self.counts = penalty, orders.cells, counts
        self.sizes = np.diff(self.cells.start)
        self.side = self.dyads.side.astype(np.float32)

    @property
    def dyads(self) -> Dyads:
        return self.cells.dyads

    @cached_property
    def typical_weight(self) -> float:
        """The mean weight of a dyad."""
        return self.dyads.total_weight / len(self.dyads)

    @cached_property
    def decay(self) -> Decay:
        """The penalty, divided among the dyads of each owner."""
        return decay(self.penalty, self.counts)

    @cached_property
    def feature_norms(self) -> list[float]:
        """The mean L1 norm of the features of a dyad's row, of its column and of the dyad itself; at least one."""
        counts = (self.dyads.row_counts, self.dyads.col_counts, np.ones(len(self.dyads)))
        return [
            1.0
            if features is None
            else max(1.0, float(np.average(abs(features) @ np.ones(features.shape[1]), weights=n)))
            for features, n in zip(self.side, counts, strict=True)
        ]


def decay(penalty: Penalty, counts: Counts) -> Decay:
    """Divide the penalty among the dyads of each owner."""
    # An entity without dyads (all are held out) is never visited: its share of the penalty is zero.
    owned = (np.where(n > 0, n, np.inf) for n in counts)
    scales = (penalty.row_scale, penalty.col_scale, penalty.shared_scale)
    shares = (scale / n for scale, n in zip(scales, owned, strict=True))
    strengths = (penalty.row_strength, penalty.col_strength, penalty.shared_strength)
    return Decay(*(np.ascontiguousarray(x, np.float32) for x in (*shares, *strengths, penalty.shared_centre)))


def first_state(objective: Objective, counts: Counts, theta: Array, typical: float, visited: bool) -> Array:
    """Return the state (2, size) of SGD at its start, in single precision; see `HostDescent`.

    `typical` : mean weight of a dyad. `visited` : whether the sums of squares are those after a visit of all dyads.
    """
    layout, state = objective.layout, np.empty((2, len(theta)), np.float32)
    state[0], state[1] = theta, ACCUMULATOR_START * min(typical, LARGEST_MEAN) ** 2
    if objective.free is not None:
        state[1, ~objective.free] = FROZEN_SQUARES
    if visited:
        row, col, shared = layout.blocks(state[1])
        row *= 1 + counts.row[:, None] / typical
        if not layout.structure.one_set:
            col *= 1 + counts.col[:, None] / typical
        shared *= 1 + counts.relation[:, None] / typical
        state[1, layout.own_size :] *= 1 + counts.relation.sum() / typical
    return state


class HostDescent:
    """The state of SGD, (2, size) in single precision: the parameters and AdaGrad's sums of squared gradients.

    See `api.Descent`.
    """

    def __init__(self, objective: Objective, data: CellData, theta: Array, visited: bool, run: Run) -> None:
        self._objective, self._data, self._run = objective, data, run
        self._state = first_state(objective, data.counts, theta, data.typical_weight, visited)

    def theta(self) -> Array:
        theta: Array = self._state[0]
        return theta

    def is_finite(self) -> bool:
        return bool(np.isfinite(self._state[0]).all())

    def snapshot(self) -> Array:
        return self._state.copy()

    def arrays(self) -> Array:
        return self._state.copy()

    def restore(self, snapshot: Array) -> None:
        self._state = snapshot.copy()

    def epoch(self, rate: float, seed: int, number: int) -> float:
        """Visit all cells, round by round; see `api.Descent.epoch`."""
        objective, state, cells, sizes = self._objective, self._state, self._data.cells, self._data.sizes
        layout, dyads, dtype = objective.layout, cells.dyads, state.dtype
        frozen = None if objective.free is None else state[0, ~objective.free]
        side = _SideSteps(objective, state, self._data.side, self._data.feature_norms)
        specs = Specs.of(objective.structure, objective.loss, dtype)
        data, pulled, decay = Data.of(dyads, dtype, side.offset), side.pulled, self._data.decay
        blocks, squares, step_size = side.blocks, layout.blocks(state[1]), dtype.type(rate)
        with_side, batch = any(layout.n_features), dyads.total_weight / self._data.counts.relation.sum()
        last_tile = LastTile.of(dyads, objective.structure.one_set)
        n_parts = max(1, round(SIDE_STEPS / cells.n_groups)) if with_side else 1

        def visit(task: tuple[int, int]) -> tuple[float, Array, Array]:
            """Visit a part of a cell, with its own copy of the shared blocks."""
            cell, part = task
            first, last = cells.start[cell], cells.start[cell + 1]
            order = first + random_stream(seed, Stream.VISITS, number, cell).permutation(last - first)[part::n_parts]
            own = blocks._replace(shared=blocks.shared.copy())
            own_squares = squares._replace(shared=squares.shared.copy())
            scratch = DescentWork.of(own, dyads.n_labels)
            value = sgd_pass(specs, own, own_squares, data, order, decay, step_size, pulled, last_tile, scratch)
            return value, own.shared, own_squares.shared

        value = 0.0
        for shift in random_stream(seed, Stream.ROUNDS, number).permutation(cells.n_groups):
            round_ = [cell for cell in cells.round(int(shift)) if sizes[cell]]
            for part in range(n_parts if round_ else 0):
                values, h, h2 = zip(*self._run(visit, [(cell, part) for cell in round_]), strict=True)
                value += sum(values)
                # Each cell moved its own copy of the shared blocks. Take the mean: the sum of their moves overshoots.
                blocks.shared[:] = np.average(h, axis=0, weights=sizes[round_])
                squares.shared[:] = np.average(h2, axis=0, weights=sizes[round_])
                if with_side:
                    side.step(step_size, batch * sizes[round_].sum() / n_parts / len(dyads))
        side.write_back()
        if objective.free is not None:
            state[0, ~objective.free] = frozen
        return value + objective.add_penalty(state[0], np.zeros_like(state[0]))


class _SideSteps:
    """Side-information in an SGD epoch: the effective blocks and the steps of the side weights.

    After a part of each cell of a round, the side weights take an AdaGrad step with the gradients of the dyads visited,
    and the effective blocks follow. A step moves the weights of all features at once. Its rate is therefore divided by
    the mean L1 norm of the features (`norms`), so that the scores move at the given rate.
    """

    def __init__(self, objective: Objective, state: Array, side: Side, norms: Sequence[float]) -> None:
        layout = objective.layout
        self.layout, self.state, self.side, self.norms = layout, state, side, norms
        self.l2 = np.float32(objective.penalty.side_strength)
        self.own, self.blocks = layout.blocks(state[0]), layout.effective(state[0], side)
        self.offset = layout.first_scores(state[0], side)
        self.kept: Any = None if self.offset is None else np.zeros_like(self.offset)
        self.row_shift: Any = None if side.row is None else self.blocks.row - self.own.row
        self.col_shift: Any = None if side.col is None else self.blocks.col - self.own.col
        row: Any = None if self.row_shift is None else np.zeros_like(self.row_shift)
        col: Any = None if self.col_shift is None else np.zeros_like(self.col_shift)
        if layout.structure.one_set:
            self.col_shift, col = self.row_shift, row
        self.row, self.col = row, col

    @property
    def pulled(self) -> Pulled:
        return Pulled(*map(or_absent, (self.row_shift, self.col_shift, self.row, self.col, self.kept)))

    def step(self, rate: Any, share: float) -> None:
        """Take an AdaGrad step of the side weights, with a share of their penalty, and update the effective blocks."""
        layout, side = self.layout, self.side
        gradient = np.zeros_like(self.state[0])
        layout.pull_side(Blocks(self.row, self.col, self.blocks.shared), self.kept, side, gradient)
        moved, slopes, squares = (layout.side_weights(vector) for vector in (self.state[0], gradient, self.state[1]))
        for x, g, x2, norm in zip(moved, slopes, squares, self.norms, strict=True):
            if len(x):
                l2 = np.full(x.shape[1], self.l2)
                step_pass(x, ABSENT, g, x2, rate / np.float32(norm), np.float32(share), l2)
        shifts = (self.row_shift, None if layout.structure.one_set else self.col_shift)
        for features, weights, columns, shift, block in zip(
            side[:2], moved, layout.side_columns, shifts, self.blocks, strict=False
        ):
            if features is not None:
                new_shift = features @ weights
                block[:, columns] += new_shift - shift[:, columns]
                shift[:, columns] = new_shift
        for array in (self.row, self.col, self.kept):
            if array is not None:
                array[:] = 0
        if self.offset is not None:
            self.offset[:] = layout.first_scores(self.state[0], side)

    def write_back(self) -> None:
        """Write the own blocks: the effective blocks minus the shifts due to features."""
        if self.row_shift is not None:
            self.own.row[:] = self.blocks.row - self.row_shift
        if self.col_shift is not None and not self.layout.structure.one_set:
            self.own.col[:] = self.blocks.col - self.col_shift
