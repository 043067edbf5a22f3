"""The order in which gets are served: shortest transfer first, without deadlines (paper, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfabric.network import HORIZON_NS, Network
from mlfabric.network.profile import check_size
from mlfabric.planning.placements import place
from mlfabric.planning.plan_values import GetCandidate, GetSlot

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
    if len(requests) == 1:
        [request] = requests
        path = network.path(source, request.destination)
        alone = network.transfer(path, request.size_bytes, max(request.ready_ns, now_ns))
        return (GetSlot(get=request.get, profile=alone, planned_ns=now_ns),)
    ranked = sorted(requests, key=lambda r: r.get)
    routes = {host: n for n, host in enumerate(dict.fromkeys([request.destination for request in ranked]))}
    rows, beyond, floor_ns = [], len(ranked) + 1, max(now_ns, network.floor_ns)
    for rank, request in enumerate(ranked):
        check_size(request.size_bytes)
        ready_ns = min(max(request.ready_ns, floor_ns), HORIZON_NS)
        rows.append((routes[request.destination], 8 * request.size_bytes, ready_ns, 0, beyond, rank))
    if not rows:
        return ()
    found = place(network, [network.path(source, host) for host in routes], np.array(rows, np.int64).T.copy())
    served = [
        GetSlot(get=ranked[rank].get, profile=found.profile(n), planned_ns=now_ns) for n, rank in enumerate(found.ranks)
    ]
    return (*served, *(GetSlot(get=ranked[rank].get, profile=None, planned_ns=now_ns) for rank, _, _ in found.left))
