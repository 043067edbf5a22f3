"""What every shell does around its state machine: events in, actions out, a timer, orderly ends. Shell-level.

What cannot be carried out ends the shell (``fail_stop.py``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from mlfabric import clock
from mlfabric.fail_stop import Failed, FailStop
from mlfabric.protocol import Tick

__all__ = ["Driver", "StateMachine", "side_by_side"]

EventT = TypeVar("EventT", contravariant=True)
ActionT = TypeVar("ActionT", covariant=True)
InT = TypeVar("InT")
OutT = TypeVar("OutT")


class StateMachine(Protocol[EventT, ActionT]):
    """The pure part of a service."""

    def handle(self, event: EventT, now_ns: int, /) -> Iterable[ActionT]:
        """Take in one event and return what to do, in order."""

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""


class Driver(Generic[InT, OutT]):
    """Hands events to a state machine one after the other, and sends it a Tick when it asks for one.

    An action that has a result at once queues it as the next event: nothing is decided while something is carried out.

    Once something could not be carried out it takes in nothing more.

    Args:
        state: the state machine; nobody else may change it.
        do: carries out an action.
        see: is shown each event before it is handled, and each action before it is carried out.

    Attributes:
        failure: why it takes in nothing more, if so.
    """

    def __init__(
        self,
        state: StateMachine[InT | Tick, OutT],
        do: Callable[[OutT], None],
        see: Callable[[InT | Tick | OutT], None] | None = None,
    ) -> None:
        self.failure = FailStop()
        self._state = state
        self._do = do
        self._see = see
        self._queue: deque[InT | Tick] = deque()
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def take_in(self, event: InT | Tick | Failed) -> None:
        """Take in an event, now or after those that came before."""
        if isinstance(event, Failed):
            self.failure.fail(event.error)
        if isinstance(event, Failed) or self.failure.error is not None:
            return self.close()
        self._queue.append(event)
        if not self._draining:
            self._draining = True
            with self.failure.guard():
                self._drain()
            self._draining = False

    def _drain(self) -> None:
        while self._queue and self.failure.error is None:
            event = self._queue.popleft()
            if self._see is not None:
                self._see(event)
            for action in self._state.handle(event, clock.monotonic_ns()):
                self._carry_out(action)
        if self.failure.error is None:
            self._set_timer()

    def _carry_out(self, action: OutT) -> None:
        try:
            if self._see is not None:
                self._see(action)
            self._do(action)
        except Exception as error:
            error.add_note(f"while it carried out {type(action).__name__}")
            raise

    def close(self) -> None:
        """Send no Tick any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        due_ns = self._state.next_wakeup_ns()
        if due_ns is None or (self._timer is not None and self._timer_ns <= due_ns):
            return
        self.close()
        self._timer_ns = due_ns
        wait_s = max(0.0, (due_ns - clock.monotonic_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self.take_in(Tick())


@asynccontextmanager
async def side_by_side(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[Callable[[asyncio.Event], Awaitable[None]]]:
    """Run jobs in tasks of their own, and leave none of them behind.

    Yields:
        Waits until an event is set; if a job ends before, raises what ended it, or returns if nothing did.
    """
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(job) for job in jobs]

    async def wait(stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        tasks.append(stopped)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    try:
        yield wait
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
