"""The command itself, and its commands that show: the demo, the report, the experiments of the paper, the data sets."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dyads
from dyads.cli import console, models
from dyads.cli.models import (
    ColFeatures,
    Force,
    Json,
    Label,
    Model,
    RowFeatures,
    Table,
    load_model,
    new_features,
    read_labelled,
)

if TYPE_CHECKING:
    from dyads.paper.experiment import Experiment

Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the data and of the fit.")]

datasets = typer.Typer(no_args_is_help=True, help="Published data sets: what there is, and where it lies.")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the picture goes.")] = Path("dyads-demo.png"),
    data: Annotated[
        Path | None, typer.Option(help="Folder for the store's own tables, train.csv and test.csv; then nothing else.")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Learn a made-up store of shoppers x products, and compare with the probabilities it was drawn from."""
    from dyads.paper.demo import draw, run, tables

    if data is not None:
        _write_tables(tables(seed), data, force)
        return
    console.check_output(output, force, console.PICTURES)
    with console.bar("Fitting") as move:
        found = run(lambda step: move(step.iteration, None, f"objective {step.objective:,.0f}"), random_state=seed)
    columns = ("on held-out pairs", "dyads", "beside")
    console.show(
        dict(zip(columns, zip(*found.rows, strict=True), strict=True)),
        "A store: shopper x product → viewed, bought or returned",
    )
    if console.can_draw():
        draw(found, output)
        typer.echo(f"Picture: {output}")


def _write_tables(tables: dict[str, Any], folder: Path, force: bool) -> None:
    from dyads.data.files import open_writer

    folder.mkdir(parents=True, exist_ok=True)
    for name in tables:
        console.check_output(folder / f"{name}.csv", force)
    for name, table in tables.items():
        with open_writer(str(folder / f"{name}.csv"), table.column_names) as write:
            write(table)
        console.say(f"{table.num_rows:,} pairs written to {folder / name}.csv.")


def report(
    model_file: Model,
    data: Table,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("report.html"),
    label: Label = "label",
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Write a page on a model and labelled pairs it has not seen: one file, no network needed to read it."""
    from dyads.data.files import replacing
    from dyads.report import page

    console.check_output(output, force, (".html",))
    model = load_model(model_file)
    X, y, _ = read_labelled(model, data, label, None)
    with console.warned(), console.bar("Writing the report"):
        text = page.report_page(model, X, y, model_file.name, **new_features(model, row_features, col_features))
        with replacing(output) as file:
            file.write(text.encode())
    console.say(f"Written to {output}.")


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Experiment to run; without one, the list of all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments, one after the other.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: fewer seeds and cases.")] = False,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="The methods that sample the posterior (hours), in place of the others.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and pictures.")] = Path("results"),
) -> None:
    """Run an experiment of the paper, and write our figures beside the published ones."""
    from dyads.paper import experiment

    if name is None and not everything:
        for each in experiment.names():
            typer.echo(f"{each:<12} {experiment.read(each).title}")
        return
    if name is not None and name not in experiment.names():
        raise console.Usage(f"There is no experiment {name!r}: expected one of {', '.join(experiment.names())}.")
    chosen = [experiment.read(each) for each in (experiment.names() if name is None else [name])]
    ready = [_with_data(each.shortened() if quick else each) for each in chosen]
    done = [bool(each.cases) and _reproduce(each, quick, posterior, output) for each in ready]
    if not all(done):
        raise typer.Exit(1)


def _with_data(chosen: "Experiment") -> "Experiment":
    """The experiment with the cases whose data are at hand or can be fetched; the others are said, before any work."""
    from dyads.errors import MissingDataError

    cases = []
    for case in chosen.cases:
        try:
            for data in case.data:
                _find(data)
            cases.append(case)
        except MissingDataError as error:
            console.say(f"{chosen.name}{': ' + case.name if case.name else ''} is left out. {error}")
    return replace(chosen, cases=cases)


def _reproduce(short: "Experiment", quick: bool, posterior: bool, output: Path) -> bool:
    """Run an experiment and write its results, unless that would lose earlier ones; returns whether it did."""
    from dyads.paper import experiment

    if posterior and not any(method.posterior for method in short.methods):
        console.say(f"{short.name}: nothing samples the posterior there.")
        return True
    kind, folder = ("posterior" if posterior else "point"), output / "quick" if quick else output
    before = {} if quick else experiment.read_results(short, folder)
    lost = {one["case"] for one in before.get(kind, {"records": []})["records"]} - {case.name for case in short.cases}
    if lost:
        console.say(
            f"{short.name} is not run: {folder} has its figures of {', '.join(sorted(lost))}, which would be lost. Get "
            "the data of these, or name another folder by --output."
        )
        return False
    with console.bar(short.name) as move:
        found = experiment.run(
            short, posterior=posterior, progress=lambda done, total: move(done, total, f"{done}/{total}")
        )
    results = before | {kind: found}
    path = experiment.write(short, {each: results[each] for each in ("point", "posterior") if each in results}, folder)
    header, body = experiment.table(short, results)
    console.show(dict(zip(header, zip(*body, strict=True), strict=True)), short.title)
    console.say(f"Written to {path}, after {found['seconds']:.0f} s.")
    return True


def _find(name: str) -> Path:
    """Where a data set lies; a bar shows how far its download is."""
    from dyads.datasets.sources import find

    with console.bar(f"Downloading {name}") as move:
        return find(name, lambda done, total: move(done, total, f"{done / 2**20:.1f} MiB"))


@datasets.command("list")
@console.guarded()
def list_datasets(as_json: Json = False) -> None:
    """All data sets, and whether each is at hand."""
    from dyads.datasets.sources import SOURCES, data_folder

    there = {
        name: any((data_folder() / name / file).exists() for file in source.needed) for name, source in SOURCES.items()
    }
    columns = {
        "name": list(SOURCES),
        "at_hand": [("yes" if there[name] else "can be fetched" if SOURCES[name].url else "no") for name in SOURCES],
        "what": [source.about for source in SOURCES.values()],
    }
    console.show(columns, f"Data folder: {data_folder()}", as_json)


@datasets.command("get")
@console.guarded()
def get_dataset(name: Annotated[str, typer.Argument(help="Name of a data set.")]) -> None:
    """Fetch a data set, unless it is at hand, and say where it lies."""
    from dyads.datasets.sources import SOURCES

    if name not in SOURCES:
        raise console.Usage(f"There is no data set {name!r}: expected one of {', '.join(SOURCES)}.")
    typer.echo(_find(name))


def _register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for command in (report, reproduce, demo):
        app.command()(console.guarded()(command))
    app.add_typer(datasets, name="datasets")


# --------------------------------------------------------------------------------------------------------- the command

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
models.register(app)
_register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dyads {dyads.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
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
