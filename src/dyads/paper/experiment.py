"""Experiments: read the description of an experiment, run it, and compare its figures with the published ones.

A file in ``experiments/`` gives the task, the split and the metrics, the methods with a grid of penalties, the number
of seeds and the published figures. Penalties are chosen by cross-validation on the training dyads of each split only.
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
"""Estimators that a method can name."""

WRAPPERS: dict[str, Any] = {kind.__name__: kind for kind in (BothOrders, ByRelation, MeanOdds, WithLinkScores)}
"""Wrappers that a method can put around its estimator."""

FOLDS = 3
"""Folds of the cross-validation that chooses penalties, as in the paper."""


@dataclass(frozen=True)
class Method:
    """A line of a table.

    Attributes
    ----------
    name : name in the table
    estimator : key of `METHODS`
    parameters : parameters of the estimator
    grid : values of parameters to choose from by cross-validation
    wrapper : {"kind": key of `WRAPPERS`, and other parameters of the wrapper}, or empty
    features : whether the estimator gets the side-information of the task
    posterior : whether it samples the posterior, and so belongs to the run that takes hours
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
        """Build the estimator, not fitted."""
        kind = METHODS[self.estimator]
        parameters = self.parameters | dict(chosen) | (task.features if self.features else {})
        known = kind().get_params()
        parameters |= {name: value for name, value in (("random_state", seed), ("engine", engine)) if name in known}
        # In sorted order a settings object ("solver") comes before its fields ("solver__max_iter").
        model = kind().set_params(**dict(sorted(parameters.items())))
        if not self.wrapper:
            return model
        others = {name: value for name, value in self.wrapper.items() if name != "kind"}
        return WRAPPERS[self.wrapper["kind"]](model, **others)

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """All combinations of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]


@dataclass(frozen=True)
class Case:
    """A variant of the task: `options` of the task function, data sets it reads, and published figures by method."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    published: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes
    ----------
    name : name of the file, without its extension
    title, protocol, notes : texts of the page: its title, what was done, remarks on the result
    task : key of `TASKS`
    cases, methods : the lines of the table are their combinations
    figures : keys of `METRICS`; the first is the published one
    choose_by : key of `METRICS` by which penalties are chosen; required if a method has a grid
    seeds : number of seeds: splits, starts or data sets
    first_seed : first seed; above 0 if the experiment itself was tuned on earlier seeds
    search_on : largest number of training dyads used to choose penalties; None is all
    serial : whether to run fits one at a time on all cores, because their times are reported
    picture : {"kind": key of `PICTURES`, "method": name of the method to draw, "caption": text}, or empty
    quick : number of seeds, and names of cases and methods, for a quick run
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
        """The experiment restricted to its `quick` settings."""
        cases = [case for case in self.cases if case.name in self.quick.get("cases", [case.name])]
        methods = [method for method in self.methods if method.name in self.quick.get("methods", [method.name])]
        return replace(self, cases=cases, methods=methods, seeds=self.quick.get("seeds", 2))


class Judged:
    """Predictions of a fitted model for the test dyads of a task, each computed on first use."""

    def __init__(self, model: Any, task: Task) -> None:
        self.model, self.task = model, task

    @cached_property
    def predictions(self) -> Predictions | None:
        """All predictions at once, or None for models without the method `predictions`."""
        return self.model.predictions(self.task.X_test) if hasattr(self.model, "predictions") else None

    @cached_property
    def proba(self) -> Array | None:
        """(n, n_labels), or None for models without probabilities."""
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
        """Scores that rank dyads (n, n_labels): probabilities, or the decision function."""
        if self.proba is not None:
            return self.proba
        second = np.asarray(self.model.decision_function(self.task.X_test)).reshape(len(self.task.y_test))
        return np.column_stack([-second, second])


def _auc(judged: Judged) -> float:
    """AUC of the test dyads whose label occurs in training; other labels have no scores."""
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
    """A metric of probabilities; None if the model has none, or if they do not sum to one."""

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
"""Metrics by name. "MAE" is of the predicted label, "calibration error" is class-wise, "AUC" macro one-vs-rest."""

