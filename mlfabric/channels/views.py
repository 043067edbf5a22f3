"""Cutting buffers into the pieces that go on the wire, without copying. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlfabric.errors import UsageError

__all__ = ["chunked", "contiguous", "drop_front", "total_bytes"]


def contiguous(buffers: Sequence[memoryview]) -> list[memoryview]:
    """Return the buffers as flat byte views, empty ones left out.

    Raises:
        UsageError: one of them is not contiguous.
    """
    for index, buffer in enumerate(buffers):
        if not buffer.c_contiguous:
            raise UsageError(f"buffer {index} (shape {buffer.shape}, strides {buffer.strides}) is not contiguous")
    return [buffer.cast("B") for buffer in buffers if buffer.nbytes]


def total_bytes(views: Sequence[memoryview]) -> int:
    """Return the size of all buffers together."""
    return sum(view.nbytes for view in views)


def chunked(views: Sequence[memoryview], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """Cut flat views into groups of ``chunk_bytes`` each, the last one shorter."""
    group: list[memoryview] = []
    room = chunk_bytes
    for view in views:
        at = 0
        while at < len(view):
            piece = view[at : at + room]
            group.append(piece)
            at += len(piece)
            room -= len(piece)
            if room == 0:
                yield group
                group, room = [], chunk_bytes
    if group:
        yield group


def drop_front(views: Sequence[memoryview], n_bytes: int) -> list[memoryview]:
    """Return flat views without their first ``n_bytes`` bytes."""
    for index, view in enumerate(views):
        if n_bytes < len(view):
            return [view[n_bytes:], *views[index + 1 :]]
        n_bytes -= len(view)
    return []
