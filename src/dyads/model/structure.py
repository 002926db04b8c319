"""Structures: a dyad's blocks -> one score per label, and score gradients pulled back to those blocks.

In every structure the score of label y for the dyad (r, c) is

    s_y = gamma_y + alpha_ry + beta_cy + latent_y(r, c)

with label, row and column biases. A structure is a `NamedTuple` that defines ``latent``. A *block* is the flat vector
owned by a row (``a``) or a column (``b``), or shared by all dyads (``h``):

    a = [alpha_r | latent part of a]    b = [beta_c | latent part of b]    h = [gamma | latent part of h]

With one id set (`one_set`) rows and columns are nodes of one kind, and a and b are blocks of the same table. A node
then has one bias for both roles (n_bias = 1), or one as a row and one as a column, [alpha | beta | latent part]
(n_bias = 2). With several relations each relation has its own shared block, and h is the block of the dyad's relation.

Only *free* labels have weights: all labels, or all but the reference, whose score is zero. Free label f is label
``f + (f >= reference)``; ``reference == n_labels`` means that there is no reference.

The functions below are kernels: scalar loops that engines compile and that also run uncompiled. They define the local
derivative; the engine decides where to add it. Unless it says WRITE, a kernel ADDS to its last array. Sums start
from an element of an array, because a literal zero would promote float32.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from dyads.model.streams import FIXED_SEED

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]

LEADING_WEIGHT, OTHER_WEIGHT = 1.0, 0.5
"""Initial phi of a relation's leading term and of its other terms.

Equal weights would keep relations alike; the more they differ, the more each relation starts on a term of its own.
"""


class Structure(Protocol):
    """The interface of a structure; see `Bilinear`."""

    @property
    def n_labels(self) -> int: ...
    @property
    def reference(self) -> int: ...
    @property
    def n_bias(self) -> int: ...
    @property
    def one_set(self) -> bool: ...

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        """Return the names and shapes of the latent parts of a row (or node), a column and a shared block."""
        ...

    def repeated(self, n: int) -> "Structure":
        """Return the structure of n models side by side: the latent score is the sum of theirs."""
        ...

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        """Return the initial values of the shared latent parts, (n_relations, ...) each.

        `values` : (n_labels,) numeric values of ordered labels, or None.
        """
        ...

    def group_widths(self) -> tuple[int, int]:
        """Return the number of consecutive entries with the same label weights in an entity's and a shared latent part.

        See `label_weights`.
        """
        ...

    def latent_score(self, a: Array, b: Array, h: Array, s: Array) -> None:
        """s += latent scores of the free labels."""
        ...

    def latent_base_shared(self, a: Array, b: Array, s: Array) -> None:
        """s += latent scores with a shared block of zeros."""
        ...

    def latent_slopes(self, h: Array, g: Array, slope: Array) -> None:
        """WRITE the latent part of `slopes`."""
        ...

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        """gh += (d latent / d h)^T g."""
        ...

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        """WRITE the label weights of the latent groups to E, from column `first` on; see `label_weights`."""
        ...

    def latent_partner_row(self, b: Array, v: Array, j: int) -> None:
        """WRITE the latent part of `partner_row`; entries for biases may be overwritten."""
        ...

    def latent_partner_col(self, a: Array, v: Array, j: int) -> None:
        """WRITE the latent part of `partner_col`; entries for biases may be overwritten."""
        ...

    def latent_partner_shared(self, a: Array, b: Array, v: Array, j: int) -> None:
        """WRITE the latent part of `partner_shared`; entries for biases may be overwritten."""
        ...


class Bilinear(NamedTuple):
    """The latent feature log-linear model of equation 2; rank 0 is the log-linear model of equation 1.

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

    def repeated(self, n: int) -> "Bilinear":
        return self._replace(rank=n * self.rank)

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

    def latent_base_shared(self, a: Array, b: Array, s: Array) -> None:
        latent_score(self, a, b, a, s)

    def latent_slopes(self, h: Array, g: Array, slope: Array) -> None:
        _own_slopes(self, latent_start(self), self.rank, g, slope)

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        pass

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        _own_label(self, first, E)

    def latent_partner_row(self, b: Array, v: Array, j: int) -> None:
        _same_place(b, v, j)

    def latent_partner_col(self, a: Array, v: Array, j: int) -> None:
        _same_place(a, v, j)

    def latent_partner_shared(self, a: Array, b: Array, v: Array, j: int) -> None:
        pass


