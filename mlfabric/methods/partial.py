"""Partial rounds: a round begins when a quorum is ready (eager-SGD, sections 4 and 5). Pure.

With ``solo`` that is the first worker. With ``majority`` one worker is drawn for each round, each with the same
probability, and the round begins when that one is ready: on average half of the workers are then. A gradient that
misses a round is added to its worker's next one, and its worker goes on at once, not only when that round is over. A
worker with ``MOST_KEPT`` gradients waits for the next round: so none runs ahead, and none is late for ever because it
computes while others are ready. After ``full_every`` rounds one waits for all workers.

With ``auto`` a round begins when waiting for more would let fewer workers be in rounds per second: a round with n
workers that begins t after the last one was settled, and takes tau, gives n / (t + tau). When others will be ready,
their last steps tell.
"""

from __future__ import annotations

from random import Random

from mlfabric.methods.round_rule import Late, Readiness
from mlfabric.model.round_options import MOST_KEPT
from mlfabric.model.specs import ModelSpec, RoundOptions

__all__ = ["Partial", "best_ns", "initiator"]

_LONGER = 1.1
"""A step may take so many times as long as one of its worker's last ones: else a round would often begin just before
the last of workers that are about equally fast."""
_STEPS = 512
"""So many steps are looked at when it is judged when a round is to begin, and at least one of each worker."""


class Partial:
    """Rounds of a quorum."""

    waits_for_slow = True
    chooses = False

    def __init__(self, spec: ModelSpec) -> None:
        options = spec.rounds or RoundOptions()
        self._model, self._quorum, self._full_every = spec.name, options.quorum, options.full_every
        self.most_waiting = self._full_every

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

    def late(self, delay: int, gradients: int) -> Late:
        """Have it added to the next one if a round is made without it, unless too many are kept already."""
        return Late.IS_KEPT if delay and gradients < MOST_KEPT else Late.JOINS


def initiator(model: str, who: Readiness) -> str:
    """Return the worker whose gradient lets a round of the majority begin: drawn anew for each version."""
    return Random(f"{model}/{who.version}").choice(who.workers)


def best_ns(who: Readiness, now_ns: int) -> int | None:
    """Return when a round is to begin for the most workers to be in rounds per second, if nobody is ready before.

    A worker that has computed for longer than any of its last steps took is not waited for. None, to wait for all,
    while a worker's steps, or how long a round takes, are unknown.
    """
    if who.round_ns is None or any(not who.recent_ns.get(worker) for worker in who.computing_ns):
        return None
    last, coming = max(1, _STEPS // len(who.computing_ns)), list[tuple[int, float]]()
    for worker, since_ns in who.computing_ns.items():
        ready_ns = [since_ns + round(_LONGER * took_ns) for took_ns in list(who.recent_ns[worker])[-last:]]
        later_ns = [at_ns for at_ns in ready_ns if at_ns > now_ns]
        coming += [(at_ns, 1 / len(later_ns)) for at_ns in later_ns]
    ready, from_ns = float(len(who.ready_ns)), who.settled_ns - who.round_ns
    best, begins_ns = ready / max(1, now_ns - from_ns), now_ns
    for at_ns, share in sorted(coming):
        ready += share
        if ready / (at_ns - from_ns) > best:
            best, begins_ns = ready / (at_ns - from_ns), at_ns
    return begins_ns
