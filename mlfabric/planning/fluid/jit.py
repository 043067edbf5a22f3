"""How kernels are compiled: on the first call, and kept on disk if possible.

numba compiles again when the function's own file has changed, but would run machine code with an old version of a
function, tuple or constant of another file. So it compares a digest instead: of the function's file and, recursively,
of every file of this package that is imported there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import numba
from numba import types

__all__ = ["compiled", "entry", "inner", "is_cold", "is_kept", "lean", "plain", "set_warm"]

_ROOT = __name__.partition(".")[0]
_PLANNER = ".".join(__name__.split(".")[:-2]) or _ROOT
_IMPORT = re.compile(rf"^\s*(?:from|import) ({_ROOT}[.\w]*)(?: import (\([\w\s,]*|[\w ,]*))?", re.MULTILINE)

_kernels: list[Any] = []
_entries: set[Callable[..., Any]] = set()


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that Python calls, below ``compiled`` or ``lean``; all others are called by kernels only.

    Machine code that unpacks Python's arguments, of which most are tuples of arrays, took a third of the time that it
    takes to compile all kernels. So only entries have it.
    """
    _entries.add(function)
    return function


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of numbers and arrays on its first call, and keep the result on disk if possible."""
    return _declare(function)


def lean(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do as ``compiled`` for a function that works only on its arguments: it makes no array and no list, takes no list,
    and returns numbers.

    Its arrays are then not counted as in use: counting takes longer than a short kernel's work.
    """
    return _declare(function, _nrt=False)


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do as ``lean`` for a function that is inlined into each of its callers.

    A call passes every word of every array, which takes longer than a small function's work.
    """
    return _declare(function, _nrt=False, forceinline=True)


def _declare(function: Callable[..., Any], **options: bool) -> Callable[..., Any]:
    declare: Any = numba.njit  # its types do not know all options
    is_entry = function in _entries
    options |= {"no_cfunc_wrapper": True, "no_cpython_wrapper": not is_entry}
    try:
        found = declare(cache=True, **options)(function)
        # What numba compares (by default the file's time and size); there is no public way to change it.
        found._cache._cache_file._source_stamp = _digest(function.__module__)
        _forget_unreadable(found._cache._cache_file)
    except (RuntimeError, AttributeError):
        found = declare(**options)(function)
    _compile_once(found)
    if not is_entry:
        _refuse_python(found)
    _kernels.append(found)
    kernel: Callable[..., Any] = found
    return kernel


def _forget_unreadable(kept: Any) -> None:
    """Compile anew if what is kept is of an earlier version, with a type that has another place or name now."""
    load = kept._load_index

    def load_if_readable() -> Any:
        try:
            return load()
        except (ImportError, AttributeError):
            return {}

    kept._load_index = load_if_readable


def _refuse_python(kernel: Any) -> None:
    """Raise a TypeError where Python calls a function that is no entry; numba would jump to address 0."""

    def refuse(*_arguments: object, **_named: object) -> None:
        raise TypeError(f"{kernel.__name__} is called by kernels only; to call it from Python, mark it as an entry")

    kernel._insert = lambda *_: None  # what a call from Python would find
    kernel._compile_for_args = refuse


def plain(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function as Python runs it, and all functions that it calls by their names; none is compiled."""
    function: Any = _plain_names(kernel.__module__)[kernel.__name__]
    return cast("Callable[..., Any]", function)


@cache
def _plain_names(module: str) -> dict[str, Any]:
    """The names of a module, with Python functions instead of compiled ones."""
    names = dict(vars(sys.modules[module]))
    for name, kernel in [(name, one) for name, one in names.items() if hasattr(one, "py_func")]:
        is_own = kernel.__module__ == module
        found = FunctionType(kernel.py_func.__code__, names, name) if is_own else plain(kernel)
        names[name] = found
    return names


def _compile_once(kernel: Any) -> None:
    """Treat all constants of a type as that type; numba would compile a function for each constant."""
    plain: Callable[[Any], Any] = types.unliteral
    find = getattr(kernel, "get_call_template", None)
    if find is not None:
        kernel.get_call_template = lambda args, kws: find(
            tuple(map(plain, args)), {name: plain(kind) for name, kind in kws.items()}
        )


def is_cold() -> bool:
    """Say whether functions of the package must be compiled: until ``set_warm`` was called with these sources."""
    mark = _mark()
    return mark is None or not mark.exists()


def is_kept() -> bool:
    """Say whether there is a place on disk for what is compiled."""
    return _mark() is not None


def set_warm() -> None:
    """Remember on disk that all functions of this version are compiled, if there is a place for it."""
    mark = _mark()
    if mark is not None:
        for other in mark.parent.glob("kernels-*.warm"):
            other.unlink(missing_ok=True)
        mark.touch()


def _mark() -> Path | None:
    """The file that stands for this version of all functions of the planner that were declared so far."""
    kernels = [kernel for kernel in _kernels if kernel.py_func.__module__.startswith(f"{_PLANNER}.")]
    folder = next((kernel.stats.cache_path for kernel in kernels if kernel.stats.cache_path), None)
    parts = [numba.__version__, sys.version, *sorted({_digest(kernel.py_func.__module__) for kernel in kernels})]
    return Path(folder) / f"kernels-{sha256(repr(parts).encode()).hexdigest()[:16]}.warm" if folder else None


@cache
def _digest(module: str) -> str:
    """Digest the sources of a module and of all that it needs of this package."""
    parts = (name.encode() + b"\0" + _source(name) + b"\0" for name in sorted(_needed(module)))
    return sha256(b"".join(parts)).hexdigest()


def _needed(module: str) -> set[str]:
    found, todo = set[str](), [module]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += _imported(name)
    return found


def _imported(module: str) -> Iterator[str]:
    for name, members in _IMPORT.findall(_source(module).decode()):
        for candidate in (name, *(f"{name}.{member}" for member in re.findall(r"\w+", members))):
            if candidate in sys.modules:
                yield candidate


@cache
def _source(module: str) -> bytes:
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).read_bytes() if file else b""
