# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What the search for trees knows about hosts: how long an update takes between any two, and how well hosts forward.

These are estimates over the capacity that is free before anything of the lot is sent. They only shape candidates; every
candidate is planned exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning.fluid.capacity_lists import MOST_BPS, Ints, Routes, flow, reach
from mlfabric.planning.fluid.jit import compiled, entry, lean

__all__ = ["FAR_NS", "Field", "Members", "able_hosts", "limits_of", "scaled", "survey_field"]

FAR_NS = 1 << 50  # longer transfers (13 days) are not planned as a tree


class Members(NamedTuple):
    """Updates in the order of commits; ``host`` is a number of the field. ``directly`` is 1 if it must go alone."""

    host: Ints
    bits: Ints
    ready_ns: Ints
    directly: Ints


class Field(NamedTuple):
    """Hosts by number, first the A that may sum. Tables are by (from, to); to A is to the destination.

    ``route`` is -1 where nothing is ever sent. ``took_ns`` is how long ``unit_bits`` take alone, ``hop_ns`` how long a
    first chunk takes to be there. ``into_ns`` is how long ``unit_bits`` occupy a host's own downlink. ``rank_ns`` is
    the slower of a host's best routes in and out, FAR_NS for one that may not sum. ``most`` is how many updates it may
    sum, 0 for any number. ``scalars``: now, unit bits, chunk bits, tensors of a sum of several, hosts without an update
    of its group that one tree may use.
    """

    route: NDArray[np.int64]
    took_ns: NDArray[np.int64]
    hop_ns: NDArray[np.int64]
    into_ns: Ints
    rank_ns: Ints
    most: Ints
    scalars: Ints


@lean
def able_hosts(field):
    """How many hosts may sum; also the number of the destination among those to whom something is sent."""
    return len(field.into_ns) - 1


@lean
def scaled(span_ns, part, whole):
    """``span_ns * part / whole``, rounded down, without overflow; a span is at most FAR_NS."""
    if part == whole or whole == 0:
        return span_ns
    while whole >= 1 << 12:
        whole, part = whole >> 1, part >> 1
    return span_ns // whole * part + span_ns % whole * part // whole


@compiled
def end_link(routes, route, scratch):
    """The last link of a route as route 0."""
    link = np.empty((1, 1), np.int64)
    link[0, 0] = routes.link[route, routes.hops[route] - 1]
    return Routes(link, np.ones(1, np.int64), np.zeros(1, np.int64), scratch)


@compiled
@entry
def survey_field(lines, routes, route, most, scalars):
    """Estimate every route between two hosts."""
    count, columns = route.shape
    now_ns, unit_bits, chunk_bits = scalars[0], scalars[1], scalars[2]
    took_ns, hop_ns = np.full((count, columns), FAR_NS), np.full((count, columns), FAR_NS)
    into_ns, rank_ns, out_ns = np.full(columns, FAR_NS), np.full(count, FAR_NS), np.full(count, FAR_NS)
    best_in_ns = np.full(columns, FAR_NS)
    scratch = np.zeros(1, np.int64)
    for to in range(columns):
        for host in range(count):
            found = route[host, to]
            if found < 0 or routes.hops[found] == 0:
                continue
            took = min(FAR_NS, flow(lines, routes, found, MOST_BPS, unit_bits, now_ns, routes.link, 0)[0] - now_ns)
            took_ns[host, to] = took
            hop_ns[host, to] = routes.latency_ns[found] + scaled(took, min(chunk_bits, unit_bits), unit_bits)
            out_ns[host] = min(out_ns[host], took)
            best_in_ns[to] = min(best_in_ns[to], took)
            if into_ns[to] == FAR_NS:
                alone = reach(lines, end_link(routes, found, scratch), 0, MOST_BPS, unit_bits, now_ns)
                into_ns[to] = min(FAR_NS, alone - now_ns)
    for host in range(columns - 1):  # if no other host sends to it, it sums its own updates, which need no downlink
        rank_ns[host] = out_ns[host] if best_in_ns[host] == FAR_NS else max(out_ns[host], best_in_ns[host])
    return Field(route, took_ns, hop_ns, into_ns, rank_ns, most, scalars)


@compiled
@entry
def limits_of(field, shares):
    """How slow a host that forwards sums may be: ``shares`` (in eighths of the best), each only if it lets others in.

    The best is first the best host, then, if that is slower, the destination: where its link is the narrow one, hosts
    as slow as that do no harm by being in the way, but faster ones keep streams short.
    """
    best = FAR_NS
    for rank in field.rank_ns:
        best = min(best, rank)
    limits = np.zeros(2 * len(shares), np.int64)
    count, before, last = 0, -1, -1
    for base in (best, max(best, field.into_ns[able_hosts(field)])):
        for share in shares:
            limit = min(FAR_NS - 1, base // 8 * share)
            within = 0
            for rank in field.rank_ns:
                within += rank <= limit
            if limit > last and within > before and within > 0:
                limits[count], before, last = limit, within, limit
                count += 1
    return limits[:count]
