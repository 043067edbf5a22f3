"""How long backward still takes, and when a gradient had better be offered while backward makes it. Pure.

How long the rest of backward took after each tensor is known from the step before, in shares of the time from the
installed model to that tensor: a step that is slow for once is slow as a whole.

A round waits for the last gradient of each of its members. So a gradient is offered at its first tensor, but of a step
that is slow as late as leaves no more of it than is usually left then: whoever waits for it waits no longer than for
the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

__all__ = ["EarlyOffers", "RestOfBackward"]

_KEPT = 8
_USUAL = 1.25
_LATE = 3
"""After how many times the expected rest of backward a gradient counts as late."""
_LEAST_PATIENCE_S = 0.1


class RestOfBackward:
    """What is left of one worker's steps after each of its tensors."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._shares: dict[int, float] = {}

    def begin(self, now_ns: int) -> None:
        """Say that a step begins: its model is installed."""
        self._began_ns = now_ns

    def expected_ns(self, tensor: int, now_ns: int) -> float | None:
        """Return how long the rest takes after a tensor that has just been made; None if that is unknown."""
        return (now_ns - self._began_ns) * self._shares[tensor] if tensor in self._shares else None

    def ended(self, made_ns: Mapping[int, int], last_ns: int) -> None:
        """Learn from a step when its tensors were made, and the last of it."""
        self._shares = {i: (last_ns - ns) / (ns - self._began_ns) for i, ns in made_ns.items() if ns > self._began_ns}


class EarlyOffers:
    """When one worker offers its gradients."""

    def __init__(self) -> None:
        self._rest = RestOfBackward()
        self._usual_ns: deque[int] = deque(maxlen=_KEPT)
        self.begin = self._rest.begin

    def patience_s(self, tensor: int, now_ns: int) -> float | None:
        """Return how long to wait for the rest of a gradient at the most; None if it is not to be offered yet.

        Args:
            tensor: the last one that has been made.
        """
        rest_ns = self._rest.expected_ns(tensor, now_ns)
        if rest_ns is None or not self._usual_ns or rest_ns > _USUAL * median(self._usual_ns):
            return None
        return max(_LEAST_PATIENCE_S, _LATE * rest_ns / 1e9)

    def ended(self, made_ns: Mapping[int, int], now_ns: int) -> None:
        """Learn from a step that is complete."""
        if made_ns:
            self._rest.ended(made_ns, now_ns)
            self._usual_ns.append(now_ns - min(made_ns.values()))
