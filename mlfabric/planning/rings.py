"""The ring: every host sends to the next what it has summed so far, piece by piece, then the finished pieces.

Of N hosts each sends 2 (N - 1) / N of the size. All edges run in lockstep, so at every instant all have the rate of the
slowest edge, where edges on one link share it equally; each of the 2 (N - 1) rounds takes the longest latency. A ring
is as fast as its slowest edge, and needs all hosts from the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mlfabric.network import MAX_SIZE_BYTES, LinkId, Network, Path, Profile
from mlfabric.network.profile import transfer_over
from mlfabric.network.timeline import Timeline

__all__ = ["Ring", "find_ring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A ring.

    Args:
        hosts: each sends to the next, the last to the first.
        size_bytes: what each edge carries in all.
        profile: of every edge.
        arrive_ns: when the last round has ended.
    """

    hosts: tuple[str, ...]
    paths: tuple[Path, ...]
    size_bytes: int
    profile: Profile
    arrive_ns: int


def find_ring(network: Network, hosts: Sequence[str], size_bytes: int, ready_ns: int) -> Ring | None:
    """Plan a ring of at least two hosts over what is free.

    Args:
        size_bytes: of the sum.
        ready_ns: when the last of them is ready.

    Returns:
        The ring, or None if it would not end before the horizon.
    """
    order = _tour(network, sorted(hosts))
    paths = tuple(network.path(source, to) for source, to in zip(order, (*order[1:], order[0]), strict=True))
    carried = -(-2 * (len(order) - 1) * size_bytes // len(order))
    if carried > MAX_SIZE_BYTES:
        return None
    crossed = Counter(link for path in paths for link in path)
    profile = transfer_over([_share(network, link, times) for link, times in crossed.items()], carried, ready_ns)
    if profile is None:
        return None
    rounds_ns = 2 * (len(order) - 1) * max(map(network.latency_ns, paths))
    return Ring(
        hosts=order, paths=paths, size_bytes=carried, profile=profile, arrive_ns=profile.end_ns + rounds_ns
    )  # fmt: skip


def _tour(network: Network, hosts: Sequence[str]) -> tuple[str, ...]:
    """Go from each host to the nearest that is left (links, latency, name), so that few links are crossed twice.

    In a star all are equally near.
    """
    if network.is_star:
        return tuple(hosts)
    order, left = [hosts[0]], list(hosts[1:])
    while left:
        nearest = min(left, key=lambda host: _distance(network, order[-1], host))
        left.remove(nearest)
        order.append(nearest)
    return tuple(order)


def _distance(network: Network, source: str, destination: str) -> tuple[int, int, str]:
    path = network.path(source, destination)
    return len(path), network.latency_ns(path), destination


def _share(network: Network, link: LinkId, count: int) -> Timeline:
    """What each of so many edges gets of a link over time."""
    line = network.free_line(link).copy()
    line.values = [max(0, bps) // count for bps in line.values]
    return line
