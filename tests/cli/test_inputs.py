"""Tables as people have them, given to the command: dialects, edge lists, splits, and what a model remembers."""

import gzip
import io
import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dyads
from dyads.data.files import Dialect, read_table


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def table(here):
    """pairs.csv: 12 users and 10 items, a rating, a weight, a day."""
    rng = np.random.default_rng(0)
    user, item = (part.ravel() for part in np.indices((12, 10)))
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(120), "D")
    table = pd.DataFrame(
        {"user": [f"u{i}" for i in user], "item": item, "rating": rng.integers(1, 4, 120), "w": 1.5, "day": day}
    )
    table.to_csv("pairs.csv", index=False)
    return table


JUDGE = "The model was fitted to these pairs: judge it on others (dyads split, then dyads evaluate).\n"
"""What a fit says at its end."""

RANK_0 = ("--rank", 0, "--solver", "lbfgs", "--kind", "ordinal")


# ----------------------------------------------------------------------------------------------------------- dialects


def test_a_table_without_a_header_is_used_by_position(run, table):
    table[["user", "item", "rating"]].to_csv("bare.tsv", index=False, header=False, sep="\t")
    code, _, err = run("fit", "bare.tsv", "--no-header", *RANK_0, "-o", "m.dyads")
    assert (code, err) == (0, "The labels are those of column 3: name another column with --label.\n" + JUDGE)
    model = dyads.load("m.dyads")
    assert (model.columns_, model.trained_on_["label"], model.trained_on_["pairs"]) == (["1", "2"], "3", 120)
    code, out, err = run("evaluate", "m.dyads", "bare.tsv", "--no-header", "--json")
    assert (code, err) == (0, ""), "the fit knows which column has the labels"
    assert json.loads(out)[-1]["n"] == 120
    code, out, _ = run("predict", "m.dyads", "bare.tsv", "--no-header", "--give", "mean")
    assert (code, len(out.splitlines())) == (0, 121)
    named = ("--row", 2, "--col", 1, "--label", 3)
    assert run("fit", "bare.tsv", "--no-header", *named, *RANK_0, "-o", "turned.dyads")[0] == 0
    assert dyads.load("turned.dyads").columns_ == ["2", "1"]


def test_what_is_found_in_a_file_is_said_once(run, table):
    table[["user", "item", "rating"]].to_csv("semi.csv", index=False, sep=";")
    code, _, err = run("fit", "semi.csv", "--label", "rating", *RANK_0, "-o", "m.dyads")
    assert (code, err) == (0, "semi.csv is read as text separated by semicolons.\n" + JUDGE)
    code, _, err = run("predict", "m.dyads", "semi.csv", "-o", "out.csv")
    assert (code, err) == (0, "semi.csv is read as text separated by semicolons.\n")
    assert run("predict", "m.dyads", "semi.csv", "--separator", ";", "-o", "same.csv")[2] == "", (
        "what was told is known"
    )


def test_a_dialect_that_is_told_applies_to_all_tables_of_a_command(run, table):
    table["user"] = table["user"].str.replace("u", "ü")
    for name, columns in (("pairs.dat", ["user", "item", "rating"]), ("users.dat", ["user", "w"])):
        text = table[columns].drop_duplicates(columns[:1] if "w" in columns else None).to_csv(index=False, sep="\x1f")
        Path(name).write_bytes(text.replace("\x1f", "::").encode("latin-1"))
    told = ("--format", "csv", "--separator", "::", "--encoding", "latin-1")
    fit = ("fit", "pairs.dat", "--label", "rating", "--row-features", "users.dat", *RANK_0, "-o", "m.dyads")
    assert run(*fit, *told)[::2] == (0, JUDGE)
    assert dyads.load("m.dyads").row_ids_[0] == "ü0"
    code, _, err = run(*fit, "--force")
    assert code == 1
    assert "pairs.dat is not encoded in UTF-8: pass its encoding, such as --encoding latin-1." in err


