"""Attempts of a worker daemon over a real connection: what becomes of the connection when an update is taken back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from mlfabric.channels import Connection, ConnectionClosedError, Frame, FrameKind, MemoryChannel, MemoryNetwork
from mlfabric.fail_stop import Failed
from mlfabric.protocol import Dropped, DropReason, Send, UpdateId
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.observing import nobody
from mlfabric.worker_daemon.sending import Parcel, Transfers

UPDATE = UpdateId("w", 1, 0)
TICKET = bytes(range(16))


async def test_an_update_that_was_changed_is_taken_back_and_its_connection_closed() -> None:
    network = MemoryNetwork()
    receiver, daemon = MemoryChannel(network), MemoryChannel(network)
    seen: asyncio.Future[list[FrameKind]] = asyncio.get_running_loop().create_future()
    events: asyncio.Queue[act.DaemonEvent | Failed] = asyncio.Queue()

    async def grant(connection: Connection) -> None:
        kinds = [(await connection.receive()).kind]
        await connection.send(Frame(kind=FrameKind.GRANT, ticket=TICKET))
        kinds.append((await connection.receive()).kind)
        with pytest.raises(ConnectionClosedError):
            await connection.receive()
        seen.set_result(kinds)

    plan = Send(
        to="w",
        update=UPDATE,
        receiver="s",
        address=await receiver.listen(grant),
        seq=0,
        ticket=TICKET,
        rate_bps=0,
        reason="",
    )
    transfers = Transfers(daemon, "host", events.put_nowait, lambda _record, _peer: None, nobody)
    transfers.send(plan, Parcel(pieces=(memoryview(bytes(100)),), digest=7, is_unchanged=lambda: False))
    event = await events.get()
    assert isinstance(event, act.OutcomeReceived)
    assert isinstance(event.outcome, Dropped)
    assert (event.update, event.outcome.cause) == (UPDATE, DropReason.CHANGED)
    async with asyncio.timeout(20):
        assert await seen == [FrameKind.OFFER, FrameKind.REFUSE]
    await transfers.close()
    await daemon.close()
    await receiver.close()


@pytest.mark.parametrize("whose", ["", "the receiver's"])
async def test_what_is_broken_off_is_begun_anew_on_another_connection(whose: str) -> None:
    network = MemoryNetwork()
    receiver, daemon = MemoryChannel(network), MemoryChannel(network)
    events: asyncio.Queue[act.DaemonEvent | Failed] = asyncio.Queue()
    offers: asyncio.Queue[Connection] = asyncio.Queue()

    async def hang(connection: Connection) -> None:
        with suppress(ConnectionClosedError):
            while await connection.receive():
                offers.put_nowait(connection)

    plan = Send(
        to="w",
        update=UPDATE,
        receiver="s",
        address=await receiver.listen(hang),
        seq=0,
        ticket=TICKET,
        rate_bps=0,
        reason="",
    )
    parcel = Parcel(pieces=(memoryview(bytes(100_000)),), digest=7, is_unchanged=lambda: True)
    transfers = Transfers(daemon, "host", events.put_nowait, lambda _record, _peer: None, nobody)
    async with asyncio.timeout(20):
        transfers.send(plan, parcel)
        first = await offers.get()
        transfers.break_off("elsewhere")
        transfers.break_off(plan.address) if whose else transfers.break_off_all()
        event = await events.get()
        assert isinstance(event, act.SendBroken)
        assert event.ticket == TICKET
        transfers.send(plan, parcel)
        assert await offers.get() is not first
    await transfers.close()
    await daemon.close()
    await receiver.close()
