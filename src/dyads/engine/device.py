"""The kernels of the CUDA engine: the sources of the CPU's kernels, bound to numba-cuda, shared among threads.

A block of threads, a *team*, works on one entity. Its dyads come in tiles. Each thread gathers and evaluates dyads of
its own, as tiles of one, by the functions of `sums`; then the threads divide the entries of gradient and curvature
among themselves and add the tile to them. Every sum has one owner and a fixed order, so a seed gives the same bits in
every run. Arrays are in single precision, sums of losses in double.

The scratch arrays of a team lie in shared memory; see `Room`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import config, cuda, float32, float64, int32
from numba.cuda.extending import overload

from dyads.engine.bundles import ABSENT, relation_at
from dyads.engine.compiled import BOUND, Binding, inlined, jitable, read_if_present
from dyads.engine.entity import Steps, System, descend, draw_block
from dyads.engine.lanes import SERIAL, lane, lane_sum, lanes, wait
from dyads.engine.sums import (
    Groups,
    Part,
    add_direction_weights,
    add_scores,
    diagonal_weights,
    gather_cols,
    gather_data,
    gather_pairs,
    gather_rows,
    project,
    tile_size,
    weigh_tile,
)
from dyads.model.loss import Curvature, curvature, evaluate, exp
from dyads.model.parameters import Role
from dyads.model.streams import Key
from dyads.model.structure import label_weights, shared_label_weights

Array = np.ndarray[Any, Any]

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Whether numba-cuda simulates a device: a team is then one thread, since there are no warp operations."""

THREADS = 1 if SIMULATED else 128
"""Threads of a team."""

WARP = 32
"""Threads of a warp, which run in step and can read each other's registers."""

ALL_LANES = 0xFFFFFFFF
"""The mask of all threads of a warp."""

MOST_TILE = 64
"""Largest number of dyads of a tile: larger tiles take shared memory from other teams of a multiprocessor."""

STRIP = 4
"""Entries of the curvature that a thread adds at a time: one entry k of the block with up to four consecutive j."""

SHARED_FLOATS = 12_288
"""Single-precision numbers of shared memory that a team may use: 48 KB, the most without asking the driver."""

PARTIAL_FLOATS = 2 * WARP
"""Room at the start of shared memory for `Block.partial`, in single-precision numbers."""

MOST_SYSTEMS = 512
"""Teams at a time whose gradient and curvature lie in global memory, where they do not fit into shared memory."""

MOST_PAIRS = 64
"""Pairs of groups up to which a thread computes the weights of all pairs for its dyad, rather than for each entry."""

VALUE, GRADIENT, CURVATURE = 0, 1, 2
"""What a pass computes: the loss; also its gradient; also its curvature."""


