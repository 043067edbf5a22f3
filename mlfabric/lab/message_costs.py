"""What messages to and from a scheduler take that is busy, over a link that they share."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["MessageCosts"]

HANDLED_S = 0.16e-3
"""What a message keeps the scheduler busy (``mlfabric bench control``: 6,300 decisions per second)."""
WRITTEN_S = 0.07e-3
"""What an answer keeps it busy, its part of a plan included (measured with 30 workers)."""
HEADER_BYTES = 150
"""Of a message on the wire, all headers together (measured)."""


class MessageCosts:
    """How long each message takes: one after the other is handled, written, and carried by the scheduler's link.

    Args:
        now_s: the time.
        host: the scheduler's.
        up_bps: of its link.
        way_s: what a message takes besides.
    """

    def __init__(self, now_s: Callable[[], float], host: str, up_bps: float, way_s: float) -> None:
        self._now_s, self._host, self._up_bps, self._way_s = now_s, host, up_bps, way_s
        self._idle_s = self._free_s = 0.0

    def message_s(self, source: str, destination: str, size_bytes: int) -> float:
        """Return how long the next message takes."""
        now_s = self._now_s()
        is_answer = source == self._host
        self._idle_s = max(self._idle_s, now_s) + (WRITTEN_S if is_answer else HANDLED_S)
        if not is_answer:
            return self._idle_s - now_s + self._way_s
        self._free_s = max(self._free_s, self._idle_s) + 8 * (size_bytes + HEADER_BYTES) / self._up_bps
        return self._free_s - now_s + self._way_s
