"""The report: one self-contained page that says what it should, opens in a browser, and looks pairs up."""

import base64
import copy
import datetime
import html
import json
import re
import shutil

import numpy as np
import pytest

import dyads
from dyads import LBFGS, Gibbs, LFLClassifier, LFLLink, LFLOrdinal, LFLRelational
from dyads.datasets.synthetic import make_nominal, make_relations, make_store
from dyads.errors import InputError
from dyads.metrics import TITLES
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
    page.report(model, test.X, test.y, path, model_name="<store>", data_name="test.csv")
    return path


def test_the_page_needs_nothing_else(path):
    text = path.read_text()
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "http://" not in text
    assert "<store>" not in text, "names are escaped"
    assert text.count("<figure>") == 5


def test_the_page_tells_of_what_and_when_it_is(store):
    model, test = store
    day = datetime.date(2026, 11, 16)
    text = page.report(model, test.X, test.y, model_name="m.dyads", data_name="a & b.csv", date=day)
    assert "<h1>Report on m.dyads</h1>" in text
    assert f"<dd>{len(test.y):,} pairs of a &amp; b.csv</dd>" in text
    assert f"Written on 2026-11-16 by dyads {dyads.__version__}." in text
    assert "`" not in text.split("<script")[0]


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


def table_after(heading, text):
    """The lines of the table below a heading, by what they begin with; under "", its head."""
    table = text.split(f"<h2>{heading}</h2>")[1].split("</table>")[0]
    body = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    cells = {first: [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", rest)] for first, rest in body}
    return {"": re.findall(r'<th scope="col".*?>(.*?)</th>', table)} | cells


GIBBS = LFLOrdinal(rank=2, solver=Gibbs(sweeps=5), random_state=0)
CURVE, TRACE = "Training: objective by iteration", "Trace of the sampler: after the burn-in it should be level"
R_HAT = "R-hat of monitored predictions: near 1 where chains, or halves of one, agree"
ROWS, COLUMNS = ("Map of {} ({}): near points have similar labels".format(what, "{}") for what in ("rows", "columns"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("model", "data", "is_a", "trained", "drawn"),
    [
        (LFLOrdinal(rank=1, solver="point"), nominal, "LFLOrdinal, stereotype, rank 1", "lbfgs, ", [CURVE]),
        pytest.param(
            *(GIBBS, nominal, "LFLOrdinal, stereotype, rank 2", r"\d+ draws of the posterior, 5 "),
            [TRACE, R_HAT, ROWS, COLUMNS],
            marks=pytest.mark.xdist_group("blocks"),
        ),
        (LFLClassifier(rank=0, solver="point"), nominal, "LFLClassifier, bilinear, rank 0", "lbfgs, ", [CURVE]),
        (LFLLink(rank=2), links, "LFLLink, symmetric, rank 40", "lbfgs, ", [CURVE, ROWS]),
        (
            LFLRelational(rank=2, solver="point"),
            relations,
            "LFLRelational, relational, rank 2",
            "lbfgs, ",
            [CURVE, ROWS, COLUMNS],
        ),
    ],
    ids=["ordinal", "posterior", "classifier", "link", "relational"],
)
def test_a_page_of_any_kind_of_model_tells_its_kind_its_figures_and_its_pairs(model, data, is_a, trained, drawn):
    train, (X, y) = data()
    text = page.report(model.fit(*train), X, y)
    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert facts["model"] == is_a
    assert re.match(trained, facts["trained"])
    assert facts["rows"] == f"{len(model.row_ids_)} ids of {next(iter(X))}"
    assert facts["tested on"] == f"{len(y)} pairs"
    names = iter(X)
    titles = [title.format(next(names)) if "Map" in title else title for title in drawn]
    assert re.findall("<figcaption>(.*?)</figcaption>", text)[2:] == titles

    shares = table_after("Labels", text)
    for label, mean in zip(model.classes_, model.predict_proba(X).mean(axis=0), strict=True):
        assert shares[str(label)] == [f"{(y == label).sum():,}", f"{(y == label).mean():.2%}", f"{mean:.2%}"]

    shown = table_after("Metrics", text)
    judged = {name: column for name, column in dyads.evaluate(model, X, y).to_pydict().items() if name in TITLES}
    assert list(shown)[1:] == [TITLES[name] for name in judged]
    n_predictors = 5 if isinstance(model, LFLRelational) else 4
    for name, column in judged.items():
        first, *others = shown[TITLES[name]]
        model_figure, *marginals = (f"{figure:.4f}" for figure in column[-n_predictors:])
        assert others == marginals, "the training marginals on the same pairs, as in evaluate"
        if name in ("log_loss", "brier_score", "accuracy", "mean_absolute_error"):
            mean, low, high = re.findall(r"[\d.]+", first)
            assert mean == model_figure
            assert float(low) < float(mean) < float(high)
        else:
            assert first == model_figure
    assert "All rows and columns of these pairs had labels in training." in text, "no second table of the same figures"

    kept = json.loads(re.search('id="data">(.*?)</script>', text)[1])
    if isinstance(model, LFLRelational):
        assert kept["values"] == ""
        assert "Not available for a model of several relations." in text
        assert re.search('<form id="lookup"[^>]* hidden>', text)
        return
    assert "All pairs of ids known to the model." in text
    assert [kept["rows"], kept["cols"]] == [list(map(str, ids)) for ids in (model.row_ids_, model.col_ids_)]
    assert kept["labels"] == list(map(str, model.classes_))
    held = np.frombuffer(base64.b64decode(kept["values"]), "<u2") / 65535
    each = np.repeat(model.row_ids_, len(model.col_ids_)), np.tile(model.col_ids_, len(model.row_ids_))
    expected = model.predict_proba(dict(zip(X, each, strict=True)))
    np.testing.assert_allclose(held.reshape(expected.shape), expected, atol=1e-5)


def test_a_page_says_if_marginals_do_as_well_and_shows_new_ids_apart():
    rng = np.random.default_rng(0)
    X = {"user": rng.integers(0, 20, 300), "item": rng.integers(0, 15, 300)}
    y, train = rng.integers(0, 3, 300), X["user"] > 2
    train &= np.arange(300) < 200
    model = LFLClassifier(rank=0, l2=dyads.L2(bias=0.1)).fit({name: ids[train] for name, ids in X.items()}, y[train])
    text = page.report(model, {name: ids[~train] for name, ids in X.items()}, y[~train])
    assert "The model does not beat &#x27;all labels&#x27;" in text
    new = np.isin(X["user"], [0, 1, 2]).sum()
    assert f"<h3>new row: {new} pairs</h3>" in text
    assert f"<h3>known: {(~train).sum() - new} pairs</h3>" in text


def test_large_models_keep_the_page_small(store, monkeypatch):
    model, test = store
    monkeypatch.setattr(page, "LOOKED_UP", 300)
    text = page.report(model, test.X, test.y)
    found, note = page._lookup(model, {})
    assert len(found["rows"]) * len(found["cols"]) * 3 <= 300
    assert "with the most labels" in note
    assert note in text


def test_weights_count_in_every_figure(store):
    model, test = store
    weight = 1.0 + (test.y == "viewed") + 2 * (np.arange(len(test.y)) % 3 == 0)
    repeated = np.repeat(np.arange(len(test.y)), weight.astype(int))
    text = page.report(model, test.X, test.y, sample_weight=weight)
    same = page.report(model, {name: column[repeated] for name, column in test.X.items()}, test.y[repeated])
    weighted, counted = (table_after("Metrics", each) for each in (text, same))
    for name in counted.keys() - {""}:
        assert [cell.split()[0] for cell in weighted[name]] == [cell.split()[0] for cell in counted[name]]
    low, high = map(float, re.search(r"\((.*) to (.*)\)", weighted["log-loss"][0]).groups())
    assert low < float(counted["log-loss"][0].split()[0]) < high
    labels = table_after("Labels", same)
    assert labels.pop("")[2] == "share of the pairs"
    assert table_after("Labels", text)[""][2] == "share of the weight"
    for label, line in labels.items():
        assert table_after("Labels", text)[label][1:] == line[1:]
    assert "Confusion: summed weights" in text
    assert f"sum to {weight.sum():,.6g}" in text
    figures = [re.findall(r"<text [^>]*>([\d,]+)</text>", each.split("<figure>")[2]) for each in (text, same)]
    assert figures[0] == figures[1]
    assert len(figures[0]) == 9


def test_no_pairs_and_weights_of_another_length_are_refused(store):
    model, test = store
    with pytest.raises(InputError, match="There are no labelled pairs"):
        page.report(model, {name: column[:0] for name, column in test.X.items()}, test.y[:0])
    with pytest.raises(InputError, match=f"{len(test.y)} labels but 3 weights"):
        page.report(model, test.X, test.y, sample_weight=[1, 2, 3])


def test_a_page_that_cannot_be_written_leaves_the_old_one(store, tmp_path, monkeypatch):
    model, test = store
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(page, "_metrics", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.report(model, test.X, test.y, path)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_page_of_thousands_of_ids_is_small():
    rng = np.random.default_rng(0)
    X, y = {"a": rng.integers(0, 2000, 9000), "b": rng.integers(0, 2000, 9000)}, rng.integers(0, 3, 9000)
    model = LFLClassifier(rank=2, solver=LBFGS(max_iter=2), random_state=0).fit(X, y)
    text = page.report(model, {name: ids[:99] for name, ids in X.items()}, y[:99])
    assert len(text.encode()) < 1_400_000


def test_a_pair_that_the_data_repeat_is_shown_once(store):
    model, test = store
    many, proba = {name: np.tile(column, 4) for name, column in test.X.items()}, model.predict_proba(test.X)
    for most in (True, False):
        shown = page._certain(model, many, {}, np.tile(test.y, 4), np.tile(proba, (4, 1)), most=most)
        assert shown == page._certain(model, test.X, {}, test.y, proba, most=most)


def test_the_parts_of_a_prediction_add_up_to_its_log_odds_whichever_label_is_the_reference():
    (X, y), (Z, truth) = links()
    for reference in (False, True):
        model = LFLLink(rank=0, reference=reference).fit(X, y)
        proba = model.predict_proba(Z)
        shown = page._certain(model, Z, {}, truth, proba, most=True)
        table = table_after("", f"<h2></h2>{shown}")
        assert len(table) == 1 + page.SHOWN
        for pair, (label, _, _, parts) in list(table.items())[1:]:
            at = [int(node) for node in pair.split(" × ")]
            p = proba[(Z["a"] == at[0]) & (Z["b"] == at[1])].max()
            odds = sum(float(value) for value in re.findall(r"[+-][\d.]+", parts))
            assert odds == pytest.approx(np.log(p / (1 - p)), abs=0.02), (label, reference)


def test_texts_in_pictures_are_texts_whatever_their_letters():
    names = ["東京", "<b>bold</b>", "$x_1$", "a\x01b\nc", "an id that is much too long for a picture of this size"]
    X = {"s": np.repeat(names, 8), "t": np.tile(np.arange(8), 5)}
    y = np.random.default_rng(0).choice(names, 40)
    text = page.report(LFLClassifier(rank=2, l2=0.1, random_state=0).fit(X, y), X, y)
    drawn = [html.unescape(name) for name in re.findall("<text[^>]*>(.*?)</text>", text)]
    assert {"東京", "<b>bold</b>", "$x_1$", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"} <= set(drawn)
    assert any(name.startswith("an id that") and name.endswith("…") for name in drawn)
    assert "<b>bold</b>" not in text
    ids = re.findall(r' id="(.*?)"', text)
    assert len(ids) == len(set(ids)), "pictures share no ids"


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


def test_the_form_opens_on_a_pair_of_two_nodes(browser, tmp_path):
    train, test = links()
    page.report(LFLLink(rank=0).fit(*train), *test, tmp_path / "links.html")
    browser.get((tmp_path / "links.html").as_uri())
    row, col = (browser.find_element("id", side).get_property("value") for side in ("row", "col"))
    assert row != col
    assert "probability" in browser.find_element("id", "answer").text


def test_many_labels_are_cut_to_the_most_frequent(browser, tmp_path):
    X = {"a": np.repeat(np.arange(20), 20), "b": np.tile(np.arange(20), 20)}
    y = np.sqrt(np.arange(400)).astype(int)  # 20 labels: label k occurs 2 k + 1 times
    page.report(LFLClassifier(rank=0, l2=dyads.L2(bias=1.0)).fit(X, y), X, y, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert list(table_after("Labels", text))[1:] == [str(label) for label in range(8, 20)]
    titles = re.findall("<figcaption>(.*?)</figcaption>", text)[:2]
    assert all("of the 12 most frequent labels" in title for title in titles)
    browser.get((tmp_path / "page.html").as_uri())
    caption, _, *rows = browser.find_element("id", "answer").text.splitlines()
    assert caption == "The 12 most probable of 20 labels."
    probabilities = [float(row.split()[1]) for row in rows]
    assert len(probabilities) == 12
    assert probabilities == sorted(probabilities, reverse=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_have_the_colours_of_the_page(browser, path, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(path.as_uri())
    colour = browser.find_element("tag name", "body").value_of_css_property("color")
    names = browser.find_elements("css selector", "figure svg text")
    rgb = [re.findall(r"\d+", each)[:3] for each in (colour, names[0].value_of_css_property("fill"))]
    assert rgb[0] == rgb[1]
    assert browser.find_elements("css selector", "figure [style*='fill: #ffffff'], figure [style*='#000000']") == []


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
    words = LFLOrdinal(rank=0, order=names[1:], solver="point").fit(X, names[y])
    numbers = LFLOrdinal(rank=0, solver="point").fit(X, y)
    shown = [
        table_after("Metrics", page.report(model, X_test, labels))
        for model, labels in ((words, names[y_test]), (numbers, y_test))
    ]
    assert shown[0] == shown[1]


def test_weights_that_are_nearly_all_zero_have_intervals(store):
    model, test = store
    weight = np.where(np.arange(len(test.y)) < 2, 1.0, 0.0)
    assert "log-loss" in page.report(model, test.X, test.y, sample_weight=weight)


def test_a_page_says_that_its_model_is_calibrated_and_its_explanations_are_not(store):
    model, test = store
    plain = page.report(model, test.X, test.y)
    assert "before calibration" not in plain
    calibrated = copy.copy(model).calibrate(test.X, test.y, "temperature")
    text = page.report(calibrated, test.X, test.y)
    assert "<dt>calibrated</dt><dd>method temperature</dd>" in text
    assert "what adds most to its log-odds, before calibration" in text
