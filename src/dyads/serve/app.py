"""The HTTP service: routes, what a request may hold, limits, errors, metrics."""

import asyncio
import logging
import os
import re
import reprlib
import secrets
import signal
import time
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError, to_json
from starlette.exceptions import HTTPException as StarletteError

import dyads
from dyads.errors import DyadsError
from dyads.serve.served import DEADLINE, Served

logger = logging.getLogger("dyads.serve")

CURRENT = "current"
"""Name of the file that holds the number and the version of the current model."""

MOST_BYTES = 2 * 2**20
"""Largest body of a request: more than ten thousand pairs take."""

MOST_PAIRS, MOST_EXPLAINED, MOST_IDS, MOST_BEST, MOST_LABELS = 10_000, 100, 100, 1000, 1000
"""Most pairs to predict, pairs to explain, ids to recommend to, partners of each, labels to fold in."""

MOST_VALUES = 100
"""Most values of a pair, and of a feature that is a list."""

LONGEST = 1000
"""Longest id or label, in characters."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: its own files, and nothing else."""

HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]

LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
"""Host headers of this machine. Another name that resolves to it is an attack by a page on a stranger's site."""

PAGE = {
    "/": ("explorer.html", "text/html"),
    "/explorer.css": ("explorer.css", "text/css"),
    "/explorer.js": ("explorer.js", "text/javascript"),
    "/parts.css": ("parts.css", "text/css"),
    "/parts.js": ("parts.js", "text/javascript"),
}
"""The files of the explorer; what it shares with the report lies there."""

# ------------------------------------------------------------------------------------------------- requests, answers

Text = Annotated[StrictStr, Field(max_length=LONGEST)]
Whole = Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)]
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Value = StrictBool | Whole | Number | Text
TAGS = ("bool", "int", "float", "str", "constrained-int", "constrained-float", "constrained-str")
"""How pydantic names the kinds of a value in errors."""

# Without `fail_fast` every wrong value is an error of its own: a body of 2 MiB would take 20 s and gigabytes to refuse.
Values = Annotated[list[Value], Field(fail_fast=True)]
Line = Annotated[Values, Field(min_length=1, max_length=MOST_VALUES)]
Lines = Annotated[list[Line], Field(fail_fast=True)]
Feature = Value | Annotated[Values, Field(max_length=MOST_VALUES)] | None
Pair = Annotated[list[Feature], Field(min_length=1, max_length=MOST_VALUES, fail_fast=True)]
Pairs = Annotated[list[Pair], Field(fail_fast=True)]
Side = Literal["row", "col"]
Unknown = Literal["raise", "prior"]


