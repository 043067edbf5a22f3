"""The planner's inputs and results, as plain values.

Reasons are built when they are read: of a thousand plans per second most are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum

from mlfabric.network import Profile
from mlfabric.planning.profiles import Lot
from mlfabric.protocol import DropReason, GetId, UpdateId
from mlfabric.values import dataclass

__all__ = ["Candidate", "GetCandidate", "GetSlot", "Left", "Ordering", "Pick", "Slot"]


class Pick(Enum):
    """Why a transfer was reserved when it was."""

    SHORTEST = "shortest transfer first"
    DEADLINE = "deadline"
    IN_FLIGHT = "already sending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An update that waits for its place.

    Args:
        source: the host that sends it.
        size_bytes: 0 to 2**50.
        ready_ns: it cannot start before.
        computed_from: number of the version whose gradient it is.
        in_flight: its profile if it is being sent: the profile is reserved already, and only its position may change.
        norm: its l2 norm, >= 0; only replication uses it.
        clock: how many iterations its worker had finished before this one, >= 0; only stale-synchronous plans use it.
    """

    update: UpdateId
    source: str
    size_bytes: int
    ready_ns: int
    computed_from: int
    in_flight: Profile | None = None
    norm: float = 0.0
    clock: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """An update's place in the order of commits.

    Args:
        position: from 1; the update is applied to version ``v_init + position - 1``.
        profile: when it is sent how fast.
        pick: why it was reserved when it was.
        deadline: the last position that keeps its delay bound; None without a bound.
    """

    update: UpdateId
    position: int
    profile: Profile
    pick: Pick
    deadline: int | None

    @property
    def why(self) -> str:
        """Say in words why it has this position."""
        if self.pick is Pick.DEADLINE:
            return f"deadline: position {self.position} of at most {self.deadline}"
        return str(self.pick.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An update without a position, and why."""

    update: UpdateId
    cause: DropReason
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """The plan of one batch: ``slots`` by position, ``left`` in the order in which updates were left out.

    Args:
        candidates, end_ns: of ``slots``, as they were given, and when they end.
        lot: the same as columns; None if the plan has no world.
    """

    slots: Sequence[Slot]
    left: Sequence[Left] = ()
    candidates: Sequence[Candidate] = field(default=(), compare=False, repr=False)
    end_ns: Sequence[int] = field(default=(), compare=False, repr=False)
    lot: Lot | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCandidate:
    """A get that waits to be served to the host ``destination``; it cannot start before ``ready_ns``.

    Args:
        clock: how many iterations its worker has finished, >= 0; only stale-synchronous plans use it.
    """

    get: GetId
    destination: str
    size_bytes: int
    ready_ns: int
    clock: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSlot:
    """A get's transfer; ``profile`` is None if a link on its path has no capacity (yet)."""

    get: GetId
    profile: Profile | None
    planned_ns: int

    @property
    def reason(self) -> str:
        """Say in words, with figures, why it has this place."""
        if self.profile is None:
            return "a link on its path has no capacity"
        return f"{Pick.SHORTEST.value}: {max(0, self.profile.end_ns - self.planned_ns) / 1e6:.1f} ms"
