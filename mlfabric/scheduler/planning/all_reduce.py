"""AllReduce: the sum of all updates goes to every worker; there is no server (design, section 5).

Every worker's host may sum and hand on, so any of them without a slow link may be the root of trees
(``round_trips.py``, ``round_shapes.py``); or all of them make a ring (``rings.py``). The shape after which the last
worker has everything first is taken. If some host cannot send to the others or be reached by them, there is no sum of
all, and all updates wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlfabric.network import HORIZON_NS, Network
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.plan import Commit, Deferred, Group, Kind, Plan, Toward, Transfer
from mlfabric.scheduler.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape
from mlfabric.scheduler.planning.rings import Ring, find_ring
from mlfabric.scheduler.planning.round_trips import RoundTrip, best_round_trip
from mlfabric.scheduler.planning.values import Candidate

__all__ = ["AllReduced", "plan_all_reduce", "reduce_all", "warm"]

_WHOLE_BITS = 1 << 54  # a chunk that no update exceeds: everything is stored before it is sent on


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduced:
    """How every worker gets the sum of all.

    Args:
        updates: in the order of ids.
        arrive_ns: by update, when its worker has the sum; empty if there is no way.
        root: where the sum is made; None for a ring.
    """

    updates: tuple[UpdateId, ...]
    transfers: tuple[Transfer, ...]
    arrive_ns: tuple[int, ...]
    shape: Shape
    root: str | None
    reason: str


def plan_all_reduce(batch: Batch, network: Network, state: FabricState, config: PlannerConfig) -> Plan:
    """Plan how every worker gets the sum of a batch; ``network`` is not changed.

    Without a way for all of them nothing is sent: every update is deferred.
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
        drops=(),
        replica_steps=(),
        punts=(),
        gets=(),
        deferred=() if found.arrive_ns else tuple(Deferred(what=u, reason=found.reason) for u in found.updates),
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
            return self._answer((), self._ready_ns, Shape.DIRECT, None, "nobody else takes part: nothing is sent")
        cut_through = Shape.TREE in self._shapes
        world = World(self._network, self._names, self._names)
        trip = best_round_trip(
            world, self._bits, self._ready_ns, self._now_ns, self._chunk_bits, trees=cut_through
        )  # fmt: skip
        ring = self._ring() if Shape.RING in self._shapes else None
        trip_ns = max(trip.done_ns) if trip else HORIZON_NS
        ring_ns = ring.arrive_ns if ring else HORIZON_NS
        if ring is not None and ring_ns < trip_ns:
            reason = f"ring of {len(self._names)}: {self._ms(ring_ns)} (through a root: {self._ms(trip_ns)})"
            return self._answer(self._ring_transfers(ring), [ring_ns] * len(self._names), Shape.RING, None, reason)
        if trip is None:
            reason = f"no way from each of {len(self._names)} hosts to all others: some link has no capacity"
            return self._answer((), None, Shape.DIRECT, None, reason)
        root = self._names[trip.root]
        how = "cut-through trees" if cut_through else "directly"
        reason = f"summed at {root}, {how}: {self._ms(trip_ns)} (as a ring: {self._ms(ring_ns)})"
        shape = Shape.TREE if cut_through else Shape.DIRECT
        return self._answer(self._trip_transfers(trip, world), trip.done_ns, shape, root, reason)

    def _ms(self, at_ns: int) -> str:
        return "not planned" if at_ns >= HORIZON_NS else f"{(at_ns - self._now_ns) / 1e6:.1f} ms"

    def _answer(
        self, transfers: Sequence[Transfer], done_ns: Sequence[int] | None, shape: Shape, root: str | None, reason: str
    ) -> AllReduced:
        return AllReduced(
            updates=self._ids,
            transfers=tuple(transfers),
            arrive_ns=tuple(done_ns[host] for host in self._host) if done_ns is not None else (),
            shape=shape,
            root=root,
            reason=reason,
        )

    def _ring(self) -> Ring | None:
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
