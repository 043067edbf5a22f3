"""Which workers train a model, and how many iterations each has finished. Pure.

An iteration of a worker's is finished when its update is settled, committed or dropped. Who joins late, or comes back
after it had been given up, begins where the slowest is: nobody waits for what it has missed. Clocks are soft state; a
scheduler that begins anew counts from 0 for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from mlfabric.protocol import GetRequested, UpdateId

__all__ = ["Clocks"]


@dataclass(slots=True)
class _Clock:
    """One worker's: ``open`` are the counters of its updates that were asked for and are not settled."""

    finished: int
    open: set[int] = field(default_factory=set)


class Clocks:
    """The clocks of the workers that train one model."""

    def __init__(self) -> None:
        self._of: dict[str, _Clock] = {}
        self._slowest: int | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    @property
    def slowest(self) -> int:
        """The fewest iterations that any worker has finished; 0 without workers."""
        if self._slowest is None:
            self._slowest = min((clock.finished for clock in self._of.values()), default=0)
        return self._slowest

    def finished(self, worker: str) -> int:
        """Return how many iterations a worker has finished; 0 if it trains no longer."""
        clock = self._of.get(worker)
        return 0 if clock is None else clock.finished

    def join(self, worker: str) -> None:
        """Count a worker from now on; one that is counted already goes on."""
        if worker not in self._of:
            self._of[worker] = _Clock(self.slowest)
            self._slowest = None

    def leave(self, worker: str) -> None:
        """Count a worker no longer."""
        self._of.pop(worker, None)
        self._slowest = None

    def ask(self, update: UpdateId) -> None:
        """Note that a worker has an update to send."""
        if (clock := self._of.get(update.worker)) is not None:
            clock.open.add(update.counter)

    def settle(self, update: UpdateId) -> None:
        """Note that an update is settled: its worker has finished one more iteration, if that is news."""
        clock = self._of.get(update.worker)
        if clock is not None and update.counter in clock.open:
            clock.open.remove(update.counter)
            clock.finished += 1
            self._slowest = None

    def settle_others(self, worker: str, held: Set[int]) -> None:
        """Note that all of a worker's updates are settled but those with the counters ``held``."""
        clock = self._of.get(worker)
        if clock is not None:
            over = clock.open - held
            clock.open -= over
            clock.finished += len(over)
            self._slowest = None

    def before(self, update: UpdateId) -> int:
        """Return how many iterations its worker has finished, or is to have finished, before an update."""
        clock = self._of.get(update.worker)
        if clock is None:
            return 0
        return clock.finished + sum(counter < update.counter for counter in clock.open)

    def at(self, get: GetRequested) -> int:
        """Return how many iterations a worker will have finished when its get is answered."""
        after, clock = get.after_update, self._of.get(get.get.worker)
        if clock is None or after is None or after.counter not in clock.open:
            return self.finished(get.get.worker)
        return self.before(after) + 1
