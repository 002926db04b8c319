"""The CUDA engine without a GPU: what it says, and its laws in numba-cuda's simulator."""

import os
import subprocess
import sys
from pathlib import Path

import device_laws
import numpy as np
import pytest

from dyads import LFLOrdinal
from dyads.errors import InputError
from dyads.model.loss import LOSSES
from dyads.model.structure import STRUCTURES
from problems import LOSS_CASES


def test_without_a_gpu_a_sentence_says_what_to_install():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"NVIDIA GPU.*dyads\[cuda12\].*engine='cpu'"):
        LFLOrdinal(2, engine="cuda").fit(rng.integers(0, 5, (40, 2)), rng.integers(1, 4, 40))


def test_every_structure_and_loss_has_a_law_on_the_device():
    structures, losses = zip(*(case.values for case in device_laws.CASES), strict=True)
    assert {(type(structure), structure.one_set) for structure in structures} == set(STRUCTURES.values())
    assert {type(loss) for loss in losses} == {type(case) for cases in LOSS_CASES.values() for case in cases}
    assert LOSS_CASES.keys() == LOSSES.keys()
    assert {2, 4} <= {structure.n_labels for structure in structures}


@pytest.mark.slow
def test_the_laws_hold_in_the_simulator():
    here = Path(__file__).parent
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(here.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "device_laws.py"]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
