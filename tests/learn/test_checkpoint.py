"""Checkpoints: a fit that is killed and started again ends in the same model, whatever its solver."""

import json
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pandas as pd
import pytest

import dyads
from dyads import LBFGS, SGD, Gibbs, LFLClassifierCV, LFLLink, LFLOrdinal, LFLOrdinalCV, Newton, SideInformation
from dyads.errors import CheckpointError, InputError, ModelFileError
from dyads.learn import checkpoint
from shop import WITH, X, Y

STARS = 1 + np.searchsorted(["maybe", "no", "yes"], Y)

FITS = {
    "lbfgs": lambda: LFLOrdinal(2, l2=0.3, solver=LBFGS(max_iter=120, tol=1e-12), random_state=0),
    "sgd": lambda: LFLOrdinal(2, l2=0.3, solver=SGD(max_iter=9), random_state=0),
    "newton": lambda: LFLOrdinal(2, l2=0.3, solver=Newton(max_iter=9, tol=1e-12, epochs=2), random_state=0),
    "gibbs": lambda: LFLOrdinal(2, solver=Gibbs(sweeps=30), random_state=0),
    "restarts": lambda: LFLOrdinal(2, l2=0.3, solver=SGD(max_iter=4), n_init=3, random_state=0),
    "early stopping": lambda: LFLOrdinal(
        2, l2=0.001, solver=SGD(max_iter=20), early_stopping=0.2, n_init=2, random_state=0
    ),
    "a chosen penalty, several models": lambda: LFLOrdinal(2, solver=SGD(max_iter=3), n_models=3, random_state=0),
    "stages": lambda: LFLOrdinal(
        2,
        l2=0.3,
        solver=SGD(max_iter=4),
        features=SideInformation(WITH["features"].row, WITH["features"].col, training="after"),
        random_state=0,
    ),
}


class Stop:
    """Interrupts a fit after some iterations, as Ctrl-C does."""

    def __init__(self, after):
        self.left = after

    def __call__(self, step):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_is_interrupted_again_and_again_ends_in_the_same_model(name, tmp_path):
    whole = FITS[name]().fit(X, STARS, checkpoint=tmp_path / "whole")
    path = tmp_path / "fit"
    for n_interrupts in range(40):
        model = FITS[name]().set_params(random_state=None)
        if not n_interrupts:
            model.set_params(random_state=0)
        try:
            model.fit(X, STARS, callback=Stop(1 + n_interrupts % 3 + 52 * (name == "lbfgs")), checkpoint=path)
            break
        except KeyboardInterrupt:
            continue
    assert n_interrupts > 1, "it was interrupted"
    for draw, again in zip(whole.record_.draws, model.record_.draws, strict=True):
        np.testing.assert_array_equal(draw.theta, again.theta)
    assert model.objective_ == whole.objective_
    assert model.trace_["iteration"] == whole.trace_["iteration"]
    assert model.trace_["objective"] == whole.trace_["objective"]
    # Nothing is left to do: the callback is not called.
    done = FITS[name]().fit(X, STARS, callback=Stop(1), checkpoint=path)
    np.testing.assert_array_equal(done.record_.draws[0].theta, whole.record_.draws[0].theta)


def test_a_fit_that_a_callback_stops_goes_on_from_there(tmp_path):
    FITS["sgd"]().fit(X, STARS, callback=lambda step: step.iteration == 4, checkpoint=tmp_path / "fit")
    steps = []
    FITS["sgd"]().fit(X, STARS, callback=lambda step: steps.append(step.iteration), checkpoint=tmp_path / "fit")
    assert steps == [4, 5, 6, 7, 8, 9], "from the state after the third"


@pytest.mark.parametrize("name", ["sgd", "gibbs"])
def test_another_seed_is_refused_and_none_goes_on(name, tmp_path):
    path = tmp_path / "fit"
    with pytest.raises(KeyboardInterrupt):
        FITS[name]().fit(X, STARS, callback=Stop(3), checkpoint=path)
    with pytest.raises(CheckpointError, match="another random_state: expected the same, or none"):
        FITS[name]().set_params(random_state=1).fit(X, STARS, checkpoint=path)
    for state in (0, None, np.random.RandomState(5)):
        again = FITS[name]().set_params(random_state=state).fit(X, STARS, checkpoint=path)
        assert again.objective_ == FITS[name]().fit(X, STARS).objective_


