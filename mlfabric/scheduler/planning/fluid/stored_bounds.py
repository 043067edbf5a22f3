# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What a case of algorithm 3 costs at least, compiled: from how much can pass the links into a host or rack by when.

All bounds are taken over what was free before the lot (its own reservations only take away), so they hold on every
topology; on a star with equal links they are close.

- *How soon anything commits.* What went to the destination before, and one update more, pass the links into it.
- *How far groups reach.* A group that is not the last takes an update only if that ends by ``dry``. All of them pass
  the links into the aggregator's host, so it takes no more than these can carry until then. When it is closed,
  everything that the lot has reserved ends by ``dry``; so its sum ends no later than if it were sent from then on over
  what was free before the lot: an upper bound for the next ``dry``, and so on.
- *How far all groups together reach.* What goes to any aggregator, and perhaps what goes directly, passes the links
  into the aggregators' racks (``stored_racks.py``), and only so much passes these until ``dry``. If the last group
  takes whatever comes, then not all sums have left before all of it has passed.
- *How many sums there are.* Whichever aggregators are skipped, m groups but the last reach no further than if each
  went to the widest of them over the lightest updates, and was forwarded over the narrowest of all ways. What is beyond
  commits after m + 1 sums passed the links into the destination; or the group behind them is the last one.
- *What is beyond the reach of all groups but the last* is in the last one, if that takes whatever comes, and waits for
  all of it to arrive. If that takes only so many, then what is beyond goes directly, one after the other, behind the
  sums; and one tensor of the sum of m updates is no smaller than the m-th part of what they are together.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.scheduler.planning.fluid.jit import lean
from mlfabric.scheduler.planning.fluid.lines import HORIZON_NS, MOST_BPS, SECOND_NS, Ints, duration
from mlfabric.scheduler.planning.fluid.lines import reach as time_of
from mlfabric.scheduler.planning.fluid.wide import ENDLESS, ENOUGH_BITS, ZERO, plus

__all__ = ["DirectPart", "State", "bound", "state_of", "sums_bound", "survey"]


class DirectPart(NamedTuple):
    """By n, the state of a case when its first n updates have been sent directly; see ``State``."""

    dry_ns: Ints
    commit_ns: Ints
    passed: Ints
    high: Ints
    low: Ints


class State(NamedTuple):
    """Where a case stands: how many updates went directly at first, when the destination's ingress runs dry, the last
    commit, bits that passed, the cost.
    """

    direct: int
    dry_ns: int
    commit_ns: int
    passed: int
    cost: tuple[int, int]


@lean
def state_of(part, n):
    """The state of case n at its first group."""
    return State(n, part.dry_ns[n], part.commit_ns[n], part.passed[n], (part.high[n], part.low[n]))


