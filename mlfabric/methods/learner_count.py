"""How many learners a device is to have: one more as long as that makes more batches per second. Pure.

CROSSBOW's algorithm 2. The paper compares single readings; here the median of several counts, as readings are noisy.
"""

from __future__ import annotations

from statistics import median

__all__ = ["READINGS", "WORTH_WHILE", "LearnerCount"]

WORTH_WHILE = 0.1
"""By which share of the throughput one more learner must raise it; the paper's scripts have this."""
READINGS = 40


class LearnerCount:
    """Finds a number of learners.

    Args:
        most: there are never more, >= 1.

    Attributes:
        count: how many there should be now.
        is_settled: whether that is the number that was looked for.
    """

    def __init__(self, most: int) -> None:
        self.count = 1
        self.is_settled = most == 1
        self._most = most
        self._before = 0.0
        self._readings: list[float] = []

    def read(self, batches_per_s: float) -> None:
        """Take a reading that was made with the present number of learners; the number may be another one then."""
        if self.is_settled:
            return
        self._readings.append(batches_per_s)
        if len(self._readings) < READINGS:
            return
        found, self._readings = median(self._readings), []
        if found <= (1 + WORTH_WHILE) * self._before:
            self.count, self.is_settled = self.count - 1, True
        elif self.count == self._most:
            self.is_settled = True
        else:
            self._before, self.count = found, self.count + 1

    def limit(self, most: int) -> None:
        """Let there never be more than so many, >= 1."""
        self._most = most
        if self.count > most:
            self.count, self.is_settled = most, True
