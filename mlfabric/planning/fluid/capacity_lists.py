# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What a transfer uses of a network and what a reservation takes from it, compiled, for paths of any length.

Exact in 64 bits within the limits of ``mlfabric.network`` (sizes to 2**50 bytes, rates to 2**43 bit/s, times to 2**62
ns): the remaining amount is kept as whole bits and billionths of a bit, and every product stays below 2**63.

Residual capacities are linked lists of nodes (from when, how much, next); node 0 ends every list at the horizon.
Because reservations only subtract, a list's head moves past nodes that can never be used again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning.fluid.jit import compiled, inner, lean

__all__ = [
    "HORIZON_NS",
    "MOST_BPS",
    "NO_ROOM",
    "Ints",
    "Lines",
    "Routes",
    "flow",
    "fork",
    "grown",
    "reach",
    "room",
    "send",
    "take_rows",
]

Ints = NDArray[np.int64]

HORIZON_NS = 1 << 62
SECOND_NS = 10**9
MOST_SECONDS = HORIZON_NS // SECOND_NS
MOST_BPS = 1 << 43
NO_ROOM = -1
FEW_BITS = 9 * 10**9


class Lines(NamedTuple):
    """All linked lists: nodes, how many are ``used`` (one number), and by link the ``head`` of its list."""

    at_ns: Ints
    bps: Ints
    following: Ints
    used: Ints
    head: Ints


class Routes(NamedTuple):
    """Paths: route r crosses links ``link[r, : hops[r]]`` and delays by ``latency_ns[r]``; ``cursor`` is scratch."""

    link: Ints
    hops: Ints
    latency_ns: Ints
    cursor: Ints


@inner
def seek(lines, node, at_ns):
    """The node that is valid at an instant, at or after ``node``."""
    while lines.at_ns[lines.following[node]] <= at_ns:
        node = lines.following[node]
    return node


@inner
def duration(bps, bits, nano):
    """The least ns in which ``bits + nano / 10**9`` bits pass; at least HORIZON_NS if it is that long."""
    if bits < FEW_BITS:  # one division instead of four
        return (bits * SECOND_NS + nano + bps - 1) // bps
    seconds = bits // bps
    if seconds > MOST_SECONDS:
        return HORIZON_NS
    rest = (bits - seconds * bps) * 100_000
    high = rest // bps
    rest = (rest - high * bps) * 10_000
    low = rest // bps
    return seconds * SECOND_NS + high * 10_000 + low + (rest - low * bps + nano + bps - 1) // bps


