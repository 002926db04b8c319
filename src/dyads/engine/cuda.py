"""The CUDA engine: sums over dyads on a GPU, by the kernels of `device`. Results are those of the CPU in distribution.

Dyads stay on the device, sorted by row and by column. Blocks travel there for each pass and back; they are small
beside the dyads. What is not a pure function of a shard runs on the CPU: the updates of nodes of one id set, which
depend on each other, and sums with features of dyads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads
from dyads.engine.api import OwnPrior, Query
from dyads.engine.bundles import ABSENT, Data, Owned, Specs
from dyads.engine.entity import PART, Steps, System, descend, draw_block, draw_shared, solve_shared
from dyads.engine.host import CPU, Bound, Host, Threads
from dyads.engine.lanes import SERIAL
from dyads.engine.orders import in_order
from dyads.engine.sums import Groups, Part, Prior
from dyads.engine.updates import HostUpdates
from dyads.errors import InputError
from dyads.model.objective import BlockPrior, Objective
from dyads.model.parameters import Blocks, Role
from dyads.model.record import Model
from dyads.model.streams import Key
from dyads.model.structure import Structure
from dyads.settings import Setting

Array = np.ndarray[Any, Any]

PIECE = 2048
"""Dyads of a partial sum: enough work for a team of threads, and few enough for the largest entity to be divided."""

MOST_PIECES = 2048
"""Partial sums of a relation, a few for each team that a device runs at a time."""

LARGE = 2**16
"""Dyads of an entity from which its sums are divided among teams, and its search runs on the CPU."""

SINGLE_SMALL_STEP = 1e-6
"""Relative predicted decrease below which a Newton step is the last: smaller ones are lost in single precision."""


SINGLE_LEAST_PIVOT = 1e-5
"""Least relative pivot of a Cholesky factor: along directions without curvature the gradient is not quite zero."""


@dataclass(frozen=True, repr=False)
class CUDA(Setting):
    """The engine on a GPU of NVIDIA.

    It needs numba-cuda: ``pip install 'dyads[cuda12]'`` or ``'dyads[cuda13]'``, by the version of CUDA. A seed gives
    the same bits on the same device in every run. Other devices and the CPU give the same model up to rounding, and
    the same posterior in distribution.
    """

    def bind(self, objective: Objective, dyads: Dyads, counts: Counts | None = None) -> "Device":
        return Device(objective, DeviceBound(objective, dyads, counts, Threads(CPU().n_threads())))

    def scores(self, models: Sequence[Model], codes: Sequence[Codes], features: Any = None) -> Array:
        return CPU().scores(models, codes, features)

    def top(self, models: Sequence[Model], query: Query) -> tuple[Array, Array]:
        return CPU().top(models, query)

    def block_scores(self, structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array) -> Array:
        return CPU().block_scores(structure, blocks, codes, offset)


def kernels() -> Any:
    """Return the module of the kernels; raise a sentence that says what is missing."""
    if not hasattr(np, "row_stack"):
        # numba-cuda looks for it, and NumPy 2.5 has removed it.
        np.row_stack = np.vstack  # noqa: NPY201
    try:
        from numba import cuda

        from dyads.engine import device
    except ImportError as error:
        raise InputError(
            "engine='cuda' needs numba-cuda, which is not installed: run pip install 'dyads[cuda12]' or "
            "'dyads[cuda13]', by the version of CUDA, or use engine='cpu'."
        ) from error
    if not cuda.is_available():
        raise InputError(
            "engine='cuda' found no NVIDIA GPU: expected one with its driver. Use engine='cpu', or start dyads on a "
            "machine with a GPU."
        )
    return device


class Held(NamedTuple):
    """The dyads of a role on the device, grouped by owner.

    Attributes
    ----------
    owned, data : owners and dyads, on the device
    start : (n_owners + 1,) first dyad of each owner, on the host
    """

    owned: Owned
    data: Data
    start: Array


class DeviceBound(Bound):
    """Dyads, their counts and orders, on the host and on the device."""

    def __init__(self, objective: Objective, dyads: Dyads, counts: Counts | None, threads: Threads) -> None:
        super().__init__(objective, dyads, counts, threads, shard=len(dyads) + 1)
        self.kernels = kernels()
        self._held: dict[Role, Held] = {}

    def held(self, role: Role) -> Held:
        """Return the dyads of rows, columns or relations; they are copied to the device when first needed."""
        if role not in self._held:
            (shard,) = self.orders.by_col if role == Role.COL else self.orders.by_row
            grouped = shard.by_relation if role == Role.SHARED else shard
            owned = Owned(int(role), 0, np.asarray(grouped.start, np.int64), grouped.order.astype(np.int32))
            if role == Role.SHARED:
                data = self.held(Role.ROW).data
            else:
                data = self.kernels.to_device(Data.of(shard.dyads, np.float32, None))
            self._held[role] = Held(self.kernels.to_device(owned), data, owned.start)
        return self._held[role]

    def release(self) -> None:
        self._held.clear()


class Device(Host):
    """An objective bound to dyads, on a GPU; see `api.Problem`."""

    _bound: DeviceBound

    def __exit__(self, *_: object) -> None:
        self._bound.release()
        super().__exit__()

    def loss(self, theta: Array, held: Dyads | None = None) -> float:
        if held is not None or self.dyads.side.dyad is not None:
            return super().loss(theta, held)
        return self._sums(Role.ROW, self._effective(theta), self._bound.kernels.VALUE)[0]

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        if self.dyads.side.dyad is not None:
            return super().value_and_gradient(theta)
        layout, level = self.objective.layout, self._bound.kernels.GRADIENT
        gradient = np.zeros_like(theta)
        blocks, out = self._effective(theta), layout.blocks(gradient)
        value = 0.0
        for role, table in zip((Role.ROW, Role.COL, Role.SHARED), out, strict=True):
            loss, sums = self._sums(role, blocks, level)
            # With one id set, the tables of rows and columns are the same.
            table += sums
            value = loss
        layout.pull_side(out, np.empty(0), self.dyads.side.astype(theta.dtype), gradient)
        value += self.objective.add_penalty(theta, gradient)
        if self.objective.free is not None:
            gradient[~self.objective.free] = 0
        return value, gradient

    def blocks_in_turn(self, theta: Array, prior: OwnPrior | None = None) -> HostUpdates:
        if self.dyads.side.dyad is not None:
            return super().blocks_in_turn(theta, prior)
        return DeviceUpdates(self.objective, self._bound, theta, prior)

    def restricted(self, free: Array | None) -> "Device":
        return Device(replace(self.objective, free=free), self._bound)

    def _effective(self, theta: Array) -> Blocks:
        return self.objective.layout.effective(theta, self.dyads.side.astype(theta.dtype))

    def _sums(self, role: Role, blocks: Blocks, level: int) -> tuple[float, Array]:
        """Return the loss and, by level, its gradient by the blocks of a role (n, size)."""
        specs = Specs.of(self.objective.structure, self.objective.loss, np.float32)
        return PieceSums(self._bound, specs, role, blocks).of_all(level)


class PieceSums:
    """Sums over the dyads of the owners of a role, in pieces: for all owners, or "sums at x" of one; see `entity`.

    A team of threads sums a piece. The sums of pieces are added on the host, in order and in double precision.
    """

    team = SERIAL

    def __init__(self, bound: DeviceBound, specs: Specs, role: Role, blocks: Blocks, prior: Any = None) -> None:
        """`prior` : that of the role's blocks; only for "sums at x"."""
        held, self._kernels, self.prior = bound.held(role), bound.kernels, prior
        self.owned = held.owned._replace(start=held.start)
        blocks = self._kernels.to_device(single(blocks))
        self._X, self._shape = blocks[role.place], blocks[role.place].shape
        self._sums = self._kernels.TeamSums(specs, held.owned, blocks, held.data, ABSENT)
        self.groups = Groups.of(specs.structure, role, self._shape[1], blocks.shared.shape[1])

    def of_all(self, level: int) -> tuple[float, Array]:
        """Return the loss of all dyads and, by level, its gradient by each owner's block (n, size)."""
        owner, bounds = pieces_of(self.owned.start)
        whole = self._kernels.TeamPart.cut(*self.groups.parts(self._shape[1]))
        value, out = self._kernels.sum_pieces(self._sums, self._X, owner, bounds, self.groups, whole, level)
        gradient = np.zeros(self._shape)
        if level != self._kernels.VALUE:
            first = np.flatnonzero(np.diff(owner, prepend=-1))
            gradient[owner[first]] = np.add.reduceat(out[:, 0], first, axis=0, dtype=np.float64)
        return float(value.sum()), gradient

    def tasks(self, t: int) -> bool:
        """Whether an owner has dyads."""
        return bool(self.owned.start[t] < self.owned.start[t + 1])

    def work(self, t: int, part: Part) -> Any:
        """Return a part of the block of an owner as teams take it."""
        return self._kernels.TeamPart.cut(part)

    def sums_at(self, e: int, x: Array, part: Part, curved: bool, out: Array, work: Any) -> float:
        _, bounds = pieces_of(self.owned.start[e : e + 2])
        level = self._kernels.CURVATURE if curved else self._kernels.VALUE
        at, first = self._kernels.to_device(single(x[None])), np.zeros(len(bounds), np.int32)
        value, partial = self._kernels.sum_pieces(self._sums, at, first, bounds, self.groups, work, level)
        if curved:
            out[:] = partial.sum(axis=0, dtype=np.float64)
        return float(value.sum())

    def has_self_link(self, e: int) -> bool:
        return False