def test_columns_missing_from_standard_input_are_named(run, table, monkeypatch):
    dyads.LFLOrdinal(0, solver="point").fit(table[["user", "item"]], table["rating"]).save("m.dyads")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"user,thing\nu1,2\n")))
    code, out, err = run("predict", "m.dyads", "-")
    assert (code, out) == (1, "")
    assert err.startswith("Standard input has no column 'item': expected one of its columns ['user', 'thing'].")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"item;user\n2;u1\n")))
    code, out, err = run("predict", "m.dyads", "-", "--give", "label")
    assert (code, err) == (0, "Standard input is read as text separated by semicolons.\n")
    assert out.startswith('"user","item","label"\n"u1",2,')


def test_compressed_text_on_standard_input_is_unpacked(run, table, monkeypatch):
    dyads.LFLOrdinal(0, solver="point").fit(table[["user", "item"]], table["rating"]).save("m.dyads")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"user,item\nu1,2\n"))))
    code, out, err = run("predict", "m.dyads", "-", "--give", "label")
    assert (code, err) == (0, "")
    assert out.startswith('"user","item","label"\n"u1",2,')


# --------------------------------------------------------------------------------------------------------- edge lists


@pytest.fixture
def edges(here):
    rng = np.random.default_rng(0)
    a, b = np.nonzero(np.triu(rng.random((20, 20)) < 0.3, 1))
    Path("edges.txt").write_text("# made up\n" + "".join(f"{i}\t{j}\n" for i, j in zip(a, b, strict=True)))
    return set(zip(a.tolist(), b.tolist(), strict=True))


def test_an_edge_list_is_fitted_with_its_non_links(run, edges):
    options = ("--kind", "link", "--no-header", "--rank", 0, "--solver", "lbfgs")
    code, _, err = run("fit", "edges.txt", *options, "--negatives", "all", "-o", "m.dyads")
    assert code == 0
    assert err.startswith("edges.txt is read as text separated by tabs, after 1 comment line.\n")
    assert "dyads split" not in err, "it would label nothing"
    Path("judge.csv").write_text("1,2,label\n0,1,1\n3,2,0\n5,9,0\n")
    assert run("evaluate", "m.dyads", "judge.csv", "--header")[0] == 0
    model = dyads.load("m.dyads")
    assert (model.columns_, model.trained_on_["pairs"]) == (["1", "2"], 190)
    pairs = dyads.pairs_from_graph(np.array(sorted(edges)), directed=False)
    same = dyads.LFLLink(0, solver="lbfgs").fit(pairs.X, pairs.y)
    ask = [[0, 1], [3, 2], [5, 9]]
    np.testing.assert_allclose(model.predict_proba(ask), same.predict_proba(ask))
    sampled = ("--negatives", "sample", "--rate", 0.5, "--random-state", 0, "-o", "s.dyads")
    assert run("fit", "edges.txt", *options, *sampled)[0] == 0
    _, out, _ = run("info", "s.dyads", "--json")
    assert json.loads(out)["non-links"] == "sample, rate 0.5"
    assert json.loads(out)["pairs"] == len(edges) + round(len(edges) / 2)


def test_links_with_labels_need_no_non_links(run, here):
    Path("links.csv").write_text("a,b,label\n1,2,1\n1,3,0\n")
    code, _, err = run("fit", "links.csv", "--kind", "link", "--negatives", "all", "-o", "m.dyads")
    assert code == 1
    assert "links.csv has a column 'label'" in err


# -------------------------------------------------------------------------------------------------- what is remembered


