"""Output of the command: messages and progress bars on standard error, tables and JSON on standard output."""

import importlib.util
import json
import os
import stat
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dyads.data.files import check_writable, format_of, replacing
from dyads.errors import DyadsError

PICTURES = (".png", ".pdf", ".svg")
"""Extensions of the pictures that the command can write."""

LINE_OF_NAME = 10
"""Characters of the name of a column of numbers before it goes on in the next line, unless a word is longer."""

OFF_TERMINAL = 160
"""Width of tables that are not printed to a terminal, which has none: one that rarely breaks a cell."""


READER_GONE = 141
"""Exit code when the reader of standard output has gone, as in ``| head``: that of programs ended by SIGPIPE."""

debug = False
"""Whether to print the traceback of an error; set by ``--debug``."""


class Usage(Exception):
    """Wrong usage of the command: exit code 2."""


@contextmanager
def guarded() -> Iterator[None]:
    """Turn every exception into a one-sentence message and an exit code: 1 on failure, 2 on wrong usage."""
    try:
        yield
    except Usage as error:
        _end(str(error), 2)
    except DyadsError as error:
        _end(str(error))
    except KeyboardInterrupt as stopped:
        _end(str(stopped) or "Stopped.")
    except BrokenPipeError:
        # The reader closed the pipe: without this, Python reports the error again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(READER_GONE) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _end(
            f"Reading or writing failed{where}: {error.strerror or error}. Check the path, permissions and free space."
        )
    except MemoryError:
        _end("Out of memory: use less data or a lower rank.")
    except typer.Exit:
        raise
    except Exception as error:
        _end(f"This is a bug in dyads ({type(error).__name__}: {error}): run `dyads --debug ...` to see the traceback.")


def _end(sentence: str, code: int = 1) -> NoReturn:
    if debug:
        traceback.print_exc()
    say(sentence)
    raise typer.Exit(code)


def say(sentence: str) -> None:
    """Print a message to standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)


@contextmanager
def bar(what: str, output: str = "") -> Iterator[Callable[[float, float | None, str], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    There is no bar if `output`, which is written meanwhile, is standard output and that may be the same terminal.
    Yields a function that updates the bar: it takes the amount done, the total (None if unknown) and a short text.
    """
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty() or _may_show(output),
    )  # fmt: skip
    with progress:
        task = progress.add_task(what, total=None, words="")

        def update(done: float, total: float | None = None, words: str = "") -> None:
            progress.update(task, completed=done, total=total, words=words)

        yield update


def _may_show(output: str) -> bool:
    """Whether an output may end up on the terminal: standard output does, unless it is redirected to a file."""
    return output == "-" and not stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)


@contextmanager
def warned() -> Iterator[None]:
    """Print each distinct warning of the library once, as a message."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for sentence in dict.fromkeys(str(item.message) for item in caught if issubclass(item.category, UserWarning)):
        say(sentence)


def show(lines: Mapping[str, Sequence[Any]], title: str = "", as_json: bool = False) -> None:
    """Print named columns to standard output, as a table or as a JSON list of rows."""
    if as_json:
        rows = [dict(zip(lines, row, strict=True)) for row in zip(*lines.values(), strict=True)]
        show_json(rows)
        return
    table = Table()
    for name, column in lines.items():
        if _numeric(column):
            # A long name of a column of numbers is broken over lines between words; a number never is.
            digits, words = (max(map(len, texts), default=0) for texts in (map(_text, column), name.split()))
            least, most = digits, max(digits, words, LINE_OF_NAME)
            table.add_column(escape(name), justify="right", overflow="fold", min_width=least, max_width=most)
        else:
            table.add_column(escape(name), overflow="fold")
    for row in zip(*lines.values(), strict=True):
        table.add_row(*(escape(_text(value)) for value in row))
    out = Console(highlight=False, width=None if sys.stdout.isatty() else OFF_TERMINAL)
    if title:
        # Not the title of the table, which is broken to the width of its columns.
        out.print(title, markup=False, style="italic", soft_wrap=True)
    out.print(table)


def show_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    sys.stdout.write(json.dumps(_plain(value), indent=1, allow_nan=False) + "\n")


def check_table_output(path: str, force: bool, inputs: Sequence[Path | str | None]) -> None:
    """`check_output` for a table, whose extension must give a format that can be written."""
    if path.lower().endswith(".gz"):
        raise Usage(f"Compressed output is not supported: remove .gz from {path}.")
    try:
        format_of(path)
    except DyadsError as error:
        raise Usage(str(error)) from error
    check_output(path, force, inputs=inputs)


def check_model_output(path: Path, force: bool, inputs: Sequence[Path | str | None]) -> None:
    """`check_output` for a model file."""
    if str(path) == "-":
        raise Usage("A model cannot be written to standard output: give the name of a file.")
    check_output(path, force, inputs=inputs)


def check_output(
    path: Path | str, force: bool, suffixes: Sequence[str] = (), inputs: Sequence[Path | str | None] = ()
) -> None:
    """Raise `Usage`, before any work, if an output cannot be written or would overwrite a file.

    `inputs` : files that the command reads, or also writes (None if not given). The output must be none of them, under
    any name, even with --force.
    """
    path = Path(path)
    if str(path) == "-" and not suffixes:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise Usage(f"The output {path} has an unknown extension: expected {' or '.join(suffixes)}.")
    for other in inputs:
        if other is not None and _same(path, Path(other)):
            raise Usage(f"The output {path} is also the file {other} of this command: choose another name.")
    try:
        check_writable(path)
    except DyadsError as error:
        raise Usage(str(error)) from error
    if path.exists() and not force:
        raise Usage(f"The output {path} exists: choose another name, or pass --force to overwrite it.")


def _same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return os.path.samefile(path, other)
    return path.resolve() == other.resolve()


def can_draw() -> bool:
    """Whether matplotlib is installed; print a message if it is not."""
    if importlib.util.find_spec("matplotlib") is None:
        say("No picture: matplotlib is not installed (pip install 'dyads[plot]').")
        return False
    return True


def save_picture(path: Path, draw: Callable[[Any], Any]) -> None:
    """Call `draw` on new axes, and save the figure."""
    if can_draw():
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        # A dollar sign in an id must not start a formula.
        with rc_context({"text.parse_math": False}):
            figure = Figure(figsize=(9, 5), layout="constrained")
            draw(figure.subplots())
            with replacing(path) as file:
                figure.savefig(file, dpi=120, format=path.suffix[1:])


def _numeric(column: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in column)


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int | np.integer) and not isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; NaN and infinities become null."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
