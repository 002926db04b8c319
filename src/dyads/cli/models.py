"""Subcommands that fit and use models, on tables in files."""

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
"""Estimator for each value of ``--kind``."""


JUDGED, HELD = 100_000, 2**23
"""Most training pairs that the summary of a fit is computed on, and most probabilities of them (64 MiB for each
predictor): more take longer and more memory, and change the figures little."""


class Kind(StrEnum):
    """Type of labels."""

    nominal = "nominal"
    ordinal = "ordinal"
    link = "link"
    relational = "relational"


class Given(StrEnum):
    """Outputs of `dyads predict`."""

    proba = "proba"
    label = "label"
    mode = "mode"
    median = "median"
    mean = "mean"


Table = Annotated[
    str, typer.Argument(help="Table of pairs: CSV, TSV, Parquet or Arrow; - reads CSV from standard input.")
]
Model = Annotated[Path, typer.Argument(help="Model file written by `dyads fit`.")]
RowColumn = Annotated[
    str | None,
    typer.Option("--row", help="Column of row ids [default: the first column not named by another option]."),
]
ColColumn = Annotated[
    str | None,
    typer.Option("--col", help="Column of column ids [default: the next column not named by another option]."),
]
Label = Annotated[str, typer.Option("--label", help="Column of labels.")]
Weight = Annotated[str | None, typer.Option("--weight", help="Column of weights; a pair of weight 2 counts twice.")]
RowFeatures = Annotated[str | None, typer.Option("--row-features", help="Table of row features, keyed by id.")]
ColFeatures = Annotated[str | None, typer.Option("--col-features", help="Table of column features, keyed by id.")]
Output = Annotated[str, typer.Option("--output", "-o", help="File to write; - writes CSV to standard output.")]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fit(
    context: typer.Context,
    data: Table,
    output: ModelOutput,
    row: RowColumn = None,
    col: ColColumn = None,
    label: Label = "label",
    kind: Annotated[Kind, typer.Option(help="Type of labels.")] = Kind.nominal,
    relation: Annotated[str | None, typer.Option(help="Column of relations (--kind relational).")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="Column with a feature of pairs; repeatable.")] = None,
    weight: Weight = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    cv: Annotated[
        bool, typer.Option("--cv", help="Choose the penalty by cross-validation (--kind nominal or ordinal).")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint file of the Gibbs sampler, from which an interrupted fit resumes.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a model to labelled pairs."""
    import pyarrow as pa

    from dyads.estimators.kinds import ESTIMATORS
    from dyads.estimators.selection import SEARCHES, best_marginal, shortfall_of

    console.check_model_output(output, force)
    if (relation is not None) != (kind == "relational"):
        raise Usage("--relation and --kind relational require each other: give both or neither.")
    if cv and kind not in ("nominal", "ordinal"):
        raise Usage(f"--cv does not support --kind {kind}: expected nominal or ordinal. Set --l2 instead.")
    if label in (row, col):
        raise Usage(f"The column {label!r} is named for both labels and ids: name a different column for each.")
    settings = given_settings(context)
    chosen = {"l2", "l2__side"} if settings.get("rank", 1) else {"l2__bias", "l2__side"}
    for name in chosen & settings.keys() if cv else ():
        option = name.replace("__", "-")
        raise Usage(f"--cv chooses the penalty and cannot be combined with --{option}: give only one of them.")
    if cv and checkpoint is not None:
        raise Usage("--checkpoint is for a single fit, and --cv runs many: give only one of them.")
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
        console.say(f"The labels are text and are ordered alphabetically: {order}.")
    model.set_params(id_columns=ids, reference=_reference(model.reference, y))
    for name, path, key in (("features__row", row_features, ids[0]), ("features__col", col_features, ids[1])):
        if path is not None:
            model.set_params(**{name: _features(path, key)})
    began = time.perf_counter()
    with console.warned():
        if cv:
            with console.bar("Cross-validation") as update:
                model.fit(X, y, _weights(table, weight), callback=lambda done, planned: update(done, planned, ""))
        else:
            total = settings.get("solver__max_iter", settings.get("solver__sweeps"))
            with console.bar("Fitting") as update:
                model.fit(
                    X,
                    y,
                    _weights(table, weight),
                    callback=lambda step: update(step.iteration, total, f"objective {step.objective:,.0f}"),
                    checkpoint=checkpoint,
                )
        model.save(output)
    summary = {
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
        **({"chosen": model.best_params_} if cv else {}),
    }
    log_loss, pairs = _log_loss_of_fit(model, X, y, _weights(table, weight))
    _show_facts(summary | {f"log-loss on {pairs}": log_loss}, as_json)
    if not model.held_out_:
        console.say("The model was fitted to these pairs: judge it on others (dyads split, then dyads evaluate).")
    if log_loss["model"] >= log_loss[best_marginal(log_loss)]:
        console.say(shortfall_of(model, log_loss, pairs))


def _log_loss_of_fit(model: Any, X: Any, y: Any, weight: Any) -> tuple[dict[str, float], str]:
    """Log-loss of a fitted model and of its marginals, and the name of the pairs: held out, or else trained on."""
    from dyads.data.codes import read_labels
    from dyads.estimators.selection import predictors_of
    from dyads.metrics import log_loss

    if model.held_out_:
        return {name: round(loss, 4) for name, loss in model.held_out_.items()}, "held-out pairs"
    # A pair of weight zero is no training pair, and may have a label that the model does not know.
    trained = np.arange(X.num_rows) if weight is None else np.flatnonzero(weight)
    n = max(1, min(len(trained), JUDGED, HELD // len(model.classes_)))
    some = trained[np.linspace(0, len(trained) - 1, n).astype(np.int64)]
    truth, share = read_labels(y)[some], None if weight is None else weight[some]
    figures = {
        name: round(log_loss(truth, each.proba, each.classes, share), 4)
        for name, each in predictors_of(model, X.take(some)).items()
    }
    return figures, "the training pairs" if n == len(trained) else f"{n:,} of the training pairs"


def predict(
    model_file: Model,
    data: Table,
    output: Output = "-",
    give: Annotated[
        list[Given] | None, typer.Option(help="Output to write; repeatable [default: all that suit the labels].")
    ] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Predict the labels of pairs, in constant memory. Writes the id columns, then the outputs chosen by --give.

    The label is the prediction of the model; mode, median and mean are those of its probabilities.
    """
    import pyarrow as pa

    from dyads.data.codes import numeric_values
    from dyads.data.files import open_writer, read_batches
    from dyads.model.loss import median, mode

    console.check_table_output(output, force)
    model = load_model(model_file)
    ordered = hasattr(model, "predict_mean")
    if give and not ordered and set(give) & {"median", "mean"}:
        raise Usage(
            "--give median and mean need ordered labels, and this model has none: expected proba, label or mode."
        )
    outputs = give or (list(Given) if ordered else [Given.proba, Given.label])
    features = new_features(model, row_features, col_features)
    batches = read_batches(data, _types(model), model.columns_)
    kept = _names(model)
    taken = {*Given, *(f"p_{label}" for label in model.classes_)} & set(kept)
    if taken:
        raise InputError(f"The id column {taken.pop()!r} has the name of an output column: rename it and fit again.")
    values = numeric_values(model.classes_)
    done = unknown = 0
    decisions = {"mode": mode, "median": median}
    with warnings.catch_warnings(), console.bar("Predicting") as update, open_writer(output, kept) as write:
        # Each batch would warn separately: one message below covers all of them.
        warnings.simplefilter("ignore", UnknownIdWarning)
        for batch in batches:
            predictions = model.predictions(batch.select(model.columns_), **features)
            proba, columns = predictions.proba, {name: batch[name] for name in kept}
            if "proba" in outputs:
                columns |= {f"p_{label}": proba[:, code] for code, label in enumerate(model.classes_)}
            if "label" in outputs:
                columns["label"] = _label_column(model.classes_, predictions.codes)
            for name, decide in decisions.items():
                if name in outputs:
                    columns[name] = _label_column(model.classes_, predictions.codes_by(decide))
            if "mean" in outputs:
                columns["mean"] = proba @ values
            write(pa.table(columns))
            done += batch.num_rows
            unknown += int((predictions.least_support == 0).sum())
            update(done, None, f"{done:,} pairs")
    if unknown:
        console.say(f"{unknown:,} of {done:,} pairs have an id without training labels (unknown={model.unknown!r}).")


def evaluate(
    model_file: Model,
    data: Table,
    label: Label = "label",
    weight: Weight = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    as_json: Json = False,
) -> None:
    """Evaluate a model on labelled pairs not used for training: all metrics, for known and for new ids."""
    from dyads.estimators import selection

    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    features = new_features(model, row_features, col_features)
    with console.bar("Evaluating"):
        predictors = selection.predictors_of(model, X, **features)
        figures = selection.by_regime(predictors, y, sample_weight, ordered=hasattr(model, "predict_mean"))
    if as_json:
        console.show(figures, as_json=True)
    else:
        for regime, (n, table) in selection.turned(figures).items():
            title = f"{model_file.name} on {data}" if regime == "all" else f"Of these, {regime}"
            console.show(table, f"{title}: {n:,} pairs")
    sentence = selection.shortfall(model, predictors, y, sample_weight)
    if sentence:
        console.say(sentence)


def recommend(
    model_file: Model,
    rows: Annotated[str | None, typer.Option(help="Table of row ids [default: all rows of the model].")] = None,
    id: Annotated[list[str] | None, typer.Option(help="Row id; repeatable.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Number of columns per row.")] = 10,
    by: Annotated[
        str,
        typer.Option(help="Criterion: mean (expected value), thompson (posterior draw), or a label (its probability)."),
    ] = "mean",
    exclude: Annotated[str | None, typer.Option(help="Table of pairs to exclude, such as the training pairs.")] = None,
    candidates: Annotated[
        str | None, typer.Option(help="Table of column ids to choose from [default: all columns of the model].")
    ] = None,
    relation: Annotated[str | None, typer.Option(help="Relation, for a model of several relations.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    output: Output = "-",
    force: Force = False,
) -> None:
    """Recommend the best columns for each row: a table of the ids, under their own names, rank and value."""
    from dyads.data.files import open_writer

    console.check_table_output(output, force)
    model = load_model(model_file)
    vocabularies = model.record_.known.vocabularies
    if rows is not None and id:
        raise Usage("--rows and --id cannot be combined: give only one of them.")
    if (relation is not None) != (len(vocabularies) > 2):
        raise Usage("--relation is required for a model of several relations, and not allowed for any other.")
    relations = vocabularies[-1]
    row_ids = (
        as_ids(id, vocabularies[0].ids.type, vocabularies[0].name)
        if id
        else _column(rows, vocabularies[0])
        if rows
        else model.row_ids_
    )
    labels = {str(name): name for name in model.classes_.tolist()}
    with console.warned(), console.bar("Ranking"):
        ranking = model.recommend(
            row_ids,
            n,
            labels.get(by, by),
            exclude=None if exclude is None else _pairs(exclude, model),
            candidates=None if candidates is None else _column(candidates, vocabularies[1]),
            relation=None if relation is None else as_ids([relation], relations.ids.type, relations.name)[0].as_py(),
            **new_features(model, row_features, col_features),
        )
    with open_writer(output, ranking.column_names) as write:
        write(ranking)


def explain(
    model_file: Model,
    data: Table,
    output: Output = "-",
    picture: Annotated[Path | None, typer.Option(help="Picture of the first pair to write: PNG, PDF or SVG.")] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Split the log-odds of every label into additive parts: a tidy table of dyad, ids, label, part and value."""
    from dyads import report
    from dyads.data.files import open_writer, read_table

    console.check_table_output(output, force)
    if picture is not None:
        console.check_output(picture, force, console.PICTURES)
    model = load_model(model_file)
    table = read_table(data, lambda names: _id_types(model))
    check_columns(data, table.column_names, model.columns_)
    with console.warned(), console.bar("Explaining"):
        explanation = model.explain(table.select(model.columns_), **new_features(model, row_features, col_features))
    with open_writer(output, explanation.column_names) as write:
        write(explanation)
    if picture is not None:
        console.save_picture(picture, lambda ax: report.plot_explanation(ax, explanation))


def fold_in(
    model_file: Model,
    data: Table,
    output: ModelOutput,
    label: Label = "label",
    weight: Weight = None,
    side: Annotated[
        str | None, typer.Option(help="Solve for all rows (row) or columns (col) of the table [default: new ids only].")
    ] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Add new rows and columns to a model from their labels; other ids stay unchanged."""
    console.check_model_output(output, force)
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    before = len(model.row_ids_), len(model.col_ids_)
    with console.warned(), console.bar("Folding in"):
        model.fold_in(X, y, sample_weight, side=side, **new_features(model, row_features, col_features)).save(output)
    new = len(model.row_ids_) - before[0], len(model.col_ids_) - before[1]
    console.say(f"Added {new[0]:,} rows and {new[1]:,} columns. Wrote {output}.")


def calibrate(
    model_file: Model,
    data: Table,
    output: ModelOutput,
    label: Label = "label",
    weight: Weight = None,
    method: Annotated[
        str | None, typer.Option(help="logistic, vector, isotonic or temperature [default: chosen by the loss].")
    ] = None,
    force: Force = False,
) -> None:
    """Calibrate the probabilities of a model on labelled pairs not used for training."""
    from dyads.metrics import classwise_ece

    console.check_model_output(output, force)
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    truth = np.asarray(y)
    with console.warned(), console.bar("Calibrating"):
        before = classwise_ece(truth, model.predict_proba(X), model.classes_)
        after = classwise_ece(truth, model.calibrate(X, y, method, sample_weight).predict_proba(X), model.classes_)
        model.save(output)
    console.say(f"Calibration error on these pairs: {before:.4f} before, {after:.4f} after. Wrote {output}.")


def info(model_file: Model, as_json: Json = False) -> None:
    """Show the contents of a model file."""
    model = load_model(model_file)
    record = model.record_
    summary = {
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
    _show_facts(summary, as_json)


def describe(
    data: Table,
    row: RowColumn = None,
    col: ColColumn = None,
    label: Label = "label",
    as_json: Json = False,
) -> None:
    """Check a table of labelled pairs for problems, and suggest settings for `dyads fit`."""
    from dyads.report import doctor

    table, ids = _read(data, row, col, [label])
    with console.bar("Examining"):
        examined = doctor.examine(table.select(ids), table[label])
    if as_json:
        console.show_json(dataclasses.asdict(examined))
        return
    facts = _described(examined.facts)
    console.show({"": list(facts), data: list(facts.values())})
    for sentence in examined.findings:
        typer.echo(f"! {sentence}")
    if examined.checked:
        held, pairs, log_loss = examined.checked["held_out"], examined.checked["pairs"], examined.checked["log_loss"]
        n = examined.facts["pairs"]
        sample = f", a sample of the {n:,} pairs" if pairs < n else ""
        title = f"Checked on {held:,} held-out pairs of {pairs:,}{sample}"
        console.show({"predictor": list(log_loss), "log-loss": list(log_loss.values())}, title)
    elif examined.advice is not None:
        typer.echo("Nothing was checked: there are too few pairs, or too few of each label, to hold some out.")
    if examined.advice is not None:
        named = " ".join(shlex.quote(word) for word in (data, "--row", ids[0], "--col", ids[1], "--label", label))
        typer.echo(f"Start with: dyads fit {named} {examined.advice} -o model.dyads")


def register(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(cls=SettingsCommand)(console.guarded()(fit))
    for command in (predict, evaluate, recommend, explain, fold_in, calibrate, info, describe):
        app.command(command.__name__.replace("_", "-"))(console.guarded()(command))


# ------------------------------------------------------------------------------------------------------ tables


def load_model(path: Path) -> Any:
    """Load a model file."""
    from dyads.estimators.kinds import load

    if not path.is_file():
        raise InputError(f"There is no file {path}: expected a model file written by `dyads fit`.")
    return load(path)


def _read(data: str, row: str | None, col: str | None, others: Sequence[str | None]) -> tuple[Any, list[str]]:
    """Read a whole table, and return it with the names of its two id columns.

    Id columns that are not named are the first columns that no option names. `others` are the columns with other
    content; the third of them, if any, holds relations, which are read as ids too.
    """
    from dyads.data.files import read_table

    ids: list[str] = []

    def types(names: list[str]) -> dict[str, Any]:
        check_columns(data, names, [name for name in (row, col, *others) if name])
        unnamed = (name for name in names if name not in (row, col, *others))
        ids[:] = [name for name in (row or next(unnamed, None), col or next(unnamed, None)) if name]
        if len(ids) < 2:
            raise Usage(f"Cannot find two id columns among {names}: name them with --row and --col.")
        return dict.fromkeys([*ids, *(name for name in others[2:3] if name)])

    table = read_table(data, types)
    if not ids:
        types(table.column_names)
    return table, ids


def _weights(table: Any, weight: str | None) -> Any:
    import pyarrow as pa

    if weight is None:
        return None
    kind = table[weight].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or table[weight].null_count:
        raise InputError(
            f"The weight column {weight!r} has missing or non-numeric values: expected a number in every line."
        )
    return table[weight].to_numpy()


def read_labelled(model: Any, data: str, label: str, weight: str | None) -> tuple[Any, Any, Any]:
    """Read pairs (the columns the model was fitted on), their labels and their weights."""
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
    """Types of the columns the model was fitted on: ids and features of pairs."""
    encoder = model.record_.known.dyad_encoder
    return ({} if encoder is None else encoder.types) | _id_types(model)


def _features(path: str, ids: str, kind: Any = None, types: Mapping[str, Any] | None = None) -> Any:
    """Read a table of features, keyed by its column `ids` or, without one, by its first column.

    `kind` is the type of the ids, `types` are the types of the features that a model was fitted on.
    """
    from dyads.data.features import Features
    from dyads.data.files import read_table

    def key(names: list[str]) -> str:
        return ids if ids in names else names[0]

    table = read_table(path, lambda names: {**(types or {}), key(names): kind})
    return Features(table, key(table.column_names))


def new_features(model: Any, row_features: str | None, col_features: str | None) -> dict[str, Any]:
    """Read tables of features as keyword arguments of a prediction method."""
    tables = {}
    for side, path, (ids, kind) in zip(
        ("row", "col"), (row_features, col_features), _id_types(model).items(), strict=False
    ):
        encoder = getattr(model.record_.known, f"{side}s").encoder
        types = {} if encoder is None else encoder.types
        tables[f"{side}_features"] = None if path is None else _features(path, ids, kind, types)
    return tables


def _column(path: str, vocabulary: Any) -> Any:
    """Read distinct ids from a file: from the column named as in the model or, without one, from the first."""
    from dyads.data.files import read_table

    def key(names: list[str]) -> str:
        return vocabulary.name if vocabulary.name in names else names[0]

    table = read_table(path, lambda names: {key(names): vocabulary.ids.type})
    return table[key(table.column_names)].unique()


def _pairs(path: str, model: Any) -> Any:
    from dyads.data.files import read_table

    names = _names(model)
    table = read_table(path, lambda _: _id_types(model))
    check_columns(path, table.column_names, names[:2])
    return table.select([name for name in names if name in table.column_names])


def _reference(text: str, y: Any) -> Any:
    """Convert the text of ``--reference`` to a label of y, "auto" or None."""
    if text == "auto":
        return text
    return None if text == "none" else {str(name): name for name in y.unique().to_pylist()}.get(text, text)


def _label_column(classes: Any, codes: Any) -> Any:
    """Predicted labels, missing where a code is negative."""
    import pyarrow as pa

    return pa.array(classes[codes], mask=codes < 0)


def _show_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.show_json(facts)
    else:
        console.show({"": list(facts), "value": [_worded(value) for value in facts.values()]})


def _described(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts of `describe` in words."""
    words = {"pairs": _worded(facts["pairs"])}
    for side in ("rows", "columns"):
        column, n, labels = facts[side].values()
        counts = f"{labels['least']:,} to {labels['most']:,} (median {labels['median']:,g})"
        words[f"{side} ({column})"] = f"{n:,}, with {counts} labels each"
    shares = [f"{label}: {share:.1%}" for label, share in facts["labels"].items()]
    return words | {
        "filled": f"{facts['filled']:.2%} of all pairs",
        "labels": _worded(shares),
        "connected parts": _worded(facts["connected parts"]),
    }


def _worded(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:12]))
        return shown if len(value) <= 12 else f"{shown}, ... ({len(value)})"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