def test_what_was_told_once_is_remembered(run, table):
    assert run("fit", "pairs.csv", "--label", "rating", "--weight", "w", *RANK_0, "-o", "m.dyads")[0] == 0
    _, by_memory, err = run("evaluate", "m.dyads", "pairs.csv", "--json")
    assert err == ""
    assert by_memory == run("evaluate", "m.dyads", "pairs.csv", "--label", "rating", "--weight", "w", "--json")[1]
    assert run("calibrate", "m.dyads", "pairs.csv", "-o", "c.dyads")[0] == 0
    assert dyads.load("c.dyads").trained_on_["label"] == "rating", "in models made from it"
    table.drop(columns="w").rename(columns={"rating": "stars"}).to_csv("other.csv", index=False)
    code, _, err = run("evaluate", "m.dyads", "other.csv")
    assert code == 1
    assert "other.csv has no column 'rating'" in err
    assert "--label" in err
    code, _, err = run("evaluate", "m.dyads", "other.csv", "--label", "stars")
    assert (code, err) == (0, "other.csv has no column 'w', which had the weights of the fit: all weights are one.\n")


def test_info_has_the_command_that_fits_the_model_again(run, table):
    options = ("--label", "rating", "--weight", "w", "--feature", "w", "--kind", "ordinal", "--rank", 2, "--l2", 3.5)
    more = ("--l2-bias", 1.25, "--solver", "lbfgs", "--solver-max-iter", 30, "--random-state", 5, "--reference", 2)
    table.assign(user=table["user"] + " $x").to_csv("odd.csv", index=False)
    assert run("fit", "odd.csv", "--header", *options, *more, "-o", "m.dyads")[0] == 0
    _, out, _ = run("info", "m.dyads", "--json")
    facts = json.loads(out)
    assert (facts["label column"], facts["weight column"], facts["feature columns"]) == ("rating", "w", ["w"])
    assert (facts["pairs"], facts["seed"], facts["structure"]) == (120, 5, "stereotype")
    assert facts["penalty"]["row_factors"] == 3.5
    assert facts["penalty"]["row_bias"] == 1.25
    assert facts["fitted by"] == f"dyads {dyads.__version__}"
    _, *again = shlex.split(facts["command"].replace("TABLE", "odd.csv").replace("model.dyads", "again.dyads"))
    assert run(*again)[0] == 0
    first, second = dyads.load("m.dyads"), dyads.load("again.dyads")
    assert repr(first.get_params()) == repr(second.get_params())
    np.testing.assert_array_equal(first.record_.draws[0].theta, second.record_.draws[0].theta)
    _, out, _ = run("info", "m.dyads")
    assert f"To fit it again: {facts['command']}" in out


@pytest.mark.parametrize("levels", [["low", "mid, or so", "high"], [" low", 'a "mid"', "high"]])
def test_info_has_the_order_of_labels_that_are_text(run, table, levels):
    table["rating"] = pd.Categorical.from_codes(table["rating"] - 1, levels, ordered=True)
    table.to_csv("words.csv", index=False)
    dyads.LFLOrdinal(0, solver="lbfgs").fit(table[["user", "item"]], table["rating"]).save("m.dyads")
    command = json.loads(run("info", "m.dyads", "--json")[1])["command"]
    _, *again = shlex.split(command.replace("TABLE", "words.csv").replace("model.dyads", "again.dyads"))
    assert run(*again)[0] == 0
    assert dyads.load("again.dyads").classes_.tolist() == levels


def test_info_shows_what_a_search_chose(table):
    X, y = table[["user", "item"]], table["rating"]
    search = dyads.LFLOrdinalCV(0, solver="lbfgs", grid={"l2__bias": [1.0, 8.0]}, cv=2).fit(X, y)
    search.save("m.dyads")
    again = dyads.load("m.dyads")
    assert (again.trained_on_["chosen"], again.trained_on_["label"]) == (search.best_params_, "rating")
    assert again.held_out_["model"] == -search.best_score_


