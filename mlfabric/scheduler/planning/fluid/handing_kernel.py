# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Who is served by whom when distributors store a model and hand it on, compiled (paper, section 10.3).

The rule is in ``handing.py``. A case is how many distributors are used, and how many gets the server answers itself.
The cases of as many distributors share what the server sends, so each is planned on a copy of what that leaves free,
and given up as soon as it must cost more than the best so far.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled, lean
from mlfabric.scheduler.planning.fluid.lines import (
    HORIZON_NS,
    MOST_BPS,
    Ints,
    Lines,
    Routes,
    all_pieces,
    duration,
    flow,
    fork,
    room,
    send,
    take_rows,
)
from mlfabric.scheduler.planning.fluid.wide import ENDLESS, ZERO, plus

__all__ = ["BY_SERVER", "Handing", "best_case", "plan_case", "warm"]

BY_SERVER = -1
FEW_TURNS, LONG_NS = 1 << 27, 1 << 34  # beyond these, bounds are less sharp, and still fit into 64 bits


class Handing(NamedTuple):
    """Gets in the order in which the server alone would answer them, and distributors, first choice first.

    Routes: ``direct`` by get, ``model`` by distributor, ``onward`` by (distributor, get). ``bits`` is by get, ``own``
    by get the distributor on its host or -1, ``most`` by distributor how many gets it may hand the model on to, 0 for
    any number. ``scalars``: the bits of the model, when it is ready, and 1 if only the last answer counts.
    """

    direct: Ints
    model: Ints
    onward: Ints
    bits: Ints
    own: Ints
    most: Ints
    scalars: Ints


@compiled
def with_answer(handing, cost, arrive_ns):
    """The cost of some answers and one more."""
    if handing.scalars[2] == 0:
        return plus(cost, 1, arrive_ns - handing.scalars[1])
    alone = plus(ZERO, 1, arrive_ns - handing.scalars[1])
    return alone if alone > cost else cost


@compiled
def at_least(handing, cost, missing, arrive_ns):
    """The cost if so many more answers arrive at this instant."""
    if missing == 0:
        return cost
    if handing.scalars[2] == 1:
        return with_answer(handing, cost, arrive_ns)
    return plus(cost, missing, arrive_ns - handing.scalars[1])


@compiled
def each_takes_ns(lines, routes, handing, used, waiting):
    """How long each answer takes the link of one of the first distributors at least; 0 if one has several links."""
    bits, most_bps = handing.scalars[0], 1
    for j in range(used):
        link = -1
        for g in waiting:
            route = handing.onward[j, g]
            bits = min(bits, handing.bits[g])
            if routes.hops[route] == 0 or (link >= 0 and link != routes.link[route, 0]):
                return 0
            link = routes.link[route, 0]
        node = lines.head[link] if link >= 0 else 0
        while node != 0:
            most_bps = max(most_bps, lines.bps[node])
            node = lines.following[node]
    return min(duration(most_bps, bits, 0), LONG_NS)


