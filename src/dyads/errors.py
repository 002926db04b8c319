"""Every error and warning the library raises.

An error is one sentence: what was got, what was expected, what to do.
"""

import difflib
from collections.abc import Iterable


class DyadsError(Exception):
    """Any error of this library."""


class InputError(DyadsError, ValueError):
    """Data or a parameter that cannot be used as given."""


class DtypeError(InputError, TypeError):
    """Ids of another type than those the model was fitted with."""


class UnknownIdError(InputError, LookupError):
    """Ids the model has not seen, under the policy ``unknown="raise"``."""


class DivergenceError(DyadsError, ArithmeticError):
    """The objective stopped being a finite number during a fit."""


class ModelFileError(DyadsError, ValueError):
    """A model file that is damaged, too new, or no model file."""


class MissingDataError(DyadsError, FileNotFoundError):
    """A published data set that is neither at hand nor can be fetched."""


class UnknownIdWarning(UserWarning):
    """Ids the model has not seen were treated by the ``unknown`` policy."""


class VanishedWarning(UserWarning):
    """The penalty is so strong that the latent weights are zero."""


class NotConvergedWarning(UserWarning):
    """The solver stopped before its tolerance was reached."""


def unknown_name(parameter: str, got: object, valid: Iterable[str]) -> InputError:
    """Build the error for a name that is not in a registry, with the nearest valid one."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(got), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"{parameter}={got!r} is not known: expected one of {', '.join(map(repr, names))}{hint}")
