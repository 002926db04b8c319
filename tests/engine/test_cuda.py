"""The CUDA engine without a GPU: what it says, and its laws in numba-cuda's simulator."""

import math
import os
import subprocess
import sys
from pathlib import Path

import device_laws
import numpy as np
import pytest

from dyads import CPU, CUDA, LFLOrdinal
from dyads.engine import cuda
from dyads.errors import EngineWarning, InputError
from dyads.model.loss import LOSSES, Log
from dyads.model.objective import Objective
from dyads.model.parameters import Layout
from dyads.model.structure import STRUCTURES, Bilinear
from problems import LOSS_CASES, make_dyads


def test_without_a_gpu_a_sentence_says_what_to_install():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"NVIDIA GPU.*dyads\[cuda12\].*engine='cpu'"):
        LFLOrdinal(2, engine="cuda").fit(rng.integers(0, 5, (40, 2)), rng.integers(1, 4, 40))


def test_a_missing_gpu_is_refused_before_a_fit_searches_for_penalties(monkeypatch):
    monkeypatch.setattr(LFLOrdinal, "_chosen_strengths", lambda *_: pytest.fail("The search began."))
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="NVIDIA GPU"):
        LFLOrdinal(2, solver="point", engine="cuda").fit(rng.integers(0, 5, (40, 2)), rng.integers(1, 4, 40))


@pytest.mark.parametrize(
    ("one_set", "n_features", "descends", "expected"),
    [
        (False, (0, 0, 0), False, None),
        (True, (0, 0, 0), True, None),
        (True, (0, 0, 0), False, None),
        (False, (2, 0, 0), True, "SGD with features"),
        (False, (2, 0, 0), False, None),
        (False, (2, 0, 1), False, "everything but predictions, since there are features of pairs"),
    ],
)
def test_what_runs_on_the_cpu_is_said(one_set, n_features, descends, expected, monkeypatch, recwarn):
    monkeypatch.setattr(cuda, "kernels", lambda: None)
    monkeypatch.setattr(cuda, "free_memory", lambda: math.inf)
    layout = Layout(Bilinear(3, 3, 1, one_set, 2), 4, 4, n_features=n_features)
    CUDA().check(Objective(layout, Log(), None), make_dyads(10, 4, 4, one_set=one_set), descends)
    said = [str(warning.message) for warning in recwarn.list if warning.category is EngineWarning]
    assert said == (
        []
        if expected is None
        else [f"engine='cuda' leaves to the CPU, where it takes as long as with engine='cpu': {expected}."]
    )


def test_few_pairs_in_memory_are_the_cpus():
    """Fold-in ends when blocks stand still, which in single precision they never do."""
    assert CUDA().for_memory() == CPU()


def test_pairs_that_the_device_cannot_hold_are_refused_before_a_fit(monkeypatch):
    monkeypatch.setattr(cuda, "kernels", lambda: None)
    monkeypatch.setattr(cuda, "free_memory", lambda: 1000.0)
    objective = Objective(Layout(Bilinear(3, 3, 1, False, 2), 4, 4), Log(), None)
    with pytest.raises(InputError, match=r"where 100 of them .* take about .* GB: expected at most .* engine='cpu'"):
        CUDA().check(objective, make_dyads(100, 4, 4))


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
