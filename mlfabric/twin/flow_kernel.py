# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Bytes on links in virtual time, compiled: transfers that share links, wait for one another and carry sums on.

A transfer is *held* until what it is made of is there, then *offered*, then it *sends* once none of those that its plan
puts before it is offered or sending (who is late to offer keeps nobody waiting). How fast is in ``flow_links``. What is
passed on while it still comes (*cut through*) is offered when the first chunk of each input has come, and has not
arrived before the last chunk of the last input has passed, too: what a stream that runs dry would leave of its link to
others in between is not modelled.

Times are in ns, rates in bits per ns.
"""

from __future__ import annotations

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled
from mlfabric.twin.flow_field import (
    ARRIVE,
    CHUNK,
    COUNTS,
    CUT,
    DONE,
    DRAINS,
    EDGES_LEFT,
    EVENTS,
    FREE_EDGE,
    HELD,
    IDLE,
    INPUT,
    LATE,
    LOGGED,
    NEXT,
    NOBODY,
    OFFER,
    OFFERED,
    OVER,
    QUEUED,
    SENDING,
    SOON,
    drop,
    put,
    settle_place,
    take_first_drain,
)
from mlfabric.twin.flow_links import enter_links, leave_links, share_out

__all__ = ["cancel", "enter", "release", "run"]


@compiled
def _start(field, f):
    """Let a transfer send."""
    flow, now = field.flows[f], field.now[0]
    flow.state, flow.began, flow.since, flow.bps, flow.left = SENDING, now, now, 0.0, flow.bits
    flow.due = np.inf if flow.up >= 0 or flow.down >= 0 else now
    flow.place = field.scalars[DRAINS]
    field.drains[flow.place] = f
    field.scalars[DRAINS] += 1
    settle_place(field, flow.place)
    enter_links(field, f)
    if flow.edges >= 0:
        share_out(field)
    if flow.bps > 0.0:
        put(field, now + min(flow.chunk, flow.bits) / flow.bps + flow.latency, f, CHUNK)
    if flow.patience < np.inf:
        put(field, now + flow.patience, f, LATE)


# Who waits for whom


@compiled
def _have_one(field, f):
    """Note that one of those things has come for which a transfer is held."""
    flow = field.flows[f]
    flow.waits -= 1
    if flow.waits == 0:
        put(field, max(field.now[0], flow.ready), f, OFFER)


@compiled
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
                put(field, late.ready + late.latency, edge.late, ARRIVE)
        at = edge.following


@compiled
def _free_edges(field, f):
    """Give up the edges of a transfer whose other end is over, too."""
    at = field.flows[f].edges
    while at >= 0:
        edge, this = field.edges[at], at
        at = edge.following
        edge.early = NOBODY
        if edge.late == NOBODY:
            edge.following, field.scalars[FREE_EDGE] = field.scalars[FREE_EDGE], this
            field.scalars[EDGES_LEFT] += 1
    at = field.flows[f].befores
    while at >= 0:
        edge, this = field.edges[at], at
        at = edge.before
        edge.late = NOBODY
        if edge.early == NOBODY:
            edge.following, field.scalars[FREE_EDGE] = field.scalars[FREE_EDGE], this
            field.scalars[EDGES_LEFT] += 1
    field.flows[f].edges, field.flows[f].befores = NOBODY, NOBODY


@compiled
def enter(field, ids, table, edges):
    """Enter transfers, each under a number that nobody has.

    Args:
        table: a row for each, see ``Column``.
        edges: rows (early, late, kind) of numbers; both ends are entered, and the early one has not arrived.
    """
    for i in range(len(ids)):
        flow, row = field.flows[ids[i]], table[i]
        flow.up, flow.down, flow.bits, flow.pace = int(row[0]), int(row[1]), row[2], row[3]
        flow.chunk, flow.tail, flow.ready, flow.latency, flow.patience = row[4], row[4], row[5], row[6], row[7]
        flow.told, flow.waits = int(row[8]), int(row[9])
        flow.serial += 1
        flow.weight = 1.0
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
            put(field, max(field.now[0], field.flows[ids[i]].ready), ids[i], OFFER)


@compiled
def _drain(field, f):
    """Note that the last bit of a transfer has left."""
    flow = field.flows[f]
    flow.left, flow.state, flow.drained = 0.0, OVER, field.now[0]
    leave_links(field, f)
    if flow.coming == 0:
        put(field, max(field.now[0], flow.ready) + flow.latency, f, ARRIVE)


@compiled
def _arrive(field, f):
    """Note that the last bit of a transfer has come."""
    field.flows[f].ended = field.now[0]
    _let_pass(field, f)
    _come_first_chunks(field, f)
    _come_whole(field, f)
    _free_edges(field, f)
    field.log[field.scalars[LOGGED]] = f
    field.scalars[LOGGED] += 1


@compiled
def cancel(field, f):
    """Break a transfer off that has not arrived; what carries it on must be broken off, too."""
    flow = field.flows[f]
    if flow.state == SENDING:
        flow.bits -= max(0.0, flow.left - (field.now[0] - flow.since) * flow.bps)
        place = flow.place
        field.scalars[DRAINS] -= 1
        if place < field.scalars[DRAINS]:
            field.drains[place] = field.drains[field.scalars[DRAINS]]
            settle_place(field, place)
        leave_links(field, f)
    flow.state = OVER
    flow.serial += 1
    _let_pass(field, f)
    _free_edges(field, f)


@compiled
def run(field, until, heed):
    """Go on until an instant, or until a transfer has arrived that is to be told of; return that, or NOBODY.

    What is to be told of soon is told of within ``heed``. ``now[1]`` says when something is to happen next.
    """
    while True:
        event_at = field.events[0].at if field.scalars[EVENTS] > 0 else np.inf
        drain_at = field.flows[field.drains[0]].due if field.scalars[DRAINS] > 0 else np.inf
        at = min(event_at, drain_at)
        if at > field.now[0] and field.scalars[QUEUED] > 0:
            share_out(field)
            continue
        field.now[1] = at
        if at > until or at == np.inf:
            break
        field.now[0] = max(field.now[0], at)
        if drain_at < event_at:
            _drain(field, take_first_drain(field))
            continue
        f, kind, serial = field.events[0].flow, field.events[0].kind, field.events[0].serial
        drop(field)
        if serial != field.flows[f].serial:
            continue
        if kind == OFFER:
            _offer(field, f)
        elif kind == CHUNK:
            _come_first_chunks(field, f)
        elif kind == LATE:
            _let_pass(field, f)
        else:
            _arrive(field, f)
            if field.flows[f].told == SOON:
                until = min(until, field.now[0] + heed)
            elif field.flows[f].told:
                return f
    if until < np.inf:
        field.now[0] = max(field.now[0], until)
    return NOBODY
