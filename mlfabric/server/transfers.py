"""One update or get on its way through a server, and the table of its states. Pure.

An update goes EXPECTED -> OFFERED -> RECEIVING -> RECEIVED -> APPLYING and then leaves the table with an
outcome. It may be offered before it is expected: the worker's message overtook the scheduler's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from mlfabric.protocol import GetId, ModelVersion, Serve, UpdateId, UpdateKind

__all__ = ["UNCLAIMED_NS", "GetState", "IncomingUpdate", "OutgoingModel", "UpdateState", "conflict", "take_out"]

UNCLAIMED_NS = 10_000_000_000  # a worker comes for a transfer as soon as it hears of it

Id = TypeVar("Id", UpdateId, GetId)
PlannedT = TypeVar("PlannedT", "IncomingUpdate", "OutgoingModel")


class UpdateState(Enum):
    """Where an update is."""

    EXPECTED = "expected"
    OFFERED = "offered"
    RECEIVING = "receiving"
    RECEIVED = "received"
    APPLYING = "applying"


@dataclass(slots=True, kw_only=True)
class IncomingUpdate:
    """An update that this server was told to expect.

    Args:
        seq: its place in the commit sequence; changes when it is expected again.
        after: the updates that the plan ends last before this one starts.
        since_ns: when it was expected (last).
        connection: where it was offered, None before.
    """

    update: UpdateId
    seq: int
    ticket: bytes
    size_bytes: int
    computed_from: ModelVersion
    tau_max: int
    kind: UpdateKind
    after: frozenset[UpdateId]
    since_ns: int
    state: UpdateState = UpdateState.EXPECTED
    connection: int | None = None

    @property
    def is_complete(self) -> bool:
        """All its bytes are here."""
        return self.state in (UpdateState.RECEIVED, UpdateState.APPLYING)

    @property
    def holds_buffer(self) -> bool:
        """A buffer is reserved for it."""
        return self.is_complete or self.state is UpdateState.RECEIVING


class GetState(Enum):
    """Where a get is."""

    PLANNED = "planned"
    WANTED = "wanted"
    SERVING = "serving"


@dataclass(slots=True, kw_only=True)
class OutgoingModel:
    """A get that this server was told to serve."""

    plan: Serve
    order: int
    after: frozenset[GetId]
    since_ns: int
    state: GetState = GetState.PLANNED
    connection: int | None = None

    @property
    def get(self) -> GetId:
        """Its identity."""
        return self.plan.get


class _Planned(Protocol[Id]):
    """Something that the plan starts after others."""

    after: frozenset[Id]


def conflict(a: Id, b: Id, table: Mapping[Id, _Planned[Id]]) -> bool:
    """Tell whether the plan lets one start only after the other, directly or through others in ``table``."""
    return _follows(a, b, table) or _follows(b, a, table)


def _follows(late: Id, early: Id, table: Mapping[Id, _Planned[Id]]) -> bool:
    stack, seen = [late], set[Id]()
    while stack:
        known = table.get(stack.pop())
        for before in known.after - seen if known is not None else ():
            if before == early:
                return True
            seen.add(before)
            stack.append(before)
    return False


def take_out(gone: Id, table: dict[Id, PlannedT]) -> None:
    """Take a transfer out of ``table``; what was to follow it follows what it was to follow."""
    before = table.pop(gone).after
    for other in table.values():
        if gone in other.after:
            other.after = (other.after - {gone}) | before
