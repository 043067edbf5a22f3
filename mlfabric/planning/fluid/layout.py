# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The arrays of a network, compiled: there are many small ones."""

from __future__ import annotations

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, Lines, Routes
from mlfabric.planning.fluid.jit import compiled, entry

__all__ = ["listed", "star_routes", "unpacked"]


@compiled
@entry
def star_routes(up, down, latency_ns):
    """The routes of a star from each source to each destination: their links, hops and latencies.

    Args:
        up: by source, the number of its link.
        down: by destination, the numbers of its link, and of its link as a source (-1 if it is none).
    """
    count, k = len(up) * len(down), 0
    link, hops, latencies = np.empty((count, 2), np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(len(up)):
        for j in range(len(down)):
            is_same = up[i] == down[j, 1]
            link[k, 0], link[k, 1] = (-1, -1) if is_same else (up[i], down[j, 0])
            hops[k], latencies[k] = (0, 0) if is_same else (2, latency_ns)
            k += 1
    return link, hops, latencies


@compiled
@entry
def listed(times_ns, values, until):
    """Linked lists, one after the other, after the node that ends all of them; below zero counts as zero.

    Args:
        times_ns: when each value begins, and after each list's last one when it ends.
        until: for each list, how many values all lists before it have; then the total.
    """
    columns = np.empty((3, len(values) + 1), np.int64)
    at_ns, bps, following = columns
    at_ns[0], bps[0], following[0] = HORIZON_NS, 0, 0
    for n in range(len(until) - 1):
        for i in range(until[n], until[n + 1]):
            at_ns[i + 1], bps[i + 1], following[i + 1] = times_ns[i + n], max(values[i], 0), i + 2
        if until[n + 1] > until[n]:
            following[until[n + 1]] = 0
    return at_ns, bps, following


@compiled
def unpacked(packed):
    """Lay out what was packed into one row of numbers: an array for each of them takes longer than a short plan.

    First the numbers of routes, links and nodes, and the most hops; for each route the number of its links, and the
    links; for each link the number of its values, the values, when they begin, and when the last one ends.
    """
    count, links, nodes, width = packed[0], packed[1], packed[2], packed[3]
    link, hops = np.full((count, width), -1), np.empty(count, np.int64)
    at = 4
    for route in range(count):
        hops[route] = packed[at]
        for k in range(hops[route]):
            link[route, k] = packed[at + 1 + k]
        at += 1 + hops[route]
    columns, head, node = np.empty((3, nodes + 1), np.int64), np.empty(links, np.int64), 1
    at_ns, bps, following = columns[0], columns[1], columns[2]
    at_ns[0], bps[0], following[0] = HORIZON_NS, 0, 0
    for n in range(links):
        values = packed[at]
        head[n] = node
        for i in range(values):
            at_ns[node], bps[node] = packed[at + 1 + values + i], max(packed[at + 1 + i], 0)
            following[node] = node + 1
            node += 1
        following[node - 1] = 0
        at += 2 + 2 * values
    lines = Lines(at_ns, bps, following, np.array([nodes + 1]), head)
    return lines, Routes(link, hops, np.zeros(count, np.int64), np.zeros(width, np.int64))
