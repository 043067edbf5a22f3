"""At which versions the parts of a model are checkpointed: the same ones at all of its servers, though nobody says so.

Only checkpoints of one version fit together, after a crash (design, section 5, "Several servers"). All servers make the
same versions at the same pace; so each takes the multiples of a power of two, the greatest one that is made in the time
between checkpoints. Servers that disagree on the pace by a factor of two still have every second one in common. Pure.
"""

from __future__ import annotations

__all__ = ["Milestones"]


class Milestones:
    """The milestones of one part of a model.

    Args:
        every_s: seconds between checkpoints, > 0; they are a half to the whole of it apart.
        version: at which it begins.
        now_s: it is now, by any clock.
    """

    def __init__(self, every_s: float, version: int, now_s: float) -> None:
        self._every_s = every_s
        self._version = version
        self._since_s = now_s

    def is_due(self, version: int, now_s: float) -> bool:
        """Tell whether a version that was just made is to be checkpointed; then the next count begins.

        Args:
            version: greater than the one before.
            now_s: it is now.
        """
        passed_s = now_s - self._since_s
        if passed_s < self._every_s / 4:
            return False
        per_interval = int((version - self._version) * self._every_s / passed_s)
        if version % (1 << max(0, per_interval.bit_length() - 1)):
            return False
        self._version, self._since_s = version, now_s
        return True
