# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Reserves many transfers, compiled: batch after batch, each shortest transfer first (paper, algorithm 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, MOST_BPS, Ints, no_pieces, reach, send
from mlfabric.scheduler.planning.fluid.shortest import plant, remove, shortest

__all__ = ["Found", "reserve", "rows", "solo_ends"]


class Found(NamedTuple):
    """By rank: when a transfer ends, HORIZON_NS if it was not reserved; its pieces are ``first`` to ``until - 1``."""

    end_ns: Ints
    first: Ints
    until: Ints


@compiled
def rows(pieces):
    """Return pieces as an array."""
    found = np.empty((len(pieces), 3), np.int64)
    for i in range(len(pieces)):
        found[i, 0], found[i, 1], found[i, 2] = pieces[i]
    return found


@compiled
def solo_ends(lines, routes, transfers):
    """Return when each transfer would end if it were alone; HORIZON_NS for never."""
    ends = np.empty(len(transfers.route), np.int64)
    for i in range(len(ends)):
        ends[i] = reach(lines, routes, transfers.route[i], MOST_BPS, transfers.bits[i], transfers.ready_ns[i])
    return ends


@compiled
def reserve_one(lines, routes, transfers, i, found, pieces):
    """Reserve a transfer if it ever ends; return the lines."""
    found.first[i] = len(pieces)
    found.end_ns[i], lines = send(lines, routes, transfers.route[i], transfers.bits[i], transfers.ready_ns[i], pieces)
    found.until[i] = len(pieces)
    return lines


@compiled
def _reserve_batch(lines, routes, transfers, members, end_ns, leaf, found, pieces):
    """Reserve one batch; return the lines."""
    tree = plant(transfers, members, end_ns, leaf)
    while True:
        chosen, _ = shortest(lines, routes, transfers, tree, True)
        if chosen < 0:
            return lines
        lines = reserve_one(lines, routes, transfers, members[tree.next[chosen]], found, pieces)
        remove(tree, transfers, chosen)


@compiled
def reserve(lines, routes, transfers, members, first, end_ns):
    """Reserve batches: ``members[first[b] : first[b + 1]]`` is one, sorted as ``plant`` wants it.

    ``end_ns`` holds lower bounds of all transfers. Return what was found, all pieces, and the lines.
    """
    count = len(transfers.route)
    found = Found(np.full(count, HORIZON_NS), np.zeros(count, np.int64), np.zeros(count, np.int64))
    leaf = np.zeros(count, np.int64)
    pieces = no_pieces()
    for batch in range(len(first) - 1):
        begin, end = first[batch], first[batch + 1]
        if end - begin == 1:
            lines = reserve_one(lines, routes, transfers, members[begin], found, pieces)
        elif end > begin:
            lines = _reserve_batch(lines, routes, transfers, members[begin:end], end_ns, leaf, found, pieces)
    return found, rows(pieces), lines
