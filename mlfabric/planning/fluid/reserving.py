# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Reserves many transfers, compiled: batch after batch, each shortest transfer first (paper, algorithm 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, MOST_BPS, NO_ROOM, Ints, grown, reach, room, send
from mlfabric.planning.fluid.jit import compiled, entry, lean
from mlfabric.planning.fluid.shortest import plant, remove, shortest

__all__ = ["Found", "nothing_found", "reserve", "reserve_one", "solo_ends"]


class Found(NamedTuple):
    """By rank: when a transfer ends, HORIZON_NS if it was not reserved; its pieces are ``first`` to ``until - 1``."""

    end_ns: Ints
    first: Ints
    until: Ints


@compiled
def nothing_found(count):
    """The result before anything is reserved, and room for some pieces."""
    found = Found(np.full(count, HORIZON_NS), np.zeros(count, np.int64), np.zeros(count, np.int64))
    return found, np.empty((4 * count, 3), np.int64)


@compiled
@entry
def solo_ends(lines, routes, transfers):
    """Return when each transfer would end alone; HORIZON_NS for never."""
    ends = np.empty(len(transfers.route), np.int64)
    for i in range(len(ends)):
        ends[i] = reach(lines, routes, transfers.route[i], MOST_BPS, transfers.bits[i], transfers.ready_ns[i])
    return ends


@lean
def try_one(lines, routes, transfers, i, found, pieces, used):
    """Reserve a transfer if it ends and there is room; return the row after its pieces, and whether there was room.

    Its pieces begin at row ``used``.
    """
    end_ns, after = send(lines, routes, transfers.route[i], transfers.bits[i], transfers.ready_ns[i], pieces, used)
    if end_ns != NO_ROOM:
        found.end_ns[i], found.first[i], found.until[i] = end_ns, used, after
    return after, end_ns != NO_ROOM


@compiled
def reserve_one(lines, routes, transfers, i, found, pieces, used):
    """Reserve a transfer if it ends; return the lines, the pieces, and how many of these are in use."""
    after, had_room = try_one(lines, routes, transfers, i, found, pieces, used)
    while not had_room:
        lines, pieces = grown(lines, pieces, used)
        after, had_room = try_one(lines, routes, transfers, i, found, pieces, used)
    return lines, pieces, after


@lean
def _shortest_first(lines, routes, transfers, tree, found, pieces, used):
    """Reserve all in a tree while there is room; return the first without room (-1: all done), and the row."""
    while True:
        chosen, _ = shortest(lines, routes, transfers, tree, True)
        if chosen < 0:
            return -1, used
        i = tree.members[tree.next[chosen]]
        after, had_room = try_one(lines, routes, transfers, i, found, pieces, used)
        if not had_room:
            return chosen, used
        used = after
        remove(tree, transfers, chosen)


@compiled
def _reserve_batch(lines, routes, transfers, members, end_ns, leaf, found, pieces, used):
    """Reserve one batch; return as ``reserve_one`` does."""
    tree = plant(transfers, members, end_ns, leaf)
    chosen, used = _shortest_first(lines, routes, transfers, tree, found, pieces, used)
    while chosen >= 0:
        i = tree.members[tree.next[chosen]]
        lines, pieces, used = reserve_one(lines, routes, transfers, i, found, pieces, used)
        remove(tree, transfers, chosen)
        chosen, used = _shortest_first(lines, routes, transfers, tree, found, pieces, used)
    return lines, pieces, used


@compiled
def reserve(lines, routes, transfers, members, first, end_ns):
    """Reserve batches: ``members[first[b] : first[b + 1]]`` is one, sorted as ``plant`` needs it.

    ``end_ns`` holds lower bounds of all transfers. Return the result and all pieces.
    """
    count, used = len(transfers.route), 0
    found, pieces = nothing_found(count)
    leaf = np.zeros(count, np.int64)
    lines = room(lines, 8 * count)
    for batch in range(len(first) - 1):
        begin, end = first[batch], first[batch + 1]
        if end - begin == 1:
            lines, pieces, used = reserve_one(lines, routes, transfers, members[begin], found, pieces, used)
        elif end > begin:
            some = members[begin:end]
            lines, pieces, used = _reserve_batch(lines, routes, transfers, some, end_ns, leaf, found, pieces, used)
    return found, pieces
