"""Block updates on the CPU: each block is optimised, or drawn, given all others; see `entity`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Side
from dyads.engine.api import OwnPrior
from dyads.engine.bundles import Data, Owned, Specs
from dyads.engine.entity import (
    LEAST_PIVOT,
    SMALL_STEP,
    Steps,
    draw_shard,
    draw_shared,
    noise_pass,
    solve_shard,
    solve_shared,
)
from dyads.engine.orders import Bounds, Orders, Run, Shard, in_order
from dyads.engine.sums import EntitySums, Prior, SharedSums
from dyads.model.objective import BlockPrior, Moments, Objective, draw_side_weights
from dyads.model.parameters import Role, shifted
from dyads.model.streams import Key

Array = np.ndarray[Any, Any]


class HostUpdates:
    """Block updates of the parameters of an objective; see `api.BlockUpdates`."""

    precision: Any = np.float64
    """The precision of blocks."""

    def __init__(self, objective: Objective, orders: Orders, theta: Array, prior: OwnPrior | None, run: Run) -> None:
        layout = objective.layout
        self._layout, self._orders, self._run = layout, orders, run
        self._specs = Specs.of(objective.structure, objective.loss, np.float64)
        self._theta = theta.astype(self.precision)
        self._side = orders.dyads.side.astype(self.precision)
        self._own = layout.blocks(self._theta)
        self._blocks = layout.effective(self._theta, self._side)
        self._shift = [block - own for block, own in zip(self._blocks, self._own, strict=True)]
        self._priors = _priors(objective, prior)
        self._offsets: dict[Role, list[Array | None]] = {}

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role.NODE, Role.SHARED) if self._layout.structure.one_set else (Role.ROW, Role.COL, Role.SHARED)

    def theta(self) -> Array:
        for own, block, shift in zip(self._own, self._blocks, self._shift, strict=True):
            own[:] = block - shift
        return self._theta

    def labelled(self, role: Role) -> Array:
        return self._orders.labelled(role)

    def moments(self, role: Role) -> Moments:
        own, labelled = self._blocks[role.place], self.labelled(role)
        if role != Role.SHARED and self._side[role.place] is not None:
            own = own - self._shift[role.place]
        return Moments.of(own if labelled.all() else own[labelled])

    def solve(self, role: Role, n_steps: int = 1, codes: Codes | None = None) -> float:
        table, steps = self._blocks[role.place], Steps(n_steps, SMALL_STEP, 0.0, LEAST_PIVOT)
        if role == Role.SHARED:
            before = table.copy()
            shared, run = self._shared_sums(None)
            solve_shared(shared, table, steps, run)
            return float(np.abs(table - before).max(initial=0))
        moved = 0.0
        for shard, sums, tasks in self._shards(role, None, codes):
            before = table[shard.owners].copy()
            table[shard.owners] = solve_shard(sums, table[shard.owners], tasks, steps, self._order(role))
            moved = max(moved, float(np.abs(table[shard.owners] - before).max(initial=0)))
        return moved

    def draw(self, role: Role, key: Key, prior: BlockPrior | None = None, codes: Codes | None = None) -> Array:
        table = self._blocks[role.place]
        if role == Role.SHARED:
            shared, run = self._shared_sums(prior)
            return draw_shared(shared, table, key, run)
        accepted = np.zeros(len(table))
        for shard, sums, tasks in self._shards(role, prior, codes):
            drawn = draw_shard(sums, table[shard.owners], tasks, key, self._order(role))
            table[shard.owners], accepted[shard.owners] = drawn
        return accepted

    def draw_unlabelled(self, role: Role, key: Key, prior: BlockPrior) -> None:
        unlabelled = np.flatnonzero(~self.labelled(role))
        if len(unlabelled):
            noise = np.empty((len(unlabelled), len(prior.mean)))
            noise_pass(key, unlabelled, noise)
            deviation = np.linalg.solve(np.linalg.cholesky(prior.precision).T, noise.T).T
            self._blocks[role.place][unlabelled] = self._shift[role.place][unlabelled] + prior.mean + deviation

    def draw_side_weights(self, role: Role, prior: BlockPrior, precision: float, rng: np.random.Generator) -> None:
        i, labelled = role.place, self.labelled(role)
        columns, weights = self._layout.side_columns[i], self._layout.side_weights(self._theta)[i]
        features = self._side[i]
        solve = features.solve_normal
        weights[:] = draw_side_weights(features, labelled, self._blocks[i], prior, columns, precision, rng, solve)
        self._shift[i] = shifted(np.zeros_like(self._shift[i]), features @ weights, columns)
        if role == Role.NODE:
            self._shift[1] = self._shift[0]

    def draw_feature_weights(self, precision: float, key: Key) -> None:
        """Draw the *changes* of the weights, feature by feature; see `Role.FEATURE`.

        A change x has the prior mean -weights, so that weights + x has mean zero.
        """
        weights, dyads = self._layout.side_weights(self._theta)[2], self._orders.in_row_order
        by_feature = dyads.side.dyad.astype(np.float64).tocsc()
        n, width = weights.shape
        start, order = by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int64)
        owned = Owned(int(Role.FEATURE), 0, start, order, by_feature.data)
        prior = Prior(precision * np.eye(width), np.ones(n), -weights, np.ones(width, np.bool_))
        data = Data.of(dyads, np.float64, self._layout.first_scores(self._theta, Side(dyad=dyads.side.dyad)))
        sums = EntitySums(self._specs, owned, self._blocks, data, prior)
        moves, _ = draw_shard(sums, np.zeros_like(weights), [(0, n)], key, in_order)
        weights += moves
        self._offsets.clear()

    def _prior(self, role: Role, learnt: BlockPrior | None, owners: slice) -> Prior:
        """Return the prior of some effective blocks of a role: that of own blocks, shifted by their features."""
        shift = self._shift[role.place][owners]
        if learnt is None:
            prior = self._priors[role.place].of(owners)
            return prior._replace(centre=prior.centre + shift)
        centre = np.ascontiguousarray(learnt.mean.astype(shift.dtype) + shift)
        return Prior(learnt.precision, np.ones(len(shift)), centre, np.ones(shift.shape[1], np.bool_))

    def _order(self, role: Role) -> Run:
        """Return how the tasks of a role run: nodes in order, others in parallel."""
        return in_order if role == Role.NODE else self._run

    def _shards(
        self, role: Role, prior: BlockPrior | None, codes: Codes | None
    ) -> Iterator[tuple[Shard, EntitySums, list[Bounds]]]:
        """Yield each shard of a role that has entities to update, with its sums and its tasks."""
        for shard, data in zip(self._orders.of(role), self._data(role), strict=True):
            tasks = shard.entity_tasks if codes is None else shard.tasks_of(codes)
            if tasks:
                own = self._prior(role, prior, shard.owners)
                yield shard, EntitySums(self._specs, shard.owned, self._blocks, data, own), tasks

    def _shared_sums(self, learnt: BlockPrior | None) -> tuple[SharedSums, Run]:
        """Return the sums of shared blocks, and how relations run.

        Several relations run in parallel, each with its tasks in order; a single relation has its tasks in parallel.
        """
        within, across = (self._run, in_order) if self._layout.n_relations == 1 else (in_order, self._run)
        prior, sums = self._prior(Role.SHARED, learnt, slice(None)), []
        for shard, data in zip(self._orders.by_row, self._data(Role.ROW), strict=True):
            owned = Owned(int(Role.SHARED), 0, shard.by_relation.start, shard.by_relation.order)
            sums.append(EntitySums(self._specs, owned, self._blocks, data, prior))
        return SharedSums(sums, prior, within), across

    def _data(self, role: Role) -> list[Data]:
        """Return the dyads of each shard of a role; score offsets are cached, as they do not depend on blocks."""
        shards = self._orders.of(role)
        if role not in self._offsets:
            self._offsets[role] = [
                self._layout.first_scores(self._theta, Side(dyad=shard.dyads.side.dyad)) for shard in shards
            ]
        return [
            Data.of(shard.dyads, np.float64, offset) for shard, offset in zip(shards, self._offsets[role], strict=True)
        ]


def _priors(objective: Objective, own: OwnPrior | None) -> list[Prior]:
    """Return the priors of own blocks of rows and of columns, and of shared blocks: the penalty, or `own` if given."""
    layout, penalty = objective.layout, objective.penalty
    free = np.ones(layout.size, np.bool_) if objective.free is None else objective.free
    active = [block[0] for block in layout.blocks(free)]
    strengths = [np.diag(x) for x in (penalty.row_strength, penalty.col_strength, penalty.shared_strength)]
    scales = [penalty.row_scale, penalty.col_scale, penalty.shared_scale]
    row, col, _ = layout.sizes
    centres = [np.zeros(row), np.zeros(col)] if own is None else [np.asarray(x, np.float64) for x in own.centre]
    if own is not None and own.precision is not None:
        strengths[:2] = (np.ascontiguousarray(precision, np.float64) for precision in own.precision)
        scales[:2] = (np.ones(len(scale)) for scale in scales[:2])
    tables = [np.broadcast_to(x, (len(scale), len(x))) for x, scale in zip(centres, scales, strict=False)]
    tables.append(np.asarray(penalty.shared_centre, np.float64))
    return [Prior(*prior) for prior in zip(strengths, scales, tables, active, strict=True)]
