"""The store: the same model as from a table, bit for bit, and never a wrong one from a damaged file."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
from sklearn.base import clone

from dyads import (
    LBFGS,
    SGD,
    Gibbs,
    LFLClassifier,
    LFLLink,
    LFLOrdinal,
    LFLOrdinalCV,
    LFLRelational,
    Newton,
    SideInformation,
    evaluate,
    split,
)
from dyads.data.encode import scan
from dyads.data.features import Encoder
from dyads.data.store import FOLDS, Store, checksum_of, read_lines
from dyads.engine import passes
from dyads.errors import InputError, StoreError
from dyads.report import doctor

NAMES = {"row": "user", "col": "item", "label": "stars"}


def ratings(n=6000, seed=0):
    rng = np.random.default_rng(seed)
    users = np.array([f"u{i}" for i in range(90)])
    return pd.DataFrame(
        {
            "user": users[rng.zipf(1.4, n) % 90],
            "item": rng.integers(0, 50, n),
            "stars": rng.integers(1, 6, n),
            "weight": rng.integers(0, 4, n).astype(float),
            "kind": rng.choice(["seen", "bought"], n),
        }
    )


def written(table, folder, suffix, n_parts=3):
    folder.mkdir()
    for i, lines in enumerate(np.array_split(np.arange(len(table)), n_parts)):
        part, path = table.iloc[lines].reset_index(drop=True), folder / f"part-{i}.{suffix}"
        if suffix == "parquet":
            part.to_parquet(path, index=False)
        elif suffix == "arrow":
            pyarrow.feather.write_feather(pa.Table.from_pandas(part), path, compression="uncompressed")
        else:
            part.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    return str(folder / f"*.{suffix}")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return scan(written(ratings(), folder / "tables", "parquet"), **NAMES, to=folder / "store")


@pytest.fixture
def small_parts(monkeypatch):
    """Many parts and shards, as of data larger than memory."""
    monkeypatch.setattr("dyads.engine.orders.SORTED_DYADS", 700)
    monkeypatch.setattr("dyads.engine.orders.SHARD", 500)
    monkeypatch.setattr("dyads.data.dyads.CHUNK", 512)
    monkeypatch.setattr("dyads.data.encode.BATCH", 512)
    monkeypatch.setattr("dyads.data.store.BATCH", 512)
    monkeypatch.setattr("dyads.data.store.PART", 1000)


SOLVERS = {
    "sgd": LFLOrdinal(2, l2=3.0, solver=SGD(2), random_state=0),
    "lbfgs": LFLOrdinal(2, l2=3.0, solver=LBFGS(9), random_state=0),
    "newton": LFLOrdinal(2, l2=3.0, solver=Newton(2), random_state=0),
    "gibbs": LFLOrdinal(2, solver=Gibbs(sweeps=6), random_state=0),
    "a chosen penalty": LFLOrdinal(2, solver="point", random_state=0),
    "nominal": LFLClassifier(2, l2=3.0, solver=SGD(2), n_models=2, random_state=0),
    "features": LFLOrdinal(
        2,
        l2=3.0,
        solver=SGD(2),
        random_state=0,
        features=SideInformation(
            row=pd.DataFrame({"user": [*(f"u{i}" for i in range(90)), "new"], "age": range(91)}),
            col=pd.DataFrame({"item": range(60), "size": np.arange(60) % 7}),
            interactions=1,
        ),
    ),
    "implicit": LFLOrdinal(1, l2=3.0, solver=SGD(2), random_state=0, features=SideInformation(implicit=True)),
    "implicit, drawn": LFLOrdinal(1, solver=Gibbs(sweeps=4), random_state=0, features=SideInformation(implicit=True)),
}
LONG = ("newton", "features", "implicit, drawn")
"""Those whose kernels take longest to compile."""


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SOLVERS]
)
def test_a_store_and_a_table_give_the_same_model(name, made, small_parts, tmp_path):
    table = ratings()
    shutil.copytree(made.path, tmp_path / "store")
    of_store = clone(SOLVERS[name])
    of_table = clone(SOLVERS[name]).fit(table[["user", "item"]], table["stars"])
    of_store.fit(Store(tmp_path / "store"))
    for stored, read in zip(of_store.record_.draws, of_table.record_.draws, strict=True):
        np.testing.assert_array_equal(stored.theta, read.theta)
    pairs = table[["user", "item"]][:50]
    np.testing.assert_array_equal(of_store.predict_proba(pairs), of_table.predict_proba(pairs))
    assert of_store.trained_on_ == of_table.trained_on_
    # From the orders that the first fit has made.
    again = clone(SOLVERS[name]).fit(Store(tmp_path / "store"))
    np.testing.assert_array_equal(again.record_.draws[0].theta, of_table.record_.draws[0].theta)


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
def test_a_store_and_a_table_run_the_same_compiled_kernels(made, tmp_path):
    # A kernel that is compiled apart for arrays mapped from disk doubles the wait for the first fit.
    table, kernels = ratings(), (passes.sgd_pass, passes.row_pass, passes.col_pass, passes.loss_pass)
    shutil.copytree(made.path, tmp_path / "store")
    compiled = []
    for data in ((table[["user", "item"]], table["stars"]), (Store(tmp_path / "store"),)):
        for name in ("sgd", "lbfgs"):
            clone(SOLVERS[name]).fit(*data)
        compiled.append([list(kernel.signatures) for kernel in kernels])
    assert compiled[0] == compiled[1]


@pytest.mark.slow
def test_one_set_and_relations_come_from_a_store_too(tmp_path):
    rng = np.random.default_rng(0)
    links = pd.DataFrame({"source": rng.integers(0, 20, 300), "target": rng.integers(0, 20, 300)}).drop_duplicates()
    links["linked"] = (links["source"] * links["target"] % 3 == 0).astype(int)
    links["kind"] = np.where(links["source"] % 2, "a", "b")
    pattern = written(links, tmp_path / "tables", "parquet")
    columns = {"row": "source", "col": "target", "label": "linked"}
    plain = scan(pattern, **columns, to=tmp_path / "plain")
    model, X = LFLLink(1, structure="directed", l2=1.0, n_models=2, random_state=0), links[["source", "target"]]
    np.testing.assert_array_equal(
        clone(model).fit(plain).predict_proba(X), clone(model).fit(X, links["linked"]).predict_proba(X)
    )
    several = scan(pattern, **columns, relation="kind", to=tmp_path / "several")
    model, X = LFLRelational(1, l2=1.0, solver=SGD(2), random_state=0), links[["source", "target", "kind"]]
    np.testing.assert_array_equal(
        clone(model).fit(several).predict_proba(X), clone(model).fit(X, links["linked"]).predict_proba(X)
    )
    with pytest.raises(InputError, match="has no column of relations"):
        LFLRelational(1).fit(plain)


def forged(folder, name, change):
    """Change an array of a folder of a store, and write right checksums."""
    array = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", change(array))
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["files"][f"{name}.npy"] = zlib.crc32((folder / f"{name}.npy").read_bytes())
    manifest["checksum"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
def test_codes_beyond_their_vocabulary_are_refused_before_a_kernel_reads_them(made, tmp_path):
    for n, (order, name, change, said) in enumerate(
        (
            (
                "",
                "row",
                lambda codes: np.where(np.arange(len(codes)) == 7, 10**9, codes).astype(np.int32),
                "without an id",
            ),
            ("", "col", lambda codes: codes.astype(float), "float64"),
            ("", "label", lambda codes: codes[:-1], "shape"),
            ("by-row", "row", lambda codes: codes[::-1], "order of its name"),
            ("by-column", "place", lambda places: places + 1, "order of its name"),
        )
    ):
        folder = shutil.copytree(made.path, tmp_path / str(n))
        model = clone(SOLVERS["lbfgs"])
        if order:
            model.fit(Store(folder))
        forged(folder / order, name, change)
        with pytest.raises(StoreError, match=said):
            model.fit(Store(folder))


def test_a_worker_maps_a_file_once_however_many_parts_it_reads(made):
    row = made.dyads.row
    first, second = (
        read_lines(made.location, "", ["row"], begin, begin + 100, checksum_of([row[begin : begin + 100]]))["row"]
        for begin in (0, 3000)
    )
    assert second.ctypes.data - first.ctypes.data == 3000 * row.itemsize


def test_what_a_killed_process_has_left_is_removed_when_its_store_is_made_again(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    for process in (killed.pid, os.getpid()):
        (tmp_path / f".store.{socket.gethostname()}.{process}.0a.part").mkdir()
    scan(written(ratings(200), tmp_path / "tables", "parquet"), **NAMES, to=tmp_path / "store")
    assert sorted(path.name for path in tmp_path.glob(".store*")) == [
        f".store.{socket.gethostname()}.{os.getpid()}.0a.part"
    ]


def test_encoded_features_of_another_encoder_are_not_taken(tmp_path):
    table = ratings(400).assign(price=np.arange(400) % 7.0)
    store = scan(written(table, tmp_path / "tables", "parquet"), **NAMES, features=["price"], to=tmp_path / "store")
    first, second = (Encoder.learn_columns({"price": pa.array(prices)}) for prices in ([1.0, 2.0], [1.0, 9.0]))
    assert abs(store.encoded(first) - store.encoded(second)).sum() > 0
    assert abs(store.encoded(first) - first.encode_columns(store.features)).sum() == 0


def same_codes(pairs, others):
    for (ids, codes), (other_ids, other_codes) in zip(pairs.coded, others.coded, strict=True):
        assert ids.name == other_ids.name
        assert ids.ids.to_pylist() == other_ids.ids.to_pylist()
        np.testing.assert_array_equal(codes, other_codes)
    assert pairs.classes.tolist() == others.classes.tolist()
    np.testing.assert_array_equal(pairs.labels, others.labels)
    np.testing.assert_array_equal(pairs.dyads.weights, others.dyads.weights)


def test_a_part_of_a_store_is_the_store_of_a_part(small_parts, tmp_path):
    table = ratings().query("weight > 0").reset_index(drop=True)
    named = NAMES | {"weight": "weight", "relation": "kind"}
    whole = scan(written(table, tmp_path / "tables", "parquet"), **named, to=tmp_path / "whole")
    mask = (table.index % 7 < 3) & (table["stars"] != 2) & (table["user"] != "u1")
    part = scan(written(table[mask], tmp_path / "part tables", "parquet"), **named, to=tmp_path / "part")
    same_codes(whole.take(mask.to_numpy()), part)
    same_codes(whole.take(np.flatnonzero(mask), to=tmp_path / "taken"), part)
    same_codes(Store(tmp_path / "taken"), part)
    some = np.random.default_rng(0).permutation(len(table))[:2000]
    other = scan(written(table.iloc[some], tmp_path / "some tables", "parquet"), **named, to=tmp_path / "some")
    same_codes(whole.take(some).take(np.arange(2000)), other)
    with pytest.raises(InputError, match="expected at least one"):
        whole.take(np.zeros(len(whole), bool))
    with pytest.raises(InputError, match="exists"):
        whole.take(mask.to_numpy(), to=tmp_path / "taken")
    with pytest.raises(InputError, match="mask of shape"):
        whole.take(np.ones(3, bool))


@pytest.mark.parametrize(
    "splitter", [split.RandomCells(3), split.NewRows(3), split.NewColumns(2), split.NewBoth(2), split.LeaveKPerRow(2)]
)
def test_a_store_is_split_as_its_table(splitter, made):
    X = ratings()[["user", "item"]]
    for stored, read in zip(splitter.split(made), splitter.split(X), strict=True):
        for positions, others in zip(stored, read, strict=True):
            np.testing.assert_array_equal(positions, others)


def test_a_store_is_judged_as_its_table(made, small_parts):
    table = ratings()
    (train, test), *_ = split.NewRows(3).split(made)
    model = LFLOrdinal(1, l2=3.0, solver=SGD(2), random_state=0).fit(made.take(train))
    of_table = evaluate(model, table[["user", "item"]].iloc[test], table["stars"].iloc[test])
    of_store = evaluate(model, made.take(test)).to_pandas()
    pd.testing.assert_frame_equal(of_store, of_table, check_dtype=False, rtol=1e-12)
    everything = evaluate(model, made).to_pandas().query("predictor == 'model'").set_index("regime")["n"]
    assert everything.to_dict() == {"known": len(train), "new row": len(test), "all": 6000}
    with pytest.raises(InputError, match="the store holds them"):
        evaluate(model, made, table["stars"])
    with pytest.raises(InputError, match="expected y"):
        evaluate(model, table[["user", "item"]])
    other = LFLOrdinal(1, l2=3.0, solver=SGD(2)).fit(table.rename(columns={"user": "a"})[["a", "item"]], table["stars"])
    with pytest.raises(InputError, match=r"columns \['user', 'item'\], but the model was fitted on \['a', 'item'\]"):
        evaluate(other, made)


def test_a_store_is_described_as_its_table(small_parts, monkeypatch, tmp_path):
    # The trial of settings takes seconds: it is enough that it gets the same pairs.
    monkeypatch.setattr(doctor._Trial, "search", lambda self: "")
    monkeypatch.setattr(doctor._Trial, "shortfall", lambda self: [])
    monkeypatch.setattr(doctor._Trial, "figures", lambda self: {"X": [*map(list, self.X.values())], "y": list(self.y)})
    table = pd.concat([ratings(1200), ratings(60).assign(user="Other", item=lambda part: part["item"] + 1000)])
    store = scan(written(table, tmp_path / "tables", "parquet"), **NAMES, to=tmp_path / "store")
    monkeypatch.setattr(doctor, "SAMPLE", 2000)
    monkeypatch.setattr(doctor, "EDGES", 300)
    for large in (doctor.LARGE, 1000):
        monkeypatch.setattr(doctor, "LARGE", large)
        of_store, of_table = doctor.examine(store), doctor.examine(table[["user", "item"]], table["stars"])
        assert of_store == of_table
        assert of_store.facts["connected parts"] == 2
        assert any("repeat an earlier pair" in sentence for sentence in of_store.findings)
        assert len(of_store.checked["y"]) > 100
    related = scan(written(table, tmp_path / "again", "parquet"), **NAMES, relation="kind", to=tmp_path / "related")
    assert doctor.examine(related).advice == "--kind relational"


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
@pytest.mark.parametrize("solver", [SGD(2), Gibbs(sweeps=4)])
def test_a_model_goes_on_with_a_store_as_with_a_table(solver, made, small_parts):
    table = ratings()
    first, more = np.arange(4000), np.arange(3000, 6000)
    # A posterior needs all pairs; a point estimate the further ones, with new ids among them.
    more = np.arange(6000) if isinstance(solver, Gibbs) else more
    begun = LFLOrdinal(1, l2=None if isinstance(solver, Gibbs) else 3.0, solver=solver, random_state=0)
    of_store = clone(begun).fit(made.take(first)).partial_fit(made.take(more))
    of_table = clone(begun).fit(table[["user", "item"]][:4000], table["stars"][:4000])
    of_table.partial_fit(table[["user", "item"]].iloc[more], table["stars"].iloc[more])
    np.testing.assert_array_equal(of_store.record_.draws[-1].theta, of_table.record_.draws[-1].theta)
    assert of_store.row_ids_.tolist() == of_table.row_ids_.tolist()
    assert of_store.trained_on_ == of_table.trained_on_


def test_a_stream_may_begin_with_a_store(made):
    table = ratings()
    model = LFLOrdinal(1, l2=3.0, solver=SGD(2), random_state=0)
    few = made.take(np.flatnonzero(table["stars"] < 4))
    of_store = clone(model).partial_fit(few, classes=[1, 2, 3, 4, 5]).partial_fit(made)
    of_table = clone(model).partial_fit(
        table.query("stars < 4")[["user", "item"]], table.query("stars < 4")["stars"], classes=[1, 2, 3, 4, 5]
    )
    of_table.partial_fit(table[["user", "item"]], table["stars"])
    np.testing.assert_array_equal(of_store.record_.draws[0].theta, of_table.record_.draws[0].theta)
    folded = clone(model).fit(made.take(np.flatnonzero(table["user"] != "u1"))).fold_in(made)
    assert folded.support(pd.DataFrame({"user": ["u1"], "item": [3]}))[0, 0] == (table["user"] == "u1").sum()


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
def test_cross_validation_chooses_from_a_store_as_from_a_table(made, small_parts, tmp_path):
    table = ratings()
    shutil.copytree(made.path, tmp_path / "store")
    search = LFLOrdinalCV(2, solver=SGD(2), cv=2, random_state=0)
    of_table = clone(search).fit(table[["user", "item"]], table["stars"])
    folders = []

    def stop(done, planned):
        folders.append(len(os.listdir(tmp_path / "store" / FOLDS)))
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            clone(search).fit(Store(tmp_path / "store"), callback=stop, checkpoint=tmp_path / "search")
    assert folders == [2, 2, 2], "parts to train on and to judge on, each of more pairs than are kept in memory"
    # What a process that was killed has left is used, and removed.
    train, _ = next(split.RandomCells(2).split(made))
    Store(tmp_path / "store").part(train.astype(np.int32))
    of_store = clone(search).fit(Store(tmp_path / "store"), checkpoint=tmp_path / "search")
    assert of_store.best_params_ == of_table.best_params_
    np.testing.assert_array_equal(of_store.cv_results_["mean_test_score"], of_table.cv_results_["mean_test_score"])
    np.testing.assert_array_equal(of_store.record_.draws[0].theta, of_table.record_.draws[0].theta)
    assert of_store.held_out_ == of_table.held_out_
    assert not (tmp_path / "store" / FOLDS).exists()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "arrow"])
def test_a_store_depends_on_the_tables_alone(suffix, made, tmp_path):
    other = scan(written(ratings(), tmp_path / "tables", suffix, 7), **NAMES, to=tmp_path / "store")
    assert other.rows.ids.to_pylist() == made.rows.ids.to_pylist()
    for name in ("row", "col", "label"):
        np.testing.assert_array_equal(getattr(other.dyads, name), getattr(made.dyads, name))
    assert other.classes.tolist() == [1, 2, 3, 4, 5]


def test_weights_are_kept_and_zeros_left_out(tmp_path):
    table = ratings()
    store = scan(written(table, tmp_path / "tables", "parquet"), **NAMES, weight="weight", to=tmp_path / "store")
    assert len(store) == (table["weight"] > 0).sum()
    model = LFLOrdinal(1, l2=3.0, solver=SGD(2), random_state=0)
    of_table = clone(model).fit(table[["user", "item"]], table["stars"], table["weight"])
    np.testing.assert_array_equal(clone(model).fit(store).record_.draws[0].theta, of_table.record_.draws[0].theta)


def test_text_and_weights_are_read_as_from_a_table(tmp_path):
    table = pd.DataFrame({"user": list("abab"), "item": ["2020-01-01", "2020-01-02"] * 2, "stars": ["yes", "no"] * 2})
    store = scan(written(table, tmp_path / "tables", "csv", 1), **NAMES, to=tmp_path / "store")
    assert store.classes.tolist() == ["no", "yes"]
    assert store.cols.ids.to_pylist() == ["2020-01-01", "2020-01-02"]
    for wrong in (np.nan, np.inf, -1.0):
        table["weight"] = [1.0, wrong, 1.0, 0.0]
        folder = tmp_path / f"with {wrong}"
        with pytest.raises(InputError, match="weight"):
            scan(written(table, folder, "parquet", 1), **NAMES, weight="weight", to=tmp_path / "weighed")
    quarters = pd.DataFrame({"user": np.arange(200) % 7, "item": np.arange(200) % 9, "stars": np.arange(200) % 41 / 4})
    assert len(scan(written(quarters, tmp_path / "q", "parquet"), **NAMES, to=tmp_path / "quarters").classes) == 41


def flipped(path, rng):
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def files_of(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def test_a_flipped_or_missing_byte_never_gives_another_model(made, tmp_path):
    model = LFLOrdinal(1, l2=3.0, solver=SGD(1), random_state=0)
    expected = clone(model).fit(made).record_.draws[0].theta
    names = [path.relative_to(made.path) for path in files_of(made.path)]
    assert len(names) > 8
    rng = np.random.default_rng(0)
    for name in names:
        for damage in (lambda path: flipped(path, rng), lambda path: path.write_bytes(path.read_bytes()[:-1])):
            folder = tmp_path / "damaged"
            shutil.copytree(made.path, folder)
            damage(folder / name)
            with contextlib.suppress(StoreError):
                theta = clone(model).fit(Store(folder)).record_.draws[0].theta
                np.testing.assert_array_equal(theta, expected)
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"row": "nobody"}, "cannot be read"),
        ({"row": "item"}, "expected a different one for each"),
        ({"label": "nothing"}, "cannot be read"),
    ],
)
def test_bad_columns_get_a_sentence_and_leave_nothing(choices, says, tmp_path):
    pattern = written(ratings(600), tmp_path / "tables", "parquet")
    with pytest.raises(InputError, match=says):
        scan(pattern, **NAMES | choices, to=tmp_path / "store")
    assert sorted(os.listdir(tmp_path)) == ["tables"]


def test_bad_tables_get_a_sentence(tmp_path):
    table = ratings(600)
    with pytest.raises(InputError, match="No file matches"):
        scan(str(tmp_path / "*.parquet"), **NAMES, to=tmp_path / "store")
    table.loc[3, "user"] = None
    pattern = written(table, tmp_path / "tables", "parquet")
    with pytest.raises(InputError, match="Column 'user' lacks 1 value:"):
        scan(pattern, **NAMES, to=tmp_path / "store")
    (tmp_path / "tables" / "part-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="cannot be read"):
        scan(pattern, **NAMES, to=tmp_path / "store")
    with pytest.raises(StoreError, match="is not a store"):
        Store(tmp_path / "tables")
    (tmp_path / "store").mkdir()
    with pytest.raises(InputError, match="exists"):
        scan(pattern, **NAMES, to=tmp_path / "store")


ENCODE = """
import sys, dyads
print("ready", flush=True)
dyads.scan(sys.argv[1], row="user", col="item", label="stars", to=sys.argv[2])
print("done", flush=True)
"""


def test_a_killed_encoding_leaves_no_store(tmp_path):
    pattern = written(ratings(200_000), tmp_path / "tables", "parquet")
    rng = np.random.default_rng(0)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", ENCODE, pattern, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.1, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (tmp_path / "store").exists():
            assert len(Store(tmp_path / "store")) == 200_000, "it was complete"
            shutil.rmtree(tmp_path / "store")
    assert len(scan(pattern, **NAMES, to=tmp_path / "store")) == 200_000


def with_features(n=3000):
    """Pairs with features of every kind that a store keeps, some of them missing."""
    table, rng = ratings(n), np.random.default_rng(1)
    price, days = rng.normal(3.0, 2.0, n), rng.integers(0, 900, n)
    table["price"] = np.where(rng.random(n) < 0.1, np.nan, price + (table["stars"] == 5))
    table["device"] = pd.array(np.where(rng.random(n) < 0.2, None, rng.choice(["tv", "phone", "web"], n)), "string")
    table["age"] = rng.integers(-3, 9, n)
    table["is_new"] = rng.random(n) < 0.5
    table["when"] = pd.Timestamp("2020-03-01") + pd.to_timedelta(days, "h")
    return table


FEATURES = ["price", "device", "age", "is_new", "when"]


@pytest.fixture(scope="module")
def featured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("featured")
    pattern = written(with_features(), folder / "tables", "parquet")
    return scan(pattern, **NAMES, weight="weight", features=FEATURES, to=folder / "store")


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
@pytest.mark.parametrize(
    "name", ["sgd", "lbfgs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("newton", "gibbs"))]
)
def test_features_of_pairs_give_the_same_model_as_from_a_table(name, featured, small_parts, tmp_path):
    table = with_features()
    X, y, weight = table[["user", "item", *FEATURES]], table["stars"], table["weight"]
    shutil.copytree(featured.path, tmp_path / "store")
    of_table = clone(SOLVERS[name]).fit(X, y, weight)
    for _ in range(2):  # From the columns, then from the orders that the first fit has made.
        of_store = clone(SOLVERS[name]).fit(Store(tmp_path / "store"))
        for stored, read in zip(of_store.record_.draws, of_table.record_.draws, strict=True):
            np.testing.assert_array_equal(stored.theta, read.theta)
    side = of_table.record_.parts.layout(of_table.record_.known).side_weights(of_table.record_.draws[0].theta)[2]
    assert len(side) == 10
    assert np.abs(side).min() > 0, "all features count"
    assert of_store.columns_ == of_table.columns_
    kept = (weight > 0).to_numpy()
    np.testing.assert_array_equal(of_store.predict_proba(featured), of_table.predict_proba(X[kept]))
    judged = evaluate(of_store, featured).to_pandas()
    by_table = evaluate(of_table, X[kept], y[kept], weight[kept])
    pd.testing.assert_frame_equal(judged, by_table, check_dtype=False, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::dyads.errors.NotConvergedWarning")
def test_parts_and_streams_keep_features_of_pairs(featured, small_parts, tmp_path):
    table = with_features().query("weight > 0").reset_index(drop=True)
    X, y, weight = table[["user", "item", *FEATURES]], table["stars"], table["weight"]
    first = np.flatnonzero(X["device"].fillna("") != "web")
    of_table = clone(SOLVERS["sgd"]).fit(X.iloc[first], y[first], weight[first])
    for part in (featured.take(first), featured.take(first, to=tmp_path / "part")):
        of_store = clone(SOLVERS["sgd"]).fit(part)
        np.testing.assert_array_equal(of_store.record_.draws[0].theta, of_table.record_.draws[0].theta)
    of_store.partial_fit(featured)
    of_table.partial_fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(of_store.record_.draws[0].theta, of_table.record_.draws[0].theta)
    np.testing.assert_array_equal(of_store.predict_proba(featured), of_table.predict_proba(X))
    search = LFLOrdinalCV(1, solver=SGD(2), cv=2, random_state=0)
    by_store = clone(search).fit(featured)
    by_table = clone(search).fit(X, y, weight)
    assert by_store.best_params_ == by_table.best_params_
    np.testing.assert_array_equal(by_store.record_.draws[0].theta, by_table.record_.draws[0].theta)
    lines, labels, _ = featured.lines(np.arange(700))
    np.testing.assert_array_equal(of_store.predict_proba(lines), of_table.predict_proba(X[:700]))
    assert labels.to_pylist() == y[:700].tolist()


def test_features_of_pairs_must_fit_the_model(made, featured):
    with_them, without = clone(SOLVERS["sgd"]).fit(featured), clone(SOLVERS["sgd"]).fit(made)
    with pytest.raises(InputError, match=r"the store has none: expected the columns .*'price'.*features="):
        with_them.predict_proba(made)
    with pytest.raises(InputError, match="the store has none"):
        with_them.partial_fit(made)
    with pytest.raises(InputError, match=r"store has the features .*'price'.*fitted without"):
        without.partial_fit(featured)
    assert without.predict_proba(featured).shape == (len(featured), 5), "as further columns of a table"


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("tags", [["a"], ["b", "c"]], "'tags' holds lists"),
        ("price", [1.0, np.inf], "'price' has infinite numbers"),
        ("price", [1e200, 1.0], "'price' has infinite numbers"),
        ("price", [None, np.nan], "'price' has only missing values"),
        ("copy", [1, 2], "'copy' holds the labels themselves"),
        ("stars", None, "expected a different one for each"),
        ("nothing", None, "cannot be read"),
    ],
)
def test_bad_features_of_pairs_get_a_sentence(column, values, says, tmp_path):
    table = pd.DataFrame({"user": ["a", "b"], "item": [1, 2], "stars": [1, 2]})
    if values is not None:
        table[column] = pd.Series(values, dtype=None if isinstance(values[0], list | int) else float)
    pattern = written(table, tmp_path / "tables", "parquet", 1)
    with pytest.raises(InputError, match=says):
        scan(pattern, **NAMES, features=[column], to=tmp_path / "store")
    assert sorted(os.listdir(tmp_path)) == ["tables"]
    with pytest.raises(InputError, match="expected a list of names"):
        scan(pattern, **NAMES, features="price", to=tmp_path / "store")


def test_timestamps_in_nanoseconds_are_kept(tmp_path):
    table = with_features(600).assign(weight=1.0)
    table["when"] = table["when"].astype("datetime64[ns]") + pd.to_timedelta(np.arange(600) % 7, "ns")
    table.loc[::9, "when"] = pd.NaT
    path = tmp_path / "table.arrow"
    pyarrow.feather.write_feather(pa.Table.from_pandas(table), path, compression="uncompressed")
    store = scan(path, **NAMES, features=["when"], to=tmp_path / "store")
    model = LFLOrdinal(1, l2=3.0, solver=SGD(1), random_state=0)
    of_table = clone(model).fit(table[["user", "item", "when"]], table["stars"])
    np.testing.assert_array_equal(clone(model).fit(store).record_.draws[0].theta, of_table.record_.draws[0].theta)
