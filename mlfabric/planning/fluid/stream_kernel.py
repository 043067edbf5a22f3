# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""A stream: a transfer that forwards data that is still arriving, compiled.

Until all of an input has arrived, at most what has arrived, less one chunk, may have been sent. A stream is greedy like
all transfers (at every instant it uses the least free capacity along its path), so only its start can be chosen. The
later it starts, the less it has sent by any instant. So there is an earliest start at which it never overtakes an
input. It is found in one pass: from the arrival of a first chunk on, both curves are linear between their breakpoints,
so wherever the stream is ahead at a breakpoint, its start is moved by the time in which its path sends the surplus.

Amounts are pairs: whole bits, and billionths of a bit. Pieces, and the path's rates, are rows (start, end, bps).
"""

from __future__ import annotations

from mlfabric.planning.fluid.capacity_lists import MOST_SECONDS, SECOND_NS, duration, seek
from mlfabric.planning.fluid.jit import lean

__all__ = ["chunk_arrival", "earliest_start", "rates_of"]

MOST_BITS = 1 << 60  # of one step of the comparison, so that sums stay below 2**63


@lean
def amount(bps, span_ns):
    """What passes at a rate in a span; rate times span is at most MOST_BITS * 10**9."""
    part = span_ns % SECOND_NS
    low = (bps % SECOND_NS) * part
    return (span_ns // SECOND_NS) * bps + (bps // SECOND_NS) * part + low // SECOND_NS, low % SECOND_NS


@lean
def more(bits, nano, bps, span_ns):
    """An amount, and what passes at a rate in a span."""
    added_bits, added_nano = amount(bps, span_ns)
    nano += added_nano
    return bits + added_bits + nano // SECOND_NS, nano % SECOND_NS


@lean
def rates_of(lines, routes, route, from_ns, until_ns, rates):
    """What a route can carry within ``[from_ns, until_ns)``: fill rows of ``rates``, without gaps.

    There are fewer of them than nodes in use, and one more.
    """
    hops, cursor, now, count = routes.hops[route], routes.cursor, from_ns, 0
    for k in range(hops):
        now = max(now, lines.at_ns[lines.head[routes.link[route, k]]])
    if now > from_ns:
        rates[0, 0], rates[0, 1], rates[0, 2] = from_ns, now, 0
        count = 1
    for k in range(hops):
        cursor[k] = seek(lines, lines.head[routes.link[route, k]], now)
    while now < until_ns:
        bps, change = lines.bps[cursor[0]], lines.at_ns[lines.following[cursor[0]]]
        for k in range(1, hops):
            bps = min(bps, lines.bps[cursor[k]])
            change = min(change, lines.at_ns[lines.following[cursor[k]]])
        rates[count, 0], rates[count, 1], rates[count, 2] = now, change, bps
        now, count = change, count + 1
        for k in range(hops):
            if lines.at_ns[lines.following[cursor[k]]] == now:
                cursor[k] = lines.following[cursor[k]]


@lean
def chunk_arrival(pieces, first, end, bits, latency_ns, arrive_ns, chunk_bits):
    """When the first chunk of an input of ``bits``, ``pieces[first:end]``, is there; if it is no larger, all of it."""
    if bits <= chunk_bits:
        return arrive_ns
    left_bits, left_nano = chunk_bits, 0
    while first < end:
        start_ns, until, bps = pieces[first, 0], pieces[first, 1], pieces[first, 2]
        needed = duration(bps, left_bits, left_nano)
        if needed <= until - start_ns:
            return start_ns + needed + latency_ns
        passed_bits, passed_nano = amount(bps, until - start_ns)
        left_bits, left_nano = left_bits - passed_bits, left_nano - passed_nano
        if left_nano < 0:
            left_bits, left_nano = left_bits - 1, left_nano + SECOND_NS
        first += 1
    return arrive_ns


@lean
def catch_up(rates, at, start_ns, bits, nano):
    """The first instant by which an amount has passed since ``start_ns``, its row in ``rates``, what passed beyond.

    The amount does pass before the rates end.
    """
    while rates[at, 1] <= start_ns:
        at += 1
    while True:
        now, until, bps = max(start_ns, rates[at, 0]), rates[at, 1], rates[at, 2]
        if bps > 0:
            needed = duration(bps, bits, nano)
            if needed <= until - now:
                over_bits, over_nano = amount(bps, needed)
                over_bits, over_nano = over_bits - bits, over_nano - nano
                if over_nano < 0:
                    over_bits, over_nano = over_bits - 1, over_nano + SECOND_NS
                return now + needed, at, over_bits, over_nano
            passed_bits, passed_nano = amount(bps, until - now)
            bits, nano = bits - passed_bits, nano - passed_nano
            if nano < 0:
                bits, nano = bits - 1, nano + SECOND_NS
        at += 1


@lean
def arrived_by(pieces, first, end, latency_ns, at_ns):
    """How much of ``pieces[first:end]`` has arrived by an instant, and the first piece that has not fully arrived."""
    bits, nano = 0, 0
    while first < end and pieces[first, 0] + latency_ns < at_ns:
        until = min(pieces[first, 1] + latency_ns, at_ns)
        bits, nano = more(bits, nano, pieces[first, 2], until - pieces[first, 0] - latency_ns)
        if until == at_ns:
            break
        first += 1
    return bits, nano, first


@lean
def earliest_start(rates, start_ns, pieces, first, end, bits, latency_ns, arrive_ns, chunk_bits):
    """The first instant from ``start_ns`` on from which a greedy stream never overtakes one input.

    Args:
        rates: of the stream's path, from ``start_ns`` or before until ``arrive_ns``.
        start_ns: not before the input's first chunk is there.
        pieces: of which ``pieces[first:end]`` are the input's.
        bits: of the input.
    """
    got_bits, got_nano, piece = arrived_by(pieces, first, end, latency_ns, start_ns)
    sent_bits, sent_nano, now, at, behind = 0, 0, start_ns, 0, 0
    while now < arrive_ns:
        while rates[at, 1] <= now:
            at += 1
        bps, arriving_bps = rates[at, 2], 0
        until = min(rates[at, 1], arrive_ns)
        if piece < end and pieces[piece, 1] + latency_ns <= now:
            piece += 1
        if piece < end:
            if pieces[piece, 0] + latency_ns <= now:
                arriving_bps = pieces[piece, 2]
                until = min(until, pieces[piece, 1] + latency_ns)
            else:
                until = min(until, pieces[piece, 0] + latency_ns)
        if bps > 0:
            until = min(until, now + min(MOST_SECONDS, MOST_BITS // bps) * SECOND_NS)
        sent_bits, sent_nano = more(sent_bits, sent_nano, bps, until - now)
        got_bits, got_nano = more(got_bits, got_nano, arriving_bps, until - now)
        may_bits, may_nano = got_bits - chunk_bits, got_nano
        if got_bits >= bits:
            may_bits, may_nano = bits - chunk_bits, 0
        if may_bits < 0:
            may_bits, may_nano = 0, 0
        over_bits, over_nano = sent_bits - may_bits, sent_nano - may_nano
        if over_nano < 0:
            over_bits, over_nano = over_bits - 1, over_nano + SECOND_NS
        if over_bits > 0 or (over_bits == 0 and over_nano > 0):
            start_ns, behind, spare_bits, spare_nano = catch_up(rates, behind, start_ns, over_bits, over_nano)
            sent_bits, sent_nano = may_bits - spare_bits, may_nano - spare_nano
            if sent_nano < 0:
                sent_bits, sent_nano = sent_bits - 1, sent_nano + SECOND_NS
        now = until
    return start_ns
