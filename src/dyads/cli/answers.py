"""Subcommands that ask a model: predict, evaluate, recommend, similar, explain."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from dyads.cli import console
from dyads.cli.console import Usage
from dyads.cli.inputs import (
    ColFeatures,
    Force,
    Json,
    Label,
    Model,
    Output,
    RowFeatures,
    Table,
    TableOrStore,
    Weight,
    default_label,
    load_model,
    names_of,
    new_features,
    open_store,
    read,
    read_excluded,
    read_ids,
    read_labelled,
    types_of,
)
from dyads.cli.options import TableCommand, given_dialect, use_dialect
from dyads.data.files import DELIMITERS, Dialect, as_ids, check_columns, format_of, replacing
from dyads.data.remote import is_remote
from dyads.data.tables import as_arrow
from dyads.errors import InputError, UnknownIdWarning, counted

DIGITS = 6
"""Significant digits of probabilities and values in CSV and TSV; Parquet and Arrow hold all."""


class Side(StrEnum):
    """Side of ids."""

    row = "row"
    col = "col"


class Where(StrEnum):
    """Engines of `dyads predict`, `recommend` and `evaluate --ranking`."""

    cpu = "cpu"
    ray = "ray"


Address = Annotated[
    str,
    typer.Option(
        "--engine-address",
        help="Address of the head of the Ray cluster, host:port [default: auto].",
        show_default=False,
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--engine-timeout", help="Seconds after which a cluster that finishes no task is given up."),
]


class Given(StrEnum):
    """Outputs of `dyads predict`."""

    proba = "proba"
    label = "label"
    mode = "mode"
    median = "median"
    mean = "mean"


def predict(
    model_file: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Table of pairs: CSV, TSV, Parquet or Arrow, - for standard input; or a folder of Parquet files.",
        ),
    ],
    output: Output = "-",
    give: Annotated[
        list[Given] | None, typer.Option(help="Output to write; repeatable [default: all that suit the labels].")
    ] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    engine: Annotated[
        Where, typer.Option(help="Where to predict the files of a folder: on this machine, or on a Ray cluster.")
    ] = Where.cpu,
    engine_address: Address = "auto",
    engine_timeout: Timeout = 600.0,
    force: Force = False,
) -> None:
    """Predict the labels of pairs, in constant memory. Writes the id columns, then the outputs chosen by --give.

    The label is the prediction of the model; mode, median and mean are those of its probabilities. Of a folder each
    file is predicted to one of the same name in the folder --output, which is renamed when it is complete; those that
    are there are left alone, so that the same command goes on after an interruption. Files of another model, or of
    other options, are refused.
    """
    if os.path.isdir(data):
        target = Path(output).resolve()
        if target == Path(data).resolve():
            raise Usage(f"The output {output} is also the folder of the pairs: choose another one.")
        parts = sorted(path for path in Path(data).resolve().iterdir() if path.suffix == ".parquet")
        if not parts:
            raise Usage(f"The folder {data} has no Parquet files: expected some, whose names end in .parquet.")
        model = load_model(model_file)
        outputs = _outputs(model, give)
        job = Job.of("predict", model_file, (row_features, col_features), {"give": sorted(outputs)})
        tasks = {part.name: (str(part), outputs) for part in parts}
        spread = Spread(engine, engine_address, engine_timeout)
        results = _in_parts(job, predict_part, tasks, output, force, spread)
        done, unknown = (sum(counts) for counts in zip(*results, strict=True)) if results else (0, 0)
        _tell_unknown(model, done, unknown)
        console.say(f"Wrote {counted(len(results), 'file')} with {counted(done, 'pair')} to {output}.")
        return
    if engine != Where.cpu:
        raise Usage(f"--engine {engine} predicts folders of Parquet files, and {data} is none: name one, or omit it.")
    console.check_table_output(output, force, (model_file, data, row_features, col_features))
    model = load_model(model_file)
    outputs = _outputs(model, give)
    features = new_features(model, row_features, col_features)
    with console.bar("Predicting", output) as update:
        done, unknown = predict_file(model, data, output, outputs, features, update)
    _tell_unknown(model, done, unknown)


def _outputs(model: Any, give: Sequence[Given] | None) -> list[Given]:
    """The outputs of `dyads predict`, which suit the labels."""
    ordered = hasattr(model, "predict_mean")
    if give and not ordered and set(give) & {"median", "mean"}:
        raise Usage(
            "--give median and mean need ordered labels, and this model has none: expected proba, label or mode."
        )
    return list(give or (Given if ordered else [Given.proba, Given.label]))


def _tell_unknown(model: Any, done: int, unknown: int) -> None:
    if unknown:
        have = "has" if unknown == 1 else "have"
        console.say(
            f"{unknown:,} of {counted(done, 'pair')} {have} an id without training labels (unknown={model.unknown!r})."
        )


def predict_file(
    model: Any,
    data: str,
    output: str,
    outputs: Sequence[str],
    features: Mapping[str, Any],
    update: Callable[[float, float | None, str], None] | None = None,
) -> tuple[int, int]:
    """Predict the pairs of a file; return how many there are, and how many have an id without training labels."""
    import pyarrow as pa

    from dyads.data.codes import numeric_values
    from dyads.data.files import open_writer, read_batches
    from dyads.model.loss import median, mode

    with console.warned():
        batches = read_batches(data, types_of(model), model.columns_, given_dialect())
    kept = names_of(model)
    probabilities = [f"p_{label}" for label in model.classes_]
    taken = {*Given, *probabilities} & set(kept)
    if taken:
        raise InputError(f"The id column {taken.pop()!r} has the name of an output column: rename it and fit again.")
    values = numeric_values(model.classes_)
    done = unknown = 0
    decisions = {"mode": mode, "median": median}
    with warnings.catch_warnings(), open_writer(output, kept) as write:
        # Each batch would warn separately: one message covers all of them.
        warnings.simplefilter("ignore", UnknownIdWarning)
        for batch in batches:
            predictions = model.predictions(batch.select(model.columns_), **features)
            proba, columns = predictions.proba, {name: batch[name] for name in kept}
            if "proba" in outputs:
                columns |= dict(zip(probabilities, proba.T, strict=True))
            if "label" in outputs:
                columns["label"] = _label_column(model.classes_, predictions.codes)
            for name, decide in decisions.items():
                if name in outputs:
                    columns[name] = _label_column(model.classes_, predictions.codes_by(decide))
            if "mean" in outputs:
                columns["mean"] = proba @ values
            numbers = [name for name in columns if name in probabilities or name == "mean"]
            write(_rounded(pa.table(columns), output, numbers))
            done += batch.num_rows
            unknown += int((predictions.least_support == 0).sum())
            if update is not None:
                update(done, None, counted(done, "pair"))
    return done, unknown


def predict_part(_: tuple[()], job: "Job", output: str, part: str, outputs: list[str]) -> tuple[int, int]:
    """Predict a file of a folder."""
    model, features = job.ready()
    return predict_file(model, part, output, outputs, features)


# ---------------------------------------------------------------------------------------------------- folders of parts


MARK = ".dyads.json"
"""File of a folder of parts that says what they are of."""


Part = Callable[..., Any]
"""Computes a part, from no shared arrays, a `Job`, the path to write to and further arguments."""


class Spread(NamedTuple):
    """Where parts are computed: on this machine, or on a Ray cluster."""

    engine: Where
    address: str
    timeout: float

    def run(self, function: Part, tasks: list[tuple[Any, ...]], told: Callable[[int, int], None]) -> list[Any]:
        """Run a function of this module on the arguments of each task."""
        if self.engine == Where.cpu:
            results = []
            for task in tasks:
                results.append(function((), *task))
                told(len(results), len(tasks))
            return results
        from dyads.engine import Ray
        from dyads.engine.cluster import Cluster

        try:
            cluster = Cluster.at(Ray(self.address, self.timeout))
        except InputError as error:
            raise Usage(str(error).replace("Ray got ", "Got --engine-", 1)) from error
        return cluster.run(f"{function.__module__}:{function.__name__}", function.__name__, (), tasks, told)


class Job(NamedTuple):
    """What all parts of a folder are computed with: on workers, too, which read the same files.

    Attributes
    ----------
    model, features : paths of the model file, and of tables of features
    dialect : of these tables
    about : what tells the job from others: its command and options, and checksums of its files
    threads : that a task may use; None is all
    """

    model: str
    features: tuple[str | None, str | None]
    dialect: Dialect
    about: dict[str, Any]
    threads: int | None = None

    @classmethod
    def of(cls, command: str, model: Path, features: tuple[str | None, str | None], options: dict[str, Any]) -> "Job":
        """Describe a job; `options` : those that its output depends on, as JSON values."""
        row, col = (None if path is None else os.path.realpath(path) for path in features)
        about = {
            "command": command,
            "model": _digest(model),
            "row features": _digest(row),
            "col features": _digest(col),
        }
        about["dialect"] = repr(given_dialect())
        return cls(str(model.resolve()), (row, col), given_dialect(), about | options)

    def ready(self) -> tuple[Any, dict[str, Any]]:
        """Take the dialect; return the model and the features, which this process keeps for the next task."""
        use_dialect(self.dialect)
        key = json.dumps([self.about, self.threads])
        if key not in _ready:
            from dyads.engine import CPU

            _ready.clear()
            model = load_model(Path(self.model))
            model.engine = CPU(self.threads)
            _ready[key] = (model, new_features(model, *self.features))
        return _ready[key]


_ready: dict[str, tuple[Any, dict[str, Any]]] = {}
"""What the last `Job` of this process needs."""


def _digest(path: Any) -> str | None:
    """Checksum of a file."""
    if path is None or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_parts(
    job: Job, function: Part, tasks: Mapping[str, tuple[Any, ...]], output: str, force: bool, spread: Spread
) -> list[Any]:
    """Compute the parts of a folder that are not there, and return the results of these.

    `tasks` : the arguments of the function for each part, by the name of its file. `force` : compute all anew.
    """
    target, mark = Path(output).resolve(), Path(output).resolve() / MARK
    if output == "-" or target.is_file():
        raise Usage("The result is a folder of Parquet files: name one with --output.")
    target.mkdir(parents=True, exist_ok=True)
    there = [name for name in tasks if (target / name).exists()]
    if force:
        for name in there:
            (target / name).unlink()
        there = []
    elif there:
        before = json.loads(mark.read_text()) if mark.exists() else {}
        other = [name for name in sorted({*before, *job.about}) if before.get(name) != job.about.get(name)]
        if other:
            raise Usage(
                f"The folder {output} holds files of another command (another {', '.join(other)}): expected those of "
                "this one, to go on. Name another folder, or give --force to write all files anew."
            )
        console.say(f"{len(there)} of {counted(len(tasks), 'file')} are there already, and left alone.")
    with replacing(mark) as file:
        file.write(json.dumps(job.about, indent=1).encode())
    if spread.engine == Where.ray:
        # Ray runs a task on each processor.
        job = job._replace(threads=1)
    with console.bar("Computing") as update:

        def told(done: int, planned: int) -> None:
            update(done, planned, counted(done, "file"))

        left = [(job, str(target / name), *task) for name, task in tasks.items() if name not in there]
        return spread.run(function, left, told)


def evaluate(
    model_file: Model,
    data: TableOrStore,
    label: Label = None,
    weight: Weight = None,
    ranking: Annotated[
        int | None, typer.Option(min=1, help="Judge the list of so many best columns of each row instead.")
    ] = None,
    relevant: Annotated[
        list[str] | None, typer.Option(help="Label of the pairs that should rank high; repeatable (--ranking).")
    ] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    engine: Annotated[
        Where, typer.Option(help="Where to compute rankings: on this machine, or on a Ray cluster.")
    ] = Where.cpu,
    engine_address: Address = "auto",
    engine_timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Evaluate a model on labelled pairs not used for training: all metrics, for known and for new ids.

    With --ranking, it judges rankings of all columns without those seen in training: how far up the pairs are whose
    label is --relevant, by default the last label. In a table without labels, all pairs are relevant.
    """
    from dyads.estimators import selection

    model = load_model(model_file)
    if ranking is not None:
        if weight or row_features or col_features:
            raise Usage("--ranking does not support --weight and features: omit these.")
        judging = Judging(data, label, relevant or [str(model.classes_[-1])])
        spread = Spread(engine, engine_address, engine_timeout)
        _show_ranking(model, model_file, judging, ranking, spread, as_json)
        return
    if relevant or engine != Where.cpu:
        raise Usage("--relevant and --engine are for --ranking: give it too, or omit these.")
    store = open_store(data, {"label": label, "weight": weight})
    pairs = read_labelled(model, data, label, weight) if store is None else (store, None, None)
    features = new_features(model, row_features, col_features)
    with console.bar("Evaluating"):
        judged = selection.evaluated(model, *pairs, **features)
        figures = judged.columns()
    if as_json:
        console.show(figures, as_json=True)
    else:
        for regime, (n, table) in selection.turned(figures).items():
            title = f"{model_file.name} on {data}" if regime == "all" else f"Of these, {regime}"
            console.show(table, f"{title}: {counted(n, 'pair')}")
    sentence = judged.shortfall(model)
    if sentence:
        console.say(sentence)


