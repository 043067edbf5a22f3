"""Adding beside the event loop: in order, nothing left running, no thread left over."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from functools import partial

import pytest

from mlfabric.streaming import helpers as module
from mlfabric.streaming.helpers import HELPERS, MIN_CHUNK_BYTES, Helpers


async def test_what_is_done_to_one_chunk_is_done_one_after_the_other_in_the_order_asked_for():
    helpers, done = Helpers(MIN_CHUNK_BYTES), list[tuple[int, int]]()
    works = [(number, step) for step in range(50) for number in range(5)]
    await asyncio.gather(*(helpers.run(work[0], partial(done.append, work)) for work in works))
    helpers.stop()
    assert [[step for n, step in done if n == number] for number in range(5)] == [list(range(50))] * 5


async def test_long_chunks_are_added_at_the_same_time_as_the_loop_and_each_other():
    helpers, meeting = Helpers(MIN_CHUNK_BYTES), threading.Barrier(HELPERS + 1)
    running = [asyncio.create_task(helpers.run(k, meeting.wait)) for k in range(HELPERS)]
    await asyncio.sleep(0)
    meeting.wait()
    await asyncio.gather(*running)
    helpers.stop()


async def test_short_chunks_are_added_in_the_event_loop():
    helpers, where = Helpers(MIN_CHUNK_BYTES - 1), list[threading.Thread]()
    await helpers.run(1, lambda: where.append(threading.current_thread()))
    assert where == [threading.current_thread()]


@pytest.mark.parametrize("chunk_bytes", [MIN_CHUNK_BYTES - 1, MIN_CHUNK_BYTES])
async def test_an_error_reaches_whoever_asked(chunk_bytes: int):
    helpers = Helpers(chunk_bytes)
    with pytest.raises(ZeroDivisionError):
        await helpers.run(0, lambda: 1 // 0)
    helpers.stop()


async def test_whoever_is_cancelled_returns_when_the_chunk_is_let_go_of_and_what_was_not_begun_never_happens(
    monkeypatch: pytest.MonkeyPatch,
):
    helpers, begun, may_end, done = Helpers(MIN_CHUNK_BYTES), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        may_end.wait()
        done.append("first")

    def let_end(asked: list[Future[object]]) -> None:
        may_end.set()
        wait(asked)

    monkeypatch.setattr(module, "wait", let_end)
    running = asyncio.create_task(helpers.run(0, first))
    waiting = asyncio.create_task(helpers.run(HELPERS, lambda: done.append("second")))
    await asyncio.sleep(0)
    begun.wait()
    try:
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert done == ["first"]
    finally:
        may_end.set()
        helpers.stop()
    assert done == ["first"]


async def test_stopped_helpers_leave_no_thread_and_start_again_when_needed():
    before, helpers = threading.active_count(), Helpers(MIN_CHUNK_BYTES)
    for _ in range(2):
        await helpers.run(0, lambda: None)
        assert threading.active_count() > before
        helpers.stop()
        assert threading.active_count() == before
