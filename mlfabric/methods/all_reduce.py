"""AllReduce: who sums what for whom in one round (design, section 5). Pure.

The planner finds a way for hosts; here it becomes, for each range of the tensor's bytes, a tree into a root and one out
of it. A tree of the planner's is one such pair over all bytes, a stripe one over its part. A ring of N hosts is N
chains, each over an N-th of the bytes and rooted at another host, with the results handed back along the chain: every
link carries what it would in a ring, 2 (N - 1) / N of the size each way, and each chain keeps both directions busy. Of
more than ``MOST_CHAINS`` hosts there are ``CHAINS_OF_MANY`` chains, and each link carries about twice the size: the
number of streams of all chains would grow with the square.

Several workers of one host send to one of them, which acts for the host. Which of several hosts that are alike is a
root, and who starts which chain, is random: drawn from the term and the round, so the same events give the same trees.

A worker that only receives sends nothing and sums nothing; it may hand the result on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mlfabric.methods.byte_trees import Trees
from mlfabric.methods.shares import held_to_shares
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.specs import ALIGNMENT_BYTES
from mlfabric.network import Network, Reservation, down_link, up_link
from mlfabric.planning import Consistency, PlannerConfig, Shape
from mlfabric.planning.all_reduce import Way, way_of
from mlfabric.planning.rings import Ring
from mlfabric.planning.stripes import Hosts, Striped
from mlfabric.protocol import RoundId

__all__ = ["RING_FROM_NS", "TREES_FROM_NS", "Shaped", "planner_config", "ring_ns", "shape_round"]

TREES_FROM_NS = 200_000
RING_FROM_NS = 800_000
"""How long a tensor takes over a fast host's link from which on hops, with their messages, are worth while; stripes
as a ring."""
MOST_CHAINS, CHAINS_OF_MANY = 16, 8
_SHARED = 2
"""How many times as long a round takes over links that others use at the same time: TCP shares them."""
_SHORT_BYTES = 64 * 1024
"""A tensor of so many on a single tree fits into any queue: its streams need no rate."""
_AHEAD = 1.5
"""For how many times the planned rate a stream has enough on its way, so that it makes up for what others were late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """How a round is to go.

    Args:
        trees: over all bytes, each byte in one; none of an empty tensor.
        transfers: what is to be reserved for them.
        without_stripes: they might have been used, but for not being allowed.
        summed: by worker, of how many contributions its result is the sum, if not all get the sum of all.
        planned_ns: how long it is to take, where nothing is reserved; 0 if nobody is to watch that.
        is_best: nothing that might be learnt of links would make it shorter.
        shares: others use its links at the same time.
    """

    shape: Shape
    trees: tuple[Trees, ...]
    transfers: tuple[Reservation, ...]
    reason: str
    without_stripes: bool = False
    summed: Mapping[str, int] = field(default_factory=dict)
    planned_ns: int = 0
    is_best: bool = False
    shares: bool = False


def planner_config(size_bytes: int, wire_ns: int) -> PlannerConfig:
    """Return what the planner may choose from for a tensor; one that is quickly sent is not worth many hops.

    Args:
        wire_ns: how long it takes over a fast host's link.
    """
    shapes = {Shape.DIRECT}
    if wire_ns >= TREES_FROM_NS:
        shapes.add(Shape.TREE)
    if wire_ns >= RING_FROM_NS:
        shapes |= {Shape.RING, Shape.STRIPES}
    chunk = chunk_bytes(size_bytes)
    return PlannerConfig(consistency=Consistency.ALL_REDUCE, shapes=frozenset(shapes), chunk_bytes=chunk)