@pytest.mark.slow
def test_a_relational_structure_has_the_name_that_was_given(run, table):
    table.assign(kind="k", label=table["rating"] > 1).to_csv("many.csv", index=False)
    options = ("--kind", "relational", "--relation", "kind", "--rank", 0, "--solver", "lbfgs")
    assert run("fit", "many.csv", *options, "-o", "m.dyads")[0] == 0
    assert json.loads(run("info", "m.dyads", "--json")[1])["structure"] == "relational"


# ---------------------------------------------------------------------------------------------------------------- split


def test_a_split_keeps_every_line_as_it_was(run, here):
    lines = ["007,a b,1.50,x", "7,é,2,", "8,a b,3,NA", "9,c,4.0,z", "10,c,5,z"]
    Path("odd.csv").write_text("id,item,value,more\n" + "\n".join(lines) + "\n")
    code, _, err = run("split", "odd.csv", "--test", 0.4)
    assert (code, err) == (0, "Wrote 3 pairs to odd-train.csv and 2 to odd-test.csv.\n")
    train, test = (Path(f"odd-{part}.csv").read_text().splitlines() for part in ("train", "test"))
    assert train[0] == test[0] == '"id","item","value","more"'
    assert sorted(train[1:] + test[1:]) == sorted(lines)
    before = Path("odd-train.csv").read_text()
    code, _, err = run("split", "odd.csv", "--seed", 1)
    assert (code, Path("odd-train.csv").read_text()) == (2, before)
    assert "odd-train.csv exists" in err


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "t.arrow", "t.dat", "t.csv.gz"])
def test_a_split_has_the_format_of_its_table(run, table, name):
    if name.endswith(("parquet", "arrow")):
        table.to_parquet(name) if name == "t.parquet" else table.to_feather(name)
    else:
        table.to_csv(name, index=False, sep=";" if name == "t.dat" else "\t" if name == "t.tsv" else ",")
    assert run("split", name)[0] == 0
    read = {"parquet": pd.read_parquet, "arrow": pd.read_feather}.get(name[2:])
    ending = name[1:].removesuffix(".gz")
    separator = {"t.dat": ";", "t.tsv": "\t"}.get(name, ",")
    parts = [f"t-{part}{ending}" for part in ("train", "test")]
    train, test = (read(part) if read else pd.read_csv(part, sep=separator, parse_dates=["day"]) for part in parts)
    assert (len(train), len(test)) == (96, 24)
    whole, expected = (
        part.sort_values(["user", "item"], ignore_index=True) for part in (pd.concat([train, test]), table)
    )
    pd.testing.assert_frame_equal(whole, expected, check_dtype=False)


@pytest.mark.parametrize("cell", ["a::x", "a:", "a\x1fx"])
def test_a_split_keeps_cells_that_hold_a_separator(run, here, cell):
    rows = [[cell, "b", "1"], ["c", "d", "2"], ["e", "f", "3"]]
    Path("t.dat").write_text("user::item::label\n" + "".join(f'"{a}"::{b}::{c}\n' for a, b, c in rows))
    assert run("split", "t.dat", "--test", 0.4)[0] == 0
    dialect = Dialect("csv", "::")
    types = dict.fromkeys(["user", "item", "label"], pa.string())
    parts = [read_table(f"t-{part}.dat", lambda _: types, dialect).to_pylist() for part in ("train", "test")]
    assert sorted(list(row.values()) for part in parts for row in part) == rows


def test_whole_rows_or_the_latest_pairs_are_held_out(run, table):
    assert run("split", "pairs.csv", "--by", "row", "--test", 0.25)[0] == 0
    train, test = (set(pd.read_csv(f"pairs-{part}.csv")["user"]) for part in ("train", "test"))
    assert (len(train), len(test), train & test) == (9, 3, set())
    for column in ("day", "stamp"):
        table.assign(stamp=table["day"].astype("int64")).to_csv("timed.csv", index=False)
        assert run("split", "timed.csv", "--by", "time", "--time", column, "--force")[0] == 0
        train, test = (pd.read_csv(f"timed-{part}.csv")[column] for part in ("train", "test"))
        assert (len(test), train.max() < test.min()) == (24, True)


