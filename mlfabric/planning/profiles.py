"""Many updates and their rate profiles as columns, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import Profile
from mlfabric.protocol import UpdateId

__all__ = ["Ints", "Lot", "Profiles"]

Ints = NDArray[np.int64]


class Profiles(NamedTuple):
    """Columns by place; ``pieces[first[i] : first[i + 1]]`` are the pieces (start_ns, end_ns, bps) of place i.

    A place without pieces takes no time: it starts and ends at its ``end_ns``.
    """

    end_ns: Ints
    pieces: Ints
    first: Ints

    @classmethod
    def of(cls, profiles: Sequence[Profile]) -> Profiles:
        """Make columns of profiles."""
        end_ns = np.array([profile.end_ns for profile in profiles], np.int64)
        pieces = np.array([piece for profile in profiles for piece in profile.pieces], np.int64).reshape(-1, 3)
        first = np.array([0, *accumulate(len(profile.pieces) for profile in profiles)], np.int64)
        return cls(end_ns, pieces, first)


class Lot(NamedTuple):
    """Updates in the order in which they are to be committed, to one destination; columns by place.

    ``source``: numbers of their hosts in the world of the plan. ``fixed``: how many of the first go directly in any
    plan (the last of them is in flight already). ``flies``: 1 for updates in flight before, whose profiles are reserved
    already. ``direct``: each one's profile if it goes directly, found by the ordering; None to plan them in this order.
    """

    updates: Sequence[UpdateId]
    source: Ints
    bits: Ints
    ready_ns: Ints
    fixed: int
    flies: Ints
    direct: Profiles | None

    def part(self, begin: int, end: int) -> Lot:
        """Return the updates at some places; the fixed ones are among the first."""
        return Lot(
            updates=self.updates[begin:end],
            source=self.source[begin:end],
            bits=self.bits[begin:end],
            ready_ns=self.ready_ns[begin:end],
            fixed=0 if begin else self.fixed,
            flies=self.flies[begin:end],
            direct=None if begin else self.direct,
        )
