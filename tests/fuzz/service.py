"""Fuzzing of the service: `python tests/fuzz/service.py`, part of `make fuzz`.

Schemathesis makes requests from the description of the service, valid and invalid ones. A failure is a status from 500
on, an exception, or an error without a sentence.
"""

import argparse
import itertools
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import hypothesis
import numpy as np
import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity

import dyads
from dyads.datasets.synthetic import make_relations, make_store
from dyads.serve.app import create
from dyads.serve.workers import publish

HEADERS = {"host": "localhost"}


def _models():
    """A point estimate with text as ids, a posterior with integers, and a model of relations; with their tables."""
    train, _ = make_store(20, 15, random_state=0).split(0.6)
    X = {"shopper": train.X["shopper"], "product": train.X["product"]}
    yield dyads.LFLClassifier(rank=2, l2=1.0, solver="point", random_state=0).fit(X, train.y), X
    X = {name: np.unique(column, return_inverse=True)[1] for name, column in X.items()}
    yield dyads.LFLClassifier(rank=2, solver=dyads.Gibbs(sweeps=40), random_state=0).fit(X, train.y), X
    X, y = make_relations(10)
    yield dyads.LFLRelational(rank=2, solver="point", random_state=0).fit(X, y), X


def _application(model, X, folder):
    """The application of a model, two ids of each column, and the labels."""
    model.save(folder / "model.dyads")
    served = folder / "served"
    served.mkdir()
    publish(folder / "model.dyads", served)
    return create(served), [column[[0, -1]].tolist() for column in X.values()], model.classes_.tolist()


def _likely(schema, ids, labels):
    """Put known ids and labels into the description as examples, so that not all requests end at unknown ids."""
    fields = schema.raw_schema["components"]["schemas"]
    texts = {"anyOf": [{"enum": [*ids[0], *ids[1], *labels]}]}
    listed = dict.fromkeys(("PredictRequest", "IntervalsRequest", "ExplainRequest"), "pairs")
    for name, field in (listed | {"FoldInRequest": "labels"}).items():
        values = [*ids[1:], labels] if field == "labels" else ids
        pair = {"type": "array", "prefixItems": [{"enum": each} for each in values]}
        items = fields[name]["properties"][field]["items"]
        width = {"minItems": len(values), "maxItems": len(values)}
        fields[name]["properties"][field]["items"] = {"anyOf": [pair | width, items]}
    for name in ("RecommendRequest", "FoldInRequest") if len(ids) > 2 else ():
        fields[name]["properties"]["relation"] = {"enum": ids[2]}
        fields[name]["required"].append("relation")
    for name in ("RecommendRequest", "SimilarRequest"):
        items = fields[name]["properties"]["ids"]["items"]
        fields[name]["properties"]["ids"]["items"] = {"anyOf": [texts, items]}


def fuzz(n, seed):
    """Send `n` requests or a few more, to several models; the number of each outcome, and the failures."""
    outcomes, failures = Counter(), []
    for model, X in _models():
        more, wrong = _fuzz(model, X, n // 3 + 1, seed)
        outcomes, failures = outcomes + more, failures + wrong
    return outcomes, failures


def _fuzz(model, X, n, seed):
    outcomes, failures = Counter(), []
    with tempfile.TemporaryDirectory() as name:
        application, ids, labels = _application(model, X, Path(name))
        from starlette.testclient import TestClient

        with TestClient(application, base_url="http://localhost", raise_server_exceptions=False) as client:
            schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
            _likely(schema, ids, labels)
            operations = [each.ok() for each in schema.get_all_operations()]
            modes = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
            # Some routes have few different requests, so that a round makes fewer than it is asked for.
            while _answered(outcomes) < n:
                for operation, mode in itertools.product(operations, modes):
                    share = max(1, (n - _answered(outcomes)) // (2 * len(operations)))
                    _run(client, operation, mode, share, seed, outcomes, failures)
                seed += 1
    return outcomes, failures


def _answered(outcomes):
    return sum(number for outcome, number in outcomes.items() if outcome.endswith("xx"))


def _run(client, operation, mode, n, seed, outcomes, failures):
    try:
        strategy = operation.as_strategy(generation_mode=mode)
    except Exception as error:
        if mode is schemathesis.GenerationMode.NEGATIVE:
            # A request without parameters cannot be wrong.
            return
        raise error

    def one(case):
        try:
            arguments = case.as_transport_kwargs(base_url="http://localhost")
            arguments = {
                key: value for key, value in arguments.items() if key in ("method", "url", "json", "data", "params")
            }
            body = {"content": arguments.pop("data")} if isinstance(arguments.get("data"), bytes | str) else {}
            arguments.pop("data", None)
            response = client.request(
                **arguments, **body, headers=HEADERS | {"content-type": case.media_type or "text/plain"}
            )
        except (UnicodeError, ValueError):
            outcomes["cannot be sent"] += 1
            return
        outcomes[f"{response.status_code // 100}xx"] += 1
        wrong = response.status_code >= 500 or (response.status_code >= 400 and set(response.json()) != {"detail"})
        if wrong and len(failures) < 20:
            failures.append((operation.label, response.status_code, response.text[:200], repr(case.body)[:300]))

    settings = hypothesis.settings(
        max_examples=n, deadline=None, database=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        hypothesis.seed(seed)(settings(hypothesis.given(case=strategy)(one)))()
    except hypothesis.errors.Unsatisfiable:
        outcomes["no request"] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000, help="number of requests")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes, failures = fuzz(chosen.n, chosen.seed)
    print(dict(outcomes), "requests,", len(failures), "failures")
    for failure in failures:
        print(*failure)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
