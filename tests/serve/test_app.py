"""The service answers what the model answers, stores nothing, and says in one sentence what is wrong with a request."""

import asyncio
import contextlib
import copy
import json
import logging
import shutil
import threading
import time
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from uvicorn.config import STARTUP_FAILURE

import dyads
from dyads.errors import DyadsError
from dyads.serve import app, workers
from dyads.serve.served import Served
from dyads.serve.workers import publish

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@contextlib.contextmanager
def serving(path, folder, held_out=None, base_url="http://localhost", **options):
    """A client of a server of a model file."""
    publish(path, folder, held_out)
    with TestClient(app.create(folder, **options), base_url=base_url, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def clients(models, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(serving(path, tmp_path_factory.mktemp("served")))
            for name, (_, path) in models.items()
        }


@pytest.fixture
def client(clients):
    return clients["posterior"]


@pytest.fixture
def model(models):
    return copy.copy(models["posterior"][0])


def pairs_of(model, n=6):
    """Some pairs of a model, as lists and as a table."""
    rng = np.random.default_rng(1)
    columns = [rng.choice(ids, n) for ids in (model.row_ids_, model.col_ids_)]
    table = dict(zip([ids.name for ids in model.record_.known.vocabularies], columns, strict=False))
    if len(model.record_.known.vocabularies) > 2:
        table[model.record_.known.relations.name] = rng.choice(model.relation_ids_, n)
    if "day" in model.columns_:
        table["day"] = rng.choice(["mo", "tu"], n)
    return [list(pair) for pair in zip(*(column.tolist() for column in table.values()), strict=True)], table


def said(response, status=422):
    """The sentence of an error."""
    assert response.status_code == status, response.text
    (sentence,) = response.json().values()
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("name", ["point", "posterior", "ordinal", "links", "relational", "pair features"])
def test_predictions_are_those_of_the_model(models, clients, name):
    model, client = models[name][0], clients[name]
    pairs, table = pairs_of(model)
    answer = client.post("/predict", json={"pairs": pairs}).json()
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(table), atol=2e-6)
    assert answer["predicted"] == model.predict(table).tolist()
    assert answer["labels"] == model.classes_.tolist()
    if name == "ordinal":
        np.testing.assert_allclose(answer["mean"], model.predict_mean(table), atol=2e-6)


@pytest.mark.parametrize("name", ["point", "posterior", "links", "relational", "pair features"])
def test_explanations_are_exact_sums(models, clients, name):
    model, client = models[name][0], clients[name]
    pairs, table = pairs_of(model)
    parts = client.post("/explain", json={"pairs": pairs}).json()["parts"]
    sums = [np.sum([part["values"] for part in each], axis=0) for each in parts]
    np.testing.assert_allclose(sums, model.log_odds(table), atol=2e-5)


@pytest.mark.parametrize("name", ["point", "posterior", "ordinal", "links", "relational"])
@pytest.mark.parametrize("side", ["row", "col"])
def test_recommendations_are_those_of_the_model(models, clients, name, side):
    model, client = models[name][0], clients[name]
    ids = (model.row_ids_ if side == "row" else model.col_ids_)[[3, 1]].tolist()
    relation = model.relation_ids_[0].item() if name == "relational" else None
    by = model.classes_[0].item()
    for body in ({}, {"by": by, "with_seen": True}):
        answer = client.post("/recommend", json={"ids": ids, "side": side, "n": 4, "relation": relation, **body})
        described = client.get("/model").json()
        chosen = "mean" if described["by"] is None else described["by"]
        expected = model.recommend(
            ids if side == "row" else None,
            4,
            body.get("by", chosen),
            cols=ids if side == "col" else None,
            with_seen="by" in body,
            relation=relation,
        )
        table = {name: expected[name].to_pylist() for name in expected.column_names}
        names = list(table)
        own, other = (names[0], names[1]) if side == "row" else (names[1], names[0])
        for id, lines in zip(ids, answer.json()["recommended"], strict=True):
            at = [i for i, each in enumerate(table[own]) if each == id]
            assert [line["id"] for line in lines] == [table[other][i] for i in at]
            np.testing.assert_allclose([line["value"] for line in lines], [table["value"][i] for i in at], atol=2e-6)


