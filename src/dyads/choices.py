"""What the parameters of a constructor may be, said in one sentence where they are not."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyads.errors import InputError, unknown_name
from dyads.model.loss import LOSSES
from dyads.model.penalty import SCALINGS
from dyads.model.structure import STRUCTURES
from dyads.solve import SAMPLER, SOLVERS
from dyads.training import SIDE_TRAINING

UNKNOWN_POLICIES = ("prior", "mean", "raise", "nan")

NAMED = {
    "loss": LOSSES,
    "l2_scaling": SCALINGS,
    "solver": (*SOLVERS, SAMPLER, "auto"),
    "unknown": UNKNOWN_POLICIES,
    "side_training": SIDE_TRAINING,
}
SWITCHES = ("bias", "early_stopping", "warm_start", "implicit")
COUNTS = {"rank": 0, "interactions": 0, "n_init": 1, "n_models": 1, "n_chains": 1, "n_bases": 1, "max_iter": 1}
"""Whole numbers, and the least each may be."""

STRENGTHS = ("l2", "l2_row", "l2_col", "l2_bias", "l2_side", "l2_shared", "tol", "draw_memory")
OPTIONAL = ("n_bases", "max_iter", "l2_row", "l2_col", "l2_bias", "l2_shared", "tol", "learning_rate")
"""Those that may be None."""


def check_choices(estimator: Any, structures: Sequence[str], offers: Mapping[str, Sequence[str]]) -> None:
    """Refuse impossible parameters of an estimator.

    `structures` are those it has; `offers` those of every estimator, to name one that has the structure wanted.
    """
    for name, valid in NAMED.items():
        value = getattr(estimator, name)
        if not (isinstance(value, str) and value in valid) and type(value) not in LOSSES.values():
            raise unknown_name(name, value, valid)
    _check_structure(estimator, structures, offers)
    delta = getattr(estimator.loss, "delta", 0)
    if not isinstance(delta, numbers.Real) or not 0 <= delta < np.inf:
        raise InputError(f"loss={estimator.loss!r} has delta={delta!r}: expected a finite number, at least 0.")
    for name in SWITCHES:
        if not isinstance(getattr(estimator, name), bool | np.bool_):
            raise InputError(f"{name}={getattr(estimator, name)!r} is not possible: expected True or False.")
    limits = [(name, least, numbers.Integral, "a whole number") for name, least in COUNTS.items()]
    limits += [(name, 0, numbers.Real, "a finite number") for name in STRENGTHS]
    for name, least, kind, what in limits:
        value = getattr(estimator, name)
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, kind) or isinstance(value, bool) or not least <= value < np.inf:
            raise InputError(f"{name}={value!r} is not possible: expected {what}, at least {least}.")
    for name, most in (("learning_rate", np.inf), ("validation_fraction", 1)):
        value = getattr(estimator, name)
        optional = value is None and name in OPTIONAL
        if not optional and not (isinstance(value, numbers.Real) and 0 < value < most):
            raise InputError(f"{name}={value!r} is not possible: expected a number between 0 and {most}.")
    if estimator.solver == SAMPLER and estimator.n_models > 1:
        raise InputError(
            f"n_models={estimator.n_models} is for point estimates, and solver='{SAMPLER}' averages draws already: "
            "expected 1. Use n_chains."
        )
    n_jobs = estimator.n_jobs
    if n_jobs is not None and (not isinstance(n_jobs, numbers.Integral) or n_jobs == 0):
        raise InputError(f"n_jobs={n_jobs!r} is not possible: expected a number of threads, or -1 for all cores.")


def _check_structure(estimator: Any, structures: Sequence[str], offers: Mapping[str, Sequence[str]]) -> None:
    value = estimator.structure
    if value is None or (isinstance(value, str) and value in structures):
        return
    if not isinstance(value, str) or value not in STRUCTURES:
        raise unknown_name("structure", value, structures)
    fitting = sorted(name for name, others in offers.items() if value in others)
    raise InputError(
        f"structure={value!r} does not fit {type(estimator).__name__}: expected one of "
        f"{', '.join(map(repr, structures))}. Use {' or '.join(fitting)} for it."
    )
