"""Subcommands that make and change models, and look at what they are made of: tables in files, and stores."""

import csv
import dataclasses
import io
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
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
    read_features,
    read_labelled,
    read_pairs,
    tell_label,
    weights_of,
)
from dyads.cli.options import SettingsCommand, TableCommand, arguments_of, given_dialect, given_settings
from dyads.data.files import Dialect
from dyads.errors import CheckpointError, DivergenceError, InputError, counted

LINKS = ("link", "link-walk")
"""Values of ``--kind`` whose two columns are of one set of nodes."""

LINKS_ALONE = "If the table lists links alone,"

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
    from dyads.data.encode import scan

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
        typer.echo(f"To judge a model, hold pairs out first: dyads split {shlex.quote(data)}")


def register(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(cls=SettingsCommand)(console.guarded()(fit))
    for command in (fold_in, calibrate, describe):
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
    from dyads.learn.checkpoint import CHECKPOINT_SECONDS

    existed, first, told, began = path is not None and path.exists(), True, False, time.monotonic()

    def resumed(number: int, what: str) -> None:
        nonlocal first, told
        if first and existed:
            console.say(f"Resumed after {counted(number - 1, what)}, from {path}.")
        is_long = time.monotonic() - began > CHECKPOINT_SECONDS
        if beside and is_long and not existed and not told and path is not None and path.exists():
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


def _are_numbers(y: Any) -> bool:
    """Whether labels are numbers of three or more values."""
    import pyarrow as pa

    return (pa.types.is_integer(y.type) or pa.types.is_floating(y.type)) and len(y.drop_null().unique()) > 2


def _reference(text: str, y: Any) -> Any:
    """Convert the text of ``--reference`` to a label of y, "auto" or None."""
    if text == "auto":
        return text
    return None if text == "none" else {str(name): name for name in y.unique().to_pylist()}.get(text, text)


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
