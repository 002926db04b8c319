"""Checkpoints: the state of a fit in a file, from which the same fit can be resumed.

It has chains, or the state of a minimiser, or what a search has judged.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dyads.data.archive import Contents, Format, read_archive, write_archive
from dyads.data.dyads import Dyads
from dyads.engine.posterior import State
from dyads.errors import CheckpointError, InputError
from dyads.model.objective import Objective
from dyads.model.parameters import Layout
from dyads.solve.gibbs import Chain

Array = np.ndarray[Any, Any]

START_OVER = "delete it to start over, or pass another path"
CHAINS = Format("dyads chain", 5, 0, START_OVER, START_OVER)

WATCHED = 256
"""Number of predictions monitored for mixing: more estimate the share with a high R-hat better, and cost memory."""

LARGEST_PARAMETER, LARGEST_PRECISION = 1e9, 1e30
"""Largest magnitudes of parameters, and of precisions and one over them: beyond any chain, without overflow."""

CHECKPOINT_SECONDS = 60.0
"""Seconds between checkpoints: an interruption loses at most about a minute, and writing takes a negligible share."""


FIT = Format("dyads fit", 1, 0, START_OVER, START_OVER)

LARGEST_STATE = 1e35
"""Largest magnitude of a number in the state of a minimiser: below the largest of single precision."""


class FitState:
    """The state of a fit by a minimiser, in parts by name, and its file; without a path it keeps nothing.

    The parts are "settings" (what the fit has chosen: seeds, penalties), "models" (those that are done), "train" (where
    the current one is), "solver" and "watch" (the state of its solver and of its monitor). Each is a dict of arrays and
    JSON values. The file is written at regular intervals and when the fit is interrupted, all parts at once, so that
    they belong together.

    `size` : number of parameters, by which the arrays of the file are checked.
    """

    def __init__(self, path: str | os.PathLike[str] | None, fingerprint: str, size: int) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.parts: dict[str, dict[str, Any]] = {}
        self.pending: dict[str, dict[str, Any]] = {}
        self.written = time.perf_counter()
        if path is not None and Path(path).exists():
            self.parts = self._read(path, size)

    @classmethod
    def none(cls) -> "FitState":
        """A state that is not kept."""
        return cls(None, "", 0)

    @property
    def is_kept(self) -> bool:
        return self.path is not None

    def _read(self, path: str | os.PathLike[str], size: int) -> dict[str, dict[str, Any]]:
        contents = read_archive(path, FIT)
        about = contents.typed("about", contents.field("about"), dict, "an object")
        _check_owner(path, about.get("fingerprint"), self.fingerprint)
        given = contents.typed("parts", about.get("parts"), dict, "an object")
        parts: dict[str, dict[str, Any]] = {}
        for name, part in given.items():
            fields = contents.typed(f"parts ({name})", part, dict, "an object")
            if name not in STATE_FIELDS or not fields.keys() <= STATE_FIELDS[name].keys():
                raise contents.wrong(f"parts ({name})", f"parts {list(STATE_FIELDS)} with their fields")
            for field, value in fields.items():
                if not STATE_FIELDS[name][field](value):
                    raise contents.wrong(f"parts ({name}, {field})", "a value that a fit leaves")
            parts[name] = dict(fields)
        for name in contents.arrays:
            part, _, field = name.partition(".")
            shape = (2, size) if field == "descent" else (size,)
            if part not in parts or not re.fullmatch(r"theta\d*|descent|best", field):
                raise contents.wrong(name, "an array of a fit")
            array = contents.floats(name, *shape, least=-LARGEST_STATE, most=LARGEST_STATE, dtype=("F32", "F64"))
            parts[part][field] = np.array(array)
        for name, fields in parts.items():
            needed = {field for field in STATE_FIELDS[name] if field not in OPTIONAL_FIELDS} | STATE_ARRAYS[name]
            n_ends = len(fields.get("restarts", fields.get("ends", [])))
            needed |= {f"theta{i}" for i in range(n_ends)}
            if not needed <= fields.keys():
                raise contents.wrong(f"parts ({name})", f"the fields {sorted(needed)}")
        return parts

    def load(self, part: str) -> dict[str, Any]:
        """A part of the state, or an empty dict."""
        return self.parts.get(part, {})

    def save(self, part: str, state: dict[str, Any]) -> None:
        """Replace a part, and those that wait for it; write the file if the last time was a while ago."""
        self.parts |= {part: state} | self.pending
        self.pending = {}
        if self.is_kept and time.perf_counter() - self.written > CHECKPOINT_SECONDS:
            self.write()

    def clear(self, *parts: str) -> None:
        """Forget parts of what is done."""
        for part in parts:
            self.parts.pop(part, None)
            self.pending.pop(part, None)

    def write(self) -> None:
        """Write the file."""
        if self.path is None or not self.parts:
            return
        arrays: dict[str, Array] = {}
        fields: dict[str, dict[str, Any]] = {}
        for part, state in self.parts.items():
            arrays |= {f"{part}.{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
            fields[part] = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
        write_archive(self.path, FIT, {"about": {"fingerprint": self.fingerprint, "parts": fields}}, arrays)
        self.written = time.perf_counter()

    def of_solver(self) -> "SolverState":
        """The part of the solver, as it sees it."""
        return SolverState(self)


def _is_step(value: Any) -> bool:
    """Whether a value is an iteration of a trace."""
    return type(value) is list and len(value) == N_PROGRESS and all(type(number) in (int, float) for number in value)


def _is_trace(value: Any) -> bool:
    return type(value) is list and all(map(_is_step, value))


def _is_ends(value: Any) -> bool:
    """Whether a value is a list of the ends of restarts, without their parameters."""
    return type(value) is list and all(
        type(end) is dict
        and end.keys() == END_FIELDS.keys()
        and all(type(end[field]) in kinds for field, kinds in END_FIELDS.items())
        for end in value
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_float(value: Any) -> bool:
    return type(value) in (int, float)


def _is_strengths(value: Any) -> bool:
    return value is None or (type(value) is dict and all(map(_is_float, value.values())))


N_PROGRESS = 6
"""Number of fields of an iteration in a trace."""

END_FIELDS = {
    "objective": (int, float),
    "solver": (str,),
    "n_iter": (int,),
    "ended": (str,),
    "validation": (int, float),
    "diverged": (str, type(None)),
    "warning": (str, type(None)),
}
"""Fields of the end of a restart, without its parameters, and the types of their values."""

STATE_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "settings": {
        "seeds": lambda value: type(value) is list and bool(value) and all(map(_is_count, value)),
        "strengths": _is_strengths,
    },
    "models": {"ends": _is_ends, "trace": _is_trace},
    "train": {"init": _is_count, "stage": _is_count, "n_iter": _is_count, "trace": _is_trace, "restarts": _is_ends},
    "solver": {"n_iter": _is_count, "last": _is_float, "first_rate": _is_float, "retries": _is_count},
    "watch": {"validation": _is_float, "since_best": _is_count},
}
"""Fields of the parts of a state, and what a value read from a file must be."""

OPTIONAL_FIELDS = {"last", "first_rate", "retries"}
"""Fields that only some solvers have."""

STATE_ARRAYS = {"settings": set(), "models": set(), "train": {"theta"}, "solver": set(), "watch": {"best"}}
"""Arrays that a part always has. A solver has those that it needs."""


class SolverState:
    """The state of a solver within that of a fit; see `dyads.solve.minimise.Saved`."""

    def __init__(self, state: FitState) -> None:
        self._state = state
        self.is_kept = state.is_kept

    def load(self, *names: str) -> dict[str, Any]:
        state = self._state.load("solver")
        if state and not set(names) <= state.keys():
            raise InputError(
                f"The checkpoint {self._state.path} lacks {set(names) - state.keys()} of its solver: expected the file "
                f"of a fit; {START_OVER}."
            )
        return state

    def save(self, state: dict[str, Any]) -> None:
        if self.is_kept:
            self._state.save("solver", state)


def _check_owner(path: str | os.PathLike[str], fingerprint: Any, expected: str) -> None:
    if fingerprint != expected:
        raise CheckpointError(
            f"The checkpoint {path} belongs to other data or another model: expected the same data and model. Pass "
            "another path, or delete it to start over."
        )


def check_seed(path: str | os.PathLike[str] | None, kept: Any, given: Any) -> None:
    """Raise if a fit that is resumed was given another seed than it started with."""
    if kept != given:
        raise CheckpointError(
            f"The checkpoint {os.fspath(path or '')} is of a fit with another random_state: expected the same, or none "
            "to go on. Omit it, pass another path, or delete the file to start over."
        )


SEARCH = Format("dyads search", 1, 0, START_OVER, START_OVER)

LARGEST_LOSS = 1e4
"""Largest log-loss of a dyad in a search: that of the smallest probability is 708."""


class SearchState:
    """What a search by cross-validation has judged so far, and its file; without a path it keeps nothing.

    Attributes
    ----------
    values : numbers by name: "seed", that of all fits, and "top", the strength at which latent weights vanish
    losses : mean held-out log-loss of each fit, by its key
    by_dyad : (n,) log-loss of each held-out dyad of the first fold, by key
    marginals : mean held-out log-loss of marginals, by their names, of each fold
    """

    def __init__(self, path: str | os.PathLike[str] | None, fingerprint: str) -> None:
        self.path, self.fingerprint, self.written = path, fingerprint, time.perf_counter()
        self.values: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        self.by_dyad: dict[str, Array] = {}
        self.marginals: dict[str, dict[str, float]] = {}
        if path is not None and Path(path).exists():
            self._read(path)

    @classmethod
    def none(cls) -> "SearchState":
        """A state that is not kept."""
        return cls(None, "")

    def _read(self, path: str | os.PathLike[str]) -> None:
        contents = read_archive(path, SEARCH)
        about = contents.typed("about", contents.field("about"), dict, "an object")
        _check_owner(path, about.get("fingerprint"), self.fingerprint)
        for name, is_valid in SEARCH_FIELDS.items():
            if not is_valid(about.get(name)):
                raise contents.wrong(f"about ({name})", "what a search leaves")
            setattr(self, name, about[name])
        if "seed" not in self.values or not contents.arrays.keys() <= self.losses.keys():
            raise contents.wrong("about (losses)", "a loss for each array, and a seed")
        self.by_dyad = {
            key: contents.floats(key, None, least=-1.0, most=LARGEST_LOSS).copy() for key in contents.arrays
        }

    def save(self, now: bool = False) -> None:
        """Write the file, if the last time was a while ago or `now`."""
        if self.path is None or not (now or time.perf_counter() - self.written > CHECKPOINT_SECONDS):
            return
        about = {name: getattr(self, name) for name in SEARCH_FIELDS} | {"fingerprint": self.fingerprint}
        write_archive(self.path, SEARCH, {"about": about}, dict(self.by_dyad))
        self.written = time.perf_counter()


def _is_numbers(value: Any) -> bool:
    return type(value) is dict and all(map(_is_float, value.values()))


SEARCH_FIELDS: dict[str, Callable[[Any], bool]] = {
    "values": _is_numbers,
    "losses": _is_numbers,
    "marginals": lambda value: type(value) is dict and all(map(_is_numbers, value.values())),
}
"""Fields of the state of a search, and what a value read from a file must be."""


class Checkpoint:
    """Writes the chains to a file at regular intervals; does nothing without a path."""

    def __init__(self, path: str | os.PathLike[str] | None, chains: list[Chain], fingerprint: str, seed: int) -> None:
        self.path, self.chains, self.fingerprint, self.seed = path, chains, fingerprint, seed
        self.written = time.perf_counter()

    def __call__(self, now: bool = False) -> None:
        if self.path is None or not (now or time.perf_counter() - self.written > CHECKPOINT_SECONDS):
            return
        arrays: dict[str, Array] = {}
        thinning = []
        for number, chain in enumerate(self.chains):
            arrays |= {f"chain{number}_{name}": part for name, part in chain.state.arrays().items()}
            arrays[f"chain{number}_losses"] = np.array(chain.losses)
            arrays[f"chain{number}_accepted"] = np.array(chain.accepted)
            arrays[f"chain{number}_watched"] = np.array(chain.watched).reshape(len(chain.watched), -1)
            arrays[f"chain{number}_sweeps"] = np.array([sweep for sweep, _ in chain.draws], np.int64)
            kept = [draw.arrays() for _, draw in chain.draws]
            for name in kept[0] if kept else ():
                arrays[f"chain{number}_draws_{name}"] = np.stack([draw[name] for draw in kept])
            thinning.append(chain.every)
        about = {"fingerprint": self.fingerprint, "seed": self.seed, "every": thinning}
        write_archive(self.path, CHAINS, {"about": about}, arrays)
        self.written = time.perf_counter()


def resumed_chains(
    path: str | os.PathLike[str] | None, fingerprint: str, seed: int, layout: Layout
) -> tuple[list[Chain], int]:
    """Return the chains of an existing checkpoint and their seed; without one, an empty list and the given seed.

    `layout` : layout of the parameters, by which the arrays of the checkpoint are checked.
    """
    if path is None or not Path(path).exists():
        return [], seed
    contents = read_archive(path, CHAINS)
    about = contents.typed("about", contents.field("about"), dict, "an object")
    _check_owner(path, about.get("fingerprint"), fingerprint)
    thinning = contents.typed("every", about.get("every"), list, "a list")
    chains = [_chain(contents, f"chain{number}_", every, layout) for number, every in enumerate(thinning)]
    return chains, contents.count("seed", about.get("seed"), 0, 2**32 - 1)


def _chain(contents: Contents, start: str, every: Any, layout: Layout) -> Chain:
    """The chain whose arrays have names that begin with `start`."""
    losses = contents.floats(f"{start}losses", None)
    n = len(losses)
    sweeps = contents.raw(f"{start}sweeps", ("I64",), (None,))
    if len(sweeps) and not (sweeps[0] > 0 and sweeps[-1] <= n and (sweeps[1:] > sweeps[:-1]).all()):
        raise contents.wrong(f"{start}sweeps", f"ascending numbers from 1 to {n}")
    watched = contents.floats(f"{start}watched", n, WATCHED if n else None, least=0, most=1)
    kept = _states(contents, f"{start}draws_", layout, (len(sweeps),), "F32") if len(sweeps) else {}
    return Chain(
        state=State.of(_states(contents, start, layout, (), "F64")),
        losses=tuple(losses.tolist()),
        accepted=tuple(contents.floats(f"{start}accepted", n, least=0, most=1).tolist()),
        watched=tuple(watched),
        draws=tuple(
            (sweep, State.of({name: part[i] for name, part in kept.items()})) for i, sweep in enumerate(sweeps.tolist())
        ),
        every=contents.count(f"{start}every", every, 1, 2**31),
    )


def _states(contents: Contents, start: str, layout: Layout, first: tuple[int, ...], dtype: str) -> dict[str, Array]:
    """The arrays of a state, or of several states along the first dimension."""
    row, col, shared = layout.sizes
    sizes = [row] if layout.structure.one_set else [row, col]
    sizes += [shared] if layout.n_relations > 1 else []
    limits = {
        "theta": (-LARGEST_PARAMETER, LARGEST_PARAMETER),
        "mean": (-LARGEST_PARAMETER, LARGEST_PARAMETER),
        "precision": (-LARGEST_PRECISION, LARGEST_PRECISION),
        "scale": (1 / LARGEST_PRECISION, LARGEST_PRECISION),
        "side_precision": (1 / LARGEST_PRECISION, LARGEST_PRECISION),
    }

    def take(name: str, number: str, *shape: int) -> Array:
        least, most = limits[name]
        return contents.floats(f"{start}{name}{number}", *first, *shape, least=least, most=most, dtype=(dtype,))

    arrays = {"theta": take("theta", "", layout.size), "side_precision": take("side_precision", "", 3)}
    for i, size in enumerate(sizes):
        shapes = {"mean": (size,), "precision": (size, size), "scale": (size,)}
        arrays |= {f"{name}{i}": take(name, str(i), *shape) for name, shape in shapes.items()}
        try:
            np.linalg.cholesky(arrays[f"precision{i}"].astype(np.float64))
        except np.linalg.LinAlgError as error:
            raise contents.wrong(f"{start}precision{i}", "a positive definite matrix") from error
    return arrays


def fingerprint_of(objective: Objective, dyads: Dyads, settings: Any, values: Array | None) -> str:
    """SHA-256 of the data, the model and settings of the fit: it may only be resumed with its own."""
    about = (objective.layout, objective.loss, settings, dyads.n_rows, dyads.n_cols)
    return digest_of(about, dyads, values, objective.penalty.shared_centre)


def digest_of(about: Any, dyads: Dyads, *further: Array | None) -> str:
    """SHA-256 of dyads with their features, of further arrays, and of what `about` is written as."""
    digest = hashlib.sha256(repr(about).encode())
    side = [
        part for matrix in dyads.side if matrix is not None for part in (matrix.data, matrix.indices, matrix.indptr)
    ]
    for part in (dyads.row, dyads.col, dyads.label, dyads.weight, dyads.relation, *further, *side):
        if part is not None:
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