@inner
def flow(lines, routes, route, cap_bps, bits, ready_ns, out, room):
    """Send at most at ``cap_bps`` from ``ready_ns`` on; return when all bits have passed, and in how many pieces.

    HORIZON_NS for never; ``ready_ns`` for a route without links, or for no bits. Latency is not included. The first
    ``room`` of the pieces are written to the rows of ``out``.
    """
    hops, cursor, count = routes.hops[route], routes.cursor, 0
    if hops == 0 or bits == 0 or ready_ns >= HORIZON_NS:
        return min(ready_ns, HORIZON_NS), 0
    now, nano, former_ns, former_bps = ready_ns, 0, -1, 0
    for k in range(hops):
        now = max(now, lines.at_ns[lines.head[routes.link[route, k]]])
    for k in range(hops):
        cursor[k] = seek(lines, lines.head[routes.link[route, k]], now)
    while now < HORIZON_NS:
        bps, change = cap_bps, HORIZON_NS
        for k in range(hops):
            bps = min(bps, lines.bps[cursor[k]])
            change = min(change, lines.at_ns[lines.following[cursor[k]]])
        if bps > 0:
            span = change - now
            needed = duration(bps, bits, nano)
            until = now + needed if needed <= span else change
            if former_ns != now or former_bps != bps:
                count += 1
                if count <= room:
                    out[count - 1, 0], out[count - 1, 2] = now, bps
            if count <= room:
                out[count - 1, 1] = until
            if needed <= span:
                return until, count
            former_ns, former_bps = until, bps
            part = span % SECOND_NS
            passed = (bps % SECOND_NS) * part
            bits -= (span // SECOND_NS) * bps + (bps // SECOND_NS) * part + passed // SECOND_NS
            nano -= passed % SECOND_NS
            if nano < 0:
                nano += SECOND_NS
                bits -= 1
        now = change
        for k in range(hops):
            if lines.at_ns[lines.following[cursor[k]]] == change:
                cursor[k] = lines.following[cursor[k]]
    return HORIZON_NS, count


@lean
def reach(lines, routes, route, cap_bps, bits, ready_ns):
    """When ``bits`` sent at most at ``cap_bps`` have passed; like ``flow``, but keeps no pieces."""
    return flow(lines, routes, route, cap_bps, bits, ready_ns, routes.link, 0)[0]


@inner
def split(lines, node, at_ns):
    """The node that begins at an instant within ``node``'s span; it is made if it does not exist."""
    if lines.at_ns[node] >= at_ns:
        return node
    new = lines.used[0]
    lines.used[0] += 1
    lines.at_ns[new], lines.bps[new], lines.following[new] = at_ns, lines.bps[node], lines.following[node]
    lines.following[node] = new
    return new


@inner
def subtract(lines, node, piece):
    """Subtract one piece from a list; merge equal neighbours. ``node`` stays its head."""
    start_ns, end_ns, bps = piece
    before = seek(lines, node, start_ns)
    node = split(lines, before, start_ns)
    while lines.at_ns[node] < end_ns:
        if lines.at_ns[lines.following[node]] > end_ns:
            split(lines, node, end_ns)
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


@compiled
def room(lines, more):
    """The same lines with room for more nodes."""
    wanted = lines.used[0] + more
    if wanted <= len(lines.at_ns):
        return lines
    grown = np.zeros((3, 2 * wanted), np.int64)
    for i in range(lines.used[0]):
        grown[0, i], grown[1, i], grown[2, i] = lines.at_ns[i], lines.bps[i], lines.following[i]
    return Lines(grown[0], grown[1], grown[2], lines.used, lines.head)


@inner
def _drop_head(lines, link):
    """Move a list's head past nodes that can never be used again."""
    while lines.bps[lines.head[link]] <= 0 and lines.following[lines.head[link]] != 0:
        lines.head[link] = lines.following[lines.head[link]]


@inner
def take_rows(lines, routes, route, out, count):
    """Subtract the first rows of ``out`` from the free capacity of every link of a route, if there is room."""
    for k in range(routes.hops[route]):
        link = routes.link[route, k]
        for i in range(count):
            subtract(lines, lines.head[link], (out[i, 0], out[i, 1], out[i, 2]))
        _drop_head(lines, link)


@lean
def send(lines, routes, route, bits, ready_ns, pieces, used):
    """Plan and reserve one transfer; return when it ends, and the row after its pieces, which begin at row ``used``.

    One that never ends reserves nothing. Nor does one for whose pieces or nodes there is no room: it ends at NO_ROOM.
    """
    left = len(pieces) - used
    end_ns, count = flow(lines, routes, route, MOST_BPS, bits, ready_ns, pieces[used:], left)
    if end_ns >= HORIZON_NS:
        return end_ns, used
    if count > left or lines.used[0] + 2 * count * routes.hops[route] > len(lines.at_ns):
        return NO_ROOM, used
    take_rows(lines, routes, route, pieces[used:], count)
    return end_ns, used + count


@compiled
def grown(lines, pieces, used):
    """The same lines, and the first rows of pieces, with twice the room."""
    former, pieces = pieces, np.empty((2 * len(pieces) + 4, 3), np.int64)
    pieces[:used] = former[:used]
    return room(lines, len(lines.at_ns)), pieces


@compiled
def fork(lines, spare):
    """An independent copy with room for ``spare`` more nodes."""
    used = lines.used[0]
    copied = np.empty((3, used + spare), np.int64)
    for i in range(used):
        copied[0, i], copied[1, i], copied[2, i] = lines.at_ns[i], lines.bps[i], lines.following[i]
    return Lines(copied[0], copied[1], copied[2], lines.used.copy(), lines.head.copy())
