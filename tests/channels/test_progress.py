"""How far a buffer is: waiting and failing."""

from __future__ import annotations

import asyncio

import pytest

from mlfabric.channels.progress import Progress
from mlfabric.errors import TransferError


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
