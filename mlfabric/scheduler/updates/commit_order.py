"""The order in which one model's updates are to be committed, and which of those on their way may be overtaken. Pure.

What the server has, or will have by now, keeps its place. What is still out long after something new could be there
makes way for that, within its deadline: a slow link holds up nobody else's commits. Where nobody sums, the plan itself
gives what is on its way its place anew. Else that is put behind the plan as it is; a sum only if its coefficients do
not depend on the versions that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleKind, Schedule
from mlfabric.planning import is_planner_loaded
from mlfabric.protocol import Dropped, DropReason, Instruction, PushRequested, UpdateId, UpdateKind
from mlfabric.scheduler.records import PlannedUpdate
from mlfabric.scheduler.updates.dispatch import Arranging
from mlfabric.scheduler.updates.ingress_queue import Coming
from mlfabric.scheduler.updates.patience import Late, Way, committed_meanwhile, patience_ns, room_ns, ways

__all__ = ["Sequencing", "Split"]

_TRANSFER = attrgetter("transfer")


class Split(NamedTuple):
    """What is planned already, as a new plan sees it.

    Args:
        frozen: keeps its place before everything new.
        movable: each goes to the server by itself, and is given its place by the new plan.
        behind: transfers, each with its updates, that are committed after everything new.
        too_late: transfers that cannot be, and for which everything new would have to wait.
    """

    frozen: list[PlannedUpdate]
    movable: list[PlannedUpdate]
    behind: list[list[PlannedUpdate]]
    too_late: list[list[PlannedUpdate]]


class Sequencing(Arranging):
    """The updates of one model, and their order."""

    @property
    def _can_sum(self) -> bool:
        """Whether there is anybody to sum updates of this model."""
        apart = self.whole is not None and not self.policy.has_barrier  # commits by itself: a sum has one coefficient
        return not apart and is_planner_loaded() and self._context.has_aggregators

    def _sequence(self) -> list[PlannedUpdate]:
        """Return the updates that will each make a version, by ``seq``."""
        gradient = UpdateKind.GRADIENT
        return [p for p in self.planned.values() if (p.received or not p.voided) and p.request.kind is gradient]

    def _split(self, now_ns: int, coming: int) -> Split:
        """Split what is planned by who keeps a place before ``coming`` new updates.

        In an iteration, which has no order, everything does.
        """
        planned = self._sequence()
        if self.spec.method is Method.SYNCHRONOUS:
            return Split(planned, [], [], [])
        behind, too_late = self._behind(planned, now_ns, coming) if self._can_sum else ([], [])
        put_off = {one.request.update for transfer in (*behind, *too_late) for one in transfer}
        planned = [p for p in planned if p.request.update not in put_off]
        head = len(planned) if self._can_sum else self._head(planned, now_ns)
        overdue = [place for place in range(head) if planned[place].is_overdue(now_ns)]
        frozen = [p for place, p in enumerate(planned[:head]) if place not in overdue]
        return Split(frozen, [planned[place] for place in overdue] + planned[head:], behind, too_late)

    def expected_ns(self, now_ns: int) -> Mapping[UpdateId, int]:
        """Return when what is planned is to be committed; 0 for what the server has and waits for nobody."""
        if self.policy.has_barrier or not self.planned:
            return self.commit_ns
        found, there_ns = dict(self.commit_ns), 0
        transfers = [list(group) for _, group in groupby(self._sequence(), key=_TRANSFER)]
        coming = self._to_come([transfer[0] for transfer in transfers], now_ns)
        ends_ns = iter(self._succession.ends_ns(coming, now_ns))
        for transfer in transfers:
            there_ns = there_ns if transfer[0].received else max(there_ns, next(ends_ns))
            found.update((planned.request.update, there_ns) for planned in transfer)
        return found

    def _dry_ns(self, now_ns: int) -> int:
        """Return when all that is on its way to the server is there."""
        firsts = [next(group) for _, group in groupby(self._sequence(), key=_TRANSFER)]
        return self._succession.dry_ns(self._to_come(firsts, now_ns), now_ns)

    def _to_come(self, firsts: list[PlannedUpdate], now_ns: int) -> list[Coming]:
        """Return what the server's link has to do for transfers, of which one update each is given."""
        out = [planned for planned in firsts if not planned.received]
        if not out:
            return []
        least_ns = self.least_ns(now_ns)
        return [self._coming(planned, least_ns) for planned in out]

    def _room_ns(self, now_ns: int, coming: int) -> int:
        """Return for how long the server's link must have room before ``coming`` updates are planned."""
        planned = self._sequence()
        behind = self._behind(planned, now_ns, coming)[0] if self._can_sum else []
        make_way = {one.request.update for transfer in behind for one in transfer}
        stay_ns = (self._due_ns(p, now_ns) for p in planned if not p.received and p.request.update not in make_way)
        return room_ns(stay_ns, self.least_ns(now_ns), now_ns)

    def _head(self, planned: list[PlannedUpdate], now_ns: int) -> int:
        """Return how many are before the first that is out by itself, with no sum behind it."""
        count = 0
        while count < len(planned) and planned[count].end_ns(now_ns) <= now_ns:
            count += 1
        sums = [place for place, p in enumerate(planned) if p.sum is not None]
        return max(count, sums[-1] + 1 if sums else 0)

    @property
    def _is_steady(self) -> bool:
        """Whether coefficients and learning rates of sums are the same at all versions."""
        rule = self.spec.rule
        return rule.kind is RuleKind.SGD and rule.schedule is Schedule.CONSTANT

    def _behind(
        self, planned: list[PlannedUpdate], now_ns: int, coming: int
    ) -> tuple[list[list[PlannedUpdate]], list[list[PlannedUpdate]]]:
        """Choose the transfers that make way for ``coming`` updates, and those that could not wait so long.

        To make way, a transfer must be late, and all that is in it fresh enough.
        """
        soon_ns = now_ns + self.least_ns(now_ns)
        transfers = [list(group) for _, group in groupby(planned, key=_TRANSFER)]
        late = [transfer for transfer in transfers if self._makes_way(transfer[0], now_ns, soon_ns)] if coming else []
        place = self.version.number + len(planned) + coming - sum(map(len, late))
        found = list(zip(late, ways([self._late(t, now_ns) for t in late], place, self.tau_max), strict=True))
        return [t for t, way in found if way is Way.BEHIND], [t for t, way in found if way is Way.TOO_LATE]

    def _late(self, transfer: list[PlannedUpdate], now_ns: int) -> Late:
        least_ns = self.least_ns(now_ns)
        waits_ns = patience_ns(self._pace, (planned.request.update.worker for planned in transfer), least_ns)
        computed_from = [planned.request.computed_from.number for planned in transfer]
        return Late(computed_from, self._due_ns(transfer[0], now_ns), now_ns + least_ns + waits_ns)

    def _due_ns(self, planned: PlannedUpdate, now_ns: int) -> int:
        """Return when what an update is sent in is expected at the server."""
        return planned.end_ns(now_ns) if planned.sum is None else self.sums.whole(planned.sum).due_ns

    def _hopeless(self, request: PushRequested, now_ns: int) -> Dropped | None:
        """Say why an update cannot be there in time, unless all others were held up for it; None if it can."""
        worker = request.update.worker
        if not self._can_sum or self.policy.has_barrier or self._pace.is_waited_for(worker):
            return None
        path, network = self._context.path(worker, self.server), self._context.network
        rate_bps = min((network.rate_bps(link, now_ns) for link in path), default=0)
        if rate_bps <= 0:
            return None
        takes_ns = request.size_bytes * 8 * 10**9 // rate_bps
        others = committed_meanwhile(self._pace, takes_ns, self.least_ns(now_ns))
        left = self.tau_max - (self.version.number - request.computed_from.number)
        if others <= left:
            return None
        detail = f"its link takes {takes_ns / 1e6:.0f} ms, in which about {others:.0f} updates are committed"
        return Dropped(cause=DropReason.DEADLINE_PAST, detail=f"{detail}; its delay allows {max(0, left)}")

    def _makes_way(self, planned: PlannedUpdate, now_ns: int, soon_ns: int) -> bool:
        """Tell whether what an update is sent in comes later than something new could."""
        if planned.received or planned.voided:
            return False
        if planned.sum is None:
            return planned.is_overdue(now_ns) or planned.end_ns(now_ns) > soon_ns
        found = self.sums.whole(planned.sum)
        return self._is_steady and found.due_ns > soon_ns and len(found.open) == len(found.members)

    def _put_behind(self, transfer: list[PlannedUpdate], now_ns: int) -> Iterator[Instruction]:
        """Give a transfer the last place of all."""
        seq = self._next_seq()
        for planned in transfer:
            update = planned.request.update
            planned.seq = seq
            planned.note_overdue(now_ns)
            self.planned[update] = self.planned.pop(update)
        if (root := transfer[0].sum) is not None:
            self.sums.whole(root).seq = seq
        yield self._expect(transfer[0], (), "overtaken within its deadline")

    def _frozen_until_ns(self, frozen: list[PlannedUpdate], now_ns: int) -> int:
        """Return when the last of what keeps its place is to be there."""
        ends = [now_ns]
        for planned in frozen:
            if not planned.received:
                ends.append(self._due_ns(planned, now_ns))
        return max(ends)
