"""How much of a stream left while its sender had more than the network took. Pure.

What a stream achieves says nothing about the links if its bytes come slowly. But whenever the next ones are ready
while earlier ones are still on their way, the links were busy all the time since the last look, and what the peer
acknowledged meanwhile is what they carry. That nothing is left in this host's buffers tells nothing: the window may
have room for all of it, and the queue before a slow link at the far end hold it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["Backlog", "Path"]

LATE_SEGMENTS = 2
BUSY_ROUND_TRIPS = 2


class Path(NamedTuple):
    """What a transport knows of the way to its peer; 0 means unknown.

    ``segment_bytes`` is the most that one packet carries, ``rtt_ns`` the least round trip seen lately.
    """

    segment_bytes: int
    rtt_ns: int


class _Look(NamedTuple):
    """How things were at an instant, just before more was written."""

    at_ns: int
    written_bytes: int
    delivered_bytes: int


class Backlog:
    """Adds up the time in which one stream was held up by the network alone, and what was delivered in it.

    A receiver acknowledges every second segment at once, the odd one perhaps much later; on a long way a round trip's
    worth is always unacknowledged; and each link takes its time for the piece that was written last. None of these is
    a backlog.

    Args:
        path: the stream's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looks: deque[_Look] = deque()
        self._run = (0, 0)
        self.bytes = 0
        self.ns = 0

    def look(self, written_bytes: int, unacknowledged_bytes: int, now_ns: int, *, held_up: bool = False) -> None:
        """Take in how things are just before more is written, or at the end.

        Args:
            written_bytes: of the stream so far.
            unacknowledged_bytes: of all that was written, not only of the stream.
            now_ns: of any clock that does not go back.
            held_up: since the last look the sender has waited for nothing but room, or for the last byte to leave.
        """
        delivered_bytes = written_bytes - unacknowledged_bytes
        if self._looks:
            last = self._looks[-1]
            gained_bytes, took_ns = delivered_bytes - last.delivered_bytes, now_ns - last.at_ns
            self._add(gained_bytes, took_ns, held_up or self._is_busy(delivered_bytes, now_ns))
        self._looks.append(_Look(now_ns, written_bytes, delivered_bytes))

    def _add(self, gained_bytes: int, took_ns: int, is_busy: bool) -> None:
        """Count an interval, also one at the end of a backlog that brings more than the backlog: it came before.

        While a lost packet is sent again, what came after it is not acknowledged, and then all at once.
        """
        run_bytes, run_ns = self._run
        if is_busy or gained_bytes * run_ns > run_bytes * took_ns:
            self.bytes += gained_bytes
            self.ns += took_ns
        self._run = (run_bytes + gained_bytes, run_ns + took_ns) if is_busy else (0, 0)

    def _is_busy(self, delivered_bytes: int, now_ns: int) -> bool:
        """Tell whether more than late segments is left of what was written long enough ago."""
        before_ns = now_ns - BUSY_ROUND_TRIPS * self._path.rtt_ns
        while len(self._looks) > 1 and self._looks[1].at_ns <= before_ns:
            self._looks.popleft()
        then = self._looks[0]
        left_bytes = then.written_bytes - delivered_bytes
        return then.at_ns <= before_ns and left_bytes > LATE_SEGMENTS * self._path.segment_bytes
