"""How a plan is held without clocks: who waits for whom on shared links, and who is paced.

A plan's times are predictions. What binds is the order: a transfer that the plan starts when another has ended waits
for that one. Pacing keeps transfers that share a link at their planned shares; all others go at full speed, because an
estimate fed by paced transfers would only ever fall (design, section 8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from mlfabric.network import LinkId, Network, Path, Profile

__all__ = ["after", "paced_rate", "predecessors"]

FULL_SHARE_PERCENT = 95

Key = TypeVar("Key", bound=Hashable)
Planned = tuple[Key, Path, Profile]


def predecessors(profile: Profile, path: Path, others: Iterable[Planned[Key]]) -> tuple[Key, ...]:
    """Return which transfers end last, on each link of ``path``, before ``profile`` starts.

    Args:
        others: (id, path, profile) of all other transfers that are planned or under way.

    Returns:
        Their ids, without repetition, in the order of ``others``; one that occupies no time is waited for by nobody.
    """
    wanted = set(path)
    last: dict[LinkId, int] = {}
    before = [
        (key, shared, other.end_ns)
        for key, links, other in others
        if other.start_ns < other.end_ns <= profile.start_ns and (shared := wanted.intersection(links))
    ]
    for _, shared, end_ns in before:
        for link in shared:
            last[link] = max(end_ns, last.get(link, end_ns))
    return tuple(key for key, shared, end_ns in before if any(last[link] == end_ns for link in shared))


def after(new: Sequence[Planned[Key]], running: Iterable[Planned[Key]] = ()) -> tuple[tuple[Key, ...], ...]:
    """Return the ``predecessors`` of each new transfer among all new and running ones, at once.

    Args:
        new: (id, path, profile) of transfers just planned.
        running: the same for those planned earlier and not yet ended.

    Returns:
        For each of ``new``, the ids that it waits for.
    """
    by_link: defaultdict[LinkId, list[tuple[int, int]]] = defaultdict(list)
    known = [*running, *new]
    for n, (_, path, profile) in enumerate(known):
        if profile.start_ns < profile.end_ns:
            for link in path:
                by_link[link].append((profile.end_ns, n))
    for ends in by_link.values():
        ends.sort()
    return tuple(
        tuple(known[n][0] for n in sorted(_last_before(profile.start_ns, path, by_link))) for _, path, profile in new
    )


def _last_before(start_ns: int, path: Path, by_link: dict[LinkId, list[tuple[int, int]]]) -> set[int]:
    found: set[int] = set()
    for link in path:
        ends = by_link.get(link, [])
        stop = bisect_right(ends, start_ns, key=lambda e: e[0])
        first = bisect_right(ends, ends[stop - 1][0] - 1, 0, stop, key=lambda e: e[0]) if stop else 0
        found.update(n for _, n in ends[first:stop])
    return found


def paced_rate(profile: Profile, path: Path, network: Network) -> int:
    """Return the rate at which to pace a transfer in bit/s; 0 means at full speed.

    A transfer is paced, at its planned average, if that is below 95 % of what the narrowest link of its path could
    carry meanwhile: then the plan gives the rest to others.
    """
    span_ns = profile.end_ns - profile.start_ns
    if not path or not profile.pieces or span_ns <= 0:
        return 0
    planned = sum(bps * (end_ns - start_ns) for start_ns, end_ns, bps in profile.pieces)
    possible = sum(bps * (end_ns - start_ns) for start_ns, end_ns, bps in _capacity(path, profile, network))
    if 100 * planned >= FULL_SHARE_PERCENT * possible:
        return 0
    return max(1, planned // span_ns)


def _capacity(path: Path, profile: Profile, network: Network) -> list[tuple[int, int, int]]:
    """What the narrowest link could carry from the profile's start to its end, piece by piece."""
    lines = [network.capacity_line(link) for link in path]
    pieces, at_ns = [], profile.start_ns
    while at_ns < profile.end_ns:
        until_ns = min(profile.end_ns, *[line.next_change(at_ns) for line in lines])
        pieces.append((at_ns, until_ns, min([line.at(at_ns) for line in lines])))
        at_ns = until_ns
    return pieces
