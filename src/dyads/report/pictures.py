"""Pictures of models and their predictions, as scikit-learn's displays (extra ``dyads[plot]``).

A display is made by `from_estimator` of a fitted model, or by `from_predictions`. It holds what it shows, and `plot`
draws it again. `ax` : matplotlib axes to draw on, new ones by default; they are then `ax_`, in the figure `figure_`.
"""

import copy
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from dyads.data.codes import to_numpy
from dyads.data.tables import named_values, read_column
from dyads.errors import InputError
from dyads.learn.sampling import MIXED
from dyads.metrics import BINS, reliability, reliability_band
from dyads.trained.predictions import predictions_of

Array = np.ndarray[Any, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Palette of Okabe and Ito, safe for colour-blind readers."""

MARKERS = "os^D"
"""Markers of lines: the next one once all colours are used."""

DYADS_PER_BIN = 20
"""Fewest dyads per bin of a reliability curve, on average: fewer make a frequency that is mostly noise."""

LONGEST = 24
"""Longest text of an id or label in a picture, in characters; longer ones are cut."""


class Display(ABC):
    """A picture: what it shows, and how that is drawn.

    Attributes
    ----------
    ax_, figure_ : the matplotlib axes that it was drawn on last, and their figure
    """

    ax_: Any
    figure_: Any

    def plot(self, ax: Any = None) -> Self:
        """Draw the picture on matplotlib axes, by default on those of a new figure."""
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(layout="constrained")
        if not hasattr(ax, "plot"):
            raise InputError(f"ax is of type {type(ax).__name__}: expected matplotlib axes.")
        self._draw(ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    @abstractmethod
    def _draw(self, ax: Any) -> None: ...


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


def reliability_curves(truth: Array, proba: Array, sample_weight: Any = None) -> Iterator[Reliability]:
    """The calibration of each label; few dyads have few bins.

    `truth`, `proba` : (n, n_labels) mask of the true label, and probabilities.
    """
    n_bins = max(2, min(BINS, len(truth) // DYADS_PER_BIN))
    for happened, probability in zip(truth.T, np.asarray(proba, dtype=np.float64).T, strict=True):
        predicted, observed, _ = reliability(happened, probability, sample_weight, n_bins=n_bins)
        _, low, high = reliability_band(happened, probability, sample_weight, n_bins=n_bins)
        yield Reliability(predicted, observed, low, high)


@dataclass(eq=False, repr=False)
class ReliabilityDisplay(Display):
    """Observed frequency against predicted probability, one line per label; the diagonal is perfect calibration.

    The bins of a label have about equal weight, and few dyads have few bins; the bands are 90% bootstrap intervals over
    the dyads.

    Attributes
    ----------
    curves : for each label, its calibration by bins
    """

    curves: dict[Any, Reliability]

    @classmethod
    def from_estimator(cls, model: Any, X: Any, y: Any, *, sample_weight: Any = None, ax: Any = None) -> Self:
        """The reliability of any fitted model with `predict_proba` on labelled dyads that it was not fitted to."""
        _check_model(model, "predict_proba", f"{cls.__name__}.from_predictions(y, proba, classes)")
        predicted = predictions_of(model, X)
        return cls.from_predictions(y, predicted.proba, predicted.classes, sample_weight=sample_weight, ax=ax)

    @classmethod
    def from_predictions(cls, y: Any, proba: Any, classes: Any, *, sample_weight: Any = None, ax: Any = None) -> Self:
        """The reliability of probabilities.

        `y` : (n,) true labels; `proba` : (n, n_labels) probabilities; `classes` : (n_labels,) labels in the order of
        the columns of `proba`; `sample_weight` : (n,) or None.
        """
        truth = _read_truth(y, classes, cls)
        if np.shape(proba) != truth.shape:
            raise InputError(
                f"proba has shape {np.shape(proba)}: expected {truth.shape}, one line per label of y and one column "
                f"per class. For a fitted model, call {cls.__name__}.from_estimator(model, X, y)."
            )
        curves = reliability_curves(truth, proba, sample_weight)
        return cls(dict(zip(classes, curves, strict=True))).plot(ax)

    def _draw(self, ax: Any) -> None:
        ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="calibrated")
        for index, (label, curve) in enumerate(self.curves.items()):
            colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
            ax.fill_between(curve.predicted, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
            ax.plot(
                curve.predicted, curve.observed, marker=marker, markersize=4, linewidth=1.2, color=colour,
                label=_text(label),
            )  # fmt: skip
        ax.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_title("Reliability on held-out pairs")
        ax.legend(frameon=False)


@dataclass(eq=False, repr=False)
class ConfusionDisplay(Display):
    """The confusion matrix: numbers of dyads, or their summed weights, coloured by their share of the true label.

    Attributes
    ----------
    counts : (n_labels, n_labels) numbers of dyads, or summed weights, by true and by predicted label
    classes : (n_labels,) labels
    weighted : whether these are weights
    """

    counts: Array
    classes: Any
    weighted: bool

    @classmethod
    def from_estimator(cls, model: Any, X: Any, y: Any, *, sample_weight: Any = None, ax: Any = None) -> Self:
        """The confusion matrix of any fitted model on labelled dyads that it was not fitted to."""
        _check_model(model, "predict", f"{cls.__name__}.from_predictions(y, predicted, classes)")
        return cls.from_predictions(y, model.predict(X), model.classes_, sample_weight=sample_weight, ax=ax)

    @classmethod
    def from_predictions(
        cls, y: Any, predicted: Any, classes: Any, *, sample_weight: Any = None, ax: Any = None
    ) -> Self:
        """The confusion matrix of predicted labels.

        `y`, `predicted` : (n,) true and predicted labels; `classes` : (n_labels,); `sample_weight` : (n,) or None.
        """
        truth = _read_truth(y, classes, cls)
        if np.shape(predicted) != np.shape(y):
            raise InputError(
                f"y has shape {np.shape(y)} and predicted has shape {np.shape(predicted)}: expected one predicted label"
                f" per label of y. For a fitted model, call {cls.__name__}.from_estimator(model, X, y)."
            )
        weight = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        if weight.shape != (len(truth),):
            raise InputError(f"sample_weight has shape {weight.shape}: expected ({len(truth)},), one weight per dyad.")
        chosen = np.asarray(predicted)[:, None] == np.asarray(classes)
        return cls((truth * weight[:, None]).T @ chosen, classes, sample_weight is not None).plot(ax)

    def _draw(self, ax: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        counts = self.counts
        shares = counts / np.maximum(counts.sum(axis=1), np.finfo(float).tiny)[:, None]
        # From transparent to blue: it suits light and dark backgrounds.
        ax.imshow(
            shares, vmin=0, vmax=1, interpolation="nearest",
            cmap=LinearSegmentedColormap.from_list("share", [COLOURS[0] + "00", COLOURS[0] + "ff"]),
        )  # fmt: skip
        if len(self.classes) <= 12:
            digits = 0 if not self.weighted or counts.max() >= 100 else 2
            for true, choice in np.ndindex(counts.shape):
                colour = {"color": "white"} if shares[true, choice] > 0.8 else {}
                ax.text(choice, true, f"{counts[true, choice]:,.{digits}f}", {"ha": "center", "va": "center"} | colour)
        names = [_text(label) for label in self.classes]
        ax.set_xticks(range(len(names)), names, rotation=90 if len(names) * max(map(len, names)) > 45 else 0)
        ax.set_yticks(range(len(names)), names)
        ax.set(xlabel="predicted label", ylabel="true label")
        counted = "summed weights" if self.weighted else "numbers of pairs"
        ax.set_title(f"Confusion: {counted}, coloured by share of the true label", wrap=True)


@dataclass(eq=False, repr=False)
class TrainingDisplay(Display):
    """How a fit went: the objective of each restart, and the held-out loss if there is one, by iteration.

    Of a posterior, the negative log-likelihood of each chain by sweep; the burn-in is grey, and after it the lines
    should be level.

    Attributes
    ----------
    trace : the trace of the fit, `trace_`
    burn_in : sweeps of the burn-in of a posterior; None for a point estimate
    """

    trace: Mapping[str, Any]
    burn_in: int | None

    @classmethod
    def from_estimator(cls, model: Any, *, ax: Any = None) -> Self:
        """The training of a fitted model of this library."""
        _check_model(model, "trace_")
        diagnostics = getattr(model, "diagnostics_", None)
        return cls(model.trace_, None if diagnostics is None else diagnostics["burn_in"]).plot(ax)

    def _draw(self, ax: Any) -> None:
        init, iteration, value = (np.asarray(self.trace[name]) for name in ("init", "iteration", "objective"))
        samples = self.burn_in is not None
        for index in np.unique(init):
            this, name = init == index, f"chain {index + 1}" if samples else None
            colour = COLOURS[index % len(COLOURS) if samples else 0]
            ax.plot(iteration[this], value[this], color=colour, linewidth=1 if samples else 1.5, label=name)
        ax.set_title("Training")
        if samples:
            ax.axvspan(0, self.burn_in, color="0.5", alpha=0.2, linewidth=0, label="burn-in")
            ax.set(xlabel="sweep", ylabel="negative log-likelihood (sum over dyads)", xlim=(0, None))
            ax.legend(frameon=False)
            return
        ax.set(xlabel="iteration", ylabel="objective (sum over dyads)")
        validation = np.array(self.trace["validation"], dtype=float)
        if np.isfinite(validation).any():
            right = ax.twinx()
            right.plot(iteration[init == 0], validation[init == 0], color=COLOURS[1], linewidth=1.5)
            right.set_ylabel("held-out loss", color=COLOURS[1])


@dataclass(eq=False, repr=False)
class MixingDisplay(Display):
    """A histogram of R-hat over monitored predictions, and a limit; mixed chains have an R-hat near 1.

    Attributes
    ----------
    r_hat : R-hat of each monitored prediction
    limit : where to draw a line
    """

    r_hat: Array
    limit: float

    @classmethod
    def from_estimator(cls, model: Any, *, limit: float = MIXED, ax: Any = None) -> Self:
        """The mixing of the chains of a posterior."""
        if getattr(model, "diagnostics_", None) is None:
            raise InputError("The model has no chains: expected a model fitted with solver='gibbs'.")
        r_hat = np.asarray(model.diagnostics_["r_hat"])
        if not np.isfinite(r_hat).all():
            raise InputError("The chains are too short for an R-hat: run a few hundred sweeps, Gibbs(sweeps=).")
        return cls(r_hat, limit).plot(ax)

    def _draw(self, ax: Any) -> None:
        ax.hist(self.r_hat, bins=30, color=COLOURS[0])
        share = f"{(self.r_hat <= self.limit).mean():.0%} below {self.limit}"
        ax.axvline(self.limit, color=COLOURS[1], linestyle="--", linewidth=1.5, label=share)
        ax.set(xlabel="R-hat", ylabel=f"count, of {len(self.r_hat)} monitored predictions")
        ax.set_title("Have the chains mixed?")
        ax.legend(frameon=False)


@dataclass(eq=False, repr=False)
class IntervalDisplay(Display):
    """The probability of every label of one dyad, with its posterior interval.

    Attributes
    ----------
    proba : (n_labels,) probabilities
    bounds : (n_labels, 2) their lower and upper bounds
    classes : (n_labels,) labels
    level : posterior probability of each interval
    """

    proba: Array
    bounds: Array
    classes: Any
    level: float

    @classmethod
    def from_estimator(cls, model: Any, X: Any, *, level: float = 0.9, ax: Any = None) -> Self:
        """The intervals of a posterior; X is a table of one line."""
        _check_model(model, "predict_interval")
        arrays = copy.copy(model).set_output("default")
        proba, bounds = arrays.predict_proba(X), arrays.predict_interval(X, level)
        if len(proba) != 1:
            raise InputError(f"X has {len(proba)} dyads: expected exactly one.")
        return cls.from_predictions(proba[0], bounds[0], model.classes_, level=level, ax=ax)

    @classmethod
    def from_predictions(cls, proba: Any, bounds: Any, classes: Any, *, level: float = 0.9, ax: Any = None) -> Self:
        """Probabilities (n_labels,) of one dyad and their bounds (n_labels, 2)."""
        proba, bounds = np.asarray(proba), np.asarray(bounds)
        if proba.shape != (len(classes),) or bounds.shape != (len(classes), 2):
            raise InputError(
                f"proba has shape {proba.shape} and bounds {bounds.shape}: expected ({len(classes)},) and "
                f"({len(classes)}, 2), of one dyad. Choose a line of each."
            )
        return cls(proba, bounds, classes, level).plot(ax)

    def _draw(self, ax: Any) -> None:
        labels, places = [_text(label) for label in self.classes], range(len(self.classes))
        name = f"{self.level:.0%} interval"
        ax.vlines(places, *self.bounds.T, color=COLOURS[0], linewidth=3, alpha=0.5, label=name)
        ax.plot(places, self.proba, "o", color=COLOURS[0], label="probability")
        ax.set_xticks(places, labels)
        top = 1.3 * self.bounds.max()  # leave room for the legend
        ax.set(xlabel="label", ylabel="probability", ylim=(0, top), xlim=(-0.5, len(labels) - 0.5))
        ax.set_title("How sure is the model of its probabilities?")
        ax.legend(frameon=False)


@dataclass(eq=False, repr=False)
class ExplanationDisplay(Display):
    """What each part adds to the log-odds of every label of one dyad, one dot per label, and the sum.

    Attributes
    ----------
    parts : for each part, what it adds to each label (n_labels,); the last is the sum
    classes : labels
    pair : the ids of the dyad
    """

    parts: dict[str, Array]
    classes: list[Any]
    pair: str

    @classmethod
    def from_estimator(cls, model: Any, X: Any, *, dyad: int = 0, most: int = 12, ax: Any = None) -> Self:
        """The explanation of one dyad of X."""
        _check_model(model, "explain", f"{cls.__name__}.from_predictions(explanation)")
        return cls.from_predictions(model.explain(X), dyad=dyad, most=most, ax=ax)

    @classmethod
    def from_predictions(cls, explanation: Any, *, dyad: int = 0, most: int = 12, ax: Any = None) -> Self:
        """The same from the table of `explain`.

        The `most` parts that differ most between labels are shown, and the others are summed in one line.
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
        parts = {name: value[part == name] for name in dict.fromkeys(part.tolist())}
        order = sorted(parts, key=lambda name: -np.ptp(parts[name]))
        shown = {name: parts[name] for name in parts if name in order[:most]}
        if len(order) > most:
            shown[f"{len(order) - most} others"] = np.sum([parts[name] for name in order[most:]], axis=0)
        shown["sum: log-odds"] = np.sum(list(parts.values()), axis=0)
        ids = [name for name in columns if name not in ("dyad", "label", "part", "value")]
        pair = " × ".join(f"{name} {_text(columns[name][selected][0])}" for name in ids) or f"dyad {dyad}"
        return cls(shown, list(dict.fromkeys(label.tolist())), pair).plot(ax)

    def _draw(self, ax: Any) -> None:
        ax.axvline(0, color="0.6", linewidth=1)
        ax.axhline(len(self.parts) - 1.5, color="0.6", linewidth=1)
        for index, name in enumerate(self.classes):
            sizes, colour = [part[index] for part in self.parts.values()], _colour(index, self.classes)
            ax.plot(sizes, range(len(sizes)), "o", color=colour, markersize=6, alpha=0.85, label=_text(name))
        ax.set_yticks(range(len(self.parts)), list(self.parts))
        ax.grid(axis="y", color="0.92")
        ax.set_axisbelow(True)
        ax.invert_yaxis()
        ax.set(xlabel="added to the log-odds of a label")
        ax.set_title(f"Parts of the prediction for {self.pair}")
        if ax.figure.get_layout_engine() is None:
            # Without it the names of the parts are cut off.
            ax.figure.set_layout_engine("constrained")
        ax.legend(frameon=False, title="label", bbox_to_anchor=(1, 1), loc="upper left")


@dataclass(eq=False, repr=False)
class SearchDisplay(Display):
    """The held-out log-loss of a search against one parameter, with its standard error over folds; the best is marked.

    Attributes
    ----------
    lines : by values of the other parameters, (value, log-loss, standard error) of each candidate
    parameter : name of the parameter
    """

    lines: dict[str, list[tuple[float, float, float]]]
    parameter: str

    @classmethod
    def from_estimator(cls, search: Any, *, parameter: str = "l2__latent", ax: Any = None) -> Self:
        """A fitted search by log-loss: `LFLClassifierCV`, `LFLOrdinalCV`, or scikit-learn's with "neg_log_loss"."""
        _check_model(search, "cv_results_")
        results = search.cv_results_
        lines: dict[str, list[tuple[float, float, float]]] = {}
        n_folds = sum(name.startswith("split") for name in results)
        scores = zip(results["params"], results["mean_test_score"], results["std_test_score"], strict=True)
        for params, mean, deviation in scores:
            if parameter in params:
                named = {name: value for name, value in params.items() if name != parameter and value is not None}
                others = ", ".join(f"{name} {value}" for name, value in named.items())
                lines.setdefault(others, []).append((params[parameter], -mean, deviation / np.sqrt(n_folds)))
        if not lines:
            raise InputError(f"parameter={parameter!r} was not searched: expected one of {list(results['params'][0])}.")
        return cls(lines, parameter).plot(ax)

    def _draw(self, ax: Any) -> None:
        for index, (others, points) in enumerate(self.lines.items()):
            x, loss, error = np.array(sorted(points)).T
            ax.errorbar(x, loss, error, marker="o", markersize=4, linewidth=1.2, capsize=2, label=others,
                        color=COLOURS[index % len(COLOURS)])  # fmt: skip
        best = min((point for points in self.lines.values() for point in points), key=lambda point: point[1])
        ax.plot(best[0], best[1], "o", markersize=11, markerfacecolor="none", color="0.3", label="best")
        ax.set(xscale="log", xlabel=self.parameter, ylabel="held-out log-loss")
        ax.set_title("Cross-validation")
        ax.legend(frameon=False)


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


@dataclass(eq=False, repr=False)
class MapDisplay(Display):
    """Rows or columns on the first two principal components of their latent weights: near ones have similar labels.

    Attributes
    ----------
    places : (n, 2) places of the ids
    ids : (n,) ids
    shares : shares of the variance of latent weights along both axes
    most : most ids to name: those far from the centre first, and only where names do not overlap
    """

    places: Array
    ids: Array
    shares: tuple[float, float]
    most: int

    @classmethod
    def from_estimator(cls, model: Any, *, side: str = "row", most: int = 60, ax: Any = None) -> Self:
        """The map of the rows of a fitted model of this library; of its columns, for ``side="col"``."""
        _check_model(model, "record_")
        ids = model.row_ids_ if side == "row" else model.col_ids_
        places, share = latent_map(model, side)
        return cls(places, ids, (float(share[0]), float(share[1])), most).plot(ax)

    def _draw(self, ax: Any) -> None:
        # Hundreds of points as vector graphics make a large file.
        ax.scatter(*self.places.T, s=14, color=COLOURS[0], alpha=0.8, linewidths=0, rasterized=len(self.ids) > 300)
        first, second = self.shares
        ax.set(xlabel=f"first principal component ({first:.0%})", ylabel=f"second principal component ({second:.0%})")
        _write_names(ax, self.places, [_text(name) for name in self.ids], self.most)
        ax.set_title("Latent weights: near points have similar labels")


def _read_truth(y: Any, classes: Any, display: type[Display]) -> Array:
    """Labels as a mask (n, n_labels), one column per class; refuses the arguments of `from_estimator`."""
    of_model = f"For a fitted model, call {display.__name__}.from_estimator(model, X, y)."
    if hasattr(y, "predict"):
        raise InputError(f"y is a model ({type(y).__name__}): expected labels. {of_model}")
    y, classes = np.asarray(y), np.asarray(classes)
    if y.ndim != 1 or classes.ndim != 1:
        raise InputError(
            f"y has shape {y.shape} and classes has shape {classes.shape}: expected (n,) and (n_labels,). {of_model}"
        )
    return np.asarray(y[:, None] == classes)


def _check_model(model: Any, attribute: str, otherwise: str = "") -> None:
    """Raise unless a model has what a display needs; `otherwise` : the call for what is no model."""
    if not hasattr(model, attribute):
        hint = f" For predictions, call {otherwise}." if otherwise else ""
        raise InputError(
            f"model is of type {type(model).__name__}, without {attribute}: expected a fitted model that has it.{hint}"
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


def _colour(index: int, labels: list[Any]) -> Any:
    """Colour of a label: from `COLOURS`, or from a sequential map if the labels are numbers or too many."""
    if len(labels) > len(COLOURS) or (len(labels) > 2 and not isinstance(labels[0], str)):
        from matplotlib import colormaps

        return colormaps["viridis"](index / (len(labels) - 1))
    return COLOURS[index]


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