QUERIES_AT_ONCE = 512
"""Rows of a task of `evaluate --ranking` on a cluster."""


class Judging(NamedTuple):
    """What `evaluate --ranking` is asked, as options of the command."""

    data: str
    label: str | None
    relevant: list[str]

    def found(self) -> "Judging":
        """The same with a path that does not depend on where a process runs."""
        return self if is_remote(self.data) else self._replace(data=os.path.realpath(self.data))

    def pairs(self, model: Any) -> Any:
        """The relevant pairs of the table, as an Arrow table."""
        from dyads.data.codes import label_codes

        kept = names_of(model)
        store = open_store(self.data, {"label": self.label})
        name = self.label or model.trained_on_["label"] or default_label()
        if store is not None:
            wanted = np.flatnonzero(np.isin(list(map(str, store.classes)), self.relevant))
            table, _, _ = store.lines(np.flatnonzero(np.isin(store.dyads.label, wanted)))
        else:
            table = read(self.data, lambda names: types_of(model))
            check_columns(self.data, table.column_names, [*kept, *([self.label] if self.label else [])])
            if name in table.column_names:
                codes = [code for code, label in enumerate(map(str, model.classes_)) if label in self.relevant]
                table = table.filter(np.isin(label_codes(table[name], model.classes_), codes))
        return table.select(kept)

    def rankings(self, model: Any, pairs: Any) -> Any:
        """The queries that the relevant pairs ask the model; by the only relevant label, or the mean of several."""
        from dyads.estimators.ranking import Rankings

        labels = [label for label in model.classes_.tolist() if str(label) in self.relevant]
        return Rankings(model, pairs, by=labels[0] if len(self.relevant) == 1 else "mean")


