"""The sums that an aggregator makes: who may send, who gets memory, what is offered onwards, and how a sum ends. Pure.

A sum gets its accumulator when the first of its inputs is offered. Memory goes by ``seq``: a sum waits for those of
lower ``seq``, and the lowest may exceed the budget, so that trees that cross at two aggregators cannot wait for each
other in a circle. An input is granted when its sum has memory and no running input has to end before it.

A sum is complete for its receiver only when it is sealed, and it is sealed only when all its inputs are. Until then it
can be torn: whatever has been added cannot be taken out again, so one input that breaks ends the sum. Who sent to it is
refused and asks the scheduler again; who was sent to sees the connection end without a seal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlfabric.aggregator.actions import (
    Abandon,
    Action,
    Answer,
    ForgetSum,
    GiveUp,
    Grant,
    InputUnusable,
    Offered,
    OfferSum,
    OutcomesReceived,
    PayloadReceived,
    Refuse,
    Report,
    ReserveSum,
    SealSum,
    TransferBroken,
    dismissed,
)
from mlfabric.aggregator.aggregator_memory import Memory
from mlfabric.aggregator.spent import Spent
from mlfabric.aggregator.sum_records import Incoming, RunningSum, Stage
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    Dropped,
    DropReason,
    Sum,
    SumId,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
)
from mlfabric.transfer.offers import UNCLAIMED_NS, WITH_OFFER_BYTES, Outcomes, TransferState
from mlfabric.transfer.precedence import take_out, waits_for

__all__ = ["Sums"]


class Sums:
    """Every sum of one aggregator; every door returns the actions that follow.

    Args:
        aggregator: the member's name.
        memory: shared with the models that are handed on.
        spent: where tickets go when their sum has ended.
    """

    def __init__(self, aggregator: str, memory: Memory, spent: Spent) -> None:
        self.sums: dict[SumId, RunningSum] = {}
        self.inputs: dict[TransferId, Incoming] = {}
        self._aggregator = aggregator
        self._memory = memory
        self._spent = spent

    def plan(self, plan: Sum, spec: ModelSpec | None, now_ns: int) -> Iterator[Action]:
        """Take a sum, or report it torn if it cannot be made; one that is known already stays as it is."""
        if plan.sum in self.sums:
            return
        flaw = self._flaw(plan, spec)
        if spec is None or flaw:
            yield self._report(plan, plan.sum, TransferEnd.TORN, detail=flaw)
            return
        self.sums[plan.sum] = RunningSum(plan=plan, spec=spec)
        for index, one in enumerate(plan.inputs):
            self.inputs[one.transfer] = Incoming(
                sum=plan.sum, index=index, plan=one, after=frozenset(one.after), since_ns=now_ns
            )

    def _flaw(self, plan: Sum, spec: ModelSpec | None) -> str:
        """Say why a sum cannot be made; "" if it can."""
        if spec is None:
            return f"model {plan.model!r} is not known here"
        transfers = [one.transfer for one in plan.inputs]
        if len(set(transfers)) < len(transfers):
            return "an input is named twice"
        if not all(math.isfinite(c) for one in plan.inputs for c in (one.first, one.second)):
            return "a coefficient of an input is no number"
        for one in plan.inputs:
            wanted = (plan.images if isinstance(one.transfer, SumId) else 1) * spec.layout.size_bytes
            if one.size_bytes != wanted:
                return f"{one.transfer} of {one.size_bytes} bytes cannot go into it; wanted {wanted}"
            if one.transfer in self.inputs:
                return f"{one.transfer} goes into {self.inputs[one.transfer].sum} already"
        return ""

    def cancel(self, which: SumId, reason: str) -> Iterator[Action]:
        """Give a sum up because the scheduler says so."""
        if which in self.sums:
            yield from self._give_up(self.sums[which], reason)

    def begin_term(self) -> Iterator[Action]:
        """Give up everything that an older scheduler planned."""
        for running in list(self.sums.values()):
            yield from self._give_up(running, "the scheduler began anew")

    # Inputs

    def offer(self, offered: Offered) -> Iterator[Action]:
        """Take an offer whose ticket fits; a second one of the same input takes the place of the first."""
        one = self.inputs[offered.transfer]
        if one.state is TransferState.RECEIVING:
            yield Refuse(connection=offered.connection, reason="it is being received on another connection")
            yield from self._tear(one, "offered anew while it was received")
            return
        if one.connection not in (None, offered.connection):
            yield Abandon(connection=one.connection)
        one.connection = offered.connection
        if one.state is not TransferState.RECEIVED:
            one.state = TransferState.OFFERED
            layout = self.sums[one.sum].spec.layout
            if (offered.digest, offered.length) != (layout.digest, one.plan.size_bytes):
                given = f"{offered.length} bytes with digest {offered.digest:#x} offered"
                wanted = f"wanted {one.plan.size_bytes} bytes, digest {layout.digest:#x}"
                yield from self._discard(one, DropReason.WRONG_LAYOUT, f"{given}; {wanted}")

    def sealed(self, event: PayloadReceived) -> Iterator[Action]:
        """Note that an input is complete; the last one completes the sum."""
        one = self._received_on(event)
        if one is None:
            return
        one.state = TransferState.RECEIVED
        running = self.sums[one.sum]
        yield self._report(running.plan, event.transfer, TransferEnd.RECEIVED)
        if all(self.inputs[i.transfer].state is TransferState.RECEIVED for i in running.plan.inputs):
            yield from self._complete(running)

    def _complete(self, running: RunningSum) -> Iterator[Action]:
        plan, whole = running.plan, self._travels_whole(running)
        if running.stage is Stage.SUMMING:
            yield OfferSum(plan=plan, spec=running.spec, whole=whole)
        running.stage = Stage.SEALING
        if not whole:
            yield SealSum(sum=plan.sum)

    @staticmethod
    def _travels_whole(running: RunningSum) -> bool:
        return running.size_bytes <= WITH_OFFER_BYTES

    def broken(self, event: TransferBroken) -> Iterator[Action]:
        """Note that an input's connection has gone; a sum that does not have all of it is torn."""
        one = self.inputs.get(event.transfer)
        if one is None or one.connection != event.connection:
            return
        one.connection = None
        if one.state is not TransferState.RECEIVED:
            yield from self._tear(one, event.detail)

    def unusable(self, event: InputUnusable) -> Iterator[Action]:
        """Drop an input that cannot be used, and tear its sum."""
        one = self._received_on(event)
        if one is not None:
            yield from self._discard(one, event.cause, event.detail)

    def _received_on(self, event: PayloadReceived | InputUnusable) -> Incoming | None:
        one = self.inputs.get(event.transfer)
        fits = one is not None and one.state is TransferState.RECEIVING and one.connection == event.connection
        return one if fits else None

    def _discard(self, one: Incoming, cause: DropReason, detail: str) -> Iterator[Action]:
        """Settle the update that is to blame, and tear the sum; a sum of others' is only torn."""
        transfer, connection = one.plan.transfer, one.connection
        if isinstance(transfer, UpdateId) and connection is not None:
            outcome = Dropped(cause=cause, detail=detail)
            yield Answer(connection=connection, outcomes=((transfer, outcome),))
            one.connection = None
            yield self._report(self.sums[one.sum].plan, transfer, TransferEnd.DISCARDED, cause, detail)
        yield from self._tear(one, detail)

    # The sum

    def left(self, which: SumId) -> Iterator[Action]:
        """Note that a sum has been sent and sealed."""
        running = self.sums.get(which)
        if running is not None:
            assert running.stage is Stage.SEALING, f"{which} was sealed while it {running.stage.value}"
            running.stage = Stage.SENT
            self._memory.give(which)
            yield ForgetSum(plan=running.plan, reason="its receiver has it")

    def settled(self, event: OutcomesReceived) -> Iterator[Action]:
        """Pass on what became of a sum's updates: to each input its own part."""
        running = self.sums.get(event.sum)
        if running is None:
            return
        if running.stage is not Stage.SENT:
            yield GiveUp(sum=event.sum, reason="it was settled before all of it was sent")
        known = tuple((update, outcome) for update, outcome in event.outcomes if update in running.plan.members)
        for planned in running.plan.inputs:
            one, part = self.inputs[planned.transfer], self._part_of(planned.transfer, known)
            if one.connection is not None and part and one.state is not TransferState.RECEIVING:
                yield Answer(connection=one.connection, outcomes=part)
                one.connection = None
        yield from self._take_out(running, "settled without this input")

    def _part_of(self, transfer: TransferId, known: Outcomes) -> Outcomes:
        """Return an input's part of the outcomes; of sums that were added nobody here knows the members."""
        if isinstance(transfer, SumId):
            return tuple((update, outcome) for update, outcome in known if update not in self.inputs)
        return tuple((update, outcome) for update, outcome in known if update == transfer)

    def failed(self, which: SumId, detail: str) -> Iterator[Action]:
        """Note that a sum's receiver does not take it."""
        running = self.sums.get(which)
        if running is not None:
            yield from self._give_up(running, f"{running.plan.receiver}: {detail}", TransferEnd.TORN)

    def _tear(self, one: Incoming, detail: str) -> Iterator[Action]:
        yield from self._give_up(self.sums[one.sum], f"{one.plan.transfer}: {detail}", TransferEnd.TORN)

    def _give_up(self, running: RunningSum, reason: str, end: TransferEnd | None = None) -> Iterator[Action]:
        """End a sum and whatever runs for it."""
        if running.stage is not Stage.WAITING:
            yield GiveUp(sum=running.plan.sum, reason=reason)
        yield from self._take_out(running, reason)
        if end is not None:
            yield self._report(running.plan, running.plan.sum, end, detail=reason)

    def _take_out(self, running: RunningSum, reason: str) -> Iterator[Action]:
        """Take a sum out of the tables; who sent to it and has no answer yet is refused."""
        del self.sums[running.plan.sum]
        self._memory.give(running.plan.sum)
        for planned in running.plan.inputs:
            one = self.inputs[planned.transfer]
            take_out(planned.transfer, self.inputs)
            self._spent.add(planned.ticket, reason)
            if one.connection is not None:
                yield dismissed(one.connection, reason, is_running=one.state is TransferState.RECEIVING)

    def _report(
        self, plan: Sum, transfer: TransferId, end: TransferEnd, cause: DropReason | None = None, detail: str = ""
    ) -> Report:
        return Report(
            event=TransferEnded(
                member=self._aggregator, model=plan.model, transfer=transfer, end=end, cause=cause, detail=detail
            )
        )

    # What follows from the state

    def advance(self) -> Iterator[Action]:
        """Give memory and grants to whoever may have them now."""
        in_order = sorted((s for s in self.sums.values() if s.stage is not Stage.SENT), key=lambda s: s.order)
        for index, running in enumerate(in_order):
            if running.stage is Stage.WAITING and self._is_offered(running):
                if not self._memory.take(running.plan.sum, running.size_bytes, is_first=index == 0):
                    break
                yield from self._start(running)
        yield from self._grant(in_order)

    def _is_offered(self, running: RunningSum) -> bool:
        return any(self.inputs[i.transfer].state is TransferState.OFFERED for i in running.plan.inputs)

    def _start(self, running: RunningSum) -> Iterator[Action]:
        yield ReserveSum(plan=running.plan, spec=running.spec)
        running.stage = Stage.SUMMING
        if running.plan.cut_through and not self._travels_whole(running):
            yield OfferSum(plan=running.plan, spec=running.spec, whole=False)
            running.stage = Stage.OFFERED

    def _grant(self, in_order: list[RunningSum]) -> Iterator[Action]:
        running = [t for t, one in self.inputs.items() if one.state is TransferState.RECEIVING]
        waiting: list[TransferId] = []
        started = [s for s in in_order if s.stage is not Stage.WAITING]
        for transfer in (i.transfer for s in started for i in s.plan.inputs):
            one = self.inputs[transfer]
            if one.state is not TransferState.OFFERED:
                continue
            if any(waits_for(transfer, other, self.inputs) for other in (*running, *waiting)):
                waiting.append(transfer)
                continue
            assert one.connection is not None, f"{transfer} is offered without connection"
            one.state = TransferState.RECEIVING
            running.append(transfer)
            yield Grant(sum=one.sum, index=one.index, transfer=transfer, connection=one.connection)

    def next_wakeup_ns(self) -> int | None:
        """Return when ``expire`` is due, or None."""
        return min((one.since_ns + UNCLAIMED_NS for one in self.inputs.values() if _may_expire(one)), default=None)

    def expire(self, now_ns: int) -> Iterator[Action]:
        """Tear sums with updates that nobody offers; another aggregator's sum takes as long as it takes."""
        for transfer in [t for t, one in self.inputs.items() if _may_expire(one)]:
            one = self.inputs.get(transfer)
            if one is not None and one.since_ns + UNCLAIMED_NS <= now_ns:
                yield from self._tear(one, "it was never offered")

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        named = {i.transfer: s for s, running in self.sums.items() for i in running.plan.inputs}
        assert named == {t: one.sum for t, one in self.inputs.items()}, "sums and inputs name each other differently"
        holding = {s for s, r in self.sums.items() if r.stage not in (Stage.WAITING, Stage.SENT)}
        assert holding == {s for s in self._memory.held if isinstance(s, SumId)}, "memory is held by other sums"
        for transfer, one in self.inputs.items():
            stage = self.sums[one.sum].stage
            offered = one.state in (TransferState.OFFERED, TransferState.RECEIVING)
            assert not offered or one.connection is not None, f"{transfer} {one.state} without connection"
            added = one.state in (TransferState.RECEIVING, TransferState.RECEIVED)
            assert not added or stage is not Stage.WAITING, f"{transfer} is added to a sum without memory"
            sealed = one.state is TransferState.RECEIVED
            assert sealed or stage not in (Stage.SEALING, Stage.SENT), f"{one.sum} is sealed without {transfer}"


def _may_expire(one: Incoming) -> bool:
    return one.state is TransferState.EXPECTED and isinstance(one.plan.transfer, UpdateId)
