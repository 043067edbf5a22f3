"""The result of the ways of forwarding (direct, trees)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.capacity_lists import Ints, Lines
from mlfabric.planning.plan import Transfer
from mlfabric.planning.problem import Objective, Shape

__all__ = ["Forwarding"]


class Forwarding(NamedTuple):
    """One way to bring a lot to its destination.

    Args:
        arrive_ns: by place, when its group has arrived.
        until: where each group begins, and where the last one ends; a group of several arrives as one sum.
        last: by group, the index in ``transfers`` of the one that ends at the destination.
        transfers: in an order in which inputs come before what is made of them.
        lines: returns what is free when all of them are reserved.
    """

    shape: Shape
    arrive_ns: Ints
    until: Sequence[int]
    last: Sequence[int]
    transfers: Sequence[Transfer]
    lines: Callable[[], Lines]

    def cost(self, objective: Objective, now_ns: int) -> int:
        """Return the sum of commit times, or the last, from ``now_ns`` on; commits follow the order of the lot."""
        commit_ns: list[int] = np.maximum.accumulate(np.maximum(self.arrive_ns, now_ns)).tolist()
        if objective is Objective.LAST_COMMIT:
            return commit_ns[-1] - now_ns if commit_ns else 0
        return sum(commit_ns) - now_ns * len(commit_ns)
