"""The page that Prometheus scrapes: a registry behind a port, served by a thread."""

from __future__ import annotations

import logging
import socket
import sys
from socketserver import ThreadingMixIn
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from mlfabric.errors import UsageError
from mlfabric.security import LOOPBACK, Security

SILENCE_S = 30
log = logging.getLogger("mlfabric.telemetry")


class MetricsPage:
    """A registry's page for Prometheus to scrape, served by a thread.

    Args:
        registry: what is shown.
        bind_host: address to listen on.
        port: port to listen on; 0 takes any that is free.
        security: of the member; under TLS who scrapes needs a certificate as well.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        bind_host: str = "127.0.0.1",
        port: int = 0,
        security: Security = LOOPBACK,
    ) -> None:
        self._registry = registry
        self._bind_host = bind_host
        self._port = port
        self._security = security
        self._serving: tuple[WSGIServer, Thread] | None = None

    def start(self) -> int:
        """Serve the page and return the port that it is on.

        Raises:
            UsageError: the port is in use, the address is not one of this machine, or it wants TLS.
        """
        assert self._serving is None, "the page was started twice"
        try:
            server = self._listen()
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics page: cannot listen on {self._bind_host}:{self._port} ({error});"
                " give an address of this machine and a free port, or port 0 for any"
            ) from error
        thread = Thread(target=server.serve_forever, name="metrics page", daemon=True)
        thread.start()
        self._serving = server, thread
        return int(server.server_port)

    def _listen(self) -> WSGIServer:
        self._security.check(self._bind_host, "--bind")
        kind = _Server6 if ":" in self._bind_host else _Server
        server = make_server(self._bind_host, self._port, make_wsgi_app(self._registry), kind, _Request)
        if (own := self._security.certificate) is not None:
            # The handshake is left to the thread of the request: who is silent in it keeps nobody else waiting.
            server.socket = own.accepting.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        return server

    def stop(self) -> None:
        """Stop serving and free the port; waits up to half a second for the thread."""
        if self._serving is not None:
            server, thread = self._serving
            self._serving = None
            server.shutdown()
            server.socket.shutdown(socket.SHUT_RDWR)  # a process that was forked from this one may have it, too
            server.server_close()
            thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each request."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a request that failed; who comes without a certificate fails so."""
        log.info("metrics page: a request of %s failed: %s", client_address, sys.exc_info()[1])


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Request(WSGIRequestHandler):
    """Logs nothing; ends a connection that is silent."""

    timeout = SILENCE_S

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
