"""Structures: a dyad's blocks -> one score per label, and score gradients pulled back to those blocks.

The score of label y for the dyad (r, c) is, in every structure,

    s_y = gamma_y + alpha_ry + beta_cy + latent_y(r, c)

with label, row and column biases; a structure is a `NamedTuple` that says what ``latent`` is. A *block* is the flat
vector a row (``a``) or a column (``b``) owns, or the one all dyads share (``h``):

    a = [alpha_r | latent part of a]    b = [beta_c | latent part of b]    h = [gamma | latent part of h]

With one id set (`one_set`) rows and columns are nodes of one kind, and a and b are blocks of the same table. A node
then has one bias for both roles (n_bias = 1), or one as a row and one as a column, [alpha | beta | latent part]
(n_bias = 2).
With several relations each has a shared block of its own, and h is that of the dyad's relation.

Only *free* labels have weights: all of them, or all but the reference, whose score is zero. Free label f is label
``f + (f >= reference)``; ``reference == n_labels`` says that none is pinned.

The functions below are kernels: scalar loops that engines compile, and that run uncompiled as they stand. They say
what the local derivative is, never where it lands. Each one ADDS to its last argument, and starts its sums from an
element of an array, because a literal zero would promote float32.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from dyads.model.streams import FIXED_SEED

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]


class Structure(Protocol):
    """What a structure provides; see `Bilinear`."""

    @property
    def n_labels(self) -> int: ...
    @property
    def reference(self) -> int: ...
    @property
    def n_bias(self) -> int: ...
    @property
    def one_set(self) -> bool: ...

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """Name and shape the latent parts a row (or node) owns, a column owns, and all dyads of a relation share."""
        ...

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        """Where the shared latent parts start, (n_relations, ...) each.

        `values` : (n_labels,) numeric values of ordered labels, or None.
        """
        ...

    def group_widths(self) -> tuple[int, int]:
        """How many neighbouring entries of an entity's, and of a shared, latent part have the same label weights."""
        ...

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None: ...
    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None: ...
    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None: ...
    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None: ...
    def latent_weights(self, h: Array, first: int, E: Array) -> None: ...
    def latent_partner_row(self, b: Array, v: Array) -> None: ...
    def latent_partner_col(self, a: Array, v: Array) -> None: ...
    def latent_partner_shared(self, a: Array, b: Array, v: Array) -> None: ...


