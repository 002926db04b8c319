"""Plots of models and predictions, on matplotlib axes (extra ``dyads[plot]``)."""

import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dyads.data.codes import to_numpy
from dyads.data.tables import named_values, read_column
from dyads.errors import InputError
from dyads.learn.sampling import MIXED
from dyads.metrics import BINS, reliability, reliability_band

Array = np.ndarray[Any, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Palette of Okabe and Ito, safe for colour-blind readers."""


MARKERS = "os^D"
"""Markers of lines: the next one once all colours are used."""

DYADS_PER_BIN = 20
"""Fewest dyads per bin of a reliability curve, on average: fewer make a frequency that is mostly noise."""

LONGEST = 24
"""Longest text of an id or label in a picture, in characters; longer ones are cut."""


def plot_reliability(ax: Any, y: Any, proba: Any, classes: Any, sample_weight: Any = None) -> Any:
    """Plot observed frequency against predicted probability, one line per label; the diagonal is perfect calibration.

    `y` : (n,) true labels; `proba` : (n, n_labels) probabilities; `classes` : (n_labels,) labels in the order of the
    columns of `proba`; `sample_weight` : (n,) or None. The bins of a label have about equal weight, and few dyads have
    few bins; the bands are 90% bootstrap intervals over the dyads. For a fitted model, call
    `reliability_from_estimator`.
    """
    truth = _read_truth(ax, y, classes, "reliability")
    if np.shape(proba) != truth.shape:
        raise InputError(
            f"proba has shape {np.shape(proba)}: expected {truth.shape}, one line per label of y and one column per "
            "class. For a fitted model, call reliability_from_estimator(ax, model, X, y)."
        )
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    for index, curve in enumerate(reliability_curves(y, proba, classes, sample_weight)):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
        ax.fill_between(curve.predicted, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(
            curve.predicted, curve.observed, marker=marker, markersize=4, linewidth=1.2, color=colour,
            label=_text(classes[index]),
        )  # fmt: skip
    ax.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set_title("Reliability on held-out pairs")
    ax.legend(frameon=False)
    return ax


class Reliability(NamedTuple):
    """Calibration of the probabilities of one label, by bins of about equal weight.

    Attributes
    ----------
    predicted, observed : (n_bins,) mean probability, and frequency of the label
    low, high : (n_bins,) 90% bootstrap interval of the frequency
    """

    predicted: Array
    observed: Array
    low: Array
    high: Array


def reliability_curves(y: Any, proba: Any, classes: Any, sample_weight: Any = None) -> Iterator[Reliability]:
    """The curves of `plot_reliability`, one for each label of `classes`."""
    truth, proba = np.asarray(y)[:, None] == np.asarray(classes), np.asarray(proba, dtype=np.float64)
    n_bins = max(2, min(BINS, len(truth) // DYADS_PER_BIN))
    for happened, probability in zip(truth.T, proba.T, strict=True):
        predicted, observed, _ = reliability(happened, probability, sample_weight, n_bins=n_bins)
        _, low, high = reliability_band(happened, probability, sample_weight, n_bins=n_bins)
        yield Reliability(predicted, observed, low, high)


def _read_truth(ax: Any, y: Any, classes: Any, plot: str) -> Any:
    """Labels as a mask (n, n_labels), one column per class; refuses the arguments of `{plot}_from_estimator`."""
    if not hasattr(ax, "plot"):
        raise InputError(f"The first argument is of type {type(ax).__name__}: expected matplotlib axes.")
    if hasattr(y, "predict"):
        raise InputError(
            f"y is a model ({type(y).__name__}): expected labels. For a fitted model, call {plot}_from_estimator(ax, "
            "model, X, y)."
        )
    y, classes = np.asarray(y), np.asarray(classes)
    if y.ndim != 1 or classes.ndim != 1:
        raise InputError(
            f"y has shape {y.shape} and classes has shape {classes.shape}: expected (n,) and (n_labels,). For a fitted "
            f"model, call {plot}_from_estimator(ax, model, X, y)."
        )
    return y[:, None] == classes


def _check_model(model: Any, plot: str) -> None:
    if not hasattr(model, "predict_proba"):
        arguments = {"reliability": "ax, y, proba, classes", "confusion": "ax, y, predicted, classes"}[plot]
        raise InputError(
            f"model is of type {type(model).__name__}: expected a fitted model. For labels and predictions, call "
            f"plot_{plot}({arguments})."
        )


def _text(name: Any) -> str:
    """Text of an id or label: at most `LONGEST` characters, all of them printable."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(name))
    # Legends leave out names that begin with an underscore.
    text = f" {text}" if text.startswith("_") else text
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _text_width(text: str) -> float:
    """Approximate width of a text, in units of its font size; East Asian letters are twice as wide as others."""
    return sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.6 for letter in text)


