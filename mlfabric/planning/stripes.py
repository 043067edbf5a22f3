"""Stripes: an AllReduce cut into byte ranges, each with its own trees in which other hosts sum and relay.

In a single tree the inner hosts carry the tensor several times while all others carry it once. With as many trees as
stripes, where each host sums in at most one and relays in at most one, that work is spread over all hosts with free
bandwidth (SplitStream: Castro et al., SOSP 2003, section 3). A host that sums a stripe of k others receives it k times
more, and one that relays it to k others sends it k times more. So summing hosts are chosen by what they can receive,
relaying hosts by what they can send, and a stripe's two trees share only their root. A slow link carries every byte
once, which is the minimum; in a ring it carries nearly twice that. Links may have become slow since they were measured:
another reason to have many hosts relay, each for few others, because a slow host delays its stripe by the number of
hosts that it relays for.

All streams of all stripes run at the same time and take the same time. A stream starts when the first chunk of its
inputs has arrived.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from mlfabric.network import HORIZON_NS, LinkId, Network, Path, Piece, Profile

__all__ = ["Edge", "Striped", "find_stripes"]

_COUNTS = (2, 3, 4)
_GROWTH = 1.02
_MOST_TRIES = 400
_DOUBT = 0.1
"""The assumed probability that the link that carries most has become as slow as the slowest. It only has to be above 0,
because even stripes take hardly longer than the best."""
_SPREADS = (1, 2)
"""A host relays for at most this many times as many others as in the most even stripes; stripes without such a limit
are considered, too."""
_BIT_NS_PER_BYTE = 8 * 10**9


class Edge(NamedTuple):
    """One stream: a sum toward the root of its stripe, or if ``back`` the result away from it; hosts by number.

    ``level`` is the number of hops before it, ``inputs`` are the earlier edges that end where it begins.
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
        """Return the rate profile of an edge."""
        size_bytes, start_ns = self.size_bytes[edge.stripe], self.ready_ns + edge.level * self.hop_ns
        bps = _rate_bps(size_bytes, self.span_ns)
        end_ns = start_ns - (-size_bytes * _BIT_NS_PER_BYTE // bps)
        return Profile(start_ns, end_ns, (Piece(start_ns, end_ns, bps),))


def find_stripes(
    network: Network, hosts: Sequence[str], size_bytes: int, ready_ns: int, chunk_bytes: int, order: Sequence[int]
) -> Striped | None:
    """Find the stripes with which the last host has the sum earliest; ``network`` is not changed.

    Args:
        hosts: at least two.
        size_bytes: of every host's tensor, > 0.
        ready_ns: when the last of them is ready.
        chunk_bytes: how much of every input is received before it is forwarded.
        order: hosts that may relay, by number; of hosts with equal links earlier ones are used first. All others are
            placed next to the roots, because their tensors are expected late.

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


class _Room(NamedTuple):
    """For how many others each host may sum a stripe, and to how many it may relay one; by number."""

    summing: tuple[int, ...]
    handing: tuple[int, ...]


class _Sketch(NamedTuple):
    """Each stripe's two trees, how long they take, and the load of the host link that carries most."""

    trees: list[tuple[list[int], list[int]]]
    took_ns: int
    most_bytes: int


class _Case:
    """The input, with the minimum rate of every link until some instant."""

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
        self._ways: dict[tuple[int, int], tuple[Path, int]] = {}
        others = [1 if host == 0 else 0 for host in range(len(hosts))]
        self._up_bps = [self._bps(self._path(host, other)[0]) for host, other in enumerate(others)]
        self._down_bps = [self._bps(self._path(other, host)[-1]) for host, other in enumerate(others)]

    def best(self) -> Striped | None:
        """Return the stripes that are expected to take the least time, the fewest of equals."""
        slowest_bps = min(*self._up_bps, *self._down_bps)
        if slowest_bps <= 0:
            return None
        most = max(1, self._size_bytes // max(1, self._chunk_bytes))
        sketches = [sketch for count in _COUNTS if count <= most for sketch in self._sketches(count)]
        doubt_ns_per_byte = _DOUBT * _BIT_NS_PER_BYTE / slowest_bps
        sketches.sort(key=lambda sketch: sketch.took_ns + doubt_ns_per_byte * sketch.most_bytes)
        return next((found for sketch in sketches if (found := self._striped(sketch.trees)) is not None), None)

    def _sketches(self, count: int) -> Iterator[_Sketch]:
        """Yield stripes of this number: in the least time, and with the work spread evenly."""
        room = self._room(count)
        if room is None:
            return
        roots = self._roots(room, count)
        least = [self._least_room(way, roots) for way in room]
        for times in (*_SPREADS, len(self._hosts)):
            summing, handing = (
                tuple(min(each, times * most) for each in way) for way, most in zip(room, least, strict=True)
            )
            yield self._sketch(_Room(summing, handing), roots)

    def _path(self, source: int, destination: int) -> Path:
        return self._way(source, destination)[0]

    def _way(self, source: int, destination: int) -> tuple[Path, int]:
        """Return the path between two hosts, and its latency."""
        key = (source, destination)
        if key not in self._ways:
            path = self._network.path(self._hosts[source], self._hosts[destination])
            self._ways[key] = path, self._network.latency_ns(path)
        return self._ways[key]

    def _bps(self, link: LinkId) -> int:
        if link not in self._free_bps:
            self._free_bps[link] = self._network.free_line(link).least(self._ready_ns, self._until_ns)
        return self._free_bps[link]

    def _room(self, count: int) -> _Room | None:
        """Return for how many others each host may relay a stripe, in the shortest sufficient time, or None."""
        bits, least_s = 8 * self._size_bytes, max(self._least_s(self._down_bps), self._least_s(self._up_bps))
        for tries in range(_MOST_TRIES):
            most = count * least_s * _GROWTH**tries / bits
            room = _Room(self._passing(self._down_bps, most, count), self._passing(self._up_bps, most, count))
            roots = self._roots(room, count)
            enough = len(roots) == count and all(self._groups(way, roots) is not None for way in room)
            if enough:
                return room
        return None

    def _passing(self, rates_bps: Sequence[int], most: float, count: int) -> tuple[int, ...]:
        """Return how many more stripes than its own each host's link carries; 0 for hosts that may not relay.

        Args:
            most: how many stripes a link of 1 bit/s carries in the time for all.
        """
        able = set(self._order)
        often = [int(bps * most - count + 1e-9) if host in able else 0 for host, bps in enumerate(rates_bps)]
        return tuple(max(0, min(len(rates_bps), each)) for each in often)

    def _least_s(self, rates_bps: Sequence[int]) -> float:
        """Return a lower bound of the time of any number of stripes, by the links of one direction.

        In that time the slowest link carries everything once, and all others carry, beyond once, what is to be relayed.
        """
        bits, count = 8 * self._size_bytes, len(rates_bps)
        carried = accumulate(sorted((rates_bps[host] for host in self._order), reverse=True))
        least_s = min(bits * (count - 1 + k) / bps for k, bps in enumerate(carried))
        return max(bits / min(rates_bps), least_s)

    def _least_room(self, way: Sequence[int], roots: Sequence[int]) -> int:
        """Return the smallest possible maximum of hosts that one host relays for."""
        low, high = 0, max(way)
        while low + 1 < high:
            middle = (low + high) // 2
            if self._groups([min(each, middle) for each in way], roots) is None:
                low = middle
            else:
                high = middle
        return high

    def _sketch(self, room: _Room, roots: Sequence[int]) -> _Sketch:
        sums, hands = self._groups(room.summing, roots), self._groups(room.handing, roots)
        assert sums is not None, "there is room enough to sum"
        assert hands is not None, "there is room enough to hand on"
        summing = [self._tree(group, room.summing, self._up_bps) for group in sums]
        handing = [self._tree(group, room.handing, self._down_bps) for group in hands]
        trees = list(zip(summing, handing, strict=True))
        each, count = -(-self._size_bytes // len(trees)), len(room.summing)
        up, down, latency_ns, levels = [0] * count, [0] * count, 0, 0
        load: Counter[LinkId] = Counter()
        for parents, givers in trees:
            for source, destination in (*enumerate(parents), *((giver, host) for host, giver in enumerate(givers))):
                if source >= 0 and destination >= 0:
                    up[source], down[destination] = up[source] + 1, down[destination] + 1
                    path, path_ns = self._way(source, destination)
                    load.update(path)
                    latency_ns = max(latency_ns, path_ns)
            levels = max(levels, _height(parents) + _height(givers))
        slowest = max(number / max(1, self._bps(link)) for link, number in load.items())
        span_ns = round(each * _BIT_NS_PER_BYTE * slowest)
        hop_ns = self._hop_ns(each, _rate_bps(each, max(1, span_ns)), latency_ns)
        return _Sketch(trees, span_ns + (levels - 1) * hop_ns + latency_ns, each * max(*up, *down))

    def _hop_ns(self, stripe_bytes: int, slowest_bps: int, latency_ns: int) -> int:
        """Return how much later than its inputs a stream starts."""
        chunk_bytes = min(self._chunk_bytes, stripe_bytes)
        return _ceil(chunk_bytes * _BIT_NS_PER_BYTE, max(1, slowest_bps)) + latency_ns + 1

    def _roots(self, room: _Room, count: int) -> list[int]:
        """Return the stripes' possible roots: hosts with the most free capacity in both directions."""
        able = sorted(self._order, key=lambda host: -min(room.summing[host], room.handing[host]))
        return able[:count]

    def _groups(self, room: Sequence[int], roots: Sequence[int]) -> list[list[int]] | None:
        """Assign the relaying hosts of one direction; a root has room for one more, because its stripe ends there."""
        wanted = len(room) - 2
        groups, held = [[root] for root in roots], [room[root] for root in roots]
        taken = set(roots)
        for host in sorted((host for host in self._order if host not in taken), key=lambda host: -room[host]):
            least = min(range(len(held)), key=lambda k: (held[k], k))
            if held[least] >= wanted or not room[host]:
                break
            groups[least].append(host)
            held[least] += room[host]
        return groups if min(held) >= wanted else None

    def _tree(self, group: Sequence[int], room: Sequence[int], own_bps: Sequence[int]) -> list[int]:
        """Return every host's parent, -1 for the root. Near the root are late hosts, relaying hosts, the slowest."""
        parents = [-1] * len(room)
        root, passing = group[0], set(group)
        late = sorted(set(range(len(room))) - set(self._order))
        near = room[root] + (len(group) == 1)
        rest = sorted((host for host in self._order if host not in passing), key=lambda host: own_bps[host])
        slots: deque[int] = deque([root] * (room[root] + 1))
        for host in (*late[:near], *group[1:], *late[near:], *rest):
            parents[host] = slots.popleft()
            if host in passing:
                slots.extend([host] * room[host])
        return parents

    def _striped(self, trees: Sequence[tuple[list[int], list[int]]]) -> Striped | None:
        """Plan all streams of some trees, each stripe's two; None if they do not end before the horizon."""
        each = -(-self._size_bytes // len(trees))
        sizes = [max(0, min(each, self._size_bytes - k * each)) for k in range(len(trees))]
        if not sizes[-1]:
            return None
        load: Counter[LinkId] = Counter()
        edges: list[Edge] = []
        for stripe, (parents, givers) in enumerate(trees):
            for edge in self._edges(stripe, parents, givers, len(edges)):
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
        hop_ns = self._hop_ns(each, slowest_bps, latency_ns)
        if span_ns + 2 * len(self._hosts) * hop_ns >= HORIZON_NS - self._ready_ns:
            return None
        striped = Striped(
            size_bytes=tuple(sizes),
            roots=tuple(parents.index(-1) for parents, _ in trees),
            edges=tuple(edges),
            ready_ns=self._ready_ns,
            hop_ns=hop_ns,
            span_ns=span_ns,
            done_ns=(),
        )
        return self._with_ends(striped)

    def _edges(self, stripe: int, parents: Sequence[int], givers: Sequence[int], before: int) -> Iterator[Edge]:
        """Yield the edges of a stripe, sums from the leaves on, then the result from the root on."""
        root = parents.index(-1)
        children, downward = _from_root(parents)
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
        for host in _from_root(givers)[1][1:]:
            above = givers[host]
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


def _from_root(parents: Sequence[int]) -> tuple[dict[int, list[int]], list[int]]:
    """Return every host's children, and all hosts from the root on."""
    children: dict[int, list[int]] = {}
    for host, parent in enumerate(parents):
        children.setdefault(parent, []).append(host)
    downward = [parents.index(-1)]
    for host in downward:
        downward.extend(children.get(host, ()))
    return children, downward


def _height(parents: Sequence[int]) -> int:
    """Return how many hops the farthest host is from the root."""
    depth = [0] * len(parents)
    for host in _from_root(parents)[1][1:]:
        depth[host] = depth[parents[host]] + 1
    return max(depth)


def _rate_bps(size_bytes: int, span_ns: int) -> int:
    return size_bytes * _BIT_NS_PER_BYTE // span_ns


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
