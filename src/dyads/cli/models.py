"""Subcommands that fit and use models, on tables in files."""

import csv
import dataclasses
import io
import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dyads.cli import console
from dyads.cli.console import Usage
from dyads.cli.inputs import (
    ColColumn,
    ColFeatures,
    Force,
    Json,
    Label,
    Model,
    ModelOutput,
    Output,
    RowColumn,
    RowFeatures,
    Table,
    TableOrStore,
    Weight,
    default_label,
    is_store,
    load_model,
    names_of,
    new_features,
    open_store,
    read,
    read_excluded,
    read_features,
    read_ids,
    read_labelled,
    read_pairs,
    tell_label,
    types_of,
    weights_of,
)
from dyads.cli.options import SettingsCommand, TableCommand, arguments_of, given_dialect, given_settings
from dyads.data.files import DELIMITERS, Dialect, as_ids, check_columns, format_of
from dyads.data.tables import as_arrow
from dyads.errors import CheckpointError, DivergenceError, InputError, UnknownIdWarning, counted

LINKS = ("link", "link-walk")
"""Values of ``--kind`` whose two columns are of one set of nodes."""

LINKS_ALONE = "If the table lists links alone,"

DIGITS = 6
"""Significant digits of probabilities and values in CSV and TSV; Parquet and Arrow hold all."""

ESTIMATOR_OF = {
    "nominal": "LFLClassifier",
    "ordinal": "LFLOrdinal",
    "link": "LFLLink",
    "link-walk": "LFLLinkWalk",
    "relational": "LFLRelational",
}
"""Estimator for each value of ``--kind``."""


SUMMARY_PAIRS, SUMMARY_CELLS = 100_000, 2**23
"""Most training pairs that the summary of a fit is computed on, and most probabilities of them (64 MiB for each
predictor): more take longer and more memory, and change the figures little."""


class Kind(StrEnum):
    """Type of labels."""

    nominal = "nominal"
    ordinal = "ordinal"
    link = "link"
    link_walk = "link-walk"
    relational = "relational"


class Negatives(StrEnum):
    """Non-links added to a table of links."""

    all = "all"
    sample = "sample"


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


