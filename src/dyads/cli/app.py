"""The command ``dyads``, and its subcommands ``demo``, ``report``, ``serve``, ``reproduce`` and ``datasets``."""

import importlib.util
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dyads
from dyads.cli import answers, cluster, console, inputs, models
from dyads.cli.inputs import (
    ColFeatures,
    Force,
    Json,
    Label,
    Model,
    RowFeatures,
    Table,
    Weight,
    load_model,
    new_features,
    read_labelled,
)
from dyads.cli.options import TableCommand
from dyads.errors import InputError

if TYPE_CHECKING:
    from dyads.paper.experiment import Experiment

Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed of the data and of the fit.")]

datasets = typer.Typer(no_args_is_help=True, help="List and download published data sets.")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write.")] = Path("dyads-demo.png"),
    data: Annotated[
        Path | None, typer.Option(help="Write the tables train.csv and test.csv to this folder, and do nothing else.")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Fit a synthetic store (shopper x product) and compare the predictions with the true probabilities."""
    from dyads.paper import demo as store

    if data is not None:
        _write_tables(store.tables(seed), data, force)
        return
    console.check_output(output, force, console.PICTURES)
    with console.bar("Fitting") as update:
        result = store.run(
            lambda step: update(step.iteration, None, f"objective {step.objective:,.0f}"), random_state=seed
        )
    columns = ("on held-out pairs", "dyads", "compared with")
    console.show(
        dict(zip(columns, zip(*result.rows, strict=True), strict=True)),
        "A store: shopper x product → viewed, bought or returned",
    )
    if console.can_draw():
        store.draw(result, output)
        typer.echo(f"Picture: {output}")


def _write_tables(tables: dict[str, Any], folder: Path, force: bool) -> None:
    from dyads.data.files import open_writer

    if folder.exists() and not folder.is_dir():
        raise console.Usage(f"{folder} is a file: expected a folder. Choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in tables:
        console.check_output(folder / f"{name}.csv", force)
    for name, table in tables.items():
        with open_writer(str(folder / f"{name}.csv"), table.column_names) as write:
            write(table)
        console.say(f"Wrote {table.num_rows:,} pairs to {folder / name}.csv.")


def report(
    model_file: Model,
    data: Table,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML page to write.")] = Path("report.html"),
    label: Label = None,
    weight: Weight = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Write a self-contained HTML report on a model, evaluated on labelled pairs not used for training."""
    from dyads.report import page

    console.check_output(output, force, (".html",), (model_file, data, row_features, col_features))
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    features = new_features(model, row_features, col_features)
    with console.warned(), console.bar("Writing the report"):
        page.report(
            model,
            X,
            y,
            output,
            sample_weight=sample_weight,
            model_name=model_file.name,
            data_name="standard input" if data == "-" else Path(data).name,
            **features,
        )
    console.say(f"Wrote {output}.")


def serve(
    model_file: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any that is free.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of processes that answer.")] = 1,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DYADS_TOKEN", help="What requests must carry; set the variable, since others can see options."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Time limit of a request, in seconds.")] = 10,
    held_out: Annotated[
        str | None, typer.Option(help="Labelled pairs not used for training, to show the calibration on.")
    ] = None,
    label: Label = None,
    weight: Weight = None,
) -> None:
    """Serve a model over HTTP, with a page to explore it. SIGHUP loads the model file again, without a break."""
    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"dyads serve needs {', '.join(missing)}, not installed: run pip install 'dyads[serve]'.")
    from dyads.serve import workers as servers

    servers.check_host(host, token)
    if token == "":
        raise console.Usage("The token is empty, which no request can carry: set one, or leave out --token.")
    if held_out is None and (label or weight):
        raise console.Usage("--label and --weight are columns of --held-out, which is missing: add it, or omit them.")
    pairs = None if held_out is None else read_labelled(load_model(model_file), held_out, label, weight)
    servers.serve(
        model_file,
        host=host,
        port=port,
        workers=workers,
        token=token,
        seconds=seconds,
        held_out=pairs,
        announce=lambda address: console.say(
            f"Serving {model_file.name} at {address}, process {os.getpid()}. Ctrl-C stops, SIGHUP loads the file again."
        ),
    )


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Experiment to run [default: list all experiments].")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer seeds and cases.")] = False,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="Run only the methods that sample the posterior (hours).")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and pictures.")] = Path("results"),
) -> None:
    """Run an experiment of the paper, and write its results next to the published figures."""
    from dyads.paper import experiment

    if name is None and not everything:
        for listed in experiment.names():
            typer.echo(f"{listed:<12} {experiment.read(listed).title}")
        return
    if name is not None and name not in experiment.names():
        raise console.Usage(f"Unknown experiment {name!r}: expected one of {', '.join(experiment.names())}.")
    chosen = [experiment.read(key) for key in (experiment.names() if name is None else [name])]
    ready = [_with_data(plan.shortened() if quick else plan) for plan in chosen]
    done = [bool(plan.cases) and _reproduce(plan, quick, posterior, output) for plan in ready]
    if not all(done):
        raise typer.Exit(1)


