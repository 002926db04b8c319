"""Experiments: a description in a file, run, and our figures put beside the published ones.

A file of ``experiments/`` says which task, split and metrics, which methods with which penalties to choose from, how
many seeds, and what was published. Penalties are chosen by cross-validation on the training dyads of each split alone.
"""

import importlib.util
import itertools
import json
import logging
import platform
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from dyads import metrics, report
from dyads.data.codes import numeric_values
from dyads.data.files import replacing
from dyads.datasets.sources import SOURCES
from dyads.engine import CPU
from dyads.errors import InputError, NotConvergedWarning, UnknownIdWarning, VanishedWarning, unknown_name
from dyads.estimators.baselines import MMMF, Marginals
from dyads.estimators.kinds import ESTIMATORS
from dyads.paper.rivals import BothOrders, ByRelation, LinkScore, MeanOdds, Neighbours, WithLinkScores
from dyads.paper.tasks import TASKS, Task
from dyads.trained.predictions import Predictions

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], Any]
logger = logging.getLogger("dyads")

METHODS: dict[str, Any] = ESTIMATORS | {kind.__name__: kind for kind in (MMMF, Marginals, Neighbours, LinkScore)}
"""What a method may be."""

WRAPPERS: dict[str, Any] = {kind.__name__: kind for kind in (BothOrders, ByRelation, MeanOdds, WithLinkScores)}
"""What a method may be put into."""

FOLDS = 3
"""Folds of the cross-validation that chooses penalties, as in the paper."""


