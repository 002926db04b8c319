"""Checkpoints: the chains of a sampler in a file, from which the same fit can be resumed."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from dyads.data.archive import Format, arrays_of_part, arrays_to_part, read_archive, write_archive
from dyads.data.dyads import Dyads
from dyads.engine.posterior import State
from dyads.errors import InputError
from dyads.model.objective import Objective
from dyads.solve.gibbs import Chain

Array = np.ndarray[Any, Any]

START_OVER = "delete it to start over, or pass another path"
CHAINS = Format("dyads chain", 4, 0, START_OVER, START_OVER)
ARRAYS = "arrays.safetensors"

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
        write_archive(self.path, CHAINS, {"about": about}, {ARRAYS: arrays_to_part(arrays)})
        self.written = time.perf_counter()


def resumed_chains(path: str | os.PathLike[str] | None, fingerprint: str, seed: int) -> tuple[list[Chain], int]:
    """Return the chains of an existing checkpoint and their seed; without one, an empty list and the given seed."""
    if path is None or not Path(path).exists():
        return [], seed
    manifest, parts = read_archive(path, CHAINS)
    arrays, about = arrays_of_part(parts[ARRAYS]), manifest["about"]
    if about["fingerprint"] != fingerprint:
        raise InputError(
            f"The checkpoint {path} belongs to other data or another model: expected the same data and model. Pass "
            "another path, or delete it to start over."
        )
    chains = []
    for number, every in enumerate(about["every"]):
        own = {name.split("_", 1)[1]: part for name, part in arrays.items() if name.startswith(f"chain{number}_")}
        drawn = {name.removeprefix("draws_"): part for name, part in own.items() if name.startswith("draws_")}
        sweeps = own["sweeps"].tolist()
        states = (State.of({name: part[i] for name, part in drawn.items()}) for i in range(len(sweeps)))
        draws = tuple(zip(sweeps, states, strict=True))
        state = State.of({name: part for name, part in own.items() if not name.startswith("draws_")})
        losses, accepted = tuple(own["losses"].tolist()), tuple(own["accepted"].tolist())
        chains.append(Chain(state, losses, accepted, tuple(own["watched"]), draws, every))
    return chains, int(about["seed"])


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
