"""Elastic rounds: whoever is ready makes a round; who is overdue is not waited for (design, section 3). Pure.

Workers of one round begin to compute at the same moment, so most are ready at about the same time. Who takes longer
than usual is overdue: the round begins without its gradient, which joins the next one with a delay of one round.
"""

from __future__ import annotations

import math

from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.specs import ModelSpec, RoundOptions

__all__ = ["Elastic"]

_USUAL = 1.1
"""How many times as long as usual a worker may compute before it is overdue."""
_GRACE = 0.15
"""For which part of the usual time a round waits for workers that are not overdue yet."""
_LOST = 10
"""After how many times the usual time a worker does not count any more among those of which a share must be ready."""
_LEAST_USUAL_NS = 20_000_000
"""Shorter times are not told apart from delays of threads and messages."""


class Elastic:
    """Rounds of those who are ready."""

    waits_for_slow = False

    def __init__(self, spec: ModelSpec) -> None:
        options = spec.rounds or RoundOptions()
        self._tau_max, self._at_least = options.tau_max, options.at_least
        self.most_waiting = max(4, self._tau_max + 1)

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Wait for those that should be ready in a moment, and until enough are."""
        if not who.computing_ns:
            return now_ns
        if who.usual_ns is None or self._at_least == 1:
            return None
        usual_ns = max(_LEAST_USUAL_NS, who.usual_ns)
        lost_ns = [since_ns + _LOST * usual_ns for since_ns in who.computing_ns.values()]
        counted = len(who.ready_ns) + sum(lost > now_ns for lost in lost_ns)
        if len(who.ready_ns) < math.ceil(self._at_least * counted):
            return min(lost for lost in lost_ns if lost > now_ns)
        due_ns = [since_ns + round(_USUAL * usual_ns) for since_ns in who.computing_ns.values()]
        last_ns = now_ns + round(_GRACE * usual_ns)
        return max((due for due in due_ns if now_ns < due <= last_ns), default=now_ns)

    def late(self, delay: int) -> Late:
        """Let it join while its delay is within the bound."""
        return Late.JOINS if delay <= self._tau_max else Late.IS_DROPPED
