# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""Takes transfers that are planned already out of what is free, compiled."""

from __future__ import annotations

import numpy as np

from mlfabric.scheduler.planning.fluid.jit import compiled
from mlfabric.scheduler.planning.fluid.lines import Lines, Routes, fork, take

__all__ = ["take_all", "warm"]


@compiled
def take_all(lines, routes, route, first, pieces):
    """Return what a sequence of transfers leaves free; ``lines`` stay as they are.

    Transfer i runs on route ``route[i]`` and has the rows ``pieces[first[i] : first[i + 1]]`` (start, end, bps).
    """
    lines = fork(lines, 4 * len(pieces))
    taken = [(0, 0, 0)]
    for i in range(len(route)):
        taken.clear()
        for row in range(first[i], first[i + 1]):
            taken.append((pieces[row, 0], pieces[row, 1], pieces[row, 2]))
        lines = take(lines, routes, route[i], taken, 0)
    return lines


def warm() -> None:
    """Run the kernel once on nothing."""
    none = np.zeros(1, np.int64)
    lines, routes = Lines(none, none, none, none, none), Routes(none.reshape(1, 1), none, none, none)
    take_all(lines, routes, none[:0], none, np.zeros((0, 3), np.int64))
