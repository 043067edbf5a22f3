"""Who connects and how many: the most connections of an endpoint, and the most that have said nothing yet.

A connection costs a descriptor and memory before anybody knows whose it is. So there is an end to them: who comes when
all places are taken is cut off at once. And nobody can take the places by silence: a connection on which no whole frame
has come is closed after a while, and at once, the oldest first, when there are too many of them. What is
read ahead of a frame's turn is no more than its header and meta.
"""

from __future__ import annotations

import asyncio
import logging

from mlfabric.channels.limits import Limits
from mlfabric.channels.stream import Connection

__all__ = ["Reception"]

log = logging.getLogger(__name__)


class Reception:
    """Counts the connections that an endpoint has accepted.

    Args:
        limits: of the endpoint.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._silent: dict[Connection, asyncio.TimerHandle] = {}
        self._turned_away = 0

    def has_place(self, peer: str, open_connections: int) -> bool:
        """Tell whether one more may come in; log those that may not, ever more rarely."""
        if open_connections < self._limits.most_connections:
            return True
        self._turned_away += 1
        if self._turned_away & (self._turned_away - 1) == 0:
            words = "turned %s away, the %d. of all: %d data connections are open, as many as are allowed"
            log.warning(words, peer, self._turned_away, open_connections)
        return False

    def greet(self, connection: Connection) -> None:
        """Expect the first frame on a connection that was accepted."""
        if len(self._silent) >= self._limits.most_silent:
            self._send_off(next(iter(self._silent)))
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(self._limits.silent_s, self._send_off, connection)
        connection.when_heard(lambda: self.forget(connection))

    def forget(self, connection: Connection) -> None:
        """Expect nothing any more: a frame has come, or the connection has ended."""
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _send_off(self, connection: Connection) -> None:
        self.forget(connection)
        log.info("data connection from %s: no frame came", connection.peer)
        connection.close()
