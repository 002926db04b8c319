"""The command ``dyads``: parses arguments, calls the library, draws."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import dyads

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

PICTURES = (".png", ".pdf", ".svg")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dyads {dyads.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Calibrated probabilities for the labels of pairs."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the picture goes.")] = Path("dyads-demo.png"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the data and of the fit.")] = 0,
) -> None:
    """Learn a made-up store of shoppers x products, and compare with the probabilities it was drawn from."""
    from dyads.demo import draw, run

    console = Console()
    if output.suffix.lower() not in PICTURES or output.is_dir():
        _fail(f"{output} is no name of a picture: expected a file that ends in {', '.join(PICTURES)}.", code=2)
    if not output.parent.is_dir():
        _fail(f"The folder {output.parent} does not exist: expected one to write {output.name} to. Create it first.")
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("objective {task.fields[objective]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Fitting", total=None, objective="")
        found = run(lambda step: bar.update(task, advance=1, objective=f"{step.objective:,.0f}"), random_state=seed)
    table = Table(title="A store: shopper x product → viewed, bought or returned", title_justify="left")
    table.add_column("on held-out pairs")
    table.add_column("dyads", justify="right", style="bold")
    table.add_column("beside")
    for row in found.rows:
        table.add_row(*row)
    console.print(table)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("No picture: matplotlib is not installed (pip install matplotlib).")
        return
    try:
        draw(found, output)
    except OSError as error:
        _fail(f"The picture could not be written to {output} ({error.strerror}): choose another place with --output.")
    console.print(f"Picture: {output}")


def _fail(sentence: str, code: int = 1) -> None:
    Console(stderr=True).print(sentence, style="red", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