def plot_training_curve(ax: Any, trace: dict[str, list[Any]]) -> Any:
    """Plot the objective of each restart of a fit, and the held-out loss if there is one, by iteration."""
    iteration, init, objective = (np.asarray(trace[name]) for name in ("iteration", "init", "objective"))
    for start in np.unique(init):
        this = init == start
        ax.plot(
            iteration[this], objective[this], color=COLOURS[0], linewidth=1.5, label="objective" if start == 0 else None
        )
    ax.set(xlabel="iteration", ylabel="objective (sum over dyads)")
    ax.set_title("Training")
    validation = np.array(trace["validation"], dtype=float)
    if np.isfinite(validation).any():
        right = ax.twinx()
        right.plot(iteration[init == 0], validation[init == 0], color=COLOURS[1], linewidth=1.5)
        right.set_ylabel("held-out loss", color=COLOURS[1])
    return ax


def _colour(index: int, labels: list[Any]) -> Any:
    """Colour of a label: from `COLOURS`, or from a sequential map if the labels are numbers or too many."""
    if len(labels) > len(COLOURS) or (len(labels) > 2 and not isinstance(labels[0], str)):
        from matplotlib import colormaps

        return colormaps["viridis"](index / (len(labels) - 1))
    return COLOURS[index]


def plot_explanation(ax: Any, explanation: Any, dyad: int = 0, most: int = 12) -> Any:
    """Plot what each part adds to the log-odds of every label of one dyad, one dot per label, and the sum.

    `explanation` is the table of `explain`. The `most` parts that differ most between labels are shown, the others
    are summed in one line.
    """
    values = named_values(explanation)
    if not {"dyad", "label", "part", "value"} <= values.keys():
        raise InputError(f"The table has the columns {list(values)}: expected the table returned by explain(X).")
    columns = {name: to_numpy(read_column(column, f"column {name!r}")) for name, column in values.items()}
    selected = columns["dyad"] == dyad
    if not selected.any():
        valid = f"0 to {int(columns['dyad'].max())}" if len(selected) else "a table that is not empty"
        raise InputError(f"dyad={dyad!r} is not in the table: expected {valid}.")
    label, part, value = (columns[name][selected] for name in ("label", "part", "value"))
    labels = list(dict.fromkeys(label.tolist()))
    parts = {name: value[part == name] for name in dict.fromkeys(part.tolist())}
    order = sorted(parts, key=lambda name: -np.ptp(parts[name]))
    shown = {name: parts[name] for name in parts if name in order[:most]}
    if len(order) > most:
        shown[f"{len(order) - most} others"] = np.sum([parts[name] for name in order[most:]], axis=0)
    shown["sum: log-odds"] = np.sum(list(parts.values()), axis=0)
    ax.axvline(0, color="0.6", linewidth=1)
    ax.axhline(len(shown) - 1.5, color="0.6", linewidth=1)
    for index, name in enumerate(labels):
        sizes = [part[index] for part in shown.values()]
        ax.plot(
            sizes, range(len(shown)), "o", color=_colour(index, labels), markersize=6, alpha=0.85, label=_text(name)
        )
    ax.set_yticks(range(len(shown)), list(shown))
    ax.grid(axis="y", color="0.92")
    ax.set_axisbelow(True)
    ax.invert_yaxis()
    ax.set(xlabel="added to the log-odds of a label")
    ids = [name for name in columns if name not in ("dyad", "label", "part", "value")]
    pair = " × ".join(f"{name} {_text(columns[name][selected][0])}" for name in ids) or f"dyad {dyad}"
    ax.set_title(f"Parts of the prediction for {pair}")
    if ax.figure.get_layout_engine() is None:
        # Without it the names of the parts are cut off.
        ax.figure.set_layout_engine("constrained")
    ax.legend(frameon=False, title="label", bbox_to_anchor=(1, 1), loc="upper left")
    return ax


