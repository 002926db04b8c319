"""SGD on a device: a warp of threads for each cell; its kernels, and how a block is divided among lanes.

**A lane is a model of smaller rank.** In every structure the latent score is a sum over the rank, so the rank is dealt
to the lanes of a warp: latent column k belongs to lane k modulo the number of lanes. Each lane copies its columns of
the blocks of a dyad to registers, as blocks of a structure of that smaller rank, and calls the kernels of structure
and loss as they are. Biases belong to one lane each and are zero in the others. So the scores of a dyad are the sum
over lanes, the gradient of a lane needs no other lane, and no kernel knows lanes. The sizes of a lane's blocks are
constants of a kernel: then its loops are unrolled, and blocks stay in registers.

**Cells wait for two others, not for a whole round.** Cell (p, q) of a round needs the blocks of groups p and q as
their last cells left them. Warps take cells by *ticket*, round after round, and wait until both groups are done with
the rounds before. The unfinished cell with the first ticket never waits, so there is no deadlock, whatever number of
warps a device runs at a time. The order of the steps of a group is fixed, so a seed gives the same bits.

**Visits.** The k-th visit of a cell with m dyads is at position (first + k step) modulo m. Offset and step are random
numbers of the epoch and the cell, the step without a common divisor with m, so no permutation has to be stored.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, float64, int32

from dyads.engine.bundles import ABSENT, relation_at, weigh
from dyads.engine.compiled import jitable
from dyads.engine.device import ALL_LANES, SIMULATED, bind_kernels, warp_sum
from dyads.engine.lanes import lane, lane_sum, lanes, wait
from dyads.engine.passes import SHARED_BATCH, Product, derivative, step
from dyads.model.loss import evaluate
from dyads.model.objective import slope as penalty_slope
from dyads.model.parameters import Layout
from dyads.model.streams import Key, words_of
from dyads.model.structure import free_labels, partner_col, partner_row, pull_shared, score, slopes

Array = np.ndarray[Any, Any]

LANES = 1 if SIMULATED else 32
"""Threads of a warp. In the simulator any number will do: a block then has one warp."""

WARPS = 1 if SIMULATED else 4
"""Warps of a block of threads."""

LINE = 1 if SIMULATED else 32
"""Numbers to a multiple of which the lines of tables are filled up: the 128 bytes that a warp reads at a time."""

VALUE, SQUARES = 0, 1
"""Lines of an entity's entry in a table: its block, and AdaGrad's sums of squared gradients."""

PADDING = np.float32(1)
"""Sum of squares of entries that do not exist: not zero, since steps are divided by its root."""

MOST_REGISTERS = 128
"""Most registers of a thread; 16 warps then run at a time on a multiprocessor.

Rank 32 and 5 labels take as many. With fewer registers more warps run, but some numbers are in memory. Sixteen warps
are no faster than twelve, since more of them wait for cells of others.
"""

SLICES, COLUMNS = (1, 1) if SIMULATED else (8, 32)
"""Threads that add up copies: `SLICES` strides through the copies, for each of `COLUMNS` consecutive entries."""

compile_descent = cuda.jit if SIMULATED else cuda.jit(max_registers=MOST_REGISTERS, fastmath=True)
"""Compiles the kernel of an epoch, with the device's fast division and root."""

compile_plain = cuda.jit
"""Compiles kernels whose time does not matter."""


class Warp(NamedTuple):
    """A team of the threads of a warp; see `lanes`.

    Attributes
    ----------
    slot : (LANES,) numbers by which threads of the simulator, which has no warps, speak to each other
    """

    slot: Any

    def lane(self) -> int:
        # Of unsigned numbers, so that it is known not to be negative.
        return np.int64(np.uint32(cuda.threadIdx.x) % np.uint32(LANES))  # type: ignore[return-value]

    def lanes(self) -> int:
        return LANES

    def lane_sum(self, x: float) -> float:
        return warp_total(self.slot, x)  # type: ignore[no-any-return]

    def team_dot(self, first: int, x: Array, y: Array) -> float:
        total = x[0] * 0
        for k in range(first + lane(self), x.size, LANES):
            total += x[k] * y[k]
        return warp_total(self.slot, total)  # type: ignore[no-any-return]

    def wait(self) -> None:
        wait_for_warp()


