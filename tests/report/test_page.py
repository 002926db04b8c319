"""The report: one self-contained page that says what it should, opens in a browser, and looks pairs up."""

import base64
import json
import re
import shutil

import numpy as np
import pytest

import dyads
from dyads import Gibbs, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational
from dyads.datasets.synthetic import make_nominal, make_relations, make_store
from dyads.report import page

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


def nominal():
    train, test = make_nominal(n=15, rank=1).split(0.7)
    return (train.X, train.y), (test.X, test.y)


def links():
    row, col = np.triu_indices(20, 1)
    noise, fold = np.random.default_rng(0).random((2, len(row)))
    y, train = ((row < 10) == (col < 10)) ^ (noise < 0.2), fold < 0.7
    return ({"a": row[train], "b": col[train]}, y[train]), ({"a": row[~train], "b": col[~train]}, y[~train])


def relations():
    X, y = make_relations(10)
    train = np.arange(len(y)) % 3 > 0
    return tuple(({name: column[kept] for name, column in X.items()}, y[kept]) for kept in (train, ~train))


def lines(text):
    """The lines of all tables of a page, by what they begin with."""
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    return {first: re.findall("<td>(.*?)</td>", others) for first, others in found}


GIBBS = LFLOrdinal(rank=2, solver=Gibbs(sweeps=5), random_state=0)
MAPS = ["Map of rows by their latent weights", "Map of columns by their latent weights"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("model", "data", "is_a", "trained", "maps"),
    [
        (LFLOrdinal(rank=1), nominal, "LFLOrdinal, stereotype, rank 1", "lbfgs, ", []),
        pytest.param(
            *(GIBBS, nominal, "LFLOrdinal, stereotype, rank 2", r"\d+ draws of the posterior, 5 ", MAPS),
            marks=pytest.mark.xdist_group("blocks"),
        ),
        (LFLClassifier(rank=0), nominal, "LFLClassifier, bilinear, rank 0", "lbfgs, ", []),
        (LFLLink(rank=2), links, "LFLLink, bilinear, rank 2", "lbfgs, ", MAPS[:1]),
        (LFLRelational(rank=2), relations, "LFLRelational, diagonal, rank 2", "lbfgs, ", MAPS),
    ],
    ids=["ordinal", "posterior", "classifier", "link", "relational"],
)
def test_a_page_of_any_kind_of_model_tells_its_kind_its_figures_and_its_pairs(model, data, is_a, trained, maps):
    train, (X, y) = data()
    text = page.report_page(model.fit(*train), X, y, "x")
    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert facts["model"] == is_a
    assert re.match(trained, facts["trained"])
    assert facts["rows"] == f"{len(model.row_ids_)} ids of {next(iter(X))}"
    assert facts["tested on"] == f"{len(y)} pairs"
    assert facts["their labels"] == ", ".join(f"{label} {(y == label).mean():.1%}" for label in model.classes_)
    assert re.findall('<img alt="(.*?)"', text)[3:] == maps

    shown = lines(text)
    judged = {name: column[-1] for name, column in dyads.evaluate(model, X, y).to_pydict().items()}
    figures = [f"{value:.4f}" for name, value in judged.items() if name not in ("regime", "n")]
    assert shown["all"] == [f"{len(y)}", *figures]
    names = {"log-loss": "log_loss", "Brier score": "brier_score", "accuracy": "accuracy"}
    if isinstance(model, LFLOrdinal):
        names["mean absolute error"] = "mean_absolute_error"
    for title, name in names.items():
        mean, low, high = map(float, re.findall(r"[\d.]+", shown[title][0]))
        assert f"{mean:.4f}" == f"{judged[name]:.4f}"
        assert low < mean < high
        assert len(shown[title]) == 4, "beside the marginals of all labels, of rows and of columns"
    assert ("mean absolute error" in shown) == isinstance(model, LFLOrdinal)
    assert shown["class-wise calibration error"][0] == f"{judged['classwise_ece']:.4f}"

    kept = json.loads(re.search('id="data">(.*?)</script>', text)[1])
    if isinstance(model, LFLRelational):
        assert kept["values"] == ""
        assert "Not available for a model of several relations." in text
        return
    assert "All pairs of ids known to the model." in text
    assert [kept["rows"], kept["cols"]] == [list(map(str, ids)) for ids in (model.row_ids_, model.col_ids_)]
    assert kept["labels"] == list(map(str, model.classes_))
    held = np.frombuffer(base64.b64decode(kept["values"]), "<u2") / 65535
    each = np.repeat(model.row_ids_, len(model.col_ids_)), np.tile(model.col_ids_, len(model.row_ids_))
    expected = model.predict_proba(dict(zip(X, each, strict=True)))
    np.testing.assert_allclose(held.reshape(expected.shape), expected, atol=1e-5)


def test_large_models_keep_the_page_small(store, monkeypatch):
    model, test = store
    monkeypatch.setattr(page, "LOOKED_UP", 300)
    text = page.report_page(model, test.X, test.y, "x")
    found, note = page._lookup(model, {})
    assert len(found["rows"]) * len(found["cols"]) * 3 <= 300
    assert "with the most labels" in note
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
    assert "This page has no row" in browser.find_element("id", "answer").text
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


def test_a_page_of_ordered_texts_has_the_figures_of_numbers():
    (X, y), (X_test, y_test) = nominal()
    names = np.array(["", "low", "medium", "high"])
    words = LFLOrdinal(rank=0, order=names[1:]).fit(X, names[y])
    shown = [
        lines(page.report_page(model, X_test, labels, "x"))
        for model, labels in ((words, names[y_test]), (LFLOrdinal(rank=0).fit(X, y), y_test))
    ]
    assert len(shown[0]["log-loss"]) == 4
    for name in ("log-loss", "mean absolute error", "all"):
        assert shown[0][name] == shown[1][name]


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
