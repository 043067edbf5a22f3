"""Buffers that are used again: memory that the system has just given costs more to touch than to receive into.

Shared by all sums of a process, also of several threads.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Spares"]

PAGE_BYTES = 64 * 1024


class Spares:
    """Buffers that are kept for whoever needs one next; asking for another size frees the rest.

    Args:
        limit_bytes: keep no more than that.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffers: list[memoryview] = []

    def take(self, n_bytes: int) -> memoryview:
        """Return a buffer of ``n_bytes`` bytes, whatever is in it; the caller's until it gives it back."""
        while self._buffers:
            try:
                buffer = self._buffers.pop()
            except IndexError:  # another thread was faster
                break
            if len(buffer) == n_bytes:
                return buffer
        return _allocated(n_bytes)

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back that nobody uses any more; it is freed if enough are kept."""
        if sum(map(len, self._buffers)) + len(buffer) <= self._limit_bytes:
            self._buffers.append(buffer)


def _allocated(n_bytes: int) -> memoryview:
    # numpy asks for huge pages from 4 MiB on, which the largest chunks reach only with what is left of their last page
    room = -(-n_bytes // PAGE_BYTES) * PAGE_BYTES if n_bytes > PAGE_BYTES else n_bytes
    return memoryview(np.empty(room, dtype=np.uint8).data)[:n_bytes]
