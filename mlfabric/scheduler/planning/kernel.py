# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Shortest transfer first through one shared link, compiled: each transfer crosses the shared link and one of its own.

Exact in 64 bits within the limits of ``mlfabric.network`` (sizes to 2**50 bytes, rates to 2**43 bit/s, times to 2**62
ns): what is still to be sent is kept as whole bits and billionths of a bit, and every product stays below 2**63.

Residual capacities are linked lists of nodes (from when, how much, next); node 0 ends every list at the horizon. As
reservations only take away, a list's head moves on past what can never be used again.

The heap is lazy as in ``shortest.py``, and works on three levels, so that a pick looks at few transfers:

- A *group* holds transfers of equal own link, size and readiness: they always have one ``t_en``, and go by rank.
- A *class* holds the groups of one size that are *steady*: ready, and with an own link that is constant from where the
  shared link is free. The higher its rate, the sooner a steady group ends, and all whose rates are not below what
  is free on the shared link until then end together. So the best is found by rate, and among equals by
  rank, in a tree of least ranks over all groups in order of size and rate.
- The heap holds classes, and groups in no class. A group that its host's reservations have made unsteady stays in its
  class as if it were faster than it is, which is still a lower bound, and leaves when it comes to the top.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from mlfabric.scheduler.planning.layout import Lines, State

__all__ = ["reserve", "solo_ends"]

HORIZON_NS = 1 << 62
SECOND_NS = 10**9
MOST_SECONDS = HORIZON_NS // SECOND_NS
NO_RANK = HORIZON_NS


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on the first call and keep the result on disk, where there is a place for it."""
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:
        compiled = numba.njit(function)
    return compiled


@_compiled
def _seek(lines, node, at_ns):
    """The node that holds at an instant, at or after ``node``."""
    while lines.at_ns[lines.following[node]] <= at_ns:
        node = lines.following[node]
    return node


@_compiled
def _duration(bps, bits, nano):
    """The least ns in which ``bits + nano / 10**9`` bits pass; at least HORIZON_NS if it is that long."""
    seconds = bits // bps
    if seconds > MOST_SECONDS:
        return HORIZON_NS
    rest = (bits - seconds * bps) * 100_000
    high = rest // bps
    rest = (rest - high * bps) * 10_000
    low = rest // bps
    return seconds * SECOND_NS + high * 10_000 + low + (rest - low * bps + nano + bps - 1) // bps


@_compiled
def _walk(lines, own, bits, ready_ns, pieces, keep):
    """Send over the shared link and list ``own``; return when it ends, HORIZON_NS for never; keep pieces if asked."""
    first, nano = len(pieces), 0
    now = max(ready_ns, lines.at_ns[lines.shared[0]])
    shared, own = _seek(lines, lines.shared[0], now), _seek(lines, own, now)
    while now < HORIZON_NS:
        shared_change, own_change = lines.at_ns[lines.following[shared]], lines.at_ns[lines.following[own]]
        change = min(shared_change, own_change)
        bps = min(lines.bps[shared], lines.bps[own])
        if bps > 0:
            span = change - now
            needed = _duration(bps, bits, nano)
            until = now + needed if needed <= span else change
            if keep:
                if len(pieces) > first and pieces[-1][1] == now and pieces[-1][2] == bps:
                    pieces[-1] = (pieces[-1][0], until, bps)
                else:
                    pieces.append((now, until, bps))
            if needed <= span:
                return until
            part = span % SECOND_NS
            passed = (bps % SECOND_NS) * part
            bits -= (span // SECOND_NS) * bps + (bps // SECOND_NS) * part + passed // SECOND_NS
            nano -= passed % SECOND_NS
            if nano < 0:
                nano += SECOND_NS
                bits -= 1
        now = change
        if shared_change == change:
            shared = lines.following[shared]
        if own_change == change:
            own = lines.following[own]
    return HORIZON_NS


@_compiled
def _split(lines, node, at_ns):
    """The node that begins at an instant within ``node``'s reach, made if it is not there."""
    if lines.at_ns[node] >= at_ns:
        return node
    new = lines.used[0]
    lines.used[0] += 1
    lines.at_ns[new], lines.bps[new], lines.following[new] = at_ns, lines.bps[node], lines.following[node]
    lines.following[node] = new
    return new


@_compiled
def _subtract(lines, node, piece):
    """Take one piece out of a list; merge equal neighbours. ``node`` stays its head."""
    start_ns, end_ns, bps = piece
    before = _seek(lines, node, start_ns)
    node = _split(lines, before, start_ns)
    while lines.at_ns[node] < end_ns:
        if lines.at_ns[lines.following[node]] > end_ns:
            _split(lines, node, end_ns)
        lines.bps[node] -= bps
        node = lines.following[node]
    while before != node:
        after = lines.following[before]
        if after != 0 and lines.bps[after] == lines.bps[before]:
            lines.following[before] = lines.following[after]
            if after == node:
                break
        else:
            before = after


