"""The house rules that no linter knows."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "dyads"
FILES = sorted(SOURCE.rglob("*.py"))
OUTSIDE_MODEL = [path for path in FILES if "model" not in path.relative_to(SOURCE).parts]

LINKS = {"exp", "exp2", "expm1", "softmax", "log_softmax", "expit", "log_expit", "logsumexp", "logaddexp"}
PRODUCTS = {"einsum", "tensordot", "matmul", "dot", "vdot", "inner", "multiply"}
KERNEL_NAMES = {
    ("datasets/synthetic.py", "einsum"): "a truth is made up without the model that is to find it",
}
"""Where a name that belongs in model/ may stand, and why."""

FACTORS = {"a", "b", "A", "B", "u", "v", "U", "V", "alpha", "beta", "blocks", "factors", "own", "theta", "embed"}
"""What weights of rows and columns are called, or what gives them."""
VIEWS = {"astype", "blocks", "copy", "embed", "ravel", "reshape", "take", "transpose"}


def place(path):
    return path.relative_to(SOURCE).as_posix()


def names_used(tree):
    """Names that are read, and names as they are called where they are imported from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield getattr(node, "attr", getattr(node, "id", None))


def is_factor(node, names):
    """Whether an expression is a part of something in `names`, or such parts added or multiplied."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BinOp):
        return is_factor(node.left, names) or is_factor(node.right, names)
    if isinstance(node, ast.Attribute):
        return node.attr in FACTORS or is_factor(node.value, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in VIEWS and is_factor(node.func, names)
    if isinstance(node, ast.Subscript | ast.Starred):
        return is_factor(node.value, names)
    return isinstance(node, ast.UnaryOp) and is_factor(node.operand, names)


def factor_products(tree):
    """The lines with a product of two factors, also of those that were given other names in the same function."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names, before = set(FACTORS), set()
        while names != before:
            before = set(names)
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    names |= {name for target in node.targets for name in renamed(target, node.value, names)}
        for node in ast.walk(function):
            product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult)
            if product and is_factor(node.left, names) and is_factor(node.right, names):
                yield node.lineno


def renamed(target, value, names):
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return [name for pair in zip(target.elts, value.elts, strict=False) for name in renamed(*pair, names)]
    found = target.elts if isinstance(target, ast.Tuple) else [target]
    return [one.id for one in found if isinstance(one, ast.Name) and is_factor(value, names)]


@pytest.mark.parametrize("path", OUTSIDE_MODEL, ids=place)
def test_no_second_gradient_outside_the_model(path):
    """An exp, or a product of two factors, outside model/ would be a second copy of a kernel."""
    tree = ast.parse(path.read_text())
    known = {name for where, name in KERNEL_NAMES if where == place(path)}
    assert set(names_used(tree)) & (LINKS | PRODUCTS) == known, "new ones, or old ones that are mended"
    assert list(factor_products(tree)) == []


@pytest.mark.parametrize(
    "line",
    [
        "a[k] * b[k]",
        "blocks.row[i] @ blocks.col[j].T",
        "turns.blocks[0] * (1 + turns.blocks[1])",
        "layout.blocks(theta).row.astype(float) @ x.U",
        "left, right = blocks.row[i], -blocks.col; mine = right[:, 1]; left @ mine",
        "first, second = turns.blocks; first @ second.T",
    ],
)
def test_a_product_of_factors_is_seen_by_any_name(line):
    assert list(factor_products(ast.parse(f"def f(): {line}"))) == [1]


def test_the_products_of_the_model_itself_are_seen():
    assert len(list(factor_products(ast.parse((SOURCE / "model" / "structure.py").read_text())))) > 5


MOST_PARAMETERS = 12
MANY_PARAMETERS = {
    ("estimators/lfl.py", "__init__"): "the constructor of the estimators",
    ("estimators/selection.py", "__init__"): "the same parameters, and those of the search",
    ("cli/models.py", "fit"): "the options of the command that are not settings",
    ("cli/answers.py", "recommend"): "the options of the command",
}
"""Who may have more, and why."""


def test_no_function_has_more_parameters_than_anyone_can_hold():
    many = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                if len([argument for argument in given if argument.arg not in ("self", "cls")]) > MOST_PARAMETERS:
                    many.add((place(path), getattr(node, "name", "lambda")))
    assert many == MANY_PARAMETERS.keys()


def test_no_bundle_of_a_pass_has_more_fields_than_anyone_can_hold():
    for path in (SOURCE / "engine").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
                fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
                assert len(fields) <= MOST_PARAMETERS, node.name


