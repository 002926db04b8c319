"""A progress bar of a fit, in a terminal or a notebook."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from dyads.learn.training import Progress


def course_of(step: Progress) -> tuple[float, float | None, str]:
    """Seconds so far, seconds in all (None if unknown) and a short text, for a progress bar."""
    words = f"iteration {step.iteration}, objective {step.objective:,.0f}"
    if math.isnan(step.left):
        return step.seconds, None, words
    return step.seconds, step.seconds + step.left, f"{words}, {step.left:.0f} s left"


@contextmanager
def progress_bar(description: str = "Fitting", console: Console | None = None) -> Iterator[Callable[..., None]]:
    """Show a progress bar while a model is fitted; yields the `callback` for `fit`.

        with dyads.progress_bar() as callback:
            model.fit(X, y, callback=callback)

    The bar grows with the time: where the fit knows how long it takes, it says how many seconds are left. It counts
    fits where the callback is that of a search. In a notebook, it needs the extra ``dyads[notebook]``.

    `console` : where to show it, by default standard output or the cell of the notebook.
    """
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn()
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(description, total=None, words="")

        def show(step: Any, planned: int | None = None) -> None:
            done, total, words = (step, planned, f"{step} of {planned} fits") if planned else course_of(step)
            bar.update(task, completed=done, total=total, words=words)

        yield show
        done = bar.tasks[0].completed
        bar.update(task, completed=done or 1, total=done or 1)
