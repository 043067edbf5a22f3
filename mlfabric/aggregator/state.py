"""The aggregator's state machine: sums, models that are handed on, one mutating door. Pure.

Offers and wants may overtake the scheduler's word about them (two connections, no common order). They wait here for it
at most ``EARLY_WAIT_NS``; a ticket that the scheduler never vouches for is refused then. Those who come after the end
are refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.handing import Handings
from mlfabric.aggregator.memory import Memory
from mlfabric.aggregator.spent import Spent
from mlfabric.aggregator.sums import Sums
from mlfabric.errors import ConfigError
from mlfabric.protocol import CancelHandOn, CancelSum, FreeModel, GetId, HandOn, HostModel, Sum, Tick, TransferId
from mlfabric.specs import ModelSpec

__all__ = ["EARLY_WAIT_NS", "AggregatorConfig", "AggregatorState"]

EARLY_WAIT_NS = 5_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorConfig:
    """What an aggregator's state machine needs to know.

    Args:
        name: the member's name.
        memory_budget_bytes: for sums and for models that are handed on, > 0; what is first in its queue may exceed it.
    """

    name: str
    memory_budget_bytes: int

    def __post_init__(self) -> None:
        if self.memory_budget_bytes <= 0:
            raise ConfigError(f"memory_budget_bytes={self.memory_budget_bytes}; allowed: > 0")


@dataclass(slots=True)
class _Early:
    event: act.Offered | act.Wanted
    until_ns: int


class AggregatorState:
    """Everything that one aggregator is told and does."""

    def __init__(self, config: AggregatorConfig) -> None:
        self.config = config
        self.epoch = 0
        self.specs: dict[str, ModelSpec] = {}
        memory = Memory(config.memory_budget_bytes)
        self._spent = Spent()
        self.sums = Sums(config.name, memory, self._spent)
        self.handings = Handings(config.name, memory, self._spent)
        self._early: dict[int, _Early] = {}

    def handle(self, event: act.AggregatorEvent | Tick, now_ns: int) -> list[act.Action]:
        """Take in one event and return what to do, in order."""
        return [*self._react(event, now_ns), *self.sums.advance(), *self.handings.advance()]

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        times = [self.sums.next_wakeup_ns(), self.handings.next_wakeup_ns()]
        times.extend(early.until_ns for early in self._early.values())
        return min((t for t in times if t is not None), default=None)

    def validate(self) -> None:
        """Check the invariants of everything."""
        self.sums.validate()
        self.handings.validate()
        assert all(number == early.event.connection for number, early in self._early.items()), "early events moved"

    def _react(self, event: act.AggregatorEvent | Tick, now_ns: int) -> Iterator[act.Action]:
        match event:
            case HostModel():
                self.specs[event.spec.name] = event.spec
            case FreeModel():
                self.specs.pop(event.model, None)
            case Sum():
                yield from self.sums.plan(event, self.specs.get(event.model), now_ns)
                yield from self._take_early()
            case CancelSum():
                yield from self.sums.cancel(event.sum, event.reason)
            case HandOn():
                yield from self.handings.plan(event, self.specs.get(event.model), now_ns)
                yield from self._take_early()
            case CancelHandOn():
                yield from self.handings.cancel(event.get, event.reason)
            case act.EpochBegan():
                if event.epoch > self.epoch:
                    self.epoch = event.epoch
                    yield from self.sums.begin_epoch()
                    yield from self.handings.begin_epoch()
            case act.Offered() | act.Wanted():
                yield from self._begin(event, now_ns)
            case Tick():
                yield from self._expire(now_ns)
            case _:
                yield from self._progress(event)

    def _progress(self, event: act.AggregatorEvent) -> Iterator[act.Action]:
        match event:
            case act.InputSealed():
                yield from self.sums.sealed(event)
            case act.InputBroken():
                self._early.pop(event.connection, None)
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
            case act.TargetServed():
                yield from self.handings.served(event)
            case act.TargetBroken():
                self._early.pop(event.connection, None)
                yield from self.handings.broken(event)
            case _:
                raise AssertionError(f"no reaction to {event}")

    def _begin(self, event: act.Offered | act.Wanted, now_ns: int) -> Iterator[act.Action]:
        """Take an offer or a want, now or when the scheduler vouches for its ticket."""
        self._early[event.connection] = _Early(event, now_ns + EARLY_WAIT_NS)
        yield from self._take_early()
        reason = self._spent.reason(event.ticket)
        if reason is not None and self._early.pop(event.connection, None) is not None:
            yield act.Refuse(connection=event.connection, reason=f"it has ended: {reason}")

    def _take_early(self) -> Iterator[act.Action]:
        """Take offers and wants whose tickets the scheduler has vouched for."""
        for number, early in list(self._early.items()):
            match early.event:
                case act.Offered() as offered if self._ticket_of(offered.transfer) == offered.ticket:
                    del self._early[number]
                    yield from self.sums.offer(offered)
                case act.Wanted() as wanted if self._ticket_of_get(wanted.get) == wanted.ticket:
                    del self._early[number]
                    yield from self.handings.want(wanted)

    def _ticket_of(self, transfer: TransferId) -> bytes | None:
        one = self.sums.inputs.get(transfer)
        return one.plan.ticket if one is not None else None

    def _ticket_of_get(self, get: GetId) -> bytes | None:
        found = self.handings.find(get)
        return found[1].plan.ticket if found is not None else None

    def _expire(self, now_ns: int) -> Iterator[act.Action]:
        for number in [n for n, early in self._early.items() if early.until_ns <= now_ns]:
            del self._early[number]
            yield act.Refuse(connection=number, reason="the scheduler never announced this ticket")
        yield from self.sums.expire(now_ns)
        yield from self.handings.expire(now_ns)
