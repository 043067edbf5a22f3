"""``register_as_server``: a parameter server inside a Python program, with callbacks."""

from __future__ import annotations

from mlfabric.server.callbacks import RequestCallback, UpdateCallback
from mlfabric.server.service import ServerOptions, ServerService
from mlfabric.shell.background import Background
from mlfabric.telemetry import ServerMetrics

__all__ = ["Server", "register_as_server"]


class Server(Background):
    """A running server; made by ``mlfabric.register_as_server``."""

    def __init__(self, options: ServerOptions, metrics_port: int | None) -> None:
        metrics = ServerMetrics()
        # First, for it may refuse what it is to resume from: then nothing else has been started.
        self._service = ServerService(options, metrics)
        super().__init__(options, self._service.run, metrics.registry, metrics_port)

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Call ``callback(model, commit, view)`` after each commit from now on, in the server's thread.

        In force when this returns, for every model, whether it is here or comes later; initial weights are no commit.
        It should be brief: nothing else is done meanwhile. If it raises, the server ends with that error.

        Args:
            callback: told of the model's name, the ``mlfabric.Commit`` (update, version, delay, ...), and the
                ``mlfabric.ModelView`` of the model with it. Updates that were committed together, as a sum, have one
                view: of the version after the last of them.
        """
        self.check()
        self._service.callbacks.of_updates.append(callback)

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Call ``callback(model, get, view)`` when a get begins to be served, from now on, in the server's thread.

        In force when this returns. It should be brief. If it raises, the server ends with that error.

        Args:
            callback: told of the model's name, the ``mlfabric.GetId`` (worker, ...), and the ``mlfabric.ModelView`` of
                the version that is being sent.
        """
        self.check()
        self._service.callbacks.of_requests.append(callback)


def register_as_server(options: ServerOptions, *, metrics_port: int | None = None) -> Server:
    """Start a parameter server in a thread of this process, and wait until the scheduler has admitted it.

    If it cannot go on (a callback raises, memory is short), its ``wait`` and ``stop`` raise the reason.

    Args:
        options: see ``mlfabric.ServerOptions``.
        metrics_port: where /metrics is served; 0 any free port, None not at all.

    Raises:
        UsageError: an option cannot be used.
        RefusedError: the scheduler refuses it, as its name is taken.
        FabricError: a checkpoint to resume from cannot be read.
    """
    return Server(options, metrics_port)
