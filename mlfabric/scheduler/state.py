"""The scheduler's state machine: one mutating door. Pure.

Requests are only taken in; plans are made on ``Tick``, so that all that has arrived by then is planned together. The
shell sends a Tick when ``next_wakeup_ns`` says so, which after a request may be at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mlfabric.network import Network
from mlfabric.protocol import (
    CommitsReported,
    Drop,
    DropReason,
    GetId,
    GetRequested,
    InitialReceived,
    Instruction,
    LinksReported,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberSilent,
    MemoryReported,
    PushRequested,
    ServerHolds,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    WorkerHolds,
)
from mlfabric.scheduler.context import Context, SchedulerConfig, TicketMaker
from mlfabric.scheduler.membership import Membership
from mlfabric.scheduler.model import ModelState
from mlfabric.scheduler.records import MemberRecord, MemberState

__all__ = ["PlanCount", "SchedulerState"]


@dataclass(slots=True)
class PlanCount:
    """How many plans were made, over how many new updates in all."""

    plans: int = 0
    updates: int = 0


class SchedulerState:
    """Everything that the scheduler knows."""

    def __init__(self, config: SchedulerConfig, network: Network | None = None) -> None:
        network = network if network is not None else Network.star(config.default_bps)
        self.context = Context(config, network, TicketMaker(config.ticket_secret))
        self.models: dict[str, ModelState] = {}
        self.count = PlanCount()
        self.measured: dict[tuple[str, bool], int] = {}
        self._membership = Membership(self.context, self.models)

    def handle(self, event: MemberEvent, now_ns: int) -> list[Instruction]:
        """Take in one event and return the instructions that follow, in order."""
        return list(self._react(event, now_ns))

    def next_wakeup_ns(self, now_ns: int) -> int | None:
        """Return when a Tick is due (an instant that is past means at once), or None."""
        times = [self._membership.next_wakeup_ns()]
        for model in self.models.values():
            times.append(model.pushes.due_ns(now_ns))
            times.append(model.gets.due_ns(now_ns))
        return min((t for t in times if t is not None), default=None)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        self.context.network.validate()
        for name, model in self.models.items():
            seqs = [p.seq for p in model.pushes.planned.values()]
            assert all(a < b for a, b in pairwise(seqs)), f"{name}: planned is not in the order of seq: {seqs}"
            both = [u for u in model.pushes.planned if u in model.pushes.settled]
            assert not both, f"{name}: planned though settled: {both}"
            bound = model.pushes.tau_max
            assert all(tau <= bound for tau in model.delays), f"{name}: delay above {bound}: {model.delays}"

    def _react(self, event: MemberEvent, now_ns: int) -> Iterator[Instruction]:
        match event:
            case Tick():
                self._membership.expire(now_ns)
                yield from self._plan(now_ns)
            case PushRequested():
                yield from self._push(event, now_ns)
            case GetRequested():
                yield from self._get(event)
            case CommitsReported() if event.model in self.models:
                yield from self._commits(event)
            case TransferEnded() if event.model in self.models:
                yield from self._ended(event, now_ns)
            case MemberJoined():
                yield from self._membership.join(event, now_ns)
            case MemberSilent():
                yield from self._membership.silent(event.name, event.incarnation, now_ns)
            case MemberLeft():
                yield from self._membership.left(event.name, event.incarnation, event.detail, now_ns)
            case WorkerHolds():
                for push in event.pushes:
                    yield from self._push(push, now_ns)
                for get in event.gets:
                    yield from self._get(get)
            case ServerHolds():
                yield from self._membership.reconcile(event)
            case InitialReceived() if event.model in self.models:
                yield from self.models[event.model].pushes.initial_received(event.version)
            case LinksReported():
                self._membership.set_rates(event)
                self.measured.update({(r.host, r.up): now_ns - r.age_ns for r in event.rates})
            case MemoryReported():
                if event.name in self.context.members:
                    self.context.members[event.name].memory_bytes = dict(event.kinds)

    def _push(self, event: PushRequested, now_ns: int) -> Iterator[Instruction]:
        model = self.models.get(event.model)
        if model is None or not self._asks(event.update):
            return
        for instruction in model.pushes.request(event, now_ns):
            self._note_drop(model, instruction)
            yield instruction

    def _get(self, event: GetRequested) -> Iterator[Instruction]:
        model = self.models.get(event.model)
        if model is not None and self._asks(event.get):
            yield from model.gets.request(event)

    def _asks(self, request: UpdateId | GetId) -> bool:
        """Tell whether who asks is here; a request of an earlier incarnation came too late."""
        record = self.context.members.get(request.worker)
        here = record is not None and record.state is MemberState.HERE
        return record is not None and here and record.member.incarnation == request.incarnation

    def _plan(self, now_ns: int) -> Iterator[Instruction]:
        self.context.network.prune(now_ns)
        for model in self.models.values():
            due_ns = model.pushes.due_ns(now_ns)
            if due_ns is not None and due_ns <= now_ns:
                self.count.plans += 1
                self.count.updates += len(model.pushes.waiting)
                for instruction in model.pushes.plan(now_ns):
                    self._note_drop(model, instruction)
                    yield instruction
            gets_due_ns = model.gets.due_ns(now_ns)
            if gets_due_ns is not None and gets_due_ns <= now_ns:
                yield from model.gets.plan(now_ns)

    def _commits(self, event: CommitsReported) -> Iterator[Instruction]:
        model = self.models[event.model]
        for commit in event.commits:
            if (yield from model.pushes.committed(commit)):
                model.delays[commit.tau] += 1
                if record := self._worker(commit.update):
                    record.tally.committed += 1
                    record.tally.dropped_in_a_row = 0

    def _ended(self, event: TransferEnded, now_ns: int) -> Iterator[Instruction]:
        model = self.models[event.model]
        if isinstance(event.transfer, GetId):
            model.gets.ended(event.transfer)
            return
        if event.end is TransferEnd.RECEIVED:
            model.pushes.arrived(event.transfer, now_ns)
        if (dropped := (yield from model.pushes.ended(event, event.transfer))) is not None:
            self._tally_drop(model, event.transfer, dropped.cause)

    def _note_drop(self, model: ModelState, instruction: Instruction) -> None:
        if isinstance(instruction, Drop):
            self._tally_drop(model, instruction.update, instruction.cause)

    def _tally_drop(self, model: ModelState, update: UpdateId, cause: DropReason) -> None:
        model.dropped[cause] += 1
        if record := self._worker(update):
            record.tally.dropped[cause] += 1
            record.tally.dropped_in_a_row += 1

    def _worker(self, update: UpdateId) -> MemberRecord | None:
        record = self.context.members.get(update.worker)
        return record if record is not None and record.member.incarnation == update.incarnation else None
