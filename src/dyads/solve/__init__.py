"""Solvers: minimise an objective over a flat vector, or sample it. They know no model, no data and no engine."""

from typing import Any

from dyads.solve.gibbs import Gibbs
from dyads.solve.minimise import LBFGS, SGD, Newton

SOLVERS: dict[str, Any] = {"lbfgs": LBFGS, "sgd": SGD, "newton": Newton, "gibbs": Gibbs}

__all__ = ["LBFGS", "SGD", "SOLVERS", "Gibbs", "Newton"]
