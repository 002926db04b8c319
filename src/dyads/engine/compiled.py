"""Binds the kernels of `model` to numba: `kernel` compiles a pass over dyads, with a disk cache that can be trusted.

Numba keys its cache on the file of the decorated function alone, and numbers its data files, so that two processes
which save at once may each read the other's code. Here the key is a hash of every kernel source, and a data file is
named after what is in it. Where no folder is writable the kernels are compiled anew, with one warning.
"""

import functools
import hashlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import caching
from numba.core.typing import templates
from numba.extending import register_jitable

from dyads import metrics
from dyads.model import loss, objective, parameters, streams, structure


def _sources_hash() -> str:
    """A hash of all files with kernels, or with constants that kernels read."""
    sources = [
        Path(inspect.getfile(module)).read_bytes()
        for module in (structure, loss, objective, streams, parameters, metrics)
    ]
    engine = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    sources += [source for source in engine if b"dyads.engine.compiled" in source or b"def kernel(" in source]
    return hashlib.sha256(b"".join(sources)).hexdigest()


_STAMP = _sources_hash()


class _Stamped:
    def get_source_stamp(self) -> str:
        return _STAMP


class _GivenFolder(_Stamped, caching.UserProvidedCacheLocator):
    pass


class _BesideSource(_Stamped, caching.InTreeCacheLocator):
    pass


class _UserFolder(_Stamped, caching.UserWideCacheLocator):
    pass


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = (_GivenFolder, _BesideSource, _UserFolder)


class _CacheFile(caching.IndexDataCacheFile):
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
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        plain: Any = self._cache_file
        self._cache_file: Any = _CacheFile(plain._cache_path, self._impl.filename_base, plain._source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            # A damaged file of the cache may fail in any way, and is written anew.
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            _warn_uncached()


OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "arcp"}, "_nrt": False}
"""A division that may raise is not vectorised; counting references costs a fifth."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a pass over dyads: no GIL, cached on disk, specialised by the types of its specs and arrays.

    A kernel allocates nothing (its scratch vectors are arguments) and so counts no references.
    """
    compiled = numba.njit(nogil=True, **OPTIONS)(function)
    try:
        compiled._cache = _Cache(function)
    except (RuntimeError, OSError):
        _warn_uncached()
    return compiled


def _bind_inlined(function: Callable[..., Any], choose: Callable[..., Any]) -> None:
    """Put what `choose` gives for the types of the arguments in the place of every call of `function` in a kernel.

    Numba's `overload` does this too, but compiles what it inlines by itself as well, which takes a fourth of the time
    and is never used.
    """
    template = templates.make_overload_template(function, choose, OPTIONS, strict=False, inline="always")
    template._get_jit_decorator = _uncompiled
    templates.infer(template)
    templates.infer_global(function, numba.types.Function(template))


def _uncompiled(template: Any) -> Callable[..., Any]:
    """What numba makes a dispatcher of an inlined function with: one that tells its types, and is not compiled."""
    jit = templates._OverloadFunctionTemplate._get_jit_decorator(template)

    def decorator(error_model: str, fastmath: set[str], _nrt: bool) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Any:
            dispatcher = jit(error_model=error_model, fastmath=fastmath, _nrt=_nrt)(function)
            dispatcher._can_compile = False
            return dispatcher

        return decorate

    return decorator


jitable = register_jitable
"""A function that kernels may call, compiled with them; called from Python, it stays plain Python."""


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, put in the place of its call: for loops over dyads, where a call with bundles costs a twentieth.

    To inline everything makes sweeps a fifth faster still, and compilation three times as long.
    """
    _bind_inlined(function, lambda *_: function)
    return function


def _warn_uncached() -> None:
    if not _warned:
        _warned.append(True)
        warnings.warn(
            "Compiled kernels cannot be written to disk, so each process compiles them anew (some seconds). "
            "Set NUMBA_CACHE_DIR to a writable folder.",
            stacklevel=2,
        )


_warned: list[bool] = []


def by_type(dispatcher: Callable[..., Any]) -> Callable[..., Any]:
    """Resolve `dispatcher(spec, ...)` at compile time to the method of that name of the spec's class."""
    name = dispatcher.__name__

    def choose(spec: Any, *_: Any) -> Any:
        return getattr(spec.instance_class, name) if isinstance(spec, numba.types.BaseNamedTuple) else None

    _bind_inlined(dispatcher, choose)
    return dispatcher


def read_if_present(absent: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate what reads an array, its first argument; `absent` is called where that is `Absent()`, a tuple."""

    def decorate(present: Callable[..., Any]) -> Any:
        @functools.wraps(present)
        def read(array: Any, *others: Any) -> Any:
            return (absent if isinstance(array, tuple) else present)(array, *others)

        _bind_inlined(read, lambda array, *_: absent if isinstance(array, numba.types.BaseTuple) else present)
        return read

    return decorate


for _function in (*structure.COMPOSED, *loss.COMPOSED, *objective.COMPOSED, *streams.COMPOSED):
    jitable(_function)
for _dispatched in (*structure.DISPATCHED, *loss.DISPATCHED):
    by_type(_dispatched)
