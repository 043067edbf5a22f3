"""Connected pairs, with and without TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from mlfabric.channels import Connection, TcpChannel, TcpOptions
from mlfabric.security import LOOPBACK, Security

Connect = Callable[[], Awaitable[tuple[Connection, Connection]]]


@pytest.fixture(params=["tcp", "tls"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Give a function that returns both ends of a new connection; at the end no task is left."""
    before = asyncio.all_tasks() - {asyncio.current_task()}
    secured = Security.of(request.getfixturevalue("certificates"), "aggregator") if request.param == "tls" else LOOPBACK

    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(_pair(TcpOptions(security=secured)))
    assert asyncio.all_tasks() - {asyncio.current_task()} <= before


@asynccontextmanager
async def _pair(options: TcpOptions) -> AsyncIterator[tuple[Connection, Connection]]:
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def keep(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    server, client = TcpChannel(options), TcpChannel(options)
    try:
        near = await client.connect(await server.listen(keep))
        yield near, await accepted
    finally:
        await client.close()
        await server.close()
