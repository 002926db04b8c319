"""The engine on a Ray cluster: the passes of the CPU engine, as tasks over the shards of a store.

The blocks of one side are put into Ray's object store once for each half-sweep; tasks return the new blocks of their
owners, or partial sums, which are added in the order of the CPU engine. Tasks are pure: one that is lost with its
worker runs again elsewhere, and bits depend on neither.
"""

import contextlib
import logging
import math
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import Codes
from dyads.data.dyads import Counts, Dyads
from dyads.data.store import Store, checksum_of
from dyads.engine import worker
from dyads.engine.api import Engine, OwnPrior, Query
from dyads.engine.bundles import Specs
from dyads.engine.descent import HostDescent
from dyads.engine.entity import LEAST_PIVOT, SMALL_STEP, Steps
from dyads.engine.host import CPU, Bound, Host, Threads
from dyads.engine.lanes import SERIAL
from dyads.engine.orders import SHARD, Bounds, Run, Shard, even_tasks
from dyads.engine.sums import Groups, Part, Prior, relation_tasks
from dyads.engine.updates import HostUpdates
from dyads.engine.worker import Evaluation, Lines, Owners, Update
from dyads.errors import ClusterError, ClusterWarning, DyadsError, InputError, StoreError, caller_level, counted
from dyads.model.objective import BlockPrior, Objective
from dyads.model.parameters import Blocks, Role
from dyads.model.record import Model
from dyads.model.streams import Key
from dyads.model.structure import Structure
from dyads.settings import Setting

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

LEAST_TASKS, TASKS_OF_PROCESSOR = 16, 4
"""Tasks of a pass, in all and for each processor of the cluster: enough that none waits long for the last."""

AHEAD = 3
"""Tasks for each processor that are handed to Ray at a time: one runs, and the arguments of others travel."""

MOST_RUNS = 20
"""Times that a task is run before the fit gives up: something then kills whoever runs it."""

REACHED, ANSWERED = 5.0, 30.0
"""Seconds within which the machine of the head answers, and those within which the head says that it is one."""

CHECKED = 120.0
"""Seconds within which each machine says what versions it has; it may have to start a process and import dyads."""


NO_SGD = (
    "engine='ray' has no SGD, which visits dyads one after the other: expected solver='newton', 'gibbs' or 'lbfgs', "
    "and Newton with epochs=0. Name one of them, or use engine='cpu'."
)


@dataclass(frozen=True, repr=False)
class Ray(Setting):
    """The engine on a Ray cluster, which fits a store by Newton's method, the Gibbs sampler or L-BFGS.

    It needs Ray: ``pip install 'dyads[ray]'``, the same version of dyads on all machines, and a store at a path, or an
    address of object storage, that all of them reach. The result is that of `CPU`, bit for bit, on processors of one
    kind. Predictions are computed on this machine.

    Parameters
    ----------
    address : str, default "auto"
        Address of the head of the cluster, as host:port; "auto" is the cluster that this machine belongs to.
    timeout : float, default 600
        Seconds after which a cluster that finishes no task is given up.
    """

    address: str = "auto"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not (self.address == "auto" or _host_and_port(self.address)):
            raise self._refusal("address", "host:port, such as '10.0.0.1:6379', or 'auto'")
        self.check_number("timeout", above=0)

    def bind(self, objective: Objective, dyads: Dyads, counts: Counts | None = None) -> "OnCluster":
        self.check(objective, dyads)
        cluster = Cluster.at(self)
        return OnCluster(objective, ClusterBound(objective, dyads, counts, cluster))

    def check(self, objective: Objective, dyads: Dyads, descends: bool = False) -> None:
        if descends:
            raise InputError(NO_SGD)
        if objective.structure.one_set:
            raise InputError(
                "engine='ray' does not fit models of one id set, whose nodes are updated in order: expected rows and "
                "columns of two id sets. Use engine='cpu'."
            )
        if dyads.side.dyad is not None:
            raise InputError(
                "engine='ray' does not fit features of pairs: expected a store without them; features of rows and "
                "columns work. Encode the tables without features=, or use engine='cpu'."
            )
        if not isinstance(dyads.home, Store):
            raise InputError(
                "engine='ray' fits whole stores, and got pairs in memory (a table, a part of a store for "
                "early_stopping or cross-validation, or labels in an order of your own): expected a dyads.Store. Make "
                "one by dyads.scan or dyads encode, or use engine='cpu'."
            )

    def for_memory(self) -> Engine:
        return CPU()

    def scores(self, models: Sequence[Model], codes: Sequence[Codes], features: Any = None) -> Array:
        return CPU().scores(models, codes, features)

    def top(self, models: Sequence[Model], query: Query) -> tuple[Array, Array]:
        return CPU().top(models, query)

    def block_scores(self, structure: Structure, blocks: Blocks, codes: Sequence[Codes], offset: Array) -> Array:
        return CPU().block_scores(structure, blocks, codes, offset)


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and "/" not in host and port.isdecimal() and 0 < int(port) < 2**16 else None


