"""The explorer in a browser: all that it is for can be done, by the keyboard too, without a word on the console."""

import contextlib
import copy
import shutil
import socket
import threading
import time

import numpy as np
import pytest
import uvicorn

from dyads.serve.app import create
from dyads.serve.workers import publish

webdriver = pytest.importorskip("selenium.webdriver")
support = pytest.importorskip("selenium.webdriver.support.ui")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("explorer"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="Chromium and its driver are not installed (Debian: chromium, chromium-driver)",
    ),
]


@contextlib.contextmanager
def started(folder, token=None):
    """The address of a server, and its application."""
    application, listening = create(folder, token=token), socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/", application
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def addresses(models, store, tmp_path_factory):
    """Addresses of servers of models, by name."""
    _, test = store
    stack, found = contextlib.ExitStack(), {}
    wanted = dict.fromkeys(("ordinal", "links", "pair features"), (None, None))
    wanted |= {"posterior": ((test.X, test.y, None), None), "point": (None, "secret")}
    for name, (held_out, token) in wanted.items():
        folder = tmp_path_factory.mktemp("served")
        publish(models[name][1], folder, held_out)
        found[name], _ = stack.enter_context(started(folder, token))
    with stack:
        yield found


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def wait_for(happened, seconds=15):
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)


def text(browser, name):
    return browser.find_element("id", name).text


def opened(browser, address):
    browser.get(address)
    wait_for(lambda: "for" in text(browser, "best-title") and text(browser, "calibration"))
    return browser


def searched(browser, id):
    field = browser.find_element("id", "id")
    field.clear()
    field.send_keys(str(id), "\n")
    wait_for(lambda: text(browser, "best-title").endswith(f" for {id}"))


def table(browser, name="best"):
    """Lines of a table: lists of texts of cells."""
    cells = "[...row.cells].map((cell) => cell.innerText)"
    return browser.execute_script(f"return [...document.querySelectorAll('#{name} tbody tr')].map((row) => {cells})")


def supposed(browser, label):
    """Suppose a label of the first partner."""
    support.Select(browser.find_element("css selector", "#best tbody select")).select_by_visible_text(label)
    browser.find_element("css selector", "#best tbody .what-if button").click()


def number(shown):
    """A percentage; less than one is a half."""
    return {"<1": 0.5, ">99": 99.5}.get(shown) or float(shown)


def test_the_best_partners_of_an_id_are_those_of_the_model_with_intervals(browser, addresses, models):
    model = models["posterior"][0]
    opened(browser, addresses["posterior"])
    id = model.row_ids_[7]
    searched(browser, id)
    label = browser.execute_script("return JSON.parse(document.getElementById('by').value)")
    best = model.recommend([id], 10, by=label)
    lines = table(browser)
    assert [line[0] for line in lines] == best["product"].to_pylist()
    pairs = {"shopper": [id] * 10, "product": best["product"].to_pylist()}
    bounds, proba = model.predict_interval(pairs), model.predict_proba(pairs)
    for line, p, (low, high) in zip(lines, proba[:, 0], bounds[:, 0], strict=True):
        shown, interval = line[1].split()
        assert number(shown[:-1]) == pytest.approx(100 * p, abs=0.51)
        assert [number(end) for end in interval.split("–")] == pytest.approx([100 * low, 100 * high], abs=0.51)
    assert browser.get_log("browser") == []


