"""What travels on a data channel: frames, and the record of a transfer.

A *channel* is one member's endpoint: it accepts connections and dials others. A *connection* carries frames: a
fixed header, a little opaque ``meta``, and for ``PAYLOAD`` and ``MODEL`` the raw bytes of a tensor image, which go from
the sender's buffer into a buffer that the receiver has already reserved (design, section 7). Each direction of a
connection is used by one task at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from mlfabric.channels.backlog import Path
from mlfabric.errors import TransferError, UsageError

__all__ = [
    "CARRIES_PAYLOAD",
    "MAX_META_BYTES",
    "TICKET_BYTES",
    "ConnectionClosedError",
    "Direction",
    "Frame",
    "FrameKind",
    "Stream",
    "TransferRecord",
]

TICKET_BYTES = 16
MAX_META_BYTES = 64 * 1024
U64_LIMIT = 1 << 64


class ConnectionClosedError(TransferError):
    """The peer closed the connection between two frames: nothing was torn."""


class FrameKind(IntEnum):
    """What a frame says; the numbers are the wire's."""

    OFFER = 1
    GRANT = 2
    PAYLOAD = 3
    OUTCOME = 4
    WANT = 5
    MODEL = 6
    REFUSE = 7


CARRIES_PAYLOAD = frozenset({FrameKind.PAYLOAD, FrameKind.MODEL})


class Direction(Enum):
    """Which way a transfer went, seen from the member that recorded it."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message on a data connection, without its payload.

    Args:
        kind: what it says.
        ticket: the transfer's one-time id, ``TICKET_BYTES`` long.
        length: payload bytes that follow; 0 for the kinds not in ``CARRIES_PAYLOAD``.
        digest: the layout's digest (64 bit), which stands for names, shapes and dtypes.
        meta: opaque control bytes, at most ``MAX_META_BYTES``.
    """

    kind: FrameKind
    ticket: bytes
    length: int = 0
    digest: int = 0
    meta: bytes = b""

    def __post_init__(self) -> None:
        if fault := self._fault():
            given, allowed = fault
            raise UsageError(f"{self.kind.name} frame: {given}; allowed: {allowed}")

    def _fault(self) -> tuple[str, str] | None:
        """Return what is given and what is allowed if it cannot be sent so."""
        if len(self.ticket) != TICKET_BYTES:
            return f"ticket of {len(self.ticket)} bytes", f"{TICKET_BYTES} bytes"
        for name, value in (("length", self.length), ("digest", self.digest)):
            if not 0 <= value < U64_LIMIT:
                return f"{name}={value}", "0 to 2**64 - 1"
        if len(self.meta) > MAX_META_BYTES:
            return f"meta of {len(self.meta)} bytes", f"at most {MAX_META_BYTES} bytes"
        if self.length and self.kind not in CARRIES_PAYLOAD:
            return f"length={self.length}", "0, it is a control frame"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRecord:
    """What one transfer of payload bytes did, for the bandwidth monitor.

    The receiver's record ends with the last byte in its buffer, the sender's when its kernel has handed the last byte
    to the network: earlier by what the network and the receiver's kernel still hold.

    Args:
        direction: sent or received.
        bytes: payload bytes.
        paced: the sender held it to a planned rate or waited for its bytes, so it says nothing about what the link
            could do.
        busy_bytes, busy_ns: at the sender of what its receiver takes for paced: what was delivered while there was more
            to send than the network took, and how long that was: what the links carried then. 0 where that was not
            measured.
        started_ns, ended_ns: monotonic clock of this host.
    """

    direction: Direction
    bytes: int
    paced: bool
    started_ns: int
    ended_ns: int
    busy_bytes: int = 0
    busy_ns: int = 0

    @property
    def seconds(self) -> float:
        """Duration of the transfer in seconds."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def rate_bps(self) -> float:
        """Mean rate of the transfer in bit/s; 0 if it took no measurable time."""
        return self.bytes * 8 / self.seconds if self.ended_ns > self.started_ns else 0.0


class Stream(Protocol):
    """The bytes of one connection, under its frames."""

    @property
    def peer(self) -> str:
        """Address of the other end."""

    async def write(self, pieces: Sequence[memoryview]) -> None:
        """Write all pieces."""

    def write_now(self, piece: memoryview) -> int:
        """Write as much as there is room for; return how much."""

    async def writable(self) -> None:
        """Wait until there is room."""

    async def drain(self) -> None:
        """Wait until everything has been handed to the network."""

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more; fewer mean that no more will come."""

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill ``view``, and then whatever ``full`` returns, until that is empty; tell whether all were filled."""

    def spread(self, rate_bps: int) -> bool:
        """Have what is sent spaced out at about a rate, 0 not any longer; tell whether that is possible."""

    def hold_back(self, rate_bps: int) -> None:
        """Have little more on its way than a rate carries in a round trip, 0 for no such limit, if that is possible."""

    def path(self) -> Path:
        """Return what is known of the way to the peer."""

    def unacknowledged_bytes(self) -> int:
        """Return how much was written that the other end has not acknowledged."""

    def waiting_bytes(self) -> int:
        """Return how much has come that was not read."""

    def stop(self, *, abrupt: bool) -> None:
        """Wake whoever waits in the stream; ``abrupt`` also drops what was not sent and resets the peer."""

    def close(self) -> None:
        """Free what the stream holds."""
