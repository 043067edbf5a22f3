"""Both channels by one name, and connected pairs over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from mlfabric.channels import (
    Channel,
    Connection,
    Frame,
    FrameKind,
    MemoryChannel,
    MemoryNetwork,
    TcpChannel,
    TcpOptions,
)
from mlfabric.security import Security

TICKET = bytes(range(16))
GRANT = Frame(kind=FrameKind.GRANT, ticket=TICKET, meta=b"go")
MB = 1_000_000
MAX_PAYLOAD_BYTES = 100 * MB

MakeChannel = Callable[[], Channel]


def payload(n: int) -> Frame:
    return Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=n, digest=7)


@pytest.fixture(params=["memory", "tcp", "tls"])
def make(request: pytest.FixtureRequest) -> Iterator[MakeChannel]:
    if request.param == "tcp":
        yield lambda: TcpChannel(TcpOptions(max_payload_bytes=MAX_PAYLOAD_BYTES))
    elif request.param == "tls":
        security = Security.of(request.getfixturevalue("certificates"), "server")
        yield lambda: TcpChannel(TcpOptions(max_payload_bytes=MAX_PAYLOAD_BYTES, security=security))
    else:
        network = MemoryNetwork()
        yield lambda: MemoryChannel(network, max_payload_bytes=MAX_PAYLOAD_BYTES)


@asynccontextmanager
async def connected(make: MakeChannel) -> AsyncIterator[tuple[Connection, Connection]]:
    """Two ends of a new connection; its channels are closed at the end, and no task is left."""
    before = asyncio.all_tasks()
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def keep(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    server, client = make(), make()
    try:
        near = await client.connect(await server.listen(keep))
        yield near, await accepted
    finally:
        await client.close()
        await server.close()
    assert asyncio.all_tasks() <= before