def single(bundle: Any) -> Any:
    """Return an array, or a bundle of arrays, in single precision; masks stay masks."""
    if isinstance(bundle, np.ndarray):
        return bundle if bundle.dtype == np.bool_ else np.ascontiguousarray(bundle, np.float32)
    return type(bundle)(*map(single, bundle))


def pieces_of(start: Array) -> tuple[Array, Array]:
    """Cut the dyads of owners into pieces; return the owner (n,) of each, and its bounds (n, 2)."""
    count = np.diff(start)
    size = np.maximum(PIECE, count // MOST_PIECES)
    n_pieces = -(-count // size)
    owner = np.repeat(np.arange(len(count)), n_pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    begin = start[owner] + size[owner] * number
    return owner.astype(np.int32), np.stack([begin, np.minimum(begin + size[owner], start[owner + 1])], axis=1)


class DeviceUpdates(HostUpdates):
    """Block updates on a GPU: a team of threads for each row, or each column; see `api.BlockUpdates`."""

    def __init__(self, objective: Objective, bound: DeviceBound, theta: Array, prior: OwnPrior | None) -> None:
        super().__init__(objective, bound.orders, theta, prior, bound.threads.map)
        self._bound, self._kernels = bound, bound.kernels
        self._single = Specs.of(objective.structure, objective.loss, np.float32)

    def solve(self, role: Role, n_steps: int = 1, codes: Codes | None = None) -> float:
        if role == Role.NODE:
            return super().solve(role, n_steps, codes)
        table, steps = self._blocks[role.place], Steps(n_steps, SINGLE_SMALL_STEP, 0.0, SINGLE_LEAST_PIVOT)
        before, sums = table.copy(), self._piece_sums(role, None)
        if role == Role.SHARED:
            solve_shared(sums, table, steps, in_order)
        elif sums.prior.active.any():
            size, (small, large) = table.shape[1], self._entities(role, codes)
            (whole,) = sums.groups.parts(size)
            table[small] = self._kernels.solve(self._team_sums(role, sums.prior), small, sums.groups, whole, steps)
            for e in large:
                descend(sums, e, table[e], steps, whole, System.of(size, size), sums.work(e, whole))
        return float(np.abs(table - before).max(initial=0))

    def draw(self, role: Role, key: Key, prior: BlockPrior | None = None, codes: Codes | None = None) -> Array:
        if role == Role.NODE:
            return super().draw(role, key, prior, codes)
        table, sums = self._blocks[role.place], self._piece_sums(role, prior)
        if role == Role.SHARED:
            return draw_shared(sums, table, key, in_order)
        size, (small, large) = table.shape[1], self._entities(role, codes)
        accepted, parts = np.zeros(len(table)), sums.groups.parts(PART)
        drawn = self._kernels.draw(self._team_sums(role, sums.prior), small, sums.groups, parts, key)
        table[small], accepted[small] = drawn
        for number, part in enumerate(parts):
            for e in large:
                system = System.of(size, len(part.entry))
                accepted[e] += draw_block(sums, e, table[e], key, number, part, system, sums.work(e, part))
        return accepted / max(1, len(parts))

    def _piece_sums(self, role: Role, learnt: BlockPrior | None) -> PieceSums:
        prior = self._prior(role, learnt, slice(None))
        return PieceSums(self._bound, self._single, role, self._blocks, prior)

    def _team_sums(self, role: Role, prior: Prior) -> Any:
        """Return the sums of a role on the device."""
        held, blocks = self._bound.held(role), self._kernels.to_device(single(self._blocks))
        return self._kernels.TeamSums(
            self._single, held.owned, blocks, held.data, self._kernels.to_device(single(prior))
        )

    def _entities(self, role: Role, codes: Codes | None) -> tuple[Array, Array]:
        """Return the entities to update: those for a team each, the largest first; and larger ones."""
        count = np.diff(self._bound.held(role).start)
        entity = np.arange(len(count)) if codes is None else np.unique(codes)
        entity = entity[np.argsort(-count[entity], kind="stable")]
        n_large = int(np.sum(count[entity] > LARGE))
        return entity[n_large:], entity[:n_large]
