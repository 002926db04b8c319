"""`dyads predict` of a folder, on this machine and on a cluster; `dyads cluster-check`."""

import contextvars
import importlib
import json
import os
import pickle

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dyads import LFLOrdinal, SideInformation
from dyads.cli import answers
from dyads.data.store import reached
from dyads.engine import cluster, worker
from engine.test_cluster import NODE, machines, stored  # noqa: F401  # A fixture.
from problems import make_dyads


@pytest.fixture
def folder(tmp_path):
    """A model, and a folder of three files of pairs."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"user": rng.integers(0, 20, 300), "item": rng.integers(0, 15, 300)})
    model = LFLOrdinal(1, l2=1.0, solver="lbfgs", random_state=0).fit(X, rng.integers(1, 4, 300))
    model.save(tmp_path / "model.dyads")
    (tmp_path / "pairs").mkdir()
    for part in range(3):
        X[part::3].to_parquet(tmp_path / "pairs" / f"part-{part}.parquet", index=False)
    return tmp_path, model, X


def check(folder, model, X):
    for part in range(3):
        found = pq.read_table(folder / "out" / f"part-{part}.parquet").to_pandas()
        np.testing.assert_array_equal(found["user"], X["user"][part::3])
        np.testing.assert_allclose(found["p_1"], model.predict_proba(X[part::3])[:, 0], rtol=1e-5)
    assert len(list((folder / "out").iterdir())) == 4


def test_each_file_of_a_folder_is_predicted_to_one_and_those_that_are_there_are_left_alone(run, folder):
    where = folder[0]
    code, _, said = run("predict", where / "model.dyads", where / "pairs", "-o", where / "out")
    assert code == 0
    assert "Wrote 3 files with 300 pairs" in said
    check(*folder)
    first, second = (where / "out" / f"part-{part}.parquet" for part in (0, 1))
    before, _ = first.stat().st_mtime_ns, second.unlink()
    code, _, said = run("predict", where / "model.dyads", where / "pairs", "-o", where / "out")
    assert code == 0
    assert "2 of 3 files are there already" in said
    assert first.stat().st_mtime_ns == before
    check(*folder)
    code, _, said = run("predict", where / "model.dyads", where / "pairs" / "part-0.parquet", "--engine", "ray")
    assert code == 2
    assert "folder" in said


def test_files_of_another_model_or_of_other_options_are_refused(run, folder):
    where, _, X = folder
    command = ("predict", where / "model.dyads", where / "pairs", "-o", where / "out")
    assert run(*command)[0] == 0
    code, _, said = run(*command, "--give", "label")
    assert code == 2
    assert "another give" in said
    other = LFLOrdinal(1, l2=2.0, solver="lbfgs", random_state=0).fit(X, np.arange(300) % 3 + 1)
    other.save(where / "model.dyads")
    code, _, said = run(*command)
    assert code == 2
    assert "another model" in said
    assert run(*command, "--force")[0] == 0
    check(where, other, X)


@pytest.fixture
def in_process(monkeypatch):
    """A cluster of this process: tasks get pickled arguments, and no command runs."""
    monkeypatch.setattr(cluster.Cluster, "at", lambda engine: cluster.Cluster.__new__(cluster.Cluster))

    def performed(self, function, phase, common, tasks, told=None):
        module, name = function.split(":")

        def perform():
            monkeypatch.chdir("/")
            run = getattr(importlib.import_module(module), name)
            return [run((), *pickle.loads(pickle.dumps(task))) for task in tasks]

        return contextvars.Context().run(perform)

    monkeypatch.setattr(cluster.Cluster, "run", performed)


def test_workers_read_features_as_the_command_does(run, folder, in_process, monkeypatch):
    where, _, X = folder
    users = pd.DataFrame({"user": range(25), "age": np.arange(25) % 7})
    y = np.random.default_rng(0).integers(1, 4, 300)
    features = SideInformation(row=users)
    LFLOrdinal(1, l2=1.0, solver="lbfgs", features=features, random_state=0).fit(X, y).save(where / "model.dyads")
    users["age"] += 1
    users.to_csv(where / "users.csv", sep=";", index=False)
    monkeypatch.chdir(where)
    options = ("--row-features", "users.csv", "--separator", ";")
    assert run("predict", "model.dyads", "pairs", "-o", "here", *options)[0] == 0
    monkeypatch.chdir(where)
    assert run("predict", "model.dyads", "pairs", "-o", "there", *options, "--engine", "ray")[0] == 0
    for part in range(3):
        here, there = (pq.read_table(where / out / f"part-{part}.parquet") for out in ("here", "there"))
        assert here.equals(there)


def test_recommendations_of_a_cluster_are_those_of_this_machine(run, folder, in_process, monkeypatch):
    where = folder[0]
    monkeypatch.setattr(answers, "ASKED_AT_ONCE", 6)
    assert run("recommend", where / "model.dyads", "-n", "3", "-o", where / "here.parquet")[0] == 0
    command = ("recommend", where / "model.dyads", "-n", "3", "-o", where / "there", "--engine", "ray")
    code, _, said = run(*command)
    assert code == 0, said
    assert "4 files with 60 lines" in said
    assert ds.dataset(where / "there", format="parquet").to_table().equals(pq.read_table(where / "here.parquet"))
    (where / "there" / "part-00002.parquet").unlink()
    assert "3 of 4 files are there already" in run(*command)[2]
    code, _, said = run(*command[:-2], "--engine", "ray", "--by", "nothing", "--force")
    assert (code, "--by nothing" in said) == (2, True)


def test_rankings_of_a_cluster_are_those_of_this_machine(run, folder, in_process, monkeypatch):
    where = folder[0]
    monkeypatch.setattr(answers, "QUERIES_AT_ONCE", 6)
    rng = np.random.default_rng(1)
    test = pd.DataFrame({"user": rng.integers(0, 20, 80), "item": rng.integers(0, 15, 80), "label": 3})
    test.to_csv(where / "test.csv", index=False)
    monkeypatch.chdir(where)
    command = ("evaluate", "model.dyads", "test.csv", "--ranking", "5", "--json")
    code, here, said = run(*command)
    assert code == 0, said
    assert json.loads(here)[0]["n"] > 6
    assert run(*command, "--engine", "ray")[1] == here
    monkeypatch.chdir(where)
    assert run("evaluate", "model.dyads", "-", "--ranking", "5", "--engine", "ray")[0] == 2
    assert run("evaluate", "model.dyads", "test.csv", "--engine", "ray")[0] == 2


def test_another_store_at_the_same_path_and_a_cluster_without_processors_are_wrong(run, folder, monkeypatch):
    where = folder[0]
    store = stored(make_dyads(), where / "store").take(np.arange(20), to=where / "part")
    said = {"name": "other", "node": "1", "processors": 2, "pairs": 20, "store": reached(store.location)[1]}

    class Fake:
        here = worker.machine()

        def machines(self, store, trial):
            return [said]

    monkeypatch.setattr(cluster.Cluster, "joined", lambda engine: Fake())
    command = ("cluster-check", "--store", store.path, "--json")
    assert run(*command)[0] == 0
    said["store"] = "00000000"
    code, out, _ = run(*command)
    assert code == 1
    assert "another store" in out
    said["processors"] = 0
    assert "no machine has processors" in run(*command)[1]


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_cluster_predicts_a_folder_and_is_checked(run, folder, machines):  # noqa: F811
    where, _, X = folder
    arguments = ("--engine", "ray", "--engine-address", machines.address)
    code, _, said = run("predict", where / "model.dyads", where / "pairs", "-o", where / "out", *arguments)
    assert code == 0, said
    check(*folder)
    code, _, said = run("recommend", where / "model.dyads", "-o", where / "best", *arguments)
    assert code == 0, said
    X.assign(label=3).to_csv(where / "test.csv", index=False)
    ranking = ("evaluate", where / "model.dyads", where / "test.csv", "--ranking", "5", "--json")
    code, _, said = run(*ranking, *arguments)
    assert (code, "seen in training" in said) == (1, True)
    code, out, said = run("cluster-check", "--address", machines.address, "--json")
    assert code == 0, said
    assert out.count("nothing") == 2
    (where / "broken" / "dyads").mkdir(parents=True)
    (where / "broken" / "dyads" / "__init__.py").write_text("raise ImportError('broken')")
    machines.add_node(**NODE, env_vars={"PYTHONPATH": os.fspath(where / "broken")})
    code, out, said = run("cluster-check", "--address", machines.address)
    assert code == 1, said
    assert "broken" in out


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1"])
def test_a_wrong_address_is_told(run, address):
    pytest.importorskip("ray")
    code, out, said = run("cluster-check", "--address", address)
    assert (code, out) == ((2, "") if address == "nonsense" else (1, ""))
    assert "host:port" in said
