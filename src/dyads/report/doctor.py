"""Checks of a table of labelled pairs before a fit: problems in the data, and settings to start with."""

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dyads.data.codes import Vocabulary, encode_labels
from dyads.data.dyads import Dyads, chunks
from dyads.data.observations import read_id_columns, refuse_labels_beside
from dyads.data.split import RandomCells
from dyads.data.store import Pairs
from dyads.engine.orders import sorted_parts
from dyads.errors import NotConvergedWarning, UnknownIdWarning, VanishedWarning, counted
from dyads.estimators.kinds import LFLClassifier, LFLOrdinal
from dyads.estimators.selection import predictors_of
from dyads.metrics import log_losses, paired_difference

Array = np.ndarray[Any, Any]

FEW_LABELS = 5
"""An id with fewer labels counts as cold. A higher limit reports more ids of sparse data, a lower one misses some."""

COLD_SHARE = 0.2
"""Share of cold ids above which features are advised: a lower share advises them more often."""

SKEWED_SHARE = 0.95
"""Share of one label above which accuracy misleads: predicting that label alone already scores as much."""

MANY_LABELS = 30
"""More distinct labels than this are probably measurements, which should be binned."""

TENTHS = 10
"""Candidates are fitted on nine tenths of the pairs and judged on the other: ids then have almost all their labels."""

MAX_ROUNDS = 3
"""Tenths that candidates are judged on, one after the other, if the table is small: more make figures less noisy."""

SMALL = 50_000
"""A table is small if its pairs times its labels, about the work of a fit, are no more than this.

A larger one is judged on one tenth only.
"""

LARGE, SAMPLE = 2_000_000, 500_000
"""A table with more pairs times labels than the first is checked on the pairs of some of its rows, about the second."""

RANK_ZERO = "--rank 0"
"""Options of the candidate beside the defaults: the model without latent weights."""

EDGES = 2**20
"""Pairs that are added to a graph at a time: few of them are between two parts once the first are in."""

FEWEST_PAIRS = 50
"""Fewest pairs to check candidates on: below it nothing could be told from chance."""


@dataclass(frozen=True)
class Examined:
    """Result of `examine`.

    Attributes
    ----------
    facts : figures by name
    findings : problems, as sentences
    advice : options of ``dyads fit`` to start with; None if there is nothing to learn
    checked : what the advice was checked on: `pairs` (the number of pairs used), `held_out` (of these, the number that
        candidates were judged on) and `log_loss`, the held-out log-loss of the defaults, of other options, and of the
        marginals, by name; empty if there are too few pairs for a check
    """

    facts: dict[str, Any]
    findings: list[str]
    advice: str | None
    checked: dict[str, Any]


def examine(X: Any, y: Any = None) -> Examined:
    """Examine a table X of row ids and column ids, and its labels y; or a store, which holds them."""
    if isinstance(X, Pairs):
        refuse_labels_beside(y, None)
    pairs = X if isinstance(X, Pairs) else _coded(X, y)
    dyads, rows, cols, classes = pairs.dyads, pairs.rows, pairs.cols, pairs.classes
    n, shares = len(dyads), _counts(dyads.label, len(classes)) / len(dyads)
    by_row, by_col = _counts(dyads.row, len(rows)), _counts(dyads.col, len(cols))
    n_cells, n_labelled = _n_distinct(dyads)
    facts: dict[str, Any] = {
        "pairs": n,
        "rows": {"column": rows.name, "ids": len(rows), "labels of an id": _count_range(by_row)},
        "columns": {"column": cols.name, "ids": len(cols), "labels of an id": _count_range(by_col)},
        "filled": n_cells / (len(rows) * len(cols) * dyads.n_relations),
        "labels": dict(zip(classes.tolist(), shares.tolist(), strict=True)),
    }
    findings = [*_repeated(n, n_cells, n_labelled), *_clashes(rows), *_clashes(cols), *_skew(classes, shares)]
    for vocabulary, counts in ((rows, by_row), (cols, by_col)):
        cold = (counts < FEW_LABELS).mean()
        if cold > COLD_SHARE:
            findings.append(
                f"{cold:.0%} of the ids of {vocabulary.name!r} have fewer than {FEW_LABELS} labels: features of these "
                "ids would help most."
            )
    n_parts, part = _parts(dyads)
    facts["connected parts"] = n_parts
    if n_parts > 1:
        largest = np.bincount(part[: len(rows)], by_row).max() / n
        findings.append(
            f"The pairs form {n_parts} connected parts, which share no ids; the largest has {largest:.1%} of all "
            "pairs. Between parts, only biases and features are informative."
        )
    if len(classes) < 2:
        return Examined(facts, findings, None, {})
    if dyads.relation is not None:
        # Candidates of a model without relations would say nothing about one with them.
        return Examined(facts, findings, "--kind relational", {})
    ordered = len(classes) > 2 and classes.dtype.kind in "iuf"
    kind = f"--kind {'ordinal' if ordered else 'nominal'}"
    if n < FEWEST_PAIRS:
        return Examined(facts, findings, kind, {})
    trial = _Trial(pairs, LFLOrdinal if ordered else LFLClassifier)
    if not trial.folds:
        return Examined(facts, findings, kind, {})
    options = trial.search()
    findings += trial.shortfall()
    return Examined(facts, findings, f"{kind} {options}".strip(), trial.figures())


