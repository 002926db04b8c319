"""What describes the package in several places says the same everywhere."""

import re
import tomllib
from pathlib import Path

import pytest

import dyads

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]


def read(path):
    return pytest.importorskip("yaml").safe_load((ROOT / path).read_text())


def plain(requirement):
    """A requirement without spaces: "numpy >=2.0,<3" is "numpy>=2.0,<3"."""
    return requirement.replace(" ", "")


def test_the_version_is_the_same_everywhere():
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert heading[1] == read("CITATION.cff")["version"] == read("conda/recipe.yaml")["context"]["version"]
    assert heading[1] == dyads.__version__


def test_the_conda_recipe_needs_what_the_package_needs():
    needed = {plain(line) for line in read("conda/recipe.yaml")["requirements"]["run"]}
    assert needed == {plain(line) for line in PROJECT["dependencies"]} | {"python>=${{python_min}}"}
    assert [f">={least}" for least in read("conda/variants.yaml")["python_min"]] == [PROJECT["requires-python"]]


def test_the_workflow_runs_every_python_that_is_promised():
    matrix = read(".github/workflows/tests.yml")["jobs"]["suite"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert len(matrix["os"]) == 3


def test_every_extra_that_a_workflow_or_the_makefile_installs_exists():
    for path in ("Makefile", ".github/workflows/tests.yml", "Dockerfile", "RELEASING.md"):
        for extras in re.findall(r"(?:\.|whl\)|dyads)\[([a-z0-9,]+)\]", (ROOT / path).read_text()):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), path