def test_intervals_are_those_of_the_posterior_and_a_point_estimate_has_none(models, clients, client, model):
    pairs, table = pairs_of(model)
    answer = client.post("/intervals", json={"pairs": pairs, "level": 0.5}).json()
    bounds = np.stack([answer["low"], answer["high"]], axis=2)
    np.testing.assert_allclose(bounds, model.predict_interval(table, 0.5), atol=2e-6)
    sentence = said(clients["point"].post("/intervals", json={"pairs": pairs}))
    assert "point estimate" in sentence


def test_similar_ids_are_those_of_the_model(client, model):
    id = model.row_ids_[2]
    (lines,) = client.post("/similar", json={"ids": [id], "n": 3}).json()["recommended"]
    assert [line["id"] for line in lines] == model.similar([id], 3)["similar_shopper"].to_pylist()


@pytest.mark.parametrize("name", ["point", "posterior", "ordinal", "links", "relational"])
@pytest.mark.parametrize("side", ["row", "col"])
def test_labels_of_a_new_id_are_folded_in_and_nothing_is_stored(models, clients, name, side):
    model, client = models[name][0], clients[name]
    row, col, *kind = [ids.name for ids in model.record_.known.vocabularies]
    own, other = (row, col) if side == "row" else (col, row)
    partners = (model.col_ids_ if side == "row" else model.row_ids_)[:8].tolist()
    labels = np.resize(model.classes_, 4).tolist()
    relation = model.relation_ids_[0].item() if kind else None
    further = [relation] if kind else []
    body = {
        "labels": [[partner, *further, label] for partner, label in zip(partners, labels, strict=False)],
        "side": side,
        "n": 3,
        "partners": partners[4:],
        "relation": relation,
    }
    pairs, _ = pairs_of(model)
    before = client.get("/model").json(), client.post("/predict", json={"pairs": pairs}).json()
    answer = client.post("/fold-in", json=body)
    assert answer.status_code == 200, answer.text
    new = {own: ["new"] * 4 if name in ("point", "posterior") else [999] * 4, other: partners[:4]}
    asked = {own: new[own], other: partners[4:]}
    if kind:
        new[kind[0]] = asked[kind[0]] = [relation] * 4
    folded = copy.copy(model).fold_in(new, labels, side=side)
    np.testing.assert_allclose(answer.json()["probabilities"], folded.predict_proba(asked), atol=1e-5)
    assert len(answer.json()["recommended"]) == 3
    assert not {line["id"] for line in answer.json()["recommended"]} & set(partners[:4])
    assert (client.get("/model").json(), client.post("/predict", json={"pairs": pairs}).json()) == before
    assert client.post("/fold-in", json=body).json() == answer.json()


def seen_pairs(model):
    seen = model.record_.known.seen
    return model.row_ids_[seen.row].tolist(), model.col_ids_[seen.col].tolist()


def test_no_question_changes_the_model(models, tmp_path):
    model, path = models["point"]
    served = Served(tmp_path / "1", publish(path, tmp_path), "name")
    before = {name: value.record_ for name, value in vars(served).items() if hasattr(value, "record_")}
    assert len(before) == 3
    row, col = model.row_ids_[0], model.col_ids_[0]
    served.predict([["nobody", col]], "prior")
    served.fold_in([[col, "bought"]])
    served.fold_in([[row, "bought"]], "col")
    served.fold_in([[col, "bought"]], id=row)
    served.recommend([row])
    assert all(getattr(served, name).record_ is record for name, record in before.items())


@pytest.mark.parametrize("name", ["point", "posterior", "ordinal"])
def test_what_if_a_known_id_also_had_a_label(models, clients, name):
    model, client = models[name][0], clients[name]
    id, partner = model.row_ids_[0].item(), model.col_ids_[1].item()
    before = client.post("/predict", json={"pairs": [[id, partner]]}).json()["probabilities"][0]
    for code, label in enumerate(model.classes_.tolist()):
        body = {"labels": [[partner, label]], "id": id, "partners": [partner]}
        answer = client.post("/fold-in", json=body).json()
        assert answer["probabilities"][0][code] > before[code]
        assert partner not in [line["id"] for line in answer["recommended"]]
        every = client.post("/fold-in", json=body | {"n": 1000}).json()["recommended"]
        seen = {col for row, col in zip(*seen_pairs(model), strict=True) if row == id}
        assert {line["id"] for line in every} == set(model.col_ids_.tolist()) - seen - {partner}
    nothing = client.post("/fold-in", json={"labels": [], "id": id, "partners": [partner]}).json()
    assert nothing["probabilities"][0] == before


