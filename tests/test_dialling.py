"""Connections that a member opens: which are used again, and what ends when their other end is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from mlfabric.channels import Connection, ConnectionClosedError, TcpChannel
from mlfabric.errors import TransferError, UnavailableError
from mlfabric.transfer.dialling import Dialled
from mlfabric.transfer.exchange import TurnedAwayError


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


async def taken(dialled: Dialled, address: str) -> None:
    async with dialled.line(address):
        pass


@pytest.fixture
async def network() -> AsyncIterator[tuple[Dialled, str, str]]:
    channels = [TcpChannel() for _ in range(3)]
    first, second = [await channel.listen(silent) for channel in channels[1:]]
    yield Dialled(channels[0]), first, second
    for channel in channels:
        await channel.close()


async def test_a_connection_that_was_kept_is_used_again_for_the_same_place(network: tuple[Dialled, str, str]) -> None:
    dialled, first, second = network
    async with dialled.line(first) as one, dialled.line(first) as other:
        assert one is not other
    with suppress(TurnedAwayError):
        async with dialled.line(second) as refused:
            assert refused not in (one, other)
            raise TurnedAwayError("not now")
    async with dialled.line(second) as again:
        assert again is refused
    async with dialled.line(first) as again, dialled.line(first) as once_more:
        assert {again, once_more} == {one, other}


async def test_idle_connections_to_where_one_broke_are_not_used_again(network: tuple[Dialled, str, str]) -> None:
    dialled, first, second = network
    async with dialled.line(second) as elsewhere:
        pass
    with suppress(TransferError):
        async with dialled.line(first) as broken:
            async with dialled.line(first) as idle:
                pass
            raise TransferError("it broke")
    async with dialled.line(first) as new, dialled.line(second) as same:
        assert new not in (idle, broken)
        assert same is elsewhere


async def test_what_is_given_up_ends_with_its_connection_alone(network: tuple[Dialled, str, str]) -> None:
    dialled, first, _ = network
    with suppress(asyncio.CancelledError):
        async with dialled.line(first) as given_up:
            async with dialled.line(first) as idle:
                pass
            raise asyncio.CancelledError
    with pytest.raises(TransferError):
        await given_up.receive()
    async with dialled.line(first) as again:
        assert again is idle


async def test_who_does_not_answer_is_dialled_no_longer() -> None:
    channel = Slow()
    dialled = Dialled(channel)  # type: ignore[arg-type]
    dialling = asyncio.create_task(taken(dialled, "there"))
    await channel.dialled.wait()
    dialled.break_off("there")
    with pytest.raises(UnavailableError, match="there does not answer any more"):
        await dialling


async def test_who_dials_may_be_cancelled() -> None:
    channel = Slow()
    dialling = asyncio.create_task(taken(Dialled(channel), "there"))  # type: ignore[arg-type]
    await channel.dialled.wait()
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling


async def test_after_idle_connections_were_dropped_new_ones_are_made_and_busy_ones_go_on(
    network: tuple[Dialled, str, str],
) -> None:
    dialled, first, _ = network
    async with dialled.line(first) as busy:
        async with dialled.line(first) as kept:
            pass
        dialled.drop_idle()
        async with dialled.line(first) as new:
            assert new not in (busy, kept)
    async with dialled.line(first) as one, dialled.line(first) as other:
        assert {one, other} == {busy, new}
