"""Worker processes that answer from one private copy of a model file, and how they get a new one.

The parent copies the file into a folder that only this user can read, and checks the copy. Workers map the copy: they
share its memory, and whatever becomes of the user's file, no worker sees it. On SIGHUP the parent makes and checks a
copy of the file as it is now, and tells the workers, each of which answers from the old model until it has the new
one. A file that cannot be served changes nothing. A worker that ends is replaced.
"""

import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from dyads.data.files import replacing
from dyads.errors import DyadsError, InputError, ModelFileError
from dyads.estimators.kinds import load
from dyads.serve.app import CURRENT, create
from dyads.serve.served import Served, calibration_of

logger = logging.getLogger("dyads.serve")

VERSION_DIGITS = 12
"""Digits of a SHA-256 that name a version: no two files of a server will share them."""

KEPT = 2
"""Copies that are kept: the current one, and the one before, which a worker may just be about to map."""

UNANSWERED = 30
"""Seconds without a sign of life after which a worker is replaced: longer than a busy machine keeps one waiting."""

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept, as by common proxies."""

CONNECTIONS = 256
"""Connections of a worker from which on it answers 503: each may hold a body, and what that becomes in memory."""

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts on which only this machine can reach the server."""

HeldOut = tuple[Any, Any, Any]


class JsonLines(logging.Formatter):
    """Log records as JSON, one a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "process": record.process,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonLines}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {
        "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        "dyads.serve": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}


def publish(source: Path, folder: Path, held_out: HeldOut | None = None) -> str:
    """Make a private copy of a model file, check that it can be served, and make it the current one.

    Returns its version. `held_out` : labelled pairs on which the page shows the calibration of the model.
    """
    number = max([int(path.name) for path in folder.iterdir() if path.name.isdigit()], default=0) + 1
    place = folder / str(number)
    place.mkdir(mode=0o700)
    copy = place / "model.dyads"
    try:
        if not source.is_file():
            raise InputError(f"There is no file {source}: expected a model file written by `dyads fit`.")
        shutil.copyfile(source, copy)
        with open(copy, "rb") as file:
            version = hashlib.file_digest(file, "sha256").hexdigest()[:VERSION_DIGITS]
        Served(place, version, source.name)
        if held_out is not None:
            (place / "calibration.json").write_text(json.dumps(_calibration(copy, held_out)))
    except ModelFileError as error:
        shutil.rmtree(place)
        raise ModelFileError(str(error).replace(str(copy), str(source))) from error
    except BaseException:
        shutil.rmtree(place)
        raise
    with replacing(folder / CURRENT) as file:
        file.write(f"{number} {version} {source.name}".encode())
    for old in range(number - KEPT + 1):
        # Who has mapped a file keeps it, although its name is gone.
        shutil.rmtree(folder / str(old), ignore_errors=True)
    return version


def _calibration(copy: Path, held_out: HeldOut) -> dict[str, Any]:
    try:
        return calibration_of(load(copy, mapped=True), *held_out)
    except InputError as error:
        # A new model may have other columns or labels.
        logger.warning("No calibration: %s", error)
        return {"pairs": 0, "curves": []}


class Workers(Multiprocess):
    """Uvicorn's supervisor of worker processes, which hands out model files."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], renew: Callable[[], str]) -> None:
        super().__init__(config, sockets)
        self._renew = renew

    def handle_hup(self) -> None:
        """Hand out the model file as it is now."""
        try:
            version = self._renew()
        except Exception as error:
            # Whatever it is, it must not end the server.
            unexpected = not isinstance(error, DyadsError | OSError)
            logger.error("The model file was not loaded, the one before is served: %s", error, exc_info=unexpected)
            return
        logger.info("Loaded the model file.", extra={"fields": {"model": version}})
        for process in self.processes:
            if process.pid is not None and process.process.is_alive():
                os.kill(process.pid, signal.SIGHUP)

    def init_processes(self) -> None:
        with _hangups_wait():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended, and take them off the gauges."""
        before = {process.pid for process in self.processes}
        with _hangups_wait():
            super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
            logger.warning("A worker ended and was replaced.", extra={"fields": {"worker": pid}})


@contextmanager
def _hangups_wait() -> Iterator[None]:
    """Block SIGHUP, which would end a worker that does not handle it yet: it starts with the mask of its parent."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(
    model_file: Path,
    *,
    host: str,
    port: int,
    workers: int,
    token: str | None,
    seconds: float,
    held_out: HeldOut | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve a model file until SIGTERM or SIGINT.

    `announce` is called with the address once it is known and the model was checked. `seconds` : limit of a request.
    """
    check_host(host, token)
    with TemporaryDirectory(prefix="dyads-serve-") as name, _listen(host, port) as listening:
        folder = Path(name)
        renew = partial(publish, model_file, folder, held_out)
        renew()
        metrics = folder / "metrics"
        metrics.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
        config = uvicorn.Config(
            partial(create, folder, token=token, seconds=seconds, local=host in LOCAL, worker=True),
            factory=True,
            workers=workers,
            log_config=LOGGING,
            access_log=False,
            server_header=False,
            # Longer than clients keep idle connections: a request must not meet one that is just being closed.
            timeout_keep_alive=KEEP_ALIVE,
            # Requests that have begun are answered before a worker ends.
            timeout_graceful_shutdown=round(seconds) + 1,
            timeout_worker_healthcheck=UNANSWERED,
            limit_concurrency=CONNECTIONS,
        )
        config.configure_logging()
        shown = f"[{host}]" if ":" in host else host
        supervisor = Workers(config, [listening], renew)
        announce(f"http://{shown}:{listening.getsockname()[1]}")
        supervisor.run()
        if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
            raise DyadsError("A worker did not start, so that the server ended: see the log above for its error.")


def check_host(host: str, token: str | None) -> None:
    """Raise if anybody beyond this machine could ask."""
    if host not in LOCAL and not token:
        raise InputError(
            f"Got the host {host} and no token: expected one beyond this machine. Set the environment variable "
            "DYADS_TOKEN, or listen on 127.0.0.1."
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"Cannot listen on {host}, port {port} ({reason}): choose another with --host or --port."
        raise InputError(message) from error
    if sys.platform != "win32":
        listening.set_inheritable(True)
    return listening
