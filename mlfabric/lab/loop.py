"""An asyncio event loop in virtual time: when nothing is left to do, its clock jumps to the next timer.

A run is a function of its seed. What is ready at the same instant runs in an order that is drawn, but what one callback
has scheduled stays in its order, as asyncio promises. Work that is given to threads is done in the loop, after a time
that is drawn. There are no sockets: ``links`` and ``calls`` carry what members send each other.

It is 100 lines on asyncio's own base class; async-solipsism, which does the same with sockets in memory, has 800 and no
drawn order.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import Any

from mlfabric.lab.processes import PROCESS

__all__ = ["VirtualLoop"]

STARTED_S = 1000.0
LONGEST_WORK_S = 0.02
MOST_AT_ONCE = 20_000
"""Whoever does so much at one instant would never end."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set depends on when it was made, not on where it lies in memory."""

    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """The same for a future."""

    _numbers = count()

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(self._numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module.

    Args:
        draw: the source of chance.

    Attributes:
        turns: how many callbacks have run.
    """

    _ready: deque[asyncio.Handle]  # these are the base class's
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.turns = self._turns_then = 0
        self._draw = draw
        self._now_s = STARTED_S
        self._blocks: list[list[asyncio.Handle]] = []
        self._readers: dict[object, Callable[[], object]] = {}
        _Task._numbers = _Future._numbers = count()
        self.set_task_factory(lambda loop, coro, **kwargs: _Task(coro, loop=loop, **kwargs))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def time_ns(self) -> int:
        """Return the virtual time in ns."""
        return round(self._now_s * 1e9)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        return _Future(loop=self)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back soon; there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do the work of a thread, after a time that is drawn."""
        done = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.call_later(self._draw.uniform(0.0, LONGEST_WORK_S), work)
        return done

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Find every name: it is its own address."""
        return [(0, 0, 0, "", (host, port))]

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call back whenever :meth:`readable` says that something has come."""
        self._readers[fd] = lambda: callback(*args)

    def remove_reader(self, fd: Any) -> bool:
        """Call back no more."""
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: object) -> None:
        """Say that something has come; whoever reads it is called in the present process."""
        if (callback := self._readers.get(fd)) is not None:
            callback()

    def _run_once(self) -> None:
        """Make a turn: run what is ready, in an order that is drawn; if there is nothing, go to the next timer."""
        if self._ready:
            self._take_block()
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if not self._blocks and not self._stopping:
            assert timers, "everybody waits, and nothing will ever happen again"
            self._now_s = max(self._now_s, timers[0].when())
            self._turns_then = self.turns
        if self.turns - self._turns_then > MOST_AT_ONCE:
            self._turns_then = self.turns
            raise AssertionError(f"{MOST_AT_ONCE} callbacks ran, and no time passed")
        while timers and timers[0].when() <= self._now_s:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._blocks.append([timer])
        blocks, self._blocks = self._blocks, []
        if len(blocks) > 1:
            self._draw.shuffle(blocks)
        for block in blocks:
            for handle in block:
                self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
        if process is not None and process.is_stopped:
            process.parked.append(handle)
        elif not handle.cancelled():
            self.turns += 1
            handle._run()
            if self._ready:
                self._take_block()

    def _take_block(self) -> None:
        """Keep together what one callback has scheduled."""
        self._blocks.append(list(self._ready))
        self._ready.clear()

    def resume(self, handles: list[asyncio.Handle]) -> None:
        """Run what a process could not do while it was stopped, in its order."""
        if handles:
            self._blocks.append(handles)

    def _write_to_self(self) -> None:
        """Wake nobody: there is one thread."""
