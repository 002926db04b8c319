"""Solvers: move a flat vector so that an objective falls, or sample it. None knows a model, data or an engine."""

from typing import Any

from dyads.solve.gibbs import Gibbs
from dyads.solve.minimise import LBFGS, SGD, Newton

SOLVERS: dict[str, Any] = {"lbfgs": LBFGS, "sgd": SGD, "newton": Newton, "gibbs": Gibbs}

__all__ = ["LBFGS", "SGD", "SOLVERS", "Gibbs", "Newton"]
