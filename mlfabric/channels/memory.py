"""The in-memory double of a data channel: same interface, same errors, no sockets.

Bytes are copied through pipes of bounded size, so a sender waits for its receiver as it does on TCP. It ships so that
users of channels can be tested without ports, and with connections that break at a chosen byte.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

from mlfabric.channels.backlog import Path
from mlfabric.channels.base import Connection, Handler
from mlfabric.channels.bytestream import Limits
from mlfabric.channels.roster import Roster
from mlfabric.errors import ConfigError, UnavailableError, UsageError

__all__ = ["MemoryChannel", "MemoryNetwork"]

PIPE_BYTES = 256 * 1024


class _Fuse:
    """How many bytes may still pass a connection, both directions together, before it breaks."""

    def __init__(self, left_bytes: int | None) -> None:
        self._left_bytes = left_bytes

    def burn(self, n_bytes: int) -> int:
        """Return how many of ``n_bytes`` pass; fewer means that the connection breaks."""
        if self._left_bytes is None:
            return n_bytes
        passed = min(n_bytes, self._left_bytes)
        self._left_bytes -= passed
        return passed


class _Pipe:
    """One direction of a connection."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ended = False
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    @property
    def room_bytes(self) -> int:
        return PIPE_BYTES - len(self._bytes)

    @property
    def held_bytes(self) -> int:
        return len(self._bytes)

    async def has_room(self) -> None:
        while not self.room_bytes and not self._ended:
            await self._change()

    def put_now(self, view: memoryview) -> None:
        if self._ended:
            raise BrokenPipeError(errno.EPIPE, "the other end is closed")
        self._bytes += view
        self._changed.set()

    async def put(self, view: memoryview) -> int:
        await self.has_room()
        part = view[: self.room_bytes]
        self.put_now(part)
        return len(part)

    async def take_into(self, view: memoryview) -> int:
        while not self._bytes and not self._ended:
            await self._change()
        n = min(len(view), len(self._bytes))
        view[:n] = self._bytes[:n]
        del self._bytes[:n]
        self._changed.set()
        return n

    def end(self) -> None:
        self._ended = True
        self._changed.set()


class MemoryStream:
    """One end of an in-memory connection."""

    def __init__(self, peer: str, outgoing: _Pipe, incoming: _Pipe, fuse: _Fuse) -> None:
        self._peer = peer
        self._outgoing = outgoing
        self._incoming = incoming
        self._fuse = fuse

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._peer

    async def write(self, pieces: Sequence[memoryview]) -> None:
        """Write all pieces, or up to the byte at which the connection was told to break."""
        for piece in pieces:
            passed = self._fuse.burn(len(piece))
            at = 0
            while at < passed:
                at += await self._outgoing.put(piece[at:passed])
            if passed < len(piece):
                self.stop(abrupt=True)
                raise ConnectionResetError(errno.ECONNRESET, "told to break here")

    def write_now(self, piece: memoryview) -> int:
        """Write as much as there is room for."""
        part = piece[: self._outgoing.room_bytes]
        passed = self._fuse.burn(len(part))
        self._outgoing.put_now(part[:passed])
        if passed < len(part):
            self.stop(abrupt=True)
            raise ConnectionResetError(errno.ECONNRESET, "told to break here")
        return passed

    async def writable(self) -> None:
        """Wait until there is room."""
        await self._outgoing.has_room()

    async def drain(self) -> None:
        """Do nothing: what was written is with the peer."""

    def spread(self, rate_bps: int) -> bool:
        """Tell that memory cannot."""
        return False

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more; fewer mean that no more will come."""
        at = 0
        while at < at_least:
            n = await self._incoming.take_into(view[at:])
            if n == 0:
                break
            at += n
        return at

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill one view after the other; tell whether all were filled."""
        while len(view):
            if await self.read_into(view, len(view)) < len(view):
                return False
            view = full()
        return True

    def path(self) -> Path:
        """Return that nothing is known."""
        return Path(0, 0)

    def unacknowledged_bytes(self) -> int:
        """Return how many of the bytes that were written the peer has not read."""
        return self._outgoing.held_bytes

    def waiting_bytes(self) -> int:
        """Return how many bytes the peer has written that were not read yet."""
        return self._incoming.held_bytes

    def delivery_rate_bps(self) -> int:
        """Return 0: memory has no estimate."""
        return 0

    def stop(self, *, abrupt: bool) -> None:
        """End both directions; what was written before can still be read by the peer."""
        self._outgoing.end()
        self._incoming.end()

    def close(self) -> None:
        """Do nothing: memory holds nothing that must be given back."""


class MemoryNetwork:
    """The addresses of one process, and what is to go wrong on its connections."""

    def __init__(self) -> None:
        self._listening: dict[str, MemoryChannel] = {}
        self._ports = 0
        self._break_after_bytes: int | None = None

    def break_next_connection(self, after_bytes: int) -> None:
        """Let the next connection that is opened break when ``after_bytes`` bytes, headers included, have passed it."""
        self._break_after_bytes = after_bytes

    def _new_address(self, host: str) -> str:
        self._ports += 1
        return f"{host}:{self._ports}"

    def _listen(self, channel: MemoryChannel) -> str:
        address = self._new_address(channel.host)
        self._listening[address] = channel
        return address

    def _forget(self, address: str) -> None:
        self._listening.pop(address, None)

    def _open(self, host: str, address: str) -> MemoryStream:
        if address not in self._listening:
            raise UnavailableError(f"cannot reach {address}: nobody listens there in this process")
        fuse, self._break_after_bytes = _Fuse(self._break_after_bytes), None
        there, back = _Pipe(), _Pipe()
        self._listening[address]._accept(MemoryStream(self._new_address(host), back, there, fuse))
        return MemoryStream(address, there, back, fuse)


class MemoryChannel:
    """One member's in-memory endpoint.

    Args:
        network: where its address is known.
        host: the host part of its address.
        max_payload_bytes: a longer announced payload is refused; > 0.
    """

    def __init__(self, network: MemoryNetwork, host: str = "memory", max_payload_bytes: int = 64 << 30) -> None:
        if max_payload_bytes <= 0:
            raise ConfigError(f"memory channel: max_payload_bytes={max_payload_bytes}; allowed: > 0")
        self.host = host
        self._network = network
        self._address = ""
        self._handler: Handler | None = None
        self._roster = Roster(Limits(max_payload_bytes=max_payload_bytes))

    async def listen(self, handler: Handler) -> str:
        """Accept connections, each served by ``handler``; return the address."""
        self._roster.check_open()
        if self._address:
            raise UsageError("this data channel listens already; one endpoint has one address")
        self._handler = handler
        self._address = self._network._listen(self)
        return self._address

    def _accept(self, stream: MemoryStream) -> None:
        assert self._handler is not None, f"{self._address} is known to the network but has no handler"
        self._roster.serve(stream, self._handler)

    async def connect(self, address: str) -> Connection:
        """Open a connection to an address of the same network."""
        self._roster.check_open()
        return self._roster.add(self._network._open(self.host, address))

    async def close(self) -> None:
        """Cancel the handlers, close every connection, and give the address back."""
        self._network._forget(self._address)
        await self._roster.close()
