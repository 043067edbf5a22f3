# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The paper's own rule for drops (algorithm 2), compiled; ``planning/paper.py`` explains it and does it in Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled, lean
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, MOST_BPS, Ints, fork, reach
from mlfabric.scheduler.planning.fluid.reserving import nothing_found, reserve_one
from mlfabric.scheduler.planning.fluid.shortest import Tree, plant, remove, shortest

__all__ = ["FASTER", "LATE", "UNREACHABLE", "place"]

LATE, FASTER, UNREACHABLE = 0, 1, 2


class Waiting(NamedTuple):
    """Who waits, by rank (which is by deadline): ``is_waiting`` is 1 or 0; ``tree`` holds the same."""

    tree: Tree
    is_waiting: Ints
    deadline: Ints


@lean
def _leave(waiting, transfers, i):
    """Let somebody wait no longer."""
    tree = waiting.tree
    waiting.is_waiting[i] = 0
    leaf = tree.leaf[i]
    while tree.next[leaf] < tree.until[leaf] and waiting.is_waiting[tree.members[tree.next[leaf]]] == 0:
        remove(tree, transfers, leaf)


@lean
def _due(lines, routes, transfers, waiting, position):
    """Who is due at a position and ends first, -1 for nobody; and when."""
    best, best_ns = -1, HORIZON_NS
    for i in range(np.searchsorted(waiting.deadline, position), len(waiting.deadline)):
        if waiting.deadline[i] != position:
            break
        if waiting.is_waiting[i] == 1:
            end_ns = reach(lines, routes, transfers.route[i], MOST_BPS, transfers.bits[i], transfers.ready_ns[i])
            if end_ns < best_ns:
                best, best_ns = i, end_ns
    return best, best_ns


@lean
def _choose(lines, routes, transfers, waiting, position, keeps):
    """Who is due at a position, else the shortest transfer; -1 for nobody; and when it ends."""
    best, best_ns = _due(lines, routes, transfers, waiting, position)
    if best < 0:
        leaf, best_ns = shortest(lines, routes, transfers, waiting.tree, keeps)
        if leaf >= 0:
            best = waiting.tree.members[waiting.tree.next[leaf]]
    return best, best_ns


@compiled
def place(lines, routes, transfers, members, deadline, is_flying, end_ns):
    """Do algorithm 2.

    ``members`` are those that can come at all, sorted as ``plant`` wants it; ``deadline`` and ``is_flying`` are by
    rank, ``end_ns`` holds lower bounds. Return what was found, all pieces, the ranks by position, by rank whether it
    was picked because it was due, and who was left: rows (rank, cause, how many were placed or who is faster, ns).
    """
    count = len(transfers.route)
    found, pieces = nothing_found(count)
    used, left = 0, [(0, 0, 0, 0)][:0]
    tree = plant(transfers, members, end_ns, np.zeros(count, np.int64))
    is_waiting = np.zeros(count, np.int64)
    is_waiting[members] = 1
    waiting = Waiting(tree, is_waiting, deadline)
    placed, count_placed, oldest = np.empty(len(members), np.int64), 0, 0
    was_due = np.zeros(count, np.bool_)
    for position in range(1, len(members) + 1):
        while oldest < count and deadline[oldest] <= count_placed:
            if waiting.is_waiting[oldest] == 1:
                _leave(waiting, transfers, oldest)
                left.append((oldest, LATE, count_placed, 0))
            oldest += 1
        chosen, chosen_ns = _choose(lines, routes, transfers, waiting, position, True)
        if chosen < 0:
            break
        _leave(waiting, transfers, chosen)
        if not is_flying[chosen]:
            is_due = deadline[chosen] == position
            before = fork(lines, 0) if is_due else lines
            lines, pieces, used = reserve_one(lines, routes, transfers, chosen, found, pieces, used)
            if is_due:
                other, other_ns = _choose(lines, routes, transfers, waiting, position + 1, False)
                if other >= 0 and chosen_ns > other_ns:
                    left.append((chosen, FASTER, other, chosen_ns - other_ns))
                    lines = before
                    continue
                was_due[chosen] = True
        placed[count_placed] = chosen
        count_placed += 1
    for i in range(count):
        if waiting.is_waiting[i] == 1:
            left.append((i, UNREACHABLE, 0, 0))
    return found, pieces[:used], placed[:count_placed], was_due, left
