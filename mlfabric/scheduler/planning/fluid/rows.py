# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""The primitives of ``lines.py`` for kernels that make thousands of transfers and keep pieces in one array, compiled.

They allocate nothing. The caller sees to it that there is room: ``flow`` counts pieces on where the rows end without
writing them, ``reserve`` needs what ``has_room`` asks for.
"""

from __future__ import annotations

from mlfabric.scheduler.planning.fluid.jit import inner
from mlfabric.scheduler.planning.fluid.lines import MOST_BPS, take_rows
from mlfabric.scheduler.planning.fluid.lines import flow as flow_from_the_first

__all__ = ["drop_heads", "flow", "has_room", "reserve"]


@inner
def flow(lines, routes, route, bits, ready_ns, rows, first):
    """Plan a transfer whose pieces become the rows from ``first`` on; return its end and the row behind them."""
    end_ns, count = flow_from_the_first(lines, routes, route, MOST_BPS, bits, ready_ns, rows[first:], len(rows) - first)
    return end_ns, first + count


@inner
def has_room(lines, routes, route, count):
    """Whether so many pieces can be reserved on a route."""
    return lines.used[0] + 2 * count * routes.hops[route] <= len(lines.at_ns)


@inner
def reserve(lines, routes, route, rows, first, end):
    """Take the pieces in ``rows[first:end]`` out of what is free on every link of a route."""
    take_rows(lines, routes, route, rows[first:end], end - first)


@inner
def drop_heads(lines, routes, route):
    """Move the heads of a route's lists on past what can never be used again."""
    for k in range(routes.hops[route]):
        link = routes.link[route, k]
        while lines.bps[lines.head[link]] <= 0 and lines.following[lines.head[link]] != 0:
            lines.head[link] = lines.following[lines.head[link]]
