"""What the scheduler counts and times: decisions, plans, outcomes, queues, link rates. Shell-level."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mlfabric.protocol import (
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    Instruction,
    LinksReported,
    MemberEvent,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.scheduler.state import SchedulerState
from mlfabric.specs import Role
from mlfabric.telemetry import SchedulerMetrics

__all__ = ["Meter"]


class Meter:
    """Observes the state machine from outside.

    Args:
        metrics: where figures go.
        software_version: shown on the status.
    """

    def __init__(self, metrics: SchedulerMetrics, software_version: str) -> None:
        self.metrics = metrics
        self.software_version = software_version
        self._plan_s = 0.0

    def mean_plan_ms(self, plans: int) -> float:
        """Return how long a plan took on average."""
        return 1e3 * self._plan_s / max(1, plans)

    @contextmanager
    def decision(self, state: SchedulerState) -> Iterator[None]:
        """Time the handling of one event, and the plans that it led to."""
        plans, updates, started = state.count.plans, state.count.updates, time.perf_counter()
        yield
        took_s = time.perf_counter() - started
        self.metrics.decision(took_s)
        if state.count.plans > plans:
            self._plan_s += took_s
            self.metrics.plan(took_s, state.count.updates - updates)

    def note(self, event: MemberEvent, instructions: Iterable[Instruction]) -> None:
        """Count outcomes."""
        match event:
            case CommitsReported():
                for commit in event.commits:
                    outcome = Committed(version=commit.version, tau=commit.tau)
                    self.metrics.settled(event.model, commit.update.worker, outcome)
                    self.metrics.version(event.model, commit.version)
            case TransferEnded(end=TransferEnd.DISCARDED, transfer=UpdateId() as update) if event.cause is not None:
                self.metrics.settled(event.model, update.worker, Dropped(cause=event.cause))
            case LinksReported():
                for rate in event.rates:
                    self.metrics.link_rate(rate.host, rate.up, rate.bps)
        for instruction in instructions:
            if isinstance(instruction, Drop):
                self.metrics.settled(instruction.model, instruction.update.worker, Dropped(cause=instruction.cause))

    def survey(self, state: SchedulerState) -> None:
        """Set what is looked at rather than counted."""
        counts: Counter[tuple[Role, str]] = Counter(
            (m.member.role, m.state.value) for m in state.context.members.values()
        )
        self.metrics.members(counts)
        for name, model in state.models.items():
            self.metrics.queue(name, len(model.pushes.waiting))
