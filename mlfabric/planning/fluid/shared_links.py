# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What many transfers have in common: the links that all of them cross, and the cap of each on its other links.

``shortest.py`` says why.
"""

from __future__ import annotations

import numpy as np

from mlfabric.planning.fluid.capacity_lists import MOST_BPS, Routes
from mlfabric.planning.fluid.jit import compiled, lean
from mlfabric.planning.fluid.shortest import Transfers

__all__ = ["compared", "sort_by"]


@compiled
def sort_by(order, keys):
    """Sort indices by a key; equal keys keep their order."""
    for n in range(1, len(order)):
        if keys[order[n]] < keys[order[n - 1]]:
            return order[np.argsort(keys[order], kind="mergesort")]
    return order


@lean
def _most_bps(lines, link):
    """The highest rate that a link ever has."""
    node = lines.head[link]
    most = lines.bps[node]
    while node != 0:
        most = max(most, lines.bps[node])
        node = lines.following[node]
    return most


@compiled
def _crossings(lines, routes):
    """How many routes cross each link, and how many cross any."""
    crossings, crossing = np.zeros(len(lines.head), np.int64), 0
    for route in range(len(routes.hops)):
        crossing += min(1, routes.hops[route])
        for k in range(routes.hops[route]):
            crossings[routes.link[route, k]] += 1
    return crossings, crossing


@compiled
def compared(lines, routes, route, bits, ready_ns):
    """Return the routes, with one more over the links that all of them cross, and the transfers.

    ``route``, ``bits`` and ``ready_ns`` are by transfer.
    """
    count, width = routes.link.shape
    crossings, crossing = _crossings(lines, routes)
    link, hops = np.full((count + 1, width), -1), np.zeros(count + 1, np.int64)
    caps = np.full(count, MOST_BPS)
    for r in range(count):
        hops[r], shared = routes.hops[r], 0
        for k in range(hops[r]):
            link[r, k] = routes.link[r, k]
            if crossings[link[r, k]] < crossing:
                caps[r] = min(caps[r], _most_bps(lines, link[r, k]))
            else:
                link[count, shared] = link[r, k]
                shared += 1
        hops[count] = max(hops[count], shared)
    sent = bits.copy()
    for i in range(len(route)):
        if hops[route[i]] == 0:
            sent[i] = 0
    latency_ns = np.zeros(count + 1, np.int64)
    extended = Routes(link, hops, latency_ns, np.zeros(width, np.int64))
    return extended, Transfers(route, sent, ready_ns, caps[route], np.array([count]))
