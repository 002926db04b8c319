"""Settings: no parameter is silently without effect, searches reach into objects, and these are checked when made."""

import itertools
import logging
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dyads
from dyads import CPU, L2, LBFGS, SGD, Gibbs, LFLClassifier, Newton, SideInformation
from dyads.errors import InputError
from dyads.estimators.kinds import ESTIMATORS
from dyads.solve import SOLVERS

FEW = {"lbfgs": LBFGS(max_iter=3), "sgd": SGD(max_iter=10), "newton": Newton(max_iter=2), "gibbs": Gibbs(sweeps=6)}

CHANGES = {
    "rank": 1,
    "loss": "brier",
    "structure": None,
    "n_terms": 2,
    "reference": 1,
    "order": ["low", "high"],
    "bias": False,
    "id_columns": ("b", "a"),
    "features": SideInformation(implicit=True),
    "features__row": {"a": [f"n{i}" for i in range(9)], "x": np.arange(9) % 4},
    "features__col": {"b": [f"n{i}" for i in range(9)], "x": np.arange(9) % 3},
    "features__interactions": 1,
    "features__implicit": True,
    "features__training": "after",
    "l2": 0.1,
    "l2__latent": 0.1,
    "l2__row": 0.1,
    "l2__col": 0.1,
    "l2__bias": 0.1,
    "l2__side": 0.1,
    "l2__shared": 5.0,
    "l2__scaling": "count",
    "solver__max_iter": 1,
    "solver__tol": 10.0,
    "solver__epochs": 3,
    "solver__learning_rate": 0.1,
    "solver__sweeps": 7,
    "solver__chains": 2,
    "solver__memory": 0.0,
    "n_init": 6,
    "n_models": 2,
    "early_stopping": 0.3,
    "unknown": "nan",
    "random_state": 9,
    "verbose": 1,
    "warm_start": True,
}
"""Another value of every parameter than that of the model it is compared with."""

NO_EFFECT = {"engine": "the law of engines: results do not depend on where sums are computed"}


