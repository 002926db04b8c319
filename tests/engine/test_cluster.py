"""The engine on a cluster: the bits of the CPU engine, whoever computes what; in the slow suite on Ray, with faults."""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dyads
from dyads import CPU, LBFGS, Gibbs, LFLClassifier, LFLLink, LFLOrdinal, Newton, Ray, Store
from dyads.data.codes import Vocabulary
from dyads.data.store import Pairs
from dyads.engine import cluster, host, orders, sums, worker
from dyads.errors import ClusterError, ClusterWarning, InputError, StoreError
from dyads.estimators import lfl
from dyads.learn import training
from dyads.model.loss import Log
from dyads.model.parameters import Role
from dyads.model.streams import Key, Stream
from engine.test_engines import FEW, WEIGHTED, random_theta, standard_prior
from problems import STRUCTURES, make_dyads, make_objective

SLOW = pytest.mark.slow


def stored(made, folder):
    """A store of made-up dyads."""
    named = {"row": "row", "col": "col", "label": "label"} | ({} if made.weight is None else {"weight": "weight"})
    rows, cols = (Vocabulary(pa.array(range(n)), name) for n, name in ((made.n_rows, "row"), (made.n_cols, "col")))
    relations = None
    if made.relation is not None:
        named["relation"] = "relation"
        relations = Vocabulary(pa.array(range(made.n_relations)), "relation")
    pairs = Pairs(named, rows, cols, relations, np.arange(made.n_labels), made)
    return pairs.take(np.arange(len(made)), to=folder)


class InProcess(cluster.Cluster):
    """Runs tasks in this process, the last first, with pickled arguments and read-only arrays, as Ray does."""

    n_processors = 2

    def __init__(self):
        self.phases = []

    def run(self, function, phase, common, tasks, told=None):
        self.phases += [phase] * len(tasks)
        frozen = [array.value.copy() for array in common]
        for array in frozen:
            array.flags.writeable = False
        results = [worker.perform(tuple(frozen), *pickle.loads(pickle.dumps(task))) for task in tasks[::-1]]
        return pickle.loads(pickle.dumps(results[::-1]))


class Held:
    def __init__(self, value):
        self.value = value


@pytest.fixture
def in_process(monkeypatch):
    made = InProcess()
    monkeypatch.setattr(cluster.Cluster, "at", lambda engine: made)
    monkeypatch.setattr(cluster, "Shared", Held)
    return made


@pytest.mark.xdist_group("blocks")
@pytest.mark.parametrize("n_relations", [1, pytest.param(3, marks=SLOW)])
@pytest.mark.parametrize("structure", FEW[:1], ids=repr)
@WEIGHTED
def test_tasks_have_the_bits_of_the_cpu_engine(in_process, structure, weighted, n_relations, tmp_path, monkeypatch):
    """Sums, block updates and draws, over many shards and tasks of them."""
    for module, name, size in ((orders, "CHUNK", 32), (orders, "SHARD", 200), (sums, "CHUNK", 32)):
        monkeypatch.setattr(module, name, size)
    made = make_dyads(n=700, n_rows=30, n_cols=20, weighted=weighted, n_relations=n_relations)
    store = stored(made, tmp_path / "store")
    objective = make_objective(structure, Log(), store.dyads)
    theta, results = random_theta(objective), []
    for engine in (CPU(1), Ray()):
        with engine.bind(objective, store.dyads) as problem:
            updates = problem.blocks_in_turn(theta)
            moved = []
            for role in updates.roles:
                moved.append(updates.solve(role))
                moved += updates.draw(role, Key.of(0, Stream.BLOCKS, role), standard_prior(objective, role)).tolist()
            moved.append(updates.solve(Role.ROW, codes=np.array([3, 4, 17])))
            value, gradient = problem.value_and_gradient(theta)
            with monkeypatch.context() as patch:
                patch.setattr(host, "STORED_GRADIENT_BYTES", 0)
                again = problem.value_and_gradient(theta)
            loss, last = problem.loss(updates.theta()), updates.theta()
        results.append((moved, value, gradient.tobytes(), again[0], again[1].tobytes(), loss, last.tobytes()))
    assert results[0] == results[1]
    counts = {phase: in_process.phases.count(phase) for phase in worker.TASKS}
    assert min(counts.values()) >= 4, counts


