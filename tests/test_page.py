"""The report: one self-contained page that says what it should, opens in a browser, and looks pairs up."""

import re
import shutil
import warnings

import numpy as np
import pytest

from dyads import LFLClassifier, LFLLink, LFLOrdinal, LFLRelational, page
from dyads.datasets.synthetic import make_nominal, make_relations, make_store

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def store():
    train, test = make_store(40, 30, random_state=0).split(0.6)
    return LFLClassifier(rank=2, l2=1.0, random_state=0).fit(train.X, train.y), test


@pytest.fixture(scope="module")
def path(store, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    model, test = store
    path.write_text(page.report_page(model, test.X, test.y, "<store>"))
    return path


def test_the_page_needs_nothing_else(path):
    text = path.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "http://" not in re.sub(r"data:[^\"]*", "", text)
    assert "<store>" not in text, "names are escaped"
    assert text.count("<img alt=") == 5


def test_other_kinds_of_models_have_a_page():
    ordinal = make_nominal(n=15, rank=1)
    row, col = np.triu_indices(20, 1)
    linked = {"a": row, "b": col}, np.arange(len(row)) % 2
    many = make_relations(10)
    for model, (X, y) in (
        (LFLOrdinal(rank=1), (ordinal.X, ordinal.y)),
        (LFLOrdinal(rank=2, solver="gibbs", max_iter=5), (ordinal.X, ordinal.y)),
        (LFLClassifier(rank=0), (ordinal.X, ordinal.y)),
        (LFLLink(rank=2), linked),
        (LFLRelational(rank=2), many),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = page.report_page(model.fit(X, y), X, y, "x")
        assert "log-loss" in text


def test_large_models_keep_the_page_small(store, monkeypatch):
    model, test = store
    monkeypatch.setattr(page, "LOOKED_UP", 300)
    text = page.report_page(model, test.X, test.y, "x")
    found, note = page._lookup(model, {})
    assert len(found["rows"]) * len(found["cols"]) * 3 <= 300
    assert "with most labels" in note
    assert note in text


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("Chromium and its driver are not installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def test_any_pair_can_be_looked_up(browser, path, store):
    model, _ = store
    browser.get(path.as_uri())
    assert browser.title == "Report on <store>"
    pair = {"row": model.row_ids_[7], "col": model.col_ids_[11]}
    for side, value in pair.items():
        field = browser.find_element("id", side)
        field.clear()
        field.send_keys(str(value))
    answer = browser.find_element("id", "answer").text.split()
    expected = model.predict_proba({"shopper": [pair["row"]], "product": [pair["col"]]})[0]
    assert answer[2:] == [
        part for label, p in zip(model.classes_, expected, strict=True) for part in (label, f"{p:.3f}")
    ]
    browser.find_element("id", "row").send_keys("x")
    assert "There is no row" in browser.find_element("id", "answer").text
    assert browser.get_log("browser") == []


def test_it_fits_a_phone(browser, path):
    phone = {"width": 360, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_anyone_from_reading_it(browser, path, scheme):
    selenium = pytest.importorskip("axe_core_python.selenium")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(path.as_uri())
    found = selenium.Axe().run(browser)
    serious = [one["id"] for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert serious == []


def test_pictures_take_axes_and_return_them(store):
    from matplotlib.figure import Figure

    from dyads import report

    model, test = store
    matrix = np.kron(np.eye(3), np.ones((4, 4)))
    for draw in (
        lambda ax: report.reliability_from_estimator(ax, model, test.X, test.y),
        lambda ax: report.confusion_from_estimator(ax, model, test.X, test.y),
        lambda ax: report.plot_latent_map(ax, model),
        lambda ax: report.plot_ordered_matrix(ax, matrix, np.repeat(["a", "b", "c"], 4)),
        lambda ax: report.plot_images(ax, {"first": np.zeros((2, 4, 4)), "second": np.ones((2, 4, 4))}),
    ):
        ax = Figure().subplots()
        assert draw(ax) is ax
    confusion = report.confusion_from_estimator(Figure().subplots(), model, test.X, test.y)
    assert sum(int(text.get_text().replace(",", "")) for text in confusion.texts) == len(test.y)
    blocks = report.plot_ordered_matrix(Figure().subplots(), matrix[:, ::-1][::-1], np.repeat([2, 1, 0], 4))
    np.testing.assert_array_equal(np.asarray(blocks.images[0].get_array()), matrix)
