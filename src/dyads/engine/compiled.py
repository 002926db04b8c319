"""Binds the kernels of `model` to numba; `kernel` compiles a pass over dyads and caches it safely on disk.

Numba's own cache is not safe here, for two reasons. Its key covers the file of the decorated function only. And it
numbers its data files, so two processes that save at the same time may read each other's code. Here the key is a hash
of all kernel sources, and a data file is named after that hash and the types it was compiled for. If no folder is
writable, each process compiles the kernels, with one warning.
"""

import functools
import hashlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import caching, types
from numba.core.registry import cpu_target
from numba.core.typing import templates
from numba.extending import intrinsic, overload, register_jitable
from numba.np.arrayobj import make_array, populate_array
from numba.np.linalg import _BLAS

from dyads import metrics
from dyads.model import loss, objective, parameters, streams, structure

Array = np.ndarray[Any, Any]


BOUND: dict[Any, Callable[..., Any]] = {}
"""What kernels call -> a function of the argument types that returns the implementation; other engines bind it too."""


def _sources_hash() -> str:
    """Return a hash of all source files with kernels, or with constants that kernels read."""
    sources = [
        Path(inspect.getfile(module)).read_bytes()
        for module in (structure, loss, objective, streams, parameters, metrics)
    ]
    engine = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    sources += [source for source in engine if b"dyads.engine.compiled" in source or b"def kernel(" in source]
    return hashlib.sha256(b"".join(sources)).hexdigest()


SOURCES = _sources_hash()
"""Hash of all sources of kernels: equal on machines that compile the same."""


class _Stamped:
    """Makes a cache locator stamp entries with the hash of all kernel sources."""

    def get_source_stamp(self) -> str:
        return SOURCES


class _GivenFolder(_Stamped, caching.UserProvidedCacheLocator):
    pass


class _BesideSource(_Stamped, caching.InTreeCacheLocator):
    pass


class _UserFolder(_Stamped, caching.UserWideCacheLocator):
    pass


class _Implementation(caching.CompileResultCacheImpl):
    """Looks for a cache folder in this order: NUMBA_CACHE_DIR, beside the source, the user's own."""

    _locator_classes = (_GivenFolder, _BesideSource, _UserFolder)


class _CacheFile(caching.IndexDataCacheFile):
    """Names a data file after its key, so that processes that save at the same time do not interfere."""

    def save(self, key: Any, data: Any) -> None:
        try:
            overloads = self._load_index()
        except Exception:
            overloads = {}
        content = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()[:24]
        name = self._index_name.replace(".nbi", f".{content}.nbc")
        self._save_data(name, data)
        self._save_index({**overloads, key: name})


class _Cache(caching.FunctionCache):
    """Numba's cache of a function with the key and the file names of this module; a damaged file is a cache miss."""

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        plain: Any = self._cache_file
        self._cache_file: Any = _CacheFile(plain._cache_path, self._impl.filename_base, plain._source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            # Reading a damaged cache file may raise anything; it is compiled and written again.
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            _warn_uncached()


OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "arcp"}, "_nrt": False}
"""Compiler options of all kernels.

``error_model="numpy"``: a division that may raise is not vectorised. ``fastmath``: only contraction (fused
multiply-add) and division by reciprocals. ``_nrt=False``: reference counting would cost a fifth of the time.
"""

REDUCTION: dict[str, Any] = {**OPTIONS, "fastmath": {*OPTIONS["fastmath"], "reassoc"}}
"""Compiler options of sums whose terms may be added in any order."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a pass over dyads: without the GIL, cached on disk, specialised by the types of specs and arrays.

    A kernel allocates no heap memory, so it needs no reference counting: its scratch arrays are arguments or lie on the
    stack (`stack_array`).
    """
    compiled = numba.njit(nogil=True, **OPTIONS)(function)
    BOUND[compiled] = lambda *_: function
    try:
        compiled._cache = _Cache(function)
    except (RuntimeError, OSError):
        _warn_uncached()
    return compiled


def reduction(function: Callable[..., Any]) -> Any:
    """Compile a sum over an array, called by kernels; its terms may be added in another order, so that it vectorises.

    The order depends on the length of the array and on the processor, not on who computes the sum.
    """
    compiled = numba.njit(nogil=True, **REDUCTION)(function)
    BOUND[compiled] = lambda *_: function
    return compiled


_ONE = np.ones(1)


def add_product(
    left: Array, n_left: int, right: Array, first: int, n_right: int, n: int, out: Array, row: int, column: int
) -> None:
    """ADD left[:n_left, :n] right[first:first + n_right, :n]^T to `out`, from entry (row, column) on, by BLAS."""
    out[row : row + n_left, column : column + n_right] += left[:n_left, :n] @ right[first : first + n_right, :n].T


@overload(add_product)  # type: ignore[untyped-decorator]
def _add_product(
    left: Any, n_left: Any, right: Any, first: Any, n_right: Any, n: Any, out: Any, row: Any, column: Any
) -> Any:
    # Numba's own matrix product allocates its result; its wrapper of BLAS does not.
    blas = _BLAS().numba_xxgemm(left.dtype)
    kind, transposed, plain = ord("d"), ord("t"), ord("n")

    def implementation(
        left: Any, n_left: Any, right: Any, first: Any, n_right: Any, n: Any, out: Any, row: Any, column: Any
    ) -> None:
        # BLAS stores matrices by column: it sees out^T += right left^T.
        blas(
            kind, transposed, plain, n_right, n_left, n, _ONE.ctypes, right[first].ctypes, right.shape[1],
            left.ctypes, left.shape[1], _ONE.ctypes, out[row, column:].ctypes, out.shape[1],
        )  # fmt: skip

    return implementation


