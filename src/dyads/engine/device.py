"""The kernels of the CUDA engine: the sources of the CPU's kernels, bound to numba-cuda, shared among threads.

A block of threads, a *team*, works on one entity. Its dyads come in tiles. Each thread gathers and evaluates dyads of
its own, as tiles of one, by the functions of `sums`; then the threads divide the entries of gradient and curvature
among themselves and add the tile to them. Every sum has one owner and a fixed order, so a seed gives the same bits in
every run. Arrays are in single precision, sums of losses in double.

The scratch arrays of a team lie in shared memory; their sizes are those of a `Room`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import config, cuda, float32, float64, int32
from numba.cuda.extending import overload

from dyads.engine.bundles import ABSENT, relation_at
from dyads.engine.compiled import BOUND, by_type, jitable, read_if_present
from dyads.engine.entity import Steps, System, descend, draw_block
from dyads.engine.lanes import SERIAL, lane, lane_sum, lanes, wait
from dyads.engine.passes import over_root
from dyads.engine.sums import (
    Part,
    add_scores,
    gather_cols,
    gather_data,
    gather_nodes,
    gather_pairs,
    gather_rows,
    pair_weights,
    project,
    project_group,
    tile_size,
    weigh_tile,
)
from dyads.errors import InputError
from dyads.model.loss import BY_PRECISION, Curvature, curvature, evaluate
from dyads.model.parameters import Role
from dyads.model.streams import Key
from dyads.model.structure import label_weights, shared_label_weights

Array = np.ndarray[Any, Any]

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Whether numba-cuda simulates a device. Then there are no warp operations, and every thread is one of Python."""

THREADS, SUMMED = (1, 1) if SIMULATED else (128, 32)
"""Threads of a team, and those of a warp, which can add up numbers without shared memory.

With 64 threads, or with tiles of 32 dyads, draws of blocks of rank 32 took 1.3 to 1.7 times as long on an H200.
"""

ALL_LANES = 0xFFFFFFFF
"""The mask of all threads of a warp."""

MOST_TILE, MOST_SUMMED_TILE = 128, 64
"""Largest number of dyads of a tile: where blocks are solved for or drawn, and of partial sums.

Registers leave room for four teams of a multiprocessor, whatever their tiles. On an H200, with 128 rather than 64,
sweeps take four fifths of the time or less, but gradients, which few threads of a team add up, 1.3 times as long.
"""
STRIP = 4
"""Entries of the curvature that a thread adds at a time: one entry k of the block with up to four consecutive j."""

SHARED_FLOATS = 12_288
"""Single-precision numbers of shared memory that a team may use: 48 KB, the most without asking the driver."""

MOST_REGISTERS = 128
"""Most registers of a thread: with more, fewer teams run at a time, and there is less to do while memory is read."""

compile_kernel = cuda.jit if SIMULATED else cuda.jit(max_registers=MOST_REGISTERS)
"""Compiles a kernel; the simulator has no registers."""

MOST_SYSTEMS = 512
"""Teams at a time whose gradient and curvature lie in global memory, where they do not fit into shared memory."""

MOST_PAIRS, MOST_WIDE_PAIRS = 64, 256
"""Pairs of groups up to which a thread computes their weights once for its dyad, rather than for each entry.

The first is for all pairs, the second for those with a group of several entries: more would leave shared memory for a
few dyads only.
"""

VALUE, GRADIENT, CURVATURE = 0, 1, 2
"""What a pass computes: the loss; also its gradient; also its curvature."""


