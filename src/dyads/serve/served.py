"""What a served model answers: plain values in, plain values out. It knows nothing of HTTP."""

import copy
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import dyads
from dyads.data.codes import label_codes
from dyads.data.files import as_ids
from dyads.data.tables import named_arrays, read_column
from dyads.engine import CPU
from dyads.errors import InputError, UnknownIdError, shortened
from dyads.estimators.kinds import load
from dyads.report.pictures import latent_map, reliability_curves

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
logger = logging.getLogger("dyads.serve")

MAPPED = 1500
"""Most ids on a map: those with the most labels. More can neither be told apart nor drawn quickly."""

CURVES = 8
"""Most labels whose calibration is shown: the most frequent ones."""

EXACT = 2**53
"""Integers below are exact in JavaScript; larger ids are written as text."""

DIGITS = 6
"""Decimals of probabilities."""

DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""When nobody waits for an answer any more, by `time.monotonic`: long work ends there, between two batches."""

IDS_AT_ONCE = 8
"""Ids to recommend to in a batch."""


class Served:
    """A model file that answers requests.

    Every answer is a function of the file and of the request alone, but for the draws of by="thompson": nothing is
    stored, and the model is not changed.
    Ids are JSON values, or their text for ids that JSON lacks, such as dates. A pair lists its ids and further columns
    in the order of `columns`.

    Attributes
    ----------
    version, name : the first digits of the SHA-256 of the file, and its name
    columns : names of the values of a pair: row id, column id, the relation if there are several, features of pairs
    labels : the labels, in the order of probabilities
    calibration : reliability on the held-out pairs that the server was given, label by label; empty if there were none
    """

    def __init__(self, folder: Path, version: str, name: str) -> None:
        """Map the model in `folder`, as written by `publish`; the file must stay as it is. Compiles kernels."""
        model = load(folder / "model.dyads", mapped=True)
        # Requests are answered beside each other, each on one thread.
        model.engine, model.unknown = CPU(threads=1), "raise"
        # Tables of the answers are Arrow tables.
        model.library_ = None
        self.version, self.name, self._folder = version, name, folder
        self._model, self._averaging = model, copy.copy(model)
        self._averaging.unknown = "prior"
        self._foldable = copy.copy(model)
        if model.record_.known.walk is None:
            # Joining one row with the pairs of the fit, only to leave them out, would take longer than all else.
            self._foldable.record_ = replace(model.record_, known=replace(model.record_.known, seen=None))
        self._ids = list(model.record_.known.vocabularies)
        names = [ids.name for ids in self._ids]
        self.columns = [*names, *(name for name in model.columns_ if name not in names)]
        self.labels = model.classes_.tolist()
        # Read now: the folder goes when the model after next comes, and requests may still be answered by this one.
        held_out = folder / "calibration.json"
        self.calibration: Json = json.loads(held_out.read_text()) if held_out.exists() else {"pairs": 0, "curves": []}
        encoder = model.record_.known.dyad_encoder
        encodings = {} if encoder is None else {column.name: column for column in encoder.columns}
        self._features = {name: encodings[name] for name in self.columns[len(self._ids) :]}
        self._maps: dict[str, Json] = {}
        self._unused: dict[int, pa.Array] = {}
        self._drawing = Lock()
        self._try_out()

    def _try_out(self) -> None:
        """Answer each kind of request once: compiles kernels, or loads them from disk; shows what can be answered."""
        # The last column: of nodes, it is another one than the first row.
        ids = [
            plain(vocabulary.ids[-1:] if at == 1 else vocabulary.ids[:1])[0] for at, vocabulary in enumerate(self._ids)
        ]
        kind = next(iter(ids[2:]), None)
        self.search("row", "", 1)
        pair = [*ids, *(None for _ in self._features)]
        self.predict([pair])
        self.explain([pair])
        self._can: Json = {"recommend": not self._features, "fold_in": [], "suppose": [], "map": False}
        if self._features:
            return
        for place, side in enumerate(("row", "col")):
            line = [*_without(ids, place), self.labels[-1]]
            questions: dict[str, Callable[[], Any]] = {
                "fold_in": partial(self.fold_in, [line], side, n=1, relation=kind),
                "suppose": partial(self.fold_in, [line], side, ids[place], n=1, relation=kind),
            }
            self._can |= {can: [*self._can[can], *([side] if _answers(ask) else [])] for can, ask in questions.items()}
        self._can["map"] = _answers(partial(self.map, "row"))

    # ------------------------------------------------------------------------------------------------------ questions

    def describe(self) -> Json:
        """What the model is."""
        model, record = self._model, self._model.record_
        rows, cols = record.known.rows, record.known.cols
        return {
            "name": self.name,
            "version": self.version,
            "library": dyads.__version__,
            "estimator": type(model).__name__,
            "structure": model.structure_,
            "rank": record.parts.rank,
            "columns": self.columns,
            "labels": self.labels,
            "ordered": hasattr(model, "predict_mean"),
            "by": self.by,
            "n_rows": len(rows),
            "n_cols": len(cols),
            "relations": [] if record.known.relations is None else plain(record.known.relations.ids),
            "one_set": record.known.one_set,
            "pairs": model.trained_on_["pairs"],
            "draws": len(record.draws) if record.is_posterior else 0,
            "calibrated": record.calibrator is not None,
            "held_out_log_loss": model.held_out_.get("model"),
            "can": self._can,
        }

    def predict(self, pairs: Sequence[Sequence[Any]], unknown: str = "raise") -> Json:
        """Probabilities of all labels of each pair, and the label that `predict` chooses."""
        with self._under(unknown) as model:
            return self._predicted(model.predictions(self._table(pairs)))

    def intervals(self, pairs: Sequence[Sequence[Any]], level: float = 0.9, unknown: str = "raise") -> Json:
        """Credible intervals of the probabilities; of a posterior only."""
        with self._under(unknown) as model:
            bounds = model.predict_interval(self._table(pairs), level)
        return {"labels": self.labels, "low": rounded(bounds[..., 0]), "high": rounded(bounds[..., 1])}

    def explain(self, pairs: Sequence[Sequence[Any]], unknown: str = "raise") -> Json:
        """The additive parts of the log-odds of each label, for each pair."""
        with self._under(unknown) as model:
            table = named_arrays(model.explain(self._table(pairs)))
        n_labels = len(self.labels)
        values = table["value"].astype(float).reshape(-1, n_labels)
        names, dyad = table["part"][::n_labels], table["dyad"][::n_labels]
        parts: list[list[Json]] = [[] for _ in pairs]
        for at, name, value in zip(dyad.tolist(), names.tolist(), rounded(values), strict=True):
            parts[at].append({"part": name, "values": value})
        return {"labels": self.labels, "parts": parts}

    def recommend(
        self,
        ids: Sequence[Any],
        side: str = "row",
        n: int = 10,
        by: Any = None,
        candidates: Sequence[Any] | None = None,
        exclude: Sequence[Sequence[Any]] = (),
        with_seen: bool = False,
        relation: Any = None,
        unknown: str = "raise",
    ) -> Json:
        """The best partners of each id, best first."""
        self._refuse_features()
        place = 0 if side == "row" else 1
        asked = self._typed(ids, place) if unknown == "prior" else self._known(ids, place)
        offered = None if candidates is None else self._known(candidates, 1 - place)
        excluded = self._table(exclude) if exclude else None
        # Unknown ids have one list, for nothing tells them apart; but Thompson sampling draws one for each.
        alike = self._ids[place].encode(asked)
        if by == "thompson" and by not in self.labels:
            alike = asked.dictionary_encode().indices.to_numpy(zero_copy_only=False)
        _, first, which = np.unique(alike, return_index=True, return_inverse=True)
        distinct, lists = asked.take(pa.array(first)), list[list[Json]]()
        with self._under(unknown) as model:
            for begin in range(0, len(distinct), IDS_AT_ONCE):
                if time.monotonic() > DEADLINE.get():
                    raise TimeoutError
                few = distinct.slice(begin, IDS_AT_ONCE)
                table = model.recommend(
                    few if side == "row" else None,
                    n,
                    self._worth(by),
                    cols=few if side == "col" else None,
                    candidates=offered,
                    exclude=excluded,
                    with_seen=with_seen,
                    relation=self._relation(relation),
                )
                lists += self._ranked(table, place, few)
        return {"recommended": [lists[at] for at in which.tolist()]}

    def similar(self, ids: Sequence[Any], side: str = "row", n: int = 10) -> Json:
        """The ids of the same side whose predicted labels are most like those of each id."""
        self._refuse_features()
        asked = self._known(ids, 0 if side == "row" else 1)
        _, first, which = np.unique(asked.dictionary_encode().indices, return_index=True, return_inverse=True)
        distinct = asked.take(pa.array(first))
        lists = self._ranked(self._model.similar(distinct, n, side), 0, distinct)
        return {"recommended": [lists[at] for at in which.tolist()]}

    def fold_in(
        self,
        labels: Sequence[Sequence[Any]],
        side: str = "row",
        id: Any = None,
        n: int = 10,
        by: Any = None,
        partners: Sequence[Any] | None = None,
        relation: Any = None,
    ) -> Json:
        """What would be if a new row, or a known one, had these labels: its best partners, and predictions.

        `labels` : for each label the partner, then further values of a pair if any, and the label
        `id` : a known id, by default a new one
        `partners` : ids to predict; without them there are only recommendations
        """
        self._refuse_features()
        place = 0 if side == "row" else 1
        new = id is None
        asked = self._new_id(place) if new else self._known([id], place)
        width = len(self.columns)
        if any(len(line) != width for line in labels):
            raise InputError(
                f"A label does not have {width} values: expected {', '.join(self.columns[1 - place : 2 - place])}"
                f"{''.join(f', {name}' for name in self.columns[2:])} and the label. Write them in this order."
            )
        if not labels and new:
            raise InputError("There are no labels: expected at least one for a new id. Add a label.")
        self._known([line[0] for line in labels], 1 - place)
        pairs = self._table([_with(line[:-1], None, place) for line in labels], {place: asked})
        model = self._model
        if new:
            model = copy.copy(self._foldable).fold_in(pairs, [line[-1] for line in labels], side=side)
        elif labels:
            model = model.suppose(pairs, [line[-1] for line in labels], side=side)
        table = model.recommend(
            asked if side == "row" else None,
            n,
            self._worth(by),
            cols=asked if side == "col" else None,
            exclude={name: pairs[name] for name in self.columns[: len(self._ids)]} if labels else None,
            with_seen=new and self._foldable.record_.known.seen is None,
            relation=self._relation(relation),
        )
        answer: Json = {"recommended": self._ranked(table, place, asked)[0]}
        if partners is not None:
            self._known(partners, 1 - place)
            kind = [] if relation is None else [relation]
            predicted = model.predictions(
                self._table([_with([other, *kind], None, place) for other in partners], {place: asked})
            )
            answer |= self._predicted(predicted)
        return answer

    def search(self, side: str, text: str, limit: int = 20) -> Json:
        """Known ids that contain a text: the same text first, then those that begin with it, then by their labels."""
        entities = self._entities(side)
        texts = self._row_texts if side == "row" else self._col_texts
        found = np.flatnonzero(pc.match_substring(texts, text, ignore_case=True).to_numpy(zero_copy_only=False))
        near = texts.take(pa.array(found))
        same = pc.equal(near, text).to_numpy(zero_copy_only=False)
        begins = pc.starts_with(near, text, ignore_case=True).to_numpy(zero_copy_only=False)
        order = np.lexsort((-entities.counts[found], ~begins, ~same))[:limit]
        chosen = found[order]
        return {
            "column": entities.ids.name,
            "ids": plain(entities.ids.ids.take(pa.array(chosen))),
            "n_labels": entities.counts[chosen].tolist(),
            "n_found": len(found),
        }

    def map(self, side: str) -> Json:
        """Places of the ids with the most labels, where near ids have similar labels; see `latent_map`."""
        with self._drawing:
            if side not in self._maps:
                counts = self._entities(side).counts
                most = np.sort(np.argsort(-counts, kind="stable")[:MAPPED])
                place, share = latent_map(self._model, side)
                self._maps[side] = {
                    "column": self._entities(side).ids.name,
                    "ids": plain(self._entities(side).ids.ids.take(pa.array(most))),
                    "n_labels": counts[most].tolist(),
                    "x": rounded(place[most, 0]),
                    "y": rounded(place[most, 1]),
                    "shares": rounded(share[:2]),
                }
        return self._maps[side]

    # ------------------------------------------------------------------------------------------------------- answers

    @property
    def by(self) -> Any:
        """What to rank by unless told: None, for the expected value, or a label if these have no order."""
        ordered = hasattr(self._model, "predict_mean") or not isinstance(self.labels[0], str)
        return None if ordered else self.labels[-1 if len(self.labels) == 2 else 0]

    def _worth(self, by: Any) -> Any:
        """What to rank by, where it was not told."""
        return by if by is not None else "mean" if self.by is None else self.by

    def _relation(self, relation: Any) -> Any:
        """A relation of JSON as the model has it; the model refuses one that it does not have."""
        return relation if relation is None or len(self._ids) < 3 else self._typed([relation], 2)[0].as_py()

    def _entities(self, side: str) -> Any:
        known = self._model.record_.known
        return known.rows if side == "row" else known.cols

    def _new_id(self, place: int) -> pa.Array:
        if place not in self._unused:
            self._unused[place] = _unused(self._ids[place].ids)
        return self._unused[place]

    @cached_property
    def _row_texts(self) -> pa.Array:
        return _texts(self._ids[0].ids)

    @cached_property
    def _col_texts(self) -> pa.Array:
        return _texts(self._ids[1].ids)

    def _typed(self, ids: Sequence[Any], place: int) -> pa.Array:
        """Ids of JSON as ids of the model's type."""
        name, kind = self._ids[place].name, self._ids[place].ids.type
        texts = all(isinstance(value, str) for value in ids)
        if ids and texts and not pa.types.is_large_string(kind):
            return as_ids([str(value) for value in ids], kind, name)
        if pa.types.is_floating(kind):
            # JavaScript writes 1.0 as 1.
            ids = [float(value) if type(value) is int else value for value in ids]
        elif pa.types.is_large_string(kind) and not texts:
            wrong = next(value for value in ids if not isinstance(value, str))
            raise InputError(f"Got the id {wrong!r} in column {name!r}: expected text, as in the fit. Quote it.")
        return read_column(list(ids), f"column {name!r}")

    def _known(self, ids: Sequence[Any], place: int) -> pa.Array:
        """Ids of JSON, which must be known."""
        typed = self._typed(ids, place)
        codes = self._ids[place].encode(typed)
        if len(unknown := typed.filter(pa.array(codes < 0)).to_pylist()):
            raise UnknownIdError(
                f"Of {len(ids)} ids in column {self._ids[place].name!r}, {len(unknown)} were not seen in training "
                f"({shortened(unknown)}): expected known ids. Leave them out."
            )
        return self._ids[place].ids.take(pa.array(codes))

    @contextmanager
    def _under(self, unknown: str) -> Iterator[Any]:
        """The model under a policy for unknown ids; what it says of them becomes a sentence about the request."""
        try:
            yield self._averaging if unknown == "prior" else self._model
        except UnknownIdError as error:
            what = str(error).split(": expected")[0]
            raise UnknownIdError(
                f'{what}: expected known ids. Leave them out, or ask with "unknown": "prior".'
            ) from error

    def _refuse_features(self) -> None:
        if self._features:
            raise InputError(
                f"The model has features of pairs ({', '.join(list(self._features)[:3])}), which nobody knows for "
                "other pairs: expected a model without them. Ask for predictions of pairs with their features."
            )

    def _predicted(self, predicted: Any) -> Json:
        return {
            "labels": self.labels,
            "probabilities": rounded(predicted.proba),
            "predicted": predicted.labels.tolist(),
            "mean": rounded(predicted.mean) if hasattr(self._model, "predict_mean") else None,
        }

    def _table(self, pairs: Sequence[Sequence[Any]], given: dict[int, pa.Array] | None = None) -> dict[str, Any]:
        """Pairs as columns; `given` : one id that stands for all values of a column, by its place."""
        width = len(self.columns)
        if any(len(pair) != width for pair in pairs):
            wrong = next(len(pair) for pair in pairs if len(pair) != width)
            raise InputError(
                f"A pair has {wrong} values: expected {width}, {', '.join(self.columns)}. Write them in this order."
            )
        columns = list(zip(*pairs, strict=True)) or [()] * width
        table: dict[str, Any] = {}
        for place, (name, values) in enumerate(zip(self.columns, columns, strict=True)):
            if given and place in given:
                table[name] = given[place].take(pa.array(np.zeros(len(pairs), np.int64)))
            else:
                is_id = place < len(self._ids)
                table[name] = self._typed(values, place) if is_id else _feature(values, self._features[name])
        return table

    def _ranked(self, table: pa.Table, place: int, asked: pa.Array) -> list[list[Json]]:
        """A table of recommendations, or of similar ids, as a list for each of the distinct ids that were asked for."""
        lines = zip(
            pc.index_in(table.column(place).combine_chunks(), value_set=asked).to_pylist(),
            plain(table.column(1 - place).combine_chunks()),
            table["rank"].to_pylist(),
            rounded(table["value"].to_numpy()),
            strict=True,
        )
        lists: list[list[Json]] = [[] for _ in asked]
        for at, partner, rank, value in lines:
            lists[at].append({"id": partner, "rank": rank, "value": value})
        return lists


