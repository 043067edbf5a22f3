# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Bytes on links in virtual time, compiled: transfers that share links, wait for one another and carry sums on.

A transfer is *held* until what it is made of is there, then *offered*, then it *sends* once none of those that its plan
puts before it is offered or sending (who is late to offer keeps nobody waiting). What is
passed on while it still comes (*cut through*) is offered when the first chunk of each input has come, and has not
arrived before the last chunk of the last input has passed, too: what a stream that runs dry would leave of its link to
others in between is not modelled.

Links are shared as TCP would in the long run: nobody goes faster than its pace, and what some cannot use of a link, be
it for their pace or for their other link, the others have in equal parts (max-min fairness). Each link has a *level*:
what a transfer may have of it at most. It follows from the levels of the other links of its transfers, so a change goes
on from link to link until nothing changes any more. What changes at one instant is shared out once, before time goes on
or a rate is looked at: many transfers that share a link begin and end together.

Times are in ns, rates in bits per ns.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.planning.fluid.jit import compiled, entry, inner

__all__ = [
    "CUT",
    "INPUT",
    "NEXT",
    "NOBODY",
    "Column",
    "Field",
    "cancel",
    "enter",
    "grown",
    "make_field",
    "release",
    "run",
    "set_rates",
]

MOST_LOOKS = 400  # at links for one change; far more than it takes, but for rounding that goes on for ever
HELD, OFFERED, SENDING, OVER = range(4)
INPUT, CUT, NEXT = range(3)
"""Edges: what is sent on when it is complete, what is sent on while it comes, what the plan lets start after."""
NOBODY = -1
DRAIN, OFFER, CHUNK, ARRIVE, LATE = range(5)
"""Events: the last bit leaves, it is offered, its first chunk comes, it is there, it keeps nobody waiting any more."""
KINDS = 5
IDLE, COUNTS, DONE = range(3)
EVENTS, FREE_EDGE, LOGGED, EDGES_LEFT, QUEUE_HEAD, QUEUED = range(6)

_FLOW = np.dtype(
    [(name, np.float64) for name in (
        "bits", "left", "bps", "since", "pace", "chunk", "tail", "ready", "latency", "patience", "began", "drained",
        "ended",
    )]
    + [(name, np.int64) for name in (
        "state", "waits", "ahead", "coming", "told", "chunked", "edges", "befores", "fed",
    )]
)  # fmt: skip
_EDGE = np.dtype([(name, np.int64) for name in ("early", "late", "kind", "state", "following", "before")])


class Column(IntEnum):
    """Of the table that ``enter`` takes; rates in bits per ns, times in ns, links by number, -1 for none.

    PATIENCE: how long after its begin a transfer ceases to keep others waiting; TOLD: whether ``run`` stops when it has
    arrived; HOLDS: how many releases it waits for.
    """

    UP = 0
    DOWN = 1
    BITS = 2
    PACE = 3
    CHUNK = 4
    READY = 5
    LATENCY = 6
    PATIENCE = 7
    TOLD = 8
    HOLDS = 9


class Field(NamedTuple):
    """All transfers under way, edges between them, and what is to happen.

    ``now`` is the instant that was reached.

    ``heap`` has events by time, each by the number of its transfer and its kind; by event, ``when`` it happens and its
    place in the heap, NOBODY if it does not. ``levels`` are what a transfer may have of each link, ``wanted`` is how
    many there are on it; ``queue`` is a ring of links to be looked at, which ``marks`` has. ``head`` is by link (up
    links first) the first transfer on it. By transfer, ``ends`` are its two links, ``after`` and ``before`` the next
    ones on each; ``carried`` the bits of all that are through. ``log`` has the transfers that arrived since it was last
    emptied.
    """

    now: NDArray[np.float64]
    flows: NDArray[Any]
    ends: NDArray[np.int64]
    after: NDArray[np.int64]
    before: NDArray[np.int64]
    edges: NDArray[Any]
    heap: NDArray[np.int64]
    when: NDArray[np.float64]
    places: NDArray[np.int64]
    rates: NDArray[np.float64]
    levels: NDArray[np.float64]
    marks: NDArray[np.int64]
    queue: NDArray[np.int64]
    wanted: NDArray[np.float64]
    head: NDArray[np.int64]
    carried: NDArray[np.float64]
    log: NDArray[np.int64]
    scalars: NDArray[np.int64]


