"""AllReduce: who sums what for whom in one round (design, section 5). Pure.

The planner shapes a round by hosts; here its plan becomes, for each range of the tensor's bytes, a tree into a root and
one out of it. A tree of the planner's is one such pair over all bytes, a stripe one over its part. A ring of N hosts is
N chains, each over an N-th of the bytes and rooted at another host, with the results handed back along the chain: every
link carries what it would in a ring, 2 (N - 1) / N of the size each way, and each chain keeps both directions busy.

Several workers of one host send to one of them, which acts for the host. The root is random among hosts without a slow
link, and so is who starts which chain: drawn from the term and the round, so the same events give the same trees.

A worker that only receives sends nothing and sums nothing; it may hand the result on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from mlfabric.methods.byte_trees import Trees
from mlfabric.methods.shares import held_to_shares
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.specs import ALIGNMENT_BYTES
from mlfabric.network import Network, down_link, up_link
from mlfabric.planning import (
    Batch,
    Candidate,
    Consistency,
    FabricState,
    Plan,
    PlannerConfig,
    Shape,
    is_planner_loaded,
    plan,
)
from mlfabric.planning.plan import Kind, Transfer
from mlfabric.protocol import RoundId, UpdateId

__all__ = ["RING_FROM_NS", "TREES_FROM_NS", "Shaped", "planner_config", "ring_ns", "shape_round", "spread_bps"]

TREES_FROM_NS = 200_000
RING_FROM_NS = 800_000
"""How long a tensor takes over a fast host's link from which on hops, with their messages, are worth while; stripes
as a ring."""
_SLOW_SHARE = 2 / 3
_SPREAD = 1.5
"""How many times the planned rate a stream may have, so that it makes up for what others were late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """How a round is to go.

    Args:
        trees: over all bytes, each byte in one; none of an empty tensor.
        transfers: to be reserved.
        without_stripes: they might have been used, but for not being allowed.
    """

    shape: Shape
    trees: tuple[Trees, ...]
    transfers: tuple[Transfer, ...]
    reason: str
    without_stripes: bool = False


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
    receivers: Mapping[str, str] = MappingProxyType({}),
) -> Shaped | str:
    """Plan a round; ``network`` is not changed.

    Args:
        members: the host of each worker whose tensor is summed; at least one.
        size_bytes: of each worker's tensor.
        late: workers that have not asked yet; nobody is to wait for them longer than needed.
        without: shapes that are not to be used if there are others for such a tensor.
        receivers: the host of each worker that only gets the result; none is a member.

    Returns:
        How it is to go, or why there is no way now.
    """
    draw = random.Random(f"{round_id.term}/{round_id.counter}")
    order = sorted(members)
    draw.shuffle(order)
    hosts = {**members, **receivers}
    leaders: dict[str, str] = {}
    for worker in (*order, *sorted(receivers)):
        leaders.setdefault(hosts[worker], worker)
    if len(leaders) == 1 or not is_planner_loaded():
        found = _star(network, {host: w for host, w in leaders.items() if w in members}, now_ns)
        reason = f"summed at {found}" if len(leaders) == 1 else f"summed at {found}; the planner is not loaded yet"
        pair = _without(_pair(leaders, [], found), receivers)
        return _shaped(Shape.DIRECT, [pair], size_bytes, members, receivers, leaders, (), reason)
    late_hosts = {hosts[worker] for worker in late}
    wire_ns = size_bytes * 8 * 10**9 // max(1, *(_rate_bps(network, host, now_ns) for host in leaders))
    config = planner_config(size_bytes, wire_ns)
    allowed = replace(config, shapes=config.shapes - without or config.shapes)
    planned = _plan(network, leaders, size_bytes, now_ns, late_hosts, allowed)
    if not planned.commits:
        return planned.deferred[0].reason
    transfers, reason = tuple(planned.transfers), planned.commits[0].reason
    if planned.shape is Shape.RING:
        pairs = _chains(transfers, leaders, draw.randrange(len(leaders)))
    elif planned.shape is Shape.STRIPES:
        stripes = range(len(planned.stripe_bytes))
        pairs = [_pair(leaders, [t for t in transfers if t.stripe == stripe], None) for stripe in stripes]
    else:
        pairs = [_pair(leaders, transfers, None)]
    pairs = [_without(pair, receivers) for pair in pairs]
    shaped = _shaped(planned.shape, pairs, size_bytes, members, receivers, leaders, transfers, reason)
    if planned.shape is Shape.STRIPES:
        shaped = replace(shaped, trees=held_to_shares(shaped.trees, network, hosts, now_ns))
    return replace(shaped, without_stripes=Shape.STRIPES in config.shapes & without)


def ring_ns(network: Network, hosts: Collection[str], size_bytes: int, now_ns: int) -> int:
    """Return how long a ring of these hosts needs at least: each link carries nearly twice the tensor.

    Args:
        hosts: at least one.
        size_bytes: of the tensor.
    """
    ring = set(hosts)
    slowest_bps = min(_rate_bps(network, host, now_ns) for host in ring)
    return 2 * (len(ring) - 1) * size_bytes * 8 * 10**9 // (len(ring) * max(1, slowest_bps))


