"""Results -> pictures; matplotlib comes with the extra ``dyads[plot]``."""

from typing import Any

import numpy as np

from dyads.metrics import reliability

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, told apart by the colour-blind."""


def plot_reliability(ax: Any, y: Any, proba: Any, classes: Any) -> Any:
    """Draw observed frequency against predicted probability, a line a label; the diagonal is calibrated."""
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
    for index, label in enumerate(classes):
        confidence, frequency, _ = reliability(np.asarray(y) == label, np.asarray(proba)[:, index])
        colour = COLOURS[index % len(COLOURS)]
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
