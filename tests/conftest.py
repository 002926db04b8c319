import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Examples are the same in every run, and few: compiled kernels make the first slow.
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """`random_state=None` is drawn from NumPy's global state: the same in every run of a test, in any order."""
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture
def interpreted(monkeypatch):
    """A context in which every kernel runs as plain Python, all the way down."""
    from numba.core.dispatcher import Dispatcher

    @contextlib.contextmanager
    def without_compiler():
        with monkeypatch.context() as patch:
            modules = [module for name, module in sys.modules.items() if name.startswith("dyads.")]
            for module in modules:
                for name, value in vars(module).copy().items():
                    if isinstance(value, Dispatcher):
                        patch.setattr(module, name, value.py_func)
            assert not any(isinstance(value, Dispatcher) for module in modules for value in vars(module).values())
            yield

    return without_compiler


@pytest.fixture
def run(monkeypatch, capfd):
    """Run the command in this process: its exit code, standard output and standard error."""
    from dyads.cli import app

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dyads", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        printed = capfd.readouterr()
        return ended.value.code, printed.out, printed.err

    return run
