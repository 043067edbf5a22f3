"""The rounds of one model that workers apply by themselves: whoever is in the next one, and what follows. Pure.

There is no server. Every worker has model and optimizer, and applies the settled rounds in their order, so all have the
same bits. A round's *members* contribute a gradient; all other workers that have the newest model are *receivers*: the
result comes to them while they compute. Once all of them have it the round is *settled* and makes the next version;
nobody applies a round that is not. Whoever breaks off earlier makes it void, and it is planned anew without that one.

A worker that joins, or is too far behind, fetches model and optimizer state from a peer. From then on the results of
further rounds come to it, too.

A new scheduler learns from the workers which version is the newest, and who has it. It waits for a while until all have
spoken.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.methods import Late, round_rule_of
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    BeginState,
    FetchState,
    GiveState,
    Instruction,
    LinkProbed,
    PassReduce,
    Peer,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundsHeld,
    StateArrived,
    StateBroken,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.rounds.carrying import Carrying
from mlfabric.scheduler.rounds.probe_plans import ProbeCount
from mlfabric.scheduler.rounds.running_round import RunningRound, difference_of
from mlfabric.scheduler.rounds.standings import Standing, Standings

__all__ = ["StepRounds"]


class StepRounds:
    """The rounds of one model.

    Attributes:
        version: how many were settled.
        done: how many of these this scheduler has seen.
        workers: how many contributed to the last one.
        waits_for: what the next one waits for, in words.
        passed, dropped: how many gradients were kept for their workers' next ones, and how many were dropped.
    """

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        self.spec = spec
        self.version = self.done = self.workers = self.passed = self.dropped = 0
        self.waits_for = ""
        self._context = context
        self._rule = round_rule_of(spec)
        self._carrying = Carrying(context, spec.name)
        self._standings = Standings()
        self._settled: RoundId | None = None
        self._found: RoundId | None = None
        """The last round that was settled under another scheduler; not all of its workers may know that."""
        self._began: RoundId | None = None
        self._since_full = 0
        self._held: dict[str, RoundsHeld] = {}
        self._may_return: dict[str, int] = {}
        """Until when workers may come back that had the model and fell silent."""
        self._forms_ns: int | None = None
        self._is_formed = False
        self._outcomes: dict[tuple[str, int], ReduceSettled | PassReduce] = {}

    @property
    def how(self) -> str:
        """How the last round that began was planned."""
        return self._carrying.how

    @property
    def waiting(self) -> int:
        """How many gradients no running round holds."""
        return len(self._standings.offers()) - (0 if self._running is None else len(self._running.members))

    @property
    def waits_for_workers(self) -> bool:
        """Whether the next round waits for workers, not for a way to plan it."""
        return self.waits_for not in ("", self._carrying.no_way)

    @property
    def running(self) -> int:
        """How many workers the running round has; 0 if there is none."""
        return 0 if self._running is None else len(self._running.parts)

    @property
    def probes(self) -> ProbeCount:
        """What became of the probes between rounds."""
        return self._carrying.probes

    @property
    def _running(self) -> RunningRound | None:
        return self._carrying.running

    def is_reducing(self, worker: str) -> bool:
        """Tell whether a worker takes part in the running round."""
        return self._running is not None and worker in self._running.parts

    def is_waiting(self, worker: str) -> bool:
        """Tell whether a worker has a gradient that is in no round yet."""
        return self.asked_by(worker) > 0 and (self._running is None or worker not in self._running.members)

    def asked_by(self, worker: str) -> int:
        """Return how many gradients of a worker have no outcome."""
        standing = self._standings.of.get(worker)
        return 0 if standing is None or standing.offer is None else 1

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        name, running = self.spec.name, self._running
        for worker, standing in self._standings.of.items():
            assert self._context.is_here(worker), f"{name}: {worker} is waited for and not here"
            may_offer = standing.has_state or not self._is_formed
            assert standing.offer is None or may_offer, f"{name}: {worker} offers without a model"
        if running is not None:
            assert running.version == self.version + 1, f"{name}: {running.id} is of version {running.version}"
            offers = self._standings.offers()
            lost = [w for w, member in running.members.items() if offers.get(w) != member]
            assert not lost, f"{name}: {running.id} has other gradients than {lost} offer"
            assert len(running.arrived) < len(running.parts), f"{name}: {running.id} is over and not settled"

    # Workers come and go

    def holds(self, worker: str, held: RoundsHeld, now_ns: int) -> Iterator[Instruction]:
        """Take in what a worker says that joins or comes back."""
        self._may_return.pop(worker, None)
        self._standings.of[worker] = Standing(applied=held.applied, since_ns=now_ns)
        if not self._is_formed:
            self._held[worker] = held
            self._forms_ns = self._forms_ns or now_ns + self._context.config.silence_ns
            if len(self._held) >= max(each.together for each in self._held.values()):
                yield from self._form(now_ns)
            return
        yield from self._place(worker, held, now_ns)
        yield from self._seek_states(now_ns)

    def _form(self, now_ns: int) -> Iterator[Instruction]:
        """Begin with the newest version that anybody has."""
        self._is_formed = True
        having = {worker: held for worker, held in self._held.items() if held.has_state}
        if having:
            newest = max(having.values(), key=lambda held: (held.version, held.settled or RoundId(0, 0)))
            self.version, self._settled = newest.version, newest.settled
            current = [h for h in having.values() if (h.version, h.settled) == (newest.version, newest.settled)]
            arrived = {held.arrived for held in current}
            last = arrived.pop() if len(arrived) == 1 else None
            if last is not None and last.term != self._context.config.term.number:
                # All have this result, so another scheduler may have settled it, and have told some so.
                self.version, self._settled = newest.version + 1, last
        self._found = self._settled
        for worker, held in sorted(self._held.items()):
            yield from self._place(worker, held, now_ns)
        self._held.clear()
        yield from self._seek_states(now_ns)
        for worker in list(self._standings.offers()):
            yield from self._judge(worker, now_ns)

    def _place(self, worker: str, held: RoundsHeld, now_ns: int) -> Iterator[Instruction]:
        """Say whether a worker has the newest version; tell it if its last round was settled meanwhile.

        Whoever comes with a newer version than is known here comes late to a new scheduler: it is right.
        """
        standing = self._standings.of[worker]
        if held.has_state and held.version > self.version:
            if self._running is not None:
                yield from self._carrying.void(f"{worker} has version {held.version}")
            self.version, self._settled = held.version, held.settled
            self._found = held.settled
            for other in self._standings.of.values():
                other.is_current = False
        lacks = self.version - held.version
        standing.is_current = held.has_state and lacks == 0 and held.settled == self._settled
        if held.has_state and lacks > 0 and held.arrived is not None and held.arrived in (self._settled, self._found):
            standing.is_current = held.arrived == self._settled
            if standing.offer is not None and standing.offer.arrived == held.arrived:
                standing.offer = None  # it is in that round
            reason = "everybody had it under another scheduler"
            yield ReduceSettled(
                to=worker, reduce=None, round=held.arrived, workers=len(self._standings.of), reason=reason
            )

    def _seek_states(self, now_ns: int) -> Iterator[Instruction]:
        """Let everybody that lacks the model fetch it; where nobody has it, it begins with one of them.

        A worker that is behind computes, and fetches the model when it is through with that.
        """
        of = self._standings.of
        if not self._is_formed or not of:
            return
        if not any(standing.has_state for standing in of.values()):
            if self._returning_ns(now_ns) is not None:
                return
            yield self._begin_model(min(of, key=lambda worker: (-of[worker].applied, worker)))
        for worker, standing in sorted(of.items()):
            if not standing.is_current and not standing.is_behind:
                yield from self._fetch(worker, standing)

    def _returning_ns(self, now_ns: int) -> int | None:
        """Return until when to wait for a worker that had the model and may come back; None if there is none."""
        self._may_return = {worker: until for worker, until in self._may_return.items() if until > now_ns}
        return min(self._may_return.values(), default=None)

    def _begin_model(self, first: str) -> BeginState:
        """Let the model go on with what a worker has that is not the newest version."""
        standing = self._standings.of[first]
        self.version = standing.applied = max(self.version, standing.applied)
        standing.is_current, standing.is_behind, standing.fetches_from = True, False, ""
        began = self._began = self._settled = self._carrying.take_id()
        name, reason = self.spec.name, f"no other worker has version {self.version}"
        return BeginState(to=first, model=name, round=began, version=self.version, reason=reason)

    def _fetch(self, worker: str, standing: Standing) -> Iterator[Instruction]:
        """Have a worker fetch the state of the version that the running round makes, or the newest one."""
        peer = self._standings.peer_for(worker)
        if peer is None:
            return
        version, settled = self.version, self._settled
        if self._running is not None:
            version, settled = self._running.version, self._running.id
        assert settled is not None, "a model that a peer has has begun"
        offer = standing.offer
        standing.is_current, standing.fetches_from, standing.fetches = True, peer, settled
        standing.applied, standing.offer = version, None
        name, ticket = self.spec.name, self._context.tickets.next()
        reason = f"{worker} lacks version {version} of {name}"
        yield GiveState(to=peer, model=name, peer=Peer(worker, "", ticket), version=version, reason=reason)
        address = self._context.address(peer)
        giver = Peer(peer, address, ticket)
        yield FetchState(to=worker, model=name, peer=giver, version=version, round=settled, reason=reason)
        if offer is not None:
            yield self._pass(offer, Late.IS_DROPPED, reason)

    def state_arrived(self, event: StateArrived, now_ns: int) -> Iterator[Instruction]:
        """Count a worker in again that has fetched the model."""
        standing = self._standings.of.get(event.worker)
        if standing is not None and standing.fetches_from and standing.fetches == event.round:
            standing.fetches_from = ""
            standing.computes_from(event.version, now_ns)
        yield from ()

    def state_broken(self, event: StateBroken, now_ns: int) -> Iterator[Instruction]:
        """Have a worker fetch the model from another peer."""
        standing = self._standings.of.get(event.worker)
        if standing is not None and standing.fetches_from and standing.fetches == event.round:
            standing.is_current = False
            yield from self._seek_states(now_ns)

    def worker_gone(self, record: MemberRecord, reason: str) -> Iterator[Instruction]:
        """Go on without a worker."""
        worker = record.member.name
        self._outcomes.pop((worker, record.member.incarnation), None)
        if self.is_reducing(worker):
            yield from self._carrying.void(reason)
        self._held.pop(worker, None)
        gone = self._standings.of.pop(worker, None)
        if gone is not None and gone.has_state and record.state is MemberState.SILENT:
            self._may_return[worker] = record.since_ns + self._context.config.silence_ns
        elif record.state is MemberState.LEFT:
            self._may_return.pop(worker, None)
        if gone is None:
            return
        for other in self._standings.of.values():
            if other.fetches_from == worker:
                other.is_current = False
        yield from self._seek_states(record.since_ns)

    # Gradients

    def request(self, event: ReduceRequested, now_ns: int) -> Iterator[Instruction]:
        """Take a gradient, or say again what became of it."""
        worker, running = event.reduce.worker, self._running
        standing, outcome = self._standings.of.get(worker), self._outcomes.get(event.reduce[:2])
        if outcome is not None and outcome.reduce == event.reduce:
            yield outcome
        elif standing is None or (event.arrived is not None and event.arrived in (self._settled, self._found)):
            return  # its last round has just been settled for it
        elif running is not None and (member := running.members.get(worker)) and member.reduce == event.reduce:
            if event.arrived == running.id:
                yield from self._arrive(running, worker, now_ns)
            else:
                yield running.told(worker)
        elif self._is_formed and not standing.has_state:
            standing.is_behind = False
            yield from self._seek_states(now_ns)
            yield self._pass(event, Late.IS_DROPPED, f"it was computed from version {event.computed_from}; too old")
        else:
            self._carrying.rhythm.asked(worker, now_ns)
            self._standings.offered(standing, event, now_ns)
            yield from self._judge(worker, now_ns)

    def _judge(self, worker: str, now_ns: int) -> Iterator[Instruction]:
        """Say what becomes of a gradient that is in no round, now that the model is at this version."""
        standing = self._standings.of[worker]
        offer = standing.offer
        if offer is None or not self._is_formed:
            return
        delay = self.version - offer.computed_from
        if (late := self._rule.late(delay)) is not Late.JOINS:
            standing.computes_from(self.version, now_ns)
            yield self._pass(offer, late, f"{delay} rounds were made without it")

    def _pass(self, offer: ReduceRequested, late: Late, reason: str) -> PassReduce:
        is_kept = late is Late.IS_KEPT
        self.passed, self.dropped = self.passed + is_kept, self.dropped + (not is_kept)
        passed = PassReduce(to=offer.reduce.worker, reduce=offer.reduce, keep=is_kept, reason=reason)
        self._outcomes[offer.reduce[:2]] = passed
        return passed

    # Rounds

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next round can be planned, None if it waits for something else to happen."""
        if self._running is not None:
            self.waits_for = ""
            return self._carrying.overdue_ns()
        if not self._is_formed:
            self.waits_for = "more workers"
            return self._forms_ns
        if self._standings.of and not any(standing.has_state for standing in self._standings.of.values()):
            self.waits_for = ", ".join(sorted(self._may_return)) or "a worker that has the model"
            return min(self._may_return.values(), default=None)
        who = self._standings.readiness(self.version + 1, self._since_full)
        slow = self._held_up_by()
        begins_ns = None if slow or not who.ready_ns else self._rule.begins_ns(who, now_ns)
        if begins_ns is None:
            self.waits_for = ", ".join(slow or sorted(who.computing_ns)) if who.ready_ns else ""
            return None
        self.waits_for = self._carrying.no_way
        return max(begins_ns, self._carrying.not_before_ns)

    def _held_up_by(self) -> list[str]:
        """Return the workers that the next round waits for, as too many results wait at them to be applied.

        The first round of a model waits for all that fetch it: they are to begin together.
        """
        of = self._standings.of
        if self._began is not None and self._settled == self._began:
            return sorted(worker for worker, standing in of.items() if standing.fetches_from)
        behind = self._standings.behind(self.version, self._rule.most_waiting)
        return [worker for worker in behind if self._rule.waits_for_slow or of[worker].fetches_from]

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Begin the next round, if it is time, and tell everyone its part; give up one that is overdue."""
        if self._running is not None:
            overdue_ns = self._carrying.overdue_ns()
            if overdue_ns is None or now_ns < overdue_ns:
                return
            yield from self._carrying.give_up(now_ns)
        elif not self._is_formed:
            yield from self._form(now_ns)
        else:
            yield from self._seek_states(now_ns)
        due_ns = self.due_ns(now_ns)
        if due_ns is not None and due_ns <= now_ns and self._is_formed:
            yield from self._begin(now_ns)

    def _begin(self, now_ns: int) -> Iterator[Instruction]:
        heads = self._standings.offers()
        if len({(h.size_bytes, h.dtype, len(h.rates)) for h in heads.values()}) > 1:
            for head in heads.values():
                self._standings.of[head.reduce.worker].computes_from(self.version, now_ns)
                yield self._pass(head, Late.IS_DROPPED, difference_of(heads))
            return
        for worker in list(self._standings.behind(self.version, self._rule.most_waiting)):
            self._standings.of[worker].is_current, self._standings.of[worker].is_behind = False, True
        receivers = self._standings.receivers()
        shaped = self._carrying.shape(heads, (), receivers, now_ns)
        who = self._standings.who_is_in(now_ns)
        running = self._carrying.begin(shaped, heads, (), receivers, now_ns, self.version + 1, who)
        yield from map(running.told, running.parts) if running is not None else ()

    def arrived(self, event: RoundArrived, now_ns: int) -> Iterator[Instruction]:
        """Note that a worker has the result; settle the round if it was the last."""
        running = self._running
        if running is not None and running.id == event.round and event.worker in running.parts:
            running.measured[event.worker] = event.up_bps, event.down_bps
            yield from self._arrive(running, event.worker, now_ns)

    def _arrive(self, running: RunningRound, worker: str, now_ns: int) -> Iterator[Instruction]:
        running.arrived.add(worker)
        if len(running.arrived) == len(running.parts):
            yield from self._settle(now_ns)

    def _settle(self, now_ns: int) -> Iterator[Instruction]:
        running = self._carrying.settle(now_ns)
        self.version, self._settled = running.version, running.id
        self.done, self.workers = self.done + 1, len(running.members)
        self._since_full = self._since_full + 1 if running.receivers else 0
        reason = f"all {len(running.parts)} workers have it"
        for worker in running.parts:
            member = running.members.get(worker)
            settled = ReduceSettled(
                to=worker,
                reduce=None if member is None else member.reduce,
                round=running.id,
                workers=len(running.parts),
                reason=reason,
            )
            if member is not None:
                self._outcomes[member.reduce[:2]] = settled
                self._standings.of[worker].computes_from(self.version, now_ns)
            yield settled
        for worker, standing in self._standings.of.items():
            if worker not in running.parts and standing.has_state:
                standing.is_current = False  # it came back while the round was under way
        yield from self._seek_states(now_ns)
        for worker in list(self._standings.offers()):
            yield from self._judge(worker, now_ns)
        yield from self._carrying.probe(running, self._standings.offers())

    def broken(self, event: RoundBroken, now_ns: int) -> Iterator[Instruction]:
        """Void a round that one of its workers cannot do."""
        running = self._running
        if running is not None and running.id == event.round:
            self._carrying.broken(now_ns)
            yield from self._carrying.void(f"{event.worker}: {event.detail}")

    def probed(self, event: LinkProbed) -> None:
        """Take in what a probe has shown."""
        self._carrying.probed(event)