class Block(NamedTuple):
    """A team of the threads of a block; see `lanes`.

    Attributes
    ----------
    partial : (THREADS,) sums of warps, in shared memory
    """

    partial: Any

    def lane(self) -> int:
        return cuda.threadIdx.x  # type: ignore[no-any-return]

    def lanes(self) -> int:
        return THREADS

    def lane_sum(self, x: float) -> float:
        # The same order in all runs: within warps by halves, then warp by warp.
        total, n = warp_sum(np.float64(x)), cuda.threadIdx.x
        cuda.syncthreads()
        if n % SUMMED == 0:
            self.partial[n // SUMMED] = total
        cuda.syncthreads()
        total = self.partial[0]
        for n in range(1, THREADS // SUMMED):
            total += self.partial[n]
        return total  # type: ignore[no-any-return]

    def team_dot(self, first: int, x: Array, y: Array) -> float:
        total = 0.0
        for k in range(first + cuda.threadIdx.x, x.size, THREADS):
            total += x[k] * y[k]
        return lane_sum(self, total)  # type: ignore[no-any-return]

    def wait(self) -> None:
        cuda.syncthreads()


@jitable
def warp_sum(x):  # type: ignore[no-untyped-def]
    """Return the sum of x over the threads of a warp; the simulator has no warps."""
    if not SIMULATED:
        for offset in (16, 8, 4, 2, 1):
            x += cuda.shfl_xor_sync(ALL_LANES, x, offset)
    return x


def times_inverse_root(x, y):  # type: ignore[no-untyped-def]
    """Return x / sqrt(y) of single-precision numbers: a device has a fast inverse root."""
    return x * cuda.libdevice.rsqrtf(y)


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
    def cut(cls, part: Part, pairs: Array | None) -> "TeamPart":
        """Divide a part, on the host; `pairs` : see `pairs_of`, or None where no curvature is computed."""
        of = np.repeat(np.arange(len(part.group)), np.diff(part.end, prepend=0)).astype(np.int32)
        return cls(
            part.entry.astype(np.int32),
            part.group.astype(np.int32),
            part.end.astype(np.int32),
            part.n_single,
            of,
            np.zeros((0, 2), np.int32) if pairs is None else pairs,
            np.zeros((0, 4), np.int32) if pairs is None else _strips(part, of, pairs),
        )


def pairs_of(part: Part) -> Array:
    """Return the pairs of groups (n_pairs, 2) whose weights are computed for each dyad."""
    pairs = [(p, q) for q in range(len(part.group)) for p in range(q + 1)]
    if len(pairs) > MOST_PAIRS:
        pairs = [(p, q) for p, q in pairs if q >= part.n_single]
    if len(pairs) > max(MOST_PAIRS, MOST_WIDE_PAIRS):
        pairs = []
    return np.array(pairs, np.int32).reshape(-1, 2)


def _strips(part: Part, of: Array, pairs: Array) -> Array:
    """Return how the entries of the curvature are divided; see `TeamPart`."""
    number = {tuple(pair): n for n, pair in enumerate(pairs.tolist())}
    strips = []
    for k, p in enumerate(of.tolist()):
        for q in range(p, len(part.group)):
            begin, end, pair = max(k, part.end[q - 1] if q else 0), part.end[q], number.get((p, q), -1)
            # Without its weights a strip has one entry; see `add_curvature`.
            width = STRIP if pair >= 0 else 1
            strips += [(k, j, min(width, end - j), pair) for j in range(begin, end, width)]
    table = np.array(strips, np.int32).reshape(-1, 4)
    # Threads of a warp take strips of one length and one kind, as far as possible.
    return np.ascontiguousarray(table[np.lexsort((table[:, 2], table[:, 3] >= 0))])


class Room(NamedTuple):
    """The sizes of a team's scratch arrays in shared memory.

    Attributes
    ----------
    tile : dyads of a tile
    block, size : entries of a block, and of its part that moves
    n_labels, n_directions : of the loss
    n_weighted, n_part, n_pairs : groups of a block with label weights, groups of the part, pairs of groups
    search : sizes of the other vectors of a search: of the block's mode, and of steps
    system : (n_lines, size) of gradient and curvature, or (1, 1) if they lie in global memory
    floats : single-precision numbers in all
    """

    tile: int
    block: int
    size: int
    n_labels: int
    n_directions: int
    n_weighted: int
    n_part: int
    n_pairs: int
    search: tuple[int, int]
    system: tuple[int, int]
    floats: int

    @classmethod
    def of(cls, specs: Any, planned: Any, driven: bool) -> "Room":
        """Return the room for a part of a block; `driven` : whether the team also searches, which takes a `System`."""
        block, size = planned.block_size, len(planned.part.entry)
        labels, directions = specs.structure.n_labels, specs.loss.n_directions
        n_weighted, n_part = planned.n_weighted, len(planned.part.group)
        n_pairs = 1 if planned.pairs is None else max(1, len(planned.pairs))
        search = (block, size) if driven else (1, 1)
        fixed = block + search[0] + 2 * search[1] + 3 * THREADS + labels * n_weighted + 1
        each = block + STRIP + 4 + (3 + directions) * labels + directions + (1 + directions) * n_part + n_pairs
        system = (1 + size, size)
        if not driven or fixed + system[0] * system[1] > SHARED_FLOATS - max(SHARED_FLOATS // 3, 2 * each):
            system = (1, 1)
        fixed += system[0] * system[1]
        tile = int(np.clip((SHARED_FLOATS - fixed) // each - 1, 1, MOST_TILE if driven else MOST_SUMMED_TILE))
        floats = fixed + each * (tile + 1)
        if floats > SHARED_FLOATS:
            raise InputError(
                f"engine='cuda' needs {floats:,} numbers of a GPU's shared memory for blocks of {block:,} weights and "
                f"{labels} labels: expected at most {SHARED_FLOATS:,}. Use a lower rank, solver='sgd' or engine='cpu'."
            )
        return cls(tile, block, size, labels, directions, n_weighted, n_part, n_pairs, search, system, floats)


class TeamTile(NamedTuple):
    """The dyads of a tile, a column each; see `sums.Gathered` and `sums.Work`.

    Attributes
    ----------
    label : (tile,) codes
    weight, value, total : (tile + 1,)
    partner : (block + STRIP, tile + 1) factors of partners
    s, g : (n_labels, tile + 1)
    """

    label: Any
    weight: Any
    value: Any
    total: Any
    partner: Any
    s: Any
    g: Any


class TeamWork(NamedTuple):
    """Scratch arrays of a team for the sums over dyads; see `sums.Work`. Column j of a tile belongs to one thread.

    Attributes
    ----------
    groups : the groups of the block
    relation : (1,) the relation of `E`
    E : (n_labels, n_groups), or (n_labels, 1) if no group needs its weights
    tile : the dyads of a tile
    C : curvature of the losses in the scores
    pull : (n_part, tile + 1)
    along : (n_directions, n_part, tile + 1)
    pair : (n_pairs, tile + 1) weight of each pair of groups
    scratch : (n_lanes,)
    """

    groups: Any
    relation: Any
    E: Any
    tile: TeamTile
    C: Curvature
    pull: Any
    along: Any
    pair: Any
    scratch: Any


class TeamSums(NamedTuple):
    """The loss of the dyads of entities, computed by teams; see `sums.EntitySums`.

    `of_nodes` : 1 for nodes, otherwise Absent: its type leaves what only nodes need out of other kernels.
    """

    specs: Any
    owned: Any
    blocks: Any
    data: Any
    prior: Any
    of_nodes: Any = ABSENT
    team: Any = SERIAL

    def sums_at(self, e: int, x: Array, part: TeamPart, curved: bool, out: Array, work: TeamWork) -> float:
        begin, last = self.owned.start[e], self.owned.start[e + 1]
        return team_pass(self, e, begin, last, x, part, CURVATURE if curved else VALUE, out, work)  # type: ignore[no-any-return]

    def has_self_link(self, e: int) -> bool:
        return False


@jitable
def team_pass(sums, e, begin, last, x, part, level, out, work):  # type: ignore[no-untyped-def]
    """Return the loss with block x of dyads of entity e, those at positions begin..last-1 of its order, to all lanes.

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
        n = tile_size(data.relation, owned.order, begin, last, work.tile.label.size - 1)
        wait(team)
        if first == 0:
            weights_of_relation(sums, relation_at(data.relation, owned.order[begin]), work)
        wait(team)
        for j in range(first, n, n_lanes):
            total += evaluate_dyad(sums, e, begin + j, j, x, part, level, work)
        wait(team)
        if level >= GRADIENT:
            add_gradient(team, n, part, out, work)
        if level == CURVATURE:
            add_curvature(team, n, part, out, work)
        begin += n
    return lane_sum(team, total)


@jitable
def weights_of_relation(sums, relation, work):  # type: ignore[no-untyped-def]
    """WRITE the label weights of a relation to work.E, unless they are there, or no group needs them."""
    if work.relation[0] != relation and work.E.shape[1] == work.groups.own.size:
        work.relation[0] = relation
        if sums.owned.role == Role.SHARED:
            shared_label_weights(sums.specs.structure, work.E)
        else:
            label_weights(sums.specs.structure, sums.blocks.shared[relation], work.E)


@jitable
def evaluate_dyad(sums, e, n, j, x, part, level, work):  # type: ignore[no-untyped-def]
    """Return the weighted loss of the dyad of entity e at position n of the order; it is column j of the tile."""
    structure, loss, data, blocks = sums.specs.structure, sums.specs.loss, sums.data, sums.blocks
    order, E = sums.owned.order[n : n + 1], work.E
    label, weight, value, total = (
        work.tile.label[j : j + 1],
        work.tile.weight[j : j + 1],
        work.tile.value[j : j + 1],
        work.tile.total[j : j + 1],
    )
    v, s, g = work.tile.partner[:, j : j + 1], work.tile.s[:, j : j + 1], work.tile.g[:, j : j + 1]
    gather_data(data, order, s, label, weight)
    if sums.owned.role == Role.ROW:
        gather_cols(structure, data, order, blocks, v, s)
    elif sums.owned.role == Role.COL:
        gather_rows(structure, data, order, blocks, v, s)
    elif sums.owned.role == Role.SHARED:
        gather_pairs(structure, data, order, blocks, v, s)
    else:
        gather_of_node(sums.of_nodes, sums.owned.first + e, structure, data, order, blocks, x, v, s)
    add_scores(1, work.groups, E, x, v, s, total, s)
    if level < CURVATURE:
        evaluate(loss, 1, label, s, g, value, total)
        if level == GRADIENT:
            for y in range(g.shape[0]):
                g[y, 0] *= weight[0]
            for p in range(part.group.size):
                project_group(1, work.groups.own[part.group[p]], part.group[p], E, g, work.pull[p, j : j + 1])
    else:
        C = Curvature(work.C.diagonal[:, j : j + 1], work.C.weight[:, j : j + 1], work.C.direction[:, :, j : j + 1])
        curvature(loss, 1, label, s, g, value, total, C)
        weigh_tile(data.weight, 1, weight, g, C)
        own, group = work.groups.own, part.group
        pull, along = work.pull[:, j : j + 1], work.along[:, :, j : j + 1]
        project(1, own, group, E, g, C.direction, pull, along)
        for m in range(part.pair.shape[0]):
            pair_weights(1, part.pair[m, 0], part.pair[m, 1], own, group, E, C, along, work.pair[m, j : j + 1])
    return value[0] * weight[0]


@read_if_present(lambda of_nodes, node, structure, data, order, blocks, x, v, s: None)
def gather_of_node(of_nodes, node, structure, data, order, blocks, x, v, s):  # type: ignore[no-untyped-def]
    """See `gather_nodes`; `x` : the block of the node."""
    gather_nodes(structure, data, order, blocks, node, x, v, s)


@jitable
def add_gradient(team, n, part, out, work):  # type: ignore[no-untyped-def]
    """ADD the gradient of a tile of n dyads to out[0].

    If there are more threads than entries, several share an entry: each adds up every m-th dyad.
    """
    size = part.entry.size
    m = max(1, lanes(team) // max(1, size))
    # The last threads, since the first ones have longer strips of the curvature.
    for i in range(lanes(team) - 1 - lane(team), m * size, lanes(team)):
        k, total = i % size, np.float32(0)
        v, pull = work.tile.partner[part.entry[k]], work.pull[part.of[k]]
        for d in range(i // size, n, m):
            total += pull[d] * v[d]
        if m == 1:
            out[0, k] += total
        else:
            work.scratch[i] = total
    if m > 1:
        wait(team)
        for k in range(lane(team), size, lanes(team)):
            total = out[0, k]
            for j in range(m):
                total += work.scratch[j * size + k]
            out[0, k] = total
        wait(team)


@jitable
def add_curvature(team, n, part, out, work):  # type: ignore[no-untyped-def]
    """ADD the curvature of a tile of n dyads to out[1:]."""
    for m in range(lane(team), part.strip.shape[0], lanes(team)):
        k, j, width, pair = part.strip[m, 0], part.strip[m, 1], part.strip[m, 2], part.strip[m, 3]
        left, right = work.tile.partner[part.entry[k]], part.entry[j]
        v0, v1, v2, v3 = (
            work.tile.partner[right],
            work.tile.partner[right + 1],
            work.tile.partner[right + 2],
            work.tile.partner[right + 3],
        )
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
                pair_weights(1, p, q, work.groups.own, part.group, work.E, C, work.along[:, :, d : d + 1], out_weight)
                a0 += out_weight[0] * left[d] * v0[d]
        out[1 + k, j] += a0
        if width > 1:
            out[1 + k, j + 1] += a1
        if width > 2:
            out[1 + k, j + 2] += a2
        if width > 3:
            out[1 + k, j + 3] += a3


class Solving(NamedTuple):
    """The task to move the blocks of entities towards their optimum, one entity for a team at a time.

    Attributes
    ----------
    sums, groups, part : see there
    X : (n, block size) blocks of the entities
    item : (m,) entities, those with the most dyads first
    scratch : (n_teams, 1 + size, size) for gradient and curvature, or Absent if they lie in shared memory
    steps : the stopping rule
    """

    sums: TeamSums
    groups: Any
    part: TeamPart
    X: Any
    item: Any
    scratch: Any
    steps: Steps

    def perform(self, n: int, sums: TeamSums, system: System, work: TeamWork) -> None:
        e = self.item[n]
        descend(sums, e, self.X[e], self.steps, self.part, system, work)


class Drawing(NamedTuple):
    """The task to draw a part of the blocks of those entities that have dyads.

    Attributes
    ----------
    sums, groups, part, X, item, scratch : see `Solving`
    key, number : key of the noise, and number of the part
    accepted : (n,) counts of accepted draws, to which kernels ADD
    """

    sums: TeamSums
    groups: Any
    part: TeamPart
    X: Any
    item: Any
    scratch: Any
    key: Any
    number: int
    accepted: Any

    def perform(self, n: int, sums: TeamSums, system: System, work: TeamWork) -> None:
        e = self.item[n]
        if sums.owned.start[e] < sums.owned.start[e + 1]:
            accepted = draw_block(sums, e, self.X[e], self.key, self.number, self.part, system, work)
            if accepted and lane(sums.team) == 0:
                self.accepted[e] += 1


class Summing(NamedTuple):
    """The task to compute partial sums, one piece of an owner's dyads for a team at a time.

    Attributes
    ----------
    sums, groups, part : see there
    X : (n, block size) blocks at which the sums are taken
    item : (n_pieces,) index in X of the block of each piece
    scratch : (n_pieces, 1, size) gradients, or (n_pieces, 1 + size, size) with curvatures
    bounds : (n_pieces, 2) first position in the order of `sums.owned`, and one past the last
    value : (n_pieces,) losses, in double precision
    level : what is computed
    """

    sums: TeamSums
    groups: Any
    part: TeamPart
    X: Any
    item: Any
    scratch: Any
    bounds: Any
    value: Any
    level: int

    def perform(self, n: int, sums: TeamSums, system: System, work: TeamWork) -> None:
        x, block = system.x, self.X[self.item[n]]
        for k in range(lane(sums.team), x.size, lanes(sums.team)):
            x[k] = block[k]
        wait(sums.team)
        begin, last = self.bounds[n, 0], self.bounds[n, 1]
        value = team_pass(sums, self.item[n], begin, last, x, self.part, self.level, self.scratch[n], work)
        if lane(sums.team) == 0:
            self.value[n] = value


@by_type
def perform(task: Any, n: int, sums: TeamSums, system: System, work: TeamWork) -> None:
    """Perform item n of a task."""
    task.perform(n, sums, system, work)


def with_team(sums, partial):  # type: ignore[no-untyped-def]
    """Return the sums with the team of this block."""
    return TeamSums(sums.specs, sums.owned, sums.blocks, sums.data, sums.prior, sums.of_nodes, Block(partial))


@read_if_present(lambda scratch, own: own)
def system_sums(scratch, own):  # type: ignore[no-untyped-def]
    """Return the table (1 + size, size) of gradient and curvature: in global memory, or `own` if that is absent."""
    return scratch[cuda.blockIdx.x]


@lru_cache
def kernel_of(room: Room) -> Any:
    """Return the kernel that performs tasks, for the sizes of a room.

    Sizes are constants of the kernel: with sizes that are not, addresses in shared memory take most of the registers.
    """
    block, labels, directions = room.block, room.n_labels, room.n_directions
    n_weighted, n_part, n_pairs, m = room.n_weighted, room.n_part, room.n_pairs, room.tile + 1
    n_vectors, (n_mode, n_step), (n_lines, n_sums) = block + STRIP, room.search, room.system

    @compile_kernel
    def kernel(task):  # type: ignore[no-untyped-def]
        partial = cuda.shared.array(THREADS, float64)
        x = cuda.shared.array(block, float32)
        mode = cuda.shared.array(n_mode, float32)
        d = cuda.shared.array(n_step, float32)
        z = cuda.shared.array(n_step, float32)
        own = cuda.shared.array((n_lines, n_sums), float32)
        scratch = cuda.shared.array(THREADS, float32)
        relation = cuda.shared.array(1, int32)
        E = cuda.shared.array((labels, n_weighted), float32)
        label = cuda.shared.array(m, int32)
        weight = cuda.shared.array(m, float32)
        value = cuda.shared.array(m, float32)
        total = cuda.shared.array(m, float32)
        v = cuda.shared.array((n_vectors, m), float32)
        s = cuda.shared.array((labels, m), float32)
        g = cuda.shared.array((labels, m), float32)
        diagonal = cuda.shared.array((labels, m), float32)
        bend = cuda.shared.array((directions, m), float32)
        direction = cuda.shared.array((directions, labels, m), float32)
        pull = cuda.shared.array((n_part, m), float32)
        along = cuda.shared.array((directions, n_part, m), float32)
        pair = cuda.shared.array((n_pairs, m), float32)
        C = Curvature(diagonal, bend, direction)
        tile = TeamTile(label, weight, value, total, v, s, g)
        work = TeamWork(task.groups, relation, E, tile, C, pull, along, pair, scratch)
        table = system_sums(task.scratch, own)
        system = System(x, mode, d, z, table, table[0], table[1:])
        sums = with_team(task.sums, partial)  # type: ignore[no-untyped-call]
        # Strips may read past the last entry; what they read does not count, but must be finite.
        for k in range(cuda.threadIdx.x, STRIP * m, THREADS):
            v[block + k // m, k % m] = 0
        for n in range(cuda.blockIdx.x, task.item.size, cuda.gridDim.x):
            perform(task, n, sums, system, work)
            wait(sums.team)

    return kernel


def to_device(bundle: Any) -> Any:
    """Return an array, or a bundle of arrays, on the device."""
    if isinstance(bundle, np.ndarray):
        return np.array(bundle) if SIMULATED else cuda.to_device(np.ascontiguousarray(bundle))
    if isinstance(bundle, tuple):
        parts = tuple(map(to_device, bundle))
        return bundle._make(parts) if hasattr(bundle, "_make") else parts
    return bundle


def fill(out: Any, array: Array) -> None:
    """Copy an array to one of the device, of the same shape and type."""
    if SIMULATED:
        out[...] = array
    else:
        out.copy_to_device(array)


def to_host(array: Any) -> Array:
    """Return a copy of a device's array on the host."""
    return array.copy() if SIMULATED else array.copy_to_host()  # type: ignore[no-any-return]


def n_multiprocessors() -> int:
    """Return the number of multiprocessors of the device."""
    return int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def copy_of(array: Any) -> Any:
    """Return a copy of a device's array, on the device."""
    if SIMULATED:
        return array.copy()
    copy = cuda.device_array_like(array)
    copy.copy_to_device(array)
    return copy


def new_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised array on the device."""
    return np.empty(shape, dtype) if SIMULATED else cuda.device_array(shape, dtype)


Buffer = Callable[[tuple[int, ...], Any], Any]
"""Returns an uninitialised array on the device, of a shape and a type; the next call may return the same one."""


def solve(sums: TeamSums, turns: Sequence[Any], planned: Any, steps: Steps, buffer: Buffer) -> None:
    """Move the blocks of entities towards their optimum.

    `turns` : entities (m,) that do not depend on each other, on the device, those with the most dyads first.
    """
    X = sums.blocks[Role(sums.owned.role).place]
    room, most, scratch = _driven(sums, turns, planned, buffer)
    for entity in turns:
        task = Solving(sums, planned.groups, planned.team_part, X, entity, scratch, steps)
        if entity.size:
            kernel_of(room)[min(entity.size, most), THREADS](task)


def draw(sums: TeamSums, turns: Sequence[Any], parts: Sequence[Any], key: Key, buffer: Buffer) -> Array:
    """Draw the blocks of entities, part by part; return the number (n,) of accepted parts of each entity.

    `turns` : see `solve`.
    """
    X = sums.blocks[Role(sums.owned.role).place]
    accepted = to_device(np.zeros(len(X), np.float32))
    for number, planned in enumerate(parts):
        room, most, scratch = _driven(sums, turns, planned, buffer)
        for entity in turns:
            task = Drawing(sums, planned.groups, planned.team_part, X, entity, scratch, key, number, accepted)
            if entity.size:
                kernel_of(room)[min(entity.size, most), THREADS](task)
    return to_host(accepted)


def _driven(sums: TeamSums, turns: Sequence[Any], planned: Any, buffer: Buffer) -> tuple[Room, int, Any]:
    """Return what updates take: the room of a team, the most teams at a time, and global memory."""
    room, most = Room.of(sums.specs, planned, True), max((turn.size for turn in turns), default=0)
    if room.system[0] > 1:
        return room, most, ABSENT
    most = min(most, MOST_SYSTEMS)
    return room, most, buffer((most, 1 + room.size, room.size), np.float32)


def sum_pieces(
    sums: TeamSums, X: Any, pieces: tuple[Any, Any], planned: Any, level: int, buffer: Buffer, known: dict[Room, Any]
) -> tuple[Any, Any]:
    """Begin to compute the losses (n,) of pieces and, by level, their gradients (n, 1, size), with curvatures below.

    `X` : (n_owners, block size), `pieces` : owner (n,) and bounds (n, 2) of each; all on the device, and results too.
    `known` : kernels for arguments of these types, to which this one is added.
    """
    room, n = Room.of(sums.specs, planned, False), len(pieces[0])
    lines = {VALUE: 0, GRADIENT: 1, CURVATURE: 1 + room.size}[level]
    value, out = buffer((n,), np.float64), buffer((n, max(1, lines), room.size), np.float32)
    task = Summing(sums, planned.groups, planned.team_part, X, pieces[0], out, pieces[1], value, level)
    if room not in known:
        # To find the types of so many arguments takes as long as to sum a million dyads.
        known[room] = kernel_of(room) if SIMULATED else kernel_of(room).specialize(task)
    known[room][n, THREADS](task)
    return value, out


_bound: set[Any] = set()


def bind_kernels() -> None:
    """Bind what kernels call, and was not bound before, to numba-cuda; the simulator runs it as it is."""
    if SIMULATED:
        return
    # A device has fast exponentials and logarithms of its own.
    native = {function: lambda *_, own=own: own for function, _, _, own in BY_PRECISION}
    special: dict[Any, Any] = {**native, over_root: lambda *_: times_inverse_root, with_team: lambda *_: with_team}
    for function, choose in {**BOUND, **special}.items():
        if function not in _bound:
            _bound.add(function)
            # A function that returns an array has to be inlined.
            inline = "always" if function in (with_team, system_sums) else "never"
            overload(function, strict=False, inline=inline)(choose)


bind_kernels()
