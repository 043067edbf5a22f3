"""Payloads that become ready piece by piece, over the real channel and its in-memory double."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from mlfabric.channels import ConnectionClosedError, Direction, stream
from mlfabric.errors import TransferError, UsageError
from tests.channels.conftest import GRANT, MakeChannel, connected, payload


async def streamed(*chunks: bytes | Exception | asyncio.Event) -> AsyncGenerator[memoryview, None]:
    """A payload as it becomes ready: bytes come at once, an event is waited for, an error is raised."""
    for chunk in chunks:
        if isinstance(chunk, asyncio.Event):
            await chunk.wait()
        elif isinstance(chunk, Exception):
            raise chunk
        else:
            yield memoryview(chunk)


async def test_a_streamed_payload_leaves_as_it_becomes_ready(make: MakeChannel) -> None:
    arrived = asyncio.Event()
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(near.send_stream(payload(10), streamed(b"0123", arrived, b"45", b"", b"6789")))
        await far.receive()
        buffer = bytearray(10)
        await far.receive_into(memoryview(buffer), 4)
        arrived.set()
        received = await far.receive_into(memoryview(buffer)[4:], 6)
        sent = await sending
        await near.send(GRANT)
        assert await far.receive() == GRANT
    assert buffer == b"0123456789"
    assert (sent.direction, sent.bytes, received.paced) == (Direction.OUT, 10, True)


@pytest.mark.parametrize(("starved_share", "paced"), [(0.0, True), (1.0, False)])
async def test_only_a_sender_that_waited_for_its_chunks_calls_its_record_paced(
    make: MakeChannel, monkeypatch: pytest.MonkeyPatch, starved_share: float, paced: bool
) -> None:
    monkeypatch.setattr(stream, "STARVED_SHARE", starved_share)
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(near.send_stream(payload(10), streamed(b"01234", b"56789")))
        await far.discard((await far.receive()).length)
        assert (await sending).paced is paced


async def test_a_streamed_payload_is_held_to_its_rate(make: MakeChannel) -> None:
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(
            near.send_stream(payload(100_000), streamed(bytes(99_000), bytes(1000)), 20_000_000)
        )
        await far.discard((await far.receive()).length)
        sent = await sending
    assert sent.paced
    assert sent.rate_bps <= 20_000_000


@pytest.mark.parametrize("error", [KeyError("a chunk"), OSError("the disk"), TransferError("an input broke")])
async def test_an_error_of_the_chunks_passes_on_and_tears_the_payload(make: MakeChannel, error: Exception) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(10), streamed(b"0123", error)))
        await far.receive()
        with pytest.raises(type(error)) as raised:
            await sending
        assert raised.value is error
        with pytest.raises(TransferError) as torn:
            await far.discard(10)
        assert not isinstance(torn.value, ConnectionClosedError)
        with pytest.raises(TransferError, match="closed at this end"):
            await near.send(GRANT)


@pytest.mark.parametrize(
    ("chunks", "says"), [([b"012345678"], "ended after 9"), ([b"01234", b"567890"], "so far are 11")]
)
async def test_chunks_of_another_length_than_announced_tear_the_payload(
    make: MakeChannel, chunks: list[bytes], says: str
) -> None:
    async with connected(make) as (near, far):
        with pytest.raises(UsageError, match=f"announces 10 payload bytes; the chunks {says}"):
            await near.send_stream(payload(10), streamed(*chunks))
        with pytest.raises(TransferError):
            await far.discard((await far.receive()).length)


async def test_a_stream_needs_a_payload_and_a_free_direction(make: MakeChannel) -> None:
    go = asyncio.Event()
    async with connected(make) as (near, far):
        with pytest.raises(UsageError, match="use send"):
            await near.send_stream(GRANT, streamed())
        sending = asyncio.create_task(near.send_stream(payload(4), streamed(go, b"0123")))
        await far.receive()
        with pytest.raises(UsageError, match="another task"):
            await near.send_stream(payload(4), streamed(b"0123"))
        go.set()
        await far.discard(4)
        await sending


async def test_closing_wakes_a_sender_that_waits_for_its_chunks_and_closes_them(make: MakeChannel) -> None:
    chunks = streamed(b"0123", asyncio.Event())
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(10), chunks))
        await far.receive()
        await far.discard(4)
        near.close()
        with pytest.raises(TransferError, match="closed at this end"):
            await sending
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)
        await near.wait_closed()


async def test_a_sender_cancelled_while_it_waits_for_its_chunks_is_cancelled(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(10), streamed(b"0123", asyncio.Event())))
        await far.receive()
        await far.discard(4)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(TransferError):
            await far.discard(6)
