# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What algorithm 3 works on, compiled: a lot as columns, and what its lower bounds are computed from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled, lean
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, MOST_BPS, Ints, Lines, Routes, duration, fork, room
from mlfabric.scheduler.planning.fluid.stored_racks import bits_into, rack_links
from mlfabric.scheduler.planning.fluid.wide import ENOUGH_BITS

__all__ = ["Bounds", "Load", "prepare"]

SUM, MOST, LEAST = 0, 1, 2  # what is made of several lists


class Load(NamedTuple):
    """A lot as columns by place, and the aggregators; ``tensor_bits`` is what counts in a sum of several.

    ``route`` leads to the destination, ``route + shift[j]`` to aggregator j, ``out[j]`` from there to the destination.
    ``most`` is by aggregator how many updates it may take, 0 for any number.
    """

    bits: Ints
    tensor_bits: Ints
    ready_ns: Ints
    route: Ints
    shift: Ints
    out: Ints
    most: Ints
    carried: int
    now_ns: int
    fixed: int


class Bounds(NamedTuple):
    """What lower bounds are computed from.

    ``free`` is what was free before the lot. ``inflow`` has one line for each aggregator, the sum of all links by which
    the lot could enter its host, one more for the destination, and one for the racks (``stored_racks.py``); then, over
    all aggregators but the last, the most of theirs, and the least of all links from there to the destination; head 0
    if there is no such line. ``entry`` are the routes over just one of these. ``until[j, i]`` is how many bits all
    updates before place i bring to line j; ``lightest[i]`` to any but the last aggregator's, each where it brings the
    fewest; ``grouped[i]`` to the racks by way of any aggregator, ``directly[i]`` on their own.
    By place, for what is from there on: ``most_bits`` and ``least_bits`` of any one transfer to the destination (0 if
    it crosses no link), ``sum_bits`` of all as one sum. ``brought[i]`` is how many bits the updates before place i
    bring to the destination directly or, if less, as one tensor; ``brought_sum[i]`` is the sum of ``brought[: i + 1]``;
    both are empty if they are too large. The sum of m updates has at least ``tensors / m`` of what they bring.
    Latencies: the largest and the least to each aggregator (``slow_ns``, ``fast_ns``), the least to any of them
    (``fastest_ns``) and to the destination (``near_ns``).
    ``sure`` is 1 if the last aggregator certainly takes all updates that it is offered.
    """

    free: Lines
    inflow: Lines
    entry: Routes
    until: Ints
    lightest: Ints
    grouped: Ints
    directly: Ints
    most_bits: Ints
    least_bits: Ints
    sum_bits: Ints
    brought: Ints
    brought_sum: Ints
    slow_ns: Ints
    fast_ns: Ints
    fastest_ns: int
    slowest_ns: int
    near_ns: int
    start_ns: int
    sure: int
    tensors: int


@lean
def next_change(lines, cursor, now):
    """The first instant after ``now`` at which one of several lists has a node."""
    change = HORIZON_NS
    for node in cursor:
        ahead = node if lines.at_ns[node] > now else lines.following[node]
        change = min(change, lines.at_ns[ahead])
    return change


@lean
def advance(lines, cursor, now, how):
    """Move each cursor to the node that holds at an instant; return the sum, most or least of what is free there."""
    bps = MOST_BPS if how == LEAST else 0
    for k in range(len(cursor)):
        if lines.at_ns[lines.following[cursor[k]]] <= now:
            cursor[k] = lines.following[cursor[k]]
        free = lines.bps[cursor[k]] if lines.at_ns[cursor[k]] <= now else 0
        bps = bps + free if how == SUM else max(bps, free) if how == MOST else min(bps, free)
    return bps


@lean
def length(lines, heads):
    """How many nodes some lists have."""
    found = 0
    for head in heads:
        node = head
        while node != 0:
            node = lines.following[node]
            found += 1
    return found


@lean
def joined(lines, cursor, how):
    """Add the sum, most or least of some lists, given their heads; return its head, 0 if it is too wide."""
    now, head, last = next_change(lines, cursor, -1), lines.used[0], 0
    while now < HORIZON_NS:
        new, bps = lines.used[0], advance(lines, cursor, now, how)
        if bps > MOST_BPS:
            return 0
        lines.at_ns[new], lines.bps[new], lines.following[new] = now, bps, 0
        if last != 0:
            lines.following[last] = new
        lines.used[0] += 1
        last = new
        now = next_change(lines, cursor, now)
    return head


