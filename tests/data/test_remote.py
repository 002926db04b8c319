"""A store of object storage: the same model, from a local server that speaks S3; on a cluster in the slow suite."""

import numpy as np
import pandas as pd
import pytest
from pyarrow import fs

import dyads
from dyads.data import remote
from dyads.data.arrays import MANIFEST
from dyads.data.store import Store, checksum_of, read_lines
from dyads.engine import cluster
from dyads.errors import StoreError
from dyads.model.loss import Log
from dyads.model.parameters import Role
from engine.test_cluster import InProcess, machines  # noqa: F401  # A fixture.
from problems import STRUCTURES, make_objective


@pytest.fixture(scope="module")
def server():
    """A server on the loopback; the end of an address that names it."""
    moto = pytest.importorskip("moto.server")
    made = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    made.start()
    _, port = made.get_host_and_port()
    yield f"?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1&allow_bucket_creation=true"
    made.stop()


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A store on disk, and a user with an empty cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    rng = np.random.default_rng(0)
    ratings = {"user": rng.integers(0, 60, 4000), "item": rng.integers(0, 40, 4000), "stars": rng.integers(1, 6, 4000)}
    pd.DataFrame(ratings).to_parquet(tmp_path / "ratings.parquet")
    names = {"row": "user", "col": "item", "label": "stars"}
    return dyads.scan(tmp_path / "ratings.parquet", **names, to=tmp_path / "store")


def sent(store, address):
    system, path = fs.FileSystem.from_uri(address)
    system.create_dir(path)
    fs.copy_files(str(store.path), path, destination_filesystem=system)
    return address


def fitted(store, engine="cpu"):
    return dyads.LFLOrdinal(2, l2=3.0, solver=dyads.Newton(2, tol=0.0), random_state=0, engine=engine).fit(store)


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
def test_a_store_of_object_storage_gives_the_model_of_the_folder_and_keeps_its_orders_there(server, local, tmp_path):
    address = sent(local, f"s3://testing:testing@bucket/ratings.store{server}")
    first, away = fitted(local), Store(address)
    assert "testing:" not in repr(away)
    found = fitted(away)
    np.testing.assert_array_equal(found.record_.draws[0].theta, first.record_.draws[0].theta)
    assert MANIFEST in remote.files(address, "by-row")
    assert MANIFEST in remote.files(address, "by-column")
    # Another machine finds the orders there.
    (tmp_path / "home").rename(tmp_path / "other-home")
    (away.path.parent).mkdir(parents=True)
    again = Store(address)
    in_order, _ = again.in_order("by-row", again.dyads, iter(()))
    np.testing.assert_array_equal(in_order.row, np.sort(local.dyads.row))


def test_an_order_that_was_not_sent_whole_is_sent_by_the_next_fit(server, local, monkeypatch):
    address = sent(local, f"s3://testing:testing@bucket/half.store{server}")
    send, store = remote.send, Store(address)

    def refused(address, folder, names, where):
        send(address, folder, list(names)[:1], where)
        raise StoreError("s3://bucket/half.store cannot be reached (access denied).")

    def parts():
        yield np.argsort(store.dyads.row, kind="stable")

    with monkeypatch.context() as patch:
        patch.setattr(remote, "send", refused)
        in_order, _ = store.in_order("by-row", store.dyads, parts())
        np.testing.assert_array_equal(in_order.row, np.sort(local.dyads.row))
        # The cluster engine, whose workers read the order there, says why it cannot.
        objective = make_objective(STRUCTURES[0], Log(), store.dyads)
        bound = cluster.ClusterBound(objective, store.dyads, None, InProcess())
        with pytest.raises(StoreError, match=r"'by-row'.*access denied.*write"):
            bound.shards(Role.ROW)
    assert MANIFEST not in remote.files(address, "by-row")
    Store(address).in_order("by-row", store.dyads, iter(()))
    assert MANIFEST in remote.files(address, "by-row")


def test_what_is_wrong_with_the_copy_of_a_store_says_to_delete_it(server, local, tmp_path):
    address = sent(local, f"s3://testing:testing@bucket/damaged.store{server}")
    path = Store(address).path
    (path / "label.npy").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=f"label.npy is damaged.*delete the folder {path}, a copy"):
        _ = Store(address).dyads
    (tmp_path / "home" / ".cache" / "dyads" / "stores").rename(tmp_path / "elsewhere")
    (tmp_path / "home" / ".cache" / "dyads" / "stores").write_text("a file")
    with pytest.raises(StoreError, match=r"stores cannot be made.*expected a folder to write to"):
        Store(address)


def test_workers_read_parts_of_it_and_check_them(server, local):
    address = sent(local, f"s3://testing:testing@bucket/parts.store{server}")
    some = {name: getattr(local.dyads, name)[700:1900] for name in ("row", "col", "label")}
    found = read_lines(address, "", list(some), 700, 1900, checksum_of(some.values()))
    for name, column in some.items():
        np.testing.assert_array_equal(found[name], column)
    with pytest.raises(StoreError, match="holds other pairs"):
        read_lines(address, "", list(some), 701, 1901, checksum_of(some.values()))


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_workers_of_a_cluster_read_it_themselves(server, local, machines):  # noqa: F811
    address = sent(local, f"s3://testing:testing@bucket/cluster.store{server}")
    found, expected = fitted(Store(address), dyads.Ray(machines.address)), fitted(local)
    np.testing.assert_array_equal(found.record_.draws[0].theta, expected.record_.draws[0].theta)


def test_an_address_without_a_store_is_told_without_its_key(server, local):
    with pytest.raises(StoreError, match="s3://bucket/none is not a store") as error:
        Store(f"s3://testing:secret@bucket/none{server}")
    assert "secret" not in str(error.value)
    with pytest.raises(StoreError, match="no address of object storage"):
        Store("nowhere://bucket/store")
    for secret in ("hid/den", "hid?den+", "hid@den"):
        with pytest.raises(StoreError, match="write / as %2F") as error:
            Store(f"s3://testing:{secret}@buck et/store?scheme=%zz")
        assert "hid" not in str(error.value)
        assert error.value.__suppress_context__
