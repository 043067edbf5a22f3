"""How far a buffer is: waiting, failing, and reading it while it is filled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.channels.progress import Progress, ready_chunks
from mlfabric.errors import TransferError


@dataclass
class Buffer:
    payload: memoryview
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.payload))


async def test_whoever_waits_is_woken_once_as_much_is_ready_and_not_before():
    progress = Progress(100)
    ten, fifty = asyncio.create_task(progress.reached(10)), asyncio.create_task(progress.reached(50))
    await asyncio.sleep(0)
    progress.advance(49)
    assert await ten == 49
    assert not fifty.done()
    progress.advance(50)
    assert await fifty == 50
    assert await progress.reached(0) == 50


async def test_a_failure_wakes_everybody_with_the_first_error_and_stays():
    progress = Progress(100)
    waiting = [asyncio.create_task(progress.reached(n)) for n in (1, 100)]
    await asyncio.sleep(0)
    progress.fail(TransferError("the first"))
    progress.fail(TransferError("the second"))
    for task in waiting:
        with pytest.raises(TransferError, match="the first"):
            await task
    progress.advance(100)
    assert not progress.is_complete
    with pytest.raises(TransferError, match="the first"):
        await progress.reached(0)


async def test_a_waiter_that_is_cancelled_keeps_nobody_else_from_waking():
    progress = Progress(10)
    gone, stays = asyncio.create_task(progress.reached(5)), asyncio.create_task(progress.reached(5))
    await asyncio.sleep(0)
    gone.cancel()
    progress.advance(5)
    assert await stays == 5
    assert gone.cancelled() or await asyncio.wait([gone])


@given(steps=st.lists(st.integers(0, 3_000_000), max_size=6), readers=st.integers(1, 3))
async def test_every_reader_gets_all_bytes_in_order_and_none_before_it_is_ready(steps: list[int], readers: int):
    ends = sorted(steps)
    size = ends[-1] if ends else 0
    buffer = Buffer(memoryview(bytearray(size)))
    whole = bytes(i % 251 for i in range(997)) * (size // 997 + 1)

    async def read() -> bytes:
        return b"".join([bytes(chunk) async for chunk in ready_chunks(buffer)])

    reading = [asyncio.create_task(read()) for _ in range(readers)]
    at = 0
    for end in ends:
        await asyncio.sleep(0)
        buffer.payload[at:end] = whole[at:end]
        buffer.progress.advance(end)
        at = end
    assert await asyncio.gather(*reading) == [whole[:size]] * readers


async def test_a_reader_of_what_failed_gets_the_error_even_after_the_last_byte():
    buffer = Buffer(memoryview(bytearray(5)))
    chunks = ready_chunks(buffer)
    buffer.progress.advance(5)
    assert len(await anext(chunks)) == 5
    buffer.progress.fail(TransferError("void"))
    with pytest.raises(TransferError, match="void"):
        await anext(chunks)