def _with_data(chosen: "Experiment") -> "Experiment":
    """Drop, with a message, the cases whose data are neither on disk nor downloadable."""
    from dyads.errors import MissingDataError

    cases = []
    for case in chosen.cases:
        try:
            for data in case.data:
                _find(data)
            cases.append(case)
        except MissingDataError as error:
            console.say(f"Skipped {chosen.name}{f' ({case.name})' if case.name else ''}. {error}")
    return replace(chosen, cases=cases)


def _reproduce(short: "Experiment", quick: bool, posterior: bool, output: Path) -> bool:
    """Run an experiment and write its results; return False, with a message, if earlier results would be lost."""
    from dyads.paper import experiment

    if posterior and not any(method.posterior for method in short.methods):
        console.say(f"{short.name} has no method that samples the posterior: nothing to do.")
        return True
    kind, folder = ("posterior" if posterior else "point"), output / "quick" if quick else output
    before = {} if quick else experiment.read_results(short, folder)
    recorded = {record["case"] for record in before.get(kind, {"records": []})["records"]}
    lost = recorded - {case.name for case in short.cases}
    if lost:
        console.say(
            f"Skipped {short.name}: the results in {folder} for {', '.join(sorted(lost))} would be lost. Get the data "
            "of these cases, or choose another folder with --output."
        )
        return False
    with console.bar(short.name) as update:
        result = experiment.run(
            short, posterior=posterior, progress=lambda done, total: update(done, total, f"{done}/{total}")
        )
    results = before | {kind: result}
    path = experiment.write(short, {part: results[part] for part in ("point", "posterior") if part in results}, folder)
    header, body = experiment.table(short, results)
    console.show(dict(zip(header, zip(*body, strict=True), strict=True)), short.title)
    console.say(f"Wrote {path} in {result['seconds']:.0f} s.")
    return True


def _find(name: str) -> Path:
    """Path of a data set, downloaded with a progress bar if it is not on disk."""
    from dyads.datasets.sources import find

    with console.bar(f"Downloading {name}") as update:
        return find(name, lambda done, total: update(done, total, f"{done / 2**20:.1f} MiB"))


@datasets.command("list")
@console.guarded()
def list_datasets(as_json: Json = False) -> None:
    """List all data sets, and whether each is on disk."""
    from dyads.datasets.sources import SOURCES, data_folder

    on_disk = {
        name: any((data_folder() / name / file).exists() for file in source.needed) for name, source in SOURCES.items()
    }
    columns = {
        "name": list(SOURCES),
        "at_hand": [("yes" if on_disk[name] else "can be fetched" if SOURCES[name].url else "no") for name in SOURCES],
        "what": [source.about for source in SOURCES.values()],
    }
    console.show(columns, f"Data folder: {data_folder()}", as_json)


@datasets.command("get")
@console.guarded()
def get_dataset(name: Annotated[str, typer.Argument(help="Name of a data set.")]) -> None:
    """Download a data set, unless it is on disk, and print its path."""
    from dyads.datasets.sources import SOURCES

    if name not in SOURCES:
        raise console.Usage(f"Unknown data set {name!r}: expected one of {', '.join(SOURCES)}.")
    typer.echo(_find(name))


def _register(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(cls=TableCommand)(console.guarded()(report))
    app.command(cls=TableCommand)(console.guarded()(serve))
    for command in (reproduce, demo):
        app.command()(console.guarded()(command))
    app.add_typer(datasets, name="datasets")


# --------------------------------------------------------------------------------------------------------- the command

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
inputs.register(app)
models.register(app)
answers.register(app)
cluster.register(app)
_register(app)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dyads {dyads.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Calibrated probabilities for the labels of pairs.

    The extension of a file gives its format: CSV, TSV, Parquet or Arrow. - is CSV on standard input or output.
    --format, --separator, --encoding and --no-header are for tables that are written in another way.
    """
    console.debug = debug


def main() -> None:
    """Run the command. Exit code: 0 on success, 1 on failure, 2 on wrong usage."""
    signal.signal(signal.SIGTERM, _stop)
    app()


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt
