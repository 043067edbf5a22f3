"""Stripes: an AllReduce cut into byte ranges, each with its own trees in which other hosts sum and relay.

In a single tree the inner hosts carry the tensor several times while all others carry it once. With as many trees as
stripes, where each host sums in at most one and relays in at most one, that work is spread over all hosts with free
bandwidth (SplitStream: Castro et al., SOSP 2003, section 3). A host that sums a stripe of k others receives it k times
more, and one that relays it to k others sends it k times more. So summing hosts are chosen by what they can receive,
relaying hosts by what they can send, and a stripe's two trees share only their root. A slow link carries every byte
once, which is the minimum; in a ring it carries nearly twice that. ``stripe_fans.py`` finds how many others each host
does it for; here that becomes trees.

All streams of all stripes run at the same time and take the same time. A stream starts when the first chunk of its
inputs has arrived. A host that only receives is in no tree of sums.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from mlfabric.model.specs import ALIGNMENT_BYTES
from mlfabric.network import HORIZON_NS, LinkId, Network, Path, Piece, Profile, Reservation
from mlfabric.planning.stripe_fans import MOST_FAN, MOST_STRIPES, Fans, Work, alone, sketches

__all__ = ["ABSENT", "Edge", "Hosts", "Striped", "Trees", "edges_of", "find_stripes"]

ABSENT = -2
"""The parent of a host that is in no tree of sums; that of a root is -1."""
HOP_NS = 300_000
"""What a hop takes beside its first chunk: a message, and its way through two processes."""
_HOPS_COUNT_S = 0.05
"""Hops count in rounds of tensors that take less than so long over the fastest link."""
_DOUBT = 0.1
"""The assumed probability that the link that carries most has become as slow as the slowest. It only has to be above 0,
because even stripes take hardly longer than the best."""
_BIT_NS_PER_BYTE = 8 * 10**9
_FIRST_GUESS = 4
"""So many times what the tensor takes over the slowest link a round is expected to take at most."""


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


class Trees(NamedTuple):
    """The trees of one stripe: each host's parent on the way in, and the giver of its result, by number."""

    root: int
    parents: Sequence[int]
    givers: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of a round, numbered by their place.

    Args:
        names: at least two.
        late: by number; they pass nothing on, and are placed next to the roots.
        receivers: by number; they only receive the result, and may hand it on. There is one host more at least.
    """

    names: Sequence[str]
    late: Collection[int] = ()
    receivers: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Striped:
    """Stripes, as planned.

    Args:
        size_bytes: of each stripe; all but the last are multiples of 16.
        ready_ns: when the first streams start.
        hop_ns: how much later each further hop starts.
        span_ns: how long each stream takes.
        done_ns: when the last host has all of the result.
        loads: what goes over each link, in bytes.
    """

    size_bytes: tuple[int, ...]
    trees: tuple[Trees, ...]
    ready_ns: int
    hop_ns: int
    span_ns: int
    done_ns: int
    loads: Mapping[LinkId, int]

    @property
    def over_span(self) -> float:
        """How many times as long as one stream all of them take, the first and the last hops included."""
        return (self.done_ns - self.ready_ns) / self.span_ns

    @property
    def reservations(self) -> Iterator[Reservation]:
        """What all streams together need, from their beginning until the last one ends, of links with the same load."""
        links: dict[int, list[LinkId]] = {}
        for link, size_bytes in self.loads.items():
            links.setdefault(size_bytes, []).append(link)
        for size_bytes, loaded in links.items():
            bps = size_bytes * _BIT_NS_PER_BYTE // (self.done_ns - self.ready_ns)
            if bps:
                piece = Piece(self.ready_ns, self.done_ns, bps)
                yield Reservation(tuple(loaded), Profile(self.ready_ns, self.done_ns, (piece,)))

    def profile(self, stripe: int, level: int) -> Profile:
        """Return the rate profile of a stream that has so many hops before it."""
        size_bytes, start_ns = self.size_bytes[stripe], self.ready_ns + level * self.hop_ns
        if not size_bytes:
            return Profile(start_ns, start_ns, ())
        bps = _rate_bps(size_bytes, self.span_ns)
        end_ns = start_ns - (-size_bytes * _BIT_NS_PER_BYTE // bps)
        return Profile(start_ns, end_ns, (Piece(start_ns, end_ns, bps),))


def find_stripes(
    network: Network,
    hosts: Hosts,
    size_bytes: int,
    ready_ns: int,
    chunk_bytes: Callable[[int], int],
    most: int = MOST_STRIPES,
) -> Striped | None:
    """Find the stripes with which the last host has the sum earliest; ``network`` is not changed.

    Args:
        hosts: earlier ones of those with equal links pass on first.
        size_bytes: of every host's tensor.
        ready_ns: when the last of them is ready.
        chunk_bytes: how much of every input of a stripe is received before it is forwarded, by the stripe's size.
        most: no more stripes than these; 0 for one host that sums and hands on alone.

    Returns:
        None if some link has no capacity, or all that may pass on are late.
    """
    case = _Case(network, hosts, size_bytes, ready_ns, chunk_bytes)
    until_ns, slowest_bps = ready_ns + 1, -1
    while until_ns < HORIZON_NS:
        case.look_ahead(until_ns)
        if case.slowest_bps <= 0:
            return None
        if case.slowest_bps != slowest_bps:
            slowest_bps = case.slowest_bps
            until_ns += _FIRST_GUESS * size_bytes * _BIT_NS_PER_BYTE // slowest_bps + 100 * HOP_NS
            continue
        found = case.best(most)
        if found is None or found.done_ns <= until_ns:
            return found
        until_ns = ready_ns + 2 * (found.done_ns - ready_ns)
    return None


class _Case:
    """The input, with the minimum rate of every link until some instant."""

    def __init__(
        self, network: Network, hosts: Hosts, size_bytes: int, ready_ns: int, chunk_bytes: Callable[[int], int]
    ) -> None:
        self._network, self._hosts, self._size_bytes, self._ready_ns = network, hosts, size_bytes, ready_ns
        self._chunk_bytes = chunk_bytes
        names = hosts.names
        ends = [(names[0], names[1]), *((name, names[0]) for name in names[1:])]
        self._links = [network.path(name, other)[0] for name, other in ends]
        self._links += [network.path(other, name)[-1] for name, other in ends]
        self._lines = network.free_lines(self._links)
        self._gives = [1] * len(names)
        for host in hosts.receivers:
            self._gives[host] = 0

    def look_ahead(self, until_ns: int) -> None:
        """Count on what links carry at least until then."""
        self._until_ns = until_ns
        rates_bps = [max(0, line.least(self._ready_ns, until_ns)) for line in self._lines]
        self._up_bps, self._down_bps = rates_bps[: len(rates_bps) // 2], rates_bps[len(rates_bps) // 2 :]

    @property
    def slowest_bps(self) -> int:
        """What the slowest link carries over which anything must go."""
        return min(*(bps for bps, gives in zip(self._up_bps, self._gives, strict=True) if gives), *self._down_bps)

    def best(self, most: int) -> Striped | None:
        """Return the stripes that are expected to take the least time, the fewest of equals."""
        inward, outward = self._work()
        if not inward.able:
            return None
        enough = max(1, self._size_bytes // max(1, self._chunk_bytes(self._size_bytes)))
        least_s = self._size_bytes * 8 / max(*self._up_bps, *self._down_bps)
        doubt = _DOUBT * self._size_bytes * 8 / self.slowest_bps
        hops_count = least_s < _HOPS_COUNT_S
        found = list(sketches(inward, outward, min(most, enough), hops_count=hops_count)) if most else []
        if not most or (hops_count and len(self._gives) <= MOST_FAN):
            found.append(alone(inward, outward))
        found.sort(key=lambda fans: self._expected_s(fans) + doubt * fans.most)
        planned = (self._striped(fans, inward, outward) for fans in found)
        if self._network.is_star:
            return next((striped for striped in planned if striped is not None), None)
        return min(filter(None, planned), key=lambda striped: striped.done_ns, default=None)

    def _work(self) -> tuple[Work, Work]:
        """Return the work of both ways; times are in s."""
        bits, count = 8 * max(1, self._size_bytes), len(self._gives)
        late = set(self._hosts.late)
        outward = [host for host in range(count) if host not in late and self._up_bps[host]]
        inward = [host for host in outward if self._gives[host]]
        ups, downs = ([bps / bits for bps in rates] for rates in (self._up_bps, self._down_bps))
        return Work(downs, [1] * count, inward, sum(self._gives) - 1), Work(ups, self._gives, outward, count - 1)

    def _expected_s(self, fans: Fans) -> float:
        """Return in what time the stripes of a sketch are expected to be everywhere: of a short one a chunk, which is
        waited for at each hop, is a large part."""
        ends_s = []
        for share, hops in zip(fans.shares, fans.hops, strict=True):
            stripe_bytes = max(1, round(share * self._size_bytes))
            chunk_share = min(1.0, self._chunk_bytes(stripe_bytes) / stripe_bytes)
            ends_s.append(fans.time * (1 + (hops - 1) * chunk_share) + hops * HOP_NS / 1e9)
        return max(ends_s)

    def _striped(self, fans: Fans, inward: Work, outward: Work) -> Striped | None:
        """Make the trees of a sketch; None if they do not end before the horizon."""
        sizes = _sizes(self._size_bytes, fans.shares)
        late = sorted(self._hosts.late)
        late_givers = [host for host in late if self._gives[host]]
        takers = sorted(range(len(self._gives)), key=lambda host: inward.rates[host])
        givers = sorted(filter(self._gives.__getitem__, takers), key=lambda host: outward.rates[host])
        trees, hops = [], 1
        for root, sums, hands in zip(fans.roots, fans.summing, fans.handing, strict=True):
            parents, into = _tree(root, sums, late_givers, givers, len(self._gives))
            above, out = _tree(root, hands, late, takers, len(self._gives))
            trees.append(Trees(root, parents, above))
            hops = max(hops, into + out)
        if self._network.is_star:
            loads, latency_ns = self._host_loads(fans, sizes), self._network.star_latency_ns
        else:
            loads, latency_ns = self._loads(trees, sizes)
        span_ns = max(1, max((self._link_ns(link, size_bytes) for link, size_bytes in loads.items()), default=1))
        if span_ns >= HORIZON_NS - self._ready_ns:
            return None
        used = [(tree, size) for tree, size in zip(trees, sizes, strict=True) if size or len(sizes) == 1]
        rates_bps = [_rate_bps(max(1, size), span_ns) for _, size in used]
        if min(rates_bps) <= 0:
            return None
        chunks = [min(size, self._chunk_bytes(size)) for _, size in used]
        first_chunks_ns = [-(-c * _BIT_NS_PER_BYTE // bps) for c, bps in zip(chunks, rates_bps, strict=True)]
        hop_ns = max(first_chunks_ns) + latency_ns + 1
        done_ns = self._ready_ns + span_ns + (hops - 1) * hop_ns + latency_ns + 1
        if done_ns >= HORIZON_NS:
            return None
        return Striped(
            size_bytes=tuple(size for _, size in used),
            trees=tuple(tree for tree, _ in used),
            ready_ns=self._ready_ns,
            hop_ns=hop_ns,
            span_ns=span_ns,
            done_ns=done_ns,
            loads=loads,
        )

    def _host_loads(self, fans: Fans, sizes: Sequence[int]) -> dict[LinkId, int]:
        """Return what goes over each host's links."""
        up, down = [self._size_bytes * gives for gives in self._gives], [self._size_bytes] * len(self._gives)
        for root, size, sums, hands in zip(fans.roots, sizes, fans.summing, fans.handing, strict=True):
            up[root] -= size
            down[root] -= size
            for host, fan in sums.items():
                down[host] += fan * size
            for host, fan in hands.items():
                up[host] += fan * size
        return {link: size_bytes for link, size_bytes in zip(self._links, (*up, *down), strict=True) if size_bytes}

    def _loads(self, trees: Sequence[Trees], sizes: Sequence[int]) -> tuple[dict[LinkId, int], int]:
        """Return what goes over each link of any network, and the longest latency."""
        network, names = self._network, self._hosts.names
        loads: Counter[LinkId] = Counter()
        latency_ns = 0
        for tree, size in zip(trees, sizes, strict=True):
            for source, destination in _ends(tree):
                path = network.path(names[source], names[destination])
                loads.update(dict.fromkeys(path, size))
                latency_ns = max(latency_ns, network.latency_ns(path))
        return loads, latency_ns

    def _link_ns(self, link: LinkId, size_bytes: int) -> int:
        """Return how long a link takes for so much."""
        bps = self._network.free_line(link).least(self._ready_ns, self._until_ns)
        return -(-size_bytes * _BIT_NS_PER_BYTE // bps) if bps > 0 else HORIZON_NS


def edges_of(striped: Striped, network: Network, names: Sequence[str]) -> list[Edge]:
    """Return all streams of some stripes: of each the sums from the leaves on, then the result from the root on."""
    edges: list[Edge] = []
    for stripe, tree in enumerate(striped.trees):
        _add_edges(edges, stripe, tree, lambda source, to: network.path(names[source], names[to]))
    return edges


def _add_edges(edges: list[Edge], stripe: int, tree: Trees, path: Callable[[int, int], Path]) -> None:
    children, downward = _from_root(tree.root, tree.parents)
    level, index = [0] * len(tree.parents), {}
    for host in reversed(downward):
        below = children.get(host, ())
        level[host] = 1 + max(level[child] for child in below) if below else 0
        if host != tree.root:
            index[host] = len(edges)
            inputs = tuple(sorted(index[child] for child in below))
            parent = tree.parents[host]
            edges.append(Edge(stripe, host, parent, False, level[host], path(host, parent), inputs))
    summed = tuple(sorted(index[child] for child in children.get(tree.root, ())))
    for host in _from_root(tree.root, tree.givers)[1][1:]:
        above = tree.givers[host]
        level[host] = level[above] + 1
        inputs = summed if above == tree.root else (index[above],)
        index[host] = len(edges)
        edges.append(Edge(stripe, above, host, True, level[above], path(above, host), inputs))


def _tree(
    root: int, fans: Mapping[int, int], late: Sequence[int], others: Sequence[int], count: int
) -> tuple[list[int], int]:
    """Return every host's parent, and the most hops to the root: late hosts are nearest, then those that pass on, for
    most first, then all others as they are given."""
    parents, depth = [ABSENT] * count, [0] * count
    parents[root] = -1
    passing = sorted((host for host in fans if host != root), key=lambda host: -fans[host])
    near = fans.get(root, 0) - bool(passing)
    order = dict.fromkeys((*late[:near], *passing, *late[near:], *others))
    order.pop(root, None)
    slots = deque([root] * fans.get(root, 0))
    for host in order:
        parent = parents[host] = slots.popleft()
        depth[host] = depth[parent] + 1
        if host in fans:
            slots.extend([host] * fans[host])
    return parents, max(depth)


def _sizes(size_bytes: int, shares: Sequence[float]) -> list[int]:
    """Cut a tensor into stripes with about these shares; all but the last are multiples of the alignment."""
    blocks, bounds = -(-size_bytes // ALIGNMENT_BYTES), [0]
    for k in range(1, len(shares)):
        bounds.append(min(size_bytes, round(blocks * sum(shares[:k])) * ALIGNMENT_BYTES))
    return [end - start for start, end in pairwise((*bounds, size_bytes))]


def _ends(tree: Trees) -> Iterator[tuple[int, int]]:
    """Yield who sends to whom."""
    for host, parent in enumerate(tree.parents):
        if parent >= 0:
            yield host, parent
    for host, giver in enumerate(tree.givers):
        if giver >= 0:
            yield giver, host


def _rate_bps(size_bytes: int, span_ns: int) -> int:
    return size_bytes * _BIT_NS_PER_BYTE // span_ns


def _from_root(root: int, parents: Sequence[int]) -> tuple[dict[int, list[int]], list[int]]:
    """Return every host's children, and all hosts of the tree from the root on."""
    children: dict[int, list[int]] = {}
    for host, parent in enumerate(parents):
        children.setdefault(parent, []).append(host)
    downward = [root]
    for host in downward:
        downward.extend(children.get(host, ()))
    return children, downward
