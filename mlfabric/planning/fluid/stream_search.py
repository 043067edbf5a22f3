# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The best forest for a lot among a bounded number of candidates, each planned exactly; compiled.

A candidate: some updates go directly, a first group is summed by a tree, and each following group takes as many updates
as its tree, by estimate, can start with when the destination's downlink becomes idle (as in the paper's algorithm 3).
After every group the alternative is tried that all remaining updates are one last group. Candidates differ in how many
go directly, how large the first group is, and how slow a forwarding host may be. Then the best is varied in small
steps. Of equal ones the first counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import HORIZON_NS, Ints
from mlfabric.planning.fluid.jit import compiled, entry, inner, lean
from mlfabric.planning.fluid.stream_field import FAR_NS, Field, Members, able_hosts, scaled
from mlfabric.planning.fluid.stream_forest import Streams, make_ground, make_streams, run_streams
from mlfabric.planning.fluid.stream_shape import TOP, Tree, all_ready, by_begin, make_tree, shape

__all__ = ["DESTINATION", "Forest", "find_forest", "is_sound"]

DESTINATION = 0  # the place that no stream leaves
IMPOSSIBLE = 1 << 62


class Forest(NamedTuple):
    """The streams: columns of ``Streams``, and their members.

    ``own`` is by member the stream in which it leaves its host. ``ends`` is by group one after its last member,
    ``last`` the stream that brings it. ``counts``: streams, groups, places, members.
    """

    streams: Streams
    own: Ints
    ends: Ints
    last: Ints
    counts: Ints


class Hunt(NamedTuple):
    """A search and its scratch. ``progress``: cost of the best, and the streams that were planned."""

    field: Field
    members: Members
    tree: Tree
    now: Forest
    best: Forest
    usable: Ints
    later: Ints
    scratch: Ints
    total: Ints
    largest: Ints
    progress: Ints


@compiled
def make_forest(members, hosts):
    """Room for the forest of a lot."""
    count = members + hosts + 1
    return Forest(
        make_streams(count, 2 * count),
        np.zeros(members, np.int64), np.zeros(members, np.int64), np.zeros(members, np.int64), np.zeros(4, np.int64),
    )  # fmt: skip


@compiled
def make_hunt(field, members):
    """The scratch memory of a search."""
    count, hosts = len(members.host), len(field.rank_ns)
    columns = np.zeros((3, count + hosts + 2), np.int64)
    return Hunt(
        field, members, make_tree(count, hosts), make_forest(count, hosts), make_forest(count, hosts),
        np.zeros(hosts, np.int64), np.zeros(hosts, np.int64), columns[0], columns[1], columns[2],
        np.array([IMPOSSIBLE, 0]),
    )  # fmt: skip


@lean
def reset(hunt, first):
    """Begin a candidate whose groups start with a member."""
    counts, arriving = hunt.now.counts, hunt.now.streams.arriving
    counts[0], counts[1], counts[2], counts[3] = 0, 0, 1, first
    for place in range(len(arriving)):
        arriving[place] = -1
    for host in range(len(hunt.usable)):
        hunt.usable[host] = 1 if hunt.field.rank_ns[host] < FAR_NS else 0


@inner
def mark_later(hunt, end):
    """Note which hosts have an update at or after a place."""
    for host in range(len(hunt.later)):
        hunt.later[host] = 0
    for m in range(end, len(hunt.members.host)):
        hunt.later[hunt.members.host[m]] = 1


@inner
def add_stream(hunt, host, to, bits, ready_ns, leaves, reaches):
    """Append a stream; return its number."""
    streams, k = hunt.now.streams, hunt.now.counts[0]
    streams.route[k], streams.bits[k], streams.ready_ns[k] = hunt.field.route[host, to], bits, ready_ns
    streams.leaves[k], streams.reaches[k] = leaves, reaches
    hunt.now.counts[0] += 1
    return k


