"""How a worker's steps wait in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["LoopWaits"]


class LoopWaits:
    """Waits of an event loop.

    Args:
        crossing_s: how long news takes from one thread to another, each time.
    """

    def __init__(self, crossing_s: Callable[[], float]) -> None:
        self._crossing_s = crossing_s
        self._news = asyncio.Event()
        self.wake = self._news.set

    async def news(self) -> None:
        """Wait until ``wake`` was called since the last wait."""
        await self._news.wait()
        self._news.clear()

    async def known(self, answer: Any) -> Any:
        """Wait for an answer, an event loop's or a thread's."""
        return await asyncio.shield(answer if isinstance(answer, asyncio.Future) else asyncio.wrap_future(answer))

    async def crossing(self) -> None:
        """Let the time pass that news takes from one thread to another."""
        await asyncio.sleep(self._crossing_s())
