"""The loops that add float32 and float64, compiled when this module is imported; the result is kept on disk. Pure.

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

__all__ = ["KINDS", "Kind"]

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Kind:
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


def _kind(number: Any, unsigned: Any) -> Kind:
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

    return Kind(bits, int(np.array(np.inf, number).view(bits)[()]), add, largest)


KINDS = {
    np.dtype(np.float32): _kind(np.float32, np.uint32),
    np.dtype(np.float64): _kind(np.float64, np.uint64),
}