@lean
def passing(bps, span_ns):
    """At least the bits that pass at a rate within a span, at most ENOUGH_BITS."""
    seconds, part = span_ns // SECOND_NS, span_ns % SECOND_NS
    if bps == 0:
        return 0
    if seconds >= ENOUGH_BITS // bps - 1:
        return ENOUGH_BITS
    return seconds * bps + (bps // SECOND_NS) * part + (bps % SECOND_NS) * part // SECOND_NS + 1


@lean
def passing_until(lines, link, start_ns, end_ns):
    """At least the bits that a line lets pass between two instants, at most ENOUGH_BITS."""
    node, bits = lines.head[link], 0
    while lines.at_ns[node] < end_ns and bits < ENOUGH_BITS:
        after = lines.following[node]
        begin_ns, until_ns = max(start_ns, lines.at_ns[node]), min(end_ns, lines.at_ns[after])
        if begin_ns < until_ns:
            bits += passing(lines.bps[node], until_ns - begin_ns)
        node = after
    return min(bits, ENOUGH_BITS)


@lean
def end_of(lines, routes, route, bits, ready_ns):
    """When a transfer would end."""
    return time_of(lines, routes, route, MOST_BPS, bits, ready_ns)


@lean
def place_of(until, limit):
    """The last place before which no more than ``limit`` bits lie."""
    low, high = 0, len(until) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if until[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@lean
def rack_extent(load, bounds, n, end_ns):
    """The first update that cannot have entered the aggregators' racks by an instant, in case n."""
    k = len(load.out)
    if bounds.inflow.head[k + 1] == 0:
        return len(load.bits)
    passed = passing_until(bounds.inflow, k + 1, bounds.start_ns, end_ns)
    if passed == ENOUGH_BITS:
        return len(load.bits)
    return place_of(bounds.grouped, passed - bounds.directly[n] + bounds.grouped[n])


@lean
def extent(routes, load, bounds, i, j, state):
    """Groups j to the last but one begin with update i: the first update that is beyond all of them."""
    count, end, dry_ns = len(load.bits), i, state.dry_ns
    for g in range(j, len(load.out) - 1):
        limit = bounds.until[g, end] + passing_until(bounds.inflow, g, bounds.start_ns, dry_ns)
        reached = max(end, min(place_of(bounds.until[g], limit), rack_extent(load, bounds, state.direct, dry_ns)))
        end = reached if load.most[g] == 0 else min(reached, end + load.most[g])
        if end >= count:
            return count
        late_ns = dry_ns + bounds.slow_ns[g]
        dry_ns = max(dry_ns, end_of(bounds.free, routes, load.out[g], bounds.most_bits[i], late_ns))
        if dry_ns >= HORIZON_NS:
            return count
    return end


@lean
def last_arrival(routes, load, bounds, i):
    """When the last group's sum arrives at the earliest, if all from update i on are in it."""
    j = len(load.out) - 1
    bits = bounds.until[j, -1] - bounds.until[j, i]
    size = bounds.sum_bits[i] if len(load.bits) - i > 1 else load.bits[i]
    there_ns = end_of(bounds.inflow, bounds.entry, j, bits, bounds.start_ns) + bounds.fast_ns[j]
    return end_of(bounds.free, routes, load.out[j], size, there_ns) + routes.latency_ns[load.out[j]]


@lean
def all_in(load, bounds, i, state):
    """When all that enters the aggregators' racks is at the destination at the earliest; 0 if racks do not say."""
    n, k = state.direct, len(load.out)
    if bounds.inflow.head[k] == 0 or bounds.inflow.head[k + 1] == 0:
        return 0
    bits = min(bounds.directly[n] + bounds.grouped[-1] - bounds.grouped[n], ENOUGH_BITS)
    there_ns = end_of(bounds.inflow, bounds.entry, k + 1, bits, bounds.start_ns)
    if there_ns <= state.dry_ns:
        return 0
    return end_of(bounds.inflow, bounds.entry, k, bounds.least_bits[i], there_ns + bounds.fastest_ns) + bounds.near_ns


@lean
def soonest(load, bounds, state, more):
    """When something is committed at the earliest after so many bits more; HORIZON_NS for never."""
    k = len(load.out)
    if bounds.inflow.head[k] == 0:
        return state.commit_ns
    bits = min(state.passed + more, ENOUGH_BITS)
    end_ns = end_of(bounds.inflow, bounds.entry, k, bits, bounds.start_ns)
    return max(state.commit_ns, end_ns + bounds.near_ns) if end_ns < HORIZON_NS else HORIZON_NS


@lean
def most_bps(lines, link, at_ns):
    """The most that is ever free on a line from an instant on."""
    node, found = lines.head[link], 0
    while node != 0:
        if lines.at_ns[lines.following[node]] > at_ns:
            found = max(found, lines.bps[node])
        node = lines.following[node]
    return found


@lean
def largest_group(load, j):
    """How many updates one of the aggregators from j on may take at most; 1 if none is left."""
    found = 1
    for g in range(j, len(load.out)):
        found = max(found, load.most[g] if load.most[g] > 0 else len(load.bits))
    return found


@lean
def with_late(load, bounds, i, j, end, soon_ns, state, mean):
    """What a case costs at least if what is beyond ``end`` certainly goes directly after all groups."""
    k, count = len(load.out), len(load.bits)
    most = largest_group(load, j)
    passed = state.passed + min(bounds.tensors, most) * (bounds.brought[end] - bounds.brought[i]) // most
    if not mean:
        bits = min(passed + bounds.brought[count] - bounds.brought[end], ENOUGH_BITS)
        end_ns = end_of(bounds.inflow, bounds.entry, k, bits, bounds.start_ns)
        return plus(ZERO, 1, max(soon_ns, end_ns + bounds.near_ns) - load.now_ns)
    begin_ns = end_of(bounds.inflow, bounds.entry, k, min(passed, ENOUGH_BITS), bounds.start_ns)
    bits = bounds.brought_sum[count] - bounds.brought_sum[end] - (count - end) * bounds.brought[end]
    took_ns = duration(max(1, most_bps(bounds.inflow, k, begin_ns - 1)), bits, 0)
    cost = plus(state.cost, end - i, soon_ns - load.now_ns)
    if begin_ns - 1 + bounds.near_ns > soon_ns and took_ns < HORIZON_NS:
        cost = plus(cost, count - end, begin_ns - 1 + bounds.near_ns - load.now_ns)
        return plus(cost, 1, max(0, took_ns - 1))
    return plus(cost, count - end, soon_ns - load.now_ns)


@lean
def bound(routes, load, bounds, i, j, state, mean):
    """What a case costs at least, if everything before update i is settled and aggregators before j are used."""
    count, k = len(load.bits), len(load.out)
    soon_ns = soonest(load, bounds, state, bounds.least_bits[i])
    if soon_ns >= HORIZON_NS:
        return ENDLESS
    late_ns, end = soon_ns, count
    if j == k or load.most[k - 1] > 0:
        if len(bounds.brought) > 0 and bounds.inflow.head[k] != 0:
            end = i if j == k else min(count, extent(routes, load, bounds, i, j, state) + load.most[k - 1])
            return with_late(load, bounds, i, j, end, soon_ns, state, mean)
    elif bounds.sure == 1:
        end = extent(routes, load, bounds, i, j, state)
        if end < count:
            late_ns = max(soon_ns, last_arrival(routes, load, bounds, end))
        if not mean:
            late_ns = max(late_ns, all_in(load, bounds, i, state))
    if not mean:
        return plus(ZERO, 1, late_ns - load.now_ns)
    cost = plus(state.cost, end - i, soon_ns - load.now_ns)
    return plus(cost, count - end, late_ns - load.now_ns)


@lean
def widest_reach(load, bounds, n, i, dry_ns):
    """The first update that is beyond any one group of case n, but the last aggregator's, that begins with update i."""
    if dry_ns >= HORIZON_NS:
        return len(load.bits)
    limit = bounds.lightest[i] + passing_until(bounds.inflow, len(load.out) + 2, bounds.start_ns, dry_ns)
    return max(i, min(place_of(bounds.lightest, limit), rack_extent(load, bounds, n, dry_ns)))


@lean
def narrowest_end(load, bounds, bits, ready_ns):
    """When a sum of any aggregator but the last has been sent at the latest."""
    k = len(load.out)
    if bounds.inflow.head[k + 3] == 0:
        return ready_ns
    return end_of(bounds.inflow, bounds.entry, k + 3, bits, ready_ns)


@lean
def lesser(one, other):
    """The lesser of two sums."""
    return one if one < other else other


@lean
def with_rest(cost, members, span_ns, mean):
    """What a case costs if the rest of its members commit after a span."""
    return plus(cost, members, span_ns) if mean else plus(ZERO, 1, span_ns)


@lean
def sums_bound(routes, load, bounds, state, mean):
    """What a case costs at least at its first group, by how many sums there must be; nothing if that is unknown."""
    i, end, dry_ns, cost, least = state.direct, state.direct, state.dry_ns, state.cost, ENDLESS
    count, k, more = len(load.bits), len(load.out), 0
    if bounds.sure == 0:
        return ZERO
    for m in range(k):
        more = min(more + bounds.least_bits[i], ENOUGH_BITS)
        soon_ns = soonest(load, bounds, state, more)
        if soon_ns >= HORIZON_NS:
            break
        late_ns = max(soon_ns, last_arrival(routes, load, bounds, end))
        least = lesser(least, with_rest(cost, count - end, late_ns - load.now_ns, mean))
        if m == k - 1:
            break
        after = widest_reach(load, bounds, i, end, dry_ns)
        cost = with_rest(cost, after - end, soon_ns - load.now_ns, mean)
        if after == count:
            return lesser(least, cost)
        end, dry_ns = after, narrowest_end(load, bounds, bounds.most_bits[i], dry_ns + bounds.slowest_ns)
    return least


@lean
def survey(routes, load, bounds, part, mean, high, low):
    """Write down what each case costs at least, by n."""
    for n in range(load.fixed, len(high)):
        high[n], low[n] = bound(routes, load, bounds, n, 0, state_of(part, n), mean)