@dataclass(frozen=True)
class Method:
    """A line of a table.

    Attributes
    ----------
    name : what the table calls it
    estimator : key of `METHODS`
    parameters : of its constructor
    grid : values of parameters to choose from by cross-validation
    wrapper : {"kind": key of `WRAPPERS` that takes the estimator, and its other parameters}, or empty
    features : whether it is given the side-information of the task
    posterior : whether it samples, and so belongs to the run that takes hours
    cases : names of the cases it runs on; all if empty
    """

    name: str
    estimator: str
    parameters: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    wrapper: dict[str, Any] = field(default_factory=dict)
    features: bool = False
    posterior: bool = False
    cases: tuple[str, ...] = ()

    def build(self, task: Task, chosen: Mapping[str, Any], seed: int, engine: CPU) -> Any:
        """The estimator, not yet fitted."""
        kind = METHODS[self.estimator]
        parameters = self.parameters | dict(chosen) | (task.features if self.features else {})
        known = kind().get_params()
        parameters |= {name: value for name, value in (("random_state", seed), ("engine", engine)) if name in known}
        # The first name a part, the others its settings.
        model = kind().set_params(**dict(sorted(parameters.items())))
        if not self.wrapper:
            return model
        others = {name: value for name, value in self.wrapper.items() if name != "kind"}
        return WRAPPERS[self.wrapper["kind"]](model, **others)

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """All choices of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


@dataclass(frozen=True)
class Case:
    """A variant of the task: `options` of its function, the data sets it reads, and published figures by method."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    published: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes
    ----------
    name : of the file
    title, protocol, notes : words; what was done, and what is to be said of the result
    task : key of `TASKS`
    cases, methods : its lines
    figures : keys of `METRICS`, the first being the one that was published
    choose_by : key of `METRICS` by which penalties are chosen; needed where a method has a grid
    seeds : how many splits, starts or data sets
    first_seed : of these; above 0 where choices of the experiment itself were made on the seeds before it
    search_on : most training dyads that the choice of penalties looks at; None is all
    serial : whether fits run one after the other with all cores, because times are reported
    picture : key of `PICTURES`, and the name of the method it shows; or empty
    quick : how many seeds, and names of the cases and methods, of a first look
    """

    name: str
    title: str
    protocol: str
    task: str
    cases: list[Case]
    methods: list[Method]
    figures: list[str]
    seeds: int
    choose_by: str = ""
    first_seed: int = 0
    search_on: int | None = None
    serial: bool = False
    notes: str = ""
    picture: dict[str, str] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)

    def shortened(self) -> "Experiment":
        """What `quick` leaves of it."""
        cases = [case for case in self.cases if case.name in self.quick.get("cases", [case.name])]
        methods = [method for method in self.methods if method.name in self.quick.get("methods", [method.name])]
        return replace(self, cases=cases, methods=methods, seeds=self.quick.get("seeds", 2))


class Judged:
    """What a fitted model says of the test dyads of a task; each kind of prediction is made when it is asked for."""

    def __init__(self, model: Any, task: Task) -> None:
        self.model, self.task = model, task

    @cached_property
    def predictions(self) -> Predictions | None:
        """All at once, of models that make them; others are asked for each kind."""
        return self.model.predictions(self.task.X_test) if hasattr(self.model, "predictions") else None

    @cached_property
    def proba(self) -> Array | None:
        """(n, n_labels) or, of models without probabilities, None."""
        if self.predictions is not None:
            return self.predictions.proba
        return self.model.predict_proba(self.task.X_test) if hasattr(self.model, "predict_proba") else None

    @cached_property
    def label(self) -> Array:
        if self.predictions is not None:
            return self.predictions.labels
        return np.asarray(self.model.predict(self.task.X_test))

    @cached_property
    def mean(self) -> Array | None:
        return None if self.proba is None else self.proba @ numeric_values(self.model.classes_)

    @cached_property
    def scores(self) -> Array:
        """What ranks dyads (n, n_labels)."""
        if self.proba is not None:
            return self.proba
        second = np.asarray(self.model.decision_function(self.task.X_test)).reshape(len(self.task.y_test))
        return np.column_stack([-second, second])


def _auc(judged: Judged) -> float:
    """Of the test dyads whose label was trained on: a label that was not has no scores."""
    y, classes = judged.task.y_test, judged.model.classes_
    known = np.isin(y, classes)
    return metrics.auc(y[known], judged.scores[known], classes)


def _mean_error(judged: Judged, rounded: bool) -> float | None:
    if judged.mean is None:
        return None
    values = numeric_values(judged.model.classes_)
    nearest = values[np.abs(judged.mean[:, None] - values).argmin(axis=1)] if rounded else judged.mean
    return metrics.mean_absolute_error(judged.task.y_test, nearest)


def _of_proba(function: Callable[..., float]) -> Callable[[Judged], float | None]:
    """A metric of probabilities; None where there are none, or where they are not of one label out of all."""

    def metric(judged: Judged) -> float | None:
        if judged.proba is None or not np.allclose(judged.proba.sum(axis=1), 1, atol=1e-4):
            return None
        return function(judged.task.y_test, judged.proba, judged.model.classes_)

    return metric


METRICS: dict[str, Callable[[Judged], float | None]] = {
    "0-1 error": lambda judged: metrics.zero_one_error(judged.task.y_test, judged.label),
    "above Bayes": lambda judged: (
        metrics.zero_one_error(judged.task.y_test, judged.label) - (judged.task.bayes_error or 0)
    ),
    "accuracy": lambda judged: metrics.accuracy(judged.task.y_test, judged.label),
    "MAE": lambda judged: metrics.mean_absolute_error(judged.task.y_test, judged.label),
    "MAE of the rounded mean": lambda judged: _mean_error(judged, rounded=True),
    "MAE of the mean": lambda judged: _mean_error(judged, rounded=False),
    "log-loss": _of_proba(metrics.log_loss),
    "calibration error": _of_proba(metrics.classwise_ece),
    "AUC": _auc,
}
"""Figures of a table. "MAE" is of the predicted label, "calibration error" class-wise, "AUC" macro one-vs-rest."""

GREATER_IS_BETTER = ("accuracy", "AUC")


def experiments_folder() -> Path:
    """Where the descriptions lie: in the installed package, or beside its source."""
    here = Path(__file__).parent
    return next(path for path in (here / "experiments", here.parents[2] / "experiments") if path.is_dir())


def names() -> list[str]:
    """All experiments there are."""
    return sorted(path.stem for path in experiments_folder().glob("*.toml"))


def read(name: str) -> Experiment:
    """Read the description of an experiment."""
    if name not in names():
        raise unknown_name("experiment", name, names())
    raw = tomllib.loads((experiments_folder() / f"{name}.toml").read_text())
    shared, data, published = raw.pop("options", {}), raw.pop("data", []), raw.pop("published", {})
    try:
        cases = [
            Case(
                **each
                | {
                    "options": shared | each.get("options", {}),
                    "data": tuple(each.get("data", data)),
                    "published": published | each.get("published", {}),
                }
            )
            for each in raw.pop("cases", [{"name": ""}])
        ]
        methods = [Method(**one) for each in raw.pop("methods") for one in _spelled_out(each)]
        found = Experiment(name, cases=cases, methods=methods, **raw)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"The experiment {name} cannot be read ({error}): see dyads.paper.experiment for its form."
        ) from error
    for what, got, valid in (
        ("task", [found.task], TASKS),
        ("data", [data for case in cases for data in case.data], SOURCES),
        ("figures", found.figures, METRICS),
        ("choose_by", [found.choose_by] if any(method.grid for method in methods) else [], METRICS),
        ("estimator", [method.estimator for method in methods], METHODS),
        ("wrapper", [method.wrapper["kind"] for method in methods if method.wrapper], WRAPPERS),
        ("picture", [found.picture["kind"]] if found.picture else [], PICTURES),
    ):
        for key in got:
            if key not in valid:
                raise unknown_name(f"{name}: {what}", key, valid)
    return found


def _spelled_out(each: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One method for each value of `each`, such as a rank, which the name may hold as {rank}."""
    over = each.pop("each", {})
    for values in itertools.product(*over.values()):
        chosen = dict(zip(over, values, strict=True))
        yield each | {
            "name": each["name"].format_map(chosen),
            "parameters": each.get("parameters", {}) | chosen,
            "cases": tuple(each.get("cases", ())),
        }


