"""`dyads predict` of a folder, on this machine and on a cluster; `dyads cluster-check`."""

import os

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dyads import LFLOrdinal
from engine.test_cluster import NODE, machines  # noqa: F401  # A fixture.


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
    assert len(list((folder / "out").iterdir())) == 3


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


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_cluster_predicts_a_folder_and_is_checked(run, folder, machines):  # noqa: F811
    where = folder[0]
    arguments = ("--engine", "ray", "--engine-address", machines.address)
    code, _, said = run("predict", where / "model.dyads", where / "pairs", "-o", where / "out", *arguments)
    assert code == 0, said
    check(*folder)
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
