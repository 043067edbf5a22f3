"""The clocks that shells read: those of this machine, or the virtual one of the laboratory (``mlfabric/lab``).

A shell sets its timers on the event loop and reads the time here, so that both are the same clock everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["monotonic_ns", "monotonic_s", "replaced", "wall_ns"]

_monotonic_ns: Callable[[], int] = time.monotonic_ns
_wall_ns: Callable[[], int] = time.time_ns


def monotonic_ns() -> int:
    """Return the time of a clock that never goes back."""
    return _monotonic_ns()


def monotonic_s() -> float:
    """Return the same time in seconds."""
    return _monotonic_ns() / 1e9


def wall_ns() -> int:
    """Return the time since 1970; it may go back when somebody sets the clock."""
    return _wall_ns()


@contextmanager
def replaced(monotonic: Callable[[], int], wall: Callable[[], int]) -> Iterator[None]:
    """Read other clocks in this process until the block ends."""
    global _monotonic_ns, _wall_ns
    before = _monotonic_ns, _wall_ns
    _monotonic_ns, _wall_ns = monotonic, wall
    try:
        yield
    finally:
        _monotonic_ns, _wall_ns = before
