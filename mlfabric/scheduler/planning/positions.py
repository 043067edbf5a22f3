"""Who keeps its delay bound at which position: unit slots with deadlines.

Positions 1, 2, ... each take one update, and an update must come at or before its deadline. By Hall's theorem such a
set fits if and only if, for every q, at most q updates have a deadline of q or less.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

__all__ = ["commit_order", "conflicts"]


def conflicts(deadlines: Sequence[int], badness: Sequence[Any]) -> list[tuple[int, int]]:
    """Choose what to leave so that the rest fits: at the smallest q that is violated, the worst due by then; repeat.

    Args:
        deadlines: of each update, >= 1.
        badness: of each update, unlike each other; the greatest is left first.

    Returns:
        (index, q) of each update to leave, in that order.
    """
    by_deadline = sorted(range(len(deadlines)), key=deadlines.__getitem__)
    if all(deadlines[i] > n for n, i in enumerate(by_deadline)):
        return []
    order = sorted(range(len(badness)), key=badness.__getitem__)
    rank = {i: r for r, i in enumerate(order)}
    due: list[int] = []
    left = []
    for n, i in enumerate(by_deadline, start=1):
        q = deadlines[i]
        heapq.heappush(due, -rank[i])
        last_of_q = n == len(by_deadline) or deadlines[by_deadline[n]] > q
        while last_of_q and len(due) > q:
            left.append((order[-heapq.heappop(due)], q))
    return left


def commit_order(deadlines: Sequence[int]) -> list[int]:
    """Order updates so that each position goes to the first to arrive whose choice leaves the rest feasible.

    In words of the rule: at position p let q be the smallest with as many remaining deadlines <= q as there are
    positions p..q; if there is one, choose among those. Filling the positions from the last one back, each with the
    latest arrival whose deadline allows it, gives the same order in O(n log n): with q as above, positions after
    q cannot take who is due by q, and the first arrival among these is pushed below position p only if
    some earlier q were tight.

    Args:
        deadlines: by arrival, the first to arrive first; feasible.

    Returns:
        Indices into ``deadlines``, by position.
    """
    count = len(deadlines)
    if all(deadline > i for i, deadline in enumerate(deadlines)):
        return list(range(count))
    waiting = sorted(range(count), key=deadlines.__getitem__)
    eligible: list[int] = []
    order = []
    for position in range(count, 0, -1):
        while waiting and deadlines[waiting[-1]] >= position:
            heapq.heappush(eligible, -waiting.pop())
        order.append(-heapq.heappop(eligible))
    order.reverse()
    return order
