"""What only the in-memory double does: break where it is told to."""

from __future__ import annotations

import asyncio

import pytest

from mlfabric.channels import Connection, ConnectionClosedError, Frame, FrameKind, MemoryChannel, MemoryNetwork
from mlfabric.channels.frames import HEADER_BYTES
from mlfabric.errors import ConfigError, TransferError
from tests.channels.conftest import served
from tests.channels.filling import Buffer

PAYLOAD = Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=1000)
DATA = memoryview(bytes(1000))


@pytest.mark.parametrize(
    ("after_bytes", "frames_before"), [(0, 0), (10, 0), (HEADER_BYTES, 1), (HEADER_BYTES + 999, 1)]
)
async def test_a_connection_breaks_at_the_byte_it_was_told_to(after_bytes: int, frames_before: int) -> None:
    network = MemoryNetwork()
    outcome: asyncio.Future[tuple[int, Exception]] = asyncio.get_running_loop().create_future()

    async def take(connection: Connection) -> None:
        frames = 0
        try:
            frame = await connection.receive()
            frames += 1
            await connection.discard(frame.length)
        except TransferError as error:
            outcome.set_result((frames, error))

    network.break_next_connection(after_bytes)
    async with served(MemoryChannel(network), MemoryChannel(network), take) as (client, address):
        connection = await client.connect(address)
        with pytest.raises(TransferError, match="told to break"):
            await connection.send(PAYLOAD, [DATA])
        frames, error = await outcome
    assert frames == frames_before
    assert isinstance(error, ConnectionClosedError) == (after_bytes == 0)


@pytest.mark.parametrize(
    ("after_bytes", "arrives"), [(HEADER_BYTES, 0), (HEADER_BYTES + 1, 1), (HEADER_BYTES + 999, 999)]
)
async def test_it_breaks_there_too_where_a_buffer_is_sent_while_it_is_filled(after_bytes: int, arrives: int) -> None:
    network = MemoryNetwork()
    buffer, taken, done = Buffer(DATA), 0, asyncio.Event()
    buffer.progress.advance(500)

    async def take(connection: Connection) -> None:
        nonlocal taken
        await connection.receive()
        while not done.is_set():
            try:
                await connection.discard(1)
            except TransferError:
                done.set()
            else:
                taken += 1
                buffer.progress.advance(1000 if taken == 500 else buffer.progress.ready_bytes)

    network.break_next_connection(after_bytes)
    async with served(MemoryChannel(network), MemoryChannel(network), take) as (client, address):
        connection = await client.connect(address)
        with pytest.raises(TransferError, match="told to break"):
            await connection.send_stream(PAYLOAD, buffer)
        await done.wait()
    assert taken == arrives


async def test_only_the_next_connection_breaks() -> None:
    network = MemoryNetwork()

    async def take(connection: Connection) -> None:
        while True:
            await connection.discard((await connection.receive()).length)

    network.break_next_connection(1)
    async with served(MemoryChannel(network), MemoryChannel(network), take) as (client, address):
        broken, whole = await client.connect(address), await client.connect(address)
        with pytest.raises(TransferError):
            await broken.send(PAYLOAD, [DATA])
        await whole.send(PAYLOAD, [DATA])


async def test_each_endpoint_has_an_address_of_its_own_host() -> None:
    network = MemoryNetwork()
    one, two = MemoryChannel(network, "one"), MemoryChannel(network, "two")
    addresses = [await c.listen(lambda connection: connection.wait_closed()) for c in (one, two)]
    assert [a.partition(":")[0] for a in addresses] == ["one", "two"]
    await one.close()
    await two.close()


def test_a_payload_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_payload_bytes=0"):
        MemoryChannel(MemoryNetwork(), max_payload_bytes=0)