def make_field(links: int, flows: int, edges: int) -> Field:
    """Return an empty field with room for so many transfers and edges between them."""
    made, scalars = np.zeros(edges, _EDGE), np.zeros(6, np.int64)
    made["following"] = np.arange(1, edges + 1)
    scalars[EDGES_LEFT] = edges
    ints = np.int64
    ends, after, before = (np.full((flows, 2), NOBODY) for _ in range(3))
    return Field(
        np.zeros(1), np.zeros(flows, _FLOW), ends, after, before, made,
        np.zeros(KINDS * flows, ints), np.zeros(KINDS * flows), np.full(KINDS * flows, NOBODY, ints),
        np.ones(links), np.ones(links), np.zeros(links, ints), np.zeros(links, ints),
        np.zeros(links), np.full(links, NOBODY, ints), np.zeros(links), np.zeros(flows, ints), scalars,
    )  # fmt: skip


def grown(field: Field, flows: int, edges: int) -> Field:
    """Return a field with so much more room, and in it what is in another one.

    The list of free edges ends with the first edge that there was no room for; so it goes on with the new ones.
    """
    links, former = len(field.rates), len(field.edges)
    larger = make_field(links, flows, edges)
    for kept, room in zip(field, larger, strict=True):
        room[: len(kept)] = kept
    larger.scalars[EDGES_LEFT] += edges - former
    return larger


# What is to happen: for each transfer at most one event of each kind, in a heap by time


@compiled
def _settle(field, event, n):
    """Give an event its place in the heap, of which the n-th is free."""
    heap, when, places, count = field.heap, field.when, field.places, field.scalars[EVENTS]
    at = when[event]
    while n > 0:
        above = (n - 1) // 2
        if when[heap[above]] <= at:
            break
        heap[n] = heap[above]
        places[heap[n]] = n
        n = above
    while True:
        below = 2 * n + 1
        if below >= count:
            break
        if below + 1 < count and when[heap[below + 1]] < when[heap[below]]:
            below += 1
        if at <= when[heap[below]]:
            break
        heap[n] = heap[below]
        places[heap[n]] = n
        n = below
    heap[n] = event
    places[event] = n


@compiled
def schedule(field, f, kind, at):
    """Let something happen to a transfer at an instant, and not at another one."""
    event = KINDS * f + kind
    field.when[event] = at
    if field.places[event] < 0:
        field.places[event] = field.scalars[EVENTS]
        field.scalars[EVENTS] += 1
    _settle(field, event, field.places[event])


@compiled
def call_off(field, event):
    """Take an event off the heap, if it is there."""
    n = field.places[event]
    if n >= 0:
        field.places[event] = NOBODY
        field.scalars[EVENTS] -= 1
        last = field.heap[field.scalars[EVENTS]]
        if last != event:
            _settle(field, last, n)


@compiled
def call_all_off(field, f):
    """Let nothing more happen to a transfer."""
    for kind in range(KINDS):
        call_off(field, KINDS * f + kind)


# What links carry


@inner
def _side(field, f, link):
    """Which end of a transfer a link is."""
    return 0 if field.ends[f, 0] == link else 1


@inner
def _limit(field, f, link):
    """How fast a transfer may go but for one of its links."""
    other, pace = field.ends[f, 1 - _side(field, f, link)], field.flows[f].pace
    return min(pace, field.levels[other]) if other >= 0 else pace


@inner
def _after(field, f, link):
    """The next transfer on a link."""
    return field.after[f, _side(field, f, link)]


