"""A step function of time: a link's capacity, or its free capacity, at every instant.

``values[i]`` holds from ``times[i]`` until ``times[i + 1]``; ``times`` starts at 0 and ends at :data:`HORIZON_NS`, so
it is one longer than ``values``. All times are integer nanoseconds, all values bit/s.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import lt, ne

__all__ = ["HORIZON_NS", "Timeline"]

HORIZON_NS = 1 << 62  # 146 years: a later end counts as never


class Timeline:
    """A mutable step function; adding keeps neighbours of equal value merged, ``put`` keeps every boundary."""

    __slots__ = ("times", "values")

    def __init__(self, value: int) -> None:
        self.times = [0, HORIZON_NS]
        self.values = [value]

    def copy(self) -> Timeline:
        """Return an independent copy."""
        twin = Timeline.__new__(Timeline)
        twin.times = self.times.copy()
        twin.values = self.values.copy()
        return twin

    def at(self, at_ns: int) -> int:
        """Return the value at ``at_ns``."""
        if at_ns < self.times[1]:
            return self.values[0]
        return self.values[bisect_right(self.times, at_ns, 0, len(self.values)) - 1]

    def least(self, start_ns: int, end_ns: int) -> int:
        """Return the least value within ``[start_ns, end_ns)``, which must not be empty."""
        if len(self.values) == 1:
            return self.values[0]
        first = bisect_right(self.times, start_ns, 0, len(self.values)) - 1
        return min(self.values[first : bisect_left(self.times, end_ns)])

    def add(self, start_ns: int, end_ns: int, delta: int) -> None:
        """Add ``delta`` to the value within ``[start_ns, end_ns)``, which must not be empty."""
        times, values = self.times, self.values
        first, last = self._split(start_ns), self._split(end_ns)
        for i in range(first, last):
            values[i] += delta
        for i in (last, first):
            if 0 < i < len(values) and values[i] == values[i - 1]:
                del times[i], values[i]

    def put(self, at_ns: int, value: int) -> tuple[int, int]:
        """Set the value from ``at_ns`` until the next boundary; return that boundary and the former value."""
        i = self._split(at_ns)
        former, self.values[i] = self.values[i], value
        return self.times[i + 1], former

    def trim(self, floor_ns: int) -> None:
        """Forget everything before ``floor_ns``: the value at that instant then holds from 0 on."""
        if self.times[1] <= floor_ns:
            kept = bisect_right(self.times, floor_ns, 0, len(self.values)) - 1
            del self.times[:kept], self.values[:kept]
            self.times[0] = 0

    def next_change(self, at_ns: int) -> int:
        """Return the first boundary after ``at_ns``."""
        return self.times[bisect_right(self.times, at_ns)]

    def validate(self, *, merged: bool) -> None:
        """Assert that the boundaries ascend from 0 to the horizon, and that neighbours differ if ``merged``."""
        times, values = self.times, self.values
        assert len(times) == len(values) + 1, f"{len(times)} boundaries of {len(values)} values"
        assert (times[0], times[-1]) == (0, HORIZON_NS), f"boundaries {times}"
        assert all(map(lt, times, times[1:])), f"boundaries do not ascend: {times}"
        assert not merged or all(map(ne, values, values[1:])), f"neighbours not merged: {values}"

    def _split(self, at_ns: int) -> int:
        i = bisect_left(self.times, at_ns)
        if self.times[i] != at_ns:
            self.times.insert(i, at_ns)
            self.values.insert(i, self.values[i - 1])
        return i
