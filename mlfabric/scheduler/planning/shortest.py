"""Shortest transfer first, in plain Python, for any topology (paper, algorithm 1).

The next transfer to reserve is the one with the least ``t_en`` over what is then free. Reservations only ever lengthen
transfers, so an old ``t_en`` is a lower bound: the top of a heap is planned again, and if nothing in the heap
is below the result, it is the least.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mlfabric.network import HORIZON_NS, Network, Path, Profile

__all__ = ["Demand", "PythonReserver", "Reserver"]


class Demand(NamedTuple):
    """One transfer to plan; it cannot start before ``ready_ns``."""

    path: Path
    size_bytes: int
    ready_ns: int


class Reserver(Protocol):
    """Plans many transfers over what is free in a network, and never changes that network."""

    def solo_ends(self) -> list[int]:
        """Return when each transfer would end if it were alone; HORIZON_NS for never."""
        ...

    def reserve(self, batches: Iterable[Sequence[int]]) -> dict[int, Profile | None]:
        """Reserve batch after batch, each shortest transfer first; once, after ``solo_ends``.

        Args:
            batches: indices of demands; within a batch the earlier one goes first at equal ``t_en``.

        Returns:
            The profile of each index in a batch, None for what would not end before the horizon. Within a batch the
            order of reservation is that of (end, place in the batch), because ends only grow from one pick to the next.
        """
        ...


class PythonReserver:
    """The reserver for any topology."""

    def __init__(self, demands: Sequence[Demand], network: Network) -> None:
        self._demands = demands
        self._draft = network.draft()
        self._profiles: list[Profile | None] = []
        self._planned_at = [0] * len(demands)
        self._reserved: dict[int, Profile | None] = {}

    def solo_ends(self) -> list[int]:
        """Return when each transfer would end if it were alone; HORIZON_NS for never."""
        transfer = self._draft.transfer
        self._profiles = [transfer(*demand) for demand in self._demands]
        return [HORIZON_NS if profile is None else profile.end_ns for profile in self._profiles]

    def reserve(self, batches: Iterable[Sequence[int]]) -> dict[int, Profile | None]:
        """Reserve batch after batch, each shortest transfer first; once, after ``solo_ends``."""
        for batch in batches:
            heap = [(_end(self._profiles[i]), rank) for rank, i in enumerate(batch)]
            heapq.heapify(heap)
            while heap:
                rank = heap[0][1]
                profile = self._current(batch[rank])
                heapq.heapreplace(heap, (_end(profile), rank))
                if heap[0][1] == rank:
                    heapq.heappop(heap)
                    self._take(batch[rank], profile)
        return self._reserved

    def _take(self, i: int, profile: Profile | None) -> None:
        self._reserved[i] = profile
        if profile is not None and len(self._reserved) < len(self._demands):  # else nobody is left to make room
            self._draft.reserve(self._demands[i].path, profile)

    def _current(self, i: int) -> Profile | None:
        """The profile over what is free now, planned again if anything was reserved since."""
        if self._planned_at[i] != len(self._reserved):
            self._profiles[i] = self._draft.transfer(*self._demands[i])
            self._planned_at[i] = len(self._reserved)
        return self._profiles[i]


def _end(profile: Profile | None) -> int:
    return HORIZON_NS if profile is None else profile.end_ns
