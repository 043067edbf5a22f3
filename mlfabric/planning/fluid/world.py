"""Converts the links that a plan can use to arrays, and reserved pieces back to profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import CORE, LinkId, Network, Path
from mlfabric.planning.fluid.capacity_lists import Ints, Lines, Routes
from mlfabric.planning.fluid.layout import listed, star_routes

__all__ = ["World"]


class World:
    """Every path from some hosts to some hosts, numbered, and what is free on their links.

    The route from ``sources[i]`` to ``destinations[j]`` is ``i * len(destinations) + j``; ``route`` finds it by names,
    ``routes_from`` by the numbers of sources.
    ``lines`` is a new copy: kernels may change it (and return larger ones); the network never changes.

    Raises:
        UsageError: an unknown host.
    """

    def __init__(self, network: Network, sources: Sequence[str], destinations: Sequence[str]) -> None:
        self._network = network
        self._sources, self._destinations = tuple(sources), tuple(destinations)
        self._source = {name: i for i, name in enumerate(sources)}
        self._destination = {name: j for j, name in enumerate(destinations)}
        make = _star if network.is_star else _graph
        self._links, self.routes = make(network, self._sources, self._destinations)
        self.lines = _lines(network, self._links)

    @cached_property
    def links(self) -> dict[LinkId, int]:
        """The number of each link."""
        return {LinkId(*link): number for number, link in enumerate(self._links)}

    def route(self, source: str, destination: str) -> int:
        """Return the number of the route between two hosts."""
        return self._source[source] * len(self._destinations) + self._destination[destination]

    def numbers(self, sources: Iterable[str]) -> list[int]:
        """Return the numbers of some sources."""
        return list(map(self._source.__getitem__, sources))

    def routes_from(self, sources: Ints, destination: str) -> Ints:
        """Return the numbers of the routes from some sources to a destination."""
        return sources * len(self._destinations) + self._destination[destination]

    def routes_between(self, sources: Ints, destinations: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of the routes from some sources to each of some destinations."""
        columns = np.array([self._destination[name] for name in destinations], np.int64)
        return np.add.outer(sources * len(self._destinations), columns)

    @property
    def destinations(self) -> int:
        """How many there are, so how many routes each source has."""
        return len(self._destinations)

    @property
    def sources(self) -> int:
        """How many there are."""
        return len(self._sources)

    def toward(self, destination: str, count: int) -> tuple[Lines, Routes]:
        """Return a fresh copy of the lines, and just the routes from the first ``count`` sources to a destination."""
        rows = self.routes_from(np.arange(count), destination)
        link, hops, latency_ns, cursor = self.routes
        routes = Routes(link[rows], hops[rows], latency_ns[rows], np.zeros_like(cursor))
        return Lines(*(column.copy() for column in self.lines)), routes

    def path(self, route: int) -> Path:
        """Return the links of a route."""
        return self._network.path(*self.ends(route))

    def ends(self, route: int) -> tuple[str, str]:
        """Return the source and the destination of a route."""
        i, j = divmod(route, len(self._destinations))
        return self._sources[i], self._destinations[j]


def _star(
    network: Network, sources: Sequence[str], destinations: Sequence[str]
) -> tuple[list[tuple[str, str]], Routes]:
    """Number the links of a star: up from each source, then down to each destination."""
    up = {name: i for i, name in enumerate(dict.fromkeys(sources))}
    down = {name: len(up) + j for j, name in enumerate(dict.fromkeys(destinations))}
    unknown = network.unknown_host(chain(up, down))
    if unknown is not None:
        network.path(unknown, unknown)
    above = np.array([up[name] for name in sources], np.int64)
    ends = np.array([(down[name], up.get(name, -1)) for name in destinations], np.int64).reshape(-1, 2)
    links = [*((name, CORE) for name in up), *((CORE, name) for name in down)]
    link, hops, latency_ns = star_routes(above, ends, network.star_latency_ns)
    return links, Routes(link, hops, latency_ns, np.zeros(2, np.int64))


def _graph(
    network: Network, sources: Sequence[str], destinations: Sequence[str]
) -> tuple[list[tuple[str, str]], Routes]:
    """Number the links of all paths as they come."""
    paths = [network.path(source, destination) for source in sources for destination in destinations]
    numbers: dict[tuple[str, str], int] = {}
    width = max(map(len, paths), default=0) or 1
    padding = [(-1,) * n for n in range(width + 1)]
    numbered = [[numbers.setdefault(link, len(numbers)) for link in path] for path in paths]
    rows = [(*row, *padding[width - len(row)]) for row in numbered]
    link = np.array(rows, np.int64).reshape(-1, width)
    hops = np.array(list(map(len, paths)), np.int64)
    # One more, for the -1 of the padding.
    of_link = np.array([*(network.latency_ns((LinkId(*link),)) for link in numbers), 0], np.int64)
    return list(numbers), Routes(link, hops, of_link[link].sum(axis=1), np.zeros(width, np.int64))


def _lines(network: Network, links: Iterable[tuple[str, str]]) -> Lines:
    """Lay residual capacities out as linked lists; below zero counts as zero."""
    found = network.free_lines(links)
    until = [0, *accumulate([len(line.values) for line in found])]
    begins = np.fromiter(until, np.int64, len(until))
    times = np.fromiter(chain.from_iterable([line.times for line in found]), np.int64, until[-1] + len(found))
    values = np.fromiter(chain.from_iterable([line.values for line in found]), np.int64, until[-1])
    at_ns, bps, following = listed(times, values, begins)
    return Lines(at_ns, bps, following, begins[-1:] + 1, begins[:-1] + 1)
