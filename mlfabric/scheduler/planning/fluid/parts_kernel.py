# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Things that consist of several transfers, compiled: they are reserved together and have arrived with their last part.

An update to several servers is one (paper, section 10.2), and so is a model from several servers. The parts of a thing
are reserved one by one, each time the one with the least ``t_en`` over what the others left (the first, if several have
it). A greater ``t_en`` of one part alone may turn this order round, so the end of the whole may even fall as others
reserve; but that of its slowest part alone never does, and that is the bound by which most things need no evaluation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled, lean
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, MOST_BPS, Ints, Lines, Routes, fork, reach, send

__all__ = ["Parts", "choose", "reserve", "reserve_one", "solo_ends", "warm"]


class Parts(NamedTuple):
    """Row i are the parts of thing i: their routes and sizes; and when the thing is ready."""

    route: Ints
    bits: Ints
    ready_ns: Ints


@compiled
def excerpt(lines, routes, chosen):
    """Copies of only those lists that some routes cross, with room to reserve on them."""
    head, count = np.zeros(len(lines.head), np.int64), 1
    for route in chosen:
        for k in range(routes.hops[route]):
            link = routes.link[route, k]
            if head[link] == 0:
                head[link], node = count, lines.head[link]
                while node != 0:
                    count, node = count + 1, lines.following[node]
    copied = np.empty((3, 2 * count + 64), np.int64)
    copied[0, 0], copied[1, 0], copied[2, 0] = HORIZON_NS, 0, 0
    for route in chosen:
        for k in range(routes.hops[route]):
            link = routes.link[route, k]
            to, node = head[link], lines.head[link]
            while node != 0:
                copied[0, to], copied[1, to], copied[2, to] = lines.at_ns[node], lines.bps[node], to + 1
                to, node = to + 1, lines.following[node]
            copied[2, to - 1] = 0
    return Lines(copied[0], copied[1], copied[2], np.array([count]), head)


@lean
def apart(lines, routes, parts, i, is_left, ends):
    """When each part that is left would end if it were reserved next (``ends``), and when the last one would."""
    last_ns = parts.ready_ns[i]
    for part in range(parts.route.shape[1]):
        if is_left[part]:
            route, bits = parts.route[i, part], parts.bits[i, part]
            ends[part] = reach(lines, routes, route, MOST_BPS, bits, parts.ready_ns[i])
            last_ns = max(last_ns, ends[part])
    return last_ns


@lean
def least_of(is_left, ends):
    """The part that ends first of those that are left, the first of several."""
    least = -1
    for part in range(len(ends)):
        if is_left[part] and (least < 0 or ends[part] < ends[least]):
            least = part
    return least


@compiled
def together(lines, routes, parts, i, pieces, rows):
    """Reserve the parts of a thing that can be sent; return the lines.

    Rows (thing, part, end, first piece, one after its last) are appended.
    """
    count = parts.route.shape[1]
    is_left, ends = np.ones(count, np.bool_), np.empty(count, np.int64)
    for _ in range(count):
        apart(lines, routes, parts, i, is_left, ends)
        part, first = least_of(is_left, ends), len(pieces)
        end_ns, lines = send(lines, routes, parts.route[i, part], parts.bits[i, part], parts.ready_ns[i], pieces)
        rows.append((i, part, end_ns, first, len(pieces)))
        is_left[part] = False
    return lines


@compiled
def tried(lines, routes, parts, i, is_left, ends, limit_ns):
    """When a thing would have arrived if it were reserved next, or at least ``limit_ns`` if it is not before that.

    ``is_left`` is true everywhere and ``ends`` as ``apart`` gave them; both are scratch. The lines stay as they are.
    """
    last_ns = parts.ready_ns[i]
    copied, pieces = excerpt(lines, routes, parts.route[i]), [(0, 0, 0)]
    for left in range(len(ends) - 1, -1, -1):
        part = least_of(is_left, ends)
        last_ns, is_left[part] = max(last_ns, ends[part]), False
        if left > 0:
            ready_ns = parts.ready_ns[i]
            _, copied = send(copied, routes, parts.route[i, part], parts.bits[i, part], ready_ns, pieces)
            # What is reserved only lengthens the parts that are left.
            if apart(copied, routes, parts, i, is_left, ends) >= limit_ns:
                return limit_ns
    return last_ns


