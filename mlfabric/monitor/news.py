"""What of its estimates a monitor reports: what is news to the scheduler, or was not repeated for a while. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mlfabric.monitor.history import Link
from mlfabric.monitor.link_evidence import Estimate, Source

__all__ = ["News"]

CHANGE = 0.01
REPEAT_S = 1.0


class News:
    """What a scheduler was told of each link, and when."""

    def __init__(self) -> None:
        self._reported: dict[Link, tuple[int, float]] = {}

    def clear(self) -> None:
        """Report everything anew: another scheduler may know nothing."""
        self._reported.clear()

    def of(self, estimates: Mapping[Link, Estimate], now_s: float) -> dict[Link, Estimate]:
        """Return what is to be reported: what was learnt and changed, or was not repeated lately, or was taken back."""
        return {link: found for link, found in estimates.items() if self._is_news(link, found, now_s)}

    def reported(self, told: Iterable[tuple[Link, Estimate]], now_s: float) -> None:
        """Note what the scheduler was told."""
        self._reported.update((link, (found.bps, now_s)) for link, found in told)

    def _is_news(self, link: Link, found: Estimate, now_s: float) -> bool:
        before_bps, at_s = self._reported.get(link, (0, -math.inf))
        if found.source is Source.NOMINAL and not before_bps:
            return False
        return abs(found.bps - before_bps) > CHANGE * before_bps or now_s - at_s >= REPEAT_S