# -------------------------------------------------------------------------------------------------------- the cluster


class Pass(NamedTuple):
    """What a pass took, as it is logged.

    Attributes
    ----------
    phase : name of the tasks; see `worker.TASKS`
    seconds : from first to last
    task_seconds : (n_tasks,) seconds of computing, on the worker, in the order of tasks
    workers : number of tasks of each worker, by machine and process
    again : number of tasks that were run again
    shared, sent, received : bytes of blocks that were put into the object store, of arguments of tasks, and of results
    """

    phase: str
    seconds: float
    task_seconds: tuple[float, ...]
    workers: dict[str, int]
    again: int
    shared: int
    sent: int
    received: int

    def __str__(self) -> str:
        return (
            f"{self.phase}: {counted(len(self.task_seconds), 'task')} on {counted(len(self.workers), 'worker')}, "
            f"{self.again} run again, {self.seconds:.3f} s, {self.shared:,} bytes shared, {self.sent:,} sent, "
            f"{self.received:,} received"
        )


class Shared:
    """An array in Ray's object store; it is put there again if it is lost."""

    def __init__(self, value: Array) -> None:
        self.value, self.untold = value, value.nbytes
        """The array, and its bytes until a pass has told of them."""
        self.renew()

    def renew(self) -> None:
        """Put the array into the object store, again if it was there."""
        import ray

        try:
            self.ref = ray.put(self.value)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"Ray's object store cannot take blocks of {self.value.nbytes:,} bytes ({_short(error)}): expected "
                "room for the blocks of all rows and columns on each machine. Give Ray more --object-store-memory."
            ) from error


class SharedBlocks(NamedTuple):
    """Blocks in the object store."""

    row: Shared
    col: Shared
    shared: Shared