@inner
def close_group(hunt, end):
    """Note that a group ends before a member, and that the latest stream brings it."""
    forest = hunt.now
    forest.ends[forest.counts[1]] = end
    forest.last[forest.counts[1]] = forest.counts[0] - 1
    forest.counts[1] += 1
    forest.counts[3] = end


@lean
def add_direct(hunt, m):
    """Append a group of one."""
    host, places = hunt.members.host[m], hunt.now.counts[2]
    ready_ns = max(hunt.field.scalars[0], hunt.members.ready_ns[m])
    hunt.now.own[m] = add_stream(
        hunt, host, able_hosts(hunt.field), hunt.members.bits[m], ready_ns, places, DESTINATION
    )  # fmt: skip
    hunt.now.counts[2] += 1
    close_group(hunt, m + 1)


@lean
def add_tree(hunt, end):
    """Append the tree as the next group, up to a member."""
    tree, first, base = hunt.tree, hunt.now.counts[3], hunt.now.counts[2]
    stream_of = tree.rank
    by_begin(tree, hunt.scratch)
    for i in range(tree.size[0]):
        hunt.total[i], hunt.largest[i] = tree.updates[i], tree.bits[i]
    for n in range(tree.size[0]):
        i = hunt.scratch[n]
        bits = hunt.largest[i] * (hunt.field.scalars[3] if hunt.total[i] > 1 else 1)
        parent = tree.parent[i]
        to = able_hosts(hunt.field) if parent == TOP else tree.host[parent]
        reaches = DESTINATION if parent == TOP else base + parent
        stream_of[i] = add_stream(hunt, tree.host[i], to, bits, tree.ready_ns[i], base + i, reaches)
        if parent != TOP:
            hunt.total[parent] += hunt.total[i]
            hunt.largest[parent] = max(hunt.largest[parent], hunt.largest[i])
    for m in range(first, end):
        hunt.now.own[m] = stream_of[tree.item[m]]
    hunt.now.counts[2] += tree.size[0]
    close_group(hunt, end)


@inner
def retire(hunt):
    """Let hosts that sum or forward the latest group serve no other group."""
    tree = hunt.tree
    for i in range(tree.size[0]):
        if tree.updates[i] > 1:
            hunt.usable[tree.host[i]] = 0
        if tree.parent[i] >= 0:
            hunt.usable[tree.host[tree.parent[i]]] = 0


@lean
def group_at_once(hunt, first, size, limit_ns, dry_ns):
    """Shape the group of the next ``size`` members and append it; False if there is no tree for it."""
    if size == 1:
        add_direct(hunt, first)
        return True
    mark_later(hunt, first + size)
    start_ns = all_ready(hunt.members, first, first + size, dry_ns)
    reach_ns = shape(
        hunt.field, hunt.members, first, first + size, hunt.usable, limit_ns, start_ns, hunt.later, hunt.tree,
        hunt.scratch,
    )  # fmt: skip
    if reach_ns >= FAR_NS + start_ns:
        return False
    add_tree(hunt, first + size)
    return True


@lean
def fits(hunt, first, size, limit_ns, dry_ns):
    """Whether a tree of the next ``size`` members can start when the destination becomes idle, by estimate."""
    mark_later(hunt, first + size)
    reach_ns = shape(
        hunt.field, hunt.members, first, first + size, hunt.usable, limit_ns, dry_ns, hunt.later, hunt.tree,
        hunt.scratch,
    )  # fmt: skip
    return reach_ns <= dry_ns


@lean
def fill(hunt, first, most, limit_ns, dry_ns):
    """How many members the next group takes: the most that fit, found by doubling and halving; at least 1."""
    size, step = 1, 1
    while size + step <= most and fits(hunt, first, size + step, limit_ns, dry_ns):
        size, step = size + step, 2 * step
    while step > 1:
        step //= 2
        if size + step <= most and fits(hunt, first, size + step, limit_ns, dry_ns):
            size += step
    return size


@inner
def may_sum(hunt):
    """If any host may still sum a group; else all that remain go directly."""
    found = 0
    for host in range(able_hosts(hunt.field)):
        found += hunt.usable[host]
    return found > 0