SEARCHES = {
    "default": lambda: LFLOrdinalCV(1, solver=SGD(max_iter=3), cv=2, random_state=0),
    "a grid with features": lambda: LFLClassifierCV(
        grid={"rank": [0, 2], "l2__latent": [0.3, 3.0]}, solver=SGD(3), features=WITH["features"], random_state=0
    ),
}


class StopSearch(Stop):
    def __call__(self, done, planned):
        super().__call__(done)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_that_is_interrupted_again_and_again_ends_in_the_same_model(name, tmp_path, monkeypatch):
    whole, path = SEARCHES[name]().fit(X, STARS), tmp_path / "search"
    for n_interrupts in range(60):
        model = SEARCHES[name]()
        if n_interrupts:
            model.set_params(random_state=None)
        try:
            model.fit(X, STARS, callback=StopSearch(1 + n_interrupts % 3), checkpoint=path)
            break
        except KeyboardInterrupt:
            continue
    assert n_interrupts > 2, "it was interrupted"
    np.testing.assert_array_equal(model.record_.draws[0].theta, whole.record_.draws[0].theta)
    assert model.best_params_ == whole.best_params_
    for field, values in whole.cv_results_.items():
        np.testing.assert_array_equal(model.cv_results_[field], values)
    assert model.held_out_ == whole.held_out_
    # Nothing is left to do: no fit of the search is made again, and the last one ends at once.
    monkeypatch.setattr("dyads.estimators.selection.vanishing_l2", None)
    done = SEARCHES[name]().fit(X, STARS, callback=StopSearch(1), checkpoint=path)
    np.testing.assert_array_equal(done.record_.draws[0].theta, whole.record_.draws[0].theta)


def test_a_search_goes_on_with_its_own_data_and_settings_alone(tmp_path):
    path = tmp_path / "search"
    with pytest.raises(KeyboardInterrupt):
        SEARCHES["default"]().fit(X, STARS, callback=StopSearch(2), checkpoint=path)
    others = [{"rank": 2}, {"grid": {"l2__latent": [1.0]}}, {"cv": 3}, {"solver": SGD(max_iter=4)}]
    for parameters in others:
        with pytest.raises(CheckpointError, match="belongs to other data or another model"):
            SEARCHES["default"]().set_params(**parameters).fit(X, STARS, checkpoint=path)
    with pytest.raises(CheckpointError, match="belongs to other data"):
        SEARCHES["default"]().fit(X, STARS[::-1], checkpoint=path)
    with pytest.raises(CheckpointError, match="another random_state"):
        SEARCHES["default"]().set_params(random_state=1).fit(X, STARS, checkpoint=path)
    with pytest.raises(InputError, match="expected two of them"):
        LFLOrdinalCV(1, l2=1.0, solver="gibbs", early_stopping=0.2).fit(X, STARS, checkpoint=path)
    with pytest.raises(ModelFileError):
        FITS["sgd"]().fit(X, STARS, checkpoint=path)
    for change in (
        lambda about: about.update(losses={"a": "b"}),
        lambda about: about.update(values={}),
        lambda about: about.pop("marginals"),
        lambda about: about["losses"].popitem(),
    ):
        whole = path.read_bytes()
        _forged(path, change, parts=False)
        with pytest.raises(ModelFileError, match="start over"):
            SEARCHES["default"]().fit(X, STARS, checkpoint=path)
        path.write_bytes(whole)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ModelFileError, match="delete it to start over"):
        SEARCHES["default"]().fit(X, STARS, checkpoint=path)


