"""Rate profiles and places of many updates as columns, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import Profile
from mlfabric.protocol import UpdateId

__all__ = ["Ints", "Placed", "Profiles"]

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


class Placed(NamedTuple):
    """Updates in the order of commits, by place; ``planned`` is False for updates in flight before."""

    updates: Sequence[UpdateId]
    sources: Sequence[str]
    bits: Ints
    ready_ns: Ints
    planned: Sequence[bool]
    profiles: Profiles
