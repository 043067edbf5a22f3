"""Elastic rounds: whoever is ready makes a round; who is overdue is not waited for (design, section 3). Pure.

Workers of one round begin to compute at the same moment, so most are ready at about the same time. Who takes longer
than usual is overdue: the round begins without its gradient, which joins the next one with a delay of one round.
"""

from __future__ import annotations

import math

from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.specs import ModelSpec

__all__ = ["Elastic"]

_USUAL = 1.1
"""How many times as long as usual a worker may compute before it is overdue."""
_GRACE = 0.15
_LEAST_GRACE_NS = 5_000_000
"""For how long a round waits for workers that are not overdue yet: this share of the usual time, and at least so
long."""


class Elastic:
    """Rounds of those who are ready."""

    waits_for_slow = False

    def __init__(self, spec: ModelSpec) -> None:
        assert spec.rounds is not None, "a spec of this mode has them"
        self._tau_max, self._at_least = spec.rounds.tau_max, spec.rounds.at_least
        self.most_waiting = max(4, self._tau_max + 1)

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Wait for those that should be ready in a moment, and until enough are."""
        if not who.computing_ns:
            return now_ns
        enough = math.ceil(self._at_least * len(who.workers))
        if len(who.ready_ns) < enough or who.usual_ns is None:
            return None
        grace_ns = max(_LEAST_GRACE_NS, round(_GRACE * who.usual_ns))
        due_ns = [since_ns + round(_USUAL * who.usual_ns) for since_ns in who.computing_ns.values()]
        return max((due for due in due_ns if now_ns < due <= now_ns + grace_ns), default=now_ns)

    def late(self, delay: int) -> Late:
        """Let it join while its delay is within the bound."""
        return Late.JOINS if delay <= self._tau_max else Late.IS_DROPPED
