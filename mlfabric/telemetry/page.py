"""The page that Prometheus scrapes: a registry behind a port, served by a thread."""

from __future__ import annotations

from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from mlfabric.errors import UsageError


class MetricsPage:
    """A registry's page for Prometheus to scrape, served by a thread.

    Args:
        registry: what is shown.
        bind_host: address to listen on.
        port: port to listen on; 0 takes any that is free.
    """

    def __init__(self, registry: CollectorRegistry, bind_host: str = "127.0.0.1", port: int = 0) -> None:
        self._registry = registry
        self._bind_host = bind_host
        self._port = port
        self._serving: tuple[WSGIServer, Thread] | None = None

    def start(self) -> int:
        """Serve the page and return the port that it is on.

        Raises:
            UsageError: the port is in use, or the address is not one of this machine.
        """
        assert self._serving is None, "the page was started twice"
        try:
            server, thread = start_http_server(self._port, self._bind_host, self._registry)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics page: cannot listen on {self._bind_host}:{self._port} ({error});"
                " give an address of this machine and a free port, or port 0 for any"
            ) from error
        self._serving = server, thread
        return int(server.server_port)

    def stop(self) -> None:
        """Stop serving and free the port; waits up to half a second for the thread."""
        if self._serving is not None:
            server, thread = self._serving
            self._serving = None
            server.shutdown()
            server.server_close()
            thread.join()
