"""``register_as_replica``: a replica inside a Python program."""

from __future__ import annotations

from mlfabric.server.callbacks import ReplicaCallback
from mlfabric.server.replica_service import ReplicaOptions, ReplicaService
from mlfabric.shell.background import Background
from mlfabric.telemetry import ServerMetrics

__all__ = ["ReplicaServer", "register_as_replica"]


class ReplicaServer(Background):
    """A running replica; made by ``mlfabric.register_as_replica``."""

    def __init__(self, options: ReplicaOptions, metrics_port: int | None) -> None:
        metrics = ServerMetrics()
        self._service = ReplicaService(options, metrics)
        super().__init__(options, self._service.run, metrics.registry, metrics_port)

    def register_update_callback(self, callback: ReplicaCallback) -> None:
        """Call ``callback(model, view)`` once for each version that a model reaches here, in the replica's thread.

        That are the version with which it is seeded, then each that it is brought forward to: a replica that may be
        behind makes many of its server's steps at once, and does not reach the versions between. Once it has taken its
        server's place, it reaches those that it commits. In force when this returns; what was reached before is not
        told. It should be brief: nothing else is done meanwhile. If it raises, the replica ends with that error.

        Args:
            callback: told of the model's name and the ``mlfabric.ModelView`` of that version.
        """
        self.check()
        self._service.callbacks.of_versions.append(callback)


def register_as_replica(options: ReplicaOptions, *, metrics_port: int | None = None) -> ReplicaServer:
    """Start a replica of a server in a thread of this process; waits until both scheduler and server are there.

    If it cannot go on, its ``wait`` and ``stop`` raise the reason.

    Args:
        options: see ``mlfabric.ReplicaOptions``.
        metrics_port: where /metrics is served; 0 any free port, None not at all.

    Raises:
        UsageError: an option cannot be used.
        RefusedError: the scheduler refuses it, as its name is taken.
    """
    return ReplicaServer(options, metrics_port)
