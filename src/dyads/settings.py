"""What a settings object is: a small frozen record of the choices that one part of a model leaves to the user.

An estimator's parameter takes the name of a part or such an object: ``solver="sgd"`` or ``solver=SGD(max_iter=20)``.
Searches reach into it (``solver__max_iter``), model files hold it, and the command makes its options from its fields.
"""

import dataclasses
import math
import numbers
from typing import Any, Self

from dyads.errors import InputError


@dataclasses.dataclass(frozen=True, repr=False)
class Setting:
    """A frozen record of choices, shown by those that differ from the defaults.

    Subclasses are frozen dataclasses without a repr of their own, and check their fields in `__post_init__`.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name: scikit-learn's convention for nested parameters."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def replaced(self, changes: dict[str, Any]) -> Self:
        """The same settings with some fields changed."""
        fields = self.get_params()
        for name in changes:
            if name not in fields:
                raise InputError(
                    f"{type(self).__name__} has no setting {name!r}: expected one of {', '.join(map(repr, fields))}."
                )
        return dataclasses.replace(self, **changes)

    def __sklearn_clone__(self) -> Self:
        # Nothing can change it, so that estimators may share it.
        return self

    def check_count(self, name: str, least: int, optional: bool = False) -> None:
        """Refuse a field that is not a whole number of at least `least`."""
        value = getattr(self, name)
        if value is None and optional:
            return
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise self._refusal(name, f"a whole number, at least {least}{_or_none(optional)}")

    def check_number(self, name: str, above: float | None = None, optional: bool = False) -> None:
        """Refuse a field that is not a finite number of at least 0, or one `above` a bound."""
        value = getattr(self, name)
        if value is None and optional:
            return
        fits = is_number(value) and (value >= 0 if above is None else value > above)
        if not fits:
            bound = "at least 0" if above is None else f"above {above:g}"
            raise self._refusal(name, f"a finite number, {bound}{_or_none(optional)}")

    def check_name(self, name: str, valid: Any) -> None:
        """Refuse a field that is none of the valid names."""
        value = getattr(self, name)
        if not isinstance(value, str) or value not in valid:
            raise self._refusal(name, f"one of {', '.join(map(repr, valid))}")

    def check_switch(self, name: str) -> None:
        """Refuse a field that is neither True nor False."""
        if not isinstance(getattr(self, name), bool):
            raise self._refusal(name, "True or False")

    def _refusal(self, name: str, expected: str) -> InputError:
        return InputError(f"{type(self).__name__} got {name}={getattr(self, name)!r}: expected {expected}.")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and not True or False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _or_none(optional: bool) -> str:
    return ", or None" if optional else ""