@inner
def together(members, first):
    """How many members from ``first`` on may be in one group."""
    if members.directly[first] == 1:
        return 1
    end = first + 1
    while end < len(members.host) and members.directly[end] == 0:
        end += 1
    return end - first


@compiled
def run_group(hunt, routes, ground):
    """Plan the group that was appended last exactly; return its end, its arrival and the ground."""
    forest = hunt.now
    group = forest.counts[1] - 1
    begin = forest.last[group - 1] + 1 if group > 0 else 0
    possible, ground = run_streams(ground, routes, forest.streams, begin, forest.counts[0], hunt.field.scalars[2])
    hunt.progress[1] += forest.counts[0] - begin
    last = forest.last[group]
    if not possible or forest.streams.end_ns[last] >= hunt.field.scalars[0] + FAR_NS:
        return HORIZON_NS, HORIZON_NS, ground
    end_ns = forest.streams.end_ns[last]
    return end_ns, end_ns + routes.latency_ns[forest.streams.route[last]], ground


@lean
def added(cost, commit_ns, count, mean):
    """The cost of more commits at an instant (from now on)."""
    return cost + count * commit_ns if mean else max(cost, commit_ns)


@lean
def keep(hunt, cost):
    """Keep the candidate as the best."""
    now, best, given, kept = hunt.now, hunt.best, hunt.now.streams, hunt.best.streams
    hunt.progress[0] = cost
    for k in range(now.counts[0]):
        kept.route[k], kept.bits[k], kept.ready_ns[k] = given.route[k], given.bits[k], given.ready_ns[k]
        kept.leaves[k], kept.reaches[k] = given.leaves[k], given.reaches[k]
    for m in range(len(now.own)):
        best.own[m], best.ends[m], best.last[m] = now.own[m], now.ends[m], now.last[m]
    for n in range(len(now.counts)):
        best.counts[n] = now.counts[n]


@compiled
def try_rest(hunt, routes, lines, limit_ns, dry_ns, reached_ns, cost, mean):
    """Try the alternative that all remaining members are one group; everything else stays unchanged."""
    first, counts, streams = hunt.now.counts[3], hunt.now.counts.copy(), hunt.now.streams
    size = len(hunt.members.host) - first
    if group_at_once(hunt, first, size, limit_ns, dry_ns):
        _, arrive_ns, _ = run_group(hunt, routes, make_ground(lines, size, streams.first[counts[0]]))
        if arrive_ns < HORIZON_NS:
            commit_ns = max(reached_ns, arrive_ns)
            cost = added(cost, commit_ns - hunt.field.scalars[0], size, mean) + hunt.field.scalars[5]
            if cost < hunt.progress[0]:
                keep(hunt, cost)
    streams.arriving[counts[2] : hunt.now.counts[2]] = -1
    hunt.now.counts[:] = counts


@compiled
def try_case(hunt, routes, base, fixed, direct, size, limit_ns, dry_ns, commit_ns, cost, mean):
    """Try one candidate: ``direct`` go directly, ``size`` (or as many as fit, for 0) are the first group."""
    count, now_ns = len(hunt.members.host), hunt.field.scalars[0]
    reset(hunt, fixed)
    ground = make_ground(base, count, 0)
    least_ns = scaled(
        hunt.field.into_ns[able_hosts(hunt.field)], hunt.members.bits[fixed:].min(), hunt.field.scalars[1]
    )
    while hunt.now.counts[3] < count:
        first = hunt.now.counts[3]
        left = count - first
        bound = added(cost, max(commit_ns, dry_ns + least_ns) - now_ns, left, mean) + hunt.field.scalars[5]
        if bound >= hunt.progress[0]:
            return
        most = together(hunt.members, first) if may_sum(hunt) else 1
        if first < fixed + direct:
            wanted = 1
        elif size > 0 and first == fixed + direct:
            wanted = min(size, most)
        else:
            wanted = fill(hunt, first, most, limit_ns, dry_ns)
        if wanted < left and most == left and first >= fixed + direct and (size == 0 or first > fixed + direct):
            try_rest(hunt, routes, ground.lines, limit_ns, dry_ns, commit_ns, cost, mean)
        if not group_at_once(hunt, first, wanted, limit_ns, dry_ns):
            wanted = 1
            add_direct(hunt, first)
        end_ns, arrive_ns, ground = run_group(hunt, routes, ground)
        if end_ns >= HORIZON_NS:
            return
        if wanted > 1:
            retire(hunt)
        dry_ns, commit_ns = max(dry_ns, end_ns), max(commit_ns, arrive_ns)
        cost = added(cost, commit_ns - now_ns, wanted, mean) + hunt.field.scalars[5]
    if cost < hunt.progress[0]:
        keep(hunt, cost)


