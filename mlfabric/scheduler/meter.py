"""What the scheduler counts and times: decisions, plans, outcomes, queues, link rates. Shell-level."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from mlfabric import clock
from mlfabric.model.specs import Role
from mlfabric.network import down_link, up_link
from mlfabric.protocol import (
    CancelReduce,
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    Instruction,
    MemberEvent,
    ModelVersion,
    PushRequested,
    Reduce,
    ReduceSettled,
    RoundId,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.scheduler.journal import Journal
from mlfabric.scheduler.members.silence import LostBy
from mlfabric.scheduler.records import PlanCount
from mlfabric.scheduler.rounds.probe_plans import ProbeCount
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.scheduler.state import SchedulerState
from mlfabric.scheduler.waits import Wait, count_waits
from mlfabric.telemetry import SchedulerMetrics

__all__ = ["Meter"]


@dataclass(frozen=True, slots=True)
class _Round:
    model: str
    size_bytes: int
    since_ns: int


class Meter:
    """Observes the state machine from outside.

    Args:
        metrics: where figures go.
        software_version: shown on the status.
        journal: where it is written down what was decided; None where nobody reads that.
        see: is shown each event, and then what was decided; None shows nobody.

    Attributes:
        reduced_bytes: size of the tensor of each AllReduce job's last round.
        page: address of the status page; "" if there is none.
    """

    def __init__(
        self,
        metrics: SchedulerMetrics,
        software_version: str,
        journal: Journal | None = None,
        see: Callable[[MemberEvent | Instruction], None] | None = None,
    ) -> None:
        self.metrics = metrics
        self.journal = journal
        self._see = see
        self.software_version = software_version
        self.reduced_bytes: dict[str, int] = {}
        self.page = ""
        for cause in LostBy:
            metrics.lost(cause.name.lower(), members=0)
        self._plan_s = 0.0
        self._known = PlanCount()
        self._rounds: dict[RoundId, _Round] = {}
        self._probes: dict[str, ProbeCount] = {}
        self._delays: dict[str, Counter[int]] = {}
        self._tallies: dict[tuple[str, int], tuple[int, int]] = {}
        """How many gradients of each worker that makes rounds were counted as in rounds, and as dropped; by name and
        incarnation."""

    def mean_plan_ms(self, plans: int) -> float:
        """Return how long a plan took on average."""
        return 1e3 * self._plan_s / max(1, plans)

    def handle(self, state: SchedulerState, event: MemberEvent, now_ns: int) -> list[Instruction]:
        """Hand an event to the state machine; time it, and count what follows."""
        count = state.count
        plans, updates, started_s = count.plans, count.updates, time.perf_counter()
        instructions = state.handle(event, now_ns)
        took_s = time.perf_counter() - started_s
        self.metrics.decision(took_s)
        if count.plans > plans:
            self._plan_s += took_s
            self.metrics.plan(took_s, count.updates - updates)
        self._note(state, event)
        for instruction in instructions:
            if isinstance(instruction, Drop) and instruction.to == instruction.update.worker:
                self.metrics.settled(instruction.model, instruction.update.worker, Dropped(cause=instruction.cause))
            elif isinstance(instruction, Reduce | ReduceSettled | CancelReduce):
                self._round(state, instruction, now_ns)
        if self.journal is not None:
            self.journal.observe(state, event, instructions, now_ns)
        if self._see is not None:
            for seen in (event, *instructions):
                self._see(seen)
        return instructions

    def _round(self, state: SchedulerState, instruction: Reduce | ReduceSettled | CancelReduce, now_ns: int) -> None:
        """Note the first of the instructions that begin or end a round; the others say the same to other workers."""
        if isinstance(instruction, Reduce):
            size_bytes = max((part.end for part in instruction.parts), default=0)
            model = state.context.members[instruction.to].model
            self._rounds.setdefault(instruction.round, _Round(model, size_bytes, now_ns))
            self.reduced_bytes[model] = size_bytes
            return
        ended = self._rounds.pop(instruction.round, None)
        if ended is None:
            return
        if isinstance(instruction, ReduceSettled):
            self.metrics.round(ended.model, (now_ns - ended.since_ns) / 1e9, ended.size_bytes)
        else:
            self.metrics.round_voided(ended.model)

    def _note(self, state: SchedulerState, event: MemberEvent) -> None:
        """Count what members report of others that are known: anybody may name anything."""
        members = state.context.members
        match event:
            case PushRequested() | Tick():
                return
            case CommitsReported() if event.model in state.models:
                known = [commit for commit in event.commits if commit.update.worker in members]
                for commit in known:
                    outcome = Committed(version=commit.version, tau=commit.tau)
                    self.metrics.settled(event.model, commit.update.worker, outcome)
                for commit in known[-1:]:
                    self.metrics.version(event.model, commit.version)
            case TransferEnded(end=TransferEnd.DISCARDED, transfer=UpdateId() as update) if event.cause is not None:
                if update.worker in members and event.model in state.models:
                    self.metrics.settled(event.model, update.worker, Dropped(cause=event.cause))

    def survey(self, state: SchedulerState) -> None:
        """Set what is looked at rather than counted."""
        counts: Counter[tuple[Role, str]] = Counter(
            (m.member.role, m.state.value) for m in state.context.members.values()
        )
        self.metrics.members(counts)
        self.metrics.keep(state.context.members, state.context.network.hosts)
        self._count_sums(state.count)
        if self.journal is not None:
            self.journal.survey(state, self.mean_plan_ms(state.count.plans))
        for name, model in state.models.items():
            self.metrics.queue(name, len(model.pushes.waiting))
            self.metrics.delay_bound(name, model.pushes.tau_max)
            self.metrics.version(name, model.pushes.version)
            if (behind := model.replication.behind) is not None:
                self.metrics.replica(name, *behind)
        for name, found in count_waits(state).items():
            for wait in Wait:
                self.metrics.waiting(name, wait.value, found[wait])
        self._count_rounds(state)
        network, now_ns = state.context.network, clock.monotonic_ns()
        for host in network.hosts:
            for up, way in ((True, up_link(host)), (False, down_link(host))):
                if network.has_link(way):
                    self.metrics.link_rate(host, up, network.rate_bps(way, now_ns))
        for name, rounds in state.reductions.items():
            known, self._probes[name] = self._probes.get(name, ProbeCount()), rounds.probes
            self.metrics.probes(name, *(now - before for now, before in zip(rounds.probes, known, strict=True)))

    def _count_rounds(self, state: SchedulerState) -> None:
        """Count the gradients that were in rounds and those that were dropped since the last survey."""
        known, self._tallies = self._tallies, {}
        for name, record in state.context.members.items():
            if record.model not in state.reductions:
                continue
            process, now = (name, record.member.incarnation), (record.tally.committed, record.tally.dropped_total)
            before, self._tallies[process] = known.get(process, (0, 0)), now
            self.metrics.in_rounds(record.model, name, now[0] - before[0], now[1] - before[1])
        for name, rounds in state.reductions.items():
            self.metrics.round_voided(name, rounds=0)
            self.metrics.version(name, ModelVersion(1, rounds.version))
            if isinstance(rounds, StepRounds):
                fresh, self._delays[name] = rounds.delays - self._delays.get(name, Counter()), rounds.delays.copy()
                self.metrics.delays(name, fresh)
                self.metrics.delay_bound(name, rounds.delay_bound)

    def _count_sums(self, count: PlanCount) -> None:
        """Count the groups that were planned and the sums that were given up since the last survey."""
        known, self._known = self._known, replace(count, groups=count.groups.copy(), torn=count.torn.copy())
        for (shape, members), number in (count.groups - known.groups).items():
            self.metrics.groups(shape.name.lower(), members, number)
        for torn_by, number in (count.torn - known.torn).items():
            self.metrics.torn(torn_by.name.lower(), number)
