"""The CUDA engine: sums over dyads on a GPU, by the kernels of `device`.

Dyads stay on the device, sorted by row and by column, or in the cells of SGD. Blocks travel there for each pass and
back, but for SGD; they are small beside the dyads. Nodes of one id set depend on each other if they share a dyad: they
are updated in turns of nodes that share none. On the CPU run: sums with features of dyads, updates of nodes if some are
paired with themselves or most with each other, SGD with features, what draws of side weights take beside their sparse
products and conjugate gradients, predictions for new entities, and all that has few dyads, as fold-in has.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads
from dyads.engine.api import Descent, OwnPrior, Query
from dyads.engine.bundles import ABSENT, Data, Owned, Specs
from dyads.engine.entity import PART, Steps, System, descend, draw_block, draw_shared, solve_shared
from dyads.engine.host import CPU, Bound, Host, Threads
from dyads.engine.lanes import SERIAL
from dyads.engine.orders import Bounds, even_tasks, in_order, independent
from dyads.engine.sums import Groups, Part, Prior
from dyads.engine.updates import HostUpdates
from dyads.errors import EngineWarning, InputError, caller_level
from dyads.model.objective import BlockPrior, Moments, Objective
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

LARGE, LARGE_SHARE = 2**14, 2**-8
"""Dyads of a row or column, and share of all, above which teams divide its sums and its search runs on the CPU.

A team then ends before the others have done the rest; fewer entities on the CPU take less time there.
"""

TEAM_COST, TURN_COST = 16, 64
"""What a dyad of a node costs a team, in dyads of the CPU; and what a turn costs besides, in dyads of a team.

About, on an H200. A turn takes as long as its largest node, so a network whose nodes are all paired is the CPU's.
"""

DYAD_BYTES, CELL_DYAD_BYTES, PARAMETER_BYTES = 60, 24, 16
"""Memory of the device for a dyad, by row and by column or in cells of SGD, and for a parameter: about, rather more."""

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

    def check(self, objective: Objective, dyads: Dyads, descends: bool = False) -> None:
        kernels()
        each = CELL_DYAD_BYTES if descends else DYAD_BYTES
        needed, free = each * len(dyads) + PARAMETER_BYTES * objective.layout.size, free_memory()
        if needed > free:
            raise InputError(
                f"engine='cuda' keeps all pairs on the GPU, where {len(dyads):,} of them and the parameters take about "
                f"{needed / 1e9:.1f} GB: expected at most the {free / 1e9:.1f} GB that are free. Use engine='cpu'."
            )
        n_features = objective.layout.n_features
        left = []
        if n_features[2]:
            left.append("everything but predictions, since there are features of pairs")
        else:
            if any(n_features) and descends:
                left.append("SGD with features")
        if left:
            say_left("; ".join(left))

    def for_memory(self) -> CPU:
        return CPU()

    def scores(self, models: Sequence[Model], codes: Sequence[Codes], features: Any = None) -> Array:
        """Return scores, in single precision; those of new entities, and without a GPU all, are the CPU's."""
        codes = [np.asarray(column) for column in codes]
        new_row, new_col = models[0].new
        new = new_row[codes[0]] | new_col[codes[1]] | (codes[0] < 0) | (codes[1] < 0)
        if new.all() or not is_available():
            return CPU().scores(models, codes, features)
        kernels()
        from dyads.engine import device_scores

        if not new.any():
            return device_scores.scores(models, codes, features)
        out = np.empty((len(new), models[0].structure.n_labels))
        for which, scores in ((new, CPU().scores), (~new, device_scores.scores)):
            some = None if features is None else features[which]
            out[which] = scores(models, [column[which] for column in codes], some)
        return out

    def top(self, models: Sequence[Model], query: Query) -> tuple[Array, Array]:
        """Find the best columns; those of new entities, with offsets, and without a GPU all, are the CPU's."""
        new_row, new_col = models[0].new[::-1] if query.turned else models[0].new
        rows, cols = query.rows, query.cols
        new = (new_row[rows] | (rows < 0)).any() or new_col[cols].any()
        if new or query.relation < 0 or query.offset is not None or not (len(rows) and len(cols) and is_available()):
            return CPU().top(models, query)
        kernels()
        from dyads.engine import device_scores

        return device_scores.top(models, query)

    def block_scores(self, structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array) -> Array:
        return CPU().block_scores(structure, blocks, codes, offset)


