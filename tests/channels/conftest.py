"""Channels by one name, with and without TLS, and connected pairs over them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mlfabric.channels import Channel, Connection, Frame, FrameKind, MemoryOptions, TcpChannel, TcpOptions, channel_of
from mlfabric.lab.links import Links
from mlfabric.security import LOOPBACK, Security

TICKET = bytes(range(16))
GRANT = Frame(kind=FrameKind.GRANT, ticket=TICKET, meta=b"go")
MB = 1_000_000
MAX_PAYLOAD_BYTES = 100 * MB

MakeChannel = Callable[[], Channel]


def payload(n: int) -> Frame:
    return Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=n, digest=7)


def zeros(n: int) -> tuple[Frame, list[memoryview]]:
    """Return what sends so many bytes."""
    return payload(n), [memoryview(bytes(n))]


async def until_closed(connection: Connection) -> None:
    await connection.wait_closed()


@pytest.fixture(params=["tcp", "tls", "memory"])
async def make(request: pytest.FixtureRequest) -> MakeChannel:
    if request.param == "memory":
        links = Links(asyncio.get_running_loop(), random.Random(1), (0.0, 0.0001))
        options = MemoryOptions(network=links, host="here", max_payload_bytes=MAX_PAYLOAD_BYTES)
        return lambda: channel_of(options)
    secured = request.param == "tls"
    security = Security.of(request.getfixturevalue("certificates"), "server") if secured else LOOPBACK
    return lambda: TcpChannel(TcpOptions(max_payload_bytes=MAX_PAYLOAD_BYTES, security=security))


@asynccontextmanager
async def served(
    server: Channel, client: Channel, handle: Callable[[Connection], Awaitable[None]]
) -> AsyncIterator[tuple[Channel, str]]:
    """One channel that serves connections, another to dial it, and where; both are closed at the end."""
    try:
        yield client, await server.listen(handle)
    finally:
        await client.close()
        await server.close()


@asynccontextmanager
async def connected(make: MakeChannel) -> AsyncIterator[tuple[Connection, Connection]]:
    """Two ends of a new connection; its channels are closed at the end, and no task is left."""
    before = asyncio.all_tasks() - {asyncio.current_task()}
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def keep(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    async with served(make(), make(), keep) as (client, address):
        near = await client.connect(address)
        yield near, await accepted
    assert asyncio.all_tasks() - {asyncio.current_task()} <= before
