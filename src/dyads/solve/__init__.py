"""Solvers: move a flat vector so that an objective falls. None of them knows a model or data."""

from dyads.solve.lbfgs import LBFGS
from dyads.solve.newton import Newton
from dyads.solve.sgd import SGD
from dyads.solve.solution import Ended, Monitor, Options, Solution, Solver

SOLVERS: dict[str, Solver] = {"lbfgs": LBFGS(), "sgd": SGD(), "newton": Newton()}

__all__ = ["LBFGS", "SGD", "SOLVERS", "Ended", "Monitor", "Newton", "Options", "Solution", "Solver"]