if SIMULATED:

    @jitable
    def warp_total(slot, x):  # type: ignore[no-untyped-def]
        """Return the sum of x over the lanes, to all of them."""
        slot[cuda.threadIdx.x] = x
        cuda.syncthreads()
        total = slot[0]
        for n in range(1, LANES):
            total = total + slot[n]
        cuda.syncthreads()
        return type(x)(total)

    @jitable
    def from_first(slot, x):  # type: ignore[no-untyped-def]
        """Return the integer x of the first lane, to all of them."""
        if cuda.threadIdx.x == 0:
            slot[0] = x
        cuda.syncthreads()
        total = int(slot[0])
        cuda.syncthreads()
        return total

    @jitable
    def wait_for_warp():  # type: ignore[no-untyped-def]
        """Wait until all lanes have come here."""
        cuda.syncthreads()

else:

    @jitable
    def warp_total(slot, x):  # type: ignore[no-untyped-def]
        """Return the sum of x over the lanes, to all of them."""
        return warp_sum(x)

    @jitable
    def from_first(slot, x):  # type: ignore[no-untyped-def]
        """Return the integer x of the first lane, to all of them."""
        return cuda.shfl_sync(ALL_LANES, x, 0)

    @jitable
    def wait_for_warp():  # type: ignore[no-untyped-def]
        """Wait until all lanes have come here."""
        cuda.syncwarp()


class Cut(NamedTuple):
    """Where a lane's part of an entity's block lies in a line of a table, by numbers that are constants of a kernel.

    The lines of latent columns come first, each of `width` numbers: line t has a column for each lane. The biases
    follow; bias j belongs to lane j modulo the number of lanes. A lane *holds* its own biases and its columns; its part
    of the block, which kernels of structures see, has all biases, of which those of other lanes are zero.

    Attributes
    ----------
    n_biases : biases, which are the first entries of a part
    n_held_biases : those that a lane holds, at most; they are the first entries that it holds
    n_columns : latent entries of a part, the others
    each, rank : latent columns of a lane, and of all lanes together
    width, n_lanes : see above
    """

    n_biases: int
    n_held_biases: int
    n_columns: int
    each: int
    rank: int
    width: int
    n_lanes: int


class Division(NamedTuple):
    """How blocks are divided among lanes, and where their entries lie in tables; without arrays, so it can be a key.

    Attributes
    ----------
    kind : the type of the structure, since tuples of two types may be equal
    structure : the structure of a lane, of smaller rank
    cut : how an entity's block is divided
    n_entity, n_shared : entries of a lane's part of an entity's and of a shared block
    replicated : first and last of those entries of a shared block that all lanes have
    entity_pitch, shared_pitch : length of the lines of the tables of entities and of shared blocks
    single : whether there is one relation
    """

    kind: Any
    structure: Any
    cut: Cut
    n_entity: int
    n_shared: int
    replicated: tuple[int, int]
    entity_pitch: int
    shared_pitch: int
    single: bool


class Places(NamedTuple):
    """Where the entries of blocks lie in tables.

    Attributes
    ----------
    read, write : (LANES, n_shared) of each lane's part of a shared block, or -1 for entries that a lane does not have;
        of entries that all lanes have, one lane writes each
    entity_place, shared_place : (size,) of the entries of a whole block
    """

    read: Any
    write: Any
    entity_place: Any
    shared_place: Any


