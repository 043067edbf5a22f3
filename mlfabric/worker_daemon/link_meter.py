"""What this host's link carries while a round goes on, by its interface's counters.

At the beginning of a round many workers send all that they have ready: then links are full, and their interfaces count
what they carry, of whatever program. So it is looked often at first and more and more rarely later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mlfabric.channels.interfaces import carried_bytes, interface_of, is_loopback

__all__ = ["LinkMeter"]

FIRST_PAUSE_S = 0.005
LONGER = 1.25
MOST_SAMPLES = 40


class LinkMeter:
    """The interface of one address.

    Args:
        address: ``host:port`` under which others reach this member; if its interface is a loopback or unknown, or it is
            "", nothing is measured.
    """

    def __init__(self, address: str) -> None:
        interface = interface_of(address.rpartition(":")[0].strip("[]")) if address else ""
        self._interface = "" if is_loopback(interface) else interface
        self._samples: list[tuple[int, int, int]] = []

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at the counters now and again until the block ends."""
        self._samples = []
        task = asyncio.create_task(self._watch()) if self._interface else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                self._look()

    def peaks_bps(self, least_bytes: int) -> tuple[int, int]:
        """Return the highest rates at which at least so many bytes were sent, and received; 0 if fewer were."""
        sent = [(at_ns, sent) for at_ns, sent, _ in self._samples]
        received = [(at_ns, received) for at_ns, _, received in self._samples]
        return _peak_bps(sent, least_bytes), _peak_bps(received, least_bytes)

    async def _watch(self) -> None:
        pause_s = FIRST_PAUSE_S
        for _ in range(MOST_SAMPLES):
            self._look()
            await asyncio.sleep(pause_s)
            pause_s *= LONGER

    def _look(self) -> None:
        carried = carried_bytes(self._interface)
        if carried is not None:
            self._samples.append((time.monotonic_ns(), *carried))


def _peak_bps(samples: list[tuple[int, int]], least_bytes: int) -> int:
    """Return the highest mean rate between two samples with at least so many bytes between them."""
    rates = [
        (late - early) * 8 * 10**9 // (late_ns - early_ns)
        for n, (late_ns, late) in enumerate(samples)
        for early_ns, early in samples[:n]
        if late - early >= least_bytes and late_ns > early_ns
    ]
    return max(rates, default=0)
