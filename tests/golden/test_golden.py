"""Every part of the registries has a golden case, and the rule that compares figures fails where it should."""

import numpy as np
import pytest
from compare import compare
from figures import NAMED, PASSES, cases

from dyads.estimators.kinds import ESTIMATORS, LFLLinkWalk
from dyads.model.loss import LOSSES, Log
from dyads.model.structure import STRUCTURES
from dyads.solve import SGD, SOLVERS


def wanted():
    """All cases that the registries ask for."""
    found = {f"fit/MMMF/stereotype/all_threshold/{solver}" for solver, kind in SOLVERS.items() if not kind.samples}
    for name, estimator in ESTIMATORS.items():
        if estimator is LFLLinkWalk:
            # A stack of LFLLink, which has its cases, and of a walk, which has its laws.
            continue
        for loss in (loss for loss, kind in LOSSES.items() if estimator._ordered or not kind().ordered):
            solvers = [name for name, kind in SOLVERS.items() if not kind.samples or LOSSES[loss]().likelihood]
            where = [f"fit/{name}/{structure}/{loss}" for structure in estimator._structures]
            found |= {f"{fit}/{solver}" for fit in where for solver in solvers}
    names = [name for name in PASSES if not name.endswith("relations")]
    return found | {f"pass/{name}/{loss}" for name in names for loss in LOSSES}


def check_cases():
    named = {case for case in cases() if case.split("/")[-1] in NAMED}
    assert len(cases()) == len(set(cases()))
    assert wanted() == {case for case in cases() if case not in named and "-relations/" not in case}
    assert {kind.__name__ for kind, _ in STRUCTURES.values()} == {name.split("-")[0] for name in PASSES}


def test_every_part_of_the_registries_has_a_case():
    check_cases()


@pytest.mark.parametrize(("registry", "part"), [(LOSSES, Log), (SOLVERS, SGD)], ids=["loss", "solver"])
def test_a_part_without_a_case_is_found(registry, part, monkeypatch):
    monkeypatch.setitem(registry, "fake", part)
    with pytest.raises(AssertionError, match="fake"):
        check_cases()


def test_a_structure_without_a_case_is_found(monkeypatch):
    kind = ESTIMATORS["LFLLink"]
    monkeypatch.setattr(kind, "_structures", (*kind._structures, "fake"))
    with pytest.raises(AssertionError, match="fake"):
        check_cases()


FIT = "fit/LFLClassifier/bilinear/log/{}/{}"


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, False),
        ({"pass/A/log/gradient": 1e-13}, False),
        ({"pass/A/log/gradient": 1e-11}, True),
        ({"pass/A/log/sgd_theta": 1e-6}, False),
        ({"pass/A/log/sgd_theta": 1e-4}, True),
        ({FIT.format("sgd", "objective"): 1e-7, FIT.format("sgd", "proba"): 0.1}, False),
        ({FIT.format("sgd", "objective"): 1e-5}, True),
        ({FIT.format("sgd", "proba"): 0.1}, True),
        ({FIT.format("gibbs", "objective"): 1e-7, FIT.format("gibbs", "proba"): 1e-4}, True),
        ({"pass/A/log/gradient": None}, True),
        ({"pass/A/log/gradient": np.nan}, True),
    ],
)
def test_what_fails(changes, fails):
    names = ["pass/A/log/gradient", "pass/A/log/sgd_theta"]
    names += [FIT.format(solver, what) for solver in ("sgd", "gibbs") for what in ("objective", "proba")]
    base = {name: np.linspace(-1, 2, 5) for name in names}
    here = {name: base[name] * (1 + changes.get(name, 0)) for name in names if changes.get(name, 0) is not None}
    assert bool(compare(base, here)[1]) == fails
    assert bool(compare(here, base)[1]) == fails
