"""Commands that make and use models, on tables in files."""

import dataclasses
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dyads.cli import console
from dyads.cli.console import Usage
from dyads.cli.options import SettingsCommand, given_settings
from dyads.data.files import as_ids, check_columns
from dyads.errors import InputError, UnknownIdWarning

ESTIMATOR_OF = {"nominal": "LFLClassifier", "ordinal": "LFLOrdinal", "link": "LFLLink", "relational": "LFLRelational"}
"""The estimator of each kind of labels."""


class Kind(StrEnum):
    """What labels are."""

    nominal = "nominal"
    ordinal = "ordinal"
    link = "link"
    relational = "relational"


class Given(StrEnum):
    """What `dyads predict` gives."""

    proba = "proba"
    label = "label"
    mode = "mode"
    median = "median"
    mean = "mean"


Table = Annotated[str, typer.Argument(help="Table of pairs: CSV, TSV, Parquet or Arrow; - is CSV on standard input.")]
Model = Annotated[Path, typer.Argument(help="Model file, as `dyads fit` writes it.")]
Label = Annotated[str, typer.Option("--label", help="Column of labels.")]
Weight = Annotated[str | None, typer.Option("--weight", help="Column of weights; a pair of weight 2 counts twice.")]
RowFeatures = Annotated[str | None, typer.Option("--row-features", help="Table of features of row ids.")]
ColFeatures = Annotated[str | None, typer.Option("--col-features", help="Table of features of column ids.")]
Output = Annotated[str, typer.Option("--output", "-o", help="File to write; - is CSV on standard output.")]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def fit(
    context: typer.Context,
    data: Table,
    output: ModelOutput,
    row: Annotated[str | None, typer.Option(help="Column of row ids; the first if not told.")] = None,
    col: Annotated[str | None, typer.Option(help="Column of column ids; the second if not told.")] = None,
    label: Label = "label",
    kind: Annotated[Kind, typer.Option(help="What labels are.")] = Kind.nominal,
    relation: Annotated[str | None, typer.Option(help="Column of relations, of the kind relational.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Column that is a feature of pairs; may be repeated.")
    ] = None,
    weight: Weight = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    cv: Annotated[
        bool, typer.Option("--cv", help="Choose the penalty by cross-validation (nominal, ordinal).")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="File from which sampling goes on if it is stopped.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Learn a model from labelled pairs."""
    import pyarrow as pa

    from dyads.estimators.kinds import ESTIMATORS
    from dyads.estimators.selection import SEARCHES

    console.check_model_output(output, force)
    if (relation is not None) != (kind == "relational"):
        raise Usage("--relation names the column of relations of --kind relational: expected both or neither.")
    if cv and kind not in ("nominal", "ordinal"):
        raise Usage(f"--cv is not there for --kind {kind}: expected nominal or ordinal. Choose --l2 yourself.")
    if label in (row, col):
        raise Usage(f"The column {label!r} was named for labels and for ids: expected another for each.")
    settings = given_settings(context)
    chosen = {"l2", "l2__side"} if settings.get("rank", 1) else {"l2__bias", "l2__side"}
    for name in chosen & settings.keys() if cv else ():
        option = name.replace("__", "-")
        raise Usage(f"--cv chooses the penalty by itself and has no use for --{option}: expected one of them.")
    if cv and checkpoint is not None:
        raise Usage("--checkpoint is for one fit, and --cv makes many: expected one of them.")
    model: Any = (SEARCHES if cv else ESTIMATORS)[ESTIMATOR_OF[kind]]()
    try:
        model.set_params(**settings).check_params()
    except InputError as error:
        raise Usage(str(error)) from error
    table, ids = _read(data, row, col, [label, weight, relation, *(feature or [])])
    X = table.select([*ids, *([relation] if relation else []), *(feature or [])])
    y = table[label]
    if kind == "ordinal" and pa.types.is_string(y.type):
        order = ", ".join(sorted(map(str, y.unique().to_pylist())))
        console.say(f"The labels are texts, and their order is taken to be that of the alphabet: {order}.")
    model.set_params(id_columns=ids, reference=_reference(model.reference, y))
    for name, path, of in (("features__row", row_features, ids[0]), ("features__col", col_features, ids[1])):
        if path is not None:
            model.set_params(**{name: _features(path, of)})
    began = time.perf_counter()
    with console.warned():
        if cv:
            with console.bar("Cross-validation") as move:
                model.fit(X, y, _weights(table, weight), callback=lambda done, planned: move(done, planned, ""))
        else:
            total = settings.get("solver__max_iter", settings.get("solver__sweeps"))
            with console.bar("Fitting") as move:
                model.fit(
                    X,
                    y,
                    _weights(table, weight),
                    callback=lambda step: move(step.iteration, total, f"objective {step.objective:,.0f}"),
                    checkpoint=checkpoint,
                )
        model.save(output)
    found = {
        "model": str(output),
        "kind": str(kind),
        "pairs": table.num_rows,
        "rows": len(model.row_ids_),
        "columns": len(model.col_ids_),
        "labels": model.classes_.tolist(),
        "solver": model.solver_,
        "iterations": model.n_iter_,
        "objective": round(float(model.objective_), 3),
        "seconds": round(time.perf_counter() - began, 2),
        **({"chosen": model.best_params_, "held-out log-loss": round(-model.best_score_, 4)} if cv else {}),
    }
    _show_facts(found, as_json)


def predict(
    model_file: Model,
    data: Table,
    output: Output = "-",
    give: Annotated[
        list[Given] | None, typer.Option(help="What to give, may be repeated: all that the labels allow if not told.")
    ] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Predict labels of pairs, in constant memory: the columns of ids, then what is asked for.

    The label is the model's own prediction; mode, median and mean are those of its probabilities.
    """
    import pyarrow as pa

    from dyads.data.codes import numeric_values
    from dyads.data.files import open_writer, read_batches
    from dyads.model.loss import median, mode

    console.check_table_output(output, force)
    model = load_model(model_file)
    ordered = hasattr(model, "predict_mean")
    if give and not ordered and set(give) & {"median", "mean"}:
        raise Usage("--give median and mean need ordered labels: the model's have none. Expected proba, label or mode.")
    wanted = give or (list(Given) if ordered else [Given.proba, Given.label])
    features = new_features(model, row_features, col_features)
    batches = read_batches(data, _types(model), model.columns_)
    kept = _names(model)
    taken = {*Given, *(f"p_{label}" for label in model.classes_)} & set(kept)
    if taken:
        raise InputError(f"A column of ids is called {taken.pop()!r}, as one of predictions is: expected another name.")
    values = numeric_values(model.classes_)
    done = unknown = 0
    decisions = {"mode": mode, "median": median}
    with warnings.catch_warnings(), console.bar("Predicting") as move, open_writer(output, kept) as write:
        # Each batch would warn of its own: what all have is said once, below.
        warnings.simplefilter("ignore", UnknownIdWarning)
        for batch in batches:
            predictions = model.predictions(batch.select(model.columns_), **features)
            proba, columns = predictions.proba, {name: batch[name] for name in kept}
            if "proba" in wanted:
                columns |= {f"p_{label}": proba[:, code] for code, label in enumerate(model.classes_)}
            if "label" in wanted:
                columns["label"] = _label_column(model.classes_, predictions.codes)
            for name, decide in decisions.items():
                if name in wanted:
                    columns[name] = _label_column(model.classes_, predictions.codes_by(decide))
            if "mean" in wanted:
                columns["mean"] = proba @ values
            write(pa.table(columns))
            done += batch.num_rows
            unknown += int((predictions.least_support == 0).sum())
            move(done, None, f"{done:,} pairs")
    if unknown:
        console.say(f"{unknown:,} of {done:,} pairs have an id without labels in training: unknown={model.unknown!r}.")


def evaluate(
    model_file: Model,
    data: Table,
    label: Label = "label",
    weight: Weight = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    as_json: Json = False,
) -> None:
    """Judge a model by labelled pairs it has not seen: all metrics, by what was known of the ids."""
    from dyads.estimators import selection

    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    features = new_features(model, row_features, col_features)
    with console.bar("Judging"):
        found = selection.evaluate(model, X, y, sample_weight, **features)
    console.show(found.to_pydict(), f"{model_file.name} on {data}", as_json)


def recommend(
    model_file: Model,
    rows: Annotated[
        str | None, typer.Option(help="Table whose first column holds row ids; all rows if not told.")
    ] = None,
    id: Annotated[list[str] | None, typer.Option(help="A row id; may be repeated.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many columns for each row.")] = 10,
    by: Annotated[str, typer.Option(help="mean, thompson, or a label whose probability counts.")] = "mean",
    exclude: Annotated[str | None, typer.Option(help="Table of pairs to leave out, such as those trained on.")] = None,
    candidates: Annotated[
        str | None, typer.Option(help="Table whose first column holds the columns to choose.")
    ] = None,
    relation: Annotated[str | None, typer.Option(help="The relation, for a model of several.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    output: Output = "-",
    force: Force = False,
) -> None:
    """The best columns for rows: a table of the ids, under their own names, rank and value."""
    from dyads.data.files import open_writer

    console.check_table_output(output, force)
    model = load_model(model_file)
    vocabularies = model.record_.known.vocabularies
    if rows is not None and id:
        raise Usage("Got both --rows and --id: expected one of them.")
    if (relation is not None) != (len(vocabularies) > 2):
        raise Usage("--relation is for models of several relations, which need it: expected both or neither.")
    kinds = vocabularies[-1]
    wanted = (
        as_ids(id, vocabularies[0].ids.type, vocabularies[0].name)
        if id
        else _column(rows, vocabularies[0])
        if rows
        else model.row_ids_
    )
    labels = {str(each): each for each in model.classes_.tolist()}
    with console.warned(), console.bar("Ranking"):
        found = model.recommend(
            wanted,
            n,
            labels.get(by, by),
            exclude=None if exclude is None else _pairs(exclude, model),
            candidates=None if candidates is None else _column(candidates, vocabularies[1]),
            relation=None if relation is None else as_ids([relation], kinds.ids.type, kinds.name)[0].as_py(),
            **new_features(model, row_features, col_features),
        )
    with open_writer(output, found.column_names) as write:
        write(found)


def explain(
    model_file: Model,
    data: Table,
    output: Output = "-",
    picture: Annotated[Path | None, typer.Option(help="Draw the first pair: a PNG, PDF or SVG file.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """What each part adds to the log-odds of every label: a tidy table of dyad, the ids, label, part and value."""
    from dyads import report
    from dyads.data.files import open_writer, read_table

    console.check_table_output(output, force)
    if picture is not None:
        console.check_output(picture, force, console.PICTURES)
    model = load_model(model_file)
    table = read_table(data, lambda names: _id_types(model))
    check_columns(data, table.column_names, model.columns_)
    with console.warned(), console.bar("Explaining"):
        found = model.explain(table.select(model.columns_), **new_features(model, row_features, col_features))
    with open_writer(output, found.column_names) as write:
        write(found)
    if picture is not None:
        console.save_picture(picture, lambda ax: report.plot_explanation(ax, found))


def fold_in(
    model_file: Model,
    data: Table,
    output: ModelOutput,
    label: Label = "label",
    weight: Weight = None,
    side: Annotated[str | None, typer.Option(help="row or col: solve for all of these, not for new ids alone.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Add new rows and columns to a model by their labels; nothing else in it changes."""
    console.check_model_output(output, force)
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    before = len(model.row_ids_), len(model.col_ids_)
    with console.warned(), console.bar("Folding in"):
        model.fold_in(X, y, sample_weight, side=side, **new_features(model, row_features, col_features)).save(output)
    new = len(model.row_ids_) - before[0], len(model.col_ids_) - before[1]
    console.say(f"{new[0]:,} new rows and {new[1]:,} new columns; written to {output}.")


def calibrate(
    model_file: Model,
    data: Table,
    output: ModelOutput,
    label: Label = "label",
    weight: Weight = None,
    method: Annotated[str | None, typer.Option(help="logistic, vector, isotonic or temperature.")] = None,
    force: Force = False,
) -> None:
    """Make a model's probabilities come true, by labelled pairs it was not trained on."""
    from dyads.metrics import classwise_ece

    console.check_model_output(output, force)
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    truth = np.asarray(y)
    with console.warned(), console.bar("Calibrating"):
        before = classwise_ece(truth, model.predict_proba(X), model.classes_)
        after = classwise_ece(truth, model.calibrate(X, y, method, sample_weight).predict_proba(X), model.classes_)
        model.save(output)
    console.say(f"Calibration error on these pairs {before:.4f}, now {after:.4f}; written to {output}.")


def info(model_file: Model, as_json: Json = False) -> None:
    """What is in a model file."""
    model = load_model(model_file)
    record = model.record_
    found = {
        "file": str(model_file),
        "bytes": model_file.stat().st_size,
        "estimator": type(model).__name__,
        "labels": model.classes_.tolist(),
        "rows": len(model.row_ids_),
        "columns": len(model.col_ids_),
        "names of their columns": _names(model),
        "relations": len(model.relation_ids_) if len(record.known.vocabularies) > 2 else 0,
        "structure": type(record.parts.structure).__name__.lower(),
        "rank": model.rank,
        "loss": type(record.parts.loss).__name__.lower(),
        "features": {side: getattr(record.known, f"{side}s").n_features for side in ("row", "col")},
        "weights": model.n_parameters_,
        "solver": model.solver_,
        "iterations": model.n_iter_,
        "converged": model.converged_,
        "draws" if record.is_posterior else "models": len(record.draws),
        "calibrated": record.calibrator is not None,
        "unknown ids": model.unknown,
    }
    _show_facts(found, as_json)


def describe(
    data: Table,
    row: Annotated[str | None, typer.Option(help="Column of row ids; the first if not told.")] = None,
    col: Annotated[str | None, typer.Option(help="Column of column ids; the second if not told.")] = None,
    label: Label = "label",
    as_json: Json = False,
) -> None:
    """Look at a table of labelled pairs: what is odd in it, and what to begin with."""
    from dyads.report import doctor

    table, ids = _read(data, row, col, [label])
    with console.bar("Looking"):
        found = doctor.examine(table.select(ids), table[label])
    if as_json:
        console.show_json(dataclasses.asdict(found))
        return
    console.show({"": list(found.facts), data: [str(value) for value in found.facts.values()]})
    for sentence in found.findings:
        typer.echo(f"! {sentence}")
    row, col = ids
    named = f"{shlex.quote(data)} --row {shlex.quote(row)} --col {shlex.quote(col)} --label {shlex.quote(label)}"
    typer.echo(f"Begin with: dyads fit {named} {found.advice} -o model.dyads")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(cls=SettingsCommand)(console.guarded()(fit))
    for command in (predict, evaluate, recommend, explain, fold_in, calibrate, info, describe):
        app.command(command.__name__.replace("_", "-"))(console.guarded()(command))


# ------------------------------------------------------------------------------------------------------ tables


def load_model(path: Path) -> Any:
    """The model of a file."""
    from dyads.estimators.kinds import load

    if not path.is_file():
        raise InputError(f"There is no file {path}: expected a model that `dyads fit` wrote.")
    return load(path)


def _read(data: str, row: str | None, col: str | None, others: Sequence[str | None]) -> tuple[Any, list[str]]:
    """The whole table, and its columns of ids: those told, or the first two that no option names.

    `others` are the columns that hold something else; the third of them, if any, holds relations, which are ids too.
    """
    from dyads.data.files import read_table

    found: list[str] = []

    def types(names: list[str]) -> dict[str, Any]:
        check_columns(data, names, [each for each in (row, col, *others) if each])
        free = (name for name in names if name not in (row, col, *others))
        found[:] = [each for each in (row or next(free, None), col or next(free, None)) if each]
        if len(found) < 2:
            raise Usage(f"Which columns hold ids is not clear among {names}: name them by --row and --col.")
        return dict.fromkeys([*found, *(each for each in others[2:3] if each)])

    table = read_table(data, types)
    if not found:
        types(table.column_names)
    return table, found


def _weights(table: Any, weight: str | None) -> Any:
    import pyarrow as pa

    if weight is None:
        return None
    kind = table[weight].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or table[weight].null_count:
        raise InputError(f"The column of weights {weight!r} is not numbers throughout: expected one in every line.")
    return table[weight].to_numpy()


def read_labelled(model: Any, data: str, label: str, weight: str | None) -> tuple[Any, Any, Any]:
    """Pairs with the columns that the model was fitted on, their labels and their weights."""
    import pyarrow as pa

    from dyads.data.files import read_table

    types = _types(model) | ({label: pa.string()} if model.classes_.dtype.kind == "U" else {})
    table = read_table(data, lambda names: types)
    check_columns(data, table.column_names, [*model.columns_, label, *([weight] if weight else [])])
    return table.select(model.columns_), table[label], _weights(table, weight)


def _names(model: Any) -> list[str]:
    return [vocabulary.name for vocabulary in model.record_.known.vocabularies]


def _id_types(model: Any) -> dict[str, Any]:
    return {vocabulary.name: vocabulary.ids.type for vocabulary in model.record_.known.vocabularies}


def _types(model: Any) -> dict[str, Any]:
    """The types of the columns of pairs that the model knows: those of ids and of features of pairs."""
    encoder = model.record_.known.dyad_encoder
    return ({} if encoder is None else encoder.types) | _id_types(model)


def _features(path: str, ids: str, kind: Any = None, types: Mapping[str, Any] | None = None) -> Any:
    """A table of features, keyed by the column that is called as the ids are, or by its first.

    `kind` is the type of the ids, and `types` are those of features that a model knows.
    """
    from dyads.data.features import Features
    from dyads.data.files import read_table

    def key(names: list[str]) -> str:
        return ids if ids in names else names[0]

    table = read_table(path, lambda names: {**(types or {}), key(names): kind})
    return Features(table, key(table.column_names))


def new_features(model: Any, row_features: str | None, col_features: str | None) -> dict[str, Any]:
    """Tables of features for a method that predicts."""
    found = {}
    for side, path, (ids, kind) in zip(
        ("row", "col"), (row_features, col_features), _id_types(model).items(), strict=False
    ):
        encoder = getattr(model.record_.known, f"{side}s").encoder
        types = {} if encoder is None else encoder.types
        found[f"{side}_features"] = None if path is None else _features(path, ids, kind, types)
    return found


def _column(path: str, vocabulary: Any) -> Any:
    """The ids of the first column of a file, or of the one that is called as those of the model are."""
    from dyads.data.files import read_table

    def key(names: list[str]) -> str:
        return vocabulary.name if vocabulary.name in names else names[0]

    table = read_table(path, lambda names: {key(names): vocabulary.ids.type})
    return table[key(table.column_names)].unique()


def _pairs(path: str, model: Any) -> Any:
    from dyads.data.files import read_table

    names = _names(model)
    table = read_table(path, lambda there: _id_types(model))
    check_columns(path, table.column_names, names[:2])
    return table.select([name for name in names if name in table.column_names])


def _reference(text: str, y: Any) -> Any:
    """The label that a text on the command line names."""
    if text == "auto":
        return text
    return None if text == "none" else {str(each): each for each in y.unique().to_pylist()}.get(text, text)


def _label_column(classes: Any, codes: Any) -> Any:
    """Predicted labels; none of negative codes."""
    import pyarrow as pa

    return pa.array(classes[codes], mask=codes < 0)


def _show_facts(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.show_json(found)
    else:
        console.show({"": list(found), "value": [_worded(value) for value in found.values()]})


def _worded(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:12]))
        return shown if len(value) <= 12 else f"{shown}, ... ({len(value)})"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
