"""Checks of a table of labelled pairs before a fit: problems in the data, and settings to start with."""

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

FEW_LABELS = 5
"""An id with fewer labels counts as cold. A higher limit reports more ids of sparse data, a lower one misses some."""

COLD_SHARE = 0.2
"""Share of cold ids above which features are advised: a lower share advises them more often."""

SKEWED_SHARE = 0.95
"""Share of one label above which accuracy misleads: predicting that label alone already scores as much."""

MANY_LABELS = 30
"""More distinct labels than this are probably measurements, which should be binned."""

LABELS_PER_RANK = 4
"""Labels per id for each unit of the suggested rank: a smaller number suggests richer models that overfit sooner."""

MAX_RANK = 10
"""Largest rank to suggest: a higher limit allows richer, slower first fits."""

VANISHING_FRACTION = 1 / 8
"""The suggested penalty, as a fraction of the one at which latent weights vanish: larger values underfit sooner."""

L2_RANGE = (0.1, 30.0)
"""Smallest and largest penalty to suggest, whatever the data: a guard against extremes on small or unusual tables."""

MAX_PAIRS = 100_000
"""Largest number of pairs that the penalty is estimated from: more take longer, fewer make the estimate noisier."""

MAX_ITER = 50
"""Iterations of the fit behind that estimate, which needs no exact minimum."""


@dataclass(frozen=True)
class Examined:
    """Result of `examine`: figures by name, problems as sentences, and options of ``dyads fit`` to start with."""

    facts: dict[str, Any]
    findings: list[str]
    advice: str


def examine(X: Any, y: Any) -> Examined:
    """Examine a table X of row ids and column ids, and its labels y."""
    (row_ids, row_name), (col_ids, col_name) = read_id_columns(X, (None, None))
    rows, row = Vocabulary.of(row_ids, row_name)
    cols, col = Vocabulary.of(col_ids, col_name)
    classes, label = encode_labels(y, at_least=1)
    n, shares = len(label), np.bincount(label) / len(label)
    facts: dict[str, Any] = {
        "pairs": f"{n:,}",
        f"rows ({row_name})": f"{len(rows):,}, with {_count_range(row)} labels each",
        f"columns ({col_name})": f"{len(cols):,}, with {_count_range(col)} labels each",
        "filled": f"{_n_cells(row, col) / (len(rows) * len(cols)):.2%} of all pairs",
        "labels": ", ".join(f"{name} {share:.1%}" for name, share in zip(classes.tolist(), shares, strict=True)),
    }
    findings = [*_repeated(row, col, label), *_clashes(rows), *_clashes(cols), *_skew(classes, shares)]
    for vocabulary, codes in ((rows, row), (cols, col)):
        counts = np.bincount(codes)
        cold = (counts < FEW_LABELS).mean()
        if cold > COLD_SHARE:
            findings.append(
                f"{cold:.0%} of the ids of {vocabulary.name!r} have fewer than {FEW_LABELS} labels: features of these "
                "ids would help most."
            )
    n_parts, part = _parts(row, col, len(rows), len(cols))
    facts["connected parts"] = n_parts
    if n_parts > 1:
        largest = np.bincount(part[row]).max() / n
        findings.append(
            f"The pairs form {n_parts} connected parts, which share no ids; the largest has {largest:.1%} of all "
            "pairs. Between parts, only biases and features are informative."
        )
    advice = _advice(rows, cols, row, col, classes, label)
    return Examined(facts, findings, advice)


def _count_range(codes: Array) -> str:
    low, middle, high = np.quantile(np.bincount(codes), [0, 0.5, 1]).astype(int)
    return f"{low:,} to {high:,} (median {middle:,})"


def _n_cells(row: Array, col: Array) -> int:
    """Number of distinct pairs."""
    return len(np.unique(row.astype(np.int64) * (int(col.max()) + 1) + col))


