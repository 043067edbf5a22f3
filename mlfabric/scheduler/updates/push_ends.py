"""How updates and sums end: committed, dropped, broken, torn; what is gone, and who comes back with what. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Set

from mlfabric.methods.asynchronous import least_workers
from mlfabric.methods.policy import WaitingUpdate
from mlfabric.model.specs import Member
from mlfabric.protocol import (
    CancelSum,
    Commit,
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    DropReason,
    Instruction,
    Lost,
    ModelVersion,
    PushRequested,
    ServerHolds,
    SumId,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.protocol.lineage import fork, is_in_lineage
from mlfabric.scheduler.records import PlannedUpdate, TornBy
from mlfabric.scheduler.updates.push_table import PushTable
from mlfabric.scheduler.updates.sum_table import PlannedSum

__all__ = ["PushEnds"]

MOST_SIZES = 4096
"""Of so many versions it is remembered how many updates made them."""


class PushEnds(PushTable):
    """What becomes of the updates of one model."""

    # Reports

    def initial_received(self, version: ModelVersion) -> Iterator[Instruction]:
        """Note that the server has weights; it is asked whose they are, and not to wait for others."""
        self.initialised, self.version = True, max(self.version, version)
        for planned in self.planned.values():
            if planned.request.kind is UpdateKind.INITIAL:
                yield from self._void(planned, "the model has weights now", TornBy.REFUSED)

    def committed(self, event: CommitsReported) -> Generator[Instruction, None, list[Commit]]:
        """Note that a group was committed; return its commits that are news, without that of initial weights."""
        fresh, before = [], self.version
        for commit in event.commits:
            if (yield from self._commit(commit, before)):
                fresh.append(commit)
        yield from self._break_up()
        return fresh

    def _commit(self, commit: Commit, before: ModelVersion) -> Generator[Instruction, None, bool]:
        fresh = self._is_open(commit.update) and not self._was_told(commit, before)
        planned = self.planned.get(commit.update)
        self._raise_bound(planned, commit.tau)
        self.version = max(self.version, commit.version)
        if fresh:
            self._sizes[commit.version.number] += 1
            self._sizes.pop(commit.version.number - MOST_SIZES, None)
            yield from self._settle(commit.update, Committed(version=commit.version, tau=commit.tau))
        is_initial = planned is not None and planned.request.kind is UpdateKind.INITIAL
        return fresh and not is_initial

    def _raise_bound(self, planned: PlannedUpdate | None, tau: int) -> None:
        """Let the bound be as of whoever planned this: an earlier scheduler, in its time. It only grows."""
        if (planned is None or planned.adopted) and self.spec.tau_max is None:
            self.most_workers = max(self.most_workers, least_workers(tau))

    def _was_told(self, commit: Commit, before: ModelVersion) -> bool:
        """Tell whether a commit is told again of whose worker nothing is known any more: it has left."""
        update = commit.update
        is_live = self._context.is_live(update.worker, update.incarnation)
        return commit.version <= before and not is_live and update not in self.planned

    def arrived(self, transfer: TransferId, now_ns: int) -> None:
        """Note how late a transfer has arrived where it was to go, which then reports its end."""
        if isinstance(transfer, SumId):
            found = self.sums.of(transfer)
            if found is not None and not found.received:
                part = next(part for part in found.parts if part.sum == transfer)
                self._lateness.note(now_ns - part.profile.end_ns)
                if part is found.root:
                    first = self.planned[min(found.open)]
                    self._succession.over(self._coming(first, self.least_ns(now_ns)), now_ns)
                    self.sums.put_off_behind(found.seq, now_ns)
            return
        planned = self.planned.get(transfer)
        if planned is not None and planned.profile is not None and not planned.received:
            self._lateness.note(now_ns - planned.profile.end_ns)
            if planned.sum is None:
                self._succession.over(self._coming(planned, self.least_ns(now_ns)), now_ns)
                self.sums.put_off_behind(planned.seq, now_ns)

    def ended(self, event: TransferEnded, transfer: TransferId) -> Generator[Instruction, None, Dropped | None]:
        """Note how a transfer ended where it went to; return the outcome if an update was settled by it.

        A broken one is voided before it is planned again: an Expect that crossed the report would bring it back.
        """
        outcome: Dropped | None = None
        if isinstance(transfer, SumId):
            yield from self._sum_ended(event, transfer)
        elif event.end is TransferEnd.DISCARDED:
            outcome = yield from self._discarded(event, transfer)
        elif event.member == self.server:
            yield from self._update_ended(event, transfer)
        elif event.end is TransferEnd.RECEIVED and self._is_summed(transfer):
            self._links.free(transfer)
        yield from self._recount_parts("a part of the iteration has ended")
        return outcome

    def _is_summed(self, update: UpdateId) -> bool:
        planned = self.planned.get(update)
        return planned is not None and planned.sum is not None

    def _update_ended(self, event: TransferEnded, update: UpdateId) -> Iterator[Instruction]:
        """Note how the transfer of a lone update ended at the server."""
        planned = self.planned.get(update)
        if planned is None or planned.sum is not None:
            return
        match event.end:
            case TransferEnd.RECEIVED:
                planned.received = True
                self._links.free(update)
                yield from self._count_on([planned])
            case TransferEnd.BROKEN if not planned.voided:
                yield from self._void(planned, f"its transfer broke: {event.detail}", TornBy.BROKEN)
            case TransferEnd.VOIDED if planned.voided:
                self._let_go([update])
            case TransferEnd.VOIDED if planned.adopted:  # it is there within a sum, from before this scheduler's time
                self.waiting[update] = WaitingUpdate(planned.request, 0)

    def _discarded(self, event: TransferEnded, update: UpdateId) -> Generator[Instruction, None, Dropped | None]:
        """Note that who received an update has discarded it, or its worker has; a sum of it will never be complete."""
        planned, by_worker = self.planned.get(update), event.member == update.worker
        stale = not by_worker and event.member != self.server and planned is not None and planned.sum is None
        if stale or not self._is_open(update):
            return None
        if planned is not None and (by_worker or planned.sum is not None):
            yield from self._void(planned, f"{update} was discarded: {event.detail}", TornBy.NOT_FINITE)
        outcome = Dropped(cause=event.cause or DropReason.NOT_FINITE, detail=event.detail)
        lost = None if self.whole is None else self.whole.lost(update)
        yield from self._settle(update, lost or outcome)
        yield from self._break_up()
        return outcome if lost is None else None

    def _sum_ended(self, event: TransferEnded, name: SumId) -> Iterator[Instruction]:
        found, by_server = self.sums.of(name), event.member == self.server
        if found is None:
            return
        match event.end:
            case TransferEnd.RECEIVED if not by_server:
                self._links.free(name)
            case TransferEnd.RECEIVED:
                self._sum_received(found)
                if found.open == set(found.members):
                    found.voided = False
                    yield from self._count_on([self.planned[member] for member in found.members])
            case TransferEnd.TORN if not found.received:
                yield from self._tear(found, f"{event.member} gave it up: {event.detail}", TornBy.AGGREGATOR)
            case TransferEnd.BROKEN if by_server:
                yield from self._tear(found, f"its transfer broke: {event.detail}", TornBy.BROKEN)
            case TransferEnd.VOIDED if by_server:
                if not found.voided:
                    self._context.count.torn[TornBy.REFUSED] += 1
                    yield from self._cancel(found, f"the server refused it: {event.detail}")
                if found.received:
                    # It had it, so it may have been told since that it has fewer parts to wait for.
                    reason = "the server let go of it"
                    yield Void(to=self.server, model=self.spec.name, transfer=name, reason=reason)
                self._let_go(found.members, found.torn_by)
                self._broken_up.discard(name)

    def _sum_received(self, found: PlannedSum) -> None:
        found.received = True
        for member in found.open:
            self.planned[member].received = True
            self._links.free(member)
        for part in found.parts:
            self._links.free(part.sum)

    def _count_on(self, arrived: list[PlannedUpdate]) -> Iterator[Instruction]:
        """Count on what the server has all of, whatever it was told meanwhile: it does not let go of that any more."""
        if not any(planned.voided for planned in arrived):
            return
        for planned in arrived:
            planned.voided = False
        if self._is_of_iteration(arrived[0]):
            yield self._expect(arrived[0], (), "it is with the server")

    # Who is gone

    def worker_gone(self, worker: str, reason: str) -> Iterator[Instruction]:
        """Let go of everything of a worker's that is not at the server."""
        for update in [u for u in self.waiting if u.worker == worker]:
            del self.waiting[update]
        for update, planned in self.planned.items():
            if update.worker == worker and not (planned.voided or planned.received):
                yield from self._void(planned, reason, TornBy.WORKER_GONE)
        self.apart = {u for u in self.apart if u.worker != worker}
        self.late = Counter({u: n for u, n in self.late.items() if u.worker != worker})
        self._pace.made_it(worker)
        if self.iteration is not None:
            self.iteration.owed = {u for u in self.iteration.owed if u.worker != worker}
        yield from self._recount_parts(reason)

    def worker_holds(self, worker: str, held: Set[UpdateId], clock: int | None) -> Iterator[Instruction]:
        """Forget what a worker that came back does not hold: it knows the outcome, and asks for it no more.

        Args:
            clock: how many iterations it has finished, if it has trained under another scheduler; those that it holds
                and whose outcome is known here come on top.
        """
        self.clocks.hear(worker, None if clock is None else clock + sum(update in self.settled for update in held))
        for update in [u for u in self.waiting if u.worker == worker and u not in held]:
            del self.waiting[update]
        for update, planned in self.planned.items():
            if update.worker == worker:
                planned.is_over = update not in held
        self.clocks.settle_others(worker, {u.counter for u in held})
        if self.iteration is not None:
            self.iteration.owed = {u for u in self.iteration.owed if u.worker != worker or u in held}
        yield from self._recount_parts(f"{worker} came back")

    def aggregator_gone(self, aggregator: str, reason: str) -> Iterator[Instruction]:
        """Give up the sums that an aggregator has a part in, unless the server has them already."""
        for found in self.sums.at(aggregator):
            if not found.received:
                yield from self._tear(found, reason, TornBy.AGGREGATOR_GONE)

    def aggregator_back(self, aggregator: Member) -> Iterator[CancelSum]:
        """Tell an aggregator what it may not have heard."""
        yield from self.sums.cancelled(aggregator)

    # A server that comes back

    def reconcile(self, holds: ServerHolds) -> Generator[Instruction, None, list[tuple[UpdateId, int]]]:
        """Take over what a (re)joined server says it holds, and repeat what it does not know.

        Returns:
            The updates without an outcome here that are committed there, with their delays; not initial weights.
        """
        if holds.version.epoch != self.version.epoch and self.whole is None:
            self._lose(holds)
        self.server_epoch, self.began = holds.version.epoch, holds.began
        counted, self.version = self.version, holds.version
        self.initialised, self.awaited = holds.initialised, False
        if self.whole is not None:
            self.count_under(counted)
            if not self.initialised:
                self.iteration = None  # it was of a model that is gone
        self.has_formed |= holds.version.number > max(0, holds.epoch_base)
        fresh = []
        for ids in holds.applied:
            self.settled.forget_below(UpdateId(ids.worker, ids.incarnation, 0), ids.low)
            for counter, version, tau in ids.recent:
                update = UpdateId(ids.worker, ids.incarnation, counter)
                if self._is_open(update):
                    self._sizes[version.number] += 1
                planned = self.planned.get(update)
                asked = planned or self.waiting.get(update)
                if asked is not None and asked.request.kind is not UpdateKind.INITIAL:
                    self._raise_bound(planned, tau)
                    fresh.append((update, tau))
                yield from self._settle(update, Committed(version=version, tau=tau))
        yield from self._break_up()
        for update in holds.received:
            if update not in self.planned and update not in self.settled:
                yield from self._adopt(update)
        yield from self.repeat(frozenset(holds.received))
        return fresh

    def _lose(self, holds: ServerHolds) -> None:
        """Count as lost what was committed under earlier server epochs after the version that the server goes on from.

        Who made them was told of most; the others hear of it when they ask. A replica that has taken its primary's
        place may have committed some once more.
        """
        former, (epoch, newest) = self.version, holds.version
        kept = fork(self.began, former.number, holds.began, newest)
        together = [number for number in self._sizes if kept < number <= former.number]
        gone = max(0, former.number - kept) + sum(self._sizes.pop(number) - 1 for number in together)
        again = (
            isinstance(self.settled.get(UpdateId(ids.worker, ids.incarnation, counter)), Committed)
            for ids in holds.applied
            for counter, version, _ in ids.recent
            if version.epoch == epoch
        )
        self.lost += max(0, gone - sum(again))
        detail = f"it was committed after version {holds.epoch_base}, the last one that server epoch {epoch} has"
        for update, outcome in list(self.settled.items()):
            if isinstance(outcome, Committed) and not is_in_lineage(holds.began, outcome.version, newest):
                self.settled.add(update, Lost(detail=detail))

    def begin_anew(self, reason: str) -> Iterator[Instruction]:
        """Forget every plan: who holds the model now has heard of none; workers that are here ask again."""
        for found in list(self.sums):
            if not found.voided:
                yield from self._cancel(found, reason)
        for update in list(self.planned):
            self._release(update)
        self._broken_up.clear()
        self.iteration = None

    def repeat(self, held: frozenset[UpdateId] = frozenset()) -> Iterator[Instruction]:
        """Repeat to a server that came back what it may have missed; ``held`` has arrived or is arriving there.

        A sum that is not there completely is given up: its connection may have gone with the server.
        """
        reason = "the server came back"
        for found in self.sums:
            if found.voided:
                yield Void(to=self.server, model=self.spec.name, transfer=found.root.sum, reason=reason)
            elif not found.open <= held:
                yield from self._tear(found, reason, TornBy.SERVER_BACK)
            elif not found.received:
                self._sum_received(found)
        for update, planned in self.planned.items():
            if planned.sum is not None:
                continue
            if update not in held and (not planned.asked or self.settled.is_over(update)):
                planned.voided = True
            if planned.voided:
                yield from self._void(planned, reason, TornBy.SERVER_BACK)
            elif update not in held:
                planned.received = False
                yield from self._instruct(planned, (), reason)
            elif self.whole is not None:  # of a part, only what is complete is held
                planned.received = True
        if self.iteration is not None:  # it may have missed that there is less to wait for
            yield from self._expect_parts(self.iteration, reason)

    # A part of a model

    def let_end(self, update: UpdateId, outcome: Dropped | Committed) -> Iterator[Instruction]:
        """Bring about that this part of a push ends as the whole does; called again until it does.

        It is dropped, or counts as committed and goes no further: then its worker was told. What is complete at the
        server is dropped there; what is not is voided first, so that nothing that is on its way can bring it back.
        """
        cause, reason, torn_by = DropReason.ROLLED_BACK, "it was committed, and lost since", TornBy.SERVER_BACK
        if isinstance(outcome, Dropped):
            cause, reason, torn_by = outcome.cause, outcome.detail, TornBy.REFUSED
        planned = self.planned.get(update)
        if planned is None:
            yield from self._end(update, outcome)
        elif planned.received:
            yield Drop(to=self.server, model=self.spec.name, update=update, cause=cause, reason=reason)
        elif not planned.voided:
            yield from self._void(planned, reason, torn_by)

    def expect_again(self, update: UpdateId, reason: str) -> Iterator[Instruction]:
        """Tell the server the bound that holds now for an update that is there by itself."""
        planned = self.planned.get(update)
        if planned is not None and planned.asked and planned.sum is None:
            yield self._expect(planned, (), reason)

    def _adopt(self, update: UpdateId) -> Iterator[Instruction]:
        """Count an update that the server holds from before this scheduler's time; it commits it by itself."""
        waiting = self.waiting.pop(update, None)
        request = (
            waiting.request
            if waiting
            else PushRequested(
                update=update,
                model=self.spec.name,
                size_bytes=self.spec.layout.size_bytes,
                computed_from=self.version,
                norm=0.0,
                kind=UpdateKind.GRADIENT if self.initialised else UpdateKind.INITIAL,
            )
        )
        planned = self.planned[update] = PlannedUpdate(
            request=request,
            seq=self._next_seq(),
            ticket=self._context.tickets.next(),
            profile=None,
            received=True,
            adopted=True,
            asked=waiting is not None,
        )
        if waiting is not None and self.policy.has_barrier:
            self.waiting[update] = waiting  # what it is in moves as a whole or not at all
        elif waiting is not None:
            yield from self._instruct(planned, (), "asked for before the server came back")