def test_reasons_add_up_to_the_log_odds(browser, addresses, models):
    model = models["posterior"][0]
    opened(browser, addresses["posterior"])
    searched(browser, model.row_ids_[3])
    partner = table(browser)[0][0]
    browser.find_element("css selector", "#best tbody button").click()
    wait_for(lambda: text(browser, "why-title") == f"Why {partner} for {model.row_ids_[3]}")
    parts = [float(line[1].replace("−", "-")) for line in table(browser, "reasons")]
    total = browser.find_element("css selector", "#reasons tfoot td").text
    odds = model.log_odds({"shopper": [model.row_ids_[3]], "product": [partner]})[0]
    best = browser.execute_script("return Number(document.getElementById('reason').value)")
    expected = odds[best] - np.delete(odds, best).mean()
    assert float(total.replace("−", "-")) == pytest.approx(expected, abs=0.006)
    assert sum(parts) == pytest.approx(expected, abs=0.03)
    assert browser.execute_script("return document.activeElement.id") == "why-title"
    bars = browser.execute_script(
        "return [...document.querySelectorAll('.diverging span')].map((bar) => bar.offsetWidth)"
    )
    assert max(bars) > 20
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", ["posterior", "ordinal"])
def test_what_would_change_is_shown_live(browser, addresses, models, name):
    model = models[name][0]
    opened(browser, addresses[name])
    id = model.row_ids_[4]
    searched(browser, id)
    before = table(browser)
    partner, label = before[0][0], str(model.classes_[-1])
    supposed(browser, label)
    wait_for(lambda: f"{partner}: {label}" in text(browser, "supposed"))
    after = table(browser)
    assert partner not in [line[0].split()[0] for line in after], "it has the label now"
    assert any("▲" in cell or "▼" in cell for line in after for cell in line)
    # Another ranking moves partners; what the labels move is told against the same ranking.
    ranking = browser.find_element("id", "by")
    chosen = support.Select(ranking).first_selected_option.text
    support.Select(ranking).select_by_index(1)
    value = browser.execute_script("return JSON.parse(document.getElementById('by').value)")
    plain = model.recommend([id], 10, by=value).column(1).to_pylist()
    wait_for(lambda: table(browser) != after)
    for rank, line in enumerate(table(browser), 1):
        name, *move = line[0].split()
        known = [str(each) for each in plain if str(each) != partner]
        by = known.index(name) + 1 - rank if name in known else None
        assert move == ([] if by == 0 else ["new"] if by is None else [f"{'▲' if by > 0 else '▼'}{abs(by)}"])
    support.Select(ranking).select_by_visible_text(chosen)
    wait_for(lambda: table(browser) == after)
    browser.find_element("css selector", "#supposed button").click()
    wait_for(lambda: not browser.find_element("id", "supposed").is_displayed())
    assert table(browser) == before, "nothing was stored"
    assert browser.get_log("browser") == []


def test_a_new_id_is_folded_in_by_the_keyboard(browser, addresses, models):
    model = models["posterior"][0]
    opened(browser, addresses["posterior"])
    browser.find_element("id", "new").send_keys("\n")
    wait_for(lambda: "a new shopper" in text(browser, "best-title"))
    partners = [str(id) for id in model.col_ids_[:3]]
    for partner in partners:
        wait_for(lambda: browser.execute_script("return document.activeElement.id") == "partner")
        webdriver.ActionChains(browser).send_keys(partner, "\n").perform()
        wait_for(lambda partner=partner: partner in text(browser, "supposed"))
    label = model.classes_[0]
    new = {"shopper": ["new"] * 3, "product": partners}
    best = copy.copy(model).fold_in(new, [label] * 3).recommend(["new"], 10, by=label)
    assert [line[0] for line in table(browser)] == best["product"].to_pylist()
    assert browser.get_log("browser") == []


def test_the_map_shows_the_id_and_its_like_lead_on(browser, addresses, models):
    model = models["posterior"][0]
    opened(browser, addresses["posterior"])
    searched(browser, model.row_ids_[5])
    here = "return [...document.querySelectorAll('#map .here title')].map((title) => title.textContent)"
    wait_for(lambda: browser.execute_script(here) == [model.row_ids_[5]])
    dots = browser.execute_script("return document.querySelectorAll('#map circle').length")
    assert dots == len(model.row_ids_)
    wait_for(lambda: model.row_ids_[5] in text(browser, "similar"))
    like = browser.find_element("css selector", "#similar button")
    name = like.text
    assert name == model.similar([model.row_ids_[5]], 1)["similar_shopper"][0].as_py()
    like.click()
    wait_for(lambda: browser.execute_script(here) == [name])
    wait_for(lambda: browser.execute_script("return document.activeElement.id") == "best-title")
    assert "held-out pairs" in text(browser, "calibration")
    assert browser.execute_script("return document.querySelectorAll('#calibration polyline').length") == 3
    assert browser.get_log("browser") == []


def test_an_unknown_id_is_told_and_the_other_side_can_be_asked(browser, addresses, models):
    opened(browser, addresses["ordinal"])
    field = browser.find_element("id", "id")
    field.clear()
    field.send_keys("somebody\n")
    wait_for(lambda: "does not know the user “somebody”" in text(browser, "problem"))
    browser.find_element("css selector", "input[value=col]").click()
    wait_for(lambda: text(browser, "best-title").startswith("Best user for 1"))
    assert not browser.find_element("id", "problem").is_displayed()
    assert browser.get_log("browser") == []


