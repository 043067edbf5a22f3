# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Local search over plans for a few updates, compiled: where each goes, and who reserves first.

A plan is ``where`` (by update: 0 for the destination, else aggregator 1, 2, ...) and ``sequence`` (the order of
reservations; a sum reserves right after the last of its members). Its score is the objective, less is better. The
search is threshold accepting: a change at random is kept if it costs at most a threshold that falls to zero. All of it
is integers, randomness included, so the same puzzle gives the same plan everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled, lean
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, MOST_BPS, Ints, Lines, flow, take_rows

__all__ = ["BAD", "Desk", "Puzzle", "commit_order", "desk_for", "lay_out", "search"]

BAD = 1 << 62
MOST_SPAN_NS = 1 << 47  # a day and a half; scores of longer plans could overflow
LAST_WEIGHT = 1 << 10
SHARE = 8  # the threshold begins at an eighth of the score


class Puzzle(NamedTuple):
    """What a plan is for; by update, or by aggregator.

    ``flown``: when it arrives if it was on its way before, else -1. ``ways``: routes of an update to each of its
    ``where``. ``onward``: an aggregator's route to the destination. ``most``: how many updates its sum may have.
    ``last_counts``: the objective is the last commit. ``binding``: some deadline is less than the number of updates.
    """

    bits: Ints
    ready_ns: Ints
    flown: Ints
    deadlines: Ints
    ways: Ints
    onward: Ints
    most: Ints
    carried: int
    now_ns: int
    last_counts: bool
    binding: bool


class Desk(NamedTuple):
    """Where plans are tried.

    ``lines``: what is left by the plan at hand. ``out``: the pieces of its last transfer. ``pieces``: of all of
    them, in the order of reservations. ``ends``: by transfer (update, or -1 - aggregator for its onward one; when it is
    ready; its end; the row behind its pieces). ``sums``: by aggregator (members not sent yet, members, when the last
    arrives, bits of the greatest). ``arrive_ns``: by update. ``order``: updates by position. ``by_deadline``: updates,
    by deadline. ``marks``: by update, whether it has its position.
    """

    lines: Lines
    out: Ints
    pieces: Ints
    ends: Ints
    sums: Ints
    arrive_ns: Ints
    order: Ints
    by_deadline: Ints
    marks: Ints


def desk_for(puzzle: Puzzle, lines: Lines) -> Desk:
    """Make room for plans over these lines; one that needs more is not tried."""
    count, members, used = len(puzzle.bits), len(puzzle.onward), int(lines.used[0])
    pieces = 8 * (used + 4 * count)
    nodes = np.zeros((3, used + 8 * pieces), np.int64)
    return Desk(
        lines=Lines(nodes[0], nodes[1], nodes[2], np.zeros(1, np.int64), np.zeros_like(lines.head)),
        out=np.zeros((pieces, 3), np.int64),
        pieces=np.zeros((pieces, 3), np.int64),
        ends=np.zeros((count + members, 4), np.int64),
        sums=np.zeros((members, 4), np.int64),
        arrive_ns=np.zeros(count, np.int64),
        order=np.zeros(count, np.int64),
        by_deadline=np.argsort(puzzle.deadlines, kind="stable"),
        marks=np.zeros(count, np.int64),
    )


@lean
def clear(desk, lines):
    """Begin with nothing reserved."""
    used = lines.used[0]
    desk.lines.used[0] = used
    for i in range(used):
        desk.lines.at_ns[i], desk.lines.bps[i] = lines.at_ns[i], lines.bps[i]
        desk.lines.following[i] = lines.following[i]
    for i in range(len(lines.head)):
        desk.lines.head[i] = lines.head[i]


@lean
def transfer(desk, routes, route, bits, ready_ns, row, who):
    """Reserve one transfer and note it in a row of ``ends``; return when it has arrived, HORIZON_NS for never."""
    first, width = desk.ends[row - 1, 3] if row > 0 else 0, len(desk.out)
    end_ns, count = flow(desk.lines, routes, route, MOST_BPS, bits, ready_ns, desk.out, width)
    free = len(desk.lines.at_ns) - desk.lines.used[0]
    if end_ns >= HORIZON_NS or first + count > width or 2 * count * routes.hops[route] > free:
        return HORIZON_NS
    take_rows(desk.lines, routes, route, desk.out, count)
    for i in range(count):
        for column in range(3):
            desk.pieces[first + i, column] = desk.out[i, column]
    desk.ends[row, 0], desk.ends[row, 1], desk.ends[row, 2], desk.ends[row, 3] = who, ready_ns, end_ns, first + count
    return end_ns + routes.latency_ns[route]