def rank_part(_: tuple[()], job: "Job", judging: Judging, first: int) -> list[Any]:
    """Return the ranks of the answers to a run of queries."""
    model = job.ready()[0]
    ranks: list[Any] = judging.rankings(model, judging.pairs(model)).ranks(first, QUERIES_AT_ONCE)
    return ranks


def _show_ranking(model: Any, model_file: Path, judging: Judging, k: int, spread: Spread, as_json: bool) -> None:
    """Show how far up the relevant pairs of a table are; see `evaluate`."""
    from dyads.estimators.ranking import ranking_figures

    unknown = set(judging.relevant) - set(map(str, model.classes_))
    if len(judging.relevant) > 1 and not hasattr(model, "predict_mean"):
        raise Usage("Several labels are --relevant, and they have no order to rank by: give one of them.")
    if unknown:
        raise Usage(f"--relevant {unknown.pop()} is not a label: expected one of {model.classes_.tolist()}.")
    if judging.data == "-" and spread.engine == Where.ray:
        raise Usage("Workers of a cluster do not reach standard input: name a table that all of them reach.")
    pairs = judging.pairs(model)
    rankings = judging.rankings(model, pairs)
    with console.bar("Ranking") as update:
        if spread.engine == Where.cpu:
            ranks = rankings.ranks()
        else:
            job = Job.of("evaluate", model_file, (None, None), {})._replace(threads=1)
            tasks = [(job, judging.found(), first) for first in range(0, len(rankings), QUERIES_AT_ONCE)]

            def told(done: int, planned: int) -> None:
                update(done, planned, counted(done, "task"))

            ranks = [each for part in spread.run(rank_part, tasks, told) for each in part]
        figures = ranking_figures(ranks, k)
    title = f"{model_file.name} on {judging.data}: {counted(pairs.num_rows, 'relevant pair')}"
    console.show(figures, title, as_json)


