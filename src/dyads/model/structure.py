"""Structures: a dyad's blocks -> one score per label, and score gradients pulled back to those blocks.

The score of label y for the dyad (r, c) is, in every structure,

    s_y = gamma_y + alpha_ry + beta_cy + latent_y(r, c)

with label, row and column biases; a structure is a `NamedTuple` that says what ``latent`` is. A *block* is the flat
vector a row (``a``) or a column (``b``) owns, or the one all dyads share (``h``):

    a = [alpha_r | latent part of a]    b = [beta_c | latent part of b]    h = [gamma | latent part of h]

Only *free* labels have weights: all of them, or all but the base, whose score is zero. Free label f is label
``f + (f >= base)``; ``base == n_labels`` says that none is pinned.

The functions below are kernels: scalar loops that engines compile, and that run uncompiled as they stand. They say
what the local derivative is, never where it lands. Each one ADDS to its last argument, and starts its sums from an
element of an array, because a literal zero would promote float32.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]


class Structure(Protocol):
    """What a structure provides; see `Bilinear`."""

    @property
    def n_labels(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def bias(self) -> bool: ...

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """Name and shape the latent parts a row owns, a column owns, and all dyads share."""
        ...

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None: ...
    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None: ...
    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None: ...
    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None: ...


class Bilinear(NamedTuple):
    """The latent feature model of equation 2; rank 0 is the simple log-linear model of equation 1.

        latent_y(r, c) = a_y . b_y,    a, b in R^{free labels x rank}

    Menon & Elkan 2010, sections 3.1 and 3.2.
    """

    n_labels: int
    base: int
    bias: bool
    rank: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        shape = (free_labels(self), self.rank)
        return {"row_factors": shape}, {"col_factors": shape}, {}

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None:
        start = latent_start(self)
        for f in range(free_labels(self)):
            y = f + (f >= self.base)
            total = s[y]
            for k in range(self.rank):
                total += a[start + f * self.rank + k] * b[start + f * self.rank + k]
            s[y] = total

    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
        start = latent_start(self)
        for f in range(free_labels(self)):
            gy = g[f + (f >= self.base)]
            for k in range(self.rank):
                ga[start + f * self.rank + k] += gy * b[start + f * self.rank + k]

    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
        # The score is symmetric in a and b.
        latent_pull_row(self, b, a, h, g, gb)

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        pass


def free_labels(spec: Structure) -> int:
    """Count the labels that have weights."""
    return spec.n_labels - (spec.base < spec.n_labels)


def latent_start(spec: Structure) -> int:
    """Where the latent part of a row's or a column's block begins."""
    return free_labels(spec) if spec.bias else 0


def score(spec: Structure, a: Array, b: Array, h: Array, s: Array) -> None:
    """s += scores of the dyad with blocks a, b and shared block h; s : (n_labels,)."""
    for f in range(free_labels(spec)):
        y = f + (f >= spec.base)
        total = s[y] + h[f]
        if spec.bias:
            total += a[f] + b[f]
        s[y] = total
    latent_score(spec, a, b, h, s)


def pull_row(spec: Structure, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
    """ga += (d s / d a)^T g."""
    if spec.bias:
        _pull_bias(spec, g, ga)
    latent_pull_row(spec, a, b, h, g, ga)


def pull_col(spec: Structure, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
    """gb += (d s / d b)^T g."""
    if spec.bias:
        _pull_bias(spec, g, gb)
    latent_pull_col(spec, a, b, h, g, gb)


def pull_shared(spec: Structure, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
    """gh += (d s / d h)^T g."""
    _pull_bias(spec, g, gh)
    latent_pull_shared(spec, a, b, h, g, gh)


def _pull_bias(spec: Structure, g: Array, out: Array) -> None:
    for f in range(free_labels(spec)):
        out[f] += g[f + (f >= spec.base)]


def latent_score(spec: Structure, a: Array, b: Array, h: Array, s: Array) -> None:
    spec.latent_score(a, b, h, s)


def latent_pull_row(spec: Structure, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
    spec.latent_pull_row(a, b, h, g, ga)


def latent_pull_col(spec: Structure, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
    spec.latent_pull_col(a, b, h, g, gb)


def latent_pull_shared(spec: Structure, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
    spec.latent_pull_shared(a, b, h, g, gh)


STRUCTURES: dict[str, type[Bilinear]] = {"bilinear": Bilinear}

COMPOSED = (free_labels, latent_start, score, pull_row, pull_col, pull_shared, _pull_bias)
"""Kernels written once for every structure; an engine compiles them as they are."""

DISPATCHED = (latent_score, latent_pull_row, latent_pull_col, latent_pull_shared)
"""Kernels each structure writes for itself; an engine resolves them by the type of ``spec``."""
