"""The worker daemon's state machine: what is open, what is on its way, what is asked for again. Pure.

An update (and a get likewise) is *asked for* until the scheduler says ``Send``, then *under way* until an outcome is
known. Whatever breaks leads back to *asked for*, after a pause that doubles; the scheduler and the server know what was
settled before, so asking again never applies anything twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.protocol import (
    Drop,
    Dropped,
    Fetch,
    Fold,
    GetRequested,
    Initialise,
    Keep,
    NewServer,
    Outcome,
    PushRequested,
    Release,
    Replicate,
    Resolve,
    SamplesGranted,
    SamplesWanted,
    Send,
    Tick,
    UpdateId,
    WorkerHolds,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.drawn_samples import Drawing
from mlfabric.worker_daemon.kept_updates import Keeping
from mlfabric.worker_daemon.open_gets import Getting
from mlfabric.worker_daemon.open_pushes import Pushing
from mlfabric.worker_daemon.open_reductions import Reducing
from mlfabric.worker_daemon.retry_pause import FIRST_PAUSE_NS, LONGEST_PAUSE_NS

__all__ = ["FIRST_PAUSE_NS", "LONGEST_PAUSE_NS", "DaemonState"]


class DaemonState:
    """Everything that one worker has open.

    Args:
        worker: its name.
        shards: how many parts its model is cut into, >= 1.
        model: that it trains.
        together: how many workers begin together, where they apply rounds by themselves; 0 if they do not.
    """

    def __init__(self, worker: str, shards: int = 1, model: str = "", together: int = 0) -> None:
        self.worker = worker
        self.term = 0
        self.keeping = Keeping(worker, self._is_open)
        self.pushing = Pushing(worker, shards, self.keeping)
        self.getting = Getting(shards, self.pushing.is_open)
        self.reducing = Reducing(worker, model, together)
        self.drawing = Drawing()
        self._admissions = 0

    def _is_open(self, update: UpdateId) -> bool:
        return update in self.pushing.parts

    def handle(self, event: act.DaemonEvent, now_ns: int) -> list[act.Action]:
        """Take in one event and return what to do, in order."""
        return list(self._react(event, now_ns))

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due, or None."""
        times = (self.pushing.next_wakeup_ns(), self.getting.next_wakeup_ns(), self.keeping.next_wakeup_ns())
        return min([t for t in times if t is not None], default=None)

    def holds(self) -> WorkerHolds:
        """Announce everything that is open, for a scheduler that may know nothing."""
        return WorkerHolds(
            worker=self.worker,
            pushes=self.pushing.requests(),
            gets=self.getting.requests(),
            reduces=self.reducing.requests(),
            rounds=self.reducing.held(),
            clock=self.pushing.clock if self._admissions > 1 else None,
            dropped=self.pushing.dropped,
            drawn=self.drawing.drawn,
        )

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        self.pushing.validate()
        self.getting.validate()
        self.reducing.validate()

    def _react(self, event: act.DaemonEvent, now_ns: int) -> Iterator[act.Action]:
        match event:
            case PushRequested():
                yield from self.pushing.call(event)
            case act.SamplesGivenUp():
                self.drawing.settled(event.samples)
                yield self.pushing.drop_samples(event.model, event.samples)
            case SamplesWanted():
                yield from self.drawing.call(event)
            case SamplesGranted():
                yield from self.drawing.granted(event)
            case GetRequested():
                yield from self.getting.call(event)
            case Initialise():
                yield from self.pushing.bring_again()
            case Send():
                yield from self.pushing.plan(event)
            case Fetch():
                yield from self.getting.plan(event)
            case Drop():
                outcome: Outcome = Dropped(cause=event.cause, detail=event.reason)
                yield from self._settling(self.pushing.settle(event.update, outcome, event.reason))
            case Resolve():
                yield from self._settling(self.pushing.settle(event.update, event.outcome, event.reason))
            case act.OutcomeReceived():
                yield from self._settling(self.pushing.answered(event.update, event.outcome))
            case act.ModelReceived():
                yield from self.getting.received(event, now_ns)
            case act.SendBroken():
                yield from self.pushing.broken(event, now_ns)
            case act.FetchBroken():
                yield from self.getting.broken(event, now_ns)
            case act.TermBegan():
                yield from self._begin_term(event)
            case NewServer():
                if self.getting.serves(event.server_epoch):
                    yield from self._begin_anew()
                    yield act.Request(event=self.holds())
            case Tick():
                yield from self.pushing.tick(now_ns)
                yield from self.getting.tick(now_ns)
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

    def _begin_anew(self) -> Iterator[act.Action]:
        """Let nothing that is under way to or from an earlier server count any more."""
        self.pushing.begin_anew()
        self.getting.begin_anew()
        yield act.StopTransfers()

    def _begin_term(self, event: act.TermBegan) -> Iterator[act.Action]:
        if event.server_epoch and self.getting.serves(event.server_epoch):
            yield from self._begin_anew()
        if event.term > self.term:
            yield from self.keeping.end()
        if event.term == self.term or not self.term:
            self.pushing.clock = max(self.pushing.clock, event.clock)
        self.term = max(self.term, event.term)
        self._admissions += 1
        self.pushing.begin_term()
        self.getting.begin_term()

    def _settling(self, actions: Iterator[act.Action]) -> Iterator[act.Action]:
        """Pass actions on, and let the gets that waited for a push follow its outcome."""
        for action in actions:
            yield action
            if isinstance(action, act.Settle):
                self.drawing.settled(action.samples)
                yield from self.getting.settled(action.update, action.outcome)
