"""What the command reads: models and tables, which of their columns are used; and `dyads split`."""

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dyads.cli import console
from dyads.cli.console import Usage
from dyads.cli.options import TableCommand, given_dialect
from dyads.data.files import UNIT, check_columns
from dyads.errors import InputError, counted

Table = Annotated[
    str, typer.Argument(help="Table of pairs: CSV, TSV, Parquet or Arrow; - reads CSV from standard input.")
]
TableOrStore = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="Table of pairs: CSV, TSV, Parquet or Arrow, - for standard input; or a store, a folder."
    ),
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
Label = Annotated[
    str | None,
    typer.Option(
        "--label", help="Column of labels [default: as in the fit of the model, if any; label; without a header 3]."
    ),
]
Weight = Annotated[
    str | None,
    typer.Option(
        "--weight",
        help="Column of weights; a pair of weight 2 counts twice [default: as in the fit of the model, if any].",
    ),
]
RowFeatures = Annotated[str | None, typer.Option("--row-features", help="Table of row features, keyed by id.")]
ColFeatures = Annotated[str | None, typer.Option("--col-features", help="Table of column features, keyed by id.")]
Output = Annotated[str, typer.Option("--output", "-o", help="File to write; - writes CSV to standard output.")]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_model(path: Path) -> Any:
    """Load a model file."""
    from dyads.estimators.kinds import load

    if not path.is_file():
        raise InputError(f"There is no file {path}: expected a model file written by `dyads fit`.")
    return load(path)


def read(path: str, types: Callable[[list[str]], Any] = lambda names: {}, *, may_be_empty: bool = False) -> Any:
    """Read a whole table in the dialect given as options, and say what was found in the file."""
    from dyads.data.files import read_table

    with console.warned():
        return read_table(path, types, given_dialect(), may_be_empty=may_be_empty)


def read_pairs(data: str, row: str | None, col: str | None, others: Sequence[str | None]) -> tuple[Any, list[str]]:
    """Read a whole table of pairs, and return it with the names of its two id columns.

    Id columns that are not named are the first columns that no option names. `others` are the columns with other
    content, labels first; the third of them, if any, holds relations, which are read as ids too.
    """
    ids: list[str] = []

    def types(names: list[str]) -> dict[str, Any]:
        check_columns(data, names, [name for name in (row, col, *others[1:]) if name])
        _check_label(data, names, next(iter(others), None))
        unnamed = (name for name in names if name and name not in (row, col, *others))
        ids[:] = [name for name in (row or next(unnamed, None), col or next(unnamed, None)) if name]
        if len(ids) < 2:
            raise Usage(f"Cannot find two id columns among {names}: name them with --row and --col.")
        return dict.fromkeys([*ids, *(name for name in others[2:3] if name)])

    table = read(data, types)
    if not ids:
        types(table.column_names)
    return table, ids


def _check_label(data: str, names: Sequence[str], label: str | None) -> None:
    check_columns(data, names, [label] if label else [], "Name the column of labels with --label.")


def default_label() -> str:
    """Column of labels if none is named: the third of a table without a header, otherwise that called label."""
    return "label" if given_dialect().header is not False else "3"


def tell_label(given: str | None, label: str) -> None:
    """Say which column of a table without a header has the labels, unless it was given."""
    if given is None and given_dialect().header is False:
        console.say(f"The labels are those of column {label}: name another column with --label.")


def weights_of(table: Any, weight: str | None) -> Any:
    import pyarrow as pa

    if weight is None:
        return None
    kind = table[weight].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or table[weight].null_count:
        raise InputError(
            f"The weight column {weight!r} has missing or non-numeric values: expected a number in every line."
        )
    return table[weight].to_numpy()


def is_store(path: str) -> bool:
    """Whether a path is that of a store: a folder, or an address of object storage."""
    return os.path.isdir(path) or "://" in path


def open_store(path: str, options: Mapping[str, Any]) -> Any:
    """Open a store if the path is that of one, else return None; `options` : those that a store does not take."""
    from dyads.data.store import Store

    if not is_store(path):
        return None
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise Usage(f"{path} is a store, which has its own columns: omit {' and '.join(given)}.")
    return Store(path)


