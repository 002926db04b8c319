"""The Python of the README and of every page of the docs runs, and prints what the page says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in path.read_text()
]
NUMBER = re.compile(r"\d+\.\d+")


def words(text):
    return NUMBER.sub("#", text).replace("]", " ]").split()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_example_prints_what_is_shown(page, tmp_path):
    text = page.read_text()
    python, printed = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text"))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", "\n".join(python)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = "".join(printed)
    assert words(done.stdout) == words(shown)
    found, expected = ([float(number) for number in NUMBER.findall(text)] for text in (done.stdout, shown))
    assert found == pytest.approx(expected, abs=0.02), "single precision differs a little between processors"


def test_both_commands_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)