def say_left(what: str) -> None:
    """Warn of what runs on the CPU."""
    warnings.warn(
        f"engine='cuda' leaves to the CPU, where it takes as long as with engine='cpu': {what}.",
        EngineWarning,
        stacklevel=caller_level(),
    )


def is_available() -> bool:
    """Whether there are a GPU and numba-cuda."""
    if find_spec("numba_cuda") is None:
        return False
    if not hasattr(np, "row_stack"):
        # numba-cuda looks for it, and NumPy 2.5 has removed it.
        np.row_stack = np.vstack  # noqa: NPY201
    from numba import cuda

    return bool(cuda.is_available())


def free_memory() -> float:
    """Return the bytes of the device's memory that are free; the simulator has no end of them."""
    from numba import cuda

    return float(cuda.current_context().get_memory_info().free)


def kernels() -> Any:
    """Return the module of the kernels; raise a sentence that says what is missing."""
    if is_available():
        from dyads.engine import device

        return device
    raise InputError(
        "engine='cuda' needs an NVIDIA GPU with its driver, and numba-cuda: run pip install 'dyads[cuda12]' or "
        "'dyads[cuda13]', by the version of CUDA. Without a GPU, use engine='cpu'."
    )


class Planned(NamedTuple):
    """A part of the blocks of a role, as teams take it; `groups` and `team_part` on the device.

    `n_weighted` : columns of label weights, one if no group needs them. `pairs` : see `device.pairs_of`; None where no
    curvature is computed.
    """

    part: Part
    block_size: int
    groups: Groups
    n_weighted: int
    pairs: Array | None
    team_part: Any

    @classmethod
    def of(cls, part: Part, block_size: int, groups: Groups, pairs: Array | None) -> "Planned":
        """Return the plan of a part before it is cut, on the host."""
        return cls(part, block_size, groups, len(groups.own) if (groups.own < 0).any() else 1, pairs, None)


class Joins(NamedTuple):
    """How the sums of pieces are added up by owner. Each owner has a piece, and most have no other.

    Attributes
    ----------
    first : (n_owners,) the first piece of each
    others : the other pieces
    start, owner : the first among `others` of each of their owners, and these owners
    """

    first: Array
    others: Array
    start: Array
    owner: Array

    @classmethod
    def of(cls, owner: Array) -> "Joins":
        """`owner` : (n_pieces,) owner of each piece, in ascending order."""
        is_first = np.diff(owner, prepend=-1) > 0
        others = np.flatnonzero(~is_first)
        start = np.flatnonzero(np.diff(owner[others], prepend=-1))
        return cls(np.flatnonzero(is_first), others, start, owner[others[start]])

    def add(self, pieces: Array, out: Array) -> None:
        """ADD the sums of pieces (n_pieces, size), in order and in double precision, to those of owners (n, size)."""
        out += pieces[self.first]
        if len(self.others):
            out[self.owner] += np.add.reduceat(pieces[self.others], self.start, axis=0, dtype=np.float64)


class Held(NamedTuple):
    """The dyads of a role on the device, grouped by owner, and how its sums are divided.

    Attributes
    ----------
    owned, data : owners and dyads, on the device
    start : (n_owners + 1,) first dyad of each owner
    large : owners with many dyads
    turns : the other owners on the device, in turns; the owners of a turn are updated at the same time, and come by
        descending number of dyads
    turns_on_host : the same on the host
    pieces : owner and bounds of each piece, on the device
    joins : how their sums are added up
    groups : groups of a block
    """

    owned: Owned
    data: Data
    start: Array
    large: Array
    turns: tuple[Any, ...]
    turns_on_host: tuple[Array, ...]
    pieces: tuple[Any, Any]
    joins: Joins
    groups: Groups


