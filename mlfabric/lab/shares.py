# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What streams get of links: max-min fair shares, compiled; how much of each has passed.

Nobody goes faster than its own limit, and what some cannot use of a link, be it for their limit or for their other
link, the others share evenly.

What arrives is acknowledged, over the links of the other way. Rates of links are what they carry beside the
acknowledgements of as much the other way. A host that receives from many others, and has a slow way up, has less of it
for what it sends.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning.fluid.jit import compiled, entry

__all__ = ["NO_LINK", "Shares"]

NO_LINK = -1
_ALMOST_BITS = 0.5
_LEAST_BPS = 1.0
_LEAST_SHARE = 0.1
"""Of a link, which is left beside acknowledgements."""
_PLACES = 64

Stream = TypeVar("Stream")


@compiled
@entry
def _share(ends, backs, acknowledged, limits, rates, found, left, users):
    """Find the rates of streams, each given by the links that it crosses, those of its other way, and its own limit."""
    left[:] = rates
    _fill(ends, limits, found, left, users)
    if acknowledged > 0.0:
        left[:] = rates * (1.0 + acknowledged)
        for stream in range(len(backs)):
            for link in backs[stream]:
                if link >= 0:
                    left[link] = max(_LEAST_SHARE * rates[link], left[link] - acknowledged * found[stream])
        _fill(ends, limits, found, left, users)


@compiled
def _fill(ends, limits, found, left, users):
    """Share out what is left of links."""
    users[:] = 0
    found[:] = -1.0
    rest = len(ends)
    for stream in range(len(ends)):
        for link in ends[stream]:
            if link >= 0:
                users[link] += 1
    while rest > 0:
        share, tightest = np.inf, -1
        for link in range(len(left)):
            if users[link] > 0 and left[link] / users[link] < share:
                share, tightest = left[link] / users[link], link
        has_limited = False
        for stream in range(len(ends)):
            has_limited |= found[stream] < 0.0 and limits[stream] <= share
        for stream in range(len(ends)):
            if found[stream] >= 0.0:
                continue
            is_next = limits[stream] <= share if has_limited else tightest in (ends[stream, 0], ends[stream, 1])
            if is_next:
                found[stream] = min(share, limits[stream])
                rest -= 1
                for link in ends[stream]:
                    if link >= 0:
                        left[link] = max(0.0, left[link] - found[stream])
                        users[link] -= 1


@compiled
@entry
def _pass(ends, rates, left, carried, seconds):
    """Let time pass; return how many streams are through."""
    through = 0
    for stream in range(len(ends)):
        bits = rates[stream] * seconds
        left[stream] -= bits
        if left[stream] <= _ALMOST_BITS:
            through += 1
        for link in ends[stream]:
            if link >= 0:
                carried[link] += bits
    return through


class Shares(Generic[Stream]):
    """Streams that are under way, and the links that they cross.

    Args:
        acknowledged: how much the other way carries for what arrives, as a share of that.

    Attributes:
        streams: in the order of their places.
        carried_bits: by link, without acknowledgements.
    """

    def __init__(self, acknowledged: float = 0.0) -> None:
        self.acknowledged = acknowledged
        self.streams: list[Stream] = []
        self.carried_bits: NDArray[np.float64] = np.zeros(0)
        self._links_bps: NDArray[np.float64] = np.zeros(0)
        self._left: Any = np.zeros(0)
        self._users: Any = np.zeros(0, np.int64)
        self._ends: NDArray[np.int64] = np.full((_PLACES, 2), NO_LINK)
        self._backs: NDArray[np.int64] = np.full((_PLACES, 2), NO_LINK)
        self._columns: NDArray[np.float64] = np.zeros((3, _PLACES))

    def _grow(self) -> None:
        self._ends = np.concatenate((self._ends, self._ends))
        self._backs = np.concatenate((self._backs, self._backs))
        self._columns = np.concatenate((self._columns, self._columns), axis=1)

    def set_rate(self, link: int, bps: float) -> None:
        """Let a link carry so much; a new one has the next number."""
        if link == len(self._links_bps):
            self._links_bps = np.append(self._links_bps, 0.0)
            self.carried_bits = np.append(self.carried_bits, 0.0)
            self._left, self._users = np.zeros(link + 1), np.zeros(link + 1, np.int64)
        self._links_bps[link] = bps

    def enter(
        self,
        stream: Stream,
        ends: tuple[int, int],
        bits: float,
        limit_bps: float,
        back: tuple[int, int] = (NO_LINK, NO_LINK),
    ) -> None:
        """Let a stream begin with something; it has no rate before these are shared out.

        Args:
            ends, back: the links that it crosses, and those of its acknowledgements.
        """
        place = len(self.streams)
        if place == len(self._ends):
            self._grow()
        self.streams.append(stream)
        self._ends[place], self._backs[place] = ends, back
        self._columns[:, place] = bits, 0.0, limit_bps

    def go_on(self, place: int, bits: float, limit_bps: float) -> None:
        """Let the stream at a place go on with more, at its rate."""
        self._columns[0, place] += bits
        self._columns[2, place] = limit_bps

    def leave(self, place: int) -> None:
        """Take away the stream at a place; the last one comes there."""
        last = len(self.streams) - 1
        self.streams[place] = self.streams[last]
        self._ends[place], self._columns[:, place] = self._ends[last], self._columns[:, last]
        self._backs[place] = self._backs[last]
        self.streams.pop()

    def pass_time(self, seconds: float) -> list[int]:
        """Let time pass; return the places of streams whose bits are through, the last one first."""
        n = len(self.streams)
        left, rates, _ = self._columns
        if not n or not _pass(self._ends[:n], rates, left, self.carried_bits, seconds):
            return []
        through: list[int] = np.flatnonzero(left[:n] <= _ALMOST_BITS)[::-1].tolist()
        return through

    def is_through(self, place: int) -> bool:
        """Tell whether the bits of the stream at a place are through."""
        return bool(self._columns[0, place] <= _ALMOST_BITS)

    def share_out(self) -> None:
        """Find the rate of each stream anew."""
        n = len(self.streams)
        _, rates, limits = self._columns
        ends, backs = self._ends[:n], self._backs[:n]
        _share(ends, backs, self.acknowledged, limits[:n], self._links_bps, rates[:n], self._left, self._users)

    def rates_bps(self) -> list[float]:
        """Return the rate of each stream."""
        found: list[float] = self._columns[1, : len(self.streams)].tolist()
        return found

    def next_s(self) -> float:
        """Return after how long the bits of some stream are through; there is one."""
        left, rates, _ = self._columns[:, : len(self.streams)]
        return float((left / np.maximum(rates, _LEAST_BPS)).min())