def _answers(ask: Callable[[], Any]) -> bool:
    """Whether a question can be answered, rather than refused."""
    try:
        ask()
    except InputError as error:
        logger.debug("The model cannot be asked this: %s", error)
        return False
    return True


def _feature(values: Sequence[Any], column: Any) -> Any:
    """A feature of pairs in JSON as a column of the type that it had in the fit: dates are text, null is missing."""
    kind = column.kind
    try:
        if kind == "dates":
            return pa.array(values, pa.string()).cast(pa.timestamp("us"))
        # Arrow would read a text as the list of its characters.
        if kind.startswith("lists of") and not any(isinstance(value, str) for value in values):
            return pa.array(values, pa.large_list(column.categories.type))
        if kind.startswith("categories"):
            return pa.array(values, column.categories.type).dictionary_encode()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"Column {column.name!r} cannot be read ({reason}): expected {kind}, as in the fit."
        ) from error
    return list(values)


def _without(values: Sequence[Any], place: int) -> list[Any]:
    return [*values[:place], *values[place + 1 :]]


def _with(values: Sequence[Any], own: Any, place: int) -> list[Any]:
    """The values of a pair, with an id at its place among them."""
    return [*values[:place], own, *values[place:]]


def rounded(values: Array) -> Any:
    """Numbers with the decimals of an answer, as lists."""
    return np.round(values, DIGITS).tolist()