def test_links_have_one_side_and_a_token_is_asked_for(browser, addresses):
    opened(browser, addresses["links"])
    assert not browser.find_element("id", "sides").is_displayed()
    assert browser.get_log("browser") == []
    browser.get(addresses["pair features"])
    wait_for(lambda: "features of pairs" in text(browser, "problem"))
    assert not browser.find_element("id", "explorer").is_displayed()
    browser.get(addresses["point"])
    wait_for(lambda: browser.find_element("id", "token").is_displayed())
    assert not browser.find_element("id", "explorer").is_displayed()
    browser.find_element("id", "token").send_keys("secret\n")
    wait_for(lambda: browser.find_element("id", "explorer").is_displayed())
    assert browser.get_log("browser") == []
    # A token that is no longer right is asked for again, and the page is as it was.
    wait_for(lambda: text(browser, "calibration"))
    before = browser.execute_script("return [sides, by, label].map((each) => each.children.length)")
    browser.execute_script("sessionStorage.setItem('token', 'wrong')")
    browser.find_element("id", "id").send_keys("\n")
    wait_for(lambda: browser.find_element("id", "token").is_displayed())
    field = browser.find_element("id", "token")
    field.clear()
    field.send_keys("secret\n")
    wait_for(lambda: browser.find_element("id", "explorer").is_displayed())
    wait_for(lambda: "for" in text(browser, "best-title"))
    assert browser.execute_script("return [sides, by, label].map((each) => each.children.length)") == before
    browser.get_log("browser")


def test_a_new_model_is_told_and_shown(browser, addresses, models, tmp_path):
    publish(models["point"][1], tmp_path)
    with contextlib.ExitStack() as stack:
        address, application = stack.enter_context(started(tmp_path))
        opened(browser, address)
        publish(models["ordinal"][1], tmp_path)
        application.user_middleware[0].kwargs["service"].load()
        browser.find_element("id", "id").send_keys("\n")
        wait_for(lambda: "another model" in text(browser, "problem"))
        assert text(browser, "best-title").startswith("Best film for")
        assert "LFLOrdinal" in text(browser, "facts")
        assert "expected" in text(browser, "best")
        wait_for(lambda: browser.find_elements("css selector", "#map circle"))


def test_a_label_that_cannot_be_supposed_is_not_kept(browser, addresses):
    opened(browser, addresses["posterior"])
    before = table(browser)
    fails = "path === '/fold-in' ? Promise.reject() : real(path, options)"
    browser.execute_script(f"window.real = fetch; window.fetch = (path, options) => {fails}")
    browser.find_element("css selector", "#best tbody .what-if button").click()
    wait_for(lambda: "does not answer" in text(browser, "problem"))
    browser.execute_script("window.fetch = real")
    ranking = support.Select(browser.find_element("id", "by"))
    ranking.select_by_index(1)
    wait_for(lambda: not browser.find_element("id", "problem").is_displayed())
    ranking.select_by_index(0)
    wait_for(lambda: table(browser) == before)
    assert not browser.find_element("id", "supposed").is_displayed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_nothing_keeps_anyone_from_using_it(browser, addresses, models, scheme, width):
    axe = pytest.importorskip("axe_core_python.selenium")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    phone = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    opened(browser, addresses["posterior"])
    browser.find_element("css selector", "#best tbody button").click()
    wait_for(lambda: browser.find_element("id", "why").is_displayed())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width

    def hindrances():
        return [(each["id"], each["impact"]) for each in axe.Axe().run(browser)["violations"]]

    assert hindrances() == []
    supposed(browser, str(models["posterior"][0].classes_[-1]))
    wait_for(lambda: browser.find_element("id", "supposed").is_displayed())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert hindrances() == [], "what if"
    browser.find_element("id", "new").click()
    wait_for(lambda: "a new shopper" in text(browser, "best-title"))
    assert hindrances() == [], "a new id"
    field = browser.find_element("id", "id")
    field.send_keys("nobody\n")
    wait_for(lambda: "does not know" in text(browser, "problem"))
    assert hindrances() == [], "an error"
    opened(browser, addresses["ordinal"])
    assert hindrances() == [], "no calibration"
    browser.get(addresses["point"])
    browser.execute_script("sessionStorage.clear()")
    browser.get(addresses["point"])
    wait_for(lambda: browser.find_element("id", "token").is_displayed())
    assert hindrances() == [], "the token"
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
