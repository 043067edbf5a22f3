# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Streams that are inputs of each other, planned and reserved one after another, compiled.

A stream leaves one place and reaches another; streams that reach a place are inputs of the streams that leave it later
in the list. A place is not a host: a host that sums one group and sends its own update to another is two places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, NO_ROOM, Ints, Lines, fork, grown, send, take_rows
from mlfabric.planning.fluid.jit import compiled, entry, lean
from mlfabric.planning.fluid.stream_kernel import chunk_arrival, earliest_start, rates_of

__all__ = ["Streams", "make_ground", "make_streams", "reserve_given", "run_all", "run_streams", "send_each"]


class Streams(NamedTuple):
    """Streams in the order in which they are reserved, inputs first; columns.

    Given: ``route``, ``bits``, ``ready_ns`` (no start before), ``leaves`` and ``reaches`` (places).
    Found: ``start_ns`` (the earliest that overtakes no input), ``end_ns``, and pieces ``first[i] : first[i + 1]``.
    Scratch: ``arriving`` by place, ``sibling`` by stream: the list of what has reached a place, latest first.
    """

    route: Ints
    bits: Ints
    ready_ns: Ints
    leaves: Ints
    reaches: Ints
    start_ns: Ints
    end_ns: Ints
    first: Ints
    arriving: Ints
    sibling: Ints


class Ground(NamedTuple):
    """What streams are planned on: what is free, room for the rows of their pieces, and for the rates of a path."""

    lines: Lines
    pieces: NDArray[np.int64]
    rates: NDArray[np.int64]


@compiled
@entry
def make_streams(count, places):
    """Room for some streams between some places."""
    table = np.zeros((7, count + 1), np.int64)
    return Streams(
        table[0], table[1], table[2], table[3], table[4], table[5], table[6],
        np.zeros(count + 1, np.int64), np.full(places, -1), np.full(count + 1, -1),
    )  # fmt: skip


@lean
def after_inputs(lines, routes, streams, i, chunk_bits, pieces, rates):
    """The earliest start of a stream."""
    start_ns, latest_ns = streams.ready_ns[i], 0
    k = streams.arriving[streams.leaves[i]]
    if k < 0:
        return start_ns
    while k >= 0:
        latency_ns = routes.latency_ns[streams.route[k]]
        arrive_ns = streams.end_ns[k] + latency_ns
        there_ns = chunk_arrival(
            pieces, streams.first[k], streams.first[k + 1], streams.bits[k], latency_ns, arrive_ns, chunk_bits
        )  # fmt: skip
        start_ns = max(start_ns, there_ns)
        latest_ns = max(latest_ns, arrive_ns)
        k = streams.sibling[k]
    rates_of(lines, routes, streams.route[i], start_ns, latest_ns, rates)
    k = streams.arriving[streams.leaves[i]]
    while k >= 0:
        latency_ns = routes.latency_ns[streams.route[k]]
        start_ns = earliest_start(
            rates, start_ns, pieces, streams.first[k], streams.first[k + 1], streams.bits[k],
            latency_ns, streams.end_ns[k] + latency_ns, chunk_bits,
        )  # fmt: skip
        k = streams.sibling[k]
    return start_ns


@compiled
def make_ground(lines, streams, used):
    """A copy of the lines with room for some streams, whose pieces begin at row ``used``."""
    lines = fork(lines, 16 * streams)
    return Ground(lines, np.empty((used + 4 * streams, 3), np.int64), np.empty((len(lines.at_ns) + 2, 3), np.int64))


@lean
def _run_while_room(lines, routes, streams, begin, end, chunk_bits, pieces, rates):
    """Plan and reserve streams until one never ends or there is no room for it; return that one, else ``end``."""
    for i in range(begin, end):
        streams.start_ns[i] = after_inputs(lines, routes, streams, i, chunk_bits, pieces, rates)
        streams.end_ns[i], streams.first[i + 1] = send(
            lines, routes, streams.route[i], streams.bits[i], streams.start_ns[i], pieces, streams.first[i]
        )  # fmt: skip
        if streams.end_ns[i] >= HORIZON_NS or streams.end_ns[i] == NO_ROOM:
            return i
        place = streams.reaches[i]
        streams.sibling[i] = streams.arriving[place]
        streams.arriving[place] = i
    return end


@compiled
def run_streams(ground, routes, streams, begin, end, chunk_bits):
    """Plan and reserve ``streams[begin:end]``; return if all of them end, and the ground."""
    lines, pieces, rates = ground
    at = _run_while_room(lines, routes, streams, begin, end, chunk_bits, pieces, rates)
    while at < end and streams.end_ns[at] == NO_ROOM:
        lines, pieces = grown(lines, pieces, streams.first[at])
        rates = np.empty((len(lines.at_ns) + 2, 3), np.int64)
        at = _run_while_room(lines, routes, streams, at, end, chunk_bits, pieces, rates)
    return at == end, Ground(lines, pieces, rates)


@compiled
@entry
def run_all(lines, routes, streams, count, chunk_bits):
    """Plan the first ``count`` streams on a copy of the lines; return their pieces as rows, and what is left free."""
    streams.arriving[:] = -1
    _, ground = run_streams(make_ground(lines, count, 0), routes, streams, 0, count, chunk_bits)
    return ground.pieces[: streams.first[count]], ground.lines


@lean
def _send_while_room(lines, routes, route, bits, ready_ns, end_ns, first, pieces, begin):
    """Plan and reserve transfers from ``begin`` on, until there is no room for one; return that one, else the end."""
    for i in range(begin, len(route)):
        end_ns[i], first[i + 1] = send(lines, routes, route[i], bits[i], ready_ns[i], pieces, first[i])
        if end_ns[i] == NO_ROOM:
            return i
    return len(route)


@compiled
@entry
def send_each(lines, routes, route, bits, ready_ns):
    """Send updates directly, in turn.

    Returns:
        Ends (HORIZON_NS for never), pieces as rows, the first row of each, and what is left free.
    """
    count, lines = len(route), fork(lines, 8 * len(route))
    end_ns, first, pieces = np.empty(count, np.int64), np.zeros(count + 1, np.int64), np.empty((2 * count, 3), np.int64)
    at = _send_while_room(lines, routes, route, bits, ready_ns, end_ns, first, pieces, 0)
    while at < count:
        lines, pieces = grown(lines, pieces, first[at])
        at = _send_while_room(lines, routes, route, bits, ready_ns, end_ns, first, pieces, at)
    return end_ns, pieces[: first[count]], first, lines


@compiled
@entry
def reserve_given(lines, routes, route, flies, pieces, first):
    """Reserve profiles ``pieces[first[i] : first[i + 1]]``, but not of updates in flight; return what is left free."""
    lines = fork(lines, 2 * len(pieces) * routes.link.shape[1])
    for i in range(len(route)):
        if flies[i] == 0:
            take_rows(lines, routes, route[i], pieces[first[i] : first[i + 1]], first[i + 1] - first[i])
    return lines
