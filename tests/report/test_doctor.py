"""A first look at a table: its advice was checked on pairs held out of it, and is the defaults unless it beat them."""

import numpy as np
import pytest

from dyads import LFLClassifier
from dyads.datasets.synthetic import make_nominal
from dyads.report import doctor


def table(n=900, seed=0):
    """Pairs, with labels of 1 to 3 that say nothing."""
    rng = np.random.default_rng(seed)
    return {"user": rng.integers(0, 30, n), "item": rng.integers(0, 20, n)}, rng.integers(1, 4, n)


def structured():
    data = make_nominal(n=30, rank=1, width=6.0, random_state=0)
    return data.X, np.array(["a", "b", "c"])[data.y - 1]


def test_noise_is_called_noise_and_gets_the_simplest_model():
    examined = doctor.examine(*table())
    log_loss = examined.checked["log_loss"]
    assert examined.checked["pairs"] == 900
    assert min(log_loss, key=log_loss.get) == "all labels"
    assert any("clearly beat 'all labels'" in sentence for sentence in examined.findings)
    assert examined.advice in ("--kind ordinal", "--kind ordinal --rank 0")


@pytest.mark.slow
def test_clear_structure_is_found_by_the_defaults():
    examined = doctor.examine(*structured())
    log_loss = examined.checked["log_loss"]
    assert examined.advice == "--kind nominal"
    assert log_loss["defaults"] == min(log_loss.values()) < log_loss["all labels"] / 2
    assert not any("clearly beat" in sentence for sentence in examined.findings)


@pytest.mark.parametrize(("error", "advice"), [(1.0, ""), (0.01, " --rank 0")])
def test_only_what_is_clearly_better_than_the_defaults_is_advised(monkeypatch, error, advice):
    judge = doctor._Trial._judge

    def judged(trial, options, settings):
        judge(trial, options, settings)
        if options:
            trial.losses[options] = trial.losses[""] - 0.1

    monkeypatch.setattr(doctor, "MAX_ROUNDS", 1)
    monkeypatch.setattr(doctor._Trial, "_judge", judged)
    monkeypatch.setattr(doctor, "paired_difference", lambda ours, theirs: (np.mean(ours - theirs), error))
    assert doctor.examine(*table(n=300)).advice == "--kind ordinal" + advice


def test_a_large_table_is_checked_on_some_rows_and_gets_the_defaults(monkeypatch):
    monkeypatch.setattr(doctor, "LARGE", 2000)
    monkeypatch.setattr(doctor, "SAMPLE", 1200)
    X, y = table()
    examined = doctor.examine(X, y)
    assert 300 < examined.checked["pairs"] < 500
    assert list(examined.checked["log_loss"])[:2] == ["defaults", "all labels"]
    assert examined.advice == "--kind ordinal"
    assert examined.facts["pairs"] == 900


def test_labels_of_one_pair_each_leave_nothing_to_judge_on():
    examined = doctor.examine({"a": np.arange(90) % 9, "b": np.arange(90) % 7}, [f"n{i}" for i in range(90)])
    assert (examined.advice, examined.checked) == ("--kind nominal", {})


def test_ordered_labels_are_tried_with_their_values(monkeypatch):
    tried = []
    monkeypatch.setattr(doctor._Trial, "search", lambda self: tried.append(np.unique(self.y).tolist()) or "")
    monkeypatch.setattr(doctor._Trial, "shortfall", lambda self: [])
    monkeypatch.setattr(doctor._Trial, "figures", lambda self: {})
    X, y = table()
    doctor.examine(X, np.array([0, 1, 2, 10])[y])
    assert tried == [[1, 2, 10]]


def test_a_sample_of_a_large_table_has_about_the_size_it_may():
    codes = np.arange(1_100_000, dtype=np.int32)
    trial = doctor._Trial(doctor._coded({"a": codes % 1100, "b": codes // 1100}, codes % 2), LFLClassifier)
    assert len(trial.y) == pytest.approx(doctor.SAMPLE / 2, rel=0.01)


@pytest.mark.parametrize(
    ("n", "labels", "advice"), [(2, 2, "--kind nominal"), (20, 2, "--kind nominal"), (20, 1, None)]
)
def test_a_table_too_small_to_check_gets_the_defaults_and_one_label_nothing(n, labels, advice):
    examined = doctor.examine({"a": np.arange(n) % 5, "b": np.arange(n) % 4}, np.arange(n) % labels)
    assert (examined.advice, examined.checked) == (advice, {})
