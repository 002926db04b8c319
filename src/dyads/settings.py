"""Settings objects: small frozen records of the options of one part of a model.

An estimator's parameter takes the name of a part or its settings object: ``solver="sgd"`` or
``solver=SGD(max_iter=20)``. Hyper-parameter searches set its fields (``solver__max_iter``), model files store it, and
the command line derives its options from its fields.
"""

import dataclasses
import math
import numbers
from typing import Any, Self

import numpy as np

from dyads.errors import InputError


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Setting:
    """A frozen record of options. Its repr shows those that differ from the defaults.

    Subclasses are frozen dataclasses with ``repr=False`` that check their fields in `__post_init__`.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name. With this method, scikit-learn treats them as nested parameters."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        changed = {
            name: value
            for name, value in self.get_params().items()
            if not (isinstance(value, str | int | float | None) and value == defaults[name])
        }
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in changed.items())})"

    def replaced(self, changes: dict[str, Any]) -> Self:
        """A copy with some fields changed."""
        fields = self.get_params()
        for name in changes:
            if name not in fields:
                raise InputError(
                    f"{type(self).__name__} has no setting {name!r}: expected one of {', '.join(map(repr, fields))}."
                )
        return dataclasses.replace(self, **changes)

    def __sklearn_clone__(self) -> Self:
        # Immutable, so estimators can share it.
        return self

    def check_count(self, name: str, least: int, optional: bool = False) -> None:
        """Raise unless a field is a whole number of at least `least`."""
        value = getattr(self, name)
        if value is None and optional:
            return
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise self._refusal(name, f"a whole number, at least {least}{_or_none(optional)}")
        self._keep(name, int(value))

    def check_number(self, name: str, above: float | None = None, optional: bool = False) -> None:
        """Raise unless a field is a finite number: at least 0, or greater than `above` if that is given."""
        value = getattr(self, name)
        if value is None and optional:
            return
        fits = is_number(value) and (value >= 0 if above is None else value > above)
        if not fits:
            bound = "at least 0" if above is None else f"above {above:g}"
            raise self._refusal(name, f"a finite number, {bound}{_or_none(optional)}")
        self._keep(name, float(value))

    def check_name(self, name: str, valid: Any) -> None:
        """Raise unless a field is one of the valid names."""
        value = getattr(self, name)
        if not isinstance(value, str) or value not in valid:
            raise self._refusal(name, f"one of {', '.join(map(repr, valid))}")

    def check_switch(self, name: str) -> None:
        """Raise unless a field is True or False."""
        if not isinstance(getattr(self, name), bool | np.bool_):
            raise self._refusal(name, "True or False")
        self._keep(name, bool(getattr(self, name)))

    def _keep(self, name: str, value: Any) -> None:
        # NumPy's scalars, of which a search is made, become Python's: model files hold these.
        object.__setattr__(self, name, value)

    def _refusal(self, name: str, expected: str) -> InputError:
        return InputError(f"{type(self).__name__} got {name}={getattr(self, name)!r}: expected {expected}.")


def check_seed(random_state: Any, kind: type) -> None:
    """Raise unless a value is None, a seed from 0 to 2**32 - 1, or a random generator of the given kind."""
    is_seed = isinstance(random_state, numbers.Integral) and 0 <= int(random_state) < 2**32
    if not (random_state is None or is_seed or isinstance(random_state, kind)):
        raise InputError(
            f"Got random_state={random_state!r}: expected a seed from 0 to 2**32 - 1, a {kind.__name__} or None."
        )


def generator_of(random_state: Any) -> np.random.Generator:
    """The random generator of a seed, which is checked."""
    check_seed(random_state, np.random.Generator)
    return np.random.default_rng(random_state)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; booleans are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    """The repr of a value, or its type if that is long, as of a table."""
    text = repr(value)
    return text if len(text) < 60 and "\n" not in text else f"<{type(value).__name__}>"


def _or_none(optional: bool) -> str:
    return ", or None" if optional else ""
