"""How long a worker daemon waits before it asks again for what broke: a pause that doubles, up to a second. Pure."""

from __future__ import annotations

__all__ = ["FIRST_PAUSE_NS", "LONGEST_PAUSE_NS", "pause_ns"]

FIRST_PAUSE_NS = 20_000_000
LONGEST_PAUSE_NS = 1_000_000_000


def pause_ns(breaks: int) -> int:
    """Return the pause after an attempt before which ``breaks`` others had broken."""
    return min(FIRST_PAUSE_NS << min(breaks, 10), LONGEST_PAUSE_NS)
