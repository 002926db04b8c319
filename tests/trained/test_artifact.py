"""The model file: what was saved comes back, and what is damaged does not."""

import json
import os
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dyads
from dyads import LBFGS, Gibbs, LFLClassifier, LFLOrdinal, SideInformation
from dyads.datasets.synthetic import make_store
from dyads.errors import ModelFileError
from dyads.trained.calibration import CALIBRATORS
from fuzz import mutations


@pytest.fixture(scope="module")
def store():
    data, _ = make_store(n_shoppers=40, n_products=30).split(0.8)
    return data


@pytest.fixture(scope="module")
def model(store):
    return LFLClassifier(rank=2, l2=1.0, random_state=0).fit(store.X, store.y)


@pytest.fixture
def path(model, tmp_path):
    model.save(tmp_path / "model.dyads")
    return tmp_path / "model.dyads"


def test_a_saved_model_predicts_the_same(model, path, store):
    again = dyads.load(path)
    assert type(again) is LFLClassifier
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.predict_proba(store.X), model.predict_proba(store.X))
    np.testing.assert_array_equal(again.predict(store.X), model.predict(store.X))
    for name in ("n_iter_", "converged_", "objective_", "solver_", "n_parameters_", "n_features_in_"):
        assert getattr(again, name) == getattr(model, name)
    assert again.trace_["objective"] == model.trace_["objective"]
    again.save(path)
    np.testing.assert_array_equal(dyads.load(path).row_factors_, model.row_factors_)


@pytest.mark.parametrize(
    ("ids", "labels"),
    [
        (pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"]), [0.5, 1.5, 0.5, 2.0]),
        ([b"a", b"b", b"c", b"d"], [True, False, True, False]),
        ([2**63, 5, 6, 7], [3, 1, 2, 2]),
    ],
    ids=["dates", "bytes", "integers"],
)
def test_ids_and_labels_of_any_type_come_back(ids, labels, tmp_path):
    X = {"when": ids, "what": ["x", "y", "x", "y"]}
    model = LFLOrdinal(rank=1, loss=dyads.Absolute(0.2), random_state=np.random.RandomState(0), solver="point").fit(
        X, labels
    )
    model.save(tmp_path / "m")
    again = dyads.load(tmp_path / "m")
    assert again.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.predict_mean(X), model.predict_mean(X))
    assert again.loss == model.loss


def test_the_file_is_a_stored_zip_with_aligned_parts_and_no_pickle(path):
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
        manifest = json.loads(archive.read("manifest.json"))
        content = path.read_bytes()
        for name in names:
            assert content.index(archive.read(name)) % 64 == 0
    assert set(names) == {"manifest.json", "arrays.safetensors"}
    assert manifest["version"] == [7, 0]
    assert manifest["library"] == dyads.__version__
    assert b"numpy.core" not in content
    assert b"sklearn" not in content


