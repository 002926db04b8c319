"""The examples run, and leave the picture they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_draws_its_picture(path, tmp_path):
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, str(path)], cwd=tmp_path, check=True)
    (picture,) = tmp_path.iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