class Stereotype(NamedTuple):
    """Bilinear terms shared by all labels, weighted by phi for each label. Menon & Elkan 2010, section 4.3.

        latent_y(r, c) = sum_i phi_yi (a_i . b_i),    a, b in R^{n_terms x rank}, phi in R^{free labels x n_terms}

    If phi is the identity, this is `Bilinear`. With relations, phi is the mixture lambda of each one (section 4.5).
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int
    n_terms: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        return *_both_sides((self.n_terms, self.rank), self.one_set), {"phi": (free_labels(self), self.n_terms)}

    def repeated(self, n: int) -> "Stereotype":
        return self._replace(n_terms=n * self.n_terms)

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        n = free_labels(self)
        if n_relations > 1:
            # Each relation starts with another leading term: relations that start alike would stay alike.
            leading = np.arange(self.n_terms) == np.arange(n_relations)[:, None] % self.n_terms
            phi = np.where(leading, LEADING_WEIGHT, OTHER_WEIGHT)
            return {"phi": phi[:, None, :].repeat(n, axis=1)}
        if values is None:
            return {"phi": np.eye(n, self.n_terms)[None] if self.n_terms >= n else _cosines(n, self.n_terms)[None]}
        # Orthogonal polynomials of the values, with the constant moved to the end: first come the standardised values.
        standard = (values - values.mean()) / values.std()
        degree = min(self.n_terms, len(values) - 1)
        orthogonal, triangle = np.linalg.qr(np.vander(standard, degree + 1, increasing=True))
        phi = np.roll(orthogonal * np.sign(np.diag(triangle)), -1, axis=1)[:, : self.n_terms] * np.sqrt(len(values))
        # The weights of the reference are fixed at zero, so those of the others are differences from the reference.
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

    def latent_base_shared(self, a: Array, b: Array, s: Array) -> None:
        pass

    def latent_slopes(self, h: Array, g: Array, slope: Array) -> None:
        start, n = latent_start(self), free_labels(self)
        for i in range(self.n_terms):
            total = g[0 + (self.reference == 0)] * h[n + i]
            for f in range(1, n):
                total += g[f + (f >= self.reference)] * h[n + f * self.n_terms + i]
            group = slope[start + i * self.rank : start + (i + 1) * self.rank]
            for k in range(group.size):
                group[k] = total

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

    def latent_partner_row(self, b: Array, v: Array, j: int) -> None:
        _same_place(b, v, j)

    def latent_partner_col(self, a: Array, v: Array, j: int) -> None:
        _same_place(a, v, j)

    def latent_partner_shared(self, a: Array, b: Array, v: Array, j: int) -> None:
        n = free_labels(self)
        for i in range(self.n_terms):
            inner = _basis(self, a, b, i)
            for f in range(n):
                v[n + f * self.n_terms + i, j] = inner


def _basis(spec: Stereotype, a: Array, b: Array, i: int) -> Any:
    """Return a_i . b_i."""
    first = latent_start(spec) + i * spec.rank
    inner = a[first] * b[first]
    for k in range(1, spec.rank):
        inner += a[first + k] * b[first + k]
    return inner


class Diagonal(NamedTuple):
    """Factors shared by all labels, with a diagonal Lambda of either sign for each label and relation.

        latent_y(r, c) = sum_k Lambda_yk a_k b_k,    a, b in R^rank, Lambda in R^{free labels x rank}

    With one id set it is the spectral model sigma(A Lambda A^T); with relations, sigma(alpha_r Lambda^t beta_c).
    Menon & Elkan 2010, sections 4.4 and 4.5.
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        return *_both_sides((self.rank,), self.one_set), {"diagonal": (free_labels(self), self.rank)}

    def repeated(self, n: int) -> "Diagonal":
        return self._replace(rank=n * self.rank)

    def shared_start(self, n_relations: int, values: Array | None) -> dict[str, Array]:
        # Signs vary over columns, labels and relations: weights that all had the wrong sign would have to cross zero.
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
                # a * b first: this product is symmetric bit for bit, so (i, j) and (j, i) get the same score.
                total += h[n + f * self.rank + k] * (a[start + k] * b[start + k])
            s[y] = total

    def latent_base_shared(self, a: Array, b: Array, s: Array) -> None:
        pass

    def latent_slopes(self, h: Array, g: Array, slope: Array) -> None:
        n, latent = free_labels(self), slope[latent_start(self) :]
        for k in range(latent.size):
            latent[k] = 0
        for f in range(n):
            gy, weights = g[f + (f >= self.reference)], h[n + f * self.rank : n + (f + 1) * self.rank]
            for k in range(latent.size):
                latent[k] += gy * weights[k]

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

    def latent_partner_row(self, b: Array, v: Array, j: int) -> None:
        _same_place(b, v, j)

    def latent_partner_col(self, a: Array, v: Array, j: int) -> None:
        _same_place(a, v, j)

    def latent_partner_shared(self, a: Array, b: Array, v: Array, j: int) -> None:
        start, n = latent_start(self), free_labels(self)
        for f in range(n):
            for k in range(self.rank):
                v[n + f * self.rank + k, j] = a[start + k] * b[start + k]