def read_labelled(model: Any, data: str, label: str | None, weight: str | None) -> tuple[Any, Any, Any]:
    """Read pairs (the columns the model was fitted on), their labels and their weights.

    Labels and weights are by default in the columns that had them in the fit. A store is read whole.
    """
    import pyarrow as pa

    store = open_store(data, {"label": label, "weight": weight})
    if store is not None:
        return store.lines(np.arange(len(store)))  # type: ignore[no-any-return]
    given, label = label, label or model.trained_on_["label"] or default_label()
    types = types_of(model) | ({label: pa.string()} if model.classes_.dtype.kind == "U" else {})
    table = read(data, lambda names: types)
    names = table.column_names
    check_columns(data, names, [*model.columns_, *([weight] if weight else [])])
    _check_label(data, names, label)
    if weight is None and (weight := model.trained_on_["weight"]) is not None and weight not in names:
        console.say(f"{data} has no column {weight!r}, which had the weights of the fit: all weights are one.")
        weight = None
    tell_label(given or model.trained_on_["label"], label)
    return table.select(model.columns_), table[label], weights_of(table, weight)


def names_of(model: Any) -> list[str]:
    return [vocabulary.name for vocabulary in model.record_.known.vocabularies]


def id_types(model: Any) -> dict[str, Any]:
    return {vocabulary.name: vocabulary.ids.type for vocabulary in model.record_.known.vocabularies}


def types_of(model: Any) -> dict[str, Any]:
    """Types of the columns the model was fitted on: ids and features of pairs."""
    encoder = model.record_.known.dyad_encoder
    return ({} if encoder is None else encoder.types) | id_types(model)


def read_features(path: str, ids: str, kind: Any = None, types: Mapping[str, Any] | None = None) -> Any:
    """Read a table of features, keyed by its column `ids` or, without one, by its first column.

    `kind` is the type of the ids, `types` are the types of the features that a model was fitted on.
    """
    from dyads.data.features import Features

    def key(names: list[str]) -> str:
        return ids if ids in names else names[0]

    table = read(path, lambda names: {**(types or {}), key(names): kind})
    return Features(table, key(table.column_names))


def new_features(model: Any, row_features: str | None, col_features: str | None) -> dict[str, Any]:
    """Read tables of features as keyword arguments of a prediction method."""
    tables = {}
    for side, path, (ids, kind) in zip(
        ("row", "col"), (row_features, col_features), id_types(model).items(), strict=False
    ):
        encoder = getattr(model.record_.known, f"{side}s").encoder
        types = {} if encoder is None else encoder.types
        tables[f"{side}_features"] = None if path is None else read_features(path, ids, kind, types)
    return tables


def read_ids(path: str, vocabulary: Any) -> Any:
    """Read distinct ids from a file: from the column named as in the model or, without one, from the first."""

    def key(names: list[str]) -> str:
        return vocabulary.name if vocabulary.name in names else names[0]

    table = read(path, lambda names: {key(names): vocabulary.ids.type}, may_be_empty=True)
    return table[key(table.column_names)].unique()


def read_excluded(path: str, model: Any) -> Any:
    names = names_of(model)
    table = read(path, lambda _: id_types(model), may_be_empty=True)
    check_columns(path, table.column_names, names[:2])
    return table.select([name for name in names if name in table.column_names])


# ------------------------------------------------------------------------------------------------------------- split


class By(StrEnum):
    """What `dyads split` holds out."""

    random = "random"
    row = "row"
    time = "time"


