"""The aggregator's state machine: sums, models that are handed on, one mutating door. Pure.

Offers and wants may overtake the scheduler's word about them, and wait for it. Those that come after the end
are refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.aggregator_memory import Memory
from mlfabric.aggregator.aggregator_sums import Sums
from mlfabric.aggregator.relayed_models import Handings
from mlfabric.aggregator.spent import Spent
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import CancelHandOn, CancelSum, FreeModel, HandOn, HostModel, Sum, Tick
from mlfabric.transfer.offers import Early

__all__ = ["AggregatorState"]


class AggregatorState:
    """Everything that one aggregator is told and does.

    Args:
        name: the member's name.
        memory_budget_bytes: for sums and for models that are handed on, > 0; what is first in its queue may exceed it.
    """

    def __init__(self, name: str, memory_budget_bytes: int) -> None:
        self.name = name
        self.term = 0
        self.specs: dict[str, ModelSpec] = {}
        memory = Memory(memory_budget_bytes)
        self._spent = Spent()
        self.sums = Sums(name, memory, self._spent)
        self.handings = Handings(name, memory, self._spent)
        self._early = Early()

    def handle(self, event: act.AggregatorEvent | Tick, now_ns: int) -> list[act.Action]:
        """Take in one event and return what to do, in order."""
        return [*self._react(event, now_ns), *self.sums.advance(), *self.handings.advance()]

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        waiting = (self.sums, self.handings, self._early)
        times = [table.next_wakeup_ns() for table in waiting]
        return min((t for t in times if t is not None), default=None)

    def validate(self) -> None:
        """Check the invariants of everything."""
        self.sums.validate()
        self.handings.validate()

    def _react(self, event: act.AggregatorEvent | Tick, now_ns: int) -> Iterator[act.Action]:
        match event:
            case HostModel():
                self.specs[event.spec.name] = event.spec
            case FreeModel():
                self.specs.pop(event.model, None)
            case Sum():
                yield from self.sums.plan(event, self.specs.get(event.model), now_ns)
                for one in event.inputs:
                    for early in self._early.take(one.transfer, one.ticket):
                        yield from self._react(early, now_ns)
            case CancelSum():
                yield from self.sums.cancel(event.sum, event.reason)
            case HandOn():
                yield from self.handings.plan(event, self.specs.get(event.model), now_ns)
                for target in event.targets:
                    for early in self._early.take(target.get, target.ticket):
                        yield from self._react(early, now_ns)
            case CancelHandOn():
                yield from self.handings.cancel(event.get, event.reason)
            case act.TermBegan():
                if event.term > self.term:
                    self.term = event.term
                    yield from self.sums.begin_term()
                    yield from self.handings.begin_term()
            case act.Offered():
                yield from self._offer(event, now_ns)
            case act.Wanted():
                yield from self._want(event, now_ns)
            case Tick():
                for table in (self._early, self.sums, self.handings):
                    yield from table.expire(now_ns)
            case _:
                yield from self._progress(event)

    def _progress(self, event: act.AggregatorEvent) -> Iterator[act.Action]:
        match event:
            case act.PayloadReceived():
                yield from self.sums.sealed(event)
            case act.TransferBroken():
                self._early.forget(event.connection)
                yield from self.sums.broken(event)
            case act.InputUnusable():
                yield from self.sums.unusable(event)
            case act.SumSealed():
                yield from self.sums.left(event.sum)
            case act.OutcomesReceived():
                yield from self.sums.settled(event)
            case act.SumFailed():
                yield from self.sums.failed(event.sum, event.detail)
            case act.ModelComes():
                self.handings.comes(event)
            case act.ModelArrived():
                yield from self.handings.arrived(event.get)
            case act.FetchFailed():
                yield from self.handings.failed(event.get, event.detail)
            case act.GetServed():
                yield from self.handings.served(event)
            case act.GetBroken():
                self._early.forget(event.connection)
                yield from self.handings.broken(event)
            case _:
                raise AssertionError(f"no reaction to {event}")

    def _offer(self, event: act.Offered, now_ns: int) -> Iterator[act.Action]:
        """Take an offer, now or when the scheduler vouches for its ticket."""
        one = self.sums.inputs.get(event.transfer)
        if one is not None and one.plan.ticket == event.ticket:
            yield from self.sums.offer(event)
        else:
            yield from self._wait(event, now_ns)

    def _want(self, event: act.Wanted, now_ns: int) -> Iterator[act.Action]:
        """Take a want, now or when the scheduler vouches for its ticket."""
        found = self.handings.find(event.get)
        if found is not None and found[1].plan.ticket == event.ticket:
            yield from self.handings.want(event)
        else:
            yield from self._wait(event, now_ns)

    def _wait(self, event: act.Offered | act.Wanted, now_ns: int) -> Iterator[act.Action]:
        if (reason := self._spent.reason(event.ticket)) is not None:
            yield act.Refuse(connection=event.connection, reason=f"it has ended: {reason}")
        else:
            self._early.wait(event, now_ns)
