"""Who comes to a worker that reduces is found by its ticket, whoever is first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel
from mlfabric.errors import TransferError
from mlfabric.worker_daemon.round_lines import RoundLines, Visit

TICKET = bytes(range(16))
WANT = Frame(kind=FrameKind.WANT, ticket=TICKET)
MODEL = Frame(kind=FrameKind.MODEL, ticket=TICKET)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[RoundLines, RoundLines, str]]:
    """One that listens, another one, and the address of the first."""
    channels = [TcpChannel(), TcpChannel()]
    lines = [RoundLines(channel) for channel in channels]
    address = await channels[0].listen(lines[0].serve)
    try:
        yield lines[0], lines[1], address
    finally:
        for channel in channels:
            await channel.close()


async def fetch(lines: RoundLines, address: str) -> Connection:
    """Ask, be given, and let go of the connection."""
    async with lines.line(address) as connection:
        await connection.send(WANT)
        assert (await connection.receive()).kind is FrameKind.MODEL
    return connection


async def give(lines: RoundLines, kind: FrameKind = FrameKind.WANT) -> None:
    async with lines.visit(TICKET, kind) as visit:
        await visit.connection.send(MODEL)


async def test_a_visit_of_another_kind_fails_and_ends_its_connection() -> None:
    async with two() as (host, guest, address):
        coming = asyncio.create_task(fetch(guest, address))
        with pytest.raises(TransferError, match="came with WANT; wanted PAYLOAD"):
            await give(host, FrameKind.PAYLOAD)
        with pytest.raises(TransferError):
            await coming


async def test_a_visit_that_comes_when_the_attempt_is_given_up_is_ended() -> None:
    async with two() as (host, guest, address):
        waiting = asyncio.create_task(give(host))
        await asyncio.sleep(0)
        async with guest.line(address) as connection:
            visit = Visit(connection, WANT, asyncio.get_running_loop().create_future())
            host._expected[TICKET].set_result(visit)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert not visit.over.result()
