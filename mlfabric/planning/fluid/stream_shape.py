# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The shape of the tree that sums one group, compiled.

The shape is found backwards from the instant at which the tree's stream starts toward the destination. A place that
sends from s on needs its last input to begin a hop h earlier (latency and one chunk). Inputs share its downlink, so the
input before must begin the time T of one transfer earlier, and so on: inputs begin at s - h, s - h - T, s - h - 2T ...
(an input that uses a share of the downlink counts for that share of T). For equal hosts this is a reversed broadcast in
the postal model, and filling the latest start first is optimal: if T is large compared with h, the result is a chain
with a few branches near its root; if T is small, the tree is flat.

On uneven networks an input slower than its output must begin earlier by the difference. So a slow host, and a host
whose update is ready late, need a place near the root. Such an update is placed there as soon as a later choice would
be too late for it. Otherwise places go to hosts that forward sums well (the nearest first, which keeps a rack
together); hosts that cannot forward take the remaining places. Hosts without an update of the group are used if that
makes the earliest start later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.jit import compiled, entry, inner, lean
from mlfabric.planning.fluid.stream_field import FAR_NS, able_hosts, scaled

__all__ = ["TOP", "UNPLACED", "Tree", "all_ready", "by_begin", "make_tree", "shape"]

UNPLACED, TOP = -2, -1
UNLIMITED = 1 << 40
NEVER = -(1 << 61)


class Tree(NamedTuple):
    """The tree of one group, by item: an update, or all updates of the group on a host that may sum, or a bare host.

    ``part / whole`` is how large its stream is against the field's unit; ``parent`` an item, TOP or UNPLACED;
    ``begin_ns`` the instant from which its stream is to be sent, by estimate; ``free_ns`` the latest instant at which
    one more input may begin, without hop; ``out_ns`` how long its stream takes; ``room`` how many more updates it may
    sum; ``rank`` when it was placed. ``waiting`` lists those with updates that are not placed, ``passing`` those that
    are and may pass on. ``item`` is by member; ``at_host`` by host, scratch. ``size``: items, how many of them have
    updates, how many are placed, are waiting, and are passing.
    """

    host: Ints
    bits: Ints
    ready_ns: Ints
    updates: Ints
    inner: Ints
    part: Ints
    whole: Ints
    parent: Ints
    begin_ns: Ints
    free_ns: Ints
    out_ns: Ints
    room: Ints
    rank: Ints
    waiting: Ints
    passing: Ints
    item: Ints
    at_host: Ints
    size: Ints


@compiled
@entry
def make_tree(members, hosts):
    """Room for a tree of any of so many members and hosts."""
    table, sizes = np.zeros((15, members + hosts + 1), np.int64), np.zeros(5, np.int64)
    return Tree(
        table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7], table[8], table[9], table[10],
        table[11], table[12], table[13], table[14], np.zeros(members, np.int64), np.full(hosts, -1), sizes,
    )  # fmt: skip


@lean
def add_item(field, tree, host, inner):
    """Append an item that is not placed yet."""
    i = tree.size[0]
    tree.size[0] += 1
    tree.host[i], tree.bits[i], tree.ready_ns[i], tree.updates[i], tree.inner[i] = host, 0, field.scalars[0], 0, inner
    tree.part[i], tree.whole[i], tree.parent[i] = field.scalars[3], 1, UNPLACED
    return i


