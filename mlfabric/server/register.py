"""``register_as_server``: a parameter server inside a Python program, with callbacks."""

from __future__ import annotations

from mlfabric.background import Background
from mlfabric.server.service import RequestCallback, ServerOptions, ServerService, UpdateCallback
from mlfabric.telemetry import MetricsPage, ServerMetrics

__all__ = ["Server", "register_as_server"]


class Server(Background):
    """A running server; made by ``mlfabric.register_as_server``."""

    def __init__(self, options: ServerOptions, metrics_port: int | None) -> None:
        metrics = ServerMetrics()
        # First, for it may refuse what it is to resume from: then nothing else has been started.
        self._service = ServerService(options, metrics)
        tcp, port = options.tcp, metrics_port
        page = None if port is None else MetricsPage(metrics.registry, tcp.bind, port, tcp.security)
        super().__init__(f"mlfabric {options.name}", self._service.run, page)

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Call ``callback(model, commit)`` after each commit, in the server's thread; it should be brief."""
        self.soon(lambda: self._service.register_update_callback(callback))

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Call ``callback(model, get, version)`` when a get begins to be served; it should be brief."""
        self.soon(lambda: self._service.register_request_callback(callback))


def register_as_server(options: ServerOptions, *, metrics_port: int | None = None) -> Server:
    """Start a parameter server in a thread of this process; it joins when the scheduler is there.

    Args:
        options: see ``mlfabric.ServerOptions``.
        metrics_port: where /metrics is served; 0 any free port, None not at all.

    Raises:
        UsageError: an option cannot be used.
        FabricError: a checkpoint to resume from cannot be read.
    """
    return Server(options, metrics_port)
