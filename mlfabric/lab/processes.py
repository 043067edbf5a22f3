"""Processes of the laboratory: everything that one of them has scheduled stops when it is stopped, and never runs again
when it is killed.

Which process runs is known from the context of the callback: tasks, timers and callbacks inherit it from whoever made
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlfabric.lab.loop import VirtualLoop

__all__ = ["PROCESS", "Process"]

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class Process:
    """One process.

    Args:
        loop: that it runs in.
        name: in stories.
        host: the machine that it runs on.

    Attributes:
        parked: what became ready while it was stopped.
        stopped_s: since when it is stopped.
    """

    def __init__(self, loop: VirtualLoop, name: str, host: str) -> None:
        self.name, self.host = name, host
        self.is_stopped = self.is_dead = False
        self.stopped_s = 0.0
        self.parked: list[asyncio.Handle] = []
        self._loop = loop
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    @property
    def context(self) -> Context:
        """A context for what is to run in this process."""
        return self._context.copy()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self._loop.create_task(coroutine, context=self.context)

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back soon in this process."""
        self._loop.call_soon(callback, *args, context=self.context)

    def stop(self) -> None:
        """Let nothing run (SIGSTOP)."""
        if not self.is_stopped:
            self.is_stopped, self.stopped_s = True, self._loop.time()

    def go_on(self) -> None:
        """Let what has become ready run (SIGCONT)."""
        if not self.is_dead:
            self.is_stopped = False
            parked, self.parked = self.parked, []
            self._loop.resume(parked)

    def kill(self) -> None:
        """Let nothing run any more."""
        self.is_dead = True
        self.stop()

    def bury(self) -> None:
        """Let what is left come to an end: the run is over, and nobody looks."""
        self.is_dead = False
        self.go_on()
