"""The Python of the README and of every page of the docs runs, and prints what the page says it prints."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in path.read_text()
]
NUMBER = re.compile(r"\d+\.\d+")


def words(text):
    return NUMBER.sub("#", text).replace("]", " ]").split()


LONG = ("README.md", "solvers.md", "decisions.md", "index.md")
"""Pages that take some ten seconds each: they sample, or search."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(path, id=path.name, marks=pytest.mark.slow if path.name in LONG else ()) for path in PAGES],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_every_example_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    text = page.read_text()
    python, printed = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text"))
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(python), str(page), "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    shown = "".join(printed)
    assert words(out) == words(shown)
    found, expected = ([float(number) for number in NUMBER.findall(text)] for text in (out, shown))
    assert found == pytest.approx(expected, abs=0.02), "single precision differs a little between processors"


def test_both_commands_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


@pytest.mark.slow
def test_the_commands_of_the_readme_lead_to_a_model_predictions_and_a_report(run, tmp_path, monkeypatch):
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    commands = [line.split("#")[0].split() for line in shell.splitlines() if line.startswith("dyads ")]
    # A server answers until it is stopped; tests/serve/test_workers.py starts one.
    commands = [command for command in commands if command[1] != "serve"]
    assert len(commands) > 5
    monkeypatch.chdir(tmp_path)
    for _, *arguments in commands:
        code, _, err = run(*arguments)
        assert code == 0, err
    assert {"store.dyads", "predictions.csv", "report.html"} <= {path.name for path in tmp_path.iterdir()}


def test_the_commands_for_large_data_lead_from_a_folder_of_parquet_to_predictions(run, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "guides" / "large-data.md").read_text()
    (shell,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 40, 3000), rng.integers(0, 30, 3000)
    table = pd.DataFrame({"user": [f"u{i}" for i in user], "item": item, "stars": 1 + (user + item) % 5})
    (tmp_path / "ratings").mkdir()
    for i in range(3):
        table[i::3].to_parquet(f"ratings/{i}.parquet", index=False)
    table[["user", "item"]][:9].to_parquet("new-pairs.parquet", index=False)
    commands = [shlex.split(line.removeprefix("$ ")) for line in shell.splitlines()]
    assert len(commands) == 5
    for _, *arguments in commands:
        code, _, err = run(*arguments)
        assert code == 0, err
    assert len(pd.read_parquet("predicted.parquet")) == 9
