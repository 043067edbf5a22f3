"""A worker's open pushes: what is asked for, on its way, asked for again, settled. Pure.

A push of a model that is cut into n shards is n updates with consecutive counters, part i of push p with counter
p * n + i; each goes its own way. The push is settled when all its parts are, and all in the same way. Until then
nothing is final: a scheduler that begins anew is asked again for parts that were committed or dropped, too, and
counters count as resolved only by whole pushes, so that servers remember what became of the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mlfabric.model.samples import Samples, union
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Outcome,
    PushRequested,
    SamplesDropped,
    Send,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.kept_updates import Keeping
from mlfabric.worker_daemon.retry_pause import pause_ns

__all__ = ["Pushing"]

MOST_DROPPED = 4096
"""Ranges of samples that are told to a scheduler that begins anew; the server knows of earlier ones."""


@dataclass(slots=True)
class _Part:
    """An update without an outcome.

    Args:
        running: the attempt under way.
        newer: a plan that came meanwhile.
    """

    request: PushRequested
    running: Send | None = None
    newer: Send | None = None
    breaks: int = 0
    ask_again_ns: int | None = None

    def take(self, plan: Send) -> Send | None:
        """Take a plan; return it if it is to be started now."""
        self.ask_again_ns = None
        if self.running is None:
            self.running = plan
            return plan
        if plan.ticket != self.running.ticket:
            self.newer = plan
        return None

    def broke(self, ticket: bytes, now_ns: int) -> Send | None:
        """Note a broken attempt; return a newer plan to start now, if there is one."""
        if self.running is None or self.running.ticket != ticket:
            return None
        self.running, self.newer = self.newer, None
        if self.running is None:
            self.ask_again_ns = now_ns + pause_ns(self.breaks)
        self.breaks += 1
        return self.running

    def end(self) -> None:
        """Note that nothing of it is under way any more."""
        self.running = self.newer = None


@dataclass(slots=True)
class _Push:
    """All parts of a push, and what became of those that have an outcome.

    Args:
        closed: these: an attempt may go on although the scheduler has said what became of a part.
    """

    requests: dict[UpdateId, PushRequested] = field(default_factory=dict)
    outcomes: dict[UpdateId, Outcome] = field(default_factory=dict)
    closed: dict[UpdateId, _Part] = field(default_factory=dict)


class Pushing:
    """Every push of one worker that has no outcome.

    Args:
        worker: its name.
        shards: how many parts its model has, >= 1.
        keeping: what is kept for a replica; told of outcomes.
    """

    def __init__(self, worker: str, shards: int, keeping: Keeping) -> None:
        self.parts: dict[UpdateId, _Part] = {}
        self._worker = worker
        self._shards = shards
        self._keeping = keeping
        self.pushes: dict[UpdateId, _Push] = {}
        self.clock = 0
        self.dropped: Samples = ()
        self._next_counter = 0

    def first(self, update: UpdateId) -> UpdateId:
        """Return the first part of an update's push: the name of the whole."""
        place = update.counter % self._shards
        return UpdateId(update.worker, update.incarnation, update.counter - place) if place else update

    def is_open(self, update: UpdateId) -> bool:
        """Tell whether the push that an update is part of has no outcome."""
        return self.first(update) in self.pushes

    def next_wakeup_ns(self) -> int | None:
        """Return when something is to be asked for again, or None."""
        if not self.parts:
            return None
        return min([p.ask_again_ns for p in self.parts.values() if p.ask_again_ns is not None], default=None)

    def resolved_below(self) -> int:
        """Return the counter below which every push has its outcome."""
        return min((u.counter for u in self.pushes), default=self._next_counter)

    def requests(self) -> tuple[PushRequested, ...]:
        """Return what is asked for, as a scheduler needs it that knows nothing."""
        return tuple(self._current(part.request) for part in self.parts.values())

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        for part in self.parts.values():
            assert part.newer is None or part.running is not None, f"{part} has a newer plan but none running"
            assert part.running is None or part.ask_again_ns is None, f"{part} is asked for while it runs"
        for first, push in self.pushes.items():
            known = push.outcomes.keys()
            assert known <= push.requests.keys(), f"{first}: what nobody asked for is settled: {push}"
            assert known == push.closed.keys(), f"{first}: other parts are closed than have outcomes: {push}"
            for update in push.requests:
                assert (update in known) is not (update in self.parts), (
                    f"{update} is open and settled, or neither: {push}"
                )
            assert len(known) < self._shards, f"{first} has all outcomes and is open"
        newest = max([update.counter for update in self.parts], default=-1)
        assert newest < self._next_counter, "an update from the future is open"

    def call(self, request: PushRequested) -> Iterator[act.Action]:
        """Take an update from the worker."""
        update = request.update
        assert update not in self.parts, f"{update} pushed twice"
        self._next_counter = max(self._next_counter, update.counter + 1)
        self.pushes.setdefault(self.first(update), _Push()).requests[update] = request
        self.parts[update] = _Part(request)
        yield act.Request(event=self._current(request))

    def plan(self, plan: Send) -> Iterator[act.Action]:
        """Carry out a plan, once what runs has ended."""
        if (part := self.parts.get(plan.update)) and (start := part.take(plan)):
            yield act.StartSend(plan=start)

    def broken(self, event: act.SendBroken, now_ns: int) -> Iterator[act.Action]:
        """Carry out a newer plan, or ask again later."""
        if (part := self.parts.get(event.update)) and (start := part.broke(event.ticket, now_ns)):
            yield act.StartSend(plan=start)
        closed = self._closed(event.update)
        if closed is not None and closed.running is not None and closed.running.ticket == event.ticket:
            closed.end()

    def _closed(self, update: UpdateId) -> _Part | None:
        push = self.pushes.get(self.first(update))
        return None if push is None else push.closed.get(update)

    def begin_term(self) -> None:
        """Open all parts of pushes that have no outcome again.

        What was committed at a part may be lost since: then nobody but this worker knows of it, and without the other
        parts no scheduler can do anything with those that are open.
        """
        for push in self.pushes.values():
            self._open_again(push)

    def bring_again(self) -> Iterator[act.Action]:
        """Ask for all parts of initial weights again that are on their way: a server may have lost its part."""
        for push in self.pushes.values():
            if any(request.kind is UpdateKind.INITIAL for request in push.requests.values()):
                for update in self._open_again(push):
                    yield act.Request(event=self._current(push.requests[update]))

    def _open_again(self, push: _Push) -> list[UpdateId]:
        """Open the parts of a push that have outcomes; return which."""
        closed, push.outcomes, push.closed = push.closed, {}, {}
        self.parts |= closed
        return list(closed)

    def begin_anew(self) -> None:
        """Let no attempt count any more: another process is the server now."""
        for update, part in self.parts.items():
            self.parts[update] = _Part(part.request)
        for push in self.pushes.values():
            for part in push.closed.values():
                part.end()

    def tick(self, now_ns: int) -> Iterator[act.Action]:
        """Ask again for what is due."""
        for part in self.parts.values():
            if part.ask_again_ns is not None and part.ask_again_ns <= now_ns:
                part.ask_again_ns = None
                yield act.Request(event=self._current(part.request))

    def answered(self, update: UpdateId, outcome: Outcome) -> Iterator[act.Action]:
        """Settle an update, and tell the scheduler if it was dropped: whoever did so may not be able to."""
        part = self.parts.get(update)
        if (ended := part or self._closed(update)) is not None:
            ended.end()
        yield from self.settle(update, outcome, "the server answered")
        if part is not None and isinstance(outcome, Dropped):
            event = TransferEnded(
                member=self._worker,
                model=part.request.model,
                transfer=update,
                end=TransferEnd.DISCARDED,
                cause=outcome.cause,
                detail=outcome.detail,
            )
            yield act.Request(event=event)

    def settle(self, update: UpdateId, outcome: Outcome, reason: str) -> Iterator[act.Action]:
        """Note an outcome; settle the push if it was the last one."""
        part = self.parts.pop(update, None)
        if part is None:
            return
        if part.request.kind is UpdateKind.GRADIENT:
            yield from self._keeping.settled(update, outcome)
        first = self.first(update)
        push = self.pushes[first]
        push.outcomes[update], push.closed[update], part.ask_again_ns = outcome, part, None
        if len(push.outcomes) < self._shards:
            return
        del self.pushes[first]
        whole = push.requests[min(push.requests)]
        self.clock += part.request.kind is UpdateKind.GRADIENT
        together = _together([push.outcomes[u] for u in sorted(push.outcomes)], part.request.kind)
        if together is None:
            yield act.FailPush(update=first, reason=f"the parts of {first} ended in different ways: {push.outcomes}")
        else:
            yield act.Settle(update=first, outcome=together, reason=reason, samples=whole.samples)
            if whole.samples and not isinstance(together, Committed):
                yield self.drop_samples(whole.model, whole.samples)

    def drop_samples(self, model: str, samples: Samples) -> act.Request:
        """Note that the update that was computed from these samples was dropped, and tell the scheduler."""
        self.dropped = union(self.dropped, samples)[-MOST_DROPPED:]
        event = SamplesDropped(worker=self._worker, model=model, samples=samples)
        return act.Request(event=event)

    def _current(self, request: PushRequested) -> PushRequested:
        below = self.resolved_below()
        return request if request.resolved_below == below else replace(request, resolved_below=below)


def _together(outcomes: list[Outcome], kind: UpdateKind) -> Outcome | None:
    """Return what became of a push whose parts have these outcomes; None if they contradict one another.

    A part whose server has resumed since others were committed is committed under a later epoch: that one counts. One
    that was rolled back since is lost with the others, which were committed.
    """
    committed = sorted((o for o in outcomes if isinstance(o, Committed)), key=lambda o: o.version, reverse=True)
    dropped = [o for o in outcomes if isinstance(o, Dropped)]
    if committed:
        dropped = [o for o in dropped if o.cause is not DropReason.ROLLED_BACK]
    if kind is UpdateKind.INITIAL:
        # Some shards may have got theirs from another worker before.
        refused = [o for o in dropped if o.cause is not DropReason.DUPLICATE]
        best: list[Outcome] = [*refused, *committed, *outcomes]
        return best[0]
    if (committed and dropped) or len({(o.version.number, o.tau) for o in committed}) > 1:
        return None
    known: list[Outcome] = [*committed, *dropped, *outcomes]
    return known[0]