GREATER_IS_BETTER = ("accuracy", "AUC")
"""Metrics to maximise; all others are minimised."""


def experiments_folder() -> Path:
    """Folder of the descriptions: in the installed package, or at the root of the source tree."""
    here = Path(__file__).parent
    return next(path for path in (here / "experiments", here.parents[2] / "experiments") if path.is_dir())


def names() -> list[str]:
    """Names of all experiments."""
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
                **entry
                | {
                    "options": shared | entry.get("options", {}),
                    "data": tuple(entry.get("data", data)),
                    "published": published | entry.get("published", {}),
                }
            )
            for entry in raw.pop("cases", [{"name": ""}])
        ]
        methods = [Method(**fields) for entry in raw.pop("methods") for fields in _spelled_out(entry)]
        experiment = Experiment(name, cases=cases, methods=methods, **raw)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"The experiment {name} cannot be read ({error}): see dyads.paper.experiment.Experiment for its fields."
        ) from error
    for what, got, valid in (
        ("task", [experiment.task], TASKS),
        ("data", [data for case in cases for data in case.data], SOURCES),
        ("figures", experiment.figures, METRICS),
        ("choose_by", [experiment.choose_by] if any(method.grid for method in methods) else [], METRICS),
        ("estimator", [method.estimator for method in methods], METHODS),
        ("wrapper", [method.wrapper["kind"] for method in methods if method.wrapper], WRAPPERS),
        ("picture", [experiment.picture["kind"]] if experiment.picture else [], PICTURES),
    ):
        for key in got:
            if key not in valid:
                raise unknown_name(f"{name}: {what}", key, valid)
    return experiment


