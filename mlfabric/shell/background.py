"""A service in a thread of this process, with its metrics page. Shell-level; the ``register_as_...`` doors share it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from mlfabric.errors import FabricClosedError
from mlfabric.shell.member_shell import MemberOptions
from mlfabric.telemetry import MetricsPage

__all__ = ["Background"]


class Background:
    """A running service that has joined the fabric; a context manager that stops it.

    Args:
        options: of the service.
        run: serves in an event loop of its own until the event is set, then drains; calls back when it has joined.
        registry: its metrics.
        metrics_port: where their page is served; 0 any free port, None not at all.

    Raises:
        UsageError: the page's port is in use, or an option cannot be used; nothing goes on running.
        RefusedError: the scheduler refused it; nothing goes on running.
    """

    def __init__(
        self,
        options: MemberOptions,
        run: Callable[[asyncio.Event, Callable[[], None]], Awaitable[None]],
        registry: CollectorRegistry,
        metrics_port: int | None,
    ) -> None:
        self._page: MetricsPage | None = None
        if metrics_port is not None:
            self._page = MetricsPage(registry, options.tcp.bind, metrics_port, options.tcp.security)
            self._page.start()
        self._serve = run
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._joined: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=f"mlfabric {options.name}", daemon=True)
        self._thread.start()
        try:
            self._joined.result()
        finally:
            if not self._has_joined():
                self._end()

    def _has_joined(self) -> bool:
        return self._joined.done() and self._joined.exception() is None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._served())
        except Exception as error:  # handed to whoever waits for this thread
            self._error = error
            if not self._joined.done():
                self._joined.set_exception(error)
        finally:
            self._loop.close()

    async def _served(self) -> None:
        await self._serve(self._stop, self._note_joined)

    def _note_joined(self) -> None:
        if not self._joined.done():
            self._joined.set_result(None)

    def check(self) -> None:
        """Check that the service has not ended.

        Raises:
            FabricClosedError: it was stopped.
            Exception: it could not go on, for this reason.
        """
        if not self._thread.is_alive():
            self.wait()
            raise FabricClosedError("this service was stopped; register another one")

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the service ends; raise what ended it, if anything did.

        Raises:
            RefusedError: the scheduler refused it when it came back.
            Exception: it could not go on, for this reason: a callback raised it, or memory was short.
        """
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Drain and leave the fabric, and raise what ``wait`` does; a second call ends nothing more."""
        self._end()
        self.wait()

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._page is not None:
            self._page.stop()
            self._page = None
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
