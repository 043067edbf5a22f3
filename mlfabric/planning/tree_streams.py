"""Converts hosts and updates for the kernels of cut-through trees, and results to transfers (design, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import Piece, Profile
from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.world import World
from mlfabric.planning.problem import Aggregator

__all__ = ["Hosts", "inputs_of", "profile_at"]


class Hosts:
    """Hosts by number: first the aggregators, then the other sources, last the destination."""

    def __init__(self, sources: Sequence[str], aggregators: Sequence[Aggregator], destination: str) -> None:
        self._room: Mapping[str, int] = {a.host: a.most_updates for a in reversed(aggregators) if a.host != destination}
        self.names = list(dict.fromkeys([*reversed(self._room), *sources]))
        self._number = {name: i for i, name in enumerate(self.names)}
        self.names.append(destination)
        self.of_sources: Ints = np.array([self._number[source] for source in sources], np.int64)

    def __len__(self) -> int:
        """Return how many there are, without the destination."""
        return len(self.names) - 1

    @property
    def aggregators(self) -> int:
        """How many of them may sum."""
        return len(self._room)

    @property
    def most(self) -> Ints:
        """By host, how many updates it may sum; 0 for any number."""
        return np.array([self._room.get(name, 0) for name in self.names[:-1]], np.int64)

    def routes(self, world: World) -> NDArray[np.int64]:
        """Return the numbers of the routes from every host to every aggregator and the destination; -1 to itself."""
        table = np.stack(
            [world.routes_from(self.names[:-1], to) for to in (*self.names[: len(self._room)], self.names[-1])], 1
        )
        np.fill_diagonal(table[:, :-1], -1)
        return table


def inputs_of(leaves: Sequence[int], reaches: Sequence[int]) -> list[tuple[int, ...]]:
    """Return by stream which earlier ones reach the place that it leaves."""
    arrived: dict[int, list[int]] = {}
    inputs = []
    for i, (place, following) in enumerate(zip(leaves, reaches, strict=True)):
        inputs.append(tuple(arrived.get(place, ())))
        arrived.setdefault(following, []).append(i)
    return inputs


def profile_at(rows: NDArray[np.int64], first: Any, i: int, end_ns: int) -> Profile:
    """Return the profile whose pieces are ``rows[first[i] : first[i + 1]]``."""
    pieces = tuple(map(Piece._make, rows[first[i] : first[i + 1]].tolist()))
    return Profile(pieces[0].start_ns if pieces else end_ns, end_ns, pieces)
