# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Which hosts relay a model to which while it still arrives, compiled; the rule is in ``spreads.py``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import (
    HORIZON_NS,
    MOST_BPS,
    NO_ROOM,
    Ints,
    Lines,
    Routes,
    fork,
    grown,
    reach,
    send,
)
from mlfabric.planning.fluid.jit import compiled, entry, lean
from mlfabric.planning.fluid.stream_kernel import chunk_arrival, earliest_start, rates_of

__all__ = ["BY_SERVER", "Handing", "spread", "warm"]

BY_SERVER = -1


class Handing(NamedTuple):
    """Gets in the order in which the server alone would answer them, and distributors, first choice first.

    Routes: ``direct`` by get, ``model`` by distributor, ``onward`` by (distributor, get), ``between`` distributors.
        ``bits`` is by get, ``own`` by get the distributor on its host or -1, ``most`` by distributor how many gets it
        may relay the model to, 0 for any number. ``scalars``: the bits of the model, when it is ready, 1 if only the
        last answer counts, and the bits of a chunk.
    """

    direct: Ints
    model: Ints
    onward: Ints
    between: Ints
    bits: Ints
    own: Ints
    most: Ints
    scalars: Ints


class Held(NamedTuple):
    """By distributor: what it has of the model: ``pieces[first:until]`` came over ``route``.

    When the first chunk has arrived, and when all has; ``given`` is how often it has relayed the model.
    """

    route: Ints
    first: Ints
    until: Ints
    there_ns: Ints
    arrive_ns: Ints
    given: Ints


@lean
def bits_of(handing, item):
    """The bits that an item (a get, or ~distributor) is sent."""
    return handing.scalars[0] if item < 0 else handing.bits[item]


@lean
def route_to(handing, item, by):
    """The route over which an item is reached from the server or a distributor."""
    if by == BY_SERVER:
        return handing.model[~item] if item < 0 else handing.direct[item]
    return handing.between[by, ~item] if item < 0 else handing.onward[by, item]


@lean
def chunk_there(routes, handing, held, by, pieces):
    """When a distributor has the first chunk of the model."""
    first, until, arrive_ns = held.first[by], held.until[by], held.arrive_ns[by]
    bits, latency_ns = handing.scalars[0], routes.latency_ns[held.route[by]]
    return chunk_arrival(pieces, first, until, bits, latency_ns, arrive_ns, handing.scalars[3])


@lean
def stream_start(lines, routes, handing, held, by, route, start_ns, pieces, rates):
    """When a distributor that has a first chunk may begin to send its model over a route."""
    first, until, arrive_ns = held.first[by], held.until[by], held.arrive_ns[by]
    if routes.hops[route] == 0 or start_ns >= arrive_ns:
        return arrive_ns
    rates_of(lines, routes, route, start_ns, arrive_ns, rates)
    bits, latency_ns = handing.scalars[0], routes.latency_ns[held.route[by]]
    return earliest_start(rates, start_ns, pieces, first, until, bits, latency_ns, arrive_ns, handing.scalars[3])


@lean
def may_beat(lines, routes, handing, route, bits, start_ns, arrive_ns, best_ns):
    """Whether a relayed model can arrive over a route before an instant: a bound that needs no stream.

    ``start_ns`` is when the sender has a first chunk, ``arrive_ns`` when it has everything; then the rest is still to
    be sent.
    """
    latency_ns = routes.latency_ns[route]
    if arrive_ns + latency_ns >= best_ns:
        return False
    if reach(lines, routes, route, MOST_BPS, bits, start_ns) + latency_ns >= best_ns:
        return False
    kept = min(bits, handing.scalars[3])
    return reach(lines, routes, route, MOST_BPS, kept, arrive_ns) + latency_ns < best_ns


