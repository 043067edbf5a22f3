"""Calls of one process that come later than those of others, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["latencies_s", "sleep_until"]


def sleep_until(at_s: float) -> None:
    """Sleep until a time by ``time.monotonic``; not at all if it is over."""
    time.sleep(max(0.0, at_s - time.monotonic()))


def latencies_s(call: Callable[[], object], begins_s: float, rounds: int, pace_s: float, late_s: float) -> list[float]:
    """Call once in each round; return how long each call took.

    Args:
        begins_s: when the first round begins, by ``time.monotonic``, at all processes of the computer.
        pace_s: from the beginning of one round to that of the next; a process that is later begins at once.
        late_s: how long after the beginning this process calls.
    """
    taken_s = []
    for number in range(rounds):
        sleep_until(begins_s + number * pace_s + late_s)
        called_s = time.monotonic()
        call()
        taken_s.append(time.monotonic() - called_s)
    return taken_s
