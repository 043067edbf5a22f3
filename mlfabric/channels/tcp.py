"""Data channel over TCP, on any asyncio event loop (also uvloop).

Bytes go from the sender's buffer to the kernel and from the kernel into the receiver's buffer, with no copy between:
plain nonblocking ``sendmsg`` and ``recv_into`` with the loop's readiness callbacks.

A network card can be emulated: one token bucket per direction, shared by all connections of the endpoint. The receive
side reads slowly, so that TCP's backpressure reaches the sender; kernel buffers are kept small then, or they would
hide the rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlfabric.addresses import MAX_PORT, split_address
from mlfabric.channels import sockets
from mlfabric.channels.backlog import Path
from mlfabric.channels.base import Connection, Handler
from mlfabric.channels.bytestream import MOST_CONNECTIONS, Limits
from mlfabric.channels.limiter import TokenBucket, chunk_bytes
from mlfabric.channels.roster import Roster
from mlfabric.channels.views import drop_front
from mlfabric.errors import ConfigError, UnavailableError, UsageError

__all__ = ["TcpChannel", "TcpOptions", "TcpStream"]

log = logging.getLogger(__name__)

IOV_MAX = 1024
STEPS_AT_ONCE = 8
LEAST_BATCHED_BYTES = 4 * 1024
SHORT_BATCH_BYTES = 256 * 1024
BATCH_BYTES = 1024 * 1024
PIECE_BATCH_BYTES = 4 * 1024 * 1024
ACCEPT_RETRY_S = 0.1
MIN_BUFFER_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpOptions:
    """How an endpoint uses TCP.

    Args:
        bind: address to listen on; "0.0.0.0" or "::" listens on all, and wants ``advertised_host``.
        advertised_host: what others dial; "" means ``bind``.
        ports: first and last port to listen on; (0, 0) takes any free one.
        up_bps, down_bps: rates of the emulated network card in bit/s; 0 emulates none.
        max_payload_bytes: a longer announced payload is refused; > 0.
        connect_timeout_s: > 0.
        most_connections: that others may have open here at a time, > 0; who comes then is cut off.
        most_silent: of these, that may have sent no frame yet, > 0; the oldest is closed for a newer one.
        silent_s: so long a connection may be open before its first frame is here, > 0.
    """

    bind: str = "127.0.0.1"
    advertised_host: str = ""
    ports: tuple[int, int] = (0, 0)
    up_bps: int = 0
    down_bps: int = 0
    max_payload_bytes: int = 64 << 30
    connect_timeout_s: float = 10.0
    most_connections: int = MOST_CONNECTIONS
    most_silent: int = 512
    silent_s: float = 10.0

    def __post_init__(self) -> None:
        lo, hi = self.ports
        if sockets.is_wildcard(self.bind) and not self.advertised_host:
            raise ConfigError(f"bind={self.bind!r} cannot be dialled; give advertised_host, the name that others reach")
        if sockets.is_wildcard(self.advertised_host) and self.advertised_host:
            raise ConfigError(f"advertised_host={self.advertised_host!r} cannot be dialled; give a name or one address")
        checks = [
            (
                "ports",
                self.ports,
                0 < lo <= hi <= MAX_PORT or (lo, hi) == (0, 0),
                f"1 to {MAX_PORT}, lo <= hi, or (0, 0) for any",
            ),
            ("up_bps", self.up_bps, self.up_bps >= 0, ">= 0; 0 emulates no network card"),
            ("down_bps", self.down_bps, self.down_bps >= 0, ">= 0; 0 emulates no network card"),
            ("max_payload_bytes", self.max_payload_bytes, self.max_payload_bytes > 0, "> 0"),
            ("connect_timeout_s", self.connect_timeout_s, self.connect_timeout_s > 0, "> 0"),
            ("most_connections", self.most_connections, self.most_connections > 0, "> 0"),
            ("most_silent", self.most_silent, self.most_silent > 0, "> 0"),
            ("silent_s", self.silent_s, self.silent_s > 0, "> 0"),
        ]
        for name, value, good, allowed in checks:
            if not good:
                raise ConfigError(f"TCP channel: {name}={value!r}; allowed: {allowed}")

    @property
    def buffer_bytes(self) -> int:
        """Kernel buffer per direction and connection; 0 leaves it to the kernel."""
        rates = [rate for rate in (self.up_bps, self.down_bps) if rate]
        return max(MIN_BUFFER_BYTES, chunk_bytes(min(rates))) if rates else 0


class TcpStream:
    """The bytes of one TCP connection; the socket is nonblocking and owned by the stream.

    After a few system calls the rest of a long transfer runs in the loop's readiness callback, one call a turn: the
    waiting task is not woken between, and however fast the peer is, other tasks get their turns.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._wake_bytes = 1
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
            rest[:] = drop_front(rest, self._sock.sendmsg(rest[:IOV_MAX]))
            return not rest

        if not _now(step):
            await self._when_ready(self._loop.add_writer, self._loop.remove_writer, step)

    def write_now(self, piece: memoryview) -> int:
        """Write as much as the kernel has room for."""
        try:
            return self._sock.send(piece)
        except BlockingIOError:
            return 0

    async def writable(self) -> None:
        """Wait until the kernel has room."""
        await self._when_ready(self._loop.add_writer, self._loop.remove_writer, lambda: True)

    async def drain(self) -> None:
        """Wait until the kernel has handed everything to the network; it may hold megabytes otherwise."""
        sockets.want_all_sent(self._sock, wanted=True)
        await self._when_ready(self._loop.add_writer, self._loop.remove_writer, lambda: True)
        sockets.want_all_sent(self._sock, wanted=False)

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more; fewer mean that no more will come."""
        at = 0

        def step() -> bool:
            nonlocal at
            n = self._sock.recv_into(view[at:])
            at += n
            if at_least >= LEAST_BATCHED_BYTES:
                most_bytes = BATCH_BYTES if at_least > BATCH_BYTES else SHORT_BATCH_BYTES
                self._wake_at(max(1, min(most_bytes, at_least - at)))
            return n == 0 or at >= at_least

        if not _now(step):
            await self._when_ready(self._loop.add_reader, self._loop.remove_reader, step)
        return at

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill one view after the other; tell whether all were filled."""
        at, ended = 0, False

        def step() -> bool:
            nonlocal view, at, ended
            n = self._sock.recv_into(view[at:] if at else view)
            at += n
            if at == len(view):
                view, at = full(), 0
            ended = n == 0
            self._wake_at(max(1, min(PIECE_BATCH_BYTES, len(view) - at)))
            return ended or not len(view)

        if not _now(step):
            await self._when_ready(self._loop.add_reader, self._loop.remove_reader, step)
        return not ended

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
        descriptor = self._sock.fileno()  # of a socket that is not registered the loop makes a text, with system calls

        def ready() -> None:
            try:
                finished = done.done() or step()
            except BlockingIOError:
                return
            except OSError as error:
                remove(descriptor)
                done.set_exception(error)
                return
            if finished:
                remove(descriptor)
                if not done.done():
                    done.set_result(None)

        add(descriptor, ready)
        try:
            await done
        finally:
            remove(descriptor)

    def spread(self, rate_bps: int) -> bool:
        """Have the kernel space packets out."""
        return sockets.spread(self._sock, rate_bps)

    def path(self) -> Path:
        """Return what the kernel knows of the way to the peer."""
        return sockets.path_of(self._sock)

    def unacknowledged_bytes(self) -> int:
        """Return how many of the bytes that were written the peer's kernel has not acknowledged."""
        return sockets.unacknowledged_bytes(self._sock)

    def waiting_bytes(self) -> int:
        """Return how many bytes the kernel has received that were not read yet."""
        return sockets.waiting_bytes(self._sock)

    def delivery_rate_bps(self) -> int:
        """Return the kernel's estimate of its sending rate in bit/s; 0 if unknown."""
        return sockets.delivery_rate_bps(self._sock)

    def stop(self, *, abrupt: bool) -> None:
        """Wake whoever waits in the stream; ``abrupt`` also drops what the kernel has not sent and resets the peer."""
        if abrupt:
            sockets.forget_unsent(self._sock)
        with contextlib.suppress(OSError):  # a connection that the peer has reset cannot be shut down
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def _now(step: Callable[[], bool]) -> bool:
    """Try a few steps without waiting; say whether they were all."""
    try:
        return any(step() for _ in range(STEPS_AT_ONCE))
    except BlockingIOError:
        return False