@lean
def count_members(puzzle, where, sums):
    """Begin sums with how many members they will have; say whether some aggregator has too many."""
    for j in range(len(sums)):
        for column in range(4):
            sums[j, column] = 0
    too_many = False
    for i in range(len(where)):
        if where[i] > 0:
            j = where[i] - 1
            sums[j, 0] += 1
            sums[j, 1] += 1
            too_many |= sums[j, 1] > puzzle.most[j]
    return too_many


@lean
def lay_out(puzzle, where, sequence, lines, routes, desk):
    """Reserve a whole plan on the desk; return how many transfers it has, -1 if it cannot be."""
    sums, arrive_ns, row = desk.sums, desk.arrive_ns, 0
    clear(desk, lines)
    if count_members(puzzle, where, sums):
        return -1
    for n in range(len(sequence)):
        i = sequence[n]
        if puzzle.flown[i] >= 0:
            arrive_ns[i] = puzzle.flown[i]
            continue
        at_ns = transfer(desk, routes, puzzle.ways[i, where[i]], puzzle.bits[i], puzzle.ready_ns[i], row, i)
        arrive_ns[i], row, j = at_ns, row + 1, where[i] - 1
        if at_ns < HORIZON_NS and j >= 0:
            sums[j, 0] -= 1
            sums[j, 2], sums[j, 3] = max(sums[j, 2], at_ns), max(sums[j, 3], puzzle.bits[i])
            if sums[j, 0] == 0:
                bits = sums[j, 3] * (puzzle.carried if sums[j, 1] > 1 else 1)
                at_ns = transfer(desk, routes, puzzle.onward[j], bits, sums[j, 2], row, -1 - j)
                row += 1
                for k in range(len(where)):
                    if where[k] == j + 1:
                        arrive_ns[k] = at_ns
        if at_ns >= HORIZON_NS:
            return -1
    return row


@lean
def latest_start(where, deadlines, by_deadline, i):
    """The last position at which the group of an update may begin, and its size."""
    size, start = 0, BAD
    for n in range(len(by_deadline)):
        k = by_deadline[n]
        if k == i or (where[i] > 0 and where[k] == where[i]):
            start = min(start, deadlines[k] - size)
            size += 1
    return start, size


@lean
def commit_order(where, arrive_ns, deadlines, by_deadline, marks, order):
    """Order updates for commit, groups together, each within its deadline; say whether that can be.

    From the last position back, each goes to the latest arrival that may come so late (any such choice leaves the rest
    feasible, as it only lets the others come earlier); members of a group by deadline.
    """
    position = len(where)
    for i in range(len(where)):
        marks[i] = 0
    while position > 0:
        best, best_size = -1, 0
        for i in range(len(where)):
            if marks[i] == 1 or (best >= 0 and arrive_ns[i] < arrive_ns[best]):
                continue
            start, size = latest_start(where, deadlines, by_deadline, i)
            if position - size + 1 <= start:
                best, best_size = i, size
        if best < 0:
            return False
        position -= best_size
        place = position
        for n in range(len(where)):
            k = by_deadline[n]
            if k == best or (where[best] > 0 and where[k] == where[best]):
                order[place], marks[k] = k, 1
                place += 1
    return True


@lean
def score_of(puzzle, where, desk):
    """The sum of commit times, or the last commit (with the sum to choose between equals), from now on."""
    count, last_ns, total_ns, arrive_ns = len(where), puzzle.now_ns, 0, desk.arrive_ns
    for i in range(count):
        last_ns = max(last_ns, arrive_ns[i])
    if last_ns - puzzle.now_ns > MOST_SPAN_NS:
        return BAD
    if puzzle.binding:
        if not commit_order(where, arrive_ns, puzzle.deadlines, desk.by_deadline, desk.marks, desk.order):
            return BAD
        reached_ns = puzzle.now_ns
        for n in range(count):
            reached_ns = max(reached_ns, arrive_ns[desk.order[n]])
            total_ns += reached_ns - puzzle.now_ns
    else:
        for i in range(count):
            total_ns += max(0, arrive_ns[i] - puzzle.now_ns)
    return (last_ns - puzzle.now_ns) * LAST_WEIGHT * count + total_ns if puzzle.last_counts else total_ns


