"""Checkpoints: the chains of a sampler in a file, from which the same fit can be resumed."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from dyads.data.archive import Contents, Format, read_archive, write_archive
from dyads.data.dyads import Dyads
from dyads.engine.posterior import State
from dyads.errors import InputError
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
    if about.get("fingerprint") != fingerprint:
        raise InputError(
            f"The checkpoint {path} belongs to other data or another model: expected the same data and model. Pass "
            "another path, or delete it to start over."
        )
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


def fingerprint_of(objective: Objective, dyads: Dyads, n_chains: int, values: Array | None) -> str:
    """SHA-256 of the data and the model: a chain may only be resumed with its own."""
    digest = hashlib.sha256(repr((objective.layout, objective.loss, n_chains, dyads.n_rows, dyads.n_cols)).encode())
    side = [
        part for matrix in dyads.side if matrix is not None for part in (matrix.data, matrix.indices, matrix.indptr)
    ]
    centre = objective.penalty.shared_centre
    for part in (dyads.row, dyads.col, dyads.label, dyads.weight, dyads.relation, values, centre, *side):
        if part is not None:
            digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
