"""`dyads serve` under load: `make serve-bench`. On loopback, by wrk (Debian: wrk), on an ML-1M model, with two workers.

First each kind of request by itself, beside a bare FastAPI route in the same run: requests a second, and the 50th and
99th percentile of their latency. Then some minutes of all kinds together, with a reload of another model file every 20
seconds and a killed worker every 45: the requests that failed, and the memory of the workers. A short run is
`--seconds 3 --minutes 0.5`; `--model` takes a model file of a former run.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from core import rounded
from fastapi import FastAPI

WORKERS, CONNECTIONS, CLIENTS = 2, 8, 6
RELOAD, KILL, HELD = 20.0, 45.0, 1.0
"""Seconds between reloads and between kills, and after a kill within which a lost connection is the killed worker's."""

bare = FastAPI()


@bare.post("/bare")
async def nothing(body: dict[str, int]) -> dict[str, bool]:
    """What FastAPI itself takes: a small body in, a small body out."""
    return {"ok": "a" in body}


def fitted(folder):
    """ML-1M models of two seeds, so that a reload changes something."""
    from dyads import LFLOrdinal
    from dyads.datasets.published import movielens_1m

    data, paths = movielens_1m(), []
    for seed in range(2):
        paths.append(folder / f"ml-1m-{seed}.dyads")
        LFLOrdinal(10, solver="point", random_state=seed).fit(data.X, data.y).save(paths[-1])
    return paths


def requests(model_file):
    """Bodies of requests, by path and name."""
    import dyads

    model, rng = dyads.load(model_file), random.Random(0)
    rows, cols = model.row_ids_.tolist(), model.col_ids_.tolist()
    labels = model.classes_.tolist()

    def several(body):
        return [json.dumps(body()) for _ in range(50)]

    return {
        "bare FastAPI route": ("/bare", ['{"a": 1}']),
        "predict, 100 pairs": (
            "/predict",
            several(lambda: {"pairs": [[rng.choice(rows), rng.choice(cols)] for _ in range(100)]}),
        ),
        f"recommend, 10 of {len(cols):,}": ("/recommend", several(lambda: {"ids": [rng.choice(rows)]})),
        "fold-in, 20 labels": (
            "/fold-in",
            several(lambda: {"labels": [[col, rng.choice(labels)] for col in rng.sample(cols, 20)]}),
        ),
    }


@contextlib.contextmanager
def started(command, ready, log):
    """A server, once its log says that it is ready: the process and its port."""
    with open(log, "w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, cwd=Path(__file__).parent)
    try:
        for _ in range(600):
            if found := re.search(ready, log.read_text()):
                break
            time.sleep(0.1)
        port = int(found[1])
        answers = 0
        while answers < 20 * WORKERS:
            # The port is open before the workers answer, of which each takes about half of the connections.
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", "/health")
                connection.getresponse().read()
                answers += 1
        time.sleep(5)
        yield server, port
    finally:
        server.terminate()
        server.wait(60)


def wrk(port, path, bodies, seconds, folder):
    """Figures of one kind of request, after a second that does not count."""
    script = folder / "wrk.lua"
    listed = ",\n".join(f"[==[{body}]==]" for body in bodies)
    script.write_text(
        f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nlocal bodies = {{{listed}}}\n'
        "local i = 0\nrequest = function()\n  i = i % #bodies + 1\n  return wrk.format(nil, nil, nil, bodies[i])\nend\n"
    )
    for duration in (1, seconds):
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{duration}s", "--latency", "-s", str(script)]
        done = subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=True)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", done.stdout)
    return {
        "requests a second": float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1]),
        "p50, ms": _milliseconds(re.search(r"^ +50% +(\S+)", done.stdout, re.MULTILINE)[1]),
        "p99, ms": _milliseconds(re.search(r"^ +99% +(\S+)", done.stdout, re.MULTILINE)[1]),
        "failed": (int(failed[1]) if failed else 0) + (sum(map(int, errors.groups())) if errors else 0),
    }


def _milliseconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[unit]


# ---------------------------------------------------------------------------------------------------------------- soak


