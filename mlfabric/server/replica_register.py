"""``register_as_replica``: a replica inside a Python program."""

from __future__ import annotations

from mlfabric.background import Background
from mlfabric.server.replica_service import ReplicaOptions, ReplicaService
from mlfabric.telemetry import MetricsPage, ServerMetrics

__all__ = ["ReplicaServer", "register_as_replica"]


class ReplicaServer(Background):
    """A running replica; made by ``mlfabric.register_as_replica``."""

    def __init__(self, options: ReplicaOptions, metrics_port: int | None) -> None:
        metrics = ServerMetrics()
        self._service = ReplicaService(options, metrics)
        tcp, port = options.tcp, metrics_port
        page = None if port is None else MetricsPage(metrics.registry, tcp.bind, port, tcp.security)
        super().__init__(f"mlfabric {options.name}", self._service.run, page)


def register_as_replica(options: ReplicaOptions, *, metrics_port: int | None = None) -> ReplicaServer:
    """Start a replica of a server in a thread of this process; it joins when scheduler and server are there.

    Args:
        options: see ``mlfabric.ReplicaOptions``.
        metrics_port: where /metrics is served; 0 any free port, None not at all.

    Raises:
        UsageError: an option cannot be used.
    """
    return ReplicaServer(options, metrics_port)
