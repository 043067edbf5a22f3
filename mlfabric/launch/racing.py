"""Waiting for whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["first_of"]


async def first_of(*waits: Coroutine[Any, Any, Any]) -> int:
    """Run coroutines at the same time until one is done, cancel the others, and return its place among them.

    What the one raises is raised. If several are done at once, the first of them in order counts.
    """
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        place = next(i for i, task in enumerate(tasks) if task.done())
        tasks[place].result()
        return place
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