def _bind_inlined(function: Callable[..., Any], choose: Callable[..., Any]) -> None:
    """Inline `choose(types of the arguments)` in place of every call of `function` in a kernel.

    Numba's `overload` does the same, but also compiles each inlined function on its own. That code is never used and
    takes a quarter of the compile time. It also binds every target: numba-cuda would then inline what was compiled for
    the CPU, which it cannot compile.
    """
    BOUND[function] = choose
    template = templates.make_overload_template(function, choose, OPTIONS, strict=False, inline="always")
    template._get_jit_decorator = _uncompiled
    cpu_target.typing_context.insert_user_function(function, template)


def _uncompiled(template: Any) -> Callable[..., Any]:
    """Return a decorator that makes a dispatcher for type inference only, which is never compiled."""
    jit = templates._OverloadFunctionTemplate._get_jit_decorator(template)

    def decorator(error_model: str, fastmath: set[str], _nrt: bool) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Any:
            dispatcher = jit(error_model=error_model, fastmath=fastmath, _nrt=_nrt)(function)
            dispatcher._can_compile = False
            return dispatcher

        return decorate

    return decorator


def jitable(function: Callable[..., Any], always_inlined: bool = False) -> Callable[..., Any]:
    """Decorate a function that kernels may call: compiled inside kernels, plain Python when called from Python.

    `always_inlined` : whether LLVM inlines every call of it; otherwise it decides by length. Numba compiles it once.
    """
    BOUND[function] = lambda *_: function
    register_jitable(forceinline=always_inlined)(function)
    return function


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `jitable`, but inlined at each call.

    Used in loops over dyads, where calls with bundles cost a twentieth of the time. Inlining everything would make
    sweeps another fifth faster, but compilation three times as long.
    """
    _bind_inlined(function, lambda *_: function)
    return function


def stack_array(n: int, m: int, like: Array) -> Array:
    """Return an uninitialised array (n, m) of the type of `like`, for a few numbers that a loop over dyads writes.

    In a kernel it lies on the stack: the compiler then knows that no other array overlaps it, and keeps its entries in
    registers. The kernel must call this before its loops, since each call takes new memory until the kernel ends.
    """
    return np.empty((n, m), like.dtype)


@intrinsic  # type: ignore[untyped-decorator]
def _stack_array(typing_context: Any, n: Any, m: Any, like: Any) -> Any:
    kind = types.Array(like.dtype, 2, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entry = context.get_data_type(like.dtype)
        size = context.get_constant(types.intp, context.get_abi_sizeof(entry))
        shape = [context.cast(builder, x, kind, types.intp) for x, kind in zip(arguments, (n, m), strict=False)]
        data = builder.alloca(entry, size=builder.mul(*shape))
        array = make_array(kind)(context, builder)
        strides = [builder.mul(size, shape[1]), size]
        populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
        return array._getvalue()

    return kind(n, m, like), generate


_bind_inlined(stack_array, lambda *_: lambda n, m, like: _stack_array(n, m, like))


def _warn_uncached() -> None:
    """Warn, once per process, that kernels cannot be cached."""
    if not _warned:
        _warned.append(True)
        warnings.warn(
            "Compiled kernels cannot be cached on disk, so each process compiles them again. "
            "Set NUMBA_CACHE_DIR to a writable folder.",
            stacklevel=2,
        )


_warned: list[bool] = []


def by_type(dispatcher: Callable[..., Any]) -> Callable[..., Any]:
    """Resolve `dispatcher(spec, ...)` at compile time to the method of the same name of the spec's class."""
    name = dispatcher.__name__

    def choose(spec: Any, *_: Any) -> Any:
        return getattr(spec.instance_class, name) if hasattr(spec, "instance_class") else None

    _bind_inlined(dispatcher, choose)
    return dispatcher


def read_if_present(absent: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that reads an array, its first argument; `absent` replaces it if that is `Absent()`.

    The type decides: `Absent()` is a tuple, an array is not.
    """

    def decorate(present: Callable[..., Any]) -> Any:
        @functools.wraps(present)
        def read(array: Any, *others: Any) -> Any:
            return (absent if isinstance(array, tuple) else present)(array, *others)

        _bind_inlined(read, lambda array, *_: absent if hasattr(array, "instance_class") else present)
        return read

    return decorate


for _sum in structure.SUMS:
    BOUND[_sum] = lambda *_, implementation=_sum: implementation
    register_jitable(**REDUCTION)(_sum)
for _function in (*structure.COMPOSED, *loss.COMPOSED, *objective.COMPOSED, *streams.COMPOSED):
    # A call with several arrays costs as much as what is done for a dyad, so kernels of structures are always inlined.
    # Those of losses are called once a tile, and to inline them takes ten seconds of compilation.
    jitable(_function, always_inlined=_function in structure.COMPOSED)
for _dispatched in (*structure.DISPATCHED, *loss.DISPATCHED):
    by_type(_dispatched)
for _either, _single, _double, _ in loss.BY_PRECISION:
    _bind_inlined(_either, lambda x, single=_single, double=_double: single if x == types.float32 else double)