def test_unknown_ids_are_refused_unless_they_are_to_be_averaged_over(client, model):
    body = {"pairs": [["nobody", model.col_ids_[0]]]}
    assert "1 have a row id not seen in training" in said(client.post("/predict", json=body))
    answer = client.post("/predict", json=body | {"unknown": "prior"}).json()
    averaged = model.predict_proba({"shopper": ["nobody"], "product": [model.col_ids_[0]]})
    np.testing.assert_allclose(answer["probabilities"], averaged, atol=2e-6)
    assert "nobody" in said(client.post("/recommend", json={"ids": ["nobody"]}))
    assert "nobody" in said(client.post("/similar", json={"ids": ["nobody"]}))


def test_unknown_ids_are_recommended_the_same_and_ids_may_be_repeated(client, model):
    known = model.row_ids_[0]
    body = {"ids": ["x", known, "y", known], "unknown": "prior", "n": 3, "by": "bought"}
    lists = client.post("/recommend", json=body).json()["recommended"]
    model.unknown = "prior"
    for id, lines in zip(body["ids"], lines_of(lists), strict=True):
        assert lines == model.recommend([id], 3, "bought")["product"].to_pylist()
    similar = client.post("/similar", json={"ids": [known, model.row_ids_[1], known], "n": 2}).json()["recommended"]
    assert similar[0] == similar[2] != similar[1]
    every = [[known, col] for col in model.col_ids_.tolist()]
    lists = client.post("/recommend", json=body | {"exclude": every}).json()["recommended"]
    assert [len(lines) for lines in lists] == [3, 0, 3, 0]


def lines_of(lists):
    return [[line["id"] for line in lines] for lines in lists]


def served_model(folder, X, y, **options):
    """A small model that is served: the model, and what answers."""
    model = dyads.LFLClassifier(rank=1, l2=1.0, solver="point", random_state=0, **options).fit(X, y)
    model.save(folder / "model.dyads")
    (folder / "served").mkdir()
    return model, Served(folder / "served" / "1", publish(folder / "model.dyads", folder / "served"), "model.dyads")


COLUMN = np.tile(np.arange(6), 6)
LABELS = np.random.default_rng(0).choice(["no", "yes"], 36)
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
IDS = {
    "the largest": np.array([0, 1, 2, 3, 4, 2**64 - 1], np.uint64),
    "both extremes": np.array([FIRST, 0, 1, 2, 3, LAST]),
    "the largest float": np.array([0.0, 1.0, 2.0, 3.0, 4.5, np.finfo(float).max]),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_a_new_id_is_none_of_the_known_ones(tmp_path, ids):
    model, served = served_model(tmp_path, {"row": np.repeat(ids, 6), "col": COLUMN}, LABELS)
    labels = [[0, "yes"], [1, "no"]]
    answer = served.fold_in(labels, partners=[3])
    other = np.full(2, 5, ids.dtype)
    assert 5 not in ids
    folded = copy.copy(model).fold_in({"row": other, "col": [0, 1]}, ["yes", "no"], side="row")
    expected = folded.predict_proba({"row": other[:1], "col": [3]})
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)


def test_ids_that_are_floats_may_be_written_without_a_point(tmp_path):
    X = {"row": np.repeat([1.0, 2.0, 3.5, 4.0, 5.0, 6.0], 6), "col": COLUMN}
    model, served = served_model(tmp_path, X, LABELS)
    answer = served.predict([[1, 0], [3.5, 1]])
    np.testing.assert_allclose(
        answer["probabilities"], model.predict_proba({"row": [1.0, 3.5], "col": [0, 1]}), atol=2e-6
    )
    assert served.recommend([2])["recommended"] == served.recommend([2.0])["recommended"]


