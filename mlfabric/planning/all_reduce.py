"""AllReduce: the sum of all updates goes to every worker; there is no server (design, section 5).

Every worker's host may sum and relay. The tensor goes in stripes (``stripes.py``), a single tree being one stripe, or
all hosts make a ring (``rings.py``), if that is faster: in a star it never is, in other networks it crosses few links
between switches. If a host cannot send to the others or be reached
by them, there is no sum, and all updates wait. Hosts that are late relay nothing, and there is no ring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from mlfabric.errors import UsageError
from mlfabric.network import CORE, LinkId, Network
from mlfabric.planning.plan import Commit, Deferred, Group, Kind, Plan, Toward, Transfer
from mlfabric.planning.problem import Batch, FabricState, PlannerConfig, Shape
from mlfabric.planning.rings import Ring, find_ring
from mlfabric.planning.stripe_fans import MOST_STRIPES
from mlfabric.planning.stripes import Edge, Hosts, Striped, edges_of, find_stripes
from mlfabric.planning.words import link_text
from mlfabric.protocol import UpdateId

__all__ = ["Way", "plan_all_reduce", "way_of"]

_CLEARLY = 0.8
"""A link is clearly slower than most if it carries less than this part of what the middle one does."""


class Way(NamedTuple):
    """How a tensor goes to all and back: in stripes or as a ring; if both are None, ``reason`` says why not at all."""

    shape: Shape
    striped: Striped | None
    ring: Ring | None
    reason: str

    @property
    def done_ns(self) -> int | None:
        """When the last host has the sum; None if there is no way."""
        if self.ring is not None:
            return self.ring.arrive_ns
        return None if self.striped is None else self.striped.done_ns


def way_of(
    network: Network,
    hosts: Hosts,
    size_bytes: int,
    ready_ns: int,
    chunk_bytes: Callable[[int], int],
    shapes: Collection[Shape],
) -> Way:
    """Find how every host gets the sum earliest; ``network`` is not changed.

    Args:
        hosts: at least two.
        size_bytes: of every host's tensor.
        ready_ns: when the last of them is ready.
        chunk_bytes: how much of every input of a stripe is received before it is forwarded, by the stripe's size.
        shapes: that may be used; DIRECT is always among them.
    """
    most = MOST_STRIPES if Shape.STRIPES in shapes else 1 if Shape.TREE in shapes else 0
    striped = find_stripes(network, hosts, size_bytes, ready_ns, chunk_bytes if most else _whole, most)
    may_be_ring = Shape.RING in shapes and not hosts.late and not hosts.receivers
    may_be_faster = most < MOST_STRIPES or not network.is_star
    ring = find_ring(network, hosts.names, size_bytes, ready_ns) if may_be_ring and may_be_faster else None
    if ring is not None and (striped is None or ring.arrive_ns < striped.done_ns):
        crossed = Counter(link for path in ring.paths for link in path)
        takes = _ms(ring.arrive_ns - ready_ns) + _held_up(network, crossed, ready_ns)
        reason = f"ring of {len(hosts.names)}: {takes}"
        return Way(Shape.RING, None, ring, reason)
    if striped is None:
        reason = f"no way from each of {len(hosts.names)} hosts to all others: some link has no capacity"
        return Way(Shape.DIRECT, None, None, reason)
    roots = [hosts.names[tree.root] for tree in striped.trees]
    takes = _ms(striped.done_ns - ready_ns) + _held_up(network, striped.loads, ready_ns)
    if len(roots) > 1 or (most > 1 and hosts.late):
        stripes = "one stripe" if len(roots) == 1 else f"{len(roots)} stripes"
        return Way(Shape.STRIPES, striped, None, f"in {stripes} summed at {', '.join(roots)}: {takes}")
    shape, how = (Shape.TREE, "cut-through trees") if most else (Shape.DIRECT, "directly")
    return Way(shape, striped, None, f"summed at {roots[0]}, {how}: {takes}")


def _whole(size_bytes: int) -> int:
    """Return how much is received before it is forwarded if everything is stored first."""
    return size_bytes


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"


def _held_up(network: Network, loads: Mapping[LinkId, int], at_ns: int) -> str:
    """Name the link that is busy for the longest, if it is clearly slower than most of its direction; else ""."""
    if not loads:
        return ""
    rates_bps = {link: network.free_line(link).at(at_ns) for link in loads}
    longest = max(loads, key=lambda link: loads[link] / max(1, rates_bps[link]))
    alike = [bps for link, bps in rates_bps.items() if _direction(link) == _direction(longest)]
    is_slow = rates_bps[longest] < _CLEARLY * median(alike)
    return f", held up by {link_text(longest)}" if is_slow else ""


def _direction(link: LinkId) -> tuple[bool, bool]:
    """Tell links into a star's core, out of it, and those of other networks apart."""
    return link.tail == CORE, link.head == CORE


def plan_all_reduce(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
    """Plan how every worker gets the sum of a batch; ``network`` is not changed.

    If no shape reaches all workers, nothing is sent and every update is deferred.

    Raises:
        UsageError: updates of different sizes.
    """
    return _Sum(batch, network, state, config).plan()


class _Sum:
    """What is to be summed, in the order of ids; hosts are numbered, the last that is ready first."""

    def __init__(self, batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> None:
        self._batch, self._network, self._state, self._config = batch, network, state, config
        self._updates = sorted(batch.updates, key=lambda candidate: candidate.update)
        self._ids = tuple(candidate.update for candidate in self._updates)
        sizes = {candidate.size_bytes for candidate in self._updates}
        if len(sizes) > 1:
            raise UsageError(f"an AllReduce of {min(sizes)} to {max(sizes)} bytes; all updates must have one size")
        self._size_bytes = max(sizes, default=0)
        ready_ns: dict[str, int] = {}
        for candidate in self._updates:
            ready_ns[candidate.source] = max(state.now_ns, candidate.ready_ns, ready_ns.get(candidate.source, 0))
        self._names = sorted(ready_ns, key=lambda name: (-ready_ns[name], name))
        self._number = {name: number for number, name in enumerate(self._names)}
        self._host_ready_ns = [ready_ns[name] for name in self._names]
        self._ready_ns = max(self._host_ready_ns, default=state.now_ns)

    def plan(self) -> Plan:
        """Plan it."""
        way, transfers, done_ns = self._found()
        results = tuple(i for i, transfer in enumerate(transfers) if transfer.kind in (Kind.MODEL, Kind.RING))
        commits = self._commits(way, done_ns) if done_ns else ()
        striped = way.striped if way.shape is Shape.STRIPES else None
        return Plan(
            batch=self._batch,
            state=self._state,
            config=self._config,
            shape=way.shape,
            transfers=tuple(transfers),
            groups=(Group(members=self._ids, shape=way.shape, last=results),) if commits else (),
            commits=commits,
            deferred=() if commits else tuple(Deferred(what=update, reason=way.reason) for update in self._ids),
            stripe_bytes=striped.size_bytes if striped is not None else (),
        )

    def _found(self) -> tuple[Way, list[Transfer], list[int]]:
        """Return the way, its transfers, and when each host has the sum."""
        names = self._names
        if len(names) < 2:
            return Way(Shape.DIRECT, None, None, "nobody else takes part: nothing is sent"), [], self._host_ready_ns
        late = [number for number, name in enumerate(names) if name in self._state.late]
        shapes, chunk_bytes = self._config.shapes, self._config.chunk_bytes
        hosts = Hosts(names=names, late=late)
        way = way_of(self._network, hosts, self._size_bytes, self._ready_ns, lambda _: chunk_bytes, shapes)
        if way.ring is not None:
            return way, self._ring_transfers(way.ring), [way.ring.arrive_ns] * len(names)
        if way.striped is not None:
            return way, *self._striped_transfers(way.striped, cut_through=way.shape is not Shape.DIRECT)
        return way, [], []

    def _commits(self, way: Way, done_ns: Sequence[int]) -> tuple[Commit, ...]:
        v_init = self._state.v_init
        arrivals = [done_ns[self._number[candidate.source]] for candidate in self._updates]
        return tuple(
            Commit(
                update=candidate.update,
                position=n,
                version=v_init,
                tau=v_init - candidate.computed_from,
                deadline=None,
                arrive_ns=at_ns,
                commit_ns=at_ns,
                group=0,
                reason=way.reason,
            )
            for n, (candidate, at_ns) in enumerate(zip(self._updates, arrivals, strict=True), start=1)
        )

    def _ring_transfers(self, ring: Ring) -> list[Transfer]:
        return [
            Transfer(
                kind=Kind.RING,
                toward=Toward.WORKERS,
                source=source,
                destination=destination,
                path=path,
                size_bytes=ring.size_bytes,
                ready_ns=self._ready_ns,
                profile=ring.profile,
                arrive_ns=ring.arrive_ns,
                members=self._ids,
            )
            for source, destination, path in zip(ring.hosts, (*ring.hosts[1:], ring.hosts[0]), ring.paths, strict=True)
        ]

    def _striped_transfers(self, striped: Striped, *, cut_through: bool) -> tuple[list[Transfer], list[int]]:
        """Return all streams, and when each host has the sum."""
        transfers: list[Transfer] = []
        done_ns = [striped.ready_ns] * len(self._names)
        for edge in edges_of(striped, self._network, self._names):
            root = striped.trees[edge.stripe].root
            own = () if edge.back and edge.source != root else self._updates_at(edge.source)
            members = {*own, *(update for k in edge.inputs for update in transfers[k].members)}
            stream = self._stream(striped, edge, tuple(sorted(members)), cut_through=cut_through)
            transfers.append(stream)
            if edge.back or edge.destination == root:
                done_ns[edge.destination] = max(done_ns[edge.destination], stream.arrive_ns)
        return transfers, done_ns

    def _updates_at(self, host: int) -> Iterator[UpdateId]:
        return (update.update for update in self._updates if update.source == self._names[host])

    def _stream(self, striped: Striped, edge: Edge, members: tuple[UpdateId, ...], *, cut_through: bool) -> Transfer:
        profile = striped.profile(edge.stripe, edge.level)
        return Transfer(
            kind=Kind.MODEL if edge.back else Kind.SUM if len(members) > 1 else Kind.UPDATE,
            toward=Toward.WORKERS,
            source=self._names[edge.source],
            destination=self._names[edge.destination],
            path=edge.path,
            size_bytes=striped.size_bytes[edge.stripe],
            ready_ns=striped.ready_ns,
            profile=profile,
            arrive_ns=profile.end_ns + self._network.latency_ns(edge.path),
            members=members,
            inputs=edge.inputs,
            cut_through=bool(edge.inputs) and cut_through,
            stripe=edge.stripe,
        )
