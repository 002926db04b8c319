"""Results -> pictures; matplotlib comes with the extra ``dyads[plot]``."""

from typing import Any

import numpy as np

from dyads.data.codes import to_numpy
from dyads.data.tables import named_values, read_column
from dyads.errors import InputError
from dyads.learn.sampling import MIXED
from dyads.metrics import reliability, reliability_band

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, told apart by the colour-blind."""


def plot_reliability(ax: Any, y: Any, proba: Any, classes: Any) -> Any:
    """Draw observed frequency against predicted probability, a line a label; the diagonal is calibrated.

    The bands hold nine tenths of bootstrap draws of the dyads.
    """
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    for index, label in enumerate(classes):
        judged = np.asarray(y) == label, np.asarray(proba)[:, index]
        confidence, frequency, _ = reliability(*judged)
        colour = COLOURS[index % len(COLOURS)]
        ax.fill_between(
            *reliability_band(np.asarray(y) == label, np.asarray(proba)[:, index]), color=colour, alpha=0.15
        )
        ax.plot(confidence, frequency, marker="o", markersize=4, linewidth=1.2, color=colour, label=str(label))
    ax.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set_title("Reliability on held-out pairs")
    ax.legend(frameon=False)
    return ax


def plot_training_curve(ax: Any, trace: dict[str, list[Any]]) -> Any:
    """Draw the objective of each restart of a fit, and the held-out loss where there is one, by iteration."""
    iteration, init, objective = (np.asarray(trace[name]) for name in ("iteration", "init", "objective"))
    for start in np.unique(init):
        own = init == start
        ax.plot(
            iteration[own], objective[own], color=COLOURS[0], linewidth=1.5, label="objective" if start == 0 else None
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
    """A colour a label: told apart by the colour-blind, or in order where labels are numbers or many."""
    if len(labels) > len(COLOURS) or (len(labels) > 2 and not isinstance(labels[0], str)):
        from matplotlib import colormaps

        return colormaps["viridis"](index / (len(labels) - 1))
    return COLOURS[index]


def plot_explanation(ax: Any, explanation: Any, dyad: int = 0, most: int = 12) -> Any:
    """Draw what each part adds to the log-odds of every label of one dyad, a dot a label, and their sum.

    `explanation` is the table of `explain`. The `most` parts that say most are drawn, the others summed in one line.
    """
    values = named_values(explanation)
    if not {"dyad", "label", "part", "value"} <= values.keys():
        raise InputError(f"The table has the columns {list(values)}: expected the one that explain(X) returns.")
    columns = {name: to_numpy(read_column(column, f"column {name!r}")) for name, column in values.items()}
    mine = columns["dyad"] == dyad
    if not mine.any():
        there = f"0 to {int(columns['dyad'].max())}" if len(mine) else "a table that is not empty"
        raise InputError(f"dyad={dyad!r} is not explained: expected {there}.")
    label, part, value = (columns[name][mine] for name in ("label", "part", "value"))
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
        ax.plot(sizes, range(len(shown)), "o", color=_colour(index, labels), markersize=6, alpha=0.85, label=str(name))
    ax.set_yticks(range(len(shown)), list(shown))
    ax.grid(axis="y", color="0.92")
    ax.set_axisbelow(True)
    ax.invert_yaxis()
    ax.set(xlabel="added to the log-odds of a label")
    ax.set_title(f"What the prediction of dyad {dyad} is made of")
    if ax.figure.get_layout_engine() is None:
        # The names of the parts would be cut off.
        ax.figure.set_layout_engine("constrained")
    ax.legend(frameon=False, title="label", bbox_to_anchor=(1, 1), loc="upper left")
    return ax


def plot_cv_curve(ax: Any, cv_results: dict[str, Any], parameter: str = "l2__latent") -> Any:
    """Draw the held-out log-loss against one penalty, with its standard error over folds; the best is marked.

    A line for each choice of the other parameters; see `cv_results_` of `LFLClassifierCV`.
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
        raise InputError(f"parameter={parameter!r} was not tried: expected one of {list(cv_results['params'][0])}.")
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
    """Draw minus the log-likelihood of each sweep of each chain of a sampled posterior; what was dropped is grey."""
    diagnostics, trace = _diagnostics(model), model.trace_
    chain, sweep, loss = (np.asarray(trace[name]) for name in ("init", "iteration", "objective"))
    for index in np.unique(chain):
        mine = chain == index
        ax.plot(sweep[mine], loss[mine], color=COLOURS[index % len(COLOURS)], linewidth=1, label=f"chain {index + 1}")
    ax.axvspan(0, diagnostics["burn_in"], color="0.9", label="dropped")
    ax.set(xlabel="sweep", ylabel="minus log-likelihood (sum over dyads)", xlim=(0, None))
    ax.set_title("Trace")
    ax.legend(frameon=False)
    return ax


