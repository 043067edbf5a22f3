"""The data connections between workers that reduce: who comes to us is found by its ticket. Decides nothing.

A worker listens and dials others. Whoever dials begins with ``PAYLOAD`` or ``WANT`` and a ticket. It may be here before
the scheduler's word about that ticket is, so it waits for a while. Connections are kept and used again, one transfer at
a time; only one whose framing is whole goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mlfabric.channels import Channel, Connection, Frame, FrameKind
from mlfabric.errors import TransferError
from mlfabric.transfer.dialling import Dialled

__all__ = ["EXPECTED_WITHIN_S", "RoundLines", "Visit"]

EXPECTED_WITHIN_S = 10.0
_FIRST = (FrameKind.PAYLOAD, FrameKind.WANT)


@dataclass(frozen=True, slots=True)
class Visit:
    """Someone who came, and with what; ``over`` says that the transfer ended, and whether the framing is whole."""

    connection: Connection
    frame: Frame
    over: asyncio.Future[bool]


class RoundLines:
    """All connections of one worker.

    Args:
        channel: the daemon's data channel.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        dialled = Dialled(channel)
        self.line, self.drop_idle = dialled.line, dialled.drop_idle
        self._early: dict[bytes, Visit] = {}
        self._expected: dict[bytes, asyncio.Future[Visit]] = {}

    async def serve(self, connection: Connection) -> None:
        """Take visits on a connection that was opened to us, one after the other, until it ends."""
        while True:
            frame = await connection.receive()
            if frame.kind not in _FIRST or frame.ticket in self._early:
                wanted = ", ".join(kind.name for kind in _FIRST)
                raise TransferError(f"a {frame.kind.name} frame came; wanted one of {wanted} with a ticket of its own")
            if not await self._take_in(Visit(connection, frame, asyncio.get_running_loop().create_future())):
                return

    async def _take_in(self, visit: Visit) -> bool:
        """Hand a visit to whoever expects it; return whether the connection can go on."""
        ticket = visit.frame.ticket
        expected = self._expected.pop(ticket, None)
        if expected is not None and not expected.done():
            expected.set_result(visit)
            return await visit.over
        self._early[ticket] = visit
        timer = asyncio.get_running_loop().call_later(EXPECTED_WITHIN_S, self._expire, visit)
        try:
            whole = await visit.over
        finally:
            timer.cancel()
            self._early.pop(ticket, None)
        return whole

    def _expire(self, visit: Visit) -> None:
        if self._early.pop(visit.frame.ticket, None) is not None:
            visit.over.set_result(False)

    @asynccontextmanager
    async def visit(self, ticket: bytes, kind: FrameKind) -> AsyncIterator[Visit]:
        """Wait for whoever shows this ticket; the connection is closed if the transfer fails.

        Raises:
            TransferError: it came with another kind of frame.
        """
        visit = self._early.pop(ticket, None) or await self._expect(ticket)
        whole = False
        try:
            if visit.frame.kind is not kind:
                raise TransferError(f"{visit.connection.peer} came with {visit.frame.kind.name}; wanted {kind.name}")
            yield visit
            whole = True
        finally:
            if not visit.over.done():
                visit.over.set_result(whole)

    async def _expect(self, ticket: bytes) -> Visit:
        expected: asyncio.Future[Visit] = asyncio.get_running_loop().create_future()
        self._expected[ticket] = expected
        try:
            return await expected
        except asyncio.CancelledError:
            if expected.done() and not expected.cancelled():  # it came at this very moment: nobody will serve it
                expected.result().over.set_result(False)
            raise
        finally:
            self._expected.pop(ticket, None)

    @asynccontextmanager
    async def fresh_line(self, address: str) -> AsyncIterator[Connection]:
        """Return a connection that nobody has used, and close it at the end: TCP remembers no rate on it.

        Raises:
            UnavailableError: nobody answers there.
        """
        connection = await self._channel.connect(address)
        try:
            yield connection
        finally:
            connection.close()
