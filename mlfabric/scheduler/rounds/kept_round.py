"""A round that is void only as links have become slow: what of its result need not be made again. Pure.

Each of its workers says which bytes of the result it has. What all of them have is kept, as long as the next round is
of the same gradients and for nobody else: that one is of the rest alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mlfabric.model.ranges import Ranges, difference, intersection
from mlfabric.model.specs import ALIGNMENT_BYTES
from mlfabric.protocol import ReduceRequested, RoundKept
from mlfabric.scheduler.rounds.running_round import RunningRound

__all__ = ["KeptRound"]


class KeptRound:
    """What is known of it.

    Args:
        running: the round, when it became void.
    """

    def __init__(self, running: RunningRound) -> None:
        self.id = running.id
        self._members = running.members
        self._workers = frozenset(running.parts)
        self._silent = set(running.parts)
        self._all: Ranges = ((0, running.size_bytes),)
        self._kept: Ranges = self._all

    @property
    def is_known(self) -> bool:
        """Whether all of its workers have said what they have."""
        return not self._silent

    def has(self, event: RoundKept) -> None:
        """Note what a worker has."""
        if event.worker in self._silent:
            self._silent.remove(event.worker)
            self._kept = intersection(self._kept, event.kept)

    def heads(self, ready: Mapping[str, ReduceRequested]) -> dict[str, ReduceRequested]:
        """Return what its members offer, out of all that is ready."""
        return {worker: offer for worker, offer in ready.items() if worker in self._members}

    def rest(self, ready: Mapping[str, ReduceRequested], workers: Collection[str]) -> Ranges:
        """Return what is still to be summed if the next round goes on where it was; none if all is to be summed.

        Args:
            ready: what the next round may be of.
            workers: to whom its result goes.
        """
        of_same = all(worker in ready and ready[worker].reduce == one.reduce for worker, one in self._members.items())
        if self._silent or not of_same or not self._workers.issuperset(workers):
            return ()
        blocks = ((start // ALIGNMENT_BYTES, -(-stop // ALIGNMENT_BYTES)) for start, stop in self._all)
        inside = ((-(-start // ALIGNMENT_BYTES), stop // ALIGNMENT_BYTES) for start, stop in self._kept)
        rest = difference(tuple(blocks), tuple(each for each in inside if each[0] < each[1]))
        size_bytes = self._all[0][1]
        found = tuple((start * ALIGNMENT_BYTES, min(size_bytes, stop * ALIGNMENT_BYTES)) for start, stop in rest)
        return () if found == self._all else found or self._last_block()

    def _last_block(self) -> Ranges:
        """Return the last bytes: a round is of something."""
        size_bytes = self._all[0][1]
        return (((size_bytes - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES, size_bytes),)