class DeviceBound(Bound):
    """Dyads, their counts and orders, on the host and on the device."""

    def __init__(self, objective: Objective, dyads: Dyads, counts: Counts | None, threads: Threads) -> None:
        self.kernels = kernels()
        from dyads.engine.device_sparse import DeviceMatrix

        super().__init__(objective, dyads, counts, threads, len(dyads) + 1, DeviceMatrix)
        # Not of the module: fits on several threads must not write to each other's arrays. `of` : what uses the array.
        self.buffer = lru_cache(maxsize=16)(lambda shape, dtype, of=None: self.kernels.new_array(shape, dtype))
        # By role and room: one objective and its dyads have arguments of one type.
        self.kernels_of_sums: dict[Role, dict[Any, Any]] = defaultdict(dict)
        self.specs = Specs.of(objective.structure, objective.loss, np.float32)
        self._sizes, self._one_set = objective.layout.sizes, objective.structure.one_set
        self._held: dict[Role, Held] = {}
        self._planned: dict[tuple[Role, int, bool], list[Planned]] = {}
        self._dealt: Any = None

    def held(self, role: Role) -> Held:
        """Return the dyads of rows, columns, nodes or relations; they are copied to the device when first needed."""
        if role not in self._held:
            (shard,) = self.orders.by_row if role == Role.SHARED else self.orders.of(role)
            grouped = shard.by_relation if role == Role.SHARED else shard
            kind = np.int32 if len(self.dyads) <= np.iinfo(np.int32).max else np.int64
            owned = Owned(int(role), 0, np.asarray(grouped.start, np.int64), grouped.order.astype(kind))
            if role in (Role.SHARED, Role.NODE):
                data = self.held(Role.ROW).data
            else:
                data = self.kernels.to_device(Data.of(shard.dyads, np.float32, None))
            count, (owner, bounds) = np.diff(owned.start), pieces_of(owned.start)
            largest_first = np.argsort(-count, kind="stable").astype(np.int32)
            if role == Role.NODE:
                n_large, turns = 0, self._turns
            else:
                n_large = int(np.sum(count > max(LARGE, LARGE_SHARE * owned.start[-1])))
                turns = [largest_first[n_large:]]
            self._held[role] = Held(
                owned=self.kernels.to_device(owned),
                data=data,
                start=owned.start,
                large=largest_first[:n_large],
                turns=self.kernels.to_device(tuple(turns)),
                turns_on_host=tuple(turns),
                pieces=self.kernels.to_device((owner, bounds)),
                joins=Joins.of(owner),
                groups=Groups.of(self.specs.structure, role, self._sizes[role.place], self._sizes[2]),
            )
        return self._held[role]

    def planned(self, role: Role, most: int, curved: bool = True) -> list[Planned]:
        """Return the parts, of at most `most` entries, of the blocks of a role; `curved` : for curvatures, too."""
        if (role, most, curved) not in self._planned:
            kernels, groups, size = self.kernels, self.held(role).groups, self._sizes[role.place]
            on_device, parts = kernels.to_device(groups), []
            for part in groups.parts(most):
                planned = Planned.of(part, size, groups, kernels.pairs_of(part) if curved else None)
                # Before parts are cut, which takes long for those that do not fit.
                kernels.Room.of(self.specs, planned, curved and role != Role.SHARED)
                cut = kernels.TeamPart.cut(part, planned.pairs)
                parts.append(planned._replace(groups=on_device, team_part=kernels.to_device(cut)))
            self._planned[role, most, curved] = parts
        return self._planned[role, most, curved]

    @cached_property
    def _turns(self) -> list[Array]:
        """The nodes of one id set in turns; see `independent`."""
        (nodes,) = self.orders.by_node
        return [turn.astype(np.int32) for turn in independent(nodes)]

    @cached_property
    def takes_turns(self) -> bool:
        """Whether the nodes of one id set are updated on the device; if not, a warning says why."""
        what = "Newton steps and posterior draws, since"
        if (self.dyads.row == self.dyads.col).any():
            say_left(f"{what} there are pairs of an id with itself")
            return False
        (nodes,) = self.orders.by_node
        count, n_turns = np.diff(nodes.start), len(self._turns)
        longest = sum(count[turn[0]] for turn in self._turns)
        if TEAM_COST * (longest + TURN_COST * n_turns) > len(nodes.order):
            say_left(f"{what} so many ids are paired with each other that a sweep would take {n_turns:,} turns")
            return False
        return True

    @property
    def is_dealt(self) -> bool:
        """Whether the dyads are in cells on the device, and not by row."""
        return self._dealt is not None and Role.ROW not in self._held

    @property
    def dealt(self) -> Any:
        """The dyads in cells, on the device; see `device_cells.Dealt`."""
        from dyads.engine.device_cells import Dealt

        if self._dealt is None:
            self._dealt = Dealt.of(self.dyads, self._one_set)
        return self._dealt

    def copied(self, array: Array, of: Any) -> Any:
        """Return an array on the device, where the next copy with the same `of` takes its place."""
        copy = self.buffer(array.shape, array.dtype, of)
        self.kernels.fill(copy, array)
        return copy

    def release(self) -> None:
        self._dealt = None
        self._held.clear()
        self._planned.clear()
        self.kernels_of_sums.clear()
        self.buffer.cache_clear()