KILLED = """
import sys, numpy as np
import dyads
from dyads.learn import checkpoint
checkpoint.CHECKPOINT_SECONDS = 0.0
rng = np.random.default_rng(0)
X, y = np.column_stack([rng.integers(0, 300, 20000), rng.integers(0, 200, 20000)]), rng.integers(1, 6, 20000)
solvers = {
    "sgd": dyads.SGD(max_iter=40),
    "newton": dyads.Newton(max_iter=12, tol=0.0),
    "lbfgs": dyads.LBFGS(max_iter=150, tol=0.0),
    "gibbs": dyads.Gibbs(sweeps=40),
}
l2 = None if sys.argv[1] == "gibbs" else 5.0
model = dyads.LFLOrdinal(3, l2=l2, solver=solvers.get(sys.argv[1]), random_state=0, engine=dyads.CPU(1))
told = lambda step: print(step.iteration, flush=True)
if sys.argv[1] == "search":
    model = dyads.LFLOrdinalCV(3, solver=dyads.SGD(max_iter=10), random_state=0, engine=dyads.CPU(1))
    told = lambda done, planned: print(done, flush=True)
print("ready", flush=True)
model.fit(X, y, callback=told, checkpoint=sys.argv[2]).save(sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sgd", "newton", "lbfgs", "gibbs", "search"])
def test_kills_change_nothing(solver, tmp_path):
    """SIGKILL at ten random moments of a fit, each of which goes on from the last checkpoint."""

    def start(path, output):
        command = [sys.executable, "-c", KILLED, solver, str(path), str(output)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    start(tmp_path / "whole", tmp_path / "whole.dyads").communicate(timeout=300)
    rng, n_killed = np.random.default_rng(1), 0
    for _ in range(40):
        process = start(tmp_path / "fit", tmp_path / "killed.dyads")
        if n_killed < 10:
            assert process.stdout.readline() == "ready\n"
            # The first iteration, so that every run makes some progress.
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            n_killed += 1
        else:
            process.communicate(timeout=300)
            assert process.returncode == 0
            break
    whole, killed = (dyads.load(tmp_path / name) for name in ("whole.dyads", "killed.dyads"))
    for draw, again in zip(whole.record_.draws, killed.record_.draws, strict=True):
        np.testing.assert_array_equal(draw.theta, again.theta)


def test_a_checkpoint_of_another_fit_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "fit"
    FITS["sgd"]().fit(X, STARS, checkpoint=path)
    for other in (FITS["sgd"]().set_params(rank=3), FITS["newton"](), FITS["sgd"]().set_params(n_init=2)):
        with pytest.raises(InputError, match="belongs to other data or another model"):
            other.fit(X, STARS, checkpoint=path)
    with pytest.raises(InputError, match="belongs to other data"):
        FITS["sgd"]().fit(X[1:], STARS[1:], checkpoint=path)
    with pytest.raises(InputError, match="warm_start"):
        FITS["sgd"]().set_params(warm_start=True).fit(X, STARS, checkpoint=path)
    with pytest.raises(ModelFileError):
        FITS["gibbs"]().fit(X, STARS, checkpoint=path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(ModelFileError, match="delete it to start over"):
        FITS["sgd"]().fit(X, STARS, checkpoint=path)


def _forged(path, change, parts=True):
    """Change the manifest of a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest["about"]["parts"] if parts else manifest["about"])
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in files.items():
            archive.writestr(name, part)


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts["solver"].update(n_iter=-1),
        lambda parts: parts["solver"].update(n_iter="many"),
        lambda parts: parts["solver"].pop("retries"),
        lambda parts: parts["train"].update(init=9),
        lambda parts: parts["train"].update(stage=9),
        lambda parts: parts["train"].update(restarts=[{}]),
        lambda parts: parts["train"].update(trace=[[1]]),
        lambda parts: parts["settings"].update(seeds=[]),
        lambda parts: parts.update(more={}),
        lambda parts: parts.pop("solver"),
    ],
)
def test_a_forged_state_gets_a_sentence(change, tmp_path):
    path = tmp_path / "fit"
    with pytest.raises(KeyboardInterrupt):
        FITS["sgd"]().fit(X, STARS, callback=Stop(3), checkpoint=path)
    _forged(path, change)
    with pytest.raises((InputError, ModelFileError), match="start over"):
        FITS["sgd"]().fit(X, STARS, checkpoint=path)


def test_several_links_are_resumed_after_the_last_that_was_done(tmp_path):
    pairs = pd.DataFrame({"a": np.repeat(np.arange(8), 8), "b": np.tile(np.arange(8), 8)}).query("a < b")
    y = ((pairs["a"] < 4) == (pairs["b"] < 4)).astype(int)
    whole = LFLLink(1, random_state=0).fit(pairs, y)
    with pytest.raises(KeyboardInterrupt):
        LFLLink(1, random_state=0).fit(pairs, y, callback=Stop(60), checkpoint=tmp_path / "fit")
    again = LFLLink(1).fit(pairs, y, checkpoint=tmp_path / "fit")
    np.testing.assert_array_equal(again.predict_proba(pairs), whole.predict_proba(pairs))