def _plan(
    network: Network,
    leaders: Mapping[str, str],
    size_bytes: int,
    now_ns: int,
    late_hosts: Collection[str],
    config: PlannerConfig,
) -> Plan:
    """Ask the planner; of hosts that are alike, it takes as a root the one that is ready last, here by a nanosecond."""
    updates = tuple(
        Candidate(
            update=UpdateId(worker, 0, 0), source=host, size_bytes=size_bytes, ready_ns=now_ns + place, computed_from=0
        )
        for place, (host, worker) in enumerate(leaders.items())
    )
    return plan(Batch(updates=updates), network, FabricState(now_ns=now_ns, late=frozenset(late_hosts)), config)


def _star(network: Network, leaders: Mapping[str, str], now_ns: int) -> str:
    """Return the worker at the first host without a slow link."""
    rates_bps = {host: _rate_bps(network, host, now_ns) for host in leaders}
    best = max(rates_bps.values())
    return next(worker for host, worker in leaders.items() if rates_bps[host] >= _SLOW_SHARE * best)


def _rate_bps(network: Network, host: str, now_ns: int) -> int:
    """Return what the slower direction of a host's link carries."""
    return min(network.rate_bps(link, now_ns) for link in (up_link(host), down_link(host)))


_Pair = tuple[str, dict[str, str], dict[str, str]]


def _pair(leaders: Mapping[str, str], transfers: Sequence[Transfer], star: str | None) -> _Pair:
    """Return root, parents and sources of the planner's trees, or of a star."""
    if star is not None:
        others = [worker for worker in leaders.values() if worker != star]
        return star, dict.fromkeys(others, star), dict.fromkeys(others, star)
    parents, sources = {}, {}
    for transfer in transfers:
        source, destination = leaders[transfer.source], leaders[transfer.destination]
        if transfer.kind is Kind.MODEL:
            sources[destination] = source
        else:
            parents[source] = destination
    (root,) = set(leaders.values()) - set(parents)
    return root, parents, sources


def _chains(transfers: Sequence[Transfer], leaders: Mapping[str, str], turn: int) -> list[_Pair]:
    """Return a chain to each worker of a ring, the results going back along it."""
    following = {leaders[transfer.source]: leaders[transfer.destination] for transfer in transfers}
    ring = [next(iter(following))]
    while len(ring) < len(following):
        ring.append(following[ring[-1]])
    pairs = []
    for k in range(len(ring)):
        place = (k + turn) % len(ring)
        chain = [*ring[place + 1 :], *ring[: place + 1]]
        parents = dict(itertools.pairwise(chain))
        pairs.append((ring[place], parents, dict(parents)))
    return pairs


def _without(pair: _Pair, receivers: Collection[str]) -> _Pair:
    """Return the trees with nothing summed at a receiver: its inputs go past it, and a member takes its place as a
    root."""
    root, parents, sources = pair
    if root in receivers:
        first = min(worker for worker in parents if worker not in receivers)
        above = _way(parents, first)
        parents = {w: parent for w, parent in parents.items() if w != first}
        parents |= {parent: w for w, parent in itertools.pairwise([first, *above])}
        sources = {w: source for w, source in sources.items() if w != first} | {root: first}
        root = first
    past = {
        worker: next(parent for parent in _way(parents, worker) if parent not in receivers)
        for worker in parents
        if worker not in receivers
    }
    return root, past, sources


def _way(parents: Mapping[str, str], worker: str) -> list[str]:
    """Return all workers on the way from one to the root."""
    way = []
    while worker in parents:
        worker = parents[worker]
        way.append(worker)
    return way


def _shaped(
    shape: Shape,
    pairs: Sequence[_Pair],
    size_bytes: int,
    members: Mapping[str, str],
    receivers: Mapping[str, str],
    leaders: Mapping[str, str],
    transfers: tuple[Transfer, ...],
    reason: str,
) -> Shaped:
    """Deal the bytes out and let each host's other workers send to the one that acts for it."""
    followers = {w: leaders[host] for w, host in sorted({**members, **receivers}.items()) if leaders[host] != w}
    senders = {w: leader for w, leader in followers.items() if w in members}
    bounds, rate_bps = _bounds(size_bytes, len(pairs)), spread_bps(shape, transfers)
    trees = tuple(
        Trees(
            start=start,
            end=end,
            root=root,
            parents={**parents, **senders},
            sources={**sources, **followers},
            rate_bps=rate_bps,
        )
        for (start, end), (root, parents, sources) in zip(bounds, pairs, strict=False)
        if end > start
    )
    return Shaped(shape=shape, trees=trees, transfers=transfers, reason=reason)


def spread_bps(shape: Shape, transfers: Sequence[Transfer]) -> int:
    """Return at which rate streams are spread out: those of stripes meet, and all are to go at the same pace."""
    if shape is not Shape.STRIPES:
        return 0
    return round(_SPREAD * max(piece.bps for transfer in transfers for piece in transfer.profile.pieces))


def _bounds(size_bytes: int, parts: int) -> list[tuple[int, int]]:
    """Cut a tensor into parts that begin at multiples of the alignment; the last ones may be shorter or empty."""
    blocks = -(-size_bytes // ALIGNMENT_BYTES)
    each = -(-blocks // parts) * ALIGNMENT_BYTES
    return [(min(size_bytes, k * each), min(size_bytes, (k + 1) * each)) for k in range(parts)]
