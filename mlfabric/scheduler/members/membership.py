"""Who joins, is silent, leaves; which server holds which model. Pure.

A refusal is a value (``Refuse``) and changes nothing. A name belongs to one live incarnation: a second process of that
name is refused while the first is here, and takes its place once that is silent or has left.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from mlfabric.errors import UsageError
from mlfabric.model.specs import NO_TERM, Member, ModelSpec, Role
from mlfabric.network import down_link, up_link
from mlfabric.protocol import (
    GetId,
    HostModel,
    Instruction,
    LinksReported,
    MemberJoined,
    MemberLost,
    ModelVersion,
    MonitorAt,
    NewServer,
    PeerLost,
    Refuse,
    RefuseReason,
    ServerHolds,
    UpdateId,
    Welcome,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.followers.promotions import Promotions
from mlfabric.scheduler.known_models import KnownModels
from mlfabric.scheduler.members.admission import Admission
from mlfabric.scheduler.members.endings import Endings
from mlfabric.scheduler.members.first_weights import InitialWeights
from mlfabric.scheduler.members.lifetimes import Lifetimes
from mlfabric.scheduler.members.model_placement import Placing
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.records import MemberRecord, MemberState, WorkerTally
from mlfabric.scheduler.rounds.round_table import Rounds
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.scheduler.shards.parts import name_of_whole

__all__ = ["Membership"]


class Membership:
    """The members and the models that they bring."""

    def __init__(self, context: Context, models: KnownModels) -> None:
        self._context = context
        self._models = models
        self._placing = Placing(context, models.held)
        self.initial = InitialWeights(context, models)
        self.promotions = Promotions(context, models.held)
        self.lifetimes = Lifetimes(context)
        self.endings = Endings(context, models, self.lifetimes, self.promotions)
        self.admission = Admission(context, models, self._placing, self.promotions, self.lifetimes)
        self._silent: dict[str, MemberRecord] = {}
        self._missed: dict[str, int] = {}
        self._begun_anew: set[str] = set()
        self._departed: dict[str, None] = {}
        """Who has left, the longest gone first."""

    def join(self, event: MemberJoined, now_ns: int) -> Iterator[Instruction]:
        """Admit a member, or say why not."""
        member, said = event.member, event
        event = self.endings.living(event)
        refusal = self.admission.refusal(event, now_ns)
        if refusal is None:
            try:
                self._context.network.add_host(member.host, member.up_bps, member.down_bps, now_ns)
            except UsageError as error:
                refusal = (RefuseReason.OUT_OF_RANGE, str(error))
        if refusal is not None:
            yield Refuse(to=member.name, cause=refusal[0], reason=refusal[1])
            return
        if event.spec is not None and self.admission.is_in_the_way(event, event.spec.name):
            yield from self.endings.end(event.spec.name, f"{member.name} begins it anew")
            reason = f"waiting for model {event.spec.name!r} of a former job to be freed"
            yield Refuse(to=member.name, cause=RefuseReason.NOT_YET, reason=reason)
            return
        known = self._context.members.get(member.name)
        again = known is not None and known.member.incarnation == member.incarnation
        displaces = bool(event.promoted) or (known is not None and not again and known.state is MemberState.HERE)
        if known is not None and not again:
            yield from self._let_go(known, "another process took its name")
            self._forget(known)
        elif known is not None and known.state is MemberState.HERE and known.model in self._models.reductions:
            # Its stream broke unnoticed. What it was told last may be lost, so a round must not go on with it.
            known.state, known.since_ns = MemberState.SILENT, now_ns
            yield from self._models.reductions[known.model].worker_gone(known, f"{member.name} came back unnoticed")
        tally = known.tally if known is not None and again else WorkerTally()
        record = MemberRecord(
            member, MemberState.HERE, now_ns, event.most_updates, holds_initial=event.holds_initial, tally=tally
        )
        record.follows, record.machine_bytes = event.follows, event.machine_bytes
        record.job, record.keeps = event.job.job, event.keeps
        record.was_lost = known is not None and again and bool(known.lost)
        if event.spec is not None and self.lifetimes.joins(event, event.spec.name):
            for model in self._models.parts_of(event.spec.name):
                model.pushes.begin_job(event.spec.workers)
        self._context.admit(record)
        self._silent.pop(member.name, None)
        self._missed.pop(member.name, None)
        self._departed.pop(member.name, None)
        joined = f"{event.promoted} takes its primary's place" if event.promoted else "joined"
        yield from self._admit(record, said, "back again" if again else joined, again, now_ns)
        if displaces and member.role is Role.SERVER:
            yield from self._begin_anew(event, now_ns)

    def _admit(
        self, record: MemberRecord, event: MemberJoined, reason: str, again: bool, now_ns: int
    ) -> Iterator[Instruction]:
        match record.member.role:
            case Role.WORKER if event.spec is not None:
                yield from self._admit_worker(record, event, event.spec, reason)
            case Role.MONITOR:
                yield self._welcome(record, [], False, reason)
                yield from self._announce_monitors()
            case Role.REPLICA:
                yield self._welcome(record, [], False, reason)
                yield from self.endings.replica_back(record.member.name)
            case Role.AGGREGATOR:
                yield self._welcome(record, [], False, reason)
                yield from self._admit_aggregator(record.member)
            case _:
                living = self.endings.living(event)
                held = living.held
                yield self._welcome(record, [], False, reason, self._name_epoch(living))
                self.promotions.taken(record.member.name)
                for spec in event.held:
                    if spec in held and spec.name not in self._models.held:
                        self.lifetimes.brought(name_of_whole(spec), self._expected_until_ns(event.member, now_ns))
                yield from self.endings.server_back(event)
                yield from self._admit_server(living, record.since_ns)

    def _name_epoch(self, event: MemberJoined) -> int:
        """Name the epoch under which a server goes on from checkpoints, or in the place of another; else return 0."""
        brought = zip(event.held, event.server_epochs, strict=True)
        held = self._models.held
        is_behind = any(s.name in held and held[s.name].pushes.server_epoch > epoch for s, epoch in brought)
        is_resumed = event.member.seen == NO_TERM and bool(event.held)
        is_named = not event.promoted and (is_resumed or is_behind)
        return self._context.numbers.next_server_epoch() if is_named else 0

    def _expected_until_ns(self, server: Member, now_ns: int) -> int:
        """Return until when workers may be on their way back with a server that another scheduler admitted; 0 if none.

        One that no scheduler has admitted goes on from checkpoints, of a time that is over.
        """
        is_back = server.seen not in (NO_TERM, self._context.config.term)
        return now_ns + self._context.config.silence_ns if is_back else 0

    def _begin_anew(self, event: MemberJoined, now_ns: int) -> Iterator[Instruction]:
        """Let nothing go on that was planned with another process of a server's name; its replica is one no longer."""
        server = event.member.name
        replica = self._context.members.get(event.promoted)
        if replica is not None:
            yield from self.left(event.promoted, replica.member.incarnation, f"it is server {server} now", now_ns)
        reason = f"another process is server {server} now"
        for name, model in sorted(self._models.held.items()):
            if model.pushes.server != server:
                continue
            yield from model.pushes.begin_anew(reason)
            yield from model.gets.begin_anew(reason)
            self._begun_anew.add(name)

    def _tell_of_server(self, model: ModelState) -> Iterator[Instruction]:
        """Tell workers of the process that serves their model, if it is another one, or was unknown when they came."""
        name, epoch = model.pushes.spec.name, model.pushes.server_epoch
        is_another = name in self._begun_anew
        self._begun_anew.discard(name)
        for worker in self._context.here(Role.WORKER):
            if worker.model == name and (is_another or not worker.knows_server):
                worker.knows_server = True
                reason = f"{model.pushes.server} serves it under server epoch {epoch}"
                yield NewServer(to=worker.member.name, model=name, server_epoch=epoch, reason=reason)

    def _admit_aggregator(self, aggregator: Member) -> Iterator[Instruction]:
        """Tell an aggregator what all models look like, and what it missed; nobody may have heard what it handed on."""
        for name, model in sorted(self._models.held.items()):
            if self.endings.is_ending(name):
                continue
            yield HostModel(to=aggregator.name, spec=model.pushes.spec, reason=f"updates of {name} may be summed here")
            yield from model.pushes.aggregator_back(aggregator)
            yield from model.gets.aggregator_gone(aggregator.name, "it came back")

    def _announce_model(self, spec: ModelSpec) -> Iterator[Instruction]:
        """Tell all aggregators what a new model looks like."""
        for record in self._context.here(Role.AGGREGATOR):
            name = record.member.name
            yield HostModel(to=name, spec=spec, reason=f"updates of {spec.name} may be summed here")

    def _admit_server(self, event: MemberJoined, now_ns: int) -> Iterator[Instruction]:
        """Wait for what the server says of the models that it brings; tell it of those that it should hold."""
        server = event.member.name
        for spec, epoch in zip(event.held, event.server_epochs, strict=True):
            if spec.name not in self._models.held:
                self._models.make(self._context, spec, server)
                yield from self._announce_model(spec)
            pushes = self._models.held[spec.name].pushes
            pushes.awaited, pushes.server, pushes.shown_epoch = True, server, epoch
        brought = {spec.name for spec in event.held}
        for name, model in sorted(self._models.held.items()):
            if model.pushes.server == server and name not in brought and not self.endings.is_ending(name):
                spec, began = model.pushes.spec, ModelVersion(self._context.numbers.next_server_epoch(), 0)
                model.pushes.shown_epoch = began.epoch
                yield HostModel(to=server, spec=spec, reason=f"{name} is held here", epoch=began.epoch)
                begun = ServerHolds(server=server, spec=spec, version=began, initialised=False)
                yield from self.reconcile(begun, now_ns)

    def _admit_worker(
        self, record: MemberRecord, event: MemberJoined, spec: ModelSpec, reason: str
    ) -> Iterator[Instruction]:
        record.model = spec.name
        if not spec.has_server:
            if spec.name not in self._models.reductions:
                rounds = StepRounds if spec.applies_rounds else Rounds
                self._models.reductions[spec.name] = rounds(self._context, spec)
            yield self._welcome(record, [], False, reason)
            return
        placed = list(self._to_place(spec))
        epoch = self._context.numbers.next_server_epoch() if placed else 0
        for part, server in placed:
            self._models.make(self._context, part, server).pushes.begin_under(epoch)
            yield HostModel(to=server, spec=part, reason=f"{record.member.name} brought a new model", epoch=epoch)
            yield from self._announce_model(part)
        models = self._models.parts_of(spec.name)
        if placed and (whole := self._models.wholes.get(spec.name)) is not None:
            whole.begin_under(epoch)
        record.knows_server = not any(model.pushes.awaited for model in models)
        workers = sum(m.model == spec.name for m in self._context.here(Role.WORKER))
        self._leave_clocks(record.member.name, stays=models)
        for model in models:
            model.pushes.most_workers = max(model.pushes.most_workers, workers)
            model.pushes.worker_joined(record.member.name, spec.workers)
        asked = self.initial.claim(spec.name, record, record.since_ns)
        yield self._welcome(record, models, asked, reason)

    def _to_place(self, spec: ModelSpec) -> Iterator[tuple[ModelSpec, str]]:
        """Give the specs of what a worker's model lacks, and the servers that are to hold it; checked at admission."""
        if spec.shards > 1:
            found = self._placing.servers_for(spec, self._models.wholes.get(spec.name))
            assert isinstance(found, dict), "checked at admission"
            for shard, server in found.items():
                yield replace(spec.of_shard(shard), server=""), server
        elif spec.name not in self._models.held:
            server_name = self._placing.server_for(spec)
            assert isinstance(server_name, str), "checked at admission"
            yield spec, server_name

    def _welcome(
        self, record: MemberRecord, models: list[ModelState], initialise: bool, reason: str, server_epoch: int = 0
    ) -> Welcome:
        """Admit a member; a worker of a model that is cut is told the servers of all parts, in order."""
        if (whole := self._models.wholes.get(record.model)) is not None:
            server_epoch = whole.beginning
        elif models and not models[0].pushes.awaited:
            server_epoch = models[0].pushes.server_epoch
        return Welcome(
            to=record.member.name,
            incarnation=record.member.incarnation,
            term=self._context.config.term.number,
            instance=self._context.config.term.instance,
            tau_max=models[0].pushes.tau_max if models else 0,
            server=",".join(model.pushes.server for model in models),
            initialise=initialise,
            monitor_address=self._monitor_for(record),
            reason=reason,
            clock=models[0].pushes.clocks.beginning(record.member.name) if models else 0,
            lost=record.was_lost,
            server_epoch=server_epoch,
        )

    def _monitor_for(self, record: MemberRecord) -> str:
        monitors = self._context.here(Role.MONITOR)
        near = [m for m in monitors if m.member.host == record.member.host]
        return (near or monitors)[0].member.address if monitors else ""

    def _announce_monitors(self) -> Iterator[Instruction]:
        roles = (Role.WORKER, Role.SERVER, Role.AGGREGATOR, Role.REPLICA)
        for record in (record for role in roles for record in self._context.here(role)):
            address = self._monitor_for(record)
            yield MonitorAt(to=record.member.name, address=address, reason="a monitor came or went")

    def silent(self, name: str, incarnation: int, now_ns: int) -> Iterator[Instruction]:
        """Note that a member's stream broke; what it had not sent is planned no longer."""
        record = self._context.members.get(name)
        if record is None or record.member.incarnation != incarnation or record.state is not MemberState.HERE:
            return
        record.state, record.since_ns = MemberState.SILENT, now_ns
        self._silent[name] = record
        yield from self._let_go(record, f"{name} fell silent")

    def lost(self, event: MemberLost, now_ns: int) -> Iterator[Instruction]:
        """Let go of a member that does not answer any more, and wait for it no longer if it is a worker.

        Others count as left only in their time: with a replica goes the bound that it is there for.
        """
        record = self._context.members.get(event.name)
        is_known = record is not None and record.member.incarnation == event.incarnation
        if record is None or not is_known or record.state is MemberState.LEFT:
            return
        was_here = record.state is MemberState.HERE
        record.lost = event.detail
        if was_here:
            record.state, record.since_ns = MemberState.SILENT, now_ns
            self._silent[event.name] = record
        is_waited_for = record.member.role is not Role.WORKER
        if was_here or not is_waited_for:
            yield from self._let_go(record, f"{event.name}: {event.detail}")
        if not is_waited_for:
            self._give_up(record, now_ns)
        elif was_here and record.member.role is not Role.MONITOR:
            for other in (*self._context.here(Role.WORKER), *self._context.here(Role.AGGREGATOR)):
                reason = f"{event.name}: {event.detail}"
                yield PeerLost(to=other.member.name, address=record.member.address, reason=reason)

    def left(self, name: str, incarnation: int, detail: str, now_ns: int) -> Iterator[Instruction]:
        """Note that a member said good-bye."""
        record = self._context.members.get(name)
        if record is None or record.member.incarnation != incarnation or record.state is MemberState.LEFT:
            return
        record.state, record.since_ns, record.has_resigned = MemberState.LEFT, now_ns, True
        self._silent.pop(name, None)
        yield from self._let_go(record, f"{name} left: {detail}")
        self._forget(record)
        self._note_departed(record)
        self.endings.gone(name)
        for model in list(self.lifetimes.left(name)):
            yield from self.endings.look(model, now_ns)

    def released(self, job: str, now_ns: int) -> Iterator[Instruction]:
        """Note that a job that was held is over."""
        for model in list(self.lifetimes.released(job)):
            yield from self.endings.look(model, now_ns)

    def next_wakeup_ns(self) -> int | None:
        """Return when the next silent member counts as left, or a model may end; None if nothing is due."""
        due_ns = self.lifetimes.next_wakeup_ns()
        since_ns = [*(m.since_ns for m in self._silent.values()), *self._missed.values()]
        if not since_ns:
            return due_ns
        gone_ns = min(since_ns) + self._context.config.silence_ns
        return gone_ns if due_ns is None else min(gone_ns, due_ns)

    def expire(self, now_ns: int) -> Iterator[Instruction]:
        """Count members that were silent for too long as left; end models whose workers do not come back."""
        for record in list(self._silent.values()):
            if record.since_ns + self._context.config.silence_ns <= now_ns:
                self._give_up(record, now_ns)
        for name, since_ns in list(self._missed.items()):
            if since_ns + self._context.config.silence_ns <= now_ns:
                del self._missed[name]
                self._leave_clocks(name)
        for name in list(self.lifetimes.expire(now_ns)):
            yield from self.endings.look(name, now_ns)

    def _give_up(self, record: MemberRecord, now_ns: int) -> None:
        """Count a silent member as left; it may come back and ask what became of an update."""
        record.state, record.since_ns = MemberState.LEFT, now_ns
        del self._silent[record.member.name]
        self._leave_clocks(record.member.name)
        self._note_departed(record)
        self.endings.gone(record.member.name)

    def _let_go(self, record: MemberRecord, reason: str) -> Iterator[Instruction]:
        if record.member.role is Role.MONITOR:
            yield from self._announce_monitors()
        if record.member.role is Role.AGGREGATOR:
            for some in self._models.held.values():
                yield from some.pushes.aggregator_gone(record.member.name, reason)
                yield from some.gets.aggregator_gone(record.member.name, reason)
        if record.model in self._models.reductions:
            yield from self._models.reductions[record.model].worker_gone(record, reason)
        holder = self._models.whole(record.model)
        if record.member.role is not Role.WORKER or holder is None:
            return
        yield from holder.worker_gone(record.member.name, reason)
        yield from self.initial.worker_gone(record.member.name, record.model, reason, record.since_ns)

    def _forget(self, record: MemberRecord) -> None:
        holder = self._models.whole(record.model)
        if holder is not None:
            holder.forget_worker(record.member.name)
        self._leave_clocks(record.member.name)

    def _note_departed(self, record: MemberRecord) -> None:
        """Note that a member has left; forget all about those that left long before it.

        One that left may come back and ask what became of an update; people look at what it did. But in a job whose
        workers come and go under ever new names, all of them together would fill the memory. Nothing is lost: which
        updates were applied is the server's to know.
        """
        if record.member.role is Role.AGGREGATOR:
            return
        self._departed.pop(record.member.name, None)
        self._departed[record.member.name] = None
        too_many = max(0, len(self._departed) - self._context.config.limits.departed)
        for name in list(self._departed)[:too_many]:
            if self._is_needed(name):
                continue
            del self._departed[name]
            gone = self._context.members[name]
            self._forget(gone)
            self._context.forget(name)
            self.lifetimes.forget_worker(name)
            is_summed = gone.model in self._models.reductions  # its rounds remember what their links carried
            if not is_summed and all(other.member.host != gone.member.host for other in self._context.members.values()):
                self._context.network.forget_host(gone.member.host)

    def _is_needed(self, name: str) -> bool:
        """Tell whether models are a member's to hold, or something of it is still on its way."""
        models = self._models.held.values()
        if any(name in (model.pushes.server, model.replication.name) for model in models):
            return True
        updates = itertools.chain.from_iterable((*model.pushes.waiting, *model.pushes.planned) for model in models)
        gets = itertools.chain.from_iterable((*model.gets.waiting, *model.gets.planned) for model in models)
        pushes = itertools.chain.from_iterable(whole.open for whole in self._models.wholes.values())
        return any(request.worker == name for request in itertools.chain[UpdateId | GetId](updates, gets, pushes))

    def _leave_clocks(self, worker: str, stays: Sequence[ModelState] = ()) -> None:
        """Wait for a worker no longer in any model but the one (or its parts) that it stays with."""
        for model in self._models.held.values():
            if not any(model is one for one in stays):
                model.pushes.clocks.leave(worker)

    def reconcile(self, holds: ServerHolds, now_ns: int) -> Generator[Instruction, None, list[tuple[UpdateId, int]]]:
        """Take over what a server that (re)joined says of one model, or what is known of one that begins it.

        Returns:
            As of ``PushEnds.reconcile``.
        """
        model = self._models.held.get(holds.spec.name)
        if model is None:
            model = self._models.make(self._context, holds.spec, holds.server)
            self.lifetimes.brought(name_of_whole(holds.spec), 0)
            yield from self._announce_model(holds.spec)
        self._miss(holds, model, now_ns)
        self.lifetimes.knows(name_of_whole(holds.spec), (ids.worker for ids in holds.applied))
        committed = yield from model.pushes.reconcile(holds)
        yield from self._tell_of_server(model)
        name = name_of_whole(holds.spec)
        if holds.spec.shard is not None:
            yield from self._models.wholes[name].part_back(holds, holds.spec.shard)
        else:
            yield from model.gets.repeat()
        model.dispenser.forget_trained()
        yield from model.samples.server_back(holds.samples)
        model.dispenser.server_back(now_ns)
        yield from self.initial.seek(name, f"{holds.server} came without weights", now_ns)
        model.replication.primary_back(holds, now_ns)
        return committed

    def _miss(self, holds: ServerHolds, model: ModelState, now_ns: int) -> None:
        """Wait for workers that a server knows and this scheduler does not: they may be on their way back to it."""
        for ids in holds.applied if model.pushes.policy.waits_for_others else ():
            is_new = ids.worker not in self._context.members
            if is_new:
                self._missed.setdefault(ids.worker, now_ns)
            if is_new or self._context.is_here(ids.worker):
                model.pushes.clocks.wait_for(ids.worker)

    def set_rates(self, event: LinksReported, now_ns: int) -> None:
        """Take a monitor's estimates as the links' capacities, unless rounds have seen them since."""
        for rate in event.rates:
            link = up_link(rate.host) if rate.up else down_link(rate.host)
            if self._context.network.has_link(link):
                self._context.network.set_rate(link, rate.bps, now_ns - rate.age_ns)
