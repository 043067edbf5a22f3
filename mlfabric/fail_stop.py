"""Fail-stop: a shell that cannot carry out what was decided ends, with the reason. Shell-level, shared by all.

Whatever raises on the way (an action, a task that carries one out, a callback of somebody's) comes to one place,
:class:`FailStop`. From then on nothing is decided any more, and whoever runs the shell meets the error. What others
cause (a connection that broke, a message that is none) is no such error: who reads it answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mlfabric.errors import FabricError
from mlfabric.values import dataclass

__all__ = ["FailStop", "Failed", "Tasks", "described"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failed:
    """Something that was decided could not be carried out; a driver that takes this in ends its shell."""

    error: Exception


def described(error: BaseException) -> str:
    """Say in one line what an error is, and during what it was met."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ", ".join([text, *getattr(error, "__notes__", ())])


@dataclass(frozen=True, slots=True)
class _Guard:
    """See :meth:`FailStop.guard`; it is entered for every event, so it is no generator."""

    fail: Callable[[Exception], None]
    where: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            if self.where:
                error.add_note(f"in {self.where}")
            self.fail(error)
        elif isinstance(error, SystemExit):  # it would end the loop, and nobody would hear of it
            where = self.where or "a thread of the fabric"
            self.fail(FabricError(f"sys.exit({error.code!r}) was called in {where}"))
        return isinstance(error, (Exception, SystemExit))


class FailStop:
    """Why a shell cannot go on; the first reason counts.

    Attributes:
        error: the reason; None as long as there is none.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._failed = asyncio.Event()

    def fail(self, error: Exception) -> None:
        """Let the shell end for this reason, unless it ends for another one already."""
        self.error = self.error or error
        self._failed.set()

    def guard(self, where: str = "") -> _Guard:
        """Let the shell end for whatever the block raises, which goes no further.

        Args:
            where: that is, as "the update callback".
        """
        return _Guard(self.fail, where)

    def guarded(self, call: Callable[[T], object]) -> Callable[[T], None]:
        """Return the same call, made under :meth:`guard`."""

        def made(argument: T) -> None:
            with self.guard():
                call(argument)

        return made

    async def wait(self) -> Exception:
        """Wait for a reason, and return it."""
        await self._failed.wait()
        assert self.error is not None, "it is set before"
        return self.error

    async def watch(self) -> None:
        """Wait for a reason, and raise it."""
        raise await self.wait()


class Tasks:
    """Tasks of a shell that carry out what was decided; if one of them raises, the shell ends.

    Args:
        take_in: of the shell's driver.
    """

    def __init__(self, take_in: Callable[[Failed], None]) -> None:
        self._take_in = take_in
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task of its own."""
        task = asyncio.create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._take_in(Failed(error))

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in self._running:
            task.cancel()

    async def wait(self) -> None:
        """Wait until none is left."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """Cancel all of them, and wait until none is left."""
        self.cancel()
        await self.wait()