def fit(
    context: typer.Context,
    data: TableOrStore,
    output: ModelOutput,
    row: RowColumn = None,
    col: ColColumn = None,
    label: Label = None,
    kind: Annotated[Kind | None, typer.Option(help="Type of labels [default: nominal].", show_default=False)] = None,
    relation: Annotated[str | None, typer.Option(help="Column of relations (--kind relational).")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="Column with a feature of pairs; repeatable.")] = None,
    weight: Weight = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    negatives: Annotated[
        Negatives | None,
        typer.Option(help="Non-links to add to a table of links without labels: all, or a sample of them."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Non-links per link (--negatives sample) [default: 5].", show_default=False)
    ] = None,
    cv: Annotated[
        bool, typer.Option("--cv", help="Choose the penalty by cross-validation (--kind nominal or ordinal).")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="File with the state of the fit, from which the same command goes on if it was interrupted [default: "
            "beside the model, after a minute; removed at the end].",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a model to labelled pairs."""
    import pyarrow as pa

    from dyads.data.store import Pairs
    from dyads.estimators.kinds import ESTIMATORS
    from dyads.estimators.selection import SEARCHES, best_marginal, shortfall_of
    from dyads.report.progress import course_of

    given_kind, kind = kind, kind or Kind.nominal
    inputs = (data, row_features, col_features)
    console.check_model_output(output, force, (*inputs, checkpoint))
    if checkpoint is not None:
        console.check_output(checkpoint, force=True, inputs=inputs)
    if (relation is not None) != (kind == "relational") and not is_store(data):
        raise Usage("--relation and --kind relational require each other: give both or neither.")
    if cv and kind not in ("nominal", "ordinal"):
        raise Usage(f"--cv does not support --kind {kind}: expected nominal or ordinal. Set --l2 instead.")
    if negatives and (kind == "ordinal" or label or weight or feature or cv):
        raise Usage(
            "--negatives is for links without --label, --weight and --feature, of any kind but ordinal, and without "
            "--cv: omit these."
        )
    if rate is not None and negatives != "sample":
        raise Usage("--rate is for --negatives sample: give both or neither.")
    if label is not None and label in (row, col):
        raise Usage(f"The column {label!r} is named for both labels and ids: name a different column for each.")
    settings = given_settings(context)
    if "order" in settings and kind != "ordinal":
        raise Usage(f"--order is for ordered labels, and not for --kind {kind}: pass --kind ordinal, or omit it.")
    if "order" in settings:
        # A label with a comma may be quoted, as in a CSV file.
        settings["order"] = next(csv.reader([settings["order"]], skipinitialspace=True), [])
    chosen = {"l2", "l2__side"} if settings.get("rank", 1) else {"l2__bias", "l2__side"}
    for name in chosen & settings.keys() if cv else ():
        option = name.replace("__", "-")
        raise Usage(f"--cv chooses the penalty and cannot be combined with --{option}: give only one of them.")
    state = checkpoint
    # The checkpoint of chains does not hold the running averages of early stopping.
    if checkpoint is None and not (settings.get("early_stopping") and settings.get("solver") == "gibbs"):
        state = output.with_name(f"{output.name}.checkpoint")
    model: Any = (SEARCHES if cv else ESTIMATORS)[ESTIMATOR_OF[kind]]()
    try:
        model.set_params(**settings).check_params()
    except InputError as error:
        raise Usage(str(error)) from error
    sample_weight = population_weight = None
    if is_store(data):
        columns = {"row": row, "col": col, "label": label, "weight": weight, "relation": relation, "feature": feature}
        X, y = open_store(data, columns | {"negatives": negatives}), None
        ids, label, weight = [X.rows.name, X.cols.name], X.columns["label"], X.columns.get("weight")
    elif negatives:
        X, y, population_weight = _labelled_links(data, row, col, relation, negatives, rate, settings, kind)
        ids = X.column_names[:2]
    else:
        given, label = label, label or default_label()
        try:
            table, ids = read_pairs(data, row, col, [label, weight, relation, *(feature or [])])
        except InputError as error:
            if kind in LINKS and f"has no column {label!r}" in str(error):
                raise InputError(
                    f"{error} {LINKS_ALONE} pass --negatives all or sample: a model needs non-links as well."
                ) from error
            raise
        tell_label(given, label)
        X = table.select([*ids, *([relation] if relation else []), *(feature or [])])
        y, sample_weight = table[label], weights_of(table, weight)
    labels = pa.array(X.classes.tolist()) if isinstance(X, Pairs) else y
    if given_kind is None and _are_numbers(labels):
        console.say("The labels are numbers, taken as nominal: pass --kind ordinal if they have an order.")
    model.set_params(id_columns=ids, reference=_reference(model.reference, labels))
    for name, path, key in (("features__row", row_features, ids[0]), ("features__col", col_features, ids[1])):
        if path is not None:
            model.set_params(**{name: read_features(path, key)})
    began, interrupt = time.perf_counter(), None
    with console.warned():
        name = "Cross-validation" if cv else "Fitting"
        with console.bar(name) as update, _checkpointed(state, beside=checkpoint is None) as resumed:

            def count_fits(done: int, planned: int) -> None:
                resumed(done, "fit")
                update(done, planned, "")

            def callback(step: Any) -> None:
                resumed(step.iteration, "iteration")
                update(*course_of(step))

            plain = (X, y, sample_weight, None, callback, state, population_weight)
            arguments = (X, y, sample_weight, count_fits, state) if cv else plain
            try:
                try:
                    model.fit(*arguments)
                except CheckpointError:
                    if checkpoint is not None or state is None:
                        raise
                    console.say(f"The state in {state} is of another fit: starting over.")
                    _remove(state)
                    model.fit(*arguments)
            except KeyboardInterrupt as stopped:
                if checkpoint is not None or not hasattr(model, "record_"):
                    raise
                interrupt = stopped
            except DivergenceError:
                if checkpoint is None:
                    _remove(state)
                raise
        dialect = {name: value for name, value in given_dialect().get_params().items() if value is not None}
        model.trained_on_ |= {"label": label, "weight": weight, "dialect": dialect}
        if negatives:
            model.trained_on_ |= {"negatives": str(negatives), "rate": rate if negatives == "all" else rate or 5.0}
        model.save(output)
    if interrupt is None and checkpoint is None:
        _remove(state)
    if interrupt is not None:
        raise KeyboardInterrupt(
            f"Stopped after {model.n_iter_} iterations. Wrote the model so far to {output}"
            + (f", and the state of the fit to {state}: the same command with --force goes on." if state else ".")
        )
    summary = {
        "model": str(output),
        "kind": str(kind),
        "id columns": names_of(model),
        "pairs": model.trained_on_["pairs"],
        "rows": len(model.row_ids_),
        "columns": len(model.col_ids_),
        "labels": model.classes_.tolist(),
        "solver": model.solver_,
        "iterations": model.n_iter_,
        "objective": round(float(model.objective_), 3),
        "seconds": round(time.perf_counter() - began, 2),
        **({"chosen": model.best_params_} if cv else {}),
    }
    if isinstance(X, Pairs):
        X, y, sample_weight = X.lines(np.linspace(0, len(X) - 1, min(len(X), SUMMARY_PAIRS)).astype(np.int64))
    log_loss, pairs = _log_loss_of_fit(model, X, y, population_weight if negatives else sample_weight)
    names = ("log_loss", "log_loss_on") if as_json else ("log-loss", "log-loss on")
    _show_facts(summary | dict(zip(names, (log_loss, pairs), strict=True)), as_json)
    if negatives:
        console.say(
            "The model was fitted to these links: to judge it, hold some out, label them 1 and other pairs 0 (dyads "
            "evaluate)."
        )
    elif not model.held_out_:
        console.say("The model was fitted to these pairs: judge it on others (dyads split, then dyads evaluate).")
    if log_loss["model"] >= log_loss[best_marginal(log_loss)]:
        console.say(shortfall_of(model, log_loss, pairs))


def _log_loss_of_fit(model: Any, X: Any, y: Any, weight: Any) -> tuple[dict[str, float], str]:
    """Log-loss of a fitted model and of its marginals, and the name of the pairs: held out, or else trained on."""
    from dyads.data.codes import read_labels
    from dyads.estimators.selection import predictors_of
    from dyads.metrics import log_loss

    if model.held_out_:
        by = f" of cross-validation with {model.cv} folds" if hasattr(model, "cv") else ""
        return {name: round(loss, 4) for name, loss in model.held_out_.items()}, f"held-out pairs{by}"
    # A pair of weight zero is no training pair, and may have a label that the model does not know.
    trained = np.arange(X.num_rows) if weight is None else np.flatnonzero(weight)
    n = max(1, min(len(trained), SUMMARY_PAIRS, SUMMARY_CELLS // len(model.classes_)))
    some = trained[np.linspace(0, len(trained) - 1, n).astype(np.int64)]
    truth, share = read_labels(y)[some], None if weight is None else weight[some]
    figures = {
        name: round(log_loss(truth, each.proba, each.classes, share), 4)
        for name, each in predictors_of(model, X.take(some)).items()
    }
    return figures, "the training pairs" if n == len(trained) else f"{n:,} of the training pairs"


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
            results = cluster.run("dyads.cli.models:predict_part", "predict", (), tasks, told)
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


def fold_in(
    model_file: Model,
    data: Table,
    output: ModelOutput,
    label: Label = None,
    weight: Weight = None,
    side: Annotated[
        str | None, typer.Option(help="Solve for all rows (row) or columns (col) of the table [default: new ids only].")
    ] = None,
    row_features: RowFeatures = None,
    col_features: ColFeatures = None,
    force: Force = False,
) -> None:
    """Add new rows and columns to a model from their labels; other ids stay unchanged."""
    # With --force, a model may be updated in place: it is read before it is replaced.
    console.check_model_output(output, force, (data, row_features, col_features))
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    before = len(model.row_ids_), len(model.col_ids_)
    with console.warned(), console.bar("Folding in"):
        model.fold_in(X, y, sample_weight, side=side, **new_features(model, row_features, col_features)).save(output)
    new = len(model.row_ids_) - before[0], len(model.col_ids_) - before[1]
    added = f"{counted(new[0], 'row')} and {counted(new[1], 'column')}"
    console.say(f"Added {added}. Wrote {output}.")


def calibrate(
    model_file: Model,
    data: Table,
    output: ModelOutput,
    label: Label = None,
    weight: Weight = None,
    method: Annotated[
        str | None, typer.Option(help="logistic, vector, isotonic or temperature [default: chosen by the loss].")
    ] = None,
    force: Force = False,
) -> None:
    """Calibrate the probabilities of a model on labelled pairs not used for training."""
    from dyads.metrics import classwise_ece

    console.check_model_output(output, force, (data,))
    model = load_model(model_file)
    X, y, sample_weight = read_labelled(model, data, label, weight)
    truth = np.asarray(y)
    with console.warned(), console.bar("Calibrating"):
        before = classwise_ece(truth, model.predict_proba(X), model.classes_, sample_weight=sample_weight)
        model.calibrate(X, y, method, sample_weight)
        after = classwise_ece(truth, model.predict_proba(X), model.classes_, sample_weight=sample_weight)
        model.save(output)
    console.say(f"Calibration error on these pairs: {before:.4f} before, {after:.4f} after. Wrote {output}.")


def info(model_file: Model, as_json: Json = False) -> None:
    """Show the contents of a model file."""
    model = load_model(model_file)
    record, origin = model.record_, model.trained_on_
    known = record.known
    names, parameters = names_of(model), model.get_params(deep=False)
    defaults = type(model)().get_params(deep=False)
    features = {side: getattr(known, f"{side}s").n_features for side in ("row", "col")}
    penalty = {name: record.parts.strengths[name] for name in model.parts_ if name in record.parts.strengths}
    summary = {
        "file": str(model_file),
        "bytes": model_file.stat().st_size,
        "fitted by": f"dyads {origin['version']}",
        "estimator": type(model).__name__,
        "labels": model.classes_.tolist(),
        "pairs": origin["pairs"],
        "rows": len(model.row_ids_),
        "columns": len(model.col_ids_),
        "relations": len(model.relation_ids_) if len(known.vocabularies) > 2 else 0,
        "id columns": names,
        "label column": origin["label"],
        "weight column": origin["weight"],
        "feature columns": [name for name in model.columns_ if name not in names],
        "features": features,
        "structure": model.structure_,
        "rank": model.record_.parts.rank,
        "loss": type(record.parts.loss).__name__.lower(),
        "parameters": {
            name: value for name, value in parameters.items() if name != "id_columns" and value != defaults[name]
        },
        "penalty": penalty | ({"side": record.parts.strengths["side"]} if any(features.values()) else {}),
        "seed": model.random_state,
        **({"non-links": _non_links(origin)} if "negatives" in origin else {}),
        **({"chosen": origin["chosen"], "held-out log-loss": model.held_out_["model"]} if "chosen" in origin else {}),
        "weights": model.n_parameters_,
        "solver": model.solver_,
        "iterations": model.n_iter_,
        "converged": model.converged_,
        "objective": model.objective_,
        **({"draws": len(record.draws)} if record.is_posterior else {}),
        "calibrated": record.calibrator is not None,
        "unknown ids": model.unknown,
    }
    command = shlex.join(_command(model, features))
    _show_facts(summary | ({"command": command} if as_json else {}), as_json)
    if not as_json:
        typer.echo(f"To fit it again: {command}")


def _non_links(origin: dict[str, Any]) -> str:
    return "all" if origin["rate"] is None else f"{origin['negatives']}, rate {origin['rate']:g}"


def _command(model: Any, features: dict[str, int]) -> list[str]:
    """The command that would fit a model again, with TABLE for the names of files."""
    origin, names = model.trained_on_, names_of(model)
    kinds = {estimator: kind for kind, estimator in ESTIMATOR_OF.items()}
    named: dict[str, Any] = dict(zip(("--row", "--col", "--relation"), names, strict=False))
    named |= {"--label": origin["label"], "--weight": origin["weight"], "--kind": kinds[type(model).__name__]}
    named |= {f"--{side}-features": "TABLE" for side, n_features in features.items() if n_features}
    named |= {"--negatives": origin.get("negatives"), "--rate": origin.get("rate"), "--order": _order(model)}
    command = ["dyads", "fit", "TABLE", *arguments_of(Dialect(**origin.get("dialect", {})))]
    for option, value in named.items():
        command += [] if value is None else [option, str(value)]
    for name in model.columns_:
        command += [] if name in names else ["--feature", name]
    return [*command, *arguments_of(model), "-o", "model.dyads"]


def _order(model: Any) -> str | None:
    """The order of labels that are text, as `dyads fit --order` takes it; None for other labels."""
    if not hasattr(model, "predict_mean") or model.classes_.dtype.kind != "U":
        return None
    labels, line = model.classes_.tolist(), io.StringIO()
    has_spaces = any(label.startswith(" ") for label in labels)
    csv.writer(line, quoting=csv.QUOTE_ALL if has_spaces else csv.QUOTE_MINIMAL, lineterminator="").writerow(labels)
    return line.getvalue()


def encode(
    tables: Annotated[list[str], typer.Argument(help="Tables, or patterns such as 'ratings/*.parquet'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to make, the store.")],
    row: Annotated[str, typer.Option(help="Column of row ids.")],
    col: Annotated[str, typer.Option(help="Column of column ids.")],
    label: Annotated[str, typer.Option(help="Column of labels.")] = "label",
    weight: Annotated[str | None, typer.Option(help="Column of weights.")] = None,
    relation: Annotated[str | None, typer.Option(help="Column of relations.")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="Column with a feature of pairs; repeatable.")] = None,
) -> None:
    """Encode tables larger than memory into a store, a folder that `dyads fit` reads."""
    from dyads.data.store import scan

    began = time.perf_counter()
    with console.bar("Encoding"):
        store = scan(
            tables, row=row, col=col, label=label, weight=weight, relation=relation, features=feature or [], to=output
        )
    facts = {
        "store": str(output),
        "pairs": len(store),
        "rows": len(store.rows),
        "columns": len(store.cols),
        "labels": store.classes.tolist(),
        "seconds": round(time.perf_counter() - began, 2),
    }
    _show_facts(facts, as_json=False)


def describe(
    data: TableOrStore,
    row: RowColumn = None,
    col: ColColumn = None,
    label: Label = None,
    as_json: Json = False,
) -> None:
    """Check labelled pairs for problems, and suggest settings for `dyads fit`."""
    from dyads.report import doctor

    store = open_store(data, {"row": row, "col": col, "label": label})
    pairs, named = (store, None), [data]
    if store is None:
        given, label = label, label or default_label()
        try:
            table, ids = read_pairs(data, row, col, [label])
        except InputError as error:
            if given is None and str(error).endswith("with --label."):
                raise InputError(
                    f"{error} {LINKS_ALONE} use dyads fit --kind link --negatives all or sample."
                ) from error
            raise
        tell_label(given, label)
        pairs = table.select(ids), table[label]
        named += [*arguments_of(given_dialect()), "--row", ids[0], "--col", ids[1], "--label", label]
    with console.bar("Examining"):
        examined = doctor.examine(*pairs)
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
        title = f"Checked on {counted(held, 'held-out pair')} of {pairs:,}{sample}"
        console.show({"predictor": list(log_loss), "log-loss": list(log_loss.values())}, title)
    elif examined.advice is not None:
        typer.echo("Nothing was checked: there are too few pairs, or too few of each label, to hold some out.")
    if examined.advice is not None:
        typer.echo(f"Start with: dyads fit {shlex.join(named)} {examined.advice} -o model.dyads")


def register(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(cls=SettingsCommand)(console.guarded()(fit))
    for command in (predict, evaluate, recommend, similar, explain, fold_in, calibrate, describe):
        app.command(command.__name__.replace("_", "-"), cls=TableCommand)(console.guarded()(command))
    app.command()(console.guarded()(encode))
    app.command()(console.guarded()(info))


def _remove(state: Path | None) -> None:
    """Remove the state of a fit, and of the last fit of a search."""
    from dyads.estimators.selection import final_checkpoint

    if state is not None:
        state.unlink(missing_ok=True)
        Path(final_checkpoint(state)).unlink(missing_ok=True)


@contextmanager
def _checkpointed(path: Path | None, beside: bool) -> Iterator[Callable[[int, str], None]]:
    """Say on Ctrl-C that the fit can be resumed. Yields a function that says from where, at its first step.

    `beside` : whether the file lies beside the model because no other was named.
    """
    existed, first, told = path is not None and path.exists(), True, False

    def resumed(number: int, what: str) -> None:
        nonlocal first, told
        if first and existed:
            console.say(f"Resumed after {counted(number - 1, what)}, from {path}.")
        if beside and not existed and not told and path is not None and path.exists():
            console.say(f"The state of the fit is kept in {path}: if it is interrupted, the same command goes on.")
            told = True
        first = False

    try:
        yield resumed
    except KeyboardInterrupt:
        if path is None or not path.exists():
            raise
        raise KeyboardInterrupt(f"Stopped. The state of the fit is in {path}: the same command goes on.") from None
    if first and existed:
        console.say(f"The fit in {path} was complete.")


def _labelled_links(
    data: str,
    row: str | None,
    col: str | None,
    relation: str | None,
    negatives: str,
    rate: float | None,
    settings: dict[str, Any],
    kind: str,
) -> tuple[Any, Any, Any]:
    """Read a table of links: links and non-links, their labels 1 and 0, and the number that each stands for."""
    import pyarrow as pa

    from dyads.data.graph import pairs_from_graph, pairs_from_positives

    table, ids = read_pairs(data, row, col, [relation])
    if "label" in table.column_names:
        raise InputError(f"{data} has a column 'label': expected links without labels. Omit --negatives.")
    names = [*ids, *([relation] if relation else [])]
    rate, seed = 5.0 if rate is None else rate, settings.get("random_state")
    if kind in LINKS:
        directed = settings.get("structure") == "directed"
        pairs = pairs_from_graph(
            table.select(ids), directed=directed, negatives=negatives, rate=rate, random_state=seed
        )
    else:
        undirected = settings.get("structure") in ("spectral", "symmetric_mixture")
        pairs = pairs_from_positives(
            table.select(names), negatives=negatives, rate=rate, one_set=undirected, directed=not undirected,
            random_state=seed,
        )  # fmt: skip
    return pa.table(dict(zip(names, pairs.X.values(), strict=True))), pa.chunked_array([pairs.y]), pairs.weight


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


def _are_numbers(y: Any) -> bool:
    """Whether labels are numbers of three or more values."""
    import pyarrow as pa

    return (pa.types.is_integer(y.type) or pa.types.is_floating(y.type)) and len(y.drop_null().unique()) > 2


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
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:12]))
        return shown if len(value) <= 12 else f"{shown}, ... ({len(value)})"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
