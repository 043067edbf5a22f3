"""The event loop in virtual time, and its processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from mlfabric.lab.loop import VirtualLoop
from mlfabric.lab.processes import Process


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(random.Random(1))
    yield made
    made.close()


def test_sleeping_takes_no_time_but_the_clock_says_it_did(loop) -> None:
    began_s = loop.time()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() - began_s == pytest.approx(3600)


def test_what_a_callback_schedules_stays_in_order_and_what_several_schedule_does_not() -> None:
    said: set[tuple[str, ...]] = set()
    for seed in range(20):
        loop, order = VirtualLoop(random.Random(seed)), list[str]()

        async def speak(name: str, order: list[str] = order, loop: VirtualLoop = loop) -> None:
            for number in range(2):
                loop.call_soon(order.append, f"{name}{number}")

        async def both(speak=speak) -> None:
            await asyncio.gather(speak("a"), speak("b"))
            await asyncio.sleep(1)

        loop.run_until_complete(both())
        loop.close()
        said.add(tuple(order))
    assert said == {("a0", "a1", "b0", "b1"), ("b0", "b1", "a0", "a1")}


def test_work_of_threads_ends_later(loop) -> None:
    began_s = loop.time()
    assert loop.run_until_complete(asyncio.to_thread(sum, (1, 2))) == 3
    assert loop.time() > began_s


def test_who_waits_for_what_never_comes_is_told(loop) -> None:
    with pytest.raises(AssertionError, match="everybody waits"):
        loop.run_until_complete(loop.create_future())


def test_a_process_that_is_stopped_does_nothing_until_it_goes_on_and_one_that_is_killed_never_does(loop) -> None:
    ticks: dict[str, list[float]] = {"stopped": [], "killed": []}

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            ticks[name].append(loop.time() - began_s)

    processes = {name: Process(loop, name, "host") for name in ticks}
    began_s = loop.time()
    tasks = [process.spawn(tick(name)) for name, process in processes.items()]
    loop.run_until_complete(asyncio.sleep(1.5))
    processes["stopped"].stop()
    processes["killed"].kill()
    loop.run_until_complete(asyncio.sleep(2.0))
    processes["stopped"].go_on()
    loop.run_until_complete(asyncio.sleep(0.2))
    assert ticks == {"stopped": [1.0, 3.5], "killed": [1.0]}
    for process, task in zip(processes.values(), tasks, strict=True):
        process.bury()
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))