class Cluster:
    """A Ray cluster that this process is connected to, and how tasks are run on it."""

    def __init__(self, timeout: float) -> None:
        import ray

        self.timeout, self.here = timeout, worker.machine()
        # Ray pickles a function that lies in another one by value: it runs whatever the worker has installed.
        self._task = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(_entry())
        self._probe = ray.remote(num_cpus=0, max_retries=0)(_probe())

    @classmethod
    def at(cls, engine: Ray) -> "Cluster":
        """Connect to a cluster; raise a sentence unless all its machines can take part."""
        cluster = cls.joined(engine)
        cluster.check()
        return cluster

    @classmethod
    def joined(cls, engine: Ray) -> "Cluster":
        """Connect to a cluster, whatever its machines are like."""
        _connect(engine.address)
        return cls(engine.timeout)

    @property
    def n_processors(self) -> int:
        """The number of tasks that run at a time."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def machines(self, store: str | None = None, trial: bool = False) -> list[dict[str, Any]]:
        """Return what each machine says of itself, or the error that it ended in; see `worker.introduced`."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"]]
        asked = {
            self._probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                store, trial
            ): node
            for node in nodes
        }
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=min(CHECKED, self.timeout))
        found = []
        for ref, node in asked.items():
            said = {"node": node["NodeID"][:8], "name": node["NodeManagerAddress"]}
            said["processors"] = int(node["Resources"].get("CPU", 0))
            if ref in done:
                try:
                    said |= ray.get(ref)
                except ray.exceptions.RayError as error:
                    said["error"] = _short(error)
                    said["lost"] = not isinstance(error, ray.exceptions.RayTaskError)
            else:
                ray.cancel(ref, force=True)
                said |= {"error": f"no answer in {min(CHECKED, self.timeout):.0f} s", "lost": True}
            found.append(said)
        return found

    def check(self) -> None:
        """Raise unless all machines that compute have the versions of this one."""
        computing = [said for said in self.machines() if said["processors"]]
        if not computing:
            raise ClusterError("The Ray cluster has no processors: expected some. Start workers by ray start.")
        for said in computing:
            # A machine that fails while it is asked is Ray's to leave out; its tasks run elsewhere.
            if "versions" in said:
                worker.check_versions(self.here.versions, said["name"], said["versions"])
            elif not said["lost"]:
                raise ClusterError(
                    f"The machine {said['name']} of the Ray cluster cannot import dyads ({said['error']}): expected "
                    f"{', '.join(self.here.versions)}. Install them there, and run dyads cluster-check."
                )
        if all("error" in said for said in computing):
            raise ClusterError(
                f"No machine of the Ray cluster answers ({computing[0]['error']}): expected at least one. Run dyads "
                "cluster-check."
            )
        kinds = sorted({said["processor"] for said in computing if "processor" in said})
        if len(kinds) > 1:
            warnings.warn(
                f"The machines of the Ray cluster have processors of several kinds ({', '.join(kinds)}): which of them "
                "does a task may change the rounding of a model. Run dyads cluster-check, which compares their bits.",
                ClusterWarning,
                stacklevel=caller_level(),
            )

    def run(
        self, function: str, phase: str, common: Sequence[Shared], tasks: Sequence[tuple[Any, ...]], told: Any = None
    ) -> list[Any]:
        """Run tasks; return their results in the order of the tasks.

        A task whose worker is lost runs again, up to `MOST_RUNS` times.

        `function` : module and name of a function of the shared arrays, as a tuple, and of the arguments of a task.
        `phase` : what the tasks do, for messages. `told` : called with the number of tasks done, and of all.
        """
        import ray

        began, results, runs = time.perf_counter(), [None] * len(tasks), [0] * len(tasks)
        seconds, workers = [0.0] * len(tasks), Counter[str]()
        received, waiting, left = 0, dict[Any, int](), list(range(len(tasks)))[::-1]
        most = AHEAD * self.n_processors
        try:
            while left or waiting:
                while left and len(waiting) < most:
                    number = left.pop()
                    refs = [shared.ref for shared in common]
                    task = self._task.remote(self.here.versions, function, tasks[number], *refs)
                    waiting[task] = number
                    runs[number] += 1
                done, _ = ray.wait(list(waiting), timeout=self.timeout)
                if not done:
                    raise ClusterError(
                        f"The Ray cluster has finished no task in {self.timeout:g} s ({phase}, {len(waiting)} under "
                        "way): a worker hangs, or all are gone. Run dyads cluster-check, and fit again; with a "
                        "checkpoint the fit goes on."
                    )
                for ref in done:
                    number = waiting.pop(ref)
                    try:
                        results[number], who, seconds[number] = ray.get(ref, timeout=self.timeout)
                    except ray.exceptions.RayError as error:
                        self._lost(error, phase, runs[number], common)
                        left.append(number)
                        continue
                    workers[who] += 1
                    received += _size(results[number])
                    if told is not None:
                        told(sum(workers.values()), len(tasks))
        finally:
            for ref in waiting:
                with contextlib.suppress(Exception):
                    ray.cancel(ref, force=True)
        put, sent = 0, sum(_size(task) for task in tasks)
        for shared in common:
            put, shared.untold = put + shared.untold, 0
        done_in = time.perf_counter() - began
        again = sum(runs) - len(tasks)
        logger.info("%s", Pass(phase, done_in, tuple(seconds), dict(workers), again, put, sent, received))
        return results

    def _lost(self, error: Any, phase: str, n_runs: int, common: Sequence[Shared]) -> None:
        """Raise, unless a task failed because something was lost: then it can run again."""
        import ray

        cause = getattr(error, "cause", None)
        if isinstance(cause, DyadsError):
            raise cause from None
        if isinstance(error, ray.exceptions.RayTaskError) and not isinstance(cause, ray.exceptions.RayError):
            raise ClusterError(f"A task of the Ray cluster failed ({phase}): {_short(error)}.") from error
        if isinstance(error, ray.exceptions.GetTimeoutError):
            raise ClusterError(
                f"A result of the Ray cluster did not arrive in {self.timeout:g} s ({phase}): its network hangs. Run "
                "dyads cluster-check, and fit again; with a checkpoint the fit goes on."
            ) from error
        if n_runs >= MOST_RUNS:
            raise ClusterError(
                f"A task of the Ray cluster failed {n_runs} times ({phase}): {_short(error)}. Look into the memory of "
                "its machines, and run dyads cluster-check."
            ) from error
        logger.warning("A task is run again (%s): %s", phase, _short(error))
        if isinstance(error, ray.exceptions.ObjectLostError) or isinstance(cause, ray.exceptions.ObjectLostError):
            for shared in common:
                shared.renew()
        time.sleep(min(1.0, 0.01 * 2**n_runs))


