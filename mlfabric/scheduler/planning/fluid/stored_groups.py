# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What groups a case of algorithm 3 makes, compiled."""

from __future__ import annotations

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled
from mlfabric.scheduler.planning.fluid.stored_kernel import FORWARD, GATHER

__all__ = ["groups_of"]


@compiled
def groups_of(direct, solo_end_ns, sends, route, out, latency_ns):
    """The groups of a case: the first updates directly, as found alone, then what was sent.

    Returns:
        By update, when its group has arrived; by group, its first update, its end, and the transfer that brings it;
        how many go through an aggregator.
    """
    count = direct if len(sends) == 0 else sends[-1, 2]
    arrive_ns, columns = np.empty(count, np.int64), np.empty((3, direct + len(sends)), np.int64)
    first, end, last = columns
    for i in range(direct):
        arrive_ns[i] = solo_end_ns[i] + latency_ns[route[i]]
        first[i], end[i], last[i] = i, i + 1, i
    groups, stored = direct, 0
    for n in range(len(sends)):
        what, begin, until, j, end_ns = sends[n, 0], sends[n, 1], sends[n, 2], sends[n, 3], sends[n, 5]
        if what != GATHER:
            arrive_ns[begin:until] = end_ns + latency_ns[out[j] if what == FORWARD else route[begin]]
            first[groups], end[groups], last[groups] = begin, until, direct + n
            groups += 1
            stored += what == FORWARD
    return arrive_ns, first[:groups], end[:groups], last[:groups], stored
