"""Errors and warnings of the library.

An error message is one sentence: what was got, what was expected, what to do.
"""

import difflib
import os
import sys
from collections.abc import Iterable, Sequence


class DyadsError(Exception):
    """Any error of this library."""


class InputError(DyadsError, ValueError):
    """Invalid data, or an invalid parameter."""


class DtypeError(InputError, TypeError):
    """Ids whose type differs from that of the ids they are compared with, such as those of the fit."""


class UnknownIdError(InputError, LookupError):
    """Ids not seen in training, under the policy ``unknown="raise"``."""


class DivergenceError(DyadsError, ArithmeticError):
    """The objective became NaN or infinite during a fit."""


class ModelFileError(DyadsError, ValueError):
    """A model file that cannot be written or read: damaged, of an unsupported version, or not a model file."""


class CheckpointError(InputError):
    """A checkpoint of other data or another model."""


class StoreError(DyadsError, ValueError):
    """A store that is not one, is damaged, or cannot be written."""


class ClusterError(DyadsError, RuntimeError):
    """A cluster that cannot be reached, whose machines differ, or that does not finish its work."""


class MissingDataError(DyadsError, FileNotFoundError):
    """A published data set that is not on disk and cannot be downloaded."""


class UnknownIdWarning(UserWarning):
    """Ids not seen in training were handled by the ``unknown`` policy."""


class SeenWarning(UserWarning):
    """A model cannot leave out the pairs it was trained on, since it does not keep them."""


class DialectWarning(UserWarning):
    """A file was read in a way that its name does not tell, such as with another separator."""


class VanishedWarning(UserWarning):
    """The penalty is so strong that the latent weights are (almost) zero."""


class NotConvergedWarning(UserWarning):
    """The solver stopped before it reached its tolerance."""


class ClusterWarning(UserWarning):
    """The machines of a cluster have processors of several kinds, whose results may differ in rounding."""


class CheckpointWarning(UserWarning):
    """A checkpoint holds more sweeps than the fit asks for."""


class WeightWarning(UserWarning):
    """A posterior was sampled with weights that are not counts."""


class EngineWarning(UserWarning):
    """The engine leaves parts of a fit to the CPU."""


class FewDyadsWarning(UserWarning):
    """There are too few held-out dyads for what is learnt from them."""


def unknown_name(parameter: str, got: object, valid: Iterable[str]) -> InputError:
    """Build the error for a name that is not in a registry; it suggests the closest valid name."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(got), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"{parameter}={got!r} is not known: expected one of {', '.join(map(repr, names))}{hint}")


FEW = 10
"""Number of values that a message shows of many."""


def shortened(values: Sequence[object]) -> str:
    """The first values of a list, and how many more there are, for a message."""
    first = ", ".join(map(repr, values[:FEW]))
    return first if len(values) <= FEW else f"{first} and {len(values) - FEW:,} more"


LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


DECORATING = "sklearn.callback."


def caller_level() -> int:
    """The `stacklevel` at which a warning of the caller points to the first frame outside this library.

    A method `fit` is called through scikit-learn's `with_callbacks`, whose frame is not outside either.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(LIBRARY) or frame.f_globals.get("__name__", "").startswith(DECORATING)
    ):
        frame, level = frame.f_back, level + 1
    return level


def counted(n: int, noun: str) -> str:
    """A number of things, in words of a message: "1 pair", "2 pairs"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
