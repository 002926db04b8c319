"""The command, as a user types it."""

import subprocess
import sys

import pytest

pytest.importorskip("matplotlib")


def run(*arguments, cwd=None):
    return subprocess.run([sys.executable, "-m", "dyads.cli", *arguments], capture_output=True, text=True, cwd=cwd)


def test_demo_prints_a_table_and_saves_a_picture(tmp_path):
    done = run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("0-1 error", "Bayes error", "log-loss", "marginals", "calibration error", "seconds"):
        assert word in done.stdout
    picture = tmp_path / "dyads-demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_missing_folder_is_one_sentence_before_any_work(tmp_path):
    done = run("demo", "-o", str(tmp_path / "none" / "x.png"))
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "does not exist" in done.stderr


def test_wrong_usage_exits_with_two():
    assert run("nonsense").returncode == 2
    assert run("--version").stdout.startswith("dyads ")
