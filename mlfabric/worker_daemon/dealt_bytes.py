"""Which bytes of a gradient a stripe carries if they become ready from the beginning on. Pure.

Were a stripe so many bytes in a row, the stripe of the last ones could begin only when backward ends, and its root
alone would have all to do then. So bytes are dealt out: the gradient is cut into segments, and a stripe has its share
of each of them, the first segment's first. All stripes then become ready side by side.

The bytes at ``start`` to ``end`` of what travels are those units of ``ALIGNMENT_BYTES`` whose number is dealt to them:
unit n of what travels is the n // s-th of segment n % s, of s segments.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfabric.model.specs import ALIGNMENT_BYTES

__all__ = ["SEGMENTS", "beginning", "pieces_of", "put_in_order"]

SEGMENTS = 8


def pieces_of(start: int, end: int, size_bytes: int, segments: int) -> list[tuple[int, int]]:
    """Return where what travels at a range of bytes lies in the gradient: pieces, first byte and the one after it.

    Args:
        start, end: the range; multiples of ``ALIGNMENT_BYTES``, as the size is if there is more than one segment.
        size_bytes: of the gradient.
        segments: how many there are, >= 1.
    """
    if segments == 1:
        return [(start, end)]
    pieces, base = [], 0
    for segment in range(segments):
        first, after, count = (
            max(0, -(-(at // ALIGNMENT_BYTES - segment) // segments)) for at in (start, end, size_bytes)
        )
        if after > first:
            pieces.append(((base + first) * ALIGNMENT_BYTES, (base + after) * ALIGNMENT_BYTES))
        base += count
    return pieces


def beginning(pieces: Iterable[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return where the first ``length`` bytes of some pieces lie."""
    found = []
    for start, end in pieces:
        taken = min(length, end - start)
        if taken > 0:
            found.append((start, start + taken))
        length -= taken
    return found


def put_in_order(travelled: memoryview, into: memoryview, ranges: Iterable[tuple[int, int]], segments: int) -> None:
    """Copy a sum as it travelled into another buffer, each byte where it belongs.

    Args:
        travelled, into: of the gradient's size.
        ranges: those of the stripes.
        segments: as for :func:`pieces_of`.
    """
    for start, end in ranges:
        at = start
        for first, after in pieces_of(start, end, len(into), segments):
            into[first:after] = travelled[at : at + after - first]
            at += after - first
