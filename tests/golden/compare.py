"""Golden figures of two commits on one machine: `python tests/golden/compare.py BASE`, or `make golden BASE=<commit>`.

Each commit runs its own `figures.py`, BASE in a worktree under build/golden, where its figures are kept for the next
time; remove them after a change of packages. Bitwise equal is always fine. Otherwise
- passes agree to 1e-12 of their largest entry, and the single-precision ones of SGD to 1e-5;
- fits agree in their objective to 1e-6, and those of gibbs in all answers too, since chains are given their random
  numbers. Answers of other fits are shown; they are judged, to 1e-6, where the objective is bitwise equal: the fit is
  then the same, and what is read off it must be.
"""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "golden"
PASS_LIMIT, SGD_LIMIT, FIT_LIMIT = 1e-12, 1e-5, 1e-6


def git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def measure(checkout, path):
    """Write the figures of a checkout, whole or not at all."""
    program, unfinished = checkout / "tests" / "golden" / "figures.py", path.with_suffix(".part.npz")
    if not program.exists():
        sys.exit(f"{checkout} has no tests/golden/figures.py: expected a commit that has it.")
    if subprocess.run([sys.executable, str(program), str(unfinished)], cwd=checkout, check=False).returncode:
        sys.exit(f"The figures of {checkout} could not be computed.")
    unfinished.replace(path)


def figures_of_base(base):
    """The path of the figures of a commit, computed if they are not there yet."""
    sha = git("rev-parse", "--short=12", "--verify", f"{base}^{{commit}}")
    path, checkout = FOLDER / f"{sha}.npz", FOLDER / sha
    if not path.exists():
        if not checkout.exists():
            git("worktree", "add", "--force", "--detach", str(checkout), sha)
        measure(checkout, path)
    return path


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def difference(one, other):
    """The largest difference of two arrays, relative to the largest entry of the first."""
    if one.shape != other.shape or "U" in (one.dtype.kind, other.dtype.kind):
        return 0.0 if np.array_equal(one, other) else np.inf
    one, other = one.astype(np.float64), other.astype(np.float64)
    known = np.isfinite(one)
    if not np.array_equal(one[~known], other[~known], equal_nan=True) or not np.isfinite(other[known]).all():
        return np.inf
    apart, size = np.abs(one - other)[known].max(initial=0.0), np.abs(one[known]).max(initial=0.0)
    return float(apart / size) if size else (np.inf if apart else 0.0)


def limit_of(name, same_fit):
    """How far a figure may be off, or None where it is not judged."""
    family, *_, what = name.split("/")
    if family == "pass":
        return SGD_LIMIT if what == "sgd_theta" else PASS_LIMIT
    return FIT_LIMIT if same_fit or what == "objective" or name.split("/")[4] == "gibbs" else None


def compare(base, here):
    """Lines of the table, one a family and solver or kind of pass, and the names of figures that fail, with why."""
    table = defaultdict(lambda: {"figures": 0, "equal": 0, "judged": 0.0, "shown": 0.0, "limit": 0.0, "failed": 0})
    failures = []
    for name in sorted(set(base) | set(here)):
        parts = name.split("/")
        line = table[f"fit {parts[4]}" if parts[0] == "fit" else f"pass {parts[-1]}"]
        line["figures"] += 1
        objective = f"{name.rsplit('/', 1)[0]}/objective"
        same_fit = objective in base and objective in here and same_bits(base[objective], here[objective])
        limit = limit_of(name, same_fit)
        line["limit"] = max(line["limit"], limit or 0.0)
        if name not in base or name not in here:
            line["failed"] += 1
            failures.append(f"{name}: missing in {'the working tree' if name in base else 'the base'}")
            continue
        line["equal"] += same_bits(base[name], here[name])
        apart = difference(base[name], here[name])
        kind = "shown" if limit is None else "judged"
        line[kind] = max(line[kind], apart)
        if limit is not None and apart > limit:
            line["failed"] += 1
            failures.append(f"{name}: {apart:.1e} > {limit:.0e}")
    return table, failures


def main(base):
    FOLDER.mkdir(parents=True, exist_ok=True)
    before, path = figures_of_base(base), FOLDER / "working.npz"
    measure(ROOT, path)
    with np.load(before) as one, np.load(path) as other:
        table, failures = compare(dict(one), dict(other))
    print(f"{'':<18}{'figures':>8}{'equal':>8}{'difference':>12}{'limit':>8}{'not judged':>12}")
    for name, line in sorted(table.items()):
        print(
            f"{name:<18}{line['figures']:>8}{line['equal']:>8}{line['judged']:>12.1e}{line['limit']:>8.0e}"
            f"{line['shown']:>12.1e}  {'FAIL' if line['failed'] else 'ok'}"
        )
    print(*failures[:20], sep="\n", end="\n" if failures else "")
    print(f"{len(failures)} figures fail." if failures else "No figure fails.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 2 else "compare.py takes one argument: expected BASE, a commit.")
