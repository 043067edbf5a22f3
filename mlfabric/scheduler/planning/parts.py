"""Things that consist of several transfers, planned over a world: takes them to the kernel and brings profiles back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from mlfabric.network import Piece, Profile
from mlfabric.scheduler.planning.fluid import parts_kernel
from mlfabric.scheduler.planning.fluid.lines import Ints, Lines
from mlfabric.scheduler.planning.fluid.parts_kernel import Parts
from mlfabric.scheduler.planning.fluid.world import World

__all__ = ["PartsReserver", "Thing"]


class Thing(NamedTuple):
    """What consists of several transfers: the hosts between which each goes, sizes, and when all can start."""

    between: Sequence[tuple[str, str]]
    part_bytes: Sequence[int]
    ready_ns: int


@dataclass(frozen=True, slots=True)
class PartsReserver:
    """Plans things of as many parts as there are columns; the lines that it is given stay as they are.

    Args:
        parts: things by the place that all methods know them by; at equal ``t_en`` the first listed goes first.
    """

    world: World
    parts: Parts

    @classmethod
    def of(cls, world: World, things: Sequence[Thing]) -> PartsReserver:
        """Lay things out, all of as many parts, in a world that has their paths."""
        route = np.array([[world.route(*pair) for pair in thing.between] for thing in things], np.int64)
        bits = 8 * np.array([thing.part_bytes for thing in things], np.int64)
        shape = len(things), len(things[0].between) if things else 0
        ready_ns = np.array([thing.ready_ns for thing in things], np.int64)
        return cls(world, Parts(route.reshape(shape), bits.reshape(shape), ready_ns))

    def solo_ends(self, lines: Lines) -> list[int]:
        """Return when each thing would have arrived if it were alone; HORIZON_NS for never."""
        ends: list[int] = parts_kernel.solo_ends(lines, self.world.routes, self.parts).tolist()
        return ends

    def reserve(self, lines: Lines, batches: Iterable[Sequence[int]]) -> tuple[dict[int, tuple[Profile, ...]], Lines]:
        """Reserve batch after batch, each time the thing that arrives first.

        Returns:
            The profiles of each thing's parts, in the order of reservation, and what is free then. What would not
            arrive before the horizon is not among them.
        """
        listed = [list(batch) for batch in batches]
        first = np.array([0, *accumulate(map(len, listed))], np.int64)
        flat = np.array([i for batch in listed for i in batch], np.int64)
        rows, pieces, lines = parts_kernel.reserve(lines, self.world.routes, self.parts, flat, first)
        return self._profiles(rows, pieces), lines

    def _profiles(self, rows: Ints, pieces: Ints) -> dict[int, tuple[Profile, ...]]:
        every = list(map(Piece._make, pieces.tolist()))
        found: dict[int, list[Profile]] = {}
        nothing = Profile(0, 0, ())
        for i, part, end_ns, first, after in rows[1:].tolist():
            profiles = found.setdefault(i, [nothing] * self.parts.route.shape[1])
            start_ns = every[first].start_ns if first < after else end_ns
            profiles[part] = Profile(start_ns, end_ns, tuple(every[first:after]))
        return {i: tuple(profiles) for i, profiles in found.items()}
