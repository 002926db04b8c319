"""The demo: fit a synthetic store in a few seconds, and compare with its true probabilities."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dyads import metrics
from dyads.data.files import replacing
from dyads.datasets.synthetic import Synthetic, make_store
from dyads.estimators.kinds import LFLClassifier
from dyads.learn.training import Progress
from dyads.report.pictures import ReliabilityDisplay


class Demo(NamedTuple):
    """Result of the demo.

    Attributes
    ----------
    model : the fitted and calibrated classifier
    held_out : the test dyads
    proba : (n, n_labels) predicted probabilities of the test dyads
    uncalibrated : (n, n_labels) the same before calibration
    rows : lines of the table: (name of the figure, figure of the model, figures to compare with)
    """

    model: LFLClassifier
    held_out: Synthetic
    proba: np.ndarray[Any, Any]
    uncalibrated: np.ndarray[Any, Any]
    rows: list[tuple[str, str, str]]


def run(callback: Callable[[Progress], Any] | None = None, random_state: int = 0) -> Demo:
    """Fit a synthetic store on 40% of its pairs, calibrate on 10%, and compare with the truth on the others."""
    observed, others = make_store(random_state=random_state).split(0.4, random_state)
    calibration, held_out = others.split(1 / 6, random_state + 1)
    # l2 is the precision of the prior on latent weights, and the store's have variance one.
    model = LFLClassifier(rank=4, l2=1.0, random_state=random_state)
    began = time.perf_counter()
    model.fit(observed.X, observed.y, callback=callback)
    seconds = time.perf_counter() - began
    uncalibrated = model.predict_proba(held_out.X)
    proba = model.calibrate(calibration.X, calibration.y, "vector").predict_proba(held_out.X)
    classes, y = held_out.classes, held_out.y
    marginal = np.tile([(observed.y == label).mean() for label in classes], (len(y), 1))
    error = metrics.zero_one_error(y, classes[proba.argmax(axis=1)])
    loss = {name: metrics.log_loss(y, p, classes) for name, p in (("true", held_out.proba), ("marginal", marginal))}
    rows = [
        ("0-1 error", f"{error:.3f}", f"{held_out.bayes_error:.3f} Bayes error"),
        (
            "log-loss",
            f"{metrics.log_loss(y, proba, classes):.3f}",
            f"{loss['true']:.3f} true model, {loss['marginal']:.3f} marginals",
        ),
        (
            "class-wise calibration error",
            f"{metrics.classwise_ece(y, proba, classes):.4f}",
            f"{metrics.classwise_ece(y, uncalibrated, classes):.4f} before calibration",
        ),
        ("seconds to fit", f"{seconds:.1f}", f"{len(observed.y):,} pairs, {model.n_parameters_:,} parameters"),
    ]
    return Demo(model, held_out, proba, uncalibrated, rows)


def tables(random_state: int = 0) -> dict[str, pa.Table]:
    """Tables of a smaller store (shopper, product, outcome): 40% of its pairs for training, 10% for testing."""
    observed, others = make_store(200, 120, random_state).split(0.4, random_state)
    held_out, _ = others.split(1 / 6, random_state + 1)
    return {name: pa.table(part.X | {"outcome": part.y}) for name, part in (("train", observed), ("test", held_out))}


def draw(demo: Demo, path: Path) -> None:
    """Save a picture of the reliability before and after calibration. Requires matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    drawn = {"As fitted": demo.uncalibrated, "Calibrated on other pairs": demo.proba}
    for ax, (title, proba) in zip(figure.subplots(1, 2), drawn.items(), strict=True):
        ReliabilityDisplay.from_predictions(demo.held_out.y, proba, demo.held_out.classes, ax=ax)
        ax.set_title(title)
    with replacing(path) as file:
        figure.savefig(file, dpi=120, format=path.suffix[1:])
