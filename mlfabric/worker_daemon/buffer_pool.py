"""Buffers that are used again: memory that the system has just given costs more to touch than to receive into.

A buffer serves whatever fits into it: a job that reduces one tensor after another needs one buffer, as long as the
longest tensor. Idle buffers together are never longer than ``LEAST_KEPT_BYTES`` or, if that is more, than all that was
in use at one time; the one that was used longest ago is given up first. So a job whose steps are alike allocates in its
first step only, and one that reduces tensors of ever new sizes keeps no more than a few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import itemgetter

import torch

__all__ = ["LEAST_KEPT_BYTES", "BufferPool"]

LEAST_KEPT_BYTES = 64 * 1024 * 1024


class BufferPool:
    """Idle buffers of one kind. Not thread-safe.

    Args:
        make: allocates a buffer of so many bytes.
    """

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make
        self._idle: list[tuple[int, int, torch.Tensor]] = []
        """By size: how long, how many were given back before it, the buffer."""
        self._idle_bytes = self._turns = 0
        self._most_bytes = LEAST_KEPT_BYTES

    @property
    def idle_bytes(self) -> int:
        """How long all idle buffers are together."""
        return self._idle_bytes

    def take(self, sizes_bytes: Sequence[int], others_bytes: Callable[[], int]) -> list[torch.Tensor]:
        """Return a buffer for each size, at least as long, whatever is in it; the caller's until it is given back.

        Args:
            sizes_bytes: of what goes into each.
            others_bytes: returns how much else is in use now; asked for only where a buffer is allocated.

        Raises:
            What ``make`` raises; then nothing was taken.
        """
        taken: list[torch.Tensor] = []
        with ExitStack() as undo:
            for size_bytes in sizes_bytes:
                buffer = self._fitting(size_bytes)
                if buffer is None:
                    self._most_bytes = max(self._most_bytes, others_bytes() + sum(sizes_bytes))
                    buffer = self._make(size_bytes)
                taken.append(buffer)
                undo.callback(self.give, buffer)
            undo.pop_all()
        return taken

    def give(self, buffer: torch.Tensor) -> None:
        """Take a buffer back that nobody uses any more."""
        self._turns += 1
        insort(self._idle, (buffer.nbytes, self._turns, buffer))
        self._idle_bytes += buffer.nbytes
        while self._idle_bytes > self._most_bytes:
            self._pop(min(range(len(self._idle)), key=lambda i: self._idle[i][1]))

    def _fitting(self, size_bytes: int) -> torch.Tensor | None:
        """Return the smallest idle buffer that is long enough; of equal ones that which was used longest ago."""
        i = bisect_left(self._idle, size_bytes, key=itemgetter(0))
        return self._pop(i) if i < len(self._idle) else None

    def _pop(self, i: int) -> torch.Tensor:
        size_bytes, _, buffer = self._idle.pop(i)
        self._idle_bytes -= size_bytes
        return buffer
