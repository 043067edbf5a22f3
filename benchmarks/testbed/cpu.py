"""How busy the whole computer is while something is measured: figures taken while it was full of work mean nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["SATURATED", "CpuMeter", "CpuTimes", "Window", "saturated_share", "used_share"]

WINDOW_S = 0.5
SATURATED = 0.95
"""Share of all cores' time from which on a window counts as one in which all of them were busy."""

_STAT = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """What all cores have done since the computer began.

    Args:
        busy_s: working, or taken away by another machine on the same hardware.
        idle_s: not working.
    """

    busy_s: float
    idle_s: float

    @classmethod
    def of(cls, stat: str) -> CpuTimes:
        """Return the times in a text as ``/proc/stat`` has it."""
        ticks = [int(field) for field in stat.split("\n", 1)[0].split()[1 : _STEAL + 2]]
        idle = ticks[_IDLE] + ticks[_IOWAIT]
        return cls(busy_s=(sum(ticks) - idle) / _TICKS_PER_S, idle_s=idle / _TICKS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was found in a stretch of time.

    Args:
        began_ns: by CLOCK_MONOTONIC.
        ended_ns: the same.
        used_share: of all cores' time, 0 to 1.
    """

    began_ns: int
    ended_ns: int
    used_share: float


class CpuMeter:
    """Records CPU use for as long as its block runs, in windows of half a second."""

    def __init__(self) -> None:
        self._windows: list[Window] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu meter", daemon=True)

    @property
    def used_share(self) -> float:
        """How much of all cores' time was used, 0 to 1."""
        return used_share(self._windows)

    @property
    def saturated_share(self) -> float:
        """In which share of the time more than 95 % of all cores' time was used, 0 to 1."""
        return saturated_share(self._windows)

    def between(self, began_ns: int, ended_ns: int) -> tuple[Window, ...]:
        """Return the windows that lie within a stretch of time, by CLOCK_MONOTONIC."""
        return tuple(w for w in self._windows if began_ns <= w.began_ns and w.ended_ns <= ended_ns)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join()
        self._close_window()

    def _watch(self) -> None:
        while not self._over.wait(WINDOW_S):
            self._close_window()

    def _look(self) -> None:
        self._since_ns, self._times = time.monotonic_ns(), CpuTimes.of(_STAT.read_text(encoding="ascii"))

    def _close_window(self) -> None:
        """End a window; one too short for the kernel to have counted anything is left out."""
        since_ns, before = self._since_ns, self._times
        self._look()
        busy_s, idle_s = self._times.busy_s - before.busy_s, self._times.idle_s - before.idle_s
        if busy_s + idle_s > 0:
            used = busy_s / (busy_s + idle_s)
            self._windows.append(Window(began_ns=since_ns, ended_ns=self._since_ns, used_share=used))


def used_share(windows: Sequence[Window]) -> float:
    """Return how much of all cores' time was used in some windows, 0 to 1; 0 without windows."""
    length_ns = sum(w.ended_ns - w.began_ns for w in windows)
    return sum(w.used_share * (w.ended_ns - w.began_ns) for w in windows) / length_ns if length_ns else 0.0


def saturated_share(windows: Sequence[Window]) -> float:
    """Return in which share of the time all cores were busy, 0 to 1; 0 without windows."""
    length_ns = sum(w.ended_ns - w.began_ns for w in windows)
    full_ns = sum(w.ended_ns - w.began_ns for w in windows if w.used_share > SATURATED)
    return full_ns / length_ns if length_ns else 0.0
