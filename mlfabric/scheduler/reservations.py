"""What transfers take of the links, and when these have become faster or slower since (design, 3, "Drift"). Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from mlfabric.network import Network, Path, Profile
from mlfabric.planning import Timetable

__all__ = ["Reservations"]

QUARTER = 4
PAUSE_NS = 50_000_000

Key = TypeVar("Key", bound=Hashable)


class _Planned(NamedTuple):
    path: Path
    start_ns: int
    rates_bps: tuple[int, ...]


class Reservations(Generic[Key]):
    """What the transfers of one model and kind take of the links: in the network, and in the order of a timetable.

    The rates that the links had when transfers were planned over them are kept; a quarter more or less is drift.

    Attributes:
        due_ns: when what has not started is to be planned anew; None if no rate has left the plans.
    """

    def __init__(self, network: Network, model: str, kind: str) -> None:
        self.due_ns: int | None = None
        self._network, self._model, self._kind = network, model, kind
        self._timetable = Timetable[Key]()
        self._planned: dict[Key, _Planned] = {}
        self._not_before_ns = 0

    def enter(self, key: Key, path: Path, profile: Profile, waited_for: Path | None = None) -> tuple[Key, ...]:
        """Reserve the links of a transfer; return which others the plan ends before it starts.

        Args:
            waited_for: the links on which others wait for it; all of its path unless given.
        """
        after = self._timetable.before(path, profile.start_ns)
        self._network.reserve((self._model, self._kind, key), path, profile)
        self._timetable.add(key, path if waited_for is None else waited_for, profile)
        self._planned[key] = _Planned(path, profile.start_ns, self._rates(path, profile.start_ns))
        return after

    def free(self, key: Key) -> None:
        """Give back what a transfer has reserved, if it has anything: most are free before they are settled."""
        if self._planned.pop(key, None) is not None:
            self._network.release((self._model, self._kind, key))
            self._timetable.remove(key)

    def look(self, now_ns: int) -> None:
        """Compare the rates of now with those planned with, for all that is planned to start later."""
        drifted = any(
            abs(now - then) * QUARTER > then
            for planned in self._planned.values()
            if planned.start_ns > now_ns
            for now, then in zip(self._rates(planned.path, planned.start_ns), planned.rates_bps, strict=True)
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

    def _rates(self, path: Path, at_ns: int) -> tuple[int, ...]:
        return tuple([self._network.rate_bps(link, at_ns) for link in path])
