"""The command itself, made of its parts."""

import signal
from typing import Annotated, Any

import typer

import dyads
from dyads.cli import console, models, studies

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
models.register(app)
studies.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dyads {dyads.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Calibrated probabilities for the labels of pairs.

    Files are CSV, TSV, Parquet or Arrow by how their names end, or - for CSV on standard input or output.
    """
    console.debug = debug


def main() -> None:
    """Run the command; it exits with 0, with 1 if it failed, with 2 if it was used wrongly."""
    signal.signal(signal.SIGTERM, _stop)
    app()


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt
