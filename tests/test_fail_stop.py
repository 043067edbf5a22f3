"""What raises in a shell comes to one place, and ends it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from mlfabric.errors import FabricError
from mlfabric.fail_stop import Failed, FailStop, Tasks, described
from mlfabric.protocol import Tick
from mlfabric.shell.driving import Driver


class Counting:
    """A state machine that has each number doubled, and then wants to hear of it."""

    def __init__(self) -> None:
        self.seen: list[int | Tick] = []

    def handle(self, event: int | Tick, now_ns: int) -> Iterator[int]:
        self.seen.append(event)
        if isinstance(event, int):
            yield event

    def next_wakeup_ns(self) -> int | None:
        return 0 if self.seen[-1] == 7 else None


def test_a_driver_takes_in_nothing_more_once_an_action_could_not_be_carried_out() -> None:
    def do(number: int) -> None:
        if number == 2:
            raise ValueError("two is too many")

    state = Counting()
    driver = Driver[int, int](state, do)
    for number in (1, 2, 3):
        driver.take_in(number)
    assert state.seen == [1, 2]
    assert driver.failure.error is not None
    assert described(driver.failure.error) == "ValueError: two is too many, while it carried out int"


def test_a_driver_takes_in_nothing_more_of_what_an_action_has_brought_before_another_one_failed() -> None:
    state = Counting()

    def do(number: int) -> None:
        driver.take_in(10 * number)
        driver.take_in(Failed(MemoryError()))

    driver = Driver[int, int](state, do)
    driver.take_in(1)
    assert state.seen == [1]


async def test_a_driver_whose_state_machine_breaks_at_its_tick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Counting()
    driver = Driver[int, int](state, lambda _: None)
    driver.take_in(7)

    def broken(event: object, now_ns: int) -> Iterator[int]:
        raise ZeroDivisionError

    monkeypatch.setattr(state, "handle", broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(driver.failure.watch(), 10)


async def test_a_task_that_raises_fails_and_one_that_is_cancelled_does_not() -> None:
    failed: list[Failed] = []
    tasks = Tasks(failed.append)

    async def raises() -> None:
        raise MemoryError("no room")

    tasks.spawn(asyncio.sleep(60))
    with pytest.raises(MemoryError):
        await tasks.spawn(raises())
    await tasks.close()
    assert [described(one.error) for one in failed] == ["MemoryError: no room"]


async def test_the_first_reason_counts_and_who_waits_hears_it() -> None:
    failure = FailStop()
    waiting = asyncio.create_task(failure.watch())
    failure.guarded(dict[str, int]().__getitem__)("gone")
    failure.fail(ValueError("later"))
    with pytest.raises(KeyError) as caught:
        await waiting
    assert described(caught.value) == "KeyError: 'gone'"


def test_a_callback_that_ends_its_thread_is_a_reason_too() -> None:
    failure = FailStop()
    failure.guarded(sys.exit)(3)
    assert isinstance(failure.error, FabricError)
    assert str(failure.error) == "sys.exit(3) was called in a thread of the fabric"
