"""The bytes of one TCP connection: plain nonblocking system calls, readiness callbacks, the kernel's own figures."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable, Sequence

from mlfabric.channels import sockets
from mlfabric.channels.backlog import Path
from mlfabric.channels.views import chunked, drop_front, total_bytes

__all__ = ["TcpStream"]

IOV_MAX = 1024
STEPS_AT_ONCE = 8
SHORT_BATCH_BYTES = 256 * 1024
BATCH_BYTES = 1024 * 1024
PIECE_BATCH_BYTES = 4 * 1024 * 1024
EMPTY = memoryview(b"")
SYSTEM_DEFAULT = 0
SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; not in Python's socket module
UNLIMITED_BYTES_PER_S = (1 << 64) - 1
TCP_INFO_BYTES = 256
SEGMENT_OFFSET = 16
MIN_RTT_OFFSET = 148
NO_RTT_US = 0xFFFFFFFF
SIOCOUTQNSD = 0x894B  # linux/sockios.h: of what was written, how much was never sent
SO_BUF_LOCK = 72  # asm-generic/socket.h, since Linux 5.14: which buffers the kernel leaves as they are
PACKET_BYTES = 1408
"""As many as one packet carries on nearly all links."""
HELD_NS = 30_000_000
LEAST_HELD_BYTES = 4096
MOST_HELD_BYTES = 64 * 1024
"""Of a stream that may have more than this on its way nothing is held back: its links are fast."""


class TcpStream:
    """The bytes of one TCP connection; the socket is nonblocking and owned by the stream.

    After a few system calls the rest of a long transfer runs in the loop's readiness callback, one call a turn: the
    waiting task is not woken between, and however fast the peer is, other tasks get their turns.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._wake_bytes = 1
        self._held_bytes = 0
        self._usual_buffer = (0, 0)
        host, port, *_ = sock.getpeername()
        self._peer = sockets.address_text(host, port)

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._peer

    async def write(self, pieces: Sequence[memoryview]) -> None:
        """Write all pieces, many of them in one system call."""
        rest = list(pieces)

        def step() -> bool:
            rest[:] = drop_front(rest, self._send(rest))
            return not rest

        await self._until_written(step)

    async def _until_written(self, step: Callable[[], bool]) -> None:
        if not _now(step):
            await self._when_ready(self._loop.add_writer, self._loop.remove_writer, step)

    def write_now(self, piece: memoryview) -> int:
        """Write as much as the kernel has room for."""
        try:
            return self._send([piece])
        except BlockingIOError:
            return 0

    def _send(self, pieces: Sequence[memoryview]) -> int:
        """Hand over what there is room for; return how many bytes that were."""
        if self._held_bytes:
            return self._send_packets(pieces)
        return self._sock.sendmsg(pieces[:IOV_MAX])

    def _send_packets(self, pieces: Sequence[memoryview]) -> int:
        """Hand over one packet after the other: what comes in one piece is taken in beyond the buffer's size."""
        sent_bytes = 0
        try:
            for packet in chunked(pieces, max(1, self._held_bytes // 4 // PACKET_BYTES) * PACKET_BYTES):
                taken_bytes = self._sock.sendmsg(packet, (), socket.MSG_EOR)
                sent_bytes += taken_bytes
                if taken_bytes < total_bytes(packet):
                    break
        except BlockingIOError:
            if not sent_bytes:
                raise
        return sent_bytes

    async def readable(self) -> None:
        """Wait until something has come."""
        await self._when_ready(self._loop.add_reader, self._loop.remove_reader, lambda: True)

    async def writable(self) -> None:
        """Wait until the kernel has room."""
        await self._when_ready(self._loop.add_writer, self._loop.remove_writer, lambda: True)

    async def drain(self) -> None:
        """Wait until the kernel has handed everything to the network; it may hold megabytes otherwise."""
        if not self._queued(SIOCOUTQNSD):
            return
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1)  # writable when all is sent
        await self.writable()
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, SYSTEM_DEFAULT)

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more; fewer mean that no more will come."""
        batch_bytes = BATCH_BYTES if at_least > BATCH_BYTES else SHORT_BATCH_BYTES
        at, _ = await self._read(view, at_least, lambda: EMPTY, batch_bytes)
        return at

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill ``view``, and then whatever ``full`` returns, until that is empty; tell whether all were filled."""
        _, ended = await self._read(view, len(view), full, PIECE_BATCH_BYTES)
        return not ended

    async def _read(
        self, view: memoryview, at_least: int, full: Callable[[], memoryview], batch_bytes: int
    ) -> tuple[int, bool]:
        """Read into one view after the other; tell how much is in the last, and whether the stream has ended.

        Args:
            at_least: so much of the first.
            batch_bytes: of fewer nobody is woken, if so many are wanted.
        """
        at, ended = 0, False

        def step() -> bool:
            nonlocal view, at_least, at, ended
            taken = 0
            try:
                while True:
                    n = self._receive(view[at:] if at else view)
                    at, taken, ended = at + n, taken + n, n == 0
                    if at >= at_least and (following := full()):
                        view, at_least, at = following, len(following), 0
                    if ended or at >= at_least:
                        return True
                    if not self._goes_on(taken):
                        return False
            finally:
                self._wait_for(at_least - at, batch_bytes)

        if not _now(step):
            await self._when_ready(self._loop.add_reader, self._loop.remove_reader, step)
        return at, ended

    def _receive(self, room: memoryview) -> int:
        return self._sock.recv_into(room)

    def _goes_on(self, taken_bytes: int) -> bool:
        """Tell whether to read on in this turn: who has got something may get more in the next."""
        return False

    def _wait_for(self, wanted_bytes: int, batch_bytes: int) -> None:
        self._wake_at(max(1, min(batch_bytes, wanted_bytes)))

    def _wake_at(self, n_bytes: int) -> None:
        """Have the socket count as readable from ``n_bytes`` on: a transfer in fewer, longer reads costs less.

        The kernel takes half the receive buffer for a mark beyond that, and the peer's end or reset passes any mark.
        """
        if n_bytes != self._wake_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, n_bytes)
            self._wake_bytes = n_bytes

    async def _when_ready(
        self,
        add: Callable[[int, Callable[[], None]], object],
        remove: Callable[[int], object],
        step: Callable[[], bool],
    ) -> None:
        """Call ``step`` whenever the socket is ready, until it returns True."""
        done: asyncio.Future[None] = self._loop.create_future()
        is_watched = True
        descriptor = self._sock.fileno()  # of a socket that is not registered the loop makes a text, with system calls

        def ready() -> None:
            nonlocal is_watched
            try:
                finished = done.done() or step()
            except BlockingIOError:
                return
            except OSError as error:
                remove(descriptor)
                is_watched = False
                done.set_exception(error)
                return
            if finished:
                remove(descriptor)
                is_watched = False
                if not done.done():
                    done.set_result(None)

        add(descriptor, ready)
        try:
            await done
        finally:
            if is_watched:
                remove(descriptor)

    def spread(self, rate_bps: int) -> bool:
        """Have the kernel space packets out at about a rate, 0 not any longer; tell whether it can."""
        bytes_per_s = max(1, rate_bps // 8) if rate_bps else UNLIMITED_BYTES_PER_S
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", bytes_per_s))
        except OSError:
            return False
        return True

    def hold_back(self, rate_bps: int) -> None:
        """Have little more on its way than a rate carries in a round trip, 0 for as much as TCP lets through.

        The send buffer holds all that was not acknowledged, so it is made small. A kernel that cannot be told to look
        after its size again (before Linux 5.14) holds nothing back.
        """
        held_bytes = 0
        if rate_bps:
            held_bytes = max(LEAST_HELD_BYTES, rate_bps * (HELD_NS + 2 * self.path().rtt_ns) // (8 * 10**9))
        if held_bytes > MOST_HELD_BYTES:
            held_bytes = 0
        if held_bytes == self._held_bytes:
            return
        if not self._held_bytes:
            try:
                lock = self._sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
            except OSError:
                return
            self._usual_buffer = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2, lock
        usual_bytes, usual_lock = self._usual_buffer
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, held_bytes or usual_bytes)
        if not held_bytes:
            self._sock.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, usual_lock)
        self._held_bytes = held_bytes

    def path(self) -> Path:
        """Return what the kernel knows of the way to the peer (TCP_INFO)."""
        rtt_us = self._info(MIN_RTT_OFFSET)
        return Path(self._info(SEGMENT_OFFSET), 0 if rtt_us == NO_RTT_US else 1000 * rtt_us)

    def _info(self, offset: int) -> int:
        """Return a number of TCP_INFO; 0 if this kernel's is shorter."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        return int.from_bytes(info[offset : offset + 4], sys.byteorder) if len(info) >= offset + 4 else 0

    def unacknowledged_bytes(self) -> int:
        """Return how many of the bytes that were written the peer's kernel has not acknowledged."""
        return self._queued(termios.TIOCOUTQ)

    def waiting_bytes(self) -> int:
        """Return how many bytes the kernel has received that were not read yet."""
        return self._queued(termios.FIONREAD)

    def _queued(self, which: int) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._sock.fileno(), which, bytes(4)))[0])

    def stop(self, *, abrupt: bool) -> None:
        """Wake whoever waits in the stream; ``abrupt`` also drops what the kernel has not sent and resets the peer."""
        if abrupt:
            sockets.forget_unsent(self._sock)
        with contextlib.suppress(OSError):  # a connection that the peer has reset cannot be shut down
            self._shut_down()

    def _shut_down(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def _now(step: Callable[[], bool]) -> bool:
    """Try a few steps without waiting; say whether they were all."""
    try:
        for _ in range(STEPS_AT_ONCE):
            if step():
                return True
    except BlockingIOError:
        pass
    return False
