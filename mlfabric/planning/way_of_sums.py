"""The input and the result of the ways of forwarding (direct, trees)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlfabric.planning.fluid.capacity_lists import Ints, Lines
from mlfabric.planning.plan import Transfer
from mlfabric.planning.problem import Objective, Shape
from mlfabric.planning.profiles import Profiles
from mlfabric.protocol import UpdateId

__all__ = ["Forwarding", "Lot"]


class Lot(NamedTuple):
    """Updates in the order in which they are to be committed, to one destination; lists and columns by place.

    ``fixed``: how many of the first go directly in any plan (the last of them is in flight already).
    ``direct``: each one's profile if it goes directly, found by the ordering, as columns; None to plan them in this
    order.
    ``planned``: False for updates in flight before, whose profiles are reserved already.
    """

    updates: Sequence[UpdateId]
    sources: Sequence[str]
    bits: Ints
    ready_ns: Ints
    fixed: int
    direct: Profiles | None
    planned: Sequence[bool]

    def part(self, begin: int, end: int) -> Lot:
        """Return the updates at some places; the fixed ones are among the first."""
        return Lot(
            updates=self.updates[begin:end],
            sources=self.sources[begin:end],
            bits=self.bits[begin:end],
            ready_ns=self.ready_ns[begin:end],
            fixed=0 if begin else self.fixed,
            direct=None if begin else self.direct,
            planned=self.planned[begin:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """One way to bring a lot to its destination.

    Args:
        arrive_ns: by place, when its group has arrived.
        groups: (first, end) places of each group; a group of several arrives as one sum.
        last: by group, the index in ``transfers`` of the one that ends at the destination.
        transfers: in an order in which inputs come before what is made of them.
        lines: what is free when all of them are reserved.
    """

    shape: Shape
    arrive_ns: Ints
    groups: Sequence[tuple[int, int]]
    last: Sequence[int]
    transfers: Sequence[Transfer]
    lines: Lines

    def cost(self, objective: Objective, now_ns: int) -> int:
        """Return the sum of commit times, or the last, from ``now_ns`` on; commits follow the order of the lot."""
        if not len(self.arrive_ns):
            return 0
        if objective is Objective.LAST_COMMIT:
            return max(0, int(self.arrive_ns.max()) - now_ns)
        reached, total = now_ns, 0
        for arrive_ns in self.arrive_ns.tolist():
            reached = max(reached, arrive_ns)
            total += reached - now_ns
        return total
