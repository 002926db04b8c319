"""Small kernels on vectors, compiled into the passes that call them."""

from dyads.engine.compiled import inlined


@inlined
def begin(s, S, i):  # type: ignore[no-untyped-def]
    """s = S[i], or zero where S is None."""
    if S is None:
        s[:] = 0
    else:
        for y in range(s.size):
            s[y] = S[i, y]


@inlined
def add(x, y):  # type: ignore[no-untyped-def]
    """x += y."""
    for k in range(x.size):
        x[k] += y[k]


@inlined
def scale(x, factor):  # type: ignore[no-untyped-def]
    """x *= factor."""
    for k in range(x.size):
        x[k] *= factor
