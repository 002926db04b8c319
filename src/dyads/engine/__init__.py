"""Where sums over dyads are computed; none of these files knows a solver."""

from dyads.engine.api import BlockUpdates, Descent, Engine, OwnPrior, Problem, Query
from dyads.engine.host import CPU

ENGINES: dict[str, type[Engine]] = {"cpu": CPU}

__all__ = ["CPU", "ENGINES", "BlockUpdates", "Descent", "Engine", "OwnPrior", "Problem", "Query"]