def shape_round(
    network: Network,
    members: Mapping[str, str],
    size_bytes: int,
    round_id: RoundId,
    now_ns: int,
    late: Collection[str] = (),
    without: frozenset[Shape] = frozenset(),
    *,
    receivers: Mapping[str, str] = MappingProxyType({}),
) -> Shaped | str:
    """Plan a round; ``network`` is not changed.

    Args:
        members: the host of each worker whose tensor is summed; at least one.
        size_bytes: of each worker's tensor.
        late: workers that have not asked yet; nobody is to wait for them longer than needed.
        without: shapes that are not to be used if there are others for such a tensor, and nobody only receives.
        receivers: the host of each worker that only gets the result; none is a member.

    Returns:
        How it is to go, or why there is no way now.
    """
    making = _Making(members, receivers, size_bytes, round_id)
    hosts = making.hosts(late)
    if len(hosts.names) == 1:
        return making.shaped(Shape.DIRECT, [making.star()], f"summed at {making.leaders[hosts.names[0]]}")
    wire_ns = size_bytes * 8 * 10**9 // max(1, *(_rate_bps(network, host, now_ns) for host in hosts.names))
    possible = planner_config(size_bytes, wire_ns).shapes
    shapes = possible - (without if not receivers else frozenset()) or possible
    way, planned_ns = _way(network, hosts, size_bytes, now_ns, shapes)
    if way.ring is not None:
        shaped = making.in_ring(way.ring, way.reason)
    elif way.striped is not None:
        shaped = making.in_stripes(way.shape, way.striped, way.reason)
    else:
        return way.reason
    if way.striped is not None and way.shape is Shape.STRIPES:
        held = held_to_shares(shaped.trees, network, making.hosts_of_all, now_ns, way.striped.over_span)
        shaped = replace(shaped, trees=held)
    if planned_ns:
        shaped = replace(shaped, transfers=(), planned_ns=planned_ns, shares=True)
    return replace(shaped, without_stripes=Shape.STRIPES in possible - shapes)


def _way(network: Network, hosts: Hosts, size_bytes: int, now_ns: int, shapes: frozenset[Shape]) -> tuple[Way, int]:
    """Find a way over what is free of links, or, if that takes much longer, over all of them: others will share them.

    Returns:
        The way; and how long it is to take, nothing being reserved for it: 0 if it goes over what is free.
    """
    way = way_of(network, hosts, size_bytes, now_ns, chunk_bytes, shapes)
    if not network.has_reservations({link(host) for host in hosts.names for link in (up_link, down_link)}):
        return way, 0
    alone = way_of(network.without_reservations(), hosts, size_bytes, now_ns, chunk_bytes, shapes)
    if alone.done_ns is None:
        return way, 0
    planned_ns = _SHARED * (alone.done_ns - now_ns)
    if way.done_ns is not None and way.done_ns - now_ns <= planned_ns:
        return way, 0
    return alone._replace(reason=f"{alone.reason}, over links that others use as well"), planned_ns


def ring_ns(network: Network, hosts: Collection[str], size_bytes: int, now_ns: int) -> int:
    """Return how long a ring of these hosts needs at least: each link carries nearly twice the tensor.

    Args:
        hosts: at least one.
        size_bytes: of the tensor.
    """
    ring = set(hosts)
    slowest_bps = min(_rate_bps(network, host, now_ns) for host in ring)
    return 2 * (len(ring) - 1) * size_bytes * 8 * 10**9 // (len(ring) * max(1, slowest_bps))


def _rate_bps(network: Network, host: str, now_ns: int) -> int:
    """Return what the slower direction of a host's link carries."""
    return min(network.rate_bps(link, now_ns) for link in (up_link(host), down_link(host)))


_Pair = tuple[str, dict[str, str], dict[str, str]]
"""Root, parents and sources over workers that act for their hosts."""


