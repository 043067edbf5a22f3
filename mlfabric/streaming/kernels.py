"""Adding float32 and float64 in one pass over the memory, which also says whether the numbers are finite. Pure.

Looking first and adding then reads an input twice, and costs half as much again. Compiled when this module is imported,
by numba, which keeps the result on disk: nobody who receives has to wait for a compiler.

In the numbers' bits, without the sign, NaN and Inf are what is not below Inf; and integers, unlike floating-point
numbers, have a largest one that the processor finds for many at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import from_dtype, types

__all__ = ["add", "is_finite"]

Kernel = Callable[..., Any]


def add(target: np.ndarray, source: np.ndarray, coefficient: float, *, fresh: bool) -> bool:
    """Add ``coefficient * source`` to ``target``, or write it there; tell whether all of ``source`` is finite.

    The product is rounded before it is added.

    Args:
        target, source: as long as each other, one element or more of the same dtype, float32 or float64.
        coefficient: finite.
        fresh: what lies in ``target`` is overwritten.
    """
    kind = _KINDS[source.dtype]
    largest = kind.add(target, source, source.view(kind.bits), coefficient, fresh)
    return bool(largest < kind.inf)


def is_finite(source: np.ndarray) -> bool:
    """Tell whether one element or more, float32 or float64, are all finite."""
    kind = _KINDS[source.dtype]
    return bool(kind.largest(source.view(kind.bits)) < kind.inf)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What there is for one dtype.

    Args:
        bits: integers as wide as its numbers.
        inf: the bits of Inf.
    """

    bits: np.dtype[Any]
    inf: int
    add: Kernel
    largest: Kernel


def _compiled(signature: Any) -> Callable[[Kernel], Kernel]:
    declare: Any = numba.njit  # its types do not know all options

    def compiled(function: Kernel) -> Kernel:
        try:
            kernel: Kernel = declare(signature, cache=True)(function)
        except RuntimeError:  # no place on disk for the result
            kernel = declare(signature)(function)
        return kernel

    return compiled


def _many(kind: Any) -> Any:
    return types.Array(kind, 1, "C", aligned=False)  # a sum may lie anywhere in its user's memory


def _kind(number: Any, unsigned: Any) -> _Kind:
    """Compile for one dtype; casting keeps numba from taking 64 bits for any integer, half as many at a time."""
    bits = np.dtype(unsigned)
    floats, integers = from_dtype(np.dtype(number)), from_dtype(bits)
    without_sign = unsigned(np.iinfo(bits).max >> 1)

    @_compiled(integers(_many(floats), _many(floats), _many(integers), floats, types.boolean))
    def add(target: Any, source: Any, bits: Any, coefficient: Any, fresh: bool) -> Any:
        largest = unsigned(0)
        if fresh:
            for i in range(target.size):
                largest = max(largest, unsigned(bits[i] & without_sign))
                target[i] = coefficient * source[i]
        else:
            for i in range(target.size):
                largest = max(largest, unsigned(bits[i] & without_sign))
                target[i] += coefficient * source[i]
        return largest

    @_compiled(integers(_many(integers)))
    def largest(bits: Any) -> Any:
        found = unsigned(0)
        for i in range(bits.size):
            found = max(found, unsigned(bits[i] & without_sign))
        return found

    return _Kind(bits, int(np.array(np.inf, number).view(bits)[()]), add, largest)


_KINDS = {
    np.dtype(np.float32): _kind(np.float32, np.uint32),
    np.dtype(np.float64): _kind(np.float64, np.uint64),
}
