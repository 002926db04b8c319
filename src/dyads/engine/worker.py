"""What workers of a cluster do: pure functions of shards, which they read themselves, and of blocks that they get.

A worker reads the shards of the CPU engine and sums the same tasks of them; so the bits agree, and a task that is lost
is computed again elsewhere. Shards stay in the process between sweeps.
"""

import platform
import socket
import time
import zlib
from collections import OrderedDict
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import dyads
from dyads.data.dyads import Dyads
from dyads.data.remote import is_remote
from dyads.data.store import reached, read_lines
from dyads.engine import compiled
from dyads.engine.bundles import BlockWork, Data, Owned, Specs, TileWork, read_only
from dyads.engine.entity import Steps, draw_shard, solve_shard
from dyads.engine.orders import Bounds, Shard, in_order
from dyads.engine.passes import col_pass, loss_pass, row_pass
from dyads.engine.sums import EntitySums, Part, Prior, entity_pass
from dyads.errors import ClusterError, StoreError
from dyads.model.loss import Log
from dyads.model.parameters import Blocks, Role
from dyads.model.streams import Key, Stream
from dyads.model.structure import Bilinear

Array = np.ndarray[Any, Any]

KEPT_BYTES = 2**30
"""Bytes of shards that a worker keeps; dyads mapped from disk take no memory of its own."""


class Lines(NamedTuple):
    """Consecutive dyads of an order of a store.

    Attributes
    ----------
    store, order : where the store lies, and the folder of the order in it, "" for that of the tables
    columns : what the dyads have
    begin, end : positions in the order
    checksum : CRC-32 of the columns, one after the other: a worker that reads other dyads says so
    sizes : numbers of rows, columns, labels and relations
    """

    store: str
    order: str
    columns: tuple[str, ...]
    begin: int
    end: int
    checksum: int
    sizes: tuple[int, int, int, int]


class Owners(NamedTuple):
    """Owners of a shard with all their dyads: what a task works on.

    Attributes
    ----------
    lines : the dyads of the shard
    role : of the owners
    shard : codes of the first owner of the shard, and one past the last
    bounds : first owner of the task, and one past the last, relative to the shard
    """

    lines: Lines
    role: Role
    shard: Bounds
    bounds: Bounds


class Machine(NamedTuple):
    """What bits depend on: versions of libraries, and the processor; and the name of the machine."""

    name: str
    versions: tuple[str, ...]
    processor: str


@cache
def machine() -> Machine:
    """Describe this machine. Numba's matrix products are those of SciPy's BLAS."""
    from llvmlite import binding

    libraries = [f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy", "scipy")]
    versions = (
        f"dyads {dyads.__version__} ({compiled.SOURCES[:8]})",
        *libraries,
        f"Python {platform.python_version()}",
    )
    return Machine(socket.gethostname(), versions, binding.get_host_cpu_name())


_kept: "OrderedDict[Any, tuple[Any, int]]" = OrderedDict()
"""Shards of rows and columns, and runs of dyads, each with its bytes; none of them holds another."""


def _keep(key: Any, make: Any) -> Any:
    """Return what `make` returns, the first time, with its size; what was not used for longest is dropped."""
    if key not in _kept:
        _kept[key] = make()
        while len(_kept) > 1 and sum(size for _, size in _kept.values()) > KEPT_BYTES:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key][0]


def dyads_of(lines: Lines) -> Dyads:
    """Return the dyads, read when first asked for."""
    return _keep(lines, lambda: _read(lines))  # type: ignore[no-any-return]


def _read(lines: Lines) -> tuple[Dyads, int]:
    """Read dyads; return them and the bytes that they take in memory."""
    columns = read_lines(lines.store, lines.order, lines.columns, lines.begin, lines.end, lines.checksum)
    rows, cols, labels, relations = lines.sizes
    dyads = Dyads(
        columns["row"], columns["col"], columns["label"], columns.get("weight"), rows, cols, labels,
        columns.get("relation"), relations,
    )  # fmt: skip
    return dyads, sum(column.nbytes for column in columns.values()) if is_remote(lines.store) else 0


def shard_of(owners: Owners) -> Shard:
    """Return the owners of a task as a shard; it shares the dyads of the whole shard, which is kept."""

    def read() -> tuple[Shard, int]:
        (dyads, size), (first, last) = _read(owners.lines), owners.shard
        owner = dyads.col if owners.role == Role.COL else dyads.row
        start = np.searchsorted(owner, np.arange(first, last + 1))
        shard = Shard(owners.role, first, start, _identity(len(dyads)), dyads)
        # The shard keeps its order by relation, eight bytes a dyad.
        by_relation = 8 * len(dyads) if dyads.relation is not None and owners.role == Role.ROW else 0
        return shard, size + start.nbytes + by_relation

    whole: Shard = _keep((owners.lines, owners.shard, owners.role), read)
    first, last = owners.bounds
    if (first, last) == (0, len(whole)):
        return whole
    return replace(whole, first=whole.first + first, start=whole.start[first : last + 1])


