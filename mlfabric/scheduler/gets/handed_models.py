"""Models on their way to aggregators that hand them on to workers, and to other aggregators. Pure.

A *hand-on* is a get of an aggregator's own, from the server or from another aggregator, with the gets that are answered
out of it while it comes. What breaks is not mended: workers ask again, and are then served by the server itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mlfabric.model.specs import Member
from mlfabric.network import Path, Profile
from mlfabric.protocol import CancelHandOn, CancelServe, GetId, HandOn, HandOnTo, Instruction
from mlfabric.scheduler.context import Context

__all__ = ["HandOns", "PlannedHandOn"]


@dataclass(slots=True, kw_only=True)
class PlannedHandOn:
    """A model that an aggregator fetches to hand it on.

    Args:
        get: the aggregator's own.
        source: the server or the aggregator that it comes from.
        above: the own get of that aggregator; None if it comes from the server.
        after: which gets the plan ends before this one starts.
        targets: the gets that are to be answered out of it and are not.
        fetched: the server has sent all of it.
        fell_short: a target was taken back, so that the aggregator may wait for somebody who never comes.
    """

    get: GetId
    aggregator: Member
    source: str
    above: GetId | None
    ticket: bytes
    path: Path
    profile: Profile
    targets: dict[GetId, HandOnTo] = field(default_factory=dict)
    after: tuple[GetId, ...] = ()
    fetched: bool = False
    fell_short: bool = False


class HandOns:
    """All hand-ons of one model.

    Args:
        free: gives back what a get has reserved.
    """

    def __init__(self, context: Context, model: str, free: Callable[[GetId], None]) -> None:
        self.planned: dict[GetId, PlannedHandOn] = {}
        self._context = context
        self._model = model
        self._free = free

    def instruct(self, planned: PlannedHandOn, reason: str) -> HandOn:
        """Tell an aggregator what to fetch and who comes for it."""
        return HandOn(
            to=planned.aggregator.name,
            get=planned.get,
            model=self._model,
            source=planned.source,
            address=self._context.address(planned.source),
            ticket=planned.ticket,
            targets=tuple(planned.targets.values()),
            reason=reason,
        )

    def at(self, aggregator: str) -> list[PlannedHandOn]:
        """Return what an aggregator hands on."""
        return [h for h in self.planned.values() if h.aggregator.name == aggregator]

    def take_target(self, name: GetId, target: GetId, served: bool, reason: str) -> Iterator[Instruction]:
        """Take a target off its hand-on, which is over with its last one."""
        planned = self.planned.get(name)
        if planned is None or planned.targets.pop(target, None) is None:
            return
        planned.fell_short |= not served
        if not planned.targets:
            yield from self._end(planned, reason)

    def drop(self, planned: PlannedHandOn, reason: str) -> Iterator[Instruction]:
        """Give a hand-on up, and those that come out of it; the gets that they were to answer are the caller's."""
        targets = [t for t in planned.targets if t in self.planned]
        planned.fell_short = True
        yield from self._end(planned, reason)
        for target in targets:
            yield from self.drop(self.planned[target], reason)

    def _end(self, planned: PlannedHandOn, reason: str) -> Iterator[Instruction]:
        name, aggregator = planned.get, planned.aggregator
        del self.planned[name]
        self._free(name)
        if planned.fell_short:
            if self._context.is_live(aggregator.name, aggregator.incarnation):
                yield CancelHandOn(to=aggregator.name, model=self._model, get=name, reason=reason)
            if planned.above is None and not planned.fetched:
                yield CancelServe(to=planned.source, model=self._model, get=name, reason=reason)
        if planned.above is not None:
            yield from self.take_target(planned.above, name, not planned.fell_short, reason)