# ------------------------------------------------------------------------------------------------------------- outputs


def test_an_output_is_never_an_input(run, table):
    dyads.LFLOrdinal(0, solver="point").fit(table[["user", "item"]], table["rating"]).save("m.dyads")
    os.link("pairs.csv", "hard.csv")
    os.symlink("pairs.csv", "soft.csv")
    os.link("pairs.csv", "pairs.html")
    os.link("m.dyads", "m.csv")
    os.link("pairs.csv", "pairs-train.csv")
    before = {name: Path(name).read_bytes() for name in sorted(os.listdir())}
    for command in (
        ("fit", "pairs.csv", "--label", "rating", "-o", "pairs.csv"),
        ("fit", "pairs.csv", "--label", "rating", "--row-features", "soft.csv", "-o", "hard.csv"),
        ("fit", "pairs.csv", "--label", "rating", "--checkpoint", "pairs.csv", "-o", "x.dyads"),
        ("fit", "pairs.csv", "--label", "rating", "--checkpoint", "x.dyads", "-o", "x.dyads"),
        ("predict", "m.dyads", "pairs.csv", "-o", "soft.csv"),
        ("predict", "m.dyads", "pairs.csv", "-o", "m.csv"),
        ("recommend", "m.dyads", "--exclude", "pairs.csv", "-o", "hard.csv"),
        ("explain", "m.dyads", "pairs.csv", "-o", "hard.csv"),
        ("fold-in", "m.dyads", "pairs.csv", "-o", "pairs.csv"),
        ("calibrate", "m.dyads", "pairs.csv", "-o", "hard.csv"),
        ("report", "m.dyads", "pairs.csv", "-o", "pairs.html"),
        ("split", "pairs.csv"),
    ):
        code, out, err = run(*command, "--force")
        assert (code, out) == (2, ""), command
        assert re.fullmatch("The output .* is also the file .* of this command: choose another name.\n", err), err
    assert {name: Path(name).read_bytes() for name in sorted(os.listdir())} == before
    assert run("calibrate", "m.dyads", "pairs.csv", "-o", "m.dyads", "--force")[0] == 0, (
        "a model may be updated in place"
    )


