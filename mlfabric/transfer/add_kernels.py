"""Adding float32 and float64 in one pass over the memory, which also says whether the numbers are finite. Pure.

Looking first and adding then reads an input twice, and costs half as much again. Numba compiles the loops and keeps the
result on disk. To load that takes half a second, which only a process that sums should take: so it is loaded when it is
needed first, or before by :func:`load`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mlfabric.transfer.compiled import Kind

__all__ = ["add", "is_finite", "load"]


def load() -> None:
    """Load what is compiled, or compile it, so that nobody who receives has to wait for that."""
    _kind(np.dtype(np.float32))


def add(target: np.ndarray, source: np.ndarray, coefficient: float, *, fresh: bool) -> bool:
    """Add ``coefficient * source`` to ``target``, or write it there; tell whether all of ``source`` is finite.

    The product is rounded before it is added.

    Args:
        target, source: as long as each other, one element or more of the same dtype, float32 or float64.
        coefficient: finite.
        fresh: what lies in ``target`` is overwritten.
    """
    kind = _kind(source.dtype)
    largest = kind.add(target, source, source.view(kind.bits), coefficient, fresh)
    return bool(largest < kind.inf)


def is_finite(source: np.ndarray) -> bool:
    """Tell whether one element or more, float32 or float64, are all finite."""
    kind = _kind(source.dtype)
    return bool(kind.largest(source.view(kind.bits)) < kind.inf)


@cache
def _kind(dtype: np.dtype) -> Kind:
    from mlfabric.transfer.compiled import KINDS

    return KINDS[dtype]