def _spelled_out(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Expand the field "each" of an entry, such as {rank = [5, 10]}: one method per value, named with {rank}."""
    varied = entry.pop("each", {})
    for values in itertools.product(*varied.values()):
        chosen = dict(zip(varied, values, strict=True))
        yield entry | {
            "name": entry["name"].format_map(chosen),
            "parameters": entry.get("parameters", {}) | chosen,
            "cases": tuple(entry.get("cases", ())),
        }


def run(
    experiment: Experiment,
    *,
    posterior: bool = False,
    scale: float = 1.0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run an experiment, and return the figures of every case, method and seed.

    Parameters
    ----------
    posterior : run only the methods that sample the posterior, instead of only the others
    scale : share of the data; below 1 only for trial runs
    workers : number of parallel fits, of one core each if there are several; by default the number of cores, or 1 if
        times are reported
    progress : called with the number of fits done and the total
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
    for done, record in enumerate(results, 1):
        records.append(record)
        if progress is not None:
            progress(done, len(jobs))
    case_order = {case.name: i for i, case in enumerate(experiment.cases)}
    method_order = {method.name: i for i, method in enumerate(methods)}
    records.sort(key=lambda record: (case_order[record["case"]], method_order[record["method"]], record["seed"]))
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
    """Run one method on one case and seed."""
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
    """Task of a case and seed. The cache of one serves its methods, which mostly run one after another."""
    return TASKS[name](seed, scale, **dict(options))


def _choose(experiment: Experiment, method: Method, task: Task, seed: int, engine: CPU) -> dict[str, Any]:
    """Choose from the grid by the best mean metric over folds of the training dyads."""
    if len(method.candidates) == 1:
        return method.candidates[0]
    folds = task.folds(FOLDS, experiment.search_on, seed)
    sign = 1 if experiment.choose_by in GREATER_IS_BETTER else -1

    def mean_score(chosen: dict[str, Any]) -> float:
        models = [method.build(fold, chosen, seed, engine).fit(fold.X, fold.y) for fold in folds]
        scores = [METRICS[experiment.choose_by](Judged(*pair)) for pair in zip(models, folds, strict=True)]
        return sign * float(np.mean(scores))  # type: ignore[arg-type]

    return max(method.candidates, key=mean_score)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 5)


def write(experiment: Experiment, results: dict[str, Any], folder: Path) -> Path:
    """Write the table, the figures as JSON and the picture of an experiment; return the path of the table.

    `results` holds results of `run` under "point", "posterior" or both. Files are written atomically.
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
    """Read earlier results of an experiment; empty if there are none."""
    path = folder / f"{experiment.name}.json"
    if not path.exists():
        return {}
    results: dict[str, Any] = json.loads(path.read_text())
    return {name: results[name] for name in ("point", "posterior") if name in results}


def table(experiment: Experiment, results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table: mean ± standard deviation over seeds."""
    records = [record for part in results.values() for record in part["records"]]
    with_cases = len(experiment.cases) > 1
    has_bayes = any("Bayes error" in record for record in records)
    has_published = any(case.published for case in experiment.cases)
    header = (
        (["data"] if with_cases else [])
        + ["method", *experiment.figures]
        + (["published"] if has_published else [])
        + ["seconds to fit", "chosen"]
    )
    body = []
    for case in experiment.cases:
        of_case = [record for record in records if record["case"] == case.name]
        first = [case.name] if with_cases else []
        if has_bayes and of_case:
            error = np.mean([record["Bayes error"] for record in of_case])
            bayes = [f"{error:.4f}" if name == "0-1 error" else "" for name in experiment.figures]
            published = [case.published.get("(Bayes)", "")] if has_published else []
            body.append([*first, "(Bayes)", *bayes, *published, "", ""])
        done = dict.fromkeys(record["method"] for record in of_case)
        for method in done:
            of_method = [record for record in of_case if record["method"] == method]
            cells = [_summary([record["figures"][name] for record in of_method]) for name in experiment.figures]
            fit = np.mean([record["seconds to fit"] for record in of_method])
            published = [case.published.get(method, "")] if has_published else []
            body.append([*first, method, *cells, *published, f"{fit:.1f}", _choices(of_method)])
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
    """Parameters chosen by cross-validation, with counts if they differ between seeds."""
    counts: dict[str, int] = {}
    for record in records:
        chosen = record["chosen"].items()
        text = ", ".join(f"{name} {json.dumps(value).removesuffix('.0')}" for name, value in chosen)
        counts[text] = counts.get(text, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ordered[0][0] if len(ordered) == 1 else "; ".join(f"{text} ({n})" for text, n in ordered)


def markdown(experiment: Experiment, results: dict[str, Any]) -> str:
    """Page of an experiment in Markdown."""
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
        seeds = [record["seed"] for record in part["records"]]
        lines.append(
            f"Made by `dyads reproduce {experiment.name}{option}` in {part['seconds'] / 60:.1f} minutes on "
            f"{part['cores']} cores, fits {at_once}; mean ± standard deviation over the seeds {min(seeds)} "
            f"to {max(seeds)}; {versions}."
        )
    return "\n".join(lines) + "\n"


def _draw(experiment: Experiment, result: dict[str, Any], path: Path) -> None:
    """Fit the method of the picture again, on its first seed, and draw the fitted model."""
    if importlib.util.find_spec("matplotlib") is None:
        logger.warning(
            "Skipped the picture of %s: matplotlib is not installed (pip install 'dyads[plot]').", experiment.name
        )
        return
    from matplotlib.figure import Figure

    shown = experiment.picture["method"]
    method = next(method for method in experiment.methods if method.name == shown)
    case = next(case for case in experiment.cases if not method.cases or case.name in method.cases)
    record = next(entry for entry in result["records"] if (entry["case"], entry["method"]) == (case.name, shown))
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
    """Draw all known links, with the nodes ordered by seven clusters of their latent weights."""
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
    """Draw images with a missing half: the original, the given half and the prediction."""
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
    report.MapDisplay.from_estimator(model, ax=ax)


PICTURES: dict[str, tuple[Callable[[Any, Any, Task], None], tuple[float, float]]] = {
    "clusters": (_clusters, (7.0, 7.0)),
    "reconstructions": (_reconstructions, (10.0, 2.2)),
    "map": (_map, (10.0, 8.0)),
}
"""Drawing function and size in inches of each kind of picture."""
