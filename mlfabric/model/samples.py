"""Which samples were trained on, how often, and which not: positions in a stream, sets of ranges of them. Pure.

A sample has a position in one endless stream: sample i of n in epoch e of the data (in the order of that epoch) is at
e * n + i. So half-open ranges of positions name what an update was computed from in a few bytes, ranges of many workers
grow together, and complete epochs are one range. A set of samples is a tuple of ranges (start, stop): in order,
none empty, none touching the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import lt, ne

from mlfabric.errors import UsageError
from mlfabric.model.ranges import Ranges, covered, difference

__all__ = [
    "LAST_POSITION",
    "MOST_RANGES",
    "MOST_RUNS",
    "NO_SAMPLES",
    "Run",
    "SampleAccount",
    "SampleCounts",
    "Samples",
    "samples_of",
    "union",
]

Samples = Ranges
Run = tuple[int, int, int]
"""Half-open range of positions, and how often all of them were trained on."""

LAST_POSITION = 2**62
MOST_RANGES = 256
"""Of one update."""
MOST_RUNS = 65_536
"""Of one account, for each of its parts: about 10 MB at worst. Ranges that grow together need a few."""
_MOST_ROLLBACKS = 64


def samples_of(ranges: Iterable[tuple[int, int]], most: int = MOST_RANGES) -> Samples:
    """Return the set of samples that these ranges cover, in whatever order and however they overlap.

    Raises:
        UsageError: a range is empty or out of range, or there are more than ``most``.
    """
    given = tuple(ranges)
    for start, stop in given:
        if not 0 <= start < stop <= LAST_POSITION:
            raise UsageError(f"samples from {start} up to {stop}; allowed: 0 <= start < stop <= 2**62")
    found = covered(given)
    if len(found) > most:
        too_many = f"samples in {len(found)} ranges"
        raise UsageError(f"{too_many}; allowed: {most}. Number samples in the order in which they are used")
    return found


def union(a: Samples, b: Samples) -> Samples:
    """Return the samples that are in one of these."""
    if not a or not b:
        return a or b
    return samples_of((*a, *b), len(a) + len(b))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCounts:
    """What became of the samples of one model, as of some version.

    Args:
        runs: what was trained on, in order: each with how often. Neighbours that touch differ in that.
        dropped: whose updates were dropped; some may be among ``runs`` by now.
        lost: which were trained on, and the versions that this made were lost with a server; some may be among
            ``runs`` again.
        rollbacks: what was lost with a server: its epoch, the version that was kept, the last one that is known to be
            lost.
        unplaced: how many more samples were trained on, but not taken into ``runs``, which had too many ranges.
    """

    runs: tuple[Run, ...] = ()
    dropped: Samples = ()
    lost: Samples = ()
    rollbacks: tuple[tuple[int, int, int], ...] = ()
    unplaced: int = 0

    @property
    def trained(self) -> Samples:
        """What was trained on at least once."""
        return samples_of(((start, stop) for start, stop, _ in self.runs), max(1, len(self.runs)))

    @property
    def repeated(self) -> tuple[Run, ...]:
        """What was trained on more than once."""
        return tuple(run for run in self.runs if run[2] > 1)

    @property
    def not_trained(self) -> Samples:
        """Whose updates were dropped, and which were not trained on otherwise."""
        return difference(self.dropped, self.trained)

    @property
    def not_trained_again(self) -> Samples:
        """What was lost with a server, and not trained on since."""
        return difference(self.lost, self.trained)

    def within(self, most: int) -> SampleCounts:
        """Return an account of at most so many ranges: this one, or one that only knows how many samples it lacks."""
        if len(self.runs) + len(self.dropped) + len(self.lost) <= most:
            return self
        trained = sum((stop - start) * times for start, stop, times in self.runs)
        return SampleCounts(rollbacks=self.rollbacks, unplaced=self.unplaced + trained)

    def missing(self, under_way: Samples = ()) -> Samples:
        """Return what is before the last sample that is known of, and of which nothing else is known.

        Args:
            under_way: what updates were computed from that have no outcome yet.
        """
        known = union(union(self.trained, self.dropped), union(self.lost, under_way))
        return difference(((0, known[-1][1]),), known) if known else ()


NO_SAMPLES = SampleCounts()


class SampleAccount:
    """The account of one model, which grows with each commit.

    Args:
        counts: what it begins with.
    """

    def __init__(self, counts: SampleCounts = NO_SAMPLES) -> None:
        self._at: list[int] = []
        self._times: list[int] = []
        self._dropped, self._lost = counts.dropped, counts.lost
        self._rollbacks, self._unplaced = counts.rollbacks, counts.unplaced
        for start, stop, times in counts.runs:
            if self._at and self._at[-1] == start:
                self._times[-1] = times
            else:
                self._at.append(start)
                self._times.append(times)
            self._at.append(stop)
            self._times.append(0)
        self._snapshot: SampleCounts | None = counts
        self._is_touched = True

    def train(self, samples: Samples) -> None:
        """Count samples whose update was committed."""
        if samples:
            self._snapshot = None
        for start, stop in samples:
            if len(self._at) + 2 > MOST_RUNS:
                self._unplaced += stop - start
            else:
                self._count(start, stop)

    def drop(self, samples: Samples) -> None:
        """Note samples whose update was dropped; to say it again changes nothing."""
        self._dropped = self._bounded(union(self._dropped, samples))
        self._snapshot = None

    def lose(self, samples: Samples, epoch: int, kept: int, last: int) -> None:
        """Note samples whose versions were lost: those after ``kept`` up to ``last`` of a server's epoch."""
        self._lost = self._bounded(union(self._lost, samples))
        self._rollbacks = (*self._rollbacks, (epoch, kept, last))[-_MOST_ROLLBACKS:]
        self._snapshot = None

    def counts(self) -> SampleCounts:
        """Return the present account."""
        if self._snapshot is None:
            self._snapshot = SampleCounts(
                runs=tuple(self._runs()),
                dropped=self._dropped,
                lost=self._lost,
                rollbacks=self._rollbacks,
                unplaced=self._unplaced,
            )
        return self._snapshot

    def validate(self) -> None:
        """Check what must hold after every change; a violation is a broken invariant."""
        if not self._is_touched:
            return
        self._is_touched = False
        before = [0, *self._times]
        assert all(map(lt, self._at, self._at[1:])), f"not in order: {self._at}"
        assert all(map(ne, before, self._times)), f"runs that touch: {self._times}"
        assert min(before) == 0 == before[-1], f"counts are below 0, or have no end: {self._times}"

    def _runs(self) -> Iterator[Run]:
        for i, times in enumerate(self._times):
            if times:
                yield self._at[i], self._at[i + 1], times

    def _count(self, start: int, stop: int) -> None:
        self._is_touched = True
        first, last = self._cut(start), self._cut(stop)
        for i in range(first, last):
            self._times[i] += 1
        for i in (last, first):
            if self._times[i] == (self._times[i - 1] if i else 0):
                del self._at[i], self._times[i]

    def _cut(self, position: int) -> int:
        """Return where the run that begins here is, making one if need be."""
        i = bisect_left(self._at, position)
        if i == len(self._at) or self._at[i] != position:
            self._at.insert(i, position)
            self._times.insert(i, self._times[i - 1] if i else 0)
        return i

    def _bounded(self, samples: Samples) -> Samples:
        """Forget what was trained on, or else the first of too many ranges."""
        if len(samples) <= MOST_RUNS:
            return samples
        trained = SampleCounts(runs=tuple(self._runs())).trained
        return difference(samples, trained)[-MOST_RUNS:]
