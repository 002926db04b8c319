"""Results -> pictures; matplotlib comes with the extra ``dyads[plot]``."""

from typing import Any

import numpy as np

from dyads.data.labels import to_numpy
from dyads.data.tables import named_values, read_column
from dyads.errors import InputError
from dyads.metrics import reliability, reliability_band
from dyads.sampling import MIXED

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
        values = [part[index] for part in shown.values()]
        ax.plot(values, range(len(shown)), "o", color=_colour(index, labels), markersize=6, alpha=0.85, label=str(name))
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


def plot_cv_curve(ax: Any, cv_results: dict[str, Any], parameter: str = "l2") -> Any:
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
        raise InputError("The chains are too short for an R-hat: expected some hundred sweeps. Raise max_iter.")
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
