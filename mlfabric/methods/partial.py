"""Partial rounds: a round begins when a quorum is ready (eager-SGD, sections 4 and 5). Pure.

With ``solo`` that is the first worker. With ``majority`` one worker is drawn for each round, each with the same
probability, and the round begins when that one is ready: on average half of the workers are then. A gradient that
misses a round is added to its worker's next one, and its worker goes on at once, not only when that round is over. A
worker with ``MOST_KEPT`` gradients waits for the next round: so none runs ahead, and none is late for ever because it
computes while others are ready. After ``full_every`` rounds one waits for all workers.

With ``auto`` a round begins when waiting for more would let fewer workers be in rounds per second (``patience.py``).
"""

from __future__ import annotations

from random import Random

from mlfabric.methods.patience import best_ns
from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.round_options import MOST_KEPT
from mlfabric.model.specs import ModelSpec, RoundOptions

__all__ = ["Partial", "initiator"]


class Partial:
    """Rounds of a quorum."""

    waits_for_slow = True

    def __init__(self, spec: ModelSpec) -> None:
        options = spec.rounds or RoundOptions()
        self._model, self._quorum, self._full_every = spec.name, options.quorum, options.full_every
        self.most_waiting = self._full_every
        self.delay_bound = 2 * self._full_every + 1  # of workers that do not wait; of others half as many

    def begins_ns(self, who: Readiness, now_ns: int) -> int | None:
        """Begin with the quorum, and now and then with everybody."""
        if not who.computing_ns or self._is_quorum(who):
            return now_ns
        is_due = self._quorum == "auto" and who.since_full < self._full_every
        return best_ns(who, now_ns) if is_due else None

    def _is_quorum(self, who: Readiness) -> bool:
        if who.since_full >= self._full_every:
            return False
        match self._quorum:
            case "solo":
                return bool(who.ready_ns)
            case "majority":
                return initiator(self._model, who) in who.ready_ns
            case "full" | "auto":
                return False
        return len(who.ready_ns) >= int(self._quorum)

    def late(self, delay: int, gradients: int, *, can_renew: bool = False) -> Late:
        """Have it added to the next one if a round is made without it, unless too many are kept already."""
        return Late.IS_KEPT if delay and gradients < MOST_KEPT else Late.JOINS


def initiator(model: str, who: Readiness) -> str:
    """Return the worker whose gradient lets a round of the majority begin: drawn anew for each version."""
    return Random(f"{model}/{who.version}").choice(who.workers)
