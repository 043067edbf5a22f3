"""The interface of a data channel: frames, connections, channels, and the record of a transfer.

A *channel* is one member's endpoint: it accepts connections and dials others. A *connection* carries frames: a
fixed header, a little opaque ``meta``, and for ``PAYLOAD`` and ``MODEL`` the raw bytes of a tensor image, which go from
the sender's buffer into a buffer that the receiver has already reserved (design, section 7). Each direction of a
connection is used by one task at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from mlfabric.channels.progress import Filling
from mlfabric.errors import TransferError, UsageError

__all__ = [
    "CARRIES_PAYLOAD",
    "MAX_META_BYTES",
    "TICKET_BYTES",
    "Channel",
    "Connection",
    "ConnectionClosedError",
    "Direction",
    "Frame",
    "FrameKind",
    "Handler",
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
        checks = [
            (f"ticket of {len(self.ticket)} bytes", len(self.ticket) == TICKET_BYTES, f"{TICKET_BYTES} bytes"),
            (f"length={self.length}", 0 <= self.length < U64_LIMIT, "0 to 2**64 - 1"),
            (f"digest={self.digest}", 0 <= self.digest < U64_LIMIT, "0 to 2**64 - 1"),
            (f"meta of {len(self.meta)} bytes", len(self.meta) <= MAX_META_BYTES, f"at most {MAX_META_BYTES} bytes"),
            (f"length={self.length}", not self.length or self.kind in CARRIES_PAYLOAD, "0, it is a control frame"),
        ]
        for given, good, allowed in checks:
            if not good:
                raise UsageError(f"{self.kind.name} frame: {given}; allowed: {allowed}")


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
        delivery_rate_bps: the kernel's own estimate at the sender (TCP_INFO); 0 if unknown.
        started_ns, ended_ns: monotonic clock of this host.
    """

    direction: Direction
    bytes: int
    paced: bool
    delivery_rate_bps: int
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


class Connection(Protocol):
    """A framed connection to one peer; it is not reopened after an error."""

    @property
    def peer(self) -> str:
        """Address of the other end."""

    @property
    def unread_bytes(self) -> int:
        """Payload bytes that were announced and have not been received or discarded yet."""

    @property
    def waiting_bytes(self) -> int:
        """How many bytes have come and were not read yet; 0 where an emulated link has yet to let them through."""

    def spread(self, rate_bps: int) -> None:
        """Have the transport space out what is sent from now on at about a rate, until told otherwise; 0 not at all.

        So streams that meet at a slow link, each at its share of it, find no queue there that bursts have made. It is
        no limit: first packets and small frames go at once, and a transport that cannot do it sends as it can. What was
        slowed down by this counts as paced.
        """

    async def send(self, frame: Frame, payload: Sequence[memoryview] = (), rate_bps: int = 0) -> TransferRecord | None:
        """Send a frame and its payload without copying it.

        Args:
            frame: what to send; its ``length`` is the payload's size.
            payload: contiguous buffers that follow each other on the wire; not to be changed until this returns.
            rate_bps: hold the payload to this rate; 0 sends at full speed.

        Returns:
            The transfer's record; None for a frame without payload.

        Raises:
            UsageError: the payload is not ``frame.length`` bytes long, or another task is sending; nothing was sent.
            TransferError: the connection broke; it is closed.
        """

    async def send_stream(self, frame: Frame, filling: Filling, rate_bps: int = 0) -> TransferRecord:
        """Send a frame whose payload becomes ready piece by piece, without copying it.

        The receiver is told that the payload is paced, since nobody knows beforehand how often it will have to wait for
        its bytes; a payload that is ready is better sent by :meth:`send`.

        Args:
            frame: what to send; its ``length`` is the payload's size, > 0.
            filling: the buffer that is being filled with it.
            rate_bps: hold the payload to this rate; 0 sends at full speed.

        Returns:
            The transfer's record, paced also if a relevant share of the time was spent waiting for bytes.

        Raises:
            UsageError: the frame announces no payload, or the buffer is not ``frame.length`` bytes long, or another
                task is sending; nothing was sent.
            TransferError: the connection broke, or was closed meanwhile; it is closed.
            Exception: what the filling failed with; the payload is torn and the connection closed.
        """

    async def receive(self) -> Frame:
        """Receive the next frame, header and meta only.

        Raises:
            ConnectionClosedError: the peer closed the connection between two frames.
            TransferError: the connection broke, or what came is not a frame that is allowed; it is closed.
            UsageError: the payload of the frame before has not been received or discarded yet.
        """

    async def receive_into(self, buffer: memoryview, length: int) -> TransferRecord:
        """Receive exactly the next ``length`` bytes of the announced payload.

        Args:
            buffer: contiguous and writable, of ``length`` bytes at least.
            length: all that is left of the payload, or a part of it.

        Raises:
            TransferError: the connection broke; it is closed and the buffer is torn.
            UsageError: the buffer is too small or read-only, or less than ``length`` was announced.
        """

    async def receive_through(
        self, pieces: Sequence[memoryview], took: Callable[[], Awaitable[None] | None]
    ) -> TransferRecord:
        """Receive the next bytes of the announced payload piece by piece, each into its own buffer or all into one.

        Nobody is woken between two pieces, so short ones cost little more than one long one.

        Args:
            pieces: contiguous and writable, none empty; they are filled one after the other.
            took: called in the event loop whenever a piece is full, before the next one is begun. What it returns is
                awaited first; None goes on at once.

        Raises:
            TransferError: the connection broke; it is closed.
            UsageError: a piece is read-only or empty, or less than all of them was announced; nothing was received.
            Exception: whatever ``took`` raised, or what it returned; the rest of the payload is still to be received.
        """

    async def discard(self, length: int) -> TransferRecord:
        """Receive the next ``length`` bytes of the announced payload and throw them away."""

    def close(self) -> None:
        """Close the connection; what is waiting in it gets a TransferError.

        Frames that were sent still reach the peer, unless bytes of the peer's lie unread here: TCP then resets.
        """

    async def wait_closed(self) -> None:
        """Wait until nothing of the connection is left."""


Handler = Callable[[Connection], Awaitable[None]]
"""Serves one accepted connection; the connection is closed when it returns."""


class Channel(Protocol):
    """One member's endpoint for data connections."""

    async def listen(self, handler: Handler) -> str:
        """Accept connections, each served by ``handler`` in its own task.

        Returns:
            The ``host:port`` under which others reach this endpoint.

        Raises:
            UsageError: the address or all its ports are taken or not to be had, or it listens already.
        """

    async def connect(self, address: str) -> Connection:
        """Open a connection to ``host:port``.

        Raises:
            UnavailableError: nobody answers there.
            UsageError: the address is malformed.
        """

    async def close(self) -> None:
        """Close every connection, cancel the handlers, and leave no task and no descriptor."""