@lean
def note(lines, routes, route, first, seen, heads, count):
    """Write down the heads of a route's links from one on that were not seen yet; return how many there are now."""
    for hop in range(max(first, 0), routes.hops[route]):
        link = routes.link[route, hop]
        if not seen[link]:
            seen[link] = True
            heads[count] = lines.head[link]
            count += 1
    return count


@lean
def note_entries(lines, routes, load, j, seen, heads):
    """Write down the different links by which transfers enter aggregator j's host; for number k, the destination."""
    count, k = 0, len(load.out)
    seen[:] = False
    for route in load.route:
        to = route + (load.shift[j] if j < k else 0)
        count = note(lines, routes, to, routes.hops[to] - 1, seen, heads, count)
    if j == k:
        for route in load.out:
            count = note(lines, routes, route, routes.hops[route] - 1, seen, heads, count)
    return count


@lean
def note_ways_out(lines, routes, load, seen, heads):
    """Write down the different links from all aggregators but the last to the destination."""
    count = 0
    seen[:] = False
    for route in load.out[:-1]:
        count = note(lines, routes, route, 0, seen, heads, count)
    return count


@lean
def note_chosen(found, is_chosen, heads):
    """Write down the chosen ones of some heads."""
    count = 0
    for n in range(len(is_chosen)):
        if is_chosen[n]:
            heads[count] = found[n]
            count += 1
    return count


@compiled
def inflows(lines, routes, load, racks):
    """The lines of ``Bounds.inflow``, and routes over just one of them."""
    k = len(load.out)
    merged, head = fork(lines, 0), np.zeros(k + 4, np.int64)
    seen, heads = np.zeros(len(lines.head), np.bool_), np.empty(len(lines.head) + k, np.int64)
    for j in range(k + 4):
        if j <= k:
            how, count = SUM, note_entries(lines, routes, load, j, seen, heads)
        elif j == k + 1:
            how, count = SUM, note_chosen(lines.head, racks, heads)
        elif j == k + 2:
            how, count = MOST, note_chosen(head, head[: k - 1] > 0, heads)
        else:
            how, count = LEAST, note_ways_out(lines, routes, load, seen, heads)
        if count == 1:
            head[j] = heads[0]
        elif count > 1:
            merged = room(merged, length(merged, heads[:count]))
            head[j] = joined(merged, heads[:count], how)
    inflow = Lines(merged.at_ns, merged.bps, merged.following, merged.used, head)
    numbers = np.arange(k + 4).reshape(k + 4, 1)
    return inflow, Routes(numbers, np.ones(k + 4, np.int64), np.zeros(k + 4, np.int64), np.zeros(1, np.int64))


@compiled
def ends_surely(lines, routes, load, end_ns):
    """Whether the last aggregator takes all it is offered: all its routes stay open, and there is time for everything.

    ``end_ns`` is when what goes directly has ended. From the last change of any link on, a transfer that starts after
    all others have ended needs no longer than at the least of the rates that links have in the end.
    """
    j, least, bits = len(load.out) - 1, MOST_BPS, 0
    if load.most[j] != 0:
        return False
    tail = np.empty(len(lines.head), np.int64)
    for link in range(len(lines.head)):
        node = lines.head[link]
        while lines.following[node] != 0:
            node = lines.following[node]
        tail[link] = lines.bps[node]
        end_ns = max(end_ns, lines.at_ns[node])
    for i in range(len(load.bits)):
        route = load.route[i] + load.shift[j]
        for k in range(routes.hops[route]):
            least = min(least, tail[routes.link[route, k]])
        end_ns = max(end_ns, load.ready_ns[i])
        bits = min(bits + load.bits[i], ENOUGH_BITS)
    for route in load.out:
        for k in range(routes.hops[route]):
            least = min(least, tail[routes.link[route, k]])
    if least == 0 or bits >= ENOUGH_BITS // (load.carried + 1):
        return False
    took_ns = duration(least, bits * (load.carried + 1), 0)
    waits_ns = routes.latency_ns.max() * (len(load.out) + 1) + len(load.bits) + len(load.out)
    return took_ns < HORIZON_NS // 4 and waits_ns < HORIZON_NS // 4 and end_ns < HORIZON_NS // 4