@compiled
def _relevel(field, link):
    """Find what each transfer may have of a link, so that those who can use it share what the others leave of it.

    Return whether that is something else than before. Where all are limited elsewhere it is the whole link.
    """
    rate, wanted = field.rates[link], field.wanted[link]
    level = rate / max(1.0, wanted)
    while wanted > 0.0:
        left, able = rate, wanted
        f = field.head[link]
        while f >= 0:
            limit = _limit(field, f, link)
            if limit < level:
                left -= limit
                able -= 1.0
            f = _after(field, f, link)
        found = left / able if able > 0.0 else rate
        if found <= level * (1.0 + 1e-12):
            break
        level = found
        if able == 0.0:
            break
    changed = abs(level - field.levels[link]) > 1e-9 * level
    field.levels[link] = level
    return changed


@compiled
def _reshare(field, f):
    """Settle what a transfer has sent, and give it the rate that its links have for it now."""
    flow, now = field.flows[f], field.now[0]
    bps = flow.pace
    for link in field.ends[f]:
        if link >= 0:
            bps = min(bps, field.levels[link])
    if bps == flow.bps:
        return
    flow.left = max(0.0, flow.left - (now - flow.since) * flow.bps)
    flow.since, flow.bps = now, bps
    schedule(field, f, DRAIN, now + flow.left / bps)


@inner
def _look_at(field, link):
    """Have a link looked at, unless it is to be, or is none."""
    if link >= 0 and field.marks[link] == 0:
        field.marks[link] = 1
        field.queue[(field.scalars[QUEUE_HEAD] + field.scalars[QUEUED]) % len(field.queue)] = link
        field.scalars[QUEUED] += 1


@compiled
def share_out(field):
    """Share out what the links carry that are to be looked at, and all that depend on them."""
    looks = MOST_LOOKS + 4 * field.scalars[QUEUED]
    while field.scalars[QUEUED] > 0:
        link = field.queue[field.scalars[QUEUE_HEAD]]
        field.scalars[QUEUE_HEAD] = (field.scalars[QUEUE_HEAD] + 1) % len(field.queue)
        field.scalars[QUEUED] -= 1
        field.marks[link] = 0
        looks -= 1
        changed = _relevel(field, link)
        f = field.head[link]
        while f >= 0:
            if changed and looks > 0:
                _look_at(field, field.ends[f, 1 - _side(field, f, link)])
            _reshare(field, f)
            f = _after(field, f, link)


@compiled
def enter_links(field, f):
    """Put a transfer on its links; it has no rate before these are shared out."""
    for side in range(2):
        link = field.ends[f, side]
        if link >= 0:
            field.wanted[link] += 1.0
            first = field.head[link]
            field.before[f, side], field.after[f, side], field.head[link] = NOBODY, first, f
            if first >= 0:
                field.before[first, side] = f
            _look_at(field, link)


@compiled
def leave_links(field, f):
    """Take a transfer that has sent everything off its links; the others have its part when these are shared out."""
    for side in range(2):
        link, before, after = field.ends[f, side], field.before[f, side], field.after[f, side]
        if link >= 0:
            field.wanted[link] -= 1.0
            field.carried[link] += field.flows[f].bits
            if before >= 0:
                field.after[before, side] = after
            else:
                field.head[link] = after
            if after >= 0:
                field.before[after, side] = before
            _look_at(field, link)


@compiled
@entry
def set_rates(field, rates):
    """Give all links other rates from now on."""
    for link in range(len(rates)):
        if field.rates[link] != rates[link]:
            field.rates[link] = rates[link]
            _look_at(field, link)
    share_out(field)


# What happens to a transfer