def test_what_can_be_asked_is_told_for_each_side(tmp_path):
    days = np.datetime64("2024-01-01") + np.arange(6)
    _, served = served_model(tmp_path, {"row": np.repeat(np.arange(6), 6), "col": days[COLUMN]}, LABELS)
    can = served.describe()["can"]
    assert (can["fold_in"], can["suppose"]) == (["row"], ["row", "col"])
    assert served.fold_in([["2024-01-02", "yes"]])["recommended"]


def test_features_of_pairs_may_be_dates_lists_categories_and_missing(tmp_path):
    rng = np.random.default_rng(0)
    X = {"row": np.repeat(np.arange(6), 6), "col": COLUMN}
    X["since"] = np.datetime64("2024-01-01T00:00", "s") + 60 * rng.integers(0, 10_000, 36)
    X["tags"] = [["a", "b"][: i % 3] for i in range(36)]
    X["size"] = pa.array(rng.integers(0, 3, 36)).dictionary_encode()
    X["price"] = rng.random(36)
    model, _ = served_model(tmp_path, X, LABELS)
    pairs = [
        [0, 1, "2024-01-03T12:00", ["b", "a"], 2, 1],
        [2, 3, None, [], None, None],
        [4, 5, "2024-01-09", ["a"], 0, 0.5],
    ]
    table = {
        "row": [0, 2, 4],
        "col": [1, 3, 5],
        "since": pa.array([datetime(2024, 1, 3, 12), None, datetime(2024, 1, 9)], pa.timestamp("us")),
        "tags": [["b", "a"], [], ["a"]],
        "size": pa.array([2, None, 0]).dictionary_encode(),
        "price": [1.0, None, 0.5],
    }
    publish(tmp_path / "model.dyads", tmp_path / "served")
    with TestClient(app.create(tmp_path / "served"), base_url="http://localhost") as client:
        answer = client.post("/predict", json={"pairs": pairs})
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["probabilities"], model.predict_proba(table), atol=2e-6)
        for place, wrong in ((2, "yesterday"), (3, "ab"), (4, "large")):
            pair = [*pairs[0][:place], wrong, *pairs[0][place + 1 :]]
            assert repr(list(table)[place]) in said(client.post("/predict", json={"pairs": [pair]}))


def test_a_model_with_features_of_pairs_refuses_before_it_works(clients, monkeypatch):
    monkeypatch.setattr(dyads.LFLClassifier, "fold_in", lambda *_, **__: 1 / 0)
    client = clients["pair features"]
    for path, body in (
        ("/recommend", {"ids": [1]}),
        ("/similar", {"ids": [1]}),
        ("/fold-in", {"labels": [[1, "mo", "yes"]], "partners": [2]}),
    ):
        assert "features of pairs (day)" in said(client.post(path, json=body))


PYTHON = ("unknown='", "side=", "predict_proba", "in X", "numpy", "'nan'")


def test_sentences_are_about_the_request_not_about_python(clients, models):
    row, col = models["posterior"][0].row_ids_[0], models["posterior"][0].col_ids_[0]
    for path, body in (
        ("/predict", {"pairs": [["nobody", col]]}),
        ("/explain", {"pairs": [["nobody", col]]}),
        ("/predict", {"pairs": [[1, col]]}),
        ("/recommend", {"ids": ["nobody"]}),
        ("/similar", {"ids": ["nobody"]}),
        ("/fold-in", {"labels": [["nothing", "bought"]]}),
        ("/fold-in", {"labels": [[1, "bought"]]}),
        ("/fold-in", {"labels": [["nothing", "bought"]], "id": row}),
        ("/fold-in", {"labels": [[col, "bought"]], "id": "nobody"}),
        ("/fold-in", {"labels": [[col, "bought"]], "partners": ["nothing"]}),
    ):
        sentence = said(clients["posterior"].post(path, json=body))
        assert not any(word in sentence for word in PYTHON), sentence
        assert "known ids" in sentence or "expected text" in sentence


