"""A progress bar of a fit, where it was asked for."""

import io

from rich.console import Console

from dyads import SGD, Gibbs, LFLClassifier, LFLClassifierCV, progress_bar
from shop import X, Y


def shown(model):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with progress_bar("Shop", console) as callback:
        model.fit(X, Y, callback=callback)
    return console.file.getvalue()


def test_the_bar_says_how_far_a_fit_is(recwarn):
    text = shown(LFLClassifier(rank=1, solver=SGD(3), l2=1.0))
    assert "Shop" in text
    assert "iteration 3, objective" in text
    assert "0 s left" in text
    assert "s left" in shown(LFLClassifier(rank=1, solver=Gibbs(sweeps=4)))


def test_the_bar_counts_the_fits_of_a_search():
    assert " of 4 fits" in shown(LFLClassifierCV(0, solver=SGD(2), grid={"l2__bias": [1.0, 10.0]}, cv=2))


def test_a_fit_shows_nothing_by_itself(capsys):
    LFLClassifier(rank=1, solver=SGD(2), l2=1.0).fit(X, Y)
    assert capsys.readouterr() == ("", "")
