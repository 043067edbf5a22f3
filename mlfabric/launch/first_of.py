"""Waiting for whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["first_of"]

T = TypeVar("T")


async def first_of(*waits: Coroutine[Any, Any, T]) -> T:
    """Run coroutines at the same time until one is done, cancel the others, and return what the one returned.

    What the one raises is raised. If several are done at once, the first of them in order counts.
    """
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