def _identity(n: int) -> Array:
    """Return the positions 0..n-1: all shards share one array."""
    if len(_positions[0]) < n:
        _positions[0] = np.arange(n)
    return _positions[0][:n]


_positions = [np.zeros(0, np.int64)]


class _Lent:
    """The memory of an array, lent as if it could be written to."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def lent(blocks: Blocks) -> Blocks:
    """Return blocks that Ray shares, which are read-only, with the type of those for which kernels are compiled.

    Passes only read the blocks of others; a copy for each worker process would take the memory of all blocks again.
    """
    return Blocks(*(np.asarray(_Lent(block)) for block in blocks))


def own(arrays: Any) -> Any:
    """Return a bundle with copies of its arrays, which can be written to."""
    return arrays._replace(**{k: np.array(v) for k, v in arrays._asdict().items() if isinstance(v, np.ndarray)})


# --------------------------------------------------------------------------------------------------------------- tasks


class Update(NamedTuple):
    """A task that solves for the blocks of owners, or draws them.

    Attributes
    ----------
    owners : whose blocks
    X : (n, size) their blocks
    prior : theirs, `packed`
    moved : ranges of owners to update, relative to the first; the others keep their blocks
    """

    owners: Owners
    X: Array
    prior: Prior
    moved: list[Bounds]


def packed(prior: Prior) -> Prior:
    """Return a prior with one line for all entities, if they are alike: half of what a task is sent."""
    alike = (prior.centre == prior.centre[0]).all() and (prior.scale == prior.scale[0]).all()
    return prior.of(slice(0, 1)) if alike else prior


def solve(specs: Specs, blocks: Blocks, task: Update, steps: Steps) -> tuple[Array]:
    """Return the blocks of owners, moved by Newton steps."""
    return (solve_shard(_sums(specs, blocks, task), task.X, task.moved, steps, in_order),)


def draw(specs: Specs, blocks: Blocks, task: Update, key: Key) -> tuple[Array, Array]:
    """Return the blocks of owners, drawn, and acceptance rates."""
    return draw_shard(_sums(specs, blocks, task), task.X, task.moved, key, in_order)


def _sums(specs: Specs, blocks: Blocks, task: Update) -> EntitySums:
    shard, prior = shard_of(task.owners), own(task.prior)
    if len(prior.scale) < len(shard):
        prior = prior._replace(scale=prior.scale.repeat(len(shard)), centre=prior.centre.repeat(len(shard), axis=0))
    return EntitySums(specs, shard.owned, blocks, Data.of(shard.dyads, np.float64, None), prior)


class Evaluation(NamedTuple):
    """Where the loss of a relation's dyads is evaluated: at the shared block x, with curvature or not."""

    t: int
    x: Array
    part: Part
    curved: bool


def shared_sums(
    specs: Specs, blocks: Blocks, parts: list[tuple[Owners, list[Bounds]]], prior: Prior, at: Evaluation
) -> list[tuple[float, Array]]:
    """Return the loss of each task of a relation, with gradient and curvature; see `sums.SharedSums`.

    `parts` : shards of rows, and the bounds of the tasks among the dyads of the relation.
    """
    at, prior = at._replace(x=np.array(at.x), part=own(at.part)), own(prior)
    results = []
    for owners, tasks in parts:
        shard = shard_of(owners)
        data = Data.of(shard.dyads, np.float64, None)
        for bounds in tasks:
            owned = Owned(int(Role.SHARED), at.t, np.array(bounds), shard.by_relation.order)
            sums = EntitySums(specs, owned, blocks, data, prior)
            size = len(at.part.entry) if at.curved else 0
            out = np.empty((1 + size, size))
            value = entity_pass(sums, 0, at.x, at.part, at.curved, out, sums.work(sums.groups, at.part))
            results.append((float(value), out))
    return results


def losses(specs: Specs, blocks: Blocks, lines: Lines, tasks: list[Bounds]) -> list[float]:
    """Return the loss of each range of dyads; `tasks` : relative to the first."""
    data = Data.of(dyads_of(lines), blocks.row.dtype, None)
    work = TileWork.of(specs.structure.n_labels, blocks.row.dtype)
    return [float(loss_pass(specs, blocks, data, bounds, work)) for bounds in tasks]


def row_gradients(
    specs: Specs, blocks: Blocks, owners: Owners, tasks: list[Bounds]
) -> tuple[list[float], Array, Array]:
    """Return the loss of each task of rows, the gradients by their blocks, and those of each task by shared blocks."""
    shard, dtype = shard_of(owners), blocks.row.dtype
    rows = np.zeros((len(shard), blocks.row.shape[1]), dtype)
    shared = np.zeros((len(tasks), *blocks.shared.shape), dtype)
    data, kept = Data.of(shard.dyads, dtype, None), np.empty((0, specs.structure.n_labels), dtype)
    values = []
    for out, bounds in zip(shared, tasks, strict=True):
        scratch = BlockWork.of(rows.shape[1], dtype)
        values.append(float(row_pass(specs, blocks, data, shard.owned, bounds, kept, scratch, rows, out)))
    return values, rows, shared


