"""When a round is to begin while some workers still compute (design, section 3). Pure."""

from __future__ import annotations

from mlfabric.methods.round_rule import Readiness

__all__ = ["best_ns"]

_MARGIN = 0.05
_LEAST_MARGIN_NS = 5_000_000
"""A step may take so much longer than one of its worker's last ones: else a round would often begin just before the
last of workers that are about equally fast. Threads and messages take some ms, too."""
_STEPS = 512
"""So many steps are looked at, and at least one of each worker."""


def best_ns(who: Readiness, now_ns: int) -> int | None:
    """Return when a round is to begin for the most workers to be in rounds per second, if nobody is ready before.

    A round with n workers that begins t after the last one was settled, and takes r, gives n / (t + r). When others
    will be ready, their last steps tell; of who has made none yet, those of all. So where rounds take long, slow steps
    are waited for. A worker that has computed for longer than any of these steps took is not.

    Returns:
        None, to wait for all, while it is not known how long steps or rounds take.
    """
    everybodys = [took_ns for of in who.recent_ns.values() for took_ns in of]
    if who.round_ns is None or not everybodys:
        return None
    last, coming = max(1, _STEPS // max(1, len(who.computing_ns))), list[tuple[int, float]]()
    for worker, since_ns in who.computing_ns.items():
        recent_ns = list(who.recent_ns.get(worker, ()) or everybodys)[-last:]
        ready_ns = [since_ns + one_ns + max(_LEAST_MARGIN_NS, round(_MARGIN * one_ns)) for one_ns in recent_ns]
        later_ns = [at_ns for at_ns in ready_ns if at_ns > now_ns]
        coming += [(at_ns, 1 / len(later_ns)) for at_ns in later_ns]
    ready, from_ns = float(len(who.ready_ns)), who.settled_ns - who.round_ns
    best, begins_ns = ready / max(1, now_ns - from_ns), now_ns
    for at_ns, share in sorted(coming):
        ready += share
        if ready / (at_ns - from_ns) > best:
            best, begins_ns = ready / (at_ns - from_ns), at_ns
    return begins_ns
