"""Subcommands that ask a model: predict, evaluate, recommend, similar, explain."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

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
from dyads.cli.options import TableCommand, given_dialect
from dyads.data.files import DELIMITERS, as_ids, check_columns, format_of
from dyads.data.tables import as_arrow
from dyads.errors import InputError, UnknownIdWarning, counted

DIGITS = 6
"""Significant digits of probabilities and values in CSV and TSV; Parquet and Arrow hold all."""


class Side(StrEnum):
    """Side of ids."""

    row = "row"
    col = "col"


class Where(StrEnum):
    """Engines of `dyads predict`."""

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
    force: Force = False,
) -> None:
    """Predict the labels of pairs, in constant memory. Writes the id columns, then the outputs chosen by --give.

    The label is the prediction of the model; mode, median and mean are those of its probabilities. Of a folder each
    file is predicted to one of the same name in the folder --output, which is renamed when it is complete; those that
    are there are left alone, so that the same command goes on after an interruption.
    """
    if os.path.isdir(data):
        predict_folder(model_file, data, output, give, (row_features, col_features), engine, engine_address, force)
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


def predict_folder(
    model_file: Path,
    data: str,
    output: str,
    give: Sequence[Given] | None,
    features: tuple[str | None, str | None],
    engine: Where,
    address: str,
    force: bool,
) -> None:
    """Predict each Parquet file of a folder to a file of the same name in another; see `predict`."""
    model = load_model(model_file)
    outputs, target = _outputs(model, give), Path(output).resolve()
    if output == "-" or target.is_file():
        raise Usage(f"The folder {data} is predicted to a folder: name one with --output.")
    parts = sorted(path for path in Path(data).resolve().iterdir() if path.suffix == ".parquet")
    if not parts:
        raise Usage(f"The folder {data} has no Parquet files: expected some, whose names end in .parquet.")
    if target == Path(data).resolve():
        raise Usage(f"The output {output} is also the folder of the pairs: choose another one.")
    target.mkdir(parents=True, exist_ok=True)
    left = [part for part in parts if force or not (target / part.name).exists()]
    if len(left) < len(parts):
        console.say(f"{len(parts) - len(left)} of {counted(len(parts), 'file')} are there already, and left alone.")
    tasks: list[tuple[Any, ...]] = [
        (str(model_file.resolve()), str(part), str(target / part.name), outputs, features) for part in left
    ]
    with console.bar("Predicting") as update:

        def told(done: int, planned: int) -> None:
            update(done, planned, counted(done, "file"))

        if engine == Where.ray:
            from dyads.engine import Ray
            from dyads.engine.cluster import Cluster

            try:
                cluster = Cluster.at(Ray(address))
            except InputError as error:
                raise Usage(str(error)) from error
            results = cluster.run("dyads.cli.answers:predict_part", "predict", (), tasks, told)
        else:
            results = []
            for task in tasks:
                results.append(predict_part((), *task))
                told(len(results), len(tasks))
    done, unknown = (sum(counts) for counts in zip(*results, strict=True)) if results else (0, 0)
    _tell_unknown(model, done, unknown)
    console.say(f"Wrote {counted(len(left), 'file')} with {counted(done, 'pair')} to {output}.")


def predict_part(
    _: tuple[()], model_file: str, part: str, output: str, outputs: list[str], features: tuple[str | None, str | None]
) -> tuple[int, int]:
    """Predict a file of a folder, on this machine or on a worker, which keeps the model for the next."""
    stamp = Path(model_file).stat() if os.path.exists(model_file) else None
    key = (model_file, None if stamp is None else (stamp.st_mtime_ns, stamp.st_size), features)
    if key not in _models:
        _models.clear()
        model = load_model(Path(model_file))
        _models[key] = (model, new_features(model, *features))
    model, read = _models[key]
    return predict_file(model, part, output, outputs, read)


_models: dict[Any, tuple[Any, Any]] = {}
"""The model that this process predicts files with."""


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
        _show_ranking(model, model_file, data, label, ranking, relevant or [str(model.classes_[-1])], as_json)
        return
    if relevant:
        raise Usage("--relevant is for --ranking: give both or neither.")
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


def _show_ranking(
    model: Any, model_file: Path, data: str, label: str | None, k: int, relevant: list[str], as_json: bool
) -> None:
    """Show how far up the relevant pairs of a table are; see `evaluate`."""
    from dyads.data.codes import label_codes
    from dyads.estimators.ranking import evaluate_ranking

    unknown = set(relevant) - set(map(str, model.classes_))
    if len(relevant) > 1 and not hasattr(model, "predict_mean"):
        raise Usage("Several labels are --relevant, and they have no order to rank by: give one of them.")
    if unknown:
        raise Usage(f"--relevant {unknown.pop()} is not a label: expected one of {model.classes_.tolist()}.")
    kept = names_of(model)
    store = open_store(data, {"label": label})
    name = label or model.trained_on_["label"] or default_label()
    if store is not None:
        wanted = np.flatnonzero(np.isin(list(map(str, store.classes)), relevant))
        table, _, _ = store.lines(np.flatnonzero(np.isin(store.dyads.label, wanted)))
    else:
        table = read(data, lambda names: types_of(model))
        check_columns(data, table.column_names, [*kept, *([label] if label else [])])
        if name in table.column_names:
            codes = [code for code, label in enumerate(map(str, model.classes_)) if label in relevant]
            table = table.filter(np.isin(label_codes(table[name], model.classes_), codes))
    with console.bar("Ranking"):
        figures = as_arrow(evaluate_ranking(model, table.select(kept), k=k, by=_ranked_by(model, relevant)))
    console.show(
        figures.to_pydict(), f"{model_file.name} on {data}: {counted(table.num_rows, 'relevant pair')}", as_json
    )


def _ranked_by(model: Any, relevant: list[str]) -> Any:
    """What to rank by: the only relevant label, or the mean of several."""
    return next(name for name in model.classes_.tolist() if str(name) == relevant[0]) if len(relevant) == 1 else "mean"


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
    output: Output = "-",
    force: Force = False,
) -> None:
    """Recommend the best columns for each row, or the best rows for each column (--side col).

    The table has the ids, under their own names, rank and value.
    """
    from dyads.data.files import open_writer

    inputs = (model_file, ids, exclude, candidates, row_features, col_features)
    console.check_table_output(output, force, inputs)
    model = load_model(model_file)
    vocabularies = model.record_.known.vocabularies
    if (relation is not None) != (len(vocabularies) > 2):
        raise Usage("--relation is required for a model of several relations, and not allowed for any other.")
    relations, others = vocabularies[-1], vocabularies[side == "row"]
    asked = _asked(vocabularies[side == "col"], ids, id)
    labels = {str(name): name for name in model.classes_.tolist()}
    with console.warned(), console.bar("Ranking"):
        try:
            ranked = model.recommend(
                None if side == "col" else asked,
                n,
                labels.get(by, by),
                cols=asked if side == "col" else None,
                with_seen=with_seen,
                exclude=None if exclude is None else read_excluded(exclude, model),
                candidates=None if candidates is None else read_ids(candidates, others),
                relation=None
                if relation is None
                else as_ids([relation], relations.ids.type, relations.name)[0].as_py(),
                **new_features(model, row_features, col_features),
            )
        except InputError as error:
            if not str(error).startswith("by="):
                raise
            raise Usage(str(error).replace(f"by={by!r}", f"--by {by}", 1)) from error
    ranking = as_arrow(ranked)
    with open_writer(output, ranking.column_names) as write:
        write(_rounded(ranking, output))


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