def col_gradients(specs: Specs, blocks: Blocks, owners: Owners, stored: bool) -> tuple[Array]:
    """Return the gradients by the blocks of columns.

    `stored` : whether score gradients are those of a pass by row, as if they had been stored; else they are computed in
    the pass by column. The two differ in rounding.
    """
    shard, dtype, n_labels = shard_of(owners), blocks.col.dtype, specs.structure.n_labels
    cols, kept = np.zeros((len(shard), blocks.col.shape[1]), dtype), np.empty((0, n_labels), dtype)
    place = np.empty(0, np.int64)
    if stored:
        first, last = int(shard.start[0]), int(shard.start[-1])
        some = shard.dyads.take(slice(first, last))
        order = np.argsort(some.row, kind="stable")
        by_row, place, kept = some.take(order), np.empty(last, np.int64), np.empty((last - first, n_labels), dtype)
        place[first + order] = np.arange(last - first)
        rows, start = np.unique(by_row.row, return_index=True)
        among = blocks._replace(row=blocks.row[rows])
        owned = Owned(int(Role.ROW), 0, np.append(start, len(by_row)), np.arange(len(by_row)))
        data, scratch = Data.of(by_row, dtype, None), BlockWork.of(blocks.row.shape[1], dtype)
        sums, shared = np.zeros_like(among.row), np.zeros_like(blocks.shared)
        row_pass(specs, among, data, owned, (0, len(rows)), kept, scratch, sums, shared)
    data, scratch = Data.of(shard.dyads, dtype, None), BlockWork.of(cols.shape[1], dtype)
    col_pass(specs, blocks, data, shard.owned, (0, len(shard)), kept, read_only(place), scratch, cols)
    return (cols,)


TASKS: dict[str, Any] = {
    "solve": solve,
    "draw": draw,
    "shared": shared_sums,
    "loss": losses,
    "rows": row_gradients,
    "columns": col_gradients,
}
"""The tasks by the names of the phases of a fit."""


def perform(shared: tuple[Any, ...], phase: str, specs: Specs, *arguments: Any) -> Any:
    """Do a task; `shared` : the blocks that it reads."""
    if not _limits:
        # BLAS sums in an order that depends on its number of threads; the limit holds as long as the process.
        _limits.append(threadpool_limits(1, "blas"))
    return TASKS[phase](specs, lent(Blocks(*shared)), *arguments)


_limits: list[Any] = []


# --------------------------------------------------------------------------------------------------------- the machine


def check_versions(expected: tuple[str, ...], name: str | None = None, versions: tuple[str, ...] | None = None) -> None:
    """Raise unless a machine, by default this one, has the versions of the driver."""
    if name is None or versions is None:
        name, versions, _ = machine()
    if tuple(versions) != tuple(expected):
        raise ClusterError(
            f"The machine {name} of the Ray cluster has {', '.join(versions)}: expected {', '.join(expected)}. Install "
            "the same versions everywhere, and run dyads cluster-check."
        )


def introduced(store: str | None = None, trial: bool = False) -> dict[str, Any]:
    """What this machine says of itself, whether it reaches a store, and how it does in a trial."""
    found = machine()
    said: dict[str, Any] = {"name": found.name, "versions": found.versions, "processor": found.processor}
    if store is not None:
        try:
            said["pairs"], said["store"] = reached(store)
        except StoreError as error:
            said["error"] = str(error)
    if trial:
        said["bits"], said["draws"] = tried()
    return said


TRIAL_SECONDS = 1.0
"""Length of the trial of a machine."""


def tried() -> tuple[str, float]:
    """Draw blocks of made-up dyads; return a checksum of their bits, and how many a second were drawn."""
    n_rows, n_labels, rng = 64, 4, np.random.default_rng(0)
    structure = Bilinear(n_labels, n_labels, 1, False, 8)
    row, size = np.repeat(np.arange(n_rows), 300), n_labels * 9
    made = Dyads(row, rng.integers(0, 50, len(row)), rng.integers(0, 4, len(row)), None, n_rows, 50, n_labels)
    blocks = Blocks(rng.normal(size=(n_rows, size)), rng.normal(size=(50, size)), np.zeros((1, n_labels)))
    shard = Shard(Role.ROW, 0, np.arange(n_rows + 1) * 300, np.arange(len(row)), made)
    prior = Prior(np.eye(size), np.ones(n_rows), np.zeros((n_rows, size)), np.ones(size, np.bool_))
    specs, data = Specs.of(structure, Log(), np.float64), Data.of(made, np.float64, None)
    sums, key = EntitySums(specs, shard.owned, blocks, data, prior), Key.of(0, Stream.BLOCKS)
    with threadpool_limits(1, "blas"):
        drawn, _ = draw_shard(sums, blocks.row, [(0, n_rows)], key, in_order)
        began, n = time.perf_counter(), 0
        while time.perf_counter() - began < TRIAL_SECONDS:
            draw_shard(sums, blocks.row, [(0, n_rows)], key, in_order)
            n += n_rows
    return f"{zlib.crc32(drawn.tobytes()):08x}", n / (time.perf_counter() - began)
