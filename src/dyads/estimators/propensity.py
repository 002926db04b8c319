"""How likely a dyad is to be observed, and weights that undo it.

A model of p(label | row, column) is right whatever rows and columns are observed more than others: that changes which
dyads it sees, not their labels. It is not right where being observed depends on the label itself, as when people rate
what they like; then each dyad must be weighed by the inverse of its probability to be observed:

    weight_i = 1 / max(propensity_i, clip * mean), divided by their mean.

Pass the weights as ``sample_weight`` to `fit`, and to `dyads.metrics` to judge as if all dyads had been observed.
"""

from typing import Any

import numpy as np

from dyads.data.codes import Vocabulary, encode_labels
from dyads.data.features import SideInformation
from dyads.data.observations import read_id_columns
from dyads.errors import InputError
from dyads.estimators.kinds import LFLClassifier
from dyads.model.objective import L2

Array = np.ndarray[Any, Any]


def from_marginals(X: Any, *, row: Any = None, col: Any = None) -> Array:
    """Propensity (n,) of each observed dyad, n_r n_c / n: what the numbers of its row's and its column's dyads say.

    At most one. `row`, `col` : names of the columns of ids, default the first two.
    """
    codes = [Vocabulary.of(*column)[1] for column in read_id_columns(X, (row, col))]
    n_row, n_col = (np.bincount(code)[code] for code in codes)
    return np.minimum(n_row * n_col / max(1, len(n_row)), 1.0)


def from_labels(y: Any, unbiased: Any) -> Array:
    """Propensity (n,) of each observed dyad by its label, p(y | observed) / p(y), the greatest being one.

    `unbiased` : labels of a sample in which being observed did not depend on them; a few hundred are enough. Labels
    that are not in it are refused.
    """
    classes, code = encode_labels(y)
    sampled, sample = encode_labels(unbiased, at_least=1)
    missing = np.setdiff1d(classes, sampled)
    if len(missing):
        raise InputError(
            f"The label {missing[0].item()!r} is not in the unbiased sample of {len(sample)}: expected every label. "
            "Use a larger sample."
        )
    observed = np.bincount(code) / len(code)
    unbiased_share = np.array([(sample == np.searchsorted(sampled, one)).mean() for one in classes])
    ratio = observed / unbiased_share
    return np.asarray((ratio / ratio.max())[code])


def from_features(X: Any, row_features: Any = None, col_features: Any = None, *, random_state: int = 0) -> Array:
    """Propensity (n,) of each observed dyad, by logistic regression of observed against other pairs on features.

    As many pairs as were observed are drawn from the others, at random, and weighed to stand for all of them. Features
    are as for `LFLClassifier`. For what the numbers of dyads of ids say, see `from_marginals`.
    """
    if row_features is None and col_features is None:
        raise InputError("Got no features: expected row_features or col_features. Without any, use from_marginals.")
    (row, row_name), (col, col_name) = read_id_columns(X, (None, None))
    rows, row_code = Vocabulary.of(row, row_name)
    cols, col_code = Vocabulary.of(col, col_name)
    n_cells = len(rows) * len(cols)
    seen = np.unique(row_code.astype(np.int64) * len(cols) + col_code)
    if len(seen) == n_cells:
        return np.ones(len(row_code))
    rng = np.random.default_rng(random_state)
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
    """Inverse-propensity weights (n,) of mean one; a propensity below `clip` times the mean one counts as that."""
    p = np.asarray(propensity, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not np.isfinite(p).all() or (p <= 0).any() or (p > 1).any():
        raise InputError("The propensities are not all numbers above 0 and at most 1: expected one for each dyad.")
    if not 0 <= clip < np.inf:
        raise InputError(f"clip={clip!r} is not possible: expected a share of the mean propensity, at least 0.")
    inverse = 1 / np.maximum(p, clip * p.mean())
    return np.asarray(inverse / inverse.mean())