class Body(BaseModel):
    """A request, which has no other fields."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    @model_validator(mode="before")
    @classmethod
    def _has_no_others(cls, body: Any) -> Any:
        # Pydantic's "forbid" makes an error of every other field.
        others = (name for name in body if name not in cls.model_fields) if isinstance(body, dict) else iter(())
        if (name := next(others, None)) is not None:
            expected = f"There is no such field, expected {', '.join(cls.model_fields)}"
            raise PydanticCustomError("other_field", "{expected}", {"expected": expected, "name": name[:LONGEST]})
        return body


class PredictRequest(Body):
    """Pairs: their ids and further columns in the order of `columns` of GET /model."""

    pairs: Annotated[Pairs, Field(min_length=1, max_length=MOST_PAIRS, examples=[[["ann", "mug"], ["bob", "pen"]]])]
    unknown: Annotated[
        Unknown, Field(description="Unknown ids: an error, or probabilities averaged over the ids of the fit.")
    ] = "raise"


class IntervalsRequest(PredictRequest):
    """The same, and the level of the intervals."""

    level: Annotated[float, Field(gt=0, lt=1)] = 0.9


class ExplainRequest(Body):
    """The same as for /predict, but fewer pairs."""

    pairs: Annotated[Pairs, Field(min_length=1, max_length=MOST_EXPLAINED, examples=[[["ann", "mug"]]])]
    unknown: Unknown = "raise"


class RecommendRequest(Body):
    """Whom to recommend to, and what."""

    ids: Annotated[Values, Field(min_length=1, max_length=MOST_IDS, examples=[["ann"]])]
    side: Annotated[Side, Field(description="Whether the ids are rows, to recommend columns to, or columns.")] = "row"
    n: Annotated[int, Field(ge=1, le=MOST_BEST, strict=True)] = 10
    by: Annotated[
        Value | None,
        Field(
            description="'mean', 'thompson' or a label, by whose probability to rank; by default `by` of GET /model."
        ),
    ] = None
    candidates: Annotated[Values | None, Field(min_length=1, max_length=MOST_PAIRS)] = None
    exclude: Annotated[Lines, Field(max_length=MOST_PAIRS, description="Further pairs to leave out.")] = []
    with_seen: Annotated[StrictBool, Field(description="Whether to recommend pairs of the fit again.")] = False
    relation: Value | None = None
    unknown: Unknown = "raise"


class SimilarRequest(Body):
    """Ids whose like are looked for."""

    ids: Annotated[Values, Field(min_length=1, max_length=MOST_IDS, examples=[["ann"]])]
    side: Side = "row"
    n: Annotated[int, Field(ge=1, le=MOST_BEST, strict=True)] = 10


class FoldInRequest(Body):
    """Labels of one row: partner, further values of the pair if the model has such columns, label."""

    labels: Annotated[Lines, Field(max_length=MOST_LABELS, examples=[[["mug", "bought"], ["pen", "viewed"]]])]
    side: Annotated[Side, Field(description="Whether the id is a row, and its partners columns, or a column.")] = "row"
    id: Annotated[
        Value | None, Field(description="A known id, to which the labels are added: what if? By default a new one.")
    ] = None
    n: Annotated[int, Field(ge=1, le=MOST_BEST, strict=True)] = 10
    by: Value | None = None
    partners: Annotated[Values | None, Field(min_length=1, max_length=MOST_PAIRS)] = None
    relation: Value | None = None


class PredictAnswer(BaseModel):
    """Probabilities (n, n_labels), the predicted label and, for ordered labels, its expected value."""

    labels: list[Value]
    probabilities: list[list[float]]
    predicted: list[Value]
    mean: list[float] | None


class IntervalsAnswer(BaseModel):
    """Bounds (n, n_labels) of the probabilities."""

    labels: list[Value]
    low: list[list[float]]
    high: list[list[float]]


class Part(BaseModel):
    """A part of the log-odds of each label; all parts of a pair sum to them."""

    part: str
    values: list[float]


class ExplainAnswer(BaseModel):
    """The parts of each pair."""

    labels: list[Value]
    parts: list[list[Part]]


class Ranked(BaseModel):
    """A partner, or a similar id."""

    id: Value
    rank: int
    value: float


class RecommendAnswer(BaseModel):
    """A list for each id, best first."""

    recommended: list[list[Ranked]]


class FoldInAnswer(BaseModel):
    """The best partners of the row and, if partners were given, predictions for them as by /predict."""

    recommended: list[Ranked]
    labels: list[Value] | None = None
    probabilities: list[list[float]] | None = None
    predicted: list[Value] | None = None
    mean: list[float] | None = None


class SearchAnswer(BaseModel):
    """Known ids that contain a text, with their numbers of labels in the fit."""

    column: str
    ids: list[Value]
    n_labels: list[float]
    n_found: int


class Health(BaseModel):
    """That the server answers, and whether it wants a token."""

    status: Literal["ok"]
    token: bool


class Refusal(BaseModel):
    """What was wrong, in one sentence."""

    detail: str


# ----------------------------------------------------------------------------------------------------------- service


class Service:
    """The current model of one worker, the threads that answer, and what is counted.

    `folder` : where `publish` puts models; `seconds` : limit of a request; `worker` : whether there are others
    """

    def __init__(self, folder: Path, seconds: float, worker: bool) -> None:
        self.folder, self.seconds, self._worker = folder, seconds, worker
        self.served: Served
        self.registry = CollectorRegistry()
        self.requests = Counter("dyads_requests", "Requests", ["path", "status"], registry=self.registry)
        self.latency = Histogram("dyads_request_seconds", "Time to answer", ["path"], registry=self.registry)
        self.pending = Gauge(
            "dyads_requests_in_progress", "Requests being answered", registry=self.registry, multiprocess_mode="livesum"
        )
        self.loaded = Gauge(
            "dyads_model_loaded_seconds",
            "When the oldest model in use was loaded, in Unix time",
            registry=self.registry,
            multiprocess_mode="livemin",
        )
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="dyads")
        self._reloading = asyncio.Lock()

    def load(self) -> None:
        """Load the current model; requests that have begun end with the one before."""
        number, version, name = (self.folder / CURRENT).read_text().split(maxsplit=2)
        self.served = Served(self.folder / number, version, name)
        self.loaded.set_to_current_time()

    async def reload(self) -> None:
        """Load the current model beside the requests."""
        async with self._reloading:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self.load)
            except Exception as error:
                unexpected = not isinstance(error, DyadsError | OSError)
                logger.error("The new model was not loaded, the one before is served: %s", error, exc_info=unexpected)
            else:
                logger.info("Loaded the model.", extra={"fields": {"model": self.served.version}})

    async def answer(self, question: Callable[[Served], Any]) -> Response:
        """The JSON answer to a question about the current model, computed on a thread."""
        served, until = self.served, time.monotonic() + self.seconds

        def content() -> bytes:
            DEADLINE.set(until)
            return to_json(question(served), inf_nan_mode="null")

        loop = asyncio.get_running_loop()
        try:
            body = await loop.run_in_executor(self._threads, content)
        except DyadsError as error:
            raise HTTPException(422, " ".join(str(error).split())) from error
        return Response(body, media_type="application/json", headers={"Dyads-Model": served.version})

    def exposition(self) -> bytes:
        """Metrics as text for Prometheus: of all workers, if there are several."""
        if not self._worker:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class Guard:
    """What holds for every request: limits of size and time, the hosts it may name, headers, a line in the log, counts.

    A body is read before the application sees the request, so that a slow or an endless one holds nothing but its
    connection. Without the token it is not read at all: what needs no token has no body.
    """

    def __init__(self, app: Any, service: Service, local: bool, token: str | None) -> None:
        self._app, self._service, self._local, self._token = app, service, local, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, begun, status = self._service, time.perf_counter(), 0

        async def tell(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        service.pending.inc()
        try:
            await self._answer(scope, receive, tell)
        except TimeoutError:
            if not status:
                await _refuse(503, f"The answer took longer than {service.seconds:g} s: ask for less.", scope, tell)
        except Exception as error:
            logger.exception("This is a bug in dyads (%s).", type(error).__name__)
            if not status:
                await _refuse(500, "This is a bug in dyads: its log has the traceback.", scope, tell)
        finally:
            service.pending.dec()
            took = time.perf_counter() - begun
            path = getattr(scope.get("route"), "path", "unknown")
            service.requests.labels(path, str(status)).inc()
            service.latency.labels(path).observe(took)
            # Neither ids nor labels: they may be about people.
            fields = {"method": scope["method"], "path": path, "status": status, "ms": round(1000 * took, 2)}
            logger.info("request", extra={"fields": fields | {"model": service.served.version}})

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._local and not LOCAL_HOST.fullmatch(host):
            sentence = f"Got the host {host[:80]!r}: expected localhost, since the server has no token."
            await _refuse(400, sentence, scope, send)
            return
        scope["admitted"] = admitted = self._token is None or _carries(headers.get(b"authorization", b""), self._token)
        declared = headers.get(b"content-length", b"0")
        body, size, more = bytearray(), int(declared[:20]) if declared.isdigit() else 0, admitted
        try:
            async with asyncio.timeout(self._service.seconds):
                while more and size <= MOST_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more, size = message.get("more_body", False), max(size, len(body))
        except TimeoutError:
            sentence = f"The body did not arrive within {self._service.seconds:g} s: send it faster."
            await _refuse(408, sentence, scope, send)
            return
        if size > MOST_BYTES:
            sentence = f"The body has more than {MOST_BYTES:,} bytes: send several requests."
            await _refuse(413, sentence, scope, send)
            return
        unread = True

        async def again() -> Any:
            nonlocal unread
            if unread:
                unread = False
                return {"type": "http.request", "body": bytes(body), "more_body": False}
            return await receive()

        async with asyncio.timeout(self._service.seconds):
            await self._app(scope, again, send)


def _carries(header: bytes, token: str) -> bool:
    """Whether the header Authorization carries the token."""
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and secrets.compare_digest(
        given.strip().decode("latin-1").encode(), token.encode()
    )


async def _refuse(status: int, sentence: str, scope: Any, send: Any) -> None:
    """Answer with a sentence and close the connection, whose body may not have been read."""
    await _sentence(status, sentence, {"connection": "close"})(scope, _nothing, send)


async def _nothing() -> Any:
    return {"type": "http.disconnect"}


def create(
    folder: Path, *, token: str | None = None, seconds: float = 10.0, local: bool = True, worker: bool = False
) -> FastAPI:
    """The application, which serves the model that `publish` made the current one in `folder`.

    Parameters
    ----------
    token : what requests must carry as ``Authorization: Bearer``; None if anybody may ask
    seconds : limit of the time to send a request, and of that to answer it
    local : whether to refuse requests that name another host than this machine, if there is no token
    worker : whether this is a process of `workers.serve`, which loads a new model on SIGHUP and counts with others
    """
    service = Service(folder, seconds, worker)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Warnings are for people who fit models; answers say what matters.
        warnings.simplefilter("ignore")
        loop, tasks = asyncio.get_running_loop(), set()

        def renew() -> None:
            task = loop.create_task(service.reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        if worker and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, renew)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        service.load()
        yield
        service.close()

    bearer = HTTPBearer(auto_error=False)

    def admitted(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if not request.scope["admitted"]:
            raise HTTPException(
                401, "The token is missing or wrong: send it as Authorization: Bearer.", {"WWW-Authenticate": "Bearer"}
            )

    app = FastAPI(
        title="dyads",
        version=dyads.__version__,
        description="Calibrated probabilities for the labels of pairs. Nothing that is sent is stored.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={
            status: {"model": Refusal, "description": description}
            for status, description in (
                (400, "Not JSON, or for another host"),
                (401, "No token, or a wrong one"),
                (408, "The body came too slowly"),
                (413, "The body is too large"),
                (422, "The request is wrong: unknown ids, wrong types, too many pairs"),
                (503, "The answer took too long"),
            )
        },
    )
    guarded = [] if token is None else [Depends(admitted)]
    _routes(app, service, guarded)
    app.exception_handlers |= {RequestValidationError: _wrong, StarletteError: _problem}
    app.add_middleware(Guard, service=service, local=local and token is None, token=token)
    return app


def _wrong(_: Request, error: Any) -> Response:
    """The first thing that is wrong with a request, as one sentence."""
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        return _sentence(422, f"The body is not JSON ({first['ctx']['error']}, at character {first['loc'][-1]}).")
    place = list(first["loc"][1:])
    expected = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if place and place[-1] in TAGS:
        # All kinds of value were tried, and each has an error.
        place, expected = (
            place[:-1],
            f"expected text of at most {LONGEST} characters, a finite number, or true or false",
        )
    if first["type"] == "other_field":
        return _sentence(422, f"Got the field {reprlib.repr(first['ctx']['name'])}: {expected}.")
    got = reprlib.repr(first.get("input", "nothing"))
    name = ".".join(map(str, place)) or "The body"
    return _sentence(422, f"{name} is wrong, got {got if len(got) <= 60 else got[:57] + '...'}: {expected}.")


def _problem(_: Request, error: Any) -> Response:
    sentences = {"Not Found": "There is nothing at this path: see /openapi.json."}
    sentences["Method Not Allowed"] = "This path has another method: see /openapi.json."
    sentences["There was an error parsing the body"] = "The body is not JSON: expected an object in UTF-8."
    return _sentence(error.status_code, sentences.get(str(error.detail), str(error.detail)), error.headers)


def _sentence(status: int, sentence: str, headers: Any = None) -> Response:
    # A text may hold half of a surrogate pair, which UTF-8 lacks.
    content = to_json({"detail": sentence.encode(errors="replace").decode()})
    return Response(content, status, headers, "application/json")


def _routes(app: FastAPI, service: Service, guarded: list[Any]) -> None:
    """Add the routes of the service, and those of the page."""
    for path, (name, kind) in PAGE.items():
        place = files("dyads.report" if name.startswith("parts") else "dyads.serve").joinpath(name)
        app.get(path, include_in_schema=False)(partial(_file, place.read_bytes(), kind))

    @app.get("/health", tags=["server"])
    async def health() -> Health:
        """Whether the server answers; needs no token itself."""
        return Health(status="ok", token=bool(guarded))

    @app.get("/metrics", tags=["server"], dependencies=guarded, response_class=Response)
    async def metrics() -> Response:
        """Counts, latencies and loads, for Prometheus."""
        loop = asyncio.get_running_loop()
        return Response(await loop.run_in_executor(None, service.exposition), media_type="text/plain; version=0.0.4")

    @app.get("/model", tags=["model"], dependencies=guarded)
    async def model() -> Response:
        """What the model is: columns, labels, sizes, version."""
        return await service.answer(Served.describe)

    @app.get("/ids", tags=["model"], dependencies=guarded, response_model=SearchAnswer)
    async def ids(
        side: Side = "row",
        text: Annotated[str, Field(max_length=LONGEST)] = "",
        limit: Annotated[int, Field(ge=1, le=MOST_IDS)] = 20,
    ) -> Response:
        """Known ids that contain a text."""
        return await service.answer(lambda served: served.search(side, text, limit))

    @app.get("/map", tags=["model"], dependencies=guarded)
    async def map(side: Side = "row") -> Response:
        """Places of the ids with the most labels, where near ids have similar labels."""
        return await service.answer(lambda served: served.map(side))

    @app.get("/calibration", tags=["model"], dependencies=guarded)
    async def calibration() -> Response:
        """Reliability on held-out pairs, if the server was given any."""
        return await service.answer(lambda served: served.calibration)

    @app.post("/predict", tags=["pairs"], dependencies=guarded, response_model=PredictAnswer)
    async def predict(body: PredictRequest) -> Response:
        """A probability for each label of each pair."""
        return await service.answer(lambda served: served.predict(body.pairs, body.unknown))

    @app.post("/intervals", tags=["pairs"], dependencies=guarded, response_model=IntervalsAnswer)
    async def intervals(body: IntervalsRequest) -> Response:
        """Credible intervals of the probabilities, of a model with posterior draws."""
        return await service.answer(lambda served: served.intervals(body.pairs, body.level, body.unknown))

    @app.post("/explain", tags=["pairs"], dependencies=guarded, response_model=ExplainAnswer)
    async def explain(body: ExplainRequest) -> Response:
        """The exact additive parts of the log-odds of each label, before calibration."""
        return await service.answer(lambda served: served.explain(body.pairs, body.unknown))

    @app.post("/recommend", tags=["ids"], dependencies=guarded, response_model=RecommendAnswer)
    async def recommend(body: RecommendRequest) -> Response:
        """The best partners of each id, without the pairs of the fit."""
        return await service.answer(
            lambda served: served.recommend(
                body.ids,
                body.side,
                body.n,
                body.by,
                body.candidates,
                body.exclude,
                body.with_seen,
                body.relation,
                body.unknown,
            )
        )

    @app.post("/similar", tags=["ids"], dependencies=guarded, response_model=RecommendAnswer)
    async def similar(body: SimilarRequest) -> Response:
        """Ids of the same side with similar predictions."""
        return await service.answer(lambda served: served.similar(body.ids, body.side, body.n))

    @app.post("/fold-in", tags=["ids"], dependencies=guarded, response_model=FoldInAnswer)
    async def fold_in(body: FoldInRequest) -> Response:
        """What the model would recommend to a new id, or to a known one, with these labels. Nothing is stored."""
        return await service.answer(
            lambda served: served.fold_in(
                body.labels, body.side, body.id, body.n, body.by, body.partners, body.relation
            )
        )


async def _file(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind)
