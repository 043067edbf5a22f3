"""TLS over a TCP connection of the data channel: its bytes, and how it begins.

The socket stays the same nonblocking one; what is read is decrypted right into the receiver's buffer. After the
handshake the accepting side says in one short message whether it lets the other in: with TLS 1.3 the dialling one
would otherwise learn only at its first read that its certificate is not accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence

from mlfabric.channels.tcpstream import TcpStream, now
from mlfabric.errors import ConfigError
from mlfabric.security import Certificate, peer_identity

__all__ = ["TlsStream", "accepted", "dialled", "joined"]

RECORD_BYTES = 16 * 1024
HELD_BYTES = RECORD_BYTES + 512
"""So much of what is announced may have left the kernel without being readable yet: one record that is not whole."""
WRITE_BYTES = 1024 * 1024
TURN_BYTES = 1024 * 1024
READ_BATCH_BYTES = 1024 * 1024
LONGEST_REASON = 255
ALERT = bytes.fromhex("15 03 03 00 02 02 46")
"""A record of TLS: fatal, wrong protocol."""
UNREAD_BYTES = 64 * 1024
EMPTY = memoryview(b"")


class TlsStream(TcpStream):
    """The bytes of one TCP connection under TLS.

    A write that found no room has to be repeated with the same bytes; all callers do.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        self._tls = sock

    async def write(self, pieces: Sequence[memoryview]) -> None:
        """Write all pieces; short ones share a record."""
        blocks = joined(pieces)
        block = next(blocks, EMPTY)

        def step() -> bool:
            nonlocal block
            if len(block):
                block = block[self._send(block[:WRITE_BYTES]) :]
            if not len(block):
                block = next(blocks, EMPTY)
            return not len(block)

        if not now(step):
            await self._when_ready(self._loop.add_writer, self._loop.remove_writer, step)

    def write_now(self, piece: memoryview) -> int:
        """Write as much as the kernel has room for."""
        try:
            return self._send(piece)
        except BlockingIOError:
            return 0

    def _send(self, piece: memoryview) -> int:
        try:
            return self._tls.send(piece)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more; fewer mean that no more will come."""
        at = 0

        def step() -> bool:
            nonlocal at
            began = at
            while True:
                n = self._receive(view[at:], at_least - at)
                at += n
                if n == 0 or at >= at_least:
                    return True
                if at - began >= TURN_BYTES and not self._tls.pending():
                    self._wait_for(at_least - at)
                    return False

        if not now(step):
            await self._when_ready(self._loop.add_reader, self._loop.remove_reader, step)
        return at

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill one view after the other; tell whether all were filled."""
        at, ended = 0, False

        def step() -> bool:
            nonlocal view, at, ended
            taken = 0
            while True:
                n = self._receive(view[at:] if at else view, len(view) - at)
                at, taken, ended = at + n, taken + n, n == 0
                if at == len(view):
                    view, at = full(), 0
                if ended or not len(view):
                    return True
                if taken >= TURN_BYTES and not self._tls.pending():
                    self._wait_for(len(view) - at)
                    return False

        if not now(step):
            await self._when_ready(self._loop.add_reader, self._loop.remove_reader, step)
        return not ended

    def _receive(self, view: memoryview, wanted_bytes: int) -> int:
        """Read what there is; if there is nothing, have the socket wait for about as much as is wanted."""
        try:
            return self._tls.recv_into(view)
        except ssl.SSLWantReadError:
            self._wait_for(wanted_bytes)
            raise BlockingIOError from None

    def _wait_for(self, wanted_bytes: int) -> None:
        self._wake_at(max(1, min(READ_BATCH_BYTES, wanted_bytes) - HELD_BYTES))

    def waiting_bytes(self) -> int:
        """Return how many bytes were received and not read yet; those that are still encrypted count as they are."""
        return super().waiting_bytes() + self._tls.pending()

    def _shut_down(self) -> None:
        # An SSLSocket's own shutdown would have it go on as a plain socket, and hand out what is encrypted.
        socket.socket.shutdown(self._tls, socket.SHUT_RDWR)


def joined(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    """Join pieces that are shorter than a record to their neighbours; long ones stay as they are."""
    short: list[memoryview] = []
    for piece in pieces:
        if short and sum(map(len, short)) + len(piece) > RECORD_BYTES:
            yield memoryview(b"".join(short))
            short = []
        if len(piece) >= RECORD_BYTES:
            yield piece
        elif len(piece):
            short.append(piece)
    if short:
        yield memoryview(b"".join(short))


async def accepted(sock: socket.socket, own: Certificate) -> TlsStream:
    """Shake hands with who has connected, and say whether it is let in.

    Raises:
        OSError: the handshake failed.
        ConfigError: its certificate does not let it in; it has been told.
    """
    tls = own.accepting.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    try:
        await _shake_hands(tls)
        stream = TlsStream(tls)
        refusal = _refusal(tls, own)
        reason = refusal.encode()[:LONGEST_REASON]
        await stream.write([memoryview(bytes([len(reason)]) + reason)])
        if refusal:
            raise ConfigError(refusal)
    except BaseException as error:
        _say_no(tls, error)
        tls.close()
        raise
    return stream


async def dialled(sock: socket.socket, own: Certificate) -> TlsStream:
    """Shake hands with whom one has connected to, and hear whether one is let in.

    Raises:
        OSError: the handshake failed.
        ConfigError: it is not to be talked to, or does not let this member in.
    """
    tls = own.dialling.wrap_socket(sock, do_handshake_on_connect=False)
    try:
        await _shake_hands(tls)
        if refusal := _refusal(tls, own):
            raise ConfigError(refusal)
        stream = TlsStream(tls)
        if refusal := await _heard(stream):
            raise ConfigError(f"it refuses: {refusal}")
    except BaseException:
        tls.close()
        raise
    return stream


async def _heard(stream: TlsStream) -> str:
    """Return why the other end refuses; "" if it does not."""
    length = bytearray(1)
    if not await stream.read_into(memoryview(length), 1):
        raise ConnectionResetError("it closed the connection after the TLS handshake")
    reason = bytearray(length[0])
    if reason:
        await stream.read_into(memoryview(reason), len(reason))
    return reason.decode("utf-8", "replace")


def _refusal(tls: ssl.SSLSocket, own: Certificate) -> str:
    try:
        return own.identity.stranger(peer_identity(tls.getpeercert())) or ""
    except ConfigError as error:
        return f"the other end: {error}"


def _say_no(tls: ssl.SSLSocket, error: BaseException) -> None:
    """See to it that the other end can hear why it is not let in.

    What has come and was not read is dropped, or the connection would be reset; and to who does not speak TLS, OpenSSL
    says nothing.
    """
    with contextlib.suppress(OSError):
        if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            socket.socket.send(tls, ALERT)
        socket.socket.recv(tls, UNREAD_BYTES)


async def _shake_hands(tls: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await _once(loop.add_reader, loop.remove_reader, tls.fileno())
        except ssl.SSLWantWriteError:
            await _once(loop.add_writer, loop.remove_writer, tls.fileno())
        else:
            return


async def _once(
    add: Callable[[int, Callable[[], None]], object], remove: Callable[[int], object], descriptor: int
) -> None:
    """Wait until a socket is ready."""
    ready = asyncio.get_running_loop().create_future()
    add(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)