def test_ids_are_found_by_their_texts(clients, models):
    model, client = models["point"][0], clients["point"]
    everybody = client.get("/ids?limit=100").json()
    assert everybody["n_found"] == len(model.row_ids_)
    assert everybody["n_labels"] == sorted(everybody["n_labels"], reverse=True)
    some = model.row_ids_[5]
    assert client.get("/ids", params={"text": some.upper()}).json()["ids"][0] == some
    films = clients["ordinal"].get("/ids", params={"text": "10", "side": "col"}).json()["ids"]
    assert sorted(films) == [*range(100, 110), 110]
    assert films[-1] == 110, "what begins with the text comes first"
    pair = {"pairs": [["3", "104"]]}
    assert clients["ordinal"].post("/predict", json=pair).status_code == 200, "ids that are numbers may be texts"


def test_the_map_holds_every_id_and_the_description_says_what_can_be_asked(clients, models):
    assert sorted(clients["ordinal"].get("/map").json()["ids"]) == list(range(20))
    assert all(clients["point"].get("/model").json()["can"].values())
    assert not any(clients["pair features"].get("/model").json()["can"].values())
    assert clients["ordinal"].get("/model").json()["can"]["fold_in"] == ["row", "col"]
    assert not clients["links"].get("/model").json()["can"]["suppose"] or models["links"][0].record_.known.only_links


BAD = {
    "no body": b"",
    "not JSON": b"{'pairs': 1}",
    "cut": b'{"pairs": [["ann"',
    "NaN": b'{"pairs": [["ann", NaN]]}',
    "infinite": b'{"pairs": [["ann", Infinity]]}',
    "beyond floats": b'{"pairs": [["ann", 1e999]]}',
    "beyond integers": b'{"pairs": [["ann", ' + b"9" * 400 + b"]]}",
    "beyond digits": b'{"pairs": [["ann", ' + b"9" * 10_000 + b"]]}",
    "half a surrogate": b'{"pairs": [["ann", "\\ud800"]]}',
    "not UTF-8": b'{"pairs": [["ann", "\xff"]]}',
    "NUL": b'{"pairs": [["ann", "\\u0000"]]}',
    "null": b'{"pairs": [["ann", null]]}',
    "a list": b"[]",
    "no pairs": b'{"pairs": []}',
    "one id": b'{"pairs": [["ann"]]}',
    "three ids": b'{"pairs": [["ann", "mug", 3]]}',
    "no list": b'{"pairs": ["ann"]}',
    "numbers for texts": b'{"pairs": [[1, 2]]}',
    "mixed types": b'{"pairs": [["ann", "mug"], [1, true]]}',
    "another field": b'{"pairs": [["ann", "mug"]], "admin": true}',
    "another policy": b'{"pairs": [["ann", "mug"]], "unknown": "nan"}',
    "a long id": b'{"pairs": [["ann", "' + b"x" * 2000 + b'"]]}',
    "deep": b"[" * 50_000,
    "too many pairs": json.dumps({"pairs": [["ann", "mug"]] * (app.MOST_PAIRS + 1)}).encode(),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("path", ["/predict", "/intervals", "/explain", "/recommend", "/similar", "/fold-in"])
def test_a_bad_request_gets_a_sentence(client, path, body):
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500
    said(response, response.status_code)


WRONG = [
    ("/recommend", {"n": 0}),
    ("/recommend", {"n": "3"}),
    ("/recommend", {"n": 10**9}),
    ("/recommend", {"side": "left"}),
    ("/recommend", {"by": "no such label"}),
    ("/recommend", {"by": "thompson", "relation": "x"}),
    ("/recommend", {"candidates": ["nothing"]}),
    ("/recommend", {"exclude": [["one"]]}),
    ("/recommend", {"ids": ["shopper-1"] * 1000}),
    ("/similar", {"n": -1}),
    ("/fold-in", {"labels": [], "ids": None}),
    ("/fold-in", {"labels": [["product-1"]], "ids": None}),
    ("/fold-in", {"labels": [["product-1", "no such label"]], "ids": None}),
    ("/fold-in", {"labels": [["nothing", "bought"]], "ids": None}),
    ("/fold-in", {"labels": [["nothing", "bought"]], "ids": None, "id": "nobody"}),
]


@pytest.mark.parametrize(("path", "change"), WRONG)
def test_a_wrong_parameter_gets_a_sentence(client, model, path, change):
    body = {"ids": [model.row_ids_[0]]} | change
    if body["ids"] is None:
        del body["ids"]
    said(client.post(path, json=body))


MANY = {
    "wrong values": {"pairs": [[{}] * 100] * 4000},
    "wrong pairs": {"pairs": [{}] * 200_000},
    "other fields": {"pairs": [["ann", "mug"]]} | dict.fromkeys(map(str, range(100_000))),
}


@pytest.mark.parametrize("body", MANY.values(), ids=MANY.keys())
def test_one_mistake_is_told_of_many_and_at_once(client, body):
    began = time.perf_counter()
    said(client.post("/predict", json=body))
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/explorer.js/../../served.py",
        "/predict/",
        "/%00",
    ],
)
def test_paths_lead_nowhere_else(client, path):
    assert "There is nothing at this path" in said(client.get(path), 404)


