"""The report on a model: a self-contained HTML page in which predictions of pairs can be looked up."""

import base64
import datetime
import functools
import html
import importlib.util
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Sequence
from importlib.resources import files
from string import Template
from typing import Any
from xml.etree import ElementTree

import numpy as np

import dyads
from dyads import metrics
from dyads.data.codes import label_codes, numeric_values, read_labels
from dyads.data.files import check_writable, replacing
from dyads.data.observations import read_weight
from dyads.data.tables import named_arrays, named_values
from dyads.errors import InputError, UnknownIdWarning, counted
from dyads.estimators.ranking import evaluate_ranking
from dyads.estimators.selection import Evaluation, predictors_of, turned
from dyads.report import pictures
from dyads.trained.predictions import Predictions

Array = np.ndarray[Any, Any]

LOOKED_UP = 400_000
"""Largest number of probabilities stored in the page, about 1 MB; larger models keep the ids with the most labels."""

LISTED, RANKED_ROWS = 10, 200
"""Length of the lists that are judged, and most rows that they are made for: more rows take longer."""

DRAWS = 500
"""Bootstrap samples of the pairs for the intervals of metrics: more take longer and make the bounds less noisy."""

SHOWN = 5
"""Number of predictions in the tables of the most and of the least certain ones."""

MOST_LABELS = 12
"""Largest number of labels in a table or a picture: the most frequent ones."""

INK = "#1b1f24"
"""Colour of texts and lines in pictures, which becomes the text colour of the page, light or dark."""


