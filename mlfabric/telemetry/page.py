"""Pages over HTTP, served by a thread: what Prometheus scrapes, and what else a service has to show.

Nobody who asks badly, slowly or too often takes more than a few connections: there are at most 64, and one that has
sent no request after a while is broken off.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing, suppress
from functools import partial
from threading import Thread

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler

from mlfabric.errors import UsageError
from mlfabric.security import LOOPBACK, Security, is_loopback

SILENCE_S = 30.0
LOOK_S = 5.0
MOST_CONNECTIONS = 64
END_S = 0.5
ACCEPT_AGAIN_S = 0.5
TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MetricsPage:
    """A registry's page for Prometheus to scrape, and others beside it.

    Args:
        registry: what is shown at ``/metrics``.
        bind_host: address to listen on.
        port: port to listen on; 0 takes any that is free.
        security: of the member; under TLS who asks for metrics needs a certificate as well.
        others: adds further pages, for browsers, which may have none; they look themselves whom they show anything.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        bind_host: str = "127.0.0.1",
        port: int = 0,
        security: Security = LOOPBACK,
        others: Callable[[web.Application], None] | None = None,
    ) -> None:
        self._show = make_aiohttp_handler(registry)
        self._bind_host = bind_host
        self._port = port
        self._security = security
        self._others = others
        self._heard: set[object] = set()
        """Connections that have sent a request."""
        self._is_local = False
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event, Thread] | None = None

    def start(self) -> int:
        """Serve the pages and return the port that they are on.

        Raises:
            UsageError: the port is in use, the address is not one of this machine, or it wants TLS.
        """
        assert self._serving is None, "the page was started twice"
        self._security.check(self._bind_host, "--bind")
        try:
            family = socket.AF_INET6 if ":" in self._bind_host else socket.AF_INET
            listener = socket.create_server((self._bind_host, self._port), family=family)
            listener.setblocking(False)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics page: cannot listen on {self._bind_host}:{self._port} ({error});"
                " give an address of this machine and a free port, or port 0 for any"
            ) from error
        port = int(listener.getsockname()[1])
        self._is_local = is_loopback(self._bind_host)
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = Thread(target=_run, args=(loop, self._serve(listener, stop)), name="pages", daemon=True)
        self._serving = loop, stop, thread
        thread.start()
        return port

    def stop(self) -> None:
        """Stop serving and free the port; waits up to half a second for the thread."""
        if self._serving is not None:
            (loop, stop, thread), self._serving = self._serving, None
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    async def _serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        application = web.Application(middlewares=[self._checked])
        application.router.add_get("/metrics", self._metrics)
        if self._others is not None:
            self._others(application)
        own = self._security.certificate
        runner = web.AppRunner(
            application, access_log=None, keepalive_timeout=SILENCE_S, shutdown_timeout=END_S, handler_cancellation=True
        )
        await runner.setup()
        assert runner.server is not None, "it is set up"
        pages = runner.server

        tls = None if own is None else own.accepting if self._others is None else own.showing
        working = [self._accept(listener, pages, tls), self._break_off_silent(pages)]
        tasks = [asyncio.create_task(each) for each in working]
        try:
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # a process that was forked from this one may have it, too
            listener.close()
            await runner.cleanup()

    async def _accept(self, listener: socket.socket, pages: web.Server, tls: ssl.SSLContext | None) -> None:
        """Take connections in; refuse those that are too many."""
        loop, beginning = asyncio.get_running_loop(), dict[asyncio.BaseProtocol, asyncio.Task[None]]()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # as many files are open as may be: a page must not end for that
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len({*pages.connections, *beginning}) >= MOST_CONNECTIONS:  # one that has just begun is in both
                with closing(connection), suppress(OSError):
                    connection.send(TOO_MANY if tls is None else b"")
                continue
            one = pages()
            beginning[one] = asyncio.create_task(_begin(connection, one, tls))
            beginning[one].add_done_callback(partial(_forget, beginning, one))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        """Show the registry to whoever has a certificate, where there is TLS."""
        is_plain = self._security.certificate is None
        if not is_plain and (request.transport is None or not request.transport.get_extra_info("peercert")):
            raise web.HTTPForbidden(text="metrics are shown to who has a certificate of this fabric\n")
        return await self._show(request)

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note that a connection is in use; refuse what another site's page asks through somebody's browser."""
        self._heard.add(request.protocol)
        if self._is_local and not _is_this_machine(request.host):
            raise web.HTTPForbidden(text=f"host {request.host!r}; allowed here: localhost, or a loopback address\n")
        return await handler(request)

    async def _break_off_silent(self, pages: web.Server) -> None:
        loop, since_s = asyncio.get_running_loop(), dict[object, float]()
        while True:
            await asyncio.sleep(LOOK_S)
            here = pages.connections
            since_s = {one: since_s.get(one, loop.time()) for one in here}
            self._heard &= since_s.keys()
            for one in here:
                if one not in self._heard and loop.time() - since_s[one] >= SILENCE_S and one.transport is not None:
                    one.transport.abort()


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, None]) -> None:
    with closing(loop):
        loop.run_until_complete(work)
        loop.run_until_complete(loop.shutdown_asyncgens())


def _forget(beginning: dict[asyncio.BaseProtocol, asyncio.Task[None]], one: asyncio.BaseProtocol, _: object) -> None:
    del beginning[one]


async def _begin(connection: socket.socket, one: asyncio.BaseProtocol, tls: ssl.SSLContext | None) -> None:
    """Serve a connection, once TLS is agreed on."""
    with suppress(OSError):  # who comes with a certificate that is none, or goes at once
        timeout_s = None if tls is None else SILENCE_S
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: one, connection, ssl=tls, ssl_handshake_timeout=timeout_s
        )


def _is_this_machine(host: str) -> bool:
    """Tell whether a request's host is a name that no other site's page can have."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