def test_a_large_body_is_refused_before_it_is_read(client):
    headers = {"content-type": "application/json"}
    response = client.post("/predict", content=b" " * (app.MOST_BYTES + 1), headers=headers)
    assert "bytes" in said(response, 413)


def answered(application, scope, receive):
    """The status and the content of the answer of an application to one request."""
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


def post(path):
    return {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [(b"host", b"localhost")]}


def test_an_endless_body_is_read_no_further_than_the_limit(client):
    chunks = []

    async def endlessly():
        assert len(chunks) < 1000
        chunks.append(b" " * 65536)
        return {"type": "http.request", "body": chunks[-1], "more_body": True}

    status, answer = answered(client.app, post("/predict"), endlessly)
    assert (status, "bytes" in answer["detail"]) == (413, True)
    assert len(chunks) * 65536 <= app.MOST_BYTES + 65536


def test_a_slow_body_is_not_waited_for(models, tmp_path):
    with serving(models["point"][1], tmp_path, seconds=0.2) as client:

        async def slowly():
            await asyncio.sleep(0.03)
            return {"type": "http.request", "body": b" ", "more_body": True}

        began = time.perf_counter()
        status, answer = answered(client.app, post("/predict"), slowly)
        assert (status, "did not arrive within 0.2 s" in answer["detail"]) == (408, True)
        assert time.perf_counter() - began < 2


def test_an_answer_that_takes_too_long_is_given_up_and_others_go_on(models, tmp_path, monkeypatch):
    with serving(models["point"][1], tmp_path, seconds=0.3) as client:
        monkeypatch.setattr(Served, "similar", lambda *_: time.sleep(0.8))
        assert "took longer than 0.3 s" in said(client.post("/similar", json={"ids": ["x"]}), 503)
        assert client.get("/health").json()["status"] == "ok"


def test_a_slow_answer_does_not_hold_up_the_others(models, tmp_path, monkeypatch):
    with serving(models["point"][1], tmp_path) as client:
        monkeypatch.setattr(Served, "similar", lambda *_: time.sleep(0.6))
        slow = threading.Thread(target=lambda: client.post("/similar", json={"ids": ["x"]}))
        slow.start()
        began = time.perf_counter()
        assert client.get("/health").status_code == 200
        assert time.perf_counter() - began < 0.4
        slow.join()


def test_work_ends_when_nobody_waits_for_it_any_more(models, tmp_path, monkeypatch):
    with serving(models["point"][1], tmp_path, seconds=0.3) as client:
        model, begun = client.app.user_middleware[0].kwargs["service"].served._model, []
        answer = type(model).recommend

        def slow(self, *arguments, **options):
            begun.append(time.sleep(0.1))
            return answer(self, *arguments, **options)

        monkeypatch.setattr(type(model), "recommend", slow)
        ids = model.row_ids_.tolist()
        assert len(ids) >= 40
        assert "took longer" in said(client.post("/recommend", json={"ids": ids}), 503)
        time.sleep(0.3)
        assert len(begun) <= 4


def test_an_exception_is_a_sentence_without_what_it_says(client, monkeypatch):
    monkeypatch.setattr(Served, "similar", lambda *_: 1 / 0)
    assert "bug in dyads" in said(client.post("/similar", json={"ids": ["x"]}), 500)