class Device(Host):
    """An objective bound to dyads, on a GPU; see `api.Problem`."""

    _bound: DeviceBound

    def __exit__(self, *_: object) -> None:
        self._bound.release()
        super().__exit__()

    def loss(self, theta: Array, held: Dyads | None = None) -> float:
        if held is not None or not self._has_sums:
            return super().loss(theta, held)
        if self._bound.is_dealt:
            # SGD asks: dyads by row are not on the device, and to sort them takes longer than this.
            from dyads.engine.device_scores import loss_in_cells

            return loss_in_cells(self._bound.specs, self._effective(theta), self._bound.dealt)
        sums = PieceSums(self._bound, Role.ROW, self._effective(theta))
        value, _ = sums.launched(self._bound.kernels.VALUE)
        return float(self._bound.kernels.to_host(value).sum())

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        if not self._has_sums:
            return super().value_and_gradient(theta)
        layout, level = self.objective.layout, self._bound.kernels.GRADIENT
        gradient = np.zeros_like(theta)
        blocks, out = self._effective(theta), layout.blocks(gradient)
        sums = [PieceSums(self._bound, role, blocks) for role in (Role.ROW, Role.COL, Role.SHARED)]
        # The device goes on with the next role while the host computes the penalty, and adds up a role.
        launched = [of_role.launched(level) for of_role in sums]
        penalty = np.zeros_like(theta)
        value = self.objective.add_penalty(theta, penalty)
        for of_role, (_, pieces), table in zip(sums, launched, out, strict=True):
            # With one id set, the tables of rows and columns are the same.
            of_role.add(pieces, table)
        # Each role has all dyads, so their loss is that of any role; the last one has the fewest pieces.
        value += float(self._bound.kernels.to_host(launched[-1][0]).sum())
        layout.pull_side(out, np.empty(0), self.dyads.side.astype(theta.dtype), gradient)
        gradient += penalty
        if self.objective.free is not None:
            gradient[~self.objective.free] = 0
        return value, gradient

    def descent(self, theta: Array, visited: bool = False) -> Descent:  # type: ignore[override]
        if any(self.objective.layout.n_features):
            return super().descent(theta, visited)
        from dyads.engine.device_descent import DeviceDescent

        return DeviceDescent(self.objective, self._bound.dealt, self._bound.counts, theta, visited)

    def blocks_in_turn(self, theta: Array, prior: OwnPrior | None = None) -> HostUpdates:
        if not self._has_sums or (self.objective.structure.one_set and not self._bound.takes_turns):
            return super().blocks_in_turn(theta, prior)
        return DeviceUpdates(self.objective, self._bound, theta, prior)

    def restricted(self, free: Array | None) -> "Device":
        return Device(replace(self.objective, free=free), self._bound)

    @property
    def _has_sums(self) -> bool:
        """Whether the device computes sums: not with features of dyads, and not if entities have no weights."""
        return self.dyads.side.dyad is None and 0 not in self.objective.layout.sizes[:2]

    def _effective(self, theta: Array) -> Blocks:
        """Return the effective blocks on the device."""
        row, col, shared = single(self.objective.layout.effective(theta, self.dyads.side.astype(theta.dtype)))
        rows = self._bound.copied(row, of=0)
        # With one id set, the tables of rows and columns are the same.
        cols = rows if self.objective.structure.one_set else self._bound.copied(col, of=1)
        return Blocks(rows, cols, self._bound.copied(shared, of=2))