class _Making:
    """Makes trees over workers of what was planned for hosts.

    Attributes:
        leaders: by host, the worker that acts for it, members first; in random order.
        hosts_of_all: the host of each worker.
    """

    def __init__(
        self, members: Mapping[str, str], receivers: Mapping[str, str], size_bytes: int, round_id: RoundId
    ) -> None:
        self._draw = random.Random(f"{round_id.term}/{round_id.counter}")
        self._members, self._size_bytes = members, size_bytes
        self.hosts_of_all = {**members, **receivers}
        self.leaders: dict[str, str] = {}
        for workers in (sorted(members), sorted(receivers)):
            self._draw.shuffle(workers)
            for worker in workers:
                self.leaders.setdefault(self.hosts_of_all[worker], worker)
        self._followers = {
            worker: leader
            for worker, host in sorted(self.hosts_of_all.items())
            if (leader := self.leaders[host]) != worker
        }

    def hosts(self, late: Collection[str]) -> Hosts:
        """Return the hosts in the order of their leaders."""
        late_hosts = {self.hosts_of_all[worker] for worker in late}
        names = list(self.leaders)
        return Hosts(
            names=names,
            late=[number for number, name in enumerate(names) if name in late_hosts],
            receivers=[number for number, name in enumerate(names) if self.leaders[name] not in self._members],
        )

    def star(self) -> _Pair:
        """Return the trees of a single host."""
        return next(iter(self.leaders.values())), {}, {}

    def in_stripes(self, shape: Shape, striped: Striped, reason: str) -> Shaped:
        """Make the trees of stripes, or of a single one."""
        workers, pairs = list(self.leaders.values()), []
        for tree in striped.trees:
            parents = {workers[host]: workers[to] for host, to in enumerate(tree.parents) if to >= 0}
            sources = {workers[host]: workers[giver] for host, giver in enumerate(tree.givers) if giver >= 0}
            pairs.append((workers[tree.root], parents, sources))
        bounds = list(itertools.pairwise((0, *itertools.accumulate(striped.size_bytes))))
        shaped = self.shaped(shape, pairs, reason, bounds, tuple(striped.reservations))
        if shape is not Shape.STRIPES and self._size_bytes <= _SHORT_BYTES:
            return shaped
        per_byte = _AHEAD * striped.over_span * 8e9 / striped.span_ns
        trees = tuple(replace(tree, rate_bps=round(per_byte * (tree.end - tree.start))) for tree in shaped.trees)
        return replace(shaped, trees=trees)

    def in_ring(self, ring: Ring, reason: str) -> Shaped:
        """Make a chain to each worker of a ring, or to some of many, the results going back along it."""
        workers = [self.leaders[host] for host in ring.hosts]
        count, turn = len(workers), self._draw.randrange(len(workers))
        chains, pairs = count if count <= MOST_CHAINS else CHAINS_OF_MANY, []
        for k in range(chains):
            place = (k * count // chains + turn) % count
            chain = [*workers[place + 1 :], *workers[: place + 1]]
            parents = dict(itertools.pairwise(chain))
            pairs.append((workers[place], parents, dict(parents)))
        reserved = tuple(Reservation(path, ring.profile) for path in ring.paths)
        return self.shaped(Shape.RING, pairs, reason, transfers=reserved)

    def shaped(
        self,
        shape: Shape,
        pairs: Sequence[_Pair],
        reason: str,
        bounds: Sequence[tuple[int, int]] = (),
        transfers: tuple[Reservation, ...] = (),
    ) -> Shaped:
        """Let each host's other workers send to the one that acts for it; deal the bytes out evenly if not told how."""
        senders = {worker: leader for worker, leader in self._followers.items() if worker in self._members}
        trees = tuple(
            Trees(
                start=start,
                end=min(end, self._size_bytes),
                root=root,
                parents={**parents, **senders},
                sources={**sources, **self._followers},
            )
            for (start, end), (root, parents, sources) in zip(
                bounds or _bounds(self._size_bytes, len(pairs)), pairs, strict=True
            )
            if min(end, self._size_bytes) > start
        )
        return Shaped(shape=shape, trees=trees, transfers=transfers, reason=reason)


def _bounds(size_bytes: int, parts: int) -> list[tuple[int, int]]:
    """Cut a tensor into parts that begin at multiples of the alignment; the last ones may be shorter or empty."""
    blocks = -(-size_bytes // ALIGNMENT_BYTES)
    each = -(-blocks // parts) * ALIGNMENT_BYTES
    return [(min(size_bytes, k * each), min(size_bytes, (k + 1) * each)) for k in range(parts)]
