"""AllReduce: the sum of all updates goes to every worker; there is no server (design, section 5).

Every worker's host may sum and relay. So any host without a slow link may be the root of trees (``round_trips.py``,
``round_shapes.py``); or all hosts make a ring (``rings.py``); or the tensor goes in stripes (``stripes.py``). The
planner takes the shape with which the last worker has the result earliest. If a host cannot send to the others or be
reached by them, there is no sum, and all updates wait.

If some workers are late, only the others relay, in stripes. Without stripes all wait for the late ones, and only trees
to one root and back are considered. Trees are searched only for few hosts: with many, the search takes longer than it
saves, and stripes are better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlfabric.network import HORIZON_NS, Network
from mlfabric.planning.fluid.world import World
from mlfabric.planning.plan import Commit, Deferred, Group, Kind, Plan, Toward, Transfer
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape
from mlfabric.planning.rings import Ring, find_ring
from mlfabric.planning.round_trips import RoundTrip, best_round_trip
from mlfabric.planning.stripes import Edge, Striped, find_stripes
from mlfabric.protocol import UpdateId

__all__ = ["AllReduced", "plan_all_reduce", "reduce_all", "warm"]

MOST_FOR_TREES = 10
"""With more hosts than this, trees are not searched if there are good stripes."""
MOST_FOR_HOPS = 1.5
"""Good stripes take at most this many times the time that their bytes need over the links."""
_WHOLE_BITS = 1 << 54  # no update is larger than this chunk: everything is stored before it is forwarded


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduced:
    """How every worker gets the sum of all.

    Args:
        updates: in the order of ids.
        arrive_ns: by update, when its worker has the sum; empty if there is no way.
        stripe_bytes: of each stripe; empty for other shapes.
    """

    updates: tuple[UpdateId, ...]
    transfers: tuple[Transfer, ...]
    arrive_ns: tuple[int, ...]
    shape: Shape
    reason: str
    stripe_bytes: tuple[int, ...] = ()


def plan_all_reduce(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
    """Plan how every worker gets the sum of a batch; ``network`` is not changed.

    If no shape reaches all workers, nothing is sent and every update is deferred.
    """
    found = reduce_all(batch, network, state, config)
    results = tuple(i for i, transfer in enumerate(found.transfers) if transfer.kind in (Kind.MODEL, Kind.RING))
    return Plan(
        batch=batch,
        state=state,
        config=config,
        shape=found.shape,
        transfers=found.transfers,
        groups=(Group(members=found.updates, shape=found.shape, last=results),) if found.arrive_ns else (),
        commits=_commits(batch, state, found),
        deferred=() if found.arrive_ns else tuple(Deferred(what=u, reason=found.reason) for u in found.updates),
        stripe_bytes=found.stripe_bytes,
    )


def _commits(batch: Batch, state: FabricState, found: AllReduced) -> tuple[Commit, ...]:
    computed_from = {candidate.update: candidate.computed_from for candidate in batch.updates}
    return tuple(
        Commit(
            update=update,
            position=n,
            version=state.v_init,
            tau=state.v_init - computed_from[update],
            deadline=None,
            arrive_ns=at_ns,
            commit_ns=at_ns,
            group=0,
            reason=found.reason,
        )
        for n, (update, at_ns) in enumerate(zip(found.updates, found.arrive_ns, strict=False), start=1)
    )


def reduce_all(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> AllReduced:
    """Find the best shape for an AllReduce among those that are allowed; ``network`` is not changed."""
    return _Sum(batch, network, state, config).best()


class _Sum:
    """What is to be summed; hosts are numbered by name."""

    def __init__(self, batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> None:
        self._network, self._shapes, self._now_ns = network, config.shapes, state.now_ns
        self._late = state.late
        updates = sorted(batch.updates, key=lambda candidate: candidate.update)
        self._ids = tuple(candidate.update for candidate in updates)
        self._names = sorted({candidate.source for candidate in updates})
        number = {name: i for i, name in enumerate(self._names)}
        self._host = [number[candidate.source] for candidate in updates]
        self._bits, self._ready_ns = [0] * len(number), [state.now_ns] * len(number)
        for host, candidate in zip(self._host, updates, strict=True):
            self._bits[host] = max(self._bits[host], 8 * candidate.size_bytes)
            self._ready_ns[host] = max(self._ready_ns[host], candidate.ready_ns)
        self._chunk_bits = 8 * config.chunk_bytes if Shape.TREE in config.shapes else _WHOLE_BITS

    def best(self) -> AllReduced:
        """Compare all shapes."""
        if len(self._names) < 2:
            return self._answer((), self._ready_ns, Shape.DIRECT, "nobody else takes part: nothing is sent")
        striped, ring = self._stripes(), self._ring()
        world = World(self._network, self._names, self._names)
        is_enough = striped is not None and (bool(self._late) or self._is_enough(striped))
        trip = None if is_enough else self._trip(world)
        ends_ns = {
            Shape.TREE: max(trip.done_ns) if trip else HORIZON_NS,
            Shape.STRIPES: max(striped.done_ns) if striped else HORIZON_NS,
            Shape.RING: ring.arrive_ns if ring else HORIZON_NS,
        }
        shape = min(ends_ns, key=lambda shape: ends_ns[shape])
        if ends_ns[shape] >= HORIZON_NS:
            reason = f"no way from each of {len(self._names)} hosts to all others: some link has no capacity"
            return self._answer((), None, Shape.DIRECT, reason)
        others = self._others({other: end_ns for other, end_ns in ends_ns.items() if other is not shape})
        if shape is Shape.RING and ring is not None:
            reason = f"ring of {len(self._names)}: {self._ms(ring.arrive_ns)}{others}"
            return self._answer(self._ring_transfers(ring), [ring.arrive_ns] * len(self._names), shape, reason)
        if shape is Shape.STRIPES and striped is not None:
            reason = f"{self._stripes_text(striped)}: {self._ms(ends_ns[shape])}{others}"
            transfers = self._striped_transfers(striped)
            return self._answer(transfers, striped.done_ns, shape, reason, striped.size_bytes)
        assert trip is not None, "the other shapes take longer"
        root, cut_through = self._names[trip.root], Shape.TREE in self._shapes
        how = "cut-through trees" if cut_through else "directly"
        reason = f"summed at {root}, {how}: {self._ms(ends_ns[shape])}{others}"
        shape = Shape.TREE if cut_through else Shape.DIRECT
        return self._answer(self._trip_transfers(trip, world), trip.done_ns, shape, reason)

    def _is_enough(self, striped: Striped) -> bool:
        """Tell whether trees need not be searched: there are many hosts, and bytes take longer than hops."""
        took_ns = max(striped.done_ns) - striped.ready_ns
        return len(self._names) > MOST_FOR_TREES and took_ns < MOST_FOR_HOPS * striped.span_ns

    def _others(self, ends_ns: Mapping[Shape, int]) -> str:
        """Say how long the shapes that were not chosen would take."""
        words = {Shape.TREE: "through a root", Shape.STRIPES: "in stripes", Shape.RING: "as a ring"}
        told = [f"{words[shape]}: {self._ms(at_ns)}" for shape, at_ns in ends_ns.items() if at_ns < HORIZON_NS]
        return f" ({', '.join(told)})" if told else ""

    def _stripes_text(self, striped: Striped) -> str:
        roots = ", ".join(self._names[root] for root in striped.roots)
        count = len(striped.roots)
        return f"in {count} stripes summed at {roots}" if count > 1 else f"in one stripe summed at {roots}"

    def _trip(self, world: World) -> RoundTrip | None:
        cut_through = Shape.TREE in self._shapes
        return best_round_trip(world, self._bits, self._ready_ns, self._now_ns, self._chunk_bits, trees=cut_through)

    def _stripes(self) -> Striped | None:
        """Plan stripes if they are allowed; they are equal only for updates that are."""
        if Shape.STRIPES not in self._shapes or len(set(self._bits)) > 1 or not self._bits[0]:
            return None
        able = [host for host, name in enumerate(self._names) if name not in self._late]
        if not able:
            return None
        order = sorted(able, key=lambda host: (-self._ready_ns[host], host))
        size_bytes, chunk_bytes = self._bits[0] // 8, self._chunk_bits // 8
        return find_stripes(self._network, self._names, size_bytes, max(self._ready_ns), chunk_bytes, order)

    def _ms(self, at_ns: int) -> str:
        return f"{(at_ns - self._now_ns) / 1e6:.1f} ms"

    def _answer(
        self,
        transfers: Sequence[Transfer],
        done_ns: Sequence[int] | None,
        shape: Shape,
        reason: str,
        stripe_bytes: tuple[int, ...] = (),
    ) -> AllReduced:
        return AllReduced(
            updates=self._ids,
            transfers=tuple(transfers),
            arrive_ns=tuple(done_ns[host] for host in self._host) if done_ns is not None else (),
            shape=shape,
            reason=reason,
            stripe_bytes=stripe_bytes,
        )

    def _ring(self) -> Ring | None:
        if Shape.RING not in self._shapes or self._late:
            return None
        return find_ring(self._network, self._names, max(self._bits) // 8, max(self._ready_ns))

    def _ring_transfers(self, ring: Ring) -> list[Transfer]:
        return [
            Transfer(
                kind=Kind.RING,
                toward=Toward.WORKERS,
                source=source,
                destination=destination,
                path=path,
                size_bytes=ring.size_bytes,
                ready_ns=max(self._ready_ns),
                profile=ring.profile,
                arrive_ns=ring.arrive_ns,
                members=self._ids,
            )
            for source, destination, path in zip(ring.hosts, (*ring.hosts[1:], ring.hosts[0]), ring.paths, strict=True)
        ]

    def _striped_transfers(self, striped: Striped) -> list[Transfer]:
        transfers: list[Transfer] = []
        for edge in striped.edges:
            own = () if edge.back and edge.source != striped.roots[edge.stripe] else self._updates_at(edge.source)
            brought = {update for k in edge.inputs for update in transfers[k].members}
            transfers.append(self._stream(striped, edge, tuple(sorted({*own, *brought}))))
        return transfers

    def _updates_at(self, host: int) -> tuple[UpdateId, ...]:
        return tuple(update for update, at in zip(self._ids, self._host, strict=True) if at == host)

    def _stream(self, striped: Striped, edge: Edge, members: tuple[UpdateId, ...]) -> Transfer:
        profile = striped.profile(edge)
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
            cut_through=bool(edge.inputs),
            stripe=edge.stripe,
        )

    def _trip_transfers(self, trip: RoundTrip, world: World) -> list[Transfer]:
        transfers = []
        for leg in trip.legs(world):
            members = tuple(update for update, host in zip(self._ids, self._host, strict=True) if host in leg.hosts)
            summed = Kind.SUM if len(members) > 1 else Kind.UPDATE
            transfers.append(
                Transfer(
                    kind=Kind.MODEL if leg.back else summed,
                    toward=Toward.WORKERS,
                    source=self._names[leg.source],
                    destination=self._names[leg.destination],
                    path=world.path(leg.route),
                    size_bytes=leg.size_bytes,
                    ready_ns=leg.start_ns,
                    profile=leg.profile,
                    arrive_ns=leg.arrive_ns,
                    members=members,
                    inputs=leg.inputs,
                    cut_through=bool(leg.inputs) and self._chunk_bits < _WHOLE_BITS,
                )
            )
        return transfers


def warm() -> None:
    """Run the kernels once on a tiny case, so that nobody waits for a compiler later."""
    network = Network.star(10**9)
    for host in "ab":
        network.add_host(host)
    updates = tuple(
        Candidate(update=UpdateId(host, 0, 0), source=host, size_bytes=1000, ready_ns=0, computed_from=0)
        for host in "ab"
    )
    config = PlannerConfig(consistency=Consistency.ALL_REDUCE)
    reduce_all(Batch(updates=updates), network, FabricState(now_ns=0), config)
