"""Data channel in memory, for members that run in one event loop: the same frames over a network that is given.

A connection is two pipes, one each way. A pipe has room for ``WINDOW_BYTES`` that the other end has not read. The
network takes what was written from one end and lets it arrive at the other when it likes (``lab/links.py``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlfabric.channels.backlog import Path
from mlfabric.channels.connection import Connection, Handler
from mlfabric.channels.interfaces import LinkCounter
from mlfabric.channels.limits import Limits
from mlfabric.channels.roster import Roster
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.security import LOOPBACK, Security

__all__ = ["PIECE_BYTES", "MemoryChannel", "MemoryNetwork", "MemoryOptions", "MemoryStream", "Pipe"]

WINDOW_BYTES = 256 * 1024
PIECE_BYTES = 16 * 1024
SEGMENT_BYTES = 1448


class Pipe:
    """One direction of a connection.

    Args:
        carry: called when something was written; the network then calls :meth:`arrive` for each piece, in order.
        piece_bytes: how long a piece is at the most, > 0.

    Attributes:
        written: pieces that the network has not carried yet; an empty one is the end.
        most_bps: the rate at which the writer wants them spread; 0 for as fast as it goes.
    """

    def __init__(self, carry: Callable[[Pipe], None], piece_bytes: int = PIECE_BYTES) -> None:
        self.written: deque[bytes] = deque()
        self.most_bps = 0
        self._carry, self._piece_bytes = carry, piece_bytes
        self._written_bytes = self._arrived_bytes = self._read_bytes = 0
        self._arrived = bytearray()
        self._is_shut = self._has_ended = self._is_unread = False
        self._error: OSError | None = None
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @property
    def unacknowledged_bytes(self) -> int:
        """How much was written that has not arrived."""
        return self._written_bytes - self._arrived_bytes

    @property
    def waiting_bytes(self) -> int:
        """How much has arrived that was not read."""
        return len(self._arrived)

    @property
    def _room_bytes(self) -> int:
        return WINDOW_BYTES - (self._written_bytes - self._read_bytes)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more can be written: it was shut, or is broken."""
        return self._is_shut or self._error is not None

    @property
    def is_writable(self) -> bool:
        """Tell whether :meth:`write` does something, or raises."""
        return self._room_bytes > 0 or self.is_over

    @property
    def is_readable(self) -> bool:
        """Tell whether :meth:`read` returns something else than None, or raises."""
        return bool(self._arrived) or self._has_ended or self._is_unread or self._error is not None

    @property
    def is_carried(self) -> bool:
        """Tell whether the network has taken all that was written."""
        return not self.written

    def write(self, data: memoryview) -> int:
        """Write what there is room for; return how much.

        Raises:
            OSError: the pipe is broken, or was shut.
        """
        self._check()
        if self._is_shut:
            raise BrokenPipeError("this end was shut down")
        n = min(len(data), self._room_bytes)
        piece_bytes = self._piece_bytes
        self.written.extend(bytes(data[at : min(n, at + piece_bytes)]) for at in range(0, n, piece_bytes))
        self._written_bytes += n
        if n:
            self._carry(self)
        return n

    def shut(self) -> None:
        """Write nothing more; what was written still arrives, and then the end."""
        if not self._is_shut and self._error is None:
            self._is_shut = True
            self.written.append(b"")
            self._carry(self)
        self._wake()

    def arrive(self, piece: bytes) -> None:
        """Let a piece arrive; where nobody reads any more the pipe breaks."""
        if piece and self._is_unread:
            self.fail(ConnectionResetError("the other end was closed"))
            return
        self._has_ended = self._has_ended or not piece
        self._arrived += piece
        self._arrived_bytes += len(piece)
        self._wake()

    def read(self, view: memoryview) -> int | None:
        """Read what has arrived; return how much, 0 at the end, None if nothing is here yet.

        Raises:
            OSError: the pipe is broken.
        """
        if self._is_unread:
            return 0
        self._check()
        n = min(len(view), len(self._arrived))
        if n == 0:
            return 0 if self._has_ended else None
        view[:n] = self._arrived[:n]
        del self._arrived[:n]
        self._read_bytes += n
        self._wake()
        return n

    def leave(self) -> None:
        """Read nothing more."""
        self._is_unread = True
        self._wake()

    def fail(self, error: OSError) -> None:
        """Break: what is under way is lost."""
        self._error = self._error or error
        self.written.clear()
        self._arrived.clear()
        self._wake()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds.

        Raises:
            OSError: the pipe is broken.
        """
        if not holds():
            waiter = holds, asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter[1]
            finally:
                self._waiters.remove(waiter)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        for holds, waiter in self._waiters:
            if not waiter.done() and holds():
                waiter.set_result(None)


class MemoryStream:
    """The bytes of one connection, as one of its ends sees them.

    Args:
        peer: address of the other end.
        incoming, outgoing: its pipes.
        path: what is known of the way.
    """

    def __init__(self, peer: str, incoming: Pipe, outgoing: Pipe, path: Path) -> None:
        self._peer = peer
        self._in, self._out = incoming, outgoing
        self._path = path

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._peer

    async def write(self, pieces: Sequence[memoryview]) -> None:
        """Write all pieces."""
        for piece in pieces:
            at = 0
            while at < len(piece):
                n = self._out.write(piece[at:])
                at += n
                if n == 0:
                    await self.writable()

    def write_now(self, piece: memoryview) -> int:
        """Write as much as there is room for."""
        return self._out.write(piece)

    async def writable(self) -> None:
        """Wait until there is room."""
        await self._out.until(lambda: self._out.is_writable)

    async def drain(self) -> None:
        """Wait until everything has been handed to the network."""
        await self._out.until(lambda: self._out.is_carried)

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more; fewer mean that no more will come."""
        at = 0
        while at < at_least:
            n = self._in.read(view[at:])
            if n is None:
                await self._in.until(lambda: self._in.is_readable)
            elif n == 0:
                break
            else:
                at += n
        return at

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill ``view``, and then whatever ``full`` returns, until that is empty; tell whether all were filled."""
        while len(view):
            if await self.read_into(view, len(view)) < len(view):
                return False
            view = full()
        return True

    def spread(self, rate_bps: int) -> bool:
        """Have what is sent spaced out at a rate, 0 not any longer."""
        self._out.most_bps = rate_bps
        return True

    def hold_back(self, rate_bps: int) -> None:
        """Do nothing: emulated links have no queue in which one stream waits for another."""

    def path(self) -> Path:
        """Return what is known of the way to the peer."""
        return self._path

    def unacknowledged_bytes(self) -> int:
        """Return how much was written that has not arrived."""
        return self._out.unacknowledged_bytes

    def waiting_bytes(self) -> int:
        """Return how much has arrived that was not read."""
        return self._in.waiting_bytes

    def stop(self, *, abrupt: bool) -> None:
        """Wake whoever waits in the stream; ``abrupt`` also drops what is under way and resets the peer."""
        self._in.leave()
        if abrupt:
            for pipe in (self._in, self._out):
                pipe.fail(ConnectionResetError("the other end has closed the connection"))
        self._out.shut()

    def close(self) -> None:
        """Let go of the stream; it was stopped before."""


class MemoryNetwork(Protocol):
    """What carries the pipes of all endpoints of one event loop."""

    def listen(self, host: str, accept: Callable[[MemoryStream], None]) -> str:
        """Let an endpoint at a host accept connections; return its address."""

    def unlisten(self, address: str) -> None:
        """Accept nothing more there."""

    def carried_bytes(self, host: str) -> tuple[int, int]:
        """Return how many bytes a host's link has sent and received."""

    async def dial(self, host: str, address: str) -> MemoryStream:
        """Connect from a host.

        Raises:
            OSError: nobody answers there.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """An endpoint in memory.

    Args:
        network: that it is in.
        host: its machine.
        up_bps, down_bps: rates of the machine's link that the scheduler is told; 0 for unknown.
        max_payload_bytes: a longer announced payload is refused; > 0.
        connect_timeout_s: > 0.
        bind, security: of the member's other ports and connections.
    """

    network: MemoryNetwork
    host: str
    up_bps: int = 0
    down_bps: int = 0
    max_payload_bytes: int = 64 << 30
    connect_timeout_s: float = 10.0
    bind: str = "127.0.0.1"
    security: Security = LOOPBACK


class MemoryChannel:
    """One member's endpoint in memory."""

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._address = ""
        self._roster = Roster(Limits(max_payload_bytes=options.max_payload_bytes))

    async def listen(self, handler: Handler) -> str:
        """Accept connections, each served by ``handler`` in its own task; return the address.

        Raises:
            UsageError: it listens already.
        """
        self._roster.check_open()
        if self._address:
            raise UsageError("this data channel listens already; one endpoint has one address")
        options = self._options
        self._address = options.network.listen(options.host, lambda stream: self._roster.serve(stream, handler))
        return self._address

    async def connect(self, address: str) -> Connection:
        """Open a connection.

        Raises:
            UnavailableError: nobody answers there.
        """
        self._roster.check_open()
        options = self._options
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                return self._roster.add(await options.network.dial(options.host, address))
        except OSError as error:  # TimeoutError, too
            reason = str(error) or f"no answer within {options.connect_timeout_s} s"
            raise UnavailableError(f"cannot reach {address}: {reason}") from error

    def link_counter(self) -> LinkCounter:
        """Return what counts the bytes of this host's link."""
        return lambda: self._options.network.carried_bytes(self._options.host)

    async def close(self) -> None:
        """Stop accepting, cancel the handlers, close every connection."""
        self._options.network.unlisten(self._address)
        await self._roster.close()
