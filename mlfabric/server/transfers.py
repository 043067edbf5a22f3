"""One transfer or get on its way through a server, and the table of its states. Pure.

A transfer is an update or the sum of several. It goes EXPECTED -> OFFERED -> RECEIVING -> RECEIVED -> APPLYING and then
leaves the table with an outcome for each of its members. It may be offered before it is expected: the sender's message
overtook the scheduler's.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import Expect, Expected, GetId, Serve, SumId, TransferId, UpdateKind
from mlfabric.transfer.offers import GetState, TransferState

__all__ = ["IncomingTransfer", "OutgoingModel"]

LATE_NS = 10_000_000  # a start takes that long on a busy machine, however little there is to send


_COMPLETE = (TransferState.RECEIVED, TransferState.APPLYING)
_BUFFERED = (TransferState.RECEIVING, *_COMPLETE)


@dataclass(slots=True, kw_only=True)
class IncomingTransfer:
    """A transfer that this server was told to expect.

    Args:
        members: the updates in it, in the order of commits.
        seq: its place in the commit sequence; changes when it is expected again.
        lrs: a sum's learning rates, as planned; see ``Expect``.
        parts: how many transfers share its place.
        after: the transfers that the plan ends last before this one starts.
        since_ns: when it was expected (last).
        connection: where it was offered, None before.
    """

    transfer: TransferId
    members: tuple[Expected, ...]
    seq: int
    ticket: bytes
    size_bytes: int
    tau_max: int
    kind: UpdateKind
    lrs: tuple[float, ...]
    parts: int
    after: frozenset[TransferId]
    since_ns: int
    state: TransferState = TransferState.EXPECTED
    connection: int | None = None

    @classmethod
    def of(cls, order: Expect, now_ns: int) -> IncomingTransfer:
        """Return the transfer that the scheduler announces."""
        return cls(
            transfer=order.transfer,
            members=order.members,
            seq=order.seq,
            ticket=order.ticket,
            size_bytes=order.size_bytes,
            tau_max=order.tau_max,
            kind=order.kind,
            lrs=order.lrs,
            parts=order.parts,
            after=frozenset(order.after),
            since_ns=now_ns,
        )

    def move(self, order: Expect, now_ns: int) -> None:
        """Take the place that it is expected at now."""
        self.seq, self.ticket, self.tau_max, self.parts = order.seq, order.ticket, order.tau_max, order.parts
        self.since_ns = now_ns
        self.after |= frozenset(order.after)

    @property
    def is_sum(self) -> bool:
        """It is the sum of several updates."""
        return isinstance(self.transfer, SumId)

    @property
    def is_complete(self) -> bool:
        """All its bytes are here."""
        return self.state in _COMPLETE

    @property
    def holds_buffer(self) -> bool:
        """A buffer is reserved for it."""
        return self.state in _BUFFERED


@dataclass(slots=True, kw_only=True)
class OutgoingModel:
    """A get that this server was told to serve.

    Args:
        since_ns: when it was planned (last); or, while it is being sent, when that began.
    """

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

    @property
    def late_ns(self) -> int | None:
        """When it takes so much longer than the plan says that it keeps nobody waiting any more; None for never."""
        return self.since_ns + self.plan.span_ns * 5 // 4 + LATE_NS if self.plan.span_ns else None

    def is_late(self, now_ns: int) -> bool:
        """Tell whether it keeps nobody waiting any more."""
        return self.late_ns is not None and now_ns >= self.late_ns
