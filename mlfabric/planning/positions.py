# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Which updates can keep their delay bounds, and at which positions: unit slots with deadlines.

Positions 1, 2, ... each take one update, and an update must come at or before its deadline. By Hall's theorem such a
set fits if and only if, for every q, at most q updates have a deadline of q or less.
"""

from __future__ import annotations

import heapq

from mlfabric.planning.fluid.jit import compiled

__all__ = ["commit_order", "worst_due"]


@compiled
def worst_due(deadlines, badness):
    """Choose updates to leave out so that the rest fits: at the smallest violated q, the worst one due by then; repeat.

    Args:
        deadlines: ascending, >= 1.
        badness: of each update, a number of its own; the greatest is left first.

    Returns:
        (badness, q) of each update to leave out, in that order.
    """
    due = [0 for _ in range(0)]
    left = [(0, 0) for _ in range(0)]
    for n in range(len(deadlines)):
        q = deadlines[n]
        heapq.heappush(due, -badness[n])
        if n + 1 == len(deadlines) or deadlines[n + 1] > q:
            while len(due) > q:
                left.append((-heapq.heappop(due), q))
    return left


@compiled
def commit_order(deadlines):
    """Order updates so that each position goes to the first to arrive whose choice leaves the rest feasible.

    The rule: at position p let q be the smallest with as many remaining deadlines <= q as there are positions p..q; if
        there is one, choose among those. Filling the positions from the last one back, each with the latest arrival
        whose deadline allows it, gives the same order in O(n log n): with q as above, positions after q cannot take an
        update due by q, and the first arrival among these moves before position p only if some earlier q were tight.

    Args:
        deadlines: by arrival, the first to arrive first; feasible.

    Returns:
        Indices into ``deadlines``, by position.
    """
    count = len(deadlines)
    # Those of one deadline as a linked list: its last, and before each the previous; what does not bind is due last.
    last = [-1 for _ in range(count + 1)]
    previous = [-1 for _ in range(count)]
    for i in range(count):
        due = min(deadlines[i], count)
        previous[i] = last[due]
        last[due] = i
    eligible = [0 for _ in range(0)]
    order = [0 for _ in range(count)]
    for position in range(count, 0, -1):
        i = last[position]
        while i >= 0:
            heapq.heappush(eligible, -i)
            i = previous[i]
        order[position - 1] = -heapq.heappop(eligible)
    return order
