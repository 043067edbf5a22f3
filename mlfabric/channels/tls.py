"""TLS over a TCP connection of the data channel: its bytes, and how it begins.

The socket stays the same nonblocking one; what is read is decrypted right into the receiver's buffer. After the
handshake the accepting side says in one short message whether it lets the other in: with TLS 1.3 the dialling one
would otherwise learn only at its first read that its certificate is not accepted.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence

from mlfabric.channels.tcpstream import TcpStream
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
            block = block[self._send([block]) :] or next(blocks, EMPTY)
            return not block

        await self._until_written(step)

    def _send(self, pieces: Sequence[memoryview]) -> int:
        try:
            return self._tls.send(pieces[0][:WRITE_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    def _receive(self, room: memoryview) -> int:
        try:
            return self._tls.recv_into(room)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None

    def _goes_on(self, taken_bytes: int) -> bool:
        """Tell whether to read on in this turn: what is decrypted already wakes nobody up."""
        return taken_bytes < TURN_BYTES or self._tls.pending() > 0

    def _wait_for(self, wanted_bytes: int, batch_bytes: int) -> None:
        self._wake_at(max(1, min(READ_BATCH_BYTES, wanted_bytes) - HELD_BYTES))

    def hold_back(self, rate_bps: int) -> None:
        """Do nothing: OpenSSL writes records, not packets."""

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
        stream = TlsStream(tls)
        await _shake_hands(stream, tls)
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
        stream = TlsStream(tls)
        await _shake_hands(stream, tls)
        if refusal := _refusal(tls, own):
            raise ConfigError(refusal)
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


async def _shake_hands(stream: TlsStream, tls: ssl.SSLSocket) -> None:
    while True:
        try:
            return tls.do_handshake()
        except ssl.SSLWantReadError:
            await stream.readable()
        except ssl.SSLWantWriteError:
            await stream.writable()
