"""Who is on an endpoint: its open connections and the tasks that serve accepted ones; and how many of them may be.

A connection costs a descriptor and memory before anybody knows whose it is. So there is an end to them: who comes when
all places are taken is cut off at once. And nobody can take the places by silence: a connection on which no whole frame
has come is closed after a while, and at once, the oldest first, when there are too many of them. What is
read ahead of a frame's turn is no more than its header and meta.
"""

from __future__ import annotations

import asyncio
import logging

from mlfabric.channels.base import ConnectionClosedError, Stream
from mlfabric.channels.connection import Connection, Handler
from mlfabric.channels.limits import Limits
from mlfabric.errors import FabricClosedError, FabricError

__all__ = ["Roster"]

log = logging.getLogger(__name__)


class Roster:
    """The connections and handler tasks of one endpoint, so that closing it leaves none of them.

    Args:
        limits: of the endpoint.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._silent: dict[Connection, asyncio.TimerHandle] = {}
        self._turned_away = 0
        self._connections: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def check_open(self) -> None:
        """Raise FabricClosedError if the endpoint has been closed."""
        if self._closed:
            raise FabricClosedError("this data channel was closed; make a new one")

    def add(self, stream: Stream) -> Connection:
        """Return a connection over ``stream`` that is closed with the endpoint."""
        connection = Connection(stream, self._limits, self._forget)
        self._connections[connection] = None
        if self._closed:
            connection.close()
        return connection

    def serve(self, stream: Stream, handler: Handler) -> None:
        """Run ``handler`` on an accepted stream in a task of its own and close the connection after it."""
        if self._closed or not self._has_place(stream.peer):
            stream.stop(abrupt=False)
            stream.close()
            return
        connection = self.add(stream)
        self._expect_frame(connection)
        task = asyncio.get_running_loop().create_task(_serve(connection, handler), name=f"serve {stream.peer}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _has_place(self, peer: str) -> bool:
        """Tell whether one more may come in; log those that may not, ever more rarely."""
        if len(self._tasks) < self._limits.most_connections:
            return True
        self._turned_away += 1
        if self._turned_away & (self._turned_away - 1) == 0:
            words = "turned %s away, the %d. of all: %d data connections are open, as many as are allowed"
            log.warning(words, peer, self._turned_away, len(self._tasks))
        return False

    def _expect_frame(self, connection: Connection) -> None:
        """Expect the first frame on a connection that was accepted."""
        if len(self._silent) >= self._limits.most_silent:
            self._send_off(next(iter(self._silent)))
        timer = asyncio.get_running_loop().call_later(self._limits.silent_s, self._send_off, connection)
        self._silent[connection] = timer
        connection.when_heard(lambda: self._expect_no_frame(connection))

    def _expect_no_frame(self, connection: Connection) -> None:
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _send_off(self, connection: Connection) -> None:
        self._expect_no_frame(connection)
        log.info("data connection from %s: no frame came", connection.peer)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._expect_no_frame(connection)

    async def close(self) -> None:
        """Cancel the handlers, close every connection, and wait until all are gone."""
        self._closed = True
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in tuple(self._connections):
            connection.close()
            await connection.wait_closed()


async def _serve(connection: Connection, handler: Handler) -> None:
    """Serve a connection; log what a peer or the network caused, hand a fault of our own to the loop: to the shell."""
    try:
        await handler(connection)
    except ConnectionClosedError as error:
        log.debug("data connection: %s", error)
    except FabricError as error:
        log.warning("data connection to %s ended: %s", connection.peer, error)
    except Exception as error:
        message = f"the handler of the data connection to {connection.peer} failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
    finally:
        connection.close()
