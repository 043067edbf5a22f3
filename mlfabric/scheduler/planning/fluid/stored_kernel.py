# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""All cases of algorithm 3 (paper, section 5.2, mended), compiled; the best one, without carrying most of them out.

Case n: the first n updates go directly, the rest in groups through aggregators 1..k, one group each. Cases are carried
out in the order of their lower bounds (``stored_bounds.py``) if a closer look does not rule them out, each is given up
at the first group from which on it cannot win, and the search ends when no bound is below the best case found. The
result is that of full enumeration to the bit, ties included: of equal cases, the one with the largest n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled, lean
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, Ints, Lines, Routes
from mlfabric.scheduler.planning.fluid.rows import approach, drop_heads, flow, has_room, reserve
from mlfabric.scheduler.planning.fluid.stored_bounds import DirectPart, State, bound, state_of, sums_bound, survey
from mlfabric.scheduler.planning.fluid.stored_load import Bounds, Load, prepare
from mlfabric.scheduler.planning.fluid.wide import ENDLESS, ENOUGH_BITS, ZERO, plus

__all__ = ["DIRECTLY", "FORWARD", "GATHER", "Solo", "plan_solo", "search", "send_all"]

GATHER, FORWARD, DIRECTLY = 0, 1, 2  # an update to an aggregator; from there; an update all the way
PLANNED, NEVER, CROWDED = 0, 1, 2  # how planning a transfer can end; crowded: the sheet is too small


class Solo(NamedTuple):
    """What each update does if it goes directly: the rows ``pieces[first[i] : first[i + 1]]``, (start, end, bps).

    ``end_ns`` is HORIZON_NS for the first one that cannot, if there is one; ``planned`` is 0 for what is reserved.
    """

    end_ns: Ints
    pieces: Ints
    first: Ints
    planned: Ints


class Sheet(NamedTuple):
    """Room to carry a case out: what is free (``near``: see ``rows.py``), the pieces, and all but direct transfers.

    A row of ``sends``: what it is, the first update in it, the end, the aggregator, ready_ns, end_ns, its first piece.
    ``used`` says how many sends and pieces there are.
    """

    lines: Lines
    near: Lines
    pieces: Ints
    sends: Ints
    used: Ints


class Job(NamedTuple):
    """All that stays the same from case to case."""

    lines: Lines
    routes: Routes
    load: Load
    solo: Solo
    bounds: Bounds
    part: DirectPart
    mean: bool