class TcpChannel:
    """One member's TCP endpoint; made anywhere, used inside one event loop."""

    def __init__(self, options: TcpOptions | None = None) -> None:
        self._options = options or TcpOptions()
        self._listener: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        up, down = self._options.up_bps, self._options.down_bps
        self._roster = Roster(
            Limits(
                max_payload_bytes=self._options.max_payload_bytes,
                most_connections=self._options.most_connections,
                most_silent=self._options.most_silent,
                silent_s=self._options.silent_s,
                up=(TokenBucket(up),) if up else (),
                down=(TokenBucket(down),) if down else (),
            )
        )

    async def listen(self, handler: Handler) -> str:
        """Accept connections, each served by ``handler``; return the advertised ``host:port``."""
        self._roster.check_open()
        if self._listener is not None:
            raise UsageError("this data channel listens already; one endpoint has one address")
        options = self._options
        self._listener = sockets.bind_listener(options.bind, options.ports, options.buffer_bytes)
        self._accept_from(self._listener, handler)
        return sockets.address_text(options.advertised_host or options.bind, self._listener.getsockname()[1])

    def _accept_from(self, listener: socket.socket, handler: Handler) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener, handler)

    def _accept(self, listener: socket.socket, handler: Handler) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("cannot accept a data connection, trying again in %s s: %s", ACCEPT_RETRY_S, error)
            loop.remove_reader(listener)
            self._retry = loop.call_later(ACCEPT_RETRY_S, self._accept_from, listener, handler)
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # the peer may be gone again already: then it has no name
            self._roster.serve(TcpStream(sock), handler)
            return
        sock.close()

    async def connect(self, address: str) -> Connection:
        """Open a connection to ``host:port``."""
        self._roster.check_open()
        host, port = split_address(address, "data address")
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                return self._roster.add(await self._dial(host, port))
        except TimeoutError as error:
            waited = f"no answer within {self._options.connect_timeout_s} s"
            raise UnavailableError(f"cannot reach {address}: {waited}") from error
        except OSError as error:
            raise UnavailableError(f"cannot reach {address}: {error.strerror or error}") from error

    async def _dial(self, host: str, port: int) -> TcpStream:
        loop = asyncio.get_running_loop()
        failure = OSError(errno.EADDRNOTAVAIL, "the name has no address")
        for family, kind, proto, _, sockaddr in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with contextlib.ExitStack() as undo:
                sock = undo.enter_context(socket.socket(family, kind, proto))
                sockets.prepare(sock, self._options.buffer_bytes)
                try:
                    await loop.sock_connect(sock, sockaddr)
                    stream = TcpStream(sock)
                except OSError as error:
                    failure = error
                    continue
                undo.pop_all()
                return stream
        raise failure

    async def close(self) -> None:
        """Stop accepting, cancel the handlers, close every connection; leave no task and no descriptor."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._roster.close()
