"""What the command says and draws: sentences and bars on standard error, tables and JSON on standard output."""

import importlib.util
import json
import os
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

from dyads.data.files import format_of, replacing
from dyads.errors import DyadsError

PICTURES = (".png", ".pdf", ".svg")

debug = False
"""Whether errors come with a traceback: set by ``--debug``."""


class Usage(Exception):
    """The command was used wrongly."""


@contextmanager
def guarded() -> Iterator[None]:
    """However a command ends, it ends with one sentence and an exit code: 1 if it failed, 2 if it was used wrongly."""
    try:
        yield
    except Usage as error:
        _end(str(error), 2)
    except DyadsError as error:
        _end(str(error))
    except KeyboardInterrupt:
        _end("Stopped.")
    except BrokenPipeError:
        # Nobody reads any more: without this Python complains again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end("Standard output was closed before everything was written to it.")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _end(f"{error.strerror or error}{where}: expected to read and write there.")
    except MemoryError:
        _end("There is not enough memory for that: use less data, or a lower rank.")
    except typer.Exit:
        raise
    except Exception as error:
        _end(f"That was not expected, and is a mistake in dyads ({type(error).__name__}: {error}): see --debug.")


def _end(sentence: str, code: int = 1) -> NoReturn:
    if debug:
        traceback.print_exc()
    say(sentence)
    raise typer.Exit(code)


def say(sentence: str) -> None:
    """A sentence for the person, on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)


@contextmanager
def bar(what: str) -> Iterator[Callable[[float, float | None, str], None]]:
    """A bar on standard error while something runs, if that is a terminal.

    Gives a function that takes how much is done, of how much (None if nobody knows), and a few words.
    """
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with shown:
        task = shown.add_task(what, total=None, words="")

        def move(done: float, total: float | None = None, words: str = "") -> None:
            shown.update(task, completed=done, total=total, words=words)

        yield move


@contextmanager
def warned() -> Iterator[None]:
    """Warnings of the library as sentences, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for sentence in dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, UserWarning)):
        say(sentence)


def show(lines: Mapping[str, Sequence[Any]], title: str = "", as_json: bool = False) -> None:
    """A table of named columns, or a JSON list of its lines, on standard output."""
    if as_json:
        rows = [dict(zip(lines, row, strict=True)) for row in zip(*lines.values(), strict=True)]
        show_json(rows)
        return
    table = Table(title=escape(title) or None, title_justify="left")
    for name, column in lines.items():
        table.add_column(escape(name.replace("_", " ")), justify="right" if _numeric(column) else "left")
    for row in zip(*lines.values(), strict=True):
        table.add_row(*(escape(_text(value)) for value in row))
    # Where nobody looks at it, nothing is cut to fit.
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def show_json(value: Any) -> None:
    """One JSON value on standard output."""
    sys.stdout.write(json.dumps(_plain(value), indent=1, allow_nan=False) + "\n")


def check_table_output(path: str, force: bool) -> None:
    """The same for a table, whose name must tell its format."""
    if path.lower().endswith(".gz"):
        raise Usage(f"The output {path} would have to be packed: expected a name without .gz.")
    try:
        format_of(path)
    except DyadsError as error:
        raise Usage(str(error)) from error
    check_output(path, force)


def check_model_output(path: Path, force: bool) -> None:
    """The same for a model."""
    if str(path) == "-":
        raise Usage("A model cannot go to standard output: expected the name of a file.")
    check_output(path, force)


def check_output(path: Path | str, force: bool, suffixes: Sequence[str] = ()) -> None:
    """Raise, before any work, where an output cannot be written or would overwrite something."""
    path = Path(path)
    if str(path) == "-" and not suffixes:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise Usage(
            f"The output {path} has a name that tells no format: expected one that ends in {', '.join(suffixes)}."
        )
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device"
        raise Usage(f"The output {path} is a {kind}: expected the name of a file.")
    if not path.parent.is_dir():
        raise Usage(f"The folder {path.parent} does not exist: expected one to write {path.name} to. Create it first.")
    if not os.access(path.parent, os.W_OK):
        raise Usage(f"The folder {path.parent} cannot be written to: expected one that can. Choose another place.")
    if path.exists() and not force:
        raise Usage(f"The output {path} exists: expected a new name, or --force to replace it.")


def can_draw() -> bool:
    """Whether matplotlib is there; says so if not."""
    if importlib.util.find_spec("matplotlib") is None:
        say("No picture: matplotlib is not installed (pip install 'dyads[plot]').")
        return False
    return True


def save_picture(path: Path, draw: Callable[[Any], Any]) -> None:
    """Let a function draw on axes, and save them."""
    if can_draw():
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        # A dollar sign in an id begins no formula.
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
    """What JSON can say of a value: NaN is null there."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