def split(
    data: TableOrStore,
    test: Annotated[float, typer.Option(help="Share of the pairs, or of the rows, to hold out.")] = 0.2,
    by: Annotated[
        By, typer.Option(help="Hold out random pairs, all pairs of random rows (row), or the latest pairs (time).")
    ] = By.random,
    row: RowColumn = None,
    time: Annotated[str | None, typer.Option(help="Column of times, numbers or ISO dates (--by time).")] = None,
    train_output: Annotated[
        str | None, typer.Option(help="File to write the pairs to train on to [default: TABLE-train].")
    ] = None,
    test_output: Annotated[
        str | None, typer.Option(help="File to write the pairs to test on to [default: TABLE-test].")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")] = 0,
    force: Force = False,
) -> None:
    """Split a table into two files of the same format, or a store into two: pairs to train and pairs to test on."""
    import pyarrow as pa

    from dyads.data.files import find_dialect, open_writer, read_table
    from dyads.data.split import latest_share, random_share

    if not 0 < test < 1:
        raise Usage(f"Got --test {test:g}: expected a share between 0 and 1, such as 0.2.")
    if (time is not None) != (by == "time"):
        raise Usage("--time and --by time require each other: give both or neither.")
    if row is not None and by != "row":
        raise Usage("--row is for --by row: give both or neither.")
    store = open_store(data, {"row": row, "time": time, "force": force})
    if data == "-" or (store is None and os.path.exists(data) and not os.path.isfile(data)):
        raise Usage(f"{data} cannot be split, since it is read twice: give the name of a file.")
    root, suffix = os.path.splitext(data.rstrip("/") if store else data.removesuffix(".gz"))
    outputs = [train_output or f"{root}-train{suffix}", test_output or f"{root}-test{suffix}"]
    if store is not None:
        _split_store(store, by, test, seed, outputs)
        return
    for output, other in zip(outputs, reversed(outputs), strict=True):
        if os.path.splitext(output)[1].lower() != suffix.lower():
            raise Usage(f"The output {output} has another extension than {data}: expected {suffix}.")
        console.check_output(output, force, inputs=[data, other])
    with console.warned():
        dialect = find_dialect(data, given_dialect())
        # As text, every value is written as it was read.
        table = read_table(data, lambda names: dict.fromkeys(names, pa.string()), dialect)
    check_columns(data, table.column_names, [name for name in (row, time) if name])
    row = row or table.column_names[0]
    held_out = (
        latest_share(_times(table[time], time), test)
        if time
        else random_share(table[row] if by == "row" else np.arange(table.num_rows), test, seed)
    )
    _check_parts(held_out, outputs)
    for output, mask in zip(outputs, (~held_out, held_out), strict=True):
        quoted = dialect.separator is not None and _needs_quotes(table, dialect.separator)
        with open_writer(output, table.column_names, dialect, quoted) as write:
            write(table.filter(mask))
    _tell_parts(held_out, outputs)


def _split_store(store: Any, by: str, test: float, seed: int, outputs: Sequence[str]) -> None:
    """Write two stores."""
    from dyads.data.split import chosen_share

    for output in outputs:
        if os.path.exists(output) or outputs.count(output) > 1:
            raise Usage(f"{output} exists, or is named twice: expected the names of two new folders.")
    held_out = chosen_share(len(store.rows) if by == "row" else len(store), test, seed)
    held_out = held_out[store.dyads.row] if by == "row" else held_out
    _check_parts(held_out, outputs)
    with console.bar("Splitting"):
        for output, mask in zip(outputs, (~held_out, held_out), strict=True):
            store.take(mask, to=output)
    _tell_parts(held_out, outputs)


def _check_parts(held_out: Any, outputs: Sequence[str]) -> None:
    for output, mask in zip(outputs, (~held_out, held_out), strict=True):
        if not mask.any():
            raise InputError(f"No pair would be in {output}: expected at least one in each part. Change --test.")


def _tell_parts(held_out: Any, outputs: Sequence[str]) -> None:
    n_test = int(held_out.sum())
    console.say(f"Wrote {counted(len(held_out) - n_test, 'pair')} to {outputs[0]} and {n_test:,} to {outputs[1]}.")


def _times(column: Any, name: str) -> Any:
    """Times as numbers or dates (n,)."""
    import pyarrow as pa

    kinds = [pa.int64(), pa.float64(), pa.timestamp("us")] if pa.types.is_string(column.type) else [column.type]
    for kind in kinds:
        try:
            times = column.cast(kind).to_numpy()
        except pa.ArrowInvalid:
            continue
        if not column.null_count and times.dtype.kind in "iufM" and not np.isnan(times).any():
            return times
    raise InputError(
        f"The column {name!r} has missing values, or values that are no times: expected numbers or ISO dates."
    )


def _needs_quotes(table: Any, separator: str) -> bool:
    """Whether a text of the table holds a quote or a line break, or a separator with what follows it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [column for column in table.columns if pa.types.is_string(column.type)]
    marks = [UNIT, '"', "\n", "\r"]
    if any(pc.any(pc.match_substring(column, mark)).as_py() for column in texts for mark in marks):
        return True
    # Before a separator ::, the text "a:" would be cut after "a".
    cut = (pc.find_substring(pc.binary_join_element_wise(text, separator, ""), separator) for text in texts)
    return any(
        pc.any(pc.not_equal(place, pc.binary_length(text))).as_py() for place, text in zip(cut, texts, strict=True)
    )


def register(app: typer.Typer) -> None:
    """Register the command of this module."""
    app.command(cls=TableCommand)(console.guarded()(split))
