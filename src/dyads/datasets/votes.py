"""Votes of the United Nations General Assembly."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dyads.datasets.sources import Dataset, Progress, find


def un_votes(progress: Progress | None = None) -> Dataset:
    """UN General Assembly: country x roll call -> "yes", "abstain" or "no".

    Features of roll calls are the issues they are about, a list, and whether they change a text; `time` counts days.
    """
    folder = find("un-votes", progress)
    votes, calls, issues = (_read(folder, name) for name in ("un_votes", "un_roll_calls", "un_roll_call_issues"))
    country, vote = (votes[name].to_numpy(zero_copy_only=False).astype(str) for name in ("country", "vote"))
    call = votes["rcid"].to_numpy().astype(np.int64)
    ids = calls["rcid"].to_numpy().astype(np.int64)
    about: dict[int, list[str]] = {rcid: [] for rcid in ids.tolist()}
    for rcid, issue in zip(issues["rcid"].to_pylist(), issues["issue"].to_pylist(), strict=True):
        about.setdefault(int(rcid), []).append(issue)
    day = dict(zip(ids.tolist(), calls["date"].to_pylist(), strict=True))
    features: dict[str, Any] = {"roll call": ids, "issue": [about[rcid] for rcid in ids.tolist()]}
    for name in ("amend", "para"):
        features[name] = calls[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
    when = np.array([_days(day[rcid]) for rcid in call.tolist()])
    return Dataset({"country": country, "roll call": call}, vote, col_features=features, time=when)


def _days(when: Any) -> float:
    """Days since 1970, of a number of days or of a date."""
    return float(when.toordinal() - date(1970, 1, 1).toordinal()) if isinstance(when, date) else float(when)


def _read(folder: Path, name: str) -> Any:
    path = folder / f"{name}.csv.gz"
    options = csv.ParseOptions(newlines_in_values=True)
    return csv.read_csv(path if path.exists() else folder / f"{name}.csv", parse_options=options)
