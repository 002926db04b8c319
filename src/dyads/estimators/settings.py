"""Validation of estimator parameters: names and settings objects are converted, anything else raises an error."""

import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from dyads.data.features import SideInformation
from dyads.data.files import Dialect
from dyads.engine import CPU, CUDA, ENGINES, Engine, Ray
from dyads.errors import InputError, shortened, unknown_name
from dyads.model.loss import LOSSES
from dyads.model.objective import L2
from dyads.model.parameters import Layout
from dyads.model.structure import STRUCTURES
from dyads.settings import Setting, check_seed, is_number
from dyads.solve import LBFGS, SGD, SOLVERS, Gibbs, Newton
from dyads.trained import artifact

UNKNOWN_POLICIES = ("prior", "mean", "raise", "nan")

SETTINGS: dict[str, tuple[Any, ...]] = {
    "features": (SideInformation,),
    "l2": (L2,),
    "solver": (LBFGS, SGD, Newton, Gibbs),
    "engine": (CPU, CUDA, Ray),
}
"""The classes of settings objects that a parameter takes."""

SWITCHES = ("bias", "warm_start")
COUNTS, OPTIONAL = {"n_init": 1}, {"rank": 0, "n_terms": 1, "n_models": 1}
"""Parameters that are whole numbers, and their minimum; the second ones may be None."""


BY_DATA = ("auto", "point")
"""Names that leave the choice of the solver to the data; the second asks for a point estimate."""


def asks_for_point(solver: Any) -> bool:
    """Whether a solver, as the user gave it, is the name of a point estimate by any solver."""
    return isinstance(solver, str) and solver == BY_DATA[1]


def solver_of(value: Any) -> Any:
    """Settings of a solver given by name or as an object; None for "auto" and "point"."""
    if isinstance(value, str) and value in BY_DATA:
        return None
    return _by_name("solver", value, SOLVERS, [*BY_DATA, *SOLVERS])


def engine_of(value: Any) -> Engine:
    """Engine given by name or as an object."""
    is_engine = hasattr(value, "bind") and not isinstance(value, type)
    return value if is_engine else _by_name("engine", value, ENGINES, ENGINES)  # type: ignore[no-any-return]


def random_state_of(value: Any) -> np.random.RandomState:
    """Random numbers of a seed, which is checked, as scikit-learn makes them."""
    if value is not np.random:
        check_seed(value, np.random.RandomState)
    return check_random_state(value)  # type: ignore[no-any-return]


def l2_of(value: Any) -> L2:
    """Strengths of the penalty: from an object, from the one number for latent weights, or None for the defaults."""
    if isinstance(value, L2):
        return value
    if value is not None and not (is_number(value) and value >= 0):
        raise InputError(f"Got l2={value!r}: expected a finite number, at least 0, L2(...) or None.")
    return L2(latent=None if value is None else float(value))


def features_of(value: Any) -> SideInformation:
    """Settings of the side-information; None stands for no features."""
    if value is None:
        return SideInformation()
    if not isinstance(value, SideInformation):
        raise InputError(
            f"Got features of type {type(value).__name__}: expected SideInformation(row=..., col=...) with tables."
        )
    return value


PARTS: dict[str, Callable[[Any], Any]] = {
    "solver": solver_of,
    "l2": l2_of,
    "features": features_of,
    "engine": engine_of,
}
"""The parameters that take a settings object, and the function that converts each."""


def with_changes(name: str, value: Any, changes: dict[str, Any]) -> Setting:
    """Return the settings object of a parameter with some fields changed, as in ``set_params(name__field=...)``."""
    settings = PARTS[name](value)
    if not isinstance(settings, Setting):
        raise InputError(
            f"{name}={value!r} has no settings to change ({', '.join(changes)}): choose a {name} by name, or as an "
            "object, first."
        )
    return settings.replaced(changes)


class NestedParameters(BaseEstimator):
    """An estimator whose parameters may be settings objects."""

    def set_params(self, **params: Any) -> Self:
        """Set parameters and fields of settings objects: ``set_params(rank=3, solver="sgd", solver__max_iter=20)``.

        This also works for a part that was given by name; only ``solver="auto"`` and ``"point"`` have no fields.
        Settings objects are frozen: this estimator gets a new one, and other estimators that share the old one keep it.
        """
        nested: dict[str, dict[str, Any]] = {}
        for name in [name for name in params if name.partition("__")[0] in PARTS and "__" in name]:
            part, _, field = name.partition("__")
            nested.setdefault(part, {})[field] = params.pop(name)
        super().set_params(**params)
        for part, changes in nested.items():
            setattr(self, part, with_changes(part, getattr(self, part), changes))
        return self