def plot_cv_curve(ax: Any, cv_results: dict[str, Any], parameter: str = "l2__latent") -> Any:
    """Plot the held-out log-loss against one penalty, with its standard error over folds; the best is marked.

    There is one line per combination of the other parameters. `cv_results` is `cv_results_` of `LFLClassifierCV`.
    """
    lines: dict[Any, list[tuple[float, float, float]]] = {}
    n_folds = sum(name.startswith("split") for name in cv_results)
    scores = zip(cv_results["params"], cv_results["mean_test_score"], cv_results["std_test_score"], strict=True)
    for params, mean, deviation in scores:
        if parameter in params:
            named = {name: value for name, value in params.items() if name != parameter and value is not None}
            others = ", ".join(f"{name} {value}" for name, value in named.items())
            lines.setdefault(others, []).append((params[parameter], -mean, deviation / np.sqrt(n_folds)))
    if not lines:
        raise InputError(f"parameter={parameter!r} was not searched: expected one of {list(cv_results['params'][0])}.")
    for index, (others, points) in enumerate(lines.items()):
        x, loss, error = np.array(sorted(points)).T
        ax.errorbar(x, loss, error, marker="o", markersize=4, linewidth=1.2, capsize=2, label=others,
                    color=COLOURS[index % len(COLOURS)])  # fmt: skip
    best = min((point for points in lines.values() for point in points), key=lambda point: point[1])
    ax.plot(best[0], best[1], "o", markersize=11, markerfacecolor="none", color="0.3", label="best")
    ax.set(xscale="log", xlabel=parameter, ylabel="held-out log-loss")
    ax.set_title("Cross-validation")
    ax.legend(frameon=False)
    return ax


def plot_trace(ax: Any, model: Any) -> Any:
    """Plot the negative log-likelihood by sweep, one line per chain; the burn-in is grey."""
    diagnostics, trace = _diagnostics(model), model.trace_
    chain, sweep, loss = (np.asarray(trace[name]) for name in ("init", "iteration", "objective"))
    for index in np.unique(chain):
        this = chain == index
        ax.plot(sweep[this], loss[this], color=COLOURS[index % len(COLOURS)], linewidth=1, label=f"chain {index + 1}")
    ax.axvspan(0, diagnostics["burn_in"], color="0.5", alpha=0.2, linewidth=0, label="burn-in")
    ax.set(xlabel="sweep", ylabel="negative log-likelihood (sum over dyads)", xlim=(0, None))
    ax.set_title("Trace")
    ax.legend(frameon=False)
    return ax


def plot_r_hat(ax: Any, model: Any, limit: float = MIXED) -> Any:
    """Plot a histogram of R-hat over the monitored predictions, and a `limit`; mixed chains have an R-hat near 1."""
    r_hat = np.asarray(_diagnostics(model)["r_hat"])
    if not np.isfinite(r_hat).all():
        raise InputError("The chains are too short for an R-hat: run a few hundred sweeps, Gibbs(sweeps=).")
    ax.hist(r_hat, bins=30, color=COLOURS[0])
    share = f"{(r_hat <= limit).mean():.0%} below {limit}"
    ax.axvline(limit, color=COLOURS[1], linestyle="--", linewidth=1.5, label=share)
    ax.set(xlabel="R-hat", ylabel=f"count, of {len(r_hat)} monitored predictions")
    ax.set_title("Have the chains mixed?")
    ax.legend(frameon=False)
    return ax


def plot_interval(ax: Any, model: Any, X: Any, level: float = 0.9) -> Any:
    """Plot the probability of every label of one dyad with its posterior interval; X is a table of one line."""
    proba, bounds = model.predict_proba(X), model.predict_interval(X, level)
    if len(proba) != 1:
        raise InputError(f"X has {len(proba)} dyads: expected exactly one.")
    labels, middle = [str(label) for label in model.classes_], proba[0]
    ax.vlines(range(len(labels)), *bounds[0].T, color=COLOURS[0], linewidth=3, alpha=0.5, label=f"{level:.0%} interval")
    ax.plot(range(len(labels)), middle, "o", color=COLOURS[0], label="probability")
    ax.set_xticks(range(len(labels)), labels)
    top = 1.3 * bounds[0].max()  # leave room for the legend
    ax.set(xlabel="label", ylabel="probability", ylim=(0, top), xlim=(-0.5, len(labels) - 0.5))
    ax.set_title("How sure is the model of its probabilities?")
    ax.legend(frameon=False)
    return ax