Ids = Annotated[str | None, typer.Option(help="Table of the ids to ask for [default: all of the model].")]
Id = Annotated[list[str] | None, typer.Option(help="Id to ask for; repeatable.")]
OfSide = Annotated[Side, typer.Option("--side", help="Whether these ids are of rows or of columns.")]
Number = Annotated[int, typer.Option("-n", min=1, help="Number of results for each id.")]


def recommend(
    model_file: Model,
    ids: Ids = None,
    id: Id = None,
    side: OfSide = Side.row,
    n: Number = 10,
    by: Annotated[
        str,
        typer.Option(help="Criterion: mean (expected value), thompson (posterior draw), or a label (its probability)."),
    ] = "mean",
    exclude: Annotated[str | None, typer.Option(help="Table of further pairs to leave out.")] = None,
    with_seen: Annotated[
        bool, typer.Option("--with-seen", help="Recommend pairs of the training data again; they are left out else.")
    ] = False,
    candidates: Annotated[
        str | None, typer.Option(help="Table of ids of the other side to choose from [default: all of the model].")
    ] = None,
    relation: Annotated[str | None, typer.Option(help="Relation, for a model of several relations.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    engine: Annotated[
        Where,
        typer.Option(help="Where to search: on this machine, or, to a folder of Parquet files, on a Ray cluster."),
    ] = Where.cpu,
    engine_address: Address = "auto",
    engine_timeout: Timeout = 600.0,
    output: Output = "-",
    force: Force = False,
) -> None:
    """Recommend the best columns for each row, or the best rows for each column (--side col).

    The table has the ids, under their own names, rank and value. With --engine ray, --output is a folder with a Parquet
    file for each run of ids; those that are there are left alone, so that the same command goes on after an
    interruption.
    """
    from dyads.data.files import open_writer

    inputs = (model_file, ids, exclude, candidates, row_features, col_features)
    features, spread = (row_features, col_features), Spread(engine, engine_address, engine_timeout)
    asking = Asking(ids, id, side, n, by, exclude, with_seen, candidates, relation)
    if engine == Where.cpu:
        console.check_table_output(output, force, inputs)
    model = load_model(model_file)
    if (relation is not None) != (len(model.record_.known.vocabularies) > 2):
        raise Usage("--relation is required for a model of several relations, and not allowed for any other.")
    asked = asking.ids_of(model)
    try:
        if engine != Where.cpu:
            asking = asking.found()
            files = {name: _digest(getattr(asking, name)) for name in ("ids", "exclude", "candidates")}
            job = Job.of("recommend", model_file, features, asking._asdict() | files)
            runs = range(0, max(1, len(asked)), ASKED_AT_ONCE)
            tasks = {f"part-{i:05d}.parquet": (asking, first) for i, first in enumerate(runs)}
            results = _in_parts(job, recommend_part, tasks, output, force, spread)
            console.say(f"Wrote {counted(len(results), 'file')} with {counted(sum(results), 'line')} to {output}.")
            return
        with console.warned(), console.bar("Ranking"):
            ranking = asking.ranking(model, asked, new_features(model, *features))
    except InputError as error:
        if not str(error).startswith("by="):
            raise
        raise Usage(str(error).replace(f"by={by!r}", f"--by {by}", 1)) from error
    with open_writer(output, ranking.column_names) as write:
        write(_rounded(ranking, output))


ASKED_AT_ONCE = 4096
"""Ids of a task of `recommend` on a cluster, and of the file that it writes."""


class Asking(NamedTuple):
    """What `recommend` is asked, as options of the command."""

    ids: str | None
    id: list[str] | None
    side: Side
    n: int
    by: str
    exclude: str | None
    with_seen: bool
    candidates: str | None
    relation: str | None

    def found(self) -> "Asking":
        """The same with paths that do not depend on where a process runs."""
        paths = {name: getattr(self, name) for name in ("ids", "exclude", "candidates")}
        return self._replace(**{name: path and os.path.realpath(path) for name, path in paths.items()})

    def ids_of(self, model: Any) -> Any:
        """The ids that are asked for."""
        return _asked(model.record_.known.vocabularies[self.side == "col"], self.ids, self.id)

    def ranking(self, model: Any, asked: Any, features: Mapping[str, Any]) -> Any:
        """The recommendations for some ids, as an Arrow table."""
        vocabularies = model.record_.known.vocabularies
        relations, others = vocabularies[-1], vocabularies[self.side == "row"]
        labels = {str(name): name for name in model.classes_.tolist()}
        relation = self.relation
        ranked = model.recommend(
            None if self.side == "col" else asked,
            self.n,
            labels.get(self.by, self.by),
            cols=asked if self.side == "col" else None,
            with_seen=self.with_seen,
            exclude=None if self.exclude is None else read_excluded(self.exclude, model),
            candidates=None if self.candidates is None else read_ids(self.candidates, others),
            relation=None if relation is None else as_ids([relation], relations.ids.type, relations.name)[0].as_py(),
            **features,
        )
        return as_arrow(ranked)


def recommend_part(_: tuple[()], job: Job, output: str, asking: Asking, first: int) -> int:
    """Recommend to a run of ids, the first at a position among those asked for; return the number of lines."""
    from dyads.data.files import open_writer

    model, features = job.ready()
    ranking = asking.ranking(model, asking.ids_of(model).slice(first, ASKED_AT_ONCE), features)
    with open_writer(output, ranking.column_names) as write:
        write(ranking)
    return int(ranking.num_rows)


def similar(
    model_file: Model,
    ids: Ids = None,
    id: Id = None,
    side: OfSide = Side.row,
    n: Number = 10,
    output: Output = "-",
    force: Force = False,
) -> None:
    """Find the rows (or columns) with the most similar predictions: a table of ids, similar ids, rank and value."""
    from dyads.data.files import open_writer

    console.check_table_output(output, force, (model_file, ids))
    model = load_model(model_file)
    asked = _asked(model.record_.known.vocabularies[side == "col"], ids, id)
    with console.warned(), console.bar("Comparing"):
        ranking = as_arrow(model.similar(asked, n, str(side)))
    with open_writer(output, ranking.column_names) as write:
        write(_rounded(ranking, output))


def _asked(vocabulary: Any, ids: str | None, id: list[str] | None) -> Any:
    """The ids of a table, those named, or all that the model knows."""
    if ids is not None and id:
        raise Usage("--ids and --id cannot be combined: give only one of them.")
    if id:
        return as_ids(id, vocabulary.ids.type, vocabulary.name)
    return vocabulary.ids if ids is None else read_ids(ids, vocabulary)


def explain(
    model_file: Model,
    data: Table,
    output: Output = "-",
    picture: Annotated[Path | None, typer.Option(help="Picture of the first pair to write: PNG, PDF or SVG.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Split the log-odds of every label into additive parts: a tidy table of dyad, ids, label, part and value.

    Log-odds are relative to the reference label, whose own parts are zero, if the model has one (it has two labels, or
    was fitted with --reference); otherwise to the geometric mean of the labels.
    """
    from dyads import report
    from dyads.data.files import open_writer

    inputs = (model_file, data, row_features, col_features)
    console.check_table_output(output, force, inputs)
    if picture is not None:
        console.check_output(picture, force, console.PICTURES, (*inputs, output))
    model = load_model(model_file)
    table = read(data, lambda names: types_of(model), may_be_empty=True)
    check_columns(data, table.column_names, model.columns_)
    with console.warned(), console.bar("Explaining"):
        explained = model.explain(table.select(model.columns_), **new_features(model, row_features, col_features))
    explanation = as_arrow(explained)
    with open_writer(output, explanation.column_names) as write:
        write(_rounded(explanation, output))
    if model.record_.calibrator is not None:
        console.say("The model is calibrated: the parts are those of its log-odds before calibration.")
    if picture is not None:
        console.save_picture(picture, lambda ax: report.ExplanationDisplay.from_predictions(explanation, ax=ax))


def register(app: typer.Typer) -> None:
    """Register the commands of this module."""
    for command in (predict, evaluate, recommend, similar, explain):
        app.command(cls=TableCommand)(console.guarded()(command))


def _rounded(table: Any, output: str, names: Sequence[str] = ("value",)) -> Any:
    """A table whose columns `names` have at most `DIGITS` significant digits, if it is written as text."""
    import pyarrow as pa

    if format_of(output) not in DELIMITERS:
        return table
    for name in names:
        values = table[name].to_numpy()
        size = np.abs(values, where=np.isfinite(values), out=np.zeros_like(values))
        # Powers of ten up to 22 are exact, so that the quotient is the number nearest to the decimal.
        places = np.clip(DIGITS - 1 - np.floor(np.log10(size, where=size > 0, out=np.zeros_like(size))), 0, 22)
        short = np.rint(values * 10**places) / 10**places
        column = pa.array(np.where(size > 1e-16, short, values))
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _label_column(classes: Any, codes: Any) -> Any:
    """Predicted labels, missing where a code is negative."""
    import pyarrow as pa

    return pa.array(classes[codes], mask=codes < 0)