_joined: dict[str, set[str]] = {}
"""The addresses by which this process has joined the clusters at Ray's own; Ray turns localhost into an IP."""


def _own_address() -> str:
    """The address of the cluster that this machine belongs to, as Ray finds it; "auto" if it finds none."""
    with contextlib.suppress(ImportError, AttributeError, ConnectionError):
        from ray._private.services import get_ray_address_from_environment

        return get_ray_address_from_environment("auto", None) or "auto"
    return "auto"


def _connect(address: str) -> None:
    """Connect to a cluster, unless this process is; raise a sentence if there is none."""
    if find_spec("ray") is None:
        raise InputError("engine='ray' needs Ray, which is not installed: run pip install 'dyads[ray]'.")
    import ray

    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in ("auto", connected, *_joined.get(connected, ())):
            raise ClusterError(
                f"This process is connected to the Ray cluster at {connected}: expected {address}. Run ray.shutdown() "
                "first."
            )
        return
    told = _own_address() if address == "auto" else address
    place = _host_and_port(told)
    if place is not None:
        try:
            socket.create_connection(place, REACHED).close()
        except OSError as error:
            raise ClusterError(
                f"No Ray cluster answers at {told} ({error}): expected the host:port of its head. Start one by ray "
                "start --head, or check the address."
            ) from error
        # Ray waits long for a head that is none, and may end the process: another one asks first.
        asked = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", told]
        try:
            healthy = subprocess.run(asked, capture_output=True, timeout=ANSWERED, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            healthy = False
        if not healthy:
            raise ClusterError(
                f"What answers at {told} is no head of a Ray cluster of version {ray.__version__}: expected its "
                "host:port. Check the address and the versions."
            )
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"This machine cannot join the Ray cluster at {address} ({_short(error)}): expected one that it belongs "
            "to. Run ray start --address=host:port here first, with the same versions of Ray and Python."
        ) from error
    _joined.setdefault(ray.get_runtime_context().gcs_address, set()).add(address)


def _entry() -> Any:
    def task(versions: Any, function: str, arguments: Any, *common: Any) -> Any:
        import os
        import socket
        import time
        from importlib import import_module

        from dyads.engine import worker

        worker.check_versions(versions)
        began = time.perf_counter()
        module, name = function.split(":")
        result = getattr(import_module(module), name)(common, *arguments)
        return result, f"{socket.gethostname()}:{os.getpid()}", time.perf_counter() - began

    return task


def _probe() -> Any:
    def probe(store: str | None, trial: bool) -> dict[str, Any]:
        from dyads.engine import worker

        return worker.introduced(store, trial)

    return probe


