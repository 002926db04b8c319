"""The command, as a user types it: every part of it end to end, and what it says when something is wrong."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import dyads
from dyads.cli import console
from dyads.datasets import sources
from dyads.estimators.kinds import LFLClassifier
from dyads.estimators.settings import SETTINGS
from dyads.metrics import TITLES

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    user, item = (each.ravel() for each in np.indices((30, 25)))
    taste, appeal = rng.normal(size=(2, 30))
    stars = np.clip(np.rint(3 + taste[user] * appeal[item] + rng.normal(scale=0.7, size=len(user))), 1, 5).astype(int)
    table = pd.DataFrame(
        {"user": [f"u{i}" for i in user], "item": item, "rating": stars, "when": rng.random(len(user))}
    )
    return table.sample(frac=0.8, random_state=0)


@pytest.fixture
def files(here, ratings):
    """train.csv, test.csv, users.csv and a fitted model."""
    ratings[:450].to_csv("train.csv", index=False)
    ratings[450:].to_csv("test.csv", index=False)
    users = pd.DataFrame({"user": [f"u{i}" for i in range(32)], "age": np.arange(32), "job": ["a", "b"] * 16})
    users.to_csv("users.csv", index=False)
    model = dyads.LFLOrdinal(rank=2, l2=1.0, random_state=0, id_columns=("user", "item"))
    model.fit(ratings[:450][["user", "item"]], ratings[:450]["rating"]).save("model.dyads")
    return here


POINT = ("--solver", "point")

FIT = ("fit", "train.csv", "--row", "user", "--col", "item", "--label", "rating", "--kind", "ordinal", "--rank", 2)


def test_a_model_goes_from_a_table_to_predictions(run, files):
    code, out, _ = run(*FIT, "--l2", 1, "--random-state", 0, "-o", "mine.dyads", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["pairs"], found["rows"], found["labels"]) == (450, 30, [1, 2, 3, 4, 5])
    assert run("predict", "mine.dyads", "test.csv", "-o", "out.csv") == (0, "", "")
    out, test = pd.read_csv("out.csv"), pd.read_csv("test.csv")
    mine = dyads.load("mine.dyads")
    proba = mine.predict_proba(test[["user", "item"]])
    np.testing.assert_allclose(out[[f"p_{i}" for i in range(1, 6)]], proba, rtol=1e-5)
    np.testing.assert_array_equal(out["label"], mine.predict(test[["user", "item"]]))
    np.testing.assert_allclose(out["mean"], mine.predict_mean(test[["user", "item"]]), rtol=1e-5)
    assert list(out["user"]) == list(test["user"])


def test_a_report_counts_weights(run, files, ratings):
    ratings[450:].assign(w=2).to_csv("weighted.csv", index=False)
    code, _, err = run("report", "model.dyads", "weighted.csv", "--label", "rating", "--weight", "w", "-o", "page.html")
    assert code == 0, err
    assert "the weights of the pairs sum to 300<" in (files / "page.html").read_text()


def test_text_labels_are_fitted_in_the_order_that_is_given(run, files, ratings):
    levels = np.array(["low", "medium", "high"])
    words = ratings.assign(rating=levels[ratings["rating"] % 3], number=ratings["rating"] % 3)
    words.to_csv("words.csv", index=False)
    names = ("--row", "user", "--col", "item", "--rank", 0, "--kind", "ordinal", "--solver", "point")
    code, _, err = run("fit", "words.csv", *names, "--label", "rating", "-o", "words.dyads")
    assert code == 1
    assert "--order low,medium,high" in err
    assert run("fit", "words.csv", *names, "--label", "number", "-o", "numbers.dyads")[0] == 0
    order = ("--label", "rating", "--order", "low, medium,high")
    assert run("fit", "words.csv", *names, *order, "-o", "words.dyads")[0] == 0
    assert dyads.load("words.dyads").classes_.tolist() == levels.tolist()
    _, of_words, _ = run("evaluate", "words.dyads", "words.csv", "--label", "rating", "--json")
    _, of_numbers, _ = run("evaluate", "numbers.dyads", "words.csv", "--label", "number", "--json")
    assert json.loads(of_words) == json.loads(of_numbers)
    words["rating"] = pd.Categorical(words["rating"], levels, ordered=True)
    for path, write in (("words.parquet", words.to_parquet), ("words.arrow", words.reset_index(drop=True).to_feather)):
        write(path)
        assert run("fit", path, *names, "--label", "rating", "-o", "words.dyads", "--force")[0] == 0
        assert dyads.load("words.dyads").classes_.tolist() == levels.tolist()
    code, _, err = run("fit", "words.csv", "--order", "a,b", "-o", "nominal.dyads")
    assert code == 2
    assert "pass --kind ordinal" in err


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow", None])
def test_a_table_without_lines_keeps_the_columns_of_the_outputs(run, files, ratings, suffix, monkeypatch):
    def written(table, *command):
        """What a command writes of a table, as Arrow; through standard input and output without a suffix."""
        if suffix is None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(table.to_csv(index=False).encode())))
            code, out, err = run(command[0], "model.dyads", *command[1:], "-")
            return code, err, pa.csv.read_csv(io.BytesIO(out.encode()))
        save = {"csv": lambda path: table.to_csv(path, index=False), "parquet": table.to_parquet}
        save.get(suffix, table.to_feather)(f"pairs.{suffix}")
        code, _, err = run(command[0], "model.dyads", *command[1:], f"pairs.{suffix}", "-o", f"out.{suffix}", "--force")
        read = {"csv": pa.csv.read_csv, "parquet": pa.parquet.read_table}.get(suffix, pa.feather.read_table)
        return code, err, read(f"out.{suffix}")

    pairs = ratings[["user", "item"]].reset_index(drop=True)
    for command in (["predict"], ["explain"], ["recommend", "--ids"], ["similar", "--ids"]):
        _, _, some = written(pairs[:3], *command)
        code, err, none = written(pairs[:0], *command)
        assert (code, err, none.num_rows) == (0, "", 0)
        assert none.column_names == some.column_names
        if suffix in ("parquet", "arrow"):
            assert none.schema.types == some.schema.types


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "arrow"])
def test_every_format_is_read_and_written(run, files, ratings, suffix):
    test = ratings[450:]
    path = f"pairs.{suffix}"
    if suffix in ("csv", "tsv"):
        test.to_csv(path, index=False, sep="," if suffix == "csv" else "\t")
    else:
        test.to_parquet(path) if suffix == "parquet" else test.reset_index(drop=True).to_feather(path)
    assert run("predict", "model.dyads", path, "-o", f"out.{suffix}", "--give", "mean")[0] == 0
    read = {"parquet": pd.read_parquet, "arrow": pd.read_feather}.get(suffix)
    out = read(f"out.{suffix}") if read else pd.read_csv(f"out.{suffix}", sep="," if suffix == "csv" else "\t")
    expected = dyads.load("model.dyads").predict_mean(test[["user", "item"]])
    # Text has six digits, which people can read; the other formats have all.
    np.testing.assert_allclose(out["mean"], expected, rtol=1e-15 if read else 1e-5)


@pytest.mark.slow
def test_a_store_has_features_of_pairs(run, here):
    rng = np.random.default_rng(0)
    user, item, price = rng.integers(0, 12, 400), rng.integers(0, 10, 400), rng.normal(size=400)
    table = pd.DataFrame({"user": user, "item": item, "price": price, "stars": 1 + (price > 0)})
    table.to_parquet("ratings.parquet")
    encode = ("encode", "ratings.parquet", "--row", "user", "--col", "item", "--label", "stars")
    done, _, err = run(*encode, "--feature", "price", "-o", "r.store")
    assert done == 0, err
    done, out, err = run(
        "fit", "r.store", "--rank", "0", "--solver", "point", "--kind", "nominal", "-o", "m.dyads", "--json"
    )
    assert done == 0, err
    assert dyads.load("m.dyads").columns_ == ["user", "item", "price"]
    assert json.loads(out)["log_loss"]["model"] < 0.4
    done, out, err = run("evaluate", "m.dyads", "r.store", "--json")
    assert done == 0, err
    assert json.loads(out)[-1]["n"] == 400


@pytest.mark.slow
def test_a_store_is_described_split_fitted_and_judged(run, here, monkeypatch):
    monkeypatch.setattr("dyads.report.doctor.FEWEST_PAIRS", 1000)
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 12, 400), rng.integers(0, 10, 400)
    pd.DataFrame({"user": user, "item": item, "stars": 1 + (user + item) % 3}).to_parquet("ratings.parquet")
    done, _, err = run(
        "encode", "ratings.parquet", "--row", "user", "--col", "item", "--label", "stars", "-o", "r.store"
    )
    assert done == 0, err
    done, out, err = run("describe", "r.store")
    assert done == 0, err
    assert "Start with: dyads fit r.store --kind ordinal" in out
    done, _, err = run("split", "r.store", "--test", "0.25")
    assert done == 0, err
    assert "Wrote 300 pairs to r-train.store and 100 to r-test.store." in err
    chosen = ("--kind", "ordinal", "--rank", "1", "--solver", "sgd", "--random-state", "0")
    done, out, err = run("fit", "r-train.store", *chosen, "--cv", "-o", "m.dyads", "--json")
    assert done == 0, err
    assert json.loads(out)["pairs"] == 300
    done, out, err = run("evaluate", "m.dyads", "r-test.store", "--json")
    assert done == 0, err
    assert json.loads(out)[-1]["n"] == 100
    assert run("evaluate", "m.dyads", "r-test.store", "--ranking", "3")[0] == 0
    assert run("calibrate", "m.dyads", "r-test.store", "-o", "calibrated.dyads")[0] == 0
    for arguments, says in (
        (("describe", "r.store", "--label", "stars"), "omit --label"),
        (("evaluate", "m.dyads", "r.store", "--weight", "w"), "omit --weight"),
        (("fit", "r.store", "--row", "user", "--weight", "w", "-o", "n.dyads"), "omit --row and --weight"),
        (("fit", "r.store", "--feature", "x", "-o", "n.dyads"), "omit --feature"),
        (("split", "r.store", "--by", "time", "--time", "when"), "omit --time"),
        (("split", "r.store"), "r-train.store exists"),
    ):
        done, _, err = run(*arguments)
        assert done == 2, err
        assert says in " ".join(err.split())


class Interrupts:
    """A fit that Ctrl-C stops before it begins, after some others."""

    def __init__(self, after):
        self.left, self.fit = after, dyads.LFLOrdinal.fit

    def __get__(self, model, kind=None):
        def fit(*arguments, **named):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return self.fit(model, *arguments, **named)

        return fit


def test_a_search_that_is_interrupted_goes_on_with_the_same_command(run, here, monkeypatch):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 12, 400), rng.integers(0, 10, 400)
    pd.DataFrame({"user": user, "item": item, "label": 1 + (user + item) % 3}).to_csv("ratings.csv", index=False)
    command = ["fit", "ratings.csv", "--kind", "ordinal", "--rank", "1", "--solver", "sgd", "--cv"]
    seeded = [*command, "--random-state", "0"]
    assert run(*seeded, "-o", "whole.dyads")[0] == 0
    assert not (here / "whole.dyads.checkpoint").exists()

    def interrupted(*arguments):
        with monkeypatch.context() as patched:
            patched.setattr(dyads.LFLOrdinal, "fit", Interrupts(4))
            code, _, err = run(*arguments)
        assert code, err
        return " ".join(err.split())

    assert "Stopped. The state of the fit is in m.dyads.checkpoint" in interrupted(*seeded, "-o", "m.dyads")
    code, _, err = run(*command, "-o", "m.dyads")
    assert code == 0, err
    assert "Resumed after 3 fits, from m.dyads.checkpoint." in " ".join(err.split())
    whole, again = (dyads.load(name).record_.draws[0].theta for name in ("whole.dyads", "m.dyads"))
    np.testing.assert_array_equal(whole, again)
    assert not list(here.glob("m.dyads.*")), "the state is removed at the end"

    interrupted(*seeded, "-o", "n.dyads")
    code, _, err = run(*command, "--random-state", "1", "-o", "n.dyads")
    assert (code, "starting over" in " ".join(err.split())) == (0, True)
    interrupted(*seeded, "-o", "o.dyads", "--checkpoint", "kept")
    code, _, err = run(*command, "--random-state", "1", "-o", "o.dyads", "--checkpoint", "kept")
    assert (code, "is of a fit with another random_state" in " ".join(err.split())) == (1, True)


def test_every_other_command(run, files):
    code, out, _ = run("evaluate", "model.dyads", "test.csv", "--label", "rating", "--json")
    lines = {(line["regime"], line["predictor"]): line for line in json.loads(out)}
    assert (code, lines["all", "model"]["n"], lines["all", "labels by user"]["n"]) == (0, 150, 150)
    assert run("recommend", "model.dyads", "--id", "u1", "-n", 3, "-o", "best.csv")[0] == 0
    best = pd.read_csv("best.csv")
    assert list(best) == ["user", "item", "rank", "value"]
    assert list(best["rank"]) == [1, 2, 3]
    assert run("predict", "model.dyads", "best.csv", "--give", "mean", "-o", "means.csv")[0] == 0
    np.testing.assert_allclose(pd.read_csv("means.csv")["mean"], best["value"], rtol=1e-5)
    assert max(len(line.split(",")[-1]) for line in (files / "best.csv").read_text().splitlines()[1:]) <= 7
    assert run("recommend", "model.dyads", "--ids", "users.csv", "-n", 1, "--by", 5, "-o", "all.csv")[0] == 0
    assert len(pd.read_csv("all.csv")) == 32
    for side, name in (("row", "user"), ("col", "item")):
        asked = str(best[name][0])
        for command in (("recommend", "--with-seen"), ("similar",)):
            code, out, _ = run(command[0], "model.dyads", "--side", side, "--id", asked, "-n", 2, *command[1:])
            lines = pd.read_csv(io.StringIO(out), dtype=str)
            assert (code, lines[name].tolist()) == (0, [asked, asked])
    code, out, _ = run("evaluate", "model.dyads", "test.csv", "--label", "rating", "--ranking", 3, "--json")
    assert (code, [line["metric"] for line in json.loads(out)][:2]) == (0, ["precision@3", "recall@3"])
    code, out, _ = run("evaluate", "model.dyads", "best.csv", "--ranking", 3, "--relevant", 4, "--relevant", 5)
    assert (code, "3 relevant pairs" in out) == (0, True), "all pairs of a table without labels"
    assert run("evaluate", "model.dyads", "test.csv", "--ranking", 3, "--relevant", 9)[0] == 2
    assert run("explain", "model.dyads", "test.csv", "-o", "why.csv", "--picture", "why.png")[0] == 0
    assert list(pd.read_csv("why.csv"))[:4] == ["dyad", "user", "item", "label"]
    assert set(pd.read_csv("why.csv")["part"]) >= {"label bias", "row bias", "column bias"}
    assert (files / "why.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run("calibrate", "model.dyads", "test.csv", "--label", "rating", "-o", "true.dyads")
    assert (code, "Calibration error" in err) == (0, True)
    pd.DataFrame({"user": ["new"] * 5, "item": range(5), "rating": [5, 4, 5, 1, 2]}).to_csv("more.csv", index=False)
    code, _, err = run("fold-in", "model.dyads", "more.csv", "-o", "grown.dyads")
    assert (code, err) == (0, "Added 1 row and 0 columns. Wrote grown.dyads.\n")
    assert "new" in dyads.load("grown.dyads").row_ids_
    code, out, _ = run("info", "true.dyads", "--json")
    assert json.loads(out)["calibrated"] is True
    code, out, _ = run("describe", "train.csv", "--label", "rating")
    assert "--kind ordinal" in out
    assert run("report", "model.dyads", "test.csv", "-o", "page.html")[0] == 0
    text = (files / "page.html").read_text()
    assert "<h1>Report on model.dyads</h1>" in text
    assert " pairs of test.csv</dd>" in text


@pytest.mark.slow
def test_features_weights_relations_and_cross_validation(run, files, ratings):
    options = ("--row-features", "users.csv", "--weight", "when", "--feature", "when", *POINT, "-o", "side.dyads")
    assert run(*FIT, *options)[0] == 0
    assert dyads.load("side.dyads").columns_ == ["user", "item", "when"]
    assert run(*FIT, "--cv", "-o", "cv.dyads", "--json")[0] == 0
    relational = pd.concat([ratings.assign(kind=name, label=(ratings["rating"] > 3).astype(int)) for name in "ab"])
    relational[["user", "item", "kind", "label"]].to_csv("relations.csv", index=False)
    code, _, err = run("fit", "relations.csv", "--kind", "relational", "--relation", "kind", *POINT, "-o", "many.dyads")
    assert code == 0, err
    assert run("predict", "many.dyads", "relations.csv", "-o", "many.csv")[0] == 0
    assert list(pd.read_csv("many.csv").columns) == ["user", "item", "kind", "p_0", "p_1", "label"]


def test_features_of_pairs_are_read_as_for_the_fit(run, files, ratings):
    few = ratings[:450].assign(code=[f"A{i % 3}" if i % 2 else "7" for i in range(450)])
    few.to_csv("few.csv", index=False)
    fit = ("fit", "few.csv", "--row", "user", "--col", "item", "--label", "rating", "--kind", "ordinal", "--rank", 1)
    assert run(*fit, *POINT, "--feature", "when", "--feature", "code", "-o", "typed.dyads")[0] == 0
    n = 120_000
    whole = pd.DataFrame({"user": "u1", "item": 3, "when": ["1"] * (n - 1) + ["0.5"], "code": "7", "other": "x"})
    whole.to_csv("whole.csv", index=False)
    code, _, err = run("predict", "typed.dyads", "whole.csv", "--give", "mean", "-o", "said.csv")
    assert code == 0, err
    means = pd.read_csv("said.csv")["mean"]
    assert len(means) == n
    assert means.iloc[-1] != means.iloc[0]
    whole.astype({"when": float}).to_parquet("whole.parquet")
    assert run("predict", "typed.dyads", "whole.parquet", "--give", "mean", "-o", "again.csv")[0] == 0
    np.testing.assert_allclose(pd.read_csv("again.csv")["mean"], means)


def test_figures_of_cases_without_data_are_not_lost(run, here, monkeypatch):
    monkeypatch.setenv("DYADS_DATA", str(here / "none"))
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    (here / "results").mkdir()
    old = json.dumps({"point": {"records": [{"case": "USPS"}]}})
    (here / "results" / "digits.json").write_text(old)
    code, _, err = run("reproduce", "digits")
    assert code == 1
    assert "would be lost" in err
    assert (here / "results" / "digits.json").read_text() == old


def unreachable(*arguments, **options):
    raise OSError("no network")


def test_every_parameter_of_an_estimator_is_an_option(run):
    _, out, _ = run("fit", "--help")
    offered = set(re.findall(r"^ +--([\w-]+)", out, re.MULTILINE))
    # A command has no last fit to start from, draws a bar where an estimator logs, and names columns otherwise.
    left_out = {"warm_start", "verbose", "id_columns", "features"}
    wanted = set(LFLClassifier(solver="point").get_params()) - left_out
    for parameter, kinds in SETTINGS.items():
        wanted |= {f"{parameter}-{field}" for kind in kinds for field in kind().get_params()}
    wanted -= {"features-row", "features-col", "l2-latent"}
    assert {name.replace("_", "-") for name in wanted} <= offered


def test_an_option_of_a_settings_object_reaches_the_model(run, files):
    options = ("--solver", "sgd", "--solver-max-iter", 3, "--l2-bias", 1.5, "--no-bias", "--engine-threads", 1)
    code, _, err = run(*FIT, *options, "-o", "x.dyads")
    assert code == 1, "there are no biases to penalise"
    assert "l2 has bias=1.5" in err
    assert run(*FIT, *options[:-3], *options[-2:], "-o", "x.dyads")[0] == 0
    model = dyads.load("x.dyads")
    assert model.solver == dyads.SGD(max_iter=3)
    assert model.l2 == dyads.L2(bias=1.5)
    code, _, err = run(*FIT, "--solver-max-iter", 3, "-o", "y.dyads")
    assert code == 2
    assert "solver='auto' has no settings" in err
    code, _, err = run(*FIT, "--solver", "gibbs", "--solver-max-iter", 3, "-o", "y.dyads")
    assert code == 2
    assert "Gibbs has no setting 'max_iter'" in err


def test_standard_input_and_output(files):
    command = [sys.executable, "-m", "dyads.cli", "predict", "model.dyads", "-", "--give", "mean"]
    done = subprocess.run(command, stdin=open("test.csv"), capture_output=True, text=True)  # noqa: SIM115
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == '"user","item","mean"'
    assert len(done.stdout.splitlines()) == 151
    assert done.stderr == "", "quiet when not a terminal"


def test_ids_keep_their_zeros(run, here):
    pd.DataFrame({"a": ["007", "7", "008"] * 4, "b": ["1", "2", "3", "4"] * 3, "label": ["x", "y", "x"] * 4}).to_csv(
        "zeros.csv", index=False
    )
    assert run("fit", "zeros.csv", *POINT, "-o", "zeros.dyads")[0] == 0
    model = dyads.load("zeros.dyads")
    assert sorted(model.row_ids_) == ["007", "008", "7"]
    assert sorted(model.col_ids_) == [1, 2, 3, 4]
    pd.DataFrame({"a": ["7"], "b": ["3"]}).to_csv("ask.csv", index=False)
    assert run("predict", "zeros.dyads", "ask.csv", "-o", "said.csv")[2] == "", (
        "7 is a known id though it looks a number"
    )


BAD = {
    "missing column": (
        ("describe", "test.csv"),
        1,
        "test.csv has no column 'label'.*'user', 'item', 'rating', 'when'.*--label",
    ),
    "missing column of labels of the fit": (
        ("evaluate", "model.dyads", "unlabelled.csv"),
        1,
        "unlabelled.csv has no column 'rating'.*--label",
    ),
    "missing column of ids": (
        ("predict", "model.dyads", "users.csv"),
        1,
        "users.csv has no column 'item'.*'user', 'age', 'job'",
    ),
    "missing file": (("predict", "model.dyads", "none.csv"), 1, "There is no file none.csv"),
    "missing model": (("predict", "none.dyads", "test.csv"), 1, "There is no file none.dyads"),
    "no model": (("info", "test.csv"), 1, "test.csv is not a dyads model: expected"),
    "empty file": (("predict", "model.dyads", "empty.csv"), 1, "empty.csv is empty"),
    "header alone": (("describe", "header.csv"), 1, "header.csv has no lines"),
    "ragged file": (("describe", "ragged.csv"), 1, "ragged.csv cannot be read as csv.*Expected 3 columns, got 2"),
    "binary file": (("describe", "binary.csv"), 1, "binary.csv is not encoded in UTF-8.*--encoding latin-1"),
    "unknown format": (("describe", "users.xyz"), 1, "format of users.xyz is unknown.*--format"),
    "no header": (("describe", "bare.csv"), 1, r"first line of bare.csv looks like data \(u1, 1, 5\).*--no-header"),
    "wrong separator": (
        ("describe", "test.csv", "--separator", ";"),
        1,
        "no column 'label'.*several columns, pass their --separator",
    ),
    "no header where the fit had one": (
        ("predict", "model.dyads", "bare.csv", "--no-header"),
        1,
        r"no column 'user'.*\['1', '2', '3'\].*add a header",
    ),
    "tables to a file": (("demo", "--data", "test.csv"), 2, "test.csv is a file: expected a folder"),
    "unknown encoding": (("describe", "test.csv", "--encoding", "latin-99"), 2, "Got --encoding='latin-99'"),
    "unknown name of a format": (("describe", "test.csv", "--format", "xls"), 2, "Got --format='xls'"),
    "links without non-links": (
        ("fit", "users.csv", "--kind", "link", "-o", "x.dyads"),
        1,
        "users.csv has no column 'label'.*--negatives",
    ),
    "non-links for ratings": (
        (*FIT, "--negatives", "all", "-o", "x.dyads"),
        2,
        "--negatives is for links without --label",
    ),
    "rate without a sample": (
        ("fit", "users.csv", "--kind", "link", "--negatives", "all", "--rate", 2, "-o", "x.dyads"),
        2,
        "--rate is for --negatives sample",
    ),
    "share of one": (("split", "test.csv", "--test", 1), 2, "--test 1: expected a share between 0 and 1"),
    "no time to split by": (("split", "test.csv", "--by", "time"), 2, "--time and --by time require each other"),
    "times that are none": (
        ("split", "test.csv", "--by", "time", "--time", "user"),
        1,
        "'user' has missing values, or",
    ),
    "split of standard input": (("split", "-"), 2, "- cannot be split.*name of a file"),
    "split to another format": (
        ("split", "test.csv", "--test-output", "t.parquet"),
        2,
        "t.parquet has another extension than test.csv",
    ),
    "split to one file": (
        ("split", "test.csv", "--test-output", "a.csv", "--train-output", "./a.csv"),
        2,
        "also the file",
    ),
    "unknown format of the output": (
        ("predict", "model.dyads", "test.csv", "-o", "out.xyz"),
        2,
        "format of out.xyz is unknown",
    ),
    "column twice": (("describe", "twice.csv"), 1, "'user' more than once"),
    "penalty beside its search": (
        (*FIT, "--cv", "--l2", 3, "-o", "x.dyads"),
        2,
        "--cv chooses the penalty .*--l2:",
    ),
    "penalty of features beside its search": (
        (*FIT, "--cv", "--l2-side", 3, "-o", "x.dyads"),
        2,
        "--cv chooses the penalty .*--l2-side:",
    ),
    "search for a posterior": (
        (*FIT, "--cv", "--solver", "gibbs", "-o", "x.dyads"),
        1,
        "Gibbs learns how strong its penalties are",
    ),
    "model to standard output": ((*FIT, "-o", "-"), 2, "A model cannot be written to standard output"),
    "negative seed": (
        (*FIT, "--random-state", -1, "-o", "x.dyads"),
        2,
        "random_state=-1: expected a seed",
    ),
    "new label": (
        ("evaluate", "model.dyads", "strange.csv", "--label", "rating"),
        1,
        r"label 9 is not among the classes \[1, 2, 3, 4, 5\]",
    ),
    "ids of another type": (("predict", "model.dyads", "texts.csv"), 1, "'item' holds 'x'.*integers"),
    "features without an id": (
        (*FIT, "--row-features", "few.csv", "-o", "x.dyads"),
        1,
        r"row id 'u\d+' has labels but is not in the features of rows.*\(29 such",
    ),
    "output exists": ((*FIT, "-o", "model.dyads"), 2, "output model.dyads exists.*--force"),
    "no folder": ((*FIT, "-o", "no/x.dyads"), 2, "folder no does not exist"),
    "folder as output": ((*FIT, "-o", "."), 2, r"\. is a folder: expected the name of a file"),
    "wrong name of a page": (
        ("report", "model.dyads", "test.csv", "-o", "page.txt"),
        2,
        "page.txt has an unknown extension: expected .html",
    ),
    "wrong choice": (
        (*FIT, "--solver", "lbgfs", "-o", "x.dyads"),
        2,
        "solver='lbgfs' is not known.*did you mean 'lbfgs'",
    ),
    "wrong option": (("fit", "train.csv", "--rnk", "2"), 2, "No such option: --rnk.*--rank"),
    "no such command": (("fti",), 2, "No such command 'fti'. Did you mean 'fit'"),
    "mean of no order": (
        ("recommend", "words.dyads"),
        2,
        r"--by mean is for labels with an order, and these have none: .* one of \['a', 'b', 'c'\]",
    ),
    "links to describe": (
        ("describe", "unlabelled.csv"),
        1,
        "unlabelled.csv has no column 'label'.*--label. If .* links alone, use dyads fit --kind link --negatives",
    ),
    "median of no order": (
        ("predict", "nominal.dyads", "test.csv", "--give", "median"),
        2,
        "median and mean need ordered labels",
    ),
    "relation alone": (
        (*FIT, "--relation", "when", "-o", "x.dyads"),
        2,
        "--relation and --kind relational require each other",
    ),
    "no such data set": (("datasets", "get", "ml-2k"), 2, "Unknown data set 'ml-2k': expected one of ml-100k"),
    "no such experiment": (("reproduce", "table-9"), 2, "Unknown experiment 'table-9': expected one of .*table-1"),
    "data that cannot be fetched": (
        ("datasets", "get", "nips234"),
        1,
        "nips234 is not in .*expected NIPS234.txt there",
    ),
}

USAGE = {"wrong option", "no such command"}
"""Bad input that the parser of the command line refuses, after a line on how it is used."""


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_the_right_code(run, files, monkeypatch, name):
    monkeypatch.setenv("DYADS_DATA", str(files / "data"))
    (files / "empty.csv").write_text("")
    (files / "header.csv").write_text("user,item,label\n")
    (files / "ragged.csv").write_text("user,item,label\na,b,1\na,b\n")
    (files / "binary.csv").write_bytes(b"user,item,label\n\xff\xfe,\x00,1\n")
    (files / "users.xyz").write_text("a\nb\n")
    (files / "bare.csv").write_text("u1,1,5\nu1,2,4\n")
    (files / "twice.csv").write_text("user,user,label\na,b,1\n")
    (files / "strange.csv").write_text("user,item,rating\nu1,1,9\n")
    (files / "texts.csv").write_text("user,item\nu1,x\n")
    (files / "unlabelled.csv").write_text("user,item\nu1,1\n")
    (files / "few.csv").write_text("user,age\nu1,20\n")
    train = pd.read_csv("train.csv")
    dyads.LFLClassifier(rank=0, solver="point").fit(train[["user", "item"]], train["rating"]).save("nominal.dyads")
    words = np.array(["a", "b", "c"])[train["rating"] % 3]
    dyads.LFLClassifier(rank=0, solver="point").fit(train[["user", "item"]], words).save("words.dyads")
    before = {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()}
    arguments, expected, sentence = BAD[name]
    code, out, err = run(*arguments)
    assert code == expected
    assert not out
    assert "Traceback" not in err
    if name not in USAGE:
        assert len(err.strip().splitlines()) == 1
    assert re.search(sentence, err), err
    assert {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()} == before, "nothing changed"


def test_debug_shows_where(run, files):
    assert "Traceback" in run("--debug", "predict", "model.dyads", "none.csv")[2]


def test_a_reader_that_goes_away_ends_the_command_quietly(files, ratings):
    pd.concat([ratings] * 200).to_csv("long.csv", index=False)
    command = [sys.executable, "-m", "dyads.cli", "predict", "model.dyads", "long.csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141, "as of programs that SIGPIPE ends"
    assert error == ""


def test_ctrl_c_leaves_nothing_half_written(files, ratings):
    pd.concat([ratings] * 3000).to_csv("long.csv", index=False)
    command = [sys.executable, "-m", "dyads.cli", "predict", "model.dyads", "long.csv", "-o", "out.csv"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not any(name.endswith(".part") for name in os.listdir()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert process.returncode == 1, error
    assert error.strip() == "Stopped."
    assert not [name for name in os.listdir() if "out.csv" in name or ".part" in name]


def test_a_full_disk_is_one_sentence(files):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    command = f"{sys.executable} -m dyads.cli predict model.dyads test.csv > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "No space left" in done.stderr


def test_the_doctor_sees_what_is_odd(run, here):
    table = pd.DataFrame(
        {
            "a": ["u1", "u1", "U1 ", "12", "x", "x", "y", "z"],
            "b": ["i", "i", "i", "i", "j", "k", "k", "lone"],
            "label": [1, 2, 1, 1, 1, 1, 1, 1],
        }
    )
    table.to_csv("odd.csv", index=False)
    _, out, _ = run("describe", "odd.csv", "--json")
    found = " ".join(json.loads(out)["findings"])
    for sentence in (
        "1 line repeats an earlier pair (1 with another label)",
        "1 id of 'a' differs from another id only in capitals or spaces",
        "numbers and text (numbers: 1 of 6)",
    ):
        assert sentence in found
    assert "connected parts" in found


def test_figures_and_names_are_whole_at_80_columns(run, files, monkeypatch):
    monkeypatch.setattr(console, "OFF_TERMINAL", 80)
    _, told, _ = run("evaluate", "model.dyads", "test.csv", "--label", "rating", "--json")
    model = next(line for line in json.loads(told) if (line["regime"], line["predictor"]) == ("all", "model"))
    _, out, _ = run("evaluate", "model.dyads", "test.csv", "--label", "rating")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    for name, title in TITLES.items():
        assert re.search(rf"│ {title} +│ +{model[name]:.4f} │", out), title
    assert out.count("log-loss") == 1, "all pairs are known: no figure is said twice"


def noise(n=600):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"my_user": rng.integers(0, 20, n), "item": rng.integers(0, 15, n), "label": rng.choice(3, n)})


def test_a_model_worse_than_label_frequencies_says_so(run, here):
    noise()[:450].to_csv("train.csv", index=False)
    noise()[450:].to_csv("test.csv", index=False)
    _, out, err = run("fit", "train.csv", "--rank", 0, "--l2-bias", 0.1, "-o", "m.dyads", "--json")
    summary = json.loads(out)
    assert list(summary["log_loss"]) == ["model", "all labels", "labels by my_user", "labels by item"]
    assert (summary["log_loss_on"], summary["id columns"]) == ("the training pairs", ["my_user", "item"])
    assert "The labels are numbers, taken as nominal: pass --kind ordinal if they have an order." in err
    assert "fitted to these pairs: judge it on others" in err
    _, out, err = run("evaluate", "m.dyads", "test.csv", "--json")
    model, everything = json.loads(out)[-4:-2]
    assert f"its log-loss on these pairs is {model['log_loss']:.4f}, theirs {everything['log_loss']:.4f}" in err
    _, out, err = run("fit", "train.csv", "--rank", 0, "--cv", "-o", "cv.dyads", "--json")
    summary = json.loads(out)
    assert summary["log_loss"]["model"] > summary["log_loss"]["all labels"]
    assert summary["log_loss_on"] == "held-out pairs of cross-validation with 3 folds"
    assert "The model does not beat 'all labels'" in err
    assert "--cv" not in err, "it was just done"


def test_the_summary_of_a_fit_is_of_pairs_that_count(run, here):
    table = noise().assign(w=1.0)
    table.loc[0, ["label", "w"]] = [7, 0.0]
    table.to_csv("weighted.csv", index=False)
    code, out, err = run("fit", "weighted.csv", "--rank", 0, *POINT, "--weight", "w", "-o", "w.dyads", "--json")
    assert code == 0, err
    assert json.loads(out)["labels"] == [0, 1, 2]
    expected = dyads.evaluate(dyads.load("w.dyads"), table[["my_user", "item"]][1:], table["label"][1:])[
        "log_loss"
    ].to_pylist()
    assert json.loads(out)["log_loss"]["model"] == pytest.approx(expected[-4], abs=1e-4)


def test_names_of_files_and_columns_are_shown_as_they_are(run, here):
    noise().to_csv("my_train.csv", index=False)
    _, out, _ = run("describe", "my_train.csv")
    assert "my_train.csv" in out.splitlines()[1]
    assert "rows (my_user)" in out


def test_facts_are_numbers_in_json_and_labels_are_cut_on_a_terminal(run, here):
    many = pd.DataFrame({"a": np.arange(90) % 9, "b": np.arange(90) % 7, "label": [f"n{i}" for i in range(90)]})
    many.to_csv("many.csv", index=False)
    _, out, _ = run("describe", "many.csv", "--json")
    facts = json.loads(out)["facts"]
    assert facts["pairs"] == 90
    assert facts["rows"] == {"column": "a", "ids": 9, "labels of an id": {"least": 10, "median": 10, "most": 10}}
    assert facts["filled"] == pytest.approx(1)
    assert facts["labels"]["n7"] == pytest.approx(1 / 90)
    _, out, _ = run("describe", "many.csv")
    assert "n0: 1.1%, n1: 1.1%, n10: 1.1%" in out
    assert "n19: 1.1%, ... (90)" in out
    assert "n2: 1.1%" not in out


def test_two_labels_or_a_kind_need_no_word_on_their_order(run, here):
    noise().assign(label=noise()["label"] > 0).to_csv("two.csv", index=False)
    noise().to_csv("three.csv", index=False)
    assert "ordinal" not in run("fit", "two.csv", "--rank", 0, *POINT, "-o", "two.dyads")[2]
    assert "ordinal" not in run("fit", "three.csv", "--rank", 0, *POINT, "--kind", "nominal", "-o", "three.dyads")[2]


def test_one_pair_is_no_pairs(run, files):
    (files / "pair.csv").write_text("user,item,rating\nu1,1,3\n")
    _, out, _ = run("evaluate", "model.dyads", "pair.csv")
    assert "pair.csv: 1 pair\n" in out


def test_the_calibration_error_counts_weights(run, files, ratings):
    weighted = ratings[450:].assign(w=np.where(ratings[450:]["rating"] > 3, 0.0, 1.0))
    weighted.to_csv("weighted.csv", index=False)
    pairs, truth, weight = weighted[["user", "item"]], weighted["rating"], weighted["w"].to_numpy()
    model = dyads.load("model.dyads")
    expected = dyads.metrics.classwise_ece(truth, model.predict_proba(pairs), model.classes_, weight)
    _, _, err = run("calibrate", "model.dyads", "weighted.csv", "--weight", "w", "-o", "calibrated.dyads")
    assert f"{expected:.4f} before" in err


def test_parts_of_a_calibrated_model_are_those_before_calibration(run, files):
    plain = run("explain", "model.dyads", "test.csv")
    assert plain[2] == ""
    assert run("calibrate", "model.dyads", "test.csv", "-o", "calibrated.dyads")[0] == 0
    code, out, err = run("explain", "calibrated.dyads", "test.csv")
    assert (code, out) == plain[:2]
    assert err == "The model is calibrated: the parts are those of its log-odds before calibration.\n"


def test_features_of_pairs_are_explained_as_for_the_fit(run, files, ratings):
    coded = ratings[:450].assign(code=[f"0{i % 3}" if i % 2 else "x" for i in range(450)])
    model = dyads.LFLOrdinal(rank=0, solver="point").fit(coded[["user", "item", "code"]], coded["rating"])
    model.save("coded.dyads")
    few = coded[coded["code"] != "x"]
    few.to_csv("few.csv", index=False)
    code, _, err = run("explain", "coded.dyads", "few.csv", "-o", "parts.csv")
    assert (code, err) == (0, "")
    expected = model.explain(few[["user", "item", "code"]])
    assert list(pd.read_csv("parts.csv")["part"]) == list(expected["part"])


def test_data_sets_are_listed(run, monkeypatch, here):
    monkeypatch.setenv("DYADS_DATA", str(here))
    _, out, _ = run("datasets", "list", "--json")
    assert [line["name"] for line in json.loads(out)] == list(sources.SOURCES)


@pytest.mark.slow
def test_demo_prints_a_table_and_saves_a_picture(run, here):
    code, out, err = run("demo")
    assert code == 0, err
    for word in ("compared with", "0-1 error", "Bayes error", "log-loss", "marginals", "calibration error", "seconds"):
        assert word in out
    after, before = map(float, re.search(r"calibration error\W+([\d.]+)\W+([\d.]+) before calibration", out).groups())
    assert after < before / 3
    assert (here / "dyads-demo.png").read_bytes().startswith(b"\x89PNG")


def test_version_and_help(run):
    assert run("--version")[1].startswith("dyads ")
    code, out, _ = run("fit", "--help")
    assert code == 0
    assert "--l2-bias" in out
