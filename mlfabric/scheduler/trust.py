"""Whether AllReduces may go in stripes, judged by how much longer than planned those took lately. Pure.

Stripes give those hosts more to do whose links are fast, as far as is known. Where links change faster than that is
learnt, a round takes several times as long as planned, and a ring, which counts on nothing, is the better choice. After
a while of other shapes stripes are tried again.
"""

from __future__ import annotations

__all__ = ["Trust"]

MOST = 2.5
_WEIGHT = 0.5
_FADES = 0.97
_WORST = 10.0


class Trust:
    """How many times as long as planned rounds in stripes take, 1 at first."""

    def __init__(self) -> None:
        self._factor = 1.0

    @property
    def is_lost(self) -> bool:
        """Tell whether they take too long."""
        return self._factor > MOST

    def took(self, times: float | None) -> None:
        """Note a round: how many times as long as planned it took, None if it did not go in stripes."""
        if times is None:
            self._factor = 1.0 + _FADES * (self._factor - 1.0)
        else:
            self._factor += _WEIGHT * (min(_WORST, max(1.0, times)) - self._factor)
