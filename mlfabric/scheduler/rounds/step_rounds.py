"""The rounds of one model that workers apply by themselves: whoever is in the next one, and what follows. Pure.

There is no server. Every worker has model and optimizer, and applies the settled rounds in their order, so all have the
same bits. A round's *members* contribute a gradient; all other workers that have the newest model are *receivers*: the
result comes to them while they compute. Once all of them have it the round is *settled* and makes the next version;
nobody applies a round that is not. Whoever breaks off earlier makes it void, and it is planned anew without that one.

In gossip each member contributes its own model, and gets its own sum; receivers only hear that there is a new version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlfabric.methods import Late, round_rule_of
from mlfabric.methods.all_reduce import Shaped
from mlfabric.methods.gossip import Groups, Neighbours, shape_gossip
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    Instruction,
    LinkProbed,
    PassReduce,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundKept,
    RoundsHeld,
    RoundSlow,
    StateArrived,
    StateBroken,
    StepsTimed,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberRecord
from mlfabric.scheduler.rounds.model_states import ModelStates
from mlfabric.scheduler.rounds.probe_plans import ProbeCount
from mlfabric.scheduler.rounds.round_carrier import RoundCarrier
from mlfabric.scheduler.rounds.running_round import RunningRound, difference_of
from mlfabric.scheduler.rounds.thresholds import Thresholds

__all__ = ["StepRounds"]

_DROPPED = {
    Late.IS_DROPPED: "no further round could take it",
    Late.IS_REPLACED: "a round was made without it, and there was time for a new one",
}


class StepRounds:
    """The rounds of one model.

    Attributes:
        done: how many were settled under this scheduler.
        workers: how many contributed to the last one.
        waits_for: what the next one waits for, in words.
        thresholds: from when on workers begin no more micro-batches.
        passed, dropped: how many gradients were kept for their workers' next ones, and how many were dropped.
        delays: by how many rounds gradients were late, how many of them were in a round.
    """

    def __init__(self, context: Context, spec: ModelSpec) -> None:
        self.spec = spec
        self.done = self.workers = self.passed = self.dropped = 0
        self.waits_for = ""
        self.delays = Counter[int]()
        self.thresholds = Thresholds(spec.name)
        self._context = context
        self._rule = round_rule_of(spec)
        self._neighbours = Neighbours(spec) if spec.method.is_gossip else None
        reads_links = self._neighbours is not None and self._neighbours.reads_links
        self._carrier = RoundCarrier(context, spec.name, probes_first=reads_links)
        self._states = ModelStates(context, spec, self._carrier, self._drop)
        self._standings = self._states.standings
        self._since_full = 0
        self._outcomes: dict[tuple[str, int], ReduceSettled | PassReduce] = {}

    @property
    def version(self) -> int:
        """How many rounds were settled."""
        return self._states.version

    @property
    def delay_bound(self) -> int | None:
        """How many rounds late a gradient is at the most that is in one; None for no bound."""
        return self._rule.delay_bound

    @property
    def how(self) -> str:
        """How the last round that began was planned."""
        return self._carrier.how

    @property
    def waiting(self) -> int:
        """How many gradients no running round holds."""
        return len(self._standings.offers()) - (0 if self._running is None else len(self._running.members))

    @property
    def waits_for_workers(self) -> bool:
        """Whether the next round waits for workers, not for a way to plan it."""
        return self.waits_for not in ("", self._carrier.no_way)

    @property
    def running(self) -> int:
        """How many workers the running round has; 0 if there is none."""
        return 0 if self._running is None else len(self._running.parts)

    @property
    def probes(self) -> ProbeCount:
        """What became of the probes between rounds."""
        return self._carrier.probes

    @property
    def _running(self) -> RunningRound | None:
        return self._carrier.running

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
            may_offer = standing.has_state or not self._states.is_formed
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
        self._forget(worker)
        self._carrier.doubt()
        yield from self._states.holds(worker, held, now_ns)
        yield from self._judge_all(now_ns)

    def _forget(self, worker: str) -> None:
        """Forget the outcomes of earlier processes of a worker's name, and of workers that nobody knows any more."""
        members = self._context.members
        gone = [
            (name, incarnation)
            for name, incarnation in self._outcomes
            if name not in members or (name == worker and members[name].member.incarnation != incarnation)
        ]
        for key in gone:
            del self._outcomes[key]

    def state_arrived(self, event: StateArrived, now_ns: int) -> None:
        """Count a worker in again that has fetched the model."""
        self._states.fetched(event, now_ns)

    def state_broken(self, event: StateBroken, now_ns: int) -> Iterator[Instruction]:
        """Have a worker fetch the model from another peer."""
        yield from self._states.not_fetched(event, now_ns)
        yield from self._judge_all(now_ns)

    def worker_gone(self, record: MemberRecord, reason: str) -> Iterator[Instruction]:
        """Go on without a worker."""
        if self.is_reducing(record.member.name):
            yield from self._carrier.lost(reason, record.since_ns)
        yield from self._states.gone(record)
        yield from self._judge_all(record.since_ns)

    # Gradients

    def request(self, event: ReduceRequested, now_ns: int) -> Iterator[Instruction]:
        """Take a gradient, or say again what became of it."""
        worker, running = event.reduce.worker, self._running
        standing, outcome = self._standings.of.get(worker), self._outcomes.get(event.reduce[:2])
        if outcome is not None and outcome.reduce == event.reduce:
            yield outcome
        elif standing is None or self._states.knows(event.arrived):
            return  # its last round has just been settled for it
        elif event.withdrawn:
            yield from self._withdraw(event)
        elif running is not None and (member := running.members.get(worker)) and member.reduce == event.reduce:
            if event.arrived == running.id:
                yield from self._arrive(running, worker, now_ns)
            else:
                yield running.told(worker)
        elif self._states.is_formed and not standing.has_state:
            standing.is_behind = False
            yield from self._states.seek(now_ns)
            yield self._drop(event, f"it was computed from version {event.computed_from}; too old")
        else:
            self._carrier.rhythm.asked(worker, now_ns)
            self._standings.offered(standing, event, now_ns)
            yield from self._judge(worker, now_ns)

    def _withdraw(self, event: ReduceRequested) -> Iterator[Instruction]:
        """Make the running round without a gradient that will not be whole; its worker may offer it again."""
        worker, running = event.reduce.worker, self._running
        member = None if running is None else running.members.get(worker)
        if member is not None and member.reduce == event.reduce:
            yield from self._carrier.void(f"{worker}: {event.withdrawn}")
        self._standings.of[worker].offer = None
        passed = PassReduce(to=worker, reduce=event.reduce, keep=False, reason=event.withdrawn)
        self._outcomes[event.reduce[:2]] = passed
        yield passed

    def _judge(self, worker: str, now_ns: int, *, all_begin: bool = False) -> Iterator[Instruction]:
        """Say what becomes of a gradient that is in no round, now that the model is at this version.

        With ``all_begin`` all workers begin to compute at this moment, but those whose gradients backward still makes.
        """
        standing = self._standings.of[worker]
        offer = standing.offer
        if offer is None or not self._states.is_formed:
            return
        delay = self.version - offer.computed_from
        can_renew = all_begin and not (standing.was_late or offer.grows)
        late = self._rule.late(delay, offer.updates, can_renew=can_renew)
        reason = "a round was made without it" if delay == 1 else f"{delay} rounds were made without it"
        if late is Late.IS_REPLACED:
            reason = f"{reason}, and there is time for a new one"
        is_outside = self._running is not None and worker not in self._running.members
        if late is Late.JOINS and is_outside and self._rule.late(delay + 1, offer.updates) is Late.IS_KEPT:
            late, reason = Late.IS_KEPT, "a round is being made without it"
        if late is not Late.JOINS:
            standing.computes_from(self.version, now_ns, was_late=True)
            yield self._pass(offer, late, reason)

    def _judge_all(self, now_ns: int, *, all_begin: bool = False) -> Iterator[Instruction]:
        """Say what becomes of all gradients that are in no round: the model may be at another version now."""
        for worker in list(self._standings.offers()):
            yield from self._judge(worker, now_ns, all_begin=all_begin)

    def _drop(self, offer: ReduceRequested, reason: str) -> PassReduce:
        return self._pass(offer, Late.IS_DROPPED, reason)

    def _pass(self, offer: ReduceRequested, late: Late, reason: str) -> PassReduce:
        is_kept = late is Late.IS_KEPT
        if not is_kept:
            self._context.members[offer.reduce.worker].tally.drop(_DROPPED[late], offer.updates)
        self.passed, self.dropped = self.passed + is_kept, self.dropped + (not is_kept)
        passed = PassReduce(to=offer.reduce.worker, reduce=offer.reduce, keep=is_kept, reason=reason)
        self._outcomes[offer.reduce[:2]] = passed
        return passed

    # Rounds

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next round can be planned, None if it waits for something else to happen."""
        if self._running is not None:
            self.waits_for = ""
            return self._carrier.overdue_ns()
        if waits_for := self._states.waits_for:
            self.waits_for = waits_for
            return self._states.due_ns()
        settled_ns, round_ns = self._carrier.settled_ns, self._carrier.usual_ns
        who = self._standings.readiness(self.version + 1, self._since_full, settled_ns, round_ns)
        slow = self._held_up_by()
        begins_ns = None if slow or not who.ready_ns else self._rule.begins_ns(who, now_ns)
        if begins_ns is None:
            self.waits_for = ", ".join(slow or sorted(who.computing_ns)) if who.ready_ns else ""
            return None
        self.waits_for = self._carrier.no_way
        return max(begins_ns, self._carrier.not_before_ns)

    def _held_up_by(self) -> list[str]:
        """Return whom the next round waits for: too many results wait at them."""
        of = self._standings.of
        behind = self._standings.behind(self.version, self._rule.most_waiting)
        return [worker for worker in behind if self._rule.waits_for_slow or of[worker].fetches_from]

    def plan(self, now_ns: int) -> Iterator[Instruction]:
        """Begin the next round, if it is time, and tell everyone its part; give up one that is overdue."""
        if self._running is not None:
            overdue_ns = self._carrier.overdue_ns()
            if overdue_ns is None or now_ns < overdue_ns:
                return
            yield from self._carrier.give_up(now_ns)
        elif not self._states.is_formed:
            yield from self._states.form(now_ns)
            yield from self._judge_all(now_ns)
        else:
            yield from self._states.seek(now_ns)
        due_ns = self.due_ns(now_ns)
        if due_ns is not None and due_ns <= now_ns and not self._states.waits_for:
            yield from self._begin(now_ns)

    def _begin(self, now_ns: int) -> Iterator[Instruction]:
        heads = self._standings.heads()
        if len({(h.size_bytes, h.dtype, len(h.rates)) for h in heads.values()}) > 1:
            for head in heads.values():
                self._standings.of[head.reduce.worker].computes_from(self.version, now_ns)
                yield self._drop(head, difference_of(heads))
            return
        for worker in list(self._standings.behind(self.version, self._rule.most_waiting)):
            self._standings.of[worker].is_current, self._standings.of[worker].is_behind = False, True
        size_bytes, everybody = next(iter(heads.values())).size_bytes, [*heads, *self._standings.receivers(heads)]
        heads = self._carrier.go_on(heads, everybody)
        if probes := list(self._carrier.probe_first(size_bytes, everybody, now_ns)):
            yield from probes
            return
        groups = self._groups(heads, now_ns)
        receivers = self._standings.receivers(heads)
        shaped = shape_gossip(groups, size_bytes) if groups else self._shape(heads, receivers, now_ns)
        who = self._standings.who_is_in(heads, now_ns)
        running = self._carrier.begin(shaped, heads, (), receivers, now_ns, self.version + 1, who)
        yield from map(running.told, running.parts) if running is not None else ()

    def _shape(self, heads: dict[str, ReduceRequested], receivers: Sequence[str], now_ns: int) -> Shaped | str:
        """Plan a round in which all members get the same sum."""
        if self._neighbours is None:
            return self._carrier.shape(heads, (), receivers, now_ns)
        shaped = self._carrier.shape(heads, (), (), now_ns)
        return shaped if isinstance(shaped, str) else replace(shaped, summed=dict.fromkeys(heads, len(heads)))

    def _groups(self, heads: dict[str, ReduceRequested], now_ns: int) -> Groups | None:
        """Return who averages with whom; None if all get the same sum.

        Who is left over where pairs are made is taken out of the round.
        """
        if self._neighbours is None or all(head.for_all for head in heads.values()):
            return None
        links = self._carrier.links(heads, now_ns) if self._neighbours.reads_links else {}
        groups = self._neighbours.groups(list(heads), self.version + 1, links)
        if groups is None:
            return None
        for worker, group in groups.of.items():
            if len(group) == 1:
                del heads[worker]
        return groups._replace(of={worker: group for worker, group in groups.of.items() if worker in heads})

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
        running = self._carrier.settle(now_ns)
        version, reached = running.version, frozenset(running.parts)
        self.done, self.workers = self.done + 1, len(running.members)
        self._since_full = self._since_full + 1 if running.receivers else 0
        reason = f"all {len(reached)} workers have it"
        for worker in running.parts:
            member = running.members.get(worker)
            reduce = None if member is None else member.reduce
            settled = ReduceSettled(to=worker, reduce=reduce, round=running.id, workers=len(reached), reason=reason)
            if member is not None:
                self._outcomes[member.reduce[:2]] = settled
                delay = max(0, version - 1 - member.computed_from)
                self._standings.of[worker].computes_from(version, now_ns, was_late=delay > 0)
                self._context.members[worker].tally.commit(member.updates)
                self.delays[delay] += 1
            yield settled
        yield from self._states.settle(version, running.id, reached, now_ns)
        yield from self._judge_all(now_ns, all_begin=True)
        yield from self._carrier.probe(running, running.parts, now_ns)

    def broken(self, event: RoundBroken, now_ns: int) -> Iterator[Instruction]:
        """Void a round that one of its workers cannot do."""
        running = self._running
        if running is not None and running.id == event.round:
            self._carrier.broken(now_ns)
            yield from self._carrier.void(f"{event.worker}: {event.detail}")

    def slow(self, event: RoundSlow, now_ns: int) -> Iterator[Instruction]:
        """Begin the round anew if that pays, as links have become slow."""
        running = self._running
        if running is not None and running.id == event.round and event.worker in running.parts:
            yield from self._carrier.slow(event, now_ns)

    def kept(self, event: RoundKept) -> None:
        """Take in what a worker has of the result of a void round."""
        self._carrier.kept(event)

    def timed(self, event: StepsTimed) -> Iterator[Instruction]:
        """Take in what a worker's steps take; tell all workers a threshold once they have said it."""
        yield from self.thresholds.timed(event, self._standings.of.keys())

    def probed(self, event: LinkProbed) -> None:
        """Take in what a probe has shown."""
        self._carrier.probed(event)