@lean
def turns(count, users):
    """The sum of all turns, from 1, if so many distributors share the answers evenly; FEW_TURNS if it is more."""
    rounds, rest = count // users, count % users
    return min(FEW_TURNS, users * (rounds * (rounds + 1) // 2) + rest * (rounds + 1))


@compiled
def least_cost(handing, arrive_ns, users, missing, dry_ns, each_ns, cost):
    """What a case costs at least: all but the last distributor answer one get after the other up to an instant."""
    others, room = max(1, len(users) - 1), 0
    for j in users[:-1]:
        room += min(missing, max(0, dry_ns - arrive_ns[j]) // each_ns)
    rest = max(0, missing - room)
    if rest * len(users) <= missing:
        rest, others = 0, len(users)
    soonest_ns = np.min(arrive_ns)
    if handing.scalars[2] == 1:
        latest = max(rest, (missing - rest + others - 1) // others)
        return at_least(handing, cost, missing, soonest_ns + min(FEW_TURNS, latest) * each_ns)
    cost = plus(plus(cost, turns(rest, 1), each_ns), turns(missing - rest, others), each_ns)
    return at_least(handing, cost, missing, soonest_ns)


@compiled
def sent(lines, routes, route, bits, ready_ns, pieces, rows, what, by):
    """Reserve one transfer and append its row: get or ~distributor, by whom, ready, end, first piece, one after."""
    first = len(pieces)
    end_ns, lines = send(lines, routes, route, bits, ready_ns, pieces)
    rows.append((what, by, ready_ns, end_ns, first, len(pieces)))
    return end_ns, lines


@compiled
def from_server(lines, routes, handing, g, cost, pieces, rows):
    """Let the server answer a get; return when that ends, the cost with it, and the lines."""
    route, ready_ns = handing.direct[g], handing.scalars[1]
    end_ns, lines = sent(lines, routes, route, handing.bits[g], ready_ns, pieces, rows, g, BY_SERVER)
    if end_ns >= HORIZON_NS:
        return HORIZON_NS, ENDLESS, lines
    return end_ns, with_answer(handing, cost, end_ns + routes.latency_ns[route]), lines


@compiled
def models(lines, routes, handing, used, pieces, rows):
    """Send the model to the first ``used``, in turn; return when the last transfer ends, who has it when, the lines."""
    dry_ns, arrive_ns = handing.scalars[1], np.full(len(handing.model), HORIZON_NS)
    for j in range(used):
        route, ready_ns = handing.model[j], handing.scalars[1]
        end_ns, lines = sent(lines, routes, route, handing.scalars[0], ready_ns, pieces, rows, ~j, BY_SERVER)
        dry_ns, arrive_ns[j] = max(dry_ns, end_ns), min(end_ns + routes.latency_ns[route], HORIZON_NS)
    return dry_ns, arrive_ns, lines


@compiled
def own_hosts(handing, arrive_ns, cost, idle, pieces, rows):
    """Answer the gets on hosts of distributors in use; return the cost and the others, in their order."""
    others = np.empty(len(handing.own), np.int64)
    count = 0
    for g in range(len(handing.own)):
        j = handing.own[g]
        if j >= 0 and arrive_ns[j] < HORIZON_NS:
            rows.append((g, j, arrive_ns[j], arrive_ns[j], len(pieces), len(pieces)))
            cost, idle[j] = with_answer(handing, cost, arrive_ns[j]), False
        else:
            others[count], count = g, count + 1
    return cost, others[:count]


@compiled
def handed_on(lines, routes, handing, arrive_ns, waiting, dry_ns, cost, limit, each_ns, idle, pieces, rows):
    """Let the distributors in use answer the waiting gets, in turn; return the cost, ENDLESS if above the limit.

    ``each_ns`` is how long each answer takes a distributor at least, 0 if nobody knows.
    """
    users = np.flatnonzero(arrive_ns < HORIZON_NS)
    soonest_ns = handing.scalars[1]
    if not np.any(handing.most[users] > 0):  # else the server may have to answer, too
        soonest_ns = np.min(arrive_ns)
        if each_ns > 0 and least_cost(handing, arrive_ns, users, len(waiting), dry_ns, each_ns, cost) > limit:
            return ENDLESS, lines
    place, count, out = 0, 0, np.empty((8, 3), np.int64)
    for n in range(len(waiting)):
        if at_least(handing, cost, len(waiting) - n, soonest_ns) > limit:
            return ENDLESS, lines
        g, end_ns = waiting[n], HORIZON_NS
        while place < len(users) and end_ns >= HORIZON_NS:
            j, first = users[place], len(pieces)
            route, used = handing.onward[j, g], 0
            if handing.most[j] == 0 or count < handing.most[j]:
                end_ns, used = flow(
                    lines, routes, route, MOST_BPS, handing.bits[g], arrive_ns[j], out, len(out)
                )  # fmt: skip
                if end_ns > dry_ns and place < len(users) - 1:
                    end_ns = HORIZON_NS
            if end_ns < HORIZON_NS:
                if used > len(out):
                    out = all_pieces(lines, routes, route, handing.bits[g], arrive_ns[j], used)
                lines = room(lines, 2 * used * routes.hops[route])
                take_rows(lines, routes, route, out, used)
                for i in range(used):
                    pieces.append((out[i, 0], out[i, 1], out[i, 2]))
                count, idle[j] = count + 1, False
                rows.append((g, j, arrive_ns[j], end_ns, first, len(pieces)))
                cost = with_answer(handing, cost, end_ns + routes.latency_ns[route])
            else:
                place, count = place + 1, 0
        if end_ns >= HORIZON_NS:
            _, cost, lines = from_server(lines, routes, handing, g, cost, pieces, rows)
    return cost if cost <= limit else ENDLESS, lines


@compiled
def plan_case(lines, routes, handing, used, directly):
    """Plan the first ``used`` distributors with so many answers by the server; return cost, rows, pieces and the lines.

    Rows are as in ``sent``; row 0 of both tables means nothing.
    """
    pieces, rows = [(0, 0, 0)], [(0, 0, 0, 0, 0, 0)]
    idle = np.ones(len(handing.model), np.bool_)
    dry_ns, arrive_ns, lines = models(fork(lines, 64), routes, handing, used, pieces, rows)
    cost, others = own_hosts(handing, arrive_ns, ZERO, idle, pieces, rows)
    for n in range(directly):
        end_ns, cost, lines = from_server(lines, routes, handing, others[n], cost, pieces, rows)
        dry_ns = max(dry_ns, end_ns)
    waiting = others[directly:]
    cost, lines = handed_on(lines, routes, handing, arrive_ns, waiting, dry_ns, cost, ENDLESS, 0, idle, pieces, rows)
    return cost, table(rows), table(pieces), lines


@compiled
def try_case(lines, routes, handing, arrive_ns, waiting, dry_ns, cost, limit, each_ns, idle):
    """What a case costs after the server's part of it; ENDLESS if above the limit, or if someone is idle."""
    pieces, rows, idle = [(0, 0, 0)], [(0, 0, 0, 0, 0, 0)], idle.copy()
    copied = fork(lines, 8 * len(waiting) + 64)
    cost, _ = handed_on(copied, routes, handing, arrive_ns, waiting, dry_ns, cost, limit, each_ns, idle, pieces, rows)
    return ENDLESS if np.any(idle[arrive_ns < HORIZON_NS]) else cost


@compiled
def best_of(lines, routes, handing, used, step, best):
    """The best case (cost, answers by the server, distributors) of the first ``used``, if it beats the best so far."""
    pieces, rows = [(0, 0, 0)], [(0, 0, 0, 0, 0, 0)]
    idle = np.ones(len(handing.model), np.bool_)
    dry_ns, arrive_ns, lines = models(fork(lines, 64), routes, handing, used, pieces, rows)
    cost, others = own_hosts(handing, arrive_ns, ZERO, idle, pieces, rows)
    if np.any(arrive_ns[:used] >= HORIZON_NS):
        return best
    each_ns = each_takes_ns(lines, routes, handing, used, others)
    for n in range(len(others) + 1):
        if cost > best[0]:
            break
        if n % step == 0 or n == len(others):
            found = try_case(lines, routes, handing, arrive_ns, others[n:], dry_ns, cost, best[0], each_ns, idle)
            if found < best[0] or (found == best[0] and found < ENDLESS and n > best[1]):
                best = found, n, used
        if n < len(others):
            end_ns, cost, lines = from_server(lines, routes, handing, others[n], cost, pieces, rows)
            dry_ns = max(dry_ns, end_ns)
    return best


@compiled
def best_case(lines, routes, handing, sets, step, limit):
    """The best case of the first ``sets[0]``, ``sets[1]``, ... distributors that costs less than a limit.

    Returns its answers by the server and its distributors; -1 and 0 if there is none. Of equal cases the one with the
    most answers by the server wins, then the one with the fewest distributors.
    """
    best = limit, len(handing.own), 0
    for used in sets:
        best = best_of(lines, routes, handing, used, step, best)
    return best[1], best[2]


@compiled
def table(found):
    """Rows of numbers as an array."""
    rows = np.empty((len(found), len(found[0])), np.int64)
    for i in range(len(found)):
        for j in range(len(found[0])):
            rows[i, j] = found[i][j]
    return rows


def warm() -> None:
    """Load the machine code, or compile it: run every kernel once on a tiny case."""
    nothing = np.zeros(1, np.int64)
    routes = Routes(np.zeros((1, 1), np.int64), nothing, nothing, nothing.copy())
    nodes = np.array(((HORIZON_NS, 0), (0, 1), (0, 0)))
    lines = Lines(nodes[0], nodes[1], nodes[2], np.array([2]), np.array([1]))
    handing = Handing(
        nothing, nothing, np.zeros((1, 1), np.int64), nothing, nothing - 1, nothing, np.zeros(3, np.int64)
    )
    best_case(lines, routes, handing, np.array([1]), 1, ENDLESS)
    plan_case(lines, routes, handing, 1, 0)