@compiled
def _start(field, f):
    """Let a transfer send."""
    flow, now = field.flows[f], field.now[0]
    flow.state, flow.began, flow.since, flow.bps, flow.left = SENDING, now, now, 0.0, flow.bits
    schedule(field, f, DRAIN, np.inf if field.ends[f].max() >= 0 else now)
    enter_links(field, f)
    if flow.edges >= 0:
        share_out(field)
    if flow.bps > 0.0:
        schedule(field, f, CHUNK, now + min(flow.chunk, flow.bits) / flow.bps + flow.latency)
    if flow.patience < np.inf:
        schedule(field, f, LATE, now + flow.patience)


# Who waits for whom


@compiled
def _have_one(field, f):
    """Note that one of those things has come for which a transfer is held."""
    flow = field.flows[f]
    flow.waits -= 1
    if flow.waits == 0:
        schedule(field, f, OFFER, max(field.now[0], flow.ready))


@compiled
@entry
def release(field, f, at):
    """Hold a transfer no longer for one of its releases, and let it not begin before an instant."""
    field.flows[f].ready = max(field.flows[f].ready, at)
    _have_one(field, f)


@compiled
def _offer(field, f):
    """Offer a transfer; it starts unless one that is planned before it is offered or sending."""
    flow = field.flows[f]
    flow.state, flow.ahead = OFFERED, 0
    at = flow.befores
    while at >= 0:
        edge = field.edges[at]
        if edge.kind == NEXT and edge.state == IDLE and edge.early >= 0:
            state = field.flows[edge.early].state
            if state in (OFFERED, SENDING):
                edge.state = COUNTS
                flow.ahead += 1
        at = edge.before
    if flow.ahead == 0:
        _start(field, f)


@compiled
def _let_pass(field, f):
    """Keep nobody waiting any more."""
    at = field.flows[f].edges
    while at >= 0:
        edge = field.edges[at]
        if edge.kind == NEXT and edge.late >= 0:
            if edge.state == COUNTS:
                late = field.flows[edge.late]
                late.ahead -= 1
                if late.ahead == 0 and late.state == OFFERED:
                    _start(field, edge.late)
            edge.state = DONE
        at = edge.following


@compiled
def _come_first_chunks(field, f):
    """Let what passes a transfer on while it comes be offered."""
    flow = field.flows[f]
    if flow.chunked == 0:
        flow.chunked = 1
        at = flow.edges
        while at >= 0:
            edge = field.edges[at]
            if edge.kind == CUT:
                _have_one(field, edge.late)
            at = edge.following


@compiled
def _come_whole(field, f):
    """Tell those that pass a transfer on that it is complete."""
    now, at = field.now[0], field.flows[f].edges
    if at >= 0:
        share_out(field)
    while at >= 0:
        edge = field.edges[at]
        if edge.kind == INPUT:
            _have_one(field, edge.late)
        elif edge.kind == CUT:
            late = field.flows[edge.late]
            late.coming -= 1
            late.ready = max(late.ready, now + (late.tail / late.bps if late.bps > 0.0 else 0.0))
            if late.coming == 0 and late.state == OVER:
                schedule(field, edge.late, ARRIVE, late.ready + late.latency)
        at = edge.following


@inner
def _free_edge(field, at):
    """Give up an edge if both of its ends are over."""
    edge = field.edges[at]
    if edge.early == NOBODY and edge.late == NOBODY:
        edge.following, field.scalars[FREE_EDGE] = field.scalars[FREE_EDGE], at
        field.scalars[EDGES_LEFT] += 1


@compiled
def _free_edges(field, f):
    """Give up the edges of a transfer whose other end is over, too."""
    at = field.flows[f].edges
    while at >= 0:
        edge, this = field.edges[at], at
        at, edge.early = edge.following, NOBODY
        _free_edge(field, this)
    at = field.flows[f].befores
    while at >= 0:
        edge, this = field.edges[at], at
        at, edge.late = edge.before, NOBODY
        _free_edge(field, this)
    field.flows[f].edges, field.flows[f].befores = NOBODY, NOBODY


