"""What happened in the last minutes, entry by entry, for pages to show: written by one thread, read by others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Any

from mlfabric import clock

__all__ = ["Entry", "History"]

Entry = Mapping[str, Any]
"""What JSON can carry; ``kind`` says which of the others there are, times are in ms since 1970."""
MOST_ENTRIES = 20_000


class History:
    """The last entries; each has a number, by which a reader asks for what is new to it.

    Args:
        keep_s: for how long an entry is kept, > 0; there are never more than 20,000.
    """

    def __init__(self, keep_s: float = 600.0) -> None:
        self._keep_ns = round(keep_s * 1e9)
        self._entries: deque[tuple[int, Entry]] = deque(maxlen=MOST_ENTRIES)
        self._next = 0
        self._lock = Lock()

    def add(self, entry: Entry) -> None:
        """Keep an entry; it must not change any more."""
        now_ns = clock.monotonic_ns()
        with self._lock:
            self._entries.append((now_ns, entry))
            self._next += 1
            while self._entries[0][0] < now_ns - self._keep_ns:
                self._entries.popleft()

    def since(self, number: int) -> tuple[int, list[Entry]]:
        """Return the number of the next entry, and all that are kept from ``number`` on, oldest first."""
        with self._lock:
            fresh = min(len(self._entries), max(0, self._next - number))
            return self._next, [self._entries[-i][1] for i in range(fresh, 0, -1)]