def check_choices(estimator: Any, structures: Sequence[str], offers: Mapping[str, Sequence[str]]) -> None:
    """Raise an error for invalid parameters of an estimator.

    `structures` are those of this estimator; `offers` are those of every estimator, by name, to suggest another one.
    """
    if type(estimator.loss) not in LOSSES.values() and estimator.loss not in tuple(LOSSES):
        raise unknown_name("loss", estimator.loss, LOSSES)
    if estimator.unknown not in UNKNOWN_POLICIES:
        raise unknown_name("unknown", estimator.unknown, UNKNOWN_POLICIES)
    _check_structure(estimator, structures, offers)
    delta = getattr(estimator.loss, "delta", 0)
    if not is_number(delta) or delta < 0:
        raise InputError(f"loss={estimator.loss!r} has delta={delta!r}: expected a finite number, at least 0.")
    for name in SWITCHES:
        if not isinstance(getattr(estimator, name), bool | np.bool_):
            raise InputError(f"Got {name}={getattr(estimator, name)!r}: expected True or False.")
    counts = COUNTS | {name: least for name, least in OPTIONAL.items() if getattr(estimator, name) is not None}
    for name, least in counts.items():
        value = getattr(estimator, name)
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise InputError(f"Got {name}={value!r}: expected a whole number, at least {least}.")
    _check_order(estimator)
    random_state_of(estimator.random_state)
    held_out = estimator.early_stopping
    if held_out is not None and not (is_number(held_out) and 0 < held_out < 1):
        raise InputError(
            f"Got early_stopping={held_out!r}: expected the share of dyads to hold out, between 0 and 1, such as 0.1, "
            "or None for no early stopping."
        )
    for name, convert in PARTS.items():
        convert(getattr(estimator, name))
    solver = solver_of(estimator.solver)
    for name in ("n_models", "n_init"):
        value = getattr(estimator, name) or 1
        if solver is not None and solver.samples and value > 1:
            raise InputError(
                f"{name}={value} is for point estimates, and {type(solver).__name__} averages over draws: "
                f"expected {name}=1. Use several chains instead."
            )
    training = features_of(estimator.features).training
    if solver is not None and solver.samples and training != "joint":
        raise InputError(
            f"SideInformation got training={training!r}, and {type(solver).__name__} draws all weights together: "
            "expected training='joint'. Omit it, or use solver='point'."
        )
    if estimator.warm_start and (estimator.n_models or 1) > 1:
        raise InputError(
            f"Got warm_start=True and n_models={estimator.n_models}: expected n_models=1, since a mean of models is no "
            "start for one of them. Leave one of them out."
        )


def check_memory(layout: Layout, rank: int) -> None:
    """Raise an error if the parameters and their gradient, in double precision, exceed the memory of this machine."""
    needed = 2 * 8 * layout.size
    if needed > physical_memory():
        raise InputError(
            f"rank={rank} and {layout.structure.n_labels:,} labels make {layout.size:,} parameters, which take "
            f"{needed / 2**30:,.0f} GiB with their gradient, and this machine has {physical_memory() / 2**30:,.0f} "
            "GiB: expected a model that fits in memory. Lower rank, or bin the labels."
        )


