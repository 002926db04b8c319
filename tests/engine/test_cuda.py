"""The CUDA engine without a GPU: what it says, and its laws in numba-cuda's simulator."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dyads import LFLOrdinal
from dyads.errors import InputError


def test_without_a_gpu_a_sentence_says_what_to_install():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"NVIDIA GPU.*dyads\[cuda12\].*engine='cpu'"):
        LFLOrdinal(2, engine="cuda").fit(rng.integers(0, 5, (40, 2)), rng.integers(1, 4, 40))


@pytest.mark.slow
def test_the_laws_hold_in_the_simulator():
    here = Path(__file__).parent
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(here.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "device_laws.py"]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