@lean
def gather(field, members, first, end, usable, limit_ns, tree):
    """Make items of ``members[first:end]``; updates on one host that may sum are one item."""
    hosts, at_host, bits, ready_ns, count = members.host, tree.at_host, tree.bits, tree.ready_ns, tree.updates
    tree.size[:] = 0
    for m in range(first, end):
        at_host[hosts[m]] = -1
    for m in range(first, end):
        host = hosts[m]
        i = at_host[host]
        if i < 0:
            i = add_item(field, tree, host, 1 if usable[host] == 1 and field.rank_ns[host] <= limit_ns else 0)
            if usable[host] == 1:
                at_host[host] = i
        bits[i] = max(bits[i], members.bits[m])
        ready_ns[i] = max(ready_ns[i], members.ready_ns[m])
        count[i] += 1
        tree.item[m] = i
    tree.size[1] = tree.size[3] = tree.size[0]
    for i in range(tree.size[0]):
        tree.waiting[i] = i
        most = field.most[tree.host[i]]
        if most != 0 and most <= count[i]:
            tree.inner[i] = 0
        if tree.inner[i] == 0:
            set_share(tree, i, field.scalars[1], field.scalars[3] if count[i] > 1 else 1)


@lean
def set_share(tree, i, unit_bits, tensors):
    """Note how large an item's stream is against the unit, if it only brings its own."""
    part, whole = tree.bits[i], unit_bits
    if part == whole:
        part, whole = 1, 1
    while whole >= 1 << 12:
        part, whole = part >> 1, whole >> 1
    tree.part[i], tree.whole[i] = part * tensors, whole


@lean
def times(span_ns, part, whole):
    """``span_ns * part / whole``, rounded down, for small parts."""
    return span_ns * part if whole == 1 else span_ns // whole * part + span_ns % whole * part // whole


@lean
def is_bare(field, tree, usable, limit_ns, host):
    """Whether a host may sum and has no update in this group."""
    if usable[host] == 0 or field.rank_ns[host] > limit_ns:
        return False
    i, absent = tree.at_host[host], True
    for added in range(tree.size[1], tree.size[0]):
        absent = absent and tree.host[added] != host
    return absent and not (0 <= i < tree.size[1] and tree.host[i] == host)


@lean
def count_bare(field, tree, usable, limit_ns):
    """How many hosts may sum and have no update in this group."""
    count = 0
    for host in range(able_hosts(field)):
        count += is_bare(field, tree, usable, limit_ns, host)
    return count


@lean
def best_bare(field, tree, usable, limit_ns, to, later):
    """The best host to add below ``to``: one without later updates, then the fastest; -1 for none."""
    best, best_later, best_ns = -1, 0, 0
    for host in range(able_hosts(field)):
        if field.took_ns[host, to] < FAR_NS and is_bare(field, tree, usable, limit_ns, host):
            cost_ns = field.hop_ns[host, to] + field.took_ns[host, to]
            if best < 0 or (later[host], cost_ns) < (best_later, best_ns):
                best, best_later, best_ns = host, later[host], cost_ns
    return best


@inner
def place(field, tree, i, parent, begin_ns):
    """Put an item into the tree."""
    host, room, above = tree.host[i], tree.room, tree.parent
    to = able_hosts(field) if parent == TOP else tree.host[parent]
    above[i], tree.begin_ns[i], tree.free_ns[i] = parent, begin_ns, begin_ns
    tree.out_ns[i] = times(field.took_ns[host, to], tree.part[i], tree.whole[i])
    tree.rank[i] = tree.size[2]
    tree.size[2] += 1
    most = field.most[host]
    room[i] = (most if most > 0 else UNLIMITED) - tree.updates[i]
    if parent != TOP:
        into_ns, took_ns = field.into_ns[to], max(1, field.took_ns[host, to])
        into_ns = into_ns if took_ns <= into_ns else scaled(into_ns, into_ns, took_ns)
        tree.free_ns[parent] -= times(into_ns, tree.part[i], tree.whole[i])
    while parent != TOP:
        room[parent] -= tree.updates[i]
        parent = above[parent]
    if tree.inner[i] == 1:
        tree.passing[tree.size[4]] = i
        tree.size[4] += 1
    stop_waiting(tree.waiting, tree.size, i)


@inner
def stop_waiting(waiting, size, i):
    """Remove an item from the list, which keeps its order."""
    kept = 0
    for w in range(size[3]):
        waiting[kept] = waiting[w]
        kept += waiting[w] != i
    size[3] = kept


