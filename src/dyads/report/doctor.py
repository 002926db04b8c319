"""A look at a table of labelled pairs before anything is fitted: what is odd in it, and what to begin with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dyads.data.codes import Vocabulary, encode_labels
from dyads.data.observations import read_id_columns
from dyads.estimators.kinds import LFLClassifier, LFLOrdinal
from dyads.estimators.selection import vanishing_l2
from dyads.solve import LBFGS

Array = np.ndarray[Any, Any]

FEW = 5
"""Labels below which little is known of an id."""

LOOKED_AT = 100_000
"""Most pairs that the suggested penalty is found from."""


@dataclass(frozen=True)
class Examined:
    """What was found: figures by name, sentences on what is odd, and options of ``dyads fit`` to begin with."""

    facts: dict[str, Any]
    findings: list[str]
    advice: str


def examine(X: Any, y: Any) -> Examined:
    """Look at a table of row ids and column ids, and their labels."""
    (row_ids, row_name), (col_ids, col_name) = read_id_columns(X, (None, None))
    rows, row = Vocabulary.of(row_ids, row_name)
    cols, col = Vocabulary.of(col_ids, col_name)
    classes, label = encode_labels(y, at_least=1)
    n, shares = len(label), np.bincount(label) / len(label)
    facts: dict[str, Any] = {
        "pairs": f"{n:,}",
        f"rows ({row_name})": f"{len(rows):,}, with {_spread(row)} labels each",
        f"columns ({col_name})": f"{len(cols):,}, with {_spread(col)} labels each",
        "filled": f"{_n_cells(row, col) / (len(rows) * len(cols)):.2%} of all pairs",
        "labels": ", ".join(f"{name} {share:.1%}" for name, share in zip(classes.tolist(), shares, strict=True)),
    }
    findings = [*_repeated(row, col, label), *_clashes(rows), *_clashes(cols), *_skew(classes, shares)]
    for vocabulary, codes in ((rows, row), (cols, col)):
        counts = np.bincount(codes)
        few = (counts < FEW).mean()
        if few > 0.2:
            findings.append(
                f"{few:.0%} of the ids of {vocabulary.name!r} have fewer than {FEW} labels: features of them would "
                "help most."
            )
    n_parts, part = _parts(row, col, len(rows), len(cols))
    facts["connected parts"] = n_parts
    if n_parts > 1:
        largest = np.bincount(part[row]).max() / n
        findings.append(
            f"The pairs fall into {n_parts} parts without a common id, the largest with {largest:.1%} of them: between "
            "parts only biases and features tell anything."
        )
    advice = _advice(rows, cols, row, col, classes, label)
    return Examined(facts, findings, advice)


def _spread(codes: Array) -> str:
    low, middle, high = np.quantile(np.bincount(codes), [0, 0.5, 1]).astype(int)
    return f"{low:,} to {high:,} (median {middle:,})"


def _n_cells(row: Array, col: Array) -> int:
    """How many different pairs there are."""
    return len(np.unique(row.astype(np.int64) * (int(col.max()) + 1) + col))


def _repeated(row: Array, col: Array, label: Array) -> list[str]:
    """Pairs that occur again, with the same label or with another."""
    n_cells = _n_cells(row, col)
    n_again = len(row) - n_cells
    if not n_again:
        return []
    n_other = len(np.unique(np.column_stack([row, col, label]), axis=0)) - n_cells
    return [
        f"{n_again:,} lines repeat a pair that was there before, {n_other:,} of them with another label: each counts "
        "as an observation of its own. Drop them if they are mistakes."
    ]


def _clashes(vocabulary: Vocabulary) -> list[str]:
    """Ids that look like the same thing written otherwise."""
    if not (pa.types.is_large_string(vocabulary.ids.type) or pa.types.is_string(vocabulary.ids.type)):
        return []
    found = []
    ids = vocabulary.ids
    plain = pc.sum(pc.match_substring_regex(ids, r"^-?[0-9]+$")).as_py() or 0
    if 0 < plain < len(ids):
        found.append(
            f"The ids of {vocabulary.name!r} are numbers and text mixed, {plain:,} of {len(ids):,} being numbers: all "
            "are taken as text, so '62' and '062' differ."
        )
    same = len(ids) - len(pc.utf8_lower(pc.utf8_trim_whitespace(ids)).unique())
    if same:
        found.append(
            f"{same:,} ids of {vocabulary.name!r} differ from another one by capitals or spaces alone: they are taken "
            "for different ones."
        )
    return found


def _skew(classes: Array, shares: Array) -> list[str]:
    found = []
    if len(classes) == 1:
        found.append(
            f"All labels are {classes.tolist()[0]!r}: there is nothing to learn. Add pairs with another label."
        )
    elif shares.max() > 0.95:
        found.append(
            f"{shares.max():.1%} of the labels are {classes.tolist()[int(shares.argmax())]!r}: judge a model by its "
            "log-loss or AUC, not by its accuracy."
        )
    if len(classes) > 30:
        found.append(f"There are {len(classes)} labels: if they are measurements, put them into few bins first.")
    return found


def _parts(row: Array, col: Array, n_rows: int, n_cols: int) -> tuple[int, Array]:
    graph = coo_array((np.ones(len(row)), (row, n_rows + col)), shape=(n_rows + n_cols, n_rows + n_cols))
    n_parts, part = connected_components(graph, directed=False)
    return int(n_parts), part


def _advice(rows: Vocabulary, cols: Vocabulary, row: Array, col: Array, classes: Array, label: Array) -> str:
    """A rank that the labels of an id can carry, and a penalty by the strength at which latent weights vanish."""
    if len(classes) < 2:
        return ""
    ordered = len(classes) > 2 and classes.dtype.kind in "iuf"
    n_each = len(label) / max(len(rows), len(cols))
    rank = int(np.clip(n_each / 4, 1, 10))
    some = np.arange(len(label))
    if len(some) > LOOKED_AT:
        kept = np.random.default_rng(0).permutation(len(rows))[: max(1, int(len(rows) * LOOKED_AT / len(some)))]
        some = np.flatnonzero(np.isin(row, kept))
    pairs = np.column_stack([row[some], col[some]])
    if len(np.unique(label[some])) < 2:
        return f"--kind {'ordinal' if ordered else 'nominal'} --rank {rank}"
    kind = LFLOrdinal if ordered else LFLClassifier
    strength = vanishing_l2(kind(solver=LBFGS(max_iter=50), random_state=0), pairs, classes[label[some]]) / 8
    l2 = float(f"{np.clip(strength, 0.1, 30):.1g}")
    return f"--kind {'ordinal' if ordered else 'nominal'} --rank {rank} --l2 {l2:g}"
