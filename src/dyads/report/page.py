"""The report on a model: a self-contained HTML page in which predictions of pairs can be looked up."""

import base64
import html
import importlib.util
import io
import json
import warnings
from collections.abc import Callable, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from dyads import metrics, report
from dyads.data.codes import label_codes, numeric_values, read_labels
from dyads.data.tables import named_arrays, named_values
from dyads.errors import InputError, UnknownIdWarning
from dyads.estimators.selection import by_regime, predictors_of, shortfall, turned
from dyads.trained.predictions import Predictions

Array = np.ndarray[Any, Any]

LOOKED_UP = 2_000_000
"""Largest number of probabilities stored in the page, about 5 MB; larger models keep the ids with the most labels."""

DRAWS = 500
"""Bootstrap samples of the pairs for the intervals of metrics: more take longer and make the bounds less noisy."""

SHOWN = 5
"""Number of predictions in the tables of the most and of the least certain ones."""


def report_page(model: Any, X: Any, y: Any, name: str, *, row_features: Any = None, col_features: Any = None) -> str:
    """HTML report on a fitted model called `name`, evaluated on labelled pairs X, y not used for training."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("The report needs matplotlib, which is not installed: run pip install 'dyads[plot]'.")
    features = {"row_features": row_features, "col_features": col_features}
    truth = read_labels(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownIdWarning)
        predictors = predictors_of(model, X, row_features, col_features)
        proba, predicted = predictors["model"].proba, predictors["model"].labels
        sections = {
            "facts": _facts(model, truth),
            **_metrics(model, predictors, truth),
            "pictures": _pictures(model, truth, proba, predicted),
            "certain": _certain(model, X, features, truth, proba, most=True),
            "uncertain": _certain(model, X, features, truth, proba, most=False),
        }
        looked_up, note = _lookup(model, features)
    data = json.dumps(looked_up).replace("<", "\\u003c")
    row_name, col_name = (html.escape(vocabulary.name) for vocabulary in model.record_.known.vocabularies[:2])
    page = files("dyads.report").joinpath("page.html").read_text(encoding="utf8")
    return Template(page).substitute(
        sections, name=html.escape(name), n=f"{len(truth):,}", data=data, note=note, row=row_name, col=col_name
    )


def _facts(model: Any, truth: Array) -> str:
    record = model.record_
    shares = [f"{label} {(truth == label).mean():.1%}" for label in model.classes_.tolist()]
    sampled = f"{len(record.draws)} draws of the posterior" if record.is_posterior else model.solver_
    facts = {
        "model": f"{type(model).__name__}, {type(record.parts.structure).__name__.lower()}, rank {model.rank}",
        "trained": f"{sampled}, {model.n_iter_} iterations; {model.n_parameters_:,} weights",
        "rows": f"{len(model.row_ids_):,} ids of {record.known.vocabularies[0].name}",
        "columns": f"{len(model.col_ids_):,} ids of {record.known.vocabularies[1].name}",
        "tested on": f"{len(truth):,} pairs",
        "their labels": ", ".join(shares[:12]) + (", ..." if len(shares) > 12 else ""),
    }
    lines = (f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items())
    return f"<dl>{''.join(lines)}</dl>"


def _metrics(model: Any, predictors: dict[str, Predictions], truth: Array) -> dict[str, str]:
    """The sections of metrics, next to the marginals of the training data: of all pairs, and by regime.

    In the first, metrics that are means over pairs have 90% intervals, and a sentence says if marginals do as well.
    """
    tables = turned(by_regime(predictors, truth, ordered=hasattr(model, "predict_mean")))
    _, figures = tables.pop("all")
    intervals = {metrics.TITLES[name]: _interval(loss) for name, loss in _losses(model, predictors, truth).items()}
    rows = [[title, ours + intervals.get(title, ""), *others] for title, ours, *others in _written(figures)]
    _, first, *marginals = figures
    sentence = shortfall(model, predictors, truth)
    section = _rows(["metric", f"{first} (90% interval)", *marginals], rows)
    regimes = [
        f"<h3>{html.escape(regime)}: {n:,} pairs</h3>{_rows(list(columns), _written(columns))}"
        for regime, (n, columns) in tables.items()
    ]
    return {
        "metrics": section + (f"<p>{html.escape(sentence)}</p>" if sentence else ""),
        "regimes": "".join(regimes) or "<p>All rows and columns of these pairs had labels in training.</p>",
    }


def _written(columns: dict[str, list[Any]]) -> list[list[str]]:
    """The rows of a table of `turned`: a metric, and its figures to four digits."""
    return [[title, *(f"{figure:.4f}" for figure in rest)] for title, *rest in zip(*columns.values(), strict=True)]


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


def _interval(losses: Array) -> str:
    """A 90% bootstrap interval of the mean, as text."""
    rng = np.random.default_rng(0)
    draws = [losses[rng.integers(0, len(losses), len(losses))].mean() for _ in range(DRAWS)]
    low, high = np.quantile(draws, [0.05, 0.95])
    return f" ({low:.4f} to {high:.4f})"


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in others)
        body += f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>'
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(", ".join(header))}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _pictures(model: Any, truth: Array, proba: Array, predicted: Array) -> str:
    drawn: dict[str, Callable[[Any], Any]] = {
        "Reliability: observed frequency against predicted probability": lambda ax: report.plot_reliability(
            ax, truth, proba, model.classes_
        ),
        "Confusion: predicted against true labels": lambda ax: report.plot_confusion(
            ax, truth, predicted, model.classes_
        ),
        "Training: objective by iteration": lambda ax: report.plot_training_curve(ax, model.trace_),
    }
    if model.embed(model.row_ids_[:1]).size > 1:
        if len(model.row_ids_) > 2:
            drawn["Map of rows by their latent weights"] = lambda ax: report.plot_latent_map(ax, model, "row", 40)
        if len(model.col_ids_) > 2 and not model.record_.known.one_set:
            drawn["Map of columns by their latent weights"] = lambda ax: report.plot_latent_map(ax, model, "col", 40)
    return "".join(_picture(title, draw) for title, draw in drawn.items())


def _picture(title: str, draw: Callable[[Any], Any]) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.BytesIO()
    # A dollar sign in an id must not start a formula.
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(6.4, 5), layout="constrained")
        draw(figure.subplots())
        figure.savefig(file, format="svg")
    source = base64.b64encode(file.getvalue()).decode()
    return (
        f'<figure><img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{source}">'
        f"<figcaption>{html.escape(title)}</figcaption></figure>"
    )


def _certain(model: Any, X: Any, features: dict[str, Any], truth: Array, proba: Array, most: bool) -> str:
    """Table of the most or the least certain predictions, with the parts that add most to their log-odds."""
    confidence = proba.max(axis=1)
    picked = np.argsort(-confidence if most else confidence, kind="stable")[:SHOWN]
    columns = {name: np.asarray(column)[picked] for name, column in named_values(X).items()}
    explained = named_arrays(model.explain(columns, **features))
    ids = [vocabulary.name for vocabulary in model.record_.known.vocabularies[:2]]
    rows = []
    for line, index in enumerate(picked):
        best = int(proba[index].argmax())
        label = model.classes_[best]
        selected = (explained["dyad"] == line) & (explained["label"] == label)
        parts, values = explained["part"][selected], explained["value"][selected].astype(float)
        order = np.argsort(-np.abs(values))[:3]
        largest = ", ".join(f"{parts[k]} {values[k]:+.2f}" for k in order)
        pair = [str(columns[name][line]) for name in ids]
        rows.append([" × ".join(pair), f"{label} ({proba[index, best]:.3f})", str(truth[index]), largest])
    return _rows(["pair", "most probable label", "true label", "what adds most to its log-odds"], rows)


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
    proba = model.predict_proba(pairs, **features)
    values = np.round(np.nan_to_num(proba) * 65535).astype("<u2")
    note = "All pairs of ids known to the model."
    if (len(ids[0]), len(ids[1])) != tuple(sizes):
        kept = f"{len(ids[0]):,} rows and {len(ids[1]):,} columns"
        note = f"Pairs of the {kept} with the most labels; use `dyads predict` for all others."
    return {
        "rows": [str(name) for name in ids[0]],
        "cols": [str(name) for name in ids[1]],
        "labels": [str(label) for label in model.classes_],
        "values": base64.b64encode(values.tobytes()).decode(),
    }, html.escape(note)