class Bilinear(NamedTuple):
    """The latent feature model of equation 2; rank 0 is the simple log-linear model of equation 1.

        latent_y(r, c) = a_y . b_y,    a, b in R^{free labels x rank}

    With one id set it is the symmetric model sigma(A A^T) of section 4.4. Menon & Elkan 2010, sections 3.1, 3.2, 4.4.
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        return *_both_sides((free_labels(self), self.rank), self.one_set), {}

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        return {}

    def group_widths(self) -> tuple[int, int]:
        return self.rank, 0

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None:
        start = latent_start(self)
        for f in range(free_labels(self)):
            y = f + (f >= self.reference)
            total = s[y]
            for k in range(self.rank):
                total += a[start + f * self.rank + k] * b[start + f * self.rank + k]
            s[y] = total

    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
        start = latent_start(self)
        for f in range(free_labels(self)):
            gy = g[f + (f >= self.reference)]
            for k in range(self.rank):
                ga[start + f * self.rank + k] += gy * b[start + f * self.rank + k]

    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
        # The score is symmetric in a and b.
        latent_pull_row(self, b, a, h, g, gb)

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        pass

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        _own_label(self, first, E)

    def latent_partner_row(self, b: Array, v: Array) -> None:
        _same_place(self, b, v)

    def latent_partner_col(self, a: Array, v: Array) -> None:
        _same_place(self, a, v)

    def latent_partner_shared(self, a: Array, b: Array, v: Array) -> None:
        pass


class Stereotype(NamedTuple):
    """Few bilinear terms shared by all labels, with weights phi of each label. Section 4.3.

        latent_y(r, c) = sum_i phi_yi (a_i . b_i),    a, b in R^{n_terms x rank}, phi in R^{free labels x n_terms}

    With phi the identity it is `Bilinear`. With relations, phi is each relation's mixture lambda of section 4.5.
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int
    n_terms: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        return *_both_sides((self.n_terms, self.rank), self.one_set), {"phi": (free_labels(self), self.n_terms)}

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        n = free_labels(self)
        if n_relations > 1:
            # Relations start alike but for their leading basis, or they could never part.
            phi = np.where(np.arange(self.n_terms) == np.arange(n_relations)[:, None] % self.n_terms, 1.0, 0.5)
            return {"phi": phi[:, None, :].repeat(n, axis=1)}
        if values is None:
            return {"phi": np.eye(n, self.n_terms)[None] if self.n_terms >= n else _cosines(n, self.n_terms)[None]}
        # Orthogonal polynomials of the values, the constant last: the first is the standardised values.
        standard = (values - values.mean()) / values.std()
        orthogonal, triangle = np.linalg.qr(np.vander(standard, len(values), increasing=True))
        phi = np.roll(orthogonal * np.sign(np.diag(triangle)), -1, axis=1)[:, : self.n_terms] * np.sqrt(len(values))
        # A pinned reference weighs by nothing, so the others weigh by their distance from it.
        return {
            "phi": np.delete(phi - phi[self.reference], self.reference, axis=0)[None]
            if self.reference < self.n_labels
            else phi[None]
        }

    def group_widths(self) -> tuple[int, int]:
        return self.rank, self.n_terms

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None:
        n = free_labels(self)
        for i in range(self.n_terms):
            inner = _basis(self, a, b, i)
            for f in range(n):
                s[f + (f >= self.reference)] += h[n + f * self.n_terms + i] * inner

    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
        start, n = latent_start(self), free_labels(self)
        for i in range(self.n_terms):
            first = start + i * self.rank
            slope = g[0 + (self.reference == 0)] * h[n + i]
            for f in range(1, n):
                slope += g[f + (f >= self.reference)] * h[n + f * self.n_terms + i]
            for k in range(self.rank):
                ga[first + k] += slope * b[first + k]

    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
        latent_pull_row(self, b, a, h, g, gb)

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        n = free_labels(self)
        for i in range(self.n_terms):
            inner = _basis(self, a, b, i)
            for f in range(n):
                gh[n + f * self.n_terms + i] += g[f + (f >= self.reference)] * inner

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        n = free_labels(self)
        for f in range(n):
            for i in range(self.n_terms):
                E[f + (f >= self.reference), first + i] = h[n + f * self.n_terms + i]

    def latent_partner_row(self, b: Array, v: Array) -> None:
        _same_place(self, b, v)

    def latent_partner_col(self, a: Array, v: Array) -> None:
        _same_place(self, a, v)

    def latent_partner_shared(self, a: Array, b: Array, v: Array) -> None:
        n = free_labels(self)
        for i in range(self.n_terms):
            inner = _basis(self, a, b, i)
            for f in range(n):
                v[n + f * self.n_terms + i] += inner


def _basis(spec: Stereotype, a: Array, b: Array, i: int) -> Any:
    """a_i . b_i."""
    first = latent_start(spec) + i * spec.rank
    inner = a[first] * b[first]
    for k in range(1, spec.rank):
        inner += a[first + k] * b[first + k]
    return inner


