"""Transfers that follow one another over the server's link, and how late they are against their plans. Pure.

Plans are hopeful: they leave no time between two transfers, and none for what runs late. Who relied on them would
always find the link about to be free, and let a queue grow that nobody sees. So what is still to come is counted from
what has really come.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from mlfabric.scheduler.records import OVERDUE_SLACK_NS, Lateness

__all__ = ["Coming", "Succession", "look_again_ns"]

LOOK_AGAIN_NS = 1_000_000
PATIENCE = 2
"""How many times what it needs one may be late."""


def look_again_ns(due_ns: int, now_ns: int) -> int:
    """Return when to look whether something is due: what is behind a late one moves on with the time, without end."""
    return due_ns if due_ns <= now_ns else max(due_ns, now_ns + LOOK_AGAIN_NS)


class Coming(NamedTuple):
    """A transfer that is not over.

    Args:
        end_ns: when it is over by plan.
        needs_ns: how long it takes if it has the link for itself.
        shares: whether it takes less than half of the link, so that others go on beside it.
    """

    end_ns: int
    needs_ns: int
    shares: bool = False


class Succession:
    """When the transfers over one link are over, as far as one can tell.

    Attributes:
        last_ns: when the last one was over.
    """

    def __init__(self) -> None:
        self.last_ns = 0
        self._last_planned_ns = 0
        self._lateness = Lateness()

    @property
    def lead_ns(self) -> int:
        """How long before it is to begin a transfer has to be planned: so late is what begins on an idle link."""
        return self._lateness.usual_ns

    def over(self, first: Coming, now_ns: int) -> None:
        """Note that the first of those to come is over now."""
        if first.shares:
            return
        if first.end_ns > self.last_ns + first.needs_ns:  # else it had to wait for the one before
            self._lateness.note(now_ns - first.end_ns)
        self.last_ns, self._last_planned_ns = now_ns, first.end_ns

    def is_stuck(self, one: Coming, now_ns: int) -> bool:
        """Tell whether one is so late that it cannot be the link's fault: nobody is to wait for it any longer."""
        is_overtaken = one.end_ns < self._last_planned_ns
        due_ns = one.end_ns if is_overtaken else max(one.end_ns, self.last_ns + one.needs_ns)
        if now_ns <= due_ns:
            return False
        return now_ns > due_ns + max(PATIENCE * one.needs_ns, 2 * self._lateness.usual_ns, OVERDUE_SLACK_NS)

    def ends_ns(self, coming: Iterable[Coming], now_ns: int) -> list[int]:
        """Return when each is over, in their order; what holds up nobody, and the first, may be late already."""
        found: list[int] = []
        free_ns, usual_ns = self.last_ns, self._lateness.usual_ns
        for one in coming:
            if one.shares or self.is_stuck(one, now_ns):
                found.append(one.end_ns)
                continue
            end_ns = max(free_ns + one.needs_ns, one.end_ns + usual_ns)
            found.append(end_ns)
            free_ns = max(end_ns, now_ns)
        return found

    def dry_ns(self, coming: Iterable[Coming], now_ns: int) -> int:
        """Return from when on the link has nothing to do for as long as one transfer needs at least."""
        ahead, dry_ns = [one for one in coming if not one.shares], now_ns
        if not ahead:
            return dry_ns
        pairs = zip(ahead, self.ends_ns(ahead, now_ns), strict=True)
        for one, end_ns in sorted(pairs, key=itemgetter(1)):
            if end_ns - one.needs_ns >= dry_ns + one.needs_ns:
                break
            dry_ns = max(dry_ns, end_ns)
        return dry_ns
