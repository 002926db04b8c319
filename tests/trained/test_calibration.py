"""Calibration makes probabilities come true; conformal sets cover as often as they say."""

import warnings

import numpy as np
import pandas as pd
import pytest

import dyads
from dyads import LFLClassifier, LFLOrdinal, metrics
from dyads.errors import FewDyadsWarning, InputError, UnknownIdError
from dyads.trained.calibration import CALIBRATORS, conformal_sets, learn_calibrator, nonconformity

RNG = np.random.default_rng(0)


def ratings(n=6000, n_rows=80, n_cols=60):
    """Stars 1 to 5 that follow a latent taste, in three parts: to train, to calibrate and to test on."""
    a, b = RNG.normal(size=(n_rows, 2)), RNG.normal(size=(n_cols, 2))
    X = np.column_stack([RNG.integers(0, n_rows, n), RNG.integers(0, n_cols, n)])
    taste = 3 + (a[X[:, 0]] * b[X[:, 1]]).sum(axis=1) + RNG.normal(scale=0.7, size=n)
    y = taste.round().clip(1, 5).astype(int)
    return [(X[part], y[part]) for part in np.array_split(np.arange(n), [n // 2, 3 * n // 4])]


(TRAIN, HELD, TEST) = ratings()


def overconfident(n=4000, n_labels=3, factor=3.0):
    logits = RNG.normal(size=(n, n_labels))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    label = (RNG.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1)
    sharp = np.exp(factor * logits) / np.exp(factor * logits).sum(axis=1, keepdims=True)
    return p, sharp, label


@pytest.mark.parametrize("method", CALIBRATORS)
def test_every_method_mends_too_sure_probabilities(method):
    truth, sharp, label = overconfident()
    half = len(label) // 2
    calibrated = learn_calibrator(method, sharp[:half], label[:half], None, None).apply(sharp[half:])
    np.testing.assert_allclose(calibrated.sum(axis=1), 1)
    assert calibrated.min() >= 0
    losses = [metrics.log_loss(label[half:], p[half:], np.arange(3)) for p in (truth, sharp)]
    found = metrics.log_loss(label[half:], calibrated, np.arange(3))
    assert found < losses[0] + 0.05 * (losses[1] - losses[0]) + 0.02
    assert metrics.classwise_ece(label[half:], calibrated, np.arange(3)) < 0.04


@pytest.mark.parametrize("method", CALIBRATORS)
def test_weights_count_as_repetitions(method):
    _, sharp, label = overconfident(600)
    weight = RNG.integers(1, 4, 600)
    times = np.repeat(np.arange(600), weight)
    one = learn_calibrator(method, sharp, label, weight.astype(float), None).apply(sharp)
    other = learn_calibrator(method, sharp[times], label[times], None, None).apply(sharp)
    np.testing.assert_allclose(one, other, atol=0.02 if method == "isotonic" else 2e-3)


@pytest.mark.parametrize("loss", ["absolute", "squared", "hinge"])
def test_a_loss_that_trains_the_mean_alone_becomes_honest(loss):
    proper = LFLOrdinal(rank=2, l2=1.0, random_state=0).fit(*TRAIN)
    model = LFLOrdinal(rank=2, l2=1.0, loss=loss, random_state=0).fit(*TRAIN)
    before = metrics.log_loss(TEST[1], model.predict_proba(TEST[0]), model.classes_)
    odds = model.log_odds(TEST[0])
    assert model.calibrate(*HELD) is model
    after = metrics.log_loss(TEST[1], model.predict_proba(TEST[0]), model.classes_)
    best = metrics.log_loss(TEST[1], proper.predict_proba(TEST[0]), proper.classes_)
    assert after < before
    assert after < 1.1 * best
    assert metrics.classwise_ece(TEST[1], model.predict_proba(TEST[0]), model.classes_) < 0.03
    np.testing.assert_array_equal(model.log_odds(TEST[0]), odds)
    np.testing.assert_allclose(model.predict_mean(TEST[0]), model.predict_proba(TEST[0]) @ np.arange(1, 6))


@pytest.mark.parametrize("method", CALIBRATORS)
@pytest.mark.parametrize("estimator", [LFLClassifier, LFLOrdinal])
def test_a_calibrated_model_is_saved_and_loaded(estimator, method, tmp_path):
    model = estimator(rank=1, solver="point", random_state=0).fit(*TRAIN)
    model.calibrate(*HELD, method=method).conformalize(*HELD)
    model.save(tmp_path / "model")
    loaded = dyads.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_proba(TEST[0]), model.predict_proba(TEST[0]), rtol=1e-12)
    np.testing.assert_array_equal(loaded.predict_set(TEST[0]), model.predict_set(TEST[0]))
    assert loaded.fit(*TRAIN).record_.calibrator is None, "a new fit is not calibrated"


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_sets_cover_as_often_as_they_say(coverage):
    covered = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        logits = rng.normal(scale=2, size=(1000, 4))
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        label = (rng.random((1000, 1)) > p.cumsum(axis=1)).sum(axis=1)
        wrong = p**0.3 / (p**0.3).sum(axis=1, keepdims=True)
        sets = conformal_sets(wrong[500:], nonconformity(wrong[:500], label[:500]), coverage)
        covered.append(sets[np.arange(500), label[500:]].mean())
    assert coverage - 0.01 < np.mean(covered) < coverage + 0.05


def test_sets_of_a_model_are_smaller_the_more_it_knows():
    sizes = []
    for rank in (0, 2):
        model = LFLOrdinal(rank=rank, l2=1.0 if rank else None, random_state=0).fit(*TRAIN).conformalize(*HELD)
        sets = model.predict_set(TEST[0], coverage=0.9)
        covered = sets[np.arange(len(TEST[1])), TEST[1] - 1].mean()
        assert 0.87 < covered < 0.93
        sizes.append(sets.sum(axis=1).mean())
    assert sizes[1] < sizes[0]
    assert (model.predict_set(TEST[0], coverage=0.01).sum(axis=1) >= 1).all(), "no set is empty"


@pytest.mark.parametrize("method", CALIBRATORS)
@pytest.mark.parametrize("n", [1, 3])
def test_few_dyads_make_no_label_impossible(method, n):
    """However sure the model is: of one dyad nobody learns that a label never occurs."""
    sure = np.array([[0.999, 0.001 - 1e-9, 1e-9]] * n)
    with pytest.warns(FewDyadsWarning, match=f"3 labels are calibrated on {n} held-out dyads.*or more are advised"):
        calibrator = learn_calibrator(method, sure, np.zeros(n, int), None, np.arange(3.0))
    proba = calibrator.apply(np.array([[0.5, 0.3, 0.2]]))
    assert proba.min() > 0.01


def test_enough_dyads_raise_no_warning():
    model = LFLOrdinal(rank=0, solver="point").fit(*TRAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.calibrate(HELD[0][:20], HELD[1][:20])
    with pytest.warns(FewDyadsWarning, match="where 100 or more"):
        model.calibrate(HELD[0][:20], HELD[1][:20], "vector")


def test_bad_calibration_gets_a_sentence():
    model = LFLOrdinal(rank=1, random_state=0, solver="point").fit(*TRAIN)
    with pytest.raises(InputError, match="was not conformalized"):
        model.predict_set(TEST[0])
    with pytest.raises(InputError, match="coverage=1.5: expected a number between 0 and 1"):
        model.conformalize(*HELD).predict_set(TEST[0], coverage=1.5)
    with pytest.raises(InputError, match="method='platt' is not known"):
        model.calibrate(*HELD, method="platt")
    with pytest.raises(InputError, match="label 9 is not among those of the model"):
        model.calibrate(HELD[0][:1], [9])
    with pytest.raises(InputError, match="have the lengths"):
        model.calibrate(HELD[0], HELD[1][:3])
    assert isinstance(model.calibrate(pd.DataFrame(HELD[0]), HELD[1]), LFLOrdinal)
    model.set_params(unknown="nan").conformalize(*HELD)
    with pytest.raises(UnknownIdError, match="no label can be predicted"):
        model.predict_set([[-1, -1]])