@lean
def evaluate(puzzle, where, sequence, lines, routes, desk):
    """The score of a plan; BAD if an aggregator is too full, an update never arrives or a deadline is missed."""
    if lay_out(puzzle, where, sequence, lines, routes, desk) < 0:
        return BAD
    return score_of(puzzle, where, desk)


@lean
def least_score(puzzle, lines, routes, out):
    """A score that no plan is below: that of each update alone, by its best way."""
    count, last_ns, total_ns = len(puzzle.bits), puzzle.now_ns, 0
    for i in range(count):
        best_ns, bits = puzzle.flown[i] if puzzle.flown[i] >= 0 else HORIZON_NS, puzzle.bits[i]
        for d in range(0 if puzzle.flown[i] >= 0 else puzzle.ways.shape[1]):
            at_ns = alone(lines, routes, puzzle.ways[i, d], bits, puzzle.ready_ns[i], out)
            best_ns = min(best_ns, at_ns if d == 0 else alone(lines, routes, puzzle.onward[d - 1], bits, at_ns, out))
        last_ns, total_ns = max(last_ns, best_ns), total_ns + max(0, min(best_ns - puzzle.now_ns, MOST_SPAN_NS))
    span_ns = min(last_ns - puzzle.now_ns, MOST_SPAN_NS)
    return span_ns * LAST_WEIGHT * count + total_ns if puzzle.last_counts else total_ns


@lean
def alone(lines, routes, route, bits, ready_ns, out):
    """When a transfer has arrived if there is no other, HORIZON_NS for never."""
    end_ns, _ = flow(lines, routes, route, MOST_BPS, bits, ready_ns, out, 0)
    return HORIZON_NS if end_ns >= HORIZON_NS else end_ns + routes.latency_ns[route]


@lean
def draw(state, below):
    """A number from 0 to ``below - 1``."""
    state[0] = (state[0] * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return (state[0] >> 8) % below


@lean
def move(sequence, source, target):
    """Take the entry at one place out and put it in at another."""
    i = sequence[source]
    step = 1 if source < target else -1
    for n in range(source, target, step):
        sequence[n] = sequence[n + step]
    sequence[target] = i


@lean
def change(puzzle, where, sequence, free, state):
    """Change a plan at random: where one goes, or two exchange; when one reserves; or both."""
    count, kind = len(free), draw(state, 8)
    i, k = free[draw(state, count)], free[draw(state, count)]
    if kind < 3:
        where[i] = (where[i] + 1 + draw(state, max(1, len(puzzle.onward)))) % (len(puzzle.onward) + 1)
    elif kind == 3:
        where[i], where[k] = where[k], where[i]
    if kind >= 2:
        move(sequence, draw(state, len(sequence)), draw(state, len(sequence)))


@lean
def copy(plan, target):
    """Copy a plan."""
    for i in range(plan.shape[1]):
        target[0, i], target[1, i] = plan[0, i], plan[1, i]


@compiled
def search(puzzle, plan, lines, routes, desk, evaluations, seed):
    """Improve a plan (``where`` and ``sequence`` as two rows) in place with so many evaluations; return its score."""
    free, least = np.flatnonzero(puzzle.flown < 0), least_score(puzzle, lines, routes, desk.out)
    best = evaluate(puzzle, plan[0], plan[1], lines, routes, desk)
    current, state = best, np.array([seed], np.int64)
    here, there = plan.copy(), plan.copy()
    for n in range(evaluations if len(free) > 0 else 0):
        if best <= least:
            break
        copy(here, there)
        change(puzzle, there[0], there[1], free, state)
        score = evaluate(puzzle, there[0], there[1], lines, routes, desk)
        threshold = best // SHARE // evaluations * (evaluations - n) if best < BAD else 0
        if score - current <= draw(state, 1024) * (threshold // 1024):
            copy(there, here)
            current = score
        if score < best:
            copy(there, plan)
            best = score
    return best
