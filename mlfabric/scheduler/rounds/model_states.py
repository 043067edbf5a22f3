"""Which version of a model is the newest, which workers have it, and how the others get it. Pure.

The model is with the workers alone. A worker that joins, or is too far behind, fetches model and optimizer state from a
peer. From then on the results of further rounds come to it, too. Where no worker has the newest version any more, the
model goes on with what one of them has; before that, workers that had it and fell silent are waited for.

A new scheduler learns from the workers which version is the newest, and who has it. It waits for a while until all have
spoken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    BeginState,
    FetchState,
    GiveState,
    Instruction,
    PassReduce,
    Peer,
    ReduceRequested,
    ReduceSettled,
    RoundId,
    RoundsHeld,
    StateArrived,
    StateBroken,
)
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.rounds.round_carrier import RoundCarrier
from mlfabric.scheduler.rounds.standings import Standing, Standings

__all__ = ["ModelStates"]


class ModelStates:
    """The states of one model.

    Args:
        context: gives addresses and tickets.
        spec: of the model. In gossip a worker's own model is as good as any: it needs no other one, whichever version
            it has seen.
        carrier: has the round that is under way.
        drop: drops the gradient of a worker that fetches the model; is given the reason.

    Attributes:
        standings: of all workers that are here.
        version: how many rounds were settled.
        settled: the last of them, or what stands for the model's beginning.
        is_formed: whether it is known which version is the newest.
    """

    def __init__(
        self,
        context: Context,
        spec: ModelSpec,
        carrier: RoundCarrier,
        drop: Callable[[ReduceRequested, str], PassReduce],
    ) -> None:
        self.standings = Standings()
        self.version = 0
        self.settled: RoundId | None = None
        self.is_formed = False
        self._context, self._model, self._carrier, self._drop = context, spec.name, carrier, drop
        self._keeps_own = spec.method.is_gossip
        self._found: set[RoundId] = set()
        """Rounds that were settled under another scheduler; not all of their workers may know that."""
        self._began: RoundId | None = None
        self._held: dict[str, RoundsHeld] = {}
        self._may_return: dict[str, int] = {}
        """Until when workers may come back that had the model and fell silent."""
        self._forms_ns: int | None = None

    @property
    def nobody_has_it(self) -> bool:
        """Whether workers are here, and none of them has the newest version."""
        of = self.standings.of
        return bool(of) and not any(standing.has_state for standing in of.values())

    @property
    def waits_for(self) -> str:
        """What the model waits for before rounds can be made, in words; "" for nothing."""
        if not self.is_formed:
            return "more workers"
        if self.nobody_has_it:
            return ", ".join(sorted(self._may_return)) or "a worker that has the model"
        return ", ".join(self._beginners())

    def _beginners(self) -> list[str]:
        """Return who fetches a model that no round was made of: all begin together.

        Whoever fetches what the first round was to make gets that from a later attempt.
        """
        began, of = self._began, self.standings.of
        is_new = began is not None and self.settled == began
        return sorted(worker for worker, one in of.items() if is_new and one.fetches_from and one.fetches == began)

    def due_ns(self) -> int | None:
        """Return when to go on though something is waited for; None to wait on, as for workers that begin together."""
        if self.is_formed:
            return min(self._may_return.values(), default=None)
        has_begun = any(held.settled is not None for held in self._held.values())
        return self._forms_ns if has_begun else None

    def knows(self, round_id: RoundId | None) -> bool:
        """Tell whether a round is known to be settled, though its workers may not know it."""
        return round_id is not None and (round_id == self.settled or round_id in self._found)

    def holds(self, worker: str, held: RoundsHeld, now_ns: int) -> Iterator[Instruction]:
        """Take in what a worker says that joins or comes back."""
        self._may_return.pop(worker, None)
        self.standings.of[worker] = Standing(applied=held.applied, since_ns=now_ns)
        if self.is_formed:
            yield from self._place(worker, held)
            yield from self.seek(now_ns)
            return
        self._held[worker] = held
        self._forms_ns = self._forms_ns or now_ns + self._context.config.silence_ns
        if self._count() >= max(each.together for each in self._held.values()):
            yield from self.form(now_ns)

    def _count(self) -> int:
        """Return how many are here of those that make rounds: who has no model knows nothing of the last ones."""
        held = self._held.values()
        has_begun = any(each.settled is not None for each in held)
        return sum(each.has_state for each in held) if has_begun else len(held)

    def form(self, now_ns: int) -> Iterator[Instruction]:
        """Begin with the newest version that anybody has."""
        self.is_formed = True
        having = [held for held in self._held.values() if held.has_state]
        if having:
            newest = max(having, key=lambda held: (held.version, held.settled or RoundId(0, 0)))
            self.version, self.settled = newest.version, newest.settled
            current = [h for h in having if (h.version, h.settled) == (newest.version, newest.settled)]
            arrived = {held.arrived for held in current}
            last = arrived.pop() if len(arrived) == 1 else None
            if last is not None and last.term != self._context.config.term.number:
                # All have this result, so another scheduler may have settled it, and have told some so.
                self.version, self.settled = newest.version + 1, last
        for held in having:
            self._find(held.known, self.settled)
        for worker, held in sorted(self._held.items()):
            yield from self._place(worker, held)
        self._held.clear()
        yield from self.seek(now_ns)

    def _find(self, known: tuple[RoundId, ...], settled: RoundId | None) -> None:
        self._found.update(known)
        if settled is not None:
            self._found.add(settled)

    def _place(self, worker: str, held: RoundsHeld) -> Iterator[Instruction]:
        """Say whether a worker has the newest version; tell it if its last round was settled meanwhile.

        Whoever comes with a newer version than is known here comes late to a new scheduler: it is right.
        """
        of = self.standings.of
        if held.has_state and held.version > self.version:
            if self._carrier.running is not None:
                yield from self._carrier.void(f"{worker} has version {held.version}")
            self.version, self.settled = held.version, held.settled
            self._find(held.known, held.settled)
            for other in of.values():
                other.is_current = other.has_state and self._keeps_own
        standing, lacks = of[worker], self.version - held.version
        is_newest = lacks == 0 and held.settled == self.settled
        if lacks > 0 and held.arrived is not None and self.knows(held.arrived):
            is_newest = lacks == 1 and held.arrived == self.settled
            if standing.offer is not None and standing.offer.arrived == held.arrived:
                standing.offer = None  # it is in that round
            reason = "everybody had it under another scheduler"
            yield ReduceSettled(to=worker, reduce=None, round=held.arrived, workers=len(of), reason=reason)
        standing.is_current = held.has_state and (is_newest or self._keeps_own)

    def seek(self, now_ns: int) -> Iterator[Instruction]:
        """Let everybody that lacks the model fetch it; where nobody has it, it goes on with what one of them has.

        A worker that is behind computes, and fetches the model when it is through with that.
        """
        of = self.standings.of
        if not self.is_formed:
            return
        if self.nobody_has_it:
            self._may_return = {worker: until for worker, until in self._may_return.items() if until > now_ns}
            if self._may_return:
                return
            yield self._begin(min(of, key=lambda worker: (-of[worker].applied, worker)))
        for worker, standing in sorted(of.items()):
            if not standing.is_current and not standing.is_behind:
                yield from self._fetch(worker, standing)

    def _begin(self, first: str) -> BeginState:
        standing = self.standings.of[first]
        # Others may have seen the newest version, and what goes on is not that one: its number must be another one.
        self.version = standing.applied = max(self.version, standing.applied) + (self.settled is not None)
        standing.is_current, standing.is_behind, standing.fetches_from = True, False, ""
        began = self._began = self.settled = self._carrier.take_id()
        reason = f"no other worker has version {self.version}"
        return BeginState(to=first, model=self._model, round=began, version=self.version, reason=reason)

    def _fetch(self, worker: str, standing: Standing) -> Iterator[Instruction]:
        """Have a worker fetch the state of the version that the running round makes, or the newest one."""
        peer, running = self.standings.peer_for(worker), self._carrier.running
        if peer is None:
            return
        version, settled = (self.version, self.settled) if running is None else (running.version, running.id)
        assert settled is not None, "a model that a peer has has begun"
        offer = standing.offer
        standing.is_current, standing.fetches_from, standing.fetches = True, peer, settled
        standing.applied, standing.offer = version, None
        name, ticket = self._model, self._context.tickets.next()
        reason = f"{worker} lacks version {version} of {name}"
        taker, giver = Peer(worker, "", ticket), Peer(peer, self._context.address(peer), ticket)
        yield GiveState(to=peer, model=name, peer=taker, version=version, reason=reason)
        yield FetchState(to=worker, model=name, peer=giver, version=version, round=settled, reason=reason)
        if offer is not None:
            yield self._drop(offer, reason)

    def fetched(self, event: StateArrived, now_ns: int) -> None:
        """Count a worker in again that has fetched the model."""
        standing = self.standings.of.get(event.worker)
        if standing is not None and standing.fetches_from and standing.fetches == event.round:
            standing.fetches_from = ""
            standing.computes_from(event.version, now_ns)

    def not_fetched(self, event: StateBroken, now_ns: int) -> Iterator[Instruction]:
        """Have a worker fetch the model from another peer."""
        standing = self.standings.of.get(event.worker)
        if standing is not None and standing.fetches_from and standing.fetches == event.round:
            standing.is_current = False
            yield from self.seek(now_ns)

    def gone(self, record: MemberRecord) -> Iterator[Instruction]:
        """Go on without a worker; it may come back if it fell silent."""
        worker = record.member.name
        self._held.pop(worker, None)
        gone = self.standings.of.pop(worker, None)
        if record.state is MemberState.LEFT:
            self._may_return.pop(worker, None)
        elif gone is not None and gone.has_state:
            self._may_return[worker] = record.since_ns + self._context.config.silence_ns
        self.standings.gives_no_more(worker)
        yield from self.seek(record.since_ns)

    def settle(self, version: int, round_id: RoundId, reached: frozenset[str], now_ns: int) -> Iterator[Instruction]:
        """Note that a round has made a version, and which workers its result has reached."""
        self.version, self.settled = version, round_id
        for worker, standing in self.standings.of.items():
            if worker not in reached and standing.has_state and not self._keeps_own:
                standing.is_current = False  # it came back while the round was under way
        yield from self.seek(now_ns)