@compiled
@entry
def find_forest(
    field, members, routes, base, fixed, dry_ns, commit_ns, cost, mean, cases, coarse, choices, most_streams
):
    """Search; return the best forest and its cost, IMPOSSIBLE for none.

    Args:
        base: what is free when the first ``fixed`` members, which go directly, are reserved.
        dry_ns, commit_ns, cost: of these members.
        cases: rows (direct, size of the first group); the first ``coarse`` for every choice, the others for the best.
        choices: rows (how slow a forwarding host may be, how many hosts without an update of its group a tree may use).
        most_streams: no further candidate is begun when this many streams were planned.
    """
    hunt = make_hunt(field, members)
    direct, size, choice = 0, 0, 0
    for turn in range(len(choices) + 1):
        n = turn if turn < len(choices) else choice
        limit, field.scalars[4] = choices[n]
        for row in range(0 if turn < len(choices) else coarse, coarse if turn < len(choices) else len(cases)):
            before = hunt.progress[0]
            if hunt.progress[1] < most_streams:
                try_case(
                    hunt, routes, base, fixed, cases[row, 0], cases[row, 1], limit, dry_ns, commit_ns, cost, mean
                )  # fmt: skip
            if hunt.progress[0] < before:
                direct, size, choice = cases[row, 0], cases[row, 1], n
    limit, field.scalars[4] = choices[choice]
    improved = hunt.progress[0] < IMPOSSIBLE
    while improved:
        improved = False
        for more_direct, more_size in ((0, 1), (0, -1), (0, 2), (0, -2), (1, 0), (-1, 0)):
            before, one, two = hunt.progress[0], direct + more_direct, size + more_size
            possible = one >= 0 and two >= min(1, size) and one + max(two, 1) <= len(members.host) - fixed
            if possible and hunt.progress[1] < most_streams:
                try_case(hunt, routes, base, fixed, one, two, limit, dry_ns, commit_ns, cost, mean)
            if hunt.progress[0] < before:
                direct, size, improved = one, two, True
    return hunt.best, hunt.progress


@compiled
@entry
def is_sound(forest, fixed, destinations, room):
    """Say whether every sum is of something, every aggregator serves one group and takes what it has room for.

    The search counts what an aggregator receives; what its own host adds can, rarely, be too much.

    Args:
        fixed: the first so many members are not in the forest.
        destinations: how many routes each source has; they are numbered one source after the other.
        room: how many updates each source may sum; 0 for any number.
    """
    streams, count, group = forest.streams, forest.counts[0], 0
    members, inputs = np.zeros(count, np.int64), 0
    reached, streams_there = np.zeros(len(streams.arriving), np.int64), np.zeros(len(streams.arriving), np.int64)
    serves = np.full(len(room), -1)
    for m in range(fixed, len(forest.own)):
        members[forest.own[m]] += 1
    for k in range(count):
        group += k > forest.last[group]
        members[k] += reached[streams.leaves[k]]
        inputs = streams_there[streams.leaves[k]]
        reached[streams.reaches[k]] += members[k]
        streams_there[streams.reaches[k]] += 1
        if members[k] == 1 and inputs == 0:
            continue
        source = streams.route[k] // destinations
        if members[k] == 0 or (serves[source] >= 0 and serves[source] != group) or 0 < room[source] < members[k]:
            return False
        serves[source] = group
    return True
