"""Updates that go to their destination directly: all updates of a lot, or the first ones, before the sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, Ints, Lines
from mlfabric.planning.fluid.stream_forest import send_fixed
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.plan import Kind, Toward, Transfer
from mlfabric.planning.problem import Shape
from mlfabric.planning.tree_streams import profile_at
from mlfabric.planning.way_of_sums import Forwarding, Lot

__all__ = ["Sent", "forward_directly", "send"]


@dataclass(frozen=True, slots=True)
class Sent:
    """The first updates of a lot, each sent directly to the destination.

    Args:
        end_ns, arrive_ns: by place; ``end_ns`` is HORIZON_NS for an update that cannot be sent.
        rows, first: the pieces (start, end, bps) of place i are ``rows[first[i] : first[i + 1]]``.
        lines: what is free when all of them are reserved.
    """

    lot: Lot
    world: World
    destination: str
    toward: Toward
    end_ns: Ints
    arrive_ns: Ints
    rows: NDArray[np.int64]
    first: Ints
    lines: Lines

    def transfer(self, i: int) -> Transfer:
        """Return the transfer of the update at a place."""
        lot, source, end_ns = self.lot, self.lot.sources[i], int(self.end_ns[i])
        return Transfer(
            kind=Kind.UPDATE,
            toward=self.toward,
            source=source,
            destination=self.destination,
            path=self.world.path(self.world.route(source, self.destination)),
            size_bytes=int(lot.bits[i]) // 8,
            ready_ns=int(lot.ready_ns[i]),
            profile=profile_at(self.rows, self.first, i, end_ns),
            arrive_ns=int(self.arrive_ns[i]),
            members=(lot.updates[i],),
            planned=bool(lot.planned[i]),
        )


def send(lot: Lot, count: int, world: World, lines: Lines, destination: str, *, now_ns: int, toward: Toward) -> Sent:
    """Send the first ``count`` updates of a lot directly, as the ordering planned it or each in turn.

    Args:
        lines: what is free before; not changed.
    """
    route = world.routes_from(lot.sources[:count], destination)
    reserved = 1 - np.array(lot.planned[:count], np.int64)
    ready_ns, given = np.maximum(lot.ready_ns[:count], now_ns), np.zeros((0, 4), np.int64)
    if lot.direct is not None:
        ready_ns = lot.direct.end_ns[:count]
        lengths = np.diff(lot.direct.first[: count + 1])
        owner = np.repeat(np.arange(count), lengths)
        given = np.column_stack([owner, lot.direct.pieces[: len(owner)]]).astype(np.int64)
    bits, ready_ns = np.ascontiguousarray(lot.bits[:count]), np.ascontiguousarray(ready_ns)
    end_ns, rows, first, free = send_fixed(lines, world.routes, route, bits, ready_ns, reserved, given)
    arrive_ns = end_ns + world.routes.latency_ns[route]
    return Sent(lot, world, destination, toward, end_ns, arrive_ns, rows, first, free)


def forward_directly(
    lot: Lot, world: World, lines: Lines, destination: str, *, now_ns: int, toward: Toward
) -> Forwarding:
    """Send every update of a lot directly.

    Returns:
        The transfers of the longest prefix of the lot that can be sent, because nothing after an update that cannot be
        sent may be committed before it.
    """
    sent = send(lot, len(lot.updates), world, lines, destination, now_ns=now_ns, toward=toward)
    stuck = np.flatnonzero(sent.end_ns >= HORIZON_NS)
    if stuck.size:
        sent = send(lot, int(stuck[0]), world, lines, destination, now_ns=now_ns, toward=toward)
    count = len(sent.end_ns)
    return Forwarding(
        shape=Shape.DIRECT,
        arrive_ns=sent.arrive_ns,
        groups=[(i, i + 1) for i in range(count)],
        last=range(count),
        transfers=Lazy(count, sent.transfer),
        lines=sent.lines,
    )
