"""Relaying a model while it still arrives (cut-through; not in the paper).

A distributor forwards what it has received, less one chunk, so a chain of n hosts has the model little later than one
host alone (``fluid/stream_kernel.py``). Gets and distributors are served one by one, each by the source from which the
model arrives earliest over the remaining capacity: the server, or a distributor that was served before. On equal links
this makes one chain until the server is free for the next. Slow hosts get the remaining bandwidth, and relay nothing
because nobody would get the model from them earliest. A distributor relays to at most ``most_updates`` others. Of
several sources with the same arrival the server is taken, then the one that was served first.

The order matters. These orders are tried, and the cheapest is used (ties: the first):

* as the server alone would answer them; or hosts of distributors first, so that many hosts soon have the model;
* hosts of distributors by the time that each needs to receive or to relay it, whichever is longer, so that slow relays
  come after fast ones;
* any of these with the slow hosts (more than twice the median of the time that each needs alone) first, slowest first,
  because they use a small share of the links for long;
* hosts of distributors first, after the model was sent to 1, 2, 4, ... distributors without a get; those that then
  relay it to nobody are left out again.

For more than 64 gets only these are tried: the first order, hosts of distributors first, and the latter after all
distributors without a get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mlfabric.network import HORIZON_NS
from mlfabric.planning.fans import Fan, Way
from mlfabric.planning.fluid import reserving, spread_kernel
from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.shortest import Transfers

__all__ = ["spread"]

MANY_GETS = 64


def spread(fan: Fan) -> Way | None:
    """Return the cheapest way found; None if there is none."""
    best: tuple[int, Ints, Ints] | None = None
    for items in _orders(fan):
        answered, rows, pieces = _served(fan, items)
        cost_ns = fan.cost_ns(answered.tolist())
        if int(answered.max()) < HORIZON_NS and (best is None or cost_ns < best[0]):
            best = cost_ns, rows, pieces
    return Way.of(*best) if best else None


def _served(fan: Fan, items: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Serve items in turn; repeat without the distributors that relay to nobody."""
    world = fan.world
    while True:
        answered, rows, pieces = spread_kernel.spread(world.lines, world.routes, fan.handing, np.array(items, np.int64))
        useful = {~by for by in rows[1:, 1].tolist()}
        needed = [item for item in items if item >= 0 or item in useful]
        if len(needed) == len(items):
            return answered, rows, pieces
        items = needed


def _alone_ns(fan: Fan, route: Ints, bits: Ints) -> list[int]:
    """By transfer, how long it would take alone, from when the model is ready."""
    ready_ns, unused = int(fan.handing.scalars[1]), np.zeros(len(route), np.int64)
    transfers = Transfers(route, bits, np.full(len(route), ready_ns), cap_bps=unused, common=unused)
    ends: Ints = reserving.solo_ends(fan.world.lines, fan.world.routes, transfers)
    spans: list[int] = (ends - ready_ns).tolist()
    return spans


def _onward_ns(fan: Fan, solo_ns: Sequence[int]) -> list[int]:
    """By distributor, how long it would need to relay the model to the get that is easiest to reach, except its own."""
    handing = fan.handing
    nearest = sorted(range(len(solo_ns)), key=solo_ns.__getitem__)
    to = [next((g for g in nearest if handing.own[g] != j), nearest[0]) for j in range(len(fan.distributors))]
    return _alone_ns(fan, handing.onward[range(len(to)), to], handing.bits[to])


def _orders(fan: Fan) -> Iterator[list[int]]:
    own = fan.handing.own.tolist()
    items = list(dict.fromkeys(~j if j >= 0 else g for g, j in enumerate(own)))
    own_items = set(items)
    by_order, helpers_first = items, sorted(items, key=lambda item: item >= 0)
    yield by_order
    if helpers_first != by_order:
        yield helpers_first
    relays = [~j for j in range(len(fan.distributors)) if ~j not in own_items]
    if len(own) > MANY_GETS:
        if relays:
            yield relays + helpers_first
        return
    solo_ns = _alone_ns(fan, fan.handing.direct, fan.handing.bits)
    span_ns = {~j if j >= 0 else g: solo_ns[g] for g, j in enumerate(own)}
    many_ns = 2 * sorted(solo_ns)[len(solo_ns) // 2]
    slow = [item for item in items if span_ns[item] > many_ns]
    slow.sort(key=lambda item: -span_ns[item])
    if slow:
        yield slow + [item for item in by_order if span_ns[item] <= many_ns]
        yield slow + [item for item in helpers_first if span_ns[item] <= many_ns]
    onward_ns = _onward_ns(fan, solo_ns)
    passing = sorted(helpers_first, key=lambda item: max(span_ns[item], onward_ns[~item]) if item < 0 else HORIZON_NS)
    if passing not in (by_order, helpers_first):
        yield passing
        if slow:
            yield slow + [item for item in passing if span_ns[item] <= many_ns]
    count = 1
    while relays and count < 2 * len(relays):
        yield relays[:count] + helpers_first
        if slow:
            yield relays[:count] + slow + [item for item in helpers_first if span_ns[item] <= many_ns]
        count *= 2
