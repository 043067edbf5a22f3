"""What passed over one direction of one host's link lately. Pure.

Two answers to what a link carried over an interval: *proven*, the bits of the transfers that lie within it; and
*likely*, those and the parts of others that fall into it, as if each had moved evenly from its start to its end.
Times are seconds of the monitor's clock.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

__all__ = ["History", "Link", "Passage"]

KEEP_PASSAGES = 4096
KEEP_NIC_SAMPLES = 256
NIC_COVERAGE = 0.9
_end = attrgetter("ended_s")


class Link(NamedTuple):
    """One direction of one host's link."""

    host: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One transfer as one of its two links saw it; ``peer`` is the other one."""

    peer: Link
    bits: float
    started_s: float
    ended_s: float

    @property
    def rate_bps(self) -> float:
        """Mean rate."""
        return self.bits / (self.ended_s - self.started_s)

    def overlap_s(self, started_s: float, ended_s: float) -> float:
        """Return for how long it ran within an interval."""
        return max(0.0, min(self.ended_s, ended_s) - max(self.started_s, started_s))


@dataclass(slots=True)
class History:
    """Transfers over one link, by their end, and what the host's NIC counted if it is watched."""

    passages: list[Passage] = field(default_factory=list)
    nic: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=KEEP_NIC_SAMPLES))
    nic_speed_bps: float = 0.0

    def add(self, passage: Passage) -> None:
        """Remember a transfer; the oldest is forgotten if there are too many."""
        insort(self.passages, passage, key=_end)
        if len(self.passages) > KEEP_PASSAGES:
            del self.passages[0]

    def remove(self, passage: Passage) -> None:
        """Forget one transfer, if it is still remembered."""
        with suppress(ValueError):
            self.passages.remove(passage)

    def forget(self, before_s: float) -> None:
        """Forget what ended before this instant."""
        self.passages = [p for p in self.passages if p.ended_s >= before_s]

    def likely_bps(self, started_s: float, ended_s: float) -> float:
        """Return the mean rate over an interval, if every transfer moved evenly."""
        parts = (p.rate_bps * p.overlap_s(started_s, ended_s) for p in self._ended_after(started_s))
        return sum(parts) / (ended_s - started_s)

    def proven_bps(self, started_s: float, ended_s: float) -> float:
        """Return a lower bound of the mean rate over an interval, however transfers moved."""
        bits = (p.bits for p in self._ended_after(started_s) if p.started_s >= started_s and p.ended_s <= ended_s)
        return sum(bits) / (ended_s - started_s)

    def fastest_rival_bps(self, passage: Passage) -> float:
        """Return the highest rate of another transfer that ran beside ``passage`` for half of either; 0 if none."""
        fastest = 0.0
        for other in self._ended_after(passage.started_s):
            shorter_s = min(passage.ended_s - passage.started_s, other.ended_s - other.started_s)
            beside_s = other.overlap_s(passage.started_s, passage.ended_s)
            if other != passage and beside_s >= shorter_s / 2:
                fastest = max(fastest, other.rate_bps)
        return fastest

    def nic_bps(self, started_s: float, ended_s: float) -> float | None:
        """Return what the NIC carried over an interval, of whatever program; None if it was not watched then."""
        parts = [(max(0.0, min(e, ended_s) - max(s, started_s)), bps) for s, e, bps in self.nic]
        watched_s = sum(part for part, _ in parts)
        if watched_s < NIC_COVERAGE * (ended_s - started_s):
            return None
        return sum(part * bps for part, bps in parts) / watched_s

    def _ended_after(self, instant_s: float) -> Iterator[Passage]:
        for passage in reversed(self.passages):
            if passage.ended_s <= instant_s:
                return
            yield passage