def made_up(estimator):
    rng = np.random.default_rng(0)
    names = np.array([f"n{i}" for i in range(9)])
    pairs = np.array([pair for pair in itertools.product(range(9), range(9)) if pair[0] < pair[1]] * 3)
    X = {"a": names[pairs[:, 0]], "b": names[pairs[:, 1]]}
    n_labels = 2 if estimator in ("LFLRelational", "LFLLink") else 3
    if estimator == "LFLRelational":
        X["relation"] = np.repeat(["likes", "knows", "owes"], len(pairs) // 3)
        return X, rng.integers(0, n_labels, len(pairs))
    # The same label each time: a structure of undirected pairs takes no other.
    return X, np.tile(rng.integers(0, n_labels, len(pairs) // 3), 3)


def outcome(model, X, y, caplog):
    """All that a user can see of a fit: probabilities of known and unknown ids, how it went, and what was logged."""
    caplog.clear()
    asked = {name: np.append(column, "new") for name, column in X.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model.warm_start:
            model.fit(X, y)
        model.fit(X, y)
        proba = model.predict_proba(asked)
    draws = len(model.sample_proba(X)) if hasattr(model, "diagnostics_") else 1
    return (
        proba,
        model.objective_,
        model.n_iter_,
        model.converged_,
        draws,
        len(model.trace_["init"]),
        len(caplog.records),
    )


def same(one, other):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(one, other, strict=True))


CASES = [
    pytest.param(name, structure, solver, id=f"{name}-{structure}-{solver}")
    for name, kind in ESTIMATORS.items()
    # A stack hands its parameters to an LFLLink.
    if name != "LFLLinkWalk"
    for structure in kind._structures
    for solver in SOLVERS
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "structure", "solver"), CASES)
def test_no_parameter_is_without_effect_in_silence(name, structure, solver, caplog):
    caplog.set_level(logging.INFO, "dyads")
    X, y = made_up(name)
    plain = ESTIMATORS[name](rank=2, l2=0.5, solver=FEW[solver], structure=structure, engine=CPU(1))
    silent = set(CHANGES) - ({"structure"} if structure == ESTIMATORS[name]._structures[0] else set())
    # Of several restarts the first may be the best: a parameter is silent if it is with every seed.
    for seed in range(8):
        before = outcome(clone(plain).set_params(random_state=seed), X, y, caplog)
        for parameter in sorted(silent):
            try:
                changed = clone(plain).set_params(**{"random_state": seed, parameter: CHANGES[parameter]})
                if not same(before, outcome(changed, X, y, caplog)):
                    silent.remove(parameter)
            except InputError:
                silent.remove(parameter)
    assert not silent


def test_every_parameter_and_every_setting_is_tried():
    parameters = set(LFLClassifier(solver="point").get_params()) - {"solver", *NO_EFFECT}
    fields = {f"l2__{field}" for field in L2().get_params()}
    fields |= {f"features__{field}" for field in SideInformation().get_params()}
    fields |= {f"solver__{field}" for kind in SOLVERS.values() for field in kind().get_params()}
    assert parameters | fields == CHANGES.keys()


# ------------------------------------------------------------------------------------------------------- the objects


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SGD(max_iter=0), "SGD got max_iter=0: expected a whole number, at least 1"),
        (lambda: SGD(learning_rate=0), "learning_rate=0: expected a finite number, above 0, or None"),
        (lambda: SGD(max_iter=True), "max_iter=True"),
        (lambda: LBFGS(tol=np.nan), "tol=nan"),
        (lambda: Gibbs(chains=1.5), "chains=1.5"),
        (lambda: Gibbs(memory=-1), "memory=-1"),
        (lambda: L2(latent=-1), "L2 got latent=-1"),
        (lambda: L2(scaling="counts"), "scaling='counts': expected one of 'none', 'inverse_sqrt', 'count'"),
        (lambda: SideInformation(training="first"), "training='first'"),
        (lambda: SideInformation(implicit=1), "implicit=1: expected True or False"),
        (lambda: CPU(threads=0), "threads=0"),
        (lambda: LFLClassifier(solver="sgd").set_params(solver__sweeps=3), "SGD has no setting 'sweeps'"),
        (lambda: LFLClassifier(engine=CPU, solver="point").check_params(), "engine=<class"),
        (lambda: LFLClassifier().set_params(solver__max_iter=3), "solver='auto' has no settings"),
        (
            lambda: LFLClassifier(solver="gibbs", features=SideInformation(training="after")).check_params(),
            "training='after', and Gibbs draws all weights together",
        ),
    ],
)
def test_an_impossible_setting_is_refused_when_it_is_made(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_settings_are_values():
    assert SGD(max_iter=3) == SGD(max_iter=3) != SGD()
    assert SideInformation(interactions=1) != SideInformation(interactions=2)
    assert repr(pickle.loads(pickle.dumps(LBFGS()))) == "LBFGS()"
    assert repr(SGD(max_iter=3)) == "SGD(max_iter=3)"
    with pytest.raises(AttributeError):
        SGD().max_iter = 3
    shared = SGD(max_iter=3)
    one, other = LFLClassifier(solver=shared), LFLClassifier(solver=shared)
    one.set_params(solver__max_iter=5)
    assert (one.solver.max_iter, other.solver.max_iter, shared.max_iter) == (5, 3, 3)


def test_nested_parameters_are_read_and_set_whatever_form_a_part_has():
    model = LFLClassifier(solver=SGD(max_iter=3), l2=L2(bias=1.0))
    assert model.get_params()["solver__max_iter"] == 3
    assert "solver__max_iter" not in model.get_params(deep=False)
    assert LFLClassifier(solver="newton").set_params(solver__tol=0.1).solver == Newton(tol=0.1)
    assert LFLClassifier(l2=3.0).set_params(l2__bias=1.0).l2 == L2(latent=3.0, bias=1.0)
    assert LFLClassifier(solver="point").set_params(engine__threads=1).engine == CPU(1)
    assert dyads.baselines.MMMF(solver=SGD()).set_params(solver__max_iter=3).solver == SGD(3)
    both = LFLClassifier(solver="point").set_params(solver="gibbs", solver__sweeps=9)
    assert both.solver == Gibbs(sweeps=9)


@pytest.mark.filterwarnings("ignore")
def test_settings_take_what_numpy_makes_of_a_grid():
    X, y = made_up("LFLClassifier")
    columns = np.array(["b", "a"])
    model = LFLClassifier(np.int64(1), solver=SGD(np.int64(3)), l2=np.float64(2.0), id_columns=columns)
    model.set_params(features=SideInformation(implicit=np.bool_(True)), bias=np.bool_(True)).fit(X, y)
    assert model.columns_ == ["a", "b"]
    assert type(model.solver.max_iter) is int
    assert model.record_.known.rows.ids.name == "b"


@pytest.mark.filterwarnings("ignore")
def test_a_search_reaches_into_settings():
    X, y = made_up("LFLClassifier")
    pairs = np.column_stack(list(X.values()))
    grid = {"solver__max_iter": [1, 4], "l2__bias": [0.1, 10.0]}
    search = GridSearchCV(LFLClassifier(1, solver="lbfgs", random_state=0), grid, cv=2).fit(pairs, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.solver.max_iter == search.best_params_["solver__max_iter"]


def test_settings_come_back_from_a_file(tmp_path):
    X, y = made_up("LFLOrdinal")
    table = {"a": [f"n{i}" for i in range(9)], "x": np.arange(9) % 4}
    side = SideInformation(row=table, interactions=1, training="after")
    model = dyads.LFLOrdinal(2, features=side, l2=L2(latent=1.0, scaling="count"), solver=SGD(20), engine=CPU(1))
    model.fit(X, y).save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    assert (loaded.l2, loaded.solver, loaded.engine) == (model.l2, model.solver, "cpu")
    assert loaded.features.get_params() == side.get_params() | {"row": None}
