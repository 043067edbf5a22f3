# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The order of a batch: the four steps of ``planning/ordering.py``, as loops over arrays."""

from __future__ import annotations

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS
from mlfabric.planning.fluid.jit import compiled, entry
from mlfabric.planning.fluid.layout import unpacked
from mlfabric.planning.fluid.reserving import reserve, solo_ends
from mlfabric.planning.fluid.shared_links import compared, sort_by
from mlfabric.planning.positions import commit_order, worst_due

__all__ = ["place", "place_over"]

ROUTE, BITS, READY, FLIES, DUE, NAME = 0, 1, 2, 3, 4, 5


@compiled
def _leave_crowded(rows, ends, stays, left, gone):
    """Leave out updates that conflict with others; return how many are left out now."""
    staying = np.flatnonzero(stays)
    binds = False
    for n in range(len(staying)):
        binds |= rows[DUE, staying[n]] <= n
    if not binds:
        return gone
    order = sort_by(staying, rows[NAME])
    order = sort_by(order, ends)
    order = sort_by(order, -rows[FLIES])
    place = np.empty(len(stays), np.int64)
    for n in range(len(order)):
        place[order[n]] = n
    for n, q in worst_due(rows[DUE][staying], place[staying]):
        rank = order[n]
        stays[rank] = False
        left[gone, 0], left[gone, 1], left[gone, 2] = rank, q, ends[rank]
        gone += 1
    return gone


@compiled
def _batches(transfers, due, waiting, binding):
    """Sort waiting updates into batches that reserve together, each as ``plant`` needs it; and where each begins."""
    members = sort_by(waiting, transfers.ready_ns)
    members = sort_by(members, transfers.route)
    members = sort_by(members, -transfers.cap_bps)
    members = sort_by(members, transfers.bits)
    members = sort_by(members, np.minimum(due, binding + 1))
    first, count = np.zeros(len(members) + 1, np.int64), 0
    for n in range(1, len(members)):
        if min(due[members[n]], binding + 1) != min(due[members[n - 1]], binding + 1):
            count += 1
            first[count] = n
    first[count + 1 :] = len(members)
    return members, first


@compiled
def _listed(ranks, found, pieces):
    """Ends and pieces of some transfers, one after the other, and where the pieces of each begin."""
    ends, first = np.empty(len(ranks), np.int64), np.zeros(len(ranks) + 1, np.int64)
    for n in range(len(ranks)):
        first[n + 1] = first[n] + found.until[ranks[n]] - found.first[ranks[n]]
    listed = np.empty((first[-1], 3), np.int64)
    for n in range(len(ranks)):
        ends[n] = found.end_ns[ranks[n]]
        for k in range(first[n], first[n + 1]):
            listed[k] = pieces[found.first[ranks[n]] + k - first[n]]
    return ends, listed, first


@compiled
@entry
def place_over(lines, routes, rows):
    """Order a batch.

    Args:
        lines: a copy of its own; reservations are made on them.
        rows: by rank, each update's route, bits, when it is ready, 1 if it is in flight (then without bits, and ready
            when it ends), last position (ascending; beyond all for none), and place among all names.

    Returns:
        Ranks by position; when each ends, the pieces of all, and where those of each begin; rows of those that are left
        (rank, position for which others compete or 0, when it would end); and up to which last position it
        decided what was reserved first.
    """
    count, gone = rows.shape[1], 0
    left = np.zeros((count, 3), np.int64)
    due = rows[DUE]
    routes, transfers = compared(lines, routes, rows[ROUTE], rows[BITS], rows[READY])
    ends = solo_ends(lines, routes, transfers)
    stays = ends < HORIZON_NS
    for rank in range(count):
        if not stays[rank]:
            left[gone, 0] = rank
            gone += 1
    gone = _leave_crowded(rows, ends, stays, left, gone)
    staying = np.flatnonzero(stays)
    waiting = staying[rows[FLIES][staying] == 0]
    members, first = _batches(transfers, due, waiting, len(staying))
    found, pieces = reserve(lines, routes, transfers, members, first, ends)
    for rank in range(count):
        if rows[FLIES, rank] == 1:
            found.end_ns[rank] = ends[rank]
        elif stays[rank] and found.end_ns[rank] >= HORIZON_NS:
            stays[rank] = False
            left[gone, 0] = rank
            gone += 1
    arrivals = sort_by(np.flatnonzero(stays), found.end_ns)
    for n in range(len(arrivals)):
        if due[arrivals[n]] <= n:
            arrivals = arrivals[np.array(commit_order(due[arrivals]))]
            break
    end_ns, listed, begins = _listed(arrivals, found, pieces)
    return arrivals, end_ns, listed, begins, left[:gone], len(staying)


@compiled
@entry
def place(packed, rows):
    """Do as ``place_over`` for a network that was packed for ``unpacked``."""
    lines, routes = unpacked(packed)
    return place_over(lines, routes, rows)