def test_bundles_have_names_of_their_own():
    """Numba takes two named tuples of one name for each other."""
    names = [
        node.name
        for path in (*(SOURCE / "engine").glob("*.py"), *(SOURCE / "model").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
    ]
    assert len(set(names)) == len(names)


def test_only_the_engine_knows_its_host():
    for path in FILES:
        if path.parent.name != "engine":
            assert not {"Host", "HostDescent", "HostUpdates", "Threads"} & set(
                names_used(ast.parse(path.read_text()))
            ), path


def test_no_rooms_without_an_idea():
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "base", "misc"}


REPLACING = {"dict", "replace", "_replace", "set_params"}
"""Calls that are given fields by name, whichever these are."""

FILE, STUDY = "fields by the names under which a file holds them", "what a file of experiments says"
GIVEN = "the tables of features that were given, and no others"
MAPPINGS_IN_CALLS = {
    ("trained/artifact.py", "Parts"): FILE,
    ("trained/artifact.py", "kind"): FILE,
    ("engine/compiled.py", "njit"): "the options all kernels are compiled with",
    ("engine/compiled.py", "register_jitable"): "the options all sums are compiled with",
    ("estimators/kinds.py", "kind"): FILE,
    ("paper/experiment.py", "Case"): STUDY,
    ("paper/experiment.py", "Experiment"): STUDY,
    ("paper/experiment.py", "Method"): STUDY,
    ("paper/experiment.py", "TASKS"): STUDY,
    ("paper/experiment.py", "WRAPPERS"): STUDY,
    ("estimators/selection.py", "_plain"): "the parameters that both estimators have",
    ("estimators/settings.py", "Dialect"): FILE,
    ("estimators/settings.py", "kinds"): FILE,
    ("cli/answers.py", "evaluated"): GIVEN,
    ("cli/answers.py", "explain"): GIVEN,
    ("cli/models.py", "fold_in"): GIVEN,
    ("cli/answers.py", "predictions"): GIVEN,
    ("cli/answers.py", "recommend"): GIVEN,
    ("cli/app.py", "report"): GIVEN,
    ("cli/models.py", "Dialect"): FILE,
    ("report/page.py", "explain"): GIVEN,
    ("report/page.py", "predictions"): GIVEN,
    ("trained/predictions.py", "predict"): GIVEN,
    ("trained/predictions.py", "predict_proba"): GIVEN,
}
"""Where a call is given `**mapping`, and why."""


def called(node):
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def test_no_forwarding_of_keywords():
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                scikit_learns = getattr(node, "name", "") == "set_params"
                assert node.args.kwarg is None or scikit_learns, f"{place(path)}: line {node.lineno}"
            if isinstance(node, ast.Call) and any(keyword.arg is None for keyword in node.keywords):
                found.add((place(path), called(node.func)))
    found = {(where, what) for where, what in found if what not in REPLACING}
    assert found - MAPPINGS_IN_CALLS.keys() == set()
    assert MAPPINGS_IN_CALLS.keys() - found == set(), "these occur no longer: take them off the list"


GENERATORS = {"Generator", "Philox", "RandomState", "SeedSequence", "default_rng"}
"""What of np.random keeps no state for all."""


def test_no_global_random_state():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
                assert node.attr in GENERATORS, f"{place(path)}: line {node.lineno}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "random" not in {getattr(node, "module", None), *(alias.name for alias in node.names)}


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


def test_a_second_process_finds_its_kernels_on_disk_and_a_damaged_cache_is_written_anew(tmp_path):
    code = """
import numpy as np
from dyads.engine import CPU, passes
from problems import STRUCTURES, Log, make_dyads, make_objective
dyads = make_dyads()
objective = make_objective(STRUCTURES[0], Log(), dyads)
with CPU(1).bind(objective, dyads) as problem:
    problem.loss(np.zeros(objective.layout.size))
stats = passes.loss_pass.stats
print(len(stats.cache_misses), len(stats.cache_hits))
"""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}

    def misses_and_hits():
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        return [int(number) for number in run.stdout.split()]

    assert misses_and_hits() == [1, 0]
    assert misses_and_hits() == [0, 1]
    for path in tmp_path.rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[:20])
    assert misses_and_hits() == [1, 0]


ONE_KERNEL = """
import numpy as np
from dyads.engine.entity import noise_pass
from dyads.model.streams import Key, Stream
noise = np.full((3, 2), np.nan)
noise_pass(Key.of(0, Stream.BLOCKS), np.arange(3), noise)
assert np.isfinite(noise).all()
"""


def test_where_nothing_is_writable_it_warns_and_works():
    code = """
import warnings
from numba.core import caching
def refuse(self): raise OSError("read-only")
caching._CacheLocator.ensure_cache_path = refuse
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec(ONE_KERNEL)
print([str(w.message)[:21] for w in caught if "NUMBA_CACHE_DIR" in str(w.message)])
"""
    code = f"ONE_KERNEL = {ONE_KERNEL!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['Compiled kernels cann']"
