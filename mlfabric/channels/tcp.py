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
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from mlfabric.addresses import MAX_PORT, split_address
from mlfabric.channels import sockets, tls
from mlfabric.channels.connection import Connection, Handler
from mlfabric.channels.interfaces import LinkCounter, counter_of
from mlfabric.channels.limiter import TokenBucket, chunk_bytes
from mlfabric.channels.limits import MOST_CONNECTIONS, Limits
from mlfabric.channels.roster import Roster
from mlfabric.channels.tcpstream import TcpStream
from mlfabric.errors import ConfigError, UnavailableError, UsageError
from mlfabric.security import LOOPBACK, Certificate, Security, explain

__all__ = ["TcpChannel", "TcpOptions"]

log = logging.getLogger(__name__)

_Found = tuple[Any, Any, int, str, tuple[Any, ...]]

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
        connect_timeout_s: > 0; the longest wait for a TLS handshake, too.
        most_connections: that others may have open here at a time, > 0; who comes then is cut off.
        most_silent: of these, that may have sent no frame yet, > 0; the oldest is closed for a newer one. As many more
            may be in a TLS handshake.
        silent_s: so long a connection may be open before its first frame is here, > 0.
        security: of this endpoint, and of all other connections of the member that it belongs to.
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
    security: Security = LOOPBACK

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
        ]
        for name in ("max_payload_bytes", "connect_timeout_s", "most_connections", "most_silent", "silent_s"):
            checks.append((name, getattr(self, name), getattr(self, name) > 0, "> 0"))
        for name, value, good, allowed in checks:
            if not good:
                raise ConfigError(f"TCP channel: {name}={value!r}; allowed: {allowed}")

    @property
    def buffer_bytes(self) -> int:
        """Kernel buffer per direction and connection; 0 leaves it to the kernel."""
        rates = [rate for rate in (self.up_bps, self.down_bps) if rate]
        return max(MIN_BUFFER_BYTES, chunk_bytes(min(rates))) if rates else 0


class TcpChannel:
    """One member's TCP endpoint; made anywhere, used inside one event loop."""

    def __init__(self, options: TcpOptions | None = None) -> None:
        self._options = options or TcpOptions()
        self._listener: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._entering: dict[asyncio.Task[None], None] = {}
        self._found: dict[str, Sequence[_Found]] = {}
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
        """Accept connections, each served by ``handler`` in its own task.

        Returns:
            The ``host:port`` under which others reach this endpoint.

        Raises:
            UsageError: the address or all its ports are taken or not to be had, or it listens already.
        """
        self._roster.check_open()
        if self._listener is not None:
            raise UsageError("this data channel listens already; one endpoint has one address")
        options = self._options
        options.security.check(options.bind, "--bind")
        self._listener = sockets.bind_listener(options.bind, options.ports, options.buffer_bytes)
        self._accept_from(self._listener, handler)
        return self._address_of(self._listener)

    def link_counter(self) -> LinkCounter | None:
        """Return what counts the bytes of the interface that others reach; None if it is a loopback or unknown."""
        return None if self._listener is None else counter_of(self._address_of(self._listener))

    def _address_of(self, listener: socket.socket) -> str:
        options = self._options
        return sockets.address_text(options.advertised_host or options.bind, listener.getsockname()[1])

    def serve_by(self, handler: Handler) -> None:
        """Let another handler serve the connections that are accepted from now on."""
        if self._listener is None:
            raise UsageError("this data channel does not listen yet")
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._accept_from(self._listener, handler)

    def _accept_from(self, listener: socket.socket, handler: Handler) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener, handler)

    def _accept(self, listener: socket.socket, handler: Handler) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, (host, port, *_) = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("cannot accept a data connection, trying again in %s s: %s", ACCEPT_RETRY_S, error)
            loop.remove_reader(listener)
            self._retry = loop.call_later(ACCEPT_RETRY_S, self._accept_from, listener, handler)
            return
        sock.setblocking(False)
        if (own := self._options.security.certificate) is not None:
            self._enter(sock, self._let_in(sock, sockets.address_text(host, port), own, handler))
            return
        with contextlib.suppress(OSError):  # the peer may be gone again already: then it has no name
            self._roster.serve(TcpStream(sock), handler)
            return
        sock.close()

    def _enter(self, sock: socket.socket, handshake: Coroutine[Any, Any, None]) -> None:
        """Begin a handshake; of too many, end the oldest."""
        if len(self._entering) >= self._options.most_silent:
            oldest = next(iter(self._entering))
            del self._entering[oldest]
            oldest.cancel()

        def forget(task: asyncio.Task[None]) -> None:
            self._entering.pop(task, None)
            sock.close()  # if the task never began; else it is the stream's, and this does nothing

        task = asyncio.get_running_loop().create_task(handshake)
        self._entering[task] = None
        task.add_done_callback(forget)

    async def _let_in(self, sock: socket.socket, peer: str, own: Certificate, handler: Handler) -> None:
        """Shake hands with who has connected, and serve it if it may come in."""
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                stream = await tls.accepted(sock, own)
        except TimeoutError:
            why = f"no TLS handshake within {self._options.connect_timeout_s} s"
        except OSError as error:
            why = explain(error)
        except ConfigError as error:
            why = str(error)
        else:
            self._roster.serve(stream, handler)
            return
        log.warning("refused a data connection from %s: %s", peer, why)

    async def connect(self, address: str) -> Connection:
        """Open a connection to ``host:port``.

        Raises:
            UnavailableError: nobody answers there.
            UsageError: the address is malformed.
        """
        self._roster.check_open()
        host, port = split_address(address, "data address")
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                return self._roster.add(await self._dial(host, port))
        except TimeoutError as error:
            waited = f"no answer within {self._options.connect_timeout_s} s"
            raise UnavailableError(f"cannot reach {address}: {waited}") from error
        except OSError as error:
            raise UnavailableError(f"cannot reach {address}: {explain(error)}") from error
        except ConfigError as error:
            raise UnavailableError(f"cannot reach {address}: {error}") from error

    async def _dial(self, host: str, port: int) -> TcpStream:
        loop = asyncio.get_running_loop()
        failure, own = OSError(errno.EADDRNOTAVAIL, "the name has no address"), self._options.security.certificate
        for family, kind, proto, _, (ip, _, *scope) in await self._lookup(host):
            self._options.security.check(str(ip), "data address")
            with contextlib.ExitStack() as undo:
                sock = undo.enter_context(socket.socket(family, kind, proto))
                sockets.prepare(sock, self._options.buffer_bytes)
                try:
                    await loop.sock_connect(sock, (ip, port, *scope))
                    stream = TcpStream(sock) if own is None else await tls.dialled(sock, own)
                except OSError as error:
                    failure = error
                    continue
                undo.pop_all()
                return stream
        raise failure

    async def _lookup(self, host: str) -> Sequence[_Found]:
        """Return where a host may be reached; as it was before, in a process that exits: that cannot look names up."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except RuntimeError:
            if host not in self._found:
                raise OSError(errno.EADDRNOTAVAIL, "no name can be looked up while the process exits") from None
            return self._found[host]
        self._found[host] = found
        return found

    async def close(self) -> None:
        """Stop accepting, cancel the handlers, close every connection; leave no task and no descriptor."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.shutdown(socket.SHUT_RDWR)  # a process that was forked from this one may have it, too
            self._listener.close()
            self._listener = None
        for task in self._entering:
            task.cancel()
        await asyncio.gather(*self._entering, return_exceptions=True)
        await self._roster.close()
