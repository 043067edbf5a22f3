"""Connected pairs, with and without TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from mlfabric.channels import Connection
from tests.channels.conftest import MakeChannel, connected, make

__all__ = ["Connect", "connect", "make"]

Connect = Callable[[], Awaitable[tuple[Connection, Connection]]]


@pytest.fixture
async def connect(make: MakeChannel) -> AsyncIterator[Connect]:
    """Give a function that returns both ends of a new connection; at the end no task is left."""
    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(connected(make))