def test_what_cannot_be_divided_is_refused_with_what_can(in_process, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, (60, 2)), rng.integers(1, 4, 60)
    point = {"rank": 1, "l2": 1.0, "engine": Ray()}
    with pytest.raises(InputError, match="pairs in memory"):
        LFLOrdinal(1, solver="newton", engine=Ray()).fit(np.tile(X, (100, 1)), np.tile(y, 100))
    assert not in_process.phases
    with pytest.raises(InputError, match=r"pairs in memory.*dyads\.scan"):
        LFLOrdinal(**point, solver="newton").fit(X, y)
    with pytest.raises(InputError, match=r"one id set.*engine='cpu'"):
        LFLLink(**point, solver="newton").fit(X, X.sum(axis=1) % 2)
    store = stored(make_dyads(), tmp_path / "store")
    with pytest.raises(InputError, match=r"no SGD.*'newton', 'gibbs' or 'lbfgs'"):
        LFLClassifier(**point, solver="sgd").fit(store)
    with pytest.raises(InputError, match=r"no SGD.*epochs=0"):
        LFLClassifier(**point, solver=Newton(epochs=8)).fit(store)
    # A large store would be fitted by SGD: that is told before penalties are searched for.
    monkeypatch.setattr(training, "FULL_BATCH_WORK", 0)
    monkeypatch.setattr(lfl, "chosen_l2", None)
    with pytest.raises(InputError, match="no SGD"):
        LFLClassifier(1, solver="point", engine=Ray()).fit(store)
    with pytest.raises(InputError, match="early_stopping"):
        LFLClassifier(**point, solver="newton", early_stopping=0.1).fit(store)


def test_new_ids_are_folded_in_on_this_machine(in_process):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, (60, 2)), rng.integers(0, 2, 60)
    models = [LFLClassifier(1, l2=1.0, solver="lbfgs", random_state=0).fit(X, y) for _ in range(2)]
    models[1].engine = Ray()
    proba = []
    for model in models:
        supposed = model.suppose(X[:1], 1 - y[:1])
        model.fold_in([[100, 1], [100, 2]], [0, 1])
        proba.append([supposed.predict_proba(X[:1]), model.predict_proba([[100, 3]])])
    np.testing.assert_array_equal(proba[0], proba[1])


def test_a_worker_that_reads_another_store_says_so(in_process, tmp_path):
    store = stored(make_dyads(), tmp_path / "store")
    problem = Ray().bind(make_objective(STRUCTURES[0], Log(), store.dyads), store.dyads)
    theta = random_theta(problem.objective)
    (tmp_path / "store").rename(tmp_path / "other")
    with pytest.raises(StoreError, match=r"cannot be read.*same path"):
        problem.loss(theta)
    stored(make_dyads(seed=1), tmp_path / "store")
    with pytest.raises(StoreError, match=r"holds other pairs.*same path"):
        problem.loss(theta)


def test_what_a_worker_keeps_is_bounded_and_what_it_computes_of_a_shard_is_kept(tmp_path, monkeypatch):
    made = make_dyads(n=700, n_rows=30, n_cols=20, n_relations=3)
    store = stored(made, tmp_path / "store")
    bound = cluster.ClusterBound(make_objective(STRUCTURES[0], Log(), store.dyads), store.dyads, None, InProcess())
    ((_, owners, _),) = bound.shards(Role.ROW)
    shard = worker.shard_of(owners)
    assert worker.shard_of(owners) is shard
    assert shard.by_relation is worker.shard_of(owners).by_relation
    monkeypatch.setattr(worker, "KEPT_BYTES", 0)
    of_shard = weakref.ref(shard.dyads)
    del shard
    worker.dyads_of(bound.lines("", 0, store.dyads))
    assert of_shard() is None


def test_a_cluster_that_is_not_there_is_told_at_once(monkeypatch):
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.perf_counter()
        with pytest.raises(ClusterError, match=f"No Ray cluster answers at {address}"):
            cluster.Cluster.at(Ray(address))
        # The address that Ray would find by itself is asked, too: Ray waits long.
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ClusterError, match=f"No Ray cluster answers at {address}"):
            cluster.Cluster.at(Ray())
        assert time.perf_counter() - began < 20
    for wrong in ("somewhere", "ray://head:10001", "head:0", 6379):
        with pytest.raises(InputError, match="host:port"):
            Ray(wrong)


# ------------------------------------------------------------------------------------------------------------- on Ray


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A store of 40,000 ratings, and the models that the CPU engine fits to it."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("ratings")
    item = (120 * rng.random(40_000) ** 2).astype(int)
    ratings = {"user": rng.integers(0, 300, 40_000), "item": item, "stars": rng.integers(1, 6, 40_000)}
    pd.DataFrame(ratings).to_parquet(folder / "ratings.parquet")
    dyads.scan(folder / "ratings.parquet", row="user", col="item", label="stars", to=folder / "store")
    return folder / "store"


SOLVERS = {"newton": Newton(max_iter=4, tol=0.0), "gibbs": Gibbs(sweeps=6), "lbfgs": LBFGS(max_iter=6)}
LONG = Gibbs(sweeps=60)


def fitted(store, solver, engine, checkpoint=None):
    l2 = None if isinstance(solver, Gibbs) else 5.0
    model = LFLOrdinal(3, l2=l2, solver=solver, random_state=0, engine=engine)
    return model.fit(Store(store), checkpoint=checkpoint)


def same(first, second):
    pairs = zip(first.record_.draws, second.record_.draws, strict=True)
    return all(np.array_equal(one.theta, other.theta) for one, other in pairs)


NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@pytest.fixture
def machines(monkeypatch):
    """A cluster of two nodes, processes of this machine on its loopback."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Ray then stays on the loopback, in other processes as in this one.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setattr(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    made.add_node(**NODE)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def passes():
    """What is logged of passes."""
    logged = []

    class Handler(logging.Handler):
        def emit(self, record):
            logged.extend(arg for arg in (record.args or ()) if isinstance(arg, cluster.Pass))

    handler, level = Handler(), cluster.logger.level
    cluster.logger.addHandler(handler)
    cluster.logger.setLevel(logging.INFO)
    yield logged
    cluster.logger.removeHandler(handler)
    cluster.logger.setLevel(level)


def workers():
    """The processes of Ray's workers that do a task."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "ray::task" in line]


@SLOW
@pytest.mark.xdist_group("ray")
def test_a_fit_on_a_cluster_is_that_of_this_machine_also_when_workers_and_nodes_are_lost(machines, table, passes):
    engine = Ray(machines.address, timeout=120)
    for solver in SOLVERS.values():
        assert same(fitted(table, solver, engine), fitted(table, solver, CPU(1))), solver
    assert min(len(done.task_seconds) for done in passes) >= 4
    passes.clear()
    expected, found = fitted(table, LONG, CPU(1)), []
    # Nodes are added by the main thread alone.
    fit = threading.Thread(target=lambda: found.append(fitted(table, LONG, engine)))
    fit.start()
    for number in range(4):
        fit.join(1.0)
        if number == 2:
            node = next(iter(machines.worker_nodes))
            machines.remove_node(node, allow_graceful=False)
            machines.add_node(**NODE)
        for process in workers()[:1]:
            os.kill(process, signal.SIGKILL)
    fit.join(200)
    assert same(found[0], expected)
    assert sum(done.again for done in passes) > 0


@SLOW
@pytest.mark.xdist_group("ray")
def test_an_address_joins_twice(machines):
    _, port = machines.address.split(":")
    for _ in range(2):
        cluster.Cluster.joined(Ray(f"localhost:{port}"))
    with pytest.raises(ClusterError, match=r"is connected.*ray\.shutdown"):
        cluster.Cluster.joined(Ray("elsewhere:1"))


@SLOW
@pytest.mark.xdist_group("ray")
def test_lost_objects_and_workers_that_hang(machines, table):
    import ray

    joined = cluster.Cluster.at(Ray(machines.address, timeout=8))
    shared = cluster.Shared(np.ones(10**6))

    def owned():
        return [ray.put(np.zeros(10**6))], os.getpid()

    # The object of a process that is gone: to Ray it is lost.
    (shared.ref,), process = ray.get(ray.remote(owned).remote())
    os.kill(process, signal.SIGKILL)
    time.sleep(1)
    assert joined.run("numpy:max", "max", [shared], [(), ()]) == [1.0, 1.0]
    with pytest.raises(ClusterError, match=r"no task in 8 s.*checkpoint"):
        joined.run("select:select", "hang", [], [((), (), 600)])


def test_processors_of_several_kinds_are_told(monkeypatch):
    said = {"processors": 1, "name": "other", "versions": worker.machine().versions}
    kinds = [said | {"processor": kind} for kind in ("znver4", "skylake")]
    monkeypatch.setattr(InProcess, "machines", lambda self: kinds)
    joined = InProcess()
    joined.here = worker.machine()
    with pytest.warns(ClusterWarning, match="skylake, znver4"):
        joined.check()


@SLOW
@pytest.mark.xdist_group("ray")
def test_machines_of_another_version_are_refused(machines, tmp_path):
    other = tmp_path / "dyads"
    other.mkdir()
    (other / "__init__.py").write_text("raise ImportError('a version of dyads that is broken')")
    machines.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(ClusterError, match=r"cannot import dyads.*cluster-check"):
        cluster.Cluster.at(Ray(machines.address))
    with pytest.raises(ClusterError, match=r"numba 0\.1.*expected.*Install the same versions"):
        worker.check_versions(worker.machine().versions, "other", ("dyads 0.1", "numba 0.1"))


@SLOW
@pytest.mark.xdist_group("ray")
def test_a_driver_that_was_killed_goes_on_from_its_checkpoint(machines, table, tmp_path):
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from dyads import Ray
from dyads.learn import checkpoint
from engine.test_cluster import LONG, fitted
checkpoint.CHECKPOINT_SECONDS = 0.0
fitted({str(table)!r}, LONG, Ray({machines.address!r}), {str(tmp_path / "state")!r})
"""
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        began = time.perf_counter()
        while not (tmp_path / "state").exists():
            assert driver.poll() is None, driver.stderr.read()
            assert time.perf_counter() - began < 120
            time.sleep(0.01)
        time.sleep(0.3)
    finally:
        driver.kill()
        driver.communicate()
    found = fitted(table, LONG, Ray(machines.address), tmp_path / "state")
    assert same(found, fitted(table, LONG, CPU(1)))


@SLOW
@pytest.mark.xdist_group("ray")
def test_what_answers_and_is_no_cluster():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match="no head of a Ray cluster"):
            cluster.Cluster.at(Ray(address))
