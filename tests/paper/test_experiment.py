"""Experiments: every description runs, penalties are chosen on training dyads alone, tables hold what was found."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dyads import SGD, Gibbs
from dyads.datasets.sources import find
from dyads.errors import DyadsError, InputError, MissingDataError
from dyads.paper import experiment
from dyads.paper.tasks import TASKS, Task
from made_up_data import make_folder

THOUSANDTH = 0.001


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of real data if it is there, else one of made-up data."""
    real = os.environ.get("DYADS_DATA")
    return Path(real) if real and (Path(real) / "ml-1m").is_dir() else make_folder(tmp_path_factory.mktemp("data"))


def lightened(method):
    """The same with two values of its grid, and few iterations."""
    fewer = {}
    if method.estimator not in ("Marginals", "Neighbours", "LinkScore"):
        fewer = {"solver": Gibbs(sweeps=4) if method.posterior else SGD(max_iter=4)}
    grid = {name: values[: 1 if place else 2] for place, (name, values) in enumerate(method.grid.items())}
    return replace(
        method,
        grid=grid,
        parameters={name: value for name, value in method.parameters.items() if "solver" not in name} | fewer,
    )


QUICK = ("table-5",)
"""Experiments of the default suite; the others run in the slow one."""


def runs():
    """Every experiment, and those with methods that sample once more."""
    for name in experiment.names():
        yield pytest.param(name, "point", id=name, marks=() if name in QUICK else pytest.mark.slow)
        if any(method.posterior for method in experiment.read(name).methods):
            yield pytest.param(name, "posterior", id=f"{name}-posterior", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "kind"), list(runs()))
def test_every_experiment_runs_on_a_thousandth_of_its_data(name, kind, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("DYADS_DATA", str(folder))
    whole = experiment.read(name)
    for data in {data for case in whole.cases for data in case.data}:
        find(data)
    methods = [lightened(method) for method in whole.methods if method.posterior == (kind == "posterior")]
    short = replace(whole, methods=methods, cases=whole.cases[:3], seeds=1, picture={})
    results = {kind: experiment.run(short, posterior=kind == "posterior", scale=THOUSANDTH, workers=1)}
    records = results[kind]["records"]
    lines = {
        (case.name, method.name)
        for case in short.cases
        for method in methods
        if not method.cases or case.name in method.cases
    }
    assert {(one["case"], one["method"]) for one in records} == lines
    for one in records:
        assert np.isfinite([value for value in one["figures"].values() if value is not None]).all()
    text = experiment.write(short, results, tmp_path).read_text()
    assert experiment.read_results(short, tmp_path) == results
    assert all(f"| {method} |" in text for _, method in lines)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json", f"{name}.md"}


def test_names_of_a_description_are_its_own():
    for name in experiment.names():
        found = experiment.read(name)
        lines = [method.name for method in found.methods]
        assert len(set(lines)) == len(lines), name
        for listed, valid in (("methods", lines), ("cases", [case.name for case in found.cases])):
            assert set(found.quick.get(listed, [])) <= set(valid), f"{name}: quick"
        for method in found.methods:
            assert set(method.cases) <= {case.name for case in found.cases}, f"{name}: {method.name}"
        if found.picture:
            assert found.picture["method"] in lines
        assert found.seeds >= 5, "a mean over fewer says little"


class Spy:
    """Remembers what it was fitted to, and predicts worse the further `penalty` is from 2."""

    fitted: list = []  # noqa: RUF012

    def __init__(self, penalty=1.0):
        self.penalty = penalty

    def get_params(self):
        return {"penalty": self.penalty}

    def set_params(self, penalty):
        self.penalty = penalty
        return self

    def fit(self, X, y):
        Spy.fitted.append(set(X["row"].tolist()))
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        wrong = min(abs(self.penalty - 2) / 10, 0.4)
        return np.tile([1 - wrong, wrong], (len(X["row"]), 1))


def test_penalties_are_chosen_on_training_dyads_alone(monkeypatch):
    monkeypatch.setitem(experiment.METHODS, "Spy", Spy)
    train, test = np.arange(90), np.arange(90, 120)
    task = Task({"row": train, "col": train}, 0 * train, {"row": test, "col": test}, 0 * test)
    monkeypatch.setitem(TASKS, "made up", lambda seed, scale: task)
    Spy.fitted.clear()
    method = experiment.Method("spy", "Spy", grid={"penalty": [1.0, 2.0, 4.0]})
    description = experiment.Experiment(
        "x", "X", "", "made up", [experiment.Case()], [method], ["log-loss"], 2, "log-loss", first_seed=5
    )
    results = experiment.run(description, workers=1)
    assert [one["seed"] for one in results["records"]] == [5, 6]
    assert [one["chosen"] for one in results["records"]] == [{"penalty": 2.0}] * 2
    assert all(seen <= set(train.tolist()) for seen in Spy.fitted)
    assert sorted(len(seen) for seen in Spy.fitted) == [60] * 18 + [90] * 2


def test_the_choice_looks_at_no_more_dyads_than_it_may():
    row = np.repeat(np.arange(50), 20)
    task = Task({"row": row, "col": np.tile(np.arange(20), 50)}, row % 2, {"row": row[:0], "col": row[:0]}, row[:0])
    folds = task.folds(3, 200, seed=0)
    used = set(folds[0].X["row"]) | set(folds[0].X_test["row"])
    assert len(used) in (10, 11), "whole rows"
    assert sum(len(fold.y_test) for fold in folds) == 20 * len(used)


def test_the_table_puts_published_figures_beside_ours():
    cases = [experiment.Case("easy", {}, (), {"LFL": "0.9", "IBP": "0.95", "(Bayes)": "0.01"})]
    methods = [experiment.Method("LFL", "LFLClassifier")]
    description = experiment.Experiment("x", "X", "", "nominal", cases, methods, ["0-1 error"], 2)
    record = {"case": "easy", "method": "LFL", "seconds to fit": 1.0, "chosen": {"l2": 1.0}, "Bayes error": 0.02}
    results = {"point": {"records": [record | {"seed": i, "figures": {"0-1 error": 0.1 + 0.2 * i}} for i in range(2)]}}
    header, body = experiment.table(description, results)
    assert header == ["method", "0-1 error", "published", "seconds to fit", "chosen"]
    assert body == [
        ["(Bayes)", "0.0200", "0.01", "", ""],
        ["LFL", "0.2000 ± 0.1414", "0.9", "1.0", "l2 1"],
        ["IBP", "", "0.95", "", ""],
    ]


def test_wrong_names_are_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="did you mean 'table-1'"):
        experiment.read("tabel-1")
    (tmp_path / "bad.toml").write_text('title = "x"\n')
    monkeypatch.setattr(experiment, "experiments_folder", lambda: tmp_path)
    with pytest.raises(DyadsError, match="cannot be read"):
        experiment.read("bad")


def test_missing_data_are_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setenv("DYADS_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="alyawarradata.mat"):
        find(experiment.read("table-5").cases[0].data[0])


def test_results_that_are_committed_belong_to_experiments():
    committed = Path(__file__).parents[2] / "results"
    for path in committed.glob("*.json"):
        description = experiment.read(path.stem)
        results = experiment.read_results(description, committed)
        assert (committed / f"{path.stem}.md").read_text() == experiment.markdown(description, results)
        assert json.loads(path.read_text())["title"] == description.title
