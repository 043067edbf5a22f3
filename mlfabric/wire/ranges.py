"""Ranges on the wire, of samples or of bytes, in order, as small numbers.

Of each range: how far its start is behind the end of the one before (the first: behind 0), its length, and whatever is
said of it besides (of a run: how often it was trained on).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mlfabric.model.samples import LAST_POSITION
from mlfabric.wire.field_limits import malformed

__all__ = ["from_numbers", "to_numbers"]


def to_numbers(ranges: Iterable[tuple[int, ...]]) -> list[int]:
    """Return the numbers that ranges or runs are sent as."""
    out: list[int] = []
    end = 0
    for start, stop, *rest in ranges:
        out += (start - end, stop - start, *rest)
        end = stop
    return out


def from_numbers(numbers: Sequence[int], width: int, most: int, field: str) -> tuple[Any, ...]:
    """Return the ranges (``width`` 2) or the runs of samples (``width`` 3) that were sent as these numbers.

    Ranges that touch become one.

    Raises:
        UsageError: they are not of good ranges, or of more than ``most``.
    """
    if len(numbers) % width or len(numbers) > most * width:
        raise malformed(field, f"{len(numbers)} numbers", f"{width} for each of at most {most} ranges")
    out: list[Any] = []
    end = 0
    for at in range(0, len(numbers), width):
        gap, length, *rest = numbers[at : at + width]
        start, end = end + gap, end + gap + length
        if not start < end <= LAST_POSITION:
            raise malformed(field, f"a range from {start} up to {end}", "ranges that are not empty, up to 2**62")
        if out and not gap and not rest:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end, *rest))
    return tuple(out)
