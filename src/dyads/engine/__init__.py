"""Engines compute sums over dyads. No module here knows about solvers."""

from dyads.engine.api import BlockUpdates, Descent, Engine, OwnPrior, Problem, Query
from dyads.engine.cluster import Ray
from dyads.engine.cuda import CUDA
from dyads.engine.host import CPU

ENGINES: dict[str, type[Engine]] = {"cpu": CPU, "cuda": CUDA, "ray": Ray}
"""Engines by the names that users give."""

__all__ = ["CPU", "CUDA", "ENGINES", "BlockUpdates", "Descent", "Engine", "OwnPrior", "Problem", "Query", "Ray"]