def run(
    experiment: Experiment,
    *,
    posterior: bool = False,
    scale: float = 1.0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run an experiment: the record of all figures of all seeds.

    Parameters
    ----------
    posterior : run the methods that sample the posterior, and only these, instead of all others
    scale : share of the data; below 1 for a trial alone
    workers : fits at once, each then with one core; default all cores, or one where times are reported
    progress : called with how many of how many tasks are done
    """
    methods = [method for method in experiment.methods if method.posterior == posterior]
    if workers is None:
        workers = 1 if experiment.serial else max(1, joblib.cpu_count())
    seeds = range(experiment.first_seed, experiment.first_seed + experiment.seeds)
    jobs = [
        (case, seed, method)
        for case, seed, method in itertools.product(experiment.cases, seeds, methods)
        if not method.cases or case.name in method.cases
    ]
    began = time.perf_counter()
    call = joblib.delayed(_run_one)
    results = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")(
        call(experiment, case, seed, method, scale, CPU(1 if workers > 1 else None)) for case, seed, method in jobs
    )
    records: list[dict[str, Any]] = []
    for done, found in enumerate(results, 1):
        records.append(found)
        if progress is not None:
            progress(done, len(jobs))
    case_order = {case.name: i for i, case in enumerate(experiment.cases)}
    method_order = {method.name: i for i, method in enumerate(methods)}
    records.sort(key=lambda one: (case_order[one["case"]], method_order[one["method"]], one["seed"]))
    return {
        "records": records,
        "seconds": round(time.perf_counter() - began, 1),
        "cores": joblib.cpu_count(),
        "at once": workers,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("dyads", "numpy", "scipy", "numba", "scikit-learn")},
    }


def _run_one(
    experiment: Experiment, case: Case, seed: int, method: Method, scale: float, engine: CPU
) -> dict[str, Any]:
    """One method on one case and seed."""
    task = _task(experiment.task, seed, scale, tuple(case.options.items()))
    with warnings.catch_warnings():
        for kind in (NotConvergedWarning, UnknownIdWarning, VanishedWarning):
            warnings.simplefilter("ignore", kind)
        began = time.perf_counter()
        chosen = _choose(experiment, method, task, seed, engine)
        searched = time.perf_counter()
        model = method.build(task, chosen, seed, engine).fit(task.X, task.y)
        fitted = time.perf_counter()
        judged = Judged(model, task)
        return {
            "case": case.name,
            "method": method.name,
            "seed": seed,
            "figures": {name: _rounded(METRICS[name](judged)) for name in experiment.figures},
            "chosen": chosen,
            "seconds to choose": round(searched - began, 2),
            "seconds to fit": round(fitted - searched, 2),
            "converged": bool(getattr(model, "converged_", True)),
            **({} if task.bayes_error is None else {"Bayes error": _rounded(task.bayes_error)}),
        }


@lru_cache(maxsize=1)
def _task(name: str, seed: int, scale: float, options: tuple[tuple[str, Any], ...]) -> Task:
    """The task that the methods of a case and seed have in common, which mostly follow one another."""
    return TASKS[name](seed, scale, **dict(options))


def _choose(experiment: Experiment, method: Method, task: Task, seed: int, engine: CPU) -> dict[str, Any]:
    """The choice of the grid with the best mean figure over folds of the training dyads."""
    if len(method.candidates) == 1:
        return method.candidates[0]
    folds = task.folds(FOLDS, experiment.search_on, seed)
    sign = 1 if experiment.choose_by in GREATER_IS_BETTER else -1

    def goodness(chosen: dict[str, Any]) -> float:
        models = [method.build(fold, chosen, seed, engine).fit(fold.X, fold.y) for fold in folds]
        judged = [METRICS[experiment.choose_by](Judged(*each)) for each in zip(models, folds, strict=True)]
        return sign * float(np.mean(judged))  # type: ignore[arg-type]

    return max(method.candidates, key=goodness)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 5)


def write(experiment: Experiment, results: dict[str, Any], folder: Path) -> Path:
    """Write the table, the figures as JSON and the picture of an experiment; returns the path of the table.

    `results` holds what `run` gave under "point", "posterior" or both. Files appear whole or not at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in (
        ("json", json.dumps({"title": experiment.title} | results, indent=1) + "\n"),
        ("md", markdown(experiment, results)),
    ):
        with replacing(folder / f"{experiment.name}.{suffix}") as file:
            file.write(text.encode())
    if experiment.picture and "point" in results:
        _draw(experiment, results["point"], folder / f"{experiment.name}.png")
    return folder / f"{experiment.name}.md"


def read_results(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What was written of an experiment before; empty if nothing was."""
    path = folder / f"{experiment.name}.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return {name: found[name] for name in ("point", "posterior") if name in found}


def table(experiment: Experiment, results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of the table: mean ± standard deviation over seeds."""
    records = [one for part in results.values() for one in part["records"]]
    with_cases = len(experiment.cases) > 1
    has_bayes = any("Bayes error" in one for one in records)
    has_published = any(case.published for case in experiment.cases)
    header = (
        (["data"] if with_cases else [])
        + ["method", *experiment.figures]
        + (["published"] if has_published else [])
        + ["seconds to fit", "chosen"]
    )
    body = []
    for case in experiment.cases:
        mine = [one for one in records if one["case"] == case.name]
        first = [case.name] if with_cases else []
        if has_bayes and mine:
            error = np.mean([one["Bayes error"] for one in mine])
            bayes = [f"{error:.4f}" if name == "0-1 error" else "" for name in experiment.figures]
            given = [case.published.get("(Bayes)", "")] if has_published else []
            body.append([*first, "(Bayes)", *bayes, *given, "", ""])
        done = dict.fromkeys(one["method"] for one in mine)
        for method in done:
            each = [one for one in mine if one["method"] == method]
            cells = [_summary([one["figures"][name] for one in each]) for name in experiment.figures]
            fit = np.mean([one["seconds to fit"] for one in each])
            published = [case.published.get(method, "")] if has_published else []
            body.append([*first, method, *cells, *published, f"{fit:.1f}", _choices(each)])
        for method, figure in case.published.items():
            if method not in done and method != "(Bayes)":
                body.append([*first, method, *[""] * len(experiment.figures), figure, "", ""])
    return header, body


def _summary(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{np.mean(known):.4f} ± {np.std(known, ddof=1):.4f}" if len(known) > 1 else f"{known[0]:.4f}"


def _choices(records: list[dict[str, Any]]) -> str:
    """What cross-validation chose, with how often."""
    counts: dict[str, int] = {}
    for one in records:
        text = ", ".join(f"{name} {json.dumps(value).removesuffix('.0')}" for name, value in one["chosen"].items())
        counts[text] = counts.get(text, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ordered[0][0] if len(ordered) == 1 else "; ".join(f"{text} ({n})" for text, n in ordered)


def markdown(experiment: Experiment, results: dict[str, Any]) -> str:
    """The page of an experiment."""
    header, body = table(experiment, results)
    lines = [f"# {experiment.title}", "", experiment.protocol.strip(), ""]
    lines += ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body)]
    lines.append("")
    if experiment.notes:
        lines += [experiment.notes.strip(), ""]
    if experiment.picture and "point" in results:
        lines += [f"![{experiment.picture['caption']}]({experiment.name}.png)", "", experiment.picture["caption"], ""]
    for kind, part in results.items():
        option = " --posterior" if kind == "posterior" else ""
        versions = ", ".join(f"{name} {number}" for name, number in part["versions"].items())
        at_once = "one at a time" if part["at once"] == 1 else f"{part['at once']} at once"
        seeds = [one["seed"] for one in part["records"]]
        lines.append(
            f"Made by `dyads reproduce {experiment.name}{option}` in {part['seconds'] / 60:.1f} minutes on "
            f"{part['cores']} cores, fits {at_once}; mean ± standard deviation over the seeds {min(seeds)} "
            f"to {max(seeds)}; {versions}."
        )
    return "\n".join(lines) + "\n"


def _draw(experiment: Experiment, result: dict[str, Any], path: Path) -> None:
    """Fit the method of the picture once more, on the first seed, and draw what it learnt."""
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning("No picture of %s: matplotlib is not installed (pip install 'dyads[plot]').", experiment.name)
        return
    from matplotlib.figure import Figure

    wanted = experiment.picture["method"]
    method = next(method for method in experiment.methods if method.name == wanted)
    case = next(case for case in experiment.cases if not method.cases or case.name in method.cases)
    record = next(one for one in result["records"] if (one["case"], one["method"]) == (case.name, wanted))
    task = TASKS[experiment.task](record["seed"], 1.0, **case.options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = method.build(task, record["chosen"], record["seed"], CPU()).fit(task.X, task.y)
    draw, size = PICTURES[experiment.picture["kind"]]
    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots(), model, task)
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")


def _clusters(ax: Any, model: Any, task: Task) -> None:
    """All known links, the nodes in the order of seven clusters of their weights."""
    from sklearn.cluster import KMeans

    ids = np.unique(np.concatenate([*task.X.values(), *task.X_test.values()]))
    weights = np.nan_to_num(model.embed(ids)).reshape(len(ids), -1)
    cluster = KMeans(7, n_init=10, random_state=0).fit_predict(weights)
    linked = np.zeros((len(ids), len(ids)), int)
    for columns, y in ((task.X, task.y), (task.X_test, task.y_test)):
        row, col = (np.searchsorted(ids, column) for column in columns.values())
        linked[row, col] = linked[col, row] = y
    report.plot_ordered_matrix(ax, linked, cluster)


def _reconstructions(ax: Any, model: Any, task: Task) -> None:
    """Images with a missing half: as they are, as they were given, and as the model sees them."""
    (image, pixel), shape = task.X_test.values(), task.shape
    shown, n_pixels = np.unique(image), int(np.prod(shape))
    everything = {"image": np.repeat(shown, n_pixels), "pixel": np.tile(np.arange(n_pixels), len(shown))}
    predicted = np.asarray(model.predict(everything), float).reshape(len(shown), *shape)
    given = np.zeros((len(shown), n_pixels))
    known = np.isin(task.X["image"], shown)
    given[np.searchsorted(shown, task.X["image"][known]), task.X["pixel"][known]] = task.y[known]
    true = given.copy()
    true[np.searchsorted(shown, image), pixel] = task.y_test
    rows = {"original": true, "given": given, "predicted": predicted}
    report.plot_images(ax, {name: images.reshape(len(shown), *shape) for name, images in rows.items()})


def _map(ax: Any, model: Any, task: Task) -> None:
    report.plot_latent_map(ax, model, side="row")


PICTURES: dict[str, tuple[Callable[[Any, Any, Task], None], tuple[float, float]]] = {
    "clusters": (_clusters, (7.0, 7.0)),
    "reconstructions": (_reconstructions, (10.0, 2.2)),
    "map": (_map, (10.0, 8.0)),
}
"""What a picture may show, and its size in inches."""