@compiled
def new_sheet(lines, load, nodes):
    """A sheet with room for so many more nodes, and for half as many pieces."""
    used, count = lines.used[0], len(load.bits)
    columns = np.empty((3, used + nodes), np.int64)
    free = Lines(columns[0], columns[1], columns[2], lines.used.copy(), lines.head.copy())
    sends = np.empty((count + len(load.out), 7), np.int64)
    near = Lines(free.at_ns, free.bps, free.following, free.used, lines.head.copy())
    return Sheet(free, near, np.empty((nodes // 2, 3), np.int64), sends, np.zeros(2, np.int64))


@lean
def clear(sheet, lines):
    """Begin anew with what was free before."""
    sheet.used[0], sheet.used[1], sheet.lines.used[0] = 0, 0, lines.used[0]
    for i in range(lines.used[0]):
        sheet.lines.at_ns[i], sheet.lines.bps[i] = lines.at_ns[i], lines.bps[i]
        sheet.lines.following[i] = lines.following[i]
    for link in range(len(lines.head)):
        sheet.lines.head[link], sheet.near.head[link] = lines.head[link], lines.head[link]


@lean
def plan(sheet, routes, route, bits, ready_ns, by_ns):
    """Plan a transfer and reserve it if it ends by an instant; return how that went, and its end."""
    if ready_ns >= HORIZON_NS:
        return NEVER, HORIZON_NS
    first = sheet.used[1]
    approach(sheet.lines, sheet.near, routes, route, ready_ns)
    end_ns, after = flow(sheet.near, routes, route, bits, ready_ns, sheet.pieces, first)
    if end_ns >= HORIZON_NS or end_ns > by_ns:
        return NEVER, end_ns
    if after > len(sheet.pieces) or not has_room(sheet.lines, routes, route, after - first):
        return CROWDED, end_ns
    reserve(sheet.near, routes, route, sheet.pieces, first, after)
    drop_heads(sheet.lines, routes, route)
    sheet.used[1] = after
    return PLANNED, end_ns


@lean
def record(sheet, kind, begin, end, j, ready_ns, end_ns, first):
    """Write a transfer down."""
    row = sheet.sends[sheet.used[0]]
    row[0], row[1], row[2], row[3], row[4], row[5], row[6] = kind, begin, end, j, ready_ns, end_ns, first
    sheet.used[0] += 1


@lean
def plan_all(sheet, routes, load, solo):
    """Plan each update directly, in turn, up to the first that cannot be sent; return how that went."""
    for i in range(len(load.bits)):
        how, end_ns = plan(sheet, routes, load.route[i], load.bits[i], load.ready_ns[i], HORIZON_NS)
        if how != PLANNED:
            return how
        solo.end_ns[i], solo.first[i + 1] = end_ns, sheet.used[1]
    return PLANNED


@compiled
def plan_solo(lines, routes, load):
    """Plan each update directly, in turn, over what the earlier ones left; up to the first that cannot be sent."""
    count, nodes = len(load.bits), 8 * len(load.bits)
    while True:
        sheet = new_sheet(lines, load, nodes)
        clear(sheet, lines)
        end_ns, first = np.full(count, HORIZON_NS, np.int64), np.zeros(count + 1, np.int64)
        solo = Solo(end_ns, sheet.pieces, first, np.ones(count, np.int64))
        if plan_all(sheet, routes, load, solo) != CROWDED:
            return solo
        nodes *= 2


@lean
def sent(routes, load, state, members, route, bits, end_ns, mean):
    """The state after one more transfer to the destination, which brings some updates."""
    commit_ns = max(state.commit_ns, end_ns + routes.latency_ns[route])
    cost = plus(state.cost if mean else ZERO, members if mean else 1, commit_ns - load.now_ns)
    passed = min(state.passed + (bits if routes.hops[route] > 0 else 0), ENOUGH_BITS)
    return State(state.direct, max(state.dry_ns, end_ns), commit_ns, passed, cost)


@lean
def accumulate(routes, load, solo, mean, part):
    """Write down the state after the first n updates have been sent directly, for every n up to the last possible."""
    state = State(0, load.now_ns, load.now_ns, 0, ZERO)
    for n in range(len(part.dry_ns)):
        if n > 0:
            bits = load.bits[n - 1] if solo.planned[n - 1] == 1 else 0
            state = sent(routes, load, state, 1, load.route[n - 1], bits, solo.end_ns[n - 1], mean)
        part.dry_ns[n], part.commit_ns[n], part.passed[n] = state.dry_ns, state.commit_ns, state.passed
        part.high[n], part.low[n] = state.cost


@compiled
def direct_part(routes, load, solo, mean):
    """What the first n updates come to, sent directly, for every n that is possible."""
    most = 0
    while most < len(load.bits) and solo.end_ns[most] < HORIZON_NS:
        most += 1
    columns = np.empty((5, most + 1), np.int64)
    part = DirectPart(columns[0], columns[1], columns[2], columns[3], columns[4])
    accumulate(routes, load, solo, mean, part)
    return part


@lean
def reserve_solos(sheet, routes, load, solo, n):
    """Reserve the first n updates as they go directly; return whether there was room."""
    for i in range(n):
        if solo.planned[i] == 1:
            if not has_room(sheet.lines, routes, load.route[i], solo.first[i + 1] - solo.first[i]):
                return CROWDED
            reserve(sheet.lines, routes, load.route[i], solo.pieces, solo.first[i], solo.first[i + 1])
    return PLANNED


@lean
def gather(sheet, routes, load, i, j, dry_ns):
    """Let aggregator j take updates from i on, as long as it does.

    Returns how that went, the first update that it does not take, when all it takes are there, and the sum's size.
    """
    end, there_ns, tensor_bits = i, 0, 0
    by_ns = dry_ns if j + 1 < len(load.out) else HORIZON_NS
    while end < len(load.bits) and (load.most[j] == 0 or end - i < load.most[j]):
        first, route = sheet.used[1], load.route[end] + load.shift[j]
        how, end_ns = plan(sheet, routes, route, load.bits[end], load.ready_ns[end], by_ns)
        if how == CROWDED:
            return CROWDED, end, there_ns, 0
        if how == NEVER:
            break
        record(sheet, GATHER, end, end + 1, j, load.ready_ns[end], end_ns, first)
        there_ns = max(there_ns, end_ns + routes.latency_ns[route])
        tensor_bits = max(tensor_bits, load.tensor_bits[end])
        end += 1
    return PLANNED, end, there_ns, load.carried * tensor_bits if end - i > 1 else load.bits[i]


@lean
def carry_out(job, sheet, n, best):
    """Plan all that does not go directly, on a sheet on which the direct part is reserved.

    Returns how that went, and the cost. NEVER is also the answer as soon as the case is sure to be worse than ``best``.
    """
    routes, load = job.routes, job.load
    i, j, k, state = n, 0, len(load.out), state_of(job.part, n)
    while i < len(load.bits):
        if best < bound(routes, load, job.bounds, i, j, state, job.mean):
            return NEVER, ENDLESS
        kind, end, route, bits, ready_ns = DIRECTLY, i + 1, load.route[i], load.bits[i], load.ready_ns[i]
        if j < k:
            how, end, ready_ns, bits = gather(sheet, routes, load, i, j, state.dry_ns)
            kind, route = FORWARD, load.out[j]
            if how != PLANNED:
                return how, ENDLESS
        if end > i:
            first = sheet.used[1]
            how, end_ns = plan(sheet, routes, route, bits, ready_ns, HORIZON_NS)
            if how != PLANNED:
                return how, ENDLESS
            record(sheet, kind, i, end, j, ready_ns, end_ns, first)
            state = sent(routes, load, state, end - i, route, bits, end_ns, job.mean)
        i, j = end, min(j + 1, k)
    return PLANNED, state.cost


@lean
def try_on(job, sheet, n, best):
    """Carry case n out on a sheet; return how that went, and the cost."""
    clear(sheet, job.lines)
    if reserve_solos(sheet, job.routes, job.load, job.solo, n) == CROWDED:
        return CROWDED, ENDLESS
    return carry_out(job, sheet, n, best)


@lean
def most_promising(high, low, is_open):
    """The case with the least lower bound among those open, of equals the largest; -1 for none."""
    found = -1
    for n in range(len(high)):
        if is_open[n] and (found < 0 or high[n] < high[found] or (high[n] == high[found] and low[n] <= low[found])):
            found = n
    return found


@lean
def may_win(job, n, best_n, best):
    """Whether a case could still be better than the best one, as far as a closer look at it tells."""
    least = sums_bound(job.routes, job.load, job.bounds, state_of(job.part, n), job.mean)
    return least < best or (least == best and n > best_n)


@lean
def search_cases(job, one, other, is_open, bounds_of, best_n, best, prune):
    """Find a case that is better than one known.

    Returns how that went, the case (or the one known), which sheet has it, and how many were tried.
    """
    high, low = bounds_of
    spare, tried = 0, 0
    n = most_promising(high, low, is_open)
    while n >= 0 and not (prune and best < (high[n], low[n])):
        is_open[n] = False
        if not prune or ((n > best_n or (high[n], low[n]) < best) and may_win(job, n, best_n, best)):
            limit = best if prune else ENDLESS
            how, cost = try_on(job, one, n, limit) if spare == 0 else try_on(job, other, n, limit)
            tried += 1
            if how == CROWDED:
                return CROWDED, -1, 0, tried
            if how == PLANNED and (cost < best or (cost == best and n > best_n)):
                best_n, best, spare = n, cost, 1 - spare
        n = most_promising(high, low, is_open)
    if best_n == len(job.load.bits):
        how, _ = try_on(job, one, best_n, ENDLESS)
        return how, best_n, 0, tried
    return PLANNED, best_n, 1 - spare, tried


@compiled
def search(lines, routes, load, solo, mean, prune):
    """Find the best case; ``lines`` are not changed.

    Args:
        load: at least one update, and one aggregator.
        mean: whether the mean commit counts, or the last.
        prune: False to carry every case out to its end.

    Returns:
        How many updates go directly, -1 if no case is possible; the sheet of the best case; how many were tried.
    """
    count, part = len(load.bits), direct_part(routes, load, solo, mean)
    possible, nodes = len(part.dry_ns) - 1, 8 * len(load.bits)
    bounds = prepare(lines, routes, load, solo.planned, part.dry_ns[possible])
    job = Job(lines, routes, load, solo, bounds, part, mean)
    known, cost = (count, state_of(part, count).cost) if possible == count else (-1, ENDLESS)
    bounds_of = np.zeros((2, min(possible + 1, count)), np.int64)
    survey(routes, load, bounds, part, mean, bounds_of[0], bounds_of[1])
    while True:
        one, other = new_sheet(lines, load, nodes), new_sheet(lines, load, nodes)
        is_open = np.arange(bounds_of.shape[1]) >= load.fixed
        how, best_n, kept, tried = search_cases(job, one, other, is_open, bounds_of, known, cost, prune)
        if how != CROWDED:
            return best_n, one if kept == 0 else other, tried
        nodes *= 2


@compiled
def send_all(lines, routes, load, solo):
    """Let everything go directly: how many (-1 if not all can), and the sheet."""
    count, sheet = len(load.bits), new_sheet(lines, load, 8 * len(load.bits))
    if count > 0 and solo.end_ns[count - 1] >= HORIZON_NS:
        return -1, sheet
    clear(sheet, lines)
    while reserve_solos(sheet, routes, load, solo, count) == CROWDED:
        sheet = new_sheet(lines, load, 4 * len(sheet.pieces))
        clear(sheet, lines)
    return count, sheet
