"""Distributors store a model, then hand it on: one level, algorithm 3 mirrored in time (paper, section 10.3).

With the gets h_1, h_2, ... of a fan in the order in which the server alone would answer them, case (m, n) is:

1. The server sends the model to the first m distributors in turn, then answers n gets in turn: the first of h that are
   not on a host of these distributors. T is when the last of these transfers ends.
2. Gets on the host of a distributor in use are answered when it has the model; nothing is sent for them.
3. The other gets, in turn, go to the first distributor as long as it has room (``most_updates``; gets on its own host
   do not count) and would be through by T, then to the second, and so on; the last takes the rest. What nobody has
   room for is answered by the server after all.
4. The case is void if a distributor answers nothing, or if anything cannot be sent before the horizon.

m runs through 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and the number of distributors; n through the multiples of a 32th of
the gets (with lean effort of an eighth), rounded up, and all that are left. The cheapest case is taken if it costs less
than direct; ties: the largest n, then the smallest m.
"""

from __future__ import annotations

import numpy as np

from mlfabric.scheduler.planning.fans import Fan, Way
from mlfabric.scheduler.planning.fluid import handing_kernel
from mlfabric.scheduler.planning.fluid.lines import Ints
from mlfabric.scheduler.planning.fluid.wide import LOW_BITS, LOW_MASK
from mlfabric.scheduler.planning.problem import Effort, Shape

__all__ = ["hand_on"]

MOST_STEPS = {Effort.FULL: 32, Effort.LEAN: 8}


def hand_on(fan: Fan, limit_ns: int, effort: Effort = Effort.FULL) -> Way | None:
    """Return the cheapest way; None if none costs less than ``limit_ns``."""
    lines, routes, handing = fan.world.lines, fan.world.routes, fan.handing
    step = -(-len(fan.gets) // MOST_STEPS[effort])
    limit = limit_ns >> LOW_BITS, limit_ns & LOW_MASK
    directly, used = handing_kernel.best_case(lines, routes, handing, _sets(len(fan.distributors)), step, limit)
    if not used:
        return None
    (high, low), rows, pieces, _ = handing_kernel.plan_case(lines, routes, handing, used, directly)
    return Way.of(Shape.STORED, (high << LOW_BITS) + low, rows, pieces)


def _sets(count: int) -> Ints:
    """How many distributors to try: powers of two and halfway between, and all."""
    tried = {1, count}
    for power in range(1, count.bit_length()):
        tried |= {1 << power, 3 << (power - 1)}
    return np.array(sorted(used for used in tried if used <= count), np.int64)