def _diagnostics(model: Any) -> dict[str, Any]:
    diagnostics: dict[str, Any] | None = getattr(model, "diagnostics_", None)
    if diagnostics is None:
        raise InputError("The model has no chains: expected a model fitted with solver='gibbs'.")
    return diagnostics


def plot_ordered_matrix(ax: Any, matrix: Any, groups: Any) -> Any:
    """Plot a square 0-1 matrix with its nodes ordered by group, the largest first, and lines between the groups."""
    matrix, groups = np.asarray(matrix), np.asarray(groups)
    names, sizes = np.unique(groups, return_counts=True)
    rank = {name: place for place, name in enumerate(names[np.argsort(-sizes, kind="stable")])}
    place = np.array([rank[name] for name in groups])
    # Within a group, order the nodes by their number of links to it.
    inside = np.array([matrix[i, place == place[i]].sum() for i in range(len(matrix))])
    order = np.lexsort((-inside, place))
    ax.imshow(matrix[np.ix_(order, order)], cmap="Greys", interpolation="nearest", vmin=0, vmax=1)
    for edge in np.cumsum(-np.sort(-sizes))[:-1]:
        ax.axhline(edge - 0.5, color=COLOURS[1], linewidth=0.8)
        ax.axvline(edge - 0.5, color=COLOURS[1], linewidth=0.8)
    ax.set(xticks=[], yticks=[], xlabel=f"{len(matrix)} nodes, {len(names)} groups", ylabel="the same nodes")
    ax.set_title("Links, nodes ordered by groups of their latent weights")
    return ax


def plot_images(ax: Any, rows: dict[str, Any]) -> Any:
    """Plot named rows of images; values run from -1 (white) to 1 (black), and missing pixels are 0."""
    n, height, width = next(iter(rows.values())).shape
    canvas = np.full((len(rows) * (height + 2), n * (width + 2)), -1.0)
    for i, images in enumerate(rows.values()):
        for j, image in enumerate(np.asarray(images)):
            top, left = i * (height + 2) + 1, j * (width + 2) + 1
            canvas[top : top + height, left : left + width] = image
    ax.imshow(canvas, cmap="Greys", interpolation="nearest", vmin=-1, vmax=1)
    ax.set_yticks([(i + 0.5) * (height + 2) for i in range(len(rows))], list(rows))
    ax.set_xticks([])
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


def latent_map(model: Any, side: str = "row") -> tuple[Array, Array]:
    """Places (n, 2) of rows or columns on the first two principal components of their latent weights.

    Also returns the share of the variance of each component. Near ids have similar labels.
    """
    n = len(model.row_ids_ if side == "row" else model.col_ids_)
    weights = np.asarray(model.record_.best_model.latent(np.arange(n), side), float)
    if weights.shape[1] < 2:
        raise InputError(f"The model has {weights.shape[1]} latent weights per {side}: a map needs at least two.")
    centred = weights - weights.mean(axis=0)
    _, singular_values, directions = np.linalg.svd(centred, full_matrices=False)
    share = singular_values**2 / np.maximum((singular_values**2).sum(), np.finfo(float).tiny)
    return centred @ directions[:2].T, share


def plot_latent_map(ax: Any, model: Any, side: str = "row", most: int = 60) -> Any:
    """Plot rows (or columns, `side="col"`) on the first two principal components of their latent weights.

    At most `most` ids are labelled, those far from the centre first, and only where labels do not overlap.
    """
    ids = model.row_ids_ if side == "row" else model.col_ids_
    place, share = latent_map(model, side)
    # Hundreds of points as vector graphics make a large file.
    ax.scatter(*place.T, s=14, color=COLOURS[0], alpha=0.8, linewidths=0, rasterized=len(place) > 300)
    ax.set(xlabel=f"first principal component ({share[0]:.0%})", ylabel=f"second principal component ({share[1]:.0%})")
    _write_names(ax, place, [_text(name) for name in ids], most)
    ax.set_title("Latent weights: near points have similar labels")
    return ax


