"""How long workers compute, as the scheduler sees it: from a model's delivery to the next push. Pure.

A worker that pushes and then waits for the model begins to compute when that has come. One that overlaps begins as
soon as it has pushed: its update is computed from a version that lacks its last one, and it pushes again when it has
computed *and* the model has come. Where the model came last, the computation was shorter by nobody knows how much, and
does not count; nor does the one after an update that was not committed, for which of the two it is cannot be told. In
an AllReduce job a worker computes from the end of one round to its next request.

A model counts as delivered when its sender says that it has sent it. What is in socket buffers then is still on its
way, so over a slow link computations seem longer than they are: by 10 to 20 ms at 40 Mbit/s, as measured.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from mlfabric.protocol import (
    CommitsReported,
    GetId,
    MemberEvent,
    ModelVersion,
    PushRequested,
    ReduceId,
    ReduceRequested,
    RoundArrived,
    TransferEnd,
    TransferEnded,
    UpdateId,
)

__all__ = ["KEEP_STEPS", "StepTimes", "WorkerSteps"]

KEEP_STEPS = 64
USUAL_OF_STEPS = 15
_NO_VERSION = ModelVersion(0, 0)
HELD_UP_SHARE = 0.1
"""A push that comes sooner after the model than this share of the time since the last push was waiting for it."""


@dataclass(slots=True)
class WorkerSteps:
    """What is known of one incarnation of a worker.

    Args:
        count: how many computations were seen.
        last_s: how long the last ones took, oldest first.
        pushed, pushed_ns: its last push.
        committed, version: its last update that was committed.
        has_model_ns: when its last get, or its last round, was through.
        gets: how many were through since its last push.
        usual_ns: how long a computation takes as a rule: the median of the last few; 0 before the first.
    """

    incarnation: int
    count: int = 0
    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEEP_STEPS))
    pushed: UpdateId | None = None
    pushed_ns: int = 0
    committed: UpdateId | None = None
    version: ModelVersion = _NO_VERSION
    has_model_ns: int | None = None
    gets: int = 0
    usual_ns: int = 0

    def push(self, update: UpdateId, computed_from: ModelVersion, now_ns: int) -> None:
        """Take in a push; one that is asked for again is none."""
        if self.pushed is not None and update.counter <= self.pushed.counter:
            return
        began_ns = self._began_ns(computed_from, now_ns)
        if began_ns is not None:
            self.add(began_ns, now_ns)
        self.pushed, self.pushed_ns, self.gets = update, now_ns, 0

    def get(self, now_ns: int) -> None:
        """Take in that a model was delivered."""
        self.has_model_ns = now_ns
        self.gets += 1

    @property
    def expected_ns(self) -> int | None:
        """When it will push if its step takes as long as usual; None for who gets models and does not push."""
        return None if self.has_model_ns is None or self.gets != 1 else self.has_model_ns + self.usual_ns

    def add(self, began_ns: int, now_ns: int) -> None:
        """Take in a computation."""
        if now_ns > began_ns:
            self.count += 1
            self.last_s.append((now_ns - began_ns) / 1e9)
            self.usual_ns = round(median(list(self.last_s)[-USUAL_OF_STEPS:]) * 1e9)

    def _began_ns(self, computed_from: ModelVersion, now_ns: int) -> int | None:
        """Return when the computation began that ends now; None if that cannot be told."""
        has_model_ns = self.has_model_ns
        if has_model_ns is None or self.pushed is None:
            return has_model_ns
        if self.committed != self.pushed or has_model_ns < self.pushed_ns:
            return None
        if computed_from >= self.version:
            return has_model_ns
        was_held_up = now_ns - has_model_ns < HELD_UP_SHARE * (now_ns - self.pushed_ns)
        return None if was_held_up else self.pushed_ns


class StepTimes:
    """Watches the events of whole models, or of one part of each; knows every worker's computations."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerSteps] = {}

    def of(self, worker: str) -> WorkerSteps:
        """Return what is known of a worker; nothing yet if it was not seen."""
        return self._workers.get(worker, WorkerSteps(0))

    def forget(self, worker: str) -> None:
        """Forget a worker that has left."""
        self._workers.pop(worker, None)

    def note(self, event: MemberEvent, now_ns: int) -> None:
        """Take in an event; what does not tell of a worker's steps changes nothing."""
        match event:
            case PushRequested():
                if own := self._own(event.update):
                    own.push(event.update, event.computed_from, now_ns)
            case TransferEnded(end=TransferEnd.SERVED, transfer=GetId() as get):
                if own := self._own(get):
                    own.get(now_ns)
            case CommitsReported():
                for commit in event.commits:
                    if commit.update.worker in self._workers and (own := self._own(commit.update)):
                        own.committed, own.version = commit.update, commit.version
            case RoundArrived() if event.worker in self._workers:
                self._workers[event.worker].has_model_ns = now_ns
            case ReduceRequested():
                own = self._own(event.reduce)
                if own and own.has_model_ns is not None:
                    own.add(own.has_model_ns, now_ns)
                    own.has_model_ns = None

    def _own(self, request: UpdateId | GetId | ReduceId) -> WorkerSteps | None:
        """Return what is known of who asks; of a new incarnation nothing is, and an earlier one counts no more."""
        known = self._workers.get(request.worker)
        if known is None or known.incarnation < request.incarnation:
            known = self._workers[request.worker] = WorkerSteps(request.incarnation)
        return known if known.incarnation == request.incarnation else None