def _short(error: BaseException) -> str:
    """The type of an error and its first line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = f"{type(cause).__name__}: {lines[0] if lines else ''}"
    return text[:200].rstrip(".")


def _size(value: Any) -> int:
    """Bytes of the arrays in tuples and lists."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(_size, value)) if isinstance(value, tuple | list) else 8


# --------------------------------------------------------------------------------------------------------- a problem


class ClusterBound(Bound):
    """Dyads of a store and their orders, cut into what tasks work on; and the cluster."""

    def __init__(self, objective: Objective, dyads: Dyads, counts: Counts | None, cluster: Cluster) -> None:
        super().__init__(objective, dyads, counts, Threads(CPU().n_threads()))
        self.cluster = cluster
        self._store = dyads.home.location
        self._lines: dict[tuple[str, int], Lines] = {}
        self._shards: dict[Role, list[tuple[Shard, Owners, list[list[Bounds]]]]] = {}
        n_tasks = max(LEAST_TASKS, TASKS_OF_PROCESSOR * cluster.n_processors)
        self.task_dyads = min(max(len(dyads) // n_tasks, 1), SHARD)
        """Target number of dyads per task."""

    def run(self, phase: str, specs: Specs, blocks: SharedBlocks, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run tasks of a phase; see `worker.TASKS`."""
        named = [(phase, specs, *task) for task in tasks]
        return self.cluster.run("dyads.engine.worker:perform", phase, blocks, named)

    def lines(self, order: str, begin: int, dyads: Dyads) -> Lines:
        """Return where some dyads lie, the first at position `begin` of an order."""
        if (order, begin) not in self._lines:
            named = {name: getattr(dyads, name) for name in ("row", "col", "label", "weight", "relation")}
            columns = {name: column for name, column in named.items() if column is not None}
            sizes = (dyads.n_rows, dyads.n_cols, dyads.n_labels, dyads.n_relations)
            end, checksum = begin + len(dyads), checksum_of(columns.values())
            self._lines[order, begin] = Lines(self._store, order, tuple(columns), begin, end, checksum, sizes)
        return self._lines[order, begin]

    def shards(self, role: Role) -> list[tuple[Shard, Owners, list[list[Bounds]]]]:
        """Return the shards of rows or columns, each with all its owners, and their tasks of sums by task."""
        if role not in self._shards:
            self._shards[role] = self._cut(role)
        return self._shards[role]

    def _cut(self, role: Role) -> list[tuple[Shard, Owners, list[list[Bounds]]]]:
        found, begin, order = [], 0, "by-column" if role == Role.COL else "by-row"
        shards = self.orders.of(role)
        if order in self.dyads.home.unsent:
            raise StoreError(
                f"Workers read the order {order!r} of a store, and it cannot be copied there: "
                f"{self.dyads.home.unsent[order]} The key must also be able to write, for the first fit."
            )
        for shard in shards:
            lines = self.lines(order, begin, shard.dyads)
            codes = (shard.first, shard.first + len(shard))
            found.append((shard, Owners(lines, role, codes, (0, len(shard))), self._divided(shard)))
            begin += len(shard.dyads)
        return found

    def _divided(self, shard: Shard) -> list[list[Bounds]]:
        """Divide a shard's tasks of sums into lists of about `task_dyads` dyads each."""
        lists: list[list[Bounds]] = []
        size = math.inf
        for first, last in shard.sum_tasks:
            if size >= self.task_dyads:
                lists.append([])
                size = 0
            lists[-1].append((first, last))
            size += int(shard.start[last] - shard.start[first])
        return lists


class OnCluster(Host):
    """An objective bound to the dyads of a store, on a cluster; see `api.Problem`."""

    _bound: ClusterBound
    _shared: tuple[Any, Any] = (None, None)
    """The blocks of the passes by row and by column, and where they lie in the object store."""

    def loss(self, theta: Array, held: Dyads | None = None) -> float:
        if held is not None:
            return super().loss(theta, held)
        dyads, bound, tasks = self.dyads, self._bound, []
        ranges = even_tasks(0, len(dyads))
        n = max(1, bound.task_dyads // (ranges[0][1] - ranges[0][0]))
        for first in range(0, len(ranges), n):
            part = ranges[first : first + n]
            begin = part[0][0]
            lines = bound.lines("", begin, dyads.take(slice(begin, part[-1][1])))
            tasks.append((lines, [(a - begin, b - begin) for a, b in part]))
        blocks = self.objective.layout.effective(theta, dyads.side.astype(theta.dtype))
        values = self._on_cluster("loss", theta, blocks, tasks)
        self._shared = (None, None)
        return float(sum(value for some in values for value in some))

    def score_gradients(self, theta: Array) -> tuple[Dyads, Array]:
        return Host(self.objective, self._bound).score_gradients(theta)

    def _by_row(self, theta: Array, blocks: Blocks, kept: Array, out: Blocks) -> float:
        shards, total = self._bound.shards(Role.ROW), 0.0
        tasks = [
            (owners._replace(bounds=(part[0][0], part[-1][1])), [(a - part[0][0], b - part[0][0]) for a, b in part])
            for _, owners, parts in shards
            for part in parts
        ]
        results = iter(self._on_cluster("rows", theta, blocks, tasks))
        for shard, _, parts in shards:
            found = [next(results) for _ in parts]
            out.row[shard.owners] = np.concatenate([rows for _, rows, _ in found])
            out.shared[:] += np.concatenate([shared for _, _, shared in found]).sum(axis=0)
            total += sum(value for values, _, _ in found for value in values)
        return total

    def _by_col(self, theta: Array, blocks: Blocks, kept: Array, out: Blocks) -> None:
        tasks = [
            (owners._replace(bounds=(part[0][0], part[-1][1])), len(kept) > 0)
            for _, owners, parts in self._bound.shards(Role.COL)
            for part in parts
        ]
        for (owners, _), (cols,) in zip(tasks, self._on_cluster("columns", theta, blocks, tasks), strict=True):
            first = owners.shard[0]
            out.col[first + owners.bounds[0] : first + owners.bounds[1]] += cols
        self._shared = (None, None)

    def _on_cluster(self, phase: str, theta: Array, blocks: Blocks, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        if self._shared[0] is not blocks:
            self._shared = (blocks, SharedBlocks(*(Shared(np.ascontiguousarray(block)) for block in blocks)))
        return self._bound.run(phase, self._specs(theta), self._shared[1], tasks)

    def descent(self, theta: Array, visited: bool = False) -> HostDescent:
        raise InputError(NO_SGD)

    def blocks_in_turn(self, theta: Array, prior: OwnPrior | None = None) -> HostUpdates:
        return ClusterUpdates(self.objective, self._bound, theta, prior)

    def restricted(self, free: Array | None) -> "OnCluster":
        return OnCluster(replace(self.objective, free=free), self._bound)


class ClusterUpdates(HostUpdates):
    """Block updates on a cluster; see `api.BlockUpdates`."""

    def __init__(self, objective: Objective, bound: ClusterBound, theta: Array, prior: OwnPrior | None) -> None:
        super().__init__(objective, bound.orders, theta, prior, bound.threads.map)
        self._bound = bound
        self._put: dict[int, Shared] = {}

    def solve(self, role: Role, n_steps: int = 1, codes: Codes | None = None) -> float:
        before, steps = self._blocks[role.place].copy(), Steps(n_steps, SMALL_STEP, 0.0, LEAST_PIVOT)
        self._put.pop(role.place, None)
        if role == Role.SHARED:
            super().solve(role, n_steps)
        else:
            self._update("solve", role, None, codes, steps)
        self._put.pop(role.place, None)
        return float(np.abs(self._blocks[role.place] - before).max(initial=0))

    def draw(self, role: Role, key: Key, prior: BlockPrior | None = None, codes: Codes | None = None) -> Array:
        self._put.pop(role.place, None)
        if role == Role.SHARED:
            accepted = super().draw(role, key, prior)
        else:
            accepted = self._update("draw", role, prior, codes, key)
        self._put.pop(role.place, None)
        return accepted

    def draw_unlabelled(self, role: Role, key: Key, prior: BlockPrior) -> None:
        super().draw_unlabelled(role, key, prior)
        self._put.pop(role.place, None)

    def _update(self, phase: str, role: Role, prior: BlockPrior | None, codes: Codes | None, how: Any) -> Array:
        """Update the blocks of rows or columns; return acceptance rates, if they are drawn."""
        table, tasks = self._blocks[role.place], []
        accepted, places = np.zeros(len(table)), []
        for shard, owners, parts in self._bound.shards(role):
            for part in parts:
                first, last = part[0][0], part[-1][1]
                moved = [(0, last - first)]
                if codes is not None:
                    here = codes[(codes >= shard.first + first) & (codes < shard.first + last)] - shard.first - first
                    moved = [(int(code), int(code) + 1) for code in here]
                if moved:
                    place = slice(shard.first + first, shard.first + last)
                    own = worker.packed(self._prior(role, prior, place))
                    update = Update(owners._replace(bounds=(first, last)), table[place], own, moved)
                    tasks.append((update, how))
                    places.append(place)
        results = self._bound.run(phase, self._specs, self.shared_blocks(role), tasks)
        for place, result in zip(places, results, strict=True):
            table[place] = result[0]
            if phase == "draw":
                accepted[place] = result[1]
        return accepted

    def shared_blocks(self, role: Role) -> SharedBlocks:
        """Return the blocks that a pass over a role reads, in the object store: not those of the role itself."""
        places = {Role.ROW: (1, 1, 2), Role.COL: (0, 0, 2), Role.SHARED: (0, 1, 2)}[role]
        for place in places:
            if place not in self._put:
                self._put[place] = Shared(np.ascontiguousarray(self._blocks[place]))
        return SharedBlocks(*(self._put[place] for place in places))

    def _shared_sums(self, learnt: BlockPrior | None) -> tuple[Any, Run]:
        prior = self._prior(Role.SHARED, learnt, slice(None))
        return SharedOnCluster(self, self._bound, self._specs, prior), self._run


class SharedOnCluster:
    """The loss of the dyads of each relation as a function of its shared block, on a cluster; see `sums.SharedSums`."""

    team = SERIAL

    def __init__(self, updates: ClusterUpdates, bound: ClusterBound, specs: Specs, prior: Prior) -> None:
        self.prior, self._specs, self._bound = prior, specs, bound
        self._blocks = updates.shared_blocks(Role.SHARED)
        size = prior.centre.shape[1]
        self.groups = Groups.folded(specs.structure, Role.SHARED, size, size)
        self._shards, self._task_dyads = bound.shards(Role.ROW), bound.task_dyads
        self.owned = self._shards[0][0].owned._replace(role=int(Role.SHARED), first=0)

    def tasks(self, t: int) -> list[list[tuple[Owners, list[Bounds]]]]:
        """Return, for each task, the shards and the bounds among the dyads of relation t whose sums it returns."""
        tasks: list[list[tuple[Owners, list[Bounds]]]] = []
        size = math.inf
        for shard, owners, _ in self._shards:
            start = shard.by_relation.start
            bounds = relation_tasks(int(start[t]), int(start[t + 1]))
            while bounds:
                if size >= self._task_dyads:
                    tasks.append([])
                    size = 0
                n = 1
                while n < len(bounds) and size + bounds[n - 1][1] - bounds[0][0] < self._task_dyads:
                    n += 1
                tasks[-1].append((owners, bounds[:n]))
                size += bounds[n - 1][1] - bounds[0][0]
                bounds = bounds[n:]
        return tasks

    def work(self, t: int, part: Part) -> list[list[tuple[Owners, list[Bounds]]]]:
        return self.tasks(t)

    def sums_at(self, t: int, x: Array, part: Part, curved: bool, out: Array, work: Any) -> float:
        at = Evaluation(t, x.copy(), part, curved)
        tasks = [(parts, self.prior, at) for parts in work]
        results = self._bound.run("shared", self._specs, self._blocks, tasks)
        sums = [found for listed in results for found in listed]
        if curved:
            out[:] = 0
            for _, some in sums:
                out += some
        return float(sum(value for value, _ in sums))

    def has_self_link(self, t: int) -> bool:
        return False
