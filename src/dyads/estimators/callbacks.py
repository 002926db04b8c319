"""scikit-learn's callbacks, which estimators take from its version 1.9 on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as torn_down
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: scikit-learn below 1.9 has no callbacks, and estimators no method `set_callbacks`."""

    def torn_down(method: Any) -> Any:
        """Return the method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "report_end", "reported", "with_callbacks"]

Fit = TypeVar("Fit", bound=Callable[..., Any])


def with_callbacks(fit: Fit) -> Fit:
    """Decorate a method that reports to callbacks: they are torn down when it ends, however that is."""
    return torn_down(fit)  # type: ignore[no-any-return]


@contextmanager
def reported(
    estimator: Any, X: Any, y: Any, planned: int | None, callback: Callable[..., Any] | None
) -> Iterator[Callable[..., Any] | None]:
    """Report a fit and each of its iterations to the callbacks that `set_callbacks` set, and to `callback`, if any.

    Yields the callback of a fit, which returns whether one of them asks to stop; None if there are none. `planned` :
    the largest number of iterations, or None if unknown.
    """
    if not getattr(estimator, "_skl_callbacks", None):
        yield callback
        return
    fit = estimator._init_callback_context(max_subtasks=planned)
    fit.call_on_fit_task_begin(estimator=estimator, X=X, y=y)

    def report(*step: Any) -> bool:
        iteration = fit.subcontext(task_name="iteration")
        iteration.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
        stops = iteration.call_on_fit_task_end(estimator=estimator, X=X, y=y)
        return bool(stops) | bool(callback is not None and callback(*step))

    yield report


def report_end(estimator: Any, X: Any, y: Any) -> None:
    """Report that a fit has ended: callbacks that score models get a copy of the estimator, which is fitted."""
    fit = getattr(estimator, "_callback_fit_ctx", None)
    if fit is not None:
        fit.call_on_fit_task_end(estimator=estimator, X=X, y=y, reconstruction_attributes={})
