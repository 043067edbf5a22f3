"""What is known of every update of one model, what its worker and its server are told, how it ends. Pure.

An update is *waiting* (no plan holds it), *planned* (both ends were told), or *settled*. What the server was told to
let go of stays planned until the server has answered, so that nothing that is on its way there can bring it back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from mlfabric.protocol import (
    Commit,
    Committed,
    Dropped,
    DropReason,
    Expect,
    Instruction,
    ModelVersion,
    Outcome,
    PushRequested,
    Resolve,
    Send,
    ServerHolds,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.modes.asynchronous import delay_bound, least_workers
from mlfabric.scheduler.planning import Timetable, paced_rate
from mlfabric.scheduler.records import Lateness, PlannedUpdate, SettledUpdates, WaitingUpdate
from mlfabric.specs import ModelSpec

__all__ = ["PushTable"]

SEQ_BITS = 22


class PushTable:
    """Every update of one model that has no outcome yet, and the outcomes that workers may still ask for.

    ``planned`` is in the order of ``seq``: who is given a later one moves to its end.
    ``awaited`` means that the server joined and has not yet said what it holds of the model: until then nothing is
    known of its version, so nothing is planned or refused.
    """

    def __init__(self, context: Context, spec: ModelSpec, server: str) -> None:
        self.spec = spec
        self.server = server
        self.version = ModelVersion(1, 0)
        self.initialised = False
        self.awaited = False
        self.most_workers = 1
        self.waiting: dict[UpdateId, WaitingUpdate] = {}
        self.planned: dict[UpdateId, PlannedUpdate] = {}
        self.settled = SettledUpdates()
        self.commit_ns: dict[UpdateId, int] = {}
        self._context = context
        self._running = Timetable[UpdateId]()
        self._lateness = Lateness()
        self._seq = context.config.epoch << SEQ_BITS

    @property
    def tau_max(self) -> int:
        """The delay bound in force."""
        return delay_bound(self.spec, self.most_workers)

    # Instructions

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _instruct(self, planned: PlannedUpdate, after: tuple[UpdateId, ...], reason: str) -> Iterator[Instruction]:
        update = planned.request.update
        path = self._context.path(update.worker, self.server)
        yield Send(
            to=update.worker,
            update=update,
            server=self.server,
            address=self._context.members[self.server].member.address,
            seq=planned.seq,
            ticket=planned.ticket,
            rate_bps=paced_rate(planned.profile, path, self._context.network) if planned.profile else 0,
            reason=reason,
        )
        yield self._expect(planned, after, reason)

    def _expect(self, planned: PlannedUpdate, after: tuple[UpdateId, ...], reason: str) -> Expect:
        request = planned.request
        return Expect(
            to=self.server,
            update=request.update,
            model=self.spec.name,
            seq=planned.seq,
            ticket=planned.ticket,
            size_bytes=request.size_bytes,
            computed_from=request.computed_from,
            tau_max=self.tau_max,
            kind=request.kind,
            resolved_below=request.resolved_below,
            after=after,
            reason=reason,
        )

    # Ends

    def initial_received(self, version: ModelVersion) -> Iterator[Instruction]:
        """Note that the server has weights; it is asked whose they are, and not to wait for others."""
        self.initialised, self.version = True, max(self.version, version)
        for planned in self.planned.values():
            if planned.request.kind is UpdateKind.INITIAL:
                yield from self._void(planned, "the model has weights now")

    def committed(self, commit: Commit) -> Generator[Instruction, None, bool]:
        """Note a commit; return False if it was known, or is that of initial weights."""
        fresh = self._is_open(commit.update)
        planned = self.planned.get(commit.update)
        if (planned is None or planned.adopted) and self.spec.tau_max is None:
            # An earlier scheduler planned it, under the bound of its time: the bound only grows.
            self.most_workers = max(self.most_workers, least_workers(commit.tau))
        self.version = max(self.version, commit.version)
        if fresh:
            yield from self._settle(commit.update, Committed(version=commit.version, tau=commit.tau))
        is_initial = planned is not None and planned.request.kind is UpdateKind.INITIAL
        return fresh and not is_initial

    def arrived(self, update: UpdateId, now_ns: int) -> None:
        """Note how late an update has arrived at the server, which then reports its end."""
        planned = self.planned.get(update)
        if planned is not None and planned.profile is not None and not planned.received:
            self._lateness.note(now_ns - planned.profile.end_ns)

    def ended(self, event: TransferEnded, update: UpdateId) -> Generator[Instruction, None, Dropped | None]:
        """Note how a transfer ended at the server; return the outcome if the update was settled by it.

        A broken one is voided before it is planned again: an Expect that crossed the report would bring it back.
        """
        planned = self.planned.get(update)
        match event.end:
            case TransferEnd.RECEIVED if planned is not None:
                planned.received = True
                self._free_links(update)
            case TransferEnd.BROKEN if planned is not None and not planned.voided:
                yield from self._void(planned, f"its transfer broke: {event.detail}")
            case TransferEnd.VOIDED if planned is not None and planned.voided:
                self._release(update)
            case TransferEnd.DISCARDED if self._is_open(update):
                outcome = Dropped(cause=event.cause or DropReason.NOT_FINITE, detail=event.detail)
                yield from self._settle(update, outcome)
                return outcome
        return None

    def worker_gone(self, worker: str, reason: str) -> Iterator[Instruction]:
        """Let go of everything of a worker's that is not at the server."""
        for update in [u for u in self.waiting if u.worker == worker]:
            del self.waiting[update]
        for update, planned in self.planned.items():
            if update.worker == worker and not planned.voided:
                yield from self._void(planned, reason)

    def reconcile(self, holds: ServerHolds) -> Iterator[Instruction]:
        """Take over what a (re)joined server says it holds, and repeat what it does not know."""
        self.version, self.initialised, self.awaited = holds.version, holds.initialised, False
        for ids in holds.applied:
            self.settled.forget_below(UpdateId(ids.worker, ids.incarnation, 0), ids.low)
            for counter, version, tau in ids.recent:
                yield from self._settle(
                    UpdateId(ids.worker, ids.incarnation, counter), Committed(version=version, tau=tau)
                )
        for update in holds.received:
            if update not in self.planned:
                yield from self._adopt(update)
        yield from self.repeat(frozenset(holds.received))

    def repeat(self, held: frozenset[UpdateId] = frozenset()) -> Iterator[Instruction]:
        """Repeat to a server that came back what it may have missed; ``held`` has arrived or is arriving there."""
        for update, planned in self.planned.items():
            if update not in held and (not planned.asked or self.settled.is_over(update)):
                planned.voided = True
            if planned.voided:
                yield from self._void(planned, "the server came back")
            elif update not in held:
                yield from self._instruct(planned, (), "the server came back")

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
        if waiting is not None:
            yield from self._instruct(planned, (), "asked for before the server came back")

    def _void(self, planned: PlannedUpdate, reason: str) -> Iterator[Instruction]:
        planned.voided = True
        update = planned.request.update
        self._free_links(update)
        yield Void(to=self.server, model=self.spec.name, update=update, reason=reason)

    def _settle(self, update: UpdateId, outcome: Outcome) -> Iterator[Instruction]:
        """Note an outcome that the server reports, and answer its worker if that has asked again meanwhile."""
        self._release(update)
        self.settled.add(update, outcome)
        if self.waiting.pop(update, None) is not None:
            yield Resolve(to=update.worker, update=update, outcome=outcome, reason="the server had it")

    def _is_open(self, update: UpdateId) -> bool:
        """Tell whether an outcome of this update would be news."""
        return update in self.planned or not (update in self.settled or self.settled.is_over(update))

    def _release(self, update: UpdateId) -> None:
        self.planned.pop(update, None)
        self.commit_ns.pop(update, None)
        self._free_links(update)

    def _free_links(self, update: UpdateId) -> None:
        self._context.network.release(self._key(update))
        self._running.remove(update)

    def _key(self, update: UpdateId) -> tuple[str, str, UpdateId]:
        return self.spec.name, "push", update