def _write_names(ax: Any, place: Any, names: list[str], most: int) -> None:
    """Write at most `most` names beside points (n, 2), within the axes and where they cover no name and no point.

    The points far from the centre come first. All lengths are in points, from the centre of the axes.
    """
    size, gap = 7, 4
    box = ax.get_position()
    half = 36 * np.array([box.width, box.height]) * ax.figure.get_size_inches()
    middle, reach = (place.max(axis=0) + place.min(axis=0)) / 2, np.ptp(place, axis=0) / 2
    margin = 1 + 2 * ax.margins()[0]
    at = (place - middle) / np.maximum(reach, np.finfo(float).tiny) * half / margin
    written: list[tuple[float, float, float]] = []
    for index in np.argsort(-np.hypot(*(at / half).T), kind="stable")[: 20 * most]:
        x, y = at[index]
        level = np.abs(at[:, 1] - y) < 0.6 * size
        level[index] = False
        width = size * _text_width(names[index])
        for left, right in ((x + gap, x + gap + width), (x - gap - width, x - gap)):
            free = all(abs(y - v) > 1.2 * size or right < begin or left > end for begin, end, v in written)
            covers = (level & (at[:, 0] > left - 2) & (at[:, 0] < right + 2)).any()
            if free and not covers and max(-left, right) < half[0]:
                written.append((left, right, y))
                side, offset = ("left", gap) if left > x else ("right", -gap)
                ax.annotate(
                    names[index], place[index], xytext=(offset, 0), textcoords="offset points", fontsize=size,
                    va="center", ha=side, clip_on=True,
                )  # fmt: skip
                break
        if len(written) == most:
            break


def plot_confusion(ax: Any, y: Any, predicted: Any, classes: Any, sample_weight: Any = None) -> Any:
    """Plot the confusion matrix: numbers of dyads, or their summed weights, coloured by their share of the true label.

    `y`, `predicted` : (n,) true and predicted labels; `classes` : (n_labels,). For a fitted model, call
    `confusion_from_estimator`.
    """
    from matplotlib.colors import LinearSegmentedColormap

    truth = _read_truth(ax, y, classes, "confusion")
    if np.shape(predicted) != np.shape(y):
        raise InputError(
            f"y has shape {np.shape(y)} and predicted has shape {np.shape(predicted)}: expected one predicted label per"
            " label of y. For a fitted model, call confusion_from_estimator(ax, model, X, y)."
        )
    weight = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (len(truth),):
        raise InputError(f"sample_weight has shape {weight.shape}: expected ({len(truth)},), one weight per dyad.")
    chosen = np.asarray(predicted)[:, None] == np.asarray(classes)
    counts = (truth * weight[:, None]).T @ chosen
    shares = counts / np.maximum(weight @ truth, np.finfo(float).tiny)[:, None]
    # From transparent to blue: it suits light and dark backgrounds.
    ax.imshow(
        shares, vmin=0, vmax=1, interpolation="nearest",
        cmap=LinearSegmentedColormap.from_list("share", [COLOURS[0] + "00", COLOURS[0] + "ff"]),
    )  # fmt: skip
    if len(classes) <= 12:
        digits = 0 if sample_weight is None or counts.max() >= 100 else 2
        for true, choice in np.ndindex(counts.shape):
            colour = {"color": "white"} if shares[true, choice] > 0.8 else {}
            ax.text(choice, true, f"{counts[true, choice]:,.{digits}f}", {"ha": "center", "va": "center"} | colour)
    names = [_text(label) for label in classes]
    ax.set_xticks(range(len(classes)), names, rotation=90 if len(names) * max(map(len, names)) > 45 else 0)
    ax.set_yticks(range(len(classes)), names)
    ax.set(xlabel="predicted label", ylabel="true label")
    counted = "numbers of pairs" if sample_weight is None else "summed weights"
    ax.set_title(f"Confusion: {counted}, coloured by share of the true label", wrap=True)
    return ax


def reliability_from_estimator(ax: Any, model: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """`plot_reliability` of a fitted model on labelled dyads."""
    _check_model(model, "reliability")
    return plot_reliability(ax, y, model.predict_proba(X), model.classes_, sample_weight)


def confusion_from_estimator(ax: Any, model: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """`plot_confusion` of a fitted model on labelled dyads."""
    _check_model(model, "confusion")
    return plot_confusion(ax, y, model.predict(X), model.classes_, sample_weight)