@compiled
@entry
def enter(field, ids, table, edges):
    """Enter transfers, each under a number that nobody has.

    Args:
        table: a row for each, see ``Column``.
        edges: rows (early, late, kind) of numbers; both ends are entered, and the early one has not arrived.
    """
    for i in range(len(ids)):
        flow, row = field.flows[ids[i]], table[i]
        field.ends[ids[i], 0], field.ends[ids[i], 1], flow.bits, flow.pace = int(row[0]), int(row[1]), row[2], row[3]
        flow.chunk, flow.tail, flow.ready, flow.latency, flow.patience = row[4], row[4], row[5], row[6], row[7]
        flow.told, flow.waits = int(row[8]), int(row[9])
        flow.state, flow.ahead, flow.coming, flow.chunked, flow.fed = HELD, 0, 0, 0, 0
        flow.edges, flow.befores, flow.bps, flow.left, flow.began, flow.ended = NOBODY, NOBODY, 0.0, 0.0, -1.0, -1.0
    for n in range(len(edges)):
        at = field.scalars[FREE_EDGE]
        edge = field.edges[at]
        field.scalars[FREE_EDGE] = edge.following
        field.scalars[EDGES_LEFT] -= 1
        early, late = field.flows[edges[n, 0]], field.flows[edges[n, 1]]
        edge.early, edge.late, edge.kind, edge.state = edges[n, 0], edges[n, 1], edges[n, 2], IDLE
        edge.following, edge.before = early.edges, late.befores
        early.edges, late.befores = at, at
        late.waits += 1 if edge.kind != NEXT else 0
        late.fed += 1 if edge.kind != NEXT else 0
        late.coming += 1 if edge.kind == CUT else 0
    for i in range(len(ids)):
        if field.flows[ids[i]].waits == 0:
            schedule(field, ids[i], OFFER, max(field.now[0], field.flows[ids[i]].ready))


@compiled
def _drain(field, f):
    """Note that the last bit of a transfer has left."""
    flow = field.flows[f]
    flow.left, flow.state, flow.drained = 0.0, OVER, field.now[0]
    leave_links(field, f)
    if flow.coming == 0:
        schedule(field, f, ARRIVE, max(field.now[0], flow.ready) + flow.latency)


@compiled
def _arrive(field, f):
    """Note that the last bit of a transfer has come."""
    field.flows[f].ended = field.now[0]
    call_all_off(field, f)
    _let_pass(field, f)
    _come_first_chunks(field, f)
    _come_whole(field, f)
    _free_edges(field, f)
    field.log[field.scalars[LOGGED]] = f
    field.scalars[LOGGED] += 1


@compiled
@entry
def cancel(field, f):
    """Break a transfer off that has not arrived; what carries it on must be broken off, too."""
    flow = field.flows[f]
    if flow.state == SENDING:
        flow.bits -= max(0.0, flow.left - (field.now[0] - flow.since) * flow.bps)
        leave_links(field, f)
    flow.state = OVER
    call_all_off(field, f)
    _let_pass(field, f)
    _free_edges(field, f)


@compiled
@entry
def run(field, until):
    """Go on until an instant, or until a transfer has arrived that is to be told of; return that, or NOBODY."""
    while True:
        at = field.when[field.heap[0]] if field.scalars[EVENTS] > 0 else np.inf
        if at > field.now[0] and field.scalars[QUEUED] > 0:
            share_out(field)
            continue
        if at > until or at == np.inf:
            break
        field.now[0] = max(field.now[0], at)
        f, kind = field.heap[0] // KINDS, field.heap[0] % KINDS
        call_off(field, field.heap[0])
        if kind == DRAIN:
            _drain(field, f)
        elif kind == OFFER:
            _offer(field, f)
        elif kind == CHUNK:
            _come_first_chunks(field, f)
        elif kind == LATE:
            _let_pass(field, f)
        else:
            _arrive(field, f)
            if field.flows[f].told:
                return f
    if until < np.inf:
        field.now[0] = max(field.now[0], until)
    return NOBODY
