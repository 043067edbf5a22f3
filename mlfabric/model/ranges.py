"""Sets of whole numbers as half-open ranges (start, stop): in order, none empty, none touching the next. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable

__all__ = ["Ranges", "count", "covered", "difference", "intersection"]

Ranges = tuple[tuple[int, int], ...]


def count(ranges: Ranges) -> int:
    """Return how many numbers there are."""
    return sum(stop - start for start, stop in ranges)


def covered(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the numbers that these ranges cover, in whatever order and however they overlap; none is empty."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return tuple(found)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """Return the numbers that are in ``a`` and not in ``b``."""
    out: list[tuple[int, int]] = []
    rest = iter((*b, (sys.maxsize, sys.maxsize)))
    without = next(rest)
    for start, stop in a:
        at = start
        while at < stop:
            while without[1] <= at:
                without = next(rest)
            if without[0] > at:
                out.append((at, min(stop, without[0])))
            at = min(stop, without[1]) if without[0] < stop else stop
    return tuple(out)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    """Return the numbers that are in both."""
    return difference(a, difference(a, b))
