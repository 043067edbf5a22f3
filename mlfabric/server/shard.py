"""A part of a model on one of several servers: it commits nothing by itself. Pure.

It receives like any model, then waits for the scheduler's orders: *prepare* a unit of work once every part of the model
has it, *conclude* it once every part is prepared, *serve* exactly this version. Complete transfers are kept, whatever
becomes of the scheduler, until it says what becomes of them; a refusal changes nothing (design, section 5, "Several
servers").
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from mlfabric.protocol import (
    Conclude,
    Drop,
    DropReason,
    GetId,
    ModelVersion,
    Prepare,
    Prepared,
    Serve,
    ServerHolds,
    SumId,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.server.actions import (
    Action,
    CommitStep,
    DiscardStep,
    PrepareRefused,
    PrepareStep,
    Report,
    StepDone,
)
from mlfabric.server.expected_transfers import Place
from mlfabric.server.gate import refusals_of, step_of
from mlfabric.server.hosted import HostedModel, ServerConfig
from mlfabric.server.orders import Fate, Orders, Phase, Unit
from mlfabric.transfer.offers import GetState, TransferState

__all__ = ["ShardModel"]

Effect = Generator[Action, None, bool]
"""The actions that an order leads to now, and whether it has taken effect or never will."""


class ShardModel(HostedModel):
    """The state of one part of a model; every door returns the actions that follow."""

    def __init__(self, config: ServerConfig, start: ServerHolds) -> None:
        super().__init__(config, start)
        self.orders = Orders()
        self._is_stopping = False
        self._drops: list[Drop] = []

    # Orders

    def prepare(self, order: Prepare) -> Iterator[Action]:
        """Take a unit in; one that was prepared before is said to be once more."""
        known = self.orders.open_unit(order.unit)
        if known is None:
            self.orders.add_unit(order)
        elif known.phase is Phase.PREPARED:
            yield self._accepted(known)

    def conclude(self, order: Conclude) -> None:
        """Note what is to become of a unit; one that was refused or forgotten is not here any more."""
        known = self.orders.open_unit(order.unit)
        if known is not None:
            known.fate = Fate.COMMIT if order.commit else Fate.DISCARD

    def serve(self, plan: Serve, now_ns: int) -> Iterator[Action]:
        """Take a get in; its version is pinned when its turn comes."""
        yield from self.gets.serve(plan, now_ns)
        if plan.version is not None and self.gets.pinned_for(plan.get) is None:
            self.orders.add_get(plan.get)

    def admitted(self) -> Iterator[Action]:
        """Forget orders that are not concluded: nobody knows which of them were lost on their way."""
        self._drops.clear()
        for get in self.orders.forget_open():
            yield from self.gets.cancel(get, "the scheduler was away")

    def drop(self, order: Drop) -> Iterator[Action]:
        """Drop an update that is here, once it is part of no step any more."""
        holder = self._holder(order.update)
        if holder is not None and holder.state is TransferState.APPLYING:
            self._drops.append(order)
        else:
            yield from super().drop(order)

    def stop(self) -> None:
        """Begin no unit any more."""
        self._is_stopping = True

    @property
    def is_settled(self) -> bool:
        """Nothing is prepared, or about to be."""
        return self.orders.running is None

    @property
    def lacks_copy(self) -> bool:
        """A get, or its order, waits because all copies of the weights are being sent."""
        return super().lacks_copy or isinstance(self.orders.head, GetId)

    # What the store did

    def prepared(self) -> Iterator[Action]:
        """Note that the first pass of the head is made."""
        unit = self._running()
        unit.phase = Phase.PREPARED
        if unit.fate is not Fate.DISCARD:
            yield self._accepted(unit)

    def prepare_refused(self, refused: PrepareRefused) -> Iterator[Action]:
        """Note that the step of the head is not finite."""
        unit = self._running()
        guilty = [m.update for t in refused.culprits for m in self.incoming.transfers[t].members]
        self._let_go()
        if unit.fate is not Fate.DISCARD:
            yield self._refused(unit.order, refused.detail, guilty, DropReason.NOT_FINITE)

    def discarded(self) -> None:
        """Note that the head was thrown away: its transfers are as they were."""
        self._let_go()

    def stepped(self, done: StepDone) -> Iterator[Action]:
        """Note that the head is committed."""
        self._running()
        self.orders.pop()
        yield from super().stepped(done)

    def _running(self) -> Unit:
        unit = self.orders.running
        assert unit is not None, f"{self.spec.name}: the store has ended a step that nobody ordered"
        return unit

    def _let_go(self) -> None:
        for transfer in self.incoming.applying():
            transfer.state = TransferState.RECEIVED
        self.orders.pop()

    # What follows from the state

    def advance(self, now_ns: int) -> Iterator[Action]:
        """Carry out the orders whose turn it is; then grant and serve."""
        drops, self._drops = self._drops, []
        for order in drops:
            yield from self.drop(order)
        while (head := self.orders.head) is not None:
            effect = self._pin(head) if isinstance(head, GetId) else self._go_on(head)
            if not (yield from effect):
                break
            self.orders.pop()
        yield from super().advance(now_ns)

    def _pin(self, get: GetId) -> Effect:
        known = self.gets.gets.get(get)
        if known is None or known.plan.version is None or known.state is GetState.SERVING:
            return True
        asked = known.plan.version
        self._adopt(asked.epoch, asked.number)
        if not self.initialised or asked != self.version:
            yield from self.gets.give_up(get, f"it asks for {asked}; {self.spec.name} is at {self.version}")
            return True
        if not self.gets.may_pin(asked):
            return False
        yield from self.gets.pin(get, asked)
        return True

    def _go_on(self, unit: Unit) -> Effect:
        order = unit.order
        match unit.phase, unit.fate:
            case Phase.WAITING, Fate.DISCARD:
                return True
            case Phase.WAITING, _ if not self._is_stopping:
                return (yield from self._begin(unit))
            case Phase.PREPARED, Fate.COMMIT:
                unit.phase = Phase.ENDING
                transfers = tuple(t.transfer for t in self._named(order.transfers))
                yield CommitStep(model=order.model, unit=order.unit, transfers=transfers, version=order.version)
            case Phase.PREPARED, Fate.DISCARD:
                unit.phase = Phase.ENDING
                yield DiscardStep(model=order.model, unit=order.unit)
        return False

    def _begin(self, unit: Unit) -> Effect:
        """Prepare a unit, unless it is refused or has to wait for the replica."""
        order, place = unit.order, self._named(unit.order.transfers)
        if (refusal := self._refusal(order, place)) is not None:
            yield refusal
            return True
        if (yield from self._waits_for_replica(place)):
            return False
        step = step_of(place, self._present_gate(), self.spec)
        unit.phase = Phase.PREPARING
        for transfer in place:
            transfer.state = TransferState.APPLYING
        yield PrepareStep(
            model=step.model,
            unit=order.unit,
            transfers=step.transfers,
            kind=step.kind,
            lrs=step.lrs,
            version=step.version,
        )
        return False

    def _named(self, names: Iterable[TransferId]) -> Place:
        """Return the transfers that are meant, each once; an update that came in a sum stands for that."""
        holders = (name if isinstance(name, SumId) else self.incoming.transfer_of.get(name) for name in names)
        return [self.incoming.transfers[h] for h in dict.fromkeys(holders) if h in self.incoming.transfers]

    def _refusal(self, order: Prepare, place: Place) -> Report | None:
        """Refuse a unit that cannot be prepared, or must not; else return None."""
        if flaw := self._flaw(order, place):
            return self._refused(order, flaw)
        made = 1 if self._synchronous else sum(len(t.members) for t in place)
        self._adopt(order.version.epoch, order.version.number - made)
        gate = self._present_gate()
        guilty = [found for t in place for found in refusals_of(t, gate, self.applied)]
        if guilty:
            first = guilty[0][1]
            return self._refused(order, first.detail, [u for u, why in guilty if why.cause is first.cause], first.cause)
        version = step_of(place, gate, self.spec).version
        if version != order.version:
            return self._refused(order, f"it would make {version}; ordered was {order.version}")
        return None

    def _flaw(self, order: Prepare, place: Place) -> str:
        """Say why an order cannot be carried out whatever the updates are; "" if it can."""
        here = [t for t in place if t.state is TransferState.RECEIVED and t.kind is UpdateKind.GRADIENT]
        names = {name for t in here for name in (t.transfer, *(m.update for m in t.members))}
        if missing := [str(name) for name in order.transfers if name not in names]:
            return f"not complete here: {', '.join(missing)}"
        if not place or (len(place) > 1 and not self._synchronous):
            return f"{len(place)} transfers; allowed: one, or those of a synchronous iteration"
        for transfer in here:
            more = [str(m.update) for m in transfer.members if m.update not in order.transfers]
            if transfer.transfer not in order.transfers and more:
                return f"{transfer.transfer} has {', '.join(more)} in it, too"
        return ""

    def _adopt(self, epoch: int, number: int) -> None:
        """Take over the server epoch that counts for all parts, if it is later; at this version nothing is lost."""
        if epoch > self.version.epoch and number == self.version.number:
            self._begin_epoch_at(ModelVersion(epoch, number))

    def _advance_sequence(self) -> Iterator[Action]:
        """Take initial weights, which need no order; whatever else is here waits for one."""
        for place in self.incoming.places():
            if place[0].kind is not UpdateKind.INITIAL:
                return
            if place[0].is_complete:
                yield from self._initialise(place)

    def _initialise(self, place: Place) -> Iterator[Action]:
        if (taken := self._gate(place[0])) is not None:
            yield from self._turn_away(place[0], taken)
        elif not self.incoming.applying():
            yield self._apply(place)

    def _keepable(self) -> set[TransferId]:
        return {t.transfer for t in self._here()}

    def _here(self) -> Place:
        """Return what is complete: only that can be ordered, and is kept until it is."""
        return [t for t in self.incoming.transfers.values() if t.is_complete]

    # Words for the scheduler

    def _accepted(self, unit: Unit) -> Report:
        event = Prepared(server=self._server, model=self.spec.name, unit=unit.order.unit, accepted=True)
        return Report(event=event)

    def _refused(
        self, order: Prepare, detail: str, culprits: Iterable[UpdateId] = (), cause: DropReason | None = None
    ) -> Report:
        event = Prepared(
            server=self._server,
            model=self.spec.name,
            unit=order.unit,
            accepted=False,
            culprits=tuple(culprits),
            cause=cause,
            detail=detail,
        )
        return Report(event=event)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        super().validate()
        running = self.orders.running
        applying = [t for t in self.incoming.applying() if t.kind is not UpdateKind.INITIAL]
        named = self._named(running.order.transfers) if running is not None else []
        assert {t.transfer for t in applying} == {t.transfer for t in named}, (
            f"{self.spec.name}: {applying} are held for {running}"
        )
        later = [o for o in list(self.orders)[1:] if isinstance(o, Unit) and o.phase is not Phase.WAITING]
        assert not later, f"{self.spec.name}: {later} before their turn"