class Diagonal(NamedTuple):
    """Weights shared by all labels or relations, with a signed diagonal Lambda of each. Sections 4.4 and 4.5.

        latent_y(r, c) = sum_k Lambda_yk a_k b_k,    a, b in R^rank, Lambda in R^{free labels x rank}

    With one id set it is the spectral model sigma(A Lambda A^T); with relations, sigma(alpha_r Lambda^t beta_c).
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        return *_both_sides((self.rank,), self.one_set), {"diagonal": (free_labels(self), self.rank)}

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        # Both signs, and others for other labels and relations, so that none has to cross zero to be found.
        signs = np.random.default_rng(FIXED_SEED).choice([-1.0, 1.0], (n_relations, free_labels(self), self.rank))
        signs[0, 0] = np.where(np.arange(self.rank) % 2 == 0, 1.0, -1.0)
        return {"diagonal": signs}

    def group_widths(self) -> tuple[int, int]:
        return min(self.rank, 1), self.rank

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None:
        start, n = latent_start(self), free_labels(self)
        for f in range(n):
            y = f + (f >= self.reference)
            total = s[y]
            for k in range(self.rank):
                # a b first: its product does not depend on their order, so the score of (j, i) is that of (i, j).
                total += h[n + f * self.rank + k] * (a[start + k] * b[start + k])
            s[y] = total

    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
        start, n = latent_start(self), free_labels(self)
        for f in range(n):
            gy = g[f + (f >= self.reference)]
            for k in range(self.rank):
                ga[start + k] += gy * h[n + f * self.rank + k] * b[start + k]

    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
        latent_pull_row(self, b, a, h, g, gb)

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        start, n = latent_start(self), free_labels(self)
        for f in range(n):
            gy = g[f + (f >= self.reference)]
            for k in range(self.rank):
                gh[n + f * self.rank + k] += gy * (a[start + k] * b[start + k])

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        n = free_labels(self)
        for f in range(n):
            for k in range(self.rank):
                E[f + (f >= self.reference), first + k] = h[n + f * self.rank + k]

    def latent_partner_row(self, b: Array, v: Array) -> None:
        _same_place(self, b, v)

    def latent_partner_col(self, a: Array, v: Array) -> None:
        _same_place(self, a, v)

    def latent_partner_shared(self, a: Array, b: Array, v: Array) -> None:
        start, n = latent_start(self), free_labels(self)
        for f in range(n):
            for k in range(self.rank):
                v[n + f * self.rank + k] += a[start + k] * b[start + k]


class Directed(NamedTuple):
    """Nodes with weights as a row, as a column, and in both roles: alpha beta^T + gamma gamma^T. Section 4.4.

    latent_y(r, c) = out_y(r) . in_y(c) + node_y(r) . node_y(c),    each in R^{free labels x rank}
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        shape = (free_labels(self), self.rank)
        return {"out_factors": shape, "in_factors": shape, "node_factors": shape}, {}, {}

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        return {}

    def group_widths(self) -> tuple[int, int]:
        return self.rank, 0

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None:
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for f in range(free_labels(self)):
            y = f + (f >= self.reference)
            total = s[y]
            if self.n_bias == 2:
                total += a[f] + b[free_labels(self) + f]
            for k in range(f * self.rank, (f + 1) * self.rank):
                total += a[out + k] * b[out + size + k] + a[out + 2 * size + k] * b[out + 2 * size + k]
            s[y] = total

    def latent_pull_row(self, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
        if self.n_bias == 2:
            _pull_bias(self, g, 0, ga)
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for f in range(free_labels(self)):
            gy = g[f + (f >= self.reference)]
            for k in range(f * self.rank, (f + 1) * self.rank):
                ga[out + k] += gy * b[out + size + k]
                ga[out + 2 * size + k] += gy * b[out + 2 * size + k]

    def latent_pull_col(self, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
        if self.n_bias == 2:
            _pull_bias(self, g, free_labels(self), gb)
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for f in range(free_labels(self)):
            gy = g[f + (f >= self.reference)]
            for k in range(f * self.rank, (f + 1) * self.rank):
                gb[out + size + k] += gy * a[out + k]
                gb[out + 2 * size + k] += gy * a[out + 2 * size + k]

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        pass

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        n = free_labels(self)
        for role in range(3):
            _own_label(self, first + role * n, E)

    def latent_partner_row(self, b: Array, v: Array) -> None:
        if self.n_bias == 2:
            _one_each(self, 0, v)
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for k in range(size):
            v[out + k] += b[out + size + k]
            v[out + 2 * size + k] += b[out + 2 * size + k]

    def latent_partner_col(self, a: Array, v: Array) -> None:
        if self.n_bias == 2:
            _one_each(self, free_labels(self), v)
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for k in range(size):
            v[out + size + k] += a[out + k]
            v[out + 2 * size + k] += a[out + 2 * size + k]

    def latent_partner_shared(self, a: Array, b: Array, v: Array) -> None:
        pass


def _both_sides(shape: tuple[int, ...], one_set: bool) -> tuple[Shapes, Shapes]:
    return ({"node_factors": shape}, {}) if one_set else ({"row_factors": shape}, {"col_factors": shape})


def _cosines(n: int, n_terms: int) -> Array:
    """Orthogonal columns (n, n_terms) of mean square one, the discrete cosines."""
    label, i = np.ogrid[:n, 1 : n_terms + 1]
    return np.asarray(np.sqrt(2) * np.cos(np.pi * (label + 0.5) * i / n))


def free_labels(spec: Structure) -> int:
    """Count the labels that have weights."""
    return spec.n_labels - (spec.reference < spec.n_labels)


def with_reference(spec: Structure, free: Array, value: Any = 0) -> Array:
    """Columns of free labels (n, free labels, ...) with one of `value` for the reference, if there is one."""
    return np.insert(free, spec.reference, value, axis=1) if spec.reference < spec.n_labels else free


def without_reference(spec: Structure, labels: Array) -> Array:
    """Columns of labels (n, n_labels, ...) without that of the reference, if there is one."""
    return np.delete(labels, spec.reference, axis=1) if spec.reference < spec.n_labels else labels


def latent_start(spec: Structure) -> int:
    """Where the latent part of a block begins that holds one bias, or none."""
    return free_labels(spec) if spec.n_bias == 1 else 0


def score(spec: Structure, a: Array, b: Array, h: Array, s: Array) -> None:
    """s += scores of the dyad with blocks a, b and shared block h; s : (n_labels,)."""
    for f in range(free_labels(spec)):
        y = f + (f >= spec.reference)
        total = s[y] + h[f]
        if spec.n_bias == 1:
            total += a[f] + b[f]
        s[y] = total
    latent_score(spec, a, b, h, s)


def pull_row(spec: Structure, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
    """ga += (d s / d a)^T g."""
    if spec.n_bias == 1:
        _pull_bias(spec, g, 0, ga)
    latent_pull_row(spec, a, b, h, g, ga)


def pull_col(spec: Structure, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
    """gb += (d s / d b)^T g."""
    if spec.n_bias == 1:
        _pull_bias(spec, g, 0, gb)
    latent_pull_col(spec, a, b, h, g, gb)


def pull_shared(spec: Structure, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
    """gh += (d s / d h)^T g."""
    _pull_bias(spec, g, 0, gh)
    latent_pull_shared(spec, a, b, h, g, gh)


def _pull_bias(spec: Structure, g: Array, start: int, out: Array) -> None:
    for f in range(free_labels(spec)):
        out[start + f] += g[f + (f >= spec.reference)]


def _own_label(spec: Structure, first: int, E: Array) -> None:
    """Give groups first, first + 1, ... of E the weight one of a free label each."""
    for f in range(free_labels(spec)):
        E[f + (f >= spec.reference), first + f] = 1


def _same_place(spec: Structure, other: Array, v: Array) -> None:
    """v += the other's latent weights: each entry meets the one in its own place."""
    for k in range(latent_start(spec), other.size):
        v[k] += other[k]


def _one_each(spec: Structure, start: int, v: Array) -> None:
    """v += 1 for the biases of all free labels from `start` on."""
    for f in range(free_labels(spec)):
        v[start + f] += 1


def label_weights(spec: Structure, h: Array, E: Array) -> None:
    """Write E (n_labels, n_groups), by which labels weigh the entries of an entity's block.

    The score is linear in the block of a row (or a column, or a shared one), and its Jacobian factors,

        d s_y / d x_k = E[y, group of k] v_k,

    where v is what its partner puts beside it: see `partner_row`. A bias is a group of its own; the latent part is cut
    into groups of neighbouring entries, as many as `group_widths` says. Of a self-link the v of both roles add up.
    """
    E[:] = 0
    for role in range(spec.n_bias):
        _own_label(spec, role * free_labels(spec), E)
    first = spec.n_bias * free_labels(spec)
    if first < E.shape[1]:
        latent_weights(spec, h, first, E)


def shared_label_weights(spec: Structure, E: Array) -> None:
    """The same of a shared block: every group is one label's."""
    E[:] = 0
    for first in range(0, E.shape[1], free_labels(spec)):
        _own_label(spec, first, E)


def partner_row(spec: Structure, b: Array, v: Array) -> None:
    """v += what stands beside each entry of a row's block; see `label_weights`."""
    if spec.n_bias == 1:
        _one_each(spec, 0, v)
    latent_partner_row(spec, b, v)


def partner_col(spec: Structure, a: Array, v: Array) -> None:
    """v += what stands beside each entry of a column's block."""
    if spec.n_bias == 1:
        _one_each(spec, 0, v)
    latent_partner_col(spec, a, v)


def partner_shared(spec: Structure, a: Array, b: Array, v: Array) -> None:
    """v += what stands beside each entry of the shared block."""
    _one_each(spec, 0, v)
    latent_partner_shared(spec, a, b, v)


def latent_score(spec: Structure, a: Array, b: Array, h: Array, s: Array) -> None:
    spec.latent_score(a, b, h, s)


def latent_pull_row(spec: Structure, a: Array, b: Array, h: Array, g: Array, ga: Array) -> None:
    spec.latent_pull_row(a, b, h, g, ga)


def latent_pull_col(spec: Structure, a: Array, b: Array, h: Array, g: Array, gb: Array) -> None:
    spec.latent_pull_col(a, b, h, g, gb)


def latent_pull_shared(spec: Structure, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
    spec.latent_pull_shared(a, b, h, g, gh)


def latent_weights(spec: Structure, h: Array, first: int, E: Array) -> None:
    spec.latent_weights(h, first, E)


def latent_partner_row(spec: Structure, b: Array, v: Array) -> None:
    spec.latent_partner_row(b, v)


def latent_partner_col(spec: Structure, a: Array, v: Array) -> None:
    spec.latent_partner_col(a, v)


def latent_partner_shared(spec: Structure, a: Array, b: Array, v: Array) -> None:
    spec.latent_partner_shared(a, b, v)


def build(name: str, n_labels: int, reference: int, bias: bool, rank: int, n_terms: int | None) -> Structure:
    """Make a structure by its name in `STRUCTURES`, of two id sets or one as that says."""
    kind, one_set = STRUCTURES[name]
    n_bias = int(bias) * (2 if kind is Directed else 1)
    fields = (n_labels, reference, n_bias, one_set, rank, *(() if n_terms is None else (n_terms,)))
    made: Structure = kind(*fields)
    return made


KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Bilinear, Stereotype, Diagonal, Directed)}

STRUCTURES: dict[str, tuple[Any, bool]] = {
    "bilinear": (Bilinear, False),
    "stereotype": (Stereotype, False),
    "symmetric": (Bilinear, True),
    "spectral": (Diagonal, True),
    "directed": (Directed, True),
    "relational": (Diagonal, False),
    "mixture": (Stereotype, False),
    "symmetric_mixture": (Stereotype, True),
}
"""Names users give: the kind of structure, and whether rows and columns are of one id set."""


def is_undirected(kind: Any, one_set: bool) -> bool:
    """Whether (i, j) and (j, i) are one pair: nodes of one set have the same weights in both roles."""
    return one_set and kind is not Directed


COMPOSED = (
    free_labels, latent_start, score, pull_row, pull_col, pull_shared, _pull_bias, _basis,
    label_weights, shared_label_weights, partner_row, partner_col, partner_shared, _own_label, _one_each, _same_place,
)  # fmt: skip
"""Kernels written once for every structure; an engine compiles them as they are."""

DISPATCHED = (
    latent_score, latent_pull_row, latent_pull_col, latent_pull_shared,
    latent_weights, latent_partner_row, latent_partner_col, latent_partner_shared,
)  # fmt: skip
"""Kernels each structure writes for itself; an engine resolves them by the type of ``spec``."""
