"""Evidence about links, and what is known of one. Pure values; :mod:`mlfabric.monitor.estimate` judges them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from mlfabric.monitor.history import History, Link, Passage

__all__ = ["Estimate", "Known", "Seen", "Source", "Transfer"]


ANOTHER_RATE = 1.5
"""A link that is known to carry more or less by this factor than before has changed."""
HOLDS_SHARE = 0.2
"""An estimate holds for this part of the time since the link changed last, and for as long as its evidence took."""


class Source(Enum):
    """What an estimate was last learnt from."""

    NOMINAL = "nominal"
    TRANSFERS = "transfers"
    NIC = "nic"


class Estimate(NamedTuple):
    """What a link carries now; ``age_s`` is the time since the last evidence for it."""

    bps: int
    age_s: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A finished transfer.

    Args:
        from_host, to_host: its two ends.
        bytes: payload.
        started_s, ended_s: on the monitor's clock.
        paced: the sender held it to a planned rate.
        busy_bytes, busy_s: of a stream, at its sender: what was delivered while there was more to send than the network
            took, and how long that was; 0 where it was not measured.
    """

    from_host: str
    to_host: str
    bytes: int
    started_s: float
    ended_s: float
    paced: bool = False
    busy_bytes: int = 0
    busy_s: float = 0.0

    @property
    def links(self) -> tuple[Link, Link]:
        """The two links that it crosses."""
        return Link(self.from_host, True), Link(self.to_host, False)

    @property
    def took_s(self) -> float:
        """How long it took."""
        return self.ended_s - self.started_s

    def passage(self, link: Link) -> Passage:
        """Return it as one of its two links saw it."""
        up, down = self.links
        peer = down if link == up else up
        return Passage(peer=peer, bits=8.0 * self.bytes, started_s=self.started_s, ended_s=self.ended_s)

    def parts(self) -> tuple[Transfer, ...]:
        """Return the busy part, as if that had come last, and what came before, which counts as paced.

        What is more than the links can have carried before was on its way yet when the sender was through, and is left
        out.
        """
        busy_s = min(self.busy_s, self.ended_s - self.started_s)
        turned_s, rest_bytes = self.ended_s - busy_s, self.bytes - self.busy_bytes
        busy = replace(self, bytes=self.busy_bytes, started_s=turned_s, paced=False)
        before_s = turned_s - self.started_s
        if rest_bytes <= 0 or rest_bytes * busy_s > self.busy_bytes * before_s:
            return (busy,)
        return replace(self, bytes=rest_bytes, ended_s=turned_s, paced=True), busy

    def is_same(self, other: Transfer) -> bool:
        """Tell whether two records, one of each end, may be of the same transfer."""
        if (self.links, self.bytes) != (other.links, other.bytes):
            return False
        shorter_s = min(self.ended_s - self.started_s, other.ended_s - other.started_s)
        return min(self.ended_s, other.ended_s) - max(self.started_s, other.started_s) >= shorter_s / 2


class Seen(NamedTuple):
    """What a link carried during a transfer."""

    at_s: float
    likely_bps: float
    proven_bps: float


@dataclass(slots=True)
class Known:
    """What is known of one link; ``estimate_bps`` None means that nothing was learnt yet.

    ``took_s`` is how long the evidence took that it was learnt from, ``since_s`` when it was known to be another rate.
    ``latest`` holds what it carried during the latest transfer with each peer; ``instead_of``, if it was blamed where
    the other link might have been, is that link and what it carried then.
    """

    history: History = field(default_factory=History)
    nominal_bps: float = 0.0
    best_bps: float = 0.0
    estimate_bps: float | None = None
    learnt_s: float = 0.0
    since_s: float = 0.0
    took_s: float = math.inf
    source: Source = Source.NOMINAL
    latest: dict[Link, Seen] = field(default_factory=dict)
    instead_of: tuple[Link, float] | None = None

    @property
    def reference_bps(self) -> float:
        """Where the estimate ages to."""
        return self.nominal_bps or self.best_bps

    def now_bps(self, now_s: float, half_life_s: float) -> float:
        """Return the aged estimate; infinite if nothing bounds it."""
        if self.estimate_bps is None:
            return self.nominal_bps or math.inf
        holds_s = self.took_s + HOLDS_SHARE * (self.learnt_s - self.since_s)
        kept = math.exp2(-max(0.0, now_s - self.learnt_s) / min(half_life_s, holds_s))
        return self.reference_bps + (self.estimate_bps - self.reference_bps) * kept

    def learn(self, bps: float, at_s: float, took_s: float, source: Source) -> None:
        """Set the estimate from evidence that took so long; what came in late does not make it older."""
        before_bps = self.estimate_bps
        if before_bps is None or max(before_bps, bps) > ANOTHER_RATE * min(before_bps, bps):
            self.since_s = max(at_s, self.learnt_s)
        self.took_s = took_s
        self.best_bps = max(self.best_bps, bps)
        self.estimate_bps, self.learnt_s, self.source = bps, max(at_s, self.learnt_s), source

    def forgive(self, culprit_bps: float, at_s: float, took_s: float) -> None:
        """Forget what it was blamed for; with no nominal rate to fall back to, it is as fast as the culprit."""
        self.instead_of = None
        if self.nominal_bps:
            self.estimate_bps, self.source = None, Source.NOMINAL
        else:
            self.learn(max(self.best_bps, culprit_bps), at_s, took_s, self.source)
