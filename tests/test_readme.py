"""The Python of the README and of every page of the docs runs, and prints what the page says it prints."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import stand_ins
from dyads.datasets import published
from dyads.datasets.sources import data_folder

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "```python" in path.read_text()
]
NUMBER = re.compile(r"\d+\.\d+")

GUIDES = [path for path in PAGES if "dyads.datasets.published" in path.read_text()]
"""Pages with published data."""

WIDEST = 88
"""Characters of a line of code, which a page shows without scrolling."""


def words(text):
    return NUMBER.sub("#", text).replace("]", " ]").split()


def ran(page):
    """The Python of a page, executed in the current folder."""
    python = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile("\n".join(python), str(page), "exec"), {"__name__": "__main__"})


def check_printed(page, out):
    shown = "".join(re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL))
    assert words(out) == words(shown)
    found, expected = ([float(number) for number in NUMBER.findall(text)] for text in (out, shown))
    assert found == pytest.approx(expected, abs=0.02), "single precision differs a little between processors"


LONG = ("README.md", "solvers.md", "decisions.md", "index.md", "what-to-use.md", "side-information.md")
"""Pages that take some ten seconds each: they sample, or search."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, id=path.name, marks=pytest.mark.slow if path.name in LONG else ())
        for path in PAGES
        if path not in GUIDES
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_every_example_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran(page)
    check_printed(page, capsys.readouterr().out)


def pictures_of(page):
    return re.findall(r"\]\(\.\./images/(\S+\.png)\)", page.read_text())


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_guide_runs_on_made_up_data_and_draws_its_pictures(page, tmp_path, monkeypatch):
    """Everywhere, and in seconds: what it prints is for the published data alone."""
    pytest.importorskip("matplotlib")
    for name in re.findall(r"published import (\w+)", page.read_text()):
        monkeypatch.setattr(published, name, getattr(stand_ins, name))
    monkeypatch.chdir(tmp_path)
    ran(page)
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == set(pictures_of(page))
    assert 2 <= len(drawn) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
@pytest.mark.filterwarnings("error::UserWarning")
def test_every_guide_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    for name in re.findall(r"published import (\w+)", page.read_text()):
        source = {"movielens_100k": "ml-100k", "nips_coauthors": "nips234", "un_votes": "un-votes"}.get(name, name)
        if not (data_folder() / source).exists():
            pytest.skip(f"{source} is not in {data_folder()}")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    ran(page)
    check_printed(page, capsys.readouterr().out)


def test_pictures_are_small():
    for path in (ROOT / "docs" / "images").glob("*.png"):
        assert path.stat().st_size < 60_000, path.name


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_no_line_of_code_is_wider_than_the_page(page):
    for code in re.findall(r"```(?:python|sh|console|text)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in code.splitlines():
            assert len(line) <= WIDEST, line


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


@pytest.mark.slow
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
