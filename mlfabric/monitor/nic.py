"""What the monitor's own network interface carries, of whatever program.

The kernel's counters are exact; what is often missing is the speed that the interface could have: loopback and most
virtual interfaces state none. Then the counters are only shown.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psutil

from mlfabric import clock
from mlfabric.channels.interfaces import carried_bytes
from mlfabric.errors import UsageError

__all__ = ["NicSample", "NicSampler"]

log = logging.getLogger("mlfabric.monitor")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSample:
    """What passed an interface between two looks.

    Args:
        sent_bytes, received_bytes: in that time.
        speed_bps: what the interface states that it can do in each direction; 0 means unknown.
        started_s, ended_s: monotonic clock.
    """

    sent_bytes: int
    received_bytes: int
    speed_bps: int
    started_s: float
    ended_s: float

    @property
    def up_bps(self) -> float:
        """Mean rate sent."""
        return 8 * self.sent_bytes / (self.ended_s - self.started_s)

    @property
    def down_bps(self) -> float:
        """Mean rate received."""
        return 8 * self.received_bytes / (self.ended_s - self.started_s)


class NicSampler:
    """Looks at one interface now and again.

    Args:
        interface: its name, as in ``ip link``.

    Raises:
        UsageError: there is no such interface.
    """

    def __init__(self, interface: str) -> None:
        names = sorted(psutil.net_io_counters(pernic=True))
        if interface not in names:
            raise UsageError(f"interface {interface!r} does not exist; allowed: {', '.join(names)}")
        self.interface = interface
        self._last = (clock.monotonic_s(), *(carried_bytes(interface) or (0, 0)))
        if not self._speed_bps():
            log.info("interface %s states no speed: its counters are shown, but tell nothing of its link", interface)

    def sample(self) -> NicSample | None:
        """Return what passed since the last look; None if that was just now or the interface is gone."""
        carried = carried_bytes(self.interface)
        if carried is None:
            return None
        (started_s, sent_before, received_before), (sent, received) = self._last, carried
        ended_s = clock.monotonic_s()
        if ended_s <= started_s or sent < sent_before or received < received_before:
            return None
        self._last = (ended_s, sent, received)
        return NicSample(
            sent_bytes=sent - sent_before,
            received_bytes=received - received_before,
            speed_bps=self._speed_bps(),
            started_s=started_s,
            ended_s=ended_s,
        )

    def _speed_bps(self) -> int:
        stats = psutil.net_if_stats().get(self.interface)
        return stats.speed * 1_000_000 if stats is not None and stats.speed > 0 else 0
