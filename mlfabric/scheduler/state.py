"""The scheduler's state machine: one mutating door. Pure.

Requests are only taken in; plans are made on ``Tick``, so that all that has arrived by then is planned together. The
shell sends a Tick when ``next_wakeup_ns`` says so, which after a request may be at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.model.specs import NO_TERM, Member, Term
from mlfabric.network import Network
from mlfabric.protocol import (
    CommitsReported,
    Drop,
    DropReason,
    GetId,
    GetRequested,
    HeldBack,
    InitialReceived,
    Instruction,
    JobHeld,
    JobReleased,
    LinkProbed,
    LinksReported,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberSilent,
    MemoryReported,
    ModelFreed,
    ModelRemoved,
    NotKept,
    Prepared,
    PushRequested,
    ReduceId,
    ReduceRequested,
    Refuse,
    RefuseReason,
    ReplicaReported,
    RoundArrived,
    RoundBroken,
    RoundKept,
    RoundSlow,
    SamplesDropped,
    SamplesReported,
    SamplesWanted,
    ServerHolds,
    StateArrived,
    StateBroken,
    StepsTimed,
    TermShown,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    WorkerHolds,
)
from mlfabric.protocol.lineage import term_of
from mlfabric.protocol.told import SaidByServer
from mlfabric.scheduler.context import Context, NumberMaker, SchedulerConfig, TicketMaker
from mlfabric.scheduler.known_models import KnownModels
from mlfabric.scheduler.members.claims import Claims, Refusal
from mlfabric.scheduler.members.membership import Membership
from mlfabric.scheduler.members.terms import Verdict, verdict
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.records import MemberRecord, MemberState, PlanCount
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.scheduler.shards.parts import name_of_whole
from mlfabric.scheduler.shards.sharded import ShardedModel

__all__ = ["SchedulerState"]

_WITHOUT_REPLICA = (GetRequested, LinksReported)
"""Events that never change what a replica gets."""
_ABOUT_SAMPLES = (SamplesDropped, WorkerHolds, MemberSilent, MemberLeft, MemberJoined)
"""Events that tell of updates that were dropped, or of workers that are gone."""


class SchedulerState:
    """Everything that the scheduler knows.

    Attributes:
        verdict: whether it is the newest scheduler, as far as members have shown; if not, it decides nothing any more.
        seen: the newest term of another scheduler that it was shown.
        lifetimes, endings: which job each model belongs to, how it ends; only to be read.
    """

    def __init__(self, config: SchedulerConfig, network: Network | None = None) -> None:
        network = network if network is not None else Network.star(config.default_bps)
        self.context = Context(config, network, TicketMaker(config.ticket_secret), NumberMaker(config.term.number))
        self._known = known = KnownModels()
        self.models, self.wholes, self.reductions = known.held, known.wholes, known.reductions
        self.verdict = Verdict.STAYS
        self.seen = NO_TERM
        self._membership = Membership(self.context, known)
        self.lifetimes, self.endings = self._membership.lifetimes, self._membership.endings
        self._claims = Claims(self.context, known, self._membership.admission)

    @property
    def count(self) -> PlanCount:
        """What was planned so far."""
        return self.context.count

    def refusal(self, event: MemberEvent) -> Refusal | None:
        """Say why an event is not to be handed to this state machine, though it is well formed; None if it may be."""
        return self._claims.refusal(event)

    def handle(self, event: MemberEvent, now_ns: int) -> list[Instruction]:
        """Take in one event and return the instructions that follow, in order."""
        if isinstance(event, MemberJoined):
            self._look_at(event.member.seen, may_rise=not self.context.members)
            # A server may hold checkpoints of an epoch that a newer scheduler has named, and have seen none itself.
            newest = max(event.server_epochs, default=0)
            if newest > self.context.numbers.last_server_epoch:
                self._look_at(Term(term_of(newest), self.context.config.term.instance), may_rise=True)
        elif isinstance(event, TermShown):
            self._look_at(event.seen, may_rise=False)
        if self.verdict is not Verdict.STAYS:
            return [self._refusal(event.member)] if isinstance(event, MemberJoined) else []
        self._note_steps(event, now_ns)
        promotions, ending = self._membership.promotions, self.endings
        if is_late := ending.concerns(event):
            out = list(ending.late(event))
        else:
            promotions.look_at(event, now_ns)
            out = list(self._react(event, now_ns))
        for name, whole in self.wholes.items():
            if ending.has_begun(name):
                continue
            if not is_late:
                whole.look_at(event)
            for instruction in whole.advance(now_ns):
                if isinstance(instruction, Drop) and instruction.to == instruction.update.worker:
                    self._note_drop(self.models[instruction.model], instruction)
                out.append(instruction)
        if not isinstance(event, _WITHOUT_REPLICA):
            for name, model in self.models.items():
                if not ending.is_ending(name):
                    out.extend(model.replication.advance(now_ns))
            out.extend(promotions.advance(now_ns))
        return out

    def next_wakeup_ns(self, now_ns: int) -> int | None:
        """Return when a Tick is due (an instant that is past means at once), or None.

        Once one part of it is due nobody else is asked: it costs as much as the plan, which asks them all again.
        """
        if self.verdict is not Verdict.STAYS:
            return None
        first_ns: int | None = None
        for due_ns in self._times(now_ns):
            if due_ns is not None and (first_ns is None or due_ns < first_ns):
                first_ns = due_ns
                if due_ns <= now_ns:
                    break
        return first_ns

    def _times(self, now_ns: int) -> Iterator[int | None]:
        """Give when each part of it is due, None for one that waits for nothing."""
        yield self._membership.next_wakeup_ns()
        yield self._membership.initial.next_wakeup_ns()
        yield self._membership.promotions.next_wakeup_ns()
        for model in self.models.values():
            yield model.pushes.due_ns(now_ns)
            yield model.gets.due_ns(now_ns)
            yield model.replication.next_wakeup_ns()
        for rounds in self.reductions.values():
            yield rounds.due_ns(now_ns)
        for name, whole in self.wholes.items():
            yield None if self.endings.has_begun(name) else whole.due_ns()

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        self.context.network.validate_touched()
        for name, model in self.models.items():
            model.pushes.validate()
            model.gets.validate()
            model.replication.validate()
            bound = model.pushes.tau_max
            assert max(model.delays, default=0) <= bound, f"{name}: delay above {bound}: {model.delays}"
        for rounds in self.reductions.values():
            rounds.validate()
        for name, whole in self.wholes.items():
            if not self.endings.has_begun(name):
                whole.validate()

    def _look_at(self, seen: Term, *, may_rise: bool) -> None:
        """Take in the newest scheduler that a member has seen."""
        found = verdict(self.context.config.term, seen, may_rise=may_rise)
        if found is not Verdict.STAYS and self.verdict is not Verdict.FENCED:
            self.verdict, self.seen = found, max(self.seen, seen)

    def _refusal(self, member: Member) -> Refuse:
        own, seen = self.context.config.term.number, self.seen.number
        reason = f"this scheduler, of term {own}, was shown term {seen}: {self.verdict.value}"
        return Refuse(to=member.name, cause=RefuseReason.FENCED, reason=reason)

    def _react(self, event: MemberEvent, now_ns: int) -> Iterator[Instruction]:
        if not self._has_a_say(event):
            return
        if isinstance(event, _ABOUT_SAMPLES):
            yield from self._drop_samples(event)
        match event:
            case Tick():
                yield from self._membership.expire(now_ns)
                yield from self._membership.initial.tick(now_ns)
                yield from self._plan(now_ns)
            case PushRequested():
                yield from self._push(event, now_ns)
            case GetRequested():
                yield from self._get(event, now_ns)
            case ReduceRequested():
                yield from self._reduce(event, now_ns)
            case RoundArrived() if event.model in self.reductions:
                yield from self.reductions[event.model].arrived(event, now_ns)
            case StateArrived() if isinstance(rounds := self.reductions.get(event.model), StepRounds):
                rounds.state_arrived(event, now_ns)
            case StateBroken() if isinstance(rounds := self.reductions.get(event.model), StepRounds):
                yield from rounds.state_broken(event, now_ns)
            case LinkProbed() if event.model in self.reductions:
                self.reductions[event.model].probed(event)
            case StepsTimed() if isinstance(rounds := self.reductions.get(event.model), StepRounds):
                yield from rounds.timed(event)
            case RoundBroken() if event.model in self.reductions:
                yield from self.reductions[event.model].broken(event, now_ns)
            case RoundKept() if event.model in self.reductions:
                self.reductions[event.model].kept(event)
            case RoundSlow() if event.model in self.reductions:
                yield from self.reductions[event.model].slow(event, now_ns)
            case CommitsReported() if event.model in self.models:
                yield from self._commits(event)
            case TransferEnded() if event.model in self.models:
                yield from self._ended(event, now_ns)
            case MemberJoined():
                yield from self._membership.join(event, now_ns)
            case MemberSilent():
                yield from self._membership.silent(event.name, event.incarnation, now_ns)
            case MemberLost():
                yield from self._membership.lost(event, now_ns)
            case MemberLeft():
                yield from self._membership.left(event.name, event.incarnation, event.detail, now_ns)
            case WorkerHolds():
                yield from self._worker_holds(event, now_ns)
                for push in event.pushes:
                    yield from self._push(push, now_ns)
                for get in event.gets:
                    yield from self._get(get, now_ns)
                for reduce in event.reduces:
                    yield from self._reduce(reduce, now_ns)
            case ServerHolds():
                if event.spec.name in self.models:
                    self.models[event.spec.name].replication.primary_holds(event)
                for update, delay in (yield from self._membership.reconcile(event, now_ns)):
                    self._tally_commit(self.models[event.spec.name], update, delay)
            case JobHeld() | JobReleased() | ModelRemoved() | ModelFreed():
                yield from self._end_models(event, now_ns)
            case SamplesReported() if event.model in self.models:
                self.models[event.model].samples.reported(event.counts)
            case SamplesWanted():
                yield from self._draw(event, now_ns)
            case Prepared() if event.model in self.models:
                found = self._whole_of(event.model)
                if found is not None:
                    yield from found[0].prepared(event, found[1], now_ns)
            case ReplicaReported() if event.model in self.models:
                yield from self.models[event.model].replication.reported(event)
            case HeldBack() if event.model in self.models:
                self.models[event.model].replication.held_back(event)
            case NotKept() if event.model in self.models:
                self.models[event.model].replication.not_kept(event)
            case InitialReceived() if event.model in self.models:
                table = self.models[event.model].pushes
                yield from table.initial_received(event.version)
                self._membership.initial.have_come(name_of_whole(table.spec))
            case LinksReported():
                self._membership.set_rates(event, now_ns)
                for model in self.models.values():
                    model.pushes.links_changed(now_ns)
                    model.gets.links_changed(now_ns)
            case MemoryReported():
                if event.name in self.context.members:
                    self.context.members[event.name].memory_bytes = dict(event.kinds)

    def _end_models(
        self, event: JobHeld | JobReleased | ModelRemoved | ModelFreed, now_ns: int
    ) -> Iterator[Instruction]:
        """Note what lets models end, or lets them not."""
        match event:
            case JobHeld():
                self.lifetimes.held.add(event.job)
            case JobReleased():
                yield from self._membership.released(event.job, now_ns)
            case ModelRemoved() if self.endings.removal_refusal(event.model) is None:
                yield from self.endings.end(event.model, "somebody has removed it")
            case ModelFreed():
                self.endings.freed(event)

    def _note_steps(self, event: MemberEvent, now_ns: int) -> None:
        """Let workers' steps be timed: by the whole model, or by the first part of one that is cut."""
        if isinstance(event, TransferEnded) and event.transfer[0] not in self.context.members:
            return
        model = self.models.get(getattr(event, "model", ""))
        if model is None or not model.pushes.spec.shard:
            self.context.steps.note(event, now_ns)

    def _has_a_say(self, event: MemberEvent) -> bool:
        """Tell whether an event comes from whom it can come from: only who holds a model says what it is at."""
        match event:
            case SaidByServer():
                model = self.models.get(event.model)
            case ServerHolds():
                model = self.models.get(event.spec.name)
            case _:
                return True
        return model is None or model.pushes.server == event.server

    def _drop_samples(self, event: MemberEvent) -> Iterator[Instruction]:
        """Note what updates were computed from that were dropped, or whose workers are gone."""
        match event:
            case SamplesDropped(worker=worker, samples=samples) | WorkerHolds(worker=worker, dropped=samples):
                record = self.context.members.get(worker)
                if record is None:
                    return
                for model in self._known.parts_of(record.model)[:1]:
                    model.dispenser.give_back(record.member, samples)
                    if isinstance(event, WorkerHolds) and not record.has_said:
                        record.has_said = True
                        model.dispenser.holds(record.member, event.drawn)
                    yield from model.samples.drop(samples, f"{worker}'s updates were dropped")
            case MemberSilent(name=name) | MemberLeft(name=name):
                gone = (name, event.incarnation)
                for model in self.models.values():
                    yield from model.samples.worker_gone(lambda *who: who == gone, f"{name} is gone")
            case MemberJoined(member=member):
                for model in self.models.values():
                    yield from model.samples.worker_gone(
                        lambda name, incarnation: name == member.name and incarnation != member.incarnation,
                        f"another process took the name {member.name}",
                    )

    def _draw(self, event: SamplesWanted, now_ns: int) -> Iterator[Instruction]:
        record = self.context.members.get(event.worker)
        if record is not None and record.state is MemberState.HERE:
            for model in self._known.parts_of(record.model)[:1]:
                is_known = self.context.is_here(model.pushes.server) and not model.pushes.awaited
                yield model.dispenser.draw(event, record.member, is_known, now_ns)

    def _push(self, event: PushRequested, now_ns: int) -> Iterator[Instruction]:
        model = self.models.get(event.model)
        if model is None or not self._asks(event.update):
            return
        if (found := self._whole_of(event.model)) is not None:
            if event.update.counter % found[0].count != found[1] or not found[0].has_all_parts:
                return
            found[0].note(event.update, event.kind)
        model.samples.asked(event)
        for instruction in model.pushes.request(event, now_ns):
            self._note_drop(model, instruction)
            yield instruction

    def _get(self, event: GetRequested, now_ns: int) -> Iterator[Instruction]:
        model = self.models.get(event.model)
        if model is None or not self._asks(event.get):
            return
        if (found := self._whole_of(event.model)) is None:
            yield from model.gets.request(event, now_ns)
        elif event.get.counter % found[0].count == found[1] and found[0].has_all_parts:
            yield from found[0].request_get(event, found[1], now_ns)

    def _reduce(self, event: ReduceRequested, now_ns: int) -> Iterator[Instruction]:
        rounds = self.reductions.get(event.model)
        if rounds is not None and self._asks(event.reduce):
            yield from rounds.request(event, now_ns)

    def _worker_holds(self, event: WorkerHolds, now_ns: int) -> Iterator[Instruction]:
        record = self.context.members.get(event.worker)
        rounds = None if record is None else self.reductions.get(record.model)
        if isinstance(rounds, StepRounds) and event.rounds is not None and self.context.is_here(event.worker):
            yield from rounds.holds(event.worker, event.rounds, now_ns)
        held = {push.update for push in event.pushes}
        for model in self._known.parts_of(record.model) if record is not None else ():
            yield from model.pushes.worker_holds(event.worker, held, event.clock)
        if record is not None and (whole := self.wholes.get(record.model)) is not None and whole.has_all_parts:
            whole.worker_holds(event.worker, held)

    def _whole_of(self, model: str) -> tuple[ShardedModel, int] | None:
        """Return the model that this one is a part of, and which; None if it is whole."""
        spec = self.models[model].pushes.spec
        return None if spec.shard is None else (self.wholes[name_of_whole(spec)], spec.shard)

    def _asks(self, request: UpdateId | GetId | ReduceId) -> bool:
        """Tell whether who asks is here; a request of an earlier incarnation came too late."""
        return self.context.is_live(request.worker, request.incarnation)

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
        for rounds in self.reductions.values():
            due_ns = rounds.due_ns(now_ns)
            if due_ns is not None and due_ns <= now_ns:
                self.count.plans += 1
                yield from rounds.plan(now_ns)

    def _commits(self, event: CommitsReported) -> Iterator[Instruction]:
        model = self.models[event.model]
        if (found := self._whole_of(event.model)) is not None:
            found[0].committed(event, found[1])
        for commit in (yield from model.pushes.committed(event)):
            self._tally_commit(model, commit.update, commit.tau)
        model.samples.committed(event.commits)
        model.dispenser.committed(event.commits)
        yield from model.replication.committed(event.commits)

    def _ended(self, event: TransferEnded, now_ns: int) -> Iterator[Instruction]:
        model = self.models[event.model]
        if event.member == model.replication.name:
            model.replication.ended(event)
            return
        found = self._whole_of(event.model)
        if isinstance(event.transfer, GetId):
            if found is None:
                yield from model.gets.ended(event, event.transfer, now_ns)
            else:
                yield from found[0].get_ended(event, event.transfer, found[1], now_ns)
            return
        if found is not None and isinstance(event.transfer, UpdateId) and found[0].keeps(event, event.transfer):
            return
        if event.end is TransferEnd.RECEIVED:
            model.pushes.arrived(event.transfer, now_ns)
        dropped = yield from model.pushes.ended(event, event.transfer)
        if dropped is not None and isinstance(event.transfer, UpdateId):
            self._tally_drop(model, event.transfer, dropped.cause)

    def _note_drop(self, model: ModelState, instruction: Instruction) -> None:
        if isinstance(instruction, Drop):
            self._tally_drop(model, instruction.update, instruction.cause)

    def _tally_commit(self, model: ModelState, update: UpdateId, delay: int) -> None:
        model.delays[delay] += 1
        if record := self._tallied(model, update):
            record.tally.commit()

    def _tally_drop(self, model: ModelState, update: UpdateId, cause: DropReason) -> None:
        model.dropped[cause] += 1
        if record := self._tallied(model, update):
            record.tally.drop(cause.value)

    def _tallied(self, model: ModelState, update: UpdateId) -> MemberRecord | None:
        """Return the worker whose tally an outcome goes into: of the parts of a push one counts."""
        if model.pushes.spec.shard:
            return None
        record = self.context.members.get(update.worker)
        return record if record is not None and record.member.incarnation == update.incarnation else None