def test_a_token_is_asked_for_wherever_the_model_is(models, tmp_path):
    with serving(models["point"][1], tmp_path, token="secret") as client:
        for path in ("/", "/explorer.js", "/parts.css", "/health"):
            assert client.get(path).status_code == 200
        assert client.get("/health").json()["token"]
        for path in ("/model", "/ids", "/map", "/calibration", "/metrics"):
            assert "token" in said(client.get(path), 401)
            assert "token" in said(client.get(path, headers={"authorization": "Bearer sécret".encode()}), 401)
            assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 200
        for path in ("/predict", "/intervals", "/explain", "/recommend", "/similar", "/fold-in"):
            assert "token" in said(client.post(path, json={"pairs": [["a", "b"]]}), 401)


def test_a_body_without_the_token_is_not_read(models, tmp_path):
    with serving(models["point"][1], tmp_path, token="secret") as client:

        async def unread():
            raise AssertionError("The body was read.")

        scope = post("/predict")
        scope["headers"] += [(b"content-type", b"application/json"), (b"authorization", b"Bearer wrong")]
        status, answer = answered(client.app, scope, unread)
        assert (status, "token" in answer["detail"]) == (401, True)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:80", ""])
def test_another_name_for_this_machine_is_refused(client, host):
    assert "expected localhost" in said(client.get("/model", headers={"host": host}), 400)
    for known in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert client.get("/health", headers={"host": known}).status_code == 200


def test_the_page_may_load_its_own_files_only(client):
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "<style" not in page.text
    assert "http" not in page.text.replace("http-equiv", "")


def test_a_new_model_is_answered_from_without_a_break(models, tmp_path):
    (_, first), (_, second) = models["point"], models["posterior"]
    with serving(first, tmp_path) as client:
        service = client.app.user_middleware[0].kwargs["service"]
        pairs, _ = pairs_of(models["point"][0])
        before, versions, ended = client.post("/predict", json={"pairs": pairs}), set(), threading.Event()

        def asking():
            while not ended.is_set():
                answer = client.post("/predict", json={"pairs": pairs})
                assert answer.status_code == 200
                versions.add((answer.headers["dyads-model"], answer.text))

        thread = threading.Thread(target=asking)
        thread.start()
        version = publish(second, tmp_path)
        asyncio.run(service.reload())
        ended.set()
        thread.join()
        after = client.post("/predict", json={"pairs": pairs})
        assert after.headers["dyads-model"] == version
        assert after.text != before.text
        assert versions <= {(each.headers["dyads-model"], each.text) for each in (before, after)}


def test_the_file_of_the_user_may_change_or_be_cut(models, tmp_path):
    model, path = models["point"]
    mine, folder = tmp_path / "mine.dyads", tmp_path / "served"
    folder.mkdir()
    shutil.copyfile(path, mine)
    pairs, table = pairs_of(model)
    with serving(mine, folder) as client:
        with open(mine, "r+b") as file:
            file.write(b"\0" * 100_000)
            file.truncate(5000)
        answer = client.post("/predict", json={"pairs": pairs})
        np.testing.assert_allclose(answer.json()["probabilities"], model.predict_proba(table), atol=2e-6)
        for change in (lambda: None, mine.unlink, mine.mkdir):
            change()
            with pytest.raises(DyadsError, match=str(mine)):
                publish(mine, folder)
            assert sorted(each.name for each in folder.iterdir()) == ["1", "current"], "nothing is left behind"
        assert client.post("/predict", json={"pairs": pairs}).text == answer.text


