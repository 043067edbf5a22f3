"""Who is on an endpoint: its open connections and the tasks that serve accepted ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mlfabric.channels.base import ConnectionClosedError
from mlfabric.channels.limits import Limits
from mlfabric.channels.reception import Reception
from mlfabric.channels.stream import Connection, Handler
from mlfabric.channels.tcpstream import TcpStream
from mlfabric.errors import FabricClosedError, FabricError

__all__ = ["Roster"]

log = logging.getLogger(__name__)


class Roster:
    """The connections and handler tasks of one endpoint, so that closing it leaves none of them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reception = Reception(limits)
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def check_open(self) -> None:
        """Raise FabricClosedError if the endpoint has been closed."""
        if self._closed:
            raise FabricClosedError("this data channel was closed; make a new one")

    def add(self, stream: TcpStream) -> Connection:
        """Return a connection over ``stream`` that is closed with the endpoint."""
        connection = Connection(stream, self._limits, self._connections.discard)
        self._connections.add(connection)
        if self._closed:
            connection.close()
        return connection

    def serve(self, stream: TcpStream, handler: Handler) -> None:
        """Run ``handler`` on an accepted stream in a task of its own and close the connection after it."""
        if not self._reception.has_place(stream.peer, len(self._tasks)):
            stream.stop(abrupt=False)
            stream.close()
            return
        connection = self.add(stream)
        self._reception.greet(connection)
        task = asyncio.get_running_loop().create_task(_serve(connection, handler), name=f"serve {stream.peer}")
        self._tasks.add(task)
        task.add_done_callback(self._forget(connection))

    def _forget(self, connection: Connection) -> Callable[[asyncio.Task[None]], None]:
        def forget(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._reception.forget(connection)
            connection.close()
            if not task.cancelled():
                _report(task, connection.peer)

        return forget

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
    await handler(connection)


def _report(task: asyncio.Task[None], peer: str) -> None:
    """Log what a peer or the network caused; hand a fault of our own to the loop, which belongs to the shell."""
    error = task.exception()
    if isinstance(error, ConnectionClosedError):
        log.debug("data connection: %s", error)
    elif isinstance(error, FabricError):
        log.warning("data connection to %s ended: %s", peer, error)
    elif error is not None:
        context = {"message": f"the handler of the data connection to {peer} failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
