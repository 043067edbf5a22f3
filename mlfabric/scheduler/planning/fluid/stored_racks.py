# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""What a lot brings into the racks of its aggregators, compiled.

On an oversubscribed network the links into a host are not what is scarce: what goes to any aggregator of a rack shares
the few links into that rack. They are the last but one of the routes to aggregators; not of routes of two links, on
which the last but one is the source's own. Stars have no racks.
"""

from __future__ import annotations

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled
from mlfabric.scheduler.planning.fluid.wide import ENOUGH_BITS

__all__ = ["bits_into", "rack_links"]


@compiled
def rack_links(lines, routes, load):
    """By link, whether it leads into a rack that holds aggregators."""
    found = np.zeros(len(lines.head), np.bool_)
    if routes.link.shape[1] > 2:
        for shift in load.shift:
            for i in range(len(load.route)):
                route = load.route[i] + shift
                if routes.hops[route] > 2:
                    found[routes.link[route, routes.hops[route] - 2]] = True
    return found


@compiled
def crosses(routes, route, links):
    """Whether a route crosses one of some links."""
    found = False
    for hop in range(routes.hops[route]):
        found |= links[routes.link[route, hop]]
    return found


@compiled
def always_crosses(routes, load, i, links):
    """Whether an update crosses one of some links whichever aggregator it goes to."""
    found = True
    for shift in load.shift:
        found &= crosses(routes, load.route[i] + shift, links)
    return found


@compiled
def bits_into(routes, load, planned, links):
    """By place, the bits that all updates before it bring over some links: by way of any aggregator; if directly.

    What is not planned is on its way already, and brings nothing any more. Both are empty if no link is given.
    """
    grouped, directly = np.zeros((2, len(load.bits) + 1 if links.any() else 0), np.int64)
    for i in range(len(grouped) - 1):
        grouped[i + 1], directly[i + 1] = grouped[i], directly[i]
        if always_crosses(routes, load, i, links):
            grouped[i + 1] = min(grouped[i] + load.bits[i], ENOUGH_BITS)
        if planned[i] == 1 and crosses(routes, load.route[i], links):
            directly[i + 1] = min(directly[i] + load.bits[i], ENOUGH_BITS)
    return grouped, directly
