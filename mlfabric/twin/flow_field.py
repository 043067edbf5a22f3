# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Transfers under way as arrays, and the two heaps of what is to happen to them; what they do is in ``flow_kernel``.

Times are in ns, rates in bits per ns.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.scheduler.planning.fluid.jit import compiled

__all__ = ["CUT", "INPUT", "NEXT", "NOBODY", "Column", "Field", "grown", "make_field"]

HELD, OFFERED, SENDING, OVER = range(4)
INPUT, CUT, NEXT = range(3)
"""Edges: what is sent on when it is complete, what is sent on while it comes, what the plan lets start after."""
NOBODY = -1
OFFER, CHUNK, ARRIVE, LATE = range(4)
SOON = 2
IDLE, COUNTS, DONE = range(3)
EVENTS, DRAINS, FREE_EDGE, LOGGED, EDGES_LEFT, QUEUE_HEAD, QUEUED = range(7)

_FLOW = np.dtype(
    [(name, np.float64) for name in (
        "bits", "left", "bps", "since", "pace", "chunk", "tail", "ready", "latency", "patience", "began", "drained",
        "ended", "due", "weight",
    )]
    + [(name, np.int64) for name in (
        "up", "down", "state", "waits", "ahead", "coming", "serial", "told", "chunked", "edges", "befores",
        "place", "fed", "up_next", "up_last", "down_next", "down_last",
    )]
)  # fmt: skip
_EDGE = np.dtype([(name, np.int64) for name in ("early", "late", "kind", "state", "following", "before")])
_EVENT = np.dtype([("at", np.float64), ("flow", np.int64), ("kind", np.int64), ("serial", np.int64)])


class Column(IntEnum):
    """Of the table that ``enter`` takes; rates in bits per ns, times in ns, links by number, -1 for none.

    PATIENCE: how long after its begin a transfer ceases to keep others waiting; TOLD: whether ``run`` stops when it has
    arrived, SOON if a little later will do; HOLDS: how many releases it waits for.
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

    ``now`` is the instant that was reached, and the one at which ``run`` last found that something is to happen.

    ``events`` is a heap by time; ``drains`` is one of transfers by when their last bit leaves. ``levels`` are what
    a transfer may have of each link for each 1 of its weight, ``wanted`` is the sum of their weights, multiples of 1/64
    that add up exactly; ``queue`` is a ring of links to be looked at, which ``marks`` has. ``head`` is by link (up
    links first) the first transfer on it, ``carried`` the bits of all that are through. ``log`` has the transfers that
    arrived since it was last emptied.
    """

    now: NDArray[np.float64]
    flows: NDArray[Any]
    edges: NDArray[Any]
    events: NDArray[Any]
    drains: NDArray[np.int64]
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
    made, scalars = np.zeros(edges, _EDGE), np.zeros(7, np.int64)
    made["following"] = np.arange(1, edges + 1)
    scalars[EDGES_LEFT] = edges
    ints = np.int64
    return Field(
        np.zeros(2), np.zeros(flows, _FLOW), made, np.zeros(5 * flows, _EVENT), np.zeros(flows, ints), np.ones(links),
        np.ones(links), np.zeros(links, ints), np.zeros(links, ints),
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


@compiled
def put(field, at, f, kind):
    """Add an event to the heap."""
    events, n = field.events, field.scalars[EVENTS]
    field.scalars[EVENTS] += 1
    while n > 0:
        above = (n - 1) // 2
        if events[above].at <= at:
            break
        events[n] = events[above]
        n = above
    event = events[n]
    event.at, event.flow, event.kind, event.serial = at, f, kind, field.flows[f].serial


@compiled
def drop(field):
    """Take the first event off the heap."""
    events = field.events
    field.scalars[EVENTS] -= 1
    count, n = field.scalars[EVENTS], 0
    while True:
        below = 2 * n + 1
        if below >= count:
            break
        if below + 1 < count and events[below + 1].at < events[below].at:
            below += 1
        if events[count].at <= events[below].at:
            break
        events[n] = events[below]
        n = below
    events[n] = events[count]


@compiled
def settle_place(field, n):
    """Move the n-th of the heap of drains to where it belongs."""
    drains, flows, count = field.drains, field.flows, field.scalars[DRAINS]
    f = drains[n]
    due = flows[f].due
    while n > 0:
        above = (n - 1) // 2
        if flows[drains[above]].due <= due:
            break
        drains[n] = drains[above]
        flows[drains[n]].place = n
        n = above
    while True:
        below = 2 * n + 1
        if below >= count:
            break
        if below + 1 < count and flows[drains[below + 1]].due < flows[drains[below]].due:
            below += 1
        if due <= flows[drains[below]].due:
            break
        drains[n] = drains[below]
        flows[drains[n]].place = n
        n = below
    drains[n] = f
    flows[f].place = n


@compiled
def take_first_drain(field):
    """Take the first off the heap of drains and return it."""
    f = field.drains[0]
    field.scalars[DRAINS] -= 1
    count = field.scalars[DRAINS]
    if count > 0:
        field.drains[0] = field.drains[count]
        settle_place(field, 0)
    return f