class PieceSums:
    """Sums over the dyads of the owners of a role, in pieces: for all owners, or "sums at x" of one; see `entity`.

    A team of threads sums a piece. The sums of pieces are added on the host, in order and in double precision.
    """

    team = SERIAL

    def __init__(self, bound: DeviceBound, role: Role, blocks: Blocks, prior: Any = None) -> None:
        """`blocks` : on the device. `prior` : that of the role's blocks; only for "sums at x"."""
        self._bound, self._kernels, self._role, self._held = bound, bound.kernels, role, bound.held(role)
        self.owned = self._held.owned._replace(start=self._held.start)
        self.groups, self.prior = self._held.groups, prior
        self._X = blocks[role.place]
        self._sums = self._kernels.TeamSums(bound.specs, self._held.owned, blocks, self._held.data, ABSENT)

    def launched(self, level: int) -> tuple[Any, Any]:
        """Begin to compute the losses (n_pieces,) and, by level, gradients (n_pieces, 1, size) of all pieces."""
        (whole,) = self._bound.planned(self._role, self._X.shape[1], False)
        buffer = partial(self._bound.buffer, of=self._role)
        known = self._bound.kernels_of_sums[self._role]
        return self._kernels.sum_pieces(self._sums, self._X, self._held.pieces, whole, level, buffer, known)  # type: ignore[no-any-return]

    def add(self, pieces: Any, out: Array) -> None:
        """ADD the gradients of pieces (n_pieces, 1, size), on the device, to those of owners (n, size)."""
        self._held.joins.add(self._kernels.to_host(pieces)[:, 0], out)

    def tasks(self, t: int) -> bool:
        """Whether an owner has dyads."""
        return bool(self.owned.start[t] < self.owned.start[t + 1])

    def work(self, t: int, part: Part) -> tuple[Planned, Any]:
        """Return a part of the block of an owner as teams take it, and the pieces of the owner."""
        cuts = (self._bound.planned(self._role, most) for most in (PART, self._X.shape[1]))
        planned = next(it for parts in cuts for it in parts if np.array_equal(it.part.entry, part.entry))
        _, bounds = pieces_of(self.owned.start[t : t + 2])
        return planned, self._kernels.to_device((np.zeros(len(bounds), np.int32), bounds))

    def sums_at(self, e: int, x: Array, part: Part, curved: bool, out: Array, work: Any) -> float:
        planned, pieces = work
        level, at = self._kernels.CURVATURE if curved else self._kernels.VALUE, self._kernels.to_device(single(x[None]))
        known = self._bound.kernels_of_sums[self._role]
        value, sums = self._kernels.sum_pieces(self._sums, at, pieces, planned, level, self._bound.buffer, known)
        if curved:
            out[:] = self._kernels.to_host(sums).sum(axis=0, dtype=np.float64)
        return float(self._kernels.to_host(value).sum())

    def has_self_link(self, e: int) -> bool:
        return False


def single(bundle: Any) -> Any:
    """Return an array, or a bundle of arrays, in single precision; masks stay masks."""
    if isinstance(bundle, np.ndarray):
        return bundle if bundle.dtype == np.bool_ else np.ascontiguousarray(bundle, np.float32)
    return type(bundle)(*map(single, bundle))