@compiled
def t_en(lines, routes, parts, i, limit_ns, bounds):
    """When a thing would have arrived if it were reserved next, or at least ``limit_ns`` if it is not before that.

    ``bounds[i]`` is at most its ``t_en`` over these lines, and is raised.
    """
    if bounds[i] >= limit_ns:
        return limit_ns
    count = parts.route.shape[1]
    is_left, ends = np.ones(count, np.bool_), np.empty(count, np.int64)
    bounds[i] = max(bounds[i], apart(lines, routes, parts, i, is_left, ends))
    if count == 1 or bounds[i] >= limit_ns:
        return bounds[i]
    return tried(lines, routes, parts, i, is_left, ends, limit_ns)


@compiled
def choose(lines, routes, parts, pool, bounds):
    """The thing of a pool that would arrive first, the first in the pool if several do, and when; -1 if none can.

    ``bounds``: at most the ``t_en`` of each thing over these lines; they are raised.
    """
    best, best_ns = -1, HORIZON_NS
    for i in pool:
        end_ns = t_en(lines, routes, parts, i, best_ns, bounds)
        if end_ns < best_ns:
            best, best_ns = i, end_ns
    return best, best_ns


@compiled
def solo_ends(lines, routes, parts):
    """By thing when it would arrive if it were alone; HORIZON_NS for never."""
    ends, bounds = np.empty(len(parts.ready_ns), np.int64), np.zeros(len(parts.ready_ns), np.int64)
    for i in range(len(ends)):
        ends[i] = t_en(lines, routes, parts, i, HORIZON_NS, bounds)
    return ends


@compiled
def table(found):
    """Rows of numbers as an array."""
    rows = np.empty((len(found), len(found[0])), np.int64)
    for i in range(len(found)):
        for j in range(len(found[0])):
            rows[i, j] = found[i][j]
    return rows


@compiled
def reserve(lines, routes, parts, listed, first):
    """Reserve pool after pool, each time what arrives first; pool n is ``listed[first[n] : first[n + 1]]``.

    Returns rows as ``together`` appends them, pieces (row 0 of both means nothing), and the lines.
    """
    pieces, rows = [(0, 0, 0)], [(0, 0, 0, 0, 0)]
    bounds = np.zeros(len(parts.ready_ns), np.int64)
    lines = fork(lines, 0)
    for n in range(len(first) - 1):
        pool = listed[first[n] : first[n + 1]]
        while len(pool) > 0:
            best, _ = choose(lines, routes, parts, pool, bounds)
            if best < 0:
                break
            lines = together(lines, routes, parts, best, pieces, rows)
            pool = pool[pool != best]
    return table(rows), table(pieces), lines


@compiled
def reserve_one(lines, routes, parts, i):
    """Reserve one thing that can be sent; return rows, pieces and lines like ``reserve``."""
    pieces, rows = [(0, 0, 0)], [(0, 0, 0, 0, 0)]
    lines = together(fork(lines, 64), routes, parts, i, pieces, rows)
    return table(rows), table(pieces), lines


def warm() -> None:
    """Load the machine code, or compile it: run every kernel once on two things without a network."""
    column = np.zeros((2, 1), np.int64)
    routes = Routes(np.zeros((1, 1), np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    nodes = np.array(((HORIZON_NS, 0), (0, 1), (0, 0)))
    lines = Lines(nodes[0], nodes[1], nodes[2], np.array([2]), np.array([1]))
    parts, everything = Parts(column, column, column[:, 0].copy()), np.arange(2)
    solo_ends(lines, routes, parts)
    choose(lines, routes, parts, everything, np.zeros(2, np.int64))
    reserve(lines, routes, parts, everything, np.array([0, 2]))
    reserve_one(lines, routes, parts, 0)
