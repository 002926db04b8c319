"""Solvers: move a flat vector so that an objective falls, or sample it. None of them knows a model or data."""

from dyads.solve.lbfgs import LBFGS
from dyads.solve.newton import Newton
from dyads.solve.sgd import SGD
from dyads.solve.solution import Ended, Monitor, Options, Solution, Solver

SOLVERS: dict[str, Solver] = {"lbfgs": LBFGS(), "sgd": SGD(), "newton": Newton()}
"""Those that minimise."""

SAMPLER = "gibbs"
"""The one that samples: see `dyads.solve.gibbs`."""

__all__ = ["LBFGS", "SAMPLER", "SGD", "SOLVERS", "Ended", "Monitor", "Newton", "Options", "Solution", "Solver"]
