"""The house rules that no linter knows."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "dyads"
FILES = sorted(SOURCE.rglob("*.py"))
OUTSIDE_MODEL = [path for path in FILES if "model" not in path.relative_to(SOURCE).parts]
BLOCKS = {"a", "b", "A", "B", "row_factors", "col_factors"}


def name_of(node):
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return getattr(node, "id", None)


@pytest.mark.parametrize("path", OUTSIDE_MODEL, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_second_gradient_outside_the_model(path):
    """An exp, or a product of two factors, outside model/ would be a second copy of a kernel."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute | ast.Name):
            assert getattr(node, "attr", getattr(node, "id", None)) not in ("exp", "softmax", "expit", "logsumexp")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult):
            assert not {name_of(node.left), name_of(node.right)} <= BLOCKS, f"line {node.lineno}"


def test_no_rooms_without_an_idea():
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "base", "misc"}


def test_no_forwarding_of_keywords_and_no_global_random_state():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.args.kwarg is None, f"{path.name}: {node.name}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.random.seed", "np.random.rand"):
                raise AssertionError(path)


def test_importing_the_library_imports_nothing_heavy():
    code = (
        "import sys, dyads; print([m for m in ('numba', 'sklearn', 'scipy', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_resolves():
    import dyads

    for name in dyads.__all__:
        assert getattr(dyads, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        dyads.nonsense  # noqa: B018


def test_a_second_process_finds_its_kernels_on_disk(tmp_path):
    code = """
import warnings; warnings.simplefilter("ignore")
from dyads.datasets.synthetic import make_nominal
from dyads import LFLClassifier
from dyads.engine import passes, scoring
data = make_nominal(n=20)
for solver in ("lbfgs", "sgd"):
    LFLClassifier(rank=2, solver=solver, max_iter=2).fit(data.X, data.y).predict(data.X)
kernels = [passes.row_pass, passes.col_pass, passes.loss_pass, passes.sgd_pass, scoring.score_pass]
print(sum(len(k.stats.cache_misses) for k in kernels), sum(len(k.stats.cache_hits) for k in kernels))
"""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    misses = [int(run.stdout.split()[0]) for run in runs]
    assert misses[0] > 0
    assert misses[1] == 0
    assert int(runs[1].stdout.split()[1]) == misses[0]


def test_a_damaged_kernel_cache_is_written_anew(tmp_path):
    code = "from dyads import LFLClassifier; LFLClassifier(rank=1).fit([['a', 'x'], ['b', 'y']], [0, 1])"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        for path in tmp_path.rglob("*.nb?"):
            path.write_bytes(path.read_bytes()[:20])


def test_where_nothing_is_writable_it_warns_and_works():
    code = """
import warnings
from numba.core import caching
def refuse(self): raise OSError("read-only")
caching._CacheLocator.ensure_cache_path = refuse
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from dyads import LFLClassifier
    LFLClassifier(rank=1).fit([["a", "x"], ["b", "y"]], [0, 1])
print([str(w.message)[:21] for w in caught if "NUMBA_CACHE_DIR" in str(w.message)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['Compiled kernels cann']"