def pieces_of(start: Array) -> tuple[Array, Array]:
    """Cut the dyads of owners into pieces, at least one each; return the owner (n,) of each, and its bounds (n, 2)."""
    count = np.diff(start)
    size = np.maximum(PIECE, count // MOST_PIECES)
    n_pieces = np.maximum(1, -(-count // size))
    owner = np.repeat(np.arange(len(count)), n_pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    begin = start[owner] + size[owner] * number
    return owner.astype(np.int32), np.stack([begin, np.minimum(begin + size[owner], start[owner + 1])], axis=1)


class DeviceUpdates(HostUpdates):
    """Block updates on a GPU: a team of threads for each row, or each column; see `api.BlockUpdates`."""

    precision = np.float32

    def __init__(self, objective: Objective, bound: DeviceBound, theta: Array, prior: OwnPrior | None) -> None:
        super().__init__(objective, bound.orders, theta, prior, bound.threads.map)
        self._bound, self._kernels = bound, bound.kernels
        self._on_device: dict[int, Any] = {}

    def moments(self, role: Role) -> Moments:
        """Compute the moments by parts, on threads: a part stays in a core's cache."""
        i, labelled = role.place, self.labelled(role)
        own, shift = self._blocks[i], None if self._side[i] is None else self._shift[i]

        def part(bounds: Bounds) -> Moments:
            some = slice(*bounds)
            blocks = own[some] if shift is None else own[some] - shift[some]
            n, mean, scatter = Moments.of(blocks[labelled[some]])
            return Moments(n, mean.astype(np.float64), scatter.astype(np.float64))

        return Moments.joined(self._run(part, even_tasks(0, len(own))))

    def draw_unlabelled(self, role: Role, key: Key, prior: BlockPrior) -> None:
        self._forget(role)
        super().draw_unlabelled(role, key, prior)

    def _device_blocks(self) -> Blocks:
        """Return the blocks on the device; only those that have changed are copied."""
        for i, block in enumerate(self._blocks):
            if i not in self._on_device:
                # With one id set, the tables of rows and columns are the same.
                same = i == Role.COL.place and self._layout.structure.one_set
                self._on_device[i] = self._on_device[Role.ROW.place] if same else self._kernels.to_device(block)
        return Blocks(*(self._on_device[i] for i in range(3)))

    def solve(self, role: Role, n_steps: int = 1, codes: Codes | None = None) -> float:
        table, steps = self._blocks[role.place], Steps(n_steps, SINGLE_SMALL_STEP, 0.0, SINGLE_LEAST_PIVOT)
        before, blocks = table.copy(), self._device_blocks()
        prior = self._prior(role, None, slice(None))
        sums = PieceSums(self._bound, role, blocks, prior)
        if role == Role.SHARED:
            solve_shared(sums, table, steps, in_order)
        elif prior.active.any():
            size, (turns, small, large) = table.shape[1], self._entities(role, codes)
            (whole,) = self._bound.planned(role, size)
            self._kernels.solve(self._team_sums(role, blocks, prior), turns, whole, steps, self._bound.buffer)
            self._take(table, blocks[role.place], small)
            for e in large:
                descend(sums, e, table[e], steps, whole.part, System.of(size, size), sums.work(e, whole.part))
        if role == Role.SHARED or len(self._bound.held(role).large):
            self._forget(role)
        return float(np.abs(table - before).max(initial=0))

    def draw(self, role: Role, key: Key, prior: BlockPrior | None = None, codes: Codes | None = None) -> Array:
        table, blocks = self._blocks[role.place], self._device_blocks()
        own = self._prior(role, prior, slice(None))
        sums = PieceSums(self._bound, role, blocks, own)
        if role == Role.SHARED:
            self._forget(role)
            return draw_shared(sums, table, key, in_order)
        size, (turns, small, large) = table.shape[1], self._entities(role, codes)
        planned = self._bound.planned(role, PART)
        accepted = self._kernels.draw(self._team_sums(role, blocks, own), turns, planned, key, self._bound.buffer)
        self._take(table, blocks[role.place], small)
        for number, (part, *_) in enumerate(planned):
            for e in large:
                system = System.of(size, len(part.entry))
                accepted[e] += draw_block(sums, e, table[e], key, number, part, system, sums.work(e, part))
        if len(large):
            self._forget(role)
        return np.asarray(accepted / max(1, len(planned)))

    def _forget(self, role: Role) -> None:
        """Let blocks, which the host has changed, be copied to the device again."""
        for i in (role.place, Role.COL.place) if role == Role.NODE else (role.place,):
            self._on_device.pop(i, None)

    def _take(self, table: Array, drawn: Any, entity: Array) -> None:
        """Copy the blocks of entities from the device."""
        new = self._kernels.to_host(drawn)
        if len(entity) == len(table):
            table[:] = new
        else:
            table[entity] = new[entity]

    def _team_sums(self, role: Role, blocks: Blocks, prior: Prior) -> Any:
        """Return the sums of a role on the device."""
        held, prior = self._bound.held(role), self._kernels.to_device(single(prior))
        of_nodes = 1 if role == Role.NODE else ABSENT
        return self._kernels.TeamSums(self._bound.specs, held.owned, blocks, held.data, prior, of_nodes)

    def _entities(self, role: Role, codes: Codes | None) -> tuple[Sequence[Any], Array, Array]:
        """Return the entities to update: in turns on the device, the same all together on the host, and larger ones."""
        held = self._bound.held(role)
        turns, large = held.turns_on_host, held.large
        if codes is None:
            return held.turns, np.concatenate(turns), large
        turns = tuple(turn[np.isin(turn, codes)] for turn in turns)
        return self._kernels.to_device(turns), np.concatenate(turns), large[np.isin(large, codes)]
