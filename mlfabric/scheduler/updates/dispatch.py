"""How the updates of a plan are set on their way: dropped, sent by themselves, summed, overtaken. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from mlfabric.model.specs import Member
from mlfabric.network import Profile
from mlfabric.planning import Commit, Plan, Shape, Transfer
from mlfabric.protocol import Dropped, Instruction, PushRequested, TransferId, UpdateId
from mlfabric.scheduler.records import PlannedUpdate, TornBy
from mlfabric.scheduler.updates.sum_dispatch import Summing

__all__ = ["BLOCKED_NS", "Arranging"]

BLOCKED_NS = 100_000_000


class Arranging(Summing):
    """The updates of one model, and how their plans are carried out."""

    def _leave(self, found: Plan) -> Iterator[Instruction]:
        for left in found.drops:
            update, planned = left.update, self.planned.get(left.update)
            if planned is not None:
                yield from self._void(planned, left.reason, TornBy.REFUSED)
            else:
                yield from self._end(update, Dropped(cause=left.cause, detail=left.reason))

    def _arrange(
        self, found: Plan, adders: Mapping[str, Member], last_seq: int, there_ns: int, now_ns: int
    ) -> Iterator[Instruction]:
        """Carry a plan out; nothing of it is committed before ``there_ns``, when what keeps its place is there."""
        shared_seq = self._place_of_plan(len(found.groups))
        for number, together in groupby(found.commits, key=lambda commit: commit.group):
            group, commits = found.groups[number], list(together)
            for commit in commits:
                self.commit_ns[commit.update] = max(there_ns, commit.commit_ns)
            planned = self.planned.get(group.members[0])
            if planned is not None:
                yield from self._keep(planned, found.transfers[group.last[0]], last_seq, now_ns)
            else:
                self._context.count.groups[group.shape, len(commits)] += 1
                seq = shared_seq or self._next_seq()
                if group.shape is Shape.DIRECT:
                    yield from self._send_alone(commits[0], found.transfers[group.last[0]].profile, seq)
                else:
                    yield from self._sum_up(found, group, commits, adders, seq)
            last_seq = self.planned[group.members[0]].seq
        for deferred in found.deferred:
            if isinstance(deferred.what, UpdateId) and (waiting := self.waiting.get(deferred.what)) is not None:
                waiting.blocked_until_ns = now_ns + BLOCKED_NS
        if self.iteration is not None:
            self.iteration.owed.difference_update(self.planned)
        yield from self._recount_parts("the iteration has other parts now")

    def _keep(self, planned: PlannedUpdate, transfer: Transfer, last_seq: int, now_ns: int) -> Iterator[Instruction]:
        """Leave an update that was planned before as it is, or give it a later place or other times."""
        after: tuple[TransferId, ...] = ()
        update, reason = planned.request.update, "overtaken within its deadline"
        if planned.seq < last_seq:
            self.sums.put_off_behind(planned.seq, now_ns)
            planned.seq = self._next_seq()
            self.planned[update] = self.planned.pop(update)
        elif not transfer.planned:
            return
        if transfer.planned:
            after = self._links.enter(update, transfer.path, transfer.profile)
            reason = "planned anew: links have changed"
            planned.profile, planned.late_end_ns, planned.overdue = transfer.profile, 0, 0
        yield self._expect(planned, after, reason)

    def _send_alone(self, commit: Commit, profile: Profile, seq: int) -> Iterator[Instruction]:
        planned, after = self._take(self.waiting[commit.update].request, profile, seq)
        yield from self._instruct(planned, after, commit.reason)

    def _take(self, request: PushRequested, profile: Profile, seq: int) -> tuple[PlannedUpdate, tuple[TransferId, ...]]:
        """Plan an update that goes to the server by itself; return what it starts after."""
        update = request.update
        self.waiting.pop(update, None)
        after = self._links.enter(update, self._context.path(update.worker, self.server), profile)
        planned = self.planned[update] = PlannedUpdate(
            request=request,
            seq=seq,
            ticket=self._context.tickets.next(),
            profile=profile,
            patience_ns=self._lateness.patience_ns(profile),
        )
        return planned, after
