"""Transfers in virtual time, from Python: entered many at a time, run until one arrives that somebody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.twin import flow_kernel as kernel
from mlfabric.twin.flow_kernel import EDGES_LEFT, LOGGED, NOBODY, Column, grown, make_field

__all__ = ["Edge", "Flows", "NewFlow", "Passed"]

_NO_EDGES = np.zeros((0, 3), np.int64)


class NewFlow(NamedTuple):
    """A row of the table that ``enter_table`` takes; times in ns, rates in bits per ns, links by number, -1 for none.

    ``chunk``: bits of it that must have come before they are passed on. ``patience``: how long after its begin it
    ceases to keep others waiting. ``told``: whether ``run`` stops when it has arrived. ``holds``: how many releases it
    waits for.
    """

    up: int
    down: int
    bits: float
    pace: float = np.inf
    chunk: float = 0.0
    ready_ns: float = 0.0
    latency_ns: float = 0.0
    patience_ns: float = np.inf
    told: bool = True
    holds: int = 0


Edge = tuple[int, int, int]
"""(early, late, kind), see ``flow_kernel``; transfers by place among the new ones, or ``~number`` of an older one."""


class Passed(NamedTuple):
    """A transfer that has arrived: its links (-1 for none), bits, when it began, could have sent its last bit for all
    that its links carry, and arrived; its pace, and how many it carried on of what others had brought."""

    up: int
    down: int
    bits: float
    began_ns: float
    drained_ns: float
    ended_ns: float
    pace: float
    inputs: int


class Flows:
    """Every transfer under way; ``now_ns`` is the instant that was reached.

    Args:
        rates: of all links in bits per ns, up links first.
    """

    def __init__(self, rates: NDArray[np.float64]) -> None:
        self._field = make_field(len(rates), 256, 1024)
        self._field.rates[:] = self._field.levels[:] = rates
        self._free = list(range(255, -1, -1))
        self.now_ns = 0.0

    @property
    def carried_bits(self) -> NDArray[np.float64]:
        """What each link has carried of transfers that are through."""
        return self._field.carried

    def set_rates(self, rates: NDArray[np.float64]) -> None:
        """Give all links other rates from now on."""
        kernel.set_rates(self._field, rates)

    def enter(self, flows: Sequence[NewFlow], edges: Sequence[Edge] = ()) -> list[int]:
        """Enter transfers and who waits for whom; return their numbers, which are theirs until they are freed."""
        table = np.array(flows, np.float64).reshape(-1, len(Column))
        return self.enter_table(table, np.array(edges, np.int64) if edges else _NO_EDGES)

    def enter_table(self, table: NDArray[np.float64], edges: NDArray[np.int64]) -> list[int]:
        """Enter transfers as ``enter`` does, given as columns."""
        self._make_room(len(table), len(edges))
        numbers = [self._free.pop() for _ in range(len(table))]
        ids = np.array(numbers, np.int64)
        if len(edges):
            edges = edges.copy()
            ends = edges[:, :2]
            ends[...] = np.where(ends >= 0, ids[np.maximum(ends, 0)], ~ends)
        kernel.enter(self._field, ids, table, edges)
        return numbers

    def release(self, number: int, at_ns: float) -> None:
        """Hold a transfer no longer for one of its releases, and let it not begin before an instant."""
        kernel.release(self._field, number, at_ns)

    def run(self, until_ns: float) -> int | None:
        """Go on until an instant, or until a transfer arrived that is to be told of; return its number, or None."""
        found = int(kernel.run(self._field, until_ns))
        self.now_ns = float(self._field.now[0])
        return None if found == NOBODY else found

    def cancel(self, numbers: Sequence[int]) -> None:
        """Break transfers off that have not arrived, with all that carry them on, and give up their numbers."""
        for number in numbers:
            kernel.cancel(self._field, number)
        self._free.extend(numbers)

    def span_ns(self, number: int) -> tuple[float, float]:
        """Return when a transfer that is not freed began and arrived; -1 for not yet."""
        flows = self._field.flows
        return flows["began"].item(number), flows["ended"].item(number)

    def spans_ns(self, numbers: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return when transfers began, and when they arrived."""
        flows = self._field.flows
        return flows["began"][numbers].tolist(), flows["ended"][numbers].tolist()

    def passed(self, numbers: Sequence[int]) -> list[Passed]:
        """Return what transfers were that have arrived and are not freed."""
        rows, ends = self._field.flows[list(numbers)], self._field.ends[list(numbers)].T.tolist()
        columns = (rows[name].tolist() for name in ("bits", "began", "drained", "ended", "pace", "fed"))
        return [Passed(*row) for row in zip(*ends, *columns, strict=True)]

    def crosses(self, numbers: Sequence[int], links: NDArray[np.bool_]) -> bool:
        """Return whether any of these transfers goes over a link that is marked."""
        return bool(np.append(links, False)[self._field.ends[list(numbers)]].any())

    def arrived(self) -> list[int]:
        """Return the transfers that arrived since the last call, in order."""
        count = int(self._field.scalars[LOGGED])
        if not count:
            return []
        self._field.scalars[LOGGED] = 0
        found: list[int] = self._field.log[:count].tolist()
        return found

    def free(self, numbers: Sequence[int]) -> None:
        """Give up the numbers of transfers that arrived."""
        self._free.extend(numbers)

    def _make_room(self, flows: int, edges: int) -> None:
        have, scalars = len(self._field.flows), self._field.scalars
        lacks_flows = len(self._free) < flows
        if not lacks_flows and scalars[EDGES_LEFT] >= edges:
            return
        wanted = 2 * have + flows if lacks_flows else have
        self._field = grown(self._field, wanted, len(self._field.edges) * 2 + edges)
        self._free[:0] = range(wanted - 1, have - 1, -1)