def test_a_flipped_byte_anywhere_in_a_part_is_noticed(path):
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        places = [content.index(archive.read(name)) + len(archive.read(name)) // 2 for name in archive.namelist()]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="damaged"):
            dyads.load(path)


def test_no_flipped_bit_of_the_zip_itself_escapes_as_another_error(path, store):
    content = path.read_bytes()
    expected = dyads.load(path).predict_proba(store.X)
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
    for place in range(directory, len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = dyads.load(path)
        except ModelFileError:
            continue
        np.testing.assert_array_equal(found.predict_proba(store.X), expected)


def test_numpy_parameters_are_saved_as_numbers(store, tmp_path):
    model = LFLClassifier(rank=np.int64(2), l2=np.float32(1.5), reference=np.str_("viewed"), random_state=np.int32(0))
    model.fit(store.X, store.y).save(tmp_path / "m")
    assert dyads.load(tmp_path / "m").rank == 2
    assert np.isnan(dyads.load(tmp_path / "m").trace_["validation"]).all()


def test_a_file_of_a_later_version_says_so(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    about = manifest["about"]
    for change in (
        {"structure": {"name": "novel"}},
        {"about": about | {"estimator": "LFLNovel"}},
        {"about": about | {"parameters": about["parameters"] | {"novel": 1}}},
    ):
        parts["manifest.json"] = json.dumps(manifest | change).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
        with pytest.raises(ModelFileError, match=r"does not know.*Upgrade"):
            dyads.load(path)


@pytest.mark.parametrize("place", [".", "missing/model"])
def test_saving_to_no_file_is_one_sentence(model, tmp_path, place):
    with pytest.raises(ModelFileError, match="expected a file name in an existing folder"):
        model.save(tmp_path / place)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_file_is_noticed(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError, match="is not a dyads model"):
        dyads.load(path)


def test_another_major_format_is_refused(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    for version, remedy in (([7, 9], None), ([8, 0], "upgrade dyads"), ([2, 0], "fit the model again")):
        parts["manifest.json"] = json.dumps(manifest | {"version": version}).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
        if remedy is None:
            dyads.load(path)
        else:
            with pytest.raises(ModelFileError, match=rf"has format .\.0.*{remedy}"):
                dyads.load(path)


def test_a_file_of_the_format_before_draws_is_refused_in_one_sentence(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    del manifest["draws"]
    old = manifest | {"version": [3, 0], "library": "0.1.0", "members": 0}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in (parts | {"manifest.json": json.dumps(old).encode()}).items():
            archive.writestr(name, part)
    with pytest.raises(ModelFileError) as refused:
        dyads.load(path)
    assert str(refused.value) == (
        f"{path} has format 3.0, written by dyads 0.1.0, but this version reads format 7: fit the model again."
    )


def test_what_is_known_is_in_the_file_once_however_many_draws(store, tmp_path):
    shoppers = np.unique(store.X["shopper"])

    side = SideInformation(row={"shopper": shoppers, "size": np.arange(len(shoppers))})
    model = LFLClassifier(rank=1, features=side, solver=Gibbs(sweeps=8), random_state=0).fit(store.X, store.y)
    model.save(tmp_path / "m")
    with zipfile.ZipFile(tmp_path / "m") as archive:
        part = archive.read("arrays.safetensors")
    names = set(json.loads(part[8 : 8 + int.from_bytes(part[:8], "little")]))
    own = {name.partition(".")[2] for name in names if name.startswith("0.")}
    assert {"row_counts", "row_features_data", "relation_counts"} <= names
    once = {"row_partner_shift", "col_partner_shift"}
    assert {f"{len(model.record_.draws) - 1}.{name}" for name in own - once} <= names
    assert not {f"1.{name}" for name in once} & names, "draws share these"


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(ModelFileError, match="is not a dyads model"):
        dyads.load(text)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(ModelFileError, match="is not a dyads model"):
        dyads.load(tmp_path / "other.zip")
    with pytest.raises(FileNotFoundError):
        dyads.load(tmp_path / "missing")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(model, path, monkeypatch):
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        model.save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_loaded_model_can_be_fitted_again(path, store):
    again = dyads.load(path).set_params(warm_start=True, solver=LBFGS(max_iter=50))
    again.fit(store.X, store.y)
    assert again.converged_


IDS = {
    "text": st.text(max_size=5),
    "integers": st.integers(-(2**63), 2**63 - 1),
    "large integers": st.integers(0, 2**64 - 1),
    "floats": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=4),
    "dates": st.dates(),
}
LABELS = [["é", "n,o", '"'], [-7, 0, 2**40], [0.5, 1e300, -2.0], [True, False]]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", IDS)
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate])
@given(data=st.data(), labels=st.sampled_from(LABELS), method=st.sampled_from([None, *CALIBRATORS]))
def test_a_loaded_model_has_the_same_ids_labels_and_bits(kind, data, labels, method):
    rows = data.draw(st.lists(IDS[kind], min_size=2, max_size=5, unique=True))
    X = {"row": [row for row in rows for _ in range(3)], "col": ["x", "y", "z"] * len(rows)}
    y = [labels[i * i % len(labels)] for i in range(len(X["row"]))]
    model = LFLClassifier(rank=1, solver=LBFGS(max_iter=3), random_state=0).fit(X, y)
    if method is not None:
        model.calibrate(X, y, method=method)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.dyads")
        again = dyads.load(Path(folder) / "model.dyads")
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(again.predict(X), model.predict(X), strict=True)
    np.testing.assert_array_equal(again.classes_, model.classes_, strict=True)
    np.testing.assert_array_equal(again.row_ids_, model.row_ids_, strict=True)
    assert again.record_.known.rows.ids.ids.to_pylist() == rows


# ------------------------------------------------------------------------------------- files that change or are forged


def test_a_loaded_model_does_not_follow_its_file(model, path, store, tmp_path):
    loaded = dyads.load(path)
    expected = model.predict_proba(store.X)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) // 2))
    np.testing.assert_array_equal(loaded.predict_proba(store.X), expected)
    os.truncate(path, 100)
    np.testing.assert_array_equal(loaded.predict_proba(store.X), expected)
    path.unlink()
    np.testing.assert_array_equal(loaded.predict_proba(store.X), expected)


def test_a_pipe_is_refused_at_once(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="is not a file"):
        dyads.load(tmp_path / "pipe")
    with pytest.raises(dyads.errors.InputError, match="pipe"):
        model.save(tmp_path / "pipe")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_compressed_part_is_refused_before_it_is_unpacked(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["manifest.json"] += b" " * 2**26
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    with pytest.raises(ModelFileError, match="compressed"):
        dyads.load(path)


def _set(name, place, value):
    return lambda manifest, arrays: arrays[name].__setitem__(place, value)


OVERFLOWING = {"name": "logistic", "values": [1, 1e308, 3], "centre": 2, "scale": 1, "coefficients": [[0, 0, 1]] * 3}
OVERFLOWING["intercept"] = [0, 0, 0]

FORGED = {
    "a text beyond the bytes": (lambda m, a: a.update({"rows.ends": a["rows.ends"] + 2**40}), "rows"),
    "bytes that are not text": (lambda m, a: a.update({"rows.data": a["rows.data"] | 0x80}), "rows"),
    "an id twice": (lambda m, a: a.update({"cols.ends": 0 * a["cols.ends"], "cols.data": a["cols.data"][:0]}), "cols"),
    "a feature beyond the last": (_set("row_features_indices", 0, 2**31 - 1), "row_features_indices"),
    "a line that starts late": (_set("row_features_indptr", 1, 2**30), "row_features_indptr"),
    "a billion draws": (lambda m, a: m.update(draws=10**9), "draws"),
    "a best draw beyond the last": (lambda m, a: m.update(best=10**9), "best"),
    "a pair seen beyond the columns": (lambda m, a: a.update(seen_col=a["seen_col"] + 2**20), "seen_col"),
    "pairs seen of no row": (lambda m, a: a.update(seen_start=a["seen_start"][:-1]), "seen_start"),
    "links that are a number": (lambda m, a: m.update(only_links=1), "only_links"),
    "a rank beyond the parameters": (lambda m, a: m["structure"].update(rank=10**5), "rank|theta"),
    "NaN parameters": (_set("0.theta", 3, np.nan), "0.theta"),
    "parameters that overflow": (lambda m, a: a.update({"0.theta": 0 * a["0.theta"] + 1e99}), "0.theta"),
    "negative counts": (_set("row_counts", 0, -1), "row_counts"),
    "a version that is no number": (lambda m, a: m.update(version=[5, "x"]), "version"),
    "a scale of zero": (lambda m, a: m["encoders"]["row"]["columns"][0].update(standard=[0.0, 0.0]), "encoders"),
    "no temperature": (lambda m, a: m.update(calibrator={"name": "temperature", "temperature": -1}), "calibrator"),
    "a trace that is no table": (lambda m, a: m["about"]["fit"].update(trace_={"objective": 3}), "trace_"),
    "a solver that is a list": (lambda m, a: m["about"]["fit"].update(solver_=[]), "solver_"),
    "a name that is no text": (lambda m, a: m.update(columns=["\udcff", "product"]), "UnicodeEncodeError"),
    "infinity in single precision": (
        lambda m, a: a.update({"0.theta": np.full_like(a["0.theta"], np.inf, "f4")}),
        "0.theta",
    ),
    "a calibrator that overflows": (lambda m, a: m.update(calibrator=OVERFLOWING), "calibrator"),
    "scores that do not ascend": (lambda m, a: a.update(nonconformity=np.array([0.5, 0.1])), "nonconformity"),
    "a dialect that is none": (lambda m, a: m["about"]["fit"]["trained_on_"].update(dialect={"x": 1}), "trained_on_"),
    "non-links without a rate": (lambda m, a: m["about"]["fit"]["trained_on_"].update(negatives="all"), "trained_on_"),
    "a search without a score": (lambda m, a: m["about"]["fit"]["trained_on_"].update(chosen={}), "held_out_"),
    "another rank": (lambda m, a: m["about"]["parameters"].update(rank=10**6), "rank"),
    "a type that is no name": (lambda m, a: m.update(labels=2**63), "labels"),
    "columns of another table": (lambda m, a: m["about"]["fit"].update(columns_=["a", "b"]), "columns_"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_file_with_right_checksums_is_refused_by_the_name_of_its_part(store, tmp_path, forgery):
    shoppers = np.unique(store.X["shopper"])
    side = SideInformation(row={"shopper": shoppers, "size": np.arange(len(shoppers)) % 7})
    path = tmp_path / "m.dyads"
    LFLClassifier(rank=1, l2=0.5, features=side, random_state=0).fit(store.X, store.y).save(path)
    manifest, arrays = mutations.unpacked(path.read_bytes())
    arrays = {name: array.copy() for name, array in arrays.items()}
    path.write_bytes(mutations.packed(manifest, arrays))
    dyads.load(path)
    change, part = FORGED[forgery]
    change(manifest, arrays)
    path.write_bytes(mutations.packed(manifest, arrays))
    with pytest.raises(ModelFileError, match=part):
        dyads.load(path)


def test_lengths_that_take_no_bytes_are_refused(store, tmp_path):
    path = tmp_path / "m.dyads"
    LFLClassifier(rank=0, bias=False, solver="point").fit(store.X, store.y).save(path)
    manifest, arrays = mutations.unpacked(path.read_bytes())
    spread = {f"0.{side}_spread": np.zeros((2**40, 0)) for side in ("row", "col")}
    path.write_bytes(mutations.packed(manifest, arrays | spread))
    with pytest.raises(ModelFileError, match="_spread"):
        dyads.load(path)


def test_features_of_any_size_come_back(store, tmp_path):
    shoppers = np.unique(store.X["shopper"])
    seconds = 1.6e9 + 1e7 * np.arange(len(shoppers))
    side = SideInformation(row=(shoppers, np.column_stack([seconds, np.ones(len(shoppers))])), interactions=1)
    model = LFLClassifier(rank=1, features=side, solver=LBFGS(max_iter=5), random_state=0).fit(store.X, store.y)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(dyads.load(tmp_path / "m").predict_proba(store.X), model.predict_proba(store.X))


@pytest.mark.slow
def test_eight_threads_predict_the_same_while_the_file_is_overwritten_cut_and_deleted(model, path, store):
    content, expected = path.read_bytes(), model.predict_proba(store.X)
    loaded, stop, wrong = dyads.load(path), threading.Event(), []

    def predict():
        while not stop.is_set():
            if not np.array_equal(loaded.predict_proba(store.X), expected):
                wrong.append("other predictions")

    threads = [threading.Thread(target=predict) for _ in range(8)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for number in range(1000):
        if number % 3 == 0:
            path.write_bytes(rng.bytes(len(content)))
        elif number % 3 == 1:
            os.truncate(path, int(rng.integers(len(content))))
        else:
            path.unlink()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
