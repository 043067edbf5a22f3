"""The network once more, deliberately dumb: by link, ascending instants and what is free from each on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from mlfabric.network import HORIZON_NS, LinkId, Network, Path, Piece, Profile

BIT_NS_PER_BYTE = 8 * 10**9


@dataclass
class TwinNetwork:
    """What is free on each link (below zero: nothing), the path of each pair of hosts, each path's latency in ns."""

    path: Callable[[str, str], Path]
    latency_ns: Callable[[Path], int]
    at_ns: dict[LinkId, list[int]] = field(default_factory=dict)
    bps: dict[LinkId, list[int]] = field(default_factory=dict)

    def add(self, link: LinkId, changes: list[tuple[int, int]]) -> None:
        """Add a link with its rate from each instant on, the first at 0."""
        self.at_ns[link] = [at_ns for at_ns, _ in changes]
        self.bps[link] = [bps for _, bps in changes]

    def copy(self) -> TwinNetwork:
        at_ns = {link: list(values) for link, values in self.at_ns.items()}
        return TwinNetwork(self.path, self.latency_ns, at_ns, {link: list(values) for link, values in self.bps.items()})

    def free(self, link: LinkId, now_ns: int) -> tuple[int, int]:
        """Return what is free at an instant, and until when."""
        at_ns = self.at_ns[link]
        i = bisect_right(at_ns, now_ns)
        return max(0, self.bps[link][i - 1]), at_ns[i] if i < len(at_ns) else HORIZON_NS

    def transfer(self, path: Path, size_bytes: int, ready_ns: int) -> Profile | None:
        """Use the least that is free along a path at every instant; None if that takes too long."""
        if not path or size_bytes == 0:
            return Profile(ready_ns, ready_ns, ())
        need, now_ns, pieces = BIT_NS_PER_BYTE * size_bytes, ready_ns, []
        while now_ns < HORIZON_NS:
            here = [self.free(link, now_ns) for link in path]
            bps, until_ns = min(bps for bps, _ in here), min(until_ns for _, until_ns in here)
            if bps > 0:
                end_ns = now_ns + (need + bps - 1) // bps
                pieces.append(Piece(now_ns, min(end_ns, until_ns), bps))
                if end_ns <= until_ns:
                    return Profile(pieces[0].start_ns, end_ns, joined(pieces)) if end_ns < HORIZON_NS else None
                need -= bps * (until_ns - now_ns)
            now_ns = until_ns
        return None

    def reserve(self, path: Path, profile: Profile) -> None:
        for link in path:
            for piece in profile.pieces:
                self.take(link, piece)

    def take(self, link: LinkId, piece: Piece) -> None:
        at_ns, bps = self.at_ns[link], self.bps[link]
        first, end = self.boundary(link, piece.start_ns), self.boundary(link, piece.end_ns)
        for i in range(first, end):
            bps[i] -= piece.bps
        for i in (end, first):
            if 0 < i < len(bps) and bps[i] == bps[i - 1]:
                del at_ns[i], bps[i]

    def boundary(self, link: LinkId, now_ns: int) -> int:
        """Return the index of the change at an instant, made if there is none."""
        at_ns, bps = self.at_ns[link], self.bps[link]
        i = bisect_left(at_ns, now_ns)
        if i == len(at_ns) or at_ns[i] != now_ns:
            at_ns.insert(i, now_ns)
            bps.insert(i, bps[i - 1])
        return i


def joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Join neighbours of one rate."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].end_ns, found[-1].bps) == (piece.start_ns, piece.bps):
            found.append(Piece(found.pop().start_ns, piece.end_ns, piece.bps))
        else:
            found.append(piece)
    return tuple(found)


def twin_network(network: Network) -> TwinNetwork:
    """Describe a network: what is free on its links now and later."""
    twin = TwinNetwork(network.path, network.latency_ns)
    for link in network.links:
        line = network.free_line(link)
        twin.add(link, list(zip(line.times, line.values, strict=False)))
    return twin
