"""What this host's link carries while a round goes on, by its interface's counters.

At the beginning of a round many workers send all that they have ready: then links are full, and their interfaces count
what they carry, of whatever program. So it is looked often at first and more and more rarely later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from mlfabric import clock
from mlfabric.channels.interfaces import LinkCounter
from mlfabric.worker_daemon.link_peaks import FIRST_PAUSE_S, pauses_s, peaks_bps

__all__ = ["LinkMeter"]


class LinkMeter:
    """The link of one host.

    Args:
        counter: counts its bytes; None if nothing is measured.
    """

    def __init__(self, counter: LinkCounter | None) -> None:
        self._counter = counter
        self._looks: list[tuple[int, int, int, int]] = []
        """When each look began and ended, and what had been sent and received."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at the counters now and again until the block ends."""
        self._looks = []
        task = asyncio.create_task(self._watch()) if self._counter is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                self._look()

    def peaks_bps(self, least_bytes: int) -> tuple[int, int]:
        """Return the highest rates at which at least so many bytes were sent, and received; 0 if fewer were."""
        if not self._looks:
            return 0, 0
        looks = np.array(self._looks, np.int64)
        sent_bps, received_bps = peaks_bps(looks[:, 0], looks[:, 1], looks[:, 2:], least_bytes)
        return int(sent_bps), int(received_bps)

    async def _watch(self) -> None:
        for pause_s in pauses_s(FIRST_PAUSE_S):
            self._look()
            await asyncio.sleep(pause_s)

    def _look(self) -> None:
        began_ns = clock.monotonic_ns()
        carried = None if self._counter is None else self._counter()
        if carried is not None:
            self._looks.append((began_ns, clock.monotonic_ns(), *carried))