class Directed(NamedTuple):
    """Nodes with weights as a row, as a column and in both roles: alpha beta^T + gamma gamma^T.

        latent_y(r, c) = out_y(r) . in_y(c) + node_y(r) . node_y(c),    out, in, node in R^{free labels x rank}

    Menon & Elkan 2010, section 4.4.
    """

    n_labels: int
    reference: int
    n_bias: int
    one_set: bool
    rank: int

    def latent_shapes(self) -> tuple[Shapes, Shapes, Shapes]:
        shape = (free_labels(self), self.rank)
        return {"out_factors": shape, "in_factors": shape, "node_factors": shape}, {}, {}

    def repeated(self, n: int) -> "Directed":
        return self._replace(rank=n * self.rank)

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
            for k in range(f * self.rank, (f + 1) * self.rank):
                total += a[out + k] * b[out + size + k] + a[out + 2 * size + k] * b[out + 2 * size + k]
            s[y] = total

    def latent_base_shared(self, a: Array, b: Array, s: Array) -> None:
        latent_score(self, a, b, a, s)

    def latent_slopes(self, h: Array, g: Array, slope: Array) -> None:
        n = free_labels(self)
        for role in range(3):
            _own_slopes(self, (self.n_bias + role * self.rank) * n, self.rank, g, slope)

    def latent_pull_shared(self, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
        pass

    def latent_weights(self, h: Array, first: int, E: Array) -> None:
        n = free_labels(self)
        for role in range(3):
            _own_label(self, first + role * n, E)

    def latent_partner_row(self, b: Array, v: Array, j: int) -> None:
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for k in range(size):
            v[out + k, j] = b[out + size + k]
            v[out + size + k, j] = 0
            v[out + 2 * size + k, j] = b[out + 2 * size + k]

    def latent_partner_col(self, a: Array, v: Array, j: int) -> None:
        out = self.n_bias * free_labels(self)
        size = free_labels(self) * self.rank
        for k in range(size):
            v[out + k, j] = 0
            v[out + size + k, j] = a[out + k]
            v[out + 2 * size + k, j] = a[out + 2 * size + k]

    def latent_partner_shared(self, a: Array, b: Array, v: Array, j: int) -> None:
        pass


def _both_sides(shape: tuple[int, ...], one_set: bool) -> tuple[Shapes, Shapes]:
    """Return the shapes of the factors of a row (or node) and of a column."""
    return ({"node_factors": shape}, {}) if one_set else ({"row_factors": shape}, {"col_factors": shape})


def _cosines(n: int, n_terms: int) -> Array:
    """Return discrete cosines (n, n_terms): orthogonal columns of mean square one."""
    label, i = np.ogrid[:n, 1 : n_terms + 1]
    return np.asarray(np.sqrt(2) * np.cos(np.pi * (label + 0.5) * i / n))


def free_labels(spec: Structure) -> int:
    """Return the number of labels that have weights."""
    return spec.n_labels - (spec.reference < spec.n_labels)


def with_reference(spec: Structure, free: Array, value: Any = 0) -> Array:
    """Insert `value` for the reference, if there is one: (n, free labels, ...) -> (n, n_labels, ...)."""
    return np.insert(free, spec.reference, value, axis=1) if spec.reference < spec.n_labels else free


def without_reference(spec: Structure, labels: Array) -> Array:
    """Remove the reference, if there is one: (n, n_labels, ...) -> (n, free labels, ...)."""
    return np.delete(labels, spec.reference, axis=1) if spec.reference < spec.n_labels else labels


def latent_start(spec: Structure) -> int:
    """Return the index at which the latent part of a block with one bias or none starts."""
    return free_labels(spec) if spec.n_bias == 1 else 0


def turned_entries(spec: Structure, size: int) -> Array:
    """Return the order of the `size` entries of a block under which a row becomes a column, and a column a row.

    Only a node of `Directed` has entries for either role, [alpha | beta | out | in | node].
    """
    entries = np.arange(size)
    if isinstance(spec, Directed):
        for first, width in (
            (0, spec.n_bias // 2 * free_labels(spec)),
            (spec.n_bias * free_labels(spec), free_labels(spec) * spec.rank),
        ):
            entries[first : first + 2 * width] = np.roll(entries[first : first + 2 * width], width)
    return entries


def col_bias(spec: Structure) -> int:
    """Return the index of a column's first bias in its block: with two biases a node's bias as a column is second."""
    return free_labels(spec) if spec.n_bias == 2 else 0


def score(spec: Structure, a: Array, b: Array, h: Array, s: Array) -> None:
    """s += scores of the dyad with blocks a, b and shared block h; s : (n_labels,)."""
    first = col_bias(spec)
    for f in range(free_labels(spec)):
        y = f + (f >= spec.reference)
        total = s[y] + h[f]
        if spec.n_bias:
            total += a[f] + b[first + f]
        s[y] = total
    latent_score(spec, a, b, h, s)


def base_row(spec: Structure, b: Array, h: Array, s: Array, j: int) -> None:
    """s[:, j] += scores of a dyad whose row has a block of zeros: the part that does not depend on the row."""
    _add_bias(spec, h, 0, s, j)
    if spec.n_bias:
        _add_bias(spec, b, col_bias(spec), s, j)


def base_col(spec: Structure, a: Array, h: Array, s: Array, j: int) -> None:
    """s[:, j] += scores of a dyad whose column has a block of zeros."""
    _add_bias(spec, h, 0, s, j)
    if spec.n_bias:
        _add_bias(spec, a, 0, s, j)


def base_shared(spec: Structure, a: Array, b: Array, s: Array, j: int) -> None:
    """s[:, j] += scores of a dyad whose shared block is zero."""
    if spec.n_bias:
        _add_bias(spec, a, 0, s, j)
        _add_bias(spec, b, col_bias(spec), s, j)
    latent_base_shared(spec, a, b, s[:, j])


def _add_bias(spec: Structure, x: Array, start: int, s: Array, j: int) -> None:
    """s[:, j] += the biases of the free labels, entries start, start + 1, ... of x."""
    for f in range(free_labels(spec)):
        s[f + (f >= spec.reference), j] += x[start + f]


def slopes(spec: Structure, h: Array, g: Array, slope: Array) -> None:
    """WRITE slope_k = sum_y E[y, group of k] g_y for every entry k of an entity's block; see `label_weights`.

    The gradient by entry k is slope_k v_k. Slopes are the same for a row and a column, only the factors v differ.
    """
    for role in range(spec.n_bias):
        for f in range(free_labels(spec)):
            slope[role * free_labels(spec) + f] = g[f + (f >= spec.reference)]
    latent_slopes(spec, h, g, slope)


def _own_slopes(spec: Structure, start: int, width: int, g: Array, slope: Array) -> None:
    """WRITE g of each free label to its group of `width` entries; the first group starts at entry `start`."""
    for f in range(free_labels(spec)):
        gy = g[f + (f >= spec.reference)]
        group = slope[start + f * width : start + (f + 1) * width]
        for k in range(group.size):
            group[k] = gy


def pull_row(spec: Structure, b: Array, h: Array, g: Array, slope: Array, v: Array, ga: Array) -> None:
    """ga += (d s / d a)^T g; `slope` : (size,), `v` : (size, 1) scratch."""
    slopes(spec, h, g, slope)
    partner_row(spec, b, v, 0)
    for k in range(ga.size):
        ga[k] += slope[k] * v[k, 0]


def pull_col(spec: Structure, a: Array, h: Array, g: Array, slope: Array, v: Array, gb: Array) -> None:
    """gb += (d s / d b)^T g; `slope` : (size,), `v` : (size, 1) scratch."""
    slopes(spec, h, g, slope)
    partner_col(spec, a, v, 0)
    for k in range(gb.size):
        gb[k] += slope[k] * v[k, 0]


def pull_shared(spec: Structure, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
    """gh += (d s / d h)^T g."""
    _pull_bias(spec, g, gh)
    latent_pull_shared(spec, a, b, h, g, gh)


def _pull_bias(spec: Structure, g: Array, out: Array) -> None:
    """out += g of the free labels, in its first entries."""
    for f in range(free_labels(spec)):
        out[f] += g[f + (f >= spec.reference)]


def _own_label(spec: Structure, first: int, E: Array) -> None:
    """WRITE weight one to E for groups first, first + 1, ..., each with its own free label."""
    for f in range(free_labels(spec)):
        E[f + (f >= spec.reference), first + f] = 1


def _same_place(other: Array, v: Array, j: int) -> None:
    """WRITE the partner's latent weights: each entry is multiplied by the partner's entry of the same index."""
    # Biases too: a copy of all entries is faster than one of most of them.
    for k in range(other.size):
        v[k, j] = other[k]


def _bias_factors(spec: Structure, n_bias: int, start: int, v: Array, j: int) -> None:
    """WRITE the factors of a block's `n_bias` biases per free label: one from entry `start` on, zero for the others."""
    n = free_labels(spec)
    for k in range(n_bias * n):
        v[k, j] = start <= k < start + n


def label_weights(spec: Structure, h: Array, E: Array) -> None:
    """WRITE the label weights E (n_labels, n_groups) of an entity's block.

    The scores are linear in the block x of a row (or a column, or a shared block), and their Jacobian factors into

        d s_y / d x_k = E[y, group of k] v_k.

    E depends on the label and the shared block, v on the partner (see `partner_row`). Each bias is a group of its own.
    The latent part is cut into groups of consecutive entries, of the width that `group_widths` returns. For a
    self-link, v is the sum over both roles.
    """
    E[:] = 0
    for role in range(spec.n_bias):
        _own_label(spec, role * free_labels(spec), E)
    first = spec.n_bias * free_labels(spec)
    if first < E.shape[1]:
        latent_weights(spec, h, first, E)


def shared_label_weights(spec: Structure, E: Array) -> None:
    """WRITE the label weights E of a shared block: each group belongs to one label, with weight one."""
    E[:] = 0
    for first in range(0, E.shape[1], free_labels(spec)):
        _own_label(spec, first, E)


def partner_row(spec: Structure, b: Array, v: Array, j: int) -> None:
    """WRITE v[k, j] = the factor v_k by which the column multiplies entry k of a row's block; see `label_weights`."""
    latent_partner_row(spec, b, v, j)
    _bias_factors(spec, spec.n_bias, 0, v, j)


def partner_col(spec: Structure, a: Array, v: Array, j: int) -> None:
    """WRITE v[k, j] = the factor v_k by which the row multiplies entry k of a column's block."""
    latent_partner_col(spec, a, v, j)
    _bias_factors(spec, spec.n_bias, col_bias(spec), v, j)


def partner_shared(spec: Structure, a: Array, b: Array, v: Array, j: int) -> None:
    """WRITE v[k, j] = the factor v_k by which row and column multiply entry k of the shared block."""
    latent_partner_shared(spec, a, b, v, j)
    _bias_factors(spec, 1, 0, v, j)


def latent_score(spec: Structure, a: Array, b: Array, h: Array, s: Array) -> None:
    spec.latent_score(a, b, h, s)


def latent_base_shared(spec: Structure, a: Array, b: Array, s: Array) -> None:
    spec.latent_base_shared(a, b, s)


def latent_slopes(spec: Structure, h: Array, g: Array, slope: Array) -> None:
    spec.latent_slopes(h, g, slope)


def latent_pull_shared(spec: Structure, a: Array, b: Array, h: Array, g: Array, gh: Array) -> None:
    spec.latent_pull_shared(a, b, h, g, gh)


def latent_weights(spec: Structure, h: Array, first: int, E: Array) -> None:
    spec.latent_weights(h, first, E)


def latent_partner_row(spec: Structure, b: Array, v: Array, j: int) -> None:
    spec.latent_partner_row(b, v, j)


def latent_partner_col(spec: Structure, a: Array, v: Array, j: int) -> None:
    spec.latent_partner_col(a, v, j)


def latent_partner_shared(spec: Structure, a: Array, b: Array, v: Array, j: int) -> None:
    spec.latent_partner_shared(a, b, v, j)


def build(name: str, n_labels: int, reference: int, bias: bool, rank: int, n_terms: int | None) -> Structure:
    """Build a structure by its name in `STRUCTURES`, which also says whether it has one id set or two."""
    kind, one_set = STRUCTURES[name]
    n_bias = int(bias) * (2 if kind is Directed else 1)
    fields = (n_labels, reference, n_bias, one_set, rank, *(() if n_terms is None else (n_terms,)))
    structure: Structure = kind(*fields)
    return structure


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
"""Structures by the names that users give: the class, and whether rows and columns are one id set."""


def is_undirected(kind: Any, one_set: bool) -> bool:
    """Whether (i, j) and (j, i) are the same pair: nodes of one id set with the same weights in both roles."""
    return one_set and kind is not Directed


COMPOSED = (
    free_labels, latent_start, col_bias, score, base_row, base_col, base_shared, _add_bias,
    slopes, _own_slopes, pull_row, pull_col, pull_shared, _pull_bias,
    label_weights, shared_label_weights, partner_row, partner_col, partner_shared,
    _own_label, _bias_factors, _same_place,
)  # fmt: skip
"""Kernels shared by all structures; an engine compiles them as they are."""

SUMS = (_basis,)
"""Kernels that return a sum; an engine may add its terms in any order."""

DISPATCHED = (
    latent_score, latent_base_shared, latent_slopes, latent_pull_shared,
    latent_weights, latent_partner_row, latent_partner_col, latent_partner_shared,
)  # fmt: skip
"""Kernels that each structure implements; an engine resolves them by the type of ``spec``."""
