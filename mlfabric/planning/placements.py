"""Converts transfers for the kernels that decide the order of reservations, and converts the results to profiles."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from mlfabric.network import Network, Path, Piece, Profile
from mlfabric.planning.fluid import order_kernel
from mlfabric.planning.fluid.capacity_lists import Lines, Routes
from mlfabric.planning.fluid.reserving import solo_ends
from mlfabric.planning.fluid.shortest import Transfers
from mlfabric.planning.fluid.world import World
from mlfabric.planning.kernel_choice import fastest
from mlfabric.planning.profiles import Ints, Profiles

__all__ = ["Places", "packed", "place", "place_over"]


class Places:
    """The result: transfers by place, and those that are left out.

    Args:
        ranks: by place.
        left: (rank, position for which others compete or 0, when it would end).
        binding: the last position that decided what was reserved first.
    """

    def __init__(self, ranks: Ints, end_ns: Ints, pieces: Ints, first: Ints, left: Ints, binding: int) -> None:
        self.ranks: list[int] = ranks.tolist()
        self.left: list[tuple[int, int, int]] = left.tolist()
        self.binding, self.profiles = binding, Profiles(end_ns, pieces, first)
        self.end_ns: list[int] = end_ns.tolist()
        self._first: list[int] = first.tolist()

    @cached_property
    def _pieces(self) -> list[list[int]]:
        found: list[list[int]] = self.profiles.pieces.tolist()
        return found

    def profile(self, place: int) -> Profile:
        """Return the profile at a place."""
        pieces = tuple(map(Piece._make, self._pieces[self._first[place] : self._first[place + 1]]))
        end_ns = self.end_ns[place]
        return Profile(pieces[0].start_ns if pieces else end_ns, end_ns, pieces)


def place(network: Network, paths: Iterable[Path], rows: Ints) -> Places:
    """Place transfers, laid out for the kernel, over routes that are numbered as their paths come."""
    return Places(*fastest(order_kernel.place)(packed(network, paths), rows))


def place_over(lines: Lines, routes: Routes, rows: Ints) -> Places:
    """Place transfers, laid out for the kernel, over routes; reservations are made on ``lines``."""
    return Places(*fastest(order_kernel.place_over)(lines, routes, rows))


def packed(network: Network, paths: Iterable[Path]) -> Ints:
    """Pack what is free on some paths, as ``fluid.layout.unpacked`` wants it."""
    numbers: dict[tuple[str, str], int] = {}
    count = nodes = width = 0
    row = [0, 0, 0, 0]
    for path in paths:
        count += 1
        width = max(width, len(path))
        row.append(len(path))
        row += [numbers.setdefault(link, len(numbers)) for link in path]
    for line in network.free_lines(numbers):
        nodes += len(line.values)
        row.append(len(line.values))
        row += line.values
        row += line.times
    row[:4] = count, len(numbers), nodes, width
    return np.array(row, np.int64)


def warm() -> None:
    """Run all kernels of the ordering once, and ``solo_ends``, which other modules call too."""
    network = Network.star(1)
    for name in "ab":
        network.add_host(name)
    rows = np.array([(0, 8, 0, 0, due, due) for due in (1, 1, 2, 4)], np.int64).T.copy()
    order_kernel.place(packed(network, [network.path("a", "b")]), rows)
    lines, routes = World(network, ["a"], ["b"]).toward("b", 1)
    one = np.zeros(1, np.int64)
    solo_ends(lines, routes, Transfers(one, one, one, one, one))
    order_kernel.place_over(lines, routes, rows)