def _coded(X: Any, y: Any) -> Pairs:
    """The pairs of a table."""
    (row_ids, row_name), (col_ids, col_name) = read_id_columns(X, (None, None))
    rows, row = Vocabulary.of(row_ids, row_name)
    cols, col = Vocabulary.of(col_ids, col_name)
    classes, label = encode_labels(y, at_least=1)
    dyads = Dyads(row, col, label, None, len(rows), len(cols), len(classes))
    return Pairs({"row": row_name, "col": col_name, "label": "label"}, rows, cols, None, classes, dyads)


def _counts(codes: Array, n: int) -> Array:
    """Number of pairs of each code (n,)."""
    counts = np.zeros(n, np.int64)
    for some in chunks(len(codes)):
        counts += np.bincount(codes[some], minlength=n)
    return counts


def _count_range(counts: Array) -> dict[str, float]:
    low, middle, high = np.quantile(counts, [0, 0.5, 1]).tolist()
    return {"least": int(low), "median": middle, "most": int(high)}


def _n_distinct(dyads: Dyads) -> tuple[int, int]:
    """Number of distinct pairs, and of pairs with a label. They are counted for some rows at a time."""
    n_cells = n_labelled = 0
    for positions in filter(len, sorted_parts(dyads.row, None, dyads.n_rows)):
        key = dyads.row[positions].astype(np.int64)
        columns = [(dyads.col, dyads.n_cols), (dyads.label, dyads.n_labels)]
        if dyads.relation is not None:
            columns.insert(1, (dyads.relation, dyads.n_relations))
        for codes, n in columns:
            key *= n
            key += codes[positions]
        key.sort()
        n_labelled += 1 + int(np.count_nonzero(key[1:] != key[:-1]))
        key //= dyads.n_labels
        n_cells += 1 + int(np.count_nonzero(key[1:] != key[:-1]))
    return n_cells, n_labelled