def report(
    model: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    sample_weight: Any = None,
    row_features: Any = None,
    col_features: Any = None,
    model_name: str | None = None,
    data_name: str | None = None,
    date: datetime.date | None = None,
) -> str:
    """Make an HTML report on a fitted model, evaluated on labelled dyads that were not used for training.

    Returns the page, and writes it to a file if `path` is given. The page needs no other file. It has metrics,
    calibration, pictures, and a form to look up pairs.

    Parameters
    ----------
    X, y, sample_weight : labelled dyads, and their weights (n,) if they have any; all figures are weighted
    path : file to write, by default none; an existing file is replaced once the page is complete
    row_features, col_features : as for `predict_proba`
    model_name : title of the page, by default the name of the estimator
    data_name : name of the data in the page, such as that of their file
    date : date in the page, by default today
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("The report needs matplotlib, which is not installed: run pip install 'dyads[plot]'.")
    features = {"row_features": row_features, "col_features": col_features}
    if path is not None:
        check_writable(path)
    truth, weight = read_labels(y), read_weight(sample_weight)
    if not len(truth):
        raise InputError("There are no labelled pairs: the report needs at least one. Check the table.")
    if weight is not None and len(weight) != len(truth):
        raise InputError(f"Got {len(truth)} labels but {len(weight)} weights: expected one weight per label.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownIdWarning)
        predictors = predictors_of(model, X, row_features, col_features)
        proba, predicted = predictors["model"].proba, predictors["model"].labels
        sections = {
            "facts": _facts(model, truth, weight, data_name),
            **_metrics(model, predictors, truth, weight),
            "labels": _labels(model, truth, proba, weight),
            "pictures": _pictures(model, truth, proba, predicted, weight),
            "ranking": _ranking(model, X, truth),
            "certain": _certain(model, X, features, truth, proba, most=True),
            "uncertain": _certain(model, X, features, truth, proba, most=False),
        }
        looked_up, note = _lookup(model, features)
    names = {
        "name": type(model).__name__ if model_name is None else model_name,
        "date": (datetime.date.today() if date is None else date).isoformat(),
        "version": dyads.__version__,
        **dict(zip(("row", "col"), (ids.name for ids in model.record_.known.vocabularies[:2]), strict=True)),
    }
    page, style, script = (
        files("dyads.report").joinpath(name).read_text(encoding="utf8")
        for name in ("page.html", "parts.css", "parts.js")
    )
    text = Template(page).substitute(
        sections | {key: html.escape(name) for key, name in names.items()},
        style=style,
        script=script,
        data=json.dumps(looked_up).replace("<", "\\u003c"),
        note=note,
        hidden="" if looked_up["rows"] else "hidden",
    )
    if path is not None:
        with replacing(path) as file:
            file.write(text.encode())
    return text


def _facts(model: Any, truth: Array, weight: Array | None, data_name: str | None) -> str:
    record = model.record_
    trained = f"{model.solver_}, {model.n_iter_} iterations"
    if record.is_posterior:
        trained = f"{len(record.draws)} draws of the posterior, {model.n_iter_} sweeps"
    tested = counted(len(truth), "pair") + ("" if data_name is None else f" of {data_name}")
    facts = {
        "model": f"{type(model).__name__}, {model.structure_}, rank {model.record_.parts.rank}",
        "trained": f"{trained} on {counted(model.trained_on_['pairs'], 'pair')}; {model.n_parameters_:,} weights",
        "rows": f"{len(model.row_ids_):,} ids of {record.known.vocabularies[0].name}",
        "columns": f"{len(model.col_ids_):,} ids of {record.known.vocabularies[1].name}",
        "tested on": tested,
    }
    if record.calibrator is not None:
        facts["calibrated"] = f"method {type(record.calibrator).__name__.lower()}"
    if weight is not None:
        facts["weights"] = f"all figures are weighted; the weights of the pairs sum to {weight.sum():,.6g}"
    lines = (f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items())
    return f"<dl>{''.join(lines)}</dl>"


def _most_frequent(truth: Array, classes: Array, weight: Array | None) -> Array:
    """Codes of the `MOST_LABELS` most frequent labels, in the order of `classes`."""
    counts = np.bincount(label_codes(truth, classes), weight, len(classes))
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_LABELS])


def _labels(model: Any, truth: Array, proba: Array, weight: Array | None) -> str:
    """Table of the labels: number of pairs, and share of the pairs next to the mean predicted probability."""
    most, classes = _most_frequent(truth, model.classes_, weight), model.classes_
    rows = []
    for label, probability in zip(classes[most], proba[:, most].T, strict=True):
        share, mean = (np.average(each, weights=weight) for each in (truth == label, probability))
        rows.append([str(label), f"{(truth == label).sum():,}", f"{share:.2%}", f"{mean:.2%}"])
    cut = f"The {MOST_LABELS} most frequent of {len(classes):,} labels. " if len(most) < len(classes) else ""
    return f'<p class="faint">{cut}In calibrated predictions, the last two columns are about equal.</p>' + _rows(
        ["label", "pairs", f"share of the {'pairs' if weight is None else 'weight'}", "mean probability"], rows
    )


def _metrics(model: Any, predictors: dict[str, Predictions], truth: Array, weight: Array | None) -> dict[str, str]:
    """The sections of metrics, next to the marginals of the training data: of all pairs, and by regime.

    In the first, metrics that are means over pairs have 90% intervals, and a sentence says if marginals do as well.
    """
    judged = Evaluation(ordered=hasattr(model, "predict_mean"))
    judged.add(predictors, truth, weight)
    tables = turned(judged.columns())
    _, figures = tables.pop("all")
    losses = _losses(model, predictors, truth)
    intervals = {metrics.TITLES[name]: _interval(loss, weight) for name, loss in losses.items()}
    rows = [[title, ours + intervals.get(title, ""), *others] for title, ours, *others in _written(figures)]
    _, first, *marginals = figures
    sentence = judged.shortfall(model)
    section = _rows(["metric", f"{first} (90% interval)", *marginals], rows)
    regimes = [
        f"<h3>{html.escape(regime)}: {counted(n, 'pair')}</h3>{_rows(list(columns), _written(columns))}"
        for regime, (n, columns) in tables.items()
    ]
    return {
        "metrics": section + (f'<p class="warning">{html.escape(sentence)}</p>' if sentence else ""),
        "regimes": "".join(regimes) or "<p>All rows and columns of these pairs had labels in training.</p>",
    }


def _written(columns: dict[str, list[Any]]) -> list[list[str]]:
    """The rows of a table of `turned`: a metric, and its figures to four digits; NaN is a dash."""
    return [
        [title, *("–" if np.isnan(figure) else f"{figure:.4f}" for figure in figures)]
        for title, *figures in zip(*columns.values(), strict=True)
    ]


def _losses(model: Any, predictors: dict[str, Predictions], truth: Array) -> dict[str, Array]:
    """Loss or score of the model for each pair, by metric; the metrics are their means."""
    predictions, classes = predictors["model"], model.classes_
    losses = {
        "log_loss": metrics.log_losses(truth, predictions.proba, classes),
        "brier_score": metrics.brier_scores(truth, predictions.proba, classes),
        "accuracy": (predictions.labels == truth).astype(float),
    }
    if hasattr(model, "predict_mean"):
        values = numeric_values(classes)
        losses["mean_absolute_error"] = np.abs(values[predictions.codes] - values[label_codes(truth, classes)])
    return losses


def _interval(losses: Array, weight: Array | None) -> str:
    """A 90% bootstrap interval of the mean, as text."""
    if weight is not None:
        # Without the pairs that do not count, every sample has a mean.
        losses, weight = losses[weight > 0], weight[weight > 0]
    rng, n = np.random.default_rng(0), len(losses)
    draws = (rng.integers(0, n, n) for _ in range(DRAWS))
    means = [np.average(losses[drawn], weights=None if weight is None else weight[drawn]) for drawn in draws]
    low, high = np.quantile(means, [0.05, 0.95])
    return f" ({low:.4f} to {high:.4f})"


def _ranking(model: Any, X: Any, truth: Array) -> str:
    """Section on the lists of best columns, or nothing: labels without an order have no best."""
    known, classes = model.record_.known, model.classes_
    is_ranked = len(classes) == 2 or hasattr(model, "predict_mean")
    relevant = np.flatnonzero(truth == classes[-1])
    if not is_ranked or known.dyad_encoder is not None or known.seen is None or not len(relevant):
        return ""
    columns = named_arrays(X)
    names = [vocabulary.name for vocabulary in known.vocabularies]
    rows, first = np.unique(columns[names[0]][relevant], return_index=True)
    few = rows[np.argsort(first, kind="stable")][:RANKED_ROWS]
    relevant = relevant[np.isin(columns[names[0]][relevant], few)]
    try:
        pairs = {name: columns[name][relevant] for name in names}
        figures = named_arrays(evaluate_ranking(model, pairs, k=LISTED, by=classes[-1].item()))
    except InputError:
        # All of these pairs are training pairs.
        return ""
    lines = [
        [str(metric), f"{value:.4f} ({low:.4f} to {high:.4f})"]
        for metric, value, low, high in zip(
            *(figures[name] for name in ("metric", "value", "low", "high")), strict=True
        )
    ]
    cut = f" (of {len(few)} of {len(rows):,} rows)" if len(few) < len(rows) else ""
    best = html.escape(str(classes[-1]))
    names = [html.escape(name) for name in names]
    return (
        f'<h2>Ranking</h2><p class="faint">The {LISTED} columns ({names[1]}) of each row ({names[0]}) with the '
        f"greatest probability of label {best}, without those seen in training: how far up the pairs "
        f"with this label are{cut}. Means over rows.</p>" + _rows(["metric", "model (90% interval)"], lines)
    )


NUMBER = re.compile(r"[+−-]?[\d.,]+%?|–|")
INTERVAL = re.compile(r"(\S+) (\(\S+ to \S+\))")


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """HTML table; the first cell of a row is its heading, and columns of numbers are aligned to the right."""
    columns = list(zip(*rows, strict=True))
    numeric = [all(NUMBER.fullmatch(cell) or INTERVAL.fullmatch(cell) for cell in column) for column in columns]
    classes = ["", *(' class="number"' if right else "" for right in numeric[1:])]
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(name)}</th>' for name, kind in zip(header, classes, strict=True)
    )
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td{kind}>{_cell(cell)}</td>" for cell, kind in zip(others, classes[1:], strict=True))
        body += f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>'
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(", ".join(header))}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    """HTML of a cell; an interval after a figure has a line of its own on a narrow screen."""
    return INTERVAL.sub(r'\1 <span class="interval">\2</span>', html.escape(text))


def _pictures(model: Any, truth: Array, proba: Array, predicted: Array, weight: Array | None) -> str:
    known, most = model.record_.known, _most_frequent(truth, model.classes_, weight)
    classes = model.classes_[most]
    cut = f" of the {len(most)} most frequent labels" if len(most) < len(model.classes_) else ""
    counted = "numbers of pairs" if weight is None else "summed weights"
    drawn: dict[str, Callable[..., pictures.Display]] = {
        f"Reliability{cut}, with 90% intervals of the observed frequency": functools.partial(
            pictures.ReliabilityDisplay.from_predictions, truth, proba[:, most], classes, sample_weight=weight
        ),
        f"Confusion{cut}: {counted}, coloured by share of the true label": functools.partial(
            pictures.ConfusionDisplay.from_predictions, truth, predicted, classes, sample_weight=weight
        ),
    }
    training = functools.partial(pictures.TrainingDisplay.from_estimator, model)
    if hasattr(model, "diagnostics_"):
        title = "Trace of the sampler: after the burn-in it should be level"
        drawn[title] = training
        if np.isfinite(model.diagnostics_["r_hat"]).all():
            title = "R-hat of monitored predictions: near 1 where chains, or halves of one, agree"
            drawn[title] = functools.partial(pictures.MixingDisplay.from_estimator, model)
    else:
        drawn["Training: objective by iteration"] = training
    if model.record_.best_model.latent(np.arange(1), "row").size > 1:
        for side, what, vocabulary in zip(("row", "col"), ("rows", "columns"), known.vocabularies, strict=False):
            if len(vocabulary) > 2 and not (side == "col" and known.one_set):
                title = f"Map of {what} ({vocabulary.name}): near points have similar labels"
                drawn[title] = functools.partial(pictures.MapDisplay.from_estimator, model, side=side, most=40)
    return "".join(_picture(title, draw) for title, draw in drawn.items())


STYLE: dict[Any, Any] = {
    # A dollar sign in an id must not start a formula.
    "text.parse_math": False,
    # Texts are written in a font of the reader, who may have letters that are missing here.
    "svg.fonttype": "none",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
"""Settings of matplotlib for the pictures of the page."""


def _picture(title: str, draw: Callable[..., pictures.Display]) -> str:
    """HTML of a picture, as SVG within the page: on its background and in its text colour, light or dark."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with rc_context(STYLE | {"svg.hashsalt": title}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(5, 4), layout="constrained")
        draw(ax=figure.subplots()).ax_.set_title("")
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", dpi=144, transparent=True, metadata=nothing)
    drawing = ElementTree.fromstring(file.getvalue())
    box = drawing.get("viewBox", "")
    for element in drawing.iter():
        element.tag = element.tag.split("}")[-1]
        # Groups have the same ids in every picture, and nothing refers to them.
        element.attrib = {
            name.split("}")[-1]: _short(name, value).replace(INK, "currentColor")
            for name, value in element.attrib.items()
            if (element.tag, name) != ("g", "id")
        }
    drawing.attrib = {"viewBox": box, "role": "img", "aria-label": title}
    drawn = ElementTree.tostring(drawing, encoding="unicode")
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{drawn}</figure>"