@inner
def room_at(tree, i):
    """How many updates may still be added at or below an item."""
    above, rooms = tree.parent, tree.room
    room = rooms[i]
    while above[i] != TOP:
        i = above[i]
        room = min(room, rooms[i])
    return room


@inner
def latest_free(tree):
    """The item that can take an input that begins latest, and when the second latest could; -1 for none."""
    passing, free_ns = tree.passing, tree.free_ns
    best, best_ns, second_ns = -1, NEVER, NEVER
    for n in range(tree.size[4]):
        i = passing[n]
        if free_ns[i] > best_ns:
            best, best_ns, second_ns = i, free_ns[i], best_ns
        else:
            second_ns = max(second_ns, free_ns[i])
    return best, second_ns


@lean
def lag_ns(field, tree, host, part, whole, p):
    """How much earlier than its parent's free instant a stream from a host has to begin."""
    to = tree.host[p]
    return field.hop_ns[host, to] + max(0, times(field.took_ns[host, to], part, whole) - tree.out_ns[p])


@inner
def pick(field, tree, p, next_ns, room):
    """The item to place below p, and its lag: one that must be placed now, else the best that forwards, else the most
    urgent.

    -1 if none can be placed, or if no waiting item forwards and none must be placed now.
    """
    hop_ns, took_ns, to = field.hop_ns, field.took_ns, tree.host[p]
    hosts, inners, ready_ns, part, whole = tree.host, tree.inner, tree.ready_ns, tree.part, tree.whole
    free_ns, out_ns, count, waiting = tree.free_ns[p], tree.out_ns[p], tree.updates, tree.waiting
    must, inner, other, passing = -1, -1, -1, 0
    must_ns, inner_lag_ns, inner_late_ns, other_ns = 0, 0, 0, 0
    for w in range(tree.size[3]):
        i = waiting[w]
        passing += inners[i]
        took = took_ns[hosts[i], to]
        if count[i] > room or took >= FAR_NS:
            continue
        lag = hop_ns[hosts[i], to] + max(0, times(took, part[i], whole[i]) - out_ns)
        need_ns = ready_ns[i] + lag
        late_ns = max(0, need_ns - free_ns)
        if late_ns == 0 and need_ns > next_ns and (must < 0 or need_ns > must_ns):
            must, must_ns = i, need_ns
        if inners[i] == 1:
            if inner < 0 or late_ns < inner_late_ns or (late_ns == inner_late_ns and lag < inner_lag_ns):
                inner, inner_late_ns, inner_lag_ns = i, late_ns, lag
        elif other < 0 or need_ns > other_ns:
            other, other_ns = i, need_ns
    if must >= 0:
        return must, must_ns - ready_ns[must], False
    if inner >= 0:
        return inner, inner_lag_ns, False
    return other, other_ns - ready_ns[other], passing == 0


@lean
def nth_free(field, tree, count, p, extra_ns, scratch):
    """When the last of ``count`` more inputs could begin; with one more place below p, unless ``extra_ns`` is 0."""
    passing, free_ns, hosts, into_ns = tree.passing, tree.free_ns, tree.host, field.into_ns
    places = tree.size[4]
    for n in range(places):
        scratch[n] = free_ns[passing[n]]
        if extra_ns > 0 and passing[n] == p:
            scratch[places] = scratch[n] - extra_ns
            scratch[n] -= into_ns[hosts[p]]
    last_ns, all_places = NEVER, places + (extra_ns > 0)
    for _ in range(count):
        best = 0
        for n in range(1, all_places):
            if scratch[n] > scratch[best]:
                best = n
        last_ns = scratch[best]
        scratch[best] -= into_ns[hosts[p if best == places else passing[best]]]
    return last_ns