@lean
def best_holder(lines, routes, handing, held, holders, item, pieces, rates):
    """The source from which an item arrives first (of several the server, or the oldest holder), and its start."""
    route = route_to(handing, item, BY_SERVER)
    by, start_ns = BY_SERVER, handing.scalars[1]
    end_ns = reach(lines, routes, route, MOST_BPS, bits_of(handing, item), start_ns)
    best_ns = end_ns + routes.latency_ns[route] if end_ns < HORIZON_NS else HORIZON_NS
    # The newest first: it is often the best, and then the others are skipped. Of equal ones the oldest wins.
    for place in range(len(holders) - 1, -1, -1):
        j = holders[place]
        is_full = 0 < handing.most[j] <= held.given[j]
        route = route_to(handing, item, j)
        allowed_ns = best_ns if by == BY_SERVER else best_ns + 1
        there_ns, bits = held.there_ns[j], bits_of(handing, item)
        if is_full or not may_beat(lines, routes, handing, route, bits, there_ns, held.arrive_ns[j], allowed_ns):
            continue
        from_ns = stream_start(lines, routes, handing, held, j, route, there_ns, pieces, rates)
        end_ns = reach(lines, routes, route, MOST_BPS, bits, from_ns)
        arrive_ns = end_ns + routes.latency_ns[route]
        if end_ns < HORIZON_NS and arrive_ns < allowed_ns:
            by, start_ns, best_ns = j, from_ns, arrive_ns
    return by, start_ns, best_ns


@lean
def add_row(rows, count, what, by, ready_ns, end_ns, first, until):
    """Append a row: get or ~distributor, source, ready, end, first piece, one after; return how many there are."""
    rows[count, 0], rows[count, 1], rows[count, 2], rows[count, 3] = what, by, ready_ns, end_ns
    rows[count, 4], rows[count, 5] = first, until
    return count + 1


@lean
def answer_own(handing, j, arrive_ns, answered_ns, used, rows, count):
    """Note that gets on a distributor's host are answered when it has the model; return how many rows there are."""
    for g in range(len(handing.own)):
        if handing.own[g] == j:
            answered_ns[g] = arrive_ns
            count = add_row(rows, count, g, j, arrive_ns, arrive_ns, used, used)
    return count


@compiled
@entry
def spread(lines, routes, handing, items):
    """Serve items (gets, or ~distributor) in turn, each from the source from which it arrives first.

    Returns by get when it is answered (HORIZON_NS for never; then none after it is answered), rows as in ``add_row``,
    and pieces; row 0 of both tables means nothing.
    """
    lines, pieces = fork(lines, 16 * len(items) + 64), np.zeros((4 * len(items) + 1, 3), np.int64)
    rates = np.empty((len(lines.at_ns) + 2, 3), np.int64)
    rows = np.zeros((len(items) + len(handing.own) + 1, 6), np.int64)
    columns, holders = np.zeros((6, len(handing.model)), np.int64), np.empty(len(handing.model), np.int64)
    held = Held(columns[0], columns[1], columns[2], columns[3], columns[4], columns[5])
    answered_ns, holding, used, count = np.full(len(handing.own), HORIZON_NS), 0, 1, 1
    for item in items:
        by, start_ns, arrive_ns = best_holder(lines, routes, handing, held, holders[:holding], item, pieces, rates)
        if arrive_ns >= HORIZON_NS:
            break
        route, bits, first = route_to(handing, item, by), bits_of(handing, item), used
        end_ns, used = send(lines, routes, route, bits, start_ns, pieces, first)
        while end_ns == NO_ROOM:
            lines, pieces = grown(lines, pieces, first)
            rates = np.empty((len(lines.at_ns) + 2, 3), np.int64)
            end_ns, used = send(lines, routes, route, bits, start_ns, pieces, first)
        count = add_row(rows, count, item, by, start_ns, end_ns, first, used)
        if by != BY_SERVER:
            held.given[by] += 1
        if item >= 0:
            answered_ns[item] = arrive_ns
        else:
            j = ~item
            holders[holding], holding = j, holding + 1
            held.route[j], held.first[j], held.until[j], held.arrive_ns[j] = route, first, used, arrive_ns
            held.there_ns[j] = chunk_there(routes, handing, held, j, pieces)
            count = answer_own(handing, j, arrive_ns, answered_ns, used, rows, count)
    return answered_ns, rows[:count], pieces[:used]


def warm() -> None:
    """Load the machine code, or compile it: run the kernel once on a tiny case."""
    nothing, square = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    routes = Routes(np.zeros((1, 1), np.int64), nothing, nothing, nothing.copy())
    nodes = np.array(((HORIZON_NS, 0), (0, 1), (0, 0)))
    lines = Lines(nodes[0], nodes[1], nodes[2], np.array([2]), np.array([1]))
    handing = Handing(nothing, nothing, square, square, nothing, nothing - 1, nothing, np.zeros(4, np.int64))
    spread(lines, routes, handing, np.array([-1, 0]))
