"""Steps whose communication overlaps with their own computation: a model in buckets, and when each is made.

Frameworks hide communication behind computation by cutting the model into buckets of neighbouring layers. Backward
makes gradients from the last layer to the first, so each bucket may leave as soon as it is complete:
DistributedDataParallel does that.

The testbed's gradient is real but far too quick, and the rest of its time is slept, so when a bucket is made is a
model, too: forward takes a third of a step, backward two thirds (it computes gradients by weights and by inputs), and
of these each bucket takes its share of the model's bytes. With several buckets of equal size backward makes them at
even distances in the last two thirds of the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.testbed.workload import NS_PER_S, PaddedCompute
from mlfabric.errors import UsageError

__all__ = ["DDP_SHARES", "Buckets", "OverlappedCompute"]

FORWARD_SHARE = 1 / 3
DDP_SHARES = (0.24, 0.25, 0.25, 0.25, 0.01)
"""Of a model of 100 MB, as DistributedDataParallel cuts it from its last layer on: 1 MB, then 25 MB each."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Buckets:
    """Where a flat model is cut: ``ends`` are the ends of the buckets, from the first layer's to the last layer's."""

    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ends or any(end <= start for start, end in itertools.pairwise((0, *self.ends))):
            raise UsageError(f"buckets that end at {self.ends}; allowed: one or more, each of one element or more")

    @classmethod
    def by_shares(cls, elements: int, shares: Sequence[float]) -> Buckets:
        """Cut a model of so many elements into shares of it, which add up to 1.

        Raises:
            UsageError: a bucket would be empty.
        """
        ends = [round(elements * share) for share in itertools.accumulate(shares)]
        return cls((*ends[:-1], elements))

    @classmethod
    def even(cls, elements: int, count: int) -> Buckets:
        """Cut a model into so many buckets of nearly the same size."""
        return cls.by_shares(elements, [1 / count] * count)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Each bucket's place in the flat model."""
        return tuple(slice(start, end) for start, end in itertools.pairwise((0, *self.ends)))

    @property
    def shares(self) -> tuple[float, ...]:
        """Each bucket's share of the model."""
        return tuple((one.stop - one.start) / self.ends[-1] for one in self.slices)


class OverlappedCompute(PaddedCompute):
    """Steps of the same length as ``PaddedCompute`` has them, bucket by bucket."""

    def run_in_buckets(
        self, step: int, buckets: Buckets, function: Callable[[], Result], produced: Callable[[int], None]
    ) -> Result:
        """Call a function, wait until forward would be through, and go backward through all buckets.

        Args:
            step: its number; it lasts as long as in ``run``.
            function: computes all gradients; a step in which that takes longer than forward counts as overrun.
            produced: is told each bucket when backward has made its gradient, the last first; it should be brief.

        Returns:
            What the function returned.
        """
        began_ns, lasts_ns = self._now_ns(), self.lasts_ns(step)
        result = function()
        share = FORWARD_SHARE
        self.overruns += self._now_ns() > began_ns + share * lasts_ns
        for bucket, of_model in reversed(list(enumerate(buckets.shares))):
            share += (1 - FORWARD_SHARE) * of_model
            self._sleep_until(began_ns + round(share * lasts_ns))
            produced(bucket)
        return result

    def _sleep_until(self, at_ns: int) -> None:
        left_ns = at_ns - self._now_ns()
        if left_ns > 0:
            self._sleep_s(left_ns / NS_PER_S)