@_compiled
def _room(lines, more):
    """The same lines with room for more nodes."""
    wanted = lines.used[0] + more
    if wanted <= len(lines.at_ns):
        return lines
    grown = np.zeros((3, 2 * wanted), np.int64)
    for i in range(lines.used[0]):
        grown[0, i], grown[1, i], grown[2, i] = lines.at_ns[i], lines.bps[i], lines.following[i]
    return Lines(grown[0], grown[1], grown[2], lines.used, lines.shared)


@_compiled
def _take(lines, groups, group, pieces):
    """Reserve for one transfer of a group, unless it never ends; return the lines."""
    own, first = groups.head[groups.own[group]], len(pieces)
    end_ns = _walk(lines, own, groups.bits[group], groups.ready_ns[group], pieces, True)
    if end_ns >= HORIZON_NS:
        while len(pieces) > first:
            pieces.pop()
        return lines
    lines = _room(lines, 4 * (len(pieces) - first))
    for i in range(first, len(pieces)):
        _subtract(lines, lines.shared[0], pieces[i])
        _subtract(lines, own, pieces[i])
    while lines.bps[lines.shared[0]] <= 0 and lines.following[lines.shared[0]] != 0:
        lines.shared[0] = lines.following[lines.shared[0]]
    return lines


@_compiled
def _is_steady(lines, groups, group):
    """Whether a group fits its class; moves its own list's head on."""
    free_ns = lines.at_ns[lines.shared[0]]
    if groups.ready_ns[group] > free_ns or groups.bps[group] == 0:
        return False
    link = groups.own[group]
    groups.head[link] = _seek(lines, groups.head[link], free_ns)
    return lines.following[groups.head[link]] == 0


@_compiled
def _end_of(lines, groups, group, pieces):
    """When the next transfer of a group would end."""
    head = groups.head[groups.own[group]]
    return _walk(lines, head, groups.bits[group], groups.ready_ns[group], pieces, False)


@_compiled
def _set(least, group, rank):
    """Write a leaf of the tree."""
    node = group + len(least) // 2
    least[node] = rank
    while node > 1:
        node //= 2
        least[node] = min(least[2 * node], least[2 * node + 1])


@_compiled
def _least(least, low, high):
    """The least rank of groups low to high - 1; NO_RANK for none."""
    found = NO_RANK
    low += len(least) // 2
    high += len(least) // 2
    while low < high:
        if low % 2 == 1:
            found = min(found, least[low])
            low += 1
        if high % 2 == 1:
            high -= 1
            found = min(found, least[high])
        low //= 2
        high //= 2
    return found


@_compiled
def _previous(least, low, before):
    """The last group in the tree from low to before - 1; -1 for none."""
    half = len(least) // 2
    node = before + half
    while node > 1:
        if node % 2 == 1 and least[node - 1] != NO_RANK:
            node -= 1
            while node < half:
                node = 2 * node + 1 if least[2 * node + 1] != NO_RANK else 2 * node
            return node - half if node - half >= low else -1
        node //= 2
    return -1


@_compiled
def _steady_before(heap, lines, groups, state, low, before, pieces):
    """The last steady group of a class before another, after unsteady ones between have left; -1 for none."""
    group = _previous(state.least, low, before)
    while group >= 0 and not _is_steady(lines, groups, group):
        _expel(heap, lines, groups, state, group, pieces)
        group = _previous(state.least, low, before)
    return group


@_compiled
def _expel(heap, lines, groups, state, group, pieces):
    """Move a group from its class to the heap."""
    _set(state.least, group, NO_RANK)
    heapq.heappush(heap, (_end_of(lines, groups, group, pieces), state.head_rank[group], group))


@_compiled
def _widest(lines, end_ns):
    """The most that is free on the shared link before an instant."""
    node = lines.shared[0]
    most = lines.bps[node]
    while lines.at_ns[lines.following[node]] < end_ns:
        node = lines.following[node]
        most = max(most, lines.bps[node])
    return most


@_compiled
def _best_of(heap, lines, groups, state, low, pieces):
    """The best group of a class, -1 for none, and when it ends."""
    top = _steady_before(heap, lines, groups, state, low, state.high[low], pieces)
    if top < 0:
        return -1, HORIZON_NS
    end_ns = _end_of(lines, groups, top, pieces)
    enough_bps = min(groups.bps[top], _widest(lines, end_ns))
    while True:
        equal = low + np.searchsorted(groups.bps[low : state.high[low]], enough_bps)
        lower = _steady_before(heap, lines, groups, state, low, equal, pieces)
        if lower < 0 or _end_of(lines, groups, lower, pieces) != end_ns:
            break
        enough_bps = groups.bps[lower]
    while True:
        best = state.owner[_least(state.least, equal, state.high[low])]
        if _is_steady(lines, groups, best):
            return best, end_ns
        _expel(heap, lines, groups, state, best, pieces)


