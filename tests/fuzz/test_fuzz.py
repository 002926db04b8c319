"""A minute of `make fuzz`."""

import tempfile
from pathlib import Path

import pytest

from fuzz import run

CASES = {"store": 200, "structural": 600, "raw": 300, "checkpoint": 100, "table": 100}


@pytest.mark.slow
@pytest.mark.xdist_group("fuzz")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_mutation_of_a_file_crashes_hangs_or_escapes():
    with tempfile.TemporaryDirectory() as folder:
        for title, target in run.targets(Path(folder)).items():
            n = next(number for kind, number in CASES.items() if kind in title)
            done, outcomes, failures = run.fuzz(target, 10**9, n, Path(folder), workers=1)
            assert (done, failures) == (n, []), title
            assert outcomes["accepted"], f"{title}: no case was accepted, so that nothing was used"
