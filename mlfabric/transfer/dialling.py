"""The data connections that a member opens: kept to be used again, and broken off when the other end is gone.

Shell-level; workers and aggregators share it. Whoever uses a connection that is broken off meets an error there, as if
the other end had closed it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf.message import DecodeError

from mlfabric.channels import Channel, Connection
from mlfabric.errors import FabricError, UnavailableError
from mlfabric.transfer.exchange import TurnedAwayError

__all__ = ["Dialled"]


class Dialled:
    """Connections to any address.

    Args:
        channel: opens them.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._idle: defaultdict[str, list[Connection]] = defaultdict(list)
        self._busy: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._dialling: defaultdict[str, set[asyncio.Future[Connection]]] = defaultdict(set)

    @asynccontextmanager
    async def line(self, address: str) -> AsyncIterator[Connection]:
        """Give a connection for one transfer; only one whose framing is whole is kept.

        Raises:
            UnavailableError: the address cannot be reached, or was broken off meanwhile.
        """
        connection: Connection | None = None
        try:
            yield (connection := await self._take(address))
        except TurnedAwayError:
            self._keep(address, connection)
            raise
        except (FabricError, DecodeError):
            # whatever broke it may have broken idle ones to the same place
            self._drop(address, connection, *self._idle.pop(address, ()))
            raise
        except BaseException:
            self._drop(address, connection)
            raise
        else:
            self._keep(address, connection)

    async def _take(self, address: str) -> Connection:
        idle = self._idle[address]
        connection = idle.pop() if idle else await self._dial(address)
        self._busy[address][connection] = None
        return connection

    async def _dial(self, address: str) -> Connection:
        dialling = asyncio.ensure_future(self._channel.connect(address))
        self._dialling[address].add(dialling)
        task = asyncio.current_task()
        try:
            return await dialling
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            raise UnavailableError(f"{address} does not answer any more") from None
        finally:
            self._dialling[address].discard(dialling)

    def _keep(self, address: str, connection: Connection | None) -> None:
        """Let a connection be used again: nothing is on its way over it."""
        if connection in self._busy[address]:
            del self._busy[address][connection]
            self._idle[address].append(connection)

    def _drop(self, address: str, *connections: Connection | None) -> None:
        """Close connections in the middle of what they were for."""
        for connection in filter(None, connections):
            self._busy[address].pop(connection, None)
            connection.close()

    def drop_idle(self) -> None:
        """Close all connections that are kept: the other ends may close them at any moment."""
        idle, self._idle = self._idle, defaultdict(list)
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def break_off(self, address: str) -> None:
        """Close all connections to an address, and dial it no longer."""
        for dialling in self._dialling.pop(address, ()):
            dialling.cancel()
        for connection in (*self._busy.pop(address, ()), *self._idle.pop(address, ())):
            connection.close()

    def break_off_all(self) -> None:
        """Break off everything."""
        for address in [*{**self._dialling, **self._busy, **self._idle}]:
            self.break_off(address)