def plot_r_hat(ax: Any, model: Any, limit: float = MIXED) -> Any:
    """Draw how many of the watched predictions have which R-hat, against a `limit`; 1 is mixed."""
    found = np.asarray(_diagnostics(model)["r_hat"])
    if not np.isfinite(found).all():
        raise InputError("The chains are too short for an R-hat: expected some hundred sweeps. Raise them.")
    ax.hist(found, bins=30, color=COLOURS[0])
    share = f"{(found <= limit).mean():.0%} below {limit}"
    ax.axvline(limit, color=COLOURS[1], linestyle="--", linewidth=1.5, label=share)
    ax.set(xlabel="R-hat", ylabel=f"of {len(found)} watched predictions")
    ax.set_title("Have the chains mixed?")
    ax.legend(frameon=False)
    return ax


def plot_interval(ax: Any, model: Any, X: Any, level: float = 0.9) -> Any:
    """Draw the probability of every label of one dyad, a table X of one line, with the interval it lies in."""
    proba, bounds = model.predict_proba(X), model.predict_interval(X, level)
    if len(proba) != 1:
        raise InputError(f"X has {len(proba)} dyads: expected one.")
    labels, middle = [str(label) for label in model.classes_], proba[0]
    ax.vlines(range(len(labels)), *bounds[0].T, color=COLOURS[0], linewidth=3, alpha=0.5, label=f"{level:.0%} interval")
    ax.plot(range(len(labels)), middle, "o", color=COLOURS[0], label="probability")
    ax.set_xticks(range(len(labels)), labels)
    top = 1.3 * bounds[0].max()  # room for the legend
    ax.set(xlabel="label", ylabel="probability", ylim=(0, top), xlim=(-0.5, len(labels) - 0.5))
    ax.set_title("How sure is the model of its probabilities?")
    ax.legend(frameon=False)
    return ax


def _diagnostics(model: Any) -> dict[str, Any]:
    found: dict[str, Any] | None = getattr(model, "diagnostics_", None)
    if found is None:
        raise InputError("The model has no chains: expected one that was fitted with solver='gibbs'.")
    return found


def plot_ordered_matrix(ax: Any, matrix: Any, groups: Any) -> Any:
    """Draw a square matrix of 0 and 1 with its lines ordered by group, the largest first; lines part the groups."""
    matrix, groups = np.asarray(matrix), np.asarray(groups)
    names, sizes = np.unique(groups, return_counts=True)
    rank = {name: place for place, name in enumerate(names[np.argsort(-sizes, kind="stable")])}
    place = np.array([rank[name] for name in groups])
    # Within a group, those with most links to it stand together.
    inside = np.array([matrix[i, place == place[i]].sum() for i in range(len(matrix))])
    order = np.lexsort((-inside, place))
    ax.imshow(matrix[np.ix_(order, order)], cmap="Greys", interpolation="nearest", vmin=0, vmax=1)
    for edge in np.cumsum(-np.sort(-sizes))[:-1]:
        ax.axhline(edge - 0.5, color=COLOURS[1], linewidth=0.8)
        ax.axvline(edge - 0.5, color=COLOURS[1], linewidth=0.8)
    ax.set(xticks=[], yticks=[], xlabel=f"{len(matrix)} nodes, {len(names)} groups", ylabel="the same")
    ax.set_title("Links, nodes ordered by groups of their latent weights")
    return ax


