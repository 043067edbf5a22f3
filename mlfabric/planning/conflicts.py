"""How a plan is carried out without clocks: which transfers wait for which on shared links, and which are paced.

A plan's times are predictions. The order is binding: a transfer that the plan starts after another one's end waits for
that one. Pacing keeps transfers that share a link at their planned shares; all others go at full speed, because an
estimate fed by paced transfers would only ever fall (design, section 8).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from mlfabric.network import Network, Path, Profile

__all__ = ["Timetable", "paced_rate"]

FULL_SHARE_PERCENT = 95

Key = TypeVar("Key", bound=Hashable)


class Timetable(Generic[Key]):
    """The planned and running transfers, by when they end on each of their links.

    A transfer that takes no time is not in it, because nobody waits for it.
    """

    def __init__(self) -> None:
        self._ends: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        self._numbers: dict[Key, tuple[int, Sequence[Hashable], int]] = {}
        self._keys: dict[int, Key] = {}
        self._count = 0

    def add(self, key: Key, path: Sequence[Hashable], profile: Profile) -> None:
        """Add a transfer; links have the same names as for all transfers of this timetable."""
        assert key not in self._numbers, f"{key} is in the timetable already"
        if profile.start_ns == profile.end_ns:
            return
        self._count += 1
        self._numbers[key] = (self._count, path, profile.end_ns)
        self._keys[self._count] = key
        for link in path:
            insort(self._ends[link], (profile.end_ns, self._count))

    def remove(self, key: Key) -> None:
        """Remove a transfer; nothing happens if it is not there."""
        entry = self._numbers.pop(key, None)
        if entry is None:
            return
        number, path, end_ns = entry
        del self._keys[number]
        for link in path:
            ends = self._ends[link]
            del ends[bisect_left(ends, (end_ns, number))]

    def before(self, path: Sequence[Hashable], start_ns: int) -> tuple[Key, ...]:
        """Return which transfers end last, on each link of ``path``, at or before ``start_ns``; in order of entry."""
        found: set[int] = set()
        for link in path:
            ends = self._ends.get(link, ())
            stop = bisect_right(ends, (start_ns, self._count))
            first = bisect_left(ends, (ends[stop - 1][0], 0)) if stop else 0
            found.update(number for _, number in ends[first:stop])
        return tuple([self._keys[number] for number in sorted(found)])


def paced_rate(profile: Profile, path: Path, network: Network) -> int:
    """Return the rate at which to pace a transfer in bit/s; 0 means at full speed.

    A transfer is paced, at its planned average, if that is below 95 % of what the narrowest link of its path could
    carry meanwhile, because then the plan gives the rest to others.
    """
    span_ns = profile.end_ns - profile.start_ns
    if not path or not profile.pieces or span_ns <= 0:
        return 0
    planned = sum([bps * (end_ns - start_ns) for start_ns, end_ns, bps in profile.pieces])
    possible = sum([bps * (end_ns - start_ns) for start_ns, end_ns, bps in _capacity(path, profile, network)])
    if 100 * planned >= FULL_SHARE_PERCENT * possible:
        return 0
    return max(1, planned // span_ns)


def _capacity(path: Path, profile: Profile, network: Network) -> list[tuple[int, int, int]]:
    """What the narrowest link could carry from the profile's start to its end, piece by piece."""
    lines = [network.capacity_line(link) for link in path]
    if max([len(line.values) for line in lines]) == 1:
        return [(profile.start_ns, profile.end_ns, min([line.values[0] for line in lines]))]
    pieces, at_ns = [], profile.start_ns
    while at_ns < profile.end_ns:
        until_ns = min(profile.end_ns, *[line.next_change(at_ns) for line in lines])
        pieces.append((at_ns, until_ns, min([line.at(at_ns) for line in lines])))
        at_ns = until_ns
    return pieces
