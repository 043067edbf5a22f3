"""Two threads that add the chunks of one large sum while the event loop receives the next ones.

Where a chunk lies decides which thread adds it. So no two threads ever write to the same bytes, no lock is needed, and
every chunk's additions happen in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

__all__ = ["Helpers"]

HELPERS = 2
MIN_CHUNK_BYTES = 512 * 1024


class Helpers:
    """Runs what is to be done to chunks, off the event loop if chunks are long enough for that to pay.

    Args:
        chunk_bytes: how long the chunks are. Handing a chunk of less than 512 KiB to a thread takes about as long as
            adding it, so these stay in the event loop.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self.count = HELPERS if chunk_bytes >= MIN_CHUNK_BYTES else 0
        self._threads: list[ThreadPoolExecutor] = []

    async def run(self, number: int, work: Callable[[], object]) -> None:
        """Do ``work`` on a chunk, after all that was asked for on this chunk before.

        When this returns or raises, also if it is cancelled, nothing of ``work`` goes on.

        Args:
            number: of the chunk.
            work: touches nothing but the bytes of chunk ``number``, and what belongs to it.

        Raises:
            Exception: whatever ``work`` raises.
        """
        if not self.count:
            work()
            return
        self._threads = self._threads or [ThreadPoolExecutor(1, "mlfabric-sum") for _ in range(self.count)]
        asked = self._threads[number % self.count].submit(work)
        try:
            await asyncio.wrap_future(asked)
        finally:
            if not asked.done() and not asked.cancel():
                wait([asked])  # this was cancelled in the middle of a chunk

    def stop(self) -> None:
        """End the threads; the next ``run`` starts new ones."""
        for thread in self._threads:
            thread.shutdown()
        self._threads = []