def test_few_copies_are_kept(models, tmp_path):
    for _ in range(4):
        publish(models["point"][1], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4", "current"]


def test_the_calibration_is_that_on_held_out_pairs(models, store, tmp_path, clients):
    _, test = store
    with serving(models["point"][1], tmp_path, (test.X, test.y, None)) as client:
        known = client.get("/calibration").json()
    assert known["pairs"] == len(test.y)
    assert [curve["label"] for curve in known["curves"]] == models["point"][0].classes_.tolist()
    for curve in known["curves"]:
        low, observed, high = (np.array(curve[name]) for name in ("low", "observed", "high"))
        assert ((low <= observed) & (observed <= high)).all()
    assert clients["point"].get("/calibration").json()["pairs"] == 0


def test_the_calibration_is_that_of_the_model_when_others_have_come(models, store, tmp_path):
    _, test = store
    held_out = test.X, test.y, None
    with serving(models["point"][1], tmp_path, held_out) as client:
        for _ in range(3):
            publish(models["point"][1], tmp_path, held_out)
        assert client.get("/calibration").json()["pairs"] == len(test.y)


def test_held_out_labels_that_the_model_lacks_show_no_calibration(models, store, tmp_path):
    _, test = store
    with serving(models["point"][1], tmp_path, (test.X, ["other"] * len(test.y), None)) as client:
        assert client.get("/calibration").json() == {"pairs": 0, "curves": []}


def test_requests_are_counted_and_logged_without_what_they_ask(models, tmp_path, caplog):
    with serving(models["point"][1], tmp_path) as client, caplog.at_level(logging.INFO, "dyads.serve"):
        pairs, _ = pairs_of(models["point"][0])
        for _ in range(3):
            client.post("/predict", json={"pairs": pairs})
        client.get("/ids", params={"text": "somebody"})
        client.get("/somewhere/else")
        text = client.get("/metrics").text
    assert 'dyads_requests_total{path="/predict",status="200"} 3.0' in text
    assert 'dyads_requests_total{path="unknown",status="404"} 1.0' in text
    assert 'dyads_request_seconds_count{path="/predict"} 3.0' in text
    lines = [json.loads(workers.JsonLines().format(record)) for record in caplog.records]
    requests = [line for line in lines if line["message"] == "request"]
    assert [line["path"] for line in requests][:4] == ["/predict"] * 3 + ["/ids"]
    assert {line["status"] for line in requests} == {200, 404}
    written = json.dumps(lines)
    assert not any(word in written for word in ("somebody", "somewhere", pairs[0][0]))


def test_every_route_is_described_with_an_example(client):
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        *("/health", "/metrics", "/model", "/ids", "/map", "/calibration"),
        *("/predict", "/intervals", "/explain", "/recommend", "/similar", "/fold-in"),
    }
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            assert route["description"]
            if method == "post":
                name = route["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
                fields = described["components"]["schemas"][name]["properties"]
                assert any("examples" in field for field in fields.values()), path


def test_the_command_refuses_what_it_cannot_serve(run, tmp_path, models):
    code, _, err = run("serve", tmp_path / "none.dyads")
    assert (code, "There is no file" in err) == (1, True)
    code, _, err = run("serve", models["point"][1], "--host", "0.0.0.0")
    assert (code, "no token" in err) == (1, True)
    code, _, err = run("serve", models["point"][1], "--token", "")
    assert (code, "The token is empty" in err) == (2, True)
    code, _, err = run("serve", models["point"][1], "--label", "label")
    assert (code, "--held-out" in err) == (2, True)
    (tmp_path / "bad.dyads").write_bytes(b"PK" + b"x" * 1000)
    code, _, err = run("serve", tmp_path / "bad.dyads", "--port", "0")
    assert (code, "bad.dyads is not a dyads model" in err) == (1, True)


def test_nothing_in_a_new_file_ends_the_server(caplog):
    supervisor = workers.Workers.__new__(workers.Workers)
    supervisor._renew, supervisor.processes = lambda: 1 / 0, []
    supervisor.handle_hup()
    (record,) = caplog.records
    assert "the one before is served" in record.message
    assert record.exc_info[0] is ZeroDivisionError


def test_a_worker_that_does_not_start_is_an_error(models, monkeypatch):
    class Ended:
        processes = (SimpleNamespace(exitcode=STARTUP_FAILURE),)

        def __init__(self, *_):
            pass

        def run(self):
            pass

    monkeypatch.setattr(workers, "Workers", Ended)
    monkeypatch.setattr(workers, "LOGGING", None)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "set by serve")
    with pytest.raises(DyadsError, match="did not start"):
        workers.serve(
            models["point"][1], host="127.0.0.1", port=0, workers=1, token=None, seconds=1, announce=lambda _: None
        )


def test_a_model_that_is_mapped_answers_as_one_that_is_read(models):
    for model, path in models.values():
        _, table = pairs_of(model)
        np.testing.assert_array_equal(dyads.load(path, mapped=True).predict_proba(table), model.predict_proba(table))