def physical_memory() -> float:
    """Bytes of memory of this machine; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _check_order(estimator: Any) -> None:
    order = estimator.order
    if order is None:
        return
    if not estimator._ordered:
        raise InputError(
            f"order={shortened(list(order))} is for ordered labels: use LFLOrdinal (--kind ordinal), or omit it."
        )
    labels = list(order) if isinstance(order, Iterable) and not isinstance(order, str) else [order]
    if not all(isinstance(label, str) for label in labels) or not 2 <= len(set(labels)) == len(labels):
        raise InputError(
            f"Got order={shortened(labels)}: expected a list of distinct labels that are text, from lowest to highest, "
            "such as ['low', 'medium', 'high']."
        )


def _by_name(parameter: str, value: Any, kinds: Mapping[str, Any], valid: Any) -> Any:
    if isinstance(value, tuple(kinds.values())):
        return value
    if not isinstance(value, str) or value not in kinds:
        raise unknown_name(parameter, value, valid)
    return kinds[value]()


def _check_structure(estimator: Any, structures: Sequence[str], offers: Mapping[str, Sequence[str]]) -> None:
    value = estimator.structure
    if value is None or (isinstance(value, str) and value in structures):
        return
    if not isinstance(value, str) or value not in STRUCTURES:
        raise unknown_name("structure", value, structures)
    fitting = sorted(name for name, others in offers.items() if value in others)
    raise InputError(
        f"{type(estimator).__name__} has no structure={value!r}: expected one of {', '.join(map(repr, structures))}. "
        f"Use {' or '.join(fitting)} for this structure."
    )


# ------------------------------------------------------------------------------------------------------ in model files


def to_json(value: Any) -> Any:
    """Convert a parameter to a JSON value. A random generator becomes None: its state belongs to the session."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Setting):
        fields = value.get_params()
        if isinstance(value, SideInformation):
            # The model file stores the encoded features, not the tables.
            fields |= {"row": None, "col": None}
        return {"settings": type(value).__name__, **{name: to_json(field) for name, field in fields.items()}}
    if type(value) in LOSSES.values():
        return artifact.spec_to_json(value, LOSSES)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [to_json(part) for part in value]
    if isinstance(value, numbers.Rational) and not isinstance(value, int):
        return float(value)
    return value if isinstance(value, str | int | float) else None


def from_json(value: Any) -> Any:
    """Convert a JSON value of `to_json` back to the parameter."""
    if isinstance(value, dict) and "settings" in value:
        fields = {name: from_json(field) for name, field in value.items() if name != "settings"}
        if value["settings"] == SideInformation.__name__:
            # A file does not contain the tables.
            fields |= {"row": None, "col": None}
        kinds = {kind.__name__: kind for alternatives in SETTINGS.values() for kind in alternatives}
        return kinds[value["settings"]](**fields)
    if isinstance(value, dict):
        return artifact.spec_from_json(value, LOSSES)
    return tuple(value) if isinstance(value, list) else value


def is_count(value: Any) -> bool:
    """Whether a JSON value is a whole number, at least 0."""
    return type(value) is int and value >= 0


def is_list(value: Any, *kinds: type) -> bool:
    """Whether a JSON value is a list of values of these types."""
    return type(value) is list and all(type(item) in kinds for item in value)


def is_object(value: Any, *kinds: type) -> bool:
    """Whether a JSON value is an object of values of these types."""
    return type(value) is dict and is_list(list(value.values()), *kinds)


def is_table(value: Any, columns: Sequence[str], numbers: Sequence[str] = ()) -> bool:
    """Whether a JSON value is an object of columns, lists of numbers of one length, and of single numbers, by name."""
    return (
        type(value) is dict
        and value.keys() == {*columns, *numbers}
        and all(is_list(value[name], int, float) for name in columns)
        and len({len(value[name]) for name in columns}) == 1
        and all(type(value[name]) in (int, float) for name in numbers)
    )


def is_diagnostics(value: Any) -> bool:
    """Whether a JSON value is that of the diagnostics of chains."""
    return (
        type(value) is dict
        and is_list(value.get("draws"), int)
        and is_table(
            {name: part for name, part in value.items() if name != "draws"},
            ("r_hat", "effective_samples"),
            ("burn_in", "acceptance", "effective_per_second"),
        )
    )


ORIGIN: dict[str, tuple[type, ...]] = {
    "label": (str, type(None)),
    "weight": (str, type(None)),
    "pairs": (int,),
    "version": (str,),
    "dialect": (dict,),
    "negatives": (str,),
    "rate": (int, float, type(None)),
    "chosen": (dict,),
    "sampled": (bool,),
}
"""What a model may remember of its data and of its search, `trained_on_`, and the types of these."""


def is_origin(value: Any) -> bool:
    """Whether a JSON value is what a model remembers of its data."""
    return (
        type(value) is dict
        and value.keys() <= ORIGIN.keys()
        and value.keys() >= {"label", "weight", "pairs", "version"}
        and all(type(item) in ORIGIN[name] for name, item in value.items())
        and is_count(value["pairs"])
        and ("negatives" in value) == ("rate" in value)
        and _is_dialect(value.get("dialect", {}))
    )


def _is_dialect(value: dict[str, Any]) -> bool:
    try:
        Dialect(**value)
    except (InputError, TypeError, AttributeError):
        return False
    return True
