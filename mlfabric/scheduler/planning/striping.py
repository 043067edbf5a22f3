"""Stripes: an AllReduce cut into parts, each through a tree of its own in which other hosts sum and hand on.

In one tree whoever passes on carries the tensor several times while all others carry it once. With as many trees as
stripes, each host passing on in one of them at most, that work is spread over all hosts that have bandwidth to spare
(SplitStream: Castro et al., SOSP 2003, section 3). A host that passes a stripe on for k others carries it k times more,
each way; a slow host passes on for nobody and carries every byte once each way, which is the least it can do. A ring
makes it carry nearly twice that.

The same tree is used both ways. All streams of all stripes run at once and in step, each at the same share of the time
for all: a stream starts when the first chunk of its inputs is there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from mlfabric.network import HORIZON_NS, LinkId, Network, Path, Piece, Profile

__all__ = ["Edge", "Striped", "find_stripes"]

_COUNTS = (2, 3, 4, 6, 8)
_GROWTH = 1.02
_MOST_TRIES = 400
_BIT_NS_PER_BYTE = 8 * 10**9


class Edge(NamedTuple):
    """One stream: a sum toward the root of its stripe, or if ``back`` the result away from it; hosts by number.

    ``level`` is how many hops lie behind it, ``inputs`` which earlier edges end where it begins.
    """

    stripe: int
    source: int
    destination: int
    back: bool
    level: int
    path: Path
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Striped:
    """Stripes, as planned.

    Args:
        size_bytes: of each stripe.
        roots: of each stripe, by number.
        edges: inputs first.
        ready_ns: when the first streams start.
        hop_ns: how much later each further hop starts.
        span_ns: how long a stream of the longest stripe may take.
        done_ns: by host, when it has all of the result.
    """

    size_bytes: tuple[int, ...]
    roots: tuple[int, ...]
    edges: tuple[Edge, ...]
    ready_ns: int
    hop_ns: int
    span_ns: int
    done_ns: tuple[int, ...]

    def profile(self, edge: Edge) -> Profile:
        """Return when an edge's bytes are sent how fast."""
        size_bytes, start_ns = self.size_bytes[edge.stripe], self.ready_ns + edge.level * self.hop_ns
        bps = _rate_bps(size_bytes, self.span_ns)
        end_ns = start_ns - (-size_bytes * _BIT_NS_PER_BYTE // bps)
        return Profile(start_ns, end_ns, (Piece(start_ns, end_ns, bps),))


def find_stripes(
    network: Network, hosts: Sequence[str], size_bytes: int, ready_ns: int, chunk_bytes: int, order: Sequence[int]
) -> Striped | None:
    """Find the stripes after which the last host has the sum first; ``network`` is not changed.

    Args:
        hosts: at least two.
        size_bytes: of every host's tensor, > 0.
        ready_ns: when the last of them is ready.
        chunk_bytes: what is received of every input before it is sent on.
        order: who may pass on, by number; of hosts with equal links those that come first do first. All others get a
            place next to the roots: what they give is expected late.

    Returns:
        None if some link has no capacity, or the tensor is less than two chunks.
    """
    until_ns = ready_ns + 1
    while until_ns < HORIZON_NS:
        case = _Case(network, hosts, size_bytes, ready_ns, chunk_bytes, order, until_ns)
        found = case.best()
        end_ns = max(found.done_ns) if found is not None else HORIZON_NS
        if found is not None and end_ns <= until_ns:
            return found
        if found is None:
            return None
        until_ns = ready_ns + 2 * (end_ns - ready_ns)
    return None


class _Case:
    """What is to be planned, with what every link carries at least until some instant."""

    def __init__(
        self,
        network: Network,
        hosts: Sequence[str],
        size_bytes: int,
        ready_ns: int,
        chunk_bytes: int,
        order: Sequence[int],
        until_ns: int,
    ) -> None:
        self._network, self._hosts, self._size_bytes, self._ready_ns = network, hosts, size_bytes, ready_ns
        self._chunk_bytes, self._order, self._until_ns = chunk_bytes, order, until_ns
        self._free_bps: dict[LinkId, int] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        self._own_bps = [self._slower_bps(host) for host in range(len(hosts))]

    def best(self) -> Striped | None:
        """Return the best number of stripes, the fewest of equals, with the work spread as evenly as that allows."""
        if min(self._own_bps) <= 0:
            return None
        most = max(1, self._size_bytes // max(1, self._chunk_bytes))
        cases = [(count, room) for count in _COUNTS if count <= most and (room := self._room(count)) is not None]
        plans = [(self._planned(count, room), count, room) for count, room in cases]
        able = [(found, count, room) for found, count, room in plans if found is not None]
        if not able:
            return None
        found, count, room = min(able, key=lambda case: max(case[0].done_ns))
        return self._planned(count, self._even(count, room)) or found

    def _slower_bps(self, host: int) -> int:
        """Return what the slower direction of a host's own link carries."""
        other = 1 if host == 0 else 0
        return min(self._bps(self._path(host, other)[0]), self._bps(self._path(other, host)[-1]))

    def _path(self, source: int, destination: int) -> Path:
        key = (source, destination)
        if key not in self._paths:
            self._paths[key] = self._network.path(self._hosts[source], self._hosts[destination])
        return self._paths[key]

    def _bps(self, link: LinkId) -> int:
        if link not in self._free_bps:
            self._free_bps[link] = self._network.free_line(link).least(self._ready_ns, self._until_ns)
        return self._free_bps[link]

    def _room(self, count: int) -> list[int] | None:
        """Return for how many each host may pass a stripe on, in the least time in which that is enough, or None."""
        bits, least = 8 * self._size_bytes, self._least_s()
        for tries in range(_MOST_TRIES):
            span_s = least * _GROWTH**tries
            room = [0] * len(self._own_bps)
            for host in self._order:
                often = count * (self._own_bps[host] * span_s / bits - 1)
                room[host] = max(0, min(len(room), int(often + 1e-9)))
            if self._groups(room, count) is not None:
                return room
        return None

    def _least_s(self) -> float:
        """Return the time below which no stripes, however many, can be.

        In that time the slowest host carries everything once, and what all others carry beyond once is what is to be
        passed on.
        """
        bits, count = 8 * self._size_bytes, len(self._own_bps)
        carried = accumulate(sorted((self._own_bps[host] for host in self._order), reverse=True))
        least_s = min(bits * (count - 1 + k) / bps for k, bps in enumerate(carried))
        return max(bits / min(self._own_bps), least_s)

    def _even(self, count: int, room: Sequence[int]) -> list[int]:
        """Return the least room for each that is enough: as many as may pass on, for few others each."""
        low, high = 0, max(room)
        while low + 1 < high:
            middle = (low + high) // 2
            if self._groups([min(each, middle) for each in room], count) is None:
                low = middle
            else:
                high = middle
        return [min(each, high) for each in room]

    def _planned(self, count: int, room: Sequence[int]) -> Striped | None:
        groups = self._groups(room, count)
        assert groups is not None, "there is room enough"
        return self._striped([self._tree(group, room) for group in groups])

    def _groups(self, room: Sequence[int], count: int) -> list[list[int]] | None:
        """Deal out who passes on in which stripe; a root has room for one more, as it sends its sum to nobody."""
        wanted = len(room) - 2
        groups: list[list[int]] = [[] for _ in range(count)]
        held = [0] * count
        for host in sorted(self._order, key=lambda host: -room[host]):
            least = min(range(count), key=lambda k: (len(groups[k]) > 0 and held[k] >= wanted, held[k], k))
            if groups[least] and held[least] >= wanted:
                return groups
            groups[least].append(host)
            held[least] += room[host]
        return groups if all(groups) and min(held) >= wanted else None

    def _tree(self, group: Sequence[int], room: Sequence[int]) -> list[int]:
        """Return every host's parent, -1 for the root. Near to it are who comes late, who passes on, the slowest."""
        parents = [-1] * len(room)
        root, passing = group[0], set(group)
        late = sorted(set(range(len(room))) - set(self._order))
        near = room[root] + (len(group) == 1)
        rest = sorted((host for host in self._order if host not in passing), key=lambda host: self._own_bps[host])
        slots: deque[int] = deque([root] * (room[root] + 1))
        for host in (*late[:near], *group[1:], *late[near:], *rest):
            parents[host] = slots.popleft()
            if host in passing:
                slots.extend([host] * room[host])
        return parents

    def _striped(self, trees: Sequence[list[int]]) -> Striped | None:
        """Plan all streams of some trees; None if they do not end before the horizon."""
        each = -(-self._size_bytes // len(trees))
        sizes = [max(0, min(each, self._size_bytes - k * each)) for k in range(len(trees))]
        if not sizes[-1]:
            return None
        load: Counter[LinkId] = Counter()
        edges: list[Edge] = []
        for stripe, parents in enumerate(trees):
            for edge in self._edges(stripe, parents, len(edges)):
                edges.append(edge)
                for link in edge.path:
                    load[link] += sizes[stripe]
        if any(self._bps(link) <= 0 for link in load):
            return None
        spans = [_ceil(size_bytes * _BIT_NS_PER_BYTE, self._bps(link)) for link, size_bytes in load.items()]
        span_ns = max(spans, default=1)
        latency_ns = max(self._network.latency_ns(edge.path) for edge in edges)
        slowest_bps = _rate_bps(min(sizes), span_ns)
        if slowest_bps <= 0:
            return None
        hop_ns = _ceil(min(self._chunk_bytes, each) * _BIT_NS_PER_BYTE, slowest_bps) + latency_ns + 1
        if span_ns + 2 * len(self._hosts) * hop_ns >= HORIZON_NS - self._ready_ns:
            return None
        striped = Striped(
            size_bytes=tuple(sizes),
            roots=tuple(parents.index(-1) for parents in trees),
            edges=tuple(edges),
            ready_ns=self._ready_ns,
            hop_ns=hop_ns,
            span_ns=span_ns,
            done_ns=(),
        )
        return self._with_ends(striped)

    def _edges(self, stripe: int, parents: Sequence[int], before: int) -> Iterator[Edge]:
        """Yield the edges of one tree, sums from the leaves on, then the result from the root on."""
        root = parents.index(-1)
        children: dict[int, list[int]] = {}
        for host, parent in enumerate(parents):
            children.setdefault(parent, []).append(host)
        downward = [root]
        for host in downward:
            downward.extend(children.get(host, ()))
        level = [0] * len(parents)
        index: dict[int, int] = {}
        for host in reversed(downward):
            below = children.get(host, ())
            level[host] = 1 + max(level[child] for child in below) if below else 0
            if host != root:
                index[host] = before + len(index)
                inputs = tuple(sorted(index[child] for child in below))
                yield Edge(stripe, host, parents[host], False, level[host], self._path(host, parents[host]), inputs)
        summed = tuple(sorted(index[child] for child in children[root]))
        back: dict[int, int] = {}
        for host in downward[1:]:
            above = parents[host]
            level[host] = level[above] + 1
            back[host] = before + len(index) + len(back)
            inputs = summed if above == root else (back[above],)
            yield Edge(stripe, above, host, True, level[above], self._path(above, host), inputs)

    def _with_ends(self, striped: Striped) -> Striped:
        done_ns = [self._ready_ns] * len(self._hosts)
        for edge in striped.edges:
            if edge.back or edge.destination == striped.roots[edge.stripe]:
                arrive_ns = striped.profile(edge).end_ns + self._network.latency_ns(edge.path)
                done_ns[edge.destination] = max(done_ns[edge.destination], arrive_ns)
        return replace(striped, done_ns=tuple(done_ns))


def _rate_bps(size_bytes: int, span_ns: int) -> int:
    return size_bytes * _BIT_NS_PER_BYTE // span_ns


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
