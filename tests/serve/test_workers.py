"""Worker processes: one copy of the model, reloads without a dropped request, replacements for killed ones."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("workers")]


@contextlib.contextmanager
def started(*arguments, environment=None):
    """A server of the command, as (process, address), and its log once it has ended."""
    command = [sys.executable, "-m", "dyads.cli", "serve", *map(str, arguments), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    log = []
    try:
        address = None
        for line in server.stderr:
            log.append(line)
            if found := re.search(r"at (http://\S+), process", line):
                address = found[1]
                break
        assert address, "".join(log)
        reader = threading.Thread(target=lambda: log.extend(server.stderr), daemon=True)
        reader.start()
        wait_for(lambda: ask(address, "/health")["status"] == "ok")
        yield server, address, log
    finally:
        server.terminate()
        server.wait(30)


def wait_for(happened, seconds=60):
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if happened():
                return
        assert time.monotonic() < until
        time.sleep(0.1)


def ask(address, path, body=None, token=None):
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address + path, content, headers), timeout=60) as answer:
        return json.loads(answer.read())


def workers_of(server):
    """The processes that map a model, by what the kernel says of the parent's children."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            parent = (place / "stat").read_text().rsplit(")", 1)[1].split()[1]
            if int(parent) == server.pid and "model.dyads" in (place / "maps").read_text():
                found.append(int(place.name))
    return sorted(found)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_two_workers_share_a_copy_reload_it_and_are_replaced(models, tmp_path):
    mine = tmp_path / "mine.dyads"
    model, path = models["point"]
    shutil.copyfile(path, mine)
    body = {"pairs": [[model.row_ids_[0], model.col_ids_[0]]]}
    with started(mine, "--workers", "2") as (server, address, log):
        wait_for(lambda: len(workers_of(server)) == 2)
        first = ask(address, "/model")["version"]
        failed, versions, ended = [], set(), threading.Event()

        def asking():
            while not ended.is_set():
                # A connection of its own for each request: a killed worker holds no other.
                try:
                    ask(address, "/predict", body)
                    versions.add(ask(address, "/model")["version"])
                except OSError as error:
                    failed.append(error)

        threads = [threading.Thread(target=asking) for _ in range(3)]
        for thread in threads:
            thread.start()

        # The user's file is cut while it is served.
        os.truncate(mine, 1000)
        time.sleep(0.5)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: any("was not loaded" in line for line in log))
        assert versions == {first}

        shutil.copyfile(models["posterior"][1], mine)
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: sum("Loaded the model." in line for line in log) >= 2)
        (second,) = {ask(address, "/model")["version"] for _ in range(20)}
        assert second != first
        assert failed == [], "a reload drops nothing"

        victim, other = workers_of(server)
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: len(workers_of(server)) == 2 and victim not in workers_of(server))
        assert other in workers_of(server)
        ended.set()
        for thread in threads:
            thread.join()
        assert len(failed) <= 3, "only what the killed worker held"
        assert {ask(address, "/model")["version"] for _ in range(20)} == {second}
        with urllib.request.urlopen(address + "/metrics") as metrics:
            text = metrics.read().decode()
        counted = float(re.search(r'dyads_requests_total\{path="/predict",status="200"\} (\S+)', text)[1])
        assert counted > 10, "of both workers, and of the killed one"
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1]))) as half:
            half.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert ask(address, "/health")["status"] == "ok", "half a request holds up nobody"
    assert server.returncode == 0
    lines = [json.loads(line) for line in log if line.startswith("{")]
    assert {"time", "level", "message", "process"} <= set.intersection(*(set(line) for line in lines))
    assert not [line for line in lines if "traceback" in line]


def test_a_token_opens_the_server_to_others(models):
    with started(models["point"][1], "--host", "0.0.0.0", environment={"DYADS_TOKEN": "secret"}) as (_, address, _):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address, "/model")
        assert ask(address, "/model", token="secret")["estimator"] == "LFLClassifier"


def test_a_port_that_is_taken_is_a_sentence(models):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [
            sys.executable,
            "-m",
            "dyads.cli",
            "serve",
            str(models["point"][1]),
            "--port",
            str(taken.getsockname()[1]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Cannot listen on 127.0.0.1" in done.stderr) == (1, True)


def test_requests_of_any_shape_get_no_5xx():
    from fuzz import service

    outcomes, failures = service.fuzz(400, seed=0)
    assert failures == []
    assert outcomes["2xx"] > 20, "some requests are valid"
    assert sum(outcomes.values()) >= 400