@_compiled
def _push_class(heap, state, low, end_ns, rank):
    """Let the heap hold a class under this key; what it held before is void."""
    state.key_end[low], state.key_rank[low] = end_ns, rank
    heapq.heappush(heap, (end_ns, rank, -1 - low))


@_compiled
def _put_back(heap, lines, groups, state, entry, group, end_ns):
    """Return what was popped to the heap under its new key; a group joins its class if it is steady."""
    rank = state.head_rank[group]
    low = state.low[group]
    if entry < 0:
        _push_class(heap, state, low, end_ns, rank)
    elif _is_steady(lines, groups, group):
        _set(state.least, group, rank)
        key_end = state.key_end[low]
        if key_end < 0 or end_ns < key_end or (end_ns == key_end and rank < state.key_rank[low]):
            _push_class(heap, state, low, end_ns, rank)
    else:
        heapq.heappush(heap, (end_ns, rank, group))


@_compiled
def _after_pick(heap, groups, state, entry, group, end_ns):
    """Take the picked transfer out of its class and group; what remains of them goes back to the heap."""
    if entry < 0:
        low = state.low[group]
        _set(state.least, group, NO_RANK)
        rank = _least(state.least, low, state.high[low])
        if rank != NO_RANK:
            _push_class(heap, state, low, end_ns, rank)
        else:
            state.key_end[low] = -1
    state.taken[group] += 1
    following = groups.first[group] + state.taken[group]
    if following < groups.first[group + 1]:
        state.head_rank[group] = groups.rank[following]
        heapq.heappush(heap, (end_ns, state.head_rank[group], group))


@_compiled
def _reserve_batch(lines, groups, state, batch, pieces, done):
    """Reserve one batch, shortest transfer first; return the lines."""
    heap = [(0, state.head_rank[g], g) for g in range(groups.batch[batch], groups.batch[batch + 1])]
    heapq.heapify(heap)
    while len(heap) > 0:
        key_end, key_rank, entry = heapq.heappop(heap)
        if entry >= 0:
            group, end_ns = entry, _end_of(lines, groups, entry, pieces)
        else:
            low = -1 - entry
            if state.key_end[low] != key_end or state.key_rank[low] != key_rank:
                continue
            group, end_ns = _best_of(heap, lines, groups, state, low, pieces)
            if group < 0:
                state.key_end[low] = -1
                continue
        rank = state.head_rank[group]
        if len(heap) > 0 and (heap[0][0] < end_ns or (heap[0][0] == end_ns and heap[0][1] < rank)):
            _put_back(heap, lines, groups, state, entry, group, end_ns)
            continue
        first = len(pieces)
        lines = _take(lines, groups, group, pieces)
        done.append((rank, end_ns, first, len(pieces)))
        _after_pick(heap, groups, state, entry, group, end_ns)
    return lines


@_compiled
def _initial(groups):
    """The state before the first pick."""
    count = len(groups.own)
    leaves = 1
    while leaves <= count:
        leaves *= 2
    columns = np.zeros((6, count), np.int64)
    taken, head_rank, low, high, key_end, key_rank = columns
    owner = np.zeros(len(groups.rank), np.int64)
    for batch in range(len(groups.batch) - 1):
        start = groups.batch[batch]
        for group in range(start, groups.batch[batch + 1]):
            if groups.bits[group] != groups.bits[start]:
                start = group
            low[group], key_end[group], high[start] = start, -1, group + 1
            head_rank[group] = groups.rank[groups.first[group]]
            for i in range(groups.first[group], groups.first[group + 1]):
                owner[groups.rank[i]] = group
    least = np.full(2 * leaves, NO_RANK, np.int64)
    return State(taken, head_rank, low, high, key_end, key_rank, least, owner)


@_compiled
def _rows(found):
    """Rows of numbers as an array."""
    rows = np.empty((len(found), len(found[0]) if len(found) > 0 else 0), np.int64)
    for i in range(len(found)):
        for j in range(len(found[i])):
            rows[i, j] = found[i][j]
    return rows


@_compiled
def solo_ends(lines, groups):
    """Return by group when one transfer of it would end if it were alone; HORIZON_NS for never."""
    none = [(0, 0, 0)]
    ends = np.empty(len(groups.own), np.int64)
    for group in range(len(groups.own)):
        ends[group] = _end_of(lines, groups, group, none)
    return ends


@_compiled
def reserve(lines, groups):
    """Reserve all batches; return rows (rank, end_ns, first piece, end) and pieces (start_ns, end_ns, bps)."""
    state = _initial(groups)
    pieces = [(0, 0, 0)]
    done = [(0, 0, 0, 0)]
    for batch in range(len(groups.batch) - 1):
        lines = _reserve_batch(lines, groups, state, batch, pieces, done)
    return _rows(done), _rows(pieces)
