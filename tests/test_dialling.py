"""Connections that a member opens: which are used again, and what ends when their other end is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from mlfabric.channels import Channel, Connection, ConnectionClosedError, MemoryChannel, MemoryNetwork
from mlfabric.dialling import Dialled
from mlfabric.errors import TransferError, UnavailableError


async def silent(connection: Connection) -> None:
    with suppress(ConnectionClosedError):
        await connection.receive()


class Slow:
    """A channel whose other end does not answer."""

    def __init__(self) -> None:
        self.dialled = asyncio.Event()

    async def connect(self, address: str) -> Connection:
        self.dialled.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


@pytest.fixture
async def network() -> AsyncIterator[tuple[Dialled, str, str]]:
    network = MemoryNetwork()
    channels: list[Channel] = [MemoryChannel(network) for _ in range(3)]
    first, second = [await channel.listen(silent) for channel in channels[1:]]
    yield Dialled(channels[0]), first, second
    for channel in channels:
        await channel.close()


async def test_a_connection_that_was_kept_is_used_again_for_the_same_place(network: tuple[Dialled, str, str]) -> None:
    dialled, first, second = network
    one = await dialled.take(first)
    other = await dialled.take(first)
    assert one is not other
    dialled.keep(first, one)
    assert await dialled.take(second) is not one
    assert await dialled.take(first) is one


async def test_idle_connections_to_where_one_broke_are_not_used_again(network: tuple[Dialled, str, str]) -> None:
    dialled, first, second = network
    idle, broken, elsewhere = await dialled.take(first), await dialled.take(first), await dialled.take(second)
    dialled.keep(first, idle)
    dialled.keep(second, elsewhere)
    dialled.discard(first, broken)
    assert await dialled.take(first) not in (idle, broken)
    assert await dialled.take(second) is elsewhere


async def test_what_waits_for_somebody_who_is_gone_fails_and_nothing_else(network: tuple[Dialled, str, str]) -> None:
    dialled, first, second = network
    gone, stays = await dialled.take(first), await dialled.take(second)
    waiting, other = asyncio.create_task(gone.receive()), asyncio.create_task(stays.receive())
    await asyncio.sleep(0)
    dialled.break_off(first)
    with pytest.raises(TransferError):
        await waiting
    dialled.keep(first, gone)
    assert await dialled.take(first) is not gone, "what was broken off is not kept"
    assert not other.done()
    dialled.break_off_all()
    with pytest.raises(TransferError):
        await other


async def test_who_does_not_answer_is_dialled_no_longer() -> None:
    channel = Slow()
    dialled = Dialled(channel)  # type: ignore[arg-type]
    dialling = asyncio.create_task(dialled.take("there"))
    await channel.dialled.wait()
    dialled.break_off("there")
    with pytest.raises(UnavailableError, match="there does not answer any more"):
        await dialling


async def test_who_dials_may_be_cancelled() -> None:
    channel = Slow()
    dialling = asyncio.create_task(Dialled(channel).take("there"))  # type: ignore[arg-type]
    await channel.dialled.wait()
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
