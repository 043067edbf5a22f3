"""A service in a thread of this process, with its metrics page. Shell-level; the ``register_as_...`` doors share it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from mlfabric.telemetry import MetricsPage

__all__ = ["Background"]


class Background:
    """A running service; a context manager that stops it.

    Args:
        name: of the thread.
        run: serves in an event loop of its own until the event is set, then drains.
        page: of its metrics; None for none.

    Raises:
        UsageError: the page's port is in use; nothing was started.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[asyncio.Event], Awaitable[None]],
        page: MetricsPage | None,
    ) -> None:
        self._page = page
        if self._page is not None:
            self._page.start()
        self._serve = run
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._served())
        except Exception as error:  # handed to whoever waits for this thread
            self._error = error
        finally:
            self._loop.close()

    async def _served(self) -> None:
        await self._serve(self._stop)

    def soon(self, call: Callable[[], None]) -> None:
        """Call this in the service's thread."""
        self._loop.call_soon_threadsafe(call)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the service ends; raise what ended it, if anything did.

        Raises:
            RefusedError: the scheduler refused it.
        """
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Drain and leave the fabric; a second call does nothing."""
        if self._thread.is_alive():
            self.soon(self._stop.set)
        if self._page is not None:
            self._page.stop()
            self._page = None
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
