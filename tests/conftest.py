import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """`random_state=None` is drawn from NumPy's global state: the same in every run of a test, in any order."""
    np.random.seed(0)  # noqa: NPY002
