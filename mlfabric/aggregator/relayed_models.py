"""The models that an aggregator hands on: fetched once, sent to many while they arrive (paper 10.3). Pure.

A model is fetched as soon as there is memory for it, in the order in which the scheduler asked; the first in that order
may exceed the budget. Whoever wants it gets it from the moment its first bytes are here.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.aggregator.actions import (
    Action,
    ForgetModel,
    GetBroken,
    GetServed,
    HandModelOn,
    ModelComes,
    Refuse,
    Report,
    StartFetch,
    StopFetch,
    Wanted,
    dismissed,
)
from mlfabric.aggregator.aggregator_memory import Memory
from mlfabric.aggregator.spent import Spent
from mlfabric.aggregator.sum_records import Handing, Target
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, HandOn, TransferEnd, TransferEnded
from mlfabric.transfer.offers import UNCLAIMED_NS, GetState

__all__ = ["Handings"]


class Handings:
    """Every model that one aggregator hands on; every door returns the actions that follow.

    Args:
        aggregator: the member's name.
        memory: shared with the sums.
        spent: where tickets go of those who wait for a model no more.
    """

    def __init__(self, aggregator: str, memory: Memory, spent: Spent) -> None:
        self.handings: dict[GetId, Handing] = {}
        self._of_target: dict[GetId, GetId] = {}
        self._aggregator = aggregator
        self._memory = memory
        self._spent = spent

    def plan(self, plan: HandOn, spec: ModelSpec | None, now_ns: int) -> Iterator[Action]:
        """Take a model to hand on, or report it broken if that cannot be; a target that is known moves here."""
        if plan.get in self.handings:
            return
        if spec is None:
            detail = f"model {plan.model!r} is not known here"
            yield from (self._ended(plan, get, TransferEnd.BROKEN, detail) for get in _gets(plan))
            return
        for target in plan.targets:
            yield from self._leave(target.get, "it was planned anew")
        targets = {target.get: Target(plan=target) for target in plan.targets}
        self.handings[plan.get] = Handing(plan=plan, spec=spec, since_ns=now_ns, targets=targets)
        self._of_target |= dict.fromkeys(targets, plan.get)

    def _leave(self, get: GetId, reason: str) -> Iterator[Action]:
        """Take a target out of what it waits for."""
        found = self.find(get)
        if found is not None:
            handing, target = found
            self._take_out(handing, get, reason)
            yield from _dismiss(target, reason)
            yield from self._end_if_unwanted(handing)

    def find(self, get: GetId) -> tuple[Handing, Target] | None:
        """Return what a target waits for, and how."""
        if get not in self._of_target:
            return None
        handing = self.handings[self._of_target[get]]
        return handing, handing.targets[get]

    def cancel(self, get: GetId, reason: str) -> Iterator[Action]:
        """Forget whoever has not come for a model; who is being handed it gets the rest."""
        handing = self.handings.get(get)
        if handing is not None:
            for name, target in list(handing.targets.items()):
                if target.state is not GetState.SERVING:
                    self._take_out(handing, name, reason)
                    yield from _dismiss(target, reason)
            yield from self._end_if_unwanted(handing)

    def begin_term(self) -> Iterator[Action]:
        """Give up everything that an older scheduler planned."""
        for handing in list(self.handings.values()):
            yield from self._give_up(handing, "the scheduler began anew")

    # Targets

    def want(self, wanted: Wanted) -> Iterator[Action]:
        """Take a want whose ticket fits; a second one takes the place of the first."""
        found = self.find(wanted.get)
        assert found is not None, f"{wanted.get} is wanted and not known"
        target = found[1]
        if target.state is GetState.SERVING:
            yield Refuse(connection=wanted.connection, reason="it is being handed on already")
            return
        if target.connection not in (None, wanted.connection):
            yield Refuse(connection=target.connection, reason="wanted anew on another connection")
        target.state, target.connection = GetState.WANTED, wanted.connection

    def served(self, event: GetServed) -> Iterator[Action]:
        """Note that a target has the model."""
        yield from self._target_ended(event, TransferEnd.SERVED)

    def broken(self, event: GetBroken) -> Iterator[Action]:
        """Note that a target's connection has gone."""
        yield from self._target_ended(event, TransferEnd.BROKEN, event.detail)

    def _target_ended(self, event: GetServed | GetBroken, end: TransferEnd, detail: str = "") -> Iterator[Action]:
        found = self.find(event.get)
        if found is None or found[1].connection != event.connection:
            return
        handing = found[0]
        self._take_out(handing, event.get, end.value)
        yield self._ended(handing.plan, event.get, end, detail)
        yield from self._end_if_unwanted(handing)

    def _take_out(self, handing: Handing, get: GetId, reason: str) -> None:
        self._spent.add(handing.targets.pop(get).plan.ticket, reason)
        del self._of_target[get]

    # The model

    def comes(self, event: ModelComes) -> None:
        """Note that a model's first bytes are here."""
        if event.get in self.handings:
            self.handings[event.get].version = event.version

    def arrived(self, get: GetId) -> Iterator[Action]:
        """Note that a model is here completely."""
        handing = self.handings.get(get)
        if handing is not None:
            handing.arrived = True
            yield from self._end_if_unwanted(handing)

    def failed(self, get: GetId, detail: str) -> Iterator[Action]:
        """Note that a model will not come."""
        handing = self.handings.get(get)
        if handing is not None:
            gets = (get, *handing.targets)
            yield from self._give_up(handing, f"{handing.plan.source}: {detail}")
            yield from (self._ended(handing.plan, one, TransferEnd.BROKEN, detail) for one in gets)

    def _end_if_unwanted(self, handing: Handing) -> Iterator[Action]:
        if handing.targets or handing.plan.get not in self.handings:
            return
        if handing.arrived:
            del self.handings[handing.plan.get]
            self._memory.give(handing.plan.get)
            yield ForgetModel(get=handing.plan.get, reason="everybody has it")
        else:
            yield from self._give_up(handing, "nobody wants it any more")
            yield self._ended(handing.plan, handing.plan.get, TransferEnd.BROKEN, "nobody wants it any more")

    def _give_up(self, handing: Handing, reason: str) -> Iterator[Action]:
        """Take a model out of the tables, with everybody who waits for it."""
        get = handing.plan.get
        del self.handings[get]
        self._memory.give(get)
        if handing.fetching:
            yield StopFetch(get=get, reason=reason)
        for name, target in list(handing.targets.items()):
            self._take_out(handing, name, reason)
            yield from _dismiss(target, reason)

    def _ended(self, plan: HandOn, get: GetId, end: TransferEnd, detail: str = "") -> Report:
        return Report(
            event=TransferEnded(member=self._aggregator, model=plan.model, transfer=get, end=end, detail=detail)
        )

    # What follows from the state

    def advance(self) -> Iterator[Action]:
        """Fetch what there is memory for, and hand on what comes to whoever wants it."""
        for index, handing in enumerate(self.handings.values()):
            if not handing.fetching:
                size_bytes = handing.spec.layout.size_bytes
                if not self._memory.take(handing.plan.get, size_bytes, is_first=index == 0):
                    break
                handing.fetching = True
                yield StartFetch(plan=handing.plan, spec=handing.spec)
        for handing in self.handings.values():
            for get, target in handing.targets.items():
                if handing.version is not None and target.state is GetState.WANTED:
                    assert target.connection is not None, f"{get} is wanted without connection"
                    target.state = GetState.SERVING
                    yield HandModelOn(
                        source=handing.plan.get,
                        get=get,
                        connection=target.connection,
                        version=handing.version,
                        digest=handing.spec.layout.digest,
                        rate_bps=target.plan.rate_bps,
                    )

    def next_wakeup_ns(self) -> int | None:
        """Return when ``expire`` is due, or None."""
        unclaimed = [h.since_ns for h in self.handings.values() if any(map(_is_unclaimed, h.targets.values()))]
        return min(unclaimed) + UNCLAIMED_NS if unclaimed else None

    def expire(self, now_ns: int) -> Iterator[Action]:
        """Forget targets that did not come."""
        for handing in [h for h in self.handings.values() if h.since_ns + UNCLAIMED_NS <= now_ns]:
            for get in [g for g, target in handing.targets.items() if _is_unclaimed(target)]:
                self._take_out(handing, get, "it was never wanted")
                yield self._ended(handing.plan, get, TransferEnd.BROKEN, "it was never wanted")
            yield from self._end_if_unwanted(handing)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        named = {get: own for own, handing in self.handings.items() for get in handing.targets}
        assert named == self._of_target, "models and targets name each other differently"
        holding = {own for own, handing in self.handings.items() if handing.fetching}
        assert holding == {g for g in self._memory.held if isinstance(g, GetId)}, "memory is held by other models"
        for own, handing in self.handings.items():
            assert handing.targets, f"{own} is kept for nobody"
            for get, target in handing.targets.items():
                assert _is_unclaimed(target) == (target.connection is None), f"{get} {target.state}: {target}"


def _gets(plan: HandOn) -> tuple[GetId, ...]:
    return plan.get, *(target.get for target in plan.targets)


def _is_unclaimed(target: Target) -> bool:
    return target.state is GetState.PLANNED


def _dismiss(target: Target, reason: str) -> Iterator[Action]:
    if target.connection is not None:
        yield dismissed(target.connection, reason, is_running=target.state is GetState.SERVING)
