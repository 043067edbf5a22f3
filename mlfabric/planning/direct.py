"""Updates that go to their destination directly: all updates of a lot, or the first ones, before the sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, Ints, Lines
from mlfabric.planning.fluid.stream_forest import reserve_given, send_each
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.plan import Kind, Toward, Transfer
from mlfabric.planning.problem import Shape
from mlfabric.planning.profiles import Lot, Profiles
from mlfabric.planning.tree_streams import profile_at
from mlfabric.planning.way_of_sums import Forwarding

__all__ = ["Sent", "forward_directly", "send"]


class Sent(NamedTuple):
    """The first updates of a lot, each sent directly to the destination.

    Args:
        profiles: by place; they end at HORIZON_NS for an update that cannot be sent.
        before, after: what is free before any of them is reserved, and then; None if it was not asked for yet.
    """

    lot: Lot
    world: World
    destination: str
    toward: Toward
    route: Ints
    arrive_ns: Ints
    profiles: Profiles
    before: Lines
    after: Lines | None

    def lines(self) -> Lines:
        """Return what is free when all of them are reserved."""
        if self.after is not None or not len(self.route):
            return self.after or self.before
        _, pieces, first = self.profiles
        found: Lines = reserve_given(self.before, self.world.routes, self.route, self.lot.flies, pieces, first)
        return found

    def transfer(self, i: int) -> Transfer:
        """Return the transfer of the update at a place."""
        lot, route = self.lot, int(self.route[i])
        return Transfer(
            kind=Kind.UPDATE,
            toward=self.toward,
            source=self.world.ends(route)[0],
            destination=self.destination,
            path=self.world.path(route),
            size_bytes=int(lot.bits[i]) // 8,
            ready_ns=int(lot.ready_ns[i]),
            profile=profile_at(self.profiles, i),
            arrive_ns=int(self.arrive_ns[i]),
            members=(lot.updates[i],),
            planned=not lot.flies[i],
        )


def send(lot: Lot, count: int, world: World, lines: Lines, destination: str, *, now_ns: int, toward: Toward) -> Sent:
    """Send the first ``count`` updates of a lot directly, as the ordering planned it or each in turn.

    Args:
        lines: what is free before; not changed.
    """
    route = world.routes_from(lot.source[:count], destination)
    after: Lines | None = None
    if lot.direct is not None:
        end_ns, pieces, first = lot.direct
        profiles = Profiles(end_ns[:count], pieces, first[: count + 1])
    else:
        ready_ns = np.maximum(lot.ready_ns[:count], now_ns)
        end_ns, pieces, first, after = send_each(lines, world.routes, route, lot.bits[:count], ready_ns)
        profiles = Profiles(end_ns, pieces, first)
    arrive_ns = profiles.end_ns + world.routes.latency_ns[route]
    return Sent(lot, world, destination, toward, route, arrive_ns, profiles, lines, after)


def forward_directly(
    lot: Lot, world: World, lines: Lines, destination: str, *, now_ns: int, toward: Toward
) -> Forwarding:
    """Send every update of a lot directly.

    Returns:
        The transfers of the longest prefix of the lot that can be sent, because nothing after an update that cannot be
        sent may be committed before it.
    """
    sent = send(lot, len(lot.updates), world, lines, destination, now_ns=now_ns, toward=toward)
    stuck = np.flatnonzero(sent.profiles.end_ns >= HORIZON_NS)
    if stuck.size:
        sent = send(lot, int(stuck[0]), world, lines, destination, now_ns=now_ns, toward=toward)
    count = len(sent.arrive_ns)
    return Forwarding(
        shape=Shape.DIRECT,
        arrive_ns=sent.arrive_ns,
        until=range(count + 1),
        last=range(count),
        transfers=Lazy(count, sent.transfer),
        lines=sent.lines,
    )
