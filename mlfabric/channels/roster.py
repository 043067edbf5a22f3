"""Who is on an endpoint: its open connections and the tasks that serve accepted ones."""

from __future__ import annotations

import asyncio
import logging

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
        connection = Connection(stream, self._limits, self._forget)
        self._connections.add(connection)
        if self._closed:
            connection.close()
        return connection

    def serve(self, stream: TcpStream, handler: Handler) -> None:
        """Run ``handler`` on an accepted stream in a task of its own and close the connection after it."""
        if self._closed or not self._reception.has_place(stream.peer, len(self._tasks)):
            stream.stop(abrupt=False)
            stream.close()
            return
        connection = self.add(stream)
        self._reception.greet(connection)
        task = asyncio.get_running_loop().create_task(_serve(connection, handler), name=f"serve {stream.peer}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._reception.forget(connection)

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
