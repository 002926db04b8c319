"""Engines compute sums over dyads. No module here knows about solvers."""

from dyads.engine.api import BlockUpdates, Descent, Engine, OwnPrior, Problem, Query
from dyads.engine.host import CPU

ENGINES: dict[str, type[Engine]] = {"cpu": CPU}
"""Engines by the names that users give."""

__all__ = ["CPU", "ENGINES", "BlockUpdates", "Descent", "Engine", "OwnPrior", "Problem", "Query"]