def workers_of(server):
    """Process ids of the workers, oldest first."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == server.pid and "model.dyads" in (place / "maps").read_text():
                found.append((int(fields[19]), int(place.name)))
    return [pid for _, pid in sorted(found)]


def resident(pids):
    """Resident MiB of some processes."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(server, port, asked, served, models, minutes):
    """Load from several clients, with reloads and kills: failures, and memory after one minute and at the end."""
    ended, outcomes, failures, kills = threading.Event(), Counter(), [], []

    def client(seed):
        rng, connection = random.Random(seed), None
        while not ended.is_set():
            path, bodies = rng.choice(asked)
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("POST", path, rng.choice(bodies), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                outcomes[answer.status] += 1
                if answer.status != 200:
                    failures.append((time.monotonic(), path, answer.status))
            except (OSError, http.client.HTTPException) as error:
                failures.append((time.monotonic(), path, type(error).__name__))
                connection = None

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    begun, reloads, memory = time.monotonic(), 0, []
    next_reload, next_kill, next_look = begun + RELOAD / 2, begun + KILL, begun + 60 * min(1.0, minutes / 4)
    while time.monotonic() < begun + 60 * minutes:
        now = time.monotonic()
        if now >= next_reload:
            reloads, next_reload = reloads + 1, now + RELOAD
            shutil.copyfile(models[reloads % 2], served)
            server.send_signal(signal.SIGHUP)
        if now >= next_kill and len(workers_of(server)) == WORKERS:
            # The youngest, so that one worker lives through all reloads.
            os.kill(workers_of(server)[-1], signal.SIGKILL)
            kills.append(time.monotonic())
            next_kill = now + KILL
        if now >= next_look and len(workers_of(server)) == WORKERS:
            oldest, *_ = workers_of(server)
            memory.append((round(now - begun), resident([oldest]), resident([server.pid, *workers_of(server)])))
            next_look = now + 30
        time.sleep(0.2)
    while len(workers_of(server)) < WORKERS:
        time.sleep(0.5)
    oldest, *_ = workers_of(server)
    memory.append((round(time.monotonic() - begun), resident([oldest]), resident([server.pid, *workers_of(server)])))
    ended.set()
    for thread in threads:
        thread.join()
    # An answer with an error comes from a worker that lives.
    lost = [each for each in failures if not isinstance(each[2], int)]
    held = [each for each in lost if any(0 <= each[0] - kill <= HELD for kill in kills)]
    for failure in failures:
        print("failed", "with a killed worker:" if failure in held else "otherwise:", *failure[1:], flush=True)
    (first, *_), last = memory, memory[-1]
    return {
        "minutes": minutes,
        "requests": sum(outcomes.values()),
        "reloads": reloads,
        "killed workers": len(kills),
        "failed, held by a killed worker": len(held),
        "failed, others": len(failures) - len(held),
        "MiB of the worker that lived through all, first": first[1],
        "MiB of it, last": last[1],
        "its ratio": last[1] / first[1],
        "MiB of all processes, first": first[2],
        "MiB of all, last": last[2],
        "ratio of all": last[2] / first[2],
        "at most": 1.05,
        "course (s, MiB of the worker, MiB of all)": [list(each) for each in memory],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="of each kind of request")
    parser.add_argument("--minutes", type=float, default=10, help="of all kinds with reloads and kills; 0 is none")
    parser.add_argument("--model", type=Path, help="model file, by default one is fitted to ML-1M")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [chosen.model] * 2 if chosen.model else fitted(folder)
        served, figures = folder / "served.dyads", {}
        shutil.copyfile(models[0], served)
        asked = requests(served)
        uvicorn = [sys.executable, "-m", "uvicorn", "serve:bare", "--workers", str(WORKERS), "--port", "8765"]
        dyads = [sys.executable, "-m", "dyads.cli", "serve", str(served), "--workers", str(WORKERS), "--port", "0"]
        log = folder / "log"
        with started([*uvicorn, "--no-access-log"], r"running on http://127.0.0.1:(\d+)", log) as (_, port):
            (title, (path, bodies)), *others = asked.items()
            figures[title] = wrk(port, path, bodies, chosen.seconds, folder)
        with started(dyads, r"at http://127.0.0.1:(\d+), process", log) as (server, port):
            for title, (path, bodies) in others:
                figures[title] = wrk(port, path, bodies, chosen.seconds, folder)
            if chosen.minutes:
                mixed = [request for _, request in others]
                figures["soak"] = soak(server, port, mixed, served, models, chosen.minutes)
    figures = rounded({"workers": WORKERS, "connections of wrk": CONNECTIONS, "cores": os.cpu_count(), **figures})
    print(json.dumps(figures, indent=1))
    (Path(__file__).parent / "results" / "serve.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
