"""`dyads cluster-check`: what is wrong with a Ray cluster, before a fit finds out."""

import os
from typing import Annotated, Any

import typer

from dyads.cli import console
from dyads.cli.console import Usage
from dyads.cli.inputs import Json
from dyads.data.remote import is_remote
from dyads.data.store import reached
from dyads.errors import InputError, counted

SLOW = 0.5
"""Share of the speed of the fastest machine below which a machine is named slow: others wait for it."""


def cluster_check(
    address: Annotated[
        str, typer.Option(help="Address of the head of the Ray cluster, host:port [default: auto].", show_default=False)
    ] = "auto",
    store: Annotated[str | None, typer.Option(help="Store that all machines should reach.")] = None,
    as_json: Json = False,
) -> None:
    """Check a Ray cluster: versions, processors and a trial on each machine, and whether all reach a store.

    Exit code 1 if something is wrong. Machines of different bits give models that differ in rounding.
    """
    from dyads.engine import Ray
    from dyads.engine.cluster import Cluster

    try:
        engine = Ray(address)
    except InputError as error:
        raise Usage(str(error).replace("Ray got address=", "Got --address ")) from error
    with console.bar("Asking all machines"):
        cluster = Cluster.joined(engine)
        own, path = None, None
        if store is not None:
            path = store if is_remote(store) else os.path.realpath(store)
            own = reached(path)
        machines = cluster.machines(path, trial=True)
    found = [said | {"wrong": _wrong(said, machines, cluster.here, own)} for said in machines]
    columns: dict[str, Any] = {
        "machine": [said["name"] for said in found],
        "node": [said["node"] for said in found],
        "processors": [said["processors"] for said in found],
        "processor": [said.get("processor", "") for said in found],
        "versions": [", ".join(said.get("versions", ())) for said in found],
        "bits": [said.get("bits", "") for said in found],
        "draws a second": [round(said.get("draws", 0)) for said in found],
        **({"pairs of the store": [said.get("pairs", 0) for said in found]} if store is not None else {}),
        "wrong": ["; ".join(said["wrong"]) or "nothing" for said in found],
    }
    console.show(columns, f"Ray cluster of {counted(len(found), 'machine')}", as_json)
    if any(said["wrong"] for said in found):
        raise typer.Exit(1)


def _wrong(said: dict[str, Any], machines: list[dict[str, Any]], here: Any, store: tuple[int, str] | None) -> list[str]:
    """What is wrong with a machine, in words; `store` : number of pairs and checksum of the store, as seen here."""
    wrong = [said["error"]] if "error" in said else []
    if not any(other["processors"] for other in machines):
        wrong.append("no machine has processors for tasks")
    differing = [
        f"{got}, and here {own}"
        for got, own in zip(said.get("versions", ()), here.versions, strict=False)
        if got != own
    ]
    wrong += [f"other versions: {', '.join(differing)}"] if differing else []
    common = [other["bits"] for other in machines if "bits" in other]
    if "bits" in said and said["bits"] != max(common, key=common.count):
        wrong.append("its bits differ from those of most machines: results depend on who computes what")
    fastest = max((other.get("draws", 0) for other in machines), default=0)
    if "draws" in said and said["draws"] < SLOW * fastest:
        wrong.append(f"slow: {said['draws'] / fastest:.0%} of the speed of the fastest")
    if store is not None and "store" in said and (said["pairs"], said["store"]) != store:
        wrong.append(f"another store lies at this path: {said['pairs']:,} pairs, and here {store[0]:,}")
    return wrong


def register(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command("cluster-check")(console.guarded()(cluster_check))