@compiled
def latencies(routes, load):
    """The largest and the least latency to each aggregator, and the least to the destination."""
    k = len(load.out)
    slow_ns, fast_ns, near_ns = np.zeros(k, np.int64), np.full(k, HORIZON_NS), HORIZON_NS
    for route in load.route:
        near_ns = min(near_ns, routes.latency_ns[route])
        for j in range(k):
            slow_ns[j] = max(slow_ns[j], routes.latency_ns[route + load.shift[j]])
            fast_ns[j] = min(fast_ns[j], routes.latency_ns[route + load.shift[j]])
    for route in load.out:
        near_ns = min(near_ns, routes.latency_ns[route])
    return slow_ns, fast_ns, near_ns


@compiled
def bits_until(routes, load, inflow):
    """By aggregator and place, how many bits all updates before it bring to the aggregator's line."""
    until = np.zeros((len(load.out), len(load.bits) + 1), np.int64)
    for j in range(len(load.out)):
        for i in range(len(load.bits)):
            crosses = inflow.head[j] != 0 and routes.hops[load.route[i] + load.shift[j]] > 0
            until[j, i + 1] = min(until[j, i] + (load.bits[i] if crosses else 0), ENOUGH_BITS)
    return until


@compiled
def lightest_until(load, until):
    """By place, how many bits all updates before it bring at least if each goes to any aggregator but the last."""
    lightest = np.zeros(len(load.bits) + 1, np.int64)
    for i in range(len(load.bits)):
        bits = ENOUGH_BITS
        for j in range(len(load.out) - 1):
            bits = min(bits, until[j, i + 1] - until[j, i])
        lightest[i + 1] = min(lightest[i] + bits, ENOUGH_BITS)
    return lightest


@compiled
def all_cross(routes, load):
    """Whether every sum crosses a link on its way to the destination."""
    return routes.hops[load.out].min() > 0


@compiled
def sizes(routes, load):
    """``most_bits``, ``least_bits`` and ``sum_bits`` of the bounds."""
    columns = np.zeros((3, len(load.bits) + 1), np.int64)
    most, least, whole = columns
    least[-1], crosses = ENOUGH_BITS, all_cross(routes, load)
    for i in range(len(load.bits) - 1, -1, -1):
        summed = load.carried * load.tensor_bits[i]
        whole[i] = max(whole[i + 1], summed)
        most[i] = max(most[i + 1], summed, load.bits[i])
        least[i] = min(least[i + 1], load.bits[i], summed) if crosses and routes.hops[load.route[i]] > 0 else 0
    return most, least, whole


@compiled
def bits_brought(routes, load):
    """``brought`` and ``brought_sum`` of the bounds."""
    count, crosses = len(load.bits), all_cross(routes, load)
    brought, summed = np.zeros((2, count + 1), np.int64)
    for i in range(count):
        bits = min(load.bits[i], load.carried * load.tensor_bits[i])
        brought[i + 1] = brought[i] + (bits if crosses and routes.hops[load.route[i]] > 0 else 0)
        if brought[i + 1] > ENOUGH_BITS // (count + 1):
            return brought[:0], summed[:0]
        summed[i + 1] = summed[i] + brought[i + 1]
    return brought, summed


@compiled
def prepare(lines, routes, load, planned, end_ns):
    """Compute what lower bounds are computed from.

    Args:
        planned: by place, 0 for what is on its way.
        end_ns: when all that could go directly has ended.
    """
    racks = rack_links(lines, routes, load)
    grouped, directly = bits_into(routes, load, planned, racks)
    if not grouped.any():
        racks[:] = False
    inflow, entry = inflows(lines, routes, load, racks)
    until = bits_until(routes, load, inflow)
    most_bits, least_bits, sum_bits = sizes(routes, load)
    brought, brought_sum = bits_brought(routes, load)
    slow_ns, fast_ns, near_ns = latencies(routes, load)
    sure = 1 if ends_surely(lines, routes, load, end_ns) else 0
    start_ns = load.ready_ns.min()
    lightest = lightest_until(load, until)
    columns = (
        until,
        lightest,
        grouped,
        directly,
        most_bits,
        least_bits,
        sum_bits,
        brought,
        brought_sum,
        slow_ns,
        fast_ns,
    )
    tensors = load.carried if np.all(load.bits == load.tensor_bits) else 1
    return Bounds(lines, inflow, entry, *columns, fast_ns.min(), slow_ns.max(), near_ns, start_ns, sure, tensors)
