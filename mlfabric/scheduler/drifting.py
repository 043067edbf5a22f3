"""When links have become faster or slower than plans were made with (design, section 3, "Drift"). Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from mlfabric.network import Network, Path

__all__ = ["DriftWatch"]

QUARTER = 4
PAUSE_NS = 50_000_000

Key = TypeVar("Key", bound=Hashable)


class _Planned(NamedTuple):
    path: Path
    start_ns: int
    rates_bps: tuple[int, ...]


class DriftWatch(Generic[Key]):
    """The rates that the links had when transfers were planned over them; a quarter more or less is drift.

    Attributes:
        due_ns: when what has not started is to be planned anew; None if no rate has left the plans.
    """

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self._planned: dict[Key, _Planned] = {}
        self._not_before_ns = 0

    def note(self, key: Key, path: Path, start_ns: int, network: Network) -> None:
        """Note a transfer and the rates that it is planned with."""
        self._planned[key] = _Planned(path, start_ns, _rates(path, start_ns, network))

    def forget(self, key: Key) -> bool:
        """Forget a transfer, and tell whether it was noted."""
        return self._planned.pop(key, None) is not None

    def look(self, network: Network, now_ns: int) -> None:
        """Compare the rates of now with those planned with, for all that is planned to start later."""
        drifted = any(
            abs(now - then) * QUARTER > then
            for planned in self._planned.values()
            if planned.start_ns > now_ns
            for now, then in zip(_rates(planned.path, planned.start_ns, network), planned.rates_bps, strict=True)
        )
        if not drifted:
            self.due_ns = None
        elif self.due_ns is None:
            self.due_ns = max(now_ns, self._not_before_ns)

    def is_due(self, now_ns: int) -> bool:
        """Tell whether it is time to plan anew."""
        return self.due_ns is not None and self.due_ns <= now_ns

    def start_anew(self, now_ns: int) -> None:
        """Note that all is planned anew; that is not done again for a while."""
        self.due_ns = None
        self._not_before_ns = now_ns + PAUSE_NS


def _rates(path: Path, at_ns: int, network: Network) -> tuple[int, ...]:
    return tuple([network.rate_bps(link, at_ns) for link in path])
