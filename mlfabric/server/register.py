"""``register_as_server``: a parameter server inside a Python program, with callbacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mlfabric.server.service import RequestCallback, ServerOptions, ServerService, UpdateCallback
from mlfabric.telemetry import MetricsPage, ServerMetrics

__all__ = ["Server", "register_as_server"]


class Server:
    """A running server; made by ``mlfabric.register_as_server``."""

    def __init__(self, options: ServerOptions, metrics_port: int | None) -> None:
        self._options = options
        self._metrics = ServerMetrics()
        # First, for it may refuse what it is to resume from: then nothing else has been started.
        self._service = ServerService(options, self._metrics)
        self._page = MetricsPage(self._metrics.registry, options.tcp.bind, metrics_port or 0)
        if metrics_port is not None:
            self._page.start()
        self._has_page = metrics_port is not None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"mlfabric {options.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._service.run(self._stop))
        except Exception as error:  # handed to whoever waits for this thread
            self._error = error
        finally:
            self._loop.close()

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Call ``callback(model, commit)`` after each commit, in the server's thread; it should be brief."""
        self._soon(lambda: self._service.register_update_callback(callback))

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Call ``callback(model, get, version)`` when a get begins to be served; it should be brief."""
        self._soon(lambda: self._service.register_request_callback(callback))

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the server ends; raise what ended it, if anything did.

        Raises:
            RefusedError: the scheduler refused this server.
        """
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Drain, write checkpoints, leave the fabric; a second call does nothing."""
        if self._thread.is_alive():
            self._soon(self._stop.set)
        if self._has_page:
            self._page.stop()
            self._has_page = False
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


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
