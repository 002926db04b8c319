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
from sklearn.model_selection import KFold

from dyads import metrics, report
from dyads.data.codes import label_codes, numeric_values, read_labels
from dyads.data.tables import named_arrays, named_values
from dyads.errors import InputError, UnknownIdWarning
from dyads.estimators.baselines import Marginals
from dyads.estimators.selection import by_regime
from dyads.trained.predictions import predictions_of

Array = np.ndarray[Any, Any]

LOOKED_UP = 2_000_000
"""Largest number of probabilities stored in the page, about 5 MB; larger models keep the ids with the most labels."""

DRAWS = 500
"""Bootstrap samples of the pairs for the intervals of metrics: more take longer and make the bounds less noisy."""

FEWEST_DYADS = 10
"""Fewest pairs for baselines: below it, a fold has too few pairs to count labels on."""

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
        predictions = predictions_of(model, X, row_features, col_features)
        proba, predicted = predictions.proba, predictions.labels
        sections = {
            "facts": _facts(model, truth),
            "metrics": _metrics(model, X, truth, proba, predicted),
            "regimes": _table(by_regime(predictions, y, ordered=hasattr(model, "predict_mean"))),
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


def _losses(model: Any, truth: Array, proba: Array, predicted: Array) -> dict[str, Array]:
    """Loss or score of each pair, by metric; the metrics are their means."""
    code = label_codes(truth, model.classes_)
    losses = {
        "log-loss": metrics.log_losses(truth, proba, model.classes_),
        "Brier score": metrics.brier_scores(truth, proba, model.classes_),
        "accuracy": (predicted == truth).astype(float),
    }
    if hasattr(model, "predict_mean"):
        values = numeric_values(model.classes_)
        label = values[label_codes(predicted, model.classes_)]
        losses["mean absolute error"] = np.abs(label - values[code])
    return losses


def _metrics(model: Any, X: Any, truth: Array, proba: Array, predicted: Array) -> str:
    """Table of metrics with 90% intervals, next to baselines: cross-validated label frequencies of the same pairs."""
    table = named_values(X)
    columns = {ids.name: np.asarray(table[ids.name]) for ids in model.record_.known.vocabularies[:2]}
    ours = _losses(model, truth, proba, predicted)
    baselines = {
        "all labels": "all",
        f"the {model.record_.known.vocabularies[0].name}'s labels": "row",
        f"the {model.record_.known.vocabularies[1].name}'s labels": "col",
    }
    counted: dict[str, dict[str, float]] = {}
    for title, of in baselines.items() if len(truth) >= FEWEST_DYADS else ():
        baseline_proba = np.empty_like(proba)
        for train, test in KFold(5, shuffle=True, random_state=0).split(truth):
            if len(np.unique(truth[train])) < 2:
                break
            marginal = Marginals(of).fit({name: column[train] for name, column in columns.items()}, truth[train])
            test_proba = marginal.predict_proba({name: column[test] for name, column in columns.items()})
            baseline_proba[test] = 0
            baseline_proba[np.ix_(test, label_codes(marginal.classes_, model.classes_))] = test_proba
        else:
            label = model.classes_[model.decide(baseline_proba)]
            losses = _losses(model, truth, baseline_proba, label)
            counted[title] = {name: float(loss.mean()) for name, loss in losses.items()}
    rng = np.random.default_rng(0)
    rows = []
    for name, loss in ours.items():
        draws = [loss[rng.integers(0, len(loss), len(loss))].mean() for _ in range(DRAWS)]
        low, high = np.quantile(draws, [0.05, 0.95])
        rows.append(
            [
                name,
                f"{loss.mean():.4f} ({low:.4f} to {high:.4f})",
                *(f"{means[name]:.4f}" for means in counted.values()),
            ]
        )
    ece = metrics.classwise_ece(truth, proba, model.classes_)
    rows.append(["class-wise calibration error", f"{ece:.4f}", *[""] * len(counted)])
    return _rows(["metric", "the model (90% interval)", *counted], rows)


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


def _table(table: Any) -> str:
    columns = {name: list(column) for name, column in named_values(table).items()}
    columns = {
        name: [getattr(value, "as_py", lambda value=value: value)() for value in column]
        for name, column in columns.items()
    }
    lines = [
        [
            f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
            for value in row
        ]
        for row in zip(*columns.values(), strict=True)
    ]
    return _rows([name.replace("_", " ") for name in columns], lines)


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