def plain(ids: pa.Array) -> list[Any]:
    """Ids as JSON values: numbers and booleans that JSON can hold exactly as such, all others as text."""
    kind = ids.type
    if pa.types.is_boolean(kind) or pa.types.is_large_string(kind) or pa.types.is_floating(kind):
        return list(ids.to_pylist())
    if pa.types.is_integer(kind):
        return [value if abs(value) < EXACT else str(value) for value in ids.to_pylist()]
    return list(_texts(ids).to_pylist())


def _texts(ids: pa.Array) -> pa.Array:
    try:
        return ids.cast(pa.large_string())
    except pa.ArrowException:
        return pa.array([str(value) for value in ids.to_pylist()], pa.large_string())


def _unused(ids: pa.Array) -> pa.Array:
    """One id, of the type of `ids`, that is not among them."""
    kind = ids.type
    if pa.types.is_large_string(kind):
        longest = pc.max(pc.binary_length(ids)).as_py() or 0
        return pa.array(["x" * (longest + 1)], kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        # Of n + 1 numbers, n ids leave one.
        small = np.arange(len(ids) + 1, dtype=kind.to_pandas_dtype())
        return pa.array(np.setdiff1d(small, ids.to_numpy())[:1], kind)
    raise InputError(f"The ids are of type {kind}: expected text or numbers to fold in a new id. Use a known id.")


def calibration_of(model: Any, X: Any, y: Any, sample_weight: Any = None) -> Json:
    """Reliability of a model on labelled pairs that were not used for training, for the page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proba = model.predict_proba(X)
    truth = label_codes(y, model.classes_)[:, None] == np.arange(len(model.classes_))
    most = np.sort(np.argsort(-truth.sum(axis=0), kind="stable")[:CURVES])
    curves = reliability_curves(truth[:, most], proba[:, most], sample_weight)
    return {
        "pairs": len(truth),
        "curves": [
            {
                "label": label,
                **{
                    name: rounded(part)
                    for name, part in zip(("predicted", "observed", "low", "high"), curve, strict=True)
                },
            }
            for label, curve in zip(model.classes_[most].tolist(), curves, strict=True)
        ],
    }
