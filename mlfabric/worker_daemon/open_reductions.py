"""The AllReduces that one worker has open, in the order in which they were asked for. Pure.

Each waits until the scheduler says ``Reduce``, is then carried out as that *attempt*, has *arrived* once the result is
here, and is over when the scheduler says that all have it. Until then the tensor is as it was given, so that any
attempt can be made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlfabric.protocol import (
    CancelReduce,
    LinkProbed,
    Probe,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
)
from mlfabric.worker_daemon import actions as act

__all__ = ["Reducing"]


@dataclass(slots=True)
class _Open:
    """A request without an outcome, and the attempt at it if there is one."""

    request: ReduceRequested
    attempt: Reduce | None = None
    has_arrived: bool = False


class Reducing:
    """The open AllReduces of a worker.

    ``settled`` is the last round that all workers have, ``together`` how many took part in it.
    """

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.open: dict[ReduceId, _Open] = {}
        self.settled: RoundId | None = None
        self.together: int | None = None

    def handle(self, event: act.ReduceEvent) -> Iterator[act.Action]:
        """Take in one event and return what to do, in order."""
        match event:
            case act.ReduceCalled():
                new = self.open[event.request.reduce] = _Open(event.request)
                yield act.Request(event=self._current(new))
            case Reduce():
                yield from self._begin(event)
            case CancelReduce():
                if (opened := self._attempted(event.round)) is not None:
                    yield from self._stop(opened)
            case act.AttemptEnded():
                yield from self._ended(event)
            case ReduceSettled():
                yield from self._settle(event)
            case Probe():
                yield act.StartProbes(plan=event)
            case act.ProbeEnded():
                probed = LinkProbed(
                    worker=self.worker, model=event.model, round=event.round, source=event.source, bps=event.bps
                )
                yield act.Request(event=probed)
            case ReduceFailed():
                if (failed := self.open.pop(event.reduce, None)) is not None:
                    yield from self._stop(failed)
                    yield act.FailReduce(reduce=event.reduce, reason=event.reason)

    def requests(self) -> tuple[ReduceRequested, ...]:
        """Return what is asked for, oldest first, for a scheduler that may know nothing."""
        return tuple(self._current(opened) for opened in self.open.values())

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        if not self.open:
            return
        attempted = [opened for opened in self.open.values() if opened.attempt is not None]
        assert len(attempted) <= 1, f"{len(attempted)} rounds are carried out at the same time"
        for opened in self.open.values():
            assert opened.attempt is not None or not opened.has_arrived, f"{opened} arrived by no attempt"

    def _current(self, opened: _Open) -> ReduceRequested:
        arrived = opened.attempt if opened.has_arrived else None
        together = opened.request.together if self.together is None else self.together
        return replace(
            opened.request,
            together=together if arrived is None else arrived.workers,
            settled=self.settled,
            arrived=None if arrived is None else arrived.round,
        )

    def _begin(self, event: Reduce) -> Iterator[act.Action]:
        opened = self.open.get(event.reduce)
        if opened is None or (opened.attempt is not None and opened.attempt.round >= event.round):
            return
        for other in self.open.values():
            yield from self._stop(other)
        opened.attempt = event
        yield act.StartAttempt(plan=event)

    def _ended(self, event: act.AttemptEnded) -> Iterator[act.Action]:
        opened = self._attempted(event.round)
        if opened is None:
            return
        model = opened.request.model
        if event.detail:
            opened.attempt = None
            broken = RoundBroken(worker=self.worker, model=model, round=event.round, detail=event.detail)
            yield act.Request(event=broken)
        else:
            opened.has_arrived = True
            arrived = RoundArrived(
                worker=self.worker, model=model, round=event.round, up_bps=event.up_bps, down_bps=event.down_bps
            )
            yield act.Request(event=arrived)

    def _settle(self, event: ReduceSettled) -> Iterator[act.Action]:
        opened = self.open.pop(event.reduce, None)
        if opened is None:
            return
        self.settled, self.together = event.round, event.workers
        if opened.has_arrived and opened.attempt is not None and opened.attempt.round == event.round:
            yield act.FinishReduce(reduce=event.reduce, workers=event.workers)
        else:
            yield from self._stop(opened)
            reason = f"the others have {event.round} and this worker lost it; load their weights"
            yield act.FailReduce(reduce=event.reduce, reason=reason)

    def _stop(self, opened: _Open) -> Iterator[act.Action]:
        if opened.attempt is not None:
            yield act.StopAttempt(round=opened.attempt.round)
        opened.attempt, opened.has_arrived = None, False

    def _attempted(self, round_id: RoundId) -> _Open | None:
        found = (o for o in self.open.values() if o.attempt is not None and o.attempt.round == round_id)
        return next(found, None)
