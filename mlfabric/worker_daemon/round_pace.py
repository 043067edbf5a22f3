"""Whether an attempt at a round goes on as it was planned to, by what fills up at one worker. Pure.

All streams of a round go at even rates, so once the first bytes are everywhere, equal parts come in equal times. A link
that becomes slow holds up all that goes over it, and soon the whole tree below. So what comes in a short while tells
how long the rest will take: maybe too long for all links to be what they were when the round was planned.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Pace"]

_LEAST_WINDOW_NS = 1_200_000_000
_WINDOW_SHARE = 3
"""For how long one looks at what comes: at least so long, and one part of so many of the planned time. A lost packet
holds a stream up for 200 ms (TCP's least timeout), for 600 ms if it is lost again, and for longer behind a full queue:
a round that is begun anew because of that loses more than the packet did."""
_LOOKS = 4
"""How often one looks in that time."""
_BEGINS_AFTER = 4
"""The first bytes of each stream need one part of so many of the planned time at most."""
_SLOW_SHARE = 0.5
"""What is slow: less than this part of what was to come."""
_LEAST_SHARE = 1 / 4
"""If hardly anything comes, the rest is expected to come at this part of the planned rate: over a link that has become
slow something comes, and what stands still for a moment goes on."""
_LONGER = 1.25
"""One that turns out to be so many times as bad is told of again."""


class Pace:
    """The pace of one attempt.

    Args:
        planned_ns: how long all of it is to take, > 0.
        began_ns: when it began.

    Attributes:
        look_ns: after so long one is to look again.
    """

    def __init__(self, planned_ns: int, began_ns: int) -> None:
        self._planned_ns = planned_ns
        self._window_ns = max(_LEAST_WINDOW_NS, planned_ns // _WINDOW_SHARE)
        self._not_before_ns = began_ns + planned_ns // _BEGINS_AFTER
        self._told_ns = 0
        self._looks: deque[tuple[int, float]] = deque(maxlen=_LOOKS + 1)
        self.look_ns = self._window_ns // _LOOKS

    def usual_ns(self, done: float) -> int:
        """Return how long the rest takes as planned."""
        return round((1.0 - done) * self._planned_ns)

    def left_ns(self, done: float, now_ns: int, *, flows: bool = False) -> int:
        """Look at what is done; return how long the rest takes if it goes on slowly, 0 if it does not.

        A rest that takes hardly longer than what was told is not told of.

        Args:
            done: which part, 0 to 1.
            flows: something has come of each stream.
        """
        if flows or now_ns >= self._not_before_ns:
            self._looks.append((now_ns, done))
        since_ns, before = self._looks[0] if self._looks else (now_ns, done)
        if done >= 1.0 or now_ns - since_ns < self._window_ns:
            return 0
        share = (done - before) * self._planned_ns / (now_ns - since_ns)
        left_ns = round(self.usual_ns(done) / max(share, _LEAST_SHARE)) if share < _SLOW_SHARE else 0
        if left_ns <= self._told_ns:
            return 0
        self._told_ns = round(_LONGER * left_ns)
        return left_ns
