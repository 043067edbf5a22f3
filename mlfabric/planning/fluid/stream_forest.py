# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Streams that are inputs of each other, planned and reserved one after another, compiled.

A stream leaves one place and reaches another; streams that reach a place are inputs of the streams that leave it later
in the list. A place is not a host: a host that sums one group and sends its own update to another is two places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, Ints, fork, send, take_rows
from mlfabric.planning.fluid.jit import compiled, entry
from mlfabric.planning.fluid.reserving import nothing_found, reserve_one
from mlfabric.planning.fluid.shortest import Transfers
from mlfabric.planning.fluid.stream_kernel import chunk_arrival, earliest_start, no_pieces, rates_of

__all__ = ["Streams", "make_streams", "reserve_given", "run_all", "run_streams", "send_each"]


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


@compiled
@entry
def make_streams(count, places):
    """Room for some streams between some places."""
    table = np.zeros((7, count + 1), np.int64)
    return Streams(
        table[0], table[1], table[2], table[3], table[4], table[5], table[6],
        np.zeros(count + 1, np.int64), np.full(places, -1), np.full(count + 1, -1),
    )  # fmt: skip


@compiled
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
def run_streams(lines, routes, streams, begin, end, chunk_bits, pieces, rates):
    """Plan and reserve ``streams[begin:end]``; return if all of them end, and the lines."""
    for i in range(begin, end):
        streams.first[i] = len(pieces)
        streams.start_ns[i] = after_inputs(lines, routes, streams, i, chunk_bits, pieces, rates)
        streams.end_ns[i], lines = send(
            lines, routes, streams.route[i], streams.bits[i], streams.start_ns[i], pieces
        )  # fmt: skip
        streams.first[i + 1] = len(pieces)
        if streams.end_ns[i] >= HORIZON_NS:
            return False, lines
        place = streams.reaches[i]
        streams.sibling[i] = streams.arriving[place]
        streams.arriving[place] = i
    return True, lines


@compiled
def rows_of(pieces):
    """A list of pieces as rows (start, end, bps)."""
    rows = np.empty((len(pieces), 3), np.int64)
    for i in range(len(pieces)):
        rows[i, 0], rows[i, 1], rows[i, 2] = pieces[i]
    return rows


@compiled
@entry
def run_all(lines, routes, streams, count, chunk_bits):
    """Plan the first ``count`` streams on a copy of the lines; return their pieces as rows, and what is left free."""
    lines, pieces = fork(lines, 16 * count), no_pieces()
    streams.arriving[:] = -1
    _, lines = run_streams(lines, routes, streams, 0, count, chunk_bits, pieces, no_pieces())
    return rows_of(pieces), lines


@compiled
@entry
def send_each(lines, routes, route, bits, ready_ns):
    """Send updates directly, in turn.

    Returns:
        Ends (HORIZON_NS for never), pieces as rows, the first row of each, and what is left free.
    """
    count, used = len(route), 0
    (found, pieces), first = nothing_found(count), np.zeros(count + 1, np.int64)
    transfers, lines = Transfers(route, bits, ready_ns, bits, route), fork(lines, 8 * count)
    for i in range(count):
        lines, pieces, used = reserve_one(lines, routes, transfers, i, found, pieces, used)
        first[i + 1] = used
    return found.end_ns, pieces[:used], first, lines


@compiled
@entry
def reserve_given(lines, routes, route, flies, pieces, first):
    """Reserve profiles ``pieces[first[i] : first[i + 1]]``, but not of updates in flight; return what is left free."""
    lines = fork(lines, 2 * len(pieces) * routes.link.shape[1])
    for i in range(len(route)):
        if flies[i] == 0:
            take_rows(lines, routes, route[i], pieces[first[i] : first[i + 1]], first[i + 1] - first[i])
    return lines
