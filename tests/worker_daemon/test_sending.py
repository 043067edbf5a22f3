"""Attempts of a worker daemon over a real connection: what becomes of the connection when an update is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from mlfabric.channels import Connection, ConnectionClosedError, Frame, FrameKind, TcpChannel
from mlfabric.fail_stop import Failed
from mlfabric.protocol import Dropped, DropReason, Send, UpdateId
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.data_attempts import Parcel, Transfers
from mlfabric.worker_daemon.observations import nobody

UPDATE = UpdateId("w", 1, 0)
TICKET = bytes(range(16))


class Ends:
    """A receiver that does what it is given, transfers of a daemon to it, and what these bring."""

    def __init__(self) -> None:
        self.receiver, self.daemon = TcpChannel(), TcpChannel()
        self.events: asyncio.Queue[act.DaemonEvent | Failed] = asyncio.Queue()
        self.transfers = Transfers(self.daemon, "host", self.events.put_nowait, lambda _record, _peer: None, nobody)

    async def close(self) -> None:
        await self.transfers.close()
        await self.daemon.close()
        await self.receiver.close()

    async def plan(self, does: Callable[[Connection], Awaitable[None]]) -> Send:
        address = await self.receiver.listen(does)
        return Send(to="w", update=UPDATE, receiver="s", address=address, seq=0, ticket=TICKET, rate_bps=0, reason="")


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    await made.close()


def parcel(n_bytes: int, *, is_unchanged: bool) -> Parcel:
    return Parcel(pieces=(memoryview(bytes(n_bytes)),), digest=7, is_unchanged=lambda: is_unchanged)


async def test_an_update_that_was_changed_is_taken_back_and_its_connection_closed(ends: Ends) -> None:
    seen: asyncio.Future[list[FrameKind]] = asyncio.get_running_loop().create_future()

    async def grant(connection: Connection) -> None:
        kinds = [(await connection.receive()).kind]
        await connection.send(Frame(kind=FrameKind.GRANT, ticket=TICKET))
        kinds.append((await connection.receive()).kind)
        with pytest.raises(ConnectionClosedError):
            await connection.receive()
        seen.set_result(kinds)

    ends.transfers.send(await ends.plan(grant), parcel(100, is_unchanged=False))
    event = await ends.events.get()
    assert isinstance(event, act.OutcomeReceived)
    assert isinstance(event.outcome, Dropped)
    assert (event.update, event.outcome.cause) == (UPDATE, DropReason.CHANGED)
    assert await seen == [FrameKind.OFFER, FrameKind.REFUSE]


@pytest.mark.parametrize("whose", ["", "the receiver's"])
async def test_what_is_broken_off_is_begun_anew_on_another_connection(ends: Ends, whose: str) -> None:
    offers: asyncio.Queue[Connection] = asyncio.Queue()

    async def hang(connection: Connection) -> None:
        with suppress(ConnectionClosedError):
            while await connection.receive():
                offers.put_nowait(connection)

    plan, sent = await ends.plan(hang), parcel(100_000, is_unchanged=True)
    ends.transfers.send(plan, sent)
    first = await offers.get()
    ends.transfers.break_off("elsewhere")
    ends.transfers.break_off(plan.address) if whose else ends.transfers.break_off_all()
    event = await ends.events.get()
    assert isinstance(event, act.SendBroken)
    assert event.ticket == TICKET
    ends.transfers.send(plan, sent)
    assert await offers.get() is not first