def divide(layout: Layout) -> tuple[Division, Places]:
    """Divide the blocks of a layout among lanes."""
    structure = layout.structure
    part = structure._replace(rank=-(-structure.rank // LANES))  # type: ignore[attr-defined]
    wider = structure._replace(rank=structure.rank + 1)  # type: ignore[attr-defined]
    row, _, shared = layout.shapes
    n_biases, n_free = structure.n_bias * free_labels(structure), free_labels(structure)
    parts = [math.prod(shape[:-1]) for name, shape in row.items() if not name.endswith("bias")]
    width = max(LINE, LANES)
    n_held = -(-n_biases // LANES)
    cut = Cut(n_biases, n_held, part.rank * sum(parts), max(1, part.rank), structure.rank, width, LANES)  # type: ignore[attr-defined]
    entity_place = _places_of(cut)
    own = [shape for name, shape in shared.items() if name != "label_bias"]
    # A part of a shared block is dealt to lanes if it has an entry for each latent column.
    growing = [shape != other for shape, other in zip(own, wider.latent_shapes()[2].values(), strict=True)]
    write, everywhere, shared_place, n_used_shared = _dealt([(n_free,)], growing, own)
    read = np.where(everywhere >= 0, everywhere, write)
    first = int(np.argmax(everywhere[0] >= 0)) if (everywhere >= 0).any() else 0
    division = Division(
        type(structure), part, cut, max(1, cut.n_biases + cut.n_columns), write.shape[1],
        (first, first + int((everywhere[0] >= 0).sum())),
        -(-max(1, cut.n_columns * width + n_biases) // width) * width, -(-n_used_shared // LINE) * LINE,
        layout.n_relations == 1,
    )  # fmt: skip
    return division, Places(*(np.ascontiguousarray(x, np.int32) for x in (read, write, entity_place, shared_place)))


@jitable
def place_of(cut, own, k):  # type: ignore[no-untyped-def]
    """Return the place in a line of entry k of those that lane `own` holds; lines have room for what a lane lacks."""
    if k < cut.n_held_biases:
        return cut.n_columns * cut.width + k * cut.n_lanes + own
    return (k - cut.n_held_biases) * cut.width + own


@jitable
def is_owned(cut, own, k):  # type: ignore[no-untyped-def]
    """Whether there is an entry k of those that lane `own` holds."""
    if k < cut.n_held_biases:
        return own + cut.n_lanes * k < cut.n_biases
    return own + cut.n_lanes * ((k - cut.n_held_biases) % cut.each) < cut.rank


def _places_of(cut: Cut) -> Array:
    """Return the places (size,) in a line of the entries of a whole block, [biases | latent parts]."""
    bias, column = np.arange(cut.n_biases), np.arange(cut.rank)
    biases = [place_of(cut, j % cut.n_lanes, j // cut.n_lanes) for j in bias]
    # Column k of a part is number k // n_lanes of lane k % n_lanes.
    first = cut.n_held_biases + cut.each * np.arange(cut.n_columns // cut.each)[:, None]
    numbers, owners = first + column // cut.n_lanes, np.tile(column % cut.n_lanes, len(first))
    columns = [place_of(cut, own, k) for own, k in zip(owners, numbers.ravel(), strict=True)]
    return np.array(biases + columns, np.int64)


def _dealt(
    biases: Sequence[tuple[int, ...]], growing: Sequence[bool], latent: Sequence[tuple[int, ...]]
) -> tuple[Array, Array, Array, int]:
    """Deal the entries of a block, [biases | latent parts], to lanes.

    Returns the places (LANES, n) of the entries that a lane owns, those of entries that all lanes have, the places
    (size,) of all entries, and the length of a line. In tables, the latent columns that lanes own come first: the j-th
    one of all lanes is a line of `LINE` numbers or of as many as there are lanes.
    """
    lane_of, width = np.arange(LANES)[:, None], max(LINE, LANES)
    own, everywhere, place, first = [], [], [], 0
    total = sum(
        math.prod(shape[:-1]) * -(-shape[-1] // LANES) * width
        for shape, grows in zip(latent, growing, strict=True)
        if grows
    )
    last = total
    for shape, grows in zip([*biases, *latent], [False, *growing], strict=True):
        n, size = math.prod(shape[:-1]), shape[-1]
        if grows:
            each = -(-size // LANES)
            number = np.arange(n * each)
            k = lane_of + LANES * (number % max(1, each))
            own.append(np.where(k < size, first + number * width + lane_of, -1))
            everywhere.append(np.full((LANES, n * each), -1))
            column = np.arange(size)
            line = np.arange(n)[:, None] * each + column // LANES
            place.append((first + line * width + column % LANES).ravel())
            first += n * each * width
        else:
            entry = np.arange(n * size)
            own.append(np.where(entry % LANES == lane_of, last + entry, -1))
            shared = not (len(place) < len(biases))
            everywhere.append(np.broadcast_to(last + entry if shared else -1, (LANES, n * size)))
            place.append(last + entry)
            last += n * size
    own_table = np.concatenate(own, axis=1)
    if not own_table.shape[1]:
        # Kernels have no arrays of length zero.
        own_table, everywhere = np.full((LANES, 1), -1), [np.full((LANES, 1), -1)]
    return own_table, np.concatenate(everywhere, axis=1), np.concatenate(place), max(1, last)


class Tables(NamedTuple):
    """Blocks and sums of squared gradients on the device; an entity's line is (2, pitch), see `VALUE` and `SQUARES`.

    Attributes
    ----------
    row, col : (n + copies, 2, pitch); with one id set both are the same array. The copies of entities with many dyads
        come last
    shared : (n_groups n_relations + n_relations, 2, pitch) copies of the shared blocks, of each row group; then the
        shared blocks themselves
    """

    row: Any
    col: Any
    shared: Any

    def flat(self) -> "Tables":
        """Return the same tables, those of rows and columns as vectors; see `line_of`."""
        return Tables(self.row.ravel(), self.col.ravel(), self.shared)


class Shares(NamedTuple):
    """The penalty, divided among dyads; see `passes.Decay`. Strengths and centres are in the places of tables.

    Attributes
    ----------
    row, col, shared : (n + copies,), (n + copies,), (n_relations,)
    row_l2, col_l2, shared_l2 : (pitch,) each
    centre : (n_relations, pitch)
    """

    row: Any
    col: Any
    shared: Any
    row_l2: Any
    col_l2: Any
    shared_l2: Any
    centre: Any


class Progress(NamedTuple):
    """How far an epoch is; zero at its start.

    Attributes
    ----------
    ticket : (n_phases,) tickets taken
    row, col : (n_groups,) rounds that a group is done with; with one id set both are the same array
    value : (n_groups,) sums of losses of the cells of a row group, in double precision
    row_visits, col_visits : (n_phases, copies) dyads of each copy of an entity with many dyads
    shared_visits : (n_phases, n_groups) dyads of each copy of the shared blocks
    pulled : (n_groups n_relations, pitch) gradients by copies of shared blocks since their last step
    share : (n_groups n_relations,) shares of their penalties since then
    """

    ticket: Any
    row: Any
    col: Any
    value: Any
    row_visits: Any
    col_visits: Any
    shared_visits: Any
    pulled: Any
    share: Any


class Pace(NamedTuple):
    """Which cells a launch visits, and how.

    Attributes
    ----------
    phase : number of the phase: rounds after whose last the means of copies are taken
    first, last : its rounds
    shift : shift of the epoch's first round; see `round_pair`
    n_groups : number of groups of rows, and of columns
    n_rows, n_cols : numbers of entities; larger codes are those of copies
    rate : step size
    key : key of the order of visits in cells
    """

    phase: int
    first: int
    last: int
    shift: int
    n_groups: int
    n_rows: int
    n_cols: int
    rate: Any
    key: Key


@jitable
def partner_group(one_set, p, number, n_groups):  # type: ignore[no-untyped-def]
    """Return the group that row group p meets in a round: p + number, or with one id set number - p, modulo n."""
    return (number + n_groups - p) % n_groups if one_set else (p + number) % n_groups


@jitable
def visits_of(key, cell, m):  # type: ignore[no-untyped-def]
    """Return position and step of the visits of a cell with m > 0 dyads; see the top of this module."""
    a, b, _, _ = words_of(key, cell, 0, 0)
    # A device divides numbers of 32 bits several times faster.
    m = np.uint32(m)
    first, along = np.uint32(a) % m, 1 + np.uint32(b) % m
    while common_divisor(np.uint32(along), m) > 1:
        along += 1
    return np.int64(first), np.int64(along % m)


@jitable
def common_divisor(a, b):  # type: ignore[no-untyped-def]
    """Return the greatest common divisor of two positive integers of 32 bits."""
    while b > 0:
        a, b = b, np.uint32(a % b)
    return a


@jitable
def line_of(entity, pitch):  # type: ignore[no-untyped-def]
    """Return where the line of an entity begins in a flat table; `pitch` : length of a line of a block.

    The places of its entries differ from it by constants of the kernel and the number of the lane. They are not
    negative, and a compiler that knows that computes one address for all of them.
    """
    return np.int64(np.uint32(entity)) * (2 * pitch)


@jitable
def load_held(table, first, cut, own, padding, held):  # type: ignore[no-untyped-def]
    """WRITE what a lane holds of a block, which begins at `first`; entries that it lacks are `padding`."""
    for k in range(held.size):
        # Every lane reads, so that there is no branch.
        x = table[first + place_of(cut, own, k)]
        held[k] = x if is_owned(cut, own, k) else padding


@jitable
def store_held(held, cut, own, table, first):  # type: ignore[no-untyped-def]
    """WRITE what a lane holds of a block to a table, from `first` on."""
    for k in range(held.size):
        if is_owned(cut, own, k):
            table[first + place_of(cut, own, k)] = held[k]


@jitable
def fill_part(held, cut, own, part):  # type: ignore[no-untyped-def]
    """WRITE a lane's part of a block, given what it holds."""
    for j in range(cut.n_biases):
        part[j] = held[j // cut.n_lanes] if j % cut.n_lanes == own else np.float32(0)
    for j in range(cut.n_columns):
        part[cut.n_biases + j] = held[cut.n_held_biases + j]


@jitable
def held_derivative(g, cut, own, held):  # type: ignore[no-untyped-def]
    """WRITE the gradient by what a lane holds, given that by its part; `g` : a `Product`."""
    for k in range(cut.n_held_biases):
        held[k] = np.float32(0)
    for j in range(cut.n_biases):
        if j % cut.n_lanes == own:
            held[j // cut.n_lanes] = derivative(g, j)
    for j in range(cut.n_columns):
        held[cut.n_held_biases + j] = derivative(g, cut.n_biases + j)


@jitable
def load(line, place, padding, out):  # type: ignore[no-untyped-def]
    """WRITE a lane's entries of the line of a shared block; entries that the lane does not have are `padding`."""
    for j in range(out.size):
        k = place[j]
        # Every lane reads, so that there is no branch; the first place is in memory that others read anyway.
        x = line[max(k, 0)]
        out[j] = x if k >= 0 else padding


@jitable
def store(x, place, line):  # type: ignore[no-untyped-def]
    """WRITE a lane's entries to the line of a shared block."""
    for j in range(x.size):
        k = place[j]
        if k >= 0:
            line[k] = x[j]


class SharedPart(NamedTuple):
    """A lane's part of a shared block, while it takes a step.

    Attributes
    ----------
    h, h2, gh : (n_shared,) block, sums of squares and gradient
    l2 : (n_shared,) strengths of the penalty
    centre : (1, n_shared) value that the block is shrunk towards
    write : (n_shared,) places of the entries that the lane owns
    """

    h: Any
    h2: Any
    gh: Any
    l2: Any
    centre: Any
    write: Any


@jitable
def leave_relation(team, line, gh, share, write, progress):  # type: ignore[no-untyped-def]
    """ADD the gradient and the share of the penalty of a copy of a shared block to those since its last step."""
    for j in range(gh.size):
        if write[j] >= 0:
            progress.pulled[line, write[j]] += gh[j]
    if lane(team) == 0:
        progress.share[line] += share
    wait(team)


@jitable
def take_pulled(pulled, write, gh):  # type: ignore[no-untyped-def]
    """WRITE the gradient since the last step to `gh`, and zero in its place."""
    load(pulled, write, np.float32(0), gh)
    for j in range(gh.size):
        if write[j] >= 0:
            pulled[write[j]] = 0


@jitable
def move_shared(table, line, shares, relation, rate, share, part):  # type: ignore[no-untyped-def]
    """Take an AdaGrad step of a copy of the shared block of a relation."""
    block, squares = table[line, VALUE], table[line, SQUARES]
    load(block, part.write, np.float32(0), part.h)
    load(squares, part.write, PADDING, part.h2)
    load(shares.shared_l2, part.write, np.float32(0), part.l2)
    load(shares.centre[relation], part.write, np.float32(0), part.centre[0])
    step(part.h, part.centre, 0, part.gh, part.h2, rate, share, part.l2)
    store(part.h, part.write, block)
    store(part.h2, part.write, squares)


@jitable
def next_ticket(team, ticket, phase):  # type: ignore[no-untyped-def]
    """Take the next ticket of a phase, for all lanes."""
    number = np.int32(0)
    if lane(team) == 0:
        number = cuda.atomic.add(ticket, phase, np.int32(1))
    return from_first(team.slot, number)


@jitable
def await_rounds(team, done, group, number):  # type: ignore[no-untyped-def]
    """Wait until a group is done with all rounds before `number`."""
    if lane(team) == 0:
        while cuda.atomic.add(done, group, np.int32(0)) < number:
            pass


@lru_cache
def descent_kernel(division: Division) -> Any:
    """Return the kernel of a phase of an epoch, `phase(loss, data, start, tables, shares, places, progress, pace)`."""
    _, part, cut, n_entity, n_shared, (first_replicated, last_replicated), pitch, _, single = division
    n_labels, one_set, n_slots, n_held = part.n_labels, part.one_set, LANES, max(1, cut.n_held_biases + cut.n_columns)

    @compile_descent
    def kernel(loss, data, start, tables, shares, places, progress, pace):  # type: ignore[no-untyped-def]
        slot = cuda.shared.array(n_slots, float64)
        # In registers they would leave room for fewer warps.
        row_l2 = cuda.shared.array(pitch, float32)
        col_l2 = cuda.shared.array(pitch, float32)
        a, b = cuda.local.array(n_entity, float32), cuda.local.array(n_entity, float32)
        va, vb = cuda.local.array((n_entity, 1), float32), cuda.local.array((n_entity, 1), float32)
        slope = cuda.local.array(n_entity, float32)
        held_a, held_b = cuda.local.array(n_held, float32), cuda.local.array(n_held, float32)
        a2, b2 = cuda.local.array(n_held, float32), cuda.local.array(n_held, float32)
        ga, gb = cuda.local.array(n_held, float32), cuda.local.array(n_held, float32)
        a_l2, b_l2 = cuda.local.array(n_held, float32), cuda.local.array(n_held, float32)
        h, h2 = cuda.local.array(n_shared, float32), cuda.local.array(n_shared, float32)
        gh, h_l2 = cuda.local.array(n_shared, float32), cuda.local.array(n_shared, float32)
        centre = cuda.local.array((1, n_shared), float32)
        # Losses look up the label's score, so theirs lie in memory; these stay in registers.
        s, g = cuda.local.array((n_labels, 1), float32), cuda.local.array((n_labels, 1), float32)
        own_s, pull = cuda.local.array(n_labels, float32), cuda.local.array(n_labels, float32)
        value, unused = cuda.local.array(1, float32), cuda.local.array(1, float32)
        label = cuda.local.array(1, int32)
        team = Warp(slot)
        own = lane(team)
        read, write = places.read[own], places.write[own]
        shared = SharedPart(h, h2, gh, h_l2, centre, write)
        for k in range(cuda.threadIdx.x, pitch, cuda.blockDim.x):
            row_l2[k], col_l2[k] = shares.row_l2[k], shares.col_l2[k]
        cuda.syncthreads()
        n_relations = shares.shared.size
        n_tickets = (pace.last - pace.first) * pace.n_groups
        while True:
            ticket = next_ticket(team, progress.ticket, pace.phase)
            if ticket >= n_tickets:
                break
            number, p = pace.first + ticket // pace.n_groups, ticket % pace.n_groups
            q = partner_group(one_set, p, number + pace.shift, pace.n_groups)
            if one_set and q < p:
                continue
            await_rounds(team, progress.row, p, number)
            await_rounds(team, progress.col, q, number)
            wait(team)
            cuda.threadfence()
            cell = p * pace.n_groups + q
            begin = start[cell]
            m = start[cell + 1] - begin
            total, current, n_batch, share = 0.0, -1, 0, np.float32(0)
            if m > 0:
                at, along = visits_of(pace.key, cell, m)
                r, c, y = data.row[begin + at], data.col[begin + at], data.label[begin + at]
            for n in range(m):
                i = begin + at
                at += along
                at -= m if at >= m else 0
                row, col = r, c
                label[0] = y
                # The codes of the next dyad are read while this one is computed.
                r, c, y = data.row[begin + at], data.col[begin + at], data.label[begin + at]
                t = relation_at(data.relation, i)
                row_line, col_line = line_of(row, pitch), line_of(col, pitch)
                load_held(tables.row, row_line + VALUE * pitch, cut, own, np.float32(0), held_a)
                load_held(tables.col, col_line + VALUE * pitch, cut, own, np.float32(0), held_b)
                load_held(tables.row, row_line + SQUARES * pitch, cut, own, PADDING, a2)
                load_held(tables.col, col_line + SQUARES * pitch, cut, own, PADDING, b2)
                fill_part(held_a, cut, own, a)
                fill_part(held_b, cut, own, b)
                row_share, col_share = shares.row[row], shares.col[col]
                if t != current:
                    if current >= 0:
                        for j in range(first_replicated, last_replicated):
                            gh[j] = lane_sum(team, gh[j])
                        leave_relation(team, p * n_relations + current, gh, share, write, progress)
                    for j in range(n_shared):
                        gh[j] = np.float32(0)
                    share = np.float32(0)
                    load(tables.shared[p * n_relations + t, VALUE], read, np.float32(0), h)
                    current = t
                for k in range(n_labels):
                    own_s[k] = np.float32(0)
                score(part, a, b, h, own_s)
                for k in range(n_labels):
                    s[k, 0] = lane_sum(team, own_s[k])
                evaluate(loss, 1, label, s, g, value, unused)
                total += weigh(data.weight, i, value[0])
                for k in range(n_labels):
                    pull[k] = weigh(data.weight, i, g[k, 0])
                partner_row(part, b, va, 0)
                partner_col(part, a, vb, 0)
                slopes(part, h, pull, slope)
                pull_shared(part, a, b, h, pull, gh)
                share += weigh(data.weight, i, shares.shared[t])
                held_derivative(Product(slope, va), cut, own, ga)
                held_derivative(Product(slope, vb), cut, own, gb)
                load_held(row_l2, 0, cut, own, np.float32(0), a_l2)
                step(held_a, ABSENT, 0, ga, a2, pace.rate, weigh(data.weight, i, row_share), a_l2)
                if one_set and row == col:
                    # In a self-link both blocks are the same: the second step begins where the first one ended.
                    for k in range(n_held):
                        held_b[k], b2[k] = held_a[k], a2[k]
                load_held(col_l2, 0, cut, own, np.float32(0), b_l2)
                step(held_b, ABSENT, 0, gb, b2, pace.rate, weigh(data.weight, i, col_share), b_l2)
                store_held(held_a, cut, own, tables.row, row_line + VALUE * pitch)
                store_held(a2, cut, own, tables.row, row_line + SQUARES * pitch)
                store_held(held_b, cut, own, tables.col, col_line + VALUE * pitch)
                store_held(b2, cut, own, tables.col, col_line + SQUARES * pitch)
                if own == 0:
                    if row >= pace.n_rows:
                        progress.row_visits[pace.phase, row - pace.n_rows] += 1
                    if col >= pace.n_cols:
                        progress.col_visits[pace.phase, col - pace.n_cols] += 1
                n_batch += 1
                if n_batch >= SHARED_BATCH or n == m - 1:
                    n_batch = 0
                    # Entries that all lanes have are summed over lanes; those of one lane are not.
                    for j in range(first_replicated, last_replicated):
                        gh[j] = lane_sum(team, gh[j])
                    if single:
                        move_shared(tables.shared, p, shares, 0, pace.rate, share, shared)
                    else:
                        leave_relation(team, p * n_relations + current, gh, share, write, progress)
                        for u in range(n_relations):
                            line = p * n_relations + u
                            share = progress.share[line]
                            wait(team)
                            if share > 0:
                                take_pulled(progress.pulled[line], write, gh)
                                move_shared(tables.shared, line, shares, u, pace.rate, share, shared)
                                if own == 0:
                                    progress.share[line] = 0
                    wait(team)
                    current = -1
            if own == 0:
                progress.value[p] += total
                progress.shared_visits[pace.phase, p] += m
            wait(team)
            cuda.threadfence()
            if own == 0:
                cuda.atomic.max(progress.row, p, np.int32(number + 1))
                cuda.atomic.max(progress.col, q, np.int32(number + 1))

    return kernel


@compile_plain
def sort_cells(start, order):  # type: ignore[no-untyped-def]
    """Sort the positions of each cell; a warp takes a cell."""
    slot = cuda.shared.array(LANES, float64)
    team = Warp(slot)
    n_warps = cuda.gridDim.x * WARPS
    for cell in range(cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES, start.size - 1, n_warps):
        sort_numbers(team, start[cell], start[cell + 1] - start[cell], order)


@jitable
def sort_numbers(team, begin, n, x):  # type: ignore[no-untyped-def]
    """Sort x[begin:begin + n] by Batcher's merge exchange, whose steps are independent (Knuth, volume 3, 5.2.2 M)."""
    top = 1
    while 2 * top < n:
        top *= 2
    p = top if n > 1 else 0
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            for k in range(begin + lane(team), begin + n - d, lanes(team)):
                if (k - begin) & p == r and x[k] > x[k + d]:
                    x[k], x[k + d] = x[k + d], x[k]
            wait(team)
            d = q - p
            q //= 2
            r = p
        p //= 2


class Copies(NamedTuple):
    """Copies of blocks, which cells of a phase move independently, and of which then the mean is taken.

    Attributes
    ----------
    owner : (n,) lines of the table that receive the means
    start : (n + 1,) the copies of the block at line owner[e] are copy[start[e]:start[e + 1]]
    copy : (m,) lines of the copies
    counter : (m,) place of each copy in the counts of visits
    """

    owner: Any
    start: Any
    copy: Any
    counter: Any


@compile_plain
def average(table, copies, visits, phase):  # type: ignore[no-untyped-def]
    """Replace copies by their mean, weighted by the dyads of the phase; copies without dyads follow the others."""
    partial = cuda.shared.array((SLICES, COLUMNS), float64)
    column, slice_, pitch = cuda.threadIdx.x % COLUMNS, cuda.threadIdx.x // COLUMNS, table.shape[2]
    e = cuda.blockIdx.x
    first, last = copies.start[e], copies.start[e + 1]
    weight = 0.0
    for m in range(first, last):
        weight += visits[phase, copies.counter[m]]
    if weight > 0:
        for chunk in range(0, 2 * pitch, COLUMNS):
            k = chunk + column
            total = 0.0
            if k < 2 * pitch:
                for m in range(first + slice_, last, SLICES):
                    total += visits[phase, copies.counter[m]] * float(table[copies.copy[m], k // pitch, k % pitch])
            partial[slice_, column] = total
            cuda.syncthreads()
            total = 0.0
            for n in range(SLICES):
                total += partial[n, column]
            cuda.syncthreads()
            if k < 2 * pitch:
                mean = np.float32(total / weight)
                if slice_ == 0:
                    table[copies.owner[e], k // pitch, k % pitch] = mean
                for m in range(first + slice_, last, SLICES):
                    table[copies.copy[m], k // pitch, k % pitch] = mean


@compile_plain
def spread(table, copies):  # type: ignore[no-untyped-def]
    """Give copies the values of their owners."""
    e, size = cuda.blockIdx.x, table.shape[1] * table.shape[2]
    for n in range(cuda.threadIdx.x, (copies.start[e + 1] - copies.start[e]) * size, cuda.blockDim.x):
        m, k = copies.start[e] + n // size, n % size
        i, j = k // table.shape[2], k % table.shape[2]
        table[copies.copy[m], i, j] = table[copies.owner[e], i, j]


@compile_plain
def pack(flat, place, table, line, which):  # type: ignore[no-untyped-def]
    """WRITE blocks, which follow each other in `flat`, to a table from `line` on."""
    size = place.size
    for i in range(cuda.grid(1), flat.size, cuda.gridsize(1)):
        table[line + i // size, which, place[i % size]] = flat[i]


@compile_plain
def unpack(table, line, which, place, flat):  # type: ignore[no-untyped-def]
    """WRITE blocks of a table from `line` on to `flat`."""
    size = place.size
    for i in range(cuda.grid(1), flat.size, cuda.gridsize(1)):
        flat[i] = table[line + i // size, which, place[i % size]]


@compile_plain
def survey(flat, scale, strength, centre, value, strange):  # type: ignore[no-untyped-def]
    """WRITE each block of threads' share of the penalty of blocks, and of how many numbers are not finite.

    `flat` : (n size,) blocks, `scale` : (n,), `strength` : (size,), `centre` : (n, size), or (1, size) for all,
    `value`, `strange` : (n_warps,). A block of threads is one warp.
    """
    team, size = Warp(cuda.shared.array(LANES, float64)), strength.size
    total, n_strange = 0.0, 0.0
    for i in range(cuda.grid(1), flat.size, cuda.gridsize(1)):
        n, k = i // size, i % size
        x = float(flat[i])
        if not abs(x) < math.inf:
            n_strange += 1.0
        d = x - centre[n % centre.shape[0], k]
        total += 0.5 * d * penalty_slope(d, strength[k], scale[n])
    total, n_strange = lane_sum(team, total), lane_sum(team, n_strange)
    if cuda.threadIdx.x == 0:
        value[cuda.blockIdx.x], strange[cuda.blockIdx.x] = total, n_strange


bind_kernels()
