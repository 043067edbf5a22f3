"""Elastic rounds: whoever is ready makes a round; who is overdue is not waited for (design, section 3). Pure.

Workers of one round begin to compute at the same moment, so most are ready at about the same time. A worker that takes
longer than is worth waiting for (``patience.py``) is overdue: the round begins without its gradient.

If the gradient is there before that round is over, its worker has to wait for the next one, as long as others compute.
So it gives the gradient up, and makes one from the new model in that time: the next round has as many gradients, and
none that is late. Late ones push a model that has moved on, and momentum repeats that. A worker that was late the time
before, too, may be slow always: its gradient joins the next round with a delay of one. So does one that comes later,
while others compute already, and one that is offered while backward makes it. A movement of several steps always joins.
"""

from __future__ import annotations

import math

from mlfabric.methods.patience import best_ns
from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.specs import Method, ModelSpec, RoundOptions

__all__ = ["Elastic"]

_LOST = 10
"""After how many times the usual time a worker does not count any more among those of which a share must be ready. The
first round of gradients waits so long."""
_LEAST_USUAL_NS = 20_000_000
"""Shorter times are not told apart from delays of threads and messages."""


class Elastic:
    """Rounds of those who are ready."""

    waits_for_slow = False

    def __init__(self, spec: ModelSpec) -> None:
        options = spec.rounds or RoundOptions()
        self.delay_bound, self._at_least = options.tau_max, options.at_least
        self.most_waiting = max(4, self.delay_bound + 1)
        self._replaces = spec.method is Method.ELASTIC

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Wait until enough are ready, and for more while that is worth it."""
        if not who.computing_ns:
            return now_ns
        if who.usual_ns is None or self._at_least == 1:
            return None
        usual_ns = max(_LEAST_USUAL_NS, who.usual_ns)
        lost_ns = [since_ns + _LOST * usual_ns for since_ns in who.computing_ns.values()]
        counted = len(who.ready_ns) + sum(lost > now_ns for lost in lost_ns)
        if len(who.ready_ns) < math.ceil(self._at_least * counted):
            return min(lost for lost in lost_ns if lost > now_ns)
        begins_ns = best_ns(who, now_ns)
        if begins_ns is None:
            return max(now_ns, *lost_ns) if self._replaces else now_ns
        return begins_ns

    def late(self, delay: int, gradients: int, *, can_renew: bool = False) -> Late:
        """Let it join while its delay is within the bound, unless a new one takes its place."""
        if delay and can_renew and self._replaces:
            return Late.IS_REPLACED
        return Late.JOINS if delay <= self.delay_bound else Late.IS_DROPPED
