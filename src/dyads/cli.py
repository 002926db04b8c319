"""The command ``dyads``: parses arguments, calls the library, draws."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import dyads

if TYPE_CHECKING:
    from dyads.experiment import Experiment

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


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Experiment to run; without one, the list of all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments, one after the other.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: fewer seeds and cases.")] = False,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="The methods that sample the posterior (hours), in place of the others.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables, figures and pictures.")] = Path(
        "results"
    ),
) -> None:
    """Run an experiment of the paper, and write our figures beside the published ones."""
    from dyads import experiment
    from dyads.errors import DyadsError

    console = Console()
    if name is None and not everything:
        for each in experiment.names():
            console.print(f"{each:<12} {experiment.read(each).title}", highlight=False)
        return
    try:
        chosen = [experiment.read(each) for each in (experiment.names() if everything else [str(name)])]
        for each in chosen:
            _reproduce(console, each, quick, posterior, output)
    except DyadsError as error:
        _fail(str(error), code=2 if name is not None and name not in experiment.names() else 1)
    except OSError as error:
        _fail(f"The results could not be written to {output} ({error}): choose another place with --output.")


def _find(name: str) -> None:
    """Make sure that a data set is there; a bar shows how far its download is."""
    from dyads.datasets.sources import find

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"Downloading {name}", total=None, visible=False)
        find(name, lambda done, total: bar.update(task, completed=done, total=total, visible=True))


def _reproduce(console: Console, chosen: "Experiment", quick: bool, posterior: bool, output: Path) -> None:
    from dyads import experiment

    if posterior and not any(method.posterior for method in chosen.methods):
        console.print(f"{chosen.name}: nothing samples the posterior there.")
        return
    for data in chosen.data:
        _find(data)
    kind, folder = ("posterior" if posterior else "point"), output / "quick" if quick else output
    short = chosen.shortened() if quick else chosen
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(chosen.name, total=None)
        found = experiment.run(
            short, posterior=posterior, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    results = ({} if quick else experiment.read_results(chosen, folder)) | {kind: found}
    path = experiment.write(short, {name: results[name] for name in ("point", "posterior") if name in results}, folder)
    header, body = experiment.table(short, results)
    shown = Table(title=chosen.title, title_justify="left")
    for column in header:
        shown.add_column(column)
    for row in body:
        shown.add_row(*row)
    console.print(shown)
    console.print(f"Written to {path}, after {found['seconds']:.0f} s.")


def _fail(sentence: str, code: int = 1) -> None:
    Console(stderr=True).print(sentence, style="red", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
