"""The order in which gets are served: shortest transfer first, without deadlines (paper, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.network import HORIZON_NS, Network
from mlfabric.network.profile import check_size
from mlfabric.scheduler.planning.reserving import reserver_for
from mlfabric.scheduler.planning.shortest import Demand
from mlfabric.scheduler.planning.values import GetCandidate, GetSlot

__all__ = ["order_gets"]


def order_gets(requests: Sequence[GetCandidate], network: Network, source: str, *, now_ns: int) -> tuple[GetSlot, ...]:
    """Plan transfers of a model from the host ``source``; ``network`` is not changed.

    Args:
        requests: different gets.
        now_ns: nothing is planned before.

    Returns:
        One slot for each request, in the order of reservation; those that nothing reaches come last, without a profile.

    Raises:
        UsageError: an unknown host, or a size out of range.
    """
    ranked = sorted(requests, key=lambda r: r.get)
    demands = []
    for request in ranked:
        check_size(request.size_bytes)
        path = network.path(source, request.destination)
        demands.append(Demand(path, request.size_bytes, max(request.ready_ns, now_ns)))
    reserver = reserver_for(demands, network)
    reserver.solo_ends()
    slots = [
        GetSlot(get=ranked[i].get, profile=profile, planned_ns=now_ns)
        for i, profile in reserver.reserve([range(len(ranked))]).items()
    ]
    slots.sort(key=lambda s: (HORIZON_NS if s.profile is None else s.profile.end_ns, s.get))
    return tuple(slots)
