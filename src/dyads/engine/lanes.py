"""Teams: who shares the work on one entity. A loop over the entries of its block is divided among the team's lanes,

    for k in range(lane(team), n, lanes(team)): ...

so that one source serves a CPU thread, which is a team of one (`Serial`), and a block of GPU threads (`device.Block`).
What a lane writes, others may read after `wait`.
"""

from typing import Any, NamedTuple

import numpy as np

from dyads.engine.compiled import by_type, reduction

Array = np.ndarray[Any, Any]


@reduction
def dot_from(first, x, y):  # type: ignore[no-untyped-def]
    """Return the sum of x_k y_k for all k of x from `first` on."""
    total = 0.0
    for k in range(first, x.size):
        total += x[k] * y[k]
    return total


class Serial(NamedTuple):
    """A team of one thread."""

    def lane(self) -> int:
        return 0

    def lanes(self) -> int:
        return 1

    def lane_sum(self, x: float) -> float:
        return x

    def team_dot(self, first: int, x: Array, y: Array) -> float:
        return dot_from(first, x, y)  # type: ignore[no-any-return]

    def wait(self) -> None:
        pass


SERIAL = Serial()


@by_type
def lane(team: Any) -> int:
    """Return the number of this lane, from 0."""
    return int(team.lane())


@by_type
def lanes(team: Any) -> int:
    """Return the number of lanes of the team."""
    return int(team.lanes())


@by_type
def lane_sum(team: Any, x: float) -> float:
    """Return the sum of x over the lanes, in a fixed order, to all of them; waits for all."""
    return team.lane_sum(x)  # type: ignore[no-any-return]


@by_type
def team_dot(team: Any, first: int, x: Array, y: Array) -> float:
    """Return the sum of x_k y_k for all k of x from `first` on, to all lanes; waits for all."""
    return team.team_dot(first, x, y)  # type: ignore[no-any-return]


@by_type
def wait(team: Any) -> None:
    """Wait until all lanes have come here; then each sees what the others have written."""
    team.wait()
