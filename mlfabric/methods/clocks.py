"""Which workers train a model, and how many iterations each has finished. Pure.

An iteration of a worker's is finished when its update is settled, committed or dropped. Who joins late, or comes back
after it had been given up, begins where the slowest is: nobody waits for what it has missed.

Clocks are soft state: a worker that comes to a new scheduler says how many it has finished. Of those that are only
known to be on their way nobody knows, and they may be the slowest: they are *awaited*.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, field

from mlfabric.protocol import GetRequested, UpdateId

__all__ = ["Clocks"]


@dataclass(slots=True)
class _Clock:
    """One worker's.

    Args:
        open: the counters of its updates that were asked for and are not settled.
        is_heard: it has said itself how far it is, or has asked for an update.
        is_first: it began at 0, since nobody else was there: those who come back may be further.
    """

    finished: int
    open: set[int] = field(default_factory=set)
    is_heard: bool = False
    is_first: bool = False


class Clocks:
    """The clocks of the workers that train one model."""

    def __init__(self) -> None:
        self._of: dict[str, _Clock] = {}
        self._awaited: set[str] = set()
        self._given_up: set[str] = set()
        self._slowest: int | None = None

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self._of, self._awaited)

    def __len__(self) -> int:
        """How many have joined."""
        return len(self._of)

    @property
    def awaited(self) -> Collection[str]:
        """The workers that are expected back from an earlier scheduler, and have not said how far they are."""
        return self._awaited

    @property
    def slowest(self) -> int:
        """The fewest iterations that any worker has finished, of those that are not awaited; 0 without workers."""
        if self._slowest is None:
            self._slowest = min((clock.finished for clock in self._of.values()), default=0)
        return self._slowest

    def finished(self, worker: str) -> int:
        """Return how many iterations a worker has finished; 0 if it trains no longer."""
        clock = self._of.get(worker)
        return 0 if clock is None else clock.finished

    def beginning(self, worker: str) -> int:
        """Return how many iterations a worker is to count as finished if it is new, or was given up here; else 0."""
        clock = self._of.get(worker)
        return 0 if clock is None or clock.is_heard else clock.finished

    def wait_for(self, worker: str) -> None:
        """Wait for a worker that another scheduler knew, unless it has said how far it is."""
        clock = self._of.get(worker)
        if clock is None or not clock.is_heard:
            self._of.pop(worker, None)
            self._slowest = None
            self._awaited.add(worker)

    def join(self, worker: str) -> None:
        """Count a worker from now on; one that is counted goes on, one that is awaited has to say how far it is."""
        if worker not in self._of and worker not in self._awaited:
            self._of[worker] = _Clock(self.slowest, is_first=not self._of)
            self._slowest = None

    def hear(self, worker: str, finished: int | None) -> None:
        """Take in what a worker says when it (re)joins; who is counted already goes on as before.

        Args:
            finished: how many iterations it has finished; None if it has not trained under another scheduler.
        """
        if worker in self._awaited:
            self._awaited.remove(worker)
            self.join(worker)
        clock = self._of.get(worker)
        if clock is None or clock.is_heard:
            return
        clock.is_heard = True
        self._slowest = None
        if finished is None:
            return
        if worker in self._given_up:
            self._given_up.remove(worker)
            finished = max(finished, clock.finished)
        clock.finished, clock.is_first = finished, False
        for other in self._of.values():
            if other.is_first:
                other.finished, other.is_first = max(finished, other.finished), False

    def leave(self, worker: str) -> None:
        """Count a worker no longer; one that was awaited begins where the slowest is if it comes back after all."""
        self._of.pop(worker, None)
        self._slowest = None
        if worker in self._awaited:
            self._awaited.remove(worker)
            self._given_up.add(worker)

    def ask(self, update: UpdateId) -> None:
        """Note that a worker has an update to send."""
        if (clock := self._of.get(update.worker)) is not None:
            clock.open.add(update.counter)
            clock.is_heard = True

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