def _repeated(n: int, n_cells: int, n_labelled: int) -> list[str]:
    """Report repeated pairs, with the same or with another label."""
    n_repeated = n - n_cells
    if not n_repeated:
        return []
    return [
        f"{counted(n_repeated, 'line')} {'repeats' if n_repeated == 1 else 'repeat'} an earlier pair "
        f"({n_labelled - n_cells:,} with another label): each line counts as an observation. Remove those that are "
        "mistakes."
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
            f"The ids of {vocabulary.name!r} mix numbers and text (numbers: {n_numbers:,} of {len(ids):,}): all are "
            "read as text, so '62' and '062' differ."
        )
    n_similar = len(ids) - len(pc.utf8_lower(pc.utf8_trim_whitespace(ids)).unique())
    if n_similar:
        differ = "differs" if n_similar == 1 else "differ"
        findings.append(
            f"{counted(n_similar, 'id')} of {vocabulary.name!r} {differ} from another id only in capitals or spaces: "
            "such ids count as different. Unify their spelling if they are the same."
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


def _parts(dyads: Dyads) -> tuple[int, Array]:
    """Number of connected components of the graph of pairs, and the component of each row and column.

    Pairs are added some at a time, as edges between the components so far.
    """
    n_parts, part = dyads.n_rows + dyads.n_cols, np.arange(dyads.n_rows + dyads.n_cols, dtype=np.int32)
    for first in range(0, len(dyads), EDGES):
        row, col = part[dyads.row[first : first + EDGES]], part[dyads.n_rows :][dyads.col[first : first + EDGES]]
        between = row != col
        edges = row[between], col[between]
        graph = coo_array((np.ones(len(edges[0]), np.int8), edges), shape=(n_parts, n_parts))
        n_parts, joined = connected_components(graph, directed=False)
        part = joined[part]
    return int(n_parts), part


class _Trial:
    """Held-out log-losses of settings of an estimator and of marginals, all on the same pairs of one table.

    Attributes
    ----------
    losses : (n_held,) losses of each candidate, by its options of ``dyads fit``; "" are the defaults
    marginals : the same of the marginals, by name
    """

    def __init__(self, pairs: Pairs, kind: type[LFLOrdinal | LFLClassifier]) -> None:
        dyads, n, n_labels = pairs.dyads, len(pairs), len(pairs.classes)
        self.is_sample = n * n_labels > LARGE
        if self.is_sample:
            chosen = np.zeros(dyads.n_rows, np.bool_)
            n_taken = max(2, dyads.n_rows * SAMPLE // (n * n_labels))
            chosen[np.random.default_rng(0).permutation(dyads.n_rows)[:n_taken]] = True
            some = [part.start + np.flatnonzero(chosen[dyads.row[part]]) for part in chunks(n)]
            dyads = dyads.take(np.concatenate(some))
        X = {pairs.rows.name: dyads.row, pairs.cols.name: dyads.col}
        y = pairs.classes[dyads.label] if kind is LFLOrdinal else dyads.label
        self.X, self.y, self.kind = X, y, kind
        self.folds = []
        is_small = n * n_labels <= SMALL
        for train, held in itertools.islice(RandomCells(TENTHS).split(X), MAX_ROUNDS if is_small else 1):
            # A label that the training part lacks has no probability.
            held = held[np.isin(y[held], y[train])]
            if len(held) and len(np.unique(y[train])) > 1:
                self.folds.append((train, held))
        self.losses: dict[str, Array] = {}
        self.marginals: dict[str, Array] = {}

    def search(self) -> str:
        """The options ``--rank 0`` if they clearly beat the defaults; otherwise "".

        Latent weights are worth less in a sample, which has fewer labels per column: there only the defaults are
        judged.
        """
        self._judge("", {})
        if self.is_sample:
            return ""
        self._judge(RANK_ZERO, {"rank": 0})
        difference, error = paired_difference(self.losses[RANK_ZERO], self.losses[""])
        return RANK_ZERO if difference < -2 * error else ""

    def _judge(self, options: str, settings: dict[str, Any]) -> None:
        """Fit a candidate on each training part, and keep its losses on the held-out parts."""
        losses: dict[str, list[Array]] = {}
        for train, held in self.folds:
            model = self.kind(random_state=0).set_params(**settings)
            with warnings.catch_warnings():
                for kind in (NotConvergedWarning, UnknownIdWarning, VanishedWarning):
                    warnings.simplefilter("ignore", kind)
                model.fit({name: column[train] for name, column in self.X.items()}, self.y[train])
                predictors = predictors_of(model, {name: column[held] for name, column in self.X.items()})
            for name, each in predictors.items():
                losses.setdefault(name, []).append(log_losses(self.y[held], each.proba, each.classes))
        self.losses[options] = np.concatenate(losses.pop("model"))
        self.marginals = {name: np.concatenate(parts) for name, parts in losses.items()}

    def shortfall(self) -> list[str]:
        """A sentence if no candidate clearly beats the best of the marginals."""
        ours = min(self.losses.values(), key=np.mean)
        name, theirs = min(self.marginals.items(), key=lambda item: item[1].mean())
        difference, error = paired_difference(ours, theirs)
        if difference < -2 * error:
            return []
        return [
            f"No settings tried here clearly beat {name!r}, frequencies of labels: their held-out log-loss is "
            f"{theirs.mean():.4f}, that of the best settings {ours.mean():.4f} (standard error of the difference "
            f"{error:.4f}). The ids may tell nothing about the labels."
        ]

    def figures(self) -> dict[str, Any]:
        """The field `checked` of `Examined`."""
        candidates = {options or "defaults": losses for options, losses in self.losses.items()}
        means = {name: float(losses.mean()) for name, losses in (candidates | self.marginals).items()}
        return {"pairs": len(self.y), "held_out": len(self.losses[""]), "log_loss": means}
