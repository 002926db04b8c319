"""Propensities, the probabilities that dyads are observed, and inverse-propensity weights.

If some rows and columns are observed more often than others, a model of p(label | row, column) stays unbiased: that
changes which dyads are observed, not their labels. The model is biased if the label itself affects whether a dyad is
observed (missing not at random), as when people rate what they like. Then weigh each dyad by its inverse propensity:

    weight_i = 1 / max(propensity_i, clip * mean propensity), divided by the mean of these.

Pass the weights as ``sample_weight`` to `fit`, and to `dyads.metrics` to estimate the metrics over all dyads.
"""

from typing import Any

import numpy as np

from dyads.data.codes import Vocabulary, encode_labels
from dyads.data.features import SideInformation
from dyads.data.observations import read_id_columns
from dyads.errors import InputError
from dyads.estimators.kinds import LFLClassifier
from dyads.model.objective import L2
from dyads.settings import generator_of

Array = np.ndarray[Any, Any]


def from_marginals(X: Any, *, row: Any = None, col: Any = None) -> Array:
    """Propensity (n,) of each observed dyad from the counts of its row and column, min(1, n_r n_c / n).

    `row`, `col` : names of the id columns, default the first two.
    """
    codes = [Vocabulary.of(*column)[1] for column in read_id_columns(X, (row, col))]
    n_row, n_col = (np.bincount(code)[code] for code in codes)
    return np.minimum(n_row * n_col / max(1, len(n_row)), 1.0)


def from_labels(y: Any, unbiased: Any) -> Array:
    """Propensity (n,) of each observed dyad from its label, p(y | observed) / p(y), scaled to a maximum of one.

    `unbiased` : labels of a sample that was observed independently of them, a few hundred or more. It must contain
    every label in y.
    """
    classes, code = encode_labels(y)
    sampled, sample = encode_labels(unbiased, at_least=1)
    missing = np.setdiff1d(classes, sampled)
    if len(missing):
        raise InputError(
            f"The label {missing[0].item()!r} is not in the unbiased sample of {len(sample)} labels: expected every "
            "label of y. Use a larger sample."
        )
    observed = np.bincount(code) / len(code)
    unbiased_share = np.array([(sample == np.searchsorted(sampled, label)).mean() for label in classes])
    ratio = observed / unbiased_share
    return np.asarray((ratio / ratio.max())[code])


def from_features(X: Any, row_features: Any = None, col_features: Any = None, *, random_state: int = 0) -> Array:
    """Propensity (n,) of each observed dyad from features, by logistic regression of observed against other pairs.

    The negatives are at most as many random pairs that were not observed, weighted to represent all of them. Features
    are as for `LFLClassifier`. For propensities from counts, see `from_marginals`.
    """
    if row_features is None and col_features is None:
        raise InputError(
            "Got no features: expected row_features or col_features. Without features, use from_marginals."
        )
    (row, row_name), (col, col_name) = read_id_columns(X, (None, None))
    rows, row_code = Vocabulary.of(row, row_name)
    cols, col_code = Vocabulary.of(col, col_name)
    n_cells = len(rows) * len(cols)
    seen = np.unique(row_code.astype(np.int64) * len(cols) + col_code)
    if len(seen) == n_cells:
        return np.ones(len(row_code))
    rng = generator_of(random_state)
    drawn = np.setdiff1d(rng.integers(0, n_cells, 4 * len(seen) + 100), seen)
    drawn = rng.permutation(drawn)[: len(seen)]
    cells = np.concatenate([seen, drawn])
    labels = np.repeat([1, 0], [len(seen), len(drawn)])
    weight = np.where(labels == 1, 1.0, (n_cells - len(seen)) / len(drawn))
    pairs = {row_name: rows.ids.take(cells // len(cols)), col_name: cols.ids.take(cells % len(cols))}
    side = SideInformation(row=row_features, col=col_features)
    model = LFLClassifier(rank=0, bias=False, features=side, l2=L2(side=1.0), random_state=random_state)
    model.fit(pairs, labels, weight)
    return np.asarray(model.predict_proba({row_name: row, col_name: col})[:, 1])


def weights(propensity: Any, clip: float = 0.1) -> Array:
    """Inverse-propensity weights (n,) with mean one; propensities are clipped from below at `clip` times their mean."""
    p = np.asarray(propensity, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not np.isfinite(p).all() or (p <= 0).any() or (p > 1).any():
        raise InputError(
            "The propensities are not all numbers above 0 and at most 1: expected one such number per dyad."
        )
    if not 0 <= clip < np.inf:
        raise InputError(
            f"Got clip={clip!r}: expected a finite number, at least 0, such as 0.1 (times the mean propensity)."
        )
    inverse = 1 / np.maximum(p, clip * p.mean())
    return np.asarray(inverse / inverse.mean())
