"""The tensors that one worker wants to be summed, in the order in which it gave them, and the results that come. Pure.

Each waits until the scheduler says ``Reduce``, is then carried out as that *attempt*, has *arrived* once the result is
here, and is over when the scheduler says that all have it. Until then the tensor is as it was given, so that any
attempt can be made again. One that is given while it is made may be withdrawn before it is whole: no attempt can have
ended with it. In rounds that workers apply by themselves a result may also come to a worker that has
contributed nothing, and a worker that lacks the model fetches it from a peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlfabric.protocol import (
    BeginState,
    CancelReduce,
    FetchState,
    GiveState,
    LinkProbed,
    PassReduce,
    Probe,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundKept,
    RoundsHeld,
    RoundSlow,
    StateArrived,
    StateBroken,
)
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.actions import Action, Request

__all__ = ["Reducing"]

_MOST_KNOWN = 64
"""Of so many rounds a worker can tell a new scheduler that they are settled."""


@dataclass(slots=True)
class _Attempt:
    """The one attempt that is carried out, and whether its result is here."""

    plan: Reduce
    has_arrived: bool = False


class Reducing:
    """What a worker has open of rounds.

    Args:
        worker: its name.
        model: that it trains.
        together: how many workers begin together, where they apply rounds by themselves; 0 if they do not.

    Attributes:
        settled: the last round that all workers have.
        together: how many took part in it.
        version, applied, has_state: see :class:`mlfabric.protocol.RoundsHeld`.
    """

    def __init__(self, worker: str, model: str = "", together: int = 0) -> None:
        self.worker, self.model = worker, model
        self.open: dict[ReduceId, ReduceRequested] = {}
        self.settled: RoundId | None = None
        self.together: int | None = together or None
        self.version = self.applied = 0
        self.has_state = False
        self._applies = together > 0
        self._attempt: _Attempt | None = None
        self._fetches: FetchState | None = None
        self._known: deque[RoundId] = deque(maxlen=_MOST_KNOWN)
        """Rounds that the model has come from one by one, and all workers have."""

    def handle(self, event: act.ReduceEvent) -> Iterator[Action]:
        """Take in one event and return what to do, in order."""
        match event:
            case act.ReduceCalled():
                self.open[event.request.reduce] = event.request
                self.applied = event.request.computed_from
                yield Request(event=self._current(event.request))
            case act.ReduceWithdrawn():
                yield from self._withdraw(event)
            case Reduce():
                yield from self._begin(event)
            case CancelReduce():
                if self._is_at(event.round):
                    yield from self._stop(keep=event.keep)
                elif event.keep:  # it broke, as others had stopped before
                    yield act.StopAttempt(round=event.round, keep=True)
            case act.AttemptEnded():
                yield from self._ended(event)
            case act.AttemptSlow():
                yield from self._slow(event)
            case act.AttemptKept():
                model = self._model_of(event.plan)
                kept = RoundKept(worker=self.worker, model=model, round=event.plan.round, kept=event.kept)
                yield Request(event=kept)
            case ReduceSettled():
                yield from self._settle(event)
            case PassReduce():
                if self.open.pop(event.reduce, None) is not None:
                    yield from self._stop_of(event.reduce)
                    yield act.PassOver(reduce=event.reduce, keep=event.keep, reason=event.reason)
            case ReduceFailed():
                if self.open.pop(event.reduce, None) is not None:
                    yield from self._stop_of(event.reduce)
                    yield act.FailReduce(reduce=event.reduce, reason=event.reason)
            case Probe():
                yield act.StartProbes(plan=event)
            case act.ProbeEnded():
                probed = LinkProbed(
                    worker=self.worker, model=event.model, round=event.round, source=event.source, bps=event.bps
                )
                yield Request(event=probed)
            case _:
                yield from self._state(event)

    def _state(self, event: BeginState | FetchState | GiveState | act.StateEnded) -> Iterator[Action]:
        """Give and take model and optimizer state."""
        match event:
            case BeginState():
                yield from self._stop()
                self._known.clear()
                self.has_state, self.version, self.settled, self._fetches = True, event.version, event.round, None
                yield act.KeepState(version=self.version)
            case FetchState():
                self._known.clear()
                self.has_state, self.version, self.settled = False, event.version, event.round
                self._fetches = event
                yield act.StartFetchState(plan=event)
            case GiveState():
                yield act.StartGiveState(plan=event)
            case act.StateEnded() if self._fetches is not None and event.round == self._fetches.round:
                yield Request(event=self._fetched(event))

    def _fetched(self, event: act.StateEnded) -> StateArrived | StateBroken:
        worker, model, round_id = self.worker, self.model, event.round
        if event.detail:
            return StateBroken(worker=worker, model=model, round=round_id, detail=event.detail)
        self._fetches = None
        self.has_state, self.version = True, max(self.version, event.version)
        self.applied = event.version
        return StateArrived(worker=worker, model=model, round=round_id, version=event.version)

    def requests(self) -> tuple[ReduceRequested, ...]:
        """Return what is asked for, oldest first, for a scheduler that may know nothing."""
        return tuple(map(self._current, self.open.values()))

    def held(self) -> RoundsHeld | None:
        """Return how far the worker has come, for a scheduler that may know nothing; None if that is not its own."""
        if not self._applies:
            return None
        arrived = self._attempt.plan.round if self._attempt is not None and self._attempt.has_arrived else None
        return RoundsHeld(
            version=self.version,
            applied=self.applied,
            has_state=self.has_state,
            settled=self.settled,
            arrived=arrived,
            together=self.together or 1,
            known=tuple(self._known),
        )

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if self._attempt is not None and self._attempt.plan.reduce is not None:
            assert self._attempt.plan.reduce in self.open, f"{self._attempt.plan} is of nothing that is open"

    def _current(self, request: ReduceRequested) -> ReduceRequested:
        attempt = self._attempt
        arrived = attempt.plan if attempt is not None and attempt.has_arrived else None
        is_here = arrived is not None and arrived.reduce == request.reduce
        together = request.together if self.together is None else self.together
        return replace(
            request,
            together=arrived.workers if arrived is not None and is_here else together,
            settled=self.settled,
            arrived=arrived.round if arrived is not None and is_here else None,
        )

    def _begin(self, event: Reduce) -> Iterator[Action]:
        is_old = self._attempt is not None and self._attempt.plan.round >= event.round
        if is_old or (event.reduce is not None and not self._is_offered(event.reduce)):
            return
        yield from self._stop()
        self._attempt = _Attempt(event)
        yield act.StartAttempt(plan=event)

    def _is_offered(self, reduce: ReduceId) -> bool:
        return reduce in self.open and not self.open[reduce].withdrawn

    def _withdraw(self, event: act.ReduceWithdrawn) -> Iterator[Action]:
        """Ask for a tensor to be in no round."""
        if self._is_offered(event.reduce):
            self.open[event.reduce] = replace(self.open[event.reduce], withdrawn=event.reason)
            yield from self._stop_of(event.reduce)
            yield Request(event=self._current(self.open[event.reduce]))

    def _model_of(self, plan: Reduce) -> str:
        opened = None if plan.reduce is None else self.open.get(plan.reduce)
        return self.model if opened is None else opened.model

    def _slow(self, event: act.AttemptSlow) -> Iterator[Action]:
        if self._attempt is not None and self._is_at(event.round):
            model, left_ns, usual_ns = self._model_of(self._attempt.plan), event.left_ns, event.usual_ns
            slow = RoundSlow(worker=self.worker, model=model, round=event.round, left_ns=left_ns, usual_ns=usual_ns)
            yield Request(event=slow)

    def _ended(self, event: act.AttemptEnded) -> Iterator[Action]:
        if self._attempt is None or not self._is_at(event.round):
            return
        model = self._model_of(self._attempt.plan)
        if event.detail:
            self._attempt = None
            broken = RoundBroken(worker=self.worker, model=model, round=event.round, detail=event.detail)
            yield Request(event=broken)
        else:
            self._attempt.has_arrived = True
            arrived = RoundArrived(
                worker=self.worker, model=model, round=event.round, up_bps=event.up_bps, down_bps=event.down_bps
            )
            yield Request(event=arrived)

    def _settle(self, event: ReduceSettled) -> Iterator[Action]:
        attempt = self._attempt
        is_here = attempt is not None and attempt.has_arrived and self._is_at(event.round)
        if attempt is not None and is_here:
            self._attempt = None
            self._note(event)
            self.version = max(self.version, attempt.plan.version)
            if attempt.plan.reduce is not None:
                del self.open[attempt.plan.reduce]
            # How many contributed is not how many it reached, and a new scheduler knows neither.
            yield act.FinishReduce(plan=attempt.plan, workers=attempt.plan.workers)
        elif event.reduce is not None and self.open.pop(event.reduce, None) is not None:
            self._note(event)
            yield from self._stop_of(event.reduce)
            reason = f"the others have {event.round} and this worker lost it; load their weights"
            yield act.FailReduce(reduce=event.reduce, reason=reason)

    def _note(self, event: ReduceSettled) -> None:
        self.settled, self.together = event.round, event.workers
        self._known.append(event.round)

    def _stop(self, *, keep: bool = False) -> Iterator[Action]:
        if self._attempt is not None:
            yield act.StopAttempt(round=self._attempt.plan.round, keep=keep)
        self._attempt = None

    def _stop_of(self, reduce: ReduceId) -> Iterator[Action]:
        """Stop the attempt if it is at this tensor."""
        if self._attempt is not None and self._attempt.plan.reduce == reduce:
            yield from self._stop()

    def _is_at(self, round_id: RoundId) -> bool:
        return self._attempt is not None and self._attempt.plan.round == round_id