@lean
def choose_root(field, tree, usable, limit_ns, start_ns, later):
    """The item whose stream goes to the destination: a late one that must, else the fastest; -1 if none may."""
    to, best, best_ns, late = able_hosts(field), -1, 0, -1
    for i in range(tree.size[1]):
        host = tree.host[i]
        if (tree.inner[i] == 1 or tree.size[1] == 1) and field.took_ns[host, to] < FAR_NS:
            cost_ns = field.took_ns[host, to]
            if best < 0 or cost_ns < best_ns:
                best, best_ns = i, cost_ns
            if late < 0 or tree.ready_ns[i] > tree.ready_ns[late]:
                late = i
    if best >= 0:
        must = tree.ready_ns[late] > start_ns - field.hop_ns[tree.host[late], to]
        return late if must and tree.ready_ns[late] > tree.ready_ns[best] else best
    host = best_bare(field, tree, usable, limit_ns, to, later)
    return -1 if host < 0 else add_item(field, tree, host, 1)


@lean
def add_bare(field, tree, usable, limit_ns, p, left, later, scratch):
    """Place a host without updates below p if the remaining inputs can then begin later; tell whether it was done."""
    host = best_bare(field, tree, usable, limit_ns, tree.host[p], later)
    if host < 0:
        return False
    hop_ns = lag_ns(field, tree, host, field.scalars[3], 1, p)
    without = nth_free(field, tree, left, p, 0, scratch)
    if nth_free(field, tree, left, p, max(1, hop_ns), scratch) <= without:
        return False
    i = add_item(field, tree, host, 1)
    place(field, tree, i, p, tree.free_ns[p] - hop_ns)
    return True


@lean
@entry
def shape(field, members, first, end, usable, limit_ns, start_ns, later, tree, scratch):
    """Make the tree of ``members[first:end]`` for a start toward the destination at ``start_ns``.

    Args:
        usable: by host, 1 if it may sum this group.
        later: by host, 1 if an update of it comes after the group.

    Returns:
        When it could start, by estimate; FAR_NS or more if there is no such tree.
    """
    gather(field, members, first, end, usable, limit_ns, tree)
    for i in range(tree.size[1]):
        if 0 < field.most[tree.host[i]] < tree.updates[i] and usable[tree.host[i]] == 1:
            return start_ns + FAR_NS
    root = choose_root(field, tree, usable, limit_ns, start_ns, later)
    if root < 0:
        return start_ns + FAR_NS
    place(field, tree, root, TOP, start_ns)
    late_ns = tree.ready_ns[root] - start_ns
    bare = min(count_bare(field, tree, usable, limit_ns), field.scalars[4] - (tree.size[0] - tree.size[1]))
    while tree.size[3] > 0:
        p, next_ns = latest_free(tree)
        if p < 0:
            return start_ns + FAR_NS
        room = room_at(tree, p)
        next_ns = max(next_ns, tree.free_ns[p] - field.into_ns[tree.host[p]])
        i, lag, only_leaves = pick(field, tree, p, next_ns, room)
        if i < 0:
            tree.free_ns[p] = NEVER
            continue
        helps = bare > 0 and only_leaves and tree.size[3] > 1 and room > 1
        if helps and add_bare(field, tree, usable, limit_ns, p, tree.size[3], later, scratch):
            bare -= 1
            continue
        begin_ns = tree.free_ns[p] - lag
        late_ns = max(late_ns, tree.ready_ns[i] - begin_ns)
        place(field, tree, i, p, begin_ns)
    return start_ns + late_ns


@lean
def all_ready(members, first, end, dry_ns):
    """When ``members[first:end]`` are ready and the destination has run dry."""
    start_ns = dry_ns
    for m in range(first, end):
        start_ns = max(start_ns, members.ready_ns[m])
    return start_ns


@lean
@entry
def by_begin(tree, order):
    """Fill ``order``: items from the one that begins first to the root; of equal ones the one placed last first."""
    count, begin_ns = tree.size[0], tree.begin_ns
    for i in range(count):
        order[count - 1 - tree.rank[i]] = i
    for n in range(1, count):
        i, k = order[n], n
        while k > 0 and begin_ns[order[k - 1]] > begin_ns[i]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
