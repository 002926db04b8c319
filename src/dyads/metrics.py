"""Metrics of predictions and of posterior draws: functions of arrays, independent of any model.

`y` : (n,) true labels; `proba` : (n, n_labels) predicted probabilities; `classes` : (n_labels,) labels, one per column
of `proba`; `predicted` : (n,) predicted labels or values; `sample_weight` : (n,) or None.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata
from sklearn import metrics as sk

from dyads.errors import InputError

Array = np.ndarray[Any, Any]
Weights = npt.ArrayLike | None

BINS = 15
"""Default number of calibration bins: more bins resolve probabilities better, fewer estimate each frequency better."""

TITLES = {
    "log_loss": "log-loss",
    "brier_score": "Brier score",
    "classwise_ece": "class-wise calibration error",
    "auc": "AUC",
    "accuracy": "accuracy",
    "mean_absolute_error": "mean absolute error",
    "root_mean_squared_error": "root mean squared error",
}
"""Names of the metrics of `dyads.evaluate` as the command and the report print them."""


def accuracy(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Share of labels that are predicted exactly."""
    y, predicted = np.asarray(y), np.asarray(predicted)
    if y.shape != predicted.shape or y.ndim != 1 or not len(y):
        raise InputError(
            f"Got labels of shape {y.shape} and predictions of shape {predicted.shape}: expected (n,) for both, with "
            "at least one dyad."
        )
    kinds = {y.dtype.kind, predicted.dtype.kind}
    if "U" in kinds and kinds & set("biuf"):
        raise InputError(
            f"Got labels such as {y[0].item()!r} and {predicted[0].item()!r}: expected both as text or both as "
            "numbers. Convert one of them."
        )
    return _mean(y == predicted, sample_weight)


