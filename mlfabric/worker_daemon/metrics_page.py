"""The metrics of a training process: one page for all models that it trains."""

from __future__ import annotations

import threading

from mlfabric.channels import ChannelOptions
from mlfabric.telemetry import MetricsPage, WorkerMetrics

__all__ = ["SharedPage"]

_pages: dict[tuple[str, int], SharedPage] = {}
_opening = threading.Lock()


class SharedPage:
    """A page that several daemons of this process show their metrics on; opened by :meth:`at`, closed by each."""

    def __init__(self, tcp: ChannelOptions, port: int) -> None:
        self.metrics = WorkerMetrics()
        self._page = MetricsPage(self.metrics.registry, tcp.bind, port, tcp.security)
        self._page.start()
        self._place = tcp.bind, port
        self._users = 0

    @staticmethod
    def at(tcp: ChannelOptions, port: int) -> SharedPage:
        """Return the page of this process at a port, 0 for any free one; it is opened if it is not yet.

        Raises:
            UsageError: the port is in use.
        """
        with _opening:
            page = _pages.get((tcp.bind, port)) or SharedPage(tcp, port)
            _pages[page._place] = page
            page._users += 1
            return page

    def close(self) -> None:
        """Use it no more; the last one closes it."""
        with _opening:
            self._users -= 1
            if not self._users:
                del _pages[self._place]
                self._page.stop()
