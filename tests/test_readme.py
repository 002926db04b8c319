"""The README's Python runs, and prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHOWN = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+")


def words(text):
    return NUMBER.sub("#", text).replace("]", " ]").split()


def test_every_example_prints_what_is_shown(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", "\n".join(PYTHON)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = "".join(SHOWN)
    assert words(done.stdout) == words(shown)
    found, expected = ([float(number) for number in NUMBER.findall(text)] for text in (done.stdout, shown))
    assert found == pytest.approx(expected, abs=0.02), "single precision differs a little between processors"


def test_both_commands_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)