class Block(NamedTuple):
    """A team of the threads of a block; see `lanes`.

    Attributes
    ----------
    partial : (WARP,) sums of warps, in shared memory
    """

    partial: Any

    def lane(self) -> int:
        return cuda.threadIdx.x  # type: ignore[no-any-return]

    def lanes(self) -> int:
        return cuda.blockDim.x  # type: ignore[no-any-return]

    def lane_sum(self, x: float) -> float:
        total = np.float64(x)
        offset = WARP // 2
        while offset:
            total += cuda.shfl_xor_sync(ALL_LANES, total, offset)
            offset //= 2
        cuda.syncthreads()
        if cuda.threadIdx.x % WARP == 0:
            self.partial[cuda.threadIdx.x // WARP] = total
        cuda.syncthreads()
        total = 0.0
        for n in range(cuda.blockDim.x // WARP):
            total += self.partial[n]
        return total

    def team_dot(self, first: int, x: Array, y: Array) -> float:
        total = 0.0
        for k in range(first + cuda.threadIdx.x, x.size, cuda.blockDim.x):
            total += x[k] * y[k]
        return lane_sum(self, total)

    def wait(self) -> None:
        cuda.syncthreads()


class TeamPart(NamedTuple):
    """A `Part`, and how the entries of its curvature are divided among threads.

    Attributes
    ----------
    entry, group, end, n_single : see `Part`
    of : (size,) group of each entry, counted within the part
    pair : (n_pairs, 2) pairs of groups whose weights are computed for each dyad
    strip : (n_strips, 4) first entry k, second entry j, number of entries from j on, and pair or -1
    """

    entry: Any
    group: Any
    end: Any
    n_single: int
    of: Any
    pair: Any
    strip: Any

    @classmethod
    def cut(cls, part: Part) -> "TeamPart":
        """Divide a part, on the host."""
        n_groups = len(part.group)
        of = np.repeat(np.arange(n_groups), np.diff(part.end, prepend=0)).astype(np.int32)
        pairs = [(p, q) for q in range(n_groups) for p in range(q + 1)]
        if len(pairs) > MOST_PAIRS:
            pairs = [(p, q) for p, q in pairs if q >= part.n_single]
        number = {pair: n for n, pair in enumerate(pairs)}
        strips = []
        for k, p in enumerate(of):
            for q in range(p, n_groups):
                begin, end = max(k, part.end[q - 1] if q else 0), part.end[q]
                strips += [(k, j, min(STRIP, end - j), number.get((p, q), -1)) for j in range(begin, end, STRIP)]
        table = np.array(strips, np.int32).reshape(-1, 4)
        # Threads of a warp take strips of one length and one kind, as far as possible.
        table = table[np.lexsort((table[:, 2], table[:, 3] >= 0))]
        return cls(
            part.entry.astype(np.int32),
            part.group.astype(np.int32),
            part.end.astype(np.int32),
            part.n_single,
            of,
            np.array(pairs, np.int32).reshape(-1, 2),
            np.ascontiguousarray(table),
        )


class Room(NamedTuple):
    """The sizes of a team's scratch arrays in shared memory.

    Attributes
    ----------
    tile : dyads of a tile
    block, size : entries of a block, and of its part that moves
    n_labels, n_directions : of the loss
    n_groups, n_part, n_pairs : groups of a block, groups of the part, pairs of groups
    floats : single-precision numbers in all
    own_system : whether gradient and curvature lie in shared memory; otherwise they lie in global memory
    """

    tile: int
    block: int
    size: int
    n_labels: int
    n_directions: int
    n_groups: int
    n_part: int
    n_pairs: int
    floats: int
    own_system: bool

    @classmethod
    def of(cls, specs: Any, groups: Groups, part: TeamPart, driven: bool) -> "Room":
        """`driven` : whether the team also searches and draws, which takes a `System`."""
        block, size = int(groups.start[-1]), len(part.entry)
        labels, directions = specs.structure.n_labels, specs.loss.n_directions
        n_groups, n_part, n_pairs = len(groups.own), len(part.group), len(part.pair)
        fixed = PARTIAL_FLOATS + 2 * block + 2 * size + THREADS + labels * n_groups + 1
        system = (1 + size) * size
        own_system = driven and fixed + system <= SHARED_FLOATS * 2 // 3
        fixed += system if own_system else 0
        each = block + STRIP + 4 + (3 + directions) * labels + directions + (1 + directions) * n_part + n_pairs
        tile = int(np.clip((SHARED_FLOATS - fixed) // each - 1, 1, MOST_TILE))
        return cls(
            tile, block, size, labels, directions, n_groups, n_part, n_pairs, fixed + each * (tile + 1), own_system
        )


class TeamWork(NamedTuple):
    """Scratch arrays of a team for the sums over dyads; see `sums.Work`. Column j of a tile belongs to one thread.

    Attributes
    ----------
    groups : the groups of the block
    relation : (1,) the relation of `E`
    E : (n_labels, n_groups)
    label : (tile,) codes
    weight, value, total : (tile + 1,)
    v : (block + STRIP, tile + 1)
    s, g : (n_labels, tile + 1)
    C : curvature of the losses in the scores
    pull : (n_part, tile + 1)
    along : (n_directions, n_part, tile + 1)
    pair : (n_pairs, tile + 1) weight of each pair of groups
    scratch : (n_lanes,)
    """

    groups: Any
    relation: Any
    E: Any
    label: Any
    weight: Any
    value: Any
    total: Any
    v: Any
    s: Any
    g: Any
    C: Curvature
    pull: Any
    along: Any
    pair: Any
    scratch: Any


class TeamSums(NamedTuple):
    """The loss of the dyads of entities, computed by teams; see `sums.EntitySums`."""

    specs: Any
    owned: Any
    blocks: Any
    data: Any
    prior: Any
    team: Any = SERIAL

    def sums_at(self, e: int, x: Array, part: TeamPart, curved: bool, out: Array, work: TeamWork) -> float:
        begin, last = self.owned.start[e], self.owned.start[e + 1]
        return team_pass(self, begin, last, x, part, CURVATURE if curved else VALUE, out, work)  # type: ignore[no-any-return]

    def has_self_link(self, e: int) -> bool:
        return False


@inlined
def table_at(memory, first, n, m):  # type: ignore[no-untyped-def]
    """Return memory[first:first + n m] as a table (n, m)."""
    return memory[first : first + n * m].reshape((n, m))


@inlined
def team_system(room, memory, sums):  # type: ignore[no-untyped-def]
    """Return the `System` of a team, at the start of its shared memory, with `sums` for gradient and curvature."""
    size, x, mode = room.size, PARTIAL_FLOATS, PARTIAL_FLOATS + room.block
    d = mode + room.block
    x, mode = memory[x:mode], memory[mode:d]
    return System(x, mode, memory[d : d + size], memory[d + size : d + 2 * size], sums, sums[0], sums[1:])


@inlined
def team_work(room, groups, memory, codes, first):  # type: ignore[no-untyped-def]
    """Return the `TeamWork` of a team, in shared memory from entry `first` on; `codes` : that memory as integers."""
    labels, directions, m = room.n_labels, room.n_directions, room.tile + 1
    scratch = memory[first : first + THREADS]
    first += THREADS
    relation = codes[first : first + 1]
    first += 1
    E = table_at(memory, first, labels, room.n_groups)
    first += labels * room.n_groups
    label = codes[first : first + m]
    weight, value, total = (
        memory[first + m : first + 2 * m],
        memory[first + 2 * m : first + 3 * m],
        memory[first + 3 * m : first + 4 * m],
    )
    first += 4 * m
    v = table_at(memory, first, room.block + STRIP, m)
    first += (room.block + STRIP) * m
    s = table_at(memory, first, labels, m)
    g = table_at(memory, first + labels * m, labels, m)
    diagonal = table_at(memory, first + 2 * labels * m, labels, m)
    first += 3 * labels * m
    bend = table_at(memory, first, directions, m)
    first += directions * m
    direction = memory[first : first + directions * labels * m].reshape((directions, labels, m))
    first += directions * labels * m
    pull = table_at(memory, first, room.n_part, m)
    first += room.n_part * m
    along = memory[first : first + directions * room.n_part * m].reshape((directions, room.n_part, m))
    first += directions * room.n_part * m
    pair = table_at(memory, first, room.n_pairs, m)
    C = Curvature(diagonal, bend, direction)
    return TeamWork(groups, relation, E, label, weight, value, total, v, s, g, C, pull, along, pair, scratch)


@jitable
def team_pass(sums, begin, last, x, part, level, out, work):  # type: ignore[no-untyped-def]
    """Return the loss with block x of the dyads at positions begin..last-1 of the order of `sums.owned`, to all lanes.

    WRITES the gradient in the entries of `part` to out[0] if level >= GRADIENT, and the upper triangle of the curvature
    to out[1:] if level == CURVATURE.
    """
    team, owned, data = sums.team, sums.owned, sums.data
    first, n_lanes = lane(team), lanes(team)
    n_rows = out.shape[0] if level == CURVATURE else 1 if level == GRADIENT else 0
    for k in range(first, n_rows * part.entry.size, n_lanes):
        out[k // part.entry.size, k % part.entry.size] = 0
    if first == 0:
        work.relation[0] = -1
    total = 0.0
    while begin < last:
        n = tile_size(data.relation, owned.order, begin, last, work.label.size - 1)
        wait(team)
        if first == 0:
            weights_of_relation(sums, relation_at(data.relation, owned.order[begin]), work)
        wait(team)
        for j in range(first, n, n_lanes):
            total += evaluate_dyad(sums, begin + j, j, x, part, level, work)
        wait(team)
        if level >= GRADIENT:
            add_gradient(team, n, part, out, work)
        if level == CURVATURE:
            add_curvature(team, n, part, out, work)
        begin += n
    return lane_sum(team, total)


@jitable
def weights_of_relation(sums, relation, work):  # type: ignore[no-untyped-def]
    """WRITE the label weights of a relation to work.E, unless they are there."""
    if work.relation[0] != relation:
        work.relation[0] = relation
        if sums.owned.role == Role.SHARED:
            shared_label_weights(sums.specs.structure, work.E)
        else:
            label_weights(sums.specs.structure, sums.blocks.shared[relation], work.E)


@jitable
def evaluate_dyad(sums, n, j, x, part, level, work):  # type: ignore[no-untyped-def]
    """Return the weighted loss of the dyad at position n of the order; it is column j of the tile."""
    structure, loss, data, blocks = sums.specs.structure, sums.specs.loss, sums.data, sums.blocks
    order, E = sums.owned.order[n : n + 1], work.E
    label, weight, value, total = (
        work.label[j : j + 1],
        work.weight[j : j + 1],
        work.value[j : j + 1],
        work.total[j : j + 1],
    )
    v, s, g = work.v[:, j : j + 1], work.s[:, j : j + 1], work.g[:, j : j + 1]
    gather_data(data, order, s, label, weight)
    if sums.owned.role == Role.ROW:
        gather_cols(structure, data, order, blocks, v, s)
    elif sums.owned.role == Role.COL:
        gather_rows(structure, data, order, blocks, v, s)
    else:
        gather_pairs(structure, data, order, blocks, v, s)
    add_scores(1, work.groups, E, x, v, s, total, s)
    if level < CURVATURE:
        evaluate(loss, 1, label, s, g, value, total)
        if level == GRADIENT:
            for y in range(g.shape[0]):
                g[y, 0] *= weight[0]
            for p in range(part.group.size):
                pull_group(work.groups.own[part.group[p]], part.group[p], E, g, work.pull[p, j : j + 1])
    else:
        C = Curvature(work.C.diagonal[:, j : j + 1], work.C.weight[:, j : j + 1], work.C.direction[:, :, j : j + 1])
        curvature(loss, 1, label, s, g, value, total, C)
        weigh_tile(data.weight, 1, weight, g, C)
        own, group = work.groups.own, part.group
        pull, along = work.pull[:, j : j + 1], work.along[:, :, j : j + 1]
        project(1, own, group, E, g, C.direction, pull, along)
        for m in range(part.pair.shape[0]):
            weigh_pair(part.pair[m, 0], part.pair[m, 1], own, group, E, C, along, work.pair[m, j : j + 1])
    return value[0] * weight[0]


@jitable
def pull_group(own, group, E, g, out):  # type: ignore[no-untyped-def]
    """WRITE sum_y E[y, group] g_y of one dyad to `out` (1,)."""
    if own >= 0:
        out[0] = g[own, 0]
    else:
        out[0] = 0
        for y in range(g.shape[0]):
            out[0] += E[y, group] * g[y, 0]


@jitable
def weigh_pair(p, q, own, group, E, C, along, out):  # type: ignore[no-untyped-def]
    """WRITE the weight w_pq of a pair of groups of a part, for one dyad, to `out` (1,)."""
    diagonal_weights(1, p, q, own, group, E, C.diagonal, out)
    add_direction_weights(1, C.weight, along[:, p], along[:, q], out)


@jitable
def add_gradient(team, n, part, out, work):  # type: ignore[no-untyped-def]
    """ADD the gradient of a tile of n dyads to out[0]."""
    # The last threads, since the first ones have longer strips of the curvature.
    for k in range(lanes(team) - 1 - lane(team), part.entry.size, lanes(team)):
        total, v, pull = out[0, k], work.v[part.entry[k]], work.pull[part.of[k]]
        for d in range(n):
            total += pull[d] * v[d]
        out[0, k] = total


@jitable
def add_curvature(team, n, part, out, work):  # type: ignore[no-untyped-def]
    """ADD the curvature of a tile of n dyads to out[1:]."""
    for m in range(lane(team), part.strip.shape[0], lanes(team)):
        k, j, width, pair = part.strip[m, 0], part.strip[m, 1], part.strip[m, 2], part.strip[m, 3]
        left, right = work.v[part.entry[k]], part.entry[j]
        v0, v1, v2, v3 = work.v[right], work.v[right + 1], work.v[right + 2], work.v[right + 3]
        a0 = a1 = a2 = a3 = np.float32(0)
        if pair >= 0:
            weight = work.pair[pair]
            for d in range(n):
                c = weight[d] * left[d]
                a0 += c * v0[d]
                a1 += c * v1[d]
                a2 += c * v2[d]
                a3 += c * v3[d]
        else:
            p, q, out_weight = part.of[k], part.of[j], work.scratch[lane(team) : lane(team) + 1]
            for d in range(n):
                C = Curvature(
                    work.C.diagonal[:, d : d + 1], work.C.weight[:, d : d + 1], work.C.direction[:, :, d : d + 1]
                )
                weigh_pair(p, q, work.groups.own, part.group, work.E, C, work.along[:, :, d : d + 1], out_weight)
                a0 += out_weight[0] * left[d] * v0[d]
        out[1 + k, j] += a0
        if width > 1:
            out[1 + k, j + 1] += a1
        if width > 2:
            out[1 + k, j + 2] += a2
        if width > 3:
            out[1 + k, j + 3] += a3


if SIMULATED:

    @jitable
    def with_team(sums, partial):  # type: ignore[no-untyped-def]
        """Return the sums with the team of this block, which is one thread."""
        return sums

else:

    @inlined
    def with_team(sums, partial):  # type: ignore[no-untyped-def]
        """Return the sums with the team of this block."""
        return TeamSums(sums.specs, sums.owned, sums.blocks, sums.data, sums.prior, Block(partial))


class Entities(NamedTuple):
    """The arguments of the kernels that update entities.

    Attributes
    ----------
    sums : `TeamSums`
    X : (n, block size) blocks of the entities of the run
    entity : (m,) entities to update, those with the most dyads first
    groups, part, room : see there
    scratch : (grid, 1 + size, size) for gradient and curvature, or Absent if they lie in shared memory
    """

    sums: TeamSums
    X: Any
    entity: Any
    groups: Any
    part: TeamPart
    room: Room
    scratch: Any


class Drawn(NamedTuple):
    """How blocks are drawn: key and number of the part, and counts (n,) of accepted draws, to which kernels ADD."""

    key: Any
    number: int
    accepted: Any


class Pieces(NamedTuple):
    """The arguments of the kernel of partial sums.

    Attributes
    ----------
    sums : `TeamSums`
    X : (n, block size) blocks at which the sums are taken
    owner : (n_pieces,) index in X of the block of each piece
    bounds : (n_pieces, 2) first position in the order of `sums.owned`, and one past the last
    groups, part, room : see there
    value : (n_pieces,) losses, in double precision
    out : (n_pieces, 1, size) gradients, or (n_pieces, 1 + size, size) with curvatures
    level : what is computed
    """

    sums: TeamSums
    X: Any
    owner: Any
    bounds: Any
    groups: Any
    part: TeamPart
    room: Room
    value: Any
    out: Any
    level: int


@read_if_present(lambda scratch, room, memory: table_at(memory, room_start(room), 1 + room.size, room.size))
def system_sums(scratch, room, memory):  # type: ignore[no-untyped-def]
    """Return the table (1 + size, size) of gradient and curvature: that of this block in global or in shared memory."""
    return scratch[cuda.blockIdx.x]


@jitable
def room_start(room):  # type: ignore[no-untyped-def]
    """Return where the vectors of a `System` end in shared memory."""
    return PARTIAL_FLOATS + 2 * room.block + 2 * room.size


@read_if_present(lambda scratch, room: room_start(room) + (1 + room.size) * room.size)
def work_start(scratch, room):  # type: ignore[no-untyped-def]
    """Return where the `TeamWork` starts in shared memory: after the `System`."""
    return room_start(room)


@cuda.jit
def solve_kernel(entities: Entities, steps: Steps) -> None:
    """Move the block of each entity towards its optimum."""
    memory, codes = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    room, sums = entities.room, with_team(entities.sums, cuda.shared.array(0, float64))
    system = team_system(room, memory, system_sums(entities.scratch, room, memory))
    work = team_work(room, entities.groups, memory, codes, work_start(entities.scratch, room))
    for n in range(cuda.blockIdx.x, entities.entity.size, cuda.gridDim.x):
        e = entities.entity[n]
        descend(sums, e, entities.X[e], steps, entities.part, system, work)
        wait(sums.team)


@cuda.jit
def draw_kernel(entities: Entities, drawn: Drawn) -> None:
    """Draw a part of the block of each entity that has dyads."""
    memory, codes = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    room, sums = entities.room, with_team(entities.sums, cuda.shared.array(0, float64))
    system = team_system(room, memory, system_sums(entities.scratch, room, memory))
    work = team_work(room, entities.groups, memory, codes, work_start(entities.scratch, room))
    for n in range(cuda.blockIdx.x, entities.entity.size, cuda.gridDim.x):
        e = entities.entity[n]
        if sums.owned.start[e] < sums.owned.start[e + 1]:
            accepted = draw_block(sums, e, entities.X[e], drawn.key, drawn.number, entities.part, system, work)
            if accepted and lane(sums.team) == 0:
                drawn.accepted[e] += 1
            wait(sums.team)


@cuda.jit
def piece_kernel(pieces: Pieces) -> None:
    """WRITE the loss of each piece and, by level, its gradient and curvature."""
    memory, codes = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    room, sums, n = pieces.room, with_team(pieces.sums, cuda.shared.array(0, float64)), cuda.blockIdx.x
    team = sums.team
    work = team_work(room, pieces.groups, memory, codes, room_start(room))
    x, block = memory[PARTIAL_FLOATS : PARTIAL_FLOATS + room.block], pieces.X[pieces.owner[n]]
    for k in range(lane(team), x.size, lanes(team)):
        x[k] = block[k]
    wait(team)
    begin, last = pieces.bounds[n, 0], pieces.bounds[n, 1]
    value = team_pass(sums, begin, last, x, pieces.part, pieces.level, pieces.out[n], work)
    if lane(team) == 0:
        pieces.value[n] = value


def to_device(bundle: Any) -> Any:
    """Return an array, or a bundle of arrays, on the device."""
    if isinstance(bundle, np.ndarray):
        return np.array(bundle) if SIMULATED else cuda.to_device(np.ascontiguousarray(bundle))
    if isinstance(bundle, tuple):
        parts = tuple(map(to_device, bundle))
        return bundle._make(parts) if hasattr(bundle, "_make") else parts
    return bundle


def to_host(array: Any) -> Array:
    """Return a device's array on the host."""
    return array if SIMULATED else array.copy_to_host()  # type: ignore[no-any-return]


def device_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised array on the device."""
    return np.empty(shape, dtype) if SIMULATED else cuda.device_array(shape, dtype)


def launch(kernel: Any, grid: int, room: Room, *arguments: Any) -> None:
    """Run a kernel with `grid` teams."""
    kernel[grid, THREADS, 0, 4 * room.floats](*arguments)


def solve(sums: TeamSums, entity: Array, groups: Groups, whole: Part, steps: Steps) -> Array:
    """Return the blocks of entities, moved towards their optimum; `entity` : (m,), those with the most dyads first."""
    entities, grid = _entities(sums, entity, groups, whole)
    launch(solve_kernel, grid, entities.room, entities, steps)
    return to_host(entities.X)[entity]


def draw(sums: TeamSums, entity: Array, groups: Groups, parts: Sequence[Part], key: Key) -> tuple[Array, Array]:
    """Draw the blocks of entities, part by part; return them, and the number of accepted parts of each."""
    accepted = to_device(np.zeros(len(sums.prior.scale), np.float32))
    for number, part in enumerate(parts):
        entities, grid = _entities(sums, entity, groups, part)
        launch(draw_kernel, grid, entities.room, entities, Drawn(key, number, accepted))
    return to_host(entities.X)[entity], to_host(accepted)[entity]


def _entities(sums: TeamSums, entity: Array, groups: Groups, part: Part) -> tuple[Entities, int]:
    """Return the arguments of a kernel that updates entities, and the number of teams."""
    team_part = TeamPart.cut(part)
    room, grid, scratch = Room.of(sums.specs, groups, team_part, True), len(entity), ABSENT
    if not room.own_system:
        grid = min(grid, MOST_SYSTEMS)
        scratch = device_array((grid, 1 + room.size, room.size), np.float32)
    bundle = to_device((entity.astype(np.int32), groups, team_part))
    return Entities(sums, sums.blocks[Role(sums.owned.role).place], *bundle, room, scratch), max(1, grid)


def sum_pieces(
    sums: TeamSums, X: Any, owner: Array, bounds: Array, groups: Groups, part: TeamPart, level: int
) -> tuple[Array, Array]:
    """Return the losses (n,) of pieces and, by level, their gradients (n, 1, size), or with curvatures below them.

    `X` : (n_owners, block size) on the device, `owner` : (n,), `bounds` : (n, 2).
    """
    room, size = Room.of(sums.specs, groups, part, False), len(part.entry)
    lines = {VALUE: 0, GRADIENT: 1, CURVATURE: 1 + size}[level]
    value, out = device_array((len(owner),), np.float64), device_array((len(owner), max(1, lines), size), np.float32)
    pieces = Pieces(sums, X, *to_device((owner, bounds, groups, part)), room, value, out, level)
    launch(piece_kernel, len(owner), room, pieces)
    return to_host(value), to_host(out) if lines else np.empty(0)


def native_exp(x):  # type: ignore[no-untyped-def]
    """Return exp(x): a device has a fast one of its own."""
    return math.exp(x)


def _bind() -> None:
    """Bind what kernels call to numba-cuda."""
    for function, binding in {**BOUND, exp: Binding(lambda x: native_exp)}.items():
        overload(function, strict=False, inline="always" if binding.inline else "never")(binding.choose)


if not SIMULATED:
    _bind()