def _repeated(row: Array, col: Array, label: Array) -> list[str]:
    """Report repeated pairs, with the same or with another label."""
    n_cells = _n_cells(row, col)
    n_repeated = len(row) - n_cells
    if not n_repeated:
        return []
    n_other = len(np.unique(np.column_stack([row, col, label]), axis=0)) - n_cells
    return [
        f"{n_repeated:,} lines repeat an earlier pair, {n_other:,} of them with another label: each line counts as an "
        "observation. Remove them if they are mistakes."
    ]


def _clashes(vocabulary: Vocabulary) -> list[str]:
    """Report ids that may be two spellings of the same entity."""
    if not (pa.types.is_large_string(vocabulary.ids.type) or pa.types.is_string(vocabulary.ids.type)):
        return []
    findings = []
    ids = vocabulary.ids
    n_numbers = pc.sum(pc.match_substring_regex(ids, r"^-?[0-9]+$")).as_py() or 0
    if 0 < n_numbers < len(ids):
        findings.append(
            f"The ids of {vocabulary.name!r} mix numbers and text ({n_numbers:,} of {len(ids):,} are numbers): all are "
            "read as text, so '62' and '062' differ."
        )
    n_similar = len(ids) - len(pc.utf8_lower(pc.utf8_trim_whitespace(ids)).unique())
    if n_similar:
        findings.append(
            f"{n_similar:,} ids of {vocabulary.name!r} differ from another id only in capitals or spaces: they count "
            "as different ids. Unify their spelling if they are the same."
        )
    return findings


def _skew(classes: Array, shares: Array) -> list[str]:
    """Report labels that are all the same, nearly all the same, or too many."""
    findings = []
    if len(classes) == 1:
        findings.append(
            f"All labels are {classes.tolist()[0]!r}: there is nothing to learn. Add pairs with another label."
        )
    elif shares.max() > SKEWED_SHARE:
        findings.append(
            f"{shares.max():.1%} of the labels are {classes.tolist()[int(shares.argmax())]!r}: judge a model by its "
            "log-loss or AUC, not by its accuracy."
        )
    if len(classes) > MANY_LABELS:
        findings.append(f"There are {len(classes)} distinct labels: if they are measurements, bin them first.")
    return findings


def _parts(row: Array, col: Array, n_rows: int, n_cols: int) -> tuple[int, Array]:
    """Number of connected components of the graph of pairs, and the component of each row and column."""
    graph = coo_array((np.ones(len(row)), (row, n_rows + col)), shape=(n_rows + n_cols, n_rows + n_cols))
    n_parts, part = connected_components(graph, directed=False)
    return int(n_parts), part


def _advice(rows: Vocabulary, cols: Vocabulary, row: Array, col: Array, classes: Array, label: Array) -> str:
    """Suggest a rank by the number of labels per id, and a penalty by the strength at which latent weights vanish."""
    if len(classes) < 2:
        return ""
    ordered = len(classes) > 2 and classes.dtype.kind in "iuf"
    labels_per_id = len(label) / max(len(rows), len(cols))
    rank = int(np.clip(labels_per_id / LABELS_PER_RANK, 1, MAX_RANK))
    sample = np.arange(len(label))
    if len(sample) > MAX_PAIRS:
        n_rows = max(1, int(len(rows) * MAX_PAIRS / len(sample)))
        sampled_rows = np.random.default_rng(0).permutation(len(rows))[:n_rows]
        sample = np.flatnonzero(np.isin(row, sampled_rows))
    pairs = np.column_stack([row[sample], col[sample]])
    if len(np.unique(label[sample])) < 2:
        return f"--kind {'ordinal' if ordered else 'nominal'} --rank {rank}"
    kind = LFLOrdinal if ordered else LFLClassifier
    estimator = kind(solver=LBFGS(max_iter=MAX_ITER), random_state=0)
    strength = VANISHING_FRACTION * vanishing_l2(estimator, pairs, classes[label[sample]])
    l2 = float(f"{np.clip(strength, *L2_RANGE):.1g}")
    return f"--kind {'ordinal' if ordered else 'nominal'} --rank {rank} --l2 {l2:g}"