def zero_one_error(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Share of labels that are not predicted exactly."""
    return 1.0 - accuracy(y, predicted, sample_weight)


def mean_absolute_error(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Mean of |y - predicted|."""
    return float(sk.mean_absolute_error(y, predicted, sample_weight=sample_weight))


def root_mean_squared_error(y: Any, predicted: Any, sample_weight: Weights = None) -> float:
    """Square root of the mean of (y - predicted)^2."""
    return float(sk.root_mean_squared_error(y, predicted, sample_weight=sample_weight))


LEAST_PROBABILITY = float(np.finfo(np.float64).tiny)
"""The smallest normal float64. Smaller probabilities are raised to it, so that their logarithms are finite."""


def log_proba(proba: Any) -> Array:
    """Logarithm of probabilities, which are first raised to at least `LEAST_PROBABILITY`."""
    return np.asarray(np.log(np.maximum(proba, LEAST_PROBABILITY)))


def log_loss(y: Any, proba: Any, classes: Any, sample_weight: Weights = None) -> float:
    """Mean of -log p(label), in nats; finite even for probabilities of zero (see `log_proba`)."""
    return _mean(log_losses(y, proba, classes), sample_weight)


def log_losses(y: Any, proba: Any, classes: Any) -> Array:
    """-log p(label) of each dyad, (n,); `log_loss` is their mean."""
    truth, proba = _read(y, proba, classes)
    return -log_proba(proba[truth])


def brier_score(y: Any, proba: Any, classes: Any, sample_weight: Weights = None) -> float:
    """Mean over dyads of sum_y (p_y - [y = label])^2, between 0 and 2."""
    return _mean(brier_scores(y, proba, classes), sample_weight)


def brier_scores(y: Any, proba: Any, classes: Any) -> Array:
    """sum_y (p_y - [y = label])^2 of each dyad, (n,); `brier_score` is their mean."""
    truth, proba = _read(y, proba, classes)
    return np.asarray(((proba - truth) ** 2).sum(axis=1))


def classwise_ece(y: Any, proba: Any, classes: Any, sample_weight: Weights = None, *, n_bins: int = BINS) -> float:
    """Class-wise expected calibration error: the mean over labels of sum_b share_b |frequency_b - confidence_b|.

    The bins of each label have about equal weight (Nixon et al. 2019).
    """
    truth, proba = _read(y, proba, classes)
    errors = []
    for happened, probability in zip(truth.T, proba.T, strict=True):
        confidence, frequency, share = reliability(happened, probability, sample_weight, n_bins=n_bins)
        errors.append(np.sum(share * np.abs(frequency - confidence)))
    return float(np.mean(errors))


def reliability(
    happened: Any, probability: Any, sample_weight: Weights = None, *, n_bins: int = BINS
) -> tuple[Array, Array, Array]:
    """Mean predicted probability, observed frequency and share of the weight of each bin; bins have about equal weight.

    Dyads of equal probability share a bin, so the order of the dyads does not matter.
    """
    happened, probability = np.asarray(happened, dtype=np.float64), np.asarray(probability, dtype=np.float64)
    weight = _weights(sample_weight, len(probability))
    _, place = np.unique(probability, return_inverse=True)
    bin_of = _bins(np.bincount(place, weights=weight), n_bins)[place]
    share = np.bincount(bin_of, weights=weight, minlength=n_bins)
    used = share > 0
    confidence, frequency = (
        np.bincount(bin_of, weights=weight * value, minlength=n_bins)[used] / share[used]
        for value in (probability, happened)
    )
    return confidence, frequency, share[used] / share.sum()


def _bins(at_level: Array, n_bins: int) -> Array:
    """The bin of each level of probability, by the weights (m,) of ascending levels; bins have about equal weight."""
    # Dyads of equal probability go to the bin that contains the midpoint of their cumulative weight.
    middle = (np.cumsum(at_level) - at_level / 2) / at_level.sum()
    return np.asarray(np.minimum((middle * n_bins).astype(int), n_bins - 1))


def reliability_band(
    happened: Any,
    probability: Any,
    sample_weight: Weights = None,
    *,
    n_bins: int = BINS,
    level: float = 0.9,
    n_draws: int = 200,
    seed: int = 0,
) -> tuple[Array, Array, Array]:
    """Mean predicted probability of each bin, and a bootstrap interval (lower, upper) of its observed frequency.

    Dyads are resampled with replacement within each bin of `reliability`. The interval holds the central share `level`
    of the `n_draws` resampled frequencies.
    """
    happened, probability = np.asarray(happened, dtype=np.float64), np.asarray(probability, dtype=np.float64)
    weight = _weights(sample_weight, len(probability))
    confidence, _, share = reliability(happened, probability, weight, n_bins=n_bins)
    order = np.argsort(probability, kind="stable")
    edges = np.searchsorted(np.cumsum(weight[order]), np.cumsum(share)[:-1] * weight.sum() * (1 - 1e-12))
    rng, ends = np.random.default_rng(seed), []
    for members in np.split(order, edges + 1):
        drawn = rng.integers(0, max(1, len(members)), (n_draws, len(members)))
        w, hits = weight[members][drawn], happened[members][drawn]
        frequency = (w * hits).sum(axis=1) / np.maximum(w.sum(axis=1), 1e-300)
        ends.append(np.quantile(frequency, [(1 - level) / 2, (1 + level) / 2]))
    low, high = np.array(ends).T
    return confidence, low, high


def brier_decomposition(
    y: Any, proba: Any, classes: Any, sample_weight: Weights = None, *, n_bins: int = BINS
) -> dict[str, Array]:
    """Murphy's decomposition of the Brier score of each label, (n_labels,) per part.

        score = reliability - resolution + uncertainty
        reliability = sum_b share_b (confidence_b - frequency_b)^2
        resolution = sum_b share_b (frequency_b - rate)^2,    uncertainty = rate (1 - rate)

    over bins b. The sum equals the score up to the variation of probabilities within a bin. A good model has low
    reliability (it is an error) and high resolution.
    """
    truth, proba = _read(y, proba, classes)
    parts = []
    for happened, probability in zip(truth.T, proba.T, strict=True):
        confidence, frequency, share = reliability(happened, probability, sample_weight, n_bins=n_bins)
        rate = float(np.sum(share * frequency))
        parts.append(
            (np.sum(share * (confidence - frequency) ** 2), np.sum(share * (frequency - rate) ** 2), rate * (1 - rate))
        )
    return dict(zip(("reliability", "resolution", "uncertainty"), np.array(parts).T, strict=True))


def auc(y: Any, scores: Any, classes: Any, sample_weight: Weights = None, *, average: str = "macro") -> float:
    """Area under the ROC curve: of the second label if there are two, otherwise one-vs-rest.

    `scores` : (n, n_labels) probabilities, or any other scores that rank dyads. ``average="macro"`` is the unweighted
    mean over the labels that have positive and negative dyads in `y`; ``"micro"`` pools all (dyad, label) pairs.
    """
    if average not in ("macro", "micro"):
        raise InputError(f"average={average!r} is not known: expected 'macro' or 'micro'.")
    truth, scores = _read(y, scores, classes, any_scores=True)
    if truth.shape[1] == 2:
        truth, scores = truth[:, 1:], scores[:, 1:]
    if average == "micro":
        weight = None if sample_weight is None else np.repeat(np.asarray(sample_weight), truth.shape[1])
        return float(sk.roc_auc_score(truth.ravel(), scores.ravel(), sample_weight=weight))
    both = [label for label in range(truth.shape[1]) if 0 < truth[:, label].sum() < len(truth)]
    if not both:
        raise InputError("Got y with one label: the AUC needs at least two different labels. Evaluate on more dyads.")
    return float(np.mean([sk.roc_auc_score(truth[:, i], scores[:, i], sample_weight=sample_weight) for i in both]))


def auc_pr(y: Any, scores: Any, classes: Any, sample_weight: Weights = None) -> float:
    """Area under the precision-recall curve (average precision): of the second of two labels, or the mean over labels.

    `scores` : (n, n_labels) probabilities, or any other scores that rank dyads.
    """
    truth, scores = _read(y, scores, classes, any_scores=True)
    if truth.shape[1] == 2:
        truth, scores = truth[:, 1:], scores[:, 1:]
    labels = [label for label in range(truth.shape[1]) if truth[:, label].any()]
    if not labels:
        raise InputError("Got y without the second label: the precision needs some dyads that have it.")
    return float(
        np.mean([sk.average_precision_score(truth[:, i], scores[:, i], sample_weight=sample_weight) for i in labels])
    )


def paired_difference(losses: Any, others: Any, sample_weight: Weights = None) -> tuple[float, float]:
    """Mean of d = losses - others over the same dyads, and its standard error, sqrt(sum w^2 (d - mean)^2) / sum w.

    `losses`, `others` : (n,), such as the `log_losses` of two models.
    """
    difference = np.asarray(losses, np.float64) - np.asarray(others, np.float64)
    weight = _weights(sample_weight, len(difference))
    mean = _mean(difference, weight)
    return mean, float(np.sqrt(np.sum((weight * (difference - mean)) ** 2)) / weight.sum())


MOST_LEVELS = 2**22
"""Distinct probabilities that a `Tally` keeps, over all labels: about 100 MB. Beyond it, neighbours are merged."""


class Levels:
    """Weights by the probability of one label: of all dyads, and of those that have the label.

    That is all that calibration errors and the AUC need. Above `most` probabilities, neighbours share a level, their
    mean: with m levels of equal weight the AUC is then exact to 1 / m.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.level: Array = np.zeros(0)
        self.total: Array = np.zeros(0)
        self.happened: Array = np.zeros(0)

    def add(self, probability: Array, total: Array, happened: Array) -> None:
        """Add dyads, or other levels: their probabilities, weights, and weights of those that have the label."""
        counted = total > 0
        level, place = np.unique(np.append(self.level, probability[counted]), return_inverse=True)
        total, happened = (
            np.bincount(place, np.append(old, new[counted]))
            for old, new in ((self.total, total), (self.happened, happened))
        )
        if len(level) > self.most:
            middle = (np.cumsum(total) - total / 2) / total.sum()
            _, group = np.unique((middle * (self.most // 2)).astype(np.int64), return_inverse=True)
            level = np.bincount(group, level * total) / np.bincount(group, total)
            total, happened = np.bincount(group, total), np.bincount(group, happened)
        self.level, self.total, self.happened = level, total, happened

    def calibration_error(self, n_bins: int) -> float:
        """sum_b share_b |frequency_b - confidence_b| over bins of about equal weight; see `reliability`."""
        gap = np.bincount(_bins(self.total, n_bins), self.happened - self.total * self.level, n_bins)
        return float(np.abs(gap).sum() / self.total.sum())

    @property
    def auc(self) -> float:
        """Probability that a dyad with the label ranks above one without; equals count half. NaN without either."""
        missed = self.total - self.happened
        both = self.happened.sum() * missed.sum()
        above = self.happened @ (np.cumsum(missed) - missed / 2)
        return float(above / both) if both > 0 else float("nan")


class Tally:
    """The metrics of predictions that come in batches: means, calibration errors and AUC, in bounded memory.

    `ordered` : whether labels have values, whose mean errors are counted too.
    """

    def __init__(self, n_labels: int, ordered: bool) -> None:
        names = ["log_loss", "brier_score", "accuracy"]
        names += ["mean_absolute_error", "mean_squared_error"] if ordered else []
        self.n, self.weight, self.ordered = 0, 0.0, ordered
        self.sums = dict.fromkeys(names, 0.0)
        self.levels = [Levels(max(4096, MOST_LEVELS // n_labels)) for _ in range(n_labels)]

    def add(self, truth: Array, proba: Array, values: dict[str, Array], sample_weight: Weights = None) -> None:
        """Add dyads: whether each has each label (n, n_labels), their probabilities, and their summands by name."""
        weight = _weights(sample_weight, len(truth), may_be_zero=True)
        self.n, self.weight = self.n + len(truth), self.weight + float(weight.sum())
        for name, summand in values.items():
            self.sums[name] += float(np.sum(weight * summand))
        for label, levels in enumerate(self.levels):
            levels.add(proba[:, label], weight, weight * truth[:, label])

    def join(self, other: "Tally") -> None:
        """Add the dyads of another tally."""
        self.n, self.weight = self.n + other.n, self.weight + other.weight
        for name, total in other.sums.items():
            self.sums[name] += total
        for levels, more in zip(self.levels, other.levels, strict=True):
            levels.add(more.level, more.total, more.happened)

    def figures(self) -> dict[str, float]:
        """The metrics by name, keys of `TITLES`; NaN without dyads."""
        means = {name: total / self.weight if self.weight else np.nan for name, total in self.sums.items()}
        areas = [levels.auc for levels in (self.levels[1:] if len(self.levels) == 2 else self.levels)]
        known = [area for area in areas if not np.isnan(area)]
        errors = [levels.calibration_error(BINS) for levels in self.levels] if self.weight else [np.nan]
        figures = {
            "log_loss": means["log_loss"],
            "brier_score": means["brier_score"],
            "classwise_ece": float(np.mean(errors)),
            "auc": float(np.mean(known)) if known else np.nan,
            "accuracy": means["accuracy"],
        }
        if self.ordered:
            figures["mean_absolute_error"] = means["mean_absolute_error"]
            figures["root_mean_squared_error"] = float(np.sqrt(means["mean_squared_error"]))
        return figures


class Differences:
    """Mean of d = losses - others, and its standard error, of dyads that come in batches; see `paired_difference`."""

    def __init__(self) -> None:
        self.n, self.sums = 0, np.zeros(5)

    def add(self, losses: Array, others: Array, sample_weight: Weights = None) -> None:
        d, w = losses - others, _weights(sample_weight, len(losses), may_be_zero=True)
        self.n += len(d)
        self.sums += [w.sum(), (w * d).sum(), (w * w).sum(), (w * w * d).sum(), (w * w * d * d).sum()]

    @property
    def mean_and_error(self) -> tuple[float, float]:
        total, first, squares, cross, second = self.sums
        mean = first / total
        return float(mean), float(np.sqrt(max(second - 2 * mean * cross + mean**2 * squares, 0.0)) / total)


def _read(y: Any, proba: Any, classes: Any, any_scores: bool = False) -> tuple[Array, Array]:
    """Check labels and probabilities (or other scores); returns one-hot labels and scores, both (n, n_labels)."""
    y, classes, proba = np.asarray(y), np.asarray(classes), np.asarray(proba, dtype=np.float64)
    if y.ndim != 1 or not len(y) or proba.shape != (len(y), len(classes)):
        raise InputError(
            f"Got labels of shape {y.shape} and probabilities of shape {proba.shape} for {len(classes)} classes: "
            "expected (n,) and (n, n_classes), with at least one dyad."
        )
    if any_scores and not np.isfinite(proba).all():
        raise InputError("The scores hold NaN or infinite values: expected finite numbers. Drop these dyads.")
    if not any_scores and not ((proba >= 0) & (proba <= 1)).all():
        raise InputError(
            "The probabilities hold NaN or values outside [0, 1]: expected probabilities. Drop these dyads."
        )
    truth = y[:, None] == classes
    if not truth.any(axis=1).all():
        unknown_label = y[~truth.any(axis=1)].tolist()[0]
        raise InputError(
            f"The label {unknown_label!r} is not among the classes {classes.tolist()}: expected one of these, of the "
            "same type. Drop the dyads with other labels."
        )
    return truth, proba


def _weights(sample_weight: Weights, n: int, may_be_zero: bool = False) -> Array:
    weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    total = weight.sum() + may_be_zero
    if weight.shape != (n,) or not (weight >= 0).all() or not 0 < total < np.inf:
        raise InputError(
            f"Got sample_weight of shape {weight.shape}: expected shape ({n},) and finite, nonnegative weights, not "
            "all zero."
        )
    return weight


def _mean(values: Array, sample_weight: Weights) -> float:
    return float(np.average(values, weights=_weights(sample_weight, len(values))))


def r_hat(draws: Any) -> Array:
    """Split R-hat of each quantity, from draws (n_chains, n_draws, n_quantities); close to 1 if the chains have mixed.

        sqrt(((n - 1) / n W + B / n) / W)

    Each chain is split into halves of n draws, so that a drift within a chain shows as well. B and W are the variances
    between and within the halves. They are computed on rank-normalised draws, so heavy tails do no harm. Vehtari et al.
    2021.
    """
    draws = np.asarray(draws, np.float64)
    n = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :n], draws[:, draws.shape[1] - n :]])
    ranked = rankdata(halves.reshape(-1, halves.shape[2]), axis=0)
    normal = norm.ppf((ranked - 0.375) / (len(ranked) + 0.25)).reshape(halves.shape)
    within = normal.var(axis=1, ddof=1).mean(axis=0)
    between = n * normal.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale_reduction = np.sqrt(((n - 1) / n * within + between / n) / within)
    # A constant quantity counts as mixed.
    return np.where(within + between > 0, scale_reduction, 1.0)


def effective_sample_size(draws: Any) -> Array:
    """Effective sample size for the mean of each quantity, from draws (n_chains, n_draws, n_quantities).

        n_chains n_draws / (1 + 2 sum_t rho_t)

    rho_t is the autocorrelation at lag t. The sum runs over pairs of adjacent lags, each capped at the smallest pair
    before it, and stops at the first pair that is not positive (initial monotone sequence, Geyer 1992).
    """
    draws = np.asarray(draws, np.float64)
    n_chains, n, n_quantities = draws.shape
    centred = draws - draws.mean(axis=1, keepdims=True)
    size = 2 ** int(np.ceil(np.log2(2 * n)))
    spectrum = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    covariance = np.fft.irfft(spectrum, size, axis=1)[:, :n].mean(axis=0) / n
    within = covariance[0] * n / (n - 1)
    between = draws.mean(axis=1).var(axis=0, ddof=1) if n_chains > 1 else np.zeros(n_quantities)
    total = within * (n - 1) / n + between
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    pairs = correlation[: n // 2 * 2].reshape(-1, 2, n_quantities).sum(axis=1)
    positive = np.cumprod(pairs > 0, axis=0)
    time = -1 + 2 * np.sum(np.minimum.accumulate(pairs, axis=0) * positive, axis=0)
    return np.asarray(
        np.where(total > 0, n_chains * n / np.maximum(time, 1 / np.log10(n_chains * n + 10)), n_chains * n)
    )


# ------------------------------------------------------------------------------------------------------------ ranking
#
# `ranks` : for each row, the ranks (from 1) of its relevant columns among its candidates; infinite if never offered.
# Each metric returns one value per row (n_rows,): take their mean. A row without relevant columns has NaN.


def ranks_of(values: Any, relevant: Any, *, filtered: bool = False) -> Array:
    """Ranks (n_relevant,) of relevant columns among the candidates of one row, by decreasing value.

    Ranks of ties are those expected if ties are broken at random: with t relevant columns among m equal ones,

        rank = #(greater) + i (m + 1) / (t + 1),    i = 1, ..., t

    With `filtered`, the other relevant columns do not count, as in the literature on knowledge graphs.

    `values` : (n_candidates,). `relevant` : (n_relevant,) their positions.
    """
    values, ordered = np.asarray(values, np.float64), np.sort(values)
    own, group, n_tied = np.unique(values[np.asarray(relevant, np.intp)], return_inverse=True, return_counts=True)
    left, right = (np.searchsorted(ordered, own, side) for side in ("left", "right"))
    greater, equal = len(ordered) - right, right - left
    if filtered:
        greater, equal = greater - (n_tied.sum() - np.cumsum(n_tied)), equal - n_tied + 1
        return np.asarray((greater + (equal + 1) / 2)[group])
    by_group = np.argsort(group, kind="stable")
    place = np.empty(len(group))
    place[by_group] = np.arange(1, len(group) + 1) - np.repeat(np.cumsum(n_tied) - n_tied, n_tied)
    return np.asarray(greater[group] + place * ((equal + 1) / (n_tied + 1))[group])


def precision_at(ranks: Any, k: int) -> Array:
    """Share of relevant columns among the first k."""
    return np.asarray(_found(ranks, k) / k)


def recall_at(ranks: Any, k: int) -> Array:
    """Share of the relevant columns that are among the first k."""
    return _per_relevant(_found(ranks, k), ranks)


def hits_at(ranks: Any, k: int) -> Array:
    """Whether any relevant column is among the first k: 1 or 0."""
    return _per_relevant(np.minimum(_found(ranks, k), 1) * _n_relevant(ranks), ranks)


def reciprocal_rank(ranks: Any) -> Array:
    """1 / rank of the first relevant column."""
    return np.array([1 / np.min(each) if len(each) else np.nan for each in ranks])


def ndcg_at(ranks: Any, k: int) -> Array:
    """Normalised discounted cumulative gain: sum of 1 / log2(1 + rank) over the first k, by its largest value."""
    flat, row = _flat(ranks)
    gain = np.bincount(row, np.where(flat <= k, 1 / np.log2(1 + flat), 0), len(ranks))
    ideal = np.cumsum(1 / np.log2(np.arange(2, k + 2)))
    return np.asarray(gain / np.append(np.nan, ideal)[np.minimum(_n_relevant(ranks), k)])


def average_precision_at(ranks: Any, k: int) -> Array:
    """Mean, over the relevant columns (k at most), of the precision at the rank of each that is among the first k."""
    flat, row = _flat([np.sort(each) for each in ranks])
    n = _n_relevant(ranks)
    place = np.arange(len(flat)) - np.repeat(np.cumsum(n) - n, n) + 1
    total = np.bincount(row, np.where(flat <= k, place / flat, 0), len(ranks))
    return np.asarray(np.divide(total, np.minimum(n, k), out=np.full(len(n), np.nan), where=n > 0))


def _flat(ranks: Any) -> tuple[Array, Array]:
    """All ranks, and the row of each."""
    n = _n_relevant(ranks)
    return np.concatenate([np.zeros(0), *ranks]), np.repeat(np.arange(len(n)), n)


def _n_relevant(ranks: Any) -> Array:
    return np.array([len(each) for each in ranks], np.intp)


def _found(ranks: Any, k: int) -> Array:
    """Number of relevant columns among the first k; NaN for a row that has none."""
    if k < 1:
        raise InputError(f"Got k={k}: expected a whole number, at least 1.")
    flat, row = _flat(ranks)
    count = np.bincount(row[flat <= k], minlength=len(ranks)).astype(np.float64)
    return np.where(_n_relevant(ranks) > 0, count, np.nan)


def _per_relevant(count: Array, ranks: Any) -> Array:
    n = _n_relevant(ranks)
    return np.asarray(np.divide(count, n, out=np.full(len(n), np.nan), where=n > 0))