def _short(name: str, value: str) -> str:
    """Value of an attribute; coordinates have two decimals, which is a hundredth of a point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", value) if name in ("d", "x", "y") else value


def _certain(model: Any, X: Any, features: dict[str, Any], truth: Array, proba: Array, most: bool) -> str:
    """Table of the most or the least certain predictions, with the parts that add most to their log-odds.

    Log-odds are those of the most probable label y against the mean of the others, of which parts are
    v_y - mean over z != y of v_z, with the parts v of `explain`: whichever label is the reference, they are the same.
    """
    confidence = proba.max(axis=1)
    columns = {name: np.asarray(column) for name, column in named_values(X).items()}
    ids = [vocabulary.name for vocabulary in model.record_.known.vocabularies]
    picked: dict[tuple[Any, ...], int] = {}
    for index in np.argsort(-confidence if most else confidence, kind="stable").tolist():
        picked.setdefault(tuple(columns[name][index] for name in ids), index)
        if len(picked) == SHOWN:
            break
    chosen = list(picked.values())
    explained = named_arrays(model.explain({name: column[chosen] for name, column in columns.items()}, **features))
    rows = []
    for line, (pair, index) in enumerate(picked.items()):
        best, label = int(proba[index].argmax()), model.classes_[proba[index].argmax()]
        selected = explained["dyad"] == line
        values = explained["value"][selected].astype(float).reshape(-1, len(model.classes_))
        parts = explained["part"][selected][:: len(model.classes_)]
        against = values[:, best] - np.delete(values, best, axis=1).mean(axis=1)
        order = np.argsort(-np.abs(against), kind="stable")[:3]
        # No line breaks within a part.
        largest = ", ".join(f"{parts[k]} {against[k]:+.2f}".replace(" ", "\N{NO-BREAK SPACE}") for k in order)
        shown = [" × ".join(map(str, pair)), str(label), f"{proba[index, best]:.3f}", str(truth[index]), largest]
        rows.append(shown)
    adds = "what adds most to its log-odds" + ("" if model.record_.calibrator is None else ", before calibration")
    return _rows(["pair", "most probable label", "probability", "true label", adds], rows)


def _lookup(model: Any, features: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Probabilities that the page can look up, of all pairs or of the ids with the most labels, and a note on which."""
    known = model.record_.known
    n_labels = len(model.classes_)
    ids = [np.asarray(model.row_ids_), np.asarray(model.col_ids_)]
    if len(known.vocabularies) > 2:
        return {"rows": [], "cols": [], "labels": [], "values": ""}, "Not available for a model of several relations."
    counts = [np.asarray(side.counts) for side in (known.rows, known.cols)]
    sizes = [len(names) for names in ids]
    room = LOOKED_UP // n_labels
    if sizes[0] * sizes[1] > room:
        shrink = np.sqrt(room / (sizes[0] * sizes[1]))
        most = [max(1, int(size * shrink)) for size in sizes]
        ids = [
            side[np.sort(np.argsort(-count, kind="stable")[:k])]
            for side, count, k in zip(ids, counts, most, strict=True)
        ]
    names = [vocabulary.name for vocabulary in known.vocabularies[:2]]
    pairs = {names[0]: np.repeat(ids[0], len(ids[1])), names[1]: np.tile(ids[1], len(ids[0]))}
    if list(model.columns_) != names:
        return {"rows": [], "cols": [], "labels": [], "values": ""}, "Not available for a model with features of pairs."
    proba = model.predictions(pairs, **features).proba
    values = np.round(np.nan_to_num(proba) * 65535).astype("<u2")
    note = "All pairs of ids known to the model."
    if (len(ids[0]), len(ids[1])) != tuple(sizes):
        kept = f"{len(ids[0]):,} rows and {len(ids[1]):,} columns"
        note = f"Pairs of the {kept} with the most labels; use <code>dyads predict</code> for all others."
    return {
        "rows": [str(name) for name in ids[0]],
        "cols": [str(name) for name in ids[1]],
        "labels": [str(label) for label in model.classes_],
        "most": MOST_LABELS,
        "values": base64.b64encode(values.tobytes()).decode(),
    }, note
