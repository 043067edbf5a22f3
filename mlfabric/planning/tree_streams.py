"""Converts hosts and updates for the kernels of cut-through trees, and results to transfers (design, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import Piece, Profile
from mlfabric.planning.fluid.capacity_lists import Ints
from mlfabric.planning.fluid.world import World
from mlfabric.planning.problem import Aggregator
from mlfabric.planning.profiles import Profiles

__all__ = ["Hosts", "inputs_of", "profile_at"]


class Hosts(NamedTuple):
    """Hosts by number: first the aggregators, then the other sources.

    ``aggregators``: numbers in the world of those that may sum. ``of_sources`` is by update. ``most`` is by host how
    many updates it may sum, 0 for any number. ``routes``: from every host to every aggregator and the destination; -1
    to itself.
    """

    aggregators: list[int]
    of_sources: Ints
    most: Ints
    routes: NDArray[np.int64]

    @classmethod
    def of(cls, sources: Ints, aggregators: Sequence[Aggregator], world: World, destination: str) -> Hosts:
        """Number the hosts of some updates, by number of the world, and those that may sum, all but the destination."""
        names = [aggregator.host for aggregator in aggregators]
        able = world.numbers(names)
        numbers = dict.fromkeys([*able, *sources.tolist()])
        hosts = np.fromiter(numbers, np.int64, len(numbers))
        number, most = np.zeros(world.sources, np.int64), np.zeros(len(hosts), np.int64)
        number[hosts], most[: len(able)] = np.arange(len(hosts)), [a.most_updates for a in aggregators]
        routes = world.routes_between(hosts, [*names, destination])
        np.fill_diagonal(routes[:, :-1], -1)
        return cls(able, number[sources], most, routes)


def inputs_of(leaves: Sequence[int], reaches: Sequence[int]) -> list[tuple[int, ...]]:
    """Return by stream which earlier ones reach the place that it leaves."""
    arrived: dict[int, list[int]] = {}
    inputs = []
    for i, (place, following) in enumerate(zip(leaves, reaches, strict=True)):
        inputs.append(tuple(arrived.get(place, ())))
        arrived.setdefault(following, []).append(i)
    return inputs


def profile_at(profiles: Profiles, i: int) -> Profile:
    """Return the profile at a place."""
    first, end_ns = profiles.first, int(profiles.end_ns[i])
    pieces = tuple(map(Piece._make, profiles.pieces[first[i] : first[i + 1]].tolist()))
    return Profile(pieces[0].start_ns if pieces else end_ns, end_ns, pieces)