def plot_images(ax: Any, rows: dict[str, Any]) -> Any:
    """Draw rows of images beside each other, each row named; values -1 (white) to 1 (black), 0 for what is missing."""
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


def plot_latent_map(ax: Any, model: Any, side: str = "row", most: int = 60) -> Any:
    """Draw rows (or columns, `side="col"`) in the plane of the two directions in which latent weights differ most.

    Names are written where there is room, of at most `most`, those far from the middle first.
    """
    ids = model.row_ids_ if side == "row" else model.col_ids_
    weights = np.asarray(model.embed(ids, side), float)
    if weights.shape[1] < 2:
        raise InputError(f"The model has {weights.shape[1]} latent weights a {side}: expected two or more for a map.")
    centred = weights - weights.mean(axis=0)
    _, spread, directions = np.linalg.svd(centred, full_matrices=False)
    place = centred @ directions[:2].T
    share = spread**2 / np.maximum((spread**2).sum(), np.finfo(float).tiny)
    # Thousands of points as a drawing would make a large file.
    ax.scatter(*place.T, s=14, color=COLOURS[0], alpha=0.8, linewidths=0, rasterized=len(place) > 1000)
    width, height = np.maximum(np.ptp(place, axis=0), np.finfo(float).tiny)
    written: list[tuple[float, float, float]] = []
    for index in np.argsort(-np.hypot(place[:, 0] / width, place[:, 1] / height)):
        x, y, name = place[index, 0] / width, place[index, 1] / height, str(ids[index])
        length = 0.011 * len(name)
        free = all(abs(y - v) > 0.024 or x + length < u or x > u + other for u, v, other in written)
        if free:
            written.append((x, y, length))
            ax.annotate(name, place[index], xytext=(4, 0), textcoords="offset points", fontsize=7, va="center")
        if len(written) == most:
            break
    ax.set(xlabel=f"first direction ({share[0]:.0%})", ylabel=f"second direction ({share[1]:.0%})")
    ax.margins(x=0.12)
    ax.set_title("Latent weights: the nearer, the more alike the labels")
    return ax


def plot_confusion(ax: Any, y: Any, predicted: Any, classes: Any) -> Any:
    """Draw how often each label was predicted for each true one: shares of the true label, and counts."""
    y, predicted, classes = np.asarray(y), np.asarray(predicted), np.asarray(classes)
    counts = np.array([[np.sum((y == true) & (predicted == said)) for said in classes] for true in classes])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= 12:
        for true, said in np.ndindex(counts.shape):
            dark = shares[true, said] > 0.5
            ax.text(said, true, f"{counts[true, said]:,}", ha="center", va="center", color="white" if dark else "black")
    ax.set_xticks(range(len(classes)), [str(label) for label in classes])
    ax.set_yticks(range(len(classes)), [str(label) for label in classes])
    ax.set(xlabel="predicted label", ylabel="true label")
    ax.set_title("Confusion: shares of the true label")
    return ax


def reliability_from_estimator(ax: Any, model: Any, X: Any, y: Any) -> Any:
    """`plot_reliability` of a fitted model on labelled dyads."""
    return plot_reliability(ax, y, model.predict_proba(X), model.classes_)


def confusion_from_estimator(ax: Any, model: Any, X: Any, y: Any) -> Any:
    """`plot_confusion` of a fitted model on labelled dyads."""
    return plot_confusion(ax, y, model.predict(X), model.classes_)