def on_a_terminal(command):
    """What a command prints on a terminal that is its standard output and standard error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            try:
                printed += os.read(ours, 65536)
            except OSError:
                break
    os.close(ours)
    return printed.decode()


def test_predictions_on_a_terminal_share_no_line_with_a_bar(table):
    dyads.LFLOrdinal(0, solver="point").fit(table[["user", "item"]], table["rating"]).save("m.dyads")
    printed = on_a_terminal([sys.executable, "-m", "dyads.cli", "predict", "m.dyads", "pairs.csv"])
    assert printed.startswith('"user","item","p_1"')
    assert "Predicting" not in printed


def test_small_probabilities_are_not_rounded_to_zero(run, here):
    pairs = pd.DataFrame({"a": np.arange(200) % 10, "b": np.arange(200) % 7, "label": [1] + [0] * 199})
    pairs.to_csv("rare.csv", index=False)
    assert run("fit", "rare.csv", "--rank", 0, "--solver", "lbfgs", "--l2-bias", 1e-9, "-o", "m.dyads")[0] == 0
    assert run("predict", "m.dyads", "rare.csv", "-o", "out.csv")[0] == 0
    exact = dyads.load("m.dyads").predict_proba(pairs[["a", "b"]])
    assert exact.min() < 1e-6
    np.testing.assert_allclose(pd.read_csv("out.csv")[["p_0", "p_1"]], exact, rtol=1e-5)


def test_ids_and_labels_keep_all_their_digits(run, here):
    pairs = pd.DataFrame({"a": np.arange(40) + 1234567.125, "b": 0.1 + np.arange(40) % 3, "y": [1234567.25, 2.5] * 20})
    dyads.LFLOrdinal(0, solver="point").fit(pairs[["a", "b"]], pairs["y"]).save("m.dyads")
    pairs.to_parquet("pairs.parquet")
    assert run("predict", "m.dyads", "pairs.parquet", "-o", "out.csv")[0] == 0
    out = pd.read_csv("out.csv", float_precision="round_trip")
    assert out[["a", "b"]].equals(pairs[["a", "b"]])
    assert set(out["label"]) <= {1234567.25, 2.5}
    assert run("recommend", "m.dyads", "-n", 1, "-o", "best.csv")[0] == 0
    assert set(pd.read_csv("best.csv", float_precision="round_trip")["a"]) == set(pairs["a"])


def _interrupt(watch, chain, n_left):
    """Ctrl-C in the second sweep."""
    if chain.n_sweeps == 2:
        raise KeyboardInterrupt
    return False


def _interrupt_minimiser(watch, iteration, value, theta):
    """Ctrl-C in the third iteration."""
    watch.latest = iteration, theta
    if iteration == 3:
        raise KeyboardInterrupt
    return False


def test_a_fit_that_is_stopped_writes_the_model_so_far(run, table, monkeypatch):
    monkeypatch.setattr("dyads.learn.sampling._Watch.__call__", _interrupt)
    code, out, err = run("fit", "pairs.csv", "--label", "rating", "--kind", "ordinal", "--rank", 1, "-o", "m.dyads")
    stopped = "Stopped after 2 iterations. Wrote the model so far to m.dyads, and the state of the fit to "
    assert (code, out) == (1, "")
    assert err == f"{stopped}m.dyads.checkpoint: the same command with --force goes on.\n"
    assert dyads.load("m.dyads").n_iter_ == 2


@pytest.mark.parametrize("solver", ["gibbs", "sgd"])
def test_the_same_command_goes_on_and_removes_the_state(run, table, monkeypatch, solver):
    length = ("--solver-sweeps", 8) if solver == "gibbs" else ("--solver-max-iter", 8)
    command = ("fit", "pairs.csv", "--label", "rating", "--kind", "ordinal", "--rank", 1, "--solver", solver, *length)
    command = (*command, "--random-state", 0, "-o")
    assert run(*command, "whole.dyads")[0] == 0
    with monkeypatch.context() as patch:
        if solver == "gibbs":
            patch.setattr("dyads.learn.sampling._Watch.__call__", _interrupt)
        else:
            patch.setattr("dyads.learn.training._Watch.__call__", _interrupt_minimiser)
        assert run(*command, "m.dyads")[0] == 1
    assert Path("m.dyads.checkpoint").exists()
    code, _, err = run(*command, "m.dyads", "--force")
    assert (code, "Resumed after 2 iterations, from m.dyads.checkpoint." in err) == (0, True)
    assert not Path("m.dyads.checkpoint").exists()
    whole, again = (dyads.load(name).record_.draws[-1].theta for name in ("whole.dyads", "m.dyads"))
    assert (whole == again).all()


def test_a_fit_that_is_stopped_says_how_to_resume(run, table, monkeypatch):
    options = ("--label", "rating", "--kind", "ordinal", "--rank", 1, "--solver", "gibbs", "--random-state", 0)
    command = ("fit", "pairs.csv", *options, "--checkpoint", "chain", "--solver-sweeps", 4, "-o", "m.dyads", "--force")

    with monkeypatch.context() as patch:
        patch.setattr("dyads.learn.sampling._Watch.__call__", _interrupt)
        code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert err == "Stopped. The state of the fit is in chain: the same command goes on.\n"
    assert not Path("m.dyads").exists()
    assert "Resumed after 2 iterations, from chain." in run(*command)[2]
    assert "The fit in chain was complete." in run(*command)[2]
