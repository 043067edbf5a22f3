"""How fast a model moves on, and which workers keep missing it. Pure."""

from __future__ import annotations

from collections import Counter, deque

__all__ = ["Pace"]

LOOKS = 32
FEWEST_LOOKS = 8
"""With fewer the pace is not known: the first updates often come all at once."""
MOST_MISSED = 32


class Pace:
    """What a model's plans have seen of it.

    A worker whose updates were turned away ``MOST_MISSED`` times in a row is waited for the next time, so that nobody
    is shut out for good.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS)
        self._missed: Counter[str] = Counter()

    def look(self, version: int, now_ns: int) -> None:
        """Note where the model is; one that went back is looked at anew."""
        if self._looks and version < self._looks[-1][1]:
            self._looks.clear()
        if self._looks and version == self._looks[-1][1]:
            self._looks[-1] = (now_ns, version)
        else:
            self._looks.append((now_ns, version))

    def commits_in(self, span_ns: int) -> float:
        """Return about how many updates are committed in a time; 0 while the pace is not known."""
        if len(self._looks) < FEWEST_LOOKS or span_ns <= 0:
            return 0.0
        (first_ns, first), (last_ns, last) = self._looks[0], self._looks[-1]
        return (last - first) * span_ns / max(1, last_ns - first_ns)

    def missed(self, worker: str) -> None:
        """Note that an update was turned away as too late."""
        self._missed[worker] += 1

    def made_it(self, worker: str) -> None:
        """Note that an update was committed, or that its worker is gone."""
        self._missed.pop(worker, None)

    def is_waited_for(self, worker: str) -> bool:
        """Tell whether it is this worker's turn, whoever has to wait."""
        return self._missed.get(worker, 0) >= MOST_MISSED
