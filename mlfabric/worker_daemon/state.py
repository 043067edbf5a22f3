"""The worker daemon's state machine: what is open, what is on its way, what is asked for again. Pure.

A model that was asked for after an update is delivered once that update has its outcome and only if it holds it: a
server that lost the update's connection may have served without it. Else it is fetched again.

An update (and a get likewise) is *asked for* until the scheduler says ``Send``, then *under way* until an outcome is
known. Whatever breaks leads back to *asked for*, after a pause that doubles; the scheduler and the server know what was
settled before, so asking again never applies anything twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from mlfabric.protocol import (
    Committed,
    Drop,
    Dropped,
    Fetch,
    Fold,
    GetId,
    GetRequested,
    Keep,
    ModelVersion,
    Outcome,
    PushRequested,
    Release,
    Replicate,
    Resolve,
    Send,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
    WorkerHolds,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.keeping import Keeping
from mlfabric.worker_daemon.reducing import Reducing

__all__ = ["FIRST_PAUSE_NS", "LONGEST_PAUSE_NS", "DaemonState"]

FIRST_PAUSE_NS = 20_000_000
LONGEST_PAUSE_NS = 1_000_000_000

RequestT = TypeVar("RequestT", PushRequested, GetRequested)
PlanT = TypeVar("PlanT", Send, Fetch)


@dataclass(slots=True)
class _Open(Generic[RequestT, PlanT]):
    """A push or get without an outcome.

    Args:
        running: the attempt under way.
        newer: a plan that came meanwhile.
        arrived: a get only: the version that is here and waits for the outcome of the update that it follows.
    """

    request: RequestT
    running: PlanT | None = None
    newer: PlanT | None = None
    breaks: int = 0
    ask_again_ns: int | None = None
    arrived: ModelVersion | None = None

    def take(self, plan: PlanT) -> PlanT | None:
        """Take a plan; return it if it is to be started now."""
        self.ask_again_ns = None
        if self.running is None:
            self.running = plan
            return plan
        if plan.ticket != self.running.ticket:
            self.newer = plan
        return None

    def broke(self, ticket: bytes, now_ns: int) -> PlanT | None:
        """Note a broken attempt; return a newer plan to start now, if there is one."""
        if self.running is None or self.running.ticket != ticket:
            return None
        self.running, self.newer = self.newer, None
        if self.running is None:
            self.ask_again_ns = now_ns + min(FIRST_PAUSE_NS << min(self.breaks, 10), LONGEST_PAUSE_NS)
        self.breaks += 1
        return self.running


_AnyOpen = _Open[PushRequested, Send] | _Open[GetRequested, Fetch]


class DaemonState:
    """Everything that one worker has open."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.epoch = 0
        self.pushes: dict[UpdateId, _Open[PushRequested, Send]] = {}
        self.gets: dict[GetId, _Open[GetRequested, Fetch]] = {}
        self.keeping = Keeping(worker, self.pushes.__contains__)
        self.reducing = Reducing(worker)
        self._next_counter = 0
        self._clock = self._admissions = 0

    def handle(self, event: act.DaemonEvent, now_ns: int) -> list[act.Action]:
        """Take in one event and return what to do, in order."""
        return list(self._react(event, now_ns))

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        times = [*(o.ask_again_ns for o in self._all_open()), self.keeping.next_wakeup_ns()]
        return min((t for t in times if t is not None), default=None)

    def holds(self) -> WorkerHolds:
        """Announce everything that is open, for a scheduler that may know nothing."""
        return WorkerHolds(
            worker=self.worker,
            pushes=tuple(self._current(o.request) for o in self.pushes.values()),
            gets=tuple(o.request for o in self.gets.values() if o.arrived is None),
            reduces=self.reducing.requests(),
            clock=self._clock if self._admissions > 1 else None,
        )

    def resolved_below(self) -> int:
        """Return the counter below which every update has its outcome."""
        return min((u.counter for u in self.pushes), default=self._next_counter)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        for opened in self._all_open():
            assert opened.newer is None or opened.running is not None, f"{opened} has a newer plan but none running"
            assert opened.running is None or opened.ask_again_ns is None, f"{opened} is asked for while it runs"
        self.reducing.validate()
        assert all(u.counter < self._next_counter for u in self.pushes), "an update from the future is open"

    def _react(self, event: act.DaemonEvent, now_ns: int) -> Iterator[act.Action]:
        match event:
            case act.PushCalled():
                update = event.request.update
                assert update not in self.pushes, f"{update} pushed twice"
                self._next_counter = max(self._next_counter, update.counter + 1)
                self.pushes[update] = _Open(event.request)
                yield act.Request(event=self._current(event.request), reason="the worker pushes")
            case act.GetCalled():
                self.gets[event.request.get] = _Open(event.request)
                yield act.Request(event=event.request, reason="the worker gets")
            case Send():
                if (push := self.pushes.get(event.update)) and (start := push.take(event)):
                    yield act.StartSend(plan=start, reason=event.reason)
            case Fetch():
                if (get := self.gets.get(event.get)) and (fetch := get.take(event)):
                    yield act.StartFetch(plan=fetch, reason=event.reason)
            case Drop():
                yield from self._settle(event.update, Dropped(cause=event.cause, detail=event.reason), event.reason)
            case Resolve():
                yield from self._settle(event.update, event.outcome, event.reason)
            case act.OutcomeReceived():
                yield from self._answered(event.update, event.outcome)
            case act.ModelReceived():
                if (get := self.gets.get(event.get)) is not None:
                    get.arrived = event.version
                    yield from self._deliver(get)
            case act.SendBroken():
                if (push := self.pushes.get(event.update)) and (start := push.broke(event.ticket, now_ns)):
                    yield act.StartSend(plan=start, reason=f"a newer plan, after: {event.detail}")
            case act.FetchBroken():
                if (get := self.gets.get(event.get)) and (fetch := get.broke(event.ticket, now_ns)):
                    yield act.StartFetch(plan=fetch, reason=f"a newer plan, after: {event.detail}")
            case act.EpochBegan():
                if event.epoch > self.epoch:
                    yield from self.keeping.end(f"epoch {event.epoch} knows nothing of us")
                if event.epoch == self.epoch or not self.epoch:
                    self._clock = max(self._clock, event.clock)
                self.epoch = max(self.epoch, event.epoch)
                self._admissions += 1
                yield act.Request(event=self.holds(), reason=f"epoch {event.epoch} knows nothing of us")
            case Tick():
                yield from self._ask_again(now_ns)
                yield from self.keeping.tick(now_ns)
            case Keep():
                yield from self.keeping.keep(event)
            case Fold():
                yield from self.keeping.fold(event)
            case Release():
                yield from self.keeping.release(event)
            case Replicate():
                yield from self.keeping.replicate(event)
            case act.ReplicaAnswered():
                yield from self.keeping.answered(event)
            case act.ReplicaBroken():
                self.keeping.broken(event, now_ns)
            case _:
                yield from self.reducing.handle(event)

    def _answered(self, update: UpdateId, outcome: Outcome) -> Iterator[act.Action]:
        """Settle an update, and tell the scheduler if it was dropped: whoever did so may not be able to."""
        push = self.pushes.get(update)
        yield from self._settle(update, outcome, "the server answered")
        if push is not None and isinstance(outcome, Dropped):
            event = TransferEnded(
                member=self.worker,
                model=push.request.model,
                transfer=update,
                end=TransferEnd.DISCARDED,
                cause=outcome.cause,
                detail=outcome.detail,
            )
            yield act.Request(event=event, reason="it was dropped")

    def _settle(self, update: UpdateId, outcome: Outcome, reason: str) -> Iterator[act.Action]:
        settled = self.pushes.pop(update, None)
        if settled is None:
            return
        if settled.request.kind is UpdateKind.GRADIENT:
            self._clock += 1
            yield from self.keeping.settled(update, outcome)
        yield act.Settle(update=update, outcome=outcome, reason=reason)
        for get in [g for g in self.gets.values() if g.request.after_update == update]:
            if isinstance(outcome, Committed):
                get.request = replace(get.request, min_version=max(get.request.min_version, outcome.version))
            yield from self._deliver(get)

    def _deliver(self, get: _Open[GetRequested, Fetch]) -> Iterator[act.Action]:
        """Hand over a model that is here if it is what was asked for; fetch it again if it is too old."""
        request = get.request
        if get.arrived is None or request.after_update in self.pushes:
            return
        if get.arrived >= request.min_version:
            del self.gets[request.get]
            yield act.Deliver(get=request.get, version=get.arrived, reason="the model is here")
            return
        get.arrived, get.running, get.newer = None, get.newer, None
        if get.running is not None:
            yield act.StartFetch(plan=get.running, reason="the model that came is too old")
        else:
            yield act.Request(event=request, reason="the model that came is too old")

    def _ask_again(self, now_ns: int) -> Iterator[act.Action]:
        for opened in self._all_open():
            if opened.ask_again_ns is not None and opened.ask_again_ns <= now_ns:
                opened.ask_again_ns = None
                request = opened.request
                event = self._current(request) if isinstance(request, PushRequested) else request
                yield act.Request(event=event, reason=f"attempt {opened.breaks} broke")

    def _all_open(self) -> list[_AnyOpen]:
        return [*self.pushes.values(), *self.gets.values()]

    def _current(self, request: PushRequested) -> PushRequested:
        return replace(request, resolved_below=self.resolved_below())
